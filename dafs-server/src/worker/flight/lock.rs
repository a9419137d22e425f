//! Requests about locks that wait for the store.

use dafs_proto::wire::LockRequest;

use crate::storage::LockKey;

/// What is done when the store was written.
#[derive(Clone, Copy, Debug)]
pub(crate) enum AfterKept {
    /// The session may have locks: its first request begins.
    Lock(LockRequest),
    /// The lock of this number is told of, or given back.
    Granted(LockKey, LockRequest, u64),
    /// What was given back of a file is told of.
    Unlocked,
}
