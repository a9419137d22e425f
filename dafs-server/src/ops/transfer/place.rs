//! The storage of transfers.
#![allow(clippy::cast_possible_truncation, reason = "lengths within one request, which are of 32 bits")]

use std::sync::Arc;

use dafs_proto::transport::{Access, HeapMemory, LocalSegments, MemoryRef, OpToken, Provider, RemoteRange};
use dafs_proto::wire::{Stability, Status};
use smallvec::smallvec;

use super::super::write::write_all;
use super::{Progress, Worker};
use crate::storage::{FsOp, FsReply, FsResult, NowError, Submitted};
use crate::worker::flight::answer::Problem;
use crate::worker::flight::pipeline::{Chunk, Stage};
use crate::worker::flight::token_with_slot;
use crate::worker::flight::transfer::Direction;
use crate::worker::sched::CONTENDED_SIZE;

impl Worker {
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
        let capabilities = connection.endpoint.capabilities();
        let copies_mapped = capabilities.provider == Provider::Verbs;
        let parts_max = usize::from(capabilities.segments_max);
        let Some(transfer) = self.transfer(index) else { return Progress::Wait };
        let (node, offset, len) = (transfer.node, transfer.offset + at, remote.len as usize);
        match self.remote_memory(&call, &remote, Access::REMOTE_WRITE) {
            Ok(Some(memory)) => {
                return self.read_mapped(index, token, memory, remote);
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
        let window = match copies_mapped || !self.trusts_mapped_files(call.session) {
            true => LocalSegments::new(),
            false => {
                let at_once = self.at_once(len);
                self.storage.map(node, offset, at_once, parts_max)
            }
        };
        let mapped: usize = window.iter().map(MemoryRef::len).sum();
        if mapped > 0 {
            let Some(transfer) = self.transfer(index) else { return Progress::Wait };
            let Some(remote) = remote.slice(0, mapped as u64) else { return Progress::Wait };
            let chunk = transfer.begin(window, None, remote);
            transfer.pipeline.stored(chunk.slot, chunk.len, true);
            return Progress::Continue;
        }
        let Some((memory, buffer)) = self.take_buffer(index, token, at, len) else { return Progress::Wait };
        let Some(remote) = remote.slice(0, memory.len() as u64) else { return Progress::Wait };
        let Some(transfer) = self.transfer(index) else { return Progress::Wait };
        let chunk = transfer.begin(smallvec![memory], buffer, remote);
        self.read_chunk(index, token, chunk);
        Progress::Continue
    }

    /// The file was truncated since a chunk of it was mapped: storage reads what it has now.
    #[cold]
    pub(super) fn read_again(&mut self, index: usize, token: OpToken, chunk: Chunk) -> Progress {
        self.distrust_mapped_files(self.operations[index].call.session);
        let memory = HeapMemory::allocate(chunk.len as usize).map(|memory| MemoryRef::new(Arc::new(memory)));
        let Some(memory) = memory.and_then(|memory| memory.slice(0, chunk.len as usize)) else {
            self.fail_chunk(index, chunk.slot, Status::NO_MEMORY);
            return Progress::Continue;
        };
        let Some(transfer) = self.transfer(index) else { return Progress::Wait };
        if let Some(passage) = transfer.slots.get_mut(usize::from(chunk.slot)) {
            passage.memory = smallvec![memory];
        }
        transfer.pipeline.storing(chunk.slot);
        self.read_chunk(index, token, chunk);
        Progress::Continue
    }

    /// Begins a chunk of a read into the client's own memory: no more than a turn's of what is at hand.
    fn read_mapped(
        &mut self,
        index: usize,
        token: OpToken,
        memory: MemoryRef,
        remote: RemoteRange,
    ) -> Progress {
        let at_once = self.at_once(memory.len());
        let Some(transfer) = self.transfer(index) else { return Progress::Wait };
        let Some((at, _)) = transfer.pipeline.next() else { return Progress::Wait };
        let (node, offset) = (transfer.node, transfer.offset + at);
        let result = match memory.span().slice(0, at_once) {
            Some(span) => self.storage.read_now(node, offset, &[span]),
            None => Err(NowError::Failed(Status::IO)),
        };
        let waits = matches!(result, Err(NowError::WouldBlock));
        let len = if waits { memory.len() } else { at_once };
        let Some(remote) = remote.slice(0, len as u64) else { return Progress::Wait };
        let Some(transfer) = self.transfer(index) else { return Progress::Wait };
        let chunk = transfer.begin(smallvec![memory.clone()], None, remote);
        transfer.slots[usize::from(chunk.slot)].is_mapped = true;
        self.on_tried(index, token, chunk.slot, result, || FsOp::Read { node, offset, into: vec![memory] });
        Progress::Continue
    }

    /// How much of so many bytes that are at hand is moved in one step.
    fn at_once(&self, len: usize) -> usize {
        if self.turns.is_contended(self.now) { len.min(CONTENDED_SIZE) } else { len }
    }

    /// The client's own memory as what a write takes its data from, where the provider maps it.
    pub(super) fn mapped_source(
        &mut self,
        index: usize,
        remote: &RemoteRange,
    ) -> Result<Option<MemoryRef>, Problem> {
        let call = self.operations[index].call;
        match self.transfer(index).map(|transfer| transfer.direction) {
            Some(Direction::Write) => self.remote_memory(&call, remote, Access::REMOTE_READ),
            _ => Ok(None),
        }
    }

    /// A session that has enough with storage waits until some of it comes back.
    pub(super) fn must_wait_for_storage(
        &mut self,
        index: usize,
        token: OpToken,
        direction: Direction,
    ) -> bool {
        let session = self.operations[index].call.session;
        let Some(transfer) = self.transfer(index).filter(|transfer| transfer.direction == direction) else {
            return false;
        };
        if transfer.waits_for_storage {
            return true;
        }
        let waits = self.waits_for_room(session, token);
        if let Some(transfer) = self.transfer(index).filter(|_| waits) {
            transfer.waits_for_storage = true;
        }
        waits
    }

    /// Storage fills a chunk's memory.
    fn read_chunk(&mut self, index: usize, token: OpToken, chunk: Chunk) {
        let Some(transfer) = self.transfer(index) else { return };
        let (node, offset) = (transfer.node, transfer.offset + chunk.at);
        let Some(memory) = transfer.memory(chunk.slot, chunk.len) else { return };
        let result = self.storage.read_now(node, offset, &[memory.span()]);
        self.on_tried(index, token, chunk.slot, result, || FsOp::Read { node, offset, into: vec![memory] });
    }

    /// Gives storage the next chunk of a write that has arrived.
    pub(super) fn store_next(&mut self, index: usize, token: OpToken) -> Progress {
        let Some(transfer) = self.transfer(index).filter(|transfer| transfer.direction == Direction::Write)
        else {
            return Progress::Wait;
        };
        if transfer.pipeline.next_store().is_none()
            || self.must_wait_for_storage(index, token, Direction::Write)
        {
            return Progress::Wait;
        }
        let Some(transfer) = self.transfer(index) else { return Progress::Wait };
        let Some(chunk) = transfer.pipeline.next_store() else { return Progress::Wait };
        let (node, offset) = (transfer.node, transfer.offset + chunk.at);
        transfer.pipeline.storing(chunk.slot);
        let Some(memory) = transfer.memory(chunk.slot, chunk.len) else {
            self.fail_chunk(index, chunk.slot, Status::IO);
            return Progress::Continue;
        };
        let result = write_all(&mut *self.storage, node, offset, memory.span());
        let stability = Stability::Unstable;
        self.on_tried(index, token, chunk.slot, result, || FsOp::Write {
            node,
            offset,
            from: vec![memory],
            stability,
        });
        Progress::Continue
    }

    /// Storage was asked to move a chunk without waiting; where it has to wait, it is given `later`.
    fn on_tried(
        &mut self,
        index: usize,
        token: OpToken,
        slot: u8,
        result: Result<usize, NowError>,
        later: impl FnOnce() -> FsOp,
    ) {
        match result {
            Ok(count) => {
                self.turns.on_moved(count);
                self.chunk_stored(index, slot, Ok(FsReply::Count(count)));
            }
            Err(NowError::Failed(status)) => self.chunk_stored(index, slot, Err(status)),
            Err(NowError::WouldBlock) => self.submit_chunk(index, token, slot, later()),
        }
    }

    fn submit_chunk(&mut self, index: usize, token: OpToken, slot: u8, op: FsOp) {
        self.stats.storage_waits += 1;
        if let Some(transfer) = self.transfer(index) {
            transfer.waited = true;
        }
        let call = self.operations[index].call;
        let Ok(identity) = self.handle(&call).map(|open| open.rights.identity.clone()) else {
            return self.chunk_stored(index, slot, Err(Status::BAD_HANDLE));
        };
        let size = self.transfer(index).and_then(|transfer| transfer.pipeline.chunk_in(slot, Stage::Storage));
        match self.storage.submit(token_with_slot(token, slot), &identity, op) {
            Submitted::Pending => {
                if let Some(chunk) = size {
                    self.enters_storage(call.session, chunk.len);
                }
            }
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
        let session = self.operations[index].call.session;
        let Some(transfer) = self.transfer(index) else { return };
        if transfer.is_final {
            return self.finish_transfer(index, result);
        }
        self.left_storage(index, slot);
        self.chunk_stored(index, slot, result);
        let broken = self.transfer(index).is_some_and(|transfer| transfer.is_broken);
        let in_storage = self.transfer(index).is_some_and(|transfer| transfer.in_storage());
        match (broken, in_storage) {
            (true, false) => self.restart_or_abandon(index, token),
            (true, true) => {}
            (false, _) => self.advance(token),
        }
        self.resume_storage_waiters_of(session);
    }

    /// A chunk is with storage no longer.
    fn left_storage(&mut self, index: usize, slot: u8) {
        let session = self.operations[index].call.session;
        let chunk =
            self.transfer(index).and_then(|transfer| transfer.pipeline.chunk_in(slot, Stage::Storage));
        if let Some(chunk) = chunk {
            self.leaves_storage(session, chunk.len);
        }
    }

    /// A step of a transfer that is nobody's any more is finished; `true` when storage has let go of all its memory.
    pub(crate) fn forgotten_transfer_on_storage(&mut self, index: usize, slot: u8) -> bool {
        self.left_storage(index, slot);
        let Some(transfer) = self.transfer(index) else { return true };
        transfer.is_final = false;
        transfer.pipeline.failed(slot, Status::CANCELLED);
        let is_free = !transfer.in_storage();
        self.resume_storage_waiters_of(self.operations[index].call.session);
        is_free
    }
}
