//! One side of a simulated connection.

use std::io;
use std::sync::Arc;
use std::time::Duration;

use super::connection::{Arrived, Link, Op, Packet, Source};
use super::domain::DomainShared;
use super::gather::gather;
use super::world::SimWorld;
use super::{SimNet, Waiting, nanos};
use crate::transport::{
    Access, Capabilities, Completion, Endpoint, EventFds, HEAD_SIZE_MAX, Head, HeapMemory, Interrupt,
    LocalSegments, Memory, MemoryRef, OpToken, PeerIdentity, PostError, Posted, Provider, Received,
    RegionError, RemoteRange, SendSlot, Span, TransportError,
};

/// Slots that can be reserved at once.
const SLOTS_MAX: usize = 16;
/// Slots that can always be reserved at once.
const SLOTS_MIN: u16 = 4;
/// Segments of one gather or scatter list.
const SEGMENTS_MAX: u16 = 16;
/// Largest RDMA operation, bytes.
const RDMA_SIZE_MAX: u32 = 16 << 20;

/// One side of a simulated connection.
pub struct SimEndpoint {
    domain: Arc<DomainShared>,
    link: Link,
    capabilities: Capabilities,
    slots: Vec<Slot>,
    /// Holds the payload of the current message.
    payload: HeapMemory,
    current: Current,
}

struct Slot {
    /// Allocated at first use, of `send_payload_max` bytes.
    memory: Option<HeapMemory>,
    /// Room asked for, while reserved.
    reserved: Option<usize>,
}

/// What [`Endpoint::recv`] returned last and [`Endpoint::recv_done`] has not yet given back.
enum Current {
    None,
    Immediate,
    Message { payload_len: usize },
}

impl SimEndpoint {
    /// `None` when the connection is gone.
    pub(super) fn new(domain: Arc<DomainShared>, link: Link) -> Option<Self> {
        let capabilities = {
            let mut state = domain.net().lock();
            let remote_mapped = state.plan().remote_mapped;
            let connection = state.connections.get_mut(&link.connection)?;
            let own = connection.sides[link.side].params;
            let peer = connection.sides[1 - link.side].params;
            let node = connection.nodes[1 - link.side];
            Capabilities {
                provider: Provider::Sim,
                send_payload_max: peer.recv_payload_max,
                recv_payload_max: own.recv_payload_max,
                send_depth: peer.recv_depth,
                rdma_depth: own.rdma_depth.min(peer.rdma_depth),
                segments_max: SEGMENTS_MAX,
                rdma_size_max: RDMA_SIZE_MAX,
                remote_mapped,
                faults_late: false,
                copies_faulting: false,
                is_stream: false,
                registers_ordinary_memory: true,
                peer: PeerIdentity { address: Some(node.address()), credentials: None },
            }
        };
        let payload = HeapMemory::allocate(capabilities.recv_payload_max as usize)?;
        let slots = (0..SLOTS_MAX).map(|_| Slot { memory: None, reserved: None }).collect();
        Some(Self { domain, link, capabilities, slots, payload, current: Current::None })
    }

    fn net(&self) -> &SimNet {
        self.domain.net()
    }

    /// Checks common to both RDMA operations.
    fn check_rdma(&self, local: &LocalSegments, remote: &RemoteRange) -> Result<(), PostError> {
        if local.len() > usize::from(SEGMENTS_MAX) {
            return Err(PostError::Invalid("more segments than segments_max"));
        }
        if remote.len > u64::from(RDMA_SIZE_MAX) {
            return Err(PostError::Invalid("more bytes than rdma_size_max"));
        }
        if local.iter().map(|segment| segment.len() as u64).sum::<u64>() != remote.len {
            return Err(PostError::Invalid("the local segments' total differs from the remote range"));
        }
        Ok(())
    }

    /// Room for one more post: an RDMA operation, a receive of the peer, or both.
    fn check_room(&self, state: &mut SimWorld, rdma: bool, receive: bool) -> Result<(), PostError> {
        let full_ppm = state.plan().full_ppm;
        let false_full = state.chance(full_ppm);
        let side = state.side(self.link).ok_or(PostError::Closed)?;
        if side.end.is_some() {
            return Err(PostError::Closed);
        }
        side.room = false;
        if rdma && side.ops.len() >= usize::from(self.capabilities.rdma_depth) {
            return Err(PostError::Full);
        }
        if receive && side.receives_used >= self.capabilities.send_depth.max(SLOTS_MIN) {
            side.wants_room = true;
            return Err(PostError::Full);
        }
        if false_full {
            state.counters.false_full += 1;
            state.schedule_room(self.link);
            return Err(PostError::Full);
        }
        Ok(())
    }

    fn reserved(&self, slot: &SendSlot) -> Option<usize> {
        self.slots.get(slot.id as usize)?.reserved
    }

    fn give_back(&mut self, slot: &SendSlot) {
        if let Some(slot) = self.slots.get_mut(slot.id as usize) {
            slot.reserved = None;
        }
    }

    /// Gives the peer's receive back that a reserved slot held.
    fn unreserve(&mut self, slot: &SendSlot) {
        if self.reserved(slot).is_some() {
            self.give_back(slot);
            if let Some(side) = self.net().lock().side(self.link) {
                side.receives_used -= 1;
            }
        }
    }

    /// The next arrival, or why there will be none.
    fn take(&mut self) -> Result<Option<Received>, TransportError> {
        let arrived = {
            let mut state = self.net().lock();
            let side = state.side(self.link).ok_or(TransportError::Closed)?;
            match (side.inbox.pop_front(), &side.end) {
                (Some(arrived), _) => arrived,
                (None, Some(end)) => return Err(end.error()),
                (None, None) => return Ok(None),
            }
        };
        Ok(Some(match arrived {
            Arrived::Immediate { data, size } => {
                self.current = Current::Immediate;
                Received::Immediate { data, size }
            }
            Arrived::Message { head, payload } => {
                self.payload.span().write_from(0, &payload);
                self.current = Current::Message { payload_len: payload.len() };
                // Bounded by `recv_payload_max`.
                Received::Message { head, payload_len: u32::try_from(payload.len()).unwrap_or(u32::MAX) }
            }
        }))
    }

    /// Something that a waiting caller wants to know.
    fn is_ready(&self, state: &mut SimWorld) -> bool {
        state.has_news(self.link)
    }
}

impl Endpoint for SimEndpoint {
    fn capabilities(&self) -> &Capabilities {
        &self.capabilities
    }

    fn reserve(&mut self, payload_len_max: usize) -> Result<SendSlot, PostError> {
        if payload_len_max > self.capabilities.send_payload_max as usize {
            return Err(PostError::Invalid("a payload longer than send_payload_max"));
        }
        let index = self.slots.iter().position(|slot| slot.reserved.is_none()).ok_or(PostError::Full)?;
        {
            let mut state = self.net().lock();
            self.check_room(&mut state, false, true)?;
            state.side(self.link).ok_or(PostError::Closed)?.receives_used += 1;
        }
        let capacity = self.capabilities.send_payload_max as usize;
        let slot = &mut self.slots[index];
        if slot.memory.is_none() {
            slot.memory = HeapMemory::allocate(capacity);
        }
        slot.reserved = Some(payload_len_max);
        // Both are bounded: SLOTS_MAX, and a u32 capability.
        Ok(SendSlot {
            id: u32::try_from(index).unwrap_or(u32::MAX),
            payload_capacity: u32::try_from(payload_len_max).unwrap_or(u32::MAX),
        })
    }

    fn slot_payload(&self, slot: &SendSlot) -> Span<'_> {
        let memory = self.slots.get(slot.id as usize).and_then(|slot| slot.memory.as_ref());
        let len = self.reserved(slot).unwrap_or(0);
        memory.and_then(|memory| memory.span().slice(0, len)).unwrap_or(Span::EMPTY)
    }

    fn send(&mut self, slot: SendSlot, head: &[u8], payload_len: usize) -> Result<(), PostError> {
        let copied = self.slot_payload(&slot).slice(0, payload_len).map(|span| span.to_vec());
        let (Some(payload), Some(head), false) = (copied, Head::copy_of(head), head.is_empty()) else {
            self.unreserve(&slot);
            let what = if payload_len > slot.payload_capacity as usize {
                "a payload longer than its slot"
            } else {
                "a head of 0 bytes or more than HEAD_SIZE_MAX"
            };
            return Err(PostError::Invalid(what));
        };
        debug_assert!(head.as_bytes().len() <= HEAD_SIZE_MAX);
        let full_late = {
            let mut state = self.net().lock();
            let full_late_ppm = state.plan().full_late_ppm;
            let full_late = state.chance(full_late_ppm);
            if full_late {
                state.counters.false_full += 1;
                state.schedule_room(self.link);
            }
            full_late
        };
        if full_late {
            self.unreserve(&slot);
            return Err(PostError::Full);
        }
        self.give_back(&slot);
        let mut state = self.net().lock();
        let side = state.side(self.link).ok_or(PostError::Closed)?;
        if side.end.is_some() {
            return Err(PostError::Closed);
        }
        side.outbox.push_back(Packet::Message { head, payload });
        Ok(())
    }

    fn cancel_send(&mut self, slot: SendSlot) {
        self.unreserve(&slot);
    }

    fn recv(&mut self) -> Result<Option<Received>, TransportError> {
        self.recv_done();
        if let Some(received) = self.take()? {
            return Ok(Some(received));
        }
        {
            let mut state = self.net().lock();
            let until_ns = state.now_ns().saturating_add(state.plan().poll_ns);
            state.advance_to(until_ns);
        }
        self.take()
    }

    fn payload(&self) -> Span<'_> {
        match self.current {
            Current::Message { payload_len } => {
                self.payload.span().slice(0, payload_len).unwrap_or(Span::EMPTY)
            }
            Current::None | Current::Immediate => Span::EMPTY,
        }
    }

    fn recv_done(&mut self) {
        if matches!(self.current, Current::None) {
            return;
        }
        self.current = Current::None;
        let mut state = self.net().lock();
        let Some(sender) = state.side(self.link.peer()) else { return };
        sender.receives_used = sender.receives_used.saturating_sub(1);
        if std::mem::take(&mut sender.wants_room) {
            state.schedule_room(self.link.peer());
        }
    }

    fn rdma_write(
        &mut self,
        token: OpToken,
        local: LocalSegments,
        remote: RemoteRange,
        immediate: Option<u32>,
    ) -> Result<Posted, PostError> {
        self.check_rdma(&local, &remote)?;
        let mut state = self.net().lock();
        self.check_room(&mut state, true, immediate.is_some())?;
        let done_ppm = state.plan().done_ppm;
        // Later it could not be told any more that memory is gone.
        let may_fault = local.iter().any(|segment| segment.memory().may_fault());
        let copy = match state.chance(done_ppm) || may_fault {
            true => Some(gather(&local).map_err(|_| PostError::Faulted)?),
            false => None,
        };
        let id = state.new_id();
        let side = state.side(self.link).ok_or(PostError::Closed)?;
        side.receives_used += u16::from(immediate.is_some());
        let (source, posted) = match copy {
            Some(bytes) => (Source::Copied(bytes), Posted::Done),
            None => {
                side.ops.insert(id, Op { token, local, remote });
                (Source::Op(id), Posted::Pending)
            }
        };
        side.outbox.push_back(Packet::Write { source, remote, immediate });
        Ok(posted)
    }

    fn rdma_read(
        &mut self,
        token: OpToken,
        local: LocalSegments,
        remote: RemoteRange,
    ) -> Result<Posted, PostError> {
        self.check_rdma(&local, &remote)?;
        if local.iter().any(|segment| segment.memory().may_fault()) {
            return Err(PostError::Invalid("a read into memory that may fault"));
        }
        let mut state = self.net().lock();
        self.check_room(&mut state, true, false)?;
        let id = state.new_id();
        let side = state.side(self.link).ok_or(PostError::Closed)?;
        side.ops.insert(id, Op { token, local, remote });
        side.outbox.push_back(Packet::Read { op: id });
        Ok(Posted::Pending)
    }

    fn remote_memory(
        &mut self,
        remote: &RemoteRange,
        access: Access,
    ) -> Result<Option<MemoryRef>, RegionError> {
        if !self.capabilities.remote_mapped {
            return Ok(None);
        }
        let mut state = self.net().lock();
        let closed = || RegionError::System {
            what: "reach remote memory",
            source: io::ErrorKind::NotConnected.into(),
        };
        let connection = state.connections.get_mut(&self.link.connection).ok_or_else(closed)?;
        if connection.cut || connection.sides[self.link.side].end.is_some() {
            return Err(closed());
        }
        let domain = connection.sides[1 - self.link.side].domain;
        Ok(Some(state.reach(domain, remote, access)?))
    }

    fn poll_completion(&mut self) -> Option<Completion> {
        self.net().lock().side(self.link)?.completions.pop_front()
    }

    fn flush(&mut self) -> Result<(), TransportError> {
        let mut state = self.net().lock();
        state.flush(self.link);
        match state.side(self.link) {
            None => Err(TransportError::Closed),
            Some(side) => match &side.end {
                // What arrived before the end is received first; `recv` then tells of it.
                Some(end) if side.inbox.is_empty() => Err(end.error()),
                _ => Ok(()),
            },
        }
    }

    fn wants_flush(&self) -> bool {
        false
    }

    fn arm(&mut self) -> bool {
        let mut state = self.net().lock();
        !self.is_ready(&mut state)
    }

    fn wait_or(
        &mut self,
        timeout: Option<Duration>,
        interrupt: Option<&Interrupt>,
    ) -> Result<(), TransportError> {
        self.flush()?;
        let deadline_ns = timeout.map(|timeout| self.net().lock().now_ns().saturating_add(nanos(timeout)));
        let ready = |state: &mut SimWorld| {
            let ready = self.is_ready(state);
            if let Some(side) = state.side(self.link) {
                side.room = false;
            }
            ready
        };
        loop {
            if ready(&mut self.net().lock()) || interrupt.is_some_and(Interrupt::take) {
                return Ok(());
            }
            match self.net().shared.waits.get() {
                Some(wait) => wait(Waiting::new(self.net(), Some(self.link), deadline_ns)),
                None => self.net().run_idle(),
            }
            let mut state = self.net().lock();
            if ready(&mut state) || interrupt.is_some_and(Interrupt::take) {
                return Ok(());
            }
            let until_ns = match (state.next_event_ns(), deadline_ns) {
                (Some(event_ns), Some(deadline_ns)) => event_ns.min(deadline_ns),
                (Some(at_ns), None) | (None, Some(at_ns)) => at_ns,
                // Real time would pass for ever.
                (None, None) => {
                    let source = io::Error::new(io::ErrorKind::TimedOut, "nothing will ever happen");
                    return Err(TransportError::system("wait in the simulated network", source));
                }
            };
            let now_ns = state.now_ns();
            if deadline_ns.is_some_and(|deadline_ns| now_ns >= deadline_ns) {
                return Ok(());
            }
            if self.net().shared.waits.get().is_none() {
                state.advance_to(until_ns.max(now_ns));
            }
        }
    }

    fn spin_pays(&self) -> bool {
        false
    }

    fn event_fds(&self) -> EventFds {
        EventFds::new()
    }

    fn close(&mut self) {
        self.current = Current::None;
        self.net().lock().close(self.link);
    }
}

impl Drop for SimEndpoint {
    fn drop(&mut self) {
        self.net().lock().release(self.link);
    }
}
