//! The RDMA of transfers.

use dafs_proto::transport::{PostError, Posted};
use dafs_proto::wire::Status;

use super::Progress;
use crate::worker::flight::pipeline::{Chunk, Stage};
use crate::worker::flight::token_with_slot;
use crate::worker::flight::transfer::{Transfer, TransferKind};
use crate::worker::requests::work::Context;

impl Transfer {
    /// Posts the RDMA of the first chunk that is ready for it.
    pub(super) fn post_next(&mut self, at: &mut Context<'_>) -> Progress {
        match self.pipeline.next_post().filter(|_| !self.waits.for_post) {
            Some(chunk) => self.post(at, chunk),
            None => Progress::Wait,
        }
    }

    fn post(&mut self, at: &mut Context<'_>, chunk: Chunk) -> Progress {
        let local = self.segments(chunk.slot, chunk.len);
        let remote = self.pipeline.passage(chunk.slot).map(|passage| passage.remote);
        let (Some(local), Some(remote)) = (local, remote.and_then(|remote| remote.slice(0, chunk.len)))
        else {
            self.fail_chunk(at, chunk.slot, Status::IO);
            return Progress::Continue;
        };
        // A window of a file is no buffer: nobody waits for it to be free again.
        let is_window = self.is_window(chunk.slot);
        let (whole, part) = (at.token, token_with_slot(at.token, chunk.slot));
        let Some(connection) = at.connection() else { return Progress::Wait };
        let is_watched = is_window && connection.endpoint.capabilities().faults_late;
        // Of a window that nobody waits for, the slot is another chunk's by the time it has left.
        let token = if is_window && !is_watched { whole } else { part };
        connection.dirty = true;
        let posted = if self.request.kind == TransferKind::Read {
            connection.endpoint.rdma_write(token, local, remote, None)
        } else {
            connection.endpoint.rdma_read(token, local, remote)
        };
        match posted {
            Ok(posted) => {
                at.on_posted(u32::from(posted == Posted::Pending));
                match is_watched {
                    true => self.pipeline.posted_window(chunk.slot),
                    false => self.pipeline.posted(chunk.slot),
                }
                if posted == Posted::Done {
                    at.turn().on_moved(usize::try_from(chunk.len).unwrap_or(usize::MAX));
                }
                if posted == Posted::Done || (is_window && !is_watched) {
                    self.passage_moved(at, chunk.slot);
                }
                Progress::Continue
            }
            Err(PostError::Full) => {
                at.wait_for_post_room();
                self.waits.for_post = true;
                Progress::Wait
            }
            Err(PostError::Closed) => Progress::Wait,
            Err(PostError::Faulted) => self.read_again(at, chunk),
            Err(PostError::Invalid(why)) => {
                tracing::debug!(why, "RDMA refused");
                self.fail_chunk(at, chunk.slot, Status::REMOTE_ACCESS);
                Progress::Continue
            }
        }
    }

    fn is_window(&self, slot: u8) -> bool {
        self.request.kind == TransferKind::Read
            && self.pipeline.passage(slot).is_some_and(|passage| passage.buffer.is_none())
    }

    /// RDMA of a chunk is over: a read's buffer is free, a write's data is here.
    pub(super) fn passage_moved(&mut self, at: &mut Context<'_>, slot: u8) {
        let is_in = |stage| self.pipeline.chunk_in(slot, stage).is_some();
        if !is_in(Stage::Rdma) && !is_in(Stage::Window) {
            return;
        }
        let ended = self.pipeline.moved(slot);
        self.end_chunks(at, ended);
    }
}
