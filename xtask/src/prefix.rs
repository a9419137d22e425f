//! Directories that things are installed in, and the builds of what goes there.

use std::fs;
use std::path::{Path, PathBuf};

use anyhow::{Context, Result, ensure};

use crate::suite;

/// Makes a directory below the prefix; its path, absolute.
pub(crate) fn made(prefix: &Path, name: &str) -> Result<PathBuf> {
    let directory = prefix.join(name);
    fs::create_dir_all(&directory).with_context(|| format!("cannot make {}", directory.display()))?;
    directory.canonicalize().with_context(|| format!("cannot find {}", directory.display()))
}

/// Copies a file to a new one, which then gets the name: a program that runs keeps what it has of the old.
pub(crate) fn replace(from: &Path, to: &Path) -> Result<()> {
    let new = to.with_extension("new");
    let copied = fs::copy(from, &new).and_then(|_| fs::rename(&new, to));
    copied.with_context(|| format!("cannot copy {} to {}", from.display(), to.display()))
}

/// Builds packages, released or as the tests are; the directory with what was built.
pub(crate) fn build(root: &Path, packages: &[&str], dev: bool, verbs: bool) -> Result<PathBuf> {
    let workspace = suite::discover(root)?;
    let mut command = suite::cargo();
    command.args(["build", "--locked"]).current_dir(root);
    command.env("CARGO_TARGET_DIR", &workspace.target_directory);
    for package in packages {
        command.args(["--package", package]);
        command.args(verbs.then(|| format!("--features={package}/verbs")));
    }
    command.args((!dev).then_some("--release"));
    let built = command.status().context("cannot run cargo")?;
    ensure!(built.success(), "cannot build {}: cargo says why", packages.join(", "));
    Ok(workspace.target_directory.join(if dev { "debug" } else { "release" }))
}
