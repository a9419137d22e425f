//! Moves the parts of a list by storage calls whose data is in memory.
#![allow(clippy::cast_possible_truncation, reason = "lengths within one request, which are of 32 bits")]

use std::cell::Cell;
use std::sync::Arc;
use std::time::{Duration, Instant};

use dafs_proto::extent::Part;
use dafs_proto::transport::{HeapMemory, MemoryRef, Span};
use smallvec::SmallVec;

use super::list::{List, Piece, each_piece, gap};
use super::plan::{Apart, Call};
use super::transfer::TransferKind;
use crate::storage::{NowError, Storage};
use crate::worker::sched::costs::{Tally, has_gaps};

impl List {
    /// Moves as many parts as storage has at hand, until they are `size_max` bytes or more. What failed, or had to stop, is noted in the
    /// calls.
    pub(crate) fn move_now(&mut self, storage: &mut dyn Storage, size_max: usize) -> Result<(), NowError> {
        let gap = gap();
        self.work.moved = 0;
        let is_timed = self.gaps.costs.is_some() || self.gaps.account.is_some();
        let began = is_timed.then(Instant::now);
        let result = self.move_each(storage, size_max, gap);
        self.gaps.tally.time = began.map_or(Duration::ZERO, |began| began.elapsed());
        result
    }

    /// As [`List::move_now`], where nothing is at hand.
    pub(crate) fn move_nothing(&mut self) -> Result<(), NowError> {
        (self.work.moved, self.gaps.tally) = (0, Tally::default());
        if self.has_next() { Err(NowError::WouldBlock) } else { Ok(()) }
    }

    fn move_each(
        &mut self,
        storage: &mut dyn Storage,
        size_max: usize,
        gap: &MemoryRef,
    ) -> Result<(), NowError> {
        self.gaps.tally = Tally::default();
        while self.has_next() && self.work.moved < size_max && !self.work.calls.has_stopped() {
            if self.request.kind == TransferKind::Read {
                self.read_pieces(storage, size_max - self.work.moved);
                if self.work.moved >= size_max {
                    break;
                }
            }
            let Some(call) = self.next_call_now().filter(|_| self.has_next()) else { break };
            let parts = self.work.parts.as_slice();
            let has_gaps = has_gaps(parts, &call);
            let moved = if has_gaps && self.request.kind != TransferKind::Read {
                match self.move_window(storage, &call) {
                    Ok(Some(count)) => Ok(count),
                    Ok(None) => {
                        self.work.apart_until = call.parts.end;
                        continue;
                    }
                    Err(error) => Err(error),
                }
            } else {
                match bounce() {
                    Some(bounce) if is_copied(parts, &call) => self.move_copied(storage, &call, &bounce),
                    _ => self.move_call(storage, &call, gap),
                }
            };
            let moved = match moved {
                Ok(count) => Ok(count),
                Err(NowError::WouldBlock) => return Err(NowError::WouldBlock),
                Err(NowError::Failed(status)) => Err(status),
            };
            self.gaps.tally.count(has_gaps, call.len);
            if self.gaps.account.is_some() {
                self.gaps.tally.count_apart(Apart::of(self.work.parts.as_slice(), &call));
            }
            self.work.next = call.parts.end;
            match moved {
                Ok(count) => {
                    self.work.moved += count.max(CALL_SIZE_MIN);
                    self.on_moved(&call, count);
                }
                Err(status) => self.on_failed(&call, status),
            }
        }
        Ok(())
    }
}

impl List {
    /// Moves parts that storage reads without a system call, each straight into its place, until they are `size_max` bytes or more.
    fn read_pieces(&mut self, storage: &mut dyn Storage, size_max: usize) {
        let parts = self.work.parts.as_slice().get(self.work.next..).unwrap_or_default();
        let mut moved = 0;
        let allowed = parts.iter().take_while(|part| {
            let begins = moved < size_max;
            moved += part.len;
            begins
        });
        let allowed = allowed.count();
        let parts = parts.get(..allowed).unwrap_or_default();
        let total = (self.chunk.end - self.chunk.start) as usize;
        // Asking a region for its memory takes longer than copying a few bytes, and many parts lie in one.
        let last = Cell::new((usize::MAX, Span::EMPTY));
        let piece = |index: usize| {
            let part = parts.get(index)?;
            if last.get().0 != part.segment {
                last.set((part.segment, self.data.segment_span(part.segment)?));
            }
            Some((part.offset, last.get().1.slice(part.within, part.len)?))
        };
        let count = storage.read_pieces(self.request.node, total, &piece);
        let moved: usize = parts.iter().take(count).map(|part| part.len).sum();
        self.work.moved += moved;
        self.work.next += count;
        self.gaps.tally.pieces += count as u32;
    }

    /// One call for all parts, each in its place.
    fn move_call(&self, storage: &mut dyn Storage, call: &Call, gap: &MemoryRef) -> Result<usize, NowError> {
        let parts = self.work.parts.as_slice().get(call.parts.clone()).unwrap_or_default();
        // Filled where it is: it is two kilobytes, and most calls have one part.
        let mut spans: SmallVec<[Span<'_>; 128]> = SmallVec::new();
        each_piece(parts, call.offset, |piece| {
            spans.extend(match piece {
                Piece::Part(part) => self.data.span_of(part, part.len),
                Piece::Gap(len) => gap.span().slice(0, len),
            });
        });
        match self.request.kind {
            TransferKind::Read => storage.read_now(self.request.node, call.offset, &spans),
            TransferKind::Write | TransferKind::Append => {
                storage.write_now(self.request.node, call.offset, &spans)
            }
        }
    }

    /// A window of the file in place of the parts that it holds; `None` where they are to be written each by itself.
    fn move_window(&self, storage: &mut dyn Storage, call: &Call) -> Result<Option<usize>, NowError> {
        let parts = self.work.parts.as_slice().get(call.parts.clone()).unwrap_or_default();
        let bounce = bounce();
        let window = bounce.as_ref().and_then(|bounce| bounce.span().slice(0, call.len as usize));
        let Some(window) = window else { return Ok(None) };
        let mut change = || {
            for part in parts {
                if let (Some(memory), Some(place)) = (
                    self.data.span_of(part, part.len),
                    window.slice((part.offset - call.offset) as usize, part.len),
                ) {
                    place.copy_from(memory);
                }
            }
        };
        storage.sieve_now(self.request.node, call.offset, window, &mut change)
    }

    /// One call for all parts, by way of contiguous memory: to the kernel a segment costs more than copying a small part.
    fn move_copied(
        &self,
        storage: &mut dyn Storage,
        call: &Call,
        bounce: &MemoryRef,
    ) -> Result<usize, NowError> {
        let parts = self.work.parts.as_slice().get(call.parts.clone()).unwrap_or_default();
        let Some(window) = bounce.span().slice(0, call.len as usize) else { return Ok(0) };
        let places = |part: &Part, len: usize| {
            let memory = self.data.span_of(part, len)?;
            Some((memory, window.slice((part.offset - call.offset) as usize, len)?))
        };
        if self.request.kind != TransferKind::Read {
            for (memory, place) in parts.iter().filter_map(|part| places(part, part.len)) {
                place.copy_from(memory);
            }
            return storage.write_now(self.request.node, call.offset, &[window]);
        }
        let count = storage.read_now(self.request.node, call.offset, &[window])?;
        for part in parts {
            let got = count.saturating_sub((part.offset - call.offset) as usize).min(part.len);
            if let Some((memory, place)) = places(part, got) {
                memory.copy_from(place);
            }
        }
        Ok(count)
    }
}

/// Its parts are so small, on average, that copying them is quicker than telling the kernel of each.
pub(crate) fn is_copied(parts: &[Part], call: &Call) -> bool {
    let parts = parts.get(call.parts.clone()).unwrap_or_default();
    let len: usize = parts.iter().map(|part| part.len).sum();
    parts.len() > 1 && call.len <= COPIED_SIZE_MAX as u64 && len / parts.len() <= COPIED_PART_MAX
}

/// What a call of storage takes at least, in bytes copied in that time.
pub(crate) const CALL_SIZE_MIN: usize = 2048;
/// Bytes of a part, on average, up to which parts are copied: measured, a segment costs the kernel about as much as copying this.
pub(crate) const COPIED_PART_MAX: usize = 1024;
/// Bytes of a call whose parts are copied: half of a usual second-level cache at most.
pub(crate) const COPIED_SIZE_MAX: usize = 256 * 1024;

/// This thread's memory for such calls; `None` when there was none.
pub(crate) fn bounce() -> Option<MemoryRef> {
    thread_local! {
        static BOUNCE: Option<MemoryRef> =
            HeapMemory::allocate(COPIED_SIZE_MAX).map(|memory| MemoryRef::new(Arc::new(memory)));
    }
    BOUNCE.with(Clone::clone)
}
