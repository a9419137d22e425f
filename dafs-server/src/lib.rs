//! The dafs server: exports directories and memory to dafs clients.
//!
//! - [`config`], [`access`]: what it was told to do, who may do what.
//! - [`shared`]: what holds for the process, whatever loops it has.
//! - [`worker`]: one loop on one thread: connections, sessions and operations; `ops` says what requests mean.
//! - [`storage`]: files, submitted and completed; directories confined by `openat2`, or memory.
//! - [`calibrate`]: from which sizes on a transport moves data faster by RDMA.
//! - [`mod@run`] puts all of it together.
#![deny(unsafe_code)]

pub mod access;
pub mod calibrate;
pub mod cli;
pub mod config;
pub mod logging;
pub mod metrics;
mod ops;
pub mod run;
pub mod shared;
pub mod storage;
pub mod worker;

pub use run::{Running, run};
