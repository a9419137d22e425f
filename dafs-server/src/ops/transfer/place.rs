//! The storage of transfers.
#![allow(clippy::cast_possible_truncation, reason = "lengths within one request, which are of 32 bits")]

use dafs_proto::transport::{Access, OpToken, Provider, RemoteRange};
use dafs_proto::wire::{Stability, Status};

use super::super::write::write_all;
use super::pipeline::{Chunk, Stage};
use super::{Direction, Progress, Server};
use crate::backend::{FsOp, FsReply, FsResult, NowError, Submitted};
use crate::inflight::token_with_slot;

impl Server {
    /// Begins a chunk of a read: from a mapped window of the file, or by storage, into the client's memory or a buffer.
    pub(super) fn begin_read(
        &mut self,
        index: usize,
        token: OpToken,
        at: u64,
        remote: RemoteRange,
    ) -> Progress {
        let call = self.operations[index].call;
        let Some(connection) = self.connections.get(call.connection.index) else { return Progress::Wait };
        // A device sends from memory that is locked: a mapped file would be copied, page fault by page fault.
        let copies_mapped = connection.endpoint.capabilities().provider == Provider::Verbs;
        let Some(transfer) = self.transfer(index) else { return Progress::Wait };
        let (node, offset, len) = (transfer.node, transfer.offset + at, remote.len as usize);
        match self.remote_memory(&call, &remote, Access::REMOTE_WRITE) {
            Ok(Some(memory)) => {
                let Some(transfer) = self.transfer(index) else { return Progress::Wait };
                let chunk = transfer.begin(memory, None, remote);
                transfer.slots[usize::from(chunk.slot)].is_mapped = true;
                self.read_chunk(index, token, chunk);
                return Progress::Continue;
            }
            Ok(None) => {}
            Err(_) => {
                if let Some(transfer) = self.transfer(index) {
                    transfer.pipeline.refused(Status::REMOTE_ACCESS);
                }
                self.end_moot_chunks(index);
                return Progress::Continue;
            }
        }
        if !copies_mapped
            && let Some(window) = self.storage.map(node, offset, len).filter(|window| !window.is_empty())
        {
            let Some(transfer) = self.transfer(index) else { return Progress::Wait };
            let Some(remote) = remote.slice(0, window.len() as u64) else { return Progress::Wait };
            let chunk = transfer.begin(window, None, remote);
            transfer.pipeline.stored(chunk.slot, chunk.len, true);
            return Progress::Continue;
        }
        let Some((memory, buffer)) = self.take_buffer(index, token, at, len) else { return Progress::Wait };
        let Some(remote) = remote.slice(0, memory.len() as u64) else { return Progress::Wait };
        let Some(transfer) = self.transfer(index) else { return Progress::Wait };
        let chunk = transfer.begin(memory, buffer, remote);
        self.read_chunk(index, token, chunk);
        Progress::Continue
    }

    /// Storage fills a chunk's memory.
    fn read_chunk(&mut self, index: usize, token: OpToken, chunk: Chunk) {
        let Some(transfer) = self.transfer(index) else { return };
        let (node, offset) = (transfer.node, transfer.offset + chunk.at);
        let Some(memory) = transfer.memory(chunk.slot, chunk.len) else { return };
        match self.storage.read_now(node, offset, &[memory.span()]) {
            Ok(count) => self.chunk_stored(index, chunk.slot, Ok(FsReply::Count(count))),
            Err(NowError::Failed(status)) => self.chunk_stored(index, chunk.slot, Err(status)),
            Err(NowError::WouldBlock) => {
                let op = FsOp::Read { node, offset, into: vec![memory] };
                self.submit_chunk(index, token, chunk.slot, op);
            }
        }
    }

    /// Gives storage the next chunk of a write that has arrived.
    pub(super) fn store_next(&mut self, index: usize, token: OpToken) -> Progress {
        let Some(transfer) = self.transfer(index).filter(|transfer| transfer.direction == Direction::Write)
        else {
            return Progress::Wait;
        };
        let Some(chunk) = transfer.pipeline.next_store() else { return Progress::Wait };
        let (node, offset) = (transfer.node, transfer.offset + chunk.at);
        transfer.pipeline.storing(chunk.slot);
        let Some(memory) = transfer.memory(chunk.slot, chunk.len) else {
            self.fail_chunk(index, chunk.slot, Status::IO);
            return Progress::Continue;
        };
        match write_all(&mut *self.storage, node, offset, memory.span()) {
            Ok(count) => {
                drop(memory);
                self.chunk_stored(index, chunk.slot, Ok(FsReply::Count(count)));
            }
            Err(NowError::Failed(status)) => self.chunk_stored(index, chunk.slot, Err(status)),
            Err(NowError::WouldBlock) => {
                let stability = Stability::Unstable;
                let op = FsOp::Write { node, offset, from: vec![memory], stability };
                self.submit_chunk(index, token, chunk.slot, op);
            }
        }
        Progress::Continue
    }

    fn submit_chunk(&mut self, index: usize, token: OpToken, slot: u8, op: FsOp) {
        self.stats.storage_waits += 1;
        let call = self.operations[index].call;
        let Ok(identity) = self.handle(&call).map(|open| open.rights.identity.clone()) else {
            return self.chunk_stored(index, slot, Err(Status::BAD_HANDLE));
        };
        match self.storage.submit(token_with_slot(token, slot), &identity, op) {
            Submitted::Pending => {}
            Submitted::Done(result) => self.chunk_stored(index, slot, result),
        }
    }

    /// Storage has moved a chunk, or could not.
    fn chunk_stored(&mut self, index: usize, slot: u8, result: FsResult) {
        let Some(transfer) = self.transfer(index) else { return };
        let count = match result {
            Ok(FsReply::Count(count)) => count as u64,
            Ok(_) => return self.fail_chunk(index, slot, Status::IO),
            Err(status) => return self.fail_chunk(index, slot, status),
        };
        let is_mapped = transfer.slots.get(usize::from(slot)).is_none_or(|passage| passage.is_mapped);
        transfer.pipeline.stored(slot, count, !is_mapped);
        if transfer.pipeline.chunk_in(slot, Stage::Post).is_none() {
            self.end_chunk(index, slot);
        }
        self.end_moot_chunks(index);
    }

    /// Storage has finished a step of a transfer.
    pub(crate) fn transfer_on_storage(&mut self, index: usize, slot: u8, result: FsResult) {
        let token = self.token_of(index);
        let Some(transfer) = self.transfer(index) else { return };
        if transfer.is_final {
            return self.finish_transfer(index, result);
        }
        self.chunk_stored(index, slot, result);
        let broken = self.transfer(index).is_some_and(|transfer| transfer.is_broken);
        let in_storage = self.transfer(index).is_some_and(|transfer| transfer.in_storage());
        match (broken, in_storage) {
            (true, false) => self.restart_or_abandon(index, token),
            (true, true) => {}
            (false, _) => self.advance(token),
        }
    }

    /// A step of a transfer that is nobody's any more is finished; `true` when storage has let go of all its memory.
    pub(crate) fn forgotten_transfer_on_storage(&mut self, index: usize, slot: u8) -> bool {
        let Some(transfer) = self.transfer(index) else { return true };
        transfer.is_final = false;
        transfer.pipeline.failed(slot, Status::CANCELLED);
        !transfer.in_storage()
    }
}
