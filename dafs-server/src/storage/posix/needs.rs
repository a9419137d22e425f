//! What the system must have for a directory to be served. Kernels may lack it, filters of system calls forbid it: better said once, at the
//! start, than by every operation.

use std::os::fd::BorrowedFd;

use rustix::fs::{OFlags, ResolveFlags};

use super::sys::{self, Errno};

/// What is missing here, and what to do.
pub(super) fn missing(root: BorrowedFd<'_>) -> Option<&'static str> {
    if matches!(sys::fstat(root), Err(Errno::NOSYS | Errno::PERM)) {
        return Some(
            "statx(2) is not available; allow it in the filter of system calls (the container's seccomp profile)",
        );
    }
    if matches!(
        sys::openat2(root, b".", OFlags::PATH, 0, ResolveFlags::BENEATH),
        Err(Errno::NOSYS | Errno::PERM)
    ) {
        return Some(
            "openat2(2) is not available; allow it in the filter of system calls (the container's seccomp profile), \
             or run Linux 5.6 or later",
        );
    }
    if matches!(sys::reopen(root, OFlags::PATH), Err(Errno::NOENT | Errno::NOTDIR | Errno::ACCESS)) {
        return Some("/proc is not mounted; mount it with `mount -t proc proc /proc`");
    }
    None
}
