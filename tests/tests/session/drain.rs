//! Storage that is slow: a server that stops meanwhile, deadlines that pass, credits that grow without a reply.

use dafs_client::{Background, Config, Error, MethodOverride, ReconnectPolicy, Session};
use dafs_proto::wire::{FileHandle, Flags, Header, Opcode, Status, WriteReply};
use dafs_tests::faulty::{Fault, Kind};
use dafs_tests::harness::{Harness, On};
use dafs_tests::on_each_provider_and_three_workers;
use dafs_tests::raw::{Raw, read_body, write_body};
use dafs_tests::suite::{assert_same, bytes};

use crate::cuts::wait_for;

on_each_provider_and_three_workers! {
    server_that_stops_finishes_what_is_in_flight_and_refuses_new_sessions,
    request_whose_deadline_passes_before_its_turn_has_no_effect,
    credits_grow_without_a_reply_when_another_session_falls_idle,
    client_that_is_silent_is_told_of_more_credits_only_once,
}

/// More replies than a socket takes, 32 MB of them: an emulated device moves as much in a second, and its queues take them all.
mod many {
    use super::{
        server_that_stops_ends_although_a_client_takes_no_replies,
        server_that_stops_waits_for_replies_that_nobody_takes_yet,
    };

    dafs_tests::on_sockets! {
        server_that_stops_waits_for_replies_that_nobody_takes_yet,
        server_that_stops_ends_although_a_client_takes_no_replies,
    }
}

fn progress() -> Config {
    let reconnect = ReconnectPolicy { attempts_max: 2, ..ReconnectPolicy::default() };
    Config { background: Background::Progress, reconnect, ..Config::default() }
}

// [SESS-40] [SESS-46] [SESS-100] [SESS-101]
fn server_that_stops_finishes_what_is_in_flight_and_refuses_new_sessions(on: On) {
    let (mut harness, faults) = Harness::start_faulty(on, |config| config.drain_ms = 60_000);
    let (url, config) = (harness.url(), harness.client_config(&progress()));
    let session = harness.session_with(&progress());
    let root = session.mount("mem").unwrap();
    let file = root.create("log").unwrap();
    faults.next(Kind::Append, Fault::Hold, 1);
    faults.next(Kind::Mkdir, Fault::Hold, 1);
    let appended = file.submit_append(b"once".to_vec());
    let made = root.submit_create_dir("d", 0o755);
    session.flush();
    faults.wait_for_held(2);
    assert!(!session.is_draining());
    std::thread::scope(|scope| {
        scope.spawn(|| harness.stop());
        wait_for(|| session.is_draining());
        let refused = Session::connect(&url, &config).expect_err("a server that stops takes no sessions");
        assert!(matches!(refused, Error::Connect(_)), "{refused:?}");
        // Sessions that are there go on as long as the server does.
        session.ping().unwrap();
        assert_eq!(root.create("late").unwrap().append(b"served").unwrap(), 0);
        assert_eq!(faults.held(), 2);
        faults.release();
        assert_eq!(appended.wait().unwrap(), 0);
        made.wait().unwrap();
    });
    let gone = session.ping().expect_err("the server is gone");
    assert!(matches!(gone, Error::Connection { .. }), "{gone:?}");
    assert!(gone.to_string().contains("attempts to connect again"), "{gone}");
}

/// Inline reads of one request each whose replies nobody takes: more than the kernel keeps for a connection.
struct Untaken {
    session: Session,
    reads: Vec<dafs_client::Pending<dafs_client::Transferred<Vec<u8>>>>,
    data: Vec<u8>,
}

impl Untaken {
    const COUNT: u16 = 512;

    fn start(on: On, drain_ms: u32) -> (Harness, Self) {
        let harness = Harness::start_with(on, |config| {
            config.drain_ms = drain_ms;
            (config.slots_max, config.buffered_slots_max) = (Self::COUNT, Self::COUNT);
            config.inline_max = 64 << 10;
        });
        let reconnect = ReconnectPolicy { attempts_max: 2, ..ReconnectPolicy::default() };
        let method = MethodOverride::Inline;
        let config = Config { credits: Self::COUNT, method, reconnect, ..Config::default() };
        let session = harness.session_with(&config);
        let file = session.mount("mem").unwrap().create("f").unwrap();
        let piece = session.agreed().read_inline_max as usize;
        let data = bytes(2, piece);
        file.write_all_at(&data, 0).unwrap();
        let submit = || (0..Self::COUNT).map(|_| file.submit_read_at(vec![0; piece], 0)).collect::<Vec<_>>();
        wait_for(|| {
            for read in submit() {
                assert_eq!(read.wait().result.unwrap(), piece);
            }
            session.credits() == Self::COUNT
        });
        let reads = submit();
        session.flush();
        (harness, Self { session, reads, data })
    }
}

// [SESS-100]
fn server_that_stops_waits_for_replies_that_nobody_takes_yet(on: On) {
    let (mut harness, untaken) = Untaken::start(on, 60_000);
    let watcher = harness.session_with(&progress());
    let executed = || watcher.statistics().unwrap().in_flight;
    wait_for(|| executed() <= 1);
    std::thread::scope(|scope| {
        scope.spawn(|| harness.stop());
        wait_for(|| watcher.is_draining());
        for read in untaken.reads {
            let read = read.wait();
            assert_eq!(read.result.unwrap(), untaken.data.len());
            assert_same(&read.buffer, &untaken.data, "what was read");
        }
    });
    assert_eq!(untaken.session.reconnects(), 0);
}

// [SESS-100]
fn server_that_stops_ends_although_a_client_takes_no_replies(on: On) {
    let (mut harness, untaken) = Untaken::start(on, 100);
    harness.stop();
    let lost = untaken.reads.into_iter().filter_map(|read| read.wait().result.err()).collect::<Vec<_>>();
    // Elsewhere each reply has its place before anybody takes it.
    assert!(on != On::Tcp || !lost.is_empty(), "nobody took what the server had not sent");
    assert!(lost.iter().all(|error| matches!(error, Error::Connection { .. })), "{lost:?}");
}

// [SESS-44] [SESS-91]
fn request_whose_deadline_passes_before_its_turn_has_no_effect(on: On) {
    let (harness, faults) = Harness::start_faulty(on, |_| {});
    let watcher = harness.session();
    let (mut raw, _) = Raw::session(harness.address(), 8);
    let root = raw.mount("mem");
    let file = raw.create(root, b"log");
    faults.next(Kind::Read, Fault::Hold, 1);
    let mut first = Header { flags: Flags::CHAIN_FORWARD, ..Header::request(Opcode::Read, file) };
    raw.begin(&mut first);
    raw.send(first, &read_body(0, 10, None), &[]);
    let flags = Flags::CHAIN_BACK | Flags::CHAIN_FORWARD;
    let mut late = Header { flags, deadline_ms: 1, ..Header::request(Opcode::Append, file) };
    raw.begin(&mut late);
    raw.send(late, &write_body(0, 4, None), b"late");
    let mut behind = Header { flags: Flags::CHAIN_BACK, ..Header::request(Opcode::Append, file) };
    raw.begin(&mut behind);
    raw.send(behind, &write_body(0, 4, None), b"next");
    faults.wait_for_held(1);
    // All three have arrived, and the second's time is over.
    let arrived = || watcher.statistics().unwrap();
    wait_for(|| arrived().in_flight >= 3);
    let now = arrived().uptime_ms;
    wait_for(|| arrived().uptime_ms >= now + 3);
    faults.release();
    let replies: Vec<_> = (0..3).map(|_| raw.receive().unwrap()).collect();
    let statuses: Vec<Status> = replies.iter().map(|reply| reply.header.status).collect();
    assert_eq!(statuses, [Status::OK, Status::TIMED_OUT, Status::CHAIN_ABORTED]);
    replies.iter().for_each(|reply| raw.end(reply));
    // One that begins in time is executed.
    let soon = Header { deadline_ms: 60_000, ..Header::request(Opcode::Append, file) };
    let reply = raw.call(soon, &write_body(0, 4, None), b"soon");
    let written = WriteReply::decode(&reply.body).unwrap();
    assert_eq!((reply.header.status, written.offset, written.count), (Status::OK, 0, 4));
}

// [SESS-22] [SESS-95]
fn credits_grow_without_a_reply_when_another_session_falls_idle(on: On) {
    const BUDGET: u16 = 16;
    let (harness, faults) = Harness::start_faulty(on, |config| config.operations_max = BUDGET.into());
    let session =
        harness.session_with(&Config { credits: BUDGET, method: MethodOverride::Inline, ..progress() });
    let other = harness.session();
    let file = session.mount("mem").unwrap().create("f").unwrap();
    // One read of as many requests as the budget has: each tells how many are wanted.
    let piece = session.agreed().read_inline_max as usize;
    let data = bytes(1, piece * usize::from(BUDGET));
    file.write_all_at(&data, 0).unwrap();
    wait_for(|| {
        other.ping().unwrap();
        file.read_exact_at(&mut vec![0; data.len()], 0).unwrap();
        session.credits() == BUDGET / 2
    });
    faults.next(Kind::Read, Fault::Hold, BUDGET.into());
    let read = file.submit_read_at(vec![0; data.len()], 0);
    session.flush();
    faults.wait_for_held(usize::from(BUDGET / 2));
    assert!(session.credits() < BUDGET);
    other.close();
    // No reply can tell: none is given.
    faults.wait_for_held(usize::from(BUDGET));
    assert_eq!(session.credits(), BUDGET);
    faults.release();
    let read = read.wait();
    assert_eq!(read.result.unwrap(), data.len());
    assert_same(&read.buffer, &data, "what was read");
    assert_eq!((session.reconnects(), session.statistics().unwrap().protocol_errors), (0, 0));
}

// [SESS-96]
fn client_that_is_silent_is_told_of_more_credits_only_once(on: On) {
    let (harness, faults) = Harness::start_faulty(on, |config| config.operations_max = 16);
    let mut others: Vec<Session> = (0..3).map(|_| harness.session()).collect();
    let (mut raw, _) = Raw::session(harness.address(), 64);
    let root = raw.mount("mem");
    let file = raw.create(root, b"f");
    // Each request says how many are wanted, and each reply how many there are.
    wait_for(|| {
        others.iter().for_each(|other| assert!(other.ping().is_ok()));
        raw.call(Header::request(Opcode::Null, FileHandle(0)), &[], &[]);
        raw.credits() == 4
    });
    faults.next(Kind::Read, Fault::Hold, 4);
    for _ in 0..4 {
        let mut read = Header::request(Opcode::Read, file);
        raw.begin(&mut read);
        raw.send(read, &read_body(0, 10, None), &[]);
    }
    faults.wait_for_held(4);
    others.pop().unwrap().close();
    let told = raw.receive_any().unwrap().header;
    assert_eq!(told.opcode, Opcode::CreditTarget);
    assert!(told.credits > 4, "{} credits", told.credits);
    raw.note_credits(&told);
    // Its share grows again, and it says nothing for some turns of the server.
    others.pop().unwrap().close();
    let uptime = || others[0].statistics().unwrap().uptime_ms;
    let now = uptime();
    wait_for(|| uptime() >= now + 500);
    // What the server sent meanwhile comes before the answer.
    let mut null = Header::request(Opcode::Null, FileHandle(0));
    raw.begin(&mut null);
    raw.send(null, &[], &[]);
    let next = raw.receive_any().unwrap();
    assert_eq!(next.header.opcode, Opcode::Null, "told again: {} credits", next.header.credits);
    assert!(next.header.credits > told.credits, "there was something to tell");
    faults.release();
}
