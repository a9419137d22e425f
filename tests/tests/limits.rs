//! Bounds: many sessions at once, memory of the server, handles, open files, peers that take and never give.
#![allow(clippy::cast_possible_truncation, reason = "sizes and counts that the tests choose")]
#![allow(clippy::unwrap_used, clippy::expect_used, reason = "all of this is test code, helpers included")]

use std::collections::VecDeque;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use dafs_client::{Background, Config, Error, OpenOptions, ReconnectPolicy, Session, Status};
use dafs_proto::wire::{PAYLOAD_SIZE_MIN, Resume};
use dafs_tests::faulty::{Fault, Kind};
use dafs_tests::harness::{Harness, On};
use dafs_tests::program::Program;
use dafs_tests::raw::{Raw, introduction};
use dafs_tests::suite::{EXPORTS, assert_same, assert_status, bytes, resident_size, wait_for};
use dafs_tests::{on_each_provider, on_three_workers};

on_each_provider! {
    a_thousand_sessions_are_all_served_beside_a_greedy_one,
    each_of_a_thousand_sessions_gets_half_its_fair_share_at_least,
    idle_sessions_cost_the_server_little_memory,
    sessions_beyond_the_limit_are_refused_until_one_ends,
    open_files_beyond_the_system_limit_are_refused,
    client_that_takes_no_replies_costs_bounded_memory_and_stalls_nobody,
    memory_export_that_is_full_says_so_and_stays_whole,
    clients_that_mount_nothing_leave_no_session,
    open_that_is_refused_has_neither_made_nor_cut_a_file,
}

#[path = "limits/budgets.rs"]
mod budgets;
/// What one client, or one user, may take of what all share.
#[path = "limits/buffers.rs"]
mod buffers;
#[path = "limits/unproven.rs"]
mod unproven;

on_three_workers! {
    sessions_beyond_the_limit_are_refused_until_one_ends,
}

/// Opens 65,536 files, which says nothing of the provider and takes an emulated device a minute.
mod many {
    use super::handles_beyond_the_limit_are_refused_until_one_is_closed;

    dafs_tests::on_sockets! { handles_beyond_the_limit_are_refused_until_one_is_closed }
}

/// How many sessions at once.
fn sessions_count(on: On) -> usize {
    match on.rounds(1000) {
        1000 => 1000,
        _ => 40,
    }
}

fn idle() -> Config {
    Config { background: Background::None, ..Config::default() }
}

/// Who has a thousand sessions: so many descriptors are not for several tests at once.
static MANY: Mutex<()> = Mutex::new(());

fn alone_with_many() -> MutexGuard<'static, ()> {
    MANY.lock().unwrap_or_else(PoisonError::into_inner)
}

/// A busy machine may take longer than a usual lease to make them all, and the first say nothing meanwhile.
const PATIENT: [&str; 3] = ["--no-calibrate", "--lease-ms", "3600000"];

fn sessions(program: &Program, count: usize) -> Vec<Session> {
    (0..count).map(|_| program.session_with(&idle())).collect()
}

// [SESS-22]
fn a_thousand_sessions_are_all_served_beside_a_greedy_one(on: On) {
    let _alone = alone_with_many();
    let rounds = on.rounds(5);
    const THREADS: usize = 4;
    let program = Program::start(on, &PATIENT);
    let count = sessions_count(on);
    let all = sessions(&program, count);
    assert_eq!(all[0].statistics().unwrap().sessions, count as u64);
    let greedy = program.session_with(&Config { credits: 4096, ..Config::default() });
    let (done, taken) = (AtomicBool::new(false), AtomicU64::new(0));
    std::thread::scope(|scope| {
        scope.spawn(|| {
            let file = greedy.mount("mem").unwrap().create("greedy").unwrap();
            while !done.load(Ordering::Acquire) {
                let pendings: Vec<_> =
                    (0..256).map(|index| file.submit_write_at(vec![1; 4096], index * 4096)).collect();
                for pending in pendings {
                    assert_eq!(pending.wait().result.unwrap(), 4096);
                    taken.fetch_add(1, Ordering::AcqRel);
                }
            }
        });
        let workers: Vec<_> = all
            .chunks(count / THREADS)
            .enumerate()
            .map(|(part, sessions)| {
                scope.spawn(move || {
                    let files: Vec<_> = sessions
                        .iter()
                        .enumerate()
                        .map(|(index, session)| {
                            let name = format!("{part}-{index}");
                            let mut options = OpenOptions::new();
                            let options = options.read(true).write(true).create(true);
                            session.mount("mem").unwrap().open_with(name, options).unwrap()
                        })
                        .collect();
                    for round in 0..rounds {
                        // An operation of every session in flight, then every answer.
                        let data = |index: usize| bytes(round << 32 | (part * 1000 + index) as u64, 3000);
                        let writes: Vec<_> = files
                            .iter()
                            .enumerate()
                            .map(|(index, file)| file.submit_write_at(data(index), round * 3000))
                            .collect();
                        writes.into_iter().for_each(|write| assert_eq!(write.wait().result.unwrap(), 3000));
                        let reads: Vec<_> = files
                            .iter()
                            .map(|file| file.submit_read_at(vec![0; 3000], round * 3000))
                            .collect();
                        for (index, read) in reads.into_iter().enumerate() {
                            let read = read.wait();
                            assert_eq!(read.result.unwrap(), 3000);
                            assert_same(&read.buffer, &data(index), "a session's own data");
                        }
                    }
                })
            })
            .collect();
        let outcome: Vec<_> = workers.into_iter().map(|worker| worker.join()).collect();
        done.store(true, Ordering::Release);
        outcome.into_iter().for_each(|outcome| outcome.unwrap());
    });
    assert!(taken.load(Ordering::Acquire) > 0, "the greedy one was served too");
    assert!(all.iter().all(|session| session.reconnects() == 0));
    assert_eq!(greedy.statistics().unwrap().protocol_errors, 0);
}

// [BUF-20]
fn each_of_a_thousand_sessions_gets_half_its_fair_share_at_least(on: On) {
    let _alone = alone_with_many();
    const IN_FLIGHT: usize = 4;
    // So many that what is in flight when the counting ends, and one packet sent again, weigh little in anybody's share.
    const EACH: u64 = 50;
    let program = Program::start(on, &PATIENT);
    let all = sessions(&program, sessions_count(on));
    let greedy = program.session_with(&Config { credits: 4096, ..Config::default() });
    let large = greedy.mount("mem").unwrap().create("large").unwrap();
    large.write_all_at(&vec![1; 1 << 20], 0).unwrap();
    let files: Vec<_> =
        all.iter().map(|session| session.mount("mem").unwrap().open("large").unwrap()).collect();
    let mut reads: Vec<VecDeque<_>> = files
        .iter()
        .map(|file| (0..IN_FLIGHT).map(|_| file.submit_read_at(vec![0; 4096], 0)).collect())
        .collect();
    let mut others: Vec<_> = (0..64).map(|_| large.submit_read_at(vec![0; 1 << 20], 0)).collect();
    let (mut ended, mut total) = (vec![0u64; all.len()], 0);
    // A fixed amount of work, of which the server decides who gets how much: each is asked far more often than it is answered.
    while total < EACH * all.len() as u64 {
        for (session, reads) in reads.iter_mut().enumerate() {
            while reads.front_mut().is_some_and(|read| read.test()) {
                let Some(read) = reads.pop_front() else { break };
                assert_eq!(read.wait().result.unwrap(), 4096);
                (ended[session], total) = (ended[session] + 1, total + 1);
                reads.push_back(files[session].submit_read_at(vec![0; 4096], 0));
            }
        }
        for other in &mut others {
            if other.test() {
                let next = large.submit_read_at(vec![0; 1 << 20], 0);
                assert_eq!(std::mem::replace(other, next).wait().result.unwrap(), 1 << 20);
            }
        }
    }
    let (least, fair) = (ended.iter().min().copied().unwrap_or(0), total / all.len() as u64);
    assert!(2 * least >= fair, "one session had {least} of {total} reads, where {fair} are its share");
    assert!(greedy.reconnects() == 0 && all.iter().all(|session| session.reconnects() == 0));
}

// [VERBS-61]
fn idle_sessions_cost_the_server_little_memory(on: On) {
    let _alone = alone_with_many();
    const EACH_MAX: u64 = 64 << 10;
    // The allocator and the server's tables grow in steps: beside few sessions one step would count as theirs.
    const STEP: u64 = 256 << 10;
    // Memory that measuring has given back would hide what sessions take.
    let program = Program::start(on, &PATIENT);
    // What is paid once is paid before.
    let watcher = program.session();
    let warm = sessions(&program, if on.is_verbs() { 2 } else { 50 });
    drop(warm);
    let before = resident_size(program.id());
    let count = sessions_count(on);
    let all = sessions(&program, count);
    for session in &all {
        session.ping().unwrap();
    }
    let after = resident_size(program.id());
    let each = after.saturating_sub(before + STEP) / count as u64;
    assert_eq!(watcher.statistics().unwrap().sessions, count as u64 + 1);
    eprintln!("{on:?}: {each} bytes of the server's memory for each idle session");
    assert!(each <= EACH_MAX, "{each} bytes of the server's memory for each of {count} idle sessions");
}

fn sessions_beyond_the_limit_are_refused_until_one_ends(on: On) {
    let harness = Harness::start_with(on, |config| config.sessions_max = 3);
    let mut held: Vec<_> = (0..3).map(|_| harness.session()).collect();
    let config = Config::default();
    let refused = harness.connect(&config).unwrap_err();
    assert_eq!(refused.status(), Some(Status::SERVER_FULL), "{refused:?}");
    assert_eq!(refused.errno(), libc::EUSERS);
    held.iter().for_each(|session| drop(session.mount("mem").unwrap()));
    held.pop();
    wait_for("a session ends", || held[0].statistics().unwrap().sessions <= 2);
    harness.connect(&config).unwrap().ping().unwrap();
}

// [LIMIT-3]
fn clients_that_mount_nothing_leave_no_session(on: On) {
    let harness = Harness::start_with(on, |config| {
        config.sessions_max = 8;
        config.lease_ms = 3_600_000;
    });
    let other = harness.session();
    other.mount("mem").unwrap().create("f").unwrap();
    for _ in 0..4 {
        let silent: Vec<_> = (0..7).map(|_| Raw::session(harness.address(), 4)).collect();
        drop(silent);
        wait_for("the silent leave no session", || other.statistics().unwrap().sessions == 1);
    }
    // One that has mounted waits for its client.
    let (mut kept, welcome) = Raw::session(harness.address(), 4);
    kept.mount("mem");
    drop(kept);
    wait_for("its connection is gone", || other.statistics().unwrap().connections == 1);
    let resume = Resume { session: welcome.session, secret: welcome.secret };
    let again = Raw::connect(harness.address()).shake(&introduction(harness.address(), 4, Some(resume)));
    assert!(again.unwrap().resumed);
}

// [LIMIT-14]
fn open_that_is_refused_has_neither_made_nor_cut_a_file(on: On) {
    const COUNT: usize = 16;
    let (harness, faults) = Harness::start_faulty(on, |config| config.handles_max = 4);
    let other = harness.session();
    for export in EXPORTS {
        let session = harness.session();
        let (root, beside) = (session.mount(export).unwrap(), other.mount(export).unwrap());
        root.create("f").unwrap().write_all_at(b"content", 0).unwrap();
        session.flush();
        // Room for one, and more who ask for it at once: some are with storage before one is answered.
        let kept = [(); 2].map(|()| root.lookup("f", true).unwrap());
        faults.next(Kind::Open, Fault::Late, COUNT);
        let mut makes = OpenOptions::new();
        makes.write(true).create_new(true);
        let opens: Vec<_> = (0..COUNT).map(|n| root.submit_open_with(format!("new{n}"), &makes)).collect();
        faults.wait_for_held(1);
        faults.release();
        let opened: Vec<_> = opens.into_iter().map(|open| open.wait()).collect();
        for (n, opened) in opened.iter().enumerate() {
            let is_made = beside.metadata(format!("new{n}")).is_ok();
            assert_eq!(opened.is_ok(), is_made, "{export}: new{n}");
        }
        assert_eq!(opened.iter().filter(|opened| opened.is_ok()).count(), 1, "{export}");
        let mut cuts = OpenOptions::new();
        cuts.write(true).truncate(true);
        assert_status(root.open_with("f", &cuts), Status::TOO_MANY_OPEN, "an open that cuts");
        assert_eq!(beside.metadata("f").unwrap().size, 7, "{export}");
        drop((opened, kept));
        session.flush();
        root.open_with("f", &cuts).unwrap();
    }
}

fn handles_beyond_the_limit_are_refused_until_one_is_closed(on: On) {
    let (harness, faults) = Harness::start_faulty(on, |_| {});
    let session = harness.session();
    let other = harness.session();
    let root = session.mount("mem").unwrap();
    root.create("f").unwrap();
    let handles_max = session.agreed().handles_max as usize;
    let mut files = Vec::new();
    'full: loop {
        let pendings: Vec<_> =
            (0..1000).map(|_| root.submit_open_with("f", OpenOptions::new().read(true))).collect();
        for pending in pendings {
            match pending.wait() {
                Ok(file) => files.push(file),
                Err(error) => {
                    assert_eq!(error.status(), Some(Status::TOO_MANY_OPEN), "{error}");
                    break 'full;
                }
            }
        }
        assert!(files.len() <= handles_max, "{} open", files.len());
    }
    // The root is one of them.
    assert_eq!(files.len(), handles_max - 1);
    assert_status(root.lookup("f", true), Status::TOO_MANY_OPEN, "another kind of handle");
    let others = other.mount("mem").unwrap().open("f").unwrap();
    let token = others.share(true, false, Duration::ZERO).unwrap();
    let by_token = root.open_token(&token, "f", OpenOptions::new().read(true));
    assert_status(by_token, Status::TOO_MANY_OPEN, "a handle by a token");
    files.truncate(10);
    wait_for("handles are closed", || session.statistics().unwrap().handles <= 100);
    root.open("f").unwrap();
    // What could not be opened holds nothing.
    drop((root, files, session, others));
    other.close();
    wait_for("all is closed", || faults.open_nodes() == 0);
}

fn open_files_beyond_the_system_limit_are_refused(on: On) {
    let program = Program::start_limited(on, &["--no-calibrate"], Some(256));
    let (session, other) = (program.session(), program.session());
    let kept = other.mount("data").unwrap().create("kept").unwrap();
    let root = session.mount("data").unwrap();
    let mut files = Vec::new();
    let error = loop {
        match root.create(format!("f{}", files.len())) {
            Ok(file) => files.push(file),
            Err(error) => break error,
        }
        assert!(files.len() < 256);
    };
    assert_eq!(error.status(), Some(Status::TOO_MANY_OPEN), "{error}");
    assert_eq!(error.errno(), libc::EMFILE);
    // What is open works, here and elsewhere.
    for file in files.iter().chain([&kept]) {
        file.write_all_at(b"data", 0).unwrap();
    }
    other.mount("mem").unwrap().create("f").unwrap();
    files.truncate(5);
    wait_for("handles are closed", || session.statistics().unwrap().handles <= 20);
    root.create("again").unwrap();
    program.session().ping().unwrap();
}

// [PROV-9]
fn client_that_takes_no_replies_costs_bounded_memory_and_stalls_nobody(on: On) {
    let takers_count = on.rounds(40) as usize;
    let program = Program::start(on, &["--no-calibrate"]);
    let other = program.session();
    let file = other.mount("mem").unwrap().create("f").unwrap();
    file.write_all_at(&bytes(1, 1 << 20), 0).unwrap();
    let before = resident_size(program.id());
    let takers = sessions(&program, takers_count);
    let files: Vec<_> =
        takers.iter().map(|session| session.mount("mem").unwrap().open("f").unwrap()).collect();
    // As many as credits allow are sent; none of their replies is taken.
    let mut pendings = Vec::new();
    for file in &files {
        pendings.extend((0..500).map(|_| file.submit_read_at(vec![0; 16_000], 0)));
    }
    for session in &takers {
        session.flush();
    }
    for round in 0..on.rounds(2000) {
        let mut found = vec![0; 1000];
        file.read_exact_at(&mut found, round * 100).unwrap();
    }
    let grown = resident_size(program.id()).saturating_sub(before);
    // What the slots of a session may hold, and no more.
    let bound = (takers_count * 64 * (16 << 10)) as u64 + (32 << 20);
    assert!(grown <= bound, "{grown} bytes for {takers_count} clients that take nothing, {bound} at most");
    // When they take again, all of it is there.
    let expected = bytes(1, 1 << 20);
    for pending in pendings {
        let read = pending.wait();
        assert_eq!(read.result.unwrap(), 16_000);
        assert_same(&read.buffer, &expected[..16_000], "a reply that waited");
    }
}

fn memory_export_that_is_full_says_so_and_stays_whole(on: On) {
    let harness = Harness::start_with(on, |config| {
        config.exports[1].kind = dafs_server::config::ExportKind::Memory { size_max: 1 << 20 };
    });
    let reconnect = ReconnectPolicy { backoff_max: Duration::from_millis(50), ..ReconnectPolicy::default() };
    let session = harness.session_with(&Config { reconnect, ..Config::default() });
    let root = session.mount("mem").unwrap();
    let file = root.create("f").unwrap();
    let mut written = 0;
    let error = loop {
        match file.write_at(&bytes(written, 50_000), written) {
            Ok(count) => written += count as u64,
            Err(error) => break error,
        }
        assert!(written <= 1 << 20);
    };
    assert_eq!(error.status(), Some(Status::NO_SPACE), "{error}");
    assert!(matches!(error, Error::Status { .. }));
    assert!(written >= 900_000, "only {written} bytes fit");
    assert_eq!(root.statfs("").unwrap().blocks_free * root.statfs("").unwrap().block_size / (200 << 10), 0);
    let mut found = vec![0; 50_000];
    file.read_exact_at(&mut found, 0).unwrap();
    assert_same(&found, &bytes(0, 50_000), "what was written before");
    assert!(file.append(&vec![1; 500_000]).is_err());
    file.truncate(0).unwrap();
    file.write_all_at(&bytes(5, 50_000), 0).unwrap();
}

// [ACC-141] Names have any length: those that a message has no room for are left out, whatever room the others leave.
#[test]
fn as_many_clients_are_named_as_a_message_has_room_for() {
    let harness = Harness::start(On::Tcp);
    let connect = |name: &str, inline_max| {
        let config = Config { client_name: Some(name.to_owned()), inline_max, ..idle() };
        let session = Session::connect(harness.url(), &config).unwrap();
        session.mount("mem").unwrap();
        session
    };
    let others: Vec<_> = (0..250).map(|number| connect(&format!("other {number}"), 16 << 10)).collect();
    let asks = connect("", PAYLOAD_SIZE_MIN as u32);
    // A line break is shown by two characters.
    for len in 0..128 {
        let _first = connect(&("!".repeat(len % 2) + &"\n".repeat(len / 2)), 16 << 10);
        let named = asks.statistics().unwrap().clients.len();
        assert!(
            named > 10 && named < others.len(),
            "{named} of {} clients beside one of {len}",
            others.len()
        );
    }
}
