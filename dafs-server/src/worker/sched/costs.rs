//! Whether the parts of a list are moved one by one, or together with what lies between them. This is a model of what both cost, after
//! equations 1 to 4 of "Supporting Efficient Noncontiguous Access in PVFS over InfiniBand" (Wu, Wyckoff and Panda, 2003). Pure: it is told
//! times.
//!
//! ```text
//! apart       calls × call + bytes of the parts × byte / 2
//! a window    window + bytes of the window × byte
//! ```
//!
//! The costs of a call, of a window and of a byte of a window are learned from the lists themselves, for each export.

use std::time::Duration;

use dafs_proto::extent::Part;

use crate::storage::ExportId;
use crate::worker::flight::plan::{Apart, Call, READ_GAP_MAX, WAITING_GAP_MAX};
use crate::worker::sched::sieve::LearnedGaps;

/// Exports whose costs are told apart.
const EXPORTS_MAX: usize = 64;

/// Until it is known better, of reads and writes in a file system in memory, the quickest.
const READS: Costs = Costs { call: 800.0, byte: 0.25, window_calls: 1.0 };
const WRITES: Costs = Costs { call: 1000.0, byte: 0.4, window_calls: 3.0 };

/// No machine moves a byte in less, or makes a call in less, nanoseconds; none that has the data at hand takes longer for a byte.
const BYTE_NS_MIN: f32 = 0.05;
const BYTE_NS_MAX: f32 = 16.0;
const CALL_NS_MIN: f32 = 50.0;

/// What took longer than so many times what is known took most of it elsewhere: another process had the CPU. It counts as so many times.
const SEEN_MAX: f32 = 2.0;

/// What is seen changes what is known by this part.
const SEEN_IN: f32 = 8.0;

/// A list without windows forgets this part of what a window and its bytes cost more than at first, and a list of windows the same of a
/// call. Nothing else would show that they cost less again: what seems dear is not tried.
const FORGOTTEN_IN: f32 = 256.0;

/// What a window costs besides its bytes lies between so many calls, whatever was seen: 2 on ext4 and 5 on tmpfs.
const WINDOW_CALLS_MIN: f32 = 0.5;
const WINDOW_CALLS_MAX: f32 = 16.0;

/// Fewer calls tell nothing, nor do those of more bytes, whose time is that of moving them.
const COUNT_MIN: u32 = 4;
const CALL_BYTES_MAX: u64 = 4096;

/// What lists have cost, of reads or of writes.
#[derive(Debug)]
pub(crate) struct SieveCosts {
    prior: Costs,
    exports: Vec<Costs>,
    /// Of those that have to wait for storage.
    pub(crate) waiting: LearnedGaps,
}

/// What is expected of an export, nanoseconds.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) struct Costs {
    call: f32,
    byte: f32,
    /// What a window takes besides moving its bytes, in calls: of a write two for a lock, looks for holes and for pages, and a read and a
    /// write; each takes less than a write that changes something.
    window_calls: f32,
}

/// What a list has done in a turn, and how long that took.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Tally {
    /// Writes of single parts.
    pub(crate) calls: u32,
    pub(crate) call_bytes: u64,
    pub(crate) windows: u32,
    pub(crate) window_bytes: u64,
    pub(crate) time: Duration,
    /// Parts that took no call at all.
    pub(crate) pieces: u32,
    /// What the other parts would have taken without what lies between them, where somebody asks.
    pub(crate) apart: Apart,
}

impl Tally {
    /// A call has moved so many bytes, with what lies between parts or without.
    pub(crate) fn count(&mut self, has_gaps: bool, bytes: u64) {
        let (count, sum) = match has_gaps {
            true => (&mut self.windows, &mut self.window_bytes),
            false => (&mut self.calls, &mut self.call_bytes),
        };
        *count += 1;
        *sum += bytes;
    }

    pub(crate) fn count_apart(&mut self, apart: Apart) {
        self.apart.calls += apart.calls;
        self.apart.bytes += apart.bytes;
    }
}

impl SieveCosts {
    pub(crate) fn of_reads() -> Self {
        Self::new(READS, READ_GAP_MAX)
    }

    pub(crate) fn of_writes() -> Self {
        Self::new(WRITES, 0)
    }

    fn new(prior: Costs, gap_apart: u64) -> Self {
        Self { prior, exports: Vec::new(), waiting: LearnedGaps::new(gap_apart) }
    }

    pub(crate) fn costs(&self, export: ExportId) -> Costs {
        self.exports.get(usize::from(export.0)).copied().unwrap_or(self.prior)
    }

    /// A list has taken a turn.
    #[allow(clippy::cast_precision_loss, reason = "estimates")]
    pub(crate) fn record(&mut self, export: ExportId, tally: &Tally) {
        let index = usize::from(export.0);
        let is_small = tally.call_bytes <= u64::from(tally.calls) * CALL_BYTES_MAX;
        if index >= EXPORTS_MAX || tally.time.is_zero() || tally.pieces > 0 || !is_small {
            return;
        }
        if self.exports.len() <= index {
            self.exports.resize(index + 1, self.prior);
        }
        let costs = &mut self.exports[index];
        let ns = tally.time.as_nanos() as f32;
        let moving = tally.call_bytes as f32 * costs.byte / 2.0;
        match (tally.calls, tally.windows) {
            (calls @ COUNT_MIN.., 0) => {
                approach(&mut costs.call, ((ns - moving) / calls as f32).max(CALL_NS_MIN));
                forget(&mut costs.byte, self.prior.byte);
                forget(&mut costs.window_calls, self.prior.window_calls);
            }
            (calls, windows @ 1..) => {
                // What was expected of each is off in the same proportion, for all that is known: the one that it mostly is changes most.
                let of_calls = calls as f32 * costs.call;
                let of_windows = windows as f32 * costs.window();
                let of_bytes = tally.window_bytes as f32 * costs.byte;
                let expected = of_calls + moving + of_windows + of_bytes;
                let off = ((ns / expected).min(SEEN_MAX) - 1.0) / SEEN_IN;
                costs.byte = (costs.byte * (1.0 + off * of_bytes / expected)).clamp(BYTE_NS_MIN, BYTE_NS_MAX);
                costs.window_calls = costs.window() / costs.call * (1.0 + off * of_windows / expected);
                costs.call = (costs.call * (1.0 + off * of_calls / expected)).max(CALL_NS_MIN);
                if calls == 0 {
                    forget(&mut costs.call, self.prior.call);
                }
            }
            _ => {}
        }
    }
}

impl Costs {
    /// What a window takes besides moving its bytes, nanoseconds.
    fn window(self) -> f32 {
        self.window_calls.clamp(WINDOW_CALLS_MIN, WINDOW_CALLS_MAX) * self.call
    }

    /// As a client is told: the largest gap worth moving, bytes; nanoseconds of a call; picoseconds of a byte.
    #[allow(clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "casts to integers saturate")]
    pub(crate) fn told(self) -> (u32, u32, u32) {
        (self.gap_max() as u32, self.call as u32, (self.byte * 1000.0) as u32)
    }

    /// What these calls take, nanoseconds.
    #[allow(
        clippy::cast_precision_loss,
        clippy::cast_possible_truncation,
        clippy::cast_sign_loss,
        reason = "estimates"
    )]
    pub(crate) fn predicted_ns(self, tally: &Tally) -> u64 {
        let windows = tally.windows as f32 * self.window() + tally.window_bytes as f32 * self.byte;
        self.apart_ns(Apart { calls: tally.calls, bytes: tally.call_bytes }) + windows as u64
    }

    /// What calls without gaps take, nanoseconds.
    #[allow(
        clippy::cast_precision_loss,
        clippy::cast_possible_truncation,
        clippy::cast_sign_loss,
        reason = "estimates"
    )]
    pub(crate) fn apart_ns(self, apart: Apart) -> u64 {
        self.apart(apart) as u64
    }

    #[allow(clippy::cast_precision_loss, reason = "estimates")]
    fn apart(self, apart: Apart) -> f32 {
        // A byte of a window is read as well.
        apart.calls as f32 * self.call + apart.bytes as f32 * self.byte / 2.0
    }

    /// The largest gap that costs less to be written than one more call, bytes.
    #[allow(clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "bounded")]
    pub(crate) fn gap_max(self) -> u64 {
        ((self.call / self.byte.max(BYTE_NS_MIN)) as u64).min(WAITING_GAP_MAX)
    }

    /// Parts cost less in a window of so many bytes, gaps and all.
    #[allow(clippy::cast_precision_loss, reason = "estimates")]
    pub(crate) fn pays(self, apart: Apart, len: u64) -> bool {
        self.window() + len as f32 * self.byte < self.apart(apart)
    }
}

/// A mean of the last few.
fn approach(known: &mut f32, seen: f32) {
    *known += (seen.min(SEEN_MAX * *known) - *known) / SEEN_IN;
}

/// A little less than is known, where that is more than at first.
fn forget(known: &mut f32, prior: f32) {
    *known -= (*known - prior).max(0.0) / FORGOTTEN_IN;
}

/// Something lies between the parts of a call.
pub(crate) fn has_gaps(parts: &[Part], call: &Call) -> bool {
    let parts = parts.get(call.parts.clone()).unwrap_or_default();
    parts.iter().map(|part| part.len as u64).sum::<u64>() < call.len
}

#[cfg(test)]
mod tests {
    use super::*;

    const EXPORT: ExportId = ExportId(1);

    /// So many calls, of next to no bytes.
    fn apart(calls: u32) -> Apart {
        Apart { calls, bytes: 0 }
    }

    #[test]
    fn costs_follow_what_was_seen_of_each_export() {
        let mut sieve = SieveCosts::of_writes();
        let time = Duration::from_micros;
        for _ in 0..100 {
            sieve.record(EXPORT, &Tally { calls: 10, time: time(50), ..Tally::default() });
        }
        let costs = sieve.costs(EXPORT);
        assert!((costs.call - 5000.0).abs() < 1.0, "{costs:?}");
        assert!((12_490..=12_510).contains(&costs.gap_max()), "{costs:?}");
        let windows = Tally { windows: 2, window_bytes: 100_000, time: time(80), ..Tally::default() };
        (0..100).for_each(|_| sieve.record(EXPORT, &windows));
        let costs = sieve.costs(EXPORT);
        assert!((77_000..=81_000).contains(&costs.predicted_ns(&windows)), "{costs:?}");
        assert!(costs.byte > WRITES.byte, "{costs:?}");
        assert_eq!(sieve.costs(ExportId(0)), WRITES);
        // Few, large, not timed, or of an export beyond those that are told apart.
        for tally in [
            Tally { calls: 3, time: time(1), ..Tally::default() },
            Tally { calls: 10, call_bytes: 50_000, time: time(1), ..Tally::default() },
            Tally { calls: 10, ..Tally::default() },
            Tally { calls: 10, time: time(1), pieces: 1, ..Tally::default() },
        ] {
            sieve.record(EXPORT, &tally);
            assert_eq!(sieve.costs(EXPORT), costs);
        }
        sieve.record(ExportId(u16::MAX), &Tally { calls: 10, ..Tally::default() });
        assert_eq!(sieve.costs(ExportId(u16::MAX)), WRITES);
    }

    #[test]
    fn list_that_took_time_elsewhere_changes_costs_by_an_eighth_at_most() {
        let waited = Duration::from_millis(10);
        let of_windows = |window_bytes| Tally { windows: 1, window_bytes, ..Tally::default() };
        for tally in [
            Tally { calls: 8, call_bytes: 512, ..Tally::default() },
            of_windows(1),
            of_windows(8192),
            of_windows(1 << 18),
        ] {
            let mut sieve = SieveCosts::of_writes();
            let before = sieve.costs(EXPORT).predicted_ns(&tally);
            sieve.record(EXPORT, &Tally { time: waited, ..tally });
            let after = sieve.costs(EXPORT).predicted_ns(&tally);
            assert!((before * 106 / 100..=before * 1126 / 1000).contains(&after), "{before}, {after}");
        }
        // Nor does one that took no time leave nothing that could grow.
        let mut sieve = SieveCosts::of_writes();
        let time = Duration::from_nanos(1);
        for _ in 0..1000 {
            sieve.record(EXPORT, &Tally { calls: 8, time, ..Tally::default() });
            sieve.record(EXPORT, &Tally { time, ..of_windows(1 << 15) });
        }
        let costs = sieve.costs(EXPORT);
        assert!(costs.call >= 0.99 * CALL_NS_MIN && costs.byte >= 0.99 * BYTE_NS_MIN, "{costs:?}");
        assert!(costs.window() >= 0.99 * WINDOW_CALLS_MIN * costs.call, "{costs:?}");
    }

    fn window(bytes: u64, ns: u64) -> Tally {
        let time = Duration::from_nanos(2 * ns);
        Tally { windows: 2, window_bytes: 2 * bytes, time, ..Tally::default() }
    }

    #[test]
    fn window_costs_besides_its_bytes_what_small_ones_have_taken() {
        // Five calls, as on tmpfs, and two, as on ext4; 512 bytes take 205 ns.
        for (ns, parts_min) in [(5205u16, 6), (2205, 3)] {
            let mut sieve = SieveCosts::of_writes();
            (0..100).for_each(|_| sieve.record(EXPORT, &window(512, ns.into())));
            let costs = sieve.costs(EXPORT);
            assert!((costs.window() + 512.0 * costs.byte - f32::from(ns)).abs() < 10.0, "{costs:?}");
            assert_eq!(costs.call, WRITES.call);
            assert!((0.9..1.1).contains(&(costs.byte / WRITES.byte)), "{costs:?}");
            for count in 1..10 {
                assert_eq!(costs.pays(apart(count), 512), count >= parts_min, "{count}: {costs:?}");
            }
            assert_eq!(sieve.costs(ExportId(0)), WRITES);
        }
        // Nothing that was seen makes it less or more than any window takes.
        for (ns, calls) in [(1, WINDOW_CALLS_MIN), (50_000_000, WINDOW_CALLS_MAX)] {
            let mut sieve = SieveCosts::of_writes();
            (0..1000).for_each(|_| sieve.record(EXPORT, &window(512, ns)));
            assert_eq!(sieve.costs(EXPORT).window(), calls * WRITES.call);
        }
    }

    #[test]
    fn windows_of_any_sizes_tell_what_a_window_and_a_byte_cost() {
        let took = |bytes: u64, window_ns: u64, byte_ps: u64| window_ns + bytes * byte_ps / 1000;
        for (window_ns, byte_ps) in [(2000, 150), (2000, 1500), (9000, 150), (9000, 1500)] {
            for sizes in [&[16 << 10][..], &[512, 64 << 10], &[4 << 10, 12 << 10, 200 << 10]] {
                let mut sieve = SieveCosts::of_writes();
                let sample = |bytes: u64| window(bytes, took(bytes, window_ns, byte_ps));
                (0..600).for_each(|round| sieve.record(EXPORT, &sample(sizes[round % sizes.len()])));
                for bytes in sizes {
                    let sample = sample(*bytes);
                    let ratio =
                        sieve.costs(EXPORT).predicted_ns(&sample) as f64 / sample.time.as_nanos() as f64;
                    assert!((0.9..1.1).contains(&ratio), "{sizes:?}, {window_ns}, {byte_ps}: {ratio}");
                }
            }
        }
    }

    #[test]
    fn calls_beside_windows_tell_what_a_call_costs() {
        let mut sieve = SieveCosts::of_reads();
        let mixed =
            |ns: u64| Tally { calls: 8, call_bytes: 512, time: Duration::from_nanos(ns), ..window(4096, 0) };
        // Calls take 20 us each.
        (0..200).for_each(|_| sieve.record(EXPORT, &mixed(8 * 20_000 + 4_000)));
        let costs = sieve.costs(EXPORT);
        assert!((10_000.0..25_000.0).contains(&costs.call), "{costs:?}");
        assert!(costs.gap_max() > 16 * 1024, "{costs:?}");
    }

    #[test]
    fn calls_that_were_slow_for_a_while_are_tried_again() {
        let mut sieve = SieveCosts::of_writes();
        let slow = Tally { calls: 8, time: Duration::from_micros(800), ..Tally::default() };
        (0..100).for_each(|_| sieve.record(EXPORT, &slow));
        let tried = (0..1000).find(|_| {
            sieve.record(EXPORT, &window(200_000, 85_000));
            !sieve.costs(EXPORT).pays(apart(8), 200_000)
        });
        assert!(tried.is_some_and(|lists| lists > 100), "{tried:?}");
    }

    #[test]
    fn windows_that_were_slow_for_a_while_are_tried_again() {
        let mut sieve = SieveCosts::of_writes();
        assert!(sieve.costs(EXPORT).pays(apart(64), 8192));
        for window_bytes in [1 << 18, 1 << 12] {
            let slow = Tally { windows: 1, window_bytes, time: Duration::from_millis(5), ..Tally::default() };
            (0..100).for_each(|_| sieve.record(EXPORT, &slow));
        }
        assert!(!sieve.costs(EXPORT).pays(apart(64), 8192));
        let called = Tally { calls: 64, time: Duration::from_micros(64), ..Tally::default() };
        let tried = (0..1000).find(|_| {
            sieve.record(EXPORT, &called);
            sieve.costs(EXPORT).pays(apart(64), 8192)
        });
        assert!(tried.is_some_and(|lists| lists > 100), "{tried:?}");
        // What a byte costs less than at first is not forgotten.
        let quick =
            Tally { windows: 1, window_bytes: 1 << 18, time: Duration::from_micros(30), ..Tally::default() };
        (0..1000).for_each(|_| sieve.record(EXPORT, &quick));
        let costs = sieve.costs(EXPORT);
        sieve.record(EXPORT, &called);
        assert_eq!(sieve.costs(EXPORT).byte, costs.byte);
    }

    #[test]
    fn window_pays_exactly_where_the_equations_say_so() {
        let costs = Costs { byte: 0.5, ..WRITES };
        for (count, len, pays) in [(4, 1999, true), (4, 2000, false), (3, 1, false), (512, 262_144, true)] {
            assert_eq!(costs.pays(apart(count), len), pays, "{count} in {len}");
        }
        // The parts' own bytes are moved in either case: twice in a window.
        let whole = Apart { calls: 4, bytes: 1000 };
        assert!(costs.pays(whole, 2499) && !costs.pays(whole, 2500));
        assert_eq!(costs.gap_max(), 2000);
        assert_eq!(Costs { call: 10_000.0, byte: 0.0, ..WRITES }.gap_max(), WAITING_GAP_MAX);
    }
}
