//! Batches: many independent reads and writes in one request. Each operation starts like a separate request, some at a time, and puts its
//! result into the batch. The batch is answered when all have ended.
#![allow(clippy::cast_possible_truncation, reason = "counts within one request, which are of 32 bits")]

mod inline;
mod notices;

use dafs_proto::transport::{Access, OpToken};
use dafs_proto::wire::{
    BATCH_RESULT_SIZE, BatchError, BatchFlags, BatchLimits, BatchOperation, BatchRequest, BatchResult,
    CHAIN_HANDLE, Header, Method, Opcode, Stability, Status, decode_batch,
};

use super::Worker;
use super::write::write_all;
use crate::storage::NowError;
use crate::worker::connections::memory::with_remote_memory;
use crate::worker::flight::Call;
use crate::worker::flight::answer::{Payload, Problem, Served};
use crate::worker::flight::batch::{Batch, BatchPlace};
use crate::worker::flight::transfer::{TransferKind, range};
use crate::worker::operations::WaitsFor;

/// Operations of a session's batches under way at once, beyond one of each: enough for a disk to sort them, few enough to leave buffers
/// to others.
const RUNNING_MAX: u32 = 64;

impl Worker {
    /// Executes a batch.
    pub(crate) fn batch(&mut self, call: &Call, body: &[u8], payload: Payload<'_>) -> Served {
        let request = BatchRequest::decode(body)?;
        let reply_max = self.connections.send_payload_max(call.connection);
        let limits = BatchLimits { len_max: self.shared.settings.transfer_size_max, reply_max };
        let results_max = reply_max / BATCH_RESULT_SIZE;
        let operations = match request.described_len(call.header.payload_len as usize) {
            Err(error) => Err(error),
            Ok(_) if request.operations as usize > results_max => {
                Err(BatchError::TooMany { found: request.operations, limit: results_max })
            }
            Ok(len) => {
                // A private copy of what describes the operations.
                let described = self.connections.payload_of(call, payload).slice(0, len);
                let described = described.map(|described| described.to_vec()).unwrap_or_default();
                decode_batch(&described, &request, &limits).map(|operations| (operations, len))
            }
        };
        let (operations, described_len) = operations.map_err(Problem::refused(Status::INVALID))?;
        if operations.is_empty() && request.flags.contains(BatchFlags::EXPEDITE) {
            self.expedite_batches(call.session);
        }
        let data = self.inline_data(call, &operations, (payload, described_len))?;
        let before = self.sessions.done_before(call, &operations);
        let mut batch = Batch { data, ..Batch::new(operations, &request) };
        let now = self.now;
        for (index, effect) in before.into_iter().flatten().enumerate() {
            effect.into_iter().for_each(|effect| batch.resume(index, effect, now));
        }
        self.operations.note_window(batch.window_end(), self.now);
        let token = self.park(*call, WaitsFor::Batch(Box::new(batch)));
        self.go_on_with_batch(token);
        Ok(())
    }

    /// An operation of a batch as a request of its own.
    fn part_call(call: &Call, operation: &BatchOperation) -> Call {
        let handle = if operation.handle == CHAIN_HANDLE { call.header.handle } else { operation.handle };
        let opcode = if operation.write { Opcode::WriteList } else { Opcode::ReadList };
        Call { header: Header { opcode, handle, ..call.header }, link: None, ..*call }
    }

    /// Begins what can begin, tells what is to be told, and answers when all have ended.
    pub(crate) fn go_on_with_batch(&mut self, token: OpToken) {
        let Some(index) = self.operations.index_of(token) else { return };
        let call = self.operations[index].call;
        if self.connections.find_mut(call.connection).is_none() {
            return self.rest_batch(index);
        }
        self.connections.mark_dirty(call.connection);
        loop {
            let over = self.sched.is_over();
            let is_full = self.sessions.find(call.session).is_none_or(|s| s.load.batched >= RUNNING_MAX);
            let Some(batch) = self.operations.batch_mut(index) else { return };
            if is_full && batch.running > 0 {
                break;
            }
            if over && batch.has_next() {
                self.connections.yield_turn(call.connection, token);
                break;
            }
            let Some((first, count)) = batch.begin_next() else { break };
            batch.beginning = true;
            if let Some(session) = self.sessions.find_mut(call.session) {
                session.load.batched += 1;
            }
            let place = BatchPlace { batch: token, index: first, count };
            if let Err(status) = self.begin_part(&call, place, index) {
                self.end_part(place, BatchResult::failed(status));
            }
        }
        let now = self.now;
        let Some(batch) = self.operations.batch_mut(index) else { return };
        batch.beginning = false;
        if batch.is_done() {
            return self.finish_batch(index);
        }
        if batch.is_due(now) {
            self.tell_of_batch(index);
        }
    }

    /// Begins some operations; their end comes to [`Worker::on_batch_part`], perhaps within this call. An error is their result.
    fn begin_part(&mut self, call: &Call, place: BatchPlace, index: usize) -> Result<(), Status> {
        let Some(batch) = self.operations.batch_mut(index) else { return Ok(()) };
        let operation = &batch.operations[place.index as usize];
        let (write, stability) = (operation.write, operation.stability);
        let is_begun = batch.is_begun(place.index as usize);
        let single = match (&operation.lists.extents[..], &operation.lists.segments[..]) {
            ([extent], [segment]) if place.count == 1 && !is_begun => Some((*extent, *segment)),
            _ => None,
        };
        let memory = batch.memory_of(place).ok_or(Status::NO_MEMORY)?;
        let call = Call { batch: Some(place), ..Self::part_call(call, operation) };
        let node = self.data_node_as_of(&call, write, self.operations[index].generation)?;
        // Of what is begun the rest is looked at chunk by chunk.
        if self.shared.locks.are_mandatory() && !is_begun {
            let extents = self
                .operations
                .batch_mut(index)
                .map(|batch| batch.lists_of(place).extents)
                .unwrap_or_default();
            self.check_locks_of(&call, node, extents.into_iter(), write)?;
        }
        let single = single.filter(|(extent, _)| !self.sched.is_divided(extent.len, self.now));
        if let (Some((extent, segment)), Stability::Unstable) = (single, stability) {
            let access = if write { Access::REMOTE_READ } else { Access::REMOTE_WRITE };
            let verifier = self.target(node).verifier;
            let storage = &mut *self.storage;
            let connection = self.connections.find_mut(call.connection);
            let moved = with_remote_memory(connection, &range(segment), access, |span| match write {
                true => write_all(storage, node, extent.offset, span),
                false => storage.read_now(node, extent.offset, &[span]),
            });
            match moved.map_err(status_of)? {
                Some(Ok(count)) => {
                    self.sched.turn().on_moved(count);
                    let value = match (write, (count as u64) < extent.len) {
                        (true, _) => verifier.0,
                        (false, true) => extent.offset + count as u64,
                        (false, false) => BatchResult::NOT_ENDED,
                    };
                    self.count_moved(&call, write, node.export, Method::Direct, count);
                    self.end_part(place, BatchResult { status: Status::OK, count: count as u32, value });
                    return Ok(());
                }
                Some(Err(NowError::Failed(status))) => return Err(status),
                Some(Err(NowError::WouldBlock)) | None => {}
            }
        }
        let Some(batch) = self.operations.batch_mut(index) else { return Ok(()) };
        let lists = batch.lists_of(place);
        let kind = if write { TransferKind::Write } else { TransferKind::Read };
        self.begin_listed(&call, (kind, node), lists, stability, memory).map_err(status_of)
    }

    fn finish_batch(&mut self, index: usize) {
        let call = self.operations[index].call;
        let WaitsFor::Batch(batch) = self.unpark(index).state else { return };
        let Batch { operations, results, data, .. } = *batch;
        let failed = BatchResult::failed(Status::IO);
        let results: Vec<_> = results.into_iter().map(|result| result.unwrap_or(failed)).collect();
        self.answer_batch(&call, &operations, &results, data.as_ref());
    }
}

/// What an operation is answered whose client broke the protocol within it.
fn status_of(problem: Problem) -> Status {
    match problem {
        Problem::Status(status) | Problem::Refused(status, _) => status,
        Problem::Fault(_) => Status::INVALID,
    }
}
