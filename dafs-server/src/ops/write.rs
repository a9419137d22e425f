//! Write and append: inline from the arrived message straight into the page cache, direct through [`Transfer`].

use std::sync::Arc;

use dafs_proto::extent::Extent;
use dafs_proto::transport::{Access, HeapMemory, MemoryRef, Span};
use dafs_proto::wire::{Method, Opcode, Stability, Status, WireError, WriteRequest};

use super::Worker;
use super::read::with_remote_memory;
use crate::storage::{FsOp, NodeId, NowError};
use crate::worker::flight::Call;
use crate::worker::flight::after::{After, Target};
use crate::worker::flight::answer::{Payload, Problem};
use crate::worker::flight::transfer::{Direction, Transfer};

impl Worker {
    #[inline]
    pub(crate) fn write(&mut self, call: &Call, body: &[u8], payload: Payload<'_>) -> Result<(), Problem> {
        let request = WriteRequest::decode(body)?;
        let append = call.header.opcode == Opcode::Append;
        if append && request.offset != 0 {
            return Err(WireError::Invalid { what: "offset of an append", value: request.offset }.into());
        }
        let open = self.handle(call)?;
        if !open.writable {
            return Err(Status::BAD_HANDLE.into());
        }
        let node = open.node;
        // Its parts are written each by itself, and the offset of a later one must not begin again at 0.
        Extent::new(request.offset, request.len.into()).end().ok_or(Status::TOO_LARGE)?;
        match request.method {
            Method::Inline if request.len != call.header.payload_len => {
                Err(WireError::Invalid { what: "length of an inline write", value: u64::from(request.len) }
                    .into())
            }
            Method::Inline => self.write_inline(call, node, &request, append, payload),
            Method::Direct => {
                let segments =
                    self.segments(call, payload, request.segment_count, request.segment, request.len)?;
                let direction = if append { Direction::Append } else { Direction::Write };
                let mut transfer =
                    Transfer::new(direction, node, request.offset, u64::from(request.len), segments);
                transfer.stability = request.stability;
                self.write_direct(call, transfer)
            }
            Method::Fast | Method::Client => self.write_lane(call, node, &request, append),
        }
    }

    fn write_inline(
        &mut self,
        call: &Call,
        node: NodeId,
        request: &WriteRequest,
        append: bool,
        payload: Payload<'_>,
    ) -> Result<(), Problem> {
        let target = self.target(node);
        if !append {
            let outcome = match payload {
                Payload::Current => {
                    let Some(connection) = self.connections.get(call.connection.index) else { return Ok(()) };
                    write_all(&mut *self.storage, node, request.offset, connection.endpoint.payload())
                }
                Payload::Kept(_) => Err(NowError::WouldBlock),
            };
            match outcome {
                Ok(count) => {
                    return self.written(
                        call,
                        target,
                        request.offset,
                        count,
                        request.stability,
                        Method::Inline,
                    );
                }
                Err(NowError::Failed(status)) => return Err(status.into()),
                Err(NowError::WouldBlock) => self.stats.storage_waits += 1,
            }
        }
        let memory = self.kept_payload(call, payload)?;
        self.write_later(
            call,
            target,
            request.offset,
            request.stability,
            append,
            vec![memory],
            Method::Inline,
        )
    }

    /// Data is in the file: answers, after making it durable where that was asked for.
    pub(crate) fn written(
        &mut self,
        call: &Call,
        target: Target,
        offset: u64,
        count: usize,
        stability: Stability,
        method: Method,
    ) -> Result<(), Problem> {
        let Target { node, verifier } = target;
        self.count_written(call.session, usize::from(node.export.0), method, count);
        let count = u32::try_from(count).expect("writes are bounded by transfer_size_max");
        if stability == Stability::Unstable {
            self.reply_written(call, verifier, offset, count, stability);
            return Ok(());
        }
        let identity = self.handle(call)?.rights.identity.clone();
        let op = FsOp::Commit { node, offset, len: u64::from(count), stability };
        self.start(call, &identity, op, After::Written { verifier, offset, count, stability });
        Ok(())
    }

    /// Leaves the write to storage.
    #[expect(clippy::too_many_arguments, reason = "a write is all of these")]
    pub(crate) fn write_later(
        &mut self,
        call: &Call,
        target: Target,
        offset: u64,
        stability: Stability,
        append: bool,
        from: Vec<MemoryRef>,
        method: Method,
    ) -> Result<(), Problem> {
        let identity = self.handle(call)?.rights.identity.clone();
        let node = target.node;
        let after = After::Write { target, offset, stability, method };
        let op = if append {
            FsOp::Append { node, from, stability }
        } else {
            FsOp::Write { node, offset, from, stability }
        };
        self.start(call, &identity, op, after);
        Ok(())
    }

    /// Straight out of the client's memory where the provider maps it; else as a transfer.
    fn write_direct(&mut self, call: &Call, transfer: Transfer) -> Result<(), Problem> {
        let (node, offset, stability) = (transfer.node, transfer.offset, transfer.stability);
        let target = self.target(node);
        let divided = transfer.direction == Direction::Write && self.is_divided(transfer.len);
        if let ([segment], true) = (&transfer.segments[..], divided) {
            // All of it is the client's, or nothing of it is done.
            self.remote_memory(call, segment, Access::REMOTE_READ)?;
            return self.begin_transfer(call, transfer);
        }
        if let ([segment], Direction::Write) = (&transfer.segments[..], transfer.direction) {
            let storage = &mut *self.storage;
            let connection = self.connections.get_mut(call.connection.index);
            let moved = with_remote_memory(connection, call, segment, Access::REMOTE_READ, |span| {
                write_all(storage, node, offset, span)
            })?;
            match moved {
                Some(Ok(count)) => {
                    self.turns.on_moved(count);
                    return self.written(call, target, offset, count, stability, Method::Direct);
                }
                Some(Err(NowError::Failed(status))) => return Err(status.into()),
                Some(Err(NowError::WouldBlock)) => self.stats.storage_waits += 1,
                None => {}
            }
        }
        if let [segment] = transfer.segments[..]
            && let Some(memory) = self.remote_memory(call, &segment, Access::REMOTE_READ)?
        {
            let append = transfer.direction == Direction::Append;
            return self.write_later(call, target, offset, stability, append, vec![memory], Method::Direct);
        }
        if transfer.segments.len() > 1 && transfer.direction == Direction::Write {
            let extent = Extent::new(offset, transfer.len);
            let place = (Direction::Write, node);
            if let Some(count) = self.move_scattered(call, place, extent, &transfer.segments)? {
                return self.written(call, target, offset, count, stability, Method::Direct);
            }
            return self.begin_scattered(call, place, extent, transfer.segments.into_vec(), stability);
        }
        self.begin_transfer(call, transfer)
    }

    /// The request's payload in memory that storage can keep.
    fn kept_payload(&self, call: &Call, payload: Payload<'_>) -> Result<MemoryRef, Status> {
        let keep = |bytes: Span<'_>| {
            let memory =
                MemoryRef::new(Arc::new(HeapMemory::allocate(bytes.len()).ok_or(Status::NO_MEMORY)?));
            let memory = memory.slice(0, bytes.len()).ok_or(Status::NO_MEMORY)?;
            memory.span().copy_from(bytes);
            Ok(memory)
        };
        match payload {
            Payload::Current => match self.connections.get(call.connection.index) {
                Some(connection) => keep(connection.endpoint.payload()),
                None => Err(Status::CANCELLED),
            },
            Payload::Kept(bytes) => {
                let mut bytes = bytes.to_vec();
                keep(Span::from_mut(&mut bytes))
            }
        }
    }
}

/// Writes all of `data` at once; a count below its length means that an error came after it.
pub(crate) fn write_all(
    storage: &mut dyn crate::storage::Storage,
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
