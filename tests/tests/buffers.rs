//! Transfers through the server's buffers: several chunks at once, chopped where buffers are few, shared out fairly, given back whatever
//! happens.
#![allow(clippy::cast_possible_truncation, reason = "sizes that the tests choose")]
#![allow(clippy::unwrap_used, clippy::expect_used, reason = "all of this is test code, helpers included")]

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::{Duration, Instant};

use dafs_client::{Config, Extent, File, MethodOverride, ReconnectPolicy, Session, Stability, Status};
use dafs_tests::cut::{connect_cuttable, cut_connections};
use dafs_tests::faulty::{Fault, Faults, Kind};
use dafs_tests::gate::{Gate, WATCHED_OFFSET};
use dafs_tests::harness::{Harness, On};
use dafs_tests::suite::{assert_same, assert_status, bytes};
use dafs_tests::{on_sockets, on_verbs};

on_sockets! {
    storage_has_as_many_chunks_of_a_read_as_the_depth_says,
    write_hands_storage_a_chunk_before_the_one_before_is_written,
    transfer_failing_in_the_middle_ends_as_one_piece,
    transfers_of_the_smallest_budget_are_chopped_and_whole,
    session_that_holds_all_buffers_does_not_keep_another_from_its_own,
    session_that_ends_in_the_middle_gives_its_buffers_back,
    append_beyond_a_quarter_of_the_budget_is_refused,
    transfer_whose_connection_breaks_begins_anew_where_the_client_asks_again,
    list_whose_connection_breaks_begins_anew_where_the_client_asks_again,
    small_read_waits_for_one_turn_of_another_client_and_no_more,
    replies_larger_than_a_turn_leave_although_their_client_is_silent,
    transfer_that_began_alone_is_cut_small_when_others_come,
    session_has_little_with_storage_while_another_waits_for_it,
}

on_verbs! {
    storage_has_as_many_chunks_of_a_read_as_the_depth_says,
    write_hands_storage_a_chunk_before_the_one_before_is_written,
    transfer_failing_in_the_middle_ends_as_one_piece,
    transfers_of_the_smallest_budget_are_chopped_and_whole,
    session_that_holds_all_buffers_does_not_keep_another_from_its_own,
    session_that_ends_in_the_middle_gives_its_buffers_back,
    append_beyond_a_quarter_of_the_budget_is_refused,
}

/// No more than a transfer has at a time while others are there ([BUF-21]).
const CHUNK: usize = 64 << 10;

/// Always in chunks: ordinary memory, moved by RDMA.
fn direct() -> Config {
    let reconnect = ReconnectPolicy { backoff_max: Duration::from_millis(20), ..ReconnectPolicy::default() };
    Config { method: MethodOverride::Direct, reconnect, ..Config::default() }
}

fn start(on: On, depth: u32, budget: u64) -> (Harness, Faults) {
    Harness::start_faulty(on, |config| {
        config.pipeline_depth = depth;
        config.chunk_size = Some(u32::try_from(CHUNK).unwrap());
        config.buffer_sizes = vec![4 << 10, 16 << 10, CHUNK, 256 << 10];
        config.buffers_size_max = budget;
    })
}

fn file(session: &Session, name: &str, data: &[u8]) -> File {
    let file = session.mount("mem").unwrap().create(name).unwrap();
    file.write_all_at(data, 0).unwrap();
    file
}

/// Buffers lent now.
fn lent(watcher: &Session) -> u64 {
    watcher.statistics().unwrap().zones.iter().map(|zone| zone.lent).sum()
}

/// Waits until every buffer is back: the reply of an operation leaves before RDMA has let go of the last.
fn all_come_back(watcher: &Session) {
    while lent(watcher) > 0 {}
}

// [BUF-13] [BUF-38]
fn storage_has_as_many_chunks_of_a_read_as_the_depth_says(on: On) {
    for depth in [1, 2, 5] {
        let (harness, faults) = start(on, depth, 64 << 20);
        let (session, watcher) = (harness.session_with(&direct()), harness.session());
        let data = bytes(1, 20 * CHUNK + 7);
        let file = file(&session, "f", &data);
        faults.next(Kind::Read, Fault::Hold, 100);
        let read = file.submit_read_at(vec![0; data.len() + 1000], 0);
        session.flush();
        faults.wait_for_held(depth as usize);
        // Whatever else the server does, it is no more.
        watcher.probe().unwrap();
        assert_eq!((faults.held(), lent(&watcher)), (depth as usize, u64::from(depth)));
        faults.release();
        let read = read.wait();
        assert_eq!(read.result.unwrap(), data.len(), "short at the end of the file");
        assert_same(&read.buffer[..data.len()], &data, "read in chunks");
        let pipeline = &watcher.statistics().unwrap().pipelines[0];
        assert_eq!((pipeline.depth, pipeline.chunk_size), (u64::from(depth), CHUNK as u64));
        assert_eq!(pipeline.overlaps > 0, depth > 1, "{pipeline:?}");
        all_come_back(&watcher);
    }
}

// [BUF-40]
fn write_hands_storage_a_chunk_before_the_one_before_is_written(on: On) {
    let (harness, faults) = start(on, 3, 64 << 20);
    let (session, watcher) = (harness.session_with(&direct()), harness.session());
    let data = bytes(2, 10 * CHUNK + 5);
    let file = file(&session, "f", &[]);
    faults.next(Kind::Write, Fault::Hold, 100);
    let write = file.submit_write_at_with(data.clone(), 3, Stability::FileSync);
    session.flush();
    faults.wait_for_held(3);
    faults.release();
    assert_eq!(write.wait().result.unwrap(), data.len());
    let mut found = vec![0; data.len()];
    file.read_exact_at(&mut found, 3).unwrap();
    assert_same(&found, &data, "written in chunks");
    all_come_back(&watcher);
}

// [BUF-11] [BUF-42] [BUF-43] [BUF-44]
fn transfer_failing_in_the_middle_ends_as_one_piece(on: On) {
    let (harness, faults) = start(on, 4, 64 << 20);
    let (session, watcher) = (harness.session_with(&direct()), harness.session());
    let data = bytes(3, 12 * CHUNK);
    let file = file(&session, "f", &data);
    faults.next(Kind::Read, Fault::Hold, 2);
    faults.next(Kind::Read, Fault::Fail(Status::IO), 1);
    let read = file.submit_read_at(vec![0; data.len()], 0);
    session.flush();
    faults.wait_for_held(2);
    // The third comes when the server sees that nobody else asks for anything.
    while faults.left() > 0 {}
    watcher.probe().unwrap();
    assert!(!read.has_ended(), "storage still has its memory");
    faults.release();
    assert_status(read.wait().result, Status::IO, "a read that failed in its third chunk");
    faults.next(Kind::Write, Fault::Hold, 2);
    faults.next(Kind::Write, Fault::Fail(Status::NO_SPACE), 1);
    let write = file.submit_write_at(bytes(4, data.len()), 0);
    session.flush();
    faults.wait_for_held(2);
    while faults.left() > 0 {}
    faults.release();
    assert_eq!(write.wait().result.unwrap(), 2 * CHUNK, "what is before the chunk that failed");
    let mut found = vec![0; 2 * CHUNK];
    file.read_exact_at(&mut found, 0).unwrap();
    assert_same(&found, &bytes(4, data.len())[..2 * CHUNK], "what was written");
    faults.next(Kind::Write, Fault::Fail(Status::IO), 1);
    assert_status(file.submit_write_at(data.clone(), 0).wait().result, Status::IO, "nothing was written");
    faults.release();
    file.write_all_at(&data, 0).unwrap();
    let mut found = vec![0; data.len()];
    file.read_exact_at(&mut found, 0).unwrap();
    assert_same(&found, &data, "after failures");
    all_come_back(&watcher);
    assert_eq!(watcher.statistics().unwrap().protocol_errors, 0);
}

// [BUF-27] [BUF-29] [BUF-30]
fn transfers_of_the_smallest_budget_are_chopped_and_whole(on: On) {
    let (harness, faults) = Harness::start_faulty(on, |config| {
        config.pipeline_depth = 4;
        config.chunk_size = Some(64 << 10);
        // What is wanted is soon lent, beside others too, when chunks are smaller.
        config.buffer_sizes = vec![4 << 10, 16 << 10, 64 << 10];
        config.buffers_size_max = 0;
    });
    let (session, watcher) = (harness.session_with(&direct()), harness.session());
    let files: Vec<_> =
        (0..6).map(|n| file(&session, &format!("f{n}"), &bytes(n, 300_000 + n as usize))).collect();
    // All of them wait for storage, and so for each other's buffers.
    faults.next(Kind::Read, Fault::Hold, 10_000);
    let reads: Vec<_> = files.iter().map(|file| file.submit_read_at(vec![0; 400_000], 0)).collect();
    session.ping().unwrap();
    faults.wait_for_held(3);
    // A busy worker may begin with some of them later.
    let zones = || watcher.statistics().unwrap().zones;
    while zones().iter().all(|zone| zone.waits == 0) {
        std::thread::yield_now();
    }
    faults.release();
    for (n, read) in reads.into_iter().enumerate() {
        let read = read.wait();
        assert_eq!(read.result.unwrap(), 300_000 + n);
        assert_same(&read.buffer[..300_000 + n], &bytes(n as u64, 300_000 + n), "chopped");
    }
    let zones = zones();
    assert!(zones.iter().any(|zone| zone.chops > 0), "{zones:?}");
    assert!(zones.iter().map(|zone| zone.size * zone.total).sum::<u64>() <= 256 << 10, "{zones:?}");
    all_come_back(&watcher);
}

// [BUF-3] [BUF-33]
fn session_that_holds_all_buffers_does_not_keep_another_from_its_own(on: On) {
    let (harness, faults) = start(on, 4, 2 << 20);
    let (greedy, modest, watcher) =
        (harness.session_with(&direct()), harness.session_with(&direct()), harness.session());
    let data = bytes(5, 8 * CHUNK);
    let theirs = file(&greedy, "greedy", &data);
    let own = file(&modest, "modest", &data[..CHUNK]);
    faults.next(Kind::Read, Fault::Hold, 10_000);
    let reads: Vec<_> = (0..40).map(|_| theirs.submit_read_at(vec![0; data.len()], 0)).collect();
    greedy.flush();
    // All but the reserve.
    let most = (2 << 20) / CHUNK * 7 / 8;
    faults.wait_for_held(most);
    watcher.probe().unwrap();
    assert_eq!(faults.held(), most);
    let read = own.submit_read_at(vec![0; CHUNK], 0);
    modest.flush();
    faults.wait_for_held(most + 1);
    faults.release();
    let read = read.wait();
    assert_eq!(read.result.unwrap(), CHUNK);
    assert_same(&read.buffer, &data[..CHUNK], "beside a greedy session");
    for read in reads {
        let read = read.wait();
        assert_eq!(read.result.unwrap(), data.len());
        assert_same(&read.buffer, &data, "of the greedy session");
    }
    all_come_back(&watcher);
}

// [BUF-2] [BUF-32] [BUF-47]
fn session_that_ends_in_the_middle_gives_its_buffers_back(on: On) {
    let (harness, faults) = start(on, 4, 2 << 20);
    let watcher = harness.session();
    let session = harness.session_with(&direct());
    let file = file(&session, "f", &bytes(6, 8 * CHUNK));
    faults.next(Kind::Read, Fault::Hold, 10_000);
    let reads: Vec<_> = (0..20).map(|_| file.submit_read_at(vec![0; 8 * CHUNK], 0)).collect();
    session.flush();
    let most = (2 << 20) / CHUNK * 7 / 8;
    faults.wait_for_held(most);
    drop((reads, file, session));
    while watcher.statistics().unwrap().sessions > 1 {}
    assert_eq!(lent(&watcher), most as u64, "storage still has their memory");
    faults.release();
    all_come_back(&watcher);
}

// [BUF-5] [BUF-36]
fn append_beyond_a_quarter_of_the_budget_is_refused(on: On) {
    let (harness, _faults) = start(on, 2, 1 << 20);
    let session = harness.session_with(&direct());
    let file = file(&session, "f", &[]);
    assert_status(file.append(&bytes(7, (256 << 10) + 1)), Status::TOO_LARGE, "more than a quarter");
    let appends: Vec<_> = (0..8).map(|n| file.submit_append(bytes(n, 256 << 10))).collect();
    for (n, append) in appends.into_iter().enumerate() {
        let at = append.wait().unwrap();
        let mut found = vec![0; 256 << 10];
        file.read_exact_at(&mut found, at).unwrap();
        assert_same(&found, &bytes(n as u64, 256 << 10), "an append");
    }
    all_come_back(&session);
}

/// Waits until storage keeps `count` operations. Over tcp this thread has to send what a write writes; of a read it leaves the data lie.
fn wait_for_held(session: &Session, faults: &Faults, kind: Kind, count: usize) {
    while kind == Kind::Write && faults.held() < count {
        session.probe().unwrap();
    }
    faults.wait_for_held(count);
}

// [BUF-12] [BUF-47]
fn transfer_whose_connection_breaks_begins_anew_where_the_client_asks_again(on: On) {
    let (harness, faults) = start(on, 3, 64 << 20);
    let watcher = harness.session();
    let data = bytes(8, 10 * CHUNK);
    let session = connect_cuttable(&harness, &direct()).unwrap();
    let file = file(&session, "f", &data);
    // The first chunk is on its way to the client when storage is let go of the others.
    for kind in [Kind::Read, Kind::Write] {
        faults.next(kind, Fault::Hold, 2);
        let (read, write) = match kind {
            Kind::Read => (Some(file.submit_read_at(vec![0; data.len()], 0)), None),
            _ => (None, Some(file.submit_write_at(bytes(9, data.len()), 0))),
        };
        session.flush();
        wait_for_held(&session, &faults, kind, 2);
        let before = session.reconnects();
        cut_connections(harness.address());
        // Asks for all of it again on another connection. Over shm the old one may answer until the cut is seen.
        while session.reconnects() == before {
            session.probe().unwrap();
        }
        faults.release();
        if let Some(read) = read {
            let read = read.wait();
            assert_eq!(read.result.unwrap(), data.len());
            assert_same(&read.buffer, &data, "read over two connections");
        }
        if let Some(write) = write {
            assert_eq!(write.wait().result.unwrap(), data.len());
        }
    }
    let mut found = vec![0; data.len()];
    file.read_exact_at(&mut found, 0).unwrap();
    assert_same(&found, &bytes(9, data.len()), "written over two connections");
    assert!(session.reconnects() >= 2);
    drop(file);
    all_come_back(&watcher);
}

// [BUF-12] [BUF-47]
fn list_whose_connection_breaks_begins_anew_where_the_client_asks_again(on: On) {
    const PIECES: usize = 80;
    let (harness, faults) = start(on, 3, 64 << 20);
    let watcher = harness.session();
    let data = bytes(10, 2 * PIECES * CHUNK);
    let session = connect_cuttable(&harness, &direct()).unwrap();
    let file = file(&session, "f", &data);
    // Every other piece, so that none can be moved with the next.
    let extents: Vec<Extent> =
        (0..PIECES).map(|piece| Extent::new((2 * piece * CHUNK) as u64, CHUNK as u64)).collect();
    let listed = |data: &[u8]| -> Vec<u8> {
        extents.iter().flat_map(|extent| data[extent.offset as usize..][..CHUNK].to_vec()).collect()
    };
    let fresh = bytes(11, PIECES * CHUNK);
    for kind in [Kind::Read, Kind::Write] {
        // Chunks have been moved, and more of them than sockets take from a server whose client does not look, when storage keeps a piece.
        faults.next(kind, Fault::Pass, 44);
        faults.next(kind, Fault::Hold, 1);
        let read =
            (kind == Kind::Read).then(|| file.submit_read_list(&extents, vec![vec![0; PIECES * CHUNK]]));
        let write = (kind == Kind::Write).then(|| file.submit_write_list(&extents, vec![fresh.clone()]));
        session.flush();
        wait_for_held(&session, &faults, kind, 1);
        let before = session.reconnects();
        cut_connections(harness.address());
        while session.reconnects() == before {
            session.probe().unwrap();
        }
        faults.release();
        if let Some(read) = read {
            let read = read.wait();
            assert_eq!(read.result.unwrap().count, PIECES * CHUNK);
            assert_same(&read.buffers[0], &listed(&data), "list read over two connections");
        }
        if let Some(write) = write {
            assert_eq!(write.wait().result.unwrap(), PIECES * CHUNK);
        }
    }
    let mut found = vec![0; data.len()];
    file.read_exact_at(&mut found, 0).unwrap();
    assert_same(&listed(&found), &fresh, "list written over two connections");
    assert!(session.reconnects() >= 2);
    drop(file);
    all_come_back(&watcher);
}

/// Bytes that the server may move for another client between the arrival of a request and its answer: a turn of [BUF-20], and what of a
/// step goes beyond it.
const MOVED_MAX: u64 = 64 << 10;

// [BUF-20] [BUF-22]
fn small_read_waits_for_one_turn_of_another_client_and_no_more(on: On) {
    const LARGE: usize = 1 << 20;
    let gate = Gate::default();
    let (faults, faulty) = Faults::new();
    let gated = gate.wrap();
    let harness = Harness::start_over(on, move |storage| gated(faulty(storage)), |_| {});
    let (greedy, modest) = (harness.session_with(&direct()), harness.session());
    // Two wait all the time, so that turns are short however long this test takes between two requests.
    let patient = [harness.session(), harness.session()];
    let files = patient.each_ref().map(|session| file(session, "other", &[0]));
    faults.next(Kind::Commit, Fault::Hold, patient.len());
    let commits = files.each_ref().map(File::submit_commit);
    patient.iter().for_each(Session::flush);
    faults.wait_for_held(patient.len());
    let data = bytes(10, 4 * LARGE);
    let theirs = file(&greedy, "large", &data);
    let own = file(&modest, "small", &data[..10_000]);
    for nth in (1..40).step_by(3) {
        let mut found = vec![0; 4096];
        gate.arm(nth);
        own.read_exact_at(&mut found, WATCHED_OFFSET).unwrap();
        let reads: Vec<_> =
            (0..16).map(|n| theirs.submit_read_at(vec![0; LARGE], (n % 4) * LARGE as u64)).collect();
        greedy.flush();
        gate.wait_for_stop();
        // The server is in the middle of a large transfer when the next small request arrives.
        let read = own.submit_read_at(vec![0; 4096], WATCHED_OFFSET);
        modest.flush();
        let moved = gate.release();
        assert!(
            moved <= MOVED_MAX,
            "{moved} bytes of another client came before 4 KiB, after {nth} of its reads"
        );
        assert_same(&read.wait().buffer, &found, "a small read");
        for (n, read) in reads.into_iter().enumerate() {
            let at = n % 4 * LARGE;
            assert_same(&read.wait().buffer, &data[at..at + LARGE], "a large read");
        }
    }
    faults.release();
    commits.into_iter().for_each(|commit| commit.wait().unwrap());
}

// [BUF-51]
fn transfer_that_began_alone_is_cut_small_when_others_come(on: On) {
    const BEGUN: usize = 2 * (256 << 10);
    let ((reads, fail_reads), (commits, fail_commits)) = (Faults::new(), Faults::new());
    let harness = Harness::start_over(
        on,
        move |storage| fail_reads(fail_commits(storage)),
        |config| {
            config.pipeline_depth = 2;
            config.chunk_size = Some(256 << 10);
            config.buffer_sizes = vec![4 << 10, CHUNK, 256 << 10];
        },
    );
    let (greedy, watcher) = (harness.session_with(&direct()), harness.session());
    let patient = [harness.session(), harness.session()];
    let files = patient.each_ref().map(|session| file(session, "other", &[0]));
    let data = bytes(13, BEGUN + 16 * CHUNK);
    let theirs = file(&greedy, "large", &data);
    let (before, read) = loop {
        // Long enough that the others are forgotten.
        let silent = Instant::now();
        while silent.elapsed() < Duration::from_millis(20) {
            greedy.probe().unwrap();
        }
        reads.next(Kind::Read, Fault::Hold, 2);
        let read = theirs.submit_read_at(vec![0; data.len()], 0);
        greedy.flush();
        reads.wait_for_held(2);
        let statistics = watcher.statistics().unwrap();
        if statistics.zones.iter().any(|zone| (zone.size, zone.lent) == (256 << 10, 2)) {
            break (statistics.pipelines[0].chunks, read);
        }
        reads.release();
        assert_same(&read.wait().buffer, &data, "cut small from the beginning");
    };
    commits.next(Kind::Commit, Fault::Hold, patient.len());
    let waiting = files.each_ref().map(File::submit_commit);
    patient.iter().for_each(Session::flush);
    commits.wait_for_held(patient.len());
    reads.release();
    assert_same(&read.wait().buffer, &data, "cut anew in the middle");
    let chunks = watcher.statistics().unwrap().pipelines[0].chunks - before;
    assert!(chunks >= 16, "{chunks} chunks for 1 MiB");
    commits.release();
    waiting.into_iter().for_each(|commit| commit.wait().unwrap());
    all_come_back(&watcher);
}

// [BUF-20]
fn replies_larger_than_a_turn_leave_although_their_client_is_silent(on: On) {
    const LEN: usize = 16 << 10;
    let (harness, faults) = start(on, 4, 64 << 20);
    let session = harness.session_with(&Config { method: MethodOverride::Inline, ..Config::default() });
    let (others, data) = ([harness.session(), harness.session()], bytes(11, 32 * LEN));
    let file = file(&session, "f", &data);
    let (done, asked) = (AtomicBool::new(false), AtomicU64::new(0));
    std::thread::scope(|scope| {
        // Requests of several connections, so that turns are short.
        scope.spawn(|| {
            while !done.load(Ordering::Acquire) {
                others.iter().for_each(|other| other.probe().unwrap());
                asked.fetch_add(1, Ordering::AcqRel);
            }
        });
        let others_go_on = || {
            let before = asked.load(Ordering::Acquire);
            while asked.load(Ordering::Acquire) < before + 1000 {
                std::thread::yield_now();
            }
        };
        others_go_on();
        faults.next(Kind::Read, Fault::Hold, 32);
        let reads: Vec<_> = (0..32).map(|n| file.submit_read_at(vec![0; LEN], (n * LEN) as u64)).collect();
        session.flush();
        faults.wait_for_held(32);
        // By then nobody looks at the connection any more.
        others_go_on();
        faults.release();
        let found: Vec<_> = reads.into_iter().map(|read| read.wait().buffer).collect();
        done.store(true, Ordering::Release);
        for (found, expected) in found.iter().zip(data.chunks(LEN)) {
            assert_same(found, expected, "a reply that waited for storage");
        }
    });
}

// [BUF-21]
fn session_has_little_with_storage_while_another_waits_for_it(on: On) {
    let (harness, faults) = start(on, 4, 64 << 20);
    let (greedy, modest, watcher) =
        (harness.session_with(&direct()), harness.session_with(&direct()), harness.session());
    let data = bytes(12, 8 * CHUNK);
    let (theirs, own) = (file(&greedy, "greedy", &data), file(&modest, "modest", &data[..CHUNK]));
    faults.next(Kind::Read, Fault::Hold, 10_000);
    let read = own.submit_read_at(vec![0; CHUNK], 0);
    modest.flush();
    faults.wait_for_held(1);
    let reads: Vec<_> = (0..40).map(|_| theirs.submit_read_at(vec![0; data.len()], 0)).collect();
    greedy.flush();
    faults.wait_for_held(2);
    // However long the other is silent: it waits.
    for _ in 0..1000 {
        watcher.probe().unwrap();
    }
    assert_eq!(faults.held(), 2, "a chunk of each");
    faults.release();
    assert_same(&read.wait().buffer, &data[..CHUNK], "beside a greedy session");
    for read in reads {
        assert_same(&read.wait().buffer, &data, "of the greedy session");
    }
    all_come_back(&watcher);
}
