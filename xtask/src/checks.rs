//! Checks that are not tests: format, lints, documentation, feature sets.
//!
//! They share the one target directory and change no compiler flags, so that none of them rebuilds what another made.

use std::path::Path;
use std::process::Command;
use std::time::{Duration, Instant};

use anyhow::Result;

use crate::guest::VERBS;
use crate::process::{self, Log};
use crate::report::Row;
use crate::suite::{self, Workspace};

/// A check and how to run it.
#[derive(Debug)]
pub(crate) struct Check {
    /// Its row in the table.
    pub(crate) name: &'static str,
    /// A cargo sub-command that may be missing, and how to get it.
    needs: Option<(&'static str, &'static str)>,
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
        calls: &[&["fmt", "--all", "--check"]],
        environment: &[],
    },
    Check {
        name: "clippy",
        needs: Some(("clippy", "rustup component add clippy")),
        // The fuzz targets too: they need a nightly compiler to run, and must build on stable.
        calls: &[&[
            "clippy",
            "--locked",
            "--workspace",
            "--all-targets",
            "--features",
            "dafs-fuzz/fuzzer",
            "--",
            "-D",
            "warnings",
        ]],
        environment: &[],
    },
    Check {
        name: "rustdoc",
        needs: None,
        calls: &[&["doc", "--locked", "--workspace", "--no-deps"]],
        environment: &[("RUSTDOCFLAGS", "-D warnings")],
    },
    // Each feature alone: in the workspace they are always all on, which hides a missing one.
    Check {
        name: "features",
        needs: None,
        calls: &[
            &["check", "--locked", "--package", "dafs-proto", "--no-default-features"],
            &["check", "--locked", "--package", "dafs-proto", "--no-default-features", "--features", "tcp"],
            &["check", "--locked", "--package", "dafs-proto", "--no-default-features", "--features", "shm"],
            &["check", "--locked", "--package", "dafs-proto", "--no-default-features", "--features", "sim"],
            &["check", "--locked", "--package", "dafs-proto", "--no-default-features", "--features", VERBS],
            &[
                "check",
                "--locked",
                "--package",
                "dafs-client",
                "--package",
                "dafs-server",
                "--package",
                "dafs-cli",
            ],
            &["check", "--locked", "--package", "dafs-client", "--features", "tokio"],
            &["check", "--locked", "--package", "dafs-client", "--features", "sim"],
        ],
        environment: &[],
    },
    // The archives of the crates that are published, as RELEASING.md makes them.
    Check {
        name: "package",
        needs: None,
        calls: &[&[
            "package",
            "--locked",
            "--offline",
            "--no-verify",
            "--allow-dirty",
            "--package",
            "dafs-proto",
            "--package",
            "dafs-client",
            "--package",
            "dafs-server",
            "--package",
            "dafs-mount",
            "--package",
            "dafs-stripe",
            "--package",
            "dafs-cli",
        ]],
        environment: &[],
    },
];

/// A check that was run, or could not be.
#[derive(Debug)]
pub(crate) struct Checked {
    pub(crate) row: Row,
    pub(crate) log: Option<Log>,
    pub(crate) elapsed: Duration,
}

impl Check {
    /// Why it cannot be run here, if so.
    fn obstacle(&self) -> Option<String> {
        let (command, remedy) = self.needs?;
        let output = suite::cargo().args([command, "--version"]).output();
        let is_there = output.is_ok_and(|output| output.status.success());
        (!is_there).then(|| format!("cargo {command} is missing ({remedy})"))
    }

    /// Whether its commands differ by the features chosen.
    pub(crate) fn depends_on_features(&self) -> bool {
        self.calls.iter().any(|call| call.contains(&"--workspace") || call.contains(&VERBS))
    }

    /// Runs it. Blocking.
    pub(crate) fn run(&self, workspace: &Workspace, features: &str, log_directory: &Path) -> Result<Checked> {
        if let Some(obstacle) = self.obstacle() {
            let row = Row::of_not_run(self.name, &obstacle);
            return Ok(Checked { row, log: None, elapsed: Duration::ZERO });
        }
        let start = Instant::now();
        let log = Log::new(log_directory, self.name);
        let mut failure = None;
        for command in self.commands(workspace, features) {
            let outcome = process::run(command, self.name, &log, CARGO_TIME_MAX)?;
            if !outcome.end.is_success() {
                failure = Some(outcome.end.describe());
                break;
            }
        }
        let row = Row::of_check(self.name, failure);
        Ok(Checked { row, log: Some(log), elapsed: start.elapsed() })
    }

    /// Its commands, ready to run; those that name a feature which cannot be built here are left out.
    fn commands(&self, workspace: &Workspace, features: &str) -> impl Iterator<Item = Command> {
        let calls = self.calls.iter().filter(|call| !features.is_empty() || !call.contains(&VERBS));
        calls.map(move |call| {
            let mut command = cargo_call(workspace, features, call);
            command.envs(self.environment.iter().copied());
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

/// A call of cargo. One of the whole workspace gets these features (`package/feature`, comma-separated), always the same
/// in a run, so that nothing is built twice.
fn cargo_call(workspace: &Workspace, features: &str, arguments: &[&str]) -> Command {
    let mut command = cargo_in(workspace);
    for argument in arguments {
        command.arg(argument);
        if *argument == "--workspace" && !features.is_empty() {
            command.args(["--features", features]);
        }
    }
    command
}

/// Builds every test program, example and command once; the messages on standard output name the programs.
pub(crate) fn build_command(workspace: &Workspace, features: &str) -> Command {
    let mut command = cargo_call(
        workspace,
        features,
        &["build", "--locked", "--workspace", "--lib", "--bins", "--tests", "--examples"],
    );
    command.args(["--keep-going", "--message-format", "json-render-diagnostics"]);
    command
}

/// Runs the examples in the documentation.
pub(crate) fn doctest_command(workspace: &Workspace, features: &str) -> Command {
    cargo_call(workspace, features, &["test", "--locked", "--workspace", "--doc", "--no-fail-fast"])
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::path::PathBuf;

    fn workspace() -> Workspace {
        Workspace {
            root: PathBuf::from("/w"),
            target_directory: PathBuf::from("/w/target"),
            verbs_features: String::new(),
            suites: Vec::new(),
        }
    }

    fn words(command: &Command) -> Vec<String> {
        command.get_args().map(|word| word.to_string_lossy().into_owned()).collect()
    }

    #[test]
    fn every_call_of_the_whole_workspace_has_the_same_features() {
        let workspace = workspace();
        let checks =
            CHECKS.iter().flat_map(|check| check.commands(&workspace, "a/verbs").collect::<Vec<_>>());
        let others = [build_command(&workspace, "a/verbs"), doctest_command(&workspace, "a/verbs")];
        let whole: Vec<Vec<String>> = checks
            .chain(others)
            .map(|command| words(&command))
            .filter(|words| words.iter().any(|word| word == "--workspace"))
            .collect();
        assert_eq!(whole.len(), 4);
        for words in whole {
            let at = words.iter().position(|word| word == "--features").expect("features are chosen");
            assert_eq!(words[at + 1], "a/verbs");
            // What follows `--` is not cargo's.
            assert!(words.iter().position(|word| word == "--").is_none_or(|end| at < end), "{words:?}");
        }
    }

    #[test]
    fn feature_that_cannot_be_built_is_not_checked() {
        let workspace = workspace();
        let count =
            |features| CHECKS.iter().map(|check| check.commands(&workspace, features).count()).sum::<usize>();
        let of_verbs =
            CHECKS.iter().flat_map(|check| check.calls).filter(|call| call.contains(&VERBS)).count();
        assert!(of_verbs > 0);
        assert_eq!(count("a/verbs"), count("") + of_verbs);
    }
}
