use std::sync::Arc;

use smallvec::smallvec;

use super::*;

fn local(domain: &ShmDomain, bytes: &[u8]) -> MemoryRef {
    let memory = MemoryRef::new(domain.allocate(bytes.len()).unwrap()).slice(0, bytes.len()).unwrap();
    memory.span().write_from(0, bytes);
    memory
}

fn ordinary(bytes: &[u8]) -> MemoryRef {
    let memory = MemoryRef::new(Arc::new(HeapMemory::allocate(bytes.len()).unwrap()));
    let memory = memory.slice(0, bytes.len()).unwrap();
    memory.span().write_from(0, bytes);
    memory
}

fn done(posted: Result<Posted, PostError>) {
    assert_eq!(posted.unwrap(), Posted::Done);
}

fn fault_of(endpoint: &mut ShmEndpoint, posted: Result<Posted, PostError>) -> PeerFault {
    assert_eq!(posted.unwrap(), Posted::Pending);
    let completion = endpoint.poll_completion().unwrap();
    assert_eq!(completion.token, OpToken(7));
    let Err(TransportError::Peer(fault)) = completion.result else { panic!("{completion:?}") };
    let Err(TransportError::Peer(end)) = endpoint.recv() else { panic!("the connection goes on") };
    assert_eq!(end, fault);
    assert!(matches!(endpoint.recv(), Err(TransportError::Closed)));
    fault
}

// [SHM-23] [SHM-25] a region is reached at once after it was registered.
#[test]
fn rdma_both_ways_moves_the_bytes_of_either_kind_of_memory() {
    let client_domain = ShmDomain::new();
    let mut bed = Bed::new(small());
    let (mut client, mut server) = bed.connect(&client_domain);
    assert!(client.capabilities().registers_ordinary_memory, "cross-memory attach to oneself is permitted");
    for make in [
        |domain: &ShmDomain, bytes: &[u8]| local(domain, bytes),
        |_: &ShmDomain, bytes: &[u8]| ordinary(bytes),
    ] {
        let memory = make(&client_domain, &pattern(10_000, 3));
        let region = client_domain.register(memory.clone(), ALL).unwrap();
        let into = local(&bed.server, &[0; 5000]);
        let (first, second) = (into.slice(0, 1).unwrap(), into.slice(1, 4999).unwrap());
        let range = region.range().slice(100, 5000).unwrap();
        done(server.rdma_read(OpToken(1), smallvec![first, second], range));
        assert_eq!(into.span().to_vec(), pattern(10_000, 3)[100..5100]);

        into.span().write_from(0, &pattern(5000, 9));
        let range = region.range().slice(5000, 5000).unwrap();
        let parts = smallvec![into.slice(0, 2500).unwrap(), into.slice(2500, 2500).unwrap()];
        done(server.rdma_write(OpToken(2), parts, range, Some(0xfeed)));
        assert!(matches!(client.recv().unwrap(), Some(Received::Immediate { data: 0xfeed, size: 5000 })));
        assert_eq!(memory.span().to_vec()[..5000], pattern(10_000, 3)[..5000]);
        assert_eq!(memory.span().to_vec()[5000..], pattern(5000, 9));
        done(server.rdma_read(OpToken(1), smallvec![], region.range().slice(10_000, 0).unwrap()));
        assert!(server.poll_completion().is_none());
    }
    assert_eq!(server.counters().remote_copies, 6);
    assert_eq!(server.counters().remote_bytes, 20_000);
}

#[test]
fn remote_memory_is_the_same_memory_where_mapped() {
    let client_domain = ShmDomain::new();
    let mut bed = Bed::new(small());
    let (_client, mut server) = bed.connect(&client_domain);
    let memory = local(&client_domain, &pattern(9000, 1));
    let part = memory.slice(4000, 1000).unwrap();
    let region = client_domain.register(part.clone(), ALL).unwrap();
    let seen = server.remote_memory(&region.range(), Access::REMOTE_READ).unwrap().unwrap();
    assert_eq!(seen.span().to_vec(), part.span().to_vec());
    seen.span().write_from(999, &[0xee]);
    assert_eq!(memory.span().to_vec()[4999], 0xee);
    drop(seen);

    let ordinary = client_domain.register(ordinary(b"abc"), ALL).unwrap();
    assert!(server.remote_memory(&ordinary.range(), Access::REMOTE_READ).unwrap().is_none());
}

#[test]
fn one_region_serves_earlier_and_later_connections() {
    let client_domain = ShmDomain::new();
    let mut bed = Bed::new(small());
    let (_client1, mut server1) = bed.connect(&client_domain);
    let one = client_domain.register(local(&client_domain, b"one"), Access::REMOTE_READ).unwrap();
    let (_client2, mut server2) = bed.connect(&client_domain);
    let two = client_domain.register(local(&client_domain, b"two"), Access::REMOTE_READ).unwrap();
    for server in [&mut server1, &mut server2] {
        for (region, bytes) in [(&one, b"one"), (&two, b"two")] {
            let into = ordinary(&[0; 3]);
            done(server.rdma_read(OpToken(1), smallvec![into.clone()], region.range()));
            assert_eq!(into.span().to_vec(), bytes);
        }
    }
    // Another domain of the same process has no right to them.
    let (_other, mut server3) = bed.connect(&ShmDomain::new());
    let posted = server3.rdma_read(OpToken(7), smallvec![ordinary(&[0; 3])], one.range());
    let fault = fault_of(&mut server3, posted);
    assert_eq!(fault, RegionFault::UnknownKey(one.range().key).into());
}

// [SHM-24] bounds and rights are checked for both kinds of memory.
#[test]
fn remote_access_outside_bounds_rights_or_life_ends_the_connection() {
    let client_domain = ShmDomain::new();
    let mut bed = Bed::new(small());
    for shared in [true, false] {
        let memory = || if shared { local(&client_domain, &[0; 100]) } else { ordinary(&[0; 100]) };
        let region = client_domain.register(memory(), Access::REMOTE_READ).unwrap();
        let key = region.range().key;
        let unused = client_domain.register(memory(), Access::LOCAL).unwrap();
        let gone = client_domain.register(memory(), ALL).unwrap();
        let dropped = gone.range();
        drop(gone);
        let again = client_domain.register(memory(), ALL).unwrap();
        assert_ne!(again.range().key, dropped.key);
        let range = |offset, len| RemoteRange { key, offset, len };
        let out = |offset, len| RegionFault::OutOfBounds { key, offset, len, region_len: 100 };
        let forged = RegionKey(key.0 ^ (1 << 40));
        let cases = [
            (range(1, 100), out(1, 100)),
            (range(100, 1), out(100, 1)),
            (range(u64::MAX, 1), out(u64::MAX, 1)),
            (RemoteRange { key: forged, offset: 0, len: 1 }, RegionFault::UnknownKey(forged)),
            (RemoteRange { key: RegionKey(0), offset: 0, len: 0 }, RegionFault::UnknownKey(RegionKey(0))),
            (dropped.slice(0, 8).unwrap(), RegionFault::UnknownKey(dropped.key)),
            (unused.range(), RegionFault::UnknownKey(unused.range().key)),
        ];
        for (bad, expected) in cases {
            let (_client, mut server) = bed.connect(&client_domain);
            let len = usize::try_from(bad.len).unwrap();
            let into = ordinary(&vec![0; len]).slice(0, len).unwrap();
            assert!(server.remote_memory(&bad, Access::REMOTE_READ).is_err());
            let posted = server.rdma_read(OpToken(7), smallvec![into], bad);
            assert_eq!(fault_of(&mut server, posted), expected.into());
        }
        let (_client, mut server) = bed.connect(&client_domain);
        let posted = server.rdma_write(OpToken(7), smallvec![ordinary(b"x")], range(0, 1), None);
        let fault = fault_of(&mut server, posted);
        assert_eq!(fault, RegionFault::Access { key, access: "remote write" }.into());
    }
}
