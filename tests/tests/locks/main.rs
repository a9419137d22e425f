//! Byte-range locks between sessions, through a real server.
#![allow(clippy::cast_possible_truncation, reason = "sizes and patterns that the tests choose")]
#![allow(clippy::unwrap_used, clippy::expect_used, reason = "all of this is test code, helpers included")]

use std::time::Duration;

use dafs_client::{
    Config, Error, Export, FenceList, File, LockKind, LockOptions, OpenOptions, Session, Status,
};
use dafs_proto::extent::Extent;
use dafs_proto::transport::Access;
use dafs_proto::wire::{
    FileHandle, Flags, HEADER_SIZE, Header, ListFlags, ListRequest, LockFlags, LockRequest, Method, Opcode,
    Sieve, Stability, encode_lists, lists_size,
};
use dafs_tests::harness::{Harness, On};
use dafs_tests::on_each_provider_and_three_workers;
use dafs_tests::raw::{Raw, introduction, write_body};
use dafs_tests::suite::{Numbers, assert_invalid, assert_status, in_time, wait_for};

mod histories;
mod kept;
mod local;
mod turns;

use LockKind::{Exclusive, Shared};

on_each_provider_and_three_workers! {
    lock_keeps_others_out_until_it_is_given_back,
    lock_is_waited_for_in_the_order_of_coming,
    lock_ends_with_its_file_and_with_its_session,
    lock_of_a_kind_needs_a_file_that_is_open_for_it,
    lock_that_is_waited_for_too_long_is_not_held_later,
    circle_of_waits_is_refused_to_whoever_closes_it,
    mandatory_lock_keeps_reads_and_writes_of_others_out,
    mandatory_lock_in_a_gap_keeps_no_list_out,
    locks_are_held_again_after_a_restart,
    lock_answered_before_a_restart_and_collected_after_it_is_in_doubt,
    locks_that_another_took_after_a_restart_are_lost,
    counter_under_a_lock_counts_every_addition,
    range_that_cannot_be_is_refused,
    chain_locks_writes_and_unlocks_in_one_round_trip,
    chain_that_locks_and_does_not_unlock_leaves_nothing_locked,
    file_that_is_dropped_while_another_thread_waits_gives_its_locks_back,
    waiting_lock_holds_up_neither_fence_nor_shutdown,
    chain_with_waiting_lock_holds_up_neither_fence_nor_shutdown,
}

dafs_tests::on_verbs_three_workers! { counter_under_a_lock_counts_every_addition }

fn open(session: &Session) -> (Export, File) {
    let export = session.mount("data").unwrap();
    let file = export.open_with("f", OpenOptions::new().read(true).write(true).create(true)).unwrap();
    (export, file)
}

// [LOCK-1] [LOCK-2] [LOCK-4] [LOCK-8] [LOCK-16] [LOCK-17]
fn lock_keeps_others_out_until_it_is_given_back(on: On) {
    let harness = Harness::start(on);
    let (a, b) = (harness.session(), harness.session());
    let ((_, a), (_, b)) = (open(&a), open(&b));
    a.lock(10..20, Exclusive).unwrap();
    assert!(!b.try_lock(19..30, Shared).unwrap());
    assert!(b.try_lock(20..30, Exclusive).unwrap() && b.try_lock(0..10, Exclusive).unwrap());
    let conflict = b.test_lock(0..u64::MAX, Shared).unwrap().unwrap();
    assert_eq!((conflict.range, conflict.kind), (10..20, Exclusive));
    // Nothing of what it gives back is its own.
    b.unlock(10..15).unwrap();
    assert!(!b.try_lock(10..11, Shared).unwrap());
    // In part, to a weaker kind, and whole.
    a.unlock(14..20).unwrap();
    assert!(b.try_lock(15..20, Exclusive).unwrap() && !b.try_lock(13..14, Exclusive).unwrap());
    a.lock(10..14, Shared).unwrap();
    assert!(b.try_lock(12..13, Shared).unwrap() && !b.try_lock(12..13, Exclusive).unwrap());
    assert!(!a.try_lock(10..14, Exclusive).unwrap(), "the other holds a part");
    a.unlock(0..u64::MAX).unwrap();
    assert!(b.try_lock(0..u64::MAX, Exclusive).unwrap());
    assert_eq!(b.test_lock(0..u64::MAX, Exclusive).unwrap(), None, "its own is not in its way");
}

// [LOCK-5] [LOCK-6]
fn lock_is_waited_for_in_the_order_of_coming(on: On) {
    let harness = Harness::start(on);
    let holder = harness.session();
    let (_, held) = open(&holder);
    held.lock(0..1, Shared).unwrap();
    let others: Vec<Session> = (0..3).map(|_| harness.session()).collect();
    let files: Vec<File> = others.iter().map(|session| open(session).1).collect();
    let writer = files[0].submit_lock(0..1, Exclusive);
    // The writer waits at the server once a lock that it would let pass is refused for its sake.
    while files[1].try_lock(0..1, Shared).unwrap() {
        files[1].unlock(0..1).unwrap();
    }
    let reader = files[1].submit_lock(0..1, Shared);
    held.unlock(0..1).unwrap();
    writer.wait().unwrap();
    assert!(!files[2].try_lock(0..1, Shared).unwrap(), "the writer has it");
    files[0].unlock(0..1).unwrap();
    reader.wait().unwrap();
    assert!(files[2].try_lock(0..1, Shared).unwrap(), "readers share it");
}

// [LOCK-9]
fn lock_ends_with_its_file_and_with_its_session(on: On) {
    let harness = Harness::start(on);
    let (a, b) = (harness.session(), harness.session());
    let (export, first) = open(&a);
    let second = export.open_with("f", OpenOptions::new().write(true).read(true)).unwrap();
    let (_, other) = open(&b);
    first.lock(0..1, Exclusive).unwrap();
    second.lock(1..2, Exclusive).unwrap();
    drop(first);
    a.flush();
    other.lock(0..1, Exclusive).unwrap();
    assert!(!other.try_lock(1..2, Exclusive).unwrap());
    let waits = other.submit_lock(1..2, Exclusive);
    drop((second, export));
    drop(a);
    waits.wait().unwrap();
}

// [LOCK-3]
fn lock_of_a_kind_needs_a_file_that_is_open_for_it(on: On) {
    let harness = Harness::start(on);
    let session = harness.session();
    let (export, _) = open(&session);
    let reads = export.open_with("f", OpenOptions::new().read(true)).unwrap();
    let writes = export.open_with("f", OpenOptions::new().write(true)).unwrap();
    assert!(reads.try_lock(0..1, Shared).unwrap());
    assert_status(reads.try_lock(2..3, Exclusive), Status::BAD_HANDLE, "alone, to read");
    assert!(writes.try_lock(4..5, Exclusive).unwrap());
    assert_status(writes.try_lock(6..7, Shared), Status::BAD_HANDLE, "shared, to write");
}

// [LOCK-11] [CLI-142]
fn lock_that_is_waited_for_too_long_is_not_held_later(on: On) {
    let harness = Harness::start(on);
    let (a, c) = (harness.session(), harness.session());
    let short = Config { operation_timeout: Some(Duration::from_millis(200)), ..Config::default() };
    let b = harness.session_with(&short);
    let ((_, a), (_, c)) = (open(&a), open(&c));
    let export = in_time(|| b.mount("data"));
    let b = in_time(|| export.open_with("f", OpenOptions::new().read(true).write(true)));
    a.lock(0..1, Exclusive).unwrap();
    match b.lock(0..1, Exclusive) {
        Err(Error::Status { status: Status::TIMED_OUT, .. } | Error::TimedOut { .. }) => {}
        found => panic!("{found:?}"),
    }
    a.unlock(0..1).unwrap();
    c.lock(0..1, Exclusive).unwrap();
}

// [LOCK-7]
fn circle_of_waits_is_refused_to_whoever_closes_it(on: On) {
    let harness = Harness::start(on);
    let (a, b) = (harness.session(), harness.session());
    let ((_, a), (_, b)) = (open(&a), open(&b));
    a.lock(0..1, Exclusive).unwrap();
    b.lock(1..2, Exclusive).unwrap();
    let want = |file: &File, range: std::ops::Range<u64>| match file.lock(range, Exclusive) {
        Ok(()) => 0,
        Err(Error::Status { status: Status::DEADLOCK, .. }) => {
            file.unlock(0..2).unwrap();
            1
        }
        Err(error) => panic!("{error}"),
    };
    let refused = std::thread::scope(|scope| {
        let first = scope.spawn(|| want(&a, 1..2));
        want(&b, 0..1) + first.join().unwrap()
    });
    assert_eq!(refused, 1, "one has both, and the other none");
}

// [LOCK-12] [LOCK-13] [LOCK-20]
fn mandatory_lock_keeps_reads_and_writes_of_others_out(on: On) {
    let harness = Harness::start(on);
    let (a, b) = (harness.session(), harness.session());
    let ((_, a), (export, b)) = (open(&a), open(&b));
    a.write_all_at(&[7; 200_000], 0).unwrap();
    let options = LockOptions { mandatory: true, ..LockOptions::default() };
    a.lock_with(100_000..150_000, Exclusive, options).unwrap();
    let mut buffer = vec![0; 100_000];
    let locked = |result: Result<usize, Error>, what| assert_status(result, Status::LOCKED, what);
    assert_eq!(b.read_at(&mut buffer, 0).unwrap(), 100_000);
    assert_eq!(b.read_at(&mut buffer[..50_000], 150_000).unwrap(), 50_000);
    locked(b.read_at(&mut buffer, 50_000), "a large read");
    locked(b.read_at(&mut buffer[..1], 149_999), "a small read");
    locked(b.write_at(&[1], 100_000), "a small write");
    locked(b.write_at(&buffer, 149_999), "a large write");
    assert_status(b.append(&[1]), Status::LOCKED, "an append");
    assert_status(b.truncate(149_000), Status::LOCKED, "a cut");
    let mut cuts = OpenOptions::new();
    cuts.write(true).truncate(true);
    assert_status(export.open_with("f", &cuts), Status::LOCKED, "an open that cuts");
    assert_status(b.copy_range(0, 10, &b, 149_999), Status::LOCKED, "a copy there");
    assert_status(b.copy_range(149_999, 10, &b, 0), Status::LOCKED, "a copy from there");
    assert_status(b.punch_hole(0, 100_001), Status::LOCKED, "a hole");
    b.truncate(150_000).unwrap();
    let extents = [(0, 10), (149_990, 10)].map(|(offset, len)| Extent::new(offset, len));
    locked(b.write_list(&extents, &[std::io::IoSlice::new(&buffer[..20])]), "a list");
    assert_eq!(a.read_at(&mut buffer, 50_000).unwrap(), 100_000, "its own session is let in");
    // Shared: others read, and do not write.
    a.lock_with(100_000..150_000, Shared, options).unwrap();
    assert_eq!(b.read_at(&mut buffer[..10], 120_000).unwrap(), 10);
    locked(b.write_at(&[1], 120_000), "a write");
    a.unlock(0..u64::MAX).unwrap();
    b.write_at(&[1], 120_000).unwrap();
}

// [LIST-9] Over shared memory what is dense is read with its gaps.
fn mandatory_lock_in_a_gap_keeps_no_list_out(on: On) {
    let harness = Harness::start(on);
    let (a, b) = (harness.session(), harness.session());
    let ((_, a), (_, b)) = (open(&a), open(&b));
    let data = dafs_tests::suite::bytes(1, 1000);
    a.write_all_at(&data, 0).unwrap();
    let options = LockOptions { mandatory: true, ..LockOptions::default() };
    let extents: Vec<Extent> = (0..12).map(|at| Extent::new(64 * at, 33)).collect();
    let mut found = vec![0; 12 * 33];
    let mut read =
        || b.read_list(&extents, &mut [std::io::IoSliceMut::new(&mut found)]).map(|read| read.count);
    a.lock_with(40..50, Exclusive, options).unwrap();
    assert_eq!(read().unwrap(), 12 * 33);
    a.lock_with(96..97, Exclusive, options).unwrap();
    assert_status(read(), Status::LOCKED, "a list whose second extent ends there");
    a.unlock(96..97).unwrap();
    assert_eq!(read().unwrap(), 12 * 33);
    let expected: Vec<u8> = data.chunks(64).take(12).flat_map(|chunk| chunk[..33].to_vec()).collect();
    assert!(found == expected);
}

/// A write by RDMA that its client serves when it likes, begun before the lock.
// [LOCK-13]
#[test]
fn write_begun_before_a_mandatory_lock_spares_its_range() {
    const LEN: usize = 100_000;
    let harness = Harness::start(On::Tcp);
    let session = harness.session();
    let options = LockOptions { mandatory: true, ..LockOptions::default() };
    let (_, file) = open(&session);
    for is_list in [false, true] {
        let (mut raw, _) = Raw::session(harness.address(), 8);
        let root = raw.mount("data");
        let opened = raw.create(root, b"f");
        let region = raw.region(LEN, Access::all());
        region.memory().span().write_from(0, &vec![1; LEN]);
        let segment = [region.range().key.0, region.range().offset, LEN as u64];
        let (opcode, body, payload) = match is_list {
            false => (Opcode::Write, write_body(0, LEN as u32, Some(segment)), Vec::new()),
            true => {
                let extents = [Extent::new(0, 50_000), Extent::new(60_000, 50_000)];
                let mut payload = vec![0; lists_size(2, 1)];
                encode_lists(extents.into_iter(), &[segment], &mut payload);
                (Opcode::WriteList, direct_list(LEN as u32).bytes().to_vec(), payload)
            }
        };
        let mut header = Header::request(opcode, opened);
        raw.begin(&mut header);
        raw.send(header, &body, &payload);
        wait_for("it has begun", || session.statistics().unwrap().in_flight > 0);
        file.lock_with(0..u64::MAX, Exclusive, options).unwrap();
        file.write_all_at(&[7; LEN], 0).unwrap();
        let reply = raw.receive().unwrap();
        assert_eq!(reply.header.status, Status::LOCKED, "list: {is_list}");
        let mut found = vec![0; LEN];
        file.read_exact_at(&mut found, 0).unwrap();
        assert!(found.iter().all(|byte| *byte == 7), "list: {is_list}");
        file.unlock(0..u64::MAX).unwrap();
    }
}

/// A write of two extents, from one segment of memory.
fn direct_list(len: u32) -> ListRequest {
    ListRequest {
        len,
        method: Method::Direct,
        stability: Stability::Unstable,
        sieve: Sieve::Auto,
        flags: ListFlags::empty(),
        extent_count: 2,
        segment_count: 1,
    }
}

// [LOCK-67]
fn locks_are_held_again_after_a_restart(on: On) {
    let mut harness = Harness::start(on);
    let a = harness.session();
    let (_, file) = open(&a);
    file.lock(0..10, Exclusive).unwrap();
    file.lock(20..30, Shared).unwrap();
    file.unlock(4..6).unwrap();
    harness.restart();
    a.ping().unwrap();
    let b = harness.session();
    let (_, other) = open(&b);
    assert!(!other.try_lock(0..1, Shared).unwrap() && !other.try_lock(9..10, Shared).unwrap());
    assert!(other.try_lock(4..6, Exclusive).unwrap());
    assert!(other.try_lock(20..30, Shared).unwrap() && !other.try_lock(29..30, Exclusive).unwrap());
    file.write_all_at(&[1], 0).unwrap();
}

// [CLI-105] [LOCK-67]
fn lock_answered_before_a_restart_and_collected_after_it_is_in_doubt(on: On) {
    let mut harness = Harness::start(on);
    let a = harness.session();
    let (_, file) = open(&a);
    let early = file.submit_lock(0..10, Exclusive);
    // Answered after it.
    a.ping().unwrap();
    harness.restart();
    a.ping().unwrap();
    let (_, other) = open(&harness.session());
    assert!(other.try_lock(0..10, Exclusive).unwrap(), "nobody has locked it in the new session");
    let told = early.wait();
    assert!(matches!(told, Err(Error::InDoubt { .. })), "{told:?}");
    assert!(!file.try_lock(0..10, Exclusive).unwrap());
    other.unlock(0..10).unwrap();
    file.lock(0..10, Exclusive).unwrap();
}

// [CLI-141]
fn locks_that_another_took_after_a_restart_are_lost(on: On) {
    let mut harness = Harness::start(on);
    let (a, spare) = (harness.session(), harness.session());
    let (export, file) = open(&a);
    let unlocked = export.open_with("f", OpenOptions::new().write(true)).unwrap();
    let (_, other) = open(&spare);
    file.lock(0..10, Exclusive).unwrap();
    other.lock(50..60, Exclusive).unwrap();
    harness.restart();
    spare.ping().unwrap();
    // Who comes back first has it.
    if other.try_lock(0..70, Exclusive).unwrap() {
        match file.write_all_at(&[1], 0) {
            Err(Error::Stale { .. }) => {}
            found => panic!("{found:?}"),
        }
    } else {
        file.write_all_at(&[1], 0).unwrap();
    }
    unlocked.write_all_at(&[1], 5).unwrap();
}

// [LOCK-1] [LOCK-5]
fn counter_under_a_lock_counts_every_addition(on: On) {
    let harness = Harness::start(on);
    let first = harness.session();
    open(&first).1.write_all_at(&[0; 8], 0).unwrap();
    let rounds = on.rounds(50);
    std::thread::scope(|scope| {
        for seed in 0..4 {
            let session = harness.session();
            scope.spawn(move || {
                let (_, file) = open(&session);
                let mut numbers = Numbers::new(seed);
                for _ in 0..rounds {
                    let guard = file.hold(0..8 + numbers.below(8), Exclusive).unwrap();
                    let mut counter = [0; 8];
                    file.read_exact_at(&mut counter, 0).unwrap();
                    file.write_all_at(&(u64::from_le_bytes(counter) + 1).to_le_bytes(), 0).unwrap();
                    if numbers.below(2) == 0 {
                        guard.unlock().unwrap();
                    }
                }
            });
        }
    });
    let mut counter = [0; 8];
    open(&first).1.read_exact_at(&mut counter, 0).unwrap();
    assert_eq!(u64::from_le_bytes(counter), 4 * rounds);
}

// [WIRE-138]
fn range_that_cannot_be_is_refused(on: On) {
    let harness = Harness::start(on);
    let (_, file) = open(&harness.session());
    assert_invalid(file.try_lock(5..5, Shared), "empty");
    #[allow(clippy::reversed_empty_ranges, reason = "it is what is tested")]
    let backward = 6..5;
    assert_invalid(file.unlock(backward), "backward");
    assert!(file.try_lock(u64::MAX - 1..u64::MAX, Exclusive).unwrap());
}

// [CLI-143] [LOCK-17]
fn chain_locks_writes_and_unlocks_in_one_round_trip(on: On) {
    let harness = Harness::start(on);
    let (a, b) = (harness.session(), harness.session());
    let ((export, a), (_, b)) = (open(&a), open(&b));
    let mut read = [0; 4];
    let chain = a.chain().lock(0..4, Exclusive).write_at(b"here", 0).read_at(&mut read, 0);
    assert_eq!(chain.unlock(0..4).run().unwrap().counts, [4, 4]);
    assert_eq!(read, *b"here");
    assert!(b.try_lock(0..4, Exclusive).unwrap(), "it was given back");
    // It waits for others, the file's own locks among them.
    b.unlock(0..4).unwrap();
    a.lock(0..4, Shared).unwrap();
    std::thread::scope(|scope| {
        let chain = scope.spawn(|| a.chain().lock(0..4, Exclusive).write_at(b"then", 0).unlock(0..4).run());
        // It waits once nobody else is let pass.
        while b.try_lock(0..4, Shared).unwrap() {
            b.unlock(0..4).unwrap();
        }
        a.unlock(0..4).unwrap();
        assert_eq!(chain.join().unwrap().unwrap().counts, [4]);
    });
    // Or it does not wait, and does nothing.
    b.lock(3..4, Shared).unwrap();
    let refused = a.chain().try_lock(0..4, Exclusive).write_at(b"lost", 0).unlock(0..4).run();
    assert_status(refused, Status::LOCKED, "a lock that would wait");
    b.unlock(3..4).unwrap();
    a.chain().try_lock(0..4, Exclusive).read_at(&mut read, 0).unlock(0..4).run().unwrap();
    assert_eq!(read, *b"then");
    // Where it breaks off, the lock does not stay.
    let reads = export.open_with("f", OpenOptions::new().read(true)).unwrap();
    let broken = reads.chain().lock(0..4, Shared).write_at(b"not", 0).unlock(0..4).run();
    assert_status(broken, Status::BAD_HANDLE, "a write to a file that is read");
    assert!(b.try_lock(0..4, Exclusive).unwrap());
}

// [CLI-143]
fn chain_that_locks_and_does_not_unlock_leaves_nothing_locked(on: On) {
    let harness = Harness::start(on);
    let (session, other) = (harness.session(), harness.session());
    let ((export, file), (_, other)) = (open(&session), open(&other));
    let mut options = OpenOptions::new();
    options.read(true).write(true);
    for _ in 0..2 {
        let chain = file.chain().lock(0..4, Exclusive).lock(8..12, Shared).write_at(b"here", 0);
        chain.unlock(8..12).run().unwrap();
        let opened =
            export.chain().open("f", &options).lock(0..4, Exclusive).write_at(b"then", 0).run().unwrap();
        assert!(opened.file.is_some() && other.try_lock(0..12, Exclusive).unwrap());
        other.unlock(0..12).unwrap();
    }
}

// [CLI-47] [LOCK-2]
fn file_that_is_dropped_while_another_thread_waits_gives_its_locks_back(on: On) {
    let harness = Harness::start(on);
    let (session, other) = (harness.session(), harness.session());
    let ((_, held), (_, waits), (_, other)) = (open(&session), open(&session), open(&other));
    held.lock(0..4, Shared).unwrap();
    std::thread::scope(|scope| {
        let waiting = scope.spawn(|| waits.lock(0..4, Exclusive));
        // It waits once nobody else is let pass.
        while other.try_lock(0..4, Shared).unwrap() {
            other.unlock(0..4).unwrap();
        }
        drop(held);
        waiting.join().unwrap().unwrap();
    });
    // Nor does another session wait for the next call of this one.
    drop(waits);
    other.lock(0..4, Exclusive).unwrap();
}

// [LOCK-21] [LOCK-22]
fn waiting_lock_holds_up_neither_fence_nor_shutdown(on: On) {
    let mut harness = Harness::start_with(on, |config| config.drain_ms = u32::MAX);
    let named = |id: u8| Config { client_id: Some([id; 16]), ..Config::default() };
    let (a, b) = (harness.session_with(&named(1)), harness.session_with(&named(2)));
    let ((export, held), (_, other)) = (open(&a), open(&b));
    held.lock(0..1, Shared).unwrap();
    let waits = other.submit_lock(0..1, Exclusive);
    // It waits once nobody else is let pass.
    let (_, third) = open(&harness.session_with(&named(3)));
    while third.try_lock(0..1, Shared).unwrap() {
        third.unlock(0..1).unwrap();
    }
    export.set_fence_list(&FenceList::of_clients(&[[2; 16]])).unwrap();
    export.set_fence_list(&FenceList::default()).unwrap();
    harness.stop();
    drop(waits);
}

// [LOCK-21] [LOCK-22] [ACC-107]
fn chain_with_waiting_lock_holds_up_neither_fence_nor_shutdown(on: On) {
    let mut harness = Harness::start_with(on, |config| config.drain_ms = u32::MAX);
    let session = harness.session();
    let (export, held) = open(&session);
    held.lock(0..1, Shared).unwrap();
    let (mut raw, _) = Raw::session(harness.address(), 8);
    let root = raw.mount("data");
    let file = raw.create(root, b"f");
    let lock_and_write = |raw: &mut Raw, file: FileHandle| {
        let flags = LockFlags::WAIT;
        let mut body = [0; LockRequest::HEAD_SIZE - HEADER_SIZE];
        LockRequest { offset: 0, len: 1, owner: 1, kind: Exclusive, flags }.encode(&mut body);
        let mut lock = Header { flags: Flags::CHAIN_FORWARD, ..Header::request(Opcode::Lock, file) };
        raw.begin(&mut lock);
        raw.send(lock, &body, &[]);
        let mut write = Header { flags: Flags::CHAIN_BACK, ..Header::request(Opcode::Write, file) };
        raw.begin(&mut write);
        raw.send(write, &write_body(0, 1, None), b"x");
        // Both are there once a request behind them is answered, and the lock waits.
        raw.call(Header::request(Opcode::Null, FileHandle(0)), &[], &[]);
    };
    lock_and_write(&mut raw, file);
    let client = introduction(harness.address(), 1, None).client_id;
    export.set_fence_list(&FenceList::of_clients(&[client])).unwrap();
    // It goes on, and meets the fence.
    held.unlock(0..1).unwrap();
    let statuses = [Status::OK, Status::FENCED].map(|expected| {
        let reply = raw.receive().unwrap();
        raw.end(&reply);
        (reply.header.status, expected)
    });
    assert!(statuses.iter().all(|(found, expected)| found == expected), "{statuses:?}");
    assert_eq!(export.metadata("f").unwrap().size, 0);
    export.set_fence_list(&FenceList::default()).unwrap();
    // What the chain has locked it gives back with its handle.
    raw.call(Header::request(Opcode::Close, file), &[], &[]);
    let file = raw.create(root, b"f");
    held.lock(0..1, Shared).unwrap();
    lock_and_write(&mut raw, file);
    harness.stop();
}
