use std::any::Any;
use std::cell::RefCell;
use std::ffi::{CString, c_char, c_int};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::ptr::null_mut;
use std::sync::atomic::{AtomicPtr, Ordering};

use super::abi::adio_dafs_status;
use crate::error::{Class, Error, Result};

thread_local! {
    static LAST_ERROR: RefCell<CString> = RefCell::new(CString::default());
}

/// The same where a thread's own is gone: when functions of `atexit` run, what the main thread had is.
static LATE_ERROR: AtomicPtr<c_char> = AtomicPtr::new(null_mut());

/// Runs the body of a function: its status for C. A panic becomes `ADIO_DAFS_ERR_INTERNAL`.
pub(super) fn guard(body: impl FnOnce() -> Result<()>) -> c_int {
    let outcome = catch_unwind(AssertUnwindSafe(body));
    let result = outcome.unwrap_or_else(|panic| {
        let what = format!("a bug in adio-dafs; please report it: {}", words_of(&*panic));
        Err(Error::new(Class::Internal, what))
    });
    match result {
        Ok(()) => adio_dafs_status::ADIO_DAFS_OK as c_int,
        Err(error) => {
            // Words with a zero byte would be cut by C in any case.
            let words = error.message.replace('\0', " ");
            keep(CString::new(words).unwrap_or_default());
            adio_dafs_status::from(error.class) as c_int
        }
    }
}

fn keep(mut words: CString) {
    let is_kept = LAST_ERROR.try_with(|last| std::mem::swap(&mut *last.borrow_mut(), &mut words));
    if is_kept.is_err() {
        // Whoever has asked for those before may still read them, so they stay.
        LATE_ERROR.store(words.into_raw(), Ordering::Release);
    }
}

fn words_of(panic: &(dyn Any + Send)) -> &str {
    panic
        .downcast_ref::<&str>()
        .copied()
        .or_else(|| panic.downcast_ref::<String>().map(String::as_str))
        .unwrap_or("it gave no reason")
}

/// The words of the last error on this thread.
pub(super) fn last_error() -> *const c_char {
    LAST_ERROR.try_with(|last| last.borrow().as_ptr()).unwrap_or_else(|_| {
        let late = LATE_ERROR.load(Ordering::Acquire);
        if late.is_null() { c"".as_ptr() } else { late }
    })
}

pub(super) fn argument(what: impl Into<String>) -> Error {
    Error::new(Class::Argument, what)
}
