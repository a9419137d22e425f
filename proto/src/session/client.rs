use super::{ClientCredits, SessionFault};
use crate::wire::{Flags, Header, Opcode, Slot, Welcome};

/// The client's side of a session: slots, sequence numbers, credits.
///
/// A driver calls [`ClientSession::begin`] for each request and sends the header it filled in;
/// [`ClientSession::on_reply`] for each reply; after a reconnect that resumed the session
/// [`ClientSession::on_resumed`], then [`ClientSession::again`] for every unanswered request in the order they were
/// first sent.
#[derive(Debug)]
pub struct ClientSession {
    slots: Vec<ClientSlot>,
    // Slots without a request, last used first: the server's state for them is warm.
    free: Vec<u32>,
    slots_max: u16,
    credits: ClientCredits,
    callbacks: u32,
    order: u64,
    replies: u64,
}

#[derive(Clone, Copy, Debug)]
struct ClientSlot {
    // Of the last request sent; 0 before the first.
    sequence: u32,
    busy: Option<Opcode>,
}

/// A request that was given a slot.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Sent {
    /// The slot; its reply carries it.
    pub slot: Slot,
    /// Place in the order of requests of this session.
    pub order: u64,
}

impl ClientSession {
    /// A session as the server welcomed it.
    pub fn new(welcome: &Welcome) -> Self {
        Self {
            slots: Vec::new(),
            free: Vec::new(),
            slots_max: welcome.slots.max(1),
            credits: ClientCredits::new(welcome.credits, welcome.slots),
            callbacks: 0,
            order: 0,
            replies: 0,
        }
    }

    /// A request can be sent now.
    #[inline]
    pub fn can_send(&self) -> bool {
        self.credits.available() && (!self.free.is_empty() || self.slots.len() < usize::from(self.slots_max))
    }

    /// Requests outstanding.
    #[inline]
    pub fn outstanding(&self) -> u16 {
        self.credits.outstanding()
    }

    /// Replies so far.
    pub fn replies(&self) -> u64 {
        self.replies
    }

    /// The number of the last request in a slot; `None` where none was sent.
    pub fn sequence_of(&self, slot: Slot) -> Option<u32> {
        self.slots.get(slot.0 as usize).map(|slot| slot.sequence)
    }

    /// Credits, for people.
    pub fn credits(&self) -> &ClientCredits {
        &self.credits
    }

    /// Gives a request a slot and fills in its header; `None` when credits or slots are used up. `wanted` is how many
    /// requests the client would like outstanding.
    #[inline]
    pub fn begin(&mut self, header: &mut Header, wanted: u16) -> Option<Sent> {
        if !self.can_send() {
            return None;
        }
        let slot = match self.free.pop() {
            Some(slot) => slot,
            None => {
                self.slots.push(ClientSlot { sequence: 0, busy: None });
                u32::try_from(self.slots.len() - 1).expect("slots are counted in 16 bits")
            }
        };
        let state = &mut self.slots[slot as usize];
        state.sequence = next_sequence(state.sequence);
        state.busy = Some(header.opcode);
        header.slot = Slot(slot);
        header.sequence = state.sequence;
        header.credits = wanted.max(1);
        self.credits.on_request();
        self.order += 1;
        Some(Sent { slot: Slot(slot), order: self.order })
    }

    /// Takes a request back that [`ClientSession::begin`] gave a slot but that was never handed to the transport.
    pub fn take_back(&mut self, slot: Slot) {
        if let Some(state) = self.slots.get_mut(slot.0 as usize).filter(|state| state.busy.is_some()) {
            state.sequence = state.sequence.saturating_sub(1);
            state.busy = None;
            self.free.push(slot.0);
            self.credits.on_reply(self.credits.limit());
        }
    }

    /// A reply arrived. Its slot is free again.
    #[inline]
    pub fn on_reply(&mut self, header: &Header) -> Result<Slot, SessionFault> {
        let unexpected = SessionFault::UnexpectedReply { slot: header.slot.0, sequence: header.sequence };
        let state = self.slots.get_mut(header.slot.0 as usize).ok_or(unexpected.clone())?;
        let expected = state.busy.filter(|_| state.sequence == header.sequence).ok_or(unexpected)?;
        if expected != header.opcode {
            return Err(SessionFault::WrongReply { slot: header.slot.0, received: header.opcode, expected });
        }
        state.busy = None;
        self.replies += 1;
        self.free.push(header.slot.0);
        self.credits.on_reply(header.credits);
        Ok(header.slot)
    }

    /// A callback arrived. They come in order and none is lost while a connection lasts; the count begins again with each connection.
    pub fn on_callback(&mut self, header: &Header) -> Result<(), SessionFault> {
        let expected = self.callbacks.wrapping_add(1);
        if header.sequence != expected {
            return Err(SessionFault::Sequence { slot: 0, received: header.sequence, expected });
        }
        self.callbacks = expected;
        Ok(())
    }

    /// A `CreditTarget` callback arrived.
    pub fn on_credit_target(&mut self, target: u16) {
        self.credits.on_raise(target);
    }

    /// The session was resumed on a new connection: unanswered requests keep their slots and are sent again; credits begin anew.
    pub fn on_resumed(&mut self, welcome: &Welcome) {
        self.credits = ClientCredits::resumed(welcome.credits, self.slots_max, self.credits.outstanding());
        self.callbacks = 0;
    }

    /// Fills in the header of an unanswered request that is sent again.
    #[inline]
    pub fn again(&self, header: &mut Header, slot: Slot) {
        header.slot = slot;
        header.sequence = self.slots.get(slot.0 as usize).map_or(0, |state| state.sequence);
        header.flags |= Flags::REPLAY;
        header.credits = header.credits.max(1);
    }
}

/// Sequence numbers go round from the last to 1; 0 stands for "no request yet".
#[inline]
pub(super) fn next_sequence(sequence: u32) -> u32 {
    sequence.checked_add(1).unwrap_or(1)
}

#[cfg(test)]
pub(super) mod tests {
    use super::*;
    use crate::wire::{Crossovers, FileHandle, SessionId, Status, Thresholds};

    pub(in crate::session) fn welcome(slots: u16, credits: u16) -> Welcome {
        let crossovers = Crossovers {
            read_registered: 0,
            read_unregistered: 0,
            write_registered: 0,
            write_unregistered: 0,
        };
        Welcome {
            session: SessionId(1),
            secret: [0; 16],
            resumed: false,
            server_epoch: 1,
            features: 0,
            slots,
            credits,
            keep_alive_ms: 1000,
            lease_ms: 3000,
            thresholds: Thresholds { read_inline_max: 8192, write_inline_max: 8192, crossovers },
            transfer_size_max: 1 << 20,
            handles_max: 100,
            slot_reports: Vec::new(),
            gather: None,
            cluster: None,
        }
    }

    fn request() -> Header {
        Header::request(Opcode::Null, FileHandle(0))
    }

    #[test]
    fn session_with_credits_used_up_gives_no_slot_until_a_reply() {
        let mut session = ClientSession::new(&welcome(4, 2));
        let (mut first, mut second) = (request(), request());
        session.begin(&mut first, 4).unwrap();
        session.begin(&mut second, 4).unwrap();
        assert_eq!(session.begin(&mut request(), 4), None);
        session.on_reply(&Header { credits: 2, ..second.reply(Status::OK) }).unwrap();
        assert!(session.begin(&mut request(), 4).is_some());
    }

    // [SESS-21] However few are granted, what was sent again counts: no new request goes before enough of it is answered.
    #[test]
    fn session_resumed_short_of_credits_sends_nothing_new() {
        let mut session = ClientSession::new(&welcome(8, 8));
        let mut sent = [request(); 6];
        for header in &mut sent {
            session.begin(header, 8).unwrap();
        }
        session.on_resumed(&welcome(8, 2));
        assert_eq!(session.outstanding(), 6);
        for (answered, header) in sent.iter().enumerate() {
            assert_eq!(session.can_send(), 6 - answered < 2, "{answered} are answered");
            session.on_reply(&Header { credits: 2, ..header.reply(Status::OK) }).unwrap();
        }
        assert_eq!(session.outstanding(), 0);
        assert!(session.begin(&mut request(), 8).is_some());
    }

    #[test]
    fn session_reply_to_nothing_or_to_another_opcode_is_a_fault() {
        let mut session = ClientSession::new(&welcome(4, 4));
        let mut header = request();
        session.begin(&mut header, 4).unwrap();
        let reply = header.reply(Status::OK);
        assert!(session.on_reply(&Header { slot: Slot(9), ..reply }).is_err());
        assert!(session.on_reply(&Header { sequence: 2, ..reply }).is_err());
        assert!(session.on_reply(&Header { opcode: Opcode::Read, ..reply }).is_err());
        session.on_reply(&reply).unwrap();
        assert!(session.on_reply(&reply).is_err(), "answered twice");
    }

    #[test]
    fn session_slot_reused_counts_its_sequence_up() {
        let mut session = ClientSession::new(&welcome(1, 1));
        for expected in 1..4 {
            let mut header = request();
            session.begin(&mut header, 1).unwrap();
            assert_eq!(header.sequence, expected);
            session.on_reply(&header.reply(Status::OK)).unwrap();
        }
    }
}
