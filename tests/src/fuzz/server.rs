//! A hostile client against the real server: the bytes are read as a conversation of messages, handshakes, cuts and
//! waits on several connections.

use std::cell::RefCell;
use std::rc::Rc;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use dafs_client::{Export, File, Session};
use dafs_proto::extent::Extent;
use dafs_proto::session::{ClientHandshake, ClientIntroduction, ClientSession};
use dafs_proto::transport::sim::{FaultPlan, NodeId, SimDomain};
use dafs_proto::transport::{
    Access, ConnectParams, Domain, Endpoint, LocalSegments, MemoryRef, OpToken, Received, Region, RegionKey,
    RemoteRange, WaitPolicy,
};
use dafs_proto::wire::{
    AllocateRequest, BatchFlags, BatchOperation, BatchRequest, CHAIN_HANDLE, CommitRequest, FileHandle,
    Flags, HEAD_SIZE_MAX, HEADER_SIZE, Header, HintRequest, ListRequest, Lists, Method, NameRequest, Opcode,
    OpenFlags, OpenRequest, ReadRequest, ReaddirRequest, RemoveRequest, RenameRequest, Resume, SeekRequest,
    SeekWhat, SetAttributes, ShareRequest, Slot, Stability, Status, TOKEN_SIZE, TwoNames, Welcome,
    WriteRequest, XattrNames, encode_lists, encode_message_pack, encode_segments, lists_size,
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

    fn segment(&self, input: &mut Input<'_>, len: u64) -> [u64; 3] {
        let region = self.regions.get(input.below(self.regions.len().max(1)));
        match (input.byte(), region) {
            (0..=15, _) | (_, None) => [input.number(), input.number(), len],
            (16..=31, Some(region)) => [region.range().key.0, input.number(), len],
            (_, Some(region)) => [region.range().key.0, region.range().offset, len],
        }
    }

    /// A batch that is nearly always good, into `body`; its payload.
    fn batch(&self, input: &mut Input<'_>, stability: Stability, body: &mut [u8]) -> Vec<u8> {
        let count = input.below(6);
        let (mut payload, mut written) = (Vec::new(), 0);
        for _ in 0..count {
            let handle = self.handles.get(input.below(self.handles.len().max(1))).copied();
            let len = u64::from(input.number32() % 5000);
            let kind = input.byte();
            let write = kind.is_multiple_of(2);
            let method = if kind < 128 { Method::Direct } else { Method::Inline };
            let segments = match method {
                Method::Inline => Vec::new(),
                _ => vec![self.segment(input, len)],
            };
            let lists = Lists { extents: vec![Extent::new(input.number() % (1 << 20), len)], segments };
            let stability = if write { stability } else { Stability::Unstable };
            let handle = handle.filter(|_| input.byte() >= 16).unwrap_or(CHAIN_HANDLE);
            written += if write && method == Method::Inline { len as usize } else { 0 };
            BatchOperation { handle, write, method, stability, lists: lists.into() }.encode(&mut payload);
        }
        let flags = BatchFlags::from_bits_truncate(u32::from(input.byte()));
        let notify = u32::from(flags.contains(BatchFlags::NOTIFY));
        let mut lie = || if input.byte() < 16 { input.number32() } else { 0 };
        let (operations, data) = (count as u32 ^ lie(), written as u32 ^ lie());
        payload.resize(payload.len() + written, 0x5a);
        let request = BatchRequest {
            operations,
            flags,
            window_us: notify * input.number32(),
            completions: notify * input.number32(),
            data,
        };
        request.encode(body);
        if input.byte() < 8 {
            payload.truncate(input.below(payload.len() + 1));
        }
        payload.truncate(16 * 1024);
        payload
    }

    /// A list request that is nearly always good, into `body`; its payload.
    fn list(&self, input: &mut Input<'_>, writes: bool, stability: Stability, body: &mut [u8]) -> Vec<u8> {
        let count = input.below(9);
        let extents: Vec<Extent> = (0..count)
            .map(|_| Extent::new(input.number() % (1 << 20), u64::from(input.number32() % 5000)))
            .collect();
        let len = extents.iter().map(|extent| extent.len).sum::<u64>() as u32;
        let inline = input.byte().is_multiple_of(2);
        let mut segments = Vec::new();
        if !inline {
            let first = u64::from(len).min(input.number() % 10_000);
            segments = vec![self.segment(input, first), self.segment(input, u64::from(len) - first)];
        }
        let lie = if input.byte() < 16 { input.number32() } else { 0 };
        let request = ListRequest {
            len: len ^ if lie % 3 == 1 { lie } else { 0 },
            method: if inline { Method::Inline } else { Method::Direct },
            stability,
            extent_count: extents.len() as u32 ^ if lie % 3 == 2 { lie } else { 0 },
            segment_count: segments.len() as u32,
        };
        request.encode(body);
        let mut payload = vec![0; lists_size(extents.len(), segments.len())];
        encode_lists(extents.iter().copied(), &segments, &mut payload);
        if inline && writes {
            payload.resize(payload.len() + len as usize, 5);
        }
        payload.truncate(16 * 1024);
        payload
    }

    /// Length, method, segments and payload of a read or write.
    fn transfer(&self, input: &mut Input<'_>, writes: bool) -> (u32, Method, u16, [u64; 3], Vec<u8>) {
        let len = input.number32().min(if input.byte() < 8 { u32::MAX } else { 1 << 20 });
        match input.byte() % 4 {
            0 => {
                let inline = len.min(16 * 1024);
                (
                    inline,
                    Method::Inline,
                    0,
                    [0; 3],
                    if writes { vec![5; inline as usize] } else { Vec::new() },
                )
            }
            1 => {
                let count = 2 + input.below(6) as u64;
                let each = u64::from(len) / count;
                let mut segments: Vec<[u64; 3]> = (0..count).map(|_| self.segment(input, each)).collect();
                if let Some(last) = segments.last_mut() {
                    last[2] = u64::from(len) - each * (count - 1);
                }
                let mut payload = vec![0; 24 * segments.len()];
                encode_segments(&segments, &mut payload);
                (len, Method::Direct, count as u16, [0; 3], payload)
            }
            _ => (len, Method::Direct, 1, self.segment(input, len.into()), Vec::new()),
        }
    }

    fn body(&self, opcode: Opcode, input: &mut Input<'_>) -> (Vec<u8>, Vec<u8>) {
        let mut body = vec![0; 72];
        let stability = [Stability::Unstable, Stability::DataSync, Stability::FileSync][input.below(3)];
        let (len, payload) = match opcode {
            Opcode::Read => {
                let (len, method, segment_count, segment, payload) = self.transfer(input, false);
                let offset = input.number();
                ReadRequest { offset, len, method, segment_count, segment }.encode(&mut body);
                (ReadRequest::HEAD_SIZE, payload)
            }
            Opcode::Write | Opcode::Append => {
                let (len, method, segment_count, segment, payload) = self.transfer(input, true);
                let offset = if opcode == Opcode::Append { 0 } else { input.number() };
                WriteRequest { offset, len, method, stability, segment_count, segment }.encode(&mut body);
                (WriteRequest::HEAD_SIZE, payload)
            }
            Opcode::ReadList | Opcode::WriteList => {
                let payload = self.list(input, opcode == Opcode::WriteList, stability, &mut body);
                (ListRequest::HEAD_SIZE, payload)
            }
            Opcode::Batch => {
                let payload = self.batch(input, stability, &mut body);
                (BatchRequest::HEAD_SIZE, payload)
            }
            Opcode::Open => {
                let flags = OpenFlags::from_bits_truncate(u32::from(input.byte()));
                OpenRequest { flags, mode: 0o644 }.encode(&mut body);
                (OpenRequest::HEAD_SIZE, path(input))
            }
            Opcode::Share => {
                let rights = OpenFlags::from_bits_truncate(u32::from(input.byte() % 5));
                ShareRequest { rights, ttl_ms: input.number32() }.encode(&mut body);
                (ShareRequest::HEAD_SIZE, Vec::new())
            }
            Opcode::OpenToken => (HEADER_SIZE, self.token(input)),
            Opcode::Readdir => {
                let len = input.number32();
                let segment =
                    if input.byte().is_multiple_of(2) { [0; 3] } else { self.segment(input, len.into()) };
                ReaddirRequest { cookie: input.number(), len, segment, attributes: true }.encode(&mut body);
                (ReaddirRequest::HEAD_SIZE, Vec::new())
            }
            Opcode::Commit => {
                CommitRequest { offset: input.number(), len: input.number(), stability }.encode(&mut body);
                (CommitRequest::HEAD_SIZE, Vec::new())
            }
            Opcode::Truncate | Opcode::Allocate | Opcode::Punch => {
                let len = if opcode == Opcode::Truncate { 0 } else { input.number() };
                AllocateRequest { offset: input.number(), len }.encode(&mut body);
                (AllocateRequest::HEAD_SIZE, Vec::new())
            }
            Opcode::Seek => {
                let what = [SeekWhat::Data, SeekWhat::Hole][input.below(2)];
                SeekRequest { offset: input.number(), what }.encode(&mut body);
                (SeekRequest::HEAD_SIZE, Vec::new())
            }
            Opcode::Hint => {
                let (offset, len, pattern) = (input.number(), input.number(), input.number32());
                HintRequest { offset, len, pattern }.encode(&mut body);
                (HintRequest::HEAD_SIZE, Vec::new())
            }
            Opcode::Rename | Opcode::Link => {
                let second_handle = self.handles.first().map_or(0, |handle| handle.0);
                RenameRequest { second_handle, replace: input.byte().is_multiple_of(2) }.encode(&mut body);
                (RenameRequest::HEAD_SIZE, two_names(input))
            }
            Opcode::Remove => {
                RemoveRequest { directory: input.byte().is_multiple_of(2) }.encode(&mut body);
                (RemoveRequest::HEAD_SIZE, path(input))
            }
            _ => return self.name_body(opcode, input),
        };
        body.truncate(len - HEADER_SIZE);
        (body, payload)
    }

    /// A token, nearly always one that was given.
    fn token(&self, input: &mut Input<'_>) -> Vec<u8> {
        let tokens = self.tokens.borrow();
        match (input.byte(), tokens.get(input.below(tokens.len().max(1)))) {
            (16.., Some(token)) => token.clone(),
            (8.., Some(token)) => token[..input.below(token.len() + 1)].to_vec(),
            _ => vec![input.byte(); TOKEN_SIZE],
        }
    }

    fn name_body(&self, opcode: Opcode, input: &mut Input<'_>) -> (Vec<u8>, Vec<u8>) {
        let mut body = vec![0; NameRequest::HEAD_SIZE - HEADER_SIZE];
        NameRequest { follow: input.byte().is_multiple_of(2), mode: 0 }.encode(&mut body);
        match opcode {
            Opcode::Lookup | Opcode::Getattr | Opcode::Mkdir | Opcode::Readlink => (body, path(input)),
            Opcode::AccessCheck => {
                NameRequest { follow: true, mode: input.number32() % 16 }.encode(&mut body);
                (body, path(input))
            }
            Opcode::Symlink => (body, two_names(input)),
            Opcode::Setattr => {
                let set = SetAttributes { mode: Some(input.number32()), ..SetAttributes::default() };
                let mut payload = path(input);
                payload.extend(encode_message_pack(&set));
                (body, payload)
            }
            Opcode::XattrRead | Opcode::XattrWrite | Opcode::XattrList | Opcode::XattrRemove => {
                let (path, value) = (path(input), vec![1; input.number32().min(8000) as usize]);
                let name: &[u8] = [&b"user.a"[..], b"", b"system.b"][input.below(3)];
                let value: &[u8] = if opcode == Opcode::XattrWrite { &value } else { &[] };
                let names = XattrNames { path: &path, name, value };
                let mut payload = vec![0; names.size()];
                names.encode(&mut payload);
                (body, payload)
            }
            Opcode::Mount => (Vec::new(), FAULTY.as_bytes().to_vec()),
            Opcode::FenceWrite => (Vec::new(), encode_message_pack(&vec![[100 + self.index; 16]])),
            _ => (Vec::new(), Vec::new()),
        }
    }
}

fn path(input: &mut Input<'_>) -> Vec<u8> {
    const PATHS: [&[u8]; 12] = [
        b"file",
        b"dir",
        b"dir/x",
        b"",
        b"..",
        b"../../etc/passwd",
        b"/",
        b"link",
        b"a\0b",
        b"file/x",
        b"./file",
        b"dir/..",
    ];
    match input.byte() {
        choice if choice < 200 => PATHS[usize::from(choice) % PATHS.len()].to_vec(),
        choice if choice < 240 => input.take(12).to_vec(),
        _ => vec![b'n'; input.number32().min(8000) as usize],
    }
}

fn two_names(input: &mut Input<'_>) -> Vec<u8> {
    let (first, second) = (path(input), path(input));
    let names = TwoNames { first: &first, second: &second };
    let mut payload = vec![0; names.size()];
    names.encode(&mut payload);
    payload
}
