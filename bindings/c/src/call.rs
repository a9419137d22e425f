//! A call of C: its handle, its result, `errno` and the words of an error.

use std::ffi::c_int;

use dafs_client::{Dir, Error, File, Session, Status};
use dafs_ffi::{caught, keep_error, put, slice};

use crate::abi::{
    DAFS_E_DISCONNECTED, DAFS_E_FENCED, DAFS_E_FORKED, DAFS_E_IN_DOUBT, DAFS_E_INTERNAL, DAFS_E_NOT_SAME,
    DAFS_E_PLAIN, DAFS_E_PROTOCOL, DAFS_E_STALE, DAFS_E_WRITES_LOST,
};
pub(crate) use crate::failure::{Failure, Result, alone, bad_handle, busy, invalid};
use crate::object::{self, Object};

thread_local! {
    static LAST: std::cell::RefCell<Last> = const { std::cell::RefCell::new(Last { code: 0, lost: Vec::new() }) };
}

struct Last {
    code: c_int,
    /// Ranges that a restart of the server lost.
    lost: Vec<(u64, u64)>,
}

/// Runs a call that returns a number; -1 for an error.
pub(crate) fn run<T: From<i8>>(body: impl FnOnce() -> Result<T>) -> T {
    match caught("libdafs", body) {
        Ok(Ok(value)) => value,
        Ok(Err(failure)) => {
            let (errno, code) = note(&failure);
            keep(errno, code);
            T::from(-1)
        }
        Err(words) => {
            keep_error(&words);
            keep(libc::ENOTRECOVERABLE, DAFS_E_INTERNAL);
            T::from(-1)
        }
    }
}

/// As [`run`], of a call that returns nothing but that it could.
pub(crate) fn done(body: impl FnOnce() -> Result<()>) -> c_int {
    run(|| body().map(|()| 0))
}

/// Keeps the words and ranges of a failure; its errno and code.
pub(crate) fn note(failure: &Failure) -> (c_int, c_int) {
    let (errno, code) = match failure {
        Failure::Client(error) => {
            keep_error(&error.to_string());
            (error.errno(), code_of(error))
        }
        Failure::Caller(errno, words) => {
            keep_error(words);
            (*errno, DAFS_E_PLAIN)
        }
    };
    if let Failure::Client(error) = failure
        && let Error::WritesLost { ranges, .. } = &**error
    {
        let lost = ranges.iter().map(|range| (range.start, range.end - range.start)).collect();
        change_last(|last| last.lost = lost);
    }
    (errno, code)
}

fn code_of(error: &Error) -> c_int {
    match error {
        Error::InDoubt { .. } => DAFS_E_IN_DOUBT,
        Error::Stale { .. } => DAFS_E_STALE,
        Error::WritesLost { .. } => DAFS_E_WRITES_LOST,
        Error::Connection { .. } => DAFS_E_DISCONNECTED,
        Error::Peer(_) => DAFS_E_PROTOCOL,
        Error::Forked => DAFS_E_FORKED,
        error => match error.status() {
            Some(Status::FENCED) => DAFS_E_FENCED,
            Some(Status::NOT_SAME | Status::SAME) => DAFS_E_NOT_SAME,
            _ => DAFS_E_PLAIN,
        },
    }
}

/// The error of this thread: its errno and code.
pub(crate) fn keep(errno: c_int, code: c_int) {
    change_last(|last| last.code = code);
    set_errno(errno);
}

/// Where a thread's own is gone, in functions of `atexit`, nothing is kept.
fn change_last(change: impl FnOnce(&mut Last)) {
    let _ = LAST.try_with(|last| change(&mut last.borrow_mut()));
}

#[allow(unsafe_code, reason = "errno is a place of the C library")]
fn set_errno(errno: c_int) {
    // SAFETY: the C library's own place of this thread.
    unsafe { *libc::__errno_location() = errno };
}

/// The code of this thread's last error.
pub(crate) fn last_code() -> c_int {
    LAST.try_with(|last| last.borrow().code).unwrap_or_default()
}

/// The ranges of this thread's last error that told of lost writes.
pub(crate) fn last_lost() -> Vec<(u64, u64)> {
    LAST.try_with(|last| last.borrow().lost.clone()).unwrap_or_default()
}

/// A handle for a new object.
pub(crate) fn handle_of(object: Object) -> Result<i64> {
    object::insert(object).ok_or_else(|| Failure::Caller(libc::EMFILE, "there are too many handles".into()))
}

pub(crate) fn with_session<T>(handle: i64, body: impl FnOnce(&Session) -> Result<T>) -> Result<T> {
    match object::find(handle).as_deref() {
        Some(Object::Session { session, .. }) if session.is_inherited() => Err(Error::Forked.into()),
        Some(Object::Session { session, .. }) => body(session),
        _ => Err(bad_handle(handle, "a session")),
    }
}

pub(crate) fn with_file<T>(handle: i64, body: impl FnOnce(&File) -> Result<T>) -> Result<T> {
    match object::find(handle).as_deref() {
        Some(Object::File(file)) => body(file),
        _ => Err(bad_handle(handle, "a file")),
    }
}

pub(crate) fn with_dir<T>(handle: i64, body: impl FnOnce(&Dir) -> Result<T>) -> Result<T> {
    match object::find(handle).as_deref().and_then(Object::dir) {
        Some(dir) => body(dir),
        None => Err(bad_handle(handle, "a directory")),
    }
}

/// A struct of the caller's that begins with its size, as this library knows it.
///
/// # Safety
/// It is null, or of the size that it says, and nobody else writes it meanwhile.
#[allow(unsafe_code, reason = "pointers of C callers")]
pub(crate) unsafe fn sized<'a, T>(place: *mut T, init: &str) -> Result<&'a mut T> {
    // SAFETY: promised by the caller.
    unsafe {
        check_size(place, init)?;
        Ok(put(place)?)
    }
}

/// As [`sized`], of a struct that is only read.
///
/// # Safety
/// As of [`sized`].
#[allow(unsafe_code, reason = "pointers of C callers")]
pub(crate) unsafe fn sized_ref<'a, T>(place: *const T, init: &str) -> Result<&'a T> {
    // SAFETY: promised by the caller.
    unsafe {
        check_size(place, init)?;
        Ok(&slice(place, 1)?[0])
    }
}

/// # Safety
/// As of [`sized`].
#[allow(unsafe_code, reason = "pointers of C callers")]
unsafe fn check_size<T>(place: *const T, init: &str) -> Result<()> {
    // SAFETY: promised by the caller; the size comes first in each version.
    let size = unsafe { slice(place.cast::<u32>(), 1) }?[0];
    match (size as usize) < size_of::<T>() {
        true => Err(invalid(format!("the size of a struct is {size}: begin with {init}"))),
        false => Ok(()),
    }
}
