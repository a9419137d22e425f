//! Operations of a batch whose data travels in the messages. What storage has at hand goes straight from the request into the files, and
//! from the files into the reply; the rest by way of memory that the batch keeps until it is answered.

use dafs_proto::session::REPLY_CACHE_PAYLOAD_MAX;
use dafs_proto::transport::{SendSlot, Span};
use dafs_proto::wire::{
    BATCH_RESULT_SIZE, BatchOperation, BatchReply, BatchResult, HEADER_SIZE, Method, Stability, Status,
};

use super::super::write::write_all;
use super::Worker;
use crate::storage::NowError;
use crate::worker::flight::Call;
use crate::worker::flight::after::Target;
use crate::worker::flight::answer::{Answer, Keep, Payload};
use crate::worker::flight::batch::{InlineData, belongs, effect, is_written, pack, places};
use crate::worker::flight::moving::CALL_SIZE_MIN;
use crate::worker::requests::dispatch::payload_of;

/// Some operations of one file, kind and stability that storage does in one call, as each goes on where the one before it ends.
struct Run {
    count: usize,
    offset: u64,
    len: usize,
}

/// The first operation, with those that continue it; without a contiguous one there is no run.
fn run_of(operations: &[BatchOperation]) -> Option<Run> {
    let first = operations.first()?;
    let [extent] = &first.lists.extents[..] else { return None };
    let mut end = extent.end()?;
    let continues = |next: &&BatchOperation| match &next.lists.extents[..] {
        [extent] if extent.offset == end && belongs(first, next) => {
            end = extent.offset + extent.len;
            true
        }
        _ => false,
    };
    let count = 1 + operations[1..].iter().take_while(continues).count();
    Some(Run { count, offset: extent.offset, len: (end - extent.offset) as usize })
}

/// Results so far.
pub(super) type Results = Vec<Option<BatchResult>>;

/// A message that operations are being carried out from, and one that they are being carried out into.
struct Messages<'a> {
    operations: &'a [BatchOperation],
    /// The reply, with room for results and all that is read.
    reply: Option<SendSlot>,
    /// Where the data of each operation is, in the request's payload or in the reply's.
    places: Vec<usize>,
}

impl Worker {
    /// Carries out inline operations as long as storage has at hand what they need, in their order, and answers the batch where those are
    /// all. Else returns what has been done, and the data of the rest.
    pub(super) fn do_at_hand(
        &mut self,
        call: &Call,
        operations: &[BatchOperation],
        before: Option<Results>,
        (payload, described_len): (Payload<'_>, usize),
    ) -> Result<Option<(Results, Option<InlineData>)>, Status> {
        let (places, [written, read]) = places(operations);
        let described = operations.len() * BATCH_RESULT_SIZE;
        let of_message = |(operation, place): (&BatchOperation, u32)| match operation.write {
            true => described_len + place as usize,
            false => described + place as usize - written,
        };
        let places = operations.iter().zip(places).map(of_message).collect();
        let mut messages = Messages { operations, reply: None, places };
        if read > 0 && operations.iter().all(BatchOperation::is_inline) {
            messages.reply = self.reserve_reply(call, described + read);
        }
        let mut results = Vec::with_capacity(operations.len());
        if let (Payload::Current, None) = (payload, &before) {
            while results.len() < operations.len() && !self.turns.is_over() {
                let done = results.len();
                match operations[done].write {
                    true => self.write_run(call, &messages, &mut results),
                    false => self.read_run(call, &messages, &mut results),
                }
                if results.len() == done {
                    break;
                }
            }
        }
        let connection = self.connections.get_mut(call.connection.index);
        let reply = messages.reply.zip(connection);
        if results.len() == operations.len() && before.is_none() {
            match reply {
                None => self.answer_batch(call, operations, &results, None),
                Some((slot, connection)) => {
                    let room = connection.endpoint.slot_payload(&slot);
                    room.write_from(0, &encoded(&results));
                    let room = room.slice(described, read).unwrap_or(Span::EMPTY);
                    let len = pack(room, operations, &results);
                    self.keep_results(call, operations, &results);
                    self.send_slot(call, slot, &reply_body(results.len(), len), described + len);
                }
            }
            return Ok(None);
        }
        let is_inline = operations.iter().any(BatchOperation::is_inline);
        let data = is_inline.then(|| InlineData::new(operations)).transpose();
        if let Some((slot, connection)) = reply {
            let room = connection.endpoint.slot_payload(&slot).slice(described, read);
            if let (Ok(Some(data)), Some(room)) = (&data, room) {
                data.reads().copy_from(room);
            }
            connection.endpoint.cancel_send(slot);
        }
        let data = data?;
        if let Some(data) = data.as_ref().filter(|data| data.written > 0) {
            // The data of inline writes, in memory that storage can keep.
            let source = payload_of(&self.connections, call, payload).slice(described_len, data.written);
            if let (Some(source), Some(room)) = (source, data.memory.span().slice(0, data.written)) {
                room.copy_from(source);
            }
        }
        let mut results = before.unwrap_or_else(|| results.into_iter().map(Some).collect());
        results.resize(operations.len(), None);
        Ok(Some((results, data)))
    }

    /// Room for a reply that is filled in place.
    fn reserve_reply(&mut self, call: &Call, len: usize) -> Option<SendSlot> {
        let connection = self.connections.get_mut(call.connection.index);
        let connection = connection.filter(|connection| connection.key == call.connection)?;
        if !connection.sends_at_once() {
            return None;
        }
        connection.endpoint.reserve(len).ok()
    }

    /// Writes the next operations straight from the message. What storage has to be waited for, or is to be durable, is left.
    fn write_run(&mut self, call: &Call, messages: &Messages<'_>, results: &mut Vec<BatchResult>) {
        let operations = &messages.operations[results.len()..];
        let Some(first) = operations.first() else { return };
        // What a lock may keep out is looked at one by one.
        let is_left = self.shared.locks.are_mandatory();
        if !first.is_inline() || first.stability != Stability::Unstable || is_left {
            return;
        }
        let Some(Run { count, offset, len }) = run_of(operations) else { return };
        let node = self.data_node(&Self::part_call(call, first), true);
        let written = node.map_err(NowError::Failed).and_then(|node| {
            let connection = self.connections.get(call.connection.index);
            let at = messages.places[results.len()];
            let data = connection.and_then(|connection| connection.endpoint.payload().slice(at, len));
            // The payload was found to be as long as all data is.
            let data = data.ok_or(NowError::WouldBlock)?;
            let target = self.target(node);
            Ok((target, write_all(&mut *self.storage, node, offset, data)?))
        });
        // What counts as a message need not count again.
        self.turns.on_moved(CALL_SIZE_MIN.saturating_sub(len));
        match written {
            Ok((Target { node, verifier }, moved)) if moved == len || count == 1 => {
                for operation in &operations[..count] {
                    let own = moved.min(operation.len() as usize);
                    self.count_moved(call, true, node.export, Method::Inline, own);
                    results.push(BatchResult { status: Status::OK, count: own as u32, value: verifier.0 });
                }
            }
            Err(NowError::Failed(status)) if count == 1 => results.push(BatchResult::failed(status)),
            // Each has a result of its own, which is found out one by one.
            Ok(_) | Err(_) => {}
        }
    }

    /// Reads the next operations straight into the reply; what storage has to be waited for is left.
    fn read_run(&mut self, call: &Call, messages: &Messages<'_>, results: &mut Vec<BatchResult>) {
        let operations = &messages.operations[results.len()..];
        let (Some(slot), Some(first)) = (&messages.reply, operations.first()) else { return };
        if self.shared.locks.are_mandatory() {
            return;
        }
        let places = &messages.places[results.len()..];
        let node = match self.data_node(&Self::part_call(call, first), false) {
            Ok(node) => node,
            Err(status) => return results.push(BatchResult::failed(status)),
        };
        let Some(connection) = self.connections.get(call.connection.index) else { return };
        let room = connection.endpoint.slot_payload(slot);
        let piece = |index: usize| {
            let next = operations.get(index).filter(|next| belongs(first, next))?;
            let [extent] = &next.lists.extents[..] else { return None };
            Some((extent.offset, room.slice(places[index], extent.len as usize)?))
        };
        let pieces = self.storage.read_pieces(node, room.len(), &piece);
        let (mut count, mut end) = (pieces, u64::MAX);
        if pieces == 0 {
            let Some(run) = run_of(operations) else { return };
            let Some(into) = room.slice(places[0], run.len) else { return };
            count = run.count;
            match self.storage.read_now(node, run.offset, &[into]) {
                Ok(got) if got < run.len => end = run.offset + got as u64,
                Ok(_) => {}
                Err(NowError::Failed(status)) if count == 1 => {
                    return results.push(BatchResult::failed(status));
                }
                // Storage has to be waited for; or each has a result of its own, which is found out one by one.
                Err(_) => return,
            }
            self.turns.on_moved(CALL_SIZE_MIN.saturating_sub(run.len));
        }
        for operation in &operations[..count] {
            let got: u64 = operation.lists.extents.iter().map(|extent| extent.len_before(end)).sum();
            let value = if got < operation.len() { end } else { BatchResult::NOT_ENDED };
            results.push(BatchResult { status: Status::OK, count: got as u32, value });
            self.turns.on_moved(got as usize);
            self.count_moved(call, false, node.export, Method::Inline, got as usize);
        }
    }

    /// Answers a batch all of whose operations have ended.
    pub(super) fn answer_batch(
        &mut self,
        call: &Call,
        operations: &[BatchOperation],
        results: &[BatchResult],
        data: Option<&InlineData>,
    ) {
        let read = data.map_or(Span::EMPTY, |data| data.pack(operations, results));
        let (body, payload) = (reply_body(results.len(), read.len()), encoded(results));
        if read.is_empty() {
            // Of writes alone it tells what need not be done again when it is lost.
            let keep =
                match operations.iter().zip(results).all(|(operation, result)| is_written(operation, result))
                {
                    true if payload.len() <= REPLY_CACHE_PAYLOAD_MAX => Keep::Yes,
                    _ => Keep::No,
                };
            if keep == Keep::No {
                self.keep_results(call, operations, results);
            }
            let answer = Answer { body: &body, payload: &payload, keep, ..Answer::default() };
            return self.reply(call, Status::OK, answer);
        }
        self.keep_results(call, operations, results);
        self.reply_span(call, &body, &payload, read);
    }

    /// A reply that carries what was read is not kept, but what the writes came to is.
    fn keep_results(&mut self, call: &Call, operations: &[BatchOperation], results: &[BatchResult]) {
        if operations.iter().any(|operation| operation.write)
            && let Some(session) = self.sessions.find_mut(call.session)
            && let Some(effect) = effect(operations, results.iter().copied().map(Some))
        {
            session.core.keep_effect(call.header.slot, effect);
        }
    }
}

fn encoded(results: &[BatchResult]) -> Vec<u8> {
    let mut payload = vec![0; results.len() * BATCH_RESULT_SIZE];
    for (result, bytes) in results.iter().zip(payload.chunks_exact_mut(BATCH_RESULT_SIZE)) {
        result.encode(bytes);
    }
    payload
}

fn reply_body(operations: usize, data: usize) -> [u8; BatchReply::HEAD_SIZE - HEADER_SIZE] {
    let mut body = [0; BatchReply::HEAD_SIZE - HEADER_SIZE];
    BatchReply { operations: operations as u32, data: data as u32 }.encode(&mut body);
    body
}
