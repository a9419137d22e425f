//! What finished operations answered.

use crate::error::{Error, Result};
use crate::op::named::NamedReply;
use crate::op::{Op, Work};

/// The reply of a finished operation without data.
pub(crate) fn reply(op: Op) -> Result<NamedReply> {
    match (op.error, op.work) {
        (Some(error), _) => Err(*error),
        (None, Work::Named(named)) => {
            named.reply.ok_or_else(|| Error::Invalid("the operation ended without a reply".into()))
        }
        (None, Work::Data(_) | Work::Chain(_) | Work::Batch(_)) => unreachable!("only transfers move data"),
    }
}

/// The outcome of an operation that answers nothing.
pub(crate) fn done(op: Op) -> Result<()> {
    reply(op).map(|_| ())
}
