//! Direct transfers that pass through the server's memory or a mapped file, chunk by chunk, because the client's
//! memory is reached by RDMA only, or storage has to be waited for.
//!
//! ```text
//! read:   next chunk ─▶ mapped file, or buffer ◀─ storage ─▶ RDMA write ─▶ … all posted ─▶ reply (ordered behind the writes) ─▶ drain
//! write:  next chunk ─▶ buffer ◀─ RDMA read ─▶ storage ─▶ … all written ─▶ commit where asked ─▶ reply
//! append: all buffers ◀─ RDMA reads ─▶ storage, in one operation ─▶ reply
//! ```
//!
//! Several chunks are in progress at once: `flight::pipeline` says which of them may do what, [`fetch`] is its RDMA and [`place`] its
//! storage.
#![allow(clippy::cast_possible_truncation, reason = "lengths within one request, which are of 32 bits")]

mod fetch;
mod place;
mod terms;

use dafs_proto::transport::{MemoryRef, OpToken};
use dafs_proto::wire::{Method, Stability, Status};
use smallvec::smallvec;

use super::Worker;
use crate::storage::{FsOp, FsReply, FsResult, Submitted};
use crate::worker::buffers::{Buffer, Grant, Owner};
use crate::worker::flight::answer::Problem;
use crate::worker::flight::pipeline::Pipeline;
use crate::worker::flight::transfer::{Direction, Transfer};
use crate::worker::flight::{Call, State, Wakeup};
use crate::worker::sched::CONTENDED_SIZE;

/// What a step led to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Progress {
    /// Something was done; there may be more to do.
    Continue,
    /// Nothing can be done until something else happens.
    Wait,
}

impl Worker {
    pub(crate) fn begin_transfer(&mut self, call: &Call, mut transfer: Transfer) -> Result<(), Problem> {
        let Some(terms) = self.pipelining(call) else {
            // Its connection is gone; the client asks again on its next.
            if let Some(session) = self.sessions.find_mut(call.session) {
                session.core.on_abandoned(call.header.slot);
            }
            return Ok(());
        };
        let (chunk_size, trial) = self.choose_chunk(call, &terms, transfer.len);
        transfer.chunk_size_max = chunk_size;
        transfer.verifier = self.target(transfer.node).verifier;
        transfer.timed = trial.map(|trial| (self.now, trial));
        transfer.pipeline = Pipeline::new(transfer.direction, transfer.len, terms.depth);
        if transfer.direction == Direction::Append && !self.buffers.can_ever_lend(&transfer.chunk_sizes()) {
            return Err(Status::TOO_LARGE.into());
        }
        let token = self.park(*call, State::Transfer(Box::new(transfer)));
        self.advance(token);
        Ok(())
    }

    /// Goes on with a transfer until it has to wait or ends.
    pub(super) fn advance(&mut self, token: OpToken) {
        loop {
            let Some(index) = self.operation_index(token) else { return };
            let Some(transfer) = self.transfer(index) else { return };
            if transfer.is_final || transfer.is_broken || transfer.waits_for_turn {
                return;
            }
            if let Some(outcome) = transfer.pipeline.outcome() {
                return self.end_transfer(index, token, outcome);
            }
            if self.turns.is_over() {
                return self.wait_for_turn(index, token);
            }
            // Storage is kept busy before RDMA is: it is the one that works by itself.
            let progressed = self.store_next(index, token) == Progress::Continue
                || self.begin_next(index, token) == Progress::Continue
                || self.post_next(index, token) == Progress::Continue;
            if !progressed {
                return;
            }
        }
    }

    /// Its connection has had enough for now.
    #[cold]
    fn wait_for_turn(&mut self, index: usize, token: OpToken) {
        let key = self.operations[index].call.connection;
        if let Some(transfer) = self.transfer(index) {
            transfer.waits_for_turn = true;
        }
        self.yield_transfer(key, token);
    }

    /// The turn of its connection has come.
    pub(crate) fn resume_transfer(&mut self, token: OpToken) {
        let Some(index) = self.operation_index(token).filter(|index| !self.operations[*index].forgotten)
        else {
            return;
        };
        match &mut self.operations[index].state {
            State::Transfer(transfer) => {
                transfer.waits_for_turn = false;
                self.advance(token);
            }
            State::List(_) => self.advance_list(token),
            State::Batch(_) => self.go_on_with_batch(token),
            _ => {}
        }
    }

    fn transfer(&mut self, index: usize) -> Option<&mut Transfer> {
        match self.operations.get_mut(index).map(|operation| &mut operation.state) {
            Some(State::Transfer(transfer)) => Some(transfer),
            _ => None,
        }
    }

    /// Begins the next chunk, if one may begin and there is memory for it.
    fn begin_next(&mut self, index: usize, token: OpToken) -> Progress {
        let chunk_max = self.chunk_max(index);
        let Some(transfer) = self.transfer(index) else { return Progress::Wait };
        let Some((at, left)) = transfer.pipeline.next() else { return Progress::Wait };
        let Some(remote) = transfer.remote_at(at, left.min(chunk_max)) else {
            transfer.pipeline.refused(Status::INVALID);
            return Progress::Continue;
        };
        if self.must_wait_for_storage(index, token, Direction::Read) {
            return Progress::Wait;
        }
        let Some(transfer) = self.transfer(index) else { return Progress::Wait };
        let (reads, others) = (transfer.direction == Direction::Read, transfer.pipeline.in_progress());
        let progress = if reads {
            self.begin_read(index, token, at, remote)
        } else {
            let Ok(source) = self.mapped_source(index, &remote) else {
                if let Some(transfer) = self.transfer(index) {
                    transfer.pipeline.refused(Status::REMOTE_ACCESS);
                }
                self.end_moot_chunks(index);
                return Progress::Continue;
            };
            if let Some(memory) = source {
                let Some(transfer) = self.transfer(index) else { return Progress::Wait };
                let chunk = transfer.begin(smallvec![memory], None, remote);
                transfer.slots[usize::from(chunk.slot)].is_mapped = true;
                // It is where storage can take it from.
                transfer.pipeline.posted(chunk.slot);
                transfer.pipeline.moved(chunk.slot);
                return Progress::Continue;
            }
            match self.take_buffer(index, token, at, remote.len as usize) {
                Some((memory, buffer)) => {
                    let Some(remote) = remote.slice(0, memory.len() as u64) else { return Progress::Wait };
                    let Some(transfer) = self.transfer(index) else { return Progress::Wait };
                    transfer.begin(smallvec![memory], buffer, remote);
                    Progress::Continue
                }
                None => Progress::Wait,
            }
        };
        if progress == Progress::Continue {
            self.count_chunk(index, others > 0);
        }
        progress
    }

    /// Lends the transfer memory for the chunk at `at`; `None` when it has to wait for it.
    fn take_buffer(
        &mut self,
        index: usize,
        token: OpToken,
        at: u64,
        len: usize,
    ) -> Option<(MemoryRef, Option<Buffer>)> {
        let owner = Owner { session: self.operations[index].call.session, operation: token };
        let transfer = self.transfer(index)?;
        if transfer.direction == Direction::Append {
            return self.append_buffer(index, owner, at, len);
        }
        if transfer.waits_for_buffer {
            return None;
        }
        let granted = transfer.granted.take();
        let buffer = granted.or_else(|| self.buffers.acquire(owner, len));
        let Some(buffer) = buffer else {
            self.buffers.wait(owner, len);
            self.transfer(index)?.waits_for_buffer = true;
            return None;
        };
        // A smaller one than wanted chops the chunk.
        let memory = buffer.memory().slice(0, len.min(buffer.size()))?;
        Some((memory, Some(buffer)))
    }

    /// The memory for the next chunk of an append. All its buffers are lent at once: two appends that each wait for
    /// the other's would wait for ever.
    fn append_buffer(
        &mut self,
        index: usize,
        owner: Owner,
        at: u64,
        len: usize,
    ) -> Option<(MemoryRef, Option<Buffer>)> {
        let transfer = self.transfer(index)?;
        let sizes = transfer.chunk_sizes();
        if transfer.collected.is_empty() {
            if transfer.waits_for_buffer {
                return None;
            }
            match self.buffers.acquire_all(owner, &sizes) {
                Some(buffers) => self.transfer(index)?.collected = buffers,
                None => {
                    self.buffers.wait_for_all(owner, sizes);
                    self.transfer(index)?.waits_for_buffer = true;
                    return None;
                }
            }
        }
        let mut begins = 0;
        let place = sizes.iter().position(|size| {
            begins += *size as u64;
            begins > at
        })?;
        let memory = self.transfer(index)?.collected.get(place)?.memory().slice(0, len)?;
        Some((memory, None))
    }

    /// Buffers have come for somebody who waited.
    pub(crate) fn on_granted(&mut self, grant: Grant) {
        let token = grant.owner.operation;
        let waiting = self.operation_index(token).filter(|index| !self.operations[*index].forgotten);
        let Some(index) = waiting else { return self.release_buffers(grant.buffers) };
        let call = self.operations[index].call;
        self.mark_dirty(call.connection);
        let expired = self.expired(&call);
        match &mut self.operations[index].state {
            State::List(list) => {
                let untouched = list.waits_for_buffer();
                if let Some(unused) = list.grant(grant.buffers) {
                    self.release_buffer(unused);
                }
                self.resume_list_buffer(index, expired && untouched == Some(true));
            }
            State::Transfer(transfer) => {
                transfer.waits_for_buffer = false;
                let mut buffers = grant.buffers;
                if transfer.direction == Direction::Append {
                    transfer.collected = buffers;
                } else {
                    transfer.granted = buffers.pop();
                }
                if expired && transfer.pipeline.is_untouched() {
                    transfer.pipeline.refused(Status::TIMED_OUT);
                }
                self.advance(token);
            }
            _ => self.release_buffers(grant.buffers),
        }
    }

    /// A transfer of so many bytes is moved in several turns, because others are there.
    #[inline]
    pub(crate) fn is_divided(&self, len: u64) -> bool {
        len > CONTENDED_SIZE as u64 && self.turns.is_contended(self.now)
    }

    /// Gives back what a chunk passed through.
    fn end_chunk(&mut self, index: usize, slot: u8) {
        let buffer = self.transfer(index).and_then(|transfer| transfer.end_passage(slot));
        if let Some(buffer) = buffer {
            self.release_buffer(buffer);
        }
    }

    /// A chunk failed: what lies behind it is given up.
    fn fail_chunk(&mut self, index: usize, slot: u8, status: Status) {
        let Some(transfer) = self.transfer(index) else { return };
        transfer.pipeline.failed(slot, status);
        self.end_chunk(index, slot);
        self.end_moot_chunks(index);
    }

    fn end_moot_chunks(&mut self, index: usize) {
        let Some(transfer) = self.transfer(index) else { return };
        for slot in transfer.pipeline.take_moot() {
            self.end_chunk(index, slot);
        }
    }

    /// The transfer's connection was lost, and storage has let go of its memory: it begins anew on the connection on which the client
    /// has asked again, or never happened.
    fn restart_or_abandon(&mut self, index: usize, token: OpToken) {
        let call = self.operations[index].call;
        let alive = self.connections.get(call.connection.index).is_some_and(|c| c.key == call.connection);
        let Some(terms) = self.pipelining(&call).filter(|_| alive) else {
            let operation = self.unpark(index);
            return self.abandon(operation);
        };
        let owner = Owner { session: call.session, operation: token };
        self.buffers.stop_waiting(owner);
        let Some(transfer) = self.transfer(index) else { return };
        let mut fresh = Transfer::new(
            transfer.direction,
            transfer.node,
            transfer.offset,
            transfer.len,
            transfer.segments.clone(),
        );
        (fresh.stability, fresh.verifier) = (transfer.stability, transfer.verifier);
        fresh.chunk_size_max = terms.chunk_size;
        fresh.pipeline = Pipeline::new(fresh.direction, fresh.len, terms.depth);
        let broken = std::mem::replace(transfer, fresh);
        self.release_buffers(broken.into_buffers());
        self.advance(token);
    }

    /// All chunks are moved, or one failed.
    fn end_transfer(&mut self, index: usize, token: OpToken, outcome: Result<u64, Status>) {
        let call = self.operations[index].call;
        let Some(transfer) = self.transfer(index) else { return };
        let (direction, node, offset) = (transfer.direction, transfer.node, transfer.offset);
        let (len, stability, verifier) = (transfer.len, transfer.stability, transfer.verifier);
        let done = match outcome {
            Ok(done) => {
                self.on_timed_transfer(index, done);
                done
            }
            Err(status) => {
                self.reply_status(&call, status);
                return self.retire(index);
            }
        };
        let Some(transfer) = self.transfer(index) else { return };
        let op = match direction {
            Direction::Read => {
                let len = u32::try_from(len).unwrap_or(u32::MAX);
                self.reply_read(&call, usize::from(node.export.0), done as usize, len);
                return self.retire(index);
            }
            Direction::Write if stability == Stability::Unstable || done == 0 => {
                self.count_written(call.session, usize::from(node.export.0), Method::Direct, done as usize);
                let count = u32::try_from(done).unwrap_or(u32::MAX);
                self.reply_written(&call, verifier, offset, count, stability);
                return self.retire(index);
            }
            Direction::Write => FsOp::Commit { node, offset, len: done, stability },
            Direction::Append => {
                let sizes = transfer.chunk_sizes();
                let filled = transfer.collected.iter().zip(&sizes);
                let from = filled.filter_map(|(buffer, len)| buffer.memory().slice(0, *len));
                FsOp::Append { node, from: from.collect(), stability }
            }
        };
        transfer.is_final = true;
        let Ok(identity) = self.handle(&call).map(|open| open.rights.identity.clone()) else {
            self.reply_status(&call, Status::BAD_HANDLE);
            return self.retire(index);
        };
        if let Submitted::Done(result) = self.storage.submit(token, &identity, op) {
            self.finish_transfer(index, result);
        }
    }

    /// The last step of a write or append is done.
    fn finish_transfer(&mut self, index: usize, result: FsResult) {
        let call = self.operations[index].call;
        let Some(transfer) = self.transfer(index) else { return };
        let (verifier, stability, export) =
            (transfer.verifier, transfer.stability, usize::from(transfer.node.export.0));
        let done = transfer.pipeline.outcome().and_then(Result::ok).unwrap_or(0);
        let (offset, count) = match result {
            Ok(FsReply::Appended(offset, count)) => (offset, count),
            Ok(_) => (transfer.offset, done as usize),
            Err(status) => {
                self.reply_status(&call, status);
                return self.retire(index);
            }
        };
        self.count_written(call.session, export, Method::Direct, count);
        self.reply_written(&call, verifier, offset, u32::try_from(count).unwrap_or(u32::MAX), stability);
        self.retire(index);
    }

    /// Answered: it stays only while RDMA holds its memory.
    pub(crate) fn retire(&mut self, index: usize) {
        if self.operations[index].rdma_pending == 0 {
            let operation = self.unpark(index);
            return self.release_buffers(operation.state.into_buffers());
        }
        let owner = Owner { session: self.operations[index].call.session, operation: self.token_of(index) };
        self.buffers.stop_waiting(owner);
        let operation = &mut self.operations[index];
        let state = std::mem::replace(&mut operation.state, State::Draining(Vec::new()));
        operation.state = State::Draining(state.into_buffers());
    }

    /// Gives back all buffers of an operation that is over.
    pub(crate) fn release_buffers(&mut self, buffers: Vec<Buffer>) {
        for buffer in buffers {
            self.release_buffer(buffer);
        }
    }

    pub(crate) fn release_buffer(&mut self, buffer: Buffer) {
        self.buffers.release(buffer);
        if self.buffers.has_waiters() {
            self.wakeups.push_back(Wakeup::Buffer);
        }
    }

    /// Buffers came back: those who wait are served in turn.
    pub(crate) fn serve_buffer_waiters(&mut self) {
        while let Some(grant) = self.buffers.serve() {
            self.on_granted(grant);
        }
    }

    pub(crate) fn token_of(&self, index: usize) -> OpToken {
        crate::worker::flight::token(index, self.operations[index].generation)
    }
}
