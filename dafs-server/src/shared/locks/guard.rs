//! The table of locks as all workers share it, with the file that keeps some of it.

use std::collections::HashMap;
use std::ops::Range;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Mutex, PoisonError};

use dafs_proto::wire::SessionId;

use super::{LockLimits, LockTable, Owner, Waiting};
use crate::shared::lock_file::{Change, Kept, LockFile, Proof, Tell, names, proof_of};
use crate::storage::LockKey;

/// The table, and what is asked of it so often that nobody should wait for its lock.
#[derive(Debug, Default)]
pub(crate) struct Locks {
    table: Mutex<LockTable>,
    /// Somebody has asked for a lock since the server began, or before.
    used: AtomicBool,
    mandatory: AtomicBool,
    mandatory_version: AtomicU64,
    restart_over: AtomicBool,
    awaits_local: AtomicBool,
    has_overfull: AtomicBool,
    file: Option<LockFile>,
    /// Sessions of before a restart that had locks.
    before: HashMap<SessionId, Proof>,
}

impl Locks {
    /// Without locks, for so many.
    pub(crate) fn new(limits: LockLimits) -> Self {
        Self { table: Mutex::new(LockTable::new(limits)), ..Self::default() }
    }

    /// With a file, and what it has kept.
    pub(crate) fn kept_in(file: LockFile, kept: Kept, limits: LockLimits) -> Self {
        let mut table = LockTable::new(limits);
        table.restore(names(&kept.sessions), kept.files);
        Self {
            mandatory: AtomicBool::new(table.has_mandatory()),
            mandatory_version: AtomicU64::new(0),
            used: AtomicBool::new(true),
            restart_over: AtomicBool::new(false),
            awaits_local: AtomicBool::new(false),
            has_overfull: AtomicBool::new(false),
            table: Mutex::new(table),
            file: Some(file),
            before: kept.sessions.into_iter().collect(),
        }
    }

    pub(crate) fn with<T>(&self, act: impl FnOnce(&mut LockTable) -> T) -> T {
        let mut table = self.table.lock().unwrap_or_else(PoisonError::into_inner);
        let outcome = act(&mut table);
        self.mandatory.store(table.has_mandatory(), Ordering::Release);
        self.mandatory_version.store(table.mandatory_version(), Ordering::Release);
        self.restart_over.store(table.is_restart_over(), Ordering::Relaxed);
        self.awaits_local.store(table.awaits_local(), Ordering::Relaxed);
        self.has_overfull.store(table.has_overfull(), Ordering::Relaxed);
        outcome
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

    /// Those that waited and are to be told that they get nothing: they would make too many parts.
    pub(crate) fn take_overfull(&self) -> Vec<Waiting> {
        match self.has_overfull.load(Ordering::Relaxed) {
            true => self.with(LockTable::take_overfull),
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
        self.file.is_some()
    }

    /// The session of before a restart that a client has proven to be its own, where it had locks.
    pub(crate) fn session_before(&self, session: SessionId, secret: &[u8; 16]) -> Option<SessionId> {
        self.before.get(&session).filter(|proof| **proof == proof_of(secret)).map(|_| session)
    }

    /// Has it written that a session has locks, or has none any more.
    pub(crate) fn keep_session(&self, session: SessionId, proof: Option<Proof>, tell: Option<Tell>) {
        if let Some(file) = &self.file {
            file.write(Change::Session(session, proof), tell);
        }
    }

    /// Has it written what lasts of a file, also where another worker may have: whether that could be written it does not know yet.
    pub(crate) fn keep(&self, of: LockKey, tell: Option<Tell>) {
        if let Some(file) = &self.file {
            // In the order of the changes, whichever worker made them.
            self.with(|table| file.write(Change::File(table.records_of(of)), tell));
        }
    }

    /// After a restart an owner might be told to have a lock in a range, though he has none in the table.
    pub(crate) fn may_be_kept(&self, of: LockKey, range: &Range<u64>, owner: Owner) -> bool {
        let name = (of.file, of.generation);
        self.file.as_ref().is_some_and(|file| file.may_name(name, range, (owner.session.0, owner.id)))
    }

    /// Writes what there is to be written, and closes the file. Blocks.
    pub(crate) fn close(&self) {
        self.file.iter().for_each(LockFile::close);
    }

    /// Nobody takes locks again any more: what was kept for that is forgotten.
    pub(crate) fn forget(&self, sessions: impl IntoIterator<Item = SessionId>) {
        sessions.into_iter().for_each(|session| self.keep_session(session, None, None));
    }
}
