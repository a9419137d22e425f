//! From an address to a connection: which provider, and the handshake. Knows no operation. Imports `op`'s terms and `config`.

pub(crate) mod devices;
pub(crate) mod process;
pub(crate) mod servers;
pub(crate) mod turns;
pub(crate) mod ways;

use std::ffi::OsStr;
use std::time::Duration;

use dafs_proto::address::{Address, Scheme};
use dafs_proto::session::{
    ClientHandshake, ClientIntroduction, ClientSession, KEEP_ALIVE_MAX_MS, Moment, SessionFault,
};
use dafs_proto::transport::{
    ConnectError, ConnectParams, Domain, Endpoint, Head, PostError, Provider, Reach, Received, TransportError,
};
use dafs_proto::wire::{
    Features, FileHandle, Flags, HEADER_SIZE, Header, Opcode, PAYLOAD_SIZE_MIN, Resume, Slot, Welcome,
};

use crate::clock::Clock;
use crate::config::{CALLBACK_RECEIVES, CREDITS_MAX, Config, Identity};
use crate::error::{Error, Result};
use crate::op::terms::Terms;

/// Where this session's server is, and how it is reached.
#[derive(Clone, Debug)]
pub(crate) struct Server {
    pub(crate) address: Address,
    pub(crate) provider: Provider,
    /// For people.
    pub(crate) name: String,
    /// Why this provider was taken, in words.
    pub(crate) reason: String,
    /// One attempt takes no longer than this, where another provider is there to be tried instead.
    pub(crate) attempt_time_max: Option<Duration>,
    /// The connection is made as this user, whom the kernel then names to a server on this host.
    pub(crate) connect_as: Option<Identity>,
}

/// The smallest payload that a connection must carry, bytes.
#[allow(clippy::cast_possible_truncation, reason = "a small constant")]
const PAYLOAD_MIN: u32 = PAYLOAD_SIZE_MIN as u32;

/// A connection with its handshake done.
pub(crate) struct Established {
    pub(crate) endpoint: Box<dyn Endpoint>,
    pub(crate) terms: Terms,
}

/// Connects and shakes hands. Blocks for `timeout` at most.
pub(crate) fn establish(
    domain: &dyn Domain,
    server: &Server,
    (config, timeout): (&Config, Duration),
    client_id: [u8; 16],
    resume: Option<Resume>,
    clock: &dyn Clock,
) -> Result<Established> {
    let deadline = clock.now().after(timeout);
    let credits = config.credits.clamp(1, CREDITS_MAX);
    let params = ConnectParams {
        recv_payload_max: config.inline_max.max(PAYLOAD_MIN),
        recv_depth: credits.saturating_add(CALLBACK_RECEIVES),
        wait: config.wait,
        // Nobody is served memory who has not proven to be the server.
        reach: Reach::Own,
        ..ConnectParams::default()
    };
    let timeout = server.attempt_time_max.map_or(timeout, |max| max.min(timeout));
    let connect = || domain.connect(&server.address, &params, timeout);
    let mut endpoint = match &server.connect_as {
        None => connect()?,
        Some(who) => process::acting_as(who, connect).map_err(|source| {
            let what = "become its user for a connection with";
            ConnectError::System { what, address: server.name.clone(), source }
        })??,
    };
    let mut nonce = [0; 32];
    random(&mut nonce)?;
    let introduction = introduction(config, client_id, credits, resume);
    let (handshake, hello) = ClientHandshake::begin(&introduction, nonce);
    let (server, scheme) = (&*server.name, server.address.scheme());
    let mut caller = Caller { endpoint: &mut *endpoint, session: None, server, clock, deadline };
    let reply = caller.call(Header::request(Opcode::Hello, FileHandle(0)), &[], &hello)?;
    let (proven, authenticate) = handshake.on_hello_reply(reply.header.status, &reply.payload)?;
    let reply = caller.call(Header::request(Opcode::Authenticate, FileHandle(0)), &[], &authenticate)?;
    let welcome = proven.on_authenticate_reply(reply.header.status, &reply.payload)?;
    endpoint.open_memory(Reach::Domain);
    let terms = terms(welcome, &*endpoint, scheme);
    Ok(Established { endpoint, terms })
}

fn introduction(
    config: &Config,
    client_id: [u8; 16],
    slots: u16,
    resume: Option<Resume>,
) -> ClientIntroduction {
    let identity = config.identity.clone().unwrap_or_else(process::identity);
    let client_name = config.client_name.clone().unwrap_or_else(|| {
        let program = std::env::args_os().next().unwrap_or_default();
        let program = std::path::Path::new(&program).file_name().unwrap_or(OsStr::new("dafs-client"));
        format!("{} ({})", program.to_string_lossy(), std::process::id())
    });
    let client_name = client_name.chars().take(64).collect();
    ClientIntroduction {
        client_id,
        client_name,
        uid: identity.uid,
        gid: identity.gid,
        groups: identity.groups,
        features: Features::all(),
        slots,
        key: config.key.clone(),
        resume,
    }
}

/// A server that says it may be silent for longer is not waited for longer, milliseconds.
const LEASE_MAX_MS: u32 = 2 * KEEP_ALIVE_MAX_MS;
/// Of several servers, one that says it is given up sooner is not given up sooner, milliseconds.
const TERM_MIN_MS: u32 = 100;

fn terms(mut welcome: Welcome, endpoint: &dyn Endpoint, scheme: Scheme) -> Terms {
    // The peer does not choose how long this side waits.
    welcome.lease_ms = welcome.lease_ms.min(LEASE_MAX_MS);
    // Whoever asks only when the wait is over never gets an answer.
    welcome.keep_alive_ms = welcome.keep_alive_ms.min(welcome.lease_ms / 2);
    welcome.cluster.take_if(|_| welcome.features & Features::CLUSTER.bits() == 0);
    if let Some(cluster) = &mut welcome.cluster {
        cluster.term_ms = cluster.term_ms.clamp(TERM_MIN_MS, LEASE_MAX_MS);
        welcome.keep_alive_ms = welcome.keep_alive_ms.min(cluster.term_ms / 3);
        servers::keep_usable(&mut cluster.servers, scheme);
    }
    let capabilities = endpoint.capabilities();
    let thresholds = &welcome.thresholds;
    Terms {
        // An inline limit of 0 would leave no way to move a byte; every peer takes PAYLOAD_SIZE_MIN.
        read_inline_max: thresholds.read_inline_max.min(capabilities.recv_payload_max).max(1),
        cuts_inline_writes: capabilities.is_stream,
        write_inline_max: thresholds.write_inline_max.min(capabilities.send_payload_max).max(1),
        send_payload_max: capabilities.send_payload_max,
        registers_ordinary_memory: capabilities.registers_ordinary_memory,
        bounce_overlaps: capabilities.remote_mapped,
        segments_max: dafs_proto::wire::SEGMENTS_MAX
            .min(capabilities.send_payload_max as usize / dafs_proto::wire::REMOTE_RANGE_SIZE)
            .max(1),
        is_remote: capabilities.peer.address.is_some_and(|peer| !peer.ip().to_canonical().is_loopback()),
        loss_epoch: welcome.server_epoch,
        welcome,
    }
}

/// The client id of this host's programs.
pub(crate) fn host_client_id() -> Option<[u8; 16]> {
    dafs_proto::session::host_client_id(&std::fs::read_to_string("/etc/machine-id").ok()?)
}

pub(crate) fn random(bytes: &mut [u8]) -> Result<()> {
    getrandom::fill(bytes).map_err(|error| Error::Invalid(format!("cannot get random bytes: {error}")))
}

/// The answer to a [`Caller::call`].
pub(crate) struct Answer {
    pub(crate) header: Header,
    pub(crate) payload: Vec<u8>,
}

/// Makes requests one after the other, on an endpoint that nobody else uses yet.
pub(crate) struct Caller<'a> {
    pub(crate) endpoint: &'a mut dyn Endpoint,
    /// Numbers the requests and counts callbacks, once there is one.
    pub(crate) session: Option<&'a mut ClientSession>,
    /// For errors.
    pub(crate) server: &'a str,
    pub(crate) clock: &'a dyn Clock,
    pub(crate) deadline: Moment,
}

impl Caller<'_> {
    /// One request and its reply. Blocks until the deadline.
    pub(crate) fn call(&mut self, mut header: Header, body: &[u8], payload: &[u8]) -> Result<Answer> {
        match &mut self.session {
            // The connection before this one ended without its answer.
            Some(session) if session.outstanding() > 0 => session.again(&mut header, Slot(0)),
            // One after the other: a credit is always there, and the slot is the first.
            Some(session) => drop(session.begin(&mut header, 1)),
            None => {}
        }
        self.exchange(header, body, payload)
    }

    /// Ends the session, whatever it has outstanding, if a request can be sent now. Blocks until the deadline.
    pub(crate) fn say_goodbye(&mut self) -> Result<()> {
        let mut header = Header::request(Opcode::Bye, FileHandle(0));
        match self.session.as_mut().and_then(|session| session.begin(&mut header, 1)) {
            Some(_) => self.exchange(header, &[], &[]).map(drop),
            None => Ok(()),
        }
    }

    #[allow(
        clippy::cast_possible_truncation,
        reason = "heads and the payloads of names and handshakes are small"
    )]
    fn exchange(&mut self, mut header: Header, body: &[u8], payload: &[u8]) -> Result<Answer> {
        let mut head = [0; dafs_proto::wire::HEAD_SIZE_MAX];
        let head_len = HEADER_SIZE + body.len();
        head[HEADER_SIZE..head_len].copy_from_slice(body);
        header.head_len = head_len as u16;
        header.payload_len = payload.len() as u32;
        header.encode(&mut head);
        loop {
            match self.endpoint.send_copy(&head[..head_len], payload) {
                Ok(()) => break,
                Err(PostError::Full) => self.wait()?,
                Err(error) => {
                    let error = std::io::Error::other(error.to_string());
                    return Err(self.lost(TransportError::system("send in the handshake", error)));
                }
            }
        }
        self.endpoint.flush().map_err(|error| self.lost(error))?;
        loop {
            match self.endpoint.recv().map_err(|error| self.lost(error))? {
                Some(Received::Message { head, payload_len }) => {
                    if let Some(answer) = self.answer(&head, payload_len, &header)? {
                        return Ok(answer);
                    }
                    // Callbacks without end do not hold it up.
                    self.time_left()?;
                }
                Some(Received::Immediate { .. }) => {
                    return Err(misplaced(Opcode::Read, "as a frame, which is not expected now"));
                }
                None => self.wait()?,
            }
        }
    }

    fn lost(&self, error: TransportError) -> Error {
        Error::lost(self.server, &error)
    }

    /// Until the deadline, which has not passed.
    fn time_left(&self) -> Result<Duration> {
        let left = self.deadline.since(self.clock.now());
        if left.is_zero() {
            let cause = "no reply in time".to_owned();
            return Err(Error::Connection { server: self.server.to_owned(), cause });
        }
        Ok(left)
    }

    fn wait(&mut self) -> Result<()> {
        let left = self.time_left()?;
        self.endpoint.wait(Some(left)).map_err(|error| self.lost(error))
    }

    /// The reply to `request`; `None` for a callback.
    fn answer(&mut self, head: &Head, payload_len: u32, request: &Header) -> Result<Option<Answer>> {
        let (header, _) = Header::decode(head.as_bytes(), payload_len)?;
        if header.flags.contains(Flags::CALLBACK) {
            let Some(session) = &mut self.session else {
                return Err(misplaced(header.opcode, "in the handshake"));
            };
            session.on_callback(&header)?;
            if header.opcode == Opcode::CreditTarget {
                session.on_credit_target(header.credits);
            }
            return Ok(None);
        }
        let expected = (request.opcode, request.slot, request.sequence);
        if !header.flags.contains(Flags::REPLY) || (header.opcode, header.slot, header.sequence) != expected {
            let (slot, sequence) = (header.slot.0, header.sequence);
            return Err(SessionFault::UnexpectedReply { slot, sequence }.into());
        }
        if let Some(session) = &mut self.session {
            session.on_reply(&header)?;
        }
        Ok(Some(Answer { header, payload: self.endpoint.payload().to_vec() }))
    }
}

fn misplaced(opcode: Opcode, place: &'static str) -> Error {
    SessionFault::Misplaced { opcode, place }.into()
}

#[cfg(test)]
pub(crate) mod tests {
    use std::sync::Arc;

    use dafs_proto::transport::sim::{FaultPlan, NodeId, SimNet};
    use dafs_proto::transport::{Access, HeapMemory, LocalSegments, MemoryRef, OpToken, Region};
    use dafs_proto::wire::{ClusterTerms, Crossovers, SessionId, Thresholds};

    use super::*;

    /// Time stands still at the deadline.
    struct Late;

    impl Clock for Late {
        fn now(&self) -> Moment {
            Moment::default()
        }

        fn sleep(&self, _: Duration) {}
    }

    /// A client and its server, which has said something before it was asked.
    struct Connected {
        net: SimNet,
        client: Box<dyn Endpoint>,
        server: Box<dyn Endpoint>,
        /// Of the client, for its server to write.
        region: Region,
    }

    impl Connected {
        fn new() -> Self {
            let net = SimNet::new(1, FaultPlan::calm());
            let (client_domain, server_domain) = (net.domain(NodeId(1)), net.domain(NodeId(2)));
            let (address, params) = (Address::Sim(1), ConnectParams::default());
            let mut listener = server_domain.listen(&address, &params).unwrap();
            let client = client_domain.connect(&address, &params, Duration::from_secs(1)).unwrap();
            let server = listener.accept().unwrap().unwrap();
            let memory = MemoryRef::new(Arc::new(HeapMemory::allocate(8).unwrap()));
            let region = client_domain.register(memory, Access::REMOTE_WRITE).unwrap();
            Self { net, client, server, region }
        }

        fn call_back(&mut self, times: u32) {
            for sequence in 1..=times {
                let mut header = Header::callback(Opcode::CreditTarget, sequence);
                (header.credits, header.head_len) = (1, u16::try_from(HEADER_SIZE).unwrap());
                let mut head = [0; HEADER_SIZE];
                header.encode(&mut head);
                self.server.send_copy(&head, &[]).unwrap();
            }
            self.server.flush().unwrap();
        }

        /// What the client makes of it, whose deadline is now.
        fn call(&mut self, session: Option<&mut ClientSession>) -> Result<Answer> {
            let (endpoint, clock, deadline) = (&mut *self.client, &Late, Moment::default());
            while self.net.step() {}
            let mut caller = Caller { endpoint, session, server: "it", clock, deadline };
            caller.call(Header::request(Opcode::Null, FileHandle(0)), &[], &[])
        }
    }

    pub(crate) fn welcome() -> Welcome {
        let crossovers = Crossovers {
            read_registered: 1,
            read_unregistered: 1,
            write_registered: 1,
            write_unregistered: 1,
        };
        Welcome {
            session: SessionId(1),
            secret: [0; 16],
            resumed: false,
            server_epoch: 1,
            features: 0,
            slots: 4,
            credits: 4,
            keep_alive_ms: 1000,
            lease_ms: 3000,
            thresholds: Thresholds { read_inline_max: 8192, write_inline_max: 8192, crossovers },
            transfer_size_max: 1 << 20,
            handles_max: 100,
            slot_reports: Vec::new(),
            gather: None,
            cluster: None,
        }
    }

    // [SESS-132] [SESS-97]
    #[test]
    fn client_sends_keep_alive_before_giving_up_a_silent_server() {
        let connected = Connected::new();
        for (said, taken) in [
            ((10_000, 30_000), (10_000, 30_000)),
            ((30_000, 60_000), (30_000, 60_000)),
            ((30_001, 60_002), (30_000, 60_000)),
            ((120_000, 300_000), (30_000, 60_000)),
            ((5000, 6000), (3000, 6000)),
        ] {
            let said = Welcome { keep_alive_ms: said.0, lease_ms: said.1, ..welcome() };
            let welcome = terms(said, &*connected.client, Scheme::Sim).welcome;
            assert_eq!((welcome.keep_alive_ms, welcome.lease_ms), taken);
        }
    }

    // [SESS-142] [SESS-145] [SESS-146]
    #[test]
    fn what_a_server_says_of_a_cluster_is_kept_within_bounds() {
        let connected = Connected::new();
        let servers: Vec<String> = (0..10_000).map(|port| format!("dafs+sim://{port}")).collect();
        for (said_ms, term_ms, keep_alive_ms) in
            [(0, 100, 33), (99, 100, 33), (1500, 1500, 500), (60_000, 60_000, 1000), (u32::MAX, 60_000, 1000)]
        {
            let cluster = ClusterTerms { term_ms: said_ms, servers: servers.clone(), outcomes: None };
            let features = Features::CLUSTER.bits();
            let said = Welcome { features, cluster: Some(cluster), ..welcome() };
            let welcome = terms(said.clone(), &*connected.client, Scheme::Sim).welcome;
            let cluster = welcome.cluster.unwrap();
            assert_eq!((cluster.term_ms, welcome.keep_alive_ms), (term_ms, keep_alive_ms));
            assert_eq!(cluster.servers, servers[..16]);
            let unasked = Welcome { features: 0, ..said };
            assert_eq!(terms(unasked, &*connected.client, Scheme::Sim).welcome.cluster, None);
        }
    }

    // [CLI-166]
    #[test]
    fn callbacks_past_the_deadline_are_not_waited_through() {
        let mut connected = Connected::new();
        connected.call_back(5);
        let end = connected.call(Some(&mut ClientSession::new(&welcome())));
        assert!(matches!(end, Err(Error::Connection { .. })));
        assert!(connected.client.recv().unwrap().is_some(), "it ended at the first");
    }

    // [SESS-128]
    #[test]
    fn callback_in_the_handshake_is_a_fault() {
        let mut connected = Connected::new();
        connected.call_back(1);
        assert!(matches!(connected.call(None), Err(Error::Peer(SessionFault::Misplaced { .. }))));
    }

    // [SESS-128]
    #[test]
    fn frame_where_none_is_awaited_is_a_fault() {
        let mut connected = Connected::new();
        let memory = MemoryRef::new(Arc::new(HeapMemory::allocate(8).unwrap()));
        let (local, range) = (LocalSegments::from_iter([memory]), connected.region.range());
        connected.server.rdma_write(OpToken(1), local, range, Some(7)).unwrap();
        connected.server.flush().unwrap();
        assert!(matches!(connected.call(None), Err(Error::Peer(SessionFault::Misplaced { .. }))));
    }
}
