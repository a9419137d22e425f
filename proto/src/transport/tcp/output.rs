//! What leaves: one queue in order, gathered into few system calls.

mod leaving;

use std::collections::VecDeque;
use std::io;
use std::os::fd::AsFd;

use slab::Slab;
use smallvec::SmallVec;

use self::leaving::PAGE_SIZE;
use super::super::util::check_message;
use super::super::{
    HEAD_SIZE_MAX, LocalSegments, MemoryRef, OpToken, PeerFault, PostError, RemoteRange, SendSlot, Span,
    TransportError, part_of,
};
use super::READ_LISTS_MAX;
use super::frame::{FaultReason, Frame, FrontBytes, HEADER_SIZE, HeaderBytes, encode_ranges};
use super::link::Link;
use super::memory::{Buffer, BufferCache, BufferPool};
use super::ranges::Ranges;
use super::sys::{self, Gather};

/// In front of a slot's payload: room for frame header and head, so that a message is one piece of memory.
const HEADROOM: usize = HEADER_SIZE + HEAD_SIZE_MAX;

/// Data in one READ_RESPONSE, bytes. Other messages pass between two.
const RESPONSE_FRAME_MAX: u64 = 256 << 10;

/// Buffers of reserved and queued messages, bytes; more where four messages of the largest size need it.
const MESSAGE_BYTES_MAX: usize = 2 << 20;

/// Messages that can always be reserved at once: [`super::super::Endpoint::reserve`].
const MESSAGES_MIN: usize = 4;

/// What one flush sends at most before it lets others work, bytes.
const FLUSH_MAX: usize = 4 << 20;

/// Queue entries that an idle connection keeps room for.
const IDLE_QUEUE_MAX: usize = 32;

/// The queue of outgoing frames, and the slots that messages are built in.
pub(super) struct Output {
    queue: VecDeque<Item>,
    // Invariant: less than the front item's length; 0 when the queue is empty.
    front_sent: usize,
    slots: Slab<Buffer>,
    // The writes that `queue` names.
    writes: Slab<Write>,
    cache: BufferCache,
    // Invariant: the sizes of the buffers in `slots` and `queue`; at most `message_bytes_max`.
    message_bytes: usize,
    message_bytes_max: usize,
    // Invariant: the lengths of the messages in `queue`, what has left of the first included.
    queued_bytes: usize,
    // Invariant: slots and queued messages; at most `messages_max`.
    messages: usize,
    messages_max: usize,
    payload_max: usize,
    // Reads of the peer of which a part is not in `queue` yet. Invariant: at most `responses_max`.
    responses: VecDeque<Response>,
    responses_max: usize,
    // Its place in `queue` is an `Item::Response`.
    response_frame: Option<ResponseFrame>,
    // The socket took less than it was offered; it becomes writable when there is room.
    blocked: bool,
    broken: bool,
    turn_max: usize,
}

enum Item {
    /// A message, or the end of one whose beginning has left.
    Message {
        buffer: Buffer,
        start: usize,
        len: usize,
        is_tail: bool,
        // It leaves only if no write before it faults, and completes.
        whole: Option<OpToken>,
    },
    Write(usize),
    /// A read: header, and ranges where there are several.
    Read {
        id: u32,
        front: FrontBytes,
    },
    /// The response frame.
    Response,
}

struct Write {
    token: OpToken,
    // What is before the data.
    front: FrontBytes,
    segments: LocalSegments,
    len: usize,
    may_fault: bool,
    // Some of the memory is gone: the rest is sent page by page.
    careful: bool,
    // Zeros were sent in place of some of it.
    faulted: bool,
}

impl Write {
    /// Bytes of the frame.
    fn frame_len(&self) -> usize {
        self.front.len() + self.len
    }

    /// Nothing of its memory is gone.
    fn is_there(&self) -> bool {
        self.segments.iter().all(MemoryRef::is_there)
    }
}

struct Response {
    id: u32,
    // What is not in a frame yet, and where that begins, counted from the start of the read.
    rest: Ranges,
    read_offset: u64,
}

struct ResponseFrame {
    header: HeaderBytes,
    ranges: SmallVec<[RemoteRange; 1]>,
    len: usize,
    // Of the read of which it is the end, which `responses` no longer has: whether that was of a list.
    ends_list: Option<bool>,
}

/// How far a gather list goes.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Reach {
    Everything,
    /// Only what lies before the first memory that may fault.
    BeforeMayFault,
}

impl Output {
    pub(super) fn new(send_payload_max: u32, send_depth: u16, responses_max: u16) -> Self {
        let payload_max = send_payload_max as usize;
        Self {
            queue: VecDeque::new(),
            front_sent: 0,
            slots: Slab::new(),
            writes: Slab::new(),
            cache: BufferCache::new(),
            message_bytes: 0,
            queued_bytes: 0,
            message_bytes_max: MESSAGE_BYTES_MAX
                .max(MESSAGES_MIN * BufferPool::size_for(HEADROOM + payload_max)),
            messages: 0,
            messages_max: usize::from(send_depth).max(MESSAGES_MIN),
            payload_max,
            responses: VecDeque::new(),
            responses_max: usize::from(responses_max),
            response_frame: None,
            blocked: false,
            broken: false,
            turn_max: usize::MAX,
        }
    }

    /// One flush sends no more than this.
    pub(super) fn set_turn(&mut self, bytes_max: usize) {
        self.turn_max = bytes_max.max(PAGE_SIZE);
    }

    pub(super) fn is_empty(&self) -> bool {
        self.queue.is_empty()
    }

    #[cfg(test)]
    pub(super) fn held_bytes(&self) -> usize {
        self.message_bytes + self.cache.bytes()
    }

    /// There is output that no writable event will come for.
    pub(super) fn can_go_on(&self) -> bool {
        !self.queue.is_empty() && !self.blocked
    }

    /// Bytes of messages that wait to leave.
    pub(super) fn unsent_message_bytes(&self) -> usize {
        // What has left of an RDMA write is no part of `queued_bytes`.
        let is_sent = self.front_sent > 0 && matches!(self.queue.front(), Some(Item::Message { .. }));
        self.queued_bytes - if is_sent { self.front_sent } else { 0 }
    }

    /// The peer does not receive any more: nothing can be sent.
    pub(super) fn is_broken(&self) -> bool {
        self.broken
    }

    pub(super) fn reserve(&mut self, link: &Link, payload_len_max: usize) -> Result<SendSlot, PostError> {
        if payload_len_max > self.payload_max {
            return Err(PostError::Invalid("the payload exceeds send_payload_max"));
        }
        let len = HEADROOM + payload_len_max;
        let size = BufferPool::size_for(len);
        if self.messages >= self.messages_max || self.message_bytes + size > self.message_bytes_max {
            return Err(PostError::Full);
        }
        let buffer = self.cache.take(&link.shared.pool, len).ok_or(PostError::Full)?;
        self.messages += 1;
        self.message_bytes += size;
        let capacity = (size - HEADROOM).min(self.payload_max);
        let id = self.slots.insert(buffer);
        // Both are bounded: slots by `messages_max`, payloads by the provider's limit.
        Ok(SendSlot {
            id: u32::try_from(id).unwrap_or(u32::MAX),
            payload_capacity: u32::try_from(capacity).unwrap_or(u32::MAX),
        })
    }

    pub(super) fn slot_payload(&self, slot: &SendSlot) -> Span<'_> {
        let buffer = self.slots.get(slot.id as usize);
        buffer
            .and_then(|buffer| buffer.span().slice(HEADROOM, slot.payload_capacity as usize))
            .unwrap_or(Span::EMPTY)
    }

    pub(super) fn send(
        &mut self,
        link: &Link,
        slot: SendSlot,
        head: &[u8],
        payload_len: usize,
        whole: Option<OpToken>,
    ) -> Result<(), PostError> {
        let Some(buffer) = self.slots.try_remove(slot.id as usize) else {
            return Err(PostError::Invalid("no such slot is reserved"));
        };
        if let Err(invalid) = check_message(head, payload_len, slot.payload_capacity) {
            self.free_message(link, buffer);
            return Err(invalid);
        }
        let start = HEADROOM - head.len() - HEADER_SIZE;
        buffer.span().write_from(start, &message_header(head, payload_len));
        buffer.span().write_from(start + HEADER_SIZE, head);
        let len = HEADER_SIZE + head.len() + payload_len;
        self.queued_bytes += len;
        self.queue.push_back(Item::Message { buffer, start, len, is_tail: false, whole });
        Ok(())
    }

    /// Whether [`Output::send_in_place`] can take a message now: nothing is queued before it, and what the kernel leaves of it can be kept.
    pub(super) fn has_room_for_gathered(&self, payload_len: usize) -> Result<(), PostError> {
        if payload_len > self.payload_max {
            return Err(PostError::Invalid("the payload exceeds send_payload_max"));
        }
        let size = BufferPool::size_for(HEADROOM + payload_len);
        if !self.queue.is_empty()
            || self.messages >= self.messages_max
            || self.message_bytes + size > self.message_bytes_max
        {
            return Err(PostError::Full);
        }
        Ok(())
    }

    /// Sends a message from where its payload is, and keeps a copy of what the kernel does not take. `false` where there is no memory for
    /// that: a message cannot be taken back once its beginning has left, so the stream ends here.
    pub(super) fn send_in_place(
        &mut self,
        link: &mut Link,
        head: &[u8],
        payload: &[Span<'_>],
    ) -> Result<bool, PostError> {
        let payload_len = payload.iter().map(Span::len).sum();
        self.has_room_for_gathered(payload_len)?;
        check_message(head, payload_len, u32::MAX)?;
        let mut front = [0; HEADROOM];
        let front_len = HEADER_SIZE + head.len();
        front[..HEADER_SIZE].copy_from_slice(&message_header(head, payload_len));
        front[HEADER_SIZE..front_len].copy_from_slice(head);
        let front = &front[..front_len];
        let total = front_len + payload_len;
        let sent = self.send_at_once(link, front, payload)?;
        Ok(sent == total || self.keep_tail(link, front, payload, sent, total - sent))
    }

    /// How much of front and payload the kernel takes now.
    fn send_at_once(
        &mut self,
        link: &mut Link,
        front: &[u8],
        payload: &[Span<'_>],
    ) -> Result<usize, PostError> {
        let mut gather = Gather::new();
        gather.push_bytes_after(&mut 0, front);
        payload.iter().for_each(|part| gather.vectors().push(*part));
        link.counters.sends += 1;
        match sys::send(link.socket.as_fd(), &gather, false) {
            Ok(sent) => {
                link.counters.bytes_sent += sent as u64;
                // Less than offered: the socket is full.
                self.blocked = sent < gather.total();
                Ok(sent)
            }
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => {
                self.blocked = true;
                Ok(0)
            }
            Err(error)
                if matches!(error.kind(), io::ErrorKind::BrokenPipe | io::ErrorKind::ConnectionReset) =>
            {
                self.fail(link);
                Err(PostError::Closed)
            }
            // Whatever else is the matter, such as memory that is gone: the copy, or the flush of it, meets it again.
            Err(_) => Ok(0),
        }
    }

    #[cold]
    fn keep_tail(
        &mut self,
        link: &Link,
        front: &[u8],
        payload: &[Span<'_>],
        sent: usize,
        len: usize,
    ) -> bool {
        let Some(buffer) = self.cache.take(&link.shared.pool, len) else { return false };
        let mut front = front.to_vec();
        let message = std::iter::once(Span::from_mut(&mut front)).chain(payload.iter().copied());
        buffer.span().gather(part_of(message, sent, len));
        self.messages += 1;
        self.message_bytes += buffer.size();
        self.queued_bytes += len;
        self.queue.push_back(Item::Message { buffer, start: 0, len, is_tail: true, whole: None });
        true
    }

    pub(super) fn cancel(&mut self, link: &Link, slot: &SendSlot) {
        if let Some(buffer) = self.slots.try_remove(slot.id as usize) {
            self.free_message(link, buffer);
        }
    }

    /// Queues an RDMA write whose segments have the total of the ranges.
    pub(super) fn write(
        &mut self,
        token: OpToken,
        segments: LocalSegments,
        remote: &[RemoteRange],
        immediate: Option<u32>,
    ) {
        let front = front(
            remote,
            |range| Frame::Write { range, immediate },
            |count, len| Frame::WriteList { count, len },
        );
        let may_fault = segments.iter().any(|segment| segment.memory().may_fault());
        let len = segments.iter().map(MemoryRef::len).sum();
        let write = self.writes.insert(Write {
            token,
            front,
            segments,
            len,
            may_fault,
            careful: false,
            faulted: false,
        });
        self.queue.push_back(Item::Write(write));
    }

    pub(super) fn read(&mut self, id: u32, remote: &[RemoteRange]) {
        let front = front(
            remote,
            |range| Frame::ReadRequest { id, range },
            |count, len| Frame::ReadList { id, count, len },
        );
        self.queue.push_back(Item::Read { id, front });
    }

    /// The peer cannot know of this read yet: not all of its request has left.
    pub(super) fn has_read(&self, id: u32) -> bool {
        self.queue.iter().any(|item| matches!(item, Item::Read { id: queued, .. } if *queued == id))
    }

    /// Queues the answer to the peer's read; its ranges have been checked.
    pub(super) fn respond(&mut self, id: u32, rest: Ranges) -> Result<(), PeerFault> {
        let ending = self.response_frame.as_ref().and_then(|frame| frame.ends_list);
        let lists = self.responses.iter().filter(|response| response.rest.is_list()).count()
            + usize::from(ending == Some(true));
        if rest.is_list() && lists >= READ_LISTS_MAX {
            let limit = READ_LISTS_MAX as u64;
            return Err(PeerFault::malformed("reads of lists outstanding", limit + 1, limit));
        }
        if self.responses.len() + usize::from(ending.is_some()) >= self.responses_max {
            let limit = self.responses_max as u64;
            return Err(PeerFault::malformed("reads outstanding", limit + 1, limit));
        }
        self.responses.push_back(Response { id, rest, read_offset: 0 });
        self.queue_response();
        Ok(())
    }

    /// Sends as much as the kernel takes. A peer that has stopped receiving is no error here: what it still had to
    /// say comes first, from the receiving side.
    pub(super) fn flush(&mut self, link: &mut Link) -> Result<(), TransportError> {
        let mut reach = Reach::Everything;
        let mut flushed = 0;
        self.blocked = false;
        let flush_max = FLUSH_MAX.min(self.turn_max);
        while !self.queue.is_empty() && flushed < flush_max {
            let front_write = match self.queue.front() {
                Some(Item::Write(key)) => Some(*key),
                _ => None,
            };
            if let Some(key) = front_write
                && self.writes[key].careful
            {
                match self.send_page(link, &self.writes[key]) {
                    Ok((sent, faulted)) => {
                        self.writes[key].faulted |= faulted;
                        flushed += sent;
                        self.advance(link, sent);
                    }
                    Err(error) => return self.on_send_error(link, error),
                }
                continue;
            }
            let (result, total, may_fault) = self.send_gathered(link, reach)?;
            reach = Reach::Everything;
            match result {
                Ok(sent) => {
                    flushed += sent;
                    self.advance(link, sent);
                    // Less than offered: the socket is full, unless the memory faulted.
                    if sent < total && !may_fault {
                        self.blocked = true;
                        return Ok(());
                    }
                }
                Err(error) if may_fault && error.raw_os_error() == Some(libc::EFAULT) => match front_write {
                    Some(key) if self.writes[key].may_fault => self.writes[key].careful = true,
                    _ => reach = Reach::BeforeMayFault,
                },
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                Err(error) => return self.on_send_error(link, error),
            }
        }
        Ok(())
    }

    /// Tells the peer why the connection ends, as far as the stream allows it now: never in the middle of a frame.
    pub(super) fn send_fault(&mut self, link: &Link, fault: &PeerFault) {
        let within_a_frame =
            self.front_sent > 0 || matches!(self.queue.front(), Some(Item::Message { is_tail: true, .. }));
        if within_a_frame || self.broken {
            return;
        }
        let header = Frame::Fault(FaultReason::new(fault)).encode();
        let mut gather = Gather::new();
        gather.push_bytes_after(&mut 0, &header);
        if let Err(error) = sys::send(link.socket.as_fd(), &gather, false) {
            tracing::trace!(%error, "FAULT not sent");
        }
    }

    /// Drops everything queued; RDMA writes complete as closed.
    pub(super) fn fail(&mut self, link: &mut Link) {
        self.broken = true;
        self.front_sent = 0;
        self.queued_bytes = 0;
        self.responses.clear();
        self.response_frame = None;
        while let Some(item) = self.queue.pop_front() {
            match item {
                Item::Message { buffer, whole, .. } => {
                    self.free_message(link, buffer);
                    whole.into_iter().for_each(|token| link.complete(token, Err(TransportError::Closed)));
                }
                Item::Write(key) => {
                    let write = self.writes.remove(key);
                    link.complete(write.token, Err(TransportError::Closed));
                }
                Item::Read { .. } | Item::Response => {}
            }
        }
        self.cache.clear(&link.shared.pool);
    }

    /// The connection goes idle: spare buffers go back.
    pub(super) fn trim(&mut self, link: &Link) {
        self.cache.trim(&link.shared.pool);
        if self.queue.is_empty() && self.queue.capacity() > IDLE_QUEUE_MAX {
            self.queue.shrink_to(IDLE_QUEUE_MAX);
            self.writes.shrink_to_fit();
            self.slots.shrink_to_fit();
        }
    }

    fn on_send_error(&mut self, link: &mut Link, error: io::Error) -> Result<(), TransportError> {
        match error.kind() {
            io::ErrorKind::WouldBlock => {
                self.blocked = true;
                Ok(())
            }
            io::ErrorKind::BrokenPipe | io::ErrorKind::ConnectionReset => {
                self.fail(link);
                Ok(())
            }
            _ => Err(TransportError::system("send to the peer", error)),
        }
    }

    /// Puts the next part of the oldest response at the end of the queue, if none is in it.
    fn queue_response(&mut self) {
        if self.response_frame.is_some() {
            return;
        }
        let Some(response) = self.responses.front_mut() else { return };
        let len = response.rest.left().min(RESPONSE_FRAME_MAX);
        let header = Frame::ReadResponse {
            id: response.id,
            offset: response.read_offset,
            len: u32::try_from(len).unwrap_or(u32::MAX),
        }
        .encode();
        let ranges = response.rest.first(len).collect();
        response.rest.advance(len);
        response.read_offset += len;
        let ends_list = (response.rest.left() == 0).then(|| response.rest.is_list());
        if ends_list.is_some() {
            self.responses.pop_front();
        }
        let len = usize::try_from(len).unwrap_or(usize::MAX);
        self.response_frame = Some(ResponseFrame { header, ranges, len, ends_list });
        self.queue.push_back(Item::Response);
    }

    fn free_message(&mut self, link: &Link, buffer: Buffer) {
        self.messages -= 1;
        self.message_bytes -= buffer.size();
        self.cache.give_back(&link.shared.pool, buffer);
    }
}

/// The header of a frame for one range, or that of one for a list, which the ranges follow. They were checked against their limits.
fn front(
    remote: &[RemoteRange],
    one: impl FnOnce(RemoteRange) -> Frame,
    list: impl FnOnce(u16, u32) -> Frame,
) -> FrontBytes {
    if let [range] = *remote {
        return FrontBytes::from_buf(one(range).encode());
    }
    let len: u64 = remote.iter().map(|range| range.len).sum();
    let count = u16::try_from(remote.len()).unwrap_or(u16::MAX);
    let mut bytes = FrontBytes::from_buf(list(count, u32::try_from(len).unwrap_or(u32::MAX)).encode());
    encode_ranges(remote, &mut bytes);
    bytes
}

fn message_header(head: &[u8], payload_len: usize) -> HeaderBytes {
    let head_len = u8::try_from(head.len()).unwrap_or(u8::MAX);
    Frame::Send { head_len, payload_len: u32::try_from(payload_len).unwrap_or(u32::MAX) }.encode()
}

/// What became of memory that was gone when it was to be sent.
pub(super) fn faulted() -> TransportError {
    TransportError::system("sending what a mapped file has lost", io::Error::from_raw_os_error(libc::EFAULT))
}
