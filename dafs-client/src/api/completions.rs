use std::os::fd::{AsFd, AsRawFd, BorrowedFd, RawFd};
use std::sync::Arc;

use crate::api::session::Session;
use crate::driver::SharedSession;
use crate::driver::watch::Watch;
use crate::error::{Error, Result};
use crate::op::id::OperationId;

/// A descriptor that tells when operations of a session have ended, or when the session needs its program to move it along: for event
/// loops. It stays the same when the session connects again, and does not keep the session from ending.
///
/// It is used in this order, by one thread at a time:
///
/// 1. [`Completions::turn`] until it returns false;
/// 2. [`Completions::next`] until there is none, and [`Pending::wait`](crate::Pending::wait) of each;
/// 3. [`Completions::arm`]; where that returns false, again from 1;
/// 4. `poll(2)`, `epoll_wait(2)` or the like, until the descriptor is readable; then again from 1.
///
/// It is not to be read. Other threads may use the session meanwhile, in any way. The examples `poll` and `mio` show it.
pub struct Completions {
    pub(crate) shared: Arc<SharedSession>,
    pub(crate) watch: Arc<Watch>,
}

impl Session {
    /// Makes a descriptor that tells of ended operations. From now on the session keeps which nonblocking operations have ended, until
    /// [`Completions::next`] has told of them. More than one may be made; each end is told by one of them.
    pub fn completions(&self) -> Result<Completions> {
        Completions::of(&self.owner.shared, true)
    }
}

impl Completions {
    /// `keeps`: somebody will ask which operations have ended.
    pub(crate) fn of(shared: &Arc<SharedSession>, keeps: bool) -> Result<Self> {
        let watch =
            shared.add_watch(keeps).map_err(|error| failed(shared, "make a descriptor of", &error))?;
        Ok(Self { shared: Arc::clone(shared), watch })
    }

    /// Receives and sends without waiting, and wakes the tasks of [`Pending`](crate::Pending)s that have ended. Whether there may be more
    /// to do: call it again then. It blocks where [`Pending::test`](crate::Pending::test) does.
    #[allow(clippy::must_use_candidate, reason = "the next arm says it too")]
    pub fn turn(&self) -> bool {
        self.shared.take_turn(&self.watch)
    }

    /// A nonblocking operation that has ended and was not collected, as [`Pending::id`](crate::Pending::id) names it. Each is told once.
    #[allow(clippy::should_implement_trait, reason = "after none there may be some")]
    pub fn next(&self) -> Option<OperationId> {
        self.shared.lock().next_ended()
    }

    /// Prepares to sleep: `true` when from now on the descriptor becomes readable as soon as there is something to do. `false` when there
    /// is something now: take turns again. Over a simulated network it is always `false`, for nothing can be slept on; turns let virtual
    /// time pass there.
    pub fn arm(&self) -> Result<bool> {
        self.shared.arm_watch(&self.watch).map_err(|error| failed(&self.shared, "watch", &error))
    }

    /// The session has ended: nothing more will come.
    #[must_use]
    pub fn is_over(&self) -> bool {
        self.shared.lock().dead.is_some()
    }
}

pub(crate) fn failed(shared: &SharedSession, what: &str, error: &std::io::Error) -> Error {
    let server = shared.servers.name();
    Error::Connection { server, cause: format!("cannot {what} the session: {error}") }
}

impl AsFd for Completions {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.watch.as_fd()
    }
}

impl AsRawFd for Completions {
    fn as_raw_fd(&self) -> RawFd {
        self.as_fd().as_raw_fd()
    }
}

impl Drop for Completions {
    fn drop(&mut self) {
        self.shared.remove_watch(&self.watch);
    }
}

impl std::fmt::Debug for Completions {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "Completions({})", self.as_raw_fd())
    }
}
