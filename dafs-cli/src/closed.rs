//! Whether the process was started without standard output. The runtime of Rust then opens `/dev/null` in its place, where all output would
//! be lost silently. So it is looked before the runtime begins.
#![allow(
    unsafe_code,
    reason = "a function that is run before `main`, and asks for a descriptor by its number"
)]

use std::sync::atomic::{AtomicBool, Ordering};

static IS_CLOSED: AtomicBool = AtomicBool::new(false);

// SAFETY: the section holds pointers to functions that are run before `main`, with the arguments of `main`; this one takes none, which
// the C calling convention allows.
#[used]
#[unsafe(link_section = ".init_array")]
static LOOK: extern "C" fn() = look;

extern "C" fn look() {
    // SAFETY: it takes a number, and answers an error where nothing is open by it. Nothing of Rust's runtime is used.
    let flags = unsafe { libc::fcntl(libc::STDOUT_FILENO, libc::F_GETFD) };
    IS_CLOSED.store(flags == -1, Ordering::Relaxed);
}

pub(crate) fn is_closed() -> bool {
    IS_CLOSED.load(Ordering::Relaxed)
}
