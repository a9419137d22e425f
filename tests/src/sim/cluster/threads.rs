//! Threads of which one at a time runs: each runs until it waits, and which goes on then is drawn from a seed. They wait in virtual time.

use std::cell::RefCell;
use std::collections::BTreeMap;
use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::thread::{JoinHandle, Thread};
use std::time::Duration;

use dafs_proto::transport::sim::{Random, SimNet, Waiting};

/// Threads that stand still, or end, together: a process.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub(super) struct Process(pub(super) u32);

/// The process whose threads are the clients, and which never ends.
pub(super) const CLIENTS: Process = Process(0);

/// Until when a thread waits: until one of these is so.
#[derive(Clone, Default)]
struct Wait {
    until: Option<Duration>,
    /// It was counted further for all, since they had heard so often, or for one.
    count: Option<(Arc<Count>, u64)>,
    /// A call in the network.
    call: Option<Waiting>,
}

/// What threads of one process wait for.
#[derive(Default)]
pub(super) struct Count {
    total: AtomicU64,
    for_all: AtomicU64,
    /// Of those who wait, so many are to go on.
    due: AtomicU64,
    waiting: AtomicU64,
}

impl Count {
    /// How far it was counted.
    pub(super) fn read(&self) -> u64 {
        self.total.load(Ordering::Acquire)
    }

    /// Counts on; all who wait go on.
    pub(super) fn advance(&self) {
        self.total.fetch_add(1, Ordering::AcqRel);
        self.for_all.fetch_add(1, Ordering::AcqRel);
    }

    /// Counts on; one of those who wait goes on.
    pub(super) fn advance_one(&self) {
        self.total.fetch_add(1, Ordering::AcqRel);
        if self.due.load(Ordering::Acquire) < self.waiting.load(Ordering::Acquire) {
            self.due.fetch_add(1, Ordering::AcqRel);
        }
    }

    /// Whoever has heard so often goes on; if only one may, it is this.
    fn lets_go(&self, heard: u64, takes: bool) -> bool {
        if self.for_all.load(Ordering::Acquire) != heard {
            return true;
        }
        let is_due = self.due.load(Ordering::Acquire) > 0;
        if is_due && takes {
            self.due.fetch_sub(1, Ordering::AcqRel);
        }
        is_due
    }
}

struct Known {
    process: Process,
    name: &'static str,
    wait: Wait,
    turn: Arc<Turn>,
    handle: Thread,
}

/// Whose turn it is: the thread's, or that of whoever runs them.
#[derive(Default)]
struct Turn {
    is_threads: AtomicBool,
    is_killed: AtomicBool,
}

/// What a thread unwinds with whose process has ended.
struct Killed;

struct Inside {
    random: Random,
    threads: BTreeMap<u64, Known>,
    next: u64,
    standing: Vec<Process>,
    ended: Vec<JoinHandle<()>>,
    joins: BTreeMap<u64, JoinHandle<()>>,
    failure: Option<String>,
    runner: Option<Thread>,
    turns: u64,
}

/// See the module. Clones are the same threads.
#[derive(Clone)]
pub(super) struct Threads {
    net: SimNet,
    inside: Arc<Mutex<Inside>>,
}

thread_local! {
    static OWN: RefCell<Option<(u64, Arc<Turn>)>> = const { RefCell::new(None) };
}

impl Threads {
    /// None yet. Calls that wait in this network are threads that wait.
    pub(super) fn new(net: &SimNet, seed: u64) -> Self {
        let inside = Inside {
            random: Random::new(seed ^ 0x0074_6872_6561_6473),
            threads: BTreeMap::new(),
            next: 0,
            standing: Vec::new(),
            ended: Vec::new(),
            joins: BTreeMap::new(),
            failure: None,
            runner: None,
            turns: 0,
        };
        let threads = Self { net: net.clone(), inside: Arc::new(Mutex::new(inside)) };
        // The network must not keep itself.
        let weak = Arc::downgrade(&threads.inside);
        net.on_wait(move |call| {
            if let Some(inside) = weak.upgrade() {
                let wait = Wait { until: call.until(), call: Some(call), ..Wait::default() };
                block(&inside, wait);
            }
        });
        threads
    }

    /// Starts one, which runs when it is its turn. Returns what counts its end.
    pub(super) fn spawn(
        &self,
        process: Process,
        name: &'static str,
        body: impl FnOnce() + Send + 'static,
    ) -> Arc<Count> {
        let turn = Arc::new(Turn::default());
        let (own, all, ends) = (Arc::clone(&turn), Arc::clone(&self.inside), Arc::new(Count::default()));
        let mut inside = self.lock();
        inside.next += 1;
        let id = inside.next;
        let end = Arc::clone(&ends);
        let work = move || {
            OWN.with(|cell| *cell.borrow_mut() = Some((id, Arc::clone(&own))));
            own.await_turn();
            let ran = match own.is_killed.load(Ordering::Acquire) {
                true => Ok(()),
                false => catch_unwind(AssertUnwindSafe(body)),
            };
            let failure = ran.err().filter(|panic| !panic.is::<Killed>());
            end.advance();
            OWN.with(|cell| *cell.borrow_mut() = None);
            let mut inside = locked(&all);
            inside.threads.remove(&id);
            if let Some(join) = inside.joins.remove(&id) {
                inside.ended.push(join);
            }
            if failure.is_some() {
                inside.failure.get_or_insert_with(|| format!("the thread {name} of {process:?} has failed"));
            }
            let runner = inside.runner.clone();
            drop(inside);
            own.give_back(runner.as_ref());
        };
        let join = std::thread::Builder::new().name(name.into()).stack_size(512 << 10).spawn(work);
        let join = join.expect("this host has threads left");
        let handle = join.thread().clone();
        inside.joins.insert(id, join);
        inside.threads.insert(id, Known { process, name, wait: Wait::default(), turn, handle });
        ends
    }

    /// Lets the calling thread wait for a time.
    pub(super) fn sleep(&self, time: Duration) {
        self.block(Wait { until: Some(self.net.now() + time), ..Wait::default() });
    }

    /// Lets the calling thread wait until more than this was counted, for a time at most.
    pub(super) fn await_count(&self, count: &Arc<Count>, seen: u64, time_max: Option<Duration>) {
        if count.read() != seen {
            return;
        }
        let until = time_max.map(|time| self.net.now().saturating_add(time));
        let heard = count.for_all.load(Ordering::Acquire);
        count.waiting.fetch_add(1, Ordering::AcqRel);
        self.block(Wait { until, count: Some((Arc::clone(count), heard)), ..Wait::default() });
        let waiting = count.waiting.fetch_sub(1, Ordering::AcqRel) - 1;
        count.due.fetch_min(waiting, Ordering::AcqRel);
    }

    fn block(&self, wait: Wait) {
        block(&self.inside, wait);
    }

    /// Runs each that waits no longer, in an order that the seed decides. Returns how many did.
    pub(super) fn run(&self) -> usize {
        let now = self.net.now();
        let mut inside = self.lock();
        let standing = inside.standing.clone();
        let goes_on = |known: &Known| !standing.contains(&known.process) && known.wait.is_over(now, false);
        let mut due: Vec<u64> =
            inside.threads.iter().filter(|(_, known)| goes_on(known)).map(|(id, _)| *id).collect();
        for place in (1..due.len()).rev() {
            let other = inside.random.index(place + 1);
            due.swap(place, other);
        }
        drop(inside);
        // One of them may end another's process.
        due.retain(|id| self.give_turn(*id, false));
        self.fail();
        due.len()
    }

    fn give_turn(&self, id: u64, is_forced: bool) -> bool {
        let now = self.net.now();
        let mut inside = self.lock();
        let Some(known) = inside.threads.get_mut(&id) else { return false };
        if !is_forced && !known.wait.is_over(now, true) {
            return false;
        }
        known.wait = Wait::default();
        let (turn, handle) = (Arc::clone(&known.turn), known.handle.clone());
        inside.turns += 1;
        inside.runner = Some(std::thread::current());
        let ended = std::mem::take(&mut inside.ended);
        drop(inside);
        ended.into_iter().for_each(|join| join.join().expect("it has caught what it panicked with"));
        turn.is_threads.store(true, Ordering::Release);
        handle.unpark();
        while turn.is_threads.load(Ordering::Acquire) {
            std::thread::park();
        }
        true
    }

    /// When the first goes on, if only time passes; `None`: not by time.
    pub(super) fn next_time(&self) -> Option<Duration> {
        let inside = self.lock();
        let goes = inside.threads.values().filter(|known| !inside.standing.contains(&known.process));
        goes.filter_map(|known| known.wait.until).min()
    }

    /// The threads of a process stand still, or go on.
    pub(super) fn stand_still(&self, process: Process, stands: bool) {
        let mut inside = self.lock();
        inside.standing.retain(|other| *other != process);
        if stands {
            inside.standing.push(process);
        }
    }

    /// Ends the threads of a process, wherever they are. For whoever runs them.
    pub(super) fn kill(&self, process: Process) {
        self.stand_still(process, false);
        loop {
            let inside = self.lock();
            let of = |(id, known): (&u64, &Known)| {
                (known.process == process).then(|| (*id, Arc::clone(&known.turn)))
            };
            let Some((id, turn)) = inside.threads.iter().find_map(of) else { break };
            drop(inside);
            turn.is_killed.store(true, Ordering::Release);
            self.give_turn(id, true);
        }
        self.fail();
    }

    /// Threads of a process that are left, with what they are called.
    pub(super) fn left(&self, process: Process) -> Vec<&'static str> {
        let inside = self.lock();
        inside.threads.values().filter(|known| known.process == process).map(|known| known.name).collect()
    }

    /// How often one was given its turn.
    pub(super) fn turns(&self) -> u64 {
        self.lock().turns
    }

    fn fail(&self) {
        let failure = self.lock().failure.take();
        if let Some(failure) = failure {
            panic!("{failure}");
        }
    }

    fn lock(&self) -> MutexGuard<'_, Inside> {
        locked(&self.inside)
    }
}

fn locked(inside: &Mutex<Inside>) -> MutexGuard<'_, Inside> {
    inside.lock().unwrap_or_else(PoisonError::into_inner)
}

/// The calling thread waits, and another goes on.
fn block(inside: &Mutex<Inside>, wait: Wait) {
    let own = OWN.with(|cell| cell.borrow().clone());
    let (id, turn) = own.expect("whoever runs the threads must not wait");
    if turn.is_killed.load(Ordering::Acquire) {
        return killed();
    }
    let mut known = locked(inside);
    let runner = known.runner.clone();
    if let Some(known) = known.threads.get_mut(&id) {
        known.wait = wait;
    }
    drop(known);
    turn.give_back(runner.as_ref());
    turn.await_turn();
    if turn.is_killed.load(Ordering::Acquire) {
        killed();
    }
}

/// Ends the calling thread, unless it is about to.
fn killed() {
    if !std::thread::panicking() {
        resume_unwind(Box::new(Killed));
    }
}

impl Turn {
    fn await_turn(&self) {
        while !self.is_threads.load(Ordering::Acquire) {
            std::thread::park();
        }
    }

    fn give_back(&self, runner: Option<&Thread>) {
        self.is_threads.store(false, Ordering::Release);
        if let Some(runner) = runner {
            runner.unpark();
        }
    }
}

impl Wait {
    fn is_over(&self, now: Duration, takes: bool) -> bool {
        let waits = self.until.is_some() || self.count.is_some() || self.call.is_some();
        !waits
            || self.until.is_some_and(|until| now >= until)
            || self.count.as_ref().is_some_and(|(count, heard)| count.lets_go(*heard, takes))
            || self.call.as_ref().is_some_and(Waiting::is_over)
    }
}
