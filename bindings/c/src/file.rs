//! Open files: data, size, durability, attributes.
#![allow(unsafe_code, reason = "pointers of C callers")]
#![allow(clippy::missing_safety_doc, reason = "the header is the contract")]

use std::ffi::{OsStr, c_char, c_int, c_void};
use std::io::{IoSlice, IoSliceMut};

use dafs_client::{
    AccessPattern, Attributes, Dir, Extent, File, FileKind, OpenOptions, SetAttributes, SetTime, Stability,
    Timestamp,
};
use dafs_ffi::{put, slice, slice_mut, text};

use crate::abi::dafs_extent;
use crate::call::{Failure, Result, done, handle_of, invalid, run, with_dir, with_file};
use crate::memory::registered;
use crate::object::Object;

/// As read(2): more is moved by further calls.
pub(crate) const TRANSFER_SIZE_MAX: usize = 0x7fff_f000;

/// Opens a file below a directory. flags as of open(2): O_RDONLY, O_WRONLY or O_RDWR, with O_CREAT, O_EXCL, O_TRUNC, O_APPEND, O_NOFOLLOW,
/// O_DIRECT (past the server's page cache), O_DSYNC and O_SYNC (each write is durable when it returns); O_CLOEXEC and O_NOCTTY mean
/// nothing here. A file that is made has mode less the umask. Returns its handle, or -1. Blocks.
///
/// The handle has no position: pread, pwrite, append.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn dafs_openat(dir: i64, path: *const c_char, flags: c_int, mode: u32) -> i64 {
    run(|| {
        // SAFETY: a string of the caller's, by the contract.
        let path = unsafe { text(path) }?;
        let file = with_dir(dir, |dir| match flags & (libc::O_ACCMODE | libc::O_CREAT) {
            READ_OR_CREATE => open_or_create(dir, path, flags, mode),
            _ => Ok(dir.open_with(path, &options_of(flags, mode)?)?),
        })?;
        handle_of(Object::File(file))
    })
}

const READ_OR_CREATE: c_int = libc::O_RDONLY | libc::O_CREAT;

/// The server makes a file for writing only: what is there is opened to read, or a file is made and opened again.
fn open_or_create(dir: &Dir, path: &OsStr, flags: c_int, mode: u32) -> Result<File> {
    let to_read = options_of(flags & !(libc::O_CREAT | libc::O_EXCL), 0)?;
    if flags & libc::O_EXCL == 0 {
        match dir.open_with(path, &to_read) {
            Err(error) if error.is_not_found() => {}
            opened => return Ok(opened?),
        }
    }
    let to_create = flags & !libc::O_ACCMODE | libc::O_WRONLY;
    drop(dir.open_with(path, &options_of(to_create, mode)?)?);
    Ok(dir.open_with(path, &to_read)?)
}

fn options_of(flags: c_int, mode: u32) -> Result<OpenOptions> {
    const NO_MEANING: c_int = libc::O_CLOEXEC | libc::O_NOCTTY | libc::O_LARGEFILE;
    const KNOWN: c_int = libc::O_ACCMODE
        | libc::O_CREAT
        | libc::O_EXCL
        | libc::O_TRUNC
        | libc::O_APPEND
        | libc::O_NOFOLLOW
        | libc::O_DIRECT
        | libc::O_SYNC
        | libc::O_DSYNC
        | NO_MEANING;
    let unknown = flags & !KNOWN;
    if unknown != 0 {
        return Err(invalid(format!("open flags {unknown:#o} are not supported")));
    }
    let has = |flag: c_int| flags & flag == flag;
    let mut options = OpenOptions::new();
    let access = flags & libc::O_ACCMODE;
    options.read(access != libc::O_WRONLY);
    let writes = access != libc::O_RDONLY;
    options.write(writes).append(writes && has(libc::O_APPEND));
    options.create(has(libc::O_CREAT)).create_new(has(libc::O_CREAT | libc::O_EXCL));
    options.truncate(has(libc::O_TRUNC)).no_follow(has(libc::O_NOFOLLOW)).direct_io(has(libc::O_DIRECT));
    options.stability(match (has(libc::O_SYNC), has(libc::O_DSYNC)) {
        (true, _) => Stability::FileSync,
        (false, true) => Stability::DataSync,
        (false, false) => Stability::Unstable,
    });
    if has(libc::O_CREAT) {
        options.mode(mode & 0o7777 & !umask());
    }
    Ok(options)
}

/// The file mode creation mask, which cannot be asked for without setting it but here.
pub(crate) fn umask() -> u32 {
    let status = std::fs::read_to_string("/proc/self/status").unwrap_or_default();
    let line = status.lines().find_map(|line| line.strip_prefix("Umask:"));
    line.and_then(|octal| u32::from_str_radix(octal.trim(), 8).ok()).unwrap_or(0o022)
}

pub(crate) fn offset_of(offset: i64) -> Result<u64> {
    u64::try_from(offset).map_err(|_| invalid(format!("offset {offset} is negative")))
}

pub(crate) fn count_of(count: usize) -> Result<isize> {
    isize::try_from(count).map_err(|_| invalid("a count beyond what fits"))
}

/// Reads at most count bytes at an offset into the caller's memory; returns how many, 0 at the end of the file. Fewer only where the file
/// ends. Blocks.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn dafs_pread(file: i64, buffer: *mut c_void, count: usize, offset: i64) -> isize {
    run(|| {
        let (count, offset) = (count.min(TRANSFER_SIZE_MAX), offset_of(offset)?);
        // SAFETY: memory of the caller's, by the contract.
        let memory = unsafe { slice_mut(buffer.cast::<u8>(), count) }?;
        with_file(file, |file| match registered(buffer, count) {
            Some(mut part) => count_of(file.read_buf_at(&mut part, offset)?),
            None => count_of(file.read_at(memory, offset)?),
        })
    })
}

/// Writes count bytes at an offset from the caller's memory; returns how many. Fewer only where the server met an error behind them. With
/// O_APPEND too it writes at the offset. Blocks.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn dafs_pwrite(file: i64, buffer: *const c_void, count: usize, offset: i64) -> isize {
    run(|| {
        let (count, offset) = (count.min(TRANSFER_SIZE_MAX), offset_of(offset)?);
        // SAFETY: memory of the caller's, by the contract.
        let memory = unsafe { slice(buffer.cast::<u8>(), count) }?;
        with_file(file, |file| match registered(buffer, count) {
            Some(part) => count_of(file.write_buf_at(&part, offset)?),
            None => count_of(file.write_at(memory, offset)?),
        })
    })
}

/// As preadv(2). Blocks.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn dafs_preadv(file: i64, iov: *const libc::iovec, count: c_int, offset: i64) -> isize {
    run(|| {
        let offset = offset_of(offset)?;
        // SAFETY: an array of pieces of the caller's memory, by the contract.
        let mut pieces = unsafe { pieces_mut(iov, count) }?;
        with_file(file, |file| count_of(file.read_vectored_at(&mut pieces, offset)?))
    })
}

/// As pwritev(2). Blocks.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn dafs_pwritev(
    file: i64,
    iov: *const libc::iovec,
    count: c_int,
    offset: i64,
) -> isize {
    run(|| {
        let offset = offset_of(offset)?;
        // SAFETY: an array of pieces of the caller's memory, by the contract.
        let pieces = unsafe { pieces_of(iov, count) }?;
        with_file(file, |file| count_of(file.write_vectored_at(&pieces, offset)?))
    })
}

/// Appends count bytes to the file, whole and atomically; returns their offset. Blocks.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn dafs_append(file: i64, buffer: *const c_void, count: usize) -> i64 {
    run(|| {
        // SAFETY: memory of the caller's, by the contract.
        let memory = unsafe { slice(buffer.cast::<u8>(), count) }?;
        let offset = with_file(file, |file| Ok(file.append(memory)?))?;
        i64::try_from(offset).map_err(|_| invalid("an offset beyond what fits"))
    })
}

/// Reads a list of extents of the file, one after the other, into a list of pieces of memory: one request. Returns the bytes read from
/// the beginning of the list without a gap. Blocks.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn dafs_read_list(
    file: i64,
    extents: *const dafs_extent,
    extent_count: usize,
    iov: *const libc::iovec,
    iov_count: c_int,
) -> isize {
    run(|| {
        // SAFETY: arrays and memory of the caller's, by the contract.
        let (extents, mut pieces) =
            unsafe { (extents_of(extents, extent_count)?, pieces_mut(iov, iov_count)?) };
        with_file(file, |file| count_of(file.read_list(&extents, &mut pieces)?.count))
    })
}

/// Writes a list of pieces of memory to a list of extents of the file: one request. Returns the bytes written from the beginning of the
/// list without a gap. Blocks.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn dafs_write_list(
    file: i64,
    extents: *const dafs_extent,
    extent_count: usize,
    iov: *const libc::iovec,
    iov_count: c_int,
) -> isize {
    run(|| {
        // SAFETY: arrays and memory of the caller's, by the contract.
        let (extents, pieces) = unsafe { (extents_of(extents, extent_count)?, pieces_of(iov, iov_count)?) };
        with_file(file, |file| count_of(file.write_list(&extents, &pieces)?))
    })
}

/// # Safety
/// As of [`slice`].
pub(crate) unsafe fn extents_of(extents: *const dafs_extent, count: usize) -> Result<Vec<Extent>> {
    // SAFETY: promised by the caller.
    let extents = unsafe { slice(extents, count) }?;
    Ok(extents.iter().map(|extent| Extent::new(extent.offset, extent.len)).collect())
}

/// # Safety
/// As of [`slice`].
pub(crate) unsafe fn vectors_of<'a>(iov: *const libc::iovec, count: c_int) -> Result<&'a [libc::iovec]> {
    let count = usize::try_from(count).map_err(|_| invalid(format!("{count} pieces of memory")))?;
    // SAFETY: promised by the caller.
    Ok(unsafe { slice(iov, count) }?)
}

/// # Safety
/// As of [`slice`], of each piece too.
unsafe fn pieces_of<'a>(iov: *const libc::iovec, count: c_int) -> Result<Vec<IoSlice<'a>>> {
    // SAFETY: promised by the caller.
    let vectors = unsafe { vectors_of(iov, count) }?;
    // SAFETY: promised by the caller.
    let piece = |of: &libc::iovec| Ok(IoSlice::new(unsafe { slice(of.iov_base.cast::<u8>(), of.iov_len) }?));
    vectors.iter().map(piece).collect()
}

/// # Safety
/// As of [`slice_mut`], of each piece too.
unsafe fn pieces_mut<'a>(iov: *const libc::iovec, count: c_int) -> Result<Vec<IoSliceMut<'a>>> {
    // SAFETY: promised by the caller.
    let vectors = unsafe { vectors_of(iov, count) }?;
    let piece = |of: &libc::iovec| {
        // SAFETY: promised by the caller.
        Ok(IoSliceMut::new(unsafe { slice_mut(of.iov_base.cast::<u8>(), of.iov_len) }?))
    };
    vectors.iter().map(piece).collect()
}

/// Makes all that was written to the file durable, with its attributes. Where a restart of the server lost some of it, the error is
/// DAFS_E_WRITES_LOST, and dafs_lost() has the ranges. Blocks.
#[unsafe(no_mangle)]
pub extern "C" fn dafs_fsync(file: i64) -> c_int {
    done(|| with_file(file, |file| Ok(file.commit()?)))
}

/// As dafs_fsync(), of data alone.
#[unsafe(no_mangle)]
pub extern "C" fn dafs_fdatasync(file: i64) -> c_int {
    done(|| with_file(file, |file| Ok(file.commit_range(0, 0, Stability::DataSync)?)))
}

/// Sets the size. Blocks.
#[unsafe(no_mangle)]
pub extern "C" fn dafs_ftruncate(file: i64, size: i64) -> c_int {
    done(|| with_file(file, |file| Ok(file.truncate(offset_of(size)?)?)))
}

/// As fallocate(2): mode 0, or FALLOC_FL_PUNCH_HOLE | FALLOC_FL_KEEP_SIZE. Blocks.
#[unsafe(no_mangle)]
pub extern "C" fn dafs_fallocate(file: i64, mode: c_int, offset: i64, len: i64) -> c_int {
    done(|| {
        let (offset, len) = (offset_of(offset)?, offset_of(len)?);
        if len == 0 {
            return Err(invalid("a range of 0 bytes"));
        }
        with_file(file, |file| match mode {
            0 => Ok(file.allocate(offset, len)?),
            mode if mode == libc::FALLOC_FL_PUNCH_HOLE | libc::FALLOC_FL_KEEP_SIZE => {
                Ok(file.punch_hole(offset, len)?)
            }
            other => Err(Failure::Caller(libc::EOPNOTSUPP, format!("mode {other} of fallocate"))),
        })
    })
}

/// Where the next data (SEEK_DATA) or hole (SEEK_HOLE) at or behind an offset begins, or with SEEK_END the size plus offset. The handle has
/// no position, so nothing is moved. Blocks.
#[unsafe(no_mangle)]
pub extern "C" fn dafs_lseek(file: i64, offset: i64, whence: c_int) -> i64 {
    run(|| {
        let found = with_file(file, |file| match whence {
            libc::SEEK_DATA => Ok(file.seek_data(offset_of(offset)?)?),
            libc::SEEK_HOLE => Ok(file.seek_hole(offset_of(offset)?)?),
            libc::SEEK_END => {
                let size = file.metadata()?.size;
                size.checked_add_signed(offset).ok_or_else(|| invalid("an offset before the beginning"))
            }
            _ => Err(invalid("whence is SEEK_DATA, SEEK_HOLE or SEEK_END: a handle has no position")),
        })?;
        i64::try_from(found)
            .map_err(|_| Failure::Caller(libc::EOVERFLOW, "an offset beyond what fits".into()))
    })
}

/// As posix_fadvise(2), with POSIX_FADV_…: returns -1 and errno for an error. Blocks.
#[unsafe(no_mangle)]
pub extern "C" fn dafs_fadvise(file: i64, offset: i64, len: i64, advice: c_int) -> c_int {
    done(|| {
        let pattern = match advice {
            libc::POSIX_FADV_NORMAL => AccessPattern::Normal,
            libc::POSIX_FADV_SEQUENTIAL => AccessPattern::Sequential,
            libc::POSIX_FADV_RANDOM => AccessPattern::Random,
            libc::POSIX_FADV_WILLNEED => AccessPattern::WillNeed,
            libc::POSIX_FADV_DONTNEED => AccessPattern::WillNotNeed,
            libc::POSIX_FADV_NOREUSE => AccessPattern::Once,
            other => return Err(invalid(format!("advice {other}"))),
        };
        with_file(file, |file| Ok(file.hint(offset_of(offset)?, offset_of(len)?, pattern)?))
    })
}

/// The attributes of the file, as fstat(2) fills them. Blocks.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn dafs_fstat(file: i64, attributes: *mut libc::stat) -> c_int {
    done(|| {
        // SAFETY: room for them, by the contract.
        let place = unsafe { put(attributes) }?;
        *place = stat_of(&with_file(file, |file| Ok(file.metadata()?))?);
        Ok(())
    })
}

/// As fchmod(2). Blocks.
#[unsafe(no_mangle)]
pub extern "C" fn dafs_fchmod(file: i64, mode: u32) -> c_int {
    let set = SetAttributes { mode: Some(mode & 0o7777), ..SetAttributes::default() };
    done(|| with_file(file, |file| set_on(file, &set)))
}

/// As fchown(2); (uint32_t)-1 leaves one as it is. Blocks.
#[unsafe(no_mangle)]
pub extern "C" fn dafs_fchown(file: i64, uid: u32, gid: u32) -> c_int {
    done(|| with_file(file, |file| set_on(file, &owners(uid, gid))))
}

/// As futimens(3): access and modification, each a time, UTIME_NOW or UTIME_OMIT; NULL for now. Blocks.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn dafs_futimens(file: i64, times: *const libc::timespec) -> c_int {
    done(|| {
        // SAFETY: two times, or null, by the contract.
        let set = unsafe { times_of(times) }?;
        with_file(file, |file| set_on(file, &set))
    })
}

fn set_on(file: &File, set: &SetAttributes) -> Result<()> {
    file.set_attributes(set)?;
    Ok(())
}

pub(crate) fn owners(uid: u32, gid: u32) -> SetAttributes {
    let given = |id: u32| (id != u32::MAX).then_some(id);
    SetAttributes { uid: given(uid), gid: given(gid), ..SetAttributes::default() }
}

/// # Safety
/// Null, or two times.
pub(crate) unsafe fn times_of(times: *const libc::timespec) -> Result<SetAttributes> {
    if times.is_null() {
        let now = Some(SetTime::Now);
        return Ok(SetAttributes { atime: now, mtime: now, ..SetAttributes::default() });
    }
    // SAFETY: promised by the caller.
    let times = unsafe { slice(times, 2) }?;
    let time = |time: &libc::timespec| match time.tv_nsec {
        libc::UTIME_NOW => Ok(Some(SetTime::Now)),
        libc::UTIME_OMIT => Ok(None),
        nanoseconds => match u32::try_from(nanoseconds) {
            Ok(nanoseconds) if nanoseconds < 1_000_000_000 => {
                Ok(Some(SetTime::At(Timestamp { seconds: time.tv_sec, nanoseconds })))
            }
            _ => Err(invalid(format!("{nanoseconds} nanoseconds"))),
        },
    };
    Ok(SetAttributes { atime: time(&times[0])?, mtime: time(&times[1])?, ..SetAttributes::default() })
}

pub(crate) fn stat_of(of: &Attributes) -> libc::stat {
    // SAFETY: numbers alone, for which zeros are values.
    let mut stat: libc::stat = unsafe { std::mem::zeroed() };
    let kind = match of.kind {
        FileKind::File => libc::S_IFREG,
        FileKind::Directory => libc::S_IFDIR,
        FileKind::Symlink => libc::S_IFLNK,
        FileKind::BlockDevice => libc::S_IFBLK,
        FileKind::CharDevice => libc::S_IFCHR,
        FileKind::Fifo => libc::S_IFIFO,
        FileKind::Socket => libc::S_IFSOCK,
    };
    let signed = |number: u64| i64::try_from(number).unwrap_or(i64::MAX);
    (stat.st_dev, stat.st_ino, stat.st_rdev) = (of.fs_id, of.file_id, of.device);
    stat.st_mode = kind | of.mode;
    stat.st_nlink = of.links.into();
    (stat.st_uid, stat.st_gid) = (of.uid, of.gid);
    stat.st_size = signed(of.size);
    stat.st_blksize = 1 << 20;
    stat.st_blocks = signed(of.allocated.div_ceil(512));
    (stat.st_atime, stat.st_atime_nsec) = (of.atime.seconds, of.atime.nanoseconds.into());
    (stat.st_mtime, stat.st_mtime_nsec) = (of.mtime.seconds, of.mtime.nanoseconds.into());
    (stat.st_ctime, stat.st_ctime_nsec) = (of.ctime.seconds, of.ctime.nanoseconds.into());
    stat
}
