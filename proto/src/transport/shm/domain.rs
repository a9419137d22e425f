//! The domain of the shm provider: memory, connecting, listening.

use std::io;
use std::os::fd::AsFd;
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

use super::super::util::connect_again;
use super::super::{
    Access, Address, Capabilities, ConnectError, ConnectParams, Domain, Endpoint, Listener, Memory,
    MemoryRef, PeerCredentials, PeerIdentity, Provider, Region, RegionError,
};
use super::closing::{Closers, PeerSocket};
use super::cma::Process;
use super::connection::Connection;
use super::endpoint::ShmEndpoint;
use super::handshake::{MESSAGE_SIZE, Message, Nonce, NonceClaim, malformed};
use super::layout::{Layout, Side};
use super::listener::ShmListener;
use super::map::{Mapping, SharedMemory, check_memory_file};
use super::rdma::{RDMA_SIZE_MAX, SEGMENTS_MAX};
use super::registry::Registry;
use super::remote::ShmLimits;
use super::sock::{self, Incoming};

/// Settings of a domain.
#[derive(Clone, Copy, Debug)]
pub struct ShmConfig {
    /// Mode of the socket file of a listener. Whoever may write the file may connect; who that is, the credentials then tell.
    pub socket_mode: u32,
    /// Use cross-memory attach where the system permits it.
    pub cross_memory_attach: bool,
    /// How long the end of a region waits for a peer that lives and still uses it, as after a cancelled
    /// operation. After that memory that was allocated
    /// here is kept for good instead of being given back.
    pub revoke_wait_max: Duration,
}

impl Default for ShmConfig {
    fn default() -> Self {
        Self { socket_mode: 0o666, cross_memory_attach: true, revoke_wait_max: Duration::from_secs(5) }
    }
}

/// Messages through rings in shared memory, memory that both sides map, cross-memory attach for the rest. See `spec/protocol/shm.md`.
#[derive(Clone)]
pub struct ShmDomain {
    registry: Arc<Registry>,
    config: ShmConfig,
}

impl ShmDomain {
    /// A domain with default settings.
    pub fn new() -> Self {
        Self::with_config(ShmConfig::default())
    }

    /// A domain with these settings.
    pub fn with_config(config: ShmConfig) -> Self {
        Self::with_limits(config, ShmLimits::default())
    }

    /// A domain with these settings, whose peers together keep to these limits.
    pub fn with_limits(config: ShmConfig, limits: ShmLimits) -> Self {
        Self { registry: Registry::new(config.revoke_wait_max, limits), config }
    }

    /// [`Domain::connect`], answering the endpoint itself, with its [`super::Counters`].
    pub fn connect_endpoint(
        &self,
        address: &Address,
        params: &ConnectParams,
        timeout: Duration,
    ) -> Result<ShmEndpoint, ConnectError> {
        connect_again(timeout, |left| self.attempt(address, params, timeout, left))
    }

    fn attempt(
        &self,
        address: &Address,
        params: &ConnectParams,
        timeout: Duration,
        left: Duration,
    ) -> Result<ShmEndpoint, ConnectError> {
        let path = socket_path(address)?;
        let failed = |source| ConnectError::connecting(address, timeout, source);
        let at_fault = |fault| ConnectError::peer(address, fault);
        let deadline = Instant::now().checked_add(left);
        let socket = PeerSocket::new(sock::connect(path, left).map_err(failed)?, self.closers());
        let nonce = Nonce::new().map_err(failed)?;
        sock::send(socket.as_fd(), &Message::hello(params, &nonce).encode(), &[]).map_err(failed)?;
        let left = deadline.map_or(left, |deadline| deadline.saturating_duration_since(Instant::now()));
        if !sock::readable(socket.as_fd(), left).map_err(failed)? {
            return Err(failed(io::ErrorKind::TimedOut.into()));
        }
        let mut bytes = [0; MESSAGE_SIZE];
        let incoming = sock::receive(socket.as_fd(), &mut bytes).map_err(failed)?;
        let (len, fds) = match incoming {
            Incoming::Message { len, fds, cut: false } => (len, fds),
            Incoming::Message { .. } => return Err(at_fault(malformed("descriptors of a welcome", 0, 3))),
            Incoming::Nothing => return Err(failed(io::ErrorKind::TimedOut.into())),
            Incoming::End => return Err(failed(ended_by_server())),
        };
        let Message::Welcome { to_server, to_client, cma, nonce: claim } =
            Message::decode(&bytes, len).map_err(at_fault)?
        else {
            return Err(at_fault(malformed("kind of a socket message", bytes[0].into(), 2)));
        };
        let layout = Layout::stated(to_server, to_client)
            .ok_or_else(|| at_fault(malformed("depth of a ring", to_server.depth.into(), 0)))?;
        let mut fds = fds.into_iter();
        let (Some(segment), Some(bell_in), Some(bell_out), None) =
            (fds.next(), fds.next(), fds.next(), fds.next())
        else {
            return Err(at_fault(malformed("descriptors of a welcome", 0, 3)));
        };
        check_memory_file(segment.as_fd(), layout.size() as u64)
            .map_err(|_| at_fault(malformed("size or seals of a segment", 0, layout.size() as u64)))?;
        let segment = Mapping::new(segment.as_fd(), 0, layout.size(), true).map_err(failed)?;
        let parts = Parts { side: Side::Client, layout, segment, socket, bells: (bell_in, bell_out) };
        let peer = sock::peer_credentials(parts.socket.as_fd()).map_err(failed)?;
        // Where only a descriptor for that is missing it goes on without.
        let process = self.hold(&peer).unwrap_or(None);
        let connection = self.connection(parts, peer, (process, claim));
        connection.set_peer_reaches_us(cma && self.config.cross_memory_attach);
        let ready = Message::Ready { cma: connection.peer_process.is_some() };
        sock::send(connection.socket.as_fd(), &ready.encode(), &[]).map_err(failed)?;
        // Held until here: the server has looked for it.
        drop(nonce);
        Ok(self.endpoint(connection, params))
    }

    /// [`Domain::listen`], answering the listener itself.
    pub fn listen_at(&self, address: &Address, params: &ConnectParams) -> Result<ShmListener, ConnectError> {
        ShmListener::bind(self.clone(), address, params)
    }

    /// Live connections, and closed ones whose peers still use regions.
    #[cfg(test)]
    pub(super) fn connection_counts(&self) -> (usize, usize) {
        self.registry.connection_counts()
    }

    /// Who closes what peers send.
    pub(super) fn closers(&self) -> &Arc<Closers> {
        &self.registry.limits().closers
    }

    /// The mode of a listener's socket file.
    pub(super) fn socket_mode(&self) -> u32 {
        self.config.socket_mode
    }

    /// Holds the process of a peer whose ordinary memory this side may reach; an error where it only lacks the means now.
    pub(super) fn hold(&self, peer: &PeerCredentials) -> io::Result<Option<Process>> {
        // Into a process of another user leads privilege alone, and it would lead on into the next program that the process executes.
        let may_attach = self.config.cross_memory_attach && peer.uid == sock::own_user();
        match may_attach.then(|| Process::open(peer.pid)) {
            Some(Err(error)) if is_shortage(&error) => Err(error),
            held => Ok(held.and_then(Result::ok)),
        }
    }

    /// Puts the parts of a connection together, and finds out whether the ordinary memory of the peer, whose process is held, can be
    /// reached.
    pub(super) fn connection(
        &self,
        parts: Parts,
        peer: PeerCredentials,
        (process, claim): (Option<Process>, NonceClaim),
    ) -> Connection {
        let process = process.filter(|process| is_peer(process, claim));
        let Parts { side, layout, segment, socket, bells } = parts;
        Connection::new(side, (layout, segment), socket, bells, peer, process)
    }

    /// The endpoint of a connection whose handshake is done.
    pub(super) fn endpoint(&self, connection: Connection, params: &ConnectParams) -> ShmEndpoint {
        let sends = connection.layout.ring_terms[connection.side as usize];
        let receives = connection.layout.ring_terms[connection.side.peer() as usize];
        let capabilities = Capabilities {
            provider: Provider::Shm,
            send_payload_max: sends.payload_max,
            recv_payload_max: receives.payload_max,
            send_depth: sends.depth,
            // With none, every operation would find the queue full for ever.
            rdma_depth: params.rdma_depth.max(1),
            segments_max: SEGMENTS_MAX,
            rdma_size_max: RDMA_SIZE_MAX,
            remote_mapped: true,
            faults_late: false,
            copies_faulting: false,
            is_stream: false,
            registers_ordinary_memory: connection.peer_reaches_us.load(Ordering::Relaxed),
            peer: PeerIdentity { address: None, credentials: Some(connection.peer.clone()) },
        };
        ShmEndpoint::new(
            Arc::new(connection),
            Arc::clone(&self.registry),
            capabilities,
            params.wait,
            params.reach,
        )
    }
}

impl Default for ShmDomain {
    fn default() -> Self {
        Self::new()
    }
}

/// What a handshake gathered.
pub(super) struct Parts {
    pub(super) side: Side,
    pub(super) layout: Layout,
    pub(super) segment: Mapping,
    pub(super) socket: PeerSocket,
    /// (in, out)
    pub(super) bells: (std::os::fd::OwnedFd, std::os::fd::OwnedFd),
}

/// A server that stops, or lacks something: it tells nobody but its log.
fn ended_by_server() -> io::Error {
    let text = "the server ended the connection before it was set up; the server's log says why";
    io::Error::new(io::ErrorKind::ConnectionReset, text)
}

/// Reads the word that only the peer can have, from the process that was held before: so it is the peer that is held, not a later process
/// with its id.
fn is_peer(process: &Process, claim: NonceClaim) -> bool {
    process.read_word(claim.address).is_ok_and(|word| word == claim.bytes)
}

/// This process or the system has no more of something now.
pub(super) fn is_shortage(error: &io::Error) -> bool {
    matches!(error.raw_os_error(), Some(libc::EMFILE | libc::ENFILE | libc::ENOMEM | libc::ENOBUFS))
}

pub(super) fn socket_path(address: &Address) -> Result<&Path, ConnectError> {
    match address {
        Address::Shm(path) => Ok(path),
        _ => Err(ConnectError::wrong_address(Provider::Shm, address)),
    }
}

impl Domain for ShmDomain {
    fn provider(&self) -> Provider {
        Provider::Shm
    }

    fn pins_pages(&self) -> bool {
        false
    }

    fn allocate(&self, len: usize) -> Result<Arc<dyn Memory>, RegionError> {
        match SharedMemory::allocate(len) {
            Ok(memory) => Ok(Arc::new(memory)),
            Err(source) => Err(RegionError::System { what: "allocate shared memory", source }),
        }
    }

    fn register(&self, memory: MemoryRef, access: Access) -> Result<Region, RegionError> {
        self.registry.register(memory, access)
    }

    fn connect(
        &self,
        address: &Address,
        params: &ConnectParams,
        timeout: Duration,
    ) -> Result<Box<dyn Endpoint>, ConnectError> {
        Ok(Box::new(self.connect_endpoint(address, params, timeout)?))
    }

    fn listen(&self, address: &Address, params: &ConnectParams) -> Result<Box<dyn Listener>, ConnectError> {
        Ok(Box::new(self.listen_at(address, params)?))
    }
}
