//! An export that is a directory of the server.
//!
//! Every path is resolved by the kernel beneath a descriptor of the export (`openat2`); operations on a name open its
//! directory that way and then act on the last part alone. What may wait runs on the pool's threads; what cannot runs
//! at once on the loop's.

mod busy;
mod class;
mod copy;
mod data;
mod directory;
mod hint;
mod link;
mod local_locks;
mod locate;
mod map;
mod namespace;
mod needs;
mod readdir;
mod resolve;
mod ring_op;
mod sieve;
#[cfg(test)]
pub(super) mod steps;
pub(super) mod sys;
mod write_gate;
mod xattr;

use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex};

use dafs_proto::transport::{LocalSegments, Span};
use dafs_proto::wire::{AccessPattern, Attributes, FileKind, OpenFlags, Status};

use super::backend::Losses;
use super::credentials::Identities;
use super::fair::FaultDomain;
use super::file_system::{Attempt, FileSystem, Job, Outcome, RingOp, Run, SharedFile};
use super::nodes::NodeTable;
use super::pool::try_lock;
use super::{ExportId, FsOp, FsReply, HandedFile, Identity, LocalLocks, LockKey, NodeId, NowError, Traits};
use busy::{FileKey, Held};
use class::{Classes, FsClass};
use data::Throttle;
#[cfg(test)]
pub(super) use directory::open_for_tests;
pub(super) use directory::{CAPABILITIES, DirectoryBackend};
use local_locks::FileLocks;
pub(crate) use locate::{FileName, OpenPlace, Place, Root, caches_pages_of_fuse};
use map::Mapped;
pub(crate) use map::map_file;
pub(super) use resolve::Where;
use ring_op::RingTransfer;
use write_gate::WriteGate;

/// What all threads know of an export.
pub(super) struct ExportState {
    root: Arc<Node>,
    identities: Identities,
    classes: Classes,
    verifier: AtomicU64,
    losses: Losses,
    direct_io: bool,
    direct_io_noted: AtomicBool,
    /// Files that are open in it are locked for the host's processes.
    local_locks: bool,
}

/// Something open. The descriptors close when the last operation on it has finished.
pub(super) struct Node {
    fd: OwnedFd,
    /// With `fd` opened for direct I/O: the same file through the page cache, for what is not aligned.
    direct_io: Option<DirectIo>,
    kind: FileKind,
    dev: u64,
    ino: u64,
    generation: u64,
    class: Arc<FsClass>,
    /// Data access was asked for: `fd` is more than a name.
    opened: bool,
    /// Data may be read.
    readable: bool,
    /// Data may be written.
    writable: bool,
    /// Opened with the wish to create: its name is made durable with the first full commit.
    name_unsynced: AtomicBool,
    /// Made without a name.
    unnamed: bool,
    /// The directory in which it got one, which is not durable yet. Held to make a name durable.
    named_in: Mutex<Option<OwnedFd>>,
    /// Held to sync it.
    committing: Mutex<()>,
    /// Windows of it may be mapped ([`HotWindows`]).
    hot: AtomicBool,
    /// Of a file that may be written by this, or is locked by it for the host's processes.
    gate: Option<Arc<WriteGate>>,
    /// Held while the descriptor's own position is in use: by directories and appends, and by whatever moves it.
    position: Mutex<()>,
}

/// The two sides of a file opened for direct I/O.
struct DirectIo {
    buffered: OwnedFd,
    memory_alignment: usize,
    offset_alignment: u64,
}

impl Node {
    fn new(fd: OwnedFd, attributes: &Attributes, class: Arc<FsClass>, opened: bool) -> Self {
        Self {
            fd,
            direct_io: None,
            kind: attributes.kind,
            dev: attributes.fs_id,
            ino: attributes.file_id,
            generation: attributes.generation,
            class,
            opened,
            readable: false,
            writable: false,
            name_unsynced: AtomicBool::new(false),
            unnamed: false,
            named_in: Mutex::new(None),
            committing: Mutex::new(()),
            hot: AtomicBool::new(false),
            gate: None,
            position: Mutex::new(()),
        }
    }

    fn key(&self) -> FileKey {
        (self.dev, self.ino)
    }

    /// Where whoever asks for more than its name may hang.
    fn fault_domain(&self) -> Option<FaultDomain> {
        (!self.class.local).then(|| FaultDomain::of(self.dev))
    }

    /// Serves everything but aligned direct I/O.
    fn buffered_fd(&self) -> BorrowedFd<'_> {
        self.direct_io.as_ref().map_or(self.fd.as_fd(), |direct| direct.buffered.as_fd())
    }

    /// The end of the file, by the descriptor's own position; `None` also while somebody else uses that.
    fn end_now(&self) -> Option<u64> {
        let _position = try_lock(&self.position)?;
        sys::seek_end(self.buffered_fd()).ok()
    }

    /// The first hole at or after `offset`, likewise.
    fn hole_now(&self, offset: u64) -> Option<u64> {
        let _position = try_lock(&self.position)?;
        sys::seek_hole(self.buffered_fd(), offset).ok()
    }
}

/// An operation with the nodes it needs, for any thread.
struct Task {
    shared: Arc<ExportState>,
    node: Arc<Node>,
    second: Option<Arc<Node>>,
    identity: Identity,
    op: FsOp,
    /// It leads beyond a mount point.
    beyond: bool,
    /// It may take long, and keeps others from its file meanwhile.
    held: Option<Held>,
}

impl Job for Task {
    fn fault_domain(&self) -> Option<FaultDomain> {
        // Whatever is mounted on a name of a directory is asked for its attributes with the others.
        let lists = matches!(self.op, FsOp::Readdir { attributes: true, .. });
        let listing = lists.then(|| FaultDomain::of(self.node.key()));
        let source = match &self.op {
            FsOp::CopyRange { source, .. } => source.0.downcast_ref::<Node>(),
            _ => None,
        };
        let second = self.second.as_deref().or(source);
        self.node.fault_domain().or_else(|| second?.fault_domain()).or(listing)
    }

    fn run(mut self: Box<Self>) -> Run {
        // Open data is where it is; the names of a path are where they lead.
        let settled = self.beyond || self.op.path().is_none();
        let domain = match self.act(if settled { Where::AnyMount } else { Where::OneMount }) {
            Err(Status::CROSS_DEVICE) if !settled => self.mount_point(),
            // Somebody has a lease on the file, who is told now. How long he takes is his to choose.
            Err(Status::AGAIN) if !settled && matches!(self.op, FsOp::Open { .. }) => self.leased_file(),
            result => return Run::Done(result),
        };
        self.beyond = true;
        Run::Beyond(domain, self)
    }

    fn into_ring_op(self: Box<Self>) -> Result<Box<dyn RingOp>, Box<dyn Job>> {
        match RingTransfer::try_from(*self) {
            Ok(transfer) => Ok(Box::new(transfer)),
            Err(task) => Err(task),
        }
    }
}

impl Task {
    fn act(&self, place: Where) -> Result<Outcome, Status> {
        let on_data = self.op.traits().on_data;
        let acting = (!on_data)
            .then(|| self.shared.identities.act_as(&self.identity, made_mode(&self.op)))
            .transpose()?;
        if on_data {
            // What the last operation here acted as is not to decide about this one.
            self.shared.identities.act_as_itself()?;
        }
        // An open has the right only to make a file, not to cut one.
        let all_along = sets_ids(&self.op) && !matches!(self.op, FsOp::Open { .. });
        let setting = if all_along { self.shared.identities.set_ids() } else { None };
        let result = self.execute(place);
        drop(setting);
        if let Some(acting) = acting {
            acting.keep();
        }
        result
    }

    /// A fault domain by itself, as far as there are so many: whoever holds leases on files keeps only those waiting who open them.
    fn leased_file(&self) -> FaultDomain {
        let path = self.op.path().map_or(&b""[..], |at| &at.path);
        FaultDomain::of((self.node.key(), path))
    }

    /// Where the operation's paths leave the file system that they begin on.
    fn mount_point(&self) -> FaultDomain {
        let scope = resolve::Scope { shared: &self.shared, place: Where::OneMount };
        let path = self.op.path().map_or(&b""[..], |at| &at.path);
        scope.mount_point(&self.node, path)
    }

    fn execute(&self, place: Where) -> Result<Outcome, Status> {
        let scope = resolve::Scope { shared: &self.shared, place };
        match &self.op {
            FsOp::Lookup { .. }
            | FsOp::Open { .. }
            | FsOp::Getattr { .. }
            | FsOp::Setattr { .. }
            | FsOp::AccessCheck { .. } => namespace::access(&scope, &self.node, &self.op),
            FsOp::Sieve { offset, len, parts, .. } => {
                let sieve::Written { count, as_window } =
                    sieve::write_waiting(&self.node, *offset, *len, parts)?;
                Ok(Outcome::Reply(FsReply::Sieved { count, as_window }))
            }
            op if op.traits().on_data => data::execute(&scope, &self.node, op).map(Outcome::Reply),
            FsOp::Readdir { cookie, size_max, attributes, .. } => {
                readdir::read(&self.node, *cookie, *size_max, *attributes).map(Outcome::Reply)
            }
            FsOp::XattrRead { .. }
            | FsOp::XattrWrite { .. }
            | FsOp::XattrList { .. }
            | FsOp::XattrRemove { .. } => {
                xattr::execute(&scope, &self.node, &self.identity, &self.op).map(Outcome::Reply)
            }
            FsOp::Statfs { at, follow } => {
                let place = scope.at(&self.node, &at.path, *follow)?;
                Ok(Outcome::Reply(FsReply::Statistics(sys::statfs(place.as_fd())?.1)))
            }
            _ => namespace::change(&scope, &self.node, self.second.as_ref(), &self.op).map(Outcome::Reply),
        }
    }
}

/// The mode of what it may make.
fn made_mode(op: &FsOp) -> Option<u32> {
    match op {
        FsOp::Open { flags, mode, .. } => {
            flags.intersects(OpenFlags::CREATE | OpenFlags::UNNAMED).then_some(*mode)
        }
        FsOp::Mkdir { mode, .. } | FsOp::Mknod { mode, .. } => Some(*mode),
        _ => None,
    }
}

/// What user 0 may do to the set-group-id bit of a file whose group is not its own. A thread of the pool does it: the loop writes
/// data, and must never have the right that this takes.
fn sets_ids(op: &FsOp) -> bool {
    match op {
        FsOp::Setattr { set, .. } => {
            set.mode.is_some_and(|mode| mode & 0o2000 != 0) || set.uid.is_some() || set.gid.is_some()
        }
        FsOp::Open { flags, mode, .. } => {
            flags.intersects(OpenFlags::CREATE | OpenFlags::UNNAMED) && mode & 0o2000 != 0
        }
        FsOp::Mkdir { mode, .. } | FsOp::Mknod { mode, .. } => mode & 0o6000 != 0,
        // To set an access list is to set a mode.
        FsOp::XattrWrite { name, .. } => !name.starts_with(b"user."),
        _ => false,
    }
}

/// A directory export, driven by the loop's thread.
pub(super) struct PosixExport {
    shared: Arc<ExportState>,
    nodes: NodeTable<Arc<Node>>,
    throttle: Throttle,
    mapped: Mapped,
    /// See [`super::StorageConfig::loop_keeps_identity`].
    loop_keeps_identity: bool,
}

impl PosixExport {
    /// The same, seen from a loop that has nothing open.
    fn view(shared: Arc<ExportState>, id: ExportId, loop_keeps_identity: bool) -> Self {
        Self {
            nodes: NodeTable::new(id, Arc::clone(&shared.root)),
            shared,
            throttle: Throttle::default(),
            mapped: Mapped::default(),
            loop_keeps_identity,
        }
    }

    /// Dropping it may take long: for another host, for the space of a file whose last name is gone, or for what a file system writes
    /// back when a writer closes.
    fn drops_slowly(node: &Node) -> bool {
        // Also one that only names it.
        let is_file = node.kind == FileKind::File;
        let on_disk = !node.class.memory && node.writable;
        let frees_much = |found: Attributes| {
            found.links == 0 && (!node.class.memory || found.allocated > resolve::LOOP_SIZE_MAX as u64)
        };
        !node.class.local || is_file && (on_disk || sys::fstat(node.fd.as_fd()).is_ok_and(frees_much))
    }
}

impl FileSystem for PosixExport {
    fn root(&self) -> NodeId {
        self.nodes.root()
    }

    fn verifier(&self) -> u64 {
        self.shared.verifier.load(Ordering::Acquire).wrapping_add(self.shared.losses.total())
    }

    #[cfg(test)]
    fn hot_windows(&self) -> usize {
        self.mapped.hot_count()
    }

    fn open_count(&self) -> usize {
        self.nodes.len()
    }

    fn read_now(&mut self, id: NodeId, offset: u64, into: &[Span<'_>]) -> Result<usize, NowError> {
        let Some(node) = self.nodes.get(id) else { return Err(NowError::Failed(Status::BAD_HANDLE)) };
        if !node.class.local || busy::is(node.key()) {
            return Err(NowError::WouldBlock);
        }
        match self.mapped.read(id, node, offset, into) {
            Some(count) => Ok(count),
            None => data::read_now(node, offset, into),
        }
    }

    fn read_pieces<'a>(
        &mut self,
        id: NodeId,
        total: usize,
        piece: &dyn Fn(usize) -> Option<(u64, Span<'a>)>,
    ) -> usize {
        match self.nodes.get(id) {
            Some(node) if !busy::is(node.key()) => self.mapped.read_pieces(id, node, total, piece),
            _ => 0,
        }
    }

    fn write_now(&mut self, node: NodeId, offset: u64, from: &[Span<'_>]) -> Result<usize, NowError> {
        match self.nodes.get(node) {
            Some(node) if busy::is(node.key()) => Err(NowError::WouldBlock),
            Some(node) => data::write_now(node, &mut self.throttle, offset, from),
            None => Err(NowError::Failed(Status::BAD_HANDLE)),
        }
    }

    fn sieve_now(
        &mut self,
        node: NodeId,
        offset: u64,
        window: Span<'_>,
        change: &mut dyn FnMut(),
    ) -> Result<Option<usize>, NowError> {
        match self.nodes.get(node) {
            Some(node) if busy::is(node.key()) => Err(NowError::WouldBlock),
            Some(node) => sieve::write_now(node, &mut self.throttle, offset, window, change),
            None => Err(NowError::Failed(Status::BAD_HANDLE)),
        }
    }

    fn is_absent(&self, node: NodeId, offset: u64, len: u64) -> bool {
        let node = self.nodes.get(node).filter(|node| node.class.local && node.direct_io.is_none());
        node.is_some_and(|node| sys::cached_pages(node.buffered_fd(), offset, len) == Ok(0))
    }

    fn is_direct(&self, node: NodeId) -> bool {
        self.nodes.get(node).is_some_and(|node| node.direct_io.is_some())
    }

    fn map(&mut self, id: NodeId, offset: u64, len: usize, _parts_max: usize) -> LocalSegments {
        let node = self.nodes.get(id).filter(|node| node.class.local && !busy::is(node.key()));
        node.and_then(|node| self.mapped.map(id, node, offset, len)).into_iter().collect()
    }

    fn attempt(&mut self, identity: &Identity, op: FsOp) -> Attempt {
        let Traits { node: first, second, on_data, .. } = op.traits();
        let Some(node) = self.nodes.get(first) else { return Attempt::Done(Err(Status::BAD_HANDLE)) };
        match op {
            FsOp::Truncate { .. } | FsOp::Punch { .. } => self.mapped.forget_file(node),
            // What is mapped stays in memory.
            FsOp::Hint { pattern: Some(AccessPattern::WillNotNeed), .. } => self.mapped.let_go(first, node),
            _ => {}
        }
        let second = match second.map(|id| self.nodes.get(id)) {
            Some(None) => return Attempt::Done(Err(Status::BAD_HANDLE)),
            Some(Some(node)) => Some(Arc::clone(node)),
            None => None,
        };
        let mut task = Task {
            shared: Arc::clone(&self.shared),
            node: Arc::clone(node),
            second,
            identity: identity.clone(),
            op,
            beyond: false,
            held: None,
        };
        let elsewhere = sets_ids(&task.op)
            || self.loop_keeps_identity && !on_data && self.shared.identities.would_change(identity);
        // What a path leads to is not known yet.
        let is_busy = if on_data { busy::is(task.node.key()) } else { busy::any() };
        let place = resolve::place(&task.node.class, &task.op, is_busy).filter(|_| !elsewhere);
        if let Some(place) = place {
            let acting =
                (!on_data).then(|| self.shared.identities.act_as(identity, made_mode(&task.op))).transpose();
            let result = acting.and_then(|_acting| task.execute(place));
            match result {
                Ok(outcome) => return Attempt::Done(self.finish(outcome)),
                // Not in the kernel's caches, or it follows a link, or crosses into another file system.
                Err(Status::AGAIN | Status::CROSS_DEVICE | Status::LOOP) => {}
                Err(status) => return Attempt::Done(Err(status)),
            }
        }
        if task.op.holds_file() && task.node.class.local {
            let cuts = matches!(task.op, FsOp::Truncate { .. } | FsOp::Punch { .. });
            let hold = if cuts { busy::hold_to_cut } else { busy::hold };
            task.held = Some(hold(task.node.key()));
        }
        match task.op {
            FsOp::Read { .. } | FsOp::Write { .. } if task.node.class.local => Attempt::Data(Box::new(task)),
            _ => Attempt::Job(Box::new(task)),
        }
    }

    fn forget_data(&mut self, file: &SharedFile) {
        if let Some(node) = file.downcast_ref::<Node>() {
            self.mapped.forget_file(node);
        }
    }

    fn close(&mut self, id: NodeId) -> Option<(SharedFile, Option<FaultDomain>)> {
        let node = self.nodes.remove(id)?;
        self.mapped.close(id, &node);
        let domain = node.fault_domain();
        Self::drops_slowly(&node).then_some((node as SharedFile, domain))
    }

    fn share(&self, id: NodeId) -> Result<SharedFile, Status> {
        let node = self.nodes.get(id).ok_or(Status::BAD_HANDLE)?;
        Ok(Arc::clone(node) as SharedFile)
    }

    fn lock_key(&self, id: NodeId) -> Result<LockKey, Status> {
        let node = self.nodes.get(id).ok_or(Status::BAD_HANDLE)?;
        Ok(LockKey { fs: node.dev, file: node.ino, generation: node.generation })
    }

    fn local_locks(&self, id: NodeId) -> Result<Box<dyn LocalLocks>, Status> {
        let node = self.nodes.get(id).ok_or(Status::BAD_HANDLE)?;
        if node.fault_domain().is_some() {
            return Err(Status::NOT_SUPPORTED);
        }
        if let Some(gate) = &node.gate {
            gate.wait_for_window();
        }
        self.shared.identities.act_as_itself()?;
        Ok(Box::new(FileLocks::open(node)?))
    }

    fn hand_over(&self, id: NodeId) -> Result<HandedFile, Status> {
        let node = self.nodes.get(id).ok_or(Status::BAD_HANDLE)?;
        if node.kind != FileKind::File || !node.opened || node.fault_domain().is_some() {
            return Err(Status::NOT_SUPPORTED);
        }
        if let Some(gate) = &node.gate {
            // Writers come that pass no gate. A window that was begun is waited for.
            gate.leave_to_others();
            gate.wait_for_window();
        }
        self.shared.identities.act_as_itself()?;
        let flags = rustix::fs::fstatvfs(node.buffered_fd()).map_err(Status::from)?.f_flag;
        let writes = !flags.contains(rustix::fs::StatVfsMountFlags::RDONLY);
        let wish = if writes { rustix::fs::OFlags::RDWR } else { rustix::fs::OFlags::RDONLY };
        Ok(HandedFile { file: sys::reopen(node.buffered_fd(), wish)?, writes })
    }

    fn adopt(&mut self, file: &SharedFile) -> Result<NodeId, Status> {
        let node = Arc::clone(file).downcast::<Node>().map_err(|_| Status::BAD_HANDLE)?;
        self.nodes.insert(node).ok_or(Status::TOO_MANY_OPEN)
    }

    fn another(&self) -> Box<dyn FileSystem> {
        let shared = Arc::clone(&self.shared);
        Box::new(Self::view(shared, self.nodes.root().export, self.loop_keeps_identity))
    }
}

#[cfg(test)]
mod tests {
    use super::super::CopySource;
    use super::*;

    // [STOR-34] [STOR-96]
    #[test]
    fn copy_from_a_file_that_may_hang_is_made_where_that_may() {
        let directory = tempfile::tempdir().unwrap();
        let mut files = open_for_tests(directory.path(), false);
        let file_of = |local| {
            let fd = OwnedFd::from(tempfile::tempfile_in(directory.path()).unwrap());
            let attributes = sys::fstat(fd.as_fd()).unwrap();
            let class = FsClass {
                kernel: false,
                memory: false,
                lockable: false,
                local,
                appends: true,
                nowait_read: AtomicBool::new(true),
                nowait_write: AtomicBool::new(true),
            };
            Arc::new(Node::new(fd, &attributes, Arc::new(class), true))
        };
        let identity = Identity { uid: 0, gid: 0, groups: Arc::new([]) };
        let elsewhere = file_of(false);
        let domain = Some(FaultDomain::of(elsewhere.dev));
        let target = files.adopt(&(file_of(true) as SharedFile)).unwrap();
        for (source, expected) in [(file_of(true), None), (elsewhere, domain)] {
            let source = CopySource(source as SharedFile);
            let op = FsOp::CopyRange { node: target, offset: 0, source, source_offset: 0, len: 1 };
            let Attempt::Job(job) = files.attempt(&identity, op) else { panic!("it may wait") };
            assert_eq!(job.fault_domain(), expected);
        }
    }
}
