//! Views that no correct client describes, and requests that it does not send: each is answered with a reason, and the session goes on.

use dafs_client::Datatype;
use dafs_proto::transport::{Access, Region};
use dafs_proto::view::VIEW_SEGMENTS_MAX;
use dafs_proto::wire::{
    FileHandle, HEADER_SIZE, Header, ListFlags, ListReadReply, Method, Opcode, Sieve, Stability, Status,
    VIEW_DESCRIPTION_SIZE_MAX, ViewDropRequest, ViewRequest, ViewSetRequest, encode_datatype,
    encode_segments,
};
use dafs_tests::faulty::{Fault, Faults, Kind};
use dafs_tests::harness::{Harness, On};
use dafs_tests::on_each_provider;
use dafs_tests::raw::{Message, Raw, write_body};
use dafs_tests::suite::{assert_same, bytes};

on_each_provider! {
    description_that_is_no_view_is_refused_with_words,
    request_that_a_view_does_not_have_is_refused_with_words,
    view_that_is_given_back_is_gone,
    view_given_back_in_flight_stays_for_its_request,
    session_that_ends_with_a_view_in_flight_leaves_the_server_whole,
}

pub(super) fn set(raw: &mut Raw, request: ViewSetRequest, part: &[u8]) -> Message {
    let mut body = [0; ViewSetRequest::HEAD_SIZE - HEADER_SIZE];
    request.encode(&mut body);
    raw.call(Header::request(Opcode::ViewSet, FileHandle(0)), &body, part)
}

pub(super) fn set_all(raw: &mut Raw, view: u32, datatype: &Datatype) -> Status {
    let description = encode_datatype(datatype);
    let description_len = description.len() as u32;
    set(raw, ViewSetRequest { view, description_len, offset: 0 }, &description).header.status
}

fn words(reply: &Message) -> String {
    String::from_utf8(reply.payload.clone()).unwrap()
}

pub(super) const GOOD: ViewRequest = ViewRequest {
    displacement: 10,
    place: 0,
    group: 0,
    group_size: 0,
    view: 1,
    len: 20,
    method: Method::Inline,
    stability: Stability::Unstable,
    sieve: Sieve::Auto,
    flags: ListFlags::empty(),
    segment_count: 0,
};

fn read(raw: &mut Raw, file: FileHandle, request: &ViewRequest, payload: &[u8]) -> Message {
    let mut body = [0; ViewRequest::HEAD_SIZE - HEADER_SIZE];
    request.encode(&mut body);
    raw.call(Header::request(Opcode::ReadView, file), &body, payload)
}

fn check_good(raw: &mut Raw, file: FileHandle) {
    let reply = read(raw, file, &GOOD, &[]);
    assert_eq!(reply.header.status, Status::OK);
    assert_eq!(ListReadReply::decode(&reply.body).unwrap(), ListReadReply { count: 20, end: None });
    let data = bytes(1, 200);
    let expected: Vec<u8> = (0..10).flat_map(|tile| data[10 + 5 * tile..12 + 5 * tile].to_vec()).collect();
    assert_eq!(reply.payload, expected);
}

/// A file of 200 bytes, and view 1: two bytes of every five.
fn begin(harness: &Harness) -> (Raw, FileHandle) {
    let (mut raw, _) = Raw::session(harness.address(), 4);
    let root = raw.mount("mem");
    let file = raw.create(root, b"f");
    raw.call(Header::request(Opcode::Write, file), &write_body(0, 200, None), &bytes(1, 200));
    assert_eq!(set_all(&mut raw, 1, &Datatype::bytes(2).resized(0, 5)), Status::OK);
    check_good(&mut raw, file);
    (raw, file)
}

// [VIEW-4] [VIEW-7] [VIEW-8]
fn description_that_is_no_view_is_refused_with_words(on: On) {
    let harness = Harness::start(on);
    let (mut raw, file) = begin(&harness);
    let mut refuse = |datatype: Vec<u8>, expected: &str| {
        let description_len = datatype.len() as u32;
        let parts = datatype.chunks(4096).enumerate();
        let replies = parts.map(|(number, part)| {
            let offset = 4096 * number as u32;
            set(&mut raw, ViewSetRequest { view: 2, description_len, offset }, part)
        });
        let reply = replies.last().unwrap();
        assert_eq!(reply.header.status, Status::INVALID, "{expected}");
        assert!(words(&reply).contains(expected), "{expected}: {}", words(&reply));
        check_good(&mut raw, file);
    };
    refuse(vec![0; 8], "0 nodes");
    refuse([9u32.to_le_bytes(), [0; 4]].concat(), "missing");
    refuse([u32::MAX.to_le_bytes(), [0; 4]].concat(), "limit");
    refuse(vec![0; 3], "missing");
    refuse([encode_datatype(&Datatype::bytes(1)), vec![0]].concat(), "too many");
    refuse(encode_datatype(&Datatype::bytes(u64::MAX)), "further than any file");
    refuse(encode_datatype(&Datatype::bytes(2).contiguous(u64::MAX / 2)), "further than any file");
    let of_itself = dafs_proto::view::Node::Contiguous { count: 1, of: 1 };
    let nodes = vec![dafs_proto::view::Node::Bytes { len: 1 }, of_itself];
    refuse(encode_datatype(&Datatype::from_nodes(nodes)), "does not stand before");
    let deep = (0..200i64).fold(Datatype::bytes(1), |datatype, level| {
        Datatype::structure(&[(1, 0, &datatype), (1, 100 * (level + 1), &Datatype::bytes(1))])
    });
    refuse(encode_datatype(&deep), "levels deep");
    let description = encode_datatype(&Datatype::bytes(7));
    for (view, description_len, offset, status, expected) in [
        (1, description.len() as u32, 0, Status::EXISTS, "already"),
        (2, 0, 0, Status::INVALID, "0 bytes"),
        (2, VIEW_DESCRIPTION_SIZE_MAX + 1, 0, Status::INVALID, "it must have 1 to"),
        (2, description.len() as u32, 5, Status::INVALID, "missing"),
        (2, description.len() as u32 - 1, 0, Status::INVALID, "missing"),
    ] {
        let reply = set(&mut raw, ViewSetRequest { view, description_len, offset }, &description);
        assert_eq!(reply.header.status, status, "{expected}");
        assert!(words(&reply).contains(expected), "{expected}: {}", words(&reply));
        check_good(&mut raw, file);
    }
}

// [VIEW-5] [VIEW-6] [VIEW-10]
fn request_that_a_view_does_not_have_is_refused_with_words(on: On) {
    let harness = Harness::start(on);
    let (mut raw, file) = begin(&harness);
    assert_eq!(set_all(&mut raw, 2, &Datatype::bytes(0)), Status::OK);
    assert_eq!(set_all(&mut raw, 3, &Datatype::bytes(1).hindexed_block(1, &[0, -11])), Status::OK);
    assert_eq!(set_all(&mut raw, 4, &Datatype::bytes(1).resized(0, 2)), Status::OK);
    let region = raw.region(1 << 20, Access::all());
    let range = |len: u64| {
        let mut payload = vec![0; 24];
        encode_segments(&[[region.range().key.0, region.range().offset, len]], &mut payload);
        payload
    };
    let direct = ViewRequest { method: Method::Direct, segment_count: 1, ..GOOD };
    let many = VIEW_SEGMENTS_MAX as u32;
    let max = i64::MAX as u64;
    let cases: Vec<(ViewRequest, Vec<u8>, &str)> = vec![
        (ViewRequest { view: 2, ..GOOD }, vec![], "holds none"),
        (ViewRequest { view: 3, len: 2, ..GOOD }, vec![], "before the file"),
        (ViewRequest { displacement: u64::MAX, ..GOOD }, vec![], "beyond"),
        (ViewRequest { displacement: max - 30, ..GOOD }, vec![], "beyond"),
        (ViewRequest { place: u64::MAX, ..GOOD }, vec![], "beyond"),
        (ViewRequest { place: max - 1, ..GOOD }, vec![], "beyond"),
        (ViewRequest { len: u32::MAX, ..GOOD }, vec![], "the limit is"),
        (ViewRequest { segment_count: 1, ..GOOD }, range(20), "do not go with"),
        (ViewRequest { segment_count: 0, ..direct }, vec![], "do not go with"),
        (ViewRequest { segment_count: u32::MAX, ..direct }, range(20), "ranges"),
        (ViewRequest { segment_count: 2, ..direct }, range(20), "the counts say"),
        (direct, range(19), "memory of 19 bytes"),
        (GOOD, vec![0], "the counts say"),
        (ViewRequest { view: 4, len: many + 1, ..direct }, range(u64::from(many) + 1), "segments"),
    ];
    for (request, payload, expected) in cases {
        let reply = read(&mut raw, file, &request, &payload);
        assert_eq!(reply.header.status, Status::INVALID, "{request:?}");
        assert!(words(&reply).contains(expected), "{request:?}: {}", words(&reply));
        check_good(&mut raw, file);
    }
    // At the bound of segments it is carried out.
    let reply = read(&mut raw, file, &ViewRequest { view: 4, len: many, ..direct }, &range(many.into()));
    assert_eq!(reply.header.status, Status::OK);
    assert_eq!(ListReadReply::decode(&reply.body).unwrap(), ListReadReply { count: 95, end: Some(200) });
    let reply = read(&mut raw, file, &ViewRequest { view: 9, ..GOOD }, &[]);
    assert_eq!(reply.header.status, Status::NO_VIEW);
    let reply = read(&mut raw, FileHandle(77), &GOOD, &[]);
    assert_eq!(reply.header.status, Status::BAD_HANDLE);
    check_good(&mut raw, file);
}

// [VIEW-6] [VIEW-14]
fn view_that_is_given_back_is_gone(on: On) {
    let harness = Harness::start(on);
    let (mut raw, file) = begin(&harness);
    for status in [Status::OK, Status::NO_VIEW] {
        assert_eq!(give_back(&mut raw), status);
    }
    assert_eq!(read(&mut raw, file, &GOOD, &[]).header.status, Status::NO_VIEW);
    assert_eq!(set_all(&mut raw, 1, &Datatype::bytes(2).resized(0, 5)), Status::OK);
    check_good(&mut raw, file);
}

/// Gives view 1 back.
fn give_back(raw: &mut Raw) -> Status {
    let mut body = [0; ViewDropRequest::HEAD_SIZE - HEADER_SIZE];
    ViewDropRequest { view: 1 }.encode(&mut body);
    raw.call(Header::request(Opcode::ViewDrop, FileHandle(0)), &body, &[]).header.status
}

/// Segments of the request in flight: more than a server plans at once, so that it looks at the view again when that is given back.
const SEGMENTS: usize = 40_000;

/// A server whose storage holds the first call of a `ReadView` or `WriteView` of view 1, two bytes of every five, and the region that it
/// goes to or comes from, with the file and what was in it.
struct InFlight {
    harness: Harness,
    faults: Faults,
    raw: Raw,
    file: FileHandle,
    region: Region,
    before: Vec<u8>,
}

impl InFlight {
    fn begin(on: On, opcode: Opcode) -> Self {
        let (harness, faults) = Harness::start_faulty(on, |_| {});
        let (mut raw, _) = Raw::session(harness.address(), 4);
        let root = raw.mount("data");
        let file = raw.create(root, b"f");
        let before = bytes(1, 5 * SEGMENTS);
        std::fs::write(harness.data().join("f"), &before).unwrap();
        assert_eq!(set_all(&mut raw, 1, &Datatype::bytes(2).resized(0, 5)), Status::OK);
        let region = raw.region(2 * SEGMENTS, Access::all());
        region.memory().span().write_from(0, &bytes(2, 2 * SEGMENTS));
        let kind = if opcode == Opcode::ReadView { Kind::Read } else { Kind::Write };
        faults.next(kind, Fault::Hold, 1);
        let len = 2 * SEGMENTS as u32;
        let request = ViewRequest { displacement: 0, len, method: Method::Direct, segment_count: 1, ..GOOD };
        let mut body = [0; ViewRequest::HEAD_SIZE - HEADER_SIZE];
        request.encode(&mut body);
        let mut ranges = vec![0; 24];
        let range = region.range();
        encode_segments(&[[range.key.0, range.offset, u64::from(len)]], &mut ranges);
        let mut header = Header::request(opcode, file);
        raw.begin(&mut header);
        raw.send(header, &body, &ranges);
        // What the client's memory holds is fetched while the client asks for other things.
        let ask = |raw: &mut Raw| raw.call(Header::request(Opcode::Null, FileHandle(0)), &[], &[]);
        let asked = (0..1_000_000).take_while(|_| {
            assert_eq!(ask(&mut raw).header.status, Status::OK);
            faults.held() == 0
        });
        assert!(asked.count() < 1_000_000, "storage gets no call");
        Self { harness, faults, raw, file, region, before }
    }
}

// [VIEW-14] [VIEW-6]
fn view_given_back_in_flight_stays_for_its_request(on: On) {
    for opcode in [Opcode::ReadView, Opcode::WriteView] {
        let InFlight { harness, faults, mut raw, file, region, before } = InFlight::begin(on, opcode);
        assert_eq!(give_back(&mut raw), Status::OK);
        assert_eq!(read(&mut raw, file, &GOOD, &[]).header.status, Status::NO_VIEW);
        assert_eq!(give_back(&mut raw), Status::NO_VIEW);
        // Another of the same number is another.
        assert_eq!(set_all(&mut raw, 1, &Datatype::bytes(3).resized(0, 7)), Status::OK);
        let reply = read(&mut raw, file, &ViewRequest { displacement: 0, len: 6, ..GOOD }, &[]);
        assert_eq!(reply.payload, [&before[..3], &before[7..10]].concat());
        faults.release();
        let reply = raw.receive().unwrap();
        raw.end(&reply);
        assert_eq!((reply.header.opcode, reply.header.status), (opcode, Status::OK));
        let found = std::fs::read(harness.data().join("f")).unwrap();
        let sent = bytes(2, 2 * SEGMENTS);
        let mut expected = before.clone();
        match opcode {
            Opcode::ReadView => {
                let shown: Vec<u8> = before.chunks(5).flat_map(|tile| &tile[..2]).copied().collect();
                assert_same(&region.memory().span().to_vec()[..shown.len()], &shown, "what was read");
            }
            _ => {
                for (tile, data) in expected.chunks_mut(5).zip(sent.chunks(2)) {
                    tile[..2].copy_from_slice(data);
                }
            }
        }
        assert_same(&found, &expected, "the file");
        assert_eq!(give_back(&mut raw), Status::OK);
    }
}

// [VIEW-14]
fn session_that_ends_with_a_view_in_flight_leaves_the_server_whole(on: On) {
    for opcode in [Opcode::ReadView, Opcode::WriteView] {
        let InFlight { harness, faults, mut raw, region, before, .. } = InFlight::begin(on, opcode);
        assert_eq!(give_back(&mut raw), Status::OK);
        drop(raw);
        let (mut raw, _) = Raw::session(harness.address(), 4);
        let root = raw.mount("data");
        let file = raw.create(root, b"f");
        faults.release();
        assert_eq!(set_all(&mut raw, 1, &Datatype::bytes(3).resized(0, 7)), Status::OK);
        let reply = read(&mut raw, file, &ViewRequest { displacement: 3, len: 6, ..GOOD }, &[]);
        // Behind the second byte of every five nothing was written.
        let shown = |at: usize| [before[at], reply.payload[at - 3]];
        assert_eq!(reply.header.status, Status::OK);
        assert!([3, 4].into_iter().all(|at| shown(at)[0] == shown(at)[1]), "{:?}", reply.payload);
        // Only now: whoever takes memory back waits until nobody uses it.
        drop(region);
    }
}
