//! Ranges of registered memory that are worked through in order.

use smallvec::SmallVec;

use super::super::RemoteRange;

/// What is left of one range, or of several in order.
#[derive(Debug)]
pub(super) struct Ranges {
    list: SmallVec<[RemoteRange; 1]>,
    // Invariant: those before it are done with; the one there is not empty, unless the whole is of no bytes.
    next: usize,
    // Invariant: the lengths of those from `next` on.
    left: u64,
}

impl Ranges {
    /// Several ranges; none is empty, unless it is the only one.
    pub(super) fn new(list: SmallVec<[RemoteRange; 1]>) -> Self {
        let left = list.iter().map(|range| range.len).sum();
        Self { list, next: 0, left }
    }

    pub(super) fn one(range: RemoteRange) -> Self {
        Self::new(SmallVec::from_buf([range]))
    }

    /// Bytes left.
    pub(super) fn left(&self) -> u64 {
        self.left
    }

    /// There was more than one to begin with.
    pub(super) fn is_list(&self) -> bool {
        self.list.len() > 1
    }

    /// Bytes of one that is left, on average.
    pub(super) fn average(&self) -> u64 {
        self.left / (self.rest().len().max(1) as u64)
    }

    /// What is left.
    pub(super) fn rest(&self) -> &[RemoteRange] {
        &self.list[self.next..]
    }

    /// The first `len` bytes of what is left are done with.
    pub(super) fn advance(&mut self, len: u64) {
        let mut len = len.min(self.left);
        self.left -= len;
        while let Some(range) = self.list.get_mut(self.next) {
            let part = len.min(range.len);
            range.offset += part;
            range.len -= part;
            len -= part;
            if range.len > 0 {
                return;
            }
            self.next += 1;
        }
    }

    /// The first `len` bytes of what is left, or all of it.
    pub(super) fn first(&self, len: u64) -> impl Iterator<Item = RemoteRange> + '_ {
        let mut left = len;
        self.rest().iter().map_while(move |range| {
            // Of no bytes: the one range of an empty read.
            if left == 0 && len > 0 {
                return None;
            }
            let part = left.min(range.len);
            left -= part;
            Some(RemoteRange { len: part, ..*range })
        })
    }
}

#[cfg(test)]
mod tests {
    use super::super::super::RegionKey;
    use super::*;

    fn range(offset: u64, len: u64) -> RemoteRange {
        RemoteRange { key: RegionKey(1), offset, len }
    }

    #[test]
    fn ranges_advanced_by_any_number_of_bytes_begin_exactly_there() {
        let all: Vec<u64> = (10..14).chain(100..101).chain(50..55).collect();
        for done in 0..=all.len() {
            let mut ranges = Ranges::new(SmallVec::from_iter([range(10, 4), range(100, 1), range(50, 5)]));
            ranges.advance(done as u64);
            assert_eq!(ranges.left(), (all.len() - done) as u64);
            for len in 1..=all.len() - done {
                let first = ranges.first(len as u64).flat_map(|range| range.offset..range.offset + range.len);
                assert_eq!(first.collect::<Vec<_>>(), all[done..done + len], "{done} {len}");
            }
        }
    }

    #[test]
    fn range_of_no_bytes_is_still_one() {
        let ranges = Ranges::one(range(7, 0));
        assert_eq!(ranges.first(0).collect::<Vec<_>>(), [range(7, 0)]);
        assert!(!ranges.is_list() && ranges.left() == 0);
    }
}
