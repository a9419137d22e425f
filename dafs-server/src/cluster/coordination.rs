//! What servers of a cluster share: keys and values that survive any of them, changed by transactions that compare first. Keys can be tied
//! to a lease, and go when its holder no longer renews it. All calls block; they are for threads that may.

use std::time::Duration;

use thiserror::Error;

/// A key with its value.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Entry {
    /// Its name.
    pub key: String,
    /// What stands there.
    pub value: Vec<u8>,
    /// The store's revision in which it was written last.
    pub revision: u64,
}

/// What must be so for a transaction to happen.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Compare {
    /// There is no such key.
    Absent(String),
    /// There is one.
    Present(String),
    /// The key was written last in this revision.
    At(String, u64),
    /// The key was not written after this revision, or is absent.
    NotAfter(String, u64),
}

/// Names a lease of the store.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct LeaseId(pub i64);

/// A change of a key. A transaction names no key twice.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Change {
    /// Written; with a lease it goes when that ends.
    Put(String, Vec<u8>, Option<LeaseId>),
    /// Removed, where it is there.
    Delete(String),
    /// All keys that begin so are removed.
    DeleteAll(String),
}

/// All of the changes are made, or none.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Transaction {
    /// All of these must hold.
    pub compares: Vec<Compare>,
    /// What is done then.
    pub changes: Vec<Change>,
    /// Keys that are read where a comparison fails.
    pub reads: Vec<String>,
}

/// What came of a transaction.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Committed {
    /// The changes were made.
    pub succeeded: bool,
    /// The store's revision after it.
    pub revision: u64,
    /// Of [`Transaction::reads`], those that are there. Empty after success.
    pub found: Vec<Entry>,
}

/// Why the store has not answered, or not as asked.
#[derive(Clone, Debug, Error, PartialEq, Eq)]
pub enum CoordinationError {
    /// It could not be reached, or said nothing in time. What was asked may have been done.
    #[error("cannot reach the coordination store: {0}")]
    Unreachable(String),
    /// It has no room.
    #[error("the coordination store has no room: {0}")]
    NoSpace(String),
    /// It refuses: it is damaged, or forbids it.
    #[error("the coordination store refuses: {0}")]
    Refused(String),
    /// The lease is over.
    #[error("the lease in the coordination store is over")]
    NoLease,
}

/// Such a store. Transactions are linearizable: each sees all that were answered before it began.
pub trait Coordination: Send + Sync {
    /// Carries a transaction out.
    fn commit(&self, transaction: &Transaction) -> Result<Committed, CoordinationError>;

    /// All keys that begin so, in order, and the revision in which they were so.
    fn read(&self, prefix: &str) -> Result<(Vec<Entry>, u64), CoordinationError>;

    /// The same, where something has changed since a read in this revision, which has found so many keys; else the revision alone. Costs
    /// little where nothing has, however many keys there are.
    fn read_changed(
        &self,
        prefix: &str,
        since: u64,
        count: usize,
    ) -> Result<(Option<Vec<Entry>>, u64), CoordinationError>;

    /// A lease that ends when it was not renewed for this long, or a little later.
    fn grant(&self, time: Duration) -> Result<LeaseId, CoordinationError>;

    /// Renews a lease.
    ///
    /// # Errors
    /// [`CoordinationError::NoLease`] once it is over.
    fn renew(&self, lease: LeaseId) -> Result<(), CoordinationError>;

    /// Ends a lease now.
    fn revoke(&self, lease: LeaseId) -> Result<(), CoordinationError>;
}
