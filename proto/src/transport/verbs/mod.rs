//! RDMA over libibverbs and librdmacm: InfiniBand, RoCE, iWARP, Soft-RoCE.
//!
//! # Primer
//! A connection is a *queue pair* of a device: a queue of sends and RDMA operations and a queue of receives, to which this side posts
//! *work requests*, and a *completion queue*, in which the device says what is done. The device moves data without the kernel, from and
//! to memory that was *registered* with it.
//!
//! ```text
//! message      send of header, head and payload, built in a registered slot     → a posted receive of the peer
//! rdma_write   one request that gathers up to 32 segments (more: more requests) → the peer's registered memory
//! rdma_read    the same the other way
//! ```
//!
//! Everything that is queued leaves with one call, one *doorbell*, in [`Endpoint::flush`](super::Endpoint::flush). Requests complete in
//! order, so only the last of a list asks for a completion, and only where somebody waits for it.
//!
//! Connections are made by librdmacm, which finds device and route for an IP address; each side says in the private data what it
//! receives (`handshake.rs`). Bytes and rules are in `spec/protocol/verbs.md`.
//!
//! | file | |
//! |---|---|
//! | `ffi` | the only one that names the binding crate; `tests/layout` compares it with C |
//! | `device`, `cm`, `queue`, `connect`, `sys` | the layers over C, and the only ones with raw pointers |
//! | `core`, `post`, `wake`, `linger` | a connection: what comes in, what goes out, how it waits, and how it ends |
//! | `memory`, `buffers` | registered memory: of peers, of this side, of messages |
//! | `events` | what the device says of itself and of queues, outside of completions |
//! | `counters`, `abort` | what connections cost; how one is broken from outside |
//! | `raw` | two bare ends for benchmarks: what the device itself can do |

mod abort;
mod buffers;
mod cm;
mod connect;
mod core;
mod counters;
mod device;
mod domain;
mod endpoint;
mod events;
mod ffi;
mod frame;
mod handshake;
mod linger;
mod listener;
mod memory;
mod post;
mod queue;
pub mod raw;
mod status;
mod sys;
#[cfg(test)]
mod tests;
mod wake;

pub use super::util::{DEPTH_MAX, PAYLOAD_MAX};
pub use abort::AbortHandle;
pub use counters::{Counters, totals};
pub use device::{DeviceInfo, DeviceLimits, RegistrationError, devices};
pub use domain::{VerbsDomain, check_route};
pub use endpoint::VerbsEndpoint;
pub use frame::check_message;
pub use handshake::{HELLO_SIZE, Hello};
pub use linger::finish_closing;
pub use listener::VerbsListener;

/// Largest single RDMA operation, bytes; less where the device's messages are shorter.
pub const RDMA_SIZE_MAX: u32 = 16 << 20;

/// What every connection can move in one operation, bytes.
const RDMA_SIZE_NEEDED: u32 = 1 << 20;

/// Segments in one gather or scatter list.
pub const SEGMENTS_MAX: u16 = 256;

/// Messages that one side has on their way at once: at least, and at most.
const SLOTS_MIN: u32 = 8;
const SLOTS_MAX: u32 = 256;

/// Data that is handed to the device with the request itself, bytes: a head and a little payload.
const INLINE_WANTED: u32 = 220;

/// What devices that have less are asked for, one after the other.
const INLINE_LESS: [u32; 4] = [128, 96, 64, 0];

/// RDMA reads of a connection in flight at once.
const READS_MAX: u8 = 16;
