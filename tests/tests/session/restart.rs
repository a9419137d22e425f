//! The server is stopped and started again: clients go on, and learn what was lost.

use std::collections::BTreeSet;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use dafs_client::{Config, DurableWriter, Error, OpenOptions, ReconnectPolicy, Session, StaleCause, Status};
use dafs_tests::harness::{Harness, On};
use dafs_tests::on_each_provider_and_three_workers;
use dafs_tests::suite::{assert_same, bytes, in_time};

use crate::cuts::wait_for;

on_each_provider_and_three_workers! {
    server_restarted_under_load_lets_every_client_finish,
    unstable_writes_of_before_a_restart_are_reported_by_the_commit,
    file_gone_after_a_restart_is_stale_alone,
    memory_export_after_a_restart_is_empty_and_its_files_are_stale,
    handle_never_reaches_another_file_that_has_its_number,
    file_without_generation_is_not_taken_for_the_open_one,
    files_of_a_withdrawn_export_are_stale_alone,
    handle_of_an_export_never_reaches_what_took_its_place,
    file_that_the_client_renamed_itself_is_open_after_a_restart,
    files_that_the_client_exchanged_are_open_after_a_restart,
    session_without_a_server_ends_with_the_reason,
    operation_ends_in_time_while_there_is_no_server,
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

fn connect(harness: &Harness) -> Session {
    harness.connect(&config()).unwrap()
}

// [SESS-52] [STOR-16] [CLI-21] [SESS-136]
fn server_restarted_under_load_lets_every_client_finish(on: On) {
    const CLIENTS: u64 = 4;
    let pieces_count = on.rounds(400);
    const RESTARTS: u64 = 4;
    let mut harness = Harness::start_with(on, |config| config.drain_ms = 100);
    let (progress, restarted) = (AtomicU64::new(0), AtomicU64::new(0));
    let sessions: Vec<_> = (0..CLIENTS).map(|_| connect(&harness)).collect();
    let data = harness.data();
    std::thread::scope(|scope| {
        let workers: Vec<_> = sessions
            .iter()
            .zip(0u64..)
            .map(|(session, client)| {
                let (progress, restarted) = (&progress, &restarted);
                scope.spawn(move || {
                    let root = session.mount("data").unwrap();
                    let mut options = OpenOptions::new();
                    let file = root
                        .open_with(format!("file{client}"), options.read(true).write(true).create(true))
                        .unwrap();
                    let mut writer = DurableWriter::new(&file, 1 << 20);
                    let mut made = BTreeSet::new();
                    for piece in 0..pieces_count {
                        if piece == pieces_count - 1 {
                            // One that is quick could be done while the first server still drains.
                            wait_for(|| restarted.load(Ordering::Acquire) > 0);
                        }
                        let data = bytes(client * pieces_count + piece, 2000);
                        writer.write_all_at(&data, piece * 2000).unwrap();
                        let name = format!("dir{client}-{piece}");
                        match root.create_dir(&name, 0o755) {
                            Ok(_) => {}
                            // It may have been made: then it is there, and trying again says so.
                            Err(Error::InDoubt { .. }) => {
                                let again = root.create_dir(&name, 0o755);
                                assert!(
                                    again.as_ref().is_ok()
                                        || again.as_ref().is_err_and(Error::already_exists),
                                    "{again:?}"
                                );
                            }
                            Err(error) => panic!("{name}: {error}"),
                        }
                        made.insert(name);
                        progress.fetch_add(1, Ordering::AcqRel);
                    }
                    writer.commit().unwrap();
                    made
                })
            })
            .collect();
        for restart in 1..=RESTARTS {
            let goal = restart * CLIENTS * pieces_count / (RESTARTS + 1);
            wait_for(|| {
                progress.load(Ordering::Acquire) >= goal || workers.iter().any(|worker| worker.is_finished())
            });
            harness.restart();
            restarted.fetch_add(1, Ordering::AcqRel);
        }
        for (worker, client) in workers.into_iter().zip(0u64..) {
            for name in worker.join().unwrap() {
                assert!(data.join(&name).is_dir(), "{name}");
            }
            let found = std::fs::read(data.join(format!("file{client}"))).unwrap();
            let expected: Vec<u8> =
                (0..pieces_count).flat_map(|piece| bytes(client * pieces_count + piece, 2000)).collect();
            assert_same(&found, &expected, "a client's file");
        }
    });
    assert!(sessions.iter().all(|session| session.reconnects() >= 1), "everybody was cut off");
}

// [STOR-16] [CLI-20] [CLI-96]
fn unstable_writes_of_before_a_restart_are_reported_by_the_commit(on: On) {
    let mut harness = Harness::start(on);
    let session = connect(&harness);
    let file = session.mount("data").unwrap().create("f").unwrap();
    file.write_all_at(&bytes(1, 1000), 0).unwrap();
    file.commit().unwrap();
    file.write_all_at(&bytes(2, 1000), 5000).unwrap();
    file.write_at_with(&bytes(3, 1000), 20_000, dafs_client::Stability::DataSync).unwrap();
    harness.restart();
    file.write_all_at(&bytes(4, 1000), 10_000).unwrap();
    let lost = file.commit();
    match &lost {
        Err(Error::WritesLost { ranges, .. }) => assert_eq!(ranges, std::slice::from_ref(&(5000..6000))),
        other => panic!("{other:?}"),
    }
    // Reported once; what is written again is committed.
    file.write_all_at(&bytes(2, 1000), 5000).unwrap();
    file.commit().unwrap();
    file.commit().unwrap();
    assert_eq!(session.reconnects(), 1);
}

// [CLI-32] [SESS-52]
fn file_gone_after_a_restart_is_stale_alone(on: On) {
    let mut harness = Harness::start(on);
    let session = connect(&harness);
    let root = session.mount("data").unwrap();
    let [gone, replaced, there] = ["gone", "replaced", "there"].map(|name| root.create(name).unwrap());
    there.write_all_at(b"there", 0).unwrap();
    harness.stop();
    std::fs::remove_file(harness.data().join("gone")).unwrap();
    std::fs::write(harness.scratch().join("other"), b"other").unwrap();
    std::fs::rename(harness.scratch().join("other"), harness.data().join("replaced")).unwrap();
    harness.restart();
    for (file, name, why) in
        [(&gone, "gone", StaleCause::Path(Status::NOT_FOUND)), (&replaced, "replaced", StaleCause::Replaced)]
    {
        match file.read_at(&mut [0; 10], 0) {
            Err(Error::Stale { path, cause, .. }) => assert_eq!((&*path, cause), (name.as_bytes(), why)),
            other => panic!("{name}: {other:?}"),
        }
        assert!(matches!(file.write_at(b"x", 0), Err(Error::Stale { .. })));
        assert!(matches!(file.metadata(), Err(Error::Stale { .. })));
    }
    let mut data = [0; 5];
    there.read_exact_at(&mut data, 0).unwrap();
    assert_eq!(&data, b"there");
    root.open("replaced").unwrap();
}

// [CLI-32] [STOR-17]
fn memory_export_after_a_restart_is_empty_and_its_files_are_stale(on: On) {
    let mut harness = Harness::start(on);
    let session = connect(&harness);
    let root = session.mount("mem").unwrap();
    let file = root.create("f").unwrap();
    file.write_all_at(&bytes(1, 100_000), 0).unwrap();
    harness.restart();
    assert!(matches!(file.commit(), Err(Error::Stale { .. })));
    // The root of a new file system: the export is mounted again.
    let root = session.mount("mem").unwrap();
    assert_eq!(root.read_dir("", false).unwrap().count(), 0);
    assert_eq!(root.open("f").unwrap_err().status(), Some(Status::NOT_FOUND));
}

/// How statfs(2) names ext2, ext3 and ext4.
const EXT4_MAGIC: i64 = 0xef53;

/// A new file under the path that has the same inode number as the one that was there, where the file system gives numbers again.
fn made_anew(path: &std::path::Path, content: &[u8]) -> bool {
    use std::os::unix::fs::MetadataExt;
    let number = std::fs::metadata(path).unwrap().ino();
    std::fs::remove_file(path).unwrap();
    let mut others = Vec::new();
    for attempt in 0..64 {
        std::fs::write(path, content).unwrap();
        if std::fs::metadata(path).unwrap().ino() == number {
            others.iter().for_each(|other| std::fs::remove_file(other).unwrap());
            return true;
        }
        let other = path.with_extension(attempt.to_string());
        std::fs::rename(path, &other).unwrap();
        others.push(other);
    }
    std::fs::write(path, content).unwrap();
    false
}

// [SESS-55] [STOR-40] [STOR-41] [CLI-32]
fn handle_never_reaches_another_file_that_has_its_number(on: On) {
    let directory = tempfile::tempdir().unwrap();
    let gives_again = rustix::fs::statfs(directory.path()).unwrap().f_type == EXT4_MAGIC;
    // A test beside this one may get the number first.
    let tries = if gives_again { 50 } else { 1 };
    let came = (0..tries).any(|_| handle_does_not_reach_another(on));
    assert!(came || !gives_again, "ext4 gives a number that is free again");
}

/// Whether the other had the number.
fn handle_does_not_reach_another(on: On) -> bool {
    let mut harness = Harness::start(on);
    let session = connect(&harness);
    let (data, mem) = (session.mount("data").unwrap(), session.mount("mem").unwrap());
    let files = [data.create("f").unwrap(), mem.create("f").unwrap()];
    harness.stop();
    let same_number = made_anew(&harness.data().join("f"), b"another");
    harness.restart();
    let other = connect(&harness);
    // In memory numbers begin again.
    other.mount("mem").unwrap().create("f").unwrap().write_all_at(b"another", 0).unwrap();
    for (file, export) in files.iter().zip(["data", "mem"]) {
        let cause = match file.write_at(b"mine", 0) {
            Err(Error::Stale { cause, .. }) => cause,
            result => panic!("{export}, same number: {same_number}: {result:?}"),
        };
        assert_eq!(cause, StaleCause::Replaced, "{export}");
        assert!(file.commit().is_err());
        let mut found = [0; 20];
        let len = other.mount(export).unwrap().open("f").unwrap().read_at(&mut found, 0).unwrap();
        assert_eq!(&found[..len], b"another", "{export}");
    }
    same_number
}

// [SESS-55] [CLI-32] What has the same number and the same path may still be another.
fn file_without_generation_is_not_taken_for_the_open_one(on: On) {
    let (mut harness, faults) = Harness::start_faulty(on, |_| {});
    faults.claim_no_generation();
    let session = connect(&harness);
    let file = session.mount("data").unwrap().create("f").unwrap();
    file.write_all_at(b"mine", 0).unwrap();
    file.commit().unwrap();
    harness.restart();
    match file.write_at(b"another's", 0) {
        Err(Error::Stale { cause, .. }) => assert_eq!(cause, StaleCause::Unnamed),
        other => panic!("{other:?}"),
    }
    assert_eq!(std::fs::read(harness.data().join("f")).unwrap(), b"mine");
}

// [CLI-32] [SESS-52]
fn files_of_a_withdrawn_export_are_stale_alone(on: On) {
    let mut harness = Harness::start(on);
    let session = connect(&harness);
    let root = session.mount("mem").unwrap();
    let [file, there] = [root.create("f"), session.mount("data").unwrap().create("f")].map(Result::unwrap);
    harness.restart_with(|config| drop(config.exports.pop()));
    there.write_all_at(b"there", 0).unwrap();
    let expected = StaleCause::Export(Status::NO_EXPORT);
    for result in [file.write_at(b"x", 0).map(drop), root.metadata("f").map(drop)] {
        match result {
            Err(Error::Stale { cause, .. }) => assert_eq!(cause, expected),
            other => panic!("{other:?}"),
        }
    }
    assert_eq!(std::fs::read(harness.data().join("f")).unwrap(), b"there");
}

// [SESS-55] [CLI-32]
fn handle_of_an_export_never_reaches_what_took_its_place(on: On) {
    let mut harness = Harness::start(on);
    let session = connect(&harness);
    let (data, mem) = (session.mount("data").unwrap(), session.mount("mem").unwrap());
    let kept = data.create("kept").unwrap();
    harness.stop();
    std::fs::rename(harness.data(), harness.scratch().join("before")).unwrap();
    std::fs::create_dir(harness.data()).unwrap();
    std::fs::rename(harness.scratch().join("before/kept"), harness.data().join("kept")).unwrap();
    harness.restart();
    // Sent to the server that is gone, a request that makes something would be in doubt.
    session.ping().unwrap();
    for (root, export) in [(&data, "data"), (&mem, "mem")] {
        for result in
            [root.create("new").map(drop), root.remove_file("kept"), root.create_dir("d", 0o755).map(drop)]
        {
            assert!(
                matches!(result, Err(Error::Stale { cause: StaleCause::Replaced, .. })),
                "{export}: {result:?}"
            );
        }
        assert!(
            session.mount(export).unwrap().create("new").is_ok(),
            "mounted again it is what is there now"
        );
    }
    kept.write_all_at(b"the very file", 0).unwrap();
    assert_eq!(std::fs::read(harness.data().join("kept")).unwrap(), b"the very file");
}

// [CLI-54]
fn files_that_the_client_exchanged_are_open_after_a_restart(on: On) {
    let mut harness = Harness::start(on);
    let session = connect(&harness);
    let root = session.mount("data").unwrap();
    root.create_dir("d", 0o755).unwrap();
    let files = ["f", "d/g"].map(|name| root.create(name).unwrap());
    for (file, byte) in files.iter().zip([1, 2]) {
        file.write_at(&[byte; 10], 0).unwrap();
        file.commit().unwrap();
    }
    root.exchange("f", &root, "d").unwrap();
    harness.restart();
    for (file, byte) in files.iter().zip([1, 2]) {
        let mut found = [0; 10];
        assert_eq!(file.read_at(&mut found, 0).unwrap(), 10);
        assert_eq!(found, [byte; 10]);
    }
    assert!(root.metadata("f/g").is_ok() && root.metadata("d").unwrap().size == 10);
}

// [CLI-54]
fn file_that_the_client_renamed_itself_is_open_after_a_restart(on: On) {
    let mut harness = Harness::start(on);
    let session = connect(&harness);
    let root = session.mount("data").unwrap();
    root.create_dir("d", 0o755).unwrap();
    let directory = root.open_dir("d").unwrap();
    let (file, below, other) =
        (root.create("f").unwrap(), directory.create("below").unwrap(), root.create("fg").unwrap());
    root.rename("f", &directory, "moved", false).unwrap();
    root.rename("d", &root, "e", false).unwrap();
    directory.submit_rename("moved", &root, "again", false).wait().unwrap();
    let (later, chained) = (directory.create("later").unwrap(), "chained");
    std::fs::write(harness.data().join("e").join(chained), "").unwrap();
    let chained = directory.chain().open(chained, OpenOptions::new().read(true).write(true)).run().unwrap();
    let chained = chained.file.unwrap();
    harness.restart();
    for (file, path) in
        [(&file, "again"), (&below, "e/below"), (&other, "fg"), (&later, "e/later"), (&chained, "e/chained")]
    {
        file.write_all_at(path.as_bytes(), 0).unwrap_or_else(|error| panic!("{path}: {error}"));
        assert_eq!(std::fs::read(harness.data().join(path)).unwrap(), path.as_bytes());
    }
    assert!(directory.create("new").is_ok());
    assert!(harness.data().join("e/new").exists());
}

// [CLI-33]
fn session_without_a_server_ends_with_the_reason(on: On) {
    let mut harness = Harness::start(on);
    let reconnect = ReconnectPolicy { attempts_max: 3, ..config().reconnect };
    let session = harness.connect(&Config { reconnect, ..Config::default() }).unwrap();
    let file = session.mount("mem").unwrap().create("f").unwrap();
    let pending = file.submit_write_at(vec![1; 10], 0);
    let _ = pending.wait();
    harness.stop();
    let error = session.ping().unwrap_err();
    assert!(matches!(error, Error::Connection { .. }), "{error:?}");
    assert!(error.to_string().contains("3 attempts"), "{error}");
    let mut buffer = session.buffer(100_000).unwrap();
    assert!(file.read_buf_at(&mut buffer, 0).is_err(), "it has ended");
    assert!(file.submit_write_at(vec![7; 100_000], 0).wait().buffer == [7; 100_000], "memory comes back");
    let error = harness.connect(&Config::default()).unwrap_err();
    let place = harness.url().rsplit("//").next().unwrap().to_owned();
    assert!(error.to_string().contains(place.trim_start_matches('/')), "{error} names {place}");
    harness.restart();
    assert!(session.ping().is_err(), "an ended session does not come back");
    connect(&harness).ping().unwrap();
}

// [CLI-11]
fn operation_ends_in_time_while_there_is_no_server(on: On) {
    let mut harness = Harness::start(on);
    let timeout = Some(Duration::from_millis(200));
    let session = harness.connect(&Config { operation_timeout: timeout, ..config() }).unwrap();
    let export = in_time(|| session.mount("mem"));
    harness.stop();
    std::thread::scope(|scope| {
        // The one that finds the connection broken, and those who wait for it.
        for _ in 0..3 {
            scope.spawn(|| {
                let found = export.metadata("");
                assert!(matches!(found, Err(Error::TimedOut { .. })), "{found:?}");
            });
        }
    });
    let read = export.submit_metadata("");
    assert!(matches!(read.wait(), Err(Error::TimedOut { .. })));
    assert!(!session.is_connected());
}
