//! Which worker has which session, and how many there are.

use std::collections::HashMap;
use std::sync::Mutex;

use dafs_proto::wire::SessionId;

use super::{WorkerId, lock};

/// The sessions of all workers.
pub(crate) struct Directory {
    homes: Mutex<HashMap<SessionId, WorkerId>>,
    sessions_max: usize,
}

impl Directory {
    pub(super) fn new(sessions_max: usize) -> Self {
        Self { homes: Mutex::default(), sessions_max }
    }

    /// No more sessions are taken.
    pub(crate) fn is_full(&self) -> bool {
        lock(&self.homes).len() >= self.sessions_max
    }

    /// Enters a session; false where there are as many as may be, or one of this name.
    pub(crate) fn enter(&self, session: SessionId, home: WorkerId) -> bool {
        let mut homes = lock(&self.homes);
        if homes.len() >= self.sessions_max || homes.contains_key(&session) {
            return false;
        }
        homes.insert(session, home);
        true
    }

    /// Where a session lives.
    pub(crate) fn home_of(&self, session: SessionId) -> Option<WorkerId> {
        lock(&self.homes).get(&session).copied()
    }

    /// A session has ended.
    pub(crate) fn leave(&self, session: SessionId) {
        lock(&self.homes).remove(&session);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn directory_takes_as_many_sessions_as_may_be_of_all_workers() {
        let directory = Directory::new(2);
        assert!(directory.enter(SessionId(1), WorkerId(0)));
        assert!(!directory.is_full());
        assert!(!directory.enter(SessionId(1), WorkerId(1)), "the name is taken");
        assert!(directory.enter(SessionId(2), WorkerId(1)));
        assert!(directory.is_full());
        assert!(!directory.enter(SessionId(3), WorkerId(0)));
        assert_eq!(directory.home_of(SessionId(2)), Some(WorkerId(1)));
        directory.leave(SessionId(1));
        assert_eq!(directory.home_of(SessionId(1)), None);
        assert!(directory.enter(SessionId(3), WorkerId(0)));
    }
}
