//! A call of C: its handle, its result, `errno` and the words of an error.

use std::ffi::c_int;

use dafs_client::{Dir, Error, File, Session, Status};
use dafs_ffi::{BadPointer, caught, keep_error};

use crate::abi::{
    DAFS_E_DISCONNECTED, DAFS_E_FENCED, DAFS_E_FORKED, DAFS_E_IN_DOUBT, DAFS_E_INTERNAL, DAFS_E_PLAIN,
    DAFS_E_PROTOCOL, DAFS_E_STALE, DAFS_E_WRITES_LOST,
};
use crate::object::{self, Object};

thread_local! {
    static LAST: std::cell::RefCell<Last> = const { std::cell::RefCell::new(Last { code: 0, lost: Vec::new() }) };
}

struct Last {
    code: c_int,
    /// Ranges that a restart of the server lost.
    lost: Vec<(u64, u64)>,
}

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
        LAST.with_borrow_mut(|last| last.lost = lost);
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
        error if error.status() == Some(Status::FENCED) => DAFS_E_FENCED,
        _ => DAFS_E_PLAIN,
    }
}

fn keep(errno: c_int, code: c_int) {
    LAST.with_borrow_mut(|last| last.code = code);
    set_errno(errno);
}

#[allow(unsafe_code, reason = "errno is a place of the C library")]
pub(crate) fn set_errno(errno: c_int) {
    // SAFETY: the C library's own place of this thread.
    unsafe { *libc::__errno_location() = errno };
}

/// The code of this thread's last error.
pub(crate) fn last_code() -> c_int {
    LAST.with_borrow(|last| last.code)
}

/// The ranges of this thread's last error that told of lost writes.
pub(crate) fn last_lost() -> Vec<(u64, u64)> {
    LAST.with_borrow(|last| last.lost.clone())
}

/// A handle for a new object.
pub(crate) fn handle_of(object: Object) -> Result<i64> {
    object::insert(object).ok_or_else(|| Failure::Caller(libc::EMFILE, "there are too many handles".into()))
}

pub(crate) fn with_session<T>(handle: i64, body: impl FnOnce(&Session) -> Result<T>) -> Result<T> {
    match object::find(handle).as_deref() {
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
