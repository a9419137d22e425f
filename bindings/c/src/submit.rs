//! Nonblocking forms of single calls.
#![allow(unsafe_code, reason = "pointers of C callers")]
#![allow(clippy::missing_safety_doc, reason = "the header is the contract")]

use std::ffi::{c_char, c_int, c_void};

use dafs_client::{Attributes, File, Pending, Stability, may_be_striped};
use dafs_ffi::{put, slice, slice_mut, text};

use crate::abi::{dafs_extent, dafs_op};
use crate::call::{Failure, Result, handle_of, invalid, with_dir, with_file as open_file};
use crate::dir::{follows, removes_dir, replaces};
use crate::file::{
    Opening, TRANSFER_SIZE_MAX, extents_of, memory_of, memory_of_mut, offset_of, opening_of, stat_of, umask,
};
use crate::lock::{kind_of, range_of};
use crate::memory::{registered, registered_parts};
use crate::object::{Object, Operation};
use crate::op::{signed, submit, with_file};

/// Nonblocking form of dafs_pread(): op begins with DAFS_OP_INIT. The memory is the operation's until that has ended: until dafs_test()
/// returns 1, or dafs_wait() or dafs_cancel() return. Each operation that was submitted is ended by one of these.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn dafs_submit_pread(
    file: i64,
    buffer: *mut c_void,
    count: usize,
    offset: i64,
    op: *mut dafs_op,
) -> c_int {
    let begin = with_file(file, |file| {
        let (count, offset) = (count.min(TRANSFER_SIZE_MAX), offset_of(offset)?);
        // SAFETY: memory of the caller's, which stays the operation's, by the contract.
        unsafe {
            slice_mut(buffer.cast::<u8>(), count)?;
            Ok(match registered(file, buffer, count) {
                Some(part) => file.submit_read_at(part, offset).map(|moved| Ok(signed(moved.result?))),
                None => file.submit_read_raw_at(buffer.cast(), count, offset).map(|moved| Ok(signed(moved?))),
            })
        }
    });
    // SAFETY: an operation of the caller's, by the contract.
    unsafe { submit(op, begin) }
}

/// Nonblocking form of dafs_pwrite(), as dafs_submit_pread().
#[unsafe(no_mangle)]
pub unsafe extern "C" fn dafs_submit_pwrite(
    file: i64,
    buffer: *const c_void,
    count: usize,
    offset: i64,
    op: *mut dafs_op,
) -> c_int {
    let begin = with_file(file, |file| {
        let (count, offset) = (count.min(TRANSFER_SIZE_MAX), offset_of(offset)?);
        // SAFETY: memory of the caller's, which stays the operation's, by the contract.
        unsafe {
            slice(buffer.cast::<u8>(), count)?;
            Ok(match registered(file, buffer, count) {
                Some(part) => file.submit_write_at(part, offset).map(|moved| Ok(signed(moved.result?))),
                None => {
                    file.submit_write_raw_at(buffer.cast(), count, offset).map(|moved| Ok(signed(moved?)))
                }
            })
        }
    });
    // SAFETY: an operation of the caller's, by the contract.
    unsafe { submit(op, begin) }
}

/// Nonblocking form of dafs_preadv(). The array is copied; the memory is the operation's until it has ended.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn dafs_submit_preadv(
    file: i64,
    iov: *const libc::iovec,
    count: c_int,
    offset: i64,
    op: *mut dafs_op,
) -> c_int {
    let begin = with_file(file, |file| {
        let offset = offset_of(offset)?;
        // SAFETY: an array and memory of the caller's, which stays the operation's, by the contract.
        let read = unsafe { file.submit_read_vectored_raw_at(memory_of_mut(iov, count)?, offset) };
        Ok(read.map(|read| Ok(signed(read?))))
    });
    // SAFETY: an operation of the caller's, by the contract.
    unsafe { submit(op, begin) }
}

/// Nonblocking form of dafs_pwritev(), as dafs_submit_preadv().
#[unsafe(no_mangle)]
pub unsafe extern "C" fn dafs_submit_pwritev(
    file: i64,
    iov: *const libc::iovec,
    count: c_int,
    offset: i64,
    op: *mut dafs_op,
) -> c_int {
    let begin = with_file(file, |file| {
        let offset = offset_of(offset)?;
        // SAFETY: an array and memory of the caller's, which stays the operation's, by the contract.
        let written = unsafe { file.submit_write_vectored_raw_at(memory_of(iov, count)?, offset) };
        Ok(written.map(|written| Ok(signed(written?))))
    });
    // SAFETY: an operation of the caller's, by the contract.
    unsafe { submit(op, begin) }
}

/// Nonblocking form of dafs_append(), as dafs_submit_pwrite().
#[unsafe(no_mangle)]
pub unsafe extern "C" fn dafs_submit_append(
    file: i64,
    buffer: *const c_void,
    count: usize,
    op: *mut dafs_op,
) -> c_int {
    let begin = with_file(file, |file| {
        // SAFETY: memory of the caller's, which stays the operation's, by the contract.
        let appended = unsafe {
            slice(buffer.cast::<u8>(), count)?;
            file.submit_append_raw(buffer.cast(), count)
        };
        Ok(appended.map(|offset| i64::try_from(offset?).map_err(|_| invalid("an offset beyond what fits"))))
    });
    // SAFETY: an operation of the caller's, by the contract.
    unsafe { submit(op, begin) }
}

/// Nonblocking form of dafs_read_list(). The arrays are copied; the memory is the operation's until it has ended.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn dafs_submit_read_list(
    file: i64,
    extents: *const dafs_extent,
    extent_count: usize,
    iov: *const libc::iovec,
    iov_count: c_int,
    op: *mut dafs_op,
) -> c_int {
    let begin = with_file(file, |file| {
        // SAFETY: arrays and memory of the caller's, which stays the operation's, by the contract.
        unsafe {
            let (extents, memory) = (extents_of(extents, extent_count)?, memory_of_mut(iov, iov_count)?);
            Ok(match registered_parts(file, memory.iter().map(|&(first, len)| (first.cast_const(), len))) {
                Some((buffer, parts)) => {
                    file.submit_read_list_buf(&extents, buffer, &parts).map(|read| Ok(signed(read.result?)))
                }
                None => file.submit_read_list_raw(&extents, &memory).map(|read| Ok(signed(read?.count))),
            })
        }
    });
    // SAFETY: an operation of the caller's, by the contract.
    unsafe { submit(op, begin) }
}

/// Nonblocking form of dafs_write_list(), as dafs_submit_read_list().
#[unsafe(no_mangle)]
pub unsafe extern "C" fn dafs_submit_write_list(
    file: i64,
    extents: *const dafs_extent,
    extent_count: usize,
    iov: *const libc::iovec,
    iov_count: c_int,
    op: *mut dafs_op,
) -> c_int {
    let begin = with_file(file, |file| {
        // SAFETY: arrays and memory of the caller's, which stays the operation's, by the contract.
        unsafe {
            let (extents, memory) = (extents_of(extents, extent_count)?, memory_of(iov, iov_count)?);
            Ok(match registered_parts(file, memory.iter().copied()) {
                Some((buffer, parts)) => file
                    .submit_write_list_buf(&extents, buffer, &parts)
                    .map(|written| Ok(signed(written.result?))),
                None => file.submit_write_list_raw(&extents, &memory).map(|written| Ok(signed(written?))),
            })
        }
    });
    // SAFETY: an operation of the caller's, by the contract.
    unsafe { submit(op, begin) }
}

/// Nonblocking form of dafs_fsync().
#[unsafe(no_mangle)]
pub unsafe extern "C" fn dafs_submit_fsync(file: i64, op: *mut dafs_op) -> c_int {
    // SAFETY: an operation of the caller's, by the contract.
    unsafe { submit(op, with_file(file, |file| Ok(nothing(file.submit_commit())))) }
}

/// Nonblocking form of dafs_fdatasync().
#[unsafe(no_mangle)]
pub unsafe extern "C" fn dafs_submit_fdatasync(file: i64, op: *mut dafs_op) -> c_int {
    let begin = with_file(file, |file| Ok(nothing(file.submit_commit_range(0, 0, Stability::DataSync))));
    // SAFETY: an operation of the caller's, by the contract.
    unsafe { submit(op, begin) }
}

/// Nonblocking form of dafs_ftruncate().
#[unsafe(no_mangle)]
pub unsafe extern "C" fn dafs_submit_ftruncate(file: i64, size: i64, op: *mut dafs_op) -> c_int {
    let begin = with_file(file, |file| Ok(nothing(file.submit_truncate(offset_of(size)?))));
    // SAFETY: an operation of the caller's, by the contract.
    unsafe { submit(op, begin) }
}

/// Nonblocking form of dafs_copy_file_range(), in one request: the server may copy a part alone, of 64 MiB mostly.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn dafs_submit_copy_file_range(
    from: i64,
    from_offset: i64,
    to: i64,
    to_offset: i64,
    count: usize,
    op: *mut dafs_op,
) -> c_int {
    let begin = with_file(from, |from| {
        let (offset, target) = (offset_of(from_offset)?, offset_of(to_offset)?);
        if count == 0 {
            return Err(invalid("a copy of 0 bytes"));
        }
        open_file(to, |to| {
            let copied = from.submit_copy_some(offset, count as u64, to, target);
            Ok(copied.map(|copied| Ok(i64::try_from(copied?.count).unwrap_or(i64::MAX))))
        })
    });
    // SAFETY: an operation of the caller's, by the contract.
    unsafe { submit(op, begin) }
}

/// Nonblocking form of dafs_lock(). It waits for others as long as it takes: dafs_cancel() ends that.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn dafs_submit_lock(
    file: i64,
    offset: i64,
    len: i64,
    kind: c_int,
    op: *mut dafs_op,
) -> c_int {
    let begin = with_file(file, |file| Ok(nothing(file.submit_lock(range_of(offset, len)?, kind_of(kind)?))));
    // SAFETY: an operation of the caller's, by the contract.
    unsafe { submit(op, begin) }
}

/// Nonblocking form of dafs_fstat(). The attributes are the operation's until it has ended.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn dafs_submit_fstat(
    file: i64,
    attributes: *mut libc::stat,
    op: *mut dafs_op,
) -> c_int {
    // SAFETY: room for attributes, and an operation of the caller's, by the contract.
    unsafe { submit(op, with_file(file, |file| stat_into(attributes, || Ok(file.submit_metadata())))) }
}

/// Whether an empty file with the sticky bit is striped takes another request to tell.
fn not_striped(file: File) -> Result<File> {
    match may_be_striped(file.attributes_at_open()) {
        true => Err(Failure::Caller(
            libc::EOPNOTSUPP,
            "the file may be striped: open it by dafs_openat()".to_owned(),
        )),
        false => Ok(file),
    }
}

/// Nonblocking form of dafs_openat(); op.result is the handle. Without O_DIRECTORY, and without O_CREAT to read only. Where the operation
/// is cancelled and has opened the file all the same, op.result has it too.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn dafs_submit_openat(
    dir: i64,
    path: *const c_char,
    flags: c_int,
    mode: u32,
    op: *mut dafs_op,
) -> c_int {
    // SAFETY: a string of the caller's, by the contract.
    let begin = unsafe {
        below(dir, path, |dir, path| {
            let opened = match opening_of(flags, mode)? {
                Opening::File(options) => dir.submit_open_with(path, &options),
                Opening::Unnamed(mode) => dir.submit_open_unnamed(path, mode),
                Opening::Directory { .. } | Opening::ReadOrCreate => {
                    return Err(invalid("these flags take several requests: use dafs_openat()"));
                }
            };
            Ok(opened.map(|file| handle_of(Object::File(not_striped(file?)?))))
        })
    };
    // SAFETY: an operation of the caller's, by the contract.
    unsafe { submit(op, begin) }
}

/// Nonblocking form of dafs_fstatat(). The attributes are the operation's until it has ended.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn dafs_submit_fstatat(
    dir: i64,
    path: *const c_char,
    attributes: *mut libc::stat,
    flags: c_int,
    op: *mut dafs_op,
) -> c_int {
    // SAFETY: a string of the caller's, and room for attributes, by the contract.
    let begin = unsafe {
        below(dir, path, |dir, path| {
            stat_into(attributes, || match follows(flags)? {
                true => Ok(dir.submit_metadata(path)),
                false => Ok(dir.submit_symlink_metadata(path)),
            })
        })
    };
    // SAFETY: an operation of the caller's, by the contract.
    unsafe { submit(op, begin) }
}

/// Nonblocking form of dafs_mkdirat().
#[unsafe(no_mangle)]
pub unsafe extern "C" fn dafs_submit_mkdirat(
    dir: i64,
    path: *const c_char,
    mode: u32,
    op: *mut dafs_op,
) -> c_int {
    // SAFETY: a string of the caller's, by the contract.
    let begin = unsafe {
        below(dir, path, |dir, path| Ok(nothing(dir.submit_create_dir(path, mode & 0o7777 & !umask()))))
    };
    // SAFETY: an operation of the caller's, by the contract.
    unsafe { submit(op, begin) }
}

/// Nonblocking form of dafs_unlinkat().
#[unsafe(no_mangle)]
pub unsafe extern "C" fn dafs_submit_unlinkat(
    dir: i64,
    path: *const c_char,
    flags: c_int,
    op: *mut dafs_op,
) -> c_int {
    // SAFETY: a string of the caller's, by the contract.
    let begin = unsafe {
        below(dir, path, |dir, path| match removes_dir(flags)? {
            true => Ok(nothing(dir.submit_remove_dir(path))),
            false => Ok(nothing(dir.submit_remove_file(path))),
        })
    };
    // SAFETY: an operation of the caller's, by the contract.
    unsafe { submit(op, begin) }
}

/// Nonblocking form of dafs_renameat().
#[unsafe(no_mangle)]
pub unsafe extern "C" fn dafs_submit_renameat(
    from_dir: i64,
    from: *const c_char,
    to_dir: i64,
    to: *const c_char,
    flags: c_int,
    op: *mut dafs_op,
) -> c_int {
    // SAFETY: strings of the caller's, by the contract.
    let begin = unsafe {
        below(from_dir, from, |from_dir, from| {
            let (to, replace) = (text(to)?, replaces(flags)?);
            with_dir(to_dir, |to_dir| Ok(nothing(from_dir.submit_rename(from, to_dir, to, replace))))
        })
    };
    // SAFETY: an operation of the caller's, by the contract.
    unsafe { submit(op, begin) }
}

/// An operation of which only an error says something.
fn nothing<T: Send + 'static>(pending: Pending<dafs_client::Result<T>>) -> Operation {
    pending.map(|done| match done {
        Ok(_) => Ok(0),
        Err(error) => Err(Failure::from(error)),
    })
}

/// Begins an operation with a path below a directory.
///
/// # Safety
/// As of [`text`].
unsafe fn below(
    dir: i64,
    path: *const c_char,
    begin: impl FnOnce(&dafs_client::Dir, &std::ffi::OsStr) -> Result<Operation>,
) -> impl FnOnce() -> Result<Operation> {
    move || {
        // SAFETY: promised by the caller.
        let path = unsafe { text(path) }?;
        with_dir(dir, |dir| begin(dir, path))
    }
}

/// An operation whose attributes go to the caller's memory when it is collected.
///
/// # Safety
/// Null, or room for them until then.
unsafe fn stat_into(
    attributes: *mut libc::stat,
    begin: impl FnOnce() -> Result<Pending<dafs_client::Result<Attributes>>>,
) -> Result<Operation> {
    // SAFETY: promised by the caller.
    unsafe { put(attributes) }?;
    let address = attributes.expose_provenance();
    Ok(begin()?.map(move |found| {
        let found = stat_of(&found?);
        // SAFETY: promised by the caller.
        *unsafe { put(std::ptr::with_exposed_provenance_mut(address)) }? = found;
        Ok(0)
    }))
}
