//! libdafs: the dafs client for C, of which `cargo xtask header` makes `dafs.h`.
//!
//! Calls look like those of POSIX: -1 or NULL and `errno` for an error, the words of it from `dafs_error()`. What a caller holds are
//! numbers with a generation, so a closed or foreign one is `EBADF`. Each room imports from those below it:
//!
//! ```text
//!    session  file  dir  lock  memory  op     the functions, by what they are about
//!    call     a call: its handle, its result, errno and words; panics caught
//!    object   what handles stand for          abi    structs and numbers of the header
//! ```
#![deny(unsafe_code)]

pub mod abi;
mod call;
pub mod dir;
pub mod file;
pub mod lock;
pub mod memory;
mod object;
pub mod op;
pub mod session;
