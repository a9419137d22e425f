use std::sync::{Arc, OnceLock, Weak};

use dafs_proto::extent::Extent;
use dafs_proto::view::View;
use dafs_proto::wire::{HEADER_SIZE, ViewSetRequest};

use crate::handle::closings::{Closing, Closings};

/// A view that this session has described to the server. Outlives sessions: in a new one it is described again, under the same number.
pub(crate) struct ViewNode {
    /// Its number, which no other view of the session has had.
    pub(crate) number: u32,
    pub(crate) view: View,
    /// As the server takes it.
    pub(crate) description: Vec<u8>,
    /// Looked at when a write first asks; `None` where that would take too long.
    tile: OnceLock<Option<Tile>>,
    closings: Arc<Closings>,
}

impl ViewNode {
    pub(crate) fn new(number: u32, view: View, description: Vec<u8>, closings: Arc<Closings>) -> Self {
        Self { number, view, description, tile: OnceLock::new(), closings }
    }

    /// A byte of the file may be twice among `len` bytes of the data from `place` on. Costs a look at one tile, once.
    pub(crate) fn may_overlap(&self, place: u64, len: u64) -> bool {
        let size = self.view.size();
        if size == 0 || len == 0 {
            return false;
        }
        let Some(tile) = self.tile.get_or_init(|| Tile::of(&self.view)) else { return true };
        let tiles = place.saturating_add(len - 1) / size - place / size;
        tile.meets(self.view.extent().unsigned_abs().into(), tiles.into())
    }
}

/// A tile whose segments do not overlap.
struct Tile {
    /// From the first byte to behind the last.
    span: u128,
    /// The longest segment.
    len_max: u128,
    /// Between the beginnings of neighbours in the file, at least.
    distance_min: u128,
}

/// A tile of more segments is not looked at.
const TILE_SEGMENTS_MAX: u64 = 1 << 16;
/// Where a tile lies that is looked at: whatever it has before its beginning is still in a file.
const TILE_OFFSET: u64 = 1 << 62;

impl Tile {
    /// `None` where segments overlap, or are too many.
    fn of(view: &View) -> Option<Self> {
        if view.segment_count() > TILE_SEGMENTS_MAX || view.check(TILE_OFFSET, 0, view.size()).is_err() {
            return None;
        }
        let mut extents: Vec<Extent> = view.segments(TILE_OFFSET, 0, view.size()).collect();
        extents.sort_unstable_by_key(|extent| extent.offset);
        let overlaps = |pair: &[Extent]| pair[0].end().is_none_or(|end| end > pair[1].offset);
        let (first, last) = (extents.first()?, extents.last()?);
        if extents.windows(2).any(overlaps) {
            return None;
        }
        Some(Self {
            span: u128::from(last.offset - first.offset) + u128::from(last.len),
            len_max: extents.iter().map(|extent| extent.len.into()).max()?,
            distance_min: extents
                .windows(2)
                .map(|pair| u128::from(pair[1].offset - pair[0].offset))
                .min()
                .unwrap_or(u128::MAX),
        })
    }

    /// Where so many more tiles follow it, each `extent` behind or before the last, some may hold the same byte. All copies of a segment
    /// lie side by side before the next segment begins, or each tile lies behind all of the one before.
    fn meets(&self, extent: u128, tiles: u128) -> bool {
        let is_apart = tiles == 0
            || extent >= self.span
            || (extent >= self.len_max && extent * tiles + self.len_max <= self.distance_min);
        !is_apart
    }
}

impl Drop for ViewNode {
    fn drop(&mut self) {
        self.closings.put(Closing::View(self.number));
        self.closings.hasten(false);
    }
}

/// The views of a session.
#[derive(Default)]
pub(crate) struct Views {
    nodes: Vec<Weak<ViewNode>>,
    numbers: u32,
}

impl Views {
    /// A number that no view of the session has had: 2^32 of them are more than anybody describes.
    pub(crate) fn next_number(&mut self) -> u32 {
        self.numbers = self.numbers.wrapping_add(1);
        self.numbers
    }

    pub(crate) fn insert(&mut self, node: &Arc<ViewNode>) {
        self.nodes.push(Arc::downgrade(node));
    }

    pub(crate) fn remove_dropped(&mut self) {
        self.nodes.retain(|node| node.strong_count() > 0);
    }

    /// Those that a new session has to know.
    pub(crate) fn living(&self) -> Vec<Arc<ViewNode>> {
        self.nodes.iter().filter_map(Weak::upgrade).collect()
    }
}

/// Bytes of the body of a request that describes a view.
const SET_BODY_SIZE: usize = ViewSetRequest::HEAD_SIZE - HEADER_SIZE;

/// The requests that describe a view: body and payload of each, which is at most `part_max` bytes.
#[allow(clippy::cast_possible_truncation, reason = "descriptions are at most VIEW_DESCRIPTION_SIZE_MAX")]
pub(crate) fn set_requests(
    view: u32,
    description: &[u8],
    part_max: usize,
) -> impl Iterator<Item = ([u8; SET_BODY_SIZE], &[u8])> {
    let description_len = description.len() as u32;
    description.chunks(part_max).enumerate().map(move |(number, part)| {
        let request = ViewSetRequest { view, description_len, offset: (number * part_max) as u32 };
        (request.bytes(), part)
    })
}

#[cfg(test)]
mod tests {
    use dafs_proto::view::Datatype;

    use super::*;

    /// Which bytes of the data lie where another does.
    fn overlaps(view: &View, place: u64, len: u64) -> bool {
        let bytes = view.segments(TILE_OFFSET, place, len);
        let mut bytes: Vec<u64> =
            bytes.flat_map(|extent| extent.offset..extent.offset + extent.len).collect();
        bytes.sort_unstable();
        bytes.windows(2).any(|pair| pair[0] == pair[1])
    }

    // [LIST-20]
    #[test]
    fn no_write_that_overlaps_is_taken_for_one_that_does_not() {
        let mut apart = 0;
        for case in 0..4 * 9 * 9 * 3_u64 {
            let (count, width) = (case % 4 + 1, case / 324 + 1);
            let [stride, extent] = [case / 4, case / 36].map(|part| (part % 9).cast_signed() * 4 - 16);
            let datatype = Datatype::bytes(width).hvector(count, 1, stride).resized(0, extent);
            let Ok(view) = View::new(&datatype) else { continue };
            let node = ViewNode::new(1, view, Vec::new(), Arc::default());
            for (place, len) in
                [(0, 1), (0, width * count), (1, width * count * 3), (width, width * count * 9)]
            {
                let (says, is) = (node.may_overlap(place, len), overlaps(&node.view, place, len));
                assert!(says || !is, "{count} {stride} {extent} {width}: {len} bytes from {place} on");
                apart += u64::from(!says);
            }
        }
        assert!(apart > 500, "{apart}");
    }

    // [VIEW-17]
    #[test]
    fn view_number_is_never_reused() {
        let (mut views, mut numbers) = (Views::default(), std::collections::HashSet::new());
        for _ in 0..100 {
            let number = views.next_number();
            assert!(numbers.insert(number), "{number}");
            let view = View::new(&Datatype::bytes(1)).unwrap();
            views.insert(&Arc::new(ViewNode::new(number, view, Vec::new(), Arc::default())));
            views.remove_dropped();
        }
    }

    #[test]
    fn columns_of_a_matrix_do_not_overlap_before_a_row_is_over() {
        let column = Datatype::bytes(4).hvector(100, 1, 4000).resized(0, 4);
        let node = ViewNode::new(1, View::new(&column).unwrap(), Vec::new(), Arc::default());
        assert!(!node.may_overlap(0, 1000 * 400));
        assert!(node.may_overlap(0, 1001 * 400));
        // The second half of each tile comes first: its neighbours touch.
        let swapped = Datatype::bytes(4).hvector(2, 1, -4).resized(-4, 8);
        let node = ViewNode::new(1, View::new(&swapped).unwrap(), Vec::new(), Arc::default());
        assert_eq!(node.view.segment_count(), 2);
        assert!(!node.may_overlap(0, 1000));
        let many = Datatype::bytes(1).hvector(TILE_SEGMENTS_MAX + 1, 1, 2).resized(0, 1);
        let node = ViewNode::new(1, View::new(&many).unwrap(), Vec::new(), Arc::default());
        assert!(node.may_overlap(0, 2));
    }
}
