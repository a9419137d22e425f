//! A direct transfer under way: what of it is where.
#![allow(clippy::cast_possible_truncation, reason = "lengths within one request, which are of 32 bits")]

use dafs_proto::transport::{LocalSegments, MemoryRef, RegionKey, RemoteRange};
use dafs_proto::wire::{Stability, Verifier};
use smallvec::SmallVec;

use super::pipeline::Pipeline;
use crate::storage::NodeId;
use crate::worker::buffers::Buffer;

/// Ranges of client memory.
pub(crate) type Segments = SmallVec<[RemoteRange; 1]>;

/// Which way the data goes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum TransferKind {
    Read,
    Write,
    Append,
}

/// A transfer under way.
#[derive(Debug)]
pub(crate) struct Transfer {
    pub(crate) request: TransferRequest,
    pub(crate) pipeline: Pipeline<Passage>,
    /// Largest chunk while nobody else is there, bytes.
    pub(crate) chunk_size_max: u64,
    /// Appends: one buffer for each chunk, lent before the first.
    pub(crate) collected: Vec<Buffer>,
    /// Lent, and not yet used.
    pub(crate) granted: Option<Buffer>,
    pub(crate) waits: Waits,
    /// Storage makes the data durable, or appends it.
    pub(crate) is_final: bool,
    /// Its connection ended while storage had its memory: what was posted on it is lost.
    pub(crate) is_broken: bool,
}

/// What is asked for.
#[derive(Clone, Debug)]
pub(crate) struct TransferRequest {
    pub(crate) kind: TransferKind,
    pub(crate) node: NodeId,
    pub(crate) offset: u64,
    pub(crate) len: u64,
    pub(crate) segments: Segments,
    pub(crate) stability: Stability,
    /// From before anything was written.
    pub(crate) verifier: Verifier,
}

/// What a transfer waits for beside its chunks.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Waits {
    /// It is in the queue for buffers.
    pub(crate) for_buffer: bool,
    /// It is among those whose posts found the queue full.
    pub(crate) for_post: bool,
    /// Others of its session have as much with storage as they may.
    pub(crate) for_storage: bool,
    /// It goes on when its connection has its next turn.
    pub(crate) for_turn: bool,
}

/// What a chunk passes through, on this side and on the client's.
#[derive(Debug)]
pub(crate) struct Passage {
    /// In several parts where a window of a file is.
    pub(crate) memory: LocalSegments,
    pub(crate) buffer: Option<Buffer>,
    pub(crate) remote: RemoteRange,
    /// The memory is the client's own.
    pub(crate) is_mapped: bool,
}

impl Transfer {
    pub(crate) fn new(kind: TransferKind, node: NodeId, offset: u64, len: u64, segments: Segments) -> Self {
        let (stability, verifier) = (Stability::Unstable, Verifier(0));
        Self::of(TransferRequest { kind, node, offset, len, segments, stability, verifier })
    }

    /// The same, of which nothing has begun.
    pub(crate) fn of(request: TransferRequest) -> Self {
        Self {
            pipeline: Pipeline::new(request.kind, request.len, 1),
            request,
            chunk_size_max: 0,
            collected: Vec::new(),
            granted: None,
            waits: Waits::default(),
            is_final: false,
            is_broken: false,
        }
    }

    /// The part of the client's memory from `at` on that is contiguous, at most `len_max` bytes.
    pub(crate) fn remote_at(&self, at: u64, len_max: u64) -> Option<RemoteRange> {
        let mut before = 0;
        for segment in &self.request.segments {
            if at < before + segment.len {
                let inside = at - before;
                return segment.slice(inside, (segment.len - inside).min(len_max));
            }
            before += segment.len;
        }
        None
    }

    /// The sizes of all chunks, where none is chopped.
    pub(crate) fn chunk_sizes(&self) -> Vec<usize> {
        let mut at = 0;
        let sizes = std::iter::from_fn(|| {
            let range = self.remote_at(at, self.chunk_size_max)?;
            at += range.len;
            Some(range.len as usize)
        });
        sizes.collect()
    }

    /// The memory of a chunk that storage fills or empties, `len` bytes of it.
    pub(crate) fn memory(&self, slot: u8, len: u64) -> Option<MemoryRef> {
        self.pipeline.passage(slot)?.memory.first()?.slice(0, len as usize)
    }

    /// The memory of a chunk that RDMA moves, `len` bytes of it.
    pub(crate) fn segments(&self, slot: u8, len: u64) -> Option<LocalSegments> {
        let mut left = len as usize;
        let memory = &self.pipeline.passage(slot)?.memory;
        let mut segments = LocalSegments::new();
        for part in memory {
            if left == 0 {
                break;
            }
            let part = part.slice(0, part.len().min(left))?;
            left -= part.len();
            segments.push(part);
        }
        (left == 0).then_some(segments)
    }
}

/// A range of a client's memory, as requests name it.
pub(crate) fn range([key, offset, len]: [u64; 3]) -> RemoteRange {
    RemoteRange { key: RegionKey(key), offset, len }
}
