//! Storage that outlives the simulated server in front of it.

use std::os::fd::RawFd;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use dafs_proto::transport::{LocalSegments, OpToken, Span};
use dafs_proto::wire::{OpenFlags, Status};
use dafs_server::storage::{
    At, Engine, ExportConfig, ExportId, ExportKind, Exports, FsOp, FsReply, FsResult, Identity, LocalLocks,
    LockKey, MemoryRoot, NodeId, NowError, SharedFile, Storage, StorageConfig, Submitted,
};

use super::windows::Windows;

/// One export in memory, as one worker sees it; shared by a server and the server that is started after its crash.
#[derive(Clone)]
pub struct SharedStorage {
    exports: Arc<Mutex<Exports>>,
    held: Arc<Mutex<Held>>,
    windows: Arc<Mutex<Windows>>,
    worker: usize,
}

/// Reads that take long.
#[derive(Default)]
struct Held {
    holds: bool,
    reads: Vec<(OpToken, Identity, FsOp)>,
}

impl SharedStorage {
    /// An empty export with this name; `seed` decides its verifiers.
    pub fn new(name: &str, seed: u64) -> Self {
        let export = ExportConfig {
            name: name.to_owned(),
            kind: ExportKind::Memory { size_max: 1 << 30 },
            read_only: false,
            direct_io: false,
            local_locks: false,
            root: MemoryRoot::default(),
        };
        let config = StorageConfig { engine: Engine::Pool, seed: Some(seed), ..StorageConfig::default() };
        let exports = Exports::new(vec![export], &config).expect("memory needs nothing");
        let exports = Arc::new(Mutex::new(exports));
        Self { exports, held: Arc::default(), windows: Arc::default(), worker: 0 }
    }

    /// The same export for the next worker.
    pub fn another(&self) -> Self {
        let exports = Arc::new(Mutex::new(self.lock().another().expect("memory needs nothing")));
        Self { exports, held: Arc::default(), windows: Arc::clone(&self.windows), worker: self.worker + 1 }
    }

    /// From now on sieved writes are windows that are rewritten in steps, and the server dies at the step of this number.
    pub(super) fn step_windows(&self, dies_at: Option<u64>) {
        let mut windows = self.windows();
        (windows.are_stepped, windows.dies_at) = (true, dies_at);
    }

    /// The server is to die now.
    pub(super) fn is_dead(&self) -> bool {
        self.windows().is_dead()
    }

    /// Steps of windows so far, and whether there are more.
    pub(super) fn window_steps(&self) -> (u64, bool) {
        let windows = self.windows();
        (windows.steps(), windows.are_underway())
    }

    /// What a file holds.
    pub(super) fn content(&self, path: &str) -> Vec<u8> {
        let mut exports = self.lock();
        let identity = Identity { uid: 0, gid: 0, groups: Arc::new([]) };
        let at = At { node: exports.root(ExportId(0)), path: path.as_bytes().to_vec() };
        let open = FsOp::Open { at, flags: OpenFlags::READ, mode: 0, admission: None };
        let Submitted::Done(Ok(FsReply::Node(node, found))) = exports.submit(OpToken(0), &identity, open)
        else {
            return Vec::new();
        };
        let mut content = vec![0; usize::try_from(found.size).expect("a small file")];
        exports.read_now(node, 0, &[Span::from_mut(&mut content)]).expect("memory is at hand");
        exports.close(node);
        content
    }

    /// From now on reads wait, or no longer: those that waited go on when the storage is polled.
    pub fn hold_reads(&self, holds: bool) {
        self.held().holds = holds;
    }

    /// The server died: what waited here is gone.
    pub fn forget_waiting(&self) {
        self.held().reads.clear();
        self.windows().forget();
    }

    /// The server died: what was not durable is lost, and everything is closed, for all workers.
    pub fn crash(&self) {
        assert!(self.lock().crash(ExportId(0)), "the export is in memory and has a seed");
    }

    fn lock(&self) -> MutexGuard<'_, Exports> {
        self.exports.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn held(&self) -> MutexGuard<'_, Held> {
        self.held.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn windows(&self) -> MutexGuard<'_, Windows> {
        self.windows.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Storage for SharedStorage {
    fn export(&self, name: &str) -> Option<ExportId> {
        self.lock().export(name)
    }

    fn root(&self, export: ExportId) -> NodeId {
        self.lock().root(export)
    }

    fn read_now(&mut self, node: NodeId, offset: u64, into: &[Span<'_>]) -> Result<usize, NowError> {
        if self.held().holds {
            return Err(NowError::WouldBlock);
        }
        self.lock().read_now(node, offset, into)
    }

    fn write_now(&mut self, node: NodeId, offset: u64, from: &[Span<'_>]) -> Result<usize, NowError> {
        if self.windows().are_underway() {
            return Err(NowError::WouldBlock);
        }
        self.lock().write_now(node, offset, from)
    }

    fn sieve_now(
        &mut self,
        _: NodeId,
        _: u64,
        _: Span<'_>,
        _: &mut dyn FnMut(),
    ) -> Result<Option<usize>, NowError> {
        if self.windows().are_stepped { Err(NowError::WouldBlock) } else { Ok(None) }
    }

    fn map(&mut self, node: NodeId, offset: u64, len: usize, parts_max: usize) -> LocalSegments {
        if self.held().holds {
            return LocalSegments::new();
        }
        self.lock().map(node, offset, len, parts_max)
    }

    fn submit(&mut self, token: OpToken, identity: &Identity, op: FsOp) -> Submitted {
        let mut held = self.held();
        if held.holds && matches!(op, FsOp::Read { .. }) {
            held.reads.push((token, identity.clone(), op));
            return Submitted::Pending;
        }
        drop(held);
        match self.windows().take(self.worker, token, identity, op) {
            Ok(()) => Submitted::Pending,
            Err(op) => self.lock().submit(token, identity, op),
        }
    }

    fn flush(&mut self) {
        self.lock().flush();
    }

    fn poll(&mut self, done: &mut Vec<(OpToken, FsResult)>) {
        let mut held = self.held();
        if !held.holds {
            for (token, identity, op) in held.reads.drain(..) {
                if let Submitted::Done(result) = self.lock().submit(token, &identity, op) {
                    done.push((token, result));
                }
            }
        }
        drop(held);
        done.extend(self.windows().step(self.worker, &mut self.lock()));
        self.lock().poll(done);
    }

    fn pending(&self) -> usize {
        self.lock().pending() + self.held().reads.len() + self.windows().pending(self.worker)
    }

    fn close(&mut self, node: NodeId) {
        self.lock().close(node);
    }

    fn share(&self, node: NodeId) -> Result<SharedFile, Status> {
        self.lock().share(node)
    }

    fn lock_key(&self, node: NodeId) -> Result<LockKey, Status> {
        self.lock().lock_key(node)
    }

    fn local_locks(&self, node: NodeId) -> Result<Box<dyn LocalLocks>, Status> {
        self.lock().local_locks(node)
    }

    fn adopt(&mut self, export: ExportId, file: &SharedFile) -> Result<NodeId, Status> {
        self.lock().adopt(export, file)
    }

    fn event_fds(&self) -> Vec<RawFd> {
        self.lock().event_fds()
    }

    fn verifier(&self, export: ExportId) -> u64 {
        self.lock().verifier(export)
    }
}
