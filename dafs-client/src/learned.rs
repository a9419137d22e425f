//! What hybrid transfers have cost in this session: whether packing or gathering was quicker, by direction, kind of memory, size of a piece
//! and of the whole. The server's switches are where it begins; caches and machines differ from what those were measured with.

use std::time::Duration;

use crate::io_path::{Direction, Registration};

/// Pieces below this many bytes, and from so many doublings more on, count as one size.
const PIECE_MIN: u64 = 64;
const PIECE_CLASSES: usize = 12;
/// Totals are classed by powers of eight from this size on, bytes.
const TOTAL_MIN: u64 = 16 * 1024;
const TOTAL_CLASSES: usize = 4;

/// Transfers between two that try what seems slower, and so many when it is slower by far.
const TRY_EVERY: u32 = 64;
const TRY_SELDOM: u32 = 512;
/// Of the first transfers more are tries, so that a wrong choice is not kept for long.
const TRY_EARLY: u32 = 16;
const EARLY_TRANSFERS: u32 = 128;
/// Until both are known: every so many transfers, and times that each is tried.
const TRY_FIRST: u32 = 4;
const TRIES_MIN: u32 = 3;
/// By so much one has to be quicker to be taken against the switches.
const CLEARLY: f32 = 0.95;

/// Times of both methods, for each kind of transfer.
#[derive(Debug)]
pub(crate) struct Learned {
    cells: Vec<Cell>,
}

/// Pack, gather.
#[derive(Clone, Copy, Debug, Default)]
struct Cell {
    /// A running low of nanoseconds for a byte.
    ns: [f32; 2],
    tries: [u32; 2],
    transfers: u32,
}

/// A transfer whose time tells something.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Trial {
    cell: usize,
    gathers: bool,
}

impl Default for Learned {
    fn default() -> Self {
        Self { cells: vec![Cell::default(); 4 * PIECE_CLASSES * TOTAL_CLASSES] }
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
        let Some(cell) = self.cells.get_mut(index) else { return (prior, None) };
        let best = cell.best(prior);
        if !blocking {
            return (best, None);
        }
        cell.transfers = cell.transfers.wrapping_add(1);
        let gathers = if cell.tries_other(best) { !best } else { best };
        (gathers, Some(Trial { cell: index, gathers }))
    }

    /// A trial has moved so many bytes in this time.
    #[allow(clippy::cast_precision_loss, reason = "an estimate")]
    pub(crate) fn record(&mut self, trial: Trial, size: usize, time: Duration) {
        let Some(cell) = self.cells.get_mut(trial.cell) else { return };
        let method = usize::from(trial.gathers);
        let ns = time.as_nanos() as f32 / size.max(1) as f32;
        let known = &mut cell.ns[method];
        *known = match cell.tries[method] {
            0 => ns,
            // The first transfers of a method meet memory that nobody has touched: their times are too long, and tell nothing.
            tries if ns < *known && tries <= TRIES_MIN => ns,
            _ if ns < *known => (*known + ns) / 2.0,
            // What disturbs a transfer makes it slower, and is not the method's.
            _ => *known + (ns - *known) / 8.0,
        };
        cell.tries[method] = cell.tries[method].saturating_add(1);
    }

    /// What both methods took, where both are known: nanoseconds for a byte, packed and gathered.
    pub(crate) fn known(
        &self,
        direction: Direction,
        registration: Registration,
        size: u64,
        pieces: usize,
    ) -> Option<[f32; 2]> {
        let cell = self.cells.get(cell(direction, registration, size, pieces))?;
        cell.is_known().then_some(cell.ns)
    }
}

impl Cell {
    fn is_known(&self) -> bool {
        self.tries.iter().all(|tries| *tries >= TRIES_MIN)
    }

    fn best(&self, prior: bool) -> bool {
        let (own, other) = (self.ns[usize::from(prior)], self.ns[usize::from(!prior)]);
        if self.is_known() && other < own * CLEARLY { !prior } else { prior }
    }

    fn tries_other(&self, best: bool) -> bool {
        let (own, other) = (usize::from(best), usize::from(!best));
        if self.tries[other] < TRIES_MIN {
            return self.tries[own] >= TRIES_MIN && self.transfers.is_multiple_of(TRY_FIRST);
        }
        let is_far = self.ns[other] > 2.0 * self.ns[own];
        let every = match (is_far, self.transfers <= EARLY_TRANSFERS) {
            (true, _) => TRY_SELDOM,
            (_, true) => TRY_EARLY,
            _ => TRY_EVERY,
        };
        self.transfers.is_multiple_of(every)
    }
}

fn cell(direction: Direction, registration: Registration, size: u64, pieces: usize) -> usize {
    let doublings = |value: u64, from: u64| (value / from).checked_ilog2().map_or(0, |log| log as usize + 1);
    let piece = doublings(size / (pieces.max(1) as u64), PIECE_MIN).min(PIECE_CLASSES - 1);
    let total = doublings(size, TOTAL_MIN).div_ceil(3).min(TOTAL_CLASSES - 1);
    let kind = match (direction, registration) {
        (Direction::Read, Registration::Registered) => 0,
        (Direction::Read, Registration::Ordinary) => 1,
        (Direction::Write, Registration::Registered) => 2,
        (Direction::Write, Registration::Ordinary) => 3,
    };
    (kind * PIECE_CLASSES + piece) * TOTAL_CLASSES + total
}

#[cfg(test)]
mod tests {
    use super::*;

    const KIND: (Direction, Registration) = (Direction::Read, Registration::Registered);

    /// Runs transfers that take `ns` for a byte, packed and gathered; how many of them were gathered.
    fn run(learned: &mut Learned, count: usize, prior: bool, ns: [u64; 2]) -> usize {
        let mut gathered = 0;
        for _ in 0..count {
            let (gathers, trial) = learned.choose(KIND, (1 << 19, 128), prior, true);
            gathered += usize::from(gathers);
            learned.record(trial.unwrap(), 1000, Duration::from_nanos(1000 * ns[usize::from(gathers)]));
        }
        gathered
    }

    // [LIST-13]
    #[test]
    fn method_that_is_quicker_is_taken_against_the_switches_after_a_few_tries() {
        for prior in [false, true] {
            let mut learned = Learned::default();
            let ns = if prior { [10, 20] } else { [20, 10] };
            let before = run(&mut learned, 20, prior, ns);
            let wrong = if prior { before } else { 20 - before };
            assert!(wrong <= 16, "{before} of 20 gathered");
            let after = run(&mut learned, 1000, prior, ns);
            let right = if prior { 1000 - after } else { after };
            assert!(right >= 980, "{after} of 1000 gathered");
            assert_eq!(learned.choose(KIND, (1 << 19, 128), prior, false), (!prior, None));
        }
    }

    // [LIST-13]
    #[test]
    fn method_that_becomes_slower_is_left() {
        let mut learned = Learned::default();
        run(&mut learned, 500, true, [20, 10]);
        run(&mut learned, 200, true, [20, 100]);
        let gathered = run(&mut learned, 1000, true, [20, 100]);
        assert!(gathered <= 20, "{gathered} of 1000 gathered");
    }

    #[test]
    fn methods_as_good_as_equal_are_left_to_the_switches() {
        for prior in [false, true] {
            let mut learned = Learned::default();
            let gathered = run(&mut learned, 1000, prior, [100, 98]);
            let right = if prior { gathered } else { 1000 - gathered };
            assert!(right >= 970, "{gathered} of 1000");
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
