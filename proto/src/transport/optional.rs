//! What only some endpoints can do. Each ability has an accessor of [`Endpoint`], which returns `None` where it is missing.
//!
//! The methods of `impl dyn Endpoint` do what a caller wants either way, with the ability or without it.

use std::os::fd::{BorrowedFd, OwnedFd};
use std::time::Duration;

use super::{
    Access, Domain, Endpoint, LocalSegments, MemoryRef, OpToken, PostError, Posted, PostedList, Reach,
    Region, RegionError, RemoteRange, SendSlot, Span, TransportError,
};

/// Memory lies ready for each message that may arrive: [`Endpoint::receives`].
pub trait Receives {
    /// Messages that may arrive at once now without making the peer wait, at least 1. Fewer than `recv_depth` on a side that accepted.
    fn expected(&self) -> u16;

    /// Makes ready for so many messages at once, as far as there is memory and within `recv_depth`; returns [`Receives::expected`]. To be
    /// called before the peer is told that it may send more. With fewer than before, what is not needed any more is given up as messages
    /// arrive. Not blocking.
    fn expect(&mut self, count: u16) -> u16;
}

/// Messages that leave from where their bytes are: [`Endpoint::gathers`].
pub trait Gathers {
    /// Whether a message with a payload of this length is better sent by [`Gathers::send_gathered`] than built in a slot. `Ok(true)` also
    /// says that there is room for it now; `Full` that there will be.
    fn prefers_gathered(&mut self, payload_len: usize) -> Result<bool, PostError>;

    /// Sends a message whose payload is gathered, in order, from memory that is the caller's again on return; what the transport
    /// does not take at once is copied. Only right after [`Gathers::prefers_gathered`] has answered `true` for its length.
    fn send_gathered(&mut self, head: &[u8], payload: &[Span<'_>]) -> Result<(), PostError>;
}

/// A write whose local memory may fault can find it gone after it was posted. Then it completes with
/// [`TransportError::is_local_fault`], and the connection goes on: [`Endpoint::faults_late`].
pub trait FaultsLate {
    /// Queues a message as [`Endpoint::send`] does, that must not leave unless the local memory of all writes posted before it was there
    /// when they left: the reply of a read, with its count. A completion with the token follows in any case. With
    /// [`TransportError::is_local_fault`] it says that the message was taken back, perhaps for a write of somebody else's: the caller sends
    /// another.
    fn send_if_whole(
        &mut self,
        token: OpToken,
        slot: SendSlot,
        head: &[u8],
        payload_len: usize,
    ) -> Result<(), PostError>;
}

/// RDMA of many ranges as one: [`Endpoint::rdma_lists`].
pub trait RdmaLists {
    /// Writes to as many of the ranges, in order, as can be taken now, at least one, from the beginning of contiguous local memory.
    fn write_list(
        &mut self,
        token: OpToken,
        local: &MemoryRef,
        remote: &[RemoteRange],
    ) -> Result<PostedList, PostError>;

    /// The counterpart of [`RdmaLists::write_list`].
    fn read_list(
        &mut self,
        token: OpToken,
        local: &MemoryRef,
        remote: &[RemoteRange],
    ) -> Result<PostedList, PostError>;
}

/// Memory that the peer of one connection alone reaches: [`Endpoint::own_memory`].
pub trait OwnMemory {
    /// Whether the peer reaches all memory of the domain from now on, or only what was registered for this connection. What the peer was
    /// given already it may keep.
    fn open_memory(&mut self, to: Reach);

    /// Registers memory that the peer of this connection alone is to reach. `domain` is the connection's own. As [`Domain::register`].
    fn register(
        &mut self,
        domain: &dyn Domain,
        memory: MemoryRef,
        access: Access,
    ) -> Result<Region, RegionError>;
}

/// What has arrived can be looked for at less cost than a receive: [`Endpoint::looks`].
pub trait Looks {
    /// Looks up to so many times whether [`Endpoint::recv`] would find a message, and does nothing else: for a loop that has nobody else to
    /// serve.
    fn look(&mut self, times: u32) -> bool;

    /// The peer has sent more of what is no message than one receive takes: who serves several looks at the others first.
    fn gives_way(&self) -> bool {
        false
    }
}

/// Descriptors are passed from the side that accepted to the one that connected: [`Endpoint::descriptors`].
pub trait Descriptors {
    /// Passes a descriptor under this key, ahead of the messages that are sent after it. `Full` where that would have to wait.
    fn pass(&mut self, key: u64, descriptor: BorrowedFd<'_>) -> Result<(), PostError>;

    /// One is asked for under this key: the peer may pass it. One that nobody has asked for ends the connection.
    fn expect(&mut self, key: u64);

    /// Takes what was passed under this key; nothing more is expected under it.
    fn take(&mut self, key: u64) -> Option<OwnedFd>;
}

/// Everything goes through a stream of the kernel, in calls of this side: [`Endpoint::stream`].
pub trait Stream {
    /// From now on one call of [`Endpoint::recv`] or [`Endpoint::flush`] moves about this many bytes at most, so that a loop comes to
    /// its other connections soon; what is left goes on with the next call.
    fn set_turn(&mut self, bytes_max: usize);

    /// What has been moved so far.
    fn traffic(&self) -> Traffic;

    /// The peer's end of the connection is still open, as far as the kernel knows: nobody else can have its address meanwhile.
    fn peer_is_there(&self) -> bool;
}

/// What calls of this side have moved, and RDMA of both. All 0 where that does not take calls.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Traffic {
    /// Bytes that calls of this side have sent: sending takes as long as they are many.
    pub sent: u64,
    /// Bytes that have come from the peer, those of RDMA that it does included: a sign that it is there, while no message may come.
    pub received: u64,
    /// Bytes of data that RDMA of both sides has moved, either way. It takes the peer's doing, and shows before an operation completes.
    pub of_rdma: u64,
}

impl dyn Endpoint + '_ {
    /// Queues a message from ordinary memory: reserve, copy, send.
    pub fn send_copy(&mut self, head: &[u8], payload: &[u8]) -> Result<(), PostError> {
        let slot = self.reserve(payload.len())?;
        self.slot_payload(&slot).write_from(0, payload);
        self.send(slot, head, payload.len())
    }

    /// Waits, as the [`super::WaitPolicy`] says, until something may have arrived, output can leave, or the timeout passed;
    /// flushes first. The caller's thread blocks.
    pub fn wait(&mut self, timeout: Option<Duration>) -> Result<(), TransportError> {
        self.wait_or(timeout, None)
    }

    /// Messages that may arrive at once now without making the peer wait; `u16::MAX` where that costs nothing.
    pub fn messages_expected(&mut self) -> u16 {
        self.receives().map_or(u16::MAX, |receives| receives.expected())
    }

    /// See [`Receives::expect`].
    pub fn expect_messages(&mut self, count: u16) -> u16 {
        self.receives().map_or(u16::MAX, |receives| receives.expect(count))
    }

    /// See [`Gathers::prefers_gathered`].
    #[inline]
    pub fn prefers_gathered(&mut self, payload_len: usize) -> Result<bool, PostError> {
        self.gathers().map_or(Ok(false), |gathers| gathers.prefers_gathered(payload_len))
    }

    /// See [`Gathers::send_gathered`].
    pub fn send_gathered(&mut self, head: &[u8], payload: &[Span<'_>]) -> Result<(), PostError> {
        match self.gathers() {
            Some(gathers) => gathers.send_gathered(head, payload),
            None => Err(PostError::Invalid("this transport sends from its own memory only")),
        }
    }

    /// See [`FaultsLate::send_if_whole`].
    pub fn send_if_whole(
        &mut self,
        token: OpToken,
        slot: SendSlot,
        head: &[u8],
        payload_len: usize,
    ) -> Result<(), PostError> {
        if let Some(endpoint) = self.faults_late() {
            return endpoint.send_if_whole(token, slot, head, payload_len);
        }
        self.cancel_send(slot);
        Err(PostError::Invalid("writes of this transport do not fault after they were posted"))
    }

    /// Writes the beginning of contiguous local memory into several ranges of the peer's memory, in order: as many of them as can be
    /// taken now, at least one. None is empty. Otherwise as [`Endpoint::rdma_write`] of each; where the provider can, they are one.
    pub fn rdma_write_list(
        &mut self,
        token: OpToken,
        local: &MemoryRef,
        remote: &[RemoteRange],
    ) -> Result<PostedList, PostError> {
        if let Some(lists) = self.rdma_lists() {
            return lists.write_list(token, local, remote);
        }
        post_each(local, remote, |local, range| self.rdma_write(token, local, range, None))
    }

    /// Reads several ranges of the peer's memory, in order, to the beginning of contiguous local memory: the counterpart of
    /// `rdma_write_list`.
    pub fn rdma_read_list(
        &mut self,
        token: OpToken,
        local: &MemoryRef,
        remote: &[RemoteRange],
    ) -> Result<PostedList, PostError> {
        if let Some(lists) = self.rdma_lists() {
            return lists.read_list(token, local, remote);
        }
        post_each(local, remote, |local, range| self.rdma_read(token, local, range))
    }

    /// See [`OwnMemory::open_memory`]. Where regions of a domain are open to all of its connections anyway, nothing changes.
    pub fn open_memory(&mut self, to: Reach) {
        if let Some(own) = self.own_memory() {
            own.open_memory(to);
        }
    }

    /// See [`OwnMemory::register`]. Where the provider cannot tell one connection from another, all of the domain's reach it.
    pub fn register(
        &mut self,
        domain: &dyn Domain,
        memory: MemoryRef,
        access: Access,
    ) -> Result<Region, RegionError> {
        match self.own_memory() {
            Some(own) => own.register(domain, memory, access),
            None => domain.register(memory, access),
        }
    }

    /// See [`Looks::look`]. Where a look costs as much as a receive, it is not made: `false`.
    #[inline]
    pub fn look(&mut self, times: u32) -> bool {
        self.looks().is_some_and(|looks| looks.look(times))
    }

    /// See [`Looks::gives_way`].
    #[inline]
    pub fn gives_way(&mut self) -> bool {
        self.looks().is_some_and(|looks| looks.gives_way())
    }

    /// See [`Stream::set_turn`]. Ignored where nothing is moved in these calls.
    pub fn set_turn(&mut self, bytes_max: usize) {
        if let Some(stream) = self.stream() {
            stream.set_turn(bytes_max);
        }
    }

    /// See [`Stream::traffic`].
    #[inline]
    pub fn traffic(&mut self) -> Traffic {
        self.stream().map_or(Traffic::default(), |stream| stream.traffic())
    }

    /// See [`Stream::peer_is_there`]. `true` where the kernel cannot tell.
    pub fn peer_is_there(&mut self) -> bool {
        self.stream().is_none_or(|stream| stream.peer_is_there())
    }
}

/// One operation for each range, until one is not taken.
fn post_each(
    local: &MemoryRef,
    remote: &[RemoteRange],
    mut post: impl FnMut(LocalSegments, RemoteRange) -> Result<Posted, PostError>,
) -> Result<PostedList, PostError> {
    let (mut taken, mut at) = (PostedList { ranges: 0, pending: 0 }, 0);
    for range in remote {
        let part = usize::try_from(range.len).ok().and_then(|len| local.slice(at, len));
        let posted = match part {
            Some(part) => post(LocalSegments::from_iter([part]), *range),
            None => Err(PostError::Invalid("less memory than ranges")),
        };
        match posted {
            Ok(posted) => {
                taken.ranges += 1;
                taken.pending += u32::from(posted == Posted::Pending);
                at += usize::try_from(range.len).unwrap_or(usize::MAX);
            }
            // The next call says so again.
            Err(_) if taken.ranges > 0 => break,
            Err(error) => return Err(error),
        }
    }
    Ok(taken)
}

/// For tests of a provider by its own type: what `dyn Endpoint` has.
#[cfg(test)]
pub(in crate::transport) trait OfType: Endpoint + Sized {
    fn send_copy(&mut self, head: &[u8], payload: &[u8]) -> Result<(), PostError> {
        let endpoint: &mut dyn Endpoint = self;
        endpoint.send_copy(head, payload)
    }

    fn wait(&mut self, timeout: Option<Duration>) -> Result<(), TransportError> {
        self.wait_or(timeout, None)
    }

    #[cfg(feature = "verbs")]
    fn expect_messages(&mut self, count: u16) -> u16 {
        let endpoint: &mut dyn Endpoint = self;
        endpoint.expect_messages(count)
    }
}

#[cfg(test)]
impl<E: Endpoint> OfType for E {}
