//! After the connection broke: connect again, take the session up, and send again what was not answered; or, when the
//! server forgot the session, build it anew.

use std::sync::PoisonError;
use std::sync::atomic::Ordering;
use std::time::Duration;

use dafs_proto::session::{ClientSession, HandshakeError};
use dafs_proto::transport::{ConnectError, Endpoint};
use dafs_proto::wire::{Resume, Status};

use crate::connect::{Caller, Established, establish};
use crate::driver::driven::Driven;
use crate::driver::give_up::GIVE_UP_AFTER;
use crate::driver::rebuild::Rebuild;
use crate::driver::{GOODBYE_MAX, Guard, SharedSession};
use crate::engine::recovery::Renewed;
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
            tracing::error!(server = %shared.server.name, "cannot continue the session: {cause}");
            core.die(Error::Connection { server: shared.server.name.clone(), cause });
            core = dismiss(shared, core, fresh);
        }
        Ok(fresh) => {
            core.install(fresh, shared);
            shared.push(&mut core, false);
        }
        Err(error) => {
            if !shared.stopping.load(Ordering::Acquire) {
                tracing::error!(server = %shared.server.name, "cannot continue the session: {error}");
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
    let (server, clock) = (&*shared.server.name, &*shared.clock);
    let deadline = clock.now().after(GOODBYE_MAX);
    // To whom it cannot be said, the lease says it.
    let _ = Caller { endpoint, session: Some(&mut session), server, clock, deadline }.say_goodbye();
}

fn attempts(shared: &SharedSession, resume: Resume) -> Result<Fresh, Error> {
    let policy = &shared.config.reconnect;
    let began = shared.clock.now();
    let given_up = began.after(policy.time_max);
    let mut pause = policy.backoff_min;
    let mut attempt = 0;
    let mut begun = None;
    loop {
        attempt += 1;
        let left = given_up.since(shared.clock.now());
        let error = match attempt_once(shared, &resume, &mut begun, shared.config.connect_timeout.min(left)) {
            Ok(fresh) => return Ok(fresh),
            Err(error) => error,
        };
        if is_final(&error) {
            return Err(error);
        }
        if shared.stopping.load(Ordering::Acquire) {
            return Err(Error::Closed);
        }
        let now = shared.clock.now();
        if attempt >= policy.attempts_max || now.after(pause) >= given_up {
            let seconds = now.since(began).as_secs_f64();
            let cause = format!("{error} ({attempt} attempts to connect again in {seconds:.1} s)");
            return Err(Error::Connection { server: shared.server.name.clone(), cause });
        }
        shared.clock.sleep(pause);
        if shared.stopping.load(Ordering::Acquire) {
            return Err(Error::Closed);
        }
        pause = (pause * 2).min(policy.backoff_max);
    }
}

/// Trying again cannot help.
fn is_final(error: &Error) -> bool {
    match error {
        Error::Handshake(HandshakeError::Refused(status)) => {
            !matches!(*status, Status::DRAINING | Status::SERVER_FULL | Status::NO_SESSION | Status::AGAIN)
        }
        Error::Handshake(_) | Error::Peer(_) => true,
        Error::Connect(error) => matches!(**error, ConnectError::WrongAddress { .. }),
        _ => false,
    }
}

/// Takes the session up again, or the new one that the last attempt began to open everything in.
fn attempt_once(
    shared: &SharedSession,
    resume: &Resume,
    begun: &mut Option<Rebuild>,
    timeout: Duration,
) -> Result<Fresh, Error> {
    let (config, clock) = (&shared.config, &*shared.clock);
    let client_id = config.client_id.unwrap_or_default();
    let connect = |resume: &Resume| {
        let resume = Some(resume.clone());
        establish(&*shared.domain, &shared.server, (config, timeout), client_id, resume, clock)
    };
    let mut established = connect(begun.as_ref().map_or(resume, Rebuild::session))?;
    let resumed = established.terms.welcome.resumed;
    if resumed && begun.is_none() {
        return Ok(Fresh { established, renewed: None });
    }
    if !resumed {
        // Locks are taken again by who proves to have had them: that is not yet the session that was begun.
        if begun.take().is_some_and(|lost| !lost.has_locks()) {
            established = connect(resume)?;
        }
        tracing::warn!(server = %shared.server.name, "the server forgot the session; reopening its files");
    }
    let rebuild = match begun {
        Some(rebuild) => rebuild.resumed(&established.terms.welcome),
        None => {
            let mut core = shared.core.lock().unwrap_or_else(PoisonError::into_inner);
            begun.insert(Rebuild::new(&mut core, &established.terms))
        }
    };
    let with = (&*shared.server.name, clock, config.connect_timeout);
    let nodes = rebuild.run(&mut *established.endpoint, with, &shared.stopping);
    if shared.stopping.load(Ordering::Acquire) {
        if let Some(rebuild) = begun.take() {
            say_goodbye(shared, &mut *established.endpoint, rebuild.into_session());
        }
        return Err(Error::Closed);
    }
    let nodes = nodes?;
    let renewed = begun.take().map(|rebuild| Renewed { session: rebuild.into_session(), nodes });
    Ok(Fresh { established, renewed })
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
    use crate::testing::World;
    use crate::{File, LockKind, OpenOptions, Session};

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

    // [CLI-102]
    #[test]
    fn refusal_that_trying_again_cannot_help_is_final_and_no_other() {
        let refused = |status| is_final(&Error::Handshake(HandshakeError::Refused(status)));
        for status in [Status::DRAINING, Status::SERVER_FULL, Status::NO_SESSION, Status::AGAIN] {
            assert!(!refused(status), "{status}");
        }
        for status in [Status::AUTH_FAILED, Status::AUTH_REQUIRED, Status::FENCED, Status::from_value(0x7777)]
        {
            assert!(refused(status), "{status}");
        }
        assert!(is_final(&Error::Handshake(HandshakeError::KeyRequired)));
        let lost = Error::Connection { server: String::new(), cause: String::new() };
        assert!(!is_final(&lost), "it was lost in the handshake");
    }
}
