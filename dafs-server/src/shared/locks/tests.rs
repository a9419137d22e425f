#![allow(clippy::cast_possible_truncation, reason = "offsets that the tests choose")]

use std::collections::BTreeSet;

use proptest::prelude::*;

use super::*;

const FILE: LockKey = LockKey { fs: 1, file: 2, generation: 3 };

const NOW: Outcome = Outcome::Granted(Vec::new());

fn owner_of(id: u64) -> Owner {
    // Two owners a session.
    Owner { session: SessionId(id / 2), id }
}

fn held(id: u64, kind: Kind) -> Held {
    Held {
        owner: owner_of(id),
        client: [0; 16],
        handle: id % 3,
        kind,
        is_mandatory: id == 0,
        lasting: Lasting::No,
    }
}

fn waiting(operation: u64) -> Waiting {
    Waiting { worker: 0, told: Told::Operation(OpToken(operation)) }
}

fn operation_of(waiting: Waiting) -> u64 {
    match waiting.told {
        Told::Operation(operation) => operation.0,
        Told::Session(..) => unreachable!("these wait as operations"),
    }
}

fn numbers(granted: &[Waiting]) -> BTreeSet<u64> {
    granted.iter().map(|waiting| operation_of(*waiting)).collect()
}

/// Every offset by itself: who holds it, and how; and who waits, in order.
#[derive(Default)]
struct Model {
    held: Vec<BTreeSet<(Owner, Kind)>>,
    waits: Vec<(bool, u64, Range<u64>, Held)>,
}

impl Model {
    fn fits(&self, range: &Range<u64>, held: &Held) -> bool {
        range.clone().all(|at| {
            let mut others = self.held[at as usize].iter().filter(|(owner, _)| *owner != held.owner);
            others.all(|(_, kind)| *kind == Kind::Shared && held.kind == Kind::Shared)
        })
    }

    fn has_part(&self, range: &Range<u64>, owner: Owner) -> bool {
        range.clone().any(|at| self.held[at as usize].iter().any(|(holder, _)| *holder == owner))
    }

    fn is_behind(&self, before: usize, range: &Range<u64>, held: &Held) -> bool {
        self.waits[..before].iter().any(|(_, _, other, by)| {
            let both = range.start < other.end && other.start < range.end;
            let either = by.kind == Kind::Exclusive || held.kind == Kind::Exclusive;
            both && either
        })
    }

    fn set(&mut self, range: &Range<u64>, owner: Owner, kind: Option<Kind>) {
        for at in range.clone() {
            let holders = &mut self.held[at as usize];
            holders.retain(|(holder, _)| *holder != owner);
            holders.extend(kind.map(|kind| (owner, kind)));
        }
    }

    /// Grants all that can be granted.
    fn serve(&mut self) -> BTreeSet<u64> {
        let mut granted = BTreeSet::new();
        loop {
            let more = self.grant();
            if more.is_empty() {
                return granted;
            }
            granted.extend(more);
        }
    }

    /// The earliest first.
    fn grant(&mut self) -> Vec<u64> {
        let mut granted = Vec::new();
        let mut at = 0;
        while at < self.waits.len() {
            let (has_part, id, range, held) = self.waits[at].clone();
            if self.fits(&range, &held) && (has_part || !self.is_behind(at, &range, &held)) {
                self.set(&range, held.owner, Some(held.kind));
                granted.push(id);
                self.waits.remove(at);
            } else {
                at += 1;
            }
        }
        granted
    }
}

#[derive(Clone, Debug)]
enum Action {
    Lock { owner: u64, range: Range<u64>, kind: Kind, waits: bool },
    Unlock { owner: u64, range: Range<u64> },
    End { session: u64 },
}

fn action() -> impl Strategy<Value = Action> {
    let range = (0u64..14, 1u64..6).prop_map(|(start, len)| start..start + len);
    let kind = prop_oneof![Just(Kind::Shared), Just(Kind::Exclusive)];
    prop_oneof![
        6 => (0u64..6, range.clone(), kind, any::<bool>())
            .prop_map(|(owner, range, kind, waits)| Action::Lock { owner, range, kind, waits }),
        5 => (0u64..6, range).prop_map(|(owner, range)| Action::Unlock { owner, range }),
        1 => (0u64..3).prop_map(|session| Action::End { session }),
    ]
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 2000, ..ProptestConfig::default() })]

    // [LOCK-1] [LOCK-2] [LOCK-4] [LOCK-5] [LOCK-6] [LOCK-18]
    #[test]
    fn locks_are_those_of_a_model_that_knows_each_offset(actions in prop::collection::vec(action(), 1..60)) {
        let mut table = LockTable::default();
        let mut model = Model { held: vec![BTreeSet::new(); 20], waits: Vec::new() };
        for (number, action) in actions.into_iter().enumerate() {
            let number = number as u64;
            match action {
                Action::Lock { owner, range, kind, waits } => {
                    let wanted = held(owner, kind);
                    let has_part = model.has_part(&range, wanted.owner);
                    let now = model.fits(&range, &wanted)
                        && (has_part || !model.is_behind(model.waits.len(), &range, &wanted));
                    let outcome = table.lock(FILE, range.clone(), wanted, Claim::New, waits.then(|| waiting(number)));
                    match outcome {
                        Ok(Outcome::Granted(others)) => {
                            prop_assert!(now);
                            model.set(&range, wanted.owner, Some(kind));
                            prop_assert_eq!(numbers(&others), model.serve());
                        }
                        Ok(Outcome::Waits(_)) => {
                            prop_assert!(!now && waits);
                            model.waits.push((has_part, number, range, wanted));
                            model.waits.sort_by_key(|(has_part, number, ..)| (!has_part, *number));
                        }
                        Err(Status::LOCKED) => prop_assert!(!now && !waits),
                        Err(Status::DEADLOCK) => prop_assert!(!now && waits),
                        Err(other) => prop_assert!(false, "{other:?}"),
                    }
                }
                Action::Unlock { owner, range } => {
                    let granted = table.unlock(FILE, &range, owner_of(owner));
                    model.set(&range, owner_of(owner), None);
                    prop_assert_eq!(numbers(&granted), model.serve());
                }
                Action::End { session } => {
                    let session = SessionId(session);
                    let mut granted = Vec::new();
                    while let Some(some) = table.end_some_of(session) {
                        granted.extend(some);
                    }
                    model.waits.retain(|(_, _, _, held)| held.owner.session != session);
                    for id in 0..6 {
                        if owner_of(id).session == session {
                            model.set(&(0..20), owner_of(id), None);
                        }
                    }
                    prop_assert_eq!(numbers(&granted), model.serve());
                }
            }
            for at in 0..20u64 {
                let (locks, range) = (table.files.get(&FILE), at..at + 1);
                let holders = locks.into_iter().flat_map(|locks| locks.segments.overlapping(&range));
                let holders: BTreeSet<_> = holders.map(|(_, held)| (held.owner, held.kind)).collect();
                prop_assert_eq!(&holders, &model.held[at as usize], "at {}", at);
            }
        }
        for session in 0..3 {
            while table.end_some_of(SessionId(session)).is_some() {}
        }
        prop_assert!(table.files.is_empty() && table.waits.is_empty() && table.by_session.is_empty());
        prop_assert!(table.counts.all == 0 && table.counts.by_session.is_empty() && table.counts.mandatory == 0);
    }
}

// [LOCK-7]
#[test]
fn who_closes_a_circle_is_refused_and_the_others_go_on() {
    let mut table = LockTable::default();
    let exclusive = |id| held(id, Kind::Exclusive);
    for id in 0..3 {
        assert_eq!(table.lock(FILE, id..id + 1, exclusive(id), Claim::New, None), Ok(NOW));
    }
    for id in 0..2 {
        let next = table.lock(FILE, id + 1..id + 2, exclusive(id), Claim::New, Some(waiting(id)));
        assert!(matches!(next, Ok(Outcome::Waits(_))));
    }
    assert_eq!(table.lock(FILE, 0..1, exclusive(2), Claim::New, Some(waiting(2))), Err(Status::DEADLOCK));
    assert_eq!(numbers(&table.unlock(FILE, &(2..3), owner_of(2))), [1].into());
    assert_eq!(numbers(&table.unlock(FILE, &(1..2), owner_of(1))), [0].into());
}

// [LOCK-7] Two that hold a range shared both want it alone.
#[test]
fn second_of_two_that_wait_to_be_alone_is_refused() {
    let mut table = LockTable::default();
    for id in 0..2 {
        assert_eq!(table.lock(FILE, 0..9, held(id, Kind::Shared), Claim::New, None), Ok(NOW));
    }
    assert!(matches!(
        table.lock(FILE, 0..9, held(0, Kind::Exclusive), Claim::New, Some(waiting(0))),
        Ok(Outcome::Waits(_))
    ));
    assert_eq!(
        table.lock(FILE, 3..4, held(1, Kind::Exclusive), Claim::New, Some(waiting(1))),
        Err(Status::DEADLOCK)
    );
    assert_eq!(numbers(&table.unlock(FILE, &(0..9), owner_of(1))), [0].into());
}

// [LOCK-5]
#[test]
fn ten_thousand_that_wait_for_one_range_are_served_in_order() {
    let mut table = LockTable::default();
    let count = 10_000;
    assert_eq!(table.lock(FILE, 0..8, held(0, Kind::Exclusive), Claim::New, None), Ok(NOW));
    for id in 1..count {
        assert!(matches!(
            table.lock(FILE, 0..8, held(id, Kind::Exclusive), Claim::New, Some(waiting(id))),
            Ok(Outcome::Waits(_))
        ));
    }
    for id in 0..count - 1 {
        assert_eq!(numbers(&table.unlock(FILE, &(0..8), owner_of(id))), [id + 1].into());
    }
    assert_eq!(table.unlock(FILE, &(0..8), owner_of(count - 1)), []);
    assert!(table.files.is_empty());
}

// [LOCK-9] [LOCK-19]
#[test]
fn handle_that_is_closed_ends_its_locks_and_its_waits_and_no_others() {
    let mut table = LockTable::default();
    let by = |handle, range: Range<u64>, table: &mut LockTable, id| {
        let held = Held { handle, ..held(2, Kind::Exclusive) };
        table.lock(FILE, range, held, Claim::New, Some(waiting(id)))
    };
    assert_eq!(by(1, 0..4, &mut table, 0), Ok(NOW));
    assert_eq!(by(7, 4..8, &mut table, 1), Ok(NOW));
    assert_eq!(table.lock(FILE, 20..21, held(4, Kind::Exclusive), Claim::New, None), Ok(NOW));
    assert!(matches!(by(7, 20..30, &mut table, 2), Ok(Outcome::Waits(_))));
    let other = held(5, Kind::Exclusive);
    assert!(matches!(table.lock(FILE, 25..26, other, Claim::New, Some(waiting(3))), Ok(Outcome::Waits(_))));
    assert!(matches!(table.lock(FILE, 6..7, other, Claim::New, Some(waiting(4))), Ok(Outcome::Waits(_))));
    let freed = table.unlock_handle(FILE, SessionId(1), 7);
    assert_eq!(numbers(&freed.ended), [2].into());
    assert_eq!(numbers(&freed.granted), [3, 4].into());
    let first = table.conflict(FILE, &(0..10), owner_of(9), Kind::Shared).map(|(part, _)| part);
    assert_eq!(first, Some(0..4), "another handle's lock stays");
}

// [LOCK-10]
#[test]
fn session_holds_a_bounded_number_of_parts() {
    let mut table = LockTable::default();
    let lock = |table: &mut LockTable, at| {
        table.lock(FILE, 2 * at..2 * at + 1, held(0, Kind::Shared), Claim::New, None)
    };
    for at in 0..SESSION_LOCKS_MAX as u64 {
        assert_eq!(lock(&mut table, at), Ok(NOW));
    }
    assert_eq!(lock(&mut table, SESSION_LOCKS_MAX as u64), Err(Status::TOO_MANY_LOCKS));
    table.unlock(FILE, &(0..2), owner_of(0));
    assert_eq!(lock(&mut table, SESSION_LOCKS_MAX as u64), Ok(NOW));
}

// [LOCK-9]
#[test]
fn session_that_ends_gives_its_locks_back_in_slices() {
    let mut table = LockTable::default();
    let count = 3 * ENDED_AT_ONCE as u64;
    for at in 0..count {
        assert_eq!(table.lock(FILE, 2 * at..2 * at + 1, held(0, Kind::Shared), Claim::New, None), Ok(NOW));
        assert_eq!(table.lock(FILE, 2 * at..2 * at + 1, held(4, Kind::Shared), Claim::New, None), Ok(NOW));
    }
    let wish = table.lock(FILE, 0..2 * count, held(2, Kind::Exclusive), Claim::New, Some(waiting(7)));
    assert!(matches!(wish, Ok(Outcome::Waits(_))));
    let mut granted = Vec::new();
    for session in [0, 2] {
        let mut steps = 0;
        while let Some(some) = table.end_some_of(SessionId(session)) {
            granted.extend(some);
            steps += 1;
        }
        assert!(steps >= 3, "{steps} steps");
    }
    assert_eq!(numbers(&granted), [7].into());
    assert_eq!(table.counts.all, 1);
}
