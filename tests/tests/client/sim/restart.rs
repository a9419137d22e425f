//! Servers that die and come back: what can be repeated is, and what was lost or cannot be known is said.

use std::sync::{Arc, Mutex};
use std::time::Duration;

use dafs_client::{
    Config, Datatype, DurableWriter, Error, File, LockKind, Opcode, OpenOptions, Stability, Status,
};
use dafs_proto::wire::{HEADER_SIZE, Header};
use dafs_tests::sim::{Action, ScriptedWorld};
use dafs_tests::suite::{assert_same, bytes};

// [SESS-136] [SESS-52] [SESS-118] [WIRE-48] [CLI-103]
#[test]
fn server_restarted_reopens_files_and_repeats_what_is_idempotent() {
    let world = ScriptedWorld::new(3);
    let session = world.session();
    world.put("f", &bytes(1, 10_000));
    let export = session.mount("data").unwrap();
    let file = export.open("f").unwrap();
    world.once(Opcode::Read, |_| Action::CrashBefore);
    let mut back = vec![0; 10_000];
    file.read_exact_at(&mut back, 0).unwrap();
    assert!(back == bytes(1, 10_000));
    assert!(export.metadata("f").is_ok(), "the root was mounted again");
}

// [WIRE-19] [CLI-103] [CLI-104]
#[test]
fn restart_leaves_sent_changes_in_doubt_and_sends_the_unsent() {
    let world = ScriptedWorld::new(4);
    let session = world.connect(&Config { credits: 1, ..ScriptedWorld::config() }).unwrap();
    let export = session.mount("data").unwrap();
    world.once(Opcode::Mkdir, |_| Action::CrashBefore);
    let sent = export.submit_create_dir("sent", 0o755);
    let unsent = export.submit_create_dir("unsent", 0o755);
    assert!(matches!(sent.wait(), Err(Error::InDoubt { operation: Opcode::Mkdir })));
    unsent.wait().unwrap();
    assert!(world.exists("unsent"));
}

// [CLI-167] Locks and deny modes of the session that was begun would keep out another.
#[test]
fn rebuilt_session_survives_broken_connections_at_every_step() {
    for executed in [false, true] {
        let mut steps = 0;
        for at in 0.. {
            let world = ScriptedWorld::new(6);
            world.put("f", &bytes(1, 100));
            world.put("g", &bytes(2, 100));
            let (session, other) = (world.session(), world.session());
            let export = session.mount("data").unwrap();
            let mut denies = OpenOptions::new();
            denies.read(true).write(true).deny_write(true);
            let files = ["f", "g"].map(|name| export.open_with(name, &denies).unwrap());
            files.iter().for_each(|file| file.lock(10..20, LockKind::Exclusive).unwrap());
            let view = session.view(&Datatype::bytes(1).resized(0, 2)).unwrap();
            world.restart();
            let (mut seen, log) = (0, Arc::new(Mutex::new(0)));
            let counted = Arc::clone(&log);
            world.hook(move |_| {
                seen += 1;
                *counted.lock().unwrap() = seen;
                match (seen == at + 1, executed) {
                    (false, _) => Action::Serve,
                    (true, false) => Action::CutBefore,
                    (true, true) => Action::CutAfter,
                }
            });
            for (file, number) in files.iter().zip([1, 2]) {
                let mut back = [0; 50];
                assert_eq!(file.read_view(&view.at(0, 0), &mut back).unwrap().count, 50, "cut at {at}");
                assert!(bytes(number, 100).iter().step_by(2).eq(&back));
            }
            steps = *log.lock().unwrap();
            world.hook(|_| Action::Serve);
            let elsewhere = other.mount("data").unwrap().open("f").unwrap();
            assert!(!elsewhere.try_lock(0..100, LockKind::Shared).unwrap(), "cut at {at}: the lock is gone");
            files[0].unlock(10..20).unwrap();
            elsewhere.lock(0..100, LockKind::Shared).unwrap();
            if steps <= at {
                break;
            }
        }
        assert!(steps >= 8, "mount, two files with their locks, the view and the reads");
    }
}

// [CLI-32]
#[test]
fn file_replaced_during_downtime_is_stale_and_others_not() {
    let world = ScriptedWorld::new(5);
    let session = world.session();
    world.put("old", b"1");
    world.put("kept", b"2");
    let export = session.mount("data").unwrap();
    let (old, kept) = (export.open("old").unwrap(), export.open("kept").unwrap());
    world.put("old", b"another file");
    world.restart();
    assert!(matches!(old.read_at(&mut [0; 9], 0), Err(Error::Stale { .. })));
    assert_eq!(kept.read_at(&mut [0; 9], 0).unwrap(), 1);
    assert!(matches!(old.metadata(), Err(Error::Stale { .. })));
    assert_eq!(export.open("old").unwrap().read_at(&mut [0; 99], 0).unwrap(), 12);
}

// [CLI-36] [CLI-105]
#[test]
fn handle_answered_before_a_restart_and_collected_after_it_is_opened_again() {
    let world = ScriptedWorld::new(51);
    let session = world.session();
    world.put("early", b"1");
    world.put("other", b"2");
    world.put("replaced", b"3");
    let export = session.mount("data").unwrap();
    let (mut options, mut makes) = (OpenOptions::new(), OpenOptions::new());
    let early = export.submit_open_with("early", options.read(true));
    let made = export.submit_open_with("made", makes.read(true).write(true).create_new(true));
    let replaced = export.submit_open_with("replaced", options.read(true));
    let dropped = export.submit_open_with("early", options.read(true));
    let mount = session.submit_mount("data");
    // Answered after all of them.
    session.ping().unwrap();
    world.put("replaced", b"another file");
    world.restart();
    let other = export.open("other").unwrap();
    let content = |file: &File| {
        let mut byte = [0; 1];
        file.read_at(&mut byte, 0).map(|_| byte[0]).unwrap()
    };
    assert_eq!(content(&early.wait().unwrap()), b'1');
    made.wait().unwrap().write_all_at(b"new", 0).unwrap();
    assert!(matches!(replaced.wait(), Err(Error::Stale { .. })));
    assert_eq!(content(&other), b'2');
    assert_eq!(content(&mount.wait().unwrap().open("early").unwrap()), b'1');
    session.ping().unwrap();
    let closed = world.count(Opcode::Close);
    drop(dropped);
    session.ping().unwrap();
    assert_eq!(world.count(Opcode::Close), closed + 1, "its handle is given back in the new session");
}

// [CLI-36]
#[test]
fn unsent_close_before_a_restart_closes_nothing_in_new_session() {
    let world = ScriptedWorld::new(52);
    let session = world.connect(&Config { credits: 1, ..ScriptedWorld::config() }).unwrap();
    world.put("dropped", b"1");
    let export = session.mount("data").unwrap();
    let file = export.open("dropped").unwrap();
    world.once(Opcode::Mkdir, |_| Action::CrashBefore);
    // The only credit is taken, so the close waits behind it.
    let sent = export.submit_create_dir("sent", 0o755);
    drop(file);
    assert!(matches!(sent.wait(), Err(Error::InDoubt { .. })));
    export.metadata("dropped").unwrap();
    assert_eq!(world.count(Opcode::Close), 0);
}

// [CLI-36]
#[test]
fn stale_file_that_is_dropped_closes_nothing_in_the_new_session() {
    let world = ScriptedWorld::new(55);
    let session = world.session();
    world.put("old", b"1");
    world.put("kept", b"2");
    let export = session.mount("data").unwrap();
    let (old, kept) = (export.open("old").unwrap(), export.open("kept").unwrap());
    world.put("old", b"another file");
    world.restart();
    assert!(matches!(old.metadata(), Err(Error::Stale { .. })));
    let before = world.count(Opcode::Close);
    drop(old);
    session.ping().unwrap();
    session.ping().unwrap();
    assert_eq!(world.count(Opcode::Close), before);
    assert_eq!(kept.read_at(&mut [0; 9], 0).unwrap(), 1);
}

// [CLI-20] [CLI-96]
#[test]
fn commit_after_a_restart_names_the_ranges_that_were_lost() {
    let world = ScriptedWorld::new(6);
    let session = world.session();
    let file = session.mount("data").unwrap().create("f").unwrap();
    file.write_all_at(&[1; 100], 0).unwrap();
    file.commit().unwrap();
    file.write_all_at(&[2; 50], 100).unwrap();
    file.write_all_at(&[3; 50], 150).unwrap();
    file.write_at_with(&[4; 10], 300, Stability::FileSync).unwrap();
    file.write_all_at(&[5; 10], 500).unwrap();
    world.restart();
    file.write_all_at(&[6; 10], 1000).unwrap();
    let Err(Error::WritesLost { ranges, .. }) = file.commit() else { panic!("the loss goes unnoticed") };
    assert_eq!(ranges, [100..200, 500..510].map(|range: std::ops::Range<u64>| range));
    file.commit().unwrap();
}

// [CLI-21]
#[test]
fn durable_writer_writes_again_what_a_restart_lost() {
    let world = ScriptedWorld::new(7);
    let session = world.session();
    let file = session.mount("data").unwrap().create("f").unwrap();
    let data = bytes(2, 100_000);
    let mut writer = DurableWriter::new(&file, 40_000);
    for (index, part) in data.chunks(7_000).enumerate() {
        writer.write_all_at(part, index as u64 * 7_000).unwrap();
        if index % 3 == 1 {
            world.restart();
        }
    }
    writer.commit().unwrap();
    // What is not durable goes with this one.
    world.restart();
    assert_same(&world.content("f"), &data, "what was committed");
}

// [CLI-21] What was not lost is of the last who wrote it.
#[test]
fn durable_writer_writes_no_more_again_than_was_lost() {
    let world = ScriptedWorld::new(13);
    let session = world.session();
    let file = session.mount("data").unwrap().create("f").unwrap();
    let mut writer = DurableWriter::new(&file, 1 << 20);
    writer.write_all_at(&[1; 10], 0).unwrap();
    world.restart();
    writer.write_all_at(&[2; 10], 5).unwrap();
    writer.write_all_at(&[3; 8], 12).unwrap();
    writer.commit().unwrap();
    world.restart();
    let expected = [&[1; 5][..], &[2; 7], &[3; 8]].concat();
    assert_same(&world.content("f"), &expected, "what was committed");
}

// [CLI-96] [CLI-169]
#[test]
fn durable_writer_tells_of_losses_that_it_does_not_hold() {
    let world = ScriptedWorld::new(14);
    let session = world.session();
    let file = session.mount("data").unwrap().create("f").unwrap();
    file.write_all_at(&[9; 30], 100).unwrap();
    let mut writer = DurableWriter::new(&file, 1 << 20);
    writer.write_all_at(&[1; 10], 0).unwrap();
    writer.write_all_at(&[2; 10], 110).unwrap();
    world.restart();
    // Told by whichever commit is the first to end well.
    world.once(Opcode::Write, refused);
    assert!(matches!(writer.commit(), Err(Error::Status { status: Status::IO, .. })));
    let Err(Error::WritesLost { ranges, attributes: false, .. }) = writer.commit() else {
        panic!("the loss goes unnoticed")
    };
    assert_eq!(ranges, [100..110, 120..130]);
    writer.commit().unwrap();
    world.restart();
    let expected = [&[1; 10][..], &[0; 100], &[2; 10]].concat();
    assert_same(&world.content("f"), &expected, "what was held");
}

// [CLI-21]
#[test]
fn durable_writer_retries_its_rewrite_before_the_next_commit() {
    let world = ScriptedWorld::new(11);
    let session = world.session();
    let file = session.mount("data").unwrap().create("f").unwrap();
    let mut writer = DurableWriter::new(&file, 1 << 20);
    writer.write_all_at(&[1; 1000], 0).unwrap();
    writer.write_all_at(&[2; 1000], 1000).unwrap();
    world.restart();
    world.once(Opcode::Write, refused);
    assert!(matches!(writer.commit(), Err(Error::Status { status: Status::IO, .. })));
    writer.commit().unwrap();
    // What is not durable goes with this one.
    world.restart();
    assert_same(&world.content("f"), &[[1u8; 1000], [2; 1000]].concat(), "what was committed");
}

// [CLI-20] [CLI-97]
#[test]
fn uncollected_copy_is_named_by_the_commit_after_a_restart() {
    let world = ScriptedWorld::new(12);
    let session = world.session();
    let export = session.mount("data").unwrap();
    let (from, to) = (export.create("from").unwrap(), export.create("to").unwrap());
    from.write_all_at(&[1; 100], 0).unwrap();
    let copied = from.submit_copy_some(0, 40, &to, 7);
    // Answered behind it.
    session.ping().unwrap();
    world.restart();
    let Err(Error::WritesLost { ranges, .. }) = to.commit() else { panic!("the loss goes unnoticed") };
    assert_eq!(ranges, std::slice::from_ref(&(7..47)));
    assert_eq!(copied.wait().unwrap().count, 40);
    to.commit().unwrap();
}

// [CLI-20] [CLI-97]
#[test]
fn write_of_broken_chain_is_named_by_commit_after_restart() {
    let world = ScriptedWorld::new(13);
    let session = world.session();
    let file = session.mount("data").unwrap().create("f").unwrap();
    world.once(Opcode::Read, refused);
    let broken = file.chain().write_at(&[1; 10], 100).read_at(&mut [0; 4], 0).run();
    assert!(matches!(broken, Err(Error::Status { status: Status::IO, .. })), "{broken:?}");
    world.restart();
    let Err(Error::WritesLost { ranges, .. }) = file.commit() else { panic!("the loss goes unnoticed") };
    assert_eq!(ranges, std::slice::from_ref(&(100..110)));
}

/// Answers in the server's place.
fn refused(header: &Header) -> Action {
    let mut head = [0; HEADER_SIZE];
    header.reply(Status::IO).encode(&mut head);
    Action::Say(head.to_vec(), Vec::new())
}

// [CLI-98]
#[test]
fn commit_that_failed_does_not_forget_what_it_covered() {
    let world = ScriptedWorld::new(8);
    let session = world.session();
    let file = session.mount("data").unwrap().create("f").unwrap();
    file.write_all_at(&[1; 10], 0).unwrap();
    drop(file.submit_commit().cancel());
    world.restart();
    assert!(matches!(file.commit(), Err(Error::WritesLost { .. })));
}

// [CLI-96] [CLI-97]
#[test]
fn commits_in_flight_together_each_name_what_a_restart_lost() {
    let world = ScriptedWorld::new(14);
    let session = world.session();
    let file = session.mount("data").unwrap().create("f").unwrap();
    file.write_all_at(&[1; 10], 100).unwrap();
    file.truncate(200).unwrap();
    world.once(Opcode::Commit, |_| Action::CrashBefore);
    let commits =
        [file.submit_commit(), file.submit_commit_range(0, 0, Stability::DataSync), file.submit_commit()];
    for (commit, all) in commits.into_iter().zip([true, false, true]) {
        let Err(Error::WritesLost { ranges, attributes, .. }) = commit.wait() else {
            panic!("the loss goes unnoticed")
        };
        assert_eq!((ranges.as_slice(), attributes), (std::slice::from_ref(&(100..110)), all));
    }
    file.commit().unwrap();
}

// [CLI-20]
#[test]
fn write_beside_a_commit_stays_remembered_and_what_that_covered_does_not() {
    let world = ScriptedWorld::new(15);
    let session = world.session();
    let file = session.mount("data").unwrap().create("f").unwrap();
    file.write_all_at(&[1; 10], 0).unwrap();
    let commits = [file.submit_commit(), file.submit_commit()];
    file.write_all_at(&[2; 10], 10).unwrap();
    commits.into_iter().for_each(|commit| commit.wait().unwrap());
    world.restart();
    let Err(Error::WritesLost { ranges, .. }) = file.commit() else { panic!("the loss goes unnoticed") };
    assert_eq!(ranges, std::slice::from_ref(&(10..20)));
}

// [CLI-168]
#[test]
fn durable_writer_does_not_write_again_what_was_refused() {
    let world = ScriptedWorld::new(16);
    let session = world.session();
    let file = session.mount("data").unwrap().create("f").unwrap();
    let mut writer = DurableWriter::new(&file, 1 << 20);
    writer.write_all_at(&[1; 10], 0).unwrap();
    world.once(Opcode::Write, refused);
    assert!(matches!(writer.write_all_at(&[2; 10], 5), Err(Error::Status { status: Status::IO, .. })));
    assert!(matches!(writer.write_all_at(&[3; 10], u64::MAX - 5), Err(Error::Invalid(_))));
    world.restart();
    writer.commit().unwrap();
    assert_same(&world.content("f"), &[1; 10], "what was written");
}

// [CLI-100]
#[test]
fn durable_writer_leaves_size_to_its_caller_and_rewrites_all() {
    let world = ScriptedWorld::new(9);
    let session = world.session();
    let file = session.mount("data").unwrap().create("f").unwrap();
    let mut writer = DurableWriter::new(&file, 1 << 20);
    writer.write_all_at(&[1; 1000], 0).unwrap();
    file.truncate(500).unwrap();
    world.restart();
    assert!(matches!(writer.commit(), Err(Error::WritesLost { attributes: true, .. })));
    file.truncate(2000).unwrap();
    writer.commit().unwrap();
    // What is not durable goes with this one.
    world.restart();
    assert_same(&world.content("f"), &[[1u8; 1000], [0; 1000]].concat(), "what was committed");
}

// [CLI-120]
#[test]
fn batch_of_which_a_file_is_gone_ends_as_stale() {
    let world = ScriptedWorld::new(53);
    let session = world.session();
    world.put("gone", b"1");
    world.put("kept", b"2");
    let export = session.mount("data").unwrap();
    let (gone, kept) = (export.open("gone").unwrap(), export.open("kept").unwrap());
    world.put("gone", b"another file");
    world.restart();
    let (mut first, mut second) = ([0; 1], [0; 1]);
    let mut batch = session.batch_io();
    batch.read_at(&kept, &mut first, 0).read_at(&gone, &mut second, 0);
    assert!(matches!(batch.run(), Err(Error::Stale { .. })));
    drop(batch);
    assert_eq!(kept.read_at(&mut first, 0).unwrap(), 1);
}

// [SESS-139] [CLI-125]
#[test]
fn half_sent_chain_restarts_or_is_in_doubt_after_a_restart() {
    for makes in [false, true] {
        let world = ScriptedWorld::new(54);
        let session = world.session();
        world.put("f", b"data");
        let root = session.mount("data").unwrap();
        world.once(Opcode::Write, |_| Action::CrashBefore);
        let options = OpenOptions::new().write(true).create(makes).clone();
        let done = root.chain().open("f", &options).write_at(b"DATA", 0).commit().close().run();
        match makes {
            true => assert!(matches!(done, Err(Error::InDoubt { operation: Opcode::Open })), "{done:?}"),
            false => {
                assert_eq!(done.unwrap().counts, [4]);
                assert_eq!(world.content("f"), b"DATA");
            }
        }
    }
}

// [SESS-56] [CLI-103] [CLI-104]
#[test]
fn write_of_lapsed_session_is_in_doubt_and_read_repeated() {
    let world = ScriptedWorld::new(61);
    let (session, other) = (world.session(), world.session());
    world.put("f", b"before");
    let (file, others) =
        (session.mount("data").unwrap().open_with("f", &both()).unwrap(), other.mount("data").unwrap());
    let others = others.open_with("f", &both()).unwrap();
    // Both are executed; their replies are lost.
    world.once(Opcode::Write, |_| Action::Mute);
    let write = file.submit_write_at(b"mine".to_vec(), 0);
    session.flush();
    world.let_time_pass(Duration::from_secs(1));
    world.once(Opcode::Read, |_| Action::Mute);
    let read = file.submit_read_at(vec![0; 4], 0);
    session.flush();
    for _ in 0..10 {
        world.let_time_pass(Duration::from_secs(10));
        other.ping().unwrap();
    }
    others.write_all_at(b"theirs", 0).unwrap();
    assert!(matches!(write.wait().result, Err(Error::InDoubt { operation: Opcode::Write })));
    let read = read.wait();
    assert_eq!((read.result.unwrap(), &read.buffer[..]), (4, &b"thei"[..]));
    assert_eq!(world.content("f"), b"theirs", "it was executed before, and is not again");
}

fn both() -> OpenOptions {
    let mut options = OpenOptions::new();
    options.read(true).write(true);
    options
}

// [CLI-55]
#[test]
fn request_that_is_sent_again_has_what_is_left_of_its_time() {
    let world = ScriptedWorld::new(62);
    let timeout = Some(Duration::from_secs(20));
    let session = world.connect(&Config { operation_timeout: timeout, ..ScriptedWorld::config() }).unwrap();
    let export = session.mount("data").unwrap();
    let seen = Arc::new(Mutex::new(Vec::new()));
    let noted = Arc::clone(&seen);
    world.hook(move |header| {
        let mut noted = noted.lock().unwrap();
        match header.opcode {
            Opcode::Mkdir => noted.push(header.deadline_ms),
            _ => return Action::Serve,
        }
        if noted.len() == 1 { Action::CutBefore } else { Action::Serve }
    });
    let made = export.submit_create_dir("d", 0o755);
    session.flush();
    world.let_time_pass(Duration::from_secs(5));
    made.wait().unwrap();
    let seen = seen.lock().unwrap();
    assert_eq!(seen.len(), 2);
    assert!(seen[0] == 20_000 && (1..=15_000).contains(&seen[1]), "{seen:?}");
}
