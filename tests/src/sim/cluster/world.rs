//! The cluster's servers, its clients, and what happens to them.

use std::fmt::Write as _;
use std::os::unix::fs::PermissionsExt;
use std::path::Path;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use dafs_client::{Clock, Config, Session};
use dafs_proto::session::Moment;
use dafs_proto::transport::sim::{FaultPlan, NodeId, Random, SimNet};
use dafs_proto::transport::{Address, Domain};

use super::faults::{Fault, Faults, drawn};
use super::host::Processes;
use super::place::{Common, Place, administrators_key};
use super::store::{SimStore, StorePlan};
use super::threads::{CLIENTS, Process, Threads};
use crate::sim::World;

/// Looks in a row between which no time passes.
const STILL_MAX: u32 = 100_000;
/// Lines of the trace that are shown where a run fails.
const SHOWN: usize = 60;

/// How a cluster is, and what may go wrong with it by itself.
#[derive(Clone, Debug)]
pub struct ClusterPlan {
    /// Places for servers.
    pub servers: usize,
    /// All servers are on one host, where they see of each other's processes whether they have ended.
    pub one_host: bool,
    /// There is a fence command.
    pub has_fence: bool,
    /// Chance that it fails.
    pub fence_fails_ppm: u32,
    /// A server's term.
    pub term_ms: u32,
    /// A session's lease.
    pub lease_ms: u32,
    /// The network between clients and servers.
    pub network: FaultPlan,
    /// The store, and the way to it.
    pub store: StorePlan,
}

/// What a run came to.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Counts {
    /// Servers that were taken over.
    pub takeovers: u64,
    /// Calls of the store, those that got lost, and those that were late.
    pub store_calls: (u64, u64, u64),
    /// How often a thread was given its turn.
    pub turns: u64,
    /// Virtual time.
    pub time: Duration,
    /// Of all that happened.
    pub trace: u64,
}

#[derive(Default)]
struct Trace {
    sum: u64,
    last: std::collections::VecDeque<String>,
}

/// What a client has of the world. Clones are the same.
#[derive(Clone)]
pub struct ClientsPlace {
    net: SimNet,
    threads: Threads,
    ports: Vec<u32>,
    trace: Arc<Mutex<Trace>>,
    /// Clients whose work is not done.
    working: Arc<AtomicUsize>,
}

/// See the module.
pub struct ClusterWorld {
    common: Common,
    clients: ClientsPlace,
    places: Vec<Place>,
    random: Random,
    processes: u32,
    directory: tempfile::TempDir,
    faults: std::vec::IntoIter<(Duration, Fault)>,
    next_fault: Option<(Duration, Fault)>,
    heals: Vec<(Duration, NodeId, NodeId)>,
    is_calm: bool,
    /// Looks since time passed last.
    still: u32,
}

impl ClientsPlace {
    /// A session with the first server that gives one.
    pub fn connect(&self, client: usize, config: &Config) -> dafs_client::Result<Session> {
        let domain: Arc<dyn Domain> = Arc::new(self.net.domain(client_node(client)));
        // Each begins elsewhere.
        let ports = self.ports.iter().cycle().skip(client % self.ports.len()).take(self.ports.len());
        let addresses: Vec<Address> = ports.map(|port| Address::Sim(*port)).collect();
        Session::connect_with_any(domain, &addresses, config, Arc::new(self.clone()))
    }

    /// Settings of a client.
    pub fn config(client: usize) -> Config {
        World::client_config(u8::try_from(client + 1).expect("few clients"))
    }

    /// The same, of one who may fence others off.
    pub fn administrator(client: usize) -> Config {
        Config { key: Some(administrators_key()), ..Self::config(client) }
    }

    /// Virtual time.
    pub fn time(&self) -> Duration {
        self.net.now()
    }

    /// Notes what a client has seen.
    pub fn note(&self, what: &str) {
        note(&self.trace, self.net.now(), what);
    }
}

impl Clock for ClientsPlace {
    fn now(&self) -> Moment {
        Moment::default().after(self.net.now())
    }

    fn sleep(&self, duration: Duration) {
        self.threads.sleep(duration);
    }
}

fn note(trace: &Mutex<Trace>, now: Duration, what: &str) {
    let mut trace = trace.lock().unwrap_or_else(PoisonError::into_inner);
    let line = format!("{:>12.6} {what}", now.as_secs_f64());
    for byte in line.bytes() {
        trace.sum = (trace.sum ^ u64::from(byte)).wrapping_mul(0x0000_0100_0000_01b3);
    }
    if is_shown() {
        eprintln!("{line}");
    }
    if trace.last.len() == SHOWN {
        trace.last.pop_front();
    }
    trace.last.push_back(line);
}

/// What happens is to be shown.
fn is_shown() -> bool {
    std::env::var_os("DAFS_SIM_TRACE").is_some()
}

fn client_node(client: usize) -> NodeId {
    NodeId(1 + u32::try_from(client).expect("few clients"))
}

impl ClusterWorld {
    /// A cluster whose chances are drawn from `seed`; its servers are about to start. Things go wrong in the first `time`, with so many
    /// clients.
    pub fn new(seed: u64, plan: ClusterPlan, clients: usize, time: Duration) -> Self {
        let faults = drawn(seed, plan.servers, clients, time);
        Self::with(seed, plan, faults)
    }

    /// The same, where this goes wrong.
    pub fn with(seed: u64, plan: ClusterPlan, faults: Faults) -> Self {
        if is_shown() {
            let level = tracing::level_filters::LevelFilter::INFO;
            // The first of several worlds has done so.
            let _ = tracing_subscriber::fmt().with_max_level(level).with_writer(std::io::stderr).try_init();
            eprintln!("{plan:?}\n{faults:?}");
        }
        let net = SimNet::new(seed, plan.network.clone());
        let threads = Threads::new(&net, seed);
        let processes = Processes::default();
        let store = SimStore::new(&net, &threads, &processes, seed, plan.store);
        let servers = plan.servers;
        let trace: Arc<Mutex<Trace>> = Arc::default();
        let (noted, clock) = (Arc::clone(&trace), net.clone());
        let note = Arc::new(move |what: &str| note(&noted, clock.now(), what));
        let common = Common { net: net.clone(), threads: threads.clone(), processes, store, plan, note };
        let places: Vec<Place> = (0..servers)
            .map(|index| Place::new(common.clone(), u32::try_from(index).expect("few servers")))
            .collect();
        let ports = places.iter().map(Place::port).collect();
        let clients = ClientsPlace { net, threads, ports, trace, working: Arc::default() };
        // Files there have numbers that are not given again.
        let directory =
            tempfile::tempdir_in("/dev/shm").or_else(|_| tempfile::tempdir()).expect("a directory");
        let everybody = std::fs::Permissions::from_mode(0o777);
        std::fs::set_permissions(directory.path(), everybody).expect("it is our own");
        let mut faults = faults.into_iter();
        let next_fault = faults.next();
        Self {
            common,
            clients,
            places,
            random: Random::new(seed ^ 0x0063_6c75_7374_6572),
            processes: 0,
            directory,
            faults,
            next_fault,
            heals: Vec::new(),
            is_calm: false,
            still: 0,
        }
    }

    /// Has a client work on a thread of its own.
    pub fn client(&self, work: impl FnOnce(&ClientsPlace) + Send + 'static) {
        let clients = self.clients.clone();
        clients.working.fetch_add(1, Ordering::AcqRel);
        drop(self.common.threads.spawn(CLIENTS, "client", move || {
            work(&clients);
            clients.working.fetch_sub(1, Ordering::AcqRel);
        }));
    }

    /// The exported directory.
    pub fn path(&self) -> &Path {
        self.directory.path()
    }

    /// Lets everything go on until all clients have done their work. Once nothing goes wrong any more they have this much time.
    pub fn run(&mut self, time_max: Duration) -> Counts {
        let mut until = None;
        while self.clients.working.load(Ordering::Acquire) > 0 {
            self.happen();
            if self.is_calm {
                let until = *until.get_or_insert(self.common.net.now() + time_max);
                assert!(
                    self.common.net.now() < until,
                    "clients do not get on, though nothing goes wrong any more"
                );
            }
            self.settle();
            self.advance();
        }
        self.counts()
    }

    /// Until nobody has anything to do now.
    fn settle(&mut self) {
        loop {
            let ran = self.common.threads.run();
            for process in self.common.processes.doomed() {
                let down = Duration::from_millis(self.random.below(3000));
                self.note(&format!("{process:?} is cut off"));
                self.places
                    .iter_mut()
                    .filter(|place| place.process == process)
                    .for_each(|place| place.die(down));
            }
            let (processes, random) = (&mut self.processes, &mut self.random);
            let mut next = || {
                *processes += 1;
                (Process(*processes), Random::new(random.number()))
            };
            self.places.iter_mut().for_each(|place| place.step(&mut next, self.directory.path()));
            if ran == 0 {
                break;
            }
        }
    }

    fn advance(&mut self) {
        let Common { net, threads, .. } = &self.common;
        let now = net.now();
        let own = self.next_fault.iter().map(|(at, _)| *at).chain(self.heals.iter().map(|(at, ..)| *at));
        let places = self.places.iter().filter_map(Place::next_time);
        let others = net.next_event_time().into_iter().chain(threads.next_time());
        let next = own.chain(places).chain(others).min().expect("something will happen");
        self.still = if next > now { 0 } else { self.still + 1 };
        if self.still > STILL_MAX {
            let threads = threads.next_time();
            panic!("time stands still: {now:?} {:?} {threads:?} {:?}", net.next_event_time(), self.heals);
        }
        net.advance(next.saturating_sub(now));
    }

    /// What goes wrong now, and what ends to.
    fn happen(&mut self) {
        let now = self.common.net.now();
        while let Some((_, fault)) = self.next_fault.take_if(|(at, _)| *at <= now) {
            self.note(&format!("{fault:?}"));
            self.strike(fault, now);
            self.next_fault = self.faults.next();
        }
        let net = &self.common.net;
        self.heals.retain(|(at, a, b)| {
            let stays = *at > now;
            if !stays {
                net.heal(*a, *b);
            }
            stays
        });
        let is_over = self.next_fault.is_none() && self.heals.is_empty();
        if is_over && !self.is_calm && self.places.iter().all(Place::is_serving) {
            self.note("nothing goes wrong any more");
            self.is_calm = true;
            self.common.net.set_plan(FaultPlan { poll_ns: 0, delay_per_kib_ns: 0, ..FaultPlan::calm() });
            self.common.store.calm();
        }
    }

    fn strike(&mut self, fault: Fault, now: Duration) {
        let net = &self.common.net;
        match fault {
            Fault::Crash(server, down) => self.places[server].die(down),
            Fault::Stand(server, time) => self.places[server].stand_still(time),
            Fault::Leave(server, down) => self.places[server].leave(down),
            Fault::StoreAway(time) => self.common.store.go_away(time),
            Fault::StoreCut(server, time) => self.common.store.cut_off(self.places[server].process, time),
            Fault::Apart(client, server, time) => {
                let (a, b) = (client_node(client), self.places[server].node());
                net.partition(a, b);
                self.heals.push((now + time, a, b));
            }
            Fault::Cut(client, server) => net.cut(client_node(client), self.places[server].node()),
        }
    }

    fn note(&self, what: &str) {
        (self.common.note)(what);
    }

    fn counts(&self) -> Counts {
        let Common { net, threads, store, .. } = &self.common;
        let trace = self.clients.trace.lock().unwrap_or_else(PoisonError::into_inner).sum;
        Counts {
            takeovers: store.takeovers(),
            store_calls: store.counts(),
            turns: threads.turns(),
            time: net.now(),
            trace,
        }
    }

    /// How everything is, and what happened last.
    pub fn report(&self) -> String {
        let mut text = String::new();
        let Common { net, threads, store, .. } = &self.common;
        // Writing into a string does not fail.
        let _ = writeln!(
            text,
            "at {:?}; {} clients work",
            net.now(),
            self.clients.working.load(Ordering::Acquire)
        );
        for place in &self.places {
            let number = store.number_of(place.process);
            let left = threads.left(place.process);
            let _ = writeln!(text, "{:?}, server {number:?}, {}: {left:?}", place.process, place.state());
        }
        let trace = self.clients.trace.lock().unwrap_or_else(PoisonError::into_inner);
        trace.last.iter().for_each(|line| text.push_str(&format!("{line}\n")));
        text
    }
}

impl Drop for ClusterWorld {
    fn drop(&mut self) {
        if std::thread::panicking() {
            eprintln!("{}", self.report());
            // Its threads may be anywhere: they are left where they are.
            return;
        }
        self.places.iter_mut().for_each(|place| place.die(Duration::MAX / 4));
        self.common.threads.kill(CLIENTS);
    }
}
