//! When the loop turns to storage that was waited for.
//!
//! Handing one read to a disk and taking it back costs the loop five to ten microseconds. That is several times the cost of a read from
//! the page cache. The interrupt, and waking the client, take as much CPU time again from others. If they were served as they come, the
//! clients of a disk would halve the rate of all cached reads. So while others are served at once, storage gets a seventeenth of the time,
//! a few transfers in a turn: several together cost less than one by one. When nobody else is there, storage gets all of it. Operations
//! that change names are too rare to need rest.

use std::time::{Duration, Instant};

/// How long after the last message that was answered at once the next may be on its way.
const OTHERS_PRESENT: Duration = Duration::from_micros(20);
/// While others are present, storage moves so many transfers in a turn at most, and rests so many times as long as that took.
const TRANSFERS_PER_TURN: usize = 8;
const REST_PER_TURN: u32 = 16;
/// A turn that took longer was interrupted; nobody rests for that.
const TURN_MAX: Duration = Duration::from_micros(50);
/// How long the loop stays awake for a transfer in the kernel: a solid-state disk answers within it, and a client whose
/// next request waits for the answer is met awake.
const SPIN: Duration = Duration::from_micros(100);

/// Divides the loop's time between storage that was waited for and everything else.
#[derive(Debug)]
pub(crate) struct StorageTurns {
    /// The last message that was answered without waiting.
    others_at: Instant,
    next: Instant,
    /// Storage last finished something, or there was last nothing to wait for.
    active_at: Instant,
    finished: bool,
    /// It was asked for and had to rest: nothing else may wake the loop when it need not any longer.
    rests: bool,
}

impl StorageTurns {
    pub(crate) fn new(now: Instant) -> Self {
        Self { others_at: now, next: now, active_at: now, finished: false, rests: false }
    }

    /// How many transfers storage may move now. `at_once`: messages were answered since the last call, without waiting
    /// for storage, while several clients sent them.
    pub(crate) fn due(&mut self, now: Instant, at_once: bool) -> usize {
        if at_once {
            self.others_at = now;
        }
        let alone = now.saturating_duration_since(self.others_at) > OTHERS_PRESENT;
        self.rests = !alone && now < self.next;
        match (self.rests, alone) {
            (true, _) => 0,
            (false, true) => usize::MAX,
            (false, false) => TRANSFERS_PER_TURN,
        }
    }

    /// Storage had its turn from `began` to `ended` and finished `count` operations.
    pub(crate) fn taken(&mut self, began: Instant, ended: Instant, count: usize) {
        let cost = ended.saturating_duration_since(began).min(TURN_MAX);
        self.finished = count > 0;
        if self.finished {
            self.active_at = ended;
            self.next = ended + cost * REST_PER_TURN;
        }
    }

    /// Nothing waits for storage.
    pub(crate) fn idle(&mut self, now: Instant) {
        self.active_at = now;
        self.finished = false;
        self.rests = false;
    }

    /// Whether the loop asks storage again rather than sleep: always when a turn may have left something or was put off,
    /// and for a while where spinning is the policy.
    pub(crate) fn stays_awake(&self, now: Instant, spins: bool) -> bool {
        self.finished || self.rests || (spins && now.saturating_duration_since(self.active_at) < SPIN)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn us(count: u64) -> Duration {
        Duration::from_micros(count)
    }

    #[test]
    fn due_alone_is_everything_and_beside_others_a_few_at_a_time() {
        let start = Instant::now();
        let mut turns = StorageTurns::new(start);
        assert_eq!(turns.due(start + us(100), false), usize::MAX);
        assert_eq!(turns.due(start + us(101), true), TRANSFERS_PER_TURN);
        assert_eq!(turns.due(start + us(121), false), TRANSFERS_PER_TURN);
        assert_eq!(turns.due(start + us(122), false), usize::MAX);
    }

    // [BUF-24]
    #[test]
    fn due_beside_others_rests_sixteen_times_as_long_as_the_turn_took() {
        let start = Instant::now();
        let mut turns = StorageTurns::new(start);
        turns.taken(start, start + us(8), 1);
        for (at, expected) in [(8, 0), (135, 0), (136, TRANSFERS_PER_TURN), (150, TRANSFERS_PER_TURN)] {
            assert_eq!(turns.due(start + us(at), true), expected, "after {at} us");
        }
        // An interruption is not storage's fault.
        turns.taken(start, start + us(10_000), 1);
        assert_eq!(turns.due(start + us(10_799), true), 0);
        assert_eq!(turns.due(start + us(10_800), true), TRANSFERS_PER_TURN);
    }

    #[test]
    fn loop_stays_awake_while_a_turn_left_work_and_shortly_after() {
        let start = Instant::now();
        let mut turns = StorageTurns::new(start);
        turns.taken(start, start, 1);
        assert!(turns.stays_awake(start + us(1000), false));
        turns.taken(start, start + us(1), 0);
        assert!(!turns.stays_awake(start + us(2), false));
        assert!(turns.stays_awake(start + us(99), true));
        assert!(!turns.stays_awake(start + us(100), true));
    }

    // [BUF-55]
    #[test]
    fn awake_while_a_turn_is_put_off_that_something_new_waits_for() {
        let start = Instant::now();
        let mut turns = StorageTurns::new(start);
        turns.taken(start, start + us(50), 1);
        turns.idle(start + us(51));
        // Handed to storage behind a message that was answered at once.
        assert_eq!(turns.due(start + us(190), true), 0);
        assert!(turns.stays_awake(start + us(191), false));
        assert_eq!(turns.due(start + us(211), false), usize::MAX);
        assert!(!turns.stays_awake(start + us(212), false));
    }
}
