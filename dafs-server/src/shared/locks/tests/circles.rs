//! Owners that wait for each other.

use super::*;

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

// [LOCK-7]
#[test]
fn circle_is_found_of_as_many_owners_as_are_searched() {
    const OWNERS_MAX: u64 = 16_384;
    let exclusive = |id| held(id, Kind::Exclusive);
    let file = |file| LockKey { file, ..FILE };
    for owners in [OWNERS_MAX - 1, OWNERS_MAX, OWNERS_MAX + 1] {
        let mut table = LockTable::default();
        for id in 0..owners {
            assert_eq!(table.lock(file(id), 0..1, exclusive(id), Claim::New, None), Ok(NOW));
        }
        for id in 0..owners - 1 {
            let next = table.lock(file(id + 1), 0..1, exclusive(id), Claim::New, Some(waiting(id)));
            assert!(matches!(next, Ok(Outcome::Waits(_))), "{next:?}");
        }
        let last = owners - 1;
        let closed = table.lock(file(0), 0..1, exclusive(last), Claim::New, Some(waiting(last)));
        match owners > OWNERS_MAX {
            true => assert!(matches!(closed, Ok(Outcome::Waits(_))), "{owners}: {closed:?}"),
            false => assert_eq!(closed, Err(Status::DEADLOCK), "{owners}"),
        }
    }
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

fn waits(table: &mut LockTable, file: LockKey, range: Range<u64>, held: Held, number: u64) {
    let wish = table.lock(file, range, held, Claim::New, Some(waiting(number)));
    assert!(matches!(wish, Ok(Outcome::Waits(_))), "{number}: {wish:?}");
}

// [LOCK-62] It waits elsewhere for one whom it passes.
#[test]
fn circle_that_a_grant_closes_is_opened() {
    const OTHER: LockKey = LockKey { file: 9, ..FILE };
    let (shared, exclusive) = (|id| held(id, Kind::Shared), |id| held(id, Kind::Exclusive));
    let (passing, passed, holder, awaiting, last) = (2, 4, 6, 8, 10);
    for is_served in [false, true] {
        let mut table = LockTable::default();
        for (file, range, held) in [
            (FILE, 10..11, shared(passing)),
            (FILE, 0..10, shared(holder)),
            (OTHER, 0..1, exclusive(passed)),
            (FILE, 20..21, shared(passed)),
            (FILE, 15..16, exclusive(last)),
        ] {
            assert_eq!(table.lock(file, range, held, Claim::New, None), Ok(NOW));
        }
        waits(&mut table, FILE, 10..11, exclusive(awaiting), 1);
        waits(&mut table, FILE, 20..21, exclusive(awaiting), 2);
        waits(&mut table, OTHER, 0..1, exclusive(passing), 3);
        waits(&mut table, OTHER, 0..1, exclusive(12), 4);
        if is_served {
            // Neither of the two waits behind the other, until one is granted.
            waits(&mut table, FILE, 10..16, shared(passing), 5);
            waits(&mut table, FILE, 15..21, exclusive(passed), 6);
            assert_eq!(numbers(&table.unlock(FILE, &(15..16), owner_of(last))), [5].into());
        } else {
            waits(&mut table, FILE, 0..10, exclusive(passed), 6);
            assert_eq!(table.lock(FILE, 0..11, shared(passing), Claim::New, None), Ok(NOW));
        }
        assert_eq!(table.take_untold(), [(waiting(3), Status::DEADLOCK)], "{is_served}");
        // The others go on.
        let granted = table.unlock(FILE, &(0..16), owner_of(passing));
        assert!(granted.contains(&waiting(1)), "{granted:?}");
        table.unlock(FILE, &(0..10), owner_of(holder));
        assert!(!table.waits.contains_key(&owner_of(passed)), "it has what it waited for");
        assert_eq!(numbers(&table.unlock(OTHER, &(0..1), owner_of(passed))), [4].into());
    }
}

// [LOCK-7] [LOCK-62] As it was found in a history of three files.
#[test]
fn owner_who_waits_twice_does_not_wait_for_ever() {
    const OTHER: LockKey = LockKey { file: 9, ..FILE };
    let (shared, exclusive) = (|id| held(id, Kind::Shared), |id| held(id, Kind::Exclusive));
    let (x, a, b) = (2, 4, 6);
    let mut table = LockTable::default();
    for (file, range, held) in
        [(FILE, 0..10, shared(x)), (FILE, 10..11, shared(a)), (OTHER, 0..1, exclusive(b))]
    {
        assert_eq!(table.lock(file, range, held, Claim::New, None), Ok(NOW));
    }
    waits(&mut table, OTHER, 0..1, exclusive(a), 1);
    waits(&mut table, FILE, 0..10, exclusive(b), 2);
    waits(&mut table, FILE, 0..11, shared(a), 3);
    assert_eq!(numbers(&table.unlock(FILE, &(0..10), owner_of(x))), [2].into());
    assert_eq!(numbers(&table.unlock(OTHER, &(0..1), owner_of(b))), [1].into());
    assert_eq!(numbers(&table.unlock(FILE, &(0..10), owner_of(b))), [3].into());
}
