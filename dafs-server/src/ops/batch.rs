//! Batches: many independent reads and writes in one request. Each operation is begun as a request of its own would be, some at a
//! time, and answers into the batch; the batch is answered when all have.
#![allow(clippy::cast_possible_truncation, reason = "counts within one request, which are of 32 bits")]

mod inline;
mod notices;

use std::ops::Range;
use std::time::Duration;

use dafs_proto::session::Moment;
use dafs_proto::transport::{Access, MemoryRef, OpToken};
use dafs_proto::wire::{
    BATCH_RESULT_SIZE, BatchError, BatchFlags, BatchLimits, BatchOperation, BatchRequest, BatchResult,
    CHAIN_HANDLE, Header, ListReadReply, Lists, Method, Opcode, Stability, Status, WriteReply, decode_batch,
};

use self::inline::{InlineData, belongs};
use super::read::{range, with_remote_memory};
use super::write::write_all;
use super::{Direction, Server};
use crate::backend::NowError;
use crate::dispatch::{Answer, Payload, Problem};
use crate::inflight::{Call, State, Wakeup};

/// Operations of a session's batches under way at once, beyond one of each: enough for a disk to sort them, few enough to leave buffers
/// to others.
const RUNNING_MAX: u32 = 64;

/// Operations of at most this many bytes are done together, as one list: beyond it each is as quick on its own.
const GROUPED_LEN_MAX: u64 = 64 * 1024;

/// Bytes of one such list: several at a time, for a disk and for RDMA.
const GROUP_LEN_MAX: u64 = 1 << 20;

/// Which operations of which batch a call is for: neighbours that are done together.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct BatchPlace {
    batch: OpToken,
    /// The first.
    index: u32,
    /// At least one.
    count: u32,
}

impl BatchPlace {
    fn indices(self) -> Range<usize> {
        self.index as usize..(self.index + self.count) as usize
    }
}

/// A batch under way.
#[derive(Debug)]
pub(crate) struct Batch {
    operations: Vec<BatchOperation>,
    results: Vec<Option<BatchResult>>,
    /// Of inline operations.
    data: Option<InlineData>,
    /// The first that was never begun.
    next: usize,
    /// To be begun again, each on its own: their connection broke before they had ended, or what was done together with others failed.
    again: Vec<u32>,
    /// [`BatchPlace`]s under way.
    running: usize,
    /// Some are being begun: whoever ends meanwhile is looked at afterwards.
    beginning: bool,
    hints: Option<Hints>,
    /// Ended and not told by a notice.
    untold: Vec<u32>,
    /// When the first of those ended.
    untold_since: Option<Moment>,
}

/// How ends are told before the reply.
#[derive(Clone, Copy, Debug)]
struct Hints {
    completions: usize,
    window: Duration,
}

impl Batch {
    fn new(operations: Vec<BatchOperation>, request: &BatchRequest) -> Self {
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
    fn begin_next(&mut self) -> Option<(u32, u32)> {
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
        let Some(first) = rest.first() else { return 1 };
        let most = self.hints.map_or(usize::MAX, |hints| hints.completions);
        let mut len = 0;
        let goes_along = |(operation, result): &(&BatchOperation, &Option<BatchResult>)| {
            len += operation.len();
            result.is_none()
                && belongs(first, operation)
                && operation.len() <= GROUPED_LEN_MAX
                && len <= GROUP_LEN_MAX
        };
        let results = self.results.get(from..).unwrap_or_default();
        rest.iter().zip(results).take(most).take_while(goes_along).count().max(1)
    }

    fn has_next(&self) -> bool {
        !self.again.is_empty() || self.next < self.operations.len()
    }

    /// An operation has ended.
    fn end(&mut self, index: usize, result: BatchResult, now: Moment) {
        let Some(place) = self.results.get_mut(index) else { return };
        *place = Some(result);
        if self.hints.is_some() {
            self.untold.push(index as u32);
            self.untold_since.get_or_insert(now);
        }
    }

    /// The list that some operations were has ended. What is not as it should be of one is tried again on its own, so that each has its
    /// own result.
    fn end_group(&mut self, place: BatchPlace, result: &BatchResult, now: Moment) {
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
    fn lists_of(&self, place: BatchPlace) -> Lists {
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

    fn is_done(&self) -> bool {
        self.running == 0 && self.again.is_empty() && self.next == self.operations.len()
    }

    /// Ends have waited long enough, or are enough.
    fn is_due(&self, now: Moment) -> bool {
        self.hints.is_some_and(|hints| self.untold.len() >= hints.completions)
            || self.window_end().is_some_and(|end| now >= end)
    }

    /// When what has ended has waited long enough.
    fn window_end(&self) -> Option<Moment> {
        Some(self.untold_since?.after(self.hints?.window))
    }

    /// Memory of some inline operations; `None` of direct ones.
    fn memory_of(&self, place: BatchPlace) -> Option<Option<MemoryRef>> {
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

    /// No operation of it is in anybody's hands.
    pub(crate) fn rests(&self) -> bool {
        self.running == 0
    }
}

impl Server {
    /// Executes a batch.
    pub(crate) fn batch(&mut self, call: &Call, body: &[u8], payload: Payload<'_>) -> Result<(), Problem> {
        let request = BatchRequest::decode(body)?;
        let reply_max = self.reply_payload_max(call);
        let limits = BatchLimits { len_max: self.settings.transfer_size_max, reply_max };
        let results_max = reply_max / BATCH_RESULT_SIZE;
        let operations = match request.described_len(call.header.payload_len as usize) {
            Err(error) => Err(error),
            Ok(_) if request.operations as usize > results_max => {
                Err(BatchError::TooMany { found: request.operations, limit: results_max })
            }
            Ok(len) => decode_batch(&self.payload_start(call, payload, len), &request, &limits)
                .map(|operations| (operations, len)),
        };
        let (operations, described_len) = match operations {
            Ok(decoded) => decoded,
            Err(error) => {
                tracing::debug!(%error, "batch refused");
                let words = error.to_string();
                let answer = Answer { payload: words.as_bytes(), ..Answer::default() };
                self.reply(call, Status::INVALID, answer);
                return Ok(());
            }
        };
        if operations.is_empty() && request.flags.contains(BatchFlags::EXPEDITE) {
            self.expedite_batches(call.session);
        }
        let Some((done, data)) = self.do_at_hand(call, &operations, (payload, described_len))? else {
            return Ok(());
        };
        let mut batch = Batch { data, ..Batch::new(operations, &request) };
        let now = self.now;
        for (index, result) in done.into_iter().enumerate() {
            result.into_iter().for_each(|result| batch.end(index, result, now));
        }
        self.note_window(batch.window_end());
        let token = self.park(*call, State::Batch(Box::new(batch)));
        self.go_on_with_batch(token);
        Ok(())
    }

    /// A private copy of what describes the operations.
    fn payload_start(&self, call: &Call, payload: Payload<'_>, len: usize) -> Vec<u8> {
        match payload {
            Payload::Kept(bytes) => bytes.get(..len).unwrap_or_default().to_vec(),
            Payload::Current => {
                let connection = self.connections.get(call.connection.index);
                let start = connection.and_then(|connection| connection.endpoint.payload().slice(0, len));
                start.map(|start| start.to_vec()).unwrap_or_default()
            }
        }
    }

    /// Somebody is to look when what has ended has waited long enough. What has already is told of when its batch goes on, or when its
    /// session listens.
    fn note_window(&mut self, end: Option<Moment>) {
        if let Some(end) = end.filter(|end| *end > self.now) {
            self.window_end = Some(self.window_end.map_or(end, |soonest| soonest.min(end)));
        }
    }

    /// An operation of a batch as a request of its own.
    fn part_call(call: &Call, operation: &BatchOperation) -> Call {
        let handle = if operation.handle == CHAIN_HANDLE { call.header.handle } else { operation.handle };
        let opcode = if operation.write { Opcode::WriteList } else { Opcode::ReadList };
        Call { header: Header { opcode, handle, ..call.header }, link: None, ..*call }
    }

    fn batch_at(&mut self, index: usize) -> Option<&mut Batch> {
        match self.operations.get_mut(index).map(|operation| &mut operation.state) {
            Some(State::Batch(batch)) => Some(batch),
            _ => None,
        }
    }

    /// Begins what can begin, tells what is to be told, and answers when all have ended.
    pub(crate) fn go_on_with_batch(&mut self, token: OpToken) {
        let Some(index) = self.operation_index(token) else { return };
        let call = self.operations[index].call;
        if self.connection(call.connection).is_none() {
            return self.rest_batch(index);
        }
        self.mark_dirty(call.connection);
        loop {
            let over = self.turns.is_over();
            let is_full = self.sessions.find(call.session).is_none_or(|s| s.batched >= RUNNING_MAX);
            let Some(batch) = self.batch_at(index) else { return };
            if is_full && batch.running > 0 {
                break;
            }
            if over && batch.has_next() {
                self.yield_transfer(call.connection, token);
                break;
            }
            let Some((first, count)) = batch.begin_next() else { break };
            batch.beginning = true;
            if let Some(session) = self.sessions.find_mut(call.session) {
                session.batched += 1;
            }
            let place = BatchPlace { batch: token, index: first, count };
            if let Err(status) = self.begin_part(&call, place, index) {
                self.end_part(place, BatchResult::failed(status));
            }
        }
        let now = self.now;
        let Some(batch) = self.batch_at(index) else { return };
        batch.beginning = false;
        if batch.is_done() {
            return self.finish_batch(index);
        }
        if batch.is_due(now) {
            self.tell_of_batch(index);
        }
    }

    /// Begins some operations; their end comes to [`Server::on_batch_part`], perhaps within this call. An error is their result.
    fn begin_part(&mut self, call: &Call, place: BatchPlace, index: usize) -> Result<(), Status> {
        let Some(batch) = self.batch_at(index) else { return Ok(()) };
        let operation = &batch.operations[place.index as usize];
        let (write, stability) = (operation.write, operation.stability);
        let single = match (&operation.lists.extents[..], &operation.lists.segments[..]) {
            ([extent], [segment]) if place.count == 1 => Some((*extent, *segment)),
            _ => None,
        };
        let memory = batch.memory_of(place).ok_or(Status::NO_MEMORY)?;
        let call = Call { batch: Some(place), ..Self::part_call(call, operation) };
        let node = self.node_of(&call, write)?;
        let single = single.filter(|(extent, _)| !self.is_divided(extent.len));
        if let (Some((extent, segment)), Stability::Unstable) = (single, stability) {
            let access = if write { Access::REMOTE_READ } else { Access::REMOTE_WRITE };
            let verifier = self.target(node).verifier;
            let storage = &mut *self.storage;
            let connection = self.connections.get_mut(call.connection.index);
            let moved = with_remote_memory(connection, &call, &range(segment), access, |span| match write {
                true => write_all(storage, node, extent.offset, span),
                false => storage.read_now(node, extent.offset, &[span]),
            });
            let export = usize::from(node.export.0);
            match moved.map_err(status_of)? {
                Some(Ok(count)) if write => {
                    self.turns.on_moved(count);
                    self.count_written(call.session, export, Method::Direct, count);
                    let value = verifier.0;
                    self.end_part(place, BatchResult { status: Status::OK, count: count as u32, value });
                    return Ok(());
                }
                Some(Ok(count)) => {
                    self.turns.on_moved(count);
                    self.count_read(call.session, export, Method::Direct, count);
                    let ended = (count as u64) < extent.len;
                    let value = if ended { extent.offset + count as u64 } else { BatchResult::NOT_ENDED };
                    self.end_part(place, BatchResult { status: Status::OK, count: count as u32, value });
                    return Ok(());
                }
                Some(Err(NowError::Failed(status))) => return Err(status),
                Some(Err(NowError::WouldBlock)) | None => {}
            }
        }
        let Some(batch) = self.batch_at(index) else { return Ok(()) };
        let lists = batch.lists_of(place);
        let direction = if write { Direction::Write } else { Direction::Read };
        self.begin_listed(&call, (direction, node), lists, stability, memory).map_err(status_of)
    }

    /// An operation of a batch was answered.
    pub(crate) fn on_batch_part(&mut self, place: BatchPlace, opcode: Opcode, status: Status, body: &[u8]) {
        let result = match (status, opcode) {
            (Status::OK, Opcode::WriteList) => WriteReply::decode(body).map(|reply| BatchResult {
                status,
                count: reply.count,
                value: reply.verifier.0,
            }),
            (Status::OK, _) => ListReadReply::decode(body).map(|reply| BatchResult {
                status,
                count: reply.count,
                value: reply.end.unwrap_or(BatchResult::NOT_ENDED),
            }),
            (status, _) => Ok(BatchResult::failed(status)),
        };
        self.end_part(place, result.unwrap_or(BatchResult::failed(Status::IO)));
    }

    fn end_part(&mut self, place: BatchPlace, result: BatchResult) {
        let Some(index) = self.operation_index(place.batch) else { return };
        self.leave_batch(index);
        let now = self.now;
        let Some(batch) = self.batch_at(index) else { return };
        batch.running = batch.running.saturating_sub(1);
        match place.count {
            1 => batch.end(place.index as usize, result, now),
            _ => batch.end_group(place, &result, now),
        }
        let window_end = batch.window_end();
        self.note_window(window_end);
        let Some(batch) = self.batch_at(index) else { return };
        if !batch.beginning {
            self.wakeups.push_back(Wakeup::Batch(place.batch));
        }
    }

    /// An operation of a batch ended without an answer: its connection is gone.
    pub(crate) fn abandon_part(&mut self, place: BatchPlace) {
        let Some(index) = self.operation_index(place.batch) else { return };
        self.leave_batch(index);
        let Some(batch) = self.batch_at(index) else { return };
        batch.running = batch.running.saturating_sub(1);
        batch.again.extend(place.index..place.index + place.count);
        self.wakeups.push_back(Wakeup::Batch(place.batch));
    }

    /// One operation of a session's batches fewer is under way.
    fn leave_batch(&mut self, index: usize) {
        let session = self.operations[index].call.session;
        if let Some(session) = self.sessions.find_mut(session) {
            session.batched = session.batched.saturating_sub(1);
        }
    }

    /// Without a connection a batch waits until nobody has its hands on anything of it, and may then come again.
    pub(crate) fn rest_batch(&mut self, index: usize) {
        if self.batch_at(index).is_some_and(|batch| batch.rests()) {
            let operation = self.unpark(index);
            self.abandon(operation);
        }
    }

    fn finish_batch(&mut self, index: usize) {
        let call = self.operations[index].call;
        let State::Batch(batch) = self.unpark(index).state else { return };
        let Batch { operations, results, data, .. } = *batch;
        let failed = BatchResult::failed(Status::IO);
        let results: Vec<_> = results.into_iter().map(|result| result.unwrap_or(failed)).collect();
        self.answer_batch(&call, &operations, &results, data.as_ref());
    }
}

/// What an operation is answered whose client broke the protocol within it.
fn status_of(problem: Problem) -> Status {
    match problem {
        Problem::Status(status) => status,
        Problem::Fault(_) => Status::INVALID,
    }
}

#[cfg(test)]
mod tests;
