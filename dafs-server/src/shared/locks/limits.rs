//! How many locks there may be, and how often one was refused for that.

use std::ops::Range;

use dafs_proto::wire::{SessionId, Status};

use super::LockTable;
use super::held::{Counts, Held, LASTING_MAX, Owner, Waiting};
use super::segments::{Cut, Segments};
use crate::config::LimitConfig;
use crate::metrics::{BudgetState, SessionLimitState};
use crate::storage::LockKey;

/// How many parts of files may be held or waited for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct LockLimits {
    /// By one session.
    pub(crate) session: usize,
    /// By all together.
    pub(crate) all: usize,
}

impl LockLimits {
    /// As the settings say.
    pub(crate) fn of(settings: &LimitConfig) -> Self {
        Self { session: settings.session_locks_max as usize, all: settings.locks_max as usize }
    }
}

impl LockLimits {
    /// There is room for the parts that a lock of a range adds, one at least. `waits` is 1 where it waits, and is counted for that.
    pub(super) fn check(
        self,
        counts: &Counts,
        segments: Option<&Segments>,
        range: &Range<u64>,
        owner: Owner,
        waits: usize,
    ) -> Result<(), Over> {
        // A lock adds at most a part for each that it overlaps, one before and behind each, and those of two cuts.
        if 4 * counts.all < self.session.min(self.all) {
            return Ok(());
        }
        let (own, all) = segments.map_or((1, 1), |segments| segments.added(range, owner));
        let held = counts.by_session.of(owner.session);
        let is_over = |found: usize, added: usize, max: usize| found + added.max(1) > max + waits;
        match (is_over(held, own, self.session), is_over(counts.all, all, self.all)) {
            (true, _) => Err(Over::Session),
            (_, true) => Err(Over::All),
            _ => Ok(()),
        }
    }
}

impl Default for LockLimits {
    fn default() -> Self {
        Self::of(&LimitConfig::default())
    }
}

/// Who has too many.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Over {
    Session,
    All,
}

/// How often a lock was refused for want of room.
#[derive(Debug, Default)]
pub(super) struct Refused {
    /// Its session had all it may.
    session: u64,
    /// All together had.
    all: u64,
}

impl Refused {
    pub(super) fn count(&mut self, over: Over) -> Status {
        match over {
            Over::Session => self.session += 1,
            Over::All => self.all += 1,
        }
        Status::TOO_MANY_LOCKS
    }
}

impl LockTable {
    /// What all sessions have together, for metrics.
    pub(crate) fn state(&self) -> BudgetState {
        let (used, limit) = (self.counts.all as u64, self.limits.all as u64);
        BudgetState { name: "locks", used, limit, refused: self.refused.all }
    }

    /// What one session may have, for metrics.
    pub(crate) fn session_limit_state(&self) -> SessionLimitState {
        let limit = self.limits.session as u64;
        SessionLimitState { name: "locks", limit, refused: self.refused.session }
    }

    /// There is room for the parts that a lock makes, or for one that waits. Who asks again for what he has, or waits for, takes no more.
    pub(super) fn check_room(
        &mut self,
        file: LockKey,
        range: &Range<u64>,
        held: &Held,
    ) -> Result<(), Status> {
        let segments = self.files.get(&file).map(|locks| &locks.segments);
        let Err(over) = self.limits.check(&self.counts, segments, range, held.owner, 0) else {
            return Ok(());
        };
        let has_it = segments.is_some_and(|segments| segments.holds(range, held));
        if has_it || self.wait_for(file, range, held).is_some() {
            return Ok(());
        }
        Err(self.refused.count(over))
    }

    /// There is room for what is left of the locks that a range is cut out of: each that is cut is two parts then, also of those who share
    /// it and give nothing back. What is meant goes, or stays as a part of its own.
    pub(super) fn check_cut(
        &mut self,
        file: LockKey,
        range: &Range<u64>,
        session: SessionId,
        is_meant: impl Fn(&Held) -> bool,
        goes: bool,
    ) -> Result<(), Status> {
        let Some(locks) = self.files.get(&file) else { return Ok(()) };
        let Cut { added, gone } = locks.segments.cut(range, session, is_meant, goes);
        let is_over = |before: usize, added: usize, gone: usize, max: usize| {
            added > gone && before + added > max + gone
        };
        let own = self.counts.by_session.of(session);
        if is_over(own, added.own, gone.own, self.limits.session) {
            return Err(self.refused.count(Over::Session));
        }
        if is_over(self.counts.all, added.all, gone.all, self.limits.all) {
            return Err(self.refused.count(Over::All));
        }
        if added.lasting > gone.lasting {
            let lasting = locks.segments.lasting_count();
            if is_over(lasting, added.lasting, gone.lasting, LASTING_MAX) {
                return Err(Status::TOO_MANY_LOCKS);
            }
        }
        Ok(())
    }

    /// There is room for what one that waits would have.
    pub(super) fn has_room_for_waiter(&self, file: LockKey, range: &Range<u64>, owner: Owner) -> bool {
        let segments = self.files.get(&file).map(|locks| &locks.segments);
        self.limits.check(&self.counts, segments, range, owner, 1).is_ok()
    }

    /// Those that waited and are refused, and why: what others have locked meanwhile would make too many parts of them, or has closed a
    /// circle of owners that wait for each other.
    pub(crate) fn take_untold(&mut self) -> Vec<(Waiting, Status)> {
        std::mem::take(&mut self.untold)
    }

    /// There are such.
    pub(super) fn has_untold(&self) -> bool {
        !self.untold.is_empty()
    }

    pub(super) fn is_full_for(&self, session: SessionId) -> bool {
        self.counts.by_session.of(session) >= self.limits.session
    }

    pub(super) fn is_full(&self) -> bool {
        self.counts.all >= self.limits.all
    }
}
