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
use crate::storage::{FsOp, FsResult, NodeId, Submitted};
use crate::worker::buffers::{BUFFER_SIZES, Owner};
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
        loop {
            let Some(index) = self.operation_index(token) else { return };
            let over = self.turns.is_over();
            let Some(list) = self.list_at(index) else { return };
            let has_more = match list.step {
                Step::Begin => list.done < list.len,
                step => matches!(step, Step::Storage | Step::Post),
            };
            if over && has_more {
                // It goes on in its connection's next turn.
                let key = self.operations[index].call.connection;
                return self.yield_transfer(key, token);
            }
            let progress = match list.step {
                Step::Begin => self.begin_chunk(index, token),
                Step::Storage => self.move_parts(index, token),
                Step::Post => self.post_ranges(index, token),
                Step::Buffer
                | Step::Room
                | Step::Submitted
                | Step::Fetch
                | Step::Ending(_)
                | Step::Commit => Progress::Wait,
            };
            match progress {
                Progress::Continue => {}
                Progress::Wait => return,
                Progress::End(result) => return self.end_fetched_list(index, token, result),
            }
        }
    }

    fn list_at(&mut self, index: usize) -> Option<&mut List> {
        match self.operations.get_mut(index).map(|operation| &mut operation.state) {
            Some(State::List(list)) => Some(list),
            _ => None,
        }
    }

    fn begin_chunk(&mut self, index: usize, token: OpToken) -> Progress {
        let call = self.operations[index].call;
        let Some(connection) = self.connections.get(call.connection.index) else { return Progress::Wait };
        let capabilities = connection.endpoint.capabilities();
        let is_copy = capabilities.remote_mapped;
        let size_max = self.buffers.largest().min(capabilities.rdma_size_max as usize);
        let Some(list) = self.list_at(index) else { return Progress::Wait };
        if list.done == list.len {
            return Progress::End(Ok(()));
        }
        if list.place != Place::Buffers {
            list.chunk = 0..list.len;
            list.make_parts();
            list.step = Step::Storage;
            return Progress::Continue;
        }
        if list.take_ahead() {
            return Progress::Continue;
        }
        if list.direction == Direction::Read && self.map_chunk(index, size_max) {
            return Progress::Continue;
        }
        let Some(list) = self.list_at(index) else { return Progress::Wait };
        // Where RDMA is a copy by this CPU, a chunk that stays in its cache is written out of there. Elsewhere it takes several chunks for
        // storage and RDMA to go on beside each other.
        let chunk_max = BUFFER_SIZES[if is_copy || list.len <= LONG_LEN { 1 } else { 2 }];
        list.chunk = list.done..list.len.min(list.done + chunk_max.min(size_max) as u64);
        let len = (list.chunk.end - list.chunk.start) as usize;
        let owner = Owner { session: call.session, operation: token };
        let granted = self.list_at(index).and_then(|list| list.granted.take());
        let buffer = granted.or_else(|| self.buffers.acquire(owner, len));
        let Some(list) = self.list_at(index) else { return Progress::Wait };
        let Some(buffer) = buffer else {
            list.step = Step::Buffer;
            self.buffers.wait(owner, len);
            return Progress::Wait;
        };
        // A smaller one than wanted chops the chunk.
        let len = len.min(buffer.size());
        list.chunk.end = list.chunk.start + len as u64;
        if let Some(memory) = buffer.memory().slice(0, len) {
            list.set_memory(memory);
        }
        list.buffers.push(buffer);
        list.make_parts();
        if list.direction == Direction::Read {
            list.step = Step::Storage;
        } else {
            list.make_posts();
        }
        Progress::Continue
    }

    /// Takes the chunk from a mapped window of the file, where it is contiguous there and the window is at hand.
    fn map_chunk(&mut self, index: usize, size_max: usize) -> bool {
        if !self.trusts_mapped_files(self.operations[index].call.session) {
            return false;
        }
        let Some(list) = self.list_at(index) else { return false };
        let node = list.node;
        list.chunk = list.done..list.len.min(list.done + size_max as u64);
        let len = (list.chunk.end - list.chunk.start) as usize;
        let mut extents = slice(&list.extents, list.chunk.start, len as u64);
        let (Some(extent), None) = (extents.next(), extents.next()) else { return false };
        drop(extents);
        let Some(window) =
            self.storage.map(node, extent.offset, len, 1).pop().filter(|window| !window.is_empty())
        else {
            return false;
        };
        let Some(list) = self.list_at(index) else { return false };
        if window.len() < len {
            list.end = list.end.min(extent.offset + window.len() as u64);
        }
        list.make_posts();
        list.memory = SmallVec::from_iter([window]);
        true
    }

    /// There is a buffer again.
    pub(crate) fn resume_list_buffer(&mut self, index: usize, expired: bool) {
        let token = self.token_of(index);
        let Some(list) = self.list_at(index) else { return };
        list.step = Step::Begin;
        if expired {
            return self.end_list(index, token, Err(Status::TIMED_OUT));
        }
        self.advance_list(token);
    }

    /// All is moved, or something failed.
    fn end_list(&mut self, index: usize, token: OpToken, result: Result<(), Status>) {
        let call = self.operations[index].call;
        let Some(list) = self.list_at(index) else { return };
        let mut result = result;
        if result.is_ok() && list.done == 0 && list.len > 0 && list.direction != Direction::Read {
            // Storage had no room for all, said so by a count alone, and the first place is missing: asked again it says why.
            if let Some(buffers) = list.write_again() {
                self.release_buffers(buffers);
                return self.advance_list(token);
            }
            result = Err(Status::NO_SPACE);
        }
        let Some(list) = self.list_at(index) else { return };
        let (node, stability) = (list.node, list.stability);
        match (result, list.direction) {
            (Err(status), Direction::Read) => self.reply_status(&call, status),
            (Err(status), _) if list.done == 0 => self.reply_status(&call, status),
            (_, Direction::Read) => self.reply_list_read(index),
            (_, _) if stability == Stability::Unstable => self.reply_list_written(index),
            (_, _) => {
                list.step = Step::Commit;
                let offset = list.extents.iter().map(|extent| extent.offset).min().unwrap_or(0);
                let end = list.extents.iter().filter_map(Extent::end).max().unwrap_or(0);
                let Ok(identity) = self.handle(&call).map(|open| open.rights.identity.clone()) else {
                    self.reply_status(&call, Status::BAD_HANDLE);
                    return self.retire(index);
                };
                let op = FsOp::Commit { node, offset, len: end.saturating_sub(offset), stability };
                if let Submitted::Done(result) = self.storage.submit(token, &identity, op) {
                    self.list_committed(index, result);
                }
                return;
            }
        }
        self.retire(index);
    }

    fn list_committed(&mut self, index: usize, result: FsResult) {
        let call = self.operations[index].call;
        match result {
            Ok(_) => self.reply_list_written(index),
            Err(status) => self.reply_status(&call, status),
        }
        self.retire(index);
    }

    fn reply_list_written(&mut self, index: usize) {
        let call = self.operations[index].call;
        let Some(list) = self.list_at(index) else { return };
        let (node, stability, count, verifier) = (list.node, list.stability, list.done, list.verifier);
        let method = if list.place == Place::Inline { Method::Inline } else { Method::Direct };
        // Plain writes say where they went.
        let offset = match (call.header.opcode, list.extents.first()) {
            (Opcode::Write, Some(extent)) => extent.offset,
            _ => 0,
        };
        self.count_written(call.session, usize::from(node.export.0), method, count as usize);
        self.reply_written(&call, verifier, offset, count as u32, stability);
    }

    fn reply_list_read(&mut self, index: usize) {
        let call = self.operations[index].call;
        let Some(list) = self.list_at(index) else { return };
        let (export, len, got) = (usize::from(list.node.export.0), list.len, list.got());
        if call.header.opcode == Opcode::Read {
            return self.reply_read(&call, export, got as usize, len as u32);
        }
        let end = (got < len).then_some(list.end);
        let mut body = [0; ListReadReply::HEAD_SIZE - HEADER_SIZE];
        ListReadReply { count: got as u32, end }.encode(&mut body);
        let method = if list.place == Place::Inline { Method::Inline } else { Method::Direct };
        // What a batch reads inline stays where it is until all of the batch has ended.
        if method == Method::Direct || call.batch.is_some() {
            self.count_read(call.session, export, method, got as usize);
            return self.reply(&call, Status::OK, Answer { body: &body, ..Answer::default() });
        }
        let memory = list.memory.first().cloned();
        let data = memory.as_ref().map_or(Span::EMPTY, |memory| pack(memory.span(), &list.extents, list.end));
        self.count_read(call.session, export, method, got as usize);
        self.reply_span(&call, &body, &[], data);
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

/// The smallest range that holds some of one region; `None` where an end lies beyond all memory.
fn covering(ranges: &[RemoteRange]) -> Option<RemoteRange> {
    let (mut from, mut to) = (u64::MAX, 0);
    for range in ranges {
        from = from.min(range.offset);
        to = to.max(range.offset.checked_add(range.len)?);
    }
    Some(RemoteRange { key: ranges.first()?.key, offset: from, len: to.checked_sub(from)? })
}
