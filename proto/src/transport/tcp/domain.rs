//! Memory and connections of one side.

use std::io::{self, Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::os::fd::AsFd;
use std::sync::Arc;
use std::time::{Duration, Instant};

use rustix::event::PollFlags;
use socket2::{Socket, TcpKeepalive, Type};

use super::super::util::{
    RegionTable, allocate_heap, connect_again, deadline_after, poll, refuse_faulting, socket_address,
};
use super::super::{
    Access, Address, ConnectError, ConnectParams, Domain, Endpoint, Listener, Memory, MemoryRef, OwnMemory,
    Provider, Region, RegionError,
};
use super::domain_parts::{TcpDomainParts, TcpSettings};
use super::endpoint::TcpEndpoint;
use super::frame::{HEADER_SIZE, Hello};
use super::listener::TcpListener;
use super::memory::BufferPool;

/// The protection domain of the tcp provider.
pub struct TcpDomain {
    shared: Arc<TcpDomainParts>,
}

impl Default for TcpDomain {
    fn default() -> Self {
        Self::new()
    }
}

impl TcpDomain {
    /// A domain with default settings.
    pub fn new() -> Self {
        Self::with_settings(TcpSettings::default())
    }

    /// A domain with these settings.
    pub fn with_settings(settings: TcpSettings) -> Self {
        let regions = RegionTable::new(settings.regions_max);
        Self { shared: Arc::new(TcpDomainParts { regions, pool: BufferPool::new(), settings }) }
    }

    /// As [`Domain::connect`], with the provider's own type.
    pub fn connect_tcp(
        &self,
        address: &Address,
        params: &ConnectParams,
        timeout: Duration,
    ) -> Result<TcpEndpoint, ConnectError> {
        connect_again(timeout, |left| self.attempt(address, params, timeout, left))
    }

    fn attempt(
        &self,
        address: &Address,
        params: &ConnectParams,
        timeout: Duration,
        left: Duration,
    ) -> Result<TcpEndpoint, ConnectError> {
        let peer = socket_address(Provider::Tcp, address)?;
        let deadline = deadline_after(left);
        let failed = |error| ConnectError::connecting(address, timeout, error);
        let stream = open_stream(peer, left, &self.shared.settings).map_err(failed)?;
        let own = Hello::new(params);
        let bytes = exchange_hellos(&stream, &own, deadline).map_err(failed)?;
        let theirs = Hello::decode(&bytes).map_err(|fault| ConnectError::peer(address, fault))?;
        Ok(TcpEndpoint::new(stream, Arc::clone(&self.shared), peer, own, theirs, params.wait))
    }

    /// As [`Domain::listen`], with the provider's own type.
    pub fn listen_tcp(&self, address: &Address, params: &ConnectParams) -> Result<TcpListener, ConnectError> {
        let at = socket_address(Provider::Tcp, address)?;
        TcpListener::bind(at, Arc::clone(&self.shared), params)
            .map_err(|error| ConnectError::listening(address, error))
    }

    /// Regions registered now.
    pub fn regions_count(&self) -> usize {
        self.shared.regions.len()
    }
}

impl Domain for TcpDomain {
    fn provider(&self) -> Provider {
        Provider::Tcp
    }

    fn pins_pages(&self) -> bool {
        false
    }

    fn allocate(&self, len: usize) -> Result<Arc<dyn Memory>, RegionError> {
        allocate_heap(len)
    }

    fn register(&self, memory: MemoryRef, access: Access) -> Result<Region, RegionError> {
        refuse_faulting(Provider::Tcp, &memory)?;
        self.shared.regions.register(memory, access)
    }

    fn connect(
        &self,
        address: &Address,
        params: &ConnectParams,
        timeout: Duration,
    ) -> Result<Box<dyn Endpoint>, ConnectError> {
        let mut endpoint = self.connect_tcp(address, params, timeout)?;
        endpoint.open_memory(params.reach);
        Ok(Box::new(endpoint))
    }

    fn listen(&self, address: &Address, params: &ConnectParams) -> Result<Box<dyn Listener>, ConnectError> {
        Ok(Box::new(self.listen_tcp(address, params)?))
    }
}

/// Options of every connection.
pub(super) fn configure(socket: &Socket, peer: SocketAddr, settings: &TcpSettings) -> io::Result<()> {
    socket.set_tcp_nodelay(true)?;
    let keepalive = TcpKeepalive::new()
        .with_time(Duration::from_secs(60))
        .with_interval(Duration::from_secs(10))
        .with_retries(6);
    socket.set_tcp_keepalive(&keepalive)?;
    if peer.ip().to_canonical().is_loopback() {
        socket.set_send_buffer_size(settings.loopback_buffer_size)?;
        socket.set_recv_buffer_size(settings.loopback_buffer_size)?;
        // Nothing on the way can be congested: the algorithm that does least, and does not pace, where the kernel has it.
        #[cfg(target_os = "linux")]
        if let Err(error) = socket.set_tcp_congestion(b"reno") {
            tracing::debug!(%error, "the system's congestion control stays");
        }
    }
    Ok(())
}

fn open_stream(peer: SocketAddr, timeout: Duration, settings: &TcpSettings) -> io::Result<TcpStream> {
    let socket = Socket::new(socket2::Domain::for_address(peer), Type::STREAM, None)?;
    configure(&socket, peer, settings)?;
    socket.connect_timeout(&peer.into(), timeout.max(Duration::from_millis(1)))?;
    Ok(socket.into())
}

/// Sends `own` and receives the peer's 32 bytes.
fn exchange_hellos(mut stream: &TcpStream, own: &Hello, deadline: Instant) -> io::Result<[u8; HEADER_SIZE]> {
    // The first bytes of a connection: they always fit the socket's buffer.
    stream.write_all(&own.encode())?;
    let mut bytes = [0; HEADER_SIZE];
    let mut received = 0;
    while received < HEADER_SIZE {
        let left = deadline.saturating_duration_since(Instant::now());
        if left.is_zero() {
            return Err(io::ErrorKind::TimedOut.into());
        }
        let [ready] = poll([(stream.as_fd(), PollFlags::IN)], Some(left))?;
        if ready.is_empty() {
            continue;
        }
        match stream.read(&mut bytes[received..])? {
            0 => {
                return Err(io::Error::new(io::ErrorKind::UnexpectedEof, "the peer closed in the handshake"));
            }
            count => received += count,
        }
    }
    Ok(bytes)
}
