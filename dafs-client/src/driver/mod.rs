//! Who waits, and how. Imports all rooms but `api`.
//!
//! Threads of a session share one core under one lock. One of the waiting threads leads: it receives for all, and wakes the others when
//! their replies arrive.
//!
//! A thread that is alone keeps the lock while it waits in the endpoint. That is fastest: the thread handles its own reply, without further
//! system calls. When a second thread meets the lock taken the session turns to sharing, and the thread that sleeps with the lock is called
//! (`calls`): the leader then sleeps without it, on the endpoint's descriptors. It turns back when operations have followed each other for
//! long without another thread in sight, and the oftener it has turned, the longer that takes.

pub(crate) mod background;
pub(crate) mod calls;
pub(crate) mod driven;
mod fast_chain;
pub(crate) mod fast_path;
pub(crate) mod fork;
pub(crate) mod give_up;
pub(crate) mod outlet;
pub(crate) mod pending;
mod rebuild;
pub(crate) mod reconnect;
pub(crate) mod sleep;
pub(crate) mod transfer;
mod turns;
pub(crate) mod uncontended;
mod waiting;
pub(crate) mod watch;

use std::os::fd::OwnedFd;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError, TryLockError, TryLockResult, Weak};
use std::time::Duration;

use dafs_proto::transport::util::Home;
use dafs_proto::transport::{Domain, TransportError};
use dafs_proto::wire::{FileHandle, Opcode};

use crate::clock::Clock;
use crate::config::{Background, Config};
use crate::connect::servers::Servers;
use crate::driver::background::Threads;
use crate::driver::calls::Calls;
use crate::driver::driven::Driven;
use crate::driver::sleep::Sleeper;
use crate::engine::eager::EagerBufferState;
use crate::error::Error;
use crate::handle::closings::Closings;
use crate::handle::node::{Node, NodeParts};
use crate::handle::view::ViewNode;
use crate::memory::registration::Registrar;
use crate::op::Op;
use crate::op::request::Broken;

/// How long a session that ends waits for the server to hear of it.
const GOODBYE_MAX: Duration = Duration::from_secs(1);
/// How often a thread looks whether the one that keeps the session alive has given the lock back.
const KEEPING_ALIVE_LOOKS_MAX: u32 = 10_000;
/// How often a leader polls the endpoint before it sleeps, where spinning pays.
const SPINS_MAX: u32 = 2000;

/// A session as its threads and handles share it.
pub(crate) struct SharedSession {
    pub(crate) core: Mutex<Driven>,
    wake: Condvar,
    pub(crate) calls: Calls,
    /// More than one thread uses the session.
    pub(crate) contended: AtomicBool,
    /// The thread that keeps the session alive holds the lock, for a moment: no reason to share.
    pub(crate) keeping_alive: AtomicBool,
    pub(crate) closings: Arc<Closings>,
    /// The server knows locks.
    pub(crate) has_locks: AtomicBool,
    /// Held while a view is described: the server takes the parts of one description at a time.
    pub(crate) describing: Mutex<()>,
    sleeper: Mutex<Option<Sleeper>>,
    pub(crate) domain: Arc<dyn Domain>,
    pub(crate) registrar: Arc<Registrar>,
    /// For threads that go on with it.
    itself: Weak<Self>,
    pub(crate) servers: Servers,
    pub(crate) config: Config,
    pub(crate) clock: Arc<dyn Clock>,
    pub(crate) threads: Threads,
    /// The background thread, if any, ends.
    pub(crate) stopping: AtomicBool,
    /// Whose it is.
    pub(crate) home: Home,
}

pub(crate) type Guard<'a> = MutexGuard<'a, Driven>;

impl SharedSession {
    pub(crate) fn new(
        core: Driven,
        domain: Arc<dyn Domain>,
        servers: Servers,
        config: Config,
        clock: Arc<dyn Clock>,
        threads: Threads,
        calls: Calls,
    ) -> Arc<Self> {
        let registrar = Registrar::new(Arc::clone(&domain), config.registration);
        registrar.set_useful_min(core.useful_sizes_min(&config));
        Arc::new_cyclic(|itself| Self {
            has_locks: AtomicBool::new(core.terms.has_locks()),
            closings: Arc::clone(&core.closings),
            core: Mutex::new(core),
            wake: Condvar::new(),
            calls,
            contended: AtomicBool::new(false),
            keeping_alive: AtomicBool::new(false),
            describing: Mutex::default(),
            sleeper: Mutex::new(None),
            registrar,
            itself: Weak::clone(itself),
            domain,
            servers,
            config,
            clock,
            threads,
            stopping: AtomicBool::new(false),
            home: Home::here(),
        })
    }

    /// Fails in a child of the process that opened the session: whatever else the session locks may be locked there for ever.
    #[inline]
    pub(crate) fn check_home(&self) -> crate::error::Result<()> {
        if self.home.is_here() { Ok(()) } else { Err(Error::Forked) }
    }

    /// Takes the lock; a thread that has to wait for it makes the session shared.
    #[inline]
    pub(crate) fn lock(&self) -> Guard<'_> {
        fork::let_pass();
        match self.core.try_lock() {
            Ok(core) if self.home.is_here() => core,
            other => self.lock_otherwise(other),
        }
    }

    #[cold]
    fn lock_otherwise<'a>(&'a self, locked: TryLockResult<Guard<'a>>) -> Guard<'a> {
        let mut core = match locked {
            Ok(core) => core,
            Err(TryLockError::Poisoned(poisoned)) => poisoned.into_inner(),
            Err(TryLockError::WouldBlock) => self.lock_behind_others(),
        };
        if !self.home.is_here() {
            core.leave_to_parent();
        }
        core
    }

    /// Takes the lock again that was given back for a moment.
    pub(crate) fn lock_again(&self) -> Guard<'_> {
        fork::let_pass();
        self.core.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn lock_behind_others(&self) -> Guard<'_> {
        // Whoever takes the lock behind the thread that keeps the session alive may keep it for as long as its operation lasts. And that
        // thread may be gone: by a panic, or because it is one of the process that made this one.
        for _ in 0..KEEPING_ALIVE_LOOKS_MAX {
            if !self.keeping_alive.load(Ordering::Relaxed) || !self.home.is_here() {
                break;
            }
            std::thread::yield_now();
            match self.core.try_lock() {
                Ok(core) => return core,
                Err(TryLockError::Poisoned(poisoned)) => return poisoned.into_inner(),
                Err(TryLockError::WouldBlock) => {}
            }
        }
        self.contended.store(true, Ordering::Relaxed);
        let lock = || self.core.lock().unwrap_or_else(PoisonError::into_inner);
        let mut core = self.calls.wait_for_lock(lock);
        core.uncontended.on_collision();
        core
    }

    /// Asks for eager buffers, where the configuration uses them, and waits for the answer. Blocks.
    pub(crate) fn begin_eager_buffers(&self) {
        let mut core = self.lock();
        core.ask_for_eager_buffers(&self.config);
        if matches!(core.eager_buffers, EagerBufferState::Asked(_)) {
            self.push(&mut core, false);
            drop(self.wait_until(core, |core| !matches!(core.eager_buffers, EagerBufferState::Asked(_))));
        }
    }

    /// Makes a node for a handle that the server gave; `None` when the session that gave it is gone.
    pub(crate) fn node(&self, parts: NodeParts) -> Option<Arc<Node>> {
        let mut core = self.lock();
        if parts.epoch != core.epoch {
            return None;
        }
        Some(core.node(parts))
    }

    /// Takes the descriptor that the server has passed for a handle; nothing more is expected for it.
    pub(crate) fn take_passed(&self, handle: FileHandle) -> Option<OwnedFd> {
        let mut core = self.lock();
        core.endpoint.as_mut()?.descriptors()?.take(handle.0)
    }

    /// Keeps a view, which new sessions describe again from now on; false where the session that knows it is gone.
    pub(crate) fn keep_view(&self, node: &Arc<ViewNode>, epoch: u64) -> bool {
        let mut core = self.lock();
        let is_known = core.epoch == epoch;
        if is_known {
            core.views.insert(node);
        }
        is_known
    }

    /// Starts an operation. It leaves at once, or with others: see [`Config::coalesce_submits`]. An unlock never waits for others: somebody
    /// may wait for it, whose wait its program does not see.
    pub(crate) fn submit_under(&self, core: &mut Driven, mut op: Op) -> usize {
        op.id = core.ended.new_id();
        let keep_back = core.uncollected > 0 && self.config.coalesce_submits && op.opcode != Opcode::Unlock;
        let index = self.submit_locked(core, op);
        self.push(core, keep_back);
        if core.armed_watches > 0 && (core.unflushed || core.awaits_completions()) {
            // Whoever sleeps there sends what is kept back, and what was posted behind its back may complete without an event.
            core.ended.call_all();
        }
        index
    }

    /// As [`SharedSession::submit_under`], without sending.
    pub(crate) fn submit_locked(&self, core: &mut Driven, mut op: Op) -> usize {
        core.collect_closes();
        if let Some(timeout) = self.config.operation_timeout {
            op.deadline = Some(self.clock.now().after(timeout));
            op.timeout_ms = u32::try_from(timeout.as_millis()).unwrap_or(u32::MAX).max(1);
            op.left_ms = op.timeout_ms;
            if core.deadlines == 0 {
                // Whoever sleeps does not know yet that there is a time to look at.
                core.ended.call_all();
                if core.leader_sleeps {
                    self.calls.leader.raise();
                }
            }
        }
        core.submit(op)
    }

    /// Gives an operation up. The server hears at once of a lock that nobody waits for any more: others wait behind it.
    pub(crate) fn give_up(&self, index: usize, give_up: impl FnOnce(&mut Driven)) {
        let mut core = self.lock();
        let is_lock = core.ops.get(index).is_some_and(Op::is_lock);
        give_up(&mut core);
        if is_lock {
            self.push(&mut core, false);
        }
    }

    /// Sends what can be sent. A broken connection is noted, and made again by the next who waits.
    pub(crate) fn push(&self, core: &mut Driven, keep_back: bool) {
        let mut outcome = core.send_some();
        let is_stream = || core.endpoint.as_ref().is_some_and(|endpoint| endpoint.capabilities().is_stream);
        if outcome.is_ok() && core.corks == 0 && !(keep_back && is_stream()) {
            outcome = core.flush();
        }
        self.check(core, outcome);
    }

    /// Sends the closes that wait, if the session is not in use now: else whoever uses it does. Others may wait for one that is awaited.
    pub(crate) fn send_closes(&self, is_awaited: bool) {
        if !self.home.is_here() {
            return;
        }
        match self.core.try_lock() {
            Ok(mut core) => {
                core.collect_closes();
                self.push(&mut core, !is_awaited);
            }
            // Whoever sleeps with it looks.
            Err(_) => self.calls.holder.raise(),
        }
    }

    /// Several threads use the session.
    #[inline]
    pub(crate) fn is_shared(&self) -> bool {
        self.contended.load(Ordering::Relaxed) || self.calls.is_awaited()
    }

    /// Several threads use the session, or handles wait to be given back.
    #[inline]
    pub(crate) fn is_shared_or_has_closes(&self) -> bool {
        self.contended.load(Ordering::Relaxed) || self.closings.any()
    }

    /// Runs an operation to its end and returns it.
    pub(crate) fn run_locked(&self, core: Guard<'_>, op: Op) -> Op {
        let unwinding = EndOnUnwind { shared: self };
        // Given back before that takes the lock.
        let mut core = core;
        let index = self.submit_locked(&mut core, op);
        let outcome = core.send_some();
        self.check(&mut core, outcome);
        let mut core = self.wait_until(core, |core| core.has_ended(index));
        let op = core.collect(index);
        self.note_uncontended(&mut core);
        drop(core);
        std::mem::forget(unwinding);
        self.send_closes_left();
        op
    }

    /// Sends the closes of handles that were dropped while the session was in use: others may wait for their locks.
    #[inline]
    pub(crate) fn send_closes_left(&self) {
        if self.closings.any() {
            self.send_closes(true);
        }
    }

    /// A blocking operation has ended. After many without another thread in sight the session is one thread's again.
    fn note_uncontended(&self, core: &mut Driven) {
        if !self.contended.load(Ordering::Relaxed) || self.config.background == Background::Progress {
            return;
        }
        if self.threads.take_refused() {
            core.uncontended.on_collision();
        }
        if core.followers > 0 || self.calls.is_awaited() {
            core.uncontended.on_company();
        } else if core.uncontended.lasts() {
            self.contended.store(false, Ordering::Relaxed);
        }
    }

    /// Something arrived, or ended: others look whether it is theirs.
    pub(crate) fn tell(&self, core: &Driven) {
        if core.followers > 0 {
            self.wake_all();
        }
        if core.leader_sleeps {
            self.calls.leader.raise();
        }
    }

    /// Wakes whoever waits to be told, and the background thread.
    pub(crate) fn wake_all(&self) {
        self.wake.notify_all();
    }

    /// Gives the lock back and sleeps until woken, or until `limit` has passed.
    pub(crate) fn wait_for_wake(&self, core: Guard<'_>, limit: Duration) {
        drop(self.wake.wait_timeout(core, limit).unwrap_or_else(PoisonError::into_inner));
    }

    /// Moves the session along: receives and sends without waiting, and connects again where that is due, which blocks.
    pub(crate) fn turn<'a>(&'a self, mut core: Guard<'a>) -> Guard<'a> {
        if core.is_broken() && !core.leader {
            core = reconnect::reconnect(self, core);
        }
        self.move_along(core)
    }

    /// Receives and sends, without waiting.
    pub(crate) fn move_along<'a>(&'a self, mut core: Guard<'a>) -> Guard<'a> {
        core.collect_closes();
        let outcome = core.receive().and_then(|received| {
            if received {
                self.tell(&core);
            }
            core.send_some()?;
            core.flush()?;
            core.tick(self.clock.now())
        });
        self.check(&mut core, outcome);
        // A leader asleep must still be woken by what arrives after this.
        self.keep_armed(&mut core);
        core
    }

    /// As [`SharedSession::turn`], and waits for up to `limit` when there was nothing to do: for the background thread.
    pub(crate) fn turn_and_wait(&self, limit: Duration) {
        let mut core = self.lock();
        if core.leader {
            return self.wait_for_wake(core, limit);
        }
        core = self.turn(core);
        if core.dead.is_some() {
            // Nothing comes any more; its end wakes this.
            return self.wait_for_wake(core, limit);
        }
        if core.endpoint.is_some() && !core.leader {
            let mut spins = SPINS_MAX;
            core = self.wait_once(core, &mut spins, Some(limit));
        }
        self.tell(&core);
        self.keep_armed(&mut core);
    }

    /// Ends the session, and tells the server. While requests are in flight it takes their replies for [`GOODBYE_MAX`] at most: an end
    /// that the server does not hear of costs it the session's files and memory until the lease is over, and a socket that is closed
    /// with something unread takes back what it has sent.
    pub(crate) fn end(&self, core: &mut Driven) {
        let until = self.clock.now().after(GOODBYE_MAX);
        let mut is_told = core.say_goodbye();
        while core.dead.is_none()
            && core.session.outstanding() > u16::from(is_told)
            && self.clock.now() < until
        {
            let taken = core.receive().and_then(|_| core.send_some()).and_then(|()| core.flush());
            is_told = is_told || core.say_goodbye();
            let waited = match (&taken, core.endpoint.as_mut()) {
                (Ok(()), Some(endpoint)) => endpoint.wait(Some(until.since(self.clock.now()))),
                // Gone: by now that is what was asked for.
                _ => break,
            };
            if waited.is_err() {
                break;
            }
        }
        core.die(Error::Closed);
    }

    /// What broke the connection, if anything did, is acted upon.
    #[inline]
    pub(crate) fn check(&self, core: &mut Driven, outcome: Result<(), Broken>) {
        if let Err(broken) = outcome {
            self.on_broken(core, broken);
        }
    }

    /// The connection is unusable: the next who waits connects again, or everything ends.
    #[cold]
    fn on_broken(&self, core: &mut Driven, broken: Broken) {
        if core.dead.is_some() {
            return;
        }
        match broken {
            Broken::Lost(error) => {
                match &error {
                    TransportError::Peer(fault) => {
                        tracing::warn!(server = %self.servers.name(), "connection lost: {fault}");
                    }
                    _ => tracing::debug!(server = %self.servers.name(), "connection lost: {error}"),
                }
                if self.config.reconnect.attempts_max == 0 {
                    core.die(Error::lost(&self.servers.name(), &error));
                }
            }
            Broken::Fault(fault) => {
                tracing::error!(server = %self.servers.name(), "the server broke the protocol: {fault}; the session ends");
                core.die(Error::Peer(fault));
            }
        }
        core.disconnect();
        self.tell(core);
        core.ended.call_all();
    }
}

/// Memory of a blocking call must not be left to an operation in flight: when a panic unwinds through it, the session ends first.
pub(crate) struct EndOnUnwind<'a> {
    pub(crate) shared: &'a SharedSession,
}

impl Drop for EndOnUnwind<'_> {
    fn drop(&mut self) {
        let mut core = self.shared.lock();
        core.leader = false;
        core.die(Error::Closed);
        self.shared.tell(&core);
    }
}

/// What the handles of a session share. When the last is dropped, the session ends.
pub(crate) struct Owner {
    pub(crate) shared: Arc<SharedSession>,
}

impl Drop for Owner {
    fn drop(&mut self) {
        if !self.shared.home.is_here() {
            // Whatever it holds is the parent's; a thread that is not here may hold its lock.
            return std::mem::forget(Arc::clone(&self.shared));
        }
        self.shared.stop();
        let mut core = self.shared.core.lock().unwrap_or_else(PoisonError::into_inner);
        self.shared.end(&mut core);
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "tests")]

    use dafs_proto::wire::FileIdentity;

    use super::*;
    use crate::handle::node::Reopen;
    use crate::testing::{World, config};

    fn eventually(is_so: impl Fn() -> bool) {
        let end = std::time::Instant::now() + Duration::from_secs(60);
        while !is_so() {
            assert!(std::time::Instant::now() < end, "it never comes");
            std::thread::yield_now();
        }
    }

    // [CLI-186] A thread that is alone keeps the lock for as long as its operation lasts, until it hears of another.
    #[test]
    fn whoever_waits_for_the_lock_makes_the_session_shared() {
        let world = World::new(2);
        let session = world.session();
        let shared = &*session.owner.shared;
        std::thread::scope(|scope| {
            // Also behind the thread that keeps the session alive.
            shared.keeping_alive.store(true, Ordering::Relaxed);
            let core = shared.lock();
            let other = scope.spawn(|| drop(shared.lock()));
            shared.keeping_alive.store(false, Ordering::Relaxed);
            eventually(|| shared.contended.load(Ordering::Relaxed));
            // Had it slept in the endpoint, it would have been woken, and would know why.
            eventually(|| shared.calls.holder.take());
            assert!(shared.calls.is_awaited());
            drop(core);
            other.join().unwrap();
            assert!(!shared.calls.is_awaited());
            shared.contended.store(false, Ordering::Relaxed);
            let core = shared.lock();
            scope.spawn(|| shared.stop());
            eventually(|| shared.calls.holder.take());
            drop(core);
        });
    }

    // It may have died with the lock, and its word that it has it for a moment is still there.
    #[test]
    fn waiter_gets_the_lock_when_the_keep_alive_thread_stops() {
        let world = World::new(5);
        let session = world.session();
        let shared = &session.owner.shared;
        shared.keeping_alive.store(true, Ordering::Relaxed);
        let core = shared.lock();
        let elsewhere = Arc::clone(shared);
        let other = std::thread::spawn(move || drop(elsewhere.lock()));
        eventually(|| shared.contended.load(Ordering::Relaxed));
        drop(core);
        other.join().unwrap();
    }

    #[test]
    fn whoever_follows_a_thread_that_connects_again_makes_the_session_shared() {
        let world = World::new(3);
        let session = world.session();
        let shared = &*session.owner.shared;
        let mut core = shared.lock();
        core.leader = true;
        let mut core = shared.follow(core, None);
        core.leader = false;
        assert!(shared.contended.load(Ordering::Relaxed));
    }

    // [LOCK-69]
    #[test]
    fn abandoned_waiting_lock_is_cancelled_at_the_server_at_once() {
        let world = World::new(4);
        let (holder, session) = (world.session(), world.session());
        let open = |session: &crate::Session| {
            let mut options = crate::OpenOptions::new();
            session.mount("data").unwrap().open_with("f", options.write(true).create(true)).unwrap()
        };
        let (held, file) = (open(&holder), open(&session));
        held.lock(0..1, crate::LockKind::Exclusive).unwrap();
        let shared = &session.owner.shared;
        for cancels in [false, true] {
            let wait = file.submit_lock(0..1, crate::LockKind::Exclusive);
            session.ping().unwrap();
            match cancels {
                false => drop(wait),
                true => assert!(matches!(wait.cancel(), Err(Error::Cancelled))),
            }
            let core = shared.lock();
            assert!(core.queue.is_empty() && !core.unflushed && core.session.outstanding() > 0);
            drop(core);
            session.ping().unwrap();
        }
    }

    // [CLI-187] On virtual time, which no test takes.
    #[test]
    fn operation_ends_at_its_deadline_and_not_later() {
        let world = World::new(7);
        for timeout in [1, 101, 1500, 2500].map(Duration::from_millis) {
            let limited = Config { operation_timeout: Some(timeout), ..config() };
            let session = world.connect(&limited).unwrap();
            for contended in [false, true] {
                session.owner.shared.contended.store(contended, Ordering::Relaxed);
                world.once(Opcode::Null, |_| dafs_tests::sim::Action::Ignore);
                let before = world.net().now();
                assert!(matches!(session.ping(), Err(Error::TimedOut { .. })));
                // A session counts in microseconds.
                let late = (world.net().now() - before).checked_sub(timeout);
                assert!(late.is_some_and(|late| late <= Duration::from_micros(1)), "{late:?}");
            }
        }
    }

    // [CLI-186] A handle that is dropped while another thread waits is given back, where that one has the session for itself, too.
    #[test]
    fn handle_that_is_dropped_while_another_thread_waits_calls_that_one() {
        let world = World::new(8);
        let session = world.session();
        let export = session.mount("data").unwrap();
        let shared = &*session.owner.shared;
        let core = shared.lock();
        drop(export);
        assert!(shared.calls.holder.take() && shared.closings.any());
        drop(core);
        session.ping().unwrap();
        assert!(!shared.closings.any());
    }

    // [CLI-36] A thread took the reply of an open, and the session was lost before it made a node of it.
    #[test]
    fn node_for_a_handle_of_a_lost_session_is_refused() {
        let world = World::new(1);
        let session = world.session();
        let export = session.mount("data").unwrap();
        let shared = &session.owner.shared;
        let parts = |epoch| NodeParts {
            export: "data".to_owned(),
            path: b"f".to_vec(),
            reopen: Reopen::Lookup { follow: true },
            identity: FileIdentity { file_id: 1, generation: 1 },
            handle: FileHandle(1),
            epoch,
        };
        let epoch = shared.lock().epoch;
        assert!(shared.node(parts(epoch)).is_some());
        world.restart();
        export.metadata("").unwrap();
        assert!(shared.node(parts(epoch)).is_none());
        let epoch = shared.lock().epoch;
        assert!(shared.node(parts(epoch)).is_some());
    }

    // [VIEW-11] A thread took the answer to a description, and the server was restarted before it kept the view.
    #[test]
    fn view_of_a_lost_session_is_not_kept_as_known() {
        let world = World::new(6);
        let session = world.session();
        let shared = &session.owner.shared;
        let export = session.mount("data").unwrap();
        let view = dafs_proto::view::View::new(&crate::Datatype::bytes(4)).unwrap();
        let node = Arc::new(ViewNode::new(9, view, Vec::new(), Arc::clone(&shared.closings)));
        let epoch = shared.lock().epoch;
        world.restart();
        export.metadata("").unwrap();
        assert!(!shared.keep_view(&node, epoch) && shared.lock().views.living().is_empty());
        let epoch = shared.lock().epoch;
        assert!(shared.keep_view(&node, epoch) && shared.lock().views.living().len() == 1);
    }
}
