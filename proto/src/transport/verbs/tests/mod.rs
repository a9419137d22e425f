//! What only this provider promises: counts, limits, faults of the device and of the peer. They need an RDMA device; its IP address is
//! in `DAFS_VERBS_ADDRESS`.
#![allow(
    unsafe_code,
    clippy::cast_possible_truncation,
    reason = "forces a queue pair into its error state; small numbers"
)]

mod layout;

use std::io::{BufRead, BufReader, Write};
use std::net::SocketAddr;
use std::process::{Child, Command, Stdio};
use std::sync::Arc;
use std::time::{Duration, Instant};

use super::super::{
    Access, Address, Completion, ConnectError, ConnectParams, Domain, Endpoint, HeapMemory, Listener,
    LocalSegments, MemoryRef, OpToken, PeerFault, PostError, Posted, Received, Region, RegionError,
    RegionKey, RemoteRange, TransportError, WaitPolicy,
};
use super::cm::{CmEvent, CmEventKind, CmId, EventChannel, poll_readable};
use super::connect::{Prepared, device_of};
use super::handshake::Hello;
use super::memory::Shared;
use super::*;

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
    ConnectParams { recv_payload_max: 8192, recv_depth: 32, rdma_depth: 32, wait: WaitPolicy::Event }
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
        let (client_domain, server_domain) = (VerbsDomain::new(), VerbsDomain::new());
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
    fn message_and_completion(&mut self) {
        self.server.send_copy(b"reply", b"").unwrap();
        self.server.flush().unwrap();
        assert_eq!(next_message(&mut self.client).unwrap(), b"reply");
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
        let server = accept(listener);
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

fn end_of(endpoint: &mut VerbsEndpoint) -> TransportError {
    loop {
        if let Err(error) = next_message(endpoint) {
            return error;
        }
    }
}

/// What changed between two looks.
macro_rules! deltas {
    ($before:expr, $after:expr, $($field:ident),+) => { ($($after.$field - $before.$field),+) };
}

/// [VERBS-21] A direct read: one RDMA write and one send, one doorbell, one completion, no copy.
#[test]
#[ignore = "needs rdma-device"]
fn direct_read_of_4_kib_is_one_rdma_write_and_one_send() {
    let mut pair = Pair::new();
    let (region, local) = (pair.region(4096), memory(65_536));
    for round in 0..3 {
        let part = local.slice(8192, 4096).unwrap();
        let expected = fill(&part, round);
        let before = pair.server.counters();
        pair.write([part].into_iter().collect(), region.range());
        pair.message_and_completion();
        assert!(region.memory().span().to_vec() == expected);
        let after = pair.server.counters();
        assert_eq!(deltas!(before, after, work_requests, rdma_requests, doorbells), (2, 1, 1));
        assert_eq!(deltas!(before, after, completions, bytes_copied), (1, 0));
        // Registered with the first.
        assert_eq!(after.registrations - before.registrations, u64::from(round == 0));
    }
}

/// [VERBS-20] Lists of as many segments as one request takes, and one more.
#[test]
#[ignore = "needs rdma-device"]
fn lists_take_one_request_for_as_many_segments_as_the_device_gathers() {
    let mut pair = Pair::new();
    let segments_max = pair.server.segments_per_request();
    assert!(segments_max >= 2);
    let local = memory(65_536);
    fill(&local, 1);
    for (count, requests) in [
        (1, 1),
        (32.min(segments_max), 1),
        (segments_max - 1, 1),
        (segments_max, 1),
        (segments_max + 1, 2),
        (2 * segments_max, 2),
        (2 * segments_max + 1, 3),
        (usize::from(SEGMENTS_MAX), usize::from(SEGMENTS_MAX).div_ceil(segments_max)),
    ] {
        let parts: LocalSegments = (0..count).map(|index| local.slice(index * 200, 100).unwrap()).collect();
        let expected: Vec<u8> = parts.iter().flat_map(|part| part.span().to_vec()).collect();
        let region = pair.region(count * 100);
        for read in [false, true] {
            let before = pair.server.counters();
            match read {
                false => pair.write(parts.clone(), region.range()),
                true => {
                    fill(&local, 2);
                    let posted = pair.server.rdma_read(OpToken(1), parts.clone(), region.range()).unwrap();
                    assert_eq!(posted, Posted::Pending);
                }
            }
            pair.message_and_completion();
            let after = pair.server.counters();
            let deltas = deltas!(before, after, rdma_requests, doorbells, bytes_copied);
            assert_eq!(deltas, (requests as u64, 1, 0), "{count} segments, read {read}");
        }
        assert!(region.memory().span().to_vec() == expected, "{count} segments written");
        let read: Vec<u8> = parts.iter().flat_map(|part| part.span().to_vec()).collect();
        assert!(read == expected, "{count} segments read");
        fill(&local, 1);
    }
}

/// [VERBS-20] [VERBS-22] What leaves with its request, what is copied, and what is registered.
#[test]
#[ignore = "needs rdma-device"]
fn local_memory_is_inlined_copied_or_registered_by_its_size() {
    let mut pair = Pair::new();
    let region = pair.region(65_536);
    // Memory, part of it that is written, inline, copied, registered.
    for (size, part, inline, copied, registered) in
        [(65_536, 200, 1, 0, 0), (4096, 221, 0, 221, 1), (4096, 4096, 0, 4096, 0), (16_384, 4096, 0, 0, 1)]
    {
        let local = memory(size);
        let expected = fill(&local, 3);
        let before = pair.server.counters();
        let remote = region.range().slice(0, part as u64).unwrap();
        pair.write([local.slice(0, part).unwrap()].into_iter().collect(), remote);
        // The message itself is inline.
        pair.message_and_completion();
        let after = pair.server.counters();
        let deltas = deltas!(before, after, inline_requests, bytes_copied, registrations);
        assert_eq!(deltas, (inline + 1, copied, registered), "{part} of {size}");
        assert!(region.memory().span().slice(0, part).unwrap().to_vec() == expected[..part]);
    }
}

/// [VERBS-21] Messages ask for a completion now and then.
#[test]
#[ignore = "needs rdma-device"]
fn messages_share_completions() {
    let mut pair = Pair::new();
    let before = pair.client.counters();
    const COUNT: u64 = 64;
    for _ in 0..COUNT {
        pair.assert_alive();
    }
    let after = pair.client.counters();
    assert_eq!(deltas!(before, after, sent, doorbells), (COUNT, COUNT));
    // A quarter of 32 slots.
    assert!(after.completions - before.completions <= COUNT / 8, "{after:?}");
}

/// [VERBS-12] A message wakes a side that asked for marked completions only; many times, so that a lost one shows.
#[test]
#[ignore = "needs rdma-device"]
fn message_wakes_a_side_that_waits_for_messages_only() {
    let mut pair = Pair::new();
    for _ in 0..100 {
        while !pair.server.arm() {
            assert!(pair.server.recv().unwrap().is_none());
        }
        pair.client.send_copy(b"ping", b"").unwrap();
        pair.client.flush().unwrap();
        let fds = pair.server.event_fds();
        assert!(poll_readable(&fds, Some(HANG)).unwrap(), "slept through a message");
        assert_eq!(next_message(&mut pair.server).unwrap(), b"ping");
    }
}

/// [VERBS-11] The receive queue runs dry: nothing is lost, nothing breaks.
#[test]
#[ignore = "needs rdma-device"]
fn messages_beyond_the_posted_receives_arrive_when_these_are_posted() {
    let mut pair = Pair::new();
    let mut taken = 0u32;
    let mut sent = 0u32;
    let begin = Instant::now();
    while taken < 500 {
        // As many as the sender has slots: more than the receives that are posted, as some are taken and not given back.
        while sent < 500 && pair.client.send_copy(&sent.to_le_bytes(), &[1; 100]).is_ok() {
            sent += 1;
        }
        pair.client.flush().unwrap();
        if pair.server.recv().unwrap().is_some_and(|received| {
            let Received::Message { head, .. } = received else { panic!("{received:?}") };
            assert_eq!(head.as_bytes(), taken.to_le_bytes());
            true
        }) {
            taken += 1;
        }
        assert!(begin.elapsed() < HANG, "{taken} of {sent}");
    }
}

/// [VERBS-23] [VERBS-24] The queue pair goes to its error state while data moves: every operation completes once, the connection ends
/// on both sides, and others go on.
#[test]
#[ignore = "needs rdma-device"]
fn queue_pair_in_error_fails_its_connection_only() {
    let mut pair = Pair::new();
    let (region, local) = (pair.region(1 << 20), memory(1 << 20));
    let (client, server) = connect(&pair.client_domain, &mut pair.listener);
    let (mut victim_client, mut victim) =
        (std::mem::replace(&mut pair.client, client), std::mem::replace(&mut pair.server, server));
    for token in 0..16 {
        let segments = [local.clone()].into_iter().collect();
        let posted = match token % 2 {
            0 => victim.rdma_write(OpToken(token), segments, region.range(), None),
            _ => victim.rdma_read(OpToken(token), segments, region.range()),
        };
        assert_eq!(posted.unwrap(), Posted::Pending);
    }
    victim.flush().unwrap();
    break_queue_pair(&mut victim);
    assert!(matches!(end_of(&mut victim), TransportError::Closed));
    let mut tokens: Vec<_> = (0..16).map(|_| completion(&mut victim)).collect();
    tokens.sort_by_key(|completion| completion.token.0);
    assert!(tokens.iter().map(|completion| completion.token.0).eq(0..16));
    // A quick device may have moved all of it before.
    let ended = |completion: &Completion| matches!(completion.result, Ok(_) | Err(TransportError::Closed));
    assert!(tokens.iter().all(ended));
    assert!(victim.poll_completion().is_none());
    // Given back, the memory is not touched any more.
    let mine = fill(&local, 9);
    assert!(matches!(end_of(&mut victim_client), TransportError::Closed));
    pair.assert_alive();
    assert!(local.span().to_vec() == mine);
}

fn break_queue_pair(endpoint: &mut VerbsEndpoint) {
    // SAFETY: zero is valid; the queue pair is live.
    unsafe {
        let mut attributes: ffi::ibv_qp_attr = std::mem::zeroed();
        attributes.qp_state = ffi::ibv_qp_state::IBV_QPS_ERR;
        let mask = i32::try_from(ffi::ibv_qp_attr_mask::IBV_QP_STATE.0).unwrap();
        assert_eq!(ffi::ibv_modify_qp(endpoint.core().qp.0, &raw mut attributes, mask), 0);
    }
}

/// [VERBS-24] [VERBS-30] A refused access names its range, whatever else was on its way.
#[test]
#[ignore = "needs rdma-device"]
fn refused_access_is_explained_with_its_range() {
    let mut pair = Pair::new();
    let region = pair.region(4096);
    // Address and lower key are the device's to check; nobody has the upper key twice.
    let again = pair.client_domain.register(region.memory().clone(), Access::all()).unwrap();
    assert_ne!(again.range().key.0 >> 32, region.range().key.0 >> 32);
    assert_ne!(again.range().offset, region.range().offset);
    let wrong = RemoteRange { key: RegionKey(region.range().key.0 ^ 0x100), ..region.range() };
    pair.write([memory(65_536).slice(0, 4096).unwrap()].into_iter().collect(), wrong);
    pair.server.flush().unwrap();
    match end_of(&mut pair.server) {
        TransportError::Peer(PeerFault::Region(fault)) => {
            let refused =
                super::super::RegionFault::Refused { key: wrong.key, offset: wrong.offset, len: 4096 };
            assert_eq!(fault, refused);
        }
        other => panic!("{other}"),
    }
    assert!(completion(&mut pair.server).result.is_err());
}

/// [VERBS-31] [VERBS-32]
#[test]
#[ignore = "needs rdma-device"]
fn registrations_end_with_their_regions() {
    let mut pair = Pair::new();
    let before = pair.client.counters();
    let regions: Vec<_> = (0..50).map(|_| pair.region(10_000)).collect();
    assert_eq!(pair.client_domain.regions_count(), 50);
    let range = regions[7].range();
    drop(regions);
    let after = pair.client.counters();
    assert_eq!(deltas!(before, after, registrations, deregistrations), (50, 50));
    assert_eq!(pair.client_domain.regions_count(), 0);
    // Of 0 bytes, at the end of a region that is gone.
    let nothing = RemoteRange { offset: range.offset + range.len, len: 0, ..range };
    pair.write(LocalSegments::new(), nothing);
    pair.server.flush().unwrap();
    assert!(matches!(end_of(&mut pair.client), TransportError::Peer(PeerFault::Region(_))));
}

/// [VERBS-13] A dropped side is closed in the background; what it flushed arrives.
#[test]
#[ignore = "needs rdma-device"]
fn drop_right_after_flush_loses_nothing() {
    for count in [1u8, 30] {
        let Pair { mut client, mut server, .. } = Pair::new();
        for number in 0..count {
            server.send_copy(&[number], &[7; 8000]).unwrap();
        }
        server.flush().unwrap();
        drop(server);
        for number in 0..count {
            assert_eq!(next_message(&mut client).unwrap(), [number]);
        }
        assert!(matches!(end_of(&mut client), TransportError::Closed));
    }
}

/// [VERBS-1] [VERBS-2] [PROV-27] A peer that is none is refused, and learns what is spoken here; the next one is served.
#[test]
#[ignore = "needs rdma-device"]
fn wrong_private_data_is_refused_and_the_listener_goes_on() {
    let domain = VerbsDomain::new();
    let mut listener = domain.listen_verbs(&address(), &params()).unwrap();
    let Address::Verbs(to) = listener.address().clone() else { panic!("{}", listener.address()) };
    let good = Hello::new(&params()).encode();
    let mut wrong_version = good;
    wrong_version[8] ^= 0xff;
    let mut no_depth = good;
    no_depth[10..12].fill(0);
    for bytes in [[0; HELLO_SIZE], [0xff; HELLO_SIZE], wrong_version, no_depth] {
        let id = CmId::new(&EventChannel::new().unwrap()).unwrap();
        id.resolve_address(to, HANG).unwrap();
        assert_eq!(next_event(&id, &mut listener).kind, CmEventKind::AddressResolved);
        id.resolve_route(HANG).unwrap();
        assert_eq!(next_event(&id, &mut listener).kind, CmEventKind::RouteResolved);
        let device = device_of(&id, &Shared::new()).unwrap();
        let prepared = Prepared::new(id, device, &Hello::new(&params())).unwrap();
        prepared.id.connect_with(&bytes, prepared.reads()).unwrap();
        let event = next_event(&prepared.id, &mut listener);
        assert_eq!(event.kind, CmEventKind::Rejected);
        assert_eq!(event.private_data, good);
    }
    assert_eq!(listener.handshakes_count(), 0);
    let (mut client, _server) = connect(&domain, &mut listener);
    assert!(client.recv().unwrap().is_none());
}

fn next_event(id: &CmId, listener: &mut VerbsListener) -> CmEvent {
    let begin = Instant::now();
    loop {
        assert!(listener.accept_verbs().unwrap().is_none());
        if let Some(event) = id.channel().next().unwrap() {
            return event;
        }
        assert!(begin.elapsed() < HANG, "no event");
        std::thread::yield_now();
    }
}

/// [VERBS-3]
#[test]
#[ignore = "needs rdma-device"]
fn reads_beyond_what_devices_have_in_flight_wait_their_turn() {
    let mut pair = Pair::new();
    let depth = u64::from(pair.server.capabilities().rdma_depth);
    assert!(depth > u64::from(READS_MAX));
    let (region, local) = (pair.region(4096 * 32), memory(4096 * 32));
    let expected = fill(region.memory(), 5);
    for token in 0..depth {
        let at = token as usize * 4096;
        let part = [local.slice(at, 4096).unwrap()].into_iter().collect();
        let remote = region.range().slice(at as u64, 4096).unwrap();
        assert_eq!(pair.server.rdma_read(OpToken(token), part, remote).unwrap(), Posted::Pending);
    }
    let one_more =
        pair.server.rdma_read(OpToken(99), LocalSegments::new(), region.range().slice(0, 0).unwrap());
    assert!(matches!(one_more, Err(PostError::Full)));
    pair.server.flush().unwrap();
    for _ in 0..depth {
        completion(&mut pair.server).result.unwrap();
    }
    assert!(local.span().to_vec() == expected);
}

/// [VERBS-23] [PROV-26] The peer is killed while data moves to and from its memory.
#[test]
#[ignore = "needs rdma-device"]
fn peer_killed_in_the_middle_of_rdma_ends_its_connection_only() {
    let mut pair = Pair::new();
    for round in 0..3u64 {
        let mut child = Process::start("victim", pair.listener.address(), "peer_process", &[]);
        let mut server = accept(&mut pair.listener);
        let head = next_message(&mut server).unwrap();
        let number = |at: usize| u64::from_le_bytes(head[at..at + 8].try_into().unwrap());
        let remote = RemoteRange { key: RegionKey(number(0)), offset: number(8), len: 1 << 20 };
        let local = memory(1 << 20);
        for token in 0..24u64 {
            let segments = [local.clone()].into_iter().collect();
            let posted = match token % 2 {
                0 => server.rdma_write(OpToken(token), segments, remote, None),
                _ => server.rdma_read(OpToken(token), segments, remote),
            };
            assert_eq!(posted.unwrap(), Posted::Pending);
        }
        server.flush().unwrap();
        // Some are done, and some are not.
        let done = (0..=round).map(|_| completion(&mut server)).collect::<Vec<_>>();
        assert!(done.iter().all(|completion| completion.result.is_ok()));
        child.kill();
        let error = end_of(&mut server);
        let mut seen: Vec<u64> = done.iter().map(|completion| completion.token.0).collect();
        seen.extend((seen.len()..24).map(|_| completion(&mut server).token.0));
        seen.sort_unstable();
        assert!(seen.into_iter().eq(0..24), "{error}");
        assert!(server.poll_completion().is_none());
        let mine = fill(&local, 1);
        pair.assert_alive();
        assert!(local.span().to_vec() == mine, "written after it was given back");
    }
}

/// The other process of the test above.
#[test]
#[ignore = "needs rdma-device"]
fn peer_process() {
    let Some((role, to)) = role() else { return };
    assert_eq!(role, "victim");
    let domain = VerbsDomain::new();
    let mut endpoint = domain.connect_verbs(&to, &params(), HANG).unwrap();
    let region = domain.register(memory(1 << 20), Access::all()).unwrap();
    let mut head = region.range().key.0.to_le_bytes().to_vec();
    head.extend(region.range().offset.to_le_bytes());
    endpoint.send_copy(&head, b"").unwrap();
    endpoint.flush().unwrap();
    loop {
        endpoint.wait(None).unwrap();
        assert!(endpoint.recv().unwrap().is_none());
    }
}

/// [VERBS-33] With little memory that may be locked: clear errors, and data still moves.
#[test]
#[ignore = "needs rdma-device"]
fn little_locked_memory_is_an_error_that_says_what_to_do_or_a_copy() {
    for (limit_kib, role) in [(64, "no room"), (4096, "little room")] {
        let limit = format!("ulimit -l {limit_kib} && exec \"$0\" \"$@\"");
        let wrap = ["setpriv", "--bounding-set", "-ipc_lock", "bash", "-c", &limit];
        let mut listening = VerbsDomain::new().listen_verbs(&address(), &params()).unwrap();
        let mut child = Process::start(role, listening.address(), "memlock_process", &wrap);
        let server = (role == "little room").then(|| accept(&mut listening));
        if let Some(mut server) = server {
            // Ends with the other side.
            assert!(matches!(end_of(&mut server), TransportError::Closed));
        }
        child.join();
    }
}

/// The other process of the test above.
#[test]
#[ignore = "needs rdma-device"]
fn memlock_process() {
    let Some((role, to)) = role() else { return };
    let domain = VerbsDomain::new();
    let says_what_to_do = |text: &str, limit: &str| {
        for word in [limit, "locked memory", "ulimit -l", "LimitMEMLOCK", "CAP_IPC_LOCK"] {
            assert!(text.contains(word), "{text}: no {word}");
        }
    };
    if role == "no room" {
        let error = domain.connect_verbs(&to, &params(), HANG).err().expect("receives do not fit");
        assert!(matches!(error, ConnectError::System { .. }));
        says_what_to_do(&error.to_string(), "64 KiB");
        return;
    }
    let mut endpoint = domain.connect_verbs(&to, &params(), HANG).unwrap();
    let error = domain.register(memory(8 << 20), Access::all()).expect_err("more than the limit");
    assert!(matches!(error, RegionError::System { .. }));
    says_what_to_do(&error.to_string(), "4096 KiB");
    let region = domain.register(memory(65_536), Access::all()).unwrap();
    // This side's own memory is too large to be registered: a part of it goes through a buffer. To itself, as nobody else is here.
    let mut listener = domain.listen_verbs(&address(), &params()).unwrap();
    let (mut client, mut server) = connect(&domain, &mut listener);
    let large = memory(8 << 20);
    let expected = fill(&large.slice(100, 65_536).unwrap(), 4);
    let before = server.counters().bytes_copied;
    let part = [large.slice(100, 65_536).unwrap()].into_iter().collect();
    assert_eq!(server.rdma_write(OpToken(1), part, region.range(), None).unwrap(), Posted::Pending);
    server.send_copy(b"reply", b"").unwrap();
    server.flush().unwrap();
    assert_eq!(next_message(&mut client).unwrap(), b"reply");
    completion(&mut server).result.unwrap();
    assert!(region.memory().span().to_vec() == expected);
    assert_eq!(server.counters().bytes_copied - before, 65_536);
    endpoint.close();
}

fn role() -> Option<(String, Address)> {
    let told = std::env::var(ROLE).ok()?;
    let (role, to) = told.split_once('@')?;
    Some((role.to_owned(), Address::Verbs(to.parse().unwrap())))
}

/// A test of this program in a process of its own.
struct Process {
    child: Child,
}

impl Process {
    fn start(role: &str, to: &Address, test: &str, wrap: &[&str]) -> Self {
        let Address::Verbs(to) = to else { panic!("{to}") };
        let own = std::env::current_exe().unwrap();
        let mut words: Vec<_> = wrap.iter().map(std::ffi::OsString::from).collect();
        words.push(own.into());
        let child = Command::new(&words[0])
            .args(&words[1..])
            .args(["--ignored", "--nocapture", "--exact", &format!("transport::verbs::tests::{test}")])
            .env(ROLE, format!("{role}@{to}"))
            .stdin(Stdio::null())
            .stdout(Stdio::piped())
            .spawn()
            .unwrap();
        Self { child }
    }

    fn kill(&mut self) {
        self.child.kill().unwrap();
        self.child.wait().unwrap();
    }

    /// It ran its test, and that passed.
    fn join(&mut self) {
        let output = BufReader::new(self.child.stdout.take().unwrap());
        let lines: Vec<String> = output.lines().map(Result::unwrap).collect();
        let status = self.child.wait().unwrap();
        let ran = lines.iter().any(|line| line.contains("1 passed"));
        let _ = std::io::stdout().write_all(lines.join("\n").as_bytes());
        assert!(status.success() && ran, "{status}");
    }
}

impl Drop for Process {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}
