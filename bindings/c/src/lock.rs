//! Locks of ranges of a file.
#![allow(unsafe_code, reason = "pointers of C callers")]
#![allow(clippy::missing_safety_doc, reason = "the header is the contract")]

use std::ffi::c_int;
use std::ops::Range;

use dafs_client::{LockKind, LockOptions};

use crate::abi::{
    DAFS_LOCK_EXCLUSIVE, DAFS_LOCK_MANDATORY, DAFS_LOCK_NOWAIT, DAFS_LOCK_PERSISTENT, DAFS_LOCK_REPAIR,
    DAFS_LOCK_SHARED, dafs_flock,
};
use crate::call::{Failure, Result, done, invalid, run, sized, sized_ref, with_file};
use crate::file::offset_of;

/// Locks a range (len 0: to the end of any file), DAFS_LOCK_SHARED or DAFS_LOCK_EXCLUSIVE, and waits for it in the order of coming. It is
/// this handle's: it excludes other handles, of this process too. It ends with dafs_unlock(), with the handle and with the session, and is
/// taken again after a restart of the server. EDEADLK where the holder waits for this one. Blocks.
#[unsafe(no_mangle)]
pub extern "C" fn dafs_lock(file: i64, offset: i64, len: i64, kind: c_int) -> c_int {
    done(|| with_file(file, |file| Ok(file.lock(range_of(offset, len)?, kind_of(kind)?)?)))
}

/// As dafs_lock(), without waiting for others: EAGAIN where it would have to.
#[unsafe(no_mangle)]
pub extern "C" fn dafs_trylock(file: i64, offset: i64, len: i64, kind: c_int) -> c_int {
    done(|| {
        let locked = with_file(file, |file| Ok(file.try_lock(range_of(offset, len)?, kind_of(kind)?)?))?;
        locked
            .then_some(())
            .ok_or_else(|| Failure::Caller(libc::EAGAIN, "another holds a lock of the range".into()))
    })
}

/// Gives a range back. Blocks.
#[unsafe(no_mangle)]
pub extern "C" fn dafs_unlock(file: i64, offset: i64, len: i64) -> c_int {
    done(|| with_file(file, |file| Ok(file.unlock(range_of(offset, len)?)?)))
}

/// Locks what *lock says, for an owner of the program's or with effect on others, and waits for it unless DAFS_LOCK_NOWAIT is set.
/// Otherwise as dafs_lock(). Blocks.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn dafs_flock_set(file: i64, lock: *const dafs_flock) -> c_int {
    done(|| {
        // SAFETY: a struct of the caller's, by the contract; it is only read.
        let lock = unsafe { sized_ref(lock, "DAFS_FLOCK_INIT") }?;
        let (range, kind, options) =
            (range_of(lock.offset, lock.len)?, kind_of(lock.kind)?, options_of(lock)?);
        with_file(file, |file| match lock.flags & DAFS_LOCK_NOWAIT {
            0 => Ok(file.lock_with(range, kind, options)?),
            _ => Ok(file.try_lock_with(range, kind, options)?),
        })
    })
}

/// Gives the range of *lock back, of its owner. Blocks.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn dafs_flock_unset(file: i64, lock: *const dafs_flock) -> c_int {
    done(|| {
        // SAFETY: a struct of the caller's, by the contract; it is only read.
        let lock = unsafe { sized_ref(lock, "DAFS_FLOCK_INIT") }?;
        let range = range_of(lock.offset, lock.len)?;
        with_file(file, |file| match options_of(lock)?.owner {
            Some(owner) => Ok(file.unlock_with(range, owner)?),
            None => Ok(file.unlock(range)?),
        })
    })
}

/// Whether something keeps this handle from locking the range of *lock: 1, and *lock is what does; 0 where nothing does, and *lock is as it
/// was. It may have changed when this returns. Blocks.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn dafs_flock_test(file: i64, lock: *mut dafs_flock) -> c_int {
    run(|| {
        // SAFETY: a struct of the caller's, by the contract.
        let lock = unsafe { sized(lock, "DAFS_FLOCK_INIT") }?;
        let range = range_of(lock.offset, lock.len)?;
        let found = with_file(file, |file| Ok(file.test_lock(range, kind_of(lock.kind)?)?))?;
        let Some(found) = found else { return Ok(0) };
        let beyond = || Failure::Caller(libc::EOVERFLOW, "the lock begins beyond what fits".into());
        lock.offset = i64::try_from(found.range.start).map_err(|_| beyond())?;
        // What ends beyond any file is as good as without an end.
        lock.len = match found.range.end {
            u64::MAX => 0,
            end => i64::try_from(end - found.range.start).unwrap_or(0),
        };
        lock.kind = match found.kind {
            LockKind::Shared => DAFS_LOCK_SHARED,
            LockKind::Exclusive => DAFS_LOCK_EXCLUSIVE,
        };
        (lock.owner, lock.client_id, lock.broken) = (found.owner, found.client_id, u32::from(found.broken));
        Ok(1)
    })
}

fn options_of(of: &dafs_flock) -> Result<LockOptions> {
    const KNOWN: u32 = DAFS_LOCK_NOWAIT | DAFS_LOCK_MANDATORY | DAFS_LOCK_PERSISTENT | DAFS_LOCK_REPAIR;
    if of.flags & !KNOWN != 0 {
        return Err(invalid(format!("flags {:#x} of a lock", of.flags)));
    }
    let has = |flag: u32| of.flags & flag != 0;
    Ok(LockOptions {
        owner: (of.owner != 0).then_some(of.owner),
        mandatory: has(DAFS_LOCK_MANDATORY),
        persistent: has(DAFS_LOCK_PERSISTENT),
        repair: has(DAFS_LOCK_REPAIR),
    })
}

pub(crate) fn range_of(offset: i64, len: i64) -> Result<Range<u64>> {
    let (offset, len) = (offset_of(offset)?, offset_of(len)?);
    match len {
        0 => Ok(offset..u64::MAX),
        len => Ok(offset..offset.saturating_add(len)),
    }
}

pub(crate) fn kind_of(kind: c_int) -> Result<LockKind> {
    match kind {
        DAFS_LOCK_SHARED => Ok(LockKind::Shared),
        DAFS_LOCK_EXCLUSIVE => Ok(LockKind::Exclusive),
        other => Err(invalid(format!("kind {other}: DAFS_LOCK_SHARED or DAFS_LOCK_EXCLUSIVE"))),
    }
}
