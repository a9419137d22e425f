//! The state of a session, without waiting and without a connection: operations, requests in flight, and how one becomes the other.
//!
//! What arrived goes in by `handle_message`, `handle_frame`, `handle_completion` and `handle_time`; after each, [`Core::poll_transmit`]
//! writes what is to be sent into room that the driver hands it. Everything here runs under one lock.

use std::collections::VecDeque;
use std::sync::{Arc, Weak};
use std::time::Duration;

use dafs_proto::session::{ClientSession, Moment, SessionFault};
use dafs_proto::transport::{Domain, Head, PostError, Span, TransportError};
use dafs_proto::wire::{
    BatchNotice, FileHandle, Flags, Header, LockTurn, NoticeKind, Opcode, Recall, Slot, Status,
    ViewDropRequest,
};
use slab::Slab;

use crate::engine::eager::{EagerBufferState, EagerRequest, Next};
use crate::engine::ended::Ended;
use crate::engine::locks::LockWaits;
use crate::engine::signs::{Demand, Signs};
use crate::error::Error;
use crate::handle::closings::{Closing, Closings};
use crate::handle::node::{Node, NodeParts};
use crate::handle::view::Views;
use crate::memory::{BounceBuffers, RegisteredBuf};
use crate::method::learned::Learned;
use crate::method::refined::{Refined, Refinement};
use crate::op::draft::Outlet;
use crate::op::named::{Named, Reply};
use crate::op::parts::Part;
use crate::op::request::{Broken, Request};
use crate::op::terms::Terms;
use crate::op::transfer::Transfer;
use crate::op::{Op, Renamed};

/// Bytes of a server's explanation that are kept.
const EXPLANATION_SIZE_MAX: usize = 512;
/// Notices of batches after which the client says something: half of what a server tells a client that is silent.
const NOTICES_PER_ANSWER: u32 = 4;

pub(crate) struct Core {
    pub(crate) session: ClientSession,
    pub(crate) terms: Terms,
    /// Counts sessions with the server: handles of an earlier one mean nothing.
    pub(crate) epoch: u64,
    pub(crate) ops: Slab<Op>,
    // By slot.
    pub(crate) requests: Vec<Option<Request>>,
    /// Operations with something to send, in the order of submission.
    pub(crate) queue: VecDeque<usize>,
    /// Requests that are sent again on a new connection of the same session, in the order of first sending.
    pub(crate) resend: VecDeque<Slot>,
    pub(crate) nodes: Slab<Weak<Node>>,
    pub(crate) closings: Arc<Closings>,
    pub(crate) views: Views,
    pub(crate) buffers: Buffers,
    pub(crate) eager_buffers: EagerBufferState,
    /// Finished operations that nobody collected yet.
    pub(crate) uncollected: usize,
    /// Some operation has a deadline.
    pub(crate) deadlines: usize,
    pub(crate) signs: Signs,
    pub(crate) demand: Demand,
    /// The session is over; every call returns this.
    pub(crate) dead: Option<Error>,
    /// The server announced that it shuts down.
    pub(crate) draining: bool,
    /// Locks that wait at the server.
    pub(crate) lock_waits: LockWaits,
    /// Notices of batches so far.
    batch_notices: u32,
    /// Of transfers that are packed or gathered.
    pub(crate) learned: Learned,
    /// Of contiguous transfers, inline or direct.
    pub(crate) refined: Refined,
    pub(crate) ended: Ended,
}

/// Memory of the library's that transfers pass through.
pub(crate) struct Buffers {
    pub(crate) domain: Arc<dyn Domain>,
    pub(crate) bounce: Option<BounceBuffers>,
    /// What a batch was copied through, for the next.
    pub(crate) batch_bounce: Option<RegisteredBuf>,
}

impl Core {
    /// A session that has just begun.
    pub(crate) fn new(terms: Terms, domain: Arc<dyn Domain>, credits_max: u16, now: Moment) -> Self {
        Self {
            session: ClientSession::new(&terms.welcome),
            epoch: 0,
            ops: Slab::with_capacity(64),
            requests: Vec::with_capacity(usize::from(terms.welcome.slots)),
            queue: VecDeque::new(),
            resend: VecDeque::new(),
            nodes: Slab::new(),
            closings: Arc::default(),
            views: Views::default(),
            buffers: Buffers { domain, bounce: None, batch_bounce: None },
            eager_buffers: EagerBufferState::None,
            uncollected: 0,
            deadlines: 0,
            signs: Signs::new(&terms.welcome, now),
            demand: Demand::new(credits_max),
            dead: None,
            draining: false,
            lock_waits: LockWaits::default(),
            batch_notices: 0,
            learned: Learned::default(),
            refined: Refined::new(Refinement::default(), terms.is_remote),
            ended: Ended::default(),
            terms,
        }
    }

    /// Something that the present session has open.
    pub(crate) fn node(&mut self, parts: NodeParts) -> Arc<Node> {
        let entry = self.nodes.vacant_entry();
        let node = Arc::new(Node::new(parts, entry.key(), Arc::clone(&self.closings)));
        entry.insert(Arc::downgrade(&node));
        node
    }

    /// Takes an operation in. It is sent when there is room, after those before it.
    pub(crate) fn submit(&mut self, mut op: Op) -> usize {
        if let Some(error) = self.dead.clone().or_else(|| op.refusal(&self.terms)) {
            op.error = Some(Box::new(error));
            op.stop();
            op.done = true;
            self.uncollected += 1;
            let index = self.ops.insert(op);
            self.note_end(index);
            return index;
        }
        op.queued = true;
        self.deadlines += usize::from(op.deadline.is_some());
        let index = self.insert(op);
        self.queue.push_back(index);
        index
    }

    /// Takes an operation among those that run. Where somebody will collect it, and it locks, others leave that alone.
    pub(crate) fn insert(&mut self, op: Op) -> usize {
        let asked = op.asked_lock().filter(|_| !op.detached);
        let index = self.ops.insert(op);
        if let Some((node, request)) = asked {
            node.locks().ask(index, request);
        }
        index
    }

    /// As [`Core::submit`], of an operation that nobody collects, which goes before all others.
    pub(crate) fn submit_first(&mut self, op: Op) {
        let index = self.submit(op);
        self.queue.retain(|queued| *queued != index);
        self.queue.push_front(index);
    }

    /// Writes what credits and room allow; returns whether anything was. Never blocks.
    pub(crate) fn poll_transmit(&mut self, outlet: &mut impl Outlet) -> Result<bool, Broken> {
        let mut wrote = self.fetch_unposted(outlet);
        while let Some(&slot) = self.resend.front() {
            if !self.send_again(slot, outlet)? {
                return Ok(wrote);
            }
            wrote = true;
            self.resend.pop_front();
        }
        while let Some(&index) = self.queue.front() {
            let Some(op) = self.ops.get_mut(index) else {
                self.queue.pop_front();
                continue;
            };
            if let Some(cause) = op.stale_cause().filter(|_| !op.is_owed(self.epoch)) {
                let path = op.path();
                self.fail(index, Error::Stale { path, cause });
                continue;
            }
            if !op.has_more() || op.is_held_back() {
                op.queued = false;
                self.queue.pop_front();
                self.finish_if_ended(index);
                continue;
            }
            if !self.session.can_send() || !self.send_next(index, outlet)? {
                break;
            }
            wrote = true;
        }
        Ok(wrote)
    }

    /// Sends the next request of an operation; `false` when there is no room now.
    fn send_next(&mut self, index: usize, outlet: &mut impl Outlet) -> Result<bool, Broken> {
        let wanted = self.wanted(index);
        let next_eager_buffer = self.take_eager_buffer_for(index, outlet.segments_max());
        let Some(op) = self.ops.get_mut(index) else { return Ok(true) };
        let (eager_buffer, room) = match next_eager_buffer {
            Next::Busy => return Ok(false),
            Next::EagerBuffer { eager_buffer, size, segments_max } => {
                (Some(eager_buffer), Some((size, segments_max)))
            }
            Next::NoEagerBuffers => (None, None),
        };
        let Some(part) = op.next_part(&self.terms, room, &mut self.buffers.bounce) else {
            return Ok(false);
        };
        let Part { at, len, bounce, is_copied } = part;
        let opcode = op.request_opcode(at, len);
        let mut header = Header::request(opcode, FileHandle(0));
        header.deadline_ms = op.left_ms;
        if self.session.outstanding() == 0 {
            self.signs.heard = true;
        }
        let mut request = Request { op: index, opcode, order: 0, at, len, bounce, eager_buffer };
        let Some(numbered) = self.session.begin(&mut header, wanted) else {
            return self.on_unsent(&request, PostError::Full);
        };
        request.order = numbered.order;
        let sent = match (eager_buffer, &mut self.eager_buffers) {
            (Some(eager_buffer), EagerBufferState::Granted(eager_buffers)) => {
                EagerRequest { header, request: &request, eager_buffer, eager_buffers }.send(outlet, op)
            }
            _ => op.send(outlet, header, &request, self.buffers.bounce.as_ref()),
        };
        if let Err(error) = sent {
            self.session.take_back(numbered.slot);
            return self.on_unsent(&request, error);
        }
        op.outstanding += 1;
        op.on_sent(at, len);
        if !op.has_more() || op.is_held_back() {
            op.queued = false;
            self.queue.pop_front();
        }
        self.signs.spoke = true;
        self.note_request(numbered.slot, request);
        if is_copied && self.terms.bounce_overlaps {
            outlet.push()?;
        }
        Ok(true)
    }

    /// A request was not sent: whether others may be, as in [`Core::send_next`].
    fn on_unsent(&mut self, request: &Request, error: PostError) -> Result<bool, Broken> {
        self.let_go(request);
        match error {
            PostError::Full => Ok(false),
            PostError::Closed => Err(Broken::Lost(TransportError::Closed)),
            PostError::Invalid(_) | PostError::Faulted => {
                self.fail(request.op, Error::Invalid(error.to_string()));
                Ok(true)
            }
        }
    }

    /// Remembers what is in flight in a slot.
    pub(crate) fn note_request(&mut self, slot: Slot, request: Request) {
        let place = slot.0 as usize;
        if place >= self.requests.len() {
            self.requests.resize_with(place + 1, || None);
        }
        self.requests[place] = Some(request);
    }

    /// Sends an unanswered request again on a new connection; `false` when there is no room now.
    fn send_again(&mut self, slot: Slot, outlet: &mut impl Outlet) -> Result<bool, Broken> {
        let Some(Some(request)) = self.requests.get_mut(slot.0 as usize) else { return Ok(true) };
        let Some(op) = self.ops.get(request.op) else { return Ok(true) };
        if op.transfer().is_some_and(|transfer| transfer.path.uses_eager_buffer()) && request.bounce.is_none()
        {
            // Its eager buffer is gone.
            let Some(chunk) = self.buffers.bounce.as_mut().and_then(BounceBuffers::take) else {
                return Ok(false);
            };
            request.bounce = Some(chunk);
        }
        let mut header = Header::request(request.opcode, FileHandle(0));
        header.credits = self.demand.credits_max;
        header.deadline_ms = op.left_ms;
        self.session.again(&mut header, slot);
        self.signs.spoke = true;
        match op.send(outlet, header, request, self.buffers.bounce.as_ref()) {
            Ok(()) | Err(PostError::Invalid(_) | PostError::Faulted) => Ok(true),
            Err(PostError::Full) => Ok(false),
            Err(PostError::Closed) => Err(Broken::Lost(TransportError::Closed)),
        }
    }

    /// How many requests this client would like outstanding: what is there to send now, or was a little while ago.
    fn wanted(&mut self, index: usize) -> u16 {
        let inline_max = self.terms.read_inline_max as usize;
        let more = self.ops.get(index).map_or(0, |op| op.requests_left(inline_max));
        self.demand.note(usize::from(self.session.outstanding()) + self.queue.len() + more)
    }

    /// A message arrived.
    pub(crate) fn handle_message(
        &mut self,
        head: &Head,
        payload_len: u32,
        payload: Span<'_>,
    ) -> Result<(), Broken> {
        self.signs.heard = true;
        let (header, body) = Header::decode(head.as_bytes(), payload_len)?;
        if header.flags.contains(Flags::CALLBACK) {
            return self.on_callback(&header, body, payload);
        }
        if !header.flags.contains(Flags::REPLY) {
            return Err(
                SessionFault::Misplaced { opcode: header.opcode, place: "as a request to a client" }.into()
            );
        }
        self.on_answer(&header, head, body, Arrived::Payload(payload))
    }

    /// A reply, in a message, or in a frame in an eager buffer.
    pub(crate) fn on_answer(
        &mut self,
        header: &Header,
        head: &Head,
        body: &[u8],
        arrived: Arrived<'_>,
    ) -> Result<(), Broken> {
        let slot = self.session.on_reply(header)?;
        let request = self.requests.get_mut(slot.0 as usize).and_then(Option::take);
        let Some(request) = request else {
            return Err(SessionFault::UnexpectedReply { slot: slot.0, sequence: header.sequence }.into());
        };
        let outcome = self.on_reply(header, head, body, &request, arrived);
        self.let_go(&request);
        outcome?;
        if let Some(op) = self.ops.get_mut(request.op) {
            op.outstanding -= 1;
        }
        self.finish_if_ended(request.op);
        Ok(())
    }

    /// A request is over: what it was bounced through, and its eager buffer, are free.
    pub(crate) fn let_go(&mut self, request: &Request) {
        if let (Some(chunk), Some(bounce)) = (request.bounce, self.buffers.bounce.as_mut()) {
            bounce.give_back(chunk);
        }
        if let Some(eager_buffer) = request.eager_buffer {
            self.release_eager_buffer(eager_buffer);
        }
    }

    pub(super) fn on_reply(
        &mut self,
        header: &Header,
        head: &Head,
        body: &[u8],
        request: &Request,
        arrived: Arrived<'_>,
    ) -> Result<(), Broken> {
        let (epoch, server_epoch) = (self.epoch, self.terms.loss_epoch);
        let Some(op) = self.ops.get_mut(request.op) else { return Ok(()) };
        let payload = match (arrived, &self.eager_buffers) {
            (Arrived::Payload(payload), _) => payload,
            (Arrived::Frame { eager_buffer, len }, EagerBufferState::Granted(eager_buffers)) => {
                eager_buffers.arrived(eager_buffer, len)
            }
            (Arrived::Frame { .. }, _) => Span::EMPTY,
        };
        if header.status == Status::WAITING && op.is_lock() {
            self.on_lock_waits(request.op);
            return Ok(());
        }
        if matches!(header.status, Status::LOCKED | Status::IO | Status::NO_DATA) && op.leaves_gaps_out() {
            // [LIST-50] The lock, or what cannot be read, may lie in a gap alone, which nobody asked for.
            op.redo(request.at, request.len);
            if !std::mem::replace(&mut op.queued, true) {
                self.queue.push_front(request.op);
            }
            return Ok(());
        }
        if header.status != Status::OK {
            let error = Error::Status {
                status: header.status,
                operation: header.opcode,
                path: op.path(),
                explanation: explanation(payload),
            };
            if op.on_error(request.at, error) {
                self.stop(request.op);
            }
            return Ok(());
        }
        let reply = Reply { epoch, server_epoch, header, head, body, payload };
        op.on_reply(&reply, request, self.buffers.bounce.as_ref())?;
        if let Some(parts) = op.gained() {
            let node = self.node(parts);
            self.ops.get_mut(request.op).into_iter().for_each(|op| op.gain(Arc::clone(&node)));
            return Ok(());
        }
        self.follow_rename(request.op);
        let Some(op) = self.ops.get_mut(request.op) else { return Ok(()) };
        let fetches = op.transfer().is_some_and(Transfer::fetches);
        match request.eager_buffer.filter(|_| fetches) {
            Some(eager_buffer) => self.fetch(request, eager_buffer, body),
            None => Ok(()),
        }
    }

    /// If an operation has renamed something, that has its new name from now on.
    pub(super) fn follow_rename(&mut self, index: usize) {
        let renamed = self.ops.get_mut(index).and_then(Op::take_renamed);
        let Some(Renamed { export, from, to, exchanges }) = renamed else { return };
        let nodes = self.nodes.iter().filter_map(|(_, node)| node.upgrade());
        nodes.filter(|node| node.export == export).for_each(|node| node.on_renamed(&from, &to, exchanges));
    }

    fn on_callback(&mut self, header: &Header, body: &[u8], payload: Span<'_>) -> Result<(), Broken> {
        self.session.on_callback(header)?;
        match header.opcode {
            Opcode::CreditTarget => self.session.on_credit_target(header.credits),
            Opcode::BatchDone => self.on_batch_notice(body, payload)?,
            Opcode::LockTurn => self.on_lock_turn(&LockTurn::decode(body)?),
            Opcode::Recall => self.on_recall(&Recall::decode(body)?),
            Opcode::Notice => {
                let kind = dafs_proto::wire::Reader::new(body).u32("notice")?;
                match NoticeKind::from_value(kind) {
                    Some(NoticeKind::Draining) => {
                        tracing::info!("the server is shutting down");
                        self.draining = true;
                    }
                    Some(NoticeKind::ProtocolError) => {
                        tracing::error!("the server ended the session: {}", explanation(payload));
                    }
                    None => {}
                }
            }
            _ => {}
        }
        Ok(())
    }

    /// A descriptor is wanted back. One whose file was closed meanwhile has come back.
    fn on_recall(&mut self, recall: &Recall) {
        let mut nodes = self.nodes.iter().filter_map(|(_, node)| node.upgrade());
        let is_it = |node: &Arc<Node>| node.is_open_in(self.epoch) && node.handle().0 == recall.handle;
        if let Some(node) = nodes.find(is_it) {
            node.recall();
        }
    }

    /// Operations of a batch have ended. A notice of a request that is over says nothing new.
    fn on_batch_notice(&mut self, body: &[u8], payload: Span<'_>) -> Result<(), Broken> {
        let notice = BatchNotice::decode(body)?;
        self.batch_notices = self.batch_notices.wrapping_add(1);
        if self.batch_notices.is_multiple_of(NOTICES_PER_ANSWER) && self.session.can_send() {
            // The server tells only so much to who says nothing.
            self.submit(Op::detached(Opcode::Null, Named::default()));
        }
        let slot = Slot(notice.slot);
        if self.session.sequence_of(slot) != Some(notice.sequence) {
            return Ok(());
        }
        let Some(Some(request)) = self.requests.get(slot.0 as usize) else { return Ok(()) };
        self.ops.get_mut(request.op).map_or(Ok(()), |op| op.on_notice(request, &notice, payload))
    }

    /// Ends an operation with an error; requests of it that are in flight are waited for before it is done.
    pub(crate) fn fail(&mut self, index: usize, error: Error) {
        self.give_lock_wait_up(index);
        let Some(op) = self.ops.get_mut(index) else { return };
        op.error.get_or_insert_with(|| Box::new(error));
        self.stop(index);
        self.finish_if_ended(index);
    }

    /// Nothing more is sent for an operation.
    pub(crate) fn stop(&mut self, index: usize) {
        let Some(op) = self.ops.get_mut(index) else { return };
        op.stop();
        if std::mem::take(&mut op.queued) {
            self.queue.retain(|queued| *queued != index);
        }
    }

    pub(crate) fn finish_if_ended(&mut self, index: usize) {
        let Some(op) = self.ops.get_mut(index) else { return };
        if op.done || op.outstanding > 0 || op.queued || op.waits() {
            return;
        }
        if op.has_more() {
            if op.is_in_order() {
                op.queued = true;
                self.queue.push_back(index);
            }
            return;
        }
        if let Some(gained) = op.on_end() {
            op.queued = true;
            self.queue.push_back(index);
            return gained.into_iter().for_each(|closing| self.close(closing));
        }
        op.done = true;
        self.deadlines -= usize::from(op.deadline.take().is_some());
        if !op.detached {
            let is_refused = op.error.is_some();
            self.uncollected += 1;
            if is_refused {
                self.end_asking_for_lock(index);
            }
            return self.note_end(index);
        }
        let op = self.ops.remove(index);
        if op.opcode == Opcode::EagerBuffers {
            return self.on_eager_buffers(op);
        }
        self.close_unclaimed(op);
    }

    /// A detached operation opened or locked something: nobody will use it.
    pub(crate) fn close_unclaimed(&mut self, op: Op) {
        self.give_unclaimed_lock_up(&op);
        self.on_put_back(&op);
        if let Some(closing) = op.unclaimed() {
            self.close(closing);
        }
        // A node of its reply went with it.
        self.collect_closes();
    }

    /// Gives back what was dropped.
    pub(crate) fn collect_closes(&mut self) {
        for closing in self.closings.take() {
            self.close(closing);
        }
    }

    /// Takes a finished operation out, for its caller.
    pub(crate) fn collect(&mut self, index: usize) -> Op {
        let mut op = self.take_ended(index);
        self.claim_lock(index, &mut op);
        op
    }

    /// Takes a finished operation out, that its caller does not want.
    pub(crate) fn take_ended(&mut self, index: usize) -> Op {
        self.uncollected -= 1;
        self.ops.remove(index)
    }

    /// Gives something back to the server, without waiting.
    pub(crate) fn close(&mut self, closing: Closing) {
        let op = match closing {
            Closing::View(view) => {
                self.views.remove_dropped();
                Op::detached(Opcode::ViewDrop, Named::of(&ViewDropRequest { view }.bytes()))
            }
            Closing::Handle { index, epoch, handle } => {
                if let Some(index) = index {
                    self.nodes.try_remove(index);
                }
                if epoch != self.epoch {
                    return;
                }
                Op::detached(Opcode::Close, Named { handle: Some(handle), ..Named::default() })
            }
        };
        if self.dead.is_none() {
            self.submit(op);
        }
    }

    /// How long who waits may sleep: until an operation's time is over, or this side must say something.
    pub(crate) fn sleep_max(&self, now: Moment) -> Duration {
        let longest = self.signs.sleep_max(now);
        let awaited = |op: &&Op| !op.done && !op.is_overdue;
        let deadlines =
            || self.ops.iter().map(|(_, op)| op).filter(awaited).filter_map(|op| op.deadline).min();
        let first = if self.deadlines > 0 { deadlines() } else { None };
        first.map_or(longest, |first| longest.min(first.since(now)))
    }

    /// Time has passed: what was noted gets its date, and operations are timed out. Over a connection the server is as well, `Err` when it
    /// is silent for too long. What this side must say is queued.
    pub(crate) fn handle_time(&mut self, now: Moment, is_connected: bool) -> Result<(), Broken> {
        let alive = self.signs.dated(now);
        let (gives_up, must_speak) = (alive.gives_up(now), alive.must_speak(now));
        self.expire(now);
        if is_connected && self.session.outstanding() > 0 && gives_up {
            let silent = std::io::Error::from(std::io::ErrorKind::TimedOut);
            return Err(Broken::Lost(TransportError::system("the server was silent for too long", silent)));
        }
        if is_connected && must_speak && self.session.can_send() && self.queue.is_empty() {
            self.submit(Op::detached(Opcode::Null, Named::default()));
        }
        Ok(())
    }
}

/// Where the data of a reply is.
#[derive(Clone, Copy)]
pub(crate) enum Arrived<'a> {
    /// In its message.
    Payload(Span<'a>),
    /// In this side's buffer of an eager buffer.
    Frame { eager_buffer: u16, len: usize },
}

/// What the server says of an error.
fn explanation(payload: Span<'_>) -> String {
    let words = payload.slice(0, payload.len().min(EXPLANATION_SIZE_MAX));
    String::from_utf8_lossy(&words.unwrap_or(Span::EMPTY).to_vec()).into_owned()
}
