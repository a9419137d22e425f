//! What breaks on one connection breaks nothing else.

use super::*;

/// [VERBS-11] [VERBS-57] [VERBS-58] [PROV-53] The receive queue runs dry: nothing is lost, nothing breaks.
#[test]
#[ignore = "needs rdma-device"]
fn messages_beyond_the_posted_receives_arrive_when_these_are_posted() {
    let mut pair = Pair::new();
    let ready = usize::from(params().recv_depth) + 1;
    assert_eq!(pair.server.receives_count(), ready, "as many as are expected, and one more");
    assert_eq!(pair.server.expect_messages(1), 1);
    // What is posted cannot be taken back.
    assert_eq!(pair.server.receives_count(), ready);
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
    // So most of them came when two were posted, from a sender with as many slots as there were at first.
    assert_eq!(pair.server.receives_count(), 2);
    assert_eq!(pair.server.expect_messages(9), 9);
    assert_eq!(pair.server.receives_count(), 10);
    // No more than were agreed on, and four notes.
    assert_eq!(pair.server.expect_messages(u16::MAX), params().recv_depth + 3);
    pair.assert_alive();
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
    // As many as an accepted connection has on their way at once.
    for token in 0..12 {
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
    let mut tokens: Vec<_> = (0..12).map(|_| completion(&mut victim)).collect();
    tokens.sort_by_key(|completion| completion.token.0);
    assert!(tokens.iter().map(|completion| completion.token.0).eq(0..12));
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

/// [VERBS-75] Notes cost their sender no credit: one look deals with some of them, and the rest wait for the next.
#[test]
#[ignore = "needs rdma-device"]
fn notes_are_dealt_with_some_at_a_time() {
    let many = ConnectParams { recv_depth: 256, ..params() };
    let (domain, client_domain) = (VerbsDomain::new(), VerbsDomain::new());
    let mut listener = domain.listen_verbs(&address(), &many).unwrap();
    let to = listener.address().clone();
    let (mut client, mut server) = std::thread::scope(|scope| {
        let client = scope.spawn(|| client_domain.connect_verbs(&to, &params(), HANG).unwrap());
        let server = accept(&mut listener);
        (client.join().unwrap(), server)
    });
    assert_eq!(server.expect_messages(256), 256);
    let region = domain.register(memory(100), Access::all()).unwrap();
    let nothing = region.range().slice(0, 0).unwrap();
    for token in 0..150 {
        while let Err(error) = client.rdma_write(OpToken(token), LocalSegments::new(), nothing, None) {
            assert!(matches!(error, PostError::Full), "{error}");
            client.wait(Some(HANG)).unwrap();
        }
        assert_eq!(completion(&mut client).token, OpToken(token));
        client.flush().unwrap();
    }
    client.send_copy(b"after", b"").unwrap();
    client.flush().unwrap();
    let (mut looks, begin) = (0, Instant::now());
    // All of it is here.
    while server.counters().received < 151 {
        server.look(1);
        assert!(begin.elapsed() < HANG, "{:?}", server.counters());
    }
    while server.recv().unwrap().is_none() {
        assert!(!server.arm(), "asleep over what is here");
        looks += 1;
    }
    assert_eq!(looks, 2);
}

/// RDMA reads that a connection's device has in flight at once, and that it serves.
#[allow(unsafe_code, reason = "asks for the state of a queue pair")]
pub(super) fn reads_of(endpoint: &mut VerbsEndpoint) -> [u8; 2] {
    let mask =
        ffi::ibv_qp_attr_mask::IBV_QP_MAX_QP_RD_ATOMIC | ffi::ibv_qp_attr_mask::IBV_QP_MAX_DEST_RD_ATOMIC;
    // SAFETY: plain C data, for which zero is valid; the queue pair is live.
    unsafe {
        let mut attributes: ffi::ibv_qp_attr = std::mem::zeroed();
        let mut made_with: ffi::ibv_qp_init_attr = std::mem::zeroed();
        let qp = endpoint.core().qp.0;
        assert_eq!(ffi::ibv_query_qp(qp, &raw mut attributes, mask.0 as i32, &raw mut made_with), 0);
        [attributes.max_rd_atomic, attributes.max_dest_rd_atomic]
    }
}

fn break_queue_pair(endpoint: &mut VerbsEndpoint) {
    assert!(endpoint.abort_handle().abort().unwrap());
}

/// [VERBS-66] [VERBS-68] [VERBS-69] A refused access names its range, whatever else was on its way.
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
            let refused = RegionFault::Refused { key: wrong.key, offset: wrong.offset, len: 4096 };
            assert_eq!(fault, refused);
        }
        other => panic!("{other}"),
    }
    assert!(completion(&mut pair.server).result.is_err());
}

/// [VERBS-25] [VERBS-67] What the device says of a queue, and not in it, ends the connection that has it, in the words of the device;
/// others go on.
#[test]
#[ignore = "needs rdma-device"]
#[allow(unsafe_code, reason = "makes a completion queue too small")]
fn completion_queue_overrun_ends_its_connection_with_the_devices_words() {
    let mut pair = Pair::new();
    let (mut victim, mut server) = connect(&pair.client_domain, &mut pair.listener);
    let core = victim.core();
    // SAFETY: the queue is live.
    assert_eq!(unsafe { ffi::ibv_resize_cq(core.cq.raw(), 1) }, 0);
    for _ in 0..8 {
        server.send_copy(b"head", b"").unwrap();
        server.flush().unwrap();
    }
    // Other tests' connections may take the event, which is the process's; then they tell it.
    let error = end_of(&mut victim);
    assert!(matches!(error, TransportError::System { .. }), "{error}");
    assert!(error.to_string().contains("CQ_ERR"), "{error}");
    // It was acknowledged: nobody waits for that when the queue goes.
    drop(victim);
    pair.assert_alive();
}

/// [VERBS-25] A connection of a server's loop learns of it through its listener.
#[test]
#[ignore = "needs rdma-device"]
#[allow(unsafe_code, reason = "makes a completion queue too small")]
fn listener_takes_events_of_its_device_and_wakes_whom_they_concern() {
    let mut pair = Pair::new();
    let (mut client, mut victim) = connect(&pair.client_domain, &mut pair.listener);
    // SAFETY: the queue is live.
    assert_eq!(unsafe { ffi::ibv_resize_cq(victim.core().cq.raw(), 1) }, 0);
    // What it has to say was said, so that only what follows wakes anybody.
    assert!(pair.listener.accept_verbs().unwrap().is_none());
    for _ in 0..8 {
        client.send_copy(b"head", b"").unwrap();
        client.flush().unwrap();
    }
    let listening = pair.listener.event_fds()[0];
    // Whoever looks first takes events for all of the process, other tests' connections too, and tells the victim all the same.
    if poll_readable([listening], Some(Duration::from_secs(1))).unwrap() == [true] {
        assert!(pair.listener.accept_verbs().unwrap().is_none());
    }
    let error = end_of(&mut victim);
    assert!(error.to_string().contains("CQ_ERR"), "{error}");
    drop(client);
    pair.assert_alive();
}
