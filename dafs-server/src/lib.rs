//! The dafs server.
#![deny(unsafe_code)]

pub mod backend;
