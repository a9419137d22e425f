//! The locks of one file: disjoint segments of its offsets, each with who holds it. Locks that overlap split segments; segments that touch
//! and are held alike become one.

use std::collections::btree_map::Entry;
use std::collections::{BTreeMap, BTreeSet};
use std::ops::Range;

use dafs_proto::wire::{LockKind as Kind, SessionId};
use smallvec::SmallVec;

use super::held::{Claim, Counts, Held, LASTING_MAX, Lasting, Owner, Sessions, conflict};
use super::unwritten::Unwritten;
use crate::storage::work;

/// Who holds a segment. All hold it shared, or one holds it exclusively.
type Holders = SmallVec<[Held; 1]>;

#[derive(Debug, PartialEq, Eq)]
struct Segment {
    end: u64,
    holders: Holders,
}

/// What keeps a request from its range.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum InWay {
    Nothing,
    Held,
    /// A broken lock, which nobody waits for.
    Broken,
}

/// How many parts there are: of one session, of all, and of those that last.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Parts {
    pub(super) own: usize,
    pub(super) all: usize,
    pub(super) lasting: usize,
}

impl Parts {
    fn count(&mut self, held: &Held, session: SessionId) {
        self.own += usize::from(held.owner.session == session);
        self.all += 1;
        self.lasting += usize::from(held.lasting != Lasting::No);
    }
}

/// What a range that is cut out of locks adds, by its two cuts, and what it takes away.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Cut {
    pub(super) added: Parts,
    pub(super) gone: Parts,
}

/// See the module.
#[derive(Debug, Default)]
pub(super) struct Segments {
    by_start: BTreeMap<u64, Segment>,
    /// Where those begin that somebody holds mandatorily.
    mandatory: BTreeSet<u64>,
    pub(super) unwritten: Unwritten,
    /// Who has how much of it; what is awaited the table counts.
    pub(super) sessions: Sessions,
    /// How many parts outlive their owners.
    lasting: usize,
}

impl Segments {
    pub(super) fn is_empty(&self) -> bool {
        self.by_start.is_empty()
    }

    /// Who holds parts of a range, and each part, which may reach beyond the range. They count as looked at.
    pub(super) fn overlapping(&self, range: &Range<u64>) -> impl Iterator<Item = (Range<u64>, &Held)> + '_ {
        let before = self.by_start.range(..range.start).next_back().map(|(start, _)| *start);
        let (first, end) = (before.unwrap_or(range.start), range.end);
        let from = range.start;
        let segments = self.by_start.range(first..).take_while(move |(start, _)| **start < end);
        let overlapping = segments.filter(move |(_, segment)| segment.end > from);
        work::looked(
            overlapping.flat_map(|(start, segment)| {
                segment.holders.iter().map(move |held| (*start..segment.end, held))
            }),
        )
    }

    /// The first part of a range that keeps an owner from locking it.
    pub(super) fn conflict(
        &self,
        range: &Range<u64>,
        owner: Owner,
        kind: Kind,
    ) -> Option<(Range<u64>, &Held)> {
        self.overlapping(range).find(|(_, held)| held.owner != owner && conflict(held.kind, kind))
    }

    /// A mandatory lock of another session conflicts with access of this kind to one of these ranges, which ascend and do not touch. Each
    /// range is looked at once, and each mandatory lock in it.
    pub(super) fn keeps_out(&self, ranges: &[Range<u64>], session: SessionId, kind: Kind) -> bool {
        let keeps =
            |held: &Held| held.is_mandatory && held.owner.session != session && conflict(held.kind, kind);
        for range in work::looked(ranges) {
            let before = self.mandatory.range(..range.start).next_back();
            for start in before.into_iter().chain(self.mandatory.range(range.clone())) {
                let Some(segment) = self.by_start.get(start).filter(|segment| segment.end > range.start)
                else {
                    continue;
                };
                if work::looked(&segment.holders).any(keeps) {
                    return true;
                }
            }
        }
        false
    }

    /// The holders of a segment, or of none that begins there, have changed.
    fn note_mandatory(&mut self, start: u64) {
        let is_mandatory = |segment: &Segment| segment.holders.iter().any(|held| held.is_mandatory);
        if self.by_start.get(&start).is_some_and(is_mandatory) {
            self.mandatory.insert(start);
        } else {
            self.mandatory.remove(&start);
        }
    }

    /// What keeps a request from its range.
    pub(super) fn in_way(&self, range: &Range<u64>, request: &Held, claim: Claim) -> InWay {
        let mut in_way = InWay::Nothing;
        for (_, held) in self.overlapping(range) {
            if !conflict(held.kind, request.kind) {
                continue;
            }
            match held.is_broken() {
                true if claim.takes_over(held) => {}
                // Its owner too is to repair what it has left.
                true => return InWay::Broken,
                false if held.owner == request.owner => {}
                false => in_way = InWay::Held,
            }
        }
        in_way
    }

    /// A part of a range has a lock that outlives its owner.
    pub(super) fn has_lasting(&self, range: &Range<u64>) -> bool {
        self.lasting > 0 && self.overlapping(range).any(|(_, held)| held.lasting != Lasting::No)
    }

    /// How many parts have locks that outlive their owners.
    pub(super) fn lasting_count(&self) -> usize {
        self.lasting
    }

    /// What lasts of those that are meant is broken from now on; which parts these are.
    pub(super) fn break_lasting(
        &mut self,
        range: &Range<u64>,
        is_meant: impl Fn(&Held) -> bool,
        counts: &mut Counts,
    ) -> Vec<Range<u64>> {
        let breaks =
            |held: &Held| matches!(held.lasting, Lasting::Persistent | Lasting::Repairing) && is_meant(held);
        if !self.overlapping(range).any(|(_, held)| breaks(held)) {
            return Vec::new();
        }
        for at in [range.start, range.end] {
            if self.segment_to_cut(at, breaks).is_some() {
                self.split(at, counts);
            }
        }
        let mut broken = Vec::new();
        for (start, segment) in self.by_start.range_mut(range.clone()) {
            for held in segment.holders.iter_mut().filter(|held| breaks(held)) {
                held.lasting = Lasting::Broken;
                broken.push(*start..segment.end);
            }
        }
        broken
    }

    /// Where the segment begins that is so many behind an offset; `u64::MAX` where there are fewer.
    pub(super) fn place_of(&self, from: u64, count: usize) -> u64 {
        self.by_start.range(from..).nth(count).map_or(u64::MAX, |(start, _)| *start)
    }

    /// An owner holds a part of a range.
    pub(super) fn has_part(&self, range: &Range<u64>, owner: Owner) -> bool {
        self.overlapping(range).any(|(_, held)| held.owner == owner)
    }

    /// An owner holds all of a range, and nobody else any of it.
    pub(super) fn has_alone(&self, range: &Range<u64>, owner: Owner) -> bool {
        let mut at = range.start;
        let is_alone = self.overlapping(range).all(|(part, held)| {
            let follows = part.start <= at;
            at = part.end;
            follows && held.owner == owner && !held.is_broken()
        });
        is_alone && at >= range.end
    }

    /// All of a range is locked so by one owner already.
    pub(super) fn holds(&self, range: &Range<u64>, wanted: &Held) -> bool {
        let is_same = |held: &Held| {
            // What was taken in place of a broken lock is asked for again as a persistent one.
            let lasting = if held.lasting == Lasting::Repairing { wanted.lasting } else { held.lasting };
            Held { lasting, ..*held } == *wanted
        };
        let mut at = range.start;
        for (part, held) in self.overlapping(range) {
            if part.start <= at && is_same(held) {
                at = part.end;
            } else if part.start > at {
                break;
            }
        }
        at >= range.end
    }

    /// Parts that a lock of a range adds: of its owner's session, and of all. At most: those that are joined again are counted.
    pub(super) fn added(&self, range: &Range<u64>, owner: Owner) -> (usize, usize) {
        let before = self.by_start.range(..range.start).next_back().map(|(start, _)| *start);
        let near = self.by_start.range(before.unwrap_or(range.start)..range.end);
        let overlapping = near.filter(|(_, segment)| segment.end > range.start);
        let (mut own, mut others, mut at) = (0, 0, range.start);
        for (start, segment) in work::looked(overlapping) {
            own += usize::from(*start > at);
            own += usize::from(segment.holders.iter().all(|held| held.owner != owner));
            let cuts =
                [range.start, range.end].into_iter().filter(|cut| (start + 1..segment.end).contains(cut));
            for _ in cuts {
                let is_own = |held: &&Held| held.owner.session == owner.session;
                let own_holders = work::looked(&segment.holders).filter(is_own).count();
                own += own_holders;
                others += segment.holders.len() - own_holders;
            }
            at = segment.end;
        }
        own += usize::from(at < range.end);
        (own, own + others)
    }

    /// What becomes of the parts when a range of those that are meant, of one session, is cut out of them: it goes, or stays by itself.
    pub(super) fn cut(
        &self,
        range: &Range<u64>,
        session: SessionId,
        is_meant: impl Fn(&Held) -> bool,
        goes: bool,
    ) -> Cut {
        let mut cut = Cut::default();
        for at in [range.start, range.end] {
            let Some(segment) = self.segment_to_cut(at, &is_meant) else { continue };
            for held in work::looked(&segment.holders) {
                cut.added.count(held, session);
            }
        }
        for (_, held) in self.overlapping(range).filter(|_| goes) {
            if is_meant(held) {
                cut.gone.count(held, session);
            }
        }
        cut
    }

    /// A lock makes no more parts that last than a file may have: it may be one of them, or be cut out of some.
    pub(super) fn has_room_for_lasting(&self, range: &Range<u64>, held: &Held) -> bool {
        let is_replaced = |by: &Held| by.lasting != Lasting::No && (by.owner == held.owner || by.is_broken());
        let Cut { added, gone } = self.cut(range, held.owner.session, is_replaced, true);
        let added = added.lasting + usize::from(held.lasting != Lasting::No);
        if added <= gone.lasting {
            return true;
        }
        self.lasting + added <= LASTING_MAX + gone.lasting
    }

    /// The segment that is to be cut at a place: one that somebody holds who is meant, and that begins before it and ends behind it.
    fn segment_to_cut(&self, at: u64, is_meant: impl Fn(&Held) -> bool) -> Option<&Segment> {
        let (_, segment) = self.by_start.range(..at).next_back()?;
        (segment.end > at && segment.holders.iter().any(is_meant)).then_some(segment)
    }

    /// Locks a range for a holder, instead of what its owner held there. There must be no conflict.
    pub(super) fn lock(&mut self, range: &Range<u64>, held: Held, counts: &mut Counts) {
        self.unlock(range, |other| other.owner == held.owner, counts);
        self.split(range.start, counts);
        self.split(range.end, counts);
        let mut at = range.start;
        while at < range.end {
            match self.by_start.range_mut(at..).next() {
                Some((start, segment)) if *start == at => {
                    if held.is_mandatory {
                        self.mandatory.insert(at);
                    }
                    work::add_looks(segment.holders.len());
                    segment.holders.push(held);
                    // In an order of their own, so that equal ones are found to be equal.
                    segment.holders.sort_unstable();
                    at = segment.end;
                }
                next => {
                    let end = next.map_or(range.end, |(start, _)| (*start).min(range.end));
                    self.by_start.insert(at, Segment { end, holders: SmallVec::from_buf([held]) });
                    if held.is_mandatory {
                        self.mandatory.insert(at);
                    }
                    at = end;
                }
            }
            counts.add(&held);
            self.sessions.add(held.owner.session);
            self.lasting += usize::from(held.lasts());
        }
        self.join(range, counts);
    }

    /// As [`Segments::lock`], also in place of broken locks. Where something of what lasts changes by that, what it replaces is remembered
    /// until it is written.
    pub(super) fn take(&mut self, range: &Range<u64>, mut held: Held, claim: Claim, counts: &mut Counts) {
        let lasts = held.lasting != Lasting::No || self.has_lasting(range);
        // Whoever asks again for a repair that he waited for has it already, and repairs still.
        let is_to_repair =
            |by: &Held| by.is_broken() || (by.owner == held.owner && by.lasting == Lasting::Repairing);
        if lasts && claim == Claim::Repair && self.overlapping(range).any(|(_, by)| is_to_repair(by)) {
            held.lasting = Lasting::Repairing;
        }
        if lasts {
            self.remember(range, held);
            self.unlock(range, Held::is_broken, counts);
        }
        self.lock(range, held, counts);
    }

    /// Nobody has a part of a range, nor of what touches it.
    pub(super) fn stands_alone(&self, range: &Range<u64>) -> bool {
        let last = self.by_start.range(..=range.end).next_back();
        last.is_none_or(|(_, segment)| segment.end < range.start)
    }

    /// Locks a range which [`Segments::stands_alone`].
    pub(super) fn put_alone(&mut self, range: &Range<u64>, held: Held, counts: &mut Counts) {
        self.by_start.insert(range.start, Segment { end: range.end, holders: SmallVec::from_buf([held]) });
        if held.is_mandatory {
            self.mandatory.insert(range.start);
        }
        counts.add(&held);
        self.sessions.add(held.owner.session);
        self.lasting += usize::from(held.lasts());
    }

    /// Ends a lock of this very range that its owner shares with nobody, and that lasts no longer than he does; whether it was that.
    pub(super) fn unlock_alone(&mut self, range: &Range<u64>, owner: Owner, counts: &mut Counts) -> bool {
        if !self.unwritten.is_empty() {
            return false;
        }
        let Entry::Occupied(found) = self.by_start.entry(range.start) else { return false };
        let Segment { end, holders } = found.get();
        let [held] = holders.as_slice() else { return false };
        if *end != range.end || held.owner != owner || held.lasting != Lasting::No {
            return false;
        }
        counts.remove(held);
        self.sessions.remove(held.owner.session);
        if held.is_mandatory {
            self.mandatory.remove(&range.start);
        }
        found.remove();
        true
    }

    /// Takes those holders of a range away that are meant; whether there were any. What they do not hold is not cut.
    pub(super) fn unlock(
        &mut self,
        range: &Range<u64>,
        is_meant: impl Fn(&Held) -> bool,
        counts: &mut Counts,
    ) -> bool {
        if !self.overlapping(range).any(|(_, held)| is_meant(held)) {
            return false;
        }
        for at in [range.start, range.end] {
            if self.segment_to_cut(at, &is_meant).is_some() {
                self.split(at, counts);
            }
        }
        let (mut emptied, mut freed) = (Vec::new(), Vec::new());
        for (start, segment) in self.by_start.range_mut(range.clone()) {
            segment.holders.retain(|held| {
                let goes = is_meant(held);
                if goes {
                    if held.is_mandatory {
                        freed.push(*start);
                    }
                    counts.remove(held);
                    self.sessions.remove(held.owner.session);
                    self.lasting -= usize::from(held.lasts());
                }
                !goes
            });
            if segment.holders.is_empty() {
                emptied.push(*start);
            }
        }
        for start in emptied {
            self.by_start.remove(&start);
        }
        for start in freed {
            self.note_mandatory(start);
        }
        self.join(range, counts);
        true
    }

    /// Makes a segment begin at `at`, where one covers it.
    fn split(&mut self, at: u64, counts: &mut Counts) {
        let Some((_, segment)) = self.by_start.range_mut(..at).next_back() else { return };
        if segment.end <= at {
            return;
        }
        let behind = Segment { end: segment.end, holders: segment.holders.clone() };
        segment.end = at;
        for held in &behind.holders {
            counts.add(held);
            self.sessions.add(held.owner.session);
            self.lasting += usize::from(held.lasts());
        }
        if behind.holders.iter().any(|held| held.is_mandatory) {
            self.mandatory.insert(at);
        }
        self.by_start.insert(at, behind);
    }

    /// Joins the segments within a range and beside it that touch and are held alike.
    fn join(&mut self, range: &Range<u64>, counts: &mut Counts) {
        let before = self.by_start.range(..range.start).next_back().map(|(start, _)| *start);
        let mut at = before.unwrap_or(range.start);
        while at <= range.end
            && let Some((&start, segment)) = self.by_start.range(at..).next()
        {
            let end = segment.end;
            at = end;
            if self.by_start.get(&end).is_some_and(|next| next.holders == segment.holders)
                && let Some(next) = self.by_start.remove(&end)
                && let Some(segment) = self.by_start.get_mut(&start)
            {
                self.mandatory.remove(&end);
                for held in &next.holders {
                    counts.remove(held);
                    self.sessions.remove(held.owner.session);
                    self.lasting -= usize::from(held.lasts());
                }
                segment.end = next.end;
                at = start;
            }
            if at == u64::MAX {
                break;
            }
        }
    }
}

/// What is in both, if anything.
pub(super) fn both(a: &Range<u64>, b: &Range<u64>) -> Range<u64> {
    a.start.max(b.start)..a.end.min(b.end)
}
