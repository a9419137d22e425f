//! Messages and RDMA between two endpoints.

use smallvec::smallvec;

use super::super::super::conformance::mapped::MappedFile;
use super::super::super::{HeapMemory, LocalSegments, PostError, RegionError};
use super::*;

#[test]
fn message_of_each_size_arrives_whole_and_in_order() {
    let mut pair = pair();
    let sizes = [0, 1, 4, 4095, 4096, 4097, 16_383, 16_384];
    for (index, size) in sizes.into_iter().enumerate() {
        let head = pattern(index, 1 + index * 15);
        pair.client.send_copy(&head, &pattern(index, size)).unwrap();
    }
    pair.client.flush().unwrap();
    for (index, size) in sizes.into_iter().enumerate() {
        let (head, payload) = expect_message(&mut pair.server);
        assert_eq!(head, pattern(index, 1 + index * 15));
        assert_eq!(payload, pattern(index, size));
    }
    assert!(pair.server.recv().unwrap().is_none());
}

#[test]
fn message_sent_in_place_out_of_order_arrives_in_order_of_send() {
    let mut pair = pair();
    let slots: Vec<_> = (0..4).map(|_| pair.server.reserve(100).unwrap()).collect();
    for (index, slot) in slots.iter().enumerate() {
        assert!(slot.payload_capacity >= 100);
        pair.server.slot_payload(slot).write_from(0, &pattern(index, 100));
    }
    for (index, slot) in slots.into_iter().enumerate().rev() {
        if index == 2 {
            pair.server.cancel_send(slot);
        } else {
            pair.server.send(slot, b"h", 10 * index).unwrap();
        }
    }
    pair.server.flush().unwrap();
    for index in [3, 1, 0] {
        assert_eq!(expect_message(&mut pair.client).1, pattern(index, 10 * index));
    }
}

#[test]
fn send_past_its_limits_is_invalid_and_frees_the_slot() {
    let mut pair = pair();
    let max = pair.client.capabilities().send_payload_max as usize;
    assert_eq!(max, 16 * 1024);
    assert!(matches!(pair.client.reserve(max + 1), Err(PostError::Invalid(_))));
    for _ in 0..1000 {
        let slot = pair.client.reserve(max).unwrap();
        assert!(matches!(pair.client.send(slot, &[0; 113], 0), Err(PostError::Invalid(_))));
        let slot = pair.client.reserve(max).unwrap();
        assert!(matches!(pair.client.send(slot, b"", 0), Err(PostError::Invalid(_))));
        let slot = pair.client.reserve(max).unwrap();
        assert!(matches!(pair.client.send(slot, b"h", max + 1), Err(PostError::Invalid(_))));
    }
    pair.client.send_copy(&[7; 112], &vec![1; max]).unwrap();
    pair.client.flush().unwrap();
    assert_eq!(expect_message(&mut pair.server), (vec![7; 112], vec![1; max]));
}

#[test]
fn write_of_each_size_lands_before_the_message_after_it() {
    let mut pair = pair();
    let region = region(&pair.client_domain, &vec![0xee; 3 << 20], BOTH);
    for (round, size) in [0, 1, 31, 4096, 65_536, 1 << 20, (1 << 20) + 1].into_iter().enumerate() {
        let data = pattern(round, size);
        let source = memory(&pair.server_domain, &data);
        let target = region.range().slice(17, size as u64).unwrap();
        let posted = pair.server.rdma_write(OpToken(size as u64), smallvec![source], target, None).unwrap();
        assert_eq!(posted, Posted::Pending);
        pair.server.send_copy(b"done", &[]).unwrap();
        let mut arrived = false;
        while !arrived {
            pair.server.flush().unwrap();
            arrived = pair.client.recv().unwrap().is_some();
        }
        let mut seen = vec![0; size];
        region.memory().span().read_into(17, &mut seen);
        assert!(seen == data, "{size}");
        let completion = pair.server.poll_completion().unwrap();
        assert_eq!(completion.token, OpToken(size as u64));
        completion.result.unwrap();
    }
    let mut around = [0; 17];
    region.memory().span().read_into(0, &mut around);
    assert_eq!(around, [0xee; 17]);
}

#[test]
fn write_with_immediate_delivers_value_and_size_in_order() {
    let mut pair = pair();
    let region = region(&pair.client_domain, &[0; 100_000], BOTH);
    for (data, size) in [(0, 0), (7, 1), (u32::MAX, 100_000)] {
        let source = memory(&pair.server_domain, &pattern(1, size));
        let target = region.range().slice(0, size as u64).unwrap();
        pair.server.rdma_write(OpToken(0), smallvec![source], target, Some(data)).unwrap();
        pair.server.send_copy(b"after", &[]).unwrap();
        pair.server.flush().unwrap();
        match receive(&mut pair.client).unwrap() {
            Received::Immediate { data: seen, size: bytes } => {
                assert_eq!((seen, bytes as usize), (data, size))
            }
            other => panic!("not an immediate: {other:?}"),
        }
        let mut seen = vec![0; size];
        region.memory().span().read_into(0, &mut seen);
        assert!(seen == pattern(1, size));
        expect_message(&mut pair.client);
        pair.server.poll_completion().unwrap().result.unwrap();
    }
}

#[test]
fn write_gathers_and_read_scatters_many_segments() {
    let mut pair = pair();
    let data = pattern(5, 256 * 1000);
    let whole = memory(&pair.server_domain, &data);
    let parts: LocalSegments = (0..256).map(|part| whole.slice(part * 1000, 1000).unwrap()).collect();
    let region = region(&pair.client_domain, &vec![0; data.len()], BOTH);
    pair.server.rdma_write(OpToken(1), parts, region.range(), None).unwrap();
    complete(&mut pair).result.unwrap();

    let back = memory(&pair.server_domain, &vec![0; data.len()]);
    // Uneven pieces, one empty.
    let mut parts = LocalSegments::new();
    let mut at = 0;
    for part in 0..256 {
        let len = if part == 255 { data.len() - at } else { (part * 7) % 1500 };
        parts.push(back.slice(at, len).unwrap());
        at += len;
    }
    pair.server.rdma_read(OpToken(2), parts, region.range()).unwrap();
    let completion = complete(&mut pair);
    assert_eq!(completion.token, OpToken(2));
    completion.result.unwrap();
    assert!(back.span().to_vec() == data);
}

#[test]
fn read_of_each_size_brings_the_bytes() {
    let mut pair = pair();
    let data = pattern(9, 3 << 20);
    let region = region(&pair.client_domain, &data, Access::REMOTE_READ);
    for size in [1, 4096, 65_536, 256 << 10, (256 << 10) + 1, 3 << 20] {
        let target = memory(&pair.server_domain, &vec![0; size]);
        let range = RemoteRange { offset: (data.len() - size) as u64, len: size as u64, ..region.range() };
        pair.server.rdma_read(OpToken(3), smallvec![target.clone()], range).unwrap();
        complete(&mut pair).result.unwrap();
        assert!(target.span().to_vec() == data[data.len() - size..], "{size}");
    }
}

#[test]
fn read_of_nothing_completes_when_the_peer_has_checked_it() {
    let mut pair = pair();
    let region = region(&pair.client_domain, &[0; 1], BOTH);
    let range = region.range().slice(1, 0).unwrap();
    assert_eq!(pair.server.rdma_read(OpToken(5), smallvec![], range).unwrap(), Posted::Pending);
    assert!(pair.server.poll_completion().is_none());
    complete(&mut pair).result.unwrap();
}

#[test]
fn message_passes_between_the_parts_of_a_large_response() {
    let mut pair = pair();
    let data = pattern(2, 4 << 20);
    let region = region(&pair.client_domain, &data, BOTH);
    let target = memory(&pair.server_domain, &vec![0; data.len()]);
    pair.server.rdma_read(OpToken(3), smallvec![target.clone()], region.range()).unwrap();
    pair.server.flush().unwrap();
    // The response fills the socket and waits for room …
    while !pair.client.wants_flush() {
        assert!(pair.client.recv().unwrap().is_none());
    }
    // … while a message is queued: it must not wait for the end.
    pair.client.send_copy(b"quick", &[]).unwrap();
    while pair.server.recv().unwrap().is_none() {
        pair.client.flush().unwrap();
    }
    assert!(pair.server.poll_completion().is_none(), "the message came after all data");
    complete(&mut pair).result.unwrap();
    assert!(target.span().to_vec() == data);
}

// [TCP-15]
#[test]
fn rdma_past_its_limits_is_refused() {
    let mut pair = pair_with(ConnectParams { rdma_depth: 3, ..params() }, params());
    let region = region(&pair.client_domain, &[0; 300], BOTH);
    let source = memory(&pair.server_domain, &[0; 300]);
    let one = || -> LocalSegments { smallvec![source.slice(0, 1).unwrap()] };
    let byte = region.range().slice(0, 1).unwrap();
    let short = region.range().slice(0, 299).unwrap();
    assert!(matches!(
        pair.server.rdma_write(OpToken(0), smallvec![source.clone()], short, None),
        Err(PostError::Invalid(_))
    ));
    let many: LocalSegments = (0..257).map(|at| source.slice(at, 1).unwrap()).collect();
    let range = region.range().slice(0, 257).unwrap();
    assert!(matches!(pair.server.rdma_write(OpToken(0), many, range, None), Err(PostError::Invalid(_))));

    for _ in 0..3 {
        pair.server.rdma_write(OpToken(0), one(), byte, None).unwrap();
    }
    assert!(matches!(pair.server.rdma_write(OpToken(0), one(), byte, None), Err(PostError::Full)));
    assert!(matches!(pair.server.rdma_read(OpToken(0), one(), byte), Err(PostError::Full)));
    pair.server.flush().unwrap();
    // Done, but not polled: the depth counts what the caller has not seen.
    assert!(matches!(pair.server.rdma_read(OpToken(0), one(), byte), Err(PostError::Full)));
    pair.server.poll_completion().unwrap();
    pair.server.rdma_read(OpToken(0), one(), byte).unwrap();
}

// [TCP-12] [TCP-27] [TCP-41]
#[test]
fn write_from_a_truncated_file_sends_zeros_keeps_framing_and_says_so() {
    for kept in [0, 4096, 5000, 300_000, 399_999, 400_000] {
        let mut pair = pair();
        let file = MappedFile::new(400_000);
        let mapped = MemoryRef::new(Arc::clone(&file) as _);
        file.truncate(kept);

        let region = region(&pair.client_domain, &[0xee; 400_000], BOTH);
        pair.server.send_copy(b"before", b"x").unwrap();
        pair.server.rdma_write(OpToken(8), smallvec![mapped], region.range(), None).unwrap();
        pair.server.send_copy(b"after", b"y").unwrap();
        pair.server.flush().unwrap();
        assert_eq!(expect_message(&mut pair.client).0, b"before");
        let mut head = None;
        while head.is_none() {
            pair.server.flush().unwrap();
            head = pair.client.recv().unwrap();
        }
        assert_eq!(pair.client.payload().to_vec(), b"y");
        let written = pair.server.poll_completion().unwrap().result;
        assert_eq!(written.is_err_and(|error| error.is_local_fault()), kept < 400_000);

        let found = region.memory().span().slice(0, 400_000).unwrap().to_vec();
        let (there, gone) = found.split_at(usize::try_from(kept).unwrap());
        assert!(there == &MappedFile::content(400_000)[..there.len()], "{kept}");
        assert!(gone.iter().all(|byte| *byte == 0), "{kept}");
    }
}

#[test]
fn flush_of_a_file_that_is_gone_keeps_to_its_turn() {
    const TURN: usize = 32 << 10;
    let mut pair = pair();
    let size = 8 << 20;
    let file = MappedFile::new(size);
    let mapped = MemoryRef::new(Arc::clone(&file) as _);
    file.truncate(0);
    let region = region(&pair.client_domain, &vec![0xee; size], BOTH);
    pair.server.set_turn(TURN);
    pair.server.rdma_write(OpToken(1), smallvec![mapped], region.range(), None).unwrap();
    while pair.server.wants_flush() {
        let before = pair.server.counters().bytes_sent;
        pair.server.flush().unwrap();
        let sent = pair.server.counters().bytes_sent - before;
        // The last page may begin just before its end.
        assert!(sent < (TURN + 2 * 4096) as u64, "{sent} bytes in one flush");
        assert!(pair.client.recv().unwrap().is_none());
    }
    assert!(pair.server.poll_completion().unwrap().result.unwrap_err().is_local_fault());
}

// [PROV-82] [PROV-83]
#[test]
fn only_the_conditional_message_with_missing_data_is_taken_back() {
    for kept in [0, 5000, 399_999, 400_000] {
        let mut pair = pair();
        let file = MappedFile::new(400_000);
        let mapped = MemoryRef::new(Arc::clone(&file) as _);
        file.truncate(kept);
        let region = region(&pair.client_domain, &[0; 400_000], BOTH);
        let conditional = |pair: &mut Pair, token, head: &[u8]| {
            let slot = pair.server.reserve(0).unwrap();
            pair.server.send_if_whole(OpToken(token), slot, head, 0).unwrap();
        };
        conditional(&mut pair, 1, b"before");
        pair.server.rdma_write(OpToken(2), smallvec![mapped.clone()], region.range(), None).unwrap();
        conditional(&mut pair, 3, b"behind");
        pair.server.send_copy(b"always", b"").unwrap();
        let mut heads = Vec::new();
        while heads.last().is_none_or(|last| last != b"always") {
            pair.server.flush().unwrap();
            if let Some(Received::Message { head, .. }) = pair.client.recv().unwrap() {
                heads.push(head.as_bytes().to_vec());
            }
        }
        let mut results = std::collections::BTreeMap::new();
        while let Some(completion) = pair.server.poll_completion() {
            let result = completion.result.map_err(|error| assert!(error.is_local_fault(), "{error}"));
            results.insert(completion.token.0, result);
        }
        if kept == 400_000 {
            assert_eq!(heads, [b"before", b"behind", b"always"]);
            assert_eq!(results.into_values().collect::<Vec<_>>(), [Ok(()); 3]);
            continue;
        }
        assert_eq!(heads, [b"before", b"always"], "{kept}");
        assert_eq!(results.into_iter().collect::<Vec<_>>(), [(1, Ok(())), (2, Err(())), (3, Err(()))]);
        // The write has completed, and nobody has been told so when the message is queued.
        pair.server.rdma_write(OpToken(4), smallvec![mapped], region.range(), None).unwrap();
        while pair.server.wants_flush() {
            pair.server.flush().unwrap();
            assert!(pair.client.recv().unwrap().is_none());
        }
        conditional(&mut pair, 5, b"late");
        let failed = std::iter::from_fn(|| pair.server.poll_completion());
        let failed = failed.map(|it| (it.token.0, it.result.is_err())).collect::<Vec<_>>();
        assert_eq!(failed, [(4, true), (5, true)], "{kept}");
        conditional(&mut pair, 6, b"next");
        pair.server.flush().unwrap();
        assert_eq!(expect_message(&mut pair.client).0, b"next");
    }
}

#[test]
fn memory_that_may_fault_is_no_target() {
    let mut pair = pair();
    let mapped = MemoryRef::new(MappedFile::new(4096));
    let refused = pair.client_domain.register(mapped.clone(), BOTH);
    assert!(matches!(refused, Err(RegionError::Unsupported { .. })));
    let region = region(&pair.client_domain, &[0; 4096], BOTH);
    let refused = pair.server.rdma_read(OpToken(0), smallvec![mapped], region.range());
    assert!(matches!(refused, Err(PostError::Invalid(_))));
}

#[test]
#[ignore = "needs ipv6"]
fn ipv6_carries_messages_too() {
    let domain = TcpDomain::new();
    let address = Address::Tcp(SocketAddr::from((std::net::Ipv6Addr::LOCALHOST, 0)));
    let mut listener = domain.listen_tcp(&address, &params()).unwrap();
    let address = listener.address().clone();
    let (mut server, mut client) = std::thread::scope(|scope| {
        let client = scope.spawn(|| domain.connect_tcp(&address, &params(), HANG).unwrap());
        (accept(&mut listener), client.join().unwrap())
    });
    client.send_copy(b"six", b"x").unwrap();
    client.flush().unwrap();
    assert_eq!(expect_message(&mut server), (b"six".to_vec(), b"x".to_vec()));
}

#[test]
fn two_connections_of_a_domain_share_its_regions() {
    let (domain, client_domain) = (TcpDomain::new(), TcpDomain::new());
    let mut listener = domain.listen_tcp(&loopback(), &params()).unwrap();
    let address = listener.address().clone();
    let region = region(&client_domain, &[0; 2], BOTH);
    for value in 0..2 {
        let (mut server, mut client) = std::thread::scope(|scope| {
            let client = scope.spawn(|| client_domain.connect_tcp(&address, &params(), HANG).unwrap());
            (accept(&mut listener), client.join().unwrap())
        });
        let source = MemoryRef::new(Arc::new(HeapMemory::allocate(1).unwrap())).slice(0, 1).unwrap();
        source.span().write_from(0, &[value + 1]);
        let target = region.range().slice(u64::from(value), 1).unwrap();
        server.rdma_write(OpToken(0), smallvec![source], target, Some(1)).unwrap();
        server.flush().unwrap();
        assert!(matches!(receive(&mut client).unwrap(), Received::Immediate { .. }));
    }
    assert_eq!(region.memory().span().to_vec(), [1, 2]);
}
