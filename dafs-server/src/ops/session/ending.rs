//! How connections, sessions and the server's own service end.

use dafs_proto::transport::TransportError;
use dafs_proto::wire::{Header, NoticeKind, Opcode};

use super::super::Worker;
use crate::worker::connections::connection::Phase;
use crate::worker::flight::Wakeup;
use crate::worker::ids::{ConnectionKey, SessionKey};
use crate::worker::sessions::{Ledger, Session};

/// Why a session ends.
pub(crate) enum End<'a> {
    /// The client said so.
    Bye,
    /// Its client was silent for the lease.
    LeaseOver,
    /// Its connection ended before it had mounted anything: there is nothing to come back for.
    Unused(&'a dyn std::fmt::Display),
    /// The client broke the protocol.
    Fault(&'a dyn std::fmt::Display),
}

/// Files of sessions that ended that are closed at a time.
const CLOSES_PER_TURN: usize = 256;

impl Worker {
    /// Ends a connection. Its session waits for the client to come back.
    pub(crate) fn close(&mut self, key: ConnectionKey, why: &dyn std::fmt::Display) {
        self.end_eager_buffers(key);
        let Some(connection) = self.connections.find_mut(key) else { return };
        let phase = std::mem::replace(&mut connection.phase, Phase::Closed);
        connection.endpoint.close();
        let listener = connection.listener_address.clone();
        tracing::debug!(%listener, %why, "connection closed");
        self.connections.remove(key);
        if let Phase::Live(session) = phase {
            let mut is_unused = false;
            if let Some(session) = self.sessions.find_mut(session) {
                session.presence.lost = Some(why.to_string().into_boxed_str());
                is_unused = session.mounts.is_empty() && session.presence.connection == Some(key);
            }
            self.on_disconnected(session, key);
            if is_unused {
                self.end_session(session, End::Unused(why));
            }
        }
        self.publish();
    }

    /// Ends a connection and its session, because the client broke the protocol; says why while it still can.
    pub(crate) fn end_for_fault(&mut self, key: ConnectionKey, fault: impl std::fmt::Display) {
        self.stats.counted.protocol_errors += 1;
        let Some(connection) = self.connections.find_mut(key) else { return };
        if let Phase::Live(session) = connection.phase {
            self.notice(session, key, NoticeKind::ProtocolError, &fault.to_string());
            if let Some(connection) = self.connections.find_mut(key) {
                // The session is over whether the notice arrives or not.
                let _: Result<(), TransportError> = connection.flush();
            }
            self.end_session(session, End::Fault(&fault));
        } else {
            let peer = connection.endpoint.capabilities().peer.address;
            let listener = connection.listener_address.clone();
            tracing::warn!(%listener, ?peer, fault = fault.to_string(), "protocol fault: connection ended");
        }
        self.close(key, &fault);
    }

    pub(crate) fn notice(&mut self, session: SessionKey, key: ConnectionKey, kind: NoticeKind, text: &str) {
        let Some(session) = self.sessions.find_mut(session) else { return };
        let header = Header::callback(Opcode::Notice, session.core.next_callback());
        let text = &text.as_bytes()[..text.len().min(512)];
        self.connections.send_callback(key, header, &kind.value().to_le_bytes(), text);
    }

    /// Ends a session: handles are closed, its tokens end, operations in flight are forgotten once nothing holds their memory.
    pub(crate) fn end_session(&mut self, key: SessionKey, why: End<'_>) {
        self.give_unclaimed_locks_back(key);
        let Some(mut session) = self.sessions.remove(key) else { return };
        self.log_end(&session, &why);
        if session.load.waiting > 0 {
            self.sched.turn().session_waits_no_more();
        }
        for open in session.handles.take_all().filter(|open| !open.is_root) {
            // What is not closed yet is not given to others.
            let descriptors = session.descriptors.split(open.descriptors(&self.shared.settings));
            self.sessions.close_later(open.node, descriptors);
        }
        self.close_some();
        self.shared.directory.leave(session.id);
        self.end_tokens_of(session.id);
        self.forget_locks_of(&session);
        if let Some(cluster) = &self.shared.cluster {
            cluster.end_session(session.id);
        }
        if self.shared.locks.is_used() {
            self.sessions.unlock_later(session.id);
            self.free_some_locks();
        }
        self.forget_operations(key, &session);
        self.look_after_recalls();
        self.buffers.end_session(key);
        self.operations.wake(Wakeup::Buffer);
        self.publish();
        if let Some(connection) = session.presence.connection
            && let Some(connection) = self.connections.find_mut(connection)
            && matches!(connection.phase, Phase::Live(live) if live == key)
        {
            let key = connection.key;
            connection.phase = Phase::Closed;
            self.close(key, &"its session ended");
        }
    }

    /// A session may have had tens of thousands of files open.
    pub(crate) fn close_some(&mut self) -> bool {
        let (closing, has_more) = self.sessions.take_closing(CLOSES_PER_TURN);
        for (node, descriptors) in closing {
            self.storage.close(node);
            drop(descriptors);
        }
        has_more
    }

    /// One line for each session that ends.
    fn log_end(&self, session: &Session, why: &End<'_>) {
        let Ledger { requests, bytes_read, bytes_written } = session.ledger;
        let seconds = self.now.since(session.presence.opened).as_secs();
        let why_shown = match (why, &session.presence.lost) {
            (End::Bye, _) => "the client ended it".to_owned(),
            (End::LeaseOver, None) => "the client was silent for longer than the lease".to_owned(),
            (End::LeaseOver, Some(lost)) => {
                format!("its connection was lost, and the client did not reconnect within the lease: {lost}")
            }
            (End::Unused(why), _) => format!("its connection was lost before it had mounted anything: {why}"),
            (End::Fault(fault), _) => format!("protocol fault: {fault}"),
        };
        macro_rules! log {
            ($level:ident) => {
                tracing::$level!(
                    session = %session.shown_id(),
                    client = session.shown_client(),
                    peer = %session.shown_peer(),
                    why = why_shown,
                    seconds,
                    requests,
                    bytes_read,
                    bytes_written,
                    "session ended"
                )
            };
        }
        match why {
            End::Fault(_) => log!(warn),
            End::Bye | End::LeaseOver | End::Unused(_) => log!(info),
        }
    }
}
