//! The operations of a batch, as they were asked for.

use std::sync::Arc;

use dafs_proto::extent::{Extent, total};
use dafs_proto::transport::RemoteRange;
use dafs_proto::wire::Stability;
use smallvec::SmallVec;

use crate::api::file::File;
use crate::driver::Owner;
use crate::driver::transfer::total_len;
use crate::error::Error;
use crate::handle::node::Node;
use crate::memory::{RawMemory, RegisteredBuf};
use crate::op::transfer::{Transfer, TransferKind};

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
pub(crate) struct Parts {
    pub(crate) owner: Arc<Owner>,
    pub(crate) operations: Vec<Part>,
    pub(crate) wrong: Option<Error>,
    pub(crate) expedite: bool,
    /// Registered buffers that the caller lent, and to which operations.
    pub(crate) lent: Vec<(usize, RegisteredBuf)>,
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

impl Parts {
    pub(crate) fn new(owner: &Arc<Owner>) -> Self {
        let owner = Arc::clone(owner);
        Self { owner, operations: Vec::new(), wrong: None, expedite: false, lent: Vec::new() }
    }

    pub(crate) fn push(
        &mut self,
        file: &File,
        write: bool,
        extents: &[Extent],
        memory: SmallVec<[RawMemory; 1]>,
    ) {
        let place = self.operations.len();
        let wrong = match (total(extents), total_len(&memory)) {
            _ if !Arc::ptr_eq(&self.owner, &file.owner) => {
                Some("its file belongs to another session".to_owned())
            }
            (None, _) => Some("an extent lies beyond the end of any file".to_owned()),
            (_, None) => Some("its buffers are larger than the address space".to_owned()),
            (Some(bytes), Some(len)) if bytes != len as u64 => {
                Some(format!("its extents hold {bytes} bytes, its memory {len}: the totals must agree"))
            }
            _ => None,
        };
        if let Some(what) = wrong {
            self.wrong.get_or_insert(Error::Invalid(format!("operation {place} of a batch: {what}")));
        }
        let stability = if write { file.stability } else { Stability::Unstable };
        let (node, extents) = (Arc::clone(&file.node), SmallVec::from_slice(extents));
        self.operations.push(Part { node, write, stability, extents, memory, range: None, inline: false });
    }

    /// The memory of the last operation is that of a registered buffer.
    pub(crate) fn is_registered(&mut self, buffer: &RegisteredBuf) {
        if let Some(part) = self.operations.last_mut()
            && buffer.is_registered()
        {
            part.range = buffer.range_in(&self.owner.shared.domain);
            if part.range.is_none() && !buffer.is_empty() {
                let what = "a buffer of a batch is not registered with this session".to_owned();
                self.wrong.get_or_insert(Error::Invalid(what));
            }
        }
    }

    /// As [`Parts::is_registered`], of a buffer that the caller has back when the batch has ended.
    pub(crate) fn lends(&mut self, buffer: &RegisteredBuf) {
        self.is_registered(buffer);
        let place = self.operations.len().saturating_sub(1);
        self.lent.extend(buffer.is_registered().then(|| (place, buffer.revocation())));
    }
}

impl From<Transfer> for BatchOutcome {
    fn from(moved: Transfer) -> Self {
        let end = moved.file_end().filter(|_| moved.kind == TransferKind::Read);
        Self { count: moved.count(), end }
    }
}
