//! What the conformance suite cannot ask of every provider: virtual time, faults, and that a seed fixes a run.

use std::sync::{Arc, Mutex};
use std::time::Duration;

use super::*;
use crate::transport::{
    Access, Address, Completion, ConnectError, ConnectParams, Domain, Endpoint, Listener, LocalSegments,
    MemoryRef, OpToken, PostError, Posted, Received, TransportError,
};

const CLIENT: NodeId = NodeId(1);
const SERVER: NodeId = NodeId(2);
const PORT: Address = Address::Sim(7);
const SECOND: Duration = Duration::from_secs(1);

struct Pair {
    net: SimNet,
    client_domain: SimDomain,
    server_domain: SimDomain,
    listener: Box<dyn Listener>,
    client: Box<dyn Endpoint>,
    server: Box<dyn Endpoint>,
}

fn pair(seed: u64, plan: FaultPlan) -> Pair {
    let net = SimNet::new(seed, plan);
    let (client_domain, server_domain) = (net.domain(CLIENT), net.domain(SERVER));
    let mut listener = server_domain.listen(&PORT, &ConnectParams::default()).unwrap();
    let client = client_domain.connect(&PORT, &ConnectParams::default(), SECOND).unwrap();
    let server = listener.accept().unwrap().unwrap();
    Pair { net, client_domain, server_domain, listener, client, server }
}

fn memory(domain: &SimDomain, len: usize) -> MemoryRef {
    MemoryRef::new(domain.allocate(len).unwrap()).slice(0, len).unwrap()
}

fn segment(memory: &MemoryRef) -> LocalSegments {
    [memory.clone()].into_iter().collect()
}

#[test]
fn message_arrives_when_virtual_time_has_passed_and_not_before() {
    let mut pair =
        pair(1, FaultPlan { delay_min_ns: 500, delay_max_ns: 500, poll_ns: 0, ..FaultPlan::calm() });
    pair.client.send_copy(b"h", b"").unwrap();
    assert_eq!(pair.net.next_event_time(), None, "nothing leaves before flush");
    pair.client.flush().unwrap();
    let sent_at = pair.net.now();
    assert_eq!(pair.net.next_event_time(), Some(sent_at + Duration::from_nanos(500)));
    pair.net.advance(Duration::from_nanos(499));
    assert!(pair.server.recv().unwrap().is_none());
    pair.net.advance(Duration::from_nanos(1));
    assert!(pair.server.recv().unwrap().is_some());
    assert!(!pair.net.step());
}

#[test]
fn rdma_copies_at_arrival_and_not_before() {
    let mut pair = pair(2, FaultPlan::calm());
    let (remote, local) = (memory(&pair.client_domain, 8), memory(&pair.server_domain, 8));
    let region = pair.client_domain.register(remote.clone(), Access::REMOTE_WRITE).unwrap();
    local.span().write_from(0, b"too soon");
    let posted = pair.server.rdma_write(OpToken(1), segment(&local), region.range(), None).unwrap();
    assert_eq!(posted, Posted::Pending);
    pair.server.flush().unwrap();
    assert_eq!(remote.span().to_vec(), [0; 8]);
    local.span().write_from(0, b"in time!");
    while pair.net.step() {}
    assert_eq!(remote.span().to_vec(), b"in time!");
    assert!(matches!(pair.server.poll_completion(), Some(Completion { token: OpToken(1), result: Ok(()) })));
    assert!(pair.server.poll_completion().is_none());
}

#[test]
fn wait_without_anything_to_come_answers_an_error_instead_of_hanging() {
    let mut pair = pair(3, FaultPlan::calm());
    assert!(matches!(pair.client.wait(None), Err(TransportError::System { .. })));
    let before = pair.net.now();
    pair.client.wait(Some(SECOND)).unwrap();
    assert_eq!(pair.net.now(), before + SECOND);
}

#[test]
fn wait_runs_the_idle_callback_until_it_answers() {
    let net = SimNet::new(4, FaultPlan::calm());
    let (client_domain, server_domain) = (net.domain(CLIENT), net.domain(SERVER));
    let mut listener = server_domain.listen(&PORT, &ConnectParams::default()).unwrap();
    let mut accepted: Vec<Box<dyn Endpoint>> = Vec::new();
    net.on_idle(move || {
        accepted.extend(listener.accept().unwrap());
        for endpoint in &mut accepted {
            while let Some(Received::Message { head, .. }) = endpoint.recv().unwrap() {
                endpoint.send_copy(head.as_bytes(), b"answer").unwrap();
            }
            endpoint.flush().unwrap();
        }
    });
    let mut client = client_domain.connect(&PORT, &ConnectParams::default(), SECOND).unwrap();
    client.send_copy(b"question", b"").unwrap();
    client.wait(None).unwrap();
    assert!(matches!(client.recv(), Ok(Some(Received::Message { payload_len: 6, .. }))));
}

#[test]
fn wait_stops_at_a_wake_so_that_timers_run() {
    let mut pair = pair(5, FaultPlan::calm());
    let seen = Arc::new(Mutex::new(Vec::new()));
    let (net, log) = (pair.net.clone(), Arc::clone(&seen));
    pair.net.on_idle(move || log.lock().unwrap().push(net.now()));
    let wake = pair.net.now() + SECOND;
    pair.net.wake_at(wake);
    pair.client.wait(Some(2 * SECOND)).unwrap();
    assert!(seen.lock().unwrap().contains(&wake));
}

#[test]
fn connect_without_listener_is_refused_and_over_a_partition_times_out() {
    let net = SimNet::new(6, FaultPlan::calm());
    let (client, server) = (net.domain(CLIENT), net.domain(SERVER));
    let params = ConnectParams::default();
    let refused = |result: Result<_, ConnectError>| {
        let Err(ConnectError::System { source, .. }) = result else { return false };
        source.kind() == std::io::ErrorKind::ConnectionRefused
    };
    assert!(refused(client.connect(&PORT, &params, SECOND)));
    let listener = server.listen(&PORT, &params).unwrap();
    net.partition(CLIENT, SERVER);
    let before = net.now();
    let result = client.connect(&PORT, &params, SECOND);
    assert!(matches!(result, Err(ConnectError::Timeout { timeout_ms: 1000, .. })));
    assert_eq!(net.now(), before + SECOND);
    net.heal(CLIENT, SERVER);
    assert!(client.connect(&PORT, &params, SECOND).is_ok());
    net.set_plan(FaultPlan { refuse_ppm: 1_000_000, ..FaultPlan::calm() });
    assert!(refused(client.connect(&PORT, &params, SECOND)));
    net.set_plan(FaultPlan::calm());
    drop(listener);
    assert!(refused(client.connect(&PORT, &params, SECOND)));
}

#[test]
fn partition_holds_messages_back_and_heal_delivers_them_in_order() {
    let mut pair = pair(7, FaultPlan::calm());
    pair.net.partition(SERVER, CLIENT);
    for number in 0..20u8 {
        pair.client.send_copy(&[number], b"").unwrap();
        pair.client.flush().unwrap();
    }
    pair.net.advance(SECOND);
    assert!(pair.server.recv().unwrap().is_none());
    pair.net.heal(CLIENT, SERVER);
    pair.client.send_copy(&[20], b"").unwrap();
    pair.client.flush().unwrap();
    pair.net.advance(SECOND);
    for number in 0..=20u8 {
        let Some(Received::Message { head, .. }) = pair.server.recv().unwrap() else {
            panic!("{number} is missing")
        };
        assert_eq!(head.as_bytes(), [number]);
    }
}

#[test]
fn crash_ends_connections_regions_and_listeners_of_the_node_only() {
    let mut pair = pair(8, FaultPlan::calm());
    let other = pair.net.domain(NodeId(3));
    let region = pair.client_domain.register(memory(&pair.client_domain, 8), Access::REMOTE_READ).unwrap();
    let mut bystander = other.connect(&PORT, &ConnectParams::default(), SECOND).unwrap();
    pair.net.crash(CLIENT);
    assert!(pair.client.recv().is_err());
    while pair.net.step() {}
    assert!(matches!(pair.server.recv(), Err(TransportError::System { .. })));
    assert!(pair.listener.accept().unwrap().is_some());
    assert!(bystander.recv().unwrap().is_none());
    drop(region);

    pair.net.crash(SERVER);
    while pair.net.step() {}
    assert!(bystander.recv().is_err());
    assert!(pair.listener.accept().is_err());
    assert!(other.connect(&PORT, &ConnectParams::default(), SECOND).is_err());
    // The node comes back with a new domain; the old listener must not take the new one's place with it.
    let reborn = pair.net.domain(SERVER);
    let _listener = reborn.listen(&PORT, &ConnectParams::default()).unwrap();
    drop(pair.listener);
    assert!(other.connect(&PORT, &ConnectParams::default(), SECOND).is_ok());
}

#[test]
fn false_full_is_followed_by_a_wake() {
    let mut pair = pair(9, FaultPlan::calm());
    pair.net.set_plan(FaultPlan { full_ppm: 1_000_000, ..FaultPlan::calm() });
    assert!(matches!(pair.client.send_copy(b"h", b""), Err(PostError::Full)));
    pair.client.wait(None).unwrap();
    pair.net.set_plan(FaultPlan::calm());
    pair.client.send_copy(b"h", b"").unwrap();
}

#[test]
fn cut_at_any_packet_delivers_a_prefix_and_ends_both_sides() {
    let mut prefixes = [0u32; 11];
    for seed in 0..300 {
        let cut_at = seed % 10;
        let mut pair = pair(seed, FaultPlan { cut_at_packet: Some(cut_at), ..FaultPlan::calm() });
        let _report = pair.net.report_on_panic();
        for number in 0..10u8 {
            pair.client.send_copy(&[number], b"").unwrap();
        }
        pair.client.flush().unwrap();
        let mut arrived = 0;
        let end = loop {
            match pair.server.recv() {
                Ok(Some(Received::Message { head, .. })) => {
                    assert_eq!(head.as_bytes(), [arrived]);
                    arrived += 1;
                }
                Ok(Some(Received::Immediate { .. })) => panic!("nobody sent an immediate"),
                Ok(None) => pair.net.advance(Duration::from_micros(1)),
                Err(error) => break error,
            }
        };
        assert!(matches!(end, TransportError::System { .. }));
        assert!(u64::from(arrived) <= cut_at + 1);
        prefixes[usize::from(arrived)] += 1;
        while pair.net.step() {}
        assert!(pair.client.recv().is_err());
        assert!(matches!(pair.client.send_copy(b"h", b""), Err(PostError::Closed)));
    }
    // Both "nothing arrived" and "even the last one arrived" must happen.
    assert!(prefixes.iter().all(|&count| count > 0), "{prefixes:?}");
}

#[test]
fn reads_complete_out_of_order_under_some_seed() {
    let reordered = (0..50).any(|seed| {
        let mut pair = pair(seed, FaultPlan::calm());
        let memory = memory(&pair.client_domain, 64);
        let region = pair.client_domain.register(memory.clone(), Access::REMOTE_READ).unwrap();
        let local = self::memory(&pair.server_domain, 64);
        for token in 0..4 {
            pair.server.rdma_read(OpToken(token), segment(&local), region.range()).unwrap();
        }
        pair.server.flush().unwrap();
        while pair.net.step() {}
        let order: Vec<u64> =
            std::iter::from_fn(|| pair.server.poll_completion()).map(|c| c.token.0).collect();
        assert_eq!(order.len(), 4);
        !order.is_sorted()
    });
    assert!(reordered);
}

fn drain(endpoint: &mut dyn Endpoint) -> Result<(), TransportError> {
    while endpoint.recv()?.is_some() {}
    Ok(())
}

/// Random traffic under a rough plan; ends when the connection does, or after some rounds.
fn rough_run(seed: u64) -> (Counters, String) {
    let net = SimNet::new(seed, FaultPlan::calm());
    let (client_domain, server_domain) = (net.domain(CLIENT), net.domain(SERVER));
    let mut listener = server_domain.listen(&PORT, &ConnectParams::default()).unwrap();
    let mut client = client_domain.connect(&PORT, &ConnectParams::default(), SECOND).unwrap();
    let mut server = listener.accept().unwrap().unwrap();
    net.set_plan(FaultPlan::rough(seed));
    let region = client_domain.register(memory(&client_domain, 4096), Access::all()).unwrap();
    let local = memory(&server_domain, 4096);
    let mut random = Random::new(seed);
    let (mut posted, mut completed) = (0u64, 0u64);
    for _ in 0..200 {
        let len = random.index(4097);
        let (part, range) = (local.slice(0, len).unwrap(), region.range().slice(0, len as u64).unwrap());
        let answer = match random.below(4) {
            0 => client.send_copy(b"head", &vec![1; len]).map(|()| Posted::Done),
            1 => server.send_copy(b"head", &vec![2; len]).map(|()| Posted::Done),
            2 => server.rdma_write(OpToken(0), segment(&part), range, len.is_multiple_of(2).then_some(9)),
            _ => server.rdma_read(OpToken(0), segment(&part), range),
        };
        posted += u64::from(matches!(answer, Ok(Posted::Pending)));
        let mut over = false;
        for endpoint in [&mut client, &mut server] {
            let timeout = Duration::from_micros(random.below(100));
            over |= endpoint.wait(Some(timeout)).is_err() || drain(&mut **endpoint).is_err();
        }
        completed += std::iter::from_fn(|| server.poll_completion()).count() as u64;
        if over {
            break;
        }
    }
    server.close();
    completed += std::iter::from_fn(|| server.poll_completion()).count() as u64;
    assert_eq!(posted, completed, "each pending operation completes exactly once, seed {seed}");
    (net.counters(), net.report())
}

#[test]
fn run_of_the_same_seed_is_the_same() {
    let mut all = Counters::default();
    for seed in 0..200 {
        let (counters, report) = rough_run(seed);
        assert_eq!((counters, report), rough_run(seed), "seed {seed}");
        assert_eq!(counters.connections, 1, "seed {seed}");
        all.cuts += counters.cuts;
        all.false_full += counters.false_full;
        all.packets_lost += counters.packets_lost;
    }
    assert!(all.cuts > 0 && all.false_full > 0 && all.packets_lost > 0, "{all:?}");
    assert_ne!(rough_run(1).1, rough_run(2).1);
}
