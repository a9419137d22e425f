//! MPI-IO over dafs.
#![deny(unsafe_code)]
pub mod error;
pub mod file;
pub mod hint;
pub mod layout;
pub mod memory;
pub mod name;
pub mod server;
