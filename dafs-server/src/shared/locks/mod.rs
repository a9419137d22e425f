//! Byte-range locks of all files and sessions (`spec/locks.md`). Arithmetic only: who waits is told by whoever asked.
//!
//! A request waits while somebody else holds what conflicts with it, and behind every earlier request that waits for an overlapping range
//! and conflicts with it. So nobody who waits is passed.

mod guard;
mod segments;
#[cfg(test)]
mod tests;

use std::collections::hash_map::Entry;
use std::collections::{BTreeMap, HashMap, HashSet};
use std::ops::Range;

use dafs_proto::transport::OpToken;
use dafs_proto::wire::{LockKind as Kind, LockTurn, SessionId, Status};

pub(crate) use self::guard::Locks;
use self::segments::Segments;
use crate::storage::LockKey;

/// Parts of files that a session holds or waits for, at most.
pub(crate) const SESSION_LOCKS_MAX: usize = 1 << 16;

/// Those of all sessions together.
pub(crate) const LOCKS_MAX: usize = 1 << 20;

/// Segments of a file that are freed at once when their session ends.
const ENDED_AT_ONCE: usize = 1024;

/// Owners that are looked at for a circle at most, so that nobody's request is much work.
const CIRCLE_STEPS_MAX: usize = 1 << 14;

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
    /// The handle by which it was taken; it ends with that.
    pub(crate) handle: u64,
    pub(crate) kind: Kind,
    /// Reads and writes of other sessions that conflict with it fail.
    pub(crate) is_mandatory: bool,
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
    Session(SessionId, LockTurn),
}

/// What becomes of a request for a lock.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Outcome {
    /// It is granted, and so are these that waited: what was exclusive may be shared now.
    Granted(Vec<Waiting>),
    /// It waits, under this number.
    Waits(WaiterId),
}

/// What came of giving locks back.
#[derive(Debug, Default)]
pub(crate) struct Freed {
    /// Those whose turn has come.
    pub(crate) granted: Vec<Waiting>,
    /// Those that wait no more, and have no lock.
    pub(crate) ended: Vec<Waiting>,
}

/// Parts that are held or waited for: by session, and of all.
#[derive(Debug, Default)]
struct Counts {
    by_session: HashMap<SessionId, usize>,
    /// Those that are held.
    by_owner: HashMap<Owner, usize>,
    all: usize,
    /// Those that are mandatory.
    mandatory: usize,
}

impl Counts {
    fn add(&mut self, held: &Held) {
        self.mandatory += usize::from(held.is_mandatory);
        *self.by_owner.entry(held.owner).or_default() += 1;
        self.add_waiter(held.owner);
    }

    fn remove(&mut self, held: &Held) {
        self.mandatory -= usize::from(held.is_mandatory);
        one_less(&mut self.by_owner, held.owner);
        self.remove_waiter(held.owner);
    }

    fn add_waiter(&mut self, owner: Owner) {
        self.all += 1;
        *self.by_session.entry(owner.session).or_default() += 1;
    }

    fn remove_waiter(&mut self, owner: Owner) {
        self.all -= 1;
        one_less(&mut self.by_session, owner.session);
    }
}

/// Counts one down, and forgets what is nought.
fn one_less<K: Eq + std::hash::Hash>(counts: &mut HashMap<K, usize>, key: K) {
    if let Entry::Occupied(mut count) = counts.entry(key) {
        *count.get_mut() -= 1;
        if *count.get() == 0 {
            count.remove();
        }
    }
}

/// Names a request that waits for a lock of a file, in the order in which they are served. Whoever held a part of the range goes first, for
/// others may wait for that.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(crate) struct WaiterId {
    held_nothing: bool,
    number: u64,
}

impl WaiterId {
    fn goes_first(self) -> bool {
        !self.held_nothing
    }
}

#[derive(Debug)]
struct Waiter {
    range: Range<u64>,
    held: Held,
    waiting: Waiting,
}

#[derive(Debug, Default)]
struct FileLocks {
    segments: Segments,
    /// In the order of their coming.
    waiters: BTreeMap<WaiterId, Waiter>,
}

/// The locks of all files.
#[derive(Debug, Default)]
pub(crate) struct LockTable {
    files: HashMap<LockKey, FileLocks>,
    /// Files in which a session has locks or waits, and from which offset on, while it ends.
    by_session: HashMap<SessionId, HashMap<LockKey, u64>>,
    /// What each owner waits for.
    waits: HashMap<Owner, Vec<(LockKey, WaiterId)>>,
    counts: Counts,
    last: u64,
}

impl LockTable {
    /// Locks a range, or waits for it where `waiting` says who is to be told.
    ///
    /// # Errors
    /// [`Status::LOCKED`] when it conflicts and nobody is to wait; [`Status::DEADLOCK`] when the wait would never end;
    /// [`Status::TOO_MANY_LOCKS`].
    pub(crate) fn lock(
        &mut self,
        file: LockKey,
        range: Range<u64>,
        held: Held,
        waiting: Option<Waiting>,
    ) -> Result<Outcome, Status> {
        let own = self.counts.by_session.get(&held.owner.session).copied().unwrap_or_default();
        if own >= SESSION_LOCKS_MAX || self.counts.all >= LOCKS_MAX {
            return Err(Status::TOO_MANY_LOCKS);
        }
        let locks = self.files.entry(file).or_default();
        let must_wait = locks.segments.conflict(&range, held.owner, held.kind).is_some()
            || locks.is_behind_others(&range, &held);
        let outcome = match (must_wait, waiting) {
            (false, _) => {
                let had_part = locks.segments.has_part(&range, held.owner);
                locks.segments.lock(&range, held, &mut self.counts);
                let shares = had_part && held.kind == Kind::Shared;
                Ok(Outcome::Granted(if shares { self.serve(file, &range) } else { Vec::new() }))
            }
            (true, None) => Err(Status::LOCKED),
            (true, Some(waiting)) => {
                if let Some(id) = self.wait_for(file, &range, held.owner, held.kind) {
                    return Ok(Outcome::Waits(id));
                }
                let Some(locks) = self.files.get_mut(&file) else { return Err(Status::LOCKED) };
                self.last += 1;
                let held_nothing = !locks.segments.has_part(&range, held.owner);
                let id = WaiterId { held_nothing, number: self.last };
                locks.waiters.insert(id, Waiter { range, held, waiting });
                self.waits.entry(held.owner).or_default().push((file, id));
                self.counts.add_waiter(held.owner);
                if self.closes_circle(held.owner) {
                    self.remove_waiter(file, id);
                    Err(Status::DEADLOCK)
                } else {
                    Ok(Outcome::Waits(id))
                }
            }
        };
        if outcome.is_ok() {
            self.by_session.entry(held.owner.session).or_default().insert(file, 0);
        }
        self.forget_if_free(file);
        outcome
    }

    /// Gives back what an owner holds of a range. Returns whose turn has come.
    pub(crate) fn unlock(&mut self, file: LockKey, range: &Range<u64>, owner: Owner) -> Vec<Waiting> {
        self.release(file, range, |held| held.owner == owner)
    }

    /// Gives back what was locked by a handle of a session, and ends what waits by it.
    pub(crate) fn unlock_handle(&mut self, file: LockKey, session: SessionId, handle: u64) -> Freed {
        let by_handle = |held: &Held| held.owner.session == session && held.handle == handle;
        let mut freed = self.end_waits(file, by_handle);
        freed.granted.extend(self.release(file, &(0..u64::MAX), by_handle));
        freed
    }

    fn end_waits(&mut self, file: LockKey, is_meant: impl Fn(&Held) -> bool) -> Freed {
        let mut freed = Freed::default();
        let waiters = self.files.get(&file).into_iter().flat_map(|locks| &locks.waiters);
        let meant: Vec<WaiterId> =
            waiters.filter(|(_, waiter)| is_meant(&waiter.held)).map(|(id, _)| *id).collect();
        let ranges: Vec<_> = meant.into_iter().filter_map(|id| self.remove_waiter(file, id)).collect();
        for waiter in ranges {
            freed.granted.extend(self.serve(file, &waiter.range));
            freed.ended.push(waiter.waiting);
        }
        self.forget_if_free(file);
        freed
    }

    /// Gives back what a session that ended held of one file, or of a part of that, and its waits there. `None` when there is no more.
    pub(crate) fn end_some_of(&mut self, session: SessionId) -> Option<Vec<Waiting>> {
        let files = self.by_session.get_mut(&session)?;
        let Some((&file, &from)) = files.iter().next() else {
            self.by_session.remove(&session);
            return None;
        };
        let end =
            self.files.get(&file).map_or(u64::MAX, |locks| locks.segments.place_of(from, ENDED_AT_ONCE));
        match end {
            u64::MAX => drop(files.remove(&file)),
            end => drop(files.insert(file, end)),
        }
        let is_own = |held: &Held| held.owner.session == session;
        let mut granted = self.end_waits(file, is_own).granted;
        granted.extend(self.release(file, &(from..end), is_own));
        Some(granted)
    }

    /// The wait of an owner for this very lock, of which its session will be told.
    pub(crate) fn wait_for(
        &self,
        file: LockKey,
        range: &Range<u64>,
        owner: Owner,
        kind: Kind,
    ) -> Option<WaiterId> {
        let locks = self.files.get(&file)?;
        let own = self.waits.get(&owner)?.iter().filter(|(other, _)| *other == file).map(|(_, id)| *id);
        own.into_iter().find(|id| {
            locks.waiters.get(id).is_some_and(|waiter| {
                let is_session = matches!(waiter.waiting.told, Told::Session(..));
                is_session && waiter.range == *range && waiter.held.kind == kind
            })
        })
    }

    /// Ends a wait. Returns whose turn has come by that; `None` where it waits no more.
    pub(crate) fn cancel(&mut self, file: LockKey, waiter: WaiterId) -> Option<Vec<Waiting>> {
        let waiter = self.remove_waiter(file, waiter)?;
        let granted = self.serve(file, &waiter.range);
        self.forget_if_free(file);
        Some(granted)
    }

    /// Who keeps an owner from locking a range: the first part, and its holder.
    pub(crate) fn conflict(
        &self,
        file: LockKey,
        range: &Range<u64>,
        owner: Owner,
        kind: Kind,
    ) -> Option<(Range<u64>, Held)> {
        let (part, held) = self.files.get(&file)?.segments.conflict(range, owner, kind)?;
        Some((part, *held))
    }

    /// There are mandatory locks somewhere.
    pub(crate) fn has_mandatory(&self) -> bool {
        self.counts.mandatory > 0
    }

    /// A mandatory lock of another session keeps this one from reading or writing a range.
    pub(crate) fn keeps_out(
        &self,
        file: LockKey,
        range: &Range<u64>,
        session: SessionId,
        writes: bool,
    ) -> bool {
        let kind = if writes { Kind::Exclusive } else { Kind::Shared };
        self.files.get(&file).is_some_and(|locks| {
            locks.segments.overlapping(range).any(|(_, held)| {
                held.is_mandatory && held.owner.session != session && conflict(held.kind, kind)
            })
        })
    }

    fn release(
        &mut self,
        file: LockKey,
        range: &Range<u64>,
        is_meant: impl Fn(&Held) -> bool,
    ) -> Vec<Waiting> {
        let Some(locks) = self.files.get_mut(&file) else { return Vec::new() };
        if !locks.segments.unlock(range, is_meant, &mut self.counts) {
            return Vec::new();
        }
        let granted = self.serve(file, range);
        self.forget_if_free(file);
        granted
    }

    /// Grants what can be granted now that a range has become free, in the order of waiting.
    fn serve(&mut self, file: LockKey, freed: &Range<u64>) -> Vec<Waiting> {
        let (mut granted, mut to_serve) = (Vec::new(), vec![freed.clone()]);
        while let Some(freed) = to_serve.pop() {
            for id in self.grant(file, &freed) {
                let Some(waiter) = self.remove_waiter(file, id) else { continue };
                // Its owner may have had a part of it alone, or waits for more behind it.
                if waiter.held.kind == Kind::Shared || self.waits.contains_key(&waiter.held.owner) {
                    to_serve.push(waiter.range);
                }
                granted.push(waiter.waiting);
            }
        }
        granted
    }

    /// The requests of one pass over those that wait, which stay among them.
    fn grant(&mut self, file: LockKey, freed: &Range<u64>) -> Vec<WaiterId> {
        let Some(locks) = self.files.get_mut(&file) else { return Vec::new() };
        let mut granted = Vec::new();
        // What earlier requests wait for, so that no later one passes them.
        let mut awaited: Vec<(Range<u64>, Held)> = Vec::new();
        let mut is_taken = false;
        for (id, Waiter { range, held, .. }) in &locks.waiters {
            if is_taken && !id.goes_first() {
                break;
            }
            let is_behind = !id.goes_first()
                && awaited.iter().any(|(other, by)| overlap(range, other) && by.comes_before(held));
            let free = overlap(range, freed)
                && !is_behind
                && locks.segments.conflict(range, held.owner, held.kind).is_none();
            if free {
                locks.segments.lock(range, *held, &mut self.counts);
                granted.push(*id);
            } else if !awaited.iter().any(|(other, by)| covers(other, range) && by.kind >= held.kind) {
                awaited.push((range.clone(), *held));
            }
            is_taken |= held.kind == Kind::Exclusive && covers(range, freed);
        }
        granted
    }

    fn remove_waiter(&mut self, file: LockKey, id: WaiterId) -> Option<Waiter> {
        let waiter = self.files.get_mut(&file)?.waiters.remove(&id)?;
        let owner = waiter.held.owner;
        if let Some(waits) = self.waits.get_mut(&owner) {
            waits.retain(|wait| *wait != (file, id));
            if waits.is_empty() {
                self.waits.remove(&owner);
            }
        }
        self.counts.remove_waiter(owner);
        Some(waiter)
    }

    /// Somebody whom an owner waits for waits for it, directly or by others.
    fn closes_circle(&self, owner: Owner) -> bool {
        // Its last wait is behind all others, so nobody waits for that one.
        if !self.counts.by_owner.contains_key(&owner)
            && self.waits.get(&owner).is_none_or(|own| own.len() < 2)
        {
            return false;
        }
        let mut seen = HashSet::from([owner]);
        let mut to_see = vec![owner];
        while let Some(next) = to_see.pop() {
            let waits = self.waits.get(&next).into_iter().flatten();
            for blocker in waits.flat_map(|(file, id)| self.blockers(*file, *id)) {
                if blocker == owner {
                    return true;
                }
                if seen.len() < CIRCLE_STEPS_MAX && seen.insert(blocker) {
                    to_see.push(blocker);
                }
            }
        }
        false
    }

    /// Whom a request waits for, as far as they do not wait for each other.
    fn blockers(&self, file: LockKey, id: WaiterId) -> Vec<Owner> {
        let Some(locks) = self.files.get(&file) else { return Vec::new() };
        let Some(Waiter { range, held, .. }) = locks.waiters.get(&id) else { return Vec::new() };
        let holders = locks.segments.overlapping(range).map(|(_, by)| by);
        let holders = holders.filter(|by| by.owner != held.owner && conflict(by.kind, held.kind));
        let mut blockers: Vec<Owner> = holders.map(|by| by.owner).collect();
        if id.goes_first() {
            return blockers;
        }
        for (other, earlier) in locks.waiters.range(..id).rev() {
            if overlap(&earlier.range, range) && earlier.held.comes_before(held) {
                if earlier.held.owner != held.owner {
                    blockers.push(earlier.held.owner);
                }
                // Whoever came before that one keeps it waiting too.
                let is_last = earlier.held.kind == Kind::Exclusive && covers(&earlier.range, range);
                if is_last && !other.goes_first() {
                    break;
                }
            }
        }
        blockers
    }

    fn forget_if_free(&mut self, file: LockKey) {
        if self.files.get(&file).is_some_and(|locks| locks.segments.is_empty() && locks.waiters.is_empty()) {
            self.files.remove(&file);
        }
    }
}

impl FileLocks {
    /// Somebody waits already for what conflicts with a request. Who holds a part of the range goes first: others wait for it.
    fn is_behind_others(&self, range: &Range<u64>, held: &Held) -> bool {
        !self.waiters.is_empty()
            && !self.segments.has_part(range, held.owner)
            && self
                .waiters
                .values()
                .any(|waiter| overlap(&waiter.range, range) && waiter.held.comes_before(held))
    }
}

impl Held {
    /// Where this one waits for an overlapping range, a later request waits behind it.
    fn comes_before(&self, later: &Self) -> bool {
        conflict(self.kind, later.kind)
    }
}

/// Owners other than each other cannot have both.
fn conflict(a: Kind, b: Kind) -> bool {
    a == Kind::Exclusive || b == Kind::Exclusive
}

fn overlap(a: &Range<u64>, b: &Range<u64>) -> bool {
    a.start < b.end && b.start < a.end
}

fn covers(whole: &Range<u64>, part: &Range<u64>) -> bool {
    whole.start <= part.start && part.end <= whole.end
}
