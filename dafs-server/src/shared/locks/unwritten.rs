//! Locks that are not granted before they are written to the store. Until then the locks that they replace are remembered. If the write
//! fails, their owner gets those back.

use std::collections::BTreeMap;
use std::ops::Range;

use rangemap::RangeSet;

use super::held::{Claim, Counts, Held, Lasting, Owner};
use super::segments::{InWay, Segments, both};
use crate::storage::work;

/// Those of one file.
#[derive(Debug, Default)]
pub(super) struct Unwritten {
    /// By their numbers: the earliest first.
    locks: BTreeMap<u64, UnwrittenLock>,
    last: u64,
}

#[derive(Debug)]
struct UnwrittenLock {
    range: Range<u64>,
    held: Held,
    /// What its owner has not given back.
    parts: RangeSet<u64>,
    replaced: Vec<(Range<u64>, Held)>,
    /// Requests that wait for it to be written.
    asked: u32,
}

impl Unwritten {
    pub(super) fn is_empty(&self) -> bool {
        self.locks.is_empty()
    }

    fn find(&mut self, range: &Range<u64>, held: &Held) -> Option<(u64, &mut UnwrittenLock)> {
        let mut locks = work::looked(&mut self.locks).map(|(number, lock)| (*number, lock));
        locks.find(|(_, lock)| lock.range == *range && is_same(&lock.held, held))
    }

    /// A request for a lock is answered when that is written, which its number stands for; `None` where it need not be.
    pub(super) fn begin(&mut self, range: &Range<u64>, held: &Held) -> Option<u64> {
        let (number, lock) = self.find(range, held)?;
        lock.asked += 1;
        Some(number)
    }

    /// The lock of a range that was granted to an owner last, who is not going to be told of it.
    pub(super) fn find_granted(&self, range: &Range<u64>, owner: Owner) -> Option<u64> {
        let is_meant =
            |lock: &UnwrittenLock| lock.range == *range && lock.held.owner == owner && lock.asked == 0;
        self.locks.iter().rev().find(|(_, lock)| is_meant(lock)).map(|(number, _)| *number)
    }

    /// Those in a range that are meant, were granted and are not asked for, with all of their ranges: the latest first.
    pub(super) fn unasked(
        &self,
        range: &Range<u64>,
        is_meant: impl Fn(&Held) -> bool,
    ) -> Vec<(u64, Range<u64>)> {
        let is_unasked = |(_, lock): &(&u64, &UnwrittenLock)| {
            lock.asked == 0 && !both(&lock.range, range).is_empty() && is_meant(&lock.held)
        };
        let unasked = self.locks.iter().rev().filter(is_unasked);
        unasked.map(|(number, lock)| (*number, lock.range.clone())).collect()
    }

    /// A lock is written.
    pub(super) fn on_written(&mut self, number: u64) {
        self.locks.remove(&number);
    }

    /// An owner gives a range back, written or not.
    pub(super) fn forget(&mut self, range: &Range<u64>, owner: Owner) {
        for lock in work::looked(self.locks.values_mut()).filter(|lock| lock.held.owner == owner) {
            lock.parts.remove(range.clone());
        }
        self.locks.retain(|_, lock| !lock.parts.is_empty());
    }

    /// Those that are meant end. Of what they would be put back to only what lasts is left, broken.
    pub(super) fn end(&mut self, range: &Range<u64>, is_meant: impl Fn(&Held) -> bool) {
        self.locks.retain(|_, lock| both(&lock.range, range).is_empty() || !is_meant(&lock.held));
        for lock in self.locks.values_mut() {
            lock.replaced.retain(|(_, by)| by.lasting != Lasting::No || !is_meant(by));
            let ended = lock.replaced.iter_mut().filter(|(_, by)| is_meant(by));
            ended.for_each(|(_, by)| by.lasting = Lasting::Broken);
        }
    }

    /// A lock could not be written, and nobody else waits for that.
    fn take_failed(&mut self, number: u64) -> Option<UnwrittenLock> {
        let lock = self.locks.get_mut(&number)?;
        lock.asked = lock.asked.saturating_sub(1);
        if lock.asked > 0 {
            return None;
        }
        let failed = self.locks.remove(&number)?;
        // Those in whose place it was before have replaced what it had replaced.
        for lock in self.locks.values_mut() {
            lock.replaced = lock.replaced.iter().flat_map(|before| failed.instead_of(before)).collect();
        }
        Some(failed)
    }
}

impl UnwrittenLock {
    /// What was there before, as far as this lock is not what was.
    fn instead_of(&self, before: &(Range<u64>, Held)) -> Vec<(Range<u64>, Held)> {
        let (part, by) = before;
        if !is_same(by, &self.held) || both(part, &self.range).is_empty() {
            return vec![before.clone()];
        }
        let outside = [part.start..self.range.start.min(part.end), self.range.end.max(part.start)..part.end];
        let outside = outside.into_iter().map(|rest| (rest, *by));
        let inside = self.replaced.iter().map(|(other, by)| (both(other, part), *by));
        outside.chain(inside).filter(|(rest, _)| !rest.is_empty()).collect()
    }
}

impl Segments {
    /// What a lock is going to replace in a range.
    pub(super) fn remember(&mut self, range: &Range<u64>, held: Held) {
        if let Some((_, lock)) = self.unwritten.find(range, &held) {
            // Nobody was told yet that it is there.
            return lock.parts.insert(range.clone());
        }
        let goes = |by: &Held| by.owner == held.owner || by.is_broken();
        let replaced = self.overlapping(range).filter(|(_, by)| goes(by));
        let replaced = replaced.map(|(part, by)| (both(&part, range), *by)).collect();
        let (range, parts) = (range.clone(), RangeSet::from_iter([range.clone()]));
        self.unwritten.last += 1;
        let lock = UnwrittenLock { range, held, parts, replaced, asked: 0 };
        self.unwritten.locks.insert(self.unwritten.last, lock);
    }

    /// A lock could not be written. What it has replaced is there again, as far as it still stands itself and nobody came in the way. Which
    /// parts of that are broken; `None` where it is over, or another request for it is under way.
    pub(super) fn put_back(&mut self, number: u64, counts: &mut Counts) -> Option<Vec<Range<u64>>> {
        let UnwrittenLock { range, held, parts, replaced, .. } = self.unwritten.take_failed(number)?;
        let stands = self.overlapping(&range).filter(|(_, by)| is_same(by, &held));
        let stands: Vec<Range<u64>> = stands
            .flat_map(|(part, _)| parts.overlapping(part.clone()).map(move |own| both(own, &part)))
            .collect();
        let mut broken = Vec::new();
        for part in stands {
            self.unlock(&part, |by| is_same(by, &held), counts);
            for (before, by) in &replaced {
                let part = both(before, &part);
                if part.is_empty() {
                    continue;
                }
                // Where it was less than before, others may share it by now.
                let fits = self.in_way(&part, by, Claim::New) == InWay::Nothing;
                self.lock(&part, if fits { *by } else { held }, counts);
                broken.extend((fits && by.is_broken()).then_some(part));
            }
        }
        Some(broken)
    }
}

/// It is one lock, whether it has something to repair or not.
fn is_same(a: &Held, b: &Held) -> bool {
    let plain = |held: &Held| match held.lasting {
        Lasting::Repairing => Held { lasting: Lasting::Persistent, ..*held },
        _ => *held,
    };
    plain(a) == plain(b)
}
