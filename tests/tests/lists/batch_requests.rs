//! Batches by hand: what no correct client sends, replies that are lost, chains.

use dafs_proto::extent::Extent;
use dafs_proto::transport::Access;
use dafs_proto::wire::{
    BATCH_MAX, BATCH_RESULT_SIZE, BatchFlags, BatchOperation, BatchReply, BatchRequest, BatchResult,
    CHAIN_HANDLE, FileHandle, Flags, HEADER_SIZE, Header, Lists, Method, Opcode, OpenFlags, OpenRequest,
    Stability, Status, decode_batch_results,
};
use dafs_tests::harness::{Harness, On};
use dafs_tests::on_each_provider;
use dafs_tests::raw::{Message, Raw, read_body, write_body};
use dafs_tests::suite::{assert_same, bytes};

on_each_provider! {
    malformed_batch_is_refused_in_words_and_the_session_continues,
    batch_of_which_one_operation_reaches_beyond_its_region_moves_nothing_there,
    batch_that_is_sent_again_writes_nothing_twice_and_reads_again,
    direct_read_in_a_chain_is_not_answered_from_kept_replies,
    batch_within_a_chain_uses_its_saved_handle,
}

pub(super) fn operation(
    handle: FileHandle,
    write: bool,
    extent: (u64, u64),
    range: [u64; 3],
) -> BatchOperation {
    let lists = Lists { extents: vec![Extent::new(extent.0, extent.1)], segments: vec![range] };
    let (method, stability) = (Method::Direct, Stability::Unstable);
    BatchOperation { handle, write, method, stability, lists: lists.into() }
}

pub(super) fn encoded(operations: &[BatchOperation], flags: BatchFlags) -> (Vec<u8>, Vec<u8>) {
    encoded_with(operations, flags, &[])
}

/// Body and payload of a batch with this data behind its operations.
pub(super) fn encoded_with(
    operations: &[BatchOperation],
    flags: BatchFlags,
    data: &[u8],
) -> (Vec<u8>, Vec<u8>) {
    let mut payload = Vec::new();
    operations.iter().for_each(|operation| operation.encode(&mut payload));
    payload.extend(data);
    let completions = u32::from(flags.contains(BatchFlags::NOTIFY));
    let (operations, data) = (operations.len() as u32, data.len() as u32);
    (body(&BatchRequest { operations, flags, window_us: 0, completions, data }), payload)
}

pub(super) fn body(request: &BatchRequest) -> Vec<u8> {
    let mut body = vec![0; BatchRequest::HEAD_SIZE - HEADER_SIZE];
    request.encode(&mut body);
    body
}

pub(super) fn results(reply: &Message) -> Vec<BatchResult> {
    results_and_data(reply).0
}

/// The results, and what was read inline.
pub(super) fn results_and_data(reply: &Message) -> (Vec<BatchResult>, Vec<u8>) {
    assert_eq!(reply.header.status, Status::OK);
    let BatchReply { operations, data } = BatchReply::decode(&reply.body).unwrap();
    let (described, read) = reply.payload.split_at(operations as usize * BATCH_RESULT_SIZE);
    assert_eq!(read.len(), data as usize);
    (decode_batch_results(described, operations as usize).unwrap(), read.to_vec())
}

// [BATCH-2]
fn malformed_batch_is_refused_in_words_and_the_session_continues(on: On) {
    let harness = Harness::start(on);
    let (mut raw, _) = Raw::session(harness.address(), 4);
    let root = raw.mount("mem");
    let f = raw.create(root, b"f");
    raw.call(Header::request(Opcode::Write, f), &write_body(0, 100, None), &bytes(1, 100));
    let region = raw.region(4096, Access::all());
    let range = |len: u64| [region.range().key.0, region.range().offset, len];
    let good = operation(f, false, (10, 20), range(20));
    let announce = |operations| body(&BatchRequest { operations, ..BatchRequest::default() });
    let (_, payload) = encoded(std::slice::from_ref(&good), BatchFlags::empty());
    let changed = |at: usize, byte: u8| {
        let mut payload = payload.clone();
        payload[at] = byte;
        (announce(1), payload)
    };
    #[allow(clippy::type_complexity, reason = "read once, right here")]
    let cases: Vec<((Vec<u8>, Vec<u8>), &str)> = vec![
        ((announce(1_000_000_000), payload.clone()), "1000000000 operations"),
        ((announce(u32::MAX), payload.clone()), "operations"),
        ((announce(BATCH_MAX as u32 + 1), payload.clone()), "operations"),
        ((announce(2), payload.clone()), "operation 1"),
        ((announce(0), payload.clone()), "behind the last"),
        ((announce(1), payload[..payload.len() - 1].to_vec()), "operation 0"),
        (changed(8, 2), "operation 0"),
        (changed(9, 1), "operation 0"),
        (changed(10, 0), "ranges of memory"),
        (changed(10, 2), "operation 0"),
        (changed(11, 1), "operation 0"),
        (changed(12, 21), "operation 0"),
        (changed(15, 0x80), "operation 0"),
        (changed(19, 0x80), "extents"),
        (changed(23, 0x80), "ranges of memory"),
        (
            encoded(&[operation(f, false, (u64::MAX - 5, 20), range(20))], BatchFlags::empty()),
            "beyond the end",
        ),
        (encoded(&[operation(f, true, (0, 20), range(u64::MAX))], BatchFlags::empty()), "memory of"),
        (
            encoded(&vec![operation(f, true, (0, 1 << 30), range(1 << 30)); 5], BatchFlags::empty()),
            "the limit is",
        ),
    ];
    for (number, ((body, payload), expected)) in cases.into_iter().enumerate() {
        let reply = raw.call(Header::request(Opcode::Batch, FileHandle(0)), &body, &payload);
        assert_eq!(reply.header.status, Status::INVALID, "case {number}");
        let words = String::from_utf8(reply.payload.clone()).unwrap();
        assert!(words.contains(expected), "case {number}: {words}");
        let (body, payload) = encoded(std::slice::from_ref(&good), BatchFlags::empty());
        let reply = raw.call(Header::request(Opcode::Batch, FileHandle(0)), &body, &payload);
        assert_eq!(results(&reply), [BatchResult { status: Status::OK, count: 20, value: u64::MAX }]);
    }
    assert_same(&region.memory().span().to_vec()[..20], &bytes(1, 100)[10..30], "what was read");
    // Handles that are not there fail alone; a batch of nothing is none.
    let strange = operation(FileHandle(77 << 32), false, (0, 20), range(20));
    let saved = operation(CHAIN_HANDLE, false, (0, 20), range(20));
    let (body, payload) = encoded(&[strange, good, saved], BatchFlags::empty());
    let reply = raw.call(Header::request(Opcode::Batch, FileHandle(0)), &body, &payload);
    let statuses: Vec<Status> = results(&reply).iter().map(|result| result.status).collect();
    assert_eq!(statuses, [Status::BAD_HANDLE, Status::OK, Status::BAD_HANDLE]);
    for flags in [BatchFlags::empty(), BatchFlags::EXPEDITE] {
        let (body, payload) = encoded(&[], flags);
        let reply = raw.call(Header::request(Opcode::Batch, FileHandle(0)), &body, &payload);
        assert!(results(&reply).is_empty());
    }
}

// [BATCH-4] [PROV-16] [PROV-20]
fn batch_of_which_one_operation_reaches_beyond_its_region_moves_nothing_there(on: On) {
    let harness = Harness::start(on);
    for write in [false, true] {
        for (offset, key) in [(4091u64, 0u64), (4096, 0), (u64::MAX - 3, 0), (0, 1)] {
            let (mut raw, _) = Raw::session(harness.address(), 4);
            let root = raw.mount("mem");
            let f = raw.create(root, b"f");
            raw.call(Header::request(Opcode::Write, f), &write_body(0, 100, None), &bytes(1, 100));
            let region = raw.region(4096, Access::all());
            region.memory().span().write_from(0, &[7; 4096]);
            let good = [region.range().key.0, region.range().offset, 10];
            let bad = [good[0] ^ key, good[1].wrapping_add(offset), 10];
            let operations = [operation(f, write, (0, 10), good), operation(f, write, (50, 10), bad)];
            let (body, payload) = encoded(&operations, BatchFlags::empty());
            let mut header = Header::request(Opcode::Batch, FileHandle(0));
            raw.begin(&mut header);
            raw.send(header, &body, &payload);
            // Mapped memory is refused; elsewhere the access ends the connection, as the provider's contract says.
            if let Some(reply) = raw.receive() {
                let statuses: Vec<Status> = results(&reply).iter().map(|result| result.status).collect();
                assert_eq!(statuses, [Status::OK, Status::REMOTE_ACCESS]);
                raw.end(&reply);
                let reply = raw.call(Header::request(Opcode::Null, f), &[], &[]);
                assert_eq!(reply.header.status, Status::OK);
            }
            let found = region.memory().span().to_vec();
            assert!(found[10..].iter().all(|byte| *byte == 7), "memory behind the first range");
        }
    }
}

// [BATCH-8] [SESS-14] [BATCH-19]
fn batch_that_is_sent_again_writes_nothing_twice_and_reads_again(on: On) {
    let harness = Harness::start(on);
    let (mut raw, _) = Raw::session(harness.address(), 4);
    let root = raw.mount("mem");
    let f = raw.create(root, b"f");
    let region = raw.region(4096, Access::all());
    let range = |len: u64| [region.range().key.0, region.range().offset, len];
    // The reply of 64 writes is kept whole, of more their results are.
    for (write, operations) in [(true, 64), (true, 65), (false, 1)] {
        raw.call(Header::request(Opcode::Write, f), &write_body(0, 100, None), &[1; 100]);
        region.memory().span().write_from(0, &[2; 100]);
        let operations = vec![operation(f, write, (0, 100), range(100)); operations];
        let (body, payload) = encoded(&operations, BatchFlags::empty());
        let mut header = Header::request(Opcode::Batch, FileHandle(0));
        raw.begin(&mut header);
        raw.send(header, &body, &payload);
        let first = raw.receive().unwrap();
        region.memory().span().write_from(0, &[3; 100]);
        raw.send(header, &body, &payload);
        let second = raw.receive().unwrap();
        assert_eq!(results(&first), results(&second));
        raw.end(&second);
        let read = raw.call(Header::request(Opcode::Read, f), &read_body(0, 1, None), &[]);
        let memory = region.memory().span().to_vec()[0];
        match write {
            true => assert_eq!(read.payload[0], 2),
            false => assert_eq!(memory, 1, "read again, for the data may not have arrived"),
        }
    }
}

// [BATCH-19] [SESS-123]
fn direct_read_in_a_chain_is_not_answered_from_kept_replies(on: On) {
    let harness = Harness::start(on);
    let (mut raw, _) = Raw::session(harness.address(), 8);
    let root = raw.mount("mem");
    let f = raw.create(root, b"f");
    raw.call(Header::request(Opcode::Write, f), &write_body(0, 100, None), &[1; 100]);
    let region = raw.region(4096, Access::all());
    let range = |len: u64| [region.range().key.0, region.range().offset, len];
    let direct = operation(f, false, (0, 100), range(100));
    let lists = Lists { extents: direct.lists.extents.to_vec(), segments: Vec::new() };
    let inline = BatchOperation { method: Method::Inline, lists: lists.into(), ..direct.clone() };
    for operations in [vec![direct.clone()], vec![inline, direct]] {
        let (body, payload) = encoded(&operations, BatchFlags::empty());
        let mut header = Header::request(Opcode::Batch, FileHandle(0));
        header.flags = Flags::CHAIN_FORWARD;
        raw.begin(&mut header);
        raw.send(header, &body, &payload);
        assert!(results(&raw.receive().unwrap()).iter().all(|result| result.count == 100));
        region.memory().span().write_from(0, &[3; 100]);
        header.flags |= Flags::REPLAY;
        raw.send(header, &body, &payload);
        let second = raw.receive().unwrap();
        raw.end(&second);
        if second.header.status == Status::OK {
            assert_same(&region.memory().span().to_vec()[..100], &[1; 100], "read again");
        } else {
            assert_eq!(second.header.status, Status::CHAIN_ABORTED);
        }
        let mut last = Header::request(Opcode::Null, FileHandle(0));
        last.flags = Flags::CHAIN_BACK;
        raw.call(last, &[], &[]);
    }
}

// [BATCH-9] [BATCH-21] [SESS-31]
fn batch_within_a_chain_uses_its_saved_handle(on: On) {
    let harness = Harness::start(on);
    let (mut raw, _) = Raw::session(harness.address(), 8);
    let root = raw.mount("mem");
    let f = raw.create(root, b"f");
    raw.call(Header::request(Opcode::Write, f), &write_body(0, 100, None), &bytes(1, 100));
    let region = raw.region(4096, Access::all());
    let range = [region.range().key.0, region.range().offset, 30];
    for (name, opened) in [(&b"f"[..], true), (b"missing", false)] {
        let mut body = vec![0; 8];
        OpenRequest { flags: OpenFlags::READ, mode: 0 }.encode(&mut body);
        let mut open = Header::request(Opcode::Open, root);
        open.flags = Flags::CHAIN_FORWARD | Flags::SAVE_HANDLE;
        raw.begin(&mut open);
        raw.send(open, &body, name);
        let strange = operation(FileHandle(77 << 32), false, (5, 30), range);
        let operations = [operation(CHAIN_HANDLE, false, (5, 30), range), strange];
        let (body, payload) = encoded(&operations, BatchFlags::empty());
        let mut batch = Header::request(Opcode::Batch, CHAIN_HANDLE);
        batch.flags = Flags::CHAIN_BACK | Flags::CHAIN_FORWARD;
        raw.begin(&mut batch);
        raw.send(batch, &body, &payload);
        let mut last = Header::request(Opcode::Null, FileHandle(0));
        last.flags = Flags::CHAIN_BACK;
        raw.begin(&mut last);
        raw.send(last, &[], &[]);
        let open = raw.receive().unwrap();
        assert_eq!(open.header.status == Status::OK, opened);
        raw.end(&open);
        let batch = raw.receive().unwrap();
        match opened {
            true => {
                let results = results(&batch);
                assert_eq!((results[0].count, results[1].status), (30, Status::BAD_HANDLE));
                let found = region.memory().span().to_vec();
                assert_same(&found[..30], &bytes(1, 100)[5..35], "what was read");
            }
            false => assert_eq!(batch.header.status, Status::CHAIN_ABORTED),
        }
        raw.end(&batch);
        let last = raw.receive().unwrap();
        assert_eq!(last.header.status == Status::OK, opened, "an operation that failed ends no chain");
        raw.end(&last);
    }
}
