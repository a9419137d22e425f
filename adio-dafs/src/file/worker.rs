//! Atomic transfers that nobody waits for: a thread of the file runs them, one after another. So their locks are released whatever the
//! program does, even if it waits for a lock itself.

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::{Receiver, Sender, TryRecvError, channel};
use std::sync::{Arc, Mutex, PoisonError};

use super::access::Moved;
use super::{File, Transfer};
use crate::error::{Class, Error};

/// The thread, once there was something to do. It ends with the file.
#[derive(Default)]
pub(super) struct Worker(Mutex<Option<Sender<Job>>>);

struct Job {
    file: Arc<File>,
    transfer: Transfer<'static>,
    given_up: Arc<AtomicBool>,
    outcome: Sender<Moved>,
}

/// A transfer that the thread has, or has ended.
pub(super) struct Handed {
    outcome: Receiver<Moved>,
    given_up: Arc<AtomicBool>,
    ended: Option<Moved>,
}

impl Worker {
    /// Hands over a transfer that has begun. Does not block, unless there can be no thread.
    pub(super) fn hand(file: &Arc<File>, transfer: Transfer<'static>) -> Handed {
        let (outcome, receiver) = channel();
        let given_up = Arc::new(AtomicBool::new(false));
        let handed = Handed { outcome: receiver, given_up: Arc::clone(&given_up), ended: None };
        let job = Job { file: Arc::clone(file), transfer, given_up, outcome };
        let mut place = file.worker.0.lock().unwrap_or_else(PoisonError::into_inner);
        let jobs = match place.take().or_else(start) {
            Some(jobs) => jobs,
            None => {
                drop(place);
                job.run();
                return handed;
            }
        };
        // The thread is there as long as this end of the channel is.
        let _ = jobs.send(job);
        *place = Some(jobs);
        handed
    }
}

fn start() -> Option<Sender<Job>> {
    let (jobs, to_do) = channel::<Job>();
    let builder = std::thread::Builder::new().name("dafs-atomic".into());
    builder.spawn(move || to_do.into_iter().for_each(Job::run)).ok().map(|_| jobs)
}

impl Job {
    fn run(self) {
        let Self { file, transfer, given_up, outcome } = self;
        let moved = match given_up.load(Ordering::Acquire) {
            true => (0, Ok(())),
            false => file.run_begun_atomic(transfer),
        };
        // First the file: whoever learns of the end may close it.
        drop(file);
        let _ = outcome.send(moved);
    }
}

impl Handed {
    /// Whether it has ended. Does not block.
    pub(super) fn test(&mut self) -> bool {
        if self.ended.is_none() {
            self.ended = match self.outcome.try_recv() {
                Ok(moved) => Some(moved),
                Err(TryRecvError::Empty) => None,
                Err(TryRecvError::Disconnected) => Some(lost()),
            };
        }
        self.ended.is_some()
    }

    /// Blocks until it has ended.
    pub(super) fn wait(&mut self) {
        if self.ended.is_none() {
            self.ended = Some(self.outcome.recv().unwrap_or_else(|_| lost()));
        }
    }

    /// What it moved, when it has ended.
    pub(super) fn outcome(&self) -> Moved {
        self.ended.clone().unwrap_or((0, Ok(())))
    }
}

impl Drop for Handed {
    /// Its memory goes back to the program. Blocks where it has begun.
    fn drop(&mut self) {
        self.given_up.store(true, Ordering::Release);
        self.wait();
    }
}

/// The thread ended by a panic.
fn lost() -> Moved {
    (0, Err(Error::new(Class::Internal, "the thread that ran an atomic transfer has ended")))
}
