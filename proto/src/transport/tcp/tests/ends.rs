//! How the end of a connection is noticed: by closes and resets, beside what arrived before them.

use super::*;

#[test]
fn message_and_close_together_are_both_noticed_by_one_event() {
    for told in [false, true] {
        let (mut raw, mut endpoint, _domain) = raw_client(&params());
        assert!(endpoint.arm());
        raw.write_all(&send(b"last", b"")).unwrap();
        drop(raw);
        // One edge may stand for both, so no further one may be waited for.
        let deadline = Instant::now() + HANG;
        while is_readable(&endpoint) && !hung_up(&endpoint) {
            assert!(Instant::now() < deadline);
        }
        if told {
            endpoint.on_event(0, true);
        }
        assert!(endpoint.recv().unwrap().is_some());
        loop {
            match endpoint.recv() {
                Ok(None) => assert!(!endpoint.arm(), "asleep on a closed connection"),
                Ok(Some(_)) => panic!("nothing more was sent"),
                Err(error) => {
                    assert!(matches!(error, TransportError::Closed));
                    break;
                }
            }
        }
    }
}

// [PROV-24] [PROV-67]
#[test]
fn message_and_reset_together_are_both_noticed_by_one_event() {
    let (mut raw, mut endpoint, _domain) = raw_client(&params());
    assert!(endpoint.arm());
    raw.write_all(&send(b"last", b"")).unwrap();
    socket2::SockRef::from(&raw).set_linger(Some(Duration::ZERO)).unwrap();
    drop(raw);
    let deadline = Instant::now() + HANG;
    while !hung_up(&endpoint) {
        assert!(Instant::now() < deadline);
    }
    endpoint.on_event(0, true);
    assert!(endpoint.recv().unwrap().is_some());
    // The answer is in vain, which says nothing about what there is to receive.
    endpoint.send_copy(b"answer", b"").unwrap();
    endpoint.flush().unwrap();
    loop {
        match endpoint.recv() {
            Ok(None) => assert!(!endpoint.arm(), "asleep on a connection that was reset"),
            Ok(Some(_)) => panic!("nothing more was sent"),
            Err(error) => {
                assert!(matches!(error, TransportError::Closed), "{error}");
                break;
            }
        }
    }
}

#[test]
fn close_after_a_reported_event_is_noticed_by_the_next() {
    let (mut raw, mut endpoint, _domain) = raw_client(&params());
    assert!(endpoint.arm());
    raw.write_all(&send(b"last", b"")).unwrap();
    assert!(is_readable(&endpoint));
    endpoint.on_event(0, false);
    drop(raw);
    let deadline = Instant::now() + HANG;
    while !hung_up(&endpoint) {
        assert!(Instant::now() < deadline);
    }
    assert!(endpoint.recv().unwrap().is_some());
    // Whether it was met by then or not, its own event is not slept through.
    match endpoint.recv() {
        Ok(None) if endpoint.arm() => {
            endpoint.on_event(0, true);
            assert!(matches!(endpoint.recv(), Err(TransportError::Closed)));
        }
        Ok(None) => assert!(matches!(endpoint.recv(), Err(TransportError::Closed))),
        Ok(Some(_)) => panic!("nothing more was sent"),
        Err(error) => assert!(matches!(error, TransportError::Closed)),
    }
}

/// The end of the stream has arrived at the endpoint's socket.
fn hung_up(endpoint: &TcpEndpoint) -> bool {
    let mut poll = mio::Poll::new().unwrap();
    let mut events = mio::Events::with_capacity(1);
    let fd = endpoint.event_fds()[0];
    poll.registry().register(&mut mio::unix::SourceFd(&fd), mio::Token(0), mio::Interest::READABLE).unwrap();
    poll.poll(&mut events, Some(Duration::ZERO)).unwrap();
    events.iter().any(mio::event::Event::is_read_closed)
}

#[test]
fn message_after_the_peers_reads_end_still_arrives_before_the_close() {
    // The peer says something and closes while this side sends: its words come before the end, whatever the sends met with.
    let (mut raw, mut endpoint, _domain) = raw_client(&params());
    endpoint.send_copy(b"unread", &[0; 1000]).unwrap();
    endpoint.flush().unwrap();
    raw.write_all(&send(b"bye", b"")).unwrap();
    // Closing with unread bytes resets the connection.
    drop(raw);
    let mut sent = 0;
    while endpoint.send_copy(b"more", &[0; 1000]).is_ok() && sent < 100_000 {
        endpoint.flush().unwrap();
        sent += 1;
    }
    assert_eq!(expect_message(&mut endpoint).0, b"bye");
    assert!(matches!(failure(&mut endpoint), TransportError::Closed));
}

// [ACC-18]
#[test]
fn peer_that_is_gone_is_known_before_anything_of_it_is_read() {
    for resets in [false, true] {
        let Pair { server, mut client, .. } = pair();
        assert!(server.peer_is_there());
        client.send_copy(b"request", b"what it said").unwrap();
        client.flush().unwrap();
        assert!(server.peer_is_there(), "what waits to be read is no end");
        if resets {
            socket2::SockRef::from(&client.link.socket).set_linger(Some(Duration::ZERO)).unwrap();
        }
        drop(client);
        while server.peer_is_there() {
            std::thread::yield_now();
        }
    }
}
