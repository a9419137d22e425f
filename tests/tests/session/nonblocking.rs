//! Calls that never block: not while the connection is made again, and not for another thread of the program.

use std::sync::mpsc;
use std::time::Duration;

use dafs_client::{
    Background, BatchHints, Config, Error, ReconnectPolicy, Session, wait_all, wait_some_with,
};
use dafs_tests::faulty::{Fault, Kind};
use dafs_tests::harness::{Harness, On};
use dafs_tests::on_each_provider_and_three_workers;
use dafs_tests::silent::Silent;
use dafs_tests::suite::{assert_same, bytes};

use crate::cuts::wait_for;

on_each_provider_and_three_workers! {
    test_without_a_server_says_no_until_there_is_one,
    test_alone_learns_that_the_server_does_not_come_back,
    test_beside_a_waiting_thread_says_no_until_the_end,
    wait_with_a_window_ends_with_that_while_there_is_no_server,
}

mod gated {
    use super::{
        session_that_is_closed_during_a_handshake_ends_at_once,
        test_during_a_handshake_that_is_not_answered_says_no,
    };

    dafs_tests::on_sockets! {
        test_during_a_handshake_that_is_not_answered_says_no,
        session_that_is_closed_during_a_handshake_ends_at_once,
    }
}

/// Who makes the connection again: a thread for that alone, the one that keeps the session alive, the one that moves it along.
const BACKGROUNDS: [Background; 3] = [Background::None, Background::KeepAlive, Background::Progress];

/// A session that never gives up.
fn config(background: Background) -> Config {
    let reconnect = ReconnectPolicy {
        attempts_max: u32::MAX,
        time_max: Duration::MAX,
        backoff_min: Duration::from_millis(1),
        backoff_max: Duration::from_millis(20),
    };
    Config { background, reconnect, connect_timeout: Duration::from_secs(3600), ..Config::default() }
}

/// Does this with each kind of background. A call that blocks does so for an hour or for ever: that it does not is seen by the end.
fn with_each_background(test: impl Fn(Background) + Send + 'static) {
    let (done, ended) = mpsc::channel();
    let body = std::thread::spawn(move || {
        for background in BACKGROUNDS {
            test(background);
            done.send(()).expect("somebody waits");
        }
    });
    for background in BACKGROUNDS {
        match ended.recv_timeout(Duration::from_secs(300)) {
            Ok(()) => {}
            Err(mpsc::RecvTimeoutError::Timeout) => panic!("{background:?}: a call blocks"),
            Err(mpsc::RecvTimeoutError::Disconnected) => break,
        }
    }
    if let Err(panic) = body.join() {
        std::panic::resume_unwind(panic);
    }
}

fn opened(harness: &Harness, config: &Config) -> (Session, dafs_client::File) {
    let session = harness.session_with(config);
    let file = session.mount("data").unwrap().create("f").unwrap();
    file.write_all_at(&bytes(1, 1000), 0).unwrap();
    (session, file)
}

// [CLI-46]
fn test_without_a_server_says_no_until_there_is_one(on: On) {
    with_each_background(move |background| {
        let mut harness = Harness::start(on);
        let (session, file) = opened(&harness, &config(background));
        harness.stop();
        let mut read = file.submit_read_at(vec![0; 1000], 0);
        for _ in 0..on.rounds(1000) {
            assert!(!read.test() && !read.has_ended(), "the server comes back below");
        }
        // Neither do submissions wait.
        let mut write = file.submit_write_at(bytes(2, 1000), 1000);
        assert!(!write.test());
        harness.restart();
        wait_for(|| read.test());
        wait_for(|| write.test());
        let (count, buffer) = read.wait().into_result().unwrap();
        assert_same(&buffer[..count], &bytes(1, 1000), "what was read");
        assert_eq!(write.wait().into_result().unwrap().0, 1000);
        assert_eq!(session.reconnects(), 1);
    });
}

// [CLI-46] The server's place answers only after `test` has.
fn test_during_a_handshake_that_is_not_answered_says_no(on: On) {
    with_each_background(move |background| {
        let mut harness = Harness::start(on);
        let (session, file) = opened(&harness, &config(background));
        harness.stop();
        let mut silent = Silent::at(harness.address());
        let mut read = file.submit_read_at(vec![0; 1000], 0);
        wait_for(|| {
            assert!(!read.test());
            silent.connections() > 0
        });
        for _ in 0..1000 {
            assert!(!read.test());
        }
        assert_eq!(silent.connections(), 1, "one thread connects again");
        drop(silent);
        harness.restart();
        wait_for(|| read.test());
        assert_same(&read.wait().into_result().unwrap().1, &bytes(1, 1000), "what was read");
        assert_eq!(session.reconnects(), 1);
    });
}

// [CLI-46]
fn session_that_is_closed_during_a_handshake_ends_at_once(on: On) {
    for closes in [true, false] {
        with_each_background(move |background| {
            let mut harness = Harness::start(on);
            let (session, file) = opened(&harness, &config(background));
            harness.stop();
            let mut silent = Silent::at(harness.address());
            let mut read = file.submit_read_at(vec![0; 1000], 0);
            wait_for(|| {
                assert!(!read.test());
                silent.connections() > 0
            });
            if closes {
                session.close();
                assert!(read.test());
                let read = read.wait();
                assert!(matches!(read.result, Err(Error::Closed)), "{:?}", read.result);
                assert_eq!(read.buffer.len(), 1000);
            } else {
                drop((session, file, read));
            }
            assert_eq!(silent.connections(), 1);
        });
    }
}

// [CLI-111]
fn wait_with_a_window_ends_with_that_while_there_is_no_server(on: On) {
    with_each_background(move |background| {
        let mut harness = Harness::start(on);
        let (session, file) = opened(&harness, &config(background));
        let early = file.submit_read_at(vec![0; 1000], 0);
        session.ping().unwrap();
        harness.stop();
        let mut reads = vec![early, file.submit_read_at(vec![0; 1000], 0)];
        let hints = BatchHints { completions: 2, window: Duration::from_millis(20) };
        assert_eq!(wait_some_with(&mut reads, &hints).len(), 1, "the server comes back below");
        harness.restart();
        for read in wait_all(reads) {
            assert_same(&read.into_result().unwrap().1, &bytes(1, 1000), "what was read");
        }
    });
}

// [CLI-46] [CLI-33]
fn test_alone_learns_that_the_server_does_not_come_back(on: On) {
    with_each_background(move |background| {
        let mut harness = Harness::start(on);
        let reconnect = ReconnectPolicy { attempts_max: 3, ..config(background).reconnect };
        let connect_timeout = Config::default().connect_timeout;
        let (_session, file) = opened(&harness, &Config { reconnect, connect_timeout, ..config(background) });
        harness.stop();
        let mut read = file.submit_read_at(vec![7; 1000], 0);
        wait_for(|| read.test());
        let read = read.wait();
        let error = read.result.unwrap_err();
        assert!(matches!(error, Error::Connection { .. }), "{error:?}");
        assert!(error.to_string().contains("3 attempts"), "{error}");
        assert_eq!(read.buffer, [7; 1000], "memory comes back");
    });
}

// [CLI-47] A thread that is alone waits with the lock of the session.
fn test_beside_a_waiting_thread_says_no_until_the_end(on: On) {
    with_each_background(move |background| {
        let (harness, faults) = Harness::start_faulty(on, |_| {});
        let (_session, file) = opened(&harness, &config(background));
        faults.next(Kind::Read, Fault::Hold, 2);
        std::thread::scope(|scope| {
            let mut read = file.submit_read_at(vec![0; 1000], 0);
            faults.wait_for_held(1);
            let waiter = scope.spawn(|| {
                let mut buffer = vec![0; 500];
                file.read_exact_at(&mut buffer, 500).map(|()| buffer)
            });
            faults.wait_for_held(2);
            for _ in 0..on.rounds(1000) {
                assert!(!read.test() && !read.has_ended());
            }
            faults.release();
            wait_for(|| read.test());
            assert_same(&read.wait().into_result().unwrap().1, &bytes(1, 1000), "what was read");
            assert_same(&waiter.join().unwrap().unwrap(), &bytes(1, 1000)[500..], "what the other read");
        });
    });
}
