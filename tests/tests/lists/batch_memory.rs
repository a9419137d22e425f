//! The memory of batches: whose it is when a session ends in the middle, and what becomes of a batch whose memory cannot be registered.

use std::io::{IoSlice, IoSliceMut};
use std::sync::Arc;

use dafs_client::{
    BatchHints, Config, Error, Extent, MethodOverride, OpenOptions, ReconnectPolicy, Session, Status,
    SystemClock,
};
use dafs_tests::cut::cut_connections;
use dafs_tests::exhausted::{Registers, connect_exhausted};
use dafs_tests::faulty::{Fault, Kind};
use dafs_tests::harness::{Harness, On};
use dafs_tests::raw::domain;
use dafs_tests::suite::{assert_invalid, assert_same, bytes};
use dafs_tests::{on_sockets, on_verbs};

use crate::batches::{batches, tell_all};

on_sockets! {
    completed_requests_are_reported_while_the_batch_waits_for_storage,
    buffers_of_a_batch_are_deregistered_when_its_session_ends,
    batch_whose_memory_cannot_be_registered_is_done_all_the_same,
}

on_verbs! {
    batch_whose_memory_cannot_be_registered_is_done_all_the_same,
}

// [PROV-19]: a server that stalled in the middle of the batch must not reach memory that its caller has back.
fn buffers_of_a_batch_are_deregistered_when_its_session_ends(on: On) {
    let (harness, faults) = Harness::start_faulty(on, |_| {});
    let domain = domain(harness.address());
    let connect = |attempts_max| {
        let reconnect = ReconnectPolicy { attempts_max, ..ReconnectPolicy::default() };
        let method = MethodOverride::Direct;
        let config = harness.client_config(&Config { reconnect, method, ..Config::default() });
        let clock = Arc::new(SystemClock::default());
        Session::connect_with(Arc::clone(&domain), harness.address().clone(), &config, clock).unwrap()
    };
    let other = connect(10);
    let kept = other.mount("mem").unwrap().create("f").unwrap();
    kept.write_all_at(&[7; 1000], 0).unwrap();
    let mut to_try = vec![false, true];
    let mut attempts = 0;
    while let Some(write) = to_try.pop() {
        let session = connect(0);
        let root = session.mount("mem").unwrap();
        let file = root.open_with("f", OpenOptions::new().read(true).write(true)).unwrap();
        let (mut held, mut idle) = (session.buffer(1000).unwrap(), session.buffer(1000).unwrap());
        held.fill(0xa5);
        faults.next(if write { Kind::Write } else { Kind::Read }, Fault::Hold, 1);
        let outcome = std::thread::scope(|scope| {
            let running = scope.spawn(|| {
                let mut batch = session.batch_io();
                match write {
                    true => batch.write_buf_at(&file, &held, 0),
                    false => batch.read_buf_at(&file, &mut held, 0),
                };
                batch.run()
            });
            faults.wait_for_held(1);
            assert!(cut_connections(harness.address()) > 0);
            // Memory that the server has mapped is given up when it has ended what it was doing there.
            faults.release();
            running.join().unwrap()
        });
        attempts += 1;
        if outcome.is_ok() && attempts < 50 {
            // The answer was quicker than the word of the cut.
            to_try.push(write);
            continue;
        }
        let had = held.to_vec();
        assert!(matches!(outcome, Err(Error::Connection { .. })), "{outcome:?}");
        assert_invalid(kept.read_buf_at(&mut held, 0), "registered");
        assert_eq!(kept.read_buf_at(&mut idle, 0).unwrap(), 1000, "what took no part is as it was");
        while faults.held() > 0 {}
        other.probe().unwrap();
        assert_same(&held, &had, "memory that the caller has back");
    }
}

// [VERBS-33] [CLI-115] [CLI-117]: first copied through what can be registered, then in messages, then one by one.
fn batch_whose_memory_cannot_be_registered_is_done_all_the_same(on: On) {
    let harness = Harness::start(on);
    let watcher = harness.session();
    let config = Config { method: MethodOverride::Direct, ..Config::default() };
    // Where a device receives them messages are too short for all of it.
    let in_messages = if matches!(on, On::Tcp | On::Shm) { 2 } else { 0 };
    for (registers, requests) in [
        (Registers::Allocated(usize::MAX), 3),
        (Registers::Allocated(4096), in_messages),
        (Registers::Nothing, in_messages),
    ] {
        let session = connect_exhausted(&harness, registers, &config);
        let root = session.mount("mem").unwrap();
        let (file, other) = (root.create("f").unwrap(), root.create("g").unwrap());
        let data = bytes(1, 50_000);
        file.write_all_at(&data, 0).unwrap();
        let reads_only = root.open("f").unwrap();
        let before = batches(&watcher);
        let (mut head, mut tail, mut nothing) = (vec![0; 20_000], vec![0; 20_000], []);
        let (mut left, mut right) = ([0; 30], [0; 50]);
        let mut parts = [IoSliceMut::new(&mut left), IoSliceMut::new(&mut right)];
        let written = [IoSlice::new(b"written"), IoSlice::new(b" there")];
        let mut batch = session.batch_io();
        batch
            .read_at(&file, &mut head, 0)
            .write_at(&reads_only, b"refused", 5)
            .read_at(&file, &mut tail, 40_000)
            .read_at(&file, &mut nothing, 7)
            .read_list(&file, &[Extent::new(30_000, 40), Extent::new(20_000, 40)], &mut parts)
            .write_list(&other, &[Extent::new(60_000, 10), Extent::new(70_000, 3)], &written)
            .write_at(&other, &data[..30_000], 100_000);
        let outcomes = batch.run().unwrap();
        drop(batch);
        let counts: Vec<_> = outcomes.iter().map(|outcome| outcome.as_ref().ok().map(|o| o.count)).collect();
        let expected = [Some(20_000), None, Some(10_000), Some(0), Some(80), Some(13), Some(30_000)];
        assert_eq!(counts, expected, "{registers:?}");
        assert!(matches!(&outcomes[1], Err(Error::Status { status: Status::BAD_HANDLE, .. })));
        assert_eq!(outcomes[2].as_ref().unwrap().end, Some(50_000));
        assert_same(&head, &data[..20_000], "the head");
        assert_same(&tail[..10_000], &data[40_000..], "the tail");
        assert_same(&left, &data[30_000..30_030], "the list's first memory");
        assert_same(&right, &[&data[30_030..30_040], &data[20_000..20_040]].concat(), "the list's second");
        let mut found = vec![0; 30_000];
        other.read_exact_at(&mut found, 100_000).unwrap();
        assert_same(&found, &data[..30_000], "what was written");
        let mut found = [0; 13];
        let extents = [Extent::new(60_000, 10), Extent::new(70_000, 3)];
        other.read_list(&extents, &mut [IoSliceMut::new(&mut found)]).unwrap();
        assert_eq!(&found, b"written there");
        for hints in [None, Some(BatchHints { completions: 2, window: std::time::Duration::ZERO })] {
            let mut batch = session.owned_batch();
            batch.read_at(&file, vec![0; 9000], 10).read_at(&file, Vec::new(), 3);
            batch.write_at(&other, data[..9000].to_vec(), 200_000);
            let mut pending = batch.submit(hints);
            let mut told = tell_all(&mut pending);
            told.sort_unstable();
            assert_eq!(told, [0, 1, 2], "{registers:?}");
            pending.expedite();
            assert!(pending.test());
            let done = pending.wait();
            let counts: Vec<_> = done.results.unwrap().iter().map(|o| o.as_ref().unwrap().count).collect();
            assert_eq!(counts, [9000, 0, 9000]);
            assert_same(&done.buffers[0], &data[10..9010], "what was read");
        }
        assert_eq!(batches(&watcher) - before, requests, "{registers:?}");
    }
}

// [CLI-118]
fn completed_requests_are_reported_while_the_batch_waits_for_storage(on: On) {
    let (harness, faults) = Harness::start_faulty(on, |_| {});
    let session = harness.session();
    let root = session.mount("mem").unwrap();
    let (file, other) = (root.create("f").unwrap(), root.create("g").unwrap());
    let data = bytes(2, 100 * 4096);
    file.write_all_at(&data, 0).unwrap();
    faults.next(Kind::Write, Fault::Hold, 1);
    let mut batch = session.owned_batch();
    for place in 0..100 {
        batch.read_at(&file, vec![0; 4096], place * 4096);
    }
    batch.write_at(&other, b"held".to_vec(), 0);
    let mut pending = batch.submit(None);
    let (sender, told) = std::sync::mpsc::channel();
    std::thread::scope(|scope| {
        scope.spawn(move || {
            let mut all = Vec::new();
            while all.len() < 101 {
                all.extend(pending.wait_some());
                sender.send(all.len()).unwrap();
            }
            all.sort_unstable();
            assert!(all.into_iter().eq(0..101), "each once");
            let done = pending.wait();
            assert!(done.buffers[..100].iter().zip(data.chunks(4096)).all(|(read, data)| read == data));
        });
        faults.wait_for_held(1);
        let first = told.recv_timeout(std::time::Duration::from_secs(60));
        faults.release();
        assert!((1..101).contains(&first.unwrap()), "those of the first requests");
    });
}
