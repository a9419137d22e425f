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

use dafs_proto::session::Effect;
use dafs_proto::transport::{Access, MemoryRef, RemoteRange, SendSlot, TransportError};
use dafs_proto::wire::{Method, Stability, Status};
use smallvec::smallvec;

use super::Worker;
use crate::storage::{FsOp, FsReply, FsResult};
use crate::worker::buffers::Buffer;
use crate::worker::flight::Call;
use crate::worker::flight::after::{Target, Writing};
use crate::worker::flight::answer::Served;
use crate::worker::flight::pipeline::{Pipeline, Stage};
use crate::worker::flight::transfer::{Passage, Transfer, TransferKind};
use crate::worker::requests::reply::read_reply;
use crate::worker::requests::work::{Context, Fate, Work};

/// What a step led to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Progress {
    /// Something was done; there may be more to do.
    Continue,
    /// Nothing can be done until something else happens.
    Wait,
}

impl Worker {
    pub(crate) fn begin_transfer(&mut self, call: &Call, mut transfer: Transfer) -> Served {
        let Some(terms) = self.pipelining(call, transfer.request.len) else {
            // Its connection is gone; the client asks again on its next.
            if let Some(session) = self.sessions.find_mut(call.session) {
                let written = session.core.take_effect(call.header.slot);
                session.core.on_abandoned(call.header.slot, written);
            }
            return Ok(());
        };
        transfer.chunk_size_max = terms.chunk_size;
        transfer.request.verifier = self.target(transfer.request.node).verifier;
        let written = self.written_before(call, transfer.request.verifier);
        transfer.pipeline =
            Pipeline::new(transfer.request.kind, transfer.request.len, terms.depth).behind(written);
        if transfer.request.kind == TransferKind::Append
            && !self.buffers.can_ever_lend(&transfer.chunk_sizes())
        {
            return Err(Status::TOO_LARGE.into());
        }
        self.begin_work(call, Box::new(transfer));
        Ok(())
    }
}

impl Work for Transfer {
    fn advance(&mut self, at: &mut Context<'_>) -> Fate {
        while !(self.is_final || self.is_broken || self.waits.for_turn) {
            if let Some(outcome) = self.pipeline.outcome() {
                return self.end(at, outcome);
            }
            if let Some(done) = self.pipeline.departing()
                && let Some(slot) = at.room_to_tell()
            {
                return self.tell(at, slot, done as usize);
            }
            if at.is_over() {
                // Its connection has had enough for now.
                self.waits.for_turn = true;
                at.yield_turn();
                break;
            }
            // Storage is kept busy before RDMA is: it is the one that works by itself.
            let progressed = self.store_next(at) == Progress::Continue
                || self.begin_next(at) == Progress::Continue
                || self.post_next(at) == Progress::Continue;
            if !progressed {
                break;
            }
        }
        Fate::Waits
    }

    fn begin_again(&mut self, at: &mut Context<'_>) -> Fate {
        self.restart_or_abandon(at)
    }

    fn on_turn(&mut self, at: &mut Context<'_>) -> Fate {
        self.waits.for_turn = false;
        self.advance(at)
    }

    fn on_storage(&mut self, at: &mut Context<'_>, slot: u8, result: FsResult) -> Fate {
        if self.is_final {
            return self.finish(at, result);
        }
        if let Some(chunk) = self.pipeline.chunk_in(slot, Stage::Storage) {
            at.leaves_storage(chunk.len);
        }
        self.chunk_stored(at, slot, result);
        match (self.is_broken, self.in_storage()) {
            (true, false) => self.restart_or_abandon(at),
            (true, true) => Fate::Waits,
            (false, _) => self.advance(at),
        }
    }

    fn on_forgotten_step(&mut self, slot: u8, _: &FsResult) {
        self.is_final = false;
        // To be given back with the others.
        let ended = self.pipeline.failed(slot, Status::CANCELLED);
        self.collected.extend(ended.and_then(|passage| passage.buffer));
    }

    fn on_rdma(&mut self, at: &mut Context<'_>, slot: u8, result: Result<(), TransportError>) -> Fate {
        match (result, self.pipeline.chunk_in(slot, Stage::Window)) {
            (Ok(()), _) => self.passage_moved(at, slot),
            (Err(error), Some(chunk)) if error.is_local_fault() => drop(self.read_again(at, chunk)),
            // The connection is broken: closing it abandons the transfer.
            (Err(_), _) => return Fate::Waits,
        }
        self.advance(at)
    }

    fn on_buffers(&mut self, at: &mut Context<'_>, mut buffers: Vec<Buffer>, expired: bool) -> Fate {
        self.waits.for_buffer = false;
        match self.request.kind {
            TransferKind::Append => self.collected = buffers,
            TransferKind::Read | TransferKind::Write => self.granted = buffers.pop(),
        }
        if expired && self.pipeline.is_untouched() {
            self.pipeline.refused(Status::TIMED_OUT);
        }
        self.advance(at)
    }

    fn on_post_room(&mut self, at: &mut Context<'_>) -> Fate {
        if std::mem::take(&mut self.waits.for_post) { self.advance(at) } else { Fate::Waits }
    }

    fn waits_for_storage(&self) -> bool {
        self.waits.for_storage
    }

    fn on_storage_room(&mut self, at: &mut Context<'_>) -> Fate {
        self.waits.for_storage = false;
        self.advance(at)
    }

    fn in_storage(&self) -> bool {
        self.is_final || self.pipeline.in_storage()
    }

    fn on_disconnected(&mut self) {
        // What storage does at the end needs no connection.
        self.is_broken |= !self.is_final;
    }

    fn effect(&self) -> Option<Effect> {
        Some(self.written())
            .filter(|count| *count > 0)
            .map(|count| Effect::Bytes(count, self.request.verifier))
    }

    fn into_buffers(self: Box<Self>) -> Vec<Buffer> {
        let passed = self.pipeline.into_passages().filter_map(|passage| passage.buffer);
        self.collected.into_iter().chain(self.granted).chain(passed).collect()
    }
}

impl Transfer {
    /// Begins the next chunk, if one may begin and there is memory for it.
    fn begin_next(&mut self, at: &mut Context<'_>) -> Progress {
        let chunk_max = self.chunk_max(at);
        let Some((from, left)) = self.pipeline.next() else { return Progress::Wait };
        let Some(remote) = self.remote_at(from, left.min(chunk_max)) else {
            self.pipeline.refused(Status::INVALID);
            return Progress::Continue;
        };
        if self.must_wait_for_storage(at, TransferKind::Read) {
            return Progress::Wait;
        }
        let others = self.pipeline.in_progress();
        let progress = match self.request.kind {
            TransferKind::Read => self.begin_read(at, from, remote),
            TransferKind::Write | TransferKind::Append => self.begin_write(at, from, remote),
        };
        if let Ok(true) = progress {
            self.count_chunk(at, others > 0);
        }
        match progress {
            Ok(false) => Progress::Wait,
            Ok(true) => Progress::Continue,
            Err(status) => {
                self.pipeline.refused(status);
                self.end_chunks(at, None);
                Progress::Continue
            }
        }
    }

    /// Begins a chunk of a write: from the client's memory, or a buffer that it is fetched into. False where none is there now.
    fn begin_write(&mut self, at: &mut Context<'_>, from: u64, remote: RemoteRange) -> Result<bool, Status> {
        if self.request.kind == TransferKind::Write
            && let Some(memory) = at.remote_memory(&remote, Access::REMOTE_READ)?
        {
            let passage = Passage { memory: smallvec![memory], buffer: None, remote, is_mapped: true };
            let chunk = self.pipeline.begin(remote.len, passage);
            // It is where storage can take it from.
            self.pipeline.posted(chunk.slot);
            self.pipeline.moved(chunk.slot);
            return Ok(true);
        }
        let taken = self.take_buffer(at, from, remote.len as usize);
        let Some((memory, buffer)) = taken else { return Ok(false) };
        let remote = remote.slice(0, memory.len() as u64).ok_or(Status::INVALID)?;
        let passage = Passage { memory: smallvec![memory], buffer, remote, is_mapped: false };
        self.pipeline.begin(remote.len, passage);
        Ok(true)
    }

    /// Lends the transfer memory for the chunk at `from`; `None` when it has to wait for it.
    fn take_buffer(
        &mut self,
        at: &mut Context<'_>,
        from: u64,
        len: usize,
    ) -> Option<(MemoryRef, Option<Buffer>)> {
        if self.request.kind == TransferKind::Append {
            return self.append_buffer(at, from, len);
        }
        if self.waits.for_buffer {
            return None;
        }
        let Some(buffer) = at.buffer(self.granted.take(), len) else {
            self.waits.for_buffer = true;
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
        at: &mut Context<'_>,
        from: u64,
        len: usize,
    ) -> Option<(MemoryRef, Option<Buffer>)> {
        let sizes = self.chunk_sizes();
        if self.collected.is_empty() {
            if self.waits.for_buffer {
                return None;
            }
            match at.all_buffers(&sizes) {
                Some(buffers) => self.collected = buffers,
                None => {
                    self.waits.for_buffer = true;
                    return None;
                }
            }
        }
        let mut begins = 0;
        let place = sizes.iter().position(|size| {
            begins += *size as u64;
            begins > from
        })?;
        let memory = self.collected.get(place)?.memory().slice(0, len)?;
        Some((memory, None))
    }

    /// A chunk failed: what lies behind it is given up.
    fn fail_chunk(&mut self, at: &mut Context<'_>, slot: u8, status: Status) {
        let ended = self.pipeline.failed(slot, status);
        self.end_chunks(at, ended);
    }

    /// Gives back what a chunk that is over passed through, and what those did that are moved no further.
    fn end_chunks(&mut self, at: &mut Context<'_>, ended: Option<Passage>) {
        let ended = ended.into_iter().chain(self.pipeline.take_moot());
        ended.filter_map(|passage| passage.buffer).for_each(|buffer| at.release_buffer(buffer));
    }

    /// Bytes that are in the file, while storage has nothing of it.
    fn written(&self) -> u64 {
        match self.request.kind {
            TransferKind::Write => self.pipeline.stored_to(),
            TransferKind::Read | TransferKind::Append => 0,
        }
    }

    /// Its connection was lost, and storage has let go of its memory: it goes on from what is written, on the connection on which the
    /// client has asked again or will.
    fn restart_or_abandon(&mut self, at: &mut Context<'_>) -> Fate {
        let Some(terms) = at.pipelining(self.request.len) else { return Fate::Abandoned };
        at.stop_waiting_for_buffers();
        let written = self.written();
        let mut fresh = Transfer::of(self.request.clone());
        fresh.chunk_size_max = terms.chunk_size;
        fresh.pipeline = Pipeline::new(fresh.request.kind, fresh.request.len, terms.depth).behind(written);
        let broken = std::mem::replace(self, fresh);
        at.release_buffers(Box::new(broken).into_buffers());
        self.advance(at)
    }

    /// All of a read is on its way: the reply goes behind it.
    fn tell(&self, at: &mut Context<'_>, slot: SendSlot, done: usize) -> Fate {
        at.count_moved(false, self.request.node.export, Method::Direct, done);
        at.tell(slot, &read_reply(done, self.request.len as usize))
    }

    /// All chunks are moved, or one failed.
    fn end(&mut self, at: &mut Context<'_>, outcome: Result<u64, Status>) -> Fate {
        let done = match outcome {
            Ok(done) => done,
            Err(status) => return at.refuse(status),
        };
        let node = self.request.node;
        let op = match self.request.kind {
            TransferKind::Read => {
                let len = u32::try_from(self.request.len).unwrap_or(u32::MAX);
                return at.reply_read(node.export, done as usize, len);
            }
            TransferKind::Write if self.request.stability == Stability::Unstable || done == 0 => {
                return self.reply_written(at, self.request.offset, done as usize);
            }
            TransferKind::Write => FsOp::Commit {
                node,
                offset: self.request.offset,
                len: done,
                stability: self.request.stability,
            },
            TransferKind::Append => {
                if let Err(status) = self.check_locks(at, 0..u64::MAX) {
                    return at.refuse(status);
                }
                let sizes = self.chunk_sizes();
                let filled = self.collected.iter().zip(&sizes);
                let from = filled.filter_map(|(buffer, len)| buffer.memory().slice(0, *len));
                FsOp::Append { node, from: from.collect(), stability: self.request.stability }
            }
        };
        self.is_final = true;
        at.submit(at.token, op).map_or(Fate::Waits, |result| self.finish(at, result))
    }

    /// The last step of a write or append is done.
    fn finish(&mut self, at: &mut Context<'_>, result: FsResult) -> Fate {
        let done = self.pipeline.outcome().and_then(Result::ok).unwrap_or(0);
        match result {
            Ok(FsReply::Appended(offset, count)) => self.reply_written(at, offset, count),
            Ok(_) => self.reply_written(at, self.request.offset, done as usize),
            Err(status) => at.refuse(status),
        }
    }

    fn reply_written(&self, at: &mut Context<'_>, offset: u64, count: usize) -> Fate {
        let target = Target { node: self.request.node, verifier: self.request.verifier };
        let (stability, method) = (self.request.stability, Method::Direct);
        let appends = self.request.kind == TransferKind::Append;
        let write = Writing { target, appends, offset, len: self.request.len, stability, method };
        at.reply_written(&write, count, &[])
    }
}
