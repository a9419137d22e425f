//! Tokens where connections break, servers restart and storage takes its time: nothing stays open, and nothing is done twice.

use std::time::Duration;

use dafs_client::{Config, Error, OpenOptions, ReconnectPolicy, Session, Status};
use dafs_tests::cut::{Relay, connect_cuttable, cut_connections};
use dafs_tests::faulty::{Fault, Kind};
use dafs_tests::harness::{Harness, On};
use dafs_tests::on_each_provider_and_three_workers;

use crate::cuts::wait_for;
use crate::tokens::{LONG, count, read_write};

on_each_provider_and_three_workers! {
    delayed_open_by_token_outlives_connection_and_token,
    session_that_ends_during_an_open_by_a_token_leaves_nothing_open,
    open_by_a_token_that_storage_refuses_leaves_nothing_open,
    token_is_unknown_after_a_restart_and_files_reopen_by_path,
}

mod tcp_relay {
    pub(super) mod tcp {
        #[test]
        fn lost_replies_about_tokens_are_answered_from_the_cache() {
            super::super::lost_replies();
        }

        #[test]
        fn requests_about_tokens_in_flight_over_a_restart_are_sent_again() {
            super::super::in_flight_over_a_restart();
        }
    }
}

fn config() -> Config {
    let reconnect = ReconnectPolicy {
        attempts_max: 2000,
        backoff_min: Duration::from_millis(1),
        backoff_max: Duration::from_millis(20),
        ..ReconnectPolicy::default()
    };
    Config { reconnect, ..Config::default() }
}

// [SESS-11] [SESS-14] [SESS-51] [SESS-75] [SESS-86]
fn lost_replies() {
    let (harness, faults) = Harness::start_faulty(On::Tcp, |_| {});
    let relay = Relay::start(harness.address(), vec![]);
    let (watcher, session) = (harness.session(), Session::connect(relay.url(), &config()).unwrap());
    let root = session.mount("mem").unwrap();
    let file = root.create("f").unwrap();
    relay.stall();
    let share = file.submit_share(true, true, LONG);
    wait_for(|| count(&watcher, "Share") == 1);
    relay.cut();
    let token = share.wait().expect("answered from the cache, not executed again");
    relay.stall();
    let open = root.submit_open_token(&token, "f", &read_write());
    wait_for(|| count(&watcher, "OpenToken") == 1);
    relay.cut();
    let opened = open.wait().expect("answered from the cache, not executed again");
    opened.write_all_at(b"data", 0).unwrap();
    assert_eq!((count(&watcher, "Share"), count(&watcher, "OpenToken")), (1, 1));
    let statistics = session.statistics().unwrap();
    assert_eq!((statistics.handles, statistics.replies_replayed), (3, 2));
    assert_eq!(session.reconnects(), 2);
    session.close();
    wait_for(|| watcher.statistics().unwrap().sessions == 1);
    assert_eq!(faults.open_nodes(), 0);
}

// [CLI-51] [WIRE-48] [SESS-112]
fn in_flight_over_a_restart() {
    let mut harness = Harness::start(On::Tcp);
    std::fs::write(harness.data().join("f"), b"data").unwrap();
    let relay = Relay::start(harness.address(), vec![]);
    let session = Session::connect(relay.url(), &config()).unwrap();
    let root = session.mount("data").unwrap();
    let file = root.open("f").unwrap();
    let token = file.share(true, false, LONG).unwrap();
    relay.stall();
    let open = root.submit_open_token(&token, "f", OpenOptions::new().read(true));
    let share = file.submit_share(true, false, LONG);
    let watcher = harness.session();
    wait_for(|| count(&watcher, "OpenToken") == 1 && count(&watcher, "Share") == 2);
    harness.restart();
    relay.cut();
    assert_eq!(open.wait().unwrap_err().status(), Some(Status::NO_TOKEN), "it went with the server");
    let token = share.wait().expect("shared anew");
    let opened = root.open_token(&token, "f", OpenOptions::new().read(true)).unwrap();
    let mut found = [0; 4];
    opened.read_exact_at(&mut found, 0).unwrap();
    assert_eq!(&found, b"data");
}

/// The server's loop has gone round so often that what it had to do is done.
fn settle(watcher: &Session) {
    (0..100).for_each(|_| watcher.probe().unwrap());
}

// [SESS-75] [SESS-87]
fn delayed_open_by_token_outlives_connection_and_token(on: On) {
    let (harness, faults) = Harness::start_faulty(on, |_| {});
    let (watcher, first) = (harness.session(), harness.session());
    let file = first.mount("mem").unwrap().create("f").unwrap();
    let token = file.share(true, true, LONG).unwrap();
    let session = connect_cuttable(&harness, &config()).unwrap();
    let root = session.mount("mem").unwrap();
    faults.next(Kind::Other, Fault::Hold, 1);
    let open = root.submit_open_token(&token, "f", &read_write());
    session.flush();
    faults.wait_for_held(1);
    // Nobody else holds the file any more.
    first.close();
    wait_for(|| watcher.statistics().unwrap().sessions == 2);
    settle(&watcher);
    assert_eq!(faults.open_nodes(), 1);
    let cut = std::thread::scope(|scope| {
        let opened = scope.spawn(|| open.wait());
        assert!(cut_connections(harness.address()) >= 1);
        // The watcher is cut as well.
        wait_for(|| watcher.statistics().unwrap().connections == 2 && session.reconnects() == 1);
        faults.release();
        opened.join().unwrap()
    });
    let opened = cut.expect("the one reply goes to the new connection");
    opened.write_all_at(b"data", 0).unwrap();
    // Of another worker the count is as of its last tick.
    wait_for(|| count(&watcher, "OpenToken") == 1);
    assert_eq!(faults.open_nodes(), 1);
    drop(opened);
    session.ping().unwrap();
    wait_for(|| faults.open_nodes() == 0);
}

// [SESS-75]
fn session_that_ends_during_an_open_by_a_token_leaves_nothing_open(on: On) {
    let (harness, faults) = Harness::start_faulty(on, |_| {});
    let (watcher, first, session) = (harness.session(), harness.session(), harness.session());
    let file = first.mount("mem").unwrap().create("f").unwrap();
    let token = file.share(true, true, LONG).unwrap();
    let root = session.mount("mem").unwrap();
    faults.next(Kind::Other, Fault::Hold, 1);
    let open = root.submit_open_token(&token, "f", &read_write());
    session.flush();
    faults.wait_for_held(1);
    session.close();
    assert!(matches!(open.wait(), Err(Error::Closed)));
    first.close();
    wait_for(|| watcher.statistics().unwrap().sessions == 1);
    settle(&watcher);
    assert_eq!(faults.open_nodes(), 1, "storage is at it");
    faults.release();
    wait_for(|| faults.open_nodes() == 0);
}

// [SESS-75]
fn open_by_a_token_that_storage_refuses_leaves_nothing_open(on: On) {
    let (harness, faults) = Harness::start_faulty(on, |_| {});
    let (watcher, first, session) = (harness.session(), harness.session(), harness.session());
    let file = first.mount("mem").unwrap().create("f").unwrap();
    let token = file.share(true, true, LONG).unwrap();
    let root = session.mount("mem").unwrap();
    faults.next(Kind::Other, Fault::Fail(Status::IO), 1);
    assert_eq!(root.open_token(&token, "f", &read_write()).unwrap_err().status(), Some(Status::IO));
    root.open_token(&token, "f", &read_write()).unwrap();
    file.write_all_at(b"data", 0).unwrap();
    first.close();
    wait_for(|| watcher.statistics().unwrap().sessions == 2);
    session.ping().unwrap();
    wait_for(|| faults.open_nodes() == 0);
}

// [CLI-50] [SESS-112]
fn token_is_unknown_after_a_restart_and_files_reopen_by_path(on: On) {
    let mut harness = Harness::start(on);
    let (first, second) = (harness.connect(&config()).unwrap(), harness.connect(&config()).unwrap());
    let (root, other) = (first.mount("data").unwrap(), second.mount("data").unwrap());
    let files = ["there", "gone"].map(|name| {
        let file = root.create(name).unwrap();
        file.write_all_at(b"data", 0).unwrap();
        file.commit().unwrap();
        let token = file.share(true, true, LONG).unwrap();
        let mut options = read_write();
        // Left out, or what is there would be lost.
        let opened = other.open_token(&token, name, options.create(true).truncate(true)).unwrap();
        (file, token, opened)
    });
    harness.stop();
    std::fs::remove_file(harness.data().join("gone")).unwrap();
    harness.restart();
    let [(file, token, opened), (_, _, gone)] = &files;
    let mut found = [0; 4];
    opened.read_exact_at(&mut found, 0).unwrap();
    assert_eq!(&found, b"data");
    opened.write_all_at(b"DATA", 0).unwrap();
    assert!(matches!(gone.metadata(), Err(Error::Stale { .. })));
    assert_eq!(other.open_token(token, "there", &read_write()).unwrap_err().status(), Some(Status::NO_TOKEN));
    let token = file.share(true, true, LONG).unwrap();
    other.open_token(&token, "there", &read_write()).unwrap().read_exact_at(&mut found, 0).unwrap();
    assert_eq!(&found, b"DATA");
    assert_eq!(second.reconnects(), 1);
}
