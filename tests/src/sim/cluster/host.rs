//! What a simulated process has from its host.

use std::collections::BTreeMap;
use std::io;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use dafs_proto::transport::sim::{Random, SimNet};
use dafs_server::cluster::{EventCount, Fence, Host, Join, Process as Told};

use super::threads::{Count, Process, Threads};

/// How long a fence command takes at most.
const FENCE_TIME_MAX_NS: u64 = 300_000_000;
/// A fence command looks again whether its process is gone.
const FENCE_LOOK: Duration = Duration::from_millis(1);

/// All processes of servers, and what is to become of them. Clones are the same.
#[derive(Clone, Default)]
pub(super) struct Processes(Arc<Mutex<BTreeMap<u32, State>>>);

/// What others can see of a process.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct State {
    /// Others of this host see whether it has ended.
    pub(super) host: u32,
    pub(super) has_ended: bool,
    /// A fence command has killed it; its threads are yet to end.
    pub(super) is_killed: bool,
}

impl Processes {
    pub(super) fn add(&self, process: Process, host: u32) {
        self.lock().insert(process.0, State { host, ..State::default() });
    }

    pub(super) fn change(&self, process: Process, change: impl FnOnce(&mut State)) {
        change(self.lock().entry(process.0).or_default());
    }

    pub(super) fn state(&self, number: u32) -> State {
        self.lock().get(&number).copied().unwrap_or_default()
    }

    /// Those that were killed and have not ended.
    pub(super) fn doomed(&self) -> Vec<Process> {
        let all = self.lock();
        let doomed = all.iter().filter(|(_, state)| state.is_killed && !state.has_ended);
        doomed.map(|(number, _)| Process(*number)).collect()
    }

    fn lock(&self) -> MutexGuard<'_, BTreeMap<u32, State>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// See the module.
pub(super) struct SimHost {
    pub(super) net: SimNet,
    pub(super) threads: Threads,
    pub(super) processes: Processes,
    pub(super) own: Process,
    pub(super) random: Mutex<Random>,
    /// Chance, per million, that a fence command fails.
    pub(super) fence_fails_ppm: u32,
}

impl SimHost {
    fn random(&self) -> MutexGuard<'_, Random> {
        self.random.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Host for SimHost {
    fn now(&self) -> Duration {
        self.net.now()
    }

    fn spawn(&self, name: &'static str, body: Box<dyn FnOnce() + Send>) -> io::Result<Join> {
        let ends = self.threads.spawn(self.own, name, body);
        let threads = self.threads.clone();
        Ok(Box::new(move || threads.await_count(&ends, 0, None)))
    }

    fn event_count(&self) -> Arc<dyn EventCount> {
        Arc::new(SimCount { threads: self.threads.clone(), count: Arc::default() })
    }

    fn fill_random(&self, bytes: &mut [u8]) -> io::Result<()> {
        let mut random = self.random();
        bytes.iter_mut().for_each(|byte| *byte = u8::try_from(random.below(256)).unwrap_or(0));
        Ok(())
    }

    fn process(&self) -> Told {
        let boot = format!("host {}", self.processes.state(self.own.0).host);
        Told { boot, namespace: "its own".into(), pid: self.own.0, began: 1 }
    }

    fn has_ended(&self, process: &Told) -> bool {
        let own = self.process();
        own.boot == process.boot && self.processes.state(process.pid).has_ended
    }

    fn fence(&self, fence: &Fence<'_>, gives_up: &dyn Fn() -> bool) -> Result<(), String> {
        let (takes, fails) = {
            let mut random = self.random();
            (random.below(FENCE_TIME_MAX_NS), random.chance(self.fence_fails_ppm))
        };
        self.threads.sleep(Duration::from_nanos(takes));
        if fails {
            return Err("no luck".into());
        }
        let pid = fence.variables.iter().find(|(name, _)| *name == "DAFS_FENCE_PID");
        let pid = pid.and_then(|(_, pid)| pid.parse().ok()).ok_or("no process is named")?;
        self.processes.change(Process(pid), |state| state.is_killed = true);
        while !self.processes.state(pid).has_ended {
            if gives_up() {
                return Err("given up".into());
            }
            self.threads.sleep(FENCE_LOOK);
        }
        Ok(())
    }
}

struct SimCount {
    threads: Threads,
    count: Arc<Count>,
}

impl EventCount for SimCount {
    fn read(&self) -> u64 {
        self.count.read()
    }

    fn wait(&self, seen: u64, time_max: Duration) {
        self.threads.await_count(&self.count, seen, Some(time_max));
    }

    fn advance(&self) {
        self.count.advance();
    }

    fn advance_one(&self) {
        self.count.advance_one();
    }
}
