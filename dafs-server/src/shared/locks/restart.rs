//! The time after the server began, in which clients take the locks again that they had before.
//!
//! Without a state file only order decides: the first to ask gets the lock, and a lock cannot be reclaimed if others could have had it
//! meanwhile. With one, those whom it names go first.

use std::collections::{BTreeMap, HashSet};
use std::ops::Range;

use dafs_proto::wire::{LockKind, SessionId, Status};
use rangemap::RangeSet;

use crate::storage::LockKey;

/// Ranges that are remembered at most. More end the time at once.
const TOUCHED_MAX: usize = 1 << 18;

/// See the module.
#[derive(Debug)]
pub(super) enum Restart {
    /// Nobody knows who held what: all that was locked since.
    Open { touched: BTreeMap<LockKey, Touched>, noted: usize, last: Option<Noted> },
    /// These sessions may take theirs again; the second have not done so yet. Others wait.
    Grace { sessions: HashSet<SessionId>, awaited: HashSet<SessionId>, reclaims: u64 },
    /// It is over. In these files somebody may wait for that.
    Over { to_serve: Vec<LockKey> },
}

/// What was noted last: who locks the same again and again finds it here.
type Noted = (LockKey, Range<u64>, LockKind);

/// What was locked of a file since the server began.
#[derive(Debug, Default)]
pub(super) struct Touched {
    shared: RangeSet<u64>,
    exclusive: RangeSet<u64>,
}

impl Default for Restart {
    fn default() -> Self {
        Self::Open { touched: BTreeMap::new(), noted: 0, last: None }
    }
}

impl Restart {
    /// A file names those who held locks.
    pub(super) fn of(sessions: HashSet<SessionId>) -> Self {
        match sessions.is_empty() {
            true => Self::Over { to_serve: Vec::new() },
            false => Self::Grace { awaited: sessions.clone(), sessions, reclaims: 0 },
        }
    }

    /// Whoever held nothing before waits.
    pub(super) fn is_grace(&self) -> bool {
        matches!(self, Self::Grace { .. })
    }

    pub(super) fn is_over(&self) -> bool {
        matches!(self, Self::Over { .. })
    }

    /// A lock may be taken again by a client that has proven to have had this session.
    pub(super) fn check(
        &self,
        file: LockKey,
        range: &Range<u64>,
        kind: LockKind,
        session: Option<SessionId>,
    ) -> Result<(), Status> {
        let is_good = match self {
            Self::Open { touched, .. } => {
                let touched = touched.get(&file);
                touched.is_none_or(|touched| {
                    let is_shared = kind == LockKind::Shared;
                    !touched.exclusive.overlaps(range) && (is_shared || !touched.shared.overlaps(range))
                })
            }
            Self::Grace { sessions, .. } => session.is_some_and(|session| sessions.contains(&session)),
            Self::Over { .. } => false,
        };
        if is_good { Ok(()) } else { Err(Status::NO_RECLAIM) }
    }

    /// Somebody has locked a range who did not hold it before.
    pub(super) fn note(&mut self, file: LockKey, range: &Range<u64>, kind: LockKind) {
        let Self::Open { touched, noted, last } = self else { return };
        let is_last = |(of, at, by): &Noted| (*of, at, *by) == (file, range, kind);
        if last.as_ref().is_some_and(is_last) {
            return;
        }
        *last = Some((file, range.clone(), kind));
        let touched = touched.entry(file).or_default();
        let ranges = match kind {
            LockKind::Shared => &mut touched.shared,
            LockKind::Exclusive => &mut touched.exclusive,
        };
        if ranges.get(&range.start).is_some_and(|known| known.end >= range.end) {
            return;
        }
        // What touches becomes one.
        let before = ranges.len();
        ranges.insert(range.clone());
        *noted = (*noted + ranges.len()).saturating_sub(before);
        if *noted > TOUCHED_MAX {
            *self = Self::Over { to_serve: Vec::new() };
        }
    }

    /// One of those who go first has taken a lock again.
    pub(super) fn note_reclaim(&mut self) {
        if let Self::Grace { reclaims, .. } = self {
            *reclaims += 1;
        }
    }

    /// How many of these there were.
    pub(super) fn reclaims(&self) -> u64 {
        match self {
            Self::Grace { reclaims, .. } => *reclaims,
            Self::Open { .. } | Self::Over { .. } => 0,
        }
    }

    /// A session has all that it wants again; whether that was the last that was waited for.
    pub(super) fn is_done(&mut self, session: SessionId) -> bool {
        match self {
            Self::Grace { awaited, .. } => awaited.remove(&session) && awaited.is_empty(),
            Self::Open { .. } | Self::Over { .. } => false,
        }
    }

    /// The time is over. Returns the sessions of before. Several workers may find that out.
    pub(super) fn end(&mut self, files: impl Iterator<Item = LockKey>) -> HashSet<SessionId> {
        let to_serve = match self {
            Self::Over { .. } => return HashSet::new(),
            Self::Grace { .. } => files.collect(),
            Self::Open { .. } => Vec::new(),
        };
        match std::mem::replace(self, Self::Over { to_serve }) {
            Self::Grace { sessions, .. } => sessions,
            Self::Open { .. } | Self::Over { .. } => HashSet::new(),
        }
    }

    pub(super) fn next_to_serve(&mut self) -> Option<LockKey> {
        match self {
            Self::Over { to_serve } => to_serve.pop(),
            Self::Open { .. } | Self::Grace { .. } => None,
        }
    }
}
