//! MPI-IO over dafs.
#![deny(unsafe_code)]
pub mod layout;
