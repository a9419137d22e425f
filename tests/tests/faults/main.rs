//! Peers that break the rules, stall or lie, against the real server: what is wrong is named, the session ends exactly
//! where the protocol was broken, another client does not notice,
//! and nothing of it is left in the server.
#![allow(clippy::unwrap_used, clippy::expect_used, reason = "tests")]

use std::io::{Read, Write};
use std::net::TcpStream;
use std::time::{Duration, Instant};

use dafs_client::{Config as ClientConfig, Error, File, Key, Session};
use dafs_proto::transport::{Access, Address, RemoteRange};
use dafs_proto::wire::{
    FileHandle, HEADER_SIZE, Header, Method, Opcode, REMOTE_RANGE_SIZE, ReadRequest, Slot, Stability, Status,
    WriteRequest, encode_segments,
};
use dafs_tests::harness::{Harness, On};
use dafs_tests::on_each_provider;
use dafs_tests::raw::{Raw, read_body, write_body};

const DATA: &[u8] = b"of the client that does nothing wrong";
// No more than the server fetches at once: of a longer write, what comes before the fault may be in the file.
const LEN: u32 = 1 << 16;

on_each_provider! {
    broken_messages_end_the_session,
    lies_in_bodies_are_told,
    forged_memory_is_refused,
    range_beyond_the_last_offset_is_refused_whole,
    too_many_requests_end_the_session,
    unfinished_handshakes_are_dropped,
    paths_that_leave_the_export_are_refused,
    full_storage_is_told_and_keeps_what_it_acknowledged,
}

/// A server, and a client on it that must notice nothing.
struct Scene {
    harness: Harness,
    session: Session,
    file: File,
    handles: u64,
}

impl Scene {
    fn new(on: On) -> Self {
        let harness = Harness::start_with(on, |config| config.handshake_ms = 3000);
        let session = harness.session();
        let file = session.mount("data").unwrap().create("healthy").unwrap();
        file.write_all_at(DATA, 0).unwrap();
        let handles = session.statistics().unwrap().handles;
        Self { harness, session, file, handles }
    }

    fn raw(&self) -> Raw {
        Raw::session(self.harness.address(), 16).0
    }

    /// The other client goes on, and the server comes to hold what it uses and no more. A session whose connection was cut
    /// stays for its lease, so it is not counted here.
    fn settle(&self) {
        let mut data = vec![0; DATA.len()];
        self.file.read_exact_at(&mut data, 0).unwrap();
        assert_eq!(data, DATA);
        assert_eq!(self.session.reconnects(), 0);
        let deadline = Instant::now() + Duration::from_secs(60);
        loop {
            let counts = self.session.statistics().unwrap();
            let left = (counts.sessions, counts.connections, counts.handles, counts.in_flight);
            if left == (1, 1, self.handles, 0) {
                return;
            }
            assert!(Instant::now() < deadline, "sessions, connections, handles, operations: {left:?}");
            std::thread::yield_now();
        }
    }
}

fn request(opcode: Opcode, handle: FileHandle) -> Header {
    Header::request(opcode, handle)
}

// [WIRE-2] [SESS-13] [SESS-45] Each breaks one rule in a session of its own, and is told which.
fn broken_messages_end_the_session(on: On) {
    let scene = Scene::new(on);
    let null = Header { sequence: 1, ..request(Opcode::Null, FileHandle(0)) };
    let encoded = |change: &dyn Fn(&mut Vec<u8>)| {
        let mut head = vec![0; HEADER_SIZE];
        null.encode(&mut head);
        change(&mut head);
        head
    };
    type Change = &'static dyn Fn(&mut Vec<u8>);
    let cases: [(Change, &str); 11] = [
        (&|head| head.truncate(20), "missing"),
        (&|head| head.truncate(1), "missing"),
        (&|head| head[0] = 0x77, "opcode"),
        (&|head| head[3] = 0x80, "flags"),
        (&|head| head[14] = 41, "head_len"),
        (&|head| head[16] = 9, "payload_len"),
        (&|head| head[12..14].fill(0), "credits"),
        (&|head| head[20] = 5, "status"),
        (&|head| head[36] = 1, "reserved"),
        (&|head| head[4..8].copy_from_slice(&999u32.to_le_bytes()), "slot 999 does not exist"),
        (&|head| head[8] = 7, "sequence"),
    ];
    for (change, expected) in cases {
        let mut raw = scene.raw();
        raw.mount("data");
        let mut head = encoded(change);
        if expected != "sequence" {
            // The next of slot 0, so that nothing else is wrong.
            head.get_mut(8).map(|byte| *byte = 2).unwrap_or_default();
        }
        raw.endpoint.send_copy(&head, &[]).unwrap();
        raw.endpoint.flush().unwrap();
        let words = raw.ending().unwrap_or_default();
        assert!(words.contains(expected), "{expected}: {words:?}");
    }
    scene.settle();
}

// [SESS-12] [ERR-1] Lengths and counts that lie, requests in busy slots or out of order, replays.
fn lies_in_bodies_are_told(on: On) {
    let scene = Scene::new(on);
    let lies: [(Opcode, Vec<u8>, &[u8], &str); 4] = [
        (Opcode::Read, read_body(0, 5, None)[..39].to_vec(), &[], "missing"),
        (Opcode::Read, [read_body(0, 5, None), vec![0]].concat(), &[], "bytes"),
        (Opcode::Write, write_body(0, 6, None), b"five!", "data of an inline write"),
        (Opcode::Null, vec![1], &[], "bytes"),
    ];
    for (opcode, body, payload, expected) in lies {
        let mut raw = scene.raw();
        let root = raw.mount("data");
        let file = raw.create(root, b"file");
        let mut header = request(opcode, file);
        raw.begin(&mut header);
        raw.send(header, &body, payload);
        let words = raw.ending().unwrap_or_default();
        assert!(words.contains(expected), "{expected}: {words:?}");
    }
    // The same request again is answered from the cache, and another under its number is refused without effect.
    let mut raw = scene.raw();
    let root = raw.mount("data");
    let mut header = request(Opcode::Mkdir, root);
    raw.begin(&mut header);
    for _ in 0..3 {
        raw.send(header, &[0; 8], b"directory");
        assert_eq!(raw.receive().unwrap().header.status, Status::OK);
    }
    raw.send(Header { opcode: Opcode::Remove, ..header }, &[1, 0, 0, 0, 0, 0, 0, 0], b"directory");
    assert_eq!(raw.receive().unwrap().header.status, Status::FALSE_RETRY);
    assert!(scene.harness.data().join("directory").is_dir());
    raw.endpoint.close();
    let counts = scene.session.statistics().unwrap();
    assert_eq!(counts.replies_replayed, 2);
}

/// Keys that were never given out, ranges out of bounds, and rights that are missing: an error where the server looks
/// first, the end of the connection where the provider meets it.
fn forged_memory_is_refused(on: On) {
    let scene = Scene::new(on);
    for case in 0..5 {
        let mut raw = scene.raw();
        let other = scene.raw();
        let root = raw.mount("data");
        let file = raw.create(root, b"victim");
        raw.call(request(Opcode::Write, file), &write_body(0, 5, None), b"whole");
        let (mine, theirs) =
            (raw.region(LEN as usize, Access::REMOTE_READ), other.region(LEN as usize, Access::REMOTE_READ));
        let range = mine.range();
        let (opcode, segment) = match case {
            0 => (Opcode::Write, [0xdead_beef, range.offset, u64::from(LEN)]),
            1 => (Opcode::Write, [range.key.0, range.offset + 1, u64::from(LEN)]),
            2 => (Opcode::Write, [range.key.0, u64::MAX - 5, u64::from(LEN)]),
            3 => (Opcode::Read, [range.key.0, range.offset, u64::from(LEN)]),
            _ => (Opcode::Write, [theirs.range().key.0 ^ 0x5555_0000, theirs.range().offset, u64::from(LEN)]),
        };
        let body = match opcode {
            Opcode::Read => read_body(0, LEN, Some(segment)),
            _ => write_body(0, LEN, Some(segment)),
        };
        let mut header = request(opcode, file);
        raw.begin(&mut header);
        raw.send(header, &body, &[]);
        match raw.receive() {
            Some(reply) => assert_eq!(reply.header.status, Status::REMOTE_ACCESS, "case {case}"),
            None => assert_ne!(on, On::Shm, "only where the client's side finds the fault: case {case}"),
        }
        assert!(mine.memory().span().to_vec().iter().all(|byte| *byte == 0), "case {case}");
        assert_eq!(std::fs::read(scene.harness.data().join("victim")).unwrap(), b"whole", "case {case}");
    }
}

/// Read and written in one piece, in parts, and from and to several ranges of memory.
// [STOR-9]
fn range_beyond_the_last_offset_is_refused_whole(on: On) {
    let scene = Scene::new(on);
    let mut raw = scene.raw();
    let root = raw.mount("data");
    let file = raw.create(root, b"victim");
    raw.call(request(Opcode::Write, file), &write_body(0, 5, None), b"whole");
    for len in [20, 3 << 20] {
        let half = raw.region(len / 2, Access::REMOTE_READ | Access::REMOTE_WRITE);
        let other = raw.region(len / 2, Access::REMOTE_READ | Access::REMOTE_WRITE);
        let whole = raw.region(len, Access::REMOTE_READ | Access::REMOTE_WRITE);
        let segment = |range: RemoteRange| [range.key.0, range.offset, range.len];
        let segments = [half.range(), other.range()].map(segment);
        let mut payload = vec![0; 2 * REMOTE_RANGE_SIZE];
        encode_segments(&segments, &mut payload);
        let beyond =
            [i64::MAX as u64 - 5, u64::MAX - 5, u64::MAX - len as u64 / 2, u64::MAX - len as u64 + 1];
        for (offset, pieces) in beyond.into_iter().flat_map(|offset| [(offset, 1), (offset, 2)]) {
            let segment = if pieces == 1 { segment(whole.range()) } else { [0; 3] };
            let payload = if pieces == 1 { &[][..] } else { &payload };
            let len = u32::try_from(len).unwrap();
            let (method, segment_count, stability) = (Method::Direct, pieces, Stability::Unstable);
            let mut body = vec![0; ReadRequest::HEAD_SIZE - HEADER_SIZE];
            ReadRequest { offset, len, method, segment_count, segment }.encode(&mut body);
            let reply = raw.call(request(Opcode::Read, file), &body, payload);
            assert_eq!(reply.header.status, Status::INVALID, "{len} bytes at {offset} in {pieces}");
            WriteRequest { offset, len, method, stability, segment_count, segment }.encode(&mut body);
            let reply = raw.call(request(Opcode::Write, file), &body, payload);
            assert_eq!(reply.header.status, Status::TOO_LARGE, "{len} bytes at {offset} in {pieces}");
        }
    }
    assert_eq!(std::fs::read(scene.harness.data().join("victim")).unwrap(), b"whole");
    scene.session.ping().unwrap();
    assert_eq!(scene.session.reconnects(), 0);
}

// [SESS-21] More requests than credits, and a client that takes no replies.
fn too_many_requests_end_the_session(on: On) {
    let scene = Scene::new(on);
    let deadline = Instant::now() + Duration::from_secs(120);
    loop {
        let (sent, why) = read_without_end(&scene, deadline);
        // Where storage had to be waited for, the next request finds its slot taken, which is a fault of another kind.
        if why.as_deref().is_some_and(|why| why.contains("is busy with request")) {
            continue;
        }
        // Not because of the first requests, whose replies found room.
        assert!(sent > 80, "{sent} requests were taken: {why:?}");
        break;
    }
    scene.settle();
}

/// Reads without end, and no reply is taken before the server stops listening, which it does before its memory is full. How many it
/// took, and what it said.
fn read_without_end(scene: &Scene, deadline: Instant) -> (u64, Option<String>) {
    let errors = || scene.session.statistics().unwrap().protocol_errors;
    let before = errors();
    let mut raw = scene.raw();
    let root = raw.mount("data");
    let file = raw.create(root, b"big");
    for offset in [0, 8000] {
        raw.call(request(Opcode::Write, file), &write_body(offset, 8000, None), &[1; 8000]);
    }
    let (mut sent, mut sequence) = (0, 4);
    loop {
        sequence += 1;
        let header = Header { sequence, slot: Slot(0), head_len: 80, ..request(Opcode::Read, file) };
        let mut head = vec![0; 80];
        header.encode(&mut head);
        head[HEADER_SIZE..].copy_from_slice(&read_body(0, 16_000, None));
        match raw.endpoint.send_copy(&head, &[]) {
            Ok(()) => sent += 1,
            Err(dafs_proto::transport::PostError::Full) => sequence -= 1,
            Err(_) => break,
        }
        if raw.endpoint.flush().is_err() || errors() > before {
            break;
        }
        assert!(Instant::now() < deadline, "{sent} requests were taken");
    }
    (sent, raw.ending())
}

/// Handshakes that are never begun, stop in the middle, or begin with something else.
fn unfinished_handshakes_are_dropped(on: On) {
    let scene = Scene::new(on);
    let _silent = Raw::connect(scene.harness.address());
    let mut wrong = Raw::connect(scene.harness.address());
    wrong.send(request(Opcode::Null, FileHandle(0)), &[], &[]);
    assert_eq!(wrong.ending(), None);
    let mut garbage = Raw::connect(scene.harness.address());
    garbage.send(request(Opcode::Hello, FileHandle(0)), &[], &[0xc1; 100]);
    assert_eq!(garbage.ending(), None);
    let mut streams = Vec::new();
    if let Address::Tcp(address) = scene.harness.address() {
        for count in 0..20 {
            let mut stream = TcpStream::connect(address).unwrap();
            stream.write_all(&b"dafs-tcp\x01\0\x10\0\0\0\0\0\x10\0"[..count.min(18)]).unwrap();
            streams.push(stream);
        }
    }
    // The silent one is closed when its time is over.
    scene.settle();
    drop(streams);
    scene.settle();
}

/// The paths of a client never lead out of the export.
fn paths_that_leave_the_export_are_refused(on: On) {
    let scene = Scene::new(on);
    std::fs::write(scene.harness.scratch().join("outside"), b"secret").unwrap();
    let data = scene.harness.data();
    std::os::unix::fs::symlink("../outside", data.join("relative")).unwrap();
    std::os::unix::fs::symlink(scene.harness.scratch().join("outside"), data.join("absolute")).unwrap();
    std::os::unix::fs::symlink("/proc/self/root", data.join("magic")).unwrap();
    std::os::unix::fs::symlink("/proc/self/fd", data.join("descriptors")).unwrap();
    std::os::unix::fs::symlink("loop", data.join("loop")).unwrap();
    let mut raw = scene.raw();
    let root = raw.mount("data");
    let open = 1u32.to_le_bytes();
    let body = [&open[..], &[0; 4]].concat();
    for path in [
        "..",
        "../outside",
        "a/../../outside",
        "relative",
        "absolute",
        "magic",
        "magic/etc/passwd",
        "descriptors/0",
        "loop",
        "/etc/passwd",
    ] {
        let reply = raw.call(request(Opcode::Open, root), &body, path.as_bytes());
        let status = reply.header.status;
        assert!(
            [Status::CROSS_DEVICE, Status::LOOP, Status::NOT_FOUND, Status::INVALID].contains(&status),
            "{path}: {status:?}"
        );
        assert!(reply.payload.is_empty(), "{path}");
    }
    // A link may be made, but not followed.
    let export = scene.session.mount("data").unwrap();
    let error = export.open("relative").unwrap_err();
    assert_eq!(error.status(), Some(Status::CROSS_DEVICE), "{error}");
    assert!(error.to_string().contains("relative"), "{error}");
    assert!(raw.call(request(Opcode::Open, root), &body, b"a\0b").header.status == Status::INVALID);
    assert!(
        raw.call(request(Opcode::Open, root), &body, &[b'n'; 256]).header.status == Status::NAME_TOO_LONG
    );
}

/// An export in memory that is full: an error, and nothing acknowledged is lost.
fn full_storage_is_told_and_keeps_what_it_acknowledged(on: On) {
    let harness = Harness::start_with(on, |config| {
        config.exports[1].kind = dafs_server::config::ExportKind::Memory { size_max: 1 << 20 };
    });
    let session = harness.session();
    let export = session.mount("mem").unwrap();
    let file = export.create("file").unwrap();
    let mut acknowledged = 0;
    let error = loop {
        match file.write_at(&[7; 100_000], acknowledged) {
            Ok(count) => acknowledged += count as u64,
            Err(error) => break error,
        }
        assert!(acknowledged <= 1 << 20);
    };
    assert_eq!(error.status(), Some(Status::NO_SPACE), "{error}");
    assert!(error.to_string().contains("no space"), "{error}");
    let mut data = vec![0; usize::try_from(acknowledged).unwrap()];
    file.read_exact_at(&mut data, 0).unwrap();
    assert!(data.iter().all(|byte| *byte == 7));
    // Space that is given back can be used again.
    file.truncate(0).unwrap();
    file.write_all_at(&[8; 100_000], 0).unwrap();
}

/// What reaches into the sockets of one provider.
mod of_one {
    use super::*;

    mod tcp {
        use super::*;

        /// Frames of the transport that cannot be: the connection ends, and only that.
        #[test]
        fn frames_broken_end_the_connection() {
            let scene = Scene::new(On::Tcp);
            let Address::Tcp(address) = *scene.harness.address() else { panic!("tcp") };
            let hello = dafs_proto::transport::tcp::frame::Hello::new(&Default::default()).encode();
            for seed in 0..40u8 {
                let mut stream = TcpStream::connect(address).unwrap();
                let mut bytes = hello.to_vec();
                // Frames of every kind and of none, of sizes within and beyond the limits.
                bytes.extend((0..200u8).map(|place| match place % 32 {
                    0 => seed % 8,
                    1 => seed / 8 % 3,
                    4..=7 => seed.wrapping_mul(37) >> (seed % 7),
                    _ => seed.wrapping_mul(place) & if seed % 2 == 0 { 0 } else { 0xff },
                }));
                // One byte at a time.
                for byte in bytes {
                    if stream.write_all(&[byte]).is_err() {
                        break;
                    }
                }
                stream.shutdown(std::net::Shutdown::Write).unwrap_or_default();
                let mut answer = Vec::new();
                // A reset is an end as well.
                let _ = stream.take(1 << 20).read_to_end(&mut answer);
                assert!(answer.len() < 4096);
            }
            scene.settle();
        }

        #[test]
        fn key_wrong_or_missing_is_told() {
            let key = |name: &str, byte: u8| Key { name: name.into(), secret: vec![byte; 32].into() };
            let harness = Harness::start_with(On::Tcp, |config| {
                config.access.keys.insert(dafs_server::access::KeyEntry {
                    key: key("good", 1),
                    forced: None,
                    publishes: false,
                });
            });
            let connect =
                |key| Session::connect(harness.url(), &ClientConfig { key, ..ClientConfig::default() });
            assert!(connect(Some(key("good", 1))).unwrap().ping().is_ok());
            for bad in [key("good", 2), key("unknown", 1)] {
                match connect(Some(bad)) {
                    Err(error @ Error::Handshake(_)) => {
                        assert_eq!(error.status(), Some(Status::AUTH_FAILED), "{error}");
                        assert!(error.to_string().contains("key"), "{error}");
                    }
                    other => panic!("{other:?}"),
                }
            }
        }
    }
}

// [SESS-90]
#[test]
fn client_is_ready_for_callbacks_beyond_its_replies() {
    let listener = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let url = format!("dafs+tcp://{}", listener.local_addr().unwrap());
    let config = ClientConfig { credits: 5, ..ClientConfig::default() };
    let connecting = std::thread::spawn(move || Session::connect(&url, &config).map(drop));
    let mut hello = [0; 32];
    let (mut stream, _) = listener.accept().unwrap();
    stream.read_exact(&mut hello).unwrap();
    drop((stream, listener));
    connecting.join().unwrap().expect_err("a server that hangs up");
    // Behind magic and version stands `recv_depth`: [TCP-1].
    assert_eq!(u16::from_le_bytes([hello[10], hello[11]]), 5 + 16);
}
