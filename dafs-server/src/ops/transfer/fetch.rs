//! The RDMA of transfers.
#![allow(clippy::cast_possible_truncation, reason = "lengths within one request, which are of 32 bits")]

use dafs_proto::transport::{OpToken, PostError, Posted, TransportError};
use dafs_proto::wire::Status;

use super::{Progress, Worker};
use crate::worker::flight::pipeline::{Chunk, Stage};
use crate::worker::flight::transfer::Direction;
use crate::worker::flight::{State, token_with_slot};
use crate::worker::ids::ConnectionKey;

impl Worker {
    /// Posts the RDMA of the first chunk that is ready for it.
    pub(super) fn post_next(&mut self, index: usize, token: OpToken) -> Progress {
        let Some(transfer) = self.transfer(index) else { return Progress::Wait };
        if transfer.waits_for_post {
            return Progress::Wait;
        }
        match transfer.pipeline.next_post() {
            Some(chunk) => self.post(index, token, chunk),
            None => Progress::Wait,
        }
    }

    fn post(&mut self, index: usize, token: OpToken, chunk: Chunk) -> Progress {
        let call = self.operations[index].call;
        let Some(transfer) = self.transfer(index) else { return Progress::Wait };
        let reads = transfer.direction == Direction::Read;
        let local = transfer.segments(chunk.slot, chunk.len);
        let remote = transfer.slots.get(usize::from(chunk.slot)).map(|passage| passage.remote);
        let (Some(local), Some(remote)) = (local, remote.and_then(|remote| remote.slice(0, chunk.len)))
        else {
            self.fail_chunk(index, chunk.slot, Status::IO);
            return Progress::Continue;
        };
        let Some(connection) =
            self.connections.get_mut(call.connection.index).filter(|c| c.key == call.connection)
        else {
            return Progress::Wait;
        };
        connection.dirty = true;
        // A window of a file is no buffer: nobody waits for it to be free again.
        let is_window = self.is_window(index, chunk.slot);
        let token = if is_window { token } else { token_with_slot(token, chunk.slot) };
        let Some(connection) = self.connections.get_mut(call.connection.index) else { return Progress::Wait };
        let posted = if reads {
            connection.endpoint.rdma_write(token, local, remote, None)
        } else {
            connection.endpoint.rdma_read(token, local, remote)
        };
        match posted {
            Ok(posted) => {
                let pending = u32::from(posted == Posted::Pending);
                connection.rdma_pending += pending;
                self.operations[index].rdma_pending += pending;
                if let Some(transfer) = self.transfer(index) {
                    transfer.pipeline.posted(chunk.slot);
                }
                if posted == Posted::Done {
                    self.turns.on_moved(chunk.len as usize);
                }
                if posted == Posted::Done || is_window {
                    self.passage_moved(index, chunk.slot);
                }
                Progress::Continue
            }
            Err(PostError::Full) => {
                connection.post_waiters.push_back(index);
                if let Some(transfer) = self.transfer(index) {
                    transfer.waits_for_post = true;
                }
                Progress::Wait
            }
            Err(PostError::Closed) => Progress::Wait,
            Err(PostError::Faulted) => self.read_again(index, token, chunk),
            Err(PostError::Invalid(why)) => {
                tracing::debug!(why, "RDMA refused");
                self.fail_chunk(index, chunk.slot, Status::REMOTE_ACCESS);
                Progress::Continue
            }
        }
    }

    fn is_window(&mut self, index: usize, slot: u8) -> bool {
        self.transfer(index)
            .filter(|transfer| transfer.direction == Direction::Read)
            .and_then(|transfer| transfer.slots.get(usize::from(slot)))
            .is_some_and(|passage| passage.buffer.is_none())
    }

    /// RDMA of a chunk is over: a read's buffer is free, a write's data is here.
    fn passage_moved(&mut self, index: usize, slot: u8) {
        let Some(transfer) = self.transfer(index) else { return };
        if transfer.pipeline.chunk_in(slot, Stage::Rdma).is_none() {
            return;
        }
        transfer.pipeline.moved(slot);
        if transfer.direction == Direction::Write {
            self.end_moot_chunks(index);
        } else {
            self.end_chunk(index, slot);
        }
    }

    /// The provider has finished RDMA of a chunk.
    pub(crate) fn transfer_on_rdma(&mut self, index: usize, slot: u8, result: Result<(), TransportError>) {
        let token = self.token_of(index);
        // Where it failed the connection is broken: closing it abandons the transfer.
        if result.is_ok() {
            self.passage_moved(index, slot);
            self.advance(token);
        }
    }

    /// The provider has room again for a post that found none.
    pub(crate) fn resume_post(&mut self, index: usize, key: ConnectionKey) {
        if self.operations.get(index).is_none_or(|operation| operation.call.connection != key)
            || self.resume_lane_frame(index)
        {
            return;
        }
        let token = self.token_of(index);
        if let State::List(_) = self.operations[index].state {
            return self.resume_list_post(index);
        }
        let Some(transfer) = self.transfer(index).filter(|transfer| transfer.waits_for_post) else { return };
        transfer.waits_for_post = false;
        self.advance(token);
    }
}
