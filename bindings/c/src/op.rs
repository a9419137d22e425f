//! Nonblocking operations.
#![allow(unsafe_code, reason = "pointers of C callers")]
#![allow(clippy::missing_safety_doc, reason = "the header is the contract")]

use std::ffi::c_int;
use std::sync::{Mutex, PoisonError};

use dafs_client::{File, Pending, wait_any};
use dafs_ffi::{put, slice};

use crate::abi::dafs_op;
use crate::call::{
    Failure, Result, alone, bad_handle, busy, done, handle_of, invalid, keep, note, run, sized,
    with_file as open_file,
};
use crate::object::{self, Object, Operation};

pub(crate) fn signed(count: usize) -> i64 {
    i64::try_from(count).unwrap_or(i64::MAX)
}

/// # Safety
/// Null, or an operation of the size that it says.
unsafe fn operation<'a>(op: *mut dafs_op) -> Result<&'a mut dafs_op> {
    // SAFETY: promised by the caller.
    unsafe { sized(op, "DAFS_OP_INIT") }
}

/// Begins an operation of an open file.
pub(crate) fn with_file(
    file: i64,
    begin: impl FnOnce(&File) -> Result<Operation>,
) -> impl FnOnce() -> Result<Operation> {
    move || open_file(file, begin)
}

/// # Safety
/// Null, or an operation of the size that it says.
pub(crate) unsafe fn submit(op: *mut dafs_op, begin: impl FnOnce() -> Result<Operation>) -> c_int {
    done(|| {
        // SAFETY: promised by the caller.
        let op = unsafe { operation(op) }?;
        // What has begun has a handle.
        let handle = handle_of(Object::Op(Mutex::new(None)))?;
        let pending = begin().inspect_err(|_| {
            object::remove(handle);
        })?;
        op.id = pending.id().map_or(0, |id| id.number());
        (op.error, op.error_code, op.result, op.handle) = (0, 0, 0, handle);
        put_back(handle, pending);
        Ok(())
    })
}

/// Takes the operation from its handle, so that one thread has it.
fn take(handle: i64) -> Result<Operation> {
    match object::find(handle).as_deref() {
        Some(Object::Op(place)) => alone(place, "the operation")?.take().ok_or_else(|| busy("the operation")),
        _ => Err(bad_handle(handle, "an operation in flight")),
    }
}

/// Nobody but who took it has the place.
fn put_back(handle: i64, pending: Operation) {
    if let Some(Object::Op(place)) = object::find(handle).as_deref() {
        *place.lock().unwrap_or_else(PoisonError::into_inner) = Some(pending);
    }
}

/// The operation has ended: its result is the caller's.
fn end(op: &mut dafs_op, outcome: Result<i64>) {
    object::remove(op.handle);
    op.handle = -1;
    match outcome {
        Ok(result) => (op.result, op.error, op.error_code) = (result, 0, 0),
        Err(error) => {
            op.result = -1;
            (op.error, op.error_code) = note(&error);
        }
    }
}

/// Whether an operation has ended: 1, and op.result is what the blocking call would return, with op.error the errno of -1; 0 where it goes
/// on. Moves the session along; does not block.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn dafs_test(op: *mut dafs_op) -> c_int {
    run(|| {
        // SAFETY: an operation of the caller's, by the contract.
        let op = unsafe { operation(op) }?;
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
unsafe fn finish(op: *mut dafs_op, finish: impl FnOnce(Operation) -> Result<i64>) -> i64 {
    run(|| {
        // SAFETY: promised by the caller.
        let op = unsafe { operation(op) }?;
        let pending = take(op.handle)?;
        end(op, finish(pending));
        if op.result == -1 {
            keep(op.error, op.error_code);
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
        let op = unsafe { operation(*op) }?;
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
