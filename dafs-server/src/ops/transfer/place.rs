//! The storage of transfers.

use std::ops::Range;

use dafs_proto::transport::{Access, LocalSegments, MemoryRef, RemoteRange};
use dafs_proto::wire::{Stability, Status};
use smallvec::smallvec;

use super::super::write::write_all;
use super::Progress;
use crate::storage::{FsOp, FsReply, FsResult, NowError};
use crate::worker::flight::pipeline::{Chunk, Stage};
use crate::worker::flight::transfer::{Passage, Transfer, TransferKind};
use crate::worker::flight::{own_memory, token_with_slot};
use crate::worker::requests::work::Context;

impl Transfer {
    /// Begins a chunk of a read: from a mapped window of the file, or by storage, into the client's memory or a buffer. False where that
    /// has to wait.
    pub(super) fn begin_read(
        &mut self,
        at: &mut Context<'_>,
        from: u64,
        remote: RemoteRange,
    ) -> Result<bool, Status> {
        let Some(connection) = at.connection() else { return Ok(false) };
        let capabilities = connection.endpoint.capabilities();
        let copies_mapped = capabilities.copies_faulting;
        let parts_max = usize::from(capabilities.segments_max);
        let (node, offset, len) = (self.request.node, self.request.offset + from, remote.len as usize);
        self.check_locks(at, offset..offset + remote.len)?;
        if let Some(memory) = at.remote_memory(&remote, Access::REMOTE_WRITE)? {
            return self.read_mapped(at, from, memory, remote);
        }
        let window = match copies_mapped || !at.trusts_mapped_files() {
            true => LocalSegments::new(),
            false => {
                let at_once = at.at_once(len);
                at.storage().map(node, offset, at_once, parts_max)
            }
        };
        let mapped: usize = window.iter().map(MemoryRef::len).sum();
        if mapped > 0 {
            let remote = remote.slice(0, mapped as u64).ok_or(Status::INVALID)?;
            let passage = Passage { memory: window, buffer: None, remote, is_mapped: false };
            let chunk = self.pipeline.begin(remote.len, passage);
            self.pipeline.stored(chunk.slot, chunk.len, true);
            return Ok(true);
        }
        let Some((memory, buffer)) = self.take_buffer(at, from, len) else { return Ok(false) };
        let remote = remote.slice(0, memory.len() as u64).ok_or(Status::INVALID)?;
        let passage = Passage { memory: smallvec![memory], buffer, remote, is_mapped: false };
        let chunk = self.pipeline.begin(remote.len, passage);
        self.read_chunk(at, chunk);
        Ok(true)
    }

    /// The file was truncated since a chunk of it was mapped: storage reads what it has now.
    #[cold]
    pub(super) fn read_again(&mut self, at: &mut Context<'_>, chunk: Chunk) -> Progress {
        at.distrust_mapped_files();
        let Ok(memory) = own_memory(chunk.len as usize) else {
            self.fail_chunk(at, chunk.slot, Status::NO_MEMORY);
            return Progress::Continue;
        };
        if let Some(passage) = self.pipeline.passage_mut(chunk.slot) {
            passage.memory = smallvec![memory];
        }
        self.pipeline.storing(chunk.slot);
        self.read_chunk(at, chunk);
        Progress::Continue
    }

    /// Begins a chunk of a read into the client's own memory: no more than a turn's of what is at hand.
    fn read_mapped(
        &mut self,
        at: &mut Context<'_>,
        from: u64,
        memory: MemoryRef,
        remote: RemoteRange,
    ) -> Result<bool, Status> {
        let at_once = at.at_once(memory.len());
        let (node, offset) = (self.request.node, self.request.offset + from);
        let result = match memory.span().slice(0, at_once) {
            Some(span) => at.storage().read_now(node, offset, &[span]),
            None => Err(NowError::Failed(Status::IO)),
        };
        let waits = matches!(result, Err(NowError::WouldBlock));
        let len = if waits { memory.len() } else { at_once };
        let remote = remote.slice(0, len as u64).ok_or(Status::INVALID)?;
        let passage = Passage { memory: smallvec![memory.clone()], buffer: None, remote, is_mapped: true };
        let chunk = self.pipeline.begin(remote.len, passage);
        self.on_tried(at, chunk.slot, result, || FsOp::Read { node, offset, into: vec![memory] });
        Ok(true)
    }

    /// A session that has enough with storage waits until some of it comes back.
    pub(super) fn must_wait_for_storage(&mut self, at: &mut Context<'_>, kind: TransferKind) -> bool {
        if self.request.kind == kind && !self.waits.for_storage {
            self.waits.for_storage = at.waits_for_storage_room();
        }
        self.request.kind == kind && self.waits.for_storage
    }

    /// Storage fills a chunk's memory.
    fn read_chunk(&mut self, at: &mut Context<'_>, chunk: Chunk) {
        let (node, offset) = (self.request.node, self.request.offset + chunk.at);
        let Some(memory) = self.memory(chunk.slot, chunk.len) else { return };
        let result = at.storage().read_now(node, offset, &[memory.span()]);
        self.on_tried(at, chunk.slot, result, || FsOp::Read { node, offset, into: vec![memory] });
    }

    /// Gives storage the next chunk of a write that has arrived.
    pub(super) fn store_next(&mut self, at: &mut Context<'_>) -> Progress {
        if self.request.kind != TransferKind::Write {
            return Progress::Wait;
        }
        let Some(chunk) = self.pipeline.next_store() else { return Progress::Wait };
        if self.must_wait_for_storage(at, TransferKind::Write) {
            return Progress::Wait;
        }
        let (node, offset) = (self.request.node, self.request.offset + chunk.at);
        self.pipeline.storing(chunk.slot);
        if let Err(status) = self.check_locks(at, offset..offset + chunk.len) {
            self.fail_chunk(at, chunk.slot, status);
            return Progress::Continue;
        }
        let Some(memory) = self.memory(chunk.slot, chunk.len) else {
            self.fail_chunk(at, chunk.slot, Status::IO);
            return Progress::Continue;
        };
        let result = write_all(at.storage(), node, offset, memory.span());
        let stability = Stability::Unstable;
        self.on_tried(at, chunk.slot, result, || FsOp::Write { node, offset, from: vec![memory], stability });
        Progress::Continue
    }

    /// A mandatory lock that was granted since the transfer began keeps the rest of it out.
    #[inline]
    pub(super) fn check_locks(&self, at: &Context<'_>, range: Range<u64>) -> Result<(), Status> {
        at.check_locks(self.request.node, range, self.request.kind != TransferKind::Read)
    }

    /// Storage was asked to move a chunk without waiting; where it has to wait, it is given `later`.
    fn on_tried(
        &mut self,
        at: &mut Context<'_>,
        slot: u8,
        result: Result<usize, NowError>,
        later: impl FnOnce() -> FsOp,
    ) {
        match result {
            Ok(count) => {
                at.turn().on_moved(count);
                self.chunk_stored(at, slot, Ok(FsReply::Count(count)));
            }
            Err(NowError::Failed(status)) => self.chunk_stored(at, slot, Err(status)),
            Err(NowError::WouldBlock) => self.submit_chunk(at, slot, later()),
        }
    }

    fn submit_chunk(&mut self, at: &mut Context<'_>, slot: u8, op: FsOp) {
        at.counted().storage_waits += 1;
        if let Some(result) = at.submit(token_with_slot(at.token, slot), op) {
            self.chunk_stored(at, slot, result);
        } else if let Some(chunk) = self.pipeline.chunk_in(slot, Stage::Storage) {
            at.enters_storage(chunk.len);
        }
    }

    /// Storage has moved a chunk, or could not.
    pub(super) fn chunk_stored(&mut self, at: &mut Context<'_>, slot: u8, result: FsResult) {
        let count = match result {
            Ok(FsReply::Count(count)) => count as u64,
            Ok(_) => return self.fail_chunk(at, slot, Status::IO),
            Err(status) => return self.fail_chunk(at, slot, status),
        };
        let is_mapped = self.pipeline.passage(slot).is_none_or(|passage| passage.is_mapped);
        let ended = self.pipeline.stored(slot, count, !is_mapped);
        self.end_chunks(at, ended);
    }
}
