use std::time::{Duration, Instant};

use dafs_client::Direction;
use dafs_proto::bandit::{Bandit, Estimate, Rules};

use crate::hint::MemoryMode;

/// What is tried against each other.
const MODES: [MemoryMode; 3] = [MemoryMode::Dafs, MemoryMode::AdioCache, MemoryMode::Adio];

/// The first transfer by another mode finds its registrations to be made, which a program that uses its buffers again does not pay twice:
/// rows of transfers are compared by their quickest. Comparisons become rarer as long as the choice stays.
const RULES: Rules = Rules {
    estimate: Estimate::Least,
    known: 4,
    row: 4,
    row_uses_max: 4,
    clearly: 0.95,
    clearly_at_first: 1.0,
    pause_min: 32,
    pause_growth: [2, 2],
    pause_max: [4096, 4096],
    pause_equal: 4096,
    cost_max: 0.015,
    weighs: false,
};

/// Sizes are classed by powers of two.
const CLASSES: u32 = 48;

/// Which modes were quickest for the transfers of a file, by direction, size, and whether they are in one piece.
#[derive(Debug)]
pub struct Trials {
    cells: Vec<Bandit<{ MODES.len() }>>,
}

/// A kind of transfer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Cell(usize);

/// A transfer whose time is to be told.
#[derive(Clone, Copy, Debug)]
pub struct Timed {
    cell: Cell,
    mode: usize,
    began: Instant,
}

impl Cell {
    /// The kind of a transfer.
    pub fn of(direction: Direction, len: u64, in_one_piece: bool) -> Self {
        let class = (u64::BITS - len.leading_zeros()).min(CLASSES - 1) as usize;
        let direction = usize::from(direction == Direction::Write);
        Self((class * 2 + direction) * 2 + usize::from(in_one_piece))
    }
}

impl Cell {
    /// The sizes of the transfers of this kind, bytes.
    pub fn sizes(self) -> std::ops::RangeInclusive<u64> {
        let class = self.0 / 4;
        let last = if class == CLASSES as usize - 1 { u64::MAX } else { (1 << class) - 1 };
        (1 << class) / 2..=last
    }
}

impl Default for Trials {
    fn default() -> Self {
        Self { cells: vec![Bandit::default(); CLASSES as usize * 4] }
    }
}

impl Trials {
    /// The mode for a transfer that begins now, and what to tell its end.
    pub fn begin(&mut self, cell: Cell) -> (MemoryMode, Timed) {
        let preferred = self.preferred(cell);
        let mode = self.cells[cell.0].choose(&RULES, preferred, 1.0);
        (MODES[mode], Timed { cell, mode, began: Instant::now() })
    }

    /// The mode for a transfer whose time says nothing: nobody waits for it.
    pub fn best(&self, cell: Cell) -> MemoryMode {
        MODES[self.preferred(cell)]
    }

    /// A transfer has ended, and has moved so many bytes.
    pub fn end(&mut self, timed: Timed, len: u64) {
        self.record(timed.cell, timed.mode, len, timed.began.elapsed());
    }

    #[allow(clippy::cast_precision_loss, reason = "an estimate")]
    fn record(&mut self, cell: Cell, mode: usize, len: u64, time: Duration) {
        let preferred = self.preferred(cell);
        let ns = time.as_nanos() as f32 / len.max(1) as f32;
        self.cells[cell.0].record(&RULES, preferred, mode, ns);
    }

    /// The choice stays unless another is clearly quicker.
    fn preferred(&self, cell: Cell) -> usize {
        self.cells[cell.0].best().unwrap_or(0)
    }

    /// Nanoseconds a byte that the modes took last, and the best; `None` before the first.
    pub fn known(&self, cell: Cell) -> Option<([(MemoryMode, f32); MODES.len()], MemoryMode)> {
        let bandit = &self.cells[cell.0];
        let ns = bandit.known(&RULES)?;
        Some((std::array::from_fn(|mode| (MODES[mode], ns[mode])), MODES[bandit.best()?]))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const SIZE: u64 = 1 << 20;
    const ROW: u32 = RULES.row;
    const PAUSE_MIN: u32 = RULES.pause_min;
    const PAUSE_MAX: u32 = RULES.pause_max[0];

    /// Runs so many transfers whose time a function of the mode tells; how often each was taken.
    fn run(trials: &mut Trials, cell: Cell, count: u32, time: impl Fn(MemoryMode, u32) -> u64) -> [u32; 3] {
        let mut taken = [0; 3];
        for round in 0..count {
            let (mode, timed) = trials.begin(cell);
            taken[timed.mode] += 1;
            trials.record(cell, timed.mode, SIZE, Duration::from_nanos(time(mode, round)));
        }
        taken
    }

    #[test]
    fn quickest_mode_is_taken_nearly_always() {
        let cell = Cell::of(Direction::Read, SIZE, true);
        for best in MODES {
            let mut trials = Trials::default();
            let taken =
                run(&mut trials, cell, 10_000, |mode, _| if mode == best { 100_000 } else { 150_000 });
            assert_eq!(trials.best(cell), best);
            let place = MODES.iter().position(|mode| *mode == best).unwrap();
            assert!(taken[place] > 9_800, "{best}: {taken:?}");
        }
    }

    #[test]
    fn first_transfer_of_a_mode_may_be_slow() {
        let cell = Cell::of(Direction::Write, SIZE, false);
        let mut trials = Trials::default();
        // The cache pays from the second use of a buffer on.
        run(&mut trials, cell, ROW * 3, |mode, round| match mode {
            MemoryMode::AdioCache if round != ROW => 50_000,
            MemoryMode::AdioCache => 900_000,
            _ => 100_000,
        });
        assert_eq!(trials.best(cell), MemoryMode::AdioCache);
    }

    #[test]
    fn change_is_noticed_and_noise_changes_nothing() {
        let cell = Cell::of(Direction::Read, SIZE, true);
        let mut trials = Trials::default();
        run(&mut trials, cell, 1000, |mode, _| if mode == MemoryMode::Adio { 100 } else { 200 });
        assert_eq!(trials.best(cell), MemoryMode::Adio);
        run(&mut trials, cell, 2 * PAUSE_MAX, |mode, _| if mode == MemoryMode::Dafs { 100 } else { 200 });
        assert_eq!(trials.best(cell), MemoryMode::Dafs);
        // As good as equal: the choice stays.
        run(&mut trials, cell, 4 * PAUSE_MAX, |mode, _| if mode == MemoryMode::Adio { 98 } else { 100 });
        assert_eq!(trials.best(cell), MemoryMode::Dafs);
    }

    #[test]
    fn last_comparison_is_known_while_the_next_is_under_way() {
        let cell = Cell::of(Direction::Read, SIZE, true);
        let mut trials = Trials::default();
        let comparison = ROW * 3;
        run(&mut trials, cell, comparison - 1, |_, _| SIZE);
        assert!(trials.known(cell).is_none());
        run(&mut trials, cell, 1 + PAUSE_MIN + 1, |_, _| SIZE);
        let (times, best) = trials.known(cell).unwrap();
        assert_eq!((times.map(|(_, ns)| ns), best), ([1.0; MODES.len()], MODES[0]));
    }

    #[test]
    fn kinds_of_transfers_are_apart() {
        let kinds = [
            Cell::of(Direction::Read, 4096, true),
            Cell::of(Direction::Read, 4096, false),
            Cell::of(Direction::Write, 4096, true),
            Cell::of(Direction::Read, 8192, true),
        ];
        for (index, kind) in kinds.iter().enumerate() {
            assert!(kinds[..index].iter().all(|other| other != kind));
        }
        assert_eq!(Cell::of(Direction::Read, 4096, true), Cell::of(Direction::Read, 8191, true));
        // The largest that there is has its place.
        assert!(Cell::of(Direction::Write, u64::MAX, true).0 < CLASSES as usize * 4);
        let mut trials = Trials::default();
        run(&mut trials, kinds[0], 100, |mode, _| if mode == MemoryMode::Adio { 1 } else { 2 });
        assert_eq!([trials.best(kinds[0]), trials.best(kinds[1])], [MemoryMode::Adio, MemoryMode::Dafs]);
    }
}
