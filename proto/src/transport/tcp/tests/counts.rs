//! What the data path costs: system calls and copies, exactly.

use smallvec::smallvec;

use super::super::super::conformance::mapped::MappedFile;
use super::super::Counters;
use super::*;

fn spent(endpoint: &TcpEndpoint, before: Counters) -> (u64, u64, u64) {
    let now = endpoint.counters();
    (now.sends - before.sends, now.recvs - before.recvs, now.polls - before.polls)
}

/// Polls for the endpoint's event as a loop would, and says so to it.
fn event(endpoint: &mut TcpEndpoint) {
    assert!(is_readable(endpoint));
    endpoint.on_event(0, false);
}

// [TCP-10]: request and reply at queue depth 1 are one send and one receive a side.
#[test]
fn round_trip_costs_one_send_and_one_receive_a_side() {
    let mut pair = pair();
    assert!(pair.client.recv().unwrap().is_none());
    for _ in 0..10 {
        let before = (pair.client.counters(), pair.server.counters());

        pair.client.send_copy(b"request", b"1234").unwrap();
        // Nothing can be here before the request has left: asking costs nothing.
        assert!(pair.client.recv().unwrap().is_none());
        pair.client.flush().unwrap();

        event(&mut pair.server);
        assert!(pair.server.recv().unwrap().is_some());
        assert!(pair.server.recv().unwrap().is_none());
        pair.server.send_copy(b"reply", b"1234").unwrap();
        pair.server.flush().unwrap();
        assert!(pair.server.arm());

        pair.client.wait(Some(HANG)).unwrap();
        expect_message(&mut pair.client);
        assert!(pair.client.recv().unwrap().is_none());

        assert_eq!(spent(&pair.server, before.1), (1, 1, 0));
        assert_eq!(spent(&pair.client, before.0), (1, 1, 0));
    }
}

// [TCP-10]: a loop that asks again instead of sleeping has the next request without an event, and sleeps when it came too rarely.
#[test]
fn adaptive_loop_asks_again_until_that_does_not_pay() {
    let params = ConnectParams { wait: WaitPolicy::Adaptive, ..params() };
    let mut pair = pair_with(params, params);
    // Both ends are this thread, beside which a spin would never pay.
    pair.server.believe_peer_is_elsewhere();
    assert!(!pair.server.spin_pays(), "nobody tells it of events");
    for round in 0..3 {
        pair.client.send_copy(b"request", &[]).unwrap();
        pair.client.flush().unwrap();
        event(&mut pair.server);
        expect_message(&mut pair.server);
        assert!(pair.server.recv().unwrap().is_none());
        assert!(pair.server.spin_pays(), "round {round}");
        // One vain look, then sleep.
        assert!(pair.server.recv().unwrap().is_none());
        assert!(pair.server.arm(), "round {round}");
    }
    pair.client.send_copy(b"request", &[]).unwrap();
    pair.client.flush().unwrap();
    event(&mut pair.server);
    expect_message(&mut pair.server);
    assert!(pair.server.recv().unwrap().is_none());
    assert!(!pair.server.spin_pays(), "three vain spins switch it off");
}

#[test]
fn many_small_messages_cost_one_call_each_way() {
    let mut pair = pair();
    let before = (pair.client.counters(), pair.server.counters());
    for _ in 0..60 {
        pair.client.send_copy(b"request", b"1234").unwrap();
    }
    pair.client.flush().unwrap();
    event(&mut pair.server);
    for _ in 0..60 {
        assert!(pair.server.recv().unwrap().is_some());
    }
    assert!(pair.server.recv().unwrap().is_none());
    assert!(pair.server.arm());
    assert_eq!(spent(&pair.client, before.0), (1, 0, 0));
    assert_eq!(spent(&pair.server, before.1), (0, 1, 0));
}

// [TCP-10] [TCP-41]
#[test]
fn reply_that_depends_on_a_mapped_file_alone_costs_one_more_send() {
    let mut pair = pair();
    let size = 64 << 10;
    let region = region(&pair.client_domain, &vec![0; size], BOTH);
    let plain = memory(&pair.server_domain, &vec![1; size]);
    let mapped = MemoryRef::new(MappedFile::new(size));
    for (source, depends, sends) in
        [(&plain, false, 1), (&plain, true, 1), (&mapped, false, 1), (&mapped, true, 2)]
    {
        let before = pair.server.counters();
        pair.server.rdma_write(OpToken(0), smallvec![source.clone()], region.range(), None).unwrap();
        let slot = pair.server.reserve(0).unwrap();
        match depends {
            true => pair.server.send_if_whole(OpToken(1), slot, b"reply", 0).unwrap(),
            false => pair.server.send(slot, b"reply", 0).unwrap(),
        }
        pair.server.flush().unwrap();
        assert_eq!(spent(&pair.server, before).0, sends, "{depends}");
        expect_message(&mut pair.client);
        assert!(pair.client.recv().unwrap().is_none());
        while let Some(completion) = pair.server.poll_completion() {
            completion.result.unwrap();
        }
    }
}

#[test]
fn large_writes_are_received_in_place() {
    let mut pair = pair();
    let size = 64 << 10;
    let region = region(&pair.client_domain, &vec![0; size], BOTH);
    let source = memory(&pair.server_domain, &pattern(0, size));
    for round in 0..20 {
        let before = pair.client.counters().bytes_copied;
        pair.server.rdma_write(OpToken(0), smallvec![source.clone()], region.range(), None).unwrap();
        pair.server.send_copy(b"reply", &[]).unwrap();
        pair.server.flush().unwrap();
        expect_message(&mut pair.client);
        assert!(pair.client.recv().unwrap().is_none());
        pair.server.poll_completion().unwrap().result.unwrap();
        let copied = pair.client.counters().bytes_copied - before;
        // The first is not expected and goes through staging; after that only what came along with the header.
        assert!(round == 0 || copied <= 1024, "{copied} bytes copied in round {round}");
    }
}
