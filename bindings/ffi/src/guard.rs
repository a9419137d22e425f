//! Errors in words, a thread's last one each, and panics, which must not unwind into C.

use std::any::Any;
use std::cell::RefCell;
use std::ffi::{CString, c_char};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::ptr::null_mut;
use std::sync::atomic::{AtomicPtr, Ordering};

thread_local! {
    static LAST_ERROR: RefCell<CString> = RefCell::new(CString::default());
}

/// The same where a thread's own is gone: when functions of `atexit` run, what the main thread had is.
static LATE_ERROR: AtomicPtr<c_char> = AtomicPtr::new(null_mut());

/// Runs the body of a function of `library`. A panic becomes words for whoever reports it.
///
/// # Errors
/// It panicked.
pub fn caught<T>(library: &str, body: impl FnOnce() -> T) -> Result<T, String> {
    catch_unwind(AssertUnwindSafe(body))
        .map_err(|panic| format!("a bug in {library}; please report it: {}", words_of(&*panic)))
}

/// Keeps the words of an error for [`last_error`].
pub fn keep_error(words: &str) {
    // Words with a zero byte would be cut by C in any case.
    let mut words = CString::new(words.replace('\0', " ")).unwrap_or_default();
    let is_kept = LAST_ERROR.try_with(|last| std::mem::swap(&mut *last.borrow_mut(), &mut words));
    if is_kept.is_err() {
        // Whoever has asked for those before may still read them, so they stay.
        LATE_ERROR.store(words.into_raw(), Ordering::Release);
    }
}

/// The words of the last error on this thread, valid until its next error; empty where there was none.
pub fn last_error() -> *const c_char {
    LAST_ERROR.try_with(|last| last.borrow().as_ptr()).unwrap_or_else(|_| {
        let late = LATE_ERROR.load(Ordering::Acquire);
        if late.is_null() { c"".as_ptr() } else { late }
    })
}

fn words_of(panic: &(dyn Any + Send)) -> &str {
    panic
        .downcast_ref::<&str>()
        .copied()
        .or_else(|| panic.downcast_ref::<String>().map(String::as_str))
        .unwrap_or("it gave no reason")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn panic_becomes_words_and_others_pass() {
        assert_eq!(caught("libx", || 7), Ok(7));
        let words = caught("libx", || -> i32 { panic!("seven of {}", 8) }).unwrap_err();
        assert_eq!(words, "a bug in libx; please report it: seven of 8");
    }
}
