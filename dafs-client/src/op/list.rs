//! The file's side of a list transfer, and how it is cut into requests: pure.

use std::ops::Range;
use std::sync::Arc;

use dafs_proto::extent::{Extent, OFFSET_MAX, Part, Parts, is_ascending, slice, total};
use dafs_proto::transport::RemoteRange;
use dafs_proto::view::VIEW_SEGMENTS_MAX;
use dafs_proto::wire::{EXTENT_SIZE, LIST_MAX, ListFlags, Opcode, REMOTE_RANGE_SIZE, Sieve};
use smallvec::SmallVec;

use crate::error::{Error, Result};
use crate::handle::view::ViewNode;
use crate::memory::RawMemory;
use crate::method::io_path::Direction;
use crate::op::explain::Explanations;
use crate::op::transfer::TransferKind;

/// What a transfer moves of its file.
pub(crate) enum FilePart {
    /// All from here on.
    At(u64),
    /// A list.
    Extents(Vec<Extent>),
    /// What a view shows.
    Shown(Shown),
}

impl FilePart {
    pub(crate) fn of(extents: &[Extent]) -> Self {
        Self::Extents(extents.to_vec())
    }
}

/// What a view shows, from a place on.
#[derive(Clone)]
pub(crate) struct Shown {
    pub(crate) view: Arc<ViewNode>,
    /// Where in the file the first tile begins.
    pub(crate) displacement: u64,
    /// The first byte of the view's data.
    pub(crate) place: u64,
    pub(crate) group: u64,
    pub(crate) group_size: u32,
}

/// Where the bytes of a list lie.
enum Layout {
    Extents {
        /// Neighbours joined, none empty.
        extents: Vec<Extent>,
        /// Where each begins in the list.
        places: Vec<usize>,
    },
    Shown(Shown),
}

/// Extents of a file, beside the memory of the transfer that has this.
pub(crate) struct List {
    layout: Layout,
    len: usize,
    /// Where each segment of memory begins in the list.
    memory_places: Vec<usize>,
    /// Extents ascend: behind the end of the file nothing is left to read.
    ascending: bool,
    /// Each request moves what is contiguous in the file and in memory.
    pub(crate) each_part: bool,
    /// What the server does with what lies between the extents.
    pub(crate) sieve: Sieve,
    /// Who wants to know how it is moved.
    pub(crate) explanations: Option<Arc<Explanations>>,
    /// Reads: where the file ended, as far as that was met.
    pub(crate) end: u64,
    /// The extents of the caller, where overlapping ones were taken out.
    original: Option<Vec<Extent>>,
}

/// Bytes from one extent to the next, on average, up to which reading gaps costs less than describing extents: measured on shared memory,
/// an extent costs 0.05 µs, and so do some four hundred bytes that are copied twice.
const DENSE_STRIDE_MAX: usize = 384;
/// What a request of its own costs is not worth avoiding for less.
const DENSE_EXTENTS_MIN: usize = 8;
/// At least one byte in so many is wanted.
const DENSE_SPAN_PARTS: usize = 4;

/// More segments of a view than these are remembered as one range.
const COVERED_MAX: u64 = 256;

/// What bounds one request of a list.
pub(crate) struct PartBounds {
    /// Bytes of data.
    pub(crate) len_max: usize,
    /// Bytes of a request's payload.
    pub(crate) payload_max: usize,
    /// The data is in the request.
    pub(crate) carries_data: bool,
    /// Ranges of memory are in the request.
    pub(crate) carries_ranges: bool,
}

impl List {
    /// The list for a part of a file; `None` when it is one extent, whose offset is answered with it.
    pub(crate) fn of_part(part: FilePart, memory_len: usize) -> Result<(Option<Box<Self>>, u64)> {
        let shown = match part {
            FilePart::At(offset) => return Ok((None, offset)),
            FilePart::Extents(extents) => return Self::new(&extents, memory_len),
            FilePart::Shown(shown) => shown,
        };
        let (view, len) = (&shown.view.view, memory_len as u64);
        let checked = view.check(shown.displacement, shown.place, len);
        checked.map_err(|error| Error::Invalid(error.to_string()))?;
        let ascending = view.is_ascending();
        Ok((Some(Box::new(Self::laid(Layout::Shown(shown), memory_len, ascending, false))), 0))
    }

    /// The list; `None` when it is one extent, whose offset is answered with it. `memory_len` is that of all segments together.
    pub(crate) fn new(extents: &[Extent], memory_len: usize) -> Result<(Option<Box<Self>>, u64)> {
        let Some(len) = total(extents) else {
            return Err(Error::Invalid(format!(
                "an extent of the list, or all together, lie beyond the end of any file ({OFFSET_MAX})"
            )));
        };
        if len != memory_len as u64 {
            return Err(Error::Invalid(format!(
                "the extents hold {len} bytes, the memory {memory_len}: the totals of a list must agree"
            )));
        }
        let joined = joined(extents).into_vec();
        if joined.len() <= 1 {
            return Ok((None, joined.first().map_or(0, |extent| extent.offset)));
        }
        Ok((Some(Box::new(Self::of(joined, false))), 0))
    }

    /// A list of one extent, of which each piece of memory is a request.
    pub(crate) fn of_pieces(extent: Extent) -> Box<Self> {
        Box::new(Self::of(vec![extent], true))
    }

    fn of(extents: Vec<Extent>, each_part: bool) -> Self {
        let ascending = is_ascending(&extents);
        let len = extents.iter().map(|extent| as_len(extent.len)).sum();
        Self::laid(Layout::of(extents), len, ascending, each_part)
    }

    fn laid(layout: Layout, len: usize, ascending: bool, each_part: bool) -> Self {
        Self {
            layout,
            len,
            ascending,
            memory_places: Vec::new(),
            each_part,
            sieve: Sieve::default(),
            explanations: None,
            end: u64::MAX,
            original: None,
        }
    }

    /// What a request asks that moves some of it.
    pub(crate) fn opcode(&self, kind: TransferKind) -> Opcode {
        match (&self.layout, kind.direction()) {
            (Layout::Extents { .. }, Direction::Read) => Opcode::ReadList,
            (Layout::Extents { .. }, Direction::Write) => Opcode::WriteList,
            (Layout::Shown(_), Direction::Read) => Opcode::ReadView,
            (Layout::Shown(_), Direction::Write) => Opcode::WriteView,
        }
    }

    /// What else its requests ask for.
    pub(crate) fn flags(&self) -> ListFlags {
        if self.explanations.is_some() { ListFlags::EXPLAIN } else { ListFlags::empty() }
    }

    /// What a view shows, where that is what it moves.
    pub(crate) fn shown(&self) -> Option<&Shown> {
        match &self.layout {
            Layout::Extents { .. } => None,
            Layout::Shown(shown) => Some(shown),
        }
    }

    fn listed(&self) -> &[Extent] {
        match &self.layout {
            Layout::Extents { extents, .. } => extents,
            Layout::Shown(_) => &[],
        }
    }

    /// Bytes that its extents take in a request.
    pub(crate) fn described_size(&self) -> usize {
        self.listed().len() * EXTENT_SIZE
    }

    /// Bytes from the first to the last of a list that is read as quickly with its gaps. What belongs to a group has to say so.
    pub(crate) fn dense_span(&self) -> Option<usize> {
        if !self.ascending || self.each_part || self.len == 0 || self.sieve == Sieve::Off {
            return None;
        }
        let count = match &self.layout {
            Layout::Extents { extents, .. } => extents.len(),
            Layout::Shown(shown) if shown.group == 0 => shown.segment_count(self.len),
            Layout::Shown(_) => return None,
        };
        if count < DENSE_EXTENTS_MIN {
            return None;
        }
        let span = as_len(self.offset(self.len - 1).checked_add(1)? - self.offset(0));
        let is_dense = span <= DENSE_STRIDE_MAX.saturating_mul(count) && span <= DENSE_SPAN_PARTS * self.len;
        is_dense.then_some(span)
    }

    pub(crate) fn extent_count(&self) -> usize {
        self.listed().len()
    }

    /// Takes the segments of memory; afterwards pieces can be cut.
    pub(crate) fn set_memory(&mut self, lens: impl Iterator<Item = usize>) {
        self.memory_places = places(lens);
    }

    pub(crate) fn is_ascending(&self) -> bool {
        self.ascending
    }

    /// A byte of the file may be named twice. Of a view this takes one look at its tile, whatever its length.
    pub(crate) fn may_overlap(&self) -> bool {
        match &self.layout {
            _ if self.ascending => false,
            Layout::Extents { .. } => true,
            Layout::Shown(shown) => shown.view.may_overlap(shown.place, self.len as u64),
        }
    }

    /// Takes out bytes that later ones of the list write over, so that requests may be executed in any order; returns what is left of the
    /// memory, and of its ranges where it has any.
    pub(crate) fn take_out_overlaps(
        &mut self,
        memory: &[RawMemory],
        ranges: &[RemoteRange],
    ) -> (SmallVec<[RawMemory; 1]>, SmallVec<[RemoteRange; 1]>) {
        let parts = Parts::of_write(self.extents(0, self.len), memory.iter().map(RawMemory::len));
        let mut parts: Vec<Part> = parts.as_slice().to_vec();
        parts.sort_unstable_by_key(|part| part.place);
        self.original = Some(self.listed().to_vec());
        let extents = parts.iter().map(|part| Extent::new(part.offset, part.len as u64));
        self.layout = Layout::of(extents.collect());
        self.len = parts.iter().map(|part| part.len).sum();
        let kept =
            parts.iter().filter_map(|part| memory[part.segment].slice(part.within, part.len)).collect();
        let ranges = parts
            .iter()
            .filter_map(|part| ranges.get(part.segment)?.slice(part.within as u64, part.len as u64));
        (kept, ranges.collect())
    }

    /// The caller's count: bytes without a gap, of `count` here. What was taken out is in the file when what goes there is.
    pub(crate) fn original_count(&self, count: usize) -> usize {
        let Some(original) = &self.original else { return count };
        let mut missing: Vec<Extent> = self.extents(count, self.len.saturating_sub(count)).collect();
        missing.sort_unstable_by_key(|extent| extent.offset);
        first_within(original, &missing)
    }

    /// The extents of a piece.
    pub(crate) fn extents(&self, at: usize, len: usize) -> impl Iterator<Item = Extent> + '_ {
        let (listed, shown) = match &self.layout {
            Layout::Extents { extents, places } => {
                let (first, skipped) = place_at(places, at);
                (Some(slice(&extents[first..], (at - skipped) as u64, len as u64)), None)
            }
            Layout::Shown(shown) => {
                let place = shown.place + at as u64;
                (None, Some(shown.view.view.segments(shown.displacement, place, len as u64)))
            }
        };
        listed.into_iter().flatten().chain(shown.into_iter().flatten())
    }

    /// Ranges of the file that hold the extents of a piece, and perhaps what lies between them where there are many.
    pub(crate) fn covers(&self, at: usize, len: usize) -> SmallVec<[Range<u64>; 4]> {
        let range = |extent: Extent| extent.offset..extent.offset.saturating_add(extent.len);
        let is_long = self.shown().is_some_and(|shown| shown.fit(at, len, COVERED_MAX) < len);
        let ranges = self.extents(at, len).map(range);
        if !is_long {
            return ranges.collect();
        }
        let all = ranges.reduce(|all, next| all.start.min(next.start)..all.end.max(next.end));
        all.into_iter().collect()
    }

    /// Where the byte at this place lies in the file.
    pub(crate) fn offset(&self, at: usize) -> u64 {
        self.extents(at, 1).next().map_or(0, |extent| extent.offset)
    }

    /// A piece is one extent and lies in one segment of memory: an ordinary read or write does it.
    pub(crate) fn is_plain(&self, at: usize, len: usize) -> bool {
        let is_one_extent = match &self.layout {
            Layout::Extents { places, .. } => self.boundary(places, at) >= at + len,
            // What belongs to a group has to say so. No bytes are nowhere, not even where the first would be.
            Layout::Shown(shown) => shown.group == 0 && len > 0 && shown.fit(at, len, 1) >= len,
        };
        is_one_extent && self.boundary(&self.memory_places, at) >= at + len
    }

    /// The first segment of memory that holds bytes from `at` on, and where it begins.
    pub(crate) fn segment_at(&self, at: usize) -> (usize, usize) {
        place_at(&self.memory_places, at)
    }

    /// How much of a piece fits one request.
    pub(crate) fn trim(&self, at: usize, len: usize, bounds: &PartBounds) -> usize {
        let mut end = at + len.min(bounds.len_max);
        let mut extent_places: &[usize] = &[];
        match &self.layout {
            Layout::Extents { places, .. } => extent_places = places,
            // Its extents take no room.
            Layout::Shown(shown) => {
                let segments_max = if self.each_part { 1 } else { VIEW_SEGMENTS_MAX };
                end = at + shown.fit(at, end - at, segments_max);
            }
        }
        let (mut place, mut extents, mut ranges) = (at, 0, 0);
        let mut extent_end = if extent_places.is_empty() { usize::MAX } else { at };
        let mut segment_end = at;
        let mut extent_ends = self.boundaries(extent_places, at);
        let mut segment_ends = self.boundaries(&self.memory_places, at);
        while place < end {
            if place == extent_end {
                extents += 1;
                extent_end = extent_ends.find(|boundary| *boundary > place).unwrap_or(usize::MAX);
            }
            if place == segment_end {
                ranges += usize::from(bounds.carries_ranges);
                segment_end = segment_ends.find(|boundary| *boundary > place).unwrap_or(usize::MAX);
            }
            let lists = extents * EXTENT_SIZE + ranges * REMOTE_RANGE_SIZE;
            let data = if bounds.carries_data { place - at } else { 0 };
            let Some(room) = bounds.payload_max.checked_sub(lists + data) else { break };
            if extents > LIST_MAX || ranges > LIST_MAX {
                break;
            }
            let next = extent_end.min(segment_end).min(end);
            let part = if bounds.carries_data { room.min(next - place) } else { next - place };
            place += part;
            if self.each_part || place < next {
                break;
            }
        }
        place - at
    }

    /// The boundaries behind `at`.
    fn boundaries<'a>(&self, places: &'a [usize], at: usize) -> impl Iterator<Item = usize> + 'a {
        places[places.partition_point(|place| *place <= at)..].iter().copied()
    }

    /// The first boundary behind `at`.
    fn boundary(&self, places: &[usize], at: usize) -> usize {
        places.get(places.partition_point(|place| *place <= at)).copied().unwrap_or(usize::MAX)
    }
}

impl Shown {
    /// Bytes from `at` on, at most `len`, that so many segments hold.
    fn fit(&self, at: usize, len: usize, segments_max: u64) -> usize {
        as_len(self.view.view.fit(self.place + at as u64, len as u64, segments_max))
    }

    /// Segments of its first `len` bytes.
    fn segment_count(&self, len: usize) -> usize {
        as_len(self.view.view.segment_count_of(self.place, len as u64))
    }
}

impl Layout {
    fn of(extents: Vec<Extent>) -> Self {
        let places = places(extents.iter().map(|extent| as_len(extent.len)));
        Self::Extents { extents, places }
    }
}

/// The last of these places that is not behind `at`: its number, and the place; the first where there are none.
pub(crate) fn place_at(places: &[usize], at: usize) -> (usize, usize) {
    let index = places.partition_point(|place| *place <= at).saturating_sub(1);
    (index, places.get(index).copied().unwrap_or(0))
}

/// Where things of these lengths begin when they follow each other.
pub(crate) fn places(lens: impl Iterator<Item = usize>) -> Vec<usize> {
    lens.scan(0, |place, len| {
        let begin = *place;
        *place += len;
        Some(begin)
    })
    .collect()
}

/// Extents are as long as memory of this process together.
fn as_len(len: u64) -> usize {
    usize::try_from(len).unwrap_or(usize::MAX)
}

/// Extents of which each is one of the file's own: neighbours joined, none empty.
pub(crate) fn joined(extents: &[Extent]) -> SmallVec<[Extent; 1]> {
    let mut joined: SmallVec<[Extent; 1]> = SmallVec::with_capacity(extents.len());
    for extent in extents.iter().filter(|extent| extent.len > 0) {
        match joined.last_mut() {
            Some(last) if last.offset + last.len == extent.offset => last.len += extent.len,
            _ => joined.push(*extent),
        }
    }
    joined
}

/// Bytes of extents up to the first that lies within `missing`, which ascend and do not overlap.
fn first_within(extents: &[Extent], missing: &[Extent]) -> usize {
    let mut count = 0;
    for extent in extents {
        let next = missing.partition_point(|other| other.offset + other.len <= extent.offset);
        let met = missing.get(next).map(|other| other.offset.max(extent.offset) - extent.offset);
        if let Some(before) = met.filter(|before| *before < extent.len) {
            return count + as_len(before);
        }
        count += as_len(extent.len);
    }
    count
}

/// Bytes of extents up to the first that lies at or behind the end of the file.
pub(crate) fn without_gap(extents: impl Iterator<Item = Extent>, end: u64) -> usize {
    let mut count = 0;
    for extent in extents {
        let got = extent.len_before(end);
        count += as_len(got);
        if got < extent.len {
            break;
        }
    }
    count
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "tests")]
    use super::*;

    fn list(extents: &[(u64, u64)], memory: &[usize]) -> Box<List> {
        let extents: Vec<Extent> = extents.iter().map(|&(offset, len)| Extent::new(offset, len)).collect();
        let mut list = List::new(&extents, memory.iter().sum()).unwrap().0.unwrap();
        list.set_memory(memory.iter().copied());
        list
    }

    fn bounds(payload_max: usize) -> PartBounds {
        PartBounds { len_max: usize::MAX, payload_max, carries_data: false, carries_ranges: true }
    }

    #[test]
    fn list_of_neighbours_is_one_extent_and_totals_must_agree() {
        let extents = [Extent::new(5, 5), Extent::new(9, 0), Extent::new(10, 5)];
        let (list, offset) = List::new(&extents, 10).unwrap();
        assert!(list.is_none() && offset == 5);
        for len in [9, 11] {
            assert!(matches!(List::new(&extents, len), Err(Error::Invalid(_))));
        }
        assert!(matches!(List::new(&[Extent::new(u64::MAX, 1)], 1), Err(Error::Invalid(_))));
        assert!(List::new(&[], 0).unwrap().0.is_none());
    }

    #[test]
    fn list_trimmed_to_a_payload_changes_exactly_where_an_entry_fits() {
        let list = list(&[(0, 10), (20, 10), (40, 10)], &[15, 15]);
        let entry = |extents, ranges| extents * EXTENT_SIZE + ranges * REMOTE_RANGE_SIZE;
        for (payload_max, len) in [
            (entry(1, 1) - 1, 0),
            (entry(1, 1), 10),
            (entry(2, 1) - 1, 10),
            (entry(2, 1), 15),
            (entry(2, 2) - 1, 15),
            (entry(2, 2), 20),
            (entry(3, 2) - 1, 20),
            (entry(3, 2), 30),
        ] {
            assert_eq!(list.trim(0, 30, &bounds(payload_max)), len, "{payload_max}");
        }
        assert_eq!(list.trim(12, 18, &bounds(entry(1, 1))), 3, "up to the end of the first segment");
        assert_eq!(list.trim(0, 30, &PartBounds { len_max: 12, ..bounds(1000) }), 12);
    }

    #[test]
    fn list_whose_data_is_in_the_request_is_cut_inside_an_extent() {
        let list = list(&[(0, 10), (20, 10)], &[20]);
        let inline =
            |payload_max| PartBounds { carries_data: true, carries_ranges: false, ..bounds(payload_max) };
        for (payload_max, len) in [
            (EXTENT_SIZE, 0),
            (EXTENT_SIZE + 4, 4),
            (EXTENT_SIZE + 10, 10),
            (2 * EXTENT_SIZE + 10, 10),
            (2 * EXTENT_SIZE + 11, 11),
            (2 * EXTENT_SIZE + 20, 20),
        ] {
            assert_eq!(list.trim(0, 20, &inline(payload_max)), len, "{payload_max}");
        }
    }

    #[test]
    fn list_of_which_each_part_is_a_request_stops_at_every_boundary() {
        let mut list = list(&[(0, 10), (20, 10)], &[4, 16]);
        list.each_part = true;
        let mut cuts = Vec::new();
        let mut at = 0;
        while at < 20 {
            let len = list.trim(at, 20 - at, &bounds(1000));
            assert!(list.is_plain(at, len));
            cuts.push(len);
            at += len;
        }
        assert_eq!(cuts, [4, 6, 10]);
        assert!(!list.is_plain(0, 5) && !list.is_plain(6, 5));
    }

    #[test]
    fn list_of_one_request_at_most_holds_the_limit() {
        let extents: Vec<(u64, u64)> = (0..LIST_MAX as u64 + 1).map(|i| (i * 2, 1)).collect();
        for count in [LIST_MAX - 1, LIST_MAX, LIST_MAX + 1] {
            let list = list(&extents[..count], &[count]);
            assert_eq!(list.trim(0, count, &bounds(usize::MAX)), count.min(LIST_MAX));
        }
    }

    // [LIST-15]
    #[test]
    fn list_is_dense_up_to_each_bound_and_not_beyond() {
        let strided = |count: u64, len: u64, stride: u64| -> Vec<(u64, u64)> {
            (0..count).map(|index| (100 + index * stride, len)).collect()
        };
        let span =
            |extents: &[(u64, u64)]| list(extents, &[extents.iter().map(|e| as_len(e.1)).sum()]).dense_span();
        assert_eq!(span(&strided(8, 128, 256)), Some(7 * 256 + 128));
        assert_eq!(span(&strided(7, 128, 256)), None);
        let ends = |extra| {
            let mut extents = strided(8, 192, 384);
            extents[7].1 += extra;
            span(&extents)
        };
        assert_eq!((ends(192), ends(193)), (Some(3072), None), "bytes from one to the next");
        let sparse = |extra| {
            let mut extents = strided(8, 16, 64);
            extents[7].0 += extra;
            span(&extents)
        };
        assert_eq!((sparse(48), sparse(49)), (Some(512), None), "bytes of gaps");
        let mut unordered = strided(8, 128, 256);
        unordered.swap(2, 3);
        assert_eq!(span(&unordered), None);
        let mut each = list(&strided(8, 128, 256), &[1024]);
        each.each_part = true;
        assert_eq!(each.dense_span(), None);
        let mut forbidden = list(&strided(8, 128, 256), &[1024]);
        forbidden.sieve = Sieve::Off;
        assert_eq!(forbidden.dense_span(), None);
    }

    #[test]
    fn list_places_tell_offsets_and_extents() {
        let list = list(&[(100, 10), (20, 10)], &[20]);
        assert_eq!([0, 9, 10, 19].map(|at| list.offset(at)), [100, 109, 20, 29]);
        assert_eq!(list.extents(5, 10).collect::<Vec<_>>(), [Extent::new(105, 5), Extent::new(20, 5)]);
        assert!(!list.is_ascending());
    }

    // [LIST-9]
    #[test]
    fn list_without_its_overlaps_counts_in_the_caller_s_places() {
        let mut bytes = [0; 12];
        let mut list = list(&[(0, 4), (10, 4), (2, 4)], &[12]);
        let (memory, ranges) = list.take_out_overlaps(&[RawMemory::of_mut(&mut bytes)], &[]);
        let lens: Vec<usize> = memory.iter().map(RawMemory::len).collect();
        assert_eq!((&lens[..], ranges.len()), (&[2, 4, 4][..], 0));
        assert_eq!(list.listed(), [Extent::new(0, 2), Extent::new(10, 4), Extent::new(2, 4)]);
        // What was taken out is missing as long as what goes there.
        for (count, original) in
            [(0, 0), (1, 1), (2, 2), (5, 2), (6, 2), (7, 3), (8, 10), (9, 11), (10, 12), (11, 12)]
        {
            assert_eq!(list.original_count(count), original, "{count}");
        }
    }
}
