//! What connections may have of memory and of threads, each and together.

use std::os::fd::{AsFd, BorrowedFd};
use std::sync::Arc;

use super::super::closing::{Closers, Left};
use super::super::handshake::{Message, Nonce};
use super::super::sock;
use super::hostile::lingering;
use super::*;
use crate::budget::{Budget, Owner, Terms};

#[test]
fn regions_are_bounded_for_a_connection_and_for_all_of_a_domain() {
    let mut bed = Bed::new(small());
    let client = ShmDomain::new();
    let (_client, mut server) = bed.connect(&client);
    let domain = bed.server.clone();
    let memory = MemoryRef::new(Arc::new(HeapMemory::allocate(4096).unwrap()));
    let bounded = |result: Result<Region, RegionError>, what: &str| match result {
        Err(RegionError::TooMany { limit }) => limit,
        other => panic!("{what}: {other:?}"),
    };
    let mut own: Vec<_> = (0..64).map(|_| server.register(&domain, memory.clone(), ALL).unwrap()).collect();
    assert_eq!(bounded(server.register(&domain, memory.clone(), ALL), "a 65th of its own"), 64);
    let shared: Vec<_> = (0..4032).map(|_| domain.register(memory.clone(), ALL).unwrap()).collect();
    assert_eq!(bounded(domain.register(memory.clone(), ALL), "a 4,033rd"), 4032);
    // One that is given back makes room.
    drop(own.pop());
    own.push(server.register(&domain, memory.clone(), ALL).unwrap());
    drop(shared);
    domain.register(memory, ALL).unwrap();
}

// [LIMIT-5] [LIMIT-15]
#[test]
fn memory_of_peers_is_charged_until_it_is_unmapped() {
    let limited = |limit| Budget::new(Terms { limit, share_percent: 50 }, Vec::new());
    let (mappings, mapped, sparse) = (limited(8), limited(1 << 30), limited(1 << 20));
    let limits = ShmLimits { mappings, mapped, sparse, ..ShmLimits::default() };
    let mut bed = Bed::of(ShmDomain::with_limits(ShmConfig::default(), limits.clone()), small());
    let domain = ShmDomain::new();
    let mut server = bed.connect(&domain);
    let page = MemoryRef::new(domain.allocate(4096).unwrap());
    let mut regions: Vec<_> = (0..6).map(|_| domain.register(page.clone(), ALL).unwrap()).collect();
    let mut reach = |region: &Region| server.1.remote_memory(&region.range(), Access::REMOTE_READ).map(drop);
    for region in &regions[..4] {
        reach(region).unwrap();
    }
    assert!(matches!(reach(&regions[4]), Err(RegionError::System { .. })), "more than its share");
    assert_eq!((limits.mappings.used(), limits.mapped.used()), (4, 4 * 4096));
    assert_eq!(limits.sparse.used(), 4 * 4096, "nobody has touched the page");
    regions.remove(0);
    let again = domain.register(page.clone(), ALL).unwrap();
    reach(&again).unwrap();
    drop(server);
    assert_eq!((limits.mappings.used(), limits.mapped.used(), limits.sparse.used()), (0, 0, 0));
}

/// In a process of its own: a program that another test starts has for a moment what is open here, and nothing ends by a close meanwhile.
fn alone(name: &str, test: impl FnOnce()) {
    in_own_process(&format!("bounds::{name}"), test);
}

/// A domain whose threads that close are bounded, and their budget.
fn bounded_closers(limit: u64) -> (ShmDomain, Arc<Closers>) {
    let closers = Closers::new(Budget::new(Terms { limit, share_percent: 50 }, Vec::new()));
    let limits = ShmLimits { closers: Arc::clone(&closers), ..ShmLimits::default() };
    (ShmDomain::with_limits(ShmConfig::default(), limits), closers)
}

fn closed(closers: &Closers) {
    // In this order: a thread that goes from one to the next is not counted for a moment, in which that still waits.
    while closers.waiting() > 0 || closers.threads().used() > 0 {
        std::thread::yield_now();
    }
}

/// A thread takes what it closes once it runs: until then that waits too.
fn taken_but(closers: &Closers, waiting: usize) {
    while closers.waiting() > waiting {
        std::thread::yield_now();
    }
}

/// Sends a descriptor whose close waits until what this answers is dropped.
fn send_lingering(socket: BorrowedFd<'_>, bytes: &[u8]) -> std::net::TcpStream {
    let (lingers, other_end) = lingering();
    sock::send(socket, bytes, &[lingers.as_fd()]).unwrap();
    other_end
}

// [LIMIT-20] [SHM-71]
#[test]
fn descriptors_that_do_not_close_are_bounded_for_their_user() {
    alone("descriptors_that_do_not_close_are_bounded_for_their_user", || {
        let (domain, closers) = bounded_closers(4);
        let mut bed = Bed::of(domain, small());
        let domain = ShmDomain::new();
        let (_client, mut other_server) = bed.connect(&domain);
        let register = Message::Register { key: 4096, offset: 0, len: 100, access: ALL }.encode();
        let mut ends = Vec::new();
        for _ in 0..4 {
            let (client, mut server) = bed.connect(&domain);
            ends.push(send_lingering(client.connection.socket.as_fd(), &register));
            server.on_event(1, false);
            assert!(matches!(server.recv(), Err(TransportError::Peer(PeerFault::Malformed { .. }))));
        }
        taken_but(&closers, 2);
        assert_eq!((closers.threads().used(), closers.waiting(), closers.threads().refused()), (2, 2, 2));
        other_server.on_event(1, false);
        assert!(other_server.recv().unwrap().is_none(), "who sends none is served");
        drop(ends);
        closed(&closers);
    });
}

// [SHM-71] [SHM-74] whatever comes before it.
#[test]
fn connection_with_a_descriptor_that_nobody_took_ends_at_once() {
    alone("connection_with_a_descriptor_that_nobody_took_ends_at_once", || {
        type Before = fn(BorrowedFd<'_>);
        let many: Before = |socket| (0..100).for_each(|_| sock::send(socket, b"much", &[]).unwrap());
        let empty: Before = |socket| sock::send(socket, &[], &[]).unwrap();
        for before in [(|_| {}) as Before, empty, many] {
            for closes_first in [false, true] {
                let (domain, closers) = bounded_closers(4);
                let mut bed = Bed::of(domain, small());
                let (client, server) = bed.connect(&ShmDomain::new());
                before(client.connection.socket.as_fd());
                let end = send_lingering(client.connection.socket.as_fd(), b"not taken");
                let client = (!closes_first).then_some(client);
                drop(server);
                assert_eq!(closers.threads().used(), 1);
                drop((client, end));
                closed(&closers);
            }
        }
    });
}

// [SHM-74] No thread for those who leave nothing.
#[test]
fn connection_that_ends_without_descriptors_closes_here() {
    let threads = Budget::new(Terms { limit: 1, share_percent: 100 }, Vec::new());
    // What would be closed elsewhere would wait.
    let _taken = threads.count(&Owner::Unknown, 1);
    let closers = Closers::new(threads);
    let limits = ShmLimits { closers: Arc::clone(&closers), ..ShmLimits::default() };
    let domain = ShmDomain::with_limits(ShmConfig::default(), limits);
    let mut bed = Bed::of(domain, small());
    for closes_first in [false, true] {
        for messages in [0, 1, 60] {
            let (client, server) = bed.connect(&ShmDomain::new());
            (0..messages).for_each(|_| sock::send(client.connection.socket.as_fd(), b"more", &[]).unwrap());
            let client = (!closes_first).then_some(client);
            drop(server);
            drop(client);
            assert_eq!(closers.waiting(), 0);
        }
    }
}

// [SHM-47] [SHM-62] [SHM-71]
#[test]
fn handshake_with_a_descriptor_holds_nobody_up() {
    alone("handshake_with_a_descriptor_holds_nobody_up", || {
        let (domain, closers) = bounded_closers(4);
        let mut bed = Bed::of(domain, small());
        let Address::Shm(path) = bed.address.clone() else { panic!() };
        let hello = Message::hello(&small(), &Nonce::new().unwrap()).encode();
        for empty_first in [false, true] {
            let socket = sock::connect(&path, LONG).unwrap();
            if empty_first {
                sock::send(socket.as_fd(), &[], &[]).unwrap();
            }
            let end = send_lingering(socket.as_fd(), &hello);
            assert!(bed.listener.accept_endpoint().unwrap().is_none());
            assert_eq!((bed.listener.handshake_count(), closers.threads().used()), (0, 1));
            assert!(bed.listener.accept_endpoint().unwrap().is_none() && !bed.listener.has_more());
            drop(end);
            closed(&closers);
        }
    });
}

// [SHM-71] The kernel tells of an end with something unread before it tells of what the peer sent.
#[test]
fn descriptor_of_a_handshake_before_an_end_holds_nobody_up() {
    alone("descriptor_of_a_handshake_before_an_end_holds_nobody_up", || {
        let (domain, closers) = bounded_closers(4);
        let mut bed = Bed::of(domain, small());
        let Address::Shm(path) = bed.address.clone() else { panic!() };
        let socket = sock::connect(&path, LONG).unwrap();
        let hello = Message::hello(&small(), &Nonce::new().unwrap()).encode();
        sock::send(socket.as_fd(), &hello, &[]).unwrap();
        assert!(bed.listener.accept_endpoint().unwrap().is_none());
        // The welcome is there, and not read.
        let end = send_lingering(socket.as_fd(), b"not ready");
        drop(socket);
        assert!(bed.listener.accept_endpoint().unwrap().is_none());
        assert_eq!((bed.listener.handshake_count(), closers.threads().used()), (0, 1));
        drop(end);
        closed(&closers);
    });
}

// [SHM-71]
#[test]
fn listener_that_ends_does_not_wait_for_what_was_not_accepted() {
    alone("listener_that_ends_does_not_wait_for_what_was_not_accepted", || {
        let (domain, closers) = bounded_closers(4);
        let bed = Bed::of(domain, small());
        let Address::Shm(path) = bed.address.clone() else { panic!() };
        let socket = sock::connect(&path, LONG).unwrap();
        let end = send_lingering(socket.as_fd(), b"hello");
        drop(bed.listener);
        assert_eq!(closers.threads().used(), 1);
        assert!(sock::connect(&path, LONG).is_err());
        drop(end);
        closed(&closers);
    });
}

// [SHM-75]
#[test]
fn what_does_not_close_keeps_the_place_of_a_handshake() {
    alone("what_does_not_close_keeps_the_place_of_a_handshake", || {
        let (domain, closers) = bounded_closers(2);
        let mut bed = Bed::of(domain, small());
        let Address::Shm(path) = bed.address.clone() else { panic!() };
        let mut ends = Vec::new();
        while closers.waiting() < 256 {
            let socket = sock::connect(&path, LONG).unwrap();
            ends.push(send_lingering(socket.as_fd(), b"hello"));
            assert!(bed.listener.accept_endpoint().unwrap().is_none());
            taken_but(&closers, ends.len() - 1);
            assert!(ends.len() <= 257, "all are kept");
        }
        let _socket = sock::connect(&path, LONG).unwrap();
        for _ in 0..3 {
            assert!(bed.listener.accept_endpoint().unwrap().is_none());
            assert_eq!(bed.listener.handshake_count(), 0);
        }
        drop(ends);
        closed(&closers);
        bed.listener.expire_handshakes();
        assert!(bed.listener.accept_endpoint().unwrap().is_none());
        assert_eq!(bed.listener.handshake_count(), 1);
    });
}

// [SHM-76] It stays charged until it is gone.
#[test]
fn large_memory_of_a_peer_is_unmapped_elsewhere() {
    let threads = Budget::new(Terms { limit: 1, share_percent: 100 }, Vec::new());
    let busy = threads.count(&Owner::Unknown, 1);
    let closers = Closers::new(threads);
    let limits = ShmLimits { closers: Arc::clone(&closers), ..ShmLimits::default() };
    let mut bed = Bed::of(ShmDomain::with_limits(ShmConfig::default(), limits.clone()), small());
    let mut leave = |size: usize, len: usize| {
        let domain = ShmDomain::new();
        let (_client, mut server) = bed.connect(&domain);
        let memory = MemoryRef::new(domain.allocate(size).unwrap()).slice(0, len).unwrap();
        let region = domain.register(memory, ALL).unwrap();
        server.remote_memory(&region.range(), Access::REMOTE_READ).unwrap();
    };
    const LARGE: usize = 64 << 20;
    leave(LARGE - 4096, LARGE - 4096);
    assert_eq!((closers.waiting(), limits.mapped.used()), (0, 0));
    leave(LARGE, LARGE);
    assert_eq!((closers.waiting(), limits.mapped.used()), (1, 64 << 20));
    // The last part of a file that is mapped frees all of it.
    leave(LARGE, 4096);
    assert_eq!(closers.waiting(), 2);
    drop(busy);
    leave(LARGE, LARGE);
    closed(&closers);
    assert_eq!(limits.mapped.used(), 0);
}

// [SHM-76] Many smaller files take as long together.
#[test]
fn memory_of_many_files_that_ends_at_once_is_unmapped_elsewhere() {
    let threads = Budget::new(Terms { limit: 1, share_percent: 100 }, Vec::new());
    let busy = threads.count(&Owner::Unknown, 1);
    let closers = Closers::new(threads);
    let limits = ShmLimits { closers: Arc::clone(&closers), ..ShmLimits::default() };
    let mut bed = Bed::of(ShmDomain::with_limits(ShmConfig::default(), limits.clone()), small());
    const FILE: usize = 2 << 20;
    for (files, orderly, elsewhere) in [(31, false, 0), (32, false, 1), (31, true, 0), (32, true, 1)] {
        let domain = ShmDomain::new();
        let (client, mut server) = bed.connect(&domain);
        let register = || domain.register(MemoryRef::new(domain.allocate(FILE).unwrap()), ALL).unwrap();
        let regions: Vec<_> = (0..files).map(|_| register()).collect();
        for region in &regions {
            server.remote_memory(&region.range(), Access::REMOTE_READ).unwrap();
        }
        let before = closers.waiting();
        if orderly {
            drop(regions);
            server.on_event(1, false);
            assert!(server.recv().unwrap().is_none());
        } else {
            drop(server);
        }
        assert_eq!(closers.waiting() - before, elsewhere, "{files} files, {orderly}");
        drop(client);
    }
    drop(busy);
    // The one that comes next takes what waits.
    closers.close(&Owner::Unknown, Left::Mappings(Vec::new()));
    closed(&closers);
    assert_eq!(limits.mapped.used(), 0);
}

// [LIMIT-5] All that a peer may have is in many files, and others take their place at once.
#[test]
fn region_takes_the_place_of_many_small_ones_that_end() {
    const FILE: usize = 2 << 20;
    const FILES: usize = 32;
    let of = |limit| Budget::new(Terms { limit, share_percent: 50 }, Vec::new());
    let (mapped, threads) = (of((2 * FILE * FILES) as u64), of(1));
    // What is unmapped elsewhere waits.
    let _busy = threads.count(&Owner::Unknown, 1);
    let limits = ShmLimits { mapped, closers: Closers::new(threads), ..ShmLimits::default() };
    let mut bed = Bed::of(ShmDomain::with_limits(ShmConfig::default(), limits), small());
    let domain = ShmDomain::new();
    let (_client, mut server) = bed.connect(&domain);
    let register = || domain.register(MemoryRef::new(domain.allocate(FILE).unwrap()), ALL).unwrap();
    let mut regions: Vec<_> = (0..FILES).map(|_| register()).collect();
    for _ in 0..3 {
        for region in &regions {
            server.remote_memory(&region.range(), Access::REMOTE_READ).map(drop).unwrap();
        }
        regions.clear();
        regions.extend((0..FILES).map(|_| register()));
    }
}
