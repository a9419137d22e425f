//! The storage calls of a list: data in memory is moved at once, the rest by several calls at a time.

use dafs_proto::extent::{Extent, Part};
use dafs_proto::wire::{Sieve, Status};

use super::Progress;
use crate::storage::{FsReply, FsResult, NowError};
use crate::worker::flight::calls::CALLS_MAX;
use crate::worker::flight::list::{DataSide, List, Step};
use crate::worker::flight::plan::{Call, WAITING_GAP_MAX};
use crate::worker::flight::token_with_slot;
use crate::worker::flight::transfer::TransferKind;
use crate::worker::requests::work::Context;
use crate::worker::sched::costs::{SieveCosts, has_gaps};

/// So much of a chunk is looked for in the page cache, and read ahead of, bytes.
const READ_AHEAD_MAX: u64 = 1 << 20;

/// Fewer parts are written each by itself.
const SIEVED_PARTS_MIN: usize = 4;

impl List {
    /// Moves what is at hand, and leaves as much of the rest to storage as it may have at once.
    pub(super) fn move_parts(&mut self, at: &mut Context<'_>) -> Progress {
        if at.locks().are_mandatory() {
            self.stop_where_locked(at);
        }
        loop {
            if let Some(outcome) = self.work.calls.outcome() {
                return if self.work.calls.is_empty() {
                    Progress::End(outcome)
                } else {
                    self.wait_in(Step::Submitted)
                };
            }
            let parts_min = match self.request.sieve {
                Sieve::Auto => SIEVED_PARTS_MIN,
                Sieve::On => 2,
                Sieve::Off => usize::MAX,
            };
            if self.work.parts.as_slice().len() >= parts_min {
                self.gaps.costs = Some(self.costs_in(at).costs(self.request.node.export));
            }
            at.counted().sieved_windows += u64::from(std::mem::take(&mut self.work.calls.windows));
            let first = self.work.next;
            let result = match self.is_absent(at) {
                true => self.move_nothing(),
                false => {
                    let (storage, left) = at.storage_in_turn();
                    self.move_now(storage, left)
                }
            };
            if let Some(mut account) = self.gaps.account.take() {
                let moved = self.work.next - first;
                let costs =
                    self.gaps.costs.unwrap_or_else(|| self.costs_in(at).costs(self.request.node.export));
                account.on_moved(moved, &self.gaps.tally, costs);
                self.gaps.account = Some(account);
            }
            if result.is_ok() {
                self.costs_in(at).record(self.request.node.export, &self.gaps.tally);
            }
            if self.request.kind == TransferKind::Write {
                at.counted().sieved_windows += u64::from(self.gaps.tally.windows);
            }
            at.turn().on_moved(self.work.moved);
            match result {
                // Told by the outcome.
                Ok(()) | Err(NowError::Failed(_)) if self.work.calls.has_stopped() => {}
                // The turn is over.
                Ok(()) | Err(NowError::Failed(_)) if self.has_next() => return Progress::Continue,
                Ok(()) | Err(NowError::Failed(_)) if self.work.calls.is_empty() => {
                    return self.chunk_moved(at);
                }
                Ok(()) | Err(NowError::Failed(_)) => return self.wait_in(Step::Submitted),
                Err(NowError::WouldBlock) => {
                    let running = self.work.calls.running;
                    if running >= CALLS_MAX || (running > 0 && !at.has_storage_room()) {
                        return self.wait_in(Step::Submitted);
                    }
                    if running == 0 && at.waits_for_storage_room() {
                        return self.wait_in(Step::Room);
                    }
                    self.submit_call(at);
                }
            }
        }
    }

    /// A lock may have been granted since the list began, or since the last look: what is left of the chunk is looked at, before storage
    /// has it.
    #[cold]
    fn stop_where_locked(&mut self, at: &mut Context<'_>) {
        let version = at.locks().mandatory_version();
        if self.work.locks_seen.replace(version) == Some(version) {
            return;
        }
        let left = self.work.parts.as_slice().get(self.work.next..).unwrap_or_default();
        let extents = left.iter().map(|part| Extent::new(part.offset, part.len as u64));
        let writes = self.request.kind != TransferKind::Read;
        if let Err(status) = at.check_locks_of(self.request.node, extents, writes) {
            self.stop_before_next(status);
        }
    }

    /// Nothing of the chunk is in the page cache, and it is read in windows: the kernel is asked for all of it before them. Looks part by
    /// part would have it read ahead of each, and what the windows read would come in pieces then. It is asked only where the last list had
    /// to wait.
    fn is_absent(&mut self, at: &mut Context<'_>) -> bool {
        if let Some(is_absent) = self.work.calls.is_absent {
            return is_absent;
        }
        self.work.calls.is_absent = Some(false);
        if self.request.kind != TransferKind::Read
            || !self.costs_in(at).waiting.expects(self.request.node.export)
        {
            return false;
        }
        let Some((offset, len)) = span(self.work.parts.as_slice()) else { return false };
        if !at.storage().is_absent(self.request.node, offset, len) {
            return false;
        }
        self.choose_gap(at);
        let is_window = self.next_call_waiting().is_some_and(|call| call.parts.len() > 1);
        if is_window {
            at.read_ahead(self.request.node, offset, len);
        }
        self.work.calls.is_absent = Some(is_window);
        is_window
    }

    fn wait_in(&mut self, step: Step) -> Progress {
        self.step = step;
        Progress::Wait
    }

    /// What lists of this kind have cost.
    fn costs_in<'w>(&self, at: &'w mut Context<'_>) -> &'w mut SieveCosts {
        at.costs(self.request.kind != TransferKind::Read)
    }

    /// Decides how large the gaps are that calls take in which have to wait.
    fn choose_gap(&mut self, at: &mut Context<'_>) {
        let may_sieve = (self.request.kind == TransferKind::Read || self.gaps.costs.is_some())
            && !self.gaps.leaves_gaps_out;
        if self.request.sieve != Sieve::Auto {
            self.gaps.gap_max_waiting = if self.request.sieve == Sieve::On { WAITING_GAP_MAX } else { 0 };
        } else if may_sieve && self.work.calls.trial.is_none() {
            let is_direct = at.storage().is_direct(self.request.node);
            let sieve = &mut self.costs_in(at).waiting;
            let (gap_max, trial) = sieve.choose(
                (self.request.node.export, is_direct),
                self.work.parts.as_slice(),
                self.work.next,
            );
            self.gaps.gap_max_waiting = gap_max;
            self.work.calls.trial = Some((at.now(), trial));
        }
    }

    /// Leaves the next call to storage.
    fn submit_call(&mut self, at: &mut Context<'_>) {
        self.choose_gap(at);
        let Some(call) = self.next_call_waiting() else { return };
        let (op, len, parts) = (self.op_of(&call), call.len, call.parts.len());
        self.work.next = call.parts.end;
        let slot = self.work.calls.begin(call);
        at.counted().storage_waits += 1;
        if let Some(account) = &mut self.gaps.account {
            account.on_submitted(parts);
        }
        match at.submit(token_with_slot(at.token, slot), op) {
            None => at.enters_storage(len),
            Some(result) => drop(self.call_ended(slot, &result)),
        }
    }

    /// Storage has finished a call, of so many bytes.
    pub(super) fn call_ended(&mut self, slot: u8, result: &FsResult) -> Option<u64> {
        let call = self.work.calls.end(slot)?;
        self.count_waited(&call, result);
        match result {
            Ok(FsReply::Count(count) | FsReply::Sieved { count, .. }) => self.on_moved(&call, *count),
            Ok(_) => self.on_failed(&call, Status::IO),
            Err(status) => self.on_failed(&call, *status),
        }
        if let Some(account) = self.gaps.account.as_mut().filter(|_| self.work.calls.is_empty()) {
            account.on_idle();
        }
        Some(call.len)
    }

    /// Counts what storage has made of a call: it may have written a window part by part.
    fn count_waited(&mut self, call: &Call, result: &FsResult) {
        let (is_window, calls) = match result {
            Ok(FsReply::Sieved { as_window: false, .. }) => (false, call.parts.len()),
            Ok(_) => (has_gaps(self.work.parts.as_slice(), call), 1),
            Err(_) => (false, 1),
        };
        self.work.calls.windows += u32::from(is_window && self.request.kind == TransferKind::Write);
        match &mut self.gaps.account {
            Some(account) if is_window => account.on_waited_window(call.len),
            Some(account) => account.on_waited(calls),
            None => {}
        }
    }

    /// Storage has moved all parts of the chunk.
    fn chunk_moved(&mut self, at: &mut Context<'_>) -> Progress {
        let calls = std::mem::take(&mut self.work.calls);
        self.costs_in(at).waiting.note(self.request.node.export, calls.waited_parts > 0);
        if let Some((began, trial)) = calls.trial
            && 2 * calls.waited_parts >= self.work.parts.as_slice().len()
        {
            let len = self.chunk.end - self.chunk.start;
            let time = at.now().since(began);
            self.costs_in(at).waiting.record(&trial, len, time);
        }
        if self.request.kind == TransferKind::Read && self.data.side == DataSide::Buffers {
            self.make_posts();
            return Progress::Continue;
        }
        self.done = self.chunk.end;
        self.step = Step::Begin;
        let own = if self.data.side == DataSide::Buffers { self.data.buffers.pop() } else { None };
        if let Some(buffer) = own {
            self.data.memory.clear();
            at.release_buffer(buffer);
        }
        Progress::Continue
    }
}

/// What of the file is read ahead for these parts: where it begins, and its length, which is not 0. Nothing of parts that descend.
fn span(parts: &[Part]) -> Option<(u64, u64)> {
    let (first, last) = parts.first().zip(parts.last())?;
    let len = last.end().checked_sub(first.offset).filter(|len| *len > 0)?;
    Some((first.offset, len.min(READ_AHEAD_MAX)))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn span_is_none_for_descending_parts_and_else_bounded() {
        let part = |offset, len| Part { offset, len, place: 0, segment: 0, within: 0 };
        assert_eq!(span(&[]), None);
        assert_eq!(span(&[part(8192, 16), part(4096, 16), part(0, 16)]), None);
        assert_eq!(span(&[part(16, 16), part(0, 16)]), None, "it ends where the first begins");
        assert_eq!(span(&[part(4096, 16), part(16384, 16)]), Some((4096, 12_304)));
        assert_eq!(span(&[part(4096, 16), part(1 << 40, 16)]), Some((4096, READ_AHEAD_MAX)));
    }
}
