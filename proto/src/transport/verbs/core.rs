//! One connection: its queues, what is posted on them, and how it ends.

use std::collections::VecDeque;
use std::io;
use std::sync::Arc;
use std::time::{Duration, Instant};

use slab::Slab;

use super::super::{
    Access, Capabilities, Completion, Head, PeerFault, Provider, Received, TransportError, WaitPolicy,
};
use super::abort::Abortable;
use super::buffers::{RECEIVE, Receives, Slots, slots_max};
use super::cm::{CmEventKind, CmId};
use super::connect::Prepared;
use super::counters::add_to_totals;
use super::device::Device;
use super::events::{self, Fate, Listed};
use super::frame::{Frame, HEADER_SIZE, NOTE_SIZE};
use super::handshake::Hello;
use super::memory::VerbsDomainParts;
use super::post::{Operation, Work};
use super::queue::{CompletionQueue, Done, POLL_BATCH, QueuePair, RecvList, SendList};
use super::status::{self, explain};
use super::{Counters, RDMA_SIZE_MAX, SEGMENTS_MAX};

/// How long a closed connection stays for what was sent to be acknowledged.
pub(super) const LINGER_MAX: Duration = Duration::from_secs(1);

/// How long the device may take to give back what was posted, before the queue pair is destroyed under it.
const FLUSH_MAX: Duration = Duration::from_secs(2);

/// Looks at the completion queue that find nothing between two looks at the connection manager.
const POLLS_BETWEEN_EVENT_LOOKS: u32 = 1024;

/// Notes that one call of `recv` deals with: they cost their sender no credit, and nobody else is served meanwhile.
const NOTES_AT_ONCE: usize = 64;

/// Parts of the receives that are posted again together.
const REPOST_PARTS: usize = 4;

/// Something received.
struct Arrival {
    buffer: u32,
    len: u32,
    immediate: Option<u32>,
}

/// What becomes of a connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Phase {
    Open,
    /// This side closed; what it sent may still be on its way.
    Closing {
        until: Instant,
    },
    /// Nothing more is exchanged; the device gives back what it has.
    Ended {
        until: Instant,
    },
}

/// A connection. Fields are dropped in order: the way to it from outside, then the id with the queue pair, before all memory that the
/// device might touch.
pub(super) struct Core {
    pub(super) abortable: Abortable,
    listed: Option<Listed>,
    pub(super) id: CmId,
    pub(super) qp: QueuePair,
    pub(super) cq: CompletionQueue,
    pub(super) capabilities: Capabilities,
    pub(super) policy: WaitPolicy,
    // Out.
    pub(super) list: SendList,
    /// Work requests that are queued or posted and not known to be done, oldest first.
    pub(super) work: VecDeque<Work>,
    /// The number of the oldest one: ids are numbers.
    pub(super) work_first: u64,
    pub(super) send_queue_depth: usize,
    pub(super) sge_max: usize,
    pub(super) inline_max: usize,
    /// Posted since the last request with a completion of its own.
    pub(super) unsignaled: usize,
    /// Among these, or in the list, is an RDMA operation, whose memory somebody waits for.
    pub(super) owes_completion: bool,
    pub(super) slots: Slots,
    pub(super) slots_max: usize,
    /// Slots that were given out and are neither sent nor cancelled: there is room for their messages.
    pub(super) reserved: usize,
    /// Slots of messages in the list that the device's library copies when they are posted.
    pub(super) slots_inline: Vec<u32>,
    pub(super) operations: Slab<Operation>,
    // Posted and not yet polled. Invariant: at most `capabilities.rdma_depth`.
    pub(super) rdma_in_flight: u16,
    pub(super) completions: VecDeque<Completion>,
    /// Taken from the device and not looked at: empty but for moments.
    done: Vec<Done>,
    // In.
    pub(super) receives: Receives,
    /// Receives that were given back and are not posted.
    pub(super) repost: RecvList,
    arrivals: VecDeque<Arrival>,
    // Buffer, offset and length of the payload of the message that was delivered last.
    pub(super) current: Option<(u32, usize, usize)>,
    pub(super) state: Phase,
    /// What the device said of it.
    fate: Arc<Fate>,
    /// Why the connection has ended; told when what arrived before is delivered.
    pub(super) failure: Option<TransportError>,
    /// A post was answered `Full`.
    pub(super) starved: bool,
    /// Room for so many requests is what it waits for; the least, where several were refused.
    pub(super) room_wanted: usize,
    pub(super) armed: bool,
    /// A descriptor may have something to say.
    pub(super) events_due: bool,
    /// How often the loop said so since they were looked at.
    pub(super) events_told: u32,
    /// The connection manager was not asked for long.
    pub(super) manager_due: bool,
    polls: u32,
    /// The last look found one message and nothing more.
    found_one: bool,
    pub(super) spin_time: Duration,
    pub(super) counters: Counters,
    /// What of them is in the totals of the process.
    pub(super) counters_told: Counters,
    pub(super) shared: Arc<VerbsDomainParts>,
    pub(super) device: Arc<Device>,
}

impl Core {
    /// A connection whose handshake is done.
    pub(super) fn new(
        prepared: Prepared,
        shared: Arc<VerbsDomainParts>,
        theirs: Hello,
        policy: WaitPolicy,
    ) -> io::Result<Self> {
        // What can fail comes before `prepared` is taken apart: dropped whole, it ends the queue pair before what that uses.
        let own = prepared.own;
        let slots_max = slots_max(&own).min(u32::from(theirs.recv_depth)).max(super::SLOTS_MIN);
        let slots = Slots::new(&shared, &prepared.device, slots_max);
        slots.make_sure(own.recv_payload_max.min(theirs.recv_payload_max) as usize)?;
        let Prepared { id, qp, cq, receives, device, send_queue_depth, sge_max, inline_max, .. } = prepared;
        let rdma_size_max = RDMA_SIZE_MAX.min(device.limits.message_size_max);
        let agreed = own.agree(&theirs, Provider::Verbs, id.peer(), SEGMENTS_MAX, rdma_size_max);
        let capabilities = Capabilities { copies_faulting: true, ..agreed };
        super::connect::set_rnr_timer(qp);
        let abortable = Abortable::new(qp, id.weak_name());
        let fate = Arc::new(Fate::default());
        let queues = [qp.0 as usize, cq.raw() as usize];
        Ok(Self {
            listed: Some(events::list(&device, queues, &fate, &abortable.handle())),
            fate,
            abortable,
            id,
            qp,
            cq,
            capabilities,
            policy,
            list: SendList::new(),
            work: VecDeque::new(),
            work_first: 0,
            send_queue_depth,
            sge_max,
            inline_max,
            unsignaled: 0,
            owes_completion: false,
            slots,
            slots_max: slots_max as usize,
            reserved: 0,
            slots_inline: Vec::new(),
            operations: Slab::new(),
            rdma_in_flight: 0,
            completions: VecDeque::new(),
            done: Vec::with_capacity(POLL_BATCH),
            receives,
            repost: RecvList::new(),
            arrivals: VecDeque::new(),
            current: None,
            state: Phase::Open,
            failure: None,
            starved: false,
            room_wanted: 0,
            armed: false,
            events_due: true,
            events_told: 0,
            manager_due: true,
            polls: 0,
            found_one: false,
            spin_time: super::wake::SPIN_MIN,
            counters: Counters::default(),
            counters_told: Counters::default(),
            shared,
            device,
        })
    }

    /// As `Endpoint::recv`.
    pub(super) fn recv(&mut self) -> Result<Option<Received>, TransportError> {
        self.recv_done();
        self.armed = false;
        let mut notes = 0;
        loop {
            while let Some(arrival) = self.arrivals.pop_front() {
                match self.deliver(&arrival) {
                    Ok(Some(received)) if self.is_open() => return Ok(Some(received)),
                    Ok(_) => {
                        notes += 1;
                        if notes == NOTES_AT_ONCE {
                            // What else is here keeps this side from sleeping.
                            return Ok(None);
                        }
                    }
                    Err(fault) => {
                        // What lies behind it is not looked at.
                        self.arrivals.clear();
                        self.fail(TransportError::Peer(fault));
                    }
                }
            }
            if !self.is_open() {
                return Err(TransportError::Closed);
            }
            if self.failure.is_some() {
                return Err(self.end());
            }
            if std::mem::take(&mut self.found_one) && !self.list.is_empty() {
                // A message was here and its answer waits to leave, which is more urgent than another look.
                return Ok(None);
            }
            self.progress();
            if self.arrivals.is_empty() && self.events_due {
                // What woke this side is answered before its event is taken, which is a system call.
                self.take_events();
            }
            if self.arrivals.is_empty() && self.failure.is_none() {
                self.post_receives();
                self.polls = self.polls.wrapping_add(1);
                if self.polls.is_multiple_of(POLLS_BETWEEN_EVENT_LOOKS) {
                    self.events_due = true;
                    self.manager_due = true;
                    self.tell_counters();
                }
                return Ok(None);
            }
        }
    }

    /// As `Endpoint::recv_done`.
    pub(super) fn recv_done(&mut self) {
        if let Some((buffer, _, _)) = self.current.take() {
            self.give_back(buffer);
        }
    }

    /// What a received buffer says. `None`: a note, dealt with.
    fn deliver(&mut self, arrival: &Arrival) -> Result<Option<Received>, PeerFault> {
        if let Some(data) = arrival.immediate {
            self.give_back(arrival.buffer);
            return Ok(Some(Received::Immediate { data, size: arrival.len }));
        }
        let len = arrival.len as usize;
        let span = self.receives.span(arrival.buffer);
        // Buffers are longer than any head: copies of a fixed size are a few instructions.
        let prefix = span.read_array::<NOTE_SIZE>(0).unwrap_or_default();
        let prefix = &prefix[..len.min(NOTE_SIZE)];
        let frame = Frame::decode(prefix, len, self.capabilities.recv_payload_max as usize)?;
        let received = match frame {
            Frame::Message { head_len, payload_len } => {
                let len = u8::try_from(head_len).unwrap_or(u8::MAX);
                let head = Head::read_from(span, HEADER_SIZE, len).unwrap_or(Head::EMPTY);
                self.current = Some((arrival.buffer, HEADER_SIZE + head_len, payload_len));
                let payload_len = u32::try_from(payload_len).unwrap_or(u32::MAX);
                return Ok(Some(Received::Message { head, payload_len }));
            }
            Frame::Immediate { data, size } => Some(Received::Immediate { data, size }),
            Frame::Check { key, offset, write, immediate } => {
                let access = if write { Access::REMOTE_WRITE } else { Access::REMOTE_READ };
                self.shared.registry.check_empty(key, offset, access)?;
                immediate.map(|data| Received::Immediate { data, size: 0 })
            }
            Frame::Close => {
                self.fail(TransportError::Closed);
                None
            }
        };
        self.give_back(arrival.buffer);
        Ok(received)
    }

    /// A received buffer is posted again, with others.
    fn give_back(&mut self, buffer: u32) {
        if self.receives.given_back(buffer) {
            self.repost.push(RECEIVE | u64::from(buffer), self.receives.segment(buffer));
        }
        if self.repost.len() * REPOST_PARTS >= self.receives.count() {
            self.post_receives();
        }
    }

    /// Posts the receives that were given back.
    #[allow(unsafe_code, reason = "posts work requests")]
    pub(super) fn post_receives(&mut self) {
        if self.repost.len() == 0 {
            return;
        }
        if !self.is_open() || self.failure.is_some() {
            return self.repost.clear();
        }
        self.counters.receive_posts += 1;
        // SAFETY: the queue pair is live while the connection is open; the buffers outlive it (see `Core`).
        if let Err(error) = unsafe { self.repost.post(self.qp) } {
            self.fail(TransportError::system("post receives to the RDMA device", error));
        }
    }

    /// Takes what the device has done.
    pub(super) fn progress(&mut self) {
        let before = self.arrivals.len();
        loop {
            self.counters.polls += 1;
            let Self { cq, done, .. } = self;
            let count = match cq.poll(|one| done.push(one)) {
                Ok(count) => count,
                Err(error) => {
                    return self.fail(TransportError::system("ask the RDMA device what is done", error));
                }
            };
            if count > 0 {
                self.counters.completions += count as u64;
                let mut batch = std::mem::take(&mut self.done);
                for done in batch.drain(..) {
                    self.take(&done);
                }
                self.done = batch;
            }
            if count < POLL_BATCH {
                break;
            }
        }
        if self.arrivals.len() > before {
            self.found_one = self.arrivals.len() == 1;
        }
        match self.state {
            Phase::Open if self.starved => self.ask_for_room(),
            Phase::Open => {}
            Phase::Closing { until }
                if self.work.is_empty() || self.failure.is_some() || Instant::now() >= until =>
            {
                self.end();
            }
            Phase::Closing { .. } => {}
            Phase::Ended { until } => {
                if !self.work.is_empty() && Instant::now() >= until {
                    tracing::warn!(
                        "the device does not give work requests back; the queue pair is destroyed under them"
                    );
                    self.destroy_queues();
                }
            }
        }
    }

    fn take(&mut self, done: &Done) {
        if done.id & RECEIVE == 0 {
            return self.work_done(done);
        }
        let buffer = u32::try_from(done.id & !RECEIVE).unwrap_or(u32::MAX);
        if done.status == status::SUCCESS {
            self.counters.received += 1;
            self.arrivals.push_back(Arrival { buffer, len: done.len, immediate: done.immediate });
        } else {
            self.fail(explain(done.status, done.vendor_code, None));
        }
    }

    /// Takes what the descriptors may have to say. One word of the loop and one event of the completion queue belong together: then
    /// the connection manager, which nearly never speaks, is not asked.
    pub(super) fn take_events(&mut self) {
        let told = std::mem::replace(&mut self.events_told, 0);
        self.events_due = false;
        let spoke = self.cq.take_event();
        if !spoke || told > 1 || std::mem::take(&mut self.manager_due) {
            self.take_manager_events();
        }
    }

    /// Asks the device and the connection manager what has become of the connection.
    pub(super) fn take_manager_events(&mut self) {
        events::take(&self.device);
        if let Some(error) = self.fate.error(&self.device.name) {
            self.fail(error);
        }
        loop {
            match self.id.channel().next() {
                Ok(None) => return,
                Ok(Some(event)) => match event.kind {
                    CmEventKind::Disconnected => {
                        // What the peer sent before is here: the device acknowledged it.
                        self.progress();
                        self.fail(TransportError::Closed);
                    }
                    CmEventKind::DeviceRemoved => {
                        let source = io::Error::new(
                            io::ErrorKind::NotConnected,
                            format!("the device {} was removed", self.device.name),
                        );
                        self.fail(TransportError::system("RDMA", source));
                    }
                    CmEventKind::Failed(_) => {
                        self.fail(TransportError::system("RDMA connection", event.error()))
                    }
                    _ => {}
                },
                Err(error) => {
                    return self.fail(TransportError::system("ask the RDMA connection manager", error));
                }
            }
        }
    }

    /// Adds what was counted to the totals of the process.
    pub(super) fn tell_counters(&mut self) {
        add_to_totals(&self.counters, &mut self.counters_told);
    }

    pub(super) fn has_arrivals(&self) -> bool {
        !self.arrivals.is_empty()
    }

    pub(super) fn is_open(&self) -> bool {
        self.state == Phase::Open
    }

    /// The connection ends; the next `recv` says why, after what arrived before. A reason replaces none, and that it was closed.
    #[cold]
    pub(super) fn fail(&mut self, error: TransportError) {
        if self.failure.is_some() && !self.is_open() {
            return;
        }
        if matches!(self.failure, None | Some(TransportError::Closed)) {
            // What the device says of it may have come first, and says more than that everything was flushed.
            events::take(&self.device);
            self.failure = Some(self.fate.error(&self.device.name).unwrap_or(error));
        }
    }

    /// Ends the connection now; why. The device gives back what it has, which [`Core::progress`] waits for.
    #[cold]
    pub(super) fn end(&mut self) -> TransportError {
        let error = self.failure.take().unwrap_or(TransportError::Closed);
        if matches!(self.state, Phase::Ended { .. }) {
            return error;
        }
        self.tell_counters();
        let peer = self.capabilities.peer.address;
        match &error {
            TransportError::Peer(fault) => {
                tracing::warn!(?peer, %fault, "connection ended: the peer is at fault")
            }
            TransportError::Closed => tracing::debug!(?peer, "connection closed"),
            TransportError::System { .. } => tracing::warn!(?peer, %error, "connection failed"),
        }
        self.drop_unposted();
        self.state = Phase::Ended { until: Instant::now() + FLUSH_MAX };
        self.id.disconnect();
        error
    }

    /// As `Endpoint::close`.
    pub(super) fn close(&mut self) {
        if !self.is_open() {
            return;
        }
        self.recv_done();
        let has_failed = self.failure.is_some();
        self.drop_unposted();
        if !has_failed {
            // That something was not flushed is no reason to cut what was.
            self.failure = None;
        }
        self.progress();
        if self.failure.is_some() {
            self.end();
            return;
        }
        self.state = Phase::Closing { until: Instant::now() + LINGER_MAX };
        // A request is kept free for this, and inline or not, the note has memory: its slot may be any, as nothing is built any more.
        let note = Frame::Close.encode_note();
        match self.slots.take(0) {
            Ok(Some(slot)) => self.queue_note(slot, &note),
            // All are on their way: the connection's end says the same once they are acknowledged.
            Ok(None) | Err(_) => tracing::debug!("no slot for the closing note"),
        }
        self.list.signal_last();
        self.post_list();
    }

    /// Destroys the queue pair. The device touches no memory of this connection any more.
    #[cold]
    fn destroy_queues(&mut self) {
        self.abortable.end();
        self.tell_counters();
        // Another's queues may get the addresses of these.
        self.listed = None;
        self.id.destroy_queues();
        while !self.work.is_empty() {
            self.finish_oldest(Some((status::FLUSHED, 0)));
        }
    }

    /// Whether everything that was posted is done.
    pub(super) fn is_quiet(&self) -> bool {
        self.work.is_empty()
    }
}
