//! What a kind of export implements: the files of one export, as one loop sees them.

use std::any::Any;
use std::os::fd::BorrowedFd;
use std::sync::Arc;

use dafs_proto::transport::{LocalSegments, Span};
use dafs_proto::wire::{Attributes, Status};

use super::fair::FaultDomain;
use super::{FsOp, FsReply, FsResult, HandedFile, Identity, LocalLocks, LockKey, NodeId, NowError};

/// Something open in an export, for whoever holds it, on any thread: a file stays open while one of these or a node of it is left.
pub type SharedFile = Arc<dyn Any + Send + Sync>;

/// The files of one export, as one loop sees them: open nodes belong to the loop, the files to all that were made by
/// [`FileSystem::another`]. Nothing in it blocks, but for [`Job::run`] on another thread.
pub(super) trait FileSystem: Send {
    /// The root; always open.
    fn root(&self) -> NodeId;

    /// See [`super::Storage::verifier`].
    fn verifier(&self) -> u64;

    /// Nodes open, the root not counted.
    fn open_count(&self) -> usize;

    /// See [`super::Storage::read_now`].
    fn read_now(&mut self, node: NodeId, offset: u64, into: &[Span<'_>]) -> Result<usize, NowError>;

    /// See [`super::Storage::read_pieces`]. Asked only where the backend can map.
    fn read_pieces<'a>(
        &mut self,
        _node: NodeId,
        _total: usize,
        _piece: &dyn Fn(usize) -> Option<(u64, Span<'a>)>,
    ) -> usize {
        0
    }

    /// See [`super::Storage::write_now`].
    fn write_now(&mut self, node: NodeId, offset: u64, from: &[Span<'_>]) -> Result<usize, NowError>;

    /// See [`super::Storage::map`]. Asked only where the backend can map.
    fn map(&mut self, _node: NodeId, _offset: u64, _len: usize, _parts_max: usize) -> LocalSegments {
        LocalSegments::new()
    }

    /// See [`super::Storage::is_absent`].
    fn is_absent(&self, _node: NodeId, _offset: u64, _len: u64) -> bool {
        false
    }

    /// See [`super::Storage::is_direct`].
    fn is_direct(&self, _node: NodeId) -> bool {
        false
    }

    /// See [`super::Storage::sieve_now`].
    fn sieve_now(
        &mut self,
        _node: NodeId,
        _offset: u64,
        _window: Span<'_>,
        _change: &mut dyn FnMut(),
    ) -> Result<Option<usize>, NowError> {
        Ok(None)
    }

    /// Frees about so many bytes of what was given back; whether more is left.
    fn tidy(&mut self, _bytes: u64) -> bool {
        false
    }

    /// Does an operation if that needs no waiting.
    fn attempt(&mut self, identity: &Identity, op: FsOp) -> Attempt;

    /// Makes the reply of what another thread has done.
    fn finish(&mut self, outcome: Outcome) -> FsResult {
        match outcome {
            Outcome::Reply(reply) => Ok(reply),
            Outcome::Opened(opened) => {
                if opened.was_cut {
                    self.forget_data(&opened.file);
                }
                Ok(FsReply::Node(self.adopt(&opened.file)?, opened.attributes))
            }
        }
    }

    /// What was kept of a file's data is no longer true.
    fn forget_data(&mut self, _file: &SharedFile) {}

    /// Closes a node. What it returns may take long to drop, not on the loop; and where that may hang.
    fn close(&mut self, node: NodeId) -> Option<(SharedFile, Option<FaultDomain>)>;

    /// What a node has open.
    fn share(&self, node: NodeId) -> Result<SharedFile, Status>;

    /// See [`super::Storage::lock_key`].
    fn lock_key(&self, node: NodeId) -> Result<LockKey, Status>;

    /// See [`super::Storage::local_locks`].
    fn local_locks(&self, _node: NodeId) -> Result<Box<dyn LocalLocks>, Status> {
        Err(Status::NOT_SUPPORTED)
    }

    /// See [`super::Storage::hand_over`].
    fn hand_over(&self, _node: NodeId) -> Result<HandedFile, Status> {
        Err(Status::NOT_SUPPORTED)
    }

    /// A node of what was shared by this export, through whichever loop.
    fn adopt(&mut self, file: &SharedFile) -> Result<NodeId, Status>;

    /// The same files for another loop.
    fn another(&self) -> Box<dyn FileSystem>;

    /// See [`super::Exports::crash`].
    fn crash(&mut self) -> bool {
        false
    }

    /// Windows that are mapped to be read in user space.
    #[cfg(test)]
    fn hot_windows(&self) -> usize {
        0
    }
}

/// What became of an attempt on the loop's thread.
pub(super) enum Attempt {
    /// It is done.
    Done(FsResult),
    /// It may wait: to be run on another thread.
    Job(Box<dyn Job>),
    /// Data that must wait: for the ring, or to be run on another thread.
    Data(Box<dyn Job>),
}

/// An operation with what it needs, for any thread.
pub(super) trait Job: Send {
    /// Where a thread may hang with it for good.
    fn fault_domain(&self) -> Option<FaultDomain>;

    /// Runs it to its end, or as far as it does not lead elsewhere; may wait.
    fn run(self: Box<Self>) -> Run;

    /// As an operation for the ring; given back where only a thread can do it all.
    fn into_ring_op(self: Box<Self>) -> Result<Box<dyn RingOp>, Box<dyn Job>>;
}

/// A read or write that the ring carries out, in as many calls as that takes.
pub(super) trait RingOp: Send {
    /// What the kernel is asked for next. It stays as it is, and its memory where it is, until it has completed.
    fn call(&self) -> RingCall<'_>;

    /// Takes a completion's result: bytes, or a negative errno.
    fn complete(&mut self, result: i32) -> RingNext;

    /// Nothing else has its file open.
    fn is_last(&self) -> bool;
}

/// One system call in the ring.
pub(super) struct RingCall<'a> {
    pub(super) fd: BorrowedFd<'a>,
    /// Else it reads.
    pub(super) writes: bool,
    /// No more than one call takes.
    pub(super) segments: &'a [libc::iovec],
    pub(super) offset: u64,
    pub(super) flags: i32,
}

/// What follows a completion in the ring.
pub(super) enum RingNext {
    /// Submit it again for the rest.
    Continue,
    /// It is over.
    End(Result<usize, Status>),
}

/// What came of running a job.
pub(super) enum Run {
    /// It is done.
    Done(Result<Outcome, Status>),
    /// Nothing is done yet, for it leads beyond a mount point.
    Beyond(FaultDomain, Box<dyn Job>),
}

/// What an operation gave on another thread.
pub(super) enum Outcome {
    /// The reply.
    Reply(FsReply),
    /// Something that is to get a node.
    Opened(Opened),
}

/// What was opened.
pub(super) struct Opened {
    pub(super) file: SharedFile,
    pub(super) attributes: Attributes,
    /// Opening it has cut it.
    pub(super) was_cut: bool,
}
