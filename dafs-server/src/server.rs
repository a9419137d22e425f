//! The server without its loop: connections, sessions, operations in flight, and the rules that join them.
//!
//! [`Server`] does no waiting and reads no clock: a driver (the event loop, or a simulation) tells it the time, hands
//! it accepted endpoints, and calls [`Server::serve`] for connections where something may have happened and
//! [`Server::poll_storage`] when storage has finished something.

use std::collections::VecDeque;
use std::sync::Arc;
use std::time::Duration;

use dafs_proto::session::{KeySource, Moment};
use dafs_proto::transport::{Address, Domain, Endpoint, OpToken, Received, TransportError};
use dafs_proto::wire::{GatherSwitches, HEADER_SIZE, Header, NoticeKind, Opcode, Status, Thresholds};
use slab::Slab;

use crate::access::Access;
use crate::backend::{FsResult, Storage};
use crate::buffers::{BufferConfig, BufferPool};
use crate::config::ExportConfig;
use crate::connection::{Connection, ConnectionKey, Phase};
use crate::inflight::{Operation, Wakeup};
use crate::ops::Tuner;
use crate::sessions::{SessionKey, SessionTable};
use crate::stats::Stats;
use crate::turns::{CONTENDED_SIZE, Turns};

/// Numbers that bound and time a server.
#[derive(Clone, Debug)]
pub struct Settings {
    /// Slots of a session at most.
    pub slots_max: u16,
    /// Operations in flight, shared by all sessions.
    pub operations_max: u32,
    /// Sessions at once.
    pub sessions_max: usize,
    /// Open handles of a session.
    pub handles_max: u32,
    /// Largest payload of a message, bytes.
    pub inline_max: u32,
    /// Replies to requests that came together leave together.
    pub batch_replies: bool,
    /// Largest read or write, bytes.
    pub transfer_size_max: u32,
    /// Transfer buffers.
    pub buffers: BufferConfig,
    /// A session is kept this long without a sign of life.
    pub lease: Duration,
    /// Clients speak at least this often.
    pub keep_alive: Duration,
    /// A handshake takes this long at most.
    pub handshake: Duration,
    /// Identity of this run: random.
    pub epoch: u64,
}

/// A place to listen and what its provider measured.
#[derive(Clone, Debug)]
pub struct ListenerInfo {
    /// Where it listens.
    pub address: Address,
    /// Exported to every session that comes in here.
    pub thresholds: Thresholds,
    /// As the thresholds; `None` where it was not measured.
    pub gather: Option<GatherSwitches>,
    /// How transfers through buffers are cut.
    pub pipelining: Pipelining,
}

/// How a transfer through buffers is cut into chunks, and how many of them are in progress at once.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Pipelining {
    /// Bytes of a chunk; never more than the largest buffer.
    pub chunk_size: u64,
    /// Chunks in progress: 1 moves one after the other.
    pub depth: usize,
    /// The chunk size is as it was set; else it is only what transfers begin with, and learn from.
    pub is_set: bool,
}

impl Default for Pipelining {
    /// What does well with most disks and networks.
    fn default() -> Self {
        Self { chunk_size: 256 << 10, depth: 4, is_set: false }
    }
}

/// Where random numbers come from: the system, or a seed in simulations.
pub type Randomness = Box<dyn FnMut(&mut [u8]) + Send>;

/// Everything a server consists of.
pub struct Parts {
    /// Bounds and times.
    pub settings: Settings,
    /// Exports, in the order of their ids in storage.
    pub exports: Vec<ExportConfig>,
    /// Who may what.
    pub access: Access,
    /// The files.
    pub storage: Box<dyn Storage>,
    /// Random numbers.
    pub randomness: Randomness,
}

/// The server.
pub struct Server {
    pub(crate) settings: Settings,
    pub(crate) exports: Vec<ExportConfig>,
    /// Client ids that are fenced off, by export.
    pub(crate) fences: Vec<Vec<[u8; 16]>>,
    pub(crate) access: Access,
    pub(crate) storage: Box<dyn Storage>,
    pub(crate) randomness: Randomness,
    pub(crate) listeners: Vec<ListenerInfo>,
    pub(crate) connections: Slab<Connection>,
    pub(crate) sessions: SessionTable,
    pub(crate) operations: Slab<Operation>,
    pub(crate) buffers: BufferPool,
    /// Where the lanes of a listener's connections are registered.
    pub(crate) domains: Vec<Option<Arc<dyn Domain>>>,
    pub(crate) wakeups: VecDeque<Wakeup>,
    pub(crate) stats: Stats,
    pub(crate) turns: Turns,
    /// By listener.
    pub(crate) tuners: Vec<Tuner>,
    /// Connections whose transfers went out of a turn that was not their own.
    stirred: Vec<ConnectionKey>,
    pub(crate) now: Moment,
    pub(crate) started: Moment,
    pub(crate) active_sessions: u32,
    pub(crate) draining: bool,
    /// Operations in the state `FenceDrain`.
    pub(crate) fence_drains: usize,
    pub(crate) park_count: u32,
    generation: u64,
    finished: Vec<(OpToken, FsResult)>,
    dirty: Vec<ConnectionKey>,
    closed: Vec<ConnectionKey>,
}

/// What serving a connection came to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Served {
    /// This many messages were handled; fewer than the budget, so nothing more is there now.
    Messages(usize),
    /// The budget was used up after this many messages; there may be more.
    Budget(usize),
    /// The connection is closed.
    Closed,
}

/// Sizes of chunks that are compared with each other, bytes.
const CHUNK_SIZES: [u64; 3] = [128 << 10, 256 << 10, 1 << 20];
/// Messages of the server's own accord that may wait on a connection beside its replies.
const CALLBACKS_MAX: usize = 16;
/// Credits more for a session whose operations take long, all of them in use.
const RAISE: u16 = 4;

/// Flushes of one connection in a row.
const FLUSHES_MAX: usize = 4;

/// Messages of one connection handled in a turn, so that a busy one cannot starve the others.
const MESSAGES_PER_TURN: usize = 32;

impl Server {
    /// A server that serves nobody yet.
    pub fn new(parts: Parts, now: Moment) -> Self {
        let exports = parts.exports.len();
        Self {
            buffers: BufferPool::new(parts.settings.buffers.clone()),
            domains: Vec::new(),
            settings: parts.settings,
            exports: parts.exports,
            fences: vec![Vec::new(); exports],
            access: parts.access,
            storage: parts.storage,
            randomness: parts.randomness,
            listeners: Vec::new(),
            connections: Slab::new(),
            sessions: SessionTable::default(),
            operations: Slab::new(),
            wakeups: VecDeque::new(),
            stats: Stats::new(exports),
            turns: Turns::default(),
            tuners: Vec::new(),
            stirred: Vec::new(),
            now,
            started: now,
            active_sessions: 1,
            draining: false,
            fence_drains: 0,
            park_count: 0,
            generation: 0,
            finished: Vec::new(),
            dirty: Vec::new(),
            closed: Vec::new(),
        }
    }

    /// Names a listener; its connections are added with the index returned.
    pub fn add_listener(&mut self, info: ListenerInfo) -> usize {
        let (usual, largest) = (info.pipelining.chunk_size, self.buffers.largest() as u64);
        let sizes: Vec<u64> = CHUNK_SIZES.into_iter().filter(|size| *size <= largest).collect();
        let sizes = if info.pipelining.is_set { Vec::new() } else { sizes };
        self.tuners.push(Tuner::new(usual.min(largest), &sizes));
        self.listeners.push(info);
        self.stats.pipelines.push([0; 2]);
        self.listeners.len() - 1
    }

    /// Takes an accepted connection over.
    pub fn add_connection(&mut self, listener: usize, endpoint: Box<dyn Endpoint>) -> ConnectionKey {
        self.generation += 1;
        let entry = self.connections.vacant_entry();
        let key = ConnectionKey { index: entry.key(), generation: self.generation };
        let address = self.listeners[listener].address.clone();
        entry.insert(Connection::new(key, endpoint, listener, address, self.now));
        key
    }

    /// A connection that is open.
    pub fn connection(&mut self, key: ConnectionKey) -> Option<&mut Connection> {
        self.connections.get_mut(key.index).filter(|connection| connection.key == key)
    }

    /// Asking a silent connection again at once is likely to pay.
    #[inline]
    pub(crate) fn spin_pays(&mut self, key: ConnectionKey) -> bool {
        self.connection(key).is_some_and(|connection| connection.endpoint.spin_pays())
    }

    /// Several connections send requests at about this time.
    #[inline]
    pub(crate) fn is_contended(&self) -> bool {
        self.turns.is_contended(self.now)
    }

    /// The time, for all that follows.
    pub fn set_now(&mut self, now: Moment) {
        self.now = now;
    }

    /// Handles what has arrived on a connection, and flushes what that led to.
    pub fn serve(&mut self, key: ConnectionKey) -> Served {
        let mut messages = 0;
        self.begin_turn(key);
        while messages < MESSAGES_PER_TURN && !self.turns.is_over() {
            let Some(connection) = self.connections.get_mut(key.index).filter(|c| c.key == key) else {
                return Served::Closed;
            };
            match connection.endpoint.recv() {
                Ok(None) => break,
                Ok(Some(Received::Message { head, payload_len })) => {
                    messages += 1;
                    self.turns.on_message(key, self.now);
                    self.turns.on_moved(payload_len as usize);
                    self.on_message(key, head.as_bytes(), payload_len);
                    self.check_outbox(key);
                    if !self.settings.batch_replies {
                        self.flush(key);
                    }
                }
                Ok(Some(Received::Immediate { data, size })) => {
                    messages += 1;
                    self.turns.on_message(key, self.now);
                    self.turns.on_moved(size as usize);
                    self.on_lane_frame(key, data, size);
                    self.check_outbox(key);
                    if !self.settings.batch_replies {
                        self.flush(key);
                    }
                }
                Err(error) => self.close(key, &error),
            }
        }
        if messages == 0
            && let Some(connection) = self.connections.get(key.index).filter(|c| c.key == key)
            && connection.is_quiet()
        {
            return Served::Messages(0);
        }
        self.poll_rdma(key);
        self.run_wakeups();
        self.flush(key);
        // A buffer that this connection gave back may have moved another's transfer along.
        self.flush_dirty();
        match self.connections.get(key.index).filter(|c| c.key == key) {
            None => Served::Closed,
            Some(connection)
                if messages == MESSAGES_PER_TURN
                    || self.turns.is_over()
                    || !connection.runnable.is_empty() =>
            {
                Served::Budget(messages)
            }
            Some(_) => Served::Messages(messages),
        }
    }

    /// The turn of a connection begins: first with what did not fit into its last.
    #[inline]
    fn begin_turn(&mut self, key: ConnectionKey) {
        self.turns.begin(self.now);
        let contended = self.turns.is_contended(self.now);
        let Some(connection) = self.connections.get_mut(key.index).filter(|c| c.key == key) else { return };
        if connection.is_contended != contended {
            connection.is_contended = contended;
            connection.endpoint.set_turn(if contended { CONTENDED_SIZE } else { usize::MAX });
        }
        if !connection.runnable.is_empty() {
            self.run_transfers(key);
        }
    }

    /// Goes on with transfers that went out of their turn.
    fn run_transfers(&mut self, key: ConnectionKey) {
        while !self.turns.is_over() {
            let Some(token) = self.connection(key).and_then(|connection| connection.runnable.pop_front())
            else {
                return;
            };
            self.resume_transfer(token);
        }
    }

    /// A transfer has more to move than fits its turn.
    pub(crate) fn yield_transfer(&mut self, key: ConnectionKey, token: OpToken) {
        let Some(connection) = self.connection(key) else { return };
        connection.runnable.push_back(token);
        if connection.runnable.len() == 1 {
            self.stirred.push(key);
        }
    }

    /// Connections that have something to do in their next turn, whether they send anything or not.
    #[inline]
    pub(crate) fn take_stirred(&mut self) -> Option<ConnectionKey> {
        self.stirred.pop()
    }

    /// Ends the session of a client that sends requests and takes no replies: one that keeps to its credits never has
    /// more replies waiting than it has slots.
    #[inline]
    fn check_outbox(&mut self, key: ConnectionKey) {
        let waiting_max = usize::from(self.settings.slots_max) + CALLBACKS_MAX;
        if self.connection(key).is_some_and(|connection| connection.waiting() > waiting_max) {
            self.end_for_fault(key, "more requests than credits: replies are not taken");
        }
    }

    /// Collects what storage has finished and goes on with it. Returns how many operations that were.
    pub fn poll_storage(&mut self) -> usize {
        self.poll_storage_turn(usize::MAX)
    }

    /// The same, moving at most `transfers_max` reads and writes that waited for a disk.
    pub(crate) fn poll_storage_turn(&mut self, transfers_max: usize) -> usize {
        self.turns.begin(self.now);
        self.storage.set_turn(transfers_max);
        self.storage.flush();
        let mut finished = std::mem::take(&mut self.finished);
        self.storage.poll(&mut finished);
        let count = finished.len();
        for (token, result) in finished.drain(..) {
            self.on_storage(token, result);
        }
        self.finished = finished;
        if count > 0 {
            self.run_wakeups();
            self.storage.flush();
        }
        self.flush_dirty();
        count
    }

    /// Some connection was closed since [`Server::take_closed`].
    #[inline]
    pub fn has_closed(&self) -> bool {
        !self.closed.is_empty()
    }

    /// Connections that were closed since the last call, for the loop to forget.
    pub fn take_closed(&mut self) -> Vec<ConnectionKey> {
        std::mem::take(&mut self.closed)
    }

    /// Time passes: handshakes and sessions that are overdue end, fair shares follow. Called about ten times a second.
    pub fn on_tick(&mut self) {
        let (now, handshake) = (self.now, self.settings.handshake);
        let overdue: Vec<ConnectionKey> = self
            .connections
            .iter()
            .filter(|(_, c)| {
                matches!(c.phase, Phase::Connected | Phase::Greeted(_)) && now >= c.since.after(handshake)
            })
            .map(|(_, connection)| connection.key)
            .collect();
        for key in overdue {
            self.close(key, &"the handshake was not finished in time");
        }
        for session in self.sessions.expired(now, self.settings.lease) {
            tracing::info!(session = session.0, "session ended: no sign of life within the lease");
            self.end_session(session);
        }
        let active = self.sessions.iter().filter(|(_, session)| session.is_active(now)).count();
        self.active_sessions = u32::try_from(active).unwrap_or(u32::MAX).max(1);
        self.raise_credits();
        self.expect_fewer();
        self.tell_of_due_batches();
        self.resume_storage_waiters();
        self.flush_dirty();
    }

    /// Connections need not be ready for more messages than their clients may send.
    fn expect_fewer(&mut self) {
        for (_, session) in self.sessions.iter() {
            let connection = session.connection.and_then(|key| self.connections.get_mut(key.index));
            let limit = session.core.credits().limit();
            if let Some(connection) = connection.filter(|found| found.endpoint.messages_expected() > limit) {
                connection.endpoint.expect_messages(limit);
            }
        }
    }

    /// Tells active sessions whose share has grown since their last reply: one that waits for a slow operation has none coming.
    fn raise_credits(&mut self) {
        let now = self.now;
        let raised: Vec<_> = self
            .sessions
            .iter()
            .filter_map(|(key, session)| {
                let credits = session.core.credits();
                // A client whose every credit is in use can say no more that it would like others.
                let is_full = credits.executing() >= credits.limit();
                let wanted =
                    credits.wanted().max(if is_full { credits.limit().saturating_add(RAISE) } else { 0 });
                let target = self.credit_target(wanted, session.core.slots_max());
                // A client that has sent nothing since may not have read the last: its receives for callbacks are few.
                let heard = session.raised.is_none_or(|raised| session.last_heard >= raised);
                let grows = heard && session.is_active(now) && target > credits.limit();
                grows.then_some((key, session.connection?, target))
            })
            .collect();
        for (session, connection, target) in raised {
            // Behind replies that wait it would tell nothing new.
            let ready = self.connection(connection).filter(|connection| connection.sends_at_once());
            let Some(ready) = ready.map(|connection| connection.endpoint.expect_messages(target)) else {
                continue;
            };
            let Some(session) = self.sessions.find_mut(session) else { continue };
            session.raised = Some(now);
            let mut header = Header::callback(Opcode::CreditTarget, session.core.next_callback());
            header.credits = session.core.on_credit_target(target.min(ready));
            let mut head = [0; HEADER_SIZE];
            header.encode(&mut head);
            if let Some(connection) = self.connection(connection) {
                connection.send(&head, &[]);
                let key = connection.key;
                self.mark_dirty(key);
            }
        }
    }

    /// Stops taking sessions and tells the clients. Operations in flight finish, and requests of sessions that are there
    /// are served as long as the loop runs.
    pub fn drain(&mut self) {
        self.draining = true;
        let live: Vec<_> =
            self.sessions.iter().filter_map(|(key, session)| Some((key, session.connection?))).collect();
        for (session, connection) in live {
            self.notice(session, connection, NoticeKind::Draining, "the server is shutting down");
        }
        self.flush_dirty();
    }

    /// Operations in flight.
    pub fn in_flight(&self) -> usize {
        self.operations.len()
    }

    /// Some connection has output that its provider could not hand on yet. Looks at all of them.
    pub fn has_unsent(&self) -> bool {
        self.connections.iter().any(|(_, connection)| connection.wants_flush())
    }

    /// Bytes of transfer buffers that operations hold.
    pub fn buffers_lent(&self) -> usize {
        self.buffers.lent_size()
    }

    /// The transfer buffers: who has them, and what was counted.
    pub fn buffers(&self) -> &BufferPool {
        &self.buffers
    }

    /// Sessions.
    pub fn sessions(&self) -> usize {
        self.sessions.len()
    }

    /// Storage, for its event descriptors, and for simulations that crash it.
    pub fn storage(&mut self) -> &mut dyn Storage {
        &mut *self.storage
    }

    /// Takes the server apart, as a crash would; what storage keeps survives.
    pub fn into_storage(self) -> Box<dyn Storage> {
        self.storage
    }

    pub(crate) fn keys(&self) -> &dyn KeySource {
        &self.access
    }

    pub(crate) fn random<const N: usize>(&mut self) -> [u8; N] {
        let mut bytes = [0; N];
        (self.randomness)(&mut bytes);
        bytes
    }

    /// Marks a connection that has something to flush at the end of this turn.
    pub(crate) fn mark_dirty(&mut self, key: ConnectionKey) {
        if !self.dirty.contains(&key) {
            self.dirty.push(key);
        }
    }

    fn flush_dirty(&mut self) {
        while let Some(key) = self.dirty.pop() {
            self.poll_rdma(key);
            self.run_wakeups();
            self.flush(key);
            // Nobody may be about to serve it, and what a turn left of its output is no event.
            if self.connection(key).is_some_and(|connection| connection.wants_flush()) {
                self.stirred.push(key);
            }
        }
    }

    fn flush(&mut self, key: ConnectionKey) {
        for _ in 0..FLUSHES_MAX {
            if let Some(connection) = self.connection(key)
                && (connection.dirty || connection.wants_flush())
                && let Err(error) = connection.flush()
            {
                self.close(key, &error);
            }
            self.poll_rdma(key);
            // What has left makes room for more, which need not wait for the next turn.
            if !self.connection(key).is_some_and(|connection| connection.dirty) {
                return;
            }
        }
    }

    /// Completions of RDMA, and posts that found no room before.
    fn poll_rdma(&mut self, key: ConnectionKey) {
        if self
            .connection(key)
            .is_none_or(|connection| connection.rdma_pending == 0 && connection.post_waiters.is_empty())
        {
            return;
        }
        let mut freed = false;
        while let Some(connection) = self.connection(key) {
            let Some(completion) = connection.endpoint.poll_completion() else { break };
            freed = true;
            connection.rdma_pending = connection.rdma_pending.saturating_sub(1);
            self.on_rdma(completion.token, completion.result);
        }
        let Some(connection) = self.connection(key) else { return };
        if connection.post_waiters.is_empty() || (!freed && connection.endpoint.wants_flush()) {
            return;
        }
        for index in std::mem::take(&mut connection.post_waiters) {
            self.resume_post(index, key);
        }
    }

    /// Ends a connection. Its session waits for the client to come back.
    pub(crate) fn close(&mut self, key: ConnectionKey, why: &dyn std::fmt::Display) {
        self.end_lanes(key);
        let Some(connection) = self.connection(key) else { return };
        let phase = std::mem::replace(&mut connection.phase, Phase::Closed);
        connection.endpoint.close();
        let listener = connection.listener_address.clone();
        tracing::debug!(%listener, %why, "connection closed");
        drop(self.connections.remove(key.index));
        self.closed.push(key);
        if let Phase::Live(session) = phase {
            self.on_disconnected(session, key);
        }
    }

    /// Ends a connection and its session, because the client broke the protocol; says why while it still can.
    pub(crate) fn end_for_fault(&mut self, key: ConnectionKey, fault: impl std::fmt::Display) {
        self.stats.protocol_errors += 1;
        let Some(connection) = self.connection(key) else { return };
        let peer = connection.endpoint.capabilities().peer.address;
        tracing::warn!(listener = %connection.listener_address, ?peer, %fault, "protocol fault: session ended");
        if let Phase::Live(session) = connection.phase {
            self.notice(session, key, NoticeKind::ProtocolError, &fault.to_string());
            if let Some(connection) = self.connection(key) {
                // The session is over whether the notice arrives or not.
                let _: Result<(), TransportError> = connection.flush();
            }
            self.end_session(session);
        }
        self.close(key, &fault);
    }

    fn notice(&mut self, session: SessionKey, key: ConnectionKey, kind: NoticeKind, text: &str) {
        let Some(session) = self.sessions.find_mut(session) else { return };
        let mut header = Header::callback(Opcode::Notice, session.core.next_callback());
        let text = &text.as_bytes()[..text.len().min(512)];
        header.head_len += 4;
        header.payload_len = u32::try_from(text.len()).unwrap_or(0);
        let mut head = [0; 44];
        header.encode(&mut head);
        head[40..].copy_from_slice(&kind.value().to_le_bytes());
        if let Some(connection) = self.connection(key) {
            connection.send(&head, text);
            self.mark_dirty(key);
        }
    }

    /// Ends a session: handles are closed, operations in flight are forgotten once nothing holds their memory.
    pub(crate) fn end_session(&mut self, key: SessionKey) {
        let Some(mut session) = self.sessions.remove(key) else { return };
        for handle in session.handles.drain() {
            if !handle.is_root {
                self.storage.close(handle.node);
            }
        }
        self.forget_operations(key);
        self.buffers.end_session(key);
        self.wakeups.push_back(Wakeup::Buffer);
        if let Some(connection) = session.connection
            && let Some(connection) = self.connection(connection)
            && matches!(connection.phase, Phase::Live(live) if live == key)
        {
            let key = connection.key;
            connection.phase = Phase::Closed;
            self.close(key, &"its session ended");
        }
    }

    /// The status for new sessions while the server cannot take any.
    pub(crate) fn refusal(&self) -> Option<Status> {
        if self.draining {
            Some(Status::DRAINING)
        } else if self.sessions.len() >= self.settings.sessions_max {
            Some(Status::SERVER_FULL)
        } else {
            None
        }
    }
}
