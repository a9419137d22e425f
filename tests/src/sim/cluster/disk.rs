//! A directory of this machine behind the servers of a simulated cluster: operations happen one after the other, each some time after it
//! was asked for, also if its server stands still.

use std::collections::BTreeMap;
use std::os::fd::RawFd;
use std::path::Path;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use dafs_proto::transport::sim::{Random, SimNet};
use dafs_proto::transport::{LocalSegments, MemoryRef, OpToken, Span};
use dafs_proto::wire::Status;
use dafs_server::storage::{
    Engine, ExportConfig, ExportId, ExportKind, Exports, FsOp, FsResult, Identity, LocalLocks, LockKey,
    MemoryRoot, NodeId, NowError, SharedFile, Storage, StorageConfig, Submitted,
};

use super::store::SimStore;
use super::threads::Process;

/// An operation begins so long after it was asked for, and is answered so long after that, at most.
const DELAY_MAX_NS: u64 = 2_000_000;

struct Held {
    token: OpToken,
    identity: Identity,
    op: FsOp,
}

struct Inside {
    exports: Exports,
    net: SimNet,
    store: SimStore,
    process: Process,
    random: Random,
    next: u64,
    waiting: BTreeMap<(Duration, u64), Held>,
    done: BTreeMap<(Duration, u64), (OpToken, FsResult)>,
    closes: Vec<NodeId>,
}

/// What one process has open. Clones are the same.
#[derive(Clone)]
pub(super) struct Disk(Arc<Mutex<Inside>>);

impl Disk {
    pub(super) fn open(
        path: &Path,
        net: &SimNet,
        store: &SimStore,
        process: Process,
        random: Random,
    ) -> Self {
        let export = ExportConfig {
            name: "data".into(),
            kind: ExportKind::Directory(path.to_owned()),
            read_only: false,
            direct_io: false,
            local_locks: false,
            root: MemoryRoot::default(),
        };
        let config = StorageConfig {
            engine: Engine::Pool,
            pool_threads: 1,
            seed: Some(u64::from(process.0)),
            ..StorageConfig::default()
        };
        let exports = Exports::new(vec![export], &config).expect("the directory is there");
        Self(Arc::new(Mutex::new(Inside {
            exports,
            net: net.clone(),
            store: store.clone(),
            process,
            random,
            next: 0,
            waiting: BTreeMap::new(),
            done: BTreeMap::new(),
            closes: Vec::new(),
        })))
    }

    /// Does what is due.
    pub(super) fn step(&self) {
        self.lock().step();
    }

    /// When something is due next.
    pub(super) fn next_time(&self) -> Option<Duration> {
        let inside = self.lock();
        let now = inside.net.now();
        let times = inside.waiting.keys().chain(inside.done.keys()).map(|(at, _)| *at);
        // Of a server that stands still nobody asks what is done.
        times.filter(|at| *at > now).min()
    }

    /// The process ends: of what it has asked for some happens, some half, some not.
    pub(super) fn die(&self) {
        let mut inside = self.lock();
        while let Some((_, held)) = inside.waiting.pop_first() {
            let fate = inside.random.below(3);
            let op = match (fate, held.op) {
                (0, _) => continue,
                (1, FsOp::Write { node, offset, from, stability }) => {
                    let from = inside.beginning_of(&from);
                    FsOp::Write { node, offset, from, stability }
                }
                (_, op) => op,
            };
            // Nobody hears of it.
            drop(inside.execute(held.token, &held.identity, op));
        }
        inside.done.clear();
    }

    fn lock(&self) -> MutexGuard<'_, Inside> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

fn is_change(op: &FsOp) -> bool {
    !matches!(
        op,
        FsOp::Lookup { .. }
            | FsOp::Getattr { .. }
            | FsOp::Read { .. }
            | FsOp::Commit { .. }
            | FsOp::Readdir { .. }
            | FsOp::Readlink { .. }
            | FsOp::Seek { .. }
            | FsOp::Hint { .. }
            | FsOp::AccessCheck { .. }
            | FsOp::XattrRead { .. }
            | FsOp::XattrList { .. }
            | FsOp::Statfs { .. }
            | FsOp::Open { .. }
    )
}

impl Inside {
    fn step(&mut self) {
        let now = self.net.now();
        while let Some(entry) = self.waiting.first_entry().filter(|entry| entry.key().0 <= now) {
            let ((_, number), held) = entry.remove_entry();
            let result = self.execute(held.token, &held.identity, held.op);
            let at = now + self.delay();
            self.done.insert((at, number), (held.token, result));
        }
        if self.waiting.is_empty() {
            let closes = std::mem::take(&mut self.closes);
            closes.into_iter().for_each(|node| self.exports.close(node));
        }
    }

    fn delay(&mut self) -> Duration {
        Duration::from_nanos(1 + self.random.below(DELAY_MAX_NS))
    }

    fn execute(&mut self, token: OpToken, identity: &Identity, op: FsOp) -> FsResult {
        if is_change(&op) {
            assert!(
                !self.store.is_over(self.process),
                "{:?} changes files after it was taken over, or has left: {op:?}",
                self.process
            );
        }
        match self.exports.submit(token, identity, op) {
            Submitted::Done(result) => result,
            Submitted::Pending => {
                let mut done = Vec::new();
                loop {
                    self.exports.flush();
                    self.exports.poll(&mut done);
                    if let Some((_, result)) = done.pop() {
                        return result;
                    }
                    std::thread::yield_now();
                }
            }
        }
    }

    /// A part of this data, from its beginning.
    fn beginning_of(&mut self, from: &[MemoryRef]) -> Vec<MemoryRef> {
        let whole: usize = from.iter().map(MemoryRef::len).sum();
        let mut left = self.random.index(whole + 1);
        let mut beginning = Vec::new();
        for part in from {
            let len = part.len().min(left);
            left -= len;
            beginning.extend(part.slice(0, len).filter(|_| len > 0));
        }
        beginning
    }
}

impl Storage for Disk {
    fn export(&self, name: &str) -> Option<ExportId> {
        self.lock().exports.export(name)
    }

    fn root(&self, export: ExportId) -> NodeId {
        self.lock().exports.root(export)
    }

    fn read_now(&mut self, _: NodeId, _: u64, _: &[Span<'_>]) -> Result<usize, NowError> {
        Err(NowError::WouldBlock)
    }

    fn write_now(&mut self, _: NodeId, _: u64, _: &[Span<'_>]) -> Result<usize, NowError> {
        Err(NowError::WouldBlock)
    }

    fn map(&mut self, _: NodeId, _: u64, _: usize, _: usize) -> LocalSegments {
        LocalSegments::new()
    }

    fn submit(&mut self, token: OpToken, identity: &Identity, op: FsOp) -> Submitted {
        let mut inside = self.lock();
        inside.next += 1;
        let at = inside.net.now() + inside.delay();
        let number = inside.next;
        inside.waiting.insert((at, number), Held { token, identity: identity.clone(), op });
        Submitted::Pending
    }

    fn flush(&mut self) {}

    fn poll(&mut self, done: &mut Vec<(OpToken, FsResult)>) {
        let mut inside = self.lock();
        let now = inside.net.now();
        while let Some(entry) = inside.done.first_entry().filter(|entry| entry.key().0 <= now) {
            done.push(entry.remove());
        }
    }

    fn pending(&self) -> usize {
        let inside = self.lock();
        inside.waiting.len() + inside.done.len()
    }

    fn close(&mut self, node: NodeId) {
        self.lock().closes.push(node);
    }

    fn share(&self, node: NodeId) -> Result<SharedFile, Status> {
        self.lock().exports.share(node)
    }

    fn lock_key(&self, node: NodeId) -> Result<LockKey, Status> {
        self.lock().exports.lock_key(node)
    }

    fn local_locks(&self, node: NodeId) -> Result<Box<dyn LocalLocks>, Status> {
        self.lock().exports.local_locks(node)
    }

    fn adopt(&mut self, export: ExportId, file: &SharedFile) -> Result<NodeId, Status> {
        self.lock().exports.adopt(export, file)
    }

    fn event_fds(&self) -> Vec<RawFd> {
        Vec::new()
    }

    fn verifier(&self, export: ExportId) -> u64 {
        self.lock().exports.verifier(export)
    }
}
