//! Several servers on one file system. What they must share stands in a coordination store: who serves, what became of sessions, and what
//! is about to be done that must not be done twice. `spec/design/cluster.md` says what holds.
//!
//! - `coordination` is the store as a trait, `etcd` and `memory` are stores, `records` says what stands in one.
//! - `host` is what the host gives: time, threads, the fence.
//! - `member` keeps this server's term and sees what becomes of others; `takeover` ends what a server has left behind.
//! - `cut_off` makes sure that a server can write no more.
//! - `coherence` has the servers see whether a file system shows them each other's changes.
//! - `intents` writes down what an operation is about to do, and what came of it; `storage` has all operations of clients do so.

mod before;
mod coherence;
pub mod coordination;
mod core;
mod cut_off;
mod error;
mod etcd;
mod fences;
mod host;
mod intents;
mod lock_table;
mod locks;
mod member;
mod memory;
mod opens;
mod queue;
mod records;
mod settings;
mod storage;
mod store_access;
mod table;
mod takeover;
#[cfg(test)]
mod tests;
mod view;

use std::ops::Range;
use std::sync::atomic::Ordering;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use dafs_proto::transport::util::lock;
use dafs_proto::wire::{FenceList, SessionId, Status};

pub use self::before::Before;
use self::coordination::{Change, Coordination, Transaction};
pub(crate) use self::core::SharedExport;
pub use self::core::Surroundings;
use self::core::{Apply, Core, Tell, status_of};
pub use self::error::ClusterError;
use self::host::OwnHost;
pub use self::host::{EventCount, Fence, Host, Join, Process};
use self::intents::Intents;
pub use self::lock_table::LockInWay;
pub(crate) use self::lock_table::{LockWish, Whose};
pub(crate) use self::member::{MARK, mark_on};
pub use self::memory::MemoryStore;
use self::records::{Keys, ServerNumber, hex, session_of};
pub use self::settings::{BUCKETS, ClusterAddress, ClusterConfig, TERM_MAX_MS, TERM_MIN_MS};
pub(crate) use self::storage::ClusterStorage;
pub use self::store_access::{StoreAccess, StoreTls};
pub(crate) use self::store_access::{check_authorities, check_client, key_in};
use crate::metrics::ClusterState;
use crate::storage::FileName;

/// A call of the store takes no longer while a server joins.
const JOIN_TIME_MAX: Duration = Duration::from_secs(5);

/// This server's place in a cluster.
pub struct Cluster {
    core: Arc<Core>,
    intents: Intents,
    threads: Mutex<Vec<Join>>,
}

impl Cluster {
    /// Joins a cluster with these exports. Others hear of this server by [`Cluster::announce`]. Blocks.
    pub(crate) fn join(config: &ClusterConfig, exports: Vec<SharedExport>) -> Result<Self, ClusterError> {
        let keys = Keys::of(&config.address.name);
        let host = Arc::new(OwnHost::new());
        // Nobody waits for this server yet.
        let patient = store(&config.address, &config.access, JOIN_TIME_MAX)?;
        let entered = member::enter((&patient, &*host), &keys, config, &exports)?;
        let store = Arc::new(store(&config.address, &config.access, config.call_time_max())?);
        Ok(Self::entered((store, host), entered, config, exports))
    }

    /// The same with another store, and on another host. Blocks.
    pub(crate) fn join_in(
        (store, host): Surroundings,
        config: &ClusterConfig,
        exports: Vec<SharedExport>,
    ) -> Result<Self, ClusterError> {
        let entered = member::enter((&*store, &*host), &Keys::of(&config.address.name), config, &exports)?;
        Ok(Self::entered((store, host), entered, config, exports))
    }

    /// A server that has entered a cluster: its id, and the number of the server.
    fn entered(
        surroundings: Surroundings,
        (cluster, number): (u64, ServerNumber),
        config: &ClusterConfig,
        exports: Vec<SharedExport>,
    ) -> Self {
        let core = Arc::new(Core::new(surroundings, (cluster, number), config, exports));
        let intents = Intents::start(&core);
        // It is set once, here.
        let _ = core.opens.runner.set(intents.runner());
        Self { core, intents, threads: Mutex::default() }
    }

    /// Begins the first term: clients may come to these addresses. Blocks.
    pub fn announce(&self, addresses: Vec<String>) -> Result<(), ClusterError> {
        let thread = member::begin(&self.core, addresses)?;
        lock(&self.threads).push(thread);
        Ok(())
    }

    /// A name for a new session.
    pub(crate) fn session_name(&self, random: u64) -> SessionId {
        session_of(self.core.number, random)
    }

    /// A number that is the same at all servers of the cluster, and another for each export.
    pub(crate) fn verifier(&self, export: usize) -> u64 {
        let name = self.core.exports.get(export).map_or("", |export| &export.name);
        let mixed = name
            .bytes()
            .fold(self.core.cluster, |sum, byte| (sum ^ u64::from(byte)).wrapping_mul(0x0000_0100_0000_01b3));
        // Losses add to the upper half.
        mixed & 0xffff_ffff
    }

    /// Exports that the servers share.
    pub(crate) fn exports(&self) -> u16 {
        u16::try_from(self.core.exports.len()).unwrap_or(u16::MAX)
    }

    /// Data that is not durable would be lost with this server's host, while others go on: so it is made durable at once.
    pub(crate) fn writes_through(&self, export: usize) -> bool {
        self.core.exports.get(export).is_none_or(|export| export.is_remote)
    }

    /// The term, milliseconds.
    pub(crate) fn term_ms(&self) -> u32 {
        self.core.config.term_ms
    }

    /// The term is not over: requests may be answered.
    #[inline]
    pub fn is_current(&self) -> bool {
        self.core.is_current()
    }

    /// Another server has taken over what this one had.
    pub fn is_lost(&self) -> bool {
        self.core.is_lost.load(Ordering::Acquire)
    }

    /// Why this server must end: another has taken over what it had, or it has no files.
    pub(crate) fn loss(&self) -> Option<String> {
        let taken =
            || "another server of the cluster has taken over from this one; start it again".to_owned();
        self.is_lost().then(|| self.core.no_files.get().cloned().unwrap_or_else(taken))
    }

    /// Some exports are on file systems that other hosts keep.
    pub(crate) fn has_remote_exports(&self) -> bool {
        self.core.exports.iter().any(|export| export.is_remote)
    }

    /// Tells if the file systems are still there. Otherwise nobody is answered any more. Does not block.
    pub(crate) fn confirm_files(&self, tell: Tell<()>) {
        let core = Arc::clone(&self.core);
        self.intents.run(Box::new(move || {
            if core.confirm_files().is_ok() {
                tell(());
            }
        }));
    }

    /// Waits until the term is not over, or something else may have to be done, for a time at most. Blocks.
    pub(crate) fn await_term(&self, time_max: Duration) {
        let seen = self.core.changed.read();
        if !self.is_current() && !self.core.is_stopping() {
            self.core.changed.wait(seen, time_max);
        }
    }

    /// Addresses of the other servers.
    pub(crate) fn others(&self) -> Vec<String> {
        lock(&self.core.view).addresses_beside(self.core.number)
    }

    /// State of the cluster as this server sees it, for metrics.
    pub(crate) fn state(&self) -> ClusterState {
        let view = lock(&self.core.view);
        ClusterState {
            server: self.core.number.into(),
            servers: view.live().count() as u64,
            is_current: self.core.is_current(),
            takeovers: self.core.takeovers.load(Ordering::Relaxed),
            intents_pending: self.intents.pending() as u64,
        }
    }

    /// A session begins; this proves whose it is. It may follow one of a server that is gone.
    pub(crate) fn open_session(&self, session: SessionId, proof: &[u8], before: Option<SessionId>) {
        lock(&self.core.sessions).insert(session, (hex(proof), false));
        lock(&self.core.befores).extend(before.map(|before| (session, before)));
    }

    /// A session has ended: nobody will ask what it did.
    pub(crate) fn end_session(&self, session: SessionId) {
        lock(&self.core.befores).remove(&session);
        if let Some((_, true)) = lock(&self.core.sessions).remove(&session) {
            let keys = &self.core.keys;
            let changes = vec![Change::DeleteAll(keys.slots(session)), Change::Delete(keys.session(session))];
            self.intents.write(changes);
        }
    }

    /// What became of a session that this server does not have. Does not block.
    pub(crate) fn ask_before(&self, session: SessionId, tell: Tell<Before>) {
        let core = Arc::clone(&self.core);
        self.intents.run(Box::new(move || {
            let before = core.before(session).unwrap_or_else(|error| {
                tracing::warn!(%error, "cannot tell what became of a client's session");
                Before::Elsewhere
            });
            tell(before);
        }));
    }

    /// Nothing is begun any more. What is under way is finished; then this server is not of the cluster any more, and others need not take
    /// over. Blocks.
    pub(crate) fn leave(&self) {
        self.core.is_leaving.store(true, Ordering::Release);
        self.core.wake();
        self.core.await_opens();
        self.intents.finish();
        match self.intents.pending() {
            // What it has on that file system is to be cut off.
            _ if self.core.has_no_files() => {}
            0 => member::leave(&self.core),
            // It may still be carried out, and nobody else may begin it before that is known.
            operations => tracing::error!(
                operations,
                "some operations have not ended: another server takes over once this one cannot write any more"
            ),
        }
        self.core.is_stopping.store(true, Ordering::Release);
        self.core.wake();
        let threads = std::mem::take(&mut *lock(&self.threads));
        threads.into_iter().for_each(|join| join());
    }
}

/// Locks of all servers.
impl Cluster {
    /// Asks for a lock, which is not waited for: [`Status::LOCKED`] where it conflicts. Does not block.
    pub(crate) fn lock_range(&self, wish: LockWish, tell: Tell<Status>) {
        let core = Arc::clone(&self.core);
        core.locks.note(wish.session, wish.file);
        self.intents.run_in_turn(wish.file, Box::new(move || tell(core.lock_range(&wish))));
    }

    /// Gives locks back. Does not block.
    pub(crate) fn unlock_range(&self, file: FileName, range: Range<u64>, whose: Whose, tell: Tell<Status>) {
        let core = Arc::clone(&self.core);
        self.intents.run_in_turn(file, Box::new(move || tell(core.unlock_range(file, &range, whose))));
    }

    /// What is in the way of a lock. Does not block.
    pub(crate) fn test_lock(&self, wish: LockWish, tell: Tell<Result<Option<LockInWay>, Status>>) {
        let core = Arc::clone(&self.core);
        self.intents.run(Box::new(move || tell(core.lock_in_way(&wish))));
    }

    /// A client has opened files and taken locks again that it had in its session before, which is over: the rest of those is given back.
    pub(crate) fn end_locks_before(&self, before: SessionId) {
        let core = Arc::clone(&self.core);
        self.intents.run(Box::new(move || {
            let whose = Whose::Session(before);
            let ended = core.insist(|| core.end_locks(whose).and_then(|()| core.end_opens(whose)));
            if let Err(error) = ended {
                let what =
                    "cannot release locks and deny modes of a session that is gone; they end with its lease";
                tracing::warn!(%error, "{what}");
            }
        }));
    }

    /// A session has ended, and this server has given back all that it had locked: so does the store. Does not block.
    pub(crate) fn end_locks_of(&self, session: SessionId) {
        for file in self.core.locks.forget(session) {
            let tell = |status: Status| {
                if status != Status::OK {
                    tracing::warn!(%status, "cannot release a lock of a session that has ended");
                }
            };
            self.unlock_range(file, 0..u64::MAX, Whose::Session(session), Box::new(tell));
        }
    }
}

/// Fences of all servers.
impl Cluster {
    /// What puts lists into effect. To be said before [`Cluster::announce`].
    pub(crate) fn on_fence(&self, apply: Apply) {
        // The first counts, and there is one.
        let _ = self.core.fences.apply.set(apply);
    }

    /// Replaces the list of an export, where it has the sum `before`. Does not block.
    pub(crate) fn set_fence(
        &self,
        export: String,
        list: FenceList,
        before: Option<[u8; 32]>,
        tell: Tell<Status>,
    ) {
        let core = Arc::clone(&self.core);
        self.intents.run(Box::new(move || {
            let replaced = core.replace_fence(&export, &list, before);
            tell(replaced.unwrap_or_else(|error| status_of(&error)));
        }));
    }
}

/// The store, of which each call takes no longer than this.
fn store(
    address: &ClusterAddress,
    access: &StoreAccess,
    time_max: Duration,
) -> Result<etcd::Etcd, ClusterError> {
    etcd::Etcd::new(address, access, time_max)
        .map_err(|problem| ClusterError::Unfit { cluster: address.to_string(), problem })
}

/// Tells a cluster that the server of this number can write no more, so that others take over from it. Blocks.
pub fn cut_off(address: &ClusterAddress, access: &StoreAccess, server: u32) -> Result<(), ClusterError> {
    let unfit = |problem: String| ClusterError::Unfit { cluster: address.to_string(), problem };
    let store = store(address, access, JOIN_TIME_MAX)?;
    let keys = Keys::of(&address.name);
    let (member, key) = (keys.member(server), keys.cut_off(server));
    let told = store.commit(&Transaction {
        compares: vec![
            coordination::Compare::Present(member),
            coordination::Compare::Absent(keys.live_server(server)),
        ],
        changes: vec![Change::Put(key, Vec::new(), None)],
        reads: Vec::new(),
    });
    match told {
        Ok(committed) if committed.succeeded => Ok(()),
        Ok(_) => {
            Err(unfit(format!("server {server} is not one whose term is over and that was not taken over")))
        }
        Err(error) => Err(ClusterError::Store { cluster: address.to_string(), error: error.to_string() }),
    }
}
