//! Lists: reads and writes of many extents of a file and many ranges of memory, in one request.
//!
//! ```text
//! inline          all of it ─▶ storage ⇄ a buffer, or the message itself ─▶ reply
//! mapped memory   all of it ─▶ storage ⇄ the client's memory ─▶ reply
//! RDMA, read      next chunk ─▶ mapped file, or buffer ◀─ storage ─▶ one RDMA write for each range ─▶ next chunk … ─▶ reply
//! RDMA, write     next chunk ─▶ buffer ◀─ one RDMA read for each range ─▶ storage ─▶ next chunk … ─▶ commit where asked ─▶ reply
//! ```
//!
//! What calls of storage a chunk takes is [`crate::worker::flight::plan`]'s. Contiguous transfers are [`super::transfer`]'s.
#![allow(clippy::cast_possible_truncation, reason = "lengths within one request, which are of 32 bits")]

mod calls;
mod fetch;
mod scattered;

use std::sync::Arc;

use dafs_proto::extent::{Extent, slice};
use dafs_proto::transport::{Access, HeapMemory, MemoryRef, OpToken, PostError, RemoteRange, SendSlot, Span};
use dafs_proto::wire::{
    HEAD_SIZE_MAX, HEADER_SIZE, ListError, ListReadReply, ListRequest, Lists, Method, Opcode, Stability,
    Status, decode_lists, lists_size,
};
use smallvec::SmallVec;

use super::Worker;
use super::context::{Context, Fate};
use crate::storage::{FsOp, FsResult, NodeId, Submitted};
use crate::worker::buffers::BUFFER_SIZES;
use crate::worker::flight::answer::{Answer, Payload, Problem};
use crate::worker::flight::list::{List, Place, Segment, Step, pack};
use crate::worker::flight::plan::join;
use crate::worker::flight::transfer::Direction;
use crate::worker::flight::{Call, State};

/// Bytes of a list from which larger chunks cost less than more of them bring.
const LONG_LEN: u64 = 4 * BUFFER_SIZES[2] as u64;

/// What a step led to.
enum Progress {
    /// Go on with the next.
    Continue,
    /// Something else has to happen first.
    Wait,
    /// It ends; an error counts where nothing was written before it.
    End(Result<(), Status>),
}

impl Worker {
    /// Reads and writes of lists.
    pub(crate) fn list(&mut self, call: &Call, body: &[u8], payload: Payload<'_>) -> Result<(), Problem> {
        let request = ListRequest::decode(body)?;
        let open = self.handle(call)?;
        let direction =
            if call.header.opcode == Opcode::ReadList { Direction::Read } else { Direction::Write };
        if !(if direction == Direction::Read { open.readable } else { open.writable }) {
            return Err(Status::BAD_HANDLE.into());
        }
        let node = open.node;
        let inline_len = match (direction, request.method) {
            (Direction::Write, Method::Inline) => request.len,
            _ => 0,
        };
        let limit = match (direction, request.method) {
            (Direction::Read, Method::Inline) => self.reply_payload_max(call) as u32,
            _ => self.shared.settings.transfer_size_max,
        };
        let mut bytes = self.payload(call, payload);
        let lists = match decode_lists(&bytes, &request, inline_len) {
            Ok(_) if request.len > limit => Err(ListError::TooLong { len: request.len, limit }),
            other => other,
        };
        let lists = match lists {
            Ok(lists) => lists,
            Err(error) => {
                tracing::debug!(%error, "list refused");
                let payload = error.to_string();
                self.reply(
                    call,
                    Status::INVALID,
                    Answer { payload: payload.as_bytes(), ..Answer::default() },
                );
                return Ok(());
            }
        };
        let mut list = List::new(direction, node, lists, request.stability);
        if inline_len > 0 {
            let at = lists_size(list.extents.len(), 0);
            return self.write_list_inline(call, list, &mut bytes[at..]);
        }
        if list.place == Place::Inline {
            return self.read_list_inline(call, list);
        }
        self.map_list(call, &mut list)?;
        self.begin_list(call, list);
        Ok(())
    }

    /// A contiguous read or write of several ranges of memory.
    pub(crate) fn begin_scattered(
        &mut self,
        call: &Call,
        (direction, node): (Direction, NodeId),
        extent: Extent,
        ranges: Vec<RemoteRange>,
        stability: Stability,
    ) -> Result<(), Problem> {
        let lists = Lists { extents: vec![extent], segments: Vec::new() };
        let mut list = List::new(direction, node, lists, stability);
        (list.ranges, list.place) = (join(ranges.into_iter()), Place::Buffers);
        self.map_list(call, &mut list)?;
        self.begin_list(call, list);
        Ok(())
    }

    /// A list of a batch, whose data goes to or comes from the client's memory, or for an inline one `memory`.
    pub(crate) fn begin_listed(
        &mut self,
        call: &Call,
        (direction, node): (Direction, NodeId),
        lists: Lists,
        stability: Stability,
        memory: Option<MemoryRef>,
    ) -> Result<(), Problem> {
        let mut list = List::new(direction, node, lists, stability);
        if let Some(memory) = memory {
            list.set_memory(memory);
            self.begin_list(call, list);
            return Ok(());
        }
        // Without a byte to move there are no ranges either.
        list.place = Place::Buffers;
        self.map_list(call, &mut list)?;
        self.begin_list(call, list);
        Ok(())
    }

    /// Uses the client's memory itself, where all of it is mapped.
    fn map_list(&mut self, call: &Call, list: &mut List) -> Result<(), Problem> {
        let access = match list.direction {
            Direction::Read => Access::REMOTE_WRITE,
            Direction::Write | Direction::Append => Access::REMOTE_READ,
        };
        let mut memory = SmallVec::new();
        let mut segments = SmallVec::with_capacity(list.ranges.len());
        // Ranges of one region are looked up together: all that lies between two of them is the region's as well.
        for ranges in list.ranges.chunk_by(|one, next| one.key == next.key) {
            let cover = covering(ranges).ok_or(Status::REMOTE_ACCESS)?;
            let Some(mapped) = self.remote_memory(call, &cover, access)? else { return Ok(()) };
            segments.extend(ranges.iter().map(|range| Segment {
                memory: memory.len(),
                offset: (range.offset - cover.offset) as usize,
                len: range.len as usize,
            }));
            memory.push(mapped);
        }
        (list.memory, list.segments, list.place) = (memory, segments, Place::Mapped);
        Ok(())
    }

    /// Straight into the outgoing message where storage has the data at hand; else by way of a buffer.
    fn read_list_inline(&mut self, call: &Call, mut list: List) -> Result<(), Problem> {
        let memory = HeapMemory::allocate(list.len as usize).ok_or(Status::NO_MEMORY)?;
        let memory = MemoryRef::new(Arc::new(memory)).slice(0, list.len as usize);
        list.set_memory(memory.ok_or(Status::NO_MEMORY)?);
        self.begin_list(call, list);
        Ok(())
    }

    fn write_list_inline(&mut self, call: &Call, mut list: List, data: &mut [u8]) -> Result<(), Problem> {
        let memory = MemoryRef::new(Arc::new(HeapMemory::allocate(data.len()).ok_or(Status::NO_MEMORY)?));
        let memory = memory.slice(0, data.len()).ok_or(Status::NO_MEMORY)?;
        memory.span().write_from(0, data);
        list.set_memory(memory);
        self.begin_list(call, list);
        Ok(())
    }

    fn begin_list(&mut self, call: &Call, mut list: List) {
        list.verifier = self.target(list.node).verifier;
        let token = self.park(*call, State::List(Box::new(list)));
        self.advance_list(token);
    }

    /// Goes on with a list until it has to wait or ends.
    pub(super) fn advance_list(&mut self, token: OpToken) {
        if let Some(index) = self.operation_index(token) {
            self.work_on(index, List::advance);
        }
    }

    /// There is a buffer again.
    pub(crate) fn resume_list_buffer(&mut self, index: usize, expired: bool) {
        self.work_on(index, |list: &mut List, at| {
            list.step = Step::Begin;
            if expired { list.end(at, Err(Status::TIMED_OUT)) } else { list.advance(at) }
        });
    }

    /// Answers with data that lies in memory of the server, behind `before`.
    pub(super) fn reply_span(&mut self, call: &Call, body: &[u8], before: &[u8], data: Span<'_>) {
        let len = before.len() + data.len();
        if let Some(connection) = self.connection(call.connection)
            && connection.sends_at_once()
            && let Ok(slot) = connection.endpoint.reserve(len)
            && let Some(room) = connection.endpoint.slot_payload(&slot).slice(0, len)
        {
            room.write_from(0, before);
            if let Some(room) = room.slice(before.len(), data.len()) {
                room.copy_from(data);
            }
            return self.send_slot(call, slot, body, len);
        }
        let payload = [before, &data.to_vec()].concat();
        self.reply(call, Status::OK, Answer { body, payload: &payload, ..Answer::default() });
    }

    /// Answers with the payload that a slot holds.
    pub(super) fn send_slot(&mut self, call: &Call, slot: SendSlot, body: &[u8], payload_len: usize) {
        let mut head = [0; HEAD_SIZE_MAX];
        let len = self.seal(call, Status::OK, Self::no_handle(), body, payload_len, &mut head);
        let Some(connection) = self.connection(call.connection) else { return };
        connection.dirty = true;
        // A closed connection shows at the next receive.
        if let Err(PostError::Full) = connection.endpoint.send(slot, &head[..len], payload_len) {
            self.close(call.connection, &"the provider gave up a reply");
        }
    }
}

impl List {
    /// Goes on until it has to wait or ends.
    fn advance(&mut self, at: &mut Context<'_>) -> Fate {
        loop {
            let has_more = match self.step {
                Step::Begin => self.done < self.len,
                step => matches!(step, Step::Storage | Step::Post),
            };
            if at.worker.turns.is_over() && has_more {
                // It goes on in its connection's next turn.
                at.worker.yield_transfer(at.call.connection, at.token);
                return Fate::Waits;
            }
            let progress = match self.step {
                Step::Begin => self.begin_chunk(at),
                Step::Storage => self.move_parts(at),
                Step::Post => self.post_ranges(at),
                Step::Buffer
                | Step::Room
                | Step::Submitted
                | Step::Fetch
                | Step::Ending(_)
                | Step::Commit => Progress::Wait,
            };
            match progress {
                Progress::Continue => {}
                Progress::Wait => return Fate::Waits,
                Progress::End(result) => return self.end_fetched(at, result),
            }
        }
    }

    fn begin_chunk(&mut self, at: &mut Context<'_>) -> Progress {
        let largest = at.worker.buffers.largest();
        let Some(connection) = at.connection() else { return Progress::Wait };
        let capabilities = connection.endpoint.capabilities();
        let is_copy = capabilities.remote_mapped;
        let size_max = largest.min(capabilities.rdma_size_max as usize);
        if self.done == self.len {
            return Progress::End(Ok(()));
        }
        if self.place != Place::Buffers {
            self.chunk = 0..self.len;
            self.make_parts();
            self.step = Step::Storage;
            return Progress::Continue;
        }
        if self.take_ahead() || (self.direction == Direction::Read && self.map_chunk(at, size_max)) {
            return Progress::Continue;
        }
        // Where RDMA is a copy by this CPU, a chunk that stays in its cache is written out of there. Elsewhere it takes several chunks for
        // storage and RDMA to go on beside each other.
        let chunk_max = BUFFER_SIZES[if is_copy || self.len <= LONG_LEN { 1 } else { 2 }];
        self.chunk = self.done..self.len.min(self.done + chunk_max.min(size_max) as u64);
        let len = (self.chunk.end - self.chunk.start) as usize;
        let owner = at.owner();
        let granted = self.granted.take();
        let buffer = granted.or_else(|| at.worker.buffers.acquire(owner, len));
        let Some(buffer) = buffer else {
            self.step = Step::Buffer;
            at.worker.buffers.wait(owner, len);
            return Progress::Wait;
        };
        // A smaller one than wanted chops the chunk.
        let len = len.min(buffer.size());
        self.chunk.end = self.chunk.start + len as u64;
        if let Some(memory) = buffer.memory().slice(0, len) {
            self.set_memory(memory);
        }
        self.buffers.push(buffer);
        self.make_parts();
        if self.direction == Direction::Read {
            self.step = Step::Storage;
        } else {
            self.make_posts();
        }
        Progress::Continue
    }

    /// Takes the chunk from a mapped window of the file, where it is contiguous there and the window is at hand.
    fn map_chunk(&mut self, at: &mut Context<'_>, size_max: usize) -> bool {
        if !at.worker.trusts_mapped_files(at.call.session) {
            return false;
        }
        self.chunk = self.done..self.len.min(self.done + size_max as u64);
        let len = (self.chunk.end - self.chunk.start) as usize;
        let mut extents = slice(&self.extents, self.chunk.start, len as u64);
        let (Some(extent), None) = (extents.next(), extents.next()) else { return false };
        drop(extents);
        let window = at.worker.storage.map(self.node, extent.offset, len, 1).pop();
        let Some(window) = window.filter(|window| !window.is_empty()) else { return false };
        if window.len() < len {
            self.end = self.end.min(extent.offset + window.len() as u64);
        }
        self.make_posts();
        self.memory = SmallVec::from_iter([window]);
        true
    }

    /// All is moved, or something failed.
    fn end(&mut self, at: &mut Context<'_>, mut result: Result<(), Status>) -> Fate {
        if result.is_ok() && self.done == 0 && self.len > 0 && self.direction != Direction::Read {
            // Storage had no room for all, said so by a count alone, and the first place is missing: asked again it says why.
            if let Some(buffers) = self.write_again() {
                at.worker.release_buffers(buffers);
                return self.advance(at);
            }
            result = Err(Status::NO_SPACE);
        }
        match (result, self.direction) {
            (Err(status), Direction::Read) => at.refuse(status),
            (Err(status), _) if self.done == 0 => at.refuse(status),
            (_, Direction::Read) => self.reply_read(at),
            (_, _) if self.stability == Stability::Unstable => self.reply_written(at),
            (_, _) => {
                self.step = Step::Commit;
                let offset = self.extents.iter().map(|extent| extent.offset).min().unwrap_or(0);
                let end = self.extents.iter().filter_map(Extent::end).max().unwrap_or(0);
                let Ok(identity) = at.identity() else { return at.refuse(Status::BAD_HANDLE) };
                let (node, stability) = (self.node, self.stability);
                let op = FsOp::Commit { node, offset, len: end.saturating_sub(offset), stability };
                match at.worker.storage.submit(at.token, &identity, op) {
                    Submitted::Done(result) => self.committed(at, &result),
                    Submitted::Pending => Fate::Waits,
                }
            }
        }
    }

    fn committed(&self, at: &mut Context<'_>, result: &FsResult) -> Fate {
        match result {
            Ok(_) => self.reply_written(at),
            Err(status) => at.refuse(*status),
        }
    }

    fn reply_written(&self, at: &mut Context<'_>) -> Fate {
        let method = if self.place == Place::Inline { Method::Inline } else { Method::Direct };
        // Plain writes say where they went.
        let offset = match (at.call.header.opcode, self.extents.first()) {
            (Opcode::Write, Some(extent)) => extent.offset,
            _ => 0,
        };
        let export = usize::from(self.node.export.0);
        at.worker.count_written(at.call.session, export, method, self.done as usize);
        at.worker.reply_written(&at.call, self.verifier, offset, self.done as u32, self.stability);
        Fate::Answered
    }

    fn reply_read(&self, at: &mut Context<'_>) -> Fate {
        let (export, got, call) = (usize::from(self.node.export.0), self.got(), at.call);
        if call.header.opcode == Opcode::Read {
            at.worker.reply_read(&call, export, got as usize, self.len as u32);
            return Fate::Answered;
        }
        let end = (got < self.len).then_some(self.end);
        let mut body = [0; ListReadReply::HEAD_SIZE - HEADER_SIZE];
        ListReadReply { count: got as u32, end }.encode(&mut body);
        let method = if self.place == Place::Inline { Method::Inline } else { Method::Direct };
        at.worker.count_read(call.session, export, method, got as usize);
        // What a batch reads inline stays where it is until all of the batch has ended.
        if method == Method::Direct || call.batch.is_some() {
            at.worker.reply(&call, Status::OK, Answer { body: &body, ..Answer::default() });
            return Fate::Answered;
        }
        let memory = self.memory.first();
        let data = memory.map_or(Span::EMPTY, |memory| pack(memory.span(), &self.extents, self.end));
        at.worker.reply_span(&call, &body, &[], data);
        Fate::Answered
    }
}

/// The smallest range that holds some of one region; `None` where an end lies beyond all memory.
fn covering(ranges: &[RemoteRange]) -> Option<RemoteRange> {
    let (mut from, mut to) = (u64::MAX, 0);
    for range in ranges {
        from = from.min(range.offset);
        to = to.max(range.offset.checked_add(range.len)?);
    }
    Some(RemoteRange { key: ranges.first()?.key, offset: from, len: to.checked_sub(from)? })
}
