//! A fork while a thread of the library works. The child does not have that thread, and what it had locked would stay locked there.
//!
//! So a fork first takes the locks of all sessions, and that of the list of them, and releases them in both processes.
#![allow(unsafe_code, reason = "pthread_atfork, whose handlers hold locks from one to the next")]

use std::cell::RefCell;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, Once, PoisonError, TryLockError, Weak};
use std::time::{Duration, Instant};

use crate::driver::{Guard, SharedSession};

/// How long a fork waits for locks. The thread that has one may be that which forks, or is inside a call, where a program must not fork.
/// On a host with many more threads than CPUs it may take seconds until another thread has run and given the lock back; the child of a
/// fork that waited in vain waits for ever.
const WAIT_MAX: Duration = Duration::from_secs(15);

/// How long a thread that lets a fork go first sleeps between two looks: one that spins takes the CPU from who has the lock.
const LOOK: Duration = Duration::from_micros(100);

/// Forks that wait for locks: who would take one lets them have it first.
static WAITING: AtomicUsize = AtomicUsize::new(0);

/// The sessions of this process, and of those that it was forked from.
static SESSIONS: Mutex<Vec<Weak<SharedSession>>> = Mutex::new(Vec::new());

thread_local! {
    /// What this thread holds while it forks.
    static HELD: RefCell<Fork> = const { RefCell::new(Fork { list: None, sessions: Vec::new() }) };
}

/// What a fork holds.
#[derive(Default)]
struct Fork {
    list: Option<MutexGuard<'static, Vec<Weak<SharedSession>>>>,
    sessions: Vec<Held>,
}

/// The lock of a session.
struct Held {
    /// Borrows from `shared`, and must go first.
    guard: Guard<'static>,
    shared: Arc<SharedSession>,
}

/// From now on a fork leaves the session's lock free in the child.
pub(crate) fn watch(shared: &Arc<SharedSession>) {
    static WATCH: Once = Once::new();
    WATCH.call_once(|| {
        // SAFETY: the handlers live as long as the process. Without memory for them a child may wait for ever, as before.
        unsafe { libc::pthread_atfork(Some(before), Some(in_parent), Some(in_child)) };
    });
    let mut sessions = SESSIONS.lock().unwrap_or_else(PoisonError::into_inner);
    sessions.retain(|session| session.strong_count() > 0);
    sessions.push(Arc::downgrade(shared));
}

/// Lets a fork that waits for the lock of a session have it first. Without that, threads that take it again and again may keep it from the
/// fork, and the child would wait for it for ever.
#[inline]
pub(crate) fn let_pass() {
    if WAITING.load(Ordering::Relaxed) != 0 {
        let until = Instant::now() + WAIT_MAX;
        while WAITING.load(Ordering::Relaxed) != 0 && Instant::now() < until {
            std::thread::sleep(LOOK);
        }
    }
}

unsafe extern "C" fn before() {
    WAITING.fetch_add(1, Ordering::Relaxed);
    let list = SESSIONS.lock().unwrap_or_else(PoisonError::into_inner);
    let until = Instant::now() + WAIT_MAX;
    let here = list.iter().filter_map(Weak::upgrade).filter(|shared| shared.home.is_here());
    let sessions = here.filter_map(|shared| hold(shared, until)).collect();
    WAITING.fetch_sub(1, Ordering::Relaxed);
    // A thread that ends forks no more.
    let _ = HELD.try_with(|place| place.replace(Fork { list: Some(list), sessions }));
}

unsafe extern "C" fn in_parent() {
    let Fork { list, sessions } = taken();
    // The end of a session may take long, and needs no list.
    drop(list);
    drop(sessions);
}

unsafe extern "C" fn in_child() {
    // Another thread of the parent may have been about to fork too.
    WAITING.store(0, Ordering::Relaxed);
    let Fork { list, sessions } = taken();
    drop(list);
    for Held { guard, shared } in sessions {
        drop(guard);
        // Whatever it holds is the parent's.
        std::mem::forget(shared);
    }
}

fn taken() -> Fork {
    HELD.try_with(RefCell::take).unwrap_or_default()
}

fn hold(shared: Arc<SharedSession>, until: Instant) -> Option<Held> {
    let guard = shared.lock_to_fork(until)?;
    // SAFETY: only the lifetime changes. What the guard borrows from outlives it: it goes first (see `Held`).
    let guard = unsafe { std::mem::transmute::<Guard<'_>, Guard<'static>>(guard) };
    Some(Held { guard, shared })
}

impl SharedSession {
    /// As [`SharedSession::lock`], until then at most.
    fn lock_to_fork(&self, until: Instant) -> Option<Guard<'_>> {
        loop {
            match self.core.try_lock() {
                Ok(core) => return Some(core),
                Err(TryLockError::Poisoned(poisoned)) => return Some(poisoned.into_inner()),
                Err(TryLockError::WouldBlock) if Instant::now() >= until => return None,
                Err(TryLockError::WouldBlock) => {}
            }
            if !self.keeping_alive.load(Ordering::Relaxed) {
                // Who waits in the endpoint with the lock gives it back then.
                self.contended.store(true, Ordering::Relaxed);
                self.calls.holder.raise();
            }
            std::thread::yield_now();
        }
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "tests")]

    use super::*;
    use crate::error::Error;
    use crate::testing::{World, is_alone};

    // [CLI-43]
    #[test]
    fn list_of_sessions_is_free_in_a_child() {
        if !is_alone("driver::fork::tests::list_of_sessions_is_free_in_a_child") {
            return;
        }
        let world = World::new(1);
        let _session = world.session();
        let is_over = std::sync::atomic::AtomicBool::new(false);
        std::thread::scope(|scope| {
            scope.spawn(|| {
                while !is_over.load(Ordering::Relaxed) {
                    SESSIONS.lock().unwrap().retain(|session| session.strong_count() > 0);
                }
            });
            for _ in 0..200 {
                // SAFETY: the child looks at a lock, and ends without running anything of the parent's.
                let child = unsafe { libc::fork() };
                if child == 0 {
                    let is_free = SESSIONS.try_lock().is_ok();
                    // SAFETY: as above.
                    unsafe { libc::_exit(i32::from(!is_free)) };
                }
                let mut status = 0;
                // SAFETY: waits for the child made above.
                assert_eq!(unsafe { libc::waitpid(child, &raw mut status, 0) }, child);
                assert_eq!(status, 0, "a new session of the child would wait for ever");
            }
            is_over.store(true, Ordering::Relaxed);
        });
    }

    // [CLI-43]
    #[test]
    fn child_forked_beside_a_library_thread_is_refused_without_hanging() {
        if !is_alone("driver::fork::tests::child_forked_beside_a_library_thread_is_refused_without_hanging") {
            return;
        }
        let world = World::new(1);
        let session = world.session();
        let read = session.submit_ping();
        let shared = &session.owner.shared;
        let (locked, is_locked) = std::sync::mpsc::channel();
        let elsewhere = Arc::clone(shared);
        let library = std::thread::spawn(move || {
            let core = elsewhere.core.lock().unwrap();
            locked.send(()).unwrap();
            // Until somebody wants it.
            while !elsewhere.contended.load(Ordering::Relaxed) {
                std::thread::yield_now();
            }
            drop(core);
        });
        is_locked.recv().unwrap();
        // SAFETY: the child uses what this thread alone uses, and ends without running anything of the parent's.
        let child = unsafe { libc::fork() };
        if child == 0 {
            // SAFETY: ends a child that waits for ever.
            unsafe { libc::alarm(20) };
            let refused =
                matches!(read.wait(), Err(Error::Forked)) && matches!(session.probe(), Err(Error::Forked));
            // SAFETY: as above.
            unsafe { libc::_exit(i32::from(!refused)) };
        }
        shared.contended.store(true, Ordering::Relaxed);
        let mut status = 0;
        // SAFETY: waits for the child made above.
        assert_eq!(unsafe { libc::waitpid(child, &raw mut status, 0) }, child);
        assert_eq!(status, 0, "the child is refused everything");
        library.join().unwrap();
        read.wait().unwrap();
        session.probe().unwrap();
    }
}
