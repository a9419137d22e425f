//! Byte-range locks of all servers of a cluster: a table for each file, in the store, changed whole by comparing and setting. A lock is
//! there before its owner is told of it, and until its owner, or whoever took over from its owner's server, gives it back. So no lock is
//! lost with a server, and nobody has to wait for others to take theirs again.

use std::ops::Range;

use dafs_proto::transport::util::lock;
use dafs_proto::wire::{SessionId, Status};

use super::coordination::CoordinationError;
use super::core::{Core, status_of};
use super::lock_table::{LockInWay, LockWish, Part, Whose, in_way, with, without};
use super::records::decode;
use super::table::More;
use crate::storage::FileName;

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
        self.read_table(&self.keys.lock(file))
    }

    /// Changes the table of a file, however others change it meanwhile. With a session, the store is to know that before.
    fn change_locks(
        &self,
        file: FileName,
        session: Option<SessionId>,
        change: impl Fn(Vec<Part>) -> Result<Vec<Part>, Status>,
    ) -> Result<Result<(), Status>, CoordinationError> {
        let more = More { session, mark: None };
        let changed = self.change_table(&self.keys.lock(file), self.locks.known(file), more, change)?;
        Ok(changed.map(|(parts, revision)| self.locks.learn(file, parts, revision)))
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
