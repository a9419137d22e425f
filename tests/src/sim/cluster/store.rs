//! A coordination store behind a network: calls take time, get lost before or after they have taken effect, or take effect when nobody
//! waits for them any more.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use dafs_proto::transport::sim::{Random, SimNet};
use dafs_server::cluster::MemoryStore;
use dafs_server::cluster::coordination::{
    Change, Committed, Coordination, CoordinationError, Entry, LeaseId, Transaction,
};

use super::host::Processes;
use super::threads::{CLIENTS, Process, Threads};

/// What goes wrong with calls, per million.
#[derive(Clone, Copy, Debug, Default)]
pub struct StorePlan {
    /// One way takes so long at most, nanoseconds.
    pub delay_max_ns: u64,
    /// A call is late by up to three seconds.
    pub late_ppm: u32,
    /// It gets lost.
    pub lost_ppm: u32,
    /// Its answer gets lost.
    pub unanswered_ppm: u32,
}

struct Inside {
    random: Random,
    plan: StorePlan,
    /// It can be reached by none before this.
    away_until: Duration,
    /// Nor by these.
    cut_off_until: BTreeMap<Process, Duration>,
    /// Which process is which server.
    servers: BTreeMap<String, Process>,
    /// Servers that are gone by the word of others.
    taken_over: BTreeSet<Process>,
    /// Servers that have left by their own.
    left: BTreeSet<Process>,
    calls: u64,
    lost: u64,
    late: u64,
}

/// The store. Clones are the same.
#[derive(Clone)]
pub(super) struct SimStore {
    store: MemoryStore,
    net: SimNet,
    threads: Threads,
    processes: Processes,
    inside: Arc<Mutex<Inside>>,
}

/// The store as one process reaches it.
pub(super) struct StoreOf {
    pub(super) store: SimStore,
    pub(super) process: Process,
    /// A call takes no longer.
    pub(super) time_max: Duration,
}

impl SimStore {
    pub(super) fn new(
        net: &SimNet,
        threads: &Threads,
        processes: &Processes,
        seed: u64,
        plan: StorePlan,
    ) -> Self {
        let clock = net.clone();
        let inside = Inside {
            random: Random::new(seed ^ 0x0073_746f_7265),
            plan,
            away_until: Duration::ZERO,
            cut_off_until: BTreeMap::new(),
            servers: BTreeMap::new(),
            taken_over: BTreeSet::new(),
            left: BTreeSet::new(),
            calls: 0,
            lost: 0,
            late: 0,
        };
        Self {
            store: MemoryStore::new(move || clock.now()),
            net: net.clone(),
            threads: threads.clone(),
            processes: processes.clone(),
            inside: Arc::new(Mutex::new(inside)),
        }
    }

    /// Nobody reaches it for a time.
    pub(super) fn go_away(&self, time: Duration) {
        let until = self.net.now() + time;
        let mut inside = self.lock();
        inside.away_until = inside.away_until.max(until);
    }

    /// This process does not reach it for a time.
    pub(super) fn cut_off(&self, process: Process, time: Duration) {
        let until = self.net.now() + time;
        self.lock().cut_off_until.insert(process, until);
    }

    pub(super) fn calm(&self) {
        let mut inside = self.lock();
        inside.plan = StorePlan { delay_max_ns: inside.plan.delay_max_ns, ..StorePlan::default() };
    }

    /// Calls, how many of them got lost, and how many were late.
    pub(super) fn counts(&self) -> (u64, u64, u64) {
        let inside = self.lock();
        (inside.calls, inside.lost, inside.late)
    }

    pub(super) fn takeovers(&self) -> u64 {
        self.lock().taken_over.len() as u64
    }

    /// Nothing of this process may change a file any more.
    pub(super) fn is_over(&self, process: Process) -> bool {
        let inside = self.lock();
        inside.taken_over.contains(&process) || inside.left.contains(&process)
    }

    /// Which number of a server a process has.
    pub(super) fn number_of(&self, process: Process) -> Option<u32> {
        let inside = self.lock();
        let name = inside.servers.iter().find(|(_, known)| **known == process)?.0;
        name.parse().ok()
    }

    fn lock(&self) -> MutexGuard<'_, Inside> {
        self.inside.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// A change was made: what it says about servers must be true.
    fn check(&self, process: Process, transaction: &Transaction) {
        let last = |key: &str| key.rsplit('/').next().unwrap_or_default().to_owned();
        for change in &transaction.changes {
            let Change::Put(key, ..) = change else { continue };
            if key.contains("/live/members/") {
                self.lock().servers.insert(last(key), process);
            }
            if key.contains("/live/gone/") {
                let mut inside = self.lock();
                let gone = inside.servers.get(&last(key)).copied().expect("it was a member");
                if gone == process {
                    inside.left.insert(gone);
                } else {
                    assert!(
                        self.processes.state(gone.0).has_ended,
                        "{process:?} has taken over from {gone:?}, which may still write"
                    );
                    inside.taken_over.insert(gone);
                }
            }
        }
    }
}

/// What becomes of a call.
enum Fate {
    Answered {
        there: Duration,
        back: Duration,
    },
    /// It takes effect then, if at all, and nobody hears of it.
    Lost {
        there: Option<Duration>,
    },
}

impl StoreOf {
    fn fate(&self) -> Fate {
        let now = self.store.net.now();
        let mut inside = self.store.lock();
        inside.calls += 1;
        let Inside { random, plan, .. } = &mut *inside;
        let way = |random: &mut Random| Duration::from_nanos(1 + random.below(plan.delay_max_ns.max(1)));
        let (mut there, back) = (way(random), way(random));
        let is_late = random.chance(plan.late_ppm);
        if is_late {
            there += Duration::from_nanos(random.below(3_000_000_000));
        }
        let (is_lost, is_unanswered) = (random.chance(plan.lost_ppm), random.chance(plan.unanswered_ppm));
        let cut = inside.cut_off_until.get(&self.process).copied().unwrap_or_default();
        let unreachable_until = inside.away_until.max(cut);
        inside.late += u64::from(is_late);
        if is_lost || now < unreachable_until {
            inside.lost += 1;
            return Fate::Lost { there: None };
        }
        if is_unanswered || there + back > self.time_max {
            inside.lost += 1;
            return Fate::Lost { there: Some(there) };
        }
        Fate::Answered { there, back }
    }

    fn call<T>(
        &self,
        what: impl FnOnce(&SimStore) -> Result<T, CoordinationError> + Clone + Send + 'static,
    ) -> Result<T, CoordinationError> {
        let unreachable = || Err(CoordinationError::Unreachable("nobody answers".into()));
        let (store, threads) = (&self.store, &self.store.threads);
        match self.fate() {
            Fate::Answered { there, back } => {
                threads.sleep(there);
                let answer = what(store);
                threads.sleep(back);
                answer
            }
            Fate::Lost { there } => {
                if let Some(there) = there {
                    let (own, all) = (store.clone(), threads.clone());
                    // Not the caller's: it takes effect even if that is no more.
                    drop(threads.spawn(CLIENTS, "a call on its way", move || {
                        all.sleep(there);
                        // Nobody hears what came of it.
                        drop(what(&own));
                    }));
                }
                threads.sleep(self.time_max);
                unreachable()
            }
        }
    }
}

impl Coordination for StoreOf {
    fn commit(&self, transaction: &Transaction) -> Result<Committed, CoordinationError> {
        let (process, transaction) = (self.process, transaction.clone());
        self.call(move |store| {
            let committed = store.store.commit(&transaction)?;
            if committed.succeeded {
                store.check(process, &transaction);
            }
            Ok(committed)
        })
    }

    fn read(&self, prefix: &str) -> Result<(Vec<Entry>, u64), CoordinationError> {
        let prefix = prefix.to_owned();
        self.call(move |store| store.store.read(&prefix))
    }

    fn read_changed(
        &self,
        prefix: &str,
        since: u64,
        count: usize,
    ) -> Result<(Option<Vec<Entry>>, u64), CoordinationError> {
        let prefix = prefix.to_owned();
        self.call(move |store| store.store.read_changed(&prefix, since, count))
    }

    fn grant(&self, time: Duration) -> Result<LeaseId, CoordinationError> {
        self.call(move |store| store.store.grant(time))
    }

    fn renew(&self, lease: LeaseId) -> Result<(), CoordinationError> {
        self.call(move |store| store.store.renew(lease))
    }

    fn revoke(&self, lease: LeaseId) -> Result<(), CoordinationError> {
        self.call(move |store| store.store.revoke(lease))
    }
}
