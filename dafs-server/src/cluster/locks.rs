//! Byte-range locks of all servers of a cluster: a table for each file, in the store, changed whole by comparing and setting. A lock is
//! there before its owner is told of it, and until its owner, or whoever took over from its owner's server, gives it back. So no lock is
//! lost with a server, and nobody has to wait for others to take theirs again.

use std::ops::Range;
use std::time::Duration;

use dafs_proto::transport::util::lock;
use dafs_proto::wire::{SessionId, Status};

use super::coordination::{Change, Compare, CoordinationError, Transaction};
use super::core::{Core, status_of};
use super::lock_table::{LockInWay, LockWish, Part, Whose, in_way, with, without};
use super::records::{decode, encode};
use crate::storage::FileName;

/// Attempts to change a table that others change.
const ATTEMPTS_MAX: usize = 64;
/// Before another one.
const AGAIN_INTERVAL: Duration = Duration::from_millis(2);

fn outcome(result: Result<Result<(), Status>, CoordinationError>) -> Status {
    match result {
        Ok(Ok(())) => Status::OK,
        Ok(Err(status)) => status,
        Err(error) => status_of(&error),
    }
}

impl Core {
    /// Locks a range, if nothing is in the way. Blocks.
    pub(super) fn lock_range(&self, wish: &LockWish) -> Status {
        let granted = outcome(
            self.insist(|| self.change_locks(wish.file, Some(wish.session), |parts| with(parts, wish))),
        );
        if granted != Status::OK || lock(&self.sessions).contains_key(&wish.session) {
            return granted;
        }
        // It has ended meanwhile, and so have its locks.
        match self.unlock_range(wish.file, &(0..u64::MAX), Whose::Session(wish.session)) {
            Status::OK => Status::NO_SESSION,
            status => status,
        }
    }

    /// Gives back what is meant in a range. Blocks.
    pub(super) fn unlock_range(&self, file: FileName, range: &Range<u64>, whose: Whose) -> Status {
        outcome(self.insist(|| self.change_locks(file, None, |parts| without(parts, range, whose))))
    }

    /// What is in the way of a lock. Blocks.
    pub(super) fn lock_in_way(&self, wish: &LockWish) -> Result<Option<LockInWay>, Status> {
        let (parts, _) = self.insist(|| self.locks_of(wish.file)).map_err(|error| status_of(&error))?;
        Ok(in_way(&parts, wish).map(Part::told))
    }

    fn locks_of(&self, file: FileName) -> Result<(Vec<Part>, u64), CoordinationError> {
        let key = self.keys.lock(file);
        let (entries, revision) = self.store.read(&key)?;
        self.hear(revision);
        let entry = entries.into_iter().find(|entry| entry.key == key);
        Ok(entry.map_or((Vec::new(), 0), |entry| (decode(&entry.value).unwrap_or_default(), entry.revision)))
    }

    /// Changes the table of a file, however others change it meanwhile. With a session, the store is to know that before.
    fn change_locks(
        &self,
        file: FileName,
        session: Option<SessionId>,
        change: impl Fn(Vec<Part>) -> Result<Vec<Part>, Status>,
    ) -> Result<Result<(), Status>, CoordinationError> {
        let key = self.keys.lock(file);
        let (mut parts, mut revision) = self.locks.known(file);
        let mut is_fresh = false;
        for attempt in 0..ATTEMPTS_MAX {
            let changed = match change(parts.clone()) {
                Ok(changed) => changed,
                // What was seen last may be long past.
                Err(_) if !is_fresh => {
                    (parts, revision) = self.locks_of(file)?;
                    is_fresh = true;
                    continue;
                }
                Err(status) => return Ok(Err(status)),
            };
            if changed == parts {
                if is_fresh {
                    return Ok(Ok(()));
                }
                // There is probably nothing to be written, as where a file is closed that nobody has locked.
                (parts, revision) = self.locks_of(file)?;
                is_fresh = true;
                continue;
            }
            let put = match changed.is_empty() {
                // It stays for a while: a lock that the store writes later than its server waits must not find what it was meant for.
                true => Change::Put(key.clone(), encode(&changed), self.recent_lease()),
                false => Change::Put(key.clone(), encode(&changed), None),
            };
            let mut changes = vec![put];
            let unwritten =
                session.and_then(|session| Some((session, lock(&self.sessions).get(&session)?.clone())));
            if let Some((session, (proof, false))) = unwritten {
                changes.push(Change::Put(self.keys.session(session), proof.into_bytes(), None));
            }
            let live = self.keys.live_server(self.number);
            let committed = self.commit(&Transaction {
                compares: vec![Compare::Present(live.clone()), Compare::At(key.clone(), revision)],
                changes,
                reads: vec![live.clone(), key.clone()],
            })?;
            if committed.succeeded {
                if let Some(session) = session
                    && let Some(known) = lock(&self.sessions).get_mut(&session)
                {
                    known.1 = true;
                }
                self.locks.learn(file, changed, committed.revision);
                return Ok(Ok(()));
            }
            if !committed.found.iter().any(|entry| entry.key == live) {
                return Err(CoordinationError::NoLease);
            }
            let entry = committed.found.into_iter().find(|entry| entry.key == key);
            (parts, revision) = entry
                .map_or((Vec::new(), 0), |entry| (decode(&entry.value).unwrap_or_default(), entry.revision));
            is_fresh = true;
            if attempt > 2 {
                self.rest(AGAIN_INTERVAL);
            }
        }
        Ok(Err(Status::AGAIN))
    }

    /// Locks are over, whatever files they are of.
    pub(super) fn end_locks(&self, whose: Whose) -> Result<(), CoordinationError> {
        let (entries, revision) = self.store.read(&self.keys.locks())?;
        self.hear(revision);
        for entry in entries {
            let parts: Vec<Part> = decode(&entry.value).unwrap_or_default();
            let Some(file) = self.keys.file_of_lock(&entry.key) else { continue };
            if parts.iter().any(|part| whose.has(part)) {
                let freed = self.change_locks(file, None, |parts| without(parts, &(0..u64::MAX), whose))?;
                if let Err(status) = freed {
                    tracing::warn!(%status, "cannot release locks of sessions that are gone");
                }
            }
        }
        Ok(())
    }
}
