//! Lists: reads and writes of many extents of a file and many ranges of memory, in one request.
//!
//! ```text
//! inline          all of it ─▶ storage ⇄ a buffer, or the message itself ─▶ reply
//! mapped memory   all of it ─▶ storage ⇄ the client's memory ─▶ reply
//! RDMA, read      next chunk ─▶ mapped file, or buffer ◀─ storage ─▶ one RDMA write for each range ─▶ next chunk … ─▶ reply
//! RDMA, write     next chunk ─▶ buffer ◀─ one RDMA read for each range ─▶ storage ─▶ next chunk … ─▶ commit where asked ─▶ reply
//! of a group      the next segments of each ─▶ storage, what lies side by side in one call ─▶ … ─▶ as above, each its own reply
//! ```
//!
//! What calls of storage a chunk takes is [`crate::worker::flight::plan`]'s. Contiguous transfers are [`super::transfer`]'s.
#![allow(clippy::cast_possible_truncation, reason = "lengths within one request, which are of 32 bits")]

mod calls;
mod fetch;
mod joint;
mod scattered;

use dafs_proto::extent::{Extent, OFFSET_MAX};
use dafs_proto::session::Effect;
use dafs_proto::transport::{Access, MemoryRef, RemoteRange, Span, TransportError};
use dafs_proto::wire::{
    BatchResult, HEADER_SIZE, ListError, ListReadReply, ListRequest, Lists, Method, Opcode, Sieve, Stability,
    Status, decode_lists,
};
use smallvec::SmallVec;

use super::Worker;
use crate::storage::{FsOp, FsResult, NodeId, work};
use crate::worker::buffers::{BUFFER_SIZES, Buffer};
use crate::worker::flight::after::{Target, Writing};
use crate::worker::flight::answer::{Answer, Keep, Payload, Problem, Served};
use crate::worker::flight::layout::{WALKED_IN_A_STEP, pack};
use crate::worker::flight::list::{CHUNK_PARTS_MAX, DataSide, List, Segment, Step};
use crate::worker::flight::plan::join;
use crate::worker::flight::transfer::TransferKind;
use crate::worker::flight::{Call, own_copy, own_memory};
use crate::worker::operations::WaitsFor;
use crate::worker::requests::reply::read_reply;
use crate::worker::requests::work::{Context, Fate, Work};

/// Bytes of a list from which larger chunks cost less than more of them bring.
const LONG_LEN: u64 = 4 * BUFFER_SIZES[2] as u64;

/// What a step led to.
enum Progress {
    /// Go on with the next.
    Continue,
    /// Something else has to happen first.
    Wait,
    /// All of a read is on its way: its reply may go behind it.
    Departs,
    /// It ends; an error counts where nothing was written before it.
    End(Result<(), Status>),
}

impl Worker {
    /// Reads and writes of lists.
    pub(crate) fn list(&mut self, call: &Call, body: &[u8], payload: Payload<'_>) -> Served {
        let request = ListRequest::decode_for(call.header.opcode, body)?;
        self.check_feature(call, request.flags.feature())?;
        let kind =
            if call.header.opcode == Opcode::ReadList { TransferKind::Read } else { TransferKind::Write };
        let node = self.data_node(call, kind != TransferKind::Read)?;
        let (inline_len, limit) = self.list_limits(call, kind, request.method, request.len);
        let bytes = self.connections.copied_payload(call, payload);
        let lists = match decode_lists(&bytes, &request, inline_len) {
            Ok(_) if request.len > limit => Err(ListError::TooLong { len: request.len, limit }),
            other => other,
        };
        let lists = lists.map_err(Problem::refused(Status::INVALID))?;
        let mut list = List::new(kind, node, lists, request.stability);
        list.ask(request.sieve, request.flags);
        self.begin_asked(call, list, bytes, inline_len as usize)
    }

    /// Begins a list whose request ends with `inline_len` bytes of data.
    pub(super) fn begin_asked(
        &mut self,
        call: &Call,
        list: List,
        request: Vec<u8>,
        inline_len: usize,
    ) -> Served {
        let list = self.prepare_asked(call, list, request, inline_len)?;
        self.begin_work(call, list);
        Ok(())
    }

    /// Such a list with its memory, ready to begin.
    pub(super) fn prepare_asked(
        &mut self,
        call: &Call,
        mut list: List,
        mut request: Vec<u8>,
        inline_len: usize,
    ) -> Result<Box<List>, Problem> {
        // A view has more than one turn can look at: the rest is looked at chunk by chunk. So is what an earlier execution has left.
        if !self.sessions.has_written_before(call) {
            let first = list.request.layout.fit(0, list.request.len, CHUNK_PARTS_MAX);
            let extents = list.request.layout.slice(0, first);
            self.check_locks_of(call, list.request.node, extents, list.request.kind != TransferKind::Read)?;
        }
        if inline_len > 0 {
            let at = request.len() - inline_len;
            list.data.set_memory(own_copy(Span::from_mut(&mut request[at..]))?);
        } else if list.data.side == DataSide::Inline {
            list.data.set_memory(own_memory(list.request.len as usize)?);
        }
        self.prepare_list(call, list)
    }

    /// A contiguous read or write of several ranges of memory.
    pub(crate) fn begin_scattered(
        &mut self,
        call: &Call,
        (kind, node): (TransferKind, NodeId),
        extent: Extent,
        ranges: Vec<RemoteRange>,
        stability: Stability,
    ) -> Served {
        let lists = Lists { extents: vec![extent], segments: Vec::new() };
        let mut list = List::new(kind, node, lists, stability);
        (list.request.ranges, list.data.side) = (join(ranges.into_iter()), DataSide::Buffers);
        self.begin_list(call, list)
    }

    /// A list of a batch, whose data goes to or comes from the client's memory, or for an inline one `memory`.
    pub(crate) fn begin_listed(
        &mut self,
        call: &Call,
        (kind, node): (TransferKind, NodeId),
        lists: Lists,
        stability: Stability,
        memory: Option<MemoryRef>,
    ) -> Served {
        let mut list = List::new(kind, node, lists, stability);
        if kind != TransferKind::Read {
            // Nobody was asked whether others write there.
            list.request.sieve = Sieve::Off;
        }
        match memory {
            Some(memory) => list.data.set_memory(memory),
            // Without a byte to move there are no ranges either.
            None => list.data.side = DataSide::Buffers,
        }
        self.begin_list(call, list)
    }

    /// Uses the client's memory itself, where all of it is mapped.
    fn map_list(&mut self, call: &Call, list: &mut List) -> Served {
        let access = match list.request.kind {
            TransferKind::Read => Access::REMOTE_WRITE,
            TransferKind::Write | TransferKind::Append => Access::REMOTE_READ,
        };
        let mut memory = SmallVec::new();
        let mut segments = SmallVec::with_capacity(list.request.ranges.len());
        // Ranges of one region are looked up together: all that lies between two of them is the region's as well.
        for ranges in list.request.ranges.chunk_by(|one, next| one.key == next.key) {
            let cover = RemoteRange::covering(ranges).ok_or(Status::REMOTE_ACCESS)?;
            let Some(mapped) = self.connections.remote_memory(call, &cover, access)? else { return Ok(()) };
            segments.extend(ranges.iter().map(|range| Segment {
                memory: memory.len(),
                offset: (range.offset - cover.offset) as usize,
                len: range.len as usize,
            }));
            memory.push(mapped);
        }
        (list.data.memory, list.data.segments, list.data.side) = (memory, segments, DataSide::Mapped);
        Ok(())
    }

    pub(super) fn begin_list(&mut self, call: &Call, list: List) -> Served {
        let list = self.prepare_list(call, list)?;
        self.begin_work(call, list);
        Ok(())
    }

    fn prepare_list(&mut self, call: &Call, mut list: List) -> Result<Box<List>, Problem> {
        if list.data.side != DataSide::Inline {
            self.map_list(call, &mut list)?;
        }
        list.request.verifier = self.target(list.request.node).verifier;
        if list.request.kind == TransferKind::Write {
            list.done = self.written_before(call, list.request.verifier).min(list.request.len);
        }
        Ok(Box::new(list))
    }

    /// Begins an operation that moves data in steps.
    pub(super) fn begin_work(&mut self, call: &Call, work: Box<dyn Work>) {
        let token = self.park(*call, WaitsFor::Work(work));
        self.work_on_live(token, |work, at| work.advance(at));
    }
}

impl Work for List {
    fn advance(&mut self, at: &mut Context<'_>) -> Fate {
        match self.run(at) {
            Progress::Continue | Progress::Wait => Fate::Waits,
            Progress::Departs => self.tell(at),
            Progress::End(result) => self.end_fetched(at, result),
        }
    }

    fn begin_again(&mut self, at: &mut Context<'_>) -> Fate {
        let buffers = self.begin_anew();
        at.release_buffers(buffers);
        self.advance(at)
    }

    fn on_storage(&mut self, at: &mut Context<'_>, slot: u8, result: FsResult) -> Fate {
        if self.step == Step::Commit {
            return self.committed(at, &result);
        }
        let is_alive = at.connection().is_some();
        if let Some(len) = self.call_ended(slot, &result) {
            at.leaves_storage(len);
        }
        if (!is_alive || self.data.is_broken) && !self.work.calls.is_empty() {
            return Fate::Waits;
        }
        if !is_alive {
            return Fate::Abandoned;
        }
        if self.step == Step::Storage && !self.data.is_broken {
            // It goes on in its turn.
            return Fate::Waits;
        }
        self.step = Step::Storage;
        if self.data.is_broken {
            let buffers = self.begin_anew();
            at.release_buffers(buffers);
        }
        self.advance(at)
    }

    fn on_forgotten_step(&mut self, slot: u8, _: &FsResult) {
        self.work.calls.end(slot);
        if self.step == Step::Commit {
            // It has ended.
            self.step = Step::Begin;
        }
    }

    fn on_rdma(&mut self, at: &mut Context<'_>, slot: u8, result: Result<(), TransportError>) -> Fate {
        self.release_sent_buffers(at);
        if let Some(fetching) = self.rdma.fetching.get_mut(usize::from(slot)) {
            *fetching = fetching.saturating_sub(1);
        }
        let is_fault = result.as_ref().is_err_and(TransportError::is_local_fault);
        self.data.is_faulted |= is_fault;
        match self.step {
            // After any other failure the connection is broken: closing it abandons the list.
            _ if result.is_err() && !is_fault => Fate::Waits,
            Step::Window if self.rdma.pending() == 0 => {
                self.end_window(at);
                self.advance(at)
            }
            Step::Fetch if self.rdma.pending() == 0 => {
                self.step = Step::Storage;
                self.advance(at)
            }
            Step::Ending(outcome) if at.rdma_pending() == 0 => self.end(at, outcome),
            _ => Fate::Waits,
        }
    }

    fn on_buffers(&mut self, at: &mut Context<'_>, mut buffers: Vec<Buffer>, expired: bool) -> Fate {
        let untouched = self.step == Step::Buffer && self.done == 0;
        if let Some(unused) = std::mem::replace(&mut self.data.granted, buffers.pop()) {
            at.release_buffer(unused);
        }
        self.step = Step::Begin;
        if expired && untouched { self.end(at, Err(Status::TIMED_OUT)) } else { self.advance(at) }
    }

    fn on_post_room(&mut self, at: &mut Context<'_>) -> Fate {
        if self.step == Step::Post { self.advance(at) } else { Fate::Waits }
    }

    fn waits_for_storage(&self) -> bool {
        self.step == Step::Room
    }

    fn on_storage_room(&mut self, at: &mut Context<'_>) -> Fate {
        self.step = Step::Storage;
        self.advance(at)
    }

    fn in_storage(&self) -> bool {
        let is_moved = self.joined.as_ref().is_some_and(|joined| joined.is_moved());
        is_moved || !self.work.calls.is_empty() || self.step == Step::Commit
    }

    fn lets_go(&self) -> bool {
        match &self.joined {
            Some(joined) => joined.lets_go(),
            None => !self.in_storage(),
        }
    }

    fn on_disconnected(&mut self) {
        if !self.work.calls.is_empty() {
            self.data.is_broken |= self.data.side == DataSide::Buffers;
            // If its turn was to come, that went with the connection.
            self.step = Step::Submitted;
        }
    }

    fn effect(&self) -> Option<Effect> {
        Some(self.written())
            .filter(|count| *count > 0)
            .map(|count| Effect::Bytes(count, self.request.verifier))
    }

    fn into_buffers(mut self: Box<Self>) -> Vec<Buffer> {
        self.take_buffers()
    }
}

impl List {
    /// Takes steps until it has to wait or ends.
    fn run(&mut self, at: &mut Context<'_>) -> Progress {
        loop {
            // Between two steps, so that what one has planned ends the turn.
            at.turn().on_steps(work::take());
            let has_more = match self.step {
                Step::Begin => self.done < self.request.len || self.is_long_to_count(),
                step => matches!(step, Step::Storage | Step::Post),
            };
            if at.is_over() && has_more {
                // It goes on in its connection's next turn.
                at.yield_turn();
                return Progress::Wait;
            }
            let progress = match self.step {
                Step::Joined => match self.leave() {
                    true => Progress::Continue,
                    false => Progress::Wait,
                },
                Step::Begin => self.begin_chunk(at),
                Step::Storage => self.move_parts(at),
                Step::Post => self.post_ranges(at),
                _ => Progress::Wait,
            };
            if !matches!(progress, Progress::Continue) {
                return progress;
            }
        }
    }

    fn begin_chunk(&mut self, at: &mut Context<'_>) -> Progress {
        let largest = at.largest_buffer();
        let Some(connection) = at.connection() else { return Progress::Wait };
        let capabilities = connection.endpoint.capabilities();
        let is_copy = capabilities.remote_mapped;
        let size_max = largest.min(capabilities.rdma_size_max as usize);
        if self.done == self.request.len {
            return Progress::End(Ok(()));
        }
        self.size_plan(|| at.plan_room());
        if self.data.side != DataSide::Buffers {
            self.chunk = self.done..self.chunk_end(self.done, u64::MAX);
            self.data.skip_segments(self.done);
            self.make_parts();
            self.step = Step::Storage;
            return Progress::Continue;
        }
        if self.take_ahead() || (self.request.kind == TransferKind::Read && self.map_chunk(at, size_max)) {
            return Progress::Continue;
        }
        self.data.is_window = false;
        // Where RDMA is a copy by this CPU, a chunk that stays in its cache is written out of there. Elsewhere it takes several chunks for
        // storage and RDMA to go on beside each other.
        let chunk_max = BUFFER_SIZES[if is_copy || self.request.len <= LONG_LEN { 1 } else { 2 }];
        self.chunk = self.done..self.chunk_end(self.done, chunk_max.min(size_max) as u64);
        let len = (self.chunk.end - self.chunk.start) as usize;
        let Some(buffer) = at.buffer(self.data.granted.take(), len) else {
            self.step = Step::Buffer;
            return Progress::Wait;
        };
        // A smaller one than wanted chops the chunk.
        let len = len.min(buffer.size());
        self.chunk.end = self.chunk.start + len as u64;
        if let Some(memory) = buffer.memory().slice(0, len) {
            self.data.set_memory(memory);
        }
        self.data.buffers.push(buffer);
        self.make_parts();
        if self.request.kind == TransferKind::Read {
            self.step = Step::Storage;
        } else {
            self.make_posts();
        }
        Progress::Continue
    }

    /// Takes the chunk from a mapped window of the file, where it is contiguous there and the window is at hand. A device sends from memory
    /// that is locked: such a window would be copied.
    fn map_chunk(&mut self, at: &mut Context<'_>, size_max: usize) -> bool {
        let copies_mapped = at.connection().is_none_or(|c| c.endpoint.capabilities().copies_faulting);
        if copies_mapped || !at.trusts_mapped_files() || at.locks().are_mandatory() {
            return false;
        }
        self.chunk = self.done..self.request.len.min(self.done + size_max as u64);
        let len = (self.chunk.end - self.chunk.start) as usize;
        let mut extents = self.request.layout.slice(self.chunk.start, len as u64);
        let (Some(extent), None) = (extents.next(), extents.next()) else { return false };
        drop(extents);
        let window = at.storage().map(self.request.node, extent.offset, len, 1).pop();
        let Some(window) = window.filter(|window| !window.is_empty()) else { return false };
        if window.len() < len {
            self.end = self.end.min(extent.offset + window.len() as u64);
        }
        self.make_posts();
        if let Some(account) = &mut self.gaps.account {
            account.on_mapped();
        }
        self.data.memory = SmallVec::from_iter([window]);
        (self.data.is_window, self.data.is_faulted) = (true, false);
        true
    }

    /// All is moved, or something failed.
    fn end(&mut self, at: &mut Context<'_>, mut result: Result<(), Status>) -> Fate {
        if result.is_ok() && self.done == 0 && self.request.len > 0 && self.request.kind != TransferKind::Read
        {
            // Storage had no room for all, said so by a count alone, and the first place is missing: asked again it says why.
            if let Some(buffers) = self.write_again() {
                at.release_buffers(buffers);
                return self.advance(at);
            }
            result = Err(Status::NO_SPACE);
        }
        match (result, self.request.kind) {
            (Err(status), TransferKind::Read) => at.refuse(status),
            (Err(status), _) if self.done == 0 => at.refuse(status),
            (_, TransferKind::Read) => self.reply_read(at),
            (_, _) if self.request.stability == Stability::Unstable => self.reply_written(at),
            (_, _) => {
                self.step = Step::Commit;
                let (offset, end) = self.request.layout.bounds();
                let (node, stability) = (self.request.node, self.request.stability);
                let op = FsOp::Commit { node, offset, len: end - offset, stability };
                at.submit(at.token, op).map_or(Fate::Waits, |result| self.committed(at, &result))
            }
        }
    }

    fn committed(&self, at: &mut Context<'_>, result: &FsResult) -> Fate {
        match result {
            Ok(_) => self.reply_written(at),
            Err(status) => at.refuse(*status),
        }
    }

    /// What a read has got is counted over all of it.
    fn is_long_to_count(&self) -> bool {
        self.request.kind == TransferKind::Read && self.request.layout.is_long_to_count(self.end)
    }

    fn method(&self) -> Method {
        if self.data.side == DataSide::Inline { Method::Inline } else { Method::Direct }
    }

    fn reply_written(&self, at: &mut Context<'_>) -> Fate {
        // Plain writes say where they went.
        let is_plain = at.call.header.opcode == Opcode::Write;
        let offset = self.request.layout.first_offset().filter(|_| is_plain).unwrap_or(0);
        let target = Target { node: self.request.node, verifier: self.request.verifier };
        let (stability, method) = (self.request.stability, self.method());
        let write = Writing { target, appends: false, offset, len: self.request.len, stability, method };
        let (count, account) =
            (self.done as usize, self.gaps.account.as_ref().map(|account| account.bytes()));
        at.reply_written(&write, count, account.as_ref().map_or(&[], |bytes| bytes))
    }

    /// The last of a read is on its way: the reply goes behind it, where it may.
    fn tell(&mut self, at: &mut Context<'_>) -> Fate {
        let Some(slot) = at.room_to_tell() else { return Fate::Waits };
        self.done = self.request.len;
        let (got, call) = (self.got(), at.call);
        at.count_moved(false, self.request.node.export, Method::Direct, got as usize);
        match call.header.opcode {
            Opcode::Read => at.tell(slot, &read_reply(got as usize, self.request.len as usize)),
            _ => at.tell(slot, &self.read_reply(got)),
        }
    }

    fn read_reply(&self, got: u64) -> [u8; ListReadReply::HEAD_SIZE - HEADER_SIZE] {
        ListReadReply { count: got as u32, end: (got < self.request.len).then_some(self.end) }.bytes()
    }

    fn reply_read(&self, at: &mut Context<'_>) -> Fate {
        let (export, call, method) = (self.request.node.export, at.call, self.method());
        let is_packed =
            method == Method::Inline && call.header.opcode != Opcode::Read && call.batch.is_none();
        let data = is_packed.then(|| self.packed());
        let got = data.map_or_else(|| self.got(), |data| data.len() as u64);
        if call.header.opcode == Opcode::Read {
            return at.reply_read(export, got as usize, self.request.len as u32);
        }
        let end = (got < self.request.len).then_some(self.end);
        at.count_moved(false, export, method, got as usize);
        if let Some(place) = call.batch {
            // What it reads inline stays where it is until all of the batch has ended.
            let value = end.unwrap_or(BatchResult::NOT_ENDED);
            return at.end_part(place, BatchResult { status: Status::OK, count: got as u32, value });
        }
        let body = self.read_reply(got);
        let account = self.gaps.account.as_ref().map(|account| account.bytes());
        let Some(data) = data else {
            let payload: &[u8] = account.as_ref().map_or(&[], |bytes| bytes);
            let answer = Answer { body: &body, payload, keep: Keep::Never, ..Answer::default() };
            return at.reply(answer);
        };
        let room = at.reply_payload_max().saturating_sub(data.len());
        if let Some(account) = account.filter(|account| account.len() <= room) {
            let payload = [&data.to_vec(), &account[..]].concat();
            return at.reply(Answer { body: &body, payload: &payload, ..Answer::default() });
        }
        at.reply_span(&body, data)
    }

    /// What was read inline, without gaps. One walk finds also how much that is: a second would be as much work again.
    fn packed(&self) -> Span<'_> {
        let Some(memory) = self.data.memory.first() else { return Span::EMPTY };
        if self.end > OFFSET_MAX {
            return memory.span().slice(0, self.request.len as usize).unwrap_or(Span::EMPTY);
        }
        let mut walked = 0;
        let extents = self.request.layout.slice(0, self.request.len).inspect(|_| walked += 1);
        let data = pack(memory.span(), extents, self.end);
        work::add(walked / WALKED_IN_A_STEP);
        data
    }
}
