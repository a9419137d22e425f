//! How requests are answered: the head of a reply, the source of its payload, and whether it is kept in case the request is resent. An
//! operation of a batch answers into the batch.

use dafs_proto::session::{Effect, REPLY_CACHE_PAYLOAD_MAX, fair_target};
use dafs_proto::transport::{PostError, SendSlot, Span};
use dafs_proto::wire::{
    BatchResult, FileHandle, Flags, HEAD_SIZE_MAX, HEADER_SIZE, Header, Method, ReadReply, Stability, Status,
    WriteReply,
};

use crate::storage::{ExportId, was_lost};
use crate::worker::Worker;
use crate::worker::flight::after::{Target, Writing};
use crate::worker::flight::answer::{Answer, Keep};
use crate::worker::flight::batch::BatchPlace;
use crate::worker::flight::{Call, Wakeup};

impl Worker {
    /// Answers with a status alone.
    #[cold]
    pub(crate) fn reply_status(&mut self, call: &Call, status: Status) {
        self.reply(call, status, Answer::default());
    }

    /// Answers.
    pub(crate) fn reply(&mut self, call: &Call, status: Status, answer: Answer<'_>) {
        if let Some(place) = call.batch {
            return self.end_part(place, BatchResult::failed(status));
        }
        if call.is_amended {
            return self.amend(call, status, answer.body);
        }
        let mut head = [0; HEAD_SIZE_MAX];
        let len = self.seal(call, status, answer.handle, answer.body, answer.payload.len(), &mut head);
        // A link of a chain is not to be executed again behind those that follow it.
        if keeps(call, status, &answer)
            && let Some(session) = self.sessions.find_mut(call.session)
        {
            session.core.keep_reply(call.header.slot, &head[..len], answer.payload);
        }
        if let Some(connection) = self.connections.find_mut(call.connection) {
            connection.send(&head[..len], answer.payload);
        }
    }

    pub(crate) fn reply_body(&mut self, call: &Call, body: &[u8]) {
        self.reply(call, Status::OK, Answer { body, ..Answer::default() });
    }

    pub(crate) fn reply_payload(&mut self, call: &Call, payload: &[u8]) {
        self.reply(call, Status::OK, Answer { payload, ..Answer::default() });
    }

    /// Answers a request that is executed on the spot with all of a payload, or with `RANGE` where the client takes no message that large.
    pub(crate) fn reply_whole(&mut self, call: &Call, payload: &[u8]) {
        match payload.len() > self.connections.send_payload_max(call.connection) {
            true => self.reply_status(call, Status::RANGE),
            false => self.reply_payload(call, payload),
        }
    }

    /// Answers with data that lies in memory of the server, behind `before`.
    pub(crate) fn reply_span(&mut self, call: &Call, body: &[u8], before: &[u8], data: Span<'_>) {
        let len = before.len() + data.len();
        if let Some(connection) = self.connections.find_mut(call.connection)
            && connection.sends_at_once()
            && let Ok(slot) = connection.endpoint.reserve(len)
            && let Some(room) = connection.endpoint.slot_payload(&slot).slice(0, len)
        {
            room.write_from(0, before);
            if let Some(room) = room.slice(before.len(), data.len()) {
                room.copy_from(data);
            }
            return self.send_slot(call, slot, body, len);
        }
        let payload = [before, &data.to_vec()].concat();
        self.reply(call, Status::OK, Answer { body, payload: &payload, ..Answer::default() });
    }

    /// Answers with the payload that a slot holds.
    #[inline]
    pub(crate) fn send_slot(&mut self, call: &Call, slot: SendSlot, body: &[u8], payload_len: usize) {
        let mut head = [0; HEAD_SIZE_MAX];
        let len = self.seal(call, Status::OK, FileHandle::default(), body, payload_len, &mut head);
        if call.link.is_some() && payload_len <= REPLY_CACHE_PAYLOAD_MAX {
            self.keep_link_reply(call, &head[..len], &slot, payload_len);
        }
        let Some(connection) = self.connections.find_mut(call.connection) else { return };
        connection.dirty = true;
        // A closed connection shows at the next receive.
        if let Err(PostError::Full) = connection.endpoint.send(slot, &head[..len], payload_len) {
            connection.give_up("the provider gave up a reply");
        }
    }

    /// Keeps the reply of a link of a chain, whose payload is in a slot.
    #[cold]
    fn keep_link_reply(&mut self, call: &Call, head: &[u8], slot: &SendSlot, payload_len: usize) {
        let Some(connection) = self.connections.find_mut(call.connection) else { return };
        let payload = connection.endpoint.slot_payload(slot).slice(0, payload_len);
        let payload = payload.map(|payload| payload.to_vec());
        if let (Some(payload), Some(session)) = (payload, self.sessions.find_mut(call.session)) {
            session.core.keep_reply(call.header.slot, head, &payload);
        }
    }

    pub(crate) fn reply_read(&mut self, call: &Call, export: ExportId, count: usize, len: u32) {
        self.count_moved(call, false, export, Method::Direct, count);
        let body = read_reply(count, len as usize);
        self.reply(call, Status::OK, Answer { body: &body, keep: Keep::Never, ..Answer::default() });
    }

    /// Storage has written: the reply says how much.
    pub(crate) fn finish_write(&mut self, call: &Call, write: Writing, count: usize) {
        self.count_moved(call, true, write.target.node.export, write.method, count);
        self.reply_written(call, &write, u32::try_from(count).unwrap_or(u32::MAX), &[]);
    }

    /// Answers a write.
    pub(crate) fn reply_written(&mut self, call: &Call, write: &Writing, count: u32, payload: &[u8]) {
        let Writing { target: Target { node, verifier }, offset, stability, .. } = *write;
        if stability != Stability::Unstable && was_lost(verifier.0, self.storage.verifier(node.export)) {
            // Data was lost meanwhile, and the kernel says so once for an open file: to whoever asked first.
            return match call.batch {
                // [WIRE-43]
                Some(place) => self.end_part(place, BatchResult::failed(Status::IO)),
                None => self.reply_status(call, Status::IO),
            };
        }
        if let Some(place) = call.batch {
            return self.end_part(place, BatchResult { status: Status::OK, count, value: verifier.0 });
        }
        let body = WriteReply { offset, count, stability, verifier }.bytes();
        let mut keep = Keep::AsAny;
        if u64::from(count) < write.len && !write.appends && write.method == Method::Direct {
            keep = Keep::No;
            if let Some(session) = self.sessions.find_mut(call.session) {
                session.core.keep_effect(call.header.slot, Effect::Bytes(count.into(), verifier));
            }
        }
        self.reply(call, Status::OK, Answer { body: &body, payload, keep, ..Answer::default() });
    }

    /// Ends a request in its session and writes the head of its reply; returns the head's length.
    #[inline]
    pub(crate) fn seal(
        &mut self,
        call: &Call,
        status: Status,
        handle: FileHandle,
        body: &[u8],
        payload_len: usize,
        head: &mut [u8; HEAD_SIZE_MAX],
    ) -> usize {
        self.stats.on_operation(call.header.opcode);
        let mut header = call.header.reply(status);
        let len = HEADER_SIZE + body.len();
        header.head_len = u16::try_from(len).expect("bodies are at most 72 bytes");
        header.payload_len = u32::try_from(payload_len).expect("payloads are bounded by the connection");
        header.handle = handle;
        let (operations_max, active) = (self.shared.settings.operations_max, self.sessions.active());
        if let Some(session) = self.sessions.find_mut(call.session) {
            session.ledger.requests += 1;
            let saves = call.header.flags.contains(Flags::SAVE_HANDLE) && status == Status::OK;
            let saved = saves.then_some(if handle.0 == 0 { call.header.handle } else { handle });
            let mut target =
                fair_target(call.header.credits, session.core.slots_max(), operations_max, active);
            if target > session.core.credits().limit() {
                let connection = session.presence.connection.and_then(|key| self.connections.find_mut(key));
                let ready = connection.map_or(1, |connection| connection.endpoint.expect_messages(target));
                target = target.min(ready);
            }
            header.credits = session.core.on_reply(&call.header, status, saved, target);
        }
        // The next link may wait for this one.
        if let Some(link) = call.link.filter(|_| !self.operations.is_empty()) {
            self.operations.wake(Wakeup::Chain(call.session, link.chain));
        }
        header.encode(head);
        head[HEADER_SIZE..len].copy_from_slice(body);
        len
    }

    /// Makes the reply that was taken back again, with what its session granted in it then.
    #[cold]
    fn amend(&mut self, call: &Call, status: Status, body: &[u8]) {
        let head = self.operations.take_taken_back(call);
        let header = head.and_then(|head| Some(Header::decode(head.as_bytes(), 0).ok()?.0));
        if let Some(header) = header
            && let Some(connection) = self.connections.find_mut(call.connection)
        {
            connection.send_parts(Header { status, ..header }, body, &[]);
        }
    }

    /// Some operations of a batch have ended.
    pub(crate) fn end_part(&mut self, place: BatchPlace, result: BatchResult) {
        let Some(index) = self.operations.index_of(place.batch) else { return };
        self.leave_batch(index);
        let now = self.now;
        let Some(batch) = self.operations.batch_mut(index) else { return };
        batch.running = batch.running.saturating_sub(1);
        match place.count {
            1 => batch.end(place.index as usize, result, now),
            _ => batch.end_group(place, &result, now),
        }
        let (window_end, beginning) = (batch.window_end(), batch.beginning);
        self.operations.note_window(window_end, self.now);
        if !beginning {
            self.operations.wake(Wakeup::Batch(place.batch));
        }
    }

    /// One operation of a session's batches fewer is under way.
    pub(super) fn leave_batch(&mut self, index: usize) {
        let session = self.operations[index].call.session;
        if let Some(session) = self.sessions.find_mut(session) {
            session.load.batched = session.load.batched.saturating_sub(1);
        }
    }
}

/// The reply is kept for the case that it is asked for again.
#[inline]
fn keeps(call: &Call, status: Status, answer: &Answer<'_>) -> bool {
    let opcode = call.header.opcode;
    if (call.link.is_some() && answer.keep != Keep::Never) || answer.keep == Keep::Yes {
        return answer.payload.len() <= REPLY_CACHE_PAYLOAD_MAX;
    }
    // What failed changed nothing. That memory of a client is out of reach may be the doing of its connection, which is over.
    let failed = status != Status::OK && (opcode.is_idempotent() || status == Status::REMOTE_ACCESS);
    opcode.keeps_reply() && answer.keep == Keep::AsAny && !failed
}

/// The body of the reply to a read that got so many bytes of those it asked for.
pub(crate) fn read_reply(count: usize, len: usize) -> [u8; ReadReply::HEAD_SIZE - HEADER_SIZE] {
    let bytes = u32::try_from(count).expect("reads are bounded by transfer_size_max");
    ReadReply { count: bytes, end_of_file: count < len }.bytes()
}
