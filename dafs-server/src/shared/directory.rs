//! Which worker has which session.

use std::collections::{BTreeMap, HashMap};
use std::sync::Mutex;

use dafs_proto::wire::{ClientStatistics, SessionId};

use super::{WorkerId, lock};

/// The sessions of all workers. How many there may be is for [`super::budget`].
#[derive(Default)]
pub(crate) struct Directory {
    homes: Mutex<HashMap<SessionId, WorkerId>>,
    /// Whose they are, of those that are open.
    clients: Mutex<HashMap<SessionId, ClientStatistics>>,
}

impl Directory {
    /// Enters a session; false where there is one of this name.
    pub(crate) fn enter(&self, session: SessionId, home: WorkerId) -> bool {
        let mut homes = lock(&self.homes);
        if homes.contains_key(&session) {
            return false;
        }
        homes.insert(session, home);
        true
    }

    /// Says whose a session is.
    pub(crate) fn introduce(&self, session: SessionId, client: ClientStatistics) {
        lock(&self.clients).insert(session, client);
    }

    /// All who have sessions, each with how many.
    pub(crate) fn clients(&self) -> Vec<ClientStatistics> {
        let mut sums: BTreeMap<ClientStatistics, u64> = BTreeMap::new();
        for client in lock(&self.clients).values() {
            *sums.entry(client.clone()).or_default() += 1;
        }
        sums.into_iter().map(|(client, sessions)| ClientStatistics { sessions, ..client }).collect()
    }

    /// Where a session lives.
    pub(crate) fn home_of(&self, session: SessionId) -> Option<WorkerId> {
        lock(&self.homes).get(&session).copied()
    }

    /// A session has ended.
    pub(crate) fn leave(&self, session: SessionId) {
        lock(&self.clients).remove(&session);
        lock(&self.homes).remove(&session);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn directory_knows_the_home_of_each_session_once() {
        let directory = Directory::default();
        assert!(directory.enter(SessionId(1), WorkerId(0)));
        assert!(!directory.enter(SessionId(1), WorkerId(1)), "the name is taken");
        assert!(directory.enter(SessionId(2), WorkerId(1)));
        assert_eq!(directory.home_of(SessionId(2)), Some(WorkerId(1)));
        directory.leave(SessionId(1));
        assert_eq!(directory.home_of(SessionId(1)), None);
        assert!(directory.enter(SessionId(1), WorkerId(1)));
    }
}
