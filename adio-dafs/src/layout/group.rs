use dafs_client::Extent;

use super::source::{Segment, Segments};
use super::types::LayoutError;

/// A stretch of memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct MemoryPart {
    /// Where it begins.
    pub address: usize,
    /// Bytes.
    pub len: usize,
}

/// Some segments of a transfer, as two lists: what touches in the file is one extent, and what touches in memory one piece.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Group {
    /// Of the file.
    pub extents: Vec<Extent>,
    /// Of memory.
    pub memory: Vec<MemoryPart>,
    /// Bytes of either list.
    pub len: u64,
    /// Segments that it came of.
    pub segments: usize,
}

/// What one call of the client library moves.
pub trait Stretch {
    /// Bytes of it.
    fn size(&self) -> u64;
    /// So many bytes, which are moved, are no more of it.
    fn advance(&mut self, moved: u64);
}

impl Stretch for Segment {
    fn size(&self) -> u64 {
        self.len
    }

    fn advance(&mut self, moved: u64) {
        self.address = self.address.wrapping_add(usize::try_from(moved).unwrap_or(usize::MAX));
        (self.offset, self.len) = (self.offset + moved, self.len - moved);
    }
}

impl Stretch for Group {
    fn size(&self) -> u64 {
        self.len
    }

    fn advance(&mut self, moved: u64) {
        cut(
            &mut self.extents,
            moved,
            |extent| extent.len,
            |extent, moved| {
                (extent.offset, extent.len) = (extent.offset + moved, extent.len - moved);
            },
        );
        cut_memory(&mut self.memory, moved);
        self.len -= moved;
    }
}

/// Takes the first bytes of pieces away.
fn cut<T>(pieces: &mut Vec<T>, mut len: u64, len_of: fn(&T) -> u64, shorten: fn(&mut T, u64)) {
    let mut whole = 0;
    while let Some(piece) = pieces.get(whole).map(len_of).filter(|piece| *piece <= len) {
        (whole, len) = (whole + 1, len - piece);
    }
    pieces.drain(..whole);
    if let Some(first) = pieces.first_mut() {
        shorten(first, len);
    }
}

/// The same of memory.
pub(super) fn cut_memory(pieces: &mut Vec<MemoryPart>, len: u64) {
    cut(
        pieces,
        len,
        |piece| piece.len as u64,
        |piece, moved| {
            // Within the piece.
            let moved = usize::try_from(moved).unwrap_or(piece.len);
            (piece.address, piece.len) = (piece.address + moved, piece.len - moved);
        },
    );
}

/// When a group is full: behind the segment with which one of these is reached.
#[derive(Clone, Copy, Debug)]
pub struct GroupLimits {
    /// Segments.
    pub entries: usize,
    /// The bounds of the file type count as a segment, of the first group.
    pub counts_bounds: bool,
    /// Bytes.
    pub len: u64,
}

impl Group {
    fn add(&mut self, segment: Segment) {
        let Segment { address, offset, len } = segment;
        match self.extents.last_mut() {
            Some(last) if last.offset + last.len == offset => last.len += len,
            _ => self.extents.push(Extent::new(offset, len)),
        }
        // A piece of memory is no longer than there are addresses.
        let bytes = usize::try_from(len).unwrap_or(usize::MAX);
        match self.memory.last_mut() {
            Some(last) if last.address.checked_add(last.len) == Some(address) => last.len += bytes,
            _ => self.memory.push(MemoryPart { address, len: bytes }),
        }
        self.len += len;
        self.segments += 1;
    }
}

/// The next segments, as many as the limits allow; `None` at the end.
pub fn next_group(segments: &mut Segments<'_>, limits: GroupLimits) -> Option<Result<Group, LayoutError>> {
    let mut group = Group::default();
    let mut entries = usize::from(limits.counts_bounds && segments.is_fresh());
    while entries < limits.entries.max(1) && group.len < limits.len.max(1) {
        match segments.next_segment() {
            None => break,
            Some(Err(error)) => return Some(Err(error)),
            Some(Ok(segment)) => {
                entries += 1;
                group.add(segment);
            }
        }
    }
    (group.segments > 0).then_some(Ok(group))
}
