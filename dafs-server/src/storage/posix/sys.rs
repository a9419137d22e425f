//! System calls as checked functions over owned descriptors and byte strings.
#![allow(unsafe_code, reason = "the one place where the posix backend calls the kernel")]

use std::ffi::CStr;
use std::os::fd::{AsRawFd, BorrowedFd, FromRawFd, OwnedFd, RawFd};
use std::sync::OnceLock;

use dafs_proto::wire::{AccessMode, Attributes, FileKind, FsStatistics, SetTime, Status, Timestamp};
use smallvec::SmallVec;

/// The number of a failed system call.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(in crate::storage) struct Errno(pub(in crate::storage) i32);

impl Errno {
    pub(in crate::storage) fn last() -> Self {
        Self(std::io::Error::last_os_error().raw_os_error().unwrap_or(libc::EIO))
    }
}

impl From<Errno> for Status {
    fn from(errno: Errno) -> Self {
        Status::from_errno(errno.0)
    }
}

pub(in crate::storage) type SysResult<T> = Result<T, Errno>;

/// The most segments that one call takes (Linux's IOV_MAX).
pub(in crate::storage) const IOV_MAX: usize = 1024;

/// A path with its terminating zero byte.
pub(super) struct CPath(SmallVec<[u8; 128]>);

impl CPath {
    /// `None` when it holds a zero byte.
    pub(super) fn new(path: &[u8]) -> Option<Self> {
        if path.contains(&0) {
            return None;
        }
        let mut bytes = SmallVec::with_capacity(path.len() + 1);
        bytes.extend_from_slice(path);
        bytes.push(0);
        Some(Self(bytes))
    }

    /// The kernel's name for an open descriptor: reaches what it names, whatever the name has become.
    pub(super) fn of_fd(fd: BorrowedFd<'_>) -> Self {
        use std::io::Write;
        let mut bytes = [0u8; 32];
        let mut room = &mut bytes[..];
        // The longest descriptor number fits.
        let _ = write!(room, "/proc/self/fd/{}\0", fd.as_raw_fd());
        let left = room.len();
        let bytes = SmallVec::from_slice(&bytes[..32 - left]);
        Self(bytes)
    }

    pub(super) fn from_cstr(name: &CStr) -> Self {
        Self(SmallVec::from_slice(name.to_bytes_with_nul()))
    }

    fn as_ptr(&self) -> *const libc::c_char {
        self.0.as_ptr().cast()
    }
}

fn check(result: libc::c_long) -> SysResult<usize> {
    usize::try_from(result).map_err(|_| Errno::last())
}

/// Repeats a call that a signal interrupted.
fn retry(mut call: impl FnMut() -> libc::c_long) -> SysResult<usize> {
    loop {
        match check(call()) {
            Err(Errno(libc::EINTR)) => {}
            result => return result,
        }
    }
}

fn owned(result: SysResult<usize>) -> SysResult<OwnedFd> {
    let fd = RawFd::try_from(result?).map_err(|_| Errno(libc::EBADF))?;
    // SAFETY: the kernel has just made this descriptor for us.
    Ok(unsafe { OwnedFd::from_raw_fd(fd) })
}

fn long(fd: BorrowedFd<'_>) -> libc::c_long {
    libc::c_long::from(fd.as_raw_fd())
}

/// `openat2`: resolves beneath `directory` as `resolve` (`RESOLVE_*`) says.
pub(super) fn openat2(
    directory: BorrowedFd<'_>,
    path: &CPath,
    flags: i32,
    mode: u32,
    resolve: u64,
) -> SysResult<OwnedFd> {
    // SAFETY: all zeroes is a valid open_how.
    let mut how: libc::open_how = unsafe { std::mem::zeroed() };
    how.flags = u64::from((flags | libc::O_CLOEXEC).cast_unsigned());
    how.mode = if flags & libc::O_CREAT != 0 { u64::from(mode) } else { 0 };
    how.resolve = resolve;
    // SAFETY: the path is zero-terminated; `how` is live and its size given.
    owned(retry(|| unsafe {
        libc::syscall(
            libc::SYS_openat2,
            long(directory),
            path.as_ptr(),
            &raw const how,
            size_of::<libc::open_how>(),
        )
    }))
}

/// Opens anew what a descriptor names, permission checked anew.
pub(super) fn reopen(fd: BorrowedFd<'_>, flags: i32) -> SysResult<OwnedFd> {
    /// `/proc/self/fd`: from here the kernel finds a descriptor's name sooner.
    static DESCRIPTORS: OnceLock<Option<std::fs::File>> = OnceLock::new();
    let directory = DESCRIPTORS.get_or_init(|| std::fs::File::open("/proc/self/fd").ok());
    let whole = CPath::of_fd(fd);
    let (directory, path) = match directory {
        Some(directory) => (directory.as_raw_fd(), &whole.0["/proc/self/fd/".len()..]),
        None => (libc::AT_FDCWD, &whole.0[..]),
    };
    owned(retry(|| {
        // SAFETY: the path is zero-terminated.
        libc::c_long::from(unsafe { libc::openat(directory, path.as_ptr().cast(), flags | libc::O_CLOEXEC) })
    }))
}

/// A descriptor that only names what `name`, a plain name, is; links not followed.
pub(super) fn open_named(directory: BorrowedFd<'_>, name: &CPath) -> SysResult<OwnedFd> {
    openat2(directory, name, libc::O_PATH | libc::O_NOFOLLOW, 0, libc::RESOLVE_BENEATH)
}

/// Attributes of what `name` (empty: the descriptor itself) is, links not followed.
pub(super) fn statx(directory: BorrowedFd<'_>, name: &CPath) -> SysResult<Attributes> {
    let mut raw = std::mem::MaybeUninit::<libc::statx>::uninit();
    let flags = libc::AT_EMPTY_PATH | libc::AT_SYMLINK_NOFOLLOW | libc::AT_NO_AUTOMOUNT;
    retry(|| {
        // SAFETY: the name is zero-terminated, the buffer large enough.
        libc::c_long::from(unsafe {
            libc::statx(
                directory.as_raw_fd(),
                name.as_ptr(),
                flags,
                libc::STATX_BASIC_STATS,
                raw.as_mut_ptr(),
            )
        })
    })?;
    // SAFETY: the kernel filled it in.
    let raw = unsafe { raw.assume_init() };
    Ok(attributes(&raw))
}

/// Attributes of what a descriptor names.
pub(super) fn fstat(fd: BorrowedFd<'_>) -> SysResult<Attributes> {
    statx(fd, &CPath::from_cstr(c""))
}

fn attributes(raw: &libc::statx) -> Attributes {
    let time = |t: &libc::statx_timestamp| Timestamp { seconds: t.tv_sec, nanoseconds: t.tv_nsec };
    let mode = u32::from(raw.stx_mode);
    Attributes {
        kind: match mode & libc::S_IFMT {
            libc::S_IFDIR => FileKind::Directory,
            libc::S_IFLNK => FileKind::Symlink,
            libc::S_IFBLK => FileKind::BlockDevice,
            libc::S_IFCHR => FileKind::CharDevice,
            libc::S_IFIFO => FileKind::Fifo,
            libc::S_IFSOCK => FileKind::Socket,
            _ => FileKind::File,
        },
        mode: mode & 0o7777,
        links: raw.stx_nlink,
        uid: raw.stx_uid,
        gid: raw.stx_gid,
        size: raw.stx_size,
        allocated: raw.stx_blocks.saturating_mul(512),
        file_id: raw.stx_ino,
        fs_id: libc::makedev(raw.stx_dev_major, raw.stx_dev_minor),
        atime: time(&raw.stx_atime),
        mtime: time(&raw.stx_mtime),
        ctime: time(&raw.stx_ctime),
        device: libc::makedev(raw.stx_rdev_major, raw.stx_rdev_minor),
    }
}

/// What direct I/O on this file wants of addresses and of offsets and lengths, bytes; `None` when the kernel does not say.
pub(super) fn direct_io_alignment(fd: BorrowedFd<'_>) -> Option<(u32, u32)> {
    let mut raw = std::mem::MaybeUninit::<libc::statx>::uninit();
    // SAFETY: the name is zero-terminated, the buffer large enough.
    let result = unsafe {
        libc::statx(fd.as_raw_fd(), c"".as_ptr(), libc::AT_EMPTY_PATH, libc::STATX_DIOALIGN, raw.as_mut_ptr())
    };
    if result != 0 {
        return None;
    }
    // SAFETY: the kernel filled it in.
    let raw = unsafe { raw.assume_init() };
    let told = raw.stx_mask & libc::STATX_DIOALIGN != 0 && raw.stx_dio_offset_align != 0;
    told.then_some((raw.stx_dio_mem_align, raw.stx_dio_offset_align))
}

/// The magic number of the file system below a descriptor, and its space.
pub(super) fn statfs(fd: BorrowedFd<'_>) -> SysResult<(i64, FsStatistics)> {
    let mut raw = std::mem::MaybeUninit::<libc::statfs64>::uninit();
    // SAFETY: the buffer is large enough.
    retry(|| libc::c_long::from(unsafe { libc::fstatfs64(fd.as_raw_fd(), raw.as_mut_ptr()) }))?;
    // SAFETY: the kernel filled it in.
    let raw = unsafe { raw.assume_init() };
    let unit = if raw.f_frsize > 0 { raw.f_frsize } else { raw.f_bsize };
    let statistics = FsStatistics {
        block_size: u64::try_from(unit).unwrap_or(4096),
        blocks: raw.f_blocks,
        blocks_free: raw.f_bfree,
        blocks_available: raw.f_bavail,
        files: raw.f_files,
        files_free: raw.f_ffree,
        name_size_max: u32::try_from(raw.f_namelen).unwrap_or(255),
    };
    Ok((raw.f_type, statistics))
}

/// `mkdirat`.
pub(super) fn mkdirat(directory: BorrowedFd<'_>, name: &CPath, mode: u32) -> SysResult<()> {
    // SAFETY: the name is zero-terminated.
    retry(|| libc::c_long::from(unsafe { libc::mkdirat(directory.as_raw_fd(), name.as_ptr(), mode) }))?;
    Ok(())
}

/// `unlinkat`: a directory, or anything but one.
pub(super) fn unlinkat(parent: BorrowedFd<'_>, name: &CPath, directory: bool) -> SysResult<()> {
    let flags = if directory { libc::AT_REMOVEDIR } else { 0 };
    // SAFETY: the name is zero-terminated.
    retry(|| libc::c_long::from(unsafe { libc::unlinkat(parent.as_raw_fd(), name.as_ptr(), flags) }))?;
    Ok(())
}

/// `renameat2`.
pub(super) fn renameat2(
    from: (BorrowedFd<'_>, &CPath),
    to: (BorrowedFd<'_>, &CPath),
    replace: bool,
) -> SysResult<()> {
    let flags = if replace { 0 } else { libc::RENAME_NOREPLACE };
    // SAFETY: both names are zero-terminated.
    retry(|| unsafe {
        libc::syscall(
            libc::SYS_renameat2,
            long(from.0),
            from.1.as_ptr(),
            long(to.0),
            to.1.as_ptr(),
            libc::c_ulong::from(flags),
        )
    })?;
    Ok(())
}

/// `linkat`, links at the end not followed.
pub(super) fn linkat(from: (BorrowedFd<'_>, &CPath), to: (BorrowedFd<'_>, &CPath)) -> SysResult<()> {
    retry(|| {
        // SAFETY: both names are zero-terminated.
        libc::c_long::from(unsafe {
            libc::linkat(from.0.as_raw_fd(), from.1.as_ptr(), to.0.as_raw_fd(), to.1.as_ptr(), 0)
        })
    })?;
    Ok(())
}

/// A new name for what a descriptor names.
pub(super) fn link_fd(from: BorrowedFd<'_>, to: (BorrowedFd<'_>, &CPath)) -> SysResult<()> {
    let source = CPath::of_fd(from);
    retry(|| {
        // SAFETY: both names are zero-terminated.
        libc::c_long::from(unsafe {
            libc::linkat(
                libc::AT_FDCWD,
                source.as_ptr(),
                to.0.as_raw_fd(),
                to.1.as_ptr(),
                libc::AT_SYMLINK_FOLLOW,
            )
        })
    })?;
    Ok(())
}

/// `symlinkat`.
pub(super) fn symlinkat(target: &CPath, directory: BorrowedFd<'_>, name: &CPath) -> SysResult<()> {
    retry(|| {
        // SAFETY: both strings are zero-terminated.
        libc::c_long::from(unsafe { libc::symlinkat(target.as_ptr(), directory.as_raw_fd(), name.as_ptr()) })
    })?;
    Ok(())
}

/// The target of a link (`name` empty: of the link that the descriptor names).
pub(super) fn readlinkat(directory: BorrowedFd<'_>, name: &CPath) -> SysResult<Vec<u8>> {
    let mut target = vec![0u8; 4096];
    // SAFETY: the name is zero-terminated, the buffer as long as said.
    let len = retry(|| unsafe {
        libc::readlinkat(directory.as_raw_fd(), name.as_ptr(), target.as_mut_ptr().cast(), target.len())
            as libc::c_long
    })?;
    target.truncate(len);
    Ok(target)
}

/// access(2) of what the descriptor names, by the identity that this thread acts as (Linux 5.8).
pub(super) fn faccess(fd: BorrowedFd<'_>, mode: AccessMode) -> SysResult<()> {
    let flags = libc::AT_EACCESS | libc::AT_EMPTY_PATH;
    // SAFETY: the path is zero-terminated.
    retry(|| unsafe {
        libc::syscall(
            libc::SYS_faccessat2,
            long(fd),
            c"".as_ptr(),
            libc::c_long::from(mode.bits()),
            libc::c_long::from(flags),
        )
    })?;
    Ok(())
}

/// `fchmodat` through the descriptor's name: works on descriptors that only name a path.
pub(super) fn chmod(fd: BorrowedFd<'_>, mode: u32) -> SysResult<()> {
    let path = CPath::of_fd(fd);
    // SAFETY: the path is zero-terminated.
    retry(|| libc::c_long::from(unsafe { libc::chmod(path.as_ptr(), mode) }))?;
    Ok(())
}

/// `fchownat` of what the descriptor names; `None` stays.
pub(super) fn chown(fd: BorrowedFd<'_>, uid: Option<u32>, gid: Option<u32>) -> SysResult<()> {
    let (uid, gid) = (uid.unwrap_or(u32::MAX), gid.unwrap_or(u32::MAX));
    retry(|| {
        // SAFETY: the name is zero-terminated.
        libc::c_long::from(unsafe {
            libc::fchownat(fd.as_raw_fd(), c"".as_ptr(), uid, gid, libc::AT_EMPTY_PATH)
        })
    })?;
    Ok(())
}

/// `utimensat` of what the descriptor names; `None` stays.
pub(super) fn set_times(fd: BorrowedFd<'_>, atime: Option<SetTime>, mtime: Option<SetTime>) -> SysResult<()> {
    let spec = |time: Option<SetTime>| match time {
        None => libc::timespec { tv_sec: 0, tv_nsec: libc::UTIME_OMIT },
        Some(SetTime::Now) => libc::timespec { tv_sec: 0, tv_nsec: libc::UTIME_NOW },
        Some(SetTime::At(t)) => {
            libc::timespec { tv_sec: t.seconds, tv_nsec: libc::c_long::from(t.nanoseconds) }
        }
    };
    let times = [spec(atime), spec(mtime)];
    retry(|| {
        // SAFETY: the name is zero-terminated, two times are given.
        libc::c_long::from(unsafe {
            libc::utimensat(fd.as_raw_fd(), c"".as_ptr(), times.as_ptr(), libc::AT_EMPTY_PATH)
        })
    })?;
    Ok(())
}

/// `preadv2`. The segments must be valid for writes.
///
/// # Safety
/// Every segment must be mapped and writable until the call returns.
pub(super) unsafe fn preadv2(
    fd: BorrowedFd<'_>,
    segments: &[libc::iovec],
    offset: u64,
    flags: i32,
) -> SysResult<usize> {
    if let ([segment], 0) = (segments, flags) {
        // The same by a shorter way through the kernel: a tenth of a microsecond of half a one.
        // SAFETY: the caller vouches for the segment.
        return retry(|| unsafe {
            libc::pread(fd.as_raw_fd(), segment.iov_base, segment.iov_len, offset.cast_signed())
                as libc::c_long
        });
    }
    let count = i32::try_from(segments.len().min(IOV_MAX)).unwrap_or(0);
    // SAFETY: the caller vouches for the segments.
    retry(|| unsafe {
        libc::preadv2(fd.as_raw_fd(), segments.as_ptr(), count, offset.cast_signed(), flags) as libc::c_long
    })
}

/// `pwritev2`; `None` for the descriptor's own position, which then moves.
///
/// # Safety
/// Every segment must be mapped until the call returns.
pub(super) unsafe fn pwritev2(
    fd: BorrowedFd<'_>,
    segments: &[libc::iovec],
    offset: Option<u64>,
    flags: i32,
) -> SysResult<usize> {
    if let ([segment], Some(offset), 0) = (segments, offset, flags) {
        // SAFETY: the caller vouches for the segment.
        return retry(|| unsafe {
            libc::pwrite(fd.as_raw_fd(), segment.iov_base, segment.iov_len, offset.cast_signed())
                as libc::c_long
        });
    }
    let count = i32::try_from(segments.len().min(IOV_MAX)).unwrap_or(0);
    let offset = offset.map_or(-1, u64::cast_signed);
    // SAFETY: the caller vouches for the segments.
    retry(|| unsafe {
        libc::pwritev2(fd.as_raw_fd(), segments.as_ptr(), count, offset, flags) as libc::c_long
    })
}

/// `lseek`.
pub(super) fn lseek(fd: BorrowedFd<'_>, offset: i64, whence: i32) -> SysResult<u64> {
    // SAFETY: no memory is passed.
    retry(|| unsafe { libc::lseek(fd.as_raw_fd(), offset, whence) as libc::c_long }).map(|at| at as u64)
}

/// `fsync`, or `fdatasync`.
pub(super) fn sync(fd: BorrowedFd<'_>, data_only: bool) -> SysResult<()> {
    retry(|| {
        // SAFETY: no memory is passed.
        libc::c_long::from(unsafe {
            if data_only { libc::fdatasync(fd.as_raw_fd()) } else { libc::fsync(fd.as_raw_fd()) }
        })
    })?;
    Ok(())
}

/// `ftruncate`.
pub(super) fn ftruncate(fd: BorrowedFd<'_>, size: i64) -> SysResult<()> {
    // SAFETY: no memory is passed.
    retry(|| libc::c_long::from(unsafe { libc::ftruncate(fd.as_raw_fd(), size) }))?;
    Ok(())
}

/// `fallocate`.
pub(super) fn fallocate(fd: BorrowedFd<'_>, mode: i32, offset: i64, len: i64) -> SysResult<()> {
    // SAFETY: no memory is passed.
    retry(|| libc::c_long::from(unsafe { libc::fallocate(fd.as_raw_fd(), mode, offset, len) }))?;
    Ok(())
}

/// `posix_fadvise`.
pub(super) fn fadvise(fd: BorrowedFd<'_>, offset: i64, len: i64, advice: i32) -> SysResult<()> {
    // SAFETY: no memory is passed.
    match unsafe { libc::posix_fadvise(fd.as_raw_fd(), offset, len, advice) } {
        0 => Ok(()),
        errno => Err(Errno(errno)),
    }
}

/// `getdents64` from where the descriptor stands: bytes filled in, 0 at the end.
pub(super) fn getdents64(fd: BorrowedFd<'_>, buffer: &mut [u8]) -> SysResult<usize> {
    // SAFETY: the buffer is as long as said.
    retry(|| unsafe { libc::syscall(libc::SYS_getdents64, long(fd), buffer.as_mut_ptr(), buffer.len()) })
}

/// Takes `O_NONBLOCK` off a descriptor again, keeping `O_DIRECT`.
pub(super) fn clear_nonblocking(fd: BorrowedFd<'_>, direct: bool) -> SysResult<()> {
    let flags = if direct { libc::O_DIRECT } else { 0 };
    // SAFETY: no memory is passed.
    retry(|| libc::c_long::from(unsafe { libc::fcntl(fd.as_raw_fd(), libc::F_SETFL, flags) }))?;
    Ok(())
}

/// The file system keeps this many of `len` bytes from `offset` in the page cache, in pages.
pub(super) fn cached_pages(fd: BorrowedFd<'_>, offset: u64, len: u64) -> SysResult<u64> {
    // `cachestat` (Linux 6.5): its range and its five counters.
    const SYS_CACHESTAT: libc::c_long = 451;
    let range = [offset, len];
    let mut counters = [0u64; 5];
    // SAFETY: both buffers have the layout that the call wants.
    retry(|| unsafe {
        libc::syscall(SYS_CACHESTAT, long(fd), range.as_ptr(), counters.as_mut_ptr(), 0 as libc::c_long)
    })?;
    Ok(counters[0])
}

/// An extended attribute's value, at most `size_max` bytes.
pub(super) fn xattr_read(fd: BorrowedFd<'_>, name: &CPath, size_max: usize) -> SysResult<Vec<u8>> {
    let path = CPath::of_fd(fd);
    let mut value = vec![0u8; size_max];
    // SAFETY: the strings are zero-terminated, the buffer as long as said.
    let len = retry(|| unsafe {
        libc::getxattr(path.as_ptr(), name.as_ptr(), value.as_mut_ptr().cast(), value.len()) as libc::c_long
    })?;
    value.truncate(len);
    Ok(value)
}

/// Sets an extended attribute; `flags` as `XATTR_CREATE`, `XATTR_REPLACE`.
pub(super) fn xattr_write(fd: BorrowedFd<'_>, name: &CPath, value: &[u8], flags: i32) -> SysResult<()> {
    let path = CPath::of_fd(fd);
    retry(|| {
        // SAFETY: the strings are zero-terminated, the value as long as said.
        libc::c_long::from(unsafe {
            libc::setxattr(path.as_ptr(), name.as_ptr(), value.as_ptr().cast(), value.len(), flags)
        })
    })?;
    Ok(())
}

/// Names of extended attributes, each followed by a zero byte.
pub(super) fn xattr_list(fd: BorrowedFd<'_>, size_max: usize) -> SysResult<Vec<u8>> {
    let path = CPath::of_fd(fd);
    let mut names = vec![0u8; size_max];
    // SAFETY: the path is zero-terminated, the buffer as long as said.
    let len = retry(|| unsafe {
        libc::listxattr(path.as_ptr(), names.as_mut_ptr().cast(), names.len()) as libc::c_long
    })?;
    names.truncate(len);
    Ok(names)
}

/// Removes an extended attribute.
pub(super) fn xattr_remove(fd: BorrowedFd<'_>, name: &CPath) -> SysResult<()> {
    let path = CPath::of_fd(fd);
    // SAFETY: the strings are zero-terminated.
    retry(|| libc::c_long::from(unsafe { libc::removexattr(path.as_ptr(), name.as_ptr()) }))?;
    Ok(())
}
