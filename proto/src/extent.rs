//! Lists of file extents, and how they meet lists of memory: pure arithmetic, shared by server and client.
//!
//! A list transfer has two lists, of extents of a file and of segments of memory, whose counts need not match, only
//! their totals. Byte `n` of the one belongs to byte `n` of the other; `n` is its *place*. [`Parts`] are what is left
//! when both lists are cut wherever either has a boundary (the decomposed list of DAFS 1.0, batch I/O).

use std::collections::BTreeMap;

/// The end of every file lies at or below this, bytes.
pub const OFFSET_MAX: u64 = i64::MAX as u64;

/// A range of a file.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub struct Extent {
    /// First byte.
    pub offset: u64,
    /// Bytes.
    pub len: u64,
}

impl Extent {
    /// `len` bytes from `offset`.
    #[inline]
    pub const fn new(offset: u64, len: u64) -> Self {
        Self { offset, len }
    }

    /// The byte behind the last; `None` where that lies beyond [`OFFSET_MAX`].
    #[inline]
    pub fn end(&self) -> Option<u64> {
        self.offset.checked_add(self.len).filter(|end| *end <= OFFSET_MAX)
    }

    /// Bytes of it that lie before `end`.
    #[inline]
    pub fn len_before(&self, end: u64) -> u64 {
        end.saturating_sub(self.offset).min(self.len)
    }
}

/// Bytes in all extents together; `None` where one of them, or their sum, lies beyond [`OFFSET_MAX`].
pub fn total(extents: &[Extent]) -> Option<u64> {
    extents.iter().try_fold(0u64, |sum, extent| {
        extent.end()?;
        sum.checked_add(extent.len).filter(|sum| *sum <= OFFSET_MAX)
    })
}

/// No extent begins before the end of the one before it.
pub fn is_ascending(extents: &[Extent]) -> bool {
    extents.windows(2).all(|pair| pair[1].offset >= pair[0].offset.saturating_add(pair[0].len))
}

/// The part of a list that covers `len` bytes from `place` on. Extents of no bytes are left out.
pub fn slice(extents: &[Extent], place: u64, len: u64) -> impl Iterator<Item = Extent> + '_ {
    let end = place.saturating_add(len);
    let mut before = 0u64;
    let places = extents.iter().map(move |extent| {
        let begin = before;
        before = before.saturating_add(extent.len);
        (extent, begin, before)
    });
    // Lists are long, and their parts many: nothing behind the part is looked at.
    places.take_while(move |(_, begin, _)| *begin < end).filter_map(move |(extent, begin, behind)| {
        let (from, to) = (begin.max(place), behind.min(end));
        (from < to).then(|| Extent::new(extent.offset + (from - begin), to - from))
    })
}

/// Something contiguous in the file and in one segment of memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Part {
    /// First byte in the file.
    pub offset: u64,
    /// Bytes.
    pub len: usize,
    /// Place of its first byte in the list.
    pub place: usize,
    /// Which segment of memory.
    pub segment: usize,
    /// Its first byte in that segment.
    pub within: usize,
}

impl Part {
    /// The byte of the file behind its last.
    #[inline]
    pub fn end(&self) -> u64 {
        self.offset + self.len as u64
    }
}

/// What it costs to sort a part, in looks.
const SORT_LOOKS: usize = 2;

/// What it costs to find out what later parts leave of one, in looks.
const KEEP_LOOKS: usize = 2;

/// The parts of a list transfer, in ascending order of the file.
#[derive(Clone, Debug, Default)]
pub struct Parts {
    parts: Vec<Part>,
    looks: usize,
}

impl Parts {
    /// Cuts both lists at each other's boundaries. Parts that overlap stay: a read fills each.
    ///
    /// `extents` lie within [`OFFSET_MAX`] ([`total`]); what one list has more than the other is left out.
    pub fn of_read(extents: impl Iterator<Item = Extent>, segments: impl Iterator<Item = usize>) -> Self {
        let mut parts = Self::default();
        parts.cut(extents, segments);
        parts.sort();
        parts
    }

    /// As [`Parts::of_read`], for a write: of parts that overlap only that remains which is the last in the list, so that the order in
    /// which the rest is written does not matter.
    pub fn of_write(extents: impl Iterator<Item = Extent>, segments: impl Iterator<Item = usize>) -> Self {
        let mut parts = Self::of_read(extents, segments);
        if parts.parts.windows(2).any(|pair| pair[1].offset < pair[0].end()) {
            parts.keep_last();
            parts.sort();
        }
        parts
    }

    /// The parts.
    #[inline]
    pub fn as_slice(&self) -> &[Part] {
        &self.parts
    }

    /// How often an extent or a part was looked at to make them: what they cost, since who makes the lists chooses how many.
    #[inline]
    pub fn looks(&self) -> usize {
        self.looks
    }

    #[allow(clippy::cast_possible_truncation, reason = "bounded by the length of a segment of memory")]
    fn cut(&mut self, mut extents: impl Iterator<Item = Extent>, segments: impl Iterator<Item = usize>) {
        let (mut extent, mut place) = (Extent::default(), 0);
        self.parts.reserve(extents.size_hint().0.max(segments.size_hint().0));
        for (segment, segment_len) in segments.enumerate() {
            let mut within = 0;
            while within < segment_len {
                self.looks += 1;
                while extent.len == 0 {
                    match extents.next() {
                        Some(next) => extent = next,
                        None => return,
                    }
                }
                let len = extent.len.min((segment_len - within) as u64) as usize;
                match self.parts.last_mut() {
                    // Neighbours in both lists are one.
                    Some(last) if last.end() == extent.offset && last.segment == segment => last.len += len,
                    _ => self.parts.push(Part { offset: extent.offset, len, place, segment, within }),
                }
                extent = Extent::new(extent.offset + len as u64, extent.len - len as u64);
                within += len;
                place += len;
            }
        }
    }

    fn sort(&mut self) {
        // Lists are nearly always made in the order of the file.
        if !self.parts.is_sorted_by_key(|part| part.offset) {
            // Those of several views are runs in order, which this finds.
            self.looks += SORT_LOOKS * self.parts.len();
            self.parts.sort_by_key(|part| (part.offset, part.place));
        }
    }

    /// Cuts out of each part what a later one covers.
    fn keep_last(&mut self) {
        self.looks += KEEP_LOOKS * self.parts.len();
        self.parts.sort_unstable_by_key(|part| std::cmp::Reverse(part.place));
        // Disjoint ranges that later parts cover: end by beginning.
        let mut covered: BTreeMap<u64, u64> = BTreeMap::new();
        let mut kept = Vec::with_capacity(self.parts.len());
        for part in &self.parts {
            let (begin, end) = (part.offset, part.end());
            let touching = covered.range(..=end).rev().take_while(|(_, behind)| **behind >= begin);
            let touching: Vec<(u64, u64)> = touching.map(|(from, behind)| (*from, *behind)).collect();
            let (mut at, mut joined) = (begin, (begin, end));
            for (from, behind) in touching.into_iter().rev() {
                if at < from {
                    kept.push(piece(part, at, from));
                }
                at = at.max(behind);
                joined = (joined.0.min(from), joined.1.max(behind));
                covered.remove(&from);
            }
            if at < end {
                kept.push(piece(part, at, end));
            }
            covered.insert(joined.0, joined.1);
        }
        self.parts = kept;
    }
}

/// The bytes `from..to` of the file out of a part that covers them.
#[allow(clippy::cast_possible_truncation, reason = "inside a part")]
fn piece(part: &Part, from: u64, to: u64) -> Part {
    let skip = (from - part.offset) as usize;
    let (place, within) = (part.place + skip, part.within + skip);
    Part { offset: from, len: (to - from) as usize, place, within, ..*part }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "tests")]
    use super::*;

    fn extents(list: &[(u64, u64)]) -> Vec<Extent> {
        list.iter().map(|&(offset, len)| Extent::new(offset, len)).collect()
    }

    fn read(list: &[(u64, u64)], segments: &[usize]) -> Vec<(u64, usize, usize, usize, usize)> {
        flat(&Parts::of_read(extents(list).into_iter(), segments.iter().copied()))
    }

    fn flat(parts: &Parts) -> Vec<(u64, usize, usize, usize, usize)> {
        parts.as_slice().iter().map(|p| (p.offset, p.len, p.place, p.segment, p.within)).collect()
    }

    #[test]
    fn parts_of_lists_with_other_boundaries_are_cut_at_both() {
        assert_eq!(
            read(&[(100, 10), (200, 10)], &[4, 16]),
            [(100, 4, 0, 0, 0), (104, 6, 4, 1, 0), (200, 10, 10, 1, 6)]
        );
        assert_eq!(read(&[(0, 8)], &[0, 3, 0, 5]), [(0, 3, 0, 1, 0), (3, 5, 3, 3, 0)]);
        assert_eq!(read(&[(0, 0), (7, 2), (3, 0)], &[2]), [(7, 2, 0, 0, 0)]);
        assert_eq!(read(&[], &[]), []);
    }

    #[test]
    fn parts_that_follow_each_other_in_both_lists_are_one() {
        assert_eq!(read(&[(10, 5), (15, 5), (30, 1)], &[11]), [(10, 10, 0, 0, 0), (30, 1, 10, 0, 10)]);
    }

    #[test]
    fn parts_of_an_unordered_list_ascend_and_keep_their_places() {
        assert_eq!(
            read(&[(50, 5), (10, 5), (30, 5)], &[15]),
            [(10, 5, 5, 0, 5), (30, 5, 10, 0, 10), (50, 5, 0, 0, 0)]
        );
    }

    #[test]
    fn parts_beyond_the_shorter_list_are_left_out() {
        assert_eq!(read(&[(0, 10)], &[4]), [(0, 4, 0, 0, 0)]);
        assert_eq!(read(&[(0, 4)], &[10]), [(0, 4, 0, 0, 0)]);
    }

    // Against a file that is written byte by byte, in the order of the list.
    #[test]
    fn parts_of_overlapping_writes_leave_the_last_in_the_list() {
        let mut state = 1u64;
        let mut below = |bound: u64| {
            state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
            (state >> 33) % bound
        };
        // Miri takes a second for what otherwise takes a millisecond.
        for _ in 0..if cfg!(miri) { 50 } else { 20_000 } {
            let list: Vec<Extent> = (0..=below(6)).map(|_| Extent::new(below(20), below(8))).collect();
            let total = usize::try_from(total(&list).unwrap()).unwrap();
            let first = usize::try_from(below(total as u64 + 1)).unwrap();
            let mut expected = [None; 40];
            let mut place = 0;
            for extent in &list {
                for byte in extent.offset..extent.offset + extent.len {
                    expected[usize::try_from(byte).unwrap()] = Some(place);
                    place += 1;
                }
            }
            let parts = Parts::of_write(list.iter().copied(), [first, total - first].into_iter());
            let mut found = [None; 40];
            for part in parts.as_slice() {
                for byte in 0..part.len {
                    let at = usize::try_from(part.offset).unwrap() + byte;
                    assert_eq!(found[at], None, "{list:?}: written twice");
                    found[at] = Some(part.place + byte);
                    let begin = if part.segment == 0 { 0 } else { first };
                    assert_eq!(begin + part.within, part.place, "{list:?}");
                }
            }
            assert_eq!(found, expected, "{list:?}");
            assert!(parts.as_slice().is_sorted_by_key(|part| part.offset), "{list:?}");
        }
    }

    #[test]
    fn total_at_the_largest_offset_is_counted_and_beyond_it_refused() {
        for (offset, counted) in [(OFFSET_MAX - 2, true), (OFFSET_MAX - 1, true), (OFFSET_MAX, false)] {
            assert_eq!(total(&[Extent::new(offset, 1)]).is_some(), counted, "{offset}");
        }
        assert_eq!(total(&[Extent::new(u64::MAX, 1)]), None);
        assert_eq!(total(&extents(&[(0, OFFSET_MAX), (0, 1)])), None);
        assert_eq!(total(&extents(&[(0, OFFSET_MAX - 1), (0, 1)])), Some(OFFSET_MAX));
    }

    #[test]
    fn slice_of_a_list_begins_and_ends_inside_extents() {
        let list = extents(&[(0, 4), (10, 0), (20, 4), (40, 4)]);
        assert_eq!(slice(&list, 0, 12).collect::<Vec<_>>(), extents(&[(0, 4), (20, 4), (40, 4)]));
        assert_eq!(slice(&list, 3, 6).collect::<Vec<_>>(), extents(&[(3, 1), (20, 4), (40, 1)]));
        assert_eq!(slice(&list, 4, 4).collect::<Vec<_>>(), extents(&[(20, 4)]));
        assert_eq!(slice(&list, 12, 4).count(), 0);
        assert_eq!(slice(&list, 4, 0).count(), 0);
        assert_eq!(slice(&list, 0, u64::MAX).count(), 3);
    }

    #[test]
    fn extent_before_an_end_counts_what_lies_before_it() {
        let extent = Extent::new(10, 5);
        assert_eq!([9, 10, 11, 15, 16].map(|end| extent.len_before(end)), [0, 0, 1, 5, 5]);
    }

    #[test]
    fn ascending_lists_may_touch_and_not_overlap() {
        assert!(is_ascending(&extents(&[(0, 4), (4, 4), (9, 1)])));
        assert!(!is_ascending(&extents(&[(0, 4), (3, 4)])));
        assert!(!is_ascending(&extents(&[(4, 4), (0, 4)])));
        assert!(is_ascending(&[]));
    }
}
