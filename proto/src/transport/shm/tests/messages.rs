use std::os::fd::AsFd;
use std::os::unix::fs::MetadataExt;
use std::sync::atomic::Ordering;

use super::super::layout::Side;
use super::super::sock;
use super::*;

// [SHM-12] a payload that fits behind the head is embedded, larger ones use a buffer.
#[test]
fn message_of_any_size_arrives_as_sent() {
    let (mut client, mut server) = pair(small());
    for head_len in [1, 40, 48, 111, 112] {
        for payload_len in [0, 1, 4, 64, 111, 112, 4096, 8191, 8192] {
            let (head, payload) = (pattern(head_len, 1), pattern(payload_len, 2));
            client.send_copy(&head, &payload).unwrap();
            client.flush().unwrap();
            assert_eq!(take(&mut server), Some((head, payload)));
            assert_eq!(take(&mut server), None);
        }
    }
}

// [SHM-15] [SHM-53]
#[test]
fn send_past_the_depth_is_full_until_taken() {
    let (mut client, mut server) = pair(small());
    for number in 0..4 {
        client.send_copy(&[number], b"payload").unwrap();
    }
    assert!(matches!(client.send_copy(&[4], b"payload"), Err(PostError::Full)));
    assert_eq!(take(&mut server).unwrap().0, [0]);
    assert!(matches!(client.reserve(0), Err(PostError::Full)));
    server.recv_done();
    client.send_copy(&[4], b"payload").unwrap();
    assert!(matches!(client.send_copy(&[5], b""), Err(PostError::Full)));
    for number in 1..5 {
        assert_eq!(take(&mut server).unwrap().0, [number]);
    }
    assert_eq!(take(&mut server), None);
}

#[test]
fn slots_sent_in_another_order_and_cancelled_carry_their_payload() {
    let (mut client, mut server) = pair(small());
    for _ in 0..100 {
        let slots: Vec<_> = (0..4).map(|_| client.reserve(5000).unwrap()).collect();
        assert!(matches!(client.reserve(1), Err(PostError::Full)));
        for (number, slot) in (0..).zip(&slots) {
            client.slot_payload(slot).write_from(0, &pattern(5000, number));
        }
        let mut slots: Vec<_> = slots.into_iter().map(Some).collect();
        client.cancel_send(slots[2].take().unwrap());
        for number in [3, 0, 1u8] {
            client.send(slots[usize::from(number)].take().unwrap(), &[number], 5000).unwrap();
        }
        for number in [3, 0, 1u8] {
            assert_eq!(take(&mut server), Some((vec![number], pattern(5000, number))));
        }
        assert_eq!(take(&mut server), None);
    }
}

#[test]
fn invalid_posts_are_refused_and_give_the_slot_back() {
    let (mut client, _server) = pair(small());
    for _ in 0..10 {
        let slot = client.reserve(10).unwrap();
        assert!(matches!(client.send(slot, &[], 0), Err(PostError::Invalid(_))));
        let slot = client.reserve(10).unwrap();
        assert!(matches!(client.send(slot, &[0; 113], 0), Err(PostError::Invalid(_))));
        let slot = client.reserve(0).unwrap();
        assert!(matches!(client.send(slot, &[1], 1), Err(PostError::Invalid(_))));
        assert!(matches!(client.reserve(8193), Err(PostError::Invalid(_))));
    }
    assert_eq!(client.counters().messages_sent, 0);
}

// [SHM-13] what was taken travels with the replies; [SHM-17] no doorbell for a peer that is awake.
#[test]
fn request_between_awake_sides_costs_no_doorbell() {
    let (mut client, mut server) = pair(ConnectParams::default());
    for number in 0..1000u32 {
        client.send_copy(&number.to_ne_bytes(), &pattern(200, 1)).unwrap();
        client.flush().unwrap();
        assert!(take(&mut server).is_some());
        server.recv_done();
        server.send_copy(&number.to_ne_bytes(), b"abcd").unwrap();
        server.flush().unwrap();
        assert_eq!(take(&mut client).unwrap().1, b"abcd");
        client.recv_done();
    }
    let (client, server) = (client.counters(), server.counters());
    assert_eq!((client.messages_sent, client.messages_received), (1000, 1000));
    assert_eq!((client.doorbells, client.sleeps, client.taken_looks), (0, 0, 0));
    assert_eq!((server.doorbells, server.sleeps, server.taken_looks), (0, 0, 0));
    assert_eq!((server.bytes_embedded, client.bytes_embedded), (4000, 0));
}

#[test]
fn ping_pong_of_sleeping_peers_rings_and_finishes() {
    for wait in [WaitPolicy::Event, WaitPolicy::Adaptive, WaitPolicy::Busy] {
        let (mut client, mut server) = pair(ConnectParams { wait, ..small() });
        std::thread::scope(|scope| {
            scope.spawn(|| {
                for _ in 0..200 {
                    let (head, _) = take_waiting(&mut server);
                    server.send_copy(&head, &[]).unwrap();
                }
                server.flush().unwrap();
            });
            for number in 0..200u8 {
                client.send_copy(&[number], &[]).unwrap();
                assert_eq!(take_waiting(&mut client).0, [number]);
            }
        });
        let counters = client.counters();
        assert!(counters.doorbells <= 200);
        if wait == WaitPolicy::Busy {
            assert_eq!((counters.sleeps, counters.doorbells), (0, 0));
        }
    }
}

fn take_waiting(endpoint: &mut ShmEndpoint) -> (Vec<u8>, Vec<u8>) {
    loop {
        if let Some(message) = take(endpoint) {
            return message;
        }
        endpoint.wait(None).unwrap();
    }
}

// [SHM-54] [SHM-56] exactly one doorbell for a peer that armed, however many messages.
#[test]
fn armed_peer_gets_one_doorbell() {
    let (mut client, mut server) = pair(small());
    assert!(server.arm());
    for number in 0..3 {
        client.send_copy(&[number], &[]).unwrap();
        client.flush().unwrap();
    }
    assert_eq!(client.counters().doorbells, 1);
    assert!(!server.arm(), "something is here");
    server.wait(None).unwrap();
    assert_eq!(server.counters().sleeps, 0);
    assert_eq!(take(&mut server).unwrap().0, [0]);
    client.send_copy(&[3], &[]).unwrap();
    client.flush().unwrap();
    assert_eq!(client.counters().doorbells, 1);
}

// [SHM-55]
#[test]
fn sender_without_room_is_woken_when_there_is_some() {
    let (mut client, mut server) = pair(small());
    while client.send_copy(&[1], &[]).is_ok() {}
    assert!(client.arm());
    // Nothing for a client that is only interested in messages...
    take(&mut server).unwrap();
    server.flush().unwrap();
    assert_eq!(server.counters().doorbells, 0);
    // ... until an entry is free.
    server.recv_done();
    server.flush().unwrap();
    assert_eq!(server.counters().doorbells, 1);
    client.wait(None).unwrap();
    client.send_copy(&[1], &[]).unwrap();
}

#[test]
fn wait_past_the_timeout_returns() {
    for wait in [WaitPolicy::Event, WaitPolicy::Adaptive, WaitPolicy::Busy] {
        let (mut client, _server) = pair(ConnectParams { wait, ..small() });
        client.wait(Some(Duration::from_millis(1))).unwrap();
        client.wait(Some(Duration::ZERO)).unwrap();
        assert!(client.recv().unwrap().is_none());
    }
}

// [SHM-58] What only the doorbell woke does not ask the socket.
#[test]
fn side_woken_by_the_doorbell_alone_leaves_the_socket() {
    let (mut client, mut server) = pair(small());
    assert!(server.recv().unwrap().is_none());
    let before = server.counters().socket_looks;
    for number in 0..3 {
        assert!(server.arm());
        client.send_copy(&[number], &[]).unwrap();
        client.flush().unwrap();
        server.on_event(0, false);
        assert_eq!(take(&mut server).unwrap().0, [number]);
        assert!(server.recv().unwrap().is_none());
    }
    assert_eq!(server.counters().socket_looks, before);
    assert!(server.arm());
    server.on_event(1, false);
    assert!(server.recv().unwrap().is_none());
    assert_eq!(server.counters().socket_looks, before + 1);
}

// [SHM-30]
#[test]
fn doorbell_that_events_told_of_is_read_only_by_who_waits_otherwise() {
    let (mut client, mut server) = pair(small());
    let rings = |server: &ShmEndpoint| {
        let connection = &server.connection;
        let now = Some(Duration::ZERO);
        sock::sleep(connection.bell_in.as_fd(), connection.socket.as_fd(), None, now, false).unwrap().bell
    };
    assert!(server.recv().unwrap().is_none());
    for number in 0..2 {
        assert!(server.arm());
        client.send_copy(&[number], &[]).unwrap();
        client.flush().unwrap();
        server.on_event(0, false);
        assert_eq!(take(&mut server).unwrap().0, [number]);
        assert!(server.recv().unwrap().is_none());
        assert!(rings(&server));
    }
    server.wait(Some(Duration::from_millis(1))).unwrap();
    assert!(server.recv().unwrap().is_none());
    assert!(!rings(&server));
}

// [SHM-8] [SHM-49] [SHM-58] The end of the peer is never taken for its doorbell.
#[test]
fn end_that_comes_with_the_doorbell_or_after_it_is_seen() {
    for (events_at_once, events_later) in [(&[0, 1][..], &[][..]), (&[1, 0], &[]), (&[0], &[1]), (&[1], &[0])]
    {
        let (mut client, mut server) = pair(small());
        assert!(server.recv().unwrap().is_none());
        assert!(server.arm());
        client.send_copy(b"last", &[]).unwrap();
        client.flush().unwrap();
        client.close();
        events_at_once.iter().for_each(|place| server.on_event(*place, false));
        assert_eq!(take(&mut server).unwrap().0, b"last");
        events_later.iter().for_each(|place| server.on_event(*place, false));
        assert!(matches!(server.recv(), Err(TransportError::Closed)), "{events_at_once:?} {events_later:?}");
    }
}

// [SHM-8] [SHM-49]
#[test]
fn close_is_seen_after_what_was_sent_before() {
    for wait in [WaitPolicy::Event, WaitPolicy::Adaptive, WaitPolicy::Busy] {
        let (mut client, mut server) = pair(ConnectParams { wait, ..small() });
        client.send_copy(b"last", b"words").unwrap();
        client.close();
        assert!(matches!(client.recv(), Err(TransportError::Closed)));
        assert!(matches!(client.reserve(1), Err(PostError::Closed)));
        server.wait(None).unwrap();
        assert_eq!(take(&mut server), Some((b"last".to_vec(), b"words".to_vec())));
        let end = loop {
            match server.recv() {
                Ok(None) => server.wait(None).unwrap(),
                Ok(other) => panic!("{other:?}"),
                Err(error) => break error,
            }
        };
        assert!(matches!(end, TransportError::Closed));
        assert!(matches!(server.send_copy(b"x", b""), Err(PostError::Closed)));
        assert!(matches!(server.recv(), Err(TransportError::Closed)));
    }
}

#[test]
fn peer_dropped_is_seen_by_polling_alone() {
    let (client, mut server) = pair(small());
    drop(client);
    while server.recv().is_ok() {}
    assert!(matches!(server.flush(), Err(TransportError::Closed)));
}

// [SHM-18]
#[test]
fn spinning_beside_the_peer_on_one_cpu_never_pays() {
    let (client, _server) = pair(ConnectParams { wait: WaitPolicy::Adaptive, ..small() });
    let word = |side| client.connection.segment.word(client.connection.layout.cpu(side));
    let mine = word(Side::Client).load(Ordering::Relaxed);
    assert_ne!(mine, 0);
    word(Side::Server).store(mine, Ordering::Relaxed);
    assert!(!client.spin_pays());
    word(Side::Server).store(mine + 1, Ordering::Relaxed);
    assert!(client.spin_pays());
}

// [SHM-5]
#[test]
fn capabilities_state_what_was_negotiated_and_who_is_there() {
    let mut bed = Bed::new(small());
    let params = ConnectParams { recv_payload_max: 100, recv_depth: 5, ..small() };
    let address = bed.address.clone();
    let client = std::thread::scope(|scope| {
        let connecting = scope.spawn(|| ShmDomain::new().connect_endpoint(&address, &params, LONG).unwrap());
        let server = bed.accept();
        let capabilities = server.capabilities();
        assert_eq!((capabilities.send_payload_max, capabilities.send_depth), (100, 5));
        assert_eq!(capabilities.recv_payload_max, 8192);
        let credentials = capabilities.peer.credentials.clone().unwrap();
        let me = std::fs::metadata("/proc/self").unwrap();
        assert_eq!((credentials.uid, credentials.gid), (me.uid(), me.gid()));
        assert_eq!(credentials.pid, i32::try_from(std::process::id()).unwrap());
        connecting.join().unwrap()
    });
    let capabilities = client.capabilities();
    assert_eq!((capabilities.send_payload_max, capabilities.send_depth), (8192, 4));
    assert!(capabilities.remote_mapped);
}
