use std::ops::Range;

use dafs_proto::wire::Verifier;

/// Ranges remembered per file at most; beyond it ranges are joined across gaps, so a loss is then reported too large, never too small.
const RANGES_MAX: usize = 1024;

/// Ranges of a file that were written unstable and are not committed.
#[derive(Debug, Default)]
pub(crate) struct Unstable {
    ranges: Vec<(Verifier, Range<u64>)>,
}

impl Unstable {
    /// A write of these bytes was acknowledged.
    pub(crate) fn add(&mut self, verifier: Verifier, range: Range<u64>) {
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

    /// Takes out what a commit of `range` covers whole; the rest stays.
    pub(crate) fn take(&mut self, range: &Range<u64>) -> Vec<(Verifier, Range<u64>)> {
        let (taken, rest) = std::mem::take(&mut self.ranges)
            .into_iter()
            .partition(|(_, own)| range.start <= own.start && own.end <= range.end);
        self.ranges = rest;
        taken
    }

    /// Puts back what a failed commit took.
    pub(crate) fn put_back(&mut self, taken: Vec<(Verifier, Range<u64>)>) {
        for (verifier, range) in taken {
            self.add(verifier, range);
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

/// What of `written` the server may have lost, given the verifier that its commit answered: sorted, joined where ranges touch.
pub(crate) fn lost(written: &[(Verifier, Range<u64>)], committed: Verifier) -> Vec<Range<u64>> {
    let mut ranges: Vec<_> = written
        .iter()
        .filter(|(verifier, _)| *verifier != committed)
        .map(|(_, range)| range.clone())
        .collect();
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
    use super::*;

    // [CLI-20]
    #[test]
    fn unstable_ranges_with_another_verifier_are_lost_and_joined() {
        let mut unstable = Unstable::default();
        unstable.add(Verifier(1), 0..10);
        unstable.add(Verifier(1), 10..20);
        unstable.add(Verifier(2), 100..200);
        unstable.add(Verifier(1), 15..30);
        let taken = unstable.take(&(0..u64::MAX));
        assert_eq!(lost(&taken, Verifier(2)), std::slice::from_ref(&(0..30)));
        assert_eq!(lost(&taken, Verifier(1)), std::slice::from_ref(&(100..200)));
        assert_eq!(lost(&taken, Verifier(3)), [0..30, 100..200]);
    }

    #[test]
    fn unstable_ranges_beyond_the_bound_cover_all_that_was_written() {
        let mut unstable = Unstable::default();
        for index in 0..10_000u64 {
            unstable.add(Verifier(1), index * 1_000_000..index * 1_000_000 + 1);
        }
        let taken = unstable.take(&(0..u64::MAX));
        assert!(taken.len() <= RANGES_MAX + 1);
        let ranges = lost(&taken, Verifier(2));
        for index in 0..10_000u64 {
            assert!(ranges.iter().any(|range| range.contains(&(index * 1_000_000))), "{index}");
        }
    }

    #[test]
    fn unstable_commit_of_a_range_takes_only_what_it_covers_whole() {
        let mut unstable = Unstable::default();
        unstable.add(Verifier(1), 0..10);
        unstable.add(Verifier(1), 20..30);
        assert_eq!(unstable.take(&(0..25)).len(), 1);
        assert_eq!(unstable.take(&(0..30)).len(), 1);
    }
}
