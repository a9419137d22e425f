//! A server that does not prove the key of its client reaches none of its memory.

use std::sync::Arc;
use std::time::Duration;

use dafs_client::{Background, Config, Key, ReconnectPolicy, Session, Status, SystemClock};
use dafs_proto::session::{ServerHandshake, ServerTerms};
use dafs_proto::transport::{
    Access, Address, ConnectParams, Domain, Endpoint, Listener, LocalSegments, MemoryRef, OpToken, Posted,
    Received, RemoteRange, WaitPolicy,
};
use dafs_proto::wire::{
    AuthenticateReply, Crossovers, HEADER_SIZE, Header, SessionId, Thresholds, Welcome, encode_message_pack,
};
use dafs_server::access::{KeyEntry, Keyring};
use dafs_tests::raw::domain;

fn key() -> Key {
    Key { name: "lab".to_owned(), secret: Arc::from([1; 32]) }
}

/// What a server does that has seen the client's proof.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Then {
    Writes,
    Reads,
    ProvesItself,
}

/// A server that keeps to the handshake up to its own proof. What of `range` it reads.
fn false_server(listener: &mut dyn Listener, domain: &dyn Domain, range: RemoteRange, then: Then) -> Vec<u8> {
    let mut endpoint = loop {
        match listener.accept().unwrap() {
            Some(endpoint) => break endpoint,
            None => std::thread::yield_now(),
        }
    };
    let mut keys = Keyring::default();
    keys.insert(KeyEntry { key: key(), forced: None, publishes: false });
    let hello = next_request(&mut *endpoint).unwrap();
    let terms = ServerTerms { key_required: true };
    let (handshake, payload) = ServerHandshake::on_hello(&hello.1, terms, &keys, [2; 32], "false").unwrap();
    answer(&mut *endpoint, &hello.0, &payload);
    let authenticate = next_request(&mut *endpoint).unwrap();
    let (_, _, proof) = handshake.on_authenticate(&authenticate.1).unwrap();
    let memory = MemoryRef::new(domain.allocate(16).unwrap()).slice(0, 16).unwrap();
    let local = || LocalSegments::from_iter([memory.clone()]);
    let mut asks = None;
    if then == Then::ProvesItself {
        let reply = AuthenticateReply { proof, welcome: welcome() };
        answer(&mut *endpoint, &authenticate.0, &encode_message_pack(&reply));
        // The client has read the proof when it asks for something.
        asks = Some(next_request(&mut *endpoint).unwrap().0);
    }
    let posted = if then == Then::Writes {
        memory.span().write_from(0, &[9; 16]);
        endpoint.rdma_write(OpToken(1), local(), range, None)
    } else {
        endpoint.rdma_read(OpToken(1), local(), range)
    };
    let _ = endpoint.flush();
    // A write may leave before the client ends the connection for it.
    let is_served = loop {
        if matches!(posted, Ok(Posted::Done)) {
            break true;
        }
        let came = endpoint.recv();
        match endpoint.poll_completion().map(|completion| completion.result.is_ok()) {
            Some(false) => break false,
            Some(true) if then == Then::ProvesItself => break true,
            _ => {}
        }
        if came.and_then(|_| endpoint.wait(Some(Duration::from_secs(10)))).is_err() {
            break false;
        }
    };
    assert_eq!(is_served, then == Then::ProvesItself, "{then:?}");
    if let Some(asks) = asks {
        answer(&mut *endpoint, &asks, &[]);
    }
    memory.span().to_vec()
}

fn next_request(endpoint: &mut dyn Endpoint) -> Option<(Header, Vec<u8>)> {
    loop {
        match endpoint.recv().ok()? {
            Some(Received::Message { head, payload_len }) => {
                let (header, _) = Header::decode(head.as_bytes(), payload_len).unwrap();
                return Some((header, endpoint.payload().to_vec()));
            }
            Some(other) => panic!("unexpected {other:?}"),
            None => endpoint.wait(Some(Duration::from_secs(10))).ok()?,
        }
    }
}

fn answer(endpoint: &mut dyn Endpoint, request: &Header, payload: &[u8]) {
    let mut header = request.reply(Status::OK);
    header.head_len = HEADER_SIZE as u16;
    header.payload_len = payload.len() as u32;
    let mut head = [0; HEADER_SIZE];
    header.encode(&mut head);
    endpoint.send_copy(&head, payload).unwrap();
    endpoint.flush().unwrap();
}

fn welcome() -> Welcome {
    let crossovers = Crossovers {
        read_registered: 4096,
        read_unregistered: 4096,
        write_registered: 4096,
        write_unregistered: 4096,
    };
    Welcome {
        session: SessionId(1),
        secret: [1; 16],
        resumed: false,
        server_epoch: 1,
        features: 0,
        slots: 8,
        credits: 8,
        keep_alive_ms: 10_000,
        lease_ms: 30_000,
        thresholds: Thresholds { read_inline_max: 8192, write_inline_max: 8192, crossovers },
        transfer_size_max: 1 << 20,
        handles_max: 100,
        slot_reports: Vec::new(),
        gather: None,
        cluster: None,
    }
}

fn memory_is_served_to_a_proven_server_alone(address: &Address) {
    for then in [Then::Writes, Then::Reads, Then::ProvesItself] {
        let params = ConnectParams { wait: WaitPolicy::Event, ..ConnectParams::default() };
        let (server, client) = (domain(address), domain(address));
        let mut listener = server.listen(address, &params).unwrap();
        let place = listener.address().clone();
        let memory = MemoryRef::new(client.allocate(16).unwrap()).slice(0, 16).unwrap();
        memory.span().write_from(0, &[5; 16]);
        let region = client.register(memory.clone(), Access::REMOTE_READ | Access::REMOTE_WRITE).unwrap();
        let reconnect = ReconnectPolicy { attempts_max: 0, ..ReconnectPolicy::default() };
        let config =
            Config { key: Some(key()), background: Background::None, reconnect, ..Config::default() };
        let range = region.range();
        std::thread::scope(|scope| {
            let serving = scope.spawn(|| false_server(&mut *listener, &*server, range, then));
            let clock = Arc::new(SystemClock::default());
            let session = Session::connect_with(Arc::clone(&client), place, &config, clock);
            match then {
                Then::ProvesItself => assert!(session.unwrap().ping().is_ok()),
                _ => assert!(session.is_err(), "{then:?}"),
            }
            let found = serving.join().unwrap();
            let expected = if then == Then::ProvesItself { [5; 16] } else { [0; 16] };
            if then != Then::Writes {
                assert_eq!(found, expected, "{then:?}");
            }
        });
        assert_eq!(memory.span().to_vec(), [5; 16], "{then:?}");
    }
}

// [ACC-81]
#[test]
fn client_with_key_serves_no_memory_before_the_servers_proof() {
    memory_is_served_to_a_proven_server_alone(&Address::Tcp("127.0.0.1:0".parse().unwrap()));
    let directory = tempfile::tempdir().unwrap();
    memory_is_served_to_a_proven_server_alone(&Address::Shm(directory.path().join("socket")));
}
