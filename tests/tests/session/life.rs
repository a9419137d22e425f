//! Credits, time, the end of sessions.

use std::sync::Arc;

use dafs_client::{Background, Config, Error, FenceList, LockKind, OpenOptions, Session, SystemClock};
use dafs_proto::transport::Access;
use dafs_proto::wire::{FileHandle, Header, LockFlags, LockRequest, Opcode, Status};
use dafs_tests::cut::{Relay, Way};
use dafs_tests::exhausted::{Registers, connect_exhausted};
use dafs_tests::faulty::{Fault, Kind};
use dafs_tests::harness::{Harness, On};
use dafs_tests::program::Program;
use dafs_tests::raw::{Raw, domain, introduction, write_body};
use dafs_tests::suite::{assert_same, bytes};
use dafs_tests::{on_each_provider, on_each_provider_and_three_workers};

use crate::cuts::wait_for;

on_each_provider_and_three_workers! {
    credits_stay_within_the_budget_of_the_server,
    session_that_waits_for_a_fenced_client_outlives_its_lease,
    silent_session_ends_with_its_lease_and_files_are_reopened,
    sessions_outlive_a_server_that_stood_still,
    session_that_is_closed_or_dropped_ends_on_the_server_too,
    handles_of_dropped_files_are_given_back,
    server_that_stops_tells_its_clients,
    sessions_of_one_domain_share_registered_memory,
    buffers_that_cannot_be_registered_are_ordinary_memory,
    credits_follow_what_the_client_wants_and_never_pass_the_slots,
    chain_asks_for_as_many_credits_as_it_has_requests,
    slots_leave_room_for_callbacks,
}

/// They take seconds, and one session of its own.
mod alone {
    use super::*;

    on_each_provider! {
        session_whose_operation_is_with_storage_outlives_its_lease,
        session_that_is_kept_alive_outlives_its_lease,
        callback_is_no_sign_of_the_client_that_takes_it,
        handshake_outlives_a_server_that_stood_still,
    }
}

/// What passes through buffers of one worker, by a stream.
mod buffered {
    pub(super) mod tcp {
        #[test]
        fn session_whose_operation_waits_for_buffers_outlives_its_lease() {
            super::super::waiting_for_buffers();
        }

        #[test]
        fn stopped_session_ends_with_its_lease_despite_waiting_request() {
            super::super::stopped_beside_one_that_waits_for_buffers();
        }

        #[test]
        fn session_whose_data_is_on_its_way_outlives_its_lease() {
            super::super::data_on_its_way();
        }
    }
}

// [SESS-20] [SESS-21] [SESS-119] [CLI-108]
fn credits_follow_what_the_client_wants_and_never_pass_the_slots(on: On) {
    let harness = Harness::start_with(on, |config| config.slots_max = 32);
    for (wanted, slots) in [(1, 1), (8, 8), (32, 32), (500, 32)] {
        let session = harness.session_with(&Config { credits: wanted, ..Config::default() });
        assert_eq!(session.agreed().slots, slots);
        let file = session.mount("mem").unwrap().create("f").unwrap();
        for _ in 0..3 {
            let pendings: Vec<_> = (0..on.rounds(200).max(64))
                .map(|index| file.submit_write_at(vec![1; 100], index * 100))
                .collect();
            assert!(session.credits() <= slots);
            pendings.into_iter().for_each(|pending| assert_eq!(pending.wait().result.unwrap(), 100));
        }
        assert_eq!(session.credits(), slots, "as many as were wanted");
        // Who wants one only is given fewer, step by step.
        wait_for(|| {
            session.ping().unwrap();
            session.credits() <= slots.div_ceil(2)
        });
        assert_eq!(session.limits().unwrap().slots, slots);
    }
    assert_eq!(harness.session().statistics().unwrap().protocol_errors, 0);
}

// [SESS-133]
fn slots_leave_room_for_callbacks(on: On) {
    let harness = Harness::start(on);
    for (depth, slots) in [(20, 16), (6, 2), (5, 1), (4, 1)] {
        let mut raw = Raw::connect_with_depth(harness.address(), depth);
        let welcome = raw.shake(&introduction(harness.address(), 32, None)).unwrap();
        assert_eq!(welcome.slots, slots, "a client that receives {depth} messages");
    }
}

// [CLI-108] Else each of its requests waits for the reply to the one before.
fn chain_asks_for_as_many_credits_as_it_has_requests(on: On) {
    let harness = Harness::start(on);
    let session = harness.session();
    let file = session.mount("mem").unwrap().create("f").unwrap();
    wait_for(|| {
        session.ping().unwrap();
        session.credits() == 1
    });
    file.chain().write_at(b"1", 0).write_at(b"2", 1).write_at(b"3", 2).commit().run().unwrap();
    assert_eq!(session.credits(), 4);
}

// [SESS-22]
fn credits_stay_within_the_budget_of_the_server(on: On) {
    let harness = Harness::start_with(on, |config| config.operations_max = 8);
    let session = harness.session();
    let file = session.mount("mem").unwrap().create("f").unwrap();
    for _ in 0..5 {
        let pendings: Vec<_> =
            (0..300).map(|index| file.submit_write_at(vec![1; 100], index * 100)).collect();
        pendings.into_iter().for_each(|pending| assert_eq!(pending.wait().result.unwrap(), 100));
    }
    assert!(session.credits() <= 8, "{} credits of a budget of 8", session.credits());
}

// [SESS-98] Repeated in a new session it would be carried out twice, the second time perhaps over what was written since.
fn session_whose_operation_is_with_storage_outlives_its_lease(on: On) {
    let (harness, faults) =
        Harness::start_faulty(on, |config| (config.lease_ms, config.keep_alive_ms) = (300, 100));
    let config = Config { background: Background::None, credits: 1, ..Config::default() };
    let (watcher, session) = (harness.session(), harness.session_with(&config));
    let root = session.mount("mem").unwrap();
    let file = root.create("f").unwrap();
    faults.next(Kind::Write, Fault::Hold, 1);
    let write = file.submit_write_at(b"data".to_vec(), 0);
    session.flush();
    faults.wait_for_held(1);
    // It may have been silent for a lease until then.
    let before = session.reconnects();
    // Those that are silent for a lease end: two of them, one after the other.
    for _ in 0..2 {
        let silent = harness.session_with(&Config { background: Background::None, ..Config::default() });
        wait_for(|| watcher.statistics().unwrap().sessions == 2);
        drop(silent);
    }
    faults.release();
    assert_eq!(write.wait().result.unwrap(), 4);
    assert_eq!(session.reconnects(), before);
}

// [SESS-98] [SESS-130] It has one credit, and storage writes for whom it fences off.
fn session_that_waits_for_a_fenced_client_outlives_its_lease(on: On) {
    let (harness, faults) =
        Harness::start_faulty(on, |config| [config.lease_ms, config.keep_alive_ms] = [3000, 300]);
    let fenced = harness.session_with(&Config { client_id: Some([1; 16]), ..Config::default() });
    let (watcher, session) =
        (harness.session(), harness.session_with(&Config { credits: 1, ..Config::default() }));
    let (root, file) = (session.mount("mem").unwrap(), fenced.mount("mem").unwrap().create("f").unwrap());
    faults.next(Kind::Write, Fault::Hold, 1);
    let write = file.submit_write_at(b"data".to_vec(), 0);
    fenced.flush();
    faults.wait_for_held(1);
    std::thread::scope(|scope| {
        let fence = scope.spawn(|| root.set_fence_list(&FenceList::of_clients(&[[1; 16]])));
        for _ in 0..3 {
            let silent = silent(&harness);
            wait_for(|| watcher.statistics().unwrap().sessions == 3);
            drop(silent);
        }
        faults.release();
        fence.join().unwrap().unwrap();
    });
    assert_eq!(session.reconnects(), 0, "neither side gave the other up");
    drop(write);
}

// [SESS-98] [SESS-130] It has one credit, and others have all buffers.
fn waiting_for_buffers() {
    const LEN: u32 = 256 << 10;
    let (harness, faults) = Harness::start_faulty(On::Tcp, |config| {
        // A busy machine keeps neither side from speaking for so long.
        [config.lease_ms, config.keep_alive_ms] = [3000, 300];
        config.buffers_size_max = 4 * u64::from(LEN);
    });
    let watcher = harness.session();
    let others = [3, 1].map(|count| {
        let session = harness.session();
        let file = session.mount("mem").unwrap().create("other").unwrap();
        faults.next(Kind::Append, Fault::Hold, count);
        let appends: Vec<_> = (0..count).map(|_| file.submit_append(bytes(1, LEN as usize))).collect();
        wait_for(|| session.ping().is_ok() && faults.left() == 0);
        (session, appends)
    });
    let config = Config { credits: 1, ..Config::default() };
    let session = harness.session_with(&config);
    let file = session.mount("mem").unwrap().create("f").unwrap();
    std::thread::scope(|scope| {
        let append = scope.spawn(|| file.append(&bytes(1, LEN as usize)));
        for _ in 0..3 {
            let silent = silent(&harness);
            wait_for(|| watcher.statistics().unwrap().sessions == 4);
            drop(silent);
        }
        faults.release();
        append.join().unwrap().unwrap();
    });
    assert_eq!(session.reconnects(), 0, "neither side gave the other up");
    for (_, appends) in others {
        appends.into_iter().for_each(|append| assert!(append.wait().is_ok()));
    }
}

// [SESS-98] It uses all that it may have, and serves none of the reads that the others of its requests wait for.
fn stopped_beside_one_that_waits_for_buffers() {
    const LEN: u32 = 256 << 10;
    const SLOTS: u16 = 8;
    let harness = Harness::start_with(On::Tcp, |config| {
        // A busy machine does not keep the client from speaking for so long before all is sent.
        [config.lease_ms, config.keep_alive_ms] = [2500, 100];
        config.buffers_size_max = 4 * u64::from(LEN);
    });
    let watcher = harness.session();
    let (mut raw, _) = Raw::session(harness.address(), SLOTS);
    while raw.credits() < SLOTS {
        raw.call(Header::request(Opcode::Null, FileHandle(0)), &[], &[]);
    }
    let root = raw.mount("mem");
    let handle = raw.create(root, b"f");
    let region = raw.region(LEN as usize, Access::all());
    let segment = [region.range().key.0, region.range().offset, LEN.into()];
    for _ in 0..SLOTS {
        let mut write = Header::request(Opcode::Write, handle);
        raw.begin(&mut write);
        raw.send(write, &write_body(0, LEN, Some(segment)), &[]);
    }
    wait_for(|| watcher.statistics().unwrap().sessions == 1);
}

// [SESS-129] With one credit neither side says anything while the data is on its way.
fn data_on_its_way() {
    const LEN: usize = 64 << 20;
    const AT_ONCE: u64 = 2 << 20;
    let lease = |lease_ms, keep_alive_ms| {
        Harness::start_with(On::Tcp, |config| {
            [config.lease_ms, config.keep_alive_ms] = [lease_ms, keep_alive_ms];
        })
    };
    let (harness, clock) = (lease(2500, 400), lease(100, 30));
    let (relay, watcher) = (Relay::start(harness.address(), vec![]), clock.session());
    std::fs::write(harness.data().join("f"), bytes(1, LEN)).unwrap();
    let config = Config { background: Background::None, credits: 1, ..Config::default() };
    let session = Session::connect(relay.url(), &config).unwrap();
    let file = session.mount("data").unwrap().open("f").unwrap();
    let first = session.agreed().session;
    let mut found = vec![0; LEN];
    relay.stall();
    std::thread::scope(|scope| {
        let read = scope.spawn(|| file.read_at(&mut found, 0));
        // Those that are silent elsewhere end, one after the other: several leases of the session.
        for _ in 0..24 {
            relay.let_through(Way::ToClient, AT_ONCE);
            let silent = silent(&clock);
            wait_for(|| watcher.statistics().unwrap().sessions == 1);
            drop(silent);
        }
        relay.go_on();
        assert_eq!(read.join().unwrap().unwrap(), LEN);
    });
    assert_eq!((session.reconnects(), session.agreed().session), (0, first));
    assert_same(&found, &bytes(1, LEN), "what was read");
}

/// A session that says nothing any more.
fn silent(harness: &Harness) -> Session {
    let silent = harness.session_with(&Config { background: Background::None, ..Config::default() });
    silent.ping().unwrap();
    silent
}

// [SESS-43] [SESS-52]
fn silent_session_ends_with_its_lease_and_files_are_reopened(on: On) {
    let harness = Harness::start_with(on, |config| (config.lease_ms, config.keep_alive_ms) = (300, 100));
    let watcher = harness.session();
    let silent = harness.session_with(&Config { background: Background::None, ..Config::default() });
    let file = silent.mount("data").unwrap().create("f").unwrap();
    file.write_all_at(b"data", 0).unwrap();
    let (id, before) = (silent.agreed().session, silent.reconnects());
    wait_for(|| watcher.statistics().unwrap().sessions == 1);
    assert_eq!(watcher.statistics().unwrap().handles, 0, "handles went with it");
    let mut data = [0; 4];
    file.read_exact_at(&mut data, 0).unwrap();
    assert_eq!(&data, b"data");
    assert!(silent.reconnects() > before);
    assert_ne!(silent.agreed().session, id, "another session");
}

// [SESS-131]
fn callback_is_no_sign_of_the_client_that_takes_it(on: On) {
    let harness = Harness::start_with(on, |config| (config.lease_ms, config.keep_alive_ms) = (3000, 1000));
    let session = harness.session();
    let held = session.mount("data").unwrap().create("f").unwrap();
    held.lock(0..1, LockKind::Exclusive).unwrap();
    let (mut told, _) = Raw::session(harness.address(), 8);
    let root = told.mount("data");
    let file = told.create(root, b"f");
    let flags = LockFlags::WAIT | LockFlags::NOTIFY;
    let request = LockRequest { offset: 0, len: 1, owner: 1, kind: LockKind::Exclusive, flags };
    let waits = told.call(Header::request(Opcode::Lock, file), &request.bytes(), &[]);
    assert_eq!(waits.header.status, Status::WAITING);
    // It speaks later, and before the other is told.
    let (mut silent, _) = Raw::session(harness.address(), 1);
    silent.mount("data");
    let uptime = || session.statistics().unwrap().uptime_ms;
    let then = uptime();
    wait_for(|| uptime() >= then + 500);
    held.unlock(0..1).unwrap();
    assert_eq!(told.receive().expect("a callback").header.opcode, Opcode::LockTurn);
    wait_for(|| session.statistics().unwrap().sessions < 3);
    assert!(
        session.statistics().unwrap().handles <= 3,
        "the one that was told ends first, or with the other"
    );
}

// [SESS-42] [CLI-106]
fn session_that_is_kept_alive_outlives_its_lease(on: On) {
    let harness = Harness::start_with(on, |config| (config.lease_ms, config.keep_alive_ms) = (3000, 100));
    let watcher = harness.session();
    let kept = [Background::KeepAlive, Background::Progress]
        .map(|background| harness.session_with(&Config { background, ..Config::default() }));
    // Two sessions that are silent, one after the other, measure two leases.
    for _ in 0..2 {
        let silent = harness.session_with(&Config { background: Background::None, ..Config::default() });
        silent.ping().unwrap();
        wait_for(|| watcher.statistics().unwrap().sessions == 3);
    }
    for session in &kept {
        assert_eq!(session.reconnects(), 0);
        session.ping().unwrap();
        assert_eq!(session.reconnects(), 0);
    }
}

// [SESS-47]
fn sessions_outlive_a_server_that_stood_still(on: On) {
    use rustix::process::{Pid, Signal, kill_process};
    const LEASE: [u32; 2] = [2500, 200];
    let program = Program::start(on, &["--log", "info", "--lease-ms", "2500", "--keep-alive-ms", "200"]);
    let clock = Harness::start_with(on, |config| [config.lease_ms, config.keep_alive_ms] = LEASE);
    let watcher = clock.session();
    let sessions: Vec<_> = (0..5).map(|_| program.session()).collect();
    let files: Vec<_> = (0..5)
        .zip(&sessions)
        .map(|(number, session)| {
            let root = session.mount("data").unwrap();
            let (file, name) = (root.create(format!("f{number}")).unwrap(), format!("f{number}"));
            root.remove_file(name).unwrap();
            file
        })
        .collect();
    let ids: Vec<_> = sessions.iter().map(|session| session.agreed().session).collect();
    let server = Pid::from_raw(i32::try_from(program.id()).unwrap()).unwrap();
    kill_process(server, Signal::STOP).unwrap();
    let appends: Vec<_> = files.iter().map(|file| file.submit_append(b"data".to_vec())).collect();
    sessions.iter().for_each(Session::flush);
    // Two sessions that are silent elsewhere, one after the other, measure two leases.
    for _ in 0..2 {
        let silent = clock.session_with(&Config { background: Background::None, ..Config::default() });
        silent.ping().unwrap();
        wait_for(|| watcher.statistics().unwrap().sessions == 1);
    }
    kill_process(server, Signal::CONT).unwrap();
    for (append, file) in appends.into_iter().zip(&files) {
        assert_eq!(append.wait().unwrap(), 0);
        assert_eq!(file.metadata().unwrap().size, 4, "a file without a name is still there");
    }
    let after: Vec<_> = sessions.iter().map(|session| session.agreed().session).collect();
    assert_eq!(after, ids);
}

// [SESS-47]
fn handshake_outlives_a_server_that_stood_still(on: On) {
    use rustix::process::{Pid, Signal, kill_process};
    let program = Program::start(on, &["--handshake-ms", "2500", "--no-calibrate"]);
    let clock = Harness::start_with(on, |config| config.handshake_ms = 2500);
    let mut raw = Raw::connect(program.address());
    // The server has taken it by then.
    program.session().ping().unwrap();
    let server = Pid::from_raw(i32::try_from(program.id()).unwrap()).unwrap();
    kill_process(server, Signal::STOP).unwrap();
    // Two that say nothing elsewhere, one after the other, measure the time of two handshakes.
    for _ in 0..2 {
        Raw::connect(clock.address()).ending();
    }
    kill_process(server, Signal::CONT).unwrap();
    raw.shake(&introduction(program.address(), 4, None)).unwrap();
}

// [SESS-99]
fn session_that_is_closed_or_dropped_ends_on_the_server_too(on: On) {
    let harness = Harness::start(on);
    let watcher = harness.session();
    let sessions = || watcher.statistics().unwrap().sessions;
    let closed = harness.session();
    let file = closed.mount("mem").unwrap().create("f").unwrap();
    assert_eq!(sessions(), 2);
    let pending = file.submit_read_at(vec![3; 10], 0);
    closed.close();
    assert!(matches!(closed.ping(), Err(Error::Closed)));
    assert!(matches!(file.metadata(), Err(Error::Closed)));
    let ended = pending.wait();
    assert!(ended.result.is_err() || ended.result.unwrap() == 0, "an empty file");
    wait_for(|| sessions() == 1);
    let dropped = harness.session();
    let root = dropped.mount("mem").unwrap();
    drop(dropped);
    root.metadata("f").expect("an export keeps its session");
    drop(root);
    wait_for(|| sessions() == 1);
    assert_eq!(watcher.statistics().unwrap().handles, 0);
}

fn handles_of_dropped_files_are_given_back(on: On) {
    let harness = Harness::start(on);
    let session = harness.session();
    let root = session.mount("mem").unwrap();
    let files: Vec<_> = (0..100).map(|index| root.create(index.to_string()).unwrap()).collect();
    let handles = || session.statistics().unwrap().handles;
    assert_eq!(handles(), 101);
    drop(files);
    wait_for(|| handles() == 1);
    // Opened by an operation whose result nobody collects.
    for index in 0..50 {
        drop(root.submit_open_with(index.to_string(), OpenOptions::new().read(true)));
    }
    session.ping().unwrap();
    wait_for(|| handles() == 1);
    // Dropped appends are executed all the same.
    let file = root.create("log").unwrap();
    (0..100).for_each(|_| drop(file.submit_append(vec![1; 100])));
    wait_for(|| file.metadata().unwrap().size == 10_000);
    let held = [(); 30].map(|()| file.submit_read_at(session.buffer(50_000).unwrap(), 0));
    drop(held);
    session.ping().unwrap();
}

fn server_that_stops_tells_its_clients(on: On) {
    let mut harness = Harness::start_with(on, |config| config.drain_ms = 100);
    let config = Config { background: Background::Progress, ..Config::default() };
    let session = harness.session_with(&config);
    assert!(!session.is_draining());
    harness.stop();
    harness.restart();
    session.ping().unwrap();
    assert_eq!(session.reconnects(), 1);
    assert!(!session.is_draining(), "the new server does not drain");
}

// [PROV-17]
fn sessions_of_one_domain_share_registered_memory(on: On) {
    let harness = Harness::start(on);
    let domain = domain(harness.address());
    let config = harness.client_config(&Config::default());
    let connect = || {
        let clock = Arc::new(SystemClock::default());
        Session::connect_with(Arc::clone(&domain), harness.address().clone(), &config, clock).unwrap()
    };
    let (one, two) = (connect(), connect());
    let written = one.mount("mem").unwrap().create("f").unwrap();
    let read = two.mount("mem").unwrap().open("f").unwrap();
    let data = bytes(1, 200_000);
    let mut buffer = one.buffer(data.len()).unwrap();
    buffer.copy_from_slice(&data);
    assert_eq!(written.write_buf_at(&buffer, 0).unwrap(), data.len());
    buffer.fill(0);
    // Nothing is sent any more, so nothing is taken from the other.
    one.close();
    assert!(matches!(written.write_buf_at(&buffer, 0), Err(Error::Closed)));
    drop((written, one));
    assert_eq!(read.read_buf_at(&mut buffer, 0).unwrap(), data.len());
    assert_same(&buffer, &data, "memory of the other session");
}

// [CLI-3]
fn buffers_that_cannot_be_registered_are_ordinary_memory(on: On) {
    let harness = Harness::start(on);
    let session = connect_exhausted(&harness, Registers::Nothing, &Config::default());
    let file = session.mount("mem").unwrap().create("f").unwrap();
    for size in [1, 10_000, 300_000] {
        let data = bytes(size as u64, size);
        let mut buffer = session.buffer(size).unwrap();
        assert!(!buffer.is_registered());
        buffer.copy_from_slice(&data);
        assert_eq!(file.write_buf_at(&buffer, 0).unwrap(), size);
        buffer.fill(0);
        assert_eq!(file.read_buf_at(&mut buffer, 0).unwrap(), size);
        assert_same(&buffer, &data, "through a buffer that is not registered");
        let written = file.submit_write_at(buffer, 7).wait();
        assert_eq!(written.result.unwrap(), size);
        let mut found = vec![0; size];
        file.read_exact_at(&mut found, 7).unwrap();
        assert_same(&found, &data, "what was submitted");
    }
}
