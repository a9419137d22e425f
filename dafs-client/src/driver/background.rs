//! Threads of the library: one that keeps a session alive or moves it along, and one for the time of a reconnect.

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, PoisonError, TryLockError, Weak};
use std::time::Duration;

use crate::config::Background;
use crate::driver::reconnect;
use crate::driver::{EndOnUnwind, Guard, SharedSession};
use crate::engine::signs::LOOK_MAX;

/// Which threads a session has, and which it may start.
#[derive(Debug)]
pub(crate) struct Threads {
    /// Threads may be started for a moment: time is the system's.
    may_start: bool,
    /// The background thread runs.
    has_background: AtomicBool,
    /// A call that never waits found the lock taken.
    was_refused: AtomicBool,
}

impl Threads {
    pub(crate) fn new(may_start: bool) -> Self {
        Self { may_start, has_background: AtomicBool::new(false), was_refused: AtomicBool::new(false) }
    }

    pub(crate) fn may_start(&self) -> bool {
        self.may_start
    }

    /// There is a thread that connects again, or one may be started.
    pub(crate) fn may_connect_again(&self) -> bool {
        self.may_start || self.has_background.load(Ordering::Acquire)
    }

    /// Whether a call that never waits was refused the lock since this was last asked.
    pub(crate) fn take_refused(&self) -> bool {
        self.was_refused.load(Ordering::Relaxed) && self.was_refused.swap(false, Ordering::Relaxed)
    }
}

impl SharedSession {
    /// Takes the lock if it is free. If it is not, the session becomes shared: whoever waits in the endpoint with the lock is called and
    /// gives it back, and from then on wherever it waits.
    pub(crate) fn lock_if_free(&self) -> Option<Guard<'_>> {
        match self.core.try_lock() {
            Ok(core) if self.home.is_here() => Some(core),
            Err(TryLockError::WouldBlock) => {
                if !self.keeping_alive.load(Ordering::Relaxed) {
                    self.contended.store(true, Ordering::Relaxed);
                    self.calls.holder.raise();
                    self.threads.was_refused.store(true, Ordering::Relaxed);
                }
                None
            }
            other => Some(self.lock_otherwise(other)),
        }
    }

    /// As [`SharedSession::turn`], for calls that never block: a broken connection is made again by another thread. Where no thread may be
    /// started, as on virtual time, it is made by this one after all.
    pub(crate) fn turn_at_once<'a>(self: &'a Arc<Self>, mut core: Guard<'a>) -> Guard<'a> {
        if core.is_broken() && !core.leader {
            core = self.reconnect_elsewhere(Arc::clone(self), core);
        }
        self.move_along(core)
    }

    /// Leaves it to another thread to connect again. That leads from now on, or as soon as it can. Where none can be started, this one
    /// connects again: nobody else would.
    #[cold]
    pub(crate) fn reconnect_elsewhere<'a>(&'a self, shared: Arc<Self>, mut core: Guard<'a>) -> Guard<'a> {
        if self.threads.has_background.load(Ordering::Acquire) {
            core.reconnect_wanted = true;
            self.wake_all();
            return core;
        }
        if !self.threads.may_start {
            return reconnect::reconnect(self, core);
        }
        let resume = reconnect::begin(&mut core);
        let resume_elsewhere = resume.clone();
        let started = std::thread::Builder::new().name("dafs-reconnect".into()).spawn(move || {
            let unwinding = EndOnUnwind { shared: &shared };
            drop(reconnect::finish(&shared, resume_elsewhere));
            std::mem::forget(unwinding);
        });
        if let Err(error) = started {
            tracing::warn!(
                "cannot start a thread to reconnect: {error}; the caller reconnects, and waits for that"
            );
            drop(core);
            return reconnect::finish(self, resume);
        }
        core
    }

    /// Sleeps until `limit` has passed, the session stops, or the connection is to be made again; for the background thread.
    fn idle(&self, limit: Duration) {
        let core = self.core.lock().unwrap_or_else(PoisonError::into_inner);
        let is_due = core.reconnect_wanted && core.is_broken() && !core.leader;
        if !is_due && !self.stopping.load(Ordering::Acquire) {
            self.wait_for_wake(core, limit);
        }
    }

    /// Ends the background thread, and attempts to connect again.
    pub(crate) fn stop(&self) {
        self.stopping.store(true, Ordering::Release);
        // As who shares the session: a thread that waits alone gives the lock back then.
        let _core = self.lock();
        self.wake_all();
        self.calls.leader.raise();
    }
}

/// Starts the thread that the configuration asks for.
pub(crate) fn start(shared: &Arc<SharedSession>) {
    let weak = Arc::downgrade(shared);
    let builder = std::thread::Builder::new().name("dafs-client".into());
    let started = match shared.config.background {
        Background::None => return,
        Background::KeepAlive => builder.spawn(move || keep_alive(&weak)),
        Background::Progress => {
            shared.contended.store(true, Ordering::Relaxed);
            builder.spawn(move || progress(&weak))
        }
    };
    match started {
        Ok(_) => shared.threads.has_background.store(true, Ordering::Release),
        Err(error) => tracing::warn!("cannot start the background thread: {error}; an idle session may end"),
    }
}

fn keep_alive(weak: &Weak<SharedSession>) {
    while let Some(shared) = weak.upgrade() {
        if shared.stopping.load(Ordering::Acquire) {
            return;
        }
        let pause = {
            let core = shared.core.lock().unwrap_or_else(PoisonError::into_inner);
            let keep_alive_ms = u64::from(core.terms.welcome.keep_alive_ms);
            if core.leader || core.dead.is_some() {
                drop(core);
            } else {
                let _keeping = KeepingAlive::begin(&shared);
                drop(shared.turn(core));
            }
            Duration::from_millis((keep_alive_ms / 4).clamp(10, 10_000))
        };
        shared.idle(pause);
    }
}

/// The thread that keeps the session alive has the lock, until this is dropped.
struct KeepingAlive<'a>(&'a SharedSession);

impl<'a> KeepingAlive<'a> {
    fn begin(shared: &'a SharedSession) -> Self {
        shared.keeping_alive.store(true, Ordering::Relaxed);
        Self(shared)
    }
}

impl Drop for KeepingAlive<'_> {
    fn drop(&mut self) {
        self.0.keeping_alive.store(false, Ordering::Relaxed);
    }
}

fn progress(weak: &Weak<SharedSession>) {
    while let Some(shared) = weak.upgrade() {
        if shared.stopping.load(Ordering::Acquire) {
            return;
        }
        shared.turn_and_wait(LOOK_MAX);
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "tests")]

    use super::*;
    use crate::testing::World;

    // [CLI-47]
    #[test]
    fn test_beside_a_taken_lock_is_false_and_marks_contention() {
        let world = World::new(1);
        world.put("f", b"12345678");
        let session = world.session();
        let file = session.mount("data").unwrap().open("f").unwrap();
        let mut read = file.submit_read_at(vec![0; 8], 0);
        let shared = &session.owner.shared;
        let guard = shared.lock();
        assert!(!read.test() && !read.has_ended(), "a thread that waited for the lock would wait for itself");
        assert!(shared.contended.load(Ordering::Relaxed));
        assert!(shared.calls.holder.take(), "whoever sleeps with it is woken");
        drop(guard);
        // The server runs while somebody waits.
        session.ping().unwrap();
        assert!(read.has_ended() && read.test());
        assert_eq!(read.wait().into_result().unwrap(), (8, b"12345678".to_vec()));
    }

    // [CLI-107] On virtual time nobody else could: no thread of the library runs in it.
    #[test]
    fn test_of_a_session_without_threads_connects_again_itself() {
        let world = World::new(2);
        world.put("f", b"12345678");
        let session = world.session();
        let file = session.mount("data").unwrap().open("f").unwrap();
        world.restart();
        let mut read = file.submit_read_at(vec![0; 8], 0);
        while session.reconnects() == 0 {
            assert!(!read.test());
            world.net().advance(Duration::from_millis(1));
        }
        assert_eq!(read.wait().into_result().unwrap(), (8, b"12345678".to_vec()));
    }
}
