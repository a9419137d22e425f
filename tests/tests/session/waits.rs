//! What a client costs while it waits.

use std::time::Instant;

use dafs_client::{File, LockKind, OpenOptions, Session, wait_any};
use dafs_tests::harness::{Harness, On};
use dafs_tests::on_each_provider;

on_each_provider! {
    thread_that_waits_sleeps_until_what_it_waits_for_comes,
    threads_waiting_in_one_session_sleep_until_completion,
    thread_waiting_for_several_sessions_sleeps_until_one_completes,
}

/// Waits that are watched, of each thread.
const WAITS: usize = 4;
/// Requests of another client during each of them: it lasts for as long.
const MEANWHILE: u64 = 8000;
/// An unlock and a lock, the start of a wait, and what other threads of the session are told.
const SWITCHES_PER_WAIT: usize = 8;

fn open(session: &Session) -> File {
    let mut options = OpenOptions::new();
    session.mount("data").unwrap().open_with("f", options.read(true).write(true).create(true)).unwrap()
}

/// How often the calling thread has gone to sleep.
fn sleeps() -> u64 {
    let status = std::fs::read_to_string("/proc/thread-self/status").unwrap();
    let line = status.lines().find_map(|line| line.strip_prefix("voluntary_ctxt_switches:")).unwrap();
    line.trim().parse().unwrap()
}

/// So many threads of one session wait, each for a byte of its own, which another client holds for long. Each has a file of its own: an
/// owner that waits for who waits for it is refused.
fn assert_sleeps(on: On, threads: usize) {
    let harness = Harness::start(on);
    let (holder, waiter) = (harness.session(), harness.session());
    let files = |session| (0..threads).map(|_| open(session)).collect::<Vec<_>>();
    let (held, waits) = (files(&holder), files(&waiter));
    let bytes = |thread: usize| thread as u64..thread as u64 + 1;
    let began = Instant::now();
    let slept: Vec<u64> = std::thread::scope(|scope| {
        let lock = |(at, file): (usize, &File)| file.submit_lock(bytes(at), LockKind::Exclusive);
        held.iter().enumerate().map(lock).for_each(|lock| lock.wait().unwrap());
        let waiting: Vec<_> = waits
            .iter()
            .enumerate()
            .map(|(at, file)| {
                scope.spawn(move || {
                    let before = sleeps();
                    for _ in 0..WAITS {
                        file.lock(bytes(at), LockKind::Exclusive).unwrap();
                        file.unlock(bytes(at)).unwrap();
                    }
                    sleeps() - before
                })
            })
            .collect();
        for _ in 0..WAITS {
            for _ in 0..on.rounds(MEANWHILE) {
                holder.ping().unwrap();
            }
            // Whoever comes next waits behind the other side, which waits already: a lock is granted in the order of coming.
            let next: Vec<_> = (held.iter().enumerate())
                .map(|(at, file)| {
                    file.unlock(bytes(at)).unwrap();
                    lock((at, file))
                })
                .collect();
            next.into_iter().for_each(|lock| lock.wait().unwrap());
        }
        held.iter().enumerate().for_each(|(at, file)| file.unlock(bytes(at)).unwrap());
        waiting.into_iter().map(|thread| thread.join().unwrap()).collect()
    });
    let seconds = began.elapsed().as_secs() + 1;
    let max = (WAITS * SWITCHES_PER_WAIT * threads) as u64 + seconds;
    assert!(slept.iter().all(|slept| *slept <= max), "{slept:?} sleeps, of {max} at most");
}

// [CLI-185]
fn thread_that_waits_sleeps_until_what_it_waits_for_comes(on: On) {
    assert_sleeps(on, 1);
}

// [CLI-185]
fn threads_waiting_in_one_session_sleep_until_completion(on: On) {
    assert_sleeps(on, 3);
}

// [CLI-194] [CLI-185]
fn thread_waiting_for_several_sessions_sleeps_until_one_completes(on: On) {
    let harness = Harness::start(on);
    let holder = harness.session();
    let sessions = [harness.session(), harness.session()];
    let (held, files) = (open(&holder), [open(&sessions[0]), open(&sessions[1])]);
    held.lock(0..2, LockKind::Exclusive).unwrap();
    let began = Instant::now();
    let slept = std::thread::scope(|scope| {
        let waiting = scope.spawn(|| {
            let before = sleeps();
            let mut locks: Vec<_> = (0..2)
                .map(|at| files[at].submit_lock(at as u64..at as u64 + 1, LockKind::Exclusive))
                .collect();
            while let Some(place) = wait_any(&mut locks) {
                locks.swap_remove(place).wait().unwrap();
            }
            sleeps() - before
        });
        for byte in 0..2 {
            for _ in 0..on.rounds(MEANWHILE) {
                holder.ping().unwrap();
            }
            held.unlock(byte..byte + 1).unwrap();
        }
        waiting.join().unwrap()
    });
    let max = 2 * SWITCHES_PER_WAIT as u64 + 2 * (began.elapsed().as_secs() + 1);
    assert!(slept <= max, "{slept} sleeps, of {max} at most");
}
