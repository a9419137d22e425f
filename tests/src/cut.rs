//! Connections that break: a relay for TCP that cuts or stalls after any byte, and a way to cut the connections that
//! this process has to a server.

use std::io::{Read, Write};
use std::net::{IpAddr, Shutdown, SocketAddr, TcpListener, TcpStream};
use std::os::unix::net::UnixStream;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};

use dafs_client::{Config, Result, Session};
use dafs_proto::transport::Address;
use rustix::process::{PidfdFlags, PidfdGetfdFlags, getpid, pidfd_getfd, pidfd_open};
use socket2::{Domain, Socket, Type};

use crate::harness::Harness;

/// Which way bytes go.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Way {
    /// From the client to the server.
    ToServer,
    /// From the server to the client.
    ToClient,
}

/// Where a connection is to be cut.
#[derive(Clone, Copy, Debug)]
pub struct Cut {
    /// Bytes of this direction are counted.
    pub way: Way,
    /// So many are let through.
    pub bytes: u64,
}

/// A relay in front of a TCP server. Dropping it ends it and cuts its connections.
pub struct Relay {
    address: SocketAddr,
    shared: Arc<CutterState>,
    thread: Option<std::thread::JoinHandle<()>>,
}

struct CutterState {
    server: SocketAddr,
    /// The first connections are cut so, in order; later ones are not.
    plan: Vec<Cut>,
    /// From where it connects, where that was said.
    from: Mutex<Option<IpAddr>>,
    connections: Mutex<Vec<(TcpStream, TcpStream)>>,
    accepted: AtomicU64,
    passed: [AtomicU64; 2],
    /// Bytes that may still go in a direction, where that is bounded.
    stalled: Mutex<[Option<u64>; 2]>,
    moved: Condvar,
    stopping: AtomicBool,
}

impl Relay {
    /// Relays to `server` and cuts the first connections as planned.
    pub fn start(server: &Address, plan: Vec<Cut>) -> Self {
        let Address::Tcp(server) = server else { panic!("{server} is not a TCP address") };
        let listener = TcpListener::bind("127.0.0.1:0").expect("a port for the relay");
        let address = listener.local_addr().expect("the relay's address");
        let shared = Arc::new(CutterState {
            server: *server,
            plan,
            from: Mutex::default(),
            connections: Mutex::default(),
            accepted: AtomicU64::new(0),
            passed: Default::default(),
            stalled: Mutex::default(),
            moved: Condvar::new(),
            stopping: AtomicBool::new(false),
        });
        let accepting = Arc::clone(&shared);
        let thread = std::thread::spawn(move || accept(&listener, &accepting));
        Self { address, shared, thread: Some(thread) }
    }

    /// Where clients connect.
    pub fn url(&self) -> String {
        format!("dafs+tcp://{}", self.address)
    }

    /// The same, for those who speak the protocol by hand.
    pub fn address(&self) -> Address {
        Address::Tcp(self.address)
    }

    /// Connects to the server from this address of the host from now on.
    pub fn come_from(&self, address: IpAddr) {
        *self.shared.from.lock().unwrap_or_else(PoisonError::into_inner) = Some(address);
    }

    /// Connections so far.
    pub fn accepted(&self) -> u64 {
        self.shared.accepted.load(Ordering::Acquire)
    }

    /// Bytes let through in a direction, over all connections.
    pub fn passed(&self, way: Way) -> u64 {
        self.shared.passed[way as usize].load(Ordering::Acquire)
    }

    /// Lets nothing through to the client until the next [`Relay::cut`].
    pub fn stall(&self) {
        self.stall_way(Way::ToClient);
    }

    /// The same of a direction.
    pub fn stall_way(&self, way: Way) {
        self.shared.stalled()[way as usize] = Some(0);
    }

    /// Lets so many bytes more through in a direction that is stalled.
    pub fn let_through(&self, way: Way, bytes: u64) {
        if let Some(left) = &mut self.shared.stalled()[way as usize] {
            *left += bytes;
        }
        self.shared.moved.notify_all();
    }

    /// Lets everything through again.
    pub fn go_on(&self) {
        *self.shared.stalled() = [None; 2];
        self.shared.moved.notify_all();
    }

    /// Cuts the connections that there are.
    pub fn cut(&self) {
        for (client, server) in self.shared.connections().drain(..) {
            sever(&client, &server);
        }
        self.go_on();
    }
}

impl Drop for Relay {
    fn drop(&mut self) {
        self.shared.stopping.store(true, Ordering::Release);
        // Wakes the thread that accepts.
        drop(TcpStream::connect(self.address));
        if let Some(thread) = self.thread.take() {
            // Its panic has been reported by itself.
            let _ = thread.join();
        }
        self.cut();
    }
}

impl CutterState {
    fn connections(&self) -> MutexGuard<'_, Vec<(TcpStream, TcpStream)>> {
        self.connections.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn stalled(&self) -> MutexGuard<'_, [Option<u64>; 2]> {
        self.stalled.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn connect(&self) -> std::io::Result<TcpStream> {
        let from = *self.from.lock().unwrap_or_else(PoisonError::into_inner);
        let socket = Socket::new(Domain::for_address(self.server), Type::STREAM, None)?;
        from.map_or(Ok(()), |from| socket.bind(&SocketAddr::new(from, 0).into()))?;
        socket.connect(&self.server.into())?;
        Ok(socket.into())
    }

    /// Waits until some of so many bytes may go; returns how many.
    fn pass(&self, way: Way, bytes: usize) -> usize {
        let stalled = self.moved.wait_while(self.stalled(), |left| left[way as usize] == Some(0));
        match &mut stalled.unwrap_or_else(PoisonError::into_inner)[way as usize] {
            None => bytes,
            Some(left) => {
                let pass = bytes.min(usize::try_from(*left).unwrap_or(usize::MAX));
                *left -= pass as u64;
                pass
            }
        }
    }
}

fn accept(listener: &TcpListener, shared: &Arc<CutterState>) {
    for client in listener.incoming() {
        if shared.stopping.load(Ordering::Acquire) {
            return;
        }
        let Ok(client) = client else { continue };
        // A server that is not there refuses its clients.
        let Ok(server) = shared.connect() else { continue };
        let number = shared.accepted.fetch_add(1, Ordering::AcqRel) as usize;
        let cut = shared.plan.get(number).copied();
        let both = || (client.try_clone().expect("a descriptor"), server.try_clone().expect("a descriptor"));
        shared.connections().push(both());
        for way in [Way::ToServer, Way::ToClient] {
            let bytes_max = cut.filter(|cut| cut.way == way).map_or(u64::MAX, |cut| cut.bytes);
            let (shared, (client, server)) = (Arc::clone(shared), both());
            std::thread::spawn(move || pump(&shared, way, &client, &server, bytes_max));
        }
    }
}

fn pump(shared: &CutterState, way: Way, client: &TcpStream, server: &TcpStream, mut left: u64) {
    let (mut from, mut to) = match way {
        Way::ToServer => (client, server),
        Way::ToClient => (server, client),
    };
    let mut buffer = vec![0; 64 << 10];
    'all: loop {
        let count = match from.read(&mut buffer) {
            Ok(0) | Err(_) => break,
            Ok(count) => count,
        };
        let mut rest = &buffer[..count];
        while !rest.is_empty() {
            let (now, later) = rest.split_at(shared.pass(way, rest.len()));
            rest = later;
            let pass = now.len().min(usize::try_from(left).unwrap_or(usize::MAX));
            shared.passed[way as usize].fetch_add(pass as u64, Ordering::AcqRel);
            if to.write_all(&now[..pass]).is_err() {
                break 'all;
            }
            left -= pass as u64;
            if left == 0 {
                break 'all;
            }
        }
    }
    sever(client, server);
}

fn sever(client: &TcpStream, server: &TcpStream) {
    for stream in [client, server] {
        // It may be closed already.
        let _ = stream.shutdown(Shutdown::Both);
    }
}

/// A session whose connections can be cut by [`cut_connections`].
pub fn connect_cuttable(harness: &Harness, config: &Config) -> Result<Session> {
    #[cfg(feature = "verbs")]
    if let Address::Verbs(_) = harness.address() {
        return verbs::connect(harness, config);
    }
    harness.connect(config)
}

/// Cuts every connection that this process, as a client, has to the server at `address`; returns how many. Over
/// shared memory that is the unix socket; over RDMA the queue pairs of [`connect_cuttable`] go to their error state.
pub fn cut_connections(address: &Address) -> usize {
    #[cfg(feature = "verbs")]
    if let Address::Verbs(_) = address {
        return verbs::cut(address);
    }
    let process = pidfd_open(getpid(), PidfdFlags::empty()).expect("a descriptor of this process");
    let mut count = 0;
    for entry in std::fs::read_dir("/proc/self/fd").expect("/proc is mounted").flatten() {
        let Some(number) = entry.file_name().to_str().and_then(|name| name.parse().ok()) else { continue };
        // Closed meanwhile, or not to be had: not ours to cut.
        let Ok(copy) = pidfd_getfd(&process, number, PidfdGetfdFlags::empty()) else { continue };
        let cut = match address {
            Address::Tcp(server) => {
                let stream = TcpStream::from(copy);
                stream.peer_addr().is_ok_and(|peer| peer == *server)
                    && stream.shutdown(Shutdown::Both).is_ok()
            }
            Address::Shm(path) => {
                let stream = UnixStream::from(copy);
                let peer = stream.peer_addr();
                peer.is_ok_and(|peer| peer.as_pathname() == Some(path))
                    && stream.shutdown(Shutdown::Both).is_ok()
            }
            Address::Verbs(_) | Address::Sim(_) => false,
        };
        count += usize::from(cut);
    }
    count
}

/// Connections over RDMA have no descriptors that carry them: those to be cut are noted when they are made.
#[cfg(feature = "verbs")]
mod verbs {
    use std::sync::{Arc, Mutex, PoisonError};
    use std::time::Duration;

    use dafs_client::{Config, Result, Session, SystemClock};
    use dafs_proto::transport::verbs::{AbortHandle, VerbsDomain};
    use dafs_proto::transport::{
        Access, Address, ConnectError, ConnectParams, Domain, Endpoint, Listener, Memory, MemoryRef,
        Provider, Region, RegionError,
    };

    use crate::harness::Harness;

    static MADE: Mutex<Vec<(Address, AbortHandle)>> = Mutex::new(Vec::new());

    pub(super) fn connect(harness: &Harness, config: &Config) -> Result<Session> {
        let config = harness.client_config(config);
        let clock = Arc::new(SystemClock::default());
        Session::connect_with(Arc::new(Noting(VerbsDomain::new())), harness.address().clone(), &config, clock)
    }

    pub(super) fn cut(address: &Address) -> usize {
        let mut made = MADE.lock().unwrap_or_else(PoisonError::into_inner);
        made.extract_if(.., |(to, _)| to == address)
            .filter(|(_, handle)| handle.abort().expect("a queue pair goes to its error state"))
            .count()
    }

    /// The real domain, which notes what it connects.
    struct Noting(VerbsDomain);

    impl Domain for Noting {
        fn provider(&self) -> Provider {
            self.0.provider()
        }

        fn pins_pages(&self) -> bool {
            self.0.pins_pages()
        }

        fn allocate(&self, len: usize) -> std::result::Result<Arc<dyn Memory>, RegionError> {
            self.0.allocate(len)
        }

        fn register(&self, memory: MemoryRef, access: Access) -> std::result::Result<Region, RegionError> {
            self.0.register(memory, access)
        }

        fn connect(
            &self,
            address: &Address,
            params: &ConnectParams,
            timeout: Duration,
        ) -> std::result::Result<Box<dyn Endpoint>, ConnectError> {
            let endpoint = self.0.connect_verbs(address, params, timeout)?;
            let mut made = MADE.lock().unwrap_or_else(PoisonError::into_inner);
            made.push((address.clone(), endpoint.abort_handle()));
            Ok(Box::new(endpoint))
        }

        fn listen(
            &self,
            address: &Address,
            params: &ConnectParams,
        ) -> std::result::Result<Box<dyn Listener>, ConnectError> {
            self.0.listen(address, params)
        }
    }
}
