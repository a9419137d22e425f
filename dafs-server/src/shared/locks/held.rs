//! Who holds a lock, how, and how many there are.

use std::collections::BTreeMap;

use dafs_proto::transport::OpToken;
use dafs_proto::wire::{LockKind, LockTurn, SessionId};
use smallvec::SmallVec;

/// Parts of one file that may be locked so that they last, at most: all of them are taken up at once after a restart.
pub(super) const LASTING_MAX: usize = 1024;

/// Who holds a lock.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(crate) struct Owner {
    pub(crate) session: SessionId,
    /// The client's name for one of its owners.
    pub(crate) id: u64,
}

/// A lock as it is held.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct Held {
    pub(crate) owner: Owner,
    /// The id of its client.
    pub(crate) client: [u8; 16],
    /// The handle by which it was taken; it ends with that.
    pub(crate) handle: u64,
    pub(crate) kind: LockKind,
    /// Reads and writes of other sessions that conflict with it fail.
    pub(crate) is_mandatory: bool,
    pub(crate) lasting: Lasting,
}

/// What becomes of a lock whose owner goes without giving it back.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Lasting {
    /// It ends.
    #[default]
    No,
    /// It stays, broken.
    Persistent,
    /// So does this, in place of one that is broken already: until its owner gives it back, nothing is repaired.
    Repairing,
    /// That has happened.
    Broken,
}

/// In what right a lock is asked for.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) enum Claim {
    /// As any other.
    #[default]
    New,
    /// Its client held it before the server was restarted: in this session, where that is known.
    Reclaim(Option<SessionId>),
    /// What is broken is going to be repaired.
    Repair,
}

impl Claim {
    pub(super) fn is_reclaim(self) -> bool {
        matches!(self, Self::Reclaim(_))
    }

    /// A broken lock is not in its way.
    pub(super) fn takes_over(self, broken: &Held) -> bool {
        match self {
            Self::New => false,
            Self::Reclaim(session) => session == Some(broken.owner.session),
            Self::Repair => true,
        }
    }
}

/// Where a request waits.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Waiting {
    /// By its number.
    pub(crate) worker: usize,
    pub(crate) told: Told,
}

/// Who is told of a worker when the wait is over.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Told {
    /// An operation, which is in flight.
    Operation(OpToken),
    /// A session, whose client asks again then.
    Session(SessionId, LockTurn, LockKind),
}

/// How many of something each has. Clients choose the keys, so they are ordered: hashing them safely takes longer for the few that there
/// mostly are. Who has nothing is forgotten, except the last: he mostly takes something again.
#[derive(Debug)]
pub(super) struct Tally<K> {
    counts: BTreeMap<K, usize>,
    /// He may have nothing.
    last: Option<K>,
}

impl<K> Default for Tally<K> {
    fn default() -> Self {
        Self { counts: BTreeMap::new(), last: None }
    }
}

impl<K: Copy + Ord> Tally<K> {
    pub(super) fn of(&self, key: K) -> usize {
        self.counts.get(&key).copied().unwrap_or(0)
    }

    fn one_more(&mut self, key: K) {
        *self.counts.entry(key).or_default() += 1;
    }

    fn one_less(&mut self, key: K) {
        if let Some(count) = self.counts.get_mut(&key) {
            *count -= 1;
            if *count == 0 && self.last != Some(key) {
                self.forget_last_for(key);
            }
        }
    }

    #[cold]
    fn forget_last_for(&mut self, key: K) {
        if let Some(last) = self.last.replace(key)
            && self.of(last) == 0
        {
            self.counts.remove(&last);
        }
    }

    #[cfg(test)]
    pub(super) fn known(&self) -> usize {
        self.counts.len()
    }
}

/// Parts that are held or waited for: by session, and of all.
#[derive(Debug, Default)]
pub(super) struct Counts {
    pub(super) by_session: Tally<SessionId>,
    /// Those that are held.
    pub(super) by_owner: Tally<Owner>,
    pub(super) all: usize,
    /// Those that are mandatory.
    pub(super) mandatory: usize,
    /// How often one of those has come or gone.
    pub(super) mandatory_changes: u64,
}

impl Counts {
    pub(super) fn add(&mut self, held: &Held) {
        self.mandatory += usize::from(held.is_mandatory);
        self.mandatory_changes += u64::from(held.is_mandatory);
        self.by_owner.one_more(held.owner);
        self.add_waiter(held.owner);
    }

    pub(super) fn remove(&mut self, held: &Held) {
        self.mandatory -= usize::from(held.is_mandatory);
        self.mandatory_changes += u64::from(held.is_mandatory);
        self.by_owner.one_less(held.owner);
        self.remove_waiter(held.owner);
    }

    pub(super) fn add_waiter(&mut self, owner: Owner) {
        self.all += 1;
        self.by_session.one_more(owner.session);
    }

    pub(super) fn remove_waiter(&mut self, owner: Owner) {
        self.all -= 1;
        self.by_session.one_less(owner.session);
    }
}

/// How many parts of a file each session holds and awaits. They are ordered, and few: one that has nothing any more stays until somebody
/// looks for those, so that it is found again quickly.
#[derive(Debug, Default)]
pub(super) struct Sessions {
    counts: SmallVec<[(SessionId, usize); 1]>,
    /// Those that have nothing.
    absent: usize,
}

impl Sessions {
    fn place(&self, session: SessionId) -> Result<usize, usize> {
        self.counts.binary_search_by_key(&session, |(other, _)| *other)
    }

    /// It is there, whether it has something now or not.
    pub(super) fn knows(&self, session: SessionId) -> bool {
        self.place(session).is_ok()
    }

    pub(super) fn add(&mut self, session: SessionId) {
        match self.place(session) {
            Ok(place) => {
                let count = &mut self.counts[place].1;
                self.absent -= usize::from(*count == 0);
                *count += 1;
            }
            Err(place) => self.counts.insert(place, (session, 1)),
        }
    }

    pub(super) fn remove(&mut self, session: SessionId) {
        if let Ok(place) = self.place(session) {
            let count = &mut self.counts[place].1;
            *count -= 1;
            self.absent += usize::from(*count == 0);
        }
    }

    /// Some have nothing any more.
    pub(super) fn has_absent(&self) -> bool {
        self.absent > 0
    }

    /// Takes those out.
    pub(super) fn take_absent(&mut self) -> Vec<SessionId> {
        if self.absent == 0 {
            return Vec::new();
        }
        let gone = self.counts.iter().filter(|(_, count)| *count == 0).map(|(session, _)| *session).collect();
        self.counts.retain(|(_, count)| *count > 0);
        self.absent = 0;
        gone
    }

    /// Takes this one out, if it has nothing.
    pub(super) fn forget(&mut self, session: SessionId) {
        if let Ok(place) = self.place(session)
            && self.counts[place].1 == 0
        {
            self.counts.remove(place);
            self.absent -= 1;
        }
    }
}

impl Held {
    /// It outlives its owner.
    pub(super) fn lasts(&self) -> bool {
        self.lasting != Lasting::No
    }

    pub(super) fn is_broken(&self) -> bool {
        self.lasting == Lasting::Broken
    }

    /// Where this one waits for an overlapping range, a later request waits behind it.
    pub(super) fn comes_before(&self, later: &Self) -> bool {
        conflict(self.kind, later.kind)
    }
}

/// Owners other than each other cannot have both.
pub(super) fn conflict(a: LockKind, b: LockKind) -> bool {
    a == LockKind::Exclusive || b == LockKind::Exclusive
}
