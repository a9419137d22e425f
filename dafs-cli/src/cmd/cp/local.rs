//! Files of this machine. Nothing here follows a symbolic link at the end of a path in a destination tree, and
//! attributes are set through open files: names could change meanwhile.

use std::fs::{self, File, OpenOptions};
use std::io;
use std::os::unix::fs::{MetadataExt, OpenOptionsExt, PermissionsExt};
use std::path::Path;

use dafs_client::{FileKind, Timestamp};
use rustix::fs::{
    AtFlags, CWD, FileType, OFlags, SeekFrom, Timespec, Timestamps, fcntl_getfl, fcntl_setfl, futimens, seek,
    utimensat,
};
use rustix::io::Errno;

use super::place::{Cause, KeepOwner, Meta, Owner};

pub(super) fn metadata(path: &Path, follow: bool) -> Result<Meta, Cause> {
    let metadata = if follow { fs::metadata(path) } else { fs::symlink_metadata(path) };
    Ok(meta(&metadata?))
}

pub(super) fn meta(metadata: &fs::Metadata) -> Meta {
    let kind = match FileType::from_raw_mode(metadata.mode()) {
        FileType::Directory => FileKind::Directory,
        FileType::Symlink => FileKind::Symlink,
        FileType::BlockDevice => FileKind::BlockDevice,
        FileType::CharacterDevice => FileKind::CharDevice,
        FileType::Fifo => FileKind::Fifo,
        FileType::Socket => FileKind::Socket,
        _ => FileKind::File,
    };
    Meta {
        kind,
        mode: metadata.mode() & 0o7777,
        uid: metadata.uid(),
        gid: metadata.gid(),
        size: metadata.size(),
        allocated: metadata.blocks() * 512,
        links: metadata.nlink(),
        id: (metadata.dev(), metadata.ino()),
        atime: timestamp(metadata.atime(), metadata.atime_nsec()),
        mtime: timestamp(metadata.mtime(), metadata.mtime_nsec()),
        ctime: timestamp(metadata.ctime(), metadata.ctime_nsec()),
        inherits_group: false,
    }
}

/// Opens a file for reading. Never waits for the other end of a FIFO that has taken its place.
pub(super) fn open(path: &Path, follow: bool) -> io::Result<File> {
    let flags = libc::O_NONBLOCK | if follow { 0 } else { libc::O_NOFOLLOW };
    OpenOptions::new().read(true).custom_flags(flags).open(path)
}

/// Opens a file for writing, made where there is none. Until its attributes are set only the user may use one that is made.
pub(super) fn create(path: &Path, follow: bool) -> io::Result<File> {
    let flags = libc::O_NONBLOCK | if follow { 0 } else { libc::O_NOFOLLOW };
    let open = |flags| {
        OpenOptions::new().write(true).create(true).truncate(false).mode(0o600).custom_flags(flags).open(path)
    };
    match open(flags) {
        // A FIFO that the user named: somebody will read it.
        Err(error) if follow && error.raw_os_error() == Some(libc::ENXIO) => open(0),
        result => result,
    }
}

/// Makes a file that is not there yet, which until its attributes are set only the user may use.
pub(super) fn create_new(path: &Path) -> io::Result<File> {
    OpenOptions::new().write(true).create_new(true).mode(0o600).custom_flags(libc::O_NOFOLLOW).open(path)
}

/// From now on writes wait until there is room.
pub(super) fn set_blocking(file: &File) -> io::Result<()> {
    let flags = fcntl_getfl(file)?;
    Ok(fcntl_setfl(file, flags - OFlags::NONBLOCK)?)
}

/// Sets the attributes of a directory or symbolic link.
pub(super) fn set_attributes(path: &Path, meta: &Meta, keep_owner: &KeepOwner) -> Result<(), Cause> {
    if meta.kind == FileKind::Symlink {
        if keep_owner.is_set() {
            let changed = std::os::unix::fs::lchown(path, Some(meta.uid), Some(meta.gid));
            keep_owner.note(is_given(changed)?);
        }
        utimensat(CWD, path, &times(meta), AtFlags::SYMLINK_NOFOLLOW).map_err(io::Error::from)?;
        return Ok(());
    }
    let flags = libc::O_NOFOLLOW | libc::O_DIRECTORY;
    let dir = OpenOptions::new().read(true).custom_flags(flags).open(path)?;
    Ok(set_file_attributes(&dir, meta, keep_owner, None)?)
}

/// Sets the attributes of an open file. The owner first: a change of it takes set-user-id bits away. `owner` is whom it gets, where that
/// is allowed, when owners are not kept.
pub(super) fn set_file_attributes(
    file: &File,
    meta: &Meta,
    keep_owner: &KeepOwner,
    owner: Option<Owner>,
) -> io::Result<()> {
    let give = || is_given(std::os::unix::fs::fchown(file, Some(meta.uid), Some(meta.gid)));
    let is_kept = keep_owner.is_set() && keep_owner.note(give()?);
    if let Some((uid, gid)) = owner
        && !keep_owner.is_set()
    {
        // Only root can, and all others have made a file of their own.
        let _ = std::os::unix::fs::fchown(file, Some(uid), Some(gid));
    }
    file.set_permissions(fs::Permissions::from_mode(meta.mode_of_copy(is_kept)))?;
    Ok(futimens(file, &times(meta))?)
}

/// Whether a file could be given to its owner. Some file systems know no owners, and some users none but a few.
fn is_given(changed: io::Result<()>) -> io::Result<bool> {
    match changed {
        Err(error) if error.raw_os_error().is_some_and(refuses_owner) => Ok(false),
        changed => changed.map(|()| true),
    }
}

fn refuses_owner(errno: i32) -> bool {
    matches!(errno, libc::EPERM | libc::EINVAL | libc::EOPNOTSUPP | libc::ENOSYS)
}

/// Where data begins at or after `offset`, and where it ends; `None` when none follows. Where the file system cannot tell, all is data.
pub(super) fn data_range(file: &File, offset: u64, size: u64) -> io::Result<Option<(u64, u64)>> {
    if i64::try_from(offset).is_err() {
        return Ok(None);
    }
    let start = match seek(file, SeekFrom::Data(offset)) {
        Ok(start) => start,
        Err(Errno::NXIO) => return Ok(None),
        Err(Errno::INVAL) => return Ok((offset < size).then_some((offset, size))),
        Err(error) => return Err(error.into()),
    };
    Ok(Some((start, seek(file, SeekFrom::Hole(start)).unwrap_or(size))))
}

fn timestamp(seconds: i64, nanoseconds: i64) -> Timestamp {
    Timestamp { seconds, nanoseconds: u32::try_from(nanoseconds).unwrap_or(0) }
}

fn times(meta: &Meta) -> Timestamps {
    let spec = |time: Timestamp| Timespec { tv_sec: time.seconds, tv_nsec: time.nanoseconds.into() };
    Timestamps { last_access: spec(meta.atime), last_modification: spec(meta.mtime) }
}
