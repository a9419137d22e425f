//! Messages sent from where their payload lies, and messages that leave before the flush.

use super::super::super::{PostError, Span};
use super::*;

const PAYLOAD_MAX: usize = 64 << 10;
/// From here on the provider wants payloads gathered.
const GATHERED_MIN: usize = 16 << 10;

fn wide_pair() -> Pair {
    let params =
        ConnectParams { recv_payload_max: u32::try_from(PAYLOAD_MAX).unwrap(), recv_depth: 32, ..params() };
    pair_with(params, params)
}

// [PROV-43]
#[test]
fn gathering_is_preferred_from_its_least_size_to_the_largest_payload() {
    let mut pair = wide_pair();
    for (len, preferred) in [
        (0, Ok(false)),
        (GATHERED_MIN - 1, Ok(false)),
        (GATHERED_MIN, Ok(true)),
        (PAYLOAD_MAX, Ok(true)),
        (PAYLOAD_MAX + 1, Err(())),
    ] {
        assert_eq!(pair.client.prefers_gathered(len).map_err(|_| ()), preferred, "{len}");
    }
    pair.client.close();
    assert!(matches!(pair.client.prefers_gathered(PAYLOAD_MAX), Err(PostError::Closed)));
    assert!(matches!(pair.client.send_gathered(b"head", &[]), Err(PostError::Closed)));
}

// [PROV-43] [PROV-51] [PROV-2]
#[test]
fn gathered_message_of_each_size_arrives_whole_in_one_call() {
    let mut pair = wide_pair();
    for len in [GATHERED_MIN, GATHERED_MIN + 1, PAYLOAD_MAX - 1, PAYLOAD_MAX] {
        let mut data = pattern(len, len);
        let expected = data.clone();
        let before = pair.client.counters();
        assert!(pair.client.prefers_gathered(len).unwrap());
        let (first, second) = data.split_at_mut(len / 3);
        pair.client.send_gathered(b"head", &[Span::from_mut(first), Span::from_mut(second)]).unwrap();
        data.fill(0);
        assert_eq!(pair.client.counters().sends - before.sends, 1);
        assert_eq!(expect_message(&mut pair.server), (b"head".to_vec(), expected), "{len}");
    }
}

// [PROV-43]
#[test]
fn gathered_head_that_cannot_be_is_refused_and_sends_nothing() {
    let mut pair = wide_pair();
    for len in [0, 113] {
        assert!(matches!(pair.client.send_gathered(&vec![1; len], &[]), Err(PostError::Invalid(_))));
    }
    let mut data = vec![0; PAYLOAD_MAX + 1];
    assert!(matches!(
        pair.client.send_gathered(b"head", &[Span::from_mut(&mut data)]),
        Err(PostError::Invalid(_))
    ));
    assert_eq!(pair.client.counters().bytes_sent, 0);
}

// [PROV-43] [PROV-51] [PROV-9]: the memory is the caller's again at once, however little the kernel took.
#[test]
fn gathered_messages_to_a_stalled_peer_arrive_unchanged_later() {
    let mut pair = wide_pair();
    let mut data = vec![0; PAYLOAD_MAX];
    let mut sent = 0;
    loop {
        match pair.client.prefers_gathered(PAYLOAD_MAX) {
            Ok(preferred) => assert!(preferred),
            Err(PostError::Full) => break,
            Err(error) => panic!("{error}"),
        }
        data.copy_from_slice(&pattern(sent, PAYLOAD_MAX));
        pair.client.send_gathered(b"head", &[Span::from_mut(&mut data)]).unwrap();
        data.fill(0xff);
        sent += 1;
        assert!(sent < 1000, "nothing ever fills up");
    }
    assert!(sent > 1 && pair.client.wants_flush());
    // Behind it, in order.
    pair.client.send_copy(b"last", &[]).unwrap();
    for index in 0..sent {
        let message = loop {
            pair.client.flush().unwrap();
            if let Some(received) = pair.server.recv().unwrap() {
                break received;
            }
        };
        assert!(matches!(message, Received::Message { .. }));
        assert_eq!(pair.server.payload().to_vec(), pattern(index, PAYLOAD_MAX), "message {index}");
    }
    pair.client.flush().unwrap();
    assert_eq!(expect_message(&mut pair.server).0, b"last");
    assert!(!pair.client.wants_flush());
}

#[test]
fn gathered_message_with_unkept_rest_ends_connection_with_reason() {
    let mut pair = wide_pair();
    pair.client.link.shared.pool.is_exhausted.store(true, std::sync::atomic::Ordering::Relaxed);
    let mut data = pattern(0, PAYLOAD_MAX);
    let mut sent = 0;
    loop {
        match pair.client.send_gathered(b"head", &[Span::from_mut(&mut data)]) {
            Ok(()) => sent += 1,
            Err(error) => break assert!(matches!(error, PostError::Closed), "{error}"),
        }
        assert!(sent < 1000, "nothing ever fills up");
    }
    let error = pair.client.recv().unwrap_err();
    assert!(error.to_string().contains("keep the rest of a message"), "{error}");
    // The peer sees the end, behind what is whole.
    for _ in 0..sent {
        assert_eq!(expect_message(&mut pair.server).1, data);
    }
    assert!(matches!(failure(&mut pair.server), TransportError::Closed));
}

// [TCP-13]
#[test]
fn messages_leave_early_once_they_are_many_bytes() {
    let mut pair = wide_pair();
    let payload = pattern(0, 4096);
    for _ in 0..7 {
        pair.server.send_copy(b"reply", &payload).unwrap();
        assert_eq!(pair.server.counters().sends, 0);
    }
    pair.server.send_copy(b"reply", &payload).unwrap();
    assert_eq!(pair.server.counters().sends, 1, "32 KiB and more");
    assert!(!pair.server.wants_flush());
    for _ in 0..8 {
        assert_eq!(expect_message(&mut pair.client).1, payload);
    }
}

// [TCP-8]: a peer that stops within a message has delivered those before it.
#[test]
fn half_a_batch_delivers_the_whole_messages_and_waits_for_the_rest() {
    let wide = ConnectParams { recv_payload_max: u32::try_from(PAYLOAD_MAX).unwrap(), ..params() };
    let (mut raw, mut server, _domain) = raw_client(&wide);
    let payload = pattern(3, PAYLOAD_MAX);
    let mut message =
        Frame::Send { head_len: 4, payload_len: u32::try_from(PAYLOAD_MAX).unwrap() }.encode().to_vec();
    message.extend_from_slice(b"head");
    message.extend_from_slice(&payload);
    let half = message.len() / 2;
    let writer = std::thread::spawn({
        let message = message.clone();
        move || {
            raw.write_all(&message).unwrap();
            raw.write_all(&message[..half]).unwrap();
            raw
        }
    });
    assert_eq!(expect_message(&mut server).1, payload);
    let mut raw = writer.join().unwrap();
    assert!(server.recv().unwrap().is_none());
    // What is held for it is a staging buffer, not more.
    assert!(server.held_bytes() <= 2 * (PAYLOAD_MAX + 1024).next_power_of_two(), "{}", server.held_bytes());
    raw.write_all(&message[half..]).unwrap();
    assert_eq!(expect_message(&mut server).1, payload);
}
