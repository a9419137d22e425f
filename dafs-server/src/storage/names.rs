//! By what an operation is known to storage that several servers share.

use dafs_proto::wire::SessionId;

/// Names a request of a client: its session, and the slot and number in it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RequestName {
    /// The session.
    pub session: SessionId,
    /// The slot.
    pub slot: u32,
    /// Its number in the slot.
    pub sequence: u32,
}
