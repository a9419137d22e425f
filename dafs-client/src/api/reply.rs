//! What finished operations answered.

use dafs_proto::wire::{Attributes, decode_message_pack};
use serde::de::DeserializeOwned;

use crate::error::Result;
use crate::op::Op;

/// The outcome of an operation that returns nothing.
pub(crate) fn done(op: Op) -> Result<()> {
    op.into_reply().map(drop)
}

/// What the payload of a reply says; `what` it is.
pub(crate) fn decoded<T: DeserializeOwned>(what: &'static str, op: Op) -> Result<T> {
    Ok(decode_message_pack(what, &op.into_reply()?.payload)?)
}

/// The attributes in a reply.
pub(crate) fn attributes(op: Op) -> Result<Attributes> {
    decoded("attributes", op)
}

pub(crate) fn bytes(op: Op) -> Result<Vec<u8>> {
    Ok(op.into_reply()?.payload)
}
