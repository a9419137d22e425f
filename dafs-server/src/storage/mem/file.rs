//! Contents of a file in memory: chunks where there is data, nothing where there are holes.
#![allow(clippy::cast_possible_truncation, reason = "lengths in a chunk or in a buffer of this process")]

use std::sync::Arc;

use dafs_proto::transport::{HeapMemory, LocalSegments, Memory, MemoryRef, Span};
use dafs_proto::wire::Status;

use super::chunks::{CHUNK_SIZE, Chunks, Garbage, capacity};

/// The least a chunk holds; it grows by doubling.
const CHUNK_CAPACITY_MIN: u64 = 4096;

/// Contents, and what of them a crash would leave.
#[derive(Default)]
pub(super) struct FileData {
    size: u64,
    // Invariant: bytes of a chunk after `size` are zero.
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
    /// Given back, and not freed yet. Memory is made only while as much of it is freed, so that all of it stays within the limit.
    pub(super) garbage: Garbage,
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

    /// Memory for a chunk.
    fn memory(&mut self, bytes: u64) -> Result<HeapMemory, Status> {
        self.garbage.free(bytes);
        HeapMemory::allocate(bytes as usize).ok_or(Status::NO_MEMORY)
    }
}

impl FileData {
    pub(super) fn size(&self) -> u64 {
        self.size
    }

    /// Bytes held, or reserved.
    pub(super) fn allocated(&self) -> u64 {
        self.chunks.counts().charged
    }

    /// Bytes that it takes of the export's space.
    pub(super) fn cost(&self) -> u64 {
        self.chunks.counts().cost()
    }

    /// Copies out from `offset`; returns how much.
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
        let chunk = self.chunks.get(number);
        let held = chunk.map_or(0, |chunk| (capacity(chunk) as usize).saturating_sub(within));
        let held = held.min(target.len());
        if let (Some(chunk), Some(front)) = (chunk, target.slice(0, held))
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
        let present = self.chunks.get(number);
        let old = present.map_or(0, |chunk| capacity(chunk));
        let new = (held as u64).next_power_of_two().max(CHUNK_CAPACITY_MIN).max(old);
        let kept = match (&self.stable, present) {
            (Some(stable), Some(chunk)) => {
                stable.1.get(number).is_some_and(|stable| Arc::ptr_eq(stable, chunk))
            }
            _ => false,
        };
        if new > old || kept {
            self.replace_chunk(space, number, new)?;
        }
        self.chunks.get(number).map(AsRef::as_ref).ok_or(Status::IO)
    }

    /// A chunk that holds so many bytes, what it held before among them.
    fn replace_chunk(&mut self, space: &mut Space, number: u64, new: u64) -> Result<(), Status> {
        let before = self.cost();
        if !self.chunks.is_reserved(number) {
            space.take(new - self.chunks.held(number))?;
            space.give(new - self.chunks.held(number));
        }
        let made = space.memory(new)?;
        if let Some(chunk) = self.chunks.get(number)
            && let Some(front) = made.span().slice(0, chunk.span().len())
        {
            front.copy_from(chunk.span());
        }
        self.chunks.insert(number, Arc::new(made));
        self.charge(space, before);
        Ok(())
    }

    /// Counts what has changed since it cost so much. What there was room for is not refused for the few nodes that find it.
    fn charge(&self, space: &mut Space, before: u64) {
        let now = self.cost();
        space.used += now.saturating_sub(before);
        space.give(before.saturating_sub(now));
    }

    /// Sets the size; what is cut off is given back, what is added is a hole.
    pub(super) fn truncate(&mut self, space: &mut Space, size: u64) -> Result<(), Status> {
        if size == self.size {
            return Ok(());
        }
        self.before_change(space);
        if size < self.size {
            self.zero(space, size, u64::MAX)?;
        }
        self.size = size;
        Ok(())
    }

    /// Reserves space: writing there does not fail for want of it. No memory is touched but that of chunks which are covered in part.
    pub(super) fn allocate(&mut self, space: &mut Space, offset: u64, len: u64) -> Result<(), Status> {
        let end = offset + len;
        let (first, whole_end) = (offset.div_ceil(CHUNK_SIZE), end / CHUNK_SIZE);
        // Chunks that it covers to their end are reserved; of the last the beginning is made.
        let first = if offset / CHUNK_SIZE < whole_end { offset / CHUNK_SIZE } else { first };
        let wanted = whole_end.saturating_sub(first).saturating_mul(CHUNK_SIZE);
        if wanted > space.size_max {
            return Err(Status::NO_SPACE);
        }
        let missing = wanted - self.chunks.charged(first, whole_end);
        // Nothing is to be done for one that is reserved.
        let tail_len = if self.chunks.is_reserved(whole_end) { 0 } else { end % CHUNK_SIZE };
        let tail = match tail_len {
            0 => 0,
            len => len.next_power_of_two().max(CHUNK_CAPACITY_MIN),
        };
        let tail = tail.saturating_sub(self.chunks.held(whole_end));
        space.take(missing + tail)?;
        space.give(missing + tail);
        self.before_change(space);
        // First what may fail.
        if tail_len > 0 {
            self.chunk_for_write(space, whole_end, tail_len as usize)?;
        }
        let before = self.cost();
        self.chunks.reserve(first, whole_end);
        self.charge(space, before);
        self.size = self.size.max(end);
        Ok(())
    }

    /// Makes a hole inside the size.
    pub(super) fn punch(&mut self, space: &mut Space, offset: u64, len: u64) -> Result<(), Status> {
        if offset >= self.size {
            return Ok(());
        }
        self.before_change(space);
        self.zero(space, offset, offset + len)
    }

    /// Whole chunks in the range go, parts of chunks become zero. An end beyond the file is that of all that it has.
    fn zero(&mut self, space: &mut Space, offset: u64, end: u64) -> Result<(), Status> {
        let to_end = end >= self.size;
        let (first, last) = (offset.div_ceil(CHUNK_SIZE), if to_end { u64::MAX } else { end / CHUNK_SIZE });
        let before = self.cost();
        if first < last {
            self.chunks.remove(first, last, &mut space.garbage);
            self.charge(space, before);
        }
        let number = offset / CHUNK_SIZE;
        if !offset.is_multiple_of(CHUNK_SIZE) {
            let to = if to_end || number < last { CHUNK_SIZE } else { end % CHUNK_SIZE };
            self.zero_part(space, number, offset % CHUNK_SIZE, to)?;
        }
        if !to_end && last >= first && !end.is_multiple_of(CHUNK_SIZE) {
            self.zero_part(space, last, 0, end % CHUNK_SIZE)?;
        }
        Ok(())
    }

    fn zero_part(&mut self, space: &mut Space, number: u64, from: u64, to: u64) -> Result<(), Status> {
        let held = self.chunks.held(number);
        let to = to.min(held);
        if from == 0 && to == held && !self.chunks.is_reserved(number) {
            let before = self.cost();
            self.chunks.remove(number, number + 1, &mut space.garbage);
            self.charge(space, before);
        } else if from < to {
            // What is being sent from it stays as it was. Where there is no memory for that, it is not.
            if self.chunks.get(number).is_some_and(|chunk| Arc::strong_count(chunk) > 1) {
                let _ = self.replace_chunk(space, number, held);
            }
            let chunk = self.chunk_for_write(space, number, to as usize)?;
            if let Some(part) = chunk.span().slice(from as usize, (to - from) as usize) {
                part.zero();
            }
        }
        Ok(())
    }

    /// The next data or hole at or after `offset`. Space that is only reserved is a hole.
    pub(super) fn seek(&self, offset: u64, hole: bool) -> Result<u64, Status> {
        if offset >= self.size {
            return Err(Status::NO_DEVICE);
        }
        let (number, within) = (offset / CHUNK_SIZE, offset % CHUNK_SIZE);
        let is_data = within < self.chunks.held(number);
        match (is_data, hole) {
            (true, false) | (false, true) => Ok(offset),
            (true, true) => {
                let found = self.chunks.next_with_hole(number);
                Ok(found.saturating_mul(CHUNK_SIZE).saturating_add(self.chunks.held(found)).min(self.size))
            }
            (false, false) => {
                self.chunks.next_held(number + 1).map(|found| found * CHUNK_SIZE).ok_or(Status::NO_DEVICE)
            }
        }
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
            let memory = Arc::clone(self.chunks.get(number)?) as Arc<dyn Memory>;
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
            let before = self.cost();
            (self.size, self.chunks) = *stable;
            // What is durable is never refused its room.
            self.charge(space, before);
        }
    }

    /// It is gone, with its space.
    pub(super) fn clear(mut self, space: &mut Space) {
        space.give(self.cost());
        self.chunks.clear(&mut space.garbage);
    }

    fn before_change(&mut self, space: &Space) {
        if space.keep_stable && self.stable.is_none() {
            self.stable = Some(Box::new((self.size, self.chunks.clone())));
        }
    }
}
