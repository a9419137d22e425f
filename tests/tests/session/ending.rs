//! Sessions that end with requests in flight, and those that a child of their process has as well.
#![allow(unsafe_code, reason = "forks")]

use std::time::{Duration, Instant};

use dafs_client::{Config, Error, MethodOverride, Session};
use dafs_tests::harness::{Harness, On};
use dafs_tests::on_each_provider_and_three_workers;
use dafs_tests::program::Program;
use dafs_tests::raw::Raw;
use dafs_tests::suite::{assert_same, bytes};

on_each_provider_and_three_workers! {
    session_that_ends_with_requests_in_flight_leaves_nothing_behind,
    session_in_a_child_is_refused_and_goes_on_in_the_parent,
}

mod logged {
    use super::ended_session_is_logged_once_with_who_and_why;

    dafs_tests::on_each_provider! { ended_session_is_logged_once_with_who_and_why }
}

/// Until its lease is over a session that the server believes lost would keep its files and what they take.
// [SESS-137] [SESS-138]
fn session_that_ends_with_requests_in_flight_leaves_nothing_behind(on: On) {
    let harness = Harness::start_with(on, |config| config.lease_ms = 3_600_000);
    let watcher = harness.session();
    let given_up = Instant::now() + Duration::from_secs(60);
    // An emulated device takes a second for what others move in a millisecond. A busy machine takes a part of the second that a client
    // waits for the replies.
    let len = if on.is_verbs() { 50_000 } else { 300_000 };
    for (round, closes) in (0..6).flat_map(|round| [(round, true), (round, false)]) {
        // No credit is left for a word more, and nobody takes what comes.
        let session = harness.session_with(&Config { credits: 4, ..Config::default() });
        let file = session.mount("mem").unwrap().create(format!("f{round}")).unwrap();
        file.write_all_at(&bytes(1, len), 0).unwrap();
        let reads: Vec<_> = (0..20).map(|_| file.submit_read_at(vec![0; len], 0)).collect();
        session.flush();
        if closes {
            session.close();
        }
        drop((reads, file, session));
        while watcher.statistics().unwrap().sessions > 1 {
            assert!(Instant::now() < given_up, "the server was not told, round {round}");
        }
    }
    assert_eq!(watcher.statistics().unwrap().handles, 0);
}

/// Whether a child can do nothing with the session of its parent, and end it neither.
fn child_is_refused(session: Session) -> bool {
    let is_forked = |error: &Error| matches!(error, Error::Forked);
    let refused = session.ping().is_err_and(|error| is_forked(&error))
        && session.mount("mem").is_err_and(|error| is_forked(&error));
    session.close();
    refused
}

// [CLI-43] [CLI-127]
fn session_in_a_child_is_refused_and_goes_on_in_the_parent(on: On) {
    let harness = Harness::start(on);
    let session = harness.session();
    let file = session.mount("mem").unwrap().create("f").unwrap();
    let data = bytes(1, 300_000);
    file.write_all_at(&data, 0).unwrap();
    let mut registered = session.buffer(data.len()).unwrap();
    let others = [true, false].map(|drops_first| {
        let other = session.mount("mem").unwrap().create("other").unwrap();
        (drops_first, other)
    });
    for (drops_first, other) in others {
        let read = file.submit_read_at(vec![0; data.len()], 0);
        session.flush();
        // SAFETY: the child uses what this thread alone uses, and ends without running anything of the parent's.
        let child = unsafe { libc::fork() };
        if child == 0 && drops_first {
            // Nothing else uses it, so this gives its handle back, in the parent.
            drop(other);
            // SAFETY: as above.
            unsafe { libc::_exit(0) };
        }
        if child == 0 {
            let reads = file.read_at(&mut [0; 100], 0);
            let waited = read.wait();
            let mut all = matches!(reads, Err(Error::Forked)) && matches!(waited.result, Err(Error::Forked));
            drop((file, registered));
            all &= child_is_refused(session);
            // SAFETY: as above.
            unsafe { libc::_exit(if all { 0 } else { 1 }) };
        }
        let mut status = 0;
        // SAFETY: waits for the child made above.
        assert_eq!(unsafe { libc::waitpid(child, &raw mut status, 0) }, child);
        assert_eq!(status, 0, "the child was refused everything");
        assert_same(&read.wait().buffer, &data, "what was in flight");
        assert_eq!(file.read_buf_at(&mut registered, 0).unwrap(), data.len());
        assert_same(&registered, &data, "after a child has gone");
    }
    assert_eq!(session.reconnects(), 0);
}

// [ACC-138]
fn ended_session_is_logged_once_with_who_and_why(on: On) {
    let program = Program::start(on, &["--log", "info", "--lease-ms", "3000", "--keep-alive-ms", "1000"]);
    let watcher = program.session();
    for (name, method) in [("inline", MethodOverride::Inline), ("direct", MethodOverride::Direct)] {
        let config = Config { client_name: Some(name.into()), method, ..Config::default() };
        let session = program.session_with(&config);
        let file = session.mount("mem").unwrap().create("f").unwrap();
        file.write_all_at(&[7; 5000], 0).unwrap();
        // Less than was asked for.
        assert_eq!(file.read_at(&mut [0; 6000], 1000).unwrap(), 4000);
        drop(file);
        session.close();
    }
    let (mut lost, welcome) = Raw::session(program.address(), 4);
    lost.mount("mem");
    drop(lost);
    let lost = format!("session={:016x} ", welcome.session.0);
    let (unused, welcome) = Raw::session(program.address(), 4);
    drop(unused);
    let unused = format!("session={:016x} ", welcome.session.0);
    let (mut wrong, welcome) = Raw::session(program.address(), 4);
    wrong.send_bytes(&[0xff; 40], &[]);
    wrong.ending();
    let wrong = format!("session={:016x} ", welcome.session.0);
    let given_up = Instant::now() + Duration::from_secs(60);
    while watcher.statistics().unwrap().sessions > 1 {
        assert!(Instant::now() < given_up, "the lease is over");
    }

    let log = program.log();
    let told = |who: &str| -> Vec<&str> {
        log.lines().filter(|line| line.contains("session ended") && line.contains(who)).collect()
    };
    for (who, expected) in [
        (
            "client=\"inline\" ",
            ["INFO", "why=\"the client ended it\" ", " bytes_read=4000 bytes_written=5000"],
        ),
        (
            "client=\"direct\" ",
            ["INFO", "why=\"the client ended it\" ", " bytes_read=4000 bytes_written=5000"],
        ),
        (
            &lost,
            [
                "INFO",
                "why=\"its connection was lost, and the client did not reconnect within the lease: ",
                " requests=1 ",
            ],
        ),
        (&unused, ["INFO", "why=\"its connection was lost before it had mounted anything: ", " requests=0 "]),
        (&wrong, ["WARN", "why=\"protocol fault: ", " bytes_read=0 "]),
    ] {
        let [line] = told(who)[..] else { panic!("{who}: {log}") };
        assert!(expected.iter().all(|part| line.contains(part)), "{line}");
        assert!(line.contains(" peer="), "{line}");
    }
    assert_eq!(log.matches("session opened").count(), 6, "{log}");
    // By which fences name them.
    assert!(log.contains(&format!("client_id={:032x} ", u128::from_be_bytes(watcher.client_id()))), "{log}");
    assert_eq!(log.matches(&format!("client_id={} ", "05".repeat(16))).count(), 3, "{log}");
    assert_eq!(log.matches("protocol fault").count(), 1, "{log}");
}
