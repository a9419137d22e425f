//! The user without privileges that runs some suites once more where they run as root: what root alone may do passes there, and fails for
//! everybody else.

use std::fs;
use std::os::unix::fs::chown;
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use anyhow::{Context, Result};

use crate::packages;

/// As `nobody` in Debian, with the group `nogroup`.
const USER: u32 = 65_534;

/// Suites in which the user matters, and the beginnings of the names of tests of which that is so.
const SUITES: &[(&str, &[&str])] = &[
    (
        "cli",
        &[
            "commands::tcp",
            "copy::tcp",
            "given::tcp",
            "merged::",
            "owners::tcp",
            "pages::",
            "removal::tcp",
            "same::",
        ],
    ),
    ("server/unit", &["access::", "config::", "storage::"]),
];

/// Where these tests are counted that root is needed for.
pub(crate) const AS_ROOT: &str = "rest as root";

/// The user, with a directory of its own for what tests make.
#[derive(Debug)]
pub(crate) struct User {
    directory: PathBuf,
}

/// The row of a suite that a user without privileges runs; `None` where the user does not matter.
pub(crate) fn row(suite: &str) -> Option<String> {
    SUITES.iter().any(|(name, _)| *name == suite).then(|| format!("{suite} (user)"))
}

/// Whether a test is one in which the user matters.
pub(crate) fn wants(suite: &str, test: &str) -> bool {
    let begins = |parts: &[&str]| parts.iter().any(|part| test.starts_with(part));
    SUITES.iter().any(|(name, parts)| *name == suite && begins(parts))
}

impl User {
    /// Makes the directory where temporary files are: tests that need a disk count on that.
    pub(crate) fn new() -> Result<Self> {
        let directory = std::env::temp_dir().join(format!("dafs-xtask-user-{}", std::process::id()));
        fs::create_dir(&directory).with_context(|| format!("cannot create {}", directory.display()))?;
        let user = Self { directory };
        chown(&user.directory, Some(USER), Some(USER))
            .with_context(|| format!("cannot give {} to user {USER}", user.directory.display()))?;
        Ok(user)
    }

    pub(crate) fn directory(&self) -> &Path {
        &self.directory
    }

    /// The same command, run by the user.
    pub(crate) fn command(&self, mut command: Command) -> Command {
        command.uid(USER).gid(USER).env("HOME", &self.directory).env_remove("XDG_RUNTIME_DIR");
        command
    }

    /// Whether the user can run a test program.
    pub(crate) fn reaches(&self, program: &Path) -> bool {
        let mut command = self.command(Command::new(program));
        succeeds(command.arg("--list"))
    }

    /// Whether the user has what a test needs that this process has.
    pub(crate) fn has(&self, need: &str) -> bool {
        if packages::needs_root(need) {
            return false;
        }
        let mut unshare = self.command(Command::new("unshare"));
        !packages::needs_user_namespace(need) || succeeds(unshare.args(["--user", "--map-root-user", "true"]))
    }
}

fn succeeds(command: &mut Command) -> bool {
    let quiet = command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null());
    quiet.status().is_ok_and(|status| status.success())
}

impl Drop for User {
    fn drop(&mut self) {
        // What a test that was killed has left mounted there stays.
        let _ = fs::remove_dir_all(&self.directory);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn user_has_nothing_that_only_root_has() {
        let user = User { directory: PathBuf::from("/nowhere/at/all") };
        assert!(!user.has("root") && !user.has("mount") && user.has("dev-shm"));
    }

    #[test]
    fn tests_are_chosen_by_the_beginnings_of_their_names() {
        assert!(wants("cli", "copy::tcp::x") && wants("cli", "pages::x"));
        assert!(!wants("cli", "copy::shm::x") && !wants("session", "copy::tcp::x"));
        assert_eq!((row("cli").as_deref(), row("session")), (Some("cli (user)"), None));
    }
}
