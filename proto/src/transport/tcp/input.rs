//! What arrives: small frames through staging, large data straight into its memory.

use std::io;
use std::os::fd::AsFd;

use slab::Slab;

use super::super::util::RegionAccess;
use super::super::{
    Access, HEAD_SIZE_MAX, Head, LocalSegments, MemoryRef, OpToken, PeerFault, Received, Span,
    TransportError, part_of,
};
use super::READ_LISTS_MAX;
use super::frame::{Frame, HEADER_SIZE, decode_ranges, list_size};
use super::link::Link;
use super::memory::{Buffer, BufferPool};
use super::output::Output;
use super::ranges::Ranges;
use super::sys::{self, Block, Left, Vectors};

/// Least size of a staging buffer, bytes.
const STAGING_MIN: usize = 64 << 10;

/// What has come of a frame is kept in a buffer of this size at most while the connection sleeps, where it fits, bytes.
const SLEEPING_MAX: usize = 8 << 10;

/// Staging offered beside a large data frame, for the headers that follow it, bytes.
const TAIL_MAX: usize = 1 << 10;

/// Data frames from this size up are worth a system call of their own rather than a copy, bytes.
const BULK_MIN: u64 = 16 << 10;

/// Bytes of a range, on average, from which the ranges of a list are received in place; smaller ones are copied there.
const PLACED_MIN: u64 = 1 << 10;

/// Places for the data of a list, in one call, bytes: a socket holds little more.
const RECEIVE_MAX: usize = 256 << 10;

/// Messages without a large data frame between them after which staging is filled whole again.
const BULK_FORGET: u32 = 8;

/// Bytes that one call of [`super::super::Endpoint::recv`] takes from the socket before it lets others work, and at most in one receive.
const TURN_MAX: usize = 1 << 20;

/// The receiving half of a connection.
pub(super) struct Input {
    staging: Option<Buffer>,
    // Invariant: start <= end <= staging size; the bytes between are received and not consumed.
    start: usize,
    end: usize,
    // Bytes from `start` that the frame there needs before it can be consumed.
    needed: usize,
    message: Option<Message>,
    placing: Option<Placing>,
    reads: Slab<PendingRead>,
    /// What was left in the socket when it was last asked.
    pub(super) left: Left,
    /// [`Input::step`] needs more bytes than are here.
    pub(super) starved: bool,
    // Messages since the last large data frame.
    messages_since_bulk: u32,
    recv_payload_max: u32,
    staging_size: usize,
    /// One receive takes no more data than this to its place.
    // Invariant: 1 to `TURN_MAX`.
    pub(super) turn_max: usize,
}

/// The message that the caller is looking at. The bytes up to `next` are its.
struct Message {
    payload_at: usize,
    payload_len: usize,
    next: usize,
}

/// The data frame whose body is arriving.
enum Placing {
    /// Into registered memory: what is still to come. Large parts are received in place.
    Write { rest: Ranges, in_place: bool, size: u32, immediate: Option<u32> },
    /// Into the memory of a read of ours.
    Read { id: usize, left: usize },
    /// Its region is gone.
    Discard { left: usize },
}

struct PendingRead {
    token: OpToken,
    segments: LocalSegments,
    len: usize,
    received: usize,
    is_list: bool,
}

/// What [`Input::step`] did.
pub(super) enum Step {
    /// Something for the caller.
    Received(Received),
    /// A frame was dealt with.
    Progress,
    /// Nothing: more bytes are needed.
    Starved,
}

/// What [`Input::fill`] found.
pub(super) enum Filled {
    Bytes(usize),
    Nothing,
    EndOfStream,
}

impl Input {
    pub(super) fn new(recv_payload_max: u32) -> Self {
        let message_max = HEADER_SIZE + HEAD_SIZE_MAX + recv_payload_max as usize;
        Self {
            staging: None,
            start: 0,
            end: 0,
            needed: HEADER_SIZE,
            message: None,
            placing: None,
            reads: Slab::new(),
            left: Left::Unknown,
            starved: true,
            messages_since_bulk: BULK_FORGET,
            recv_payload_max,
            staging_size: BufferPool::size_for(STAGING_MIN.max(message_max)),
            turn_max: TURN_MAX,
        }
    }

    pub(super) fn set_turn(&mut self, bytes_max: usize) {
        self.turn_max = bytes_max.clamp(1, TURN_MAX);
    }

    pub(super) fn payload(&self) -> Span<'_> {
        match (&self.message, &self.staging) {
            (Some(message), Some(staging)) => {
                staging.span().slice(message.payload_at, message.payload_len).unwrap_or(Span::EMPTY)
            }
            _ => Span::EMPTY,
        }
    }

    #[cfg(test)]
    pub(super) fn held_bytes(&self) -> usize {
        self.staging.as_ref().map_or(0, Buffer::size)
    }

    pub(super) fn has_message(&self) -> bool {
        self.message.is_some()
    }

    /// A receive may wait: no message is in its way, and no region is held over it.
    pub(super) fn can_block(&self) -> bool {
        self.message.is_none() && !matches!(self.placing, Some(Placing::Write { .. }))
    }

    pub(super) fn recv_done(&mut self) {
        if let Some(message) = self.message.take() {
            self.start = message.next;
        }
    }

    /// Another read of several ranges is within the bound.
    pub(super) fn has_room_for_list(&self) -> bool {
        self.reads.iter().filter(|(_, read)| read.is_list).count() < READ_LISTS_MAX
    }

    /// Adds a read and returns its id.
    pub(super) fn add_read(&mut self, token: OpToken, segments: LocalSegments, is_list: bool) -> u32 {
        let len = segments.iter().map(MemoryRef::len).sum();
        let id = self.reads.insert(PendingRead { token, segments, len, received: 0, is_list });
        u32::try_from(id).expect("reads are bounded by rdma_depth")
    }

    /// Reads that have not completed end as closed, and buffers go back.
    pub(super) fn fail(&mut self, link: &mut Link) {
        for read in self.reads.drain() {
            link.complete(read.token, Err(TransportError::Closed));
        }
        self.message = None;
        self.placing = None;
        self.start = 0;
        self.end = 0;
        self.release(link);
    }

    /// Gives the staging buffer back when nothing is in it, or so little that a small one holds it.
    pub(super) fn release(&mut self, link: &Link) {
        let available = self.end - self.start;
        if self.message.is_some() || available > SLEEPING_MAX {
            return;
        }
        if available == 0 {
            (self.start, self.end) = (0, 0);
            self.staging.take().into_iter().for_each(|staging| link.shared.pool.give_back(staging));
        } else if self.staging.as_ref().is_some_and(|staging| staging.size() > SLEEPING_MAX)
            && let Some(small) = link.shared.pool.take(available)
        {
            self.move_to(link, small);
        }
    }

    /// What staging holds goes to the start of another buffer, which has room for it.
    fn move_to(&mut self, link: &Link, buffer: Buffer) {
        let available = self.end - self.start;
        if let Some(before) = self.staging.take() {
            let received = before.span().slice(self.start, available).unwrap_or(Span::EMPTY);
            let left = received.scatter([buffer.span()]);
            debug_assert!(left.is_empty());
            link.shared.pool.give_back(before);
        }
        (self.start, self.end) = (0, available);
        self.staging = Some(buffer);
    }

    /// Deals with what is in staging up to the next message, immediate or completed frame. The message before must be done.
    pub(super) fn step(&mut self, link: &mut Link, output: &mut Output) -> Result<Step, TransportError> {
        if self.placing.is_some() {
            return Ok(self.place_received(link));
        }
        let available = self.end - self.start;
        let Some(staging) = self.staging.as_ref().filter(|_| available >= HEADER_SIZE) else {
            self.needed = HEADER_SIZE;
            self.starved = true;
            return Ok(Step::Starved);
        };
        let mut header = [0; HEADER_SIZE];
        staging.span().read_into(self.start, &mut header);
        match Frame::decode(&header)? {
            Frame::Send { head_len, payload_len } => self.take_message(head_len, payload_len),
            Frame::Write { range, immediate } => {
                link.check_reach(range.key).map_err(PeerFault::from)?;
                let access = link.shared.regions.access();
                access.resolve(&range, Access::REMOTE_WRITE).map_err(PeerFault::from)?;
                drop(access);
                Ok(self.begin_write(link, Ranges::one(range), true, immediate))
            }
            Frame::ReadRequest { id, range } => {
                link.check_reach(range.key).map_err(PeerFault::from)?;
                link.shared.regions.access().resolve(&range, Access::REMOTE_READ).map_err(PeerFault::from)?;
                output.respond(id, Ranges::one(range))?;
                self.start += HEADER_SIZE;
                Ok(Step::Progress)
            }
            Frame::WriteList { count, len } => {
                let Some(rest) = self.take_ranges(link, count, len, Access::REMOTE_WRITE)? else {
                    return Ok(Step::Starved);
                };
                let in_place = rest.average() >= PLACED_MIN;
                Ok(self.begin_write(link, rest, in_place, None))
            }
            Frame::ReadList { id, count, len } => {
                let Some(ranges) = self.take_ranges(link, count, len, Access::REMOTE_READ)? else {
                    return Ok(Step::Starved);
                };
                output.respond(id, ranges)?;
                self.start += HEADER_SIZE;
                Ok(Step::Progress)
            }
            Frame::ReadResponse { id, offset, len } => {
                let left = self.check_response(output, id, offset, len)?;
                self.begin_data(u64::from(len));
                self.placing = Some(Placing::Read { id: id as usize, left });
                Ok(self.place_received(link))
            }
            Frame::Fault(reason) => Err(TransportError::system(
                "the peer ended the connection",
                io::Error::new(io::ErrorKind::ConnectionAborted, reason.to_string()),
            )),
        }
    }

    /// The ranges of the list at `start`, each of them checked, once they have arrived; the header stays to be consumed.
    fn take_ranges(
        &mut self,
        link: &Link,
        count: u16,
        len: u32,
        access: Access,
    ) -> Result<Option<Ranges>, TransportError> {
        let size = list_size(count);
        let ranges_at = self.start + HEADER_SIZE;
        let Some(staging) = self.staging.as_ref().filter(|_| self.end - self.start >= HEADER_SIZE + size)
        else {
            self.needed = HEADER_SIZE + size;
            self.starved = true;
            return Ok(None);
        };
        let bytes = staging.span().slice(ranges_at, size).unwrap_or(Span::EMPTY).to_vec();
        let ranges = decode_ranges(&bytes, len)?;
        let all = ranges.iter().copied();
        all.clone().try_for_each(|range| link.check_reach(range.key)).map_err(PeerFault::from)?;
        link.shared.regions.access().resolve_each(all, access, |_| true).map_err(PeerFault::from)?;
        self.start += size;
        self.needed = HEADER_SIZE;
        Ok(Some(Ranges::new(ranges)))
    }

    /// No data was left in the socket when it was last asked.
    pub(super) fn drained(&self) -> bool {
        self.left != Left::Unknown
    }

    /// One receive: into the memory of the data frame that is arriving, if any, and into staging. No message may be outstanding.
    /// `quick`: whether the end of the stream is left need not be known.
    pub(super) fn fill(
        &mut self,
        link: &mut Link,
        block: Block,
        quick: bool,
    ) -> Result<Filled, TransportError> {
        self.make_room(link)?;
        // Held over the call: no region is dropped while the kernel writes into it.
        let access = matches!(self.placing, Some(Placing::Write { in_place: true, .. }))
            .then(|| link.shared.regions.access());
        let mut vectors = Vectors::new();
        if let Err(left) = self.push_target(&mut vectors, access.as_ref()) {
            drop(vectors);
            self.placing = Some(Placing::Discard { left });
            vectors = Vectors::new();
        }
        // With a turn that ends within the data, what follows it is left in the socket.
        let cut = vectors.truncate(self.turn_max);
        let direct = vectors.total();
        let Some(staging) = &self.staging else { return Ok(Filled::Nothing) };
        let room = if cut { 0 } else { (staging.size() - self.end).min(self.staging_limit(direct)) };
        vectors.push(staging.span().slice(self.end, room).unwrap_or(Span::EMPTY));
        let offered = vectors.total();

        link.counters.recvs += 1;
        let receive = if quick { sys::receive_quickly } else { sys::receive };
        let received = receive(link.socket.as_fd(), &vectors, block);
        drop(vectors);
        drop(access);
        match received {
            Ok(receipt) if receipt.len == 0 => Ok(Filled::EndOfStream),
            Ok(receipt) => {
                debug_assert!(receipt.len <= offered);
                link.counters.bytes_received += receipt.len as u64;
                let placed = receipt.len.min(direct);
                link.counters.bytes_of_rdma += placed as u64;
                self.advance_target(placed);
                self.end += receipt.len - placed;
                self.left = receipt.left;
                self.starved = false;
                Ok(Filled::Bytes(receipt.len))
            }
            Err(error) => match error.kind() {
                io::ErrorKind::WouldBlock => {
                    self.left = Left::Nothing;
                    Ok(Filled::Nothing)
                }
                io::ErrorKind::Interrupted => {
                    self.left = Left::Unknown;
                    Ok(Filled::Bytes(0))
                }
                io::ErrorKind::ConnectionReset | io::ErrorKind::BrokenPipe => Ok(Filled::EndOfStream),
                _ => Err(TransportError::system("receive from the peer", error)),
            },
        }
    }

    fn take_message(&mut self, head_len: u8, payload_len: u32) -> Result<Step, TransportError> {
        if payload_len > self.recv_payload_max {
            let limit = self.recv_payload_max;
            return Err(PeerFault::malformed("payload of a SEND, bytes", payload_len, limit).into());
        }
        let head_at = self.start + HEADER_SIZE;
        let payload_at = head_at + usize::from(head_len);
        let next = payload_at + payload_len as usize;
        let Some(staging) = self.staging.as_ref().filter(|_| next <= self.end) else {
            self.needed = next - self.start;
            self.starved = true;
            return Ok(Step::Starved);
        };
        let mut bytes = [0; HEAD_SIZE_MAX];
        let head = &mut bytes[..usize::from(head_len)];
        staging.span().read_into(head_at, head);
        // The decoder has checked the length.
        let head = Head::copy_of(head).unwrap_or(Head::EMPTY);
        self.message = Some(Message { payload_at, payload_len: payload_len as usize, next });
        let bulk = u64::from(payload_len) >= BULK_MIN;
        self.messages_since_bulk = if bulk { 0 } else { self.messages_since_bulk.saturating_add(1) };
        // Spares the caller one round when this was the last.
        self.starved = next == self.end;
        self.needed = HEADER_SIZE;
        Ok(Step::Received(Received::Message { head, payload_len }))
    }

    /// `[TCP-30]`: answers come for reads that have left, in order, not beyond their end, and empty only for a read of nothing.
    fn check_response(&self, output: &Output, id: u32, offset: u64, len: u32) -> Result<usize, PeerFault> {
        let Some(read) = self.reads.get(id as usize).filter(|_| !output.has_read(id)) else {
            return Err(PeerFault::malformed("id of a READ_RESPONSE", id, 0u32));
        };
        let expected = read.received as u64;
        if offset != expected {
            return Err(PeerFault::malformed("offset of a READ_RESPONSE", offset, expected));
        }
        let left = read.len - read.received;
        if len as usize > left || (len == 0 && left > 0) {
            return Err(PeerFault::malformed("data of a READ_RESPONSE, bytes", len, left as u64));
        }
        Ok(len as usize)
    }

    fn begin_write(&mut self, link: &mut Link, rest: Ranges, in_place: bool, immediate: Option<u32>) -> Step {
        self.begin_data(rest.left());
        let size = u32::try_from(rest.left()).unwrap_or(u32::MAX);
        self.placing = Some(Placing::Write { rest, in_place, size, immediate });
        self.place_received(link)
    }

    fn begin_data(&mut self, len: u64) {
        self.start += HEADER_SIZE;
        if len >= BULK_MIN {
            self.messages_since_bulk = 0;
        }
    }

    /// Moves what staging has of the arriving data frame to its place.
    fn place_received(&mut self, link: &mut Link) -> Step {
        let available = self.end - self.start;
        let received = |len: usize| {
            let staging = self.staging.as_ref().map_or(Span::EMPTY, Buffer::span);
            staging.slice(self.start, len.min(available)).unwrap_or(Span::EMPTY)
        };
        let (consumed, left) = match &mut self.placing {
            None => return Step::Progress,
            Some(Placing::Discard { left }) => {
                let part = available.min(*left);
                *left -= part;
                (part, *left)
            }
            Some(Placing::Read { id, left }) => {
                let source = received(*left);
                if let Some(read) = self.reads.get_mut(*id) {
                    let segments = read.segments.iter().map(MemoryRef::span);
                    source.scatter(part_of(segments, read.received, source.len()));
                    read.received += source.len();
                }
                link.counters.bytes_copied += source.len() as u64;
                *left -= source.len();
                (source.len(), *left)
            }
            Some(Placing::Write { rest, .. }) => {
                let source = received(usize::try_from(rest.left()).unwrap_or(usize::MAX));
                let (len, mut left) = (source.len() as u64, source);
                // A write of nothing is of one range, whose region is asked for once more.
                let targets = rest.first(len).filter(|_| len > 0 || rest.left() == 0);
                let access = link.shared.regions.access();
                let resolved = access.resolve_each(targets, Access::REMOTE_WRITE, |target| {
                    left = left.scatter([target]);
                    true
                });
                let is_gone = resolved.is_err();
                drop(access);
                link.counters.bytes_copied += len;
                rest.advance(len);
                let left = usize::try_from(rest.left()).unwrap_or(usize::MAX);
                let consumed = source.len();
                if is_gone {
                    // Nobody is told: neither of the immediate nor of an error.
                    self.placing = Some(Placing::Discard { left });
                }
                (consumed, left)
            }
        };
        link.counters.bytes_of_rdma += consumed as u64;
        self.start += consumed;
        if left > 0 {
            self.starved = true;
            return Step::Starved;
        }
        self.finish_data(link)
    }

    fn finish_data(&mut self, link: &mut Link) -> Step {
        self.needed = HEADER_SIZE;
        match self.placing.take() {
            Some(Placing::Write { size, immediate: Some(data), .. }) => {
                Step::Received(Received::Immediate { data, size })
            }
            Some(Placing::Read { id, .. }) => {
                if self.reads.get(id).is_some_and(|read| read.received == read.len) {
                    let read = self.reads.remove(id);
                    link.complete(read.token, Ok(()));
                }
                Step::Progress
            }
            _ => Step::Progress,
        }
    }

    /// A staging buffer with room for the frame that is arriving.
    fn make_room(&mut self, link: &Link) -> Result<(), TransportError> {
        debug_assert!(self.message.is_none());
        // It is smaller where the connection slept in the middle of a frame.
        if self.staging.as_ref().is_none_or(|staging| staging.size() < self.staging_size) {
            let buffer = link.shared.pool.take(self.staging_size);
            let no_memory =
                || TransportError::system("allocate a staging buffer", io::ErrorKind::OutOfMemory.into());
            self.move_to(link, buffer.ok_or_else(no_memory)?);
        }
        let available = self.end - self.start;
        let missing = self.needed.saturating_sub(available).max(self.staging_size / 4);
        if available == 0 {
            self.start = 0;
            self.end = 0;
        } else if self.start > 0
            && self.staging_size - self.end < missing
            && let Some(staging) = &self.staging
            && let (Some(to), Some(from)) =
                (staging.span().slice(0, available), staging.span().slice(self.start, available))
        {
            to.copy_from(from);
            self.start = 0;
            self.end = available;
        }
        Ok(())
    }

    /// How much may go to staging beside `direct` bytes that go to their place: little while large data is expected,
    /// since data in staging costs a copy.
    fn staging_limit(&self, direct: usize) -> usize {
        if let Some(Placing::Write { in_place: false, .. }) = &self.placing {
            return usize::MAX;
        }
        if direct > 0 || self.messages_since_bulk < BULK_FORGET {
            let available = self.end - self.start;
            self.needed.saturating_sub(available) + TAIL_MAX
        } else {
            usize::MAX
        }
    }

    /// Adds the place of what is to come next of the arriving data frame. Where a region of it was dropped: the bytes still to come, which
    /// have nowhere to go.
    fn push_target<'m>(
        &'m self,
        vectors: &mut Vectors<'m>,
        access: Option<&'m RegionAccess<'_>>,
    ) -> Result<(), usize> {
        let gone = |left: u64| usize::try_from(left).unwrap_or(usize::MAX);
        match (&self.placing, access) {
            (Some(Placing::Write { rest, .. }), Some(access)) => {
                let ranges = rest.rest().iter().copied();
                let resolved = access.resolve_each(ranges, Access::REMOTE_WRITE, |target| {
                    vectors.push(target);
                    // One is left for staging; looking up and describing more than a receive brings costs as much as copying it.
                    !vectors.is_nearly_full() && vectors.total() < RECEIVE_MAX
                });
                resolved.map_err(|_| gone(rest.left()))?;
            }
            (Some(Placing::Read { id, left }), _) => {
                let Some(read) = self.reads.get(*id) else { return Ok(()) };
                let segments = read.segments.iter().map(MemoryRef::span);
                part_of(segments, read.received, *left).for_each(|target| vectors.push(target));
            }
            _ => {}
        }
        Ok(())
    }

    /// `placed` bytes went to their place.
    fn advance_target(&mut self, placed: usize) {
        match &mut self.placing {
            Some(Placing::Write { rest, .. }) => rest.advance(placed as u64),
            Some(Placing::Read { id, left }) => {
                *left -= placed;
                if let Some(read) = self.reads.get_mut(*id) {
                    read.received += placed;
                }
            }
            Some(Placing::Discard { .. }) | None => {}
        }
    }
}
