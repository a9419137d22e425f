//! Into what chunks a transfer is cut: by what the connection can move, smaller beside others.

use crate::shared::settings::Pipelining;
use crate::worker::Worker;
use crate::worker::flight::Call;
use crate::worker::sched::CONTENDED_CHUNK_SIZE;

use crate::worker::flight::transfer::{Transfer, TransferKind};
use crate::worker::requests::work::Context;

/// The least that is worth a step of its own, bytes.
const CHUNK_SIZE_MIN: u64 = 128 << 10;

impl Worker {
    /// How a transfer of `len` bytes on this connection is cut; `None` when the connection is gone.
    pub(crate) fn pipelining(&self, call: &Call, len: u64) -> Option<Pipelining> {
        let connection = self.connections.find(call.connection)?;
        let terms = self.connections.listener_of(connection).pipelining;
        let size_max = u64::from(connection.endpoint.capabilities().rdma_size_max);
        let size_max = size_max.min(self.buffers.largest() as u64);
        Some(Pipelining { chunk_size: chunk_size(terms, len).min(size_max), ..terms })
    }
}

/// Bytes of the chunks of a transfer of `len` bytes, where nothing else limits them.
fn chunk_size(terms: Pipelining, len: u64) -> u64 {
    if terms.is_set {
        return terms.chunk_size;
    }
    // A transfer of a few chunks has nothing to overlap with fewer.
    let part = (len / terms.depth as u64).next_multiple_of(CHUNK_SIZE_MIN).max(CHUNK_SIZE_MIN);
    terms.chunk_size.min(part)
}

impl Transfer {
    /// Bytes of its next chunk at most. Others may have come since it began, or gone: an append alone is cut once, for all its buffers
    /// were lent then.
    pub(super) fn chunk_max(&self, at: &Context<'_>) -> u64 {
        let size_max = self.chunk_size_max;
        if !at.worker.is_contended() || size_max <= CONTENDED_CHUNK_SIZE || self.kind == TransferKind::Append
        {
            return size_max;
        }
        CONTENDED_CHUNK_SIZE
    }

    /// Counts a chunk that has begun, beside others of the transfer or alone.
    pub(super) fn count_chunk(&self, at: &mut Context<'_>, overlaps: bool) {
        if let Some(listener) = at.connection().map(|connection| connection.listener)
            && let Some(counts) = at.worker.stats.counted.pipelines.get_mut(listener)
        {
            counts.chunks += 1;
            counts.overlaps += u64::from(overlaps);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const KIB: u64 = 1 << 10;

    // [BUF-13] [BUF-48]
    #[test]
    fn chunk_is_equal_part_rounded_to_128_kib_up_to_256() {
        let usual = Pipelining { chunk_size: 256 * KIB, depth: 4, is_set: false };
        for (len, size) in
            [(1, 128), (512 * KIB, 128), (512 * KIB + 4, 256), (1024 * KIB, 256), (1 << 40, 256)]
        {
            assert_eq!(chunk_size(usual, len), size * KIB, "{len}");
            assert_eq!(chunk_size(Pipelining { is_set: true, ..usual }, len), 256 * KIB, "{len}");
        }
    }
}
