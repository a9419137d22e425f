//! A client driven by hand, message by message: what the client library would never send.

use std::time::Duration;

use dafs_proto::session::{ClientHandshake, ClientIntroduction, ClientSession};
use dafs_proto::transport::shm::ShmDomain;
use dafs_proto::transport::tcp::TcpDomain;
use dafs_proto::transport::{
    Access, Address, ConnectParams, Domain, Endpoint, MemoryRef, Received, Region, WaitPolicy,
};
use dafs_proto::wire::{
    FileHandle, HEADER_SIZE, Header, Method, NoticeKind, Opcode, OpenFlags, OpenRequest, ReadRequest,
    Stability, Status, WriteRequest,
};

/// A connection with a session on it.
pub(crate) struct Raw {
    /// The provider's side.
    pub(crate) endpoint: Box<dyn Endpoint>,
    /// Registers memory for the server.
    pub(crate) domain: Box<dyn Domain>,
    /// Slots and credits.
    pub(crate) session: ClientSession,
}

/// A message from the server.
#[derive(Debug)]
pub(crate) struct Message {
    /// Its header.
    pub(crate) header: Header,
    /// Its body.
    pub(crate) body: Vec<u8>,
    /// Its payload.
    pub(crate) payload: Vec<u8>,
}

/// A provider's domain and a connection without a handshake of the session.
pub(crate) fn connect(address: &Address) -> (Box<dyn Domain>, Box<dyn Endpoint>) {
    let domain: Box<dyn Domain> = match address {
        Address::Shm(_) => Box::new(ShmDomain::new()),
        _ => Box::new(TcpDomain::new()),
    };
    let params = ConnectParams { wait: WaitPolicy::Event, ..ConnectParams::default() };
    let endpoint = domain.connect(address, &params, Duration::from_secs(10)).expect("a connection");
    (domain, endpoint)
}

impl Raw {
    /// Opens a session.
    pub(crate) fn open(address: &Address) -> Self {
        let (domain, mut endpoint) = connect(address);
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
        send(&mut *endpoint, Header::request(Opcode::Hello, FileHandle(0)), &[], &hello);
        let reply = receive(&mut *endpoint).expect("an answer to hello");
        let (proven, authenticate) =
            handshake.on_hello_reply(reply.header.status, &reply.payload).expect("welcome");
        send(&mut *endpoint, Header::request(Opcode::Authenticate, FileHandle(0)), &[], &authenticate);
        let reply = receive(&mut *endpoint).expect("an answer to authenticate");
        let welcome = proven.on_authenticate_reply(reply.header.status, &reply.payload).expect("a session");
        Self { endpoint, domain, session: ClientSession::new(&welcome) }
    }

    /// A request in a slot of its own, and its reply.
    pub(crate) fn call(&mut self, mut header: Header, body: &[u8], payload: &[u8]) -> Message {
        self.session.begin(&mut header, 16).expect("credits are there");
        send(&mut *self.endpoint, header, body, payload);
        let reply = receive(&mut *self.endpoint).expect("a reply");
        self.session.on_reply(&reply.header).expect("the reply of this request");
        reply
    }

    /// The root of an export.
    pub(crate) fn mount(&mut self, name: &str) -> FileHandle {
        let reply = self.call(Header::request(Opcode::Mount, FileHandle(0)), &[], name.as_bytes());
        assert_eq!(reply.header.status, Status::OK);
        reply.header.handle
    }

    /// A file for reading and writing, made when it is not there.
    pub(crate) fn create(&mut self, root: FileHandle, path: &[u8]) -> FileHandle {
        let mut body = [0; 8];
        let flags = OpenFlags::READ | OpenFlags::WRITE | OpenFlags::CREATE;
        OpenRequest { flags, mode: 0o644 }.encode(&mut body);
        let reply = self.call(Header::request(Opcode::Open, root), &body, path);
        assert_eq!(reply.header.status, Status::OK);
        reply.header.handle
    }

    /// Registers new memory.
    pub(crate) fn region(&self, len: usize, access: Access) -> Region {
        let memory = MemoryRef::new(self.domain.allocate(len).expect("memory"));
        self.domain.register(memory, access).expect("a region")
    }

    /// Expects that the server says what is wrong and closes the connection; answers its words.
    pub(crate) fn last_words(&mut self) -> String {
        last_words(&mut *self.endpoint)
    }
}

/// See [`Raw::last_words`]. Replies that come before are dropped.
pub(crate) fn last_words(endpoint: &mut dyn Endpoint) -> String {
    let mut words = String::new();
    while let Some(message) = receive(endpoint) {
        if message.header.opcode == Opcode::Notice {
            assert_eq!(message.body, NoticeKind::ProtocolError.value().to_le_bytes());
            words = String::from_utf8(message.payload).expect("text");
        }
    }
    words
}

/// Sends a message whose lengths are right.
pub(crate) fn send(endpoint: &mut dyn Endpoint, mut header: Header, body: &[u8], payload: &[u8]) {
    let mut head = vec![0; HEADER_SIZE + body.len()];
    header.head_len = u16::try_from(head.len()).expect("short");
    header.payload_len = u32::try_from(payload.len()).expect("short");
    header.encode(&mut head);
    head[HEADER_SIZE..].copy_from_slice(body);
    endpoint.send_copy(&head, payload).expect("room");
    endpoint.flush().expect("an open connection");
}

/// The next message; `None` when the server closed the connection.
pub(crate) fn receive(endpoint: &mut dyn Endpoint) -> Option<Message> {
    loop {
        match endpoint.recv() {
            Ok(Some(Received::Message { head, payload_len })) => {
                let (header, body) =
                    Header::decode(head.as_bytes(), payload_len).expect("the server keeps the protocol");
                return Some(Message { header, body: body.to_vec(), payload: endpoint.payload().to_vec() });
            }
            Ok(Some(other)) => panic!("unexpected {other:?}"),
            Ok(None) => endpoint.wait(Some(Duration::from_secs(30))).ok()?,
            Err(_) => return None,
        }
    }
}

/// Body of a read; direct when there is a segment.
pub(crate) fn read_body(offset: u64, len: u32, segment: Option<[u64; 3]>) -> Vec<u8> {
    let mut body = vec![0; ReadRequest::HEAD_SIZE - HEADER_SIZE];
    let method = if segment.is_some() { Method::Direct } else { Method::Inline };
    let segment_count = u16::from(segment.is_some());
    ReadRequest { offset, len, method, segment_count, segment: segment.unwrap_or_default() }
        .encode(&mut body);
    body
}

/// Body of an unstable write; direct when there is a segment.
pub(crate) fn write_body(offset: u64, len: u32, segment: Option<[u64; 3]>) -> Vec<u8> {
    let mut body = vec![0; WriteRequest::HEAD_SIZE - HEADER_SIZE];
    let method = if segment.is_some() { Method::Direct } else { Method::Inline };
    let segment_count = u16::from(segment.is_some());
    let (stability, segment) = (Stability::Unstable, segment.unwrap_or_default());
    WriteRequest { offset, len, method, stability, segment_count, segment }.encode(&mut body);
    body
}
