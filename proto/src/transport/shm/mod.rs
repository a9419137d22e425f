//! The shm provider: client and server on one host.
//!
//! A connection is a segment of shared memory with two rings, a unix socket, and a doorbell each way. The socket passes memory files, and
//! tells when the peer dies. A doorbell is rung only when the peer sleeps. The peer's registered memory is mapped here; its ordinary
//! memory is reached by cross-memory attach. The layout and the rules are in `spec/protocol/shm.md`.
//!
//! `ring` and `layout` are pure arithmetic. `map`, `sock` and `cma` are the layers over system calls, and the only files with pointers in
//! them.

mod closing;
mod cma;
mod connection;
mod domain;
mod endpoint;
mod entry;
mod handshake;
mod layout;
mod listener;
mod map;
mod passed;
mod rdma;
mod registry;
mod remote;
mod ring;
mod sleeping;
mod sock;
#[cfg(test)]
mod tests;
mod wake;

pub use closing::Closers;
pub use domain::{ShmConfig, ShmDomain};
pub use endpoint::{Counters, ShmEndpoint};
pub use listener::ShmListener;
pub use remote::ShmLimits;

/// Decodes a message of the unix socket, to say what is wrong with it. For tools and fuzzing: endpoints do this with what arrives.
pub fn check_control_message(bytes: &[u8]) -> Result<(), super::PeerFault> {
    let mut message = [0; handshake::MESSAGE_SIZE];
    let len = bytes.len().min(message.len());
    message[..len].copy_from_slice(&bytes[..len]);
    handshake::Message::decode(&message, bytes.len()).map(|_| ())
}
