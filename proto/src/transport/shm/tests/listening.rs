//! Handshakes: what breaks them, what stalls them, and what a listener leaves behind.

use std::os::fd::{AsFd, AsRawFd};

use super::super::handshake::{MESSAGE_SIZE, Message, Nonce};
use super::super::sock::{self, Incoming};
use super::*;

// [PROV-27] [SHM-47] [SHM-62]
#[test]
fn handshake_that_breaks_the_rules_costs_only_itself() {
    let mut bed = Bed::new(small());
    let Address::Shm(path) = bed.address.clone() else { panic!() };
    let nonce = Nonce::new().unwrap();
    let hello = Message::hello(&small(), &nonce).encode();
    let mut wrong_version = hello;
    wrong_version[4] = 99;
    let bad: [&[u8]; 6] = [
        &hello[..63],
        &[0; 64],
        &[0xff; 64],
        &[1; 4000],
        &wrong_version,
        &Message::Ready { cma: true }.encode(),
    ];
    for bytes in bad {
        let socket = sock::connect(&path, LONG).unwrap();
        sock::send(socket.as_fd(), bytes, &[]).unwrap();
        assert!(bed.listener.accept_endpoint().unwrap().is_none());
        assert_eq!(bed.listener.handshake_count(), 0);
        let mut answer = [0; 64];
        assert!(matches!(sock::receive(socket.as_fd(), &mut answer), Ok(Incoming::End)));
    }
    // Descriptors that nobody asked for are closed, and so is the connection.
    let socket = sock::connect(&path, LONG).unwrap();
    sock::send(socket.as_fd(), &hello, &[socket.as_fd()]).unwrap();
    assert!(bed.listener.accept_endpoint().unwrap().is_none());
    assert_eq!(bed.listener.handshake_count(), 0);
    let (mut client, mut server) = bed.connect(&ShmDomain::new());
    client.send_copy(b"fine", b"").unwrap();
    assert_eq!(take(&mut server).unwrap().0, b"fine");
}

// [SHM-44]
#[test]
fn silent_handshakes_are_expired() {
    let mut bed = Bed::new(small());
    let Address::Shm(path) = bed.address.clone() else { panic!() };
    let silent: Vec<_> = (0..10).map(|_| sock::connect(&path, LONG).unwrap()).collect();
    assert!(bed.listener.accept_endpoint().unwrap().is_none());
    bed.listener.expire_handshakes();
    assert_eq!(bed.listener.handshake_count(), 10);
    assert_eq!(bed.listener.handshake_time_max, Duration::from_secs(5), "where nothing else is set");
    bed.listener.handshake_time_max = Duration::ZERO;
    bed.listener.expire_handshakes();
    assert_eq!(bed.listener.handshake_count(), 0);
    assert!(matches!(sock::receive(silent[0].as_fd(), &mut [0; 64]), Ok(Incoming::End)));
}

// [SHM-6] [SHM-41] [SHM-42] [SHM-43]
#[test]
fn socket_file_is_replaced_only_when_its_server_is_dead() {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("socket");
    let address = Address::Shm(path.clone());
    // A dead server: bound, never removed.
    drop(sock::listen(&path, 1).unwrap());
    assert!(path.exists());
    let domain = ShmDomain::with_config(ShmConfig { socket_mode: 0o600, ..ShmConfig::default() });
    let live = domain.listen_at(&address, &small()).unwrap();
    use std::os::unix::fs::PermissionsExt;
    assert_eq!(std::fs::metadata(&path).unwrap().permissions().mode() & 0o777, 0o600);
    match domain.listen_at(&address, &small()) {
        Err(ConnectError::System { source, .. }) => {
            assert_eq!(source.kind(), std::io::ErrorKind::AddrInUse);
        }
        _ => panic!("two servers on one socket"),
    }
    drop(live);
    assert!(!path.exists());
    // Another file that has the name by then stays.
    let live = ShmDomain::new().listen_at(&address, &small()).unwrap();
    assert_eq!(std::fs::metadata(&path).unwrap().permissions().mode() & 0o777, 0o666);
    std::fs::remove_file(&path).unwrap();
    std::fs::write(&path, "another").unwrap();
    drop(live);
    assert_eq!(std::fs::read(&path).unwrap(), b"another");

    std::fs::write(&path, "not a socket").unwrap();
    assert!(domain.listen_at(&address, &small()).is_err());
    assert_eq!(std::fs::read(&path).unwrap(), b"not a socket");
}

// [SHM-48] without descriptors `accept` returns, and goes on when there are some.
#[test]
fn accept_without_descriptors_returns_and_recovers() {
    in_own_process("listening::accept_without_descriptors_returns_and_recovers", accept_without_descriptors);
}

fn accept_without_descriptors() {
    let mut bed = Bed::new(small());
    let Address::Shm(path) = bed.address.clone() else { panic!() };
    let hello = Message::hello(&small(), &Nonce::new().unwrap()).encode();
    let clients: Vec<_> = (0..3).map(|_| sock::connect(&path, LONG).unwrap()).collect();
    clients.iter().for_each(|client| sock::send(client.as_fd(), &hello, &[]).unwrap());
    let before = hostile::limit_descriptors(0);
    for _ in 0..3 {
        assert!(bed.listener.accept_endpoint().unwrap().is_none());
        bed.listener.expire_handshakes();
    }
    assert_eq!(bed.listener.handshake_count(), 0);
    hostile::limit_descriptors(before);
    bed.listener.expire_handshakes();
    assert!(bed.listener.accept_endpoint().unwrap().is_none());
    assert_eq!(bed.listener.handshake_count(), 3);
}

// [SHM-48] [SHM-81] with one descriptor a connection is taken, and there is none for its answer.
#[test]
fn hello_without_descriptors_for_its_answer_is_answered_once_there_are_some() {
    let name = "listening::hello_without_descriptors_for_its_answer_is_answered_once_there_are_some";
    in_own_process(name, || {
        let mut bed = Bed::new(small());
        let usual = bed.connect(&ShmDomain::new()).1.connection.peer_process.is_some();
        let Address::Shm(path) = bed.address.clone() else { panic!() };
        let nonce = Nonce::new().unwrap();
        let hello = Message::hello(&small(), &nonce).encode();
        let clients: Vec<_> = (0..2).map(|_| sock::connect(&path, LONG).unwrap()).collect();
        clients.iter().for_each(|client| sock::send(client.as_fd(), &hello, &[]).unwrap());
        let first_free = u64::try_from(sock::eventfd().unwrap().as_raw_fd()).unwrap();
        let is_welcomed =
            |client: &socket2::Socket| !matches!(sock::look(client.as_fd()), Ok(sock::Next::Nothing));
        for free in 1.. {
            assert!(free < 32, "nobody is welcomed");
            let before = hostile::limit_descriptors(first_free + free);
            assert!(bed.listener.accept_endpoint().unwrap().is_none());
            bed.listener.expire_handshakes();
            hostile::limit_descriptors(before);
            if is_welcomed(&clients[0]) {
                break;
            }
            assert!(free > 4 || bed.listener.handshake_count() == 1, "{free}: the other stays in the queue");
        }
        bed.listener.expire_handshakes();
        assert!(bed.listener.accept_endpoint().unwrap().is_none());
        assert_eq!(bed.listener.handshake_count(), 2);
        for client in &clients {
            assert!(matches!(sock::look(client.as_fd()), Ok(sock::Next::Descriptors)), "welcomed");
            let mut bytes = [0; MESSAGE_SIZE];
            let Ok(Incoming::Message { len, .. }) = sock::receive(client.as_fd(), &mut bytes) else {
                panic!()
            };
            let Ok(Message::Welcome { cma, .. }) = Message::decode(&bytes, len) else { panic!() };
            assert_eq!(cma, usual, "it reaches what it would have reached");
        }
    });
}

// [SHM-42] One that starts does not take what another has bound a moment ago for left behind.
#[test]
fn one_of_several_starting_servers_replaces_the_dead_socket() {
    for _ in 0..50 {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("socket");
        drop(sock::listen(&path, 1).unwrap());
        let start = std::sync::Barrier::new(4);
        let listeners: Vec<_> = std::thread::scope(|scope| {
            let starting = || {
                start.wait();
                ShmDomain::new().listen_at(&Address::Shm(path.clone()), &small()).ok()
            };
            let starting: Vec<_> = (0..4).map(|_| scope.spawn(starting)).collect();
            starting.into_iter().map(|starting| starting.join().unwrap()).collect()
        });
        assert_eq!(listeners.iter().flatten().count(), 1);
        sock::connect(&path, LONG).unwrap();
    }
}
