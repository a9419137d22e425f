//! Entry of everything from outside: connections, messages (also in eager buffers), and the end of what an operation waits for. Messages
//! are admitted and handed to `ops` ([`dispatch`]), or belong to a handshake ([`handshake`]); operations go on ([`resume`]). Nothing is
//! executed or answered here. Imports `ops` and all below it.

mod dispatch;
mod elsewhere;
mod handshake;
mod resume;

use dafs_proto::budget::Owner;
use dafs_proto::transport::{Endpoint, PeerIdentity};
use dafs_proto::wire::{Header, Method, Opcode, WriteRequest};

use crate::worker::Worker;
use crate::worker::connections::connection::Phase;
use crate::worker::ids::ConnectionKey;

impl Worker {
    /// Takes over an accepted connection.
    pub fn add_connection(&mut self, listener: usize, endpoint: Box<dyn Endpoint>) -> ConnectionKey {
        self.bound_handshakes(listener, &endpoint.capabilities().peer);
        let beginning = self.shared.budgets.handshakes.count(&Owner::Unknown, 1);
        self.connections.insert(listener, endpoint, beginning, self.now)
    }

    /// Makes room for one more connection that begins a session.
    fn bound_handshakes(&mut self, listener: usize, newcomer: &PeerIdentity) {
        let max = self.shared.part_of(self.shared.settings.limits.handshakes_max as usize).max(1);
        if let Some(gone) = self.connections.goes_for(listener, newcomer, max, self.now) {
            self.shared.budgets.handshakes.count_refused();
            self.close(gone, &"closed to make room: too many connections without a session");
        }
    }

    /// A message on a connection.
    #[inline]
    pub(crate) fn on_message(&mut self, key: ConnectionKey, head: &[u8], payload_len: u32) {
        let (header, body) = match Header::decode(head, payload_len) {
            Ok(decoded) => decoded,
            Err(error) => return self.end_for_fault(key, error),
        };
        match self.connections.find_mut(key).map(|connection| &connection.phase) {
            Some(&Phase::Live(session)) => {
                // The method of a read or write stands behind offset and length.
                let is_eager = body.get(12) == Some(&(Method::Eager as u8));
                if is_eager && matches!(header.opcode, Opcode::Write | Opcode::Append) {
                    return self.end_for_fault(key, "an eager write that is no frame");
                }
                self.on_request(key, session, header, body)
            }
            Some(Phase::Connected | Phase::Greeted(_) | Phase::Introduced(_)) => {
                self.on_handshake(key, &header, body)
            }
            Some(Phase::Closed) | None => {}
        }
    }

    /// The client wrote into one of its eager buffers: a request whose data is there.
    pub(crate) fn on_eager_frame(&mut self, key: ConnectionKey, eager_buffer: u32, written: u32) {
        let Some(connection) = self.connections.find_mut(key) else { return };
        let frame = match connection.phase {
            Phase::Live(session) => {
                connection.eager_buffers.frame(eager_buffer, written).map(|frame| (session, frame))
            }
            _ => None,
        };
        let Some((session, (head, payload_len))) = frame else {
            return self.end_for_fault(
                key,
                format_args!("immediate {eager_buffer} of {written} bytes names no frame"),
            );
        };
        let (header, body) = match Header::decode(head.as_bytes(), payload_len) {
            Ok(decoded) => decoded,
            Err(error) => return self.end_for_fault(key, error),
        };
        let writes = matches!(header.opcode, Opcode::Write | Opcode::Append);
        let fits = writes
            && WriteRequest::decode(body).is_ok_and(|request| {
                request.method == Method::Eager
                    && request.segment[0] == u64::from(eager_buffer)
                    && request.len == payload_len
            });
        if !fits {
            return self.end_for_fault(key, "a frame in an eager buffer that is no write through it");
        }
        self.on_request(key, session, header, body);
    }
}
