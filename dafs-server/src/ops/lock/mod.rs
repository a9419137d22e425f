//! Byte-range locks: taken, waited for, tested and given back.

mod turns;

use std::ops::Range;

use dafs_proto::extent::Extent;
use dafs_proto::transport::OpToken;
use dafs_proto::wire::{
    HEADER_SIZE, LockFlags, LockKind, LockRequest, LockTestReply, Opcode, Status, UnlockRequest,
};

use self::turns::is_notified;
use super::Worker;
use crate::shared::WorkerId;
use crate::shared::locks::{Freed, Held, Outcome, Owner, Told, WaiterId, Waiting};
use crate::shared::mail::Mail;
use crate::storage::{LockKey, NodeId};
use crate::worker::flight::Call;
use crate::worker::flight::answer::{Answer, Payload, Problem};
use crate::worker::requests::work::State;

impl Worker {
    pub(crate) fn execute_lock(
        &mut self,
        call: &Call,
        body: &[u8],
        payload: Payload<'_>,
    ) -> Result<(), Problem> {
        self.no_payload(call, payload)?;
        match call.header.opcode {
            Opcode::Lock => self.lock(call, &LockRequest::decode(body)?),
            Opcode::LockTest => self.test_lock(call, &LockRequest::decode(body)?),
            _ => self.unlock(call, &UnlockRequest::decode(body)?),
        }
    }

    fn lock(&mut self, call: &Call, request: &LockRequest) -> Result<(), Problem> {
        let open = self.handle(call)?;
        let is_allowed = match request.kind {
            LockKind::Shared => open.readable,
            LockKind::Exclusive => open.writable,
        };
        if !is_allowed {
            return Err(Status::BAD_HANDLE.into());
        }
        let file = self.storage.lock_key(open.node)?;
        let held = Held {
            owner: self.lock_owner(call, request.owner)?,
            handle: call.header.handle.0,
            kind: request.kind,
            is_mandatory: request.flags.contains(LockFlags::MANDATORY),
        };
        if request.flags.contains(LockFlags::CANCEL) {
            return self.cancel_lock(call, file, request, held.owner);
        }
        if is_notified(call, request) {
            return self.lock_or_notify(call, file, request, held);
        }
        let at_once = self.shared.locks.with(|table| table.lock(file, request.range(), held, None));
        if !(matches!(at_once, Err(Status::LOCKED)) && request.flags.contains(LockFlags::WAIT)) {
            return self.end_lock(call, at_once?);
        }
        let operation = self.park(*call, State::Lock { file, waiter: WaiterId::default() });
        let waiting = Waiting { worker: self.id.0, told: Told::Operation(operation) };
        let outcome = self.shared.locks.with(|table| table.lock(file, request.range(), held, Some(waiting)));
        match (outcome, self.operation_index(operation)) {
            (Ok(Outcome::Waits(waiter)), Some(index)) => {
                self.operations[index].state = State::Lock { file, waiter };
            }
            (outcome, index) => {
                index.map(|index| self.unpark(index));
                return self.end_lock(call, outcome?);
            }
        }
        Ok(())
    }

    fn end_lock(&mut self, call: &Call, outcome: Outcome) -> Result<(), Problem> {
        self.reply_status(call, Status::OK);
        if let Outcome::Granted(others) = outcome {
            self.tell_of_locks(others);
        }
        Ok(())
    }

    fn unlock(&mut self, call: &Call, request: &UnlockRequest) -> Result<(), Problem> {
        let file = self.storage.lock_key(self.handle(call)?.node)?;
        let owner = self.lock_owner(call, request.owner)?;
        let granted = self.shared.locks.with(|table| table.unlock(file, &request.range(), owner));
        self.reply_status(call, Status::OK);
        self.tell_of_locks(granted);
        Ok(())
    }

    fn test_lock(&mut self, call: &Call, request: &LockRequest) -> Result<(), Problem> {
        let file = self.storage.lock_key(self.handle(call)?.node)?;
        let owner = self.lock_owner(call, request.owner)?;
        let range = request.range();
        let found = self.shared.locks.with(|table| table.conflict(file, &range, owner, request.kind));
        let reply = match found {
            Some((part, held)) => LockTestReply {
                conflicts: true,
                kind: held.kind as u32,
                offset: part.start,
                len: if part.end == u64::MAX { 0 } else { part.end - part.start },
                owner: held.owner.id,
                client_id: self.shared.locks.client_of(held.owner.session),
            },
            None => {
                LockTestReply { conflicts: false, kind: 0, offset: 0, len: 0, owner: 0, client_id: [0; 16] }
            }
        };
        let mut body = [0; LockTestReply::HEAD_SIZE - HEADER_SIZE];
        reply.encode(&mut body);
        self.reply(call, Status::OK, Answer { body: &body, ..Answer::default() });
        Ok(())
    }

    fn lock_owner(&self, call: &Call, id: u64) -> Result<Owner, Status> {
        let session = self.sessions.find(call.session).ok_or(Status::NO_SESSION)?;
        self.shared.locks.introduce(session.id, session.client_id);
        Ok(Owner { session: session.id, id })
    }

    /// A handle is closed: what was locked by it is free, and whoever waits to lock by it is refused.
    pub(super) fn free_locks_of_handle(&mut self, call: &Call, node: NodeId) {
        if !self.shared.locks.is_used() {
            return;
        }
        let Some(session) = self.sessions.find(call.session).map(|session| session.id) else { return };
        let Ok(file) = self.storage.lock_key(node) else { return };
        let handle = call.header.handle.0;
        let Freed { granted, ended } =
            self.shared.locks.with(|table| table.unlock_handle(file, session, handle));
        for waiting in ended {
            match waiting.told {
                Told::Operation(operation) => self.end_lock_wait(operation, Status::BAD_HANDLE),
                Told::Session(session, turn) => self.on_lock_turn(session, turn),
            }
        }
        self.tell_of_locks(granted);
    }

    /// Frees some of the locks of sessions that have ended; whether there are more.
    pub(crate) fn free_some_locks(&mut self) -> bool {
        let Some(&session) = self.unlocking.last() else { return false };
        match self.shared.locks.with(|table| table.end_some_of(session)) {
            Some(granted) => self.tell_of_locks(granted),
            None => {
                self.unlocking.pop();
                self.shared.locks.forget(session);
            }
        }
        !self.unlocking.is_empty()
    }

    /// Tells those whose turn has come.
    fn tell_of_locks(&mut self, granted: Vec<Waiting>) {
        for Waiting { worker, told } in granted {
            if worker == self.id.0 {
                self.on_lock_granted(told);
            } else {
                self.shared.send(WorkerId(worker), Mail::LockGranted { told });
            }
        }
    }

    /// Who waited for a lock has it.
    pub(crate) fn on_lock_granted(&mut self, told: Told) {
        match told {
            Told::Operation(operation) => self.end_lock_wait(operation, Status::OK),
            Told::Session(session, turn) => self.on_lock_turn(session, turn),
        }
    }

    fn end_lock_wait(&mut self, operation: OpToken, status: Status) {
        let Some(index) = self.operation_index(operation) else { return };
        if !matches!(self.operations[index].state, State::Lock { .. }) {
            return;
        }
        let call = self.unpark(index).call;
        self.mark_dirty(call.connection);
        self.reply_status(&call, status);
    }

    /// Ends the waits whose deadline has passed.
    pub(crate) fn end_overdue_lock_waits(&mut self) {
        if !self.shared.locks.is_used() {
            return;
        }
        let overdue = self.places_of(|operation| {
            matches!(operation.state, State::Lock { .. }) && self.expired(&operation.call)
        });
        for index in overdue {
            let State::Lock { file, waiter } = self.operations[index].state else { continue };
            // Where it is granted meanwhile, the word of that is under way.
            if let Some(granted) = self.shared.locks.with(|table| table.cancel(file, waiter)) {
                let call = self.unpark(index).call;
                self.mark_dirty(call.connection);
                self.reply_status(&call, Status::TIMED_OUT);
                self.tell_of_locks(granted);
            }
        }
    }

    /// A mandatory lock of another session keeps a request from its data.
    #[inline]
    pub(crate) fn check_locks(
        &self,
        call: &Call,
        node: NodeId,
        range: Range<u64>,
        writes: bool,
    ) -> Result<(), Status> {
        if !self.shared.locks.are_mandatory() {
            Ok(())
        } else {
            self.look_at_locks(call, node, range, writes)
        }
    }

    /// The same for a list of extents.
    #[inline]
    pub(super) fn check_locks_of(
        &self,
        call: &Call,
        node: NodeId,
        extents: &[Extent],
        writes: bool,
    ) -> Result<(), Status> {
        if !self.shared.locks.are_mandatory() {
            return Ok(());
        }
        let range = |extent: &Extent| extent.offset..extent.offset.saturating_add(extent.len);
        extents.iter().try_for_each(|extent| self.look_at_locks(call, node, range(extent), writes))
    }

    #[cold]
    fn look_at_locks(
        &self,
        call: &Call,
        node: NodeId,
        range: Range<u64>,
        writes: bool,
    ) -> Result<(), Status> {
        let session = self.sessions.find(call.session).ok_or(Status::NO_SESSION)?.id;
        let file: LockKey = self.storage.lock_key(node)?;
        match self.shared.locks.with(|table| table.keeps_out(file, &range, session, writes)) {
            true => Err(Status::LOCKED),
            false => Ok(()),
        }
    }
}
