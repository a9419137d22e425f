//! What a storage offers to show locks to the processes of its host.

use std::ops::Range;

use dafs_proto::wire::{LockKind, Status};

/// The locks of a file as processes of this host see them. All are set for one holder, whose own do not conflict. Nothing blocks; they end
/// when this is dropped.
pub trait LocalLocks: std::fmt::Debug + Send {
    /// Locks a range, instead of what was locked of it; whether no other process is in the way.
    ///
    /// # Errors
    /// The file system has no such locks, or none left.
    fn lock(&self, range: &Range<u64>, kind: LockKind) -> Result<bool, Status>;

    /// Gives back what is locked of a range.
    fn unlock(&self, range: &Range<u64>);

    /// What is in the way of a lock.
    fn conflict(&self, range: &Range<u64>, kind: LockKind) -> Option<LocalConflict>;
}

/// A lock of a process of this host.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LocalConflict {
    /// Its bytes; up to `u64::MAX` where it holds all that follow.
    pub range: Range<u64>,
    /// How.
    pub kind: LockKind,
    /// The process; 0 where several may hold it.
    pub process: u64,
}
