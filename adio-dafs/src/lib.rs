//! MPI-IO over dafs.
#![deny(unsafe_code)]
pub mod error;
pub mod hint;
pub mod layout;
pub mod name;
