//! Byte-range locks: taken, waited for, tested and given back.

mod cluster;
mod kept;
mod turns;

pub(super) use self::turns::CALLBACKS_MAX;

use dafs_proto::transport::OpToken;
use dafs_proto::wire::{
    LOCK_BROKEN_KIND, LockFlags, LockKind, LockRequest, LockTestReply, Opcode, Status, UnlockRequest,
};

use self::turns::is_notified;
use super::Worker;
use super::local::Recalled;
use crate::shared::WorkerId;
use crate::shared::handed::Scope;
use crate::shared::locks::{Claim, Freed, Held, Lasting, LockTable, Outcome, Owner, Told, WaiterId, Waiting};
use crate::shared::mail::Mail;
use crate::storage::{LockKey, NodeId};
use crate::worker::flight::Call;
use crate::worker::flight::answer::{Answer, Payload, Problem, Served};
use crate::worker::operations::{Operation, WaitsFor};
use crate::worker::sessions::Session;

/// Whether the store names a session.
enum Known {
    Yes,
    /// A request waits for that.
    Waits,
}

/// A lock that is asked for.
struct Asked<'a> {
    node: NodeId,
    file: LockKey,
    request: &'a LockRequest,
    held: Held,
    /// Its session waits for locks, and may have been told of this one.
    awaits: bool,
}

impl Worker {
    pub(crate) fn execute_lock(&mut self, call: &Call, body: &[u8], payload: Payload<'_>) -> Served {
        self.connections.no_payload(call, payload)?;
        match call.header.opcode {
            Opcode::Lock => self.lock(call, &LockRequest::decode(body)?),
            Opcode::LockTest => self.test_lock(call, &LockRequest::decode(body)?),
            _ => self.unlock(call, &UnlockRequest::decode(body)?),
        }
    }

    fn lock(&mut self, call: &Call, request: &LockRequest) -> Served {
        if self.shared.cluster.is_some() {
            self.may_lock(call, request)?;
            return self.lock_in_cluster(call, request);
        }
        let outcome = self.lock_once_known(call, request);
        if !matches!(outcome, Ok(Known::Waits)) {
            // Whatever has become of it: its client takes no more again.
            self.note_reclaimed(call, request);
        }
        outcome.map(drop)
    }

    /// The file, if its handle may lock it so.
    fn may_lock(&self, call: &Call, request: &LockRequest) -> Result<NodeId, Problem> {
        let open = self.handle(call)?;
        let is_allowed = match request.kind {
            LockKind::Shared => open.readable,
            LockKind::Exclusive => open.writable,
        };
        if is_allowed { Ok(open.node) } else { Err(Status::BAD_HANDLE.into()) }
    }

    /// Locks in a session that the store names. Where it does not yet, the request comes again.
    fn lock_once_known(&mut self, call: &Call, request: &LockRequest) -> Result<Known, Problem> {
        let node = self.may_lock(call, request)?;
        let file = self.storage.lock_key(node)?;
        let lasting = self.lasting_of(node, request).map_err(Problem::refused(Status::NOT_SUPPORTED))?;
        let (held, awaits) = self.held_of(call, request, lasting)?;
        if request.flags.contains(LockFlags::CANCEL) {
            return self.cancel_lock(call, file, request, &held).map(|()| Known::Yes);
        }
        if self.waits_to_be_known(call, request) {
            return Ok(Known::Waits);
        }
        let mut _recalling = None;
        if request.flags.contains(LockFlags::MANDATORY) {
            // Whoever has a descriptor would read and write past it.
            let scope = Scope::File { file, but: Some(held.owner.session) };
            let recalled = Recalled { body: &request.bytes(), payload: &[], refused: Status::BUSY };
            let Some(recalling) = self.call_back(call, scope, &recalled) else { return Ok(Known::Waits) };
            _recalling = Some(recalling);
        }
        self.lock_or_wait(call, &Asked { node, file, request, held, awaits }).map(|()| Known::Yes)
    }

    /// The lock that a request asks for, and whether its session waits for any.
    fn held_of(&self, call: &Call, request: &LockRequest, lasting: Lasting) -> Result<(Held, bool), Status> {
        let (owner, session) = self.lock_owner(call, request.owner)?;
        let held = Held {
            owner,
            client: session.client.id,
            handle: call.header.handle.0,
            kind: request.kind,
            is_mandatory: request.flags.contains(LockFlags::MANDATORY),
            lasting,
        };
        Ok((held, !session.locks.turns.is_empty()))
    }

    fn lock_or_wait(&mut self, call: &Call, asked: &Asked<'_>) -> Served {
        let Asked { file, request, .. } = *asked;
        if is_notified(call, request) {
            return self.lock_or_notify(call, asked);
        }
        let at_once = self.ask_for_lock(call, asked, None);
        let must_wait = matches!(at_once, Err(Status::LOCKED | Status::GRACE));
        if !(must_wait && request.flags.contains(LockFlags::WAIT)) {
            return self.end_lock(call, asked, at_once?);
        }
        let state = |waiter| WaitsFor::Lock { file, waiter, request: *request };
        let operation = self.park(*call, state(WaiterId::default()));
        let waiting = Waiting { worker: self.id.0, told: Told::Operation(operation) };
        let outcome = self.ask_for_lock(call, asked, Some(waiting));
        match (outcome, self.operations.index_of(operation)) {
            (Ok(Outcome::Waits(waiter)), Some(index)) => {
                self.operations[index].state = state(waiter);
            }
            (outcome, index) => {
                index.map(|index| self.unpark(index));
                return self.end_lock(call, asked, outcome?);
            }
        }
        Ok(())
    }

    fn ask_for_lock(
        &self,
        call: &Call,
        asked: &Asked<'_>,
        waiting: Option<Waiting>,
    ) -> Result<Outcome, Status> {
        let Asked { file, request, held, .. } = *asked;
        let (range, claim) = (request.range(), self.claim_of(call, request));
        let node = self.node_shown_locally(asked.node);
        if node.is_none() && claim == Claim::New && self.shared.locks.lock_alone(file, &range, &held) {
            return Ok(Outcome::Granted(Vec::new()));
        }
        self.shared.locks.with(|table| {
            if let Some(node) = node {
                table.show(file, || self.storage.local_locks(node))?;
            }
            table.lock(file, range, held, claim, waiting)
        })
    }

    /// The node, where its export is to show its locks to processes of this host.
    fn node_shown_locally(&self, node: NodeId) -> Option<NodeId> {
        self.shared.settings.exports[usize::from(node.export.0)].local_locks.then_some(node)
    }

    fn end_lock(&mut self, call: &Call, asked: &Asked<'_>, outcome: Outcome) -> Served {
        if asked.awaits {
            self.claim_lock_turn(call, asked.request);
        }
        self.reply_granted(call, asked.file, asked.request, &asked.held);
        if let Outcome::Granted(others) = outcome {
            self.tell_of_locks(others);
        }
        Ok(())
    }

    fn unlock(&mut self, call: &Call, request: &UnlockRequest) -> Served {
        if self.shared.cluster.is_some() {
            return self.unlock_in_cluster(call, request);
        }
        let file = self.storage.lock_key(self.handle(call)?.node)?;
        let (owner, session) = self.lock_owner(call, request.owner)?;
        let (range, are_kept) = (request.range(), self.shared.locks.are_kept());
        if !session.locks.turns.is_empty() {
            self.claim_unlocked_turns(call, file, &range, request.owner);
        }
        let (lasts, granted) = if self.shared.locks.unlock_alone(file, &range, owner) {
            (false, Vec::new())
        } else {
            let (lasts, granted) = self.shared.locks.with(|table| {
                let lasts = are_kept && table.has_lasting(file, &range, owner);
                (lasts, table.give_back(file, &range, owner))
            });
            (lasts, granted?)
        };
        // It may have been given back before, and that may not be written.
        match lasts || self.shared.locks.is_unsettled(file, &range, owner) {
            true => self.reply_freed(call, file, &range, owner),
            false => self.reply(call, Status::OK, Answer::default()),
        }
        self.tell_of_locks(granted);
        Ok(())
    }

    fn test_lock(&mut self, call: &Call, request: &LockRequest) -> Served {
        if self.shared.cluster.is_some() {
            return self.test_lock_in_cluster(call, request);
        }
        let open = self.handle(call)?;
        let (node, is_opened) = (open.node, open.readable || open.writable);
        let file = self.storage.lock_key(node)?;
        let (owner, _) = self.lock_owner(call, request.owner)?;
        let range = request.range();
        // What was only looked up may be a device, which opening acts on.
        let node = self.node_shown_locally(node).filter(|_| is_opened);
        let found = self.shared.locks.with(|table| {
            if let Some(node) = node {
                table.show(file, || self.storage.local_locks(node))?;
            }
            Ok::<_, Status>(table.conflict(file, &range, owner, request.kind))
        })?;
        let reply = match found {
            Some((part, held)) => LockTestReply {
                conflicts: true,
                kind: if held.lasting == Lasting::Broken { LOCK_BROKEN_KIND } else { held.kind as u32 },
                offset: part.start,
                len: if part.end == u64::MAX { 0 } else { part.end - part.start },
                owner: held.owner.id,
                client_id: held.client,
            },
            None => {
                LockTestReply { conflicts: false, kind: 0, offset: 0, len: 0, owner: 0, client_id: [0; 16] }
            }
        };
        self.reply_body(call, &reply.bytes());
        Ok(())
    }

    fn lock_owner(&self, call: &Call, id: u64) -> Result<(Owner, &Session), Status> {
        let session = self.sessions.find(call.session).ok_or(Status::NO_SESSION)?;
        self.shared.locks.note_use();
        Ok((Owner { session: session.id, id }, session))
    }

    /// A handle is closed: what was locked by it is free, and whoever waits to lock by it is refused.
    pub(super) fn free_locks_of_handle(&mut self, call: &Call, node: NodeId) {
        if !self.shared.locks.is_used() {
            return;
        }
        let Some(session) = self.sessions.find(call.session).map(|session| session.id) else { return };
        let Ok(file) = self.storage.lock_key(node) else { return };
        let handle = call.header.handle.0;
        let freed = self.shared.locks.with(|table| table.unlock_handle(file, session, handle));
        self.tell_of_freed(freed);
        self.free_cluster_locks_of_handle(file, session, handle);
    }

    pub(super) fn tell_of_freed(&mut self, freed: Freed) {
        for (Waiting { worker, told }, status) in freed.ended {
            self.tell_of_lock(worker, told, status);
        }
        self.tell_of_locks(freed.granted);
        // Nobody waits for that.
        for (file, range) in freed.to_write {
            self.shared.locks.keep_freed(file, &range, None, None);
        }
    }

    /// Frees some of the locks of sessions that have ended; whether there are more.
    pub(crate) fn free_some_locks(&mut self) -> bool {
        if self.lifetime.serves_after_restart() {
            match self.shared.locks.with(LockTable::serve_some) {
                Some(granted) => self.tell_of_locks(granted),
                None => self.lifetime.served_after_restart(),
            }
        }
        let Some(session) = self.sessions.unlocking() else { return self.lifetime.serves_after_restart() };
        match self.shared.locks.with(|table| table.end_some_of(session)) {
            Some(freed) => self.tell_of_freed(freed),
            None => {
                self.sessions.unlocked();
                if let Some(cluster) = &self.shared.cluster {
                    cluster.end_locks_of(session);
                }
            }
        }
        self.lifetime.serves_after_restart() || self.sessions.unlocking().is_some()
    }

    /// Tells those whose turn has come.
    #[inline]
    fn tell_of_locks(&mut self, granted: Vec<Waiting>) {
        if !granted.is_empty() || self.shared.locks.has_untold() {
            self.tell_each(granted);
        }
    }

    #[cold]
    fn tell_each(&mut self, granted: Vec<Waiting>) {
        for Waiting { worker, told } in granted {
            self.tell_of_lock(worker, told, Status::OK);
        }
        for (Waiting { worker, told }, status) in self.shared.locks.take_untold() {
            self.tell_of_lock(worker, told, status);
        }
    }

    fn tell_of_lock(&mut self, worker: usize, told: Told, status: Status) {
        if worker == self.id.0 {
            self.on_lock_waited(told, status);
        } else {
            self.shared.send(WorkerId(worker), Mail::LockWaited { told, status });
        }
    }

    /// Who waited for a lock has it, or is refused.
    pub(crate) fn on_lock_waited(&mut self, told: Told, status: Status) {
        match told {
            Told::Operation(operation) => self.end_lock_wait(operation, status),
            Told::Session(session, turn, kind) => self.on_lock_turn(session, turn, kind, status),
        }
    }

    fn end_lock_wait(&mut self, operation: OpToken, status: Status) {
        let Some(index) = self.operations.index_of(operation) else { return };
        let WaitsFor::Lock { file, request, .. } = self.operations[index].state else { return };
        let call = self.unpark(index).call;
        self.connections.mark_dirty(call.connection);
        match status {
            Status::OK => {
                let lasts = request.flags.contains(LockFlags::PERSISTENT);
                let lasting = if lasts { Lasting::Persistent } else { Lasting::No };
                if let Ok((held, awaits)) = self.held_of(&call, &request, lasting) {
                    if awaits {
                        self.claim_lock_turn(&call, &request);
                    }
                    self.reply_granted(&call, file, &request, &held);
                }
            }
            refused => self.reply_status(&call, refused),
        }
    }

    /// Grants what processes of this host have given back: nobody tells of that.
    pub(crate) fn look_at_local_locks(&mut self) {
        if self.shared.locks.awaits_local() {
            let granted = self.shared.locks.with(LockTable::serve_local);
            self.tell_of_locks(granted);
        }
    }

    /// Ends the waits whose deadline has passed.
    pub(crate) fn end_overdue_lock_waits(&mut self) {
        if !self.shared.locks.is_used() {
            return;
        }
        self.end_overdue_cluster_waits();
        let waits = |operation: &Operation| match operation.state {
            WaitsFor::Lock { file, waiter, .. } if operation.call.has_expired(self.now) => {
                Some((file, waiter))
            }
            _ => None,
        };
        let overdue: Vec<_> = self.operations.iter().filter_map(|(_, operation)| waits(operation)).collect();
        if overdue.is_empty() {
            return;
        }
        // Where one is granted meanwhile, the word of that is under way.
        let (ended, granted) = self.shared.locks.with(|table| table.cancel(overdue));
        let is_ended = |operation: &Operation| matches!(operation.state, WaitsFor::Lock { waiter, .. } if ended.contains(&waiter));
        for index in self.operations.places_of(is_ended) {
            let call = self.unpark(index).call;
            self.connections.mark_dirty(call.connection);
            self.reply_status(&call, Status::TIMED_OUT);
        }
        self.tell_of_locks(granted);
    }
}
