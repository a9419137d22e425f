//! Which process something belongs to: after a fork the child holds all that its parent has, and must not end it.
#![allow(unsafe_code, reason = "pthread_atfork")]

use std::sync::Once;
use std::sync::atomic::{AtomicU32, Ordering};

/// How often this process and its parents have forked, counted by the children since the first [`Home`] was made.
static FORKS: AtomicU32 = AtomicU32::new(0);

/// The process in which a connection, a region or a session was made. To ask whether that is this one costs a load.
///
/// A process that `clone(2)` made without the C library counts as its parent.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Home(u32);

impl Home {
    /// This process.
    pub fn here() -> Self {
        static WATCH: Once = Once::new();
        WATCH.call_once(|| {
            // SAFETY: the handler lives as long as the process and only adds to an atomic.
            // Without memory for the handler a child counts as its parent, as before.
            unsafe { libc::pthread_atfork(None, None, Some(count_fork)) };
        });
        Self(FORKS.load(Ordering::Relaxed))
    }

    /// Whether it is this process, and not one that it was forked from.
    #[inline]
    pub fn is_here(self) -> bool {
        FORKS.load(Ordering::Relaxed) == self.0
    }
}

unsafe extern "C" fn count_fork() {
    FORKS.fetch_add(1, Ordering::Relaxed);
}
