//! The server of a simulated world, and the clock of its clients.

use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use dafs_client::{Background, Clock, Config, MethodOverride, ReconnectPolicy, Session, WaitPolicy};
use dafs_proto::session::Moment;
use dafs_proto::transport::sim::{FaultPlan, NodeId, Random, SimNet};
use dafs_proto::transport::{Address, ConnectParams, Domain};
use dafs_proto::wire::Features;
use dafs_server::config::{Config as ServerConfig, ExportConfig, ExportKind};
use dafs_server::shared::ServerState;
use dafs_server::worker::Parts;

use super::SharedStorage;
use super::script::Script;
use super::serve::SimServer;

const SERVER: NodeId = NodeId(0);
/// From one step of a window to the next.
const WINDOW_STEP: Duration = Duration::from_micros(50);
/// Where servers of simulated worlds listen.
pub const PORT: Address = Address::Sim(1);

/// What a world's chances are.
#[derive(Clone, Debug)]
pub struct WorldPlan {
    /// The network's.
    pub network: FaultPlan,
    /// Chance, per million, that the server dies at a step of the world.
    pub crash_ppm: u32,
}

/// A simulated network with one server in it. Clones are the same world.
#[derive(Clone)]
pub struct World {
    net: SimNet,
    inside: Arc<Mutex<Inside>>,
}

struct Inside {
    net: SimNet,
    // Of each worker.
    storages: Vec<SharedStorage>,
    running: Option<SimServer>,
    random: Random,
    crash_ppm: u32,
    crashes: u64,
    // A crashed server starts again at this time.
    starts_at: Duration,
    // Reads go on at this time.
    held_until: Duration,
    // What a file held when the server died.
    found: Option<Vec<u8>>,
    // Bytes of transfer buffers that operations had at most, after a step.
    buffers_peak: usize,
    epoch: u64,
    // Where the next server listens.
    ports: Vec<u32>,
    features: Features,
    change: Change,
    script: Option<Script>,
}

/// What a world's server is set to, other than others'.
type Change = Box<dyn Fn(&mut ServerConfig) + Send>;

impl World {
    /// Where the server is.
    pub const SERVER: NodeId = SERVER;
    /// Clients on this node are not seen by scripts.
    pub const BESIDE: NodeId = NodeId(99);

    /// A world whose chances are drawn from `seed`. Its server has one worker, or two where the seed is odd.
    pub fn new(seed: u64, plan: WorldPlan) -> Self {
        Self::start(seed, plan, Features::all(), Box::new(|_| {}), None)
    }

    /// The same, whose server has changed settings.
    pub fn with(seed: u64, plan: WorldPlan, change: impl Fn(&mut ServerConfig) + Send + 'static) -> Self {
        Self::start(seed, plan, Features::all(), Box::new(change), None)
    }

    /// The same, whose server offers these features, and gets its requests as the script has it.
    pub fn scripted(seed: u64, plan: WorldPlan, features: Features, script: Script) -> Self {
        Self::start(seed, plan, features, Box::new(|_| {}), Some(script))
    }

    fn start(seed: u64, plan: WorldPlan, features: Features, change: Change, script: Option<Script>) -> Self {
        let net = SimNet::new(seed, plan.network);
        let mut inside = Inside {
            net: net.clone(),
            storages: storages(seed),
            running: None,
            random: Random::new(seed ^ 0x5eed_0000_0000_0001),
            crash_ppm: 0,
            crashes: 0,
            starts_at: Duration::ZERO,
            held_until: Duration::ZERO,
            found: None,
            buffers_peak: 0,
            epoch: 0,
            ports: vec![1],
            features,
            change,
            script,
        };
        inside.start();
        inside.crash_ppm = plan.crash_ppm;
        let world = Self { net: net.clone(), inside: Arc::new(Mutex::new(inside)) };
        let stepped = Arc::downgrade(&world.inside);
        net.on_idle(move || {
            if let Some(inside) = stepped.upgrade() {
                inside.lock().unwrap_or_else(PoisonError::into_inner).step();
            }
        });
        world
    }

    /// The network.
    pub fn net(&self) -> &SimNet {
        &self.net
    }

    /// A session of a client on its own node.
    pub fn connect(&self, node: u32, config: &Config) -> dafs_client::Result<Session> {
        let domain: Arc<dyn Domain> = Arc::new(self.net.domain(NodeId(node)));
        Session::connect_with(domain, PORT, config, self.clock())
    }

    /// Its clock.
    pub fn clock(&self) -> Arc<dyn Clock> {
        Arc::new(SimClock { world: self.clone() })
    }

    /// Settings of a client that does not give up.
    pub fn client_config(node: u8) -> Config {
        Config {
            wait: WaitPolicy::Event,
            background: Background::None,
            client_id: Some([node; 16]),
            method: [
                MethodOverride::Auto,
                MethodOverride::Eager,
                MethodOverride::ClientInitiated,
                MethodOverride::Hybrid,
            ][usize::from(node) % 4],
            // Few and small, so that transfers wait for eager buffers and are cut.
            eager_buffer_count: 2,
            eager_buffer_size: 6000,
            reconnect: ReconnectPolicy {
                attempts_max: 10_000,
                time_max: Duration::MAX,
                ..ReconnectPolicy::default()
            },
            ..Config::default()
        }
    }

    /// How often the server died.
    pub fn crashes(&self) -> u64 {
        self.lock().crashes
    }

    /// The server dies now and starts again after a while.
    pub fn crash(&self) {
        self.lock().crash();
    }

    /// The server dies now, and another is there at once.
    pub fn restart(&self) {
        self.lock().restart();
    }

    /// From its next start on the server listens at these ports of the network, and at no other.
    pub fn listen_at(&self, ports: &[u32]) {
        self.lock().ports = ports.to_vec();
    }

    /// Where it listens, or will.
    pub fn address(&self) -> Address {
        Address::Sim(self.lock().ports[0])
    }

    /// From now on sieved writes rewrite windows in steps; at the step of this number the server dies, and another is there at once.
    pub fn step_windows(&self, dies_at: Option<u64>) {
        self.lock().storages[0].step_windows(dies_at);
    }

    /// Steps of windows so far.
    pub fn window_steps(&self) -> u64 {
        self.lock().storages[0].window_steps().0
    }

    /// What the file `f` held when the server died at a step of a window.
    pub fn found_at_death(&self) -> Option<Vec<u8>> {
        self.lock().found.clone()
    }

    /// Logins that the server refused since its last start; 0 while it is down.
    pub fn logins_refused(&self) -> u64 {
        self.lock().running.as_ref().map_or(0, |running| running.logins_refused())
    }

    /// Bytes of transfer buffers that operations of the server have; 0 while it is down.
    pub fn buffers_lent(&self) -> usize {
        self.lock().running.as_ref().map_or(0, |running| running.buffers_lent())
    }

    /// The most of them at any time.
    pub fn buffers_peak(&self) -> usize {
        self.lock().buffers_peak
    }

    /// How often an operation had to wait for a transfer buffer since the server's last start.
    pub fn buffer_waits(&self) -> u64 {
        self.lock().running.as_ref().map_or(0, |running| running.buffer_waits())
    }

    /// Reads that storage is given from now on wait there for as long as this.
    pub fn hold_reads(&self, duration: Duration) {
        let mut inside = self.lock();
        inside.storages.iter().for_each(|storage| storage.hold_reads(true));
        inside.held_until = self.net.now() + duration;
        self.net.wake_at(inside.held_until);
    }

    /// Lets the world go on for a while.
    pub fn let_time_pass(&self, duration: Duration) {
        SimClock { world: self.clone() }.sleep(duration);
    }

    /// Time passes in which the server does not run, and it notices that.
    pub fn stand_still(&self, duration: Duration) {
        self.net.advance(duration);
        if let Some(running) = &mut self.lock().running {
            running.stood_still(&self.net, duration);
        }
    }

    /// From now on nothing goes wrong any more.
    pub fn calm(&self) {
        self.net.set_plan(FaultPlan::calm());
        self.lock().crash_ppm = 0;
    }

    fn lock(&self) -> std::sync::MutexGuard<'_, Inside> {
        self.inside.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

fn storages(seed: u64) -> Vec<SharedStorage> {
    let first = SharedStorage::new("data", seed);
    let others: Vec<_> = (0..seed % 2).map(|_| first.another()).collect();
    std::iter::once(first).chain(others).collect()
}

impl Inside {
    fn start(&mut self) {
        self.epoch += 1;
        let mut settings = ServerConfig {
            exports: vec![ExportConfig::new("data", ExportKind::Memory { size_max: 1 << 30 })],
            slots_max: 16,
            operations_max: 64,
            sessions_max: 64,
            handles_max: 1024,
            features: self.features,
            transfer_size_max: 1 << 20,
            buffers_size_max: 4 << 20,
            ..ServerConfig::default()
        };
        (self.change)(&mut settings);
        let shared = ServerState::open(settings, self.epoch, self.storages.len());
        let shared = shared.expect("what the server keeps can be opened");
        let meetings = Arc::default();
        let parts = shared.workers().zip(&self.storages).map(|(id, storage)| {
            let mut random = Random::new(self.random.number());
            Parts {
                shared: Arc::clone(&shared),
                id,
                storage: Box::new(storage.clone()),
                randomness: Box::new(move |bytes| {
                    bytes.iter_mut().for_each(|byte| *byte = random.below(256) as u8);
                }),
                meetings: Arc::clone(&meetings),
            }
        });
        let parts = parts.collect();
        let params = ConnectParams { recv_depth: 64, wait: WaitPolicy::Event, ..ConnectParams::default() };
        self.running = Some(SimServer::start(&self.net, SERVER, &self.ports, &params, parts));
        if let (Some(running), Some(script)) = (&mut self.running, &self.script) {
            running.follow(script.clone());
        }
    }

    fn crash(&mut self) {
        if self.die() {
            let down = Duration::from_micros(self.random.below(2_000_000));
            self.starts_at = self.net.now() + down;
            self.net.wake_at(self.starts_at);
        }
    }

    fn restart(&mut self) {
        self.die();
        self.start();
    }

    /// `false` when it is dead.
    fn die(&mut self) -> bool {
        let running = self.running.take();
        let was_running = running.is_some();
        if let Some(running) = running {
            running.close_files();
            drop(running);
            self.net.crash(SERVER);
            self.storages.iter().for_each(SharedStorage::forget_waiting);
            self.storages[0].crash();
            self.crashes += 1;
        }
        was_running
    }

    fn step(&mut self) {
        if self.net.now() >= self.held_until {
            self.storages.iter().for_each(|storage| storage.hold_reads(false));
        }
        if self.crash_ppm > 0 && self.running.is_some() && self.random.chance(self.crash_ppm) {
            return self.crash();
        }
        if self.running.is_none() {
            match self.net.now() >= self.starts_at {
                true => self.start(),
                false => return self.net.wake_at(self.starts_at),
            }
        }
        if let Some(running) = &mut self.running {
            running.step(&self.net);
            self.buffers_peak = self.buffers_peak.max(running.buffers_lent());
        }
        if self.storages[0].is_dead() {
            self.restart();
            self.found = Some(self.storages[0].content("f"));
        } else if self.storages[0].window_steps().1 {
            self.net.wake_at(self.net.now() + WINDOW_STEP);
        }
        if self.script.as_ref().is_some_and(Script::take_crash) {
            self.restart();
        }
    }
}

/// The clock of a simulated client: time passes for the whole world.
#[derive(Clone)]
pub struct SimClock {
    world: World,
}

impl Clock for SimClock {
    fn now(&self) -> Moment {
        Moment::default().after(self.world.net.now())
    }

    fn sleep(&self, duration: Duration) {
        let until = self.world.net.now() + duration;
        while self.world.net.now() < until {
            self.world.lock().step();
            let left = until.saturating_sub(self.world.net.now());
            let next =
                self.world.net.next_event_time().map_or(left, |at| at.saturating_sub(self.world.net.now()));
            self.world.net.advance(next.min(left).max(Duration::from_nanos(1)));
        }
    }
}
