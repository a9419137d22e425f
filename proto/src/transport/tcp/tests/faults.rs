//! Peers that break the rules, stop, or go away.

use smallvec::smallvec;

use super::super::super::{PeerFault, PostError, RegionFault, RegionKey};
use super::super::frame::{FaultReason, Frame};
use super::*;

fn write(range: RemoteRange, immediate: Option<u32>, data: &[u8]) -> Vec<u8> {
    [&Frame::Write { range, immediate }.encode()[..], data].concat()
}

fn is_malformed(error: &TransportError) -> bool {
    matches!(error, TransportError::Peer(PeerFault::Malformed { .. }))
}

/// What the endpoint delivers until it fails, and how it fails.
fn deliveries(endpoint: &mut TcpEndpoint) -> (Vec<String>, TransportError) {
    let mut seen = Vec::new();
    loop {
        match receive(endpoint) {
            Ok(Received::Message { head, .. }) => {
                let payload = endpoint.payload().to_vec();
                seen.push(format!("{:?} {:?}", head.as_bytes(), payload));
            }
            Ok(immediate) => seen.push(format!("{immediate:?}")),
            Err(error) => return (seen, error),
        }
    }
}

/// A conversation that has every kind of frame that needs no request: its pieces and what each delivers.
fn conversation(region: &Region) -> Vec<(Vec<u8>, &'static str)> {
    let range = |offset, len| RemoteRange { offset, len, ..region.range() };
    vec![
        (send(b"a", b"xyz"), "[97] [120, 121, 122]"),
        (write(range(0, 40), None, &pattern(1, 40)), ""),
        (write(range(40, 20), Some(9), &pattern(2, 20)), "Immediate { data: 9, size: 20 }"),
        (Frame::ReadRequest { id: 3, range: range(0, 60) }.encode().to_vec(), ""),
        (send(b"b", b""), "[98] []"),
    ]
}

// [TCP-8]
#[test]
fn conversation_cut_at_every_byte_delivers_what_was_whole() {
    let whole: usize = {
        let domain = TcpDomain::new();
        conversation(&region(&domain, &[0; 64], BOTH)).iter().map(|(bytes, _)| bytes.len()).sum()
    };
    for cut in 0..=whole {
        let (mut raw, mut endpoint, domain) = raw_client(&params());
        let region = region(&domain, &[0; 64], BOTH);
        let mut expected = Vec::new();
        let mut bytes = Vec::new();
        for (piece, delivers) in conversation(&region) {
            bytes.extend_from_slice(&piece);
            if bytes.len() <= cut && !delivers.is_empty() {
                expected.push(delivers.to_owned());
            }
        }
        raw.write_all(&bytes[..cut]).unwrap();
        raw.shutdown(std::net::Shutdown::Write).unwrap();
        let (seen, error) = deliveries(&mut endpoint);
        assert_eq!(seen, expected, "cut at {cut}");
        assert!(matches!(error, TransportError::Closed), "cut at {cut}: {error}");
        assert!(matches!(endpoint.recv(), Err(TransportError::Closed)));
        assert!(matches!(endpoint.reserve(0), Err(PostError::Closed)));
    }
}

#[test]
fn conversation_in_single_bytes_is_understood() {
    let (mut raw, mut endpoint, domain) = raw_client(&params());
    let region = region(&domain, &[0; 64], BOTH);
    let pieces = conversation(&region);
    let mut seen = 0;
    for byte in pieces.iter().flat_map(|(bytes, _)| bytes) {
        raw.write_all(std::slice::from_ref(byte)).unwrap();
        endpoint.wait(Some(HANG)).unwrap();
        while endpoint.recv().unwrap().is_some() {
            seen += 1;
        }
    }
    assert_eq!(seen, 3);
    let expected = [pattern(1, 40), pattern(2, 20), vec![0; 4]].concat();
    assert_eq!(region.memory().span().to_vec(), expected);
    // The read was answered, too.
    let mut answer = [0; HEADER_SIZE + 60];
    raw.read_exact(&mut answer).unwrap();
    assert_eq!(answer[..HEADER_SIZE], Frame::ReadResponse { id: 3, offset: 0, len: 60 }.encode());
    assert_eq!(answer[HEADER_SIZE..], expected[..60]);
}

/// The endpoint ends with `expected`, and the peer is told by the last bytes on the stream.
fn assert_faults(bytes: &[u8], params: &ConnectParams, expected: impl FnOnce(&PeerFault) -> bool) {
    let (mut raw, mut endpoint, _domain) = raw_client(params);
    raw.write_all(bytes).unwrap();
    match failure(&mut endpoint) {
        TransportError::Peer(fault) => assert!(expected(&fault), "{fault:?}"),
        other => panic!("not the peer's fault: {other}"),
    }
    let mut told = [0; HEADER_SIZE];
    raw.read_exact(&mut told).unwrap();
    assert!(matches!(Frame::decode(&told), Ok(Frame::Fault(_))), "{told:02x?}");
    drop(endpoint);
    let mut rest = Vec::new();
    // The end of the stream, or a reset where bytes of ours were left unread.
    let _ = raw.read_to_end(&mut rest);
    assert!(rest.is_empty());
}

// [TCP-1] [TCP-5] [TCP-11] [TCP-22] [TCP-23] [TCP-30] [TCP-38]
#[test]
fn frame_that_cannot_be_ends_the_connection_and_tells_the_peer() {
    let range = RemoteRange { key: RegionKey(5), offset: 0, len: 1 };
    let malformed = |fault: &PeerFault| matches!(fault, PeerFault::Malformed { .. });
    let mut flagged = send(b"h", b"");
    flagged[1] = 1;
    let cases: [Vec<u8>; 6] = [
        vec![0; 32],
        vec![0xff; 4096],
        flagged,
        // Nobody asked.
        [&Frame::ReadResponse { id: 0, offset: 0, len: 4 }.encode()[..], b"data"].concat(),
        [send(b"good", b""), vec![9; 32]].concat(),
        // A payload that the receiver did not offer to take, although the transport would.
        Frame::Send { head_len: 1, payload_len: params().recv_payload_max + 1 }.encode().to_vec(),
    ];
    for bytes in cases {
        assert_faults(&bytes, &params(), malformed);
    }
    assert_faults(&write(range, None, b"x"), &params(), |fault| {
        *fault == PeerFault::Region(RegionFault::UnknownKey(RegionKey(5)))
    });
    assert_faults(&write(RemoteRange { len: 0, ..range }, None, b""), &params(), |fault| {
        *fault == PeerFault::Region(RegionFault::UnknownKey(RegionKey(5)))
    });
    let request = Frame::ReadRequest { id: 0, range }.encode();
    assert_faults(&request, &params(), |fault| {
        *fault == PeerFault::Region(RegionFault::UnknownKey(RegionKey(5)))
    });
}

// [TCP-38]: it would be taken for data.
#[test]
fn fault_is_not_told_in_the_middle_of_a_frame() {
    let (mut raw, mut endpoint, domain) = raw_client(&params());
    let region = region(&domain, &vec![7; 8 << 20], BOTH);
    raw.write_all(&Frame::ReadRequest { id: 0, range: region.range() }.encode()).unwrap();
    endpoint.wait(Some(HANG)).unwrap();
    assert!(endpoint.recv().unwrap().is_none());
    assert!(endpoint.wants_flush(), "the socket is full");
    raw.write_all(&[9; HEADER_SIZE]).unwrap();
    // Room for a FAULT.
    let mut said = vec![0; 300_000];
    raw.read_exact(&mut said).unwrap();
    let error = loop {
        if let Err(error) = endpoint.recv() {
            break error;
        }
    };
    assert!(is_malformed(&error), "{error}");
    drop(endpoint);
    raw.read_to_end(&mut said).unwrap();
    let mut rest = &said[..];
    while let Some((header, body)) = rest.split_first_chunk() {
        let Ok(Frame::ReadResponse { len, .. }) = Frame::decode(header) else { panic!("{header:02x?}") };
        let here = body.len().min(len as usize);
        assert!(body[..here].iter().all(|byte| *byte == 7), "something else than data");
        rest = &body[here..];
    }
    assert_ne!(rest.first(), Some(&5), "a FAULT");
}

// [TCP-39]
#[test]
fn fault_of_any_code_ends_the_connection_and_says_why() {
    for (code, says) in [(2, "no region with the key 0x5"), (99, "fault code 99")] {
        let (mut raw, mut endpoint, _domain) = raw_client(&params());
        raw.write_all(&Frame::Fault(FaultReason { code, key: 5, offset: 0 }).encode()).unwrap();
        let error = failure(&mut endpoint).to_string();
        assert!(error.contains(says), "{error}");
        assert!(matches!(endpoint.recv(), Err(TransportError::Closed)));
    }
}

// [TCP-9] [TCP-28] [TCP-29]
#[test]
fn read_is_answered_in_order_by_parts_that_let_messages_pass() {
    let (mut raw, mut endpoint, domain) = raw_client(&params());
    let data = pattern(4, 600_000);
    let region = region(&domain, &data, BOTH);
    let nothing = RemoteRange { len: 0, ..region.range() };
    raw.write_all(&Frame::ReadRequest { id: 7, range: region.range() }.encode()).unwrap();
    raw.write_all(&Frame::ReadRequest { id: 8, range: nothing }.encode()).unwrap();
    let reader = std::thread::spawn(move || {
        let mut found = Vec::new();
        loop {
            let mut header = [0; HEADER_SIZE];
            raw.read_exact(&mut header).unwrap();
            match Frame::decode(&header) {
                Ok(Frame::ReadResponse { id: 7, offset, len }) => {
                    assert_eq!(offset, found.len() as u64);
                    assert!((1..=256 << 10).contains(&len), "{len} bytes");
                    let begin = found.len();
                    found.resize(begin + len as usize, 0);
                    raw.read_exact(&mut found[begin..]).unwrap();
                }
                // The socket stays open until the other side is done.
                Ok(Frame::ReadResponse { id: 8, offset: 0, len: 0 }) => return (raw, found),
                other => panic!("{other:?}"),
            }
        }
    });
    while !reader.is_finished() {
        assert!(endpoint.recv().unwrap().is_none());
        endpoint.flush().unwrap();
        std::thread::yield_now();
    }
    assert!(reader.join().unwrap().1 == data);
}

#[test]
fn payload_at_the_limit_is_taken() {
    let (mut raw, mut endpoint, _domain) = raw_client(&params());
    let payload = pattern(3, params().recv_payload_max as usize);
    raw.write_all(&send(&[1; 112], &payload)).unwrap();
    assert_eq!(expect_message(&mut endpoint), (vec![1; 112], payload));
}

// [TCP-30] [TCP-32]
#[test]
fn response_that_does_not_fit_its_read_ends_the_connection() {
    let responses = |id| {
        [
            Frame::ReadResponse { id: id + 1, offset: 0, len: 8 },
            Frame::ReadResponse { id, offset: 1, len: 8 },
            Frame::ReadResponse { id, offset: 0, len: 17 },
            Frame::ReadResponse { id, offset: 0, len: 0 },
            Frame::ReadResponse { id, offset: u64::MAX, len: 8 },
        ]
    };
    for case in 0..5 {
        let (mut raw, mut endpoint, domain) = raw_client(&params());
        let target = memory(&domain, &[0xee; 16]);
        let range = RemoteRange { key: RegionKey(1), offset: 0, len: 16 };
        endpoint.rdma_read(OpToken(4), smallvec![target.clone()], range).unwrap();
        endpoint.flush().unwrap();
        let mut request = [0; HEADER_SIZE];
        raw.read_exact(&mut request).unwrap();
        let Ok(Frame::ReadRequest { id, .. }) = Frame::decode(&request) else { panic!("{request:02x?}") };
        raw.write_all(&[&responses(id)[case].encode()[..], &[1; 32]].concat()).unwrap();
        let error = failure(&mut endpoint);
        assert!(is_malformed(&error), "case {case}: {error}");
        assert_eq!(target.span().to_vec(), [0xee; 16], "case {case}");
        let completion = endpoint.poll_completion().unwrap();
        assert_eq!(completion.token, OpToken(4));
        assert!(matches!(completion.result, Err(TransportError::Closed)));
        assert!(endpoint.poll_completion().is_none());
    }
}

// [TCP-30]
#[test]
fn response_to_a_read_that_has_not_left_ends_the_connection() {
    let (mut raw, mut endpoint, domain) = raw_client(&params());
    let target = memory(&domain, &[0xee; 16]);
    let range = RemoteRange { key: RegionKey(1), offset: 0, len: 16 };
    // Ids are easily guessed.
    raw.write_all(&[&Frame::ReadResponse { id: 0, offset: 0, len: 16 }.encode()[..], &[1; 16]].concat())
        .unwrap();
    assert!(is_readable(&endpoint));
    endpoint.rdma_read(OpToken(4), smallvec![target.clone()], range).unwrap();
    let error = endpoint.recv().unwrap_err();
    assert!(is_malformed(&error), "{error}");
    assert_eq!(target.span().to_vec(), [0xee; 16]);
    assert!(endpoint.poll_completion().unwrap().result.is_err());
}

// [TCP-31]
#[test]
fn more_reads_than_the_depth_end_the_connection() {
    let few = ConnectParams { rdma_depth: 2, ..params() };
    let (mut raw, mut endpoint, domain) = raw_client(&few);
    let region = region(&domain, &vec![0; 8 << 20], BOTH);
    // The first response keeps the socket full; one part of it is queued and the rest counts, and two more follow.
    let request = |id| Frame::ReadRequest { id, range: region.range() }.encode();
    raw.write_all(&[request(0), request(1)].concat()).unwrap();
    endpoint.wait(Some(HANG)).unwrap();
    assert!(endpoint.recv().unwrap().is_none());
    assert!(endpoint.wants_flush());
    raw.write_all(&request(2)).unwrap();
    let error = failure(&mut endpoint);
    assert!(is_malformed(&error), "{error}");
}

// [TCP-31] A read whose last bytes are queued is not answered yet.
#[test]
fn short_reads_beyond_the_depth_end_the_connection() {
    let few = ConnectParams { rdma_depth: 2, ..params() };
    for (count, is_taken) in [(1, true), (2, true), (3, false)] {
        let (mut raw, mut endpoint, domain) = raw_client(&few);
        let region = region(&domain, &[7; 8], BOTH);
        let request = |id| Frame::ReadRequest { id, range: region.range() }.encode();
        raw.write_all(&(0..count).map(request).collect::<Vec<_>>().concat()).unwrap();
        endpoint.wait(Some(HANG)).unwrap();
        match endpoint.recv() {
            Ok(None) => assert!(is_taken, "{count} reads"),
            Ok(Some(_)) => panic!("nothing was sent"),
            Err(error) => assert!(!is_taken && is_malformed(&error), "{count} reads: {error}"),
        }
    }
}

// [TCP-23] [TCP-38] [TCP-39]
#[test]
fn region_fault_is_told_to_the_peer_by_name() {
    let mut pair = pair();
    let region = region(&pair.client_domain, &[0xee; 8], Access::REMOTE_READ);
    let source = memory(&pair.server_domain, &[1; 8]);
    pair.server.rdma_write(OpToken(0), smallvec![source], region.range(), None).unwrap();
    pair.server.flush().unwrap();
    let error = failure(&mut pair.client);
    let expected = RegionFault::Access { key: region.range().key, access: "remote write" };
    assert!(
        matches!(&error, TransportError::Peer(PeerFault::Region(fault)) if *fault == expected),
        "{error}"
    );
    assert_eq!(region.memory().span().to_vec(), [0xee; 8]);
    let error = failure(&mut pair.server).to_string();
    assert!(error.contains("does not allow the access"), "{error}");
}

// [TCP-24] [TCP-25]
#[test]
fn region_dropped_while_a_write_arrives_gets_nothing_more() {
    for (first, second) in [(0, 100_000), (10, 99_990), (70_000, 30_000)] {
        let (mut raw, mut endpoint, domain) = raw_client(&params());
        let region = region(&domain, &vec![0; 100_000], BOTH);
        let kept = region.memory().clone();
        let bytes = write(region.range(), Some(1), &vec![1; 100_000]);
        raw.write_all(&bytes[..HEADER_SIZE + first]).unwrap();
        while endpoint.counters().bytes_received < (HEADER_SIZE + first) as u64 {
            endpoint.wait(Some(HANG)).unwrap();
            assert!(endpoint.recv().unwrap().is_none());
        }
        drop(region);
        let before = kept.span().to_vec();
        assert_eq!(before.iter().filter(|byte| **byte == 1).count(), first);
        raw.write_all(&[&bytes[HEADER_SIZE + first..], &send(b"next", b"")].concat()).unwrap();
        // Neither the immediate of data that is not there, nor an end of the connection: the message after it.
        assert_eq!(expect_message(&mut endpoint).0, b"next");
        assert!(kept.span().to_vec() == before, "{second} bytes after the drop");
    }
}

// [TCP-26]
#[test]
fn region_dropped_while_it_is_read_ends_the_connection() {
    let mut pair = pair();
    let size = 8 << 20;
    let region = region(&pair.client_domain, &vec![1; size], BOTH);
    let target = memory(&pair.server_domain, &vec![0; size]);
    pair.server.rdma_read(OpToken(1), smallvec![target], region.range()).unwrap();
    pair.server.flush().unwrap();
    while !pair.client.wants_flush() {
        assert!(pair.client.recv().unwrap().is_none());
    }
    drop(region);
    let error = pair.client.flush().unwrap_err();
    // The peer has done nothing wrong.
    assert!(matches!(error, TransportError::System { .. }) && !error.is_local_fault(), "{error}");
    failure(&mut pair.server);
    assert!(pair.server.poll_completion().unwrap().result.is_err());
}

// [TCP-26]
#[test]
fn region_dropped_during_a_read_fails_the_next_call() {
    for flushes in [true, false] {
        let mut pair = pair();
        let region = region(&pair.client_domain, &[1; 100], BOTH);
        let target = memory(&pair.server_domain, &[0; 100]);
        pair.server.rdma_read(OpToken(1), smallvec![target], region.range()).unwrap();
        pair.server.send_copy(b"request", b"").unwrap();
        pair.server.flush().unwrap();
        // The message ends the call, so the answer to the read is queued.
        expect_message(&mut pair.client);
        drop(region);
        // These leave before the flush, together with the answer.
        for _ in 0..3 {
            let _ = pair.client.send_copy(b"reply", &[0; 16 << 10]);
        }
        let mut next = || match flushes {
            true => pair.client.flush(),
            false => pair.client.recv().map(|received| assert!(received.is_none())),
        };
        let error = next().unwrap_err();
        assert!(matches!(error, TransportError::System { .. }), "{error}");
        assert!(matches!(next(), Err(TransportError::Closed)), "it was said already");
    }
}

// [TCP-7]
#[test]
fn peer_that_stops_reading_fills_a_bounded_queue_and_nothing_is_lost() {
    let mut pair = pair();
    let payload = pattern(6, 16 * 1024);
    let mut sent = 0u32;
    loop {
        match pair.server.send_copy(&sent.to_le_bytes(), &payload) {
            Ok(()) => sent += 1,
            Err(PostError::Full) => {
                let before = pair.server.counters().bytes_sent;
                pair.server.flush().unwrap();
                if pair.server.counters().bytes_sent == before {
                    break;
                }
            }
            Err(error) => panic!("{error}"),
        }
    }
    assert!(pair.server.wants_flush());
    // Twice the socket buffers that the kernel grants, and the queue of 2 MiB.
    assert!(sent < 512, "{sent} messages of 16 KiB were taken");
    for _ in 0..sent {
        while pair.client.recv().unwrap().is_none() {
            pair.server.flush().unwrap();
        }
        assert!(pair.client.payload().to_vec() == payload);
        pair.client.recv_done();
    }
    assert!(!pair.server.wants_flush());
}

// [PROV-55]
#[test]
fn wait_that_spins_ends_when_there_is_room() {
    for wait in [WaitPolicy::Busy, WaitPolicy::Adaptive] {
        let (mut raw, mut endpoint, _domain) = raw_client(&ConnectParams { wait, ..params() });
        // Both ends are this thread, beside which a spin would never pay.
        endpoint.believe_peer_is_elsewhere();
        let payload = vec![0; 16 << 10];
        let blocked_at = loop {
            let before = endpoint.counters().bytes_sent;
            while endpoint.send_copy(b"h", &payload).is_ok() {}
            endpoint.flush().unwrap();
            if endpoint.counters().bytes_sent == before {
                break before;
            }
        };
        // The peer takes it all after the flush that `wait` begins with.
        let mut taken = vec![0; usize::try_from(blocked_at).unwrap()];
        raw.read_exact(&mut taken).unwrap();
        let begin = Instant::now();
        endpoint.wait_for_news(Some(HANG), None).unwrap();
        assert!(begin.elapsed() < HANG, "{wait:?}: no room although the peer takes");
        endpoint.send_copy(b"h", &payload).unwrap();
    }
}

// [LIMIT-8]
#[test]
fn messages_behind_a_write_that_has_left_in_part_count_as_unsent() {
    let mut pair = pair();
    let size = 8 << 20;
    let region = region(&pair.client_domain, &vec![0; size], BOTH);
    let source = memory(&pair.server_domain, &vec![1; size]);
    pair.server.rdma_write(OpToken(1), smallvec![source], region.range(), None).unwrap();
    pair.server.flush().unwrap();
    assert!(pair.server.wants_flush(), "the socket took all of it");
    let payload = [0; 16 << 10];
    for _ in 0..10 {
        pair.server.send_copy(b"reply", &payload).unwrap();
    }
    assert!(pair.server.unsent_bytes() >= 10 * payload.len(), "{} bytes", pair.server.unsent_bytes());
    // Of a message that has left in part the rest counts.
    while pair.server.wants_flush() {
        assert!(pair.client.recv().is_ok());
        let before = pair.server.unsent_bytes();
        pair.server.flush().unwrap();
        assert!(pair.server.unsent_bytes() <= before);
    }
    assert_eq!(pair.server.unsent_bytes(), 0);
}

// [TCP-40]
#[test]
fn flood_of_empty_writes_lets_others_work() {
    let (mut raw, mut endpoint, domain) = raw_client(&params());
    let region = region(&domain, &[0], BOTH);
    let range = RemoteRange { len: 0, ..region.range() };
    let flood: Vec<u8> = write(range, None, &[]).repeat(4000);
    let bytes = [flood, send(b"end", b"")].concat();
    raw.write_all(&bytes).unwrap();
    let mut rounds = 0;
    while endpoint.recv().unwrap().is_none() {
        rounds += 1;
        let all_here = endpoint.counters().bytes_received == bytes.len() as u64;
        assert!(!(all_here && endpoint.arm()), "armed with frames to deal with");
    }
    assert!(rounds >= 4000 / 256, "{rounds} rounds");
}

// [TCP-40] How much the kernel has is not for a test to choose.
#[test]
fn receive_is_bounded_before_and_after_a_turn_is_set() {
    let mut pair = pair();
    assert_eq!(pair.server.input.turn_max, 1 << 20);
    for (asked, turn) in
        [(0, 1), (1, 1), ((1 << 20) - 1, (1 << 20) - 1), (1 << 20, 1 << 20), (usize::MAX, 1 << 20)]
    {
        pair.server.set_turn(asked);
        assert_eq!(pair.server.input.turn_max, turn);
    }
}

#[test]
fn dropped_endpoint_gives_the_callers_memory_back() {
    let mut pair = pair();
    let source = memory(&pair.server_domain, &vec![0; 8 << 20]);
    let target = memory(&pair.server_domain, &[0; 8]);
    let region = region(&pair.client_domain, &vec![0; 8 << 20], BOTH);
    pair.server.rdma_write(OpToken(1), smallvec![source.clone()], region.range(), None).unwrap();
    let few = region.range().slice(0, 8).unwrap();
    pair.server.rdma_read(OpToken(2), smallvec![target.clone()], few).unwrap();
    pair.server.flush().unwrap();
    assert!(Arc::strong_count(source.memory()) > 1);
    drop(pair.server);
    assert_eq!(Arc::strong_count(source.memory()), 1);
    assert_eq!(Arc::strong_count(target.memory()), 1);
}

// [TCP-6]
#[test]
fn idle_endpoint_holds_no_buffers() {
    let mut pair = pair();
    for size in [1, 16 * 1024] {
        pair.client.send_copy(b"request", &pattern(0, size)).unwrap();
        pair.client.flush().unwrap();
        expect_message(&mut pair.server);
        pair.server.send_copy(b"reply", &pattern(0, size)).unwrap();
        pair.server.flush().unwrap();
        assert!(pair.server.recv().unwrap().is_none());
        assert!(pair.server.held_bytes() > 8 << 10);
        assert!(pair.server.arm());
        assert!(pair.server.held_bytes() <= 8 << 10, "{}", pair.server.held_bytes());
    }
}

// [TCP-42]
#[test]
fn endpoint_asleep_in_a_frame_holds_little_more_than_what_has_come() {
    let payload = pattern(1, 16 << 10);
    let message = send(b"head", &payload);
    for (come, most) in [(1, 1 << 10), (5, 1 << 10), (8 << 10, 8 << 10), ((8 << 10) + 1, usize::MAX)] {
        let (mut raw, mut endpoint, _domain) = raw_client(&params());
        for round in 0..2 {
            raw.write_all(&message[..come]).unwrap();
            let expected = (round * message.len() + come) as u64;
            while endpoint.counters().bytes_received < expected {
                endpoint.wait(Some(HANG)).unwrap();
                assert!(endpoint.recv().unwrap().is_none());
            }
            assert!(endpoint.arm());
            assert!(endpoint.held_bytes() <= most, "{come}: {}", endpoint.held_bytes());
            raw.write_all(&message[come..]).unwrap();
            assert_eq!(expect_message(&mut endpoint), (b"head".to_vec(), payload.clone()), "{come}");
        }
    }
}
