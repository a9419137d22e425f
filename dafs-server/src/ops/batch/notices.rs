//! Notices of a batch, which report ended operations before the reply: gathered as the hints say, and only if the client still receives.

use dafs_proto::wire::{BATCH_NOTICE_RESULT_SIZE, BatchNotice, Header, Opcode, encode_noticed_result};

use super::Worker;
use crate::worker::ids::SessionKey;

/// Notices to a session that has sent nothing since: half of the receives that clients post for callbacks.
const NOTICES_MAX: u8 = 8;

impl Worker {
    /// Tells what has ended by a notice, where the session is listening; else it waits for the next, or for the reply.
    pub(super) fn tell_of_batch(&mut self, index: usize) {
        let call = self.operations[index].call;
        let results_max = self.connections.send_payload_max(call.connection) / BATCH_NOTICE_RESULT_SIZE;
        let listens = self.connections.find_mut(call.connection).is_some_and(|c| c.sends_at_once());
        let Some(session) = self.sessions.find_mut(call.session) else { return };
        if !listens || session.presence.notices >= NOTICES_MAX {
            session.presence.owes_notices = true;
            return;
        }
        session.presence.notices += 1;
        let header = Header::callback(Opcode::BatchDone, session.core.next_callback());
        let Some(batch) = self.operations.batch_mut(index) else { return };
        let told: Vec<u32> = batch.untold.drain(..batch.untold.len().min(results_max)).collect();
        if batch.untold.is_empty() {
            batch.untold_since = None;
        }
        let mut payload = Vec::with_capacity(told.len() * BATCH_NOTICE_RESULT_SIZE);
        for place in &told {
            if let Some(result) = &batch.results[*place as usize] {
                encode_noticed_result(*place, result, &mut payload);
            }
        }
        let (slot, sequence) = (call.header.slot.0, call.header.sequence);
        let count = (payload.len() / BATCH_NOTICE_RESULT_SIZE) as u32;
        let body = BatchNotice { slot, sequence, count }.bytes();
        self.connections.send_callback(call.connection, header, &body, &payload);
    }

    /// Nothing of a session's batches is gathered any more.
    pub(super) fn expedite_batches(&mut self, session: SessionKey) {
        self.operations.expedite_batches(session);
        self.tell_of_due_batches();
    }

    /// Tells of ends whose window is over.
    pub(crate) fn tell_of_due_batches(&mut self) {
        for index in self.operations.due_batches(self.now) {
            self.tell_of_batch(index);
        }
    }
}
