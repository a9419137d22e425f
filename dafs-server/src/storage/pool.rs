//! Threads for operations that may wait.

use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd, RawFd};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::{Receiver, Sender, channel};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::thread::JoinHandle;

use rustix::event::{EventfdFlags, eventfd};

/// Jobs that wait or run at most; above it the caller says that the server is busy.
pub(super) const JOBS_MAX: usize = 16_384;

/// A counter that the event loop watches; written once until it is drained.
pub(super) struct Wake {
    fd: OwnedFd,
    raised: AtomicBool,
}

impl Wake {
    /// Makes the eventfd.
    pub(super) fn new() -> std::io::Result<Self> {
        let fd = eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK)?;
        Ok(Self { fd, raised: AtomicBool::new(false) })
    }

    /// Makes the descriptor readable.
    pub(super) fn raise(&self) {
        if !self.raised.swap(true, Ordering::AcqRel) {
            // Where it fails the counter is full, and the descriptor readable.
            let _ = rustix::io::write(&self.fd, &1u64.to_ne_bytes());
        }
    }

    /// To be called before collecting what was announced; whether anything was.
    pub(super) fn lower(&self) -> bool {
        let raised = self.raised.load(Ordering::Relaxed);
        if raised {
            self.drain();
            self.raised.store(false, Ordering::Release);
            // A raise between the two saw `true` and wrote nothing: what it announced is collected after this.
        }
        raised
    }

    /// Makes the descriptor unreadable, whoever wrote to it (the kernel, where it was given it).
    pub(super) fn drain(&self) {
        let _ = rustix::io::read(&self.fd, &mut [0; 8]);
    }

    /// What to watch.
    pub(super) fn raw_fd(&self) -> RawFd {
        self.fd.as_fd().as_raw_fd()
    }
}

impl AsFd for Wake {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.fd.as_fd()
    }
}

type Work<T> = Box<dyn FnOnce() -> T + Send>;

enum Job<T> {
    /// What is to be done, and the result where that panics.
    Work(Work<T>, T),
    Dispose(Box<dyn Send>),
}

/// A fixed number of threads, a bounded queue, results for one collector.
pub(super) struct Pool<T: Send + 'static> {
    /// Where the threads take jobs from, one after the other; they end when nobody can send any more.
    queue: Arc<Mutex<Receiver<Job<T>>>>,
    jobs: Option<Sender<Job<T>>>,
    done: (Sender<T>, Receiver<T>),
    wake: Arc<Wake>,
    threads: Vec<JoinHandle<()>>,
    /// Invariant: <= `JOBS_MAX`.
    pending_count: usize,
    thread_count: usize,
}

impl<T: Send + 'static> Pool<T> {
    /// A pool of `thread_count` threads (at least one), started with the first job; results raise `wake`.
    pub(super) fn new(thread_count: usize, wake: Arc<Wake>) -> Self {
        let (jobs, queue) = channel();
        Self {
            queue: Arc::new(Mutex::new(queue)),
            jobs: Some(jobs),
            done: channel(),
            wake,
            threads: Vec::new(),
            pending_count: 0,
            thread_count: thread_count.max(1),
        }
    }

    /// Takes a job; `Err` when full, or no thread can be started. `panicked` is its result where it panics.
    pub(super) fn submit(&mut self, work: Work<T>, panicked: T) -> Result<(), ()> {
        if self.pending_count >= JOBS_MAX {
            return Err(());
        }
        if self.threads.len() < self.thread_count && self.threads.len() <= self.pending_count {
            self.start_thread();
        }
        if self.threads.is_empty() {
            return Err(());
        }
        self.send(Job::Work(work, panicked));
        self.pending_count += 1;
        Ok(())
    }

    /// Drops a value on a thread, without a result. Here and now when there is no thread.
    pub(super) fn dispose(&mut self, value: impl Send + 'static) {
        if self.threads.is_empty() {
            self.start_thread();
        }
        if !self.threads.is_empty() {
            self.send(Job::Dispose(Box::new(value)));
        }
    }

    fn send(&self, job: Job<T>) {
        if let Some(jobs) = &self.jobs {
            // The queue lives as long as the pool.
            let _ = jobs.send(job);
        }
    }

    /// Collects results.
    pub(super) fn poll(&mut self, done: &mut Vec<T>) {
        let before = done.len();
        done.extend(self.done.1.try_iter());
        self.pending_count -= done.len() - before;
    }

    /// Jobs submitted and not collected.
    pub(super) fn pending(&self) -> usize {
        self.pending_count
    }

    fn start_thread(&mut self) {
        let (queue, done, wake) = (Arc::clone(&self.queue), self.done.0.clone(), Arc::clone(&self.wake));
        let name = format!("dafs-disk-{}", self.threads.len());
        match std::thread::Builder::new().name(name).spawn(move || run(&queue, &done, &wake)) {
            Ok(thread) => self.threads.push(thread),
            Err(error) => {
                tracing::warn!(%error, threads = self.threads.len(), "cannot start a storage thread")
            }
        }
    }
}

impl<T: Send + 'static> Drop for Pool<T> {
    fn drop(&mut self) {
        self.jobs = None;
        for thread in self.threads.drain(..) {
            let _ = thread.join();
        }
    }
}

/// Runs jobs until the pool closes and none is left. A panic, which has been reported by then, ends the job and not the thread: somebody
/// waits for the result, and others for the thread.
fn run<T>(queue: &Mutex<Receiver<Job<T>>>, done: &Sender<T>, wake: &Wake) {
    loop {
        let Ok(job) = lock(queue).recv() else { return };
        match job {
            Job::Work(work, panicked) => {
                let result = catch_unwind(AssertUnwindSafe(work)).unwrap_or(panicked);
                // The collector lives as long as the pool.
                let _ = done.send(result);
                wake.raise();
            }
            Job::Dispose(value) => drop(catch_unwind(AssertUnwindSafe(|| drop(value)))),
        }
    }
}

/// Queues stay consistent at every step, so a panic elsewhere does not spoil them.
pub(super) fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

#[cfg(test)]
mod tests {
    use super::*;

    // [STOR-20]
    #[test]
    fn pool_given_one_job_too_many_refuses_it_and_does_the_others() {
        let wake = Arc::new(Wake::new().unwrap());
        let mut pool = Pool::new(2, Arc::clone(&wake));
        for n in 0..JOBS_MAX {
            assert_eq!(pool.submit(Box::new(move || n), n), Ok(()), "{n}");
        }
        assert_eq!(pool.submit(Box::new(|| 0), 0), Err(()));
        let mut done = Vec::new();
        while pool.pending() > 0 {
            wake.lower();
            pool.poll(&mut done);
            std::thread::yield_now();
        }
        done.sort_unstable();
        assert!(done.into_iter().eq(0..JOBS_MAX));
        assert_eq!(pool.submit(Box::new(|| 0), 0), Ok(()));
    }
    // [STOR-20]
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
        pool.dispose(Panics);
        pool.submit(Box::new(|| panic!("one that a test wants")), "panicked").unwrap();
        pool.submit(Box::new(|| "went on"), "panicked").unwrap();
        let mut done = Vec::new();
        while pool.pending() > 0 && !pool.threads.iter().all(JoinHandle::is_finished) {
            wake.lower();
            pool.poll(&mut done);
            std::thread::yield_now();
        }
        assert_eq!(done, ["panicked", "went on"]);
    }
}
