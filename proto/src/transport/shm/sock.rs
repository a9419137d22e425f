//! The unix socket of a connection: messages with descriptors, credentials, and the doorbells.
//!
//! The socket is of type SOCK_SEQPACKET: it keeps message bounds, so there is never a half message to remember.
#![allow(unsafe_code, reason = "who the peer is")]

use std::io::{self, IoSlice, IoSliceMut};
use std::mem::MaybeUninit;
use std::os::fd::{AsRawFd, BorrowedFd, OwnedFd, RawFd};
use std::path::Path;
use std::time::{Duration, Instant};

use rustix::cmsg_space;
use rustix::event::{self, EventfdFlags, PollFlags, epoll};
use rustix::io::{Errno, ReadWriteFlags, preadv2, retry_on_intr};
use rustix::net::{
    RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags, RecvMsg, ReturnFlags, SendAncillaryBuffer,
    SendAncillaryMessage, SendFlags, Shutdown, recvmsg, sendmsg,
};
use rustix::pipe::{PipeFlags, fcntl_setpipe_size, pipe_with};
use rustix::time::{
    Itimerspec, TimerfdClockId, TimerfdFlags, TimerfdTimerFlags, Timespec, timerfd_create, timerfd_settime,
};
use smallvec::SmallVec;
use socket2::{Domain, SockAddr, Socket, Type};

use super::super::PeerCredentials;
use super::super::util::poll;
use super::map::unavailable;
/// Most descriptors in one message.
const FDS_MAX: usize = 4;

/// Descriptors that came with a message.
pub(super) type Files = SmallVec<[OwnedFd; FDS_MAX]>;

/// Room for more than are ever sent: a message with too many is told from one for which this process had no descriptors left.
const CONTROL_SPACE: [MaybeUninit<u8>; CONTROL_SIZE] = [MaybeUninit::uninit(); CONTROL_SIZE];
const CONTROL_SIZE: usize = cmsg_space!(ScmRights(3 * FDS_MAX));

/// What [`receive`] found.
pub(super) enum Incoming {
    /// A message of this many bytes, with the descriptors that arrived; `cut` when bytes or descriptors were lost.
    Message { len: usize, fds: Files, cut: bool },
    /// None now.
    Nothing,
    /// The peer closed.
    End,
}

/// A listening socket at `path`.
pub(super) fn listen(path: &Path, backlog: i32) -> io::Result<Socket> {
    let socket = Socket::new(Domain::UNIX, Type::SEQPACKET, None)?;
    socket.bind(&SockAddr::unix(path)?)?;
    socket.set_nonblocking(true)?;
    socket.listen(backlog)?;
    Ok(socket)
}

/// Connects; waits while the listener's backlog is full, until `timeout` has passed.
pub(super) fn connect(path: &Path, timeout: Duration) -> io::Result<Socket> {
    let socket = Socket::new(Domain::UNIX, Type::SEQPACKET, None)?;
    let (address, until) = (SockAddr::unix(path)?, Instant::now().checked_add(timeout));
    loop {
        let left = until.map_or(timeout, |until| until.saturating_duration_since(Instant::now()));
        socket.set_write_timeout(Some(left.max(Duration::from_millis(1))))?;
        match socket.connect(&address) {
            Err(error) if matches!(error.kind(), io::ErrorKind::Interrupted | io::ErrorKind::WouldBlock) => {
                if is_over(error.kind(), left) {
                    return Err(io::ErrorKind::TimedOut.into());
                }
            }
            Err(error) => return Err(error),
            Ok(()) => break,
        }
    }
    socket.set_nonblocking(true)?;
    Ok(socket)
}

/// A try to connect that had so much time left, and ended so, was the last. A signal ends the wait, whatever its handler was installed
/// with, and may come each time before the shortest wait is over.
fn is_over(kind: io::ErrorKind, left: Duration) -> bool {
    kind == io::ErrorKind::WouldBlock || left.is_zero()
}

/// Sends one message with descriptors. Never blocks.
pub(super) fn send(socket: BorrowedFd<'_>, bytes: &[u8], fds: &[BorrowedFd<'_>]) -> io::Result<()> {
    assert!(fds.len() <= FDS_MAX);
    let mut space = CONTROL_SPACE;
    let mut control = SendAncillaryBuffer::new(&mut space);
    if !fds.is_empty() {
        // There is room.
        control.push(SendAncillaryMessage::ScmRights(fds));
    }
    sendmsg(socket, &[IoSlice::new(bytes)], &mut control, SendFlags::DONTWAIT | SendFlags::NOSIGNAL)?;
    Ok(())
}

/// Receives one message into `bytes`. Never blocks. Every descriptor that arrives is owned by the answer.
pub(super) fn receive(socket: BorrowedFd<'_>, bytes: &mut [u8]) -> io::Result<Incoming> {
    let mut space = CONTROL_SPACE;
    let mut control = RecvAncillaryBuffer::new(&mut space);
    let flags = RecvFlags::DONTWAIT | RecvFlags::CMSG_CLOEXEC;
    let received = retry_on_intr(|| recvmsg(socket, &mut [IoSliceMut::new(bytes)], &mut control, flags));
    match received {
        Ok(RecvMsg { bytes: len, flags, .. }) => {
            let cut = flags.intersects(ReturnFlags::TRUNC | ReturnFlags::CTRUNC);
            let mut fds = SmallVec::new();
            for message in control.drain() {
                if let RecvAncillaryMessage::ScmRights(rights) = message {
                    fds.extend(rights);
                }
            }
            // A message of no bytes is nothing that we send: the end, or as good as one. Not where descriptors came, which closing might
            // wait for: it is for the caller to let go of them.
            if len == 0 && fds.is_empty() && !cut {
                return Ok(Incoming::End);
            }
            Ok(Incoming::Message { len, fds, cut })
        }
        Err(Errno::CONNRESET | Errno::PIPE) => Ok(Incoming::End),
        Err(Errno::AGAIN) => Ok(Incoming::Nothing),
        Err(errno) => Err(errno.into()),
    }
}

/// What a socket has for [`receive`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Next {
    /// Nothing yet, the end, or a message of no bytes and no descriptors.
    Nothing,
    /// A message without descriptors.
    Message,
    /// A message with descriptors, or with something else that it cannot be received without.
    Descriptors,
}

/// Looks at the next message. It stays where it is, and its descriptors with it. Never blocks.
pub(super) fn look(socket: BorrowedFd<'_>) -> io::Result<Next> {
    let flags = RecvFlags::DONTWAIT | RecvFlags::PEEK;
    let mut no_room = RecvAncillaryBuffer::new(&mut []);
    let mut byte = [0; 1];
    let looked = retry_on_intr(|| recvmsg(socket, &mut [IoSliceMut::new(&mut byte)], &mut no_room, flags));
    match looked {
        Ok(message) if message.flags.contains(ReturnFlags::CTRUNC) => Ok(Next::Descriptors),
        Ok(message) if message.bytes > 0 => Ok(Next::Message),
        Ok(_) | Err(Errno::AGAIN | Errno::CONNRESET) => Ok(Next::Nothing),
        Err(errno) => Err(errno.into()),
    }
}

/// Who is at the other end of the socket: the process that called `connect` or `listen`.
pub(super) fn peer_credentials(socket: BorrowedFd<'_>) -> io::Result<PeerCredentials> {
    // The crate's type has no room for the id 0, which is that of a process in another namespace.
    let mut who = libc::ucred { pid: 0, uid: u32::MAX, gid: u32::MAX };
    let mut len = u32::try_from(size_of::<libc::ucred>()).unwrap_or(0);
    // SAFETY: `who` and `len` are valid for the call.
    let failed = unsafe {
        let to = std::ptr::from_mut(&mut who).cast();
        libc::getsockopt(socket.as_raw_fd(), libc::SOL_SOCKET, libc::SO_PEERCRED, to, &mut len) < 0
    };
    if failed {
        return Err(io::Error::last_os_error());
    }
    Ok(PeerCredentials { pid: who.pid, uid: who.uid, gid: who.gid, groups: peer_groups(socket)? })
}

/// The user whose processes this one may look into without privileges.
pub(super) fn own_user() -> u32 {
    rustix::process::getuid().as_raw()
}

fn peer_groups(socket: BorrowedFd<'_>) -> io::Result<Vec<u32>> {
    let mut groups = vec![0u32; 64];
    loop {
        let mut len = u32::try_from(size_of_val(groups.as_slice())).unwrap_or(0);
        // SAFETY: `groups` is valid for `len` bytes.
        let failed = unsafe {
            let to = groups.as_mut_ptr().cast();
            libc::getsockopt(socket.as_raw_fd(), libc::SOL_SOCKET, libc::SO_PEERGROUPS, to, &mut len) < 0
        };
        let count = len as usize / size_of::<u32>();
        if !failed {
            groups.truncate(count);
            return Ok(groups);
        }
        let error = io::Error::last_os_error();
        match error.raw_os_error() {
            // The kernel tells how many there are; NGROUPS_MAX bounds it.
            Some(libc::ERANGE) if count > groups.len() && count <= 65_536 => groups.resize(count, 0),
            // Older kernels (before 4.13): only the primary group is known.
            Some(libc::ENOPROTOOPT) => return Ok(Vec::new()),
            _ => return Err(error),
        }
    }
}

/// Tells the peer that this side is closed; the descriptor stays.
pub(super) fn shutdown(socket: BorrowedFd<'_>) {
    let _ = rustix::net::shutdown(socket, Shutdown::Write);
}

/// The doorbell that the server rings, a pipe: (the client's end, the server's end). Each end is a file of its
/// own, so a client cannot make the server's
/// end blocking, as it could with an eventfd. A client that is gone raises SIGPIPE in the server: servers ignore it, as Rust programs do.
pub(super) fn pipe() -> io::Result<(OwnedFd, OwnedFd)> {
    let (client, server) = pipe_with(PipeFlags::CLOEXEC | PipeFlags::NONBLOCK)?;
    // One page is plenty, and a user's total is bounded; refusal does no harm.
    let _ = fcntl_setpipe_size(&server, 4096);
    Ok((client, server))
}

/// The doorbell that the client rings, an eventfd: faster, and never a SIGPIPE in an application. The server
/// never writes it, and reads it in a way that
/// cannot block.
pub(super) fn eventfd() -> io::Result<OwnedFd> {
    Ok(event::eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK)?)
}

/// A timer that is not set, readable once its time has passed.
pub(super) fn timer() -> io::Result<OwnedFd> {
    Ok(timerfd_create(TimerfdClockId::Monotonic, TimerfdFlags::CLOEXEC | TimerfdFlags::NONBLOCK)?)
}

/// Sets a [`timer`] to go off once, this long from now; unsets it, and silences it, with zero.
pub(super) fn set_timer(timer: BorrowedFd<'_>, after: Duration) {
    let times = Itimerspec {
        it_interval: Timespec::default(),
        it_value: Timespec::try_from(after).unwrap_or_default(),
    };
    let _ = timerfd_settime(timer, TimerfdTimerFlags::empty(), &times);
}

/// Rings a doorbell of either kind. A full one rings already; one whose sleeper is gone shows at the socket.
pub(super) fn ring(bell: BorrowedFd<'_>) {
    let _ = rustix::io::write(bell, &1u64.to_ne_bytes());
}

/// Silences a doorbell of either kind; `true` when it had rung. Never blocks, whatever the peer did to the flags of a shared file.
pub(super) fn silence(bell: BorrowedFd<'_>) -> bool {
    let mut bytes = [0u8; 64];
    match read_now(bell, &mut bytes) {
        // A client's own bell is a pipe that nobody else can make wait; a server does not listen without the call.
        Err(Errno::OPNOTSUPP | Errno::NOSYS | Errno::PERM) => {
            rustix::io::read(bell, &mut bytes).is_ok_and(|len| len > 0)
        }
        read => read.is_ok_and(|len| len > 0),
    }
}

/// Reads what is there, whatever the flags of the file say.
fn read_now(file: BorrowedFd<'_>, bytes: &mut [u8]) -> Result<usize, Errno> {
    /// Reads from where the file stands.
    const NO_OFFSET: u64 = u64::MAX;
    preadv2(file, &mut [IoSliceMut::new(bytes)], NO_OFFSET, ReadWriteFlags::NOWAIT)
}

/// Whether a server can [`silence`] a doorbell that a client shares, and not be made to wait by that client.
pub(super) fn check_silence() -> io::Result<()> {
    match read_now(std::os::fd::AsFd::as_fd(&eventfd()?), &mut [0; 8]) {
        Err(Errno::NOSYS | Errno::PERM) => Err(unavailable("serve clients by shared memory", "preadv2")),
        _ => Ok(()),
    }
}

/// What ended a sleep; neither when it was the time, or a signal.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Slept {
    pub(super) bell: bool,
    pub(super) socket: bool,
    pub(super) interrupt: bool,
}

/// Waits for the doorbell, the socket, or another thread. A signal ends it too.
pub(super) fn sleep(
    bell: BorrowedFd<'_>,
    socket: BorrowedFd<'_>,
    interrupt: Option<BorrowedFd<'_>>,
    timeout: Option<Duration>,
    writable: bool,
) -> io::Result<Slept> {
    let socket_events = if writable { PollFlags::IN | PollFlags::OUT } else { PollFlags::IN };
    let (bell, socket) = ((bell, PollFlags::IN), (socket, socket_events));
    let [bell, socket, interrupt] = match interrupt {
        Some(interrupt) => poll([bell, socket, (interrupt, PollFlags::IN)], timeout)?,
        None => {
            let [bell, socket] = poll([bell, socket], timeout)?;
            [bell, socket, PollFlags::empty()]
        }
    };
    Ok(Slept { bell: !bell.is_empty(), socket: !socket.is_empty(), interrupt: !interrupt.is_empty() })
}

/// Waits until `socket` is readable; `false` when the timeout passed first. Signals do not end it.
pub(super) fn readable(socket: BorrowedFd<'_>, timeout: Duration) -> io::Result<bool> {
    let until = Instant::now().checked_add(timeout);
    loop {
        let left = until.map_or(timeout, |until| until.saturating_duration_since(Instant::now()));
        let [ready] = poll([(socket, PollFlags::IN)], Some(left))?;
        if !ready.is_empty() || left.is_zero() {
            return Ok(!ready.is_empty());
        }
    }
}

/// The other end of `pipe`, one end of the [`pipe`] of a connection, is closed: the peer holds nothing of the connection any more.
pub(super) fn is_gone(pipe: BorrowedFd<'_>) -> bool {
    poll([(pipe, PollFlags::empty())], Some(Duration::ZERO))
        .is_ok_and(|[found]| found.intersects(PollFlags::ERR | PollFlags::HUP))
}

/// Watches many sockets for readability, level-triggered; its own descriptor can be watched in turn.
pub(super) struct Epoll(OwnedFd);

impl Epoll {
    pub(super) fn new() -> io::Result<Self> {
        Ok(Self(epoll::create(epoll::CreateFlags::CLOEXEC)?))
    }

    /// Watches `socket` until it is closed or removed; its events carry `token`.
    pub(super) fn add(&self, socket: BorrowedFd<'_>, token: u64) -> io::Result<()> {
        Ok(epoll::add(&self.0, socket, epoll::EventData::new_u64(token), epoll::EventFlags::IN)?)
    }

    /// Watches `socket` no longer.
    pub(super) fn remove(&self, socket: BorrowedFd<'_>) {
        let _ = epoll::delete(&self.0, socket);
    }

    /// Tokens of sockets that are readable now.
    pub(super) fn ready(&self) -> io::Result<SmallVec<[u64; 32]>> {
        let mut events = [MaybeUninit::uninit(); 32];
        match epoll::wait(&self.0, &mut events, Some(&Timespec::default())) {
            Ok((events, _)) => Ok(events.iter().map(|event| event.data.u64()).collect()),
            Err(Errno::INTR) => Ok(SmallVec::new()),
            Err(errno) => Err(errno.into()),
        }
    }
}

impl AsRawFd for Epoll {
    fn as_raw_fd(&self) -> RawFd {
        self.0.as_raw_fd()
    }
}

#[cfg(test)]
mod tests {
    use std::os::fd::AsFd;

    use rustix::fs::OFlags;

    use super::*;

    // The signals of a program (timers of a profiler) do not make its handshakes time out.
    #[test]
    fn readable_beside_signals_waits_for_the_message() {
        use std::os::unix::thread::JoinHandleExt;
        extern "C" fn nothing(_: libc::c_int) {}
        let (one, other) = Socket::pair(Domain::UNIX, Type::SEQPACKET, None).unwrap();
        // SAFETY: plain C data, for which zero is valid; the handler does nothing, and no other test uses the signal.
        unsafe {
            let mut action: libc::sigaction = std::mem::zeroed();
            action.sa_sigaction = nothing as *const () as usize;
            assert_eq!(libc::sigaction(libc::SIGUSR2, &raw const action, std::ptr::null_mut()), 0);
        }
        let waiting = std::thread::spawn(move || readable(other.as_fd(), Duration::from_secs(20)).unwrap());
        for _ in 0..1000 {
            // SAFETY: the thread has not been joined.
            unsafe { libc::pthread_kill(waiting.as_pthread_t(), libc::SIGUSR2) };
            std::thread::yield_now();
        }
        send(one.as_fd(), b"at last", &[]).unwrap();
        assert!(waiting.join().unwrap());

        // And so does one that waits for a place in the queue of a listener.
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("socket");
        let full = listen(&path, 0).unwrap();
        let first = connect(&path, Duration::from_secs(20)).unwrap();
        let waiting = std::thread::spawn(move || connect(&path, Duration::from_secs(20)).map(drop));
        for _ in 0..1000 {
            // SAFETY: as above.
            unsafe { libc::pthread_kill(waiting.as_pthread_t(), libc::SIGUSR2) };
            std::thread::yield_now();
        }
        assert!(!waiting.is_finished(), "the queue is full");
        drop((full.accept().unwrap(), first));
        waiting.join().unwrap().unwrap();
        // None keeps it from giving up in the end.
        assert!(!is_over(io::ErrorKind::Interrupted, Duration::from_nanos(1)));
        assert!(is_over(io::ErrorKind::Interrupted, Duration::ZERO));
        assert!(is_over(io::ErrorKind::WouldBlock, Duration::from_nanos(1)));
    }

    #[test]
    fn message_with_descriptors_arrives_whole() {
        let (one, other) = Socket::pair(Domain::UNIX, Type::SEQPACKET, None).unwrap();
        let (sleeper, ringer) = pipe().unwrap();
        let eventfd = eventfd().unwrap();
        let sent = [sleeper.as_fd(), ringer.as_fd(), eventfd.as_fd()];
        send(one.as_fd(), b"hello", &sent).unwrap();
        let mut bytes = [0; 16];
        let Ok(Incoming::Message { len: 5, fds, cut: false }) = receive(other.as_fd(), &mut bytes) else {
            panic!("no message");
        };
        assert_eq!(&bytes[..5], b"hello");
        drop((sleeper, ringer, eventfd));
        for (sleeper, ringer) in [(&fds[0], &fds[1]), (&fds[2], &fds[2])] {
            ring(ringer.as_fd());
            assert!(sleep(sleeper.as_fd(), other.as_fd(), None, None, false).unwrap().bell);
            silence(sleeper.as_fd());
            let slept = sleep(sleeper.as_fd(), other.as_fd(), None, Some(Duration::ZERO), false).unwrap();
            assert_eq!(slept, Slept { bell: false, socket: false, interrupt: false });
        }
    }

    // The kernel passes the sender's name along.
    #[test]
    fn message_of_a_peer_with_the_longest_name_arrives() {
        let (one, other) = Socket::pair(Domain::UNIX, Type::SEQPACKET, None).unwrap();
        // Abstract: 107 bytes after the zero one.
        let name = format!("\0{:x<107}", format!("dafs-{}-", std::process::id()));
        one.bind(&SockAddr::unix(&name).unwrap()).unwrap();
        send(one.as_fd(), b"hello", &[]).unwrap();
        let received = receive(other.as_fd(), &mut [0; 64]).unwrap();
        assert!(matches!(received, Incoming::Message { len: 5, cut: false, .. }));
    }

    #[test]
    fn message_longer_than_expected_is_told_as_cut() {
        let (one, other) = Socket::pair(Domain::UNIX, Type::SEQPACKET, None).unwrap();
        send(one.as_fd(), &[7; 17], &[]).unwrap();
        assert!(matches!(receive(other.as_fd(), &mut [0; 16]), Ok(Incoming::Message { cut: true, .. })));
        assert!(matches!(receive(other.as_fd(), &mut [0; 16]), Ok(Incoming::Nothing)));
        drop(one);
        assert!(matches!(receive(other.as_fd(), &mut [0; 16]), Ok(Incoming::End)));
    }

    // [SHM-19] [SHM-57] whatever the other side does to a doorbell, neither ringing nor silencing blocks.
    #[test]
    fn bell_rung_beyond_the_pipe_never_blocks_and_a_lost_peer_shows() {
        let (sleeper, ringer) = pipe().unwrap();
        // As a hostile peer would.
        rustix::fs::fcntl_setfl(&sleeper, OFlags::empty()).unwrap();
        for _ in 0..10_000 {
            ring(ringer.as_fd());
        }
        assert!(!is_gone(ringer.as_fd()) && !is_gone(sleeper.as_fd()));
        drop(sleeper);
        assert!(is_gone(ringer.as_fd()));

        let bell = eventfd().unwrap();
        rustix::fs::fcntl_setfl(&bell, OFlags::empty()).unwrap();
        silence(bell.as_fd());
    }
}
