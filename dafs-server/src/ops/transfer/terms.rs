//! Into what chunks a transfer is cut: by what the connection can move, smaller beside others.

use crate::worker::sched::CONTENDED_CHUNK_SIZE;

use crate::worker::flight::transfer::{Transfer, TransferKind};
use crate::worker::requests::work::Context;

impl Transfer {
    /// Bytes of its next chunk at most. Others may have come since it began, or gone: an append alone is cut once, for all its buffers
    /// were lent then.
    pub(super) fn chunk_max(&self, at: &Context<'_>) -> u64 {
        let size_max = self.chunk_size_max;
        if !at.is_contended() || size_max <= CONTENDED_CHUNK_SIZE || self.request.kind == TransferKind::Append
        {
            return size_max;
        }
        CONTENDED_CHUNK_SIZE
    }

    /// Counts a chunk that has begun, beside others of the transfer or alone.
    pub(super) fn count_chunk(&self, at: &mut Context<'_>, overlaps: bool) {
        if let Some(listener) = at.connection().map(|connection| connection.listener)
            && let Some(counts) = at.counted().pipelines.get_mut(listener)
        {
            counts.chunks += 1;
            counts.overlaps += u64::from(overlaps);
        }
    }
}
