//! The locks of a node as the client knows them, to reclaim them in a new session. And what the server may have granted to nobody, which is
//! to be put back.

use std::collections::BTreeMap;
use std::ops::Range;

use dafs_proto::wire::{LockFlags, LockKind, LockRequest, UnlockRequest};

/// The locks taken by a node, by owner and by where they begin. Ranges of one owner do not overlap.
#[derive(Debug, Default)]
pub(crate) struct Locks {
    /// The only one there is: who locks and unlocks again and again needs no tree.
    only: Option<Held>,
    /// All, where there is no only one.
    held: BTreeMap<(u64, u64), Held>,
    /// What is asked for, or granted and not collected: by owner, and by the place of its operation.
    asked: BTreeMap<(u64, usize), LockRequest>,
    /// What nobody asks for any more, and the server may have granted. It waits here for who asks for the same bytes.
    given_up: Vec<GivenUp>,
}

/// A lock that was given up.
#[derive(Clone, Debug, PartialEq, Eq)]
struct GivenUp {
    request: LockRequest,
    /// It waits at the server, unless it was granted meanwhile.
    waits: bool,
}

/// A request that puts back what a lock has changed that was given up.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum PutBack {
    /// Locks what was held before. Where that is refused, the program does not have what it thinks.
    Again(LockRequest),
    /// Ends a wait or a repair. Once that is done, what follows is given up.
    Cancel(LockRequest, Option<LockRequest>),
    /// Gives back what was not held before.
    Unlock(UnlockRequest),
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
    /// The server has no locks of these, as far as is known.
    pub(crate) fn is_empty(&self) -> bool {
        self.held.is_empty() && self.only.is_none() && self.given_up.is_empty()
    }

    /// A range is locked, instead of what its owner held there.
    pub(crate) fn lock(&mut self, request: &LockRequest) {
        self.unlock(&request.range(), request.owner);
        let has = |flag| request.flags.contains(flag);
        let (mandatory, persistent) = (has(LockFlags::MANDATORY), has(LockFlags::PERSISTENT));
        let LockRequest { owner, kind, .. } = *request;
        self.put(Held { range: request.range(), owner, kind, mandatory, persistent });
        // The wait of another that asked for the same has ended with that.
        for given_up in self.given_up.iter_mut().filter(|given_up| is_same_wait(&given_up.request, request)) {
            given_up.waits = false;
        }
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

    /// An operation asks for a lock, which somebody will collect.
    pub(crate) fn ask(&mut self, index: usize, request: LockRequest) {
        self.asked.insert((request.owner, index), request);
    }

    /// Nobody will collect it, or it was collected, or refused.
    pub(crate) fn end_asking(&mut self, index: usize, owner: u64) {
        self.asked.remove(&(owner, index));
    }

    /// A lock was given up that the server has granted, or that waits there and may be granted.
    pub(crate) fn give_up(&mut self, request: LockRequest, waits: bool) {
        let given_up = GivenUp { request, waits };
        if !self.given_up.contains(&given_up) {
            self.given_up.push(given_up);
        }
    }

    /// There is a new session: it has granted none of those that were given up.
    pub(crate) fn forget_given_up(&mut self) {
        self.given_up.clear();
    }

    /// Requests that put back what locks have changed that were given up. What an owner asks for again is left out until that has ended:
    /// the server executes it before these, and they would take it away.
    pub(crate) fn put_back(&mut self) -> Vec<PutBack> {
        let mut requests = Vec::new();
        for given_up in std::mem::take(&mut self.given_up) {
            let GivenUp { request, waits } = given_up;
            if waits && self.asks(request.owner).any(|asked| is_same_wait(asked, &request)) {
                // The server knows one wait of the two.
                self.given_up.push(given_up);
                continue;
            }
            if waits && request.flags.contains(LockFlags::REPAIR) {
                requests.push(cancel_repair(&request));
                continue;
            }
            if waits {
                requests.push(PutBack::Cancel(cancel(&request), None));
            }
            let free = without(&request.range(), self.asks(request.owner).map(LockRequest::range));
            for part in &free {
                self.put_part_back(&of_range(&request, part), &mut requests);
            }
            for part in without(&request.range(), free.into_iter()) {
                self.give_up(of_range(&request, &part), false);
            }
        }
        requests
    }

    /// As [`Locks::put_back`], of a part of which nobody asks for anything.
    fn put_part_back(&self, request: &LockRequest, requests: &mut Vec<PutBack>) {
        let owner = request.owner;
        for part in without(&request.range(), self.of(owner).map(|held| held.range.clone())) {
            let part = of_range(request, &part);
            let LockRequest { offset, len, .. } = part;
            requests.push(match request.flags.contains(LockFlags::REPAIR) {
                true => cancel_repair(&part),
                false => PutBack::Unlock(UnlockRequest { offset, len, owner }),
            });
        }
        for held in self.of(owner).filter(|held| held.overlaps(&request.range())) {
            let before = held.request(LockFlags::empty());
            let flags = request.flags & (LockFlags::MANDATORY | LockFlags::PERSISTENT);
            if (before.kind, before.flags) != (request.kind, flags) {
                let (held, range) = (&held.range, request.range());
                let part = held.start.max(range.start)..held.end.min(range.end);
                requests.push(PutBack::Again(of_range(&before, &part)));
            }
        }
    }

    fn asks(&self, owner: u64) -> impl Iterator<Item = &LockRequest> {
        self.asked.range((owner, 0)..=(owner, usize::MAX)).map(|(_, request)| request)
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
        let request = LockRequest { offset: 0, len: 0, owner: self.owner, kind: self.kind, flags };
        of_range(&request, &self.range)
    }
}

/// The same of another range.
fn of_range(request: &LockRequest, range: &Range<u64>) -> LockRequest {
    let len = if range.end == u64::MAX { 0 } else { range.end - range.start };
    LockRequest { offset: range.start, len, ..*request }
}

fn cancel(request: &LockRequest) -> LockRequest {
    LockRequest { flags: LockFlags::CANCEL, ..*request }
}

/// What was going to be repaired stays broken. To give it back before the server has said so would deny that.
fn cancel_repair(request: &LockRequest) -> PutBack {
    let rest = LockRequest { flags: request.flags - LockFlags::REPAIR, ..*request };
    PutBack::Cancel(cancel(request), Some(rest))
}

/// The server keeps one wait for both, of one handle.
fn is_same_wait(a: &LockRequest, b: &LockRequest) -> bool {
    (a.range(), a.owner, a.kind) == (b.range(), b.owner, b.kind)
}

/// The parts of a range that lie in none of these.
fn without(range: &Range<u64>, others: impl Iterator<Item = Range<u64>>) -> Vec<Range<u64>> {
    let mut parts = vec![range.clone()];
    for other in others {
        let outside = |part: Range<u64>| {
            let (before, behind) =
                (part.start..part.end.min(other.start), part.start.max(other.end)..part.end);
            [before, behind]
        };
        parts = parts.into_iter().flat_map(outside).filter(|part| part.start < part.end).collect();
    }
    parts
}

#[cfg(test)]
mod tests {
    use super::*;

    // [LOCK-67]
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
        locks.unlock(&(0..u64::MAX), 7);
        assert_eq!(locks.reclaims(), []);
    }

    const OWNER: u64 = 7;

    fn exclusive(range: Range<u64>, flags: LockFlags) -> LockRequest {
        let any = LockRequest { offset: 0, len: 0, owner: OWNER, kind: LockKind::Exclusive, flags };
        of_range(&any, &range)
    }

    fn shared(range: Range<u64>) -> LockRequest {
        LockRequest { kind: LockKind::Shared, ..exclusive(range, LockFlags::empty()) }
    }

    fn unlock(range: Range<u64>) -> PutBack {
        let LockRequest { offset, len, owner, .. } = shared(range);
        PutBack::Unlock(UnlockRequest { offset, len, owner })
    }

    // [CLI-142] [CLI-150]
    #[test]
    fn abandoned_lock_is_released_and_earlier_locks_restored() {
        let mut locks = Locks::default();
        let plain = LockFlags::empty();
        locks.lock(&exclusive(10..20, LockFlags::WAIT | LockFlags::MANDATORY));
        locks.lock(&shared(30..40));
        locks.lock(&LockRequest { owner: 8, ..exclusive(0..100, plain) });
        locks.give_up(exclusive(15..u64::MAX, LockFlags::WAIT | LockFlags::NOTIFY), false);
        let again = [exclusive(15..20, LockFlags::MANDATORY), shared(30..40)].map(PutBack::Again);
        assert_eq!(locks.put_back(), [&[unlock(20..30), unlock(40..u64::MAX)], &again[..]].concat());
        assert_eq!(locks.put_back(), [], "once");
        locks.give_up(exclusive(10..20, LockFlags::MANDATORY), false);
        locks.give_up(shared(30..40), false);
        assert_eq!(locks.put_back(), [], "it is as it was");
    }

    // [CLI-148]
    #[test]
    fn lock_given_up_spares_what_is_asked_for_until_that_has_ended() {
        let mut locks = Locks::default();
        let plain = LockFlags::empty();
        locks.ask(1, exclusive(5..15, plain));
        locks.ask(2, LockRequest { owner: 8, ..exclusive(0..100, plain) });
        locks.give_up(exclusive(0..10, plain), false);
        assert_eq!(locks.put_back(), [unlock(0..5)]);
        locks.ask(3, shared(8..9));
        locks.end_asking(1, OWNER);
        locks.lock(&exclusive(5..7, plain));
        assert_eq!(locks.put_back(), [unlock(7..8), unlock(9..10)]);
        locks.end_asking(3, OWNER);
        locks.lock(&shared(8..9));
        assert_eq!(
            locks.put_back(),
            [PutBack::Again(shared(8..9))],
            "which of the two was later is not known"
        );
        locks.ask(1, exclusive(0..1, plain));
        locks.give_up(exclusive(0..1, plain), false);
        assert_eq!(locks.put_back(), []);
        locks.forget_given_up();
        locks.end_asking(1, OWNER);
        assert_eq!(locks.put_back(), [], "it was of another session");
    }

    // [LOCK-69] [CLI-148] [LOCK-46]
    #[test]
    fn abandoned_wait_and_repair_are_cancelled_unless_shared() {
        let mut locks = Locks::default();
        let plain = LockFlags::empty();
        let cancel = |range| PutBack::Cancel(exclusive(range, LockFlags::CANCEL), None);
        locks.ask(1, exclusive(0..4, plain));
        locks.give_up(exclusive(0..4, LockFlags::WAIT), true);
        locks.give_up(exclusive(0..6, LockFlags::WAIT), true);
        assert_eq!(locks.put_back(), [cancel(0..6), unlock(4..6)], "the server has one wait of 0 to 4");
        locks.end_asking(1, OWNER);
        assert_eq!(locks.put_back(), [cancel(0..4), unlock(0..4), unlock(0..4)]);
        // One that was granted has ended the wait.
        locks.ask(1, exclusive(0..4, plain));
        locks.give_up(exclusive(0..4, LockFlags::WAIT), true);
        locks.end_asking(1, OWNER);
        locks.lock(&exclusive(0..4, plain));
        assert_eq!(locks.put_back(), []);
        locks.give_up(exclusive(2..6, LockFlags::PERSISTENT | LockFlags::REPAIR), false);
        let again = PutBack::Again(exclusive(2..4, plain));
        // A repair is given back once the server has said that it is none.
        let rest = |range| exclusive(range, LockFlags::PERSISTENT);
        let cancel = |range: Range<u64>| {
            PutBack::Cancel(exclusive(range.clone(), LockFlags::CANCEL), Some(rest(range)))
        };
        assert_eq!(locks.put_back(), [cancel(4..6), again]);
        let waits = LockFlags::PERSISTENT | LockFlags::REPAIR;
        locks.give_up(exclusive(2..6, waits), true);
        assert_eq!(locks.put_back(), [cancel(2..6)]);
        locks.give_up(rest(2..6), false);
        assert_eq!(locks.put_back(), [unlock(4..6), PutBack::Again(exclusive(2..4, plain))]);
    }
}
