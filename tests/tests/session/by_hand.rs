//! A session driven by hand, message by message: what the client library would hide.

use dafs_proto::transport::{Access, MemoryRef};
use dafs_proto::wire::{
    Attributes, FileHandle, Flags, Header, NoticeKind, Opcode, OpenFlags, OpenRequest, ReadReply, Stability,
    Status, WriteReply, decode_message_pack,
};
use dafs_tests::harness::{Harness, On};
use dafs_tests::on_each_provider_and_two_workers;
use dafs_tests::raw::{Raw, read_body, stable_write_body};

on_each_provider_and_two_workers! {
    data_inline_and_direct_arrives,
    chains_run_and_errors_are_told,
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
    // A broken protocol ends the session, with a reason. [SESS-13] [SESS-45]
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
