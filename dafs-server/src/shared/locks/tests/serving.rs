//! What it costs to find whose turn has come, where many wait.

use super::*;

/// Waits for a byte of each of so many places, by an owner of its own; all of them in the way of one lock.
fn many_wait(table: &mut LockTable, owners: Range<u64>, handle: u64) {
    for id in owners {
        let held = Held { handle, ..held(id, Kind::Exclusive) };
        let wish = table.lock(FILE, 2 * id..2 * id + 1, held, Claim::New, Some(waiting(id)));
        assert!(matches!(wish, Ok(Outcome::Waits(_))));
    }
}

/// How many entries of the table one call looked at, about.
fn looks<T>(act: impl FnOnce() -> T) -> (T, usize) {
    work::take();
    let outcome = act();
    (outcome, 16 * work::take())
}

// [LOCK-5] [BUF-25]
#[test]
fn unlock_without_waiters_looks_at_waiters_once() {
    const COUNT: u64 = 20_000;
    const FAR: Range<u64> = 1 << 41..(1 << 41) + 1;
    let mut table = LockTable::default();
    for range in [0..1 << 40, FAR] {
        assert_eq!(table.lock(FILE, range, held(0, Kind::Exclusive), Claim::New, None), Ok(NOW));
    }
    many_wait(&mut table, 2..COUNT + 2, 5);
    let (granted, looked_at) = looks(|| table.unlock(FILE, &FAR, owner_of(0)));
    assert_eq!(granted, []);
    assert!((1..=COUNT as usize).contains(&looked_at), "{looked_at} looks");
    // Where somebody waits for it, and where all do.
    let (granted, looked_at) = looks(|| table.unlock(FILE, &(4..5), owner_of(0)));
    assert_eq!(numbers(&granted), [2].into());
    assert!(looked_at <= 2 * COUNT as usize, "{looked_at} looks");
    let (granted, looked_at) = looks(|| table.unlock(FILE, &(0..1 << 40), owner_of(0)));
    assert_eq!(granted.len() as u64, COUNT - 1);
    assert!(looked_at <= 2 * COUNT as usize, "{looked_at} looks");
}

// [LOCK-19] [BUF-25]
#[test]
fn waits_that_end_with_their_handle_take_one_look_at_the_others() {
    const COUNT: u64 = 2_000;
    let mut table = LockTable::default();
    assert_eq!(table.lock(FILE, 0..1 << 40, held(0, Kind::Exclusive), Claim::New, None), Ok(NOW));
    // Owners of one session, which asks by two handles.
    let session = SessionId(7);
    for (handle, ids) in [(1, 0..COUNT), (2, COUNT..2 * COUNT)] {
        for id in ids {
            let held = Held { owner: Owner { session, id }, handle, ..held(2, Kind::Shared) };
            let wish = table.lock(FILE, 2 * id..2 * id + 1, held, Claim::New, Some(waiting(id)));
            assert!(matches!(wish, Ok(Outcome::Waits(_))));
        }
    }
    let (freed, looked_at) = looks(|| table.unlock_handle(FILE, session, 1));
    assert_eq!((freed.ended.len() as u64, freed.granted.len()), (COUNT, 0));
    assert!(looked_at <= 4 * COUNT as usize, "{looked_at} looks");
    // All that is left is granted at once, and each of them looked at for others only once more.
    let (granted, looked_at) = looks(|| table.unlock(FILE, &(0..1 << 40), owner_of(0)));
    assert_eq!(granted.len() as u64, COUNT);
    assert!(looked_at <= 2 * COUNT as usize, "{looked_at} looks");
}

// [LOCK-7] [BUF-25]
#[test]
fn deadlock_search_is_bounded_in_locks_and_waits() {
    const COUNT: u64 = 1 << 10;
    let mut table = LockTable::default();
    assert_eq!(table.lock(FILE, 0..1 << 40, held(0, Kind::Exclusive), Claim::New, None), Ok(NOW));
    many_wait(&mut table, 2..COUNT, 5);
    // It waits for all of them, and each looks at all before it.
    assert_eq!(table.lock(FILE, 1 << 41..1 << 42, held(1, Kind::Shared), Claim::New, None), Ok(NOW));
    let all = || table.lock(FILE, 0..1 << 40, held(1, Kind::Exclusive), Claim::New, Some(waiting(1)));
    let (wish, looked_at) = looks(all);
    assert!(matches!(wish, Ok(Outcome::Waits(_))), "{wish:?}");
    assert!(looked_at <= (1 << 18) + 2 * COUNT as usize, "{looked_at} looks");
    assert!(looked_at > 1 << 17, "{looked_at} looks: as many as it may");
}

// [LOCK-66]
#[test]
fn sole_owner_of_a_range_is_not_queued_behind_waiters() {
    let mut table = LockTable::default();
    let lock = |table: &mut LockTable, range, held| table.lock(FILE, range, held, Claim::New, None);
    assert_eq!(lock(&mut table, 0..10, held(2, Kind::Exclusive)), Ok(NOW));
    assert_eq!(lock(&mut table, 15..16, held(4, Kind::Exclusive)), Ok(NOW));
    let wish = table.lock(FILE, 5..20, held(6, Kind::Shared), Claim::New, Some(waiting(6)));
    assert!(matches!(wish, Ok(Outcome::Waits(_))));
    for kind in [Kind::Shared, Kind::Exclusive, Kind::Shared] {
        assert_eq!(lock(&mut table, 0..10, held(2, kind)), Ok(NOW));
    }
    assert_eq!(lock(&mut table, 0..11, held(2, Kind::Exclusive)), Err(Status::LOCKED), "not all of it");
    assert_eq!(lock(&mut table, 8..9, held(8, Kind::Shared)), Ok(NOW));
    assert_eq!(lock(&mut table, 0..8, held(2, Kind::Exclusive)), Ok(NOW));
    assert_eq!(lock(&mut table, 8..10, held(2, Kind::Exclusive)), Err(Status::LOCKED), "not alone");
    assert_eq!(table.unlock(FILE, &(8..9), owner_of(8)), []);
    assert_eq!(lock(&mut table, 0..10, held(2, Kind::Exclusive)), Ok(NOW));
    assert_eq!(table.unlock(FILE, &(15..16), owner_of(4)), []);
    assert_eq!(numbers(&table.unlock(FILE, &(0..10), owner_of(2))), [6].into());
}

// [LOCK-6] [LOCK-18] Each of them has a byte that nobody waits for.
#[test]
fn readers_holding_unrelated_parts_do_not_pass_a_writer() {
    let mut table = LockTable::default();
    let reader = |id| held(id, Kind::Shared);
    for id in [2, 4] {
        assert_eq!(table.lock(FILE, 100..101, reader(id), Claim::New, None), Ok(NOW));
    }
    let lock = |table: &mut LockTable, id| table.lock(FILE, 0..101, reader(id), Claim::New, None);
    assert_eq!(lock(&mut table, 2), Ok(NOW));
    let wish = table.lock(FILE, 0..100, held(6, Kind::Exclusive), Claim::New, Some(waiting(6)));
    assert!(matches!(wish, Ok(Outcome::Waits(_))));
    assert_eq!(lock(&mut table, 4), Err(Status::LOCKED), "it waits behind the writer");
    let wish = table.lock(FILE, 0..101, reader(4), Claim::New, Some(waiting(4)));
    assert!(matches!(wish, Ok(Outcome::Waits(_))));
    assert_eq!(numbers(&table.unlock(FILE, &(0..100), owner_of(2))), [6].into());
    // Whoever has a part that the writer waits for goes on: the writer waits for it in any case.
    let wish = table.lock(FILE, 0..101, held(8, Kind::Exclusive), Claim::New, Some(waiting(8)));
    assert!(matches!(wish, Ok(Outcome::Waits(_))));
    assert_eq!(table.lock(FILE, 100..105, reader(2), Claim::New, None), Ok(NOW));
}
