//! Messages: sizes, order, batching, slots, bounds.

use super::*;
use crate::transport::{HEAD_SIZE_MAX, SendSlot};

/// [PROV-1] [PROV-46]
pub fn capabilities_of_both_sides_agree(fixture: &dyn Fixture) {
    let client = ConnectParams { recv_payload_max: 5000, recv_depth: 7, rdma_depth: 11, ..params(fixture) };
    let server = ConnectParams { recv_payload_max: 70_000, recv_depth: 9, rdma_depth: 5, ..params(fixture) };
    let pair = Pair::with(fixture, client, server);
    let (ours, theirs) = (pair.client.capabilities(), pair.server.capabilities());
    assert_eq!(ours.provider, theirs.provider);
    assert_eq!(ours.provider, pair.client_domain.provider());
    assert_eq!((ours.recv_payload_max, theirs.recv_payload_max), (5000, 70_000));
    assert_eq!((ours.send_payload_max, theirs.send_payload_max), (70_000, 5000));
    assert_eq!((ours.send_depth, theirs.send_depth), (9, 7));
    for side in [ours, theirs] {
        assert!(side.rdma_depth >= 1 && side.segments_max >= 1 && side.rdma_size_max >= 1 << 20, "{side:?}");
    }
}

/// [PROV-1] [PROV-47]
pub fn capabilities_beyond_the_limits_become_the_limits(fixture: &dyn Fixture) {
    let usual = params(fixture);
    let none = ConnectParams { recv_depth: 0, rdma_depth: 0, ..usual };
    let depth = ConnectParams { recv_depth: u16::MAX, rdma_depth: u16::MAX, ..usual };
    let payload = ConnectParams { recv_payload_max: u32::MAX, ..usual };
    for (client, server) in [(none, depth), (depth, none), (none, payload), (payload, payload)] {
        let mut pair = Pair::with(fixture, client, server);
        let (ours, theirs) = (pair.client.capabilities(), pair.server.capabilities());
        for (ours, theirs) in [(ours, theirs), (theirs, ours)] {
            assert_eq!(ours.send_payload_max, theirs.recv_payload_max);
            assert!((8192..=1 << 20).contains(&ours.send_payload_max), "{ours:?}");
            assert!((1..=4096).contains(&ours.send_depth) && ours.rdma_depth >= 1, "{ours:?}");
        }
        for side in [&mut pair.client, &mut pair.server] {
            let slots = [(); 4].map(|()| side.endpoint.reserve(64).expect("four slots at once"));
            slots.into_iter().for_each(|slot| side.endpoint.cancel_send(slot));
        }
        let region = pair.client_region(100);
        let local = pair.server_memory(100);
        let expected = fill(&local, 1);
        pair.rdma(true, &[local], region.range()).unwrap();
        assert_eq!(region.memory().span().to_vec(), expected);
        pair.assert_alive();
    }
}

/// [PROV-2]
pub fn messages_of_every_size_arrive_whole(fixture: &dyn Fixture) {
    let mut pair = Pair::new(fixture);
    let payload_max = pair.client.capabilities().send_payload_max as usize;
    // Every head, and payloads around the edges where providers embed or align them.
    let small = (0..=HEAD_SIZE_MAX + 32).map(|len| (len.clamp(1, HEAD_SIZE_MAX), len));
    let heads = (1..=HEAD_SIZE_MAX).map(|len| (len, payload_max - len));
    let edges = [255, 256, 257, 4095, 4096, 4097, payload_max - 1, payload_max]
        .map(|len| (1 + len % HEAD_SIZE_MAX, len));
    for (index, (head_len, payload_len)) in small.chain(heads).chain(edges).enumerate() {
        let (head, payload) = (pattern(index, head_len), pattern(index + 1, payload_len));
        for to_server in [true, false] {
            let sender = if to_server { &mut pair.client } else { &mut pair.server };
            sender.endpoint.send_copy(&head, &payload).unwrap();
            let receiver = |pair: &mut Pair| match to_server {
                true => pair.server.received.pop_front(),
                false => pair.client.received.pop_front(),
            };
            let mut arrived = None;
            pair.until("the message", |pair| {
                arrived = receiver(pair);
                arrived.is_some()
            });
            assert_eq!(
                arrived,
                Some(Arrival::Message(head.clone(), payload.clone())),
                "{head_len} + {payload_len}"
            );
        }
    }
}

/// [PROV-5] [PROV-56]
pub fn messages_arrive_in_order_of_send(fixture: &dyn Fixture) {
    const COUNT: usize = 3000;
    let mut pair = Pair::new(fixture);
    let mut sent = [0usize; 2];
    let mut taken = [0usize; 2];
    let payload = |index: usize| pattern(index, index * 37 % 3000);
    pair.until("all messages", |pair| {
        for (side, sent) in [&mut pair.client, &mut pair.server].into_iter().zip(&mut sent) {
            while *sent < COUNT {
                match side.endpoint.send_copy(&sent.to_le_bytes(), &payload(*sent)) {
                    Ok(()) => *sent += 1,
                    Err(PostError::Full) => break,
                    Err(error) => panic!("{error}"),
                }
            }
        }
        for (side, taken) in [&mut pair.client, &mut pair.server].into_iter().zip(&mut taken) {
            while let Some(arrival) = side.received.pop_front() {
                assert_eq!(arrival, Arrival::Message(taken.to_le_bytes().to_vec(), payload(*taken)));
                *taken += 1;
            }
        }
        taken == [COUNT, COUNT]
    });
}

/// [PROV-44] [PROV-52] [PROV-53] Fewer are expected than arrive.
pub fn messages_beyond_those_expected_arrive_later(fixture: &dyn Fixture) {
    const COUNT: usize = 200;
    let mut pair = Pair::new(fixture);
    for expected in [5, 1, 0] {
        let ready = pair.server.endpoint.expect_messages(expected);
        assert!(ready >= expected.max(1) && ready == pair.server.endpoint.messages_expected());
        let (mut sent, mut taken) = (0, 0);
        pair.until("all messages", |pair| {
            while sent < COUNT && pair.client.endpoint.send_copy(&[1], &pattern(sent, 100)).is_ok() {
                sent += 1;
            }
            while let Some(arrival) = pair.server.received.pop_front() {
                assert_eq!(arrival, Arrival::Message(vec![1], pattern(taken, 100)));
                taken += 1;
            }
            taken == COUNT
        });
    }
    assert!(pair.server.endpoint.expect_messages(9) >= 9);
    pair.assert_alive();
}

/// [PROV-6]
pub fn messages_queued_together_leave_with_one_flush(fixture: &dyn Fixture) {
    let mut pair = Pair::new(fixture);
    for number in 0..8u8 {
        pair.client.endpoint.send_copy(&[number], &[number; 100]).unwrap();
    }
    pair.client.endpoint.flush().unwrap();
    // Nothing more is asked of the sender.
    let begin = Instant::now();
    while pair.server.received.len() < 8 {
        if !pair.server.pump() {
            pair.server.wait_a_little();
        }
        assert!(begin.elapsed() < HANG);
    }
    for number in 0..8u8 {
        assert_eq!(pair.server.received.pop_front(), Some(Arrival::Message(vec![number], vec![number; 100])));
    }
}

/// [PROV-3] [PROV-4] [PROV-48] [TCP-1] [VERBS-3]
pub fn posts_outside_the_capabilities_are_invalid_and_send_nothing(fixture: &dyn Fixture) {
    let mut pair = Pair::new(fixture);
    let payload_max = pair.client.capabilities().send_payload_max as usize;
    let endpoint = &mut pair.client.endpoint;
    assert!(matches!(endpoint.reserve(payload_max + 1), Err(PostError::Invalid(_))));
    for len in [0, 1, 64, 65, payload_max - 1, payload_max] {
        let slot = endpoint.reserve(len).unwrap();
        assert!(slot.payload_capacity as usize >= len, "{} for {len}", slot.payload_capacity);
        assert_eq!(endpoint.slot_payload(&slot).len(), slot.payload_capacity as usize, "{len}");
        endpoint.cancel_send(slot);
    }
    // More often than there are slots: a refused send gives its slot back.
    for _ in 0..100 {
        let mut refused = |head: &[u8], payload_len: usize| {
            let slot = endpoint.reserve(10).unwrap();
            assert!(slot.payload_capacity >= 10);
            assert_eq!(endpoint.slot_payload(&slot).len(), slot.payload_capacity as usize);
            let payload_len = if payload_len > 10 { slot.payload_capacity as usize + 1 } else { payload_len };
            assert!(matches!(endpoint.send(slot, head, payload_len), Err(PostError::Invalid(_))));
        };
        refused(&[], 0);
        refused(&[0; HEAD_SIZE_MAX + 1], 0);
        refused(&[0], 11);
    }
    pair.assert_alive();
}

/// [PROV-7] [PROV-47] [PROV-50]
pub fn slots_may_be_sent_in_any_order_and_cancelled(fixture: &dyn Fixture) {
    let mut pair = Pair::new(fixture);
    for round in 0..50u8 {
        let mut slots: Vec<Option<SendSlot>> =
            (0..4).map(|_| Some(pair.client.endpoint.reserve(64).expect("four slots at once"))).collect();
        for (number, slot) in (0u8..).zip(&slots) {
            let payload = [round.wrapping_mul(4).wrapping_add(number); 64];
            pair.client.endpoint.slot_payload(slot.as_ref().unwrap()).write_from(0, &payload);
        }
        for index in [2usize, 0, 3] {
            let slot = slots[index].take().unwrap();
            pair.client.endpoint.send(slot, &[index as u8], 64 - index).unwrap();
        }
        pair.client.endpoint.cancel_send(slots[1].take().unwrap());
        pair.until("three messages", |pair| pair.server.received.len() >= 3);
        for index in [2u8, 0, 3] {
            let payload = vec![round.wrapping_mul(4).wrapping_add(index); 64 - usize::from(index)];
            assert_eq!(pair.server.received.pop_front(), Some(Arrival::Message(vec![index], payload)));
        }
        assert!(pair.server.received.is_empty());
    }
}

/// [PROV-8]
pub fn payload_stays_readable_until_recv_done(fixture: &dyn Fixture) {
    let mut pair = Pair::new(fixture);
    let first = pattern(1, 3000);
    pair.client.endpoint.send_copy(b"1", &first).unwrap();
    pair.client.endpoint.flush().unwrap();
    let begin = Instant::now();
    while pair.server.endpoint.recv().unwrap().is_none() {
        pair.server.wait_a_little();
        assert!(begin.elapsed() < HANG);
    }
    assert_eq!(pair.server.endpoint.payload().to_vec(), first);
    // What arrives meanwhile leaves it alone.
    for number in 2..6u8 {
        pair.client.endpoint.send_copy(&[number], &pattern(usize::from(number), 3000)).unwrap();
        pair.client.endpoint.flush().unwrap();
        pair.server.endpoint.flush().unwrap();
    }
    pair.server.wait_a_little();
    assert_eq!(pair.server.endpoint.payload().to_vec(), first);
    pair.server.endpoint.recv_done();
    assert!(pair.server.endpoint.payload().is_empty());
    pair.until("the others", |pair| pair.server.received.len() == 4);
    assert!(pair.server.endpoint.payload().is_empty(), "recv that found nothing ended the last message");
    for number in 2..6u8 {
        let payload = pattern(usize::from(number), 3000);
        assert_eq!(pair.server.received.pop_front(), Some(Arrival::Message(vec![number], payload)));
    }
}

/// What a side may have taken for a peer that takes nothing, bytes: its own queue and the kernel's buffers.
const UNTAKEN_SIZE_MAX: usize = 64 << 20;

/// Sends until Full, twice in a row with a rest between, while the peer takes nothing. Returns how many were sent.
fn fill_queue(pair: &mut Pair) -> usize {
    let payload = vec![5; pair.client.capabilities().send_payload_max as usize];
    let (mut sent, mut full) = (0usize, 0);
    while full < 2 {
        match pair.client.endpoint.send_copy(&sent.to_le_bytes(), &payload) {
            Ok(()) => (sent, full) = (sent + 1, 0),
            Err(PostError::Full) => full += 1,
            Err(error) => panic!("{error}"),
        }
        pair.client.flush();
        assert!(sent * payload.len() <= UNTAKEN_SIZE_MAX, "the queue has no bound");
        if full == 1 {
            pair.client.wait_a_little();
        }
    }
    sent
}

/// [PROV-9] [PROV-49] [PROV-54]
pub fn peer_that_takes_nothing_fills_the_queue_and_recovers(fixture: &dyn Fixture) {
    let mut pair = Pair::new(fixture);
    for round in 0..4 {
        let sent = fill_queue(&mut pair);
        assert!(sent >= 1);
        let begin = Instant::now();
        while pair.server.received.len() < sent {
            if !pair.server.pump() {
                pair.server.wait_a_little();
            }
            // Who says that nothing is left to flush is not asked to, and each of the two calls is enough.
            let sender = &mut pair.client.endpoint;
            match sender.wants_flush() {
                true if round % 2 == 0 => sender.flush().unwrap(),
                true => assert!(sender.recv().unwrap().is_none()),
                false => {}
            }
            assert!(begin.elapsed() < HANG, "{} of {sent} arrived", pair.server.received.len());
        }
        assert!(!pair.client.endpoint.wants_flush());
        for index in 0..sent {
            let Some(Arrival::Message(head, _)) = pair.server.received.pop_front() else {
                panic!("{index} is missing")
            };
            assert_eq!(head, index.to_le_bytes());
        }
        pair.assert_alive();
    }
}

/// [PROV-55]
pub fn wait_after_full_ends_when_there_is_room(fixture: &dyn Fixture) {
    let mut pair = Pair::new(fixture);
    let mut sent = fill_queue(&mut pair);
    let begin = Instant::now();
    // One at a time: the sender is woken by what the peer takes, and by nothing else.
    for _ in 0..100 {
        while let Err(error) = pair.client.endpoint.send_copy(&sent.to_le_bytes(), &[6]) {
            assert!(matches!(error, PostError::Full), "{error}");
            let taken = pair.server.received.len();
            while pair.server.received.len() == taken && begin.elapsed() < HANG {
                if !pair.server.pump() {
                    pair.server.wait_a_little();
                }
            }
            pair.client.endpoint.wait(Some(HANG)).unwrap();
            pair.client.pump();
            assert!(begin.elapsed() < HANG, "no room although the peer takes");
        }
        sent += 1;
        pair.client.flush();
    }
    pair.until("all", |pair| pair.server.received.len() == sent);
}
