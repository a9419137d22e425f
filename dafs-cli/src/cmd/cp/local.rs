//! Files of this machine, by names in directories that are held. Nothing here follows a symbolic link at the end of a path in a
//! destination tree, and attributes are set through open files: names could change meanwhile.

use std::ffi::OsStr;
use std::fs::{self, File};
use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::os::unix::ffi::{OsStrExt, OsStringExt};
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};

use dafs_client::{FileKind, Timestamp};
use rustix::fs::{
    AtFlags, FileType, Gid, Mode, OFlags, SeekFrom, Stat, Timespec, Timestamps, Uid, chmodat, chownat,
    fcntl_getfl, fcntl_setfl, fstat, futimens, linkat, mkdirat, openat, readlinkat, seek, statat, utimensat,
};
use rustix::io::Errno;

use super::meta::{Before, Cause, Entry, KeepOwner, Meta, Owner};

pub(super) fn metadata(base: BorrowedFd<'_>, name: &Path, follow: bool) -> Result<Meta, Cause> {
    let flags = if follow { AtFlags::empty() } else { AtFlags::SYMLINK_NOFOLLOW };
    Ok(meta(&statat(base, name, flags)?))
}

pub(super) fn meta_of(file: impl AsFd) -> Result<Meta, Cause> {
    Ok(meta(&fstat(file)?))
}

#[allow(clippy::useless_conversion, reason = "the types of these fields differ by machine")]
fn meta(stat: &Stat) -> Meta {
    let mode: u32 = stat.st_mode.into();
    let kind = match FileType::from_raw_mode(mode) {
        FileType::Directory => FileKind::Directory,
        FileType::Symlink => FileKind::Symlink,
        FileType::BlockDevice => FileKind::BlockDevice,
        FileType::CharacterDevice => FileKind::CharDevice,
        FileType::Fifo => FileKind::Fifo,
        FileType::Socket => FileKind::Socket,
        _ => FileKind::File,
    };
    let time = |seconds: i64, nanoseconds: u64| Timestamp {
        seconds,
        nanoseconds: u32::try_from(nanoseconds).unwrap_or(0),
    };
    Meta {
        kind,
        mode: mode & 0o7777,
        uid: stat.st_uid,
        gid: stat.st_gid,
        size: u64::try_from(stat.st_size).unwrap_or(0),
        allocated: u64::try_from(stat.st_blocks).unwrap_or(0) * 512,
        links: stat.st_nlink.into(),
        id: (stat.st_dev.into(), stat.st_ino.into()),
        atime: time(stat.st_atime.into(), stat.st_atime_nsec.into()),
        mtime: time(stat.st_mtime.into(), stat.st_mtime_nsec.into()),
        ctime: time(stat.st_ctime.into(), stat.st_ctime_nsec.into()),
        inherits_group: false,
    }
}

fn open_with(base: BorrowedFd<'_>, name: &Path, flags: OFlags) -> Result<File, Errno> {
    loop {
        match openat(base, name, flags | OFlags::CLOEXEC, Mode::from_raw_mode(0o600)) {
            Err(Errno::INTR) => {}
            opened => return opened.map(File::from),
        }
    }
}

fn no_follow(follow: bool) -> OFlags {
    if follow { OFlags::empty() } else { OFlags::NOFOLLOW }
}

/// Opens a file for reading. Never waits for the other end of a FIFO that has taken its place.
pub(super) fn open(base: BorrowedFd<'_>, name: &Path, follow: bool) -> Result<File, Errno> {
    open_with(base, name, OFlags::RDONLY | OFlags::NONBLOCK | no_follow(follow))
}

/// Opens a file for writing, made where there is none. Until its attributes are set only the user may use one that is made.
pub(super) fn create(base: BorrowedFd<'_>, name: &Path, follow: bool) -> Result<File, Errno> {
    let flags = OFlags::WRONLY | OFlags::CREATE | no_follow(follow);
    match open_with(base, name, flags | OFlags::NONBLOCK) {
        // A FIFO that the user named: somebody will read it.
        Err(Errno::NXIO) if follow => open_with(base, name, flags),
        result => result,
    }
}

/// Opens a file or directory for what needs no more than that it is open.
pub(super) fn open_any(base: BorrowedFd<'_>, name: &Path) -> Result<File, Errno> {
    match open(base, name, false) {
        Err(Errno::ACCESS) => open_with(base, name, OFlags::WRONLY | OFlags::NONBLOCK | OFlags::NOFOLLOW),
        result => result,
    }
}

/// Makes a file that is not there yet, which until its attributes are set only the user may use.
pub(super) fn create_new(base: BorrowedFd<'_>, name: &Path) -> Result<File, Errno> {
    open_with(base, name, OFlags::WRONLY | OFlags::CREATE | OFlags::EXCL | OFlags::NOFOLLOW)
}

/// Opens a directory, to reach what is in it: needs no right to list it. Says what it is, for it may be none.
pub(super) fn directory(base: BorrowedFd<'_>, name: &Path) -> Result<(OwnedFd, Meta), Cause> {
    let held = open_with(base, name, OFlags::PATH | OFlags::NOFOLLOW)?;
    let meta = meta_of(&held)?;
    Ok((held.into(), meta))
}

/// Opens a directory that is held to read what is in it.
pub(super) fn open_itself(held: BorrowedFd<'_>) -> Result<File, Errno> {
    use std::os::fd::AsRawFd;
    let flags = OFlags::RDONLY | OFlags::DIRECTORY;
    match open_with(held, Path::new("."), flags) {
        // It may be listed, but nothing be looked up in it, not even itself.
        Err(Errno::ACCESS) => {
            open_with(held, Path::new(&format!("/proc/self/fd/{}", held.as_raw_fd())), flags)
        }
        result => result,
    }
}

/// Begins to list a directory that is held.
pub(super) fn list(held: BorrowedFd<'_>) -> Result<(OwnedFd, rustix::fs::Dir), Cause> {
    let opened: OwnedFd = open_itself(held)?.into();
    let list = rustix::fs::Dir::read_from(&opened)?;
    Ok((opened, list))
}

/// The next entry of a list of a directory, which is held.
pub(super) fn next_entry(list: &mut rustix::fs::Dir, held: BorrowedFd<'_>) -> Option<Result<Entry, Cause>> {
    loop {
        let entry = match list.next()? {
            Ok(entry) => entry,
            Err(error) => return Some(Err(error.into())),
        };
        let name = entry.file_name().to_bytes();
        if name == b"." || name == b".." {
            continue;
        }
        let name = PathBuf::from(OsStr::from_bytes(name));
        let meta = metadata(held, &name, false);
        return Some(Ok((name, meta)));
    }
}

pub(super) fn make_dir(base: BorrowedFd<'_>, name: &Path, mode: u32) -> Result<(), Cause> {
    Ok(mkdirat(base, name, Mode::from_raw_mode(mode))?)
}

pub(super) fn read_link(base: BorrowedFd<'_>, name: &Path) -> Result<PathBuf, Cause> {
    let target = readlinkat(base, name, Vec::new())?;
    Ok(PathBuf::from(std::ffi::OsString::from_vec(target.into_bytes())))
}

pub(super) fn link(from: (BorrowedFd<'_>, &Path), to: (BorrowedFd<'_>, &Path)) -> Result<(), Cause> {
    Ok(linkat(from.0, from.1, to.0, to.1, AtFlags::empty())?)
}

/// From now on writes wait until there is room.
pub(super) fn set_blocking(file: &File) -> io::Result<()> {
    let flags = fcntl_getfl(file)?;
    Ok(fcntl_setfl(file, flags - OFlags::NONBLOCK)?)
}

/// Sets the attributes of a symbolic link by its name, or of a directory that is held, whose name in itself is `.`.
pub(super) fn set_attributes(
    base: BorrowedFd<'_>,
    name: &Path,
    meta: &Meta,
    keep_owner: &KeepOwner,
) -> Result<(), Cause> {
    let flags = AtFlags::SYMLINK_NOFOLLOW;
    let give = || {
        let (uid, gid) = (Uid::from_raw(meta.uid), Gid::from_raw(meta.gid));
        is_given(chownat(base, name, Some(uid), Some(gid), flags).map_err(io::Error::from))
    };
    let is_kept = keep_owner.is_set() && keep_owner.note(give()?);
    // The mode last: it may be one by which a directory is not found in itself any more.
    utimensat(base, name, &times(meta), flags)?;
    match keep_owner.mode(meta, is_kept, &Before::Nothing) {
        None => Ok(()),
        Some(mode) => Ok(chmodat(base, name, Mode::from_raw_mode(mode), AtFlags::empty())?),
    }
}

/// Sets the attributes of an open file. The owner first: a change of it takes set-user-id bits away. What it gets of the file that it
/// replaces it has by now.
pub(super) fn set_file_attributes(
    file: &File,
    meta: &Meta,
    keep_owner: &KeepOwner,
    before: &Before,
) -> io::Result<()> {
    let is_kept = keep_owner.is_set() && keep_owner.note(give(file, (Some(meta.uid), Some(meta.gid)))?);
    if let Some(mode) = keep_owner.mode(meta, is_kept, before) {
        file.set_permissions(fs::Permissions::from_mode(mode))?;
    }
    Ok(futimens(file, &times(meta))?)
}

/// Gives an open file an owner; false where that cannot be.
pub(super) fn give(file: &File, (uid, gid): (Option<u32>, Option<u32>)) -> io::Result<bool> {
    is_given(std::os::unix::fs::fchown(file, uid, gid))
}

/// As [`give`], of what differs.
pub(super) fn give_all(file: &File, found: &Meta, owner: Owner) -> io::Result<bool> {
    let uid = (found.uid != owner.0).then_some(owner.0);
    let gid = (found.gid != owner.1).then_some(owner.1);
    if uid.is_none() && gid.is_none() { Ok(true) } else { give(file, (uid, gid)) }
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

fn times(meta: &Meta) -> Timestamps {
    let spec = |time: Timestamp| Timespec { tv_sec: time.seconds, tv_nsec: time.nanoseconds.into() };
    Timestamps { last_access: spec(meta.atime), last_modification: spec(meta.mtime) }
}
