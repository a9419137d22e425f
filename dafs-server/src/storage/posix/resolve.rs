//! From a client's path to a descriptor, never leaving the export.

use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::{Arc, Mutex, MutexGuard};

use dafs_proto::transport::MemoryRef;
use dafs_proto::wire::{OpenFlags, Status};
use rustix::fs::{OFlags, ResolveFlags};

use super::super::fair;
use super::super::paths::{check_path, split_last};
use super::super::pool::{lock, try_lock};
use super::super::{At, FsOp, work};
use super::class::FsClass;
use super::sys::{self, Errno, FdPath};
use super::{ExportState, Node};

/// Where an operation runs, and so what it may do.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(in crate::storage) enum Where {
    /// On the loop, on a file system that does not wait: must not leave it, by a mount or a link.
    LoopMemory,
    /// On the loop: from the kernel's caches only, and without leaving the file system.
    LoopCached,
    /// On a thread that may wait, without leaving the file system.
    OneMount,
    /// On a thread that may hang: beyond a mount point.
    AnyMount,
}

impl Where {
    pub(super) fn on_thread(self) -> bool {
        matches!(self, Self::OneMount | Self::AnyMount)
    }
}

/// Parts of a path that the loop has the kernel walk along.
const LOOP_PARTS_MAX: usize = 64;
/// Bytes that the loop moves in one operation of storage, or frees.
pub(super) const LOOP_SIZE_MAX: usize = 1 << 20;
/// Bytes that are freed in the time of a step: a page or so.
const FREED_IN_A_STEP: u64 = 4096;

/// Where the loop may try the operation itself: where that costs no more than a few looks at the kernel's memory. `busy`: a thread works
/// for long on the file, or on one that it may turn out to be, which keeps others waiting that change it.
pub(super) fn place(class: &FsClass, op: &FsOp, busy: bool) -> Option<Where> {
    let parts = |at: &At| at.path.iter().filter(|byte| **byte == b'/').take(LOOP_PARTS_MAX).count();
    let short = |at: &At| parts(at) < LOOP_PARTS_MAX;
    let little = |memory: &[MemoryRef]| memory.iter().map(MemoryRef::len).sum::<usize>() <= LOOP_SIZE_MAX;
    let looks = match op {
        FsOp::Lookup { at, .. } | FsOp::Getattr { at, .. } | FsOp::Statfs { at, .. } => short(at),
        FsOp::Open { at, flags, .. } => {
            !flags.intersects(OpenFlags::CREATE | OpenFlags::TRUNCATE | OpenFlags::UNNAMED) && short(at)
        }
        _ => false,
    };
    if !class.memory {
        return (looks && class.local).then_some(Where::LoopCached);
    }
    let quick = looks
        || match op {
            FsOp::AccessCheck { at, .. } | FsOp::Readlink { at } => short(at),
            // What it makes is not cut; what is there turns out to be so.
            FsOp::Open { at, flags, .. } => {
                (flags.contains(OpenFlags::CREATE) || !flags.contains(OpenFlags::TRUNCATE)) && short(at)
            }
            FsOp::Setattr { at, .. }
            | FsOp::Mkdir { at, .. }
            | FsOp::Mknod { at, .. }
            | FsOp::Symlink { at, .. } => !busy && short(at),
            // As far as they free little: [`Scope::check_frees_little`].
            FsOp::Remove { at, .. } => !busy && short(at),
            FsOp::Link { from, to, .. } | FsOp::Rename { from, to, .. } | FsOp::Exchange { from, to } => {
                !busy && short(from) && short(to)
            }
            FsOp::Read { into: memory, .. } => !busy && little(memory),
            FsOp::Write { from: memory, .. } | FsOp::Append { from: memory, .. } => !busy && little(memory),
            FsOp::Commit { .. } => !busy,
            // What frees, makes or looks for as many pages as a client likes, or lists.
            _ => false,
        };
    quick.then_some(Where::LoopMemory)
}

/// What a resolution needs to know.
pub(super) struct Scope<'a> {
    pub(super) shared: &'a Arc<ExportState>,
    pub(super) place: Where,
}

/// Times that a resolution which a concurrent rename disturbed is begun again.
const DISTURBED_MAX: u32 = 64;

impl Scope<'_> {
    /// Opens `path` (not empty) below `node`.
    pub(super) fn open(&self, node: &Node, path: &[u8], flags: OFlags, mode: u32) -> Result<OwnedFd, Status> {
        check_path(path)?;
        let opened = match self.open_beneath(node, path, flags, mode) {
            Err(Errno::XDEV) if self.place == Where::AnyMount => {
                self.open_from_root(node, path, flags, mode)?
            }
            result => result?,
        };
        if self.place == Where::AnyMount {
            self.check_served(&opened)?;
        }
        Ok(opened)
    }

    /// Beyond a mount point there may be what is not served.
    fn check_served(&self, fd: &OwnedFd) -> Result<(), Status> {
        let dev = sys::fstat(fd.as_fd())?.fs_id;
        if self.shared.classes.of(fd.as_fd(), dev).kernel { Err(Status::NOT_SUPPORTED) } else { Ok(()) }
    }

    /// The mount point that a path below `node` leads to first, or the place where it leaves the export.
    pub(super) fn mount_point(&self, node: &Node, path: &[u8]) -> fair::FaultDomain {
        let mut last = (node.dev, node.ino, &path[..0]);
        for (end, _) in path.iter().enumerate().filter(|(_, byte)| **byte == b'/').take(LOOP_PARTS_MAX) {
            let named = self.open_beneath(node, &path[..end], OFlags::PATH, 0);
            let Ok(found) = named.and_then(|fd| sys::fstat(fd.as_fd())) else { break };
            last = (found.fs_id, found.file_id, &path[end + 1..]);
        }
        let (dev, ino, rest) = last;
        let name = rest.split(|byte| *byte == b'/').find(|part| !part.is_empty()).unwrap_or_default();
        fair::FaultDomain::of((dev, ino, name))
    }

    /// Locks; `None` where that would keep the loop waiting for a thread.
    pub(super) fn lock<'m, T>(&self, mutex: &'m Mutex<T>) -> Option<MutexGuard<'m, T>> {
        if self.place.on_thread() { Some(lock(mutex)) } else { try_lock(mutex) }
    }

    /// Opens the directory of `path`'s last part, which must be a plain name; returns both.
    pub(super) fn parent<'p>(
        &self,
        node: &'p Node,
        path: &'p [u8],
        directory: bool,
    ) -> Result<(Resolved<'p>, &'p [u8]), Status> {
        let (parent, last) = split_last(path, directory)?;
        if parent.is_empty() {
            return Ok((Resolved::Node(node), last));
        }
        let fd = self.open(node, parent, OFlags::PATH | OFlags::DIRECTORY, 0)?;
        Ok((Resolved::Opened(fd), last))
    }

    /// Taking `name` away frees no more than the loop may: else, or where that cannot be told, a thread does it.
    pub(super) fn check_frees_little(&self, parent: BorrowedFd<'_>, name: &[u8]) -> Result<(), Status> {
        if self.place.on_thread() {
            return Ok(());
        }
        let resolve = ResolveFlags::BENEATH | ResolveFlags::NO_XDEV | ResolveFlags::NO_SYMLINKS;
        let found = match sys::openat2(parent, name, OFlags::PATH | OFlags::NOFOLLOW, 0, resolve) {
            Ok(found) => found,
            // There is nothing, or it may not be reached: whoever takes it away is told.
            Err(Errno::NOENT | Errno::ACCESS) => return Ok(()),
            Err(_) => return Err(Status::AGAIN),
        };
        let allocated = sys::fstat(found.as_fd())?.allocated;
        if allocated > LOOP_SIZE_MAX as u64 {
            return Err(Status::AGAIN);
        }
        work::add(usize::try_from(allocated / FREED_IN_A_STEP).unwrap_or(usize::MAX));
        Ok(())
    }

    fn open_beneath(&self, node: &Node, path: &[u8], flags: OFlags, mode: u32) -> Result<OwnedFd, Errno> {
        let resolve = ResolveFlags::BENEATH
            | ResolveFlags::NO_MAGICLINKS
            | match self.place {
                Where::LoopMemory => ResolveFlags::NO_XDEV | ResolveFlags::NO_SYMLINKS,
                Where::LoopCached => ResolveFlags::CACHED | ResolveFlags::NO_XDEV | ResolveFlags::NO_SYMLINKS,
                Where::OneMount => ResolveFlags::NO_XDEV,
                Where::AnyMount => ResolveFlags::empty(),
            };
        for _ in 0..DISTURBED_MAX {
            match sys::openat2(node.fd.as_fd(), path, flags, mode, resolve) {
                // A rename elsewhere met a `..` of this path.
                Err(Errno::AGAIN) if self.place.on_thread() => {}
                result => return result,
            }
        }
        Err(Errno::AGAIN)
    }

    /// A link or `..` that leaves the node it begins at may still stay in the export: resolved again from the export's
    /// root, through the node's present path.
    fn open_from_root(&self, node: &Node, path: &[u8], flags: OFlags, mode: u32) -> Result<OwnedFd, Status> {
        let root = &self.shared.root;
        if node.ino == root.ino && node.dev == root.dev {
            return Err(Status::CROSS_DEVICE);
        }
        // Nor can one be resolved that is too long to be told.
        let Ok(Some(mut whole)) = self.path_from_root(node) else { return Err(Status::CROSS_DEVICE) };
        // The node's path is only a hint that may be outdated: what it leads to must be the node.
        let there = self.open_beneath(root, &whole, OFlags::PATH | OFlags::NOFOLLOW, 0)?;
        let attributes = sys::fstat(there.as_fd())?;
        if (attributes.fs_id, attributes.file_id) != (node.dev, node.ino) {
            return Err(Status::CROSS_DEVICE);
        }
        whole.push(b'/');
        whole.extend_from_slice(path);
        Ok(self.open_beneath(root, &whole, flags, mode)?)
    }

    /// The node's path below the root, as the kernel knows it now; `None` where it is not there.
    pub(super) fn path_from_root(&self, node: &Node) -> Result<Option<Vec<u8>>, Errno> {
        let name_of =
            |fd: BorrowedFd<'_>| sys::readlinkat(self.shared.root.fd.as_fd(), FdPath::new(fd).as_c_str());
        let root = name_of(self.shared.root.fd.as_fd())?;
        let whole = name_of(node.fd.as_fd())?;
        let below = whole.strip_prefix(root.as_slice());
        let below = if root == b"/" { below } else { below.and_then(|below| below.strip_prefix(b"/")) };
        Ok(below.filter(|below| !below.is_empty()).map(<[u8]>::to_vec))
    }
}

/// What a path leads to.
pub(super) enum Resolved<'a> {
    /// The node itself.
    Node(&'a Node),
    /// Opened for this.
    Opened(OwnedFd),
}

impl AsFd for Resolved<'_> {
    fn as_fd(&self) -> BorrowedFd<'_> {
        match self {
            Self::Node(node) => node.fd.as_fd(),
            Self::Opened(fd) => fd.as_fd(),
        }
    }
}
