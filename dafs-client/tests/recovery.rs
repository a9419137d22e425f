//! Broken connections and restarted servers: nothing is lost, nothing is done twice, and what cannot be known is said.

#![allow(
    clippy::cast_possible_truncation,
    clippy::unwrap_used,
    reason = "a test: small numbers, and what is wrong fails it"
)]

mod common;

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use common::{Action, CLIENT, SERVER, World, config, pattern};
use dafs_client::{
    Config, DurableWriter, Error, Opcode, OpenOptions, ReconnectPolicy, Stability, Status, wait_all,
};
use dafs_proto::transport::sim::FaultPlan;
use dafs_proto::wire::Flags;

// [CLI-30] [SESS-51]
#[test]
fn request_cut_off_before_it_was_executed_is_sent_again_with_replay() {
    let world = World::new(1);
    let session = world.session();
    let export = session.mount("data").unwrap();
    world.once(Opcode::Mkdir, |_| Action::CutBefore);
    export.create_dir("d", 0o755).unwrap();
    assert_eq!(world.server().count(Opcode::Mkdir), 1);
    assert!(world.server().log.contains(&(Opcode::Mkdir, Flags::REPLAY)));
    assert_eq!(session.reconnects(), 1);
}

// [CLI-30] the reply comes from the server's cache: an exclusive create does not meet itself
#[test]
fn request_cut_off_after_it_was_executed_is_not_executed_twice() {
    let world = World::new(2);
    let session = world.session();
    let export = session.mount("data").unwrap();
    for opcode in [Opcode::Mkdir, Opcode::Open, Opcode::Append, Opcode::Rename] {
        let before = world.server().count(opcode);
        world.once(opcode, |_| Action::CutAfter);
        match opcode {
            Opcode::Mkdir => drop(export.create_dir("d", 0o755).unwrap()),
            Opcode::Open => {
                drop(export.open_with("n", OpenOptions::new().write(true).create_new(true)).unwrap())
            }
            Opcode::Append => {
                let file = export.open_with("n", OpenOptions::new().append(true)).unwrap();
                assert_eq!(file.append(b"once").unwrap(), 0);
                assert_eq!(world.server().data(b"n"), b"once");
            }
            _ => export.rename("n", &export, "m", true).unwrap(),
        }
        let expected = if opcode == Opcode::Append { 1 } else { before + 1 };
        assert_eq!(world.server().count(opcode), expected, "{opcode:?}");
    }
}

#[test]
fn many_requests_in_flight_survive_a_cut_in_order() {
    for at in 1..40u64 {
        let plan = FaultPlan { cut_at_packet: Some(at * 3), ..FaultPlan::calm() };
        let world = World::with_plan(at, plan);
        let Ok(session) = world.connect(&config()) else { continue };
        let file = session.mount("data").and_then(|export| export.create("f")).unwrap();
        let data = pattern(30 * 3000, at);
        let pendings: Vec<_> = data
            .chunks(3000)
            .enumerate()
            .map(|(i, part)| file.submit_write_at(part.to_vec(), i as u64 * 3000))
            .collect();
        for done in wait_all(pendings) {
            done.result.unwrap();
        }
        assert!(world.server().data(b"f") == data, "cut at packet {}", at * 3);
        let mut back = vec![0; data.len()];
        file.read_exact_at(&mut back, 0).unwrap();
        assert!(back == data);
    }
}

// [CLI-31] [SESS-52]
#[test]
fn server_restarted_reopens_files_and_repeats_what_is_idempotent() {
    let world = World::new(3);
    let session = world.session();
    world.server().make(b"f", &pattern(10_000, 1));
    let export = session.mount("data").unwrap();
    let file = export.open("f").unwrap();
    world.once(Opcode::Read, |_| Action::CrashBefore);
    let mut back = vec![0; 10_000];
    file.read_exact_at(&mut back, 0).unwrap();
    assert!(back == pattern(10_000, 1));
    assert!(export.metadata("f").is_ok(), "the root was mounted again");
}

// [CLI-31]
#[test]
fn server_restarted_leaves_a_request_that_is_not_idempotent_in_doubt_and_sends_the_unsent() {
    let world = World::new(4);
    world.server().credits = 1;
    let session = world.session();
    let export = session.mount("data").unwrap();
    world.once(Opcode::Mkdir, |_| Action::CrashBefore);
    let sent = export.submit_create_dir("sent", 0o755);
    let unsent = export.submit_create_dir("unsent", 0o755);
    assert!(matches!(sent.wait(), Err(Error::InDoubt { operation: Opcode::Mkdir })));
    unsent.wait().unwrap();
    assert!(world.server().nodes.contains_key(&b"unsent"[..]));
}

// [CLI-32]
#[test]
fn file_replaced_while_the_server_was_away_is_stale_and_others_are_not() {
    let world = World::new(5);
    let session = world.session();
    world.server().make(b"old", b"1");
    world.server().make(b"kept", b"2");
    let export = session.mount("data").unwrap();
    let (old, kept) = (export.open("old").unwrap(), export.open("kept").unwrap());
    world.server().make(b"old", b"another file");
    world.server().restart();
    assert!(matches!(old.read_at(&mut [0; 9], 0), Err(Error::Stale { .. })));
    assert_eq!(kept.read_at(&mut [0; 9], 0).unwrap(), 1);
    assert!(matches!(old.metadata(), Err(Error::Stale { .. })));
    assert_eq!(export.open("old").unwrap().read_at(&mut [0; 99], 0).unwrap(), 12);
}

// [CLI-36]
#[test]
fn handle_answered_before_a_restart_and_collected_after_it_is_in_doubt() {
    let world = World::new(51);
    let session = world.session();
    world.server().make(b"early", b"1");
    world.server().make(b"other", b"2");
    let export = session.mount("data").unwrap();
    let early = export.submit_open_with("early", OpenOptions::new().read(true));
    let mount = session.submit_mount("data");
    // Answered after both.
    session.ping().unwrap();
    world.server().restart();
    let other = export.open("other").unwrap();
    assert!(matches!(early.wait(), Err(Error::InDoubt { operation: Opcode::Open })));
    assert!(matches!(mount.wait(), Err(Error::InDoubt { operation: Opcode::Mount })));
    let mut byte = [0; 2];
    assert_eq!((other.read_at(&mut byte, 0).unwrap(), byte[0]), (1, b'2'));
    let opened = export.open("early").unwrap();
    assert_eq!((opened.read_at(&mut byte, 0).unwrap(), byte[0]), (1, b'1'));
}

// [CLI-36]
#[test]
fn handle_given_back_but_not_sent_before_a_restart_closes_nothing_in_the_new_session() {
    let world = World::new(52);
    world.server().credits = 1;
    let session = world.session();
    world.server().make(b"dropped", b"1");
    let export = session.mount("data").unwrap();
    let file = export.open("dropped").unwrap();
    world.once(Opcode::Mkdir, |_| Action::CrashBefore);
    // The only credit is taken, so the close waits behind it.
    let sent = export.submit_create_dir("sent", 0o755);
    drop(file);
    assert!(matches!(sent.wait(), Err(Error::InDoubt { .. })));
    export.metadata("dropped").unwrap();
    assert_eq!(world.server().log.iter().filter(|(opcode, _)| *opcode == Opcode::Close).count(), 0);
}

#[test]
fn handshake_through_a_queue_that_is_nearly_always_full_succeeds() {
    for seed in 0..20 {
        let plan = FaultPlan { full_ppm: 900_000, ..FaultPlan::calm() };
        let world = World::with_plan(seed, plan);
        let export = world.session().mount("data").unwrap();
        world.server().make(b"f", b"1");
        // In a new session files are opened again the same way.
        world.server().restart();
        export.metadata("f").unwrap();
    }
}

// A slot that such a request had would be missing for ever: with each there would be fewer.
#[test]
fn request_refused_after_it_had_its_slot_gives_the_slot_back() {
    let world = World::new(5);
    let session = world.session();
    let export = session.mount("data").unwrap();
    let file = export.create("f").unwrap();
    world.net.set_plan(FaultPlan { full_late_ppm: 500_000, ..FaultPlan::calm() });
    let data = pattern(200_000, 3);
    for (index, part) in data.chunks(1_000).enumerate() {
        file.submit_write_at(part.to_vec(), index as u64 * 1_000).wait().into_result().unwrap();
    }
    // All at once, registered and not, and by name.
    let reads: Vec<_> = (0..200).map(|index| file.submit_read_at(vec![0; 1_000], index * 1_000)).collect();
    let named: Vec<_> = (0..20).map(|index| export.submit_create_dir(format!("d{index}"), 0o755)).collect();
    for (read, expected) in reads.into_iter().zip(data.chunks(1_000)) {
        assert_eq!(read.wait().into_result().unwrap().1, expected);
    }
    for made in named {
        made.wait().unwrap();
    }
    assert_eq!(session.reconnects(), 0);
}

// [CLI-20]
#[test]
fn commit_after_a_restart_names_the_ranges_that_were_lost() {
    let world = World::new(6);
    let session = world.session();
    let file = session.mount("data").unwrap().create("f").unwrap();
    file.write_all_at(&[1; 100], 0).unwrap();
    file.commit().unwrap();
    file.write_all_at(&[2; 50], 100).unwrap();
    file.write_all_at(&[3; 50], 150).unwrap();
    file.write_at_with(&[4; 10], 300, Stability::FileSync).unwrap();
    file.write_all_at(&[5; 10], 500).unwrap();
    world.server().restart();
    file.write_all_at(&[6; 10], 1000).unwrap();
    let Err(Error::WritesLost { ranges, .. }) = file.commit() else { panic!("the loss goes unnoticed") };
    assert_eq!(ranges, [100..200, 500..510].map(|range: std::ops::Range<u64>| range));
    file.commit().unwrap();
}

// [CLI-21]
#[test]
fn durable_writer_writes_again_what_a_restart_lost() {
    let world = World::new(7);
    let session = world.session();
    let file = session.mount("data").unwrap().create("f").unwrap();
    let data = pattern(100_000, 2);
    let mut writer = DurableWriter::new(&file, 40_000);
    for (index, part) in data.chunks(7_000).enumerate() {
        writer.write_all_at(part, index as u64 * 7_000).unwrap();
        if index % 3 == 1 {
            world.server().restart();
        }
    }
    writer.commit().unwrap();
    assert!(world.server().durable[&b"f"[..]].data == data);
}

#[test]
fn commit_that_failed_does_not_forget_what_it_covered() {
    let world = World::new(8);
    let session = world.session();
    let file = session.mount("data").unwrap().create("f").unwrap();
    file.write_all_at(&[1; 10], 0).unwrap();
    drop(file.submit_commit().cancel());
    world.server().restart();
    assert!(matches!(file.commit(), Err(Error::WritesLost { .. })));
}

// [CLI-33]
#[test]
fn server_gone_for_good_ends_every_operation_within_the_attempts() {
    let world = World::new(9);
    let reconnect = ReconnectPolicy { attempts_max: 3, ..ReconnectPolicy::default() };
    let session =
        world.connect(&Config { reconnect, connect_timeout: Duration::from_secs(1), ..config() }).unwrap();
    let file = session.mount("data").unwrap().create("f").unwrap();
    let mut buffer = session.buffer(60_000).unwrap();
    let pending = file.submit_write_at(vec![0; 10], 0);
    world.net.partition(CLIENT, SERVER);
    let error = file.read_buf_at(&mut buffer, 0).unwrap_err();
    assert!(matches!(error, Error::Connection { .. }), "{error}");
    assert!(pending.wait().result.is_err());
    assert!(matches!(session.ping(), Err(Error::Connection { .. })));
    // Nobody reaches the memory any more, and the library says so.
    assert!(matches!(file.write_buf_at(&buffer, 0), Err(Error::Invalid(_))));
}

// [CLI-33] however long each attempt may take, and however many there may be.
#[test]
fn server_gone_for_good_ends_every_operation_within_the_time_for_all_attempts() {
    let times = [Duration::ZERO, Duration::from_secs(5), Duration::from_secs(50)].map(|time_max| {
        let world = World::new(12);
        let reconnect = ReconnectPolicy { attempts_max: u32::MAX, time_max, ..ReconnectPolicy::default() };
        let connect_timeout = Duration::from_secs(20);
        let session = world.connect(&Config { reconnect, connect_timeout, ..config() }).unwrap();
        world.net.partition(CLIENT, SERVER);
        let begin = world.net.now();
        let error = session.ping().unwrap_err();
        assert!(matches!(error, Error::Connection { .. }), "{error}");
        assert!(error.to_string().contains("attempts to connect again in "), "{error}");
        world.net.now() - begin
    });
    // The first is the time until the server counts as lost, and one attempt that has none.
    let [lost, five, fifty] = times;
    for (time, allowed) in [(five, 5), (fifty, 50)] {
        let allowed = Duration::from_secs(allowed);
        assert!(time <= lost + allowed + Duration::from_millis(200), "{time:?}, of it {lost:?}");
        assert!(time > lost + allowed / 2, "{time:?}, of it {lost:?}");
    }
}

// [CLI-34] a silent server is given up after its lease, and the session taken up again
#[test]
fn server_silent_for_its_lease_is_connected_to_again() {
    let world = World::new(10);
    let session = world.session();
    let ignored = Arc::new(AtomicUsize::new(0));
    let count = Arc::clone(&ignored);
    world.hook(move |header, _| match header.flags.contains(Flags::REPLAY) {
        false if count.fetch_add(1, Ordering::Relaxed) < 4 => Action::Ignore,
        _ => Action::Serve,
    });
    let begin = world.net.now();
    session.ping().unwrap();
    assert!(ignored.load(Ordering::Relaxed) >= 1);
    assert!(world.net.now() - begin >= Duration::from_secs(3));
    assert_eq!(session.reconnects(), 1);
}

// [CLI-11]
#[test]
fn operation_beyond_its_time_ends_and_its_slot_is_not_lost() {
    let world = World::new(11);
    let session =
        world.connect(&Config { operation_timeout: Some(Duration::from_millis(200)), ..config() }).unwrap();
    let export = session.mount("data").unwrap();
    world.once(Opcode::Mkdir, |_| Action::Ignore);
    let error = export.create_dir("d", 0o755).unwrap_err();
    assert!(matches!(error, Error::TimedOut { operation: Opcode::Mkdir, timeout_ms: 200 }), "{error}");
    assert_eq!(std::io::Error::from(error).kind(), std::io::ErrorKind::TimedOut);
    session.ping().unwrap();
}

#[test]
fn refusal_that_trying_again_cannot_help_ends_the_session_at_once() {
    let world = World::new(12);
    let session = world.session();
    session.close();
    assert!(matches!(session.ping(), Err(Error::Closed)));
    assert!(matches!(session.mount("data"), Err(Error::Closed)));
}

#[test]
fn rough_network_moves_every_byte_once() {
    for seed in 0..60 {
        let world = World::with_plan(seed, FaultPlan::rough(seed));
        let _report = world.net.report_on_panic();
        let mut session = world.connect(&config());
        for _ in 0..100 {
            if session.is_ok() {
                break;
            }
            session = world.connect(&config());
        }
        let session = session.unwrap();
        let export = session.mount("data").unwrap();
        let file = export.create("f").unwrap();
        let mut expected = Vec::new();
        for round in 0..20u64 {
            let data = pattern(1 + (seed as usize * 7919 + round as usize * 104_729) % 150_000, round);
            if data.len() < 60_000 {
                assert_eq!(file.append(&data).unwrap(), expected.len() as u64, "seed {seed}");
            } else {
                file.write_all_at(&data, expected.len() as u64).unwrap();
            }
            expected.extend(data);
        }
        let mut back = vec![0; expected.len()];
        file.read_exact_at(&mut back, 0).unwrap();
        assert!(back == expected, "seed {seed}");
        assert_eq!(export.metadata("nothing").unwrap_err().status(), Some(Status::NOT_FOUND));
    }
}
