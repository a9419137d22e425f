//! Handshakes: what breaks them, what stalls them, and what a listener leaves behind.

use std::os::fd::AsFd;

use super::super::handshake::{Message, Nonce};
use super::super::sock;
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
        assert!(matches!(sock::receive(socket.as_fd(), &mut answer), Ok(sock::Incoming::End)));
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
    assert!(matches!(sock::receive(silent[0].as_fd(), &mut [0; 64]), Ok(sock::Incoming::End)));
}

// [SHM-6] [SHM-41] [SHM-42] [SHM-43]
#[test]
fn socket_file_of_a_dead_server_is_replaced_and_of_a_live_one_is_not() {
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

/// Set in a process of its own for a test: the limit of descriptors is the whole process's.
const OWN_PROCESS: &str = "DAFS_SHM_TEST_DESCRIPTORS";

// [SHM-48] without descriptors `accept` returns, and goes on when there are some.
#[test]
fn accept_without_descriptors_returns_and_recovers() {
    if std::env::var_os(OWN_PROCESS).is_some() {
        return accept_without_descriptors();
    }
    let name = "transport::shm::tests::listening::accept_without_descriptors_returns_and_recovers";
    let output = std::process::Command::new(std::env::current_exe().unwrap())
        .args(["--exact", name, "--nocapture"])
        .env(OWN_PROCESS, "1")
        .output()
        .unwrap();
    let printed = String::from_utf8_lossy(&output.stdout);
    assert!(output.status.success() && printed.contains("1 passed"), "{:?} {printed}", output.status);
}

fn accept_without_descriptors() {
    hostile::end_process_in_a_minute();
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
