//! What transfers of memory in pieces have cost in this session: whether packing or gathering was quicker, by direction, kind of memory,
//! size of a piece and of the whole. It starts with the server's thresholds, which were measured with other caches and machines.
//!
//! Each kind of transfer has a bandit ([`Bandit`]) of the two methods. The first transfer with another method finds cold caches, so rows of
//! transfers are compared by their quickest.

use std::time::Duration;

use dafs_proto::bandit::{Bandit, Estimate, Rules};

use crate::method::io_path::{Direction, Registration};

/// Pieces below this many bytes, and from so many doublings more on, count as one size.
const PIECE_MIN: u64 = 64;
const PIECE_CLASSES: usize = 12;
/// Totals are classed by powers of eight from this size on, bytes.
const TOTAL_MIN: u64 = 16 * 1024;
const TOTAL_CLASSES: usize = 4;

/// Where what was measured agrees with the server's switch it is compared more rarely.
const RULES: Rules = Rules {
    estimate: Estimate::Least,
    known: 4,
    row: 4,
    row_uses_max: 4,
    clearly: 0.95,
    clearly_at_first: 0.95,
    pause_min: 8,
    pause_growth: [2, 4],
    pause_max: [2048, 8192],
    pause_equal: 128,
    cost_max: 0.015,
    weighs: false,
};

/// Times of both methods, for each kind of transfer.
#[derive(Debug)]
pub(crate) struct Learned {
    /// Pack, gather.
    cells: Vec<Bandit<2>>,
}

/// A transfer whose time tells something.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Trial {
    cell: usize,
    gathers: bool,
    /// What the switches say.
    prior: bool,
}

impl Default for Learned {
    fn default() -> Self {
        Self { cells: vec![Bandit::default(); 4 * PIECE_CLASSES * TOTAL_CLASSES] }
    }
}

impl Learned {
    /// Whether a transfer is to be gathered, where the switches say `prior`; `blocking` ones may be tried by the other method, and their
    /// time is to be told.
    pub(crate) fn choose(
        &mut self,
        (direction, registration): (Direction, Registration),
        (size, pieces): (u64, usize),
        prior: bool,
        blocking: bool,
    ) -> (bool, Option<Trial>) {
        let index = cell(direction, registration, size, pieces);
        let Some(bandit) = self.cells.get_mut(index) else { return (prior, None) };
        let arm = match blocking {
            true => bandit.choose(&RULES, usize::from(prior), 1.0),
            false => bandit.best().unwrap_or(usize::from(prior)),
        };
        let gathers = arm == 1;
        (gathers, blocking.then_some(Trial { cell: index, gathers, prior }))
    }

    /// A trial has moved so many bytes in this time.
    #[allow(clippy::cast_precision_loss, reason = "an estimate")]
    pub(crate) fn record(&mut self, trial: Trial, size: usize, time: Duration) {
        let Some(bandit) = self.cells.get_mut(trial.cell) else { return };
        let ns = time.as_nanos() as f32 / size.max(1) as f32;
        bandit.record(&RULES, usize::from(trial.prior), usize::from(trial.gathers), ns);
    }

    /// What both methods took, where both are known: nanoseconds for a byte, packed and gathered.
    pub(crate) fn known(
        &self,
        direction: Direction,
        registration: Registration,
        size: u64,
        pieces: usize,
    ) -> Option<[f32; 2]> {
        self.cells.get(cell(direction, registration, size, pieces))?.known(&RULES)
    }
}

fn cell(direction: Direction, registration: Registration, size: u64, pieces: usize) -> usize {
    let doublings = |value: u64, from: u64| (value / from).checked_ilog2().map_or(0, |log| log as usize + 1);
    let piece = doublings(size / (pieces.max(1) as u64), PIECE_MIN).min(PIECE_CLASSES - 1);
    let total = doublings(size, TOTAL_MIN).div_ceil(3).min(TOTAL_CLASSES - 1);
    let kind = 2 * direction as usize + registration as usize;
    (kind * PIECE_CLASSES + piece) * TOTAL_CLASSES + total
}

#[cfg(test)]
mod tests {
    use super::*;

    const KIND: (Direction, Registration) = (Direction::Read, Registration::Registered);

    /// Runs transfers that take what `ns` says for a byte, by their number and method; how many of them were gathered.
    fn run_by(learned: &mut Learned, count: usize, prior: bool, ns: impl Fn(usize, bool) -> u64) -> usize {
        let mut gathered = 0;
        for number in 0..count {
            let (gathers, trial) = learned.choose(KIND, (1 << 19, 128), prior, true);
            gathered += usize::from(gathers);
            learned.record(trial.unwrap(), 1000, Duration::from_nanos(1000 * ns(number, gathers)));
        }
        gathered
    }

    /// The same with a time for packing and one for gathering.
    fn run(learned: &mut Learned, count: usize, prior: bool, ns: [u64; 2]) -> usize {
        run_by(learned, count, prior, |_, gathers| ns[usize::from(gathers)])
    }

    // [LIST-13]
    #[test]
    fn faster_method_overrides_the_switches_after_some_tries() {
        for prior in [false, true] {
            let mut learned = Learned::default();
            let ns = if prior { [10, 20] } else { [20, 10] };
            let before = run(&mut learned, 20, prior, ns);
            let wrong = if prior { before } else { 20 - before };
            // The first four, and a row of tries.
            assert!(wrong <= 8, "{before} of 20 gathered");
            let after = run(&mut learned, 1000, prior, ns);
            let right = if prior { 1000 - after } else { after };
            assert!((960..1000).contains(&right), "{after} of 1000 gathered");
            assert_eq!(learned.choose(KIND, (1 << 19, 128), prior, false), (!prior, None));
        }
    }

    // [LIST-13]
    #[test]
    fn method_that_becomes_slower_is_left_after_a_few_transfers() {
        for prior in [false, true] {
            let mut learned = Learned::default();
            run(&mut learned, 20_000, prior, if prior { [20, 10] } else { [10, 20] });
            let turned = if prior { [20, 100] } else { [100, 20] };
            let gathered = run(&mut learned, 100, prior, turned);
            let wrong = if prior { gathered } else { 100 - gathered };
            assert!(wrong <= 28, "{gathered} of 100 gathered");
        }
    }

    // [LIST-13]
    #[test]
    fn method_that_becomes_quicker_is_taken_before_long() {
        for prior in [false, true] {
            let mut learned = Learned::default();
            run(&mut learned, 20_000, prior, if prior { [20, 10] } else { [10, 20] });
            let turned = if prior { [5, 10] } else { [10, 5] };
            run(&mut learned, 400, prior, turned);
            let gathered = run(&mut learned, 1000, prior, turned);
            let wrong = if prior { gathered } else { 1000 - gathered };
            assert!(wrong <= 40, "{gathered} of 1000 gathered");
        }
    }

    // [LIST-13]
    #[test]
    fn disturbed_first_times_are_soon_forgotten() {
        for (prior, disturbed) in [(false, 4), (false, 8), (true, 4), (true, 8), (true, 40), (false, 40)] {
            let mut learned = Learned::default();
            // What the switches take is quicker by far, but at first everything takes as long as nothing does later.
            let quicker = usize::from(prior);
            let ns = |number: usize, gathers: bool| match number < disturbed {
                true => 1000 - 10 * number as u64,
                false if usize::from(gathers) == quicker => 8,
                false => 87,
            };
            let gathered = run_by(&mut learned, 200, prior, ns);
            let wrong = if prior { 200 - gathered } else { gathered };
            assert!(wrong <= 24 + disturbed / 2, "{gathered} of 200 gathered, {disturbed} disturbed");
        }
    }

    // [LIST-13]
    #[test]
    fn single_slow_transfers_change_nothing() {
        for prior in [false, true] {
            let mut learned = Learned::default();
            let ns = |number: usize, gathers: bool| match number.is_multiple_of(3) {
                true => 1000,
                false => [10, 12][usize::from(gathers != prior)],
            };
            let gathered = run_by(&mut learned, 10_000, prior, ns);
            let wrong = if prior { 10_000 - gathered } else { gathered };
            assert!(wrong <= 400, "{gathered} of 10000 gathered");
        }
    }

    // [LIST-13]
    #[test]
    fn tries_cost_little_however_slow_the_other_method_is() {
        for (ns, cost_percent) in [([10, 11], 1), ([10, 20], 2), ([10, 100], 3), ([10, 300], 3)] {
            for (prior, ns) in [(false, ns), (true, [ns[1], ns[0]])] {
                let mut learned = Learned::default();
                run(&mut learned, 20_000, prior, ns);
                let gathered = run(&mut learned, 20_000, prior, ns) as u64;
                let cost = gathered * ns[1] + (20_000 - gathered) * ns[0];
                assert!(cost <= 20_000 * 10 * (100 + cost_percent) / 100, "{ns:?}: {gathered} gathered");
                assert!(![0, 20_000].contains(&gathered), "{ns:?}: no tries");
            }
        }
    }

    // [LIST-13]
    #[test]
    fn tries_that_fail_do_not_follow_each_other() {
        let mut learned = Learned::default();
        run(&mut learned, 8, false, [10, 20]);
        // None of these tells its time.
        let tried = (0..1000).filter(|_| learned.choose(KIND, (1 << 19, 128), false, true).0).count();
        assert!(tried <= 120, "{tried} of 1000");
    }

    #[test]
    fn methods_as_good_as_equal_are_left_to_the_switches() {
        for prior in [false, true] {
            let mut learned = Learned::default();
            let ns = if prior { [98, 100] } else { [100, 98] };
            let gathered = run(&mut learned, 1000, prior, ns);
            let right = if prior { gathered } else { 1000 - gathered };
            assert!(right >= 950, "{gathered} of 1000");
        }
    }

    #[test]
    fn transfers_of_another_kind_know_nothing_of_it() {
        let mut learned = Learned::default();
        run(&mut learned, 1000, true, [10, 20]);
        assert!(learned.known(KIND.0, KIND.1, 1 << 19, 128).is_some());
        for (kind, size, pieces) in [
            ((Direction::Write, KIND.1), 1 << 19, 128),
            ((KIND.0, Registration::Ordinary), 1 << 19, 128),
            (KIND, 1 << 19, 64),
            (KIND, 1 << 14, 4),
        ] {
            assert_eq!(learned.known(kind.0, kind.1, size, pieces), None);
            assert!(learned.choose(kind, (size, pieces), true, true).0);
        }
        for size in [0, 1, u64::MAX] {
            learned.choose(KIND, (size, 0), false, true);
        }
    }
}
