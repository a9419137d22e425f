//! MPI-IO over dafs: the driver below MPI libraries.
//!
//! It opens a file once for any number of processes, moves data in one of three memory modes and three methods, and reports what it chose
//! and why. It talks no MPI: the C glue of an MPI library ([`ffi`], `adio_dafs.h`) does, and agrees among the ranks.
//!
//! - [`environment`] has its variables.
//! - [`name`]: from an MPI file name to a server, an export and a path; [`hint`]: what a program may ask for.
//! - [`layout`]: flattened datatypes and views, cut into lists; pure.
//! - [`file::File`]: an open file; [`file::Transfer`] what is moved, [`file::Request`] without waiting.
//! - [`memory`]: the choice among memory modes by measuring; [`server`]: the sessions of this process.
//!
//! What this crate does not do: collective buffering, which is the MPI library's.
#![deny(unsafe_code)]

pub mod environment;
pub mod error;
pub mod ffi;
pub mod file;
pub mod hint;
pub mod layout;
pub mod memory;
pub mod name;
pub mod server;
