//! Regions as peers change them, and their end.
#![allow(unsafe_code, reason = "mounts a file system")]

use std::os::fd::{AsFd, AsRawFd};
use std::sync::Arc;
use std::sync::atomic::Ordering;

use socket2::{Socket, Type};

use super::super::closing::PeerSocket;
use super::super::domain::Parts;
use super::super::handshake::{Message, NonceClaim};
use super::super::layout::{Layout, RingTerms, Side};
use super::super::map::{Mapping, create_memory_file};
use super::super::sock;
use super::hostile::after_control;
use super::*;

// [SHM-64] The record says more than was registered.
#[test]
fn mapped_memory_has_bounds_and_rights_of_its_register_message() {
    let domain = ShmDomain::new();
    let mut bed = Bed::new(small());
    let memory = MemoryRef::new(domain.allocate(4096).unwrap()).slice(0, 100).unwrap();
    let region = domain.register(memory, Access::REMOTE_READ).unwrap();
    let key = region.range().key;
    let longer = RemoteRange { len: 101, ..region.range() };
    for (range, wanted) in [(longer, Access::REMOTE_READ), (region.range(), Access::REMOTE_WRITE)] {
        let (client, mut server) = bed.connect(&domain);
        assert!(server.remote_memory(&region.range(), Access::REMOTE_READ).is_ok());
        let record = client.connection.layout.record(Side::Client, remote::key_slot(key.0));
        let segment = &client.connection.segment;
        segment.long(record + remote::RECORD_LEN).store(4096, Ordering::SeqCst);
        segment.word(record + remote::RECORD_ACCESS).store(3, Ordering::SeqCst);
        let refused = server.remote_memory(&range, wanted);
        assert!(matches!(refused, Err(RegionError::Fault(_))), "{refused:?}");
    }
}

// [SHM-68]
#[test]
fn end_of_ordinary_memory_waits_for_the_peers_use() {
    let config = ShmConfig { revoke_wait_max: Duration::ZERO, ..ShmConfig::default() };
    let domain = ShmDomain::with_config(config);
    let mut bed = Bed::new(small());
    let (client, server) = bed.connect(&domain);
    assert!(client.connection.peer_reaches_us.load(Ordering::SeqCst), "permitted towards oneself");
    let memory = MemoryRef::new(Arc::new(HeapMemory::allocate(4096).unwrap()));
    let region = domain.register(memory, ALL).unwrap();
    let record = server.connection.layout.record(Side::Client, remote::key_slot(region.range().key.0));
    let in_use = server.connection.segment.word(record + remote::RECORD_IN_USE);
    in_use.store(1, Ordering::SeqCst);
    let dropper = std::thread::spawn(move || drop(region));
    for _ in 0..1000 {
        std::thread::yield_now();
    }
    assert!(!dropper.is_finished());
    in_use.store(0, Ordering::SeqCst);
    dropper.join().unwrap();
}

// [SHM-67]
#[test]
fn end_of_region_does_not_wait_for_a_dead_peer() {
    let domain = ShmDomain::new();
    let mut bed = Bed::new(small());
    let (_client, server) = bed.connect(&domain);
    let memory = MemoryRef::new(Arc::new(HeapMemory::allocate(4096).unwrap()));
    let region = domain.register(memory, ALL).unwrap();
    let record = server.connection.layout.record(Side::Client, remote::key_slot(region.range().key.0));
    server.connection.segment.word(record + remote::RECORD_IN_USE).store(1, Ordering::SeqCst);
    drop(server);
    let (ended, has_ended) = std::sync::mpsc::channel();
    std::thread::spawn(move || {
        drop(region);
        ended.send(()).unwrap();
    });
    has_ended.recv_timeout(LONG).unwrap();
}

// [SHM-65]
#[test]
fn claim_to_reach_this_side_needs_same_user_or_root() {
    let way = RingTerms { depth: 1, payload_max: 0 };
    let layout = Layout::negotiate(way, way);
    let file = create_memory_file(c"segment", layout.size()).unwrap();
    let segment = Mapping::new(file.as_fd(), 0, layout.size(), true).unwrap();
    let (socket, _peer) = Socket::pair(socket2::Domain::UNIX, Type::SEQPACKET, None).unwrap();
    let bells = (sock::eventfd().unwrap(), sock::eventfd().unwrap());
    let socket = PeerSocket::new(socket, ShmDomain::new().closers());
    let parts = Parts { side: Side::Server, layout, segment, socket, bells };
    let claim = NonceClaim { address: 0, bytes: [0; 16] };
    let (domain, peer) = (ShmDomain::new(), sock::peer_credentials(parts.socket.as_fd()).unwrap());
    let process = domain.hold(&peer).unwrap();
    let mut connection = domain.connection(parts, peer, (process, claim));
    let own = sock::own_user();
    for (uid, claims, believed) in
        [(own, true, true), (own, false, false), (0, true, true), (own + 1, true, false)]
    {
        connection.peer.uid = uid;
        connection.set_peer_reaches_us(claims);
        let reaches = connection.peer_reaches_us.load(Ordering::SeqCst);
        assert_eq!(reaches, believed, "user {uid} of {own}, who claims {claims}");
    }
}

// [SHM-34] A file system that a program serves, which never answers, not even the first message.
#[test]
#[ignore = "needs fuse"]
fn descriptor_of_a_file_system_that_never_answers_is_refused_at_once() {
    use std::ffi::CString;
    use std::os::unix::ffi::OsStrExt;
    let directory = tempfile::tempdir().unwrap();
    let place = CString::new(directory.path().as_os_str().as_bytes()).unwrap();
    let serves = std::fs::OpenOptions::new().read(true).write(true).open("/dev/fuse").unwrap();
    let options =
        CString::new(format!("fd={},rootmode=40000,user_id=0,group_id=0", serves.as_raw_fd())).unwrap();
    // SAFETY: all strings are there for the call.
    let mounted = unsafe {
        libc::mount(c"none".as_ptr(), place.as_ptr(), c"fuse".as_ptr(), 0, options.as_ptr().cast())
    };
    assert_eq!(mounted, 0, "{}", std::io::Error::last_os_error());
    let flags = rustix::fs::OFlags::PATH | rustix::fs::OFlags::CLOEXEC;
    let root = rustix::fs::open(directory.path(), flags, rustix::fs::Mode::empty()).unwrap();
    let (refused, hears) = std::sync::mpsc::channel();
    let sends = std::thread::spawn(move || {
        let register = Message::Register { key: 4096, offset: 0, len: 100, access: ALL };
        refused.send(after_control(&register, &[&root])).unwrap();
    });
    let refused = hears.recv_timeout(Duration::from_secs(30));
    // Whoever waits for the file system is told that it is gone.
    drop(serves);
    sends.join().unwrap();
    // SAFETY: as above.
    assert_eq!(unsafe { libc::umount2(place.as_ptr(), libc::MNT_DETACH) }, 0);
    let refused = refused.expect("the server does not wait for the file system");
    assert!(matches!(refused, TransportError::Peer(PeerFault::Malformed { .. })), "{refused:?}");
}

// [SHM-79] [PROV-26]
#[test]
fn registration_without_a_descriptor_ends_the_connection_recoverably() {
    let name = "regions::registration_without_a_descriptor_ends_the_connection_recoverably";
    in_own_process(name, || {
        let domain = ShmDomain::new();
        let mut bed = Bed::new(small());
        let (_client, mut server) = bed.connect(&domain);
        let region = domain.register(MemoryRef::new(domain.allocate(4096).unwrap()), ALL).unwrap();
        let before = hostile::limit_descriptors(0);
        server.on_event(1, false);
        let end = server.recv();
        hostile::limit_descriptors(before);
        assert!(matches!(end, Err(TransportError::System { .. })), "{end:?}");
        let (_client, mut server) = bed.connect(&domain);
        assert!(server.remote_memory(&region.range(), ALL).unwrap().is_some());
    });
}

// The kernel would end the process by a signal.
#[test]
fn memory_beyond_the_limit_of_file_sizes_is_refused() {
    in_own_process("regions::memory_beyond_the_limit_of_file_sizes_is_refused", || {
        let limit = libc::rlimit { rlim_cur: 1 << 20, rlim_max: 1 << 20 };
        // SAFETY: a valid structure.
        assert_eq!(unsafe { libc::setrlimit(libc::RLIMIT_FSIZE, &raw const limit) }, 0);
        let domain = ShmDomain::new();
        drop(domain.allocate(1 << 20).unwrap());
        assert!(matches!(domain.allocate((1 << 20) + 1), Err(RegionError::System { .. })));
        let directory = tempfile::tempdir().unwrap();
        let address = Address::Shm(directory.path().join("socket"));
        let large = ConnectParams { recv_payload_max: 1 << 20, ..small() };
        let refused = domain.listen_at(&address, &large).err().unwrap();
        assert!(refused.to_string().contains("File too large"), "{refused}");
    });
}
