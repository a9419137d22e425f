//! How many parts there may be.

use super::*;

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

// [LOCK-10]
#[test]
fn file_has_a_bounded_number_of_parts_that_last() {
    let mut table = LockTable::default();
    table.restore([].into(), Vec::new());
    let lasts = Held { lasting: Lasting::Persistent, ..held(2, Kind::Exclusive) };
    let lock = |table: &mut LockTable, at: u64| table.lock(FILE, 2 * at..2 * at + 1, lasts, Claim::New, None);
    for at in 0..lasting::LASTING_MAX as u64 {
        assert_eq!(lock(&mut table, at), Ok(NOW));
    }
    assert_eq!(lock(&mut table, 1 << 20), Err(Status::TOO_MANY_LOCKS));
    let plain = table.lock(FILE, 1 << 30..1 << 31, held(2, Kind::Exclusive), Claim::New, None);
    assert_eq!(plain, Ok(NOW), "others have no such bound");
}
