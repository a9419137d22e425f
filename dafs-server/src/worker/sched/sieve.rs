//! How far apart two parts may lie that a read which has to wait still takes in one call, learned from the reads themselves. Pure: it is
//! told times, and reads no clock.
//!
//! Where the crossing lies is a matter of the disk, of what the kernel reads ahead and of how many calls run at once: from some KiB to some
//! tens of KiB were seen. So for each size of parts and of gaps reads with one call for each part and reads that pass over the gaps
//! ("data sieving", Thakur, Gropp and Lusk, 1999) are both timed, now and then, and the quicker is used.

use std::time::Duration;

use dafs_proto::extent::Part;

use crate::storage::ExportId;
use crate::worker::flight::plan::{READ_GAP_MAX, WAITING_GAP_MAX};

/// Gaps of this many bytes on average, and of so many doublings more, have times of their own; below them all is read.
const GAP_CLASSES: usize = 6;
/// Parts below this many bytes, and from so many times eight more on, count as one size.
const PART_MIN: u64 = 512;
const PART_CLASSES: usize = 4;
/// Until it is known better gaps up to this are read: below what was measured for cold data on any machine seen (7 KB).
const PRIOR_GAP_MAX: u64 = 6 * 1024;
/// Exports whose times are told apart.
const EXPORTS_MAX: usize = 64;

/// Reads between two that are done in what seems the slower way, and so many when it is slower by far.
const TRY_EVERY: u32 = 32;
const TRY_SELDOM: u32 = 256;
/// Until both are known: every so many reads, and times that each is tried.
const TRY_FIRST: u32 = 2;
const TRIES_MIN: u32 = 3;

/// What reads of lists have cost.
#[derive(Debug, Default)]
pub(crate) struct LearnedGaps {
    exports: Vec<[Cell; GAP_CLASSES * PART_CLASSES]>,
}

/// Times of a kind of list: apart, and with the gaps.
#[derive(Clone, Copy, Debug, Default)]
struct Cell {
    ns: [f32; 2],
    tries: [u32; 2],
    reads: u32,
}

/// A read whose time tells something.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Trial {
    export: usize,
    cell: usize,
    sieves: bool,
}

impl LearnedGaps {
    /// The largest gap that is to be read with the parts from `from` on, bytes.
    pub(crate) fn choose(&mut self, export: ExportId, parts: &[Part], from: usize) -> (u64, Trial) {
        let export = usize::from(export.0).min(EXPORTS_MAX - 1);
        let (gap, part) = averages(parts.get(from..).unwrap_or_default());
        let index =
            class(gap, READ_GAP_MAX, 2, GAP_CLASSES) * PART_CLASSES + class(part, PART_MIN, 8, PART_CLASSES);
        if self.exports.len() <= export {
            self.exports.resize_with(export + 1, Default::default);
        }
        let cell = &mut self.exports[export][index];
        cell.reads = cell.reads.wrapping_add(1);
        let best = cell.best(gap <= PRIOR_GAP_MAX);
        let sieves = if cell.tries_other(best) { !best } else { best };
        let gap_max = if sieves { (2 * gap).clamp(READ_GAP_MAX, WAITING_GAP_MAX) } else { READ_GAP_MAX };
        (gap_max, Trial { export, cell: index, sieves })
    }

    /// A read has brought so many bytes in this time.
    #[allow(clippy::cast_precision_loss, reason = "an estimate")]
    pub(crate) fn record(&mut self, trial: Trial, len: u64, time: Duration) {
        let Some(cell) = self.exports.get_mut(trial.export).and_then(|cells| cells.get_mut(trial.cell))
        else {
            return;
        };
        let way = usize::from(trial.sieves);
        let ns = time.as_nanos() as f32 / len.max(1) as f32;
        let known = &mut cell.ns[way];
        // A disk's times are uneven: the mean of the last few.
        *known = if cell.tries[way] == 0 { ns } else { *known + (ns - *known) / 4.0 };
        cell.tries[way] = cell.tries[way].saturating_add(1);
    }
}

impl Cell {
    fn best(&self, prior: bool) -> bool {
        match self.tries.iter().all(|tries| *tries >= TRIES_MIN) {
            true => self.ns[1] < self.ns[0],
            false => prior,
        }
    }

    fn tries_other(&self, best: bool) -> bool {
        let (own, other) = (usize::from(best), usize::from(!best));
        if self.tries[other] < TRIES_MIN {
            return self.tries[own] >= TRIES_MIN && self.reads.is_multiple_of(TRY_FIRST);
        }
        let is_far = self.ns[other] > 2.0 * self.ns[own];
        self.reads.is_multiple_of(if is_far { TRY_SELDOM } else { TRY_EVERY })
    }
}

/// Bytes between two of these parts, and of one, on average.
fn averages(parts: &[Part]) -> (u64, u64) {
    let (Some(first), Some(last)) = (parts.first(), parts.last()) else { return (0, 0) };
    let len: u64 = parts.iter().map(|part| part.len as u64).sum();
    let span = last.end().saturating_sub(first.offset);
    let count = parts.len() as u64;
    (span.saturating_sub(len) / (count - 1).max(1), len / count)
}

/// Which power of `base` times `from` a value reaches.
fn class(value: u64, from: u64, base: u64, classes: usize) -> usize {
    let power = (value / from).checked_ilog(base).map_or(0, |log| log as usize + 1);
    power.min(classes - 1)
}

#[cfg(test)]
mod tests {
    use super::*;

    const EXPORT: ExportId = ExportId(0);

    fn parts(len: usize, gap: u64) -> Vec<Part> {
        let part = |index: usize| Part {
            offset: index as u64 * (len as u64 + gap),
            len,
            place: index * len,
            segment: 0,
            within: index * len,
        };
        (0..16).map(part).collect()
    }

    /// Reads that take `ns` for a byte, apart and sieved; how many of them were sieved.
    fn run(sieve: &mut LearnedGaps, parts: &[Part], reads: usize, ns: [u64; 2]) -> usize {
        let mut sieved = 0;
        for _ in 0..reads {
            let (_, trial) = sieve.choose(EXPORT, parts, 0);
            sieved += usize::from(trial.sieves);
            sieve.record(trial, 1000, Duration::from_nanos(1000 * ns[usize::from(trial.sieves)]));
        }
        sieved
    }

    // [LIST-14]
    #[test]
    fn sieve_that_knows_nothing_reads_small_gaps_and_no_others() {
        for (gap, sieves) in [(PRIOR_GAP_MAX - 1, true), (PRIOR_GAP_MAX, true), (PRIOR_GAP_MAX + 1, false)] {
            let (gap_max, trial) = LearnedGaps::default().choose(EXPORT, &parts(4096, gap), 0);
            assert_eq!((gap_max >= gap, trial.sieves), (sieves, sieves), "{gap}");
        }
    }

    // [LIST-16]
    #[test]
    fn sieve_takes_the_quicker_way_and_goes_on_trying_the_other() {
        for (gap, ns) in [(4096, [1, 4]), (4096, [4, 1]), (40_000, [1, 4]), (40_000, [4, 1])] {
            let mut sieve = LearnedGaps::default();
            run(&mut sieve, &parts(512, gap), 100, ns);
            let sieved = run(&mut sieve, &parts(512, gap), 1000, ns);
            let slower = if ns[0] < ns[1] { sieved } else { 1000 - sieved };
            assert!((1..=8).contains(&slower), "{gap} {ns:?}: {slower} in the slower way");
            // What changes is noticed.
            let turned = [ns[1], ns[0]];
            run(&mut sieve, &parts(512, gap), 4000, turned);
            let sieved = run(&mut sieve, &parts(512, gap), 1000, turned);
            let slower = if turned[0] < turned[1] { sieved } else { 1000 - sieved };
            assert!(slower <= 40, "{gap} {ns:?}: {slower} in what is slower now");
        }
    }

    #[test]
    fn sieve_tells_sizes_and_exports_apart() {
        let mut sieve = LearnedGaps::default();
        run(&mut sieve, &parts(512, 40_000), 100, [4, 1]);
        assert!(sieve.choose(EXPORT, &parts(512, 40_000), 0).1.sieves);
        for (export, parts) in
            [(ExportId(1), parts(512, 40_000)), (EXPORT, parts(40_000, 40_000)), (EXPORT, parts(512, 9000))]
        {
            assert!(!sieve.choose(export, &parts, 0).1.sieves);
        }
        sieve.choose(ExportId(u16::MAX), &parts(1, 1), 0);
        assert!(sieve.exports.len() <= EXPORTS_MAX);
        assert_eq!(sieve.choose(EXPORT, &[], 0).0, READ_GAP_MAX);
    }

    #[test]
    fn sieve_reads_no_gap_that_its_memory_does_not_hold() {
        let mut sieve = LearnedGaps::default();
        let far = parts(512, 10 * WAITING_GAP_MAX);
        run(&mut sieve, &far, 100, [4, 1]);
        assert!(sieve.choose(EXPORT, &far, 0).0 <= WAITING_GAP_MAX);
    }
}
