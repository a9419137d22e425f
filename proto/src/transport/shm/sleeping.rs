//! The word by which each side tells the other that it sleeps and needs a doorbell.
//!
//! The sleeper sets the word, then looks at the ring; the waker writes the ring, then looks at the word; a full fence lies between the two
//! steps on each side. So one of the two always sees the other (Dekker's rule), and a doorbell costs a system call only when somebody
//! sleeps.

use std::sync::atomic::{AtomicU32, Ordering, fence};

use super::layout::SLEEPS_FOR_ROOM;

/// The shared word: the processor's own, or in tests that of a checker which tries what other processors may see.
pub(super) trait Word {
    fn load(&self, order: Ordering) -> u32;
    fn store(&self, value: u32, order: Ordering);
    fn swap(&self, value: u32, order: Ordering) -> u32;
    /// Puts all that this thread did in front of all that it does next, for every thread that does the same.
    fn full_fence();
}

impl Word for AtomicU32 {
    #[inline]
    fn load(&self, order: Ordering) -> u32 {
        self.load(order)
    }

    #[inline]
    fn store(&self, value: u32, order: Ordering) {
        self.store(value, order);
    }

    #[inline]
    fn swap(&self, value: u32, order: Ordering) -> u32 {
        self.swap(value, order)
    }

    #[inline]
    fn full_fence() {
        fence(Ordering::SeqCst);
    }
}

/// Tells the peer that this side is about to sleep, and for what. `true` when it may: there is nothing by a look behind that.
#[inline]
pub(super) fn may_sleep<W: Word>(own: &W, wants: u32, is_ready: impl FnOnce() -> bool) -> bool {
    own.store(wants, Ordering::Relaxed);
    W::full_fence();
    !is_ready()
}

/// This side does not sleep any more. `true` when the peer has cleared the word: then it rang, or is about to.
#[inline]
pub(super) fn wake<W: Word>(own: &W) -> bool {
    own.swap(0, Ordering::Relaxed) == 0
}

/// The ring was written: messages were sent, or else only taken. `true` when the peer's doorbell is to be rung.
#[inline]
pub(super) fn must_ring<W: Word>(peer: &W, sent: bool) -> bool {
    W::full_fence();
    let wants = peer.load(Ordering::Relaxed);
    wants != 0 && (sent || wants == SLEEPS_FOR_ROOM) && peer.swap(0, Ordering::AcqRel) != 0
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;
    use std::sync::{Arc, Mutex};

    use loom::sync::atomic as checked;

    use super::super::layout::SLEEPS_FOR_MESSAGE;
    use super::*;

    impl Word for checked::AtomicU32 {
        fn load(&self, order: Ordering) -> u32 {
            self.load(order)
        }

        fn store(&self, value: u32, order: Ordering) {
            self.store(value, order);
        }

        fn swap(&self, value: u32, order: Ordering) -> u32 {
            self.swap(value, order)
        }

        fn full_fence() {
            checked::fence(Ordering::SeqCst);
        }
    }

    /// What a side would use that leaves the fence out.
    struct Unfenced(checked::AtomicU32);

    impl Word for Unfenced {
        fn load(&self, order: Ordering) -> u32 {
            self.0.load(order)
        }

        fn store(&self, value: u32, order: Ordering) {
            self.0.store(value, order);
        }

        fn swap(&self, value: u32, order: Ordering) -> u32 {
            self.0.swap(value, order)
        }

        fn full_fence() {}
    }

    /// How it went in one of the orders that processors may take.
    #[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
    struct Outcome {
        sleeps: bool,
        /// By a side that did not sleep: it saw that the peer rang, or would.
        saw_the_ring: Option<bool>,
        rings: u32,
    }

    impl Outcome {
        fn is_lost(&self) -> bool {
            self.sleeps && self.rings == 0
        }
    }

    /// What one side wants, and the other does.
    #[derive(Clone, Copy, Debug)]
    struct Case {
        wants: u32,
        sent: bool,
        messages: u32,
    }

    const CASES: [Case; 3] = [
        Case { wants: SLEEPS_FOR_MESSAGE, sent: true, messages: 1 },
        Case { wants: SLEEPS_FOR_MESSAGE, sent: true, messages: 2 },
        Case { wants: SLEEPS_FOR_ROOM, sent: false, messages: 1 },
    ];

    /// How a side takes the shared word.
    type Side<W> = fn(&Pair) -> &W;

    /// A side that goes to sleep while the other writes the ring: all outcomes, in every order of the steps, and with everything that a
    /// processor may see late. `looks_first`: the sleeper looks before it sets the word.
    fn outcomes<S, K>(case: Case, looks_first: bool, sides: (Side<S>, Side<K>)) -> BTreeSet<Outcome>
    where
        S: Word + 'static,
        K: Word + 'static,
    {
        let found = Arc::new(Mutex::new(BTreeSet::new()));
        let (kept, (of_sleeper, of_waker)) = (Arc::clone(&found), sides);
        loom::model(move || {
            let pair = loom::sync::Arc::new(Pair::new());
            let other = loom::sync::Arc::clone(&pair);
            let waker = loom::thread::spawn(move || {
                let mut rings = 0;
                for message in 1..=case.messages {
                    // As an entry of the ring, and as the count of what was taken.
                    other.ring.store(message, Ordering::Release);
                    rings += u32::from(must_ring(of_waker(&other), case.sent));
                }
                rings
            });
            let is_ready = || pair.ring.load(Ordering::Acquire) != 0;
            let sleeping = of_sleeper(&pair);
            let sleeps = match looks_first {
                false => may_sleep(sleeping, case.wants, is_ready),
                true => {
                    let found = is_ready();
                    may_sleep(sleeping, case.wants, || found)
                }
            };
            let saw_the_ring = (!sleeps).then(|| wake(sleeping));
            let outcome = Outcome { sleeps, saw_the_ring, rings: waker.join().unwrap() };
            kept.lock().unwrap().insert(outcome);
        });
        let found = found.lock().unwrap().clone();
        assert!(!found.is_empty());
        found
    }

    /// The words of one direction, with the fence and without.
    struct Pair {
        ring: checked::AtomicU32,
        sleeping: Unfenced,
    }

    impl Pair {
        fn new() -> Self {
            Self { ring: checked::AtomicU32::new(0), sleeping: Unfenced(checked::AtomicU32::new(0)) }
        }

        fn fenced(&self) -> &checked::AtomicU32 {
            &self.sleeping.0
        }

        fn unfenced(&self) -> &Unfenced {
            &self.sleeping
        }
    }

    // [SHM-16] [SHM-54] [SHM-55] [SHM-56]
    #[test]
    fn sleeping_side_is_woken_once_in_any_order_of_steps() {
        for case in CASES {
            let found = outcomes(case, false, (Pair::fenced, Pair::fenced));
            assert!(found.iter().all(|outcome| !outcome.is_lost()), "{case:?}: {found:?}");
            assert!(found.iter().all(|outcome| outcome.rings <= 1), "{case:?}: {found:?}");
            let told = |outcome: &Outcome| outcome.saw_the_ring.is_none_or(|saw| saw == (outcome.rings > 0));
            assert!(found.iter().all(told), "{case:?}: {found:?}");
            // Both ends of the race were met.
            for sleeps in [true, false] {
                assert!(found.iter().any(|outcome| outcome.sleeps == sleeps), "{case:?}: {found:?}");
            }
        }
    }

    /// The check can fail: any step that is left out, or done in another order, loses a wake.
    #[test]
    fn side_without_fence_or_second_look_sleeps_for_good() {
        for case in CASES {
            let sleeper = outcomes(case, false, (Pair::unfenced, Pair::fenced));
            let waker = outcomes(case, false, (Pair::fenced, Pair::unfenced));
            let first = outcomes(case, true, (Pair::fenced, Pair::fenced));
            for (found, what) in [(sleeper, "sleeper"), (waker, "waker"), (first, "looks first")] {
                assert!(found.iter().any(Outcome::is_lost), "{case:?}, {what}: {found:?}");
            }
        }
    }

    // [SHM-55] Room is nothing to one that wants a message.
    #[test]
    fn side_that_wants_a_message_is_not_woken_by_room() {
        let case = Case { wants: SLEEPS_FOR_MESSAGE, sent: false, messages: 1 };
        let found = outcomes(case, false, (Pair::fenced, Pair::fenced));
        assert!(found.iter().all(|outcome| outcome.rings == 0), "{found:?}");
    }
}
