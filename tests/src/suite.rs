//! What the suites share: one body for every provider, reproducible bytes and numbers.

use std::time::{Duration, Instant};

use dafs_client::{Error, Result, Status};

/// A test that makes no progress for so long has hung.
const HANG: Duration = Duration::from_secs(60);
/// Until then whoever waits asks again and again.
const SOON: Duration = Duration::from_millis(20);
/// Then he pauses for as long.
const LOOK_AGAIN: Duration = Duration::from_millis(1);

/// Declares the named functions, each of which takes the provider to run on, as tests in a module `tcp`, in a module `shm` and, in a
/// build with verbs, in a module `verbs`, whose tests need an RDMA device. `#[ignore = "needs …"]` before a name says what the tests need
/// on sockets.
#[macro_export]
macro_rules! on_each_provider {
    ($($(#[$attribute:meta])* $name:ident),* $(,)?) => {
        $crate::on_sockets! { $($(#[$attribute])* $name),* }
        $crate::on_verbs! { $($name),* }
    };
}

/// As [`on_each_provider`], on verbs only: for what is chosen of a suite whose other tests an emulated device cannot run, or which do the
/// same over every transport: an emulated machine is slow.
#[macro_export]
macro_rules! on_verbs {
    ($($name:ident),* $(,)?) => {
        #[cfg(feature = "verbs")]
        mod verbs {
            $(#[test] #[ignore = "needs rdma-device"] fn $name() { super::$name($crate::harness::On::Verbs); })*
        }
    };
}

/// As [`on_each_provider`], without verbs: for what reaches into the sockets of a connection, and for servers without keys.
#[macro_export]
macro_rules! on_sockets {
    ($($(#[$attribute:meta])* $name:ident),* $(,)?) => {
        mod tcp {
            $(#[test] $(#[$attribute])* fn $name() { super::$name($crate::harness::On::Tcp); })*
        }
        mod shm {
            $(#[test] $(#[$attribute])* fn $name() { super::$name($crate::harness::On::Shm); })*
        }
    };
}

/// As [`on_sockets`], on servers with three workers, in modules `tcp_three_workers` and `shm_three_workers`: sessions then
/// live beside each other on different loops.
#[macro_export]
macro_rules! on_three_workers {
    ($($(#[$attribute:meta])* $name:ident),* $(,)?) => {
        mod tcp_three_workers {
            $(#[test] $(#[$attribute])* fn $name() {
                $crate::harness::with_workers(3, || super::$name($crate::harness::On::Tcp));
            })*
        }
        mod shm_three_workers {
            $(#[test] $(#[$attribute])* fn $name() {
                $crate::harness::with_workers(3, || super::$name($crate::harness::On::Shm));
            })*
        }
    };
}

/// As [`on_verbs`], on servers with three workers, in a module `three_workers`.
#[macro_export]
macro_rules! on_verbs_three_workers {
    ($($name:ident),* $(,)?) => {
        #[cfg(feature = "verbs")]
        mod three_workers {
            mod verbs {
                $(#[test] #[ignore = "needs rdma-device"] fn $name() {
                    $crate::harness::with_workers(3, || super::super::$name($crate::harness::On::Verbs));
                })*
            }
        }
    };
}

/// As [`on_each_provider`] and [`on_three_workers`].
#[macro_export]
macro_rules! on_each_provider_and_three_workers {
    ($($(#[$attribute:meta])* $name:ident),* $(,)?) => {
        $crate::on_each_provider! { $($(#[$attribute])* $name),* }
        $crate::on_three_workers! { $($(#[$attribute])* $name),* }
    };
}

/// The names of the exports of a [`crate::harness::Harness`]: a directory, and memory.
pub const EXPORTS: [&str; 2] = ["data", "mem"];

/// Numbers that are the same in every run (splitmix64).
#[derive(Clone, Debug)]
pub struct Numbers(u64);

impl Numbers {
    /// Begins from a seed.
    pub fn new(seed: u64) -> Self {
        Self(seed)
    }

    /// The next number.
    #[allow(clippy::should_implement_trait, reason = "numbers without end are no iteration")]
    pub fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^ (z >> 31)
    }

    /// A number below `bound`, which is not 0.
    pub fn below(&mut self, bound: u64) -> u64 {
        self.next() % bound
    }

    /// One of these.
    pub fn one_of<T: Clone>(&mut self, choices: &[T]) -> T {
        choices[self.below(choices.len() as u64) as usize].clone()
    }
}

/// Bytes in which no two ranges of the same seed are alike, and different seeds differ.
pub fn bytes(seed: u64, len: usize) -> Vec<u8> {
    let mut numbers = Numbers::new(seed);
    let mut bytes = Vec::with_capacity(len + 8);
    while bytes.len() < len {
        bytes.extend_from_slice(&numbers.next().to_le_bytes());
    }
    bytes.truncate(len);
    bytes
}

/// Compares long contents; says where they differ instead of printing them.
#[track_caller]
pub fn assert_same(found: &[u8], expected: &[u8], what: &str) {
    assert_eq!(found.len(), expected.len(), "{what}: length");
    // Whole slices are compared many bytes at a time, a loop with an early end byte by byte.
    if found != expected {
        let at = found.iter().zip(expected).take_while(|(a, b)| a == b).count();
        panic!("{what}: byte {at} of {} is {:#x}, not {:#x}", found.len(), found[at], expected[at]);
    }
}

/// Whether all bytes are this one; many are looked at at a time, as in [`assert_same`].
pub fn is_all(bytes: &[u8], byte: u8) -> bool {
    bytes.first().is_none_or(|first| *first == byte && bytes[1..] == bytes[..bytes.len() - 1])
}

/// Waits until it is so; panics with these words where it never is.
#[track_caller]
pub fn wait_for(what: &str, mut is_so: impl FnMut() -> bool) {
    let began = Instant::now();
    while !is_so() {
        assert!(began.elapsed() < HANG, "never came about: {what}");
        // What is not so soon waits for a lease or a disk, and other tests need the processor.
        match began.elapsed() < SOON {
            true => std::thread::yield_now(),
            false => std::thread::park_timeout(LOOK_AGAIN),
        }
    }
}

/// Whether this test has a process to itself, as one needs whose memory is counted. Where others run beside it, it is run once more in
/// another process, and has passed there.
pub fn is_alone() -> bool {
    const ALONE: &str = "DAFS_TEST_IS_ALONE";
    let thread = std::thread::current();
    // By the harness's word, threads of tests are named as these; without threads it runs one after the other.
    let name = thread.name().filter(|name| *name != "main" && std::env::var_os(ALONE).is_none());
    let Some(name) = name else { return true };
    let mut again = std::process::Command::new(std::env::current_exe().expect("the path of the tests"));
    again.args(["--exact", name, "--include-ignored", "--test-threads=1", "--nocapture"]).env(ALONE, "");
    let output = again.output().expect("a process");
    let said = String::from_utf8_lossy(&output.stdout);
    let passed = output.status.success() && said.contains("1 passed");
    assert!(passed, "{said}{}", String::from_utf8_lossy(&output.stderr));
    false
}

/// What a session answers that gives an operation little time: asks again where that was too little, as on a busy machine.
#[track_caller]
pub fn in_time<T>(mut ask: impl FnMut() -> Result<T>) -> T {
    let mut found = None;
    wait_for("an answer in time", || match ask() {
        Ok(answer) => found.replace(answer).is_none(),
        Err(Error::TimedOut { .. } | Error::Status { status: Status::TIMED_OUT, .. }) => false,
        Err(error) => panic!("{error}"),
    });
    found.expect("an answer")
}

/// The operation was answered with this status.
#[track_caller]
pub fn assert_status<T: std::fmt::Debug>(result: Result<T>, expected: Status, what: &str) {
    match result {
        Err(Error::Status { status, .. }) if status == expected => {}
        other => panic!("{what}: {other:?}, not {expected:?}"),
    }
}

/// The library refused the call and sent nothing.
#[track_caller]
pub fn assert_invalid<T: std::fmt::Debug>(result: Result<T>, what: &str) {
    assert!(matches!(result, Err(Error::Invalid(_))), "{what}: {result:?}");
}

/// The resident memory of a process, bytes.
pub fn resident_size(process: u32) -> u64 {
    let status = std::fs::read_to_string(format!("/proc/{process}/status")).expect("the process runs");
    // Mapped files are the page cache's memory, not the server's.
    let counted = ["RssAnon:", "RssShmem:"];
    let kib = counted.map(|name| {
        let line = status.lines().find_map(|line| line.strip_prefix(name)).expect("the kernel counts memory");
        line.trim().trim_end_matches(" kB").parse::<u64>().expect("a number")
    });
    kib.iter().sum::<u64>() * 1024 + device_queues_size(process)
}

/// Queues of RDMA devices that a process has mapped, bytes.
fn device_queues_size(process: u32) -> u64 {
    // Paths of mapped files need not be UTF-8.
    let maps = std::fs::read(format!("/proc/{process}/smaps")).expect("the process runs");
    let mut is_device = false;
    let maps = String::from_utf8_lossy(&maps);
    let kib = maps.lines().filter_map(|line| {
        match line.strip_prefix("Rss:") {
            Some(size) if is_device => return size.trim().trim_end_matches(" kB").parse::<u64>().ok(),
            Some(_) => {}
            // The line of a mapping ends in its path; lines about it begin with a word.
            None if !line.split_whitespace().next().is_some_and(|word| word.ends_with(':')) => {
                is_device = line.contains("/dev/infiniband/") || line.contains("[infinibandevent]");
            }
            None => {}
        }
        None
    });
    kib.sum::<u64>() * 1024
}
