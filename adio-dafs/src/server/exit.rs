//! The end of the process: tells the server that the sessions have ended, so that it need not wait for their leases.
#![allow(unsafe_code, reason = "a function that runs at exit")]

/// The last that a process does, behind all functions of `atexit`: a program may close files and end MPI in one of these. This library is
/// never unloaded before (see build.rs).
#[used]
#[unsafe(link_section = ".fini_array")]
static AT_EXIT: extern "C" fn() = end_all;

extern "C" fn end_all() {
    // Nothing may unwind into the C library.
    let _ = std::panic::catch_unwind(super::end_all);
}
