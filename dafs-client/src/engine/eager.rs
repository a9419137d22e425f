//! Eager buffers of a session: buffers of this side, each paired with one that the server lent. The methods eager and client-initiated go
//! through them (`spec/protocol/wire.md`).
//!
//! ```text
//! eager   write   copy into the eager buffer, head and data ══ RDMA write with immediate ══▶ the server's side; reply as a message
//!         read    request as a message; reply and data ◀══ RDMA write with immediate ══ into this side's; copy out
//! client  write   data ══ RDMA write ══▶ the server's side; request and reply as messages
//!         read    request and reply as messages; data ◀══ RDMA read ══ out of the server's side
//! ```
//!
//! This side alone decides what an eager buffer is used for. It is used by one request at a time, and is free when that was answered and
//! RDMA that this side posted for it has completed. Eager buffers end with their connection: what was under way is then asked for again,
//! bounced.

use std::collections::VecDeque;

use dafs_proto::session::SessionFault;
use dafs_proto::transport::{
    Access, Completion, Domain, Head, LocalSegments, MemoryRef, OpToken, PostError, Posted, Region,
    RegionKey, RemoteRange, Span,
};
use dafs_proto::wire::{
    EAGER_BUFFER_ROOM, EAGER_REPLY_HEAD_SIZE, EAGER_REQUEST_HEAD_SIZE, EagerBufferTerms, Features,
    FileHandle, Flags, HEADER_SIZE, Header, Method, Opcode, Slot, Status, decode_segments, eager_frame_data,
    encode_segments,
};
use slab::Slab;

use crate::config::Config;
use crate::engine::core::{Arrived, Core};
use crate::memory::{BounceBuffers, tell_once};
use crate::method::io_path::{IoPath, MethodOverride};
use crate::op::Op;
use crate::op::body::{Body, DataReply, wire};
use crate::op::draft::{Draft, HEAD_ROOM, HeadRoom, Outlet};
use crate::op::named::Named;
use crate::op::request::{Broken, Request};
use crate::op::transfer::{Transfer, TransferKind};

/// Where a session stands with its eager buffers.
pub(crate) enum EagerBufferState {
    /// It has none: nobody asked, or the server has none to lend.
    None,
    /// The server was asked.
    Asked(Side),
    /// It has some.
    Granted(EagerBuffers),
}

/// This side's buffers.
pub(crate) struct Side {
    memory: MemoryRef,
    // As long as it lives, the server reaches them.
    region: Region,
    terms: EagerBufferTerms,
}

/// Eager buffers that can be used.
pub(crate) struct EagerBuffers {
    side: Side,
    remote: Vec<RemoteRange>,
    /// Data of each, bytes.
    size: usize,
    free: Vec<u16>,
    // By eager buffer: who still has it, the request and RDMA of this side.
    users: Vec<u8>,
    // By eager buffer: the read whose reply is going to be written there.
    awaits: Vec<Option<Slot>>,
    moves: Slab<Move>,
    /// Fetches that found no room.
    unposted: VecDeque<usize>,
}

/// RDMA of this side, under way or waiting for room.
struct Move {
    op: usize,
    eager_buffer: u16,
    /// A read's data: which part of the transfer. `None`: a write's.
    fetch: Option<(usize, usize)>,
}

/// An eager buffer for the next part.
pub(crate) enum Next {
    /// There are no eager buffers.
    NoEagerBuffers,
    /// All are in use; one comes back.
    Busy,
    /// This one, with room for so many bytes, from or to so many segments.
    EagerBuffer { eager_buffer: u16, size: usize, segments_max: usize },
}

impl Side {
    fn allocate(
        domain: &dyn Domain,
        terms: EagerBufferTerms,
    ) -> Result<Self, dafs_proto::transport::RegionError> {
        let len = usize::from(terms.count) * stride(terms);
        let memory = MemoryRef::new(domain.allocate(len)?);
        let region = domain.register(memory.clone(), Access::REMOTE_WRITE)?;
        Ok(Self { memory, region, terms })
    }

    fn ranges(&self) -> Vec<[u64; 3]> {
        let part = |eager_buffer: u16| {
            let begin = usize::from(eager_buffer) * stride(self.terms);
            self.region.range().slice(begin as u64, self.terms.buffer_size() as u64)
        };
        (0..self.terms.count).filter_map(part).map(wire).collect()
    }

    /// A part of an eager buffer's buffer.
    fn part(&self, eager_buffer: u16, from: usize, len: usize) -> Option<MemoryRef> {
        self.memory.slice(usize::from(eager_buffer) * stride(self.terms) + from, len)
    }

    fn span(&self, eager_buffer: u16, from: usize, len: usize) -> Span<'_> {
        let begin = usize::from(eager_buffer) * stride(self.terms) + from;
        self.memory.span().slice(begin, len).unwrap_or(Span::EMPTY)
    }
}

fn stride(terms: EagerBufferTerms) -> usize {
    terms.buffer_size().next_multiple_of(EAGER_BUFFER_ROOM)
}

impl EagerBuffers {
    fn release(&mut self, eager_buffer: u16) {
        let Some(users) = self.users.get_mut(usize::from(eager_buffer)) else { return };
        *users -= 1;
        if *users == 0 {
            self.free.push(eager_buffer);
        }
    }

    fn remote(&self, eager_buffer: u16, from: usize, len: usize) -> Option<RemoteRange> {
        self.remote.get(usize::from(eager_buffer))?.slice(from as u64, len as u64)
    }

    /// The data that came with a read's reply.
    pub(crate) fn arrived(&self, eager_buffer: u16, len: usize) -> Span<'_> {
        self.side.span(eager_buffer, EAGER_BUFFER_ROOM, len)
    }

    /// Names the RDMA that begins next.
    fn next_token(&self) -> OpToken {
        OpToken(self.moves.vacant_key() as u64)
    }

    /// RDMA of this side begins, for an operation, through an eager buffer.
    fn begin_move(&mut self, one: Move) -> usize {
        if let Some(users) = self.users.get_mut(usize::from(one.eager_buffer)) {
            *users += 1;
        }
        self.moves.insert(one)
    }
}

const OUTSIDE: PostError = PostError::Invalid("a part outside of its eager buffer");

/// A request for a part whose data goes through an eager buffer.
pub(crate) struct EagerRequest<'a> {
    pub(crate) header: Header,
    pub(crate) request: &'a Request,
    pub(crate) eager_buffer: u16,
    pub(crate) eager_buffers: &'a mut EagerBuffers,
}

impl EagerRequest<'_> {
    /// Sends it. RDMA of this side that was posted for it holds the operation's memory from then on, whatever the answer is.
    pub(crate) fn send(&mut self, outlet: &mut impl Outlet, op: &mut Op) -> Result<(), PostError> {
        let Some(transfer) = op.transfer() else {
            return Err(PostError::Invalid("names need no eager buffer"));
        };
        self.header.handle = op.target.as_ref().map_or(FileHandle(0), |node| node.handle());
        let before = self.eager_buffers.moves.len();
        let sent = match (transfer.path, transfer.kind) {
            (_, TransferKind::Read) => self.send_head(outlet, transfer),
            (IoPath::Eager, _) => self.write_frame(outlet, transfer),
            _ => outlet
                .check_room()
                .and_then(|()| self.write_data(outlet, transfer))
                .and_then(|()| self.send_head(outlet, transfer)),
        };
        op.outstanding += u16::from(self.eager_buffers.moves.len() > before);
        sent
    }

    /// Sends it as a message, its data being moved apart from it.
    fn send_head(&mut self, outlet: &mut impl Outlet, transfer: &Transfer) -> Result<(), PostError> {
        let is_framed = transfer.path == IoPath::Eager;
        let method = if is_framed { Method::Eager } else { Method::ClientInitiated };
        let mut head = HEAD_ROOM;
        outlet.send(self.draft(&mut head, transfer, method), 0, |_| {})?;
        let awaits = self.eager_buffers.awaits.get_mut(usize::from(self.eager_buffer));
        if let Some(awaits) = awaits.filter(|_| is_framed) {
            *awaits = Some(self.header.slot);
        }
        Ok(())
    }

    /// Writes its data into the server's side of the eager buffer.
    fn write_data(&mut self, outlet: &mut impl Outlet, transfer: &Transfer) -> Result<(), PostError> {
        let local = transfer.local(self.request.at, self.request.len);
        let remote = self
            .eager_buffers
            .remote(self.eager_buffer, EAGER_BUFFER_ROOM, self.request.len)
            .ok_or(OUTSIDE)?;
        let posted = outlet.write(self.eager_buffers.next_token(), local, remote, None)?;
        self.begin_move(posted);
        Ok(())
    }

    /// Writes head and data into the server's side of the eager buffer, and tells the server by the immediate.
    fn write_frame(&mut self, outlet: &mut impl Outlet, transfer: &Transfer) -> Result<(), PostError> {
        let (eager_buffer, at, len) = (self.eager_buffer, self.request.at, self.request.len);
        let begin = EAGER_BUFFER_ROOM - EAGER_REQUEST_HEAD_SIZE;
        let remote =
            self.eager_buffers.remote(eager_buffer, begin, EAGER_REQUEST_HEAD_SIZE + len).ok_or(OUTSIDE)?;
        let mut head = HEAD_ROOM;
        let mut draft = self.draft(&mut head, transfer, Method::Eager);
        let (head, side) = (draft.head(len), &self.eager_buffers.side);
        side.span(eager_buffer, begin, head.len()).write_from(0, head);
        let mut local = LocalSegments::new();
        match &transfer.registered {
            // Where it is registered, the device gathers it from where it is.
            Some(_) => {
                local.extend(side.part(eager_buffer, begin, head.len()));
                local.extend(transfer.local(at, len));
            }
            None => {
                side.span(eager_buffer, EAGER_BUFFER_ROOM, len).gather(transfer.spans(at, len));
                local.extend(side.part(eager_buffer, begin, head.len() + len));
            }
        }
        match outlet.write(self.eager_buffers.next_token(), local, remote, Some(u32::from(eager_buffer))) {
            Ok(posted) => self.begin_move(posted),
            // As a message on a closed connection: it counts as sent.
            Err(PostError::Closed) => {}
            Err(error) => return Err(error),
        }
        Ok(())
    }

    fn begin_move(&mut self, posted: Posted) {
        if posted == Posted::Pending {
            self.eager_buffers.begin_move(Move {
                op: self.request.op,
                eager_buffer: self.eager_buffer,
                fetch: None,
            });
        }
    }

    fn draft<'a>(&self, head: &'a mut HeadRoom, transfer: &Transfer, method: Method) -> Draft<'a> {
        let offset = transfer.offset + self.request.at as u64;
        let body =
            Body::through_eager_buffer(transfer.kind, offset, self.request.len, method, self.eager_buffer);
        Draft::new(head, self.header, |head| body.encode(head))
    }
}

impl Core {
    /// Asks the server for eager buffers, where the configuration uses them and the server has such. Does not wait.
    pub(crate) fn ask_for_eager_buffers(&mut self, config: &Config) {
        if matches!(self.eager_buffers, EagerBufferState::Asked(_)) || self.dead.is_some() {
            // The request is sent again by itself.
            return;
        }
        self.eager_buffers = EagerBufferState::None;
        let offered =
            Features::from_bits_truncate(self.terms.welcome.features).contains(Features::EAGER_BUFFERS);
        if !config.method.uses_eager_buffers()
            || !offered
            || config.eager_buffer_count == 0
            || !self.ensure_bounce(config)
        {
            return;
        }
        let chunk_size = self.buffers.bounce.as_ref().map_or(0, BounceBuffers::chunk_size);
        let terms = EagerBufferTerms {
            count: config.eager_buffer_count.min(dafs_proto::wire::EAGER_BUFFERS_MAX),
            reads: config.method == MethodOverride::ClientInitiated,
            // What is under way when a connection ends is bounced.
            size: config.eager_buffer_size.clamp(1, u32::try_from(chunk_size).unwrap_or(u32::MAX)),
        };
        let side = match Side::allocate(&*self.buffers.domain, terms) {
            Ok(side) => side,
            Err(error) => {
                tell_once(&error);
                return;
            }
        };
        let ranges = side.ranges();
        let mut body = [0; EagerBufferTerms::HEAD_SIZE - HEADER_SIZE];
        terms.encode(&mut body);
        let mut named = Named::of(&body);
        named.payload = vec![0; terms.payload_size()];
        encode_segments(&ranges, &mut named.payload);
        self.eager_buffers = EagerBufferState::Asked(side);
        // Before what may use them.
        self.submit_first(Op::detached(Opcode::EagerBuffers, named));
    }

    /// The server has answered, or never will.
    pub(crate) fn on_eager_buffers(&mut self, op: Op) {
        let EagerBufferState::Asked(side) =
            std::mem::replace(&mut self.eager_buffers, EagerBufferState::None)
        else {
            return;
        };
        let Ok(reply) = op.into_reply() else {
            tracing::info!("the server lends no eager buffers");
            return;
        };
        match granted(side, reply.head.as_bytes(), &reply.payload) {
            Some(eager_buffers) => self.eager_buffers = EagerBufferState::Granted(eager_buffers),
            None => tracing::info!("the server lends no eager buffers now"),
        }
    }

    /// Data that an eager buffer carries, bytes; 0 without eager buffers.
    pub(crate) fn eager_buffer_size(&self) -> usize {
        match &self.eager_buffers {
            EagerBufferState::None => 0,
            EagerBufferState::Asked(side) => side.terms.size as usize,
            EagerBufferState::Granted(eager_buffers) => eager_buffers.size,
        }
    }

    /// Takes an eager buffer for the next part of an operation, where it uses them. An append that is larger than the eager
    /// buffers that there are now is not cut.
    pub(crate) fn take_eager_buffer_for(&mut self, op: usize, segments_max: usize) -> Next {
        let Some(transfer) = self.ops.get(op).and_then(Op::transfer) else { return Next::NoEagerBuffers };
        let EagerBufferState::Granted(eager_buffers) = &mut self.eager_buffers else {
            return Next::NoEagerBuffers;
        };
        let fits = transfer.len <= eager_buffers.size && transfer.memory.len() <= segments_max
            || !matches!(transfer.kind, TransferKind::Append(_));
        if !transfer.path.uses_eager_buffer() || !fits {
            return Next::NoEagerBuffers;
        }
        let Some(eager_buffer) = eager_buffers.free.pop() else { return Next::Busy };
        eager_buffers.users[usize::from(eager_buffer)] = 1;
        Next::EagerBuffer { eager_buffer, size: eager_buffers.size, segments_max }
    }

    /// A request has let go of its eager buffer.
    pub(crate) fn release_eager_buffer(&mut self, eager_buffer: u16) {
        if let EagerBufferState::Granted(eager_buffers) = &mut self.eager_buffers {
            if let Some(awaits) = eager_buffers.awaits.get_mut(usize::from(eager_buffer)) {
                *awaits = None;
            }
            eager_buffers.release(eager_buffer);
        }
    }

    /// The server wrote a frame into an eager buffer: the reply of the read that waits there.
    pub(crate) fn handle_frame(&mut self, eager_buffer: u32, written: u32) -> Result<(), Broken> {
        self.signs.heard = true;
        let misplaced = || SessionFault::Misplaced {
            opcode: Opcode::Read,
            place: "as a frame, which is not expected now",
        };
        let EagerBufferState::Granted(eager_buffers) = &mut self.eager_buffers else {
            return Err(misplaced().into());
        };
        let place = u16::try_from(eager_buffer).map_err(|_| misplaced())?;
        let slot =
            eager_buffers.awaits.get_mut(usize::from(place)).and_then(Option::take).ok_or_else(misplaced)?;
        let size = u32::try_from(eager_buffers.size).unwrap_or(u32::MAX);
        let data = eager_frame_data(written, EAGER_REPLY_HEAD_SIZE, size).ok_or(SessionFault::TooMuch {
            what: "a frame in an eager buffer",
            value: u64::from(written),
            limit: u64::from(size),
        })?;
        let mut bytes = [0; EAGER_REPLY_HEAD_SIZE];
        eager_buffers
            .side
            .span(place, EAGER_BUFFER_ROOM - EAGER_REPLY_HEAD_SIZE, EAGER_REPLY_HEAD_SIZE)
            .read_into(0, &mut bytes);
        let head = Head::copy_of(&bytes).ok_or_else(misplaced)?;
        let (header, body) = Header::decode(head.as_bytes(), u32::try_from(data).unwrap_or(u32::MAX))?;
        let is_reply = header.flags.contains(Flags::REPLY) && !header.flags.contains(Flags::CALLBACK);
        if !is_reply || header.opcode != Opcode::Read || header.status != Status::OK || header.slot != slot {
            return Err(misplaced().into());
        }
        self.on_answer(&header, &head, body, Arrived::Frame { eager_buffer: place, len: data })
    }

    /// A read was answered whose data is in the server's side of its eager buffer.
    pub(crate) fn fetch(&mut self, request: &Request, eager_buffer: u16, body: &[u8]) -> Result<(), Broken> {
        let count = DataReply::decode(TransferKind::Read, body)?.count.min(request.len);
        let EagerBufferState::Granted(eager_buffers) = &mut self.eager_buffers else { return Ok(()) };
        if count == 0 {
            return Ok(());
        }
        let index =
            eager_buffers.begin_move(Move { op: request.op, eager_buffer, fetch: Some((request.at, count)) });
        eager_buffers.unposted.push_back(index);
        if let Some(op) = self.ops.get_mut(request.op) {
            op.outstanding += 1;
        }
        Ok(())
    }

    /// Posts what waits for room; returns whether anything.
    pub(crate) fn fetch_unposted(&mut self, outlet: &mut impl Outlet) -> bool {
        let EagerBufferState::Granted(eager_buffers) = &mut self.eager_buffers else { return false };
        let before = eager_buffers.unposted.len();
        let mut ended = Vec::new();
        while let Some(&index) = eager_buffers.unposted.front() {
            let one = eager_buffers.moves.get(index);
            let post = one.and_then(|one| {
                let (at, count) = one.fetch?;
                let transfer = self.ops.get(one.op)?.transfer()?;
                Some((
                    transfer.local(at, count),
                    eager_buffers.remote(one.eager_buffer, EAGER_BUFFER_ROOM, count)?,
                ))
            });
            let Some((local, remote)) = post else {
                eager_buffers.unposted.pop_front();
                continue;
            };
            match outlet.read(OpToken(index as u64), local, remote) {
                Ok(Posted::Pending) => {}
                Ok(Posted::Done) => ended.push(index),
                Err(PostError::Full) => break,
                // The next receive tells why.
                Err(PostError::Closed | PostError::Invalid(_) | PostError::Faulted) => {}
            }
            eager_buffers.unposted.pop_front();
        }
        let any = eager_buffers.unposted.len() < before;
        for index in ended {
            self.end_move(index);
        }
        any
    }

    /// RDMA of this side is under way: its ends are to be told.
    #[inline]
    pub(crate) fn awaits_completions(&self) -> bool {
        matches!(&self.eager_buffers, EagerBufferState::Granted(eager_buffers) if !eager_buffers.moves.is_empty())
    }

    /// RDMA of this side has ended. What failed is asked for again on the next connection.
    pub(crate) fn handle_completion(&mut self, completion: Completion) -> Result<(), Broken> {
        completion.result?;
        self.signs.heard = true;
        self.end_move(usize::try_from(completion.token.0).unwrap_or(usize::MAX));
        Ok(())
    }

    fn end_move(&mut self, index: usize) {
        let EagerBufferState::Granted(eager_buffers) = &mut self.eager_buffers else { return };
        let Some(one) = eager_buffers.moves.try_remove(index) else { return };
        eager_buffers.release(one.eager_buffer);
        if let Some(op) = self.ops.get_mut(one.op) {
            op.outstanding -= 1;
        }
        self.finish_if_ended(one.op);
    }

    /// The connection is gone, and the eager buffers with it: requests through them are sent again another way.
    pub(crate) fn lose_eager_buffers(&mut self) {
        for request in self.requests.iter_mut().flatten() {
            request.eager_buffer = None;
        }
        let EagerBufferState::Granted(eager_buffers) = &mut self.eager_buffers else { return };
        let moves: Vec<Move> =
            std::mem::take(&mut eager_buffers.moves).into_iter().map(|(_, one)| one).collect();
        self.eager_buffers = EagerBufferState::None;
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

/// The eager buffers of a reply, if it is a good one and grants any.
fn granted(side: Side, head: &[u8], payload: &[u8]) -> Option<EagerBuffers> {
    let terms = EagerBufferTerms::decode(head.get(HEADER_SIZE..)?).ok()?;
    let ranges = decode_segments(payload, terms.count).ok()?;
    let fits = terms.count <= side.terms.count
        && terms.size <= side.terms.size
        && ranges.iter().all(|[_, _, len]| *len == terms.buffer_size() as u64);
    if !fits || terms.count == 0 || terms.size == 0 {
        return None;
    }
    let remote = ranges.iter().map(|&[key, offset, len]| RemoteRange { key: RegionKey(key), offset, len });
    Some(EagerBuffers {
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
