//! The work that subjects, peers and limits alike are given: which operation, on which part of the file, for how long.

use std::time::{Duration, Instant};

use serde::Serialize;

use crate::clock;
use crate::interrupt;
use crate::record::{Method, Op};

/// The order in which a load walks over its file.
#[derive(Debug, Clone, Copy, PartialEq, Eq, clap::ValueEnum, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum Pattern {
    /// One block after the other, from the start again at the end.
    Sequential,
    /// Blocks in a seeded pseudo-random order, the same for every subject and limit.
    Random,
}

/// Bytes that the load walks over. Well past the second-level cache, and small enough for any tmpfs.
pub const FILE_BYTES: u64 = 64 << 20;

/// What `O_DIRECT` wants the places, sizes and memory of its transfers to be multiples of, on whatever disk.
pub const DIRECT_BYTES: usize = 4096;

/// Name of the benchmark's file within an export.
pub const DATA_FILE: &str = "dafs-bench.data";

/// One case: what is done again and again.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Load {
    /// Read, write or ping.
    pub op: Op,
    /// File bytes of one operation; 0 for a ping.
    pub bytes: usize,
    /// Operations kept in flight, at least 1.
    pub queue_depth: usize,
    /// How dafs shall move the data; limits and peers ignore it.
    pub method: Method,
    /// Whether dafs shall use registered memory; limits and peers ignore it.
    pub registered: bool,
    /// Order of offsets.
    pub pattern: Pattern,
    /// Computation between submission and waiting for completion, in nanoseconds of a busy CPU, where they are two calls; limits ignore it.
    pub compute_ns: Option<u64>,
}

/// Computes for `ns` nanoseconds: keeps the CPU busy, and leaves the caches to the transfer.
pub fn compute(ns: u64) {
    if ns == 0 {
        return;
    }
    let start = Instant::now();
    while clock::nanoseconds(start, Instant::now()) < ns {
        std::hint::spin_loop();
    }
}

impl Load {
    /// The offsets of this load, from the beginning.
    pub fn offsets(&self) -> Offsets {
        // Blocks are aligned to their size, and small ones to a page, as programs lay their data out.
        let stride = (self.bytes as u64).next_multiple_of(4096).max(4096);
        Offsets { stride, blocks: (FILE_BYTES / stride).max(1), pattern: self.pattern, state: 0 }
    }
}

/// An endless walk over the file of a load: every block of `bytes` lies within [`FILE_BYTES`].
#[derive(Debug, Clone)]
pub struct Offsets {
    stride: u64,
    blocks: u64,
    pattern: Pattern,
    state: u64,
}

impl Offsets {
    /// The next offset.
    #[inline]
    pub fn advance(&mut self) -> u64 {
        let block = match self.pattern {
            Pattern::Sequential => {
                let block = self.state;
                self.state = if block + 1 < self.blocks { block + 1 } else { 0 };
                block
            }
            Pattern::Random => {
                // A linear congruential step (Knuth's MMIX constants); its high half is random enough for offsets.
                self.state = self
                    .state
                    .wrapping_mul(6_364_136_223_846_793_005)
                    .wrapping_add(1_442_695_040_888_963_407);
                ((self.state >> 32) * self.blocks) >> 32
            }
        };
        block * self.stride
    }
}

/// How long one measurement may take: until its time is over, but not fewer than `ops_min` operations where they take no more than
/// twice the time.
#[derive(Debug, Clone, Copy)]
pub struct Budget {
    /// Time to fill.
    pub duration: Duration,
    /// Operations done within twice the time.
    pub ops_min: u64,
    /// Operations done in any case.
    pub ops_slow_min: u64,
}

impl Budget {
    /// Starts the clock.
    pub fn start(self) -> Deadline {
        let start = Instant::now();
        let end = start + self.duration;
        Deadline {
            start,
            end,
            late: end + self.duration,
            ops_min: self.ops_min,
            ops_slow_min: self.ops_slow_min,
        }
    }
}

/// A running [`Budget`].
#[derive(Debug, Clone, Copy)]
pub struct Deadline {
    /// When the measurement began.
    pub start: Instant,
    end: Instant,
    late: Instant,
    ops_min: u64,
    ops_slow_min: u64,
}

impl Deadline {
    /// Whether the measurement is over at `now`, after `ops` operations; it is when the user wants it to end.
    #[inline]
    pub fn over(&self, now: Instant, ops: u64) -> bool {
        interrupt::requested()
            || now >= self.end && (ops >= self.ops_min || (now >= self.late && ops >= self.ops_slow_min))
    }
}

/// How much one measurement did, and in what time; the times of single operations go into `Samples`.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Work {
    /// Operations completed.
    pub ops: u64,
    /// From the first submission to the last completion.
    pub elapsed: Duration,
}

impl Work {
    /// Operations per second.
    pub fn ops_per_s(&self) -> f64 {
        self.ops as f64 / self.elapsed.as_secs_f64().max(1e-9)
    }

    /// File data per second, in MiB/s, for operations of `bytes`.
    pub fn mib_per_s(&self, bytes: usize) -> f64 {
        self.ops_per_s() * bytes as f64 / (1 << 20) as f64
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn load(bytes: usize, pattern: Pattern) -> Load {
        Load {
            op: Op::Read,
            bytes,
            queue_depth: 1,
            method: Method::Auto,
            registered: true,
            pattern,
            compute_ns: None,
        }
    }

    #[test]
    fn offsets_of_any_size_stay_within_the_file() {
        for bytes in [0, 1, 4, 4095, 4096, 4097, 65536, 1 << 20, 3 << 20, 64 << 20] {
            for pattern in [Pattern::Sequential, Pattern::Random] {
                let mut offsets = load(bytes, pattern).offsets();
                for _ in 0..20_000 {
                    let offset = offsets.advance();
                    assert!(offset + bytes as u64 <= FILE_BYTES, "{bytes} bytes at {offset}");
                    assert_eq!(offset % 4096, 0);
                }
            }
        }
    }

    #[test]
    fn offsets_sequential_wrap_to_the_start() {
        let mut offsets = load(32 << 20, Pattern::Sequential).offsets();
        let seen: Vec<u64> = (0..4).map(|_| offsets.advance()).collect();
        assert_eq!(seen, [0, 32 << 20, 0, 32 << 20]);
    }

    #[test]
    fn deadline_waits_for_the_least_number_of_operations() {
        let second = Duration::from_secs(1);
        let deadline = Budget { duration: second, ops_min: 6, ops_slow_min: 3 }.start();
        let (early, end) = (deadline.start + second / 2, deadline.start + second);
        assert!(!deadline.over(early, 6));
        assert!(!deadline.over(end, 5));
        assert!(deadline.over(end, 6));
        // Slow ones have twice the time, and then fewer are enough.
        let late = deadline.start + 2 * second;
        assert!(!deadline.over(late - Duration::from_nanos(1), 5));
        assert!(!deadline.over(late, 2));
        assert!(deadline.over(late, 3));
    }
}
