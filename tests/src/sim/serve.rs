//! The real server on a simulated network, stepped by whoever owns the network's time.

use std::sync::Arc;
use std::time::Duration;

use dafs_proto::session::Moment;
use dafs_proto::transport::sim::{NodeId, SimNet};
use dafs_proto::transport::{Address, ConnectParams, Domain, Endpoint, Listener};
use dafs_proto::wire::{Crossovers, GatherSwitches, Statistics, Thresholds};
use dafs_server::shared::settings::{ListenerInfo, Pipelining};
use dafs_server::worker::ids::ConnectionKey;
use dafs_server::worker::{Parts, Served as Outcome, Worker};

use super::World;
use super::script::Script;

const TICK: Duration = Duration::from_millis(100);

/// A server with its listeners, and the connections that its workers serve.
pub(crate) struct SimServer {
    workers: Vec<Served>,
    /// By port.
    listeners: Vec<(u32, Box<dyn Listener>)>,
    next_tick: Duration,
    script: Option<Script>,
}

/// A worker and its connections.
struct Served {
    worker: Worker,
    connections: Vec<ConnectionKey>,
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
    /// A server that listens at ports of the network on a node of it, with as many workers as there are parts.
    pub(crate) fn start(
        net: &SimNet,
        node: NodeId,
        ports: &[u32],
        params: &ConnectParams,
        parts: Vec<Parts>,
    ) -> Self {
        let domain = net.domain(node);
        let listener =
            |port: &u32| (*port, domain.listen(&Address::Sim(*port), params).expect("the port is free"));
        let listeners = ports.iter().map(listener).collect();
        // Both halves of the hybrid method come up.
        let switch = 128;
        let gather = Some(GatherSwitches {
            read_registered: switch,
            read_unregistered: switch,
            write_registered: switch,
            write_unregistered: switch,
        });
        let info = ListenerInfo {
            address: Address::Sim(ports[0]),
            thresholds: thresholds(),
            gather,
            pipelining: Pipelining::default(),
        };
        let domain: Arc<dyn Domain> = Arc::new(domain);
        let workers = parts.into_iter().map(|parts| {
            let mut worker = Worker::new(parts, Moment::default().after(net.now()));
            let index = worker.add_listener(info.clone());
            worker.offer_eager_buffers(index, Arc::clone(&domain));
            Served { worker, connections: Vec::new() }
        });
        Self { workers: workers.collect(), listeners, next_tick: net.now(), script: None }
    }

    /// Connections from now on get their requests as the script has it.
    pub(super) fn follow(&mut self, script: Script) {
        self.script = Some(script);
    }

    /// It dies: what it keeps in files of this machine is closed, so that the next can open them.
    pub(super) fn close_files(&self) {
        self.workers[0].worker.shared().close();
    }

    /// It takes no more clients, and tells those that it has to go elsewhere.
    pub(super) fn drain(&mut self) {
        self.listeners.clear();
        self.workers.iter_mut().for_each(|served| served.worker.drain());
    }

    /// Lets clients go that have nothing under way; whether nothing is.
    pub(super) fn is_drained(&mut self) -> bool {
        self.workers.iter_mut().for_each(|served| served.worker.let_clients_go());
        self.workers.iter().all(|served| !served.worker.has_unfinished() && !served.worker.has_unsent())
    }

    /// It did not run for so long, until now.
    pub(super) fn stood_still(&mut self, net: &SimNet, duration: Duration) {
        for Served { worker, .. } in &mut self.workers {
            worker.set_now(Moment::default().after(net.now()));
            worker.on_stall(duration);
        }
    }

    /// The server's counters.
    pub(crate) fn statistics(&self) -> Statistics {
        self.workers[0].worker.statistics()
    }

    /// Logins that the server refused.
    pub(crate) fn logins_refused(&self) -> u64 {
        self.workers[0].worker.shared().logins_refused()
    }

    /// Bytes of transfer buffers that operations hold.
    pub(crate) fn buffers_lent(&self) -> usize {
        self.workers.iter().map(|served| served.worker.buffers_lent()).sum()
    }

    /// How often an operation had to wait for one.
    pub(crate) fn buffer_waits(&self) -> u64 {
        let zones = self.workers.iter().flat_map(|served| served.worker.buffers().statistics());
        zones.map(|zone| zone.waits).sum()
    }

    fn accept(&mut self) -> Option<(u32, Box<dyn Endpoint>)> {
        self.listeners.iter_mut().find_map(|(port, listener)| {
            loop {
                let accepted = listener.accept().expect("a simulated listener does not fail");
                if accepted.is_some() || !listener.has_more() {
                    return accepted.map(|endpoint| (*port, endpoint));
                }
            }
        })
    }

    /// Handles all that is there now; the network wakes for the next tick.
    pub(crate) fn step(&mut self, net: &SimNet) {
        let now = Moment::default().after(net.now());
        self.workers.iter_mut().for_each(|served| served.worker.set_now(now));
        while let Some((port, endpoint)) = self.accept() {
            let is_seen = endpoint.capabilities().peer.address != Some(World::BESIDE.address());
            let endpoint = match &self.script {
                Some(script) if is_seen => script.wrap(endpoint, port),
                _ => endpoint,
            };
            let host = self.workers[0].worker.next_host();
            let served = &mut self.workers[host.0];
            let key = served.worker.add_connection(0, endpoint);
            served.connections.push(key);
        }
        let ticks = net.now() >= self.next_tick;
        // Until nobody has written to another.
        loop {
            self.workers.iter_mut().for_each(|served| served.step(now, ticks));
            if self.workers.iter().all(|served| served.worker.has_no_mail()) {
                break;
            }
        }
        if ticks {
            self.listeners.iter_mut().for_each(|(_, listener)| listener.expire_handshakes());
            self.next_tick = net.now() + TICK;
        }
        let window_end = self.workers.iter().filter_map(|served| served.worker.window_end()).min();
        let until_window = window_end.map(|end| net.now() + end.since(now));
        net.wake_at(until_window.map_or(self.next_tick, |end| end.min(self.next_tick)));
    }
}

impl Served {
    fn step(&mut self, now: Moment, ticks: bool) {
        let Self { worker, connections } = self;
        connections.extend(worker.read_mail());
        connections.retain(|key| {
            loop {
                match worker.serve(*key) {
                    Outcome::Budget(_) => {}
                    Outcome::Messages(_) => break true,
                    Outcome::Closed => break false,
                }
            }
        });
        worker.poll_storage();
        let closed = worker.take_closed();
        connections.retain(|key| !closed.contains(key));
        worker.send_departures(|_| {});
        if ticks {
            while worker.on_tick() {}
        }
        if worker.window_end().is_some_and(|end| now >= end) {
            worker.end_windows();
        }
    }
}
