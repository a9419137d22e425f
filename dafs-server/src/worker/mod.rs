//! The server without its loop: connections, sessions, operations in flight, and the rules that join them.
//!
//! [`Worker`] does no waiting and reads no clock: a driver (the event loop, or a simulation) tells it the time, hands
//! it accepted endpoints, and calls [`Worker::serve`] for connections where something may have happened and
//! [`Worker::poll_storage`] when storage has finished something.

pub mod buffers;
pub mod connection;
pub(crate) mod ending;
pub mod event_loop;
mod fencing;
pub(crate) mod flight;
mod handshake;
pub mod ids;
mod inbox;
pub(crate) mod requests;
pub(crate) mod sched;
mod serving;
pub mod session;
pub mod stats;
mod upkeep;

use std::collections::{BTreeMap, HashMap, VecDeque};
use std::hash::Hash;
use std::net::IpAddr;
use std::sync::Arc;
use std::time::Duration;

use dafs_proto::budget::{Charge, Owner};
use dafs_proto::session::Moment;
use dafs_proto::transport::util::{Waiting, gives_way};
use dafs_proto::transport::{Domain, Endpoint, OpToken, PeerIdentity, Reach};
use dafs_proto::wire::{Method, PipelineStatistics, SessionId};
use slab::Slab;

pub use self::serving::Served;
use crate::shared::mail::Resume;
use crate::shared::settings::ListenerInfo;
use crate::shared::{ServerState, WorkerId};
use crate::storage::{ExportId, FsResult, NodeId, Storage};
use crate::worker::buffers::BufferPool;
use crate::worker::connection::{Connection, Phase};
use crate::worker::flight::fencing::Fencing;
use crate::worker::flight::meeting::Meetings;
use crate::worker::flight::{Call, Wakeup};
use crate::worker::ids::{ConnectionKey, SessionKey};
use crate::worker::requests::work::Operation;
use crate::worker::sched::Turns;
use crate::worker::sched::costs::SieveCosts;
use crate::worker::sched::plans::Plans;
use crate::worker::session::SessionTable;
use crate::worker::stats::Stats;

/// The part of a server that belongs to one loop: its connections and its sessions.
pub struct Worker {
    pub(crate) shared: Arc<ServerState>,
    pub(crate) id: WorkerId,
    pub(crate) storage: Box<dyn Storage>,
    pub(crate) randomness: Randomness,
    pub(crate) listeners: Vec<ListenerInfo>,
    pub(crate) connections: Slab<Connection>,
    pub(crate) sessions: SessionTable,
    pub(crate) operations: Slab<Operation>,
    /// The links among them that wait for their turn: by chain, and there by place in it.
    pub(crate) links: HashMap<(SessionKey, u64), BTreeMap<u16, usize>>,
    pub(crate) buffers: BufferPool,
    /// Where the eager buffers of a listener's connections are registered.
    pub(crate) domains: Vec<Option<Arc<dyn Domain>>>,
    pub(crate) wakeups: VecDeque<Wakeup>,
    pub(crate) stats: Stats,
    pub(crate) turns: Turns,
    /// By listener.
    /// Of all listeners: what it learns about is storage.
    pub(crate) read_costs: SieveCosts,
    pub(crate) write_costs: SieveCosts,
    /// Reading ahead that storage has.
    pub(crate) read_aheads: usize,
    /// Connections whose transfers went out of a turn that was not their own.
    runnable: Vec<ConnectionKey>,
    /// When the first of the windows ends in which a batch gathers ends.
    pub(crate) window_end: Option<Moment>,
    pub(crate) now: Moment,
    pub(crate) started: Moment,
    /// Nobody has taken a lock of before a restart again since then; time in which nothing was read does not count.
    pub(crate) reclaims_since: Moment,
    /// How many were taken again by then.
    pub(crate) reclaims_seen: u64,
    pub(crate) active_sessions: u32,
    pub(crate) draining: bool,
    pub(crate) fencing: Fencing,
    /// Transfers that wait for others of their group.
    pub(crate) meetings: Meetings,
    pub(crate) plans: Plans,
    pub(crate) park_count: u32,
    generation: u64,
    finished: Vec<(OpToken, FsResult)>,
    /// What storage has finished, the next to go on with first.
    results: VecDeque<(OpToken, FsResult)>,
    dirty: Vec<ConnectionKey>,
    closed: Vec<ConnectionKey>,
    /// Closed, with RDMA on its way and a last message behind it: see [`Endpoint::lingers`].
    leaving: Vec<Box<dyn Endpoint>>,
    /// What sessions that ended had open, and is still to be closed, with the descriptors that it takes.
    pub(crate) closing: Vec<(NodeId, Charge)>,
    /// Sessions that have ended and may still have locks.
    pub(crate) unlocking: Vec<SessionId>,
    /// Whoever waited for the end of the time after a restart is served.
    pub(crate) serves_after_restart: bool,
    departures: Vec<(WorkerId, Box<Resume>)>,
    /// Whose turn it is to get a connection.
    deals: usize,
}

/// What a worker needs to begin.
pub struct Parts {
    /// What it shares with other workers.
    pub shared: Arc<ServerState>,
    /// Its place among them.
    pub id: WorkerId,
    /// The files.
    pub storage: Box<dyn Storage>,
    /// Random numbers.
    pub randomness: Randomness,
}

/// Where random numbers come from: the system, or a seed in simulations.
pub type Randomness = Box<dyn FnMut(&mut [u8]) + Send>;

/// A connection has this long for its handshake before it is closed for another of a peer that has as many.
const HANDSHAKE_AGE_MIN: Duration = Duration::from_millis(250);

/// Who goes of `count` that begin a session, where `max` may: from half of that on one that has had its time, of the peer that has most; at
/// the bound one of them that has not.
fn one_to_go<P: Copy, W: Copy + Eq + Hash>(
    begin: impl Iterator<Item = Waiting<P, W>> + Clone,
    count: usize,
    newcomer: W,
    max: usize,
) -> Option<P> {
    if count < max.div_ceil(2) {
        return None;
    }
    let (age_min, newcomer) =
        if count < max { (HANDSHAKE_AGE_MIN, None) } else { (Duration::ZERO, Some(newcomer)) };
    gives_way(begin, newcomer, age_min)
}

/// Whom a connection is counted for before its client has said who it is.
fn origin(peer: &PeerIdentity) -> (Option<IpAddr>, Option<u32>) {
    (peer.address.map(|address| address.ip()), peer.credentials.as_ref().map(|peer| peer.uid))
}

impl Worker {
    /// Makes a worker without connections.
    pub fn new(parts: Parts, now: Moment) -> Self {
        let shared = parts.shared;
        let transfer_size_max = usize::try_from(shared.settings.transfer_size_max).unwrap_or(usize::MAX);
        Self {
            buffers: BufferPool::new(shared.settings.buffers().part(|whole| shared.part_of(whole))),
            domains: Vec::new(),
            stats: Stats::new(shared.settings.exports.iter().map(|export| &*export.name)),
            shared,
            id: parts.id,
            storage: parts.storage,
            randomness: parts.randomness,
            listeners: Vec::new(),
            connections: Slab::new(),
            sessions: SessionTable::default(),
            operations: Slab::new(),
            links: HashMap::new(),
            wakeups: VecDeque::new(),
            turns: Turns::new(transfer_size_max),
            read_costs: SieveCosts::of_reads(),
            write_costs: SieveCosts::of_writes(),
            read_aheads: 0,
            runnable: Vec::new(),
            window_end: None,
            now,
            started: now,
            reclaims_since: now,
            reclaims_seen: 0,
            active_sessions: 1,
            draining: false,
            fencing: Fencing::default(),
            meetings: Meetings::default(),
            plans: Plans::default(),
            park_count: 0,
            generation: 0,
            finished: Vec::new(),
            results: VecDeque::new(),
            dirty: Vec::new(),
            closed: Vec::new(),
            leaving: Vec::new(),
            closing: Vec::new(),
            unlocking: Vec::new(),
            serves_after_restart: false,
            departures: Vec::new(),
            deals: 0,
        }
    }

    /// What it shares with the other workers.
    pub fn shared(&self) -> &Arc<ServerState> {
        &self.shared
    }

    /// Its place among the workers.
    pub fn id(&self) -> WorkerId {
        self.id
    }

    /// The worker that serves the next connection that this one accepts: each in turn.
    pub fn next_host(&mut self) -> WorkerId {
        let host = self.shared.workers().nth(self.deals).unwrap_or(self.id);
        self.deals = (self.deals + 1) % self.shared.workers().count();
        host
    }

    /// Adds a listener; its connections are added with the index that this returns.
    pub fn add_listener(&mut self, info: ListenerInfo) -> usize {
        self.stats.counted.pipelines.push(PipelineStatistics {
            listener: info.address.to_string(),
            chunk_size: info.pipelining.chunk_size.min(self.buffers.largest() as u64),
            depth: info.pipelining.depth as u64,
            ..PipelineStatistics::default()
        });
        self.listeners.push(info);
        self.listeners.len() - 1
    }

    /// Takes over an accepted connection.
    pub fn add_connection(&mut self, listener: usize, mut endpoint: Box<dyn Endpoint>) -> ConnectionKey {
        self.bound_handshakes(listener, &endpoint.capabilities().peer);
        // The client reaches what is lent to it, and nothing before.
        endpoint.open_memory(Reach::Own);
        self.generation += 1;
        let entry = self.connections.vacant_entry();
        let key = ConnectionKey { index: entry.key(), generation: self.generation };
        let address = self.listeners[listener].address.clone();
        let connection = entry.insert(Connection::new(key, endpoint, listener, address, self.now));
        connection.beginning = Some(self.shared.budgets.handshakes.count(&Owner::Unknown, 1));
        key
    }

    /// Makes room for one more connection that begins a session.
    fn bound_handshakes(&mut self, listener: usize, newcomer: &PeerIdentity) {
        let max = self.shared.part_of(self.shared.settings.limits.handshakes_max as usize).max(1);
        let without_session = |c: &&Connection| {
            c.listener == listener
                && matches!(c.phase, Phase::Connected | Phase::Greeted(_) | Phase::Introduced(_))
        };
        let begin = || self.connections.iter().map(|(_, connection)| connection).filter(without_session);
        let all = begin().map(|connection| Waiting {
            place: connection.key,
            whose: origin(&connection.endpoint.capabilities().peer),
            age: self.now.since(connection.since),
        });
        if let Some(gone) = one_to_go(all, begin().count(), origin(newcomer), max) {
            self.shared.budgets.handshakes.count_refused();
            self.close(gone, &"closed to make room: too many connections without a session");
        }
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

    /// The worker is contended: several clients want its time.
    #[inline]
    pub(crate) fn is_contended(&self) -> bool {
        self.turns.is_contended(self.now)
    }

    /// Sets the time, for all that follows.
    pub fn set_now(&mut self, now: Moment) {
        self.now = now;
    }

    /// The number of operations in flight.
    pub fn in_flight(&self) -> usize {
        self.operations.len()
    }

    /// Whether a connection has output that its provider could not send yet. Looks at all connections.
    pub fn has_unsent(&self) -> bool {
        self.connections.iter().any(|(_, connection)| connection.wants_flush()) || !self.leaving.is_empty()
    }

    /// Bytes of transfer buffers that operations hold.
    pub fn buffers_lent(&self) -> usize {
        self.buffers.lent_size()
    }

    /// The pool of transfer buffers.
    pub fn buffers(&self) -> &BufferPool {
        &self.buffers
    }

    /// The number of sessions.
    pub fn sessions(&self) -> usize {
        self.sessions.len()
    }

    /// Storage, for its event descriptors, and for simulations that crash it.
    pub fn storage(&mut self) -> &mut dyn Storage {
        &mut *self.storage
    }

    /// Data was read or written for a request.
    #[inline]
    pub(crate) fn count_moved(
        &mut self,
        call: &Call,
        writes: bool,
        export: ExportId,
        method: Method,
        bytes: usize,
    ) {
        if call.is_amended {
            // It was counted when it was answered first.
            return;
        }
        self.stats.on_moved(writes, usize::from(export.0), method, bytes);
        if let Some(session) = self.sessions.find_mut(call.session) {
            let ledger = &mut session.ledger;
            let counter = if writes { &mut ledger.bytes_written } else { &mut ledger.bytes_read };
            *counter += bytes as u64;
        }
    }

    pub(crate) fn random<const N: usize>(&mut self) -> [u8; N] {
        let mut bytes = [0; N];
        (self.randomness)(&mut bytes);
        bytes
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    // [LIMIT-6] [LIMIT-7]
    #[test]
    fn handshake_gives_way_after_its_time_or_without_room() {
        // Of ten that may, these many of 'a' and 'b', each a millisecond older than the one before it.
        let gone = |a: usize, b: usize, youngest: u64| {
            let whose = std::iter::repeat_n('a', a).chain(std::iter::repeat_n('b', b));
            let begin = whose.enumerate().map(|(place, whose)| Waiting {
                place,
                whose,
                age: Duration::from_millis(youngest + place as u64),
            });
            one_to_go(begin, a + b, 'b', 10)
        };
        assert_eq!(gone(4, 0, 1000), None, "below half of the bound");
        assert_eq!(gone(5, 0, 245), None, "all are young");
        assert_eq!(gone(5, 0, 246), Some(4), "the oldest has had its time");
        assert_eq!(gone(4, 3, 1000), Some(3), "the oldest of whoever has most");
        assert_eq!(gone(6, 3, 0), None);
        assert_eq!(gone(6, 4, 0), Some(5), "there is no room");
    }
}
