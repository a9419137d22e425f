//! Write and append: inline from the arrived message straight into the page cache, direct through [`Transfer`].

use dafs_proto::extent::Extent;
use dafs_proto::transport::{Access, MemoryRef, Span};
use dafs_proto::wire::{Method, Opcode, Stability, Status, WireError, WriteRequest};

use super::Worker;
use super::read::check_payload;
use crate::storage::{FsOp, NodeId, NowError, Storage};
use crate::worker::connections::memory::with_remote_memory;
use crate::worker::flight::after::{After, Target, Writing};
use crate::worker::flight::answer::{Payload, Served};
use crate::worker::flight::transfer::{Transfer, TransferKind};
use crate::worker::flight::{Call, own_copy};

impl Worker {
    #[inline]
    pub(crate) fn write(&mut self, call: &Call, body: &[u8], payload: Payload<'_>) -> Served {
        let request = WriteRequest::decode(body)?;
        let appends = call.header.opcode == Opcode::Append;
        if appends && request.offset != 0 {
            return Err(WireError::Invalid { what: "offset of an append", value: request.offset }.into());
        }
        let target = self.target(self.data_node(call, true)?);
        let WriteRequest { offset, stability, method, .. } = request;
        // Its parts are written each by itself, and the offset of a later one must not begin again at 0.
        let end = Extent::new(offset, request.len.into()).end().ok_or(Status::TOO_LARGE)?;
        // Where an append will be is not known before: any lock may be in its way.
        let range = if appends { 0..u64::MAX } else { offset..end };
        if let Err(status) = self.check_locks(call, target.node, range, true)
            && (appends || method != Method::Direct || !self.sessions.has_written_before(call))
        {
            // What an earlier execution has left is looked at chunk by chunk.
            return Err(status.into());
        }
        let len = u64::from(request.len);
        let write = Writing { target, appends, offset, len, stability, method };
        match method {
            Method::Inline if request.len != call.header.payload_len => {
                Err(other_len(request.len as usize, call.header.payload_len as usize).into())
            }
            Method::Inline => {
                let data = self.connections.payload_of(call, payload);
                let tried = write.try_now(&mut *self.storage, data);
                self.end_write(call, write, tried, |worker| {
                    own_copy(worker.connections.payload_of(call, payload))
                })
            }
            Method::Direct => {
                check_payload(call, request.segment_count)?;
                let segments =
                    self.segments(call, payload, request.segment_count, request.segment, request.len)?;
                let kind = if appends { TransferKind::Append } else { TransferKind::Write };
                let mut transfer = Transfer::new(kind, target.node, offset, u64::from(request.len), segments);
                transfer.request.stability = stability;
                self.write_direct(call, write, transfer)
            }
            Method::Eager => self.write_eager_buffer(call, write, &request),
            Method::ClientInitiated => {
                check_payload(call, 0)?;
                self.write_eager_buffer(call, write, &request)
            }
        }
    }

    /// Ends a write that was tried at once; where storage has to be waited for, it is given `memory`.
    #[inline]
    pub(super) fn end_write(
        &mut self,
        call: &Call,
        write: Writing,
        tried: Result<usize, NowError>,
        memory: impl FnOnce(&mut Self) -> Result<MemoryRef, Status>,
    ) -> Served {
        match tried {
            Ok(count) => self.written(call, write, count),
            Err(NowError::Failed(status)) => Err(status.into()),
            Err(NowError::WouldBlock) => {
                self.stats.counted.storage_waits += u64::from(!write.appends);
                let from = vec![memory(self)?];
                self.write_later(call, write, from)
            }
        }
    }

    /// Data is in the file: answers, after making it durable where that was asked for.
    fn written(&mut self, call: &Call, write: Writing, count: usize) -> Served {
        let Writing { target: Target { node, .. }, offset, stability, .. } = write;
        if stability == Stability::Unstable {
            self.finish_write(call, write, count);
            return Ok(());
        }
        self.count_moved(call, true, node.export, write.method, count);
        let len = u32::try_from(count).expect("writes are bounded by transfer_size_max");
        let op = FsOp::Commit { node, offset, len: u64::from(len), stability };
        self.start(call, op, After::Written(write, len))
    }

    /// Leaves the write to storage.
    fn write_later(&mut self, call: &Call, write: Writing, from: Vec<MemoryRef>) -> Served {
        let Writing { target: Target { node, .. }, offset, stability, .. } = write;
        let op = match write.appends {
            true => FsOp::Append { node, from, stability },
            false => FsOp::Write { node, offset, from, stability },
        };
        self.start(call, op, After::Write(write))
    }

    /// Straight out of the client's memory where the provider maps it; else as a transfer.
    fn write_direct(&mut self, call: &Call, write: Writing, transfer: Transfer) -> Served {
        let Writing { target: Target { node, .. }, appends, offset, stability, .. } = write;
        if self.sessions.has_written_before(call) {
            return self.begin_transfer(call, transfer);
        }
        if let [segment] = transfer.request.segments[..] {
            if !appends && self.sched.is_divided(transfer.request.len, self.now) {
                // All of it is the client's, or nothing of it is done.
                self.connections.remote_memory(call, &segment, Access::REMOTE_READ)?;
                return self.begin_transfer(call, transfer);
            }
            if !appends {
                let storage = &mut *self.storage;
                let connection = self.connections.find_mut(call.connection);
                let moved = with_remote_memory(connection, &segment, Access::REMOTE_READ, |span| {
                    write_all(storage, node, offset, span)
                })?;
                match moved {
                    Some(Ok(count)) => {
                        self.sched.turn().on_moved(count);
                        return self.written(call, write, count);
                    }
                    Some(Err(NowError::Failed(status))) => return Err(status.into()),
                    Some(Err(NowError::WouldBlock)) => self.stats.counted.storage_waits += 1,
                    None => {}
                }
            }
            if let Some(memory) = self.connections.remote_memory(call, &segment, Access::REMOTE_READ)? {
                return self.write_later(call, write, vec![memory]);
            }
        } else if transfer.request.segments.len() > 1 && !appends {
            let extent = Extent::new(offset, transfer.request.len);
            let place = (TransferKind::Write, node);
            if let Some(count) = self.move_scattered(call, place, extent, &transfer.request.segments)? {
                return self.written(call, write, count);
            }
            return self.begin_scattered(
                call,
                place,
                extent,
                transfer.request.segments.into_vec(),
                stability,
            );
        }
        self.begin_transfer(call, transfer)
    }
}

impl Writing {
    /// Writes `data` where that needs no waiting.
    #[inline]
    pub(super) fn try_now(&self, storage: &mut dyn Storage, data: Span<'_>) -> Result<usize, NowError> {
        match self.appends {
            true => Err(NowError::WouldBlock),
            false => write_all(storage, self.target.node, self.offset, data),
        }
    }
}

/// Writes all of `data` at once; a count below its length means that an error came after it.
pub(crate) fn write_all(
    storage: &mut dyn Storage,
    node: NodeId,
    offset: u64,
    data: Span<'_>,
) -> Result<usize, NowError> {
    let mut count = storage.write_now(node, offset, &[data])?;
    while count < data.len() && count > 0 {
        let rest = data.slice(count, data.len() - count).unwrap_or(Span::EMPTY);
        match storage.write_now(node, offset + count as u64, &[rest]) {
            Ok(0) => break,
            Ok(more) => count += more,
            // All of it again, by storage itself: the beginning is written twice with the same data.
            Err(NowError::WouldBlock) => return Err(NowError::WouldBlock),
            Err(NowError::Failed(_)) => break,
        }
    }
    Ok(count)
}

/// The data of an inline write is not as long as its request says.
#[cold]
fn other_len(said: usize, found: usize) -> WireError {
    let what = "data of an inline write";
    match said.checked_sub(found) {
        Some(missing) => WireError::Truncated { what, missing },
        None => WireError::TrailingBytes { what, extra: found - said },
    }
}
