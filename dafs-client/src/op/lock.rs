//! Operations that lock: what they wait for, and what puts back what they have changed where nobody knows of that.

use std::ops::Range;

use dafs_proto::wire::{LockFlags, LockKind, LockRequest, LockTurn, Opcode, UnlockRequest};

use crate::handle::node::Node;
use crate::op::named::Named;
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

    /// Requests that give back what it locked, when nobody knows of that; what its owner had locked before stays.
    pub(crate) fn unclaimed_locks(&self, epoch: u64) -> Vec<(Opcode, Named)> {
        let (Some(request), Work::Named(named), Some(node)) = (self.lock_request(), &self.work, &self.target)
        else {
            return Vec::new();
        };
        let is_locked = named.reply.as_ref().is_some_and(|reply| reply.epoch == epoch);
        if !is_locked || request.flags.contains(LockFlags::CANCEL) {
            return Vec::new();
        }
        // What it was going to repair stays broken, which giving it back would deny.
        let repairs = request.flags.contains(LockFlags::REPAIR);
        let cancel =
            repairs.then(|| (Opcode::Lock, lock(LockRequest { flags: LockFlags::CANCEL, ..request })));
        let unlocks = unlocks(node, &request).into_iter().map(|unlock| (Opcode::Unlock, unlock));
        let handle = Some(node.handle());
        let requests = cancel.into_iter().chain(unlocks);
        requests.map(|(opcode, named)| (opcode, Named { handle, ..named })).collect()
    }

    /// Requests that end its wait, and put back what its owner had where it was granted before they arrive.
    pub(crate) fn cancels_of_lock(&self) -> Vec<(Opcode, Named)> {
        let (Some(request), Some(node)) = (self.lock_request(), &self.target) else { return Vec::new() };
        let mut cancels = vec![(Opcode::Lock, lock(LockRequest { flags: LockFlags::CANCEL, ..request }))];
        cancels.extend(unlocks(node, &request).into_iter().map(|unlock| (Opcode::Unlock, unlock)));
        if request.kind == LockKind::Exclusive {
            let held = node.locks().shared_parts(&request.range(), request.owner);
            cancels.extend(held.into_iter().map(|request| (Opcode::Lock, lock(request))));
        }
        cancels
    }

    fn lock_request(&self) -> Option<LockRequest> {
        match &self.work {
            Work::Named(named) if self.opcode == Opcode::Lock => LockRequest::decode(&named.body).ok(),
            _ => None,
        }
    }
}

fn lock(request: LockRequest) -> Named {
    Named::of(&request.bytes())
}

/// Requests that give back the parts of a lock that its owner did not have before.
fn unlocks(node: &Node, request: &LockRequest) -> Vec<Named> {
    let owner = request.owner;
    let unlock = |part: Range<u64>| {
        let len = if part.end == u64::MAX { 0 } else { part.end - part.start };
        Named::of(&UnlockRequest { offset: part.start, len, owner }.bytes())
    };
    node.locks().unlocked_parts(&request.range(), owner).into_iter().map(unlock).collect()
}
