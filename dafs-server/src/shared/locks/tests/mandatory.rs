//! Whom mandatory locks keep from data, and what it costs to find out.

use proptest::prelude::*;

use super::*;

fn mandatory(id: u64, kind: Kind, is_mandatory: bool) -> Held {
    Held { is_mandatory, ..held(id, kind) }
}

// [LOCK-12] [LOCK-13] [BUF-25]
#[test]
fn mandatory_check_costs_ranges_plus_locks_inside() {
    const COUNT: u64 = 60_000;
    let mut table = LockTable::default();
    for at in 0..COUNT {
        let held = mandatory(2, Kind::Exclusive, at == COUNT - 1);
        assert_eq!(table.lock(FILE, 2 * at..2 * at + 1, held, Claim::New, None), Ok(NOW));
    }
    let last = 2 * (COUNT - 1);
    let mut looks = |ranges: &[Range<u64>], session: u64| {
        work::take();
        (table.keeps_out(FILE, ranges, SessionId(session), true), 16 * work::take())
    };
    let whole = 0..2 * COUNT;
    let all = std::slice::from_ref(&whole);
    assert_eq!(looks(all, 9), (true, 0));
    assert_eq!(looks(all, 1), (false, 0), "its own session");
    let many: Vec<_> = (0..512).map(|at| 200 * at..200 * at + 150).collect();
    let (keeps_out, looked_at) = looks(&many, 9);
    assert!(!keeps_out && looked_at <= 512, "{looked_at} looks");
    assert_eq!(looks(std::slice::from_ref(&(last..last + 1)), 9), (true, 0));
    assert_eq!(looks(std::slice::from_ref(&(last + 1..last + 2)), 9), (false, 0));
    // Where all are mandatory, and its own, each is looked at once.
    for at in 0..COUNT {
        let held = mandatory(2, Kind::Exclusive, true);
        assert_eq!(table.lock(FILE, 2 * at..2 * at + 1, held, Claim::New, None), Ok(NOW));
    }
    work::take();
    assert!(!table.keeps_out(FILE, &many, SessionId(1), true));
    let looked_at = 16 * work::take();
    assert!(looked_at <= 512 * 77, "{looked_at} looks");
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 500, ..ProptestConfig::default() })]

    // [LOCK-12] [LOCK-13] [LOCK-20] The index, against a look at all locks; and its version, which tells of each change.
    #[test]
    fn mandatory_locks_keep_out_as_a_look_at_all_locks_says(
        actions in prop::collection::vec((0u64..6, 0u64..20, 1u64..8, 0u8..5), 1..80),
    ) {
        let mut table = LockTable::default();
        for (id, start, len, action) in actions {
            let range = start..start + len;
            let before = (table.mandatory_version(), answers(&mut table));
            match action {
                0 => drop(table.unlock(FILE, &range, owner_of(id))),
                1 => drop(table.unlock_handle(FILE, owner_of(id).session, id % 3)),
                _ => {
                    let kind = if action == 2 { Kind::Shared } else { Kind::Exclusive };
                    let _ = table.lock(FILE, range, mandatory(id, kind, action == 3), Claim::New, None);
                }
            }
            let answers = answers(&mut table);
            prop_assert!(answers == before.1 || table.mandatory_version() != before.0);
            let of_all = looked_at_all(&table);
            prop_assert_eq!(answers, of_all);
        }
    }
}

const CASES: [(u64, bool); 4] = [(0, true), (0, false), (2, true), (9, false)];

fn answers(table: &mut LockTable) -> Vec<bool> {
    let of_case = |(session, writes)| {
        let each = (0..30)
            .map(|at| table.keeps_out(FILE, std::slice::from_ref(&(at..at + 1)), SessionId(session), writes));
        let each: Vec<bool> = each.collect();
        let pairs = (0..26)
            .map(|at| table.keeps_out(FILE, &[at..at + 1, at + 3..at + 4], SessionId(session), writes));
        each.into_iter().chain(pairs).collect::<Vec<_>>()
    };
    CASES.map(of_case).concat()
}

fn looked_at_all(table: &LockTable) -> Vec<bool> {
    let of_case = |(session, writes): (u64, bool)| {
        let at_place = |at: u64| {
            let range = at..at + 1;
            let mut held =
                table.files.get(&FILE).into_iter().flat_map(|locks| locks.segments.overlapping(&range));
            held.any(|(_, held)| {
                held.is_mandatory
                    && held.owner.session != SessionId(session)
                    && (writes || held.kind == Kind::Exclusive)
            })
        };
        (0..30).map(at_place).chain((0..26).map(|at| at_place(at) || at_place(at + 3))).collect::<Vec<_>>()
    };
    CASES.map(of_case).concat()
}
