//! How connections, sessions and the server's own service end.

use std::time::Duration;

use dafs_proto::transport::TransportError;
use dafs_proto::wire::{Header, NoticeKind, Opcode, Status};

use super::Worker;
use crate::worker::connections::connection::Phase;
use crate::worker::flight::Wakeup;
use crate::worker::ids::{ConnectionKey, SessionKey};
use crate::worker::sessions::{Ledger, Session};

/// How long a session gets copies after a file was truncated under a read.
const DISTRUST_TIME: Duration = Duration::from_secs(10);

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

impl Worker {
    /// Stops taking sessions and tells the clients. Operations in flight finish, and requests of sessions that are there
    /// are served as long as the loop runs.
    pub fn drain(&mut self) {
        self.sessions.drain();
        let live: Vec<_> =
            self.sessions.iter().filter_map(|(key, session)| Some((key, session.connection?))).collect();
        for (session, connection) in live {
            self.notice(session, connection, NoticeKind::Draining, "the server is shutting down");
        }
        self.flush_dirty();
    }

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
                session.lost = Some(why.to_string().into_boxed_str());
                is_unused = session.mounts.is_empty() && session.connection == Some(key);
            }
            self.on_disconnected(session, key);
            if is_unused {
                self.end_session(session, End::Unused(why));
            }
        }
        self.publish();
    }

    /// A file was truncated after it was mapped to be sent: it may be again, so the session gets copies for a while.
    #[cold]
    pub(crate) fn distrust_mapped_files(&mut self, session: SessionKey) {
        let until = self.now.after(DISTRUST_TIME);
        if let Some(session) = self.sessions.find_mut(session) {
            session.copies_until = until;
        }
    }

    /// Reads of the session may be sent from mapped files.
    pub(crate) fn trusts_mapped_files(&self, session: SessionKey) -> bool {
        self.sessions.find(session).is_none_or(|session| session.copies_until <= self.now)
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

    fn notice(&mut self, session: SessionKey, key: ConnectionKey, kind: NoticeKind, text: &str) {
        let Some(session) = self.sessions.find_mut(session) else { return };
        let header = Header::callback(Opcode::Notice, session.core.next_callback());
        let text = &text.as_bytes()[..text.len().min(512)];
        self.send_callback(key, header, &kind.value().to_le_bytes(), text);
    }

    /// Sends a message of the server's own accord.
    pub(crate) fn send_callback(&mut self, key: ConnectionKey, header: Header, body: &[u8], payload: &[u8]) {
        if let Some(connection) = self.connections.find_mut(key) {
            connection.send_parts(header, body, payload);
            self.connections.mark_dirty(key);
        }
    }

    /// Ends a session: handles are closed, its tokens end, operations in flight are forgotten once nothing holds their memory.
    pub(crate) fn end_session(&mut self, key: SessionKey, why: End<'_>) {
        self.give_unclaimed_locks_back(key);
        let Some(mut session) = self.sessions.remove(key) else { return };
        self.log_end(&session, &why);
        if session.waiting > 0 {
            self.sched.turn().session_waits_no_more();
        }
        for open in session.handles.take_all().filter(|open| !open.is_root) {
            // What is not closed yet is not given to others.
            let descriptors = session.descriptors.split(self.descriptors_of(&open));
            self.sessions.close_later(open.node, descriptors);
        }
        self.close_some();
        self.shared.directory.leave(session.id);
        self.end_tokens_of(session.id);
        self.forget_locks_of(&session);
        if self.shared.locks.is_used() {
            self.sessions.unlock_later(session.id);
            self.free_some_locks();
        }
        self.forget_operations(key, &session);
        self.buffers.end_session(key);
        self.operations.wake(Wakeup::Buffer);
        self.publish();
        if let Some(connection) = session.connection
            && let Some(connection) = self.connections.find_mut(connection)
            && matches!(connection.phase, Phase::Live(live) if live == key)
        {
            let key = connection.key;
            connection.phase = Phase::Closed;
            self.close(key, &"its session ended");
        }
    }

    /// One line for each session that ends.
    fn log_end(&self, session: &Session, why: &End<'_>) {
        let Ledger { requests, bytes_read, bytes_written } = session.ledger;
        let seconds = self.now.since(session.opened).as_secs();
        let why_shown = match (why, &session.lost) {
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

    /// The status for new sessions while the server takes none, whoever asks.
    pub(crate) fn refusal(&self) -> Option<Status> {
        self.sessions.are_draining().then_some(Status::DRAINING)
    }
}
