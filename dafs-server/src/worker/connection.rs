//! One connection: an endpoint, where its handshake stands, and replies that found no room.

use std::collections::VecDeque;
use std::time::Duration;

use dafs_proto::budget::Charge;
use dafs_proto::session::{Moment, ServerHandshake};
use dafs_proto::transport::{Address, Endpoint, Head, OpToken, PostError, TransportError};
use dafs_proto::wire::{Flags, HEAD_SIZE_MAX, HEADER_SIZE, Header, Status};

use crate::shared::mail::Introduction;
use crate::worker::flight::eager::EagerBuffers;
use crate::worker::ids::{ConnectionKey, SessionKey};

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
    /// It is counted as one without a session until it has one.
    pub(crate) beginning: Option<Charge>,
    /// When it was made.
    pub since: Moment,
    /// Messages that found the provider's queue full, oldest first. Bounded by the session's slots and callbacks.
    outbox: VecDeque<(Head, Vec<u8>)>,
    /// Operations whose RDMA found the queue full.
    pub post_waiters: VecDeque<usize>,
    /// Buffers lent to the client.
    pub(crate) eager_buffers: EagerBuffers,
    /// RDMA operations posted and not completed.
    pub rdma_pending: u32,
    /// RDMA operations that have completed.
    pub(crate) rdma_completed: u64,
    /// Steps so far: see [`RdmaStep`].
    rdma_steps: u64,
    /// What was known of its RDMA at the last tick.
    progress: Progress,
    /// Transfers that went out of their turn, in order.
    pub(crate) runnable: VecDeque<OpToken>,
    /// What [`Endpoint::bytes_sent`] said last.
    sent: u64,
    /// Bytes that it moved beyond what its turns allowed, beside others.
    pub(crate) debt: usize,
    /// What its endpoint was told of turns.
    pub(crate) is_contended: bool,
    /// Something was queued since the last flush.
    pub dirty: bool,
    /// What its replies that nobody takes are charged with, as of the last tick.
    pub(crate) unsent: Option<Charge>,
}

/// A step of a connection's RDMA: something was posted for an operation, or has completed for it. The earlier ones are less.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct RdmaStep {
    number: u64,
    /// As many have completed on the connection once all have that were posted before.
    ahead: u64,
}

/// How far RDMA of a connection has come, as of some tick.
struct Progress {
    /// Bytes that it has moved, and completions.
    moved: u64,
    /// Bytes that the client has sent.
    heard: u64,
    /// When it moved last, or none was posted.
    at: Moment,
    /// Of the last steps for those operations that hold buffers and wait for RDMA, the first; and how many have completed of what is before
    /// it.
    oldest: Option<(u64, u64)>,
    /// Since when that is so.
    oldest_since: Moment,
}

/// Leases in which RDMA completes something for the operation with buffers that waits for it longest, or of what is before that, while
/// others want them. That is a quarter of a megabyte, behind what the stream has taken: so much passes over any line that somebody works
/// over.
const LEASES_TO_COMPLETE: u32 = 8;

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
            beginning: None,
            since: now,
            outbox: VecDeque::new(),
            post_waiters: VecDeque::new(),
            eager_buffers: EagerBuffers::default(),
            rdma_pending: 0,
            rdma_completed: 0,
            rdma_steps: 0,
            progress: Progress { moved: 0, heard: 0, at: now, oldest: None, oldest_since: now },
            runnable: VecDeque::new(),
            sent: 0,
            debt: 0,
            is_contended: false,
            dirty: false,
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
        let sent = self.endpoint.bytes_sent();
        let before = std::mem::replace(&mut self.sent, sent);
        usize::try_from(sent.saturating_sub(before)).unwrap_or(usize::MAX)
    }

    /// The next step of its RDMA.
    #[inline]
    pub(crate) fn next_rdma_step(&mut self) -> RdmaStep {
        self.rdma_steps += 1;
        RdmaStep { number: self.rdma_steps, ahead: self.rdma_completed + u64::from(self.rdma_pending) }
    }

    /// Once each tick: whether its client has sent anything since the last, or RDMA has moved data. What else the server has sent is no
    /// sign of the client.
    pub(crate) fn has_moved(&mut self, now: Moment) -> bool {
        let moved = self.rdma_completed + self.endpoint.bytes_of_rdma();
        let heard = self.endpoint.bytes_received();
        let has_moved = std::mem::replace(&mut self.progress.moved, moved) != moved;
        let is_heard = std::mem::replace(&mut self.progress.heard, heard) != heard;
        if self.rdma_pending == 0 || has_moved {
            self.progress.at = now;
        }
        has_moved || is_heard
    }

    /// The client lets its RDMA rest: none has moved for a lease, or none has completed for eight for the operation that waits longest,
    /// whose last step is `oldest`, nor of what was posted before. Asked at each tick at which others wait for buffers of this connection's
    /// session.
    pub(crate) fn rests(&mut self, oldest: Option<RdmaStep>, now: Moment, lease: Duration) -> bool {
        let oldest = oldest.map(|step| (step.number, self.rdma_completed.min(step.ahead)));
        if self.progress.oldest != oldest {
            (self.progress.oldest, self.progress.oldest_since) = (oldest, now);
        }
        let (moves, completes) = (self.progress.at, self.progress.oldest_since);
        (self.rdma_pending > 0 && now >= moves.after(lease))
            || (oldest.is_some() && now >= completes.after(lease * LEASES_TO_COMPLETE))
    }

    /// For so long this server did not run.
    pub(crate) fn on_stall(&mut self, later: impl Fn(Moment) -> Moment) {
        self.since = later(self.since);
        self.progress.at = later(self.progress.at);
        self.progress.oldest_since = later(self.progress.oldest_since);
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
        !self.dirty
            && self.rdma_pending == 0
            && self.post_waiters.is_empty()
            && self.runnable.is_empty()
            && !self.wants_flush()
    }

    /// Output waits for the provider.
    pub fn wants_flush(&self) -> bool {
        !self.outbox.is_empty() || self.endpoint.wants_flush()
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

    use dafs_proto::transport::sim::{FaultPlan, NodeId, SimNet};
    use dafs_proto::transport::{ConnectParams, Domain};

    use super::*;

    const LEASE: Duration = Duration::from_secs(1);

    // [LIMIT-24]
    #[test]
    fn client_pauses_rdma_only_after_earlier_posts_completed() {
        const BEFORE: u32 = 20;
        let (net, port) = (SimNet::new(1, FaultPlan::calm()), Address::Sim(1));
        let params = ConnectParams::default();
        let _listener = net.domain(NodeId(1)).listen(&port, &params).unwrap();
        let endpoint = net.domain(NodeId(2)).connect(&port, &params, LEASE).unwrap();
        let key = ConnectionKey { index: 0, generation: 0 };
        let mut now = Moment::default();
        let mut connection = Connection::new(key, endpoint, 0, port, now);
        // Reads of mapped files, which need no buffers, and then one that has some.
        connection.rdma_pending = BEFORE;
        let step = connection.next_rdma_step();
        connection.rdma_pending += 1;
        for _ in 0..BEFORE {
            connection.rdma_completed += 1;
            for _ in 0..LEASES_TO_COMPLETE {
                assert!(!connection.rests(Some(step), now, LEASE));
                now = now.after(LEASE);
                // A byte moves now and then.
                connection.progress.at = now;
            }
        }
        assert!(connection.rests(Some(step), now, LEASE), "eight leases after the last");
        connection.rdma_completed += 1;
        assert!(connection.rests(Some(step), now, LEASE), "what was posted behind it does not count");
    }
}
