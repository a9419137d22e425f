//! What lives as long as any part of a connection: its segment, its socket and doorbells, and the messages that wait to be sent over the
//! socket.

use std::collections::VecDeque;
use std::io;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};
use std::sync::Mutex;
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};

use super::super::util::lock;
use super::super::{MemoryRef, PeerCredentials, PostError};
use super::closing::PeerSocket;
use super::cma::Process;
use super::handshake::Message;
use super::layout::{Layout, OWN_REGIONS_MAX, REGIONS_MAX, Side};
use super::map::{Mapping, shared_file};
use super::sock::{self, Incoming};

/// Registrations that wait for room in the socket. A region and its end are two.
const OUTBOX_MAX: usize = 16 * 1024;

/// Of the doorbell among [`Connection::event_fds`].
pub(super) const PLACE_OF_BELL: usize = 0;

/// The parts of a connection that are shared by its endpoint, the domain that announces regions on it, and leases of the peer's memory.
///
/// The socket and the pipe close with the last owner: then, and only then, the peer knows that its memory is no longer reached from here.
pub(super) struct Connection {
    pub(super) side: Side,
    pub(super) layout: Layout,
    pub(super) segment: Mapping,
    pub(super) socket: PeerSocket,
    /// Where this side listens for its doorbell, and where it rings the peer's.
    pub(super) bell_in: OwnedFd,
    pub(super) bell_out: OwnedFd,
    pub(super) peer: PeerCredentials,
    /// The peer's process, where its ordinary memory can be reached from here.
    pub(super) peer_process: Option<Process>,
    /// This process's ordinary memory can be reached by the peer: see [`Connection::set_peer_reaches_us`].
    pub(super) peer_reaches_us: AtomicBool,
    /// Bit by bit: which of the last records have a region that this peer alone reaches. Changed under the registry's lock.
    own_records: AtomicU64,
    outbox: Mutex<VecDeque<Announcement>>,
    /// Length of `outbox`, to be looked at without the lock; not 0 either once a message was lost.
    waiting: AtomicUsize,
    /// A message about a region found no room: the peer knows other regions than there are.
    has_lost: AtomicBool,
}

/// A message about a region, with the memory that keeps its descriptor open until it is sent.
pub(super) struct Announcement {
    pub(super) message: Message,
    pub(super) memory: Option<MemoryRef>,
}

impl Connection {
    pub(super) fn new(
        side: Side,
        (layout, segment): (Layout, Mapping),
        socket: PeerSocket,
        (bell_in, bell_out): (OwnedFd, OwnedFd),
        peer: PeerCredentials,
        peer_process: Option<Process>,
    ) -> Self {
        Self {
            side,
            layout,
            segment,
            socket,
            bell_in,
            bell_out,
            peer,
            peer_process,
            peer_reaches_us: AtomicBool::new(false),
            own_records: AtomicU64::new(0),
            outbox: Mutex::new(VecDeque::new()),
            waiting: AtomicUsize::new(0),
            has_lost: AtomicBool::new(false),
        }
    }

    /// The peer says that it can reach this process's ordinary memory, which is believed of our own user and of root: of those it is
    /// true where the system permits it at all, and they could stop this process anyway.
    pub(super) fn set_peer_reaches_us(&self, claimed: bool) {
        let credible = self.peer.uid == 0 || self.peer.uid == sock::own_user();
        self.peer_reaches_us.store(claimed && credible, Ordering::Relaxed);
    }

    /// Sends a message about a region behind those that wait, as far as the socket takes them; the rest waits for
    /// [`Connection::send_waiting`]. Where too many wait, the connection is of no use any more: see [`Connection::has_lost`].
    pub(super) fn announce(&self, announcement: Announcement) {
        let mut outbox = lock(&self.outbox);
        if outbox.len() < OUTBOX_MAX {
            outbox.push_back(announcement);
        } else {
            self.has_lost.store(true, Ordering::Relaxed);
        }
        self.send_from(&mut outbox);
    }

    /// The peer was not told of all regions: it leaves them unread, or has no memory for them.
    pub(super) fn has_lost(&self) -> bool {
        self.has_lost.load(Ordering::Relaxed)
    }

    /// Messages about regions wait for room in the socket: no message may overtake them.
    #[inline]
    pub(super) fn has_waiting(&self) -> bool {
        self.waiting.load(Ordering::Acquire) != 0
    }

    /// Sends what waits. `true` when nothing does any more.
    #[cold]
    pub(super) fn send_waiting(&self) -> bool {
        self.send_from(&mut lock(&self.outbox));
        !self.has_waiting()
    }

    /// Sends a message with a descriptor of this process, unless that would have to wait.
    pub(super) fn pass(&self, message: &Message, descriptor: BorrowedFd<'_>) -> Result<(), PostError> {
        let outbox = lock(&self.outbox);
        if !outbox.is_empty() {
            return Err(PostError::Full);
        }
        match sock::send(self.socket.as_fd(), &message.encode(), &[descriptor]) {
            Ok(()) => {
                self.count_sent(1);
                Ok(())
            }
            Err(error) if is_for_later(&error) => Err(PostError::Full),
            // The peer is gone, which the endpoint sees for itself.
            Err(_) => Err(PostError::Closed),
        }
    }

    /// Called under the outbox's lock: the count is written by this process only.
    fn count_sent(&self, sent: u32) {
        let count = self.segment.word(self.layout.control_sent(self.side));
        count.store(count.load(Ordering::Relaxed).wrapping_add(sent), Ordering::Release);
    }

    fn send_from(&self, outbox: &mut VecDeque<Announcement>) {
        let mut sent = 0;
        while let Some(next) = outbox.front() {
            let fd = next.memory.as_ref().and_then(shared_file);
            match sock::send(self.socket.as_fd(), &next.message.encode(), fd.as_slice()) {
                Ok(()) => sent += 1,
                Err(error) if is_for_later(&error) => break,
                Err(error) => {
                    // The peer is gone, which the endpoint sees for itself.
                    tracing::debug!(%error, "shm: a region was not announced");
                }
            }
            outbox.pop_front();
        }
        self.waiting.store(outbox.len().max(usize::from(self.has_lost())), Ordering::Release);
        if sent > 0 {
            self.count_sent(sent);
        }
    }

    /// The peer's count of messages sent over the socket.
    #[inline]
    pub(super) fn peer_control_sent(&self) -> u32 {
        self.segment.word(self.layout.control_sent(self.side.peer())).load(Ordering::Acquire)
    }

    /// The next message from the socket.
    pub(super) fn receive(&self, bytes: &mut [u8]) -> io::Result<Incoming> {
        sock::receive(self.socket.as_fd(), bytes)
    }

    /// The peer, and every loan it had of our memory, is gone.
    pub(super) fn peer_is_gone(&self) -> bool {
        sock::is_gone(self.pipe())
    }

    /// This side's end of the pipe, of which the peer holds the other as long as it is the program that connected.
    pub(super) fn pipe(&self) -> BorrowedFd<'_> {
        match self.side {
            Side::Client => self.bell_in.as_fd(),
            Side::Server => self.bell_out.as_fd(),
        }
    }

    /// Takes the key of the region in `slot` away from the peer. From now on the peer refuses the key; accesses that had begun go on: see
    /// [`Connection::in_use`].
    pub(super) fn revoke(&self, slot: u16) {
        self.segment.long(self.layout.record(self.side, slot)).store(0, Ordering::SeqCst);
    }

    /// Takes one of the records that are this connection's own; `None` when all have a region.
    pub(super) fn take_own_record(&self) -> Option<u16> {
        let taken = self.own_records.load(Ordering::Relaxed);
        let free = u16::try_from(taken.trailing_ones()).ok().filter(|free| *free < OWN_REGIONS_MAX)?;
        self.own_records.store(taken | 1 << free, Ordering::Relaxed);
        Some(REGIONS_MAX - OWN_REGIONS_MAX + free)
    }

    /// Gives back what [`Connection::take_own_record`] returned.
    pub(super) fn free_own_record(&self, slot: u16) {
        let bit = 1u64 << (slot.saturating_sub(REGIONS_MAX - OWN_REGIONS_MAX) % OWN_REGIONS_MAX);
        self.own_records.fetch_and(!bit, Ordering::Relaxed);
    }

    /// The peer's accesses in progress to the region in `slot`. Sequentially consistent with
    /// [`Connection::revoke`] and with `Loan`: an access either is
    /// counted here or finds the key gone.
    pub(super) fn in_use(&self, slot: u16) -> u32 {
        self.segment
            .word(self.layout.record(self.side, slot) + super::remote::RECORD_IN_USE)
            .load(Ordering::SeqCst)
    }

    /// Descriptors that an event loop watches: the doorbell in [`PLACE_OF_BELL`], then the socket.
    pub(super) fn event_fds(&self) -> super::super::EventFds {
        [self.bell_in.as_raw_fd(), self.socket.as_raw_fd()].into_iter().collect()
    }
}

/// The socket has no room or memory now, or too many descriptors are under way.
fn is_for_later(error: &io::Error) -> bool {
    matches!(
        error.raw_os_error(),
        Some(libc::EAGAIN | libc::EINTR | libc::ETOOMANYREFS | libc::ENOBUFS | libc::ENOMEM)
    )
}
