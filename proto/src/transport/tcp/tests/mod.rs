//! Pairs of endpoints over loopback, both in one thread.

mod counts;
mod ends;
mod faults;
mod gathered;
mod listening;
mod lists;
mod transfer;

use std::io::{Read, Write};
use std::net::{Ipv4Addr, SocketAddr, TcpStream};
use std::sync::Arc;
use std::time::{Duration, Instant};

use super::super::optional::OfType as _;
use super::super::{
    Access, Address, Completion, ConnectParams, Domain, Endpoint, FaultsLate, Gathers, Listener, MemoryRef,
    OpToken, Posted, RdmaLists, Received, Region, RemoteRange, Stream, TransportError, WaitPolicy,
};
use super::frame::{Frame, HEADER_SIZE, Hello};
use super::{TcpDomain, TcpEndpoint, TcpListener};

/// A test that waits longer than this has hung: it fails.
const HANG: Duration = Duration::from_secs(20);

const BOTH: Access = Access::REMOTE_READ.union(Access::REMOTE_WRITE);

fn loopback() -> Address {
    Address::Tcp(SocketAddr::from((Ipv4Addr::LOCALHOST, 0)))
}

fn params() -> ConnectParams {
    ConnectParams { wait: WaitPolicy::Event, ..ConnectParams::default() }
}

fn at(listener: &TcpListener) -> SocketAddr {
    match listener.address() {
        Address::Tcp(at) => *at,
        other => panic!("not a tcp address: {other}"),
    }
}

/// A connection, each side with its own domain.
struct Pair {
    server_domain: TcpDomain,
    client_domain: TcpDomain,
    server: TcpEndpoint,
    client: TcpEndpoint,
}

fn pair() -> Pair {
    pair_with(params(), params())
}

fn pair_with(server_params: ConnectParams, client_params: ConnectParams) -> Pair {
    let (server_domain, client_domain) = (TcpDomain::new(), TcpDomain::new());
    let mut listener = server_domain.listen_tcp(&loopback(), &server_params).unwrap();
    let address = listener.address().clone();
    let (server, client) = std::thread::scope(|scope| {
        let client = scope.spawn(|| client_domain.connect_tcp(&address, &client_params, HANG).unwrap());
        (accept(&mut listener), client.join().unwrap())
    });
    Pair { server_domain, client_domain, server, client }
}

/// Accepts as a loop does: asleep on the listener's descriptor, edge-triggered, between two rounds of `accept`.
fn accept(listener: &mut TcpListener) -> TcpEndpoint {
    let mut outer = Outer::new(listener);
    loop {
        if let Some(endpoint) = listener.accept_tcp().unwrap() {
            return endpoint;
        }
        outer.sleep();
    }
}

/// An event loop around a listener.
struct Outer {
    poll: mio::Poll,
    events: mio::Events,
}

impl Outer {
    fn new(listener: &TcpListener) -> Self {
        let poll = mio::Poll::new().unwrap();
        let fd = listener.event_fds()[0];
        poll.registry()
            .register(&mut mio::unix::SourceFd(&fd), mio::Token(0), mio::Interest::READABLE)
            .unwrap();
        Self { poll, events: mio::Events::with_capacity(4) }
    }

    /// Sleeps until the listener has an event.
    fn sleep(&mut self) {
        self.poll.poll(&mut self.events, Some(HANG)).unwrap();
        assert!(!self.events.is_empty(), "the listener saw no event");
    }
}

/// A raw peer of `listener`: a stream that has said hello, and the endpoint at the other end.
fn raw_client(server_params: &ConnectParams) -> (TcpStream, TcpEndpoint, TcpDomain) {
    let domain = TcpDomain::new();
    let mut listener = domain.listen_tcp(&loopback(), server_params).unwrap();
    let mut raw = TcpStream::connect(at(&listener)).unwrap();
    raw.write_all(&Hello::new(&params()).encode()).unwrap();
    let endpoint = accept(&mut listener);
    let mut answer = [0; HEADER_SIZE];
    raw.read_exact(&mut answer).unwrap();
    assert_eq!(Hello::decode(&answer), Ok(Hello::new(server_params)));
    (raw, endpoint, domain)
}

/// A message as the peer sends it.
fn send(head: &[u8], payload: &[u8]) -> Vec<u8> {
    let head_len = u8::try_from(head.len()).unwrap();
    let payload_len = u32::try_from(payload.len()).unwrap();
    [&Frame::Send { head_len, payload_len }.encode(), head, payload].concat()
}

/// Waits until `endpoint` has something.
fn receive(endpoint: &mut TcpEndpoint) -> Result<Received, TransportError> {
    let deadline = Instant::now() + HANG;
    loop {
        if let Some(received) = endpoint.recv()? {
            return Ok(received);
        }
        assert!(Instant::now() < deadline, "nothing arrived");
        endpoint.wait(Some(HANG))?;
    }
}

/// Receives on `endpoint` until it fails.
fn failure(endpoint: &mut TcpEndpoint) -> TransportError {
    loop {
        if let Err(error) = receive(endpoint) {
            return error;
        }
    }
}

fn expect_message(endpoint: &mut TcpEndpoint) -> (Vec<u8>, Vec<u8>) {
    match receive(endpoint).unwrap() {
        Received::Message { head, payload_len } => {
            let payload = endpoint.payload().to_vec();
            assert_eq!(payload.len(), payload_len as usize);
            (head.as_bytes().to_vec(), payload)
        }
        other => panic!("not a message: {other:?}"),
    }
}

/// Moves both sides until `side` has a completion.
fn complete(pair: &mut Pair) -> Completion {
    let deadline = Instant::now() + HANG;
    loop {
        if let Some(completion) = pair.server.poll_completion() {
            return completion;
        }
        pair.server.flush().unwrap();
        assert!(pair.server.recv().unwrap().is_none());
        assert!(pair.client.recv().unwrap().is_none());
        pair.client.flush().unwrap();
        assert!(Instant::now() < deadline, "no completion");
    }
}

fn pattern(seed: usize, len: usize) -> Vec<u8> {
    (0..len)
        .map(|at| (at.wrapping_mul(31).wrapping_add(at >> 8).wrapping_add(seed)).to_le_bytes()[0])
        .collect()
}

fn memory(domain: &TcpDomain, bytes: &[u8]) -> MemoryRef {
    let memory = MemoryRef::new(domain.allocate(bytes.len()).unwrap());
    memory.span().write_from(0, bytes);
    memory.slice(0, bytes.len()).unwrap()
}

fn region(domain: &TcpDomain, bytes: &[u8], access: Access) -> Region {
    domain.register(memory(domain, bytes), access).unwrap()
}

/// Waits until there is something to receive.
fn is_readable(endpoint: &TcpEndpoint) -> bool {
    let events = rustix::event::PollFlags::IN;
    !super::super::util::poll([(endpoint.fd(), events)], Some(HANG)).unwrap()[0].is_empty()
}
