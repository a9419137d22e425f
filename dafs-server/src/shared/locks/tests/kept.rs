//! What is written of locks is a range at a time: it comes to all that lasts.

use proptest::prelude::*;

use super::*;
use crate::shared::store::tests::kept_after;
use crate::shared::store::{Change, LocksChange};

#[derive(Clone, Debug)]
enum Act {
    Lock { range: Range<u64>, owner: u64, lasts: bool, repairs: bool, is_written: bool },
    GiveBack { range: Range<u64>, owner: u64 },
    Close { owner: u64 },
}

fn act() -> impl Strategy<Value = Act> {
    let range = || (0u64..40, 1u64..12).prop_map(|(start, len)| start..start + len);
    let owner = || (1u64..4).prop_map(|owner| 2 * owner);
    prop_oneof![
        5 => (range(), owner(), prop::bool::weighted(0.8), any::<bool>(), prop::bool::weighted(0.8)).prop_map(
            |(range, owner, lasts, repairs, is_written)| Act::Lock { range, owner, lasts, repairs, is_written }
        ),
        3 => (range(), owner()).prop_map(|(range, owner)| Act::GiveBack { range, owner }),
        1 => owner().prop_map(|owner| Act::Close { owner }),
    ]
}

/// Does it, and says what is written then.
fn carry_out(table: &mut LockTable, act: &Act) -> Vec<LocksChange> {
    match act.clone() {
        Act::Lock { range, owner, lasts, repairs, is_written } => {
            let lasting = if lasts { Lasting::Persistent } else { Lasting::No };
            let wish = Held { lasting, ..held(owner, Kind::Exclusive) };
            let claim = if repairs && lasts { Claim::Repair } else { Claim::New };
            if table.lock(FILE, range.clone(), wish, claim, None).is_err() {
                return Vec::new();
            }
            let Some(number) = table.begin_writing(FILE, &range, &wish) else { return Vec::new() };
            if is_written {
                table.on_written(FILE, number);
            } else {
                table.put_back(FILE, &range, number);
            }
            vec![table.records_of(FILE, &range)]
        }
        Act::GiveBack { range, owner } => match table.give_back(FILE, &range, owner_of(owner)) {
            Ok(_) => vec![table.records_of(FILE, &range)],
            Err(_) => Vec::new(),
        },
        Act::Close { owner } => {
            let freed =
                table.unlock_handle(FILE, owner_of(owner).session, held(owner, Kind::Exclusive).handle);
            freed.to_write.iter().map(|(file, range)| table.records_of(*file, range)).collect()
        }
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 256, ..ProptestConfig::default() })]

    // [LOCK-43]
    #[test]
    fn changes_that_are_written_come_to_all_that_lasts(acts in prop::collection::vec(act(), 1..60)) {
        let mut table = LockTable::default();
        table.restore([].into(), Vec::new());
        let mut written = Vec::new();
        for act in &acts {
            written.extend(carry_out(&mut table, act));
        }
        let kept = kept_after(written.into_iter().map(Change::Locks));
        let found: Vec<Record> = kept.locks.into_iter().flat_map(|(_, records)| records).collect();
        prop_assert_eq!(found, kept_of(&table, FILE).1);
    }
}

// [LOCK-43] Otherwise a client could make the state file grow without end: parts that become one in the table are not written again.
#[test]
fn neighbours_of_one_holder_are_one_record_however_they_came() {
    let mut table = LockTable::default();
    table.restore([].into(), Vec::new());
    let mut written = Vec::new();
    for start in [40, 20, 0, 10, 30] {
        let lock =
            Act::Lock { range: start..start + 10, owner: 2, lasts: true, repairs: false, is_written: true };
        written.extend(carry_out(&mut table, &lock));
        written.extend(carry_out(&mut table, &Act::Close { owner: 2 }));
    }
    let parts = written.last().map(|change| (&change.range, change.records.len()));
    assert_eq!(parts, Some((&(0..50), 1)));
    let kept = kept_after(written.into_iter().map(Change::Locks));
    assert_eq!(kept.locks[0].1.len(), 1);
}

// [LOCK-43] What the loop does for one change does not depend on how many locks its file has.
#[test]
fn change_of_one_lock_of_many_is_written_by_itself() {
    let mut table = LockTable::default();
    table.restore([].into(), Vec::new());
    let lasts = Held { lasting: Lasting::Persistent, ..held(2, Kind::Exclusive) };
    let looks = |table: &mut LockTable, at: u64| {
        work::take();
        let range = 2 * at..2 * at + 1;
        assert_eq!(table.lock(FILE, range.clone(), lasts, Claim::New, None), Ok(NOW));
        let number = table.begin_writing(FILE, &range, &lasts).unwrap();
        let change = table.records_of(FILE, &range);
        table.on_written(FILE, number);
        assert_eq!((change.records.len(), &change.range), (1, &range));
        work::take()
    };
    let first = looks(&mut table, 0);
    for at in 1..held::LASTING_MAX as u64 {
        assert_eq!(looks(&mut table, at), first, "{at}");
    }
}
