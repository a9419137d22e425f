//! Locks with [`LockFlags::NOTIFY`], which wait without a request in flight: a callback tells the session when to ask again.

use std::ops::Range;
use std::time::Duration;

use dafs_proto::wire::{
    FileHandle, Header, LockFlags, LockKind, LockRequest, LockTurn, Opcode, SessionId, Status,
};

use super::super::Worker;
use super::Asked;
use crate::config::millis;
use crate::shared::locks::{Held, Outcome, Owner, Told, Waiting};
use crate::storage::LockKey;
use crate::worker::flight::Call;
use crate::worker::flight::answer::Served;
use crate::worker::ids::SessionKey;

/// Callbacks to a session that has sent nothing since: half of the receives that clients post for them.
pub(in crate::ops) const CALLBACKS_MAX: u8 = 8;

impl Worker {
    /// Locks, or answers that it waits. Whoever asks again keeps his place.
    pub(super) fn lock_or_notify(&mut self, call: &Call, asked: &Asked<'_>) -> Served {
        let (turn, kind) = (turn_of(call, asked.request), asked.request.kind);
        let told = Told::Session(asked.held.owner.session, turn, kind);
        let waiting = Some(Waiting { worker: self.id.0, told });
        let outcome = self.ask_for_lock(call, asked, waiting);
        if let Some(session) = self.sessions.find_mut(call.session) {
            match outcome {
                Ok(Outcome::Waits(_)) => session.locks.turns.wait(turn, kind),
                _ => session.locks.turns.claim(turn, kind),
            }
        }
        match outcome? {
            Outcome::Waits(_) => Err(Status::WAITING.into()),
            granted => self.end_lock(call, asked, granted),
        }
    }

    /// Ends a wait. What was granted meanwhile its client knows how to give back.
    pub(super) fn cancel_lock(
        &mut self,
        call: &Call,
        file: LockKey,
        request: &LockRequest,
        held: &Held,
    ) -> Served {
        let (range, owner) = (request.range(), held.owner);
        let (granted, freed) = self.shared.locks.with(|table| {
            let waiter = table.wait_for(file, &range, held);
            let (_, granted) = table.cancel(waiter.map(|waiter| (file, waiter)));
            (granted, table.give_repair_up(file, &range, owner))
        });
        self.claim_lock_turn(call, request);
        self.reply_status(call, freed.as_ref().map_or_else(|status| *status, |_| Status::OK));
        self.tell_of_locks(granted);
        self.tell_of_freed(freed.unwrap_or_default());
        Ok(())
    }

    /// A client has a lock, or gives it up: it need not ask for it again, however it was told of it.
    pub(super) fn claim_lock_turn(&mut self, call: &Call, request: &LockRequest) {
        if let Some(session) = self.sessions.find_mut(call.session) {
            session.locks.turns.claim(turn_of(call, request), request.kind);
        }
    }

    /// A client gives back what it was told of, though it has not asked for it again: what it locks there later is not taken back.
    #[cold]
    pub(super) fn claim_unlocked_turns(
        &mut self,
        call: &Call,
        file: LockKey,
        range: &Range<u64>,
        owner: u64,
    ) {
        let storage = &self.storage;
        if let Some(session) = self.sessions.find_mut(call.session) {
            let handles = &session.handles;
            let is_of_file = |handle| {
                handles
                    .find(handle)
                    .is_ok_and(|open| storage.lock_key(open.node).is_ok_and(|key| key == file))
            };
            session.locks.turns.claim_told(|turn| {
                let is_covered = range.start <= turn.range().start && turn.range().end <= range.end;
                turn.owner == owner && is_covered && is_of_file(FileHandle(turn.handle))
            });
        }
    }

    /// The turn of a session has come: it has the lock, or was refused.
    pub(crate) fn on_lock_turn(
        &mut self,
        session: SessionId,
        turn: LockTurn,
        kind: LockKind,
        status: Status,
    ) {
        let Some(key) = self.sessions.key_of(session) else { return };
        let since = (status == Status::OK).then_some(self.now);
        if let Some(session) = self.sessions.find_mut(key) {
            session.locks.turns.come(turn, kind, since);
        }
        self.tell_of_lock_turns(key);
    }

    /// Tells a session of as many turns as it listens to.
    pub(crate) fn tell_of_lock_turns(&mut self, key: SessionKey) {
        loop {
            let Some(connection) = self.sessions.find(key).and_then(|session| session.presence.connection)
            else {
                return;
            };
            let listens = self.connections.find_mut(connection).is_some_and(|c| c.sends_at_once());
            let Some(session) = self.sessions.find_mut(key) else { return };
            if !session.locks.turns.are_untold() {
                return;
            }
            if !listens || session.presence.notices >= CALLBACKS_MAX {
                session.presence.owes_notices = true;
                return;
            }
            let Some(turn) = session.locks.turns.tell(self.now) else { return };
            session.presence.notices += 1;
            let header = Header::callback(Opcode::LockTurn, session.core.next_callback());
            self.connections.send_callback(connection, header, &turn.bytes(), &[]);
        }
    }

    /// Tells those who did not listen, and gives back what was granted to clients that do not ask for it.
    pub(crate) fn look_after_lock_turns(&mut self) {
        if !self.shared.locks.is_used() {
            return;
        }
        let (now, patience) = (self.now, millis(self.shared.settings.lease_ms));
        let mut ignored = Vec::new();
        let mut untold = Vec::new();
        for (key, session) in self.sessions.iter_mut() {
            let turns = session.locks.turns.take_ignored(now, patience);
            if !turns.is_empty() {
                tracing::warn!(
                    session = %session.shown_id(),
                    client = session.shown_client(),
                    count = turns.len(),
                    "locks released: the client did not ask for them again in time"
                );
            }
            ignored.extend(turns.into_iter().map(|turn| (key, turn)));
            untold.extend(session.locks.turns.are_untold().then_some(key));
        }
        for (key, turn) in ignored {
            self.give_back(key, &turn);
        }
        untold.into_iter().for_each(|key| self.tell_of_lock_turns(key));
    }

    /// A session ends: what it was granted and has not asked for again since, it does not know of. So nothing of that is broken.
    pub(crate) fn give_unclaimed_locks_back(&mut self, key: SessionKey) {
        let now = self.now;
        let Some(session) = self.sessions.find_mut(key) else { return };
        for turn in session.locks.turns.take_ignored(now, Duration::ZERO) {
            self.give_back(key, &turn);
        }
    }

    fn give_back(&mut self, key: SessionKey, turn: &LockTurn) {
        let Some(session) = self.sessions.find(key) else { return };
        let owner = Owner { session: session.id, id: turn.owner };
        // A handle that was closed meanwhile has taken the lock with it.
        let Ok(open) = session.handles.find(FileHandle(turn.handle)) else { return };
        let Ok(file) = self.storage.lock_key(open.node) else { return };
        let (lasts, freed) = self.shared.locks.with(|table| {
            let lasts = table.has_lasting(file, &turn.range(), owner);
            (lasts, table.take_back(file, &turn.range(), owner))
        });
        if lasts {
            // Nobody waits for that.
            self.shared.locks.keep_freed(file, &turn.range(), Some(owner), None);
        }
        self.tell_of_freed(freed);
    }
}

pub(super) fn turn_of(call: &Call, request: &LockRequest) -> LockTurn {
    let LockRequest { offset, len, owner, .. } = *request;
    LockTurn { handle: call.header.handle.0, offset, len, owner }
}

/// It is answered where it must wait. In a chain a link waits where it is.
pub(super) fn is_notified(call: &Call, request: &LockRequest) -> bool {
    request.flags.contains(LockFlags::NOTIFY) && call.link.is_none()
}
