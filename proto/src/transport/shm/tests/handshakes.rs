//! Handshakes that wait for the places of others.
#![allow(unsafe_code, reason = "borrows the listener's descriptor")]

use std::os::fd::{AsFd, AsRawFd, BorrowedFd};

use super::super::handshake::{Message, Nonce};
use super::super::sock::{self, Epoll};
use super::*;

/// Accepts, woken by the listener's descriptor alone, until `connecting` is through.
fn accept_by_events(bed: &mut Bed, connecting: impl FnOnce(&Address, &ConnectParams) + Send) {
    let (address, params) = (bed.address.clone(), bed.params);
    let watched = Epoll::new().unwrap();
    let [fd] = bed.listener.event_fds()[..] else { panic!("one descriptor") };
    // SAFETY: the listener, which outlives this, owns it.
    watched.add(unsafe { BorrowedFd::borrow_raw(fd) }, 0).unwrap();
    std::thread::scope(|scope| {
        let connecting = scope.spawn(|| connecting(&address, &params));
        loop {
            if bed.listener.accept_endpoint().unwrap().is_some() {
                break;
            }
            assert!(bed.listener.handshake_count() <= 256);
            if bed.listener.has_more() {
                continue;
            }
            // SAFETY: as above.
            let event = sock::readable(unsafe { BorrowedFd::borrow_raw(watched.as_raw_fd()) }, LONG);
            assert!(event.unwrap(), "no event tells that a silent handshake makes room");
        }
        connecting.join().unwrap();
    });
}

/// Accepts until all is looked at that is here.
fn accept_nobody(bed: &mut Bed) {
    assert!(bed.listener.accept_endpoint().unwrap().is_none());
    while bed.listener.has_more() {
        assert!(bed.listener.accept_endpoint().unwrap().is_none());
    }
}

// [PROV-85] [PROV-86]
#[test]
fn one_accept_handles_bounded_peers_and_reports_more() {
    let mut bed = Bed::new(small());
    let Address::Shm(path) = bed.address.clone() else { panic!() };
    let silent: Vec<_> = (0..200).map(|_| sock::connect(&path, LONG).unwrap()).collect();
    assert!(bed.listener.accept_endpoint().unwrap().is_none());
    assert!(bed.listener.handshake_count() < 200 && bed.listener.has_more());
    accept_nobody(&mut bed);
    assert_eq!(bed.listener.handshake_count(), 200);
    drop(silent);
}

// [SHM-7] [SHM-45] silent peers cannot keep others out.
#[test]
fn silent_peers_beyond_the_bound_do_not_keep_others_out() {
    let mut bed = Bed::new(small());
    let Address::Shm(path) = bed.address.clone() else { panic!() };
    let silent: Vec<_> = (0..400).map(|_| sock::connect(&path, LONG).unwrap()).collect();
    accept_by_events(&mut bed, |address, params| {
        ShmDomain::new().connect_endpoint(address, params, LONG).unwrap();
    });
    // The oldest were given up, those that nobody had to make room for were not.
    assert!(matches!(sock::receive(silent[0].as_fd(), &mut [0; 64]), Ok(sock::Incoming::End)));
    assert!(matches!(sock::receive(silent[399].as_fd(), &mut [0; 64]), Ok(sock::Incoming::Nothing)));
    assert_eq!(bed.listener.handshake_count(), 255);
}

// [SHM-45] nor those that say hello and nothing more.
#[test]
fn peers_silent_after_their_hello_do_not_keep_others_out() {
    let mut bed = Bed::new(small());
    let Address::Shm(path) = bed.address.clone() else { panic!() };
    let hello = Message::hello(&small(), &Nonce::new().unwrap()).encode();
    let silent: Vec<_> = (0..300)
        .map(|_| {
            let socket = sock::connect(&path, LONG).unwrap();
            sock::send(socket.as_fd(), &hello, &[]).unwrap();
            socket
        })
        .collect();
    accept_by_events(&mut bed, |address, params| {
        ShmDomain::new().connect_endpoint(address, params, LONG).unwrap();
    });
    drop(silent);
}

// [SHM-46] who says what comes next keeps its place, however many wait for it.
#[test]
fn handshake_that_makes_progress_keeps_its_place() {
    let mut bed = Bed::new(small());
    let Address::Shm(path) = bed.address.clone() else { panic!() };
    let hello = Message::hello(&small(), &Nonce::new().unwrap()).encode();
    let slow = sock::connect(&path, LONG).unwrap();
    let silent: Vec<_> = (0..255).map(|_| sock::connect(&path, LONG).unwrap()).collect();
    accept_nobody(&mut bed);
    assert_eq!(bed.listener.handshake_count(), 256);
    // The oldest of all says hello, which nobody has looked at when the time of all others is over and one more comes.
    sock::send(slow.as_fd(), &hello, &[]).unwrap();
    accept_by_events(&mut bed, |address, params| {
        ShmDomain::new().connect_endpoint(address, params, LONG).unwrap();
    });
    let mut answer = [0; 64];
    assert!(matches!(sock::receive(slow.as_fd(), &mut answer), Ok(sock::Incoming::Message { .. })));
    drop(silent);
}

// [SHM-78]
#[test]
fn client_gets_no_larger_ring_than_the_server_fills() {
    let params = ConnectParams { send_payload_max: 4096, send_depth_max: 6, ..small() };
    let mut bed = Bed::new(params);
    let address = bed.address.clone();
    let greedy = ConnectParams { recv_payload_max: 1 << 20, recv_depth: 1024, ..params };
    let (client, mut server) = std::thread::scope(|scope| {
        let connecting = scope.spawn(|| ShmDomain::new().connect_endpoint(&address, &greedy, LONG).unwrap());
        let server = bed.accept();
        (connecting.join().unwrap(), server)
    });
    let (client, can_send) = (client.capabilities(), server.capabilities());
    assert_eq!((can_send.send_depth, can_send.send_payload_max), (6, 4096));
    assert_eq!(client.recv_payload_max, 4096);
    for _ in 0..6 {
        server.send_copy(b"reply", &[7; 4096]).unwrap();
    }
    assert!(matches!(server.reserve(1), Err(PostError::Full)));
}
