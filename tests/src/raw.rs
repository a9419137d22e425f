//! A client that speaks the protocol by hand, message by message, and may break its rules.

use std::time::Duration;

use dafs_proto::session::{ClientHandshake, ClientIntroduction};
use dafs_proto::transport::shm::ShmDomain;
use dafs_proto::transport::tcp::TcpDomain;
use dafs_proto::transport::{Address, ConnectParams, Domain, Endpoint, Received, WaitPolicy};
use dafs_proto::wire::{FileHandle, HEADER_SIZE, Header, NoticeKind, Opcode, Resume, Status, Welcome};

/// A connection, before or after its handshake.
pub struct Raw {
    /// The connection.
    pub endpoint: Box<dyn Endpoint>,
    _domain: Box<dyn Domain>,
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

/// Who a raw client says it is.
pub fn introduction(slots: u16, resume: Option<Resume>) -> ClientIntroduction {
    ClientIntroduction {
        client_id: [5; 16],
        client_name: "raw".into(),
        uid: 0,
        gid: 0,
        groups: vec![],
        slots,
        key: None,
        resume,
    }
}

impl Raw {
    /// Connects, and says nothing yet.
    pub fn connect(address: &Address) -> Self {
        let domain: Box<dyn Domain> = match address {
            Address::Shm(_) => Box::new(ShmDomain::new()),
            _ => Box::new(TcpDomain::new()),
        };
        let params = ConnectParams { wait: WaitPolicy::Event, ..ConnectParams::default() };
        let endpoint = domain.connect(address, &params, Duration::from_secs(10)).expect("a connection");
        Self { endpoint, _domain: domain }
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
        Ok(proven.on_authenticate_reply(reply.header.status, &reply.payload).expect("a welcome"))
    }

    /// Connects and shakes hands.
    pub fn session(address: &Address, slots: u16) -> (Self, Welcome) {
        let mut raw = Self::connect(address);
        let welcome = raw.shake(&introduction(slots, None)).expect("a session");
        (raw, welcome)
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

    /// The next message; `None` when the server closed the connection.
    pub fn receive(&mut self) -> Option<Message> {
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
