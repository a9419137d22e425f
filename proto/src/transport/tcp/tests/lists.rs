//! RDMA over many ranges in one frame: what it costs, what ends it, what is refused.

use super::super::super::{PeerFault, PostError, RegionFault, RegionKey};
use super::super::frame::{FrontBytes, RANGE_SIZE, encode_ranges};
use super::super::{LIST_RANGES_MAX, READ_LISTS_MAX};
use super::*;

/// `count` pieces of `size` bytes with gaps as large between them.
fn pieces(region: &Region, count: usize, size: usize) -> Vec<RemoteRange> {
    let piece = |index: usize| region.range().slice((2 * index * size) as u64, size as u64).unwrap();
    (0..count).map(piece).collect()
}

fn scattered(data: &[u8], count: usize, size: usize) -> Vec<u8> {
    let mut expected = vec![0; 2 * count * size];
    for index in 0..count {
        expected[2 * index * size..][..size].copy_from_slice(&data[index * size..][..size]);
    }
    expected
}

fn list_frame(write: bool, ranges: &[RemoteRange], len: u32) -> Vec<u8> {
    let count = u16::try_from(ranges.len()).unwrap();
    let frame = if write { Frame::WriteList { count, len } } else { Frame::ReadList { id: 0, count, len } };
    let mut bytes = FrontBytes::from_buf(frame.encode());
    encode_ranges(ranges, &mut bytes);
    bytes.into_vec()
}

// [TCP-14] [TCP-35] [TCP-36]
#[test]
fn list_of_many_ranges_is_one_frame_and_one_completion_each_way() {
    for size in [1, 64, 1023, 1024, 4096] {
        for count in [1, 2, 128, usize::from(LIST_RANGES_MAX)] {
            let mut pair = pair();
            let region = region(&pair.client_domain, &vec![0; 2 * count * size], BOTH);
            let ranges = pieces(&region, count, size);
            let data = pattern(count, count * size);
            let local = memory(&pair.server_domain, &data);
            let before = pair.server.counters().bytes_sent;
            let posted = pair.server.write_list(OpToken(1), &local, &ranges).unwrap();
            assert_eq!((posted.ranges, posted.pending), (count, 1));
            complete(&mut pair).result.unwrap();
            let overhead = if count == 1 { HEADER_SIZE } else { HEADER_SIZE + count * RANGE_SIZE };
            assert_eq!(pair.server.counters().bytes_sent - before, (overhead + data.len()) as u64);
            pair.server.send_copy(b"behind", b"").unwrap();
            pair.server.flush().unwrap();
            expect_message(&mut pair.client);
            assert!(region.memory().span().to_vec() == scattered(&data, count, size), "{count} of {size}");

            let back = memory(&pair.server_domain, &vec![0; data.len()]);
            let posted = pair.server.read_list(OpToken(2), &back, &ranges).unwrap();
            assert_eq!((posted.ranges, posted.pending), (count, 1));
            complete(&mut pair).result.unwrap();
            assert!(back.span().to_vec() == data, "{count} of {size}");
        }
    }
}

// [TCP-5]
#[test]
fn list_beyond_what_one_frame_takes_is_taken_in_part() {
    let mut pair = pair();
    let most = usize::from(LIST_RANGES_MAX);
    let region = region(&pair.client_domain, &vec![0; 4 * most], BOTH);
    let local = memory(&pair.server_domain, &vec![7; 2 * most]);
    for (count, taken) in [(most - 1, most - 1), (most, most), (most + 1, most)] {
        let posted = pair.server.write_list(OpToken(1), &local, &pieces(&region, count, 1)).unwrap();
        assert_eq!(posted.ranges, taken);
        complete(&mut pair).result.unwrap();
    }
    let empty = RemoteRange { len: 0, ..region.range() };
    let too_long = RemoteRange { len: 2 * most as u64 + 1, ..region.range() };
    for ranges in [&[][..], &[empty, empty], &[too_long]] {
        assert!(matches!(pair.server.write_list(OpToken(1), &local, ranges), Err(PostError::Invalid(_))));
    }
}

// [TCP-37]
#[test]
fn reads_of_lists_beyond_their_bound_are_refused_by_both_sides() {
    let mut pair = pair();
    let region = region(&pair.client_domain, &[0; 64], BOTH);
    let ranges = pieces(&region, 2, 8);
    let local = memory(&pair.server_domain, &[0; 16]);
    for _ in 0..READ_LISTS_MAX {
        pair.server.read_list(OpToken(1), &local, &ranges).unwrap();
    }
    assert!(matches!(pair.server.read_list(OpToken(1), &local, &ranges), Err(PostError::Full)));
    for _ in 0..READ_LISTS_MAX {
        complete(&mut pair).result.unwrap();
    }

    let (mut raw, mut endpoint, domain) = raw_client(&params());
    let region = super::region(&domain, &vec![0; 8 << 20], BOTH);
    let halves = [region.range().slice(0, 4 << 20).unwrap(), region.range().slice(4 << 20, 4 << 20).unwrap()];
    let frame = list_frame(false, &halves, 8 << 20);
    for _ in 0..READ_LISTS_MAX {
        raw.write_all(&frame).unwrap();
    }
    raw.write_all(&frame).unwrap();
    let error = failure(&mut endpoint);
    assert!(matches!(error, TransportError::Peer(PeerFault::Malformed { .. })), "{error}");
}

// [TCP-37] A read whose last bytes are queued is not answered yet.
#[test]
fn short_reads_of_lists_beyond_their_bound_end_the_connection() {
    for (count, is_taken) in [(READ_LISTS_MAX, true), (READ_LISTS_MAX + 1, false)] {
        let (mut raw, mut endpoint, domain) = raw_client(&params());
        let region = region(&domain, &[0; 64], BOTH);
        raw.write_all(&list_frame(false, &pieces(&region, 2, 8), 16).repeat(count)).unwrap();
        endpoint.wait(Some(HANG)).unwrap();
        match endpoint.recv() {
            Ok(None) => assert!(is_taken, "{count} lists"),
            Ok(Some(_)) => panic!("nothing was sent"),
            Err(error) => {
                let is_malformed = matches!(error, TransportError::Peer(PeerFault::Malformed { .. }));
                assert!(!is_taken && is_malformed, "{count} lists: {error}");
            }
        }
    }
}

// [TCP-11] [TCP-23] [TCP-34]: nothing is placed before all ranges were checked.
#[test]
fn list_with_one_range_that_is_refused_touches_no_memory() {
    for write in [true, false] {
        let others: [fn(&Region) -> RemoteRange; 3] = [
            |_| RemoteRange { key: RegionKey(5), offset: 0, len: 8 },
            |region| RemoteRange { offset: 60, len: 8, ..region.range() },
            |region| RemoteRange { offset: u64::MAX - 3, len: 8, ..region.range() },
        ];
        for other in others {
            let (mut raw, mut endpoint, domain) = raw_client(&params());
            let region = region(&domain, &[0xee; 64], BOTH);
            let ranges = [region.range().slice(0, 8).unwrap(), other(&region)];
            let mut bytes = list_frame(write, &ranges, 16);
            bytes.extend_from_slice(&[1; 16]);
            raw.write_all(&bytes).unwrap();
            let error = failure(&mut endpoint);
            assert!(matches!(error, TransportError::Peer(PeerFault::Region(_))), "{error}");
            assert_eq!(region.memory().span().to_vec(), [0xee; 64]);
        }
        let (mut raw, mut endpoint, domain) = raw_client(&params());
        let access = if write { Access::REMOTE_READ } else { Access::REMOTE_WRITE };
        let region = region(&domain, &[0xee; 64], access);
        let ranges = [region.range().slice(0, 8).unwrap(), region.range().slice(16, 8).unwrap()];
        raw.write_all(&[list_frame(write, &ranges, 16), vec![1; 16]].concat()).unwrap();
        let error = failure(&mut endpoint);
        let expected = |fault: &PeerFault| matches!(fault, PeerFault::Region(RegionFault::Access { .. }));
        assert!(matches!(&error, TransportError::Peer(fault) if expected(fault)), "{error}");
    }
}

// [TCP-24]
#[test]
fn region_dropped_while_a_list_arrives_gets_nothing_more() {
    for size in [100, 10_000] {
        for first in [0, 1, 3 * size - 1, 3 * size, 9 * size] {
            let (mut raw, mut endpoint, domain) = raw_client(&params());
            let region = region(&domain, &vec![0; 20 * size], BOTH);
            let kept = region.memory().clone();
            let head = list_frame(true, &pieces(&region, 10, size), u32::try_from(10 * size).unwrap());
            let bytes = [head.clone(), vec![1; 10 * size]].concat();
            raw.write_all(&bytes[..head.len() + first]).unwrap();
            while endpoint.counters().bytes_received < (head.len() + first) as u64 {
                endpoint.wait(Some(HANG)).unwrap();
                assert!(endpoint.recv().unwrap().is_none());
            }
            drop(region);
            let before = kept.span().to_vec();
            assert_eq!(before.iter().filter(|byte| **byte == 1).count(), first);
            let mut rest = bytes[head.len() + first..].to_vec();
            rest.extend_from_slice(&Frame::Send { head_len: 4, payload_len: 0 }.encode());
            rest.extend_from_slice(b"next");
            raw.write_all(&rest).unwrap();
            assert_eq!(expect_message(&mut endpoint).0, b"next");
            assert!(kept.span().to_vec() == before, "{size} {first}");
        }
    }
}

// [TCP-24]
#[test]
fn list_of_two_regions_is_discarded_behind_the_one_that_ended() {
    for size in [100, 10_000] {
        let (mut raw, mut endpoint, domain) = raw_client(&params());
        let [dropped, live] = [(); 2].map(|()| region(&domain, &vec![0; size], BOTH));
        let kept = dropped.memory().clone();
        let head = list_frame(true, &[dropped.range(), live.range()], u32::try_from(2 * size).unwrap());
        let first = size / 2;
        raw.write_all(&[head.clone(), vec![1; first]].concat()).unwrap();
        while endpoint.counters().bytes_received < (head.len() + first) as u64 {
            endpoint.wait(Some(HANG)).unwrap();
            assert!(endpoint.recv().unwrap().is_none());
        }
        drop(dropped);
        // What is left of the one arrives, and later the other's.
        for part in [size - first, size] {
            let before = endpoint.counters().bytes_received;
            raw.write_all(&vec![1; part]).unwrap();
            while endpoint.counters().bytes_received < before + part as u64 {
                endpoint.wait(Some(HANG)).unwrap();
                assert!(endpoint.recv().unwrap().is_none());
            }
        }
        let next = [&Frame::Send { head_len: 4, payload_len: 0 }.encode()[..], b"next"].concat();
        raw.write_all(&next).unwrap();
        assert_eq!(expect_message(&mut endpoint).0, b"next");
        assert_eq!(kept.span().to_vec().iter().filter(|byte| **byte == 1).count(), first);
        assert!(live.memory().span().to_vec().iter().all(|byte| *byte == 0), "{size}");
    }
}

// [TCP-14] [TCP-35] [TCP-36]: however the stream is cut up.
#[test]
fn lists_that_arrive_in_single_bytes_are_placed() {
    let (mut raw, mut endpoint, domain) = raw_client(&params());
    raw.set_nodelay(true).unwrap();
    let region = region(&domain, &[0; 120], BOTH);
    let ranges = pieces(&region, 6, 10);
    let data = pattern(9, 60);
    let mut bytes = [list_frame(true, &ranges, 60), data.clone()].concat();
    bytes.extend_from_slice(&list_frame(false, &ranges, 60));
    for byte in bytes.chunks(1) {
        let received = endpoint.counters().bytes_received;
        raw.write_all(byte).unwrap();
        while endpoint.counters().bytes_received == received {
            endpoint.wait(Some(HANG)).unwrap();
            assert!(endpoint.recv().unwrap().is_none());
        }
    }
    assert_eq!(region.memory().span().to_vec(), scattered(&data, 6, 10));
    endpoint.flush().unwrap();
    let mut answer = vec![0; HEADER_SIZE + 60];
    raw.read_exact(&mut answer).unwrap();
    let header: [u8; HEADER_SIZE] = answer[..HEADER_SIZE].try_into().unwrap();
    assert_eq!(Frame::decode(&header), Ok(Frame::ReadResponse { id: 0, offset: 0, len: 60 }));
    assert_eq!(&answer[HEADER_SIZE..], data);
}

// Large pieces go where they belong without a copy.
#[test]
fn list_of_large_ranges_is_received_in_place() {
    let mut pair = pair();
    let (count, size) = (128, 4096);
    let region = region(&pair.client_domain, &vec![0; 2 * count * size], BOTH);
    let ranges = pieces(&region, count, size);
    let local = memory(&pair.server_domain, &pattern(0, count * size));
    for round in 0..20 {
        let before = pair.client.counters();
        pair.server.write_list(OpToken(0), &local, &ranges).unwrap();
        pair.server.send_copy(b"reply", &[]).unwrap();
        let (mut completed, mut answered) = (false, false);
        let deadline = Instant::now() + HANG;
        while !(completed && answered) {
            pair.server.flush().unwrap();
            assert!(pair.server.recv().unwrap().is_none());
            completed |= pair.server.poll_completion().is_some();
            answered |= pair.client.recv().unwrap().is_some();
            assert!(Instant::now() < deadline, "round {round}");
        }
        let copied = pair.client.counters().bytes_copied - before.bytes_copied;
        // Beside what came along with the headers, a little of each receive.
        assert!(round == 0 || copied <= 16 << 10, "{copied} bytes copied in round {round}");
    }
}
