//! Locks that a session's client waits for without a request in flight: whose turn has come, and whether the client has asked again.

use std::collections::{HashMap, VecDeque};
use std::time::Duration;

use dafs_proto::session::Moment;
use dafs_proto::wire::{LockKind, LockTurn};

/// What a session waits for, and what of it was granted and not asked for again. As many at most as it may have locks.
#[derive(Debug, Default)]
pub(crate) struct LockTurns {
    untold: VecDeque<LockTurn>,
    /// Since when it is granted; `None` while it waits. An owner may wait for one range in both kinds.
    awaited: HashMap<(LockTurn, LockKind), Option<Moment>>,
}

impl LockTurns {
    /// The client was told that it waits.
    pub(crate) fn wait(&mut self, turn: LockTurn, kind: LockKind) {
        self.awaited.insert((turn, kind), None);
    }

    /// The turn of a lock has come. Another worker may say so when the client has asked again already.
    pub(crate) fn come(&mut self, turn: LockTurn, kind: LockKind, now: Moment) {
        if let Some(since) = self.awaited.get_mut(&(turn, kind)) {
            *since = Some(now);
            self.untold.push_back(turn);
        }
    }

    /// The client has it, or gives it up.
    pub(crate) fn claim(&mut self, turn: LockTurn, kind: LockKind) {
        // Mostly there are none, and to look for one costs as much as a lock.
        if !self.awaited.is_empty() {
            self.awaited.remove(&(turn, kind));
        }
    }

    /// There are some to be told of.
    pub(crate) fn are_untold(&self) -> bool {
        !self.untold.is_empty()
    }

    /// The next to be told of.
    pub(crate) fn tell(&mut self) -> Option<LockTurn> {
        while let Some(turn) = self.untold.pop_front() {
            let has_come = |kind| self.awaited.get(&(turn, kind)).is_some_and(Option::is_some);
            if has_come(LockKind::Shared) || has_come(LockKind::Exclusive) {
                return Some(turn);
            }
        }
        None
    }

    /// The client is on a new connection: it asks for all that it waits for again.
    pub(crate) fn on_resumed(&mut self) {
        self.untold.clear();
    }

    /// Takes out what was not claimed for so long.
    pub(crate) fn take_ignored(&mut self, now: Moment, patience: Duration) -> Vec<LockTurn> {
        if self.awaited.is_empty() {
            return Vec::new();
        }
        let is_ignored = |since: &Option<Moment>| since.is_some_and(|since| now >= since.after(patience));
        self.awaited.extract_if(|_, since| is_ignored(since)).map(|((turn, _), _)| turn).collect()
    }
}

#[cfg(test)]
mod tests {
    use LockKind::{Exclusive, Shared};

    use super::*;

    fn turn(owner: u64) -> LockTurn {
        LockTurn { handle: 1, offset: 0, len: 1, owner }
    }

    fn waiting(owners: [u64; 2]) -> LockTurns {
        let mut turns = LockTurns::default();
        owners.into_iter().for_each(|owner| turns.wait(turn(owner), Exclusive));
        turns
    }

    // [LOCK-27]
    #[test]
    fn turn_that_nobody_claims_is_taken_back() {
        let (now, patience) = (Moment::default(), Duration::from_secs(3));
        let mut turns = waiting([1, 2]);
        turns.come(turn(1), Exclusive, now);
        turns.come(turn(2), Exclusive, now);
        assert_eq!((turns.tell(), turns.tell(), turns.tell()), (Some(turn(1)), Some(turn(2)), None));
        turns.claim(turn(1), Exclusive);
        assert_eq!(turns.take_ignored(now.after(patience - Duration::from_nanos(1)), patience), []);
        assert_eq!(turns.take_ignored(now.after(patience), patience), [turn(2)]);
        assert_eq!(turns.take_ignored(now.after(patience), patience), []);
    }

    #[test]
    fn turn_that_was_claimed_before_it_was_told_is_not_told() {
        let mut turns = waiting([1, 2]);
        turns.come(turn(1), Exclusive, Moment::default());
        turns.come(turn(2), Exclusive, Moment::default());
        turns.claim(turn(1), Exclusive);
        assert!(turns.are_untold());
        assert_eq!((turns.tell(), turns.are_untold()), (Some(turn(2)), false));
    }

    #[test]
    fn lock_whose_turn_comes_after_it_was_claimed_is_not_taken_back() {
        let (now, patience) = (Moment::default(), Duration::from_secs(3));
        let mut turns = waiting([1, 2]);
        turns.claim(turn(1), Exclusive);
        turns.come(turn(1), Exclusive, now);
        assert!(!turns.are_untold());
        assert_eq!(turns.take_ignored(now.after(patience), patience), []);
        // Who waits again is told.
        turns.wait(turn(1), Exclusive);
        assert_eq!(turns.take_ignored(now.after(patience), patience), []);
        turns.come(turn(1), Exclusive, now);
        assert_eq!(turns.tell(), Some(turn(1)));
    }

    #[test]
    fn owner_that_waits_in_both_kinds_is_told_of_either() {
        let (now, mut turns) = (Moment::default(), LockTurns::default());
        turns.wait(turn(1), Shared);
        turns.wait(turn(1), Exclusive);
        turns.come(turn(1), Shared, now);
        assert_eq!(turns.tell(), Some(turn(1)));
        // It asks for both again, and has one.
        turns.wait(turn(1), Exclusive);
        turns.claim(turn(1), Shared);
        turns.come(turn(1), Exclusive, now);
        assert_eq!((turns.tell(), turns.tell()), (Some(turn(1)), None));
    }
}
