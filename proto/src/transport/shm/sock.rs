//! The unix socket of a connection: messages with descriptors, credentials, and the doorbells.
//!
//! The socket is of type SOCK_SEQPACKET: it keeps message bounds, so there is never a half message to remember.
#![allow(unsafe_code, reason = "sendmsg and recvmsg with descriptors, poll, pipes")]

use std::io;
use std::os::fd::{AsRawFd, BorrowedFd, FromRawFd, OwnedFd, RawFd};
use std::path::Path;
use std::time::{Duration, Instant};

use smallvec::SmallVec;
use socket2::{Domain, SockAddr, Socket, Type};

use super::super::PeerCredentials;

/// Most descriptors in one message.
const FDS_MAX: usize = 4;
const CONTROL_SIZE: usize = 64;

/// What [`receive`] found.
pub(super) enum Incoming {
    /// A message of this many bytes, with the descriptors that arrived; `cut` when bytes or descriptors were lost.
    Message { len: usize, fds: SmallVec<[OwnedFd; FDS_MAX]>, cut: bool },
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
    socket.set_write_timeout(Some(timeout.max(Duration::from_millis(1))))?;
    socket.connect(&SockAddr::unix(path)?)?;
    socket.set_nonblocking(true)?;
    Ok(socket)
}

/// Sends one message with descriptors. Never blocks.
pub(super) fn send(socket: BorrowedFd<'_>, bytes: &[u8], fds: &[RawFd]) -> io::Result<()> {
    assert!(fds.len() <= FDS_MAX);
    let mut part = libc::iovec { iov_base: bytes.as_ptr().cast_mut().cast(), iov_len: bytes.len() };
    let mut control = Control([0; CONTROL_SIZE]);
    // SAFETY: `message` refers to `part` and `control`, which outlive the call; CMSG_SPACE of FDS_MAX
    // descriptors fits CONTROL_SIZE (tested below).
    let sent = unsafe {
        let mut message: libc::msghdr = std::mem::zeroed();
        message.msg_iov = &mut part;
        message.msg_iovlen = 1;
        if !fds.is_empty() {
            let size = u32::try_from(size_of_val(fds)).unwrap_or(0);
            message.msg_control = control.0.as_mut_ptr().cast();
            message.msg_controllen = libc::CMSG_SPACE(size) as usize;
            let header = libc::CMSG_FIRSTHDR(&message);
            (*header).cmsg_level = libc::SOL_SOCKET;
            (*header).cmsg_type = libc::SCM_RIGHTS;
            (*header).cmsg_len = libc::CMSG_LEN(size) as usize;
            std::ptr::copy_nonoverlapping(
                fds.as_ptr().cast::<u8>(),
                libc::CMSG_DATA(header),
                size_of_val(fds),
            );
        }
        libc::sendmsg(socket.as_raw_fd(), &message, libc::MSG_DONTWAIT | libc::MSG_NOSIGNAL)
    };
    if sent < 0 { Err(io::Error::last_os_error()) } else { Ok(()) }
}

/// Receives one message into `bytes`. Never blocks. Every descriptor that arrives is owned by the answer; where none is awaited
/// (`with_fds`), the kernel forgets those that came, which closing them might wait for, and the message is cut.
pub(super) fn receive(socket: BorrowedFd<'_>, bytes: &mut [u8], with_fds: bool) -> io::Result<Incoming> {
    let mut part = libc::iovec { iov_base: bytes.as_mut_ptr().cast(), iov_len: bytes.len() };
    let mut control = Control([0; CONTROL_SIZE]);
    let mut fds = SmallVec::new();
    // SAFETY: `message` refers to `part` and `control`, which outlive the call; the kernel fills whole control
    // messages within the given length, and each
    // descriptor in them is new and ours.
    let (received, flags) = unsafe {
        let mut message: libc::msghdr = std::mem::zeroed();
        message.msg_iov = &mut part;
        message.msg_iovlen = 1;
        if with_fds {
            message.msg_control = control.0.as_mut_ptr().cast();
            message.msg_controllen = CONTROL_SIZE;
        }
        let flags = libc::MSG_DONTWAIT | libc::MSG_CMSG_CLOEXEC;
        let received = libc::recvmsg(socket.as_raw_fd(), &mut message, flags);
        if received >= 0 {
            let mut header = libc::CMSG_FIRSTHDR(&message);
            while !header.is_null() {
                if (*header).cmsg_level == libc::SOL_SOCKET && (*header).cmsg_type == libc::SCM_RIGHTS {
                    let count = ((*header).cmsg_len - libc::CMSG_LEN(0) as usize) / size_of::<RawFd>();
                    let data = libc::CMSG_DATA(header).cast::<RawFd>();
                    for index in 0..count {
                        fds.push(OwnedFd::from_raw_fd(data.add(index).read_unaligned()));
                    }
                }
                header = libc::CMSG_NXTHDR(&message, header);
            }
        }
        (received, message.msg_flags)
    };
    match usize::try_from(received) {
        // A message of no bytes is nothing that we send: the end, or as good as one.
        Ok(0) => Ok(Incoming::End),
        Ok(len) => {
            let cut = flags & (libc::MSG_TRUNC | libc::MSG_CTRUNC) != 0;
            Ok(Incoming::Message { len, fds, cut })
        }
        Err(_) => {
            let error = io::Error::last_os_error();
            match error.raw_os_error() {
                Some(libc::EAGAIN) => Ok(Incoming::Nothing),
                Some(libc::EINTR) => receive(socket, bytes, with_fds),
                Some(libc::ECONNRESET | libc::EPIPE) => Ok(Incoming::End),
                _ => Err(error),
            }
        }
    }
}

/// Closes descriptors of files that may be anything on a thread of its own: where a program serves the file, closing waits for its answer.
/// Without a thread they stay open.
#[cold]
pub(super) fn close_elsewhere(fds: SmallVec<[OwnedFd; FDS_MAX]>) {
    let fds = std::mem::ManuallyDrop::new(fds);
    let close = move || drop(std::mem::ManuallyDrop::into_inner(fds));
    if let Err(error) = std::thread::Builder::new().name("dafs-shm-close".into()).spawn(close) {
        tracing::warn!(%error, "a peer's descriptors stay open: no thread to close them");
    }
}

#[repr(C, align(8))]
struct Control([u8; CONTROL_SIZE]);

/// Who is at the other end of the socket: the process that called `connect` or `listen`.
pub(super) fn peer_credentials(socket: BorrowedFd<'_>) -> io::Result<PeerCredentials> {
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
    // SAFETY: no arguments.
    unsafe { libc::getuid() }
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
    // SAFETY: a plain system call.
    unsafe { libc::shutdown(socket.as_raw_fd(), libc::SHUT_WR) };
}

/// The doorbell that the server rings, a pipe: (the client's end, the server's end). Each end is a file of its
/// own, so a client cannot make the server's
/// end blocking, as it could with an eventfd. A client that is gone raises SIGPIPE in the server: servers ignore it, as Rust programs do.
pub(super) fn pipe() -> io::Result<(OwnedFd, OwnedFd)> {
    let mut ends = [0; 2];
    // SAFETY: `ends` receives two new descriptors, which are ours.
    unsafe {
        if libc::pipe2(ends.as_mut_ptr(), libc::O_CLOEXEC | libc::O_NONBLOCK) < 0 {
            return Err(io::Error::last_os_error());
        }
        // One page is plenty, and a user's total is bounded; refusal does no harm.
        libc::fcntl(ends[1], libc::F_SETPIPE_SZ, 4096);
        Ok((OwnedFd::from_raw_fd(ends[0]), OwnedFd::from_raw_fd(ends[1])))
    }
}

/// The doorbell that the client rings, an eventfd: faster, and never a SIGPIPE in an application. The server
/// never writes it, and reads it in a way that
/// cannot block.
pub(super) fn eventfd() -> io::Result<OwnedFd> {
    // SAFETY: makes a descriptor or fails.
    let fd = unsafe { libc::eventfd(0, libc::EFD_CLOEXEC | libc::EFD_NONBLOCK) };
    if fd < 0 {
        return Err(io::Error::last_os_error());
    }
    // SAFETY: just made, ours.
    Ok(unsafe { OwnedFd::from_raw_fd(fd) })
}

/// A timer that is not set, readable once its time has passed.
pub(super) fn timer() -> io::Result<OwnedFd> {
    // SAFETY: makes a descriptor or fails.
    let fd = unsafe { libc::timerfd_create(libc::CLOCK_MONOTONIC, libc::TFD_CLOEXEC | libc::TFD_NONBLOCK) };
    if fd < 0 {
        return Err(io::Error::last_os_error());
    }
    // SAFETY: just made, ours.
    Ok(unsafe { OwnedFd::from_raw_fd(fd) })
}

/// Sets a [`timer`] to go off once, this long from now; unsets it, and silences it, with zero.
pub(super) fn set_timer(timer: BorrowedFd<'_>, after: Duration) {
    let value = libc::timespec {
        tv_sec: libc::time_t::try_from(after.as_secs()).unwrap_or(libc::time_t::MAX),
        tv_nsec: after.subsec_nanos().into(),
    };
    let zero = libc::timespec { tv_sec: 0, tv_nsec: 0 };
    let times = libc::itimerspec { it_interval: zero, it_value: value };
    // SAFETY: `times` is valid for the call, and nothing is asked back.
    unsafe { libc::timerfd_settime(timer.as_raw_fd(), 0, &times, std::ptr::null_mut()) };
}

/// Rings a doorbell of either kind. A full one rings already; one whose sleeper is gone shows at the socket.
pub(super) fn ring(bell: BorrowedFd<'_>) {
    let one = 1u64.to_ne_bytes();
    // SAFETY: writes 8 bytes from a live buffer.
    unsafe { libc::write(bell.as_raw_fd(), one.as_ptr().cast(), one.len()) };
}

/// Silences a doorbell of either kind; `true` when it had rung. Never blocks, whatever the peer did to the flags of a shared file.
pub(super) fn silence(bell: BorrowedFd<'_>) -> bool {
    let mut bytes = [0u8; 64];
    let part = libc::iovec { iov_base: bytes.as_mut_ptr().cast(), iov_len: bytes.len() };
    // SAFETY: reads at most the buffer's length into a live buffer.
    unsafe {
        let read = libc::preadv2(bell.as_raw_fd(), &part, 1, -1, libc::RWF_NOWAIT);
        if read < 0 && io::Error::last_os_error().raw_os_error() == Some(libc::EOPNOTSUPP) {
            return libc::read(bell.as_raw_fd(), bytes.as_mut_ptr().cast(), bytes.len()) > 0;
        }
        read > 0
    }
}

/// What ended a sleep; neither when it was the time, or a signal.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Slept {
    pub(super) bell: bool,
    pub(super) socket: bool,
}

/// Waits for the doorbell or the socket. A signal ends it too.
pub(super) fn sleep(
    bell: BorrowedFd<'_>,
    socket: BorrowedFd<'_>,
    timeout: Option<Duration>,
    writable: bool,
) -> io::Result<Slept> {
    let socket_events = if writable { libc::POLLIN | libc::POLLOUT } else { libc::POLLIN };
    let mut fds = [
        libc::pollfd { fd: bell.as_raw_fd(), events: libc::POLLIN, revents: 0 },
        libc::pollfd { fd: socket.as_raw_fd(), events: socket_events, revents: 0 },
    ];
    poll(&mut fds, timeout)?;
    Ok(Slept { bell: fds[0].revents != 0, socket: fds[1].revents != 0 })
}

/// Waits until `socket` is readable; `false` when the timeout passed first. Signals do not end it.
pub(super) fn readable(socket: BorrowedFd<'_>, timeout: Duration) -> io::Result<bool> {
    let mut fds = [libc::pollfd { fd: socket.as_raw_fd(), events: libc::POLLIN, revents: 0 }];
    let until = Instant::now().checked_add(timeout);
    loop {
        let left = until.map_or(timeout, |until| until.saturating_duration_since(Instant::now()));
        poll(&mut fds, Some(left))?;
        if fds[0].revents != 0 || left.is_zero() {
            return Ok(fds[0].revents != 0);
        }
    }
}

/// The other end of `pipe`, one end of the [`pipe`] of a connection, is closed: the peer holds nothing of the connection any more.
pub(super) fn is_gone(pipe: BorrowedFd<'_>) -> bool {
    let mut fds = [libc::pollfd { fd: pipe.as_raw_fd(), events: 0, revents: 0 }];
    poll(&mut fds, Some(Duration::ZERO)).is_ok() && fds[0].revents & (libc::POLLERR | libc::POLLHUP) != 0
}

/// Watches many sockets for readability, level-triggered; its own descriptor can be watched in turn.
pub(super) struct Epoll(OwnedFd);

impl Epoll {
    pub(super) fn new() -> io::Result<Self> {
        // SAFETY: makes a descriptor or fails.
        let fd = unsafe { libc::epoll_create1(libc::EPOLL_CLOEXEC) };
        if fd < 0 {
            return Err(io::Error::last_os_error());
        }
        // SAFETY: just made, ours.
        Ok(Self(unsafe { OwnedFd::from_raw_fd(fd) }))
    }

    /// Watches `socket` until it is closed or removed; its events carry `token`.
    pub(super) fn add(&self, socket: BorrowedFd<'_>, token: u64) -> io::Result<()> {
        let mut event = libc::epoll_event { events: libc::EPOLLIN as u32, u64: token };
        // SAFETY: `event` is valid for the call.
        let failed = unsafe {
            libc::epoll_ctl(self.0.as_raw_fd(), libc::EPOLL_CTL_ADD, socket.as_raw_fd(), &mut event) < 0
        };
        if failed { Err(io::Error::last_os_error()) } else { Ok(()) }
    }

    /// Watches `socket` no longer.
    pub(super) fn remove(&self, socket: BorrowedFd<'_>) {
        let null = std::ptr::null_mut();
        // SAFETY: no event is needed to remove.
        unsafe { libc::epoll_ctl(self.0.as_raw_fd(), libc::EPOLL_CTL_DEL, socket.as_raw_fd(), null) };
    }

    /// Tokens of sockets that are readable now.
    pub(super) fn ready(&self) -> io::Result<SmallVec<[u64; 32]>> {
        let mut events = [libc::epoll_event { events: 0, u64: 0 }; 32];
        // SAFETY: `events` is valid for as many as are asked for.
        let count = unsafe { libc::epoll_wait(self.0.as_raw_fd(), events.as_mut_ptr(), 32, 0) };
        match usize::try_from(count) {
            Ok(count) => Ok(events[..count].iter().map(|event| event.u64).collect()),
            Err(_) => match io::Error::last_os_error() {
                error if error.kind() == io::ErrorKind::Interrupted => Ok(SmallVec::new()),
                error => Err(error),
            },
        }
    }
}

impl AsRawFd for Epoll {
    fn as_raw_fd(&self) -> RawFd {
        self.0.as_raw_fd()
    }
}

fn poll(fds: &mut [libc::pollfd], timeout: Option<Duration>) -> io::Result<()> {
    let timeout = timeout.map(|timeout| libc::timespec {
        tv_sec: libc::time_t::try_from(timeout.as_secs()).unwrap_or(libc::time_t::MAX),
        tv_nsec: timeout.subsec_nanos().into(),
    });
    let timeout = timeout.as_ref().map_or(std::ptr::null(), std::ptr::from_ref);
    let count = fds.len() as libc::nfds_t;
    // SAFETY: `fds` and `timeout` are valid for the call.
    let ready = unsafe { libc::ppoll(fds.as_mut_ptr(), count, timeout, std::ptr::null()) };
    if ready < 0 {
        let error = io::Error::last_os_error();
        if error.kind() != io::ErrorKind::Interrupted {
            return Err(error);
        }
        fds.iter_mut().for_each(|fd| fd.revents = 0);
    }
    Ok(())
}

/// The CPU that the calling thread runs on.
#[inline]
pub(super) fn current_cpu() -> u32 {
    // SAFETY: no arguments.
    u32::try_from(unsafe { libc::sched_getcpu() }).unwrap_or(0)
}

#[cfg(test)]
mod tests {
    use std::os::fd::AsFd;

    use super::*;

    #[test]
    fn control_buffer_holds_the_most_descriptors() {
        // SAFETY: pure arithmetic.
        let space = unsafe { libc::CMSG_SPACE(u32::try_from(FDS_MAX * size_of::<RawFd>()).unwrap()) };
        assert!(space as usize <= CONTROL_SIZE);
    }

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
    }

    // [SHM-34] Descriptors that nobody awaits are not taken, and the message says that there were some.
    #[test]
    fn message_with_descriptors_that_nobody_awaits_is_cut() {
        let (one, other) = Socket::pair(Domain::UNIX, Type::SEQPACKET, None).unwrap();
        let bell = eventfd().unwrap();
        send(one.as_fd(), b"hello", &[bell.as_raw_fd()]).unwrap();
        match receive(other.as_fd(), &mut [0; 64], false).unwrap() {
            Incoming::Message { len: 5, fds, cut: true } => assert!(fds.is_empty()),
            _ => panic!("not cut"),
        }
    }

    #[test]
    fn message_with_descriptors_arrives_whole() {
        let (one, other) = Socket::pair(Domain::UNIX, Type::SEQPACKET, None).unwrap();
        let (sleeper, ringer) = pipe().unwrap();
        let eventfd = eventfd().unwrap();
        let sent = [sleeper.as_raw_fd(), ringer.as_raw_fd(), eventfd.as_raw_fd()];
        send(one.as_fd(), b"hello", &sent).unwrap();
        let mut bytes = [0; 16];
        let Ok(Incoming::Message { len: 5, fds, cut: false }) = receive(other.as_fd(), &mut bytes, true)
        else {
            panic!("no message");
        };
        assert_eq!(&bytes[..5], b"hello");
        drop((sleeper, ringer, eventfd));
        for (sleeper, ringer) in [(&fds[0], &fds[1]), (&fds[2], &fds[2])] {
            ring(ringer.as_fd());
            assert!(sleep(sleeper.as_fd(), other.as_fd(), None, false).unwrap().bell);
            silence(sleeper.as_fd());
            let slept = sleep(sleeper.as_fd(), other.as_fd(), Some(Duration::ZERO), false).unwrap();
            assert_eq!(slept, Slept { bell: false, socket: false });
        }
    }

    #[test]
    fn message_longer_than_expected_is_told_as_cut() {
        let (one, other) = Socket::pair(Domain::UNIX, Type::SEQPACKET, None).unwrap();
        send(one.as_fd(), &[7; 17], &[]).unwrap();
        assert!(matches!(
            receive(other.as_fd(), &mut [0; 16], true),
            Ok(Incoming::Message { cut: true, .. })
        ));
        assert!(matches!(receive(other.as_fd(), &mut [0; 16], true), Ok(Incoming::Nothing)));
        drop(one);
        assert!(matches!(receive(other.as_fd(), &mut [0; 16], true), Ok(Incoming::End)));
    }

    // [SHM-19] whatever the other side does to a doorbell, neither ringing nor silencing blocks.
    #[test]
    fn bell_rung_beyond_the_pipe_never_blocks_and_a_lost_peer_shows() {
        let (sleeper, ringer) = pipe().unwrap();
        // SAFETY: plain system calls, as a hostile peer would make them.
        unsafe { libc::fcntl(sleeper.as_raw_fd(), libc::F_SETFL, 0) };
        for _ in 0..10_000 {
            ring(ringer.as_fd());
        }
        assert!(!is_gone(ringer.as_fd()) && !is_gone(sleeper.as_fd()));
        drop(sleeper);
        assert!(is_gone(ringer.as_fd()));

        let bell = eventfd().unwrap();
        // SAFETY: as above.
        unsafe { libc::fcntl(bell.as_raw_fd(), libc::F_SETFL, 0) };
        silence(bell.as_fd());
    }
}
