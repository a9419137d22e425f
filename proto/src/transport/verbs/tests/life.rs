//! Regions, handshakes, the end of connections.

use super::*;

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

/// [VERBS-13] [VERBS-51] A dropped side is closed in the background; what it flushed arrives.
#[test]
#[ignore = "needs rdma-device"]
fn drop_right_after_flush_loses_nothing() {
    for (count, adds_one) in [(1u8, false), (30, false), (30, true)] {
        let Pair { mut client, mut server, .. } = Pair::new();
        for number in 0..count {
            server.send_copy(&[number], &[7; 8000]).unwrap();
        }
        server.flush().unwrap();
        if adds_one {
            server.send_copy(b"not flushed", &[]).unwrap();
        }
        drop(server);
        for number in 0..count {
            assert_eq!(next_message(&mut client).unwrap(), [number]);
        }
        assert!(matches!(end_of(&mut client), TransportError::Closed));
    }
}

/// [VERBS-13] [VERBS-51] A side that closes with RDMA on its way, and is kept until that is done, loses nothing of what it flushed.
#[test]
#[ignore = "needs rdma-device"]
fn closed_side_that_is_kept_while_data_moves_loses_nothing() {
    let (domain, client_domain) = (VerbsDomain::new(), VerbsDomain::new());
    let mut listener = domain.listen_verbs(&address(), &params()).unwrap();
    let to = listener.address().clone();
    let (mut client, mut server) = std::thread::scope(|scope| {
        let client = scope.spawn(|| client_domain.connect_verbs(&to, &params(), HANG).unwrap());
        let server = accept(&mut listener);
        (client.join().unwrap(), server)
    });
    // It has two receives: the third message waits for one, and all that is behind it.
    let (region, local) = (domain.register(memory(65_536), Access::all()).unwrap(), memory(65_536));
    let expected = fill(&local, 1);
    for number in 0..3u8 {
        client.send_copy(&[number], &[]).unwrap();
    }
    let segments = [local.clone()].into_iter().collect();
    assert_eq!(client.rdma_write(OpToken(1), segments, region.range(), None).unwrap(), Posted::Pending);
    client.send_copy(b"last", &[]).unwrap();
    client.flush().unwrap();
    client.close();
    assert!(client.lingers());
    for number in 0..3u8 {
        assert_eq!(next_message(&mut server).unwrap(), [number]);
    }
    let begin = Instant::now();
    while client.lingers() {
        assert!(begin.elapsed() < HANG, "data does not move");
        std::thread::yield_now();
    }
    drop(client);
    assert_eq!(next_message(&mut server).unwrap(), b"last");
    assert!(matches!(end_of(&mut server), TransportError::Closed));
    assert!(region.memory().span().to_vec() == expected);
}

/// [VERBS-59] On a device that is taken for one of iWARP.
#[test]
#[ignore = "needs rdma-device"]
fn both_sides_post_all_receives_where_peers_do_not_wait() {
    let [client, server] = [0, 1].map(|_| domain_on(|limits| limits.peers_wait = false));
    let mut pair = Pair::of(client, &server);
    for endpoint in [&pair.client, &pair.server] {
        assert_eq!(endpoint.receives_count(), usize::from(params().recv_depth) + 4);
    }
    pair.assert_alive();
}

/// [VERBS-78] A peer of iWARP that has answered a read may write there for as long as the registration lasts: so long the memory stays.
#[test]
#[ignore = "needs rdma-device"]
fn memory_that_a_peer_may_still_reach_is_not_freed() {
    for (peers_wait, kept) in [(false, 1), (true, 0)] {
        let mut pair = Pair::of(VerbsDomain::new(), &domain_on(|limits| limits.peers_wait = peers_wait));
        let region = pair.region(65_536);
        let mut read = |local: MemoryRef| {
            let owner = Arc::downgrade(local.memory());
            let segments = [local].into_iter().collect();
            assert_eq!(pair.server.rdma_read(OpToken(1), segments, region.range()).unwrap(), Posted::Pending);
            pair.message_and_completion();
            owner
        };
        let first = read(memory(65_536));
        assert_eq!(first.strong_count(), kept);
        let second = read(memory(65_536));
        assert_eq!((first.strong_count(), second.strong_count()), (0, kept));
    }
}

/// [PROV-62] What lies behind a message that ends the connection is not looked at.
#[test]
#[ignore = "needs rdma-device"]
fn nothing_is_received_behind_what_the_peer_may_not_do() {
    let mut pair = Pair::new();
    let gone = pair.region(100).range();
    pair.server.send_copy(b"first", &[]).unwrap();
    pair.write(LocalSegments::new(), RemoteRange { len: 0, ..gone });
    pair.server.send_copy(b"third", &[]).unwrap();
    pair.server.flush().unwrap();
    assert_eq!(next_message(&mut pair.client).unwrap(), b"first");
    assert!(matches!(next_message(&mut pair.client), Err(TransportError::Peer(PeerFault::Region(_)))));
}

/// [VERBS-1] [VERBS-2] [VERBS-44] [PROV-27] A peer that is none is refused, and learns what is spoken here; the next one is served.
#[test]
#[ignore = "needs rdma-device"]
fn wrong_private_data_is_refused_and_the_listener_goes_on() {
    let domain = VerbsDomain::new();
    let mut listener = domain.listen_verbs(&address(), &params()).unwrap();
    let good = Hello::new(&params()).encode();
    let mut wrong_version = good;
    wrong_version[8] ^= 0xff;
    let mut no_depth = good;
    no_depth[10..12].fill(0);
    for bytes in [[0; HELLO_SIZE], [0xff; HELLO_SIZE], wrong_version, no_depth] {
        let event = answer_to(&mut listener, &bytes, |reads| reads);
        assert_eq!(event.kind, CmEventKind::Rejected);
        assert_eq!(event.private_data, good);
    }
    assert_eq!(listener.handshakes_count(), 0);
    let (mut client, _server) = connect(&domain, &mut listener);
    assert!(client.recv().unwrap().is_none());
}

/// [PROV-86] [VERBS-74] Events behind one that is an error are asked for again; that an address moved is none.
#[test]
#[ignore = "needs rdma-device"]
fn listener_that_returns_an_error_says_that_there_may_be_more() {
    let mut listener = VerbsDomain::new().listen_verbs(&address(), &params()).unwrap();
    let mut kinds = [CmEventKind::Other, CmEventKind::DeviceRemoved].into_iter();
    let about = listener.id.name();
    let event = |kind| CmEvent {
        kind,
        about,
        request: None,
        status: 0,
        private_data: [0; HELLO_SIZE],
        private_data_len: 0,
        peer_reads: (0, 0),
    };
    assert!(listener.accept_from(|_| Ok(kinds.next().map(event))).is_err());
    assert!(listener.has_more());
    assert!(listener.accept_verbs().unwrap().is_none());
    assert!(!listener.has_more());
    // Of a channel that fails nothing was taken: it is asked again with the next event or tick, not at once.
    assert!(listener.accept_from(|_| Err(std::io::ErrorKind::OutOfMemory.into())).is_err());
    assert!(!listener.has_more());
}

/// The machine has a device: it is not said that there is none.
#[test]
#[ignore = "needs rdma-device"]
fn address_that_no_device_leads_to_is_said_to_have_no_route() {
    let nowhere = Address::Verbs("127.0.0.1:1".parse().unwrap());
    let error = VerbsDomain::new().connect_verbs(&nowhere, &params(), HANG).err().unwrap().to_string();
    assert!(error.contains("has a route to the address"), "{error}");
}

/// [VERBS-46]
#[test]
#[ignore = "needs rdma-device"]
fn peer_that_serves_no_reads_is_refused() {
    let domain = VerbsDomain::new();
    let mut listener = domain.listen_verbs(&address(), &params()).unwrap();
    let event = answer_to(&mut listener, &Hello::new(&params()).encode(), |reads| (reads.0, 0));
    assert_eq!(event.kind, CmEventKind::Rejected);
    connect(&domain, &mut listener);
}

/// What comes of a request with this private data, and these reads instead of those that would be offered.
fn answer_to(
    listener: &mut VerbsListener,
    private_data: &[u8; HELLO_SIZE],
    reads: impl Fn((u8, u8)) -> (u8, u8),
) -> CmEvent {
    let prepared = prepare(listener);
    prepared.id.connect(private_data, reads(prepared.reads())).unwrap();
    next_event(&prepared.id, listener)
}

/// The queues of who is about to connect to this listener.
pub(super) fn prepare(listener: &mut VerbsListener) -> Prepared {
    let Address::Verbs(to) = listener.address().clone() else { panic!("{}", listener.address()) };
    let id = CmId::new(&EventChannel::new().unwrap()).unwrap();
    id.resolve_address(to, HANG).unwrap();
    assert_eq!(next_event(&id, listener).kind, CmEventKind::AddressResolved);
    id.resolve_route(HANG).unwrap();
    assert_eq!(next_event(&id, listener).kind, CmEventKind::RouteResolved);
    let shared = Arc::<VerbsDomainParts>::default();
    let device = device_of(&id, &shared).unwrap();
    Prepared::new(id, device, &shared, &Hello::new(&params()), false).unwrap()
}

pub(super) fn next_event(id: &CmId, listener: &mut VerbsListener) -> CmEvent {
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

/// [VERBS-47]
#[test]
#[ignore = "needs rdma-device"]
fn reads_beyond_what_devices_have_in_flight_wait_their_turn() {
    // From the side with the long queue, which takes them all at once.
    let (server_domain, client_domain) = (VerbsDomain::new(), VerbsDomain::new());
    let Pair { mut client, mut server, .. } = Pair::of(client_domain, &server_domain);
    for endpoint in [&mut client, &mut server] {
        let [starts, serves] = faults::reads_of(endpoint);
        assert!((1..=16).contains(&starts) && (1..=16).contains(&serves), "{starts} {serves}");
    }
    let depth = u64::from(client.capabilities().rdma_depth);
    assert!(depth > 16);
    let region = server_domain.register(memory(4096 * 32), Access::all()).unwrap();
    let local = memory(4096 * 32);
    let expected = fill(region.memory(), 5);
    for token in 0..depth {
        let at = token as usize * 4096;
        let part = [local.slice(at, 4096).unwrap()].into_iter().collect();
        let remote = region.range().slice(at as u64, 4096).unwrap();
        assert_eq!(client.rdma_read(OpToken(token), part, remote).unwrap(), Posted::Pending);
    }
    let one_more = client.rdma_read(OpToken(99), LocalSegments::new(), region.range().slice(0, 0).unwrap());
    assert!(matches!(one_more, Err(PostError::Full)));
    client.flush().unwrap();
    for _ in 0..depth {
        completion(&mut client).result.unwrap();
    }
    assert!(local.span().to_vec() == expected);
}
