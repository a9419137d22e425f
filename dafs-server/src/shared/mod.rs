//! State of the process, shared by all workers: settings, exports, budgets, permissions, fences, the directory of sessions, tokens, deny
//! modes, files that were handed over, and the mail between workers. All of it is immutable, or small and behind its own lock. It waits for
//! nobody, reads no clock and knows no worker from inside. Imports `access`, `config` and `storage`'s words.

pub(crate) mod budget;
mod directory;
mod fences;
pub(crate) mod handed;
pub(crate) mod locks;
pub mod mail;
pub(crate) mod published;
mod rules;
pub mod settings;
pub(crate) mod shares;
mod statistics;
pub(crate) mod store;
pub(crate) mod tokens;

use std::path::PathBuf;
use std::sync::atomic::{AtomicU32, AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard};
use std::time::Duration;

use dafs_proto::budget::Budget;
use dafs_proto::transport::shm::ShmLimits;
use dafs_proto::transport::util::lock;
use dafs_proto::wire::{ClusterTerms, Features, FenceList, Statistics};

use self::budget::Budgets;
pub(crate) use self::directory::Directory;
pub(crate) use self::fences::{Checked, Fences, Subject};
use self::handed::Handed;
use self::locks::{LockLimits, Locks};
use self::mail::{Inbox, Mail};
use self::published::Published;
pub use self::rules::Reloaded;
use self::rules::{CurrentRules, Rules};
use self::shares::Shares;
use self::store::Store;
pub use self::store::StoreError;
use self::tokens::TokenTable;
use crate::access::ClientIdentity;
use crate::cluster::{
    self, Cluster, ClusterConfig, ClusterError, ClusterStorage, SharedExport, Surroundings,
};
use crate::config::{Config, ExportConfig};
use crate::metrics::{BudgetState, SessionLimitState};
use crate::storage::Storage;

/// A worker, by its place among all workers.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct WorkerId(pub usize);

/// A server alone would not keep what the servers of a cluster promise each other.
fn check_alone(export: &ExportConfig) -> Result<(), OpenError> {
    let Some(path) = export.kind.directory() else { return Ok(()) };
    let marked = cluster::mark_on(path).map(|mark| OpenError::Marked { path: path.to_owned(), mark });
    marked.map_or(Ok(()), Err)
}

/// Why a server cannot begin.
#[derive(Debug, thiserror::Error)]
pub enum OpenError {
    /// Its state file.
    #[error(transparent)]
    Store(#[from] StoreError),
    /// Its cluster.
    #[error(transparent)]
    Cluster(#[from] ClusterError),
    /// A directory is a cluster's.
    #[error(
        "cannot export {}: it belongs to the cluster {mark}; give --cluster, or, if that cluster is no more, run: setfattr -x {} {}",
        path.display(), cluster::MARK, path.display()
    )]
    Marked {
        /// The directory.
        path: PathBuf,
        /// Its mark.
        mark: String,
    },
}

/// What all workers of a server share.
pub struct ServerState {
    pub(crate) settings: Config,
    /// Random number of this run.
    pub(crate) epoch: u64,
    rules: CurrentRules,
    logins_refused: AtomicU64,
    pub(crate) fences: Fences,
    pub(crate) published: Published,
    pub(crate) directory: Directory,
    pub(crate) budgets: Budgets,
    pub(crate) shares: Arc<Shares>,
    pub(crate) handed: Arc<Handed>,
    tokens: Mutex<TokenTable>,
    pub(crate) locks: Arc<Locks>,
    store: Option<Arc<Store>>,
    /// Where other servers have the same files.
    pub(crate) cluster: Option<Arc<Cluster>>,
    desks: Vec<Desk>,
    /// Nanoseconds.
    longest_turn: AtomicU64,
}

/// What the others know of a worker.
#[derive(Default)]
struct Desk {
    inbox: Inbox,
    active_sessions: AtomicU32,
    /// Connections that it got since these were counted.
    dealt: AtomicU32,
    statistics: Mutex<Statistics>,
}

impl ServerState {
    /// For this many workers, at least one. Exports are in the order of their ids in storage. `epoch` differs in every run.
    pub fn new(settings: Config, epoch: u64, workers: usize) -> Arc<Self> {
        Arc::new(Self::with(settings, epoch, workers))
    }

    /// As [`ServerState::new`], with the fences, locks and published crossovers that the configured file has. Blocks.
    pub fn open(settings: Config, epoch: u64, workers: usize) -> Result<Arc<Self>, OpenError> {
        Self::open_with(settings, epoch, workers, Cluster::join)
    }

    /// The same, where the coordination store and the host are not those of the settings: for simulations. Blocks.
    pub fn open_in(
        surroundings: Surroundings,
        settings: Config,
        epoch: u64,
        workers: usize,
    ) -> Result<Arc<Self>, OpenError> {
        let join = |config: &_, exports| Cluster::join_in(surroundings, config, exports);
        Self::open_with(settings, epoch, workers, join)
    }

    fn open_with(
        settings: Config,
        epoch: u64,
        workers: usize,
        join: impl FnOnce(&ClusterConfig, Vec<SharedExport>) -> Result<Cluster, ClusterError>,
    ) -> Result<Arc<Self>, OpenError> {
        let state_file = settings.state_file.clone();
        let mut shared = Self::with(settings, epoch, workers);
        shared.cluster = shared.join_cluster(join)?.map(Arc::new);
        if let Some(path) = state_file {
            let (store, kept) = Store::open(&path)?;
            let store = Arc::new(store);
            let taken_up = shared.fences.keep_in(Arc::clone(&store), &kept.fences);
            taken_up.map_err(|export| StoreError::Unusable {
                path,
                error: format!("it is damaged: the fence list of export \"{export}\" is not valid").into(),
            })?;
            shared.published.keep_in(Arc::clone(&store), kept.published);
            let limits = LockLimits::of(&shared.settings.limits);
            let locks = Locks::kept_in(Arc::clone(&store), kept.sessions, kept.locks, limits);
            (shared.locks, shared.store) = (Arc::new(locks), Some(store));
        }
        let shared = Arc::new(shared);
        if let Some(cluster) = &shared.cluster {
            let weak = Arc::downgrade(&shared);
            cluster.on_fence(Box::new(move |export, list, told| {
                if let Some(shared) = weak.upgrade() {
                    shared.apply_fence(export, list, told);
                }
            }));
        }
        Ok(shared)
    }

    fn with(settings: Config, epoch: u64, workers: usize) -> Self {
        Self {
            fences: Fences::new(settings.exports.iter().map(|export| export.name.clone()).collect()),
            published: Published::default(),
            directory: Directory::default(),
            budgets: Budgets::new(&settings),
            rules: CurrentRules::new(&settings),
            locks: Arc::new(Locks::new(LockLimits::of(&settings.limits))),
            store: None,
            cluster: None,
            logins_refused: AtomicU64::new(0),
            settings,
            epoch,
            shares: Arc::default(),
            handed: Arc::default(),
            tokens: Mutex::default(),
            desks: std::iter::repeat_with(Desk::default).take(workers.max(1)).collect(),
            longest_turn: AtomicU64::new(0),
        }
    }

    /// Puts the fence list of an export into effect: `told` when no worker has an operation of a client behind it in flight.
    fn apply_fence(&self, export: &str, list: FenceList, told: Box<dyn FnOnce(()) + Send>) {
        let place = self.settings.exports.iter().position(|own| own.name == export);
        let (Some(place), Ok(list)) = (place, Checked::new(list)) else {
            tracing::error!(export, "cannot put a fence list of the cluster into effect");
            return;
        };
        // It replaces whatever there was.
        let _ = self.fences.set(place, list, None);
        let left = Arc::new((AtomicUsize::new(self.desks.len()), Mutex::new(Some(told))));
        for worker in self.workers() {
            let left = Arc::clone(&left);
            let then = Box::new(move || {
                if left.0.fetch_sub(1, Ordering::AcqRel) == 1
                    && let Some(told) = lock(&left.1).take()
                {
                    told(());
                }
            });
            self.send(worker, Mail::Drain { export: place, then });
        }
    }

    /// Joins the configured cluster. Blocks.
    fn join_cluster(
        &self,
        join: impl FnOnce(&ClusterConfig, Vec<SharedExport>) -> Result<Cluster, ClusterError>,
    ) -> Result<Option<Cluster>, OpenError> {
        let Some(config) = &self.settings.cluster else {
            self.settings.exports.iter().try_for_each(check_alone)?;
            return Ok(None);
        };
        let shared = |export: &ExportConfig| {
            let path = export.kind.directory().ok_or_else(|| ClusterError::memory(config, &export.name))?;
            SharedExport::open(&export.name, path, export.read_only)
                .map_err(|status| ClusterError::directory(config, path, status))
        };
        let exports = self.settings.exports.iter().map(shared).collect::<Result<_, _>>()?;
        Ok(Some(join(config, exports)?))
    }

    /// A storage as it is to be used where other servers have the same files.
    pub fn beside_others(&self, storage: Box<dyn Storage>) -> std::io::Result<Box<dyn Storage>> {
        let Some(cluster) = &self.cluster else { return Ok(storage) };
        Ok(Box::new(ClusterStorage::new(storage, Arc::clone(cluster))?))
    }

    /// Its place in its cluster.
    pub fn cluster(&self) -> Option<&Arc<Cluster>> {
        self.cluster.as_ref()
    }

    /// What is offered to clients.
    pub(crate) fn features(&self) -> Features {
        let features = self.settings.features;
        if self.cluster.is_some() { features } else { features - Features::CLUSTER }
    }

    /// How long a client may say nothing before it says that it is there. Of a cluster, it is to notice soon that its server is gone.
    pub(crate) fn keep_alive_ms(&self) -> u32 {
        let own = self.settings.keep_alive_ms;
        self.cluster.as_ref().map_or(own, |cluster| own.min(cluster.term_ms() / 4))
    }

    /// What clients are told of the cluster.
    pub(crate) fn cluster_terms(&self) -> Option<ClusterTerms> {
        let cluster = self.cluster.as_ref()?;
        Some(ClusterTerms { term_ms: cluster.term_ms(), servers: cluster.others(), outcomes: None })
    }

    /// The workers have ended: what they keep is written, and its file is closed. Blocks.
    pub fn close(&self) {
        self.cluster.iter().for_each(|cluster| cluster.leave());
        self.store.iter().for_each(|store| store.close());
    }

    /// The rules of access that hold now.
    pub(crate) fn rules(&self) -> Arc<Rules> {
        self.rules.get()
    }

    /// Applies these keys and rules of exports to all who connect or mount from now on. Sessions and what they have mounted stay; so do all
    /// other settings.
    pub fn reload(&self, new: &Config) -> Reloaded {
        self.rules.replace(&self.settings, new)
    }

    /// A list that fences off all whom it does not name would lock out those who are to change it.
    #[cold]
    pub(crate) fn may_enter_to_fence(&self, client: &ClientIdentity, export: usize) -> bool {
        self.fences.names_the_allowed(export) && self.rules().access.administers(client)
    }

    /// Logins that were refused since the server began.
    pub fn logins_refused(&self) -> u64 {
        self.logins_refused.load(Ordering::Relaxed)
    }

    /// Counts a refused login.
    pub(crate) fn count_refused_login(&self) {
        self.logins_refused.fetch_add(1, Ordering::Relaxed);
    }

    /// The workers.
    pub fn workers(&self) -> impl Iterator<Item = WorkerId> + use<> {
        (0..self.desks.len()).map(WorkerId)
    }

    pub(crate) fn others(&self, own: WorkerId) -> impl Iterator<Item = WorkerId> + use<> {
        self.workers().filter(move |worker| *worker != own)
    }

    /// The part of one worker in something that is divided evenly.
    pub(crate) fn part_of(&self, whole: usize) -> usize {
        whole / self.desks.len()
    }

    pub(crate) fn tokens(&self) -> MutexGuard<'_, TokenTable> {
        lock(&self.tokens)
    }

    /// Limits of clients' memory that is mapped.
    pub(crate) fn memory_limits(&self) -> ShmLimits {
        self.budgets.memory.clone()
    }

    /// State of the budgets, for metrics.
    pub fn budget_states(&self) -> Vec<BudgetState> {
        let state = |(name, budget): (&'static str, &Budget)| BudgetState {
            name,
            used: budget.used(),
            limit: budget.limit(),
            refused: budget.refused(),
        };
        let locks = self.locks.with(|table| table.state());
        self.budgets.all().into_iter().map(state).chain([locks]).collect()
    }

    /// Limits of one session, for metrics.
    pub fn session_limit_states(&self) -> Vec<SessionLimitState> {
        let limits = self.budgets.of_session.all().map(|(name, limit)| SessionLimitState {
            name,
            limit: limit.max().into(),
            refused: limit.refused(),
        });
        let locks = self.locks.with(|table| table.session_limit_state());
        limits.into_iter().chain([locks]).collect()
    }

    /// The inbox of a worker.
    pub fn inbox(&self, worker: WorkerId) -> &Inbox {
        &self.desks[worker.0].inbox
    }

    /// Sends mail to a worker and wakes it. Does not block.
    pub fn send(&self, to: WorkerId, mail: Mail) {
        self.inbox(to).put(mail);
    }

    /// Records how many sessions of a worker are active; returns those of all workers, at least 1.
    pub(crate) fn count_active(&self, own: WorkerId, sessions: u32) -> u32 {
        self.desks[own.0].active_sessions.store(sessions, Ordering::Relaxed);
        self.desks[own.0].dealt.store(0, Ordering::Relaxed);
        let all = self.desks.iter().map(|desk| desk.active_sessions.load(Ordering::Relaxed));
        all.fold(0, u32::saturating_add).max(1)
    }

    /// Deals out a connection: to the worker with the fewest active sessions, and of several such, the first from `turn` on.
    pub(crate) fn deal(&self, turn: usize) -> WorkerId {
        let load = |desk: &Desk| {
            let (active, dealt) = (&desk.active_sessions, &desk.dealt);
            active.load(Ordering::Relaxed).saturating_add(dealt.load(Ordering::Relaxed))
        };
        let in_turn = (turn..turn + self.desks.len()).map(|place| place % self.desks.len());
        let place = in_turn.min_by_key(|place| load(&self.desks[*place])).unwrap_or(0);
        self.desks[place].dealt.fetch_add(1, Ordering::Relaxed);
        WorkerId(place)
    }

    /// There is more than one worker.
    pub(crate) fn has_others(&self) -> bool {
        self.desks.len() > 1
    }

    /// Records the time between two polls of an event loop.
    pub(crate) fn note_turn(&self, turn: Duration) {
        let nanoseconds = u64::try_from(turn.as_nanos()).unwrap_or(u64::MAX);
        self.longest_turn.fetch_max(nanoseconds, Ordering::Relaxed);
    }

    /// Longest time between two polls of any event loop, since the server began.
    pub fn longest_turn(&self) -> Duration {
        Duration::from_nanos(self.longest_turn.load(Ordering::Relaxed))
    }

    /// Publishes the counters of a worker.
    pub(crate) fn publish(&self, own: WorkerId, statistics: Statistics) {
        *lock(&self.desks[own.0].statistics) = statistics;
    }

    /// The counters of each worker: of this one now, of the others as they published them last.
    pub(crate) fn statistics_of_each(&self, own: WorkerId, now: Statistics) -> Vec<Statistics> {
        let mut each: Vec<_> = self.desks.iter().map(|desk| lock(&desk.statistics).clone()).collect();
        each[own.0] = now;
        each
    }

    /// Adds the counters of a worker to those that the others published last.
    pub(crate) fn statistics(&self, own: WorkerId, now: Statistics) -> Statistics {
        self.others(own).fold(now, |mut sum, worker| {
            statistics::add(&mut sum, &lock(&self.desks[worker.0].statistics));
            sum
        })
    }
}
