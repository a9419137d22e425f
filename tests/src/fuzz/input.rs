//! Bytes as a source of choices. When they are used up, everything is 0.

use dafs_proto::transport::sim::Random;

pub(super) struct Input<'a> {
    bytes: &'a [u8],
}

impl<'a> Input<'a> {
    pub(super) fn new(bytes: &'a [u8]) -> Self {
        Self { bytes }
    }

    pub(super) fn is_empty(&self) -> bool {
        self.bytes.is_empty()
    }

    /// Bytes not yet used.
    pub(super) fn left(&self) -> usize {
        self.bytes.len()
    }

    pub(super) fn byte(&mut self) -> u8 {
        match self.bytes.split_first() {
            Some((byte, rest)) => {
                self.bytes = rest;
                *byte
            }
            None => 0,
        }
    }

    /// At most `len` bytes.
    pub(super) fn take(&mut self, len: usize) -> &'a [u8] {
        let (taken, rest) = self.bytes.split_at(len.min(self.bytes.len()));
        self.bytes = rest;
        taken
    }

    /// A choice among `count`.
    pub(super) fn below(&mut self, count: usize) -> usize {
        usize::from(self.byte()) % count.max(1)
    }

    pub(super) fn raw_u64(&mut self) -> u64 {
        let mut bytes = [0; 8];
        let taken = self.take(8);
        bytes[..taken.len()].copy_from_slice(taken);
        u64::from_le_bytes(bytes)
    }

    /// A number: mostly one at which something changes.
    pub(super) fn number(&mut self) -> u64 {
        const EDGES: [u64; 20] = [
            0,
            1,
            2,
            100,
            4095,
            4096,
            4097,
            16 * 1024,
            16 * 1024 + 1,
            128 * 1024,
            300_000,
            1 << 20,
            (1 << 20) + 1,
            1 << 31,
            u32::MAX as u64,
            1 << 32,
            i64::MAX as u64,
            1 << 63,
            u64::MAX - 1,
            u64::MAX,
        ];
        match usize::from(self.byte()) {
            choice if choice < 200 => EDGES[choice % EDGES.len()],
            choice if choice < 240 => self.raw_u64(),
            _ => u64::from(self.byte()),
        }
    }

    /// As [`Input::number`], cut to 32 bits.
    pub(super) fn number32(&mut self) -> u32 {
        u32::try_from(self.number()).unwrap_or(u32::MAX)
    }

    /// A sequence of chances that these bytes decide.
    pub(super) fn random(&mut self) -> Random {
        Random::new(u64::from(self.byte()) | u64::from(self.byte()) << 8)
    }
}
