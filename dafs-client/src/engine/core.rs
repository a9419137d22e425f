//! The state of a session, without waiting: operations, requests in flight, and how one becomes the other. Everything
//! here runs under one lock.

use std::collections::VecDeque;
use std::sync::{Arc, Weak};

use dafs_proto::session::{ClientSession, KeepAlive, Moment, SessionFault};
use dafs_proto::transport::{Domain, Endpoint, Head, PostError, Received, Span, TransportError};
use dafs_proto::wire::{BatchNotice, Flags, Header, NoticeKind, Opcode, Resume, Slot, Status};
use slab::Slab;

use crate::engine::give_up::GiveUp;
use crate::engine::lanes::{LaneState, Next, transmit_through_lane};
use crate::engine::outlet::Door;
use crate::engine::uncontended::Uncontended;
use crate::error::Error;
use crate::handle::closings::Closing;
use crate::handle::node::Node;
use crate::memory::{RegisteredBuf, Staging};
use crate::method::learned::Learned;
use crate::op::Op;
use crate::op::named::{Named, Reply};
use crate::op::pieces::Piece;
use crate::op::request::{Broken, Request};
use crate::op::terms::Terms;
use crate::op::transfer::Transfer;

/// Messages handled before the pump looks at its caller's operation again.
const TURN_MESSAGES_MAX: usize = 256;
/// Bytes of a server's explanation that are kept.
const EXPLANATION_SIZE_MAX: usize = 512;
/// Replies after which the remembered peak of wanted credits falls by one.
const PEAK_DECAY_REPLIES: u32 = 64;

/// Notices of batches after which the client says something: half of what a server tells a client that is silent.
const NOTICES_PER_ANSWER: u32 = 4;

pub(crate) struct Core {
    /// `None` while the connection is broken.
    pub(crate) endpoint: Option<Box<dyn Endpoint>>,
    pub(crate) session: ClientSession,
    pub(crate) terms: Terms,
    pub(crate) resume: Resume,
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
    pub(crate) domain: Arc<dyn Domain>,
    pub(crate) staging: Option<Staging>,
    /// Memory that a batch was copied through, for the next.
    pub(crate) batch_bounce: Option<RegisteredBuf>,
    pub(crate) lanes: LaneState,
    /// Finished operations that nobody collected yet.
    pub(crate) uncollected: usize,
    /// Something was queued in the endpoint since the last flush.
    pub(crate) unflushed: bool,
    /// Batches being made up: submissions wait for their ends.
    pub(crate) batches: usize,
    /// Some operation has a deadline.
    pub(crate) deadlines: usize,
    pub(crate) alive: KeepAlive,
    // Noted on the fast path, dated by the next who reads a clock.
    pub(crate) heard: bool,
    pub(crate) spoke: bool,
    /// A thread is responsible for receiving; others wait to be told.
    pub(crate) leader: bool,
    /// Somebody who does not wait needs the connection again: for the background thread.
    pub(crate) reconnect_wanted: bool,
    /// That thread sleeps without the lock: who receives must arm the endpoint again.
    pub(crate) leader_sleeps: bool,
    /// Threads that wait to be told.
    pub(crate) followers: usize,
    /// The session is over; every call answers this.
    pub(crate) dead: Option<Error>,
    /// The server announced that it shuts down.
    pub(crate) draining: bool,
    pub(crate) credits_max: u16,
    pub(crate) peak: u16,
    pub(crate) peak_replies: u32,
    pub(crate) reconnects: u64,
    pub(crate) give_up: GiveUp,
    /// Notices of batches so far.
    pub(crate) batch_notices: u32,
    /// Of hybrid transfers.
    pub(crate) learned: Learned,
    /// Since threads last met in a session that they share.
    pub(crate) uncontended: Uncontended,
}

impl Core {
    /// Takes an operation in. It is sent when there is room, after those before it.
    pub(crate) fn submit(&mut self, mut op: Op) -> usize {
        if let Some(error) = self.dead.clone().or_else(|| op.refusal(&self.terms)) {
            op.error = Some(Box::new(error));
            op.stop();
            op.done = true;
            op.revoke_memory();
            self.uncollected += 1;
            return self.ops.insert(op);
        }
        op.queued = true;
        self.deadlines += usize::from(op.deadline.is_some());
        let index = self.ops.insert(op);
        self.queue.push_back(index);
        index
    }

    /// An operation that was just submitted goes before all others.
    pub(crate) fn put_first(&mut self, index: usize) {
        self.queue.retain(|queued| *queued != index);
        self.queue.push_front(index);
    }

    /// Sends what credits and room allow. Never blocks, and does not flush.
    pub(crate) fn send_some(&mut self) -> Result<(), Broken> {
        if self.endpoint.is_none() {
            return Ok(());
        }
        while let Some(&slot) = self.resend.front() {
            if !self.send_again(slot)? {
                return Ok(());
            }
            self.resend.pop_front();
        }
        while let Some(&index) = self.queue.front() {
            let Some(op) = self.ops.get_mut(index) else {
                self.queue.pop_front();
                continue;
            };
            if op.is_stale() {
                let path = op.path();
                self.fail(index, Error::Stale { path });
                continue;
            }
            if !op.has_more() {
                op.queued = false;
                self.queue.pop_front();
                self.finish_if_ended(index);
                continue;
            }
            if !self.session.can_send() || !self.send_next(index)? {
                break;
            }
        }
        Ok(())
    }

    /// Sends the next request of an operation; `false` when there is no room now.
    fn send_next(&mut self, index: usize) -> Result<bool, Broken> {
        let wanted = self.wanted(index);
        let next_lane = self.take_lane_for(index);
        let Some(endpoint) = self.endpoint.as_mut() else { return Ok(false) };
        let Some(op) = self.ops.get_mut(index) else { return Ok(true) };
        let (lane, room) = match next_lane {
            Next::Busy => return Ok(false),
            Next::Lane { lane, size, segments_max } => (Some(lane), Some((size, segments_max))),
            Next::NoLanes => (None, None),
        };
        let Some(piece) = op.next_piece(&self.terms, room, &mut self.staging) else { return Ok(false) };
        let Piece { at, len, staging, is_copied } = piece;
        let opcode = op.request_opcode(at, len);
        let mut header = Header::request(opcode, dafs_proto::wire::FileHandle(0));
        header.deadline_ms = op.timeout_ms;
        if self.session.outstanding() == 0 {
            self.heard = true;
        }
        let request = Request { op: index, opcode, order: 0, at, len, staging, lane };
        let session = &mut self.session;
        let mut numbered = None;
        let number = |header: &mut Header| {
            let sent = session.begin(header, wanted)?;
            numbered = Some(sent);
            Some(sent.slot)
        };
        let mut moving = false;
        let sent = match (lane, &mut self.lanes) {
            (Some(lane), LaneState::Granted(lanes)) => transmit_through_lane(
                &mut **endpoint,
                header,
                op,
                &request,
                (lane, lanes),
                &mut moving,
                number,
            ),
            _ => {
                let door = Door { endpoint: &mut **endpoint, number };
                op.send(door, header, &request, self.staging.as_ref())
            }
        };
        op.outstanding += u16::from(moving);
        match sent {
            Ok(slot) => {
                op.outstanding += 1;
                op.on_sent(at, len);
                if !op.has_more() {
                    op.queued = false;
                    self.queue.pop_front();
                }
                self.unflushed = true;
                self.spoke = true;
                let order = numbered.map_or(0, |sent| sent.order);
                self.note_request(slot, Request { order, ..request });
                if is_copied && self.terms.staging_overlaps {
                    self.flush()?;
                }
                Ok(true)
            }
            Err(error) => {
                // The endpoint refused it after it had its number.
                if let Some(sent) = numbered {
                    self.session.take_back(sent.slot);
                }
                self.on_unsent(&request, error)
            }
        }
    }

    /// A request was not sent: whether others may be, as in [`Core::send_next`].
    fn on_unsent(&mut self, request: &Request, error: PostError) -> Result<bool, Broken> {
        if let (Some(chunk), Some(pool)) = (request.staging, self.staging.as_mut()) {
            pool.give_back(chunk);
        }
        if let Some(lane) = request.lane {
            self.release_lane(lane);
        }
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
    fn send_again(&mut self, slot: Slot) -> Result<bool, Broken> {
        let Some(Some(request)) = self.requests.get_mut(slot.0 as usize) else { return Ok(true) };
        let transfer = self.ops.get(request.op).and_then(Op::transfer);
        if transfer.is_some_and(|transfer| transfer.path.uses_lane()) && request.staging.is_none() {
            // Its lane is gone.
            let Some(chunk) = self.staging.as_mut().and_then(Staging::take) else { return Ok(false) };
            request.staging = Some(chunk);
        }
        let request = &*request;
        let (Some(endpoint), Some(op)) = (self.endpoint.as_mut(), self.ops.get_mut(request.op)) else {
            return Ok(true);
        };
        let mut header = Header::request(request.opcode, dafs_proto::wire::FileHandle(0));
        header.credits = self.credits_max;
        let session = &self.session;
        let number = |header: &mut Header| {
            session.again(header, slot);
            Some(slot)
        };
        self.unflushed = true;
        self.spoke = true;
        let door = Door { endpoint: &mut **endpoint, number };
        match op.send(door, header, request, self.staging.as_ref()) {
            Ok(_) | Err(PostError::Invalid(_) | PostError::Faulted) => Ok(true),
            Err(PostError::Full) => Ok(false),
            Err(PostError::Closed) => Err(Broken::Lost(TransportError::Closed)),
        }
    }

    /// How many requests this client would like outstanding: what is there to send now, or was a little while ago.
    fn wanted(&mut self, index: usize) -> u16 {
        let left = self.ops.get(index).map_or(0, Op::inline_left);
        let more = left / (self.terms.read_inline_max.max(1) as usize);
        self.note_wanted(usize::from(self.session.outstanding()) + self.queue.len() + more)
    }

    /// As many requests could be outstanding now; answers how many to ask for.
    #[inline]
    pub(crate) fn note_wanted(&mut self, now: usize) -> u16 {
        let now = u16::try_from(now).unwrap_or(u16::MAX).min(self.credits_max);
        self.peak_replies += 1;
        if now >= self.peak {
            self.peak = now;
            self.peak_replies = 0;
        } else if self.peak_replies >= PEAK_DECAY_REPLIES {
            self.peak -= 1;
            self.peak_replies = 0;
        }
        self.peak.max(1)
    }

    /// Handles what arrived; answers whether anything did.
    pub(crate) fn receive(&mut self) -> Result<bool, Broken> {
        let mut any = false;
        for _ in 0..TURN_MESSAGES_MAX {
            let Some(endpoint) = self.endpoint.as_mut() else { return Ok(any) };
            match endpoint.recv()? {
                None => break,
                Some(Received::Immediate { data, size }) => {
                    any = true;
                    self.on_lane_frame(data, size)?;
                }
                Some(Received::Message { head, payload_len }) => {
                    any = true;
                    self.on_message(&head, payload_len)?;
                }
            }
        }
        self.heard |= any;
        any |= self.poll_moves()?;
        Ok(any)
    }

    pub(crate) fn on_message(&mut self, head: &Head, payload_len: u32) -> Result<(), Broken> {
        let (header, body) = Header::decode(head.as_bytes(), payload_len)?;
        if header.flags.contains(Flags::CALLBACK) {
            return self.on_callback(&header, body);
        }
        if !header.flags.contains(Flags::REPLY) {
            return Err(
                SessionFault::Misplaced { opcode: header.opcode, place: "as a request to a client" }.into()
            );
        }
        self.on_answer(&header, head, body, None)
    }

    /// A reply, in a message, or in a frame in a lane with so many bytes of data.
    pub(crate) fn on_answer(
        &mut self,
        header: &Header,
        head: &Head,
        body: &[u8],
        frame: Option<(u16, usize)>,
    ) -> Result<(), Broken> {
        let slot = self.session.on_reply(header)?;
        let request = self.requests.get_mut(slot.0 as usize).and_then(Option::take);
        let Some(request) = request else {
            return Err(SessionFault::UnexpectedReply { slot: slot.0, sequence: header.sequence }.into());
        };
        let outcome = self.on_reply(header, head, body, &request, frame);
        if let (Some(chunk), Some(staging)) = (request.staging, self.staging.as_mut()) {
            staging.give_back(chunk);
        }
        if let Some(lane) = request.lane {
            self.release_lane(lane);
        }
        outcome?;
        if let Some(op) = self.ops.get_mut(request.op) {
            op.outstanding -= 1;
        }
        self.finish_if_ended(request.op);
        Ok(())
    }

    fn on_reply(
        &mut self,
        header: &Header,
        head: &Head,
        body: &[u8],
        request: &Request,
        frame: Option<(u16, usize)>,
    ) -> Result<(), Broken> {
        let (epoch, server_epoch) = (self.epoch, self.terms.welcome.server_epoch);
        let (Some(endpoint), Some(op)) = (self.endpoint.as_ref(), self.ops.get_mut(request.op)) else {
            return Ok(());
        };
        let payload = match (frame, &self.lanes) {
            (Some((lane, len)), LaneState::Granted(lanes)) => lanes.arrived(lane, len),
            _ => endpoint.payload(),
        };
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
        op.on_reply(
            &Reply { epoch, server_epoch, header, head, body, payload },
            request,
            self.staging.as_ref(),
        )?;
        let fetches = op.transfer().is_some_and(Transfer::fetches);
        match request.lane.filter(|_| fetches) {
            Some(lane) => self.fetch(request, lane, body),
            None => Ok(()),
        }
    }

    fn on_callback(&mut self, header: &Header, body: &[u8]) -> Result<(), Broken> {
        self.session.on_callback(header)?;
        match header.opcode {
            Opcode::CreditTarget => self.session.on_credit_target(header.credits),
            Opcode::BatchDone => self.on_batch_notice(body)?,
            Opcode::Notice => {
                let kind = dafs_proto::wire::Reader::new(body).u32("notice")?;
                match NoticeKind::from_value(kind) {
                    Some(NoticeKind::Draining) => {
                        tracing::info!("the server is shutting down");
                        self.draining = true;
                    }
                    Some(NoticeKind::ProtocolError) => {
                        let payload = self.endpoint.as_ref().map(|endpoint| endpoint.payload());
                        let words = explanation(payload.unwrap_or(Span::EMPTY));
                        tracing::error!("the server ended the session: {words}");
                    }
                    None => {}
                }
            }
            _ => {}
        }
        Ok(())
    }

    /// Operations of a batch have ended. A notice of a request that is over says nothing new.
    fn on_batch_notice(&mut self, body: &[u8]) -> Result<(), Broken> {
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
        match (&self.endpoint, self.ops.get_mut(request.op)) {
            (Some(endpoint), Some(op)) => op.on_notice(request, &notice, endpoint.payload()),
            _ => Ok(()),
        }
    }

    /// Ends an operation with an error; requests of it that are in flight are waited for before it is done.
    pub(crate) fn fail(&mut self, index: usize, error: Error) {
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
        if op.done || op.outstanding > 0 || op.queued || op.has_more() {
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
            self.uncollected += 1;
            return;
        }
        let op = self.ops.remove(index);
        if op.opcode == Opcode::Lanes {
            return self.on_lanes(op);
        }
        self.close_unclaimed(op);
    }

    /// A detached operation opened something: nobody will use it.
    pub(crate) fn close_unclaimed(&mut self, op: Op) {
        if let Some(closing) = op.unclaimed() {
            self.close(closing);
        }
    }

    /// Takes a finished operation out, for its caller.
    pub(crate) fn collect(&mut self, index: usize) -> Op {
        self.uncollected -= 1;
        self.ops.remove(index)
    }

    /// Gives a handle back to the server, without waiting.
    pub(crate) fn close(&mut self, closing: Closing) {
        if let Some(index) = closing.index {
            self.nodes.try_remove(index);
        }
        if closing.epoch != self.epoch || self.dead.is_some() {
            return;
        }
        let named = Named { handle: Some(closing.handle), ..Named::default() };
        self.submit(Op::detached(Opcode::Close, named));
    }

    /// What was noted on the fast path gets its date; operations and the server are timed out. `Err` when the server
    /// is silent for too long.
    pub(crate) fn tick(&mut self, now: Moment) -> Result<(), Broken> {
        if std::mem::take(&mut self.heard) {
            self.alive.on_heard(now);
        }
        if std::mem::take(&mut self.spoke) {
            self.alive.on_sent(now);
        }
        self.expire(now);
        if self.endpoint.is_none() {
            return Ok(());
        }
        if self.session.outstanding() > 0 && self.alive.gives_up(now) {
            let silent = std::io::Error::from(std::io::ErrorKind::TimedOut);
            return Err(Broken::Lost(TransportError::system("the server was silent for its lease", silent)));
        }
        if self.alive.must_speak(now) && self.session.can_send() && self.queue.is_empty() {
            self.submit(Op::detached(Opcode::Null, Named::default()));
            self.send_some()?;
        }
        Ok(())
    }

    /// Pushes out what was queued in the endpoint.
    pub(crate) fn flush(&mut self) -> Result<(), Broken> {
        if std::mem::take(&mut self.unflushed)
            && let Some(endpoint) = self.endpoint.as_mut()
        {
            endpoint.flush()?;
        }
        Ok(())
    }
}

/// What the server says of an error.
fn explanation(payload: Span<'_>) -> String {
    let words = payload.slice(0, payload.len().min(EXPLANATION_SIZE_MAX));
    String::from_utf8_lossy(&words.unwrap_or(Span::EMPTY).to_vec()).into_owned()
}
