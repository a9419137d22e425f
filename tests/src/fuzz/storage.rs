//! Memory storage that behaves as a slow and failing disk does.

use std::collections::VecDeque;
use std::os::fd::RawFd;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use dafs_proto::transport::sim::Random;
use dafs_proto::transport::{LocalSegments, OpToken, Span};
use dafs_proto::wire::Status;
use dafs_server::storage::{
    Engine, ExportConfig, ExportId, ExportKind, Exports, FsOp, FsReply, FsResult, Identity, LocalLocks,
    LockKey, MemoryRoot, NodeId, NowError, SharedFile, Storage, StorageConfig, Submitted,
};

/// The export with faults.
pub(super) const FAULTY: &str = "faulty";
/// The export without.
pub(super) const CALM: &str = "calm";

/// How often what happens, per million.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Troubles {
    pub(super) would_block_ppm: u32,
    pub(super) pending_ppm: u32,
    pub(super) fail_ppm: u32,
    pub(super) short_ppm: u32,
}

pub(super) struct FaultyStorage {
    exports: Exports,
    random: Random,
    troubles: Troubles,
    held: VecDeque<Held>,
    open: Arc<AtomicUsize>,
}

enum Held {
    Op(OpToken, Identity, FsOp),
    Close(NodeId),
}

impl FaultyStorage {
    pub(super) fn new(random: Random, troubles: Troubles) -> Self {
        let export = |name: &str| ExportConfig {
            name: name.to_owned(),
            kind: ExportKind::Memory { size_max: 8 << 20 },
            read_only: false,
            direct_io: false,
            local_locks: false,
            root: MemoryRoot::default(),
        };
        let config = StorageConfig { engine: Engine::Pool, seed: Some(1), ..StorageConfig::default() };
        let exports =
            Exports::new(vec![export(FAULTY), export(CALM)], &config).expect("memory needs nothing");
        Self { exports, random, troubles, held: VecDeque::new(), open: Arc::default() }
    }

    /// How many files, directories and paths are open.
    pub(super) fn open_count(&self) -> Arc<AtomicUsize> {
        Arc::clone(&self.open)
    }

    fn note_open(&self) {
        let count = [ExportId(0), ExportId(1)].map(|export| self.exports.open_count(export));
        self.open.store(count.iter().sum(), Ordering::Relaxed);
    }

    fn strikes(&mut self, node: NodeId, ppm: u32) -> bool {
        node.export == ExportId(0) && self.random.chance(ppm)
    }

    fn failure(&mut self) -> Status {
        [Status::IO, Status::NO_SPACE, Status::TOO_MANY_OPEN, Status::ACCESS][self.random.index(4)]
    }

    fn release(&mut self, done: &mut Vec<(OpToken, FsResult)>) {
        let count = self.random.index(self.held.len() + 1).max(1);
        for _ in 0..count {
            match self.held.pop_front() {
                None => return,
                Some(Held::Close(node)) => self.exports.close(node),
                Some(Held::Op(token, identity, op)) => {
                    let result = match self.random.chance(self.troubles.fail_ppm) {
                        true => Err(self.failure()),
                        false => match self.exports.submit(token, &identity, op) {
                            Submitted::Done(result) => result,
                            Submitted::Pending => continue,
                        },
                    };
                    let result = match result {
                        Ok(FsReply::Count(count)) if self.random.chance(self.troubles.short_ppm) => {
                            Ok(FsReply::Count(count / 2))
                        }
                        other => other,
                    };
                    done.push((token, result));
                }
            }
        }
    }
}

impl Storage for FaultyStorage {
    fn export(&self, name: &str) -> Option<ExportId> {
        self.exports.export(name)
    }

    fn root(&self, export: ExportId) -> NodeId {
        self.exports.root(export)
    }

    fn read_now(&mut self, node: NodeId, offset: u64, into: &[Span<'_>]) -> Result<usize, NowError> {
        if self.strikes(node, self.troubles.would_block_ppm) {
            return Err(NowError::WouldBlock);
        }
        if self.strikes(node, self.troubles.fail_ppm) {
            return Err(NowError::Failed(self.failure()));
        }
        self.exports.read_now(node, offset, into)
    }

    fn write_now(&mut self, node: NodeId, offset: u64, from: &[Span<'_>]) -> Result<usize, NowError> {
        if self.strikes(node, self.troubles.would_block_ppm) {
            return Err(NowError::WouldBlock);
        }
        if self.strikes(node, self.troubles.fail_ppm) {
            return Err(NowError::Failed(self.failure()));
        }
        if self.strikes(node, self.troubles.short_ppm)
            && let [data] = from
            && let Some(half) = data.slice(0, data.len() / 2)
        {
            return self.exports.write_now(node, offset, &[half]);
        }
        self.exports.write_now(node, offset, from)
    }

    fn sieve_now(
        &mut self,
        node: NodeId,
        offset: u64,
        window: Span<'_>,
        change: &mut dyn FnMut(),
    ) -> Result<Option<usize>, NowError> {
        match self.strikes(node, self.troubles.would_block_ppm) {
            true => Err(NowError::WouldBlock),
            false => self.exports.sieve_now(node, offset, window, change),
        }
    }

    fn map(&mut self, node: NodeId, offset: u64, len: usize, parts_max: usize) -> LocalSegments {
        self.exports.map(node, offset, len, parts_max)
    }

    fn submit(&mut self, token: OpToken, identity: &Identity, op: FsOp) -> Submitted {
        if self.strikes(node_of(&op), self.troubles.pending_ppm) {
            self.held.push_back(Held::Op(token, identity.clone(), op));
            return Submitted::Pending;
        }
        let submitted = self.exports.submit(token, identity, op);
        self.note_open();
        submitted
    }

    fn flush(&mut self) {
        self.exports.flush();
    }

    fn poll(&mut self, done: &mut Vec<(OpToken, FsResult)>) {
        self.release(done);
        self.exports.poll(done);
        self.note_open();
    }

    fn pending(&self) -> usize {
        self.held.iter().filter(|held| matches!(held, Held::Op(..))).count() + self.exports.pending()
    }

    fn close(&mut self, node: NodeId) {
        // What is in flight on the node finishes first.
        match self.held.is_empty() {
            true => self.exports.close(node),
            false => self.held.push_back(Held::Close(node)),
        }
        self.note_open();
    }

    fn share(&self, node: NodeId) -> Result<SharedFile, Status> {
        self.exports.share(node)
    }

    fn lock_key(&self, node: NodeId) -> Result<LockKey, Status> {
        self.exports.lock_key(node)
    }

    fn local_locks(&self, node: NodeId) -> Result<Box<dyn LocalLocks>, Status> {
        self.exports.local_locks(node)
    }

    fn adopt(&mut self, export: ExportId, file: &SharedFile) -> Result<NodeId, Status> {
        self.exports.adopt(export, file)
    }

    fn event_fds(&self) -> Vec<RawFd> {
        self.exports.event_fds()
    }

    fn verifier(&self, export: ExportId) -> u64 {
        self.exports.verifier(export)
    }
}

/// The node that an operation begins at.
fn node_of(op: &FsOp) -> NodeId {
    match op {
        FsOp::Rename { from: at, .. }
        | FsOp::Exchange { from: at, .. }
        | FsOp::Link { from: at, .. }
        | FsOp::Lookup { at, .. }
        | FsOp::Open { at, .. }
        | FsOp::Getattr { at, .. }
        | FsOp::Setattr { at, .. }
        | FsOp::Mkdir { at, .. }
        | FsOp::Mknod { at, .. }
        | FsOp::Remove { at, .. }
        | FsOp::Symlink { at, .. }
        | FsOp::Readlink { at }
        | FsOp::AccessCheck { at, .. }
        | FsOp::XattrRead { at, .. }
        | FsOp::XattrWrite { at, .. }
        | FsOp::XattrList { at }
        | FsOp::XattrRemove { at, .. }
        | FsOp::Statfs { at, .. } => at.node,
        FsOp::Read { node, .. }
        | FsOp::Write { node, .. }
        | FsOp::Sieve { node, .. }
        | FsOp::Append { node, .. }
        | FsOp::Commit { node, .. }
        | FsOp::Truncate { node, .. }
        | FsOp::Allocate { node, .. }
        | FsOp::Punch { node, .. }
        | FsOp::CopyRange { node, .. }
        | FsOp::Seek { node, .. }
        | FsOp::Hint { node, .. }
        | FsOp::Readdir { node, .. } => *node,
    }
}
