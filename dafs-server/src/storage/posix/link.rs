//! Further names of files, and names for files that have none yet.

use std::os::fd::{AsFd, OwnedFd};

use dafs_proto::wire::{FileKind, Status};
use rustix::fs::{self, AtFlags, CWD, OFlags};

use super::super::FsReply;
use super::super::pool::lock;
use super::Node;
use super::resolve::{Place, Scope};
use super::sys::{self, Errno, FdPath, retry};

/// How a name begins that a file has for the moment in which it takes the place of another.
const PREFIX: &str = ".dafs-link-";

/// Gives what is at `from` (empty: the node itself) the name `to` below `target`. With `replace` whatever has that name keeps it until the
/// moment when the file gets it.
pub(super) fn link(
    scope: &Scope<'_>,
    node: &Node,
    from: &[u8],
    target: &Node,
    to: &[u8],
    replace: bool,
) -> Result<FsReply, Status> {
    let (parent, name) = scope.parent(target, to, false)?;
    let source = Source::find(scope, node, from)?;
    match source.link(&parent, name) {
        Err(Errno::EXIST) if replace => take_the_place(&source, &parent, name)?,
        linked => linked?,
    }
    if node.unnamed && from.is_empty() {
        // Its first full commit makes the name durable.
        *lock(&node.named_in) = Some(sys::reopen(parent.as_fd(), OFlags::PATH)?);
        node.name_unsynced.store(true, std::sync::atomic::Ordering::Release);
    }
    Ok(FsReply::Attributes(sys::statx(parent.as_fd(), name)?))
}

/// What gets another name.
enum Source<'a> {
    Node(&'a Node),
    Named(Place<'a>, &'a [u8]),
}

impl<'a> Source<'a> {
    fn find(scope: &Scope<'_>, node: &'a Node, from: &'a [u8]) -> Result<Self, Status> {
        match from {
            [] => Ok(Self::Node(node)),
            _ => scope.parent(node, from, false).map(|(parent, name)| Self::Named(parent, name)),
        }
    }

    fn link(&self, parent: &Place<'_>, name: &[u8]) -> Result<(), Errno> {
        retry(|| match self {
            Self::Node(node) => {
                let source = FdPath::new(node.buffered_fd());
                fs::linkat(CWD, source.as_c_str(), parent, name, AtFlags::SYMLINK_FOLLOW)
            }
            Self::Named(directory, own) => fs::linkat(directory, *own, parent, name, AtFlags::empty()),
        })
    }
}

/// The kernel replaces a name only by a rename: the file has another name for a moment. A server that ends in this moment leaves it.
fn take_the_place(source: &Source<'_>, parent: &Place<'_>, name: &[u8]) -> Result<(), Status> {
    // A file without a name that has had one for a moment cannot get another: it gets none in vain.
    if sys::statx(parent.as_fd(), name).is_ok_and(|there| there.kind == FileKind::Directory) {
        return Err(Status::IS_DIRECTORY);
    }
    let chance = getrandom::u64().map_err(|_| Status::IO)?;
    let other = format!("{PREFIX}{chance:016x}");
    source.link(parent, other.as_bytes())?;
    let renamed = retry(|| fs::renameat(parent, other.as_str(), parent, name));
    // Where both were names of one file already, the rename has done nothing.
    let removed = retry(|| fs::unlinkat(parent, other.as_str(), AtFlags::empty()));
    renamed?;
    match removed {
        Ok(()) | Err(Errno::NOENT) => Ok(()),
        Err(errno) => Err(errno.into()),
    }
}

impl Node {
    /// The directory in which a file without a name got one, until that is durable.
    pub(super) fn take_named_in(&self) -> Option<OwnedFd> {
        lock(&self.named_in).take()
    }
}
