//! A hostile client against the real server: the bytes are read as a conversation of messages, handshakes, cuts and
//! waits on several connections.

mod bodies;

use std::cell::RefCell;
use std::rc::Rc;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use dafs_client::{Export, File, Session};
use dafs_proto::session::{ClientHandshake, ClientIntroduction, ClientSession};
use dafs_proto::transport::sim::{FaultPlan, NodeId, SimDomain};
use dafs_proto::transport::{
    Access, ConnectParams, Domain, Endpoint, LocalSegments, MemoryRef, OpToken, Received, Region, RegionKey,
    RemoteRange, WaitPolicy,
};
use dafs_proto::wire::{
    CHAIN_HANDLE, Features, FileHandle, Flags, HEAD_SIZE_MAX, HEADER_SIZE, Header, Opcode, OpenFlags,
    OpenRequest, Resume, Slot, Status, Welcome,
};

use super::input::Input;
use super::stage::{LEASE, PORT, ServerActor, Stage, client_config};
use super::storage::{CALM, FAULTY, Troubles};

const PEERS: usize = 3;
const DATA: &[u8] = b"what the other client wrote";
const REGION_SIZE: usize = 1 << 20;

/// Plays the conversation. The server must not panic, must keep a session beside it working, and must hold nothing of
/// it when its clients are gone.
pub fn server_session(data: &[u8]) {
    let mut input = Input::new(data);
    let rough = input.byte();
    let mut random = input.random();
    let mut ppm = |bit: u8, max: u64| match rough & bit {
        0 => 0,
        _ => u32::try_from(random.below(max)).unwrap_or(0),
    };
    let troubles = Troubles {
        would_block_ppm: ppm(1, 1_000_000),
        pending_ppm: ppm(2, 1_000_000),
        fail_ppm: ppm(4, 200_000),
        short_ppm: ppm(8, 200_000),
    };
    let plan = FaultPlan {
        full_ppm: ppm(16, 300_000),
        done_ppm: ppm(32, 1_000_000),
        remote_mapped: rough & 64 != 0,
        ..FaultPlan::calm()
    };
    let stage = Stage::new(random.number(), FaultPlan::calm(), |net| ServerActor::new(net, 7, troubles));
    let healthy = Healthy::new(&stage);
    stage.net.set_plan(plan);
    let tokens = Tokens::default();
    let mut peers: Vec<Peer> = (0..PEERS).map(|index| Peer::new(&stage, index, &tokens)).collect();
    let mut current = 0;
    while !input.is_empty() {
        let peer = &mut peers[current];
        match input.byte() % 32 {
            0..=12 => peer.request(&mut input),
            13..=16 => peer.collect(&stage),
            17 => current = input.below(PEERS),
            18 => peer.raw(&mut input),
            19 => peer.greet(&stage, false),
            20 => peer.greet(&stage, true),
            21 => peer.open(),
            22 => peer.cut(),
            23 => {
                let millis = input.number32().min(40_000);
                for _ in 0..8 {
                    stage.pass(Duration::from_millis(u64::from(millis / 8)));
                    healthy.check();
                }
            }
            24 => peer.register(&mut input),
            25 => peer.regions.clear(),
            26 => peer.again(&mut input),
            27 => peer.rdma(&mut input),
            28 => healthy.check(),
            _ => stage.pass(Duration::from_micros(50)),
        }
    }
    healthy.check();
    drop(peers);
    end(&stage, &healthy);
}

/// When the hostile clients are gone and their leases over, only what the other client uses is left.
fn end(stage: &Stage<ServerActor>, healthy: &Healthy) {
    for _ in 0..5 {
        stage.pass(LEASE / 4);
        healthy.check();
    }
    let actor = stage.actor();
    let counts = actor.server.statistics();
    assert_eq!((counts.sessions, counts.connections), (1, 1), "sessions and connections that are left");
    assert_eq!(counts.handles, 2, "handles that are left");
    assert_eq!(actor.open_count.load(Ordering::Relaxed), 1, "files that are left open");
    assert_eq!(counts.in_flight, 0, "operations that are left");
    assert_eq!(actor.server.buffers_lent(), 0, "bytes of buffers that are left");
}

struct Healthy {
    session: Session,
    file: File,
    _export: Export,
}

impl Healthy {
    fn new(stage: &Stage<ServerActor>) -> Self {
        let domain: Arc<dyn Domain> = Arc::new(stage.net.domain(NodeId(1)));
        let session =
            Session::connect_with(domain, PORT, &client_config(1), stage.clock()).expect("a healthy session");
        let export = session.mount(CALM).expect("the export is there");
        let file = export.create("file").expect("a new file");
        file.write_all_at(DATA, 0).expect("room");
        Self { session, file, _export: export }
    }

    fn check(&self) {
        let mut data = [0; DATA.len()];
        self.file.read_exact_at(&mut data, 0).expect("the other client does not notice");
        assert_eq!(data, DATA);
        assert_eq!(self.session.reconnects(), 0, "the other client does not notice");
    }
}

/// Tokens that the server has given to any of the peers.
type Tokens = Rc<RefCell<Vec<Vec<u8>>>>;

struct Peer {
    domain: SimDomain,
    index: u8,
    endpoint: Option<Box<dyn Endpoint>>,
    session: Option<ClientSession>,
    welcome: Option<Welcome>,
    handles: Vec<FileHandle>,
    tokens: Tokens,
    regions: Vec<Region>,
    last: (Vec<u8>, Vec<u8>),
}

impl Peer {
    fn new(stage: &Stage<ServerActor>, index: usize, tokens: &Tokens) -> Self {
        let mut peer = Self {
            domain: stage.net.domain(NodeId(10 + index as u32)),
            index: index as u8,
            endpoint: None,
            session: None,
            welcome: None,
            handles: Vec::new(),
            tokens: Rc::clone(tokens),
            regions: Vec::new(),
            last: (Vec::new(), Vec::new()),
        };
        // A place to begin from, which most conversations need.
        if index == 0 {
            peer.greet(stage, false);
            peer.prepare(stage);
        }
        peer
    }

    fn open(&mut self) {
        let params = ConnectParams { recv_depth: 8, wait: WaitPolicy::Event, ..ConnectParams::default() };
        self.endpoint = self.domain.connect(&PORT, &params, Duration::from_secs(1)).ok();
    }

    fn cut(&mut self) {
        if let Some(mut endpoint) = self.endpoint.take() {
            endpoint.close();
        }
    }

    /// Shakes hands on a new connection.
    fn greet(&mut self, stage: &Stage<ServerActor>, resume: bool) {
        self.open();
        let known = self.welcome.as_ref().filter(|_| resume);
        let introduction = ClientIntroduction {
            client_id: [100 + self.index; 16],
            client_name: "hostile".into(),
            uid: 0,
            gid: 0,
            groups: Vec::new(),
            features: Features::all(),
            slots: 8,
            key: None,
            resume: known.map(|welcome| Resume { session: welcome.session, secret: welcome.secret }),
        };
        let (handshake, hello) = ClientHandshake::begin(&introduction, [3; 32]);
        let Some(reply) = self.exchange(stage, Opcode::Hello, &hello) else { return };
        let Ok((proven, authenticate)) = handshake.on_hello_reply(reply.0, &reply.1) else { return };
        let Some(reply) = self.exchange(stage, Opcode::Authenticate, &authenticate) else { return };
        let Ok(welcome) = proven.on_authenticate_reply(reply.0, &reply.1) else { return };
        match (&mut self.session, welcome.resumed) {
            (Some(session), true) => session.on_resumed(&welcome),
            _ => {
                self.session = Some(ClientSession::new(&welcome));
                self.handles.clear();
            }
        }
        self.welcome = Some(welcome);
    }

    fn prepare(&mut self, stage: &Stage<ServerActor>) {
        self.send(Header::request(Opcode::Mount, FileHandle(0)), &[], FAULTY.as_bytes());
        stage.pass(Duration::from_millis(200));
        self.collect(stage);
        let mut body = [0; 8];
        let flags = OpenFlags::READ | OpenFlags::WRITE | OpenFlags::CREATE;
        OpenRequest { flags, mode: 0o644 }.encode(&mut body);
        let root = self.handles.last().copied().unwrap_or_default();
        self.send(Header::request(Opcode::Open, root), &body, b"file");
        stage.pass(Duration::from_millis(200));
        self.collect(stage);
        self.add_region(REGION_SIZE, Access::REMOTE_READ | Access::REMOTE_WRITE);
    }

    fn exchange(
        &mut self,
        stage: &Stage<ServerActor>,
        opcode: Opcode,
        payload: &[u8],
    ) -> Option<(Status, Vec<u8>)> {
        self.put(Header::request(opcode, FileHandle(0)), &[], payload);
        for _ in 0..20 {
            let endpoint = self.endpoint.as_mut()?;
            match endpoint.recv() {
                Ok(Some(Received::Message { head, payload_len })) => {
                    let (header, _) = Header::decode(head.as_bytes(), payload_len).ok()?;
                    return Some((header.status, endpoint.payload().to_vec()));
                }
                Ok(_) => stage.pass(Duration::from_micros(50)),
                Err(_) => {
                    self.endpoint = None;
                    return None;
                }
            }
        }
        None
    }

    /// Takes what has arrived.
    fn collect(&mut self, stage: &Stage<ServerActor>) {
        stage.pass(Duration::from_micros(100));
        while let Some(endpoint) = self.endpoint.as_mut() {
            match endpoint.recv() {
                Ok(Some(Received::Message { head, payload_len })) => {
                    let (header, _) =
                        Header::decode(head.as_bytes(), payload_len).expect("the server keeps the protocol");
                    if let Some(session) = &mut self.session {
                        // Not every reply is expected: this client does not keep the protocol.
                        let _ = session.on_reply(&header);
                    }
                    if header.opcode == Opcode::Share && header.status == Status::OK {
                        self.tokens.borrow_mut().push(endpoint.payload().to_vec());
                    }
                    if header.handle.0 != 0 {
                        self.handles.push(header.handle);
                    }
                }
                Ok(Some(Received::Immediate { .. })) => panic!("the server sends no immediates"),
                Ok(None) => break,
                Err(_) => self.endpoint = None,
            }
        }
    }

    /// Sends a request in a slot of its own.
    fn send(&mut self, mut header: Header, body: &[u8], payload: &[u8]) {
        let began = self.session.as_mut().and_then(|session| session.begin(&mut header, 8));
        if began.is_none() {
            header.sequence = 1;
        }
        self.put(header, body, payload);
    }

    fn put(&mut self, mut header: Header, body: &[u8], payload: &[u8]) {
        let mut head = vec![0; HEADER_SIZE + body.len()];
        header.head_len = head.len() as u16;
        header.payload_len = payload.len() as u32;
        header.encode(&mut head);
        head[HEADER_SIZE..].copy_from_slice(body);
        self.put_raw(head, payload.to_vec());
    }

    fn put_raw(&mut self, head: Vec<u8>, payload: Vec<u8>) {
        if let Some(endpoint) = &mut self.endpoint {
            // A full queue loses the message, and a closed connection shows when something is received.
            let _ = endpoint.send_copy(&head, &payload);
            let _ = endpoint.flush();
        }
        self.last = (head, payload);
    }

    /// A message of any bytes.
    fn raw(&mut self, input: &mut Input<'_>) {
        let head_len = 1 + input.below(HEAD_SIZE_MAX);
        let head = input.take(head_len).to_vec();
        let payload_len = input.number32().min(16 * 1024) as usize;
        let mut payload = input.take(16).to_vec();
        payload.resize(payload_len, 7);
        if !head.is_empty() {
            self.put_raw(head, payload);
        }
    }

    /// The last message once more, perhaps with a byte of its head changed.
    fn again(&mut self, input: &mut Input<'_>) {
        let (mut head, payload) = self.last.clone();
        let place = input.below(HEAD_SIZE_MAX);
        if let Some(byte) = head.get_mut(place) {
            *byte = input.byte();
        }
        if !head.is_empty() {
            self.put_raw(head, payload);
        }
    }

    fn add_region(&mut self, len: usize, access: Access) {
        let memory = MemoryRef::new(self.domain.allocate(len).expect("memory"));
        if let Ok(region) = self.domain.register(memory, access) {
            self.regions.push(region);
        }
    }

    fn register(&mut self, input: &mut Input<'_>) {
        let access = Access::from_bits_truncate(input.byte());
        if self.regions.len() < 4 {
            self.add_region(input.number().clamp(1, REGION_SIZE as u64) as usize, access);
        }
    }

    /// RDMA against the server, which registers nothing for its clients.
    fn rdma(&mut self, input: &mut Input<'_>) {
        let memory = MemoryRef::new(self.domain.allocate(4096).expect("memory"));
        let remote = RemoteRange { key: RegionKey(input.number()), offset: input.number(), len: 4096 };
        let local = LocalSegments::from_iter([memory.slice(0, 4096).expect("allocated")]);
        if let Some(endpoint) = &mut self.endpoint {
            let _ = match input.byte() % 3 {
                0 => endpoint.rdma_read(OpToken(1), local, remote),
                1 => endpoint.rdma_write(OpToken(2), local, remote, None),
                _ => endpoint.rdma_write(OpToken(3), local, remote, Some(9)),
            };
            let _ = endpoint.flush();
        }
    }

    /// A request that could be good, and some that are nearly.
    fn request(&mut self, input: &mut Input<'_>) {
        let common = [
            Opcode::Read,
            Opcode::Write,
            Opcode::Append,
            Opcode::Open,
            Opcode::Close,
            Opcode::Readdir,
            Opcode::ReadList,
            Opcode::WriteList,
            Opcode::Batch,
            Opcode::Share,
            Opcode::OpenToken,
            Opcode::ViewSet,
            Opcode::ReadView,
            Opcode::WriteView,
        ];
        let opcode = match input.byte() {
            choice if choice < 128 => common[usize::from(choice) % common.len()],
            choice => Opcode::ALL[usize::from(choice - 128) % Opcode::ALL.len()],
        };
        let handle = match input.byte() {
            choice if choice < 16 => CHAIN_HANDLE,
            choice if choice < 32 => FileHandle(input.number()),
            choice => {
                self.handles.get(usize::from(choice) % self.handles.len().max(1)).copied().unwrap_or_default()
            }
        };
        let mut header = Header::request(opcode, handle);
        let detail = input.byte();
        if detail & 0xc0 == 0xc0 {
            header.flags = Flags::from_bits_truncate(u16::from(input.byte()));
            header.deadline_ms = input.number32();
        }
        let (body, payload) = self.body(opcode, input);
        match detail & 0x3f {
            0 => {
                header.slot = Slot(input.number32());
                header.sequence = input.number32();
                self.put(header, &body, &payload);
            }
            1 => {
                let cut = input.below(body.len() + 1);
                self.send(header, &body[..cut], &payload);
            }
            _ => self.send(header, &body, &payload),
        }
    }
}
