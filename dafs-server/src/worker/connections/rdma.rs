//! The RDMA of a connection: what is posted on it, and whether its client lets that move.

use std::collections::VecDeque;
use std::time::Duration;

use dafs_proto::session::Moment;

/// What was posted on a connection, and what has become of it.
#[derive(Debug)]
pub(crate) struct Rdma {
    /// Operations posted and not completed.
    pending: u32,
    /// Operations that have completed.
    completed: u64,
    /// Steps so far: see [`RdmaStep`].
    steps: u64,
    /// Operations of the server whose posts found the queue full.
    waiters: VecDeque<usize>,
    /// What was known at the last tick.
    progress: Progress,
}

/// A step of a connection's RDMA: something was posted for an operation, or has completed for it. The earlier ones are less.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct RdmaStep {
    number: u64,
    /// As many have completed on the connection once all have that were posted before.
    ahead: u64,
}

/// How far RDMA of a connection has come, as of some tick.
#[derive(Debug)]
struct Progress {
    /// Bytes that it has moved, and completions.
    moved: u64,
    /// Bytes that the client has sent.
    heard: u64,
    /// When it moved last, or none was posted.
    at: Moment,
    /// Of the last steps for those operations that hold buffers and wait for RDMA, the first; and how many have completed of what is before
    /// it.
    oldest: Option<(u64, u64)>,
    /// Since when that is so.
    oldest_since: Moment,
}

/// Leases in which RDMA completes something for the operation with buffers that waits for it longest, or of what is before that, while
/// others want them. That is a quarter of a megabyte, behind what the stream has taken: so much passes over any line that somebody works
/// over.
const LEASES_TO_COMPLETE: u32 = 8;

impl Rdma {
    /// None yet.
    pub(crate) fn new(now: Moment) -> Self {
        let progress = Progress { moved: 0, heard: 0, at: now, oldest: None, oldest_since: now };
        Self { pending: 0, completed: 0, steps: 0, waiters: VecDeque::new(), progress }
    }

    /// So many were posted, as the next step.
    #[inline]
    pub(crate) fn on_posted(&mut self, count: u32) -> RdmaStep {
        let step = self.next_step();
        self.pending += count;
        step
    }

    /// So many were posted that belong to no operation of the server.
    #[inline]
    pub(crate) fn on_posted_apart(&mut self, count: u32) {
        self.pending += count;
    }

    /// One has completed, as the next step.
    #[inline]
    pub(crate) fn on_completed(&mut self, is_ok: bool) -> RdmaStep {
        self.pending = self.pending.saturating_sub(1);
        self.completed += u64::from(is_ok);
        self.next_step()
    }

    #[inline]
    fn next_step(&mut self) -> RdmaStep {
        self.steps += 1;
        RdmaStep { number: self.steps, ahead: self.completed + u64::from(self.pending) }
    }

    /// The post of an operation, by its place, found the queue full.
    pub(crate) fn wait_for_room(&mut self, operation: usize) {
        self.waiters.push_back(operation);
    }

    /// Posts found the queue full.
    #[inline]
    pub(crate) fn has_waiters(&self) -> bool {
        !self.waiters.is_empty()
    }

    /// Takes the operations whose posts found the queue full.
    pub(crate) fn take_waiters(&mut self) -> VecDeque<usize> {
        std::mem::take(&mut self.waiters)
    }

    /// Nothing is posted, nor waits to be.
    #[inline]
    pub(crate) fn is_quiet(&self) -> bool {
        self.pending == 0 && self.waiters.is_empty()
    }

    /// Once each tick: whether the client has sent anything since the last, or RDMA has moved data.
    pub(super) fn has_moved(&mut self, moved: u64, heard: u64, now: Moment) -> bool {
        let moved = self.completed + moved;
        let has_moved = std::mem::replace(&mut self.progress.moved, moved) != moved;
        let is_heard = std::mem::replace(&mut self.progress.heard, heard) != heard;
        if self.pending == 0 || has_moved {
            self.progress.at = now;
        }
        has_moved || is_heard
    }

    /// The client lets its RDMA rest: none has moved for a lease, or none has completed for eight for the operation that waits longest,
    /// whose last step is `oldest`, nor of what was posted before. Asked at each tick at which others wait for buffers of this connection's
    /// session.
    pub(crate) fn rests(&mut self, oldest: Option<RdmaStep>, now: Moment, lease: Duration) -> bool {
        let oldest = oldest.map(|step| (step.number, self.completed.min(step.ahead)));
        if self.progress.oldest != oldest {
            (self.progress.oldest, self.progress.oldest_since) = (oldest, now);
        }
        let (moves, completes) = (self.progress.at, self.progress.oldest_since);
        (self.pending > 0 && now >= moves.after(lease))
            || (oldest.is_some() && now >= completes.after(lease * LEASES_TO_COMPLETE))
    }

    /// For so long this server did not run.
    pub(super) fn on_stall(&mut self, later: impl Fn(Moment) -> Moment) {
        self.progress.at = later(self.progress.at);
        self.progress.oldest_since = later(self.progress.oldest_since);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const LEASE: Duration = Duration::from_secs(1);

    // [LIMIT-24]
    #[test]
    fn client_pauses_rdma_only_after_earlier_posts_completed() {
        const BEFORE: u32 = 20;
        let mut now = Moment::default();
        let mut rdma = Rdma::new(now);
        // Reads of mapped files, which need no buffers, and then one that has some.
        rdma.on_posted_apart(BEFORE);
        let step = rdma.on_posted(1);
        for _ in 0..BEFORE {
            rdma.completed += 1;
            for _ in 0..LEASES_TO_COMPLETE {
                assert!(!rdma.rests(Some(step), now, LEASE));
                now = now.after(LEASE);
                // A byte moves now and then.
                rdma.progress.at = now;
            }
        }
        assert!(rdma.rests(Some(step), now, LEASE), "eight leases after the last");
        rdma.completed += 1;
        assert!(rdma.rests(Some(step), now, LEASE), "what was posted behind it does not count");
    }
}
