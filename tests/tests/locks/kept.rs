//! Locks that outlive their owners, and the server.

use dafs_client::{Background, Config, Error, LockOptions, OpenOptions, Session};
use dafs_proto::wire::{
    FileHandle, HEADER_SIZE, Header, LockFlags, LockKind, LockRequest, Opcode, OpenFlags, Resume, Status,
};
use dafs_server::config::{Config as ServerConfig, ExportKind};
use dafs_tests::harness::{Harness, On};
use dafs_tests::on_each_provider_and_three_workers;
use dafs_tests::raw::Raw;
use dafs_tests::suite::{assert_invalid, assert_status};

use super::open;
use LockKind::{Exclusive, Shared};

on_each_provider_and_three_workers! {
    those_who_held_locks_go_first_after_a_restart,
    lock_given_up_while_others_are_awaited_leaves_what_was_taken_again,
    nobody_waits_where_nobody_held_a_lock,
    lock_that_nobody_proves_to_have_had_is_not_taken_again,
    lock_is_not_taken_again_where_others_could_lock_meanwhile,
    grace_ends_where_its_clients_do_not_come_back,
    persistent_lock_is_broken_by_the_end_of_its_owner,
    persistent_lock_outlives_the_server,
    repair_that_is_not_finished_is_to_be_repaired,
    repair_that_nobody_has_begun_is_none,
    whoever_waits_for_a_lock_that_breaks_is_told,
    persistent_lock_is_refused_where_nothing_keeps_it,
    guard_of_a_persistent_lock_leaves_it_to_a_panic,
    lock_that_its_owner_never_knew_of_is_not_broken,
}

const PERSISTENT: LockOptions =
    LockOptions { owner: None, mandatory: false, persistent: true, repair: false };
const REPAIR: LockOptions = LockOptions { repair: true, ..PERSISTENT };

fn start(on: On) -> Harness {
    start_with(on, |_| {})
}

fn start_with(on: On, change: impl FnOnce(&mut ServerConfig)) -> Harness {
    Harness::start_with(on, |config| {
        let ExportKind::Directory(data) = &config.exports[0].kind else { unreachable!("the first is one") };
        config.state_file = Some(data.with_file_name("locks"));
        change(config);
    })
}

// [LOCK-31] [LOCK-32] [LOCK-56]
fn those_who_held_locks_go_first_after_a_restart(on: On) {
    let mut harness = start(on);
    // They come back when they are told to.
    let quiet = Config { background: Background::None, ..Config::default() };
    let (a, b) = (harness.session_with(&quiet), harness.session_with(&quiet));
    let ((_, first), (_, second)) = (open(&a), open(&b));
    first.lock(0..10, Exclusive).unwrap();
    second.lock(20..30, Shared).unwrap();
    harness.restart();
    let late = harness.session();
    let (_, other) = open(&late);
    assert_status(other.try_lock(50..60, Shared).map(drop), Status::GRACE, "before they have come back");
    let waits = other.submit_lock(40..50, Exclusive);
    a.ping().unwrap();
    assert_status(other.try_lock(50..60, Shared).map(drop), Status::GRACE, "one is missing");
    b.ping().unwrap();
    waits.wait().unwrap();
    assert!(!other.try_lock(5..6, Shared).unwrap() && !other.try_lock(20..21, Exclusive).unwrap());
    assert!(other.try_lock(20..21, Shared).unwrap());
    first.write_all_at(b"x", 0).unwrap();
    second.read_at(&mut [0; 1], 0).unwrap();
}

// [CLI-150] [CLI-181] [LOCK-56]
fn lock_given_up_while_others_are_awaited_leaves_what_was_taken_again(on: On) {
    let mut harness = start(on);
    let quiet = Config { background: Background::None, ..Config::default() };
    let (a, b) = (harness.session_with(&quiet), harness.session_with(&quiet));
    let ((_, first), (_, second)) = (open(&a), open(&b));
    first.lock(0..10, Exclusive).unwrap();
    second.lock(20..30, Exclusive).unwrap();
    harness.restart();
    a.ping().unwrap();
    drop(first.submit_lock(0..10, Shared));
    // What follows from its answer is answered too.
    for _ in 0..3 {
        a.ping().unwrap();
    }
    first.write_all_at(b"x", 0).unwrap();
    b.ping().unwrap();
    assert!(!second.try_lock(0..1, Shared).unwrap(), "it is exclusive as before");
}

// [LOCK-32]
fn nobody_waits_where_nobody_held_a_lock(on: On) {
    let mut harness = start(on);
    open(&harness.session());
    harness.restart();
    let session = harness.session();
    assert!(open(&session).1.try_lock(0..1, Exclusive).unwrap());
}

fn reclaim(raw: &mut Raw, file: FileHandle) -> Status {
    let flags = LockFlags::RECLAIM;
    let request = LockRequest { offset: 0, len: 1, owner: 1, kind: Exclusive, flags };
    let mut body = [0; LockRequest::HEAD_SIZE - HEADER_SIZE];
    request.encode(&mut body);
    raw.call(Header::request(Opcode::Lock, file), &body, &[]).header.status
}

// [LOCK-33]
fn lock_that_nobody_proves_to_have_had_is_not_taken_again(on: On) {
    let mut harness = start(on);
    let quiet = Config { background: Background::None, ..Config::default() };
    let session = harness.session_with(&quiet);
    let (_, file) = open(&session);
    file.lock(0..1, Exclusive).unwrap();
    harness.restart();
    let (mut raw, _) = Raw::session(harness.address(), 8);
    let root = raw.mount("data");
    let handle = raw.create(root, b"f");
    assert_eq!(reclaim(&mut raw, handle), Status::NO_RECLAIM, "it had none");
    session.ping().unwrap();
    file.write_all_at(b"x", 0).unwrap();
    assert_eq!(reclaim(&mut raw, handle), Status::NO_RECLAIM, "all have theirs");
}

// [LOCK-14] [CLI-141]
fn lock_is_not_taken_again_where_others_could_lock_meanwhile(on: On) {
    let mut harness = Harness::start(on);
    let quiet = Config { background: Background::None, ..Config::default() };
    let (a, b) = (harness.session_with(&quiet), harness.session_with(&quiet));
    let ((_, lost), (_, kept)) = (open(&a), open(&b));
    lost.lock(0..10, Exclusive).unwrap();
    kept.lock(10..20, Exclusive).unwrap();
    harness.restart();
    let quick = harness.session();
    let (_, other) = open(&quick);
    other.lock(9..10, Shared).unwrap();
    other.unlock(9..10).unwrap();
    match lost.write_at(b"x", 0) {
        Err(Error::Stale { .. }) => {}
        found => panic!("{found:?}"),
    }
    kept.write_all_at(b"x", 10).unwrap();
    assert!(other.try_lock(0..10, Exclusive).unwrap());
}

// [LOCK-30] [LOCK-32]
fn grace_ends_where_its_clients_do_not_come_back(on: On) {
    for has_file in [true, false] {
        let change = |config: &mut ServerConfig| {
            (config.lease_ms, config.keep_alive_ms) = (2000, 100);
        };
        let mut harness = if has_file { start_with(on, change) } else { Harness::start_with(on, change) };
        let (mut gone, _) = Raw::session(harness.address(), 8);
        let root = gone.mount("data");
        let file = gone.create(root, b"f");
        let request = LockRequest { offset: 0, len: 1, owner: 1, kind: Exclusive, flags: LockFlags::empty() };
        let mut body = [0; LockRequest::HEAD_SIZE - HEADER_SIZE];
        request.encode(&mut body);
        assert_eq!(gone.call(Header::request(Opcode::Lock, file), &body, &[]).header.status, Status::OK);
        harness.restart();
        let session = harness.session();
        let (_, file) = open(&session);
        file.lock(0..1, Exclusive).unwrap();
        file.unlock(0..1).unwrap();
        let (mut raw, _) = Raw::session(harness.address(), 8);
        let root = raw.mount("data");
        let handle = raw.create(root, b"g");
        // A file that nobody has locked: where nothing is known it is to be had for a while.
        while reclaim(&mut raw, handle) != Status::NO_RECLAIM {
            session.ping().unwrap();
        }
    }
}

/// A session that goes without a word of its locks.
fn goes(session: Session) {
    drop(session);
}

// [LOCK-40] [LOCK-41] [LOCK-42]
fn persistent_lock_is_broken_by_the_end_of_its_owner(on: On) {
    let harness = start(on);
    let own = Config { client_id: Some([7; 16]), ..Config::default() };
    let (a, b) = (harness.session_with(&own), harness.session());
    let ((export, first), (_, other)) = (open(&a), open(&b));
    first.lock_with(0..10, Exclusive, PERSISTENT).unwrap();
    first.lock_with(20..30, Exclusive, PERSISTENT).unwrap();
    first.unlock(20..30).unwrap();
    first.lock_with(40..50, Exclusive, PERSISTENT).unwrap();
    first.lock(40..50, Shared).unwrap();
    assert!(!other.try_lock(9..12, Shared).unwrap(), "it is held");
    drop((first, export));
    goes(a);
    // The closes of the other session are done when it is gone.
    other.lock(40..50, Exclusive).unwrap();
    assert!(other.try_lock(10..40, Exclusive).unwrap(), "what was given back is whole");
    assert_status(other.try_lock(9..12, Shared).map(drop), Status::LOCK_BROKEN, "asked for");
    assert_status(other.lock(0..1, Exclusive), Status::LOCK_BROKEN, "waited for");
    let found = other.test_lock(0..10, Shared).unwrap().unwrap();
    assert!(found.broken && found.client_id == [7; 16] && found.range == (0..10), "{found:?}");
    // In part, then whole.
    other.lock_with(0..4, Exclusive, REPAIR).unwrap();
    other.unlock(0..4).unwrap();
    other.lock(0..4, Shared).unwrap();
    assert_status(other.lock(0..10, Exclusive), Status::LOCK_BROKEN, "half is repaired");
    other.hold_with(0..10, Exclusive, REPAIR).unwrap().unlock().unwrap();
    other.lock(0..10, Exclusive).unwrap();
}

// [LOCK-40] [LOCK-43] [LOCK-44]
fn persistent_lock_outlives_the_server(on: On) {
    let mut harness = start(on);
    let (a, b) = (harness.session(), harness.session());
    let ((export, first), (_, stays)) = (open(&a), open(&b));
    first.lock_with(0..10, Exclusive, PERSISTENT).unwrap();
    first.lock_with(20..30, Exclusive, PERSISTENT).unwrap();
    first.unlock(25..30).unwrap();
    stays.lock_with(40..50, Exclusive, PERSISTENT).unwrap();
    drop((first, export));
    goes(a);
    harness.restart();
    b.ping().unwrap();
    let c = harness.session();
    let other = open(&c).1;
    assert!(!other.try_lock(40..50, Shared).unwrap(), "it was taken again, and is no broken one");
    assert_status(other.lock(0..1, Shared), Status::LOCK_BROKEN, "the first");
    assert_status(other.lock(24..25, Shared), Status::LOCK_BROKEN, "what was left of the second");
    assert!(other.try_lock(25..30, Exclusive).unwrap(), "it had been given back");
    other.hold_with(0..25, Exclusive, REPAIR).unwrap().unlock().unwrap();
    stays.unlock(40..50).unwrap();
    drop((stays, other, b, c));
    harness.restart();
    assert!(open(&harness.session()).1.try_lock(0..25, Exclusive).unwrap(), "repaired for good");
}

// [LOCK-42]
fn repair_that_is_not_finished_is_to_be_repaired(on: On) {
    let mut harness = start(on);
    for _ in 0..2 {
        let session = harness.session();
        let (export, file) = open(&session);
        file.lock_with(0..10, Exclusive, REPAIR).unwrap();
        drop((export, file));
        goes(session);
        harness.restart();
    }
    let session = harness.session();
    let (_, file) = open(&session);
    assert_status(file.lock(0..1, Shared), Status::LOCK_BROKEN, "after two attempts");
    file.lock_with(0..10, Exclusive, REPAIR).unwrap();
    file.unlock(0..10).unwrap();
    file.lock(0..1, Shared).unwrap();
}

// [LOCK-46]
fn repair_that_nobody_has_begun_is_none(on: On) {
    let harness = start(on);
    let (a, b, c) = (harness.session(), harness.session(), harness.session());
    let ((_, first), (_, other), (_, third)) = (open(&a), open(&b), open(&c));
    first.lock_with(0..10, Exclusive, PERSISTENT).unwrap();
    first.lock(20..30, Exclusive).unwrap();
    drop(first);
    a.ping().unwrap();
    // Granted, and given up with its answer under way or behind it.
    drop(other.submit_lock_with(0..10, Exclusive, REPAIR));
    let mut waits = third.submit_lock(0..1, Shared);
    while !waits.test() {
        b.ping().unwrap();
        c.ping().unwrap();
    }
    assert_status(waits.wait(), Status::LOCK_BROKEN, "nobody has it");
    third.hold_with(0..10, Exclusive, REPAIR).unwrap().unlock().unwrap();
    other.lock(0..1, Shared).unwrap();
}

// [LOCK-41]
fn whoever_waits_for_a_lock_that_breaks_is_told(on: On) {
    let harness = start(on);
    let (a, b) = (harness.session(), harness.session());
    let ((export, first), (_, other)) = (open(&a), open(&b));
    first.lock_with(0..10, Exclusive, PERSISTENT).unwrap();
    let waits = other.submit_lock(5..20, Exclusive);
    b.ping().unwrap();
    std::thread::scope(|scope| {
        let chain = scope
            .spawn(|| other.chain().lock(0..5, Exclusive).write_at(b"x", 0).unlock(0..5).run().map(|_| ()));
        drop((first, export));
        assert_status(waits.wait(), Status::LOCK_BROKEN, "by callback");
        assert_status(chain.join().unwrap(), Status::LOCK_BROKEN, "in a chain");
    });
    goes(a);
}

// [LOCK-45] [WIRE-138]
fn persistent_lock_is_refused_where_nothing_keeps_it(on: On) {
    let harness = Harness::start(on);
    let session = harness.session();
    let (_, file) = open(&session);
    assert_status(file.lock_with(0..1, Exclusive, PERSISTENT), Status::NOT_SUPPORTED, "no state file");
    assert_invalid(file.lock_with(0..1, Shared, PERSISTENT), "shared");
    let harness = start(on);
    let session = harness.session();
    let memory = session.mount("mem").unwrap();
    let file = memory.open_with("f", OpenOptions::new().write(true).create(true)).unwrap();
    assert_status(file.lock_with(0..1, Exclusive, PERSISTENT), Status::NOT_SUPPORTED, "files in memory");
    file.lock(0..1, Exclusive).unwrap();
}

// [LOCK-40]
fn guard_of_a_persistent_lock_leaves_it_to_a_panic(on: On) {
    let harness = start(on);
    let (a, b) = (harness.session(), harness.session());
    let ((_, file), (_, other)) = (open(&a), open(&b));
    let panics = std::panic::AssertUnwindSafe(|| {
        let _guard = file.hold_with(0..1, Exclusive, PERSISTENT).unwrap();
        std::panic::resume_unwind(Box::new(()));
    });
    assert!(std::panic::catch_unwind(panics).is_err());
    drop(file);
    a.ping().unwrap();
    assert_status(other.lock(0..1, Shared), Status::LOCK_BROKEN, "half done");
}

mod sim {
    use std::sync::Arc;
    use std::time::Duration;

    use dafs_proto::transport::sim::{FaultPlan, NodeId};
    use dafs_tests::raw::introduction;
    use dafs_tests::sim::{PORT, World, WorldPlan};

    use super::*;

    /// From one look of a server at its clock to the next.
    const TICK: Duration = Duration::from_millis(100);

    fn calm() -> WorldPlan {
        WorldPlan { network: FaultPlan::calm(), crash_ppm: 0 }
    }

    /// A client by hand, and its file.
    fn by_hand(world: &World, node: u32) -> (Raw, FileHandle) {
        with_slots(world, node, 8)
    }

    fn with_slots(world: &World, node: u32, slots: u16) -> (Raw, FileHandle) {
        let mut raw = Raw::connect_from(Arc::new(world.net().domain(NodeId(node))), &PORT);
        raw.shake(&introduction(&PORT, slots, None)).unwrap();
        let root = raw.mount("data");
        let file = raw.create(root, b"f");
        (raw, file)
    }

    fn lock(raw: &mut Raw, file: FileHandle, offset: u64, flags: LockFlags, deadline_ms: u32) -> Status {
        let request = LockRequest { offset, len: 1, owner: 1, kind: Exclusive, flags };
        let header = Header { deadline_ms, ..Header::request(Opcode::Lock, file) };
        raw.call(header, &request.bytes(), &[]).header.status
    }

    // [LOCK-11] [LOCK-31] [SESS-44] A thread writes the file, and time passes here while it does.
    #[test]
    fn first_lock_expiring_while_its_session_is_written_is_refused() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("locks");
        let world = World::with(0, calm(), move |config| {
            (config.state_file, config.lease_ms) = (Some(path.clone()), u32::MAX);
        });
        let first = |(raw, file): &mut (Raw, FileHandle), deadline_ms| {
            lock(raw, *file, 0, LockFlags::empty(), deadline_ms)
        };
        let mut late = (1..50).map(|node| by_hand(&world, node)).find_map(|mut one| {
            let status = first(&mut one, 1);
            // It was written before any time had passed.
            assert!(status == Status::OK || status == Status::TIMED_OUT, "{status:?}");
            if status == Status::OK {
                one.0.call(Header::request(Opcode::Close, one.1), &[], &[]);
            }
            (status == Status::TIMED_OUT).then_some(one)
        });
        let late = late.as_mut().expect("one whose time was over");
        assert_eq!(first(&mut by_hand(&world, 60), 0), Status::OK, "nobody has it");
        assert_eq!(first(late, 1), Status::LOCKED, "the session is written by now");
    }

    // [SESS-98] A thread writes the file, and leases pass here while it does.
    #[test]
    fn session_whose_only_credit_waits_for_the_file_of_locks_lives() {
        const LEASE: Duration = Duration::from_millis(500);
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("locks");
        let world = World::with(0, calm(), move |config| {
            (config.state_file, config.lease_ms) = (Some(path.clone()), LEASE.as_millis() as u32);
        });
        let waited = (1..50).filter(|node| {
            let (mut raw, file) = with_slots(&world, *node, 1);
            let began = world.net().now();
            assert_eq!(lock(&mut raw, file, u64::from(*node), LockFlags::empty(), 0), Status::OK);
            world.net().now() > began + LEASE + 2 * TICK
        });
        assert!(waited.count() > 0, "the file is always written within a lease");
    }

    // [LOCK-30]
    #[test]
    fn locks_are_reclaimed_for_two_leases_without_a_lock_file() {
        let lease = Duration::from_secs(1);
        // With one worker, and with two.
        for seed in [0, 1] {
            let world = World::with(seed, calm(), move |config| config.lease_ms = lease.as_millis() as u32);
            let (mut raw, file) = by_hand(&world, 1);
            let mut reclaim_at = |time: Duration, offset| {
                while let Some(left) = time.checked_sub(world.net().now()) {
                    world.let_time_pass(left.min(lease / 2));
                    // Who is silent for a lease loses its session.
                    raw.call(Header::request(Opcode::Null, FileHandle(0)), &[], &[]);
                }
                lock(&mut raw, file, offset, LockFlags::RECLAIM, 0)
            };
            assert_eq!(reclaim_at(Duration::ZERO, 0), Status::OK, "at the beginning");
            assert_eq!(reclaim_at(2 * lease - TICK, 1), Status::OK, "before its end");
            assert_eq!(reclaim_at(2 * lease + TICK, 2), Status::NO_RECLAIM, "behind it");
        }
    }

    /// [`None`] from a session that has ended.
    fn try_lock(raw: &mut Raw, file: FileHandle) -> Option<Status> {
        let request = LockRequest { offset: 0, len: 1, owner: 1, kind: Exclusive, flags: LockFlags::empty() };
        let mut header = Header::request(Opcode::Lock, file);
        raw.begin(&mut header);
        raw.send(header, &request.bytes(), &[]);
        let reply = raw.receive()?;
        raw.end(&reply);
        Some(reply.header.status)
    }

    /// Whether the server that comes back has the lease for those who had locks, and no more; `None` where that cannot be seen.
    fn grace_lasts(lease: Duration) -> Option<()> {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("locks");
        let world = World::with(0, calm(), move |config| {
            (config.state_file, config.lease_ms) = (Some(path.clone()), lease.as_millis() as u32);
        });
        // Locks are written to the file by a thread, and time passes here meanwhile: perhaps all that there was.
        let ask = |(raw, file): &mut (Raw, FileHandle), until| {
            let status = try_lock(raw, *file);
            (world.net().now() < until).then_some(status)?
        };
        let until = world.net().now() + lease - TICK;
        assert_eq!(ask(&mut by_hand(&world, 1), until)?, Status::OK);
        world.restart();
        let until = world.net().now() + lease - TICK;
        let mut other = by_hand(&world, 2);
        assert_eq!(ask(&mut other, until)?, Status::GRACE, "right after the restart");
        world.let_time_pass(until.checked_sub(world.net().now())?);
        assert_eq!(try_lock(&mut other.0, other.1), Some(Status::GRACE), "before its end");
        world.let_time_pass(2 * TICK);
        assert_eq!(try_lock(&mut other.0, other.1), Some(Status::OK), "behind it");
        Some(())
    }

    /// A world whose server has a state file, and in it a session that has come back after a restart; the file of that, opened again.
    fn come_back(directory: &std::path::Path, lease: Duration) -> Option<(World, Raw, FileHandle)> {
        let path = directory.join("locks");
        let world = World::with(0, calm(), move |config| {
            (config.state_file, config.lease_ms) = (Some(path.clone()), lease.as_millis() as u32);
        });
        let until = world.net().now() + lease - TICK;
        let connect = |resume| {
            let mut raw = Raw::connect_from(Arc::new(world.net().domain(NodeId(1))), &PORT);
            let welcome = raw.shake(&introduction(&PORT, 8, resume)).unwrap();
            let root = raw.mount("data");
            let file = raw.create(root, b"f");
            (raw, welcome, file)
        };
        let (mut raw, welcome, file) = connect(None);
        assert_eq!(try_lock(&mut raw, file).filter(|_| world.net().now() < until)?, Status::OK);
        drop(raw);
        world.restart();
        let (raw, again, file) = connect(Some(Resume { session: welcome.session, secret: welcome.secret }));
        assert!(!again.resumed);
        Some((world, raw, file))
    }

    /// Whether a session that takes a lock again every now and then is waited for; `None` where that cannot be seen.
    fn slow_one_is_waited_for(lease: Duration) -> Option<()> {
        let directory = tempfile::tempdir().unwrap();
        let (world, mut raw, file) = come_back(directory.path(), lease)?;
        for offset in 0..5 {
            let before = world.net().now();
            assert_eq!(lock(&mut raw, file, offset, LockFlags::RECLAIM, 0), Status::OK, "{offset}");
            (world.net().now() < before + lease / 4).then_some(())?;
            world.let_time_pass(lease / 2);
        }
        Some(())
    }

    // [LOCK-65]
    #[test]
    fn those_who_take_locks_again_are_waited_for_while_they_do() {
        let leases = [1, 4, 16, 64, 256].map(|hours| Duration::from_secs(hours * 3600));
        leases.into_iter().find_map(slow_one_is_waited_for).expect("a file that is written within a lease");
    }

    // [LOCK-63]
    #[test]
    fn locks_are_taken_again_however_long_the_server_stood_still() {
        let directory = tempfile::tempdir().unwrap();
        let lease = Duration::from_secs(256 * 3600);
        let (world, mut raw, file) = come_back(directory.path(), lease).unwrap();
        world.stand_still(3 * lease);
        world.let_time_pass(2 * TICK);
        assert_eq!(lock(&mut raw, file, 0, LockFlags::RECLAIM, 0), Status::OK);
    }

    // [LOCK-32]
    #[test]
    fn nobody_waits_any_more_when_the_last_lock_is_refused() {
        let directory = tempfile::tempdir().unwrap();
        let lease = Duration::from_secs(256 * 3600);
        let (world, mut raw, _) = come_back(directory.path(), lease).unwrap();
        let last = LockFlags::RECLAIM | LockFlags::LAST;
        assert_eq!(lock(&mut raw, FileHandle(77), 0, last, 0), Status::BAD_HANDLE);
        let mut other = by_hand(&world, 2);
        assert_eq!(try_lock(&mut other.0, other.1), Some(Status::OK));
    }

    // [LOCK-32] [LOCK-56]
    #[test]
    fn restart_waits_one_lease_for_absent_lock_owners() {
        let leases = [1, 4, 16, 64, 256].map(|hours| Duration::from_secs(hours * 3600));
        leases.into_iter().find_map(grace_lasts).expect("a file that is written within a lease");
    }
}

// [LOCK-58] It ended between its turn and its asking again; what it had before is broken.
fn lock_that_its_owner_never_knew_of_is_not_broken(on: On) {
    let harness = start(on);
    let (session, other) = (harness.session(), harness.session());
    let (_, held) = open(&session);
    held.lock(0..1, Exclusive).unwrap();
    let (mut raw, _) = Raw::session(harness.address(), 8);
    let root = raw.mount("data");
    let file = raw.open(root, b"f", OpenFlags::READ | OpenFlags::WRITE).header.handle;
    let persistent = LockFlags::PERSISTENT | LockFlags::WAIT | LockFlags::NOTIFY;
    let mut lock = |offset, len| {
        let request = LockRequest { offset, len, owner: 1, kind: Exclusive, flags: persistent };
        raw.call(Header::request(Opcode::Lock, file), &request.bytes(), &[]).header.status
    };
    assert_eq!((lock(1, 1), lock(0, 2)), (Status::OK, Status::WAITING));
    held.unlock(0..1).unwrap();
    assert_eq!(raw.receive().unwrap().header.opcode, Opcode::LockTurn);
    let mut bye = Header::request(Opcode::Bye, FileHandle(0));
    raw.begin(&mut bye);
    raw.send(bye, &[], &[]);
    while raw.receive().is_some() {}
    let (_, file) = open(&other);
    file.lock(0..1, Exclusive).unwrap();
    assert_status(file.lock(1..2, Exclusive), Status::LOCK_BROKEN, "what it knew of");
}
