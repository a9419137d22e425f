//! Locks of a file that the processes of this host see: on an open file description of its own (fcntl(2), `F_OFD_SETLK`), so that they
//! conflict with those of every process, this one too, and end when it is closed.

use std::ops::Range;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};

use dafs_proto::wire::{LockKind, Status};
use nix::errno::Errno;
use nix::fcntl::{FcntlArg, fcntl};
use nix::libc::{self, flock};
use rustix::fs::OFlags;

use super::super::{LocalConflict, LocalLocks};
#[cfg(test)]
use super::steps;
use super::{Node, sys};

#[derive(Debug)]
pub(super) struct FileLocks(OwnedFd);

impl FileLocks {
    /// Of what a node has open. An exclusive lock takes a descriptor that may write. A process that has leased the file is not waited for:
    /// [`Status::AGAIN`].
    pub(super) fn open(node: &Node) -> Result<Self, Status> {
        match Self::open_to_write(node) {
            Ok(writing) => Ok(writing),
            Err(rustix::io::Errno::AGAIN) => Err(Status::AGAIN),
            Err(_) => Ok(Self(sys::reopen(node.fd.as_fd(), OFlags::RDONLY | OFlags::NONBLOCK)?)),
        }
    }

    /// The same, and the file may be written by it.
    pub(super) fn open_to_write(node: &Node) -> Result<Self, rustix::io::Errno> {
        #[cfg(test)]
        steps::before(steps::Call::Open)?;
        sys::reopen(node.fd.as_fd(), OFlags::RDWR | OFlags::NONBLOCK).map(Self)
    }

    /// Whether the range could be set: another may have a part. What is beyond the largest offset of a file nobody can have.
    fn set(&self, range: &Range<u64>, kind: i32) -> Result<bool, Status> {
        let Some(lock) = lock_of(range, kind) else { return Ok(true) };
        #[cfg(test)]
        steps::before(if kind == libc::F_UNLCK { steps::Call::Unlock } else { steps::Call::Lock })?;
        loop {
            match fcntl(&self.0, FcntlArg::F_OFD_SETLK(&lock)) {
                Ok(_) => return Ok(true),
                Err(Errno::EAGAIN | Errno::EACCES) => return Ok(false),
                Err(Errno::EINTR) => {}
                Err(Errno::EBADF) => return Err(Status::ACCESS),
                Err(Errno::ENOLCK) => return Err(Status::TOO_MANY_LOCKS),
                Err(errno) => return Err(rustix::io::Errno::from_raw_os_error(errno as i32).into()),
            }
        }
    }
}

impl AsFd for FileLocks {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.0.as_fd()
    }
}

impl LocalLocks for FileLocks {
    fn lock(&self, range: &Range<u64>, kind: LockKind) -> Result<bool, Status> {
        self.set(range, type_of(kind))
    }

    fn unlock(&self, range: &Range<u64>) {
        if let Err(status) = self.set(range, libc::F_UNLCK) {
            tracing::error!(%status, "cannot release a lock for local processes; they still see it");
        }
    }

    fn conflict(&self, range: &Range<u64>, kind: LockKind) -> Option<LocalConflict> {
        let mut lock = lock_of(range, type_of(kind))?;
        fcntl(&self.0, FcntlArg::F_OFD_GETLK(&mut lock)).ok()?;
        let kind = match i32::from(lock.l_type) {
            libc::F_WRLCK => LockKind::Exclusive,
            libc::F_RDLCK => LockKind::Shared,
            _ => return None,
        };
        let start = u64::try_from(lock.l_start).unwrap_or_default();
        let len = u64::try_from(lock.l_len).unwrap_or_default();
        let end = if len == 0 { u64::MAX } else { start.saturating_add(len) };
        // A lock of a description has none.
        Some(LocalConflict {
            range: start..end,
            kind,
            process: u64::try_from(lock.l_pid).unwrap_or_default(),
        })
    }
}

fn type_of(kind: LockKind) -> i32 {
    match kind {
        LockKind::Shared => libc::F_RDLCK,
        LockKind::Exclusive => libc::F_WRLCK,
    }
}

#[allow(clippy::cast_possible_truncation, reason = "the system's constants fit the system's fields")]
fn lock_of(range: &Range<u64>, kind: i32) -> Option<flock> {
    let start = i64::try_from(range.start).ok()?;
    // 0 is for all that follows.
    let len = i64::try_from(range.end).map_or(0, |end| end - start);
    Some(flock { l_type: kind as i16, l_whence: libc::SEEK_SET as i16, l_start: start, l_len: len, l_pid: 0 })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn pair() -> (tempfile::NamedTempFile, FileLocks, FileLocks) {
        let file = tempfile::NamedTempFile::new().unwrap();
        let open = || FileLocks(file.reopen().unwrap().into());
        let (a, b) = (open(), open());
        (file, a, b)
    }

    // [LOCK-52]
    #[test]
    fn last_offset_can_be_locked_and_nothing_lies_beyond() {
        let (_file, ours, others) = pair();
        let last = i64::MAX as u64;
        for (range, asked, is_free) in [
            (0..1, 0..1, false),
            (0..1, 1..2, true),
            (last..last + 1, last..last + 1, false),
            (last - 1..last, last..last + 1, true),
            (last + 1..last + 2, last + 1..last + 2, true),
            (5..u64::MAX, last..last + 1, false),
            (5..u64::MAX, 4..5, true),
            (5..last, last..u64::MAX, true),
            (5..last, last - 1..u64::MAX, false),
        ] {
            assert_eq!(ours.lock(&range, LockKind::Exclusive), Ok(true), "{range:?}");
            assert_eq!(others.lock(&asked, LockKind::Shared), Ok(is_free), "{range:?} and {asked:?}");
            [&ours, &others].iter().for_each(|locks| locks.unlock(&(0..u64::MAX)));
        }
    }

    // [LOCK-53]
    #[test]
    fn conflict_is_the_lock_of_another() {
        let (_file, ours, others) = pair();
        assert_eq!(ours.lock(&(10..20), LockKind::Shared), Ok(true));
        assert_eq!(ours.conflict(&(0..u64::MAX), LockKind::Exclusive), None);
        assert_eq!(others.conflict(&(0..u64::MAX), LockKind::Shared), None);
        let found = others.conflict(&(15..u64::MAX), LockKind::Exclusive).unwrap();
        assert_eq!((found.range, found.kind, found.process), (10..20, LockKind::Shared, 0));
        assert_eq!(ours.lock(&(30..u64::MAX), LockKind::Exclusive), Ok(true));
        assert_eq!(others.conflict(&(25..40), LockKind::Shared).unwrap().range, 30..u64::MAX);
    }

    #[test]
    fn description_that_only_reads_takes_no_exclusive_lock() {
        let file = tempfile::NamedTempFile::new().unwrap();
        let reading = FileLocks(std::fs::File::open(file.path()).unwrap().into());
        assert_eq!(reading.lock(&(0..1), LockKind::Shared), Ok(true));
        assert_eq!(reading.lock(&(0..1), LockKind::Exclusive), Err(Status::ACCESS));
    }
}
