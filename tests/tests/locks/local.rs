//! Locks that the processes of the server's host see and set (`local_locks`).

use std::ops::Range;
use std::os::fd::OwnedFd;

use dafs_client::{Error, LockKind, LockOptions};
use dafs_tests::harness::{Harness, On};
use dafs_tests::locking_process::LockingProcess;
use dafs_tests::on_each_provider_and_three_workers;
use dafs_tests::suite::wait_for;
use nix::fcntl::{FcntlArg, fcntl};

use super::open;
use LockKind::{Exclusive, Shared};

on_each_provider_and_three_workers! {
    locks_of_clients_keep_processes_out,
    locks_of_processes_keep_clients_out,
    lock_waits_for_a_process_and_gets_it,
    lock_that_gives_up_waiting_for_a_process_is_not_held_later,
    lock_that_a_process_took_while_the_server_was_down_is_lost,
    locks_of_an_export_without_the_setting_are_shown_to_nobody,
    many_waits_for_processes_are_all_tried,
}

fn start(on: On) -> Harness {
    Harness::start_with(on, |config| config.exports[0].local_locks = true)
}

/// The file as a program of this host has it open, whatever the server has.
struct Local(OwnedFd);

impl Local {
    fn open(harness: &Harness) -> Self {
        let mut options = std::fs::OpenOptions::new();
        Self(options.read(true).write(true).open(harness.data().join("f")).unwrap().into())
    }

    fn set(&self, range: Range<i64>, kind: i32) -> bool {
        let lock = libc::flock {
            l_type: kind as i16,
            l_whence: libc::SEEK_SET as i16,
            l_start: range.start,
            l_len: range.end - range.start,
            l_pid: 0,
        };
        match fcntl(&self.0, FcntlArg::F_OFD_SETLK(&lock)) {
            Ok(_) => true,
            Err(nix::errno::Errno::EAGAIN) => false,
            Err(errno) => panic!("{errno}"),
        }
    }

    /// Which of the first offsets it could have so: a digit each.
    fn free(&self, kind: i32) -> String {
        let is_free = |at: i64| {
            let is_free = self.set(at..at + 1, kind);
            self.set(at..at + 1, libc::F_UNLCK);
            if is_free { '1' } else { '0' }
        };
        (0..10).map(is_free).collect()
    }

    fn free_to_write(&self) -> String {
        self.free(libc::F_WRLCK)
    }

    fn free_to_read(&self) -> String {
        self.free(libc::F_RDLCK)
    }
}

// [LOCK-50] [LOCK-52]
fn locks_of_clients_keep_processes_out(on: On) {
    let harness = start(on);
    let (session, other) = (harness.session(), harness.session());
    let ((_, a), (_, b)) = (open(&session), open(&other));
    let local = Local::open(&harness);
    a.lock(2..6, Exclusive).unwrap();
    assert_eq!((local.free_to_write(), local.free_to_read()), ("1100001111".into(), "1100001111".into()));
    // Less of it, in kind and range.
    a.lock(2..4, Shared).unwrap();
    b.lock(3..4, Shared).unwrap();
    assert_eq!((local.free_to_write(), local.free_to_read()), ("1100001111".into(), "1111001111".into()));
    a.unlock(0..5).unwrap();
    assert_eq!((local.free_to_write(), local.free_to_read()), ("1110101111".into(), "1111101111".into()));
    b.lock(8..u64::MAX, Exclusive).unwrap();
    b.lock(u64::MAX - 5..u64::MAX, Shared).unwrap();
    assert_eq!(local.free_to_read(), "1111101100");
    // A handle that is closed, and a session that ends.
    drop(a);
    session.ping().unwrap();
    assert_eq!((local.free_to_write(), local.free_to_read()), ("1110111100".into(), "1111111100".into()));
    b.unlock(0..u64::MAX).unwrap();
    assert_eq!(local.free_to_write(), "1111111111");
}

// [LOCK-51] [LOCK-53]
fn locks_of_processes_keep_clients_out(on: On) {
    let harness = start(on);
    let session = harness.session();
    let (_, file) = open(&session);
    let local = Local::open(&harness);
    assert!(local.set(3..5, libc::F_RDLCK));
    let process = LockingProcess::start(&harness.data().join("f"), 6..8);
    for (range, kind, is_free) in [
        (0..3, Exclusive, true),
        (2..4, Exclusive, false),
        (2..5, Shared, true),
        (5..6, Exclusive, true),
        (5..7, Shared, false),
        (8..u64::MAX, Exclusive, true),
        (0..u64::MAX, Shared, false),
    ] {
        assert_eq!(file.try_lock(range.clone(), kind).unwrap(), is_free, "{range:?} {kind:?}");
        let conflict = file.test_lock(range.clone(), kind).unwrap();
        assert_eq!(conflict.is_none(), is_free, "{range:?} {kind:?}");
    }
    let conflict = file.test_lock(0..10, Shared).unwrap().unwrap();
    assert!(conflict.is_local());
    assert_eq!((conflict.range, conflict.kind), (6..8, Exclusive));
    assert_eq!(conflict.owner, u64::from(process.id()));
    assert_eq!(file.test_lock(0..4, Exclusive).unwrap().unwrap().owner, 0, "it is that of a description");
    drop(process);
    assert!(file.try_lock(5..8, Exclusive).unwrap());
}

// [LOCK-51]
fn lock_waits_for_a_process_and_gets_it(on: On) {
    let harness = start(on);
    let (a, b) = (harness.session(), harness.session());
    let ((_, a_file), (_, b_file)) = (open(&a), open(&b));
    let process = LockingProcess::start(&harness.data().join("f"), 0..10);
    let first = a_file.submit_lock(5..6, Exclusive);
    a.ping().unwrap();
    let second = b_file.submit_lock(5..6, Shared);
    b.ping().unwrap();
    assert!(!b_file.try_lock(5..6, Shared).unwrap());
    drop(process);
    first.wait().unwrap();
    assert!(!b_file.try_lock(5..6, Shared).unwrap(), "in the order of coming");
    a_file.unlock(5..6).unwrap();
    second.wait().unwrap();
    let local = Local::open(&harness);
    assert_eq!((local.free_to_write(), local.free_to_read()), ("1111101111".into(), "1111111111".into()));
}

// [LOCK-11] [LOCK-26]
fn lock_that_gives_up_waiting_for_a_process_is_not_held_later(on: On) {
    let harness = start(on);
    let session = harness.session();
    let (_, file) = open(&session);
    let local = Local::open(&harness);
    assert!(local.set(0..1, libc::F_WRLCK));
    let wait = file.submit_lock(0..1, Exclusive);
    session.ping().unwrap();
    assert!(matches!(wait.cancel(), Err(Error::Cancelled)));
    let later = LockOptions { owner: Some(7), ..LockOptions::default() };
    let wait = file.submit_lock_with(0..2, Shared, later);
    session.ping().unwrap();
    local.set(0..1, libc::F_UNLCK);
    wait.wait().unwrap();
    assert_eq!(local.free_to_write(), "0011111111");
    assert!(file.try_lock(0..2, Shared).unwrap(), "nobody waits to write");
}

// [LOCK-54]
fn lock_that_a_process_took_while_the_server_was_down_is_lost(on: On) {
    let mut harness = start(on);
    let session = harness.session();
    let ((_, lost), (_, kept)) = (open(&session), open(&session));
    lost.lock(0..2, Exclusive).unwrap();
    kept.lock(4..6, Exclusive).unwrap();
    let local = Local::open(&harness);
    assert_eq!(local.free_to_write(), "0011001111");
    harness.stop();
    // A program that another test is starting has the server's files until it runs.
    wait_for("the server's locks are gone", || local.set(1..2, libc::F_WRLCK));
    harness.restart();
    match lost.write_all_at(&[1], 0) {
        Err(Error::Stale { .. }) => {}
        other => panic!("written under a lock that is lost: {other:?}"),
    }
    kept.write_all_at(&[1], 4).unwrap();
    local.set(1..2, libc::F_UNLCK);
    assert_eq!(local.free_to_read(), "1111001111", "the other is held again");
}

fn locks_of_an_export_without_the_setting_are_shown_to_nobody(on: On) {
    let harness = Harness::start(on);
    let session = harness.session();
    let (_, file) = open(&session);
    let local = Local::open(&harness);
    assert!(local.set(3..5, libc::F_WRLCK));
    file.lock(0..u64::MAX, Exclusive).unwrap();
    assert_eq!(local.free_to_write(), "1111111111");
}

// [LOCK-51]
fn many_waits_for_processes_are_all_tried(on: On) {
    let harness = start(on);
    let session = harness.session();
    let (_, file) = open(&session);
    let local = Local::open(&harness);
    assert!(local.set(0..1000, libc::F_WRLCK));
    let waits: Vec<_> = (0..600).map(|at| file.submit_lock(at..at + 1, Exclusive)).collect();
    session.ping().unwrap();
    // The last goes while all before still wait.
    local.set(599..600, libc::F_UNLCK);
    let mut waits = waits.into_iter();
    waits.next_back().unwrap().wait().unwrap();
    local.set(0..1000, libc::F_UNLCK);
    waits.for_each(|wait| wait.wait().unwrap());
    assert!(!local.set(0..600, libc::F_RDLCK));
}
