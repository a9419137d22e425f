//! File storage below an export: submit and complete, never block.
//!
//! [`Storage`] is what the server drives: exports, open nodes, data read and written at once where that needs no waiting
//! ([`Storage::read_now`], [`Storage::write_now`]), and everything else submitted as an [`FsOp`] that completes now or later. The backends
//! are behind it (`backend`): `posix` (a directory, confined by `openat2`) and `mem` (memory). `kinds` knows which there are; everybody
//! else asks for [`Capabilities`].

mod admission;
mod backend;
mod clock;
mod copy;
mod credentials;
mod exports;
mod fair;
mod file_system;
mod kinds;
mod listing;
mod local_locks;
mod mem;
mod names;
mod nodes;
mod paths;
mod pool;
mod posix;
#[cfg(test)]
mod tests;
mod uring;
pub(crate) mod work;

use std::os::fd::{OwnedFd, RawFd};
use std::sync::Arc;

use dafs_proto::transport::{LocalSegments, MemoryRef, OpToken, Span};
use dafs_proto::wire::{
    AccessMode, AccessPattern, Attributes, FsStatistics, NodeKind, OpenFlags, SeekWhat, SetAttributes,
    Stability, Status, XattrSetMode,
};

pub use admission::{Admission, Kept};
use admission::{admit, admit_open};
pub use backend::Capabilities;
pub use clock::Clock;
pub use copy::CopySource;
pub use credentials::hold_back;
pub(crate) use credentials::may_change_identity;
pub use exports::{Engine, Exports, StorageConfig, StorageError, raise_open_files_limit};
pub use file_system::SharedFile;
pub use kinds::{ExportConfig, ExportKind, MemoryRoot};
pub use listing::Entries;
pub use local_locks::{LocalConflict, LocalLocks};
pub use names::RequestName;
pub(crate) use nodes::Places;
pub(crate) use pool::Wake;
pub(crate) use posix::{FileName, OpenPlace, Place, Root, caches_pages_of_fuse, map_file};

/// An export, by its place in the configuration.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct ExportId(pub u16);

/// Something open in an export: a file, a directory, or a path. Valid from the reply that gave it until
/// [`Storage::close`]; a later node never has the same id.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct NodeId {
    /// The export.
    pub export: ExportId,
    /// Place in the export's table of open nodes.
    pub index: u32,
    /// Tells apart nodes that had the same place.
    pub generation: u32,
}

/// Who acts, after the export's identity mapping.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Identity {
    /// User.
    pub uid: u32,
    /// Group.
    pub gid: u32,
    /// Supplementary groups.
    pub groups: Arc<[u32]>,
}

impl Identity {
    /// The same user, group and supplementary groups: these have no order, and databases keep none.
    pub fn is_same(&self, other: &Self) -> bool {
        let groups = |identity: &Self| {
            let mut groups = identity.groups.to_vec();
            groups.sort_unstable();
            groups.dedup();
            groups
        };
        let ids = |identity: &Self| (identity.uid, identity.gid);
        self == other || ids(self) == ids(other) && groups(self) == groups(other)
    }
}

/// Why data could not be moved at once.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum NowError {
    /// It would have to wait for storage: submit [`FsOp::Read`] or [`FsOp::Write`] instead.
    WouldBlock,
    /// It failed.
    Failed(Status),
}

/// A path below a node; no leading slash; empty for the node itself. Bytes, not text.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct At {
    /// Where the path begins.
    pub node: NodeId,
    /// The path.
    pub path: Vec<u8>,
}

/// An operation on storage. Memory in it belongs to the storage until the operation has completed.
#[derive(Debug)]
pub enum FsOp {
    /// Opens a path without data access ([`FsReply::Node`]).
    Lookup {
        /// What.
        at: At,
        /// A symbolic link at the end is followed.
        follow: bool,
    },
    /// Opens a file or directory ([`FsReply::Node`]).
    Open {
        /// What.
        at: At,
        /// How.
        flags: OpenFlags,
        /// Permission bits of a new file; used as given, without a umask.
        mode: u32,
        /// Has a say when it is known which file it is.
        admission: Option<Arc<dyn Admission>>,
    },
    /// [`FsReply::Attributes`].
    Getattr {
        /// Of what.
        at: At,
        /// A symbolic link at the end is followed.
        follow: bool,
    },
    /// Changes attributes, and returns them ([`FsReply::Attributes`]).
    Setattr {
        /// Of what.
        at: At,
        /// A symbolic link at the end is followed.
        follow: bool,
        /// To what.
        set: SetAttributes,
    },
    /// Reads data ([`FsReply::Count`]); short only at the end of the file.
    Read {
        /// The file.
        node: NodeId,
        /// First byte.
        offset: u64,
        /// Scattered into, in order.
        into: Vec<MemoryRef>,
    },
    /// Writes parts of a window ([`FsReply::Sieved`]), together where nobody's bytes between them can be lost by that. They are in the
    /// page cache then, unless direct I/O can move each.
    Sieve {
        /// The file.
        node: NodeId,
        /// First byte of the window.
        offset: u64,
        /// Bytes of the window, at most 256 KiB.
        len: usize,
        /// Where each part goes, ascending, and what.
        parts: Vec<(u64, MemoryRef)>,
    },
    /// Writes data ([`FsReply::Count`]), as durable as asked for.
    Write {
        /// The file.
        node: NodeId,
        /// First byte.
        offset: u64,
        /// Gathered from, in order.
        from: Vec<MemoryRef>,
        /// When durable.
        stability: Stability,
    },
    /// Writes at the end of the file, atomically ([`FsReply::Appended`]).
    Append {
        /// The file.
        node: NodeId,
        /// Gathered from, in order.
        from: Vec<MemoryRef>,
        /// When durable.
        stability: Stability,
    },
    /// Makes data durable ([`FsReply::Done`]).
    Commit {
        /// The file.
        node: NodeId,
        /// First byte.
        offset: u64,
        /// Bytes; 0 for all that follow.
        len: u64,
        /// Data only, or all.
        stability: Stability,
    },
    /// Sets the size ([`FsReply::Done`]).
    Truncate {
        /// The file.
        node: NodeId,
        /// New size, bytes.
        size: u64,
    },
    /// Reserves space ([`FsReply::Done`]); the file grows to cover the range.
    Allocate {
        /// The file.
        node: NodeId,
        /// First byte.
        offset: u64,
        /// Bytes.
        len: u64,
    },
    /// Gives space back ([`FsReply::Done`]); the size stays.
    Punch {
        /// The file.
        node: NodeId,
        /// First byte.
        offset: u64,
        /// Bytes.
        len: u64,
    },
    /// Copies from another file, or from another place of the same ([`FsReply::Copied`]): a part of what is asked for, at least one byte
    /// where there is one.
    CopyRange {
        /// The file.
        node: NodeId,
        /// First byte.
        offset: u64,
        /// What is read.
        source: CopySource,
        /// First byte of it.
        source_offset: u64,
        /// Bytes; 0 for all that follow.
        len: u64,
    },
    /// The next data or hole ([`FsReply::Offset`]).
    Seek {
        /// The file.
        node: NodeId,
        /// Where to begin.
        offset: u64,
        /// What to look for.
        what: SeekWhat,
    },
    /// Advice ([`FsReply::Done`]).
    Hint {
        /// The file.
        node: NodeId,
        /// First byte.
        offset: u64,
        /// Bytes; 0 for all that follow.
        len: u64,
        /// What is to be expected; none where it is not known, or not likely.
        pattern: Option<AccessPattern>,
    },
    /// Entries after a cookie, without `.` and `..` ([`FsReply::Entries`]). Entries that exist throughout a scan are seen exactly once.
    Readdir {
        /// The directory.
        node: NodeId,
        /// Resume after this; 0 from the beginning.
        cookie: u64,
        /// Bytes of encoded entries (`wire::encode_dir_entry`) at most; at least one entry is returned when it fits alone.
        size_max: usize,
        /// With attributes.
        attributes: bool,
    },
    /// [`FsReply::Attributes`] of the new directory.
    Mkdir {
        /// Its path.
        at: At,
        /// Permission bits.
        mode: u32,
    },
    /// [`FsReply::Attributes`] of the new node.
    Mknod {
        /// Its path.
        at: At,
        /// What it is.
        kind: NodeKind,
        /// Permission bits.
        mode: u32,
        /// Number of a device.
        device: u64,
    },
    /// [`FsReply::Done`].
    Remove {
        /// What.
        at: At,
        /// A directory, else anything but one.
        directory: bool,
    },
    /// [`FsReply::Done`].
    Rename {
        /// Old path.
        from: At,
        /// New path, in the same export.
        to: At,
        /// An existing name may be replaced.
        replace: bool,
    },
    /// Gives each of two names what the other names, in one step.
    Exchange {
        /// The one.
        from: At,
        /// The other, in the same export.
        to: At,
    },
    /// [`FsReply::Attributes`] of the file.
    Link {
        /// An existing file.
        from: At,
        /// Its new name.
        to: At,
        /// An existing name may be replaced.
        replace: bool,
    },
    /// [`FsReply::Attributes`] of the link.
    Symlink {
        /// What it points to: any bytes.
        target: Vec<u8>,
        /// Its path.
        at: At,
    },
    /// [`FsReply::Bytes`].
    Readlink {
        /// The link.
        at: At,
    },
    /// [`FsReply::Done`] where access(2) would succeed with the caller's identity.
    AccessCheck {
        /// Of what.
        at: At,
        /// A symbolic link at the end is followed.
        follow: bool,
        /// To do all of this.
        mode: AccessMode,
    },
    /// [`FsReply::Bytes`]: the value.
    XattrRead {
        /// Of what.
        at: At,
        /// The attribute.
        name: Vec<u8>,
    },
    /// [`FsReply::Done`].
    XattrWrite {
        /// Of what.
        at: At,
        /// The attribute.
        name: Vec<u8>,
        /// Its value.
        value: Vec<u8>,
        /// Made or replaced.
        mode: XattrSetMode,
    },
    /// [`FsReply::Bytes`]: names, each followed by a zero byte.
    XattrList {
        /// Of what.
        at: At,
    },
    /// [`FsReply::Done`].
    XattrRemove {
        /// Of what.
        at: At,
        /// The attribute.
        name: Vec<u8>,
    },
    /// [`FsReply::Statistics`].
    Statfs {
        /// Anything in the file system.
        at: At,
        /// A symbolic link at the end is followed.
        follow: bool,
    },
}

/// The outcome of an [`FsOp`].
#[derive(Debug)]
pub enum FsReply {
    /// Done.
    Done,
    /// A new node, to be closed, and its attributes.
    Node(NodeId, Attributes),
    /// Attributes.
    Attributes(Attributes),
    /// Bytes read or written.
    Count(usize),
    /// Bytes of a window before the first part that is not written, and whether it was written in place of its parts.
    Sieved {
        /// Bytes.
        count: usize,
        /// It was written whole.
        as_window: bool,
    },
    /// Where an append went, and how many bytes.
    Appended(u64, usize),
    /// Bytes copied, and whether the source ended before all that was asked for.
    Copied(u64, bool),
    /// An offset.
    Offset(u64),
    /// Entries.
    Entries(Entries),
    /// Bytes.
    Bytes(Vec<u8>),
    /// Space.
    Statistics(FsStatistics),
}

/// An operation's result.
pub type FsResult = Result<FsReply, Status>;

/// What became of a submitted operation.
#[derive(Debug)]
pub enum Submitted {
    /// It is done.
    Done(FsResult),
    /// It completes later, with its token, from [`Storage::poll`].
    Pending,
}

/// A file for whoever locks it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct LockKey {
    /// Its file system.
    pub fs: u64,
    /// Its number there.
    pub file: u64,
    /// Tells it from others that had the number; 0 where nothing does, or where it does not outlive the server.
    pub generation: u64,
}

/// A descriptor for a client on this host.
#[derive(Debug)]
pub struct HandedFile {
    /// With a position and flags of its own.
    pub file: OwnedFd,
    /// It is open for writing too.
    pub writes: bool,
}

/// All exports and what is open in them. One thread drives it; nothing in it blocks.
pub trait Storage: Send {
    /// The export of this name.
    fn export(&self, name: &str) -> Option<ExportId>;

    /// The root of an export; always open.
    fn root(&self, export: ExportId) -> NodeId;

    /// Reads file data that is at hand into memory; short only at the end of the file.
    fn read_now(&mut self, node: NodeId, offset: u64, into: &[Span<'_>]) -> Result<usize, NowError>;

    /// Reads pieces of a file, where that takes no system call, and one of its own for each therefore costs nothing: the file offset of
    /// each and its memory, by their index; `None` behind the last. Returns how many, from the first on, were read whole; memory of the
    /// others is undefined. `total`: bytes of all that the caller is about to read, so that large amounts are copied in another way.
    fn read_pieces<'a>(
        &mut self,
        node: NodeId,
        total: usize,
        piece: &dyn Fn(usize) -> Option<(u64, Span<'a>)>,
    ) -> usize {
        let _ = (node, total, piece);
        0
    }

    /// Writes file data, unstable, when that needs no waiting.
    fn write_now(&mut self, node: NodeId, offset: u64, from: &[Span<'_>]) -> Result<usize, NowError>;

    /// A window of a file as memory to be sent from, in order and in at most `parts_max` parts, when its data is at hand and
    /// mapping it pays, else nothing; at most `len` bytes, short at the end of the file only. The memory may
    /// fault (`Memory::may_fault`): it is for system calls only.
    fn map(&mut self, node: NodeId, offset: u64, len: usize, parts_max: usize) -> LocalSegments;

    /// Starts an operation on behalf of `identity`. Not blocking.
    fn submit(&mut self, token: OpToken, identity: &Identity, op: FsOp) -> Submitted;

    /// Starts what was submitted as one batch; called once per turn of the loop.
    fn flush(&mut self);

    /// Whether [`Storage::flush`] and [`Storage::poll`] are called again and again, as by a loop that does not sleep: threads are then
    /// woken only as they are needed. It is not so until this says it.
    fn watch(&mut self, watched: bool) {
        let _ = watched;
    }

    /// Frees a part of the memory that was given back; whether there is more, for which to call it soon again.
    fn tidy(&mut self) -> bool {
        false
    }

    /// Whose the operations are that are submitted from now on: those that have to wait for a thread take turns by client.
    fn for_client(&mut self, client: u64) {
        let _ = client;
    }

    /// Which request the next operation that is submitted belongs to. Storage that nobody shares ignores it.
    fn for_request(&mut self, request: RequestName) {
        let _ = request;
    }

    /// How many reads and writes that wait for a disk the next [`Storage::flush`] and [`Storage::poll`] move at most
    /// each; the rest is left to later calls. Operations on names go on. Storage that has no such costs ignores it.
    fn set_turn(&mut self, ops_max: usize) {
        let _ = ops_max;
    }

    /// Collects finished operations.
    fn poll(&mut self, done: &mut Vec<(OpToken, FsResult)>);

    /// Operations submitted and not yet collected.
    fn pending(&self) -> usize;

    /// Closes a node. Operations on it that are in flight finish first.
    fn close(&mut self, node: NodeId);

    /// What a node has open, to be opened through another loop too, or after the node is closed.
    fn share(&self, node: NodeId) -> Result<SharedFile, Status>;

    /// What tells the file of a node from all others while it is open.
    fn lock_key(&self, node: NodeId) -> Result<LockKey, Status>;

    /// Locks of the file of a node that processes of this host see.
    ///
    /// # Errors
    /// [`Status::NOT_SUPPORTED`] in memory, and where asking may wait for other hosts.
    fn local_locks(&self, node: NodeId) -> Result<Box<dyn LocalLocks>, Status>;

    /// A descriptor of the file of a node, for a client on this host: open for reading and writing, or for reading where its file system
    /// is mounted read-only. From then on nobody rewrites a window of the file.
    ///
    /// # Errors
    /// [`Status::NOT_SUPPORTED`] for what is no file, in memory, and where asking may wait for other hosts.
    fn hand_over(&self, _node: NodeId) -> Result<HandedFile, Status> {
        Err(Status::NOT_SUPPORTED)
    }

    /// A node of what was shared in this export. It may do what the shared one might.
    fn adopt(&mut self, export: ExportId, file: &SharedFile) -> Result<NodeId, Status>;

    /// Writes a window in place of its parts, which `change` puts into it once it is read, and returns the bytes of it that are written.
    /// `Ok(None)`: the parts are to be written each by itself. [`NowError::WouldBlock`]: that, or [`FsOp::Sieve`].
    fn sieve_now(
        &mut self,
        _node: NodeId,
        _offset: u64,
        _window: Span<'_>,
        _change: &mut dyn FnMut(),
    ) -> Result<Option<usize>, NowError> {
        Ok(None)
    }

    /// The page cache has nothing of a range of a file. `false` also where that cannot be told at once.
    fn is_absent(&self, _node: NodeId, _offset: u64, _len: u64) -> bool {
        false
    }

    /// A file is open for direct I/O.
    fn is_direct(&self, _node: NodeId) -> bool {
        false
    }

    /// What the loop watches for finished operations (readable, edge-triggered).
    fn event_fds(&self) -> Vec<RawFd>;

    /// Changes when unstable data of this export may have been lost since: by a restart, or a failed write-back. By [`LOSS`] or more where
    /// some was lost for sure.
    fn verifier(&self, export: ExportId) -> u64;
}

/// What the loss of data adds to a verifier.
pub const LOSS: u64 = 1 << 32;

/// Data was lost between two looks at a verifier, and the kernel has told somebody.
#[must_use]
pub fn was_lost(before: u64, now: u64) -> bool {
    now.wrapping_sub(before) >= LOSS
}

/// What holds for an operation, whichever backend carries it out.
struct Traits {
    /// Where it begins.
    node: NodeId,
    second: Option<NodeId>,
    /// It changes something.
    changes: bool,
    /// It is on open data, which was permitted when it was opened.
    on_data: bool,
}

impl FsOp {
    /// The path that it begins with.
    fn path(&self) -> Option<&At> {
        match self {
            Self::Rename { from: at, .. }
            | Self::Exchange { from: at, .. }
            | Self::Link { to: at, .. }
            | Self::Open { at, .. }
            | Self::Setattr { at, .. }
            | Self::Mkdir { at, .. }
            | Self::Mknod { at, .. }
            | Self::Remove { at, .. }
            | Self::Symlink { at, .. }
            | Self::XattrWrite { at, .. }
            | Self::XattrRemove { at, .. }
            | Self::Lookup { at, .. }
            | Self::Getattr { at, .. }
            | Self::Readlink { at }
            | Self::AccessCheck { at, .. }
            | Self::XattrRead { at, .. }
            | Self::XattrList { at }
            | Self::Statfs { at, .. } => Some(at),
            _ => None,
        }
    }

    /// It takes as long as the client likes, and the kernel keeps others from the file meanwhile.
    fn holds_file(&self) -> bool {
        matches!(
            self,
            Self::Truncate { .. }
                | Self::Allocate { .. }
                | Self::Punch { .. }
                | Self::CopyRange { .. }
                | Self::Seek { .. }
                | Self::Append { .. }
        )
    }

    /// It changes a file's data, or its size, and keeps whoever rewrites windows from it itself.
    fn changes_data(&self) -> bool {
        matches!(
            self,
            Self::Write { .. }
                | Self::Append { .. }
                | Self::Truncate { .. }
                | Self::Allocate { .. }
                | Self::Punch { .. }
                | Self::CopyRange { .. }
        )
    }

    fn traits(&self) -> Traits {
        let (node, second, changes, on_data) = match self {
            Self::Rename { from, to, .. } | Self::Exchange { from, to } | Self::Link { from, to, .. } => {
                (from.node, Some(to.node), true, false)
            }
            Self::Open { at, flags, .. } => {
                let changing = OpenFlags::WRITE | OpenFlags::CREATE | OpenFlags::TRUNCATE;
                (at.node, None, flags.intersects(changing), false)
            }
            Self::Setattr { at, .. }
            | Self::Mkdir { at, .. }
            | Self::Mknod { at, .. }
            | Self::Remove { at, .. }
            | Self::Symlink { at, .. }
            | Self::XattrWrite { at, .. }
            | Self::XattrRemove { at, .. } => (at.node, None, true, false),
            Self::Lookup { at, .. }
            | Self::Getattr { at, .. }
            | Self::Readlink { at }
            | Self::AccessCheck { at, .. }
            | Self::XattrRead { at, .. }
            | Self::XattrList { at }
            | Self::Statfs { at, .. } => (at.node, None, false, false),
            Self::Readdir { node, .. } => (*node, None, false, false),
            Self::Write { node, .. }
            | Self::Sieve { node, .. }
            | Self::Append { node, .. }
            | Self::Truncate { node, .. }
            | Self::Allocate { node, .. }
            | Self::Punch { node, .. }
            | Self::CopyRange { node, .. } => (*node, None, true, true),
            Self::Read { node, .. }
            | Self::Commit { node, .. }
            | Self::Seek { node, .. }
            | Self::Hint { node, .. } => (*node, None, false, true),
        };
        Traits { node, second, changes, on_data }
    }
}
