//! Clients by hand that misuse what they were lent.

use dafs_client::{Stability, Status};
use dafs_proto::transport::{Access, LocalSegments, MemoryRef, OpToken, RegionKey, RemoteRange};
use dafs_proto::wire::{
    EAGER_BUFFER_ROOM, EAGER_REQUEST_HEAD_SIZE, EagerBufferTerms, FileHandle, HEADER_SIZE, Header, Method,
    Opcode, ReadRequest, WriteRequest, decode_segments, encode_segments,
};
use dafs_tests::faulty::{Fault, Kind};
use dafs_tests::harness::{Harness, On};
use dafs_tests::on_each_provider;
use dafs_tests::raw::{Message, Raw, write_body};
use dafs_tests::suite::{assert_same, bytes};

use super::SIZE;

on_each_provider! {
    immediate_without_an_eager_buffer_ends_the_session_with_a_reason,
    frame_that_is_no_write_ends_the_session_with_a_reason,
    write_beyond_what_was_lent_ends_the_connection,
    request_that_names_no_eager_buffer_is_refused,
    eager_buffers_end_with_their_connection,
    eager_buffers_asked_for_again_replace_the_first,
    read_whose_eager_buffer_is_replaced_meanwhile_is_refused,
    eager_buffers_with_buffers_of_another_size_are_refused,
    eager_buffer_that_was_lent_to_be_written_is_not_read,
}

/// A client by hand, with eager buffers and a file.
struct Lent {
    raw: Raw,
    handle: FileHandle,
    memory: MemoryRef,
    remote: Vec<RemoteRange>,
    _region: dafs_proto::transport::Region,
}

impl Lent {
    /// `None`: the provider reaches no memory of the server.
    fn new(harness: &Harness, count: u16) -> Option<Self> {
        let (mut raw, _) = Raw::session(harness.address(), 8);
        let root = raw.mount("mem");
        let handle = raw.create(root, b"f");
        let (region, memory, reply) = ask(&mut raw, count);
        let terms = EagerBufferTerms::decode(&reply.body).unwrap();
        let ranges = decode_segments(&reply.payload, terms.count).unwrap();
        let remote: Vec<_> = ranges
            .iter()
            .map(|&[key, offset, len]| RemoteRange { key: RegionKey(key), offset, len })
            .collect();
        (terms.count > 0).then_some(Self { raw, handle, memory, remote, _region: region })
    }

    /// Writes bytes into an eager buffer, and sends an immediate.
    fn put(&mut self, at: u64, bytes: &[u8], eager_buffer: usize, immediate: Option<u32>) {
        let from = self.memory.slice(0, bytes.len()).unwrap();
        from.span().write_from(0, bytes);
        let range = self.remote[eager_buffer];
        // Not by `slice`, which keeps within what was lent.
        let to = RemoteRange { key: range.key, offset: range.offset + at, len: bytes.len() as u64 };
        let endpoint = &mut self.raw.endpoint;
        endpoint.rdma_write(OpToken(1), LocalSegments::from_iter([from]), to, immediate).unwrap();
        let _ = endpoint.flush();
    }

    fn frame(&mut self, eager_buffer: u32, method: Method, opcode: Opcode, len: u32) -> Vec<u8> {
        let mut header = Header::request(opcode, self.handle);
        self.raw.begin(&mut header);
        header.head_len = EAGER_REQUEST_HEAD_SIZE as u16;
        header.payload_len = len;
        let mut frame = vec![0; EAGER_REQUEST_HEAD_SIZE];
        header.encode(&mut frame);
        let request = WriteRequest {
            offset: 0,
            len,
            method,
            stability: Stability::Unstable,
            segment_count: 0,
            segment: [eager_buffer.into(), 0, 0],
        };
        request.encode(&mut frame[HEADER_SIZE..]);
        frame.extend(bytes(5, len as usize));
        frame
    }
}

fn ask(raw: &mut Raw, count: u16) -> (dafs_proto::transport::Region, MemoryRef, Message) {
    let terms = EagerBufferTerms { count, reads: false, size: SIZE };
    let memory = MemoryRef::new(raw.domain.allocate(usize::from(count) * terms.buffer_size()).unwrap());
    let region = raw.domain.register(memory.clone(), Access::REMOTE_WRITE).unwrap();
    let part = |eager_buffer: u16| {
        let begin = usize::from(eager_buffer) * terms.buffer_size();
        let range = region.range().slice(begin as u64, terms.buffer_size() as u64).unwrap();
        [range.key.0, range.offset, range.len]
    };
    let ranges: Vec<_> = (0..count).map(part).collect();
    let mut body = [0; EagerBufferTerms::HEAD_SIZE - HEADER_SIZE];
    terms.encode(&mut body);
    let mut payload = vec![0; terms.payload_size()];
    encode_segments(&ranges, &mut payload);
    let reply = raw.call(Header::request(Opcode::EagerBuffers, FileHandle(0)), &body, &payload);
    assert_eq!(reply.header.status, Status::OK);
    let granted = EagerBufferTerms::decode(&reply.body).unwrap();
    assert!(granted.count <= count && granted.size <= SIZE, "more than was asked for: {granted:?}");
    (region, memory, reply)
}

/// Somebody else goes on.
fn serves_others(harness: &Harness) {
    let session = harness.session();
    let file = session.mount("mem").unwrap().create("other").unwrap();
    file.write_all_at(&bytes(9, 30_000), 0).unwrap();
    let mut found = vec![0; 30_000];
    file.read_exact_at(&mut found, 0).unwrap();
    assert_same(&found, &bytes(9, 30_000), "another client's data");
    while session.statistics().unwrap().eager_buffers_size > 0 {}
}

const FRAME_AT: u64 = (EAGER_BUFFER_ROOM - EAGER_REQUEST_HEAD_SIZE) as u64;

// [WIRE-22]
fn immediate_without_an_eager_buffer_ends_the_session_with_a_reason(on: On) {
    let harness = Harness::start(on);
    for immediate in [2, 3, 31, 32, u32::MAX] {
        let mut lent = Lent::new(&harness, 2).unwrap();
        lent.put(0, &[1; 200], 0, Some(immediate));
        let reason = lent.raw.ending().unwrap_or_default();
        assert!(reason.contains("names no frame"), "immediate {immediate}: {reason}");
    }
    serves_others(&harness);
}

// [WIRE-21] [WIRE-22]
fn frame_that_is_no_write_ends_the_session_with_a_reason(on: On) {
    let harness = Harness::start(on);
    // A frame as it should be, first: the others differ from it in one thing.
    let mut lent = Lent::new(&harness, 2).unwrap();
    let frame = lent.frame(1, Method::Eager, Opcode::Write, 300);
    lent.put(FRAME_AT, &frame, 1, Some(1));
    let reply = lent.raw.receive().unwrap();
    assert_eq!((reply.header.status, reply.header.opcode), (Status::OK, Opcode::Write));
    drop(lent);
    type Spoil = fn(&mut Lent) -> (Vec<u8>, u64, u32);
    let spoilt: [(&str, Spoil); 7] = [
        ("a head that is cut", |lent| {
            (
                lent.frame(1, Method::Eager, Opcode::Write, 0)[..EAGER_REQUEST_HEAD_SIZE - 1].to_vec(),
                FRAME_AT,
                1,
            )
        }),
        ("a frame in another eager buffer", |lent| {
            (lent.frame(1, Method::Eager, Opcode::Write, 300), FRAME_AT, 0)
        }),
        ("a frame of the method client-initiated", |lent| {
            (lent.frame(1, Method::ClientInitiated, Opcode::Write, 300), FRAME_AT, 1)
        }),
        ("a frame that is another operation", |lent| {
            (lent.frame(1, Method::Eager, Opcode::Commit, 300), FRAME_AT, 1)
        }),
        ("fewer bytes than the head says", |lent| {
            let mut frame = lent.frame(1, Method::Eager, Opcode::Write, 300);
            frame.pop();
            (frame, FRAME_AT, 1)
        }),
        ("rubbish", |_| (vec![0xa5; 380], FRAME_AT, 1)),
        ("nothing at the place of the frame", |lent| {
            (lent.frame(1, Method::Eager, Opcode::Write, 300), 0, 1)
        }),
    ];
    for (what, spoil) in spoilt {
        let mut lent = Lent::new(&harness, 2).unwrap();
        let (frame, at, immediate) = spoil(&mut lent);
        lent.put(at, &frame, 1, Some(immediate));
        assert!(lent.raw.ending().is_some(), "{what}: the session ends, and the client is told why");
    }
    serves_others(&harness);
}

// [SESS-62] [PROV-16]
fn write_beyond_what_was_lent_ends_the_connection(on: On) {
    let harness = Harness::start(on);
    let end = EAGER_BUFFER_ROOM as u64 + u64::from(SIZE);
    for (at, len) in [(end - 1, 2), (end, 1), (1 << 40, 8), (u64::MAX / 2, 1)] {
        let mut lent = Lent::new(&harness, 2).unwrap();
        lent.put(at, &vec![1; len], 0, None);
        assert_eq!(lent.raw.ending(), None, "{len} bytes at {at}");
    }
    serves_others(&harness);
}

// [WIRE-47]
fn request_that_names_no_eager_buffer_is_refused(on: On) {
    let harness = Harness::start(on);
    let mut lent = Lent::new(&harness, 2).unwrap();
    let handle = lent.handle;
    for method in [Method::Eager, Method::ClientInitiated] {
        for (eager_buffer, len) in [(2, 1), (u64::MAX, 1), (0, SIZE + 1)] {
            let mut body = vec![0; ReadRequest::HEAD_SIZE - HEADER_SIZE];
            let request =
                ReadRequest { offset: 0, len, method, segment_count: 0, segment: [eager_buffer, 0, 0] };
            request.encode(&mut body);
            let reply = lent.raw.call(Header::request(Opcode::Read, handle), &body, &[]);
            assert_eq!(
                reply.header.status,
                Status::REMOTE_ACCESS,
                "{method:?}, eager buffer {eager_buffer}, {len} bytes"
            );
        }
    }
    // Without eager buffers at all.
    let (mut raw, _) = Raw::session(harness.address(), 8);
    let root = raw.mount("mem");
    let handle = raw.create(root, b"g");
    let mut body = vec![0; ReadRequest::HEAD_SIZE - HEADER_SIZE];
    ReadRequest { offset: 0, len: 1, method: Method::ClientInitiated, segment_count: 0, segment: [0; 3] }
        .encode(&mut body);
    let reply = raw.call(Header::request(Opcode::Read, handle), &body, &[]);
    assert_eq!(reply.header.status, Status::REMOTE_ACCESS);
}

// [SESS-62] [SESS-106]
fn eager_buffers_end_with_their_connection(on: On) {
    let harness = Harness::start(on);
    let old = Lent::new(&harness, 2).unwrap().remote;
    let mut other = Lent::new(&harness, 1).unwrap();
    // The first client's keys, on another's connection.
    other.remote = old;
    other.put(0, &[1; 8], 0, None);
    assert_eq!(other.raw.ending(), None);
    serves_others(&harness);
}

// [SESS-60] [SESS-106] [WIRE-45]
fn eager_buffers_asked_for_again_replace_the_first(on: On) {
    let harness = Harness::start(on);
    let mut lent = Lent::new(&harness, 2).unwrap();
    let watcher = harness.session();
    let before = watcher.statistics().unwrap().eager_buffers_size;
    let (_region, _memory, reply) = ask(&mut lent.raw, 2);
    assert_eq!(EagerBufferTerms::decode(&reply.body).unwrap().count, 2);
    assert_eq!(watcher.statistics().unwrap().eager_buffers_size, before, "the first are given back");
    lent.put(0, &[1; 8], 0, None);
    assert_eq!(lent.raw.ending(), None, "what was lent before is out of reach");
}

// [WIRE-47]
fn read_whose_eager_buffer_is_replaced_meanwhile_is_refused(on: On) {
    let (harness, faults) = Harness::start_faulty(on, |_| {});
    for method in [Method::Eager, Method::ClientInitiated] {
        // Others in their place, and fewer.
        for count in [2, 1] {
            let mut lent = Lent::new(&harness, 2).unwrap();
            let written = lent.raw.call(
                Header::request(Opcode::Write, lent.handle),
                &write_body(0, 300, None),
                &bytes(5, 300),
            );
            assert_eq!(written.header.status, Status::OK);
            faults.next(Kind::Read, Fault::Hold, 1);
            let mut body = vec![0; ReadRequest::HEAD_SIZE - HEADER_SIZE];
            ReadRequest { offset: 0, len: 300, method, segment_count: 0, segment: [1, 0, 0] }
                .encode(&mut body);
            let mut header = Header::request(Opcode::Read, lent.handle);
            lent.raw.begin(&mut header);
            lent.raw.send(header, &body, &[]);
            faults.wait_for_held(1);
            let _others = ask(&mut lent.raw, count);
            faults.release();
            let reply = lent.raw.receive().unwrap();
            lent.raw.end(&reply);
            let answered = (reply.header.opcode, reply.header.status);
            assert_eq!(answered, (Opcode::Read, Status::REMOTE_ACCESS), "{method:?} {count}");
        }
    }
}

// [WIRE-46]
fn eager_buffers_with_buffers_of_another_size_are_refused(on: On) {
    let harness = Harness::start(on);
    let (mut raw, _) = Raw::session(harness.address(), 8);
    let terms = EagerBufferTerms { count: 1, reads: false, size: SIZE };
    let region = raw.region(2 * terms.buffer_size(), Access::REMOTE_WRITE);
    let range = region.range();
    let mut body = [0; EagerBufferTerms::HEAD_SIZE - HEADER_SIZE];
    terms.encode(&mut body);
    let exact = terms.buffer_size() as u64;
    for (len, expected) in [
        (exact - 1, Status::INVALID),
        (exact + 1, Status::INVALID),
        (0, Status::INVALID),
        (exact, Status::OK),
    ] {
        let mut payload = vec![0; terms.payload_size()];
        encode_segments(&[[range.key.0, range.offset, len]], &mut payload);
        let reply = raw.call(Header::request(Opcode::EagerBuffers, FileHandle(0)), &body, &payload);
        assert_eq!(reply.header.status, expected, "{len} bytes");
    }
}

// [SESS-105]
fn eager_buffer_that_was_lent_to_be_written_is_not_read(on: On) {
    let harness = Harness::start(on);
    let mut lent = Lent::new(&harness, 1).unwrap();
    let into = lent.memory.slice(0, 8).unwrap();
    let from = RemoteRange { len: 8, ..lent.remote[0] };
    lent.raw.endpoint.rdma_read(OpToken(1), LocalSegments::from_iter([into]), from).unwrap();
    let _ = lent.raw.endpoint.flush();
    assert_eq!(lent.raw.ending(), None, "the connection ends");
    serves_others(&harness);
}
