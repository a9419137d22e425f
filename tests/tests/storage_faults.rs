//! Storage that fails, writes short, hangs or is full: the caller learns it, nothing acknowledged is lost, and the session goes on.
#![allow(clippy::unwrap_used, reason = "all of this is test code, helpers included")]

use std::io::IoSlice;
use std::time::Duration;

use dafs_client::{
    Background, Chained, Config, DurableWriter, Error, Export, FenceList, File, LockKind, LockOptions,
    OpenOptions, Session, Stability, Status,
};
use dafs_proto::extent::Extent;
use dafs_proto::transport::{Access, WaitPolicy};
use dafs_proto::wire::{
    FileHandle, HEADER_SIZE, Header, ListFlags, ListRequest, Method, Opcode, OpenFlags, ReaddirReply,
    ReaddirRequest, Sieve, encode_lists, lists_size,
};
use dafs_server::config::ExportKind;
use dafs_tests::faulty::{Fault, Faults, Kind};
use dafs_tests::harness::{Harness, On};
use dafs_tests::on_each_provider;
use dafs_tests::raw::{Raw, read_body, write_body};
use dafs_tests::suite::{EXPORTS, assert_same, assert_status, bytes, wait_for};

on_each_provider! {
    failed_operation_is_reported_without_effect_on_the_session,
    write_that_comes_short_is_counted_and_continued,
    window_that_fails_at_once_ends_its_list,
    window_that_storage_writes_part_by_part_counts_as_calls,
    write_of_several_requests_counts_what_came_before_the_one_that_failed,
    append_that_comes_short_is_an_error_and_the_next_follows_it,
    operation_that_hangs_delays_nobody_else,
    requests_as_large_as_a_client_likes_stop_nobody_else,
    listings_that_end_at_once_are_answered_over_many_turns,
    storage_is_told_whose_each_operation_is,
    session_that_ends_with_thousands_of_files_leaves_none_open,
    sessions_whose_leases_end_together_are_closed_in_parts,
    commit_that_fails_is_told_and_the_next_names_what_is_lost,
    commit_that_fails_beside_a_write_makes_the_write_doubtful,
    durable_writer_writes_again_what_a_failed_commit_lost,
    operation_that_meets_a_fence_on_its_way_is_answered_fenced,
    truncating_open_sees_a_mandatory_lock_granted_meanwhile,
    list_whose_session_ends_while_it_is_made_durable_is_over,
    fence_waits_for_operations_of_its_clients_alone,
}

/// Over RDMA the ring makes a large write durable in one with writing it.
mod told {
    use super::{
        commit_of_a_chain_names_all_that_was_lost,
        stable_write_beside_a_commit_that_fails_is_not_told_as_durable,
        stable_write_beside_a_failing_commit_has_its_own_answer,
    };

    dafs_tests::on_sockets! {
        commit_of_a_chain_names_all_that_was_lost,
        stable_write_beside_a_commit_that_fails_is_not_told_as_durable,
        stable_write_beside_a_failing_commit_has_its_own_answer,
    }
}

/// What a server measures of itself depends on no provider's transfers.
mod measured {
    use super::turn_in_which_the_loop_stands_still_is_measured;

    dafs_tests::on_sockets! { turn_in_which_the_loop_stands_still_is_measured }
}

struct Scene {
    _harness: Harness,
    faults: Faults,
    session: Session,
    root: Export,
}

fn each_export(on: On, run: impl Fn(&Scene)) {
    for export in EXPORTS {
        let (harness, faults) = Harness::start_faulty(on, |_| {});
        let session = harness.session();
        let root = session.mount(export).unwrap();
        let scene = Scene { _harness: harness, faults, session, root };
        run(&scene);
        let statistics = scene.session.statistics().unwrap();
        assert_eq!((scene.session.reconnects(), statistics.protocol_errors), (0, 0), "{export}");
    }
}

impl Scene {
    fn file(&self, data: &[u8]) -> File {
        let file = self.root.create("f").unwrap();
        file.write_all_at(data, 0).unwrap();
        file
    }
}

/// Sizes that travel inline, direct, and in several pieces.
const SIZES: [usize; 4] = [1, 4000, 300_000, (5 << 20) + 3];

// [BUF-25]
fn turn_in_which_the_loop_stands_still_is_measured(on: On) {
    const STANDS_STILL: Duration = Duration::from_millis(50);
    for poll in [WaitPolicy::Adaptive, WaitPolicy::Event] {
        let (harness, faults) = Harness::start_faulty(on, |config| config.poll = poll);
        let session = harness.session();
        let root = session.mount("data").unwrap();
        faults.next(Kind::Mkdir, Fault::Stall(STANDS_STILL), 1);
        root.create_dir("d", 0o755).unwrap();
        wait_for(&format!("the turn is measured, {poll:?}"), || harness.longest_turn() >= STANDS_STILL);
    }
}

// [ERR-1] [ERR-3]
fn failed_operation_is_reported_without_effect_on_the_session(on: On) {
    const STATUSES: [Status; 5] =
        [Status::IO, Status::NO_SPACE, Status::QUOTA, Status::TOO_MANY_OPEN, Status::NO_MEMORY];
    each_export(on, |scene| {
        let faults = &scene.faults;
        for (status, size) in STATUSES.into_iter().zip(SIZES.into_iter().cycle()) {
            let data = bytes(size as u64, size);
            let file = scene.file(&data);
            let fail = |kind| faults.next(kind, Fault::Fail(status), 1);
            let mut found = vec![0; size];
            fail(Kind::Read);
            assert_status(file.read_at(&mut found, 0), status, "read");
            fail(Kind::Write);
            assert_status(file.write_all_at(&bytes(1, 10), 0), status, "write");
            fail(Kind::Append);
            assert_status(file.append(&bytes(2, 10)), status, "append");
            fail(Kind::Mkdir);
            assert_status(scene.root.create_dir("d", 0o755), status, "mkdir");
            fail(Kind::Open);
            assert_status(scene.root.create("new").map(drop), status, "open");
            fail(Kind::Readdir);
            let listed =
                scene.root.read_dir("", false).and_then(|entries| entries.collect::<Result<Vec<_>, _>>());
            assert_status(listed.map(|entries| entries.len()), status, "readdir");
            // All of it is as it was, and works now.
            assert_eq!(file.read_at(&mut found, 0).unwrap(), size);
            assert_same(&found, &data, "after failures");
            assert_eq!(file.metadata().unwrap().size, size as u64);
            let names = scene.root.read_dir("", false).unwrap().map(|entry| entry.unwrap().name);
            assert_eq!(names.collect::<Vec<_>>(), [b"f"]);
            scene.root.create_dir("d", 0o755).unwrap();
            scene.root.remove_dir("d").unwrap();
        }
    });
}

// [CLI-165]
fn write_of_several_requests_counts_what_came_before_the_one_that_failed(on: On) {
    const PIECE: usize = 64 << 10;
    let (harness, faults) =
        Harness::start_faulty(on, |config| config.transfer_size_max = u32::try_from(PIECE).unwrap());
    let session = harness.session();
    let file = session.mount("data").unwrap().create("f").unwrap();
    for status in [Status::NO_SPACE, Status::IO] {
        let data = bytes(u64::from(status.value()), 4 * PIECE);
        file.truncate(0).unwrap();
        faults.next(Kind::Write, Fault::Pass, 1);
        faults.next(Kind::Write, Fault::Fail(status), 1000);
        let count = file.write_at(&data, 0).unwrap();
        assert!((1..=PIECE).contains(&count), "{status}: {count}");
        faults.release();
        let mut found = vec![0; count];
        file.read_exact_at(&mut found, 0).unwrap();
        assert_same(&found, &data[..count], "what was counted");
        faults.next(Kind::Write, Fault::Fail(status), 1000);
        assert_status(file.write_at(&data, 0).map(drop), status, "none is written");
        faults.release();
    }
}

// [CLI-68] [STOR-59] [STOR-175]
fn write_that_comes_short_is_counted_and_continued(on: On) {
    each_export(on, |scene| {
        for size in SIZES {
            let data = bytes(3, size);
            let file = scene.file(&[]);
            scene.faults.next(Kind::Write, Fault::Short, 1);
            let count = file.write_at(&data, 0).unwrap();
            assert!(count <= size && count >= size.min(1) && (size < 2 || count < size), "{count} of {size}");
            let mut found = vec![0; count];
            file.read_exact_at(&mut found, 0).unwrap();
            assert_same(&found, &data[..count], "what was counted");
            scene.faults.next(Kind::Write, Fault::Short, 8);
            file.write_all_at(&data, 0).unwrap();
            scene.faults.release();
            let mut found = vec![0; size];
            file.read_exact_at(&mut found, 0).unwrap();
            assert_same(&found, &data, "all of it");
        }
    });
}

// [LIST-6]
fn window_that_fails_at_once_ends_its_list(on: On) {
    each_export(on, |scene| {
        let data = bytes(3, 1000);
        let file = scene.file(&data);
        file.set_sieve(Sieve::On);
        let extents = [100, 200, 300].map(|at| Extent::new(at, 10));
        let write = || file.write_list(&extents, &[IoSlice::new(&[7; 30])]);
        scene.faults.next(Kind::Window, Fault::Fail(Status::NO_SPACE), 1);
        assert_status(write(), Status::NO_SPACE, "a window");
        let mut found = vec![0; 1000];
        file.read_exact_at(&mut found, 0).unwrap();
        assert_same(&found, &data, "nothing is written");
        assert_eq!(write().unwrap(), 30);
    });
}

// [LIST-47]
fn window_that_storage_writes_part_by_part_counts_as_calls(on: On) {
    let seen = std::cell::RefCell::new(Vec::new());
    each_export(on, |scene| {
        let file = scene.file(&bytes(3, 1000));
        let explained = file.with_sieve(Sieve::On).with_explanation();
        let extents = [100, 200, 300].map(|at| Extent::new(at, 10));
        let before = scene.session.statistics().unwrap().sieved_windows;
        // It is not at hand.
        scene.faults.next(Kind::Write, Fault::Pass, 1);
        assert_eq!(explained.write_list(&extents, &[IoSlice::new(&[7; 30])]).unwrap(), 30);
        let told = explained.take_explanation();
        let counted = scene.session.statistics().unwrap().sieved_windows - before;
        assert_eq!((told.parts, told.windows), (3, counted), "{told}");
        seen.borrow_mut().push((told.windows, told.calls, told.waited));
    });
    // Memory has no windows.
    assert_eq!(*seen.borrow(), [(1, 0, 1), (0, 3, 3)]);
}

// [STOR-62]
fn append_that_comes_short_is_an_error_and_the_next_follows_it(on: On) {
    each_export(on, |scene| {
        let file = scene.file(b"begin");
        scene.faults.next(Kind::Append, Fault::Short, 1);
        assert_status(file.append(b"12345678"), Status::NO_SPACE, "a part of an append");
        assert_eq!(file.append(b"end").unwrap(), 9);
        let mut found = [0; 12];
        file.read_exact_at(&mut found, 0).unwrap();
        assert_eq!(&found, b"begin1234end");
    });
}

// [STOR-20]
fn operation_that_hangs_delays_nobody_else(on: On) {
    let rounds = on.rounds(300);
    each_export(on, |scene| {
        let data = bytes(4, 300_000);
        let file = scene.file(&data);
        scene.faults.next(Kind::Read, Fault::Hold, 1);
        scene.faults.next(Kind::Write, Fault::Hold, 1);
        let read = file.submit_read_at(vec![0; data.len()], 0);
        scene.session.flush();
        scene.faults.wait_for_held(1);
        let written = file.submit_write_at(bytes(5, 300_000), 300_000);
        scene.session.flush();
        scene.faults.wait_for_held(2);
        let other = scene.root.create("other").unwrap();
        for index in 0..rounds {
            other.write_all_at(&bytes(index, 1000), index * 1000).unwrap();
            let mut found = vec![0; 1000];
            other.read_exact_at(&mut found, index * 1000).unwrap();
            assert_same(&found, &bytes(index, 1000), "beside operations that hang");
        }
        assert_eq!(scene.faults.held(), 2);
        scene.faults.release();
        let read = read.wait();
        assert_eq!(read.result.unwrap(), data.len());
        assert_same(&read.buffer, &data, "the read that hung");
        assert_eq!(written.wait().result.unwrap(), 300_000);
        let mut found = vec![0; 300_000];
        file.read_exact_at(&mut found, 300_000).unwrap();
        assert_same(&found, &bytes(5, 300_000), "the write that hung");
    });
}

// [CLI-20] [CLI-96] [CLI-98] [STOR-76]
fn commit_that_fails_is_told_and_the_next_names_what_is_lost(on: On) {
    each_export(on, |scene| {
        let file = scene.file(b"committed");
        file.commit().unwrap();
        file.write_all_at(b"doubtful", 100).unwrap();
        scene.faults.next(Kind::Commit, Fault::Fail(Status::IO), 1);
        assert_status(file.commit(), Status::IO, "commit");
        match file.commit() {
            Err(Error::WritesLost { ranges, .. }) => {
                assert_eq!((ranges.len(), ranges[0].clone()), (1, 100..108));
            }
            other => panic!("{other:?} hides that data was lost"),
        }
        file.write_all_at(b"doubtful", 100).unwrap();
        file.commit().unwrap();
        file.commit().unwrap();
    });
}

// [STOR-76] [STOR-77]
fn commit_that_fails_beside_a_write_makes_the_write_doubtful(on: On) {
    each_export(on, |scene| {
        for size in SIZES {
            let file = scene.file(b"committed");
            file.commit().unwrap();
            let other = scene.root.open("f").unwrap();
            scene.faults.next(Kind::Write, Fault::Hold, 1);
            let written = file.submit_write_at(bytes(7, size), 0);
            scene.session.flush();
            scene.faults.wait_for_held(1);
            // What of the write is in the file by now may be among what this loses.
            scene.faults.next(Kind::Commit, Fault::Fail(Status::IO), 1);
            assert_status(other.commit(), Status::IO, "commit");
            scene.faults.release();
            let count = written.wait().result.unwrap() as u64;
            match file.commit() {
                Err(Error::WritesLost { ranges, .. }) => {
                    assert_eq!((ranges.len(), ranges[0].clone()), (1, 0..count))
                }
                other => panic!("{other:?} hides that data of {size} bytes was lost"),
            }
        }
    });
}

// [STOR-72] The kernel tells of lost data once, to whoever syncs first.
fn stable_write_beside_a_commit_that_fails_is_not_told_as_durable(on: On) {
    each_export(on, |scene| {
        for size in SIZES {
            let file = scene.file(b"committed");
            let other = scene.root.open("f").unwrap();
            scene.faults.next(Kind::Commit, Fault::Hold, 1);
            let written = file.submit_write_at_with(bytes(7, size), 0, Stability::DataSync);
            scene.session.flush();
            // Its data is fetched while the session is asked for something.
            wait_for("it is made durable", || scene.session.ping().is_ok() && scene.faults.held() == 1);
            scene.faults.next(Kind::Commit, Fault::Fail(Status::IO), 1);
            assert_status(other.commit(), Status::IO, "commit");
            scene.faults.release();
            assert_status(written.wait().result, Status::IO, "stable write");
            file.write_all_at(&bytes(7, size), 0).unwrap();
        }
    });
}

// [STOR-72] [BATCH-4] [WIRE-43]
fn stable_write_beside_a_failing_commit_has_its_own_answer(on: On) {
    each_export(on, |scene| {
        let other = scene.file(b"committed");
        let durable =
            scene.root.open_with("f", OpenOptions::new().write(true).stability(Stability::DataSync));
        let durable = durable.unwrap();
        for size in SIZES {
            let data = bytes(7, size);
            scene.faults.next(Kind::Commit, Fault::Hold, 1);
            // One: a second would have a commit of its own, which could meet the fault that is another's.
            let mut batch = scene.session.owned_batch();
            batch.write_at(&durable, data.clone(), 0);
            let pending = batch.submit(None);
            scene.session.flush();
            wait_for("it is made durable", || scene.session.ping().is_ok() && scene.faults.held() == 1);
            scene.faults.next(Kind::Commit, Fault::Fail(Status::IO), 1);
            assert_status(other.commit(), Status::IO, "commit");
            scene.faults.release();
            let result = pending.wait().results.unwrap().into_iter().next().unwrap();
            assert_status(result, Status::IO, "stable write");
            other.write_all_at(&data, 0).unwrap();
        }
    });
}

// [CLI-96]
fn commit_of_a_chain_names_all_that_was_lost(on: On) {
    let lost = |result: dafs_client::Result<Chained>| match result {
        Err(Error::WritesLost { path, ranges, attributes: false }) if path == b"f" => {
            ranges.into_iter().map(|range| (range.start, range.end)).collect::<Vec<_>>()
        }
        other => panic!("{other:?}"),
    };
    each_export(on, |scene| {
        let (file, other) = (scene.file(b"committed"), scene.root.create("other").unwrap());
        file.commit().unwrap();
        let lose = || {
            scene.faults.next(Kind::Commit, Fault::Fail(Status::IO), 1);
            assert_status(other.commit(), Status::IO, "commit");
        };
        file.write_all_at(&[1; 10], 100).unwrap();
        lose();
        assert_eq!(lost(file.chain().write_at(&[2; 5], 200).commit().run()), [(100, 110)]);
        file.chain().commit().run().unwrap();
        // Between a write of the chain and its commit.
        std::thread::scope(|scope| {
            scene.faults.next(Kind::Commit, Fault::Hold, 1);
            let chain = scope.spawn(|| file.chain().write_at(&[3; 7], 0).commit().run());
            scene.faults.wait_for_held(1);
            lose();
            scene.faults.release();
            assert_eq!(lost(chain.join().unwrap()), [(0, 7)]);
        });
        let mut options = OpenOptions::new();
        options.write(true);
        scene.root.chain().open("f", &options).write_at(&[4; 7], 50).commit().close().run().unwrap();
    });
}

// [CLI-21]
fn durable_writer_writes_again_what_a_failed_commit_lost(on: On) {
    each_export(on, |scene| {
        let file = scene.file(&[]);
        let data = bytes(6, 100_000);
        let mut writer = DurableWriter::new(&file, 1 << 20);
        for (index, part) in data.chunks(10_000).enumerate() {
            writer.write_all_at(part, index as u64 * 10_000).unwrap();
        }
        scene.faults.next(Kind::Commit, Fault::Fail(Status::IO), 1);
        assert_status(writer.commit(), Status::IO, "commit");
        let written = || scene.session.statistics().unwrap().bytes_written.iter().sum::<u64>();
        let before = written();
        writer.commit().unwrap();
        assert_eq!(written() - before, data.len() as u64, "all of it is written again");
        let mut found = vec![0; data.len()];
        file.read_exact_at(&mut found, 0).unwrap();
        assert_same(&found, &data, "what is durable");
    });
}

// [BUF-25] [BUF-56] [STOR-29] In debug builds the server's loop panics where a turn takes more than it may.
fn requests_as_large_as_a_client_likes_stop_nobody_else(on: On) {
    const SIZE: u64 = 1 << 40;
    let size_max = 2 * SIZE;
    let harness = Harness::start_with(on, |config| config.exports[1].kind = ExportKind::Memory { size_max });
    let (greedy, session) = (harness.session(), harness.session());
    let root = greedy.mount("mem").unwrap();
    let file = root.create("f").unwrap();
    for round in 0..24 {
        let pending = [
            file.submit_allocate(0, SIZE),
            file.submit_punch_hole(round, SIZE / 2),
            file.submit_truncate(round),
            file.submit_allocate(round, SIZE),
            file.submit_truncate(0),
        ];
        let other = session.mount("mem").unwrap();
        other.create("other").unwrap().write_all_at(b"served", 0).unwrap();
        pending.into_iter().for_each(|pending| pending.wait().unwrap());
    }
    file.allocate(0, SIZE).unwrap();
    for index in 0..on.rounds(3000) {
        root.link("f", root.root(), index.to_string()).unwrap();
    }
    let listed: Vec<_> = root.read_dir("", true).unwrap().collect::<Result<_, _>>().unwrap();
    assert_eq!(listed.len() as u64, on.rounds(3000) + 2);
    assert!(
        listed.iter().filter(|entry| entry.name != b"other").all(|entry| {
            entry.attributes.as_ref().is_some_and(|attributes| attributes.allocated == SIZE)
        })
    );
    let long = "./".repeat(2040) + "f";
    for _ in 0..on.rounds(200) {
        root.metadata(&long).unwrap();
    }
    for session in [greedy, session] {
        assert_eq!((session.reconnects(), session.statistics().unwrap().protocol_errors), (0, 0));
    }
}

// [BUF-25] Debug builds panic where a turn takes more steps than it may.
fn listings_that_end_at_once_are_answered_over_many_turns(on: On) {
    const SESSIONS: usize = 12;
    const LISTINGS: usize = 8;
    let (harness, faults) = Harness::start_faulty(on, |_| {});
    std::fs::write(harness.data().join("0"), "").unwrap();
    for number in 1..1100 {
        std::fs::hard_link(harness.data().join("0"), harness.data().join(number.to_string())).unwrap();
    }
    faults.next(Kind::Readdir, Fault::Late, usize::MAX);
    let listing = || {
        let (mut raw, _) = Raw::session(harness.address(), 16);
        let root = raw.mount("data");
        let region = raw.region(1 << 20, Access::all());
        let segment = [region.range().key.0, region.range().offset, 1 << 20];
        let mut body = vec![0; ReaddirRequest::HEAD_SIZE - HEADER_SIZE];
        ReaddirRequest { cookie: 0, len: 1 << 20, attributes: true, segment }.encode(&mut body);
        let flags = OpenFlags::READ.union(OpenFlags::DIRECTORY);
        let directory = raw.open(root, b"", flags).header.handle;
        for _ in 0..LISTINGS {
            let mut header = Header::request(Opcode::Readdir, directory);
            raw.begin(&mut header);
            raw.send(header, &body, &[]);
        }
        (raw, region)
    };
    let mut listing: Vec<_> = (0..SESSIONS).map(|_| listing()).collect();
    faults.wait_for_held(SESSIONS * LISTINGS);
    faults.release();
    for (raw, _) in &mut listing {
        for _ in 0..LISTINGS {
            let reply = raw.receive().expect("an answer");
            assert_eq!(reply.header.status, Status::OK);
            assert!(ReaddirReply::decode(&reply.body).unwrap().count > 50_000, "a listing of many entries");
        }
    }
}

fn storage_is_told_whose_each_operation_is(on: On) {
    let (harness, faults) = Harness::start_faulty(on, |_| {});
    let sessions = [(); 3].map(|()| harness.session());
    for session in &sessions {
        for export in EXPORTS {
            let root = session.mount(export).unwrap();
            let file = root.open_with("f", OpenOptions::new().read(true).write(true).create(true)).unwrap();
            file.write_all_at(&bytes(1, 3 << 20), 0).unwrap();
            file.read_exact_at(&mut vec![0; 3 << 20], 0).unwrap();
            file.commit().unwrap();
            assert!(root.read_dir("", true).unwrap().count() > 0);
        }
    }
    assert_eq!(faults.clients(), (3, 0));
    // Threads may still work for a session that has ended: whoever gets its place is somebody else.
    let [first, ..] = sessions;
    first.close();
    let session = harness.session();
    session.mount("data").unwrap().metadata("f").unwrap();
    assert_eq!(faults.clients(), (4, 0));
}

fn session_that_ends_with_thousands_of_files_leaves_none_open(on: On) {
    let (harness, faults) = Harness::start_faulty(on, |_| {});
    let other = harness.session();
    let count = on.rounds(1000);
    let session = harness.session();
    let root = session.mount("mem").unwrap();
    let files: Vec<_> = (0..count).map(|index| root.create(index.to_string()).unwrap()).collect();
    assert_eq!(faults.open_nodes() as u64, count);
    session.close();
    let mount = other.mount("mem").unwrap();
    while faults.open_nodes() > 0 {
        mount.metadata("0").unwrap();
    }
    // In parts, so that nobody waits for all of them.
    let at_once = faults.closed_at_once_max();
    assert!(at_once <= 2 * 256, "{at_once} were closed at once");
    drop(files);
}

// However many fall silent together: no turn of the loop closes the files of all of them.
fn sessions_whose_leases_end_together_are_closed_in_parts(on: On) {
    const SESSIONS: u64 = 24;
    const FILES: u64 = 200;
    let (harness, faults) =
        Harness::start_faulty(on, |config| (config.lease_ms, config.keep_alive_ms) = (1000, 100));
    let silent = Config { background: Background::None, ..Config::default() };
    let files: Vec<_> = (0..SESSIONS)
        .map(|session| {
            let root = harness.session_with(&silent).mount("mem").unwrap();
            let create = |index| root.create(format!("{session}-{index}")).unwrap();
            (0..on.rounds(FILES)).map(create).collect::<Vec<_>>()
        })
        .collect();
    let watcher = harness.session();
    wait_for("the silent sessions end", || watcher.statistics().unwrap().sessions == 1);
    wait_for("their files are closed", || watcher.ping().is_ok() && faults.open_nodes() == 0);
    let at_once = faults.closed_at_once_max();
    assert!(at_once <= 5 * 256, "{at_once} were closed at once");
    drop(files);
}

// [ACC-107]
fn operation_that_meets_a_fence_on_its_way_is_answered_fenced(on: On) {
    let (harness, faults) = Harness::start_faulty(on, |_| {});
    let named = || harness.session_with(&Config { client_id: Some([1; 16]), ..Config::default() });
    let (administrator, session, other) = (harness.session(), named(), named());
    for export in EXPORTS {
        let root = administrator.mount(export).unwrap();
        let file = session.mount(export).unwrap().create("f").unwrap();
        faults.next(Kind::Write, Fault::Hold, 1);
        let write = file.submit_write_at_with(bytes(1, 300_000), 0, Stability::DataSync);
        session.flush();
        faults.wait_for_held(1);
        let fence = root.submit_set_fence_list(&FenceList::of_clients(&[[1; 16]]));
        administrator.flush();
        wait_for("the fence is up", || other.mount(export).is_err());
        faults.release();
        // What it has written is to be made durable.
        assert_status(write.wait().result, Status::FENCED, export);
        fence.wait().unwrap();
        root.set_fence_list(&FenceList::default()).unwrap();
    }
}

// [LOCK-13]
fn truncating_open_sees_a_mandatory_lock_granted_meanwhile(on: On) {
    each_export(on, |scene| {
        let other = scene._harness.session();
        let file = scene.file(b"guarded");
        scene.faults.next(Kind::Open, Fault::Hold, 1);
        let root = other.mount(scene.root.name()).unwrap();
        let cuts = root.submit_open_with("f", OpenOptions::new().write(true).truncate(true));
        other.flush();
        scene.faults.wait_for_held(1);
        let options = LockOptions { mandatory: true, ..LockOptions::default() };
        file.lock_with(0..7, LockKind::Exclusive, options).unwrap();
        scene.faults.release();
        assert_status(cuts.wait().map(drop), Status::LOCKED, "it would be cut");
        assert_eq!(file.metadata().unwrap().size, 7);
    });
}

// [ACC-107] A fence waits for nobody who is gone.
fn list_whose_session_ends_while_it_is_made_durable_is_over(on: On) {
    let (harness, faults) = Harness::start_faulty(on, |_| {});
    let patient = Config { operation_timeout: Some(Duration::from_secs(60)), ..Config::default() };
    let administrator = harness.session_with(&patient);
    let list = ListRequest {
        len: 2,
        method: Method::Inline,
        stability: Stability::FileSync,
        sieve: Sieve::Auto,
        flags: ListFlags::empty(),
        extent_count: 2,
        segment_count: 0,
    };
    let mut payload = vec![7; lists_size(2, 0) + 2];
    encode_lists([0, 100].into_iter().map(|at| Extent::new(at, 1)), &[], &mut payload[..lists_size(2, 0)]);
    for export in EXPORTS {
        let (mut raw, _) = Raw::session(harness.address(), 8);
        let root = raw.mount(export);
        let file = raw.create(root, b"f");
        faults.next(Kind::Commit, Fault::Hold, 1);
        let mut header = Header::request(Opcode::WriteList, file);
        raw.begin(&mut header);
        raw.send(header, &list.bytes(), &payload);
        faults.wait_for_held(1);
        let mut bye = Header::request(Opcode::Bye, FileHandle(0));
        raw.begin(&mut bye);
        raw.send(bye, &[], &[]);
        while raw.receive().is_some() {}
        faults.release();
        let root = administrator.mount(export).unwrap();
        root.set_fence_list(&FenceList::of_clients(&[[1; 16]])).unwrap();
        root.set_fence_list(&FenceList::default()).unwrap();
    }
}

// [ACC-130] Its session has ended, and storage still reads for it.
fn fence_waits_for_operations_of_its_clients_alone(on: On) {
    let (harness, faults) = Harness::start_faulty(on, |_| {});
    let patient = Config { operation_timeout: Some(Duration::from_secs(60)), ..Config::default() };
    let administrator = harness.session_with(&patient);
    let [data, mem] = EXPORTS.map(|export| administrator.mount(export).unwrap());
    let (mut raw, _) = Raw::session(harness.address(), 8);
    let root = raw.mount("mem");
    let file = raw.create(root, b"f");
    raw.call(Header::request(Opcode::Write, file), &write_body(0, 1, None), &[1]);
    faults.next(Kind::Read, Fault::Hold, 1);
    let mut read = Header::request(Opcode::Read, file);
    raw.begin(&mut read);
    raw.send(read, &read_body(0, 1, None), &[]);
    faults.wait_for_held(1);
    let mut bye = Header::request(Opcode::Bye, FileHandle(0));
    raw.begin(&mut bye);
    raw.send(bye, &[], &[]);
    while raw.receive().is_some() {}
    for root in [&data, &mem] {
        root.set_fence_list(&FenceList::of_clients(&[[1; 16]])).unwrap();
    }
    let mut fence = mem.submit_set_fence_list(&FenceList::of_clients(&[[5; 16]]));
    administrator.ping().unwrap();
    assert!(!fence.test(), "the client that it names is read for");
    faults.release();
    fence.wait().unwrap();
}
