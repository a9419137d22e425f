//! The dafs server.
#![deny(unsafe_code)]

pub mod access;
pub mod backend;
pub mod cli;
pub mod config;
pub mod logging;
pub mod metrics;
