//! The operations of a batch, as they were asked for.

use std::sync::Arc;

use dafs_proto::extent::Extent;
use dafs_proto::transport::RemoteRange;
use dafs_proto::wire::Stability;
use smallvec::SmallVec;

use crate::error::Error;
use crate::handle::node::Node;
use crate::memory::{RawMemory, Revocation};

/// What became of one operation of a batch.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct BatchOutcome {
    /// Bytes moved from the first on without a gap. Fewer than asked only where the file ended, or, of a write, where an error came after
    /// them.
    pub count: usize,
    /// Where the file ended, when a read met that.
    pub end: Option<u64>,
}

/// All of them.
#[derive(Default)]
pub(crate) struct Parts {
    pub(crate) operations: Vec<Part>,
    pub(crate) wrong: Option<Error>,
    pub(crate) expedite: bool,
    /// Registered buffers that the caller lent, and to which operations.
    pub(crate) lent: Vec<(usize, Revocation)>,
}

pub(crate) struct Part {
    pub(crate) node: Arc<Node>,
    pub(crate) write: bool,
    pub(crate) stability: Stability,
    pub(crate) extents: SmallVec<[Extent; 1]>,
    pub(crate) memory: SmallVec<[RawMemory; 1]>,
    /// Of registered memory.
    pub(crate) range: Option<RemoteRange>,
    /// Its data travels in the messages.
    pub(crate) inline: bool,
}

impl Part {
    /// Bytes that it moves.
    pub(crate) fn len(&self) -> usize {
        self.memory.iter().map(RawMemory::len).sum()
    }
}
