//! What is in flight: one operation of the caller, what is asked, what memory takes part, what has come of it. Sends nothing. Imports
//! `handle`, `method` and `memory`.

pub(crate) mod batch;
pub(crate) mod batch_part;
pub(crate) mod body;
pub(crate) mod chain;
pub(crate) mod list;
pub(crate) mod named;
pub(crate) mod pieces;
pub(crate) mod request;
pub(crate) mod terms;
pub(crate) mod transfer;

use std::sync::Arc;

use dafs_proto::session::Moment;
use dafs_proto::wire::{BatchFlags, BatchRequest, HEADER_SIZE, Opcode, OpenFlags};

use crate::error::Error;
use crate::handle::node::{Node, join};
use crate::memory::registration::Hold;
use crate::method::io_path::IoPath;
use crate::op::batch::BatchWork;
use crate::op::chain::ChainWork;
use crate::op::named::Named;
use crate::op::transfer::{Transfer, TransferKind};

/// An operation, from submission until its result is collected.
pub(crate) struct Op {
    pub(crate) opcode: Opcode,
    /// Whose handle the requests carry.
    pub(crate) target: Option<Arc<Node>>,
    pub(crate) work: Work,
    /// When it ends with [`Error::TimedOut`].
    pub(crate) deadline: Option<Moment>,
    pub(crate) timeout_ms: u32,
    /// In the queue of operations with something to send.
    pub(crate) queued: bool,
    /// Requests sent and not answered.
    pub(crate) outstanding: u16,
    pub(crate) done: bool,
    /// Nobody collects the result.
    pub(crate) detached: bool,
    pub(crate) error: Option<Box<Error>>,
}

/// What an operation does.
#[allow(clippy::large_enum_variant, reason = "transfers are the fast path and are not allocated one by one")]
pub(crate) enum Work {
    /// One request, one reply.
    Named(Box<Named>),
    /// File data, or directory entries, in one or more requests.
    Data(Transfer),
    /// Requests that depend on each other.
    Chain(Box<ChainWork>),
    /// Reads and writes that do not depend on each other.
    Batch(Box<BatchWork>),
}

impl Op {
    pub(crate) fn new(opcode: Opcode, target: Option<Arc<Node>>, work: Work) -> Self {
        Self {
            opcode,
            target,
            work,
            deadline: None,
            timeout_ms: 0,
            queued: false,
            outstanding: 0,
            done: false,
            detached: false,
            error: None,
        }
    }

    pub(crate) fn named(opcode: Opcode, target: Option<Arc<Node>>, named: Named) -> Self {
        Self::new(opcode, target, Work::Named(Box::new(named)))
    }

    /// The transfer that it is.
    pub(crate) fn transfer(&self) -> Option<&Transfer> {
        match &self.work {
            Work::Data(transfer) => Some(transfer),
            Work::Named(_) | Work::Chain(_) | Work::Batch(_) => None,
        }
    }

    /// A file that it names is gone.
    pub(crate) fn is_stale(&self) -> bool {
        let second = match &self.work {
            Work::Named(named) => named.second.as_ref(),
            Work::Batch(batch) => batch.entries.iter().map(|entry| &entry.node).find(|node| node.is_stale()),
            Work::Data(_) | Work::Chain(_) => None,
        };
        self.target.iter().chain(second).any(|node| node.is_stale())
    }

    /// What a request for a piece of it asks.
    #[inline]
    pub(crate) fn request_opcode(&self, at: usize, len: usize) -> Opcode {
        match &self.work {
            Work::Data(Transfer { sieved: 1.., .. }) => Opcode::Read,
            Work::Data(Transfer { list: Some(list), kind, .. }) => match (kind, list.is_plain(at, len)) {
                (TransferKind::Write(_), true) => Opcode::Write,
                (_, true) => Opcode::Read,
                _ => self.opcode,
            },
            Work::Chain(chain) => chain.links.get(at).map_or(self.opcode, |link| link.opcode),
            _ => self.opcode,
        }
    }

    /// It has more to send.
    pub(crate) fn has_more(&self) -> bool {
        match &self.work {
            Work::Named(named) => !named.sent,
            Work::Data(transfer) => transfer.has_more(),
            Work::Chain(chain) => chain.sent < chain.links.len(),
            Work::Batch(batch) => batch.has_more(),
        }
    }

    /// Nothing more is sent for it.
    pub(crate) fn stop(&mut self) {
        match &mut self.work {
            Work::Named(named) => named.sent = true,
            Work::Data(transfer) => transfer.stop(),
            Work::Chain(chain) => chain.sent = chain.links.len(),
            Work::Batch(batch) => batch.stop(),
        }
    }

    /// A peer may be reading or writing its memory now, or it cannot be given up for another reason.
    pub(crate) fn peer_holds_memory(&self) -> bool {
        match &self.work {
            Work::Named(_) => false,
            Work::Batch(_) => self.outstanding > 0,
            // Nor is a chain left half sent: the server would wait for its end.
            Work::Chain(chain) => self.outstanding > 0 || chain.sent > 0,
            Work::Data(transfer) => {
                let by_rdma = matches!(
                    transfer.path,
                    IoPath::Direct | IoPath::DirectRegister | IoPath::Fast | IoPath::Client
                );
                self.outstanding > 0 && by_rdma
            }
        }
    }

    /// When it is given up, what was not sent stays unsent. A chain goes whole.
    pub(crate) fn is_cut_short(&self) -> bool {
        !matches!(self.work, Work::Chain(_))
    }

    /// What takes the replies when it is given up, in its place; nobody collects that.
    pub(crate) fn stand_in(&mut self) -> Op {
        let work = match &mut self.work {
            // It may be needed again after a reconnect.
            Work::Named(named) => Work::Named(Box::new(Named {
                body: named.body,
                body_len: named.body_len,
                payload: std::mem::take(&mut named.payload),
                second: named.second.clone(),
                handle: named.handle,
                open_flags: named.open_flags,
                sent: true,
                ..Named::default()
            })),
            Work::Data(transfer) => Work::Data(Transfer::void(transfer.kind)),
            Work::Chain(_) | Work::Batch(_) => Work::Data(Transfer::void(TransferKind::Read)),
        };
        let mut stand_in = Op::new(self.opcode, self.target.clone(), work);
        stand_in.detached = true;
        stand_in.outstanding = std::mem::take(&mut self.outstanding);
        stand_in
    }

    /// Ends remote access to its memory: the session is over.
    pub(crate) fn revoke_memory(&mut self) {
        if let Work::Data(transfer) = &mut self.work {
            transfer.holds.drain(..).for_each(Hold::revoke);
            if transfer.path == IoPath::Direct {
                transfer.keep.revoke();
            }
        }
        if let Work::Batch(batch) = &mut self.work {
            batch.revoke();
        }
    }

    /// The path it is about, below its export.
    pub(crate) fn path(&self) -> Vec<u8> {
        let base = self.target.as_ref().map_or(&[][..], |node| &node.path);
        match &self.work {
            Work::Named(named) => join(base, &named.path),
            Work::Data(_) | Work::Chain(_) | Work::Batch(_) => base.to_vec(),
        }
    }

    /// It may be sent again in a new session although it had been sent in the old one: executing it twice does no
    /// harm, or its only effect was on the session that is gone.
    pub(crate) fn can_repeat(&self) -> bool {
        let making = OpenFlags::CREATE | OpenFlags::EXCLUSIVE | OpenFlags::TRUNCATE;
        match (self.opcode, &self.work) {
            (_, Work::Chain(chain)) => chain.repeats(),
            (Opcode::Mount | Opcode::Lookup | Opcode::Close | Opcode::Share | Opcode::OpenToken, _) => true,
            (Opcode::Open, Work::Named(named)) => {
                named.open_flags.is_some_and(|flags| !flags.intersects(making))
            }
            _ => self.opcode.is_idempotent(),
        }
    }

    /// An operation that asks the server to gather no ends of the session's batches any more. Nobody collects it.
    pub(crate) fn expediting() -> Op {
        let request = BatchRequest { flags: BatchFlags::EXPEDITE, ..BatchRequest::default() };
        let mut named = Named { body_len: BatchRequest::HEAD_SIZE - HEADER_SIZE, ..Named::default() };
        request.encode(&mut named.body[..BatchRequest::HEAD_SIZE - HEADER_SIZE]);
        let mut op = Op::named(Opcode::Batch, None, named);
        op.detached = true;
        op
    }
}
