//! Walking a view: from any place on, one contiguous piece after the other.

use smallvec::SmallVec;

use crate::extent::{Extent, OFFSET_MAX};

use super::compile::{Level, Part, Run, Shape, View};
use super::error::ViewError;

/// The segments of a range of places, in the order of the data. Made by [`View::segments`].
#[derive(Clone, Debug)]
pub struct Segments<'a> {
    view: &'a View,
    /// Where the first tile begins, bytes.
    displacement: i128,
    tile: u64,
    /// From the tile down to what is walked now.
    stack: SmallVec<[Frame; 8]>,
    /// What comes next.
    pending: Option<Pieces>,
    /// Bytes that are still to be told.
    left: u64,
}

/// Pieces of one length at one distance: most views are made of them.
#[derive(Clone, Copy, Debug)]
struct Pieces {
    offset: i128,
    len: u64,
    /// From one to the next, bytes.
    stride: i64,
    /// How many there are behind the first.
    more: u64,
}

impl Pieces {
    fn one(offset: i128, len: u64) -> Self {
        Self { offset, len, stride: 0, more: 0 }
    }
}

/// Which entry of a level, and which copy of it, is walked now.
#[derive(Clone, Copy, Debug)]
struct Frame {
    level: u32,
    entry: u64,
    copy: u64,
    /// Where the level lies.
    at: i128,
}

impl View {
    /// The segments that hold `len` bytes of data from `place` on, where the first tile begins at `displacement`.
    ///
    /// They are within the file: see [`View::check`], which a caller has called. A segment that is not is told as one beyond
    /// [`OFFSET_MAX`].
    pub fn segments(&self, displacement: u64, place: u64, len: u64) -> Segments<'_> {
        let mut segments = Segments {
            view: self,
            displacement: i128::from(displacement),
            tile: 0,
            stack: SmallVec::new(),
            pending: None,
            left: len,
        };
        if self.size() > 0 && len > 0 {
            segments.seek(place);
        } else {
            segments.left = 0;
        }
        segments
    }

    /// All of a range lies within the file. Costs what [`View::bounds`] does, where the range is near an edge.
    pub fn check(&self, displacement: u64, place: u64, len: u64) -> Result<(), ViewError> {
        if len == 0 {
            return Ok(());
        }
        let Some(number) = self.tile.level else { return Err(ViewError::Empty { len }) };
        let end = place.checked_add(len).filter(|end| *end <= OFFSET_MAX);
        let outside = ViewError::Outside { place, end: place.saturating_add(len) };
        let last = end.ok_or(outside)? - 1;
        let level = self.level(number);
        let tiles = [place / level.size, last / level.size];
        let fits = tiles.into_iter().all(|tile| self.tile_fits(displacement, tile));
        let is_inside = |(low, high): (i128, i128)| low >= 0 && high <= i128::from(OFFSET_MAX);
        if fits || self.bounds(displacement, place, len).is_none_or(is_inside) {
            Ok(())
        } else {
            Err(outside)
        }
    }

    /// All of the first and of the last tile of a range lies within the file, so that [`View::check`] costs a constant.
    pub fn is_far_from_edges(&self, displacement: u64, place: u64, len: u64) -> bool {
        let size = self.size().max(1);
        let tiles = [place / size, place.saturating_add(len) / size];
        tiles.into_iter().all(|tile| self.tile_fits(displacement, tile))
    }

    fn tile_fits(&self, displacement: u64, tile: u64) -> bool {
        let Some(number) = self.tile.level else { return true };
        let (level, at) = (self.level(number), self.tile_at(displacement.into(), tile));
        at + i128::from(level.low) >= 0 && at + i128::from(level.high) <= i128::from(OFFSET_MAX)
    }

    /// The first byte that `len` bytes of data from `place` on touch, and the one behind the last; [`None`] where there are none. Looks at
    /// each level, and at each entry of a list twice at most: [`View::list_len`].
    pub fn bounds(&self, displacement: u64, place: u64, len: u64) -> Option<(i128, i128)> {
        let number = self.tile.level.filter(|_| len > 0)?;
        let at = i128::from(displacement) + i128::from(self.tile.shift);
        let to = u128::from(place) + u128::from(len);
        let (low, high) = self.copies_bounds(number, self.extent(), place.into(), to);
        Some((at + low, at + high))
    }

    /// Bounds of the data `from..to` of copies of a level, `stride` bytes apart.
    fn copies_bounds(&self, number: u32, stride: i64, from: u128, to: u128) -> (i128, i128) {
        let size = u128::from(self.level(number).size);
        let (first, last) = (from / size, (to - 1) / size);
        let of_copy = |copy: u128, from: u128, to: u128| {
            #[allow(clippy::cast_possible_truncation, reason = "within a level, whose size is of 64 bits")]
            let (low, high) = self.level_bounds(number, from as u64, to as u64);
            let at = i128::try_from(copy).unwrap_or(i128::MAX).saturating_mul(stride.into());
            (at + low, at + high)
        };
        if first == last {
            return of_copy(first, from % size, to - last * size);
        }
        let mut bounds = joined(of_copy(first, from % size, size), of_copy(last, 0, to - last * size));
        if last - first > 1 {
            for whole in [first + 1, last - 1] {
                bounds = joined(bounds, of_copy(whole, 0, size));
            }
        }
        bounds
    }

    /// Bounds of the data `from..to` of a level, seen from where it lies.
    fn level_bounds(&self, number: u32, from: u64, to: u64) -> (i128, i128) {
        let level = self.level(number);
        if from == 0 && to == level.size {
            return (level.low.into(), level.high.into());
        }
        match &level.shape {
            Shape::Run => (from.into(), to.into()),
            Shape::Repeat { stride, base, of, .. } => {
                let (low, high) = self.copies_bounds(*of, *stride, from.into(), to.into());
                (i128::from(*base) + low, i128::from(*base) + high)
            }
            Shape::Runs(runs) => {
                let of_run = |run: &Run, behind: u64| {
                    let at = i128::from(run.offset) - i128::from(run.place);
                    (at + i128::from(from.max(run.place)), at + i128::from(to.min(behind)))
                };
                listed_bounds(runs, level.size, |run| run.place, (from, to), of_run)
            }
            Shape::Parts(parts) => {
                let of_part = |part: &Part, behind: u64| {
                    let (from, to) = (from.max(part.place) - part.place, to.min(behind) - part.place);
                    let (low, high) = self.copies_bounds(part.of, part.stride, from.into(), to.into());
                    (i128::from(part.offset) + low, i128::from(part.offset) + high)
                };
                listed_bounds(parts, level.size, |part| part.place, (from, to), of_part)
            }
        }
    }

    /// Bytes from `place` on, at most `len`, that `segments_max` segments hold. Costs a constant.
    pub fn fit(&self, place: u64, len: u64, segments_max: u64) -> u64 {
        let Some(last) = place.checked_add(len).and_then(|end| end.checked_sub(1)).filter(|_| len > 0) else {
            return 0;
        };
        if self.is_contiguous() || self.size() == 0 {
            return len;
        }
        let (first, last) = (self.number_at(place), self.number_at(last));
        if last - first < u128::from(segments_max) {
            return len;
        }
        let end = self.place_of(first + u128::from(segments_max));
        u64::try_from(end.saturating_sub(u128::from(place))).unwrap_or(u64::MAX).min(len)
    }

    /// Segments that hold `len` bytes of data from `place` on; the most there can be where that is no number. Costs a constant.
    pub fn segment_count_of(&self, place: u64, len: u64) -> u64 {
        let Some(last) = place.checked_add(len).and_then(|end| end.checked_sub(1)).filter(|_| len > 0) else {
            return if len == 0 { 0 } else { u64::MAX };
        };
        if self.is_contiguous() || self.size() == 0 {
            return 1;
        }
        u64::try_from(self.number_at(last) - self.number_at(place) + 1).unwrap_or(u64::MAX)
    }

    fn tile_at(&self, displacement: i128, tile: u64) -> i128 {
        displacement + i128::from(self.tile.shift) + i128::from(tile) * i128::from(self.extent())
    }

    /// The number of the segment that holds the byte at a place, over all tiles.
    fn number_at(&self, place: u64) -> u128 {
        let Some(mut number) = self.tile.level else { return 0 };
        let level = self.level(number);
        let mut found = u128::from(place / level.size) * u128::from(level.segments);
        let mut rest = place % level.size;
        loop {
            let level = self.level(number);
            match &level.shape {
                Shape::Run => return found,
                Shape::Runs(runs) => {
                    return found + runs.partition_point(|run| run.place <= rest).saturating_sub(1) as u128;
                }
                Shape::Repeat { of, .. } => {
                    let child = self.level(*of);
                    found += u128::from(rest / child.size) * u128::from(child.segments);
                    (number, rest) = (*of, rest % child.size);
                }
                Shape::Parts(parts) => {
                    let index = parts.partition_point(|part| part.place <= rest).saturating_sub(1);
                    let part = parts[index];
                    let child = self.level(part.of);
                    let within = rest - part.place;
                    found += u128::from(part.segments);
                    found += u128::from(within / child.size) * u128::from(child.segments);
                    (number, rest) = (part.of, within % child.size);
                }
            }
        }
    }

    /// The place at which a segment begins.
    fn place_of(&self, segment: u128) -> u128 {
        let Some(mut number) = self.tile.level else { return 0 };
        let level = self.level(number);
        let all = u128::from(level.segments);
        let mut place = segment / all * u128::from(level.size);
        let mut rest = segment % all;
        loop {
            let level = self.level(number);
            match &level.shape {
                Shape::Run => return place,
                Shape::Runs(runs) => {
                    let index = usize::try_from(rest).unwrap_or(usize::MAX);
                    return place + runs.get(index).map_or(0, |run| u128::from(run.place));
                }
                Shape::Repeat { of, .. } => {
                    let child = self.level(*of);
                    place += rest / u128::from(child.segments) * u128::from(child.size);
                    (number, rest) = (*of, rest % u128::from(child.segments));
                }
                Shape::Parts(parts) => {
                    let index = parts.partition_point(|part| u128::from(part.segments) <= rest);
                    let part = parts[index.saturating_sub(1)];
                    let child = self.level(part.of);
                    let within = rest - u128::from(part.segments);
                    place += u128::from(part.place);
                    place += within / u128::from(child.segments) * u128::from(child.size);
                    (number, rest) = (part.of, within % u128::from(child.segments));
                }
            }
        }
    }
}

fn joined(a: (i128, i128), b: (i128, i128)) -> (i128, i128) {
    (a.0.min(b.0), a.1.max(b.1))
}

/// Bounds of those entries of a list of `size` bytes that have data of `from..to`; of each, with the place behind its data.
fn listed_bounds<T>(
    list: &[T],
    size: u64,
    place: impl Fn(&T) -> u64,
    (from, to): (u64, u64),
    of: impl Fn(&T, u64) -> (i128, i128),
) -> (i128, i128) {
    let first = list.partition_point(|entry| place(entry) <= from).saturating_sub(1);
    let last = list.partition_point(|entry| place(entry) < to);
    let behind = |index: usize| list.get(index + 1).map_or(size, &place);
    let bounds = (first..last).map(|index| of(&list[index], behind(index)));
    bounds.reduce(joined).unwrap_or_default()
}

impl<'a> Segments<'a> {
    fn seek(&mut self, place: u64) {
        let Some(number) = self.view.tile.level else { return };
        let size = self.view.level(number).size;
        self.tile = place / size;
        let at = self.view.tile_at(self.displacement, self.tile);
        if self.view.is_contiguous() {
            self.pending = Some(Pieces::one(at + i128::from(place % size), self.left));
            return;
        }
        self.descend(number, at, place % size);
    }

    fn level(&self, number: u32) -> &'a Level {
        self.view.level(number)
    }

    /// Down to the segment that holds the byte `rest` of a level, which lies at `at`.
    fn descend(&mut self, mut number: u32, mut at: i128, mut rest: u64) {
        loop {
            let level = self.level(number);
            match &level.shape {
                Shape::Run => {
                    self.pending = Some(Pieces::one(at + i128::from(rest), level.size - rest));
                    return;
                }
                Shape::Repeat { stride, base, of, .. } => {
                    let size = self.level(*of).size;
                    let entry = rest / size;
                    self.stack.push(Frame { level: number, entry, copy: 0, at });
                    at += i128::from(*base) + i128::from(entry) * i128::from(*stride);
                    (number, rest) = (*of, rest % size);
                }
                Shape::Runs(runs) => {
                    let entry = runs.partition_point(|run| run.place <= rest).saturating_sub(1);
                    self.stack.push(Frame { level: number, entry: entry as u64, copy: 0, at });
                    let behind = runs.get(entry + 1).map_or(level.size, |run| run.place);
                    let skipped = rest - runs[entry].place;
                    let offset = at + i128::from(runs[entry].offset) + i128::from(skipped);
                    self.pending = Some(Pieces::one(offset, behind - rest));
                    return;
                }
                Shape::Parts(parts) => {
                    let entry = parts.partition_point(|part| part.place <= rest).saturating_sub(1);
                    let part = parts[entry];
                    let size = self.level(part.of).size;
                    let copy = (rest - part.place) / size;
                    self.stack.push(Frame { level: number, entry: entry as u64, copy, at });
                    at += i128::from(part.offset) + i128::from(copy) * i128::from(part.stride);
                    (number, rest) = (part.of, (rest - part.place) % size);
                }
            }
        }
    }

    /// On to the next segment.
    fn advance(&mut self) {
        while let Some(frame) = self.stack.last_mut() {
            let level = self.view.level(frame.level);
            match &level.shape {
                Shape::Repeat { count, stride, base, of } if frame.entry + 1 < *count => {
                    frame.entry += 1;
                    let at = frame.at + i128::from(*base) + i128::from(frame.entry) * i128::from(*stride);
                    let child = self.view.level(*of);
                    if let Shape::Run = child.shape {
                        let (len, more) = (child.size, count - 1 - frame.entry);
                        self.pending = Some(Pieces { offset: at, len, stride: *stride, more });
                        frame.entry = count - 1;
                        return;
                    }
                    return self.descend(*of, at, 0);
                }
                Shape::Runs(runs) if frame.entry + 1 < runs.len() as u64 => {
                    frame.entry += 1;
                    #[allow(clippy::cast_possible_truncation, reason = "below the length of a list")]
                    let index = frame.entry as usize;
                    let behind = runs.get(index + 1).map_or(level.size, |run| run.place);
                    let run = runs[index];
                    self.pending = Some(Pieces::one(frame.at + i128::from(run.offset), behind - run.place));
                    return;
                }
                Shape::Parts(parts) => {
                    #[allow(clippy::cast_possible_truncation, reason = "below the length of a list")]
                    let index = frame.entry as usize;
                    let behind = parts.get(index + 1).map_or(level.size, |part| part.place);
                    let mut part = parts[index];
                    let size = self.view.level(part.of).size;
                    if frame.copy + 1 < (behind - part.place) / size {
                        frame.copy += 1;
                    } else if let Some(next) = parts.get(index + 1) {
                        (frame.entry, frame.copy, part) = (frame.entry + 1, 0, *next);
                    } else {
                        self.stack.pop();
                        continue;
                    }
                    let at =
                        frame.at + i128::from(part.offset) + i128::from(frame.copy) * i128::from(part.stride);
                    return self.descend(part.of, at, 0);
                }
                Shape::Run | Shape::Repeat { .. } | Shape::Runs(_) => drop(self.stack.pop()),
            }
        }
        let Some(number) = self.view.tile.level else { return };
        self.tile += 1;
        let at = self.view.tile_at(self.displacement, self.tile);
        self.descend(number, at, 0);
    }
}

impl Iterator for Segments<'_> {
    type Item = Extent;

    #[inline]
    fn next(&mut self) -> Option<Extent> {
        if self.left == 0 {
            return None;
        }
        if self.pending.is_none() {
            self.advance();
        }
        let pieces = self.pending.as_mut()?;
        let (offset, len) = (pieces.offset, pieces.len.min(self.left));
        if pieces.more == 0 {
            self.pending = None;
        } else {
            pieces.more -= 1;
            pieces.offset += i128::from(pieces.stride);
        }
        self.left -= len;
        Some(Extent::new(u64::try_from(offset).unwrap_or(u64::MAX), len))
    }

    fn size_hint(&self) -> (usize, Option<usize>) {
        (usize::from(self.left > 0), None)
    }
}
