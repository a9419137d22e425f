//! What a server knows of its listeners.

use dafs_proto::transport::Address;
use dafs_proto::wire::{GatherSwitches, Thresholds};

/// A place to listen and what its provider measured.
#[derive(Clone, Debug)]
pub struct ListenerInfo {
    /// Where it listens.
    pub address: Address,
    /// Exported to every session that comes in here.
    pub thresholds: Thresholds,
    /// As the thresholds; `None` where it was not measured.
    pub gather: Option<GatherSwitches>,
    /// How transfers through buffers are cut.
    pub pipelining: Pipelining,
}

/// How a transfer through buffers is cut into chunks, and how many of them are in progress at once.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Pipelining {
    /// Bytes of a chunk; never more than the largest buffer.
    pub chunk_size: u64,
    /// Chunks in progress: 1 moves one after the other.
    pub depth: usize,
    /// The chunk size is as it was set; else transfers of few chunks are cut into smaller ones.
    pub is_set: bool,
}

impl Default for Pipelining {
    /// What does well with most disks and networks.
    fn default() -> Self {
        Self { chunk_size: 256 << 10, depth: 4, is_set: false }
    }
}
