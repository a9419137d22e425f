//! Nonblocking operations.
#![allow(unsafe_code, reason = "pointers of C callers")]
#![allow(clippy::missing_safety_doc, reason = "the header is the contract")]

use std::ffi::{c_int, c_void};
use std::sync::{Mutex, PoisonError};

use dafs_client::{File, Pending, wait_any};
use dafs_ffi::{put, slice, slice_mut};

use crate::abi::{dafs_extent, dafs_op};
use crate::call::{Failure, Result, bad_handle, done, handle_of, invalid, note, run, set_errno, with_file};
use crate::file::{TRANSFER_SIZE_MAX, extents_of, offset_of, vectors_of};
use crate::memory::registered;
use crate::object::{self, Object, Operation};

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
    // SAFETY: an operation of the caller's, by the contract.
    unsafe {
        submit(file, op, |file| {
            let (count, offset) = (count.min(TRANSFER_SIZE_MAX), offset_of(offset)?);
            slice_mut(buffer.cast::<u8>(), count)?;
            Ok(match registered(buffer, count) {
                Some(part) => file.submit_read_at(part, offset).map(|moved| moved.result.map(signed)),
                None => file.submit_read_raw_at(buffer.cast(), count, offset).map(|moved| moved.map(signed)),
            })
        })
    }
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
    // SAFETY: an operation of the caller's, by the contract.
    unsafe {
        submit(file, op, |file| {
            let (count, offset) = (count.min(TRANSFER_SIZE_MAX), offset_of(offset)?);
            slice(buffer.cast::<u8>(), count)?;
            Ok(match registered(buffer, count) {
                Some(part) => file.submit_write_at(part, offset).map(|moved| moved.result.map(signed)),
                None => file.submit_write_raw_at(buffer.cast(), count, offset).map(|moved| moved.map(signed)),
            })
        })
    }
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
    // SAFETY: an operation, arrays and memory of the caller's, by the contract.
    unsafe {
        submit(file, op, |file| {
            let (extents, vectors) = (extents_of(extents, extent_count)?, vectors_of(iov, iov_count)?);
            let mut memory = Vec::with_capacity(vectors.len());
            for vector in vectors {
                slice_mut(vector.iov_base.cast::<u8>(), vector.iov_len)?;
                memory.push((vector.iov_base.cast::<u8>(), vector.iov_len));
            }
            Ok(file.submit_read_list_raw(&extents, &memory).map(|read| read.map(|read| signed(read.count))))
        })
    }
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
    // SAFETY: an operation, arrays and memory of the caller's, by the contract.
    unsafe {
        submit(file, op, |file| {
            let (extents, vectors) = (extents_of(extents, extent_count)?, vectors_of(iov, iov_count)?);
            let mut memory = Vec::with_capacity(vectors.len());
            for vector in vectors {
                slice(vector.iov_base.cast::<u8>(), vector.iov_len)?;
                memory.push((vector.iov_base.cast::<u8>().cast_const(), vector.iov_len));
            }
            Ok(file.submit_write_list_raw(&extents, &memory).map(|written| written.map(signed)))
        })
    }
}

/// Nonblocking form of dafs_fsync().
#[unsafe(no_mangle)]
pub unsafe extern "C" fn dafs_submit_fsync(file: i64, op: *mut dafs_op) -> c_int {
    // SAFETY: an operation of the caller's, by the contract.
    unsafe { submit(file, op, |file| Ok(file.submit_commit().map(|done| done.map(|()| 0)))) }
}

fn signed(count: usize) -> i64 {
    i64::try_from(count).unwrap_or(i64::MAX)
}

/// # Safety
/// Null, or an operation of the size that it says.
unsafe fn check(op: *mut dafs_op) -> Result<()> {
    // SAFETY: promised by the caller; the size comes first in each version.
    let size = unsafe { put(op.cast::<u32>()) }.map(|size| *size)?;
    match (size as usize) < size_of::<dafs_op>() {
        true => Err(invalid("the size of the operation is not set: begin with DAFS_OP_INIT")),
        false => Ok(()),
    }
}

/// # Safety
/// Null, or an operation of the size that it says.
unsafe fn submit(file: i64, op: *mut dafs_op, begin: impl FnOnce(&File) -> Result<Operation>) -> c_int {
    done(|| {
        // SAFETY: promised by the caller.
        let op = unsafe {
            check(op)?;
            put(op)?
        };
        let pending = with_file(file, begin)?;
        op.id = pending.id().map_or(0, |id| id.number());
        (op.error, op.error_code, op.result) = (0, 0, 0);
        op.handle = handle_of(Object::Op(Mutex::new(Some(pending))))?;
        Ok(())
    })
}

/// Takes the operation from its handle, so that one thread has it.
fn take(handle: i64) -> Result<Operation> {
    match object::find(handle).as_deref() {
        Some(Object::Op(place)) => {
            let taken = place.lock().unwrap_or_else(PoisonError::into_inner).take();
            taken.ok_or_else(|| Failure::Caller(libc::EBUSY, "another thread waits for the operation".into()))
        }
        _ => Err(bad_handle(handle, "an operation in flight")),
    }
}

fn put_back(handle: i64, pending: Operation) {
    if let Some(Object::Op(place)) = object::find(handle).as_deref() {
        *place.lock().unwrap_or_else(PoisonError::into_inner) = Some(pending);
    }
}

/// The operation has ended: its result is the caller's.
fn end(op: &mut dafs_op, outcome: dafs_client::Result<i64>) {
    object::remove(op.handle);
    op.handle = -1;
    match outcome {
        Ok(result) => (op.result, op.error, op.error_code) = (result, 0, 0),
        Err(error) => {
            op.result = -1;
            (op.error, op.error_code) = note(&error.into());
        }
    }
}

/// Whether an operation has ended: 1, and op.result is what the blocking call would return, with op.error the errno of -1; 0 where it goes
/// on. Moves the session along; does not block.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn dafs_test(op: *mut dafs_op) -> c_int {
    run(|| {
        // SAFETY: an operation of the caller's, by the contract.
        let op = unsafe {
            check(op)?;
            put(op)?
        };
        let mut pending = take(op.handle)?;
        if pending.test() {
            end(op, pending.wait());
            Ok(1)
        } else {
            put_back(op.handle, pending);
            Ok(0)
        }
    })
}

/// Waits for the end of an operation: returns what the blocking call would, and sets errno as that does. Blocks.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn dafs_wait(op: *mut dafs_op) -> i64 {
    // SAFETY: an operation of the caller's, by the contract.
    unsafe { finish(op, Pending::wait) }
}

/// Cancels an operation, and waits until its memory is the caller's again: one that was not sent has no effect, one that was sent may have
/// been executed. Returns what became of it: mostly -1 with ECANCELED. Blocks only while the server may be moving data.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn dafs_cancel(op: *mut dafs_op) -> i64 {
    // SAFETY: an operation of the caller's, by the contract.
    unsafe { finish(op, Pending::cancel) }
}

/// # Safety
/// Null, or an operation of the size that it says.
unsafe fn finish(op: *mut dafs_op, finish: impl FnOnce(Operation) -> dafs_client::Result<i64>) -> i64 {
    run(|| {
        // SAFETY: promised by the caller.
        let op = unsafe {
            check(op)?;
            put(op)?
        };
        let pending = take(op.handle)?;
        end(op, finish(pending));
        if op.result == -1 {
            set_errno(op.error);
        }
        Ok(op.result)
    })
}

/// Waits until one of several operations, of any sessions, has ended; returns its place in the array, and it is as after dafs_wait().
/// Entries that are NULL or have ended are passed over; -1 with ENOENT where none is in flight. Blocks.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn dafs_wait_any(ops: *const *mut dafs_op, count: usize) -> isize {
    run(|| {
        // SAFETY: an array of operations of the caller's, by the contract.
        let ops = unsafe { slice(ops, count) }?;
        let mut places = Vec::new();
        let mut pendings = Vec::new();
        let taken = take_all(ops, &mut places, &mut pendings);
        let ended = taken.map(|()| wait_any(&mut pendings));
        let found = match ended {
            Ok(found) => found.map(|index| (places.swap_remove(index), pendings.swap_remove(index))),
            Err(failure) => {
                give_back(places, pendings);
                return Err(failure);
            }
        };
        give_back(places, pendings);
        let none = || Failure::Caller(libc::ENOENT, "no operation is in flight".into());
        let ((place, _), pending) = found.ok_or_else(none)?;
        // SAFETY: as above; it was looked at.
        let op = unsafe { put(ops[place]) }?;
        end(op, pending.wait());
        isize::try_from(place).map_err(|_| invalid("too many operations"))
    })
}

fn take_all(
    ops: &[*mut dafs_op],
    places: &mut Vec<(usize, i64)>,
    pendings: &mut Vec<Operation>,
) -> Result<()> {
    for (place, op) in ops.iter().enumerate().filter(|(_, op)| !op.is_null()) {
        // SAFETY: an operation of the caller's, by the contract of the call.
        let op = unsafe {
            check(*op)?;
            put(*op)?
        };
        if op.handle > 0 {
            pendings.push(take(op.handle)?);
            places.push((place, op.handle));
        }
    }
    Ok(())
}

fn give_back(places: Vec<(usize, i64)>, pendings: Vec<Operation>) {
    for ((_, handle), pending) in places.into_iter().zip(pendings) {
        put_back(handle, pending);
    }
}
