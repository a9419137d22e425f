//! Where a file is, in words that another server on the same file system understands: a path below the export's root, and what tells the
//! file there from others. For threads that may wait.

use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::path::Path;
use std::sync::Arc;

use dafs_proto::wire::{Attributes, Status};
use rustix::fs::{AtFlags, Mode, OFlags, ResolveFlags};

use super::super::SharedFile;
use super::super::paths::split_last;
use super::Node;
use super::class::is_local;
use super::sys::{self, FdPath, retry};

/// What tells a file from others of its file system, on every host: its number and its generation.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub(crate) struct FileName {
    pub(crate) file: u64,
    pub(crate) generation: u64,
}

/// A name in a directory.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Place {
    /// The directory's path below the export's root; empty for the root.
    pub(crate) parent_path: Vec<u8>,
    pub(crate) parent: FileName,
    pub(crate) name: Vec<u8>,
    /// What has that name.
    pub(crate) found: Option<FileName>,
}

impl Place {
    /// The path of the name below the root.
    fn path(&self) -> Vec<u8> {
        let mut path = self.parent_path.clone();
        if !path.is_empty() {
            path.push(b'/');
        }
        path.extend_from_slice(&self.name);
        path
    }
}

/// A file that is open somewhere below the root.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct OpenPlace {
    /// Its path below the export's root; empty where it has none.
    pub(crate) path: Vec<u8>,
    pub(crate) file: FileName,
    /// Bytes.
    pub(crate) size: u64,
}

/// The root of an export, to find files below it.
#[derive(Clone)]
pub(crate) struct Root(Arc<OwnedFd>);

impl Root {
    /// The exported directory of this path. Blocks.
    pub(crate) fn open(path: &Path) -> Result<Self, Status> {
        let flags = OFlags::PATH | OFlags::DIRECTORY | OFlags::CLOEXEC;
        let fd = rustix::fs::open(path, flags, Mode::empty()).map_err(Status::from)?;
        Ok(Self(Arc::new(fd)))
    }

    fn open_below(&self, path: &[u8], flags: OFlags) -> Result<OwnedFd, Status> {
        let path = if path.is_empty() { &b"."[..] } else { path };
        Ok(open_beneath(self.0.as_fd(), path, flags)?)
    }

    /// What a path below the root leads to now, without following a link at its end.
    pub(crate) fn find(&self, path: &[u8]) -> Result<Option<FileName>, Status> {
        match self.open_below(path, OFlags::PATH | OFlags::NOFOLLOW) {
            Ok(fd) => Ok(Some(name_of(fd.as_fd())?)),
            Err(Status::NOT_FOUND | Status::NOT_DIRECTORY) => Ok(None),
            Err(status) => Err(status),
        }
    }

    /// The attributes of what a place names.
    pub(crate) fn attributes(&self, place: &Place) -> Result<Attributes, Status> {
        let named = self.open_below(&place.path(), OFlags::PATH | OFlags::NOFOLLOW)?;
        Ok(sys::fstat(named.as_fd())?)
    }

    /// Takes the name of a place away from what is no directory.
    pub(crate) fn remove_name(&self, place: &Place) -> Result<(), Status> {
        let parent = self.open_below(&place.parent_path, OFlags::PATH | OFlags::DIRECTORY)?;
        Ok(retry(|| rustix::fs::unlinkat(&parent, &place.name[..], AtFlags::empty()))?)
    }

    /// What has the name of a place now; `None` where its directory is not there any more.
    pub(crate) fn look_again(&self, place: &Place) -> Result<Option<Option<FileName>>, Status> {
        if self.find(&place.parent_path)? != Some(place.parent) {
            return Ok(None);
        }
        self.find(&place.path()).map(Some)
    }

    /// A file of this path, open for reading and writing, if it is that file still.
    pub(crate) fn reopen(&self, place: &OpenPlace) -> Result<Option<std::fs::File>, Status> {
        if self.find(&place.path)? != Some(place.file) {
            return Ok(None);
        }
        let file = self.open_below(&place.path, OFlags::RDWR | OFlags::NOFOLLOW | OFlags::NONBLOCK)?;
        Ok((name_of(file.as_fd())? == place.file).then(|| file.into()))
    }

    /// Other hosts keep its files.
    pub(crate) fn is_remote(&self) -> Result<bool, Status> {
        let (magic, _) = sys::statfs(self.0.as_fd())?;
        Ok(!is_local(magic))
    }

    /// Its file system is still there: a client of other hosts may have died, or have been shut out by them.
    pub(crate) fn is_there(&self) -> bool {
        let opened = open_beneath(self.0.as_fd(), b".", OFlags::DIRECTORY);
        !matches!(opened, Err(sys::Errno::NOTCONN | sys::Errno::SHUTDOWN | sys::Errno::CONNABORTED))
    }

    /// The directory itself.
    pub(crate) fn name(&self) -> Result<FileName, Status> {
        name_of(self.0.as_fd())
    }

    fn path_of(&self, fd: BorrowedFd<'_>) -> Option<Vec<u8>> {
        let name_of = |fd: BorrowedFd<'_>| sys::readlinkat(self.0.as_fd(), FdPath::new(fd).as_c_str()).ok();
        let (root, whole) = (name_of(self.0.as_fd())?, name_of(fd)?);
        if root == whole {
            return Some(Vec::new());
        }
        let below = whole.strip_prefix(root.as_slice())?;
        let below = if root == b"/" { below } else { below.strip_prefix(b"/")? };
        Some(below.to_vec())
    }

    /// The place that a path below something open names: an operation that makes, removes or moves the name acts there.
    pub(crate) fn place(&self, node: &SharedFile, path: &[u8], directory: bool) -> Result<Place, Status> {
        let node = node.downcast_ref::<Node>().ok_or(Status::BAD_HANDLE)?;
        let (parent, name) = split_last(path, directory)?;
        let opened;
        let parent = match parent.is_empty() {
            true => node.fd.as_fd(),
            false => {
                opened = self.open_from(node, parent, OFlags::PATH | OFlags::DIRECTORY)?;
                opened.as_fd()
            }
        };
        let found = match open_beneath(parent, name, OFlags::PATH | OFlags::NOFOLLOW) {
            Ok(fd) => Some(name_of(fd.as_fd())?),
            Err(sys::Errno::NOENT) => None,
            Err(errno) => return Err(errno.into()),
        };
        let parent_path = self.path_of(parent).ok_or(Status::NOT_FOUND)?;
        Ok(Place { parent_path, parent: name_of(parent)?, name: name.to_vec(), found })
    }

    /// The file that is open, or that a path below it names.
    pub(crate) fn open_place(&self, node: &SharedFile, path: &[u8]) -> Result<OpenPlace, Status> {
        let node = node.downcast_ref::<Node>().ok_or(Status::BAD_HANDLE)?;
        let opened;
        let fd = match path.is_empty() {
            true => node.fd.as_fd(),
            false => {
                opened = self.open_from(node, path, OFlags::PATH | OFlags::NOFOLLOW)?;
                opened.as_fd()
            }
        };
        let attributes = sys::fstat(fd)?;
        let file = FileName { file: attributes.file_id, generation: attributes.generation };
        Ok(OpenPlace { path: self.path_of(fd).unwrap_or_default(), file, size: attributes.size })
    }

    /// Links may lead out of the node, as long as they stay below the root.
    fn open_from(&self, node: &Node, path: &[u8], flags: OFlags) -> Result<OwnedFd, Status> {
        match open_beneath(node.fd.as_fd(), path, flags) {
            Err(sys::Errno::XDEV) => {
                let mut whole = self.path_of(node.fd.as_fd()).ok_or(Status::NOT_FOUND)?;
                whole.push(b'/');
                whole.extend_from_slice(path);
                self.open_below(&whole, flags)
            }
            result => Ok(result?),
        }
    }
}

/// The kernel keeps pages of this file, which was just read, though it is on FUSE: it does not hear of changes by other hosts. Kernels
/// before Linux 6.5 do not tell.
pub(crate) fn caches_pages_of_fuse(file: &std::fs::File) -> bool {
    const FUSE_MAGIC: i64 = 0x6573_5546;
    let is_fuse = sys::statfs(file.as_fd()).is_ok_and(|(magic, _)| magic == FUSE_MAGIC);
    is_fuse && sys::cached_pages(file.as_fd(), 0, 0).is_ok_and(|pages| pages > 0)
}

fn open_beneath(from: BorrowedFd<'_>, path: &[u8], flags: OFlags) -> Result<OwnedFd, sys::Errno> {
    sys::openat2(from, path, flags | OFlags::CLOEXEC, 0, ResolveFlags::BENEATH | ResolveFlags::NO_MAGICLINKS)
}

fn name_of(fd: BorrowedFd<'_>) -> Result<FileName, Status> {
    let attributes = sys::fstat(fd)?;
    Ok(FileName { file: attributes.file_id, generation: attributes.generation })
}
