//! A system call of the data path, and what the kernel's refusals mean.
#![allow(unsafe_code, reason = "process_vm_readv with raw addresses")]

use std::io;

use super::super::Span;

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

/// Copies memory that may fault, as far as it is there; how many bytes. The kernel answers EFAULT where an access of this process
/// would raise SIGBUS.
pub(super) fn copy_through_kernel(from: Span<'_>, to: Span<'_>) -> io::Result<usize> {
    let mut done = 0;
    while done < from.len() {
        let (Some(source), Some(target)) =
            (from.slice(done, from.len() - done), to.slice(done, from.len() - done))
        else {
            return Err(io::ErrorKind::InvalidInput.into());
        };
        let remote = libc::iovec { iov_base: source.as_ptr().cast(), iov_len: source.len() };
        let local = libc::iovec { iov_base: target.as_ptr().cast(), iov_len: target.len() };
        // SAFETY: both describe memory of this process for as long as the spans live; the kernel checks the source.
        let count =
            unsafe { libc::process_vm_readv(libc::getpid(), &raw const local, 1, &raw const remote, 1, 0) };
        match usize::try_from(count) {
            Ok(0) => break,
            Ok(count) => done += count,
            Err(_) => match io::Error::last_os_error() {
                error if error.raw_os_error() == Some(libc::EFAULT) => break,
                error => return Err(error),
            },
        }
    }
    Ok(done)
}
