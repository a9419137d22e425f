//! Groups of which something changes while their members are moved together.

use dafs_client::{Config, LockOptions, MethodOverride, Pending, Sieve, Status, Transferred};
use dafs_proto::wire::LockKind;
use dafs_tests::faulty::{Fault, Faults, Kind};
use dafs_tests::harness::{Harness, On};
use dafs_tests::on_sockets;
use dafs_tests::suite::assert_same;

use super::groups::{Member, Mesh};

on_sockets! {
    writes_of_a_group_before_a_failed_call_are_not_repeated,
    member_that_goes_takes_its_memory_along,
    mandatory_lock_of_a_member_keeps_the_others_out,
}

/// Groups that are tried until some were moved together: their members have to arrive within the server's patience.
const TRIES: u64 = 300;

/// Segments of a round, of all members together.
const ROUND: u64 = 16_384;

/// Memory at hand over every provider: through buffers, over tcp, nothing waits for others.
fn inline() -> Config {
    Config { method: MethodOverride::Inline, ..Config::default() }
}

fn member(harness: &Harness) -> Member {
    let Member { session, file } = Member::of(harness.session_with(&inline()), "data");
    Member { file: file.with_explanation(), session }
}

/// Storage holds so many calls; false where all of these end before.
fn holds(faults: &Faults, count: usize, writes: &mut [Pending<Transferred<Vec<u8>>>]) -> bool {
    while faults.held() < count {
        if writes.iter_mut().all(Pending::test) {
            return false;
        }
        std::thread::yield_now();
    }
    true
}

// [VIEW-13] What a round has written counts for each of its members, wherever their places are: others may have changed it since.
fn writes_of_a_group_before_a_failed_call_are_not_repeated(on: On) {
    const SEEN: usize = 1000;
    let (harness, faults) = Harness::start_faulty(on, |_| {});
    let other = Member::of(harness.session(), "data");
    let members = [0; 4].map(|_| member(&harness));
    let mesh = Mesh { row: 12, columns: (0..4).map(|place| (3 * place, 3)).collect(), rows: ROUND / 4 };
    // 1,024 parts in each call, and no gaps.
    let calls = (ROUND / 1024) as usize;
    let mut met = 0;
    for group in 1..TRIES {
        faults.next(Kind::Write, Fault::Pass, calls - 1);
        faults.next(Kind::Write, Fault::FailLate(Status::IO), 1);
        let mut writes = mesh.write(&members, 0, group, 100 * group);
        let is_held = holds(&faults, 1, &mut writes);
        let mut found = [0; SEEN];
        let count = other.file.read_at(&mut found, 0).unwrap();
        if is_held {
            other.file.write_all_at(&[0xee; SEEN], 0).unwrap();
        }
        faults.release();
        let writes: Vec<_> = writes.into_iter().map(Pending::wait).collect();
        if is_held && writes.iter().any(|write| write.result.as_ref().ok() != Some(&mesh.len(0))) {
            // They were not moved together: one of them met the fault itself.
            continue;
        }
        let mut model = mesh.ended(0, writes, group);
        let was_written = is_held && count == SEEN && found == model[..SEEN];
        let mut all = vec![0; model.len()];
        other.file.read_exact_at(&mut all, 0).unwrap();
        if was_written {
            model[..SEEN].fill(0xee);
            met += 1;
        }
        if was_written || !is_held {
            assert_same(&all, &model, &format!("what another wrote over group {group}"));
        }
        if met == 5 {
            return;
        }
    }
    assert!(met > 0, "no group had written its first bytes when its last call failed");
}

// [VIEW-13] Of a member whose session ends nothing more is moved than what is under way.
fn member_that_goes_takes_its_memory_along(on: On) {
    const ROWS: u64 = 4200;
    let (harness, faults) = Harness::start_faulty(on, |_| {});
    let watcher = harness.session();
    let mesh = Mesh { row: 8, columns: (0..4).map(|place| (2 * place, 2)).collect(), rows: ROWS };
    let mut members: Vec<Member> = (0..3).map(|_| member(&harness)).collect();
    let mut met = 0;
    for group in 1..TRIES {
        members.insert(0, member(&harness));
        members[0].file.truncate(0).unwrap();
        faults.next(Kind::Write, Fault::Hold, 1);
        let mut writes = mesh.write(&members, 0, group, 100 * group);
        faults.wait_for_held(1);
        let gone = members.remove(0);
        let mut its_own = writes.remove(0);
        let is_answered = its_own.test();
        gone.session.close();
        drop((gone, its_own));
        while watcher.statistics().unwrap().sessions > 4 {
            std::thread::yield_now();
        }
        faults.release();
        let model = mesh.written(1, writes, group);
        let told = members.iter().map(|member| member.file.take_explanation().parts).max().unwrap();
        let mut found = vec![0; model.len()];
        members[1].file.read_exact_at(&mut found, 0).unwrap();
        for index in 1..4 {
            let what = format!("member {index} of group {group}");
            assert_same(&mesh.take(&found, 0, index), &mesh.take(&model, 0, index), &what);
        }
        if is_answered || told < ROUND {
            // It was moved alone.
            continue;
        }
        let its_own = mesh.take(&found, 0, 0);
        let (first, behind) = its_own.split_at((ROUND / 4 * 2) as usize);
        assert!(first.iter().any(|byte| *byte != 0), "group {group}: of the first round");
        assert!(behind.iter().all(|byte| *byte == 0), "group {group}: of a round behind its end");
        met += 1;
        if met == 5 {
            return;
        }
    }
    assert!(met > 0, "no group was moved together with the member that went");
}

// [LOCK-12] [LOCK-13] [LOCK-20] [VIEW-15] Whoever of them moves the bytes of all: each asks for itself.
fn mandatory_lock_of_a_member_keeps_the_others_out(on: On) {
    // Each row is a call of its own, and storage has not all of them at once.
    let mesh = Mesh { row: 4096, columns: vec![(0, 2), (2, 2)], rows: 4200 };
    let last = 4096 * (mesh.rows - 1)..4096 * mesh.rows;
    let mandatory = LockOptions { mandatory: true, ..LockOptions::default() };
    let (harness, faults) = Harness::start_faulty(on, |_| {});
    let members = [0; 2].map(|_| {
        let Member { session, file } = member(&harness);
        Member { file: file.with_sieve(Sieve::Off), session }
    });
    members[0].file.write_all_at(&vec![0; 4096 * mesh.rows as usize], 0).unwrap();
    let mut met = [0; 2];
    for group in 1..TRIES {
        let locks = group as usize % 2;
        let reads = group % 4 >= 2;
        faults.next(if reads { Kind::Read } else { Kind::Write }, Fault::Hold, usize::MAX);
        let transfers =
            if reads { mesh.read(&members, 0, group) } else { mesh.write(&members, 0, group, 100 * group) };
        faults.wait_for_held(1);
        members[locks].file.lock_with(last.clone(), LockKind::Exclusive, mandatory).unwrap();
        faults.release();
        let mut transfers: Vec<_> = transfers.into_iter().map(Pending::wait).collect();
        members[locks].file.unlock(last.clone()).unwrap();
        let told = members.iter().map(|member| member.file.take_explanation().parts).max().unwrap();
        let (own, others) = (transfers.remove(locks), transfers.remove(0));
        assert_eq!(own.result.unwrap(), mesh.len(locks), "group {group}: its own lock");
        match others.result {
            Err(error) => assert_eq!(error.status(), Some(Status::LOCKED), "group {group}"),
            Ok(count) => assert!(!reads && count < mesh.len(0), "group {group}: {count} are written"),
        }
        if !reads {
            let mut found = [0; 4];
            members[0].file.read_exact_at(&mut found, last.start).unwrap();
            let theirs = &found[2 * (1 - locks)..][..2];
            let sent = &others.buffer[others.buffer.len() - 2..];
            assert!(theirs != sent, "group {group}: written below the lock");
        }
        met[usize::from(reads)] += u64::from(told > mesh.rows);
        if met.iter().all(|met| *met >= 4) {
            return;
        }
    }
    assert!(met.iter().all(|met| *met > 0), "{met:?}: no group was moved together");
}
