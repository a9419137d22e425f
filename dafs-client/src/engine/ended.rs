//! Who is notified of the end of an operation for which no thread waits: a queue, a future, and threads that sleep elsewhere.

use std::collections::VecDeque;
use std::num::NonZeroU64;
use std::sync::Arc;
use std::task::Waker;

use dafs_proto::transport::Interrupt;
use smallvec::SmallVec;

use crate::op::id::OperationId;

/// Ended operations in the queue beyond those that can still be collected, before the others are dropped from it.
const STALE_MAX: usize = 64;

/// Operations that have ended, and who is to hear of it.
#[derive(Default)]
pub(crate) struct Ended {
    /// Somebody takes from the queue.
    keeps: bool,
    queue: VecDeque<(usize, OperationId)>,
    /// To be woken without the lock, by whoever takes turns.
    wakers: Vec<Waker>,
    /// Of threads that sleep on descriptors of the session.
    calls: SmallVec<[Arc<Interrupt>; 1]>,
    last_id: u64,
}

impl Ended {
    pub(crate) fn new_id(&mut self) -> Option<OperationId> {
        self.last_id += 1;
        NonZeroU64::new(self.last_id).map(OperationId)
    }

    /// From now on ends are kept for [`Ended::next`].
    pub(crate) fn keep(&mut self) {
        self.keeps = true;
    }

    pub(crate) fn add_call(&mut self, call: Arc<Interrupt>) {
        self.calls.push(call);
    }

    pub(crate) fn remove_call(&mut self, call: &Arc<Interrupt>) {
        self.calls.retain(|other| !Arc::ptr_eq(other, call));
    }

    /// Something is to be done by whoever sleeps on a descriptor of the session. A system call only where one does.
    pub(crate) fn call_all(&self) {
        self.calls.iter().for_each(|call| call.raise());
    }

    pub(crate) fn take_wakers(&mut self) -> Vec<Waker> {
        std::mem::take(&mut self.wakers)
    }

    /// Ends that nobody was told of: tasks, and if `of_queue` who takes from the queue.
    pub(crate) fn has_news(&self, of_queue: bool) -> bool {
        (of_queue && !self.queue.is_empty()) || !self.wakers.is_empty()
    }

    /// An operation has ended. `is_left` tells which can still be collected, `count` how many there are at most.
    pub(crate) fn note(
        &mut self,
        ended: (usize, OperationId),
        waker: Option<Waker>,
        count: usize,
        is_left: impl Fn(usize, OperationId) -> bool,
    ) {
        self.wakers.extend(waker);
        if self.keeps {
            self.queue.push_back(ended);
            if self.queue.len() > 2 * count + STALE_MAX {
                self.queue.retain(|(index, id)| is_left(*index, *id));
            }
        }
        self.call_all();
    }

    /// The next that has ended, once.
    pub(crate) fn next(&mut self) -> Option<(usize, OperationId)> {
        self.queue.pop_front()
    }
}
