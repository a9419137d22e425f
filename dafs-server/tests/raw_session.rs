//! A session driven by hand, message by message, against the real server in a thread: what the client library would hide.
#![allow(clippy::unwrap_used, reason = "all of this is test code, helpers included")]

use std::time::Duration;

use dafs_proto::session::{ClientHandshake, ClientIntroduction, ClientSession};
use dafs_proto::transport::shm::ShmDomain;
use dafs_proto::transport::tcp::TcpDomain;
use dafs_proto::transport::{
    Access, Address, ConnectParams, Domain, Endpoint, MemoryRef, Received, WaitPolicy,
};
use dafs_proto::wire::{
    Attributes, FileHandle, Flags, HEADER_SIZE, Header, Method, MountReply, NoticeKind, Opcode, OpenFlags,
    OpenRequest, ReadReply, ReadRequest, Stability, Status, Welcome, WriteReply, WriteRequest,
    decode_message_pack,
};
use dafs_server::Running;
use dafs_server::access::{AccessConfig, ServerIdentity};
use dafs_server::config::{Config, ExportConfig, ExportKind};

struct Raw {
    endpoint: Box<dyn Endpoint>,
    domain: Box<dyn Domain>,
    session: ClientSession,
    welcome: Welcome,
}

struct Reply {
    header: Header,
    body: Vec<u8>,
    payload: Vec<u8>,
}

fn serve(listen: Address, directory: &std::path::Path) -> Running {
    let config = Config {
        exports: vec![ExportConfig::new("data", ExportKind::Directory(directory.to_owned()))],
        listeners: vec![listen],
        access: AccessConfig { server: ServerIdentity::of_process().unwrap(), ..AccessConfig::default() },
        poll: WaitPolicy::Event,
        calibrate: false,
        ..Config::default()
    };
    Running::start(config).unwrap()
}

impl Raw {
    fn connect(address: &Address) -> Self {
        let domain: Box<dyn Domain> = match address {
            Address::Shm(_) => Box::new(ShmDomain::new()),
            _ => Box::new(TcpDomain::new()),
        };
        let params = ConnectParams { wait: WaitPolicy::Event, ..ConnectParams::default() };
        let mut endpoint = domain.connect(address, &params, Duration::from_secs(10)).unwrap();
        let introduction = ClientIntroduction {
            client_id: [1; 16],
            client_name: "raw".into(),
            uid: 0,
            gid: 0,
            groups: vec![],
            slots: 16,
            key: None,
            resume: None,
        };
        let (handshake, hello) = ClientHandshake::begin(&introduction, [9; 32]);
        let reply = exchange(&mut *endpoint, Header::request(Opcode::Hello, FileHandle(0)), &[], &hello);
        let (proven, authenticate) = handshake.on_hello_reply(reply.header.status, &reply.payload).unwrap();
        let reply = exchange(
            &mut *endpoint,
            Header::request(Opcode::Authenticate, FileHandle(0)),
            &[],
            &authenticate,
        );
        let welcome = proven.on_authenticate_reply(reply.header.status, &reply.payload).unwrap();
        Self { endpoint, domain, session: ClientSession::new(&welcome), welcome }
    }

    fn call(&mut self, mut header: Header, body: &[u8], payload: &[u8]) -> Reply {
        self.session.begin(&mut header, 16).expect("credits are there");
        let reply = exchange(&mut *self.endpoint, header, body, payload);
        self.session.on_reply(&reply.header).unwrap();
        reply
    }

    fn mount(&mut self) -> FileHandle {
        let reply = self.call(Header::request(Opcode::Mount, FileHandle(0)), &[], b"data");
        assert_eq!(reply.header.status, Status::OK);
        let mount: MountReply = decode_message_pack("mount", &reply.payload).unwrap();
        assert!(!mount.read_only);
        reply.header.handle
    }

    fn open(&mut self, root: FileHandle, path: &[u8], flags: OpenFlags) -> Reply {
        let mut body = [0; 8];
        OpenRequest { flags, mode: 0o644 }.encode(&mut body);
        self.call(Header::request(Opcode::Open, root), &body, path)
    }
}

fn exchange(endpoint: &mut dyn Endpoint, header: Header, body: &[u8], payload: &[u8]) -> Reply {
    send(endpoint, header, body, payload);
    receive(endpoint).expect("a reply")
}

fn send(endpoint: &mut dyn Endpoint, mut header: Header, body: &[u8], payload: &[u8]) {
    let mut head = vec![0; HEADER_SIZE + body.len()];
    header.head_len = u16::try_from(head.len()).unwrap();
    header.payload_len = u32::try_from(payload.len()).unwrap();
    header.encode(&mut head);
    head[HEADER_SIZE..].copy_from_slice(body);
    endpoint.send_copy(&head, payload).unwrap();
    endpoint.flush().unwrap();
}

/// The next message; `None` when the server closed the connection.
fn receive(endpoint: &mut dyn Endpoint) -> Option<Reply> {
    loop {
        match endpoint.recv() {
            Ok(Some(Received::Message { head, payload_len })) => {
                let (header, body) = Header::decode(head.as_bytes(), payload_len).unwrap();
                return Some(Reply { header, body: body.to_vec(), payload: endpoint.payload().to_vec() });
            }
            Ok(Some(other)) => panic!("unexpected {other:?}"),
            Ok(None) => endpoint.wait(Some(Duration::from_secs(30))).ok()?,
            Err(_) => return None,
        }
    }
}

fn read(offset: u64, len: u32, segment: Option<[u64; 3]>) -> Vec<u8> {
    let mut body = vec![0; 40];
    let method = if segment.is_some() { Method::Direct } else { Method::Inline };
    let segment_count = u16::from(segment.is_some());
    ReadRequest { offset, len, method, segment_count, segment: segment.unwrap_or_default() }
        .encode(&mut body);
    body
}

fn write(offset: u64, len: u32, stability: Stability, segment: Option<[u64; 3]>) -> Vec<u8> {
    let mut body = vec![0; 40];
    let method = if segment.is_some() { Method::Direct } else { Method::Inline };
    let segment_count = u16::from(segment.is_some());
    let segment = segment.unwrap_or_default();
    WriteRequest { offset, len, method, stability, segment_count, segment }.encode(&mut body);
    body
}

fn inline_and_direct(address: Address) {
    let directory = tempfile::tempdir().unwrap();
    let running = serve(address, directory.path());
    let mut raw = Raw::connect(&running.addresses()[0]);
    assert!(raw.welcome.slots >= 1);
    let root = raw.mount();
    let opened = raw.open(root, b"file", OpenFlags::READ | OpenFlags::WRITE | OpenFlags::CREATE);
    assert_eq!(opened.header.status, Status::OK);
    let attributes: Attributes = decode_message_pack("attributes", &opened.payload).unwrap();
    assert_eq!((attributes.size, attributes.mode), (0, 0o644));
    let file = opened.header.handle;

    let reply =
        raw.call(Header::request(Opcode::Write, file), &write(0, 5, Stability::FileSync, None), b"hello");
    assert_eq!(WriteReply::decode(&reply.body).unwrap().count, 5);
    let reply = raw.call(Header::request(Opcode::Read, file), &read(1, 100, None), &[]);
    assert_eq!(reply.payload, b"ello");
    assert_eq!(ReadReply::decode(&reply.body).unwrap(), ReadReply { count: 4, end_of_file: true });

    const LEN: u32 = 3 << 20;
    let memory = MemoryRef::new(raw.domain.allocate(LEN as usize).unwrap());
    let pattern: Vec<u8> = (0..LEN).map(|i| (i % 251) as u8).collect();
    memory.span().write_from(0, &pattern);
    let region = raw.domain.register(memory.clone(), Access::REMOTE_READ | Access::REMOTE_WRITE).unwrap();
    let range = region.range();
    let segment = Some([range.key.0, range.offset, u64::from(LEN)]);
    let reply =
        raw.call(Header::request(Opcode::Write, file), &write(10, LEN, Stability::Unstable, segment), &[]);
    assert_eq!(WriteReply::decode(&reply.body).unwrap().count, LEN);
    memory.span().zero();
    let reply = raw.call(Header::request(Opcode::Read, file), &read(10, LEN, segment), &[]);
    assert_eq!(ReadReply::decode(&reply.body).unwrap(), ReadReply { count: LEN, end_of_file: false });
    assert!(memory.span().slice(0, LEN as usize).unwrap().to_vec() == pattern);
    assert_eq!(&std::fs::read(directory.path().join("file")).unwrap()[10..], &pattern[..]);

    // An append through RDMA answers where it went.
    let reply =
        raw.call(Header::request(Opcode::Append, file), &write(0, LEN, Stability::Unstable, segment), &[]);
    assert_eq!(WriteReply::decode(&reply.body).unwrap().offset, 10 + u64::from(LEN));
    // A read that reaches the end is short.
    let reply =
        raw.call(Header::request(Opcode::Read, file), &read(10 + 2 * u64::from(LEN) - 7, LEN, segment), &[]);
    assert_eq!(ReadReply::decode(&reply.body).unwrap(), ReadReply { count: 7, end_of_file: true });
}

fn chain_and_errors(address: Address) {
    let directory = tempfile::tempdir().unwrap();
    std::fs::write(directory.path().join("file"), b"chained").unwrap();
    let running = serve(address, directory.path());
    let mut raw = Raw::connect(&running.addresses()[0]);
    let root = raw.mount();
    // Open, read and close in one round trip. [SESS-30] [SESS-31]
    let links = [
        (Opcode::Open, root, Flags::CHAIN_FORWARD | Flags::SAVE_HANDLE, {
            let mut body = vec![0; 8];
            OpenRequest { flags: OpenFlags::READ, mode: 0 }.encode(&mut body);
            body
        }),
        (Opcode::Read, FileHandle(u64::MAX), Flags::CHAIN_FORWARD | Flags::CHAIN_BACK, read(0, 100, None)),
        (Opcode::Close, FileHandle(u64::MAX), Flags::CHAIN_BACK, vec![]),
    ];
    for path in [&b"file"[..], b"missing"] {
        for (opcode, handle, flags, body) in &links {
            let mut header = Header { flags: *flags, ..Header::request(*opcode, *handle) };
            raw.session.begin(&mut header, 16).unwrap();
            send(&mut *raw.endpoint, header, body, if *opcode == Opcode::Open { path } else { &[] });
        }
        let replies: Vec<Reply> = (0..3).map(|_| receive(&mut *raw.endpoint).unwrap()).collect();
        for reply in &replies {
            raw.session.on_reply(&reply.header).unwrap();
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
    let reply = raw.call(Header::request(Opcode::Read, root), &read(0, 1 << 31, Some([1, 0, 1 << 31])), &[]);
    assert_eq!(reply.header.status, Status::INVALID);
    // A broken protocol ends the session, with a reason. [SESS-13] [SESS-45]
    let header = Header {
        slot: dafs_proto::wire::Slot(999),
        sequence: 1,
        ..Header::request(Opcode::Null, FileHandle(0))
    };
    send(&mut *raw.endpoint, header, &[], &[]);
    let notice = receive(&mut *raw.endpoint).expect("a notice");
    assert_eq!(notice.header.opcode, Opcode::Notice);
    assert_eq!(notice.body, NoticeKind::ProtocolError.value().to_le_bytes());
    assert!(String::from_utf8(notice.payload).unwrap().contains("slot 999 does not exist"));
    assert!(receive(&mut *raw.endpoint).is_none(), "the connection is closed");
}

mod tcp {
    use super::*;

    fn address() -> Address {
        Address::Tcp("127.0.0.1:0".parse().unwrap())
    }

    #[test]
    fn data_inline_and_direct_arrives() {
        inline_and_direct(address());
    }

    #[test]
    fn chains_run_and_errors_are_told() {
        chain_and_errors(address());
    }
}

mod shm {
    use super::*;

    fn with_socket(run: fn(Address)) {
        let directory = tempfile::tempdir().unwrap();
        run(Address::Shm(directory.path().join("socket")));
    }

    #[test]
    fn data_inline_and_direct_arrives() {
        with_socket(inline_and_direct);
    }

    #[test]
    fn chains_run_and_errors_are_told() {
        with_socket(chain_and_errors);
    }
}
