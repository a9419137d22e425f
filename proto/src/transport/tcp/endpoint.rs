//! One connection.

use std::collections::VecDeque;
use std::io;
use std::net::{SocketAddr, TcpStream};
use std::os::fd::{AsFd, AsRawFd};
use std::sync::Arc;
use std::time::Duration;

use rustix::event::PollFlags;
use smallvec::smallvec;

use crate::back_off::BackOff;

use super::super::util::{check_destination, check_rdma, poll};
use super::super::{
    Access, Capabilities, Completion, Domain, Endpoint, EventFds, FaultsLate, Gathers, Interrupt,
    LocalSegments, MemoryRef, OpToken, OwnMemory, PostError, Posted, PostedList, Provider, RdmaLists, Reach,
    Received, Region, RegionError, RemoteRange, SendSlot, Span, Stream, Traffic, TransportError, WaitPolicy,
};
use super::domain_parts::TcpDomainParts;
use super::frame::Hello;
use super::input::{Filled, Input, Step};
use super::link::{Counters, Link};
use super::output::{Output, faulted};
use super::sys::{self, Block, Left};
use super::{LIST_RANGES_MAX, RDMA_SIZE_MAX, SEGMENTS_MAX};

/// Frames that one call of [`Endpoint::recv`] deals with before it lets others work.
const RECV_FRAMES_MAX: u32 = 256;

/// Payloads from this size up are sent from where they are: a copy of less costs no more than an additional system call, bytes.
const GATHERED_MIN: usize = 16 << 10;

/// Messages of this many bytes together leave at once: while the peer works on them the next ones are made, bytes.
const EARLY_FLUSH: usize = 32 << 10;

/// Waits without a spin where spinning did not pay: at first, and at most.
const SPIN_PAUSE_MIN: u32 = 64;
const SPIN_PAUSE_MAX: u32 = 8192;

/// A connection of the tcp provider.
pub struct TcpEndpoint {
    pub(super) link: Link,
    pub(super) input: Input,
    pub(super) output: Output,
    capabilities: Capabilities,
    // Posted and not yet polled. Invariant: at most `capabilities.rdma_depth`.
    rdma_in_flight: u16,
    pub(super) policy: WaitPolicy,
    /// Whether spinning before a sleep pays.
    pub(super) spin: BackOff,
    pub(super) loopback: bool,
    pub(super) waits: u32,
    pub(super) peer_on_this_cpu: bool,
    // The event loop calls `on_event`, so `Input::left` can be believed until it does.
    told_of_events: bool,
    // One of them said that the peer sends no more.
    told_of_end: bool,
    // `recv` has answered `None` on the strength of `Input::left`; the next one asks the socket.
    drained_answered: bool,
    // A message was received since the last round without one.
    busy: bool,
    // The loop asks again for a while before it sleeps.
    asks_again: bool,
    // Rounds that asked the socket in vain since the last message or event.
    vain_rounds: u32,
    closed: bool,
    // What `sys::set_receive_timeout` was told last; `None` before that.
    pub(super) receive_timeout: Option<Option<Duration>>,
    /// The last wait that another thread may interrupt was longer than one in the receiving call may be.
    pub(super) waits_long: bool,
    // `Counters::bytes_sent` when a message was last refused for want of room.
    pub(super) refused_at: Option<u64>,
    // Why it ended, where no caller was told yet.
    failure: Option<TransportError>,
}

impl TcpEndpoint {
    /// A connection over `socket`, which is blocking, after the hellos were exchanged.
    pub(super) fn new(
        socket: TcpStream,
        shared: Arc<TcpDomainParts>,
        peer: SocketAddr,
        own: Hello,
        theirs: Hello,
        policy: WaitPolicy,
    ) -> Self {
        sys::report_queue(socket.as_fd());
        let agreed = own.agree(&theirs, Provider::Tcp, Some(peer), SEGMENTS_MAX, RDMA_SIZE_MAX);
        let capabilities = Capabilities { faults_late: true, is_stream: true, ..agreed };
        Self {
            link: Link {
                socket,
                shared,
                completions: VecDeque::new(),
                counters: Counters::default(),
                own: None,
            },
            input: Input::new(own.recv_payload_max),
            output: Output::new(theirs.recv_payload_max, theirs.recv_depth, own.rdma_depth),
            capabilities,
            rdma_in_flight: 0,
            policy,
            spin: BackOff::new(SPIN_PAUSE_MIN, SPIN_PAUSE_MAX),
            loopback: peer.ip().to_canonical().is_loopback(),
            waits: 0,
            peer_on_this_cpu: false,
            told_of_events: false,
            told_of_end: false,
            drained_answered: true,
            busy: false,
            asks_again: false,
            vain_rounds: 0,
            closed: false,
            receive_timeout: None,
            waits_long: false,
            refused_at: None,
            failure: None,
        }
    }

    /// System calls, bytes and copies so far.
    pub fn counters(&self) -> Counters {
        self.link.counters
    }

    #[cfg(test)]
    pub(super) fn fd(&self) -> std::os::fd::BorrowedFd<'_> {
        self.link.socket.as_fd()
    }

    /// Leaves out the look at the CPU that the peer runs on.
    #[cfg(test)]
    pub(super) fn believe_peer_is_elsewhere(&mut self) {
        self.loopback = false;
    }

    /// Memory in buffers of this connection, bytes.
    #[cfg(test)]
    pub(super) fn held_bytes(&self) -> usize {
        self.input.held_bytes() + self.output.held_bytes()
    }

    /// Ends the connection because of `error`; a peer at fault is told why.
    #[cold]
    pub(super) fn fail(&mut self, error: TransportError) -> TransportError {
        if self.closed {
            return error;
        }
        match &error {
            TransportError::Peer(fault) => {
                tracing::warn!(peer = ?self.capabilities.peer.address, %fault, "connection ended: the peer is at fault");
                self.output.send_fault(&self.link, fault);
            }
            TransportError::Closed => {
                tracing::debug!(peer = ?self.capabilities.peer.address, "the peer closed")
            }
            TransportError::System { .. } => {
                tracing::warn!(peer = ?self.capabilities.peer.address, %error, "connection failed");
            }
        }
        self.end();
        error
    }

    /// What a call on a closed connection returns: once, the reason that nobody was told.
    #[cold]
    fn end_reason(&mut self) -> TransportError {
        self.failure.take().unwrap_or(TransportError::Closed)
    }

    fn end(&mut self) {
        self.closed = true;
        self.output.fail(&mut self.link);
        self.input.fail(&mut self.link);
        // An error means that it is down already.
        let _ = self.link.socket.shutdown(std::net::Shutdown::Both);
    }

    pub(super) fn flush_output(&mut self) -> Result<(), TransportError> {
        self.output.flush(&mut self.link).map_err(|error| self.fail(error))
    }

    /// One receive; how many bytes came.
    pub(super) fn fill(&mut self, block: Block) -> Result<usize, TransportError> {
        self.drained_answered = false;
        // Who is not told of events asks again before it sleeps, and meets the end of the stream then. Who is told knows of an end
        // that had arrived with the last event, and gets another event for one that comes later.
        let quick = !self.told_of_end;
        match self.input.fill(&mut self.link, block, quick) {
            Ok(Filled::Bytes(count)) => {
                if self.told_of_events && quick && self.input.left == Left::NoData {
                    self.input.left = Left::Nothing;
                }
                Ok(count)
            }
            Ok(Filled::Nothing) => {
                self.drained_answered = true;
                Ok(0)
            }
            Ok(Filled::EndOfStream) => Err(self.fail(TransportError::Closed)),
            Err(error) => Err(self.fail(error)),
        }
    }

    /// Something to be had without the socket.
    pub(super) fn has_news(&self) -> bool {
        !self.input.starved || !self.link.completions.is_empty()
    }

    fn check_open(&self) -> Result<(), PostError> {
        if self.closed || self.output.is_broken() { Err(PostError::Closed) } else { Ok(()) }
    }

    fn check_rdma(&self, local: &[MemoryRef], remote: &RemoteRange) -> Result<(), PostError> {
        self.check_open()?;
        check_rdma(&self.capabilities, local, remote)?;
        if self.rdma_in_flight < self.capabilities.rdma_depth { Ok(()) } else { Err(PostError::Full) }
    }

    fn post_write(
        &mut self,
        token: OpToken,
        local: LocalSegments,
        remote: &[RemoteRange],
        immediate: Option<u32>,
    ) {
        self.rdma_in_flight += 1;
        self.output.write(token, local, remote, immediate);
    }

    fn post_read(
        &mut self,
        token: OpToken,
        local: LocalSegments,
        remote: &[RemoteRange],
    ) -> Result<(), PostError> {
        check_destination(&local)?;
        let is_list = remote.len() > 1;
        if is_list && !self.input.has_room_for_list() {
            return Err(PostError::Full);
        }
        self.rdma_in_flight += 1;
        let id = self.input.add_read(token, local, is_list);
        self.output.read(id, remote);
        Ok(())
    }

    /// Queues a message; `whole` names it where it leaves only if no write before it faults.
    #[inline]
    fn send_message(
        &mut self,
        slot: SendSlot,
        head: &[u8],
        payload_len: usize,
        whole: Option<OpToken>,
    ) -> Result<(), PostError> {
        if let Err(closed) = self.check_open() {
            self.output.cancel(&self.link, &slot);
            return Err(closed);
        }
        if self.input.drained() {
            // The peer answers what has left: until the next flush there is nothing that it is worth asking for.
            self.drained_answered = false;
        }
        self.output.send(&self.link, slot, head, payload_len, whole)?;
        if self.output.can_go_on()
            && self.output.unsent_message_bytes() >= EARLY_FLUSH
            && let Err(error) = self.flush_output()
        {
            // The message is queued; the next flush or receive says that it was in vain.
            self.failure = Some(error);
        }
        Ok(())
    }

    /// As many of the ranges as one frame takes, and the memory for them.
    fn check_list<'r>(
        &self,
        local: &MemoryRef,
        remote: &'r [RemoteRange],
    ) -> Result<(&'r [RemoteRange], LocalSegments), PostError> {
        let mut len = 0u64;
        let fits = |range: &&RemoteRange| {
            len = len.saturating_add(range.len);
            range.len > 0 && len <= u64::from(RDMA_SIZE_MAX)
        };
        let count = remote.iter().take(usize::from(LIST_RANGES_MAX)).take_while(fits).count();
        let taken = &remote[..count];
        let len: u64 = taken.iter().map(|range| range.len).sum();
        let local = usize::try_from(len).ok().and_then(|len| local.slice(0, len));
        let Some(local) = local.filter(|_| count > 0) else {
            return Err(PostError::Invalid(
                "an empty range, one beyond rdma_size_max, or less memory than ranges",
            ));
        };
        let local = smallvec![local];
        self.check_rdma(&local, &RemoteRange { len, ..taken[0] })?;
        Ok((taken, local))
    }

    /// Learns whether asking again in place of sleeping pays: here it does if the loop asked in vain before.
    #[inline]
    fn on_received(&mut self) {
        self.busy = true;
        if self.vain_rounds > 0 {
            self.vain_rounds = 0;
            self.spin.paid();
        }
    }

    /// Nothing more is here.
    #[inline]
    fn on_silence(&mut self) {
        if self.busy {
            self.busy = false;
            self.asks_again =
                self.told_of_events && self.policy == WaitPolicy::Adaptive && self.spin_is_worth_it();
        } else if self.asks_again {
            self.vain_rounds += 1;
        }
    }
}

impl Endpoint for TcpEndpoint {
    fn capabilities(&self) -> &Capabilities {
        &self.capabilities
    }

    fn reserve(&mut self, payload_len_max: usize) -> Result<SendSlot, PostError> {
        self.check_open()?;
        let slot = self.output.reserve(&self.link, payload_len_max);
        if let Err(PostError::Full) = slot {
            self.refused_at = Some(self.link.counters.bytes_sent);
        }
        slot
    }

    fn slot_payload(&self, slot: &SendSlot) -> Span<'_> {
        self.output.slot_payload(slot)
    }

    #[inline]
    fn send(&mut self, slot: SendSlot, head: &[u8], payload_len: usize) -> Result<(), PostError> {
        self.send_message(slot, head, payload_len, None)
    }

    fn cancel_send(&mut self, slot: SendSlot) {
        self.output.cancel(&self.link, &slot);
    }

    fn recv(&mut self) -> Result<Option<Received>, TransportError> {
        self.input.recv_done();
        if self.closed {
            return Err(self.end_reason());
        }
        let (mut bytes, mut frames) = (0, 0);
        loop {
            match self.input.step(&mut self.link, &mut self.output) {
                Ok(Step::Received(received)) => {
                    self.on_received();
                    return Ok(Some(received));
                }
                Ok(Step::Progress) => {
                    frames += 1;
                    if frames >= RECV_FRAMES_MAX {
                        break;
                    }
                }
                Ok(Step::Starved) => {
                    if self.input.drained() && !self.drained_answered {
                        self.drained_answered = true;
                        break;
                    }
                    if bytes >= self.input.turn_max {
                        break;
                    }
                    match self.fill(Block::No)? {
                        0 if self.input.drained() => break,
                        count => bytes += count,
                    }
                }
                Err(error) => return Err(self.fail(error)),
            }
        }
        if bytes == 0 {
            self.on_silence();
        }
        // A loop that hears of events flushes on the writable one.
        if self.output.can_go_on() || !(self.output.is_empty() || self.told_of_events) {
            self.flush_output()?;
        }
        Ok(None)
    }

    fn payload(&self) -> Span<'_> {
        self.input.payload()
    }

    fn recv_done(&mut self) {
        self.input.recv_done();
    }

    fn rdma_write(
        &mut self,
        token: OpToken,
        local: LocalSegments,
        remote: RemoteRange,
        immediate: Option<u32>,
    ) -> Result<Posted, PostError> {
        self.check_rdma(&local, &remote)?;
        self.post_write(token, local, &[remote], immediate);
        Ok(Posted::Pending)
    }

    fn rdma_read(
        &mut self,
        token: OpToken,
        local: LocalSegments,
        remote: RemoteRange,
    ) -> Result<Posted, PostError> {
        self.check_rdma(&local, &remote)?;
        self.post_read(token, local, &[remote])?;
        Ok(Posted::Pending)
    }

    fn remote_memory(&mut self, _: &RemoteRange, _: Access) -> Result<Option<MemoryRef>, RegionError> {
        Ok(None)
    }

    fn poll_completion(&mut self) -> Option<Completion> {
        let completion = self.link.completions.pop_front()?;
        self.rdma_in_flight -= 1;
        Some(completion)
    }

    fn flush(&mut self) -> Result<(), TransportError> {
        if self.closed {
            return Err(self.end_reason());
        }
        self.flush_output()
    }

    fn wants_flush(&self) -> bool {
        !self.output.is_empty()
    }

    fn on_event(&mut self, _: usize, closed: bool) {
        self.told_of_events = true;
        self.told_of_end |= closed;
        self.input.left = Left::Unknown;
        self.vain_rounds = 0;
    }

    fn arm(&mut self) -> bool {
        if self.closed || self.has_news() || self.output.can_go_on() {
            return false;
        }
        // Without word of events, one that was taken since the socket was last asked may have been for bytes that are there now. Of a
        // connection that was reset, `TCP_INQ` says that nothing is left, and no further event comes.
        if !(self.input.left == Left::Nothing && self.told_of_events && !self.told_of_end) {
            if self.input.has_message() {
                return false;
            }
            match self.fill(Block::No) {
                Ok(0) if self.input.drained() => {}
                Ok(_) => return false,
                Err(error) => {
                    self.failure = Some(error);
                    return false;
                }
            }
        }
        if self.vain_rounds > 0 {
            self.vain_rounds = 0;
            self.spin.missed();
        }
        self.drained_answered = !self.told_of_events;
        self.input.release(&self.link);
        self.output.trim(&self.link);
        true
    }

    fn wait_or(
        &mut self,
        timeout: Option<Duration>,
        interrupt: Option<&Interrupt>,
    ) -> Result<(), TransportError> {
        self.flush()?;
        self.wait_for_news(timeout, interrupt)
    }

    fn spin_pays(&self) -> bool {
        self.asks_again
    }

    fn unsent_bytes(&self) -> usize {
        self.output.unsent_message_bytes()
    }

    fn event_fds(&self) -> EventFds {
        smallvec![self.link.socket.as_raw_fd()]
    }

    fn close(&mut self) {
        if !self.closed {
            self.end();
        }
    }

    fn gathers(&mut self) -> Option<&mut dyn Gathers> {
        Some(self)
    }

    fn faults_late(&mut self) -> Option<&mut dyn FaultsLate> {
        Some(self)
    }

    fn rdma_lists(&mut self) -> Option<&mut dyn RdmaLists> {
        Some(self)
    }

    fn own_memory(&mut self) -> Option<&mut dyn OwnMemory> {
        Some(self)
    }

    #[inline]
    fn stream(&mut self) -> Option<&mut dyn Stream> {
        Some(self)
    }
}

impl Gathers for TcpEndpoint {
    fn prefers_gathered(&mut self, payload_len: usize) -> Result<bool, PostError> {
        self.check_open()?;
        if payload_len < GATHERED_MIN {
            return Ok(false);
        }
        if !self.output.is_empty()
            && let Err(error) = self.flush_output()
        {
            self.failure = Some(error);
            return Err(PostError::Closed);
        }
        let room = self.output.has_room_for_gathered(payload_len);
        if let Err(PostError::Full) = room {
            self.refused_at = Some(self.link.counters.bytes_sent);
        }
        room.map(|()| true)
    }

    fn send_gathered(&mut self, head: &[u8], payload: &[Span<'_>]) -> Result<(), PostError> {
        self.check_open()?;
        if self.input.drained() {
            // As in `send`; the message has left, but its answer has hardly come.
            self.drained_answered = false;
        }
        if self.output.send_in_place(&mut self.link, head, payload)? {
            return Ok(());
        }
        let no_memory = io::ErrorKind::OutOfMemory.into();
        let error = self.fail(TransportError::system("keep the rest of a message", no_memory));
        self.failure = Some(error);
        Err(PostError::Closed)
    }
}

impl FaultsLate for TcpEndpoint {
    fn send_if_whole(
        &mut self,
        token: OpToken,
        slot: SendSlot,
        head: &[u8],
        payload_len: usize,
    ) -> Result<(), PostError> {
        let is_fault =
            |completion: &Completion| matches!(&completion.result, Err(error) if error.is_local_fault());
        if self.link.completions.iter().any(is_fault) {
            self.output.cancel(&self.link, &slot);
            self.link.complete(token, Err(faulted()));
        } else {
            self.send_message(slot, head, payload_len, Some(token))?;
        }
        self.rdma_in_flight += 1;
        Ok(())
    }
}

impl RdmaLists for TcpEndpoint {
    fn write_list(
        &mut self,
        token: OpToken,
        local: &MemoryRef,
        remote: &[RemoteRange],
    ) -> Result<PostedList, PostError> {
        let (taken, local) = self.check_list(local, remote)?;
        self.post_write(token, local, taken, None);
        Ok(PostedList { ranges: taken.len(), pending: 1 })
    }

    fn read_list(
        &mut self,
        token: OpToken,
        local: &MemoryRef,
        remote: &[RemoteRange],
    ) -> Result<PostedList, PostError> {
        let (taken, local) = self.check_list(local, remote)?;
        self.post_read(token, local, taken)?;
        Ok(PostedList { ranges: taken.len(), pending: 1 })
    }
}

impl OwnMemory for TcpEndpoint {
    fn open_memory(&mut self, to: Reach) {
        match to {
            Reach::Domain => self.link.own = None,
            Reach::Own => {
                self.link.own.get_or_insert_default();
            }
        }
    }

    fn register(
        &mut self,
        domain: &dyn Domain,
        memory: MemoryRef,
        access: Access,
    ) -> Result<Region, RegionError> {
        let region = domain.register(memory, access)?;
        self.link.add_own(region.range().key);
        Ok(region)
    }
}

impl Stream for TcpEndpoint {
    fn set_turn(&mut self, bytes_max: usize) {
        self.output.set_turn(bytes_max);
        self.input.set_turn(bytes_max);
    }

    fn traffic(&self) -> Traffic {
        let counters = &self.link.counters;
        Traffic {
            sent: counters.bytes_sent,
            received: counters.bytes_received,
            of_rdma: counters.bytes_of_rdma,
        }
    }

    fn peer_is_there(&self) -> bool {
        let gone = PollFlags::RDHUP | PollFlags::HUP | PollFlags::ERR;
        poll([(self.link.socket.as_fd(), PollFlags::RDHUP)], Some(Duration::ZERO))
            .is_ok_and(|[found]| !found.intersects(gone))
    }
}

impl Drop for TcpEndpoint {
    fn drop(&mut self) {
        self.close();
    }
}
