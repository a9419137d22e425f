//! A list's calls of storage.
#![allow(clippy::cast_possible_truncation, reason = "lengths within one request, which are of 32 bits")]

use dafs_proto::session::Moment;
use dafs_proto::wire::Status;
use smallvec::SmallVec;

use crate::worker::flight::plan::Call;
use crate::worker::sched::sieve::Trial;
use crate::worker::sched::{ALONE_STORAGE_SIZE, CONTENDED_STORAGE_SIZE};

/// Calls of one list that storage has at once: all that a session alone may have, enough for a disk to sort them and to leave it no pause.
pub(crate) const CALLS_MAX: usize = ALONE_STORAGE_SIZE / CONTENDED_STORAGE_SIZE;

/// The calls of a chunk that storage has, and what became of the others.
#[derive(Debug, Default)]
pub(crate) struct Calls {
    /// By slot, which is part of the call's token. At most [`CALLS_MAX`].
    pub(crate) slots: SmallVec<[Option<Call>; 1]>,
    pub(crate) running: usize,
    /// A call failed, or a write stopped: no more begin.
    pub(crate) has_stopped: bool,
    failure: Option<Status>,
    /// Of writes that stopped, the first part that is not all in the file, and from which offset on it is not.
    pub(crate) stopped: Option<(usize, u64)>,
    /// Parts that storage had to be waited for, when the first was, and what is tried out with them.
    pub(crate) waited_parts: usize,
    pub(crate) trial: Option<(Moment, Trial)>,
    /// Nothing of a read was in the page cache when it began; not looked for yet.
    pub(crate) is_absent: Option<bool>,
    /// Windows that storage has written and that are not counted yet.
    pub(crate) windows: u32,
}

impl Calls {
    /// Storage has none.
    pub(crate) fn is_empty(&self) -> bool {
        self.running == 0
    }

    pub(crate) fn begin(&mut self, call: Call) -> u8 {
        self.running += 1;
        self.waited_parts += call.parts.len();
        let slot = self.slots.iter().position(Option::is_none).unwrap_or(self.slots.len());
        match self.slots.get_mut(slot) {
            Some(place) => *place = Some(call),
            None => self.slots.push(Some(call)),
        }
        // Below CALLS_MAX.
        slot as u8
    }

    pub(crate) fn end(&mut self, slot: u8) -> Option<Call> {
        let call = self.slots.get_mut(usize::from(slot))?.take()?;
        self.running -= 1;
        Some(call)
    }

    /// No more calls begin; storage said why, or a write found no room.
    pub(crate) fn stop(&mut self, failure: Option<Status>) {
        self.has_stopped = true;
        self.failure = self.failure.or(failure);
    }

    /// As [`Calls::stop`], of a write: parts from `part` on are not in the file, as far as they lie at `offset` or behind.
    pub(crate) fn stop_at(&mut self, part: usize, offset: u64, failure: Option<Status>) {
        // Of several that stopped the first counts.
        let (first, least) = self.stopped.unwrap_or((part, offset));
        self.stopped = Some((first.min(part), least.min(offset)));
        self.stop(failure);
    }

    /// A call failed, or a write stopped.
    pub(crate) fn has_stopped(&self) -> bool {
        self.has_stopped
    }

    /// What the list ends with, once storage has let go of it all.
    pub(crate) fn outcome(&self) -> Option<Result<(), Status>> {
        self.has_stopped.then_some(self.failure.map_or(Ok(()), Err))
    }
}
