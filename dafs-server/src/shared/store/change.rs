//! What is kept: changes on their way to the file, what it has kept, and why it cannot.

use std::collections::BTreeMap;
use std::ops::Range;
use std::path::PathBuf;

use dafs_proto::wire::{Crossovers, FenceList, SessionId, Status};
use sha2::{Digest, Sha256};

/// Whatever went wrong.
pub(super) type AnyError = Box<dyn std::error::Error + Send + Sync>;

/// A part of a file that is locked so that the lock outlives its owner.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Record {
    pub(crate) start: u64,
    pub(crate) end: u64,
    pub(crate) session: u64,
    pub(crate) owner: u64,
    pub(crate) client: [u8; 16],
    pub(crate) is_mandatory: bool,
}

impl Record {
    /// The other one begins where this ends, and is of the same holder.
    pub(crate) fn is_continued_by(&self, next: &Self) -> bool {
        let holder = |record: &Self| (record.session, record.owner, record.client, record.is_mandatory);
        self.end == next.start && holder(self) == holder(next)
    }
}

/// A file by which it is known after a restart: its number and its generation.
pub(crate) type FileName = (u64, u64);

/// An owner of locks: its session, and the client's name for it.
pub(crate) type OwnerName = (u64, u64);

/// What lasts in a range of a file, in place of what did.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct LocksChange {
    pub(crate) file: FileName,
    pub(crate) range: Range<u64>,
    /// Parts of the range, in ascending order.
    pub(crate) records: Vec<Record>,
}

/// What is to be written.
#[derive(Clone, Debug)]
pub(crate) enum Change {
    /// A session has locks from now on, and so may take them again; or not any more.
    Session(SessionId, Option<Proof>),
    /// Persistent locks.
    Locks(LocksChange),
    /// Who is fenced off an export.
    Fence(String, FenceList),
    /// Crossovers that were published; or that they are gone.
    Published(PublishedName, Option<PublishedEntry>),
}

/// For whom crossovers were published: a transport, and whose clients.
pub(crate) type PublishedName = (String, String);

/// Crossovers that were published.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct PublishedEntry {
    /// Later ones have larger numbers.
    pub(crate) order: u64,
    pub(crate) crossovers: Crossovers,
}

/// What tells whether a client has a session's secret, and does not tell the secret.
pub(crate) type Proof = [u8; 32];

/// The proof that belongs to a secret.
pub(crate) fn proof_of(secret: &[u8; 16]) -> Proof {
    Sha256::digest(secret).into()
}

/// Called when a change was written, or could not be. It must not block.
pub(crate) type Tell = Box<dyn FnOnce(Status) + Send>;

/// All that a file has kept.
#[derive(Debug, Default, PartialEq, Eq)]
pub(crate) struct Kept {
    pub(crate) sessions: Vec<(SessionId, Proof)>,
    pub(crate) locks: Vec<(FileName, Vec<Record>)>,
    pub(crate) fences: BTreeMap<String, FenceList>,
    pub(crate) published: Vec<(PublishedName, PublishedEntry)>,
}

/// Why nothing can be kept.
#[derive(Debug, thiserror::Error)]
pub enum StoreError {
    /// The file cannot be read or made, or it is damaged.
    #[error(
        "cannot use the state file {}: {error}; restore a backup, or remove it, which drops all locks and lifts all fences",
        path.display()
    )]
    Unusable {
        /// The file.
        path: PathBuf,
        /// Why.
        error: AnyError,
    },
    /// The file is of a server before there were state files.
    #[error(
        "cannot use the state file {}: it is a fence file of an earlier version; name another file, and add its entries again \
         with `dafs fence add`: it is text",
        path.display()
    )]
    FenceFile {
        /// The file.
        path: PathBuf,
    },
    /// Another server has it.
    #[error("cannot use the state file {}: another server uses it; give each server its own", path.display())]
    Taken {
        /// The file.
        path: PathBuf,
    },
    /// Others may write it, and so take locks from their owners and lift fences.
    #[error(
        "cannot use the state file {}: other users may write to it; run chmod 600 on it, and chown to the server's user",
        path.display()
    )]
    Open {
        /// The file.
        path: PathBuf,
    },
}

/// A change under way.
pub(super) struct Sent {
    pub(super) change: Change,
    /// Its number, for what is unsettled by it.
    pub(super) number: Option<u64>,
    /// It has happened, whether it can be written or not: where it cannot be, it is written as soon as that is possible.
    pub(super) has_happened: bool,
    /// Who waits for the first attempt.
    pub(super) tell: Option<Tell>,
}
