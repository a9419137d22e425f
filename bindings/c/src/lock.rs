//! Locks of ranges of a file.

use std::ffi::c_int;
use std::ops::Range;

use dafs_client::LockKind;

use crate::abi::{DAFS_LOCK_EXCLUSIVE, DAFS_LOCK_SHARED};
use crate::call::{Failure, Result, done, invalid, with_file};
use crate::file::offset_of;

/// Locks a range (len 0: to the end of any file), DAFS_LOCK_SHARED or DAFS_LOCK_EXCLUSIVE, and waits for it in the order of coming. It is
/// this handle's: it excludes other handles, of this process too. It ends with dafs_unlock(), with the handle and with the session, and is
/// taken again after a restart of the server. EDEADLK where the holder waits for this one. Blocks.
#[unsafe(no_mangle)]
#[allow(unsafe_code, reason = "the name is exported")]
pub extern "C" fn dafs_lock(file: i64, offset: i64, len: i64, kind: c_int) -> c_int {
    done(|| with_file(file, |file| Ok(file.lock(range_of(offset, len)?, kind_of(kind)?)?)))
}

/// As dafs_lock(), without waiting for others: EAGAIN where it would have to.
#[unsafe(no_mangle)]
#[allow(unsafe_code, reason = "the name is exported")]
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
#[allow(unsafe_code, reason = "the name is exported")]
pub extern "C" fn dafs_unlock(file: i64, offset: i64, len: i64) -> c_int {
    done(|| with_file(file, |file| Ok(file.unlock(range_of(offset, len)?)?)))
}

fn range_of(offset: i64, len: i64) -> Result<Range<u64>> {
    let (offset, len) = (offset_of(offset)?, offset_of(len)?);
    match len {
        0 => Ok(offset..u64::MAX),
        len => Ok(offset..offset.saturating_add(len)),
    }
}

fn kind_of(kind: c_int) -> Result<LockKind> {
    match kind {
        DAFS_LOCK_SHARED => Ok(LockKind::Shared),
        DAFS_LOCK_EXCLUSIVE => Ok(LockKind::Exclusive),
        other => Err(invalid(format!("kind {other}: DAFS_LOCK_SHARED or DAFS_LOCK_EXCLUSIVE"))),
    }
}
