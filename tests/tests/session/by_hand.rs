//! A session driven by hand, message by message: what the client library would hide.

use dafs_proto::transport::{Access, MemoryRef};
use dafs_proto::wire::{
    Attributes, FileHandle, Flags, HEADER_SIZE, Header, HintRequest, ListFlags, ListRequest, Method,
    NoticeKind, Opcode, OpenFlags, OpenRequest, ReadReply, ReadRequest, Sieve, Stability, Statistics, Status,
    WriteReply, decode_message_pack, encode_segments,
};
use dafs_server::config::{ExportConfig, ExportKind};
use dafs_tests::harness::{Harness, On};
use dafs_tests::on_each_provider_and_three_workers;
use dafs_tests::raw::{Raw, read_body, request, stable_write_body, write_body};
use dafs_tests::suite::{assert_same, bytes};

on_each_provider_and_three_workers! {
    data_inline_and_direct_arrives,
    chains_run_and_errors_are_told,
    links_that_come_again_get_the_kept_reply_whatever_path_answered_them,
    operations_in_flight_on_a_closed_handle_are_finished,
    list_of_exports_that_does_not_fit_is_refused,
}

fn data_inline_and_direct_arrives(on: On) {
    let harness = Harness::start(on);
    let (mut raw, welcome) = Raw::session(harness.address(), 16);
    assert!(welcome.slots >= 1);
    let root = raw.mount("data");
    let opened = raw.open(root, b"file", OpenFlags::READ | OpenFlags::WRITE | OpenFlags::CREATE);
    assert_eq!(opened.header.status, Status::OK);
    let attributes: Attributes = decode_message_pack("attributes", &opened.payload).unwrap();
    assert_eq!((attributes.size, attributes.mode), (0, 0o644));
    let file = opened.header.handle;

    let reply = raw.call(
        Header::request(Opcode::Write, file),
        &stable_write_body(0, 5, Stability::FileSync, None),
        b"hello",
    );
    assert_eq!(WriteReply::decode(&reply.body).unwrap().count, 5);
    let reply = raw.call(Header::request(Opcode::Read, file), &read_body(1, 100, None), &[]);
    assert_eq!(reply.payload, b"ello");
    assert_eq!(ReadReply::decode(&reply.body).unwrap(), ReadReply { count: 4, end_of_file: true });

    const LEN: u32 = 3 << 20;
    let memory = MemoryRef::new(raw.domain.allocate(LEN as usize).unwrap());
    let pattern: Vec<u8> = (0..LEN).map(|i| (i % 251) as u8).collect();
    memory.span().write_from(0, &pattern);
    let region = raw.domain.register(memory.clone(), Access::REMOTE_READ | Access::REMOTE_WRITE).unwrap();
    let range = region.range();
    let segment = Some([range.key.0, range.offset, u64::from(LEN)]);
    let reply = raw.call(
        Header::request(Opcode::Write, file),
        &stable_write_body(10, LEN, Stability::Unstable, segment),
        &[],
    );
    assert_eq!(WriteReply::decode(&reply.body).unwrap().count, LEN);
    memory.span().zero();
    let reply = raw.call(Header::request(Opcode::Read, file), &read_body(10, LEN, segment), &[]);
    assert_eq!(ReadReply::decode(&reply.body).unwrap(), ReadReply { count: LEN, end_of_file: false });
    assert!(memory.span().slice(0, LEN as usize).unwrap().to_vec() == pattern);
    assert_eq!(&std::fs::read(harness.data().join("file")).unwrap()[10..], &pattern[..]);

    // A range of no bytes names no memory. [WIRE-140]
    let ranges = [[0xdead, 5, 0], [range.key.0, range.offset, u64::from(LEN)], [0, 0, 0]];
    let mut payload = vec![0; 72];
    encode_segments(&ranges, &mut payload);
    let mut body = [0; 40];
    let request =
        ReadRequest { offset: 10, len: LEN, method: Method::Direct, segment_count: 3, segment: [0; 3] };
    request.encode(&mut body);
    memory.span().zero();
    let reply = raw.call(Header::request(Opcode::Read, file), &body, &payload);
    assert_eq!(ReadReply::decode(&reply.body).unwrap(), ReadReply { count: LEN, end_of_file: false });
    assert!(memory.span().slice(0, LEN as usize).unwrap().to_vec() == pattern);

    // An append through RDMA answers where it went.
    let reply = raw.call(
        Header::request(Opcode::Append, file),
        &stable_write_body(0, LEN, Stability::Unstable, segment),
        &[],
    );
    assert_eq!(WriteReply::decode(&reply.body).unwrap().offset, 10 + u64::from(LEN));
    // A read that reaches the end is short.
    let reply = raw.call(
        Header::request(Opcode::Read, file),
        &read_body(10 + 2 * u64::from(LEN) - 7, LEN, segment),
        &[],
    );
    assert_eq!(ReadReply::decode(&reply.body).unwrap(), ReadReply { count: 7, end_of_file: true });
}

fn chains_run_and_errors_are_told(on: On) {
    let harness = Harness::start(on);
    std::fs::write(harness.data().join("file"), b"chained").unwrap();
    let (mut raw, _) = Raw::session(harness.address(), 16);
    let root = raw.mount("data");
    // Open, read and close in one round trip. [SESS-30] [SESS-31]
    let links = [
        (Opcode::Open, root, Flags::CHAIN_FORWARD | Flags::SAVE_HANDLE, {
            let mut body = vec![0; 8];
            OpenRequest { flags: OpenFlags::READ, mode: 0 }.encode(&mut body);
            body
        }),
        (
            Opcode::Read,
            FileHandle(u64::MAX),
            Flags::CHAIN_FORWARD | Flags::CHAIN_BACK,
            read_body(0, 100, None),
        ),
        (Opcode::Close, FileHandle(u64::MAX), Flags::CHAIN_BACK, vec![]),
    ];
    for path in [&b"file"[..], b"missing"] {
        for (opcode, handle, flags, body) in &links {
            let mut header = Header { flags: *flags, ..Header::request(*opcode, *handle) };
            raw.begin(&mut header);
            raw.send(header, body, if *opcode == Opcode::Open { path } else { &[] });
        }
        let replies: Vec<_> = (0..3).map(|_| raw.receive().unwrap()).collect();
        for reply in &replies {
            raw.end(reply);
        }
        let statuses: Vec<Status> = replies.iter().map(|reply| reply.header.status).collect();
        if path == b"file" {
            assert_eq!(statuses, [Status::OK; 3]);
            assert_eq!(replies[1].payload, b"chained");
        } else {
            assert_eq!(statuses, [Status::NOT_FOUND, Status::CHAIN_ABORTED, Status::CHAIN_ABORTED]);
        }
    }
    // Failures are answers. [ERR-1]
    assert_eq!(raw.open(root, b"../x", OpenFlags::READ).header.status, Status::CROSS_DEVICE);
    assert_eq!(raw.open(FileHandle(77), b"file", OpenFlags::READ).header.status, Status::BAD_HANDLE);
    let reply =
        raw.call(Header::request(Opcode::Read, root), &read_body(0, 1 << 31, Some([1, 0, 1 << 31])), &[]);
    assert_eq!(reply.header.status, Status::INVALID);
    // [WIRE-41]
    assert_eq!(raw.open(root, b"fi\0le", OpenFlags::READ).header.status, Status::INVALID);
    let file = raw.open(root, b"file", OpenFlags::READ).header.handle;
    // Ranges of one byte less and one more than is asked for. [WIRE-40]
    for len in [9, 11] {
        let reply = raw.call(Header::request(Opcode::Read, file), &read_body(0, 10, Some([1, 0, len])), &[]);
        assert_eq!(reply.header.status, Status::INVALID, "a range of {len}");
    }
    // A pattern of a later version. [WIRE-29]
    let mut body = [0; 24];
    HintRequest { offset: 0, len: 0, pattern: 99, likelihood: 0 }.encode(&mut body);
    assert_eq!(raw.call(Header::request(Opcode::Hint, file), &body, &[]).header.status, Status::OK);
    // A broken protocol ends the session, with a reason. [SESS-13] [SESS-45] [SESS-126]
    let header = Header {
        slot: dafs_proto::wire::Slot(999),
        sequence: 1,
        ..Header::request(Opcode::Null, FileHandle(0))
    };
    raw.send(header, &[], &[]);
    let notice = raw.receive().expect("a notice");
    assert_eq!(notice.header.opcode, Opcode::Notice);
    assert_eq!(notice.body, NoticeKind::ProtocolError.value().to_le_bytes());
    assert!(String::from_utf8(notice.payload).unwrap().contains("slot 999 does not exist"));
    assert!(raw.receive().is_none(), "the connection is closed");
}

// [SESS-88] [SESS-123] [SESS-124]
fn links_that_come_again_get_the_kept_reply_whatever_path_answered_them(on: On) {
    let harness = Harness::start(on);
    for export in ["data", "mem"] {
        let (mut raw, _) = Raw::session(harness.address(), 16);
        let root = raw.mount(export);
        let file = raw.create(root, b"f");
        raw.call(Header::request(Opcode::Write, file), &write_body(0, 4, None), b"data");
        let mut list = [0; ListRequest::HEAD_SIZE - HEADER_SIZE];
        let (method, stability) = (Method::Inline, Stability::Unstable);
        ListRequest {
            len: 4,
            method,
            stability,
            sieve: Sieve::Auto,
            flags: ListFlags::default(),
            extent_count: 1,
            segment_count: 0,
        }
        .encode(&mut list);
        let extent = [0, 0, 0, 0, 0, 0, 0, 0, 4, 0, 0, 0];
        let range = raw.region(4, Access::REMOTE_WRITE);
        let direct = [range.range().key.0, range.range().offset, 4];
        let links: [(Opcode, Vec<u8>, &[u8], bool); 5] = [
            (Opcode::Read, read_body(0, 4, None), &[], true),
            (Opcode::ReadList, list.to_vec(), &extent, true),
            (Opcode::Read, read_body(9, 4, None), &[], true),
            (Opcode::Null, Vec::new(), &[], true),
            (Opcode::Read, read_body(0, 4, Some(direct)), &[], false),
        ];
        let ask = |raw: &mut Raw, slot: usize| {
            let (opcode, body, payload, _) = &links[slot];
            let mut header = request(*opcode, slot as u32 + 8, 1);
            header.flags.set(Flags::CHAIN_BACK, slot > 0);
            header.flags.set(Flags::CHAIN_FORWARD, slot < links.len() - 1);
            header.handle = file;
            raw.ask(header, body, payload)
        };
        let first: Vec<_> = (0..links.len()).map(|slot| ask(&mut raw, slot)).collect();
        let read = first.iter().map(|reply| (reply.header.status, &reply.payload[..]));
        let expected: [&[u8]; 5] = [b"data", b"data", b"", b"", b""];
        assert!(read.eq(expected.map(|data| (Status::OK, data))), "{export}: {first:?}");
        raw.call(Header::request(Opcode::Write, file), &write_body(0, 4, None), b"DATA");
        for (slot, first) in first.iter().enumerate() {
            let again = ask(&mut raw, slot);
            if links[slot].3 {
                let both = [&again, first].map(|reply| (reply.header.status, &reply.body, &reply.payload));
                assert_eq!(both[0], both[1], "{export}: link {slot}");
            } else {
                assert_eq!(again.header.status, Status::CHAIN_ABORTED, "{export}: its data may be lost");
            }
        }
    }
}

// [STOR-86] [STOR-85]
fn operations_in_flight_on_a_closed_handle_are_finished(on: On) {
    const LEN: u32 = 200_000;
    let harness = Harness::start(on);
    for export in ["data", "mem"] {
        let (mut raw, _) = Raw::session(harness.address(), 16);
        let root = raw.mount(export);
        let region = raw.region(LEN as usize, Access::REMOTE_READ);
        region.memory().span().write_from(0, &bytes(3, LEN as usize));
        let part = |from: u32, len: u32| {
            [region.range().key.0, region.range().offset + u64::from(from), u64::from(len)]
        };
        let mut several = stable_write_body(0, LEN, Stability::FileSync, Some([0; 3]));
        several[14] = 2;
        let halves: Vec<u8> = [part(0, LEN / 2), part(LEN / 2, LEN / 2)]
            .into_iter()
            .flatten()
            .flat_map(u64::to_le_bytes)
            .collect();
        let writes: [(Opcode, Vec<u8>, &[u8]); 4] = [
            (Opcode::Write, write_body(0, LEN, Some(part(0, LEN))), &[]),
            (Opcode::Write, stable_write_body(0, LEN, Stability::DataSync, Some(part(0, LEN))), &[]),
            (Opcode::Write, several, &halves),
            (Opcode::Append, write_body(0, LEN, Some(part(0, LEN))), &[]),
        ];
        for (number, (opcode, body, payload)) in writes.iter().enumerate() {
            let name = [b'a' + number as u8];
            let file = raw.create(root, &name);
            let mut write = Header::request(*opcode, file);
            raw.begin(&mut write);
            let mut close = Header::request(Opcode::Close, file);
            raw.begin(&mut close);
            // Over tcp the server cannot have the data before this side receives.
            raw.send(write, body, payload);
            raw.send(close, &[], &[]);
            for _ in 0..2 {
                let reply = raw.receive().expect("a reply");
                raw.end(&reply);
                assert_eq!(reply.header.status, Status::OK, "{export} {number}: {:?}", reply.header.opcode);
            }
            let reply = raw.call(
                Header::request(Opcode::Commit, file),
                &[0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 1, 0, 0, 0, 0, 0, 0, 0],
                &[],
            );
            assert_eq!(reply.header.status, Status::BAD_HANDLE);
            if export == "data" {
                let found = std::fs::read(harness.data().join(std::str::from_utf8(&name).unwrap())).unwrap();
                assert_same(&found, &bytes(3, LEN as usize), "what was written");
            }
        }
        let statistics = raw.call(Header::request(Opcode::Statistics, FileHandle(0)), &[], &[]);
        let statistics: Statistics = decode_message_pack("statistics", &statistics.payload).unwrap();
        assert_eq!(statistics.handles, 1, "{export}: the root");
        raw.call(Header::request(Opcode::Bye, FileHandle(0)), &[], &[]);
    }
}

// [WIRE-134]
fn list_of_exports_that_does_not_fit_is_refused(on: On) {
    let harness = Harness::start_with(on, |config| {
        let memory = ExportKind::Memory { size_max: 1 << 20 };
        config.exports = (0..1000).map(|i| ExportConfig::new(format!("{i:0>60}"), memory.clone())).collect();
    });
    let (mut raw, _) = Raw::session(harness.address(), 8);
    for opcode in [Opcode::Exports, Opcode::Statistics] {
        let reply = raw.call(Header::request(opcode, FileHandle(0)), &[], &[]);
        assert_eq!(reply.header.status, Status::RANGE, "{opcode:?}");
    }
    raw.mount(&format!("{:0>60}", 999));
}
