use std::ops::Range;
use std::sync::Arc;

use dafs_proto::wire::Verifier;

/// Ranges remembered per file at most; beyond it ranges are joined across gaps, so a loss is then reported too large, never too small.
pub(crate) const RANGES_MAX: usize = 1024;
/// In place of the verifier of a write whose reply is known from another server alone. It is not lost with the server that wrote it. What
/// is lost later is told by the verifier of what was written before it, if any of that is left.
pub(crate) const UNKNOWN_VERIFIER: Verifier = Verifier(u64::MAX);

/// What was done to a file and is not committed.
#[derive(Debug, Default)]
pub(crate) struct Unstable {
    rest: Done,
    /// Commits in flight cover these. It is remembered until they have succeeded, for others may be sent meanwhile.
    covered: Vec<Arc<Done>>,
}

/// What was done to a file.
#[derive(Debug, Default)]
struct Done {
    /// Written unstable.
    ranges: Vec<(Verifier, Range<u64>)>,
    /// The epoch of the server that was the first to change size or attributes.
    changed: Option<u64>,
}

/// What a commit in flight covers.
#[derive(Debug)]
pub(crate) struct Taken {
    own: Arc<Done>,
    /// Others cover it too.
    others: Done,
}

impl Unstable {
    /// A write of these bytes was acknowledged.
    pub(crate) fn add(&mut self, verifier: Verifier, range: Range<u64>) {
        let known = match verifier {
            UNKNOWN_VERIFIER => self.rest.ranges.last().map(|(verifier, _)| *verifier),
            verifier => Some(verifier),
        };
        if let Some(verifier) = known {
            self.rest.add(verifier, range);
        }
    }

    /// A change of its size or attributes was acknowledged by the server of this epoch.
    pub(crate) fn change(&mut self, epoch: u64) {
        self.rest.changed.get_or_insert(epoch);
    }

    /// Takes out what a commit of `range` covers whole; the rest stays. `all`: it covers attributes too.
    pub(crate) fn take(&mut self, range: &Range<u64>, all: bool) -> Taken {
        let is_covered = |own: &Range<u64>| range.start <= own.start && own.end <= range.end;
        let mut others = Done::default();
        for other in &self.covered {
            for (verifier, own) in other.ranges.iter().filter(|(_, own)| is_covered(own)) {
                others.add(*verifier, own.clone());
            }
            others.changed = others.changed.or(other.changed.filter(|_| all));
        }
        let (ranges, rest) =
            std::mem::take(&mut self.rest.ranges).into_iter().partition(|(_, own)| is_covered(own));
        self.rest.ranges = rest;
        let own = Arc::new(Done { ranges, changed: self.rest.changed.take_if(|_| all) });
        self.covered.push(Arc::clone(&own));
        Taken { own, others }
    }

    /// A commit was answered: what it had taken is durable, or was told to be lost.
    pub(crate) fn end(&mut self, taken: &Taken) {
        self.covered.retain(|covered| !Arc::ptr_eq(covered, &taken.own));
    }

    /// Puts back what a failed commit took.
    pub(crate) fn put_back(&mut self, taken: &Taken) {
        self.end(taken);
        for (verifier, range) in &taken.own.ranges {
            self.add(*verifier, range.clone());
        }
        // The first counts.
        self.rest.changed = taken.own.changed.or(self.rest.changed);
    }
}

impl Done {
    fn add(&mut self, verifier: Verifier, range: Range<u64>) {
        if range.is_empty() {
            return;
        }
        if let Some((last_verifier, last)) = self.ranges.last_mut()
            && *last_verifier == verifier
            && range.start <= last.end
            && range.end >= last.start
        {
            last.start = last.start.min(range.start);
            last.end = last.end.max(range.end);
            return;
        }
        self.ranges.push((verifier, range));
        if self.ranges.len() > RANGES_MAX {
            self.compact();
        }
    }

    fn compact(&mut self) {
        self.ranges.sort_by_key(|(verifier, range)| (verifier.0, range.start));
        let mut gap_max = 4096u64;
        while self.ranges.len() > RANGES_MAX / 2 {
            self.ranges.dedup_by(|next, kept| {
                let joins = next.0 == kept.0 && next.1.start.saturating_sub(kept.1.end) <= gap_max;
                if joins {
                    kept.1.end = kept.1.end.max(next.1.end);
                }
                joins
            });
            if gap_max == u64::MAX {
                break;
            }
            gap_max = gap_max.saturating_mul(8);
        }
    }
}

/// What the server may have lost, given the verifier and the epoch that its commit answered with: ranges, sorted, joined where they touch;
/// and whether changes of size or attributes are among it.
pub(crate) fn lost(taken: &Taken, committed: Verifier, epoch: u64) -> (Vec<Range<u64>>, bool) {
    let both = [&*taken.own, &taken.others];
    let ranges = both
        .iter()
        .flat_map(|done| &done.ranges)
        .filter(|(verifier, _)| *verifier != committed)
        .map(|(_, range)| range.clone());
    (joined(ranges.collect()), both.iter().filter_map(|done| done.changed).any(|changed| changed != epoch))
}

/// Sorted, and joined where they touch.
pub(crate) fn joined(mut ranges: Vec<Range<u64>>) -> Vec<Range<u64>> {
    ranges.sort_by_key(|range| range.start);
    ranges.dedup_by(|next, kept| {
        let touches = next.start <= kept.end;
        if touches {
            kept.end = kept.end.max(next.end);
        }
        touches
    });
    ranges
}

#[cfg(test)]
mod tests {
    use dafs_tests::suite::Numbers;

    use super::*;

    // [CLI-20] [CLI-96]
    #[test]
    fn unstable_ranges_with_another_verifier_are_lost_and_joined() {
        let mut unstable = Unstable::default();
        unstable.add(Verifier(1), 0..10);
        unstable.add(Verifier(1), 10..20);
        unstable.add(Verifier(2), 100..200);
        unstable.add(Verifier(1), 15..30);
        let taken = unstable.take(&(0..u64::MAX), true);
        assert_eq!(lost(&taken, Verifier(2), 1).0, std::slice::from_ref(&(0..30)));
        assert_eq!(lost(&taken, Verifier(1), 1).0, std::slice::from_ref(&(100..200)));
        assert_eq!(lost(&taken, Verifier(3), 1).0, [0..30, 100..200]);
    }

    // [CLI-99]
    #[test]
    fn changes_of_another_epoch_are_lost_until_a_full_commit() {
        let mut unstable = Unstable::default();
        unstable.change(7);
        unstable.change(8);
        let part = unstable.take(&(0..u64::MAX), false);
        assert!(!lost(&part, Verifier(1), 9).1, "a commit of data alone says nothing of them");
        unstable.end(&part);
        let taken = unstable.take(&(0..u64::MAX), true);
        assert!(lost(&taken, Verifier(1), 8).1, "the first was before");
        assert!(!lost(&taken, Verifier(1), 7).1);
        unstable.change(8);
        unstable.put_back(&taken);
        let taken = unstable.take(&(0..u64::MAX), true);
        assert!(lost(&taken, Verifier(1), 8).1, "the commit failed");
        unstable.end(&taken);
        assert!(!lost(&unstable.take(&(0..u64::MAX), true), Verifier(1), 9).1);
    }

    // [CLI-97]
    #[test]
    fn unstable_ranges_beyond_the_bound_cover_all_that_was_written() {
        let mut numbers = Numbers::new(1);
        // Apart; and of every length, some within others.
        let apart = (0..10_000).map(|index| index * 1_000_000..index * 1_000_000 + 1);
        let mixed = std::iter::repeat_with(|| {
            let (start, len_max) = (numbers.below(1 << 40), 1 << numbers.below(30));
            start..start + 1 + numbers.below(len_max)
        });
        for written in [apart.collect::<Vec<_>>(), mixed.take(10_000).collect()] {
            let mut unstable = Unstable::default();
            for (index, range) in written.iter().enumerate() {
                unstable.add(Verifier(index as u64 % 2), range.clone());
            }
            let taken = unstable.take(&(0..u64::MAX), true);
            assert!(taken.own.ranges.len() <= RANGES_MAX + 1);
            let (ranges, _) = lost(&taken, Verifier(2), 1);
            for own in written {
                let holds = |range: &Range<u64>| range.start <= own.start && own.end <= range.end;
                assert!(ranges.iter().any(holds), "{own:?}");
            }
        }
    }

    // [CLI-97]
    #[test]
    fn unstable_ranges_up_to_the_bound_are_told_as_they_were_written() {
        let mut unstable = Unstable::default();
        let written: Vec<_> = (0..1024).map(|index| index * 10..index * 10 + 9).collect();
        written.iter().rev().for_each(|range| unstable.add(Verifier(1), range.clone()));
        let taken = unstable.take(&(0..u64::MAX), true);
        let (ranges, _) = lost(&taken, Verifier(2), 1);
        assert!(ranges == written, "{} ranges of 1,024", ranges.len());
    }

    // [CLI-215]
    #[test]
    fn write_of_unknown_verifier_counts_as_the_last_known_one() {
        let mut unstable = Unstable::default();
        unstable.add(UNKNOWN_VERIFIER, 0..10);
        unstable.add(Verifier(3), 20..30);
        unstable.add(UNKNOWN_VERIFIER, 40..50);
        let taken = unstable.take(&(0..u64::MAX), true);
        assert!(lost(&taken, Verifier(3), 1).0.is_empty());
        assert_eq!(lost(&taken, Verifier(4), 1).0, [20..30, 40..50]);
    }

    #[test]
    fn unstable_commit_of_a_range_takes_only_what_it_covers_whole() {
        let mut unstable = Unstable::default();
        unstable.add(Verifier(1), 0..10);
        unstable.add(Verifier(1), 20..30);
        assert_eq!(unstable.take(&(0..25), true).own.ranges.len(), 1);
        assert_eq!(unstable.take(&(0..30), true).own.ranges.len(), 1);
    }
}
