//! Lanes of a session: buffers of this side, each paired with one that the server lent. The methods fast and client go through them
//! (`spec/wire.md`).
//!
//! ```text
//! fast    write   copy into the lane, head and data ══ RDMA write with immediate ══▶ the server's side; reply as a message
//!         read    request as a message; reply and data ◀══ RDMA write with immediate ══ into this side's; copy out
//! client  write   data ══ RDMA write ══▶ the server's side; request and reply as messages
//!         read    request and reply as messages; data ◀══ RDMA read ══ out of the server's side
//! ```
//!
//! This side alone decides what a lane is used for. It is used by one request at a time, and is free when that was answered and RDMA that
//! this side posted for it has completed. Lanes end with their connection: what was under way is then asked for again, staged.

use std::collections::VecDeque;

use dafs_proto::session::SessionFault;
use dafs_proto::transport::{
    Access, Completion, Domain, Head, LocalSegments, MemoryRef, OpToken, PostError, Posted, Region,
    RegionKey, RemoteRange, Span,
};
use dafs_proto::wire::{
    Features, FileHandle, Flags, HEADER_SIZE, Header, LANE_REPLY_HEAD_SIZE, LANE_REQUEST_HEAD_SIZE,
    LANE_ROOM, LaneTerms, Method, Opcode, Slot, Status, decode_segments, encode_segments, lane_frame_data,
};
use slab::Slab;

use crate::config::Config;
use crate::engine::core::{Arrived, Core};
use crate::memory::{Staging, tell_once};
use crate::method::io_path::{IoPath, MethodOverride};
use crate::op::Op;
use crate::op::body::{Body, DataReply, wire};
use crate::op::draft::{Draft, HEAD_ROOM, HeadRoom, Outlet};
use crate::op::named::Named;
use crate::op::request::{Broken, Request};
use crate::op::transfer::{Transfer, TransferKind};

/// Where a session stands with its lanes.
pub(crate) enum LaneState {
    /// It has none: nobody asked, or the server has none to lend.
    None,
    /// The server was asked.
    Asked(Side),
    /// It has some.
    Granted(Lanes),
}

/// This side's buffers.
pub(crate) struct Side {
    memory: MemoryRef,
    // As long as it lives, the server reaches them.
    region: Region,
    terms: LaneTerms,
}

/// Lanes that can be used.
pub(crate) struct Lanes {
    side: Side,
    remote: Vec<RemoteRange>,
    /// Data of each, bytes.
    size: usize,
    free: Vec<u16>,
    // By lane: who still has it, the request and RDMA of this side.
    users: Vec<u8>,
    // By lane: the read whose reply is going to be written there.
    awaits: Vec<Option<Slot>>,
    moves: Slab<Move>,
    /// Fetches that found no room.
    unposted: VecDeque<usize>,
}

/// RDMA of this side, under way or waiting for room.
struct Move {
    op: usize,
    lane: u16,
    /// A read's data: which part of the transfer. `None`: a write's.
    fetch: Option<(usize, usize)>,
}

/// A lane for the next piece.
pub(crate) enum Next {
    /// There are no lanes.
    NoLanes,
    /// All are in use; one comes back.
    Busy,
    /// This one, with room for so many bytes, from or to so many segments.
    Lane { lane: u16, size: usize, segments_max: usize },
}

impl Side {
    fn allocate(domain: &dyn Domain, terms: LaneTerms) -> Result<Self, dafs_proto::transport::RegionError> {
        let len = usize::from(terms.count) * stride(terms);
        let memory = MemoryRef::new(domain.allocate(len)?);
        let region = domain.register(memory.clone(), Access::REMOTE_WRITE)?;
        Ok(Self { memory, region, terms })
    }

    fn ranges(&self) -> Vec<[u64; 3]> {
        let part = |lane: u16| {
            let begin = usize::from(lane) * stride(self.terms);
            self.region.range().slice(begin as u64, self.terms.buffer_size() as u64)
        };
        (0..self.terms.count).filter_map(part).map(wire).collect()
    }

    /// A part of a lane's buffer.
    fn part(&self, lane: u16, from: usize, len: usize) -> Option<MemoryRef> {
        self.memory.slice(usize::from(lane) * stride(self.terms) + from, len)
    }

    fn span(&self, lane: u16, from: usize, len: usize) -> Span<'_> {
        let begin = usize::from(lane) * stride(self.terms) + from;
        self.memory.span().slice(begin, len).unwrap_or(Span::EMPTY)
    }
}

fn stride(terms: LaneTerms) -> usize {
    terms.buffer_size().next_multiple_of(LANE_ROOM)
}

impl Lanes {
    fn release(&mut self, lane: u16) {
        let Some(users) = self.users.get_mut(usize::from(lane)) else { return };
        *users -= 1;
        if *users == 0 {
            self.free.push(lane);
        }
    }

    fn remote(&self, lane: u16, from: usize, len: usize) -> Option<RemoteRange> {
        self.remote.get(usize::from(lane))?.slice(from as u64, len as u64)
    }

    /// The data that came with a read's reply.
    pub(crate) fn arrived(&self, lane: u16, len: usize) -> Span<'_> {
        self.side.span(lane, LANE_ROOM, len)
    }

    /// Names the RDMA that begins next.
    fn next_token(&self) -> OpToken {
        OpToken(self.moves.vacant_key() as u64)
    }

    /// RDMA of this side begins, for an operation, through a lane.
    fn begin_move(&mut self, one: Move) -> usize {
        if let Some(users) = self.users.get_mut(usize::from(one.lane)) {
            *users += 1;
        }
        self.moves.insert(one)
    }
}

const OUTSIDE: PostError = PostError::Invalid("a piece outside of its lane");

/// A request for a piece whose data goes through a lane.
pub(crate) struct LaneRequest<'a> {
    pub(crate) header: Header,
    pub(crate) request: &'a Request,
    pub(crate) lane: u16,
    pub(crate) lanes: &'a mut Lanes,
}

impl LaneRequest<'_> {
    /// Sends it. RDMA of this side that was posted for it holds the operation's memory from then on, whatever the answer is.
    pub(crate) fn send(&mut self, outlet: &mut impl Outlet, op: &mut Op) -> Result<(), PostError> {
        let Some(transfer) = op.transfer() else { return Err(PostError::Invalid("names need no lane")) };
        self.header.handle = op.target.as_ref().map_or(FileHandle(0), |node| node.handle());
        let before = self.lanes.moves.len();
        let sent = match (transfer.path, transfer.kind) {
            (_, TransferKind::Read) => self.send_head(outlet, transfer),
            (IoPath::Fast, _) => self.write_frame(outlet, transfer),
            _ => outlet
                .check_room()
                .and_then(|()| self.write_data(outlet, transfer))
                .and_then(|()| self.send_head(outlet, transfer)),
        };
        op.outstanding += u16::from(self.lanes.moves.len() > before);
        sent
    }

    /// Sends it as a message, its data being moved apart from it.
    fn send_head(&mut self, outlet: &mut impl Outlet, transfer: &Transfer) -> Result<(), PostError> {
        let is_framed = transfer.path == IoPath::Fast;
        let method = if is_framed { Method::Fast } else { Method::Client };
        let mut head = HEAD_ROOM;
        outlet.send(self.draft(&mut head, transfer, method), 0, |_| {})?;
        let awaits = self.lanes.awaits.get_mut(usize::from(self.lane));
        if let Some(awaits) = awaits.filter(|_| is_framed) {
            *awaits = Some(self.header.slot);
        }
        Ok(())
    }

    /// Writes its data into the server's side of the lane.
    fn write_data(&mut self, outlet: &mut impl Outlet, transfer: &Transfer) -> Result<(), PostError> {
        let local = transfer.local(self.request.at, self.request.len);
        let remote = self.lanes.remote(self.lane, LANE_ROOM, self.request.len).ok_or(OUTSIDE)?;
        let posted = outlet.write(self.lanes.next_token(), local, remote, None)?;
        self.begin_move(posted);
        Ok(())
    }

    /// Writes head and data into the server's side of the lane, and tells the server by the immediate.
    fn write_frame(&mut self, outlet: &mut impl Outlet, transfer: &Transfer) -> Result<(), PostError> {
        let (lane, at, len) = (self.lane, self.request.at, self.request.len);
        let begin = LANE_ROOM - LANE_REQUEST_HEAD_SIZE;
        let remote = self.lanes.remote(lane, begin, LANE_REQUEST_HEAD_SIZE + len).ok_or(OUTSIDE)?;
        let mut head = HEAD_ROOM;
        let mut draft = self.draft(&mut head, transfer, Method::Fast);
        let (head, side) = (draft.head(len), &self.lanes.side);
        side.span(lane, begin, head.len()).write_from(0, head);
        let mut local = LocalSegments::new();
        match &transfer.registered {
            // Where it is registered, the device gathers it from where it is.
            Some(_) => {
                local.extend(side.part(lane, begin, head.len()));
                local.extend(transfer.local(at, len));
            }
            None => {
                transfer.gather(at, len, side.span(lane, LANE_ROOM, len));
                local.extend(side.part(lane, begin, head.len() + len));
            }
        }
        match outlet.write(self.lanes.next_token(), local, remote, Some(u32::from(lane))) {
            Ok(posted) => self.begin_move(posted),
            // As a message on a closed connection: it counts as sent.
            Err(PostError::Closed) => {}
            Err(error) => return Err(error),
        }
        Ok(())
    }

    fn begin_move(&mut self, posted: Posted) {
        if posted == Posted::Pending {
            self.lanes.begin_move(Move { op: self.request.op, lane: self.lane, fetch: None });
        }
    }

    fn draft<'a>(&self, head: &'a mut HeadRoom, transfer: &Transfer, method: Method) -> Draft<'a> {
        let offset = transfer.offset + self.request.at as u64;
        let body = Body::through_lane(transfer.kind, offset, self.request.len, method, self.lane);
        Draft::new(head, self.header, |head| body.encode(head))
    }
}

impl Core {
    /// Asks the server for lanes, where the configuration uses them and the server has such. Does not wait.
    pub(crate) fn ask_for_lanes(&mut self, config: &Config) {
        if matches!(self.lanes, LaneState::Asked(_)) || self.dead.is_some() {
            // The request is sent again by itself.
            return;
        }
        self.lanes = LaneState::None;
        let offered = Features::from_bits_truncate(self.terms.welcome.features).contains(Features::LANES);
        if !config.method.uses_lanes() || !offered || config.lane_count == 0 || !self.ensure_staging(config) {
            return;
        }
        let chunk_size = self.buffers.staging.as_ref().map_or(0, Staging::chunk_size);
        let terms = LaneTerms {
            count: config.lane_count.min(dafs_proto::wire::LANES_MAX),
            reads: config.method == MethodOverride::Client,
            // What is under way when a connection ends is staged.
            size: config.lane_size.clamp(1, u32::try_from(chunk_size).unwrap_or(u32::MAX)),
        };
        let side = match Side::allocate(&*self.buffers.domain, terms) {
            Ok(side) => side,
            Err(error) => {
                tell_once(&error);
                return;
            }
        };
        let ranges = side.ranges();
        let body_len = LaneTerms::HEAD_SIZE - HEADER_SIZE;
        let mut named = Named::of(body_len, |body| terms.encode(body));
        named.payload = vec![0; terms.payload_size()];
        encode_segments(&ranges, &mut named.payload);
        self.lanes = LaneState::Asked(side);
        // Before what may use them.
        self.submit_first(Op::detached(Opcode::Lanes, named));
    }

    /// The server has answered, or never will.
    pub(crate) fn on_lanes(&mut self, op: Op) {
        let LaneState::Asked(side) = std::mem::replace(&mut self.lanes, LaneState::None) else { return };
        let Ok(reply) = op.into_reply() else {
            tracing::info!("the server lends no eager buffers");
            return;
        };
        match granted(side, reply.head.as_bytes(), &reply.payload) {
            Some(lanes) => self.lanes = LaneState::Granted(lanes),
            None => tracing::info!("the server lends no eager buffers now"),
        }
    }

    /// Data that a lane carries, bytes; 0 without lanes.
    pub(crate) fn lane_size(&self) -> usize {
        match &self.lanes {
            LaneState::None => 0,
            LaneState::Asked(side) => side.terms.size as usize,
            LaneState::Granted(lanes) => lanes.size,
        }
    }

    /// Takes a lane for the next piece of an operation, where it uses lanes. An append that is larger than the lanes that there are
    /// now is not cut.
    pub(crate) fn take_lane_for(&mut self, op: usize, segments_max: usize) -> Next {
        let Some(transfer) = self.ops.get(op).and_then(Op::transfer) else { return Next::NoLanes };
        let LaneState::Granted(lanes) = &mut self.lanes else { return Next::NoLanes };
        let fits = transfer.len <= lanes.size && transfer.memory.len() <= segments_max
            || !matches!(transfer.kind, TransferKind::Append(_));
        if !transfer.path.uses_lane() || !fits {
            return Next::NoLanes;
        }
        let Some(lane) = lanes.free.pop() else { return Next::Busy };
        lanes.users[usize::from(lane)] = 1;
        Next::Lane { lane, size: lanes.size, segments_max }
    }

    /// A request has let go of its lane.
    pub(crate) fn release_lane(&mut self, lane: u16) {
        if let LaneState::Granted(lanes) = &mut self.lanes {
            if let Some(awaits) = lanes.awaits.get_mut(usize::from(lane)) {
                *awaits = None;
            }
            lanes.release(lane);
        }
    }

    /// The server wrote a frame into a lane: the reply of the read that waits there.
    pub(crate) fn handle_frame(&mut self, lane: u32, written: u32) -> Result<(), Broken> {
        self.signs.heard = true;
        let misplaced =
            || SessionFault::Misplaced { opcode: Opcode::Read, place: "as a frame where none is awaited" };
        let LaneState::Granted(lanes) = &mut self.lanes else { return Err(misplaced().into()) };
        let place = u16::try_from(lane).map_err(|_| misplaced())?;
        let slot = lanes.awaits.get_mut(usize::from(place)).and_then(Option::take).ok_or_else(misplaced)?;
        let size = u32::try_from(lanes.size).unwrap_or(u32::MAX);
        let data = lane_frame_data(written, LANE_REPLY_HEAD_SIZE, size).ok_or(SessionFault::TooMuch {
            what: "a frame in a lane",
            value: u64::from(written),
            limit: u64::from(size),
        })?;
        let mut bytes = [0; LANE_REPLY_HEAD_SIZE];
        lanes
            .side
            .span(place, LANE_ROOM - LANE_REPLY_HEAD_SIZE, LANE_REPLY_HEAD_SIZE)
            .read_into(0, &mut bytes);
        let head = Head::copy_of(&bytes).ok_or_else(misplaced)?;
        let (header, body) = Header::decode(head.as_bytes(), u32::try_from(data).unwrap_or(u32::MAX))?;
        let is_reply = header.flags.contains(Flags::REPLY) && !header.flags.contains(Flags::CALLBACK);
        if !is_reply || header.opcode != Opcode::Read || header.status != Status::OK || header.slot != slot {
            return Err(misplaced().into());
        }
        self.on_answer(&header, &head, body, Arrived::Frame { lane: place, len: data })
    }

    /// A read was answered whose data is in the server's side of its lane.
    pub(crate) fn fetch(&mut self, request: &Request, lane: u16, body: &[u8]) -> Result<(), Broken> {
        let count = DataReply::decode(TransferKind::Read, body)?.count.min(request.len);
        let LaneState::Granted(lanes) = &mut self.lanes else { return Ok(()) };
        if count == 0 {
            return Ok(());
        }
        let index = lanes.begin_move(Move { op: request.op, lane, fetch: Some((request.at, count)) });
        lanes.unposted.push_back(index);
        if let Some(op) = self.ops.get_mut(request.op) {
            op.outstanding += 1;
        }
        Ok(())
    }

    /// Posts what waits for room; returns whether anything.
    pub(crate) fn fetch_unposted(&mut self, outlet: &mut impl Outlet) -> bool {
        let LaneState::Granted(lanes) = &mut self.lanes else { return false };
        let before = lanes.unposted.len();
        let mut ended = Vec::new();
        while let Some(&index) = lanes.unposted.front() {
            let one = lanes.moves.get(index);
            let post = one.and_then(|one| {
                let (at, count) = one.fetch?;
                let transfer = self.ops.get(one.op)?.transfer()?;
                Some((transfer.local(at, count), lanes.remote(one.lane, LANE_ROOM, count)?))
            });
            let Some((local, remote)) = post else {
                lanes.unposted.pop_front();
                continue;
            };
            match outlet.read(OpToken(index as u64), local, remote) {
                Ok(Posted::Pending) => {}
                Ok(Posted::Done) => ended.push(index),
                Err(PostError::Full) => break,
                // The next receive tells why.
                Err(PostError::Closed | PostError::Invalid(_) | PostError::Faulted) => {}
            }
            lanes.unposted.pop_front();
        }
        let any = lanes.unposted.len() < before;
        for index in ended {
            self.end_move(index);
        }
        any
    }

    /// RDMA of this side is under way: its ends are to be told.
    #[inline]
    pub(crate) fn awaits_completions(&self) -> bool {
        matches!(&self.lanes, LaneState::Granted(lanes) if !lanes.moves.is_empty())
    }

    /// RDMA of this side has ended. What failed is asked for again on the next connection.
    pub(crate) fn handle_completion(&mut self, completion: Completion) -> Result<(), Broken> {
        completion.result?;
        self.end_move(usize::try_from(completion.token.0).unwrap_or(usize::MAX));
        Ok(())
    }

    fn end_move(&mut self, index: usize) {
        let LaneState::Granted(lanes) = &mut self.lanes else { return };
        let Some(one) = lanes.moves.try_remove(index) else { return };
        lanes.release(one.lane);
        if let Some(op) = self.ops.get_mut(one.op) {
            op.outstanding -= 1;
        }
        self.finish_if_ended(one.op);
    }

    /// The connection is gone, and the lanes with it: requests through them are sent again another way.
    pub(crate) fn lose_lanes(&mut self) {
        for request in self.requests.iter_mut().flatten() {
            request.lane = None;
        }
        let LaneState::Granted(lanes) = &mut self.lanes else { return };
        let moves: Vec<Move> = std::mem::take(&mut lanes.moves).into_iter().map(|(_, one)| one).collect();
        self.lanes = LaneState::None;
        for one in moves {
            let Some(op) = self.ops.get_mut(one.op) else { continue };
            op.outstanding -= 1;
            if let (Some((at, len)), true) = (one.fetch, op.error.is_none()) {
                op.redo(at, len);
                if !std::mem::replace(&mut op.queued, true) {
                    self.queue.push_front(one.op);
                }
            }
            self.finish_if_ended(one.op);
        }
    }
}

/// The lanes of a reply, if it is a good one and grants any.
fn granted(side: Side, head: &[u8], payload: &[u8]) -> Option<Lanes> {
    let terms = LaneTerms::decode(head.get(HEADER_SIZE..)?).ok()?;
    let ranges = decode_segments(payload, terms.count).ok()?;
    let fits = terms.count <= side.terms.count
        && terms.size <= side.terms.size
        && ranges.iter().all(|[_, _, len]| *len == terms.buffer_size() as u64);
    if !fits || terms.count == 0 || terms.size == 0 {
        return None;
    }
    let remote = ranges.iter().map(|&[key, offset, len]| RemoteRange { key: RegionKey(key), offset, len });
    Some(Lanes {
        remote: remote.collect(),
        size: terms.size as usize,
        free: (0..terms.count).rev().collect(),
        users: vec![0; usize::from(terms.count)],
        awaits: vec![None; usize::from(terms.count)],
        moves: Slab::new(),
        unposted: VecDeque::new(),
        side,
    })
}
