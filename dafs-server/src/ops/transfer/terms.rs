//! Into what chunks a transfer is cut: by what the connection can move, by what was learned, smaller beside others.

use crate::shared::settings::Pipelining;
use crate::worker::Worker;
use crate::worker::flight::Call;
use crate::worker::sched::CONTENDED_CHUNK_SIZE;

use crate::worker::flight::transfer::{Direction, Transfer};
use crate::worker::requests::work::Context;
use crate::worker::sched::tuner::Trial;

/// The least that is worth a step of its own, bytes.
const CHUNK_SIZE_MIN: u64 = 128 << 10;

impl Worker {
    /// How a transfer on this connection is cut, and the largest chunk that it could have; `None` when the connection is gone.
    pub(crate) fn pipelining(&self, call: &Call) -> Option<(Pipelining, u64)> {
        let connection = self.connections.get(call.connection.index).filter(|c| c.key == call.connection)?;
        let terms = self.listeners.get(connection.listener)?.pipelining;
        let size_max = u64::from(connection.endpoint.capabilities().rdma_size_max);
        let size_max = size_max.min(self.buffers.largest() as u64);
        Some((Pipelining { chunk_size: terms.chunk_size.min(size_max), ..terms }, size_max))
    }

    /// The size of the chunks of a transfer of `len` bytes, and what to call it where it is tried out.
    pub(crate) fn choose_chunk(
        &mut self,
        call: &Call,
        (terms, size_max): &(Pipelining, u64),
        len: u64,
    ) -> (u64, Option<Trial>) {
        let listener = self.connections.get(call.connection.index).map(|connection| connection.listener);
        let alone = !self.turns.is_contended(self.now);
        let tuner = listener.filter(|_| alone).and_then(|listener| self.tuners.get_mut(listener));
        let Some(tuner) = tuner.filter(|_| !terms.is_set) else { return (terms.chunk_size, None) };
        let (size, trial) = tuner.choose(len);
        // A transfer of a few chunks has nothing to overlap with fewer.
        let part = (len / terms.depth as u64).next_multiple_of(CHUNK_SIZE_MIN).max(CHUNK_SIZE_MIN);
        let size_max = part.min(*size_max);
        (size.min(size_max), trial.filter(|_| size <= size_max))
    }
}

impl Transfer {
    /// Bytes of its next chunk at most. Others may have come since it began, or gone: an append alone is cut once, for all its buffers
    /// were lent then.
    pub(super) fn chunk_max(&mut self, at: &Context<'_>) -> u64 {
        let size_max = self.chunk_size_max;
        if !at.worker.is_contended()
            || size_max <= CONTENDED_CHUNK_SIZE
            || self.direction == Direction::Append
        {
            return size_max;
        }
        // Its time tells nothing of its chunks.
        self.timed = None;
        CONTENDED_CHUNK_SIZE
    }

    /// It has ended well; where it was to be timed, and storage had to be waited for, that tells something.
    pub(super) fn tell_tuner(&self, at: &mut Context<'_>, len: u64) {
        let Some((began, trial)) = self.trial() else { return };
        let nanos = at.worker.now.since(began).as_nanos();
        if let Some(listener) = at.connection().map(|connection| connection.listener)
            && let Some(tuner) = at.worker.tuners.get_mut(listener)
        {
            tuner.on_timed(trial, len, nanos.try_into().unwrap_or(u64::MAX));
        }
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
