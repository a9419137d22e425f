//! From a client's path to a descriptor, never leaving the export.

use std::os::fd::{AsFd, OwnedFd};
use std::sync::Arc;

use dafs_proto::wire::{OpenFlags, Status};
use rustix::fs::{OFlags, ResolveFlags};

use super::super::FsOp;
use super::super::paths::{check_path, split_last};
use super::class::FsClass;
use super::sys::{self, Errno, FdPath};
use super::{Node, Shared};

/// Where an operation runs, and so what it may do.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(in crate::storage) enum Where {
    /// On the loop, on a file system that does not wait: must not leave it.
    LoopMemory,
    /// On the loop: from the kernel's caches only.
    LoopCached,
    /// On a thread that may wait.
    AnyThread,
}

/// Where the loop may try the operation itself.
pub(super) fn place(class: &FsClass, op: &FsOp) -> Option<Where> {
    if class.memory {
        return Some(Where::LoopMemory);
    }
    let quick = match op {
        FsOp::Lookup { .. } | FsOp::Getattr { .. } | FsOp::Statfs { .. } => true,
        FsOp::Open { flags, .. } => !flags.intersects(OpenFlags::CREATE | OpenFlags::TRUNCATE),
        _ => false,
    };
    (quick && class.local).then_some(Where::LoopCached)
}

/// What a resolution needs to know.
pub(super) struct Scope<'a> {
    pub(super) shared: &'a Arc<Shared>,
    pub(super) place: Where,
}

/// Times that a resolution which a concurrent rename disturbed is begun again.
const DISTURBED_MAX: u32 = 64;

impl Scope<'_> {
    /// Opens `path` (not empty) below `node`.
    pub(super) fn open(&self, node: &Node, path: &[u8], flags: OFlags, mode: u32) -> Result<OwnedFd, Status> {
        check_path(path)?;
        match self.open_beneath(node, path, flags, mode) {
            Err(Errno::XDEV) if self.place == Where::AnyThread => {
                self.open_from_root(node, path, flags, mode)
            }
            result => Ok(result?),
        }
    }

    /// Opens the directory of `path`'s last part, which must be a plain name; answers both.
    pub(super) fn parent<'p>(
        &self,
        node: &'p Node,
        path: &'p [u8],
        directory: bool,
    ) -> Result<(Place<'p>, &'p [u8]), Status> {
        let (parent, last) = split_last(path, directory)?;
        if parent.is_empty() {
            return Ok((Place::Node(node), last));
        }
        let fd = self.open(node, parent, OFlags::PATH | OFlags::DIRECTORY, 0)?;
        Ok((Place::Opened(fd), last))
    }

    fn open_beneath(&self, node: &Node, path: &[u8], flags: OFlags, mode: u32) -> Result<OwnedFd, Errno> {
        let resolve = ResolveFlags::BENEATH
            | ResolveFlags::NO_MAGICLINKS
            | match self.place {
                Where::LoopMemory => ResolveFlags::NO_XDEV,
                Where::LoopCached => ResolveFlags::CACHED,
                Where::AnyThread => ResolveFlags::empty(),
            };
        for _ in 0..DISTURBED_MAX {
            match sys::openat2(node.fd.as_fd(), path, flags, mode, resolve) {
                // A rename elsewhere met a `..` of this path.
                Err(Errno::AGAIN) if self.place == Where::AnyThread => {}
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
        let Some(mut whole) = self.path_from_root(node) else { return Err(Status::CROSS_DEVICE) };
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

    /// The node's path below the root, as the kernel knows it now.
    pub(super) fn path_from_root(&self, node: &Node) -> Option<Vec<u8>> {
        let name_of = |fd: std::os::fd::BorrowedFd<'_>| {
            sys::readlinkat(self.shared.root.fd.as_fd(), FdPath::new(fd).as_c_str()).ok()
        };
        let root = name_of(self.shared.root.fd.as_fd())?;
        let whole = name_of(node.fd.as_fd())?;
        let below = whole.strip_prefix(root.as_slice())?;
        let below = if root == b"/" { below } else { below.strip_prefix(b"/")? };
        (!below.is_empty()).then(|| below.to_vec())
    }
}

/// What a path leads to.
pub(super) enum Place<'a> {
    /// The node itself.
    Node(&'a Node),
    /// Opened for this.
    Opened(OwnedFd),
}

impl AsFd for Place<'_> {
    fn as_fd(&self) -> std::os::fd::BorrowedFd<'_> {
        match self {
            Self::Node(node) => node.fd.as_fd(),
            Self::Opened(fd) => fd.as_fd(),
        }
    }
}
