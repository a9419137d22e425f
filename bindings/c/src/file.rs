//! Open files: data, size, durability, attributes.
#![allow(unsafe_code, reason = "pointers of C callers")]
#![allow(clippy::missing_safety_doc, reason = "the header is the contract")]

use std::ffi::{OsStr, c_char, c_int, c_void};
use std::time::Duration;

use dafs_client::{
    AccessPattern, Attributes, Dir, Extent, File, FileKind, LAYOUT_XATTR, OpenOptions, SetAttributes,
    SetTime, Stability, Timestamp, Token, may_be_striped,
};
use dafs_ffi::{bytes_out, put, slice, slice_mut, text};

use crate::abi::{DAFS_LINK_REPLACE, DAFS_O_DENY_READ, DAFS_O_DENY_WRITE, DAFS_TOKEN_SIZE, dafs_extent};
use crate::call::{Failure, Result, bad_handle, done, handle_of, invalid, run, with_dir, with_file};
use crate::memory::{registered, registered_parts};
use crate::object::{self, Object};

/// As read(2): more is moved by further calls.
pub(crate) const TRANSFER_SIZE_MAX: usize = 0x7fff_f000;

/// Opens a file below a directory. flags as of open(2): O_RDONLY, O_WRONLY or O_RDWR, with O_CREAT, O_EXCL, O_TRUNC, O_APPEND, O_NOFOLLOW,
/// O_DIRECT (past the server's page cache), O_DSYNC and O_SYNC (each write is durable when it returns), DAFS_O_DENY_READ,
/// DAFS_O_DENY_WRITE; O_CLOEXEC and O_NOCTTY mean nothing here. A file that is made has mode less the umask. EOPNOTSUPP for a file that is
/// striped over several servers. Returns its handle, or -1. Blocks.
///
/// With O_DIRECTORY it opens a directory to read, as dafs_opendirat(). With O_TMPFILE, and O_WRONLY or O_RDWR, it makes a file without a
/// name in the file system of the directory path, which gets a name by dafs_flinkat() or is gone when it is closed; EOPNOTSUPP where the
/// server has no such files.
///
/// The handle has no position: pread, pwrite, append. O_APPEND changes nothing.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn dafs_openat(dir: i64, path: *const c_char, flags: c_int, mode: u32) -> i64 {
    run(|| {
        // SAFETY: a string of the caller's, by the contract.
        let path = unsafe { text(path) }?;
        let made = with_dir(dir, |dir| match opening_of(flags, mode)? {
            Opening::File(options) => Ok(Object::File(whole(dir.open_with(path, &options)?)?)),
            Opening::ReadOrCreate => Ok(Object::File(whole(open_or_create(dir, path, flags, mode)?)?)),
            Opening::Unnamed(mode) => Ok(Object::File(dir.open_unnamed(path, mode)?)),
            Opening::Directory { follows: true } => Ok(Object::Dir(dir.open_dir(path)?)),
            Opening::Directory { follows: false } => Ok(Object::Dir(dir.open_dir_no_follow(path)?)),
        })?;
        handle_of(made)
    })
}

/// A file whose data is on this server. One whose data lies on others looks empty, and nobody would see what is written to it. Blocks.
pub(crate) fn whole(file: File) -> Result<File> {
    if may_be_striped(file.attributes_at_open()) && file.xattr(LAYOUT_XATTR).is_ok() {
        let text = "the file is striped over several servers, which libdafs cannot do: use dafs cp or the crate dafs-stripe";
        return Err(Failure::Caller(libc::EOPNOTSUPP, text.to_owned()));
    }
    Ok(file)
}

/// What flags ask for.
pub(crate) enum Opening {
    File(OpenOptions),
    /// A file to read, which is made where it is missing.
    ReadOrCreate,
    /// A file without a name, with this mode.
    Unnamed(u32),
    Directory {
        follows: bool,
    },
}

pub(crate) fn opening_of(flags: c_int, mode: u32) -> Result<Opening> {
    let writes = flags & libc::O_ACCMODE != libc::O_RDONLY;
    if flags & libc::O_TMPFILE == libc::O_TMPFILE {
        let others = flags & !(libc::O_TMPFILE | libc::O_ACCMODE | NO_MEANING);
        return match writes && others == 0 {
            true => Ok(Opening::Unnamed(mode & 0o7777 & !umask())),
            false => Err(invalid("O_TMPFILE goes with O_WRONLY or O_RDWR, and no other flag")),
        };
    }
    if flags & libc::O_DIRECTORY != 0 {
        let others = flags & !(libc::O_DIRECTORY | libc::O_NOFOLLOW | NO_MEANING);
        return match others {
            0 => Ok(Opening::Directory { follows: flags & libc::O_NOFOLLOW == 0 }),
            _ => Err(invalid("O_DIRECTORY goes with O_RDONLY and O_NOFOLLOW alone")),
        };
    }
    match flags & (libc::O_ACCMODE | libc::O_CREAT) {
        READ_OR_CREATE => {
            options_of(flags & !(libc::O_CREAT | libc::O_EXCL), 0).map(|_| Opening::ReadOrCreate)
        }
        _ => Ok(Opening::File(options_of(flags, mode)?)),
    }
}

/// Flags that mean nothing here.
const NO_MEANING: c_int = libc::O_CLOEXEC | libc::O_NOCTTY | libc::O_LARGEFILE;

const READ_OR_CREATE: c_int = libc::O_RDONLY | libc::O_CREAT;

/// The server makes a file for writing only: what is there is opened to read, or a file is made and opened again.
fn open_or_create(dir: &Dir, path: &OsStr, flags: c_int, mode: u32) -> Result<File> {
    let to_read = options_of(flags & !(libc::O_CREAT | libc::O_EXCL), 0)?;
    if flags & libc::O_EXCL == 0 {
        match dir.open_with(path, &to_read) {
            Err(error) if error.is_not_found() => {}
            Ok(opened) if opened.attributes_at_open().kind == FileKind::Directory => {
                return Err(Failure::Caller(libc::EISDIR, format!("{} is a directory", path.display())));
            }
            opened => return Ok(opened?),
        }
    }
    let to_create = flags & !libc::O_ACCMODE | libc::O_WRONLY;
    drop(dir.open_with(path, &options_of(to_create, mode)?)?);
    Ok(dir.open_with(path, &to_read)?)
}

fn options_of(flags: c_int, mode: u32) -> Result<OpenOptions> {
    const KNOWN: c_int = libc::O_ACCMODE
        | libc::O_CREAT
        | libc::O_EXCL
        | libc::O_TRUNC
        | libc::O_APPEND
        | libc::O_NOFOLLOW
        | libc::O_DIRECT
        | libc::O_SYNC
        | libc::O_DSYNC
        | DAFS_O_DENY_READ
        | DAFS_O_DENY_WRITE
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
    options.write(writes).deny_read(has(DAFS_O_DENY_READ)).deny_write(has(DAFS_O_DENY_WRITE));
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
        with_file(file, |file| match registered(file, buffer, count) {
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
        with_file(file, |file| match registered(file, buffer, count) {
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
        let memory = unsafe { memory_of_mut(iov, count) }?;
        // SAFETY: as above.
        with_file(file, |file| count_of(unsafe { file.read_vectored_raw_at(memory, offset) }?))
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
        let memory = unsafe { memory_of(iov, count) }?;
        with_file(file, |file| {
            // SAFETY: as above.
            count_of(unsafe { file.write_vectored_raw_at(memory, offset, file.stability()) }?)
        })
    })
}

/// As pwritev2(2), with the flags RWF_DSYNC and RWF_SYNC: durable when it returns. Blocks.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn dafs_pwritev2(
    file: i64,
    iov: *const libc::iovec,
    count: c_int,
    offset: i64,
    flags: c_int,
) -> isize {
    run(|| {
        let offset = offset_of(offset)?;
        // SAFETY: an array of pieces of the caller's memory, by the contract.
        let memory = unsafe { memory_of(iov, count) }?;
        with_file(file, |file| {
            let stability = match flags {
                0 => file.stability(),
                libc::RWF_DSYNC => Stability::DataSync,
                flags if flags & !(libc::RWF_SYNC | libc::RWF_DSYNC) == 0 => Stability::FileSync,
                other => {
                    return Err(Failure::Caller(libc::EOPNOTSUPP, format!("flags {other:#x} of pwritev2")));
                }
            };
            // SAFETY: as above.
            count_of(unsafe { file.write_vectored_raw_at(memory, offset, stability) }?)
        })
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
        let (extents, memory) =
            unsafe { (extents_of(extents, extent_count)?, memory_of_mut(iov, iov_count)?) };
        with_file(file, |file| {
            let pieces = memory.iter().map(|&(first, len)| (first.cast_const(), len));
            match registered_parts(file, pieces) {
                Some((mut buffer, parts)) => {
                    count_of(file.read_list_buf(&extents, &mut buffer, &parts)?.count)
                }
                // SAFETY: as above.
                None => count_of(unsafe { file.read_list_raw(&extents, memory) }?.count),
            }
        })
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
        let (extents, memory) = unsafe { (extents_of(extents, extent_count)?, memory_of(iov, iov_count)?) };
        with_file(file, |file| match registered_parts(file, memory.iter().copied()) {
            Some((buffer, parts)) => count_of(file.write_list_buf(&extents, &buffer, &parts)?),
            // SAFETY: as above.
            None => count_of(unsafe { file.write_list_raw(&extents, memory) }?),
        })
    })
}

/// # Safety
/// As of [`slice`].
pub(crate) unsafe fn extents_of(extents: *const dafs_extent, count: usize) -> Result<Vec<Extent>> {
    // SAFETY: promised by the caller.
    let extents = unsafe { slice(extents, count) }?;
    Ok(extents.iter().map(|extent| Extent::new(extent.offset, extent.len)).collect())
}

/// Pieces of the caller's memory, to be read from.
///
/// # Safety
/// As of [`slice`], of each piece too.
pub(crate) unsafe fn memory_of(iov: *const libc::iovec, count: c_int) -> Result<Vec<(*const u8, usize)>> {
    let count = usize::try_from(count).map_err(|_| invalid(format!("{count} pieces of memory")))?;
    // SAFETY: promised by the caller.
    let vectors = unsafe { slice(iov, count) }?;
    let piece = |of: &libc::iovec| {
        // SAFETY: promised by the caller.
        unsafe { slice(of.iov_base.cast::<u8>(), of.iov_len) }?;
        Ok((of.iov_base.cast::<u8>().cast_const(), of.iov_len))
    };
    vectors.iter().map(piece).collect()
}

/// As [`memory_of`], to be written.
///
/// # Safety
/// As of [`memory_of`].
pub(crate) unsafe fn memory_of_mut(iov: *const libc::iovec, count: c_int) -> Result<Vec<(*mut u8, usize)>> {
    // SAFETY: promised by the caller.
    let memory = unsafe { memory_of(iov, count) }?;
    Ok(memory.into_iter().map(|(first, len)| (first.cast_mut(), len)).collect())
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

/// As dafs_fdatasync(), of a range (len 0: to the end of the file). Blocks.
#[unsafe(no_mangle)]
pub extern "C" fn dafs_fdatasync_range(file: i64, offset: i64, len: i64) -> c_int {
    done(|| {
        let (offset, len) = (offset_of(offset)?, offset_of(len)?);
        with_file(file, |file| Ok(file.commit_range(offset, len, Stability::DataSync)?))
    })
}

/// Copies count bytes from one file to another of the same session, or within one where the ranges do not overlap; returns how many: fewer
/// only where the source ends. The data stays on the server. EXDEV where that cannot copy between the two. Blocks.
#[unsafe(no_mangle)]
pub extern "C" fn dafs_copy_file_range(
    from: i64,
    from_offset: i64,
    to: i64,
    to_offset: i64,
    count: usize,
) -> isize {
    run(|| {
        let (offset, target) = (offset_of(from_offset)?, offset_of(to_offset)?);
        let count = count.min(isize::MAX as usize);
        if count == 0 {
            return Ok(0);
        }
        let copied = with_file(from, |from| {
            with_file(to, |to| Ok(from.copy_range(offset, count as u64, to, target)?))
        })?;
        isize::try_from(copied).map_err(|_| invalid("a count beyond what fits"))
    })
}

/// Gives a file a name, or another one, below a directory of the same export. flags: 0, or DAFS_LINK_REPLACE. Of a file that was opened by
/// O_TMPFILE, the name is durable after the next dafs_fsync() of it. Blocks.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn dafs_flinkat(file: i64, dir: i64, path: *const c_char, flags: c_int) -> c_int {
    done(|| {
        // SAFETY: a string of the caller's, by the contract.
        let path = unsafe { text(path) }?;
        let replace = replaces(flags)?;
        with_file(file, |file| with_dir(dir, |dir| Ok(file.link_to(dir, path, replace)?))).map(|_| ())
    })
}

/// 0 or `DAFS_LINK_REPLACE`.
pub(crate) fn replaces(flags: c_int) -> Result<bool> {
    match flags {
        0 => Ok(false),
        DAFS_LINK_REPLACE => Ok(true),
        other => Err(invalid(format!("flags {other:#x}: 0 or DAFS_LINK_REPLACE"))),
    }
}

/// Makes a token of the file, DAFS_TOKEN_SIZE bytes, by which other sessions of the same user and key open it: dafs_open_token(). access:
/// O_RDONLY, O_WRONLY or O_RDWR. It lives for time_ms, 60 s at most, which is also what 0 asks for, and no longer than this session.
/// Blocks.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn dafs_share(file: i64, access: c_int, time_ms: u32, token: *mut c_void) -> c_int {
    done(|| {
        let (read, write) = match access {
            libc::O_RDONLY => (true, false),
            libc::O_WRONLY => (false, true),
            libc::O_RDWR => (true, true),
            other => return Err(invalid(format!("access {other:#o}: O_RDONLY, O_WRONLY or O_RDWR"))),
        };
        let time = Duration::from_millis(time_ms.into());
        let made = with_file(file, |file| Ok(file.share(read, write, time)?))?;
        // SAFETY: room for a token, by the contract.
        unsafe { bytes_out(&made.as_bytes()[..], token.cast::<u8>()) }?;
        Ok(())
    })
}

/// Opens the file that a token names, with the token's rights. export is a handle of dafs_mount(). path and flags are those of whoever
/// opened the file: after a restart of the server it is opened again by them. ESTALE where the token's time is over or it is for others.
/// Returns its handle, or -1. Blocks.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn dafs_open_token(
    export: i64,
    token: *const c_void,
    path: *const c_char,
    flags: c_int,
) -> i64 {
    run(|| {
        // SAFETY: a token and a string of the caller's, by the contract.
        let (token, path) = unsafe { (slice(token.cast::<u8>(), DAFS_TOKEN_SIZE)?, text(path)?) };
        let token = Token::from_bytes(token).ok_or_else(|| invalid("a token of another size"))?;
        let options = options_of(flags & !(libc::O_CREAT | libc::O_EXCL | libc::O_TRUNC), 0)?;
        let file = match object::find(export).as_deref() {
            Some(Object::Export(export)) => export.open_token(&token, path, &options)?,
            _ => return Err(bad_handle(export, "an export")),
        };
        handle_of(Object::File(file))
    })
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
        let pattern = pattern_of(advice)?;
        with_file(file, |file| Ok(file.hint(offset_of(offset)?, offset_of(len)?, pattern)?))
    })
}

pub(crate) fn pattern_of(advice: c_int) -> Result<AccessPattern> {
    match advice {
        libc::POSIX_FADV_NORMAL => Ok(AccessPattern::Normal),
        libc::POSIX_FADV_SEQUENTIAL => Ok(AccessPattern::Sequential),
        libc::POSIX_FADV_RANDOM => Ok(AccessPattern::Random),
        libc::POSIX_FADV_WILLNEED => Ok(AccessPattern::WillNeed),
        libc::POSIX_FADV_DONTNEED => Ok(AccessPattern::WillNotNeed),
        libc::POSIX_FADV_NOREUSE => Ok(AccessPattern::Once),
        other => Err(invalid(format!("advice {other}"))),
    }
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
