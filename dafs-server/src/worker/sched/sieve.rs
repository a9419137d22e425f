//! The largest gap between two parts that a call which has to wait still reads along, learned from the lists themselves. Pure: it is told
//! times, and reads no clock.
//!
//! Where passing over a gap begins to cost more than another call depends on the disk, on what the kernel reads ahead, and on how many
//! calls run at once: from some KiB to some tens of KiB were seen. So for each size of parts and of gaps, there are two arms of a bandit
//! ([`Bandit`]): lists with one call for each part, and lists that pass over the gaps ("data sieving", Thakur, Gropp and Lusk, 1999).
//!
//! The time of a list says little if another list went the other way at the same time, because they share the disk. So during a trial all
//! lists of a kind go the other way, until one of them was alone. If so many are in progress that none is ever alone, trials become more
//! and more rare.

use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Duration;

use dafs_proto::bandit::{Bandit, Estimate, Rules};
use dafs_proto::extent::Part;

use crate::storage::ExportId;
use crate::worker::flight::plan::{READ_GAP_MAX, WAITING_GAP_MAX};

/// Gaps of this many bytes on average, and of so many doublings more, have times of their own; below them all count as one.
const GAP_CLASSES: usize = 6;
/// Parts below this many bytes, and from so many times eight more on, count as one size.
const PART_MIN: u64 = 512;
const PART_CLASSES: usize = 4;
/// Until it is known better gaps up to this are passed over: below what was measured for cold data on any machine seen (7 KB).
const PRIOR_GAP_MAX: u64 = 6 * 1024;
/// Exports whose times are told apart.
const EXPORTS_MAX: usize = 64;

/// A disk's times are uneven, so an average counts. A row goes on until one list was alone in its way: twice as many lists as many clients
/// have under way. Every 31st list at most is tried: a number that is odd, so that of clients that take turns each is.
const RULES: Rules = Rules {
    estimate: Estimate::Mean,
    known: 3,
    row: 1,
    row_uses_max: 64,
    clearly: 1.0,
    clearly_at_first: 1.0,
    pause_min: 30,
    pause_growth: [1, 1],
    pause_max: [30, 30],
    pause_equal: 30,
    cost_max: 1.0 / 32.0,
    weighs: true,
};

/// What lists have cost whose data is not at hand, of reads or of writes.
#[derive(Debug)]
pub(crate) struct LearnedGaps {
    /// Gaps up to this are passed over in either way.
    gap_apart: u64,
    exports: Vec<Export>,
}

#[derive(Debug, Default)]
struct Export {
    /// Of files that are in the page cache, and of those that are open for direct I/O.
    cells: Cells,
    /// The last list had to wait.
    has_waited: bool,
}

type Cells = [[Cell; GAP_CLASSES * PART_CLASSES]; 2];

/// A kind of list: apart, and with the gaps.
#[derive(Debug, Default)]
struct Cell {
    bandit: Bandit<2>,
    /// A list was alone in it: what others tell counts no more.
    was_alone: [bool; 2],
    /// Lists that have begun, and that are under way.
    begun: [u32; 2],
    running: Arc<[AtomicU32; 2]>,
}

/// A list whose time tells something. It is under way until this is dropped.
#[derive(Debug)]
pub(crate) struct Trial {
    export: usize,
    cell: (usize, usize),
    sieves: bool,
    /// What counts until both ways are known.
    prior: bool,
    /// Lists that had begun in the other way; none where one of them was under way.
    begun_before: Option<u32>,
    running: Arc<[AtomicU32; 2]>,
}

impl Drop for Trial {
    fn drop(&mut self) {
        self.running[usize::from(self.sieves)].fetch_sub(1, Ordering::Relaxed);
    }
}

impl LearnedGaps {
    pub(crate) fn new(gap_apart: u64) -> Self {
        Self { gap_apart, exports: Vec::new() }
    }

    /// The largest gap that is to be moved with the parts from `from` on, bytes. `file`: of which export, and whether it is open for
    /// direct I/O.
    #[allow(clippy::cast_precision_loss, reason = "an estimate")]
    pub(crate) fn choose(&mut self, file: (ExportId, bool), parts: &[Part], from: usize) -> (u64, Trial) {
        let export = place_of(file.0);
        let parts = parts.get(from..).unwrap_or_default();
        let (gap, part) = averages(parts);
        let index =
            class(gap, READ_GAP_MAX, 2, GAP_CLASSES) * PART_CLASSES + class(part, PART_MIN, 8, PART_CLASSES);
        let place = (usize::from(file.1), index);
        let gap_apart = self.gap_apart;
        let cell = &mut self.export(export).cells[place.0][place.1];
        let prior = gap <= PRIOR_GAP_MAX;
        let sieves = cell.bandit.choose(&RULES, usize::from(prior), (part * parts.len() as u64) as f32) == 1;
        let gap_max = if sieves { (2 * gap).clamp(READ_GAP_MAX, WAITING_GAP_MAX) } else { gap_apart };
        (gap_max, cell.begin(export, place, (sieves, prior)))
    }

    fn export(&mut self, place: usize) -> &mut Export {
        if self.exports.len() <= place {
            self.exports.resize_with(place + 1, Default::default);
        }
        &mut self.exports[place]
    }

    /// Some of a list's data was not at hand, or all of it was.
    pub(crate) fn note(&mut self, export: ExportId, has_waited: bool) {
        let place = place_of(export);
        if has_waited || self.exports.len() > place {
            self.export(place).has_waited = has_waited;
        }
    }

    /// The next list will have to wait, if it is as the last.
    pub(crate) fn expects(&self, export: ExportId) -> bool {
        self.exports.get(place_of(export)).is_some_and(|export| export.has_waited)
    }

    /// A list has moved so many bytes in this time.
    #[allow(clippy::cast_precision_loss, reason = "an estimate")]
    pub(crate) fn record(&mut self, trial: &Trial, len: u64, time: Duration) {
        let cells = self.exports.get_mut(trial.export).and_then(|export| export.cells.get_mut(trial.cell.0));
        let Some(cell) = cells.and_then(|cells| cells.get_mut(trial.cell.1)) else { return };
        let way = usize::from(trial.sieves);
        let is_alone = trial.begun_before == Some(cell.begun[usize::from(!trial.sieves)]);
        if !is_alone && (cell.was_alone[way] || cell.bandit.count(way) >= RULES.known) {
            return;
        }
        let ns = time.as_nanos() as f32 / len.max(1) as f32;
        let is_first_alone = is_alone && !std::mem::replace(&mut cell.was_alone[way], is_alone);
        let prior = usize::from(trial.prior);
        match is_first_alone {
            true => cell.bandit.record_anew(&RULES, prior, way, ns),
            false => cell.bandit.record(&RULES, prior, way, ns),
        }
    }
}

impl Cell {
    fn begin(&mut self, export: usize, cell: (usize, usize), (sieves, prior): (bool, bool)) -> Trial {
        let (own, other) = (usize::from(sieves), usize::from(!sieves));
        self.begun[own] = self.begun[own].wrapping_add(1);
        self.running[own].fetch_add(1, Ordering::Relaxed);
        let is_alone = self.running[other].load(Ordering::Relaxed) == 0;
        let begun_before = is_alone.then_some(self.begun[other]);
        Trial { export, cell, sieves, prior, begun_before, running: Arc::clone(&self.running) }
    }
}

fn place_of(export: ExportId) -> usize {
    usize::from(export.0).min(EXPORTS_MAX - 1)
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
        many(16, len, gap)
    }

    fn many(count: usize, len: usize, gap: u64) -> Vec<Part> {
        let part = |index: usize| Part {
            offset: index as u64 * (len as u64 + gap),
            len,
            place: index * len,
            segment: 0,
            within: index * len,
        };
        (0..count).map(part).collect()
    }

    fn reads() -> LearnedGaps {
        LearnedGaps::new(READ_GAP_MAX)
    }

    const FILE: (ExportId, bool) = (EXPORT, false);

    /// Lists that take `ns` for a byte, apart and sieved; how many of them were sieved.
    fn run(sieve: &mut LearnedGaps, parts: &[Part], lists: usize, ns: [u64; 2]) -> usize {
        let mut sieved = 0;
        for _ in 0..lists {
            let (_, trial) = sieve.choose(FILE, parts, 0);
            sieved += usize::from(trial.sieves);
            sieve.record(&trial, 1000, Duration::from_nanos(1000 * ns[usize::from(trial.sieves)]));
        }
        sieved
    }

    #[test]
    fn list_is_expected_to_wait_where_the_last_of_its_export_did() {
        let (mut sieve, other) = (reads(), ExportId(1));
        assert!(!sieve.expects(EXPORT));
        sieve.note(other, false);
        sieve.note(EXPORT, true);
        assert!(sieve.expects(EXPORT) && !sieve.expects(other));
        sieve.note(EXPORT, false);
        assert!(!sieve.expects(EXPORT));
    }

    // [LIST-14]
    #[test]
    fn sieve_that_knows_nothing_reads_small_gaps_and_no_others() {
        for (gap, sieves) in [(PRIOR_GAP_MAX - 1, true), (PRIOR_GAP_MAX, true), (PRIOR_GAP_MAX + 1, false)] {
            let (gap_max, trial) = reads().choose(FILE, &parts(4096, gap), 0);
            assert_eq!((gap_max >= gap, trial.sieves), (sieves, sieves), "{gap}");
        }
    }

    // [LIST-16] [LIST-44]
    #[test]
    fn writes_that_go_apart_pass_over_no_gap() {
        let mut sieve = LearnedGaps::new(0);
        let small = parts(512, 100);
        let mut seen = [false; 2];
        for _ in 0..100 {
            let (gap_max, trial) = sieve.choose(FILE, &small, 0);
            assert_eq!(gap_max, if trial.sieves { READ_GAP_MAX } else { 0 });
            seen[usize::from(trial.sieves)] = true;
            sieve.record(&trial, 1000, Duration::from_micros(1));
        }
        assert_eq!(seen, [true; 2], "both ways are tried, and are not the same");
    }

    // [LIST-16]
    #[test]
    fn sieve_takes_the_quicker_way_and_goes_on_trying_the_other() {
        for (gap, ns) in [(4096, [1, 4]), (4096, [4, 1]), (40_000, [1, 4]), (40_000, [4, 1])] {
            let mut sieve = reads();
            run(&mut sieve, &parts(512, gap), 100, ns);
            let sieved = run(&mut sieve, &parts(512, gap), 1000, ns);
            let slower = if ns[0] < ns[1] { sieved } else { 1000 - sieved };
            assert!((1..=11).contains(&slower), "{gap} {ns:?}: {slower} in the slower way");
            // What changes is noticed.
            let turned = [ns[1], ns[0]];
            run(&mut sieve, &parts(512, gap), 4000, turned);
            let sieved = run(&mut sieve, &parts(512, gap), 1000, turned);
            let slower = if turned[0] < turned[1] { sieved } else { 1000 - sieved };
            assert!(slower <= 40, "{gap} {ns:?}: {slower} in what is slower now");
        }
    }

    // [LIST-16]
    #[test]
    fn trying_the_slower_way_costs_a_small_part_of_the_time() {
        const LISTS: usize = 10_000;
        for ratio in [1, 2, 10, 60] {
            let (mut sieve, ns) = (reads(), [ratio, 1]);
            run(&mut sieve, &parts(512, 4096), 100, ns);
            let apart = LISTS - run(&mut sieve, &parts(512, 4096), LISTS, ns);
            let more = apart as u64 * (ratio - 1);
            assert!(more * 30 <= LISTS as u64, "{ratio} times slower: {apart} of {LISTS}");
            assert!(apart > 0, "{ratio}");
        }
        // A large list is tried after as much of small ones.
        let mut sieve = reads();
        let (small, large) = (many(16, 4096, 4096), many(64, 4096, 4096));
        run(&mut sieve, &small, 100, [10, 1]);
        let until = |sieve: &mut LearnedGaps, parts: &[Part]| {
            (1..).find(|_| run(sieve, parts, 1, [10, 1]) == 0).unwrap_or(0)
        };
        until(&mut sieve, &small);
        let lists = until(&mut sieve, &small);
        assert_eq!(lists, 9 * 32, "nine times as much is paid");
        assert_eq!(until(&mut sieve, &large), lists, "of one size");
        assert_eq!(run(&mut sieve, &small, 2 * lists, [10, 1]), 2 * lists - 2);
        run(&mut sieve, &small, lists / 2, [10, 1]);
        assert!(until(&mut sieve, &large) > lists * 3 / 4, "small ones pay for few large ones");
    }

    // [LIST-16] Each pays for what both leave the disk.
    #[test]
    fn list_beside_which_another_goes_the_other_way_tells_nothing() {
        // So many lists are always under way; one takes twenty times as long while others go the other way.
        for depth in 1..=4usize {
            for ns in [[1, 4], [4, 1]] {
                let (mut sieve, parts) = (reads(), parts(512, 8192));
                let mut running = std::collections::VecDeque::new();
                let mut slower = 0;
                for round in 0..20_000 {
                    let (_, trial) = sieve.choose(FILE, &parts, 0);
                    slower += usize::from(round >= 1000 && (trial.sieves == (ns[1] > ns[0])));
                    let mixed = running.iter().any(|other: &Trial| other.sieves != trial.sieves);
                    running.push_back(trial);
                    if running.len() == depth {
                        let ended: Trial = running.pop_front().unwrap();
                        let beside = mixed || running.iter().any(|other| other.sieves != ended.sieves);
                        let ns = if beside { 20 } else { ns[usize::from(ended.sieves)] };
                        sieve.record(&ended, 1000, Duration::from_nanos(1000 * ns));
                    }
                }
                let cell = sieve.exports[0].cells.iter().flatten().find(|cell| cell.begun != [0; 2]).unwrap();
                let known = cell.bandit.known(&RULES).unwrap().map(|ns| (ns * 100.0).round() / 100.0);
                assert_eq!(known, ns.map(|ns| ns as f32), "{depth} at once");
                assert!((1..=19_000 / 30).contains(&slower), "{depth} at once, {ns:?}: {slower}");
            }
        }
    }

    // [LIST-16] As of many clients at once: none is ever alone.
    #[test]
    fn lists_of_which_many_are_under_way_go_the_slower_way_seldom() {
        for depth in [8, 28, 64, 300usize] {
            for ns in [[1, 4], [4, 1]] {
                let (mut sieve, parts) = (reads(), parts(512, 8192));
                let mut running = std::collections::VecDeque::new();
                let mut slower = 0;
                for _ in 0..8000 {
                    let (_, trial) = sieve.choose(FILE, &parts, 0);
                    slower += usize::from(trial.sieves == (ns[1] > ns[0]));
                    running.push_back(trial);
                    if running.len() == depth {
                        let ended: Trial = running.pop_front().unwrap();
                        let ns = ns[usize::from(ended.sieves)];
                        sieve.record(&ended, 1000, Duration::from_nanos(1000 * ns));
                    }
                }
                // Nothing is known before the first have ended.
                assert!(slower < 8000 / 8 + depth, "{depth} at once, {ns:?}: {slower} in the slower way");
            }
        }
    }

    #[test]
    fn sieve_tells_sizes_and_files_apart() {
        let mut sieve = reads();
        run(&mut sieve, &parts(512, 40_000), 100, [4, 1]);
        assert!(sieve.choose(FILE, &parts(512, 40_000), 0).1.sieves);
        for (file, parts) in [
            ((ExportId(1), false), parts(512, 40_000)),
            ((EXPORT, true), parts(512, 40_000)),
            (FILE, parts(40_000, 40_000)),
            (FILE, parts(512, 9000)),
        ] {
            assert!(!sieve.choose(file, &parts, 0).1.sieves);
        }
        sieve.choose((ExportId(u16::MAX), true), &parts(1, 1), 0);
        assert!(sieve.exports.len() <= EXPORTS_MAX);
        assert_eq!(sieve.choose(FILE, &[], 0).0, READ_GAP_MAX);
    }

    #[test]
    fn sieve_reads_no_gap_that_its_memory_does_not_hold() {
        let mut sieve = reads();
        let far = parts(512, 10 * WAITING_GAP_MAX);
        run(&mut sieve, &far, 100, [4, 1]);
        assert!(sieve.choose(FILE, &far, 0).0 <= WAITING_GAP_MAX);
    }
}
