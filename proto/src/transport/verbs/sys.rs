//! What the kernel's refusals mean, and descriptors that do not block.
#![allow(unsafe_code, reason = "borrows raw descriptors")]

use std::io;
use std::os::fd::{BorrowedFd, RawFd};

use rustix::io::ioctl_fionbio;

/// Says what the kernel means when it refuses an RDMA call.
#[cold]
pub(super) fn refusal(code: i32) -> io::Error {
    let error = io::Error::from_raw_os_error(code.abs());
    match error.raw_os_error() {
        Some(libc::EACCES) => io::Error::new(
            error.kind(),
            format!(
                "{error}: the kernel takes RDMA calls only from threads that never changed their user, group or \
                 capabilities since the device was opened"
            ),
        ),
        _ => error,
    }
}

/// # Safety
/// The descriptor must be open.
pub(super) unsafe fn set_nonblocking(fd: RawFd) -> io::Result<()> {
    // SAFETY: promised by the caller.
    Ok(ioctl_fionbio(unsafe { BorrowedFd::borrow_raw(fd) }, true)?)
}
