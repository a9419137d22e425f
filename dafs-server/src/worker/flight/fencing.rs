//! Who waits for operations of clients that were fenced off an export.

use dafs_proto::transport::OpToken;

use crate::shared::WorkerId;

/// Who waits for operations of fenced clients to end.
#[derive(Debug, Default)]
pub(crate) struct Fencing {
    /// Operations of this worker in the state `FenceDrain`.
    waits: usize,
    /// Operations of other workers: the export, and whom to tell.
    foreign: Vec<(usize, WorkerId, OpToken)>,
}

impl Fencing {
    /// The end of an operation may be what somebody waits for.
    #[inline]
    pub(crate) fn is_awaited(&self) -> bool {
        self.waits > 0 || !self.foreign.is_empty()
    }

    /// An operation of this worker waits.
    pub(crate) fn begin_wait(&mut self) {
        self.waits += 1;
    }

    /// An operation waits no more.
    pub(crate) fn end_wait(&mut self) {
        self.waits -= 1;
    }

    /// Operations of this worker wait.
    pub(crate) fn has_waits(&self) -> bool {
        self.waits > 0
    }

    /// An operation of another worker waits for those of clients that are fenced off the export.
    pub(crate) fn wait_for(&mut self, export: usize, from: WorkerId, waiter: OpToken) {
        self.foreign.push((export, from, waiter));
    }

    /// The exports of which operations of other workers wait.
    pub(crate) fn foreign(&self) -> impl Iterator<Item = usize> {
        self.foreign.iter().map(|(export, ..)| *export)
    }

    /// Takes those of other workers, each to be told or put back.
    pub(crate) fn take_foreign(&mut self) -> Vec<(usize, WorkerId, OpToken)> {
        std::mem::take(&mut self.foreign)
    }
}
