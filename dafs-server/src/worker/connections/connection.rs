//! One connection: an endpoint, the state of its handshake, and replies that found no room.

use std::collections::VecDeque;
use std::io::ErrorKind;

use dafs_proto::budget::Charge;
use dafs_proto::session::{Moment, ServerHandshake};
use dafs_proto::transport::{Address, Endpoint, Head, OpToken, PostError, TransportError};
use dafs_proto::wire::{Features, Flags, HEAD_SIZE_MAX, HEADER_SIZE, Header, Status};

use super::rdma::Rdma;
use crate::shared::mail::Introduction;
use crate::worker::flight::eager::EagerBuffers;
use crate::worker::ids::{ConnectionKey, SessionKey};
use crate::worker::sched::CONTENDED_SIZE;

/// Where a connection stands.
pub enum Phase {
    /// Nothing has arrived yet; `Hello` is next.
    Connected,
    /// `Hello` was answered; `Authenticate` is next.
    Greeted(Box<ServerHandshake>),
    /// It was authenticated, and who that is is being looked up.
    Introduced(Box<Introduction>),
    /// It carries this session.
    Live(SessionKey),
    /// It is closed and only waits to be taken out.
    Closed,
}

impl Phase {
    /// It has no session yet.
    pub(crate) fn is_beginning(&self) -> bool {
        matches!(self, Self::Connected | Self::Greeted(_) | Self::Introduced(_))
    }

    /// The session that it carries.
    #[inline]
    pub(crate) fn session(&self) -> Option<SessionKey> {
        match self {
            Self::Live(session) => Some(*session),
            _ => None,
        }
    }
}

/// A connection.
pub struct Connection {
    /// Its own name.
    pub key: ConnectionKey,
    /// The provider's side.
    pub endpoint: Box<dyn Endpoint>,
    /// The listener it came from.
    pub listener: usize,
    /// Where that listens.
    pub listener_address: Address,
    /// Where it stands.
    pub phase: Phase,
    /// What holds on it, once it has a session.
    pub(crate) features: Features,
    /// It is counted as one without a session until it has one.
    pub(crate) beginning: Option<Charge>,
    /// When it was made.
    pub since: Moment,
    /// Messages that found the provider's queue full, oldest first. Bounded by the session's slots and callbacks.
    outbox: VecDeque<(Head, Vec<u8>)>,
    /// Buffers lent to the client.
    pub(crate) eager_buffers: EagerBuffers,
    /// What its RDMA has come to.
    pub(crate) rdma: Rdma,
    /// How its turns went.
    pub(crate) turn: TurnState,
    /// Something was queued since the last flush.
    pub dirty: bool,
    /// Why it cannot go on, for whoever flushes it next.
    given_up: Option<&'static str>,
    /// What its replies that nobody takes are charged with, as of the last tick.
    pub(crate) unsent: Option<Charge>,
}

impl Connection {
    /// A connection that was just accepted.
    pub fn new(
        key: ConnectionKey,
        endpoint: Box<dyn Endpoint>,
        listener: usize,
        listener_address: Address,
        now: Moment,
    ) -> Self {
        Self {
            key,
            endpoint,
            listener,
            listener_address,
            phase: Phase::Connected,
            features: Features::BASE,
            beginning: None,
            since: now,
            outbox: VecDeque::new(),
            eager_buffers: EagerBuffers::default(),
            rdma: Rdma::new(now),
            turn: TurnState::default(),
            dirty: false,
            given_up: None,
            unsent: None,
        }
    }

    /// Queues a message of its parts.
    pub(crate) fn send_parts(&mut self, mut header: Header, body: &[u8], payload: &[u8]) {
        let len = HEADER_SIZE + body.len();
        header.head_len = u16::try_from(len).expect("bodies are at most 72 bytes");
        header.payload_len = u32::try_from(payload.len()).expect("payloads are bounded by the connection");
        let mut head = [0; HEAD_SIZE_MAX];
        header.encode(&mut head);
        head[HEADER_SIZE..len].copy_from_slice(body);
        self.send(&head[..len], payload);
    }

    /// Queues a message, in order behind what found no room before.
    pub fn send(&mut self, head: &[u8], payload: &[u8]) {
        self.dirty = true;
        if self.outbox.is_empty() {
            match post(&mut *self.endpoint, head, payload) {
                Ok(()) => return,
                Err(PostError::Full) => {}
                // The next receive tells why, and closes it.
                Err(PostError::Closed) => return,
                Err(error @ (PostError::Invalid(_) | PostError::Faulted)) => {
                    tracing::error!(%error, "cannot send a reply");
                    return;
                }
            }
        }
        if let Some(head) = Head::copy_of(head) {
            self.outbox.push_back((head, payload.to_vec()));
        }
    }

    /// It cannot go on: its next flush fails for this reason.
    #[cold]
    pub(crate) fn give_up(&mut self, why: &'static str) {
        self.given_up = Some(why);
        self.dirty = true;
    }

    /// A reply can be filled in place now: nothing waits before it.
    pub fn sends_at_once(&self) -> bool {
        self.outbox.is_empty()
    }

    /// Bytes of replies that its client has not taken, and that the server therefore keeps.
    pub(crate) fn unsent_bytes(&self) -> u64 {
        let waiting: usize =
            self.outbox.iter().map(|(head, payload)| size_of_val(head) + payload.len()).sum();
        (waiting + self.endpoint.unsent_bytes()) as u64
    }

    /// Messages that wait for room.
    pub fn waiting(&self) -> usize {
        self.outbox.len()
    }

    /// Sends what waited and flushes the provider's queue.
    pub fn flush(&mut self) -> Result<(), TransportError> {
        if let Some(why) = self.given_up {
            return Err(TransportError::system(why, ErrorKind::ConnectionAborted.into()));
        }
        loop {
            while let Some((head, payload)) = self.outbox.front() {
                match post(&mut *self.endpoint, head.as_bytes(), payload) {
                    Err(PostError::Full) => break,
                    Ok(()) | Err(PostError::Closed | PostError::Invalid(_) | PostError::Faulted) => {
                        self.outbox.pop_front();
                    }
                }
            }
            let waiting = self.outbox.len();
            self.endpoint.flush()?;
            // A flush can make room; go on only while it does.
            if waiting == 0 || self.endpoint.wants_flush() || !self.makes_room() {
                break;
            }
        }
        self.dirty = false;
        Ok(())
    }

    /// Bytes that its provider's calls have sent since this was last asked.
    #[inline]
    pub(crate) fn take_sent(&mut self) -> usize {
        let sent = self.endpoint.traffic().sent;
        let before = std::mem::replace(&mut self.turn.sent, sent);
        usize::try_from(sent.saturating_sub(before)).unwrap_or(usize::MAX)
    }

    /// A turn begins, perhaps beside others: its endpoint is told how much to do at once.
    #[inline]
    pub(crate) fn begin_turn(&mut self, contended: bool) {
        if self.turn.is_contended != contended {
            self.turn.is_contended = contended;
            self.endpoint.set_turn(if contended { CONTENDED_SIZE } else { usize::MAX });
        }
    }

    /// Once each tick: whether its client has sent anything since the last, or RDMA has moved data. What else the server has sent is no
    /// sign of the client.
    pub(crate) fn has_moved(&mut self, now: Moment) -> bool {
        let traffic = self.endpoint.traffic();
        self.rdma.has_moved(traffic.of_rdma, traffic.received, now)
    }

    /// For so long this server did not run.
    pub(crate) fn on_stall(&mut self, later: impl Fn(Moment) -> Moment) {
        self.since = later(self.since);
        self.rdma.on_stall(later);
    }

    fn makes_room(&mut self) -> bool {
        let Some((_, payload)) = self.outbox.front() else { return false };
        match self.endpoint.reserve(payload.len()) {
            Ok(slot) => {
                self.endpoint.cancel_send(slot);
                true
            }
            Err(_) => false,
        }
    }

    /// Nothing is queued, posted or waiting on it.
    #[inline]
    pub fn is_quiet(&self) -> bool {
        !self.dirty && self.rdma.is_quiet() && !self.turn.has_deferred() && !self.wants_flush()
    }

    /// Output waits for the provider.
    pub fn wants_flush(&self) -> bool {
        !self.outbox.is_empty() || self.endpoint.wants_flush()
    }
}

/// How a connection's turns went.
#[derive(Default)]
pub(crate) struct TurnState {
    /// Transfers that went out of their turn, in order.
    deferred: VecDeque<OpToken>,
    /// What [`Endpoint::bytes_sent`] said last.
    sent: u64,
    /// Bytes that it moved beyond what its turns allowed, beside others.
    pub(crate) debt: usize,
    /// What its endpoint was told of turns.
    is_contended: bool,
}

impl TurnState {
    /// A transfer goes on in the next turn; whether it is the only one.
    pub(crate) fn defer(&mut self, token: OpToken) -> bool {
        self.deferred.push_back(token);
        self.deferred.len() == 1
    }

    /// Transfers wait for the next turn.
    #[inline]
    pub(crate) fn has_deferred(&self) -> bool {
        !self.deferred.is_empty()
    }

    /// Takes the next of them.
    pub(crate) fn take_deferred(&mut self) -> Option<OpToken> {
        self.deferred.pop_front()
    }
}

/// Posts a message. A reply that is larger than this connection takes, because its request came over another, is answered as such: its
/// client waits for it.
fn post(endpoint: &mut dyn Endpoint, head: &[u8], payload: &[u8]) -> Result<(), PostError> {
    match endpoint.send_copy(head, payload) {
        Err(PostError::Invalid(_)) if !payload.is_empty() => refuse(endpoint, head, payload),
        posted => posted,
    }
}

#[cold]
fn refuse(endpoint: &mut dyn Endpoint, head: &[u8], payload: &[u8]) -> Result<(), PostError> {
    const WHY: &str = "a head that cannot be answered";
    let payload_len = u32::try_from(payload.len()).unwrap_or(u32::MAX);
    let (header, _) = Header::decode(head, payload_len).map_err(|_| PostError::Invalid(WHY))?;
    if !header.flags.contains(Flags::REPLY) {
        return Err(PostError::Invalid(WHY));
    }
    let mut refusal = [0; HEADER_SIZE];
    let head_len = u16::try_from(HEADER_SIZE).expect("a header is short");
    Header { status: Status::RANGE, head_len, payload_len: 0, ..header }.encode(&mut refusal);
    endpoint.send_copy(&refusal, &[])
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "tests")]

    use std::time::Duration;

    use dafs_proto::transport::sim::{FaultPlan, NodeId, SimNet};
    use dafs_proto::transport::{ConnectParams, Domain};

    use super::*;

    #[test]
    fn connection_that_is_given_up_fails_at_its_next_flush() {
        let (net, port) = (SimNet::new(1, FaultPlan::calm()), Address::Sim(1));
        let params = ConnectParams::default();
        let _listener = net.domain(NodeId(1)).listen(&port, &params).unwrap();
        let endpoint = net.domain(NodeId(2)).connect(&port, &params, Duration::from_secs(1)).unwrap();
        let key = ConnectionKey { index: 0, generation: 0 };
        let mut connection = Connection::new(key, endpoint, 0, port, Moment::default());
        connection.flush().unwrap();
        connection.give_up("no more replies");
        assert!(!connection.is_quiet(), "somebody flushes it");
        assert!(connection.flush().unwrap_err().to_string().starts_with("no more replies"));
    }
}
