//! A batch in progress, and its inline data.
#![allow(clippy::cast_possible_truncation, reason = "counts within one request, which are of 32 bits")]

use std::collections::HashMap;
use std::ops::Range;
use std::time::Duration;

use dafs_proto::session::{Effect, Moment, PartEffect};
use dafs_proto::transport::{MemoryRef, OpToken, Span};
use dafs_proto::wire::{
    BatchFlags, BatchOperation, BatchRequest, BatchResult, CHAIN_HANDLE, FileHandle, Lists, Stability,
    Status, Verifier,
};

use super::layout::pack_behind;
use super::own_memory;

/// Operations of at most this many bytes are done together, as one list: beyond it each is as quick on its own.
const GROUPED_LEN_MAX: u64 = 64 * 1024;

/// Bytes of one such list: several at a time, for a disk and for RDMA.
const GROUP_LEN_MAX: u64 = 1 << 20;

/// Which operations of which batch a call is for: neighbours that are done together.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct BatchPlace {
    pub(crate) batch: OpToken,
    /// The first.
    pub(crate) index: u32,
    /// At least one.
    pub(crate) count: u32,
}

impl BatchPlace {
    fn indices(self) -> Range<usize> {
        self.index as usize..(self.index + self.count) as usize
    }
}

/// A batch under way.
#[derive(Debug)]
pub(crate) struct Batch {
    pub(crate) operations: Vec<BatchOperation>,
    pub(crate) results: Vec<Option<BatchResult>>,
    /// What is in the files of writes that have not ended, whose connection broke. Each is begun again on its own, behind that.
    pub(crate) written: HashMap<u32, (u64, Verifier)>,
    /// Of inline operations.
    pub(crate) data: Option<InlineData>,
    /// The first that was never begun.
    pub(crate) next: usize,
    /// To be begun again, each on its own: their connection broke before they had ended, or what was done together with others failed.
    pub(crate) again: Vec<u32>,
    /// [`BatchPlace`]s under way.
    pub(crate) running: usize,
    /// Some are being begun: whoever ends meanwhile is looked at afterwards.
    pub(crate) beginning: bool,
    pub(crate) hints: Option<Hints>,
    /// Ended and not told by a notice.
    pub(crate) untold: Vec<u32>,
    /// When the first of those ended.
    pub(crate) untold_since: Option<Moment>,
}

/// How ends are told before the reply.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Hints {
    pub(crate) completions: usize,
    pub(crate) window: Duration,
}

impl Batch {
    pub(crate) fn new(operations: Vec<BatchOperation>, request: &BatchRequest) -> Self {
        let window = Duration::from_micros(u64::from(request.window_us));
        let completions = match request.completions {
            0 => usize::MAX,
            completions => completions as usize,
        };
        let hints = match request.flags.contains(BatchFlags::EXPEDITE) {
            true => Hints { completions: 1, window: Duration::ZERO },
            false => Hints { completions, window },
        };
        Self {
            results: vec![None; operations.len()],
            written: HashMap::new(),
            operations,
            data: None,
            next: 0,
            again: Vec::new(),
            running: 0,
            beginning: false,
            hints: request.flags.contains(BatchFlags::NOTIFY).then_some(hints),
            untold: Vec::new(),
            untold_since: None,
        }
    }

    /// Takes the next operations: where they begin, and how many of them go together.
    pub(crate) fn begin_next(&mut self) -> Option<(u32, u32)> {
        while self.again.is_empty() && matches!(self.results.get(self.next), Some(Some(_))) {
            self.next += 1;
        }
        let next = match self.again.pop() {
            Some(index) => (index, 1),
            None if self.next < self.operations.len() => {
                let count = self.group_len(self.next);
                let next = (self.next as u32, count as u32);
                self.next += count;
                next
            }
            None => return None,
        };
        self.running += 1;
        Some(next)
    }

    /// How many operations from `from` on, at least one, are one list: small ones of the same kind and file, and no more than are to be
    /// told of together.
    fn group_len(&self, from: usize) -> usize {
        let rest = self.operations.get(from..).unwrap_or_default();
        let Some(first) = rest.first().filter(|_| !self.is_begun(from)) else { return 1 };
        let most = self.hints.map_or(usize::MAX, |hints| hints.completions);
        let (mut len, mut index) = (0, from);
        let goes_along = |(operation, result): &(&BatchOperation, &Option<BatchResult>)| {
            len += operation.len();
            index += 1;
            result.is_none()
                && !self.is_begun(index - 1)
                && belongs(first, operation)
                && operation.len() <= GROUPED_LEN_MAX
                && len <= GROUP_LEN_MAX
        };
        let results = self.results.get(from..).unwrap_or_default();
        rest.iter().zip(results).take(most).take_while(goes_along).count().max(1)
    }

    /// The handles of the operations that have not ended; `own` is the handle of the batch itself.
    pub(crate) fn handles(&self, own: FileHandle) -> impl Iterator<Item = FileHandle> {
        let operations = self.operations.iter().zip(&self.results);
        operations.filter(|(_, result)| result.is_none()).map(move |(operation, _)| match operation.handle {
            CHAIN_HANDLE => own,
            named => named,
        })
    }

    pub(crate) fn has_next(&self) -> bool {
        !self.again.is_empty() || self.next < self.operations.len()
    }

    /// An operation has ended.
    pub(crate) fn end(&mut self, index: usize, result: BatchResult, now: Moment) {
        let Some(place) = self.results.get_mut(index) else { return };
        *place = Some(result);
        if self.hints.is_some() {
            self.untold.push(index as u32);
            self.untold_since.get_or_insert(now);
        }
    }

    /// The list that some operations were has ended. What is not as it should be of one is tried again on its own, so that each has its
    /// own result.
    pub(crate) fn end_group(&mut self, place: BatchPlace, result: &BatchResult, now: Moment) {
        let (mut left, is_read) = (u64::from(result.count), !self.writes(place));
        for index in place.indices() {
            let Some(operation) = self.operations.get(index) else { return };
            let (extents, len) = (&operation.lists.extents, operation.len());
            if result.status != Status::OK || (!is_read && left < len) {
                left = 0;
                self.again.push(index as u32);
                continue;
            }
            left = left.saturating_sub(len);
            let own = match is_read {
                true => {
                    let got: u64 = extents.iter().map(|extent| extent.len_before(result.value)).sum();
                    let value = if got < len { result.value } else { BatchResult::NOT_ENDED };
                    BatchResult { status: Status::OK, count: got as u32, value }
                }
                false => BatchResult { count: len as u32, ..*result },
            };
            self.end(index, own, now);
        }
    }

    fn writes(&self, place: BatchPlace) -> bool {
        self.operations.get(place.index as usize).is_some_and(|operation| operation.write)
    }

    /// What some operations move, as one list.
    pub(crate) fn lists_of(&self, place: BatchPlace) -> Lists {
        let operations = self.operations.get(place.indices()).unwrap_or_default();
        let mut lists = Lists {
            extents: Vec::with_capacity(operations.len()),
            segments: Vec::with_capacity(operations.len()),
        };
        for operation in operations {
            lists.extents.extend_from_slice(&operation.lists.extents);
            lists.segments.extend_from_slice(&operation.lists.segments);
        }
        lists
    }

    pub(crate) fn is_done(&self) -> bool {
        self.running == 0 && self.again.is_empty() && self.next == self.operations.len()
    }

    /// Ends have waited long enough, or are enough.
    pub(crate) fn is_due(&self, now: Moment) -> bool {
        self.hints.is_some_and(|hints| self.untold.len() >= hints.completions)
            || self.window_end().is_some_and(|end| now >= end)
    }

    /// When what has ended has waited long enough.
    pub(crate) fn window_end(&self) -> Option<Moment> {
        Some(self.untold_since?.after(self.hints?.window))
    }

    /// Memory of some inline operations; `None` of direct ones.
    pub(crate) fn memory_of(&self, place: BatchPlace) -> Option<Option<MemoryRef>> {
        let operations = self.operations.get(place.indices())?;
        if !operations.first()?.is_inline() {
            return Some(None);
        }
        let len: u64 = operations.iter().map(BatchOperation::len).sum();
        self.data.as_ref()?.of(place, len as usize).map(Some)
    }

    /// Its connection broke. What was read into the client's memory may not have arrived; what was written is in the files.
    pub(crate) fn on_disconnected(&mut self) {
        self.untold.clear();
        self.untold_since = None;
        for (index, operation) in self.operations.iter().enumerate() {
            if !operation.write && !operation.is_inline() && self.results[index].take().is_some() {
                self.again.push(index as u32);
            }
        }
    }

    /// The list that some operations were ended without an answer, with what it has written: those of which that is all have ended, unless
    /// it was still to be made durable.
    pub(crate) fn end_in_part(&mut self, place: BatchPlace, written: Option<Effect>, now: Moment) {
        let Some(Effect::Bytes(mut left, verifier)) = written else {
            // Nor is one without bytes done: there is no verifier to tell.
            return self.again.extend(place.indices().map(|index| index as u32));
        };
        for index in place.indices() {
            let Some(operation) = self.operations.get(index) else { return };
            let (len, is_stable) = (operation.len(), operation.stability != Stability::Unstable);
            let own = left.min(len);
            left -= own;
            let place = index as u32;
            // [BATCH-22]
            if operation.write && own == len && !is_stable {
                self.end(
                    index,
                    BatchResult { status: Status::OK, count: len as u32, value: verifier.0 },
                    now,
                );
                continue;
            }
            self.again.push(place);
            if own > 0 {
                self.written.insert(place, (own, verifier));
            }
        }
    }

    /// An operation of the batch was carried out before, all of it or a part.
    pub(crate) fn resume(&mut self, index: usize, effect: PartEffect, now: Moment) {
        match effect {
            PartEffect::Ended(result) => self.end(index, result, now),
            PartEffect::Bytes(count, verifier) => {
                self.written.insert(index as u32, (count, verifier));
            }
        }
    }

    /// Some of an operation that has not ended is in its file.
    pub(crate) fn is_begun(&self, index: usize) -> bool {
        !self.written.is_empty() && self.written.contains_key(&(index as u32))
    }

    /// Bytes of a part that are in its file, as long as the verifier is what it was. It is begun again, and tells of them itself then.
    pub(crate) fn take_written(&mut self, place: BatchPlace, verifier: Verifier) -> u64 {
        let (count, before) = self.written.remove(&place.index).unwrap_or((0, verifier));
        if before == verifier { count } else { 0 }
    }

    /// What of it need not be done again, and must not.
    pub(crate) fn effect(&self) -> Option<Effect> {
        let in_part = |index| {
            self.written.get(&(index as u32)).map(|(count, verifier)| PartEffect::Bytes(*count, *verifier))
        };
        let results = self.results.iter().enumerate();
        effect(
            &self.operations,
            results.map(|(index, result)| result.map(PartEffect::Ended).or_else(|| in_part(index))),
        )
    }

    /// No operation of it is in anybody's hands.
    pub(crate) fn rests(&self) -> bool {
        self.running == 0
    }
}

/// Data of a batch that is on its way between messages and files: that of writes, then room for that of reads, both in the order of the
/// operations. No more than a request and a reply carry.
#[derive(Debug)]
pub(crate) struct InlineData {
    pub(crate) memory: MemoryRef,
    /// Of each inline operation its first byte there.
    places: Vec<u32>,
    /// Where reads begin.
    pub(crate) written: usize,
}

impl InlineData {
    /// Room for the data of these operations.
    pub(crate) fn new(operations: &[BatchOperation]) -> Result<Self, Status> {
        let (places, [written, read]) = places(operations);
        Ok(Self { memory: own_memory(written + read)?, places, written })
    }

    /// The memory of some operations of one kind that follow each other.
    fn of(&self, place: BatchPlace, len: usize) -> Option<MemoryRef> {
        self.memory.slice(*self.places.get(place.index as usize)? as usize, len)
    }

    /// Where reads go.
    pub(crate) fn reads(&self) -> Span<'_> {
        self.memory.span().slice(self.written, self.memory.len() - self.written).unwrap_or(Span::EMPTY)
    }

    /// All that was read, without gaps.
    pub(crate) fn pack(&self, operations: &[BatchOperation], results: &[BatchResult]) -> Span<'_> {
        let len = pack(self.reads(), operations, results);
        self.reads().slice(0, len).unwrap_or(Span::EMPTY)
    }
}

/// Where the data of each inline operation begins, that of reads behind that of writes; and bytes of writes and of reads.
pub(crate) fn places(operations: &[BatchOperation]) -> (Vec<u32>, [usize; 2]) {
    let lens = [true, false].map(|write| inline_len(operations, write));
    let mut next = [lens[0], 0];
    let places = operations.iter().map(|operation| {
        let next = &mut next[usize::from(operation.write)];
        let place = *next as u32;
        *next += if operation.is_inline() { operation.len() as usize } else { 0 };
        place
    });
    (places.collect(), lens)
}

/// Bytes of all inline writes, or reads.
pub(crate) fn inline_len(operations: &[BatchOperation], write: bool) -> usize {
    let own = operations.iter().filter(|operation| operation.write == write && operation.is_inline());
    own.map(BatchOperation::len).sum::<u64>() as usize
}

/// Brings together what each inline read got; returns how much that is.
pub(crate) fn pack(memory: Span<'_>, operations: &[BatchOperation], results: &[BatchResult]) -> usize {
    let (mut from, mut to) = (0, 0);
    for (operation, result) in operations.iter().zip(results) {
        if operation.write || !operation.is_inline() {
            continue;
        }
        let end = if result.status == Status::OK { result.value } else { 0 };
        pack_behind(memory, (&mut from, &mut to), operation.lists.extents.iter().copied(), end);
    }
    to
}

/// It is a write, and all of it was written. What was not may be for the connection that broke.
pub(crate) fn is_written(operation: &BatchOperation, result: &BatchResult) -> bool {
    operation.write && result.status == Status::OK && u64::from(result.count) == operation.len()
}

/// What writes came to, if anything.
pub(crate) fn effect(
    operations: &[BatchOperation],
    parts: impl Iterator<Item = Option<PartEffect>>,
) -> Option<Effect> {
    let is_kept = |operation: &BatchOperation, part: &PartEffect| match part {
        PartEffect::Ended(result) => is_written(operation, result),
        PartEffect::Bytes(..) => true,
    };
    let written = operations.iter().zip(parts);
    let written = written.map(|(operation, part)| part.filter(|part| is_kept(operation, part)));
    let written: Box<[_]> = written.collect();
    written.iter().any(Option::is_some).then_some(Effect::Batch(written))
}

/// Both are of one file, kind, method and stability.
pub(crate) fn belongs(first: &BatchOperation, next: &BatchOperation) -> bool {
    let of = |operation: &BatchOperation| {
        (operation.handle, operation.write, operation.method, operation.stability)
    };
    of(first) == of(next)
}

#[cfg(test)]
mod tests;
