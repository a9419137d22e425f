//! The dafs server: exports directories and memory to dafs clients.
//!
//! - [`config`], `access`: what it was told to do, who may do what.
//! - [`server`]: connections, sessions and operations, without waiting and without a clock; `dispatch` begins
//!   requests, `ops` says what they mean, `inflight` keeps those that wait.
//! - [`backend`]: files, submitted and completed; directories confined by `openat2`, or memory.
//! - `sched`: who gets how much of the loop, and in what order.
//! - [`event_loop`]: the one place that waits. [`mod@run`] puts all of it together.
#![deny(unsafe_code)]

pub mod access;
pub mod backend;
pub mod buffers;
pub mod cli;
pub mod config;
pub mod connection;
mod dispatch;
pub mod event_loop;
mod flight;
pub mod handles;
mod handshake;
pub mod ids;
mod inflight;
pub mod logging;
pub mod metrics;
mod ops;
mod plan;
pub mod run;
mod sched;
pub mod server;
pub mod sessions;
mod shared_nodes;
pub mod stats;
mod tokens;

pub use run::{Running, run};
