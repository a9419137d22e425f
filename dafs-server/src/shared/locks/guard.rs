//! The table of locks as all workers share it, with the store that keeps some of it.

use std::collections::HashMap;
use std::ops::Range;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use dafs_proto::wire::{SessionId, Status};

use super::{Held, LockLimits, LockTable, Owner, Waiting};
use crate::shared::store::{Change, FileName, OwnerName, Proof, Record, Store, Tell, proof_of};
use crate::storage::LockKey;

/// The table, and a lock that it does not know of yet.
#[derive(Debug, Default)]
struct Guarded {
    table: LockTable,
    /// The last lock, where the table need not be looked at for it: most are given back before anybody does.
    alone: Option<Alone>,
}

#[derive(Debug)]
struct Alone {
    file: LockKey,
    range: Range<u64>,
    held: Held,
}

impl Guarded {
    fn of(table: LockTable) -> Mutex<Self> {
        Mutex::new(Self { table, alone: None })
    }

    /// The table knows of every lock.
    fn settle(&mut self) -> &mut LockTable {
        if let Some(Alone { file, range, held }) = self.alone.take() {
            self.table.put_alone(file, &range, held);
        }
        &mut self.table
    }
}

/// The table, and what is asked of it so often that nobody should wait for its lock.
#[derive(Debug, Default)]
pub(crate) struct Locks {
    guarded: Mutex<Guarded>,
    /// Somebody has asked for a lock since the server began, or before.
    used: AtomicBool,
    mandatory: AtomicBool,
    mandatory_version: AtomicU64,
    restart_over: AtomicBool,
    awaits_local: AtomicBool,
    has_untold: AtomicBool,
    store: Option<Arc<Store>>,
    /// Sessions of before a restart that had locks.
    before: HashMap<SessionId, Proof>,
}

impl Locks {
    /// Without locks, for so many.
    pub(crate) fn new(limits: LockLimits) -> Self {
        Self { guarded: Guarded::of(LockTable::new(limits)), ..Self::default() }
    }

    /// With a store, and what it has kept: sessions that had locks, and those that last.
    pub(crate) fn kept_in(
        store: Arc<Store>,
        sessions: Vec<(SessionId, Proof)>,
        files: Vec<(FileName, Vec<Record>)>,
        limits: LockLimits,
    ) -> Self {
        let mut table = LockTable::new(limits);
        table.restore(sessions.iter().map(|(session, _)| *session).collect(), files);
        Self {
            mandatory: AtomicBool::new(table.has_mandatory()),
            mandatory_version: AtomicU64::new(0),
            used: AtomicBool::new(true),
            restart_over: AtomicBool::new(false),
            awaits_local: AtomicBool::new(false),
            has_untold: AtomicBool::new(false),
            guarded: Guarded::of(table),
            store: Some(store),
            before: sessions.into_iter().collect(),
        }
    }

    pub(crate) fn with<T>(&self, act: impl FnOnce(&mut LockTable) -> T) -> T {
        let mut guarded = self.guard();
        let table = guarded.settle();
        let outcome = act(table);
        self.mandatory.store(table.has_mandatory(), Ordering::Release);
        self.mandatory_version.store(table.mandatory_version(), Ordering::Release);
        self.restart_over.store(table.is_restart_over(), Ordering::Relaxed);
        self.awaits_local.store(table.awaits_local(), Ordering::Relaxed);
        self.has_untold.store(table.has_untold(), Ordering::Relaxed);
        outcome
    }

    fn guard(&self) -> MutexGuard<'_, Guarded> {
        self.guarded.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Locks a range that no lock or wait touches; whether it was such a one. The table is told when anybody looks at it.
    pub(crate) fn lock_alone(&self, file: LockKey, range: &Range<u64>, held: &Held) -> bool {
        let mut guarded = self.guard();
        let table = guarded.settle();
        let is_alone = !held.is_mandatory && !range.is_empty() && table.stands_alone(file, range, held);
        if is_alone {
            table.note(file, range, held.kind);
            self.restart_over.store(table.is_restart_over(), Ordering::Relaxed);
            guarded.alone = Some(Alone { file, range: range.clone(), held: *held });
        }
        is_alone
    }

    /// Gives back the last lock, if it is this one and the table has not been told of it; whether it was.
    pub(crate) fn unlock_alone(&self, file: LockKey, range: &Range<u64>, owner: Owner) -> bool {
        let is_this =
            |alone: &mut Alone| alone.file == file && alone.range == *range && alone.held.owner == owner;
        self.guard().alone.take_if(is_this).is_some()
    }

    /// Somebody has asked for a lock since the server began.
    #[inline]
    pub(crate) fn is_used(&self) -> bool {
        self.used.load(Ordering::Acquire)
    }

    /// There are mandatory locks.
    #[inline]
    pub(crate) fn are_mandatory(&self) -> bool {
        self.mandatory.load(Ordering::Acquire)
    }

    /// A number that is another once mandatory locks have changed.
    pub(crate) fn mandatory_version(&self) -> u64 {
        self.mandatory_version.load(Ordering::Acquire)
    }

    /// Nobody takes locks of before a restart again any more.
    pub(crate) fn is_restart_over(&self) -> bool {
        self.restart_over.load(Ordering::Relaxed)
    }

    /// Somebody waits for a process of this host.
    pub(crate) fn awaits_local(&self) -> bool {
        self.awaits_local.load(Ordering::Relaxed)
    }

    /// There may be some of those that [`Locks::take_untold`] takes.
    #[inline]
    pub(crate) fn has_untold(&self) -> bool {
        self.has_untold.load(Ordering::Relaxed)
    }

    /// Those that waited and are to be told that they get nothing, and why.
    pub(crate) fn take_untold(&self) -> Vec<(Waiting, Status)> {
        match self.has_untold() {
            true => self.with(LockTable::take_untold),
            false => Vec::new(),
        }
    }

    /// A session asks for locks.
    pub(crate) fn note_use(&self) {
        if !self.is_used() {
            self.used.store(true, Ordering::Release);
        }
    }

    /// Some of it outlives the server.
    pub(crate) fn are_kept(&self) -> bool {
        self.store.is_some()
    }

    /// The session of before a restart that a client has proven to be its own, where it had locks.
    pub(crate) fn session_before(&self, session: SessionId, secret: &[u8; 16]) -> Option<SessionId> {
        self.before.get(&session).filter(|proof| **proof == proof_of(secret)).map(|_| session)
    }

    /// Has it written that a session has locks: whoever asked is told.
    pub(crate) fn keep_session(&self, session: SessionId, proof: Proof, tell: Tell) {
        if let Some(store) = &self.store {
            store.ask(Change::Session(session, Some(proof)), tell);
        }
    }

    /// Has it written that a session has no locks any more.
    pub(crate) fn forget_session(&self, session: SessionId) {
        if let Some(store) = &self.store {
            store.note(Change::Session(session, None), None);
        }
    }

    /// Has it written what lasts in a range of a file, in which somebody was granted a lock: it is granted once that is written.
    pub(crate) fn keep_granted(&self, file: LockKey, range: &Range<u64>, tell: Tell) {
        if let Some(store) = &self.store {
            // In the order of the changes, whichever worker made them.
            self.with(|table| store.ask(Change::Locks(table.records_of(file, range)), tell));
        }
    }

    /// Has it written what lasts in a range of a file after it has become less, if not now then later. `by` has given that back.
    pub(crate) fn keep_freed(
        &self,
        file: LockKey,
        range: &Range<u64>,
        by: Option<Owner>,
        tell: Option<Tell>,
    ) {
        let Some(store) = &self.store else { return };
        self.with(|table| {
            let change = table.records_of(file, range);
            match by {
                Some(by) => store.note_freed(change, name_of(by), tell),
                None => store.note(Change::Locks(change), tell),
            }
        });
    }

    /// After a restart an owner might be told to have a lock in a range that he has given back.
    pub(crate) fn is_unsettled(&self, file: LockKey, range: &Range<u64>, owner: Owner) -> bool {
        let file = (file.file, file.generation);
        self.store.as_ref().is_some_and(|store| store.is_unsettled(file, range, name_of(owner)))
    }

    /// Nobody takes locks again any more: what was kept for that is forgotten.
    pub(crate) fn forget(&self, sessions: impl IntoIterator<Item = SessionId>) {
        sessions.into_iter().for_each(|session| self.forget_session(session));
    }
}

fn name_of(owner: Owner) -> OwnerName {
    (owner.session.0, owner.id)
}
