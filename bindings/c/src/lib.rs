//! libdafs: the dafs client for C, of which `cargo xtask header` makes `dafs.h`.
//!
//! Calls look like those of POSIX: -1 or NULL and `errno` for an error, the words of it from `dafs_error()`. What a caller holds are
//! numbers with a generation, so a closed or foreign one is `EBADF`. Each room imports from those below it:
//!
//! ```text
//!    chain  batch  view  submit               many requests in one, datatypes, nonblocking forms
//!    session  file  dir  attr  lock  op       the functions, by what they are about
//!    memory   registered memory               call     a call: its handle, its result, errno and words; panics caught
//!    object   what handles stand for          group    what chains and batches are made of
//!    failure  why a call fails                abi      structs and numbers of the header
//! ```
#![deny(unsafe_code)]

pub mod abi;
pub mod attr;
pub mod batch;
mod call;
pub mod chain;
pub mod dir;
mod failure;
pub mod file;
mod group;
pub mod lock;
pub mod memory;
mod object;
pub mod op;
pub mod session;
pub mod submit;
pub mod view;
