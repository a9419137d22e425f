//! The system calls of the data path, with gather and scatter lists that cannot outlive their memory.
#![allow(unsafe_code, reason = "sendmsg and recvmsg with lists of raw addresses")]

use std::io;
use std::marker::PhantomData;
use std::os::fd::{AsRawFd, BorrowedFd};
use std::time::Duration;

use rustix::net::sockopt::socket_incoming_cpu;
use smallvec::SmallVec;

use super::super::Span;
use super::super::util::current_cpu;

/// Entries of one list. The kernel allows 1,024; more than this does not pay.
const VECTORS_MAX: usize = 128;

/// Size of an integer socket option, bytes.
const INT_SIZE: libc::socklen_t = 4;

/// Memory that one system call reads or writes, in order.
pub(super) struct Vectors<'m> {
    list: SmallVec<[libc::iovec; VECTORS_MAX]>,
    total: usize,
    life: PhantomData<Span<'m>>,
}

impl<'m> Vectors<'m> {
    pub(super) fn new() -> Self {
        Self { list: SmallVec::new(), total: 0, life: PhantomData }
    }

    /// Bytes in the list.
    pub(super) fn total(&self) -> usize {
        self.total
    }

    pub(super) fn is_full(&self) -> bool {
        self.list.len() >= VECTORS_MAX
    }

    /// Leaves out what lies beyond the first `bytes_max` bytes; `true` when that is something.
    pub(super) fn truncate(&mut self, bytes_max: usize) -> bool {
        if self.total <= bytes_max {
            return false;
        }
        let mut left = bytes_max;
        self.list.retain(|part| {
            part.iov_len = part.iov_len.min(left);
            left -= part.iov_len;
            part.iov_len > 0
        });
        self.total = bytes_max;
        true
    }

    /// There is room for one more at most.
    pub(super) fn is_nearly_full(&self) -> bool {
        self.list.len() + 1 >= VECTORS_MAX
    }

    /// Adds memory, if there is something and room for it.
    pub(super) fn push(&mut self, span: Span<'m>) {
        if !span.is_empty() && !self.is_full() {
            self.total += span.len();
            self.list.push(libc::iovec { iov_base: span.as_ptr().cast(), iov_len: span.len() });
        }
    }

    /// Adds what of `span` is left after skipping `skip` bytes, and takes those from `skip`.
    pub(super) fn push_after(&mut self, skip: &mut usize, span: Span<'m>) {
        let skipped = (*skip).min(span.len());
        *skip -= skipped;
        if let Some(rest) = span.slice(skipped, span.len() - skipped) {
            self.push(rest);
        }
    }
}

/// Memory to be sent only: the kernel reads it.
pub(super) struct Gather<'m>(Vectors<'m>);

impl<'m> Gather<'m> {
    pub(super) fn new() -> Self {
        Self(Vectors::new())
    }

    pub(super) fn vectors(&mut self) -> &mut Vectors<'m> {
        &mut self.0
    }

    pub(super) fn total(&self) -> usize {
        self.0.total
    }

    /// Adds what of `bytes` is left after skipping `skip`, and takes that from `skip`.
    pub(super) fn push_bytes_after(&mut self, skip: &mut usize, bytes: &'m [u8]) {
        let skipped = (*skip).min(bytes.len());
        *skip -= skipped;
        let rest = &bytes[skipped..];
        // SAFETY: the bytes stay for `'m`; a `Gather` is only read from, so the constant pointer is never written through.
        self.0.push(unsafe { Span::from_raw(rest.as_ptr().cast_mut(), rest.len()) });
    }
}

/// Sends without blocking; how many bytes the kernel took. `more` tells that others follow at once.
pub(super) fn send(fd: BorrowedFd<'_>, gather: &Gather<'_>, more: bool) -> io::Result<usize> {
    let flags = libc::MSG_DONTWAIT | libc::MSG_NOSIGNAL | if more { libc::MSG_MORE } else { 0 };
    if let [part] = gather.0.list[..] {
        // A shorter way through the kernel.
        // SAFETY: the part is readable for `'m`, which outlives the call; for pages that are gone the kernel reports EFAULT.
        let sent = unsafe { libc::send(fd.as_raw_fd(), part.iov_base, part.iov_len, flags) };
        return usize::try_from(sent).map_err(|_| io::Error::last_os_error());
    }
    // SAFETY: all-zero is a valid msghdr: no address, no control data.
    let mut message: libc::msghdr = unsafe { std::mem::zeroed() };
    message.msg_iov = gather.0.list.as_ptr().cast_mut();
    message.msg_iovlen = gather.0.list.len() as _;
    // SAFETY: the list describes memory that is readable for `'m`, which outlives the call; the kernel reports EFAULT
    // for pages that are gone.
    let sent = unsafe { libc::sendmsg(fd.as_raw_fd(), &raw const message, flags) };
    usize::try_from(sent).map_err(|_| io::Error::last_os_error())
}

/// What one receive brought.
pub(super) struct Receipt {
    /// Bytes; 0 is the end of the stream.
    pub(super) len: usize,
    /// What is left in the socket.
    pub(super) left: Left,
}

/// What a receive leaves in the socket.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Left {
    /// Perhaps something.
    Unknown,
    /// No data: less came than there was room for. Perhaps the end of the stream.
    NoData,
    /// Nothing, not even the end of the stream.
    Nothing,
}

/// Whether a receive waits for the first byte.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum Block {
    /// It returns `WouldBlock` when nothing is here.
    No,
    /// It waits, at most as long as [`set_receive_timeout`] said last; the socket must not be in non-blocking mode.
    Yes,
}

/// As [`receive`] into one piece of memory, by a shorter way through the kernel, which does not say what is left.
pub(super) fn receive_quickly(fd: BorrowedFd<'_>, into: &Vectors<'_>, block: Block) -> io::Result<Receipt> {
    let [part] = into.list[..] else { return receive(fd, into, block) };
    let flags = if block == Block::Yes { 0 } else { libc::MSG_DONTWAIT };
    // SAFETY: the memory is writable for the list's lifetime, which outlives the call.
    let received = unsafe { libc::recv(fd.as_raw_fd(), part.iov_base, part.iov_len, flags) };
    let len = usize::try_from(received).map_err(|_| io::Error::last_os_error())?;
    Ok(Receipt { len, left: if len < part.iov_len { Left::NoData } else { Left::Unknown } })
}

/// Receives what is here, filling the list in order. Needs [`report_queue`] to know what is left.
pub(super) fn receive(fd: BorrowedFd<'_>, scatter: &Vectors<'_>, block: Block) -> io::Result<Receipt> {
    #[repr(C, align(8))]
    struct Control([u8; 64]);
    let mut control = Control([0; 64]);
    let flags = libc::MSG_CMSG_CLOEXEC | if block == Block::Yes { 0 } else { libc::MSG_DONTWAIT };
    // SAFETY: all-zero is a valid msghdr.
    let mut message: libc::msghdr = unsafe { std::mem::zeroed() };
    message.msg_iov = scatter.list.as_ptr().cast_mut();
    message.msg_iovlen = scatter.list.len() as _;
    message.msg_control = (&raw mut control.0).cast();
    message.msg_controllen = size_of::<Control>() as _;
    // SAFETY: the list describes memory that is writable for its lifetime, which outlives the call, and the control
    // buffer is of the stated size.
    let received = unsafe { libc::recvmsg(fd.as_raw_fd(), &raw mut message, flags) };
    let len = usize::try_from(received).map_err(|_| io::Error::last_os_error())?;
    let left = if bytes_left(&message) == Some(0) { Left::Nothing } else { Left::Unknown };
    Ok(Receipt { len, left })
}

/// The kernel's count of bytes left in the socket; it counts the end of the stream as one.
fn bytes_left(message: &libc::msghdr) -> Option<i32> {
    // SAFETY: `message` was filled by recvmsg; its control buffer is live, aligned and of the length the kernel stored.
    unsafe {
        let header = libc::CMSG_FIRSTHDR(std::ptr::from_ref(message));
        if header.is_null()
            || (*header).cmsg_level != libc::SOL_TCP
            || (*header).cmsg_type != libc::TCP_CM_INQ
        {
            return None;
        }
        Some(libc::CMSG_DATA(header).cast::<i32>().read_unaligned())
    }
}

/// Asks the kernel to say with every receive how much is left. Kernels that cannot are believed to have more.
pub(super) fn report_queue(fd: BorrowedFd<'_>) {
    let on: libc::c_int = 1;
    // SAFETY: the option value is an int of the stated size.
    let result = unsafe {
        libc::setsockopt(fd.as_raw_fd(), libc::SOL_TCP, libc::TCP_INQ, (&raw const on).cast(), INT_SIZE)
    };
    if result != 0 {
        tracing::debug!(error = %io::Error::last_os_error(), "no TCP_INQ: one more receive per wake");
    }
}

/// How long a blocking receive waits from now on; `None` for ever. Rounded up to the kernel's clock, a millisecond at least.
pub(super) fn set_receive_timeout(fd: BorrowedFd<'_>, timeout: Option<Duration>) -> io::Result<()> {
    // All zero is for ever.
    let timeout = timeout.map_or(Duration::ZERO, |timeout| timeout.max(Duration::from_millis(1)));
    socket2::SockRef::from(&fd).set_read_timeout(Some(timeout).filter(|timeout| !timeout.is_zero()))
}

/// The packets of this socket were last handled on the CPU that this thread runs on: over loopback, the peer runs here too.
pub(super) fn peer_on_this_cpu(fd: BorrowedFd<'_>) -> bool {
    socket_incoming_cpu(fd).is_ok_and(|cpu| cpu == current_cpu())
}
