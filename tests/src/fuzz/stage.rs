//! A simulated network with the real server in it, and a clock for the real client library.

use std::sync::atomic::AtomicUsize;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};
use std::time::Duration;

use dafs_client::{Background, Clock, Config, ReconnectPolicy, WaitPolicy};
use dafs_proto::session::Moment;
use dafs_proto::transport::sim::{FaultPlan, NodeId, Random, SimNet};
use dafs_proto::transport::{Address, ConnectParams};
use dafs_server::config::{Config as ServerConfig, ExportConfig, ExportKind};
use dafs_server::shared::{ServerState, WorkerId};
use dafs_server::worker::Parts;

use crate::sim::serve::SimServer;

use super::storage::{CALM, FAULTY, FaultyStorage, Troubles};

/// Where the server listens.
pub(super) const PORT: Address = Address::Sim(1);
/// A session whose client is silent for this long ends.
pub(super) const LEASE: Duration = Duration::from_millis(LEASE_MS as u64);
const LEASE_MS: u32 = 30_000;
const SERVER: NodeId = NodeId(0);
/// More turns than any honest run takes: a program that waits for ever.
const TURNS_MAX: u64 = 1_000_000;

/// What is stepped whenever the simulated programs wait.
pub(super) trait Actor: Send {
    fn step(&mut self, net: &SimNet);
}

/// A network and the actor on it. The network refers to the actor weakly: all is freed with the stage.
pub(super) struct Stage<A> {
    pub(super) net: SimNet,
    actor: Arc<Mutex<A>>,
}

impl<A: Actor + 'static> Stage<A> {
    pub(super) fn new(seed: u64, plan: FaultPlan, actor: impl FnOnce(&SimNet) -> A) -> Self {
        let net = SimNet::new(seed, plan);
        let actor = Arc::new(Mutex::new(actor(&net)));
        let weak: Weak<Mutex<A>> = Arc::downgrade(&actor);
        let shared = net.clone();
        let mut turns = 0;
        net.on_idle(move || {
            turns += 1;
            assert!(turns < TURNS_MAX, "a call waits for ever");
            if let Some(actor) = weak.upgrade() {
                actor.lock().unwrap_or_else(PoisonError::into_inner).step(&shared);
            }
        });
        Self { net, actor }
    }

    pub(super) fn actor(&self) -> MutexGuard<'_, A> {
        self.actor.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Lets the actor and the network go on for a while.
    pub(super) fn pass(&self, duration: Duration) {
        let until = self.net.now() + duration;
        loop {
            self.actor().step(&self.net);
            let left = until.saturating_sub(self.net.now());
            if left.is_zero() {
                return;
            }
            let next = self.net.next_event_time().map_or(left, |at| at.saturating_sub(self.net.now()));
            self.net.advance(next.min(left).max(Duration::from_nanos(1)));
        }
    }

    /// A clock for a client on this stage.
    pub(super) fn clock(&self) -> Arc<dyn Clock> {
        Arc::new(StageClock { net: self.net.clone(), actor: Arc::downgrade(&self.actor) })
    }
}

struct StageClock<A> {
    net: SimNet,
    actor: Weak<Mutex<A>>,
}

impl<A: Actor + 'static> Clock for StageClock<A> {
    fn now(&self) -> Moment {
        Moment::default().after(self.net.now())
    }

    fn sleep(&self, duration: Duration) {
        match self.actor.upgrade() {
            Some(actor) => Stage { net: self.net.clone(), actor }.pass(duration),
            None => self.net.advance(duration),
        }
    }
}

/// Settings of a client that gives up soon.
pub(super) fn client_config(node: u8) -> Config {
    Config {
        wait: WaitPolicy::Event,
        background: Background::None,
        client_id: Some([node; 16]),
        credits: 8,
        bounce_size: 64 << 10,
        connect_timeout: Duration::from_secs(2),
        reconnect: ReconnectPolicy { attempts_max: 2, ..ReconnectPolicy::default() },
        ..Config::default()
    }
}

/// The real server over storage with faults.
pub(super) struct ServerActor {
    pub(super) server: SimServer,
    /// What storage has open.
    pub(super) open_count: Arc<AtomicUsize>,
}

impl ServerActor {
    pub(super) fn new(net: &SimNet, seed: u64, troubles: Troubles) -> Self {
        let mut random = Random::new(seed);
        let storage = FaultyStorage::new(Random::new(seed ^ 1), troubles);
        let open_count = storage.open_count();
        let exports = [FAULTY, CALM]
            .map(|name| ExportConfig::new(name, ExportKind::Memory { size_max: 8 << 20 }))
            .to_vec();
        let settings = ServerConfig {
            exports,
            slots_max: 8,
            operations_max: 64,
            sessions_max: 8,
            handles_max: 6,
            transfer_size_max: 4 << 20,
            // One of the largest buffers, or a few small ones: transfers wait for each other.
            buffers_size_max: 1 << 20,
            lease_ms: LEASE_MS,
            keep_alive_ms: LEASE_MS / 3,
            ..ServerConfig::default()
        };
        let parts = Parts {
            shared: ServerState::new(settings, 1, 1),
            id: WorkerId(0),
            storage: Box::new(storage),
            randomness: Box::new(move |bytes| {
                bytes.iter_mut().for_each(|byte| *byte = random.number().to_le_bytes()[0]);
            }),
            meetings: Arc::default(),
        };
        let params = ConnectParams {
            recv_depth: 24,
            rdma_depth: 4,
            wait: WaitPolicy::Event,
            ..ConnectParams::default()
        };
        Self { server: SimServer::start(net, SERVER, &[1], &params, vec![parts]), open_count }
    }
}

impl Actor for ServerActor {
    fn step(&mut self, net: &SimNet) {
        self.server.step(net);
    }
}
