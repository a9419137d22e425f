//! A provider on virtual time: a whole network in one process, with faults drawn from a seed.
//!
//! [`SimNet`] is the network and its clock. [`SimNet::domain`] gives a node's [`Domain`](crate::transport::Domain). Time moves only in
//! [`SimNet::advance`] and [`SimNet::step`], in the calls that wait ([`Domain::connect`](crate::transport::Domain::connect) and
//! [`Endpoint::wait_or`](crate::transport::Endpoint::wait_or)), and a little in each [`Endpoint::recv`](crate::transport::Endpoint::recv)
//! that finds nothing. Nothing happens unless time moves. The calls that wait run the callback of [`SimNet::on_idle`] meanwhile. A test
//! steps its server there, so blocking client calls work on one thread.
//!
//! The same seed and the same calls give the same run: there is no real clock, no thread, and no other source of chance.
//!
//! It does to a program what a real network does. Packets take different times: messages and RDMA writes of one direction stay in order,
//! RDMA reads do not. RDMA copies at the virtual moment of arrival, and not before. The two sides of a cut connection notice the cut at
//! different times. What was in transit at the cut may have arrived or not.

mod connection;
mod domain;
mod endpoint;
mod gather;
mod plan;
mod trace;
mod waiting;
mod world;

use std::net::SocketAddr;
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError};
use std::time::Duration;

pub use domain::{SimDomain, SimListener};
pub use endpoint::SimEndpoint;
pub use plan::{FaultPlan, Random};
pub use trace::Counters;
pub use waiting::Waiting;

use world::SimWorld;

/// A simulated machine.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct NodeId(pub u32);

impl NodeId {
    /// Where its peers see it: a loopback address, a port for each node.
    pub fn address(self) -> SocketAddr {
        SocketAddr::from(([127, 0, 0, 1], 1024 + (self.0 % 60_000) as u16))
    }
}

/// A simulated network. Clones are the same network.
#[derive(Clone)]
pub struct SimNet {
    shared: Arc<SharedWorld>,
}

struct SharedWorld {
    state: Mutex<SimWorld>,
    idle: Mutex<Option<IdleCallback>>,
    waits: OnceLock<WaitCallback>,
}

type IdleCallback = Box<dyn FnMut() + Send>;
type WaitCallback = Box<dyn Fn(Waiting) + Send + Sync>;

impl SimNet {
    /// A network at time 0 whose chances are drawn from `seed`.
    pub fn new(seed: u64, plan: FaultPlan) -> Self {
        Self {
            shared: Arc::new(SharedWorld {
                state: Mutex::new(SimWorld::new(seed, plan)),
                idle: Mutex::new(None),
                waits: OnceLock::new(),
            }),
        }
    }

    /// A protection domain on a node. A crashed node comes back with the next domain made on it; domains from before the crash stay dead.
    pub fn domain(&self, node: NodeId) -> SimDomain {
        SimDomain::new(self.clone(), node)
    }

    /// Virtual time since the network was made.
    pub fn now(&self) -> Duration {
        Duration::from_nanos(self.lock().now_ns())
    }

    /// When the next event happens; `None` when nothing will happen by itself.
    pub fn next_event_time(&self) -> Option<Duration> {
        self.lock().next_event_ns().map(Duration::from_nanos)
    }

    /// Moves the clock by `duration`; everything due on the way happens.
    pub fn advance(&self, duration: Duration) {
        let mut state = self.lock();
        let until_ns = state.now_ns().saturating_add(nanos(duration));
        state.advance_to(until_ns);
    }

    /// Moves the clock to the next event and lets it happen; `false` when there is none.
    pub fn step(&self) -> bool {
        let mut state = self.lock();
        match state.next_event_ns() {
            Some(at_ns) => {
                state.advance_to(at_ns);
                true
            }
            None => false,
        }
    }

    /// Makes the clock stop at `time`, so that waiting calls run the idle callback then: for the timers of whom the callback steps.
    pub fn wake_at(&self, time: Duration) {
        self.lock().schedule_wake(nanos(time));
    }

    /// Called, on the waiting thread, whenever a waiting call found nothing and before it moves the clock. It may use every part
    /// of the network; calls that
    /// wait inside it do not run it again. Replaces the callback before it.
    pub fn on_idle(&self, callback: impl FnMut() + Send + 'static) {
        *self.shared.idle.lock().unwrap_or_else(PoisonError::into_inner) = Some(Box::new(callback));
    }

    /// From now on calls that wait move no time: they call this, which returns when the wait is over, or earlier. For programs of several
    /// threads of which one at a time runs, while somebody else moves the time. Set once.
    pub fn on_wait(&self, callback: impl Fn(Waiting) + Send + Sync + 'static) {
        // The first stays.
        let _ = self.shared.waits.set(Box::new(callback));
    }

    /// Replaces the plan: faults from now on are drawn from the new one.
    pub fn set_plan(&self, plan: FaultPlan) {
        self.lock().set_plan(plan);
    }

    /// Cuts all connections between two nodes, as [`FaultPlan::cut_ppm`] does.
    pub fn cut(&self, a: NodeId, b: NodeId) {
        self.lock().cut_between(a, b);
    }

    /// From now on nothing that `a` and `b` send each other arrives, and neither is told, until [`SimNet::heal`].
    pub fn partition(&self, a: NodeId, b: NodeId) {
        self.lock().partition(a, b);
    }

    /// Ends a partition: what was held up arrives, in order.
    pub fn heal(&self, a: NodeId, b: NodeId) {
        self.lock().heal(a, b);
    }

    /// The node's process dies: its regions and listeners vanish, its connections die; its peers are told later.
    pub fn crash(&self, node: NodeId) {
        self.lock().crash(node);
    }

    /// Counts so far.
    pub fn counters(&self) -> Counters {
        self.lock().counters
    }

    /// Seed, counts and the last events, in words.
    pub fn report(&self) -> String {
        self.lock().report()
    }

    /// Prints [`SimNet::report`] to standard error if the thread panics while the guard lives: a failing test then shows its seed.
    pub fn report_on_panic(&self) -> ReportOnPanic {
        ReportOnPanic { net: self.clone() }
    }

    fn lock(&self) -> MutexGuard<'_, SimWorld> {
        self.shared.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Runs the idle callback, unless this is inside it.
    fn run_idle(&self) {
        let slot = || self.shared.idle.lock().unwrap_or_else(PoisonError::into_inner);
        let taken = slot().take();
        if let Some(mut callback) = taken {
            callback();
            // A callback that was set from inside the old one stays.
            slot().get_or_insert(callback);
        }
    }
}

/// See [`SimNet::report_on_panic`].
pub struct ReportOnPanic {
    net: SimNet,
}

impl Drop for ReportOnPanic {
    fn drop(&mut self) {
        if std::thread::panicking() {
            eprintln!("{}", self.net.report());
        }
    }
}

fn nanos(duration: Duration) -> u64 {
    u64::try_from(duration.as_nanos()).unwrap_or(u64::MAX)
}

#[cfg(test)]
mod tests;
