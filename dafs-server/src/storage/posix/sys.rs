//! What the posix backend asks of the kernel beyond plain calls. All are repeated if a signal interrupts them.
#![allow(unsafe_code, reason = "segments of memory that others may write to are handed to the kernel")]

use std::ffi::CStr;
use std::io::Write;
use std::os::fd::{AsRawFd, BorrowedFd, OwnedFd};
use std::sync::OnceLock;

use dafs_proto::wire::{AccessMode, Attributes, FileKind, FsStatistics, SetTime, Timestamp};
use rustix::buffer::spare_capacity;
use rustix::fs::{self, AtFlags, FileType, Gid, Mode, OFlags, ResolveFlags, StatxFlags, Timespec, Uid};
use rustix::io::Result;
pub(super) use rustix::io::{Errno, retry_on_intr as retry};
use rustix::path::{Arg, DecInt};

#[cfg(test)]
use super::steps;

/// The most segments that one call takes (Linux's IOV_MAX).
pub(super) const IOV_MAX: usize = 1024;

/// The kernel's name for an open descriptor: reaches what it names, whatever the name has become.
pub(super) struct FdPath([u8; 32]);

impl FdPath {
    pub(super) fn new(fd: BorrowedFd<'_>) -> Self {
        let mut bytes = [0; 32];
        // The longest descriptor number fits.
        let _ = write!(&mut bytes[..], "/proc/self/fd/{}", fd.as_raw_fd());
        Self(bytes)
    }

    pub(super) fn as_c_str(&self) -> &CStr {
        CStr::from_bytes_until_nul(&self.0).unwrap_or_default()
    }
}

/// `openat2`: resolves beneath `directory` as `resolve` says.
pub(super) fn openat2(
    directory: BorrowedFd<'_>,
    path: &[u8],
    flags: OFlags,
    mode: u32,
    resolve: ResolveFlags,
) -> Result<OwnedFd> {
    let mode = if flags.contains(OFlags::CREATE) || flags.contains(OFlags::TMPFILE) { mode } else { 0 };
    retry(|| fs::openat2(directory, path, flags | OFlags::CLOEXEC, Mode::from_raw_mode(mode), resolve))
}

/// Opens anew what a descriptor names, permission checked anew.
pub(super) fn reopen(fd: BorrowedFd<'_>, flags: OFlags) -> Result<OwnedFd> {
    /// `/proc/self/fd`: from here the kernel finds a descriptor's name sooner.
    static DESCRIPTORS: OnceLock<Option<std::fs::File>> = OnceLock::new();
    let flags = flags | OFlags::CLOEXEC;
    match DESCRIPTORS.get_or_init(|| std::fs::File::open("/proc/self/fd").ok()) {
        Some(directory) => {
            retry(|| fs::openat(directory, DecInt::from_fd(fd).as_c_str(), flags, Mode::empty()))
        }
        None => retry(|| fs::open(FdPath::new(fd).as_c_str(), flags, Mode::empty())),
    }
}

/// A descriptor that only names what `name`, a plain name, is; links not followed.
pub(super) fn open_named(directory: BorrowedFd<'_>, name: &[u8]) -> Result<OwnedFd> {
    openat2(directory, name, OFlags::PATH | OFlags::NOFOLLOW, 0, ResolveFlags::BENEATH)
}

/// Attributes of what `name` (empty: the descriptor itself) is, links not followed.
pub(super) fn statx(directory: BorrowedFd<'_>, name: impl Arg + Copy) -> Result<Attributes> {
    let flags = AtFlags::EMPTY_PATH | AtFlags::SYMLINK_NOFOLLOW | AtFlags::NO_AUTOMOUNT;
    let wanted = StatxFlags::BASIC_STATS | StatxFlags::BTIME;
    let raw = retry(|| fs::statx(directory, name, flags, wanted))?;
    let birth = Some(raw.stx_btime).filter(|birth| {
        raw.stx_mask & StatxFlags::BTIME.bits() != 0 && (birth.tv_sec, birth.tv_nsec) != (0, 0)
    });
    let time = |t: fs::StatxTimestamp| Timestamp { seconds: t.tv_sec, nanoseconds: t.tv_nsec };
    let mode = u32::from(raw.stx_mode);
    Ok(Attributes {
        kind: match FileType::from_raw_mode(mode) {
            FileType::Directory => FileKind::Directory,
            FileType::Symlink => FileKind::Symlink,
            FileType::BlockDevice => FileKind::BlockDevice,
            FileType::CharacterDevice => FileKind::CharDevice,
            FileType::Fifo => FileKind::Fifo,
            FileType::Socket => FileKind::Socket,
            _ => FileKind::File,
        },
        mode: mode & 0o7777,
        links: raw.stx_nlink,
        uid: raw.stx_uid,
        gid: raw.stx_gid,
        size: raw.stx_size,
        allocated: raw.stx_blocks.saturating_mul(512),
        file_id: raw.stx_ino,
        fs_id: fs::makedev(raw.stx_dev_major, raw.stx_dev_minor),
        atime: time(raw.stx_atime),
        mtime: time(raw.stx_mtime),
        ctime: time(raw.stx_ctime),
        device: fs::makedev(raw.stx_rdev_major, raw.stx_rdev_minor),
        generation: match birth {
            // Within one tick of the kernel's clock no two files have had one number.
            Some(birth) => {
                hash(&[birth.tv_sec.to_le_bytes(), i64::from(birth.tv_nsec).to_le_bytes()].concat())
            }
            None => kernel_handle(directory, name).map_or(0, |handle| hash(&handle)),
        },
        change: nanoseconds(raw.stx_ctime),
    })
}

/// A time as one number, which grows with it. It counts modulo 2⁶⁴, so that no two times within 584 years are alike.
fn nanoseconds(time: fs::StatxTimestamp) -> u64 {
    time.tv_sec.cast_unsigned().wrapping_mul(1_000_000_000).wrapping_add(time.tv_nsec.into())
}

/// The kernel's own name for a file, which is never given to another; where the file system has one.
fn kernel_handle(directory: BorrowedFd<'_>, name: impl Arg) -> Result<Vec<u8>> {
    #[repr(C)]
    struct Handle {
        size: libc::c_uint,
        kind: libc::c_int,
        bytes: [u8; libc::MAX_HANDLE_SZ as usize],
    }
    let mut handle = Handle {
        size: libc::MAX_HANDLE_SZ.cast_unsigned(),
        kind: 0,
        bytes: [0; libc::MAX_HANDLE_SZ as usize],
    };
    let mut mount = 0;
    name.into_with_c_str(|name| {
        // SAFETY: the path is zero-terminated, and the handle has as much room as it says.
        raw_call(|| unsafe {
            libc::syscall(
                libc::SYS_name_to_handle_at,
                libc::c_long::from(directory.as_raw_fd()),
                name.as_ptr(),
                &raw mut handle,
                &raw mut mount,
                libc::c_long::from(libc::AT_EMPTY_PATH),
            )
        })
    })?;
    let bytes = handle.bytes.get(..handle.size as usize).unwrap_or_default();
    Ok([&handle.kind.to_le_bytes(), bytes].concat())
}

/// A number that stays the same from release to release (FNV-1a), and is not 0.
fn hash(bytes: &[u8]) -> u64 {
    let mix = |hash: u64, byte: &u8| (hash ^ u64::from(*byte)).wrapping_mul(0x0000_0100_0000_01b3);
    bytes.iter().fold(0xcbf2_9ce4_8422_2325, mix).max(1)
}

/// Attributes of what a descriptor names.
pub(super) fn fstat(fd: BorrowedFd<'_>) -> Result<Attributes> {
    statx(fd, c"")
}

/// What direct I/O on this file wants of addresses and of offsets and lengths, bytes; `None` when the kernel does not say.
pub(super) fn direct_io_alignment(fd: BorrowedFd<'_>) -> Option<(u32, u32)> {
    let mask = StatxFlags::from_bits_retain(libc::STATX_DIOALIGN);
    let raw = fs::statx(fd, c"", AtFlags::EMPTY_PATH, mask).ok()?;
    let told = raw.stx_mask & mask.bits() != 0 && raw.stx_dio_offset_align != 0;
    told.then_some((raw.stx_dio_mem_align, raw.stx_dio_offset_align))
}

/// The magic number of the file system below a descriptor, and its space.
pub(super) fn statfs(fd: BorrowedFd<'_>) -> Result<(i64, FsStatistics)> {
    let raw = retry(|| fs::fstatfs(fd))?;
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

/// The target of a link (`name` empty: of the link that the descriptor names).
pub(super) fn readlinkat(directory: BorrowedFd<'_>, name: &CStr) -> Result<Vec<u8>> {
    let mut target = Vec::with_capacity(4096);
    retry(|| fs::readlinkat_raw(directory, name, spare_capacity(&mut target)))?;
    Ok(target)
}

/// access(2) of what the descriptor names, by the identity that this thread acts as (Linux 5.8).
pub(super) fn faccess(fd: BorrowedFd<'_>, mode: AccessMode) -> Result<()> {
    // The crate's call takes no empty path.
    let flags = libc::AT_EACCESS | libc::AT_EMPTY_PATH;
    let ask = |mode: AccessMode| {
        // SAFETY: the path is zero-terminated.
        raw_call(|| unsafe {
            libc::syscall(
                libc::SYS_faccessat2,
                libc::c_long::from(fd.as_raw_fd()),
                c"".as_ptr(),
                libc::c_long::from(mode.bits()),
                libc::c_long::from(flags),
            )
        })
    };
    match ask(mode) {
        // Whether it is there, everybody may ask who has it open: so it is a filter that forbids the call.
        Err(Errno::PERM) if ask(AccessMode::empty()) == Err(Errno::PERM) => Err(Errno::NOSYS),
        asked => asked.map(drop),
    }
}

/// `chmod` through the descriptor's name: works on descriptors that only name a path.
pub(super) fn chmod(fd: BorrowedFd<'_>, mode: u32) -> Result<()> {
    let path = FdPath::new(fd);
    retry(|| fs::chmod(path.as_c_str(), Mode::from_raw_mode(mode)))
}

/// `fchownat` of what the descriptor names; `None` stays.
pub(super) fn chown(fd: BorrowedFd<'_>, uid: Option<u32>, gid: Option<u32>) -> Result<()> {
    let (uid, gid) = (uid.map(Uid::from_raw), gid.map(Gid::from_raw));
    retry(|| fs::chownat(fd, c"", uid, gid, AtFlags::EMPTY_PATH))
}

/// `utimensat` of what the descriptor names; `None` stays.
pub(super) fn set_times(fd: BorrowedFd<'_>, atime: Option<SetTime>, mtime: Option<SetTime>) -> Result<()> {
    let spec = |time: Option<SetTime>| match time {
        None => Timespec { tv_sec: 0, tv_nsec: fs::UTIME_OMIT },
        Some(SetTime::Now) => Timespec { tv_sec: 0, tv_nsec: fs::UTIME_NOW },
        Some(SetTime::At(t)) => Timespec { tv_sec: t.seconds, tv_nsec: t.nanoseconds.into() },
    };
    let times = fs::Timestamps { last_access: spec(atime), last_modification: spec(mtime) };
    retry(|| fs::utimensat(fd, c"", &times, AtFlags::EMPTY_PATH))
}

/// The end of a file: where its descriptor stands then.
pub(super) fn seek_end(fd: BorrowedFd<'_>) -> Result<u64> {
    retry(|| fs::seek(fd, fs::SeekFrom::End(0)))
}

/// Where the first hole at or after `offset` is; the end of the file is one.
pub(super) fn seek_hole(fd: BorrowedFd<'_>, offset: u64) -> Result<u64> {
    #[cfg(test)]
    steps::before(steps::Call::Look)?;
    retry(|| fs::seek(fd, fs::SeekFrom::Hole(offset)))
}

/// A system call that the crate has none for, or only one that takes references.
fn raw_call(mut call: impl FnMut() -> libc::c_long) -> Result<usize> {
    let last = || Errno::from_io_error(&std::io::Error::last_os_error()).unwrap_or(Errno::IO);
    retry(|| usize::try_from(call()).map_err(|_| last()))
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
) -> Result<usize> {
    #[cfg(test)]
    let segments = &steps::before_moving(steps::Call::Read, segments)?[..];
    let (fd, offset) = (fd.as_raw_fd(), offset.cast_signed());
    if let ([segment], 0) = (segments, flags) {
        // The same by a shorter way through the kernel: a tenth of a microsecond of half a one.
        // SAFETY: the caller vouches for the segment.
        return raw_call(|| unsafe {
            libc::pread(fd, segment.iov_base, segment.iov_len, offset) as libc::c_long
        });
    }
    let count = i32::try_from(segments.len().min(IOV_MAX)).unwrap_or(0);
    // SAFETY: the caller vouches for the segments.
    raw_call(|| unsafe {
        match flags {
            // The older call is there where the newer one is not.
            0 => libc::preadv(fd, segments.as_ptr(), count, offset) as libc::c_long,
            _ => libc::preadv2(fd, segments.as_ptr(), count, offset, flags) as libc::c_long,
        }
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
) -> Result<usize> {
    #[cfg(test)]
    let call = if flags & libc::RWF_NOWAIT == 0 { steps::Call::Write } else { steps::Call::WriteNow };
    #[cfg(test)]
    let segments = &steps::before_moving(call, segments)?[..];
    let (number, place) = (fd.as_raw_fd(), offset);
    if let ([segment], Some(offset), 0) = (segments, offset, flags) {
        // SAFETY: the caller vouches for the segment.
        return raw_call(|| unsafe {
            libc::pwrite(number, segment.iov_base, segment.iov_len, offset.cast_signed()) as libc::c_long
        });
    }
    if flags == 0 {
        // SAFETY: the caller vouches for the segments.
        return unsafe { pwritev(fd, segments, place) };
    }
    let count = i32::try_from(segments.len().min(IOV_MAX)).unwrap_or(0);
    let offset = offset.map_or(-1, u64::cast_signed);
    // SAFETY: the caller vouches for the segments.
    let written = raw_call(|| unsafe {
        libc::pwritev2(number, segments.as_ptr(), count, offset, flags) as libc::c_long
    });
    match written {
        // The C library says of a call that is missing that its flags are not supported.
        Err(Errno::NOSYS | Errno::PERM | Errno::OPNOTSUPP) if flags & libc::RWF_NOWAIT == 0 => {
            // SAFETY: the caller vouches for the segments.
            unsafe { write_in_steps(fd, segments, place, flags) }
        }
        written => written,
    }
}

/// `pwritev`, or `writev` at the descriptor's own position.
///
/// # Safety
/// As of [`pwritev2`].
unsafe fn pwritev(fd: BorrowedFd<'_>, segments: &[libc::iovec], offset: Option<u64>) -> Result<usize> {
    let count = i32::try_from(segments.len().min(IOV_MAX)).unwrap_or(0);
    let fd = fd.as_raw_fd();
    // SAFETY: the caller vouches for the segments.
    raw_call(|| unsafe {
        match offset {
            Some(offset) => libc::pwritev(fd, segments.as_ptr(), count, offset.cast_signed()) as libc::c_long,
            None => libc::writev(fd, segments.as_ptr(), count) as libc::c_long,
        }
    })
}

/// What `pwritev2` does, by the older calls, where it is missing or forbidden. Processes beside the server may write between the steps.
///
/// # Safety
/// As of [`pwritev2`].
unsafe fn write_in_steps(
    fd: BorrowedFd<'_>,
    segments: &[libc::iovec],
    offset: Option<u64>,
    flags: i32,
) -> Result<usize> {
    if flags & libc::RWF_APPEND != 0 {
        seek_end(fd)?;
    }
    // SAFETY: the caller vouches for the segments.
    let count = unsafe { pwritev(fd, segments, offset) }?;
    if flags & libc::RWF_SYNC != 0 {
        retry(|| fs::fsync(fd))?;
    } else if flags & libc::RWF_DSYNC != 0 {
        retry(|| fs::fdatasync(fd))?;
    }
    Ok(count)
}

/// `FICLONERANGE`: a range of one file shares the blocks of a range of another, where the file system can.
pub(super) fn clone_range(
    to: BorrowedFd<'_>,
    to_offset: u64,
    from: BorrowedFd<'_>,
    from_offset: u64,
    len: u64,
) -> Result<()> {
    let range = libc::file_clone_range {
        src_fd: from.as_raw_fd().into(),
        src_offset: from_offset,
        src_length: len,
        dest_offset: to_offset,
    };
    // SAFETY: the kernel reads the structure, which is that of this request, and nothing else.
    raw_call(|| unsafe {
        libc::c_long::from(libc::ioctl(to.as_raw_fd(), libc::FICLONERANGE, &raw const range))
    })?;
    Ok(())
}

/// `sync_file_range`: waits until a range is written out, which makes it no more durable. Of length 0 it reaches to the end of the file.
pub(super) fn write_out(fd: BorrowedFd<'_>, offset: u64, len: u64) -> Result<()> {
    let flags =
        libc::SYNC_FILE_RANGE_WAIT_BEFORE | libc::SYNC_FILE_RANGE_WRITE | libc::SYNC_FILE_RANGE_WAIT_AFTER;
    let (fd, offset, len) = (fd.as_raw_fd(), offset.cast_signed(), len.cast_signed());
    // SAFETY: no memory is passed.
    raw_call(|| unsafe { libc::c_long::from(libc::sync_file_range(fd, offset, len, flags)) })?;
    Ok(())
}

/// The file system keeps this many of `len` bytes from `offset` in the page cache, in pages.
pub(in crate::storage) fn cached_pages(fd: BorrowedFd<'_>, offset: u64, len: u64) -> Result<u64> {
    // `cachestat` (Linux 6.5): its range and its five counters.
    const SYS_CACHESTAT: libc::c_long = 451;
    #[cfg(test)]
    steps::before(steps::Call::Look)?;
    let fd = libc::c_long::from(fd.as_raw_fd());
    let range = [offset, len];
    let mut counters = [0u64; 5];
    // SAFETY: both buffers have the layout that the call wants.
    raw_call(|| unsafe {
        libc::syscall(SYS_CACHESTAT, fd, range.as_ptr(), counters.as_mut_ptr(), 0 as libc::c_long)
    })?;
    Ok(counters[0])
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "tests")]
    use std::os::fd::AsFd;
    use std::os::unix::fs::MetadataExt;

    use super::*;

    #[test]
    fn kernel_names_no_two_files_alike_though_they_have_one_number() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("f");
        let make = || {
            std::fs::write(&path, b"x").unwrap();
            let file = std::fs::File::open(&path).unwrap();
            let handle = kernel_handle(file.as_fd(), c"").ok()?;
            assert_eq!(kernel_handle(file.as_fd(), c"").ok(), Some(handle.clone()), "asked again");
            Some((file.metadata().unwrap().ino(), handle))
        };
        // Some file systems, such as overlays, name none: then nothing is certain.
        let Some(first) = make() else { return };
        let mut all = vec![first];
        for _ in 0..100 {
            std::fs::remove_file(&path).unwrap();
            let made = make().unwrap();
            assert!(all.iter().all(|(_, handle)| *handle != made.1), "{all:?} and {made:?}");
            all.push(made);
        }
    }

    #[test]
    fn hash_is_never_the_number_that_says_nothing() {
        assert_ne!(hash(b""), 0);
        assert_ne!(hash(b"one"), hash(b"two"));
    }
}
