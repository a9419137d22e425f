//! A bare Debian of this machine's release, in which a test runs the commands of the front page.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context, Result, bail};

/// Where it is, below the workspace.
const DIRECTORY: &str = "target/debian-root";
/// The user in it, beside root. `tests/tests/cli/pages.rs` has the name too.
const USER: &str = "user";
/// What programs need beside the C library that were built with the feature verbs.
const LIBRARIES: [&str; 2] = ["libibverbs.so.1", "librdmacm.so.1"];
/// Bound on its download, seconds.
const TIME_MAX: &str = "480";

/// Makes it where there is none of this release. It has what Debian calls required, and a user.
pub(crate) fn supply(workspace: &Path) -> Result<()> {
    let release = release_of(Path::new("/")).context("cannot make a bare Debian: this machine is none")?;
    let place = workspace.join(DIRECTORY);
    if release_of(&place).is_none_or(|found| found != release) {
        make(&release, &place)?;
    }
    // In a container it may be forbidden.
    said(Command::new("unshare").args(["--net", "--mount", "chroot"]).arg(&place).arg("true"))
        .with_context(|| format!("cannot run programs in {}", place.display()))
}

fn make(release: &str, place: &Path) -> Result<()> {
    println!("    making a bare Debian {release} in {}", place.display());
    let new = place.with_extension("new");
    for old in [&new, &place.to_owned()] {
        if old.exists() {
            fs::remove_dir_all(old).with_context(|| format!("cannot remove {}", old.display()))?;
        }
    }
    let mut debootstrap = Command::new("timeout");
    debootstrap.args(["--kill-after=5", TIME_MAX, "debootstrap", "--variant=minbase"]);
    let libraries = packages_of(&LIBRARIES);
    debootstrap.args((!libraries.is_empty()).then(|| format!("--include={}", libraries.join(","))));
    debootstrap.arg(release).arg(&new);
    said(&mut debootstrap).with_context(|| format!("cannot download Debian {release}"))?;
    said(Command::new("chroot").arg(&new).args(["useradd", "--create-home", USER]))
        .context("cannot add a user to it")?;
    fs::rename(&new, place).with_context(|| format!("cannot make {}", place.display()))
}

/// The packages that these files of this machine belong to. One that is not here is needed by no program that was built here.
fn packages_of(files: &[&str]) -> Vec<String> {
    let packages = files.iter().filter_map(|file| {
        let found = Command::new("dpkg-query").args(["--search", &format!("*/{file}")]).output().ok()?;
        let told = String::from_utf8_lossy(&found.stdout).into_owned();
        told.lines().next()?.split([':', ',']).next().map(str::to_owned)
    });
    packages.collect()
}

/// The code name of a Debian, such as `bookworm`.
fn release_of(root: &Path) -> Option<String> {
    let told = fs::read_to_string(root.join("etc/os-release")).ok()?;
    code_name_in(&told)
}

fn code_name_in(told: &str) -> Option<String> {
    let value = |name: &str| told.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix('='));
    let release = value("VERSION_CODENAME").filter(|_| value("ID") == Some("debian"))?;
    Some(release.trim_matches('"').to_owned())
}

/// Runs it; an error is the last that it said.
fn said(command: &mut Command) -> Result<()> {
    let program = PathBuf::from(command.get_program());
    let output = command.output().with_context(|| format!("cannot run {}", program.display()))?;
    if output.status.success() {
        return Ok(());
    }
    let text = [output.stdout, output.stderr].concat();
    let text = String::from_utf8_lossy(&text);
    let last = text.lines().rfind(|line| !line.trim().is_empty()).unwrap_or_default();
    bail!("{} ended ({}): {}", program.display(), output.status, last.trim())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn release_is_that_of_a_debian_and_of_no_other_system() {
        let debian = "NAME=\"Debian GNU/Linux\"\nVERSION_CODENAME=bookworm\nID=debian\n";
        assert_eq!(code_name_in(debian).as_deref(), Some("bookworm"));
        assert_eq!(code_name_in("VERSION_CODENAME=noble\nID=ubuntu\n"), None);
        assert_eq!(code_name_in("ID=debian\n"), None);
        assert_eq!(release_of(Path::new("/nowhere/at/all")), None);
    }

    #[test]
    fn command_that_fails_says_its_last_words() {
        let error =
            said(Command::new("sh").args(["-c", "echo first; echo 'E: last' >&2; exit 3"])).unwrap_err();
        assert_eq!(format!("{error}"), "sh ended (exit status: 3): E: last");
        assert!(said(&mut Command::new("true")).is_ok());
    }
}
