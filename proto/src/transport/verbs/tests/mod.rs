//! What only this provider promises: counts, limits, faults of the device and of the peer. They need an RDMA device; its IP address is
//! in `DAFS_VERBS_ADDRESS`.
#![allow(clippy::cast_possible_truncation, reason = "small numbers")]

use std::io::{BufRead, BufReader, Write};
use std::net::SocketAddr;
use std::os::fd::RawFd;
use std::process::{Child, Command, Stdio};
use std::sync::Arc;
use std::time::{Duration, Instant};

use super::super::optional::OfType as _;
use super::super::{
    Access, Address, BorrowedMemory, Completion, ConnectError, ConnectParams, Domain, Endpoint, HeapMemory,
    Listener, LocalSegments, Looks, MemoryRef, OpToken, PeerFault, PostError, Posted, Received, Region,
    RegionError, RegionFault, RegionKey, RemoteRange, TransportError, WaitPolicy,
};
use super::cm::{CmEvent, CmEventKind, CmId, EventChannel, poll_readable};
use super::connect::{Prepared, device_of};
use super::device::Device;
use super::handshake::Hello;
use super::memory::VerbsDomainParts;
use super::*;

/// What changed between two looks.
macro_rules! deltas {
    ($before:expr, $after:expr, $($field:ident),+) => { ($($after.$field - $before.$field),+) };
}

mod counts;
mod faults;
mod layout;
mod life;
mod processes;

/// A test that makes no progress for so long has hung. No result depends on it.
const HANG: Duration = Duration::from_secs(60);

/// Names the part of a test that runs in another process, and what it is told.
const ROLE: &str = "DAFS_VERBS_TEST_ROLE";

fn address() -> Address {
    let ip =
        std::env::var("DAFS_VERBS_ADDRESS").expect("DAFS_VERBS_ADDRESS: the IP address of an RDMA device");
    Address::Verbs(SocketAddr::new(ip.parse().expect("an IP address"), 0))
}

fn params() -> ConnectParams {
    ConnectParams {
        recv_payload_max: 8192,
        recv_depth: 32,
        rdma_depth: 32,
        wait: WaitPolicy::Event,
        ..ConnectParams::default()
    }
}

/// A domain that takes the device for one with other limits.
fn domain_on(change: impl FnOnce(&mut DeviceLimits)) -> VerbsDomain {
    let mut device = Device::open_first().unwrap();
    change(&mut Arc::get_mut(&mut device).unwrap().limits);
    let domain = VerbsDomain::new();
    assert!(domain.shared.device.set(device).is_ok());
    domain
}

fn memory(len: usize) -> MemoryRef {
    MemoryRef::new(Arc::new(HeapMemory::allocate(len).unwrap())).slice(0, len).unwrap()
}

fn fill(memory: &MemoryRef, seed: u8) -> Vec<u8> {
    let bytes: Vec<u8> = (0..memory.len()).map(|at| (at * 31 + at / 251) as u8 ^ seed).collect();
    memory.span().write_from(0, &bytes);
    bytes
}

struct Pair {
    client_domain: VerbsDomain,
    listener: VerbsListener,
    client: VerbsEndpoint,
    server: VerbsEndpoint,
}

impl Pair {
    fn new() -> Self {
        Self::of(VerbsDomain::new(), &VerbsDomain::new())
    }

    fn of(client_domain: VerbsDomain, server_domain: &VerbsDomain) -> Self {
        let mut listener = server_domain.listen_verbs(&address(), &params()).unwrap();
        let (client, server) = connect(&client_domain, &mut listener);
        Self { client_domain, listener, client, server }
    }

    fn region(&self, len: usize) -> Region {
        self.client_domain.register(memory(len), Access::all()).unwrap()
    }

    fn write(&mut self, local: LocalSegments, remote: RemoteRange) {
        assert_eq!(self.server.rdma_write(OpToken(1), local, remote, None).unwrap(), Posted::Pending);
    }

    /// A message from the server, which the client waits for, and the completion of one operation.
    /// A message of the server; the first takes a buffer, which is registered.
    fn message(&mut self) {
        self.server.send_copy(b"reply", b"").unwrap();
        self.server.flush().unwrap();
        assert_eq!(next_message(&mut self.client).unwrap(), b"reply");
    }

    fn message_and_completion(&mut self) {
        self.message();
        completion(&mut self.server).result.unwrap();
    }

    fn assert_alive(&mut self) {
        self.client.send_copy(b"ping", b"").unwrap();
        self.client.flush().unwrap();
        assert_eq!(next_message(&mut self.server).unwrap(), b"ping");
    }
}

fn connect(domain: &VerbsDomain, listener: &mut VerbsListener) -> (VerbsEndpoint, VerbsEndpoint) {
    let to = listener.address().clone();
    std::thread::scope(|scope| {
        let client = scope.spawn(|| domain.connect_verbs(&to, &params(), HANG).unwrap());
        let mut server = accept(listener);
        // [VERBS-55] One for a message, and one more.
        assert!(server.receives_count() == 2 || !server.core().device.limits.peers_wait);
        let (expected, depth) = (server.expect_messages(params().recv_depth), params().recv_depth);
        assert!(expected == depth || !server.core().device.limits.peers_wait, "{expected}");
        (client.join().unwrap(), server)
    })
}

fn accept(listener: &mut VerbsListener) -> VerbsEndpoint {
    let begin = Instant::now();
    loop {
        if let Some(endpoint) = listener.accept_verbs().unwrap() {
            return endpoint;
        }
        assert!(begin.elapsed() < HANG, "nothing to accept");
        std::thread::yield_now();
    }
}

/// The head of the next message.
fn next_message(endpoint: &mut VerbsEndpoint) -> Result<Vec<u8>, TransportError> {
    let begin = Instant::now();
    loop {
        match endpoint.recv()? {
            Some(Received::Message { head, .. }) => return Ok(head.as_bytes().to_vec()),
            Some(other) => panic!("{other:?}"),
            None => endpoint.wait(Some(Duration::from_millis(100)))?,
        }
        assert!(begin.elapsed() < HANG, "no message");
    }
}

fn completion(endpoint: &mut VerbsEndpoint) -> Completion {
    let begin = Instant::now();
    loop {
        if let Some(completion) = endpoint.poll_completion() {
            return completion;
        }
        assert!(begin.elapsed() < HANG, "no completion");
        std::thread::yield_now();
    }
}

fn event_fds(endpoint: &VerbsEndpoint) -> [RawFd; 2] {
    endpoint.event_fds().into_inner().unwrap()
}

fn end_of(endpoint: &mut VerbsEndpoint) -> TransportError {
    loop {
        if let Err(error) = next_message(endpoint) {
            return error;
        }
    }
}
