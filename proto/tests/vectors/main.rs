//! The golden messages of `spec/vectors/`: what is encoded today is what was written down, and decodes to the same; what is to be
//! refused is refused.
#![allow(
    clippy::unwrap_used,
    clippy::cast_possible_truncation,
    reason = "all of this is test code, helpers included"
)]

mod decode;
mod explained;
mod messages;
mod pages;
mod refused;
mod second_session;
mod session;
mod views;

use dafs_proto::extent::Extent;
use dafs_proto::wire::{
    Attributes, BatchFlags, BatchLimits, BatchNotice, BatchOperation, BatchReply, BatchRequest, BatchResult,
    CHAIN_HANDLE, CommitRequest, EagerBufferTerms, FileHandle, FileKind, Flags, HEADER_SIZE, Header,
    ListFlags, ListReadReply, ListRequest, Lists, Method, Opcode, OpenFlags, OpenRequest, ReadReply,
    ReadRequest, ReaddirRequest, ShareReply, ShareRequest, Sieve, Slot, Stability, Status, Timestamp, Token,
    TwoNames, Verifier, WriteReply, WriteRequest, decode_batch, decode_batch_results, decode_lists,
    decode_message_pack, decode_noticed_results, decode_segments, encode_lists, encode_message_pack,
    encode_noticed_result, encode_segments, lists_size,
};

const VECTORS: &str = include_str!("../../../spec/vectors/messages.txt");

/// `name: hex` lines; everything else is prose.
fn vector(name: &str) -> Vec<u8> {
    let line = VECTORS
        .lines()
        .find_map(|line| line.strip_prefix(name)?.strip_prefix(": "))
        .unwrap_or_else(|| panic!("spec/vectors/messages.txt has no vector {name:?}"));
    from_hex(line)
}

fn from_hex(line: &str) -> Vec<u8> {
    let digits: Vec<u8> = line.bytes().filter(u8::is_ascii_hexdigit).collect();
    digits.chunks(2).map(|pair| u8::from_str_radix(std::str::from_utf8(pair).unwrap(), 16).unwrap()).collect()
}

/// Encoded into memory that had something else before.
fn head(header: Header, body: impl FnOnce(&mut [u8]), body_len: usize) -> Vec<u8> {
    let mut head = vec![0xa5; HEADER_SIZE + body_len];
    let head_len = u16::try_from(head.len()).unwrap();
    Header { head_len, ..header }.encode(&mut head);
    body(&mut head[HEADER_SIZE..]);
    head
}

fn check(name: &str, encoded: &[u8], payload_len: u32) {
    let expected = vector(name);
    assert_eq!(hex(encoded), hex(&expected), "{name}");
    let (header, _) = Header::decode(&expected, payload_len).unwrap();
    assert_eq!(usize::from(header.head_len), expected.len(), "{name}");
}

fn hex(bytes: &[u8]) -> String {
    bytes.iter().map(|byte| format!("{byte:02x}")).collect()
}

fn request(opcode: Opcode) -> Header {
    Header {
        slot: Slot(3),
        sequence: 0x0102_0304,
        credits: 16,
        ..Header::request(opcode, FileHandle(0x1_0000_0002))
    }
}

// [WIRE-1]
#[test]
fn vector_null_request() {
    check("null request", &head(request(Opcode::Null), |_| {}, 0), 0);
}

#[test]
fn vector_read_direct_request() {
    let body = ReadRequest {
        offset: 0x1000,
        len: 65536,
        method: Method::Direct,
        segment_count: 1,
        segment: [0xaabb_ccdd_0011_2233, 0x40, 65536],
    };
    let encoded = head(request(Opcode::Read), |bytes| body.encode(bytes), 40);
    check("read direct request", &encoded, 0);
    assert_eq!(ReadRequest::decode(&vector("read direct request")[HEADER_SIZE..]), Ok(body));
}

#[test]
fn vector_read_reply() {
    let body = ReadReply { count: 5, end_of_file: true };
    let header = Header { payload_len: 5, credits: 64, ..request(Opcode::Read).reply(Status::OK) };
    check("read reply", &head(header, |bytes| body.encode(bytes), 8), 5);
    assert_eq!(ReadReply::decode(&vector("read reply")[HEADER_SIZE..]), Ok(body));
}

#[test]
fn vector_write_inline_request() {
    let body = WriteRequest {
        offset: 7,
        len: 3,
        method: Method::Inline,
        stability: Stability::FileSync,
        segment_count: 0,
        segment: [0; 3],
    };
    let header = Header { payload_len: 3, deadline_ms: 250, ..request(Opcode::Write) };
    check("write inline request", &head(header, |bytes| body.encode(bytes), 40), 3);
    assert_eq!(WriteRequest::decode(&vector("write inline request")[HEADER_SIZE..]), Ok(body));
}

fn check_list(name: &str, opcode: Opcode, body: ListRequest, lists: &Lists) {
    let mut payload = vec![0; lists_size(lists.extents.len(), lists.segments.len())];
    encode_lists(lists.extents.iter().copied(), &lists.segments, &mut payload);
    assert_eq!(hex(&payload), hex(&vector(&format!("{name} payload"))));
    let payload_len = u32::try_from(payload.len()).unwrap();
    let name = &format!("{name} request");
    let header = Header { payload_len, ..request(opcode) };
    check(name, &head(header, |bytes| body.encode(bytes), 16), payload_len);
    assert_eq!(ListRequest::decode(&vector(name)[HEADER_SIZE..]), Ok(body));
    assert_eq!(decode_lists(&payload, &body, 0).as_ref(), Ok(lists));
    for len in 0..payload.len() {
        assert!(decode_lists(&payload[..len], &body, 0).is_err(), "{len} bytes");
    }
}

// [WIRE-10]
#[test]
fn vector_list_requests() {
    let body = ListRequest {
        len: 8,
        method: Method::Inline,
        stability: Stability::Unstable,
        sieve: Sieve::Auto,
        flags: ListFlags::default(),
        extent_count: 2,
        segment_count: 0,
    };
    let mut lists = Lists { extents: vec![Extent::new(4096, 5), Extent::new(16, 3)], segments: vec![] };
    check_list("list read", Opcode::ReadList, body, &lists);
    lists.segments.push([0xaabb_ccdd_0011_2233, 0x40, 8]);
    let body = ListRequest {
        method: Method::Direct,
        stability: Stability::DataSync,
        sieve: Sieve::Off,
        flags: ListFlags::default(),
        segment_count: 1,
        ..body
    };
    check_list("list write", Opcode::WriteList, body, &lists);
}

#[test]
fn vector_list_read_reply() {
    let body = ListReadReply { count: 7, end: Some(4100) };
    let encoded = head(request(Opcode::ReadList).reply(Status::OK), |bytes| body.encode(bytes), 16);
    check("list read reply", &encoded, 0);
    assert_eq!(ListReadReply::decode(&vector("list read reply")[HEADER_SIZE..]), Ok(body));
}

// [BATCH-3]
#[test]
fn vector_batch() {
    let lists = |offset, len| Lists {
        extents: vec![Extent::new(offset, len)],
        segments: vec![[0xaabb_ccdd_0011_2233, 0x40, len]],
    };
    let write = BatchOperation {
        handle: FileHandle(0x1_0000_0002),
        write: true,
        method: Method::Direct,
        stability: Stability::DataSync,
        lists: lists(16, 3).into(),
    };
    let read = BatchOperation {
        handle: CHAIN_HANDLE,
        write: false,
        method: Method::Direct,
        stability: Stability::Unstable,
        lists: lists(4096, 5).into(),
    };
    let mut payload = Vec::new();
    write.encode(&mut payload);
    read.encode(&mut payload);
    assert_eq!(hex(&payload), hex(&vector("batch payload")));
    let flags = BatchFlags::NOTIFY;
    let body = BatchRequest { operations: 2, flags, window_us: 1000, completions: 8, data: 0 };
    let payload_len = u32::try_from(payload.len()).unwrap();
    let header = Header { payload_len, ..request(Opcode::Batch) };
    check("batch request", &head(header, |bytes| body.encode(bytes), 24), payload_len);
    assert_eq!(BatchRequest::decode(&vector("batch request")[HEADER_SIZE..]), Ok(body));
    let limits = BatchLimits { len_max: 8, reply_max: 32 };
    assert_eq!(decode_batch(&payload, &body, &limits), Ok(vec![write, read]));

    let results = [
        BatchResult { status: Status::OK, count: 3, value: 0x1122_3344_5566_7788 },
        BatchResult { status: Status::OK, count: 4, value: 4100 },
    ];
    let mut payload = vec![0; 32];
    results[0].encode(&mut payload);
    results[1].encode(&mut payload[16..]);
    assert_eq!(hex(&payload), hex(&vector("batch reply payload")));
    assert_eq!(decode_batch_results(&payload, 2).as_deref(), Ok(&results[..]));
    let header = Header { payload_len: 32, ..request(Opcode::Batch).reply(Status::OK) };
    let body = BatchReply { operations: 2, data: 0 };
    check("batch reply", &head(header, |bytes| body.encode(bytes), 8), 32);

    let notice = BatchNotice { slot: 3, sequence: 0x0102_0304, count: 1 };
    let mut payload = Vec::new();
    encode_noticed_result(1, &results[1], &mut payload);
    assert_eq!(hex(&payload), hex(&vector("batch notice payload")));
    let header = Header { payload_len: 24, ..Header::callback(Opcode::BatchDone, 5) };
    check("batch notice", &head(header, |bytes| notice.encode(bytes), 16), 24);
    assert_eq!(BatchNotice::decode(&vector("batch notice")[HEADER_SIZE..]), Ok(notice));
    assert_eq!(decode_noticed_results(&payload, &notice, 2), Ok(vec![(1, results[1])]));
}

// [BATCH-10]
#[test]
fn vector_batch_inline() {
    let operation = |write, offset, len| BatchOperation {
        handle: FileHandle(0x1_0000_0002),
        write,
        method: Method::Inline,
        stability: Stability::Unstable,
        lists: Lists { extents: vec![Extent::new(offset, len)], segments: Vec::new() }.into(),
    };
    let operations = vec![operation(true, 16, 3), operation(false, 4096, 5), operation(true, 32, 2)];
    let mut payload = Vec::new();
    operations.iter().for_each(|operation| operation.encode(&mut payload));
    let described = payload.len();
    payload.extend(b"onetw");
    assert_eq!(hex(&payload), hex(&vector("inline batch payload")));
    let body = BatchRequest { operations: 3, data: 5, ..BatchRequest::default() };
    let payload_len = u32::try_from(payload.len()).unwrap();
    let header = Header { payload_len, ..request(Opcode::Batch) };
    check("inline batch request", &head(header, |bytes| body.encode(bytes), 24), payload_len);
    assert_eq!(BatchRequest::decode(&vector("inline batch request")[HEADER_SIZE..]), Ok(body));
    assert_eq!(body.described_len(payload.len()), Ok(described));
    let limits = BatchLimits { len_max: 10, reply_max: 3 * 16 + 5 };
    assert_eq!(decode_batch(&payload[..described], &body, &limits), Ok(operations));

    let header = Header { payload_len: 52, ..request(Opcode::Batch).reply(Status::OK) };
    let body = BatchReply { operations: 3, data: 4 };
    check("inline batch reply", &head(header, |bytes| body.encode(bytes), 8), 52);
    assert_eq!(BatchReply::decode(&vector("inline batch reply")[HEADER_SIZE..]), Ok(body));
    let results = [(3, 0x1122_3344_5566_7788), (4, 4100), (2, 0x1122_3344_5566_7788)]
        .map(|(count, value)| BatchResult { status: Status::OK, count, value });
    let payload = vector("inline batch reply payload");
    assert_eq!(decode_batch_results(&payload[..48], 3).as_deref(), Ok(&results[..]));
    assert_eq!(&payload[48..], b"four");
}

#[test]
fn vector_write_reply() {
    let body = WriteReply {
        offset: 7,
        count: 3,
        stability: Stability::Unstable,
        verifier: Verifier(0x1122_3344_5566_7788),
    };
    let encoded = head(request(Opcode::Append).reply(Status::OK), |bytes| body.encode(bytes), 24);
    check("append reply", &encoded, 0);
}

// [WIRE-23] Of the header and of the body.
#[test]
fn vector_commit_request() {
    let body = CommitRequest { offset: 0, len: 0, stability: Stability::DataSync };
    check("commit request", &head(request(Opcode::Commit), |bytes| body.encode(bytes), 24), 0);
}

#[test]
fn vector_open_in_a_chain() {
    let body = OpenRequest { flags: OpenFlags::READ | OpenFlags::WRITE | OpenFlags::CREATE, mode: 0o644 };
    let flags = Flags::CHAIN_FORWARD | Flags::SAVE_HANDLE;
    let header = Header { flags, payload_len: 5, ..request(Opcode::Open) };
    check("open request that begins a chain", &head(header, |bytes| body.encode(bytes), 8), 5);
}

#[test]
fn vector_share() {
    let body = ShareRequest { rights: OpenFlags::READ | OpenFlags::WRITE, ttl_ms: 5000 };
    check("share request", &head(request(Opcode::Share), |bytes| body.encode(bytes), 8), 0);
    assert_eq!(ShareRequest::decode(&vector("share request")[HEADER_SIZE..]), Ok(body));
    let token: [u8; 32] = std::array::from_fn(|place| u8::try_from(place).unwrap());
    assert_eq!(vector("share reply payload"), token);
    let header = Header { payload_len: 32, ..request(Opcode::Share).reply(Status::OK) };
    let body = ShareReply { ttl_ms: 5000 };
    check("share reply", &head(header, |bytes| body.encode(bytes), 8), 32);
    assert_eq!(ShareReply::decode(&vector("share reply")[HEADER_SIZE..]), Ok(body));
    assert_eq!(Token::decode(&vector("share reply payload")), Ok(Token::from(token)));
}

#[test]
fn vector_open_by_token() {
    let header = Header { payload_len: 32, ..request(Opcode::OpenToken) };
    check("open by token request", &head(header, |_| {}, 0), 32);
    let time = Timestamp { seconds: 1, nanoseconds: 2 };
    let attributes = Attributes {
        kind: FileKind::File,
        mode: 0o644,
        links: 1,
        uid: 1000,
        gid: 100,
        size: 5,
        allocated: 4096,
        file_id: 3,
        fs_id: 4,
        atime: time,
        mtime: time,
        ctime: time,
        device: 0,
        generation: 9,
        change: 11,
    };
    let payload = vector("open by token reply payload");
    assert_eq!(hex(&encode_message_pack(&attributes)), hex(&payload));
    assert_eq!(decode_message_pack("attributes", &payload), Ok(attributes));
    let payload_len = u32::try_from(payload.len()).unwrap();
    let reply = request(Opcode::OpenToken).reply(Status::OK);
    let header = Header { payload_len, handle: FileHandle(0x3_0000_0004), ..reply };
    check("open by token reply", &head(header, |_| {}, 0), payload_len);
}

#[test]
fn vector_readdir_request() {
    let body = ReaddirRequest { cookie: 9, len: 4096, segment: [0; 3], attributes: true };
    check("readdir request", &head(request(Opcode::Readdir), |bytes| body.encode(bytes), 40), 0);
}

#[test]
fn vector_two_names() {
    let names = TwoNames { first: b"old/\xff", second: b"new" };
    let mut payload = vec![0; names.size()];
    names.encode(&mut payload);
    assert_eq!(hex(&payload), hex(&vector("rename payload")));
    assert_eq!(TwoNames::decode(&vector("rename payload")), Ok(names));
}

#[test]
fn vector_error_reply() {
    let header = request(Opcode::Open).reply(Status::NOT_FOUND);
    check("error reply", &head(header, |_| {}, 0), 0);
}

// [WIRE-2] [WIRE-25] every vector cut short anywhere, or with a byte too many, is refused
#[test]
fn vector_cut_short_or_too_long_is_refused() {
    let read = vector("read direct request");
    for len in 0..40 {
        assert!(ReadRequest::decode(&read[HEADER_SIZE..HEADER_SIZE + len]).is_err(), "{len} bytes");
    }
    let mut long = read[HEADER_SIZE..].to_vec();
    long.push(0);
    assert!(ReadRequest::decode(&long).is_err());
    let payload = vector("rename payload");
    for len in 0..payload.len() {
        assert!(TwoNames::decode(&payload[..len]).is_err(), "{len} bytes");
    }
}

// [WIRE-4] [ERR-4] unknown opcodes and flags are refused, unknown statuses kept
#[test]
fn vector_with_unknown_values_is_refused_or_kept() {
    let mut head = vector("null request");
    head[1] = 0x70;
    assert!(Header::decode(&head, 0).is_err());
    let mut head = vector("null request");
    head[3] = 0x80;
    assert!(Header::decode(&head, 0).is_err());
    let mut head = vector("error reply");
    head[21] = 0x77;
    assert_eq!(Header::decode(&head, 0).unwrap().0.status.value(), 0x7702);
}

#[test]
fn vector_eager_buffers() {
    let size = 65_536;
    let asked = EagerBufferTerms { count: 2, reads: true, size };
    let granted = EagerBufferTerms { count: 1, ..asked };
    let buffer = u64::try_from(asked.buffer_size()).unwrap();
    let header = request(Opcode::EagerBuffers);
    let reply = Header { credits: 2, ..header.reply(Status::OK) };
    let ours = [[0xaabb_ccdd_0011_2233, 0x40, buffer], [0xaabb_ccdd_0011_2234, 0x80, buffer]];
    let theirs = [[0x1234_5678, 0x10_0000, buffer]];
    for (name, header, terms, ranges) in [
        ("eager buffers request", header, asked, &ours[..]),
        ("eager buffers reply", reply, granted, &theirs[..]),
    ] {
        let mut payload = vec![0; terms.payload_size()];
        encode_segments(ranges, &mut payload);
        let payload_len = u32::try_from(payload.len()).unwrap();
        let header = Header { payload_len, ..header };
        check(name, &head(header, |bytes| terms.encode(bytes), 8), payload_len);
        let expected = vector(&format!("{name} payload"));
        assert_eq!(hex(&payload), hex(&expected), "{name}");
        assert_eq!(EagerBufferTerms::decode(&vector(name)[HEADER_SIZE..]), Ok(terms));
        assert_eq!(decode_segments(&expected, terms.count).unwrap().as_slice(), ranges, "{name}");
    }
}
