use super::chain::Chains;
use super::client::next_sequence;
use super::{ChainLink, ChainStep, ServerCredits, SessionFault};
use crate::wire::{Class, FileHandle, Flags, Header, Opcode, Slot, SlotReport, Status};

/// Payload of a cached reply at most, bytes. Operations whose replies are cached answer less.
pub const REPLY_CACHE_PAYLOAD_MAX: usize = 1024;

/// A reply kept for the case that its connection broke before the client read it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct CachedReply {
    /// The whole head.
    pub head: Box<[u8]>,
    /// The payload.
    pub payload: Box<[u8]>,
}

/// What to do with a request that arrived.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Admission {
    /// Execute it; its place in a chain, where it has one.
    Execute(Option<ChainLink>),
    /// It was executed: send this reply again.
    Replay(CachedReply),
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
    callbacks: u32,
}

#[derive(Clone, Debug)]
struct ServerSlot {
    // Of the last request that arrived; 0 before the first.
    sequence: u32,
    opcode: Opcode,
    state: SlotState,
    link: Option<ChainLink>,
}

#[derive(Clone, Debug)]
enum SlotState {
    /// No request yet, or the last one was abandoned: it may come again under the same number.
    Idle,
    /// Being executed, or waiting for its turn in a chain.
    Executing,
    /// Answered. The reply is kept where executing again would do harm.
    Answered(Option<Box<CachedReply>>),
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
            let empty = ServerSlot { sequence: 0, opcode: Opcode::Null, state: SlotState::Idle, link: None };
            self.slots.resize(index + 1, empty);
        }
        Ok(index)
    }

    #[inline]
    fn admit_new(&mut self, index: usize, header: &Header) -> Result<Admission, SessionFault> {
        self.take_credit(header)?;
        let link = self.chains.on_request(header, self.slots_max)?;
        self.slots[index] = ServerSlot {
            sequence: header.sequence,
            opcode: header.opcode,
            state: SlotState::Executing,
            link,
        };
        Ok(Admission::Execute(link))
    }

    fn admit_again(&mut self, index: usize, header: &Header) -> Result<Admission, SessionFault> {
        let slot = &self.slots[index];
        if slot.opcode != header.opcode {
            return Ok(Admission::FalseRetry);
        }
        match &slot.state {
            SlotState::Executing => Ok(Admission::InProgress),
            SlotState::Answered(Some(reply)) => Ok(Admission::Replay(CachedReply::clone(reply))),
            // Idempotent, or abandoned before it had an effect: executed again.
            SlotState::Answered(None) | SlotState::Idle => {
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

    /// Whether a link of a chain may run now.
    pub fn chain_step(&self, link: ChainLink) -> ChainStep {
        self.chains.step(link)
    }

    /// The reply to an admitted request is about to be sent: returns the credit target for its header. `cache` is
    /// given where the operation must not be executed twice; `saved` where the request saves its handle for its
    /// chain.
    #[inline]
    pub fn on_reply(
        &mut self,
        request: &Header,
        status: Status,
        saved: Option<FileHandle>,
        target: u16,
    ) -> u16 {
        if let Some(slot) = self.slots.get_mut(request.slot.0 as usize) {
            slot.state = SlotState::Answered(None);
            if let Some(link) = slot.link {
                self.chains.on_reply(link, status, saved);
            }
        }
        self.credits.on_reply(target)
    }

    /// Keeps the finished reply of the slot's last request.
    pub fn cache_reply(&mut self, slot: Slot, reply: CachedReply) {
        if let Some(slot) = self.slots.get_mut(slot.0 as usize) {
            slot.state = SlotState::Answered(Some(Box::new(reply)));
        }
    }

    /// An admitted request ended before it had any effect and without a reply, because its connection is gone. It may come again.
    pub fn on_abandoned(&mut self, slot: Slot) {
        if let Some(slot) = self.slots.get_mut(slot.0 as usize) {
            slot.state = SlotState::Idle;
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
                executed: matches!(slot.state, SlotState::Answered(_)),
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

    fn reply() -> CachedReply {
        CachedReply { head: Box::from([1, 2, 3]), payload: Box::default() }
    }

    // [SESS-10] [SESS-11] [SESS-12] [SESS-13] [SESS-14] [WIRE-15] The (state, event) table of spec/session.md, walked.
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
                s.cache_reply(Slot(0), reply());
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
                s.on_abandoned(Slot(0));
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
        let spec = include_str!("../../../spec/session.md");
        for row in table.lines() {
            assert!(spec.contains(row), "spec/session.md lacks the row\n{row}\nof\n{table}");
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

    #[test]
    fn session_resumed_reports_slots_and_takes_replays_of_all() {
        let mut session = ServerSession::new(2, 2);
        let (first, second) = (request(Opcode::Mkdir, 0, 1), request(Opcode::Append, 1, 1));
        session.admit(&first).unwrap();
        session.admit(&second).unwrap();
        session.on_reply(&first, Status::OK, None, 1);
        session.cache_reply(Slot(0), reply());
        let reports = session.on_resumed();
        assert_eq!(reports[0], SlotReport { slot: 0, sequence: 1, executed: true });
        assert_eq!(reports[1], SlotReport { slot: 1, sequence: 1, executed: false });
        let replay = |header: Header| Header { flags: Flags::REPLAY, ..header };
        assert_eq!(session.admit(&replay(first)), Ok(Admission::Replay(reply())));
        assert_eq!(session.admit(&replay(second)), Ok(Admission::InProgress));
    }

    #[test]
    fn sequence_wraps_around() {
        let mut session = ServerSession::new(1, 1);
        session.slot_index(Slot(0)).unwrap();
        session.slots[0].sequence = u32::MAX;
        session.slots[0].state = SlotState::Answered(None);
        assert!(session.admit(&request(Opcode::Null, 0, 0)).is_err(), "0 is never used");
        assert!(matches!(session.admit(&request(Opcode::Null, 0, 1)), Ok(Admission::Execute(_))));
    }
}
