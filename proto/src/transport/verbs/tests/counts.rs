//! How many requests, doorbells, completions, copies and registrations an operation costs.
#![allow(unsafe_code, reason = "lends memory for an operation")]

use super::*;

/// [VERBS-21] A direct read: one RDMA write and one send, one doorbell, one completion, no copy.
#[test]
#[ignore = "needs rdma-device"]
fn direct_read_of_4_kib_is_one_rdma_write_and_one_send() {
    let mut pair = Pair::new();
    let (region, local) = (pair.region(4096), memory(65_536));
    pair.message();
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

/// [VERBS-17] [VERBS-54] All receives of who connects are one registration; the other is for messages to send.
#[test]
#[ignore = "needs rdma-device"]
fn connection_is_made_with_two_registrations() {
    let mut pair = Pair::new();
    assert_eq!(pair.client.counters().registrations, 2);
    assert!(pair.client.receives_count() > usize::from(params().recv_depth));
    // Each of them can be received into: the device would refuse one beyond the registration.
    for _ in 0..2 * params().recv_depth {
        pair.server.send_copy(b"head", &[7; 8192]).unwrap();
        pair.server.flush().unwrap();
        next_message(&mut pair.client).unwrap();
        assert_eq!(pair.client.payload().to_vec(), [7; 8192]);
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

/// [VERBS-22] [VERBS-62] [VERBS-64] What leaves with its request, what is copied, and what is registered.
#[test]
#[ignore = "needs rdma-device"]
fn local_memory_is_inlined_copied_or_registered_by_its_size() {
    let mut pair = Pair::new();
    let region = pair.region(65_536);
    pair.message();
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

/// [VERBS-22] [VERBS-72]
#[test]
#[ignore = "needs rdma-device"]
fn registrations_of_memory_that_is_gone_or_was_lent_end() {
    let mut pair = Pair::new();
    let region = pair.region(65_536);
    pair.message();
    let remote = region.range().slice(0, 16_384).unwrap();
    let mut counts = |local: MemoryRef| {
        let before = pair.server.counters();
        pair.write([local.slice(0, 16_384).unwrap()].into_iter().collect(), remote);
        drop(local);
        pair.message_and_completion();
        deltas!(before, pair.server.counters(), registrations, deregistrations, bytes_copied)
    };
    assert_eq!(counts(memory(65_536)), (1, 0, 0));
    assert_eq!(counts(memory(65_536)), (1, 1, 0), "the one before is gone");
    let mut bytes = vec![5; 65_536];
    let mut lend = || {
        // SAFETY: it lives longer, and is not touched meanwhile.
        MemoryRef::new(Arc::new(unsafe { BorrowedMemory::lent(bytes.as_mut_ptr(), bytes.len()) }))
    };
    assert_eq!(counts(lend()), (1, 1, 0));
    assert_eq!(counts(lend()), (1, 1, 0));
    assert_eq!(region.memory().span().slice(0, 16_384).unwrap().to_vec(), [5; 16_384]);
}

/// [VERBS-15]
#[test]
#[ignore = "needs rdma-device"]
fn accepted_connection_has_room_for_fifteen_requests_of_which_one_is_kept() {
    let mut pair = Pair::new();
    let depth = 15.max(usize::from(SEGMENTS_MAX).div_ceil(pair.server.segments_per_request()) + 3);
    let slots: Vec<_> = (1..depth).map(|_| pair.server.reserve(0).unwrap()).collect();
    assert!(matches!(pair.server.reserve(0), Err(PostError::Full)));
    slots.into_iter().for_each(|slot| pair.server.cancel_send(slot));
    pair.assert_alive();
}

/// [VERBS-60] The peer learns the size of the whole.
#[test]
#[ignore = "needs rdma-device"]
fn immediate_of_a_write_of_several_requests_is_one_of_all_bytes() {
    let mut pair = Pair::new();
    let count = pair.server.segments_per_request() + 1;
    let (local, region) = (memory(65_536), pair.region(count * 100));
    fill(&local, 1);
    let parts: LocalSegments = (0..count).map(|index| local.slice(index * 200, 100).unwrap()).collect();
    let expected: Vec<u8> = parts.iter().flat_map(|part| part.span().to_vec()).collect();
    pair.server.rdma_write(OpToken(1), parts, region.range(), Some(7)).unwrap();
    pair.server.flush().unwrap();
    let begin = Instant::now();
    let received = loop {
        if let Some(received) = pair.client.recv().unwrap() {
            break received;
        }
        pair.client.wait(Some(Duration::from_millis(100))).unwrap();
        assert!(begin.elapsed() < HANG, "no immediate");
    };
    let size = expected.len() as u32;
    assert!(matches!(received, Received::Immediate { data: 7, size: all } if all == size), "{received:?}");
    assert!(region.memory().span().to_vec() == expected);
}

/// [VERBS-63] Messages ask for a completion now and then.
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
        let fds = event_fds(&pair.server);
        assert!(poll_readable(fds, Some(HANG)).unwrap().contains(&true), "slept through a message");
        assert_eq!(next_message(&mut pair.server).unwrap(), b"ping");
    }
}

/// [PROV-55] Messages that are done and gave no completion leave room when an operation needs nearly all of a queue.
#[test]
#[ignore = "needs rdma-device"]
fn operation_of_many_requests_gets_room_after_messages_without_completions() {
    let one_segment = domain_on(|limits| limits.sge_max = 1);
    let mut pair = Pair::of(VerbsDomain::new(), &one_segment);
    for _ in 0..3 {
        pair.message();
    }
    let count = usize::from(SEGMENTS_MAX);
    let (local, region) = (memory(65_536), pair.region(count * 100));
    fill(&local, 1);
    let parts: LocalSegments = (0..count).map(|index| local.slice(index * 200, 100).unwrap()).collect();
    let expected: Vec<u8> = parts.iter().flat_map(|part| part.span().to_vec()).collect();
    let mut refused = 0;
    while let Err(error) = pair.server.rdma_write(OpToken(1), parts.clone(), region.range(), None) {
        assert!(matches!(error, PostError::Full), "{error}");
        refused += 1;
        // Once for each time that the device said something.
        assert!(refused < 20, "refused for ever");
        pair.server.wait(Some(HANG)).unwrap();
    }
    pair.message_and_completion();
    assert!(region.memory().span().to_vec() == expected);
}

/// [PROV-24] [VERBS-12] A side that was once refused sleeps again after it was told of room.
#[test]
#[ignore = "needs rdma-device"]
fn side_refused_for_want_of_room_is_told_once_and_sleeps() {
    let mut pair = Pair::new();
    let mut sent = 0;
    while pair.server.send_copy(b"reply", b"").is_ok() {
        sent += 1;
        pair.server.flush().unwrap();
    }
    for _ in 0..sent {
        assert_eq!(next_message(&mut pair.client).unwrap(), b"reply");
    }
    let mut told = 0;
    loop {
        match pair.server.arm() {
            true if told == 1 => break,
            // The device has not said yet that the messages are sent.
            true => assert!(poll_readable(event_fds(&pair.server), Some(HANG)).unwrap().contains(&true)),
            false => told += 1,
        }
        assert!(told <= 1, "told again and again");
        assert!(pair.server.recv().unwrap().is_none());
    }
    pair.assert_alive();
}

/// [VERBS-16] The answer to a single message costs no look and no receive before it leaves.
#[test]
#[ignore = "needs rdma-device"]
fn answer_to_a_single_message_leaves_before_all_else() {
    let mut pair = Pair::new();
    for _ in 0..3 {
        pair.assert_alive();
        let before = pair.server.counters();
        pair.server.send_copy(b"answer", b"").unwrap();
        assert!(pair.server.recv().unwrap().is_none());
        let asked = pair.server.counters();
        assert_eq!(deltas!(before, asked, polls, receive_posts, doorbells), (0, 0, 0));
        pair.server.flush().unwrap();
        let flushed = pair.server.counters();
        assert_eq!(deltas!(before, flushed, polls, receive_posts, doorbells), (0, 1, 1));
        assert!(pair.server.recv().unwrap().is_none());
        let looked = pair.server.counters();
        assert_eq!(deltas!(flushed, looked, polls), 1);
        assert_eq!(next_message(&mut pair.client).unwrap(), b"answer");
    }
}

/// [LIMIT-8] Large messages that the peer does not take are known; small ones cost what every connection has.
#[test]
#[ignore = "needs rdma-device"]
fn large_messages_in_transit_are_counted_until_taken() {
    let large = ConnectParams { recv_payload_max: 1 << 20, ..params() };
    let domain = VerbsDomain::new();
    let mut listener = domain.listen_verbs(&address(), &large).unwrap();
    let to = listener.address().clone();
    let (mut client, mut server) = std::thread::scope(|scope| {
        let client = scope.spawn(|| domain.connect_verbs(&to, &large, HANG).unwrap());
        let server = accept(&mut listener);
        (client.join().unwrap(), server)
    });
    for len in [8000, 100_000, 1 << 20] {
        server.send_copy(b"head", &vec![1; len]).unwrap();
    }
    assert!(server.unsent_bytes() >= 100_000 + (1 << 20), "{}", server.unsent_bytes());
    server.flush().unwrap();
    for _ in 0..3 {
        next_message(&mut client).unwrap();
    }
    let begin = Instant::now();
    while server.unsent_bytes() > 0 {
        assert!(server.recv().unwrap().is_none() && begin.elapsed() < HANG, "what was taken is counted");
    }
}

/// [LIMIT-8] A side that sleeps wakes when its peer has taken a large message: it is charged for it until then.
#[test]
#[ignore = "needs rdma-device"]
fn large_message_that_is_taken_wakes_a_side_that_sleeps() {
    let large = ConnectParams { recv_payload_max: 1 << 20, ..params() };
    let domain = VerbsDomain::new();
    let mut listener = domain.listen_verbs(&address(), &large).unwrap();
    let to = listener.address().clone();
    let (mut client, mut server) = std::thread::scope(|scope| {
        let client = scope.spawn(|| domain.connect_verbs(&to, &large, HANG).unwrap());
        let server = accept(&mut listener);
        (client.join().unwrap(), server)
    });
    // It sends one more than there are receives: the last waits until the peer takes the first.
    assert!(server.receives_count() == 2);
    for _ in 0..3 {
        client.send_copy(b"head", &vec![1; 100_000]).unwrap();
    }
    client.flush().unwrap();
    assert!(client.arm() && client.unsent_bytes() > 0);
    for _ in 0..3 {
        next_message(&mut server).unwrap();
    }
    assert!(poll_readable(event_fds(&client), Some(HANG)).unwrap().contains(&true), "not woken");
    assert!(client.recv().unwrap().is_none());
    assert_eq!(client.unsent_bytes(), 0);
}

/// [PROV-9] [VERBS-71] What was sent without a completion of its own comes back when it is needed.
#[test]
#[ignore = "needs rdma-device"]
fn slots_of_messages_without_completions_come_back_when_there_are_no_others() {
    let Pair { mut client, mut server, .. } = Pair::new();
    for _ in 0..2 {
        server.send_copy(b"head", &[7; 4000]).unwrap();
    }
    server.flush().unwrap();
    for _ in 0..2 {
        next_message(&mut client).unwrap();
    }
    // As where there is no memory for more.
    server.core().slots.count_max = 2;
    let begin = Instant::now();
    while let Err(error) = server.send_copy(b"next", &[]) {
        assert!(matches!(error, PostError::Full), "{error}");
        server.wait(Some(HANG)).unwrap();
        assert!(begin.elapsed() < HANG, "nothing says that they are sent");
    }
    server.flush().unwrap();
    assert_eq!(next_message(&mut client).unwrap(), b"next");
}
