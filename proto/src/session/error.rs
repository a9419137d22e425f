use thiserror::Error;

use crate::wire::{Opcode, Status, WireError};

/// The peer broke the rules of the session. The session ends.
#[derive(Debug, Error, Clone, PartialEq, Eq)]
pub enum SessionFault {
    /// Bytes that cannot be a message.
    #[error("malformed message: {0}")]
    Wire(#[from] WireError),
    /// A slot that the session does not have.
    #[error("slot {slot} does not exist: the session has {slots}")]
    NoSuchSlot {
        /// The slot.
        slot: u32,
        /// Slots of the session.
        slots: u16,
    },
    /// A request in a slot whose last request is still being executed.
    #[error("slot {slot} is busy with request {sequence}")]
    SlotBusy {
        /// The slot.
        slot: u32,
        /// The request being executed.
        sequence: u32,
    },
    /// A sequence number that is neither the next nor the last.
    #[error("slot {slot}: sequence number {received} instead of {expected}")]
    Sequence {
        /// The slot.
        slot: u32,
        /// What arrived.
        received: u32,
        /// What would be next.
        expected: u32,
    },
    /// More requests at once than granted.
    #[error("{outstanding} requests at once, {granted} are granted")]
    CreditsExceeded {
        /// Requests at once.
        outstanding: u16,
        /// Credits granted.
        granted: u16,
    },
    /// A link of a chain that nobody began.
    #[error("a request continues a chain that was not begun")]
    NoChain,
    /// A chain longer than the session has slots.
    #[error("a chain of more than {limit} requests")]
    ChainTooLong {
        /// The limit.
        limit: u16,
    },
    /// A reply to nothing.
    #[error("slot {slot} has no request {sequence} to be answered")]
    UnexpectedReply {
        /// The slot.
        slot: u32,
        /// The sequence number in the reply.
        sequence: u32,
    },
    /// A reply for another operation than the request.
    #[error("slot {slot}: a reply to {received:?} where {expected:?} was asked")]
    WrongReply {
        /// The slot.
        slot: u32,
        /// The opcode in the reply.
        received: Opcode,
        /// The opcode of the request.
        expected: Opcode,
    },
    /// A message that has no place now.
    #[error("{opcode:?} has no place {place}")]
    Misplaced {
        /// What arrived.
        opcode: Opcode,
        /// Where: "in the handshake", "in a session".
        place: &'static str,
    },
    /// The peer answered with more than was asked for.
    #[error("{what} is {value}, at most {limit} was asked for")]
    TooMuch {
        /// What.
        what: &'static str,
        /// What was received.
        value: u64,
        /// The limit.
        limit: u64,
    },
}

/// A session could not be agreed on.
#[derive(Debug, Error, Clone, PartialEq, Eq)]
pub enum HandshakeError {
    /// The server said no.
    #[error("the server refused: {0}")]
    Refused(Status),
    /// The peer broke the rules.
    #[error(transparent)]
    Fault(#[from] SessionFault),
    /// The server demands a key and the client has none.
    #[error("the server demands a key; set DAFS_KEY_FILE, Config::key or --key-file")]
    KeyRequired,
    /// The server could not prove that it knows the key.
    #[error("the server does not know the key \"{0}\": it may not be the server you mean")]
    ServerUnproven(String),
}
