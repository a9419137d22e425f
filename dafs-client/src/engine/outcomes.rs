//! What a server knows of the requests of a session that another one has lost.

use std::collections::HashMap;
use std::collections::hash_map::Entry;

use dafs_proto::transport::{HEAD_SIZE_MAX, Head, Span};
use dafs_proto::wire::{
    FileHandle, HEADER_SIZE, Header, OutcomeReply, Slot, Stability, Status, Welcome, WriteReply,
};

use crate::engine::core::{Arrived, Core};
use crate::error::Error;
use crate::handle::unstable::UNKNOWN_VERIFIER;
use crate::op::request::Request;
use crate::op::transfer::TransferKind;

/// Requests that had an effect, or may have had one, by slot and sequence number.
pub(crate) struct Outcomes(HashMap<(u32, u32), Option<OutcomeReply>>);

/// What became of a request that was not answered.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum Fate {
    /// The server knows nothing of the session.
    Untold,
    /// It had no effect, or one that it may have again, and will have none any more.
    Undone,
    /// It was carried out, and this was its reply.
    Done(OutcomeReply),
    /// It may have been carried out.
    Unknown,
}

impl Outcomes {
    /// Takes them out of what a server said when it was asked for a session that is gone; `None` where it does not know.
    pub(crate) fn take(welcome: &mut Welcome) -> Option<Self> {
        let listed = welcome.cluster.as_mut()?.outcomes.take()?;
        let mut outcomes = HashMap::with_capacity(listed.len());
        for outcome in listed {
            match outcomes.entry((outcome.slot, outcome.sequence)) {
                Entry::Vacant(entry) => drop(entry.insert(outcome.reply)),
                // Of two that differ neither is believed.
                Entry::Occupied(mut entry) if *entry.get() != outcome.reply => drop(entry.insert(None)),
                Entry::Occupied(_) => {}
            }
        }
        Some(Self(outcomes))
    }

    /// What became of the request that has this number in this slot.
    pub(crate) fn fate(&self, slot: Slot, sequence: Option<u32>) -> Fate {
        match sequence.and_then(|sequence| self.0.get(&(slot.0, sequence))) {
            None => Fate::Undone,
            Some(None) => Fate::Unknown,
            Some(Some(reply)) => Fate::Done(reply.clone()),
        }
    }
}

impl Core {
    /// Requests that were sent and not answered, in the order in which they were first sent.
    pub(super) fn unanswered(&self) -> Vec<Slot> {
        let sent = (0u32..).zip(&self.requests);
        let mut unanswered: Vec<(u64, Slot)> =
            sent.filter_map(|(slot, request)| Some((request.as_ref()?.order, Slot(slot)))).collect();
        unanswered.sort_unstable_by_key(|(order, _)| *order);
        unanswered.into_iter().map(|(_, slot)| slot).collect()
    }

    /// What requests of a lost session have renamed, although nobody was told, is opened again by its new name.
    pub(crate) fn follow_renames(&mut self, outcomes: &Outcomes) {
        for slot in self.unanswered() {
            let fate = outcomes.fate(slot, self.session.sequence_of(slot));
            let is_done = matches!(fate, Fate::Done(reply) if reply.status == Status::OK.value());
            if let (true, Some(Some(request))) = (is_done, self.requests.get(slot.0 as usize)) {
                self.follow_rename(request.op);
            }
        }
    }

    /// A request of a lost session was carried out: it ends as if its reply had come. Whether it goes into the queue again, since its reply
    /// is of no use any more.
    pub(super) fn take_outcome(&mut self, slot: Slot, request: &Request, outcome: &OutcomeReply) -> bool {
        let status = Status::from_value(outcome.status);
        let Some(op) = self.ops.get_mut(request.op) else { return false };
        if status == Status::OK && op.has_lost_its_reply(request.opcode) {
            if op.error.is_some() || op.detached {
                self.stop(request.op);
                return false;
            }
            op.begin_as_made();
            op.redo(request.at, request.len);
            return !std::mem::replace(&mut op.queued, true);
        }
        let header = Header { slot, ..Header::request(request.opcode, FileHandle(0)) }.reply(status);
        let mut bytes = [0; HEAD_SIZE_MAX];
        header.encode(&mut bytes);
        let body_len = match op.transfer().map(|transfer| transfer.kind) {
            Some(TransferKind::Append(stability)) => {
                appended(outcome.offset, request.len, stability).encode(&mut bytes[HEADER_SIZE..]);
                WriteReply::HEAD_SIZE - HEADER_SIZE
            }
            _ => 0,
        };
        let head = Head::copy_of(&bytes[..HEADER_SIZE + body_len]).unwrap_or(Head::EMPTY);
        let body = &bytes[HEADER_SIZE..HEADER_SIZE + body_len];
        let mut payload = outcome.payload.clone();
        let arrived = Arrived::Payload(Span::from_mut(&mut payload));
        if self.on_reply(&header, &head, body, request, arrived).is_err() {
            self.doubt(request.op);
        }
        false
    }

    /// Whether a request was carried out is not known.
    pub(super) fn doubt(&mut self, index: usize) {
        let Some(op) = self.ops.get_mut(index) else { return };
        if op.error.is_none() && !op.detached {
            op.error = Some(Box::new(Error::InDoubt { operation: op.opcode }));
        }
        self.stop(index);
    }
}

/// The reply to an append that wrote all that it was to write. Its verifier is not known.
#[allow(clippy::cast_possible_truncation, reason = "requests are at most transfer_size_max")]
fn appended(offset: u64, len: usize, stability: Stability) -> WriteReply {
    WriteReply { offset, count: len as u32, stability, verifier: UNKNOWN_VERIFIER }
}

#[cfg(test)]
mod tests {
    use dafs_proto::wire::{ClusterTerms, SlotOutcome};

    use super::*;

    fn outcome(slot: u32, sequence: u32, status: Option<u32>) -> SlotOutcome {
        let reply = status.map(|status| OutcomeReply { status, offset: 0, payload: Vec::new() });
        SlotOutcome { slot, sequence, reply }
    }

    // [CLI-213] [CLI-214]
    #[test]
    fn outcome_is_of_the_request_of_its_slot_and_number() {
        let listed = vec![
            outcome(0, 1, Some(0)),
            outcome(1, 7, None),
            // Twice the same, and twice another.
            outcome(2, 3, Some(5)),
            outcome(2, 3, Some(5)),
            outcome(3, 3, Some(5)),
            outcome(3, 3, Some(6)),
            outcome(4, 3, None),
            outcome(4, 3, Some(0)),
            outcome(u32::MAX, u32::MAX, Some(0)),
        ];
        let cluster = ClusterTerms { outcomes: Some(listed), ..ClusterTerms::default() };
        let mut welcome = Welcome { cluster: Some(cluster), ..crate::connect::tests::welcome() };
        let outcomes = Outcomes::take(&mut welcome).expect("a list");
        assert!(Outcomes::take(&mut welcome).is_none(), "it is another's no more");
        let done = |status| Fate::Done(OutcomeReply { status, offset: 0, payload: Vec::new() });
        for (slot, sequence, fate) in [
            (0, Some(1), done(0)),
            (0, Some(2), Fate::Undone),
            (0, None, Fate::Undone),
            (1, Some(7), Fate::Unknown),
            (2, Some(3), done(5)),
            (3, Some(3), Fate::Unknown),
            (4, Some(3), Fate::Unknown),
            (5, Some(1), Fate::Undone),
        ] {
            assert_eq!(outcomes.fate(Slot(slot), sequence), fate, "{slot}");
        }
        assert!(Outcomes::take(&mut crate::connect::tests::welcome()).is_none());
    }
}
