//! Connections that are cut at any byte: the session goes on, and nothing is lost or done twice.

use std::io::Read;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Duration;

use dafs_client::{Config, Error, Export, MethodOverride, OpenOptions, ReconnectPolicy, Session};
use dafs_tests::cut::{Cut, Relay, Way, connect_cuttable, cut_connections};
use dafs_tests::harness::{Harness, On};
use dafs_tests::on_each_provider_and_three_workers;
use dafs_tests::suite::{EXPORTS, Numbers, assert_same, bytes, in_time};

use crate::tokens::count;

on_each_provider_and_three_workers! {
    connections_cut_again_and_again_under_load_lose_and_repeat_nothing,
    session_is_resumed_and_its_files_stay_open,
}

dafs_tests::on_verbs_three_workers! { session_is_resumed_and_its_files_stay_open }

fn config(method: MethodOverride) -> Config {
    let reconnect = ReconnectPolicy {
        attempts_max: 1000,
        backoff_min: Duration::from_millis(1),
        backoff_max: Duration::from_millis(20),
        ..ReconnectPolicy::default()
    };
    Config { reconnect, method, ..Config::default() }
}

/// Operations of which none may be executed twice or not at all; each is checked at once, and all at the end.
fn work(root: &Export, round: u64) {
    let name = format!("round{round}");
    let mut options = OpenOptions::new();
    root.create_dir(&name, 0o755).unwrap();
    let directory = root.open_dir(&name).unwrap();
    let file = directory.open_with("f", options.read(true).write(true).create_new(true)).unwrap();
    let data = bytes(round, 30_000);
    file.write_all_at(&data, 0).unwrap();
    file.truncate(20_000).unwrap();
    let appends: Vec<_> =
        (0..4).map(|part| file.submit_append(bytes(1000 + part, 500 + part as usize))).collect();
    let mut at: Vec<u64> = appends.into_iter().map(|append| append.wait().unwrap()).collect();
    at.sort_unstable();
    assert_eq!(at[0], 20_000);
    directory.rename("f", &directory, "g", false).unwrap();
    directory.link("g", &directory, "h").unwrap();
    directory.symlink("g", "s").unwrap();
    directory.remove_file("h").unwrap();
    let mut found = vec![0; 20_000];
    file.read_exact_at(&mut found, 0).unwrap();
    assert_same(&found, &data[..20_000], "what was written before");
    assert_eq!(file.metadata().unwrap().size, 20_000 + 4 * 500 + 6);
    file.commit().unwrap();
}

mod tcp_relay {
    pub(super) mod tcp {
        #[test]
        fn connection_cut_at_any_byte_loses_and_repeats_nothing() {
            super::super::every_byte();
        }

        #[test]
        fn reply_that_was_lost_is_answered_from_the_cache() {
            super::super::lost_reply();
        }

        #[test]
        fn request_in_flight_over_a_restart_ends_in_doubt() {
            super::super::in_doubt();
        }

        #[test]
        fn operation_without_an_answer_times_out_or_is_cancelled() {
            super::super::stalled();
        }
    }
}

/// How often the whole of the work is cut, per direction and method.
const CUTS: u64 = 40;

// [SESS-11] [SESS-50] [SESS-51] [SESS-63] [CLI-30] [SESS-107]
fn every_byte() {
    let harness = Harness::start(On::Tcp);
    let methods = [
        MethodOverride::Auto,
        MethodOverride::Bounced,
        MethodOverride::Eager,
        MethodOverride::ClientInitiated,
    ];
    for method in methods {
        let total = one_cut(&harness, method, None);
        for (way, total) in [(Way::ToServer, total[0]), (Way::ToClient, total[1])] {
            for number in 0..CUTS {
                one_cut(&harness, method, Some(Cut { way, bytes: 1 + number * total / CUTS }));
            }
        }
    }
}

/// Work over a connection that is cut, and the bytes that went each way.
fn one_cut(harness: &Harness, method: MethodOverride, cut: Option<Cut>) -> [u64; 2] {
    let relay = Relay::start(harness.address(), cut.into_iter().collect());
    // A cut within the handshake fails the first attempt.
    let session = Session::connect(relay.url(), &config(method))
        .or_else(|_| Session::connect(relay.url(), &config(method)))
        .unwrap();
    let name = cut.map_or("whole".to_owned(), |cut| format!("{:?}-{}", cut.way, cut.bytes));
    let name = format!("{name}-{method:?}");
    let root = session.mount("mem").unwrap();
    root.create_dir(&name, 0o755).unwrap_or_else(|error| panic!("{name}: {error}"));
    let directory = root.open_dir(&name).unwrap();
    directory.create_dir("d", 0o755).unwrap();
    let log =
        directory.open_with("log", OpenOptions::new().append(true).create_new(true).read(true)).unwrap();
    let mut expected = Vec::new();
    for record in 0..6 {
        let data = bytes(record, 3000 * record as usize + 1);
        assert_eq!(log.append(&data).unwrap(), expected.len() as u64, "{name}");
        expected.extend(data);
    }
    let file = directory.open_with("f", OpenOptions::new().write(true).create_new(true).read(true)).unwrap();
    let data = bytes(99, 60_000);
    file.write_all_at(&data, 0).unwrap();
    let mut halves = vec![0; 2000];
    let (left, right) = halves.split_at_mut(1000);
    let mut batch = session.batch_io();
    batch.read_at(&file, left, 5000).write_at(&file, &data[..9000], 0).read_at(&file, right, 30_000);
    let counts: Vec<usize> = batch.run().unwrap().into_iter().map(|outcome| outcome.unwrap().count).collect();
    drop(batch);
    assert_eq!(counts, [1000, 9000, 1000], "{name}");
    assert_same(&halves[..1000], &data[5000..6000], &name);
    assert_same(&halves[1000..], &data[30_000..31_000], &name);
    directory.rename("f", &directory, "g", false).unwrap();
    directory.remove_dir("d").unwrap();
    let mut found = Vec::new();
    (&log).read_to_end(&mut found).unwrap();
    assert_same(&found, &expected, &name);
    found.resize(data.len(), 0);
    file.read_exact_at(&mut found, 0).unwrap();
    assert_same(&found, &data, &name);
    let names: Vec<_> = directory.read_dir("", true).unwrap().map(|entry| entry.unwrap().name).collect();
    assert_eq!(names.len(), 2, "{name}");
    [relay.passed(Way::ToServer), relay.passed(Way::ToClient)]
}

// [SESS-14] [SESS-51] [SESS-86]
fn lost_reply() {
    let harness = Harness::start(On::Tcp);
    let relay = Relay::start(harness.address(), vec![]);
    let session = Session::connect(relay.url(), &config(MethodOverride::Auto)).unwrap();
    let root = session.mount("data").unwrap();
    let id = session.agreed().session;
    relay.stall();
    let made = root.submit_create_dir("d", 0o755);
    // The server has answered it; the client does not know.
    let watcher = harness.session();
    wait_for(|| count(&watcher, "Mkdir") == 1);
    relay.cut();
    made.wait().expect("answered from the cache, not executed again");
    assert_eq!(session.agreed().session, id, "resumed");
    assert_eq!(session.reconnects(), 1);
    assert!(session.statistics().unwrap().replies_replayed >= 1);
}

// [SESS-118] [CLI-103] [CLI-104]
fn in_doubt() {
    let mut harness = Harness::start(On::Tcp);
    let relay = Relay::start(harness.address(), vec![]);
    let session = Session::connect(relay.url(), &config(MethodOverride::Auto)).unwrap();
    let root = session.mount("data").unwrap();
    std::fs::write(harness.data().join("f"), b"data").unwrap();
    let file = root.open("f").unwrap();
    relay.stall();
    let made = root.submit_create_dir("d", 0o755);
    let read = file.submit_read_at(vec![0; 4], 0);
    wait_for(|| harness.data().join("d").exists());
    harness.restart();
    relay.cut();
    let made = made.wait();
    assert!(matches!(made, Err(Error::InDoubt { .. })), "{made:?}");
    let read = read.wait();
    assert_eq!(read.result.unwrap(), 4, "what is idempotent is sent again");
    assert_eq!(read.buffer, b"data");
    root.metadata("d").unwrap();
}

// [CLI-10] [CLI-11] [CLI-78]
fn stalled() {
    let harness = Harness::start(On::Tcp);
    let relay = Relay::start(harness.address(), vec![]);
    let timeout = Some(Duration::from_secs(1));
    let session =
        Session::connect(relay.url(), &Config { operation_timeout: timeout, ..config(MethodOverride::Auto) })
            .unwrap();
    let root = in_time(|| session.mount("mem"));
    let file = in_time(|| root.create("f"));
    relay.stall();
    let answer = root.metadata("f");
    assert!(matches!(answer, Err(Error::TimedOut { timeout_ms: 1000, .. })), "{answer:?}");
    relay.cut();
    assert_eq!(in_time(|| file.write_at(b"x", 0)), 1, "the session goes on");

    let session =
        Session::connect(relay.url(), &Config { credits: 1, ..config(MethodOverride::Auto) }).unwrap();
    let file = session.mount("mem").unwrap().open_with("f", OpenOptions::new().write(true)).unwrap();
    relay.stall();
    let sent = file.submit_write_at(vec![1; 100], 0);
    let queued = file.submit_write_at(vec![2; 100], 1000);
    let queued = queued.cancel();
    assert!(matches!(queued.result, Err(Error::Cancelled)), "{:?}", queued.result);
    assert_eq!(queued.buffer, [2; 100]);
    let sent = sent.cancel();
    assert!(matches!(sent.result, Err(Error::Cancelled)), "{:?}", sent.result);
    assert_eq!(sent.buffer, [1; 100]);
    relay.cut();
    session.ping().unwrap();
    assert!(file.metadata().unwrap().size <= 100, "what was not sent had no effect");
}

// [SESS-11] [SESS-50] [SESS-51] [SESS-57]
fn connections_cut_again_and_again_under_load_lose_and_repeat_nothing(on: On) {
    const ROUNDS_MIN: u64 = 40;
    const ROUNDS_MAX: u64 = 20_000;
    const RECONNECTS: u64 = 8;
    const CUTS_IN_VAIN_MAX: u64 = 500;
    let harness = Harness::start(on);
    for export in EXPORTS {
        let (done, finished) = (AtomicBool::new(false), AtomicU64::new(0));
        let session = connect(&harness);
        let (cuts, reconnects) = std::thread::scope(|scope| {
            let cutter = scope.spawn(|| {
                let (mut cuts, mut numbers, mut in_vain, mut round) = (0, Numbers::new(5), 0, 0);
                let is_slow = on.rounds(ROUNDS_MIN) < ROUNDS_MIN;
                let is_done = || done.load(Ordering::Acquire);
                while !is_done() {
                    let seen = (session.reconnects(), finished.load(Ordering::Acquire));
                    let cut = cut_connections(harness.address());
                    cuts += cut;
                    // The session is back, and has done something, so that there is something to cut.
                    while cut > 0 && session.reconnects() == seen.0 && !is_done() {
                        std::thread::yield_now();
                    }
                    in_vain = if seen.1 == round { in_vain + 1 } else { 0 };
                    round = seen.1;
                    // A disk may take longer for one commit than a thousand cuts.
                    let rests = is_slow || in_vain > CUTS_IN_VAIN_MAX;
                    while rests && finished.load(Ordering::Acquire) == seen.1 && !is_done() {
                        std::thread::yield_now();
                    }
                    let yields = if is_slow { numbers.below(5000) } else { numbers.below(1000) };
                    (0..yields).for_each(|_| std::thread::yield_now());
                }
                cuts
            });
            let worker = scope.spawn(|| {
                let root = session.mount(export).unwrap();
                let mut rounds = 0;
                while rounds < on.rounds(ROUNDS_MIN)
                    || (session.reconnects() < RECONNECTS && rounds < ROUNDS_MAX)
                {
                    work(&root, rounds);
                    rounds += 1;
                    finished.store(rounds, Ordering::Release);
                }
                assert_eq!(root.read_dir("", true).unwrap().count() as u64, rounds);
                session.reconnects()
            });
            let worked = worker.join();
            done.store(true, Ordering::Release);
            (cutter.join().unwrap(), worked.unwrap())
        });
        assert!(reconnects >= RECONNECTS, "{cuts} cuts, {reconnects} reconnects");
    }
}

/// Connects although connections are being cut.
fn connect(harness: &Harness) -> Session {
    loop {
        match connect_cuttable(harness, &config(MethodOverride::Auto)) {
            Ok(session) => return session,
            Err(Error::Connect(_) | Error::Connection { .. }) => {}
            Err(error) => panic!("{error:?}"),
        }
    }
}

// [SESS-50] [CLI-30]
fn session_is_resumed_and_its_files_stay_open(on: On) {
    let harness = Harness::start(on);
    let session = connect_cuttable(&harness, &config(MethodOverride::Auto)).unwrap();
    let root = session.mount("data").unwrap();
    let file = root.create("f").unwrap();
    file.write_all_at(b"before", 0).unwrap();
    let id = session.agreed().session;
    // A file without a name can only be read if the session, with its handle, lives on.
    root.remove_file("f").unwrap();
    for round in 1..=5 {
        assert!(cut_connections(harness.address()) >= 1);
        // Over shared memory the rings may answer until both sides have seen the cut.
        loop {
            let mut data = [0; 6];
            file.read_exact_at(&mut data, 0).unwrap();
            assert_eq!(&data, b"before");
            if session.reconnects() >= round {
                break;
            }
        }
        assert_eq!(session.reconnects(), round);
    }
    assert_eq!(session.agreed().session, id);
    let statistics = session.statistics().unwrap();
    assert_eq!((statistics.sessions, statistics.protocol_errors), (1, 0));
}

/// Waits for a state of the world; fails after a long time.
pub(crate) fn wait_for(mut reached: impl FnMut() -> bool) {
    let begin = std::time::Instant::now();
    while !reached() {
        assert!(begin.elapsed() < Duration::from_secs(60), "the state is not reached");
        std::thread::yield_now();
    }
}
