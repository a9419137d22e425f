//! What is in flight: requests that were admitted, and what each kind of operation knows of itself while it waits. Does nothing with
//! storage, connections or sessions. Imports `storage`'s words, `buffers`, `plan` and `sched`'s learners.

pub(crate) mod after;
pub(crate) mod answer;
pub(crate) mod batch;
pub(crate) mod calls;
pub(crate) mod fencing;
pub(crate) mod lanes;
pub(crate) mod list;
pub(crate) mod pipeline;
pub(crate) mod plan;
pub(crate) mod transfer;

use dafs_proto::session::{ChainLink, Moment};
use dafs_proto::transport::{MemoryRef, OpToken};
use dafs_proto::wire::Header;

use self::after::After;
use self::batch::{Batch, BatchPlace};
use self::lanes::{LaneFrame, LaneRead};
use self::list::List;
use self::transfer::Transfer;
use crate::worker::buffers::Buffer;
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
}

/// An operation that waits.
#[derive(Debug)]
pub(crate) struct Operation {
    pub(crate) call: Call,
    pub(crate) state: State,
    /// Tells apart operations that had the same place.
    pub(crate) generation: u32,
    /// RDMA operations posted and not completed.
    pub(crate) rdma_pending: u32,
    /// Nobody waits for it any more; it stays until storage and RDMA have let go of its memory.
    pub(crate) forgotten: bool,
}

/// What it waits for.
#[derive(Debug)]
pub(crate) enum State {
    /// Its turn in a chain; the body and the payload are kept.
    Chain { body: Vec<u8>, payload: Vec<u8> },
    /// Storage; then the reply is made.
    Storage(After),
    /// Storage reads into memory that is sent in the reply.
    InlineRead { memory: MemoryRef, export: usize },
    /// Storage reads into a lane.
    LaneRead(LaneRead),
    /// Room for a frame.
    LaneFrame(LaneFrame),
    /// Moves data by RDMA.
    Transfer(Box<Transfer>),
    /// Moves a list.
    List(Box<List>),
    /// Its operations, which are operations of their own here.
    Batch(Box<Batch>),
    /// Waits until no operation of a fenced client is in flight: here, and with as many others as have not said so yet.
    FenceDrain { export: usize, others: usize },
    /// Answered; RDMA still holds its buffers.
    Draining(Vec<Buffer>),
    /// It is being worked on.
    Taken,
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
    /// An operation ended while somebody drains.
    Drain,
}

impl State {
    /// The buffers that it holds.
    pub(crate) fn into_buffers(self) -> Vec<Buffer> {
        match self {
            Self::Transfer(transfer) => transfer.into_buffers(),
            Self::List(list) => list.into_buffers(),
            Self::Draining(buffers) => buffers,
            Self::Chain { .. }
            | Self::Storage(_)
            | Self::InlineRead { .. }
            | Self::LaneRead(_)
            | Self::LaneFrame(_)
            | Self::Batch(_)
            | Self::FenceDrain { .. }
            | Self::Taken => Vec::new(),
        }
    }

    /// Storage has its hands on its memory.
    pub(crate) fn in_storage(&self) -> bool {
        match self {
            Self::Storage(_) | Self::InlineRead { .. } | Self::LaneRead(_) => true,
            Self::Transfer(transfer) => transfer.in_storage(),
            Self::List(list) => list.in_storage(),
            Self::Chain { .. }
            | Self::FenceDrain { .. }
            | Self::Draining(_)
            | Self::LaneFrame(_)
            | Self::Batch(_)
            | Self::Taken => false,
        }
    }
}

/// Bits of a token that are the operation's place: more operations than anybody has memory for. Above them is the slot of a
/// transfer's chunk, above that the generation.
pub(crate) const INDEX_BITS: u32 = 24;
pub(crate) const INDEX_MASK: u64 = (1 << INDEX_BITS) - 1;
/// A token that names the operation as a whole has all bits of the slot set.
pub(crate) const NO_SLOT: u64 = 0xff;

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
