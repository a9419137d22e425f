//! Where in the file the bytes of a list lie: extents that were named one by one, or what a view shows.
#![allow(clippy::cast_possible_truncation, reason = "lengths within one request, which are of 32 bits")]

use std::ops::Deref;
use std::sync::Arc;

use dafs_proto::budget::Charge;
use dafs_proto::extent::{Extent, OFFSET_MAX, slice};
use dafs_proto::transport::Span;
use dafs_proto::view::{Segments, View, ViewError};

use crate::storage::work;

/// The file's side of a list.
#[derive(Clone, Debug)]
pub(crate) enum Layout {
    Extents(Vec<Extent>),
    Shown(Shown),
}

/// A view with the room that it takes: requests use it when its session has given it back, and it takes the room until they have ended.
#[derive(Debug)]
pub(crate) struct Kept {
    view: View,
    list_len: usize,
    _room: Charge,
}

impl Kept {
    pub(crate) fn new(view: View, room: Charge) -> Self {
        Self { list_len: view.list_len(), view, _room: room }
    }
}

impl Deref for Kept {
    type Target = View;

    fn deref(&self) -> &View {
        &self.view
    }
}

/// A range of what a view shows.
#[derive(Clone, Debug)]
pub(crate) struct Shown {
    pub(crate) view: Arc<Kept>,
    /// Where in the file the first tile begins.
    pub(crate) displacement: u64,
    /// The first byte of the view's data.
    pub(crate) place: u64,
    pub(crate) len: u64,
}

/// Segments that are walked in the time of one step of [`work`].
pub(crate) const WALKED_IN_A_STEP: usize = 8;

impl Shown {
    /// The first byte of the file that it touches, and the one behind the last.
    pub(crate) fn bounds(&self) -> Option<(u64, u64)> {
        let (low, high) = self.view.bounds(self.displacement, self.place, self.len)?;
        self.count_bounds();
        Some((u64::try_from(low).unwrap_or(0), u64::try_from(high).unwrap_or(u64::MAX)))
    }

    /// Its view's lists are looked at for bounds.
    fn count_bounds(&self) {
        work::add_looks(2 * self.view.list_len);
    }

    /// All of it lies within the file.
    pub(crate) fn check(&self) -> Result<(), ViewError> {
        if !self.view.is_far_from_edges(self.displacement, self.place, self.len) {
            self.count_bounds();
        }
        self.view.check(self.displacement, self.place, self.len)
    }

    fn segments(&self, from: u64, len: u64) -> Segments<'_> {
        let len = len.min(self.len.saturating_sub(from));
        self.view.segments(self.displacement, self.place + from, len)
    }
}

impl Layout {
    pub(crate) fn len(&self) -> u64 {
        match self {
            Self::Extents(extents) => extents.iter().map(|extent| extent.len).sum(),
            Self::Shown(shown) => shown.len,
        }
    }

    /// The extents of `len` bytes from `place` on. None is empty.
    pub(crate) fn slice(&self, place: u64, len: u64) -> impl Iterator<Item = Extent> + '_ {
        match self {
            Self::Extents(extents) => Slice::Extents(slice(extents, place, len)),
            Self::Shown(shown) => Slice::Shown(shown.segments(place, len)),
        }
    }

    /// Bytes from `place` on, at most `len`, that may be planned at once: lists are short, views are not.
    pub(crate) fn fit(&self, place: u64, len: u64, segments_max: u64) -> u64 {
        match self {
            Self::Extents(_) => len,
            Self::Shown(shown) => shown.view.fit(shown.place + place, len, segments_max),
        }
    }

    /// Bytes of all of it that lie before the end of the file.
    pub(crate) fn len_before(&self, end: u64) -> u64 {
        if end > OFFSET_MAX {
            return self.len();
        }
        match self {
            Self::Shown(shown) => match shown.bounds() {
                Some((_, high)) if high <= end => return shown.len,
                Some((low, _)) if low < end => {}
                _ => return 0,
            },
            Self::Extents(_) => {}
        }
        let mut walked = 0;
        let before =
            self.slice(0, u64::MAX).inspect(|_| walked += 1).map(|extent| extent.len_before(end)).sum();
        work::add(walked / WALKED_IN_A_STEP);
        before
    }

    /// Whether [`Layout::len_before`] may be much work.
    pub(crate) fn is_long_to_count(&self, end: u64) -> bool {
        self.is_view() && end <= OFFSET_MAX
    }

    /// No byte lies before the one that comes before it, as far as that is known without a look at each.
    pub(crate) fn ascends(&self) -> bool {
        matches!(self, Self::Shown(shown) if shown.view.is_ascending())
    }

    pub(crate) fn is_view(&self) -> bool {
        matches!(self, Self::Shown(_))
    }

    /// The first byte of the file that it touches, and the one behind the last.
    pub(crate) fn bounds(&self) -> (u64, u64) {
        if let Self::Shown(shown) = self {
            return shown.bounds().unwrap_or_default();
        }
        let bounds = |(low, high): (u64, u64), extent: Extent| {
            (low.min(extent.offset), high.max(extent.end().unwrap_or(OFFSET_MAX)))
        };
        let (low, high) = self.slice(0, u64::MAX).fold((u64::MAX, 0), bounds);
        (low.min(high), high)
    }

    pub(crate) fn first_offset(&self) -> Option<u64> {
        match self {
            Self::Extents(extents) => extents.first().map(|extent| extent.offset),
            Self::Shown(shown) => shown.segments(0, 1).next().map(|extent| extent.offset),
        }
    }
}

/// The extents of a range of either layout.
#[allow(
    clippy::large_enum_variant,
    reason = "one at a time, where it is used: a box would be an allocation for each list"
)]
enum Slice<'a, E> {
    Extents(E),
    Shown(Segments<'a>),
}

impl<E: Iterator<Item = Extent>> Iterator for Slice<'_, E> {
    type Item = Extent;

    #[inline]
    fn next(&mut self) -> Option<Extent> {
        match self {
            Self::Extents(extents) => extents.next(),
            Self::Shown(segments) => segments.next(),
        }
    }

    fn size_hint(&self) -> (usize, Option<usize>) {
        match self {
            Self::Extents(extents) => extents.size_hint(),
            Self::Shown(segments) => segments.size_hint(),
        }
    }
}

/// Brings together what was read of each extent; returns all of it.
pub(crate) fn pack<'a>(memory: Span<'a>, extents: impl Iterator<Item = Extent>, end: u64) -> Span<'a> {
    let (mut from, mut to) = (0, 0);
    pack_behind(memory, (&mut from, &mut to), extents, end);
    memory.slice(0, to).unwrap_or(Span::EMPTY)
}

/// Brings what was read of these extents, in a file that ends at `end`, to what is together already. `from` is where the first of them
/// was read to and `to` where that goes; both are moved behind the last.
pub(crate) fn pack_behind(
    memory: Span<'_>,
    (from, to): (&mut usize, &mut usize),
    extents: impl Iterator<Item = Extent>,
    end: u64,
) {
    for extent in extents {
        let got = extent.len_before(end) as usize;
        if from != to
            && got > 0
            && let (Some(target), Some(source)) = (memory.slice(*to, got), memory.slice(*from, got))
        {
            target.copy_from(source);
        }
        *to += got;
        *from += extent.len as usize;
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "tests")]
    use dafs_proto::budget::{Budget, Owner};
    use dafs_proto::view::Datatype;

    use super::*;

    #[test]
    fn shown_range_is_the_list_that_it_expands_to() {
        // Two bytes of every five.
        let view = View::new(&Datatype::bytes(2).resized(0, 5)).unwrap();
        let room = Budget::unlimited().take(&Owner::Unknown, 0).unwrap();
        let view = Arc::new(Kept::new(view, room));
        let shown = Layout::Shown(Shown { view, displacement: 100, place: 3, len: 6 });
        let listed = Layout::Extents(
            [(106, 1), (110, 2), (115, 2), (120, 1)].map(|(o, l)| Extent::new(o, l)).to_vec(),
        );
        for place in 0..7 {
            for len in [0, 1, 2, 3, 6, u64::MAX] {
                let extents = |layout: &Layout| layout.slice(place, len).collect::<Vec<_>>();
                assert_eq!(extents(&shown), extents(&listed), "{place} {len}");
            }
        }
        for end in [0, 106, 107, 111, 112, 120, 121, u64::MAX] {
            assert_eq!(shown.len_before(end), listed.len_before(end), "{end}");
        }
        assert_eq!((shown.len(), shown.bounds()), (6, (106, 121)));
        assert_eq!((listed.len(), listed.bounds()), (6, (106, 121)));
        assert_eq!((shown.first_offset(), listed.first_offset()), (Some(106), Some(106)));
        assert_eq!(Layout::Extents(Vec::new()).bounds(), (0, 0));
        assert_eq!((shown.fit(1, 5, 2), listed.fit(1, 5, 2)), (4, 5));
    }
}
