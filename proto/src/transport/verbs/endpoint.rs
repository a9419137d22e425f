//! The endpoint: a connection with an owner. What is left when the owner drops it is finished in the background.
#![allow(unsafe_code, reason = "takes the connection out of an endpoint that is dropped")]

use std::mem::ManuallyDrop;
use std::time::Duration;

use super::super::util::check_message;
use super::super::{
    Access, Capabilities, Completion, Endpoint, EventFds, Interrupt, LocalSegments, Looks, MemoryRef,
    OpToken, PostError, Posted, Received, Receives, RegionError, RemoteRange, SendSlot, Span, TransportError,
    WaitPolicy,
};
use super::Counters;
use super::abort::AbortHandle;
use super::buffers::RECEIVE;
use super::core::Core;
use super::frame::{HEADER_SIZE, PREFIX_SIZE, message_header};
use super::linger::linger;
use super::wake::PLACE_OF_MANAGER;

/// A connection of the verbs provider.
pub struct VerbsEndpoint {
    core: ManuallyDrop<Core>,
}

impl VerbsEndpoint {
    pub(super) fn new(core: Core) -> Self {
        Self { core: ManuallyDrop::new(core) }
    }

    /// What this connection did so far; registrations are those of its whole domain.
    pub fn counters(&self) -> Counters {
        let (registrations, deregistrations) = self.core.device.counters.read();
        Counters { registrations, deregistrations, ..self.core.counters }
    }

    #[cfg(test)]
    pub(super) fn core(&mut self) -> &mut Core {
        &mut self.core
    }

    /// Name of the device that carries it.
    pub fn device(&self) -> &str {
        &self.core.device.name
    }

    /// Receives that are posted, or that hold what has not been taken yet.
    pub fn receives_count(&self) -> usize {
        self.core.receives.count()
    }

    /// Segments that one work request gathers or scatters.
    pub fn segments_per_request(&self) -> usize {
        self.core.sge_max
    }

    /// A way for other threads to break this connection.
    pub fn abort_handle(&self) -> AbortHandle {
        self.core.abortable.handle()
    }
}

impl Endpoint for VerbsEndpoint {
    fn capabilities(&self) -> &Capabilities {
        &self.core.capabilities
    }

    fn reserve(&mut self, payload_len_max: usize) -> Result<SendSlot, PostError> {
        let core = &mut *self.core;
        let payload_max = core.capabilities.send_payload_max;
        if payload_len_max > payload_max as usize {
            return Err(PostError::Invalid("the payload is larger than the peer receives"));
        }
        core.check_open()?;
        core.make_room(1)?;
        let id = core.take_slot(payload_len_max)?;
        core.reserved += 1;
        let room = u32::try_from(core.slots.span(id).len() - PREFIX_SIZE).unwrap_or(u32::MAX);
        Ok(SendSlot { id, payload_capacity: room.min(payload_max) })
    }

    fn slot_payload(&self, slot: &SendSlot) -> Span<'_> {
        let capacity = slot.payload_capacity as usize;
        self.core.slots.span(slot.id).slice(PREFIX_SIZE, capacity).unwrap_or(Span::EMPTY)
    }

    fn send(&mut self, slot: SendSlot, head: &[u8], payload_len: usize) -> Result<(), PostError> {
        let core = &mut *self.core;
        core.reserved = core.reserved.saturating_sub(1);
        let checked = check_message(head, payload_len, slot.payload_capacity);
        if let Err(error) = checked.and_then(|()| core.check_open()).and_then(|()| core.make_room(1)) {
            core.slots.give_back(slot.id);
            return Err(error);
        }
        let begin = PREFIX_SIZE - HEADER_SIZE - head.len();
        let span = core.slots.span(slot.id);
        span.write_from(begin, &message_header(head.len(), payload_len));
        span.write_from(begin + HEADER_SIZE, head);
        let segment = core.slots.segment(slot.id, begin, HEADER_SIZE + head.len() + payload_len);
        let inline = segment.len as usize <= core.inline_max;
        core.queue_message(slot.id, segment, inline);
        core.counters.sent += 1;
        Ok(())
    }

    fn cancel_send(&mut self, slot: SendSlot) {
        self.core.reserved = self.core.reserved.saturating_sub(1);
        self.core.slots.give_back(slot.id);
    }

    fn recv(&mut self) -> Result<Option<Received>, TransportError> {
        self.core.recv()
    }

    fn payload(&self) -> Span<'_> {
        let Some((buffer, offset, len)) = self.core.current else { return Span::EMPTY };
        self.core.receives.span(buffer).slice(offset, len).unwrap_or(Span::EMPTY)
    }

    fn recv_done(&mut self) {
        self.core.recv_done();
    }

    fn rdma_write(
        &mut self,
        token: OpToken,
        local: LocalSegments,
        remote: RemoteRange,
        immediate: Option<u32>,
    ) -> Result<Posted, PostError> {
        self.core.rdma(false, token, local, remote, immediate)
    }

    fn rdma_read(
        &mut self,
        token: OpToken,
        local: LocalSegments,
        remote: RemoteRange,
    ) -> Result<Posted, PostError> {
        self.core.rdma(true, token, local, remote, None)
    }

    fn remote_memory(&mut self, _: &RemoteRange, _: Access) -> Result<Option<MemoryRef>, RegionError> {
        Ok(None)
    }

    fn poll_completion(&mut self) -> Option<Completion> {
        if self.core.completions.is_empty() && !self.core.is_quiet() {
            self.core.progress();
        }
        let completion = self.core.completions.pop_front()?;
        self.core.rdma_in_flight -= 1;
        Some(completion)
    }

    fn flush(&mut self) -> Result<(), TransportError> {
        self.core.flush()
    }

    fn wants_flush(&self) -> bool {
        !self.core.list.is_empty()
    }

    fn unsent_bytes(&self) -> usize {
        self.core.slots.large_bytes()
    }

    fn on_event(&mut self, place: usize, _: bool) {
        self.core.events_due = true;
        self.core.events_told += 1;
        self.core.manager_due |= place == PLACE_OF_MANAGER;
    }

    fn arm(&mut self) -> bool {
        self.core.arm()
    }

    fn wait_or(
        &mut self,
        timeout: Option<Duration>,
        interrupt: Option<&Interrupt>,
    ) -> Result<(), TransportError> {
        self.core.wait(timeout, interrupt)
    }

    fn spin_pays(&self) -> bool {
        // A look at the queue is a look at memory.
        self.core.policy != WaitPolicy::Event
    }

    fn event_fds(&self) -> EventFds {
        self.core.event_fds().into_iter().collect()
    }

    fn close(&mut self) {
        self.core.close();
    }

    fn lingers(&mut self) -> bool {
        self.core.progress();
        self.core.is_lingering() && !self.core.operations.is_empty()
    }

    fn receives(&mut self) -> Option<&mut dyn Receives> {
        Some(self)
    }

    #[inline]
    fn looks(&mut self) -> Option<&mut dyn Looks> {
        Some(self)
    }
}

impl Receives for VerbsEndpoint {
    fn expected(&self) -> u16 {
        self.core.receives.expected()
    }

    fn expect(&mut self, count: u16) -> u16 {
        let core = &mut *self.core;
        for buffer in core.receives.expect(count) {
            core.repost.push(RECEIVE | u64::from(buffer), core.receives.segment(buffer));
        }
        core.post_receives();
        core.receives.expected()
    }
}

impl Looks for VerbsEndpoint {
    fn look(&mut self, times: u32) -> bool {
        // The device's library takes several times as long as a look at a ring does.
        self.core.look(times.div_ceil(4))
    }
}

impl Drop for VerbsEndpoint {
    fn drop(&mut self) {
        self.core.close();
        self.core.progress();
        // SAFETY: taken once, in the drop of its only owner.
        let core = unsafe { ManuallyDrop::take(&mut self.core) };
        // With the endpoint the memory of RDMA goes back to its owner: then the queue pair ends at once. Who wants what was flushed behind
        // it to arrive asks `Endpoint::lingers` first.
        if core.is_lingering() && core.operations.is_empty() {
            linger(core);
        }
        // Otherwise dropped here: the queue pair ends first, and then the memory of what was posted.
    }
}
