//! Atomic mode: transfers under locks that other sessions meet.

use std::sync::Arc;

use adio_dafs::error::Class;
use adio_dafs::file::File;
use dafs_client::{Background, Config, Direction, LockKind, OpenOptions};
use dafs_proto::wire::Features;
use dafs_server::config::ExportKind;
use dafs_tests::faulty::{Fault, Kind};
use dafs_tests::harness::{Harness, On};
use dafs_tests::on_sockets;
use dafs_tests::suite::{bytes, wait_for};

use crate::support::{RDONLY, WRONLY, counter, name, open, opening, requests, run, segment, submit};

on_sockets! {
    atomic_transfer_waits_for_whoever_has_locked_a_part,
    atomic_transfer_waits_for_locks_on_later_pieces_and_gaps,
    atomic_request_does_not_hold_up_the_program,
    atomic_request_that_is_given_up_leaves_no_lock,
    requests_of_atomic_mode_stay_atomic_when_it_ends,
    small_atomic_transfer_is_one_chain,
    small_atomic_writes_that_wait_leave_whoever_has_the_lock_its_slots,
    atomic_write_that_may_be_done_is_not_done_again,
    small_atomic_write_waits_for_those_who_take_their_locks_again,
    atomic_transfer_locks_what_it_covers_and_nothing_else,
    atomic_mode_needs_a_server_that_knows_locks,
    files_open_one_way_alone_are_locked_that_way,
}

fn open_atomic(harness: &Harness, on: On) -> Arc<File> {
    let file = open(&name(harness, on, "f"), &[]);
    file.set_atomic(true).unwrap();
    file
}

// [MPI-85] Storage has carried it out, and another has written since, when the server ends before it says so.
fn atomic_write_that_may_be_done_is_not_done_again(on: On) {
    let (mut harness, faults) = Harness::start_faulty(on, |config| config.drain_ms = 0);
    let file = open_atomic(&harness, on);
    let path = harness.data().join("f");
    run(&file, Direction::Write, &[segment(&mut [1; 8], 0)]).unwrap();
    faults.next(Kind::Write, Fault::Late, 1);
    let outcome = std::thread::scope(|scope| {
        let writes = scope.spawn(|| run(&file, Direction::Write, &[segment(&mut [2; 8], 0)]));
        wait_for("it is written", || std::fs::read(&path).unwrap() == [2; 8]);
        std::fs::write(&path, [3; 8]).unwrap();
        harness.restart();
        writes.join().unwrap()
    });
    assert!(outcome.is_err(), "{outcome:?}");
    assert_eq!(std::fs::read(&path).unwrap(), [3; 8]);
    run(&file, Direction::Write, &[segment(&mut [4; 8], 0)]).unwrap();
}

/// The same file, of a session that knows nothing of MPI.
fn open_plain(harness: &Harness) -> (dafs_client::Session, dafs_client::File) {
    let session = harness.session();
    let export = session.mount("data").unwrap();
    let file = export.open_with("f", OpenOptions::new().read(true).write(true)).unwrap();
    (session, file)
}

// [MPI-60]
fn atomic_transfer_waits_for_whoever_has_locked_a_part(on: On) {
    let harness = Harness::start(on);
    let file = open_atomic(&harness, on);
    let (_session, other) = open_plain(&harness);
    let mut data = bytes(1, 100_000);
    for (direction, kind) in [(Direction::Write, LockKind::Shared), (Direction::Read, LockKind::Exclusive)] {
        for len in [10, 100_000] {
            let lock = other.hold(7..8, kind).unwrap();
            let mut request = submit(&file, direction, &[segment(&mut data[..len], 0)]).unwrap();
            // One that overlaps only itself goes on meanwhile, and its end shows that the first could have been done.
            let mut beside = vec![1; 10];
            assert_eq!(run(&file, Direction::Write, &[segment(&mut beside, 1 << 30)]).unwrap(), 10);
            assert!(!request.test());
            lock.unlock().unwrap();
            request.wait();
            let (moved, result) = request.outcome();
            result.unwrap();
            assert_eq!(moved, len as u64);
        }
    }
    // All is given back.
    other.lock(0..u64::MAX, LockKind::Exclusive).unwrap();
}

// [MPI-60]
fn atomic_transfer_waits_for_locks_on_later_pieces_and_gaps(on: On) {
    let harness = Harness::start(on);
    let file = open_atomic(&harness, on);
    let (_session, other) = open_plain(&harness);
    for method in ["list", "multiple", "sieve", "view"] {
        file.take_hints([("dafs_method", method)]);
        for (direction, kind) in
            [(Direction::Write, LockKind::Shared), (Direction::Read, LockKind::Exclusive)]
        {
            for place in [10_050, 5_000] {
                let mut data = bytes(1, 200);
                let (one, two) = data.split_at_mut(100);
                let list = [segment(one, 100), segment(two, 10_000)];
                let lock = other.hold(place..place + 1, kind).unwrap();
                let mut request = submit(&file, direction, &list).unwrap();
                // Once it waits, it is in the way of others at its first byte. One that overlaps nothing ends meanwhile.
                wait_for("it waits or ends", || {
                    let is_free = other.try_lock(100..101, LockKind::Exclusive).unwrap();
                    other.unlock(100..101).unwrap();
                    request.test() || !is_free
                });
                run(&file, Direction::Write, &[segment(&mut [1; 10], 1 << 20)]).unwrap();
                assert!(!request.test(), "{direction:?} by {method}, {place}");
                lock.unlock().unwrap();
                request.wait();
                assert!(request.outcome().1.is_ok(), "{direction:?} by {method}, {place}");
            }
        }
    }
}

// [MPI-62]
fn atomic_request_does_not_hold_up_the_program(on: On) {
    let harness = Harness::start(on);
    let file = open_atomic(&harness, on);
    let again = open_atomic(&harness, on);
    let (_session, other) = open_plain(&harness);
    let mut data = bytes(1, 50_000);
    // Nobody tests it, and yet its lock goes back: by the same file, another one, and another session.
    let request = submit(&file, Direction::Write, &[segment(&mut data, 0)]).unwrap();
    assert_eq!(run(&file, Direction::Write, &[segment(&mut bytes(2, 100), 0)]).unwrap(), 100);
    assert_eq!(run(&again, Direction::Write, &[segment(&mut bytes(3, 70_000), 10)]).unwrap(), 70_000);
    // The request may not have had its turn yet: it ends when this lock is given back.
    other.hold(0..u64::MAX, LockKind::Exclusive).unwrap().unlock().unwrap();
    drop(request);
}

// [MPI-62]
fn atomic_request_that_is_given_up_leaves_no_lock(on: On) {
    let harness = Harness::start(on);
    let file = open_atomic(&harness, on);
    let (_session, other) = open_plain(&harness);
    let (mut first, mut second) = (bytes(1, 1000), bytes(2, 1000));
    let lock = other.hold(0..1, LockKind::Exclusive).unwrap();
    let begun = submit(&file, Direction::Write, &[segment(&mut first, 0)]).unwrap();
    let waits = submit(&file, Direction::Write, &[segment(&mut second, 0)]).unwrap();
    lock.unlock().unwrap();
    drop(waits);
    drop(begun);
    other.lock(0..u64::MAX, LockKind::Exclusive).unwrap();
}

// [MPI-60] A transfer is what it was begun as, also one whose turn comes later.
fn requests_of_atomic_mode_stay_atomic_when_it_ends(on: On) {
    let harness = Harness::start(on);
    let file = open_atomic(&harness, on);
    let (_session, other) = open_plain(&harness);
    let (mut first, mut second) = (bytes(1, 1000), bytes(2, 1000));
    let lock = other.hold(0..1, LockKind::Exclusive).unwrap();
    let requests =
        [&mut first, &mut second].map(|data| submit(&file, Direction::Write, &[segment(data, 0)]).unwrap());
    file.set_atomic(false).unwrap();
    lock.unlock().unwrap();
    for mut request in requests {
        request.wait();
        assert_eq!(request.outcome(), (1000, Ok(())));
    }
    assert_eq!(counter(&file, "locks"), 2);
}

// [MPI-61]
fn small_atomic_transfer_is_one_chain(on: On) {
    let harness = Harness::start(on);
    let session = harness.session();
    let file = open_atomic(&harness, on);
    let count = |names: &[&str]| requests(&session, names);
    let before = (count(&["Lock"]), count(&["Unlock"]), count(&["Write", "Read"]));
    assert_eq!(run(&file, Direction::Write, &[segment(&mut [1; 100], 50)]).unwrap(), 100);
    assert_eq!(run(&file, Direction::Read, &[segment(&mut [0; 100], 100)]).unwrap(), 50);
    let after = (count(&["Lock"]), count(&["Unlock"]), count(&["Write", "Read"]));
    assert_eq!(after, (before.0 + 2, before.1 + 2, before.2 + 2));
    assert_eq!(
        [counter(&file, "locks"), counter(&file, "written_bytes"), counter(&file, "read_bytes")],
        [2, 100, 50]
    );
    // Without the mode there are none.
    file.set_atomic(false).unwrap();
    run(&file, Direction::Write, &[segment(&mut [1; 100], 50)]).unwrap();
    assert_eq!((count(&["Lock"]), counter(&file, "locks")), (after.0, 2));
}

// [MPI-88] A chain fills all slots but the one in which the holder of the lock writes.
fn small_atomic_writes_that_wait_leave_whoever_has_the_lock_its_slots(on: On) {
    let (harness, faults) = Harness::start_faulty(on, |config| config.slots_max = 3);
    let file = open_atomic(&harness, on);
    file.take_hints([("dafs_method", "multiple")]);
    let (_session, other) = open_plain(&harness);
    let writes = |pieces: &'static [(u64, usize)]| {
        let file = Arc::clone(&file);
        std::thread::spawn(move || {
            let mut memory: Vec<_> = pieces.iter().map(|(_, len)| vec![1; *len]).collect();
            let offsets = pieces.iter().map(|(offset, _)| *offset);
            let list: Vec<_> =
                memory.iter_mut().zip(offsets).map(|(memory, offset)| segment(memory, offset)).collect();
            run(&file, Direction::Write, &list)
        })
    };
    faults.next(Kind::Write, Fault::Hold, 1);
    let holder = writes(&[(0, 10), (90, 10)]);
    faults.wait_for_held(1);
    let small = [writes(&[(96, 8)]), writes(&[(96, 8)])];
    // One waits once nobody else is let pass, behind what is locked.
    wait_for("one waits", || {
        let is_free = other.try_lock(102..103, LockKind::Shared).unwrap();
        other.unlock(102..103).unwrap();
        !is_free
    });
    faults.release();
    let all: Vec<_> = small.into_iter().chain([holder]).collect();
    wait_for("all end", || all.iter().all(std::thread::JoinHandle::is_finished));
    assert_eq!(all.into_iter().map(|one| one.join().unwrap().unwrap()).collect::<Vec<_>>(), [8, 8, 20]);
}

// [MPI-88] After a restart, a server with a state file refuses locks that do not wait.
fn small_atomic_write_waits_for_those_who_take_their_locks_again(on: On) {
    let mut harness = Harness::start_with(on, |config| {
        let ExportKind::Directory(data) = &config.exports[0].kind else { panic!("a directory") };
        config.state_file = Some(data.with_file_name("locks"));
        (config.lease_ms, config.keep_alive_ms) = (1200, 400);
    });
    let file = open_atomic(&harness, on);
    // Without a thread it does not come back.
    let gone = harness.session_with(&Config { background: Background::None, ..Config::default() });
    let export = gone.mount("data").unwrap();
    let other = export.open_with("f", OpenOptions::new().read(true).write(true)).unwrap();
    other.lock(0..1, LockKind::Exclusive).unwrap();
    harness.restart();
    // A write would be in doubt where it has found the connection broken.
    file.size().unwrap();
    assert_eq!(run(&file, Direction::Write, &[segment(&mut [1; 8], 0)]).unwrap(), 8);
    assert_eq!(std::fs::read(harness.data().join("f")).unwrap(), [1; 8]);
}

// [MPI-60]
fn atomic_transfer_locks_what_it_covers_and_nothing_else(on: On) {
    let harness = Harness::start(on);
    let file = open_atomic(&harness, on);
    let (_session, other) = open_plain(&harness);
    let before = other.hold(0..100, LockKind::Exclusive).unwrap();
    let behind = other.hold(10_100..u64::MAX, LockKind::Exclusive).unwrap();
    for method in ["list", "multiple", "sieve", "view"] {
        file.take_hints([("dafs_method", method)]);
        let mut data = bytes(1, 200);
        // Its pieces in an order of their own.
        let (one, two) = data.split_at_mut(100);
        let list = [segment(two, 10_000), segment(one, 100)];
        assert_eq!(run(&file, Direction::Write, &list).unwrap(), 200);
        assert_eq!(run(&file, Direction::Read, &list).unwrap(), 200);
    }
    // Nothing is locked by a transfer of nothing.
    assert_eq!(run(&file, Direction::Write, &[segment(&mut [], 0)]).unwrap(), 0);
    drop((before, behind));
}

// [MPI-63]
fn atomic_mode_needs_a_server_that_knows_locks(on: On) {
    let harness = Harness::start_with(on, |config| config.features = Features::all() - Features::LOCKS);
    let file = open(&name(&harness, on, "f"), &[]);
    let error = file.set_atomic(true).unwrap_err();
    assert_eq!(error.class, Class::Unsupported, "{error}");
    assert!(
        error.message.contains("cannot set atomic mode of") && error.message.contains("locks"),
        "{error}"
    );
    file.set_atomic(false).unwrap();
    assert_eq!(run(&file, Direction::Write, &[segment(&mut [1; 100], 0)]).unwrap(), 100);
    assert_eq!(file.add_to_pointer(1).unwrap_err().class, Class::Unsupported);
}

// [MPI-60]
fn files_open_one_way_alone_are_locked_that_way(on: On) {
    let harness = Harness::start(on);
    let name = name(&harness, on, "f");
    open(&name, &[]);
    let (_session, other) = open_plain(&harness);
    let reads = opening(&name, RDONLY, &[]).open().unwrap();
    let writes = opening(&name, WRONLY, &[]).open().unwrap();
    reads.set_atomic(true).unwrap();
    writes.set_atomic(true).unwrap();
    let mut data = bytes(1, 100_000);
    assert_eq!(run(&writes, Direction::Write, &[segment(&mut data, 0)]).unwrap(), 100_000);
    // Readers keep nobody out who reads.
    let lock = other.hold(0..u64::MAX, LockKind::Shared).unwrap();
    let mut found = vec![0; 100_000];
    assert_eq!(run(&reads, Direction::Read, &[segment(&mut found, 0)]).unwrap(), 100_000);
    assert_eq!(found, data);
    drop(lock);
}
