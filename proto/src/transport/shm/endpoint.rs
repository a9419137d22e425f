//! One connection: messages through the rings, RDMA by copies, sleep and wake.

use std::collections::VecDeque;
use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use crate::budget::Owner;

use super::super::util::check_message;
use super::super::{
    Access, Capabilities, Completion, Descriptors, Domain, Endpoint, EventFds, Interrupt, LocalSegments,
    Looks, Memory, MemoryRef, OpToken, OwnMemory, PostError, Posted, PostedList, RdmaLists, Reach, Received,
    Region, RegionError, RemoteRange, SendSlot, Span, TransportError, WaitPolicy,
};
use super::cma::Way;
use super::connection::{Connection, PLACE_OF_BELL};
use super::entry::{KIND_MESSAGE, Payload, ring_terms};
use super::handshake::{MESSAGE_SIZE, Message, malformed};
use super::map::{MappedMemory, is_sealable};
use super::passed::Passed;
use super::registry::Registry;
use super::remote::{Counted, RemoteRegions, Resolved};
use super::ring::{Arrival, RecvRing, SendRing};
use super::sock::{self, Incoming};
use super::wake::WokenBy;

/// The slot has no payload buffer.
const NO_BUFFER: u32 = u32::MAX;
/// Polls that find nothing between two looks at the CPU.
const POLLS_BETWEEN_CPU_LOOKS: u32 = 128;
/// Polls that find nothing between two looks at the socket, which tells of a peer that died. A multiple of the other.
pub(super) const POLLS_BETWEEN_SOCKET_LOOKS: u32 = 4096;
/// Socket messages taken in one turn, which may be a system call or two each. What is left waits for the next.
pub(super) const CONTROL_PER_TURN: u32 = 64;
/// Socket messages taken before a region is called unknown: as many as an honest peer may have sent.
pub(super) const CONTROL_BEFORE_VERDICT: u32 = 4096;

/// What this endpoint did, for tests and reports.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Counters {
    /// Messages and immediates sent.
    pub messages_sent: u64,
    /// Messages and immediates received.
    pub messages_received: u64,
    /// Times the peer had to be woken by a system call.
    pub doorbells: u64,
    /// Times this side slept in [`Endpoint::wait_or`].
    pub sleeps: u64,
    /// Looks at the socket: a system call each.
    pub socket_looks: u64,
    /// Looks at the word that says what the peer has taken: a cache miss each. The messages of the other direction say it too.
    pub taken_looks: u64,
    /// Payload bytes copied into ring entries.
    pub bytes_embedded: u64,
    /// Copies to and from the peer's memory.
    pub remote_copies: u64,
    /// Bytes moved by them.
    pub remote_bytes: u64,
}

/// An endpoint of the shm provider.
pub struct ShmEndpoint {
    pub(super) connection: Arc<Connection>,
    pub(super) registry: Arc<Registry>,
    /// Regions of the domain are announced to the peer.
    announces: bool,
    pub(super) remote: RemoteRegions,
    pub(super) capabilities: Capabilities,
    pub(super) completions: VecDeque<Completion>,
    pub(super) passed: Passed,
    pub(super) counters: Counters,
    pub(super) send_ring: SendRing,
    pub(super) recv_ring: RecvRing,
    /// Where the peer's ring begins in the segment: asked for at every look.
    pub(super) recv_entries: usize,
    pub(super) policy: WaitPolicy,
    pub(super) state: Liveness,
    /// Offset and length in the segment of the payload that [`Endpoint::payload`] returns.
    pub(super) current: Option<(usize, usize)>,
    /// Something was sent, or taken, since the peer was last looked at for sleeping.
    pub(super) sent_unflushed: bool,
    pub(super) taken_unflushed: bool,
    /// The last post was answered `Full`.
    pub(super) starved: bool,
    pub(super) armed: bool,
    /// This side slept, so the socket may have something to say.
    pub(super) socket_due: bool,
    /// The last look at the socket took as much as it might: there may be more.
    pub(super) control_left: bool,
    pub(super) control_seen: u32,
    pub(super) polls: u32,
    pub(super) cpu: u32,
    pub(super) waits: u32,
    pub(super) woken_by: WokenBy,
    /// An event loop tells of every event, descriptor by descriptor.
    pub(super) hears_events: bool,
    /// Waits to come in which the CPU is not given away, since other threads want it.
    pub(super) crowded_waits: u32,
    /// The CPU was away for long when it was given away last.
    pub(super) cpu_was_taken: bool,
    /// How long an adaptive wait gives the CPU away before it sleeps.
    pub(super) yield_max: Duration,
}

pub(super) enum Liveness {
    Open,
    /// To be told by the next `recv` or `flush`.
    Failing(TransportError),
    /// The peer is gone; what it sent is still to be received.
    PeerGone,
    Closed,
}

impl ShmEndpoint {
    pub(super) fn new(
        connection: Arc<Connection>,
        registry: Arc<Registry>,
        capabilities: Capabilities,
        policy: WaitPolicy,
        reach: Reach,
    ) -> Self {
        let (sends, receives) =
            (ring_terms(&connection, connection.side), ring_terms(&connection, connection.side.peer()));
        let mut endpoint = Self {
            send_ring: SendRing::new(sends.depth, sends.capacity()),
            recv_ring: RecvRing::new(receives.capacity()),
            recv_entries: connection.layout.entry(connection.side.peer(), 0),
            remote: RemoteRegions::new(registry.limits().clone(), Owner::User(connection.peer.uid)),
            completions: VecDeque::new(),
            passed: Passed::default(),
            counters: Counters::default(),
            connection,
            registry,
            announces: false,
            capabilities,
            policy,
            state: Liveness::Open,
            current: None,
            sent_unflushed: false,
            taken_unflushed: false,
            starved: false,
            armed: false,
            socket_due: false,
            control_left: false,
            control_seen: 0,
            polls: 0,
            cpu: 0,
            waits: 0,
            woken_by: WokenBy::Nothing,
            hears_events: false,
            crowded_waits: 0,
            cpu_was_taken: false,
            yield_max: super::wake::YIELD_MIN,
        };
        endpoint.publish_cpu();
        endpoint.open_memory(reach);
        endpoint
    }

    /// What happened so far.
    pub fn counters(&self) -> Counters {
        self.counters
    }

    /// The connection ends: the next `recv` or `flush` says why.
    #[cold]
    pub(super) fn fail(&mut self, error: impl Into<TransportError>) {
        if matches!(self.state, Liveness::Open | Liveness::PeerGone) {
            self.state = Liveness::Failing(error.into());
        }
    }

    /// Posts are still taken.
    pub(super) fn is_open(&self) -> bool {
        matches!(self.state, Liveness::Open)
    }

    /// Takes what the peer sent over the socket, registrations or its end: at most so many messages.
    #[cold]
    pub(super) fn drain_control(&mut self, messages_max: u32) {
        self.take_control(messages_max);
        self.remote.unmap_ended();
    }

    fn take_control(&mut self, messages_max: u32) {
        let mut bytes = [0; MESSAGE_SIZE];
        self.counters.socket_looks += 1;
        self.control_left = false;
        let claimed = self.connection.peer_control_sent();
        for _ in 0..messages_max {
            match self.connection.receive(&mut bytes) {
                Ok(Incoming::Message { len, mut fds, cut }) => {
                    self.control_seen = self.control_seen.wrapping_add(1);
                    if let Ok(Message::Descriptor { key }) = Message::decode(&bytes, len) {
                        let arrived = self.passed.arrive(key, &mut fds, cut);
                        if !fds.is_empty() {
                            self.remote.close(fds);
                        }
                        if let Err(fault) = arrived {
                            return self.fail(fault);
                        }
                        continue;
                    }
                    if !fds.iter().all(|file| is_sealable(file.as_fd())) {
                        self.remote.close(fds);
                        return self.fail(malformed("seals of a region's memory file", 0, 1));
                    }
                    let file = fds.first().filter(|_| fds.len() == 1 && !cut);
                    let result = match (Message::decode(&bytes, len), file) {
                        (Ok(Message::Register { key, offset, len, access }), Some(file)) => {
                            self.remote.register(key, (offset, len), access, file)
                        }
                        (Ok(Message::Register { .. }), None) if cut && fds.is_empty() => {
                            // It is lost: on the next connection all regions are announced anew.
                            let source = io::Error::from_raw_os_error(libc::EMFILE);
                            return self
                                .fail(TransportError::system("take a descriptor of the peer", source));
                        }
                        (Ok(Message::Unregister { key }), None) if !cut => {
                            self.remote.unregister(key).map(|()| false)
                        }
                        (Err(fault), _) => Err(fault),
                        _ => Err(malformed("kind of a socket message", u64::from(bytes[0]), 4)),
                    };
                    if !fds.is_empty() && !matches!(result, Ok(true)) {
                        // It may be the last of much memory.
                        self.remote.close(fds);
                    }
                    if let Err(fault) = result {
                        return self.fail(fault);
                    }
                }
                Ok(Incoming::Nothing) => {
                    // A message is counted after it was sent.
                    if self.is_due(claimed) {
                        let seen = self.control_seen.into();
                        self.fail(malformed("messages sent over the socket", claimed.into(), seen));
                    }
                    return;
                }
                Ok(Incoming::End) => return self.lose_peer(),
                Err(error) => {
                    tracing::debug!(%error, "shm: the socket failed");
                    return self.lose_peer();
                }
            }
        }
        self.control_left = true;
    }

    /// The peer is gone. A connection that has ended otherwise stays so.
    fn lose_peer(&mut self) {
        if self.is_open() {
            self.state = Liveness::PeerGone;
        }
    }

    /// The peer has sent more over the socket than was taken from it. Not, when it has counted less: that may change any moment, or never.
    fn is_due(&self, sent: u32) -> bool {
        sent.wrapping_sub(self.control_seen).cast_signed() > 0
    }

    pub(super) fn control_is_due(&self) -> bool {
        self.control_left || self.is_due(self.connection.peer_control_sent())
    }

    /// Looks at what the peer has taken.
    fn look_taken(&mut self) {
        let word = self.connection.layout.consumed(self.connection.side);
        let taken = self.connection.segment.word(word).load(Ordering::Acquire);
        self.counters.taken_looks += 1;
        if let Err(bad) = self.send_ring.taken_until(taken) {
            self.fail(malformed("messages taken", bad.value.into(), bad.limit.into()));
        }
    }

    /// Nothing is to leave before a message does.
    fn check_order(&mut self) -> Result<(), PostError> {
        if !self.is_open() {
            return Err(PostError::Closed);
        }
        if self.connection.has_waiting() && !self.send_waiting() {
            self.starved = true;
            return Err(if self.is_open() { PostError::Full } else { PostError::Closed });
        }
        Ok(())
    }

    /// Sends what waits of the messages about regions; `true` when nothing does any more.
    #[cold]
    fn send_waiting(&mut self) -> bool {
        if self.connection.has_lost() {
            let source = io::Error::from_raw_os_error(libc::ENOBUFS);
            self.fail(TransportError::system("announce a region", source));
            return false;
        }
        self.connection.send_waiting()
    }

    /// Room for one more message: looks at the shared word only when there seems to be none.
    pub(super) fn make_room(&mut self) -> Result<(), PostError> {
        self.check_order()?;
        if !self.send_ring.has_room() {
            self.look_taken();
            if !self.send_ring.has_room() {
                self.starved = true;
                return Err(PostError::Full);
            }
        }
        self.starved = false;
        Ok(())
    }

    /// Nothing in the ring: looks, now and then or when there is reason to, at the socket.
    #[inline(never)]
    fn recv_nothing(&mut self) -> Result<Option<Received>, TransportError> {
        self.polls = self.polls.wrapping_add(1);
        if self.polls.is_multiple_of(POLLS_BETWEEN_CPU_LOOKS) {
            self.publish_cpu();
            self.socket_due |= self.polls.is_multiple_of(POLLS_BETWEEN_SOCKET_LOOKS);
        }
        if self.taken_unflushed {
            self.wake_peer();
        }
        if self.socket_due || self.control_is_due() {
            self.socket_due = false;
            self.drain_control(CONTROL_PER_TURN);
            if self.connection.has_waiting() {
                self.send_waiting();
            }
        }
        match self.state {
            Liveness::Open => Ok(None),
            // It may have sent right before it closed.
            Liveness::PeerGone if matches!(self.arrival().0, Arrival::Message) => self.recv(),
            _ => Err(self.end()),
        }
    }

    /// Closes, and says why.
    #[cold]
    fn end(&mut self) -> TransportError {
        let state = std::mem::replace(&mut self.state, Liveness::Closed);
        if !matches!(state, Liveness::Closed) {
            sock::shutdown(self.connection.socket.as_fd());
            self.registry.detach(&self.connection);
        }
        match state {
            Liveness::Failing(error) => error,
            _ => TransportError::Closed,
        }
    }
}

impl Endpoint for ShmEndpoint {
    fn capabilities(&self) -> &Capabilities {
        &self.capabilities
    }

    fn reserve(&mut self, payload_len_max: usize) -> Result<SendSlot, PostError> {
        let payload_max = self.capabilities.send_payload_max;
        if payload_len_max > payload_max as usize {
            return Err(PostError::Invalid("the payload is larger than the peer receives"));
        }
        self.make_room()?;
        if payload_len_max == 0 {
            self.send_ring.reserve();
            return Ok(SendSlot { id: NO_BUFFER, payload_capacity: 0 });
        }
        if !self.send_ring.has_free_buffer() && self.send_ring.in_flight() > 0 {
            self.look_taken();
        }
        let buffer = self.send_ring.take_buffer().ok_or(PostError::Full)?;
        self.send_ring.reserve();
        Ok(SendSlot { id: buffer.into(), payload_capacity: payload_max })
    }

    fn slot_payload(&self, slot: &SendSlot) -> Span<'_> {
        let Ok(buffer) = u16::try_from(slot.id) else { return Span::EMPTY };
        let at = self.connection.layout.buffer(self.connection.side, buffer);
        self.connection.segment.span().slice(at, slot.payload_capacity as usize).unwrap_or(Span::EMPTY)
    }

    fn send(&mut self, slot: SendSlot, head: &[u8], payload_len: usize) -> Result<(), PostError> {
        let checked = check_message(head, payload_len, slot.payload_capacity);
        if let Err(error) = checked.and_then(|()| self.check_order()) {
            self.cancel_send(slot);
            return Err(error);
        }
        let buffer = u16::try_from(slot.id).ok();
        self.write_entry(KIND_MESSAGE, head, Payload { buffer, len: payload_len });
        Ok(())
    }

    fn cancel_send(&mut self, slot: SendSlot) {
        if let Ok(buffer) = u16::try_from(slot.id) {
            self.send_ring.free_buffer(buffer);
        }
        self.send_ring.cancel();
    }

    #[inline]
    fn recv(&mut self) -> Result<Option<Received>, TransportError> {
        self.recv_done();
        if self.armed {
            self.disarm();
        }
        if !matches!(self.state, Liveness::Open | Liveness::PeerGone) {
            return Err(self.end());
        }
        let (arrival, at) = self.arrival();
        match arrival {
            Arrival::Message => match self.take_entry(at) {
                Ok(taken) => Ok(Some(self.received(at, &taken))),
                Err(fault) => {
                    self.fail(fault);
                    Err(self.end())
                }
            },
            Arrival::Nothing => self.recv_nothing(),
            Arrival::Invalid => {
                let sequence = self.connection.segment.word(at).load(Ordering::Relaxed);
                let expected = self.recv_ring.expected();
                self.fail(malformed("sequence of a ring entry", sequence.into(), expected.into()));
                Err(self.end())
            }
        }
    }

    fn payload(&self) -> Span<'_> {
        let (offset, len) = self.current.unwrap_or((0, 0));
        self.connection.segment.span().slice(offset, len).unwrap_or(Span::EMPTY)
    }

    #[inline]
    fn recv_done(&mut self) {
        if self.current.take().is_some() {
            let taken = self.recv_ring.taken();
            let word = self.connection.layout.consumed(self.connection.side.peer());
            self.connection.segment.word(word).store(taken, Ordering::Release);
            self.taken_unflushed = true;
        }
    }

    fn rdma_write(
        &mut self,
        token: OpToken,
        local: LocalSegments,
        remote: RemoteRange,
        immediate: Option<u32>,
    ) -> Result<Posted, PostError> {
        self.check_post(&local, &remote)?;
        if immediate.is_some() {
            self.make_room()?;
        }
        let result = self.copy(Way::Write, &local, &[remote], &remote);
        if result.as_ref().is_err_and(TransportError::is_local_fault) {
            return Err(PostError::Faulted);
        }
        if let (Ok(()), Some(data)) = (&result, immediate) {
            self.post_immediate(data, u32::try_from(remote.len).unwrap_or(u32::MAX));
        }
        Ok(self.complete(token, result))
    }

    fn rdma_read(
        &mut self,
        token: OpToken,
        local: LocalSegments,
        remote: RemoteRange,
    ) -> Result<Posted, PostError> {
        self.check_post(&local, &remote)?;
        let result = self.copy(Way::Read, &local, &[remote], &remote);
        Ok(self.complete(token, result))
    }

    fn remote_memory(
        &mut self,
        remote: &RemoteRange,
        access: Access,
    ) -> Result<Option<MemoryRef>, RegionError> {
        match self.reach(remote, access) {
            Ok((Resolved::Mapped(mapping, offset), loan)) => {
                let memory: Arc<dyn Memory> = Arc::new(MappedMemory::new(mapping, loan));
                let len = usize::try_from(remote.len).unwrap_or(usize::MAX);
                Ok(MemoryRef::new(memory).slice(offset, len))
            }
            Ok((Resolved::Ordinary(_), _)) => Ok(None),
            Err(unreachable) => Err(unreachable.into_error(remote.key)),
        }
    }

    #[inline]
    fn with_remote_memory(
        &mut self,
        remote: &RemoteRange,
        access: Access,
        access_now: &mut dyn FnMut(Span<'_>),
    ) -> Result<bool, RegionError> {
        // Counted for the time of the call, and nothing is allocated.
        if self.remote.knows(remote.key)
            && let Some(_counted) = Counted::begin(&*self.connection, remote.key)
        {
            let span = self.remote.mapped(remote, access);
            access_now(span.map_err(|unreachable| unreachable.into_error(remote.key))?);
            return Ok(true);
        }
        // Not seen yet, ordinary, or gone: the long way tells.
        Ok(self.remote_memory(remote, access)?.map(|memory| access_now(memory.span())).is_some())
    }

    fn poll_completion(&mut self) -> Option<Completion> {
        self.completions.pop_front()
    }

    fn flush(&mut self) -> Result<(), TransportError> {
        if self.connection.has_waiting() {
            self.send_waiting();
        }
        self.wake_peer();
        match self.state {
            Liveness::Open | Liveness::PeerGone => Ok(()),
            _ => Err(self.end()),
        }
    }

    fn wants_flush(&self) -> bool {
        self.connection.has_waiting()
    }

    fn on_event(&mut self, place: usize, _: bool) {
        self.hears_events = true;
        match place {
            PLACE_OF_BELL if self.armed && self.woken_by == WokenBy::Nothing => {
                self.woken_by = WokenBy::BellEvent;
            }
            // It rang for a side that has woken meanwhile.
            PLACE_OF_BELL => {}
            _ => self.socket_due = true,
        }
    }

    fn arm(&mut self) -> bool {
        self.arm_for_sleep()
    }

    fn wait_or(
        &mut self,
        timeout: Option<Duration>,
        interrupt: Option<&Interrupt>,
    ) -> Result<(), TransportError> {
        self.sleep(timeout, interrupt)
    }

    fn spin_pays(&self) -> bool {
        self.policy != WaitPolicy::Event && self.peer_cpu() != self.cpu
    }

    fn event_fds(&self) -> EventFds {
        self.connection.event_fds()
    }

    fn close(&mut self) {
        self.end();
    }

    fn rdma_lists(&mut self) -> Option<&mut dyn RdmaLists> {
        Some(self)
    }

    fn own_memory(&mut self) -> Option<&mut dyn OwnMemory> {
        Some(self)
    }

    fn descriptors(&mut self) -> Option<&mut dyn Descriptors> {
        Some(self)
    }

    #[inline]
    fn looks(&mut self) -> Option<&mut dyn Looks> {
        Some(self)
    }
}

impl RdmaLists for ShmEndpoint {
    fn write_list(
        &mut self,
        token: OpToken,
        local: &MemoryRef,
        remote: &[RemoteRange],
    ) -> Result<PostedList, PostError> {
        self.copy_list(Way::Write, token, local, remote)
    }

    fn read_list(
        &mut self,
        token: OpToken,
        local: &MemoryRef,
        remote: &[RemoteRange],
    ) -> Result<PostedList, PostError> {
        self.copy_list(Way::Read, token, local, remote)
    }
}

impl OwnMemory for ShmEndpoint {
    fn register(&mut self, _: &dyn Domain, memory: MemoryRef, access: Access) -> Result<Region, RegionError> {
        self.registry.register_own(&self.connection, memory, access)
    }

    /// The peer keeps descriptors of what was announced to it.
    fn open_memory(&mut self, to: Reach) {
        if to == Reach::Domain && !self.announces && !matches!(self.state, Liveness::Closed) {
            self.announces = true;
            self.registry.attach(Arc::clone(&self.connection));
        }
    }
}

impl Descriptors for ShmEndpoint {
    fn pass(&mut self, key: u64, descriptor: BorrowedFd<'_>) -> Result<(), PostError> {
        self.check_order()?;
        self.connection.pass(&Message::Descriptor { key }, descriptor)
    }

    fn expect(&mut self, key: u64) {
        self.passed.expect(key);
    }

    fn take(&mut self, key: u64) -> Option<OwnedFd> {
        // It comes before the message that tells of it, by another way.
        if !self.passed.has(key) && self.is_open() {
            self.drain_control(CONTROL_BEFORE_VERDICT);
        }
        self.passed.take(key)
    }
}

impl Looks for ShmEndpoint {
    fn look(&mut self, times: u32) -> bool {
        (0..times).any(|_| !matches!(self.arrival().0, Arrival::Nothing))
    }

    fn gives_way(&self) -> bool {
        self.control_left
    }
}

impl Drop for ShmEndpoint {
    fn drop(&mut self) {
        self.end();
    }
}
