//! All exports of a server as one [`Storage`].

use std::os::fd::RawFd;
use std::path::PathBuf;
use std::sync::Arc;

use clap::ValueEnum;
use dafs_proto::transport::{LocalSegments, OpToken, Span};
use dafs_proto::wire::Status;
use serde::Deserialize;

use super::backend::{Backend, Capabilities, Losses, Opening};
use super::clock::Clock;
use super::credentials::{hold_back, overrides_permissions};
use super::fair::Ticket;
use super::file_system::{Attempt, FileSystem, Job, Outcome, Run, SharedFile};
use super::kinds::ExportConfig;
use super::pool::{Pool, Ran, Wake, Work};
use super::uring::Ring;
use super::{
    ExportId, FsOp, FsResult, HandedFile, Identity, LocalLocks, LockKey, NodeId, NowError, Storage,
    Submitted, Traits,
};

/// What carries out reads and writes that must wait: `--storage-engine`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, ValueEnum, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Engine {
    /// io_uring where the kernel offers it, else threads
    #[default]
    Auto,
    /// io_uring, or do not start
    Uring,
    /// A pool of threads
    Pool,
}

/// Threads for what may wait, unless set: they mostly wait, for disks and other hosts.
const POOL_THREADS: usize = 16;

/// Bytes of memory given back that one call frees.
const TIDY_SIZE: u64 = 1 << 20;

/// Settings of the storage as a whole.
#[derive(Clone, Debug)]
pub struct StorageConfig {
    /// What carries out reads and writes that must wait.
    pub engine: Engine,
    /// Threads for operations that may wait, at most; one is started when all others are busy.
    pub pool_threads: usize,
    /// Reads and writes that wait in io_uring at a time; more are queued.
    pub ring_entries: u32,
    /// The loop's thread never acts as another user: operations that would are done by other threads. The kernel takes RDMA calls
    /// only from a thread with the very credentials with which it opened the device, and to change them and back counts. So
    /// [`super::hold_back`] is left to the program too, which has to call it before anything opens the device.
    pub loop_keeps_identity: bool,
    /// For simulation: replaces randomness (verifiers), and exports in memory can crash.
    pub seed: Option<u64>,
    /// Tells the time of exports in memory; the system's clock where there is none.
    pub clock: Option<Clock>,
}

impl Default for StorageConfig {
    fn default() -> Self {
        Self {
            engine: Engine::Auto,
            pool_threads: POOL_THREADS,
            ring_entries: 256,
            loop_keeps_identity: false,
            seed: None,
            clock: None,
        }
    }
}

/// Why exports cannot be served.
#[derive(Debug, thiserror::Error)]
pub enum StorageError {
    /// The directory of an export cannot be used.
    #[error("cannot open {} of export {name:?}: {error}; let the server's user reach it, or export another directory", path.display())]
    Root {
        /// The export.
        name: String,
        /// Its directory.
        path: PathBuf,
        /// Why not.
        error: std::io::Error,
    },
    /// The directory is on a file system through which the kernel is spoken to.
    #[error(
        "cannot export {} as {name:?}: it is a file system of the kernel (proc, sysfs or the like); export another directory",
        path.display()
    )]
    Kernel {
        /// The export.
        name: String,
        /// Its directory.
        path: PathBuf,
    },
    /// The system lacks, or forbids, what directories are served by.
    #[error("cannot export {} as {name:?}: {missing}", path.display())]
    Unavailable {
        /// The export.
        name: String,
        /// Its directory.
        path: PathBuf,
        /// What, and what to do.
        missing: &'static str,
    },
    /// Two exports of one name, or more than an id can count.
    #[error(
        "cannot export {name:?}: the name is taken, or there are more than 65,535 exports; give every export its own name"
    )]
    Duplicate {
        /// The name.
        name: String,
    },
    /// Clients would act with capabilities of the server.
    #[error(
        "cannot export a directory: the server would act as its clients with capabilities that override permissions, such as \
         CAP_DAC_OVERRIDE; run it as root without SECBIT_NO_SETUID_FIXUP, or leave it CAP_SETUID and CAP_SETGID and no capability of files"
    )]
    Overrides,
    /// io_uring was demanded.
    #[error("cannot use io_uring: {error}; choose the engine `auto` or `pool`")]
    Uring {
        /// Why not.
        error: std::io::Error,
    },
    /// The system has no more descriptors or randomness.
    #[error("cannot set up storage: {0}")]
    System(std::io::Error),
}

/// All exports and what is open in them.
pub struct Exports {
    exports: Vec<Export>,
    config: StorageConfig,
    waiting: Option<Waiting>,
    finished: Vec<Finished>,
}

/// An export, and what keeps its files.
pub(super) struct Served {
    pub(super) name: String,
    pub(super) read_only: bool,
    pub(super) backend: Box<dyn Backend>,
}

struct Export {
    name: String,
    read_only: bool,
    can_map: bool,
    files: Box<dyn FileSystem>,
}

/// What a thread hands back.
type Finished = (OpToken, ExportId, Result<Outcome, Status>);

/// Threads and descriptors; only where an export may wait.
struct Waiting {
    /// For reads and writes; the pool does them where there is none. It ends first: threads may wait for what is in it.
    ring: Option<Ring>,
    pool: Pool<Finished>,
    wake: Arc<Wake>,
    /// Whose what is submitted now is.
    client: u64,
}

impl Exports {
    /// Opens all exports. The calling thread is to drive them. If the kernel judges by its credentials, it gives up what would let clients
    /// write as only user 0 may, unless it is to keep its identity.
    pub fn new(exports: Vec<ExportConfig>, config: &StorageConfig) -> Result<Self, StorageError> {
        let served = exports.into_iter().map(|export| Served {
            backend: export.backend(),
            name: export.name,
            read_only: export.read_only,
        });
        Self::serve(served.collect(), config)
    }

    /// As [`Exports::new`], of any backends.
    pub(super) fn serve(exports: Vec<Served>, config: &StorageConfig) -> Result<Self, StorageError> {
        let any =
            |has: fn(Capabilities) -> bool| exports.iter().any(|export| has(export.backend.capabilities()));
        let acts_by_credentials = any(|can| can.acts_by_credentials);
        let needs_pool = any(|can| can.needs_pool);
        if acts_by_credentials && overrides_permissions().map_err(StorageError::System)? {
            return Err(StorageError::Overrides);
        }
        if acts_by_credentials && !config.loop_keeps_identity {
            hold_back().map_err(StorageError::System)?;
        }
        let losses = Losses::default();
        let mut made: Vec<Export> = Vec::with_capacity(exports.len());
        for (index, Served { name, read_only, backend }) in exports.into_iter().enumerate() {
            let duplicate = || StorageError::Duplicate { name: name.clone() };
            let id = ExportId(u16::try_from(index).map_err(|_| duplicate())?);
            if made.iter().any(|other| other.name == name) {
                return Err(duplicate());
            }
            let verifier = verifier(config, id)?;
            let files = backend.open(&Opening { id, name: &name, verifier, losses: &losses, config })?;
            made.push(Export { can_map: backend.capabilities().can_map, name, read_only, files });
        }
        let waiting = if needs_pool { Some(Waiting::new(config)?) } else { None };
        Ok(Self { exports: made, config: config.clone(), waiting, finished: Vec::new() })
    }

    /// The same files for another loop, with nothing open but in memory, where what is open is common to all. The thread that drives them
    /// calls [`hold_back`] where [`Exports::new`] does.
    pub fn another(&self) -> Result<Self, StorageError> {
        let view = |export: &Export| Export {
            name: export.name.clone(),
            read_only: export.read_only,
            can_map: export.can_map,
            files: export.files.another(),
        };
        let waiting = if self.waiting.is_some() { Some(Waiting::new(&self.config)?) } else { None };
        let exports = self.exports.iter().map(view).collect();
        Ok(Self { exports, config: self.config.clone(), waiting, finished: Vec::new() })
    }

    /// Windows of files that are mapped to be read in user space.
    #[cfg(test)]
    pub(super) fn hot_windows(&self, export: ExportId) -> usize {
        self.files(export).map_or(0, |files| files.hot_windows())
    }

    /// What was left to a thread to be dropped.
    #[cfg(test)]
    pub(super) fn disposals(&self) -> usize {
        self.waiting.as_ref().map_or(0, |waiting| waiting.pool.disposals)
    }

    /// Nodes open in an export, its root not counted.
    pub fn open_count(&self, export: ExportId) -> usize {
        self.files(export).map_or(0, |files| files.open_count())
    }

    /// An export in memory loses what was not durable, and all that was open, as in a crash of the server. False for
    /// other exports, and without a seed.
    pub fn crash(&mut self, export: ExportId) -> bool {
        self.files_mut(export).is_some_and(|files| files.crash())
    }

    fn files(&self, export: ExportId) -> Option<&dyn FileSystem> {
        self.exports.get(usize::from(export.0)).map(|export| &*export.files)
    }

    /// The files that a node is of, where windows of them may be mapped.
    #[inline]
    fn mappable(&mut self, node: NodeId) -> Option<&mut dyn FileSystem> {
        let export = self.exports.get_mut(usize::from(node.export.0)).filter(|export| export.can_map)?;
        Some(&mut *export.files)
    }

    #[inline]
    pub(super) fn files_mut(&mut self, export: ExportId) -> Option<&mut Box<dyn FileSystem>> {
        self.exports.get_mut(usize::from(export.0)).map(|export| &mut export.files)
    }
}

/// Raises the limit of open files to what the process may have, and returns it.
pub fn raise_open_files_limit() -> std::io::Result<u64> {
    use nix::sys::resource::{Resource, getrlimit, setrlimit};
    let (_, maximum) = getrlimit(Resource::RLIMIT_NOFILE)?;
    setrlimit(Resource::RLIMIT_NOFILE, maximum, maximum)?;
    Ok(maximum)
}

fn verifier(config: &StorageConfig, id: ExportId) -> Result<u64, StorageError> {
    match config.seed {
        Some(seed) => Ok(seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) ^ (u64::from(id.0) << 48)),
        None => getrandom::u64().map_err(|error| StorageError::System(std::io::Error::other(error))),
    }
}

impl Waiting {
    fn new(config: &StorageConfig) -> Result<Self, StorageError> {
        let wake = Arc::new(Wake::new().map_err(StorageError::System)?);
        let ring = match config.engine {
            Engine::Pool => None,
            Engine::Uring => {
                Some(Ring::new(config.ring_entries).map_err(|error| StorageError::Uring { error })?)
            }
            Engine::Auto => Ring::new(config.ring_entries)
                .inspect_err(|error| tracing::info!(%error, "cannot use io_uring; threads read and write"))
                .ok(),
        };
        let pool = Pool::new(config.pool_threads, Arc::clone(&wake));
        Ok(Self { pool, wake, ring, client: 0 })
    }

    /// A read or write: in the ring where there is one.
    fn submit_to_ring(&mut self, token: OpToken, export: ExportId, task: Box<dyn Job>) -> Submitted {
        let Some(ring) = &mut self.ring else { return self.submit(token, export, task) };
        match task.into_ring_op() {
            Ok(op) => {
                ring.submit(token, op);
                Submitted::Pending
            }
            Err(task) => self.submit(token, export, task),
        }
    }

    fn submit(&mut self, token: OpToken, export: ExportId, task: Box<dyn Job>) -> Submitted {
        let panicked = (token, export, Err(Status::IO));
        let ticket = Ticket { client: self.client, domain: task.fault_domain() };
        match self.pool.submit(ticket, work(token, export, task), panicked) {
            Ok(()) => Submitted::Pending,
            Err(()) => Submitted::Done(Err(Status::AGAIN)),
        }
    }
}

/// The files that a node is of, where they may be read, or changed.
#[inline]
fn files_for(exports: &mut [Export], node: NodeId, changes: bool) -> Result<&mut dyn FileSystem, Status> {
    match exports.get_mut(usize::from(node.export.0)) {
        None => Err(Status::BAD_HANDLE),
        Some(export) if export.read_only && changes => Err(Status::READ_ONLY),
        Some(export) => Ok(&mut *export.files),
    }
}

/// A job for the pool.
fn work(token: OpToken, export: ExportId, job: Box<dyn Job>) -> Work<Finished> {
    Box::new(move || match job.run() {
        Run::Done(result) => Ran::Done((token, export, result)),
        Run::Beyond(domain, job) => Ran::Beyond(domain, work(token, export, job)),
    })
}

impl Storage for Exports {
    fn export(&self, name: &str) -> Option<ExportId> {
        let index = self.exports.iter().position(|export| export.name == name)?;
        u16::try_from(index).ok().map(ExportId)
    }

    fn root(&self, export: ExportId) -> NodeId {
        self.files(export).map_or(NodeId { export, index: 0, generation: 0 }, |files| files.root())
    }

    fn read_now(&mut self, node: NodeId, offset: u64, into: &[Span<'_>]) -> Result<usize, NowError> {
        files_for(&mut self.exports, node, false).map_err(NowError::Failed)?.read_now(node, offset, into)
    }

    fn read_pieces<'a>(
        &mut self,
        node: NodeId,
        total: usize,
        piece: &dyn Fn(usize) -> Option<(u64, Span<'a>)>,
    ) -> usize {
        self.mappable(node).map_or(0, |files| files.read_pieces(node, total, piece))
    }

    fn write_now(&mut self, node: NodeId, offset: u64, from: &[Span<'_>]) -> Result<usize, NowError> {
        files_for(&mut self.exports, node, true).map_err(NowError::Failed)?.write_now(node, offset, from)
    }

    fn map(&mut self, node: NodeId, offset: u64, len: usize, parts_max: usize) -> LocalSegments {
        let files = self.mappable(node);
        files.map_or_else(LocalSegments::new, |files| files.map(node, offset, len, parts_max))
    }

    fn submit(&mut self, token: OpToken, identity: &Identity, op: FsOp) -> Submitted {
        let Traits { node, second, changes, .. } = op.traits();
        if second.is_some_and(|second| second.export != node.export) {
            return Submitted::Done(Err(Status::CROSS_DEVICE));
        }
        let files = match files_for(&mut self.exports, node, changes) {
            Ok(files) => files,
            Err(status) => return Submitted::Done(Err(status)),
        };
        match (files.attempt(identity, op), &mut self.waiting) {
            (Attempt::Done(result), _) => Submitted::Done(result),
            (Attempt::Job(job), Some(waiting)) => waiting.submit(token, node.export, job),
            (Attempt::Data(job), Some(waiting)) => waiting.submit_to_ring(token, node.export, job),
            (_, None) => Submitted::Done(Err(Status::NOT_SUPPORTED)),
        }
    }

    fn watch(&mut self, watched: bool) {
        if let Some(waiting) = &mut self.waiting {
            waiting.pool.watch(watched);
        }
    }

    fn flush(&mut self) {
        if let Some(waiting) = &mut self.waiting {
            waiting.pool.announce();
        }
        if let Some(ring) = self.waiting.as_mut().and_then(|waiting| waiting.ring.as_mut()) {
            ring.flush();
        }
    }

    fn set_turn(&mut self, ops_max: usize) {
        if let Some(ring) = self.waiting.as_mut().and_then(|waiting| waiting.ring.as_mut()) {
            ring.set_turn(ops_max);
        }
    }

    fn tidy(&mut self) -> bool {
        self.exports.iter_mut().any(|export| export.files.tidy(TIDY_SIZE))
    }

    fn for_client(&mut self, client: u64) {
        if let Some(waiting) = &mut self.waiting {
            waiting.client = client;
        }
    }

    fn poll(&mut self, done: &mut Vec<(OpToken, FsResult)>) {
        let Some(waiting) = &mut self.waiting else { return };
        if let Some(ring) = &mut waiting.ring {
            ring.poll(done);
            // Whose node was closed meanwhile may take its file with it.
            ring.take_ended().for_each(|ended| waiting.pool.dispose(None, ended));
        }
        waiting.wake.lower();
        waiting.pool.poll(&mut self.finished);
        for (token, export, result) in self.finished.drain(..) {
            let result = match self.exports.get_mut(usize::from(export.0)) {
                Some(export) => result.and_then(|outcome| export.files.finish(outcome)),
                None => Err(Status::BAD_HANDLE),
            };
            done.push((token, result));
        }
    }

    fn pending(&self) -> usize {
        self.waiting
            .as_ref()
            .map_or(0, |waiting| waiting.pool.pending() + waiting.ring.as_ref().map_or(0, Ring::pending))
    }

    fn close(&mut self, node: NodeId) {
        let slow = self.files_mut(node.export).and_then(|files| files.close(node));
        if let (Some((slow, domain)), Some(waiting)) = (slow, &mut self.waiting) {
            waiting.pool.dispose(domain, slow);
        }
    }

    fn share(&self, node: NodeId) -> Result<SharedFile, Status> {
        self.files(node.export).ok_or(Status::BAD_HANDLE)?.share(node)
    }

    fn lock_key(&self, node: NodeId) -> Result<LockKey, Status> {
        self.files(node.export).ok_or(Status::BAD_HANDLE)?.lock_key(node)
    }

    fn is_absent(&self, node: NodeId, offset: u64, len: u64) -> bool {
        self.files(node.export).is_some_and(|files| files.is_absent(node, offset, len))
    }

    fn is_direct(&self, node: NodeId) -> bool {
        self.files(node.export).is_some_and(|files| files.is_direct(node))
    }

    fn sieve_now(
        &mut self,
        node: NodeId,
        offset: u64,
        window: Span<'_>,
        change: &mut dyn FnMut(),
    ) -> Result<Option<usize>, NowError> {
        let files = files_for(&mut self.exports, node, true).map_err(NowError::Failed)?;
        files.sieve_now(node, offset, window, change)
    }

    fn hand_over(&self, node: NodeId) -> Result<HandedFile, Status> {
        self.files(node.export).ok_or(Status::BAD_HANDLE)?.hand_over(node)
    }

    fn local_locks(&self, node: NodeId) -> Result<Box<dyn LocalLocks>, Status> {
        self.files(node.export).ok_or(Status::BAD_HANDLE)?.local_locks(node)
    }

    fn adopt(&mut self, export: ExportId, file: &SharedFile) -> Result<NodeId, Status> {
        self.files_mut(export).ok_or(Status::BAD_HANDLE)?.adopt(file)
    }

    fn event_fds(&self) -> Vec<RawFd> {
        let Some(waiting) = &self.waiting else { return Vec::new() };
        std::iter::once(waiting.wake.raw_fd()).chain(waiting.ring.as_ref().map(Ring::raw_fd)).collect()
    }

    fn verifier(&self, export: ExportId) -> u64 {
        self.files(export).map_or(0, |files| files.verifier())
    }
}

#[cfg(test)]
mod tests {
    use std::os::fd::AsRawFd;

    use super::super::fair::FaultDomain;
    use super::super::file_system::RingOp;
    use super::*;

    struct Panics;

    impl Job for Panics {
        fn fault_domain(&self) -> Option<FaultDomain> {
            None
        }

        fn run(self: Box<Self>) -> Run {
            panic!("one that a test wants")
        }

        fn into_ring_op(self: Box<Self>) -> Result<Box<dyn RingOp>, Box<dyn Job>> {
            Err(self)
        }
    }

    // [STOR-88]
    #[test]
    fn operation_that_panics_is_answered_io() {
        let config = StorageConfig { engine: Engine::Pool, ..StorageConfig::default() };
        let mut waiting = Waiting::new(&config).unwrap();
        let submitted = waiting.submit(OpToken(7), ExportId(0), Box::new(Panics));
        assert!(matches!(submitted, Submitted::Pending));
        let mut done = Vec::new();
        while done.is_empty() {
            waiting.wake.lower();
            waiting.pool.poll(&mut done);
            std::thread::yield_now();
        }
        assert!(matches!(done[..], [(OpToken(7), ExportId(0), Err(Status::IO))]));
    }

    /// Set in a process of its own for a test: the limit of descriptors is the whole process's.
    const OWN_PROCESS: &str = "DAFS_TEST_NO_RING";

    // [STOR-90]
    #[test]
    fn engine_without_io_uring_is_threads_unless_demanded() {
        use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};
        if std::env::var_os(OWN_PROCESS).is_none() {
            let name = "storage::exports::tests::\
                        engine_without_io_uring_is_threads_unless_demanded";
            let output = std::process::Command::new(std::env::current_exe().unwrap())
                .args(["--exact", name])
                .env(OWN_PROCESS, "1")
                .output()
                .unwrap();
            let printed = String::from_utf8_lossy(&output.stdout);
            assert!(output.status.success() && printed.contains("1 passed"), "{printed}");
            return;
        }
        // One descriptor is left, which is for waking the loop.
        let next = std::fs::File::open("/dev/null").unwrap().as_raw_fd();
        let maximum = getrlimit(Resource::Nofile).maximum;
        let current = Some(u64::try_from(next).unwrap() + 1);
        setrlimit(Resource::Nofile, Rlimit { current, maximum }).unwrap();
        let with = |engine| Waiting::new(&StorageConfig { engine, ..StorageConfig::default() });
        assert!(with(Engine::Auto).unwrap().ring.is_none());
        assert!(matches!(with(Engine::Uring), Err(StorageError::Uring { .. })));
    }
}
