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
