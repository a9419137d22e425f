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

/// The least that is worth a step of its own, bytes.
const CHUNK_SIZE_MIN: u64 = 128 << 10;

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

impl Pipelining {
    /// Bytes of the chunks of a transfer of `len` bytes, where nothing else limits them.
    pub(crate) fn chunk_size_of(self, len: u64) -> u64 {
        if self.is_set {
            return self.chunk_size;
        }
        // A transfer of a few chunks has nothing to overlap with fewer.
        let part = (len / self.depth as u64).next_multiple_of(CHUNK_SIZE_MIN).max(CHUNK_SIZE_MIN);
        self.chunk_size.min(part)
    }
}

impl Default for Pipelining {
    /// 256 KiB, four chunks at a time.
    fn default() -> Self {
        Self { chunk_size: 256 << 10, depth: 4, is_set: false }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const KIB: u64 = 1 << 10;

    // [BUF-13] [BUF-48]
    #[test]
    fn chunk_is_equal_part_rounded_to_128_kib_up_to_256() {
        let usual = Pipelining { chunk_size: 256 * KIB, depth: 4, is_set: false };
        for (len, size) in
            [(1, 128), (512 * KIB, 128), (512 * KIB + 4, 256), (1024 * KIB, 256), (1 << 40, 256)]
        {
            assert_eq!(usual.chunk_size_of(len), size * KIB, "{len}");
            assert_eq!((Pipelining { is_set: true, ..usual }).chunk_size_of(len), 256 * KIB, "{len}");
        }
    }
}
