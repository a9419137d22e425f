//! The server without its loop: parts that own connections, sessions, operations in flight and the loop's time, and the rooms that join
//! them. From top to bottom: [`event_loop`]; `serving`, what the loop calls; `intake`, where what comes from outside enters; `ops`
//! beside this room; `requests`, what every operation needs; the parts.
//!
//! [`Worker`] does no waiting and reads no clock: a driver (the event loop, or a simulation) tells it the time, hands
//! it accepted endpoints, and calls [`Worker::serve`] for connections where something may have happened and
//! [`Worker::poll_storage`] when storage has finished something.

pub mod buffers;
pub mod connections;
pub mod event_loop;
pub(crate) mod flight;
pub mod ids;
mod intake;
mod lifetime;
pub(crate) mod operations;
pub(crate) mod requests;
pub(crate) mod sched;
mod serving;
pub mod sessions;
pub mod stats;

use std::os::fd::RawFd;
use std::sync::Arc;

use dafs_proto::session::Moment;
use dafs_proto::transport::Domain;
use dafs_proto::wire::{Method, PipelineStatistics, Statistics};

use crate::shared::settings::ListenerInfo;
use crate::shared::{ServerState, WorkerId};
use crate::storage::{ExportId, Storage};
use crate::worker::buffers::BufferPool;
use crate::worker::connections::Connections;
use crate::worker::connections::connection::Connection;
use crate::worker::flight::Call;
use crate::worker::flight::meeting::Meetings;
use crate::worker::ids::ConnectionKey;
use crate::worker::lifetime::Lifetime;
use crate::worker::operations::Operations;
use crate::worker::sched::Scheduler;
use crate::worker::sessions::Sessions;
use crate::worker::stats::Stats;

/// The part of a server that belongs to one loop. Each of its parts has its state for itself; what joins several of them is done in the
/// rooms above.
pub struct Worker {
    /// What it shares with the others.
    pub(crate) shared: Arc<ServerState>,
    pub(crate) id: WorkerId,
    pub(crate) storage: Box<dyn Storage>,
    pub(crate) randomness: Randomness,
    pub(crate) now: Moment,
    pub(crate) lifetime: Lifetime,
    pub(crate) connections: Connections,
    pub(crate) sessions: Sessions,
    pub(crate) operations: Operations,
    pub(crate) sched: Scheduler,
    /// Memory that transfers pass through.
    pub(crate) buffers: BufferPool,
    pub(crate) stats: Stats,
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
    /// Transfers of all workers that wait for others of their group.
    pub meetings: Arc<Meetings>,
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

/// Where random numbers come from: the system, or a seed in simulations.
pub type Randomness = Box<dyn FnMut(&mut [u8]) + Send>;

impl Worker {
    /// Makes a worker without connections.
    pub fn new(parts: Parts, now: Moment) -> Self {
        let shared = parts.shared;
        let transfer_size_max = usize::try_from(shared.settings.transfer_size_max).unwrap_or(usize::MAX);
        Self {
            buffers: BufferPool::new(shared.settings.buffers().part(|whole| shared.part_of(whole))),
            stats: Stats::new(shared.settings.exports.iter().map(|export| &*export.name)),
            shared,
            id: parts.id,
            storage: parts.storage,
            randomness: parts.randomness,
            now,
            lifetime: Lifetime::new(now),
            connections: Connections::default(),
            sessions: Sessions::default(),
            operations: Operations::new(parts.meetings),
            sched: Scheduler::new(transfer_size_max),
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

    /// The worker that serves the next connection that this one accepts: the least busy one.
    pub fn next_host(&mut self) -> WorkerId {
        let turn = self.connections.next_turn(self.shared.workers().count());
        self.shared.deal(turn)
    }

    /// Adds a listener; its connections are added with the index that this returns.
    pub fn add_listener(&mut self, info: ListenerInfo) -> usize {
        self.stats.counted.pipelines.push(PipelineStatistics {
            listener: info.address.to_string(),
            chunk_size: info.pipelining.chunk_size.min(self.buffers.largest() as u64),
            depth: info.pipelining.depth as u64,
            ..PipelineStatistics::default()
        });
        self.connections.add_listener(info)
    }

    /// Connections of a listener may have eager buffers, registered in its domain.
    pub fn offer_eager_buffers(&mut self, listener: usize, domain: Arc<dyn Domain>) {
        self.connections.offer_eager_buffers(listener, domain);
    }

    /// A connection that is open.
    pub fn connection(&mut self, key: ConnectionKey) -> Option<&mut Connection> {
        self.connections.find_mut(key)
    }

    /// Some connection was closed since [`Worker::take_closed`].
    #[inline]
    pub fn has_closed(&self) -> bool {
        self.connections.has_closed()
    }

    /// Connections that were closed since the last call, for the loop to forget.
    pub fn take_closed(&mut self) -> Vec<ConnectionKey> {
        self.connections.take_closed()
    }

    /// Hands connections on that another worker is to serve. The loop that served them stops to watch their descriptors first.
    pub fn send_departures(&mut self, unwatch: impl FnMut(RawFd)) {
        self.connections.send_departures(&self.shared, unwatch);
    }

    /// Connections that have something to do in their next turn, whether they send anything or not.
    #[inline]
    pub(crate) fn take_runnable(&mut self) -> Option<ConnectionKey> {
        self.connections.take_runnable()
    }

    /// Asking a silent connection again at once is likely to pay.
    #[inline]
    pub(crate) fn spin_pays(&mut self, key: ConnectionKey) -> bool {
        self.connections.find(key).is_some_and(|connection| connection.endpoint.spin_pays())
    }

    /// When a batch's next window ends, or somebody has waited long enough for others of a group: a time to look at them
    /// (`end_windows`).
    pub fn window_end(&self) -> Option<Moment> {
        self.operations.window_end()
    }

    /// The worker is contended: several clients want its time.
    #[inline]
    pub(crate) fn is_contended(&self) -> bool {
        self.sched.is_contended(self.now)
    }

    /// Sets the time, for all that follows.
    pub fn set_now(&mut self, now: Moment) {
        self.now = now;
    }

    /// The number of operations in flight.
    pub fn in_flight(&self) -> usize {
        self.operations.len()
    }

    /// Operations that were ever parked, modulo 2³².
    pub(crate) fn parked(&self) -> u32 {
        self.operations.last_number()
    }

    /// An operation is in flight that ends by itself.
    pub fn has_unfinished(&self) -> bool {
        self.operations.have_unfinished()
    }

    /// Whether a connection has output that its provider could not send yet. Looks at all connections.
    pub fn has_unsent(&self) -> bool {
        self.connections.has_unsent()
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

    /// The server's counters: this worker's now, those of others as of their last tick.
    pub fn statistics(&self) -> Statistics {
        self.shared.statistics(self.id, self.own_statistics())
    }

    /// The counters of each worker by itself: this worker's now, those of others as of their last tick.
    pub fn statistics_of_each(&self) -> Vec<Statistics> {
        self.shared.statistics_of_each(self.id, self.own_statistics())
    }

    /// The worker's counters now.
    pub(crate) fn own_statistics(&self) -> Statistics {
        let millis = self.lifetime.uptime(self.now).as_millis();
        Statistics {
            uptime_ms: u64::try_from(millis).unwrap_or(u64::MAX),
            sessions: self.sessions.len() as u64,
            connections: self.connections.len() as u64,
            in_flight: self.operations.len() as u64,
            handles: self.sessions.iter().map(|(_, session)| session.handles.count() as u64).sum(),
            eager_buffers_size: self.buffers.eager_buffers_size() as u64,
            zones: self.buffers.statistics(),
            ..self.stats.statistics()
        }
    }

    /// Shows the others how many sessions and connections there are now, and what was counted.
    pub(crate) fn publish(&self) {
        if self.shared.has_others() {
            self.shared.publish(self.id, self.own_statistics());
        }
    }

    pub(crate) fn random<const N: usize>(&mut self) -> [u8; N] {
        let mut bytes = [0; N];
        (self.randomness)(&mut bytes);
        bytes
    }
}
