//! One `mpirun` of our program: told what to do by its standard input, until that ends.

use std::collections::VecDeque;
use std::io::{BufRead, BufReader, Read, Write};
use std::path::PathBuf;
use std::process::{Child, ChildStdin, Command as Process, Stdio};
use std::sync::mpsc::{self, Receiver, RecvTimeoutError};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use anyhow::{Context, bail};

use super::{Command, Kit, Reply};
use crate::cli::Way;
use crate::subject::server::stop_child;
use crate::{interrupt, sys};

/// An answer may take so long, and so many times what a measurement is to take, of which there are several to one answer: that is there to
/// end a hang, not to judge speed.
const ANSWER_TIME_MAX: Duration = Duration::from_secs(300);
const ANSWER_MEASUREMENTS_MAX: f64 = 25.0;
/// How long the ranks may take to end once their input has.
const END_TIME_MAX: Duration = Duration::from_secs(5);
/// Lines kept of what a job says to standard error.
const WORDS_MAX: usize = 20;

/// How a job is started.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Setup {
    /// The implementation of MPI-IO.
    pub way: Way,
    /// Whether it goes to dafs: else it is the library as it was installed.
    pub dafs: bool,
    /// Processes.
    pub ranks: usize,
    /// CPUs that they run on; anywhere when empty.
    pub cpus: Vec<usize>,
    /// Whether a thread of the driver moves nonblocking transfers along.
    pub progress_thread: bool,
    /// The key that the server demands.
    pub key_file: Option<PathBuf>,
}

/// A running job; ended when dropped.
#[derive(Debug)]
pub struct Job {
    child: Child,
    // Its end is the job's.
    input: Option<ChildStdin>,
    answers: Receiver<String>,
    last_words: Arc<Mutex<VecDeque<String>>>,
}

fn answer_time_max(command: &Command) -> Duration {
    ANSWER_TIME_MAX + Duration::from_secs_f64(command.seconds()).mul_f64(ANSWER_MEASUREMENTS_MAX)
}

impl Job {
    /// Starts the program. Does not wait for it.
    pub fn start(kit: &Kit, setup: &Setup) -> anyhow::Result<Self> {
        let mut command = process(kit, setup);
        command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped());
        sys::tether(&mut command, &setup.cpus);
        let mut child = command.spawn().context("cannot run mpirun")?;
        let input = child.stdin.take();
        let (send, answers) = mpsc::channel();
        each_line(child.stdout.take(), move |line| {
            let _ = send.send(line);
        });
        let last_words = Arc::new(Mutex::new(VecDeque::new()));
        let kept = Arc::clone(&last_words);
        each_line(child.stderr.take(), move |line| {
            let mut words = kept.lock().unwrap_or_else(PoisonError::into_inner);
            words.push_back(line);
            if words.len() > WORDS_MAX {
                words.pop_front();
            }
        });
        Ok(Self { child, input, answers, last_words })
    }

    /// Has a command carried out.
    ///
    /// # Errors
    /// What the program said of a failure, or that it ended. The job is of no use afterwards.
    pub fn ask(&mut self, command: &Command) -> anyhow::Result<Reply> {
        let line = command.line()?;
        let input = self.input.as_mut().context("the job has ended")?;
        if input.write_all(line.as_bytes()).and_then(|()| input.flush()).is_err() {
            return self.ended();
        }
        let (began, time_max) = (Instant::now(), answer_time_max(command));
        loop {
            interrupt::check()?;
            match self.answers.recv_timeout(Duration::from_millis(100)) {
                Ok(line) => {
                    if let Some(reply) = Reply::parse(&line)? {
                        return Ok(reply);
                    }
                }
                Err(RecvTimeoutError::Disconnected) => return self.ended(),
                Err(RecvTimeoutError::Timeout) if began.elapsed() > time_max => {
                    bail!("cannot go on: no reply from mpirun for {time_max:?}{}", self.words());
                }
                Err(RecvTimeoutError::Timeout) => {}
            }
        }
    }

    fn ended(&mut self) -> anyhow::Result<Reply> {
        // What a rank said before it aborted is worth more than the rest.
        for line in self.answers.try_iter() {
            Reply::parse(&line)?;
        }
        let status = self.child.wait()?;
        bail!("cannot go on: mpirun ended ({status}){}", self.words())
    }

    fn words(&self) -> String {
        let words = self.last_words.lock().unwrap_or_else(PoisonError::into_inner);
        let words: Vec<&str> = words.iter().map(String::as_str).collect();
        if words.is_empty() { String::new() } else { format!(":\n{}", words.join("\n")) }
    }
}

impl Drop for Job {
    fn drop(&mut self) {
        drop(self.input.take());
        let began = Instant::now();
        while began.elapsed() < END_TIME_MAX && matches!(self.child.try_wait(), Ok(None)) {
            std::thread::sleep(crate::progress::POLL_INTERVAL);
        }
        if matches!(self.child.try_wait(), Ok(None)) {
            stop_child(&mut self.child);
        }
    }
}

/// Calls `act` with each line, on a thread of its own: a job that says more never blocks on a full pipe.
fn each_line(from: Option<impl Read + Send + 'static>, mut act: impl FnMut(String) + Send + 'static) {
    let Some(from) = from else { return };
    std::thread::spawn(move || BufReader::new(from).lines().map_while(Result::ok).for_each(&mut act));
}

/// `mpirun` with its settings, as a user gives them.
fn process(kit: &Kit, setup: &Setup) -> Process {
    let mut command = if setup.dafs {
        let mut shell = Process::new("/bin/sh");
        shell.args(["-c", ". \"$0\" && exec mpirun \"$@\""]).arg(kit.settings(setup.way));
        shell
    } else {
        Process::new("mpirun")
    };
    command.args(["--oversubscribe", "--bind-to", "none", "-n", &setup.ranks.to_string()]).arg(kit.program());
    // What the user's shell says of files and of the driver is not what is to be measured.
    command.env_remove("LD_PRELOAD").env_remove("OMPI_MCA_mca_base_component_path");
    for (name, _) in std::env::vars_os().filter(|(name, _)| name.to_string_lossy().starts_with("DAFS_")) {
        command.env_remove(name);
    }
    command.env(
        "OMPI_MCA_io",
        match setup.way {
            Way::Ompio => "ompio",
            Way::Romio => "romio321",
        },
    );
    if setup.progress_thread {
        command.env("DAFS_MPI_PROGRESS_THREAD", "true");
    }
    if let Some(key_file) = &setup.key_file {
        command.env("DAFS_KEY_FILE", key_file);
    }
    for (name, value) in DEFAULTS {
        if std::env::var_os(name).is_none() {
            command.env(name, value);
        }
    }
    // Two that begin at once fail where both make the directory that they share.
    if std::env::var_os(SESSIONS).is_none() {
        command.env(SESSIONS, kit.directory());
    }
    command
}

/// Where Open MPI keeps the files of its jobs.
const SESSIONS: &str = "OMPI_MCA_orte_tmpdir_base";

/// For Open MPI, where the user says nothing else: ranks of one machine, more than it has processors perhaps, whoever runs them.
const DEFAULTS: [(&str, &str); 6] = [
    ("OMPI_ALLOW_RUN_AS_ROOT", "1"),
    ("OMPI_ALLOW_RUN_AS_ROOT_CONFIRM", "1"),
    ("OMPI_MCA_btl", "self,vader"),
    ("OMPI_MCA_btl_vader_single_copy_mechanism", "none"),
    ("OMPI_MCA_plm", "isolated"),
    ("OMPI_MCA_mpi_yield_when_idle", "1"),
];
