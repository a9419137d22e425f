//! `spec/vectors/session.txt`: the session core and the tcp provider make these very bytes, and take them.

use std::io::{Read, Write};
use std::net::{TcpListener, TcpStream};
use std::sync::Arc;
use std::time::Duration;

use dafs_proto::session::{
    ClientHandshake, ClientIntroduction, ClientSession, Key, KeySource, ServerHandshake, ServerTerms,
};
use dafs_proto::transport::tcp::TcpDomain;
use dafs_proto::transport::tcp::frame::{Frame, Hello};
use dafs_proto::transport::{Address, ConnectParams, Domain, Endpoint, Received, WaitPolicy};
use dafs_proto::wire::{
    Attributes, AuthenticateReply, Features, FileHandle, Header, MountReply, Opcode, OpenFlags, OpenRequest,
    ReadReply, ReadRequest, Status, Welcome, decode_message_pack, encode_message_pack,
};

use crate::{from_hex, head, hex};

const SESSION: &str = include_str!("../../../spec/vectors/session.txt");

/// The steps after the transport's hellos.
const STEPS: [Opcode; 6] =
    [Opcode::Hello, Opcode::Authenticate, Opcode::Mount, Opcode::Open, Opcode::Read, Opcode::Bye];

pub(crate) const PAYLOAD_MAX: [u32; 2] = [16_384, 65_536];

fn line(name: &str) -> Vec<u8> {
    optional(name).unwrap_or_else(|| panic!("spec/vectors/session.txt has no line {name:?}"))
}

fn optional(name: &str) -> Option<Vec<u8>> {
    SESSION.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix(": ")).map(from_hex)
}

/// All bytes of a message on the stream.
fn message(side: &str, opcode: Opcode) -> Vec<u8> {
    let part = |part: &str| optional(&format!("{side} {opcode:?} {part}")).unwrap_or_default();
    [part("frame"), part("head"), part("payload")].concat()
}

pub(crate) fn params(recv_payload_max: u32, rdma_depth: u16) -> ConnectParams {
    ConnectParams {
        recv_payload_max,
        recv_depth: 80,
        rdma_depth,
        wait: WaitPolicy::Event,
        ..ConnectParams::default()
    }
}

struct Keys(Key);

impl KeySource for Keys {
    fn key(&self, name: &str) -> Option<Key> {
        (name == self.0.name).then(|| self.0.clone())
    }
}

fn key() -> Key {
    Key { name: "lab".into(), secret: Arc::from(std::array::from_fn::<u8, 32, _>(|place| place as u8)) }
}

pub(crate) fn introduction() -> ClientIntroduction {
    ClientIntroduction {
        client_id: std::array::from_fn(|place| 0x10 + place as u8),
        client_name: "example (1)".into(),
        uid: 1000,
        gid: 100,
        groups: vec![100, 27],
        // Over TCP there are no files to hand over.
        features: Features::all() - Features::LOCAL_FILES - Features::CLUSTER,
        slots: 4,
        key: Some(key()),
        resume: None,
    }
}

/// The server's side, as the file has it.
fn serve(mut stream: TcpStream) {
    let exchange = |stream: &mut TcpStream, asked: &[u8], answer: &[u8], what: &str| {
        let mut found = vec![0; asked.len()];
        stream.read_exact(&mut found).unwrap_or_else(|error| panic!("{what}: {error}"));
        assert_eq!(hex(&found), hex(asked), "{what}");
        stream.write_all(answer).unwrap();
    };
    exchange(&mut stream, &line("client hello"), &line("server hello"), "the transport's hello");
    for opcode in STEPS {
        exchange(&mut stream, &message("client", opcode), &message("server", opcode), opcode.name());
    }
}

/// The client's side, by the session core.
struct Client {
    endpoint: Box<dyn Endpoint>,
    session: Option<ClientSession>,
}

impl Client {
    fn call(&mut self, mut header: Header, body: &[u8], payload: &[u8]) -> (Header, Vec<u8>, Vec<u8>) {
        if let Some(session) = &mut self.session {
            session.begin(&mut header, 4).unwrap();
        }
        let header = Header { payload_len: u32::try_from(payload.len()).unwrap(), ..header };
        let bytes = head(header, |room| room.copy_from_slice(body), body.len());
        self.endpoint.send_copy(&bytes, payload).unwrap();
        self.endpoint.flush().unwrap();
        loop {
            match self.endpoint.recv().unwrap() {
                Some(Received::Message { head, payload_len }) => {
                    let (reply, body) = Header::decode(head.as_bytes(), payload_len).unwrap();
                    assert_eq!((reply.opcode, reply.status), (header.opcode, Status::OK));
                    if let Some(session) = &mut self.session {
                        session.on_reply(&reply).unwrap();
                    }
                    return (reply, body.to_vec(), self.endpoint.payload().to_vec());
                }
                other => assert!(other.is_none(), "{other:?}"),
            }
            self.endpoint.wait(Some(Duration::from_secs(30))).unwrap();
        }
    }
}

// [SESS-1] [SESS-2] [SESS-141]
#[test]
fn client_sends_and_takes_the_bytes_of_the_session() {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = Address::Tcp(listener.local_addr().unwrap());
    let server = std::thread::spawn(move || serve(listener.accept().unwrap().0));
    let endpoint = TcpDomain::new().connect(&address, &params(PAYLOAD_MAX[0], 128), Duration::from_secs(30));
    let mut client = Client { endpoint: endpoint.unwrap(), session: None };

    let nonce = std::array::from_fn(|place| 1 + place as u8);
    let (handshake, hello) = ClientHandshake::begin(&introduction(), nonce);
    let (reply, _, payload) = client.call(Header::request(Opcode::Hello, FileHandle(0)), &[], &hello);
    let (proven, proof) = handshake.on_hello_reply(reply.status, &payload).unwrap();
    let (reply, _, payload) = client.call(Header::request(Opcode::Authenticate, FileHandle(0)), &[], &proof);
    let welcome = proven.on_authenticate_reply(reply.status, &payload).unwrap();
    client.session = Some(ClientSession::new(&welcome));

    let (reply, _, payload) = client.call(Header::request(Opcode::Mount, FileHandle(0)), &[], b"data");
    assert!(!decode_message_pack::<MountReply>("mount", &payload).unwrap().read_only);
    let mut body = [0; 8];
    OpenRequest { flags: OpenFlags::READ, mode: 0 }.encode(&mut body);
    let (reply, _, payload) = client.call(Header::request(Opcode::Open, reply.handle), &body, b"hello.txt");
    assert_eq!(decode_message_pack::<Attributes>("open", &payload).unwrap().size, 12);
    let mut body = [0; 40];
    let method = dafs_proto::wire::Method::Inline;
    ReadRequest { offset: 0, len: 100, method, segment_count: 0, segment: [0; 3] }.encode(&mut body);
    let (_, body, payload) = client.call(Header::request(Opcode::Read, reply.handle), &body, &[]);
    assert_eq!(ReadReply::decode(&body), Ok(ReadReply { count: 12, end_of_file: true }));
    assert_eq!(payload, b"Hello, dafs!");
    client.call(Header::request(Opcode::Bye, FileHandle(0)), &[], &[]);
    server.join().unwrap();
}

// [SESS-2] [SESS-82]
#[test]
fn server_makes_the_bytes_of_the_handshake() {
    let nonce = std::array::from_fn(|place| 0x80 + place as u8);
    let terms = ServerTerms { key_required: true };
    let (handshake, reply) = ServerHandshake::on_hello(
        &line("client Hello payload"),
        terms,
        &Keys(key()),
        nonce,
        "dafs-server 0.1.0",
    )
    .unwrap();
    assert_eq!(hex(&reply), hex(&line("server Hello payload")));
    let (_, proven, proof) = handshake.on_authenticate(&line("client Authenticate payload")).unwrap();
    assert_eq!((proven, hex(&proof)), (Some(key()), hex(&line("server proof"))));
    let sent = line("server Authenticate payload");
    let AuthenticateReply { welcome, .. } = decode_message_pack("reply", &sent).unwrap();
    let Welcome { session, slots, credits, server_epoch, gather, .. } = welcome.clone();
    assert_eq!((session.0, server_epoch), (0x0123_4567_89ab_cdef, 0x1122_3344_5566_7788));
    assert_eq!((slots, credits, gather), (4, 4, None));
    assert_eq!(hex(&encode_message_pack(&AuthenticateReply { proof, welcome })), hex(&sent));
    assert!(hex(&line("client Authenticate payload")).ends_with(&hex(&line("client proof"))));
}

#[test]
fn hellos_and_frames_of_the_session_are_those_of_the_transport() {
    for (side, payload_max, rdma_depth) in [("client", PAYLOAD_MAX[0], 128), ("server", PAYLOAD_MAX[1], 256)]
    {
        let hello = Hello::new(&params(payload_max, rdma_depth));
        assert_eq!(hex(&line(&format!("{side} hello"))), hex(&hello.encode()));
        for opcode in STEPS {
            let [head, payload] = ["head", "payload"]
                .map(|part| optional(&format!("{side} {opcode:?} {part}")).unwrap_or_default());
            let payload_len = u32::try_from(payload.len()).unwrap();
            let frame = Frame::Send { head_len: u8::try_from(head.len()).unwrap(), payload_len };
            assert_eq!(hex(&line(&format!("{side} {opcode:?} frame"))), hex(&frame.encode()), "{opcode:?}");
            assert!(Header::decode(&head, payload_len).is_ok(), "{side} {opcode:?}");
        }
    }
}
