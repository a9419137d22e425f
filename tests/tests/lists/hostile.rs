//! Lists that no correct client sends: each is answered with a reason, and the session goes on, unless nobody takes the answers.

use dafs_proto::extent::Extent;
use dafs_proto::transport::{Access, PostError};
use dafs_proto::wire::{
    HEADER_SIZE, Header, LIST_MAX, ListFlags, ListReadReply, ListRequest, Method, Opcode, ReadRequest, Sieve,
    Stability, Status, WriteRequest, encode_lists, encode_segments, lists_size,
};
use dafs_tests::harness::{Harness, On};
use dafs_tests::raw::{Message, Raw, read_body, write_body};
use dafs_tests::suite::{bytes, is_alone, resident_size};
use dafs_tests::{on_sockets, on_verbs};

on_verbs! {
    inconsistent_list_is_refused_in_words_and_the_session_continues,
    list_beyond_the_registered_region_moves_nothing_outside_of_it,
}

on_sockets! {
    inconsistent_list_is_refused_in_words_and_the_session_continues,
    list_beyond_the_registered_region_moves_nothing_outside_of_it,
    untaken_replies_of_a_list_end_its_session,
}

fn body(request: &ListRequest) -> Vec<u8> {
    let mut body = vec![0; ListRequest::HEAD_SIZE - HEADER_SIZE];
    request.encode(&mut body);
    body
}

fn payload(extents: &[Extent], segments: &[[u64; 3]]) -> Vec<u8> {
    let mut payload = vec![0; lists_size(extents.len(), segments.len())];
    encode_lists(extents.iter().copied(), segments, &mut payload);
    payload
}

/// A plain read or write of two ranges of ten bytes.
fn plain(opcode: Opcode, ranges: &[[u64; 3]; 2]) -> (Vec<u8>, Vec<u8>) {
    // Both bodies name the number of ranges, and one that counts for a single one only.
    let (mut body, mut payload) = (vec![0; ReadRequest::HEAD_SIZE - HEADER_SIZE], vec![0; 48]);
    let (offset, len, method, segment_count, segment) = (0, 20, Method::Direct, 2, [0; 3]);
    if opcode == Opcode::Read {
        ReadRequest { offset, len, method, segment_count, segment }.encode(&mut body);
    } else {
        body.resize(WriteRequest::HEAD_SIZE - HEADER_SIZE, 0);
        let stability = Stability::Unstable;
        WriteRequest { offset, len, method, stability, segment_count, segment }.encode(&mut body);
    }
    encode_segments(ranges, &mut payload);
    (body, payload)
}

const GOOD: ListRequest = ListRequest {
    len: 20,
    method: Method::Inline,
    stability: Stability::Unstable,
    sieve: Sieve::Auto,
    flags: ListFlags::empty(),
    extent_count: 2,
    segment_count: 0,
};

fn extents(list: &[(u64, u64)]) -> Vec<Extent> {
    list.iter().map(|&(offset, len)| Extent::new(offset, len)).collect()
}

fn words(reply: &Message) -> String {
    String::from_utf8(reply.payload.clone()).unwrap()
}

// [LIST-7] [LIST-1] [LIST-19] [LIST-21]
fn inconsistent_list_is_refused_in_words_and_the_session_continues(on: On) {
    let harness = Harness::start(on);
    let (mut raw, _) = Raw::session(harness.address(), 4);
    let root = raw.mount("mem");
    let file = raw.create(root, b"f");
    raw.call(Header::request(Opcode::Write, file), &write_body(0, 100, None), &bytes(1, 100));
    let two = payload(&extents(&[(0, 10), (50, 10)]), &[]);
    let region = raw.region(4096, Access::all());
    let range = |len: u64| [region.range().key.0, region.range().offset, len];
    let direct = ListRequest { method: Method::Direct, ..GOOD };
    let with_ranges = |lens: &[u64]| {
        let ranges: Vec<[u64; 3]> = lens.iter().map(|len| range(*len)).collect();
        payload(&extents(&[(0, 10), (50, 10)]), &ranges)
    };
    let cases: Vec<(ListRequest, Vec<u8>, &str)> = vec![
        (ListRequest { extent_count: 1_000_000_000, ..GOOD }, two.clone(), "1000000000 extents"),
        (ListRequest { extent_count: u32::MAX, ..GOOD }, two.clone(), "extents"),
        (ListRequest { extent_count: LIST_MAX as u32 + 1, ..GOOD }, two.clone(), "4097 extents"),
        (ListRequest { extent_count: LIST_MAX as u32, ..GOOD }, two.clone(), "the counts say"),
        (ListRequest { extent_count: 3, ..GOOD }, two.clone(), "the counts say"),
        (ListRequest { extent_count: 1, ..GOOD }, two.clone(), "the counts say"),
        (ListRequest { segment_count: 1, ..GOOD }, two.clone(), "do not go with"),
        (ListRequest { segment_count: 1_000_000_000, ..direct }, two.clone(), "1000000000 ranges"),
        (direct, two.clone(), "do not go with"),
        (ListRequest { len: 19, ..GOOD }, two.clone(), "extents of 20 bytes"),
        (ListRequest { len: 21, ..GOOD }, two.clone(), "extents of 20 bytes"),
        (GOOD, payload(&extents(&[(0, 10), (u64::MAX - 5, 10)]), &[]), "beyond the end"),
        (GOOD, payload(&extents(&[(0, 10), (i64::MAX as u64 - 9, 10)]), &[]), "beyond the end"),
        (
            ListRequest { len: u32::MAX, ..GOOD },
            payload(&extents(&[(0, u32::MAX.into()), (0, 0)]), &[]),
            "the limit is",
        ),
        (ListRequest { segment_count: 1, ..direct }, with_ranges(&[19]), "memory of 19 bytes"),
        (ListRequest { segment_count: 2, ..direct }, with_ranges(&[20, u64::MAX]), "memory of"),
        (ListRequest { segment_count: 3, ..direct }, with_ranges(&[u64::MAX, u64::MAX, 22]), "memory of"),
    ];
    for (request, payload, expected) in cases {
        let reply = raw.call(Header::request(Opcode::ReadList, file), &body(&request), &payload);
        assert_eq!(reply.header.status, Status::INVALID, "{request:?}");
        assert!(words(&reply).contains(expected), "{request:?}: {}", words(&reply));
        // The same session goes on.
        let reply = raw.call(Header::request(Opcode::ReadList, file), &body(&GOOD), &two);
        assert_eq!(reply.header.status, Status::OK);
        assert_eq!(ListReadReply::decode(&reply.body).unwrap(), ListReadReply { count: 20, end: None });
        assert_eq!(reply.payload, [&bytes(1, 100)[..10], &bytes(1, 100)[50..60]].concat());
    }
    // A write whose data is a byte short or long.
    for len in [19, 21] {
        let mut payload = two.clone();
        payload.extend(vec![9; len]);
        let reply = raw.call(Header::request(Opcode::WriteList, file), &body(&GOOD), &payload);
        assert_eq!(reply.header.status, Status::INVALID);
    }
    // A list of nothing is no error.
    let nothing = ListRequest { len: 0, extent_count: 0, ..GOOD };
    let reply = raw.call(Header::request(Opcode::ReadList, file), &body(&nothing), &[]);
    assert_eq!(reply.header.status, Status::OK);
    let reply = raw.call(Header::request(Opcode::Read, file), &read_body(0, 100, None), &[]);
    assert_eq!(reply.payload, bytes(1, 100), "the file is as it was");
}

// [PROV-16] [PROV-20] [LIST-22]
fn list_beyond_the_registered_region_moves_nothing_outside_of_it(on: On) {
    let harness = Harness::start(on);
    let other = harness.session();
    let kept = other.mount("mem").unwrap().create("kept").unwrap();
    kept.write_all_at(b"kept", 0).unwrap();
    let request = ListRequest { method: Method::Direct, segment_count: 2, ..GOOD };
    for opcode in [Opcode::ReadList, Opcode::WriteList, Opcode::Read, Opcode::Write] {
        for (offset, key) in [(4091u64, 0u64), (4096, 0), (u64::MAX - 3, 0), (0, 1)] {
            let (mut raw, _) = Raw::session(harness.address(), 4);
            let root = raw.mount("mem");
            let file = raw.create(root, b"f");
            raw.call(Header::request(Opcode::Write, file), &write_body(0, 100, None), &bytes(1, 100));
            let region = raw.region(4096, Access::all());
            region.memory().span().write_from(0, &[7; 4096]);
            let good = [region.range().key.0, region.range().offset, 10];
            let bad = [good[0] ^ key, good[1].wrapping_add(offset), 10];
            let ranges = [good, bad];
            let (body, payload) = match opcode {
                Opcode::Read | Opcode::Write => plain(opcode, &ranges),
                _ => (body(&request), payload(&extents(&[(0, 10), (50, 10)]), &ranges)),
            };
            let mut header = Header::request(opcode, file);
            raw.begin(&mut header);
            raw.send(header, &body, &payload);
            // Mapped memory is refused; elsewhere the access ends the connection, as the provider's contract says.
            if let Some(reply) = raw.receive() {
                assert_eq!(reply.header.status, Status::REMOTE_ACCESS);
                raw.end(&reply);
                let reply = raw.call(Header::request(Opcode::Null, file), &[], &[]);
                assert_eq!(reply.header.status, Status::OK);
            }
            let found = region.memory().span().to_vec();
            assert!(found[10..].iter().all(|byte| *byte == 7), "memory behind the first range");
            let mut found = [0; 4];
            kept.read_exact_at(&mut found, 0).unwrap();
            assert_eq!(&found, b"kept", "another session does not notice");
        }
    }
}

// [LIMIT-8]: a list is asked for again and again in one slot, which costs no credit, and nobody takes the data.
fn untaken_replies_of_a_list_end_its_session(on: On) {
    if !is_alone() {
        return;
    }
    const REPLIES: usize = 40_000;
    let harness = Harness::start(on);
    let other = harness.session();
    let kept = other.mount("mem").unwrap().create("kept").unwrap();
    kept.write_all_at(b"kept", 0).unwrap();
    let before = resident_size(std::process::id());
    let (mut raw, _) = Raw::session(harness.address(), 4);
    let root = raw.mount("mem");
    let file = raw.create(root, b"f");
    raw.call(Header::request(Opcode::Write, file), &write_body(0, 8000, None), &bytes(1, 8000));
    let (body, list) =
        (body(&ListRequest { len: 8000, ..GOOD }), payload(&extents(&[(0, 4000), (4000, 4000)]), &[]));
    let mut header = Header::request(Opcode::ReadList, file);
    raw.begin(&mut header);
    (header.head_len, header.payload_len) = ((HEADER_SIZE + body.len()) as u16, list.len() as u32);
    let mut head = vec![0; HEADER_SIZE];
    header.encode(&mut head);
    head.extend(&body);
    let mut sent = 0;
    while sent < REPLIES {
        match raw.endpoint.send_copy(&head, &list) {
            Ok(()) => sent += 1,
            // Who does not receive does not notice that the connection has ended.
            Err(PostError::Full) if other.statistics().unwrap().sessions > 1 => {}
            Err(_) => break,
        }
        if raw.endpoint.flush().is_err() {
            break;
        }
    }
    let grown = resident_size(std::process::id()).saturating_sub(before);
    // Both ends are this process; all replies would be 320 MB.
    assert!(grown < 128 << 20, "{grown} bytes");
    let mut taken = 0;
    while taken < REPLIES && raw.receive().is_some() {
        taken += 1;
    }
    assert!(taken < REPLIES, "the session goes on");
    let mut found = [0; 4];
    kept.read_exact_at(&mut found, 0).unwrap();
    assert_eq!(&found, b"kept", "another session goes on");
}
