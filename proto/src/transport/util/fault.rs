//! Copies of memory that may be gone.
#![allow(unsafe_code, reason = "process_vm_readv with raw addresses")]

use std::io;

use super::super::Span;

/// Copies as far as both are there; how many bytes. The kernel returns EFAULT where an access of this process would raise SIGBUS.
pub fn copy_through_kernel(from: Span<'_>, to: Span<'_>) -> io::Result<usize> {
    let part = |span: Span<'_>| libc::iovec { iov_base: span.as_ptr().cast(), iov_len: span.len() };
    let mut done = 0;
    while let (Some(source), Some(target)) =
        (from.slice(done, from.len() - done), to.slice(done, from.len() - done))
        && !source.is_empty()
    {
        let (remote, local) = (part(source), part(target));
        // SAFETY: both describe memory of this process for as long as the spans live; the kernel checks both.
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
