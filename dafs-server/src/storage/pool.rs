//! Threads for operations that may wait.

use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd, RawFd};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};
use std::sync::mpsc::{Receiver, Sender, channel};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError, TryLockError};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

pub(super) use dafs_proto::transport::util::lock;
use rustix::event::{EventfdFlags, eventfd};
use rustix::thread::{CpuSet, sched_getaffinity, sched_setaffinity};

use super::fair::{Fair, FaultDomain, Ticket};

/// Jobs that wait or run at most; above it the caller says that the server is busy.
pub(super) const JOBS_MAX: usize = 16_384;

/// A counter that the event loop watches; written once until it is drained.
pub(crate) struct Wake {
    fd: OwnedFd,
    raised: AtomicBool,
}

impl Wake {
    /// Makes the eventfd.
    pub(crate) fn new() -> std::io::Result<Self> {
        let fd = eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK)?;
        Ok(Self { fd, raised: AtomicBool::new(false) })
    }

    /// Makes the descriptor readable.
    pub(crate) fn raise(&self) {
        if !self.raised.swap(true, Ordering::AcqRel) {
            // Where it fails the counter is full, and the descriptor readable.
            let _ = rustix::io::write(&self.fd, &1u64.to_ne_bytes());
        }
    }

    /// To be called before collecting what was announced; whether anything was.
    pub(crate) fn lower(&self) -> bool {
        let raised = self.raised.load(Ordering::Relaxed);
        if raised {
            self.drain();
            self.raised.store(false, Ordering::Release);
            // A raise between the two saw `true` and wrote nothing: what it announced is collected after this.
        }
        raised
    }

    /// Makes the descriptor unreadable, whoever wrote to it (the kernel, where it was given it).
    pub(crate) fn drain(&self) {
        let _ = rustix::io::read(&self.fd, &mut [0; 8]);
    }

    /// What to watch.
    pub(crate) fn raw_fd(&self) -> RawFd {
        self.fd.as_fd().as_raw_fd()
    }
}

impl AsFd for Wake {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.fd.as_fd()
    }
}

/// What is to be done; it may turn out to belong elsewhere.
pub(super) type Work<T> = Box<dyn FnOnce() -> Ran<T> + Send>;

/// What came of running a job.
pub(super) enum Ran<T> {
    /// Its result.
    Done(T),
    /// It goes on where threads may hang.
    Beyond(FaultDomain, Work<T>),
}

enum Job<T> {
    /// What is to be done, and the result where that panics.
    Work(Work<T>, T),
    Dispose(Box<dyn Send>),
}

/// After the end of a pool a thread hangs that is where it may, and is not back after this long.
const HANGS_AFTER: Duration = Duration::from_secs(1);

/// How long a thread may be with a job before others are woken for what waits behind it: most jobs take less, and one thread does many of
/// them in the time in which another wakes up.
const PATIENCE: Duration = Duration::from_micros(50);

/// A bounded number of threads, a bounded queue that is fair, results for one collector.
///
/// While the collector watches ([`Pool::watch`]), threads are woken as they are needed: one for a batch of jobs, and others as long as
/// jobs stand still. While it does not, there is a thread for each job, as far as there are so many.
pub(super) struct Pool<T: Send + 'static> {
    desk: Arc<Desk<T>>,
    results: Receiver<T>,
    threads: Vec<JoinHandle<()>>,
    watched: bool,
    /// Jobs were submitted that no thread was woken for.
    unannounced: bool,
    standstill: Standstill,
    /// Invariant: <= `JOBS_MAX`.
    pending_count: usize,
    thread_count: usize,
    /// What threads run on, wherever their worker does.
    cpus: Option<CpuSet>,
    /// What was left to a thread to be dropped.
    #[cfg(test)]
    pub(super) disposals: usize,
}

/// Where threads take jobs from and leave results.
struct Desk<T> {
    state: Mutex<JobQueue<T>>,
    work: Condvar,
    done: Sender<T>,
    wake: Arc<Wake>,
    /// Jobs that no thread has taken, and how many were; as of the last change of the queue.
    waiting: AtomicUsize,
    taken: AtomicU64,
}

struct JobQueue<T> {
    jobs: Fair<Job<T>>,
    /// Threads that sleep, those of them that were woken, and those that were started; the latter two have not looked yet.
    idle_count: usize,
    woken_count: usize,
    starting_count: usize,
    /// Who took a job last, and when, until it sleeps.
    last: Option<(usize, Instant)>,
    /// Threads that have not ended.
    alive_count: usize,
    /// No more jobs come.
    closed: bool,
}

impl<T> JobQueue<T> {
    /// A thread is about to look for a job, or was with its last one not for long.
    fn is_attended(&self, now: Instant) -> bool {
        self.called() > 0
            || self.last.is_some_and(|(_, since)| now.saturating_duration_since(since) < PATIENCE)
    }

    /// Threads that are about to look.
    fn called(&self) -> usize {
        self.woken_count + self.starting_count
    }

    /// Threads that sleep and were not woken.
    fn sleeping(&self) -> usize {
        self.idle_count.saturating_sub(self.woken_count)
    }
}

/// Since when no job was taken although some wait, and how many threads are called if that lasts.
#[derive(Debug, Default)]
struct Standstill {
    since: Option<(u64, Instant)>,
    step: usize,
}

impl Standstill {
    /// Jobs wait at `now`, and so many were taken: how many threads are to be called.
    fn look(&mut self, taken: u64, now: Instant) -> usize {
        match self.since {
            Some((before, since)) if before == taken => {
                if now.saturating_duration_since(since) < PATIENCE {
                    return 0;
                }
                self.since = Some((taken, now));
                // Twice as many each time.
                let count = self.step;
                self.step = count.saturating_mul(2);
                count
            }
            _ => {
                *self = Self { since: Some((taken, now)), step: 1 };
                0
            }
        }
    }
}

impl<T: Send + 'static> Pool<T> {
    /// A pool of `thread_count` threads at most (at least one), started as they are needed; results raise `wake`.
    pub(super) fn new(thread_count: usize, wake: Arc<Wake>) -> Self {
        let (done, results) = channel();
        let thread_count = thread_count.max(1);
        let state = JobQueue {
            jobs: Fair::new(thread_count),
            idle_count: 0,
            woken_count: 0,
            starting_count: 0,
            last: None,
            alive_count: 0,
            closed: false,
        };
        let (waiting, taken) = Default::default();
        Self {
            desk: Arc::new(Desk {
                state: Mutex::new(state),
                work: Condvar::new(),
                done,
                wake,
                waiting,
                taken,
            }),
            results,
            threads: Vec::new(),
            watched: false,
            unannounced: false,
            standstill: Standstill::default(),
            pending_count: 0,
            thread_count,
            // Before any worker is pinned.
            cpus: sched_getaffinity(None).ok(),
            #[cfg(test)]
            disposals: 0,
        }
    }

    /// Takes a job; `Err` when full, or no thread can be started. `panicked` is its result where it panics.
    pub(super) fn submit(&mut self, ticket: Ticket, work: Work<T>, panicked: T) -> Result<(), ()> {
        if self.pending_count >= JOBS_MAX || !self.ensure_thread() {
            return Err(());
        }
        self.send(ticket, Job::Work(work, panicked));
        self.pending_count += 1;
        Ok(())
    }

    /// Drops a value on a thread, without a result. `domain`: where that may hang. Here and now when there is no thread.
    pub(super) fn dispose(&mut self, domain: Option<FaultDomain>, value: impl Send + 'static) {
        if self.ensure_thread() {
            let domain = domain.unwrap_or(FaultDomain::DISPOSAL);
            #[cfg(test)]
            {
                self.disposals += 1;
            }
            self.send(Ticket { client: u64::MAX, domain: Some(domain) }, Job::Dispose(Box::new(value)));
        }
    }

    /// There is a thread.
    fn ensure_thread(&mut self) -> bool {
        if self.threads.is_empty() {
            self.start_thread();
        }
        !self.threads.is_empty()
    }

    /// Threads hear of it at once, or while the collector watches with the next [`Pool::announce`].
    fn send(&mut self, ticket: Ticket, job: Job<T>) {
        let mut state = lock(&self.desk.state);
        state.jobs.push(ticket, job);
        self.desk.waiting.fetch_add(1, Ordering::Relaxed);
        drop(state);
        self.unannounced = true;
        if !self.watched {
            self.announce();
        }
    }

    /// Whether the collector calls [`Pool::poll`] again and again, without sleeping meanwhile.
    pub(super) fn watch(&mut self, watched: bool) {
        self.watched = watched;
        self.announce();
    }

    /// Lets threads know of what was submitted.
    pub(super) fn announce(&mut self) {
        if self.watched && !self.unannounced || self.desk.waiting.load(Ordering::Relaxed) == 0 {
            return;
        }
        let new = std::mem::take(&mut self.unannounced);
        if !self.watched {
            return self.call(usize::MAX);
        }
        if new && !lock(&self.desk.state).is_attended(Instant::now()) {
            self.call(1);
        }
    }

    /// Calls so many threads, no more than there are jobs that nobody was called for.
    fn call(&mut self, count: usize) {
        let mut state = lock(&self.desk.state);
        let waiting = self.desk.waiting.load(Ordering::Relaxed);
        let count = count.min(waiting.saturating_sub(state.called()));
        let woken = count.min(state.sleeping());
        state.woken_count += woken;
        drop(state);
        (0..woken).for_each(|_| self.desk.work.notify_one());
        let room = self.thread_count.saturating_sub(self.threads.len());
        (0..room.min(count - woken)).for_each(|_| self.start_thread());
    }

    /// Collects results.
    pub(super) fn poll(&mut self, done: &mut Vec<T>) {
        self.announce();
        if self.watched && self.desk.waiting.load(Ordering::Relaxed) > 0 {
            let more = self.standstill.look(self.desk.taken.load(Ordering::Relaxed), Instant::now());
            if more > 0 {
                self.call(more);
            }
        }
        let before = done.len();
        done.extend(self.results.try_iter());
        self.pending_count -= done.len() - before;
    }

    /// Jobs submitted and not collected.
    pub(super) fn pending(&self) -> usize {
        self.pending_count
    }

    fn start_thread(&mut self) {
        let desk = Arc::clone(&self.desk);
        let number = self.threads.len();
        let mut state = lock(&desk.state);
        (state.alive_count, state.starting_count) = (state.alive_count + 1, state.starting_count + 1);
        drop(state);
        let name = format!("dafs-disk-{number}");
        let cpus = self.cpus;
        let run = move || {
            // Where that fails it runs where its worker does.
            let _ = cpus.map(|cpus| sched_setaffinity(None, &cpus));
            desk.run(number);
        };
        match std::thread::Builder::new().name(name).spawn(run) {
            Ok(thread) => self.threads.push(thread),
            Err(error) => {
                let mut state = lock(&self.desk.state);
                (state.alive_count, state.starting_count) = (state.alive_count - 1, state.starting_count - 1);
                drop(state);
                tracing::warn!(%error, threads = self.threads.len(), "cannot start a storage thread")
            }
        }
    }
}

impl<T: Send + 'static> Drop for Pool<T> {
    /// Waits until all is done, but for what hangs for good.
    fn drop(&mut self) {
        let mut state = lock(&self.desk.state);
        state.closed = true;
        self.desk.work.notify_all();
        while state.alive_count > 0 {
            let waited = self.desk.work.wait_timeout(state, HANGS_AFTER);
            let (next, waited) = waited.unwrap_or_else(PoisonError::into_inner);
            state = next;
            if waited.timed_out() && state.jobs.runs_only_in_domains() {
                tracing::warn!(
                    threads = state.alive_count,
                    "cannot wait for storage threads: they hang, perhaps on a mount whose server is down; the server exits without them"
                );
                // To drop what waits might hang as well.
                std::mem::forget(std::mem::replace(&mut state.jobs, Fair::new(self.thread_count)));
                self.desk.work.notify_all();
                return;
            }
        }
        drop(state);
        for thread in self.threads.drain(..) {
            let _ = thread.join();
        }
    }
}

impl<T: Send + 'static> Desk<T> {
    /// Runs jobs until the pool closes and none is left. A panic, which has been reported by then, ends the job and not the thread:
    /// somebody waits for the result, and others for the thread.
    fn run(&self, number: usize) {
        let mut state = lock(&self.state);
        state.starting_count -= 1;
        loop {
            let Some((ticket, job)) = state.jobs.take() else {
                if state.closed && state.jobs.is_empty() {
                    state.alive_count -= 1;
                    self.work.notify_all();
                    return;
                }
                if state.last.is_some_and(|(last, _)| last == number) {
                    state.last = None;
                }
                state.idle_count += 1;
                state = self.work.wait(state).unwrap_or_else(PoisonError::into_inner);
                state.idle_count -= 1;
                state.woken_count = state.woken_count.saturating_sub(1);
                continue;
            };
            self.waiting.fetch_sub(1, Ordering::Relaxed);
            self.taken.fetch_add(1, Ordering::Relaxed);
            state.last = Some((number, Instant::now()));
            drop(state);
            let more = self.carry_out(job);
            state = lock(&self.state);
            state.jobs.done(ticket);
            // What had to leave a thread to others may run now: this one looks for it next. The last to go lets the rest see that all is
            // done.
            if state.closed {
                self.work.notify_all();
            }
            if let Some((domain, job)) = more {
                state.jobs.push(Ticket { domain: Some(domain), ..ticket }, job);
                self.waiting.fetch_add(1, Ordering::Relaxed);
                // This one may find another job, and nobody was called for that which is new.
                if state.sleeping() > 0 {
                    state.woken_count += 1;
                    self.work.notify_one();
                }
            }
        }
    }

    /// What is left of the job.
    fn carry_out(&self, job: Job<T>) -> Option<(FaultDomain, Job<T>)> {
        match job {
            Job::Work(work, panicked) => {
                let result = match catch_unwind(AssertUnwindSafe(work)) {
                    Ok(Ran::Beyond(domain, work)) => return Some((domain, Job::Work(work, panicked))),
                    Ok(Ran::Done(result)) => result,
                    Err(_) => panicked,
                };
                // The collector lives as long as the pool.
                let _ = self.done.send(result);
                self.wake.raise();
            }
            Job::Dispose(value) => drop(catch_unwind(AssertUnwindSafe(|| drop(value)))),
        }
        None
    }
}

/// Locks, where nobody has it now.
pub(super) fn try_lock<T>(mutex: &Mutex<T>) -> Option<MutexGuard<'_, T>> {
    match mutex.try_lock() {
        Ok(guard) => Some(guard),
        Err(TryLockError::Poisoned(poisoned)) => Some(poisoned.into_inner()),
        Err(TryLockError::WouldBlock) => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const ALICE: Ticket = Ticket { client: 1, domain: None };
    const BOB: Ticket = Ticket { client: 2, domain: None };

    #[test]
    fn pool_given_one_job_too_many_refuses_it_and_does_the_others() {
        let wake = Arc::new(Wake::new().unwrap());
        let mut pool = Pool::new(2, Arc::clone(&wake));
        for n in 0..JOBS_MAX {
            assert_eq!(pool.submit(ALICE, Box::new(move || Ran::Done(n)), n), Ok(()), "{n}");
        }
        assert_eq!(pool.submit(ALICE, Box::new(|| Ran::Done(0)), 0), Err(()));
        let mut done = Vec::new();
        while pool.pending() > 0 {
            wake.lower();
            pool.poll(&mut done);
            std::thread::yield_now();
        }
        done.sort_unstable();
        assert!(done.into_iter().eq(0..JOBS_MAX));
        assert_eq!(pool.submit(ALICE, Box::new(|| Ran::Done(0)), 0), Ok(()));
    }
    // [STOR-88]
    #[test]
    fn job_that_panics_has_a_result_and_leaves_its_thread_to_others() {
        struct Panics;
        impl Drop for Panics {
            fn drop(&mut self) {
                panic!("one that a test wants");
            }
        }
        let wake = Arc::new(Wake::new().unwrap());
        let mut pool = Pool::new(1, Arc::clone(&wake));
        pool.dispose(None, Panics);
        pool.submit(ALICE, Box::new(|| panic!("one that a test wants")), "panicked").unwrap();
        pool.submit(ALICE, Box::new(|| Ran::Done("went on")), "panicked").unwrap();
        let mut done = Vec::new();
        while pool.pending() > 0 && !pool.threads.iter().all(JoinHandle::is_finished) {
            wake.lower();
            pool.poll(&mut done);
            std::thread::yield_now();
        }
        assert_eq!(done, ["panicked", "went on"]);
    }
    fn collect<T: Send + 'static>(pool: &mut Pool<T>, count: usize) -> Vec<T> {
        let mut done = Vec::new();
        while done.len() < count {
            pool.desk.wake.lower();
            pool.poll(&mut done);
            std::thread::yield_now();
        }
        done
    }

    // [STOR-33] [STOR-95]
    #[test]
    fn jobs_of_one_client_that_hang_do_not_stand_before_another_s() {
        let mut pool = Pool::new(4, Arc::new(Wake::new().unwrap()));
        let hold = Arc::new(Mutex::new(()));
        let held = hold.lock().unwrap();
        for n in 0..64 {
            let hold = Arc::clone(&hold);
            let work = move || {
                drop(hold.lock());
                Ran::Done(n)
            };
            pool.submit(ALICE, Box::new(work), n).unwrap();
        }
        pool.submit(BOB, Box::new(|| Ran::Done(100)), 100).unwrap();
        assert_eq!(collect(&mut pool, 1), [100]);
        drop(held);
        assert_eq!(collect(&mut pool, 64).len(), 64);
    }

    // [STOR-34]
    #[test]
    fn jobs_that_hang_beyond_a_mount_leave_threads_to_others() {
        let mut pool = Pool::new(4, Arc::new(Wake::new().unwrap()));
        let hold = Arc::new(Mutex::new(()));
        let held = hold.lock().unwrap();
        for client in 0..20 {
            let hold = Arc::clone(&hold);
            let beyond = Box::new(move || {
                drop(hold.lock());
                Ran::Done("hung")
            });
            let work = Box::new(move || Ran::Beyond(FaultDomain::of("mount"), beyond));
            pool.submit(Ticket { client, domain: None }, work, "panicked").unwrap();
        }
        for _ in 0..10 {
            pool.submit(BOB, Box::new(|| Ran::Done("well")), "panicked").unwrap();
            assert_eq!(collect(&mut pool, 1), ["well"]);
        }
        drop(held);
        assert_eq!(collect(&mut pool, 20), ["hung"; 20]);
    }
    // [STOR-34]
    #[test]
    fn pool_that_ends_leaves_threads_behind_that_hang_for_good() {
        let mut pool = Pool::new(4, Arc::new(Wake::new().unwrap()));
        let (release, held) = channel::<()>();
        let hanging = Ticket { client: 1, domain: Some(FaultDomain::of("mount")) };
        let work = move || {
            let _ = held.recv();
            Ran::Done(1)
        };
        pool.submit(hanging, Box::new(work), 0).unwrap();
        pool.submit(hanging, Box::new(|| Ran::Done(2)), 0).unwrap();
        pool.submit(BOB, Box::new(|| Ran::Done(3)), 0).unwrap();
        assert_eq!(collect(&mut pool, 1), [3]);
        drop(pool);
        drop(release);
    }

    /// Jobs that wait until somebody lets them go on, each with what it takes for that; and how many were taken once that is so many.
    fn held(pool: &mut Pool<usize>, count: usize) -> Vec<Sender<()>> {
        let holds = (0..count).map(|n| {
            let (release, held) = channel::<()>();
            let work = move || {
                let _ = held.recv();
                Ran::Done(n)
            };
            pool.submit(ALICE, Box::new(work), n).unwrap();
            release
        });
        holds.collect()
    }

    fn await_taken(pool: &Pool<usize>, count: u64) {
        while pool.desk.taken.load(Ordering::Relaxed) < count {
            std::thread::yield_now();
        }
    }

    // [STOR-20]
    #[test]
    fn thread_is_called_for_a_batch_and_others_while_it_stands_still() {
        let mut pool = Pool::new(8, Arc::new(Wake::new().unwrap()));
        pool.watch(true);
        let holds = held(&mut pool, 5);
        assert_eq!(pool.threads.len(), 1, "there is one at least");
        pool.announce();
        await_taken(&pool, 1);
        assert_eq!(pool.threads.len(), 1);
        let start = Instant::now();
        assert_eq!(pool.standstill.look(1, start), 0);
        assert_eq!(pool.standstill.look(1, start + PATIENCE / 2), 0);
        // Nobody comes to the rest: more and more are called, and one after somebody has come.
        let looks = [1, 2, 3].map(|times| pool.standstill.look(1, start + times * PATIENCE));
        assert_eq!(looks, [1, 2, 4]);
        assert_eq!(pool.standstill.look(2, start + 4 * PATIENCE), 0);
        assert_eq!(pool.standstill.look(2, start + 5 * PATIENCE), 1);
        pool.call(1);
        await_taken(&pool, 2);
        // Who does not watch has a thread for each.
        pool.watch(false);
        await_taken(&pool, 5);
        let more = held(&mut pool, 2);
        await_taken(&pool, 6);
        drop((holds, more));
        let mut done = collect(&mut pool, 7);
        done.sort_unstable();
        assert_eq!(done, [0, 0, 1, 1, 2, 3, 4]);
    }

    // [STOR-20]
    #[test]
    fn job_behind_one_that_takes_long_has_a_thread_of_its_own() {
        let mut pool = Pool::new(8, Arc::new(Wake::new().unwrap()));
        pool.watch(true);
        let first = held(&mut pool, 1);
        pool.announce();
        await_taken(&pool, 1);
        let since = lock(&pool.desk.state).last.unwrap().1;
        assert!(lock(&pool.desk.state).is_attended(since + PATIENCE / 2));
        assert!(!lock(&pool.desk.state).is_attended(since + PATIENCE));
        // However long that is ago, the collector sees that nobody takes it.
        let second = held(&mut pool, 1);
        let mut done = Vec::new();
        while pool.desk.taken.load(Ordering::Relaxed) < 2 {
            pool.poll(&mut done);
            std::thread::yield_now();
        }
        drop(second);
        assert_eq!(collect(&mut pool, 1), [0]);
        drop(first);
        assert_eq!(collect(&mut pool, 1), [0]);
    }
}
