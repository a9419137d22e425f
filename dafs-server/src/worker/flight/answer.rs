//! What a request brings, and what is answered.

use dafs_proto::session::SessionFault;
use dafs_proto::transport::Span;
use dafs_proto::wire::{FileHandle, Status, WireError};

/// Why a request is not executed.
#[derive(Debug)]
pub(crate) enum Problem {
    /// A normal answer: it failed.
    Status(Status),
    /// The same, with words that say what is wrong with the request.
    Refused(Status, String),
    /// The client broke the protocol: its session ends.
    Fault(SessionFault),
}

/// A request is answered or under way, or why it is not.
pub(crate) type Served = Result<(), Problem>;

impl Problem {
    /// Makes an error the answer to a request.
    pub(crate) fn refused<E: std::fmt::Display>(status: Status) -> impl FnOnce(E) -> Self {
        move |error| Self::Refused(status, error.to_string())
    }
}

impl From<Status> for Problem {
    fn from(status: Status) -> Self {
        Self::Status(status)
    }
}

/// The one place that tells a wrong request, which is answered, from a malformed one, which ends its session. Headers, whose faults all
/// do, are decoded before there is a request.
impl From<WireError> for Problem {
    fn from(error: WireError) -> Self {
        match error.answer() {
            Some(status) => Self::Refused(status, error.to_string()),
            None => Self::Fault(error.into()),
        }
    }
}

/// Where a request's payload is.
#[derive(Clone, Copy)]
pub(crate) enum Payload<'a> {
    /// It is the message that the connection is at.
    Current,
    /// It was kept.
    Kept(Span<'a>),
}

/// Whether a reply is kept for the case that it is asked for again.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) enum Keep {
    /// As its opcode says.
    #[default]
    AsAny,
    /// It is, as far as kept replies reach.
    Yes,
    /// Not even of a link: the data did not travel in the reply, and may be lost with the connection.
    Never,
    /// It is not: not all was done, perhaps because the connection broke, and what was done is known.
    No,
}

/// What is answered beside the status.
#[derive(Clone, Copy, Default)]
pub(crate) struct Answer<'a> {
    pub(crate) handle: FileHandle,
    pub(crate) body: &'a [u8],
    pub(crate) payload: &'a [u8],
    pub(crate) keep: Keep,
}
