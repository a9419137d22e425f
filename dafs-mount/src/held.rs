//! Copies of what was written and is not durable yet.
//!
//! A server that is restarted may have lost it, and says so at the next commit. Then it is written once more, so that the restart is no
//! error for the program that asks for it to be durable. The copies are bounded; where one would be too much, none is kept of that file.

use std::cell::Cell;
use std::ops::Range;

use rangemap::RangeSet;

/// Bytes of copies that one mount keeps.
const SIZE_MAX: usize = 32 << 20;

/// Bytes of all copies of a mount.
#[derive(Debug, Default)]
pub(crate) struct Budget(Cell<usize>);

/// What was written to one open file since it was made durable last.
#[derive(Debug, Default)]
pub(crate) struct Held {
    writes: Vec<(u64, Vec<u8>)>,
    size: usize,
    /// Something was written.
    pub(crate) any: bool,
    /// There is a copy of only a part.
    incomplete: bool,
    /// Something was lost, and no program has been told.
    pub(crate) is_lost: bool,
}

impl Held {
    /// Keeps a copy of a write, where there is room.
    pub(crate) fn keep(&mut self, budget: &Budget, offset: u64, data: &[u8]) {
        self.any = true;
        if self.incomplete || budget.0.get() + data.len() > SIZE_MAX {
            self.give_up(budget);
            return;
        }
        budget.0.set(budget.0.get() + data.len());
        self.size += data.len();
        self.writes.push((offset, data.to_vec()));
    }

    /// Something was done that no copy can repeat, or there is no room.
    pub(crate) fn give_up(&mut self, budget: &Budget) {
        self.any = true;
        self.incomplete = true;
        self.writes.clear();
        self.release(budget);
    }

    /// Something was lost, of which the next program that asks is to be told.
    pub(crate) fn lose(&mut self, budget: &Budget) {
        self.give_up(budget);
        self.is_lost = true;
    }

    /// It is durable, or lost.
    pub(crate) fn release(&mut self, budget: &Budget) {
        budget.0.set(budget.0.get().saturating_sub(std::mem::take(&mut self.size)));
    }

    /// What was not made durable after all, with what was written meanwhile.
    pub(crate) fn join(&mut self, later: Self) {
        self.writes.extend(later.writes);
        self.size += later.size;
        self.any |= later.any;
        self.incomplete |= later.incomplete;
        self.is_lost |= later.is_lost;
    }

    /// What is to be written again where these ranges are lost, in order; `None` where there is no copy of all of them.
    pub(crate) fn of(&self, lost: &[Range<u64>]) -> Option<Vec<(u64, Vec<u8>)>> {
        let ends = |(offset, data): &(u64, Vec<u8>)| *offset..offset + data.len() as u64;
        let copied: RangeSet<u64> = self.writes.iter().map(ends).filter(|range| !range.is_empty()).collect();
        if self.incomplete || lost.iter().any(|range| copied.gaps(range).next().is_some()) {
            return None;
        }
        let mut again = Vec::new();
        for (offset, data) in &self.writes {
            for range in lost {
                let (from, to) = (range.start.max(*offset), range.end.min(offset + data.len() as u64));
                let at = |place: u64| usize::try_from(place - offset).ok();
                if from < to
                    && let (Some(begin), Some(end)) = (at(from), at(to))
                {
                    again.push((from, data[begin..end].to_vec()));
                }
            }
        }
        Some(again)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lost_ranges_are_written_again_in_order_and_nothing_else() {
        let (budget, mut held) = (Budget::default(), Held::default());
        held.keep(&budget, 10, b"abcdef");
        held.keep(&budget, 14, b"XYZ");
        assert_eq!(
            held.of(std::slice::from_ref(&(12..15))),
            Some(vec![(12, b"cde".to_vec()), (14, b"X".to_vec())])
        );
        assert_eq!(held.of(std::slice::from_ref(&(12..18))), None, "of the last byte there is no copy");
        assert_eq!(budget.0.get(), 9);
        held.release(&budget);
        assert_eq!(budget.0.get(), 0);
    }

    #[test]
    fn file_that_is_too_much_has_no_copy_and_takes_no_room() {
        let (budget, mut held, mut other) = (Budget::default(), Held::default(), Held::default());
        let half = vec![0; SIZE_MAX / 2 + 1];
        held.keep(&budget, 0, &half);
        assert!(held.of(std::slice::from_ref(&(0..5))).is_some());
        other.keep(&budget, 0, &half);
        assert!(other.of(std::slice::from_ref(&(0..5))).is_none() && other.any);
        assert_eq!(budget.0.get(), half.len());
        held.keep(&budget, 0, &half);
        assert!(held.of(std::slice::from_ref(&(0..5))).is_none());
        assert_eq!(budget.0.get(), 0);
    }
}
