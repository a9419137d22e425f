//! Lanes: buffers of this side that are lent to a connection, each paired with one of the client's. The methods fast and client move data
//! through them (`spec/wire.md`).
//!
//! The client decides what a lane is used for; the server uses one only while it executes a request that names it. So a client
//! that uses a lane for two things at once spoils its own data and nobody else's. Lanes are fresh memory, zeroed, and end with
//! their connection.
#![allow(clippy::cast_possible_truncation, reason = "lengths within a lane")]

use std::sync::Arc;

use dafs_proto::transport::{
    Access, Domain, HEAD_SIZE_MAX, HeapMemory, LocalSegments, MemoryRef, OpToken, PostError, Posted,
};
use dafs_proto::wire::{
    HEADER_SIZE, Header, LANE_REPLY_HEAD_SIZE, LANE_ROOM, LaneTerms, Method, Opcode, ReadReply, ReadRequest,
    Status, WriteRequest, decode_segments, encode_segments,
};

use super::Worker;
use crate::storage::NodeId;
use crate::worker::connection::Phase;
use crate::worker::flight::Call;
use crate::worker::flight::after::{After, Reading, Writing};
use crate::worker::flight::answer::{Answer, Payload, Problem};
use crate::worker::flight::lanes::{Lane, LaneFrame, Lanes};
use crate::worker::flight::transfer::range;
use crate::worker::ids::{ConnectionKey, SessionKey};
use crate::worker::requests::work::State;

/// A lane with less data than this is not worth having, bytes.
const LANE_SIZE_MIN: usize = 4096;

/// RDMA of frames belongs to no operation in flight.
const FRAME_TOKEN: OpToken = OpToken(u64::MAX);

impl Worker {
    /// Connections of a listener may have lanes, registered in its domain.
    pub fn offer_lanes(&mut self, listener: usize, domain: Arc<dyn Domain>) {
        self.domains.resize(self.domains.len().max(listener + 1), None);
        self.domains[listener] = Some(domain);
    }

    /// Takes the lanes of a connection back.
    pub(crate) fn end_lanes(&mut self, key: ConnectionKey) {
        let lanes = self.connection(key).map(|connection| std::mem::take(&mut connection.lanes));
        self.buffers.discharge_lanes(lanes.map_or(0, |lanes| lanes.memory_size()));
    }

    /// A request for lanes: answered with as many as the session's share of the memory allows, perhaps none.
    pub(crate) fn lend_lanes(
        &mut self,
        call: &Call,
        body: &[u8],
        payload: Payload<'_>,
    ) -> Result<(), Problem> {
        let asked = LaneTerms::decode(body)?;
        let ranges = decode_segments(&self.payload(call, payload), asked.count)?;
        if ranges.iter().any(|[_, _, len]| *len != asked.buffer_size() as u64) {
            return Err(Status::INVALID.into());
        }
        self.end_lanes(call.connection);
        let lanes = self.make_lanes(call.connection, &asked, &ranges);
        let terms = LaneTerms { count: lanes.lanes.len() as u16, size: lanes.size, ..asked };
        let own: Vec<_> = lanes.lanes.iter().map(|lane| lane.region.range()).collect();
        let own: Vec<_> = own.iter().map(|range| [range.key.0, range.offset, range.len]).collect();
        let mut payload = vec![0; terms.payload_size()];
        encode_segments(&own, &mut payload);
        let mut body = [0; LaneTerms::HEAD_SIZE - HEADER_SIZE];
        terms.encode(&mut body);
        match self.connection(call.connection) {
            Some(connection) => connection.lanes = lanes,
            None => self.buffers.discharge_lanes(lanes.memory_size()),
        }
        self.reply(call, Status::OK, Answer { body: &body, payload: &payload, ..Answer::default() });
        Ok(())
    }

    fn make_lanes(&mut self, key: ConnectionKey, asked: &LaneTerms, ranges: &[[u64; 3]]) -> Lanes {
        let (count, size) = self.lane_share(asked);
        let Some(connection) = self.connection(key) else { return Lanes::default() };
        let reachable = connection.endpoint.capabilities().registers_ordinary_memory;
        let listener = connection.listener;
        let Some(domain) = self.domains.get(listener).cloned().flatten().filter(|_| reachable) else {
            return Lanes::default();
        };
        let mut access = Access::REMOTE_WRITE;
        if asked.reads {
            access |= Access::REMOTE_READ;
        }
        let mut lanes = Lanes { lanes: Vec::with_capacity(count), size };
        for remote in ranges.iter().take(count) {
            if !self.buffers.charge_lanes(LANE_ROOM + size as usize) {
                break;
            }
            let connection = self.connections.get_mut(key.index).filter(|connection| connection.key == key);
            let memory = HeapMemory::allocate(LANE_ROOM + size as usize);
            let made = memory.zip(connection).map(|(memory, connection)| {
                let memory: MemoryRef = MemoryRef::new(Arc::new(memory));
                let region = connection.endpoint.register(&*domain, memory.clone(), access);
                region.map(|region| (memory, region))
            });
            if let Some(Ok((memory, region))) = made {
                lanes.lanes.push(Lane { memory, region, remote: range(*remote) });
                continue;
            }
            if let Some(Err(error)) = made {
                tracing::info!(%error, lanes = lanes.lanes.len(), "cannot register more memory to lend");
            }
            self.buffers.discharge_lanes(LANE_ROOM + size as usize);
            break;
        }
        lanes
    }

    /// How many lanes of which size a session may have: its fair share of what is not lent.
    fn lane_share(&self, asked: &LaneTerms) -> (usize, u32) {
        // What the settings say, where the pool has more because it needs that much.
        let budget = self.shared.settings.buffers().size_max / 2;
        let free = self.buffers.lanes_room().min(budget.saturating_sub(self.buffers.lanes_size()));
        let share = free.min(budget / self.active_sessions.max(1) as usize);
        let count = usize::from(asked.count).min(share / asked.buffer_size());
        if count > 0 || asked.count == 0 || share < LANE_ROOM + LANE_SIZE_MIN {
            return (count, asked.size);
        }
        // One, and smaller.
        (1, asked.size.min((share - LANE_ROOM) as u32))
    }

    /// The client wrote into one of its lanes: a request whose data is there.
    pub(crate) fn on_lane_frame(&mut self, key: ConnectionKey, lane: u32, written: u32) {
        let Some(connection) = self.connection(key) else { return };
        let frame = match connection.phase {
            Phase::Live(session) => connection.lanes.frame(lane, written).map(|frame| (session, frame)),
            _ => None,
        };
        let Some((session, (head, payload_len))) = frame else {
            return self
                .end_for_fault(key, format_args!("immediate {lane} of {written} bytes names no frame"));
        };
        let (header, body) = match Header::decode(head.as_bytes(), payload_len) {
            Ok(decoded) => decoded,
            Err(error) => return self.end_for_fault(key, error),
        };
        let writes = matches!(header.opcode, Opcode::Write | Opcode::Append);
        let fits = writes
            && WriteRequest::decode(body).is_ok_and(|request| {
                request.method == Method::Fast
                    && request.segment[0] == u64::from(lane)
                    && request.len == payload_len
            });
        if !fits {
            return self.end_for_fault(key, "a frame in a lane that is no write through it");
        }
        self.on_request(key, session, header, body);
    }

    /// A write whose data is in a lane already.
    pub(crate) fn write_lane(
        &mut self,
        call: &Call,
        write: Writing,
        request: &WriteRequest,
    ) -> Result<(), Problem> {
        let memory = self.lane_data(call, request.segment[0], request.len)?;
        let tried = write.try_now(&mut *self.storage, memory.span());
        self.end_write(call, write, tried, |_| Ok(memory))
    }

    /// A read into a lane: fast, the client gets it in a frame; else it fetches it there.
    pub(crate) fn read_lane(
        &mut self,
        call: &Call,
        node: NodeId,
        request: &ReadRequest,
    ) -> Result<(), Problem> {
        let memory = self.lane_data(call, request.segment[0], request.len)?;
        let lane = (call.connection, request.segment[0] as u32);
        let read = Reading { memory, method: request.method, export: node.export, lane };
        self.read_into(call, (node, request.offset), read)
    }

    /// Sends what was read into a lane, behind the head of its reply, into the client's.
    pub(super) fn send_lane_read(&mut self, call: &Call, read: &Reading, count: usize, body: &[u8]) {
        let mut head = [0; HEAD_SIZE_MAX];
        let head_len = self.seal(call, Status::OK, Self::no_handle(), body, count, &mut head);
        debug_assert_eq!(head_len, LANE_REPLY_HEAD_SIZE, "the head of a read's reply");
        let (of, lane) = read.lane;
        let Some(connection) = self.connection(call.connection).filter(|_| call.connection == of) else {
            // The client asks again on its next connection.
            return;
        };
        let begin = LANE_ROOM - LANE_REPLY_HEAD_SIZE;
        let frame_len = LANE_REPLY_HEAD_SIZE + count;
        let frame = connection.lanes.lane(lane.into()).and_then(|lane| {
            lane.memory.span().write_from(begin, &head[..head_len]);
            Some((lane.memory.slice(begin, frame_len)?, lane.remote.slice(begin as u64, frame_len as u64)?))
        });
        if let Some((from, to)) = frame {
            self.post_lane_frame(call, LaneFrame { lane, from, to });
        }
    }

    fn post_lane_frame(&mut self, call: &Call, frame: LaneFrame) {
        let Some(connection) = self.connection(call.connection) else { return };
        connection.dirty = true;
        let local = LocalSegments::from_iter([frame.from.clone()]);
        match connection.endpoint.rdma_write(FRAME_TOKEN, local, frame.to, Some(frame.lane)) {
            Ok(posted) => connection.rdma_pending += u32::from(posted == Posted::Pending),
            Err(PostError::Full) => {
                let token = self.park(*call, State::LaneFrame(frame));
                if let Some(index) = self.operation_index(token)
                    && let Some(connection) = self.connection(call.connection)
                {
                    connection.post_waiters.push_back(index);
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
    pub(crate) fn resume_lane_frame(&mut self, index: usize) {
        let operation = self.unpark(index);
        if let State::LaneFrame(frame) = operation.state {
            self.post_lane_frame(&operation.call, frame);
        }
    }

    /// A read into a lane of a connection that is gone was asked for again, on another connection, where it goes another way: the
    /// one under way is nobody's. `false` when it is another kind of operation, or on this connection.
    pub(crate) fn replaces_lane_read(
        &mut self,
        call_session: SessionKey,
        connection: ConnectionKey,
        header: &Header,
    ) -> bool {
        let found = self.operations.iter_mut().find(|(_, operation)| {
            operation.call.session == call_session
                && operation.call.header.slot == header.slot
                && !operation.forgotten
                && matches!(&operation.state, State::Storage(After::Read(read))
                    if read.method != Method::Inline && read.lane.0 != connection)
        });
        let Some((_, operation)) = found else { return false };
        operation.forgotten = true;
        if let Some(session) = self.sessions.find_mut(call_session) {
            session.core.on_abandoned(header.slot, None);
        }
        true
    }

    fn lane_data(&mut self, call: &Call, lane: u64, len: u32) -> Result<MemoryRef, Problem> {
        let connection = self.connection(call.connection).ok_or(Status::NO_SESSION)?;
        Ok(connection.lanes.data(lane, len).ok_or(Status::REMOTE_ACCESS)?)
    }
}

const _: () = assert!(LANE_REPLY_HEAD_SIZE == ReadReply::HEAD_SIZE);
