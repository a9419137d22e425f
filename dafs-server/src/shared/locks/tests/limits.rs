//! How many parts there may be.

use dafs_proto::wire::LockTurn;

use super::*;

/// One whose session is told.
fn waiting_session(id: u64, kind: Kind) -> Waiting {
    let turn = LockTurn { handle: 1, offset: 0, len: 1, owner: id };
    Waiting { worker: 0, told: Told::Session(owner_of(id).session, turn, kind) }
}

#[test]
fn session_holds_a_bounded_number_of_parts() {
    let mut table = LockTable::default();
    let lock = |table: &mut LockTable, at: u64| {
        table.lock(FILE, 2 * at..2 * at + 1, held(0, Kind::Shared), Claim::New, None)
    };
    let most = 65_536;
    for at in 0..most {
        assert_eq!(lock(&mut table, at), Ok(NOW));
    }
    assert_eq!(lock(&mut table, most), Err(Status::TOO_MANY_LOCKS));
    table.unlock(FILE, &(0..2), owner_of(0));
    assert_eq!(lock(&mut table, most), Ok(NOW));
    assert_eq!((table.session_limit_state().refused, table.state().refused), (1, 0));
}

// [LOCK-10]
#[test]
fn all_sessions_hold_and_wait_for_a_bounded_number_of_parts() {
    let mut table = LockTable::new(LockLimits { session: 3, all: 5 });
    let lock = |table: &mut LockTable, session: u64, at: u64| {
        let held = held(2 * session, Kind::Exclusive);
        table.lock(FILE, at..at + 1, held, Claim::New, Some(waiting(session)))
    };
    for at in 0..3 {
        assert_eq!(lock(&mut table, 0, 2 * at), Ok(NOW));
    }
    assert_eq!(lock(&mut table, 0, 6), Err(Status::TOO_MANY_LOCKS), "of its own");
    assert_eq!(lock(&mut table, 1, 8), Ok(NOW));
    assert!(matches!(lock(&mut table, 2, 0), Ok(Outcome::Waits(_))));
    assert_eq!(lock(&mut table, 3, 10), Err(Status::TOO_MANY_LOCKS), "of all");
    let state = |used| BudgetState { name: "locks", used, limit: 5, refused: 1 };
    assert_eq!((table.state(), table.session_limit_state().refused), (state(5), 1));
    table.unlock(FILE, &(8..9), owner_of(2));
    assert_eq!(table.state(), state(4));
    assert_eq!(lock(&mut table, 3, 10), Ok(NOW));
}

// [LOCK-10] A lock over many that others share is a part for each of them, and for each gap.
#[test]
fn lock_that_would_make_too_many_parts_is_refused_whole() {
    let mut table = LockTable::new(LockLimits { session: 20, all: 100 });
    let shared = |table: &mut LockTable, id, range, waits: bool| {
        table.lock(FILE, range, held(id, Kind::Shared), Claim::New, waits.then(|| waiting(id)))
    };
    for at in 0..10 {
        assert_eq!(shared(&mut table, 2, 4 * at..4 * at + 2, false), Ok(NOW));
    }
    // Of its session 10 are there: as many more make 20, and one lock more.
    let all = table.counts.all;
    assert_eq!(shared(&mut table, 3, 0..22, false), Err(Status::TOO_MANY_LOCKS));
    assert_eq!((table.counts.all, table.session_limit_state().refused), (all, 1));
    assert_eq!(shared(&mut table, 3, 0..18, false), Ok(NOW));
    assert_eq!(table.counts.by_session[&SessionId(1)], 19);
    table.unlock(FILE, &(0..100), owner_of(3));
    assert_eq!(table.counts.all, all, "as before");
    // What is locked while it waits counts when its turn comes.
    assert_eq!(table.lock(FILE, 99..100, held(4, Kind::Exclusive), Claim::New, None), Ok(NOW));
    table.unlock(FILE, &(4..100), owner_of(2));
    assert!(matches!(shared(&mut table, 3, 0..100, true), Ok(Outcome::Waits(_))));
    for at in 1..10 {
        assert_eq!(shared(&mut table, 2, 4 * at..4 * at + 2, false), Ok(NOW));
    }
    assert_eq!(table.unlock(FILE, &(99..100), owner_of(4)), []);
    assert_eq!(table.take_overfull(), [waiting(3)]);
    assert_eq!(table.counts.by_session[&SessionId(1)], 10);
}

// [LOCK-10] [LOCK-5] Of one pass each counts once, as one that waits or as one that holds.
#[test]
fn waiters_that_fit_are_all_granted_at_once() {
    const COUNT: u64 = 20;
    for (kind, width) in [(Kind::Exclusive, 1), (Kind::Shared, 1), (Kind::Shared, 100)] {
        let mut table = LockTable::new(LockLimits { session: COUNT as usize, all: 100 });
        assert_eq!(table.lock(FILE, 0..100, held(0, Kind::Exclusive), Claim::New, None), Ok(NOW));
        for id in 0..COUNT {
            let held = Held { owner: Owner { session: SessionId(7), id }, ..held(2, kind) };
            let range = if width == 1 { 2 * id..2 * id + 1 } else { 0..width };
            let wish = table.lock(FILE, range, held, Claim::New, Some(waiting(id)));
            assert!(matches!(wish, Ok(Outcome::Waits(_))), "{wish:?}");
        }
        let granted = table.unlock(FILE, &(0..100), owner_of(0));
        assert_eq!(numbers(&granted), (0..COUNT).collect(), "{kind:?} {width}");
        assert_eq!(table.take_overfull(), []);
        assert_eq!(table.counts.all as u64, COUNT);
        assert_eq!(table.counts.by_session[&SessionId(7)] as u64, COUNT);
    }
}

// [LOCK-10] [LOCK-28] What is asked for again at the limit takes no more than before.
#[test]
fn lock_that_is_asked_for_again_at_the_limit_is_not_refused() {
    let mut table = LockTable::new(LockLimits { session: 3, all: 100 });
    let told = waiting_session(2, Kind::Exclusive);
    let lock = |table: &mut LockTable, range| {
        table.lock(FILE, range, held(2, Kind::Exclusive), Claim::New, Some(told))
    };
    assert_eq!(table.lock(FILE, 0..1, held(4, Kind::Exclusive), Claim::New, None), Ok(NOW));
    for range in [10..11, 20..30] {
        assert_eq!(lock(&mut table, range), Ok(NOW));
    }
    let Ok(Outcome::Waits(first)) = lock(&mut table, 0..1) else { panic!("it waits") };
    assert_eq!(table.counts.by_session[&SessionId(1)], 3);
    assert_eq!(lock(&mut table, 0..1), Ok(Outcome::Waits(first)), "it waits already");
    assert_eq!(lock(&mut table, 0..2), Err(Status::TOO_MANY_LOCKS), "this it does not");
    assert_eq!(table.unlock(FILE, &(0..1), owner_of(4)), [told]);
    for range in [0..1, 20..30, 25..27] {
        assert_eq!(lock(&mut table, range), Ok(NOW), "it is held already");
    }
    for range in [25..31, 30..31, 40..41] {
        assert_eq!(lock(&mut table, range), Err(Status::TOO_MANY_LOCKS));
    }
    assert_eq!(table.counts.by_session[&SessionId(1)], 3);
    assert_eq!(table.session_limit_state().refused, 4);
}

// [LOCK-6] [LOCK-10]
#[test]
fn refused_waiter_lets_no_later_one_pass_an_earlier_one() {
    let mut table = LockTable::new(LockLimits { session: 12, all: 100 });
    let exclusive = |table: &mut LockTable, id: u64, range: Range<u64>| {
        table.lock(FILE, range, held(id, Kind::Exclusive), Claim::New, Some(waiting(id)))
    };
    assert_eq!(exclusive(&mut table, 2, 19..20), Ok(NOW));
    assert_eq!(exclusive(&mut table, 4, 35..36), Ok(NOW));
    // One whose session has too many when its turn comes: it shares parts of the range.
    for at in [10, 12, 14, 16, 101, 103] {
        let shared = table.lock(FILE, at..at + 1, held(6, Kind::Shared), Claim::New, None);
        assert_eq!(shared, Ok(NOW));
    }
    for (id, range) in [(6, 10..20), (8, 30..40), (10, 18..32)] {
        assert!(matches!(exclusive(&mut table, id, range), Ok(Outcome::Waits(_))));
    }
    for at in [105, 107, 109, 111] {
        let shared = table.lock(FILE, at..at + 1, held(6, Kind::Shared), Claim::New, None);
        assert_eq!(shared, Ok(NOW));
    }
    assert_eq!(table.unlock(FILE, &(19..20), owner_of(2)), [], "the second still waits");
    assert_eq!(table.take_overfull(), [waiting(6)]);
    assert_eq!(table.unlock(FILE, &(35..36), owner_of(4)), [waiting(8)]);
    assert_eq!(table.unlock(FILE, &(30..40), owner_of(8)), [waiting(10)]);
}

// [LOCK-10]
#[test]
fn file_has_a_bounded_number_of_parts_that_last() {
    let mut table = LockTable::default();
    table.restore([].into(), Vec::new());
    let lasts = Held { lasting: Lasting::Persistent, ..held(2, Kind::Exclusive) };
    let lock = |table: &mut LockTable, at: u64| table.lock(FILE, 2 * at..2 * at + 1, lasts, Claim::New, None);
    let far = 1 << 40..(1 << 40) + 1;
    let waits = |table: &mut LockTable| {
        table.lock(FILE, far.clone(), lasts, Claim::New, Some(waiting_session(2, Kind::Exclusive)))
    };
    assert_eq!(table.lock(FILE, far.clone(), held(4, Kind::Exclusive), Claim::New, None), Ok(NOW));
    let first = waits(&mut table);
    assert!(matches!(first, Ok(Outcome::Waits(_))), "{first:?}");
    for at in 0..lasting::LASTING_MAX as u64 {
        assert_eq!(lock(&mut table, at), Ok(NOW));
    }
    assert_eq!(waits(&mut table), first, "it waits already");
    assert_eq!(lock(&mut table, 1 << 20), Err(Status::TOO_MANY_LOCKS));
    let plain = table.lock(FILE, 1 << 30..1 << 31, held(2, Kind::Exclusive), Claim::New, None);
    assert_eq!(plain, Ok(NOW), "others have no such bound");
}
