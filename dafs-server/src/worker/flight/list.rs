//! A list and the memory that storage moves it through.
#![allow(clippy::cast_possible_truncation, reason = "lengths within one request, which are of 32 bits")]

use std::ops::Range;
use std::sync::{Arc, OnceLock};

use dafs_proto::extent::{Part, Parts};
use dafs_proto::transport::{HeapMemory, MemoryRef, RemoteRange, Span};
use dafs_proto::wire::{ListFlags, Lists, Sieve, Stability, Status, Verifier, WireRange};
use smallvec::SmallVec;

use super::account::Account;
use super::calls::Calls;
use super::layout::{Layout, WALKED_IN_A_STEP};
use super::meeting::Progress;
use super::transfer::{TransferKind, range};
use crate::storage::{FsOp, NodeId, work};
use crate::worker::buffers::Buffer;
use crate::worker::flight::plan::{
    Apart, Call, Post, READ_GAP_MAX, WAITING_GAP_MAX, first_unwritten, join, next_call, posts,
};
use crate::worker::sched::costs::{Costs, Tally, has_gaps};
use crate::worker::sched::plans::{FEW_PARTS_MAX, PlanRoom};

/// A list under way.
#[derive(Debug)]
pub(crate) struct List {
    pub(crate) request: Request,
    pub(crate) data: Data,
    pub(crate) work: ChunkWork,
    pub(crate) gaps: Gaps,
    pub(crate) rdma: ChunkRdma,
    /// Places of the list that are on their way now.
    pub(crate) chunk: Range<u64>,
    /// Reads: where the file ended, as far as that was met.
    pub(crate) end: u64,
    /// Writes: bytes that are in the file without a gap; reads: places that are done with.
    pub(crate) done: u64,
    pub(crate) step: Step,
    /// What others of its group do for it.
    pub(crate) joined: Option<Arc<Progress>>,
    /// It is written for the second time, since the first came to nothing.
    is_second: bool,
}

/// What is asked for.
#[derive(Debug)]
pub(crate) struct Request {
    pub(crate) kind: TransferKind,
    pub(crate) node: NodeId,
    pub(crate) stability: Stability,
    /// What becomes of what lies between parts.
    pub(crate) sieve: Sieve,
    /// From before anything was written.
    pub(crate) verifier: Verifier,
    pub(crate) layout: Layout,
    /// Of the client's memory, neighbours joined; empty for inline.
    pub(crate) ranges: Vec<RemoteRange>,
    pub(crate) len: u64,
}

/// The memory of this process that a chunk passes through.
#[derive(Debug)]
pub(crate) struct Data {
    pub(crate) side: DataSide,
    /// One piece, or the client's where that is mapped, one for each run of ranges in a region.
    pub(crate) memory: SmallVec<[MemoryRef; 1]>,
    /// What of that memory the chunk's bytes pass through, in their order.
    pub(crate) segments: SmallVec<[Segment; 1]>,
    /// Places before the first of these segments.
    skipped: u64,
    /// The chunk's own last, where it has one; RDMA still sends from the others.
    pub(crate) buffers: Vec<Buffer>,
    /// What it waited for, until the next chunk takes it.
    pub(crate) granted: Option<Buffer>,
    /// The chunk is a mapped window of the file.
    pub(crate) is_window: bool,
    /// Some of it was gone when it was sent.
    pub(crate) is_faulted: bool,
    /// Its connection was lost while storage had its memory: chunks before may be lost with it.
    pub(crate) is_broken: bool,
}

/// What storage has to move of a chunk.
#[derive(Debug)]
pub(crate) struct ChunkWork {
    pub(crate) parts: Parts,
    /// Segments of a view that are planned at once.
    parts_max: u64,
    plan: Option<PlanRoom>,
    /// The first part that storage neither has moved nor has to move.
    pub(crate) next: usize,
    pub(crate) calls: Calls,
    /// The parts were looked at for mandatory locks when those were of this version.
    pub(crate) locks_seen: Option<u64>,
    /// Writes: parts before this one are written each by itself.
    pub(super) apart_until: usize,
    /// What the last [`List::move_now`] moved: bytes, and a call as [`super::moving::CALL_SIZE_MIN`] at least.
    pub(crate) moved: usize,
}

/// What becomes of gaps between parts, and what that costs.
#[derive(Debug)]
pub(crate) struct Gaps {
    /// What decides about them, and of what the last [`List::move_now`] took its time.
    pub(crate) costs: Option<Costs>,
    pub(crate) tally: Tally,
    /// What its client is told of it, where it asked.
    pub(crate) account: Option<Box<Account>>,
    /// Gaps of so many bytes are passed over by calls that wait.
    pub(crate) gap_max_waiting: u64,
    /// Reads: no call passes over any gap, since one that did has failed.
    pub(crate) leaves_gaps_out: bool,
}

/// The RDMA of a chunk, and of the one behind it.
#[derive(Debug, Default)]
pub(crate) struct ChunkRdma {
    pub(crate) posts: Vec<Post>,
    pub(crate) next_post: usize,
    /// Writes: the chunk behind this one.
    pub(crate) ahead: Option<Box<Ahead>>,
    /// RDMA that is on its way, of the chunks of even and of odd number, and which of both this one is.
    pub(crate) fetching: [u32; 2],
    pub(crate) parity: u8,
}

/// A piece of a list's memory.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Segment {
    /// Which memory.
    pub(crate) memory: usize,
    /// First byte there.
    pub(crate) offset: usize,
    pub(crate) len: usize,
}

/// Where storage and network meet.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum DataSide {
    /// In memory that a message carries.
    Inline,
    /// In the client's memory.
    Mapped,
    /// In buffers that RDMA fills or empties.
    Buffers,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Step {
    /// Waits for the others of its group, or is moved by one of them.
    Joined,
    /// The next chunk can begin.
    Begin,
    /// Waits for a buffer.
    Buffer,
    /// Storage moves parts.
    Storage,
    /// Its session has enough with storage.
    Room,
    /// Storage has calls.
    Submitted,
    /// RDMA is posted.
    Post,
    /// Waits for RDMA to fill the buffer.
    Fetch,
    /// Waits for RDMA to take what a mapped window of the file holds: whether all of it was there shows then.
    Window,
    /// It is over, and waits for RDMA that is not.
    Ending(Result<(), Status>),
    /// Storage makes written data durable.
    Commit,
}

impl Data {
    fn through(side: DataSide) -> Self {
        Self {
            side,
            memory: SmallVec::new(),
            segments: SmallVec::new(),
            skipped: 0,
            buffers: Vec::new(),
            granted: None,
            is_window: false,
            is_faulted: false,
            is_broken: false,
        }
    }

    /// One piece of memory for all of the chunk.
    pub(crate) fn set_memory(&mut self, memory: MemoryRef) {
        self.segments = SmallVec::from_buf([Segment { memory: 0, offset: 0, len: memory.len() }]);
        self.memory = SmallVec::from_buf([memory]);
    }

    pub(crate) fn memory_of(&self, part: &Part) -> Option<MemoryRef> {
        let segment = self.segments.get(part.segment)?;
        self.memory.get(segment.memory)?.slice(segment.offset + part.within, part.len)
    }

    /// The first `len` bytes of a part's memory.
    pub(super) fn span_of(&self, part: &Part, len: usize) -> Option<Span<'_>> {
        self.segment_span(part.segment)?.slice(part.within, len)
    }

    /// The memory of a segment.
    pub(super) fn segment_span(&self, segment: usize) -> Option<Span<'_>> {
        let segment = self.segments.get(segment)?;
        self.memory.get(segment.memory)?.span().slice(segment.offset, segment.len)
    }

    /// Passes over the memory of what is done.
    pub(crate) fn skip_segments(&mut self, done: u64) {
        let mut left = done.saturating_sub(self.skipped) as usize;
        self.skipped = done;
        self.segments.retain(|segment| {
            let skipped = segment.len.min(left);
            left -= skipped;
            (segment.offset, segment.len) = (segment.offset + skipped, segment.len - skipped);
            skipped == 0 || segment.len > 0
        });
    }
}

impl ChunkRdma {
    /// RDMA of the chunk itself that is on its way.
    pub(crate) fn pending(&self) -> u32 {
        self.fetching[usize::from(self.parity)]
    }
}

impl List {
    /// Writes: bytes that are in the file without a gap, while storage has nothing of it.
    pub(crate) fn written(&self) -> u64 {
        if self.request.kind == TransferKind::Read {
            return 0;
        }
        if let Some(joined) = &self.joined {
            return joined.done();
        }
        self.written_of(&(0..self.request.len))
    }

    /// Writes: the same of a range of the list, from its beginning on.
    pub(crate) fn written_of(&self, range: &Range<u64>) -> u64 {
        let is_moving = matches!(self.step, Step::Storage | Step::Room | Step::Submitted);
        let until = if !is_moving || self.work.parts.as_slice().is_empty() {
            self.done
        } else {
            let places = range.start.max(self.chunk.start)..range.end.min(self.chunk.end);
            let (next, offset) = self.work.calls.stopped.unwrap_or((self.work.next, 0));
            self.first_unwritten(&places, next, offset).unwrap_or(self.chunk.end)
        };
        until.clamp(range.start, range.end) - range.start
    }

    /// Writes: the first of these places of the chunk that is not in the file, when the parts from `next` on are not, as far as they lie at
    /// `stopped` or behind.
    fn first_unwritten(&self, places: &Range<u64>, next: usize, stopped: u64) -> Option<u64> {
        work::add(self.work.parts.as_slice().len() / WALKED_IN_A_STEP);
        let parts = self.work.parts.as_slice().get(next..).unwrap_or_default();
        let extents = self.request.layout.slice(places.start, places.end.saturating_sub(places.start));
        Some(places.start + first_unwritten(parts, stopped, extents)?)
    }

    /// From the first chunk that is not written again, with the buffers that come back.
    pub(crate) fn begin_anew(&mut self) -> Vec<Buffer> {
        let written = self.written();
        self.data.is_broken = false;
        self.chunk = 0..self.request.len;
        self.data.memory.clear();
        self.rdma.posts.clear();
        self.work.calls = Calls::default();
        (self.rdma.next_post, self.end, self.done, self.step) = (0, u64::MAX, written, Step::Begin);
        self.rdma.fetching = [0; 2];
        let ahead = self.rdma.ahead.take().map(|ahead| ahead.buffer);
        std::mem::take(&mut self.data.buffers).into_iter().chain(ahead).collect()
    }

    /// From the first chunk again, because nothing counts of what was written, with the buffers that come back; [`None`] when that was
    /// tried before.
    pub(crate) fn write_again(&mut self) -> Option<Vec<Buffer>> {
        if std::mem::replace(&mut self.is_second, true) {
            return None;
        }
        if self.data.side == DataSide::Buffers {
            return Some(self.begin_anew());
        }
        (self.work.calls, self.step) = (Calls::default(), Step::Begin);
        Some(Vec::new())
    }

    pub(crate) fn new(kind: TransferKind, node: NodeId, lists: Lists, stability: Stability) -> Self {
        Self::of((kind, node), Layout::Extents(lists.extents), lists.segments, stability)
    }

    pub(crate) fn of(
        (kind, node): (TransferKind, NodeId),
        layout: Layout,
        memory: Vec<WireRange>,
        stability: Stability,
    ) -> Self {
        let len = layout.len();
        let ranges = join(memory.into_iter().map(range));
        let side = if ranges.is_empty() { DataSide::Inline } else { DataSide::Buffers };
        Self {
            request: Request {
                kind,
                node,
                stability,
                sieve: Sieve::default(),
                verifier: Verifier(0),
                layout,
                ranges,
                len,
            },
            data: Data::through(side),
            work: ChunkWork {
                parts: Parts::default(),
                parts_max: CHUNK_PARTS_MAX,
                plan: None,
                next: 0,
                calls: Calls::default(),
                locks_seen: None,
                apart_until: 0,
                moved: 0,
            },
            gaps: Gaps {
                costs: None,
                tally: Tally::default(),
                account: None,
                gap_max_waiting: if kind == TransferKind::Read { READ_GAP_MAX } else { 0 },
                leaves_gaps_out: false,
            },
            rdma: ChunkRdma::default(),
            chunk: 0..len,
            end: u64::MAX,
            done: 0,
            step: Step::Begin,
            joined: None,
            is_second: false,
        }
    }

    /// Goes on from what others of its group have done for it; false where that is not over.
    pub(crate) fn leave(&mut self) -> bool {
        let Some(joined) = self.joined.take_if(|joined| joined.has_parted()) else { return false };
        (self.done, self.end) = (joined.done(), joined.end());
        self.step = Step::Begin;
        true
    }

    /// All buffers that it holds.
    pub(crate) fn take_buffers(&mut self) -> Vec<Buffer> {
        let ahead = self.rdma.ahead.take().map(|ahead| ahead.buffer);
        std::mem::take(&mut self.data.buffers)
            .into_iter()
            .chain(self.data.granted.take())
            .chain(ahead)
            .collect()
    }

    /// What its request asks for besides.
    pub(crate) fn ask(&mut self, sieve: Sieve, flags: ListFlags) {
        self.request.sieve = sieve;
        self.gaps.account = flags.contains(ListFlags::EXPLAIN).then(Box::default);
    }

    pub(crate) fn make_parts(&mut self) {
        let extents = self.request.layout.slice(self.chunk.start, self.chunk.end - self.chunk.start);
        let segments = self.data.segments.iter().map(|segment| segment.len);
        self.work.parts = match self.request.kind {
            TransferKind::Read => Parts::of_read(extents, segments),
            TransferKind::Write | TransferKind::Append => Parts::of_write(extents, segments),
        };
        work::add(self.work.parts.looks() / LOOKS_IN_A_STEP);
        (self.work.next, self.work.apart_until, self.work.locks_seen) = (0, 0, None);
    }

    /// Decides how much of a view is planned at once: few segments where `room` says that too many plans wait.
    pub(crate) fn size_plan(&mut self, room: impl FnOnce() -> Option<PlanRoom>) {
        let left = self.request.len - self.done;
        if self.work.plan.is_some() || !self.request.layout.is_view() || left == 0 {
            return;
        }
        self.work.parts_max = FEW_PARTS_MAX;
        if self.request.layout.fit(self.done, left, FEW_PARTS_MAX) < left {
            self.work.plan = room();
            let most = if self.request.layout.ascends() { CHUNK_PARTS_MAX } else { UNSORTED_PARTS_MAX };
            self.work.parts_max = if self.work.plan.is_some() { most } else { FEW_PARTS_MAX };
        }
    }

    /// Bytes of all extents that lie before the end of the file.
    pub(crate) fn got(&self) -> u64 {
        self.request.layout.len_before(self.end)
    }

    /// RDMA for the chunk.
    pub(crate) fn make_posts(&mut self) {
        self.rdma.posts = self.posts_of(&self.chunk, self.end);
        (self.rdma.next_post, self.step) = (0, Step::Post);
    }

    pub(crate) fn posts_of(&self, chunk: &Range<u64>, end: u64) -> Vec<Post> {
        if end < u64::MAX {
            work::add(self.work.parts.as_slice().len() / WALKED_IN_A_STEP);
        }
        posts(
            &self.request.ranges,
            self.request.layout.slice(chunk.start, chunk.end - chunk.start),
            chunk,
            end,
        )
    }

    /// Where a chunk ends that begins at `from` and has `len_max` bytes at most.
    pub(crate) fn chunk_end(&self, from: u64, len_max: u64) -> u64 {
        from + self.request.layout.fit(from, len_max.min(self.request.len - from), self.work.parts_max)
    }

    /// The next call for storage that has to be waited for; [`None`] when all parts are moved.
    pub(crate) fn next_call_waiting(&self) -> Option<Call> {
        let gap_max = if self.gaps.leaves_gaps_out { 0 } else { self.gaps.gap_max_waiting };
        next_call(self.work.parts.as_slice(), self.work.next, gap_max)
    }

    /// The operation of storage for a call.
    pub(crate) fn op_of(&self, call: &Call) -> FsOp {
        let parts = self.work.parts.as_slice().get(call.parts.clone()).unwrap_or_default();
        let (node, offset, len) = (self.request.node, call.offset, call.len as usize);
        if self.request.kind != TransferKind::Read && has_gaps(self.work.parts.as_slice(), call) {
            let parts = parts.iter().filter_map(|part| Some((part.offset, self.data.memory_of(part)?)));
            return FsOp::Sieve { node, offset, len, parts: parts.collect() };
        }
        let mut memory = Vec::new();
        each_piece(parts, offset, |piece| {
            memory.extend(match piece {
                Piece::Part(part) => self.data.memory_of(part),
                Piece::Gap(len) => gap().slice(0, len),
            });
        });
        match self.request.kind {
            TransferKind::Read => FsOp::Read { node, offset, into: memory },
            TransferKind::Write | TransferKind::Append => {
                FsOp::Write { node, offset, from: memory, stability: Stability::Unstable }
            }
        }
    }

    /// The next call for storage that has the data at hand. Parts of a write go with what lies between them where that costs less.
    pub(super) fn next_call_now(&mut self) -> Option<Call> {
        let parts = self.work.parts.as_slice();
        if self.request.kind == TransferKind::Read {
            let gap_max = match self.request.sieve {
                _ if self.gaps.leaves_gaps_out => 0,
                Sieve::Auto => {
                    self.gaps.costs.map_or(READ_GAP_MAX, |costs| costs.gap_max().max(READ_GAP_MAX))
                }
                Sieve::On => WAITING_GAP_MAX,
                Sieve::Off => 0,
            };
            return next_call(parts, self.work.next, gap_max);
        }
        if let Some(costs) = self.gaps.costs.filter(|_| self.work.next >= self.work.apart_until) {
            let is_forced = self.request.sieve == Sieve::On;
            let gap_max = if is_forced { WAITING_GAP_MAX } else { costs.gap_max() };
            let window = next_call(parts, self.work.next, gap_max)?;
            if is_forced || !has_gaps(parts, &window) || costs.pays(Apart::of(parts, &window), window.len) {
                return Some(window);
            }
            // Looking at all of them again before each would take longer than to write them.
            self.work.apart_until = window.parts.end;
        }
        next_call(parts, self.work.next, 0)
    }

    /// Storage has moved `count` bytes of a call. A write that is short ends there.
    pub(crate) fn on_moved(&mut self, call: &Call, count: usize) {
        if count as u64 >= call.len {
            return;
        }
        if self.request.kind == TransferKind::Read {
            self.end = self.end.min(call.offset + count as u64);
        } else {
            self.stop_writing(call, count, None);
        }
    }

    /// A call failed: of a write, what is before it counts.
    pub(crate) fn on_failed(&mut self, call: &Call, status: Status) {
        match self.request.kind {
            // [LIST-49] Nobody asked for what lies between: its parts are read again, each by itself.
            TransferKind::Read if has_gaps(self.work.parts.as_slice(), call) => {
                self.gaps.leaves_gaps_out = true;
                self.work.next = self.work.next.min(call.parts.start);
                // What it takes tells nothing of how long lists take.
                self.work.calls.trial = None;
            }
            TransferKind::Read => self.work.calls.stop(Some(status)),
            TransferKind::Write | TransferKind::Append => self.stop_writing(call, 0, Some(status)),
        }
    }

    /// No more parts of the chunk are moved.
    pub(crate) fn stop_before_next(&mut self, status: Status) {
        if let Some(part) = self.work.parts.as_slice().get(self.work.next) {
            self.on_failed(
                &Call { parts: self.work.next..self.work.next, offset: part.offset, len: 0 },
                status,
            );
        }
    }

    fn stop_writing(&mut self, call: &Call, count: usize, failure: Option<Status>) {
        let stopped = call.offset + count as u64;
        self.work.calls.stop_at(call.parts.start, stopped, failure);
        let (part, offset) = self.work.calls.stopped.unwrap_or_default();
        self.done = self.first_unwritten(&self.chunk, part, offset).unwrap_or(self.chunk.start);
    }

    /// Parts are left that storage has to move: what begins at or behind the end of the file is not.
    pub(crate) fn has_next(&self) -> bool {
        self.work.parts.as_slice().get(self.work.next).is_some_and(|part| part.offset < self.end)
    }
}

/// The chunk behind the one that storage has, on its way into a buffer.
#[derive(Debug)]
pub(crate) struct Ahead {
    pub(crate) chunk: Range<u64>,
    pub(crate) memory: MemoryRef,
    pub(crate) buffer: Buffer,
    pub(crate) posts: Vec<Post>,
    pub(crate) next_post: usize,
}

impl List {
    /// Makes the chunk that is fetched already, or on its way, the one to be moved.
    pub(crate) fn take_ahead(&mut self) -> bool {
        let Some(ahead) = self.rdma.ahead.take() else { return false };
        let Ahead { chunk, memory, buffer, posts, next_post } = *ahead;
        self.chunk = chunk;
        self.data.set_memory(memory);
        self.data.buffers.push(buffer);
        self.make_parts();
        (self.rdma.posts, self.rdma.next_post, self.step) = (posts, next_post, Step::Post);
        self.rdma.parity ^= 1;
        true
    }
}

/// Segments of a view that are planned at once.
pub(crate) const CHUNK_PARTS_MAX: u64 = 16_384;

/// The same where they do not ascend, and planning takes longer.
const UNSORTED_PARTS_MAX: u64 = CHUNK_PARTS_MAX / 4;

/// Looks at extents and parts in the time of one step of [`work`], when parts are made.
const LOOKS_IN_A_STEP: usize = 2;

/// A part of a call, or what lies between two.
pub(crate) enum Piece<'a> {
    Part(&'a Part),
    Gap(usize),
}

/// A call's parts and gaps, in order.
pub(crate) fn each_piece<'a>(parts: &'a [Part], offset: u64, mut visit: impl FnMut(Piece<'a>)) {
    let mut at = offset;
    for part in parts {
        if part.offset > at {
            visit(Piece::Gap((part.offset - at) as usize));
        }
        visit(Piece::Part(part));
        at = part.end();
    }
}

/// Where the bytes between two parts are read to. Nobody looks at them.
pub(super) fn gap() -> &'static MemoryRef {
    static GAP: OnceLock<MemoryRef> = OnceLock::new();
    GAP.get_or_init(|| {
        let memory =
            HeapMemory::allocate(WAITING_GAP_MAX as usize).expect("some pages of memory at the first list");
        MemoryRef::new(Arc::new(memory))
    })
}
