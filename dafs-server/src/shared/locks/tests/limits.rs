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
    assert_eq!(table.counts.by_session.of(SessionId(1)), 19);
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
    assert_eq!(table.take_untold(), [(waiting(3), Status::TOO_MANY_LOCKS)]);
    assert_eq!(table.counts.by_session.of(SessionId(1)), 10);
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
        assert_eq!(table.take_untold(), []);
        assert_eq!(table.counts.all as u64, COUNT);
        assert_eq!(table.counts.by_session.of(SessionId(7)) as u64, COUNT);
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
    assert_eq!(table.counts.by_session.of(SessionId(1)), 3);
    assert_eq!(lock(&mut table, 0..1), Ok(Outcome::Waits(first)), "it waits already");
    assert_eq!(lock(&mut table, 0..2), Err(Status::TOO_MANY_LOCKS), "this it does not");
    assert_eq!(table.unlock(FILE, &(0..1), owner_of(4)), [told]);
    for range in [0..1, 20..30, 25..27] {
        assert_eq!(lock(&mut table, range), Ok(NOW), "it is held already");
    }
    for range in [25..31, 30..31, 40..41] {
        assert_eq!(lock(&mut table, range), Err(Status::TOO_MANY_LOCKS));
    }
    assert_eq!(table.counts.by_session.of(SessionId(1)), 3);
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
    assert_eq!(table.take_untold(), [(waiting(6), Status::TOO_MANY_LOCKS)]);
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
    for at in 0..held::LASTING_MAX as u64 {
        assert_eq!(lock(&mut table, at), Ok(NOW));
    }
    assert_eq!(waits(&mut table), first, "it waits already");
    assert_eq!(lock(&mut table, 1 << 20), Err(Status::TOO_MANY_LOCKS));
    let plain = table.lock(FILE, 1 << 30..1 << 31, held(2, Kind::Exclusive), Claim::New, None);
    assert_eq!(plain, Ok(NOW), "others have no such bound");
}

// [LOCK-59] [LOCK-4] Each cut makes a part more of all who share what is cut.
#[test]
fn unlock_that_would_split_shared_locks_too_often_is_refused() {
    const HOLDERS: u64 = 100;
    let mut table = LockTable::new(LockLimits { session: 10_000, all: 1000 });
    for id in 0..HOLDERS {
        let held = Held { owner: Owner { session: SessionId(7), id }, ..held(2, Kind::Shared) };
        assert_eq!(table.lock(FILE, 0..1 << 40, held, Claim::New, None), Ok(NOW));
    }
    let give_back = |table: &mut LockTable, id, range| {
        work::take();
        let outcome = table.give_back(FILE, &range, Owner { session: SessionId(7), id });
        (outcome, 16 * work::take() as u64 >= HOLDERS - 16)
    };
    for at in 1..5 {
        assert_eq!(give_back(&mut table, 0, 2 * at..2 * at + 1), (Ok(Vec::new()), true), "its work counts");
    }
    assert_eq!(table.counts.all as u64, 9 * HOLDERS - 4);
    for at in 5..10 {
        assert_eq!(give_back(&mut table, 0, 2 * at..2 * at + 1).0, Err(Status::TOO_MANY_LOCKS));
    }
    assert_eq!((table.counts.all as u64, table.state().refused), (9 * HOLDERS - 4, 5));
    // Where its owner holds nothing, nothing is cut.
    for id in [0, HOLDERS] {
        assert_eq!(give_back(&mut table, id, 2..3).0, Ok(Vec::new()));
    }
    assert_eq!(table.unlock(FILE, &(2..3), Owner { session: SessionId(7), id: HOLDERS }), []);
    // One that cuts at one end, and of which more goes than comes, is not refused.
    assert_eq!(give_back(&mut table, 1, 0..1 << 40).0, Ok(Vec::new()));
    assert_eq!(table.counts.all as u64, 9 * HOLDERS - 4 - 9);
    for id in 2..HOLDERS {
        assert_eq!(give_back(&mut table, id, 0..1 << 40).0, Ok(Vec::new()));
    }
    assert_eq!(table.counts.all, 5);
    assert_eq!(give_back(&mut table, 0, 20..21).0, Ok(Vec::new()), "there is room again");
}

// [LOCK-59]
#[test]
fn unlock_in_the_middle_adds_to_what_its_session_has() {
    let mut table = LockTable::new(LockLimits { session: 3, all: 100 });
    let lock =
        |table: &mut LockTable, range| table.lock(FILE, range, held(2, Kind::Exclusive), Claim::New, None);
    for range in [0..10, 20..30, 40..50] {
        assert_eq!(lock(&mut table, range), Ok(NOW));
    }
    assert_eq!(table.give_back(FILE, &(4..5), owner_of(2)), Err(Status::TOO_MANY_LOCKS));
    assert_eq!(table.session_limit_state().refused, 1);
    assert!(table.conflict(FILE, &(4..5), owner_of(4), Kind::Shared).is_some(), "it is held as before");
    assert_eq!(table.unlock(FILE, &(5..25), owner_of(2)), [], "that makes two of two");
    assert_eq!(table.unlock(FILE, &(25..45), owner_of(2)), []);
    assert_eq!(table.unlock(FILE, &(46..47), owner_of(2)), []);
    // What is taken back and would not fit stays with its owner.
    assert_eq!(table.counts.all, 3);
    assert!(table.take_back(FILE, &(1..2), owner_of(2)).granted.is_empty());
    assert_eq!(table.counts.all, 3);
}

// [LOCK-10] [LOCK-59] Neither an unlock, nor another lock in its place, nor the end of a repair makes more of them.
#[test]
fn locks_that_last_are_cut_into_a_bounded_number_of_parts() {
    let lasts = Held { lasting: Lasting::Persistent, ..held(2, Kind::Exclusive) };
    for way in 0..4 {
        let mut table = LockTable::default();
        table.restore([].into(), Vec::new());
        let lock = |table: &mut LockTable, range, held: Held, claim| {
            table.lock(FILE, range, held, claim, None).map(drop)
        };
        lock(&mut table, 0..1 << 40, lasts, Claim::New).unwrap();
        if way == 3 {
            write(&mut table, 0..1 << 40, lasts);
            table.unlock_handle(FILE, lasts.owner.session, lasts.handle);
            lock(&mut table, 0..1 << 40, lasts, Claim::Repair).unwrap();
        }
        let mut cut = |at: u64| {
            let part = 2 * at..2 * at + 1;
            match way {
                0 => table.give_back(FILE, &part, lasts.owner).map(drop),
                1 => lock(&mut table, part, held(2, Kind::Exclusive), Claim::New),
                2 => lock(&mut table, part, Held { is_mandatory: true, ..lasts }, Claim::New),
                _ => table.give_repair_up(FILE, &part, lasts.owner).map(drop),
            }
        };
        let refused = (1..2000).find(|at| cut(*at) == Err(Status::TOO_MANY_LOCKS));
        let each = if way < 2 { 1 } else { 2 };
        assert_eq!(refused, Some(held::LASTING_MAX as u64 / each), "{way}");
        let (_, records) = kept_of(&table, FILE);
        assert!(records.len() <= held::LASTING_MAX, "{way}");
    }
}

// [LOCK-10] [LOCK-5]
#[test]
fn waited_persistent_locks_keep_the_files_bound() {
    let mut table = LockTable::default();
    table.restore([].into(), Vec::new());
    let lasts = Held { lasting: Lasting::Persistent, ..held(2, Kind::Exclusive) };
    assert_eq!(table.lock(FILE, 0..1 << 40, held(4, Kind::Exclusive), Claim::New, None), Ok(NOW));
    let most = held::LASTING_MAX as u64;
    for at in 0..=most {
        let wish = table.lock(FILE, 2 * at..2 * at + 1, lasts, Claim::New, Some(waiting(at)));
        assert!(matches!(wish, Ok(Outcome::Waits(_))));
    }
    assert_eq!(table.unlock(FILE, &(0..1 << 40), owner_of(4)).len() as u64, most);
    assert_eq!(table.take_untold(), [(waiting(most), Status::TOO_MANY_LOCKS)]);
}

// [LOCK-46] [LOCK-59]
#[test]
fn repair_is_released_wholly_or_not_at_all() {
    let mut table = LockTable::default();
    table.restore([].into(), Vec::new());
    let lasts = |id| Held { lasting: Lasting::Persistent, ..held(id, Kind::Exclusive) };
    assert_eq!(table.lock(FILE, 0..10, lasts(2), Claim::New, None), Ok(NOW));
    write(&mut table, 0..10, lasts(2));
    table.unlock_handle(FILE, lasts(2).owner.session, lasts(2).handle);
    assert_eq!(table.lock(FILE, 0..10, lasts(6), Claim::Repair, None), Ok(NOW));
    write(&mut table, 0..10, lasts(6));
    for part in 1..held::LASTING_MAX as u64 {
        assert_eq!(table.lock(FILE, 20 * part..20 * part + 1, lasts(8), Claim::New, None), Ok(NOW));
    }
    let freed = table.take_back(FILE, &(5..10), owner_of(6));
    assert!(freed.granted.is_empty() && table.has_lasting(FILE, &(5..10), owner_of(6)), "it stays");
    // Where there is room it is broken.
    table.unlock(FILE, &(20..21), owner_of(8));
    table.take_back(FILE, &(5..10), owner_of(6));
    assert_eq!(table.lock(FILE, 5..6, held(4, Kind::Shared), Claim::New, None), Err(Status::LOCK_BROKEN));
}
