//! Requests about tokens that the client library would not send.

use dafs_proto::wire::{
    Attributes, FileHandle, HEADER_SIZE, Header, NameRequest, Opcode, OpenFlags, ShareReply, ShareRequest,
    Status, TOKEN_SIZE, Token, decode_message_pack,
};
use dafs_tests::harness::{Harness, On};
use dafs_tests::on_each_provider_and_three_workers;
use dafs_tests::raw::{Message, Raw, read_body};

on_each_provider_and_three_workers! {
    token_is_made_of_an_open_file_only,
    file_is_opened_by_its_token_only,
    malformed_requests_end_their_sessions_only,
}

const BOTH: OpenFlags = OpenFlags::READ.union(OpenFlags::WRITE);

fn share_body(rights: OpenFlags, ttl_ms: u32) -> Vec<u8> {
    let mut body = vec![0; ShareRequest::HEAD_SIZE - HEADER_SIZE];
    ShareRequest { rights, ttl_ms }.encode(&mut body);
    body
}

fn share(raw: &mut Raw, handle: FileHandle, rights: OpenFlags, ttl_ms: u32) -> Message {
    raw.call(Header::request(Opcode::Share, handle), &share_body(rights, ttl_ms), &[])
}

fn open_token(raw: &mut Raw, root: FileHandle, token: &[u8]) -> Message {
    raw.call(Header::request(Opcode::OpenToken, root), &[], token)
}

// [SESS-70] [SESS-71] [SESS-74] [SESS-108]
fn token_is_made_of_an_open_file_only(on: On) {
    let harness = Harness::start(on);
    let (mut raw, _) = Raw::session(harness.address(), 4);
    let root = raw.mount("mem");
    let file = raw.create(root, b"f");
    let mut body = vec![0; NameRequest::HEAD_SIZE - HEADER_SIZE];
    NameRequest { follow: true, mode: 0 }.encode(&mut body);
    let looked_up = raw.call(Header::request(Opcode::Lookup, root), &body, b"f").header.handle;
    let closed = raw.create(root, b"g");
    raw.call(Header::request(Opcode::Close, closed), &[], &[]);
    for (handle, rights, expected) in [
        (root, OpenFlags::READ, Status::BAD_HANDLE),
        (looked_up, OpenFlags::READ, Status::BAD_HANDLE),
        (closed, OpenFlags::READ, Status::BAD_HANDLE),
        (FileHandle(0), OpenFlags::READ, Status::BAD_HANDLE),
        (FileHandle(u64::MAX), OpenFlags::READ, Status::BAD_HANDLE),
        (file, OpenFlags::empty(), Status::INVALID),
        (file, BOTH, Status::OK),
    ] {
        assert_eq!(share(&mut raw, handle, rights, 0).header.status, expected, "{handle:?} {rights:?}");
    }
    let mut tokens = Vec::new();
    for (asked, granted) in
        [(0, 60_000), (1, 1), (59_999, 59_999), (60_000, 60_000), (60_001, 60_000), (u32::MAX, 60_000)]
    {
        let reply = share(&mut raw, file, BOTH, asked);
        assert_eq!(ShareReply::decode(&reply.body), Ok(ShareReply { ttl_ms: granted }), "{asked} ms");
        assert_eq!(reply.payload.len(), TOKEN_SIZE);
        assert_eq!(reply.header.handle, FileHandle(0));
        tokens.push(reply.payload);
    }
    // Neither half of a token comes twice.
    let halves = tokens.iter().flat_map(|token| token.chunks(TOKEN_SIZE / 2));
    assert_eq!(halves.collect::<std::collections::HashSet<_>>().len(), 2 * tokens.len());
}

// [SESS-72] [SESS-73] [SESS-110] [SESS-111]
fn file_is_opened_by_its_token_only(on: On) {
    let harness = Harness::start(on);
    let (mut first, _) = Raw::session(harness.address(), 4);
    let root = first.mount("mem");
    let file = first.create(root, b"f");
    let token = share(&mut first, file, OpenFlags::READ, 0).payload;
    let (mut raw, _) = Raw::session(harness.address(), 4);
    let root = raw.mount("mem");
    let own = raw.create(root, b"own");
    for (place, bit) in
        [(0, 0x01), (TOKEN_SIZE / 2 - 1, 0x80), (TOKEN_SIZE / 2, 0x01), (TOKEN_SIZE - 1, 0x80)]
    {
        let mut forged = token.clone();
        forged[place] ^= bit;
        let reply = open_token(&mut raw, root, &forged);
        assert_eq!(reply.header.status, Status::NO_TOKEN, "byte {place}");
        assert_eq!((reply.header.handle, reply.body.len()), (FileHandle(0), 0));
        assert!(reply.payload.is_empty(), "nothing is told");
    }
    for handle in [own, FileHandle(0), FileHandle(77), FileHandle(u64::MAX)] {
        let reply = open_token(&mut raw, handle, &token);
        assert_eq!(reply.header.status, Status::BAD_HANDLE, "below {handle:?}");
    }
    let opened = open_token(&mut raw, root, &token);
    assert_eq!(opened.header.status, Status::OK);
    let attributes: Attributes = decode_message_pack("attributes", &opened.payload).unwrap();
    assert_eq!((attributes.size, attributes.mode), (0, 0o644));
    let handle = opened.header.handle;
    assert!(handle != own && handle != FileHandle(0));
    let read = raw.call(Header::request(Opcode::Read, handle), &read_body(0, 10, None), &[]);
    assert_eq!(read.header.status, Status::OK);
    // A handle is closed once, whatever it was opened by.
    for expected in [Status::OK, Status::BAD_HANDLE] {
        assert_eq!(raw.call(Header::request(Opcode::Close, handle), &[], &[]).header.status, expected);
    }
    let read = first.call(Header::request(Opcode::Read, file), &read_body(0, 10, None), &[]);
    assert_eq!(read.header.status, Status::OK, "the one that was shared is open");
}

// [WIRE-12] [WIRE-2] [WIRE-138]
fn malformed_requests_end_their_sessions_only(on: On) {
    let harness = Harness::start(on);
    let (mut first, _) = Raw::session(harness.address(), 4);
    let root = first.mount("mem");
    let file = first.create(root, b"f");
    let token = share(&mut first, file, BOTH, 0).payload;
    let long = [&token[..], &[0]].concat();
    let good = share_body(BOTH, 0);
    let flags = |bits: u32| [&bits.to_le_bytes()[..], &[0; 4]].concat();
    let cases: Vec<(Opcode, Vec<u8>, &[u8], &str)> = vec![
        (Opcode::OpenToken, vec![], &[], "token: 32 bytes are missing"),
        (Opcode::OpenToken, vec![], &token[..31], "token: 1 bytes are missing"),
        (Opcode::OpenToken, vec![], &long, "token: 1 bytes too many"),
        (Opcode::OpenToken, vec![0; 8], &token, "8 bytes too many"),
        (Opcode::Share, good[..7].to_vec(), &[], "bytes are missing"),
        (Opcode::Share, vec![], &[], "bytes are missing"),
        (Opcode::Share, [&good[..], &[0]].concat(), &[], "1 bytes too many"),
        (Opcode::Share, good.clone(), b"x", "1 bytes too many"),
    ];
    for (opcode, body, payload, expected) in cases {
        let (mut raw, _) = Raw::session(harness.address(), 4);
        let root = raw.mount("mem");
        let own = raw.create(root, b"own");
        let handle = if opcode == Opcode::Share { own } else { root };
        let mut header = Header::request(opcode, handle);
        raw.begin(&mut header);
        raw.send(header, &body, payload);
        let reason = raw.ending().expect("a reason");
        assert!(reason.contains(expected), "{opcode:?} {body:?}: {reason}");
    }
    for bits in [0x04, 0x83, 0x8000_0001] {
        let reply = first.call(Header::request(Opcode::Share, file), &flags(bits), &[]);
        assert_eq!(reply.header.status, Status::INVALID, "{bits:#x}");
        let words = String::from_utf8(reply.payload).unwrap();
        assert_eq!(words, format!("rights to share cannot be {bits:#x}"));
    }
    assert!(Token::decode(&token).is_ok());
    assert_eq!(open_token(&mut first, root, &token).header.status, Status::OK, "others notice nothing");
}
