//! The end of the process: the server is told that the sessions are over, so that it need not wait for the end of their lease.
#![allow(unsafe_code, reason = "a function that runs at exit")]

use std::sync::Once;

/// Has the sessions end when the process does.
pub(super) fn at_exit() {
    static ONCE: Once = Once::new();
    ONCE.call_once(|| {
        // SAFETY: the function stays: this library is never unloaded (see build.rs), and a program has it for good.
        if unsafe { libc::atexit(end_all) } != 0 {
            tracing::debug!("sessions will end by their lease, not with the process");
        }
    });
}

extern "C" fn end_all() {
    // Nothing may unwind into the C library.
    let _ = std::panic::catch_unwind(super::end_all);
}
