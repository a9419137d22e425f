//! How much of a session storage has at once. A session that is alone may keep a disk busy. Beside others it has one call there, so that
//! newcomers find no long queue.

use super::Worker;
use crate::worker::ids::SessionKey;

impl Worker {
    /// What a session has with storage leaves room: who waits for it goes on, in turn, until it is filled. One that needs no storage now
    /// leaves it to the next: with nothing there, nobody else would wake them.
    pub(crate) fn resume_storage_waiters_of(&mut self, session: SessionKey) {
        for _ in 0..self.sessions.waiters_for_room(session) {
            let size_max = self.sched.storage_size_max(self.now);
            let Some(token) = self.sessions.take_waiter_for_room(session, size_max) else { return };
            if let Some(index) = self.operations.live_index_of(token)
                && self.operations.awaits_room(token)
            {
                self.connections.mark_dirty(self.operations[index].call.connection);
                self.work_on(index, |work, at| work.on_storage_room(at));
            }
        }
    }

    /// Where nobody else sends any more, there is room for more.
    pub(crate) fn resume_storage_waiters(&mut self) {
        let waiting: Vec<_> = self
            .sessions
            .iter()
            .filter(|(_, session)| !session.load.storage_waiters.is_empty())
            .map(|(key, _)| key)
            .collect();
        for key in waiting {
            self.resume_storage_waiters_of(key);
        }
    }

    /// Whether everybody who waits for room with storage will be woken: by what their session has there.
    pub(crate) fn storage_waiters_will_wake(&self) -> bool {
        self.sessions.iter().all(|(_, session)| {
            session.load.storage_size > 0
                || !session.load.storage_waiters.iter().any(|token| self.operations.awaits_room(*token))
        })
    }
}
