//! How much of a session storage has at once. A session alone keeps a disk busy; beside others it has one call there, so that whoever comes
//! finds no long queue.
#![allow(clippy::cast_possible_truncation, reason = "lengths within one request, which are of 32 bits")]

use dafs_proto::transport::OpToken;

use super::Worker;
use crate::worker::ids::SessionKey;
use crate::worker::requests::work::WaitsFor;
use crate::worker::sched::{ALONE_STORAGE_SIZE, CONTENDED_STORAGE_SIZE};

impl Worker {
    /// Whether a session has as much with storage as it may: then `waiter`, a transfer or a list, goes on when some of that is back.
    pub(super) fn waits_for_room(&mut self, session: SessionKey, waiter: OpToken) -> bool {
        if self.has_room(session) {
            return false;
        }
        if let Some(session) = self.sessions.find_mut(session) {
            session.storage_waiters.push_back(waiter);
        }
        true
    }

    /// Whether a session may have one more call with storage.
    pub(super) fn has_room(&self, session: SessionKey) -> bool {
        let size_max = self.storage_size_max();
        self.sessions.find(session).is_none_or(|session| session.storage_size < size_max)
    }

    /// Storage has a call of a session, of so many bytes.
    pub(super) fn enters_storage(&mut self, session: SessionKey, len: u64) {
        if let Some(session) = self.sessions.find_mut(session) {
            session.storage_size += cost(len);
        }
    }

    /// Storage has it no longer.
    pub(super) fn leaves_storage(&mut self, session: SessionKey, len: u64) {
        if let Some(session) = self.sessions.find_mut(session) {
            session.storage_size = session.storage_size.saturating_sub(cost(len));
        }
    }

    /// Bytes that a session may have with storage, unless one call is more.
    fn storage_size_max(&self) -> usize {
        if self.turns.is_contended(self.now) { CONTENDED_STORAGE_SIZE } else { ALONE_STORAGE_SIZE }
    }

    /// What a session has with storage leaves room: who waits for it goes on, in turn, until it is filled. One that needs no storage now
    /// leaves it to the next: with nothing there, nobody else would wake them.
    pub(crate) fn resume_storage_waiters_of(&mut self, session: SessionKey) {
        let waiting = self.sessions.find_mut(session).map_or(0, |session| session.storage_waiters.len());
        for _ in 0..waiting {
            let size_max = self.storage_size_max();
            let Some(token) = self
                .sessions
                .find_mut(session)
                .filter(|session| session.storage_size < size_max)
                .and_then(|session| session.storage_waiters.pop_front())
            else {
                return;
            };
            if let Some(index) = self.live_operation(token)
                && self.awaits_room(token)
            {
                self.mark_dirty(self.operations[index].call.connection);
                self.work_on(index, |work, at| work.on_storage_room(at));
            }
        }
    }

    fn awaits_room(&self, token: OpToken) -> bool {
        let state = self.live_operation(token).map(|index| &self.operations[index].state);
        matches!(state, Some(WaitsFor::Work(work)) if work.waits_for_storage())
    }

    /// Where nobody else sends any more, there is room for more.
    pub(crate) fn resume_storage_waiters(&mut self) {
        let waiting: Vec<_> = self
            .sessions
            .iter()
            .filter(|(_, session)| !session.storage_waiters.is_empty())
            .map(|(key, _)| key)
            .collect();
        for key in waiting {
            self.resume_storage_waiters_of(key);
        }
    }

    /// Whether everybody who waits for room with storage will be woken: by what their session has there.
    pub(crate) fn storage_waiters_will_wake(&self) -> bool {
        self.sessions.iter().all(|(_, session)| {
            session.storage_size > 0 || !session.storage_waiters.iter().any(|token| self.awaits_room(*token))
        })
    }
}

/// What a call of so many bytes counts as: a disk is kept as long by a small one as by one of this size, nearly.
fn cost(len: u64) -> usize {
    (len as usize).max(CONTENDED_STORAGE_SIZE)
}
