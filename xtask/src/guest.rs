//! The row `verbs`: tests that need an RDMA device, run on a guest that has one.
//!
//! The programs are those that the build made; `tests/rdma-vm/rdma-vm` shows the guest the same files at the same paths. One
//! boot runs them all. What they say comes back in files, one set per program.

use std::fmt::Write;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

use anyhow::{Context, Result};

use crate::process::{self, End, Log, Outcome};

/// The row's name, and the provider's.
pub(crate) const VERBS: &str = "verbs";

/// What tests name that need an RDMA device.
pub(crate) const DEVICE: &str = "rdma-device";
/// What the guest has and the machine may lack.
pub(crate) const SUPPLIED: [&str; 2] = [DEVICE, "soft-roce"];

/// What the feature verbs needs to be built.
pub(crate) const HEADERS: &str = "verbs-headers";

/// What stands in a suite's cell when its tests run in the guest.
pub(crate) const IN_GUEST: &str = "in row verbs";

/// The guest's device, as rdma-vm makes it.
const DEVICE_ADDRESS: &str = "10.9.9.1";

/// Boots a guest, seen from the root of the repository.
const RDMA_VM: &str = "tests/rdma-vm/rdma-vm";

/// What the guest's kernel says, in the directory of the run.
const CONSOLE: &str = "console.log";

/// Bound on one guest, boot included: some four times what an idle machine takes, for one that is busy is not one that hangs.
const GUEST_TIME_MAX: Duration = Duration::from_secs(20 * 60);

/// Bound on what the first run on a machine installs and downloads.
const PREPARE_TIME_MAX: Duration = Duration::from_secs(10 * 60);

/// Gives the suites a file system for their files, in memory. The guest's root is an overlay, whose appends and listings are not those
/// of a file system; listings of its tmpfs show entries twice, or not at all, while others come and go.
const FILE_SYSTEM: &str = "modprobe brd rd_nr=1 rd_size=1500000 && modprobe ext4 && \
    mke2fs -q -t ext4 -J size=16 -E lazy_itable_init=1,nodiscard /dev/ram0 && mkdir -p /run/files && \
    mount -o noatime /dev/ram0 /run/files && chmod 755 /run/files && TMPDIR=/run/files && export TMPDIR || exit\n";

/// A test program, and which of its tests need the device.
#[derive(Debug)]
pub(crate) struct Job {
    /// The suite that it belongs to.
    pub(crate) suite: String,
    /// Directory to start it in.
    pub(crate) directory: PathBuf,
    /// Version of its package.
    pub(crate) version: String,
    /// The test program.
    pub(crate) program: PathBuf,
    /// Names of its ignored tests to run.
    pub(crate) tests: Vec<String>,
}

/// What became of one job.
#[derive(Debug)]
pub(crate) struct Done {
    /// How the program ended.
    pub(crate) outcome: Outcome,
    /// Its standard output.
    pub(crate) stdout: String,
    /// Its standard error.
    pub(crate) stderr: String,
}

/// Installs and unpacks what a guest needs. Returns why there can be none, if so.
pub(crate) fn prepare(root: &Path, may_install: bool, log: &Log) -> Result<Option<String>> {
    let mut prepare = Command::new(root.join(RDMA_VM));
    prepare.args((!may_install).then_some("-n")).arg("-p");
    let prepared = process::run(prepare, VERBS, log, PREPARE_TIME_MAX)?;
    Ok((!prepared.end.is_success()).then(|| obstacle(&prepared.end, &log.stderr_text())))
}

/// Runs all jobs in one guest that was prepared, and returns an entry for each. What the guest itself says goes to `log`; results pass
/// through `directory`, which is emptied.
pub(crate) fn run(root: &Path, jobs: &[Job], directory: &Path, log: &Log) -> Result<Vec<Done>> {
    let _ = fs::remove_dir_all(directory);
    let create = || format!("cannot write {}", directory.display());
    fs::create_dir_all(directory).with_context(create)?;
    let script = directory.join("run.sh");
    fs::write(&script, format!("{FILE_SYSTEM}{}", script_of(jobs, directory))).with_context(create)?;
    let mut command = Command::new(root.join(RDMA_VM));
    command.arg("-n").arg("-t").arg(GUEST_TIME_MAX.as_secs().to_string());
    command.arg("-k").arg(directory.join(CONSOLE)).arg("-w").arg(directory);
    command.arg("--").arg("sh").arg(&script).current_dir(root);
    // rdma-vm keeps the bound; ours is for an rdma-vm that does not.
    let outcome = process::run(command, VERBS, log, GUEST_TIME_MAX + Duration::from_secs(20))?;
    // All that a guest needs was there: one that does not come so far is a fault, as a test is that hangs.
    let end = match directory.join("started").exists() {
        true => outcome.end,
        false => End::NotStarted(obstacle(&outcome.end, &log.stderr_text())),
    };
    Ok((0..jobs.len()).map(|number| collect(directory, number, &end)).collect())
}

/// What the kernel of the guest that ran in `directory` had to say: errors only, such as that it killed what had taken all memory.
pub(crate) fn kernel_text(directory: &Path) -> String {
    let said = fs::read(directory.join(CONSOLE)).unwrap_or_default();
    match String::from_utf8_lossy(&said).trim() {
        "" => String::new(),
        said => format!("the guest's kernel said:\n{said}\n"),
    }
}

/// Why a guest is not to be had, in a line.
fn obstacle(end: &End, said: &str) -> String {
    let last = said.lines().map(str::trim).rfind(|line| !line.is_empty()).unwrap_or_default();
    match last.strip_prefix("rdma-vm: ") {
        Some(why) => format!("no guest: {why}"),
        None => format!("no guest: rdma-vm {} {last}", end.describe()).trim_end().to_owned(),
    }
}

/// What the guest runs: every job, whatever became of the one before.
fn script_of(jobs: &[Job], directory: &Path) -> String {
    let mut text = format!("cd {} || exit\n: >started\n", quoted(directory));
    for (number, job) in jobs.iter().enumerate() {
        let _ = write!(
            text,
            "(cd {directory} && exec env DAFS_VERBS_ADDRESS={DEVICE_ADDRESS} DAFS_PROGRAMS_BUILT=1 RUST_BACKTRACE=1 \
             CARGO_MANIFEST_DIR={directory} CARGO_PKG_VERSION={version} {program} --ignored --exact",
            directory = quoted(&job.directory),
            version = quoted(Path::new(&job.version)),
            program = quoted(&job.program),
        );
        for test in &job.tests {
            let _ = write!(text, " {}", quoted(Path::new(test)));
        }
        let _ = writeln!(text, ") >{number}.log 2>{number}.stderr.log\necho $? >{number}.status");
    }
    text
}

/// A word for the shell that stands for exactly this.
fn quoted(word: &Path) -> String {
    format!("'{}'", word.to_string_lossy().replace('\'', r"'\''"))
}

/// Reads what one job left. Without a status the guest ended first.
fn collect(directory: &Path, number: usize, guest: &End) -> Done {
    let log = Log::new(directory, &number.to_string());
    let status = fs::read_to_string(directory.join(format!("{number}.status"))).unwrap_or_default();
    let end = match (status.trim().parse(), guest) {
        // The shell's way to tell of a signal.
        (Ok(status @ 129..=192), _) => End::Signal(status - 128),
        (Ok(status), _) => End::Exit(status),
        (Err(_), End::Exit(124) | End::TimedOut(_)) => End::TimedOut(GUEST_TIME_MAX),
        (Err(_), End::NotStarted(why)) => End::NotStarted(why.clone()),
        (Err(_), end) => End::NotStarted(format!("the guest died: rdma-vm {}", end.describe())),
    };
    let outcome = Outcome { end, elapsed: Duration::ZERO, left_running: 0 };
    Done { outcome, stdout: log.stdout_text(), stderr: log.stderr_text() }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn job(program: &str, tests: &[&str]) -> Job {
        Job {
            suite: "s".to_owned(),
            directory: std::env::temp_dir(),
            version: "1.0.0".to_owned(),
            program: program.into(),
            tests: tests.iter().map(|test| (*test).to_owned()).collect(),
        }
    }

    fn scratch(name: &str) -> PathBuf {
        let directory =
            std::env::temp_dir().join(format!("dafs-xtask-guest it's {}-{name}", std::process::id()));
        fs::create_dir_all(&directory).unwrap();
        directory
    }

    #[test]
    fn script_runs_every_job_and_keeps_what_each_said() {
        let directory = scratch("script");
        let jobs = [job("/bin/echo", &["verbs::a", "it's"]), job("/nonexistent", &[]), job("/bin/true", &[])];
        let script = script_of(&jobs, &directory);
        assert!(Command::new("sh").args(["-c", &script]).status().unwrap().success());
        assert!(directory.join("started").exists());
        let guest = End::Exit(0);
        let first = collect(&directory, 0, &guest);
        assert_eq!(first.outcome.end, End::Exit(0));
        assert_eq!(first.stdout, "--ignored --exact verbs::a it's\n");
        assert_eq!(collect(&directory, 1, &guest).outcome.end, End::Exit(127));
        assert!(collect(&directory, 1, &guest).stderr.contains("/nonexistent"));
        assert_eq!(collect(&directory, 2, &guest).outcome.end, End::Exit(0));
        fs::remove_dir_all(directory).unwrap();
    }

    #[test]
    fn job_without_status_has_not_passed() {
        let directory = scratch("unfinished");
        assert_eq!(collect(&directory, 0, &End::Exit(124)).outcome.end, End::TimedOut(GUEST_TIME_MAX));
        let died = collect(&directory, 0, &End::Exit(125)).outcome.end;
        assert!(died.describe().contains("the guest died"), "{}", died.describe());
        // Even a guest that says all went well proves nothing for a job that left no status.
        assert!(!collect(&directory, 0, &End::Exit(0)).outcome.end.is_success());
        fs::write(directory.join("0.status"), "139\n").unwrap();
        assert_eq!(collect(&directory, 0, &End::Exit(0)).outcome.end, End::Signal(11));
        fs::remove_dir_all(directory).unwrap();
    }

    #[test]
    fn kernel_of_the_guest_is_heard() {
        let directory = scratch("kernel");
        assert_eq!(kernel_text(&directory), "");
        fs::write(directory.join(CONSOLE), b"Out of memory: Killed process 7 (dafs\xff)\r\n").unwrap();
        assert!(kernel_text(&directory).contains("Killed process 7"));
        fs::remove_dir_all(directory).unwrap();
    }

    #[test]
    fn run_without_rdma_vm_says_why() {
        let directory = scratch("absent");
        let log = Log::new(&directory, "verbs");
        let why = prepare(&directory, false, &log).unwrap().unwrap();
        assert!(why.contains("rdma-vm"), "{why}");
        fs::remove_dir_all(directory).unwrap();
    }

    /// A guest whose rdma-vm is this script, which gets what the real one does, and one job: what became of that, or why there is none.
    fn run_by(name: &str, rdma_vm: &str) -> std::result::Result<Vec<Done>, String> {
        let root = scratch(name);
        let place = root.join("tests/rdma-vm");
        fs::create_dir_all(&place).unwrap();
        // Another process writes it: what another test starts meanwhile would have it open, and then it cannot be started.
        let write = r#"printf '#!/bin/sh\n%s\n' "$2" > "$1" && chmod +x "$1""#;
        let mut shell = Command::new("sh");
        shell.args(["-c", write, "sh"]).arg(place.join("rdma-vm")).arg(rdma_vm);
        assert!(shell.status().unwrap().success());
        let log = Log::new(&root, "verbs");
        let ran = match prepare(&root, false, &log).unwrap() {
            Some(why) => Err(why),
            None => Ok(run(&root, &[job("/bin/true", &["a"])], &root.join("out"), &log).unwrap()),
        };
        fs::remove_dir_all(root).unwrap();
        ran
    }

    #[test]
    fn guest_that_cannot_be_prepared_is_no_failure() {
        let why = run_by("unprepared", "echo 'rdma-vm: needs qemu' >&2; exit 1").unwrap_err();
        assert_eq!(why, "no guest: needs qemu");
    }

    #[test]
    fn guest_that_dies_before_its_first_job_has_failed() {
        let prepares = r#"case "$*" in *-p) exit 0; esac"#;
        for (name, end) in
            [("panic", "echo 'Kernel panic' >&2; exit 1"), ("hang", "exit 124"), ("quiet", "exit 0")]
        {
            let done = run_by(name, &format!("{prepares}; {end}")).unwrap();
            let [Done { outcome, .. }] = &done[..] else { panic!("{done:?}") };
            assert!(outcome.end.describe().contains("no guest: "), "{name}: {}", outcome.end.describe());
        }
    }

    #[test]
    fn guest_runs_what_it_is_given() {
        // The last of its arguments is the script.
        let done =
            run_by("runs", r#"case "$*" in *-p) exit 0; esac; for last; do :; done; sed 1,1d "$last" | sh"#)
                .unwrap();
        assert_eq!(done[0].outcome.end, End::Exit(0), "{}", done[0].stderr);
    }

    #[test]
    fn obstacle_is_what_rdma_vm_said_last() {
        let said = "apt-get: noise\nrdma-vm: needs Linux on x86-64, not Linux aarch64\n";
        assert_eq!(obstacle(&End::Exit(125), said), "no guest: needs Linux on x86-64, not Linux aarch64");
        assert!(obstacle(&End::Exit(1), "").contains("exited with status 1"));
    }
}
