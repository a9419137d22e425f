//! A request in flight, and what ends a connection.

use dafs_proto::session::SessionFault;
use dafs_proto::transport::TransportError;
use dafs_proto::wire::{Opcode, WireError};

/// A request in flight, in its slot.
pub(crate) struct Request {
    pub(crate) op: usize,
    /// What was asked: a list may go as plain requests.
    pub(crate) opcode: Opcode,
    /// Place in the order of sending.
    pub(crate) order: u64,
    /// Of the operation's data.
    pub(crate) at: usize,
    pub(crate) len: usize,
    pub(crate) bounce: Option<u16>,
    /// The eager buffer that its data goes through.
    pub(crate) eager_buffer: Option<u16>,
}

/// The connection is unusable.
pub(crate) enum Broken {
    /// It broke: connect again.
    Lost(TransportError),
    /// The server broke the protocol: the session ends.
    Fault(SessionFault),
}

impl From<TransportError> for Broken {
    fn from(error: TransportError) -> Self {
        Self::Lost(error)
    }
}

impl From<SessionFault> for Broken {
    fn from(fault: SessionFault) -> Self {
        Self::Fault(fault)
    }
}

impl From<WireError> for Broken {
    fn from(error: WireError) -> Self {
        Self::Fault(error.into())
    }
}
