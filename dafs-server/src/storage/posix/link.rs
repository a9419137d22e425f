//! Further names of files, and names for files that have none yet.

use std::os::fd::AsFd;
use std::sync::atomic::Ordering;

use dafs_proto::wire::{Attributes, FileKind, Status};
use rustix::fs::{self, AtFlags, CWD, OFlags};

use super::super::FsReply;
use super::Node;
use super::data::{sync_all, sync_fd};
use super::resolve::{Resolved, Scope};
use super::sys::{self, Errno, FdPath, retry};

/// Times that a file's path is asked for, as directories on it are renamed, before the file's name counts as not durable.
const PATHS_MAX: usize = 8;

/// How the kernel ends the path of a name that is gone.
const GONE: &[u8] = b" (deleted)";

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
    let source = match from {
        [] => Resolved::Node(node),
        _ => {
            let (directory, own) = scope.parent(node, from, false)?;
            Resolved::Opened(sys::open_named(directory.as_fd(), own)?)
        }
    };
    // What may fail comes first: an error says that nothing has the name.
    let named = node.unnamed && from.is_empty();
    let named_in = named.then(|| scope.lock(&node.named_in).ok_or(Status::AGAIN)).transpose()?;
    let directory = named.then(|| sys::reopen(parent.as_fd(), OFlags::PATH)).transpose()?;
    match give_name(&source, &parent, name) {
        Err(Errno::EXIST) if replace => take_the_place(scope, &source, &parent, name)?,
        linked => linked?,
    }
    if let (Some(mut named_in), Some(directory)) = (named_in, directory) {
        // Its first full commit makes the name durable. A further name is an ordinary link.
        named_in.get_or_insert(directory);
        node.name_unsynced.store(true, Ordering::Release);
    }
    Ok(FsReply::Attributes(sys::fstat(source.as_fd())?))
}

fn give_name(source: &Resolved<'_>, parent: &Resolved<'_>, name: &[u8]) -> Result<(), Errno> {
    let source = FdPath::new(source.as_fd());
    retry(|| fs::linkat(CWD, source.as_c_str(), parent, name, AtFlags::SYMLINK_FOLLOW))
}

/// The kernel replaces a name only by a rename: the file has another name for a moment. A server that ends in this moment leaves it.
fn take_the_place(
    scope: &Scope<'_>,
    source: &Resolved<'_>,
    parent: &Resolved<'_>,
    name: &[u8],
) -> Result<(), Status> {
    // A file without a name that has had one for a moment cannot get another: it gets none in vain.
    if let Ok(there) = sys::statx(parent.as_fd(), name) {
        if there.kind == FileKind::Directory {
            return Err(Status::IS_DIRECTORY);
        }
        let directory = sys::fstat(parent.as_fd())?;
        // Neither the name that goes nor the one of the moment could be taken away.
        let is_sticky = directory.mode & 0o1000 != 0;
        let may_remove = |owner| scope.shared.identities.may_remove_of(&[owner, directory.uid]);
        if is_sticky && !(may_remove(there.uid) && may_remove(sys::fstat(source.as_fd())?.uid)) {
            return Err(Status::PERMISSION);
        }
    }
    let chance = getrandom::u64().map_err(|_| Status::IO)?;
    let other = format!("{PREFIX}{chance:016x}");
    give_name(source, parent, other.as_bytes())?;
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
    /// Makes a file's name durable, where the file was opened to be made or had none: its directory is synced. A name gone meanwhile has
    /// nothing to sync.
    pub(super) fn sync_name(&self, scope: &Scope<'_>) -> Result<(), Status> {
        if !self.name_unsynced.load(Ordering::Acquire) {
            return Ok(());
        }
        // Whoever comes meanwhile waits: this may fail.
        let mut named_in = scope.lock(&self.named_in).ok_or(Status::AGAIN)?;
        if !self.name_unsynced.load(Ordering::Acquire) {
            return Ok(());
        }
        let is_there = match &*named_in {
            Some(directory) => {
                let fd = sys::reopen(directory.as_fd(), OFlags::RDONLY | OFlags::DIRECTORY)?;
                sync_fd(scope, fd.as_fd(), false)?;
                true
            }
            None => self.sync_directory(scope)?,
        };
        if is_there {
            *named_in = None;
            self.name_unsynced.store(false, Ordering::Release);
        }
        Ok(())
    }

    /// Syncs the directory that it is in now; whether that is in the export.
    fn sync_directory(&self, scope: &Scope<'_>) -> Result<bool, Status> {
        let mut before = None;
        for _ in 0..PATHS_MAX {
            let path = match scope.path_from_root(self) {
                Ok(path) => path,
                // The kernel tells no path that is so long.
                Err(Errno::NAMETOOLONG) => return sync_all(scope, self.buffered_fd()).map(|()| true),
                Err(errno) => return Err(errno.into()),
            };
            let Some(path) = path else { return Ok(false) };
            if self.sync_directory_at(scope, &path)? {
                return Ok(true);
            }
            // It leads elsewhere, and not because something on it was just renamed.
            if before.as_ref() == Some(&path) {
                return match path.ends_with(GONE) {
                    true => Ok(true),
                    false => sync_all(scope, self.buffered_fd()).map(|()| true),
                };
            }
            before = Some(path);
        }
        Err(Status::AGAIN)
    }

    /// Syncs the directory of a path, if it has the file by the name at the end of that; whether it has.
    fn sync_directory_at(&self, scope: &Scope<'_>, path: &[u8]) -> Result<bool, Status> {
        let slash = path.iter().rposition(|b| *b == b'/');
        let (directory, name) = slash.map_or((&b"."[..], path), |at| (&path[..at], &path[at + 1..]));
        let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::NOFOLLOW;
        #[cfg(test)]
        super::steps::before(super::steps::Call::OpenDirectory)?;
        let directory = match scope.open(&scope.shared.root, directory, flags, 0) {
            Err(Status::NOT_FOUND | Status::NOT_DIRECTORY | Status::LOOP | Status::CROSS_DEVICE) => {
                return Ok(false);
            }
            opened => opened?,
        };
        let is_it = |there: Attributes| (there.fs_id, there.file_id) == (self.dev, self.ino);
        if !sys::statx(directory.as_fd(), name).is_ok_and(is_it) {
            return Ok(false);
        }
        sync_fd(scope, directory.as_fd(), false).map(|()| true)
    }
}
