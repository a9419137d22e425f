//! A session in event loops and in tasks.

use std::collections::HashMap;
use std::os::fd::AsRawFd;
use std::pin::pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::task::{Context, Poll, Wake};
use std::time::Duration;

use dafs_client::{Completions, Error, LockKind, OpenOptions, OperationId, Pending, Result, Session};
use dafs_tests::harness::{Harness, On};
use dafs_tests::on_each_provider_and_three_workers;
use dafs_tests::suite::in_time;
use rustix::event::{PollFd, PollFlags, Timespec, poll};

on_each_provider_and_three_workers! {
    operations_are_told_once_when_they_have_ended,
    descriptor_goes_on_after_the_session_connected_again,
    descriptor_tells_that_the_session_was_closed,
    task_is_woken_when_its_operation_has_ended,
    task_taking_over_an_operation_is_woken_instead,
    operation_ends_at_its_deadline_in_an_event_loop,
    tasks_of_tokio_are_woken_and_their_driver_ends_with_the_session,
}

type Ping = Pending<Result<()>>;

/// Sleeps until the descriptor is readable.
fn sleep(completions: &Completions) {
    let hang = Timespec { tv_sec: 60, tv_nsec: 0 };
    let found = poll(&mut [PollFd::new(completions, PollFlags::IN)], Some(&hang)).unwrap();
    assert_eq!(found, 1, "nothing was told");
}

/// The loop of a program, until so many operations were told.
fn told(completions: &Completions, count: usize) -> Vec<OperationId> {
    let mut told = Vec::new();
    loop {
        while completions.turn() {}
        told.extend(std::iter::from_fn(|| completions.next()));
        if told.len() >= count {
            return told;
        }
        if completions.arm().unwrap() {
            sleep(completions);
        }
    }
}

// [CLI-188] [CLI-191]
fn operations_are_told_once_when_they_have_ended(on: On) {
    let harness = Harness::start(on);
    let session = harness.session();
    let completions = session.completions().unwrap();
    for count in [1, 2, 40] {
        let mut pings: HashMap<OperationId, Ping> =
            (0..count).map(|_| session.submit_ping()).map(|ping| (ping.id().unwrap(), ping)).collect();
        assert_eq!(pings.len(), count);
        for id in told(&completions, count) {
            let ping = pings.remove(&id).expect("each is told once");
            ping.wait().unwrap();
        }
        assert!(pings.is_empty() && completions.next().is_none());
    }
    // What is collected or dropped before is not told.
    session.submit_ping().wait().unwrap();
    drop(session.submit_ping());
    session.ping().unwrap();
    let last = session.submit_ping();
    assert_eq!(told(&completions, 1), [last.id().unwrap()]);
    last.wait().unwrap();
}

// [CLI-189]
fn descriptor_goes_on_after_the_session_connected_again(on: On) {
    let mut harness = Harness::start(on);
    let session = harness.session();
    let completions = session.completions().unwrap();
    let descriptor = completions.as_raw_fd();
    for round in 1..=3 {
        harness.restart();
        let ping = session.submit_ping();
        assert_eq!(told(&completions, 1), [ping.id().unwrap()]);
        ping.wait().unwrap();
        assert_eq!((session.reconnects(), completions.as_raw_fd()), (round, descriptor));
    }
}

// [CLI-188] [CLI-193]
fn descriptor_tells_that_the_session_was_closed(on: On) {
    let harness = Harness::start(on);
    for drops in [false, true] {
        let (holder, session) = (harness.session(), harness.session());
        let open = |session: &Session| {
            let mut options = OpenOptions::new();
            session.mount("data").unwrap().open_with("f", options.write(true).create(true)).unwrap()
        };
        let (held, file) = (open(&holder), open(&session));
        held.lock(0..1, LockKind::Exclusive).unwrap();
        let completions = session.completions().unwrap();
        let lock = file.submit_lock(0..1, LockKind::Exclusive);
        session.flush();
        while !completions.arm().unwrap() {
            while completions.turn() {}
        }
        if drops {
            drop((lock, file, session));
            while !completions.is_over() {
                sleep(&completions);
                while completions.turn() {}
                let _ = completions.arm().unwrap();
            }
            continue;
        }
        session.close();
        assert_eq!(told(&completions, 1), [lock.id().unwrap()]);
        assert!(completions.is_over() && matches!(lock.wait(), Err(Error::Closed)));
    }
}

/// Says that it was woken.
#[derive(Default)]
struct Flag(AtomicBool);

impl Wake for Flag {
    fn wake(self: Arc<Self>) {
        self.0.store(true, Ordering::SeqCst);
    }
}

/// Moves the session along until the task was woken.
fn until_woken(completions: &Completions, flag: &Flag) {
    while !flag.0.swap(false, Ordering::SeqCst) {
        if !completions.turn() && !flag.0.load(Ordering::SeqCst) && completions.arm().unwrap() {
            sleep(completions);
        }
        while completions.next().is_some() {}
    }
}

// [CLI-192]
fn task_is_woken_when_its_operation_has_ended(on: On) {
    let harness = Harness::start(on);
    let session = harness.session();
    let completions = session.completions().unwrap();
    let flag = Arc::new(Flag::default());
    let waker = Arc::clone(&flag).into();
    let mut context = Context::from_waker(&waker);
    for _ in 0..100 {
        let mut pings = pin!(async {
            let (first, second) = (session.submit_ping(), session.submit_ping());
            (second.await, first.await)
        });
        let ended = loop {
            match pings.as_mut().poll(&mut context) {
                Poll::Ready(ended) => break ended,
                Poll::Pending => until_woken(&completions, &flag),
            }
        };
        assert!(ended.0.is_ok() && ended.1.is_ok());
    }
}

// [CLI-192]
fn task_taking_over_an_operation_is_woken_instead(on: On) {
    let harness = Harness::start(on);
    let (holder, session) = (harness.session(), harness.session());
    let open = |session: &Session| {
        session.mount("data").unwrap().open_with("f", OpenOptions::new().write(true).create(true)).unwrap()
    };
    let (held, file) = (open(&holder), open(&session));
    held.lock(0..1, LockKind::Exclusive).unwrap();
    let completions = session.completions().unwrap();
    let (first, second) = (Arc::new(Flag::default()), Arc::new(Flag::default()));
    // It cannot end yet.
    let mut lock = pin!(file.submit_lock(0..1, LockKind::Exclusive));
    for flag in [&first, &second] {
        let waker = Arc::clone(flag).into();
        assert!(lock.as_mut().poll(&mut Context::from_waker(&waker)).is_pending());
    }
    held.unlock(0..1).unwrap();
    until_woken(&completions, &second);
    assert!(!first.0.load(Ordering::SeqCst) && Arc::strong_count(&first) == 1);
    let waker = Arc::clone(&second).into();
    assert!(lock.as_mut().poll(&mut Context::from_waker(&waker)).is_ready());
}

// [CLI-187] [CLI-188]
fn operation_ends_at_its_deadline_in_an_event_loop(on: On) {
    let harness = Harness::start(on);
    let timeout = Some(Duration::from_millis(30));
    let config = dafs_client::Config { operation_timeout: timeout, ..dafs_client::Config::default() };
    let (holder, session) = (harness.session(), harness.session_with(&config));
    let open = |session: &Session| {
        let mut options = OpenOptions::new();
        let export = in_time(|| session.mount("data"));
        in_time(|| export.open_with("f", options.write(true).create(true)))
    };
    let (held, file) = (open(&holder), open(&session));
    held.lock(0..1, LockKind::Exclusive).unwrap();
    let completions = session.completions().unwrap();
    let lock = file.submit_lock(0..1, LockKind::Exclusive);
    assert_eq!(told(&completions, 1), [lock.id().unwrap()]);
    assert!(matches!(lock.wait(), Err(Error::TimedOut { .. } | Error::Status { .. })));
}

// [CLI-192] [CLI-193]
fn tasks_of_tokio_are_woken_and_their_driver_ends_with_the_session(on: On) {
    const TASKS: usize = 8;
    let mut harness = Harness::start(on);
    let session = Arc::new(harness.session());
    let runtime = tokio::runtime::Builder::new_current_thread().enable_io().build().unwrap();
    let driver = {
        let _entered = runtime.enter();
        runtime.spawn(session.drive().unwrap())
    };
    for round in 0..2 {
        let tasks: Vec<_> = (0..TASKS)
            .map(|_| {
                let session = Arc::clone(&session);
                runtime.spawn(async move {
                    for _ in 0..50 {
                        session.submit_ping().await.unwrap();
                    }
                })
            })
            .collect();
        runtime.block_on(async {
            for task in tasks {
                task.await.unwrap();
            }
        });
        if round == 0 {
            harness.restart();
        }
    }
    // The driver does not keep it.
    drop(session);
    runtime.block_on(driver).unwrap().unwrap();
}
