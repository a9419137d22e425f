//! Who waits for what arrives: one thread leads and receives for all, the others follow.

use std::sync::PoisonError;
use std::sync::atomic::Ordering;
use std::time::Duration;

use crate::driver::driven::Driven;
use crate::driver::sleep::Sleeper;
use crate::driver::{Guard, SPINS_MAX, SharedSession, reconnect};
use crate::op::request::Broken;

impl SharedSession {
    /// Waits until `ready`; the lock is given back meanwhile where others need it.
    pub(crate) fn wait_until<'a>(
        &'a self,
        mut core: Guard<'a>,
        ready: impl Fn(&Driven) -> bool,
    ) -> Guard<'a> {
        let mut spins = 0;
        loop {
            if ready(&core) {
                break;
            }
            if core.leader {
                core = self.follow(core, None);
                continue;
            }
            if self.closings.any() {
                core.collect_closes();
            }
            let outcome = core.receive().and_then(|received| {
                if received {
                    spins = 0;
                    self.tell(&core);
                }
                core.send_some()
            });
            self.check(&mut core, outcome);
            if ready(&core) {
                break;
            }
            core = self.wait_once(core, &mut spins, None);
        }
        if core.followers > 0 && !core.leader {
            self.wake.notify_all();
        }
        self.keep_armed(&mut core);
        core
    }

    /// Waits, as the leader, until something may have arrived.
    pub(super) fn wait_once<'a>(
        &'a self,
        mut core: Guard<'a>,
        spins: &mut u32,
        limit: Option<Duration>,
    ) -> Guard<'a> {
        if core.endpoint.is_none() {
            return self.connect_again(core, limit);
        }
        if self.is_shared() {
            return self.wait_shared(core, spins, limit);
        }
        let longest = self.sleep_max(&core, *spins == 0, limit);
        let before = core.deadlines;
        core.unflushed = false;
        let waited = match core.endpoint.as_mut() {
            Some(endpoint) => endpoint.wait_or(Some(longest), Some(&self.calls.holder)),
            None => Ok(()),
        };
        *spins += 1;
        // The clock is read when something is amiss or a deadline is set, not for every reply.
        let amiss = *spins > 1 || before > 0;
        let outcome = waited
            .map_err(Broken::from)
            .and_then(|()| if amiss { core.tick(self.clock.now()) } else { Ok(()) });
        self.check(&mut core, outcome);
        core
    }

    /// How long who waits may sleep; `has_spoken`: it has just sent something, or looked at the time.
    fn sleep_max(&self, core: &Driven, has_spoken: bool, limit: Option<Duration>) -> Duration {
        let longest = match has_spoken && core.deadlines == 0 {
            true => core.signs.undated_sleep_max(),
            false => core.sleep_max(self.clock.now()),
        };
        limit.map_or(longest, |limit| limit.min(longest))
    }

    fn wait_shared<'a>(&'a self, mut core: Guard<'a>, spins: &mut u32, limit: Option<Duration>) -> Guard<'a> {
        core.leader = true;
        let outcome = core
            .flush()
            .and_then(|()| if spins.is_multiple_of(256) { core.tick(self.clock.now()) } else { Ok(()) });
        self.check(&mut core, outcome);
        *spins += 1;
        let spin = *spins < SPINS_MAX && core.endpoint.as_ref().is_some_and(|endpoint| endpoint.spin_pays());
        if spin {
            drop(core);
            for _ in 0..16 {
                std::hint::spin_loop();
            }
            core = self.lock_again();
        } else {
            core = self.sleep(core, limit);
        }
        core.leader = false;
        core
    }

    /// Sleeps without the lock until the endpoint's descriptors tell of something.
    fn sleep<'a>(&'a self, mut core: Guard<'a>, limit: Option<Duration>) -> Guard<'a> {
        let timeout = self.sleep_max(&core, false, limit);
        let epoch = core.reconnects;
        let Some(endpoint) = core.endpoint.as_mut() else { return core };
        let fds = endpoint.event_fds();
        if fds.is_empty() {
            // Nothing to sleep on, as on virtual time: wait in the endpoint.
            let waited = endpoint.wait_or(Some(timeout), Some(&self.calls.holder));
            self.check(&mut core, waited.map_err(Broken::Lost));
            let outcome = core.tick(self.clock.now());
            self.check(&mut core, outcome);
            return core;
        }
        if !endpoint.arm() || !self.calls.leader.may_sleep() {
            // There is something to do, perhaps again and again: whoever waits for the lock has it in between.
            drop(core);
            return self.lock_again();
        }
        core.leader_sleeps = true;
        drop(core);
        {
            let mut sleeper = self.sleeper.lock().unwrap_or_else(PoisonError::into_inner);
            let mut rung = false;
            match Sleeper::prepared(&mut sleeper, epoch, &fds, &self.calls.leader) {
                Ok(sleeper) => rung = sleeper.sleep(timeout),
                Err(error) => {
                    tracing::warn!("cannot watch the connection's descriptors: {error}");
                    std::thread::sleep(Duration::from_millis(1));
                }
            }
            self.calls.leader.woke(rung);
        }
        let mut core = self.lock_again();
        core.leader_sleeps = false;
        let outcome = core.tick(self.clock.now());
        self.check(&mut core, outcome);
        core
    }

    /// Moves the session along, and waits for up to `limit` when there was nothing to do: for who has better to do than to connect again.
    pub(crate) fn wait_within(&self, limit: Duration) {
        let core = self.move_along(self.lock());
        if core.leader {
            return drop(self.follow(core, Some(limit)));
        }
        let mut spins = SPINS_MAX;
        let mut core = self.wait_once(core, &mut spins, Some(limit));
        self.tell(&core);
        self.keep_armed(&mut core);
    }

    /// Connects again, or has it done by another thread where the caller may have to go before that: this one looks at the time.
    fn connect_again<'a>(&'a self, core: Guard<'a>, limit: Option<Duration>) -> Guard<'a> {
        if !core.is_broken() {
            return core;
        }
        let may_go = core.deadlines > 0 || limit.is_some();
        match self.itself.upgrade() {
            Some(itself) if may_go && self.threads.may_connect_again() => {
                let core = self.reconnect_elsewhere(itself, core);
                // Not where none could be started.
                if core.is_broken() { self.follow(core, limit) } else { core }
            }
            _ => reconnect::reconnect(self, core),
        }
    }

    /// Another thread leads: sleeps until it tells of something, for up to `limit`.
    pub(super) fn follow<'a>(&'a self, mut core: Guard<'a>, limit: Option<Duration>) -> Guard<'a> {
        let outcome = core.flush();
        self.check(&mut core, outcome);
        core.uncontended.on_company();
        // Whoever leads from here on, after a new connection is made, must not keep the lock while it waits.
        self.contended.store(true, Ordering::Relaxed);
        core.followers += 1;
        if core.leader_sleeps && core.awaits_completions() {
            // What was posted behind its back may complete without an event.
            self.calls.leader.raise();
        }
        let limit = self.sleep_max(&core, false, limit);
        let (mut core, _) = self.wake.wait_timeout(core, limit).unwrap_or_else(PoisonError::into_inner);
        core.followers -= 1;
        // Who connects again looks at no deadline, and who sleeps may not know of this one.
        if core.deadlines > 0 {
            let outcome = core.tick(self.clock.now());
            self.check(&mut core, outcome);
        }
        core
    }
}
