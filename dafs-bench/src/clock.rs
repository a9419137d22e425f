//! Timing of single operations, with the cost of reading the clock taken out.

use std::sync::OnceLock;
use std::time::Instant;

/// Successive laps of one loop: each lap ends where the next begins, so that one clock reading a lap is enough.
#[derive(Debug)]
pub struct Laps {
    last: Instant,
    overhead_ns: u64,
}

impl Laps {
    /// Starts the first lap now.
    pub fn start() -> Self {
        Self { overhead_ns: overhead_ns(), last: Instant::now() }
    }

    /// Ends a lap: its length in nanoseconds, without the cost of reading the clock, and the time of its end.
    #[inline]
    pub fn lap(&mut self) -> (u64, Instant) {
        let now = Instant::now();
        let ns = nanoseconds(self.last, now);
        self.last = now;
        (ns.saturating_sub(self.overhead_ns), now)
    }
}

/// Nanoseconds from `start` to `end`.
#[inline]
pub fn nanoseconds(start: Instant, end: Instant) -> u64 {
    u64::try_from(end.saturating_duration_since(start).as_nanos()).unwrap_or(u64::MAX)
}

/// What one reading of the clock costs, in nanoseconds: the best of many runs, so that it is never over-estimated.
pub fn overhead_ns() -> u64 {
    const READINGS: u32 = 1000;
    static OVERHEAD_NS: OnceLock<u64> = OnceLock::new();
    *OVERHEAD_NS.get_or_init(|| {
        let run = |_| {
            let start = Instant::now();
            for _ in 1..READINGS {
                std::hint::black_box(Instant::now());
            }
            nanoseconds(start, Instant::now()) / u64::from(READINGS)
        };
        (0..20).map(run).min().unwrap_or(0)
    })
}
