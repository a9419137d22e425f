//! What the figures were taken on, and which CPUs the two ends of a benchmark run on.

use std::fs;
use std::path::Path;
use std::time::SystemTime;

use serde::Serialize;

use crate::sys;

/// Where client and server of a measurement run.
#[derive(Debug, Clone, Copy, PartialEq, Eq, clap::ValueEnum)]
pub enum Pin {
    /// Each end on a CPU of its own (migrations are the largest noise of a two-ended benchmark); none with one CPU.
    Auto,
    /// Left to the scheduler.
    None,
    /// Both ends on one CPU, where spinning never pays.
    Same,
}

/// The CPUs for each end; empty lists leave it to the scheduler.
#[derive(Debug, Clone, Default)]
pub struct Pins {
    /// For the client: the thread that measures.
    pub client: Vec<usize>,
    /// For servers: raw ones, `dafs-server` and those of peers alike.
    pub server: Vec<usize>,
    /// All CPUs allowed at the start, to undo a pinning.
    pub all: Vec<usize>,
}

impl Pins {
    /// Chooses CPUs among those allowed.
    pub fn choose(pin: Pin) -> anyhow::Result<Self> {
        let all = sys::allowed_cpus()?;
        let first = all.first().copied().into_iter().collect::<Vec<_>>();
        let last = all.last().copied().into_iter().collect::<Vec<_>>();
        Ok(match pin {
            Pin::Same => Self { client: last.clone(), server: last, all },
            Pin::Auto if all.len() >= 2 => Self { client: last, server: first, all },
            Pin::Auto | Pin::None => Self { client: Vec::new(), server: Vec::new(), all },
        })
    }

    /// Whether both ends have one CPU between them.
    pub fn same_cpu(&self) -> bool {
        self.all.len() == 1 || !self.client.is_empty() && self.client == self.server
    }

    /// The CPUs that a server may use.
    pub fn servers(&self) -> &[usize] {
        if self.server.is_empty() { &self.all } else { &self.server }
    }

    /// Pins the calling thread as a server; failing to is not an error, for it only adds noise.
    pub fn be_server(&self) {
        Self::apply(self.servers());
    }

    /// Pins the calling thread as a client.
    pub fn be_client(&self) {
        Self::apply(if self.client.is_empty() { &self.all } else { &self.client });
    }

    /// Leaves the calling thread to the scheduler.
    pub fn be_anywhere(&self) {
        Self::apply(&self.all);
    }

    fn apply(cpus: &[usize]) {
        let _ = sys::pin_thread(cpus);
    }
}

/// The machine, as far as it explains figures.
#[derive(Debug, Clone, Serialize)]
pub struct Machine {
    /// CPU model.
    pub cpu: String,
    /// CPUs that this process may use.
    pub cores: usize,
    /// Kernel release.
    pub kernel: String,
    /// Memory in MiB.
    pub memory_mib: u64,
    /// When the run began, UTC.
    pub date: String,
    /// Load average of the last minute as the run began: above 0.2, somebody else was measured too.
    pub load_average: f64,
    /// CPUs that the ends were pinned to.
    pub pinned: String,
    /// File system types of the directories that held the benchmark's files.
    pub file_system: String,
}

impl Machine {
    /// Describes this machine now, with the file systems of `directories`.
    pub fn describe(pins: &Pins, directories: &[&Path]) -> Self {
        Self {
            cpu: field("/proc/cpuinfo", "model name").unwrap_or_else(|| std::env::consts::ARCH.to_owned()),
            cores: pins.all.len(),
            kernel: first_word("/proc/sys/kernel/osrelease"),
            memory_mib: field("/proc/meminfo", "MemTotal")
                .and_then(|kib| kib.split_whitespace().next()?.parse::<u64>().ok())
                .map_or(0, |kib| kib / 1024),
            date: humantime::format_rfc3339_seconds(SystemTime::now()).to_string(),
            load_average: first_word("/proc/loadavg").parse().unwrap_or(0.0),
            pinned: if pins.client.is_empty() {
                "no".to_owned()
            } else {
                format!("client {:?}, server {:?}", pins.client, pins.server)
            },
            file_system: directories.iter().map(|place| file_system(place)).collect::<Vec<_>>().join(" and "),
        }
    }
}

/// Bytes that programs may still take; all, where that cannot be told.
pub fn available_memory() -> u64 {
    let told = field("/proc/meminfo", "MemAvailable");
    let kib = told.and_then(|kib| kib.split_whitespace().next()?.parse::<u64>().ok());
    kib.map_or(u64::MAX, |kib| kib << 10)
}

fn field(path: &str, name: &str) -> Option<String> {
    let text = fs::read_to_string(path).ok()?;
    let line = text.lines().find(|line| line.starts_with(name))?;
    Some(line.split_once(':')?.1.trim().to_owned())
}

fn first_word(path: &str) -> String {
    let text = fs::read_to_string(path).unwrap_or_default();
    text.split_whitespace().next().unwrap_or("unknown").to_owned()
}

/// Type of the file system that holds `directory`: the longest mount point that is a prefix of it.
pub fn file_system(directory: &Path) -> String {
    let directory = directory.canonicalize().unwrap_or_else(|_| directory.to_owned());
    let mounts = fs::read_to_string("/proc/self/mounts").unwrap_or_default();
    let mut fields = mounts.lines().filter_map(|line| {
        let mut words = line.split(' ').skip(1);
        Some((unescaped(words.next()?), words.next()?))
    });
    let longest = fields
        .by_ref()
        .filter(|(point, _)| directory.starts_with(point))
        .max_by_key(|(point, _)| point.len());
    longest.map_or_else(|| "unknown".to_owned(), |(_, kind)| kind.to_owned())
}

/// The name that a field of a table of mounts stands for, proc_mounts(5).
fn unescaped(field: &str) -> String {
    let escapes = [("\\040", " "), ("\\011", "\t"), ("\\012", "\n"), ("\\134", "\\")];
    escapes.iter().fold(field.to_owned(), |field, (escape, byte)| field.replace(escape, byte))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn mount_point_with_a_space_is_unescaped() {
        assert_eq!(unescaped("/mnt/a\\040b\\134c"), "/mnt/a b\\c");
    }

    #[test]
    fn both_ends_share_the_only_cpu_or_the_pinned_one() {
        let pins = |client: &[usize], server: &[usize], all: &[usize]| Pins {
            client: client.to_vec(),
            server: server.to_vec(),
            all: all.to_vec(),
        };
        assert!(pins(&[], &[], &[3]).same_cpu());
        assert!(pins(&[1], &[1], &[0, 1]).same_cpu());
        assert!(!pins(&[1], &[0], &[0, 1]).same_cpu());
        assert!(!pins(&[], &[], &[0, 1]).same_cpu());
    }
}
