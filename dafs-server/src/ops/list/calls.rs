//! A list's calls of storage: what is at hand is moved at once, the rest by several calls at a time.
#![allow(clippy::cast_possible_truncation, reason = "lengths within one request, which are of 32 bits")]

use dafs_proto::transport::OpToken;
use dafs_proto::wire::{Stability, Status};

use super::{Progress, Worker};
use crate::storage::{FsOp, FsReply, FsResult, NowError, Submitted};
use crate::worker::flight::calls::CALLS_MAX;
use crate::worker::flight::list::{Place, Step, gap};
use crate::worker::flight::transfer::Direction;
use crate::worker::flight::{State, token_with_slot};

impl Worker {
    /// Moves what is at hand, and leaves as much of the rest to storage as it may have at once.
    pub(super) fn move_parts(&mut self, index: usize, token: OpToken) -> Progress {
        loop {
            let Some(list) = self.list_at(index) else { return Progress::Wait };
            if let Some(outcome) = list.calls.outcome() {
                return if list.calls.is_empty() {
                    Progress::End(outcome)
                } else {
                    self.wait_for_calls(index)
                };
            }
            let storage = &mut *self.storage;
            let Some(State::List(list)) =
                self.operations.get_mut(index).map(|operation| &mut operation.state)
            else {
                return Progress::Wait;
            };
            let result = list.move_now(storage, self.turns.left());
            self.turns.on_moved(list.moved);
            match result {
                // Told by the outcome.
                Ok(()) | Err(NowError::Failed(_)) if list.calls.has_stopped() => {}
                // The turn is over.
                Ok(()) | Err(NowError::Failed(_)) if list.has_next() => return Progress::Continue,
                Ok(()) | Err(NowError::Failed(_)) if list.calls.is_empty() => return self.chunk_moved(index),
                Ok(()) | Err(NowError::Failed(_)) => return self.wait_for_calls(index),
                Err(NowError::WouldBlock) => {
                    let running = list.calls.running;
                    let session = self.operations[index].call.session;
                    if running >= CALLS_MAX || (running > 0 && !self.has_room(session)) {
                        return self.wait_for_calls(index);
                    }
                    if running == 0 && self.waits_for_room(session, token) {
                        return self.wait_for_room(index);
                    }
                    if !self.submit_call(index, token) {
                        return Progress::End(Err(Status::BAD_HANDLE));
                    }
                }
            }
        }
    }

    fn wait_for_calls(&mut self, index: usize) -> Progress {
        if let Some(list) = self.list_at(index) {
            list.step = Step::Submitted;
        }
        Progress::Wait
    }

    fn wait_for_room(&mut self, index: usize) -> Progress {
        if let Some(list) = self.list_at(index) {
            list.step = Step::Room;
        }
        Progress::Wait
    }

    /// Leaves the next call to storage; `false` when its handle is gone and nothing of the list is with storage.
    fn submit_call(&mut self, index: usize, token: OpToken) -> bool {
        let request = self.operations[index].call;
        let identity = self.handle(&request).map(|open| open.rights.identity.clone());
        let now = self.now;
        let Some(State::List(list)) = self.operations.get_mut(index).map(|operation| &mut operation.state)
        else {
            return false;
        };
        let Ok(identity) = identity else {
            list.calls.stop(Some(Status::BAD_HANDLE));
            return true;
        };
        if list.direction == Direction::Read && list.calls.trial.is_none() {
            let (gap_max, trial) = self.sieve.choose(list.node.export, list.parts.as_slice(), list.next);
            list.gap_max_waiting = gap_max;
            list.calls.trial = Some((now, trial));
        }
        let Some((call, memory)) = list.next_op(gap()) else { return true };
        let (node, offset, len) = (list.node, call.offset, call.len);
        list.next = call.parts.end;
        let slot = list.calls.begin(call);
        let op = match list.direction {
            Direction::Read => FsOp::Read { node, offset, into: memory },
            Direction::Write | Direction::Append => {
                FsOp::Write { node, offset, from: memory, stability: Stability::Unstable }
            }
        };
        self.stats.storage_waits += 1;
        match self.storage.submit(token_with_slot(token, slot), &identity, op) {
            Submitted::Pending => self.enters_storage(request.session, len),
            Submitted::Done(result) => self.call_ended(index, slot, result),
        }
        true
    }

    /// Storage has finished a call.
    fn call_ended(&mut self, index: usize, slot: u8, result: FsResult) {
        let Some(list) = self.list_at(index) else { return };
        let Some(call) = list.calls.end(slot) else { return };
        match result {
            Ok(FsReply::Count(count)) => list.on_moved(&call, count),
            Ok(_) => list.on_failed(&call, Status::IO),
            Err(status) => list.on_failed(&call, status),
        }
    }

    /// Storage has finished a step of a list.
    pub(crate) fn list_on_storage(&mut self, index: usize, slot: u8, result: FsResult) {
        let session = self.operations[index].call.session;
        self.left_storage_of_list(index, slot);
        self.list_goes_on(index, slot, result);
        self.resume_storage_waiters_of(session);
    }

    /// A call is with storage no longer.
    fn left_storage_of_list(&mut self, index: usize, slot: u8) {
        let session = self.operations[index].call.session;
        if let Some(len) = self.list_at(index).and_then(|list| list.calls.len_of(slot)) {
            self.leaves_storage(session, len);
        }
    }

    fn list_goes_on(&mut self, index: usize, slot: u8, result: FsResult) {
        let token = self.token_of(index);
        let call = self.operations[index].call;
        let alive = self.connections.get(call.connection.index).is_some_and(|c| c.key == call.connection);
        let Some(list) = self.list_at(index) else { return };
        if list.step == Step::Commit {
            return self.list_committed(index, result);
        }
        self.call_ended(index, slot, result);
        let Some(list) = self.list_at(index) else { return };
        if (!alive || list.is_broken) && !list.calls.is_empty() {
            return;
        }
        if !alive {
            // The client asks again on its next connection.
            let operation = self.unpark(index);
            return self.abandon(operation);
        }
        if list.step == Step::Storage && !list.is_broken {
            // It goes on in its turn.
            return;
        }
        list.step = Step::Storage;
        if list.is_broken {
            let buffers = list.begin_anew();
            self.release_buffers(buffers);
        }
        self.advance_list(token);
    }

    /// A call of a list that is nobody's any more is finished; `true` when storage has let go of all its memory.
    pub(crate) fn forgotten_list_on_storage(&mut self, index: usize, slot: u8) -> bool {
        self.left_storage_of_list(index, slot);
        let Some(list) = self.list_at(index) else { return true };
        list.calls.end(slot);
        let is_free = list.calls.is_empty();
        self.resume_storage_waiters_of(self.operations[index].call.session);
        is_free
    }

    /// Storage has moved all parts of the chunk.
    fn chunk_moved(&mut self, index: usize) -> Progress {
        let now = self.now;
        let Some(State::List(list)) = self.operations.get_mut(index).map(|operation| &mut operation.state)
        else {
            return Progress::Wait;
        };
        let calls = std::mem::take(&mut list.calls);
        if let Some((began, trial)) = calls.trial
            && 2 * calls.waited_parts >= list.parts.as_slice().len()
        {
            let len = list.chunk.end - list.chunk.start;
            self.sieve.record(trial, len, now.since(began));
        }
        if list.direction == Direction::Read && list.place == Place::Buffers {
            list.make_posts();
            return Progress::Continue;
        }
        list.done = list.chunk.end;
        list.step = Step::Begin;
        let own = if list.place == Place::Buffers { list.buffers.pop() } else { None };
        if let Some(buffer) = own {
            list.memory.clear();
            self.release_buffer(buffer);
        }
        Progress::Continue
    }
}
