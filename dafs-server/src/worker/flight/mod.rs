//! What is in flight: requests that were admitted, and what each kind of operation knows of itself while it waits. Does nothing with
//! storage, connections or sessions. Imports `storage`'s words, `buffers`, `plan` and `sched`'s learners.

pub(crate) mod account;
pub(crate) mod after;
pub(crate) mod answer;
pub(crate) mod batch;
pub(crate) mod calls;
pub(crate) mod eager;
pub(crate) mod fencing;
pub(crate) mod layout;
pub(crate) mod list;
pub(crate) mod lock;
pub(crate) mod meeting;
pub(crate) mod moving;
pub(crate) mod pipeline;
pub(crate) mod plan;
pub(crate) mod transfer;

use std::sync::Arc;

use dafs_proto::session::{ChainLink, Moment};
use dafs_proto::transport::{HeapMemory, MemoryRef, OpToken, Span};
use dafs_proto::wire::{FileHandle, Header, Status};

use self::batch::BatchPlace;
use crate::worker::ids::{ConnectionKey, SessionKey};

/// A request that was admitted, and where its reply goes.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Call {
    pub(crate) session: SessionKey,
    /// The connection it last arrived on: its reply goes there or nowhere, since on another the client is going to ask again.
    pub(crate) connection: ConnectionKey,
    pub(crate) header: Header,
    pub(crate) link: Option<ChainLink>,
    /// It is an operation of a batch, and answers there.
    pub(crate) batch: Option<BatchPlace>,
    /// It must have begun by then.
    pub(crate) expires: Option<Moment>,
    /// It was answered, and the answer taken back: it is made again, but for what the session knows of it.
    pub(crate) is_amended: bool,
}

impl Call {
    /// Its deadline has passed.
    pub(crate) fn has_expired(&self, now: Moment) -> bool {
        self.expires.is_some_and(|expires| now >= expires)
    }
}

/// Something to be looked at before the turn ends.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Wakeup {
    /// A link of this chain was answered.
    Chain(SessionKey, u64),
    /// Operations of this batch have ended.
    Batch(OpToken),
    /// A buffer came back.
    Buffer,
    /// An operation began, went on or ended while somebody drains.
    Drain,
    /// An operation ended in a session that has closed handles in use.
    Closed(SessionKey, Option<FileHandle>),
}

/// Bits of a token that are the operation's place: more operations than anybody has memory for. Above them is the slot of a
/// transfer's chunk, above that the generation.
pub(crate) const INDEX_BITS: u32 = 24;
pub(crate) const INDEX_MASK: u64 = (1 << INDEX_BITS) - 1;
/// A token that names the operation as a whole has all bits of the slot set.
pub(crate) const NO_SLOT: u64 = 0xff;

/// Names reading ahead, which nobody waits for: no operation has the last place.
pub(crate) const READ_AHEAD: OpToken = OpToken(NO_SLOT << INDEX_BITS | INDEX_MASK);

pub(crate) fn token(index: usize, generation: u32) -> OpToken {
    OpToken(u64::from(generation) << 32 | NO_SLOT << INDEX_BITS | (index as u64 & INDEX_MASK))
}

/// The token of a part of an operation.
pub(crate) fn token_with_slot(token: OpToken, slot: u8) -> OpToken {
    OpToken(token.0 & !(NO_SLOT << INDEX_BITS) | u64::from(slot) << INDEX_BITS)
}

pub(crate) fn slot_of(token: OpToken) -> u8 {
    u8::try_from(token.0 >> INDEX_BITS & NO_SLOT).unwrap_or(u8::MAX)
}

/// Memory of this process for so many bytes.
pub(crate) fn own_memory(len: usize) -> Result<MemoryRef, Status> {
    let memory = MemoryRef::new(Arc::new(HeapMemory::allocate(len).ok_or(Status::NO_MEMORY)?));
    memory.slice(0, len).ok_or(Status::NO_MEMORY)
}

/// A copy of these bytes in memory of this process.
pub(crate) fn own_copy(bytes: Span<'_>) -> Result<MemoryRef, Status> {
    let memory = own_memory(bytes.len())?;
    memory.span().copy_from(bytes);
    Ok(memory)
}
