//! What a server's place in its cluster has from its host: time, threads and their waits, chance, processes and the fence. A simulation has
//! a host of its own, where a seed decides all of that.

use std::io;
use std::process::{Command, Stdio};
use std::sync::{Arc, Condvar, Mutex};
use std::time::{Duration, Instant};

use dafs_proto::transport::util::lock;

/// A fence command is ended that takes longer.
const COMMAND_TIME_MAX: Duration = Duration::from_secs(60);
/// Between two looks whether it has ended.
const COMMAND_LOOK: Duration = Duration::from_millis(5);

/// Waits until a thread has ended.
pub type Join = Box<dyn FnOnce() + Send>;

/// See the module.
pub trait Host: Send + Sync {
    /// Time since a moment that is always the same.
    fn now(&self) -> Duration;

    /// Starts a thread.
    ///
    /// # Errors
    /// The host has none left.
    fn spawn(&self, name: &'static str, body: Box<dyn FnOnce() + Send>) -> io::Result<Join>;

    /// Something to wait for that has not happened yet.
    fn event_count(&self) -> Arc<dyn EventCount>;

    /// Fills this with random bytes.
    ///
    /// # Errors
    /// The host has none.
    fn fill_random(&self, bytes: &mut [u8]) -> io::Result<()>;

    /// This process.
    fn process(&self) -> Process;

    /// That process was one of this host, and is no more.
    fn has_ended(&self, process: &Process) -> bool;

    /// Runs a fence command, until it ends or `gives_up`. Blocks.
    ///
    /// # Errors
    /// What is wrong with it: it has not said that the server is cut off.
    fn fence(&self, fence: &Fence<'_>, gives_up: &dyn Fn() -> bool) -> Result<(), String>;
}

/// Counts how often something has happened, so that threads can wait for it. Whoever reads the count, then finds nothing to do, and then
/// waits, misses nothing.
pub trait EventCount: Send + Sync {
    /// How often it has happened.
    fn read(&self) -> u64;

    /// Waits until it has happened more often than this, for a time at most.
    fn wait(&self, seen: u64, time_max: Duration);

    /// It has happened; wakes all who wait.
    fn advance(&self);

    /// The same, for one of those who wait.
    fn advance_one(&self);
}

/// A process, as others of its host can recognise it.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Process {
    /// The boot of its host.
    pub boot: String,
    /// Its process namespace.
    pub namespace: String,
    /// Its number.
    pub pid: u32,
    /// When it began, in ticks of the kernel's clock.
    pub began: u64,
}

/// A server that is to be cut off.
#[derive(Clone, Debug)]
pub struct Fence<'a> {
    /// The shell's words.
    pub command: &'a str,
    /// Variables with their values: which server it is.
    pub variables: Vec<(&'static str, String)>,
}

/// The host on which this process runs.
pub(super) struct OwnHost {
    began: Instant,
}

impl OwnHost {
    pub(super) fn new() -> Self {
        Self { began: Instant::now() }
    }
}

impl Host for OwnHost {
    fn now(&self) -> Duration {
        self.began.elapsed()
    }

    fn spawn(&self, name: &'static str, body: Box<dyn FnOnce() + Send>) -> io::Result<Join> {
        let thread = std::thread::Builder::new().name(name.into()).spawn(body)?;
        Ok(Box::new(move || {
            // It has told of what went wrong in it.
            let _ = thread.join();
        }))
    }

    fn event_count(&self) -> Arc<dyn EventCount> {
        Arc::new(Counted::default())
    }

    fn fill_random(&self, bytes: &mut [u8]) -> io::Result<()> {
        getrandom::fill(bytes).map_err(io::Error::other)
    }

    fn process(&self) -> Process {
        let pid = std::process::id();
        Process { boot: boot(), namespace: namespace(), pid, began: process_began(pid).unwrap_or(0) }
    }

    fn has_ended(&self, process: &Process) -> bool {
        let is_here = !process.boot.is_empty()
            && boot() == process.boot
            && !process.namespace.is_empty()
            && namespace() == process.namespace;
        is_here && process_began(process.pid) != Some(process.began)
    }

    fn fence(&self, fence: &Fence<'_>, gives_up: &dyn Fn() -> bool) -> Result<(), String> {
        let mut child = Command::new("/bin/sh")
            .args(["-c", fence.command])
            .envs(fence.variables.iter().map(|(name, value)| (name, value)))
            .stdin(Stdio::null())
            .stdout(Stdio::null())
            .spawn()
            .map_err(|error| format!("cannot run /bin/sh: {error}"))?;
        let until = Instant::now() + COMMAND_TIME_MAX;
        loop {
            match child.try_wait() {
                Ok(Some(status)) if status.success() => return Ok(()),
                Ok(Some(status)) => return Err(status.to_string()),
                Ok(None) if Instant::now() < until && !gives_up() => std::thread::sleep(COMMAND_LOOK),
                Ok(None) | Err(_) => {
                    // It may have ended by itself.
                    let _ = child.kill();
                    let _ = child.wait();
                    return Err(format!("it did not end within {COMMAND_TIME_MAX:?}"));
                }
            }
        }
    }
}

fn boot() -> String {
    let text = std::fs::read_to_string("/proc/sys/kernel/random/boot_id").unwrap_or_default();
    text.trim().to_owned()
}

fn namespace() -> String {
    std::fs::read_link("/proc/self/ns/pid").unwrap_or_default().to_string_lossy().into_owned()
}

/// When a process began, in ticks of the kernel's clock; `None` once all of its threads have ended.
fn process_began(pid: u32) -> Option<u64> {
    let stat = std::fs::read_to_string(format!("/proc/{pid}/stat")).ok()?;
    // The name may have spaces and parentheses.
    let mut fields = stat.rsplit_once(") ")?.1.split(' ');
    let state = fields.next()?;
    let began = fields.nth(18)?.parse().ok()?;
    let is_over = matches!(state, "Z" | "X")
        && std::fs::read_dir(format!("/proc/{pid}/task")).is_ok_and(|threads| threads.count() <= 1);
    (!is_over).then_some(began)
}

#[derive(Default)]
struct Counted {
    count: Mutex<u64>,
    changed: Condvar,
}

impl EventCount for Counted {
    fn read(&self) -> u64 {
        *lock(&self.count)
    }

    fn wait(&self, seen: u64, time_max: Duration) {
        let count = lock(&self.count);
        // Whoever waits looks again.
        drop(self.changed.wait_timeout_while(count, time_max, |count| *count == seen));
    }

    fn advance(&self) {
        *lock(&self.count) += 1;
        self.changed.notify_all();
    }

    fn advance_one(&self) {
        *lock(&self.count) += 1;
        self.changed.notify_one();
    }
}
