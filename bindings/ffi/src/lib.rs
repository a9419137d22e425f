//! What the C interfaces of dafs share: the last error of a thread in words, panics that stay inside, and what pointers of C become.
//! It knows no operation of dafs, and depends on nothing.
#![deny(unsafe_code)]

mod guard;
mod pointers;

pub use guard::{caught, keep_error, last_error};
pub use pointers::{BadPointer, bytes_out, put, slice, slice_mut, text};
