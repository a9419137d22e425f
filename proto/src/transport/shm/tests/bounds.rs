//! What connections may have of memory and of threads, each and together.

use std::os::fd::{AsFd, OwnedFd};
use std::sync::Arc;

use super::super::endpoint::ShmEndpoint;
use super::super::handshake::Message;
use super::super::map::create_memory_file;
use super::super::sock;
use super::hostile::lingering;
use super::*;
use crate::budget::{Budget, Terms};

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

// [LIMIT-20] [SHM-73]
#[test]
fn descriptors_that_do_not_close_are_bounded_for_their_user() {
    let closers = Budget::new(Terms { limit: 4, share_percent: 50 }, Vec::new());
    let limits = ShmLimits { closers: Arc::clone(&closers), ..ShmLimits::default() };
    let mut bed = Bed::of(ShmDomain::with_limits(ShmConfig::default(), limits), small());
    let domain = ShmDomain::new();
    let (_client, mut other_server) = bed.connect(&domain);
    let send = |client: &ShmEndpoint, file: &OwnedFd| {
        let register = Message::Register { key: 4096, offset: 0, len: 100, access: ALL }.encode();
        sock::send(client.connection.socket.as_fd(), &register, &[file.as_fd()]).unwrap();
    };
    let mut ends = Vec::new();
    for _ in 0..2 {
        let (client, mut server) = bed.connect(&domain);
        let (lingers, other_end) = lingering();
        send(&client, &lingers);
        drop(lingers);
        server.on_event(1, false);
        assert!(matches!(server.recv(), Err(TransportError::Peer(PeerFault::Malformed { .. }))));
        ends.push(other_end);
    }
    assert_eq!((closers.used(), closers.refused()), (2, 0));

    let file = create_memory_file(c"good", 8192).unwrap();
    let (client, mut server) = bed.connect(&domain);
    send(&client, &file);
    server.on_event(1, false);
    let refused = server.recv().map(drop);
    assert!(matches!(refused, Err(TransportError::System { what: "take a descriptor", .. })), "{refused:?}");
    assert_eq!((closers.used(), closers.refused()), (2, 1));
    other_server.on_event(1, false);
    assert!(other_server.recv().unwrap().is_none(), "who sends none is served");

    drop(ends);
    while closers.used() > 0 {
        std::thread::yield_now();
    }
    let (client, mut server) = bed.connect(&domain);
    send(&client, &file);
    server.on_event(1, false);
    assert!(server.recv().unwrap().is_none());
}
