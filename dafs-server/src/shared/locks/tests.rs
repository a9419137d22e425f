#![allow(clippy::cast_possible_truncation, reason = "offsets that the tests choose")]

use std::collections::BTreeSet;

use dafs_proto::transport::OpToken;

use super::*;

use crate::metrics::BudgetState;
use crate::shared::store::{FileName, Record};

mod circles;
mod kept;
mod limits;
mod mandatory;
mod model;
mod serving;
mod unwritten;

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

/// All that is to be kept of a file.
fn kept_of(table: &LockTable, file: LockKey) -> (FileName, Vec<Record>) {
    let change = table.records_of(file, &(0..u64::MAX));
    (change.file, change.records)
}

/// A lock that was asked for is written.
fn write(table: &mut LockTable, range: Range<u64>, held: Held) {
    let number = table.begin_writing(FILE, &range, &held).unwrap();
    table.on_written(FILE, number);
}

impl LockTable {
    /// Gives a range back, for which there is room.
    pub(super) fn unlock(&mut self, file: LockKey, range: &Range<u64>, owner: Owner) -> Vec<Waiting> {
        self.give_back(file, range, owner).unwrap()
    }
}

/// Nobody holds or awaits anything; the memory of one file may be left.
fn knows_no_file(table: &LockTable) -> bool {
    table.files.len() <= 1 && table.files.values().all(FileLocks::is_free)
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
    assert!(knows_no_file(&table));
}

// [LOCK-9] [LOCK-19]
#[test]
fn closed_handle_ends_only_its_own_locks_and_waits() {
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
    assert_eq!(freed.ended, [(waiting(2), Status::BAD_HANDLE)]);
    assert_eq!(numbers(&freed.granted), [3, 4].into());
    let first = table.conflict(FILE, &(0..10), owner_of(9), Kind::Shared).map(|(part, _)| part);
    assert_eq!(first, Some(0..4), "another handle's lock stays");
}

// [LOCK-10]
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
            granted.extend(some.granted);
            steps += 1;
        }
        assert!(steps >= 3, "{steps} steps");
    }
    assert_eq!(numbers(&granted), [7].into());
    assert_eq!(table.counts.all, 1);
}

// [LOCK-40] [LOCK-41] [LOCK-42]
#[test]
fn what_lasts_breaks_and_is_repaired_part_by_part() {
    let mut table = LockTable::default();
    table.restore([].into(), Vec::new());
    let lasts = |id| Held { lasting: Lasting::Persistent, is_mandatory: true, ..held(id, Kind::Exclusive) };
    let repair = |table: &mut LockTable, range| table.lock(FILE, range, lasts(6), Claim::Repair, None);
    assert_eq!(table.lock(FILE, 0..10, lasts(2), Claim::New, None), Ok(NOW));
    write(&mut table, 0..10, lasts(2));
    let (name, records) = kept_of(&table, FILE);
    assert_eq!((name, records.len()), ((2, 3), 1));
    let wish = table.lock(FILE, 8..9, held(4, Kind::Shared), Claim::New, Some(waiting(4)));
    assert!(matches!(wish, Ok(Outcome::Waits(_))));
    let mut ended = Vec::new();
    while let Some(freed) = table.end_some_of(SessionId(1)) {
        ended.extend(freed.ended);
    }
    assert_eq!(ended, [(waiting(4), Status::LOCK_BROKEN)]);
    let asked = table.lock(FILE, 8..12, held(4, Kind::Shared), Claim::New, Some(waiting(4)));
    assert_eq!(asked, Err(Status::LOCK_BROKEN), "nobody waits for who is gone");
    assert!(
        table.keeps_out(FILE, std::slice::from_ref(&(0..1)), SessionId(9), true) && table.has_mandatory()
    );
    assert_eq!(repair(&mut table, 4..8), Ok(NOW));
    let (_, records) = kept_of(&table, FILE);
    let parts: Vec<_> = records.iter().map(|record| (record.start, record.end, record.session)).collect();
    assert_eq!(parts, [(0, 4, 1), (4, 8, 3), (8, 10, 1)]);
    assert_eq!(table.unlock(FILE, &(4..8), owner_of(6)), []);
    assert_eq!(table.lock(FILE, 4..8, held(4, Kind::Shared), Claim::New, None), Ok(NOW));
    assert_eq!(repair(&mut table, 0..10), Err(Status::LOCKED), "of what is whole another has a part");
    assert_eq!(repair(&mut table, 0..4), Ok(NOW));
    assert_eq!(repair(&mut table, 8..10), Ok(NOW));
    table.unlock(FILE, &(0..10), owner_of(6));
    table.unlock(FILE, &(0..10), owner_of(4));
    assert_eq!(kept_of(&table, FILE), ((2, 3), Vec::new()));
    assert!(knows_no_file(&table) && !table.has_mandatory());
}

// [LOCK-14] [LOCK-30] [LOCK-32] [LOCK-33]
#[test]
fn locks_are_taken_again_by_those_who_may() {
    let exclusive = |id| held(id, Kind::Exclusive);
    let again = |session| Claim::Reclaim(session);
    // Nothing is known: the order decides.
    let mut open = LockTable::default();
    assert_eq!(open.lock(FILE, 0..4, held(2, Kind::Shared), Claim::New, None), Ok(NOW));
    open.unlock(FILE, &(0..4), owner_of(2));
    assert_eq!(open.lock(FILE, 3..5, exclusive(4), again(None), None), Err(Status::NO_RECLAIM));
    assert_eq!(open.lock(FILE, 3..5, held(4, Kind::Shared), again(None), None), Ok(NOW));
    assert_eq!(open.lock(FILE, 10..15, exclusive(4), again(None), None), Ok(NOW));
    assert_eq!(open.lock(FILE, 12..13, exclusive(6), again(None), None), Err(Status::LOCKED));
    assert!(open.end_restart().is_empty() && open.is_restart_over());
    assert_eq!(open.lock(FILE, 20..25, exclusive(4), again(None), None), Err(Status::NO_RECLAIM));
    // Two sessions are known.
    let known = || [SessionId(70), SessionId(71)];
    let mut grace = LockTable::default();
    grace.restore(known().into(), Vec::new());
    let wish = grace.lock(FILE, 0..4, exclusive(2), Claim::New, Some(waiting(2)));
    assert!(matches!(wish, Ok(Outcome::Waits(_))));
    assert_eq!(grace.lock(FILE, 50..51, exclusive(4), Claim::New, None), Err(Status::GRACE));
    assert_eq!(grace.lock(FILE, 0..1, exclusive(4), again(None), None), Err(Status::NO_RECLAIM));
    let liar = Some(SessionId(72));
    assert_eq!(grace.lock(FILE, 0..1, exclusive(4), again(liar), None), Err(Status::NO_RECLAIM));
    let first = Some(SessionId(70));
    assert_eq!(grace.lock(FILE, 0..1, exclusive(4), again(first), None), Ok(NOW), "not behind who waits");
    assert_eq!(grace.reclaimed_all(SessionId(70)), None);
    assert_eq!(grace.unlock(FILE, &(0..1), owner_of(4)), [], "the time is not over");
    assert_eq!(grace.reclaimed_all(SessionId(71)), Some(known().into()));
    assert!(grace.end_restart().is_empty(), "another worker's clock says so too");
    assert_eq!(grace.serve_some().map(|granted| numbers(&granted)), Some([2].into()));
    assert_eq!(grace.serve_some(), None);
    assert_eq!(grace.lock(FILE, 5..6, exclusive(4), again(first), None), Err(Status::NO_RECLAIM));
}

// [LOCK-40] [LOCK-44]
#[test]
fn kept_lock_is_broken_except_for_its_session() {
    let record = |start, session| Record {
        start,
        end: start + 5,
        session,
        owner: 1,
        client: [7; 16],
        is_mandatory: false,
    };
    let files = vec![((2, 3), vec![record(0, 70), record(10, 71)]), ((2, 4), vec![record(20, 70)])];
    let mut table = LockTable::default();
    table.restore([SessionId(70)].into(), files);
    let lasts = Held { lasting: Lasting::Persistent, ..held(2, Kind::Exclusive) };
    let again = Claim::Reclaim(Some(SessionId(70)));
    assert_eq!(table.lock(FILE, 10..15, lasts, again, None), Err(Status::LOCK_BROKEN), "another's");
    assert_eq!(table.lock(FILE, 0..5, lasts, again, None), Ok(NOW));
    table.end_restart();
    let found = table.conflict(FILE, &(0..20), owner_of(8), Kind::Shared).unwrap();
    assert_eq!((found.0, found.1.lasting, found.1.owner), (0..5, Lasting::Persistent, owner_of(2)));
    let found = table.conflict(FILE, &(5..20), owner_of(8), Kind::Shared).unwrap();
    assert_eq!((found.0, found.1.lasting, found.1.client), (10..15, Lasting::Broken, [7; 16]));
    let plain = table.lock(FILE, 20..25, held(8, Kind::Shared), Claim::New, None);
    assert_eq!(plain, Ok(NOW), "that is of a file that had the number before");
}

// [LOCK-12] Reads and writes look for mandatory locks as long as there are some.
#[test]
fn kept_mandatory_lock_counts_until_it_is_given_back() {
    let record =
        |start| Record { start, end: start + 5, session: 70, owner: 1, client: [7; 16], is_mandatory: true };
    let mut table = LockTable::default();
    table.restore([SessionId(70)].into(), vec![((2, 3), vec![record(0), record(10)])]);
    assert!(table.has_mandatory(), "in the store");
    let lasts = Held { lasting: Lasting::Persistent, is_mandatory: true, ..held(2, Kind::Exclusive) };
    for start in [0, 10] {
        let range = start..start + 5;
        let again = Claim::Reclaim(Some(SessionId(70)));
        assert_eq!(table.lock(FILE, range.clone(), lasts, again, None), Ok(NOW));
        assert!(table.has_mandatory());
    }
    for start in [0, 10] {
        assert!(table.has_mandatory());
        assert_eq!(table.unlock(FILE, &(start..start + 5), owner_of(2)), []);
    }
    assert!(!table.has_mandatory());
}

// [LOCK-61] A file system and its clone.
#[test]
fn files_of_one_number_and_birth_exclude_persistent_locks() {
    let mut table = LockTable::default();
    table.restore([].into(), Vec::new());
    let (other, later) = (LockKey { fs: 7, ..FILE }, LockKey { generation: 4, fs: 7, ..FILE });
    let lasts = |id| Held { lasting: Lasting::Persistent, ..held(id, Kind::Exclusive) };
    let lock = |table: &mut LockTable, file, held: Held| {
        let outcome = table.lock(file, 0..10, held, Claim::New, Some(waiting(held.owner.id)));
        outcome.map(|outcome| matches!(outcome, Outcome::Waits(_)))
    };
    for (first, second) in [(FILE, other), (other, FILE)] {
        assert_eq!(lock(&mut table, first, lasts(2)), Ok(false));
        assert_eq!(lock(&mut table, second, lasts(4)), Err(Status::NOT_SUPPORTED));
        assert_eq!(lock(&mut table, later, lasts(4)), Ok(false), "that has another birth");
        // Nor does the one write over what is kept of the other.
        assert_eq!(lock(&mut table, second, held(2, Kind::Exclusive)), Ok(false));
        assert_eq!(table.unlock(second, &(0..10), owner_of(2)), []);
        assert_eq!((kept_of(&table, second), kept_of(&table, later).1.len()), (kept_of(&table, first), 1));
        assert_eq!(kept_of(&table, first).1.len(), 1);
        // Whoever waits for one counts.
        assert_eq!(table.unlock(first, &(0..10), owner_of(2)), []);
        assert_eq!(lock(&mut table, first, held(6, Kind::Exclusive)), Ok(false));
        assert_eq!(lock(&mut table, first, lasts(2)), Ok(true));
        assert_eq!(lock(&mut table, second, lasts(4)), Err(Status::NOT_SUPPORTED));
        for (file, id) in [(first, 6), (first, 2), (later, 4)] {
            table.unlock(file, &(0..10), owner_of(id));
        }
    }
    assert!(knows_no_file(&table));
}

// [LOCK-40] [LOCK-41]
#[test]
fn owner_that_closed_its_handle_has_to_repair_too() {
    let mut table = LockTable::default();
    table.restore([].into(), Vec::new());
    let lasts = Held { lasting: Lasting::Persistent, ..held(2, Kind::Exclusive) };
    assert_eq!(table.lock(FILE, 0..10, lasts, Claim::New, None), Ok(NOW));
    write(&mut table, 0..10, lasts);
    table.unlock_handle(FILE, lasts.owner.session, lasts.handle);
    assert_eq!(table.lock(FILE, 3..4, lasts, Claim::New, None), Err(Status::LOCK_BROKEN));
    table.unlock(FILE, &(0..10), lasts.owner);
    assert_eq!(table.lock(FILE, 3..4, lasts, Claim::New, None), Err(Status::LOCK_BROKEN));
    assert_eq!(table.lock(FILE, 0..10, lasts, Claim::Repair, None), Ok(NOW));
    table.unlock(FILE, &(0..10), lasts.owner);
    assert_eq!(table.lock(FILE, 3..4, lasts, Claim::New, None), Ok(NOW));
}

// [LOCK-14]
#[test]
fn locks_of_one_place_are_remembered_as_one() {
    let mut table = LockTable::default();
    for _ in 0..1000 {
        assert_eq!(table.lock(FILE, 0..4, held(2, Kind::Exclusive), Claim::New, None), Ok(NOW));
        table.unlock(FILE, &(0..4), owner_of(2));
    }
    assert!(matches!(table.restart, Restart::Open { noted: 1, .. }), "{:?}", table.restart);
}

// [LOCK-46]
#[test]
fn repair_that_is_taken_back_has_repaired_nothing() {
    let mut table = LockTable::default();
    table.restore([].into(), Vec::new());
    let lasts = |id| Held { lasting: Lasting::Persistent, ..held(id, Kind::Exclusive) };
    assert_eq!(table.lock(FILE, 0..10, lasts(2), Claim::New, None), Ok(NOW));
    write(&mut table, 0..10, lasts(2));
    table.unlock_handle(FILE, lasts(2).owner.session, lasts(2).handle);
    for (take_back, asks) in [(true, 1), (false, 1), (true, 2), (false, 2)] {
        // Whoever has waited for it asks again.
        for _ in 0..asks {
            assert_eq!(table.lock(FILE, 0..12, lasts(6), Claim::Repair, None), Ok(NOW));
        }
        match take_back {
            true => drop(table.take_back(FILE, &(0..12), owner_of(6))),
            false => drop(table.give_repair_up(FILE, &(0..12), owner_of(6)).unwrap()),
        }
        let asked = table.lock(FILE, 0..10, held(4, Kind::Shared), Claim::New, None);
        assert_eq!(asked, Err(Status::LOCK_BROKEN), "{take_back}, {asks}");
    }
    // What is new and not a repair leaves nothing.
    assert_eq!(table.lock(FILE, 50..60, lasts(6), Claim::Repair, None), Ok(NOW));
    table.take_back(FILE, &(50..60), owner_of(6));
    assert_eq!(table.lock(FILE, 50..60, held(4, Kind::Shared), Claim::New, None), Ok(NOW));
}

// [LOCK-11] Nobody has it by the end of another wait whose deadline has passed too.
#[test]
fn waits_that_end_together_are_not_granted_by_each_other() {
    let mut table = LockTable::default();
    assert_eq!(table.lock(FILE, 0..10, held(2, Kind::Shared), Claim::New, None), Ok(NOW));
    let waits = [(4, Kind::Exclusive), (6, Kind::Shared), (8, Kind::Shared)].map(|(owner, kind)| match table
        .lock(FILE, 0..10, held(owner, kind), Claim::New, Some(waiting(owner)))
    {
        Ok(Outcome::Waits(waiter)) => (FILE, waiter),
        other => panic!("{other:?}"),
    });
    let (ended, granted) = table.cancel([waits[0], waits[1]]);
    assert_eq!((ended, numbers(&granted)), ([waits[0].1, waits[1].1].into(), [8].into()));
}

#[test]
fn memory_of_at_most_one_file_is_kept_for_relocking() {
    let mut table = LockTable::default();
    let key = |file| LockKey { file, ..FILE };
    let lock =
        |table: &mut LockTable, file| table.lock(key(file), 0..1, held(0, Kind::Exclusive), Claim::New, None);
    for files in [[1, 1, 1], [1, 2, 3], [3, 1, 3]] {
        for file in files {
            assert_eq!(lock(&mut table, file), Ok(NOW));
            assert_eq!(table.unlock(key(file), &(0..1), owner_of(0)), []);
            assert!(knows_no_file(&table));
        }
    }
    // While it is locked again, another takes its place.
    assert_eq!((lock(&mut table, 3), lock(&mut table, 4)), (Ok(NOW), Ok(NOW)));
    for file in [4, 3] {
        assert_eq!(table.unlock(key(file), &(0..1), owner_of(0)), []);
    }
    assert!(knows_no_file(&table));
}

// [LOCK-9] A request with the offset 2⁶⁴−1 and the length 0.
#[test]
fn lock_behind_the_last_offset_is_of_nothing() {
    let nothing = u64::MAX..u64::MAX;
    let shared = || held(2, Kind::Shared);
    let mut table = LockTable::default();
    assert!(matches!(table.restart, Restart::Open { .. }), "what is locked now is noted for reclaims");
    for claim in [Claim::New, Claim::Reclaim(None), Claim::Repair] {
        assert_eq!(table.lock(FILE, nothing.clone(), shared(), claim, Some(waiting(1))), Ok(NOW));
    }
    // Beside others, and where the file is known and free.
    table.lock(FILE, 0..u64::MAX, held(4, Kind::Exclusive), Claim::New, None).unwrap();
    assert_eq!(table.lock(FILE, nothing.clone(), shared(), Claim::New, None), Ok(NOW));
    assert_eq!(table.unlock(FILE, &(0..u64::MAX), owner_of(4)), []);
    assert_eq!(table.lock(FILE, nothing.clone(), shared(), Claim::New, None), Ok(NOW));
    assert_eq!(table.unlock(FILE, &nothing, owner_of(2)), []);
    assert!(!table.has_any(owner_of(2).session) && table.counts.all == 0);
}

// [LOCK-10] What a session has had is no burden.
#[test]
fn session_is_remembered_only_where_it_has_something() {
    let mut table = LockTable::default();
    let key = |file| LockKey { file, ..FILE };
    let lock = |table: &mut LockTable, file, id, at: u64| {
        let held = held(id, Kind::Exclusive);
        assert_eq!(table.lock(key(file), at..at + 1, held, Claim::New, None), Ok(NOW));
    };
    let files = |table: &LockTable, id| table.by_session.get(&owner_of(id).session).map_or(0, BTreeMap::len);
    for file in 0..1000 {
        lock(&mut table, file, 0, 0);
        assert_eq!(table.unlock(key(file), &(0..1), owner_of(0)), []);
    }
    assert_eq!((files(&table, 0), table.by_session.len()), (1, 1), "where it finds its memory");
    // Beside another that stays, by itself and next to it; and where it gives up waiting.
    for file in 0..1000 {
        lock(&mut table, file, 4, 10);
        for at in [0, 11] {
            lock(&mut table, file, 0, at);
            assert_eq!(table.unlock(key(file), &(at..at + 1), owner_of(0)), []);
        }
        let wish = table.lock(key(file), 10..11, held(0, Kind::Shared), Claim::New, Some(waiting(file)));
        let Ok(Outcome::Waits(waiter)) = wish else { panic!("{wish:?}") };
        assert!((1..=2).contains(&files(&table, 0)), "while it waits");
        assert_eq!(table.cancel([(key(file), waiter)]), ([waiter].into(), Vec::new()));
    }
    assert_eq!((files(&table, 0), files(&table, 4)), (0, 1000));
    // Those who come and go leave nothing.
    for id in 10..1000 {
        lock(&mut table, 2000, id, 0);
        table.unlock(key(2000), &(0..1), owner_of(id));
        while table.end_some_of(owner_of(id).session).is_some() {}
    }
    assert_eq!(table.by_session.len(), 1);
    let kept = table.files.get_mut(&key(2000)).map(|locks| locks.segments.sessions.take_absent());
    assert_eq!(kept, Some(Vec::new()));
}
