//! Commands run under a wall-clock bound, each in a process group of its own.
//!
//! Output goes to files, never to pipes: a process that a test left behind can then not keep us waiting for the end of
//! a pipe. Blocking; one command for each thread that calls.

use std::collections::BTreeSet;
use std::fs::{self, File};
use std::io;
use std::os::unix::process::{CommandExt, ExitStatusExt};
use std::path::{Path, PathBuf};
use std::process::{Command, ExitStatus, Stdio};
use std::sync::mpsc::{self, RecvTimeoutError};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use anyhow::{Context, Result};
use rustix::io::Errno;
use rustix::process::{Pid, Signal, kill_process_group};

/// How often a long command's progress is shown.
const PROGRESS_INTERVAL: Duration = Duration::from_secs(15);

/// As nice(1) has it.
const LOWEST_PRIORITY: i32 = 19;

/// How long a group has to end when it is asked to.
const GRACE: Duration = Duration::from_secs(3);

/// The process groups now running, for who handles signals.
static GROUPS: Mutex<BTreeSet<u32>> = Mutex::new(BTreeSet::new());

/// Where a command's output goes.
#[derive(Debug, Clone)]
pub(crate) struct Log {
    /// File of the standard output.
    pub(crate) stdout: PathBuf,
    /// File of the standard error.
    pub(crate) stderr: PathBuf,
}

impl Log {
    /// The pair of files for `name` in `directory`; slashes in the name become dashes.
    pub(crate) fn new(directory: &Path, name: &str) -> Self {
        let stem = name.replace('/', "-");
        Self {
            stdout: directory.join(format!("{stem}.log")),
            stderr: directory.join(format!("{stem}.stderr.log")),
        }
    }

    /// What was written to standard output, with invalid UTF-8 replaced; empty when the file cannot be read.
    pub(crate) fn stdout_text(&self) -> String {
        read_lossy(&self.stdout)
    }

    /// What was written to standard error, as [`Log::stdout_text`].
    pub(crate) fn stderr_text(&self) -> String {
        read_lossy(&self.stderr)
    }
}

/// How a command ended.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum End {
    /// It exited with this status.
    Exit(i32),
    /// A signal killed it.
    Signal(i32),
    /// It was killed at its bound.
    TimedOut(Duration),
    /// It could not be started.
    NotStarted(String),
}

impl End {
    /// Whether the command said that all went well.
    pub(crate) fn is_success(&self) -> bool {
        *self == End::Exit(0)
    }

    /// The end in words, to complete "the suite ...".
    pub(crate) fn describe(&self) -> String {
        match self {
            End::Exit(status) => format!("exited with status {status}"),
            End::Signal(number) => format!("crashed: killed by {}", signal_name(*number)),
            End::TimedOut(bound) => format!("hung: killed after {} s", bound.as_secs()),
            End::NotStarted(why) => format!("could not start: {why}"),
        }
    }
}

/// How a command ended, how long it took, and what it left behind.
#[derive(Debug)]
pub(crate) struct Outcome {
    pub(crate) end: End,
    pub(crate) elapsed: Duration,
    /// Processes of its group still alive at its end; they have been killed.
    pub(crate) left_running: usize,
}

/// Runs `command` to its end or to `time_max`, whichever is first, then kills what is left of its process group.
///
/// Standard input is empty. While it runs, its elapsed time and last line of output are shown now and then.
pub(crate) fn run(mut command: Command, name: &str, log: &Log, time_max: Duration) -> Result<Outcome> {
    let create = |path: &Path| File::create(path).with_context(|| format!("cannot write {}", path.display()));
    command.stdin(Stdio::null()).stdout(create(&log.stdout)?).stderr(create(&log.stderr)?).process_group(0);
    let start = Instant::now();
    // A signal ends all groups that there are, and none begins after it.
    let mut running = groups();
    let mut child = match command.spawn() {
        Ok(child) => child,
        Err(error) => {
            let why = format!("{}: {error}", command.get_program().to_string_lossy());
            return Ok(Outcome { end: End::NotStarted(why), elapsed: Duration::ZERO, left_running: 0 });
        }
    };
    let group = child.id();
    running.insert(group);
    drop(running);
    let (sender, receiver) = mpsc::channel();
    std::thread::spawn(move || {
        // After a timeout nobody waits for the status.
        let _ = sender.send(child.wait());
    });
    let end = wait(&receiver, name, log, start, time_max, group);
    let left_running = if matches!(end, End::TimedOut(_)) { 0 } else { live_members(group) };
    kill_group(group);
    groups().remove(&group);
    Ok(Outcome { end, elapsed: start.elapsed(), left_running })
}

fn groups() -> MutexGuard<'static, BTreeSet<u32>> {
    GROUPS.lock().unwrap_or_else(PoisonError::into_inner)
}

/// What this thread starts from now on has a processor when nobody else wants it.
pub(crate) fn yield_to_others() -> Result<()> {
    rustix::process::setpriority_process(None, LOWEST_PRIORITY).context("cannot lower the priority")
}

/// On SIGINT, SIGTERM or SIGHUP, ends the groups now running and exits with 128 plus the signal's number.
///
/// Needed because the groups are not the terminal's foreground group and would outlive us.
pub(crate) fn kill_group_on_signals() -> Result<()> {
    use signal_hook::consts::{SIGHUP, SIGINT, SIGTERM};
    let mut signals = signal_hook::iterator::Signals::new([SIGINT, SIGTERM, SIGHUP])?;
    std::thread::spawn(move || {
        if let Some(signal) = signals.forever().next() {
            let groups = groups();
            end_groups(&groups, GRACE);
            eprintln!("xtask: stopped by {}", signal_name(signal));
            std::process::exit(128 + signal);
        }
    });
    Ok(())
}

fn wait(
    receiver: &mpsc::Receiver<io::Result<ExitStatus>>,
    name: &str,
    log: &Log,
    start: Instant,
    time_max: Duration,
    group: u32,
) -> End {
    loop {
        let left = time_max.saturating_sub(start.elapsed());
        match receiver.recv_timeout(left.min(PROGRESS_INTERVAL)) {
            Ok(Ok(status)) => return end_of(status),
            Ok(Err(error)) => return End::NotStarted(format!("waiting for it failed: {error}")),
            Err(RecvTimeoutError::Disconnected) => return End::NotStarted("its waiter died".to_owned()),
            Err(RecvTimeoutError::Timeout) if start.elapsed() >= time_max => {
                kill_group(group);
                return End::TimedOut(time_max);
            }
            Err(RecvTimeoutError::Timeout) => show_progress(name, log, start.elapsed()),
        }
    }
}

fn end_of(status: ExitStatus) -> End {
    match (status.code(), status.signal()) {
        (Some(code), _) => End::Exit(code),
        (None, Some(signal)) => End::Signal(signal),
        (None, None) => End::NotStarted(format!("unknown status {status}")),
    }
}

fn show_progress(name: &str, log: &Log, elapsed: Duration) {
    let newest = [&log.stdout, &log.stderr]
        .into_iter()
        .filter_map(|path| last_line(path))
        // Cargo writes machine-readable lines to its standard output.
        .rfind(|line| !line.starts_with('{'));
    println!("    {name}: {} s  {}", elapsed.as_secs(), newest.unwrap_or_default());
}

/// The last line that says something, cut to a terminal's width; reads only the file's end.
fn last_line(path: &Path) -> Option<String> {
    use std::io::{Read, Seek, SeekFrom};
    const TAIL: u64 = 4096;
    let mut file = File::open(path).ok()?;
    let length = file.metadata().ok()?.len();
    file.seek(SeekFrom::Start(length.saturating_sub(TAIL))).ok()?;
    let mut tail = Vec::new();
    file.take(TAIL).read_to_end(&mut tail).ok()?;
    let text = String::from_utf8_lossy(&tail);
    let line = text.lines().rev().map(str::trim).find(|line| !line.is_empty())?;
    Some(line.chars().take(80).collect())
}

/// Asks process groups to end, so that their programs remove what they have made, and kills what does not in this time.
fn end_groups(groups: &BTreeSet<u32>, grace: Duration) {
    groups.iter().for_each(|group| signal_group(*group, Signal::TERM));
    let asked = Instant::now();
    while groups.iter().any(|group| live_members(*group) > 0) && asked.elapsed() < grace {
        std::thread::sleep(Duration::from_millis(20));
    }
    groups.iter().for_each(|group| kill_group(*group));
}

/// Kills a process group, if any of it is left.
fn kill_group(group: u32) {
    signal_group(group, Signal::KILL);
}

fn signal_group(group: u32, signal: Signal) {
    let pid = i32::try_from(group).ok().and_then(Pid::from_raw);
    if let Some(pid) = pid
        && let Err(error) = kill_process_group(pid, signal)
        && error != Errno::SRCH
    {
        eprintln!("xtask: cannot end process group {group}: {error}");
    }
}

/// Counts the processes of a group that are not zombies.
fn live_members(group: u32) -> usize {
    let Ok(entries) = fs::read_dir("/proc") else { return 0 };
    entries
        .flatten()
        .filter(|entry| entry.file_name().to_string_lossy().bytes().all(|byte| byte.is_ascii_digit()))
        .filter_map(|entry| fs::read(entry.path().join("stat")).ok())
        .filter(|stat| is_live_member(&String::from_utf8_lossy(stat), group))
        .count()
}

/// Whether a line of `/proc/PID/stat` shows a live process of `group`. The command name, in parentheses, may hold
/// anything, so fields count from the last parenthesis.
fn is_live_member(stat: &str, group: u32) -> bool {
    let process_group = stat_fields(stat).nth(2).and_then(|field| field.parse::<u32>().ok());
    is_live(stat) && process_group == Some(group)
}

fn is_live(stat: &str) -> bool {
    !matches!(stat_fields(stat).next(), Some("Z" | "X") | None)
}

/// The fields after the command name: state, parent, process group, ...
fn stat_fields(stat: &str) -> impl Iterator<Item = &str> {
    stat.rsplit_once(')').map_or("", |(_, rest)| rest).split_ascii_whitespace()
}

fn signal_name(number: i32) -> String {
    signal_hook::low_level::signal_name(number).map_or_else(|| format!("signal {number}"), str::to_owned)
}

fn read_lossy(path: &Path) -> String {
    fs::read(path).map(|bytes| String::from_utf8_lossy(&bytes).into_owned()).unwrap_or_default()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn shell(script: &str) -> Command {
        let mut command = Command::new("sh");
        command.args(["-c", script]);
        command
    }

    /// What came of it, and what it has said: output and errors.
    fn run_script(name: &str, script: &str, time_max: Duration) -> (Outcome, [String; 2]) {
        let directory = tempfile::tempdir().unwrap();
        let log = Log::new(directory.path(), name);
        let outcome = run(shell(script), name, &log, time_max).unwrap();
        (outcome, [log.stdout_text(), log.stderr_text()])
    }

    const LONG: Duration = Duration::from_secs(600);

    #[test]
    fn run_exit_status_and_output_are_kept() {
        let (outcome, said) = run_script("exit", "echo out; echo err >&2; exit 3", LONG);
        assert_eq!(outcome.end, End::Exit(3));
        assert_eq!(said, ["out\n", "err\n"]);
        assert!(!outcome.end.is_success());
    }

    #[test]
    fn run_crash_names_the_signal() {
        let (outcome, _) = run_script("crash", "kill -SEGV $$", LONG);
        assert_eq!(outcome.end.describe(), "crashed: killed by SIGSEGV");
    }

    #[test]
    fn run_hang_is_killed_with_its_children() {
        let (outcome, [said, _]) =
            run_script("hang", "sleep 1000 & echo $!; exec sleep 1000", Duration::from_millis(300));
        assert!(matches!(outcome.end, End::TimedOut(_)), "{:?}", outcome.end);
        let child = said.trim();
        // A killed process takes a moment to die.
        while fs::read_to_string(format!("/proc/{child}/stat")).is_ok_and(|stat| is_live(&stat)) {
            std::thread::yield_now();
        }
    }

    #[test]
    fn group_that_is_ended_cleans_up_and_leaves_nobody() {
        let directory = tempfile::tempdir().unwrap();
        let left = directory.path().join("left");
        let ended = |script: &str, grace| {
            let mut shell = Command::new("sh");
            let mut child = shell.args(["-c", script]).arg(&left).process_group(0).spawn().unwrap();
            while !left.exists() {
                std::thread::yield_now();
            }
            end_groups(&BTreeSet::from([child.id()]), grace);
            child.wait().unwrap();
            while live_members(child.id()) > 0 {}
        };
        // It says that it is there once it is a program of its own: before that the signal would be taken by the shell's copy, and be lost.
        let waits = r#"sh -c ': > "$0"; exec sleep 1000' "$0" & wait"#;
        ended(&format!(r#"trap 'kill $!; rm "$0"; exit' TERM; {waits}"#), LONG);
        assert!(!left.exists());
        ended(r#"trap "" TERM; timeout --foreground 1000 sleep 1000 & : > "$0"; wait"#, Duration::ZERO);
    }

    #[test]
    fn run_left_child_is_counted_and_does_not_delay_the_end() {
        let (outcome, _) = run_script("left", "sleep 1000 & exit 0", LONG);
        assert_eq!(outcome.end, End::Exit(0));
        assert_eq!(outcome.left_running, 1);
    }

    #[test]
    fn commands_of_several_threads_run_beside_each_other() {
        let directory = tempfile::tempdir().unwrap();
        let [one, two] = ["one", "two"].map(|name| directory.path().join(name));
        // Each waits for what the other makes.
        let meet = |name: &'static str, own: &Path, other: &Path| {
            let script =
                format!("> '{}'; until [ -e '{}' ]; do sleep 0.01; done", own.display(), other.display());
            run_script(name, &script, LONG).0.end
        };
        let ends = std::thread::scope(|scope| {
            let beside = scope.spawn(|| {
                yield_to_others().unwrap();
                meet("beside-one", &one, &two)
            });
            [meet("beside-two", &two, &one), beside.join().unwrap()]
        });
        assert_eq!(ends, [End::Exit(0), End::Exit(0)]);
    }

    #[test]
    fn thread_that_yields_leaves_the_others_as_they_are() {
        let nice = || {
            let (outcome, [said, _]) = run_script("nice", "nice", LONG);
            assert_eq!(outcome.end, End::Exit(0));
            said.trim().parse::<i32>().unwrap()
        };
        let before = nice();
        let lowered = std::thread::spawn(move || {
            yield_to_others().unwrap();
            run_script("nice-lowered", "nice", LONG).1[0].trim().parse::<i32>().unwrap()
        });
        assert_eq!((lowered.join().unwrap(), nice()), (LOWEST_PRIORITY, before));
    }

    #[test]
    fn run_missing_program_is_an_outcome_not_an_error() {
        let directory = tempfile::tempdir().unwrap();
        let log = Log::new(directory.path(), "missing");
        let outcome = run(Command::new("/nonexistent/program"), "missing", &log, LONG).unwrap();
        assert!(outcome.end.describe().contains("/nonexistent/program"), "{}", outcome.end.describe());
    }

    #[test]
    fn stat_line_with_odd_command_name_is_read() {
        assert!(is_live_member("12 (a) b) S 1 77 77 0", 77));
        assert!(!is_live_member("12 (a) b) Z 1 77 77 0", 77));
        assert!(!is_live_member("12 (sh) S 77 1 77 0", 77));
        assert!(!is_live_member("", 77));
    }

    #[test]
    fn log_name_with_slash_stays_in_the_directory() {
        let log = Log::new(Path::new("d"), "proto/unit");
        assert_eq!(log.stdout, Path::new("d/proto-unit.log"));
    }
}
