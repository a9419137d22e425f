//! The dafs server: exports directories and memory to dafs clients.
//!
//! - [`config`], [`access`]: the settings, and who may do what.
//! - `cluster`: several servers on one file system.
//! - [`shared`]: what all workers share.
//! - [`worker`]: one loop on one thread, with its connections, sessions and operations. `ops` carries out requests.
//! - [`storage`]: operations on files, submitted and completed; in directories confined by `openat2`, or in memory.
//! - [`calibrate`]: measures from which sizes a transport moves data faster by RDMA.
//! - [`reload`]: settings that are read again.
//! - [`mod@run`] puts all of it together.
#![deny(unsafe_code)]

pub mod access;
pub mod calibrate;
pub mod cli;
pub mod cluster;
pub mod config;
pub mod logging;
pub mod metrics;
mod ops;
pub mod reload;
pub mod run;
pub mod shared;
pub mod storage;
pub mod worker;

pub use cluster::cut_off;
pub use reload::Hangups;
pub use run::{Running, run};
