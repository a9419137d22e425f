//! Locks that a session's client waits for without a request in flight: whose turn has come, and whether the client has asked again.

use std::collections::{HashMap, VecDeque};
use std::time::Duration;

use dafs_proto::session::Moment;
use dafs_proto::wire::{LockKind, LockTurn};

use crate::storage::work;

/// What a session waits for, and what of it was granted and not asked for again. As many at most as it may have locks.
#[derive(Debug, Default)]
pub(crate) struct LockTurns {
    untold: VecDeque<LockTurn>,
    /// An owner may wait for one range in both kinds.
    awaited: HashMap<(LockTurn, LockKind), Turn>,
}

/// What has become of a wait.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Turn {
    Waits,
    /// It is granted, since then.
    Granted(Moment),
    /// So it is, and its client was told then.
    Told(Moment),
    /// It has ended without a lock. Its client is told that, and is expected to do nothing.
    Refused,
}

impl LockTurns {
    /// The client was told that it waits.
    pub(crate) fn wait(&mut self, turn: LockTurn, kind: LockKind) {
        self.awaited.insert((turn, kind), Turn::Waits);
    }

    /// The turn of a lock has come, which is granted since then, or refused. Another worker may say so when the client has asked again
    /// already.
    pub(crate) fn come(&mut self, turn: LockTurn, kind: LockKind, granted: Option<Moment>) {
        if let Some(wait) = self.awaited.get_mut(&(turn, kind)) {
            *wait = granted.map_or(Turn::Refused, Turn::Granted);
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

    /// The client gives back all of those that are meant, as far as it was told of them: of others it is told later, and asks. One look
    /// at each.
    pub(crate) fn claim_told(&mut self, is_meant: impl Fn(&LockTurn) -> bool) {
        work::add_looks(self.awaited.len());
        self.awaited.retain(|(turn, _), wait| !(matches!(wait, Turn::Told(_)) && is_meant(turn)));
    }

    /// It waits for none, and was granted none that it has not asked for again.
    pub(crate) fn is_empty(&self) -> bool {
        self.awaited.is_empty()
    }

    /// There are some to be told of.
    pub(crate) fn are_untold(&self) -> bool {
        !self.untold.is_empty()
    }

    /// The next to be told of, now.
    pub(crate) fn tell(&mut self, now: Moment) -> Option<LockTurn> {
        while let Some(turn) = self.untold.pop_front() {
            let mut has_come = false;
            for kind in [LockKind::Shared, LockKind::Exclusive] {
                let Some(wait) = self.awaited.get_mut(&(turn, kind)) else { continue };
                has_come |= *wait != Turn::Waits;
                match *wait {
                    Turn::Granted(_) => *wait = Turn::Told(now),
                    Turn::Refused => drop(self.awaited.remove(&(turn, kind))),
                    Turn::Waits | Turn::Told(_) => {}
                }
            }
            if has_come {
                return Some(turn);
            }
        }
        None
    }

    /// The client is on a new connection: it asks for all that it waits for again.
    pub(crate) fn on_resumed(&mut self) {
        self.untold.clear();
        self.awaited.retain(|_, wait| *wait != Turn::Refused);
    }

    /// For so long nothing was read: `later` tells what then was.
    pub(crate) fn on_stall(&mut self, later: impl Fn(Moment) -> Moment) {
        for wait in self.awaited.values_mut() {
            if let Turn::Granted(since) | Turn::Told(since) = wait {
                *since = later(*since);
            }
        }
    }

    /// Takes out what was not claimed for so long. A client that could not be told is told all the same, and asks again.
    pub(crate) fn take_ignored(&mut self, now: Moment, patience: Duration) -> Vec<LockTurn> {
        let mut ignored = Vec::new();
        self.awaited.retain(|(turn, _), wait| {
            let (Turn::Granted(since) | Turn::Told(since)) = *wait else { return true };
            let is_ignored = now >= since.after(patience);
            let is_told = matches!(wait, Turn::Told(_));
            if is_ignored {
                ignored.push(*turn);
                *wait = Turn::Refused;
            }
            !(is_ignored && is_told)
        });
        ignored
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
        turns.come(turn(1), Exclusive, Some(now));
        turns.come(turn(2), Exclusive, Some(now));
        assert_eq!(
            (turns.tell(Moment::default()), turns.tell(Moment::default()), turns.tell(Moment::default())),
            (Some(turn(1)), Some(turn(2)), None)
        );
        turns.claim(turn(1), Exclusive);
        assert_eq!(turns.take_ignored(now.after(patience - Duration::from_nanos(1)), patience), []);
        assert_eq!(turns.take_ignored(now.after(patience), patience), [turn(2)]);
        assert_eq!(turns.take_ignored(now.after(patience), patience), []);
    }

    // [LOCK-25] [LOCK-27]
    #[test]
    fn untold_lock_turn_is_told_after_it_was_taken_back() {
        let (now, patience) = (Moment::default(), Duration::from_secs(3));
        let mut turns = waiting([1, 2]);
        turns.come(turn(1), Exclusive, Some(now));
        turns.come(turn(2), Exclusive, Some(now));
        let late = now.after(patience - Duration::from_nanos(1000));
        assert_eq!(turns.tell(late), Some(turn(1)), "from now on it may take as long");
        assert_eq!(turns.take_ignored(now.after(patience), patience), [turn(2)]);
        assert_eq!(turns.take_ignored(now.after(patience), patience), []);
        assert_eq!(turns.tell(now.after(patience)), Some(turn(2)), "its client waits for that");
        assert_eq!(turns.take_ignored(late.after(patience), patience), [turn(1)]);
        assert!(turns.is_empty() && !turns.are_untold());
    }

    // [LOCK-63] [SESS-47]
    #[test]
    fn turn_is_not_ignored_while_nothing_is_read() {
        let (now, patience, stall) = (Moment::default(), Duration::from_secs(3), Duration::from_secs(60));
        let mut turns = waiting([1, 2]);
        turns.come(turn(1), Exclusive, Some(now));
        turns.come(turn(2), Exclusive, Some(now));
        assert_eq!(turns.tell(now), Some(turn(1)));
        turns.on_stall(|moment| moment.after(stall));
        assert_eq!(turns.take_ignored(now.after(stall), patience), []);
        assert_eq!(turns.take_ignored(now.after(stall + patience), patience).len(), 2);
    }

    // [LOCK-25] [LOCK-27]
    #[test]
    fn refusals_are_told_once_and_leave_nothing() {
        let (now, mut turns) = (Moment::default(), LockTurns::default());
        for round in 0..10 {
            (0..10_000).for_each(|owner| turns.wait(turn(owner), Exclusive));
            (0..10_000).for_each(|owner| turns.come(turn(owner), Exclusive, None));
            let later = now.after(Duration::from_secs(9));
            assert_eq!(turns.take_ignored(later, Duration::ZERO), [], "what is locked since stays");
            match round {
                0 => turns.on_resumed(),
                _ => assert_eq!(std::iter::from_fn(|| turns.tell(Moment::default())).count(), 10_000),
            }
            assert!(turns.is_empty() && !turns.are_untold());
        }
    }

    // [LOCK-27]
    #[test]
    fn turn_that_its_owner_gives_back_is_not_taken_back() {
        let (now, mut turns) = (Moment::default(), waiting([1, 2]));
        turns.come(turn(1), Exclusive, Some(now));
        assert_eq!(turns.tell(Moment::default()), Some(turn(1)));
        turns.claim_told(|_| true);
        assert_eq!(turns.take_ignored(now.after(Duration::from_secs(9)), Duration::ZERO), []);
        // What still waits does so on, and what it does not know of it is told.
        turns.claim_told(|_| true);
        turns.come(turn(2), Exclusive, Some(now));
        turns.claim_told(|_| true);
        assert_eq!(turns.tell(Moment::default()), Some(turn(2)));
        assert!(!turns.is_empty());
    }

    #[test]
    fn turn_that_was_claimed_before_it_was_told_is_not_told() {
        let mut turns = waiting([1, 2]);
        turns.come(turn(1), Exclusive, Some(Moment::default()));
        turns.come(turn(2), Exclusive, Some(Moment::default()));
        turns.claim(turn(1), Exclusive);
        assert!(turns.are_untold());
        assert_eq!((turns.tell(Moment::default()), turns.are_untold()), (Some(turn(2)), false));
    }

    #[test]
    fn lock_whose_turn_comes_after_it_was_claimed_is_not_taken_back() {
        let (now, patience) = (Moment::default(), Duration::from_secs(3));
        let mut turns = waiting([1, 2]);
        turns.claim(turn(1), Exclusive);
        turns.come(turn(1), Exclusive, Some(now));
        assert!(!turns.are_untold());
        assert_eq!(turns.take_ignored(now.after(patience), patience), []);
        // Who waits again is told.
        turns.wait(turn(1), Exclusive);
        assert_eq!(turns.take_ignored(now.after(patience), patience), []);
        turns.come(turn(1), Exclusive, Some(now));
        assert_eq!(turns.tell(Moment::default()), Some(turn(1)));
    }

    #[test]
    fn owner_that_waits_in_both_kinds_is_told_of_either() {
        let (now, mut turns) = (Moment::default(), LockTurns::default());
        turns.wait(turn(1), Shared);
        turns.wait(turn(1), Exclusive);
        turns.come(turn(1), Shared, Some(now));
        assert_eq!(turns.tell(Moment::default()), Some(turn(1)));
        // It asks for both again, and has one.
        turns.wait(turn(1), Exclusive);
        turns.claim(turn(1), Shared);
        turns.come(turn(1), Exclusive, Some(now));
        assert_eq!((turns.tell(Moment::default()), turns.tell(Moment::default())), (Some(turn(1)), None));
    }
}
