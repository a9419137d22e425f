//! What is locked by a node, as its client knows: to be locked again in a new session.

use std::collections::BTreeMap;
use std::ops::Range;

use dafs_proto::wire::{LockFlags, LockKind, LockRequest};

/// The locks taken by a node, by owner and by where they begin. Ranges of one owner do not overlap.
#[derive(Debug, Default)]
pub(crate) struct Locks {
    /// The only one there is: who locks and unlocks again and again needs no tree.
    only: Option<Held>,
    /// All, where there is no only one.
    held: BTreeMap<(u64, u64), Held>,
}

#[derive(Clone, Debug, PartialEq, Eq)]
struct Held {
    range: Range<u64>,
    owner: u64,
    kind: LockKind,
    mandatory: bool,
    persistent: bool,
}

impl Locks {
    /// A range is locked, instead of what its owner held there.
    pub(crate) fn lock(&mut self, request: &LockRequest) {
        self.unlock(&request.range(), request.owner);
        let has = |flag| request.flags.contains(flag);
        let (mandatory, persistent) = (has(LockFlags::MANDATORY), has(LockFlags::PERSISTENT));
        let LockRequest { owner, kind, .. } = *request;
        self.put(Held { range: request.range(), owner, kind, mandatory, persistent });
    }

    fn put(&mut self, held: Held) {
        if self.held.is_empty() && self.only.is_none() {
            self.only = Some(held);
            return;
        }
        for held in self.only.take().into_iter().chain([held]) {
            self.held.insert((held.owner, held.range.start), held);
        }
    }

    /// An owner has nothing of a range any more.
    pub(crate) fn unlock(&mut self, range: &Range<u64>, owner: u64) {
        if let Some(held) = self.only.take_if(|held| held.owner == owner && held.overlaps(range)) {
            return self.put_rest(&held, range);
        }
        // The last that begins before the end, again and again.
        while let Some((&key, held)) = self.held.range((owner, 0)..(owner, range.end)).next_back()
            && held.range.end > range.start
        {
            let Some(held) = self.held.remove(&key) else { return };
            self.put_rest(&held, range);
        }
    }

    /// What of a lock lies outside of a range.
    fn put_rest(&mut self, held: &Held, range: &Range<u64>) {
        for rest in [held.range.start..range.start, range.end..held.range.end] {
            if rest.start < rest.end {
                self.put(Held { range: rest, ..held.clone() });
            }
        }
    }

    fn of(&self, owner: u64) -> impl Iterator<Item = &Held> {
        let only = self.only.iter().filter(move |held| held.owner == owner);
        only.chain(self.held.range((owner, 0)..=(owner, u64::MAX)).map(|(_, held)| held))
    }

    /// The parts of a range that an owner has not locked.
    pub(crate) fn unlocked_parts(&self, range: &Range<u64>, owner: u64) -> Vec<Range<u64>> {
        let mut parts = vec![range.clone()];
        for held in self.of(owner) {
            let without = |part: Range<u64>| {
                let (before, behind) =
                    (part.start..part.end.min(held.range.start), part.start.max(held.range.end)..part.end);
                [before, behind]
            };
            parts = parts.into_iter().flat_map(without).filter(|part| part.start < part.end).collect();
        }
        parts
    }

    /// Requests that lock anew what an owner holds shared of a range.
    pub(crate) fn shared_parts(&self, range: &Range<u64>, owner: u64) -> Vec<LockRequest> {
        let part = |held: &Held| {
            let part = held.range.start.max(range.start)..held.range.end.min(range.end);
            let is_meant = held.kind == LockKind::Shared && part.start < part.end;
            is_meant.then(|| Held { range: part, ..held.clone() }.request(LockFlags::empty()))
        };
        self.of(owner).filter_map(part).collect()
    }

    /// Requests that take all of them again.
    pub(crate) fn reclaims(&self) -> Vec<LockRequest> {
        self.only.iter().chain(self.held.values()).map(|held| held.request(LockFlags::RECLAIM)).collect()
    }
}

impl Held {
    fn overlaps(&self, range: &Range<u64>) -> bool {
        self.range.start < range.end && range.start < self.range.end
    }

    /// What locks it.
    fn request(&self, mut flags: LockFlags) -> LockRequest {
        flags.set(LockFlags::MANDATORY, self.mandatory);
        flags.set(LockFlags::PERSISTENT, self.persistent);
        let (offset, end) = (self.range.start, self.range.end);
        let len = if end == u64::MAX { 0 } else { end - offset };
        LockRequest { offset, len, owner: self.owner, kind: self.kind, flags }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    // [CLI-140]
    #[test]
    fn what_is_unlocked_is_not_locked_again() {
        let mut locks = Locks::default();
        let request = |offset, len, kind, flags| LockRequest { offset, len, owner: 7, kind, flags };
        locks.lock(&request(10, 20, LockKind::Exclusive, LockFlags::WAIT | LockFlags::MANDATORY));
        locks.lock(&request(15, 5, LockKind::Shared, LockFlags::empty()));
        locks.lock(&request(40, 5, LockKind::Exclusive, LockFlags::PERSISTENT));
        locks.unlock(&(12..13), 7);
        locks.unlock(&(0..100), 8);
        let reclaim = LockFlags::RECLAIM;
        let mut reclaims = locks.reclaims();
        reclaims.sort_by_key(|request| request.offset);
        assert_eq!(
            reclaims,
            [
                request(10, 2, LockKind::Exclusive, reclaim | LockFlags::MANDATORY),
                request(13, 2, LockKind::Exclusive, reclaim | LockFlags::MANDATORY),
                request(15, 5, LockKind::Shared, reclaim),
                request(20, 10, LockKind::Exclusive, reclaim | LockFlags::MANDATORY),
                request(40, 5, LockKind::Exclusive, reclaim | LockFlags::PERSISTENT),
            ]
        );
        assert_eq!(locks.shared_parts(&(0..17), 7), [request(15, 2, LockKind::Shared, LockFlags::empty())]);
        assert_eq!(locks.unlocked_parts(&(0..25), 7), [0..10, 12..13]);
        assert_eq!(locks.unlocked_parts(&(0..25), 8), std::slice::from_ref(&(0..25)));
        locks.unlock(&(0..u64::MAX), 7);
        assert_eq!(locks.reclaims(), []);
    }
}
