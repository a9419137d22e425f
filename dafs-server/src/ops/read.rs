//! Read: inline from the page cache straight into the outgoing message, direct through [`Transfer`].

use dafs_proto::extent::Extent;
use dafs_proto::transport::Access;
use dafs_proto::wire::{Method, ReadRequest, Stability, Status, WireError, decode_segments};

use super::Worker;
use crate::storage::{FsOp, NodeId, NowError};
use crate::worker::connections::memory::with_remote_memory;
use crate::worker::flight::after::{After, Reading};
use crate::worker::flight::answer::{Answer, Keep, Payload, Problem, Served};
use crate::worker::flight::transfer::{Segments, Transfer, TransferKind, range};
use crate::worker::flight::{Call, own_memory};
use crate::worker::requests::reply::read_reply;

impl Worker {
    #[inline]
    pub(crate) fn read(&mut self, call: &Call, body: &[u8], payload: Payload<'_>) -> Served {
        let request = ReadRequest::decode(body)?;
        check_payload(call, request.segment_count)?;
        let node = self.data_node(call, false)?;
        // Its parts are read each by itself, and the offset of a later one must not begin again at 0.
        let end = Extent::new(request.offset, request.len.into()).end().ok_or(Status::INVALID)?;
        self.check_locks(call, node, request.offset..end, false)?;
        match request.method {
            Method::Inline => self.read_inline(call, node, &request),
            Method::Direct => {
                let segments =
                    self.segments(call, payload, request.segment_count, request.segment, request.len)?;
                self.read_direct(call, node, request.offset, request.len, segments)
            }
            Method::Eager | Method::ClientInitiated => self.read_eager_buffer(call, node, &request),
        }
    }

    fn read_inline(&mut self, call: &Call, node: NodeId, request: &ReadRequest) -> Served {
        let len = request.len as usize;
        let Some(connection) = self.connections.find_mut(call.connection) else {
            return Ok(());
        };
        if request.len > connection.endpoint.capabilities().send_payload_max {
            return Err(Status::INVALID.into());
        }
        if connection.sends_at_once()
            && let Ok(slot) = connection.endpoint.reserve(len)
        {
            let room = connection.endpoint.slot_payload(&slot).slice(0, len).ok_or(Status::INVALID)?;
            match self.storage.read_now(node, request.offset, &[room]) {
                Ok(count) => {
                    self.sched.turn().on_moved(count);
                    self.count_moved(call, false, node.export, Method::Inline, count);
                    self.send_slot(call, slot, &read_reply(count, len), count);
                    return Ok(());
                }
                Err(error) => {
                    connection.endpoint.cancel_send(slot);
                    if let NowError::Failed(status) = error {
                        return Err(status.into());
                    }
                }
            }
        }
        // Storage has to be waited for, or the provider's queue is full.
        let (method, eager_buffer) = (Method::Inline, (call.connection, 0));
        let read = Reading { memory: own_memory(len)?, method, export: node.export, eager_buffer };
        self.read_into(call, (node, request.offset), read)
    }

    /// Reads into memory of the server's own; the reply follows when storage has done so, which may be at once.
    pub(super) fn read_into(&mut self, call: &Call, (node, offset): (NodeId, u64), read: Reading) -> Served {
        match self.storage.read_now(node, offset, &[read.memory.span()]) {
            Ok(count) => self.answer_read(call, &read, count),
            Err(NowError::Failed(status)) => return Err(status.into()),
            Err(NowError::WouldBlock) => {
                self.stats.counted.storage_waits += 1;
                let op = FsOp::Read { node, offset, into: vec![read.memory.clone()] };
                self.start(call, op, After::Read(read))?;
            }
        }
        Ok(())
    }

    /// Storage has read so many bytes.
    pub(super) fn answer_read(&mut self, call: &Call, read: &Reading, count: usize) {
        if read.method != Method::Inline && self.connections.is_eager_buffer_replaced(read) {
            return self.reply_status(call, Status::REMOTE_ACCESS);
        }
        self.count_moved(call, false, read.export, read.method, count);
        let body = read_reply(count, read.memory.len());
        if read.method == Method::Eager {
            return self.send_eager_buffer_read(call, read, count, &body);
        }
        let data = match read.method {
            Method::Inline => read.memory.span().slice(0, count).map(|span| span.to_vec()),
            _ => None,
        };
        let payload = &data.unwrap_or_default()[..];
        let keep = if read.method == Method::ClientInitiated { Keep::Never } else { Keep::AsAny };
        self.reply(call, Status::OK, Answer { body: &body, payload, keep, ..Answer::default() });
    }

    /// Straight into the client's memory where the provider maps it and storage has the data at hand; else as a transfer.
    fn read_direct(
        &mut self,
        call: &Call,
        node: NodeId,
        offset: u64,
        len: u32,
        segments: Segments,
    ) -> Served {
        let divided = self.sched.is_divided(u64::from(len), self.now);
        if let ([segment], true) = (&segments[..], divided) {
            // All of it is the client's, or nothing of it is done.
            self.connections.remote_memory(call, segment, Access::REMOTE_WRITE)?;
        }
        if let ([segment], false) = (&segments[..], divided) {
            let storage = &mut *self.storage;
            let connection = self.connections.find_mut(call.connection);
            let moved = with_remote_memory(connection, segment, Access::REMOTE_WRITE, |span| {
                storage.read_now(node, offset, &[span])
            })?;
            match moved {
                Some(Ok(count)) => {
                    self.sched.turn().on_moved(count);
                    self.reply_read(call, node.export, count, len);
                    return Ok(());
                }
                Some(Err(NowError::Failed(status))) => return Err(status.into()),
                Some(Err(NowError::WouldBlock)) | None => {}
            }
        }
        if segments.len() > 1 {
            let extent = Extent::new(offset, u64::from(len));
            let target = (TransferKind::Read, node);
            if let Some(count) = self.move_scattered(call, target, extent, &segments)? {
                self.reply_read(call, node.export, count, len);
                return Ok(());
            }
            return self.begin_scattered(call, target, extent, segments.into_vec(), Stability::Unstable);
        }
        let transfer = Transfer::new(TransferKind::Read, node, offset, u64::from(len), segments);
        self.begin_transfer(call, transfer)
    }

    /// The ranges of a direct request: their total is the request's length, which the limits allow.
    pub(crate) fn segments(
        &mut self,
        call: &Call,
        payload: Payload<'_>,
        count: u16,
        single: [u64; 3],
        len: u32,
    ) -> Result<Segments, Problem> {
        if len > self.shared.settings.transfer_size_max {
            return Err(Status::INVALID.into());
        }
        let mut ranges = match count {
            1 => Segments::from_elem(range(single), 1),
            _ => {
                let ranges = decode_segments(&self.connections.copied_payload(call, payload), count)?;
                // In the memory that holds them already.
                Segments::from_vec(ranges.into_iter().map(range).collect())
            }
        };
        let total = ranges.iter().try_fold(0u64, |sum, range| sum.checked_add(range.len));
        if total != Some(u64::from(len)) {
            return Err(Status::INVALID.into());
        }
        // What has no bytes names no memory.
        if ranges.len() > 1 && len > 0 {
            ranges.retain(|range| range.len > 0);
        }
        Ok(ranges)
    }
}

/// More than one range is in the payload, and nothing else is, where no data is.
#[inline]
pub(super) fn check_payload(call: &Call, ranges: u16) -> Result<(), WireError> {
    match call.header.payload_len as usize {
        extra @ 1.. if ranges < 2 => {
            Err(WireError::TrailingBytes { what: "request without a payload", extra })
        }
        _ => Ok(()),
    }
}
