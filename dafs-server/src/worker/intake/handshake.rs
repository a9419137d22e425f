//! Handshakes of connections: from `Hello` to a session, new or resumed.

use std::sync::Arc;

use dafs_proto::session::{Key, ServerHandshake, ServerRefusal, ServerSession, SessionFault};
use dafs_proto::wire::{
    AuthenticateReply, Features, FileHandle, Header, Hello, Opcode, SessionId, Status, Welcome,
    encode_message_pack,
};

use crate::access::{self, Access, ClientIdentity};
use crate::cluster::Before;
use crate::shared::WorkerId;
use crate::shared::mail::{Introduction, Mail};
use crate::shared::store::proof_of;
use crate::worker::Worker;
use crate::worker::connections::connection::Phase;
use crate::worker::ids::{ConnectionKey, SessionKey};
use crate::worker::intake::elsewhere::outcomes_of;
use crate::worker::sessions::handles::HandleTable;
use crate::worker::sessions::views::Views;
use crate::worker::sessions::{Client, Ledger, Load, LockStanding, Presence, Session};

/// Encoded bytes of a slot report at most: the array, a slot below 65,536, a sequence, and whether it was executed.
const SLOT_REPORT_SIZE_MAX: usize = 1 + 3 + 5 + 1;

/// Encoded bytes of the reply to `Authenticate` without slot reports, at most.
const WELCOME_SIZE_MAX: usize = 256;

/// Slot reports that fit the reply to `Authenticate`, whatever else is in it.
fn slot_reports_max(payload_max: u32) -> usize {
    (payload_max as usize).saturating_sub(WELCOME_SIZE_MAX) / SLOT_REPORT_SIZE_MAX
}

impl Worker {
    pub(super) fn on_handshake(&mut self, key: ConnectionKey, header: &Header, body: &[u8]) {
        let Some(connection) = self.connections.find_mut(key) else { return };
        let payload = connection.endpoint.payload().to_vec();
        let phase = std::mem::replace(&mut connection.phase, Phase::Connected);
        let misplaced = SessionFault::Misplaced { opcode: header.opcode, place: "in the handshake" };
        let is_plain = header.flags.is_empty() && header.handle == FileHandle(0);
        if !body.is_empty() || header.sequence != 0 || header.slot.0 != 0 || !is_plain {
            return self.end_for_fault(key, misplaced);
        }
        let outcome = match (phase, header.opcode) {
            (Phase::Connected, Opcode::Hello) => self.on_hello(key, &payload),
            (Phase::Greeted(handshake), Opcode::Authenticate) => {
                match self.introduction(*handshake, header, &payload) {
                    Ok(introduction) => return self.on_introduction(key, introduction),
                    Err(refusal) => Err(refusal),
                }
            }
            _ => return self.end_for_fault(key, misplaced),
        };
        self.end_handshake(key, header, outcome);
    }

    /// Answers a step of a handshake, or ends the connection.
    fn end_handshake(
        &mut self,
        key: ConnectionKey,
        header: &Header,
        outcome: Result<Vec<u8>, ServerRefusal>,
    ) {
        match outcome {
            Ok(payload) => self.answer_handshake(key, header, Status::OK, &payload),
            Err(ServerRefusal::Fault(fault)) => self.end_for_fault(key, fault),
            Err(ServerRefusal::Status(status)) => {
                // In a cluster clients ask for sessions again and again whose server is not taken over yet.
                if status != Status::AGAIN || self.shared.cluster.is_none() {
                    self.note_refusal(key, status);
                }
                self.answer_handshake(key, header, status, &[]);
                if let Some(connection) = self.connections.find_mut(key) {
                    // The peer learns the status if it still listens; the connection ends either way.
                    let _ = connection.flush();
                }
                self.close(key, &status);
            }
        }
    }

    /// Counts a refusal, and tells of it as often as the log takes such lines.
    fn note_refusal(&self, key: ConnectionKey, status: Status) {
        self.shared.count_refused_login();
        let connection = &self.connections[key];
        let peer = &connection.endpoint.capabilities().peer;
        let pid = peer.credentials.as_ref().map(|own| own.pid);
        let listener = &connection.listener_address;
        tracing::warn!(peer = %access::shown(peer), pid, %listener, %status, "login refused");
    }

    fn on_hello(&mut self, key: ConnectionKey, payload: &[u8]) -> Result<Vec<u8>, ServerRefusal> {
        let nonce = self.random();
        let listener = self.connections[key].listener_address.clone();
        let rules = self.shared.rules();
        let terms = rules.access.terms(&listener);
        let name = concat!("dafs-server ", env!("CARGO_PKG_VERSION"));
        let (handshake, reply) = ServerHandshake::on_hello(payload, terms, &rules.access, nonce, name)?;
        self.connections[key].phase = Phase::Greeted(Box::new(handshake));
        Ok(reply)
    }

    fn introduction(
        &self,
        handshake: ServerHandshake,
        request: &Header,
        payload: &[u8],
    ) -> Result<Introduction, ServerRefusal> {
        let (mut hello, proven, proof) = handshake.on_authenticate(payload)?;
        let holds = self.shared.features() & Features::from_bits_truncate(hello.features);
        if !holds.contains(Features::RESUME) {
            hello.resume = None;
        }
        Ok(Introduction { request: *request, hello, proven, proof, before: None })
    }

    /// Whether a new session on this connection leaves enough descriptors to those who come after it.
    fn leaves_descriptors_spare(&mut self, key: ConnectionKey) -> bool {
        let fds = self.connections[key].endpoint.event_fds();
        let leaves = self.shared.budgets.leave_descriptors_spare(&fds);
        if !leaves {
            self.shared.budgets.sessions.count_refused();
            tracing::warn!(
                "refused a session: too few descriptors are left; raise the limit (`ulimit -n`, LimitNOFILE= of systemd)"
            );
        }
        leaves
    }

    /// A client has proven who it is: it gets its session, here or where that lives.
    fn on_introduction(&mut self, key: ConnectionKey, introduction: Introduction) {
        let resumed = introduction.hello.resume.as_ref();
        let home = resumed.and_then(|resume| self.shared.directory.home_of(resume.session));
        // Before anything is looked up about the client: that takes descriptors too.
        if home.is_none() && !self.leaves_descriptors_spare(key) {
            let refused = Err(ServerRefusal::Status(Status::SERVER_FULL));
            return self.end_handshake(key, &introduction.request, refused);
        }
        match home.filter(|home| *home != self.id) {
            Some(home) => self.depart(key, home, introduction),
            None => self.welcome(key, introduction),
        }
    }

    /// The session that a connection's client wants lives with another worker: it is served there from now on.
    fn depart(&mut self, key: ConnectionKey, to: WorkerId, introduction: Introduction) {
        let Some(connection) = self.connections.find_mut(key) else { return };
        if connection.wants_flush() {
            // Its client has not waited for the last reply.
            return self.end_for_fault(key, "a request of the handshake before the reply to the last");
        }
        self.connections.depart(key, to, introduction);
    }

    /// Gives a client its session on this worker, as soon as it is known who it is.
    pub(crate) fn welcome(&mut self, key: ConnectionKey, introduction: Introduction) {
        let (shared, id) = (Arc::clone(&self.shared), self.id);
        let Some(introduction) = self.look_for_session_before(key, introduction) else { return };
        let Some(connection) = self.connections.find_mut(key) else { return };
        let (listener, peer) = (&connection.listener_address, &connection.endpoint.capabilities().peer);
        let rules = shared.rules();
        let then = move |is_known| shared.send(id, Mail::Known { connection: key, is_known });
        match rules.access.ask(listener, peer, introduction.proven.as_ref(), then) {
            Ok(true) => self.admit(key, &introduction),
            Ok(false) => connection.phase = Phase::Introduced(Box::new(introduction)),
            Err(status) => {
                self.end_handshake(key, &introduction.request, Err(ServerRefusal::Status(status)));
            }
        }
    }

    /// It is known who a client is, or cannot be known now.
    pub(crate) fn on_known(&mut self, key: ConnectionKey, is_known: bool) {
        let Some(connection) = self.connections.find_mut(key) else { return };
        if !matches!(connection.phase, Phase::Introduced(_)) {
            return;
        }
        if let Phase::Introduced(introduction) = std::mem::replace(&mut connection.phase, Phase::Connected) {
            match is_known {
                // The rules may have been read anew meanwhile, and know nobody yet.
                true => self.welcome(key, *introduction),
                false => {
                    let refused = Err(ServerRefusal::Status(Status::AGAIN));
                    self.end_handshake(key, &introduction.request, refused);
                }
            }
            self.connections.mark_dirty(key);
        }
    }

    fn admit(&mut self, key: ConnectionKey, introduction: &Introduction) {
        let outcome = self.open_session(key, introduction);
        self.publish();
        self.end_handshake(key, &introduction.request, outcome);
    }

    fn open_session(
        &mut self,
        key: ConnectionKey,
        introduction: &Introduction,
    ) -> Result<Vec<u8>, ServerRefusal> {
        let Introduction { hello, proven, proof, before, .. } = introduction;
        if matches!(before, Some(Before::Elsewhere)) {
            return Err(ServerRefusal::Status(Status::AGAIN));
        }
        let (session, resumed) = match self.find_session(key, hello, proven.as_ref())? {
            Some(session) => (session, true),
            None => (self.new_session(key, (hello, before.as_ref()), proven.as_ref())?, false),
        };
        let mut welcome = self.attach(key, session, resumed, hello.features);
        if let Some(terms) = &mut welcome.cluster {
            terms.outcomes = outcomes_of(hello, before.as_ref());
            self.fit_cluster_terms(key, terms);
        }
        Ok(encode_message_pack(&AuthenticateReply { proof: proof.clone(), welcome }))
    }

    /// The session that a client wants to resume, if it is still there and its own.
    fn find_session(
        &mut self,
        key: ConnectionKey,
        hello: &Hello,
        proven: Option<&Key>,
    ) -> Result<Option<SessionKey>, ServerRefusal> {
        let Some(resume) = &hello.resume else { return Ok(None) };
        let Some(session) = self.sessions.resume(resume.session, &resume.secret) else { return Ok(None) };
        let client = self.admit_client(key, hello, proven)?;
        let is_same = |s: &Session| s.client.known_as.is_same(&client) && s.client.id == hello.client_id;
        let same = self.sessions.find(session).is_some_and(is_same);
        // It may come from another address than before. A withdrawn export has the rules of the start.
        let (rules, began) = (self.shared.rules(), &self.shared.settings.exports);
        let peer = &self.connections[key].endpoint.capabilities().peer;
        let exports = self.sessions.find(session).map(|session| &*session.mounts).unwrap_or_default();
        let exports = exports.iter().map(|id| usize::from(id.0));
        let mut exports = exports.filter_map(|index| rules.export(index).or_else(|| began.get(index)));
        if !same || !exports.all(|export| rules.access.admits_address(export, peer)) {
            return Err(ServerRefusal::Status(Status::AUTH_FAILED));
        }
        if let Some(older) =
            self.sessions.find_mut(session).and_then(|session| session.presence.connection.take())
        {
            self.close(older, &"the client resumed its session on another connection");
        }
        Ok(Some(session))
    }

    fn admit_client(
        &mut self,
        key: ConnectionKey,
        hello: &Hello,
        proven: Option<&Key>,
    ) -> Result<ClientIdentity, ServerRefusal> {
        let connection = &mut self.connections[key];
        let peer = &connection.endpoint.capabilities().peer;
        let admitted = self.shared.rules().access.admit(&connection.listener_address, peer, hello, proven);
        // The port of a peer that is gone may be another's by now, of whom the kernel has told instead.
        if !connection.endpoint.peer_is_there() {
            return Err(ServerRefusal::Status(Status::AGAIN));
        }
        admitted.map_err(ServerRefusal::Status)
    }

    fn new_session(
        &mut self,
        key: ConnectionKey,
        (hello, before): (&Hello, Option<&Before>),
        proven: Option<&Key>,
    ) -> Result<SessionKey, ServerRefusal> {
        if self.sessions.are_draining() {
            return Err(ServerRefusal::Status(Status::DRAINING));
        }
        let client = self.admit_client(key, hello, proven)?;
        let endpoint = &mut self.connections[key].endpoint;
        let owner = Access::budget_owner(&client, &endpoint.capabilities().peer);
        let Some(place) = self.shared.budgets.sessions.take(&owner, 1) else {
            return Err(ServerRefusal::Status(Status::SERVER_FULL));
        };
        let budgets = &self.shared.budgets;
        let (descriptors, views) = (budgets.descriptors.take(&owner, 0), budgets.views.take(&owner, 0));
        let (descriptors, views) =
            descriptors.zip(views).ok_or(ServerRefusal::Status(Status::SERVER_FULL))?;
        let (depth, expected) = (endpoint.capabilities().send_depth, endpoint.messages_expected());
        let peer = endpoint.capabilities().peer.address;
        // Room for callbacks beside the replies.
        let slots = hello.slots.clamp(1, self.shared.settings.slots_max).min(depth.saturating_sub(4).max(1));
        // What it asks for comes with the first reply.
        let credits =
            self.sessions.credit_target(slots, slots, self.shared.settings.operations_max).min(expected);
        let resume = hello.resume.as_ref();
        let has_records = matches!(before, Some(Before::Ended(Some(_), _)));
        let previous = match before {
            // Its locks are known by it, in the cluster's store.
            Some(_) => resume.filter(|_| outcomes_of(hello, before).is_some()).map(|resume| resume.session),
            None => {
                resume.and_then(|resume| self.shared.locks.session_before(resume.session, &resume.secret))
            }
        };
        let session = Session {
            id: self.enter_session(),
            secret: self.random(),
            features: Features::BASE,
            core: ServerSession::new(slots, credits),
            handles: HandleTable::default(),
            views: Views::new(views, self.shared.settings.limits.views_max),
            mounts: Vec::new(),
            place,
            descriptors,
            ledger: Ledger::default(),
            client: Client { known_as: client, id: hello.client_id, name: hello.client_name.clone(), peer },
            presence: Presence::new(self.now),
            locks: LockStanding { takes_again: has_records, ..LockStanding::behind(previous) },
            load: Load { copies_until: self.now, ..Load::default() },
        };
        let ClientIdentity { identity, evidence, key_name } = &session.client.known_as;
        tracing::info!(
            session = %session.shown_id(),
            client = session.shown_client(),
            client_id = %format_args!("{:032x}", u128::from_be_bytes(session.client.id)),
            peer = %session.shown_peer(),
            uid = identity.uid,
            gid = identity.gid,
            known_by = ?evidence,
            key = key_name.as_deref().unwrap_or("none"),
            slots,
            "session opened"
        );
        if let Some(cluster) = &self.shared.cluster {
            cluster.open_session(session.id, &proof_of(&session.secret), session.locks.before);
        }
        Ok(self.sessions.insert(session))
    }

    /// A new name, entered in the directory of sessions.
    fn enter_session(&mut self) -> SessionId {
        loop {
            let random = u64::from_le_bytes(self.random());
            let cluster = self.shared.cluster.as_ref();
            let id = cluster.map_or(SessionId(random), |cluster| cluster.session_name(random));
            if self.shared.directory.enter(id, self.id) {
                return id;
            }
        }
    }

    fn attach(
        &mut self,
        key: ConnectionKey,
        session_key: SessionKey,
        resumed: bool,
        offered: u64,
    ) -> Welcome {
        let features = self.shared.features() & Features::from_bits_truncate(offered);
        let gather = self.connections.listener_of(&self.connections[key]).gather;
        let client = self.sessions.find(session_key).map(|session| &session.client.known_as);
        let thresholds = self.thresholds_of(key, client.expect("the session was just found or made"));
        self.connections[key].phase = Phase::Live(session_key);
        self.connections[key].beginning = None;
        self.connections[key].features = features;
        let (now, settings) = (self.now, &self.shared.settings);
        let session = self.sessions.find_mut(session_key).expect("the session was just found or made");
        session.presence.on_attached(key, now);
        session.features = features;
        session.client.peer = self.connections[key].endpoint.capabilities().peer.address;
        // Also anew: it may be at another address, by which fences go.
        self.shared.directory.introduce(session.id, session.shown());
        session.locks.turns.on_resumed();
        let mut slot_reports = if resumed { session.core.on_resumed() } else { Vec::new() };
        slot_reports
            .truncate(slot_reports_max(self.connections[key].endpoint.capabilities().send_payload_max));
        // All that may come at once now; no more than there is room for is granted.
        let limit = session.core.credits().limit();
        let credits = self.connections[key].endpoint.expect_messages(limit).min(limit);
        Welcome {
            session: session.id,
            secret: session.secret,
            resumed,
            server_epoch: self.shared.epoch,
            features: features.bits(),
            slots: session.core.slots_max(),
            credits,
            keep_alive_ms: self.shared.keep_alive_ms(),
            lease_ms: settings.lease_ms,
            thresholds,
            transfer_size_max: settings.transfer_size_max,
            handles_max: settings.handles_max,
            slot_reports,
            gather: gather.filter(|_| features.contains(Features::LISTS)),
            cluster: self.shared.cluster_terms().filter(|_| features.contains(Features::CLUSTER)),
        }
    }

    fn answer_handshake(&mut self, key: ConnectionKey, request: &Header, status: Status, payload: &[u8]) {
        if let Some(connection) = self.connections.find_mut(key) {
            connection.send_parts(request.reply(status), &[], payload);
        }
    }
}

#[cfg(test)]
mod tests {
    use dafs_proto::wire::{Crossovers, PAYLOAD_SIZE_MIN, SlotReport, Thresholds};

    use super::*;

    // [SESS-125]
    #[test]
    fn welcome_with_the_largest_numbers_and_reports_fits_the_smallest_payload() {
        let payload_max = u32::try_from(PAYLOAD_SIZE_MIN).unwrap();
        let crossovers = Crossovers {
            read_registered: u32::MAX,
            read_unregistered: u32::MAX,
            write_registered: u32::MAX,
            write_unregistered: u32::MAX,
        };
        let report = SlotReport { slot: u32::from(u16::MAX), sequence: u32::MAX, executed: true };
        let count = slot_reports_max(payload_max);
        assert!(count > 512, "{count} reports");
        let welcome = Welcome {
            session: SessionId(u64::MAX),
            secret: [u8::MAX; 16],
            resumed: true,
            server_epoch: u64::MAX,
            features: u64::MAX,
            slots: u16::MAX,
            credits: u16::MAX,
            keep_alive_ms: u32::MAX,
            lease_ms: u32::MAX,
            thresholds: Thresholds { read_inline_max: u32::MAX, write_inline_max: u32::MAX, crossovers },
            transfer_size_max: u32::MAX,
            handles_max: u32::MAX,
            slot_reports: vec![report; count],
            gather: Some(crossovers),
            cluster: None,
        };
        let reply = encode_message_pack(&AuthenticateReply { proof: vec![0; 32], welcome });
        assert!(reply.len() <= PAYLOAD_SIZE_MIN, "{} bytes", reply.len());
    }
}
