//! How many locks there may be, and how often one was refused for that.

use dafs_proto::wire::{SessionId, Status};

use super::LockTable;
use crate::config::LimitConfig;
use crate::metrics::{BudgetState, SessionLimitState};

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

    /// There is room for one more part of a session.
    pub(super) fn check_room(&mut self, session: SessionId) -> Result<(), Status> {
        let refused = match (self.is_full_for(session), self.is_full()) {
            (true, _) => &mut self.refused.session,
            (_, true) => &mut self.refused.all,
            _ => return Ok(()),
        };
        *refused += 1;
        Err(Status::TOO_MANY_LOCKS)
    }

    pub(super) fn is_full_for(&self, session: SessionId) -> bool {
        self.counts.by_session.get(&session).is_some_and(|own| *own >= self.limits.session)
    }

    pub(super) fn is_full(&self) -> bool {
        self.counts.all >= self.limits.all
    }
}
