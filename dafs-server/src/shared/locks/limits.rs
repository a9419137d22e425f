//! How many locks there may be, and how often one was refused for that.

use std::ops::Range;

use dafs_proto::wire::{SessionId, Status};

use super::LockTable;
use super::held::{Counts, Owner, Waiting};
use super::segments::Segments;
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
        (counts, refused): (&Counts, &mut Refused),
        segments: Option<&Segments>,
        range: &Range<u64>,
        owner: Owner,
        waits: usize,
    ) -> Result<(), Status> {
        // A lock adds at most a part for each that it overlaps, one before and behind each, and those of two cuts.
        if 4 * counts.all < self.session.min(self.all) {
            return Ok(());
        }
        let (own, all) = segments.map_or((1, 1), |segments| segments.added(range, owner));
        let held = counts.by_session.get(&owner.session).copied().unwrap_or(0);
        let is_over = |found: usize, added: usize, max: usize| found + added.max(1) > max + waits;
        let refused = match (is_over(held, own, self.session), is_over(counts.all, all, self.all)) {
            (true, _) => &mut refused.session,
            (_, true) => &mut refused.all,
            _ => return Ok(()),
        };
        *refused += 1;
        Err(Status::TOO_MANY_LOCKS)
    }
}

impl Default for LockLimits {
    fn default() -> Self {
        Self::of(&LimitConfig::default())
    }
}

/// How often a lock was refused for want of room.
#[derive(Debug, Default)]
pub(super) struct Refused {
    /// Its session had all it may.
    session: u64,
    /// All together had.
    all: u64,
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

    /// There is room for the parts that a lock makes, or for one that waits.
    pub(super) fn check_room(
        &mut self,
        file: LockKey,
        range: &Range<u64>,
        owner: Owner,
    ) -> Result<(), Status> {
        let segments = self.files.get(&file).map(|locks| &locks.segments);
        self.limits.check((&self.counts, &mut self.refused), segments, range, owner, 0)
    }

    /// Those that waited, and are refused now that it is their turn: what others have locked meanwhile would make too many parts of them.
    pub(crate) fn take_overfull(&mut self) -> Vec<Waiting> {
        std::mem::take(&mut self.overfull)
    }

    /// There are such.
    pub(super) fn has_overfull(&self) -> bool {
        !self.overfull.is_empty()
    }

    pub(super) fn is_full_for(&self, session: SessionId) -> bool {
        self.counts.by_session.get(&session).is_some_and(|own| *own >= self.limits.session)
    }

    pub(super) fn is_full(&self) -> bool {
        self.counts.all >= self.limits.all
    }
}
