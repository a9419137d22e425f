//! Operations that lock: what they ask for, and what they wait for.

use std::sync::Arc;

use dafs_proto::wire::{LockFlags, LockRequest, LockTurn, Opcode};

use crate::error::Result;
use crate::handle::locks::PutBack;
use crate::handle::node::Node;
use crate::op::{Op, Work};

impl Op {
    /// It locks a range, and is no chain.
    pub(crate) fn is_lock(&self) -> bool {
        self.opcode == Opcode::Lock && matches!(self.work, Work::Named(_))
    }

    /// The server will tell when to ask again.
    pub(crate) fn waits(&self) -> bool {
        matches!(&self.work, Work::Named(named) if named.waits.is_some())
    }

    /// From now on it waits for this turn.
    pub(crate) fn begin_wait(&mut self) -> Option<LockTurn> {
        let LockRequest { offset, len, owner, .. } = self.lock_request()?;
        let (Work::Named(named), Some(node)) = (&mut self.work, &self.target) else { return None };
        let turn = LockTurn { handle: node.handle().0, offset, len, owner };
        named.waits = Some(turn);
        Some(turn)
    }

    /// It waits no more; for what it did.
    pub(crate) fn end_wait(&mut self) -> Option<LockTurn> {
        match &mut self.work {
            Work::Named(named) => named.waits.take(),
            Work::Data(_) | Work::Chain(_) | Work::Batch(_) => None,
        }
    }

    /// The lock that it asks for, and of which file; `None` where it ends a wait, or is no lock.
    pub(crate) fn asked_lock(&self) -> Option<(Arc<Node>, LockRequest)> {
        let asked = self.lock_request().filter(|request| !request.flags.contains(LockFlags::CANCEL))?;
        Some((Arc::clone(self.target.as_ref()?), asked))
    }

    /// The server has to hear of it although the file is of no use any more: others may wait for what this session gives back by it.
    pub(crate) fn is_owed(&self, epoch: u64) -> bool {
        let is_open = self.target.as_ref().is_some_and(|node| node.is_open_in(epoch));
        let gives_up = self.lock_request().is_some_and(|request| request.flags.contains(LockFlags::CANCEL));
        let gives_back = self.opcode == Opcode::Unlock && matches!(self.work, Work::Named(_));
        is_open && (gives_back || gives_up)
    }

    /// The session in which it was answered well.
    pub(crate) fn answered_in(&self) -> Option<u64> {
        match &self.work {
            Work::Named(named) => Some(named.reply.as_ref()?.epoch),
            Work::Data(_) | Work::Chain(_) | Work::Batch(_) => None,
        }
    }

    /// What came of a lock, or of giving one back. The latter ends well without a reply where its session has ended.
    pub(crate) fn into_locked(mut self) -> Result<()> {
        match (self.opcode, self.error.take()) {
            (_, Some(error)) => Err(*error),
            (Opcode::Unlock, None) => Ok(()),
            (_, None) => self.into_reply().map(drop),
        }
    }

    /// What it puts back, and of which file.
    pub(crate) fn puts_back(&self) -> Option<(&Arc<Node>, &PutBack)> {
        match &self.work {
            Work::Named(named) => Some((self.target.as_ref()?, named.puts_back.as_ref()?)),
            Work::Data(_) | Work::Chain(_) | Work::Batch(_) => None,
        }
    }

    fn lock_request(&self) -> Option<LockRequest> {
        match &self.work {
            Work::Named(named) if self.opcode == Opcode::Lock => LockRequest::decode(&named.body).ok(),
            _ => None,
        }
    }
}
