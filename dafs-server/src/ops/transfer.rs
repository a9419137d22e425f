//! Direct transfers that pass through the server's memory or a mapped file, piece by piece, because the client's
//! memory is reached by RDMA only, is in several ranges, or storage has to be waited for.
//!
//! ```text
//! read:   next piece ─▶ mapped file, or buffer ◀─ storage ─▶ RDMA write ─▶ next piece … ─▶ reply (ordered behind the writes) ─▶ drain
//! write:  next piece ─▶ buffer ◀─ RDMA read ─▶ storage ─▶ next piece … ─▶ commit where asked ─▶ reply
//! append: all pieces ─▶ buffers ◀─ RDMA reads ─▶ storage, in one operation ─▶ reply
//! ```
#![allow(clippy::cast_possible_truncation, reason = "lengths within one request, which are of 32 bits")]

use dafs_proto::transport::{
    Access, LocalSegments, MemoryRef, OpToken, PostError, Posted, Provider, RemoteRange, TransportError,
};
use dafs_proto::wire::{Method, Stability, Status};
use smallvec::SmallVec;

use super::{Server, write::write_all};
use crate::backend::{FsOp, FsReply, FsResult, NodeId, NowError, Submitted};
use crate::buffers::{BUFFER_SIZES, Buffer};
use crate::dispatch::Problem;
use crate::inflight::{Call, State, Wakeup};

/// Ranges of client memory.
pub(crate) type Segments = SmallVec<[RemoteRange; 1]>;

/// Which way the data goes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Direction {
    Read,
    Write,
    Append,
}

/// A transfer under way.
#[derive(Debug)]
pub(crate) struct Transfer {
    pub(crate) direction: Direction,
    pub(crate) node: NodeId,
    pub(crate) offset: u64,
    pub(crate) len: u64,
    pub(crate) segments: Segments,
    pub(crate) stability: Stability,
    // Bytes whose movement is finished (read: posted; write: in the file; append: fetched).
    done: u64,
    // Appends: one for each piece, lent before the first; else those in use, the current one last.
    buffers: Vec<Buffer>,
    // Largest piece of an append, bytes.
    fetch_size_max: u64,
    step: Step,
}

#[derive(Debug)]
enum Step {
    /// The next piece can begin.
    Next,
    /// Waits for a buffer.
    Buffer,
    /// Storage reads or writes this piece in the last buffer, or straight in the client's memory.
    Storage { piece: Piece, mapped: bool },
    /// RDMA moves this piece through the last buffer.
    Rdma { piece: Piece },
    /// A post found the queue full.
    Post { piece: Piece, memory: MemoryRef },
    /// Storage makes the data durable, or appends it.
    Final,
}

/// A part of the transfer that is contiguous in the file and in the client's memory.
#[derive(Clone, Copy, Debug)]
struct Piece {
    offset: u64,
    remote: RemoteRange,
}

/// What a step led to.
enum Progress {
    /// Go on with the next piece.
    Continue,
    /// Something else has to happen first.
    Wait,
    /// It ends: a read is short, or failed.
    End(Result<(), Status>),
}

impl Transfer {
    pub(crate) fn new(direction: Direction, node: NodeId, offset: u64, len: u64, segments: Segments) -> Self {
        Self {
            direction,
            node,
            offset,
            len,
            segments,
            stability: Stability::Unstable,
            done: 0,
            buffers: Vec::new(),
            fetch_size_max: PIECE_SIZE_MAX,
            step: Step::Next,
        }
    }

    /// Storage has its hands on the transfer's memory.
    pub(crate) fn in_storage(&self) -> bool {
        matches!(self.step, Step::Storage { .. } | Step::Final)
    }

    pub(crate) fn into_buffers(self) -> Vec<Buffer> {
        self.buffers
    }

    fn piece(&self, size_max: u64) -> Option<Piece> {
        self.piece_at(self.done, size_max)
    }

    /// All pieces, from the beginning.
    fn pieces(&self, size_max: u64) -> Vec<Piece> {
        let begins = std::iter::successors(self.piece_at(0, size_max), |piece| {
            self.piece_at(piece.offset - self.offset + piece.remote.len, size_max)
        });
        begins.collect()
    }

    fn piece_at(&self, done: u64, size_max: u64) -> Option<Piece> {
        let mut before = 0;
        for segment in &self.segments {
            if done < before + segment.len {
                let inside = done - before;
                let len = (segment.len - inside).min(size_max);
                return Some(Piece { offset: self.offset + done, remote: segment.slice(inside, len)? });
            }
            before += segment.len;
        }
        None
    }
}

impl Server {
    pub(crate) fn begin_transfer(&mut self, call: &Call, transfer: Transfer) -> Result<(), Problem> {
        let token = self.park(*call, State::Transfer(Box::new(transfer)));
        self.advance(token);
        Ok(())
    }

    /// Goes on with a transfer until it has to wait or ends.
    fn advance(&mut self, token: OpToken) {
        loop {
            let Some(index) = self.operation_index(token) else { return };
            let State::Transfer(transfer) = &self.operations[index].state else { return };
            let progress = match (transfer.direction, transfer.done == transfer.len) {
                (_, true) => Progress::End(Ok(())),
                (Direction::Read, false) => self.read_piece(index, token),
                (Direction::Write | Direction::Append, false) => self.fetch_piece(index, token),
            };
            match progress {
                Progress::Continue => {}
                Progress::Wait => return,
                Progress::End(result) => return self.end_transfer(index, token, result),
            }
        }
    }

    fn transfer(&mut self, index: usize) -> Option<&mut Transfer> {
        match self.operations.get_mut(index).map(|operation| &mut operation.state) {
            Some(State::Transfer(transfer)) => Some(transfer),
            _ => None,
        }
    }

    /// One piece of a read.
    fn read_piece(&mut self, index: usize, token: OpToken) -> Progress {
        let call = self.operations[index].call;
        let Some(connection) = self.connections.get(call.connection.index) else { return Progress::Wait };
        let capabilities = connection.endpoint.capabilities();
        let size_max = u64::from(capabilities.rdma_size_max).min(PIECE_SIZE_MAX);
        // A device sends from memory that is locked: a mapped file would be copied, page fault by page fault.
        let copies_mapped = capabilities.provider == Provider::Verbs;
        let Some(transfer) = self.transfer(index) else { return Progress::Wait };
        let Some(piece) = transfer.piece(size_max) else { return Progress::End(Ok(())) };
        let (node, len) = (transfer.node, piece.remote.len as usize);
        match self.remote_memory(&call, &piece.remote, Access::REMOTE_WRITE) {
            Ok(Some(memory)) => return self.read_storage(index, token, piece, memory, true),
            Ok(None) => {}
            Err(_) => return Progress::End(Err(Status::REMOTE_ACCESS)),
        }
        if !copies_mapped
            && let Some(memory) =
                self.storage.map(node, piece.offset, len).filter(|memory| !memory.is_empty())
        {
            return self.post_piece(index, token, piece, memory);
        }
        match self.take_buffer(index, token, len) {
            Some(memory) => self.read_storage(index, token, piece, memory, false),
            None => Progress::Wait,
        }
    }

    /// Storage fills memory with a piece.
    fn read_storage(
        &mut self,
        index: usize,
        token: OpToken,
        piece: Piece,
        memory: MemoryRef,
        mapped: bool,
    ) -> Progress {
        let call = self.operations[index].call;
        let Some(transfer) = self.transfer(index) else { return Progress::Wait };
        let node = transfer.node;
        match self.storage.read_now(node, piece.offset, &[memory.span()]) {
            Ok(count) => self.piece_read(index, token, piece, mapped, count),
            Err(NowError::Failed(status)) => Progress::End(Err(status)),
            Err(NowError::WouldBlock) => {
                self.stats.storage_waits += 1;
                let Ok(identity) = self.handle(&call).map(|open| open.rights.identity.clone()) else {
                    return Progress::End(Err(Status::BAD_HANDLE));
                };
                if let Some(transfer) = self.transfer(index) {
                    transfer.step = Step::Storage { piece, mapped };
                }
                let op = FsOp::Read { node, offset: piece.offset, into: vec![memory] };
                match self.storage.submit(token, &identity, op) {
                    Submitted::Pending => Progress::Wait,
                    Submitted::Done(Ok(FsReply::Count(count))) => {
                        self.piece_read(index, token, piece, mapped, count)
                    }
                    Submitted::Done(Ok(_)) => Progress::End(Err(Status::IO)),
                    Submitted::Done(Err(status)) => Progress::End(Err(status)),
                }
            }
        }
    }

    /// A piece of a read is in memory: the client's, or a buffer that RDMA takes there.
    fn piece_read(
        &mut self,
        index: usize,
        token: OpToken,
        piece: Piece,
        mapped: bool,
        count: usize,
    ) -> Progress {
        let Some(transfer) = self.transfer(index) else { return Progress::Wait };
        transfer.step = Step::Next;
        let short = (count as u64) < piece.remote.len;
        let progress = if mapped {
            transfer.done += count as u64;
            Progress::Continue
        } else if count == 0 {
            Progress::Continue
        } else {
            let memory = transfer.buffers.last().and_then(|buffer| buffer.memory().slice(0, count));
            let (Some(memory), Some(remote)) = (memory, piece.remote.slice(0, count as u64)) else {
                return Progress::End(Err(Status::IO));
            };
            self.post_piece(index, token, Piece { remote, ..piece }, memory)
        };
        match (short, progress, self.transfer(index)) {
            (true, Progress::Continue, _) => Progress::End(Ok(())),
            (true, Progress::Wait, Some(transfer)) => {
                // What is posted is the last of the file.
                transfer.len = transfer.done + count as u64;
                Progress::Wait
            }
            (_, progress, _) => progress,
        }
    }

    /// Posts the RDMA write of a piece.
    fn post_piece(&mut self, index: usize, token: OpToken, piece: Piece, memory: MemoryRef) -> Progress {
        let count = memory.len() as u64;
        let Some(remote) = piece.remote.slice(0, count) else { return Progress::End(Err(Status::IO)) };
        let call = self.operations[index].call;
        let Some(connection) =
            self.connections.get_mut(call.connection.index).filter(|c| c.key == call.connection)
        else {
            return Progress::Wait;
        };
        connection.dirty = true;
        let local = LocalSegments::from_iter([memory.clone()]);
        match connection.endpoint.rdma_write(token, local, remote, None) {
            Ok(posted) => {
                let pending = u32::from(posted == Posted::Pending);
                connection.rdma_pending += pending;
                self.operations[index].rdma_pending += pending;
                if let Some(transfer) = self.transfer(index) {
                    transfer.step = Step::Next;
                    transfer.done += count;
                }
                self.release_idle_buffers(index);
                Progress::Continue
            }
            Err(PostError::Full) => {
                connection.post_waiters.push_back(index);
                if let Some(transfer) = self.transfer(index) {
                    transfer.step = Step::Post { piece: Piece { remote, ..piece }, memory };
                }
                Progress::Wait
            }
            Err(PostError::Closed) => Progress::Wait,
            Err(PostError::Invalid(why)) => {
                tracing::warn!(why, "RDMA write refused");
                Progress::End(Err(Status::REMOTE_ACCESS))
            }
        }
    }

    /// Fetches one piece of a write or append into a buffer.
    fn fetch_piece(&mut self, index: usize, token: OpToken) -> Progress {
        let call = self.operations[index].call;
        let Some(connection) = self.connections.get(call.connection.index) else { return Progress::Wait };
        let capabilities = connection.endpoint.capabilities();
        // Where RDMA is a copy by this CPU, a piece that stays in its cache is written out of there.
        let piece_max = if capabilities.remote_mapped { COPIED_PIECE_SIZE_MAX } else { PIECE_SIZE_MAX };
        let size_max = u64::from(capabilities.rdma_size_max).min(piece_max);
        let Some(transfer) = self.transfer(index) else { return Progress::Wait };
        let Some(piece) = transfer.piece(size_max) else { return Progress::End(Ok(())) };
        let memory = if transfer.direction == Direction::Append {
            self.append_buffer(index, token, size_max)
        } else {
            self.take_buffer(index, token, piece.remote.len as usize)
        };
        match memory {
            Some(memory) => self.fetch(index, token, piece, memory),
            None => Progress::Wait,
        }
    }

    /// The memory for the next piece of an append. All its buffers are lent at once: two appends that each wait for
    /// the other's would wait for ever.
    fn append_buffer(&mut self, index: usize, token: OpToken, size_max: u64) -> Option<MemoryRef> {
        let transfer = self.transfer(index)?;
        let pieces = transfer.pieces(size_max);
        transfer.fetch_size_max = size_max;
        if transfer.buffers.is_empty() {
            let lent: Vec<_> =
                pieces.iter().map_while(|piece| self.buffers.acquire(piece.remote.len as usize)).collect();
            let complete = lent.len() == pieces.len();
            let transfer = self.transfer(index)?;
            if complete {
                transfer.buffers = lent;
            } else {
                transfer.step = Step::Buffer;
                lent.into_iter().for_each(|buffer| self.buffers.release(buffer));
                self.buffer_waiters.push_back(token);
                return None;
            }
        }
        let transfer = self.transfer(index)?;
        let place = pieces.iter().position(|piece| piece.offset == transfer.offset + transfer.done)?;
        let len = pieces[place].remote.len as usize;
        transfer.buffers.get(place)?.memory().slice(0, len)
    }

    fn fetch(&mut self, index: usize, token: OpToken, piece: Piece, memory: MemoryRef) -> Progress {
        let call = self.operations[index].call;
        let Some(connection) =
            self.connections.get_mut(call.connection.index).filter(|c| c.key == call.connection)
        else {
            return Progress::Wait;
        };
        connection.dirty = true;
        match connection.endpoint.rdma_read(token, LocalSegments::from_iter([memory.clone()]), piece.remote) {
            Ok(Posted::Done) => self.piece_fetched(index, token, piece),
            Ok(Posted::Pending) => {
                connection.rdma_pending += 1;
                self.operations[index].rdma_pending += 1;
                if let Some(transfer) = self.transfer(index) {
                    transfer.step = Step::Rdma { piece };
                }
                Progress::Wait
            }
            Err(PostError::Full) => {
                connection.post_waiters.push_back(index);
                if let Some(transfer) = self.transfer(index) {
                    transfer.step = Step::Post { piece, memory };
                }
                Progress::Wait
            }
            Err(PostError::Closed) => Progress::Wait,
            Err(PostError::Invalid(why)) => {
                tracing::warn!(why, "RDMA read refused");
                Progress::End(Err(Status::REMOTE_ACCESS))
            }
        }
    }

    /// A piece of a write is in the last buffer: into the file with it. An append collects all pieces first.
    fn piece_fetched(&mut self, index: usize, token: OpToken, piece: Piece) -> Progress {
        let call = self.operations[index].call;
        let Some(transfer) = self.transfer(index) else { return Progress::Wait };
        transfer.step = Step::Next;
        if transfer.direction == Direction::Append {
            transfer.done += piece.remote.len;
            return Progress::Continue;
        }
        let len = piece.remote.len as usize;
        let node = transfer.node;
        let Some(memory) = transfer.buffers.last().and_then(|buffer| buffer.memory().slice(0, len)) else {
            return Progress::End(Err(Status::IO));
        };
        match write_all(&mut *self.storage, node, piece.offset, memory.span()) {
            Ok(count) => {
                drop(memory);
                self.piece_written(index, piece, count)
            }
            Err(NowError::Failed(status)) => Progress::End(Err(status)),
            Err(NowError::WouldBlock) => {
                self.stats.storage_waits += 1;
                let Ok(identity) = self.handle(&call).map(|open| open.rights.identity.clone()) else {
                    return Progress::End(Err(Status::BAD_HANDLE));
                };
                if let Some(transfer) = self.transfer(index) {
                    transfer.step = Step::Storage { piece, mapped: false };
                }
                let stability = Stability::Unstable;
                let op = FsOp::Write { node, offset: piece.offset, from: vec![memory], stability };
                match self.storage.submit(token, &identity, op) {
                    Submitted::Pending => Progress::Wait,
                    Submitted::Done(Ok(FsReply::Count(count))) => self.piece_written(index, piece, count),
                    Submitted::Done(Ok(_)) => Progress::End(Err(Status::IO)),
                    Submitted::Done(Err(status)) => Progress::End(Err(status)),
                }
            }
        }
    }

    fn piece_written(&mut self, index: usize, piece: Piece, count: usize) -> Progress {
        let Some(transfer) = self.transfer(index) else { return Progress::Wait };
        transfer.step = Step::Next;
        transfer.done += count as u64;
        let buffer = transfer.buffers.pop();
        if let Some(buffer) = buffer {
            self.release_buffer(buffer);
        }
        // Fewer bytes than given: an error came after them, which the client's next write meets.
        if (count as u64) < piece.remote.len { Progress::End(Ok(())) } else { Progress::Continue }
    }

    /// Lends the transfer a buffer for a piece of `len` bytes; `None` when it has to wait for one.
    fn take_buffer(&mut self, index: usize, token: OpToken, len: usize) -> Option<MemoryRef> {
        let buffer = self.buffers.acquire(len);
        let transfer = self.transfer(index)?;
        let Some(buffer) = buffer else {
            transfer.step = Step::Buffer;
            self.buffer_waiters.push_back(token);
            return None;
        };
        let memory = buffer.memory().slice(0, len);
        transfer.buffers.push(buffer);
        memory
    }

    /// Storage has finished a step of a transfer.
    pub(crate) fn transfer_on_storage(&mut self, index: usize, result: FsResult) {
        let token = self.token_of(index);
        let call = self.operations[index].call;
        let Some(transfer) = self.transfer(index) else { return };
        let step = std::mem::replace(&mut transfer.step, Step::Next);
        let alive = self.connections.get(call.connection.index).is_some_and(|c| c.key == call.connection);
        let progress = match (step, result) {
            (Step::Final, result) => return self.finish_transfer(index, result),
            // The client asks again on its next connection.
            (Step::Storage { .. }, _) if !alive => {
                let operation = self.unpark(index);
                return self.abandon(operation);
            }
            (Step::Storage { piece, mapped }, Ok(FsReply::Count(count))) => {
                if self.transfer(index).is_some_and(|transfer| transfer.direction == Direction::Read) {
                    self.piece_read(index, token, piece, mapped, count)
                } else {
                    self.piece_written(index, piece, count)
                }
            }
            (_, Err(status)) => Progress::End(Err(status)),
            (_, Ok(_)) => Progress::End(Err(Status::IO)),
        };
        self.go_on(index, token, progress);
    }

    /// RDMA has finished a step of a transfer.
    pub(crate) fn transfer_on_rdma(&mut self, index: usize, result: Result<(), TransportError>) {
        let token = self.token_of(index);
        self.release_idle_buffers(index);
        let Some(transfer) = self.transfer(index) else { return };
        // A read's writes complete while it goes on; only a fetch waits.
        let Step::Rdma { piece } = transfer.step else { return };
        let progress = match result {
            Ok(()) => self.piece_fetched(index, token, piece),
            // The connection is broken: closing it abandons the transfer.
            Err(_) => Progress::Wait,
        };
        self.go_on(index, token, progress);
    }

    fn go_on(&mut self, index: usize, token: OpToken, progress: Progress) {
        match progress {
            Progress::Continue => self.advance(token),
            Progress::Wait => {}
            Progress::End(result) => self.end_transfer(index, token, result),
        }
    }

    /// The provider has room again for a post that found none.
    pub(crate) fn resume_post(&mut self, index: usize, key: crate::connection::ConnectionKey) {
        if self.operations.get(index).is_none_or(|operation| operation.call.connection != key)
            || self.resume_lane_frame(index)
        {
            return;
        }
        let token = self.token_of(index);
        if let State::List(_) = self.operations[index].state {
            return self.resume_list_post(index);
        }
        let Some(transfer) = self.transfer(index) else { return };
        if !matches!(transfer.step, Step::Post { .. }) {
            return;
        }
        let reads = transfer.direction == Direction::Read;
        let Step::Post { piece, memory } = std::mem::replace(&mut transfer.step, Step::Next) else { return };
        let progress = if reads {
            self.post_piece(index, token, piece, memory)
        } else {
            self.fetch(index, token, piece, memory)
        };
        self.go_on(index, token, progress);
    }

    /// A buffer came back: the first that waits takes it.
    pub(crate) fn resume_buffer_waiter(&mut self) {
        while let Some(token) = self.buffer_waiters.pop_front() {
            let Some(index) = self.operation_index(token) else { continue };
            let operation = &self.operations[index];
            let call = operation.call;
            if operation.forgotten {
                continue;
            }
            match &operation.state {
                State::Transfer(transfer) if matches!(transfer.step, Step::Buffer) => {}
                State::List(list) => {
                    let Some(untouched) = list.waits_for_buffer() else { continue };
                    self.mark_dirty(call.connection);
                    let expired = untouched && self.expired(&call);
                    return self.resume_list_buffer(index, expired);
                }
                _ => continue,
            }
            self.mark_dirty(call.connection);
            if let Some(transfer) = self.transfer(index) {
                transfer.step = Step::Next;
            }
            if self.expired(&call) && self.transfer(index).is_some_and(|transfer| transfer.done == 0) {
                return self.end_transfer(index, token, Err(Status::TIMED_OUT));
            }
            return self.advance(token);
        }
    }

    /// All pieces are moved, or one failed.
    fn end_transfer(&mut self, index: usize, token: OpToken, result: Result<(), Status>) {
        let call = self.operations[index].call;
        let Some(transfer) = self.transfer(index) else { return };
        let (direction, node, offset) = (transfer.direction, transfer.node, transfer.offset);
        let (done, stability) = (transfer.done, transfer.stability);
        let op = match (result, direction) {
            (Err(status), _) if done == 0 || direction != Direction::Write => {
                self.reply_status(&call, status);
                return self.retire(index);
            }
            (_, Direction::Read) => {
                let len =
                    u32::try_from(transfer.segments.iter().map(|s| s.len).sum::<u64>()).unwrap_or(u32::MAX);
                self.reply_read(&call, usize::from(node.export.0), done as usize, len);
                return self.retire(index);
            }
            (_, Direction::Write) if stability == Stability::Unstable => {
                self.stats.on_write(usize::from(node.export.0), Method::Direct, done as usize);
                let count = u32::try_from(done).unwrap_or(u32::MAX);
                self.reply_written(&call, node.export, offset, count, stability);
                return self.retire(index);
            }
            (_, Direction::Write) => FsOp::Commit { node, offset, len: done, stability },
            (_, Direction::Append) => {
                let size_max = transfer.fetch_size_max;
                let pieces = transfer.pieces(size_max);
                let filled = transfer.buffers.iter().zip(&pieces);
                let from =
                    filled.filter_map(|(buffer, piece)| buffer.memory().slice(0, piece.remote.len as usize));
                FsOp::Append { node, from: from.collect(), stability }
            }
        };
        transfer.step = Step::Final;
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
        let (node, stability, export) =
            (transfer.node, transfer.stability, usize::from(transfer.node.export.0));
        let (offset, count) = match result {
            Ok(FsReply::Appended(offset, count)) => (offset, count),
            Ok(_) => (transfer.offset, transfer.done as usize),
            Err(status) => {
                self.reply_status(&call, status);
                return self.retire(index);
            }
        };
        self.stats.on_write(export, Method::Direct, count);
        self.reply_written(&call, node.export, offset, u32::try_from(count).unwrap_or(u32::MAX), stability);
        self.retire(index);
    }

    /// Answered: it stays only while RDMA holds its memory.
    pub(crate) fn retire(&mut self, index: usize) {
        if self.operations[index].rdma_pending == 0 {
            let operation = self.unpark(index);
            return self.release_buffers(operation.state.into_buffers());
        }
        let operation = &mut self.operations[index];
        let state = std::mem::replace(&mut operation.state, State::Draining(Vec::new()));
        operation.state = State::Draining(state.into_buffers());
    }

    /// Gives back all buffers of a transfer that is over.
    pub(crate) fn release_buffers(&mut self, buffers: Vec<Buffer>) {
        for buffer in buffers {
            self.release_buffer(buffer);
        }
    }

    /// Gives back the buffers of a read whose data has left, so that a read that waits for another buffer holds none for nothing.
    fn release_idle_buffers(&mut self, index: usize) {
        if self.operations[index].rdma_pending > 0 {
            return;
        }
        let Some(transfer) = self.transfer(index) else { return };
        if transfer.direction != Direction::Read {
            return;
        }
        let current =
            usize::from(matches!(transfer.step, Step::Storage { mapped: false, .. } | Step::Post { .. }));
        let idle: Vec<Buffer> =
            transfer.buffers.drain(..transfer.buffers.len().saturating_sub(current)).collect();
        for buffer in idle {
            self.release_buffer(buffer);
        }
    }

    pub(crate) fn release_buffer(&mut self, buffer: Buffer) {
        self.buffers.release(buffer);
        if !self.buffer_waiters.is_empty() {
            self.wakeups.push_back(Wakeup::Buffer);
        }
    }

    pub(crate) fn token_of(&self, index: usize) -> OpToken {
        crate::inflight::token(index, self.operations[index].generation)
    }
}

/// A piece fits the largest buffer.
const PIECE_SIZE_MAX: u64 = BUFFER_SIZES[BUFFER_SIZES.len() - 1] as u64;
/// Half of a usual second-level cache at most.
const COPIED_PIECE_SIZE_MAX: u64 = BUFFER_SIZES[1] as u64;
