//! Locks that wait at the server without a request in flight. The server tells when to ask again; nobody asks for those given up.

use std::collections::HashMap;

use dafs_proto::wire::LockTurn;
use smallvec::SmallVec;

use crate::engine::core::Core;
use crate::error::Error;
use crate::op::Op;

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
        let Some(turn) = op.end_wait() else { return };
        self.lock_waits.remove(&turn, index);
        if self.dead.is_some() || op.stale_cause().is_some() {
            return;
        }
        let target = op.target.clone();
        // It may have been granted before this arrives. Then what its owner had before is put back.
        for (opcode, named) in op.cancels_of_lock() {
            let mut cancel = Op::named(opcode, target.clone(), named);
            cancel.detached = true;
            self.submit(cancel);
        }
    }
}
