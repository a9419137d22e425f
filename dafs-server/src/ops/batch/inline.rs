//! Operations of a batch whose data travels in the messages: by way of memory that the batch keeps until it is answered.

use dafs_proto::session::{PartEffect, REPLY_CACHE_PAYLOAD_MAX};
use dafs_proto::transport::Span;
use dafs_proto::wire::{BATCH_RESULT_SIZE, BatchOperation, BatchReply, BatchResult, Status};

use super::Worker;
use crate::worker::flight::Call;
use crate::worker::flight::answer::{Answer, Keep, Payload};
use crate::worker::flight::batch::{InlineData, effect, is_written};

impl Worker {
    /// Memory for what goes in the messages, with what is to be written in it. The payload is as long as all of that is, behind what
    /// describes the operations.
    pub(super) fn inline_data(
        &self,
        call: &Call,
        operations: &[BatchOperation],
        (payload, described_len): (Payload<'_>, usize),
    ) -> Result<Option<InlineData>, Status> {
        if !operations.iter().any(BatchOperation::is_inline) {
            return Ok(None);
        }
        let data = InlineData::new(operations)?;
        let source = self.connections.payload_of(call, payload).slice(described_len, data.written);
        if let (Some(source), Some(room)) = (source, data.memory.span().slice(0, data.written)) {
            room.copy_from(source);
        }
        Ok(Some(data))
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
        let body = BatchReply { operations: results.len() as u32, data: read.len() as u32 }.bytes();
        let payload = encoded(results);
        let keep = kept(operations, results, payload.len());
        if keep != Keep::Yes {
            self.keep_results(call, operations, results);
        }
        if read.is_empty() {
            let answer = Answer { body: &body, payload: &payload, keep, ..Answer::default() };
            return self.reply(call, Status::OK, answer);
        }
        if call.link.is_some() && keep == Keep::Never {
            let payload = [&payload[..], &read.to_vec()].concat();
            let answer = Answer { body: &body, payload: &payload, keep, ..Answer::default() };
            return self.reply(call, Status::OK, answer);
        }
        self.reply_span(call, &body, &payload, read);
    }

    /// A reply that carries what was read is not kept, but what the writes came to is.
    fn keep_results(&mut self, call: &Call, operations: &[BatchOperation], results: &[BatchResult]) {
        if operations.iter().any(|operation| operation.write)
            && let Some(session) = self.sessions.find_mut(call.session)
            && let Some(effect) =
                effect(operations, results.iter().map(|result| Some(PartEffect::Ended(*result))))
        {
            session.core.keep_effect(call.header.slot, effect);
        }
    }
}

/// Whether the reply is kept, which tells all these results.
fn kept(operations: &[BatchOperation], results: &[BatchResult], payload_len: usize) -> Keep {
    // What was read into memory of the client may not have arrived there.
    if operations.iter().any(|operation| !(operation.write || operation.is_inline())) {
        return Keep::Never;
    }
    // Of writes alone it tells what need not be done again when it is lost.
    match operations.iter().zip(results).all(|(operation, result)| is_written(operation, result)) {
        true if payload_len <= REPLY_CACHE_PAYLOAD_MAX => Keep::Yes,
        _ => Keep::No,
    }
}

fn encoded(results: &[BatchResult]) -> Vec<u8> {
    let mut payload = vec![0; results.len() * BATCH_RESULT_SIZE];
    for (result, bytes) in results.iter().zip(payload.chunks_exact_mut(BATCH_RESULT_SIZE)) {
        result.encode(bytes);
    }
    payload
}
