//! Programs of other people's crates that tests run: built once, below the target directory.

use std::path::Path;
use std::process::{Command, Stdio};

use anyhow::{Context, Result, bail};

use crate::suite;

/// Where they are, below the target directory. `tests/tests/mount/suites.rs` has the name too.
const DIRECTORY: &str = "suites";
/// Bound on the download and build of one, seconds.
const TIME_MAX: &str = "480";

/// A program, and the version that tests know.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Crate {
    pub(crate) name: &'static str,
    pub(crate) version: &'static str,
}

/// Builds it where it is not there in this version; why that fails.
pub(crate) fn supply(workspace: &Path, wanted: &Crate) -> Result<()> {
    let directory = suite::discover(workspace)?.target_directory.join(DIRECTORY);
    let program = directory.join("bin").join(wanted.name);
    if is_version(&program, wanted) {
        return Ok(());
    }
    let what = format!("{}@{}", wanted.name, wanted.version);
    println!("    building {what}");
    let mut install = Command::new("timeout");
    install.args(["--kill-after=5", TIME_MAX]).arg(suite::cargo().get_program());
    install.args(["install", "--quiet", "--locked", "--debug", "--root"]).arg(&directory);
    // Both are built in one place: they share most of what they depend on.
    install.arg("--target-dir").arg(directory.join("build")).arg(&what);
    install.args(["--config", "profile.dev.debug=false"]);
    install.env("CARGO_NET_RETRY", "1").env("CARGO_HTTP_TIMEOUT", "20").stdin(Stdio::null());
    let done = install.output().context("cannot run timeout")?;
    if !done.status.success() {
        let said = String::from_utf8_lossy(&done.stderr).into_owned();
        let cause = said.lines().find(|line| line.starts_with("error")).unwrap_or("it was not built in time");
        bail!("cannot build {what}: {cause}");
    }
    Ok(())
}

fn is_version(program: &Path, wanted: &Crate) -> bool {
    let told = Command::new(program).arg("--version").stdin(Stdio::null()).output();
    told.is_ok_and(|told| tells(&String::from_utf8_lossy(&told.stdout), wanted))
}

/// Whether these words tell of it: `fsx 0.3.2`.
fn tells(words: &str, wanted: &Crate) -> bool {
    let mut words = words.split_whitespace();
    words.next() == Some(wanted.name) && words.next() == Some(wanted.version)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn another_version_is_built_again() {
        let wanted = Crate { name: "fsx", version: "0.3.2" };
        assert!(tells("fsx 0.3.2\n", &wanted));
        assert!(!tells("fsx 0.3.1", &wanted) && !tells("", &wanted) && !tells("other 0.3.2", &wanted));
        assert!(!is_version(Path::new("/nowhere/at/all"), &wanted));
    }
}
