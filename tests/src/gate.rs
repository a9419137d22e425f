//! Storage that stops the server in the middle of a read until it is let go, and counts what is read until another client's turn.

use std::os::fd::RawFd;
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use dafs_proto::transport::{LocalSegments, OpToken, Span};
use dafs_proto::wire::Status;
use dafs_server::storage::{
    ExportId, FsOp, FsResult, Identity, LocalLocks, LockKey, NodeId, NowError, SharedFile, Storage, Submitted,
};

/// A wait for less than this is no failure.
const LONGEST: Duration = Duration::from_secs(60);

/// Reads that begin here are those of the client that is watched; all others are the others'.
pub const WATCHED_OFFSET: u64 = 4099;

/// Where the server is stopped and what was counted; clones are the same.
#[derive(Clone, Default)]
pub struct Gate {
    inside: Arc<(Mutex<Inside>, Condvar)>,
}

#[derive(Default)]
struct Inside {
    /// So many reads of other clients behind the next of the watched one, the server is stopped.
    armed: Option<u32>,
    stops_at: Option<u32>,
    stopped: bool,
    /// Bytes read for others since the server was stopped.
    moved: u64,
    /// The same, as of the watched client's next read.
    moved_before: Option<u64>,
}

impl Gate {
    /// The function that puts it before a storage.
    pub fn wrap(&self) -> impl Fn(Box<dyn Storage>) -> Box<dyn Storage> + Send + 'static {
        let gate = self.clone();
        move |storage| Box::new(GatedStorage { storage, gate: gate.clone() })
    }

    /// Stops the server in the `nth` read of another client that follows the next one of the watched client.
    pub fn arm(&self, nth: u32) {
        *self.lock() = Inside { armed: Some(nth), ..Inside::default() };
    }

    /// Waits until the server is stopped.
    pub fn wait_for_stop(&self) {
        let _stopped = self.wait_until(|inside| inside.stopped);
    }

    /// Lets it go on, and returns what it read for others before it read for the watched client; the read counts in which it was stopped.
    pub fn release(&self) -> u64 {
        self.lock().stopped = false;
        self.inside.1.notify_all();
        self.wait_until(|inside| inside.moved_before.is_some()).moved_before.unwrap_or(0)
    }

    fn wait_until(&self, done: impl Fn(&Inside) -> bool) -> MutexGuard<'_, Inside> {
        let inside = self.lock();
        let (inside, waited) = (self.inside.1)
            .wait_timeout_while(inside, LONGEST, |inside| !done(inside))
            .unwrap_or_else(PoisonError::into_inner);
        assert!(!waited.timed_out(), "the server does not come to what is waited for");
        inside
    }

    fn lock(&self) -> MutexGuard<'_, Inside> {
        self.inside.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// In the server: a read begins.
    fn on_read(&self, offset: u64, len: usize) {
        let mut inside = self.lock();
        if offset == WATCHED_OFFSET {
            match inside.armed.take() {
                Some(nth) => inside.stops_at = Some(nth),
                None => inside.moved_before = Some(inside.moved),
            }
        } else {
            inside.moved += len as u64;
            inside.stops_at = inside.stops_at.map(|nth| nth - 1);
            if inside.stops_at == Some(0) {
                (inside.stops_at, inside.stopped, inside.moved) = (None, true, len as u64);
                self.inside.1.notify_all();
                inside = self.wait_until_free(inside);
            }
        }
        drop(inside);
        self.inside.1.notify_all();
    }

    fn wait_until_free<'a>(&'a self, inside: MutexGuard<'a, Inside>) -> MutexGuard<'a, Inside> {
        let waited = (self.inside.1).wait_timeout_while(inside, LONGEST, |inside| inside.stopped);
        waited.unwrap_or_else(PoisonError::into_inner).0
    }
}

/// The storage.
struct GatedStorage {
    storage: Box<dyn Storage>,
    gate: Gate,
}

impl Storage for GatedStorage {
    fn export(&self, name: &str) -> Option<ExportId> {
        self.storage.export(name)
    }

    fn root(&self, export: ExportId) -> NodeId {
        self.storage.root(export)
    }

    fn read_now(&mut self, node: NodeId, offset: u64, into: &[Span<'_>]) -> Result<usize, NowError> {
        self.gate.on_read(offset, into.iter().map(Span::len).sum());
        self.storage.read_now(node, offset, into)
    }

    fn write_now(&mut self, node: NodeId, offset: u64, from: &[Span<'_>]) -> Result<usize, NowError> {
        self.storage.write_now(node, offset, from)
    }

    fn sieve_now(
        &mut self,
        node: NodeId,
        offset: u64,
        window: Span<'_>,
        change: &mut dyn FnMut(),
    ) -> Result<Option<usize>, NowError> {
        self.storage.sieve_now(node, offset, window, change)
    }

    /// All data passes through reads, where it is counted.
    fn map(&mut self, _: NodeId, _: u64, _: usize, _: usize) -> LocalSegments {
        LocalSegments::new()
    }

    fn submit(&mut self, token: OpToken, identity: &Identity, op: FsOp) -> Submitted {
        self.storage.submit(token, identity, op)
    }

    fn flush(&mut self) {
        self.storage.flush();
    }

    fn set_turn(&mut self, transfers_max: usize) {
        self.storage.set_turn(transfers_max);
    }

    fn poll(&mut self, done: &mut Vec<(OpToken, FsResult)>) {
        self.storage.poll(done);
    }

    fn pending(&self) -> usize {
        self.storage.pending()
    }

    fn close(&mut self, node: NodeId) {
        self.storage.close(node);
    }

    fn share(&self, node: NodeId) -> Result<SharedFile, Status> {
        self.storage.share(node)
    }

    fn lock_key(&self, node: NodeId) -> Result<LockKey, Status> {
        self.storage.lock_key(node)
    }

    fn local_locks(&self, node: NodeId) -> Result<Box<dyn LocalLocks>, Status> {
        self.storage.local_locks(node)
    }

    fn adopt(&mut self, export: ExportId, file: &SharedFile) -> Result<NodeId, Status> {
        self.storage.adopt(export, file)
    }

    fn event_fds(&self) -> Vec<RawFd> {
        self.storage.event_fds()
    }

    fn verifier(&self, export: ExportId) -> u64 {
        self.storage.verifier(export)
    }
}
