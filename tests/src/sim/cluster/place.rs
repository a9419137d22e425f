//! A place for a server, and what is there.

use std::path::Path;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use dafs_client::Key;
use dafs_proto::transport::ConnectParams;
use dafs_proto::transport::WaitPolicy;
use dafs_proto::transport::sim::{NodeId, Random, SimNet};
use dafs_server::access::{ForcedIdentity, IdentityMapping, KeyEntry};
use dafs_server::cluster::{ClusterConfig, Host};
use dafs_server::config::{Config, ExportConfig, ExportKind};
use dafs_server::shared::ServerState;
use dafs_server::worker::Parts;

use super::disk::Disk;
use super::host::{Processes, SimHost};
use super::store::{SimStore, StoreOf};
use super::threads::{Process, Threads};
use super::world::ClusterPlan;
use crate::sim::serve::SimServer;

/// A server that does not get rid of its clients ends after this.
const DRAIN_MAX: Duration = Duration::from_secs(5);

/// What all servers of a world share.
#[derive(Clone)]
pub(super) struct Common {
    pub(super) net: SimNet,
    pub(super) threads: Threads,
    pub(super) processes: Processes,
    pub(super) store: SimStore,
    pub(super) plan: ClusterPlan,
    pub(super) note: Arc<dyn Fn(&str) + Send + Sync>,
}

/// A server that has begun its first term.
struct Running {
    server: SimServer,
    shared: Arc<ServerState>,
}

/// What a thread has come to.
enum Came<T> {
    NotYet,
    To(T),
    Failed(String),
}

type Slot<T> = Arc<Mutex<Came<T>>>;

enum Phase {
    Starts(Slot<Running>),
    Serves(Running),
    /// It was asked to end.
    Drains(Running, Duration),
    Leaves(Running, Slot<()>),
    Down,
}

/// See the module.
pub(super) struct Place {
    common: Common,
    node: NodeId,
    port: u32,
    host: u32,
    pub(super) process: Process,
    disk: Option<Disk>,
    phase: Phase,
    /// It stands still, from when until when.
    stands: Option<(Duration, Duration)>,
    /// Its term was over at the last look, since then.
    idle_since: Option<Duration>,
    starts_at: Duration,
    /// From its end until another starts.
    down: Duration,
}

fn take<T>(slot: &Slot<T>) -> Came<T> {
    let mut came = slot.lock().unwrap_or_else(PoisonError::into_inner);
    std::mem::replace(&mut came, Came::NotYet)
}

fn put<T>(slot: &Slot<T>, came: Came<T>) {
    *slot.lock().unwrap_or_else(PoisonError::into_inner) = came;
}

impl Place {
    pub(super) fn new(common: Common, index: u32) -> Self {
        let host = if common.plan.one_host { 0 } else { index };
        Self {
            common,
            node: NodeId(1000 + index),
            port: 1 + index,
            host,
            process: Process(u32::MAX),
            disk: None,
            phase: Phase::Down,
            stands: None,
            idle_since: None,
            starts_at: Duration::ZERO,
            down: Duration::ZERO,
        }
    }

    pub(super) fn node(&self) -> NodeId {
        self.node
    }

    pub(super) fn port(&self) -> u32 {
        self.port
    }

    /// What it is doing, for people.
    pub(super) fn state(&self) -> &'static str {
        match (&self.phase, self.stands) {
            (_, Some(_)) => "stands still",
            (Phase::Starts(_), _) => "starts",
            (Phase::Serves(_), _) if self.idle_since.is_some() => "waits for a term",
            (Phase::Serves(_), _) => "serves",
            (Phase::Drains(..), _) => "drains",
            (Phase::Leaves(..), _) => "leaves",
            (Phase::Down, _) => "down",
        }
    }

    /// It serves and does nothing else.
    pub(super) fn is_serving(&self) -> bool {
        matches!(self.phase, Phase::Serves(_)) && self.stands.is_none() && self.idle_since.is_none()
    }

    /// Starts a server by a thread of its own.
    fn start(&mut self, process: Process, path: &Path, mut random: Random) {
        let common = self.common.clone();
        common.processes.add(process, self.host);
        let drawn = Random::new(random.number());
        let disk = Disk::open(path, &common.net, &common.store, process, drawn);
        let slot: Slot<Running> = Arc::new(Mutex::new(Came::NotYet));
        (self.process, self.disk, self.phase) =
            (process, Some(disk.clone()), Phase::Starts(Arc::clone(&slot)));
        let settings = settings(&common.plan, path, self.port);
        let (node, port, threads) = (self.node, self.port, common.threads.clone());
        drop(threads.spawn(process, "server", move || {
            let came = match begin(&common, &settings, (process, node, port), disk, random) {
                Ok(running) => Came::To(running),
                Err(error) => Came::Failed(error),
            };
            put(&slot, came);
        }));
    }

    /// Its process ends now. Another starts after a time.
    pub(super) fn die(&mut self, down: Duration) {
        if matches!(self.phase, Phase::Down) {
            return;
        }
        let Common { net, threads, processes, note, .. } = &self.common;
        note(&format!("{:?} ends, which {}", self.process, self.state()));
        threads.kill(self.process);
        self.disk.take().into_iter().for_each(|disk| disk.die());
        self.phase = Phase::Down;
        net.crash(self.node);
        processes.change(self.process, |state| state.has_ended = true);
        (self.stands, self.idle_since) = (None, None);
        self.starts_at = net.now() + down;
        net.wake_at(self.starts_at);
    }

    /// Its process does not run for a time.
    pub(super) fn stand_still(&mut self, time: Duration) {
        if matches!(self.phase, Phase::Down) || self.stands.is_some() {
            return;
        }
        let now = self.common.net.now();
        self.stands = Some((now, now + time));
        self.common.threads.stand_still(self.process, true);
        self.common.net.wake_at(now + time);
    }

    /// It is asked to end.
    pub(super) fn leave(&mut self, down: Duration) {
        if self.stands.is_some() {
            return;
        }
        self.down = down;
        self.phase = match std::mem::replace(&mut self.phase, Phase::Down) {
            Phase::Serves(mut running) => {
                running.server.drain();
                Phase::Drains(running, self.common.net.now() + DRAIN_MAX)
            }
            other => other,
        };
    }

    /// Operations of its process on files.
    pub(super) fn step_disk(&self) {
        self.disk.iter().for_each(Disk::step);
    }

    pub(super) fn next_time(&self) -> Option<Duration> {
        self.disk.as_ref().and_then(Disk::next_time)
    }

    /// It may start: which process it becomes, and its chances.
    pub(super) fn may_start(&self) -> bool {
        matches!(self.phase, Phase::Down) && self.common.net.now() >= self.starts_at
    }

    pub(super) fn step(&mut self, next: &mut dyn FnMut() -> (Process, Random), path: &Path) {
        if self.may_start() {
            let (process, random) = next();
            self.start(process, path, random);
        }
        self.step_disk();
        let now = self.common.net.now();
        if let Some((since, until)) = self.stands {
            if now < until {
                return;
            }
            self.stands = None;
            self.common.threads.stand_still(self.process, false);
            if let Phase::Serves(running) | Phase::Drains(running, _) = &mut self.phase {
                running.server.stood_still(&self.common.net, now - since);
                // It was in the middle of a turn, behind its look at the term.
                running.server.step(&self.common.net);
            }
        }
        self.step_phase(now);
    }

    fn step_phase(&mut self, now: Duration) {
        let phase = std::mem::replace(&mut self.phase, Phase::Down);
        self.phase = match phase {
            Phase::Down => return,
            Phase::Starts(slot) => match take(&slot) {
                Came::NotYet => Phase::Starts(slot),
                Came::To(running) => {
                    (self.common.note)(&format!("{:?} serves at {}", self.process, self.port));
                    Phase::Serves(running)
                }
                Came::Failed(error) => {
                    (self.common.note)(&format!("{:?} does not start: {error}", self.process));
                    return self.end_as(Phase::Starts(slot), Duration::from_millis(500));
                }
            },
            Phase::Serves(running) => match self.serve(running, now) {
                Ok(running) => Phase::Serves(running),
                Err(running) => return self.end_as(Phase::Serves(running), Duration::from_millis(100)),
            },
            Phase::Drains(running, until) => match self.serve(running, now) {
                Ok(mut running) => match running.server.is_drained() || now >= until {
                    true => {
                        running.server.step(&self.common.net);
                        self.begin_to_leave(running)
                    }
                    false => Phase::Drains(running, until),
                },
                Err(running) => return self.end_as(Phase::Drains(running, until), self.down),
            },
            Phase::Leaves(running, slot) => match take(&slot) {
                Came::NotYet => Phase::Leaves(running, slot),
                _ => return self.end_as(Phase::Leaves(running, slot), self.down),
            },
        };
    }

    fn end_as(&mut self, phase: Phase, down: Duration) {
        self.phase = phase;
        self.die(down);
    }

    fn begin_to_leave(&self, running: Running) -> Phase {
        let slot: Slot<()> = Arc::new(Mutex::new(Came::NotYet));
        let (own, shared) = (Arc::clone(&slot), Arc::clone(&running.shared));
        drop(self.common.threads.spawn(self.process, "leaving", move || {
            shared.close();
            put(&own, Came::To(()));
        }));
        Phase::Leaves(running, slot)
    }

    /// A turn of its loop. Fails where it ends by itself.
    fn serve(&mut self, mut running: Running, now: Duration) -> Result<Running, Running> {
        let cluster = running.shared.cluster().expect("it is of one");
        if !cluster.is_current() {
            if cluster.is_lost() || matches!(self.phase, Phase::Drains(..)) {
                return Err(running);
            }
            self.idle_since.get_or_insert(now);
            return Ok(running);
        }
        if let Some(since) = self.idle_since.take() {
            running.server.stood_still(&self.common.net, now - since);
        }
        running.server.step(&self.common.net);
        Ok(running)
    }
}

fn settings(plan: &ClusterPlan, path: &Path, port: u32) -> Config {
    let export = ExportConfig {
        squash: IdentityMapping::Server,
        ..ExportConfig::new("data", ExportKind::Directory(path.to_owned()))
    };
    let cluster = ClusterConfig {
        address: "etcd://simulated/test".parse().expect("an address"),
        access: Default::default(),
        term_ms: plan.term_ms,
        server_name: format!("server {port}"),
        addresses: Vec::new(),
        fence_command: plan.has_fence.then(|| "kill it".to_owned()),
        fence_detail: String::new(),
        lease_ms: plan.lease_ms,
        // So that a seed says which opens the store is asked for, and not the numbers of files.
        buckets: 1,
    };
    let mut config = Config {
        exports: vec![export],
        slots_max: 8,
        operations_max: 64,
        sessions_max: 64,
        handles_max: 1024,
        lease_ms: plan.lease_ms,
        transfer_size_max: 1 << 20,
        buffers_size_max: 4 << 20,
        cluster: Some(cluster),
        ..Config::default()
    };
    let forced = Some(ForcedIdentity { uid: 0, gid: 0 });
    config.access.keys.insert(KeyEntry { key: administrators_key(), forced, publishes: false });
    config
}

/// With it one may fence others off.
pub(super) fn administrators_key() -> Key {
    Key { name: "administrator".into(), secret: [7; 16].into() }
}

/// On a thread of the process.
fn begin(
    common: &Common,
    settings: &Config,
    (process, node, port): (Process, NodeId, u32),
    disk: Disk,
    mut random: Random,
) -> Result<Running, String> {
    let own = Mutex::new(Random::new(random.number()));
    let host: Arc<dyn Host> = Arc::new(SimHost {
        net: common.net.clone(),
        threads: common.threads.clone(),
        processes: common.processes.clone(),
        own: process,
        random: own,
        fence_fails_ppm: common.plan.fence_fails_ppm,
    });
    let time_max = Duration::from_millis(u64::from(common.plan.term_ms) / 4);
    let store = Arc::new(StoreOf { store: common.store.clone(), process, time_max });
    let epoch = random.number();
    let shared = ServerState::open_in((store, host), settings.clone(), epoch, 1);
    let shared = shared.map_err(|error| error.to_string())?;
    let storage = shared.beside_others(Box::new(disk)).map_err(|error| error.to_string())?;
    let id = shared.workers().next().expect("there is one");
    let randomness = Box::new(move |bytes: &mut [u8]| {
        bytes.iter_mut().for_each(|byte| *byte = u8::try_from(random.below(256)).unwrap_or(0));
    });
    let parts = Parts { shared: Arc::clone(&shared), id, storage, randomness, meetings: Arc::default() };
    let params = ConnectParams { recv_depth: 64, wait: WaitPolicy::Event, ..ConnectParams::default() };
    let server = SimServer::start(&common.net, node, &[port], &params, vec![parts]);
    let cluster = shared.cluster().expect("it is of one");
    cluster.announce(vec![format!("simulated:{port}")]).map_err(|error| error.to_string())?;
    Ok(Running { server, shared })
}
