//! How operations and sessions end before their time.

use dafs_proto::session::Moment;
use dafs_proto::wire::Opcode;
use smallvec::SmallVec;

use crate::engine::core::Core;
use crate::engine::eager::EagerBufferState;
use crate::error::Error;
use crate::op::Op;
use crate::op::id::OperationId;

impl Core {
    /// An operation has ended. Those that their thread waits for have no id, and nobody else is told of them.
    pub(crate) fn note_end(&mut self, index: usize) {
        let Some(op) = self.ops.get_mut(index) else { return };
        let (Some(id), waker) = (op.id, op.waker.take()) else { return };
        let ops = &self.ops;
        let is_left = |index, id| ops.get(index).is_some_and(|op| op.id == Some(id));
        self.ended.note((index, id), waker, self.uncollected, is_left);
    }

    /// The next operation that has ended and was not collected, once.
    pub(crate) fn next_ended(&mut self) -> Option<OperationId> {
        while let Some((index, id)) = self.ended.next() {
            if self.ops.get(index).is_some_and(|op| op.id == Some(id)) {
                return Some(id);
            }
        }
        None
    }

    /// Whether an operation has ended; one that is not there any more has.
    pub(crate) fn has_ended(&self, index: usize) -> bool {
        self.ops.get(index).is_none_or(|op| op.done)
    }

    /// The caller lost interest: the operation runs on, and its result is dropped.
    pub(crate) fn detach(&mut self, index: usize) {
        let Some(op) = self.ops.get_mut(index) else { return };
        let (is_done, waits) = (op.done, op.waits());
        op.detached = true;
        if waits {
            return self.fail(index, Error::Cancelled);
        }
        self.end_asking_for_lock(index);
        if is_done {
            let op = self.take_ended(index);
            self.close_unclaimed(op);
        }
    }

    /// The session is over: every operation ends with `error`, and no peer reaches their memory any more.
    pub(crate) fn end_session(&mut self, error: Error) {
        self.dead.get_or_insert(error.clone());
        self.end_all(&error, Op::revoke_memory);
    }

    /// This process is a child of the one that has the session: it lets go of all, and of no memory, which is the parent's.
    pub(crate) fn leave_to_parent(&mut self) {
        self.dead = Some(Error::Forked);
        self.end_all(&Error::Forked, |_| {});
    }

    /// Operations of which this holds.
    pub(crate) fn indices(&self, matches: impl Fn(&Op) -> bool) -> SmallVec<[usize; 8]> {
        self.ops.iter().filter(|(_, op)| matches(op)).map(|(index, _)| index).collect()
    }

    fn end_all(&mut self, error: &Error, let_go: fn(&mut Op)) {
        self.eager_buffers = EagerBufferState::None;
        self.requests.clear();
        self.resend.clear();
        self.queue.clear();
        for index in self.indices(|op| !op.done) {
            if let Some(op) = self.ops.get_mut(index) {
                let_go(op);
                op.outstanding = 0;
                op.queued = false;
            }
            self.fail(index, error.clone());
        }
    }

    /// Ends operations whose time is over, where that is possible now.
    pub(crate) fn expire(&mut self, now: Moment) {
        if self.deadlines == 0 {
            return;
        }
        for (_, op) in &mut self.ops {
            op.note_time(now);
        }
        let is_late = |op: &Op| !op.done && op.deadline.is_some_and(|deadline| now >= deadline);
        for index in self.indices(is_late) {
            let Some(op) = self.ops.get_mut(index) else { continue };
            let error = Error::TimedOut { operation: op.opcode, timeout_ms: u64::from(op.timeout_ms) };
            if !self.withdraw(index, error)
                && let Some(op) = self.ops.get_mut(index)
            {
                op.is_overdue = true;
            }
        }
    }

    /// Ends an operation early, if no peer holds its memory; replies to what is in flight are then dropped. Returns whether it ended.
    pub(crate) fn withdraw(&mut self, index: usize, error: Error) -> bool {
        let Some(op) = self.ops.get_mut(index) else { return true };
        if op.done {
            return true;
        }
        if op.peer_holds_memory() {
            if !op.goes_whole() {
                if op.has_more() {
                    // What is not sent now never moves: only an operation that went whole may still succeed.
                    op.error.get_or_insert_with(|| Box::new(error));
                }
                self.stop(index);
            }
            return false;
        }
        // Who gives a lock back does not hold it any more, whatever came of that: the server has to hear of it.
        let is_sent_later = op.opcode == Opcode::Unlock && op.queued;
        if op.outstanding == 0 && !is_sent_later {
            self.fail(index, error);
            return true;
        }
        self.end_asking_for_lock(index);
        let Some(op) = self.ops.get_mut(index) else { return true };
        // A stand-in takes the replies; the operation itself is done.
        let mut stand_in = op.stand_in();
        stand_in.queued = is_sent_later;
        op.queued &= !is_sent_later;
        op.error = Some(Box::new(error.clone()));
        let stand_in = self.ops.insert(stand_in);
        for queued in self.queue.iter_mut().filter(|queued| is_sent_later && **queued == index) {
            *queued = stand_in;
        }
        for request in self.requests.iter_mut().flatten().filter(|request| request.op == index) {
            request.op = stand_in;
            // Sent again after a reconnect, a request whose data is gone moves none.
            (request.at, request.len) = (0, 0);
        }
        self.fail(index, error);
        true
    }
}
