//! Why a call fails.

use std::ffi::c_int;
use std::sync::{Mutex, MutexGuard, TryLockError};

use dafs_client::Error;
use dafs_ffi::BadPointer;

/// Why a call fails.
#[derive(Debug)]
pub(crate) enum Failure {
    /// The library of the client says why.
    Client(Box<Error>),
    /// The caller is wrong: errno, and why.
    Caller(c_int, String),
}

pub(crate) type Result<T> = std::result::Result<T, Failure>;

impl From<Error> for Failure {
    fn from(error: Error) -> Self {
        Self::Client(Box::new(error))
    }
}

impl From<BadPointer> for Failure {
    fn from(error: BadPointer) -> Self {
        Self::Caller(libc::EFAULT, error.0)
    }
}

pub(crate) fn invalid(why: impl Into<String>) -> Failure {
    Failure::Caller(libc::EINVAL, why.into())
}

pub(crate) fn bad_handle(handle: i64, wanted: &str) -> Failure {
    Failure::Caller(libc::EBADF, format!("{handle} is not the handle of {wanted}, or it is closed"))
}

/// What one thread at a time uses is in use.
pub(crate) fn busy(what: &str) -> Failure {
    Failure::Caller(libc::EBUSY, format!("{what} is in use; wait until that has ended"))
}

/// What one thread at a time uses. It waits for nobody: the other thread may be one of the parent's.
pub(crate) fn alone<'a, T>(place: &'a Mutex<T>, what: &str) -> Result<MutexGuard<'a, T>> {
    match place.try_lock() {
        Ok(guard) => Ok(guard),
        Err(TryLockError::Poisoned(poisoned)) => Ok(poisoned.into_inner()),
        Err(TryLockError::WouldBlock) => Err(busy(what)),
    }
}
