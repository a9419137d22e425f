//! Byte-range locks of all files and sessions (`spec/protocol/locks.md`). Arithmetic only: callers notify those who wait, and
//! [`crate::storage::LocalLocks`] knows the locks of the host's processes.
//!
//! A request waits while another owner holds a conflicting lock, and behind every earlier waiting request that conflicts with it. So nobody
//! who waits is passed.

mod guard;
mod held;
mod lasting;
mod limits;
mod local;
mod restart;
mod segments;
mod serving;
#[cfg(test)]
mod tests;
mod unwritten;

use std::collections::{BTreeMap, BTreeSet, HashSet};
use std::iter::once;
use std::ops::Range;

use dafs_proto::wire::{LockKind as Kind, SessionId, Status};
use rangemap::RangeSet;

pub(crate) use self::guard::Locks;
use self::held::Counts;
pub(crate) use self::held::{Claim, Held, Lasting, Owner, Told, Waiting};
pub(crate) use self::limits::LockLimits;
use self::limits::Refused;
use self::restart::Restart;
use self::segments::{InWay, Segments};
use crate::storage::{LockKey, work};

/// Segments of a file that are freed at once when their session ends.
const ENDED_AT_ONCE: usize = 1024;

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
    /// Those that wait no more, and have no lock, and why.
    pub(crate) ended: Vec<(Waiting, Status)>,
    /// In these ranges of files less lasts than may be written.
    pub(crate) to_write: Vec<(LockKey, Range<u64>)>,
}

/// Names a request that waits for a lock of a file, in the order in which they are served. Whoever held a part of the range for which
/// another waited goes first, and whoever held all of it alone.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(crate) struct WaiterId {
    waits_in_turn: bool,
    number: u64,
}

impl WaiterId {
    fn goes_first(self) -> bool {
        !self.waits_in_turn
    }
}

#[derive(Debug)]
struct Waiter {
    range: Range<u64>,
    held: Held,
    claim: Claim,
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
    files: BTreeMap<LockKey, FileLocks>,
    /// Files in which a session has locks or waits, and from which offset on, while it ends. It may have none in the file in `free`.
    by_session: BTreeMap<SessionId, BTreeMap<LockKey, u64>>,
    /// What each owner waits for.
    waits: BTreeMap<Owner, BTreeSet<(LockKey, WaiterId)>>,
    counts: Counts,
    limits: LockLimits,
    refused: Refused,
    /// Refused while they waited, and not told yet why.
    untold: Vec<(Waiting, Status)>,
    last: u64,
    restart: Restart,
    lasting: lasting::Lastings,
    local: local::Local,
    /// The one file in `files` of which nobody holds or awaits anything: who locks a file again and again finds its memory there.
    free: Option<LockKey>,
}

impl LockTable {
    /// Without locks, for so many.
    pub(crate) fn new(limits: LockLimits) -> Self {
        Self { limits, ..Self::default() }
    }

    /// Locks a range, or waits for it where `waiting` says who is to be told.
    ///
    /// # Errors
    /// [`Status::LOCKED`] or [`Status::GRACE`] when it has to wait and nobody is to; [`Status::DEADLOCK`] when the wait would never end;
    /// [`Status::LOCK_BROKEN`] for what is to be repaired first; [`Status::NO_RECLAIM`]; [`Status::TOO_MANY_LOCKS`].
    pub(crate) fn lock(
        &mut self,
        file: LockKey,
        range: Range<u64>,
        held: Held,
        claim: Claim,
        waiting: Option<Waiting>,
    ) -> Result<Outcome, Status> {
        if range.is_empty() {
            // All that follows the last offset: nothing, which is in nobody's way.
            self.forget_if_free(file);
            return Ok(Outcome::Granted(Vec::new()));
        }
        if claim == Claim::New && self.lock_alone(file, &range, held) {
            return Ok(Outcome::Granted(Vec::new()));
        }
        let session = held.owner.session;
        let checked = self.check(file, &range, &held, claim);
        let outcome = checked.and_then(|()| self.grant_or_wait(file, range, held, claim, waiting));
        if outcome.is_ok()
            && self.files.get(&file).is_some_and(|locks| locks.segments.sessions.knows(session))
        {
            self.by_session.entry(session).or_default().insert(file, 0);
        }
        self.forget_if_free(file);
        outcome
    }

    /// Locks a range as [`LockTable::lock`] does, in the most frequent case; whether it was that.
    fn lock_alone(&mut self, file: LockKey, range: &Range<u64>, held: Held) -> bool {
        let stands_alone = self.stands_alone(file, range, &held);
        if stands_alone {
            self.note(file, range, held.kind);
            self.put_alone(file, range, held);
        }
        stands_alone
    }

    /// Nothing has to be looked at to lock this: the file is known and nobody waits for it, nobody has anything of the range, or of what
    /// touches it, and nothing lasts.
    fn stands_alone(&self, file: LockKey, range: &Range<u64>, held: &Held) -> bool {
        let is_special = held.lasting != Lasting::No
            || self.restart.is_grace()
            || self.lasting.has_kept()
            || self.local.is_shown(file)
            || self.is_full_for(held.owner.session)
            || self.is_full();
        let locks = self.files.get(&file).filter(|locks| !is_special && locks.waiters.is_empty());
        locks.is_some_and(|locks| locks.segments.stands_alone(range))
    }

    /// Somebody locks a range who did not hold it before a restart.
    fn note(&mut self, file: LockKey, range: &Range<u64>, kind: Kind) {
        self.restart.note(file, range, kind);
    }

    /// Locks what [`LockTable::stands_alone`].
    fn put_alone(&mut self, file: LockKey, range: &Range<u64>, held: Held) {
        let session = held.owner.session;
        let segments = &mut self.files.entry(file).or_default().segments;
        let is_known = segments.sessions.knows(session);
        segments.put_alone(range, held, &mut self.counts);
        if !is_known {
            self.by_session.entry(session).or_default().insert(file, 0);
        }
    }

    /// A lock may be asked for, whoever has it now.
    fn check(&mut self, file: LockKey, range: &Range<u64>, held: &Held, claim: Claim) -> Result<(), Status> {
        self.adopt(file);
        self.check_room(file, range, held)?;
        self.check_lasting(file, range, held)?;
        match claim {
            Claim::Reclaim(session) => self.restart.check(file, range, held.kind, session),
            Claim::New | Claim::Repair => Ok(()),
        }
    }

    fn grant_or_wait(
        &mut self,
        file: LockKey,
        range: Range<u64>,
        held: Held,
        claim: Claim,
        waiting: Option<Waiting>,
    ) -> Result<Outcome, Status> {
        let locks = self.files.entry(file).or_default();
        let mut is_locked = match locks.segments.in_way(&range, &held, claim) {
            InWay::Broken => return Err(Status::LOCK_BROKEN),
            in_way => in_way == InWay::Held,
        };
        let is_grace = self.restart.is_grace() && !claim.is_reclaim();
        let goes_first = locks.is_awaited(&range, held.owner) || locks.has_alone(&range, held.owner);
        // Those who wait have no right to what was another's before the restart.
        let is_behind = !claim.is_reclaim() && !goes_first && locks.is_behind_others(&range, &held);
        let is_free = !(is_locked || is_grace || is_behind);
        // It may be asked for again before its turn was noticed.
        let waits = if is_free { self.wait_for(file, &range, &held) } else { None };
        let has_room = waits.is_none() || self.has_room_for_waiter(file, &range, held.owner);
        if is_free && has_room && self.local.take(file, &range, held.kind)? {
            if let Some(id) = waits {
                self.remove_waiter(file, id);
            }
            let locks = self.files.entry(file).or_default();
            let had_part = locks.segments.has_part(&range, held.owner);
            self.take(file, &range, held, claim);
            let shares = had_part && held.kind == Kind::Shared;
            let mut granted = if shares { self.serve(file, [range]) } else { Vec::new() };
            if goes_first || claim.is_reclaim() {
                granted.extend(self.open_circles(held.owner));
            }
            return Ok(Outcome::Granted(granted));
        }
        if is_free && claim.is_reclaim() {
            // A process has it, and may have changed what it guards.
            return Err(Status::NO_RECLAIM);
        }
        is_locked |= is_free;
        let Some(waiting) = waiting else {
            return Err(if is_grace && !is_locked { Status::GRACE } else { Status::LOCKED });
        };
        if is_free {
            self.local.await_process(file);
        }
        if let Some(id) = self.wait_for(file, &range, &held) {
            return Ok(Outcome::Waits(id));
        }
        let Some(locks) = self.files.get_mut(&file) else { return Err(Status::LOCKED) };
        self.last += 1;
        let id = WaiterId { waits_in_turn: !goes_first, number: self.last };
        locks.waiters.insert(id, Waiter { range, held, claim, waiting });
        locks.segments.sessions.add(held.owner.session);
        self.waits.entry(held.owner).or_default().insert((file, id));
        self.counts.add_waiter(held.owner);
        if self.closes_circle(held.owner) {
            self.remove_waiter(file, id);
            return Err(Status::DEADLOCK);
        }
        Ok(Outcome::Waits(id))
    }

    /// Locks a range of which nothing is in the way.
    fn take(&mut self, file: LockKey, range: &Range<u64>, held: Held, claim: Claim) {
        let locks = self.files.entry(file).or_default();
        locks.segments.take(range, held, claim, &mut self.counts);
        if claim.is_reclaim() {
            self.restart.note_reclaim();
        } else {
            self.restart.note(file, range, held.kind);
        }
    }

    /// Gives back what an owner holds of a range. Returns whose turn has come.
    ///
    /// # Errors
    /// [`Status::TOO_MANY_LOCKS`]: what is left would be too many parts. Nothing is given back then.
    pub(crate) fn give_back(
        &mut self,
        file: LockKey,
        range: &Range<u64>,
        owner: Owner,
    ) -> Result<Vec<Waiting>, Status> {
        // Behind the last byte of any file there is nothing.
        if range.is_empty() || self.unlock_alone(file, range, owner) {
            return Ok(Vec::new());
        }
        let is_own = |held: &Held| held.owner == owner && !held.is_broken();
        self.check_cut(file, range, owner.session, is_own, true)?;
        if let Some(locks) = self.files.get_mut(&file) {
            locks.segments.unwritten.forget(range, owner);
        }
        Ok(self.release(file, range, is_own))
    }

    /// Gives back what [`LockTable::lock_alone`] has locked, where nobody waits; whether it was that.
    fn unlock_alone(&mut self, file: LockKey, range: &Range<u64>, owner: Owner) -> bool {
        let is_shown = self.local.is_shown(file);
        let Some(locks) = self.files.get_mut(&file).filter(|locks| !is_shown && locks.waiters.is_empty())
        else {
            return false;
        };
        let is_unlocked = locks.segments.unlock_alone(range, owner, &mut self.counts);
        let is_over = locks.segments.is_empty() || locks.segments.sessions.has_absent();
        if is_unlocked && self.free != Some(file) && is_over {
            self.forget_if_free(file);
        }
        is_unlocked
    }

    /// Takes a lock back that its owner has not been told of, or does not take. Where what is left of it would be too many parts it stays.
    pub(crate) fn take_back(&mut self, file: LockKey, range: &Range<u64>, owner: Owner) -> Freed {
        let locks = self.files.get_mut(&file);
        if let Some(number) = locks.and_then(|locks| locks.segments.unwritten.find_granted(range, owner)) {
            return self.put_back(file, range, number);
        }
        // What cannot be broken again is not repaired either.
        let Ok(mut freed) = self.give_repair_up(file, range, owner) else { return Freed::default() };
        freed.granted.extend(self.give_back(file, range, owner).unwrap_or_default());
        freed
    }

    /// What an owner was going to repair of a range is broken again.
    ///
    /// # Errors
    /// [`Status::TOO_MANY_LOCKS`]: the rest of what it repairs would be too many parts.
    pub(crate) fn give_repair_up(
        &mut self,
        file: LockKey,
        range: &Range<u64>,
        owner: Owner,
    ) -> Result<Freed, Status> {
        let is_repaired = |held: &Held| held.owner == owner && held.lasting == Lasting::Repairing;
        self.check_cut(file, range, owner.session, is_repaired, false)?;
        Ok(self.break_off(file, range, is_repaired))
    }

    /// Ends what was locked by a handle of a session, and what waits by it.
    pub(crate) fn unlock_handle(&mut self, file: LockKey, session: SessionId, handle: u64) -> Freed {
        let by_handle = |held: &Held| held.owner.session == session && held.handle == handle;
        let mut freed = self.end_waits(file, Status::BAD_HANDLE, |waiter| by_handle(&waiter.held));
        freed.add(self.end(file, &(0..u64::MAX), by_handle));
        freed
    }

    fn end_waits(&mut self, file: LockKey, why: Status, is_meant: impl Fn(&Waiter) -> bool) -> Freed {
        let mut freed = Freed::default();
        let waiters = self.files.get(&file).map(|locks| &locks.waiters);
        let meant = work::looked(waiters.into_iter().flatten()).filter(|(_, waiter)| is_meant(waiter));
        let meant: Vec<WaiterId> = meant.map(|(id, _)| *id).collect();
        let ended: Vec<_> = meant.into_iter().filter_map(|id| self.remove_waiter(file, id)).collect();
        freed.ended.extend(ended.iter().map(|waiter| (waiter.waiting, why)));
        freed.granted = self.serve(file, ended.into_iter().map(|waiter| waiter.range));
        self.forget_if_free(file);
        freed
    }

    /// Ends some of the locks and waits of a session that ended. `None` when there is no more.
    pub(crate) fn end_some_of(&mut self, session: SessionId) -> Option<Freed> {
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
        let mut freed = self.end_waits(file, Status::NO_SESSION, |waiter| is_own(&waiter.held));
        freed.ended.clear();
        freed.add(self.end(file, &(from..end), is_own));
        if let Some(locks) = self.files.get_mut(&file) {
            locks.segments.sessions.forget(session);
        }
        Some(freed)
    }

    /// Ends locks of a range whose owner did not give them back. What lasts is broken from now on: whoever waits for it is told, or has it
    /// where he waits to repair it. What its owner has not asked for since it was granted is taken back before: he does not know of it.
    fn end(&mut self, file: LockKey, range: &Range<u64>, is_meant: impl Fn(&Held) -> bool) -> Freed {
        let mut freed = Freed::default();
        let unasked = self.files.get(&file).map(|locks| locks.segments.unwritten.unasked(range, &is_meant));
        for (number, granted) in unasked.unwrap_or_default() {
            freed.add(self.put_back(file, &granted, number));
            freed.to_write.push((file, granted));
        }
        freed.add(self.break_off(file, range, is_meant));
        freed
    }

    fn break_off(&mut self, file: LockKey, range: &Range<u64>, is_meant: impl Fn(&Held) -> bool) -> Freed {
        let broken = self.files.get_mut(&file).map_or_else(Vec::new, |locks| {
            locks.segments.unwritten.end(range, &is_meant);
            locks.segments.break_lasting(range, &is_meant, &mut self.counts)
        });
        let granted = self.release(file, range, |held| is_meant(held) && !held.is_broken());
        let mut freed = Freed { granted, ..Freed::default() };
        self.end_waits_for_broken(file, broken, &mut freed);
        freed
    }

    fn end_waits_for_broken(&mut self, file: LockKey, broken: Vec<Range<u64>>, freed: &mut Freed) {
        if broken.is_empty() {
            return;
        }
        let ranges: RangeSet<u64> = broken.iter().cloned().collect();
        let is_told = |waiter: &Waiter| waiter.claim != Claim::Repair && ranges.overlaps(&waiter.range);
        freed.add(self.end_waits(file, Status::LOCK_BROKEN, is_told));
        // Whoever waits to repair it may have it.
        freed.granted.extend(self.serve(file, broken));
    }

    /// The wait of an owner for this very lock, by this handle, of which its session will be told.
    pub(crate) fn wait_for(&self, file: LockKey, range: &Range<u64>, held: &Held) -> Option<WaiterId> {
        let locks = self.files.get(&file)?;
        let own = self.waits.get(&held.owner)?.range((file, WaiterId::default())..);
        let own = own.take_while(|(other, _)| *other == file).map(|(_, id)| *id);
        work::looked(own).find(|id| {
            locks.waiters.get(id).is_some_and(|waiter| {
                let is_session = matches!(waiter.waiting.told, Told::Session(..));
                let is_same = waiter.held.kind == held.kind && waiter.held.handle == held.handle;
                is_session && waiter.range == *range && is_same
            })
        })
    }

    /// Ends waits, all of them before anybody is served: none of them gets its turn by that. Returns which of them waited still, and whose
    /// turn has come.
    pub(crate) fn cancel(
        &mut self,
        waits: impl IntoIterator<Item = (LockKey, WaiterId)>,
    ) -> (HashSet<WaiterId>, Vec<Waiting>) {
        let (mut ended, mut granted) = (HashSet::new(), Vec::new());
        let mut freed: BTreeMap<LockKey, Vec<Range<u64>>> = BTreeMap::new();
        for (file, id) in waits {
            if let Some(waiter) = self.remove_waiter(file, id) {
                ended.insert(id);
                freed.entry(file).or_default().push(waiter.range);
            }
        }
        for (file, ranges) in freed {
            granted.extend(self.serve(file, ranges));
            self.forget_if_free(file);
        }
        (ended, granted)
    }

    /// An owner has a part of a range locked.
    pub(crate) fn has_any_of(&self, file: LockKey, range: &Range<u64>, owner: Owner) -> bool {
        let locks = self.files.get(&file);
        locks.is_some_and(|locks| locks.segments.overlapping(range).any(|(_, held)| held.owner == owner))
    }

    /// An owner has a part of a range locked so that it lasts.
    pub(crate) fn has_lasting(&self, file: LockKey, range: &Range<u64>, owner: Owner) -> bool {
        let locks = self.files.get(&file);
        locks.is_some_and(|locks| {
            let mut held = locks.segments.overlapping(range);
            held.any(|(_, held)| held.owner == owner && held.lasting != Lasting::No)
        })
    }

    /// Who keeps an owner from locking a range: the first part, and its holder.
    pub(crate) fn conflict(
        &mut self,
        file: LockKey,
        range: &Range<u64>,
        owner: Owner,
        kind: Kind,
    ) -> Option<(Range<u64>, Held)> {
        self.adopt(file);
        let locks = self.files.get(&file);
        let found = locks.and_then(|locks| locks.segments.conflict(range, owner, kind));
        let found = found.map(|(part, held)| (part, *held));
        let found = found.or_else(|| self.local_conflict(file, range, kind));
        self.forget_if_free(file);
        found
    }

    /// There are mandatory locks somewhere.
    pub(crate) fn has_mandatory(&self) -> bool {
        self.counts.mandatory > 0 || self.lasting.has_mandatory()
    }

    /// A number that is another once mandatory locks have changed.
    pub(crate) fn mandatory_version(&self) -> u64 {
        self.counts.mandatory_changes
    }

    /// A mandatory lock of another session keeps this one from reading or writing one of these ranges, which ascend and do not touch.
    pub(crate) fn keeps_out(
        &mut self,
        file: LockKey,
        ranges: &[Range<u64>],
        session: SessionId,
        writes: bool,
    ) -> bool {
        self.adopt(file);
        let kind = if writes { Kind::Exclusive } else { Kind::Shared };
        let Some(locks) = self.files.get(&file) else { return false };
        locks.segments.keeps_out(ranges, session, kind)
    }

    /// Serves some of those who waited for the end of the time in which locks are taken again; whether there are more.
    pub(crate) fn serve_some(&mut self) -> Option<Vec<Waiting>> {
        let file = self.restart.next_to_serve()?;
        Some(self.serve(file, once(0..u64::MAX)))
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
        self.local.show(file, range, self.files.get(&file));
        let granted = self.serve(file, [range.clone()]);
        self.forget_if_free(file);
        granted
    }

    fn remove_waiter(&mut self, file: LockKey, id: WaiterId) -> Option<Waiter> {
        let waiter = self.take_waiter(file, id)?;
        self.counts.remove_waiter(waiter.held.owner);
        Some(waiter)
    }

    /// Takes one out that is not counted any more.
    fn take_waiter(&mut self, file: LockKey, id: WaiterId) -> Option<Waiter> {
        let locks = self.files.get_mut(&file)?;
        let waiter = locks.waiters.remove(&id)?;
        let owner = waiter.held.owner;
        locks.segments.sessions.remove(owner.session);
        if let Some(waits) = self.waits.get_mut(&owner) {
            waits.remove(&(file, id));
            if waits.is_empty() {
                self.waits.remove(&owner);
            }
        }
        Some(waiter)
    }

    /// Forgets who has nothing of a file any more, and the file where nobody has: it takes the place of the one in `free`.
    fn forget_if_free(&mut self, file: LockKey) {
        match self.files.get_mut(&file) {
            Some(locks) if !locks.is_free() => {
                let gone = locks.segments.sessions.take_absent();
                return self.forget_sessions(file, gone);
            }
            Some(_) if self.free != Some(file) => {
                let before = self.free.replace(file);
                if let Some(before) =
                    before.filter(|before| self.files.get(before).is_some_and(FileLocks::is_free))
                    && let Some(mut locks) = self.files.remove(&before)
                {
                    self.forget_sessions(before, locks.segments.sessions.take_absent());
                }
            }
            _ => {}
        }
        self.local.forget(file);
    }

    /// These have nothing of a file any more.
    fn forget_sessions(&mut self, file: LockKey, gone: Vec<SessionId>) {
        for session in gone {
            if let Some(files) = self.by_session.get_mut(&session) {
                files.remove(&file);
                if files.is_empty() {
                    self.by_session.remove(&session);
                }
            }
        }
    }
}

impl Freed {
    fn add(&mut self, other: Self) {
        self.granted.extend(other.granted);
        self.ended.extend(other.ended);
        self.to_write.extend(other.to_write);
    }
}

impl FileLocks {
    fn is_free(&self) -> bool {
        self.segments.is_empty() && self.waiters.is_empty()
    }
}

fn overlap(a: &Range<u64>, b: &Range<u64>) -> bool {
    a.start < b.end && b.start < a.end
}

fn covers(whole: &Range<u64>, part: &Range<u64>) -> bool {
    whole.start <= part.start && part.end <= whole.end
}
