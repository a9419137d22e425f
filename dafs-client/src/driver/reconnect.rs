//! After the connection broke: connect again, take the session up, and send again what was not answered; or, when the
//! server forgot the session, build it anew.

use std::sync::atomic::Ordering;
use std::sync::{Arc, PoisonError};
use std::time::Duration;

use dafs_proto::session::{ClientSession, Moment};
use dafs_proto::transport::Endpoint;
use dafs_proto::wire::Resume;

use crate::config::ReconnectPolicy;
use crate::connect::turns::{PAUSE_MAX, is_final};
use crate::connect::{Caller, Established, Server, establish};
use crate::driver::driven::Driven;
use crate::driver::give_up::GIVE_UP_AFTER;
use crate::driver::rebuild::Rebuild;
use crate::driver::{GOODBYE_MAX, Guard, SharedSession};
use crate::engine::outcomes::Outcomes;
use crate::engine::recovery::{Renewed, RenewedNode};
use crate::error::Error;

/// Connects again, without the lock; others wait meanwhile or queue their work. When the attempts are used up the session ends. Blocks.
pub(crate) fn reconnect<'a>(shared: &'a SharedSession, mut core: Guard<'a>) -> Guard<'a> {
    if !core.is_broken() {
        return core;
    }
    let resume = begin(&mut core);
    drop(core);
    finish(shared, resume)
}

/// From now on a thread connects again, which then calls [`finish`] with what this returns.
pub(crate) fn begin(core: &mut Driven) -> Resume {
    core.leader = true;
    core.reconnect_wanted = false;
    let welcome = &core.terms.welcome;
    Resume { session: welcome.session, secret: welcome.secret }
}

/// Connects again and takes the new connection into use, or ends the session. Blocks.
pub(crate) fn finish(shared: &SharedSession, resume: Resume) -> Guard<'_> {
    let outcome = attempts(shared, resume);
    let mut core = shared.core.lock().unwrap_or_else(PoisonError::into_inner);
    core.leader = false;
    match outcome {
        // Closed meanwhile.
        Ok(fresh) if core.dead.is_some() => core = dismiss(shared, core, fresh),
        Err(_) if core.dead.is_some() => {}
        Ok(fresh) if core.gives_up() => {
            let cause = format!(
                "it broke {GIVE_UP_AFTER} times in a row before any request in flight was answered; the server may be unable to \
                 reach the memory of a request, or fail on one; look at its log"
            );
            tracing::error!(server = %shared.servers.name(), "cannot continue the session: {cause}");
            core.die(Error::Connection { server: shared.servers.name(), cause });
            core = dismiss(shared, core, fresh);
        }
        Ok(fresh) => {
            core.install(fresh, shared);
            shared.push(&mut core, false);
        }
        Err(error) => {
            if !shared.stopping.load(Ordering::Acquire) {
                tracing::error!(server = %shared.servers.name(), "cannot continue the session: {error}");
            }
            core.die(error);
        }
    }
    shared.tell(&core);
    core.ended.call_all();
    core
}

/// A new connection: of the same session, or of a new one.
struct Fresh {
    established: Established,
    renewed: Option<Renewed>,
}

/// Nobody will use this connection: the session has ended. Blocks, without the lock.
fn dismiss<'a>(shared: &'a SharedSession, mut core: Guard<'a>, fresh: Fresh) -> Guard<'a> {
    let Fresh { mut established, renewed } = fresh;
    let welcome = &established.terms.welcome;
    let session = match renewed {
        Some(renewed) => renewed.session,
        None => {
            core.session.on_resumed(welcome);
            std::mem::replace(&mut core.session, ClientSession::new(welcome))
        }
    };
    drop(core);
    say_goodbye(shared, &mut *established.endpoint, session);
    shared.core.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Tells the server that a session has ended: else it keeps files and locks until the lease is over. Blocks.
fn say_goodbye(shared: &SharedSession, endpoint: &mut dyn Endpoint, mut session: ClientSession) {
    let (server, clock) = (shared.servers.current(), &*shared.clock);
    let deadline = clock.now().after(GOODBYE_MAX);
    let server = &*server.name;
    // To whom it cannot be said, the lease says it.
    let _ = Caller { endpoint, session: Some(&mut session), server, clock, deadline }.say_goodbye();
}

/// What is sought: the session that lost its connection, or one in its place.
struct Search<'a> {
    shared: &'a SharedSession,
    resume: Resume,
    /// Which its handles have.
    epoch: u64,
    /// The new session in which the last attempt began to open everything.
    begun: Option<Rebuild>,
    /// What became of the requests of the lost session.
    outcomes: Option<Outcomes>,
}

/// Asks all servers that are known, round after round, with pauses between the rounds.
fn attempts(shared: &SharedSession, resume: Resume) -> Result<Fresh, Error> {
    let policy = &shared.config.reconnect;
    let began = shared.clock.now();
    let given_up = began.after(policy.time_max);
    let epoch = shared.core.lock().unwrap_or_else(PoisonError::into_inner).epoch;
    let mut search = Search { shared, resume, epoch, begun: None, outcomes: None };
    let mut pauses = Pauses { policy, left: Duration::ZERO, next: policy.backoff_min };
    let mut attempt = 0;
    loop {
        let is_alone = shared.servers.round().is_alone;
        // The rounds that several servers are asked in one pause of the policy count as one.
        attempt += u32::from(pauses.left.is_zero());
        let error = match search.round(given_up) {
            Ok(fresh) => return Ok(fresh),
            Err(Failed::ForGood(error)) => return Err(error),
            Err(Failed::ForNow(error)) => error,
        };
        let now = shared.clock.now();
        let pause = pauses.next(is_alone);
        if attempt >= policy.attempts_max || now.after(pause) >= given_up {
            let seconds = now.since(began).as_secs_f64();
            let cause = format!("{error} ({attempt} attempts to connect again in {seconds:.1} s)");
            return Err(Error::Connection { server: shared.servers.name(), cause });
        }
        shared.clock.sleep(pause);
        if shared.stopping.load(Ordering::Acquire) {
            return Err(Error::Closed);
        }
    }
}

/// The pauses between rounds.
struct Pauses<'a> {
    policy: &'a ReconnectPolicy,
    /// Of the present one.
    left: Duration,
    next: Duration,
}

impl Pauses<'_> {
    /// The next. Of several servers, one may take the session over at any time: they are asked during a long pause too.
    fn next(&mut self, is_alone: bool) -> Duration {
        if self.left.is_zero() {
            self.left = self.next;
            self.next = (self.next * 2).min(self.policy.backoff_max);
        }
        let now = if is_alone { self.left } else { self.left.min(PAUSE_MAX) };
        self.left -= now;
        now
    }
}

/// Why there is no connection.
enum Failed {
    /// Trying again may help.
    ForNow(String),
    ForGood(Error),
}

impl Search<'_> {
    /// Asks each server once: first the one that gave the last session.
    fn round(&mut self, given_up: Moment) -> Result<Fresh, Failed> {
        let shared = self.shared;
        let mut failed: Vec<Error> = Vec::new();
        let round = shared.servers.round();
        let is_alone = round.is_alone;
        for server in round {
            let left = given_up.since(shared.clock.now());
            let time_max = shared.servers.handshake_time_max(shared.config.connect_timeout).min(left);
            let had = shared.servers.current();
            let error = match server.and_then(|server| self.attempt_once(&server, time_max)) {
                Ok(fresh) => return Ok(fresh),
                Err(error) => error,
            };
            if shared.stopping.load(Ordering::Acquire) {
                return Err(Failed::ForGood(Error::Closed));
            }
            tracing::debug!("cannot connect again: {error}");
            failed.push(error);
            // It gave a session, and broke while files were opened in that: the next round begins with it.
            if !Arc::ptr_eq(&had, &shared.servers.current()) && self.begun.is_some() {
                break;
            }
        }
        if failed.iter().all(is_final)
            && let Some(last) = failed.pop()
        {
            return Err(Failed::ForGood(last));
        }
        let told: Vec<String> = failed.iter().map(Error::to_string).collect();
        let prefix = if is_alone { "" } else { "no server takes the session: " };
        Err(Failed::ForNow(format!("{prefix}{}", told.join("; "))))
    }

    /// Asks a server for a session, or for a new one in its place.
    fn connect(
        &self,
        server: &Arc<Server>,
        resume: &Resume,
        time_max: Duration,
    ) -> Result<Established, Error> {
        let Self { shared, .. } = self;
        let (config, clock) = (&shared.config, &*shared.clock);
        let client_id = config.client_id.unwrap_or_default();
        let resume = Some(resume.clone());
        let established = establish(&*shared.domain, server, (config, time_max), client_id, resume, clock)?;
        shared.servers.on_welcome(server, established.terms.welcome.cluster.as_ref());
        Ok(established)
    }

    /// Takes the session up again, or the new one that the last attempt began to open everything in.
    fn attempt_once(&mut self, server: &Arc<Server>, time_max: Duration) -> Result<Fresh, Error> {
        let resume = self.begun.as_ref().map_or(&self.resume, Rebuild::session);
        let mut established = self.connect(server, resume, time_max)?;
        let mut is_of_lost = self.begun.is_none();
        // Locks are taken again by who proves to have had them: that is not yet the session that was begun.
        if !established.terms.welcome.resumed && self.begun.take().is_some_and(|lost| !lost.has_locks()) {
            established = self.connect(server, &self.resume, time_max)?;
            is_of_lost = true;
        }
        if established.terms.welcome.resumed && is_of_lost {
            // It may have been given up for a while: another server did not know it.
            self.shared.core.lock().unwrap_or_else(PoisonError::into_inner).epoch = self.epoch;
            return Ok(Fresh { established, renewed: None });
        }
        if !established.terms.welcome.resumed {
            tracing::warn!(server = %server.name, "the server forgot the session; reopening its files");
        }
        // Those of another session that was lost meanwhile are of no request that is awaited.
        let outcomes = Outcomes::take(&mut established.terms.welcome).filter(|_| is_of_lost);
        self.outcomes = self.outcomes.take().or(outcomes);
        let nodes = self.rebuild(&mut established)?;
        let outcomes = self.outcomes.take();
        let begun = self.begun.take();
        let renewed = begun.map(|rebuild| Renewed { session: rebuild.into_session(), nodes, outcomes });
        Ok(Fresh { established, renewed })
    }

    /// Opens everything in a new session, or goes on with that.
    fn rebuild(&mut self, established: &mut Established) -> Result<Vec<RenewedNode>, Error> {
        let Self { shared, begun, outcomes, .. } = self;
        let rebuild = match begun {
            Some(rebuild) => rebuild.resumed(&established.terms.welcome),
            None => {
                let mut core = shared.core.lock().unwrap_or_else(PoisonError::into_inner);
                if let Some(outcomes) = outcomes {
                    core.follow_renames(outcomes);
                }
                begun.insert(Rebuild::new(&mut core, &established.terms))
            }
        };
        let time_max = shared.servers.handshake_time_max(shared.config.connect_timeout);
        let with = (&*shared.servers.name(), &*shared.clock, time_max);
        let nodes = rebuild.run(&mut *established.endpoint, with, &shared.stopping);
        if shared.stopping.load(Ordering::Acquire) {
            if let Some(rebuild) = begun.take() {
                say_goodbye(shared, &mut *established.endpoint, rebuild.into_session());
            }
            return Err(Error::Closed);
        }
        nodes
    }
}

impl Driven {
    /// The connection that broke was one too many of those that brought no reply to what was sent.
    fn gives_up(&mut self) -> bool {
        self.give_up.on_broken(self.session.replies(), self.session.outstanding() > 0)
    }

    /// Takes a new connection into use.
    fn install(&mut self, fresh: Fresh, shared: &SharedSession) {
        let Fresh { established, renewed } = fresh;
        self.reconnects += 1;
        self.endpoint = Some(established.endpoint);
        self.core.reconnected(established.terms, renewed, shared.clock.now());
        self.give_up.on_connected(self.core.session.replies());
        let config = &shared.config;
        shared.registrar.set_useful_min(self.useful_sizes_min(config));
        shared.has_locks.store(self.terms.has_locks(), Ordering::Relaxed);
        self.ask_for_eager_buffers(config);
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "tests")]

    use std::sync::Arc;

    use dafs_proto::wire::Opcode;
    use dafs_tests::sim::Action;

    use super::*;
    use crate::testing::{World, config};
    use crate::{Config, File, LockKind, MethodOverride, OpenOptions, Session};

    fn open(session: &Session) -> File {
        let mut options = OpenOptions::new();
        session.mount("data").unwrap().open_with("f", options.write(true).create(true)).unwrap()
    }

    /// What [`Session::close`] does to a session that connects again.
    fn close(shared: &SharedSession) {
        shared.stop();
        shared.lock().die(Error::Closed);
    }

    // [SESS-137]
    #[test]
    fn session_closed_while_reopening_files_leaves_nothing() {
        for at in [Opcode::Mount, Opcode::Open, Opcode::Lock] {
            let world = World::new(1);
            let (session, other) = (world.session(), world.session());
            let (file, others) = (open(&session), open(&other));
            file.lock(0..1, LockKind::Exclusive).unwrap();
            world.restart();
            let shared = Arc::clone(&session.owner.shared);
            world.once(at, move |_| {
                close(&shared);
                Action::Serve
            });
            assert!(matches!(session.ping(), Err(Error::Closed)), "{at:?}");
            assert_eq!(world.count(Opcode::Bye), 1, "{at:?}");
            assert!(others.try_lock(0..1, LockKind::Exclusive).unwrap(), "{at:?}");
        }
    }

    // [SESS-137]
    #[test]
    fn session_closed_while_resuming_is_ended_at_the_server() {
        let world = World::new(2);
        let (session, other) = (world.session(), world.session());
        let (file, others) = (open(&session), open(&other));
        file.lock(0..1, LockKind::Exclusive).unwrap();
        let shared = &session.owner.shared;
        let read = file.submit_lock(1..2, LockKind::Exclusive);
        let mut core = shared.lock();
        core.disconnect();
        let resume = begin(&mut core);
        drop(core);
        close(shared);
        drop(finish(shared, resume));
        assert_eq!(world.count(Opcode::Bye), 1);
        assert!(others.try_lock(0..1, LockKind::Exclusive).unwrap());
        assert!(matches!(read.wait(), Err(Error::Closed)));
    }

    // [CLI-188] Otherwise its user would ask again and again, or two threads would connect.
    #[test]
    fn descriptor_is_slept_on_while_another_thread_connects_again() {
        let world = World::new(3);
        let session = world.session();
        let completions = session.completions().unwrap();
        let shared = &session.owner.shared;
        let mut core = shared.lock();
        core.disconnect();
        let resume = begin(&mut core);
        drop(core);
        while completions.turn() {}
        assert!(completions.arm().unwrap());
        assert_eq!(session.reconnects(), 0);
        drop(finish(shared, resume));
        assert_eq!(session.reconnects(), 1);
        session.ping().unwrap();
    }

    #[test]
    fn what_waits_for_credits_stays_behind_a_request_for_eager_buffers() {
        let world = World::new(4);
        let session = world.connect(&Config { method: MethodOverride::Eager, ..config() }).unwrap();
        let shared = &session.owner.shared;
        let mut submitted = Vec::new();
        for round in 1..=3 {
            submitted.extend((0..50).map(|_| session.submit_ping()));
            shared.lock().disconnect();
            drop(shared.turn(shared.lock()));
            // Each is sent behind all that were submitted before.
            for _ in 0..100 {
                session.ping().unwrap();
            }
            assert_eq!(session.reconnects(), round);
            assert_eq!(submitted.iter().filter(|ping| !ping.has_ended()).count(), 0);
        }
    }
}
