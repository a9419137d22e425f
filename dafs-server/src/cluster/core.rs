//! What all parts of a server's place in its cluster have in common: the store, who this server is, its term, and what it saw last.

use std::collections::HashMap;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, AtomicI64, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, OnceLock};
use std::time::Duration;

use dafs_proto::transport::util::lock;
use dafs_proto::wire::{FenceList, SessionId, Status};

use super::coherence::Answering;
use super::coordination::{Change, Committed, Coordination, CoordinationError, Entry, LeaseId, Transaction};
use super::host::{EventCount, Host};
use super::lock_table::LockTables;
use super::opens::state::Opens;
use super::records::{Keys, ServerNumber};
use super::settings::ClusterConfig;
use super::view::View;
use crate::storage::Root;

/// Between two attempts to reach the store.
pub(super) const STORE_RETRY: Duration = Duration::from_millis(100);

/// Called with an answer of the store. It must not block.
pub(crate) type Tell<T> = Box<dyn FnOnce(T) + Send>;

/// Puts a list of an export into effect: the export's name, the list, and whom to tell when no operation of a client behind it is in
/// flight.
pub(crate) type Apply = Box<dyn Fn(&str, FenceList, Tell<()>) + Send + Sync>;

/// The coordination store, and the host.
pub type Surroundings = (Arc<dyn Coordination>, Arc<dyn Host>);

/// What this server has done about fences.
#[derive(Default)]
pub(super) struct FenceState {
    pub(super) apply: OnceLock<Apply>,
    /// The revision of each export's list that was put into effect last.
    pub(super) applied: Mutex<HashMap<String, u64>>,
    /// The same, of those of which the others were told, or are about to be.
    pub(super) told: Mutex<HashMap<String, u64>>,
}

/// A directory that the servers of the cluster export.
#[derive(Clone)]
pub(crate) struct SharedExport {
    pub(crate) name: String,
    pub(crate) path: PathBuf,
    pub(crate) root: Root,
    /// Its file system is kept by other hosts.
    pub(crate) is_remote: bool,
    /// Nothing is changed there.
    pub(crate) is_read_only: bool,
}

impl SharedExport {
    /// An export of this directory. Blocks.
    pub(crate) fn open(name: &str, path: &Path, is_read_only: bool) -> Result<Self, Status> {
        let root = Root::open(path)?;
        let is_remote = root.is_remote()?;
        Ok(Self { name: name.to_owned(), path: path.to_owned(), root, is_remote, is_read_only })
    }
}

/// What all threads of this part have.
pub(super) struct Core {
    pub(super) store: Arc<dyn Coordination>,
    pub(super) host: Arc<dyn Host>,
    pub(super) keys: Keys,
    pub(super) config: ClusterConfig,
    /// This server.
    pub(super) number: ServerNumber,
    /// Of the cluster, the same at all of its servers.
    pub(super) cluster: u64,
    pub(super) exports: Vec<SharedExport>,
    /// Nanoseconds of the host's time at which the term is over; 0 before it has begun.
    pub(super) until: AtomicU64,
    /// Since when this server's terms have followed each other, in the same time.
    pub(super) current_since: AtomicU64,
    /// Another server has taken over what this one had.
    pub(super) is_lost: AtomicBool,
    /// It is about to leave: it takes over from nobody.
    pub(super) is_leaving: AtomicBool,
    /// So are the files, for this host: it is lost too.
    pub(super) no_files: OnceLock<String>,
    /// The Ceph that this host's settings are of, once it has said so.
    pub(super) ceph: OnceLock<String>,
    /// It ends: nothing more is begun.
    pub(super) is_stopping: AtomicBool,
    /// Wakes threads that wait for the term, or for the end.
    pub(super) changed: Arc<dyn EventCount>,
    /// That of the term, and that of what was seen lately.
    pub(super) lease: AtomicI64,
    pub(super) recent_lease: AtomicI64,
    /// The latest revision of the store that was heard of.
    pub(super) revision: AtomicU64,
    /// What all servers look at, as it was last, and in which revision; 0: it is to be read again.
    pub(super) live: Mutex<(Vec<Entry>, u64)>,
    pub(super) view: Mutex<View>,
    /// Sessions of this server, with what proves whose they are, and whether the store has that.
    pub(super) sessions: Mutex<HashMap<SessionId, (String, bool)>>,
    /// Sessions that these have followed, which were of servers that are gone.
    pub(super) befores: Mutex<HashMap<SessionId, SessionId>>,
    pub(super) takeovers: AtomicU64,
    pub(super) opens: Opens,
    pub(super) locks: LockTables,
    pub(super) fences: FenceState,
    /// The revision in which the store was told last what came of operations.
    pub(super) endings: AtomicU64,
    /// Changes that the thread of the term writes next.
    pub(super) due: Mutex<Vec<Change>>,
    pub(super) answering: Answering,
}

impl Core {
    /// Of a server that has entered a cluster of this id, by this number.
    pub(super) fn new(
        (store, host): Surroundings,
        (cluster, number): (u64, ServerNumber),
        config: &ClusterConfig,
        exports: Vec<SharedExport>,
    ) -> Self {
        let changed = host.event_count();
        Self {
            store,
            host,
            keys: Keys::of(&config.address.name),
            config: config.clone(),
            number,
            cluster,
            exports,
            until: AtomicU64::new(0),
            current_since: AtomicU64::new(0),
            is_lost: AtomicBool::new(false),
            is_leaving: AtomicBool::new(false),
            no_files: OnceLock::new(),
            ceph: OnceLock::new(),
            is_stopping: AtomicBool::new(false),
            changed,
            lease: AtomicI64::new(0),
            recent_lease: AtomicI64::new(0),
            revision: AtomicU64::new(0),
            live: Mutex::default(),
            view: Mutex::default(),
            sessions: Mutex::default(),
            befores: Mutex::default(),
            takeovers: AtomicU64::new(0),
            opens: Opens::default(),
            locks: LockTables::default(),
            fences: FenceState::default(),
            endings: AtomicU64::new(0),
            due: Mutex::default(),
            answering: Answering::default(),
        }
    }

    /// Keeps the latest revision that was heard of.
    pub(super) fn hear(&self, revision: u64) {
        self.revision.fetch_max(revision, Ordering::AcqRel);
    }

    pub(super) fn commit(&self, transaction: &Transaction) -> Result<Committed, CoordinationError> {
        let committed = self.store.commit(transaction)?;
        self.hear(committed.revision);
        Ok(committed)
    }

    /// Has a change written soon. Does not block.
    pub(super) fn later(&self, change: Change) {
        lock(&self.due).push(change);
        self.wake();
    }

    pub(super) fn recent_lease(&self) -> Option<LeaseId> {
        Some(self.recent_lease.load(Ordering::Acquire)).filter(|lease| *lease != 0).map(LeaseId)
    }

    pub(super) fn now(&self) -> u64 {
        u64::try_from(self.host.now().as_nanos()).unwrap_or(u64::MAX)
    }

    /// The term is not over. A renewal may still come in for a server that is lost.
    pub(super) fn is_current(&self) -> bool {
        self.now() < self.until.load(Ordering::Acquire) && !self.is_lost.load(Ordering::Acquire)
    }

    pub(super) fn is_stopping(&self) -> bool {
        self.is_stopping.load(Ordering::Acquire)
    }

    pub(super) fn is_leaving(&self) -> bool {
        self.is_leaving.load(Ordering::Acquire) || self.is_stopping()
    }

    /// Fails where the file system of an export is not there any more: what its operations have said then says nothing about files. Blocks.
    pub(super) fn confirm_files(&self) -> Result<(), CoordinationError> {
        let gone = self.exports.iter().find(|export| export.is_remote && !export.root.is_there());
        let Some(export) = gone else { return Ok(()) };
        let problem = format!(
            "the file system of export {} has gone from this host ({}): mount it, and start the server again",
            export.name,
            export.path.display()
        );
        if self.no_files.set(problem.clone()).is_ok() {
            tracing::error!("{problem}; other servers take over");
        }
        self.is_lost.store(true, Ordering::Release);
        self.until.store(0, Ordering::Release);
        self.wake();
        Err(CoordinationError::Refused(problem))
    }

    pub(super) fn has_no_files(&self) -> bool {
        self.no_files.get().is_some()
    }

    pub(super) fn wake(&self) {
        self.changed.advance();
    }

    /// Asks the store until it answers, as long as this server is of the cluster. While its term is over it waits for the next. Blocks.
    pub(super) fn insist<T>(
        &self,
        ask: impl Fn() -> Result<T, CoordinationError>,
    ) -> Result<T, CoordinationError> {
        loop {
            match ask() {
                Err(CoordinationError::Unreachable(_) | CoordinationError::NoLease)
                    if !self.is_stopping() && !self.is_lost.load(Ordering::Acquire) =>
                {
                    self.rest(STORE_RETRY);
                }
                answer => return answer,
            }
        }
    }

    /// Sleeps for a time, or until something is to be looked at.
    pub(super) fn rest(&self, time: Duration) {
        let seen = self.changed.read();
        if !self.is_stopping() {
            self.changed.wait(seen, time);
        }
    }
}

/// Why a request of a client waits or fails, where the store does not answer.
pub(super) fn status_of(error: &CoordinationError) -> Status {
    match error {
        CoordinationError::Refused(_) => Status::IO,
        CoordinationError::NoSpace(_) => Status::NO_SPACE,
        CoordinationError::Unreachable(_) | CoordinationError::NoLease => Status::AGAIN,
    }
}
