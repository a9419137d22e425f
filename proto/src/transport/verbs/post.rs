//! What this side posts: messages, notes and RDMA operations, and what becomes of them.
#![allow(unsafe_code, reason = "posts work requests")]

use std::io;
use std::sync::Arc;

use smallvec::SmallVec;

use super::super::util::{check_destination, check_rdma, copy_through_kernel};
use super::super::{
    Completion, LocalSegments, MemoryRef, OpToken, PostError, Posted, RemoteRange, Span, TransportError,
};
use super::core::Core;
use super::frame::{Frame, NOTE_SIZE};
use super::memory::{BounceBuffer, Pin};
use super::queue::{Action, Done, Segment};
use super::status::{SUCCESS, explain};

/// Work requests that leave without waiting for a flush, when so many are queued.
const LIST_MAX: usize = 64;

/// Work requests kept free for the closing note.
const SPARE_REQUESTS: usize = 1;

/// Requests without a completion of their own: at most this part of the slots or of the queue.
const UNSIGNALED_PARTS: usize = 4;

/// A work request on its way.
#[derive(Clone, Copy, Debug)]
pub(super) enum Work {
    /// A message or note in this slot; in none, where the device's library has copied it.
    Message { slot: Option<u32> },
    /// A part of an RDMA operation, the last one where so marked.
    Rdma { operation: usize, last: bool },
}

/// An RDMA operation on its way, with everything that the device may touch for it.
pub(super) struct Operation {
    token: OpToken,
    remote: RemoteRange,
    local: LocalSegments,
    read: bool,
    _pins: SmallVec<[Pin; 2]>,
    bounce: Option<BounceBuffer>,
    // Which segments went through the bounce buffer, one after the other.
    bounced: SmallVec<[usize; 2]>,
    failure: Option<TransportError>,
}

/// Local memory as the device names it.
struct Gathered {
    segments: SmallVec<[Segment; 4]>,
    pins: SmallVec<[Pin; 2]>,
    bounce: Option<BounceBuffer>,
    bounced: SmallVec<[usize; 2]>,
    inline: bool,
}

impl Core {
    /// As `Endpoint::rdma_write` and `Endpoint::rdma_read`.
    pub(super) fn rdma(
        &mut self,
        read: bool,
        token: OpToken,
        local: LocalSegments,
        remote: RemoteRange,
        immediate: Option<u32>,
    ) -> Result<Posted, PostError> {
        let len = self.check_rdma(&local, &remote)?;
        if read {
            check_destination(&local)?;
        }
        if len == 0 {
            return self.rdma_of_nothing(read, token, remote, immediate);
        }
        let filled = local.iter().filter(|segment| !segment.is_empty()).count();
        let requests = filled.div_ceil(self.sge_max);
        // More than one request: the peer learns the size of the whole from a note. So it does on iWARP, where immediates are an extension.
        let has_note = requests > 1 || !self.device.limits.peers_wait;
        let note = immediate.filter(|_| has_note);
        self.make_room(requests + usize::from(note.is_some()))?;
        let slot = note.map(|_| self.take_slot(0)).transpose()?;
        let gathered = match self.gather(read, &local, len) {
            Ok(gathered) => gathered,
            Err(error) => {
                if let Some(slot) = slot {
                    self.slots.give_back(slot);
                }
                return Err(error);
            }
        };
        let Gathered { segments, pins, bounce, bounced, inline } = gathered;
        let operation = self.operations.insert(Operation {
            token,
            remote,
            local,
            read,
            _pins: pins,
            bounce,
            bounced,
            failure: None,
        });
        // The key's upper half is this program's own: the device knows the lower.
        #[allow(clippy::cast_possible_truncation, reason = "the lower half")]
        let key = remote.key.0 as u32;
        let mut address = remote.offset;
        for (index, part) in segments.chunks(self.sge_max).enumerate() {
            let last = index + 1 == requests;
            let action = match read {
                true => Action::Read { address, key },
                false => Action::Write { address, key, immediate: immediate.filter(|_| !has_note) },
            };
            self.queue(Work::Rdma { operation, last }, action, part, inline);
            address = address.wrapping_add(part.iter().map(|segment| u64::from(segment.len)).sum());
        }
        if let (Some(slot), Some(data)) = (slot, note) {
            let size = u32::try_from(len).unwrap_or(u32::MAX);
            self.queue_note(slot, &Frame::Immediate { data, size }.encode_note());
        }
        self.owes_completion = true;
        self.rdma_in_flight += 1;
        if self.list.len() >= LIST_MAX {
            self.post_list();
        }
        Ok(Posted::Pending)
    }

    /// The peer's device does not look at the key of an operation of 0 bytes: its provider does.
    fn rdma_of_nothing(
        &mut self,
        read: bool,
        token: OpToken,
        remote: RemoteRange,
        immediate: Option<u32>,
    ) -> Result<Posted, PostError> {
        self.make_room(1)?;
        let slot = self.take_slot(0)?;
        let check = Frame::Check { key: remote.key, offset: remote.offset, write: !read, immediate };
        self.queue_note(slot, &check.encode_note());
        self.completions.push_back(Completion { token, result: Ok(()) });
        self.rdma_in_flight += 1;
        Ok(Posted::Pending)
    }

    fn check_rdma(&self, local: &LocalSegments, remote: &RemoteRange) -> Result<usize, PostError> {
        self.check_open()?;
        let len = check_rdma(&self.capabilities, local, remote)?;
        if self.rdma_in_flight < self.capabilities.rdma_depth { Ok(len) } else { Err(PostError::Full) }
    }

    pub(super) fn check_open(&self) -> Result<(), PostError> {
        if self.is_open() && self.failure.is_none() { Ok(()) } else { Err(PostError::Closed) }
    }

    /// Names local memory for the device: where it is, where it is registered or small, else in a bounce buffer.
    fn gather(&mut self, read: bool, local: &LocalSegments, len: usize) -> Result<Gathered, PostError> {
        let mut gathered = Gathered {
            segments: SmallVec::new(),
            pins: SmallVec::new(),
            bounce: None,
            bounced: SmallVec::new(),
            inline: false,
        };
        let filled = || local.iter().enumerate().filter(|(_, segment)| !segment.is_empty());
        let whole = |span: Span<'_>, key| Segment {
            address: span.as_ptr() as u64,
            len: u32::try_from(span.len()).unwrap_or(u32::MAX),
            key,
        };
        let may_fault = local.iter().any(|segment| segment.memory().may_fault());
        if !read && len <= self.inline_max && !may_fault && filled().count() <= self.sge_max {
            gathered.inline = true;
            gathered.segments.extend(filled().map(|(_, segment)| whole(segment.span(), 0)));
            return Ok(gathered);
        }
        let mut copied = 0;
        let mut before: Option<(*const (), Option<u32>)> = None;
        for (index, segment) in filled() {
            // Lists usually lie in one memory.
            let owner = Arc::as_ptr(segment.memory()).cast::<()>();
            let key = match before {
                Some((last, key)) if std::ptr::eq(last, owner) && !segment.memory().is_lent() => key,
                _ => self.shared.pins.pin(&self.device, segment).map(|pin| {
                    let key = pin.local_key();
                    gathered.pins.push(pin);
                    key
                }),
            };
            before = Some((owner, key));
            gathered.segments.push(whole(segment.span(), key.unwrap_or(0)));
            if key.is_none() {
                copied += segment.len();
                gathered.bounced.push(index);
            }
        }
        if copied > 0 {
            let bounce = self.take_bounce(copied)?;
            if let Err(error) = self.fill_bounce(read, local, &mut gathered, &bounce) {
                self.shared.bounce.give_back(bounce);
                if error.raw_os_error() == Some(libc::EFAULT) {
                    return Err(PostError::Faulted);
                }
                self.fail(TransportError::system("copy the source of an RDMA write", error));
                return Err(PostError::Closed);
            }
            gathered.bounce = Some(bounce);
        }
        Ok(gathered)
    }

    /// Puts the bounce buffer in the place of what goes through it.
    fn fill_bounce(
        &mut self,
        read: bool,
        local: &LocalSegments,
        gathered: &mut Gathered,
        bounce: &BounceBuffer,
    ) -> io::Result<()> {
        let filled = local.iter().enumerate().filter(|(_, segment)| !segment.is_empty());
        let mut bounced = gathered.bounced.iter().peekable();
        let mut offset = 0;
        for ((index, segment), named) in filled.zip(&mut gathered.segments) {
            if bounced.next_if(|next| **next == index).is_none() {
                continue;
            }
            let part = bounce.span().slice(offset, segment.len()).unwrap_or(Span::EMPTY);
            offset += segment.len();
            if !read {
                self.counters.bytes_copied += segment.len() as u64;
                copy_in(segment, part)?;
            }
            named.address = part.as_ptr() as u64;
            named.key = bounce.key();
        }
        Ok(())
    }

    fn take_bounce(&mut self, len: usize) -> Result<BounceBuffer, PostError> {
        let error = match self.shared.bounce.take(&self.device, len) {
            Ok(bounce) => return Ok(bounce),
            Err(error) => error,
        };
        if self.shared.shrink()
            && let Ok(bounce) = self.shared.bounce.take(&self.device, len)
        {
            return Ok(bounce);
        }
        if !self.operations.is_empty() {
            // Their buffers come back with their completions, which wake who waits.
            return Err(PostError::Full);
        }
        self.fail(TransportError::system("make a buffer for RDMA", error));
        Err(PostError::Closed)
    }

    /// A slot with room for so much payload, after a look at what is done if there is none.
    pub(super) fn take_slot(&mut self, payload_len: usize) -> Result<u32, PostError> {
        if let Ok(Some(slot)) = self.slots.take(payload_len) {
            return Ok(slot);
        }
        self.post_list();
        self.progress();
        self.check_open()?;
        match self.slots.take(payload_len) {
            Ok(Some(slot)) => Ok(slot),
            Ok(None) => Err(self.full(1)),
            Err(error) => {
                self.fail(TransportError::system("make a buffer for a message", error));
                Err(PostError::Closed)
            }
        }
    }

    /// Slots and room come back with a completion. Where none is on its way, one is asked for with a write of nothing.
    #[cold]
    pub(super) fn ask_for_room(&mut self) {
        if self.unsignaled > 0 && self.list.is_empty() && self.failure.is_none() && self.has_room(1) {
            let nothing = Action::Write { address: 0, key: 0, immediate: None };
            self.queue(Work::Message { slot: None }, nothing, &[], false);
            self.owes_completion = true;
            self.post_list();
        }
    }

    /// Room for so many work requests.
    pub(super) fn make_room(&mut self, requests: usize) -> Result<(), PostError> {
        if self.has_room(requests) {
            return Ok(());
        }
        self.post_list();
        self.progress();
        self.check_open()?;
        if self.has_room(requests) { Ok(()) } else { Err(self.full(requests)) }
    }

    pub(super) fn has_room(&self, requests: usize) -> bool {
        self.work.len() + requests + self.reserved + SPARE_REQUESTS <= self.send_queue_depth
    }

    /// What a post is told that needs room for so many requests, or a slot.
    #[cold]
    fn full(&mut self, requests: usize) -> PostError {
        self.room_wanted = if self.starved { self.room_wanted.min(requests) } else { requests };
        self.starved = true;
        self.ask_for_room();
        PostError::Full
    }

    /// Queues a message of the provider itself.
    pub(super) fn queue_note(&mut self, slot: u32, note: &[u8; NOTE_SIZE]) {
        self.slots.span(slot).write_from(0, note);
        let segment = self.slots.segment(slot, 0, NOTE_SIZE);
        self.queue_message(slot, segment, NOTE_SIZE <= self.inline_max);
    }

    pub(super) fn queue_message(&mut self, slot: u32, segment: Segment, inline: bool) {
        if inline {
            self.slots_inline.push(slot);
        }
        self.queue(Work::Message { slot: (!inline).then_some(slot) }, Action::Send, &[segment], inline);
    }

    fn queue(&mut self, work: Work, action: Action, segments: &[Segment], inline: bool) {
        let id = self.work_first + self.work.len() as u64;
        self.list.push(id, action, segments, inline, false);
        self.work.push_back(work);
        self.counters.work_requests += 1;
        self.counters.inline_requests += u64::from(inline);
        self.counters.rdma_requests += u64::from(matches!(work, Work::Rdma { .. }));
    }

    /// Hands everything queued to the device, with one doorbell.
    ///
    /// Requests complete in order, so one completion speaks for all before it. The last of a list gets one when somebody waits for
    /// it, or when enough were posted without.
    pub(super) fn post_list(&mut self) {
        if self.list.is_empty() {
            return;
        }
        // A peer that reads of a free receive finds it. There is one more than it may know of, so that a single one can follow the list.
        if self.repost.len() > 1 || !self.device.limits.peers_wait {
            self.post_receives();
        }
        self.unsignaled += self.list.len();
        let bound = self.slots_max.min(self.send_queue_depth) / UNSIGNALED_PARTS;
        // Large slots are counted as the peer's as long as they are not known to be sent.
        let is_owed = self.owes_completion || self.starved || self.slots.large_bytes() > 0;
        if is_owed || self.unsignaled >= bound {
            self.list.signal_last();
            self.unsignaled = 0;
            self.owes_completion = false;
        }
        self.counters.doorbells += 1;
        // SAFETY: the queue pair is live while the connection is not ended; messages lie in slots, and operations own their memory,
        // until their work is done.
        if let Err(error) = unsafe { self.list.post(self.qp) } {
            self.fail(TransportError::system("post to the RDMA device", error));
        }
        self.free_inline_slots();
    }

    /// What the device's library has copied, or will never see, is free.
    fn free_inline_slots(&mut self) {
        while let Some(slot) = self.slots_inline.pop() {
            self.slots.give_back(slot);
        }
    }

    /// Forgets what is queued and not posted.
    #[cold]
    pub(super) fn drop_unposted(&mut self) {
        let count = self.list.len();
        self.list.clear();
        self.free_inline_slots();
        let unposted = self.work.split_off(self.work.len() - count);
        for work in unposted {
            self.finish(work, Some((super::status::FLUSHED, 0)));
        }
    }

    /// A request is done, and with it all before it.
    pub(super) fn work_done(&mut self, done: &Done) {
        while self.work_first < done.id && !self.work.is_empty() {
            self.finish_oldest(None);
        }
        if self.work_first == done.id && !self.work.is_empty() {
            let failure = (done.status != SUCCESS).then_some((done.status, done.vendor_code));
            self.finish_oldest(failure);
        }
    }

    /// The oldest request is done.
    pub(super) fn finish_oldest(&mut self, failure: Option<(u32, u32)>) {
        if let Some(work) = self.work.pop_front() {
            self.work_first += 1;
            self.finish(work, failure);
        }
    }

    fn finish(&mut self, work: Work, failure: Option<(u32, u32)>) {
        match work {
            Work::Message { slot } => {
                if let Some(slot) = slot {
                    self.slots.give_back(slot);
                }
                if let Some((status, vendor_code)) = failure {
                    self.fail(explain(status, vendor_code, None));
                }
            }
            Work::Rdma { operation, last } => {
                if let Some((status, vendor_code)) = failure {
                    let remote = self.operations.get(operation).map(|operation| operation.remote);
                    self.fail(explain(status, vendor_code, remote));
                    if let Some(operation) = self.operations.get_mut(operation) {
                        operation.failure.get_or_insert_with(|| explain(status, vendor_code, remote));
                    }
                }
                if last && self.operations.contains(operation) {
                    let operation = self.operations.remove(operation);
                    self.complete(operation);
                }
            }
        }
    }

    fn complete(&mut self, operation: Operation) {
        let Operation { token, local, read, bounce, bounced, failure, .. } = operation;
        if let Some(bounce) = bounce {
            if read && failure.is_none() {
                let segments = bounced.iter().filter_map(|index| local.get(*index)).map(MemoryRef::span);
                let left = bounce.span().scatter(segments);
                self.counters.bytes_copied += (bounce.span().len() - left.len()) as u64;
            }
            self.shared.bounce.give_back(bounce);
        }
        self.completions.push_back(Completion { token, result: failure.map_or(Ok(()), Err) });
    }
}

/// Copies the source of a write to where it is sent from; EFAULT where a mapped file was truncated.
fn copy_in(from: &MemoryRef, to: Span<'_>) -> io::Result<()> {
    if !from.memory().may_fault() {
        to.copy_from(from.span());
        return Ok(());
    }
    match copy_through_kernel(from.span(), to)? {
        copied if copied == from.len() && from.is_there() => Ok(()),
        _ => Err(io::Error::from_raw_os_error(libc::EFAULT)),
    }
}
