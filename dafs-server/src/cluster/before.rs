//! What became of sessions of other servers.

use dafs_proto::wire::{SessionId, SlotOutcome};

use super::coordination::{CoordinationError, Entry};
use super::core::Core;
use super::records::{SlotRecord, decode, server_of};

/// What is known of a session that this server does not have.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Before {
    /// Nothing: it was never of this cluster, or its time is over.
    Unknown,
    /// Another server has it, or had it and may still.
    Elsewhere,
    /// Nothing of it will be done any more. Its proof, if it has done something whose repetition would do harm, and what.
    Ended(Option<String>, Vec<SlotOutcome>),
}

impl Core {
    /// As of now. Blocks.
    pub(super) fn before(&self, session: SessionId) -> Result<Before, CoordinationError> {
        let server = server_of(session);
        if server == 0 || server == self.number {
            return Ok(Before::Unknown);
        }
        // As of now, whatever was seen last.
        let (entries, revision) = self.store.read(&self.keys.live())?;
        self.hear(revision);
        let has = |key: String| entries.iter().any(|entry| entry.key == key);
        if has(self.keys.member(server)) {
            return Ok(Before::Elsewhere);
        }
        if !has(self.keys.gone(server)) {
            return Ok(Before::Unknown);
        }
        let proof = self.store.read(&self.keys.session(session))?.0.pop();
        let proof = proof.and_then(|entry| String::from_utf8(entry.value).ok());
        let prefix = self.keys.slots(session);
        let outcome = |entry: &Entry| {
            let slot = entry.key.strip_prefix(&prefix)?.parse().ok()?;
            let record: SlotRecord = decode(&entry.value)?;
            let reply = record.reply.and_then(|reply| reply.told());
            Some(SlotOutcome { slot, sequence: record.sequence, reply })
        };
        let outcomes = self.store.read(&prefix)?.0.iter().filter_map(outcome).collect();
        // All of it is removed together with the word that the server is gone: while that stands, nothing was missing.
        match self.store.read(&self.keys.gone(server))?.0.is_empty() {
            true => Ok(Before::Unknown),
            false => Ok(Before::Ended(proof, outcomes)),
        }
    }
}
