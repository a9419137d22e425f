//! Contents of a file in memory: chunks where there is data, nothing where there are holes.
#![allow(clippy::cast_possible_truncation, reason = "lengths in a chunk or in a buffer of this process")]

use std::collections::BTreeMap;
use std::sync::Arc;

use dafs_proto::transport::{HeapMemory, LocalSegments, Memory, MemoryRef, Span};
use dafs_proto::wire::Status;

/// Bytes of file that a chunk stands for.
pub(super) const CHUNK_SIZE: u64 = 64 * 1024;

/// The least a chunk holds; it grows by doubling.
const CHUNK_CAPACITY_MIN: usize = 4096;

/// The most chunks that one operation may make: allocating without writing must not be a way to stop the loop.
const ALLOCATE_CHUNKS_MAX: u64 = 1 << 16;

type Chunks = BTreeMap<u64, Arc<HeapMemory>>;

/// Contents, and what of them a crash would leave.
#[derive(Default)]
pub(super) struct FileData {
    size: u64,
    /// By number. Invariant: bytes of a chunk after `size` are zero.
    chunks: Chunks,
    /// Contents when last made durable; `None` while nothing has changed since.
    stable: Option<Box<(u64, Chunks)>>,
}

/// Space that all files of an export share.
pub(super) struct Space {
    pub(super) size_max: u64,
    pub(super) used: u64,
    /// Keep what a crash would leave.
    pub(super) keep_stable: bool,
}

impl Space {
    /// Takes bytes, or says that there are none.
    pub(super) fn take(&mut self, bytes: u64) -> Result<(), Status> {
        match self.used.checked_add(bytes) {
            Some(used) if used <= self.size_max => {
                self.used = used;
                Ok(())
            }
            _ => Err(Status::NO_SPACE),
        }
    }

    pub(super) fn give(&mut self, bytes: u64) {
        self.used = self.used.saturating_sub(bytes);
    }
}

fn capacity(chunk: &HeapMemory) -> usize {
    chunk.span().len()
}

impl FileData {
    pub(super) fn size(&self) -> u64 {
        self.size
    }

    /// Bytes in use.
    pub(super) fn allocated(&self) -> u64 {
        self.chunks.values().map(|chunk| capacity(chunk) as u64).sum()
    }

    /// Copies out from `offset`; answers how much.
    pub(super) fn read(&self, offset: u64, into: &[Span<'_>]) -> usize {
        let mut at = offset;
        for span in into {
            let mut done = 0;
            while done < span.len() && at < self.size {
                let within = at % CHUNK_SIZE;
                let want = (span.len() - done) as u64;
                let count = want.min(CHUNK_SIZE - within).min(self.size - at) as usize;
                let Some(target) = span.slice(done, count) else { break };
                self.copy_out(at / CHUNK_SIZE, within as usize, target);
                done += count;
                at += count as u64;
            }
        }
        (at - offset.min(at)) as usize
    }

    fn copy_out(&self, number: u64, within: usize, target: Span<'_>) {
        let held = self.chunks.get(&number).map_or(0, |chunk| capacity(chunk).saturating_sub(within));
        let held = held.min(target.len());
        if let (Some(chunk), Some(front)) = (self.chunks.get(&number), target.slice(0, held))
            && let Some(source) = chunk.span().slice(within, held)
        {
            front.copy_from(source);
        }
        if let Some(rest) = target.slice(held, target.len() - held) {
            rest.zero();
        }
    }

    /// Copies in at `offset`. What fits is written; an error only when nothing does.
    pub(super) fn write(
        &mut self,
        space: &mut Space,
        offset: u64,
        from: &[Span<'_>],
    ) -> Result<usize, Status> {
        let len: usize = from.iter().map(Span::len).sum();
        if len == 0 {
            return Ok(0);
        }
        self.before_change(space);
        let mut at = offset;
        for span in from {
            let mut done = 0;
            while done < span.len() {
                let within = (at % CHUNK_SIZE) as usize;
                let count = (span.len() - done).min(CHUNK_SIZE as usize - within);
                let part = span.slice(done, count);
                let chunk = self.chunk_for_write(space, at / CHUNK_SIZE, within + count);
                let (chunk, part) = match (chunk, part) {
                    (Ok(chunk), Some(part)) => (chunk, part),
                    (Err(status), _) if at == offset => return Err(status),
                    _ => return Ok((at - offset) as usize),
                };
                if let Some(target) = chunk.span().slice(within, count) {
                    target.copy_from(part);
                }
                done += count;
                at += count as u64;
                self.size = self.size.max(at);
            }
        }
        Ok(len)
    }

    /// The chunk, holding at least `held` bytes, shared with no stable image.
    fn chunk_for_write(
        &mut self,
        space: &mut Space,
        number: u64,
        held: usize,
    ) -> Result<&HeapMemory, Status> {
        let present = self.chunks.get(&number);
        let old = present.map_or(0, |chunk| capacity(chunk));
        let new = held.next_power_of_two().max(CHUNK_CAPACITY_MIN).max(old);
        let kept = match (&self.stable, present) {
            (Some(stable), Some(chunk)) => {
                stable.1.get(&number).is_some_and(|stable| Arc::ptr_eq(stable, chunk))
            }
            _ => false,
        };
        if new > old || kept {
            space.take((new - old) as u64)?;
            let Some(made) = HeapMemory::allocate(new) else {
                space.give((new - old) as u64);
                return Err(Status::NO_MEMORY);
            };
            if let Some(chunk) = present
                && let Some(front) = made.span().slice(0, old)
            {
                front.copy_from(chunk.span());
            }
            self.chunks.insert(number, Arc::new(made));
        }
        self.chunks.get(&number).map(AsRef::as_ref).ok_or(Status::IO)
    }

    /// Sets the size; what is cut off is given back, what is added is a hole.
    pub(super) fn truncate(&mut self, space: &mut Space, size: u64) -> Result<(), Status> {
        if size == self.size {
            return Ok(());
        }
        self.before_change(space);
        if size < self.size {
            self.zero(space, size, self.size - size)?;
        }
        self.size = size;
        Ok(())
    }

    /// Reserves space.
    pub(super) fn allocate(&mut self, space: &mut Space, offset: u64, len: u64) -> Result<(), Status> {
        let end = offset + len;
        let (first, last) = (offset / CHUNK_SIZE, (end - 1) / CHUNK_SIZE);
        if last - first >= ALLOCATE_CHUNKS_MAX || (last - first) * CHUNK_SIZE > space.size_max {
            return Err(Status::NO_SPACE);
        }
        self.before_change(space);
        for number in first..=last {
            let held = (end - number * CHUNK_SIZE).min(CHUNK_SIZE) as usize;
            self.chunk_for_write(space, number, held)?;
        }
        self.size = self.size.max(end);
        Ok(())
    }

    /// Makes a hole inside the size.
    pub(super) fn punch(&mut self, space: &mut Space, offset: u64, len: u64) -> Result<(), Status> {
        if offset >= self.size {
            return Ok(());
        }
        self.before_change(space);
        self.zero(space, offset, len.min(self.size - offset))
    }

    /// Whole chunks in the range go, parts of chunks become zero.
    fn zero(&mut self, space: &mut Space, offset: u64, len: u64) -> Result<(), Status> {
        let end = offset + len;
        let (first, last) = (offset / CHUNK_SIZE, end.saturating_sub(1) / CHUNK_SIZE);
        let touched: Vec<u64> = self.chunks.range(first..=last).map(|(number, _)| *number).collect();
        for number in touched {
            let start = number * CHUNK_SIZE;
            let held = self.chunks.get(&number).map_or(0, |chunk| capacity(chunk));
            let from = offset.saturating_sub(start).min(held as u64) as usize;
            let to = (end - start).min(held as u64) as usize;
            // A chunk that nothing of the file remains in.
            let empty = from == 0 && (to == held || end >= self.size);
            if empty {
                self.chunks.remove(&number);
                space.give(held as u64);
            } else if from < to {
                let chunk = self.chunk_for_write(space, number, held)?;
                if let Some(part) = chunk.span().slice(from, to - from) {
                    part.zero();
                }
            }
        }
        Ok(())
    }

    /// The next data or hole at or after `offset`.
    pub(super) fn seek(&self, offset: u64, hole: bool) -> Result<u64, Status> {
        if offset >= self.size {
            return Err(Status::NO_DEVICE);
        }
        let mut at = offset;
        while at < self.size {
            let start = at - at % CHUNK_SIZE;
            let held = self.chunks.get(&(at / CHUNK_SIZE)).map_or(0, |chunk| capacity(chunk) as u64);
            match (at < start + held, hole) {
                (true, false) | (false, true) => return Ok(at),
                (true, true) => at = start + held,
                (false, false) => match self.chunks.range(at / CHUNK_SIZE + 1..).next() {
                    Some((number, _)) => at = number * CHUNK_SIZE,
                    None => return Err(Status::NO_DEVICE),
                },
            }
        }
        if hole { Ok(self.size) } else { Err(Status::NO_DEVICE) }
    }

    /// The bytes as memory, chunk by chunk, where all of them are held by at most so many.
    pub(super) fn map(&self, offset: u64, len: usize, parts_max: usize) -> LocalSegments {
        let end = offset.saturating_add(len as u64).min(self.size);
        if offset >= end || ((end - 1) / CHUNK_SIZE - offset / CHUNK_SIZE) >= parts_max as u64 {
            return LocalSegments::new();
        }
        let part = |number: u64| {
            let start = number * CHUNK_SIZE;
            let (from, to) = (offset.max(start) - start, end.min(start + CHUNK_SIZE) - start);
            let memory = Arc::clone(self.chunks.get(&number)?) as Arc<dyn Memory>;
            MemoryRef::new(memory).slice(from as usize, (to - from) as usize)
        };
        // A part of the answer would look like the end of the file.
        let parts: Option<LocalSegments> = (offset / CHUNK_SIZE..=(end - 1) / CHUNK_SIZE).map(part).collect();
        parts.unwrap_or_default()
    }

    /// Everything written so far survives a crash.
    pub(super) fn commit(&mut self) {
        self.stable = None;
    }

    /// Falls back to what was durable.
    pub(super) fn crash(&mut self, space: &mut Space) {
        if let Some(stable) = self.stable.take() {
            space.give(self.allocated());
            (self.size, self.chunks) = *stable;
            // What is durable is never refused its room.
            space.used += self.allocated();
        }
    }

    fn before_change(&mut self, space: &Space) {
        if space.keep_stable && self.stable.is_none() {
            self.stable = Some(Box::new((self.size, self.chunks.clone())));
        }
    }
}
