//! Software RDMA over one TCP stream.
//!
//! # Primer
//! After a handshake of fixed size both ways ([`frame::Hello`]) the stream carries frames in each direction: a header
//! of 32 bytes and the bytes it announces ([`frame::Frame`]; layouts in `spec/protocol/tcp.md`).
//!
//! ```text
//! SEND           a message: head and payload, read in place from the staging buffer it arrived in
//! WRITE          tagged data: received straight into the registered memory that key and offset name
//! READ_REQUEST   asks for registered memory; answered from that memory without a copy, in frames of at most
//! READ_RESPONSE    256 KiB, so that messages pass between them
//! WRITE_LIST     as WRITE and READ_REQUEST, for many ranges of memory
//! READ_LIST
//! FAULT          why the sender closes the connection
//! ```
//!
//! **Out** (`output.rs`): messages are built in place in buffers of the pool, RDMA data stays where it is; one
//! `sendmsg` gathers as much of the queue as fits. **In** (`input.rs`): one `recvmsg` takes many small frames into
//! staging. Once the header of a large data frame is known, the rest of its body is received straight into its
//! memory, together with the headers that follow. `TCP_INQ` tells whether the socket is empty, which saves the call
//! that would answer EAGAIN.
//!
//! Idle connections hold no buffers: staging goes back to the pool in [`Endpoint::arm`](super::Endpoint::arm).

mod domain;
mod domain_parts;
mod endpoint;
pub mod frame;
mod input;
mod link;
mod listener;
mod memory;
mod output;
mod ranges;
mod sys;
#[cfg(test)]
mod tests;
mod wake;

pub use super::util::{DEPTH_MAX, PAYLOAD_MAX};
pub use domain::TcpDomain;
pub use domain_parts::TcpSettings;
pub use endpoint::TcpEndpoint;
pub use link::Counters;
pub use listener::TcpListener;

/// Largest single RDMA operation, bytes.
pub const RDMA_SIZE_MAX: u32 = 16 << 20;

/// Segments in one gather or scatter list.
pub const SEGMENTS_MAX: u16 = 256;

/// Ranges of the peer's memory in one list.
pub const LIST_RANGES_MAX: u16 = 256;

/// Reads of more than one range in flight at once.
pub const READ_LISTS_MAX: usize = 16;
