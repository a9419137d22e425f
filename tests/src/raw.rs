//! A client that speaks the protocol by hand, message by message, and may break its rules.

use std::sync::Arc;
use std::time::Duration;

use dafs_proto::session::{ClientHandshake, ClientIntroduction, ClientSession};
use dafs_proto::transport::shm::ShmDomain;
use dafs_proto::transport::tcp::TcpDomain;
use dafs_proto::transport::{
    Access, Address, ConnectParams, Domain, Endpoint, MemoryRef, Received, Region, WaitPolicy,
};
use dafs_proto::wire::{
    Features, FileHandle, HEADER_SIZE, Header, Method, NoticeKind, Opcode, OpenFlags, OpenRequest,
    ReadRequest, Resume, Stability, Status, Welcome, WriteRequest,
};

use crate::harness::key_for;

/// A connection, before or after its handshake.
pub struct Raw {
    /// The connection.
    pub endpoint: Box<dyn Endpoint>,
    /// Registers memory for the server.
    pub domain: Arc<dyn Domain>,
    /// Slots and credits, after the handshake; for those who keep the rules.
    slots: Option<ClientSession>,
}

/// A message of the server.
#[derive(Clone, Debug)]
pub struct Message {
    /// Its header.
    pub header: Header,
    /// What follows the header.
    pub body: Vec<u8>,
    /// Its payload.
    pub payload: Vec<u8>,
}

/// Who a raw client of the server at `server` says it is.
pub fn introduction(server: &Address, slots: u16, resume: Option<Resume>) -> ClientIntroduction {
    ClientIntroduction {
        client_id: [5; 16],
        client_name: "raw".into(),
        uid: 0,
        gid: 0,
        groups: vec![],
        features: Features::all(),
        slots,
        key: key_for(server),
        resume,
    }
}

/// A domain of the provider that serves an address.
pub fn domain(address: &Address) -> Arc<dyn Domain> {
    match address {
        Address::Shm(_) => Arc::new(ShmDomain::new()),
        #[cfg(feature = "verbs")]
        Address::Verbs(_) => Arc::new(dafs_proto::transport::verbs::VerbsDomain::new()),
        _ => Arc::new(TcpDomain::new()),
    }
}

impl Raw {
    /// Connects, and says nothing yet.
    pub fn connect(address: &Address) -> Self {
        Self::connect_from(domain(address), address)
    }

    /// The same, from a domain whose memory the server may know from before.
    pub fn connect_from(domain: Arc<dyn Domain>, address: &Address) -> Self {
        Self::connect_with(domain, address, &ConnectParams::default())
    }

    /// The same, and takes payloads of so many bytes at most.
    pub fn connect_taking(address: &Address, recv_payload_max: u32) -> Self {
        let params = ConnectParams { recv_payload_max, ..ConnectParams::default() };
        Self::connect_with(domain(address), address, &params)
    }

    /// The same, and takes so many messages before their user does.
    pub fn connect_with_depth(address: &Address, recv_depth: u16) -> Self {
        let params = ConnectParams { recv_depth, ..ConnectParams::default() };
        Self::connect_with(domain(address), address, &params)
    }

    fn connect_with(domain: Arc<dyn Domain>, address: &Address, params: &ConnectParams) -> Self {
        let params = ConnectParams { wait: WaitPolicy::Event, ..*params };
        let endpoint = domain.connect(address, &params, Duration::from_secs(10)).expect("a connection");
        Self { endpoint, domain, slots: None }
    }

    /// Shakes hands; the status is that of the reply that ended it.
    pub fn shake(&mut self, introduction: &ClientIntroduction) -> Result<Welcome, Status> {
        let (handshake, hello) = ClientHandshake::begin(introduction, [9; 32]);
        let reply = self.ask(Header::request(Opcode::Hello, FileHandle(0)), &[], &hello);
        if reply.header.status != Status::OK {
            return Err(reply.header.status);
        }
        let (proven, proof) =
            handshake.on_hello_reply(reply.header.status, &reply.payload).expect("an answer to Hello");
        let reply = self.ask(Header::request(Opcode::Authenticate, FileHandle(0)), &[], &proof);
        if reply.header.status != Status::OK {
            return Err(reply.header.status);
        }
        let welcome = proven.on_authenticate_reply(reply.header.status, &reply.payload).expect("a welcome");
        self.slots = Some(ClientSession::new(&welcome));
        Ok(welcome)
    }

    /// Connects and shakes hands.
    pub fn session(address: &Address, slots: u16) -> (Self, Welcome) {
        let mut raw = Self::connect(address);
        let welcome = raw.shake(&introduction(address, slots, None)).expect("a session");
        (raw, welcome)
    }

    /// Requests that may be outstanding.
    pub fn credits(&self) -> u16 {
        self.slots.as_ref().map_or(0, |slots| slots.credits().limit())
    }

    /// Gives a request a slot of its own.
    pub fn begin(&mut self, header: &mut Header) {
        self.slots.as_mut().and_then(|slots| slots.begin(header, 16)).expect("a session with credits");
    }

    /// The slot of this reply's request is free again.
    pub fn end(&mut self, reply: &Message) {
        let slots = self.slots.as_mut().expect("a session");
        slots.on_reply(&reply.header).expect("the reply of a request");
    }

    /// A request in a slot of its own, and its reply.
    pub fn call(&mut self, mut header: Header, body: &[u8], payload: &[u8]) -> Message {
        self.begin(&mut header);
        let reply = self.ask(header, body, payload);
        self.end(&reply);
        reply
    }

    /// The root of an export.
    pub fn mount(&mut self, name: &str) -> FileHandle {
        let reply = self.call(Header::request(Opcode::Mount, FileHandle(0)), &[], name.as_bytes());
        assert_eq!(reply.header.status, Status::OK);
        reply.header.handle
    }

    /// Opens a file.
    pub fn open(&mut self, root: FileHandle, path: &[u8], flags: OpenFlags) -> Message {
        let mut body = [0; 8];
        OpenRequest { flags, mode: 0o644 }.encode(&mut body);
        self.call(Header::request(Opcode::Open, root), &body, path)
    }

    /// A file for reading and writing, made when it is not there.
    pub fn create(&mut self, root: FileHandle, path: &[u8]) -> FileHandle {
        let reply = self.open(root, path, OpenFlags::READ | OpenFlags::WRITE | OpenFlags::CREATE);
        assert_eq!(reply.header.status, Status::OK);
        reply.header.handle
    }

    /// Registers new memory.
    pub fn region(&self, len: usize, access: Access) -> Region {
        let memory = MemoryRef::new(self.domain.allocate(len).expect("memory"));
        self.domain.register(memory, access).expect("a region")
    }

    /// Sends a message and waits for the next one.
    pub fn ask(&mut self, header: Header, body: &[u8], payload: &[u8]) -> Message {
        self.send(header, body, payload);
        self.receive().expect("an answer")
    }

    /// Sends a message; its lengths are filled in.
    pub fn send(&mut self, mut header: Header, body: &[u8], payload: &[u8]) {
        let mut head = vec![0; HEADER_SIZE + body.len()];
        header.head_len = u16::try_from(head.len()).expect("a short head");
        header.payload_len = u32::try_from(payload.len()).expect("a short payload");
        header.encode(&mut head);
        head[HEADER_SIZE..].copy_from_slice(body);
        self.send_bytes(&head, payload);
    }

    /// Sends a head as it is. That the server has closed the connection meanwhile is found by the next receive.
    pub fn send_bytes(&mut self, head: &[u8], payload: &[u8]) {
        if self.endpoint.send_copy(head, payload).is_ok() {
            let _ = self.endpoint.flush();
        }
    }

    /// The next message; `None` when the server closed the connection. Raised credits are taken note of.
    pub fn receive(&mut self) -> Option<Message> {
        loop {
            let message = self.receive_any()?;
            match self.slots {
                Some(_) if message.header.opcode == Opcode::CreditTarget => {
                    self.note_credits(&message.header)
                }
                _ => return Some(message),
            }
        }
    }

    /// Takes note of credits that this header of the server raises.
    pub fn note_credits(&mut self, header: &Header) {
        self.slots.as_mut().expect("a session").on_credit_target(header.credits);
    }

    /// The next message, be it one that raises the credits, which are left as they are; `None` when the server closed the connection.
    pub fn receive_any(&mut self) -> Option<Message> {
        loop {
            match self.endpoint.recv() {
                Ok(Some(Received::Message { head, payload_len })) => {
                    let (header, body) = Header::decode(head.as_bytes(), payload_len).expect("a header");
                    let payload = self.endpoint.payload().to_vec();
                    return Some(Message { header, body: body.to_vec(), payload });
                }
                Ok(Some(other)) => panic!("unexpected {other:?}"),
                Ok(None) => self.endpoint.wait(Some(Duration::from_secs(30))).ok()?,
                Err(_) => return None,
            }
        }
    }

    /// The connection ends; what the server said of the reason meanwhile.
    pub fn ending(&mut self) -> Option<String> {
        let mut reason = None;
        while let Some(message) = self.receive() {
            if message.header.opcode == Opcode::Notice
                && message.body == NoticeKind::ProtocolError.value().to_le_bytes()
            {
                reason = Some(String::from_utf8_lossy(&message.payload).into_owned());
            }
        }
        reason
    }
}

/// A request in a slot.
pub fn request(opcode: Opcode, slot: u32, sequence: u32) -> Header {
    let mut header = Header::request(opcode, FileHandle(0));
    header.slot = dafs_proto::wire::Slot(slot);
    header.sequence = sequence;
    header.credits = 16;
    header
}

/// Body of a read; direct when there is a segment.
pub fn read_body(offset: u64, len: u32, segment: Option<[u64; 3]>) -> Vec<u8> {
    let mut body = vec![0; ReadRequest::HEAD_SIZE - HEADER_SIZE];
    let method = if segment.is_some() { Method::Direct } else { Method::Inline };
    let segment_count = u16::from(segment.is_some());
    ReadRequest { offset, len, method, segment_count, segment: segment.unwrap_or_default() }
        .encode(&mut body);
    body
}

/// Body of an unstable write or append; direct when there is a segment.
pub fn write_body(offset: u64, len: u32, segment: Option<[u64; 3]>) -> Vec<u8> {
    stable_write_body(offset, len, Stability::Unstable, segment)
}

/// As [`write_body`], as durable as asked for.
pub fn stable_write_body(offset: u64, len: u32, stability: Stability, segment: Option<[u64; 3]>) -> Vec<u8> {
    let mut body = vec![0; WriteRequest::HEAD_SIZE - HEADER_SIZE];
    let method = if segment.is_some() { Method::Direct } else { Method::Inline };
    let segment_count = u16::from(segment.is_some());
    let segment = segment.unwrap_or_default();
    WriteRequest { offset, len, method, stability, segment_count, segment }.encode(&mut body);
    body
}

/// All that a client over tcp sends until it has made the file `by-hand` in the export `data`, without waiting for an answer: the
/// transport's hello, and what comes behind it.
pub fn whole_client(server: &Address) -> (Vec<u8>, Vec<u8>) {
    use dafs_proto::transport::tcp::frame::{Frame, Hello};
    use dafs_proto::wire::{Authenticate, CHAIN_HANDLE, Flags, encode_message_pack};
    let (_, hello) = ClientHandshake::begin(&introduction(server, 4, None), [9; 32]);
    let proof = encode_message_pack(&Authenticate { proof: Vec::new() });
    let mut mount = request(Opcode::Mount, 0, 1);
    mount.flags = Flags::CHAIN_FORWARD | Flags::SAVE_HANDLE;
    let mut open = request(Opcode::Open, 1, 1);
    open.flags = Flags::CHAIN_BACK;
    open.handle = CHAIN_HANDLE;
    let mut flags = [0; 8];
    let create = OpenFlags::READ | OpenFlags::WRITE | OpenFlags::CREATE;
    OpenRequest { flags: create, mode: 0o644 }.encode(&mut flags);
    let messages: [(Header, &[u8], &[u8]); 4] = [
        (Header::request(Opcode::Hello, FileHandle(0)), &[], &hello),
        (Header::request(Opcode::Authenticate, FileHandle(0)), &[], &proof),
        (mount, &[], b"data"),
        (open, &flags, b"by-hand"),
    ];
    let mut bytes = Vec::new();
    for (mut header, body, payload) in messages {
        let head_len = HEADER_SIZE + body.len();
        header.head_len = u16::try_from(head_len).expect("a short head");
        header.payload_len = u32::try_from(payload.len()).expect("a short payload");
        let frame = Frame::Send {
            head_len: u8::try_from(head_len).expect("a short head"),
            payload_len: header.payload_len,
        };
        bytes.extend(frame.encode());
        let mut head = vec![0; HEADER_SIZE];
        header.encode(&mut head);
        bytes.extend([&head, body, payload].concat());
    }
    (Hello::new(&ConnectParams::default()).encode().to_vec(), bytes)
}
