//! Chains through the client library: one round trip, the first error, and replies that are lost.

use dafs_client::{AccessPattern, Error, OpenOptions, Stability, Status};
use dafs_tests::cut::cut_connections;
use dafs_tests::faulty::{Fault, Kind};
use dafs_tests::harness::{Harness, On};
use dafs_tests::on_each_provider_and_three_workers;
use dafs_tests::suite::{EXPORTS, assert_invalid, assert_same, bytes};

use crate::tokens::count;

on_each_provider_and_three_workers! {
    chain_of_lookup_open_read_and_close_brings_the_data,
    chain_that_is_not_closed_leaves_an_open_file,
    chain_that_hints_reads_and_writes_what_one_without_does,
    chain_whose_link_fails_aborts_the_rest_and_leaves_nothing_open,
    chain_that_cannot_be_is_refused_before_it_is_sent,
}

mod broken {
    use super::links_stay_in_order_when_the_connection_breaks;

    dafs_tests::on_sockets! { links_stay_in_order_when_the_connection_breaks }
}

mod given_up {
    use dafs_proto::transport::Access;
    use dafs_proto::wire::{Flags, Header, Opcode, Resume};
    use dafs_tests::raw::{Raw, introduction, request, write_body};

    use super::{Harness, On, Status};

    // [SESS-91] [SESS-127] The first link is abandoned with its connection, and something else comes in its slot.
    #[test]
    fn link_that_waits_for_one_that_never_comes_again_is_aborted() {
        let harness = Harness::start(On::Tcp);
        let watcher = harness.session();
        let (mut raw, welcome) = Raw::session(harness.address(), 4);
        let root = raw.mount("mem");
        let file = raw.create(root, b"f");
        let region = raw.region(4096, Access::all());
        let segment = [region.range().key.0, region.range().offset, 4096];
        let mut write = request(Opcode::Write, 0, 3);
        (write.handle, write.flags) = (file, Flags::CHAIN_FORWARD);
        let waiting = Header { flags: Flags::CHAIN_BACK, ..request(Opcode::Null, 1, 1) };
        // The server asks for the data, and hears nothing.
        raw.send(write, &write_body(0, 4096, Some(segment)), &[]);
        raw.send(waiting, &[], &[]);
        while watcher.statistics().unwrap().in_flight < 2 {}
        drop(raw);

        let mut raw = Raw::connect(harness.address());
        let resume = Resume { session: welcome.session, secret: welcome.secret };
        assert!(raw.shake(&introduction(harness.address(), 4, Some(resume))).unwrap().resumed);
        raw.send(Header { flags: waiting.flags | Flags::REPLAY, ..waiting }, &[], &[]);
        raw.send(request(Opcode::Null, 0, 4), &[], &[]);
        let mut replies = [(); 2].map(|()| raw.receive().unwrap().header);
        replies.sort_by_key(|reply| reply.slot.0);
        assert_eq!(replies.map(|reply| reply.status), [Status::OK, Status::CHAIN_ABORTED]);
    }
}

// [SESS-30] [SESS-92]
fn links_stay_in_order_when_the_connection_breaks(on: On) {
    let (harness, faults) = Harness::start_faulty(on, |_| {});
    let (watcher, session) = (harness.session(), harness.session());
    let root = session.mount("mem").unwrap();
    root.create("f").unwrap();
    faults.next(Kind::Write, Fault::Pass, 1);
    faults.next(Kind::Write, Fault::Hold, 1);
    std::thread::scope(|scope| {
        let chain = scope.spawn(|| {
            let writes = root.chain().open("f", OpenOptions::new().write(true));
            let writes = writes.write_at(b"first", 0).write_at(b"second", 0).write_at(b"last", 0);
            writes.commit().close().run()
        });
        faults.wait_for_held(1);
        cut_connections(harness.address());
        // Both are back, and what the chain has sent again has arrived.
        while watcher.statistics().unwrap().connections < 2 {}
        while session.reconnects() == 0 {
            std::thread::yield_now();
        }
        for _ in 0..200 {
            watcher.probe().unwrap();
        }
        faults.release();
        assert_eq!(chain.join().unwrap().unwrap().counts, [5, 6, 4]);
    });
    let mut found = [0; 6];
    root.open("f").unwrap().read_exact_at(&mut found, 0).unwrap();
    assert_eq!(&found, b"lastnd");
}

// [STOR-160]
fn chain_that_hints_reads_and_writes_what_one_without_does(on: On) {
    let harness = Harness::start(on);
    let session = harness.session();
    for export in EXPORTS {
        let root = session.mount(export).unwrap();
        let file = root.open_with("f", OpenOptions::new().read(true).write(true).create(true)).unwrap();
        let (data, mut found) = (bytes(1, 8192), [0; 8192]);
        let before = count(&session, "Hint");
        let chain = file.chain().write_at(&data[..4096], 0).hint(0, 0, AccessPattern::WillNotNeed);
        let chain = chain.hint(0, 4096, AccessPattern::WillNeed).write_at(&data[4096..], 4096);
        assert_eq!(chain.run().unwrap().counts, [4096, 4096]);
        assert_eq!(count(&session, "Hint") - before, 2);
        file.chain().hint(0, 0, AccessPattern::Once).read_at(&mut found, 0).run().unwrap();
        assert_same(&found, &data, export);
    }
}

// [SESS-30] [SESS-31] [CLI-38] [CLI-123]
fn chain_of_lookup_open_read_and_close_brings_the_data(on: On) {
    let harness = Harness::start(on);
    let session = harness.session();
    for export in EXPORTS {
        let root = session.mount(export).unwrap();
        root.create_dir("d", 0o755).unwrap();
        let data = bytes(1, 5000);
        root.create("d/f").unwrap().write_all_at(&data, 0).unwrap();
        let before = session.statistics().unwrap();
        let (mut head, mut tail) = ([0; 100], [0; 200]);
        let done = root
            .chain()
            .lookup("d")
            .open("f", OpenOptions::new().read(true))
            .read_at(&mut head, 0)
            .read_at(&mut tail, 4900)
            .close()
            .run()
            .unwrap();
        assert_eq!(done.counts, [100, 100], "the second is short at the end of the file");
        assert_eq!(done.attributes.unwrap().size, 5000);
        assert!(done.file.is_none());
        assert_same(&head, &data[..100], "the first bytes");
        assert_same(&tail[..100], &data[4900..], "the last bytes");
        // What was looked up is given back without waiting: behind an empty request it is gone.
        session.probe().unwrap();
        assert_eq!(session.statistics().unwrap().handles, before.handles);
    }
}

// [CLI-123]
fn chain_that_is_not_closed_leaves_an_open_file(on: On) {
    let harness = Harness::start(on);
    let session = harness.session();
    for export in EXPORTS {
        let root = session.mount(export).unwrap();
        let options = OpenOptions::new().read(true).write(true).create(true).clone();
        let done = root.chain().open("f", &options).write_at(b"hello", 3).run().unwrap();
        assert_eq!(done.counts, [5]);
        let file = done.file.unwrap();
        assert_eq!(file.path(), b"f");
        let mut found = [9; 8];
        file.read_exact_at(&mut found, 0).unwrap();
        assert_eq!(&found, b"\0\0\0hello");
        file.commit().unwrap();
        let durable = options.clone().stability(Stability::FileSync).clone();
        let done = root.chain().open("g", &durable).write_at(b"x", 0).commit().close().run().unwrap();
        assert!(done.file.is_none());
    }
}

// [SESS-91] [CLI-122] [CLI-123]
fn chain_whose_link_fails_aborts_the_rest_and_leaves_nothing_open(on: On) {
    let harness = Harness::start(on);
    let session = harness.session();
    for export in EXPORTS {
        let root = session.mount(export).unwrap();
        root.create("f").unwrap().write_all_at(b"data", 0).unwrap();
        session.probe().unwrap();
        let handles = session.statistics().unwrap().handles;
        let mut memory = [7; 4];
        let missing =
            root.chain().open("missing", OpenOptions::new().read(true)).read_at(&mut memory, 0).close();
        match missing.run() {
            Err(Error::Status { status, path, .. }) => {
                assert_eq!((status, &path[..]), (Status::NOT_FOUND, &b"missing"[..]));
            }
            other => panic!("{other:?}"),
        }
        assert_eq!(memory, [7; 4]);
        // Opened for reading only: the write fails, the close behind it is aborted.
        let refused = root.chain().open("f", OpenOptions::new().read(true)).write_at(b"x", 0).close();
        match refused.run() {
            Err(Error::Status { status, .. }) => assert_eq!(status, Status::BAD_HANDLE),
            other => panic!("{other:?}"),
        }
        session.probe().unwrap();
        assert_eq!(session.statistics().unwrap().handles, handles, "{export}");
        let mut found = [0; 4];
        root.open("f").unwrap().read_exact_at(&mut found, 0).unwrap();
        assert_eq!(&found, b"data");
    }
}

// [SESS-32] [CLI-124]
fn chain_that_cannot_be_is_refused_before_it_is_sent(on: On) {
    let harness = Harness::start(on);
    let session = harness.session();
    let root = session.mount("mem").unwrap();
    root.create("f").unwrap();
    let read = OpenOptions::new().read(true).clone();
    let write = OpenOptions::new().write(true).clone();
    assert_invalid(root.chain().run(), "nothing");
    assert_invalid(root.chain().close().run(), "a close before an open");
    assert_invalid(root.chain().open("f", &OpenOptions::new()).run(), "an open without access");
    let [mut largest, data] = [session.agreed().read_inline_max, session.agreed().write_inline_max]
        .map(|size| vec![1; size as usize + 1]);
    let opened = || count(&session, "Open");
    let before = opened();
    assert_invalid(root.chain().open("f", &read).read_at(&mut largest, 0).run(), "a read of too much");
    assert_invalid(root.chain().open("f", &write).write_at(&data, 0).run(), "a write of too much");
    assert_eq!(opened(), before, "nothing of it was sent");
    let done = root.chain().open("f", &write).write_at(&data[1..], 0).close().run().unwrap();
    assert_eq!(done.counts, [data.len() - 1]);
    let done = root.chain().open("f", &read).read_at(&mut largest[1..], 0).close().run().unwrap();
    // A message may carry more to a client than from it: the file ends where the write did.
    assert_eq!(done.counts, [largest.len().min(data.len()) - 1]);
    let mut memory = [0; 1];
    assert_invalid(root.chain().open("f", &read).read_at(&mut memory, u64::MAX).run(), "an offset");
    let slots = usize::from(session.agreed().slots);
    for (links, fits) in [(slots - 1, true), (slots, true), (slots + 1, false)] {
        let chain = (1..links).fold(root.chain().open("f", &read), |chain, _| chain.commit());
        let result = chain.run();
        if fits { drop(result.unwrap()) } else { assert_invalid(result, "more links than slots") }
    }
}

mod sim {
    use std::time::Duration;

    use dafs_client::{BatchHints, wait_some_with};
    use dafs_proto::transport::sim::FaultPlan;
    use dafs_tests::sim::{World, WorldPlan};

    use super::*;

    fn world(network: FaultPlan) -> World {
        World::new(7, WorldPlan { network, crash_ppm: 0 })
    }

    /// Delays that do not vary, so that virtual time counts round trips.
    fn steady() -> FaultPlan {
        FaultPlan { delay_min_ns: 100_000, delay_max_ns: 100_000, delay_per_kib_ns: 0, ..FaultPlan::calm() }
    }

    // [CLI-38]
    #[test]
    fn chain_of_five_links_takes_one_round_trip() {
        let world = world(steady());
        let session = world.connect(1, &World::client_config(1)).unwrap();
        let root = session.mount("data").unwrap();
        root.create("f").unwrap().write_all_at(b"data", 0).unwrap();
        session.probe().unwrap();
        let time = |action: &mut dyn FnMut()| {
            let before = world.net().now();
            action();
            (world.net().now() - before).as_micros()
        };
        let ping = time(&mut || session.probe().unwrap());
        let mut memory = [0; 4];
        let chained = time(&mut || {
            let open = root.chain().lookup("").open("f", OpenOptions::new().read(true));
            open.read_at(&mut memory, 0).commit().close().run().unwrap();
        });
        assert_eq!(&memory, b"data");
        assert!(ping >= 200 && chained < ping + 100, "{chained} µs, an empty request {ping} µs");
    }

    // [CLI-110] [CLI-111] hints: as many ends as were asked for, or all, or a window
    #[test]
    fn batch_with_hints_is_collected_in_as_many_parts_as_they_say() {
        let world = world(steady());
        let session = world.connect(1, &World::client_config(1)).unwrap();
        for (completions, parts) in [(1, 1..=12), (5, 1..=3), (12, 1..=1), (100, 1..=1)] {
            let hints = BatchHints { completions, window: Duration::from_secs(1) };
            let mut pending: Vec<_> = (0..12).map(|_| session.submit_ping()).collect();
            let (mut found, mut ended) = (0, 0);
            while !pending.is_empty() {
                let wanted = completions.min(pending.len());
                let some = wait_some_with(&mut pending, &hints);
                assert!(some.len() >= wanted, "{} of {wanted}", some.len());
                ended += some.into_iter().map(Result::unwrap).count();
                found += 1;
            }
            assert_eq!(ended, 12);
            assert!(parts.contains(&found), "{completions}: {found} parts");
        }
        // Nothing ends within no time but what has ended.
        let hints = BatchHints { completions: 2, window: Duration::ZERO };
        let mut pending = vec![session.submit_ping()];
        assert_eq!(wait_some_with(&mut pending, &hints).len(), 1);
        assert_eq!(wait_some_with(&mut pending, &hints).len(), 0);
    }

    // [SESS-50] [SESS-51] [SESS-139] [SESS-88] wherever the connection breaks
    #[test]
    fn chain_whose_connection_breaks_anywhere_ends_with_all_of_its_data() {
        let mut cuts = 0;
        for packet in 0..60 {
            let world = world(FaultPlan { cut_at_packet: Some(packet), ..steady() });
            let mut connected = None;
            for _ in 0..3 {
                connected = connected.or_else(|| {
                    let session = world.connect(1, &World::client_config(1)).ok()?;
                    let root = session.mount("data").ok()?;
                    root.create("f").ok()?.write_all_at(b"data", 0).ok()?;
                    Some((session, root))
                });
            }
            let (session, root) = connected.unwrap();
            for round in 0..4 {
                let mut memory = [0; 4];
                let open = root.chain().open("f", OpenOptions::new().read(true));
                let done = open.read_at(&mut memory, 0).commit().close().run();
                let done = done.unwrap_or_else(|error| panic!("packet {packet}, round {round}: {error}"));
                assert_eq!((done.counts, &memory), (vec![4], b"data"));
            }
            cuts += session.reconnects();
            session.probe().unwrap();
            let handles = session.statistics().unwrap().handles;
            // The root is open, and the file that made the data has been given back.
            assert!(handles <= 2, "packet {packet}: {handles} handles are left");
        }
        assert!(cuts > 10, "{cuts}");
    }

    // [SESS-139] [SESS-118]
    #[test]
    fn chain_of_a_forgotten_session_restarts_or_is_in_doubt() {
        let world = world(steady());
        let session = world.connect(1, &World::client_config(1)).unwrap();
        let root = session.mount("data").unwrap();
        let file = root.create("f").unwrap();
        file.write_all_at(b"data", 0).unwrap();
        file.commit().unwrap();
        for _ in 0..5 {
            world.crash();
            let mut memory = [0; 4];
            let open = root.chain().open("f", OpenOptions::new().read(true));
            open.read_at(&mut memory, 0).close().run().unwrap();
            assert_eq!(&memory, b"data");
        }
        assert!(world.crashes() >= 5);
    }
}
