//! Batches: many independent reads and writes in one request.
#![allow(unsafe_code, reason = "pointers of C callers")]
#![allow(clippy::missing_safety_doc, reason = "the header is the contract")]

use std::collections::VecDeque;
use std::ffi::{c_int, c_void};
use std::sync::Mutex;
use std::time::Duration;

use dafs_client::{BatchHints, Extent, File, Lent, OwnedBatch};
use dafs_ffi::{put, slice, slice_mut};

use crate::abi::{dafs_batch_hints, dafs_extent};
use crate::call::{
    Failure, Result, alone, bad_handle, busy, done, handle_of, invalid, run, sized_ref, with_file,
    with_session,
};
use crate::file::{count_of, extents_of, memory_of, memory_of_mut, offset_of};
use crate::group::{Batch, BatchState};
use crate::memory::{one_registered, registered};
use crate::object::{self, Object};

/// Begins a batch: independent reads and writes of any files of a session, which go out in as few requests as carry them and are executed
/// in any order. The calls that follow add an operation each; dafs_batch_run() or dafs_batch_submit() sends them. Returns its handle, or
/// -1; close it by dafs_close(). Does not block.
///
/// The memory of its operations is the batch's until that has ended. One thread at a time uses a batch: EBUSY. What is added to a batch
/// that has ended begins it anew.
#[unsafe(no_mangle)]
pub extern "C" fn dafs_batch_begin(session: i64) -> i64 {
    run(|| {
        let batch = with_session(session, |session| {
            let state = BatchState::Building(session.owned_batch(), 0);
            Ok(Batch { session: session.clone(), state, told: VecDeque::new() })
        })?;
        handle_of(Object::Batch(Mutex::new(batch)))
    })
}

/// Adds a read at an offset. Returns the operation's place in the batch, from 0 on, or -1. Does not block, as all that adds to a batch.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn dafs_batch_pread(
    batch: i64,
    file: i64,
    buffer: *mut c_void,
    count: usize,
    offset: i64,
) -> isize {
    add(batch, file, |batch, file| {
        // SAFETY: memory of the caller's, by the contract.
        let memory = unsafe { slice_mut(buffer.cast::<u8>(), count) }?;
        let memory = (memory.as_mut_ptr(), count);
        let extent = Extent::new(offset_of(offset)?, count as u64);
        // SAFETY: it stays the batch's until that has ended, by the contract.
        unsafe { batch.read_list_raw(file, &[extent], [memory], registered(file, buffer, count)) };
        Ok(())
    })
}

/// Adds a write at an offset, as dafs_batch_pread().
#[unsafe(no_mangle)]
pub unsafe extern "C" fn dafs_batch_pwrite(
    batch: i64,
    file: i64,
    buffer: *const c_void,
    count: usize,
    offset: i64,
) -> isize {
    add(batch, file, |batch, file| {
        // SAFETY: memory of the caller's, by the contract.
        let memory = unsafe { slice(buffer.cast::<u8>(), count) }?;
        let memory = (memory.as_ptr(), count);
        let extent = Extent::new(offset_of(offset)?, count as u64);
        // SAFETY: it stays the batch's until that has ended, by the contract.
        unsafe { batch.write_list_raw(file, &[extent], [memory], registered(file, buffer, count)) };
        Ok(())
    })
}

/// Adds a read of a list, as of dafs_read_list(). The arrays are copied.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn dafs_batch_read_list(
    batch: i64,
    file: i64,
    extents: *const dafs_extent,
    extent_count: usize,
    iov: *const libc::iovec,
    iov_count: c_int,
) -> isize {
    add(batch, file, |batch, file| {
        // SAFETY: arrays and memory of the caller's, by the contract.
        let (extents, memory) =
            unsafe { (extents_of(extents, extent_count)?, memory_of_mut(iov, iov_count)?) };
        let buffer = one_registered(file, memory.iter().map(|&(pointer, len)| (pointer.cast_const(), len)));
        // SAFETY: it stays the batch's until that has ended, by the contract.
        unsafe { batch.read_list_raw(file, &extents, memory, buffer) };
        Ok(())
    })
}

/// Adds a write of a list, as of dafs_write_list(). The arrays are copied. Of a list that is too long for a request the extents ascend and
/// do not overlap.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn dafs_batch_write_list(
    batch: i64,
    file: i64,
    extents: *const dafs_extent,
    extent_count: usize,
    iov: *const libc::iovec,
    iov_count: c_int,
) -> isize {
    add(batch, file, |batch, file| {
        // SAFETY: arrays and memory of the caller's, by the contract.
        let (extents, memory) = unsafe { (extents_of(extents, extent_count)?, memory_of(iov, iov_count)?) };
        let buffer = one_registered(file, memory.iter().copied());
        // SAFETY: it stays the batch's until that has ended, by the contract.
        unsafe { batch.write_list_raw(file, &extents, memory, buffer) };
        Ok(())
    })
}

/// Runs the batch and waits until all operations have ended: 0, and dafs_batch_result() has what became of each. -1 where it failed as a
/// whole: EINVAL, and nothing was sent, where an operation cannot be (totals that differ, a file of another session), or the session
/// ended. Blocks.
#[unsafe(no_mangle)]
pub extern "C" fn dafs_batch_run(batch: i64) -> c_int {
    done(|| {
        with_batch(batch, |batch| {
            let pending = take_building(batch)?.submit(None);
            end(batch, pending.wait().results)
        })
    })
}

/// Starts the batch. With hints the server tells of ends while others run: see dafs_batch_wait_some(). Without (NULL) it tells once, of
/// all. Its number for dafs_next() goes to *id, unless that is NULL; 0 where there is none. End it by dafs_batch_wait(), or
/// dafs_batch_test() that returns 1. Does not block.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn dafs_batch_submit(
    batch: i64,
    hints: *const dafs_batch_hints,
    id: *mut u64,
) -> c_int {
    done(|| {
        let hints = match hints.is_null() {
            true => None,
            // SAFETY: a struct of the caller's, by the contract; it is only read.
            false => Some(hints_of(unsafe { sized_ref(hints, "DAFS_BATCH_HINTS_INIT") }?)),
        };
        with_batch(batch, |batch| {
            let pending = take_building(batch)?.submit(hints);
            if !id.is_null() {
                // SAFETY: room for a number, by the contract.
                *unsafe { put(id) }? = pending.id().map_or(0, |id| id.number());
            }
            batch.state = BatchState::InFlight(pending);
            Ok(())
        })
    })
}

/// Whether all operations of a batch have ended: 1, or 0 where some go on; -1 as of dafs_batch_run(). Moves the session along; does not
/// block.
#[unsafe(no_mangle)]
pub extern "C" fn dafs_batch_test(batch: i64) -> c_int {
    run(|| {
        with_batch(batch, |batch| {
            let BatchState::InFlight(pending) = &mut batch.state else { return Err(not_in_flight()) };
            if !pending.test() {
                return Ok(0);
            }
            wait(batch).map(|()| 1)
        })
    })
}

/// Waits until some operations have ended that were not told of; returns how many, count at most, and their places, each once. 0 when all
/// are told. Their results come with dafs_batch_wait(). Blocks.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn dafs_batch_wait_some(batch: i64, places: *mut usize, count: usize) -> isize {
    run(|| {
        // SAFETY: room for so many, by the contract.
        let places = unsafe { slice_mut(places, count) }?;
        if places.is_empty() {
            return Err(invalid("there is room for no place"));
        }
        with_batch(batch, |batch| {
            if batch.told.is_empty() {
                let BatchState::InFlight(pending) = &mut batch.state else { return Err(not_in_flight()) };
                batch.told = pending.wait_some().into();
            }
            let count = places.len().min(batch.told.len());
            for (place, told) in places.iter_mut().zip(batch.told.drain(..count)) {
                *place = told;
            }
            count_of(count)
        })
    })
}

/// Asks the server to tell of ends as soon as it can, from now on: for a program that has nothing left to do but wait. Before
/// dafs_batch_submit() it holds for that. Does not block.
#[unsafe(no_mangle)]
pub extern "C" fn dafs_batch_expedite(batch: i64) -> c_int {
    done(|| {
        with_batch(batch, |batch| {
            match &mut batch.state {
                BatchState::Building(building, _) => drop(building.expedite()),
                BatchState::InFlight(pending) => pending.expedite(),
                BatchState::Done(_) | BatchState::Failed => {}
            }
            Ok(())
        })
    })
}

/// Waits until all operations of a batch that was submitted have ended. As dafs_batch_run() then. Blocks.
#[unsafe(no_mangle)]
pub extern "C" fn dafs_batch_wait(batch: i64) -> c_int {
    done(|| with_batch(batch, wait))
}

/// What the operation at a place of the batch would have returned by itself: the bytes moved without a gap from the first on, or -1 and
/// errno. Where a read met the end of the file, that goes to *end, else -1; end may be NULL. ENOENT where there is no such operation, or
/// the batch has not ended. Does not block.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn dafs_batch_result(batch: i64, place: usize, end: *mut i64) -> isize {
    run(|| {
        with_batch(batch, |batch| {
            let BatchState::Done(results) = &batch.state else {
                return Err(Failure::Caller(libc::ENOENT, "the batch has not ended".into()));
            };
            let result = results.get(place);
            let none = || Failure::Caller(libc::ENOENT, format!("no operation {place} in the batch"));
            let outcome = result.ok_or_else(none)?.clone()?;
            if !end.is_null() {
                // SAFETY: room for a number, by the contract.
                *unsafe { put(end) }? = outcome.end.map_or(-1, |end| i64::try_from(end).unwrap_or(i64::MAX));
            }
            count_of(outcome.count)
        })
    })
}

fn not_in_flight() -> Failure {
    Failure::Caller(libc::ENOENT, "the batch is not in flight".into())
}

fn with_batch<T>(handle: i64, body: impl FnOnce(&mut Batch) -> Result<T>) -> Result<T> {
    match object::find(handle).as_deref() {
        Some(Object::Batch(batch)) => body(&mut *alone(batch, "the batch")?),
        _ => Err(bad_handle(handle, "a batch")),
    }
}

fn add(batch: i64, file: i64, push: impl FnOnce(&mut OwnedBatch<Lent>, &File) -> Result<()>) -> isize {
    run(|| {
        with_batch(batch, |batch| {
            let (building, count) = batch.building()?;
            with_file(file, |file| push(building, file))?;
            *count += 1;
            count_of(*count - 1)
        })
    })
}

/// What was built; the batch is in nobody's hands then.
fn take_building(batch: &mut Batch) -> Result<OwnedBatch<Lent>> {
    let begin = match &mut batch.state {
        BatchState::InFlight(_) => return Err(busy("the batch")),
        BatchState::Building(building, 1..) => std::mem::replace(building, batch.session.owned_batch()),
        _ => return Err(invalid("there is no operation in the batch")),
    };
    batch.state = BatchState::Failed;
    batch.told.clear();
    Ok(begin)
}

fn wait(batch: &mut Batch) -> Result<()> {
    match std::mem::replace(&mut batch.state, BatchState::Failed) {
        BatchState::InFlight(pending) => end(batch, pending.wait().results),
        other => {
            batch.state = other;
            Err(not_in_flight())
        }
    }
}

fn end(
    batch: &mut Batch,
    results: dafs_client::Result<Vec<dafs_client::Result<dafs_client::BatchOutcome>>>,
) -> Result<()> {
    batch.state = BatchState::Done(results?);
    Ok(())
}

fn hints_of(of: &dafs_batch_hints) -> BatchHints {
    BatchHints {
        completions: usize::try_from(of.completions).unwrap_or(usize::MAX).max(1),
        window: Duration::from_micros(of.window_us.into()),
    }
}
