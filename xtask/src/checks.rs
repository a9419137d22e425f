//! Checks that are not tests: format, lints, documentation, feature sets, fuzz targets.
//!
//! They share the one target directory and change no compiler flags, so that none of them rebuilds what another made.

use std::process::Command;
use std::time::Duration;

use crate::suite::{self, Workspace};

/// A check and how to run it.
#[derive(Debug)]
pub(crate) struct Check {
    /// Its row in the table.
    pub(crate) name: &'static str,
    /// A cargo sub-command that may be missing, and how to get it.
    needs: Option<(&'static str, &'static str)>,
    /// A path under the root without which there is nothing to check.
    path: Option<&'static str>,
    /// Calls of cargo, all of which must succeed.
    calls: &'static [&'static [&'static str]],
    /// Set for each call.
    environment: &'static [(&'static str, &'static str)],
}

/// Bound on one cargo call; a cold build on a small machine fits.
pub(crate) const CARGO_TIME_MAX: Duration = Duration::from_secs(30 * 60);

/// Every check, in the order run.
pub(crate) const CHECKS: &[Check] = &[
    Check {
        name: "fmt",
        needs: Some(("fmt", "rustup component add rustfmt")),
        path: None,
        calls: &[&["fmt", "--all", "--check"]],
        environment: &[],
    },
    Check {
        name: "clippy",
        needs: Some(("clippy", "rustup component add clippy")),
        path: None,
        calls: &[&["clippy", "--locked", "--workspace", "--all-targets", "--", "-D", "warnings"]],
        environment: &[],
    },
    Check {
        name: "rustdoc",
        needs: None,
        path: None,
        calls: &[&["doc", "--locked", "--workspace", "--no-deps"]],
        environment: &[("RUSTDOCFLAGS", "-D warnings")],
    },
    // Each feature alone: in the workspace they are always all on, which hides a missing one.
    Check {
        name: "features",
        needs: None,
        path: None,
        calls: &[
            &["check", "--locked", "--package", "dafs-proto", "--no-default-features"],
            &["check", "--locked", "--package", "dafs-proto", "--no-default-features", "--features", "tcp"],
            &["check", "--locked", "--package", "dafs-proto", "--no-default-features", "--features", "shm"],
            &["check", "--locked", "--package", "dafs-proto", "--no-default-features", "--features", "sim"],
            &["check", "--locked", "--package", "dafs-client", "--no-default-features"],
        ],
        environment: &[],
    },
    // Outside the workspace, as they need a nightly compiler to run; they must build on stable.
    Check {
        name: "fuzz",
        needs: None,
        path: Some("tests/fuzz/Cargo.toml"),
        calls: &[&["check", "--locked", "--manifest-path", "tests/fuzz/Cargo.toml"]],
        environment: &[],
    },
];

impl Check {
    /// Why it cannot be run here, if so.
    pub(crate) fn obstacle(&self, workspace: &Workspace) -> Option<String> {
        if let Some(path) = self.path
            && !workspace.root.join(path).exists()
        {
            return Some(format!("no {path}"));
        }
        let (command, remedy) = self.needs?;
        let output = suite::cargo().args([command, "--version"]).output();
        let is_there = output.is_ok_and(|output| output.status.success());
        (!is_there).then(|| format!("cargo {command} is missing ({remedy})"))
    }

    /// Its commands, ready to run.
    pub(crate) fn commands(&self, workspace: &Workspace) -> impl Iterator<Item = Command> {
        self.calls.iter().map(|arguments| {
            let mut command = cargo_in(workspace);
            command.args(*arguments).envs(self.environment.iter().copied());
            command
        })
    }
}

/// Cargo in the workspace's root, told to use its one target directory.
pub(crate) fn cargo_in(workspace: &Workspace) -> Command {
    let mut command = suite::cargo();
    command
        .current_dir(&workspace.root)
        .env("CARGO_TARGET_DIR", &workspace.target_directory)
        .env("CARGO_TERM_COLOR", "never");
    command
}

/// Builds every test program, example and command once; the messages on standard output name the programs.
pub(crate) fn build_command(workspace: &Workspace) -> Command {
    let mut command = cargo_in(workspace);
    command.args(["build", "--locked", "--workspace", "--lib", "--bins", "--tests", "--examples"]);
    command.args(["--keep-going", "--message-format", "json-render-diagnostics"]);
    command
}

/// Runs the examples in the documentation.
pub(crate) fn doctest_command(workspace: &Workspace) -> Command {
    let mut command = cargo_in(workspace);
    command.args(["test", "--locked", "--workspace", "--doc", "--no-fail-fast"]);
    command
}
