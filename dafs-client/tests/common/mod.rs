//! A small server over the simulated network, on the session core's server role: enough semantics to test what the
//! client does, and hooks to misbehave.
#![allow(dead_code, unreachable_pub, reason = "each test program uses its part of it")]
#![allow(
    clippy::unwrap_used,
    clippy::cast_possible_truncation,
    clippy::large_enum_variant,
    reason = "a test server of small files: what is wrong fails the test"
)]

mod data;

use std::collections::{BTreeMap, HashMap};
use std::sync::{Arc, Mutex, MutexGuard};
use std::time::Duration;

use dafs_client::{Address, Clock, Config, FileKind, Moment, Session, Timestamp};
use dafs_proto::session::{
    Admission, CachedReply, Key, KeySource, ServerHandshake, ServerSession, ServerTerms,
};
use dafs_proto::transport::sim::{FaultPlan, NodeId, SimDomain, SimNet};
use dafs_proto::transport::{ConnectParams, Domain, Endpoint, Head, Listener, Received};
use dafs_proto::wire::*;

pub const CLIENT: NodeId = NodeId(1);
pub const SERVER: NodeId = NodeId(2);
pub const PORT: Address = Address::Sim(1);
pub const INLINE_MAX: u32 = 8192;
pub const CROSSOVER: u32 = 4096;
pub const TRANSFER_MAX: u32 = 64 * 1024;
pub const SLOTS: u16 = 8;

/// What a hook does with a request.
pub enum Action {
    /// As it should.
    Serve,
    /// Nothing, ever.
    Ignore,
    /// The connection is cut before it is executed.
    CutBefore,
    /// The connection is cut after it was executed, before its reply.
    CutAfter,
    /// This head and payload instead of a reply.
    Say(Vec<u8>, Vec<u8>),
    /// The server process dies and comes back before it is executed.
    CrashBefore,
}

type Hook = Box<dyn FnMut(&Header, &[u8]) -> Action + Send>;

#[derive(Clone)]
pub struct Node {
    pub id: u64,
    pub data: Vec<u8>,
    pub directory: bool,
}

struct Open {
    session: ServerSession,
    secret: [u8; 16],
    handles: HashMap<u64, Vec<u8>>,
    connection: Option<usize>,
}

enum Phase {
    New,
    Greeted(Option<ServerHandshake>),
    In(u64),
}

struct Connection {
    endpoint: Box<dyn Endpoint>,
    phase: Phase,
    number: usize,
}

pub struct Server {
    pub net: SimNet,
    domain: SimDomain,
    listener: Box<dyn Listener>,
    connections: Vec<Connection>,
    sessions: HashMap<u64, Open>,
    pub nodes: BTreeMap<Vec<u8>, Node>,
    pub durable: BTreeMap<Vec<u8>, Node>,
    pub verifier: u64,
    epoch: u64,
    next: u64,
    pub hook: Option<Hook>,
    pub log: Vec<(Opcode, Flags)>,
    pub executed: Vec<Opcode>,
    pub credits: u16,
}

struct NoKeys;

impl KeySource for NoKeys {
    fn key(&self, _name: &str) -> Option<Key> {
        None
    }
}

pub struct SimClock(pub SimNet);

impl Clock for SimClock {
    fn now(&self) -> Moment {
        Moment::default().after(self.0.now())
    }

    fn sleep(&self, duration: Duration) {
        self.0.advance(duration);
    }
}

pub struct World {
    pub net: SimNet,
    pub server: Arc<Mutex<Server>>,
}

impl World {
    pub fn new(seed: u64) -> Self {
        Self::with_plan(seed, FaultPlan::calm())
    }

    pub fn with_plan(seed: u64, plan: FaultPlan) -> Self {
        let net = SimNet::new(seed, plan);
        let server = Arc::new(Mutex::new(Server::new(&net)));
        let stepped = Arc::downgrade(&server);
        net.on_idle(move || {
            if let Some(server) = stepped.upgrade() {
                server.lock().unwrap().step();
            }
        });
        Self { net, server }
    }

    pub fn server(&self) -> MutexGuard<'_, Server> {
        self.server.lock().unwrap()
    }

    pub fn connect(&self, config: &Config) -> dafs_client::Result<Session> {
        let domain = Arc::new(self.net.domain(CLIENT));
        Session::connect_with(domain, PORT, config, Arc::new(SimClock(self.net.clone())))
    }

    pub fn session(&self) -> Session {
        self.connect(&config()).unwrap()
    }

    pub fn hook(&self, hook: impl FnMut(&Header, &[u8]) -> Action + Send + 'static) {
        self.server().hook = Some(Box::new(hook));
    }

    /// Does `action` with the first request of this opcode.
    pub fn once(&self, opcode: Opcode, action: impl Fn(&Header) -> Action + Send + 'static) {
        let mut done = false;
        self.hook(move |header, _| {
            if header.opcode == opcode && !done {
                done = true;
                return action(header);
            }
            Action::Serve
        });
    }
}

pub fn config() -> Config {
    Config { credits: SLOTS, client_id: Some([7; 16]), ..Config::default() }
}

impl Server {
    fn new(net: &SimNet) -> Self {
        let domain = net.domain(SERVER);
        let listener = domain.listen(&PORT, &params()).unwrap();
        let root = Node { id: 1, data: vec![], directory: true };
        Self {
            net: net.clone(),
            domain,
            listener,
            connections: vec![],
            sessions: HashMap::new(),
            nodes: BTreeMap::from([(vec![], root.clone())]),
            durable: BTreeMap::from([(vec![], root)]),
            verifier: 1,
            epoch: 1,
            next: 100,
            hook: None,
            log: vec![],
            executed: vec![],
            credits: SLOTS,
        }
    }

    /// The process dies and comes back: sessions are gone, and data that was not committed.
    pub fn restart(&mut self) {
        self.net.crash(SERVER);
        self.connections.clear();
        self.sessions.clear();
        self.domain = self.net.domain(SERVER);
        self.listener = self.domain.listen(&PORT, &params()).unwrap();
        self.epoch += 1;
        self.verifier += 1;
        self.nodes = self.durable.clone();
    }

    pub fn make(&mut self, path: &[u8], data: &[u8]) {
        self.next += 1;
        let node = Node { id: self.next, data: data.to_vec(), directory: false };
        self.nodes.insert(path.to_vec(), node.clone());
        self.durable.insert(path.to_vec(), node);
    }

    pub fn data(&self, path: &[u8]) -> Vec<u8> {
        self.nodes[path].data.clone()
    }

    pub fn count(&self, opcode: Opcode) -> usize {
        self.executed.iter().filter(|executed| **executed == opcode).count()
    }

    fn step(&mut self) {
        while let Ok(Some(endpoint)) = self.listener.accept() {
            self.next += 1;
            let number = self.next as usize;
            self.connections.push(Connection { endpoint, phase: Phase::New, number });
        }
        let numbers: Vec<usize> = self.connections.iter().map(|connection| connection.number).collect();
        for number in numbers {
            self.step_connection(number);
        }
    }

    fn place(&self, number: usize) -> Option<usize> {
        self.connections.iter().position(|connection| connection.number == number)
    }

    fn step_connection(&mut self, number: usize) {
        loop {
            let Some(place) = self.place(number) else { return };
            match self.connections[place].endpoint.recv() {
                Ok(Some(Received::Message { head, payload_len })) => {
                    let payload = self.connections[place].endpoint.payload().to_vec();
                    if !self.on_message(number, &head, payload_len, &payload) {
                        if let Some(place) = self.place(number) {
                            self.connections.remove(place);
                        }
                        return;
                    }
                }
                Ok(Some(Received::Immediate { .. })) => {}
                Ok(None) => break,
                Err(_) => {
                    self.connections.remove(place);
                    return;
                }
            }
        }
        if let Some(place) = self.place(number) {
            let _ = self.connections[place].endpoint.flush();
        }
    }

    /// `false` ends the connection.
    fn on_message(&mut self, number: usize, head: &Head, payload_len: u32, payload: &[u8]) -> bool {
        let (header, body) =
            Header::decode(head.as_bytes(), payload_len).expect("the client speaks correctly");
        let place = self.place(number).unwrap();
        match &mut self.connections[place].phase {
            Phase::New => {
                assert_eq!(header.opcode, Opcode::Hello);
                let terms = ServerTerms { key_required: false };
                let (handshake, reply) =
                    ServerHandshake::on_hello(payload, terms, &NoKeys, [9; 32], "test").unwrap();
                self.connections[place].phase = Phase::Greeted(Some(handshake));
                self.say(number, &header, Status::OK, &[], &reply);
                true
            }
            Phase::Greeted(handshake) => {
                let (hello, _, proof) = handshake.take().unwrap().on_authenticate(payload).unwrap();
                let welcome = self.welcome(number, &hello);
                self.say(
                    number,
                    &header,
                    Status::OK,
                    &[],
                    &encode_message_pack(&AuthenticateReply { proof, welcome }),
                );
                true
            }
            Phase::In(session) => {
                let session = *session;
                self.on_request(number, session, &header, body, payload)
            }
        }
    }

    fn welcome(&mut self, number: usize, hello: &Hello) -> Welcome {
        let resumed = hello.resume.as_ref().filter(|resume| {
            self.sessions.get(&resume.session.0).is_some_and(|open| open.secret == resume.secret)
        });
        let resumed = resumed.map(|resume| resume.session.0);
        let id = resumed.unwrap_or_else(|| {
            self.next += 1;
            self.next
        });
        let credits = self.credits;
        let open = self.sessions.entry(id).or_insert_with(|| Open {
            session: ServerSession::new(SLOTS, credits),
            secret: [id as u8; 16],
            handles: HashMap::new(),
            connection: None,
        });
        let slot_reports = if resumed.is_some() { open.session.on_resumed() } else { vec![] };
        let granted = if resumed.is_some() { SLOTS } else { credits };
        open.connection = Some(number);
        let secret = open.secret;
        let place = self.place(number).unwrap();
        self.connections[place].phase = Phase::In(id);
        let crossovers = Crossovers {
            read_registered: CROSSOVER,
            read_unregistered: CROSSOVER,
            write_registered: CROSSOVER,
            write_unregistered: CROSSOVER,
        };
        Welcome {
            session: SessionId(id),
            secret,
            resumed: resumed.is_some(),
            server_epoch: self.epoch,
            features: 0,
            slots: SLOTS,
            credits: granted,
            keep_alive_ms: 1000,
            lease_ms: 3000,
            thresholds: Thresholds { read_inline_max: INLINE_MAX, write_inline_max: INLINE_MAX, crossovers },
            transfer_size_max: TRANSFER_MAX,
            handles_max: 100,
            slot_reports,
            gather: None,
        }
    }

    fn on_request(&mut self, number: usize, id: u64, header: &Header, body: &[u8], payload: &[u8]) -> bool {
        self.log.push((header.opcode, header.flags));
        let mut hook = self.hook.take();
        let action = hook.as_mut().map_or(Action::Serve, |hook| hook(header, body));
        if self.hook.is_none() {
            self.hook = hook;
        }
        match action {
            Action::Ignore => return true,
            Action::CutBefore => return false,
            Action::CrashBefore => {
                self.restart();
                return false;
            }
            Action::Say(head, payload) => {
                // A lie is an answer all the same: the next request in its slot is in order.
                let credits = self.credits;
                let session = &mut self.sessions.get_mut(&id).unwrap().session;
                if let Ok(Admission::Execute(_)) = session.admit(header) {
                    session.on_reply(header, Status::OK, None, header.credits.min(credits));
                }
                let place = self.place(number).unwrap();
                return post(&mut *self.connections[place].endpoint, &head, &payload);
            }
            Action::Serve | Action::CutAfter => {}
        }
        let cut = matches!(action, Action::CutAfter);
        match self.sessions.get_mut(&id).unwrap().session.admit(header).expect("the client keeps the rules") {
            Admission::Execute(_) => {}
            Admission::Replay(cached) => {
                let place = self.place(number).unwrap();
                return post(&mut *self.connections[place].endpoint, &cached.head, &cached.payload);
            }
            Admission::InProgress => return true,
            Admission::FalseRetry => panic!("a false retry of {:?}", header.opcode),
        }
        self.executed.push(header.opcode);
        let outcome = self.execute(number, id, header, body, payload);
        let (status, handle, reply_body, reply_payload) = match outcome {
            Ok((handle, body, payload)) => (Status::OK, handle, body, payload),
            Err(status) => (status, 0, vec![], status.sentence().as_bytes().to_vec()),
        };
        let credits = self.credits;
        let open = self.sessions.get_mut(&id).unwrap();
        let mut reply = header.reply(status);
        reply.handle = FileHandle(handle);
        reply.credits = open.session.on_reply(header, status, None, header.credits.min(credits));
        reply.head_len = (HEADER_SIZE + reply_body.len()) as u16;
        reply.payload_len = reply_payload.len() as u32;
        let mut head = vec![0; HEADER_SIZE];
        reply.encode(&mut head);
        head.extend(&reply_body);
        if !header.opcode.is_idempotent() {
            open.session.cache_reply(
                header.slot,
                CachedReply { head: head.clone().into(), payload: reply_payload.clone().into() },
            );
        }
        if cut {
            return false;
        }
        let Some(place) = self.place(number) else { return false };
        post(&mut *self.connections[place].endpoint, &head, &reply_payload)
    }

    fn say(&mut self, number: usize, request: &Header, status: Status, body: &[u8], payload: &[u8]) {
        let place = self.place(number).unwrap();
        let mut reply = request.reply(status);
        reply.head_len = (HEADER_SIZE + body.len()) as u16;
        reply.payload_len = payload.len() as u32;
        let mut head = vec![0; HEADER_SIZE];
        reply.encode(&mut head);
        head.extend(body);
        post(&mut *self.connections[place].endpoint, &head, payload);
        let _ = self.connections[place].endpoint.flush();
    }

    #[allow(clippy::type_complexity, reason = "handle, body, payload")]
    fn execute(
        &mut self,
        number: usize,
        id: u64,
        header: &Header,
        body: &[u8],
        payload: &[u8],
    ) -> Result<(u64, Vec<u8>, Vec<u8>), Status> {
        let base = match header.handle.0 {
            0 => None,
            handle => Some(self.sessions[&id].handles.get(&handle).cloned().ok_or(Status::BAD_HANDLE)?),
        };
        let base_path = base.clone().unwrap_or_default();
        let below = |path: &[u8]| match (base_path.is_empty(), path.is_empty()) {
            (true, _) => path.to_vec(),
            (_, true) => base_path.clone(),
            _ => [&base_path[..], b"/", path].concat(),
        };
        match header.opcode {
            Opcode::Mount if payload == b"data" => {
                let reply = MountReply { read_only: false, attributes: attributes(&self.nodes[&vec![]]) };
                Ok((self.open(id, vec![]), vec![], encode_message_pack(&reply)))
            }
            Opcode::Mount => Err(Status::NO_EXPORT),
            Opcode::Open => {
                let request = OpenRequest::decode(body).unwrap();
                let path = below(payload);
                if request.flags.contains(OpenFlags::CREATE) {
                    if !self.nodes.contains_key(&path) {
                        self.make(&path, b"");
                    } else if request.flags.contains(OpenFlags::EXCLUSIVE) {
                        return Err(Status::EXISTS);
                    }
                }
                let node = self.nodes.get_mut(&path).ok_or(Status::NOT_FOUND)?;
                if request.flags.contains(OpenFlags::TRUNCATE) {
                    node.data.clear();
                }
                let attributes = encode_message_pack(&attributes(node));
                Ok((self.open(id, path), vec![], attributes))
            }
            Opcode::Getattr | Opcode::Lookup => {
                let path = below(payload);
                let node = self.nodes.get(&path).ok_or(Status::NOT_FOUND)?;
                let attributes = encode_message_pack(&attributes(node));
                let handle = if header.opcode == Opcode::Lookup { self.open(id, path) } else { 0 };
                Ok((handle, vec![], attributes))
            }
            Opcode::Mkdir => {
                let path = below(payload);
                if self.nodes.contains_key(&path) {
                    return Err(Status::EXISTS);
                }
                self.make(&path, b"");
                let node = self.nodes.get_mut(&path).unwrap();
                node.directory = true;
                Ok((0, vec![], encode_message_pack(&attributes(node))))
            }
            Opcode::Remove => {
                self.nodes.remove(&below(payload)).ok_or(Status::NOT_FOUND)?;
                Ok((0, vec![], vec![]))
            }
            Opcode::Rename => {
                let names = TwoNames::decode(payload).unwrap();
                let request = RenameRequest::decode(body).unwrap();
                assert!(self.sessions[&id].handles.contains_key(&request.second_handle));
                let node = self.nodes.remove(&below(names.first)).ok_or(Status::NOT_FOUND)?;
                self.nodes.insert(below(names.second), node);
                Ok((0, vec![], vec![]))
            }
            Opcode::Read => self.read(number, &base_path, body, payload),
            Opcode::Write | Opcode::Append => self.write(number, header.opcode, &base_path, body, payload),
            Opcode::Readdir => self.readdir(number, &base_path, body),
            Opcode::Commit => {
                self.durable = self.nodes.clone();
                let mut body = vec![0; 8];
                CommitReply { verifier: Verifier(self.verifier) }.encode(&mut body);
                Ok((0, body, vec![]))
            }
            Opcode::Truncate => {
                let request = AllocateRequest::decode(body).unwrap();
                let node = self.nodes.get_mut(&base_path).ok_or(Status::STALE)?;
                node.data.resize(request.offset as usize, 0);
                Ok((0, vec![], vec![]))
            }
            Opcode::Close => {
                self.sessions
                    .get_mut(&id)
                    .unwrap()
                    .handles
                    .remove(&header.handle.0)
                    .ok_or(Status::BAD_HANDLE)?;
                Ok((0, vec![], vec![]))
            }
            Opcode::Null | Opcode::Bye => Ok((0, vec![], vec![])),
            Opcode::Exports => Ok((0, vec![], encode_message_pack(&vec!["data"]))),
            _ => Err(Status::NOT_SUPPORTED),
        }
    }

    fn open(&mut self, id: u64, path: Vec<u8>) -> u64 {
        self.next += 1;
        let handle = self.next;
        self.sessions.get_mut(&id).unwrap().handles.insert(handle, path);
        handle
    }

    pub fn handles(&self) -> usize {
        self.sessions.values().map(|open| open.handles.len()).sum()
    }
}

/// Sends, however often the network says that there is no room; `false` when the connection is gone.
fn post(endpoint: &mut dyn Endpoint, head: &[u8], payload: &[u8]) -> bool {
    for _ in 0..1000 {
        match endpoint.send_copy(head, payload) {
            Ok(()) => return true,
            Err(dafs_proto::transport::PostError::Full) => {}
            Err(_) => return false,
        }
    }
    false
}

fn params() -> ConnectParams {
    ConnectParams { recv_payload_max: 16 * 1024, recv_depth: SLOTS * 2, ..ConnectParams::default() }
}

pub fn attributes(node: &Node) -> Attributes {
    Attributes {
        kind: if node.directory { FileKind::Directory } else { FileKind::File },
        mode: 0o644,
        links: 1,
        uid: 0,
        gid: 0,
        size: node.data.len() as u64,
        allocated: node.data.len() as u64,
        file_id: node.id,
        fs_id: 1,
        atime: Timestamp::default(),
        mtime: Timestamp::default(),
        ctime: Timestamp::default(),
        device: 0,
    }
}

/// Bytes that tell where they belong.
pub fn pattern(len: usize, seed: u64) -> Vec<u8> {
    (0..len as u64).map(|at| (at.wrapping_mul(31).wrapping_add(seed) >> 3) as u8).collect()
}
