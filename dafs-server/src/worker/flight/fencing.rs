//! Who waits for operations of clients that were fenced off an export.

use dafs_proto::transport::OpToken;

use crate::shared::WorkerId;

/// Who waits for operations of fenced clients to end.
#[derive(Debug, Default)]
pub(crate) struct Fencing {
    /// Operations of this worker in the state `FenceDrain`.
    pub(crate) waits: usize,
    /// Operations of other workers: the export, and whom to tell.
    pub(crate) foreign: Vec<(usize, WorkerId, OpToken)>,
}

impl Fencing {
    /// The end of an operation may be what somebody waits for.
    #[inline]
    pub(crate) fn is_awaited(&self) -> bool {
        self.waits > 0 || !self.foreign.is_empty()
    }

    /// An operation waits no more.
    pub(crate) fn end_wait(&mut self) {
        self.waits -= 1;
    }
}
