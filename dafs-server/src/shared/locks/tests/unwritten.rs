//! Locks that are not granted until they are written.

use super::*;

/// How each offset of a range is held by somebody: by nobody `.`, shared `s`, exclusively `x`, so that it lasts `P`, broken `B`.
fn shown(table: &LockTable, range: Range<u64>, owner: Owner) -> String {
    let held = |at: u64| {
        let locks = table.files.get(&FILE);
        let found = locks.and_then(|locks| {
            let mut holders = locks.segments.overlapping(&(at..at + 1)).map(|(_, held)| held);
            holders.find(|held| held.owner == owner || held.is_broken()).copied()
        });
        match found {
            None => '.',
            Some(held) => match (held.lasting, held.kind) {
                (Lasting::Broken, _) => 'B',
                (Lasting::Persistent | Lasting::Repairing, _) => 'P',
                (Lasting::No, Kind::Shared) => 's',
                (Lasting::No, Kind::Exclusive) => 'x',
            },
        }
    };
    range.map(held).collect()
}

// [LOCK-35] [LOCK-1] [LOCK-46]
#[test]
fn owner_of_a_lock_that_is_not_written_has_what_it_had() {
    let mut table = LockTable::default();
    table.restore([].into(), Vec::new());
    let lasts = |id| Held { lasting: Lasting::Persistent, ..held(id, Kind::Exclusive) };
    let owner = owner_of(2);
    for (range, kind) in [(0..4, Kind::Exclusive), (6..12, Kind::Shared)] {
        assert_eq!(table.lock(FILE, range, held(2, kind), Claim::New, None), Ok(NOW));
    }
    assert_eq!(table.lock(FILE, 2..10, lasts(2), Claim::New, None), Ok(NOW));
    assert_eq!(shown(&table, 0..13, owner), "xxPPPPPPPPss.");
    let wish = table.lock(FILE, 5..8, held(4, Kind::Shared), Claim::New, Some(waiting(4)));
    assert!(matches!(wish, Ok(Outcome::Waits(_))));
    let freed = put_back(&mut table, 2..10, lasts(2));
    assert_eq!(shown(&table, 0..13, owner), "xxxx..ssssss.");
    assert_eq!((numbers(&freed.granted), freed.ended), ([4].into(), Vec::new()));
    table.unlock(FILE, &(5..8), owner_of(4));
    // What was written stays when the same is asked for again.
    assert_eq!(table.lock(FILE, 20..24, lasts(2), Claim::New, None), Ok(NOW));
    write(&mut table, 20..24, lasts(2));
    assert_eq!(table.lock(FILE, 20..24, lasts(2), Claim::New, None), Ok(NOW));
    put_back(&mut table, 20..24, lasts(2));
    assert_eq!(shown(&table, 19..25, owner), ".PPPP.");
    // What others have come to share by then is shared.
    assert_eq!(table.lock(FILE, 20..24, held(2, Kind::Shared), Claim::New, None), Ok(NOW));
    assert_eq!(table.lock(FILE, 21..22, held(4, Kind::Shared), Claim::New, None), Ok(NOW));
    put_back(&mut table, 20..24, held(2, Kind::Shared));
    assert_eq!(shown(&table, 19..25, owner), ".PsPP.");
    assert_eq!(shown(&table, 19..25, owner_of(4)), "..s...");
    // What is given back meanwhile does not come back.
    assert_eq!(table.lock(FILE, 0..4, lasts(2), Claim::New, None), Ok(NOW));
    let number = table.begin_writing(FILE, &(0..4), &lasts(2)).unwrap();
    table.unlock(FILE, &(1..4), owner);
    table.put_back(FILE, &(0..4), number);
    assert_eq!(shown(&table, 0..4, owner), "x...");
    // What is to be repaired is what was.
    assert_eq!(table.lock(FILE, 30..34, lasts(6), Claim::New, None), Ok(NOW));
    write(&mut table, 30..34, lasts(6));
    table.unlock_handle(FILE, lasts(6).owner.session, lasts(6).handle);
    assert_eq!(table.lock(FILE, 32..38, lasts(2), Claim::Repair, None), Ok(NOW));
    assert_eq!(shown(&table, 30..39, owner), "BBPPPPPP.");
    put_back(&mut table, 32..38, lasts(2));
    assert_eq!(shown(&table, 30..39, owner), "BBBB.....");
}

// [LOCK-35] [LOCK-1] An owner may ask for more before it is told of what it asked for.
#[test]
fn locks_written_at_different_times_leave_what_was_granted() {
    let lasts = Held { lasting: Lasting::Persistent, ..held(2, Kind::Exclusive) };
    let shared = Held { kind: Kind::Shared, ..lasts };
    // The locks asked for one after the other, which of them are not written, in which order that is known, and what is left.
    for (asked, outcomes, left) in [
        ([shared, lasts], [(0, true), (1, true)], "PPPP"),
        ([shared, lasts], [(0, false), (1, true)], "PPPP"),
        ([shared, lasts], [(0, false), (1, false)], "ssss"),
        ([shared, lasts], [(1, false), (0, false)], "ssss"),
        ([shared, lasts], [(0, true), (1, false)], "PPPP"),
        ([lasts, lasts], [(0, false), (1, true)], "PPPP"),
        ([lasts, lasts], [(0, true), (1, false)], "PPPP"),
        ([lasts, lasts], [(0, false), (1, false)], "ssss"),
    ] {
        let mut table = LockTable::default();
        table.restore([].into(), Vec::new());
        assert_eq!(table.lock(FILE, 0..4, held(2, Kind::Shared), Claim::New, None), Ok(NOW));
        let numbers = asked.map(|held| {
            assert_eq!(table.lock(FILE, 0..4, held, Claim::New, None), Ok(NOW));
            table.begin_writing(FILE, &(0..4), &held).unwrap()
        });
        for (place, is_written) in outcomes {
            match is_written {
                true => table.on_written(FILE, numbers[place]),
                false => drop(table.put_back(FILE, &(0..4), numbers[place])),
            }
        }
        assert_eq!(shown(&table, 0..4, owner_of(2)), left, "{outcomes:?}");
        assert!(table.files[&FILE].segments.unwritten.is_empty(), "{outcomes:?}");
    }
}

/// It cannot be written.
fn put_back(table: &mut LockTable, range: Range<u64>, held: Held) -> Freed {
    let number = table.begin_writing(FILE, &range, &held).unwrap();
    table.put_back(FILE, &range, number)
}

// [LOCK-35] [LOCK-28]
#[test]
fn unwritten_lock_asked_for_again_is_not_held() {
    let mut table = LockTable::default();
    table.restore([].into(), Vec::new());
    let lasts = |id| Held { lasting: Lasting::Persistent, ..held(id, Kind::Exclusive) };
    assert_eq!(table.lock(FILE, 0..4, held(2, Kind::Shared), Claim::New, None), Ok(NOW));
    assert_eq!(table.lock(FILE, 2..8, held(4, Kind::Exclusive), Claim::New, None), Err(Status::LOCKED));
    assert_eq!(table.lock(FILE, 4..8, held(4, Kind::Exclusive), Claim::New, None), Ok(NOW));
    let wish = table.lock(FILE, 2..8, lasts(2), Claim::New, Some(waiting(2)));
    assert!(matches!(wish, Ok(Outcome::Waits(_))));
    assert_eq!(numbers(&table.unlock(FILE, &(4..8), owner_of(4))), [2].into());
    assert_eq!(table.lock(FILE, 2..8, lasts(2), Claim::New, Some(waiting(2))), Ok(NOW));
    put_back(&mut table, 2..8, lasts(2));
    assert_eq!(shown(&table, 0..9, owner_of(2)), "ssss.....");
}

// [LOCK-16]
#[test]
fn unlock_behind_the_last_byte_leaves_what_is_not_written() {
    let mut table = LockTable::default();
    table.restore([].into(), Vec::new());
    let lasts = Held { lasting: Lasting::Persistent, ..held(2, Kind::Exclusive) };
    assert_eq!(table.lock(FILE, 0..4, lasts, Claim::New, None), Ok(NOW));
    assert!(table.unlock(FILE, &(u64::MAX..u64::MAX), owner_of(2)).is_empty());
    assert_eq!(shown(&table, 0..5, owner_of(2)), "PPPP.");
}

// [LOCK-9] [LOCK-46] A session gets its broken lock back while it has nothing else of the file.
#[test]
fn session_that_gets_a_broken_lock_back_leaves_nothing_locked_there() {
    let mut table = LockTable::default();
    table.restore([].into(), Vec::new());
    let lasts = |id| Held { lasting: Lasting::Persistent, ..held(id, Kind::Exclusive) };
    let session = owner_of(2).session;
    assert_eq!(table.lock(FILE, 0..10, lasts(2), Claim::New, None), Ok(NOW));
    write(&mut table, 0..10, lasts(2));
    table.unlock_handle(FILE, session, lasts(2).handle);
    assert_eq!(table.lock(FILE, 0..10, lasts(6), Claim::Repair, None), Ok(NOW));
    put_back(&mut table, 0..10, lasts(6));
    assert_eq!(shown(&table, 0..10, owner_of(2)), "BBBBBBBBBB");
    assert_eq!(table.lock(FILE, 100..101, held(2, Kind::Exclusive), Claim::New, None), Ok(NOW));
    while table.end_some_of(session).is_some() {}
    assert_eq!(table.conflict(FILE, &(100..101), owner_of(4), Kind::Shared), None);
    // Nor is it remembered once that lock is repaired.
    assert_eq!(table.lock(FILE, 0..10, lasts(6), Claim::Repair, None), Ok(NOW));
    table.unlock(FILE, &(0..10), owner_of(6));
    assert!(knows_no_file(&table) && !table.by_session.contains_key(&session));
}

// [LOCK-58] The files of a session that ended are seen to one by one, and meanwhile another gives back what it waits for.
#[test]
fn lock_that_is_granted_to_a_session_that_ended_is_not_broken() {
    for repairs in [false, true] {
        let mut table = LockTable::default();
        table.restore([].into(), Vec::new());
        let lasts = |id| Held { lasting: Lasting::Persistent, ..held(id, Kind::Exclusive) };
        let first = LockKey { file: FILE.file - 1, ..FILE };
        if repairs {
            assert_eq!(table.lock(FILE, 0..10, lasts(8), Claim::New, None), Ok(NOW));
            write(&mut table, 0..10, lasts(8));
            table.unlock_handle(FILE, owner_of(8).session, lasts(8).handle);
        }
        assert_eq!(table.lock(first, 0..10, held(2, Kind::Exclusive), Claim::New, None), Ok(NOW));
        assert_eq!(table.lock(FILE, 10..20, held(4, Kind::Exclusive), Claim::New, None), Ok(NOW));
        let claim = if repairs { Claim::Repair } else { Claim::New };
        let wish = table.lock(FILE, 0..20, lasts(2), claim, Some(waiting(2)));
        assert!(matches!(wish, Ok(Outcome::Waits(_))));
        table.end_some_of(owner_of(2).session).unwrap();
        assert_eq!(numbers(&table.unlock(FILE, &(10..20), owner_of(4))), [2].into());
        let wish = table.lock(FILE, 12..13, held(6, Kind::Shared), Claim::New, Some(waiting(6)));
        assert!(matches!(wish, Ok(Outcome::Waits(_))));
        let (mut granted, mut ended, mut to_write) = (Vec::new(), Vec::new(), Vec::new());
        while let Some(freed) = table.end_some_of(owner_of(2).session) {
            granted.extend(freed.granted);
            ended.extend(freed.ended);
            to_write.extend(freed.to_write);
        }
        assert_eq!((numbers(&granted), ended), ([6].into(), Vec::new()), "{repairs}");
        assert_eq!(to_write, [(FILE, 0..20)], "the store may have it");
        let left = if repairs { "BBBBBBBBBB....." } else { "..............." };
        assert_eq!(shown(&table, 0..15, owner_of(2)), left);
        assert!(!table.by_session.contains_key(&owner_of(2).session));
    }
}

// [LOCK-58]
#[test]
fn granted_lock_of_closed_handle_is_not_broken() {
    let mut table = LockTable::default();
    table.restore([].into(), Vec::new());
    let lasts = Held { lasting: Lasting::Persistent, ..held(2, Kind::Exclusive) };
    let other = Held { handle: lasts.handle + 1, ..held(2, Kind::Shared) };
    assert_eq!(table.lock(FILE, 0..4, other, Claim::New, None), Ok(NOW));
    assert_eq!(table.lock(FILE, 4..8, held(4, Kind::Exclusive), Claim::New, None), Ok(NOW));
    let wish = table.lock(FILE, 2..8, lasts, Claim::New, Some(waiting(2)));
    assert!(matches!(wish, Ok(Outcome::Waits(_))));
    assert_eq!(numbers(&table.unlock(FILE, &(4..8), owner_of(4))), [2].into());
    assert_eq!(shown(&table, 0..9, owner_of(2)), "ssPPPPPP.");
    table.unlock_handle(FILE, lasts.owner.session, lasts.handle);
    assert_eq!(shown(&table, 0..9, owner_of(2)), "ssss.....", "what was locked by another handle stays");
}

// [LOCK-41] [LOCK-42]
#[test]
fn whoever_waits_to_repair_what_breaks_has_it() {
    let mut table = LockTable::default();
    table.restore([].into(), Vec::new());
    let lasts = |id| Held { lasting: Lasting::Persistent, ..held(id, Kind::Exclusive) };
    assert_eq!(table.lock(FILE, 0..10, lasts(2), Claim::New, None), Ok(NOW));
    write(&mut table, 0..10, lasts(2));
    let wish = table.lock(FILE, 2..5, held(4, Kind::Shared), Claim::New, Some(waiting(4)));
    assert!(matches!(wish, Ok(Outcome::Waits(_))));
    for id in [6, 8] {
        let wish = table.lock(FILE, 0..10, lasts(id), Claim::Repair, Some(waiting(id)));
        assert!(matches!(wish, Ok(Outcome::Waits(_))));
    }
    let freed = table.unlock_handle(FILE, lasts(2).owner.session, lasts(2).handle);
    assert_eq!(freed.ended, [(waiting(4), Status::LOCK_BROKEN)]);
    assert_eq!(numbers(&freed.granted), [6].into());
    // It fails in turn.
    assert_eq!(table.lock(FILE, 0..10, lasts(6), Claim::Repair, None), Ok(NOW));
    write(&mut table, 0..10, lasts(6));
    let freed = table.unlock_handle(FILE, lasts(6).owner.session, lasts(6).handle);
    assert_eq!((numbers(&freed.granted), freed.ended), ([8].into(), Vec::new()));
    let freed = table.give_repair_up(FILE, &(0..10), owner_of(8)).unwrap();
    assert!(freed.granted.is_empty() && freed.ended.is_empty());
    let asked = table.lock(FILE, 0..10, held(4, Kind::Shared), Claim::New, None);
    assert_eq!(asked, Err(Status::LOCK_BROKEN));
}
