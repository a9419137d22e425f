//! The whole simulated network: clock, events, nodes, regions, connections.

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::fmt::Write as _;

use super::NodeId;
use super::connection::{Arrived, Connection, End, Link, Packet, Side, Source, Way};
use super::gather::{gather, scatter};
use super::plan::{FaultPlan, Random};
use super::trace::{Counters, Trace};
use crate::transport::{
    Access, ConnectParams, MemoryRef, PeerFault, RegionFault, RegionKey, RemoteRange, TransportError,
};

/// Regions of one domain.
pub(super) const REGIONS_MAX: usize = 1 << 16;
/// Connections that a listener has not yet accepted.
const BACKLOG_MAX: usize = 128;

#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct DomainId(pub(super) u64);

pub(super) struct SimWorld {
    seed: u64,
    plan: FaultPlan,
    random: Random,
    now_ns: u64,
    /// By time, then by order of scheduling.
    events: BTreeMap<(u64, u64), Event>,
    /// For domains, connections, operations and events alike; never reused.
    next_id: u64,
    pub(super) connections: BTreeMap<u64, Connection>,
    domains: BTreeMap<DomainId, DomainState>,
    pub(super) listeners: BTreeMap<u32, ListenerState>,
    /// Pairs in ascending order.
    partitions: BTreeSet<(NodeId, NodeId)>,
    held: Vec<((NodeId, NodeId), Event)>,
    packets_left: u64,
    trace: Trace,
    pub(super) counters: Counters,
}

struct DomainState {
    node: NodeId,
    crashed: bool,
    regions: BTreeMap<RegionKey, (MemoryRef, Access)>,
}

pub(super) struct ListenerState {
    pub(super) domain: DomainId,
    pub(super) params: ConnectParams,
    pub(super) backlog: VecDeque<u64>,
}

enum Event {
    /// The first packet that left this side arrives.
    Arrive(Link),
    /// A read's data comes back to this side.
    ReadReturn {
        link: Link,
        op: u64,
        data: Vec<u8>,
    },
    /// This side's operation is acknowledged.
    Acknowledge {
        link: Link,
        op: u64,
    },
    /// This side's operation was refused by the peer's memory, which ends the connection.
    Refuse {
        link: Link,
        op: Option<u64>,
        fault: PeerFault,
    },
    /// This side notices that the connection is over.
    Finish {
        link: Link,
        end: End,
    },
    /// This side may post again.
    Room(Link),
    Wake,
}

impl Event {
    fn link(&self) -> Option<Link> {
        match self {
            Self::Arrive(link) | Self::Room(link) => Some(*link),
            Self::ReadReturn { link, .. }
            | Self::Acknowledge { link, .. }
            | Self::Refuse { link, .. }
            | Self::Finish { link, .. } => Some(*link),
            Self::Wake => None,
        }
    }
}

impl SimWorld {
    pub(super) fn new(seed: u64, plan: FaultPlan) -> Self {
        Self {
            seed,
            plan,
            random: Random::new(seed),
            now_ns: 0,
            events: BTreeMap::new(),
            next_id: 0,
            connections: BTreeMap::new(),
            domains: BTreeMap::new(),
            listeners: BTreeMap::new(),
            partitions: BTreeSet::new(),
            held: Vec::new(),
            packets_left: 0,
            trace: Trace::default(),
            counters: Counters::default(),
        }
    }

    pub(super) fn now_ns(&self) -> u64 {
        self.now_ns
    }

    pub(super) fn plan(&self) -> &FaultPlan {
        &self.plan
    }

    pub(super) fn set_plan(&mut self, plan: FaultPlan) {
        self.plan = plan;
    }

    pub(super) fn next_event_ns(&self) -> Option<u64> {
        self.events.first_key_value().map(|(&(at_ns, _), _)| at_ns)
    }

    pub(super) fn advance_to(&mut self, until_ns: u64) {
        while let Some(entry) = self.events.first_entry().filter(|entry| entry.key().0 <= until_ns) {
            let ((at_ns, _), event) = entry.remove_entry();
            self.now_ns = self.now_ns.max(at_ns);
            self.handle(event);
        }
        self.now_ns = self.now_ns.max(until_ns);
    }

    /// There is something on this side of a connection that a waiting caller wants to know.
    pub(super) fn has_news(&mut self, link: Link) -> bool {
        self.side(link).is_none_or(|side| {
            !side.inbox.is_empty() || !side.completions.is_empty() || side.room || side.end.is_some()
        })
    }

    pub(super) fn schedule_wake(&mut self, at_ns: u64) {
        self.schedule(at_ns.max(self.now_ns), Event::Wake);
    }

    pub(super) fn report(&self) -> String {
        let mut text = String::new();
        let _ = writeln!(text, "simulated network, seed {}, at {} ns", self.seed, self.now_ns);
        let _ = writeln!(text, "plan {:?}\n{:?}\n{}", self.plan, self.counters, self.trace);
        text
    }

    pub(super) fn note(&mut self, subject: u64, what: &'static str, detail: u64) {
        self.trace.add(self.now_ns, subject, what, detail);
    }

    pub(super) fn new_id(&mut self) -> u64 {
        self.next_id += 1;
        self.next_id
    }

    pub(super) fn chance(&mut self, ppm: u32) -> bool {
        self.random.chance(ppm)
    }

    /// How long something of `size` bytes travels.
    pub(super) fn delay_ns(&mut self, size: u64) -> u64 {
        let spread = self.plan.delay_max_ns.saturating_sub(self.plan.delay_min_ns);
        let stall = if self.random.chance(self.plan.stall_ppm) { self.plan.stall_ns } else { 0 };
        self.plan.delay_min_ns
            + self.random.below(spread + 1)
            + size.saturating_mul(self.plan.delay_per_kib_ns) / 1024
            + stall
    }

    // Nodes and memory.

    pub(super) fn add_domain(&mut self, node: NodeId) -> DomainId {
        let id = DomainId(self.new_id());
        self.domains.insert(id, DomainState { node, crashed: false, regions: BTreeMap::new() });
        id
    }

    pub(super) fn remove_domain(&mut self, domain: DomainId) {
        self.domains.remove(&domain);
    }

    pub(super) fn node(&self, domain: DomainId) -> Option<NodeId> {
        self.domains.get(&domain).filter(|domain| !domain.crashed).map(|domain| domain.node)
    }

    pub(super) fn regions_len(&self, domain: DomainId) -> usize {
        self.domains.get(&domain).map_or(0, |domain| domain.regions.len())
    }

    pub(super) fn add_region(&mut self, domain: DomainId, memory: MemoryRef, access: Access) -> RegionKey {
        let key = RegionKey(self.random.number());
        if let Some(domain) = self.domains.get_mut(&domain).filter(|domain| !domain.crashed) {
            domain.regions.insert(key, (memory, access));
        }
        key
    }

    /// The memory is handed back so that it is freed outside the lock.
    pub(super) fn remove_region(&mut self, domain: DomainId, key: RegionKey) -> Option<MemoryRef> {
        self.domains.get_mut(&domain)?.regions.remove(&key).map(|(memory, _)| memory)
    }

    /// A range of the memory registered in a domain.
    pub(super) fn reach(
        &self,
        domain: DomainId,
        range: &RemoteRange,
        access: Access,
    ) -> Result<MemoryRef, RegionFault> {
        let unknown = RegionFault::UnknownKey(range.key);
        let domain = self.domains.get(&domain).ok_or(unknown.clone())?;
        let (memory, rights) = domain.regions.get(&range.key).ok_or(unknown.clone())?;
        range.check_bounds(memory.len() as u64)?;
        if !rights.contains(access) {
            let access = if access.contains(Access::REMOTE_WRITE) { "remote writes" } else { "remote reads" };
            return Err(RegionFault::Access { key: range.key, access });
        }
        let part = usize::try_from(range.offset).ok().zip(usize::try_from(range.len).ok());
        part.and_then(|(offset, len)| memory.slice(offset, len)).ok_or(unknown)
    }

    // Connections.

    /// A connection to the listener on `port`, put in its backlog; `None` when nobody listens there or the backlog is full.
    pub(super) fn add_connection(&mut self, from: DomainId, params: ConnectParams, port: u32) -> Option<u64> {
        let from_node = self.node(from)?;
        let listener = self.listeners.get(&port).filter(|listener| listener.backlog.len() < BACKLOG_MAX)?;
        let (to, to_params) = (listener.domain, listener.params);
        let to_node = self.node(to)?;
        let id = self.new_id();
        let connection = Connection {
            nodes: [from_node, to_node],
            sides: [Side::new(from, params), Side::new(to, to_params)],
            ways: [Way::default(), Way::default()],
            cut: false,
        };
        self.connections.insert(id, connection);
        self.listeners.get_mut(&port)?.backlog.push_back(id);
        self.counters.connections += 1;
        self.note(id, "connected to port", u64::from(port));
        Some(id)
    }

    pub(super) fn side(&mut self, link: Link) -> Option<&mut Side> {
        Some(&mut self.connections.get_mut(&link.connection)?.sides[link.side])
    }

    /// What was posted leaves.
    pub(super) fn flush(&mut self, link: Link) {
        while let Some(packet) = self.side(link).and_then(|side| side.outbox.pop_front()) {
            self.leave(link, packet);
        }
    }

    fn leave(&mut self, link: Link, packet: Packet) {
        let count = self.packets_left;
        self.packets_left += 1;
        self.counters.packets_sent += 1;
        self.note(
            link.connection,
            if link.side == 0 { "leaves connector:" } else { "leaves acceptor:" },
            count,
        );
        self.note(link.connection, packet.name(), packet.size());
        let delay_ns = self.delay_ns(packet.size());
        let now_ns = self.now_ns;
        let Some(connection) = self.connections.get_mut(&link.connection) else { return };
        if connection.cut {
            self.counters.packets_lost += 1;
            return;
        }
        let way = &mut connection.ways[link.side];
        way.last_at_ns = way.last_at_ns.max(now_ns + delay_ns);
        way.packets.push_back(packet);
        let at_ns = way.last_at_ns;
        self.schedule(at_ns, Event::Arrive(link));
        let cut_ppm = self.plan.cut_ppm;
        if self.plan.cut_at_packet == Some(count) || self.chance(cut_ppm) {
            self.cut_connection(link.connection);
        }
    }

    /// This side closes: it is over at once, the peer learns it after everything that has left.
    pub(super) fn close(&mut self, link: Link) {
        let Some(side) = self.side(link).filter(|side| !side.closed) else { return };
        side.closed = true;
        let already_over = side.end.is_some();
        self.copy_writes_on_their_way(link);
        if let Some(side) = self.side(link) {
            side.finish(End::Closed);
            side.inbox.clear();
        }
        self.note(link.connection, "closed by side", link.side as u64);
        if !already_over {
            self.leave(link, Packet::Close);
        }
    }

    /// This side's endpoint is gone. What is on its way to the other side still arrives.
    pub(super) fn release(&mut self, link: Link) {
        self.close(link);
        let Some(connection) = self.connections.get_mut(&link.connection) else { return };
        connection.sides[link.side].released = true;
        if connection.sides.iter().all(|side| side.released) {
            self.connections.remove(&link.connection);
        }
    }

    /// The memory of the operations of a side that is over is its owner's again, yet their data may still arrive.
    fn copy_writes_on_their_way(&mut self, link: Link) {
        let Some(connection) = self.connections.get_mut(&link.connection) else { return };
        let ops = &connection.sides[link.side].ops;
        for packet in &mut connection.ways[link.side].packets {
            if let Packet::Write { source: source @ Source::Op(_), .. } = packet
                && let Source::Op(id) = source
                && let Some(Ok(bytes)) = ops.get(id).map(|op| gather(&op.local))
            {
                *source = Source::Copied(bytes);
            }
        }
    }

    // Faults.

    pub(super) fn cut_between(&mut self, a: NodeId, b: NodeId) {
        let pair = pair(a, b);
        let hit: Vec<u64> = self
            .connections
            .iter()
            .filter(|(_, connection)| pair == self::pair(connection.nodes[0], connection.nodes[1]))
            .map(|(&id, _)| id)
            .collect();
        hit.into_iter().for_each(|id| self.cut_connection(id));
    }

    fn cut_connection(&mut self, id: u64) {
        if self.connections.get(&id).is_none_or(|connection| connection.cut) {
            return;
        }
        self.counters.cuts += 1;
        self.note(id, "cut", 0);
        for side in 0..2 {
            let link = Link { connection: id, side };
            self.lose_tail(link);
            let delay_ns = self.delay_ns(0);
            let Some(connection) = self.connections.get_mut(&id) else { return };
            connection.cut = true;
            // After the packets that still reach this side.
            let at_ns = connection.ways[1 - side].last_at_ns.max(self.now_ns + delay_ns);
            self.schedule(at_ns, Event::Finish { link, end: End::Reset });
        }
    }

    /// A random part of what left this side, from some packet on, never arrives.
    fn lose_tail(&mut self, link: Link) {
        let Some(connection) = self.connections.get_mut(&link.connection) else { return };
        let packets = &mut connection.ways[link.side].packets;
        let kept = self.random.index(packets.len() + 1);
        self.counters.packets_lost += (packets.len() - kept) as u64;
        packets.truncate(kept);
    }

    pub(super) fn partition(&mut self, a: NodeId, b: NodeId) {
        self.note(u64::from(a.0), "partitioned from node", u64::from(b.0));
        self.partitions.insert(pair(a, b));
    }

    pub(super) fn partitioned(&self, a: NodeId, b: NodeId) -> bool {
        self.partitions.contains(&pair(a, b))
    }

    pub(super) fn heal(&mut self, a: NodeId, b: NodeId) {
        self.note(u64::from(a.0), "healed with node", u64::from(b.0));
        self.partitions.remove(&pair(a, b));
        let at_ns = self.now_ns + self.plan.delay_min_ns;
        for (held_pair, event) in std::mem::take(&mut self.held) {
            match held_pair == pair(a, b) {
                // Scheduling keeps the order of equal times.
                true => self.schedule(at_ns, event),
                false => self.held.push((held_pair, event)),
            }
        }
    }

    pub(super) fn crash(&mut self, node: NodeId) {
        self.note(u64::from(node.0), "node crashes", 0);
        for domain in self.domains.values_mut().filter(|domain| domain.node == node) {
            domain.crashed = true;
            domain.regions.clear();
        }
        let domains = &self.domains;
        self.listeners
            .retain(|_, listener| domains.get(&listener.domain).is_some_and(|domain| !domain.crashed));
        let hit: Vec<Link> = self
            .connections
            .iter()
            .flat_map(|(&connection, state)| {
                [0, 1]
                    .into_iter()
                    .filter(|&side| state.nodes[side] == node)
                    .map(move |side| Link { connection, side })
            })
            .collect();
        for link in hit {
            self.copy_writes_on_their_way(link);
            if let Some(side) = self.side(link) {
                side.finish(End::Crashed);
                side.inbox.clear();
            }
            self.cut_connection(link.connection);
        }
    }

    // Events.

    fn schedule(&mut self, at_ns: u64, event: Event) {
        let id = self.new_id();
        self.events.insert((at_ns, id), event);
    }

    pub(super) fn schedule_room(&mut self, link: Link) {
        let at_ns = self.now_ns + self.delay_ns(0);
        self.schedule(at_ns, Event::Room(link));
    }

    fn handle(&mut self, event: Event) {
        let Some(link) = event.link() else { return };
        let Some(connection) = self.connections.get(&link.connection) else { return };
        let pair = pair(connection.nodes[0], connection.nodes[1]);
        if self.partitions.contains(&pair) {
            self.held.push((pair, event));
            return;
        }
        let cut = connection.cut;
        match event {
            Event::Arrive(link) => self.arrive(link),
            Event::ReadReturn { link, op, data } => {
                if !cut || self.random.chance(500_000) {
                    self.return_read(link, op, &data);
                }
            }
            Event::Acknowledge { link, op } => {
                if !cut || self.random.chance(500_000) {
                    self.complete(link, op, Ok(()));
                }
            }
            Event::Refuse { link, op, fault } => {
                if let Some(op) = op {
                    self.complete(link, op, Err(TransportError::Peer(fault)));
                }
                self.finish(link, End::Closed);
            }
            Event::Finish { link, end } => {
                // The bytes that arrived before a reset may be gone with it.
                if matches!(end, End::Reset)
                    && self.random.chance(500_000)
                    && let Some(side) = self.side(link)
                {
                    side.inbox.clear();
                }
                self.finish(link, end);
            }
            Event::Room(link) => {
                if let Some(side) = self.side(link) {
                    side.room = true;
                }
            }
            Event::Wake => {}
        }
    }

    fn arrive(&mut self, from: Link) {
        let to = from.peer();
        let Some(connection) = self.connections.get_mut(&from.connection) else { return };
        let Some(packet) = connection.ways[from.side].packets.pop_front() else { return };
        let side = &mut connection.sides[to.side];
        if side.end.is_some() {
            self.counters.packets_lost += 1;
            return;
        }
        self.counters.packets_arrived += 1;
        self.trace.add(self.now_ns, from.connection, "arrives", packet.size());
        match packet {
            Packet::Message { head, payload } => side.inbox.push_back(Arrived::Message { head, payload }),
            Packet::Write { source, remote, immediate } => self.arrive_write(from, source, remote, immediate),
            Packet::Read { op } => self.arrive_read(from, op),
            Packet::Close => self.finish(to, End::Closed),
        }
    }

    fn arrive_write(&mut self, from: Link, source: Source, remote: RemoteRange, immediate: Option<u32>) {
        let op = match source {
            Source::Op(id) => Some(id),
            Source::Copied(_) => None,
        };
        let Some(connection) = self.connections.get(&from.connection) else { return };
        let bytes = match source {
            Source::Copied(bytes) => Ok(bytes),
            Source::Op(id) => match connection.sides[from.side].ops.get(&id) {
                Some(op) => gather(&op.local),
                None => return,
            },
        };
        let target = match self.reach(connection.sides[1 - from.side].domain, &remote, Access::REMOTE_WRITE) {
            Ok(target) => target,
            Err(fault) => return self.refuse(from, op, fault),
        };
        match bytes {
            Ok(bytes) => target.span().write_from(0, &bytes),
            // The sender's own memory: nothing was written, and nothing behind it arrives.
            Err(source) => {
                self.complete(
                    from,
                    op.unwrap_or(0),
                    Err(TransportError::system("read local memory", source)),
                );
                self.finish(from.peer(), End::Reset);
                return self.finish(from, End::Reset);
            }
        }
        self.counters.rdma_bytes += remote.len;
        if let Some(data) = immediate
            && let Some(side) = self.side(from.peer())
        {
            // Operations are bounded by `rdma_size_max`, which fits.
            let size = u32::try_from(remote.len).unwrap_or(u32::MAX);
            side.inbox.push_back(Arrived::Immediate { data, size });
        }
        if let Some(op) = op {
            let at_ns = self.now_ns + self.delay_ns(0);
            self.schedule(at_ns, Event::Acknowledge { link: from, op });
        }
    }

    fn arrive_read(&mut self, from: Link, op: u64) {
        let Some(connection) = self.connections.get(&from.connection) else { return };
        let Some(remote) = connection.sides[from.side].ops.get(&op).map(|op| op.remote) else { return };
        match self.reach(connection.sides[1 - from.side].domain, &remote, Access::REMOTE_READ) {
            Ok(memory) => {
                self.counters.reads_served += 1;
                let data = memory.span().to_vec();
                let at_ns = self.now_ns + self.delay_ns(remote.len);
                self.schedule(at_ns, Event::ReadReturn { link: from, op, data });
            }
            Err(fault) => self.refuse(from, Some(op), fault),
        }
    }

    fn return_read(&mut self, link: Link, op: u64, data: &[u8]) {
        let Some(side) = self.side(link) else { return };
        let Some(local) = side.ops.get(&op).map(|op| op.local.clone()) else { return };
        scatter(data, &local);
        self.counters.rdma_bytes += data.len() as u64;
        self.complete(link, op, Ok(()));
    }

    /// The owner of the memory ends the connection, and the offender is told why.
    fn refuse(&mut self, offender: Link, op: Option<u64>, fault: RegionFault) {
        self.counters.region_faults += 1;
        self.note(offender.connection, "region fault of side", offender.side as u64);
        let fault = PeerFault::Region(fault);
        let owner = offender.peer();
        self.finish(owner, End::Peer(fault.clone()));
        let delay_ns = self.delay_ns(0);
        let Some(connection) = self.connections.get(&offender.connection) else { return };
        let at_ns = connection.ways[owner.side].last_at_ns.max(self.now_ns + delay_ns);
        self.schedule(at_ns, Event::Refuse { link: offender, op, fault });
    }

    fn complete(&mut self, link: Link, op: u64, result: Result<(), TransportError>) {
        if let Some(side) = self.side(link) {
            side.complete(op, result);
        }
    }

    fn finish(&mut self, link: Link, end: End) {
        self.note(link.connection, "over for side", link.side as u64);
        // [PROV-12] A message that is behind a write may arrive yet: then so does the write.
        self.copy_writes_on_their_way(link);
        if let Some(side) = self.side(link) {
            side.finish(end);
        }
    }
}

fn pair(a: NodeId, b: NodeId) -> (NodeId, NodeId) {
    (a.min(b), a.max(b))
}
