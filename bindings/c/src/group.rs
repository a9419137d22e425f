//! What chains and batches are made of, and what became of them.

use std::collections::VecDeque;
use std::ffi::OsString;
use std::ops::Range;
use std::sync::{Arc, Mutex, MutexGuard};

use dafs_client::{
    AccessPattern, Attributes, BatchOutcome, Error, Expected, File, Lent, LockKind, OpenOptions, OwnedBatch,
    PendingBatch, Session,
};

use crate::failure::{Result, alone, busy};

/// A chain: it is built anew each time that it is run.
#[derive(Debug)]
pub(crate) struct Chain {
    /// The file or directory that it begins at.
    pub(crate) begin: i64,
    pub(crate) steps: Vec<Step>,
    pub(crate) state: Arc<Mutex<ChainState>>,
}

/// What became of a chain.
#[derive(Debug, Default)]
pub(crate) enum ChainState {
    /// It was not run, or failed.
    #[default]
    None,
    InFlight,
    Done(Box<ChainDone>),
}

#[derive(Debug)]
pub(crate) struct ChainDone {
    pub(crate) counts: Vec<usize>,
    pub(crate) attributes: Option<Attributes>,
    pub(crate) file: Option<File>,
}

/// A request of a chain. Memory is the caller's, by its address.
#[derive(Clone, Debug)]
pub(crate) enum Step {
    Lookup(OsString),
    Open(OsString, OpenOptions),
    OpenUnnamed(OsString, u32),
    Read(Memory, u64),
    Write(Memory, u64),
    Advise(u64, u64, AccessPattern),
    Verify(Expected, bool),
    Truncate(u64),
    Commit,
    Close,
    Lock(Range<u64>, LockKind, bool),
    Unlock(Range<u64>),
    /// A name below the directory of a handle.
    Link(i64, OsString, bool),
}

/// Memory of the caller's.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Memory {
    pub(crate) address: usize,
    pub(crate) len: usize,
}

impl Chain {
    /// What became of it, for nobody else meanwhile.
    pub(crate) fn state(&self) -> Result<MutexGuard<'_, ChainState>> {
        alone(&self.state, "the chain")
    }
}

/// A batch, and the session that it begins anew in.
pub(crate) struct Batch {
    pub(crate) session: Session,
    pub(crate) state: BatchState,
    /// What has ended and was not told of.
    pub(crate) told: VecDeque<usize>,
}

/// Where a batch is.
pub(crate) enum BatchState {
    Building(OwnedBatch<Lent>, usize),
    InFlight(PendingBatch<Lent>),
    Done(Vec<std::result::Result<BatchOutcome, Error>>),
    /// It failed as a whole.
    Failed,
}

impl Batch {
    /// The batch to add to: one that has ended begins anew.
    pub(crate) fn building(&mut self) -> Result<(&mut OwnedBatch<Lent>, &mut usize)> {
        if matches!(self.state, BatchState::Done(_) | BatchState::Failed) {
            self.state = BatchState::Building(self.session.owned_batch(), 0);
        }
        match &mut self.state {
            BatchState::Building(batch, count) => Ok((batch, count)),
            _ => Err(busy("the batch")),
        }
    }
}

impl std::fmt::Debug for Batch {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match &self.state {
            BatchState::Building(_, count) => write!(f, "Batch({count} operations)"),
            BatchState::InFlight(pending) => pending.fmt(f),
            BatchState::Done(results) => write!(f, "Batch({} results)", results.len()),
            BatchState::Failed => f.write_str("Batch(failed)"),
        }
    }
}
