use super::chain::Chains;
use super::client::next_sequence;
use super::{ChainLink, ChainStep, ServerCredits, SessionFault};
use crate::wire::{
    BatchResult, Class, FileHandle, Flags, HEAD_SIZE_MAX, Header, Opcode, Slot, SlotReport, Status, Verifier,
};

/// Payload of a kept reply at most, bytes. Operations whose replies are kept answer less.
pub const REPLY_CACHE_PAYLOAD_MAX: usize = 1024;

/// A reply kept for the case that its connection broke before the client read it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct KeptReply {
    // In place: a write's reply is kept too, and is a head.
    head: [u8; HEAD_SIZE_MAX],
    head_len: u8,
    payload: Box<[u8]>,
}

impl KeptReply {
    fn none() -> Self {
        Self { head: [0; HEAD_SIZE_MAX], head_len: 0, payload: Box::default() }
    }

    /// The whole head.
    pub fn head(&self) -> &[u8] {
        &self.head[..usize::from(self.head_len)]
    }

    /// The payload.
    pub fn payload(&self) -> &[u8] {
        &self.payload
    }
}

/// What was written for a request that is to be executed again: it goes on from there and writes none of it a second time.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Effect {
    /// Bytes from the beginning of its data, and the verifier from before they were written.
    Bytes(u64, Verifier),
    /// Of a batch: what was written for each of its operations.
    Batch(Box<[Option<PartEffect>]>),
}

/// What was written for an operation of a batch.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum PartEffect {
    /// It has ended.
    Ended(BatchResult),
    /// As [`Effect::Bytes`]; all of them where they are still to be made durable.
    Bytes(u64, Verifier),
}

/// What to do with a request that arrived.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Admission {
    /// Execute it; its place in a chain, where it has one.
    Execute(Option<ChainLink>),
    /// It was executed: send this reply again.
    Replay(KeptReply),
    /// It is being executed: its reply goes to the connection that is there when it is done.
    InProgress,
    /// Another request had this sequence number: answer `FALSE_RETRY`.
    FalseRetry,
}

/// The server's side of a session: admits requests once, caches replies, tracks chains, grants credits.
///
/// Every request that was admitted as [`Admission::Execute`] ends with either [`ServerSession::on_reply`] or
/// [`ServerSession::on_abandoned`].
#[derive(Debug)]
pub struct ServerSession {
    // Grows to the highest slot used; never beyond slots_max.
    slots: Vec<ServerSlot>,
    slots_max: u16,
    credits: ServerCredits,
    chains: Chains,
    // As `ServerSession::take_ended_chain`.
    ended_chain: Option<u64>,
    callbacks: u32,
}

#[derive(Clone, Debug)]
struct ServerSlot {
    // Of the last request that arrived; 0 before the first.
    sequence: u32,
    opcode: Opcode,
    state: SlotState,
    link: Option<ChainLink>,
    /// Of the state [`SlotState::Kept`].
    reply: KeptReply,
    /// Of a request that was answered, or abandoned.
    effect: Option<Effect>,
}

impl ServerSlot {
    fn unused() -> Self {
        let (opcode, state, reply) = (Opcode::Null, SlotState::Idle, KeptReply::none());
        Self { sequence: 0, opcode, state, link: None, reply, effect: None }
    }

    /// The next request begins: nothing of the last one can be asked for any more.
    #[inline]
    fn begin(&mut self, header: &Header, link: Option<ChainLink>) {
        (self.sequence, self.opcode, self.link) = (header.sequence, header.opcode, link);
        self.state = SlotState::Executing;
        self.effect = None;
        if !self.reply.payload.is_empty() {
            self.reply.payload = Box::default();
        }
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum SlotState {
    /// No request yet, or the last one was abandoned: it may come again under the same number.
    Idle,
    /// Being executed, or waiting for its turn in a chain.
    Executing,
    /// Answered, and may be executed again.
    Answered,
    /// Answered, and the reply is kept: to execute it again could do harm.
    Kept,
}

impl ServerSession {
    /// A new session.
    pub fn new(slots_max: u16, credits: u16) -> Self {
        let slots_max = slots_max.max(1);
        Self {
            slots: Vec::new(),
            slots_max,
            credits: ServerCredits::new(credits, slots_max),
            chains: Chains::default(),
            ended_chain: None,
            callbacks: 0,
        }
    }

    /// Slots of the session.
    #[inline]
    pub fn slots_max(&self) -> u16 {
        self.slots_max
    }

    /// Credits, for grants and statistics.
    pub fn credits(&self) -> &ServerCredits {
        &self.credits
    }

    /// A request arrived.
    #[inline]
    pub fn admit(&mut self, header: &Header) -> Result<Admission, SessionFault> {
        if matches!(header.opcode.class(), Class::Handshake | Class::Callback) {
            return Err(SessionFault::Misplaced { opcode: header.opcode, place: "in a session" });
        }
        if header.flags.intersects(Flags::REPLY | Flags::CALLBACK) {
            return Err(SessionFault::Misplaced { opcode: header.opcode, place: "as a reply or callback" });
        }
        let index = self.slot_index(header.slot)?;
        let slot = &self.slots[index];
        let next = next_sequence(slot.sequence);
        if header.sequence == next {
            if matches!(slot.state, SlotState::Executing) {
                return Err(SessionFault::SlotBusy { slot: header.slot.0, sequence: slot.sequence });
            }
            return self.admit_new(index, header);
        }
        if header.sequence != slot.sequence || slot.sequence == 0 {
            return Err(SessionFault::Sequence {
                slot: header.slot.0,
                received: header.sequence,
                expected: next,
            });
        }
        self.admit_again(index, header)
    }

    #[inline]
    fn slot_index(&mut self, slot: Slot) -> Result<usize, SessionFault> {
        let index = slot.0 as usize;
        if index >= usize::from(self.slots_max) {
            return Err(SessionFault::NoSuchSlot { slot: slot.0, slots: self.slots_max });
        }
        if index >= self.slots.len() {
            self.slots.resize(index + 1, ServerSlot::unused());
        }
        Ok(index)
    }

    #[inline]
    fn admit_new(&mut self, index: usize, header: &Header) -> Result<Admission, SessionFault> {
        self.take_credit(header)?;
        let slot = &self.slots[index];
        if let (SlotState::Idle, Some(abandoned)) = (slot.state, slot.link) {
            self.ended_chain = self.chains.on_given_up(abandoned);
        }
        let link = self.chains.on_request(header, self.slots_max)?;
        self.slots[index].begin(header, link);
        Ok(Admission::Execute(link))
    }

    fn admit_again(&mut self, index: usize, header: &Header) -> Result<Admission, SessionFault> {
        let slot = &self.slots[index];
        if slot.opcode != header.opcode {
            return Ok(Admission::FalseRetry);
        }
        match slot.state {
            SlotState::Executing => Ok(Admission::InProgress),
            SlotState::Kept => Ok(Admission::Replay(slot.reply.clone())),
            // It changed nothing, or what it had written is known.
            SlotState::Answered | SlotState::Idle => {
                self.take_credit(header)?;
                let slot = &mut self.slots[index];
                slot.state = SlotState::Executing;
                Ok(Admission::Execute(slot.link))
            }
        }
    }

    #[inline]
    fn take_credit(&mut self, header: &Header) -> Result<(), SessionFault> {
        self.credits.on_request(header.credits).map_err(|granted| SessionFault::CreditsExceeded {
            outstanding: self.credits.executing().saturating_add(1),
            granted,
        })
    }

    /// The chain that the last request has ended, because the client gave up a link of it: links that wait go on, to be aborted.
    #[inline]
    pub fn take_ended_chain(&mut self) -> Option<u64> {
        self.ended_chain.take()
    }

    /// Whether a link of a chain may run now.
    pub fn chain_step(&self, link: ChainLink) -> ChainStep {
        self.chains.step(link)
    }

    /// The reply to an admitted request is about to be sent: returns the credit target for its header. `saved` is given where the request
    /// saves its handle for its chain.
    #[inline]
    pub fn on_reply(
        &mut self,
        request: &Header,
        status: Status,
        saved: Option<FileHandle>,
        target: u16,
    ) -> u16 {
        if let Some(slot) = self.slots.get_mut(request.slot.0 as usize) {
            slot.state = SlotState::Answered;
            if let Some(link) = slot.link {
                self.chains.on_reply(link, status, saved);
            }
        }
        self.credits.on_reply(target)
    }

    /// Keeps the finished reply of the slot's last request, a whole head and at most [`REPLY_CACHE_PAYLOAD_MAX`] bytes of payload.
    #[inline]
    pub fn keep_reply(&mut self, slot: Slot, head: &[u8], payload: &[u8]) {
        debug_assert!(payload.len() <= REPLY_CACHE_PAYLOAD_MAX, "kept replies are small");
        let Some(slot) = self.slots.get_mut(slot.0 as usize) else { return };
        let (Some(room), Ok(head_len)) = (slot.reply.head.get_mut(..head.len()), u8::try_from(head.len()))
        else {
            return;
        };
        room.copy_from_slice(head);
        slot.reply.head_len = head_len;
        if !payload.is_empty() {
            slot.reply.payload = Box::from(payload);
        }
        slot.state = SlotState::Kept;
    }

    /// Keeps what the slot's last request has written, because its reply is too large to be kept.
    pub fn keep_effect(&mut self, slot: Slot, effect: Effect) {
        if let Some(slot) = self.slots.get_mut(slot.0 as usize) {
            slot.effect = Some(effect);
        }
    }

    /// The slot's request had written something when it was executed before.
    pub fn has_effect(&self, slot: Slot) -> bool {
        self.slots.get(slot.0 as usize).is_some_and(|slot| slot.effect.is_some())
    }

    /// What that was.
    pub fn take_effect(&mut self, slot: Slot) -> Option<Effect> {
        self.slots.get_mut(slot.0 as usize)?.effect.take()
    }

    /// An admitted request ended without a reply, because its connection is gone, with what it has written. It may come again.
    pub fn on_abandoned(&mut self, slot: Slot, effect: Option<Effect>) {
        if let Some(slot) = self.slots.get_mut(slot.0 as usize) {
            slot.state = SlotState::Idle;
            slot.effect = effect;
        }
        self.credits.on_abandoned();
    }

    /// The session was resumed on a new connection: grants every slot, so that all unanswered requests can come
    /// again. Returns the reports for the welcome.
    pub fn on_resumed(&mut self) -> Vec<SlotReport> {
        let executing = self.credits.executing();
        self.credits = ServerCredits::new(self.slots_max, self.slots_max);
        for _ in 0..executing {
            // What still runs counts; it was granted before.
            let _ = self.credits.on_request(1);
        }
        self.callbacks = 0;
        (0u32..)
            .zip(&self.slots)
            .filter(|(_, slot)| slot.sequence != 0)
            .map(|(index, slot)| SlotReport {
                slot: index,
                sequence: slot.sequence,
                executed: matches!(slot.state, SlotState::Answered | SlotState::Kept),
            })
            .collect()
    }

    /// A `CreditTarget` callback is about to be sent; returns the target for its header.
    pub fn on_credit_target(&mut self, target: u16) -> u16 {
        self.credits.on_raise(target)
    }

    /// The sequence number of the next callback.
    pub fn next_callback(&mut self) -> u32 {
        self.callbacks = self.callbacks.wrapping_add(1);
        self.callbacks
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn request(opcode: Opcode, slot: u32, sequence: u32) -> Header {
        Header { slot: Slot(slot), sequence, credits: 4, ..Header::request(opcode, FileHandle(0)) }
    }

    fn kept(head: &[u8], payload: &[u8]) -> KeptReply {
        let mut reply = KeptReply::none();
        reply.head[..head.len()].copy_from_slice(head);
        let head_len = u8::try_from(head.len()).unwrap();
        KeptReply { head_len, payload: Box::from(payload), ..reply }
    }

    // [SESS-10] [SESS-11] [SESS-12] [SESS-13] [SESS-86] The (state, event) table of spec/protocol/session.md, walked.
    #[test]
    fn slot_in_every_state_with_every_sequence_answers_as_the_table_says() {
        type Make = fn() -> ServerSession;
        let states: [(&str, Make); 5] = [
            ("unused", || ServerSession::new(4, 4)),
            ("executing", || {
                let mut s = ServerSession::new(4, 4);
                s.admit(&request(Opcode::Mkdir, 0, 1)).unwrap();
                s
            }),
            ("answered, cached", || {
                let mut s = ServerSession::new(4, 4);
                let header = request(Opcode::Mkdir, 0, 1);
                s.admit(&header).unwrap();
                s.on_reply(&header, Status::OK, None, 4);
                s.keep_reply(Slot(0), &[1, 2, 3], &[]);
                s
            }),
            ("answered, not cached", || {
                let mut s = ServerSession::new(4, 4);
                let header = request(Opcode::Mkdir, 0, 1);
                s.admit(&header).unwrap();
                s.on_reply(&header, Status::OK, None, 4);
                s
            }),
            ("abandoned", || {
                let mut s = ServerSession::new(4, 4);
                s.admit(&request(Opcode::Mkdir, 0, 1)).unwrap();
                s.on_abandoned(Slot(0), None);
                s
            }),
        ];
        let mut table = String::new();
        for (name, make) in states {
            for (event, header) in [
                ("last", request(Opcode::Mkdir, 0, 1)),
                ("last, other opcode", request(Opcode::Remove, 0, 1)),
                ("next", request(Opcode::Mkdir, 0, 2)),
                ("beyond", request(Opcode::Mkdir, 0, 3)),
                ("zero", request(Opcode::Mkdir, 0, 0)),
            ] {
                let outcome = match make().admit(&header) {
                    Ok(Admission::Execute(_)) => "execute",
                    Ok(Admission::Replay(_)) => "replay",
                    Ok(Admission::InProgress) => "in progress",
                    Ok(Admission::FalseRetry) => "false retry",
                    Err(SessionFault::SlotBusy { .. }) => "fault: busy",
                    Err(SessionFault::Sequence { .. }) => "fault: sequence",
                    Err(_) => "fault",
                };
                table.push_str(&format!("| {name} | {event} | {outcome} |\n"));
            }
        }
        let spec = include_str!("../../../spec/protocol/session.md");
        for row in table.lines() {
            assert!(spec.contains(row), "spec/protocol/session.md lacks the row\n{row}\nof\n{table}");
        }
    }

    #[test]
    fn slot_beyond_the_sessions_is_a_fault() {
        let mut session = ServerSession::new(4, 4);
        assert!(session.admit(&request(Opcode::Null, 3, 1)).is_ok());
        assert_eq!(
            session.admit(&request(Opcode::Null, 4, 1)),
            Err(SessionFault::NoSuchSlot { slot: 4, slots: 4 })
        );
    }

    #[test]
    fn handshake_and_callback_opcodes_in_a_session_are_faults() {
        let mut session = ServerSession::new(4, 4);
        for opcode in [Opcode::Hello, Opcode::Authenticate, Opcode::Notice] {
            assert!(matches!(session.admit(&request(opcode, 0, 1)), Err(SessionFault::Misplaced { .. })));
        }
        for flag in [Flags::REPLY, Flags::CALLBACK] {
            let mut header = request(Opcode::Null, 0, 1);
            header.flags = flag;
            assert!(matches!(session.admit(&header), Err(SessionFault::Misplaced { .. })));
        }
    }

    // [SESS-86] [SESS-120]
    #[test]
    fn session_resumed_reports_slots_and_takes_replays_of_all() {
        let mut session = ServerSession::new(2, 2);
        let (first, second) = (request(Opcode::Mkdir, 0, 1), request(Opcode::Append, 1, 1));
        session.admit(&first).unwrap();
        session.admit(&second).unwrap();
        session.on_reply(&first, Status::OK, None, 1);
        session.keep_reply(Slot(0), &[1, 2, 3], &[4]);
        assert_eq!(session.credits().limit(), 1);
        let reports = session.on_resumed();
        assert_eq!(session.credits().limit(), 2, "all slots");
        assert_eq!(reports[0], SlotReport { slot: 0, sequence: 1, executed: true });
        assert_eq!(reports[1], SlotReport { slot: 1, sequence: 1, executed: false });
        let replay = |header: Header| Header { flags: Flags::REPLAY, ..header };
        assert_eq!(session.admit(&replay(first)), Ok(Admission::Replay(kept(&[1, 2, 3], &[4]))));
        assert_eq!(session.admit(&replay(second)), Ok(Admission::InProgress));
    }

    // [SESS-54]
    #[test]
    fn effect_is_handed_out_once_and_only_to_the_same_request() {
        let mut session = ServerSession::new(1, 1);
        let first = request(Opcode::Write, 0, 1);
        session.admit(&first).unwrap();
        let seven = Some(Effect::Bytes(7, Verifier(1)));
        session.on_abandoned(Slot(0), seven.clone());
        assert!(matches!(session.admit(&first), Ok(Admission::Execute(None))));
        assert_eq!(session.take_effect(Slot(0)), seven);
        assert_eq!(session.take_effect(Slot(0)), None);
        session.on_abandoned(Slot(0), Some(Effect::Bytes(9, Verifier(1))));
        session.admit(&request(Opcode::Write, 0, 2)).unwrap();
        assert_eq!(session.take_effect(Slot(0)), None, "another request begins at the beginning");
    }

    // [SESS-127] A client whose connection breaks while the first link is under way, and that goes on with something else.
    #[test]
    fn chains_whose_links_are_given_up_leave_nothing() {
        let mut session = ServerSession::new(2, 2);
        let link = |slot, sequence, flags| Header { flags, ..request(Opcode::Read, slot, sequence) };
        let mut ended = None;
        for sequence in 1..100 {
            let first = session.admit(&link(0, sequence, Flags::CHAIN_FORWARD)).unwrap();
            let Admission::Execute(Some(first)) = first else { panic!("{first:?}") };
            assert_eq!(session.take_ended_chain(), ended, "the one before ends");
            let second = session.admit(&link(1, sequence, Flags::CHAIN_BACK)).unwrap();
            let Admission::Execute(Some(second)) = second else { panic!("{second:?}") };
            assert_eq!(session.take_ended_chain(), None, "it has ended");
            assert_eq!(session.chain_step(second), ChainStep::Wait);
            assert_eq!(session.chains.count(), 1);
            session.on_abandoned(Slot(0), None);
            session.on_abandoned(Slot(1), None);
            ended = Some(first.chain);
        }
        session.admit(&request(Opcode::Read, 0, 100)).unwrap();
        assert_eq!(session.take_ended_chain(), ended);
        assert_eq!(session.chains.count(), 0);
    }

    #[test]
    fn sequence_wraps_around() {
        let mut session = ServerSession::new(1, 1);
        session.slot_index(Slot(0)).unwrap();
        session.slots[0].sequence = u32::MAX;
        session.slots[0].state = SlotState::Answered;
        assert!(session.admit(&request(Opcode::Null, 0, 0)).is_err(), "0 is never used");
        assert!(matches!(session.admit(&request(Opcode::Null, 0, 1)), Ok(Admission::Execute(_))));
    }
}
