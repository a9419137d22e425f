//! What a server knows of its listeners.

use dafs_proto::transport::Address;
use dafs_proto::wire::{GatherSwitches, Thresholds};

/// A place to listen and what its provider measured.
#[derive(Clone, Debug)]
pub struct ListenerInfo {
    /// Where it listens.
    pub address: Address,
    /// The thresholds that every session of this listener is told.
    pub thresholds: Thresholds,
    /// From which sizes gathering is faster than packing; `None` where it was not measured.
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
    /// The chunk size was set (`--chunk-size`); otherwise transfers of few chunks get smaller ones.
    pub is_set: bool,
}

impl Default for Pipelining {
    /// 256 KiB, four chunks at a time.
    fn default() -> Self {
        Self { chunk_size: 256 << 10, depth: 4, is_set: false }
    }
}
