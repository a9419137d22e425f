//! What the loop's thread has had to do that is neither data nor a system call: entries listed, parts of paths, nodes of trees.
//!
//! Work is counted where it is done, and charged to the turn of its request. So a test also notices work whose cost a client can choose
//! ([BUF-25]).

use std::cell::Cell;

thread_local! {
    static STEPS: Cell<usize> = const { Cell::new(0) };
}

/// Entries of a table in memory that are looked at in the time of one step: it goes from one to the next, and does nothing else.
const LOOKS_IN_A_STEP: usize = 16;

/// So many entries of a table were looked at on this thread.
pub(crate) fn add_looks(looks: usize) {
    add(looks / LOOKS_IN_A_STEP);
}

/// So many steps were done on this thread.
pub(crate) fn add(steps: usize) {
    STEPS.set(STEPS.get().saturating_add(steps));
}

/// The steps done on this thread since the last call.
#[inline]
pub(crate) fn take() -> usize {
    STEPS.replace(0)
}
