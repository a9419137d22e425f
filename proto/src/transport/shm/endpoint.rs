//! One connection: messages through the rings, RDMA by copies, sleep and wake.

use std::collections::VecDeque;
use std::os::fd::AsFd;
use std::sync::Arc;
use std::sync::atomic::{Ordering, fence};
use std::time::{Duration, Instant};

use super::super::{
    Access, Capabilities, Completion, Endpoint, EventFds, HEAD_SIZE_MAX, Head, LocalSegments, MemoryRef,
    OpToken, PeerFault, PostError, Posted, Received, RegionError, RemoteRange, SendSlot, Span,
    TransportError, WaitPolicy,
};
use super::connection::Connection;
use super::handshake::{MESSAGE_SIZE, Message, malformed};
use super::layout::{
    Direction, ENTRY_CONTROL_SIZE, ENTRY_ROOM, ENTRY_SIZE, SLEEPS_FOR_MESSAGE, SLEEPS_FOR_ROOM, Side,
};
use super::registry::Registry;
use super::remote::RemoteRegions;
use super::ring::{Arrival, RecvRing, SendRing};
use super::sock::{self, Incoming};

/// The slot has no payload buffer.
const NO_BUFFER: u32 = u32::MAX;
const KIND_MESSAGE: u8 = 1;
const KIND_IMMEDIATE: u8 = 2;
/// Set in the kind of an entry whose payload lies behind the head.
const KIND_EMBEDDED: u8 = 0x80;
/// Polls that find nothing between two looks at the CPU.
const POLLS_BETWEEN_CPU_LOOKS: u32 = 128;
/// Polls that find nothing between two looks at the socket, which tells of a peer that died. A multiple of the other.
const POLLS_BETWEEN_SOCKET_LOOKS: u32 = 4096;
/// How long an adaptive wait pauses before it gives the CPU away, and how long it does that before it sleeps.
const PAUSE_MAX: Duration = Duration::from_micros(2);
const YIELD_MAX: Duration = Duration::from_micros(20);
/// Socket messages taken in one go.
const CONTROL_BATCH_MAX: u32 = 4096;

/// What this endpoint did, for tests and reports.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Counters {
    /// Messages and immediates sent.
    pub messages_sent: u64,
    /// Messages and immediates received.
    pub messages_received: u64,
    /// Times the peer had to be woken by a system call.
    pub doorbells: u64,
    /// Times this side slept in [`Endpoint::wait`].
    pub sleeps: u64,
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
    pub(super) remote: RemoteRegions,
    pub(super) capabilities: Capabilities,
    pub(super) completions: VecDeque<Completion>,
    pub(super) counters: Counters,
    send_ring: SendRing,
    recv_ring: RecvRing,
    policy: WaitPolicy,
    state: State,
    /// Offset and length in the segment of the payload that [`Endpoint::payload`] answers.
    current: Option<(usize, usize)>,
    /// Something was sent, or taken, since the peer was last looked at for sleeping.
    sent_unflushed: bool,
    taken_unflushed: bool,
    /// The last post was answered `Full`.
    starved: bool,
    armed: bool,
    /// This side slept, so the socket may have something to say.
    socket_due: bool,
    control_seen: u32,
    polls: u32,
    cpu: u32,
}

enum State {
    Open,
    /// To be told by the next `recv` or `flush`.
    Failing(PeerFault),
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
    ) -> Self {
        let (sends, receives) =
            (direction(&connection, connection.side), direction(&connection, connection.side.peer()));
        registry.attach(Arc::clone(&connection));
        let mut endpoint = Self {
            send_ring: SendRing::new(sends.depth, sends.capacity()),
            recv_ring: RecvRing::new(receives.capacity()),
            remote: RemoteRegions::default(),
            completions: VecDeque::new(),
            counters: Counters::default(),
            connection,
            registry,
            capabilities,
            policy,
            state: State::Open,
            current: None,
            sent_unflushed: false,
            taken_unflushed: false,
            starved: false,
            armed: false,
            socket_due: false,
            control_seen: 0,
            polls: 0,
            cpu: 0,
        };
        endpoint.publish_cpu();
        endpoint
    }

    /// What happened so far.
    pub fn counters(&self) -> Counters {
        self.counters
    }

    /// The connection ends: the next `recv` or `flush` says why.
    #[cold]
    pub(super) fn fail(&mut self, fault: PeerFault) {
        if matches!(self.state, State::Open | State::PeerGone) {
            self.state = State::Failing(fault);
        }
    }

    /// Posts are still taken.
    pub(super) fn is_open(&self) -> bool {
        matches!(self.state, State::Open)
    }

    /// Takes what the peer sent over the socket: registrations, or its end.
    #[cold]
    pub(super) fn drain_control(&mut self) {
        let mut bytes = [0; MESSAGE_SIZE];
        for _ in 0..CONTROL_BATCH_MAX {
            match self.connection.receive(&mut bytes) {
                Ok(Incoming::Message { len, mut fds, cut }) => {
                    self.control_seen = self.control_seen.wrapping_add(1);
                    let file = (fds.len() == 1).then(|| fds.remove(0));
                    let result = Message::decode(&bytes, len).and_then(|message| match message {
                        Message::Register { key, offset, len, access } if file.is_some() || cut => {
                            self.remote.register(key, (offset, len), access, file)
                        }
                        Message::Unregister { key } if !cut => self.remote.unregister(key),
                        _ => Err(malformed("kind of a socket message", u64::from(bytes[0]), 4)),
                    });
                    if let Err(fault) = result {
                        return self.fail(fault);
                    }
                }
                Ok(Incoming::Nothing) => return,
                Ok(Incoming::End) => {
                    if self.is_open() {
                        self.state = State::PeerGone;
                    }
                    return;
                }
                Err(error) => {
                    tracing::debug!(%error, "shm: the socket failed");
                    self.state = State::PeerGone;
                    return;
                }
            }
        }
    }

    fn publish_cpu(&mut self) {
        let cpu = sock::current_cpu().wrapping_add(1);
        if cpu != self.cpu {
            self.cpu = cpu;
            let word = self.connection.layout.cpu(self.connection.side);
            self.connection.segment.word(word).store(cpu, Ordering::Relaxed);
        }
    }

    fn peer_cpu(&self) -> u32 {
        let word = self.connection.layout.cpu(self.connection.side.peer());
        self.connection.segment.word(word).load(Ordering::Relaxed)
    }

    /// Looks at what the peer has taken.
    fn look_taken(&mut self) {
        let word = self.connection.layout.consumed(self.connection.side);
        let taken = self.connection.segment.word(word).load(Ordering::Acquire);
        self.counters.taken_looks += 1;
        self.note_taken(taken);
    }

    fn note_taken(&mut self, taken: u32) {
        if let Err(bad) = self.send_ring.taken_until(taken) {
            self.fail(malformed("messages taken", bad.value.into(), bad.limit.into()));
        }
    }

    /// Room for one more message: looks at the shared word only when there seems to be none.
    fn make_room(&mut self) -> Result<(), PostError> {
        if !self.is_open() {
            return Err(PostError::Closed);
        }
        if self.connection.has_waiting() && !self.connection.send_waiting() {
            self.starved = true;
            return Err(PostError::Full);
        }
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

    /// Writes the next entry and makes it visible.
    fn write_entry(&mut self, kind: u8, head: &[u8], payload: Payload) {
        let connection = &self.connection;
        let side = connection.side;
        let (entry, sequence) = self.send_ring.next_entry();
        let at = connection.layout.entry(side, entry);
        let segment = connection.segment.span();
        let Some(room) = segment.slice(at, ENTRY_SIZE) else { return };
        let mut kind = kind;
        let (mut position, mut kept) = (0, None);
        let len = payload.len;
        if let Some(buffer) = payload.buffer {
            if head.len() + len <= ENTRY_ROOM {
                kind |= KIND_EMBEDDED;
                let from = segment.slice(connection.layout.buffer(side, buffer), len);
                let to = room.slice(ENTRY_CONTROL_SIZE + head.len(), len);
                if let (Some(from), Some(to)) = (from, to) {
                    to.copy_from(from);
                }
                self.counters.bytes_embedded += len as u64;
                self.send_ring.free_buffer(buffer);
            } else {
                position = buffer;
                kept = Some(buffer);
            }
        }
        let mut control = [0u8; ENTRY_CONTROL_SIZE - 4];
        let taken = self.recv_ring.expected().wrapping_sub(1);
        control[..4].copy_from_slice(&taken.to_ne_bytes());
        control[4..8].copy_from_slice(&u32::try_from(len).unwrap_or(0).to_ne_bytes());
        control[8..10].copy_from_slice(&position.to_ne_bytes());
        control[10] = u8::try_from(head.len()).unwrap_or(0);
        control[11] = kind;
        room.write_from(4, &control);
        room.write_from(ENTRY_CONTROL_SIZE, head);
        connection.segment.word(at).store(sequence, Ordering::Release);
        self.send_ring.sent(kept);
        self.sent_unflushed = true;
        self.counters.messages_sent += 1;
    }

    /// Posts the immediate that ends an RDMA write; the caller has made room.
    pub(super) fn post_immediate(&mut self, data: u32, size: u32) {
        let mut head = [0; 8];
        head[..4].copy_from_slice(&data.to_ne_bytes());
        head[4..].copy_from_slice(&size.to_ne_bytes());
        self.send_ring.reserve();
        self.write_entry(KIND_IMMEDIATE, &head, Payload { buffer: None, len: 0 });
    }

    /// Room for an immediate.
    pub(super) fn room_for_immediate(&mut self) -> Result<(), PostError> {
        self.make_room()
    }

    /// The sequence word of the next entry.
    #[inline]
    fn arrival(&self) -> (Arrival, usize) {
        let at = self.connection.layout.entry(self.connection.side.peer(), self.recv_ring.next_entry());
        let sequence = self.connection.segment.word(at).load(Ordering::Acquire);
        (self.recv_ring.classify(sequence), at)
    }

    /// Takes the message in the entry at `at`. Everything is checked on private copies.
    fn take_entry(&mut self, at: usize) -> Result<Received, PeerFault> {
        let way = direction(&self.connection, self.connection.side.peer());
        let entry = self.connection.segment.span().slice(at, ENTRY_SIZE).unwrap_or(Span::EMPTY);
        let mut control = [0u8; ENTRY_CONTROL_SIZE - 4];
        entry.read_into(4, &mut control);
        let [t0, t1, t2, t3, l0, l1, l2, l3, p0, p1, head_len, kind] = control;
        let payload_len = u32::from_ne_bytes([l0, l1, l2, l3]);
        let buffer = u16::from_ne_bytes([p0, p1]);
        let head_size = usize::from(head_len);
        if head_size == 0 || head_size > HEAD_SIZE_MAX {
            return Err(malformed("size of a head", head_len.into(), HEAD_SIZE_MAX as u64));
        }
        let mut bytes = [0u8; HEAD_SIZE_MAX];
        entry.read_into(ENTRY_CONTROL_SIZE, &mut bytes[..head_size]);
        let head = Head::copy_of(&bytes[..head_size]).unwrap_or(Head::EMPTY);
        let len = payload_len as usize;
        let offset = match kind {
            KIND_IMMEDIATE if head_size == 8 && len == 0 => 0,
            KIND_MESSAGE if len == 0 => 0,
            KIND_MESSAGE => {
                if payload_len > way.payload_max {
                    return Err(malformed("size of a payload", payload_len.into(), way.payload_max.into()));
                }
                if buffer >= way.depth {
                    return Err(malformed("payload buffer", buffer.into(), way.depth.into()));
                }
                self.connection.layout.buffer(self.connection.side.peer(), buffer)
            }
            _ if kind == KIND_MESSAGE | KIND_EMBEDDED => {
                let room = (ENTRY_ROOM - head_size).min(way.payload_max as usize);
                if len > room {
                    return Err(malformed("size of an embedded payload", payload_len.into(), room as u64));
                }
                at + ENTRY_CONTROL_SIZE + head_size
            }
            _ => return Err(malformed("kind of a ring entry", kind.into(), KIND_IMMEDIATE.into())),
        };
        let taken = u32::from_ne_bytes([t0, t1, t2, t3]);
        if let Err(bad) = self.send_ring.taken_until_at_least(taken) {
            return Err(malformed("messages taken", bad.value.into(), bad.limit.into()));
        }
        self.current = Some((offset, len));
        self.counters.messages_received += 1;
        if kind == KIND_IMMEDIATE {
            let [d0, d1, d2, d3, s0, s1, s2, s3, ..] = bytes;
            let (data, size) = (u32::from_ne_bytes([d0, d1, d2, d3]), u32::from_ne_bytes([s0, s1, s2, s3]));
            return Ok(Received::Immediate { data, size });
        }
        Ok(Received::Message { head, payload_len })
    }

    /// Nothing in the ring: looks, now and then or when there is reason to, at the socket.
    fn recv_nothing(&mut self) -> Result<Option<Received>, TransportError> {
        self.polls = self.polls.wrapping_add(1);
        if self.polls.is_multiple_of(POLLS_BETWEEN_CPU_LOOKS) {
            self.publish_cpu();
            self.socket_due |= self.polls.is_multiple_of(POLLS_BETWEEN_SOCKET_LOOKS);
        }
        if self.taken_unflushed {
            self.wake_peer();
        }
        if self.socket_due || self.connection.peer_control_sent() != self.control_seen {
            self.socket_due = false;
            self.drain_control();
            if self.connection.has_waiting() {
                self.connection.send_waiting();
            }
        }
        match self.state {
            State::Open => Ok(None),
            // It may have sent right before it closed.
            State::PeerGone if matches!(self.arrival().0, Arrival::Message) => self.recv(),
            _ => Err(self.end()),
        }
    }

    /// Closes, and says why.
    #[cold]
    fn end(&mut self) -> TransportError {
        let state = std::mem::replace(&mut self.state, State::Closed);
        if !matches!(state, State::Closed) {
            sock::shutdown(self.connection.socket.as_fd());
            self.registry.detach(&self.connection);
        }
        match state {
            State::Failing(fault) => TransportError::Peer(fault),
            _ => TransportError::Closed,
        }
    }

    /// Rings the peer's doorbell if it sleeps and would want to know.
    fn wake_peer(&mut self) {
        let sent = std::mem::take(&mut self.sent_unflushed);
        let taken = std::mem::take(&mut self.taken_unflushed);
        if !sent && !taken {
            return;
        }
        let connection = &self.connection;
        let sleeping = connection.segment.word(connection.layout.sleeping(connection.side.peer()));
        // Published first, then looked at the flag; the sleeper sets the flag first, then looks at the ring. One of the two sees the other.
        fence(Ordering::SeqCst);
        let wants = sleeping.load(Ordering::Relaxed);
        if wants != 0 && (sent || wants == SLEEPS_FOR_ROOM) && sleeping.swap(0, Ordering::AcqRel) != 0 {
            sock::ring(connection.bell_out.as_fd());
            self.counters.doorbells += 1;
        }
    }

    /// Something may be here to receive, or room to send.
    fn is_ready(&self) -> bool {
        if !matches!(self.arrival().0, Arrival::Nothing) || !self.is_open() || !self.completions.is_empty() {
            return true;
        }
        if self.connection.peer_control_sent() != self.control_seen {
            return true;
        }
        self.starved && {
            let word = self.connection.layout.consumed(self.connection.side);
            let taken = self.connection.segment.word(word).load(Ordering::Acquire);
            taken != self.send_ring.taken()
        }
    }

    /// Pauses, then gives the CPU away, while that can pay; `true` when something came or the deadline passed.
    fn spin_briefly(&mut self, started: Instant, deadline: Option<Instant>) -> bool {
        let past = |now| deadline.is_some_and(|deadline| now >= deadline);
        loop {
            for _ in 0..16 {
                if self.is_ready() {
                    return true;
                }
                std::hint::spin_loop();
            }
            let now = Instant::now();
            if past(now) {
                return true;
            }
            if now - started >= YIELD_MAX {
                return false;
            }
            if now - started >= PAUSE_MAX {
                std::thread::yield_now();
                self.publish_cpu();
                if !self.spin_pays() {
                    return false;
                }
            }
        }
    }

    /// Busy waiting: until something came, the peer died, or the deadline passed.
    fn spin_until(&mut self, deadline: Option<Instant>) {
        for round in 1u32.. {
            if self.is_ready() {
                return;
            }
            if round.is_multiple_of(64) && deadline.is_some_and(|deadline| Instant::now() >= deadline) {
                return;
            }
            if round.is_multiple_of(POLLS_BETWEEN_SOCKET_LOOKS) {
                self.drain_control();
            }
            std::hint::spin_loop();
        }
    }

    #[cold]
    fn disarm(&mut self) {
        self.armed = false;
        self.socket_due = true;
        let word = self.connection.layout.sleeping(self.connection.side);
        if self.connection.segment.word(word).swap(0, Ordering::Relaxed) == 0 {
            // The peer cleared it, so it rang, or is about to.
            sock::silence(self.connection.bell_in.as_fd());
        }
        self.publish_cpu();
    }
}

#[derive(Clone, Copy)]
struct Payload {
    buffer: Option<u16>,
    len: usize,
}

fn direction(connection: &Connection, sender: Side) -> Direction {
    connection.layout.directions[sender as usize]
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
        let invalid = if head.is_empty() || head.len() > HEAD_SIZE_MAX {
            Some(PostError::Invalid("the head is empty or too long"))
        } else if payload_len > slot.payload_capacity as usize {
            Some(PostError::Invalid("the payload is longer than its slot"))
        } else if !self.is_open() {
            Some(PostError::Closed)
        } else if self.connection.has_waiting() && !self.connection.send_waiting() {
            self.starved = true;
            Some(PostError::Full)
        } else {
            None
        };
        if let Some(error) = invalid {
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
        if !matches!(self.state, State::Open | State::PeerGone) {
            return Err(self.end());
        }
        let (arrival, at) = self.arrival();
        match arrival {
            Arrival::Message => match self.take_entry(at) {
                Ok(received) => Ok(Some(received)),
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
        self.copy_to_remote(token, &local, &remote, immediate)
    }

    fn rdma_read(
        &mut self,
        token: OpToken,
        local: LocalSegments,
        remote: RemoteRange,
    ) -> Result<Posted, PostError> {
        self.copy_from_remote(token, &local, &remote)
    }

    fn remote_memory(
        &mut self,
        remote: &RemoteRange,
        access: Access,
    ) -> Result<Option<MemoryRef>, RegionError> {
        self.lease_remote(remote, access)
    }

    fn poll_completion(&mut self) -> Option<Completion> {
        self.completions.pop_front()
    }

    fn flush(&mut self) -> Result<(), TransportError> {
        if self.connection.has_waiting() {
            self.connection.send_waiting();
        }
        self.wake_peer();
        match self.state {
            State::Open | State::PeerGone => Ok(()),
            _ => Err(self.end()),
        }
    }

    fn wants_flush(&self) -> bool {
        self.connection.has_waiting()
    }

    fn arm(&mut self) -> bool {
        let wants = if self.starved { SLEEPS_FOR_ROOM } else { SLEEPS_FOR_MESSAGE };
        let word = self.connection.layout.sleeping(self.connection.side);
        self.connection.segment.word(word).store(wants, Ordering::Relaxed);
        fence(Ordering::SeqCst);
        self.armed = true;
        !self.is_ready()
    }

    fn wait(&mut self, timeout: Option<Duration>) -> Result<(), TransportError> {
        self.flush()?;
        if self.armed {
            self.disarm();
        }
        self.publish_cpu();
        if self.is_ready() {
            return Ok(());
        }
        let now = Instant::now();
        let deadline = timeout.and_then(|timeout| now.checked_add(timeout));
        match self.policy {
            WaitPolicy::Event => {}
            WaitPolicy::Adaptive => {
                if self.spin_pays() && self.spin_briefly(now, deadline) {
                    return Ok(());
                }
            }
            WaitPolicy::Busy => {
                self.spin_until(deadline);
                return Ok(());
            }
        }
        if !self.arm() {
            return Ok(());
        }
        let left = deadline.map(|deadline| deadline.saturating_duration_since(Instant::now()));
        self.counters.sleeps += 1;
        let connection = &self.connection;
        let slept = sock::sleep(
            connection.bell_in.as_fd(),
            connection.socket.as_fd(),
            left,
            connection.has_waiting(),
        );
        // Still armed: the next `recv` disarms, silences the doorbell and looks at the socket.
        slept.map(drop).map_err(|error| TransportError::system("wait for the peer", error))
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
}

impl Drop for ShmEndpoint {
    fn drop(&mut self) {
        self.end();
    }
}
