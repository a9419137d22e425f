//! How a thread ends the wait of another one.
//!
//! One word says what the waiting side does: it is awake, it sleeps, or it was called. The sleeper goes from *awake* to *asleep* by one
//! compare-and-exchange, and sleeps only if that succeeds. The caller swaps *called* in, and writes the descriptor only where it finds
//! *asleep*. All changes are of one word, so they have one order, whatever the processors: either the caller's comes first, and the
//! sleeper does not sleep; or the sleeper's does, and the caller rings. A call stays until a sleeper has taken it, so none is lost, and
//! where nobody sleeps it costs no system call. The swaps release and acquire: who takes a call sees what its caller did before.

use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::atomic::{AtomicU32, Ordering};

use rustix::event::{EventfdFlags, eventfd};

const AWAKE: u32 = 0;
const ASLEEP: u32 = 1;
const CALLED: u32 = 2;

/// Ends the wait of the thread that is in [`Endpoint::wait_or`](super::Endpoint::wait_or) with it, from any other thread. One thread
/// sleeps with it at a time.
#[derive(Debug)]
pub struct Interrupt {
    word: AtomicU32,
    bell: OwnedFd,
}

impl Interrupt {
    /// One that nobody has raised. It holds a descriptor.
    pub fn new() -> io::Result<Self> {
        let bell = eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK)?;
        Ok(Self { word: AtomicU32::new(AWAKE), bell })
    }

    /// Ends the wait of who sleeps, or the next one of who is about to. What this thread did before is seen by that one. No system call
    /// where nobody sleeps.
    pub fn raise(&self) {
        if must_ring(&self.word) {
            // It cannot be full: each sleep is rung for once.
            let _ = rustix::io::write(&self.bell, &1u64.to_ne_bytes());
        }
    }

    /// Whether it was raised, and nobody has slept or asked since.
    pub fn take(&self) -> bool {
        self.word.load(Ordering::Relaxed) == CALLED && wake(&self.word)
    }

    /// The caller is about to sleep until [`Interrupt::fd`] is readable, among others. `false`: it was raised, and this takes it; no sleep.
    #[must_use = "who was called must not sleep"]
    pub fn may_sleep(&self) -> bool {
        may_sleep(&self.word)
    }

    /// The caller has slept. `rung`: the descriptor was found readable. Whether it was raised; this takes that.
    #[allow(clippy::must_use_candidate, reason = "who looks for all causes anyway need not know")]
    pub fn woke(&self, rung: bool) -> bool {
        let called = wake(&self.word);
        if rung {
            let _ = rustix::io::read(&self.bell, &mut [0; 8]);
        }
        called
    }

    /// What is readable while a sleeper was called, and until that has woken.
    pub fn fd(&self) -> BorrowedFd<'_> {
        self.bell.as_fd()
    }
}

/// The shared word: the processor's own, or in tests that of a checker.
trait Word {
    fn exchange(&self, from: u32, to: u32) -> bool;
    fn swap(&self, value: u32) -> u32;
}

impl Word for AtomicU32 {
    fn exchange(&self, from: u32, to: u32) -> bool {
        self.compare_exchange(from, to, Ordering::AcqRel, Ordering::Acquire).is_ok()
    }

    fn swap(&self, value: u32) -> u32 {
        self.swap(value, Ordering::AcqRel)
    }
}

/// `true` when the caller may sleep; else it was called, and has taken that.
fn may_sleep<W: Word>(word: &W) -> bool {
    word.exchange(AWAKE, ASLEEP) || {
        word.swap(AWAKE);
        false
    }
}

/// The caller does not sleep any more; whether it was called.
fn wake<W: Word>(word: &W) -> bool {
    word.swap(AWAKE) == CALLED
}

/// `true` when the descriptor is to be written.
fn must_ring<W: Word>(word: &W) -> bool {
    word.swap(CALLED) == ASLEEP
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;
    use std::sync::{Arc, Mutex};

    use loom::sync::atomic as checked;

    use super::*;

    impl Word for checked::AtomicU32 {
        fn exchange(&self, from: u32, to: u32) -> bool {
            self.compare_exchange(from, to, Ordering::AcqRel, Ordering::Acquire).is_ok()
        }

        fn swap(&self, value: u32) -> u32 {
            self.swap(value, Ordering::AcqRel)
        }
    }

    /// A word whose sleeper looks first and then says that it sleeps.
    struct InTwoSteps(checked::AtomicU32);

    impl Word for InTwoSteps {
        fn exchange(&self, from: u32, to: u32) -> bool {
            let is_so = self.0.load(Ordering::SeqCst) == from;
            if is_so {
                self.0.store(to, Ordering::SeqCst);
            }
            is_so
        }

        fn swap(&self, value: u32) -> u32 {
            self.0.swap(value, Ordering::SeqCst)
        }
    }

    /// How it went in one of the orders that processors may take.
    #[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
    struct Outcome {
        /// Sleeps of which nobody else knew an end.
        sleeps: bool,
        rings: u32,
        /// A sleeper that was called and did not see what its caller did before.
        missed: bool,
    }

    struct Pair<W> {
        word: W,
        cause: checked::AtomicU32,
    }

    /// One side goes to sleep while two others call it, each of which does something first.
    fn outcomes<W: Word + 'static>(new: fn() -> W, callers: u32) -> BTreeSet<Outcome> {
        let found = Arc::new(Mutex::new(BTreeSet::new()));
        let kept = Arc::clone(&found);
        loom::model(move || {
            let pair = loom::sync::Arc::new(Pair { word: new(), cause: checked::AtomicU32::new(0) });
            let call = |pair: loom::sync::Arc<Pair<W>>| {
                pair.cause.fetch_add(1, Ordering::Relaxed);
                u32::from(must_ring(&pair.word))
            };
            let threads: Vec<_> = (0..callers)
                .map(|_| {
                    let pair = loom::sync::Arc::clone(&pair);
                    loom::thread::spawn(move || call(pair))
                })
                .collect();
            let sleeps = may_sleep(&pair.word);
            let mut missed = !sleeps && pair.cause.load(Ordering::Relaxed) == 0;
            let rings = threads.into_iter().map(|thread| thread.join().unwrap()).sum();
            if sleeps && rings > 0 {
                missed |= !wake(&pair.word) || pair.cause.load(Ordering::Relaxed) == 0;
            }
            kept.lock().unwrap().insert(Outcome { sleeps, rings, missed });
        });
        let found = found.lock().unwrap().clone();
        assert!(!found.is_empty());
        found
    }

    fn is_lost(outcome: &Outcome) -> bool {
        outcome.sleeps && outcome.rings == 0
    }

    // [PROV-87]
    #[test]
    fn sleeper_is_woken_once_in_any_order_of_steps() {
        for callers in [1, 2] {
            let found = outcomes(|| checked::AtomicU32::new(AWAKE), callers);
            assert!(!found.iter().any(is_lost), "{found:?}");
            assert!(found.iter().all(|outcome| outcome.rings <= 1 && !outcome.missed), "{found:?}");
            // Both ends of the race were met.
            for sleeps in [true, false] {
                assert!(found.iter().any(|outcome| outcome.sleeps == sleeps), "{found:?}");
            }
        }
    }

    /// The check can fail.
    #[test]
    fn sleeper_that_looks_too_early_is_found_asleep_for_good() {
        let found = outcomes(|| InTwoSteps(checked::AtomicU32::new(AWAKE)), 1);
        assert!(found.iter().any(is_lost), "{found:?}");
    }

    // [PROV-87] [PROV-88]
    #[test]
    fn call_stays_until_it_is_taken_and_the_descriptor_is_silent_after() {
        let interrupt = Interrupt::new().unwrap();
        let is_silent = || rustix::io::read(&interrupt.bell, &mut [0; 8]).is_err();
        interrupt.raise();
        interrupt.raise();
        assert!(is_silent(), "nobody sleeps");
        assert!(!interrupt.may_sleep() && interrupt.may_sleep());
        interrupt.raise();
        interrupt.raise();
        interrupt.woke(true);
        assert!(!interrupt.take());
        assert!(is_silent(), "one ring for one sleep");
        interrupt.raise();
        assert!(interrupt.take() && !interrupt.take() && interrupt.may_sleep());
    }
}
