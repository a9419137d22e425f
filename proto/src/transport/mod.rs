//! The provider contract: a small Direct Access Transport.
//!
//! A provider moves *messages* (a head and a payload, both bounded) and does *RDMA* (reads and writes of the peer's registered
//! memory, started by the server). What it can do it says once, in [`Capabilities`], when the connection is made. All providers are used
//! through the same three traits:
//!
//! ```text
//! Domain    allocate · register(memory, access) → Region        connect(address) → Endpoint · listen(address) → Listener
//! Listener  accept() → Endpoint
//! Endpoint  reserve → fill → send          messages out; the slot's memory is the provider's
//!           recv → payload → recv_done     messages in, one at a time, in order, read where they arrived
//!           rdma_write · rdma_read         (token, local memory by value, remote range) → posted | full | closed
//!           poll_completion                every posted token completes exactly once
//!           flush                          what was posted reaches the peer: one system call or doorbell for a batch
//!           arm → recv once more → sleep   closes the race between draining and blocking
//! ```
//!
//! # Rules that every provider keeps (`spec/design/provider.md`)
//! - **Order.** Messages of one connection arrive in the order of [`Endpoint::send`]. An RDMA write posted before a message is visible in
//!   the peer's memory before that message is received. RDMA reads complete in any order with respect to messages.
//! - **Bounds.** Every queue has a depth from [`Capabilities`]. Being full is a normal answer ([`PostError::Full`]):
//!   nothing was posted, the caller keeps the work and tries again after the next completion, receipt or writable
//!   event.
//! - **Ownership.** Memory handed to `rdma_*` belongs to the provider until its [`Completion`] is polled, or the endpoint is dropped.
//!   A [`SendSlot`] is the provider's memory; it is given back by [`Endpoint::send`] or [`Endpoint::cancel_send`].
//! - **Registration.** A peer reaches memory only through a live [`Region`] of the domain that the endpoint belongs
//!   to, inside its bounds and with its rights. One region serves all connections of its domain. When a region is
//!   dropped, no peer access to that memory happens any more.
//! - **Peer faults** end the connection with [`TransportError::Peer`], which says what was wrong; the process and other connections go on.
//! - **No blocking** anywhere but in [`Domain::connect`] and [`Endpoint::wait_or`].

mod completion;
#[cfg(feature = "sim")]
pub mod conformance;
mod error;
mod interrupt;
mod memory;
mod optional;
#[cfg(feature = "shm")]
pub mod shm;
#[cfg(feature = "sim")]
pub mod sim;
#[cfg(feature = "tcp")]
pub mod tcp;
pub mod util;
#[cfg(feature = "verbs")]
pub mod verbs;

use std::os::fd::RawFd;
use std::sync::Arc;
use std::time::Duration;

use smallvec::SmallVec;

pub use crate::address::Address;
pub use completion::{Completion, OpToken};
pub use error::{ConnectError, PeerFault, PostError, RegionError, RegionFault, TransportError};
pub use interrupt::Interrupt;
pub use memory::{
    Access, BorrowedMemory, HeapMemory, Memory, MemoryRef, Region, RegionKey, RegionOwner, RemoteRange,
    SharedFd, Span, part_of,
};
pub use optional::{
    Descriptors, FaultsLate, Gathers, Looks, OwnMemory, RdmaLists, Receives, Stream, Traffic,
};

/// The largest head of a message, bytes. A head is a message header and its fixed-layout body.
pub const HEAD_SIZE_MAX: usize = 112;

/// Local memory of one RDMA operation: a gather or scatter list, by value.
pub type LocalSegments = SmallVec<[MemoryRef; 2]>;

/// Descriptors that an event loop watches for one endpoint or listener, edge-triggered, readable and writable.
pub type EventFds = SmallVec<[RawFd; 2]>;

/// Which provider carries a connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Provider {
    /// Software RDMA over a TCP stream.
    Tcp,
    /// Rings and registered memory in shared memory of one host.
    Shm,
    /// RDMA over libibverbs.
    Verbs,
    /// Virtual time and seeded faults, for tests.
    Sim,
}

impl Provider {
    /// The provider's name as used in addresses, reports and logs.
    pub fn name(self) -> &'static str {
        match self {
            Self::Tcp => "tcp",
            Self::Shm => "shm",
            Self::Verbs => "verbs",
            Self::Sim => "sim",
        }
    }
}

impl std::fmt::Display for Provider {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(self.name())
    }
}

/// What one side asks for when it connects or listens. Each side states its own; what holds is in [`Capabilities`].
#[derive(Clone, Copy, Debug)]
pub struct ConnectParams {
    /// Largest payload of a message this side is ready to receive, bytes.
    pub recv_payload_max: u32,
    /// Messages this side is ready to hold that its consumer has not yet taken: its posted receives.
    pub recv_depth: u16,
    /// Largest payload of a message that this side will ever send, bytes, and messages that it will have sent and the peer not yet taken:
    /// a provider that keeps memory for them keeps no more than for these, whatever the peer is ready to receive.
    pub send_payload_max: u32,
    /// See `send_payload_max`.
    pub send_depth_max: u16,
    /// RDMA operations this side wants in flight at once.
    pub rdma_depth: u16,
    /// How this side waits.
    pub wait: WaitPolicy,
    /// What the peer of a connection that is made reaches, until [`OwnMemory::open_memory`] says otherwise.
    pub reach: Reach,
}

impl Default for ConnectParams {
    fn default() -> Self {
        Self {
            recv_payload_max: 16 * 1024,
            recv_depth: 128,
            send_payload_max: u32::MAX,
            send_depth_max: u16::MAX,
            rdma_depth: 128,
            wait: WaitPolicy::Adaptive,
            reach: Reach::Domain,
        }
    }
}

/// How a side waits for the peer.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum WaitPolicy {
    /// Sleep at once; woken by the kernel.
    Event,
    /// Spin for a bounded time while that pays, then sleep. Never spins when the peer runs on the same CPU.
    #[default]
    Adaptive,
    /// Spin, never sleep.
    Busy,
}

/// Who is at the other end, as far as the kernel vouches for it.
#[derive(Clone, Debug, Default)]
pub struct PeerIdentity {
    /// Network address of the peer, where there is one.
    pub address: Option<std::net::SocketAddr>,
    /// Credentials that the kernel vouches for (unix socket).
    pub credentials: Option<PeerCredentials>,
}

/// Process credentials of the peer, from the kernel.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PeerCredentials {
    /// Process id when the connection was made.
    pub pid: i32,
    /// Effective user id.
    pub uid: u32,
    /// Effective group id.
    pub gid: u32,
    /// Supplementary groups.
    pub groups: Vec<u32>,
}

/// What a connection can do, fixed when it is made.
#[derive(Clone, Debug)]
pub struct Capabilities {
    /// The provider, for people: what it can do the others say.
    pub provider: Provider,
    /// Largest payload that may be sent, bytes: the peer's `recv_payload_max`.
    pub send_payload_max: u32,
    /// Largest payload that may arrive, bytes.
    pub recv_payload_max: u32,
    /// Messages that may be sent and not yet taken by the peer: its posted receives. More answer [`PostError::Full`], or, where the
    /// transport cannot know, break the connection; credits keep a session below it.
    pub send_depth: u16,
    /// RDMA operations in flight at once.
    pub rdma_depth: u16,
    /// Segments in one gather or scatter list; longer lists are the caller's to split.
    pub segments_max: u16,
    /// Largest single RDMA operation, bytes.
    pub rdma_size_max: u32,
    /// [`Endpoint::remote_memory`] reaches memory that was allocated by the peer's domain: the server may let the
    /// kernel read and write files straight in the client's memory.
    pub remote_mapped: bool,
    /// A write whose local memory may fault can find it gone after it was posted. Then it completes with
    /// [`TransportError::is_local_fault`], and the connection goes on.
    pub faults_late: bool,
    /// Memory that may fault is copied before it is sent, page fault by page fault: a device sends from memory that is locked.
    pub copies_faulting: bool,
    /// Messages and data go through one stream of the kernel. A receive and a flush are system calls, and bytes in several messages take
    /// hardly longer than in one.
    pub is_stream: bool,
    /// Ordinary memory of the client can be registered for a single operation at a cost that does not depend on its size.
    pub registers_ordinary_memory: bool,
    /// Who is at the other end.
    pub peer: PeerIdentity,
}

/// Waits until closed connections of this process have delivered what they flushed, a second at most: the end of the process cuts them.
pub fn finish_closing() {
    #[cfg(feature = "verbs")]
    verbs::finish_closing();
}

/// A protection domain: memory registered here can be reached over the connections made from here, and no others.
pub trait Domain: Send + Sync {
    /// The provider, for people: what it can do it says otherwise.
    fn provider(&self) -> Provider;

    /// Registering memory takes hold of its pages: it takes time, and what stays registered is as quick to reach as any memory.
    fn pins_pages(&self) -> bool;

    /// Allocates zeroed memory of at least `len` bytes of the kind this provider reaches best, page aligned. Not yet
    /// registered. Not blocking.
    fn allocate(&self, len: usize) -> Result<Arc<dyn Memory>, RegionError>;

    /// Registers memory for access by the peers of this domain. The memory is kept alive by the region. Dropping the
    /// [`Region`] ends all access.
    ///
    /// Not blocking. Fails where the provider cannot reach such memory ([`RegionError::Unsupported`]) or a limit was hit.
    fn register(&self, memory: MemoryRef, access: Access) -> Result<Region, RegionError>;

    /// Connects to a listener. Blocks until connected, refused or `timeout` has passed.
    fn connect(
        &self,
        address: &Address,
        params: &ConnectParams,
        timeout: Duration,
    ) -> Result<Box<dyn Endpoint>, ConnectError>;

    /// Listens on an address. A TCP port of 0 takes any free one: see [`Listener::address`].
    fn listen(&self, address: &Address, params: &ConnectParams) -> Result<Box<dyn Listener>, ConnectError>;
}

/// Accepts connections. Dropping it stops listening and removes what it left in the file system.
pub trait Listener: Send {
    /// Where it listens, with the port that was taken.
    fn address(&self) -> &Address;

    /// The next connection whose handshake is complete, or `None` when there is none now. A peer that misbehaves or
    /// stalls in its handshake costs only itself: it is dropped, logged and never returned. Not blocking, and one call looks at
    /// a bounded number of peers; call it again until it returns `None` and [`Listener::has_more`] is `false`.
    fn accept(&mut self) -> Result<Option<Box<dyn Endpoint>>, TransportError>;

    /// The last [`Listener::accept`] has left something that it could look at now, of which no event tells: call it again soon.
    fn has_more(&self) -> bool;

    /// Drops handshakes that have lasted longer than the provider's limit. Called from the loop about once a second.
    fn expire_handshakes(&mut self);

    /// Descriptors of this process were closed: whoever waits for want of one is looked at again now. Not blocking.
    fn descriptors_freed(&mut self) {}

    /// What the event loop watches; call [`Listener::accept`] after any event. Handshakes in progress are the
    /// listener's own to watch (nested epoll).
    fn event_fds(&self) -> EventFds;
}

/// The head of a received message: a private copy, which the peer can no longer change.
#[derive(Clone, Copy)]
pub struct Head {
    bytes: [u8; HEAD_SIZE_MAX],
    len: u8,
}

impl Head {
    /// An empty head, to be filled.
    pub const EMPTY: Self = Self { bytes: [0; HEAD_SIZE_MAX], len: 0 };

    /// A copy of `head`; `None` when it is longer than [`HEAD_SIZE_MAX`].
    pub fn copy_of(head: &[u8]) -> Option<Self> {
        let mut copy = Self::EMPTY;
        copy.bytes.get_mut(..head.len())?.copy_from_slice(head);
        copy.len = u8::try_from(head.len()).ok()?;
        Some(copy)
    }

    /// A copy of the `len` bytes at `offset`, and of what lies behind them, which is never shown: a copy of a fixed size is a few
    /// instructions. `None` when `len` is above [`HEAD_SIZE_MAX`], or that many bytes are not there.
    #[inline]
    pub(crate) fn read_from(span: Span<'_>, offset: usize, len: u8) -> Option<Self> {
        if usize::from(len) > HEAD_SIZE_MAX {
            return None;
        }
        Some(Self { bytes: span.read_array(offset)?, len })
    }

    /// The bytes.
    #[inline]
    pub fn as_bytes(&self) -> &[u8] {
        &self.bytes[..usize::from(self.len)]
    }
}

impl std::fmt::Debug for Head {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "Head({:02x?})", self.as_bytes())
    }
}

/// Something that arrived.
#[derive(Clone, Copy, Debug)]
pub enum Received {
    /// A message. Its payload is read with [`Endpoint::payload`] until [`Endpoint::recv_done`] or the next [`Endpoint::recv`].
    Message {
        /// Private copy of the head.
        head: Head,
        /// Bytes of payload, at most `recv_payload_max`.
        payload_len: u32,
    },
    /// The peer finished an RDMA write with immediate data into this side's memory.
    Immediate {
        /// The immediate value.
        data: u32,
        /// Bytes that were written.
        size: u32,
    },
}

/// Room for one outgoing message, reserved in the provider's memory. Give it back with [`Endpoint::send`] or
/// [`Endpoint::cancel_send`], in any order.
#[derive(Debug)]
#[must_use = "a reserved slot must be sent or cancelled"]
pub struct SendSlot {
    /// The provider's own name for the slot.
    pub id: u32,
    /// Room for payload, bytes.
    pub payload_capacity: u32,
}

/// How an RDMA operation was taken.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Posted {
    /// Done already; no completion follows and the memory is the caller's again.
    Done,
    /// In flight; a [`Completion`] with the token follows.
    Pending,
}

/// How RDMA for a list of ranges was taken.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PostedList {
    /// Ranges taken, from the first on: at least one.
    pub ranges: usize,
    /// Completions that follow.
    pub pending: u32,
}

impl From<Posted> for PostedList {
    fn from(posted: Posted) -> Self {
        Self { ranges: 1, pending: u32::from(posted == Posted::Pending) }
    }
}

/// Which registered memory a connection's peer reaches.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Reach {
    /// All of the domain's.
    #[default]
    Domain,
    /// What was registered for this connection. A key of any other region is as one that never was.
    Own,
}

/// One connection.
///
/// After [`Endpoint::recv`], [`Endpoint::flush`] or [`Endpoint::wait_or`] answered an error the connection is closed:
/// posted operations still complete (as failed), everything else returns [`PostError::Closed`].
pub trait Endpoint: Send {
    /// What this connection can do.
    fn capabilities(&self) -> &Capabilities;

    /// Reserves room for a message with up to `payload_len_max` bytes of payload. At least 4 slots can be reserved at once.
    fn reserve(&mut self, payload_len_max: usize) -> Result<SendSlot, PostError>;

    /// The payload room of a reserved slot, of [`SendSlot::payload_capacity`] bytes, to be filled in place.
    fn slot_payload(&self, slot: &SendSlot) -> Span<'_>;

    /// Queues the message: `head` (1 to [`HEAD_SIZE_MAX`] bytes, copied) and the first `payload_len` bytes of the
    /// slot. It leaves with the next [`Endpoint::flush`] at the latest. An error gives the slot up:
    /// [`PostError::Full`] too, which is rare here, and says that something must leave before any message does.
    fn send(&mut self, slot: SendSlot, head: &[u8], payload_len: usize) -> Result<(), PostError>;

    /// Gives a slot back unsent.
    fn cancel_send(&mut self, slot: SendSlot);

    /// The next message or immediate, in order; moves the connection's incoming data along. Implies
    /// [`Endpoint::recv_done`] for the one before.
    ///
    /// Incoming RDMA is placed and served from here as well. Not blocking.
    fn recv(&mut self) -> Result<Option<Received>, TransportError>;

    /// The payload of the message that [`Endpoint::recv`] last returned; empty when there is none.
    fn payload(&self) -> Span<'_>;

    /// The current message's payload is no longer needed: its receive is posted again.
    fn recv_done(&mut self);

    /// Writes local memory, gathered in order, into the peer's registered memory. The segments' total must equal
    /// `remote.len`. With `immediate`, the peer receives [`Received::Immediate`] after the data. Memory for which
    /// [`Memory::may_fault`] holds is accepted. Where it is gone the answer is [`PostError::Faulted`]. Where that shows only
    /// later, zeros take its place, and the write completes with [`TransportError::is_local_fault`].
    fn rdma_write(
        &mut self,
        token: OpToken,
        local: LocalSegments,
        remote: RemoteRange,
        immediate: Option<u32>,
    ) -> Result<Posted, PostError>;

    /// Reads the peer's registered memory, scattered in order, into local memory. The segments' total must equal `remote.len`.
    fn rdma_read(
        &mut self,
        token: OpToken,
        local: LocalSegments,
        remote: RemoteRange,
    ) -> Result<Posted, PostError>;

    /// The peer's registered memory as memory of this process, where the provider maps it (`remote_mapped`); checked
    /// for bounds and `access`. The peer sees changes at once and may change it at any time. `Ok(None)`: this memory
    /// is reached by RDMA only. An error is the peer's fault: a key it never registered.
    fn remote_memory(
        &mut self,
        remote: &RemoteRange,
        access: Access,
    ) -> Result<Option<MemoryRef>, RegionError>;

    /// As [`Endpoint::remote_memory`], for one use on the spot: `access_now` is called with the bytes. `Ok(false)`: not called, this
    /// memory is reached by RDMA only.
    fn with_remote_memory(
        &mut self,
        remote: &RemoteRange,
        access: Access,
        access_now: &mut dyn FnMut(Span<'_>),
    ) -> Result<bool, RegionError> {
        Ok(self.remote_memory(remote, access)?.map(|memory| access_now(memory.span())).is_some())
    }

    /// The next finished RDMA operation. Call until `None`.
    fn poll_completion(&mut self) -> Option<Completion>;

    /// Sends what was queued; wakes the peer if it sleeps. Not blocking: what the transport cannot take now leaves on
    /// later calls of `flush` or `recv`.
    fn flush(&mut self) -> Result<(), TransportError>;

    /// Queued output that has not left: the loop calls [`Endpoint::flush`] again when the endpoint is writable.
    fn wants_flush(&self) -> bool;

    /// An event for the descriptor in `place` of [`Endpoint::event_fds`] was taken from the loop's poll. Call it for each,
    /// before the next [`Endpoint::recv`]: providers that hear of every event can do without a system call that asks
    /// the descriptor once more. `closed`: the event tells of an error, or that the peer sends no more.
    fn on_event(&mut self, place: usize, closed: bool) {
        let _ = (place, closed);
    }

    /// Prepares to sleep: from now on the peer wakes this side through its event descriptors. `false` when something
    /// is already here; then drain first. The next [`Endpoint::recv`] disarms. What is posted after it may complete without an event: who
    /// posts does not sleep before it has called this again.
    fn arm(&mut self) -> bool;

    /// Waits, as the [`WaitPolicy`] says, until something may have arrived, output can leave, or the timeout passed;
    /// flushes first. The caller's thread blocks. Returns when another thread raises `interrupt` too, or has raised it before: that takes
    /// the interrupt. A provider may wait in a call that cannot be interrupted first, for some milliseconds at most.
    fn wait_or(
        &mut self,
        timeout: Option<Duration>,
        interrupt: Option<&Interrupt>,
    ) -> Result<(), TransportError>;

    /// Spinning on [`Endpoint::recv`] is likely to pay now: the peer runs on another CPU, and spins have paid lately.
    fn spin_pays(&self) -> bool;

    /// Bytes of messages and their replies that wait here for a peer to take them, as far as they take memory that others could use.
    fn unsent_bytes(&self) -> usize {
        0
    }

    /// What an event loop watches.
    fn event_fds(&self) -> EventFds;

    /// Closes the connection now; the peer sees it as closed. Posted operations complete as [`crate::transport::TransportError::Closed`].
    fn close(&mut self);

    /// Memory lies ready for each message that may arrive: how many that are.
    fn receives(&mut self) -> Option<&mut dyn Receives> {
        None
    }

    /// Messages can leave from where their bytes are.
    fn gathers(&mut self) -> Option<&mut dyn Gathers> {
        None
    }

    /// Writes may fault after they were posted: [`Capabilities::faults_late`].
    fn faults_late(&mut self) -> Option<&mut dyn FaultsLate> {
        None
    }

    /// RDMA of many ranges can be one.
    fn rdma_lists(&mut self) -> Option<&mut dyn RdmaLists> {
        None
    }

    /// The peer of one connection can be told from those of others that reach the same domain.
    fn own_memory(&mut self) -> Option<&mut dyn OwnMemory> {
        None
    }

    /// What has arrived can be looked for at less cost than a receive.
    fn looks(&mut self) -> Option<&mut dyn Looks> {
        None
    }

    /// Descriptors of files can be passed to the peer, which is on this host.
    fn descriptors(&mut self) -> Option<&mut dyn Descriptors> {
        None
    }

    /// Everything goes through a stream of the kernel: [`Capabilities::is_stream`].
    fn stream(&mut self) -> Option<&mut dyn Stream> {
        None
    }

    /// Whether a closed side has RDMA on its way, and behind it what was flushed: a drop would cut both. Who keeps it until this is
    /// `false`, a second at most, loses nothing of that. The memory of the operations is the provider's until then.
    fn lingers(&mut self) -> bool {
        false
    }
}
