//! Locks whose holders leave nothing half done: that one panicked says nothing of what they guard.

use std::sync::{Mutex, MutexGuard, PoisonError};

/// Waits for the lock.
#[inline]
pub fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}
