//! A list and the memory that storage moves it through.
#![allow(clippy::cast_possible_truncation, reason = "lengths within one request, which are of 32 bits")]

use std::ops::Range;
use std::sync::{Arc, OnceLock};

use dafs_proto::extent::{Extent, Part, Parts, slice};
use dafs_proto::transport::{HeapMemory, MemoryRef, RemoteRange, Span};
use dafs_proto::wire::{Lists, Stability};
use smallvec::SmallVec;

use super::super::read::range;
use super::Direction;
use crate::backend::{NodeId, NowError, Storage};
use crate::buffers::Buffer;
use crate::plan::{Call, Post, READ_GAP_MAX, WRITE_GAP_MAX, join, next_call, unwritten_from};

/// A list under way.
#[derive(Debug)]
pub(crate) struct List {
    pub(super) direction: Direction,
    pub(super) node: NodeId,
    pub(super) stability: Stability,
    pub(super) extents: Vec<Extent>,
    /// Of the client's memory, neighbours joined; empty for inline.
    pub(super) ranges: Vec<RemoteRange>,
    pub(super) len: u64,
    pub(super) place: Place,
    /// Places of the list that are on their way now.
    pub(super) chunk: Range<u64>,
    /// Memory of this process that the chunk passes through: one piece, or the client's where that is mapped.
    pub(super) memory: SmallVec<[MemoryRef; 1]>,
    pub(super) parts: Parts,
    /// The first part that storage has not moved.
    pub(super) next: usize,
    pub(super) posts: Vec<Post>,
    pub(super) next_post: usize,
    /// Reads: where the file ended, as far as that was met.
    pub(super) end: u64,
    /// Writes: bytes that are in the file without a gap; reads: places that are done with.
    pub(super) done: u64,
    /// The chunk's own last, where it has one; RDMA still sends from the others.
    pub(super) buffers: Vec<Buffer>,
    /// What it waited for, until the next chunk takes it.
    pub(super) granted: Option<Buffer>,
    pub(super) step: Step,
    /// What the last [`List::move_now`] moved: bytes, and a call as [`CALL_SIZE_MIN`] at least.
    pub(super) moved: usize,
    /// Its connection was lost while storage had its memory: chunks before may be lost with it.
    pub(super) is_broken: bool,
}

/// Where storage and network meet.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Place {
    /// In memory that a message carries.
    Inline,
    /// In the client's memory.
    Mapped,
    /// In buffers that RDMA fills or empties.
    Buffers,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Step {
    /// The next chunk can begin.
    Begin,
    /// Waits for a buffer.
    Buffer,
    /// Storage moves parts.
    Storage,
    /// A call of storage was submitted.
    Submitted,
    /// RDMA is posted.
    Post,
    /// Waits for RDMA to fill the buffer.
    Fetch,
    /// Storage makes written data durable.
    Commit,
}

impl List {
    /// Storage has its hands on the memory.
    pub(crate) fn in_storage(&self) -> bool {
        matches!(self.step, Step::Submitted | Step::Commit)
    }

    /// Its connection is gone, and with it what RDMA had.
    pub(crate) fn on_disconnected(&mut self) {
        self.is_broken |= self.step == Step::Submitted && self.place == Place::Buffers;
    }

    /// From the first chunk again, with the buffers that come back.
    pub(super) fn begin_anew(&mut self) -> Vec<Buffer> {
        self.is_broken = false;
        self.chunk = 0..self.len;
        self.memory.clear();
        self.posts.clear();
        (self.next_post, self.end, self.done, self.step) = (0, u64::MAX, 0, Step::Begin);
        std::mem::take(&mut self.buffers)
    }

    pub(crate) fn into_buffers(self) -> Vec<Buffer> {
        self.buffers.into_iter().chain(self.granted).collect()
    }

    /// It waits for a buffer and has not begun to move data.
    pub(crate) fn waits_for_buffer(&self) -> Option<bool> {
        (self.step == Step::Buffer).then_some(self.done == 0)
    }

    /// Takes the buffer that it waited for; what it has no use for comes back.
    pub(crate) fn grant(&mut self, mut buffers: Vec<Buffer>) -> Option<Buffer> {
        std::mem::replace(&mut self.granted, buffers.pop())
    }

    pub(super) fn new(direction: Direction, node: NodeId, lists: Lists, stability: Stability) -> Self {
        let len = lists.extents.iter().map(|extent| extent.len).sum();
        let ranges = join(lists.segments.into_iter().map(range));
        Self {
            direction,
            node,
            stability,
            extents: lists.extents,
            place: if ranges.is_empty() { Place::Inline } else { Place::Buffers },
            ranges,
            len,
            chunk: 0..len,
            memory: SmallVec::new(),
            parts: Parts::default(),
            next: 0,
            posts: Vec::new(),
            next_post: 0,
            end: u64::MAX,
            done: 0,
            buffers: Vec::new(),
            granted: None,
            step: Step::Begin,
            moved: 0,
            is_broken: false,
        }
    }

    pub(super) fn make_parts(&mut self) {
        let extents = slice(&self.extents, self.chunk.start, self.chunk.end - self.chunk.start);
        let segments = self.memory.iter().map(MemoryRef::len);
        self.parts = match self.direction {
            Direction::Read => Parts::of_read(extents, segments),
            Direction::Write | Direction::Append => Parts::of_write(extents, segments),
        };
        self.next = 0;
    }

    /// Bytes of all extents that lie before the end of the file.
    pub(super) fn got(&self) -> u64 {
        self.extents.iter().map(|extent| extent.len_before(self.end)).sum()
    }

    /// The memory of the next call and the byte of the file that it begins with; [`None`] when all parts are moved.
    pub(super) fn next_op(&self, gap: &MemoryRef) -> Option<(u64, Vec<MemoryRef>)> {
        let parts = self.parts.as_slice();
        let call = next_call(parts, self.next, self.gap_max())?;
        let memory = pieces(parts.get(call.parts)?, call.offset, |part| match part {
            Piece::Part(part) => self.memory.get(part.segment)?.slice(part.within, part.len),
            Piece::Gap(len) => gap.slice(0, len),
        });
        Some((call.offset, memory.into_iter().flatten().collect()))
    }

    pub(super) fn gap_max(&self) -> u64 {
        if self.direction == Direction::Read { READ_GAP_MAX } else { WRITE_GAP_MAX }
    }

    /// Storage has moved `count` bytes of the next call. `false` when a write has to stop there.
    pub(super) fn on_moved(&mut self, count: usize) -> bool {
        let parts = self.parts.as_slice();
        let Some(call) = next_call(parts, self.next, self.gap_max()) else { return true };
        if (count as u64) < call.len {
            if self.direction != Direction::Read {
                self.done = self.chunk.start + unwritten_from(parts, &call, count as u64) as u64;
                return false;
            }
            self.end = self.end.min(call.offset + count as u64);
        }
        self.next = call.parts.end;
        true
    }

    /// The next call failed: of a write, what is before it counts.
    pub(super) fn on_failed(&mut self) {
        if self.direction != Direction::Read {
            self.on_moved(0);
        }
    }

    /// Parts are left that storage has to move: what begins at or behind the end of the file is not.
    pub(super) fn has_next(&self) -> bool {
        self.parts.as_slice().get(self.next).is_some_and(|part| part.offset < self.end)
    }

    /// Moves as many parts as storage has at hand, until they are `size_max` bytes or more. `Ok(false)`: a write had to stop.
    pub(super) fn move_now(&mut self, storage: &mut dyn Storage, size_max: usize) -> Result<bool, NowError> {
        let gap = gap();
        self.moved = 0;
        while self.has_next() && self.moved < size_max {
            let parts = self.parts.as_slice();
            let Some(call) = next_call(parts, self.next, self.gap_max()) else { break };
            let count = match bounce() {
                Some(bounce) if is_copied(parts, &call) => self.move_copied(storage, &call, &bounce)?,
                _ => self.move_call(storage, &call, gap)?,
            };
            self.moved += count.max(CALL_SIZE_MIN);
            if !self.on_moved(count) {
                return Ok(false);
            }
        }
        Ok(true)
    }
}

impl List {
    /// One call for all parts, each in its place.
    fn move_call(&self, storage: &mut dyn Storage, call: &Call, gap: &MemoryRef) -> Result<usize, NowError> {
        let parts = self.parts.as_slice().get(call.parts.clone()).unwrap_or_default();
        let spans: SmallVec<[Span<'_>; 128]> = pieces(parts, call.offset, |piece| match piece {
            Piece::Part(part) => self.memory.get(part.segment)?.span().slice(part.within, part.len),
            Piece::Gap(len) => gap.span().slice(0, len),
        })
        .into_iter()
        .flatten()
        .collect();
        match self.direction {
            Direction::Read => storage.read_now(self.node, call.offset, &spans),
            Direction::Write | Direction::Append => storage.write_now(self.node, call.offset, &spans),
        }
    }

    /// One call for all parts, by way of contiguous memory: to the kernel a segment costs more than copying a small part.
    fn move_copied(
        &self,
        storage: &mut dyn Storage,
        call: &Call,
        bounce: &MemoryRef,
    ) -> Result<usize, NowError> {
        let parts = self.parts.as_slice().get(call.parts.clone()).unwrap_or_default();
        let Some(window) = bounce.span().slice(0, call.len as usize) else { return Ok(0) };
        let places = |part: &Part, len: usize| {
            let memory = self.memory.get(part.segment)?.span().slice(part.within, len)?;
            Some((memory, window.slice((part.offset - call.offset) as usize, len)?))
        };
        if self.direction != Direction::Read {
            for (memory, place) in parts.iter().filter_map(|part| places(part, part.len)) {
                place.copy_from(memory);
            }
            return storage.write_now(self.node, call.offset, &[window]);
        }
        let count = storage.read_now(self.node, call.offset, &[window])?;
        for part in parts {
            let got = count.saturating_sub((part.offset - call.offset) as usize).min(part.len);
            if let Some((memory, place)) = places(part, got) {
                memory.copy_from(place);
            }
        }
        Ok(count)
    }
}

/// Its parts are so small, on average, that copying them is quicker than telling the kernel of each.
fn is_copied(parts: &[Part], call: &Call) -> bool {
    let parts = parts.get(call.parts.clone()).unwrap_or_default();
    let len: usize = parts.iter().map(|part| part.len).sum();
    parts.len() > 1 && call.len <= COPIED_SIZE_MAX as u64 && len / parts.len() <= COPIED_PART_MAX
}

/// What a call of storage takes at least, in bytes copied in that time.
const CALL_SIZE_MIN: usize = 2048;
/// Bytes of a part, on average, up to which parts are copied: measured, a segment costs the kernel about as much as copying this.
const COPIED_PART_MAX: usize = 1024;
/// Bytes of a call whose parts are copied: half of a usual second-level cache at most.
const COPIED_SIZE_MAX: usize = 256 * 1024;

/// This thread's memory for such calls; `None` when there was none.
fn bounce() -> Option<MemoryRef> {
    thread_local! {
        static BOUNCE: Option<MemoryRef> =
            HeapMemory::allocate(COPIED_SIZE_MAX).map(|memory| MemoryRef::new(Arc::new(memory)));
    }
    BOUNCE.with(Clone::clone)
}

/// A part of a call, or what lies between two.
enum Piece<'a> {
    Part(&'a Part),
    Gap(usize),
}

/// The memory of a call's parts and gaps, in order.
fn pieces<'a, T>(parts: &'a [Part], offset: u64, memory_of: impl Fn(Piece<'a>) -> T) -> SmallVec<[T; 128]> {
    let mut at = offset;
    let mut memory = SmallVec::new();
    for part in parts {
        if part.offset > at {
            memory.push(memory_of(Piece::Gap((part.offset - at) as usize)));
        }
        memory.push(memory_of(Piece::Part(part)));
        at = part.end();
    }
    memory
}

/// Where the bytes between two parts are read to. Nobody looks at them.
pub(super) fn gap() -> &'static MemoryRef {
    static GAP: OnceLock<MemoryRef> = OnceLock::new();
    GAP.get_or_init(|| {
        let memory = HeapMemory::allocate(READ_GAP_MAX as usize).expect("a page of memory at the first list");
        MemoryRef::new(Arc::new(memory))
    })
}

/// Brings together what was read of each extent; answers all of it.
pub(super) fn pack<'a>(memory: Span<'a>, extents: &[Extent], end: u64) -> Span<'a> {
    let (mut from, mut to) = (0, 0);
    for extent in extents {
        let got = extent.len_before(end) as usize;
        if from != to
            && got > 0
            && let (Some(target), Some(source)) = (memory.slice(to, got), memory.slice(from, got))
        {
            target.copy_from(source);
        }
        to += got;
        from += extent.len as usize;
    }
    memory.slice(0, to).unwrap_or(Span::EMPTY)
}
