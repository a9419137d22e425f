//! Whose turn it is among the waiting requests, and for whom an owner waits. Each request looks at all others at most once, and what it
//! looked at is counted as work of the loop's thread: clients choose how many wait.

use std::cmp::Reverse;
use std::collections::HashSet;
use std::ops::Range;

use dafs_proto::wire::{LockKind as Kind, Status};
use rangemap::RangeSet;

use super::held::{Held, Owner, Waiting, conflict};
use super::segments::{InWay, both};
use super::{FileLocks, LockTable, Waiter, WaiterId, covers, overlap};
use crate::storage::{LockKey, work};

/// Owners that are looked at for a circle at most, so that nobody's request is much work.
const CIRCLE_OWNERS_MAX: usize = 1 << 14;

/// What these hold and wait for, as far as that is looked at.
const CIRCLE_STEPS_MAX: usize = 1 << 18;

/// Ranges that are locked, or that requests wait for.
#[derive(Default)]
struct Locked {
    by_any: RangeSet<u64>,
    alone: RangeSet<u64>,
}

impl Locked {
    fn add(&mut self, range: &Range<u64>, kind: Kind) {
        self.by_any.insert(range.clone());
        if kind == Kind::Exclusive {
            self.alone.insert(range.clone());
        }
    }

    /// One of these conflicts with a lock of a range.
    fn conflicts(&self, range: &Range<u64>, kind: Kind) -> bool {
        let others = if kind == Kind::Exclusive { &self.by_any } else { &self.alone };
        others.overlaps(range)
    }
}

impl LockTable {
    /// Grants what can be granted now that ranges have become free, in the order of waiting.
    pub(super) fn serve(
        &mut self,
        file: LockKey,
        freed: impl IntoIterator<Item = Range<u64>>,
    ) -> Vec<Waiting> {
        let freed = freed.into_iter().filter(|range| !range.is_empty()).collect();
        self.serve_each(vec![(file, freed)], CIRCLE_STEPS_MAX)
    }

    /// As [`LockTable::serve`], of several files. Whoever passes others by a grant may wait for them elsewhere: such a wait ends.
    fn serve_each(
        &mut self,
        mut freed: Vec<(LockKey, RangeSet<u64>)>,
        mut steps_left: usize,
    ) -> Vec<Waiting> {
        let mut granted = Vec::new();
        while let Some((file, ranges)) = freed.pop() {
            let passing = self.serve_ranges(file, ranges, &mut granted);
            for owner in passing {
                freed.extend(self.end_circles(owner, &mut steps_left));
            }
        }
        granted
    }

    /// Returns the owners who have passed others, too.
    fn serve_ranges(
        &mut self,
        file: LockKey,
        mut freed: RangeSet<u64>,
        granted: &mut Vec<Waiting>,
    ) -> Vec<Owner> {
        let mut passing = Vec::new();
        if self.files.get(&file).is_none_or(|locks| locks.waiters.is_empty()) || self.restart.is_grace() {
            return passing;
        }
        while !freed.is_empty() {
            for (id, is_granted) in self.grant(file, &std::mem::take(&mut freed)) {
                let Some(waiter) = self.take_waiter(file, id) else { continue };
                if !is_granted {
                    freed.insert(waiter.range);
                    self.untold.push((waiter.waiting, Status::TOO_MANY_LOCKS));
                    continue;
                }
                // Its owner may have had a part of it alone, or waits for more behind it.
                if waiter.held.kind == Kind::Shared || self.waits.contains_key(&waiter.held.owner) {
                    freed.insert(waiter.range);
                }
                granted.push(waiter.waiting);
                passing.extend(id.goes_first().then_some(waiter.held.owner));
            }
        }
        passing
    }

    /// An owner was granted what others wait for, whom it has passed. Where it waits for them too, that ends. Serves whoever was behind it.
    pub(super) fn open_circles(&mut self, owner: Owner) -> Vec<Waiting> {
        let mut steps_left = CIRCLE_STEPS_MAX;
        let freed = self.end_circles(owner, &mut steps_left);
        self.serve_each(freed, steps_left)
    }

    /// Ends those waits of an owner that others wait for who wait for it: the latest first. Returns what is awaited no more by that.
    fn end_circles(&mut self, owner: Owner, steps_left: &mut usize) -> Vec<(LockKey, RangeSet<u64>)> {
        let mut freed = Vec::new();
        let Some(waits) = self.waits.get(&owner) else { return freed };
        let mut waits: Vec<(LockKey, WaiterId)> = waits.iter().copied().collect();
        waits.sort_unstable_by_key(|(_, id)| Reverse(id.number));
        for (file, id) in waits {
            if self.search_circle(owner, vec![(file, id)], steps_left)
                && let Some(waiter) = self.remove_waiter(file, id)
            {
                self.untold.push((waiter.waiting, Status::DEADLOCK));
                freed.push((file, RangeSet::from_iter([waiter.range])));
                self.forget_if_free(file);
            }
        }
        freed
    }

    /// The requests of one pass over those that wait, which stay among them and are counted no longer; and whether each was granted, or is
    /// to be refused because it would make too many parts.
    fn grant(&mut self, file: LockKey, freed: &RangeSet<u64>) -> Vec<(WaiterId, bool)> {
        let mut granted = Vec::new();
        let Some(locks) = self.files.get_mut(&file) else { return granted };
        let (Some(freed_whole), Some(reach)) = (hull(freed), locks.reach(freed)) else { return granted };
        self.local.begin_pass(file);
        // What earlier requests wait for, so that no later one passes them.
        let mut awaited = Locked::default();
        let mut is_taken = false;
        for (id, Waiter { range, held, claim, .. }) in work::looked(&locks.waiters) {
            if is_taken && !id.goes_first() {
                break;
            }
            if !overlap(range, &reach) {
                continue;
            }
            let is_behind = !id.goes_first() && awaited.conflicts(range, held.kind);
            let may_have = freed.overlaps(range)
                && !is_behind
                && locks.segments.in_way(range, held, *claim) == InWay::Nothing;
            let checked = match may_have {
                true => self.limits.check(&self.counts, Some(&locks.segments), range, held.owner, 1),
                false => Ok(()),
            };
            let checked = checked.map_err(|over| self.refused.count(over));
            let is_refused =
                checked.is_err() || (may_have && !locks.segments.has_room_for_lasting(range, held));
            if is_refused {
                self.counts.remove_waiter(held.owner);
                granted.push((*id, false));
            } else if may_have && self.local.take_in_turn(file, *id, range, held.kind) {
                locks.segments.take(range, *held, *claim, &mut self.counts);
                // As one that is held it is counted now.
                self.counts.remove_waiter(held.owner);
                self.restart.note(file, range, held.kind);
                granted.push((*id, true));
            } else {
                awaited.add(range, held.kind);
            }
            // Also behind one that is refused: what others wait for was looked at no further than this.
            is_taken |= held.kind == Kind::Exclusive && covers(range, &freed_whole);
        }
        self.local.end_pass(file);
        granted
    }

    /// Somebody whom an owner waits for waits for it, directly or by others.
    pub(super) fn closes_circle(&self, owner: Owner) -> bool {
        // Its last wait is behind all others, so nobody waits for that one.
        if self.counts.by_owner.of(owner) == 0 && self.waits.get(&owner).is_none_or(|own| own.len() < 2) {
            return false;
        }
        let own = self.waits.get(&owner).into_iter().flatten().copied().collect();
        let mut steps_left = CIRCLE_STEPS_MAX;
        self.search_circle(owner, own, &mut steps_left)
    }

    /// One of these waits of an owner is for somebody who waits for it.
    fn search_circle(&self, owner: Owner, own: Vec<(LockKey, WaiterId)>, steps_left: &mut usize) -> bool {
        let mut seen = HashSet::from([owner]);
        let mut to_see = Vec::new();
        let mut waits = own;
        loop {
            for (file, id) in std::mem::take(&mut waits) {
                for blocker in self.blockers(file, id, steps_left) {
                    if blocker == owner {
                        return true;
                    }
                    if seen.len() < CIRCLE_OWNERS_MAX && seen.insert(blocker) {
                        to_see.push(blocker);
                    }
                }
            }
            let Some(next) = to_see.pop() else { return false };
            waits.extend(self.waits.get(&next).into_iter().flatten());
        }
    }

    /// Whom a request waits for, as far as they do not wait for each other, and as there are steps left to look at them.
    fn blockers(&self, file: LockKey, id: WaiterId, steps_left: &mut usize) -> Vec<Owner> {
        let Some(locks) = self.files.get(&file) else { return Vec::new() };
        let Some(Waiter { range, held, .. }) = locks.waiters.get(&id) else { return Vec::new() };
        let mut blockers = Vec::new();
        let mut step = || steps_left.checked_sub(1).map(|left| *steps_left = left);
        for (_, by) in locks.segments.overlapping(range) {
            if step().is_none() {
                return blockers;
            }
            if by.owner != held.owner && conflict(by.kind, held.kind) {
                blockers.push(by.owner);
            }
        }
        if id.goes_first() {
            return blockers;
        }
        for (other, earlier) in work::looked(locks.waiters.range(..id).rev()) {
            if step().is_none() {
                break;
            }
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
}

impl FileLocks {
    /// Another waits for a part of a range that an owner holds. A request of his for that range goes first: behind the other it would wait
    /// for ever.
    pub(super) fn is_awaited(&self, range: &Range<u64>, owner: Owner) -> bool {
        if self.waiters.is_empty() {
            return false;
        }
        let mut own = Locked::default();
        for (part, by) in self.segments.overlapping(range) {
            if by.owner == owner && !by.is_broken() {
                own.add(&both(&part, range), by.kind);
            }
        }
        let mut others = work::looked(self.waiters.values()).filter(|waiter| waiter.held.owner != owner);
        !own.by_any.is_empty() && others.any(|waiter| own.conflicts(&waiter.range, waiter.held.kind))
    }

    /// An owner has all of a range that others wait for, and nobody else any of it. They wait for something else.
    pub(super) fn has_alone(&self, range: &Range<u64>, owner: Owner) -> bool {
        !self.waiters.is_empty() && self.segments.has_alone(range, owner)
    }

    /// Somebody waits already for what conflicts with a request.
    pub(super) fn is_behind_others(&self, range: &Range<u64>, held: &Held) -> bool {
        if self.waiters.is_empty() {
            return false;
        }
        let is_before = |waiter: &Waiter| overlap(&waiter.range, range) && waiter.held.comes_before(held);
        work::looked(self.waiters.values()).any(is_before)
    }

    /// What those wait for who may have their turn where something has become free, and what is between that. `None` where nobody may.
    fn reach(&self, freed: &RangeSet<u64>) -> Option<Range<u64>> {
        let freed_whole = hull(freed)?;
        let (mut reach, mut is_taken) = (None::<Range<u64>>, false);
        for (id, Waiter { range, held, .. }) in work::looked(&self.waiters) {
            // All others wait behind one that takes everything.
            if is_taken && !id.goes_first() {
                break;
            }
            if overlap(range, &freed_whole) && freed.overlaps(range) {
                let so_far = reach.unwrap_or_else(|| range.clone());
                reach = Some(so_far.start.min(range.start)..so_far.end.max(range.end));
            }
            is_taken |= held.kind == Kind::Exclusive && covers(range, &freed_whole);
        }
        reach
    }
}

/// From the first of some ranges to the last.
fn hull(ranges: &RangeSet<u64>) -> Option<Range<u64>> {
    Some(ranges.iter().next()?.start..ranges.iter().next_back()?.end)
}
