//! Locks that outlive the server. Their holders, and persistent locks, are written before they are granted. Clients reclaim them for some
//! time after a restart.

use std::collections::HashSet;
use std::ops::Range;
use std::sync::Arc;
use std::time::Duration;

use dafs_proto::transport::OpToken;
use dafs_proto::wire::{LockFlags, LockRequest, SessionId, Status};

use super::super::Worker;
use crate::config::millis;
use crate::shared::locks::{Claim, Held, Lasting, Owner};
use crate::shared::mail::Mail;
use crate::shared::store::{Tell, proof_of};
use crate::storage::{LockKey, NodeId};
use crate::worker::flight::Call;
use crate::worker::flight::answer::Answer;
use crate::worker::flight::lock::AfterKept;
use crate::worker::operations::WaitsFor;
use crate::worker::sessions::{LockRecord, Session};

/// So many leases at most those have who had locks, to take all of them again.
const RECLAIM_LEASES_MAX: u32 = 16;

impl Worker {
    /// In what right a lock is asked for.
    pub(super) fn claim_of(&self, call: &Call, request: &LockRequest) -> Claim {
        match request.flags {
            flags if flags.contains(LockFlags::RECLAIM) => {
                Claim::Reclaim(self.sessions.find(call.session).and_then(|session| session.locks.before))
            }
            flags if flags.contains(LockFlags::REPAIR) => Claim::Repair,
            _ => Claim::New,
        }
    }

    /// What becomes of a lock without its owner; or why it cannot outlive it, in words for whoever asked.
    pub(super) fn lasting_of(&self, node: NodeId, request: &LockRequest) -> Result<Lasting, &'static str> {
        if !request.flags.contains(LockFlags::PERSISTENT) {
            return Ok(Lasting::No);
        }
        let kind = &self.shared.settings.exports[usize::from(node.export.0)].kind;
        if !kind.capabilities().outlives_server {
            return Err(
                "files and locks of this export end with the server; lock a file of an exported directory",
            );
        }
        if !self.shared.locks.are_kept() {
            return Err("the server has no state file; start it with --state-file");
        }
        Ok(Lasting::Persistent)
    }

    /// A session that asks for its first lock is written to the store before; whether the request waits for that.
    pub(super) fn waits_to_be_known(&mut self, call: &Call, request: &LockRequest) -> bool {
        if !self.shared.locks.are_kept() {
            return false;
        }
        let Some(session) = self.sessions.find_mut(call.session) else { return false };
        session.locks.lockless_since = None;
        if session.locks.record == LockRecord::Written {
            return false;
        }
        session.locks.record = LockRecord::Asked;
        let (id, proof) = (session.id, proof_of(&session.secret));
        let waiter = self.park(*call, WaitsFor::LocksKept(AfterKept::Lock(*request)));
        self.shared.locks.keep_session(id, proof, self.teller(waiter));
        true
    }

    /// Answers when a lock that was granted is written, at once where it need not be.
    #[inline]
    pub(super) fn reply_granted(&mut self, call: &Call, file: LockKey, request: &LockRequest, held: &Held) {
        let range = request.range();
        let number = match self.shared.locks.are_kept() {
            true => self.shared.locks.with(|table| table.begin_writing(file, &range, held)),
            false => None,
        };
        match number {
            Some(number) => {
                let after = AfterKept::Granted(file, *request, number);
                let waiter = self.park(*call, WaitsFor::LocksKept(after));
                self.shared.locks.keep_granted(file, &range, self.teller(waiter));
            }
            None => self.reply(call, Status::OK, Answer::default()),
        }
    }

    /// Answers when it is written that a range was given back. Where that cannot be, it is all the same, and others may have it.
    pub(super) fn reply_freed(&mut self, call: &Call, file: LockKey, range: &Range<u64>, by: Owner) {
        let waiter = self.park(*call, WaitsFor::LocksKept(AfterKept::Unlocked));
        self.shared.locks.keep_freed(file, range, Some(by), Some(self.teller(waiter)));
    }

    fn teller(&self, waiter: OpToken) -> Tell {
        let (shared, id) = (Arc::downgrade(&self.shared), self.id);
        Box::new(move |status| {
            if let Some(shared) = shared.upgrade() {
                shared.send(id, Mail::LocksKept { waiter, status });
            }
        })
    }

    /// The store was written, or not.
    pub(crate) fn on_locks_kept(&mut self, waiter: OpToken, status: Status) {
        let Some(index) = self.operations.index_of(waiter) else { return };
        let WaitsFor::LocksKept(after) = self.operations[index].state else { return };
        let call = self.unpark(index).call;
        self.connections.mark_dirty(call.connection);
        match after {
            AfterKept::Lock(request) if status == Status::OK => {
                if let Some(session) = self.sessions.find_mut(call.session) {
                    session.locks.record = LockRecord::Written;
                }
                if call.has_expired(self.now) {
                    self.note_reclaimed(&call, &request);
                    return self.reply_status(&call, Status::TIMED_OUT);
                }
                if let Err(problem) = self.lock(&call, &request) {
                    self.end_with(&call, problem);
                }
                return;
            }
            AfterKept::Granted(file, _, number) if status == Status::OK => {
                self.shared.locks.with(|table| table.on_written(file, number));
            }
            AfterKept::Granted(file, request, number) => {
                let freed = self.shared.locks.with(|table| table.put_back(file, &request.range(), number));
                self.tell_of_freed(freed);
                // The store may say otherwise: what came later may have been written.
                self.shared.locks.keep_freed(file, &request.range(), None, None);
            }
            AfterKept::Lock(request) => self.note_reclaimed(&call, &request),
            AfterKept::Unlocked => {}
        }
        self.reply_status(&call, status);
    }

    /// A client may have taken the last of its locks again.
    pub(super) fn note_reclaimed(&mut self, call: &Call, request: &LockRequest) {
        if !request.flags.contains(LockFlags::LAST) {
            return;
        }
        let before = self.sessions.find(call.session).and_then(|session| session.locks.before);
        let ended = before.and_then(|before| self.shared.locks.with(|table| table.reclaimed_all(before)));
        if let Some(sessions) = ended {
            self.on_restart_over(sessions);
        }
    }

    /// Ends the time in which locks are taken again, and lets go of sessions that have had no locks for a while.
    pub(crate) fn look_after_kept_locks(&mut self) {
        if !self.shared.locks.is_restart_over() {
            let lease = millis(self.shared.settings.lease_ms);
            let time = if self.shared.locks.are_kept() { lease } else { 2 * lease };
            let reclaims = self.shared.locks.with(|table| table.reclaims());
            self.lifetime.note_reclaims(reclaims, RECLAIM_LEASES_MAX * lease, self.now);
            if self.lifetime.have_reclaims_rested(time, self.now) {
                let sessions = self.shared.locks.with(|table| table.end_restart());
                self.on_restart_over(sessions);
            }
        }
        if self.shared.locks.are_kept() {
            self.forget_lockless(millis(self.shared.settings.lease_ms));
        }
    }

    fn on_restart_over(&mut self, sessions: HashSet<SessionId>) {
        if !sessions.is_empty() {
            tracing::info!(
                sessions = sessions.len(),
                "the time to reclaim locks from before the restart is over"
            );
        }
        self.shared.locks.forget(sessions);
        self.lifetime.end_restart();
    }

    fn forget_lockless(&mut self, patience: Duration) {
        let (now, locks) = (self.now, Arc::clone(&self.shared.locks));
        for (_, session) in self.sessions.iter_mut().filter(|(_, it)| it.locks.record == LockRecord::Written)
        {
            if locks.with(|table| table.has_any(session.id)) {
                session.locks.lockless_since = None;
            } else if now >= session.locks.lockless_since.get_or_insert(now).after(patience) {
                (session.locks.record, session.locks.lockless_since) = (LockRecord::None, None);
                locks.forget_session(session.id);
            }
        }
    }

    /// A session has ended, and so have its locks.
    pub(crate) fn forget_locks_of(&self, session: &Session) {
        if session.locks.record != LockRecord::None {
            self.shared.locks.forget_session(session.id);
        }
    }
}
