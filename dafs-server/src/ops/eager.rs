//! Eager buffers: buffers of this side that are lent to a connection, each paired with one of the client's. The methods eager and
//! client-initiated move data through them (`spec/protocol/wire.md`).
//!
//! The client decides what an eager buffer is used for; the server uses one only while it executes a request that names it. So a client
//! that uses an eager buffer for two things at once damages only its own data. Eager buffers are fresh memory, zeroed, and end with their
//! connection.
#![allow(clippy::cast_possible_truncation, reason = "lengths within an eager buffer")]

use std::sync::Arc;

use dafs_proto::transport::{
    Access, HEAD_SIZE_MAX, HeapMemory, LocalSegments, MemoryRef, OpToken, PostError, Posted,
};
use dafs_proto::wire::{
    EAGER_BUFFER_ROOM, EAGER_REPLY_HEAD_SIZE, EagerBufferTerms, FileHandle, HEADER_SIZE, ReadReply,
    ReadRequest, Status, WriteRequest, decode_segments, encode_segments,
};

use super::Worker;
use crate::storage::NodeId;
use crate::worker::flight::Call;
use crate::worker::flight::after::{Reading, Writing};
use crate::worker::flight::answer::{Answer, Payload, Served};
use crate::worker::flight::eager::{EagerBuffer, EagerBuffers, EagerFrame};
use crate::worker::flight::transfer::range;
use crate::worker::ids::ConnectionKey;
use crate::worker::operations::WaitsFor;

/// An eager buffer with less data than this is not worth having, bytes.
const EAGER_BUFFER_SIZE_MIN: usize = 4096;

/// RDMA of frames belongs to no operation in flight.
const FRAME_TOKEN: OpToken = OpToken(u64::MAX);

impl Worker {
    /// Takes the eager buffers of a connection back.
    pub(crate) fn end_eager_buffers(&mut self, key: ConnectionKey) {
        let eager_buffers =
            self.connections.find_mut(key).map(|connection| std::mem::take(&mut connection.eager_buffers));
        self.buffers
            .discharge_eager_buffers(eager_buffers.map_or(0, |eager_buffers| eager_buffers.memory_size()));
    }

    /// A request for eager buffers: answered with as many as the session's share of the memory allows, perhaps none.
    pub(crate) fn lend_eager_buffers(&mut self, call: &Call, body: &[u8], payload: Payload<'_>) -> Served {
        let asked = EagerBufferTerms::decode(body)?;
        let ranges = decode_segments(&self.connections.copied_payload(call, payload), asked.count)?;
        if ranges.iter().any(|[_, _, len]| *len != asked.buffer_size() as u64) {
            return Err(Status::INVALID.into());
        }
        self.end_eager_buffers(call.connection);
        let eager_buffers = self.make_eager_buffers(call.connection, &asked, &ranges);
        let terms = EagerBufferTerms {
            count: eager_buffers.eager_buffers.len() as u16,
            size: eager_buffers.size,
            ..asked
        };
        let own: Vec<_> =
            eager_buffers.eager_buffers.iter().map(|eager_buffer| eager_buffer.region.range()).collect();
        let own: Vec<_> = own.iter().map(|range| [range.key.0, range.offset, range.len]).collect();
        let mut payload = vec![0; terms.payload_size()];
        encode_segments(&own, &mut payload);
        let mut body = [0; EagerBufferTerms::HEAD_SIZE - HEADER_SIZE];
        terms.encode(&mut body);
        match self.connections.find_mut(call.connection) {
            Some(connection) => connection.eager_buffers = eager_buffers,
            None => self.buffers.discharge_eager_buffers(eager_buffers.memory_size()),
        }
        self.reply(call, Status::OK, Answer { body: &body, payload: &payload, ..Answer::default() });
        Ok(())
    }

    fn make_eager_buffers(
        &mut self,
        key: ConnectionKey,
        asked: &EagerBufferTerms,
        ranges: &[[u64; 3]],
    ) -> EagerBuffers {
        let (count, size) = self.eager_buffer_share(asked);
        let Some(domain) = self.connections.eager_domain(key) else { return EagerBuffers::default() };
        let mut access = Access::REMOTE_WRITE;
        if asked.reads {
            access |= Access::REMOTE_READ;
        }
        let mut eager_buffers = EagerBuffers { eager_buffers: Vec::with_capacity(count), size };
        for remote in ranges.iter().take(count) {
            if !self.buffers.charge_eager_buffers(EAGER_BUFFER_ROOM + size as usize) {
                break;
            }
            let connection = self.connections.find_mut(key);
            let memory = HeapMemory::allocate(EAGER_BUFFER_ROOM + size as usize);
            let made = memory.zip(connection).map(|(memory, connection)| {
                let memory: MemoryRef = MemoryRef::new(Arc::new(memory));
                let region = connection.endpoint.register(&*domain, memory.clone(), access);
                region.map(|region| (memory, region))
            });
            if let Some(Ok((memory, region))) = made {
                eager_buffers.eager_buffers.push(EagerBuffer { memory, region, remote: range(*remote) });
                continue;
            }
            if let Some(Err(error)) = made {
                tracing::info!(%error, eager_buffers = eager_buffers.eager_buffers.len(), "cannot register more memory to lend");
            }
            self.buffers.discharge_eager_buffers(EAGER_BUFFER_ROOM + size as usize);
            break;
        }
        eager_buffers
    }

    /// How many eager buffers of which size a session may have: its fair share of what is not lent.
    fn eager_buffer_share(&self, asked: &EagerBufferTerms) -> (usize, u32) {
        // What the settings say, where the pool has more because it needs that much.
        let budget = self.shared.settings.buffers().size_max / 2;
        let free =
            self.buffers.eager_buffers_room().min(budget.saturating_sub(self.buffers.eager_buffers_size()));
        let share = free.min(budget / self.sessions.active().max(1) as usize);
        let count = usize::from(asked.count).min(share / asked.buffer_size());
        if count > 0 || asked.count == 0 || share < EAGER_BUFFER_ROOM + EAGER_BUFFER_SIZE_MIN {
            return (count, asked.size);
        }
        // One, and smaller.
        (1, asked.size.min((share - EAGER_BUFFER_ROOM) as u32))
    }

    /// A write whose data is in an eager buffer already.
    pub(crate) fn write_eager_buffer(
        &mut self,
        call: &Call,
        write: Writing,
        request: &WriteRequest,
    ) -> Served {
        let memory = self.connections.eager_buffer_data(call, request.segment[0], request.len)?;
        let tried = write.try_now(&mut *self.storage, memory.span());
        self.end_write(call, write, tried, |_| Ok(memory))
    }

    /// A read into an eager buffer: fast, the client gets it in a frame; else it fetches it there.
    pub(crate) fn read_eager_buffer(&mut self, call: &Call, node: NodeId, request: &ReadRequest) -> Served {
        let memory = self.connections.eager_buffer_data(call, request.segment[0], request.len)?;
        let eager_buffer = (call.connection, request.segment[0] as u32);
        let read = Reading { memory, method: request.method, export: node.export, eager_buffer };
        self.read_into(call, (node, request.offset), read)
    }

    /// Sends what was read into an eager buffer, behind the head of its reply, into the client's.
    pub(super) fn send_eager_buffer_read(&mut self, call: &Call, read: &Reading, count: usize, body: &[u8]) {
        let mut head = [0; HEAD_SIZE_MAX];
        let head_len = self.seal(call, Status::OK, FileHandle::default(), body, count, &mut head);
        debug_assert_eq!(head_len, EAGER_REPLY_HEAD_SIZE, "the head of a read's reply");
        let (of, eager_buffer) = read.eager_buffer;
        let Some(connection) = self.connections.find_mut(call.connection).filter(|_| call.connection == of)
        else {
            // The client asks again on its next connection.
            return;
        };
        let begin = EAGER_BUFFER_ROOM - EAGER_REPLY_HEAD_SIZE;
        let frame_len = EAGER_REPLY_HEAD_SIZE + count;
        let frame = connection.eager_buffers.eager_buffer(eager_buffer.into()).and_then(|eager_buffer| {
            eager_buffer.memory.span().write_from(begin, &head[..head_len]);
            Some((
                eager_buffer.memory.slice(begin, frame_len)?,
                eager_buffer.remote.slice(begin as u64, frame_len as u64)?,
            ))
        });
        if let Some((from, to)) = frame {
            self.post_eager_frame(call, EagerFrame { eager_buffer, from, to });
        }
    }

    fn post_eager_frame(&mut self, call: &Call, frame: EagerFrame) {
        let Some(connection) = self.connections.find_mut(call.connection) else { return };
        connection.dirty = true;
        let local = LocalSegments::from_iter([frame.from.clone()]);
        match connection.endpoint.rdma_write(FRAME_TOKEN, local, frame.to, Some(frame.eager_buffer)) {
            Ok(posted) => connection.rdma.on_posted_apart(u32::from(posted == Posted::Pending)),
            Err(PostError::Full) => {
                let token = self.park(*call, WaitsFor::EagerFrame(frame));
                if let Some(index) = self.operations.index_of(token)
                    && let Some(connection) = self.connections.find_mut(call.connection)
                {
                    connection.rdma.wait_for_room(index);
                }
            }
            // The next receive tells why.
            Err(PostError::Closed) => {}
            Err(error @ (PostError::Invalid(_) | PostError::Faulted)) => {
                self.end_for_fault(call.connection, error)
            }
        }
    }

    /// The provider has room again.
    pub(crate) fn resume_eager_frame(&mut self, index: usize) {
        let operation = self.unpark(index);
        if let WaitsFor::EagerFrame(frame) = operation.state {
            self.post_eager_frame(&operation.call, frame);
        }
    }
}

const _: () = assert!(EAGER_REPLY_HEAD_SIZE == ReadReply::HEAD_SIZE);
