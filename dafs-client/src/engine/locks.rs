//! Locks that wait at the server without a request in flight (the server says when to ask again), and abandoned locks. The node decides
//! about the latter, since it knows what else is asked for.

use std::collections::HashMap;
use std::sync::Arc;

use dafs_proto::wire::{LockRequest, LockTurn, Opcode, Status};
use smallvec::SmallVec;

use crate::engine::core::Core;
use crate::error::Error;
use crate::handle::locks::PutBack;
use crate::handle::node::Node;
use crate::op::Op;
use crate::op::named::Named;

/// Which operations wait for which turn.
#[derive(Default)]
pub(crate) struct LockWaits {
    by_turn: HashMap<LockTurn, SmallVec<[usize; 1]>>,
}

impl LockWaits {
    fn remove(&mut self, turn: &LockTurn, index: usize) {
        if let Some(waiting) = self.by_turn.get_mut(turn) {
            waiting.retain(|other| *other != index);
            if waiting.is_empty() {
                self.by_turn.remove(turn);
            }
        }
    }
}

impl Core {
    /// The server answered that a lock waits.
    pub(crate) fn on_lock_waits(&mut self, index: usize) {
        let Some(op) = self.ops.get_mut(index) else { return };
        let Some(turn) = op.begin_wait() else { return };
        self.lock_waits.by_turn.entry(turn).or_default().push(index);
        // Whoever asked for it has gone meanwhile.
        if self.ops.get(index).is_some_and(|op| op.detached) {
            self.fail(index, Error::Cancelled);
        }
    }

    /// The turn of a lock has come. One that was given up meanwhile has been given back by then.
    pub(crate) fn on_lock_turn(&mut self, turn: &LockTurn) {
        for index in self.lock_waits.by_turn.remove(turn).unwrap_or_default() {
            self.ask_again(index);
        }
    }

    /// There is a new connection, or a new session: what the server has said of turns is lost.
    pub(crate) fn ask_for_locks_again(&mut self) {
        self.lock_waits.by_turn.clear();
        for index in self.indices(Op::waits) {
            self.ask_again(index);
        }
    }

    fn ask_again(&mut self, index: usize) {
        let Some(op) = self.ops.get_mut(index) else { return };
        if op.end_wait().is_some() {
            op.redo(0, 0);
            if !std::mem::replace(&mut op.queued, true) {
                self.queue.push_back(index);
            }
        }
    }

    /// An operation that may wait for a lock ends: the server need not keep that for it.
    pub(crate) fn give_lock_wait_up(&mut self, index: usize) {
        let Some(op) = self.ops.get_mut(index) else { return };
        let (Some(turn), Some((node, request))) = (op.end_wait(), op.asked_lock()) else { return };
        self.lock_waits.remove(&turn, index);
        node.locks().end_asking(index, request.owner);
        self.give_lock_up(&node, request, true);
    }

    /// A lock was granted to an operation that nobody collects.
    pub(crate) fn give_unclaimed_lock_up(&mut self, op: &Op) {
        if let Some((node, request)) = op.asked_lock()
            && op.answered_in() == Some(self.epoch)
        {
            self.give_lock_up(&node, request, false);
        }
    }

    fn give_lock_up(&mut self, node: &Arc<Node>, request: LockRequest, waits: bool) {
        node.locks().give_up(request, waits);
        self.put_locks_back(node);
    }

    /// Nobody will collect this operation, or it was refused.
    pub(crate) fn end_asking_for_lock(&mut self, index: usize) {
        if let Some((node, request)) = self.ops.get(index).and_then(Op::asked_lock) {
            node.locks().end_asking(index, request.owner);
            self.put_locks_back(&node);
        }
    }

    /// The caller takes the result: from now on the lock is held, and the next session takes it again. It is in doubt if the session that
    /// granted it is gone.
    pub(crate) fn claim_lock(&mut self, index: usize, op: &mut Op) {
        let Some((node, request)) = op.asked_lock() else { return };
        node.locks().end_asking(index, request.owner);
        match op.answered_in() {
            Some(epoch) if epoch == self.epoch => node.locks().lock(&request),
            Some(_) => op.error = Some(Box::new(Error::InDoubt { operation: Opcode::Lock })),
            None => {}
        }
        self.put_locks_back(&node);
    }

    /// Sends what puts locks back that were given up, as far as nobody asks for the same.
    fn put_locks_back(&mut self, node: &Arc<Node>) {
        if self.dead.is_some() || (node.is_stale() && !node.is_open_in(self.epoch)) {
            return;
        }
        let requests = node.locks().put_back();
        for request in requests {
            let (opcode, named) = match &request {
                PutBack::Again(lock) | PutBack::Cancel(lock, _) => (Opcode::Lock, Named::of(&lock.bytes())),
                PutBack::Unlock(unlock) => (Opcode::Unlock, Named::of(&unlock.bytes())),
            };
            let named = Named { puts_back: Some(request), ..named };
            let mut op = Op::named(opcode, Some(Arc::clone(node)), named);
            op.detached = true;
            self.submit(op);
        }
    }

    /// In a new session: it has granted none of the locks that were given up, and what is held was taken again.
    pub(crate) fn forget_put_backs(&mut self) {
        for index in self.indices(|op| op.puts_back().is_some()) {
            self.fail(index, Error::Cancelled);
        }
    }

    /// A request that puts a lock back has ended, if it was one.
    pub(crate) fn on_put_back(&mut self, op: &Op) {
        let Some((node, request)) = op.puts_back() else { return };
        let refusal = op.error.as_ref().map(|error| error.status());
        match (request, refusal) {
            // Since the server began it has granted what was taken again alone: the lock is as it was.
            (PutBack::Again(_), Some(Some(Status::GRACE))) => {}
            // The program thinks that it has the lock, and others may have it.
            (PutBack::Again(_), Some(Some(status))) => node.lose_locks(status),
            (PutBack::Cancel(_, Some(rest)), None) => self.give_lock_up(&Arc::clone(node), *rest, false),
            _ => {}
        }
    }
}
