//! Which CPU a thread runs on.
#![allow(unsafe_code, reason = "sched_getcpu")]

/// The CPU that the calling thread runs on; 0 where the system does not say. By the C library: rustix finds the kernel's quick answer by
/// itself, and crashes where a tool such as valgrind hides it.
#[inline]
pub fn current_cpu() -> u32 {
    // SAFETY: no arguments.
    u32::try_from(unsafe { libc::sched_getcpu() }).unwrap_or(0)
}
