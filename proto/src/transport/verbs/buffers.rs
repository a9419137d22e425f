//! Memory of messages: posted receives, and slots that messages are built in.

use std::io;
use std::sync::Arc;

use super::super::{MemoryRef, Span};
use super::device::{Device, MemoryRegion, Rights};
use super::frame::{NOTE_SIZE, PREFIX_SIZE};
use super::memory::registered_buffer;
use super::queue::Segment;

/// Slots whose memory is made at once.
const SLOTS_PER_CHUNK: u32 = 8;

/// Buffers begin on cache lines.
const LINE: usize = 64;

/// Memory of one kind, cut into equal parts.
struct Chunk {
    memory: MemoryRef,
    region: MemoryRegion,
}

impl Chunk {
    fn new(device: &Arc<Device>, parts: u32, stride: usize, rights: Rights) -> io::Result<Self> {
        let (memory, region) = registered_buffer(device, parts as usize * stride, rights)?;
        Ok(Self { memory, region })
    }

    fn span(&self, part: u32, stride: usize) -> Span<'_> {
        self.memory.span().slice(part as usize * stride, stride).unwrap_or(Span::EMPTY)
    }

    fn segment(&self, span: Span<'_>) -> Segment {
        // Parts are messages, far below 4 GiB.
        let len = u32::try_from(span.len()).unwrap_or(u32::MAX);
        Segment { address: span.as_ptr() as u64, len, key: self.region.local_key() }
    }
}

/// Size of a message's buffer, bytes.
fn stride(payload_max: u32) -> usize {
    (PREFIX_SIZE + payload_max as usize).max(NOTE_SIZE).next_multiple_of(LINE)
}

/// The buffers of posted receives.
pub(super) struct Receives {
    chunk: Chunk,
    stride: usize,
    pub(super) count: u32,
}

impl Receives {
    pub(super) fn new(device: &Arc<Device>, count: u32, payload_max: u32) -> io::Result<Self> {
        let stride = stride(payload_max);
        Ok(Self { chunk: Chunk::new(device, count, stride, Rights::Destination)?, stride, count })
    }

    pub(super) fn span(&self, buffer: u32) -> Span<'_> {
        self.chunk.span(buffer, self.stride)
    }

    pub(super) fn segment(&self, buffer: u32) -> Segment {
        self.chunk.segment(self.span(buffer))
    }
}

/// The slots of outgoing messages. Memory is made as they are needed, and kept.
pub(super) struct Slots {
    chunks: Vec<Chunk>,
    // The slot that was freed last is taken first.
    free: Vec<u32>,
    stride: usize,
    count_max: u32,
    device: Arc<Device>,
}

impl Slots {
    /// At most `count_max` slots; memory for the first ones is made now.
    pub(super) fn new(device: &Arc<Device>, count_max: u32, payload_max: u32) -> io::Result<Self> {
        let mut slots = Self {
            chunks: Vec::new(),
            free: Vec::new(),
            stride: stride(payload_max),
            count_max,
            device: Arc::clone(device),
        };
        slots.grow()?;
        Ok(slots)
    }

    /// A free slot, if there is one.
    pub(super) fn take(&mut self) -> Option<u32> {
        if self.free.is_empty()
            && let Err(error) = self.grow()
        {
            // Those that exist come back.
            tracing::debug!(%error, "no memory for more messages at once");
        }
        self.free.pop()
    }

    pub(super) fn give_back(&mut self, slot: u32) {
        self.free.push(slot);
    }

    pub(super) fn has_free(&self) -> bool {
        !self.free.is_empty() || self.made() < self.count_max
    }

    pub(super) fn span(&self, slot: u32) -> Span<'_> {
        match self.chunks.get((slot / SLOTS_PER_CHUNK) as usize) {
            Some(chunk) => chunk.span(slot % SLOTS_PER_CHUNK, self.stride),
            None => Span::EMPTY,
        }
    }

    /// The part of a slot that leaves.
    pub(super) fn segment(&self, slot: u32, offset: usize, len: usize) -> Segment {
        match (self.chunks.get((slot / SLOTS_PER_CHUNK) as usize), self.span(slot).slice(offset, len)) {
            (Some(chunk), Some(span)) => chunk.segment(span),
            _ => Segment { address: 0, len: 0, key: 0 },
        }
    }

    fn made(&self) -> u32 {
        u32::try_from(self.chunks.len()).unwrap_or(u32::MAX) * SLOTS_PER_CHUNK
    }

    fn grow(&mut self) -> io::Result<()> {
        let made = self.made();
        if made >= self.count_max {
            return Ok(());
        }
        self.chunks.push(Chunk::new(&self.device, SLOTS_PER_CHUNK, self.stride, Rights::Source)?);
        self.free.extend((made..(made + SLOTS_PER_CHUNK).min(self.count_max)).rev());
        Ok(())
    }
}
