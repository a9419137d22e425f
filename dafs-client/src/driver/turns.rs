//! Turns of a thread that sleeps on a descriptor of the session ([`Watch`]), and what the other threads do for it.
//!
//! No wake-up is lost. While the descriptor is armed, so is the endpoint: another thread that receives arms it again before it releases the
//! lock, or continues to receive ([`SharedSession::keep_armed`]). When another thread ends an operation, or needs a turn for something
//! else, it calls (`Interrupt`). A call that comes before the arming makes the arming fail.

use std::io;
use std::sync::Arc;
use std::time::Duration;

use crate::driver::driven::Driven;
use crate::driver::watch::Watch;
use crate::driver::{Guard, SharedSession};
use crate::op::request::Broken;

/// On virtual time nothing can be slept on: a turn lets so much of it pass.
const VIRTUAL_TURN: Duration = Duration::from_millis(1);

/// How often a thread that leaves receives what comes meanwhile.
const ARM_ROUNDS_MAX: u32 = 64;

impl SharedSession {
    /// Makes a descriptor of the session. `keeps`: its user will ask which operations have ended.
    pub(crate) fn add_watch(&self, keeps: bool) -> io::Result<Arc<Watch>> {
        let watch = Arc::new(Watch::new(keeps)?);
        let mut core = self.lock();
        if keeps {
            core.ended.keep();
        }
        core.ended.add_call(Arc::clone(&watch.call));
        core.watches.push(Arc::clone(&watch));
        Ok(watch)
    }

    pub(crate) fn remove_watch(&self, watch: &Arc<Watch>) {
        let mut core = self.lock();
        core.disarm(watch, self.home.is_here());
        core.ended.remove_call(&watch.call);
        core.watches.retain(|other| !Arc::ptr_eq(other, watch));
    }

    /// Moves the session along for the user of a descriptor, and wakes futures of which the operations have ended. Whether there may be
    /// more to do. On virtual time it lets some pass.
    pub(crate) fn take_turn(self: &Arc<Self>, watch: &Watch) -> bool {
        let mut core = self.lock();
        let was_called = core.disarm(watch, self.home.is_here());
        let before = core.arrivals;
        core = self.turn_at_once(core);
        if core.arrivals == before
            && let Some(endpoint) = core.endpoint.as_mut()
            && endpoint.event_fds().is_empty()
        {
            let waited = endpoint.wait(Some(VIRTUAL_TURN)).map_err(Broken::Lost);
            self.check(&mut core, waited);
            core = self.move_along(core);
            let outcome = core.tick(self.clock.now());
            self.check(&mut core, outcome);
        }
        let wakers = core.ended.take_wakers();
        let moved = was_called || core.arrivals != before || !wakers.is_empty();
        // A waker runs what it likes.
        drop(core);
        wakers.into_iter().for_each(std::task::Waker::wake);
        moved
    }

    /// Prepares its user to sleep on a descriptor until that is readable. `false`: there is something to do now.
    pub(crate) fn arm_watch(&self, watch: &Watch) -> io::Result<bool> {
        let mut core = self.lock();
        if core.disarm(watch, self.home.is_here()) {
            return Ok(false);
        }
        core.collect_closes();
        let outcome = core.send_some().and_then(|()| core.flush());
        self.check(&mut core, outcome);
        if core.ended.has_news(watch.keeps) || (core.is_broken() && !core.leader) {
            return Ok(false);
        }
        let (connection, now) = (core.reconnects, self.clock.now());
        if let Some(endpoint) = core.endpoint.as_mut() {
            let fds = endpoint.event_fds();
            if fds.is_empty() {
                return Ok(false);
            }
            watch.follow(connection, fds)?;
            if !endpoint.arm() {
                self.use_room(&mut core);
                return Ok(false);
            }
            watch.ring_by(now, core.sleep_max(now))?;
        } else if core.dead.is_none() {
            // Another thread connects, and looks at no deadline.
            watch.ring_by(now, core.sleep_max(now))?;
        }
        Ok(core.arm(watch))
    }

    /// A thread that has received leaves: a descriptor that is armed tells of what arrives after this.
    pub(crate) fn keep_armed(&self, core: &mut Guard<'_>) {
        let mut rounds = 0;
        while (core.leader_sleeps || core.armed_watches > 0)
            && core.endpoint.as_mut().is_some_and(|endpoint| !endpoint.arm())
        {
            rounds += 1;
            if rounds > ARM_ROUNDS_MAX {
                // More comes all the time: whoever sleeps is to take part.
                self.tell(core);
                return core.ended.call_all();
            }
            let before = core.arrivals;
            let outcome = core.receive().map(|_| self.tell(core));
            self.check(core, outcome);
            if core.arrivals == before {
                self.use_room(core);
            }
        }
    }

    /// What is here is no message: room perhaps, which is for who has something to send, and else not to be told of again.
    fn use_room(&self, core: &mut Guard<'_>) {
        core.unflushed = true;
        let outcome = core.send_some().and_then(|()| core.flush());
        self.check(core, outcome);
        if let Some(endpoint) = core.endpoint.as_mut()
            && let Ok(slot) = endpoint.reserve(0)
        {
            endpoint.cancel_send(slot);
        }
    }
}

impl Driven {
    fn arm(&mut self, watch: &Watch) -> bool {
        let is_armed = watch.call.may_sleep();
        watch.state().is_armed = is_armed;
        self.armed_watches += usize::from(is_armed);
        is_armed
    }

    /// Whether its user was called.
    fn disarm(&mut self, watch: &Watch, is_here: bool) -> bool {
        // In a child of the process the descriptor's events are the parent's.
        let disarmed = if is_here { watch.disarm() } else { None };
        self.armed_watches -= usize::from(disarmed.is_some());
        disarmed.unwrap_or(false)
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "tests")]

    use std::collections::{HashMap, HashSet};
    use std::os::fd::AsFd;
    use std::sync::Mutex;

    use dafs_tests::harness::{Harness, On, key_for};
    use dafs_tests::suite::Numbers;
    use rustix::event::{PollFd, PollFlags, Timespec, poll};

    use crate::testing::World;
    use crate::{Completions, Config, OperationId, Pending, Result, Session};

    /// Whoever sleeps for so long has not been woken.
    const HANG_S: i64 = 60;

    /// Nonblocking operations that are in flight, by their names.
    type InFlight = Mutex<HashMap<OperationId, Pending<Result<()>>>>;

    fn submit(session: &Session, in_flight: &InFlight) {
        // Its end is looked up only when it is there.
        let mut in_flight = in_flight.lock().unwrap();
        let ping = session.submit_ping();
        in_flight.insert(ping.id().unwrap(), ping);
    }

    /// Collects so many operations, as an event loop does.
    fn collect(completions: &Completions, in_flight: &InFlight, mut count: usize) {
        let mut told = HashSet::new();
        while count > 0 {
            while completions.turn() {}
            while let Some(id) = completions.next() {
                assert!(told.insert(id), "it is told once");
                // Else it is one that its thread waits for.
                let Some(ping) = in_flight.lock().unwrap().remove(&id) else { continue };
                assert!(ping.is_done());
                ping.wait().unwrap();
                count -= 1;
            }
            if count > 0 && completions.arm().unwrap() {
                // Asked again, it may be readable no more: another thread has taken what came.
                let mut fds = [PollFd::from_borrowed_fd(completions.as_fd(), PollFlags::IN)];
                let hang = Timespec { tv_sec: HANG_S, tv_nsec: 0 };
                assert_eq!(poll(&mut fds, Some(&hang)).unwrap(), 1, "a wake-up was lost");
            }
        }
    }

    /// One thread sleeps on the descriptor, without a timer that would make good for what is lost, and others use the session in all ways.
    fn stress(on: On) {
        const THREADS: usize = 3;
        const ROUNDS: usize = 400;
        let harness = Harness::start(on);
        let config = Config { key: key_for(harness.address()), ..Config::default() };
        let session = Session::connect(harness.url(), &config).unwrap();
        let completions = session.completions().unwrap();
        completions.watch.state().has_no_timer = true;
        let in_flight = InFlight::default();
        std::thread::scope(|scope| {
            for thread in 0..THREADS {
                let (session, in_flight) = (&session, &in_flight);
                scope.spawn(move || {
                    let mut numbers = Numbers::new(thread as u64);
                    for _ in 0..ROUNDS {
                        submit(session, in_flight);
                        match numbers.next() % 4 {
                            0 => session.flush(),
                            1 => assert!(session.ping().is_ok()),
                            2 => assert!(session.submit_ping().wait().is_ok()),
                            _ => std::thread::yield_now(),
                        }
                    }
                });
            }
            collect(&completions, &in_flight, THREADS * ROUNDS);
        });
        assert!(in_flight.lock().unwrap().is_empty());
        // Alone: each operation is slept for.
        for _ in 0..ROUNDS {
            submit(&session, &in_flight);
            collect(&completions, &in_flight, 1);
        }
    }

    // [CLI-188] [CLI-190]
    #[test]
    fn wake_up_beside_other_threads_is_never_lost_over_tcp() {
        stress(On::Tcp);
    }

    // [CLI-188] [CLI-190]
    #[test]
    fn wake_up_beside_other_threads_is_never_lost_over_shm() {
        stress(On::Shm);
    }

    // [CLI-188] [CLI-189] Connections break meanwhile.
    #[test]
    fn loop_of_turns_on_virtual_time_collects_all_that_was_submitted() {
        let world = World::new(1);
        let session = world.session();
        let completions = session.completions().unwrap();
        let mut numbers = Numbers::new(2);
        for round in 0..100 {
            let in_flight = InFlight::default();
            let count = 1 + (numbers.next() % 20) as usize;
            (0..count).for_each(|_| submit(&session, &in_flight));
            if round % 10 == 0 {
                session.owner.shared.lock().disconnect();
            }
            collect(&completions, &in_flight, count);
            assert!(completions.next().is_none());
        }
        assert_eq!(session.reconnects(), 10);
    }
}
