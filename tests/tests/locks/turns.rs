//! Locks that are waited for without a request in flight: the server tells when to ask again.

use dafs_client::{Background, Config, Error, File, LockKind, LockOptions, Session};
use dafs_proto::wire::{
    FileHandle, Flags, HEADER_SIZE, Header, LockFlags, LockRequest, LockTurn, Opcode, Status, UnlockRequest,
};
use dafs_tests::cut::cut_connections;
use dafs_tests::harness::{Harness, On};
use dafs_tests::program::Program;
use dafs_tests::raw::{Message, Raw};
use dafs_tests::suite::{resident_size, wait_for};
use dafs_tests::{on_each_provider, on_each_provider_and_three_workers};

use super::open;
use LockKind::{Exclusive, Shared};

on_each_provider_and_three_workers! {
    locks_that_wait_leave_their_session_its_slots,
    ten_thousand_who_wait_are_served_in_order,
    wait_that_is_given_up_is_granted_to_nobody,
    owner_waiting_by_two_handles_is_told_of_each,
    wait_goes_on_over_a_connection_that_breaks,
    wait_goes_on_over_a_restart,
    whoever_asks_again_keeps_his_place,
    grant_that_is_ignored_is_taken_back,
    grant_asked_for_again_or_given_back_is_not_taken_back,
    client_whose_only_credit_waits_for_a_lock_is_not_silent,
    wait_that_is_cancelled_is_told_of_no_more,
    client_that_says_nothing_is_called_back_eight_times,
    unlock_that_nobody_waits_for_leaves_at_once,
}

fn by(owner: u64) -> LockOptions {
    LockOptions { owner: Some(owner), ..LockOptions::default() }
}

// [LOCK-25] [LOCK-68]
fn locks_that_wait_leave_their_session_its_slots(on: On) {
    let harness = Harness::start_with(on, |config| config.slots_max = 4);
    let session = harness.session();
    let (export, file) = open(&session);
    file.lock(0..1, Exclusive).unwrap();
    let waits: Vec<_> = (0..20).map(|owner| file.submit_lock_with(0..1, Exclusive, by(owner))).collect();
    export.metadata("f").unwrap();
    file.unlock(0..1).unwrap();
    for (owner, wait) in waits.into_iter().enumerate() {
        wait.wait().unwrap();
        file.unlock_with(0..1, owner as u64).unwrap();
    }
}

// [LOCK-5] [LOCK-6] [LOCK-10]
fn ten_thousand_who_wait_are_served_in_order(on: On) {
    let harness = Harness::start(on);
    let holder = harness.session();
    let (_, held) = open(&holder);
    held.lock(0..8, Exclusive).unwrap();
    let sessions: Vec<Session> = (0..4).map(|_| harness.session()).collect();
    let files: Vec<File> = sessions.iter().map(|session| open(session).1).collect();
    let waits: Vec<_> = (0..on.rounds(10_000))
        .map(|owner| {
            let place = owner as usize % files.len();
            let wait = files[place].submit_lock_with(0..8, Exclusive, by(owner));
            // Requests of several sessions come in this order only where each is waited for.
            sessions[place].ping().unwrap();
            (place, owner, wait)
        })
        .collect();
    held.unlock(0..8).unwrap();
    // Whoever was passed would wait for ever.
    for (place, owner, wait) in waits {
        wait.wait().unwrap();
        files[place].unlock_with(0..8, owner).unwrap();
    }
    assert_eq!(held.test_lock(0..8, Exclusive).unwrap(), None);
}

mod crowd {
    use super::*;

    // A server of its own has one worker.
    on_each_provider! {
        ten_thousand_who_wait_cost_little_memory,
    }
}

// [LOCK-10] [LOCK-25]
fn ten_thousand_who_wait_cost_little_memory(on: On) {
    let program = Program::start(on, &[]);
    let (holder, session) = (program.session(), program.session());
    let ((_, held), (_, file)) = (open(&holder), open(&session));
    held.lock(0..8, Exclusive).unwrap();
    let count = on.rounds(10_000);
    // What a session costs once is no cost of a wait: its buffers and slots are in use.
    let wait = |owner| file.submit_lock_with(0..8, Exclusive, by(owner));
    let first: Vec<_> = (count..count + 64).map(wait).collect();
    session.ping().unwrap();
    let before = resident_size(program.id());
    let waits: Vec<_> = (0..count).map(wait).collect();
    session.ping().unwrap();
    let grown = resident_size(program.id()).saturating_sub(before);
    assert!(grown <= count * 1024, "{grown} bytes for {count} that wait");
    drop((waits, first));
}

// [LOCK-26] [LOCK-69]
fn wait_that_is_given_up_is_granted_to_nobody(on: On) {
    let harness = Harness::start(on);
    let (a, b, c) = (harness.session(), harness.session(), harness.session());
    let ((_, held), (_, gives_up), (_, last)) = (open(&a), open(&b), open(&c));
    held.lock(0..10, Exclusive).unwrap();
    gives_up.lock(20..30, Shared).unwrap();
    let waits = [
        gives_up.submit_lock(0..1, Exclusive),
        gives_up.submit_lock(1..2, Shared),
        gives_up.submit_lock_with(0..40, Exclusive, by(7)),
    ];
    b.ping().unwrap();
    for (number, wait) in waits.into_iter().enumerate() {
        match number {
            0 => drop(wait),
            _ => assert!(matches!(wait.cancel(), Err(Error::Cancelled))),
        }
    }
    b.ping().unwrap();
    held.unlock(0..10).unwrap();
    assert!(last.try_lock(0..20, Exclusive).unwrap(), "nobody waits for it any more");
    assert!(last.try_lock(20..30, Shared).unwrap(), "what the owner had before has stayed");
    assert!(!last.try_lock(20..30, Exclusive).unwrap());
}

// [LOCK-25] [LOCK-69]
fn owner_waiting_by_two_handles_is_told_of_each(on: On) {
    let harness = Harness::start(on);
    let (holder, session) = (harness.session(), harness.session());
    let ((_, held), (_, one), (_, other)) = (open(&holder), open(&session), open(&session));
    held.lock(0..1, Exclusive).unwrap();
    let wait = |file: &File, kind| file.submit_lock_with(0..1, kind, by(7));
    let waits = [(&one, Shared), (&one, Exclusive), (&other, Shared), (&other, Exclusive)];
    let mut waits = waits.map(|(file, kind)| Some(wait(file, kind)));
    session.ping().unwrap();
    // What one handle gives up is still waited for by the other.
    assert!(matches!(waits[1].take().unwrap().cancel(), Err(Error::Cancelled)));
    session.ping().unwrap();
    held.unlock(0..1).unwrap();
    waits.into_iter().flatten().for_each(|wait| wait.wait().unwrap());
}

// [LOCK-70]
fn wait_goes_on_over_a_connection_that_breaks(on: On) {
    let harness = Harness::start(on);
    let (a, b) = (harness.session(), harness.session());
    let ((_, held), (_, file)) = (open(&a), open(&b));
    held.lock(0..1, Exclusive).unwrap();
    let wait = file.submit_lock(0..1, Exclusive);
    b.ping().unwrap();
    cut_connections(harness.address());
    held.unlock(0..1).unwrap();
    wait.wait().unwrap();
    assert!(!held.try_lock(0..1, Shared).unwrap());
}

// [LOCK-70]
fn wait_goes_on_over_a_restart(on: On) {
    let mut harness = Harness::start(on);
    let (a, b) = (harness.session(), harness.session());
    let ((_, held), (_, file)) = (open(&a), open(&b));
    held.lock(0..1, Exclusive).unwrap();
    let wait = file.submit_lock(0..1, Exclusive);
    b.ping().unwrap();
    harness.restart();
    a.ping().unwrap();
    // It has it again, or the other was quicker.
    let _ = held.unlock(0..1);
    wait.wait().unwrap();
}

fn lock(raw: &mut Raw, file: FileHandle, owner: u64, flags: LockFlags) -> Status {
    lock_at(raw, file, 0, owner, flags)
}

fn lock_at(raw: &mut Raw, file: FileHandle, offset: u64, owner: u64, flags: LockFlags) -> Status {
    let request = LockRequest { offset, len: 1, owner, kind: Exclusive, flags };
    let mut body = [0; LockRequest::HEAD_SIZE - HEADER_SIZE];
    request.encode(&mut body);
    raw.call(Header::request(Opcode::Lock, file), &body, &[]).header.status
}

fn turn(raw: &mut Raw) -> (FileHandle, u64) {
    let told = raw.receive().expect("a turn");
    assert_eq!(told.header.opcode, Opcode::LockTurn);
    let turn = LockTurn::decode(&told.body).unwrap();
    assert_eq!(turn.range(), 0..1);
    (FileHandle(turn.handle), turn.owner)
}

// [LOCK-25] [LOCK-28]
fn whoever_asks_again_keeps_his_place(on: On) {
    let harness = Harness::start(on);
    let session = harness.session();
    let (_, held) = open(&session);
    held.lock(0..1, Exclusive).unwrap();
    let (mut raw, _) = Raw::session(harness.address(), 8);
    let root = raw.mount("data");
    let file = raw.create(root, b"f");
    let notify = LockFlags::WAIT | LockFlags::NOTIFY;
    assert_eq!(lock(&mut raw, file, 1, notify), Status::WAITING);
    assert_eq!(lock(&mut raw, file, 2, notify), Status::WAITING);
    assert_eq!(lock(&mut raw, file, 1, notify), Status::WAITING);
    held.unlock(0..1).unwrap();
    assert_eq!(turn(&mut raw), (file, 1));
    assert_eq!(lock(&mut raw, file, 1, notify), Status::OK);
    assert_eq!(lock(&mut raw, file, 1, notify), Status::OK, "it has it");
    assert!(!held.try_lock(0..1, Shared).unwrap());
}

// [LOCK-27]
fn grant_that_is_ignored_is_taken_back(on: On) {
    let harness = Harness::start_with(on, |config| (config.lease_ms, config.keep_alive_ms) = (3000, 100));
    let (a, b) = (harness.session(), harness.session());
    let ((_, held), (_, last)) = (open(&a), open(&b));
    held.lock(0..1, Exclusive).unwrap();
    let (mut raw, _) = Raw::session(harness.address(), 8);
    let root = raw.mount("data");
    let file = raw.create(root, b"f");
    assert_eq!(lock(&mut raw, file, 1, LockFlags::WAIT | LockFlags::NOTIFY), Status::WAITING);
    let mut wait = last.submit_lock(0..1, Exclusive);
    b.ping().unwrap();
    held.unlock(0..1).unwrap();
    assert_eq!(turn(&mut raw), (file, 1));
    // It is alive, and does not take what it has waited for.
    while !wait.test() {
        raw.call(Header::request(Opcode::Null, FileHandle(0)), &[], &[]);
        a.ping().unwrap();
    }
    wait.wait().unwrap();
    raw.call(Header::request(Opcode::Null, FileHandle(0)), &[], &[]);
}

// [LOCK-27]
fn grant_asked_for_again_or_given_back_is_not_taken_back(on: On) {
    let harness = Harness::start_with(on, |config| (config.lease_ms, config.keep_alive_ms) = (3000, 100));
    let (a, b) = (harness.session(), harness.session());
    let ((_, held), (_, other)) = (open(&a), open(&b));
    held.lock(0..4, Exclusive).unwrap();
    let (mut raw, _) = Raw::session(harness.address(), 8);
    let root = raw.mount("data");
    let file = raw.create(root, b"f");
    let notify = LockFlags::WAIT | LockFlags::NOTIFY;
    let ask = |raw: &mut Raw, flags, request: LockRequest| {
        let mut header = Header::request(Opcode::Lock, file);
        header.flags = flags;
        raw.call(header, &request.bytes(), &[]).header.status
    };
    let lock = |offset, len, owner, flags| LockRequest { offset, len, owner, kind: Exclusive, flags };
    for (offset, len, owner) in [(0, 1, 0), (1, 1, 1), (1, 1, 2), (2, 2, 3)] {
        let request = lock(offset, len, owner, notify);
        assert_eq!(ask(&mut raw, Flags::empty(), request), Status::WAITING);
    }
    let turn = |raw: &mut Raw| {
        let told = raw.receive().expect("a turn");
        assert_eq!(told.header.opcode, Opcode::LockTurn);
        LockTurn::decode(&told.body).unwrap().owner
    };
    held.unlock(0..4).unwrap();
    let mut told: Vec<u64> = (0..3).map(|_| turn(&mut raw)).collect();
    told.sort_unstable();
    assert_eq!(told, [0, 1, 3]);
    assert_eq!(ask(&mut raw, Flags::CHAIN_FORWARD, lock(0, 1, 0, notify)), Status::OK);
    let mut last = Header::request(Opcode::Null, FileHandle(0));
    last.flags = Flags::CHAIN_BACK;
    raw.call(last, &[], &[]);
    // One gives its lock back, and takes a part of it again.
    let unlock = |raw: &mut Raw, offset, len, owner| {
        let request = UnlockRequest { offset, len, owner };
        let reply = raw.call(Header::request(Opcode::Unlock, file), &request.bytes(), &[]);
        assert_eq!(reply.header.status, Status::OK);
    };
    unlock(&mut raw, 2, 2, 3);
    assert_eq!(ask(&mut raw, Flags::empty(), lock(2, 1, 3, LockFlags::empty())), Status::OK);
    // The last to be told ignores that: when its lock is taken back, the others would have been.
    unlock(&mut raw, 1, 1, 1);
    assert_eq!(turn(&mut raw), 2);
    let mut wait = other.submit_lock(1..2, Exclusive);
    b.ping().unwrap();
    while !wait.test() {
        raw.call(Header::request(Opcode::Null, FileHandle(0)), &[], &[]);
        a.ping().unwrap();
    }
    wait.wait().unwrap();
    assert!(!other.try_lock(0..1, Exclusive).unwrap(), "what its client has asked for again");
    assert!(!other.try_lock(2..3, Exclusive).unwrap(), "what its client has locked since");
    raw.call(Header::request(Opcode::Null, FileHandle(0)), &[], &[]);
}

// [SESS-98]
fn client_whose_only_credit_waits_for_a_lock_is_not_silent(on: On) {
    let harness = Harness::start_with(on, |config| (config.lease_ms, config.keep_alive_ms) = (3000, 100));
    let session = harness.session();
    let (_, held) = open(&session);
    held.lock(0..1, Exclusive).unwrap();
    let (mut raw, _) = Raw::session(harness.address(), 1);
    let root = raw.mount("data");
    let file = raw.create(root, b"f");
    let mut lock = Header::request(Opcode::Lock, file);
    raw.begin(&mut lock);
    let request = LockRequest { offset: 0, len: 1, owner: 1, kind: Exclusive, flags: LockFlags::WAIT };
    raw.send(lock, &request.bytes(), &[]);
    // One that speaks later, and then no more, is silent for the lease before the other would be.
    let (mut silent, _) = Raw::session(harness.address(), 1);
    silent.mount("data");
    wait_for("the silent one is ended", || session.statistics().unwrap().sessions < 3);
    held.unlock(0..1).unwrap();
    let granted = raw.receive().expect("its session goes on");
    assert_eq!((granted.header.opcode, granted.header.status), (Opcode::Lock, Status::OK));
}

// [LOCK-26]
fn wait_that_is_cancelled_is_told_of_no_more(on: On) {
    let harness = Harness::start(on);
    let session = harness.session();
    let (_, held) = open(&session);
    held.lock(0..1, Exclusive).unwrap();
    let (mut raw, _) = Raw::session(harness.address(), 8);
    let root = raw.mount("data");
    let file = raw.create(root, b"f");
    let notify = LockFlags::WAIT | LockFlags::NOTIFY;
    assert_eq!(lock(&mut raw, file, 1, notify), Status::WAITING);
    assert_eq!(lock(&mut raw, file, 2, notify), Status::WAITING);
    assert_eq!(lock(&mut raw, file, 1, notify | LockFlags::CANCEL), Status::OK);
    assert_eq!(lock(&mut raw, file, 3, notify | LockFlags::CANCEL), Status::OK, "of none");
    held.unlock(0..1).unwrap();
    assert_eq!(turn(&mut raw), (file, 2));
}

// [LOCK-28]
fn client_that_says_nothing_is_called_back_eight_times(on: On) {
    let harness = Harness::start(on);
    let session = harness.session();
    let (_, held) = open(&session);
    held.lock(0..9, Exclusive).unwrap();
    let (mut raw, _) = Raw::session(harness.address(), 8);
    let root = raw.mount("data");
    let file = raw.create(root, b"f");
    for at in 0..9 {
        let waits = lock_at(&mut raw, file, at, at, LockFlags::WAIT | LockFlags::NOTIFY);
        assert_eq!(waits, Status::WAITING);
    }
    held.unlock(0..9).unwrap();
    let owner = |told: Message| {
        assert_eq!(told.header.opcode, Opcode::LockTurn);
        LockTurn::decode(&told.body).unwrap().owner
    };
    let told: Vec<u64> = (0..8).map(|_| owner(raw.receive().expect("a turn"))).collect();
    assert_eq!(told, (0..8).collect::<Vec<_>>());
    // What was sent with them, or at the next ticks of the server's clock, would be here by now.
    let uptime_ms = || session.statistics().unwrap().uptime_ms;
    let ticks_ms = uptime_ms() + 300;
    while uptime_ms() < ticks_ms {
        assert!(raw.endpoint.recv().unwrap().is_none(), "a ninth");
    }
    let mut header = Header::request(Opcode::Null, FileHandle(0));
    raw.begin(&mut header);
    raw.send(header, &[], &[]);
    let mut came: Vec<Message> = (0..2).map(|_| raw.receive().expect("a message")).collect();
    came.sort_by_key(|message| message.header.opcode == Opcode::LockTurn);
    assert_eq!(came[0].header.opcode, Opcode::Null);
    assert_eq!(owner(came.remove(1)), 8);
}

mod sim {
    use std::sync::Arc;

    use dafs_proto::transport::sim::{FaultPlan, NodeId};
    use dafs_tests::raw::introduction;
    use dafs_tests::sim::{PORT, World, WorldPlan};

    use super::*;

    // [LOCK-11] The second waits behind the first, and would have the lock by its end. Both deadlines have passed when the server looks.
    #[test]
    fn waits_whose_deadlines_pass_together_end_together() {
        // With one worker, and with two.
        for seed in [0, 1] {
            let world = World::new(seed, WorldPlan { network: FaultPlan::calm(), crash_ppm: 0 });
            let mut raw = Raw::connect_from(Arc::new(world.net().domain(NodeId(1))), &PORT);
            raw.shake(&introduction(&PORT, 8, None)).unwrap();
            let root = raw.mount("data");
            let file = raw.create(root, b"f");
            for round in 0..20 {
                let mut ask = |owner, kind, flags, deadline_ms| {
                    let mut header = Header { deadline_ms, ..Header::request(Opcode::Lock, file) };
                    raw.begin(&mut header);
                    let request = LockRequest { offset: round, len: 1, owner, kind, flags };
                    raw.send(header, &request.bytes(), &[]);
                    header.slot
                };
                let slots = [
                    ask(1, Shared, LockFlags::empty(), 0),
                    ask(2, Exclusive, LockFlags::WAIT, 5),
                    ask(3, Shared, LockFlags::WAIT, 5),
                ];
                let mut statuses = [Status::OK; 3];
                for _ in slots {
                    let reply = raw.receive().expect("the server goes on");
                    raw.end(&reply);
                    let number = slots.iter().position(|slot| *slot == reply.header.slot).unwrap();
                    statuses[number] = reply.header.status;
                }
                assert_eq!(statuses, [Status::OK, Status::TIMED_OUT, Status::TIMED_OUT], "round {round}");
            }
        }
    }
}

// [CLI-151] The session makes no further call, and has no thread that would send for it.
fn unlock_that_nobody_waits_for_leaves_at_once(on: On) {
    let harness = Harness::start(on);
    let quiet = harness.session_with(&Config { background: Background::None, ..Config::default() });
    // Only of a wait that would last for ever.
    let operation_timeout = Some(std::time::Duration::from_secs(20));
    let other = harness.session_with(&Config { operation_timeout, ..Config::default() });
    let ((_quiet, file), (_other, theirs)) = (open(&quiet), open(&other));
    file.lock(0..1, Exclusive).unwrap();
    let mut read = file.submit_read_at(vec![0; 10], 0);
    wait_for("the end of the read", || read.test());
    drop(file.submit_unlock(0..1));
    theirs.lock(0..1, Exclusive).unwrap();
    assert_eq!(read.wait().result.unwrap(), 0);
}
