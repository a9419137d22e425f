//! A coordination store in memory, for tests and simulations of several servers in one process. Time is told to it.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, MutexGuard};
use std::time::Duration;

use dafs_proto::transport::util::lock;

use super::coordination::{
    Change, Committed, Compare, Coordination, CoordinationError, Entry, LeaseId, Transaction,
};

/// Clones are the same store.
#[derive(Clone)]
pub struct MemoryStore {
    state: Arc<Mutex<State>>,
    now: Arc<dyn Fn() -> Duration + Send + Sync>,
}

#[derive(Default)]
struct State {
    keys: BTreeMap<String, (Vec<u8>, u64, Option<LeaseId>)>,
    revision: u64,
    leases: BTreeMap<i64, (Duration, Duration)>,
    last_lease: i64,
}

impl MemoryStore {
    /// An empty store, whose leases end by this time.
    pub fn new(now: impl Fn() -> Duration + Send + Sync + 'static) -> Self {
        Self { state: Arc::default(), now: Arc::new(now) }
    }

    /// As of now.
    fn lock(&self) -> MutexGuard<'_, State> {
        let mut state = lock(&self.state);
        state.tick((self.now)());
        state
    }
}

impl State {
    /// Ends leases whose time is over.
    fn tick(&mut self, now: Duration) {
        let over: Vec<i64> =
            self.leases.iter().filter(|(_, (_, until))| *until <= now).map(|(id, _)| *id).collect();
        for id in over {
            self.end(LeaseId(id));
        }
    }

    fn end(&mut self, lease: LeaseId) {
        if self.leases.remove(&lease.0).is_some() {
            self.keys.retain(|_, (_, _, of)| *of != Some(lease));
            self.revision += 1;
        }
    }

    fn holds(&self, compare: &Compare) -> bool {
        let revision = |key: &String| self.keys.get(key).map(|(_, revision, _)| *revision);
        match compare {
            Compare::Absent(key) => revision(key).is_none(),
            Compare::Present(key) => revision(key).is_some(),
            Compare::At(key, wanted) => revision(key).unwrap_or(0) == *wanted,
            Compare::NotAfter(key, wanted) => revision(key).is_none_or(|found| found <= *wanted),
        }
    }

    fn entry(&self, key: &str) -> Option<Entry> {
        let (value, revision, _) = self.keys.get(key)?;
        Some(Entry { key: key.to_owned(), value: value.clone(), revision: *revision })
    }
}

impl Coordination for MemoryStore {
    fn commit(&self, transaction: &Transaction) -> Result<Committed, CoordinationError> {
        let mut state = self.lock();
        if !transaction.compares.iter().all(|compare| state.holds(compare)) {
            let found = transaction.reads.iter().filter_map(|key| state.entry(key)).collect();
            return Ok(Committed { succeeded: false, revision: state.revision, found });
        }
        let is_over = |change: &Change| matches!(change, Change::Put(_, _, Some(lease)) if !state.leases.contains_key(&lease.0));
        if transaction.changes.iter().any(is_over) {
            return Err(CoordinationError::NoLease);
        }
        state.revision += 1;
        let revision = state.revision;
        for change in &transaction.changes {
            match change {
                Change::Put(key, value, lease) => {
                    state.keys.insert(key.clone(), (value.clone(), revision, *lease));
                }
                Change::Delete(key) => drop(state.keys.remove(key)),
                Change::DeleteAll(prefix) => state.keys.retain(|key, _| !key.starts_with(prefix)),
            }
        }
        Ok(Committed { succeeded: true, revision, found: Vec::new() })
    }

    fn read(&self, prefix: &str) -> Result<(Vec<Entry>, u64), CoordinationError> {
        let state = self.lock();
        let keys = state.keys.range(prefix.to_owned()..).take_while(|(key, _)| key.starts_with(prefix));
        let keys: Vec<String> = keys.map(|(key, _)| key.clone()).collect();
        Ok((keys.iter().filter_map(|key| state.entry(key)).collect(), state.revision))
    }

    fn read_changed(
        &self,
        prefix: &str,
        since: u64,
        count: usize,
    ) -> Result<(Option<Vec<Entry>>, u64), CoordinationError> {
        let (entries, revision) = self.read(prefix)?;
        let is_same = entries.len() == count && entries.iter().all(|entry| entry.revision <= since);
        Ok(((!is_same).then_some(entries), revision))
    }

    fn grant(&self, time: Duration) -> Result<LeaseId, CoordinationError> {
        let mut state = self.lock();
        state.last_lease += 1;
        let id = state.last_lease;
        state.leases.insert(id, (time, (self.now)() + time));
        Ok(LeaseId(id))
    }

    fn renew(&self, lease: LeaseId) -> Result<(), CoordinationError> {
        let mut state = self.lock();
        let (time, until) = state.leases.get_mut(&lease.0).ok_or(CoordinationError::NoLease)?;
        *until = (self.now)() + *time;
        Ok(())
    }

    fn revoke(&self, lease: LeaseId) -> Result<(), CoordinationError> {
        self.lock().end(lease);
        Ok(())
    }
}
