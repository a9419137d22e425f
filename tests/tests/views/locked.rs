//! Views and mandatory locks: each segment is looked at, also those that are planned late.

use dafs_client::{Datatype, File, LockOptions, OpenOptions, Session, Status};
use dafs_proto::wire::LockKind;
use dafs_tests::harness::{Harness, On};
use dafs_tests::on_each_provider_and_three_workers;
use dafs_tests::suite::{assert_same, assert_status, bytes};

on_each_provider_and_three_workers! {
    mandatory_lock_keeps_views_of_other_sessions_out,
}

/// More than are planned at once.
const TILES: usize = 40_000;

fn open(session: &Session) -> File {
    let root = session.mount("data").unwrap();
    root.open_with("f", OpenOptions::new().read(true).write(true).create(true)).unwrap()
}

// [LOCK-12] [LOCK-13] [LOCK-20] [VIEW-12]
fn mandatory_lock_keeps_views_of_other_sessions_out(on: On) {
    let harness = Harness::start(on);
    let (holder, other) = (harness.session(), harness.session());
    let (held, file) = (open(&holder), open(&other));
    let mut content = bytes(1, 5 * TILES);
    held.write_all_at(&content, 0).unwrap();
    let mandatory = LockOptions { mandatory: true, ..LockOptions::default() };
    let data = bytes(2, 2 * TILES);
    let [own, view] = [&holder, &other].map(|s| s.view(&Datatype::bytes(2).resized(0, 5)).unwrap());
    for tile in [0, 1, 16_383, 16_384, TILES - 1] {
        let at = 5 * tile as u64;
        // What lies between is nobody's.
        for range in [at + 2..at + 5, at + 1..at + 2] {
            let is_touched = range.start == at + 1;
            for kind in [LockKind::Shared, LockKind::Exclusive] {
                held.lock_with(range.clone(), kind, mandatory).unwrap();
                let what = format!("{kind:?} {range:?}");
                let mut found = vec![0; data.len()];
                let read = file.read_view(&view.at(0, 0), &mut found);
                match is_touched && kind == LockKind::Exclusive {
                    true => assert_status(read, Status::LOCKED, &what),
                    false => assert_eq!(read.unwrap().count, data.len(), "{what}"),
                }
                let written = file.write_view(&view.at(0, 0), &data);
                let count = match is_touched {
                    true => written.as_ref().map_or(0, |count| *count),
                    false => written.unwrap(),
                };
                // Whole tiles before the first chunk that the lock is in, or all.
                assert!(
                    if is_touched { count <= 2 * tile + 1 } else { count == data.len() },
                    "{what}: {count}"
                );
                for place in 0..count {
                    content[place / 2 * 5 + place % 2] = data[place];
                }
                let mut now = vec![0; content.len()];
                held.read_exact_at(&mut now, 0).unwrap();
                let locked = range.start as usize..range.end as usize;
                assert_same(&now[locked.clone()], &content[locked], &what);
                content = now;
                assert_eq!(
                    held.write_view(&own.at(0, 0), &vec![tile as u8; data.len()]).unwrap(),
                    data.len()
                );
                held.read_exact_at(&mut content, 0).unwrap();
                held.unlock(range.clone()).unwrap();
            }
        }
    }
}
