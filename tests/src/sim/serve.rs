//! The real server on a simulated network, stepped by whoever owns the network's time.

use std::sync::Arc;
use std::time::Duration;

use dafs_proto::session::Moment;
use dafs_proto::transport::sim::{NodeId, SimNet};
use dafs_proto::transport::{Address, ConnectParams, Domain, Listener};
use dafs_proto::wire::{Crossovers, GatherSwitches, Thresholds};
use dafs_server::ids::ConnectionKey;
use dafs_server::server::{ListenerInfo, Parts, Pipelining, Served, Server};

use super::World;
use super::script::Script;

const TICK: Duration = Duration::from_millis(100);

/// A server with one listener, and the connections that it accepted.
pub(crate) struct SimServer {
    pub(crate) server: Server,
    listener: Box<dyn Listener>,
    connections: Vec<ConnectionKey>,
    next_tick: Duration,
    script: Option<Script>,
}

/// Inline up to 16 KiB; Direct pays from 4 KiB, so that small requests reach both methods.
pub(crate) fn thresholds() -> Thresholds {
    let crossover = 4096;
    Thresholds {
        read_inline_max: 16 * 1024,
        write_inline_max: 16 * 1024,
        crossovers: Crossovers {
            read_registered: crossover,
            read_unregistered: crossover,
            write_registered: crossover,
            write_unregistered: crossover,
        },
    }
}

impl SimServer {
    /// A server that listens at `address` on a node of the network.
    pub(crate) fn start(
        net: &SimNet,
        node: NodeId,
        address: &Address,
        params: &ConnectParams,
        parts: Parts,
    ) -> Self {
        let mut server = Server::new(parts, Moment::default().after(net.now()));
        let domain = net.domain(node);
        let listener = domain.listen(address, params).expect("the port is free");
        // Both halves of the hybrid method come up.
        let switch = 128;
        let gather = Some(GatherSwitches {
            read_registered: switch,
            read_unregistered: switch,
            write_registered: switch,
            write_unregistered: switch,
        });
        let index = server.add_listener(ListenerInfo {
            address: address.clone(),
            thresholds: thresholds(),
            gather,
            pipelining: Pipelining::default(),
        });
        server.offer_lanes(index, Arc::new(domain));
        Self { server, listener, connections: Vec::new(), next_tick: net.now(), script: None }
    }

    /// Connections from now on get their requests as the script has it.
    pub(super) fn follow(&mut self, script: Script) {
        self.script = Some(script);
    }

    /// Handles all that is there now; the network wakes for the next tick.
    pub(crate) fn step(&mut self, net: &SimNet) {
        self.server.set_now(Moment::default().after(net.now()));
        while let Some(endpoint) = self.listener.accept().expect("a simulated listener does not fail") {
            let is_seen = endpoint.capabilities().peer.address != Some(World::BESIDE.address());
            let endpoint = match &self.script {
                Some(script) if is_seen => script.wrap(endpoint),
                _ => endpoint,
            };
            self.connections.push(self.server.add_connection(0, endpoint));
        }
        let server = &mut self.server;
        self.connections.retain(|key| {
            loop {
                match server.serve(*key) {
                    Served::Budget(_) => {}
                    Served::Messages(_) => break true,
                    Served::Closed => break false,
                }
            }
        });
        server.poll_storage();
        let closed = server.take_closed();
        self.connections.retain(|key| !closed.contains(key));
        if net.now() >= self.next_tick {
            server.on_tick();
            self.listener.expire_handshakes();
            self.next_tick = net.now() + TICK;
        }
        let now = Moment::default().after(net.now());
        if server.window_end().is_some_and(|end| now >= end) {
            server.end_windows();
        }
        let until_window = server.window_end().map(|end| net.now() + end.since(now));
        net.wake_at(until_window.map_or(self.next_tick, |end| end.min(self.next_tick)));
    }
}
