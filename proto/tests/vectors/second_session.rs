//! `spec/vectors/session-2.txt`: the session core and the tcp provider make these very bytes, and take them. RDMA, lists, locks, and a
//! session that is resumed.

use std::collections::HashMap;
use std::io::{Read, Write};
use std::net::{TcpListener, TcpStream};
use std::sync::Arc;
use std::time::Duration;

use dafs_proto::extent::Extent;
use dafs_proto::session::{ClientHandshake, ClientIntroduction, ClientSession};
use dafs_proto::transport::tcp::TcpDomain;
use dafs_proto::transport::tcp::frame::{Frame, Hello};
use dafs_proto::transport::{
    Access, Address, Domain, Endpoint, HeapMemory, MemoryRef, Received, Region, RegionKey,
};
use dafs_proto::wire::{
    Attributes, FileHandle, Flags, Header, ListFlags, ListReadReply, ListRequest, LockFlags, LockKind,
    LockRequest, LockTurn, Method, Opcode, OpenFlags, OpenRequest, ReadReply, ReadRequest, Resume, Sieve,
    Stability, Status, UnlockRequest, Verifier, Welcome, WriteReply, WriteRequest, decode_message_pack,
    encode_lists, lists_size,
};

use crate::session::{PAYLOAD_MAX, introduction, params};
use crate::{from_hex, head, hex};

const SESSION: &str = include_str!("../../../spec/vectors/session-2.txt");

/// Of the regions that the server reads and writes, as the file has them.
const KEYS: [u64; 2] = [0x1122_3344_5566_7788, 0x99aa_bbcc_ddee_ff00];

const WRITTEN: &[u8] = b"Hello, direct world!";

/// A line of bytes: who sends it, in which step, and which part of it.
struct Line {
    from_client: bool,
    step: &'static str,
    part: &'static str,
    bytes: Vec<u8>,
}

fn lines() -> Vec<Line> {
    let line = |line: &'static str| {
        let (name, bytes) = line.split_once(": ")?;
        let (side, rest) = name.split_once(' ')?;
        let (step, part) = rest.rsplit_once(' ').unwrap_or(("", rest));
        let is_bytes = bytes.bytes().all(|byte| byte == b' ' || byte.is_ascii_hexdigit());
        (is_bytes && ["client", "server"].contains(&side)).then(|| {
            let bytes = from_hex(bytes);
            Line { from_client: side == "client", step, part, bytes }
        })
    };
    SESSION.lines().filter_map(line).collect()
}

/// The server's side, as the file has it. The client's regions have other keys, which stand in place of those of the file.
fn serve(listener: &TcpListener, keys: [u64; 2]) {
    let mut stream: Option<TcpStream> = None;
    for Line { from_client, step, part, mut bytes } in lines() {
        for (golden, real) in KEYS.iter().zip(keys) {
            let places: Vec<usize> = (0..bytes.len().saturating_sub(7))
                .filter(|at| bytes[*at..at + 8] == golden.to_le_bytes())
                .collect();
            places.into_iter().for_each(|at| bytes[at..at + 8].copy_from_slice(&real.to_le_bytes()));
        }
        if from_client && part == "hello" {
            // What the server has to say on the connection before is lost with it.
            stream = Some(listener.accept().unwrap().0);
        }
        let stream = stream.as_mut().expect("a hello comes first");
        if !from_client {
            stream.write_all(&bytes).unwrap();
            continue;
        }
        let mut found = vec![0; bytes.len()];
        stream.read_exact(&mut found).unwrap_or_else(|error| panic!("{step} {part}: {error}"));
        assert_eq!(hex(&found), hex(&bytes), "{step} {part}");
    }
}

/// The client's side, by the session core.
struct Client {
    endpoint: Box<dyn Endpoint>,
    session: Option<ClientSession>,
    turns: Vec<LockTurn>,
}

/// What a server answers.
struct Reply {
    header: Header,
    body: Vec<u8>,
    payload: Vec<u8>,
}

impl Client {
    fn connect(domain: &TcpDomain, address: &Address) -> Box<dyn Endpoint> {
        domain.connect(address, &params(PAYLOAD_MAX[0], 128), Duration::from_secs(30)).unwrap()
    }

    /// Shakes hands without a key.
    fn introduce(&mut self, nonce: u8, resume: Option<Resume>) -> Welcome {
        let introduction =
            ClientIntroduction { client_name: "example (2)".into(), key: None, resume, ..introduction() };
        let nonce = std::array::from_fn(|place| nonce + place as u8);
        let (handshake, hello) = ClientHandshake::begin(&introduction, nonce);
        let reply = self.call(Header::request(Opcode::Hello, FileHandle(0)), &[], &hello);
        let (proven, proof) = handshake.on_hello_reply(reply.header.status, &reply.payload).unwrap();
        let reply = self.call(Header::request(Opcode::Authenticate, FileHandle(0)), &[], &proof);
        proven.on_authenticate_reply(reply.header.status, &reply.payload).unwrap()
    }

    fn call(&mut self, mut header: Header, body: &[u8], payload: &[u8]) -> Reply {
        if let Some(session) = &mut self.session {
            session.begin(&mut header, 4).unwrap();
        }
        self.send(header, body, payload);
        self.reply(header.opcode).expect("the connection lasts")
    }

    fn send(&mut self, header: Header, body: &[u8], payload: &[u8]) {
        let header = Header { payload_len: u32::try_from(payload.len()).unwrap(), ..header };
        let bytes = head(header, |room| room.copy_from_slice(body), body.len());
        self.endpoint.send_copy(&bytes, payload).unwrap();
        self.endpoint.flush().unwrap();
    }

    /// The next reply, after the callbacks before it; `None` when the connection ends first.
    fn reply(&mut self, opcode: Opcode) -> Option<Reply> {
        loop {
            let (header, body) = self.message()?;
            if header.flags.contains(Flags::CALLBACK) {
                self.take_callback(&header, &body);
                continue;
            }
            assert_eq!(header.opcode, opcode);
            // The handshake is no part of the slots.
            if let Some(session) = self.session.as_mut().filter(|_| header.sequence > 0) {
                session.on_reply(&header).unwrap();
            }
            return Some(Reply { header, body, payload: self.endpoint.payload().to_vec() });
        }
    }

    fn message(&mut self) -> Option<(Header, Vec<u8>)> {
        loop {
            match self.endpoint.recv() {
                Ok(Some(Received::Message { head, payload_len })) => {
                    let (header, body) = Header::decode(head.as_bytes(), payload_len).unwrap();
                    return Some((header, body.to_vec()));
                }
                Ok(other) => assert!(other.is_none(), "{other:?}"),
                Err(_) => return None,
            }
            self.endpoint.wait(Some(Duration::from_secs(30))).unwrap();
        }
    }

    fn take_callback(&mut self, header: &Header, body: &[u8]) {
        assert_eq!(header.opcode, Opcode::LockTurn);
        self.session.as_mut().unwrap().on_callback(header).unwrap();
        self.turns.push(LockTurn::decode(body).unwrap());
    }

    fn wait_for_turn(&mut self) -> LockTurn {
        while self.turns.is_empty() {
            let (header, body) = self.message().expect("the connection lasts");
            self.take_callback(&header, &body);
        }
        self.turns.remove(0)
    }
}

fn region(domain: &TcpDomain, len: usize, access: Access) -> Region {
    domain.register(MemoryRef::new(Arc::new(HeapMemory::allocate(len).unwrap())), access).unwrap()
}

fn encoded<const N: usize>(encode: impl FnOnce(&mut [u8])) -> [u8; N] {
    let mut body = [0; N];
    encode(&mut body);
    body
}

fn written(reply: &Reply) -> (u64, u32) {
    let WriteReply { offset, count, stability, verifier } = WriteReply::decode(&reply.body).unwrap();
    assert_eq!((stability, verifier), (Stability::Unstable, Verifier(0x0102_0304_0506_0708)));
    (offset, count)
}

/// A direct write, and a direct read.
fn transfer(client: &mut Client, file: FileHandle, [source, target]: [&Region; 2]) {
    source.memory().span().write_from(0, WRITTEN);
    let whole = |region: &Region, len| [region.range().key.0, region.range().offset, len];
    let write = WriteRequest {
        offset: 0,
        len: 20,
        method: Method::Direct,
        stability: Stability::Unstable,
        segment_count: 1,
        segment: whole(source, 20),
    };
    let reply =
        client.call(Header::request(Opcode::Write, file), &encoded::<40>(|body| write.encode(body)), &[]);
    assert_eq!(written(&reply), (0, 20));
    let read = ReadRequest {
        offset: 0,
        len: 32,
        method: Method::Direct,
        segment_count: 1,
        segment: whole(target, 32),
    };
    let reply =
        client.call(Header::request(Opcode::Read, file), &encoded::<40>(|body| read.encode(body)), &[]);
    assert_eq!(ReadReply::decode(&reply.body), Ok(ReadReply { count: 20, end_of_file: true }));
    assert_eq!(&target.memory().span().to_vec()[..20], WRITTEN);
}

/// A list that is written inline, and one that is read directly.
fn transfer_lists(client: &mut Client, file: FileHandle, target: &Region) {
    let [begin, end] = [Extent::new(0, 5), Extent::new(7, 6)];
    let request = ListRequest {
        len: 11,
        method: Method::Inline,
        stability: Stability::Unstable,
        sieve: Sieve::Auto,
        flags: ListFlags::default(),
        extent_count: 2,
        segment_count: 0,
    };
    let mut payload = vec![0; lists_size(2, 0)];
    encode_lists([end, begin].into_iter(), &[], &mut payload);
    payload.extend(b"listedHOWDY");
    let body = encoded::<16>(|body| request.encode(body));
    let reply = client.call(Header::request(Opcode::WriteList, file), &body, &payload);
    assert_eq!(written(&reply), (0, 11));
    let range = |offset, len| [target.range().key.0, target.range().offset + offset, len];
    let mut payload = vec![0; lists_size(2, 2)];
    encode_lists([begin, end].into_iter(), &[range(0, 5), range(16, 6)], &mut payload);
    let request = ListRequest { method: Method::Direct, segment_count: 2, ..request };
    let body = encoded::<16>(|body| request.encode(body));
    let reply = client.call(Header::request(Opcode::ReadList, file), &body, &payload);
    assert_eq!(ListReadReply::decode(&reply.body), Ok(ListReadReply { count: 11, end: None }));
    assert_eq!(&target.memory().span().to_vec()[..22], b"HOWDY, direct wolisted");
}

/// A lock of one owner, for which another waits.
fn lock(client: &mut Client, file: FileHandle) {
    let lock = |owner, flags| {
        let request = LockRequest { offset: 0, len: 5, owner, kind: LockKind::Exclusive, flags };
        encoded::<32>(|body| request.encode(body))
    };
    let unlock = |owner| encoded::<24>(|body| UnlockRequest { offset: 0, len: 5, owner }.encode(body));
    let mut ask = |opcode, body: &[u8]| {
        let status = client.call(Header::request(opcode, file), body, &[]).header.status;
        (status, client.turns.len())
    };
    assert_eq!(ask(Opcode::Lock, &lock(1, LockFlags::empty())), (Status::OK, 0));
    let waiting = lock(2, LockFlags::WAIT | LockFlags::NOTIFY);
    assert_eq!(ask(Opcode::Lock, &waiting), (Status::WAITING, 0));
    assert_eq!(ask(Opcode::Unlock, &unlock(1)).0, Status::OK);
    let turn = client.wait_for_turn();
    assert_eq!(turn, LockTurn { handle: file.0, offset: 0, len: 5, owner: 2 });
    for (opcode, body) in [(Opcode::Lock, &waiting[..]), (Opcode::Unlock, &unlock(2))] {
        assert_eq!(client.call(Header::request(opcode, file), body, &[]).header.status, Status::OK);
    }
}

// [SESS-50] [SESS-51] [TCP-11] [LOCK-25] [LOCK-68]
#[test]
fn client_sends_and_takes_the_bytes_of_the_second_session() {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = Address::Tcp(listener.local_addr().unwrap());
    let domain = TcpDomain::new();
    let [source, target] = [(20, Access::REMOTE_READ), (64, Access::REMOTE_WRITE)]
        .map(|(len, access)| region(&domain, len, access));
    let keys = [&source, &target].map(|region| {
        let RegionKey(key) = region.range().key;
        key
    });
    let server = std::thread::spawn(move || serve(&listener, keys));

    let endpoint = Client::connect(&domain, &address);
    let mut client = Client { endpoint, session: None, turns: Vec::new() };
    let welcome = client.introduce(1, None);
    client.session = Some(ClientSession::new(&welcome));
    let root = client.call(Header::request(Opcode::Mount, FileHandle(0)), &[], b"data").header.handle;
    let open = OpenRequest { flags: OpenFlags::READ | OpenFlags::WRITE | OpenFlags::CREATE, mode: 0o644 };
    let body = encoded::<8>(|body| open.encode(body));
    let opened = client.call(Header::request(Opcode::Open, root), &body, b"notes.txt");
    assert_eq!(decode_message_pack::<Attributes>("open", &opened.payload).unwrap().size, 0);
    let file = opened.header.handle;
    transfer(&mut client, file, [&source, &target]);
    transfer_lists(&mut client, file, &target);
    lock(&mut client, file);

    let mut append = Header::request(Opcode::Append, file);
    let sent = client.session.as_mut().unwrap().begin(&mut append, 4).unwrap();
    let request = WriteRequest {
        offset: 0,
        len: 4,
        method: Method::Inline,
        stability: Stability::Unstable,
        segment_count: 0,
        segment: [0; 3],
    };
    let body = encoded::<40>(|body| request.encode(body));
    client.send(append, &body, b" End");
    client.endpoint = Client::connect(&domain, &address);
    let core = client.session.take().unwrap();
    let resumed = client.introduce(0x21, Some(Resume { session: welcome.session, secret: welcome.secret }));
    assert!(resumed.resumed && resumed.server_epoch == welcome.server_epoch);
    let session = client.session.insert(core);
    session.on_resumed(&resumed);
    session.again(&mut append, sent.slot);
    client.send(append, &body, b" End");
    let reply = client.reply(Opcode::Append).expect("the kept reply");
    assert_eq!(written(&reply), (20, 4));
    client.call(Header::request(Opcode::Bye, FileHandle(0)), &[], &[]);
    server.join().unwrap();
}

#[test]
fn hellos_and_frames_of_the_second_session_are_those_of_the_transport() {
    let lines = lines();
    let mut bodies: HashMap<(bool, &str), Vec<u8>> = HashMap::new();
    for Line { from_client, step, bytes, .. } in
        lines.iter().filter(|line| !["frame", "hello"].contains(&line.part))
    {
        bodies.entry((*from_client, *step)).or_default().extend(bytes);
    }
    let mut hellos = 0;
    for Line { from_client, step, part, bytes } in &lines {
        let body = bodies.get(&(*from_client, *step)).map_or(&[][..], Vec::as_slice);
        match *part {
            "hello" => {
                let (payload_max, rdma_depth) =
                    if *from_client { (PAYLOAD_MAX[0], 128) } else { (PAYLOAD_MAX[1], 256) };
                assert_eq!(hex(bytes), hex(&Hello::new(&params(payload_max, rdma_depth)).encode()));
                hellos += 1;
            }
            "frame" => {
                let frame = Frame::decode(bytes.as_slice().try_into().unwrap()).unwrap();
                assert_eq!(hex(bytes), hex(&frame.encode()), "{step}");
                assert_eq!(frame.body_len(), body.len() as u64, "{step}");
            }
            "head" => {
                let payload_len = u32::try_from(body.len() - bytes.len()).unwrap();
                assert!(Header::decode(bytes, payload_len).is_ok(), "{step}");
            }
            _ => (),
        }
    }
    assert_eq!(hellos, 4);
}
