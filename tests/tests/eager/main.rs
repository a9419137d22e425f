//! Eager buffers: the methods eager, client-initiated and hybrid, their edges, their bounds, and clients that misuse what they were lent.
#![allow(clippy::unwrap_used, clippy::expect_used, reason = "all of this is test code, helpers included")]
#![allow(clippy::cast_possible_truncation, reason = "sizes that the tests choose")]

mod misuse;

use dafs_client::{Config, Direction, File, MethodOverride, Pending, Registration, Session, Transferred};
use dafs_tests::faulty::{Fault, Kind};
use dafs_tests::harness::{Harness, On};
use dafs_tests::on_each_provider;
use dafs_tests::suite::{EXPORTS, assert_same, bytes, wait_for};

on_each_provider! {
    transfer_around_the_size_of_an_eager_buffer_moves_exactly_its_bytes,
    transfers_more_than_eager_buffers_at_once_all_end,
    parts_wait_while_every_eager_buffer_is_in_use,
    transfer_with_a_method_of_eager_buffers_is_counted_as_that,
    server_without_memory_to_lend_is_explained_and_served_directly,
    eager_buffers_are_shared_out_and_come_back,
    session_is_lent_its_share_of_eager_buffers_at_most,
    append_beyond_the_eager_buffer_goes_direct,
}

const METHODS: [MethodOverride; 3] =
    [MethodOverride::Eager, MethodOverride::ClientInitiated, MethodOverride::Hybrid];
const SIZE: u32 = 20_000;

fn session(harness: &Harness, method: MethodOverride, eager_buffer_count: u16) -> Session {
    harness.session_with(&Config { method, eager_buffer_count, eager_buffer_size: SIZE, ..Config::default() })
}

fn file(session: &Session, export: &str) -> File {
    session.mount(export).unwrap().create("f").unwrap()
}

// [WIRE-21] [CLI-73]
fn transfer_around_the_size_of_an_eager_buffer_moves_exactly_its_bytes(on: On) {
    let harness = Harness::start(on);
    for method in METHODS {
        let session = session(&harness, method, 3);
        for export in EXPORTS {
            let file = file(&session, export);
            let eager_buffer = SIZE as usize;
            for size in [
                1,
                4095,
                4096,
                eager_buffer - 1,
                eager_buffer,
                eager_buffer + 1,
                3 * eager_buffer,
                7 * eager_buffer + 5,
            ] {
                let what = format!("{method:?}, {export}, {size} bytes");
                let data = bytes(size as u64, size);
                assert_eq!(file.write_at(&data, 1).unwrap(), size, "{what}");
                let mut found = vec![0; size + 1];
                // One byte more than there is: the last piece is short.
                assert_eq!(file.read_at(&mut found, 1).unwrap(), size, "{what}");
                assert_same(&found[..size], &data, &what);
                let mut registered = session.buffer(size).unwrap();
                registered.copy_from_slice(&bytes(size as u64 + 1, size));
                assert_eq!(file.write_buf_at(&registered, 0).unwrap(), size, "{what}");
                registered.fill(0);
                assert_eq!(file.read_buf_at(&mut registered, 0).unwrap(), size, "{what}");
                assert_same(&registered, &bytes(size as u64 + 1, size), &what);
                file.truncate(0).unwrap();
            }
        }
        let counted = session.statistics().unwrap();
        assert_eq!((session.reconnects(), counted.protocol_errors), (0, 0));
        assert!(counted.eager_buffers_size > 0, "{method:?}");
    }
}

// [CLI-73]
fn transfers_more_than_eager_buffers_at_once_all_end(on: On) {
    let harness = Harness::start(on);
    for method in METHODS {
        let session = session(&harness, method, 2);
        let file = file(&session, "mem");
        let size = SIZE as usize;
        let writes: Vec<_> = (0..20u64)
            .map(|number| file.submit_write_at(bytes(number, size), number * u64::from(SIZE)))
            .collect();
        for write in writes {
            assert_eq!(write.wait().result.unwrap(), size);
        }
        let reads: Vec<_> =
            (0..20u64).map(|number| file.submit_read_at(vec![0; size], number * u64::from(SIZE))).collect();
        for (number, read) in reads.into_iter().enumerate() {
            let read = read.wait();
            assert_eq!(read.result.unwrap(), size);
            assert_same(&read.buffer, &bytes(number as u64, size), &format!("{method:?} {number}"));
        }
    }
}

// [SESS-102] [CLI-73] Storage has as many parts at a time as there are buffers.
fn parts_wait_while_every_eager_buffer_is_in_use(on: On) {
    let (harness, faults) = Harness::start_faulty(on, |_| {});
    let watcher = harness.session();
    for (method, count) in METHODS.into_iter().zip(1..) {
        let session = session(&harness, method, count);
        let file = file(&session, "mem");
        let parts = usize::from(count) + 2;
        let data = bytes(u64::from(count), parts * SIZE as usize);
        let hold = |kind, pending: &mut Pending<Transferred<Vec<u8>>>| {
            // The client goes on where it is asked.
            wait_for("parts are with storage", || !pending.test() && faults.held() >= count.into());
            // What else was sent is there when the server has looked at all connections some times.
            for _ in 0..10 {
                watcher.ping().unwrap();
            }
            assert_eq!((faults.held(), faults.left()), (count.into(), 2), "{method:?}: {kind:?}");
            faults.release();
        };
        faults.next(Kind::Write, Fault::Hold, parts);
        let mut write = file.submit_write_at(data.clone(), 0);
        hold(Kind::Write, &mut write);
        assert_eq!(write.wait().result.unwrap(), data.len());
        // Hybrid reads use none.
        let uses_some = method != MethodOverride::Hybrid;
        faults.next(Kind::Read, Fault::Hold, if uses_some { parts } else { 0 });
        let mut read = file.submit_read_at(vec![0; data.len()], 0);
        if uses_some {
            hold(Kind::Read, &mut read);
        }
        let read = read.wait();
        assert_eq!(read.result.unwrap(), data.len());
        assert_same(&read.buffer, &data, &format!("{method:?}"));
    }
}

// [CLI-6]
fn transfer_with_a_method_of_eager_buffers_is_counted_as_that(on: On) {
    let harness = Harness::start(on);
    for method in METHODS {
        let session = session(&harness, method, 2);
        let explained = session.explain(Direction::Write, 5000, Registration::Ordinary);
        let file = file(&session, "mem");
        let before = session.statistics().unwrap();
        file.write_all_at(&bytes(1, 5000), 0).unwrap();
        file.read_exact_at(&mut vec![0; 5000], 0).unwrap();
        let after = session.statistics().unwrap();
        let moved = |from: [u64; 2], to: [u64; 2]| [to[0] - from[0], to[1] - from[1]];
        let fast = moved(before.bytes_eager, after.bytes_eager);
        let client = moved(before.bytes_client_initiated, after.bytes_client_initiated);
        let expected = match method {
            MethodOverride::Eager => ([5000, 5000], [0, 0]),
            MethodOverride::ClientInitiated => ([0, 0], [5000, 5000]),
            _ => ([0, 0], [0, 5000]),
        };
        assert_eq!((fast, client), expected, "{method:?}: {explained}");
    }
}

// [SESS-61] [CLI-75]
fn server_without_memory_to_lend_is_explained_and_served_directly(on: On) {
    let harness = Harness::start_with(on, |config| config.buffers_size_max = 0);
    for method in METHODS {
        let session = session(&harness, method, 8);
        let explained = session.explain(Direction::Write, 5000, Registration::Ordinary);
        assert!(explained.contains("lends this session no buffers"), "{explained}");
        let file = file(&session, "mem");
        file.write_all_at(&bytes(1, 100_000), 0).unwrap();
        let mut found = vec![0; 100_000];
        file.read_exact_at(&mut found, 0).unwrap();
        assert_same(&found, &bytes(1, 100_000), "without eager buffers");
        assert_eq!(session.statistics().unwrap().eager_buffers_size, 0);
    }
}

// [SESS-61]
fn eager_buffers_are_shared_out_and_come_back(on: On) {
    let budget = 4u64 << 20;
    let harness = Harness::start_with(on, |config| config.buffers_size_max = budget);
    let watcher = harness.session();
    let mut config =
        Config { method: MethodOverride::ClientInitiated, eager_buffer_count: 32, ..Config::default() };
    config.eager_buffer_size = 128 << 10;
    let sessions: Vec<Session> = (0..6).map(|_| harness.session_with(&config)).collect();
    let lent = watcher.statistics().unwrap().eager_buffers_size;
    assert!(lent > 0 && lent <= budget / 2, "{lent} bytes are lent of {budget}");
    for (number, session) in sessions.iter().enumerate() {
        // Those that got none are served all the same.
        let file = session.mount("mem").unwrap().create(format!("f{number}")).unwrap();
        file.write_all_at(&bytes(number as u64, 50_000), 0).unwrap();
    }
    drop(sessions);
    while watcher.statistics().unwrap().eager_buffers_size > 0 {}
}

// [SESS-104]
fn session_is_lent_its_share_of_eager_buffers_at_most(on: On) {
    const HALF: u64 = 4 << 20;
    let harness = Harness::start_with(on, |config| config.buffers_size_max = 2 * HALF);
    let others: Vec<Session> = (0..4).map(|_| harness.session()).collect();
    let mut config =
        Config { method: MethodOverride::ClientInitiated, eager_buffer_count: 32, ..Config::default() };
    config.eager_buffer_size = 128 << 10;
    let lent = |others: &[Session]| {
        others.iter().for_each(|other| assert!(other.ping().is_ok()));
        let session = harness.session_with(&config);
        let size = session.statistics().unwrap().eager_buffers_size;
        session.close();
        while others[0].statistics().unwrap().eager_buffers_size > 0 {}
        size
    };
    // Who is active is counted now and then.
    let among_four = std::iter::repeat_with(|| lent(&others)).find(|size| *size <= HALF / 4).unwrap();
    assert!(among_four > 0, "a share of something");
    others[1..].iter().for_each(|other| other.close());
    while lent(&others[..1]) <= HALF / 4 {}
}

// [CLI-74]
fn append_beyond_the_eager_buffer_goes_direct(on: On) {
    let harness = Harness::start(on);
    for method in METHODS {
        let session = session(&harness, method, 2);
        let file = file(&session, "data");
        let moved_directly = || session.statistics().unwrap().bytes_written[1];
        let mut expected = Vec::new();
        for (seed, size) in [(1, 1), (2, SIZE as usize), (3, SIZE as usize + 1), (4, 12_345)] {
            let (data, before) = (bytes(seed, size), moved_directly());
            assert_eq!(file.append(&data).unwrap(), expected.len() as u64, "{method:?}, {size} bytes");
            expected.extend(data);
            let direct = if size > SIZE as usize { size as u64 } else { 0 };
            assert_eq!(moved_directly() - before, direct, "{method:?}, {size} bytes");
        }
        let mut found = vec![0; expected.len()];
        file.read_exact_at(&mut found, 0).unwrap();
        assert_same(&found, &expected, &format!("{method:?}"));
    }
}
