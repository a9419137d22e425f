//! Sessions that other servers of the cluster have, or had: whoever asks for one learns what became of it.

use std::sync::Arc;

use dafs_proto::wire::{ClusterTerms, Hello, PAYLOAD_SIZE_MIN, SlotOutcome, encode_message_pack};

use crate::cluster::Before;
use crate::shared::mail::{Introduction, Mail};
use crate::shared::store::proof_of;
use crate::worker::Worker;
use crate::worker::connections::connection::Phase;
use crate::worker::ids::ConnectionKey;

/// Bytes of a reply to `Authenticate` beside what it says of the cluster, at most.
const WELCOME_SIZE_MAX: usize = 512;

impl Worker {
    /// Looks for the session that a client wants to resume, where this server does not have it. `None`: the answer comes later, and the
    /// handshake goes on then.
    pub(super) fn look_for_session_before(
        &mut self,
        key: ConnectionKey,
        introduction: Introduction,
    ) -> Option<Introduction> {
        let Some(cluster) = &self.shared.cluster else { return Some(introduction) };
        let Some(resume) = introduction.hello.resume.as_ref().filter(|_| introduction.before.is_none())
        else {
            return Some(introduction);
        };
        if self.shared.directory.home_of(resume.session).is_some() {
            return Some(introduction);
        }
        let (shared, id, session) = (Arc::clone(&self.shared), self.id, resume.session);
        let connection = self.connections.find_mut(key)?;
        connection.phase = Phase::Introduced(Box::new(introduction));
        let tell = move |before| shared.send(id, Mail::SessionBefore { connection: key, before });
        cluster.ask_before(session, Box::new(tell));
        None
    }

    /// It is known what became of a session.
    pub(crate) fn on_session_before(&mut self, key: ConnectionKey, before: Before) {
        let Some(connection) = self.connections.find_mut(key) else { return };
        match std::mem::replace(&mut connection.phase, Phase::Connected) {
            Phase::Introduced(introduction) => {
                self.welcome(key, Introduction { before: Some(before), ..*introduction });
                self.connections.mark_dirty(key);
            }
            other => connection.phase = other,
        }
    }

    /// Leaves out what the client could not receive.
    pub(super) fn fit_cluster_terms(&self, key: ConnectionKey, terms: &mut ClusterTerms) {
        let room = self.connections[key].endpoint.capabilities().send_payload_max as usize;
        let fits = |terms: &ClusterTerms| {
            encode_message_pack(terms).len() + WELCOME_SIZE_MAX <= room.max(PAYLOAD_SIZE_MIN)
        };
        if !fits(terms) {
            tracing::warn!(
                "what became of a session's requests is more than its client can receive: it is left in doubt"
            );
            terms.outcomes = None;
        }
        while !fits(terms) && terms.servers.pop().is_some() {}
    }
}

/// What a client is told of its session that is gone. `None`: nobody knows, or it is not proven to be its own.
pub(super) fn outcomes_of(hello: &Hello, before: Option<&Before>) -> Option<Vec<SlotOutcome>> {
    let Some(Before::Ended(proof, outcomes)) = before else { return None };
    let secret = &hello.resume.as_ref()?.secret;
    let own: String = proof_of(secret).iter().map(|byte| format!("{byte:02x}")).collect();
    match proof {
        // It has done nothing whose repetition would do harm.
        None => Some(Vec::new()),
        Some(proof) => (*proof == own).then(|| outcomes.clone()),
    }
}

#[cfg(test)]
mod tests {
    use dafs_proto::wire::{Resume, SessionId};

    use super::*;

    // [SESS-147]
    #[test]
    fn outcomes_of_a_session_are_told_to_its_owner_alone() {
        let hello = |resume| Hello {
            version_min: 1,
            version_max: 1,
            features: 0,
            nonce: [0; 32],
            key_name: String::new(),
            client_id: [0; 16],
            client_name: String::new(),
            uid: 0,
            gid: 0,
            groups: Vec::new(),
            slots: 1,
            resume,
        };
        let resume = |secret| Some(Resume { session: SessionId(1), secret });
        let proof: String = proof_of(&[7; 16]).iter().map(|byte| format!("{byte:02x}")).collect();
        let outcome = SlotOutcome { slot: 1, sequence: 2, reply: None };
        let ended = Before::Ended(Some(proof), vec![outcome.clone()]);
        assert_eq!(outcomes_of(&hello(resume([7; 16])), Some(&ended)), Some(vec![outcome]));
        assert_eq!(outcomes_of(&hello(resume([8; 16])), Some(&ended)), None);
        assert_eq!(outcomes_of(&hello(None), Some(&ended)), None);
        let idle = Before::Ended(None, Vec::new());
        assert_eq!(
            outcomes_of(&hello(resume([8; 16])), Some(&idle)),
            Some(Vec::new()),
            "there is nothing to tell"
        );
        for before in [None, Some(&Before::Unknown), Some(&Before::Elsewhere)] {
            assert_eq!(outcomes_of(&hello(resume([7; 16])), before), None);
        }
    }
}
