//! Batches whose data travels in the messages: by hand, at the edges of what a message carries, beside direct operations, on storage
//! that has to be waited for.

use std::time::Duration;

use dafs_client::{BatchHints, Config, MethodOverride, Session, Stability};
use dafs_proto::extent::Extent;
use dafs_proto::transport::Access;
use dafs_proto::wire::{
    BATCH_OPERATION_SIZE, BATCH_RESULT_SIZE, BatchFlags, BatchOperation, BatchRequest, BatchResult,
    EXTENT_SIZE, Features, FileHandle, Header, Lists, Method, Opcode, Status,
};
use dafs_tests::cut::cut_connections;
use dafs_tests::exhausted::{Registers, connect_exhausted};
use dafs_tests::faulty::{Fault, Kind};
use dafs_tests::harness::{Harness, On};
use dafs_tests::raw::{Message, Raw, read_body, write_body};
use dafs_tests::suite::{EXPORTS, assert_same, bytes};
use dafs_tests::{on_sockets, on_verbs};

use crate::batch_requests::{body, encoded_with, operation, results, results_and_data};
use crate::batches::{batches, tell_all};

on_sockets! {
    batch_disagreeing_with_its_data_is_refused_in_words,
    inline_and_direct_operations_go_in_one_batch,
    batch_is_cut_where_request_or_reply_is_full,
    inline_reads_at_end_of_file_are_short,
    small_operations_take_one_request_and_no_registration,
    operations_of_more_than_512_bytes_are_direct_where_memory_is_mapped,
    batch_goes_through_one_credit_and_the_smallest_messages,
    batch_towards_a_server_without_batches_is_done_one_by_one,
    inline_operations_that_wait_for_storage_end_as_others_do,
    inline_writes_are_not_carried_out_again_and_reads_are,
    batch_in_storage_when_its_connection_breaks_is_answered_on_the_next,
}

on_verbs! {
    batch_disagreeing_with_its_data_is_refused_in_words,
    inline_and_direct_operations_go_in_one_batch,
    batch_is_cut_where_request_or_reply_is_full,
    inline_reads_at_end_of_file_are_short,
    small_operations_take_one_request_and_no_registration,
    operations_of_more_than_512_bytes_are_direct_where_memory_is_mapped,
    batch_goes_through_one_credit_and_the_smallest_messages,
    batch_towards_a_server_without_batches_is_done_one_by_one,
    inline_operations_that_wait_for_storage_end_as_others_do,
}

/// Bytes that describe an operation of one extent.
const DESCRIBED: usize = BATCH_OPERATION_SIZE + EXTENT_SIZE;

fn inline(handle: FileHandle, write: bool, offset: u64, len: u64) -> BatchOperation {
    let lists = Lists { extents: vec![Extent::new(offset, len)], segments: Vec::new() };
    let direct = operation(handle, write, (0, 0), [0; 3]);
    BatchOperation { method: Method::Inline, lists: lists.into(), ..direct }
}

fn send(raw: &mut Raw, operations: &[BatchOperation], data: &[u8]) -> Message {
    let (body, payload) = encoded_with(operations, BatchFlags::empty(), data);
    raw.call(Header::request(Opcode::Batch, FileHandle(0)), &body, &payload)
}

fn written(session: &Session) -> [u64; 2] {
    session.statistics().unwrap().bytes_written
}

// [BATCH-2] [BATCH-12]
fn batch_disagreeing_with_its_data_is_refused_in_words(on: On) {
    let harness = Harness::start(on);
    let (mut raw, _) = Raw::session(harness.address(), 4);
    let root = raw.mount("mem");
    let f = raw.create(root, b"f");
    raw.call(Header::request(Opcode::Write, f), &write_body(0, 100, None), &bytes(1, 100));
    let (read, write) = (inline(f, false, 0, 20), inline(f, true, 50, 20));
    let with = |operations: &[BatchOperation], data: u32, sent: usize| {
        let mut payload = encoded_with(operations, BatchFlags::empty(), &[]).1;
        payload.extend(vec![9; sent]);
        let operations = operations.len() as u32;
        (body(&BatchRequest { operations, data, ..BatchRequest::default() }), payload)
    };
    let one = |operation, data, sent| with(std::slice::from_ref(operation), data, sent);
    let half = 1 << 31;
    let mut ranged = read.clone();
    ranged.lists.segments.push([1, 2, 20]);
    let cases = [
        (one(&write, 0, 0), "0 bytes of data"),
        (one(&write, 20, 0), "operations"),
        (one(&write, 20, 19), "operation 0"),
        (one(&write, 19, 19), "19 bytes of data"),
        (one(&write, 20, 21), "behind the last"),
        (one(&write, 21, 21), "21 bytes of data"),
        (one(&write, u32::MAX, 20), "bytes of data"),
        (one(&read, 20, 20), "20 bytes of data"),
        (with(&[], 1, 1), "1 bytes of data"),
        (with(&[inline(f, true, 0, half), inline(f, true, 0, half)], 0, 0), "the limit is"),
        (with(&[inline(f, false, 0, half), inline(f, false, 0, half)], 0, 0), "the limit is"),
        (with(&[inline(f, false, 0, 16 << 10)], 0, 0), "the limit is"),
        (one(&ranged, 0, 0), "ranges of memory"),
        (with(&[BatchOperation { method: Method::Direct, ..read.clone() }], 0, 0), "ranges of memory"),
        (with(&[BatchOperation { method: Method::Eager, ..read.clone() }], 0, 0), "operation 0"),
        (with(&[inline(f, true, u64::MAX - 5, 20)], 20, 20), "beyond the end"),
    ];
    for (number, ((body, payload), expected)) in cases.into_iter().enumerate() {
        let reply = raw.call(Header::request(Opcode::Batch, FileHandle(0)), &body, &payload);
        assert_eq!(reply.header.status, Status::INVALID, "case {number}");
        let words = String::from_utf8(reply.payload.clone()).unwrap();
        assert!(words.contains(expected), "case {number}: {words}");
        let (found, data) = results_and_data(&send(&mut raw, std::slice::from_ref(&read), &[]));
        assert_eq!(found, [BatchResult { status: Status::OK, count: 20, value: u64::MAX }]);
        assert_same(&data, &bytes(1, 20), "nothing was written");
    }
    // A file that is not there fails alone, and takes no place in the data.
    let strange = |write| inline(FileHandle(77 << 32), write, 0, 5);
    let operations = [strange(true), write, strange(false), read];
    let (found, data) = results_and_data(&send(&mut raw, &operations, &[&[1; 5][..], &[2; 20]].concat()));
    let statuses: Vec<Status> = found.iter().map(|result| result.status).collect();
    assert_eq!(statuses, [Status::BAD_HANDLE, Status::OK, Status::BAD_HANDLE, Status::OK]);
    assert_same(&data, &bytes(1, 20), "what was read");
    let found = raw.call(Header::request(Opcode::Read, f), &read_body(45, 30, None), &[]).payload;
    assert_same(&found, &[&bytes(1, 100)[45..50], &[2; 20], &bytes(1, 100)[70..75]].concat(), "the file");
}

// [BATCH-3] [BATCH-4] [BATCH-10] [BATCH-11]
fn inline_and_direct_operations_go_in_one_batch(on: On) {
    let harness = Harness::start(on);
    for export in EXPORTS {
        let (mut raw, _) = Raw::session(harness.address(), 4);
        let root = raw.mount(export);
        let f = raw.create(root, b"f");
        raw.call(Header::request(Opcode::Write, f), &write_body(0, 1000, None), &bytes(1, 1000));
        let region = raw.region(4096, Access::all());
        region.memory().span().write_from(0, &[7; 100]);
        let range = |at: u64, len: u64| [region.range().key.0, region.range().offset + at, len];
        let two = Lists { extents: vec![Extent::new(990, 20), Extent::new(30, 10)], segments: Vec::new() };
        let written = Lists { extents: vec![Extent::new(710, 3), Extent::new(700, 4)], segments: Vec::new() };
        let operations = [
            inline(f, false, 10, 30),
            operation(f, true, (500, 100), range(0, 100)),
            inline(f, true, 600, 5),
            inline(f, true, 605, 5),
            BatchOperation { lists: two.into(), ..inline(f, false, 0, 0) },
            operation(f, false, (200, 50), range(100, 50)),
            inline(f, false, 40, 10),
            inline(f, true, 900, 0),
            BatchOperation { lists: written.into(), ..inline(f, true, 0, 0) },
            BatchOperation { stability: Stability::FileSync, ..inline(f, true, 720, 2) },
        ];
        let reply = send(&mut raw, &operations, b"firstnext.abcdefgxy");
        let (found, data) = results_and_data(&reply);
        assert!(found.iter().all(|result| result.status == Status::OK), "{found:?}");
        let counts: Vec<u32> = found.iter().map(|result| result.count).collect();
        assert_eq!(counts, [30, 100, 5, 5, 20, 50, 10, 0, 7, 2]);
        assert_eq!(found[4].value, 1000, "where the file ended");
        let file = bytes(1, 1000);
        let expected = [&file[10..40], &file[990..], &file[30..40], &file[40..50]].concat();
        assert_same(&data, &expected, "what was read inline");
        assert_same(&region.memory().span().to_vec()[100..150], &file[200..250], "what was read directly");
        let found = raw.call(Header::request(Opcode::Read, f), &read_body(500, 223, None), &[]).payload;
        let expected =
            [&[7; 100], &b"firstnext."[..], &file[610..700], b"defg", &file[704..710], b"abc"].concat();
        assert_same(&found[..213], &expected, "the file");
        assert_same(&found[213..], &[&file[713..720], b"xy", &file[722..723]].concat(), "the durable write");
    }
}

// [CLI-41] [BATCH-1] [CLI-113] : one byte less than a message carries, all of it, one more; one operation, and the last of several.
fn batch_is_cut_where_request_or_reply_is_full(on: On) {
    let harness = Harness::start(on);
    let session = harness.session_with(&Config { method: MethodOverride::Inline, ..Config::default() });
    let file = session.mount("mem").unwrap().create("f").unwrap();
    file.write_all_at(&bytes(1, 100_000), 0).unwrap();
    let agreed = session.agreed();
    let (request, reply) = (agreed.write_inline_max as usize, agreed.read_inline_max as usize);
    for (len, is_inline) in [
        (request - DESCRIBED - 1, true),
        (request - DESCRIBED, true),
        (request - DESCRIBED + 1, false),
        (request, false),
    ] {
        let (data, before) = (bytes(len as u64, len), written(&session));
        let mut batch = session.batch_io();
        batch.write_at(&file, &data, 7);
        assert_eq!(batch.run().unwrap()[0].as_ref().unwrap().count, len);
        let after = written(&session);
        let by = [after[0] - before[0], after[1] - before[1]];
        assert_eq!(by, if is_inline { [len as u64, 0] } else { [0, len as u64] }, "a write of {len}");
        let mut found = vec![0; len];
        file.read_exact_at(&mut found, 7).unwrap();
        assert_same(&found, &data, "what was written");
    }
    for (len, is_inline) in [
        (reply - BATCH_RESULT_SIZE - 1, true),
        (reply - BATCH_RESULT_SIZE, true),
        (reply - BATCH_RESULT_SIZE + 1, false),
    ] {
        let (mut found, mut expected) = (vec![0; len], vec![0; len]);
        file.read_exact_at(&mut expected, 3).unwrap();
        let before = session.statistics().unwrap().bytes_read[0];
        let mut batch = session.batch_io();
        batch.read_at(&file, &mut found, 3);
        batch.run().unwrap();
        drop(batch);
        let inline = session.statistics().unwrap().bytes_read[0] - before;
        assert_eq!(inline, if is_inline { len as u64 } else { 0 }, "a read of {len}");
        assert_same(&found, &expected, "what was read");
    }
    for (write, each, room) in [(true, 1000 + DESCRIBED, request), (false, 1000 + BATCH_RESULT_SIZE, reply)] {
        for (last, requests) in [(room % each - 1, 1), (room % each, 1), (room % each + 1, 2)] {
            let lens: Vec<usize> =
                std::iter::repeat_n(1000, room / each).chain([last - (each - 1000)]).collect();
            let mut memory: Vec<Vec<u8>> = lens.iter().map(|len| bytes(*len as u64, *len)).collect();
            let before = batches(&session);
            let mut batch = session.batch_io();
            for (place, memory) in memory.iter_mut().enumerate() {
                match write {
                    true => batch.write_at(&file, memory, place as u64 * 2000),
                    false => batch.read_at(&file, memory, place as u64 * 2000),
                };
            }
            assert!(batch.run().unwrap().into_iter().all(|outcome| outcome.is_ok()));
            drop(batch);
            assert_eq!(batches(&session) - before, requests, "a last operation of {last}");
            for (place, memory) in memory.iter().enumerate() {
                let mut found = vec![0; memory.len()];
                file.read_exact_at(&mut found, place as u64 * 2000).unwrap();
                assert_same(&found, memory, "what was moved");
            }
        }
    }
}

// [BATCH-3] [BATCH-11]
fn inline_reads_at_end_of_file_are_short(on: On) {
    let harness = Harness::start(on);
    let session = harness.session();
    for export in EXPORTS {
        let file = session.mount(export).unwrap().create("f").unwrap();
        let data = bytes(5, 10_000);
        file.write_all_at(&data, 0).unwrap();
        // In a run that goes on from one to the next, and each for itself.
        for step in [100u64, 150] {
            let mut memory = vec![vec![0xee; 100]; 40];
            let first = 10_000 - 20 * step - 1;
            let mut batch = session.batch_io();
            for (place, memory) in memory.iter_mut().enumerate() {
                batch.read_at(&file, memory, first + place as u64 * step);
            }
            let outcomes = batch.run().unwrap();
            drop(batch);
            for (place, (memory, outcome)) in memory.iter().zip(outcomes).enumerate() {
                let (offset, outcome) = (first as usize + place * step as usize, outcome.unwrap());
                let expected = &data[offset.min(10_000)..(offset + 100).min(10_000)];
                assert_eq!(outcome.count, expected.len(), "at {offset}");
                assert_eq!(outcome.end.is_some(), expected.len() < 100, "at {offset}");
                assert_same(&memory[..expected.len()], expected, "what was read");
                assert!(memory[expected.len()..].iter().all(|byte| *byte == 0xee), "behind it");
            }
        }
    }
}

// [CLI-113]
fn small_operations_take_one_request_and_no_registration(on: On) {
    let inline_max = 128 << 10;
    let harness = Harness::start_with(on, |config| config.inline_max = inline_max);
    let session =
        connect_exhausted(&harness, Registers::Nothing, &Config { inline_max, ..Config::default() });
    let file = session.mount("mem").unwrap().create("f").unwrap();
    let mut memory: Vec<Vec<u8>> = (0..16).map(|seed| bytes(seed, 4096)).collect();
    let before = (batches(&session), session.statistics().unwrap());
    let mut batch = session.batch_io();
    for (place, data) in memory.iter().enumerate() {
        batch.write_at(&file, data, place as u64 * 8192);
    }
    assert!(batch.run().unwrap().into_iter().all(|outcome| outcome.unwrap().count == 4096));
    drop(batch);
    let after = session.statistics().unwrap();
    // Messages are shorter where a device receives them.
    let [written, both] = if matches!(on, On::Tcp | On::Shm) { [1, 2] } else { [2, 3] };
    assert_eq!(batches(&session) - before.0, written);
    assert_eq!(after.bytes_written[0] - before.1.bytes_written[0], 65_536);
    assert_eq!(after.bytes_written[1], before.1.bytes_written[1], "by RDMA");
    let expected = memory.clone();
    memory.iter_mut().for_each(|memory| memory.fill(0));
    let mut batch = session.batch_io();
    for (place, memory) in memory.iter_mut().enumerate() {
        batch.read_at(&file, memory, place as u64 * 8192);
    }
    batch.run().unwrap();
    drop(batch);
    assert_eq!(batches(&session) - before.0, both);
    let read = session.statistics().unwrap();
    assert_eq!(read.bytes_read[0] - after.bytes_read[0], 65_536);
    assert_eq!(read.bytes_read[1], after.bytes_read[1], "by RDMA");
    assert_eq!(memory, expected);
    assert_eq!(session.registration_counters().misses, 0);
}

/// Writes and reads of many sizes, inline and direct, by one batch each; all must be there.
fn move_all(session: &Session, hints: Option<BatchHints>) {
    let file = session.mount("mem").unwrap().create("f").unwrap();
    let lens = [1, 100, 4096, 0, 8000, 9000, 20_000, 16_384, 3, 300_000, 5000];
    let place = |index: usize| index as u64 * 300_007;
    let mut batch = session.owned_batch();
    for (index, len) in lens.iter().enumerate() {
        batch.write_at(&file, bytes(index as u64, *len), place(index));
    }
    let done = batch.submit(hints).wait();
    let counts: Vec<usize> = done.results.unwrap().iter().map(|o| o.as_ref().unwrap().count).collect();
    assert_eq!(counts, lens);
    let mut batch = session.owned_batch();
    for (index, len) in lens.iter().enumerate() {
        batch.read_at(&file, vec![0; *len], place(index));
    }
    let mut pending = batch.submit(hints);
    let mut told = tell_all(&mut pending);
    told.sort_unstable();
    assert_eq!(told, (0..lens.len()).collect::<Vec<_>>());
    let done = pending.wait();
    for (index, buffer) in done.buffers.iter().enumerate() {
        assert_same(buffer, &bytes(index as u64, lens[index]), &format!("operation {index}"));
    }
}

// [CLI-113] [CLI-114]
fn operations_of_more_than_512_bytes_are_direct_where_memory_is_mapped(on: On) {
    const COUNT: u64 = 8;
    let harness = Harness::start(on);
    let session = harness.session();
    let file = session.mount("mem").unwrap().create("f").unwrap();
    let moved = || {
        let statistics = session.statistics().unwrap();
        [statistics.bytes_written, statistics.bytes_read]
    };
    for (len, is_inline) in [(512, true), (513, on != On::Shm)] {
        let data = bytes(len, len as usize);
        let (mut found, before) = (vec![vec![0; data.len()]; COUNT as usize], moved());
        let mut batch = session.batch_io();
        for place in 0..COUNT {
            batch.write_at(&file, &data, place * len);
        }
        batch.run().unwrap();
        let mut batch = session.batch_io();
        for (place, found) in found.iter_mut().enumerate() {
            batch.read_at(&file, found, place as u64 * len);
        }
        batch.run().unwrap();
        drop(batch);
        assert!(found.iter().all(|found| *found == data), "what was read");
        let expected = if is_inline { [COUNT * len, 0] } else { [0, COUNT * len] };
        for (before, after) in before.into_iter().zip(moved()) {
            assert_eq!([after[0] - before[0], after[1] - before[1]], expected, "{len} bytes each");
        }
    }
}

// [CLI-41] [SESS-20] [WIRE-30]
fn batch_goes_through_one_credit_and_the_smallest_messages(on: On) {
    let harness = Harness::start(on);
    for (credits, inline_max) in [(1, 1), (1, 16_384), (64, 1), (2, 9000)] {
        for method in [MethodOverride::Auto, MethodOverride::Inline, MethodOverride::Direct] {
            let session = harness.session_with(&Config { credits, inline_max, method, ..Config::default() });
            assert!(session.agreed().read_inline_max >= 8256, "the smallest payload");
            move_all(&session, None);
            move_all(&session, Some(BatchHints { completions: 2, window: Duration::ZERO }));
        }
    }
}

// [CLI-116] [CLI-118]: nor lists.
fn batch_towards_a_server_without_batches_is_done_one_by_one(on: On) {
    for without in [Features::BATCHES, Features::BATCHES | Features::LISTS] {
        let harness = Harness::start_with(on, |config| config.features = Features::all() - without);
        let session = harness.session();
        move_all(&session, None);
        move_all(&session, Some(BatchHints { completions: 2, window: Duration::ZERO }));
        let file = session.mount("mem").unwrap().open("f").unwrap();
        let (mut left, mut right) = ([0; 5], [0; 7]);
        let mut parts = [std::io::IoSliceMut::new(&mut left), std::io::IoSliceMut::new(&mut right)];
        let extents = [Extent::new(300_017, 8), Extent::new(300_007, 4)];
        let mut tail = [0; 100];
        let mut batch = session.batch_io();
        batch.read_list(&file, &extents, &mut parts).read_at(&file, &mut tail, 10 * 300_007 + 4950);
        let outcomes = batch.run().unwrap();
        drop(batch);
        let outcomes: Vec<_> = outcomes.into_iter().map(|outcome| outcome.unwrap()).collect();
        assert_eq!((outcomes[0].count, outcomes[1].count), (12, 50));
        assert_eq!(outcomes[1].end, Some(10 * 300_007 + 5000));
        let data = bytes(1, 100);
        assert_same(&[&left[..], &right].concat(), &[&data[10..18], &data[..4]].concat(), "the list");
        assert_eq!(batches(&session), 0, "no server without them is asked for one");
    }
}

// [BATCH-5] [BATCH-10] [BATCH-13]: of operations that continue each other too, of which some fail, are short, or have to be waited for.
fn inline_operations_that_wait_for_storage_end_as_others_do(on: On) {
    let (harness, faults) = Harness::start_faulty(on, |_| {});
    let session = harness.session();
    let file = session.mount("mem").unwrap().create("f").unwrap();
    for step in [100u64, 150] {
        for (kind, fault, count) in [
            (Kind::Write, Fault::Hold, 1),
            (Kind::Read, Fault::Hold, 1),
            (Kind::Write, Fault::Pass, 3),
            (Kind::Read, Fault::Pass, 3),
            (Kind::Write, Fault::Pass, 1000),
            (Kind::Read, Fault::Pass, 1000),
        ] {
            let expected = bytes(count as u64 + step, 20_000);
            file.write_all_at(&bytes(77, 20_000), 0).unwrap();
            file.write_all_at(&expected[10_000..], 10_000).unwrap();
            faults.next(kind, fault, count);
            let mut batch = session.owned_batch();
            for index in 0..30u64 {
                let at = (index * step) as usize;
                batch.write_at(&file, expected[at..at + 100].to_vec(), at as u64);
                batch.read_at(&file, vec![0; 100], 10_000 + at as u64);
            }
            for index in 30..60u64 {
                let at = (index * step) as usize;
                batch.write_at(&file, expected[at..at + 100].to_vec(), at as u64);
            }
            let mut pending = batch.submit(Some(BatchHints { completions: 1, window: Duration::ZERO }));
            if fault == Fault::Hold {
                let mut told = 0;
                faults.wait_for_held(1);
                while told < 30 {
                    told += pending.wait_some().len();
                }
                assert_eq!(faults.held(), 1);
            }
            faults.release();
            let done = pending.wait();
            for (place, outcome) in done.results.unwrap().into_iter().enumerate() {
                assert_eq!(outcome.unwrap().count, 100, "operation {place}");
            }
            for index in 0..30 {
                let at = 10_000 + index * step as usize;
                assert_same(&done.buffers[2 * index + 1], &expected[at..at + 100], "what was read");
            }
            let mut found = vec![0; 60 * step as usize];
            file.read_exact_at(&mut found, 0).unwrap();
            for at in (0..60).map(|index| index * step as usize) {
                assert_same(&found[at..at + 100], &expected[at..at + 100], "what was written");
            }
        }
    }
    // Each has an error of its own, and a write that stopped what it did.
    for (kind, fault) in [
        (Kind::Read, Fault::Fail(Status::IO)),
        (Kind::Write, Fault::Fail(Status::NO_SPACE)),
        (Kind::Write, Fault::Short),
    ] {
        faults.next(kind, fault, 1);
        let (mut memory, data) = (vec![vec![0; 100]; 3], [5; 100]);
        let mut batch = session.batch_io();
        for (index, memory) in memory.iter_mut().enumerate() {
            batch.read_at(&file, memory, 10_000 + index as u64 * 150);
            batch.write_at(&file, &data, index as u64 * 150);
        }
        let outcomes = batch.run().unwrap();
        drop(batch);
        assert_eq!(faults.left(), 0, "{fault:?}");
        let is_whole = |outcome: &dafs_client::Result<dafs_client::BatchOutcome>| {
            outcome.as_ref().is_ok_and(|outcome| outcome.count == 100)
        };
        let good = outcomes.iter().filter(|outcome| is_whole(outcome)).count();
        assert!(good >= 5, "{fault:?}: {outcomes:?}");
        for (index, memory) in memory.iter().enumerate() {
            if is_whole(&outcomes[2 * index]) {
                let mut found = vec![0; 100];
                file.read_exact_at(&mut found, 10_000 + index as u64 * 150).unwrap();
                assert_same(memory, &found, "what was read beside it");
            }
        }
    }
}

// [BATCH-8] [SESS-14] [BATCH-19]
fn inline_writes_are_not_carried_out_again_and_reads_are(on: On) {
    let harness = Harness::start(on);
    let (mut raw, _) = Raw::session(harness.address(), 4);
    let root = raw.mount("mem");
    let f = raw.create(root, b"f");
    for (count, reads) in [(1, 0), (64, 0), (65, 0), (3, 1), (100, 1)] {
        let write = |raw: &mut Raw, byte: u8| {
            raw.call(Header::request(Opcode::Write, f), &write_body(0, 100, None), &[byte; 100]);
        };
        write(&mut raw, 1);
        let mut operations = vec![inline(f, true, 0, 100); count];
        operations.extend(std::iter::repeat_n(inline(f, false, 0, 100), reads));
        let (body, payload) = encoded_with(&operations, BatchFlags::empty(), &vec![2; 100 * count]);
        let mut header = Header::request(Opcode::Batch, FileHandle(0));
        raw.begin(&mut header);
        raw.send(header, &body, &payload);
        let first = raw.receive().unwrap();
        assert!(results(&first).iter().all(|result| (result.status, result.count) == (Status::OK, 100)));
        write(&mut raw, 3);
        raw.send(header, &body, &payload);
        let second = raw.receive().unwrap();
        assert_eq!(results(&first), results(&second));
        raw.end(&second);
        assert!(results_and_data(&second).1.iter().all(|byte| *byte == 3), "read again");
        let read = raw.call(Header::request(Opcode::Read, f), &read_body(0, 1, None), &[]);
        assert_eq!(read.payload[0], 3, "{count} and {reads}: what was written since");
    }
}

// [SESS-51] [BATCH-20]
fn batch_in_storage_when_its_connection_breaks_is_answered_on_the_next(on: On) {
    let (harness, faults) = Harness::start_faulty(on, |_| {});
    let session = harness.session();
    let file = session.mount("mem").unwrap().create("f").unwrap();
    for kind in [Kind::Read, Kind::Write] {
        for count in [1, 5] {
            file.write_all_at(&bytes(3, 10_000), 0).unwrap();
            faults.next(kind, Fault::Hold, count);
            let mut batch = session.owned_batch();
            for index in 0..20u64 {
                batch.read_at(&file, vec![0; 100], index * 150);
                batch.write_at(&file, vec![index as u8; 100], 5000 + index * 150);
            }
            let pending = batch.submit(None);
            faults.wait_for_held(1);
            let before = session.reconnects();
            assert!(cut_connections(harness.address()) > 0);
            // Over shm the old connection may answer until the cut is seen.
            while session.reconnects() == before {
                session.probe().unwrap();
            }
            faults.release();
            let done = pending.wait();
            assert!(done.results.unwrap().into_iter().all(|outcome| outcome.unwrap().count == 100));
            let mut found = vec![0; 10_000];
            file.read_exact_at(&mut found, 0).unwrap();
            for index in 0..20 {
                let expected = &bytes(3, 10_000)[index * 150..][..100];
                assert_same(&done.buffers[2 * index], expected, "what was read");
                assert_same(&found[5000 + index * 150..][..100], &[index as u8; 100], "what was written");
            }
        }
    }
    assert!(session.reconnects() >= 4);
}
