//! How threads of a session get each other's attention.

use std::io;
use std::sync::atomic::{AtomicU32, Ordering};

use dafs_proto::transport::Interrupt;

/// Ends waits of other threads. Costs a system call only where one sleeps.
pub(crate) struct Calls {
    /// Of the thread that sleeps in the endpoint with the lock.
    pub(crate) holder: Interrupt,
    /// Of the leader that sleeps without it.
    pub(crate) leader: Interrupt,
    /// Threads that wait for the lock. Whoever takes a call looks here: the call was perhaps for one that had the lock before.
    waiting: AtomicU32,
}

impl Calls {
    pub(crate) fn new() -> io::Result<Self> {
        Ok(Self { holder: Interrupt::new()?, leader: Interrupt::new()?, waiting: AtomicU32::new(0) })
    }

    /// Takes the lock by `lock`, which blocks; whoever sleeps with it gives it back.
    pub(crate) fn wait_for_lock<G>(&self, lock: impl FnOnce() -> G) -> G {
        self.waiting.fetch_add(1, Ordering::Relaxed);
        let _waiting = Waiting(&self.waiting);
        self.holder.raise();
        lock()
    }

    /// A thread waits for the lock.
    pub(crate) fn is_awaited(&self) -> bool {
        self.waiting.load(Ordering::Relaxed) > 0
    }
}

struct Waiting<'a>(&'a AtomicU32);

impl Drop for Waiting<'_> {
    fn drop(&mut self) {
        self.0.fetch_sub(1, Ordering::Relaxed);
    }
}
