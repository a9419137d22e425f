//! What finished operations answered.

use crate::error::Result;
use crate::op::Op;
use crate::op::named::NamedReply;

/// The reply of a finished operation without data.
pub(crate) fn reply(op: Op) -> Result<NamedReply> {
    op.into_reply()
}

/// The outcome of an operation that answers nothing.
pub(crate) fn done(op: Op) -> Result<()> {
    reply(op).map(|_| ())
}
