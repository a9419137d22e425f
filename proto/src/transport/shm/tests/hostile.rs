//! Peers that break the rules, stall, or die.
#![allow(unsafe_code, reason = "lends memory and descriptors, as hostile peers do")]

use std::os::fd::{AsFd, AsRawFd, OwnedFd};
use std::sync::Arc;
use std::sync::atomic::Ordering;

use smallvec::smallvec;

use super::super::endpoint::{Liveness, ShmEndpoint};
use super::super::handshake::{Message, malformed};
use super::super::layout::{ENTRY_SIZE, Side};
use super::super::map::create_memory_file;
use super::super::sock;
use super::*;

/// Bytes of control words and rings.
fn rings_end(endpoint: &ShmEndpoint) -> usize {
    endpoint.connection.layout.record(Side::Client, 0)
}

fn next_random(state: &mut u64) -> u64 {
    *state ^= *state << 13;
    *state ^= *state >> 7;
    *state ^= *state << 17;
    *state
}

/// Sends one good message from the client and overwrites `bytes` at `at` in its entry before the server looks.
fn recv_scribbled(at: usize, bytes: &[u8]) -> Result<Option<Received>, TransportError> {
    let (mut client, mut server) = pair(small());
    client.send_copy(&pattern(100, 1), &pattern(5000, 2)).unwrap();
    let entry = client.connection.layout.entry(Side::Client, 0);
    client.connection.segment.span().slice(entry, ENTRY_SIZE).unwrap().write_from(at, bytes);
    server.recv()
}

// [SHM-50] [SHM-51] every field of an entry is checked.
#[test]
fn entry_with_a_field_that_cannot_be_ends_the_connection() {
    let le = u32::to_ne_bytes;
    let cases: [(usize, &[u8], &str); 12] = [
        (0, &le(2), "sequence of a ring entry"),
        (0, &le(u32::MAX), "sequence of a ring entry"),
        (4, &le(1), "messages taken"),
        (4, &le(5000), "messages taken"),
        (8, &le(8193), "size of a payload"),
        (8, &le(u32::MAX), "size of a payload"),
        (12, &4u16.to_ne_bytes(), "payload buffer"),
        (12, &u16::MAX.to_ne_bytes(), "payload buffer"),
        (14, &[0], "size of a head"),
        (14, &[113], "size of a head"),
        (15, &[0x81], "size of an embedded payload"),
        (15, &[2], "kind of a ring entry"),
    ];
    for (at, bytes, expected) in cases {
        match recv_scribbled(at, bytes) {
            Err(TransportError::Peer(PeerFault::Malformed { what, .. })) => assert_eq!(what, expected),
            other => panic!("{at}: {other:?}"),
        }
    }
    for kind in [0, 3, 0x80, 0x82, 0xff] {
        assert!(matches!(recv_scribbled(15, &[kind]), Err(TransportError::Peer(_))), "{kind:#x}");
    }
    // The largest values that can be.
    assert!(recv_scribbled(8, &le(8192)).is_ok());
    assert!(recv_scribbled(12, &3u16.to_ne_bytes()).is_ok());
    assert!(recv_scribbled(14, &[112]).is_ok());
    assert!(recv_scribbled(0, &le(0)).unwrap().is_none());
}

// [SHM-70]
#[test]
fn taken_word_ahead_of_what_was_sent_ends_the_connection() {
    let (mut client, server) = pair(small());
    while client.send_copy(&[1], &[]).is_ok() {}
    let word = server.connection.layout.consumed(Side::Client);
    server.connection.segment.word(word).store(77, Ordering::SeqCst);
    assert!(client.reserve(1).is_err());
    assert!(matches!(client.recv(), Err(TransportError::Peer(PeerFault::Malformed { value: 77, .. }))));
}

#[test]
fn segment_scribbled_at_random_never_panics_or_leaves_the_segment() {
    for seed in 1..150u64 {
        let mut random = seed.wrapping_mul(0x9e37_79b9_7f4a_7c15);
        let (mut client, mut server) = pair(small());
        let end = rings_end(&client) as u64;
        for _ in 0..60 {
            for _ in 0..next_random(&mut random) % 6 {
                let at = usize::try_from(next_random(&mut random) % end).unwrap();
                // Small values get further.
                let byte = u8::try_from((next_random(&mut random) % 256) >> (seed % 8)).unwrap();
                client.connection.segment.span().write_from(at, &[byte]);
            }
            let size = usize::try_from(next_random(&mut random) % 8193).unwrap();
            let _ = client.send_copy(&[1; 20], &pattern(size, 1));
            let _ = client.flush();
            if let Ok(Some(Received::Message { payload_len, .. })) = server.recv() {
                let payload = server.payload();
                assert_eq!(payload.len(), payload_len as usize);
                assert!(payload.to_vec().len() <= 8192);
                let _ = server.send_copy(&[2; 30], &[3; 40]);
            }
            let _ = server.flush();
            let _ = server.wait(Some(Duration::ZERO));
            let key = RegionKey(next_random(&mut random));
            let range = RemoteRange { key, offset: 0, len: 0 };
            let _ = server.remote_memory(&range, Access::REMOTE_READ);
            let _ = client.recv();
        }
    }
}

/// What the server says after the client sent this over the socket.
pub(super) fn after_control(message: &Message, files: &[&OwnedFd]) -> TransportError {
    let (client, mut server) = pair(small());
    let fds: Vec<_> = files.iter().map(|file| file.as_fd()).collect();
    sock::send(client.connection.socket.as_fd(), &message.encode(), &fds).unwrap();
    let count = client.connection.layout.control_sent(Side::Client);
    client.connection.segment.word(count).fetch_add(1, Ordering::SeqCst);
    server.recv().unwrap_err()
}

// [SHM-21] [SHM-59] [SHM-61] a memory file that could shrink or that is too small is refused.
#[test]
fn region_in_a_file_that_could_fault_is_refused() {
    let register = |offset, len| Message::Register { key: 4096, offset, len, access: ALL };
    let malformed = |error: TransportError, expected: &str| match error {
        TransportError::Peer(PeerFault::Malformed { what, .. }) => assert_eq!(what, expected),
        other => panic!("{other:?}"),
    };
    let seals = "seals of a region's memory file";
    let end = "end of a region in its memory file";
    let directory = tempfile::tempdir().unwrap();
    let plain: OwnedFd = std::fs::File::create(directory.path().join("file")).unwrap().into();
    let unsealed = rustix::fs::memfd_create("unsealed", rustix::fs::MemfdFlags::ALLOW_SEALING).unwrap();
    rustix::fs::ftruncate(&unsealed, 8192).unwrap();
    let good = create_memory_file(c"good", 8192).unwrap();
    malformed(after_control(&register(0, 100), &[&plain]), seals);
    malformed(after_control(&register(0, 100), &[&unsealed]), seals);
    malformed(after_control(&register(0, 8193), &[&good]), end);
    malformed(after_control(&register(8192, 1), &[&good]), end);
    malformed(after_control(&register(u64::MAX, 2), &[&good]), end);
    malformed(after_control(&register(0, u64::MAX), &[&good]), "bytes of registered regions");
    malformed(after_control(&register(0, 1), &[&good, &plain]), seals);
    malformed(after_control(&register(0, 1), &[]), "kind of a socket message");
    malformed(after_control(&register(0, 1), &[&good, &good]), "kind of a socket message");
    malformed(after_control(&Message::Unregister { key: 4096 }, &[]), "key of a region that ends");
    malformed(after_control(&Message::Ready { cma: true }, &[]), "kind of a socket message");
    let ordinary = Message::Register { key: 1 << 63, offset: 0, len: 1, access: ALL };
    malformed(after_control(&ordinary, &[&good]), "key of a region in a memory file");
}

/// A descriptor whose close waits for an hour, or until the other end is gone: that takes none of what was sent.
pub(super) fn lingering() -> (OwnedFd, std::net::TcpStream) {
    use std::io::Write;
    let listener = std::net::TcpListener::bind((std::net::Ipv4Addr::LOCALHOST, 0)).unwrap();
    socket2::SockRef::from(&listener).set_recv_buffer_size(4096).unwrap();
    let mut lingers = std::net::TcpStream::connect(listener.local_addr().unwrap()).unwrap();
    let (other, _) = listener.accept().unwrap();
    socket2::SockRef::from(&lingers).set_send_buffer_size(1 << 18).unwrap();
    lingers.set_nonblocking(true).unwrap();
    // More than the other end has room for: on a busy machine it receives much of this only later.
    let sent = lingers.write(&[0; 1 << 16]).unwrap();
    assert!(sent > 1 << 14, "{sent} bytes");
    socket2::SockRef::from(&lingers).set_linger(Some(Duration::from_secs(3600))).unwrap();
    (lingers.into(), other)
}

// [PROV-26] [SHM-71]
#[test]
fn descriptor_that_comes_with_a_message_of_no_bytes_holds_nobody_up() {
    let (client, mut server) = pair(small());
    let (lingers, other) = lingering();
    sock::send(client.connection.socket.as_fd(), &[], &[lingers.as_fd()]).unwrap();
    drop(lingers);
    let (ended, hears) = std::sync::mpsc::channel();
    std::thread::spawn(move || {
        server.on_event(1, false);
        ended.send(server.recv().map(drop)).unwrap();
    });
    let end = hears.recv_timeout(LONG).expect("the server does not wait for the close");
    assert!(matches!(end, Err(TransportError::Peer(PeerFault::Malformed { .. }))), "{end:?}");
    drop(other);
}

// [SHM-2] the client cannot cut the segment or a region under the server.
#[test]
fn memory_files_cannot_be_truncated() {
    let memory = ShmDomain::new().allocate(5000).unwrap();
    let fd = memory.shared_fd().unwrap().fd;
    for len in [0, 4096, 1 << 20] {
        // SAFETY: a plain system call.
        assert_eq!(unsafe { libc::ftruncate(fd, len) }, -1);
    }
    memory.span().write_from(4999, &[1]);
}

#[test]
fn region_in_memory_that_is_not_sealed_cannot_be_registered() {
    struct Unsealed(HeapMemory, OwnedFd);
    // SAFETY: the heap memory stays in place.
    unsafe impl Memory for Unsealed {
        fn span(&self) -> Span<'_> {
            self.0.span()
        }
        fn shared_fd(&self) -> Option<SharedFd> {
            Some(SharedFd { fd: self.1.as_raw_fd(), offset: 0 })
        }
    }
    let file: OwnedFd = tempfile::tempfile().unwrap().into();
    let memory = MemoryRef::new(Arc::new(Unsealed(HeapMemory::allocate(100).unwrap(), file)));
    assert!(matches!(ShmDomain::new().register(memory, ALL), Err(RegionError::Unsupported { .. })));
}

// [SHM-27] [SHM-28] the end of a region waits for the accesses in progress, on open and on closed connections.
#[test]
fn region_dropped_during_an_access_waits_for_its_end() {
    for close_first in [false, true] {
        let domain = ShmDomain::new();
        let mut bed = Bed::new(small());
        let (mut client, mut server) = bed.connect(&domain);
        let memory = MemoryRef::new(domain.allocate(4096).unwrap());
        let region = domain.register(memory.clone(), ALL).unwrap();
        let range = region.range();
        let loan = server.remote_memory(&range, ALL).unwrap().unwrap();
        if close_first {
            drop(server);
            client.close();
            drop(client);
            assert_eq!(domain.connection_counts(), (0, 1));
        }
        let (started, has_started) = std::sync::mpsc::channel();
        let dropper = std::thread::spawn(move || {
            started.send(()).unwrap();
            drop(region);
        });
        has_started.recv().unwrap();
        for _ in 0..1000 {
            std::thread::yield_now();
        }
        assert!(!dropper.is_finished());
        loan.span().write_from(0, &[9]);
        drop(loan);
        dropper.join().unwrap();
        assert_eq!(memory.span().to_vec()[0], 9);
        if close_first {
            assert_eq!(domain.connection_counts(), (0, 0));
        }
    }
}

// [SHM-29]
#[test]
fn region_still_used_after_the_wait_keeps_its_memory_for_good() {
    let config = ShmConfig { revoke_wait_max: Duration::ZERO, ..ShmConfig::default() };
    let domain = ShmDomain::with_config(config);
    let mut bed = Bed::new(small());
    let (_client, mut server) = bed.connect(&domain);
    for held in [true, false] {
        let memory = domain.allocate(4096).unwrap();
        let watch = Arc::downgrade(&memory);
        let region = domain.register(MemoryRef::new(memory), ALL).unwrap();
        let loan = server.remote_memory(&region.range(), ALL).unwrap().filter(|_| held);
        drop(region);
        drop(loan);
        assert_eq!(watch.upgrade().is_some(), held);
    }
}

// [SHM-22] registrations that the peer does not take hold the messages after them back.
#[test]
fn message_never_overtakes_a_registration() {
    let domain = ShmDomain::new();
    let mut bed = Bed::new(small());
    let (mut client, mut server) = bed.connect(&domain);
    let memory = MemoryRef::new(domain.allocate(4096).unwrap());
    let mut regions = Vec::new();
    while !client.connection.has_waiting() {
        regions.push(domain.register(memory.clone(), ALL).unwrap());
    }
    assert!(client.wants_flush());
    assert!(matches!(client.reserve(1), Err(PostError::Full)));
    assert!(server.recv().unwrap().is_none());
    client.send_copy(b"after", b"").unwrap();
    assert_eq!(take(&mut server).unwrap().0, b"after");
    for region in &regions {
        assert!(server.remote_memory(&region.range(), ALL).unwrap().is_some());
    }
}

// [SHM-80]
#[test]
fn peer_that_leaves_its_messages_about_regions_unread_loses_its_connection() {
    let domain = ShmDomain::new();
    let mut bed = Bed::new(small());
    let (mut client, _server) = bed.connect(&domain);
    let memory = MemoryRef::new(domain.allocate(4096).unwrap());
    // A region and its end are two messages; the socket has room for some.
    for _ in 0..8192 + 512 {
        drop(domain.register(memory.clone(), ALL).unwrap());
    }
    assert!(matches!(client.reserve(1), Err(PostError::Closed)));
    assert!(matches!(client.recv(), Err(TransportError::System { .. })));
}

// [SHM-26]
#[test]
fn ordinary_memory_that_is_not_there_ends_the_connection() {
    let domain = ShmDomain::new();
    let mut bed = Bed::new(small());
    let (_client, mut server) = bed.connect(&domain);
    // SAFETY: never touched by this process; the mapping is inaccessible, which is the point.
    let memory = unsafe {
        let none = libc::mmap(
            std::ptr::null_mut(),
            8192,
            libc::PROT_NONE,
            libc::MAP_PRIVATE | libc::MAP_ANONYMOUS,
            -1,
            0,
        );
        BorrowedMemory::new(none.cast(), 8192)
    };
    let region = domain.register(MemoryRef::new(Arc::new(memory)), ALL).unwrap();
    let into = MemoryRef::new(Arc::new(HeapMemory::allocate(8192).unwrap()));
    let posted = server.rdma_read(OpToken(1), smallvec![into], region.range()).unwrap();
    assert_eq!(posted, Posted::Pending);
    let completion = server.poll_completion().unwrap();
    assert!(matches!(completion.result, Err(TransportError::Peer(PeerFault::Malformed { value: 0, .. }))));
    assert!(matches!(server.recv(), Err(TransportError::Peer(_))));
}

#[test]
fn a_thousand_connections_each_progress_and_leave_nothing() {
    let (client_domain, mut bed) = (ShmDomain::new(), Bed::new(small()));
    let memory = MemoryRef::new(client_domain.allocate(4096).unwrap());
    memory.span().write_from(0, b"shared");
    let region = client_domain.register(memory, Access::REMOTE_READ).unwrap();
    let mut pairs: Vec<_> = (0..1000).map(|_| bed.connect(&client_domain)).collect();
    for (client, _) in &mut pairs {
        client.send_copy(b"hello", &[]).unwrap();
        client.flush().unwrap();
    }
    for (_, server) in &mut pairs {
        assert_eq!(take(server).unwrap().0, b"hello");
        let into = MemoryRef::new(Arc::new(HeapMemory::allocate(6).unwrap()));
        let range = region.range().slice(0, 6).unwrap();
        server.rdma_read(OpToken(1), smallvec![into.clone()], range).unwrap();
        assert_eq!(into.span().to_vec(), b"shared");
    }
    drop(pairs);
    assert_eq!(client_domain.connection_counts(), (0, 0));
}

// [SHM-63] what is counted was sent; what was sent and not counted keeps nobody awake.
#[test]
fn count_of_socket_messages_that_is_wrong_keeps_nobody_awake() {
    let (client, mut server) = pair(small());
    let count = client.connection.layout.control_sent(Side::Client);
    let file = create_memory_file(c"good", 8192).unwrap();
    let message = Message::Register { key: 4096, offset: 0, len: 100, access: ALL };
    sock::send(client.connection.socket.as_fd(), &message.encode(), &[file.as_fd()]).unwrap();
    server.on_event(1, false);
    assert!(server.recv().unwrap().is_none());
    assert!(server.arm(), "one more came than was counted");

    for ahead in [1, 5, 1 << 30] {
        let (client, mut server) = pair(small());
        client.connection.segment.word(count).store(ahead, Ordering::SeqCst);
        assert!(!server.arm());
        match server.recv() {
            Err(TransportError::Peer(PeerFault::Malformed { value, limit: 0, .. })) => {
                assert_eq!(value, u64::from(ahead));
            }
            other => panic!("{ahead}: {other:?}"),
        }
    }
}

// What ended a connection stays the reason, and what is closed stays closed, when the socket fails later.
#[test]
fn ended_connection_ignores_a_failure_of_its_socket() {
    let (_client, mut server) = pair(small());
    let bell = sock::eventfd().unwrap();
    let socket = server.connection.socket.as_raw_fd();
    // SAFETY: a plain system call; the connection still owns a descriptor of this number.
    assert_eq!(unsafe { libc::dup2(bell.as_raw_fd(), socket) }, socket);
    server.fail(malformed("a test", 1, 0));
    server.drain_control(1);
    assert!(matches!(server.recv(), Err(TransportError::Peer(_))));
    server.drain_control(1);
    assert!(matches!(server.state, Liveness::Closed));
}

// [SHM-32] [SHM-60] The sum of all lengths is bounded, whatever they are.
#[test]
fn regions_whose_lengths_overflow_together_are_refused() {
    let domain = ShmDomain::new();
    let mut bed = Bed::new(small());
    let (client, mut server) = bed.connect(&domain);
    let memory = MemoryRef::new(domain.allocate(4096).unwrap());
    let region = domain.register(memory, ALL).unwrap();
    let count = client.connection.layout.control_sent(Side::Client);
    assert_eq!(client.connection.segment.word(count).load(Ordering::SeqCst), 1);
    let key = (region.range().key.0 & 4095) + 4097;
    let file = create_memory_file(c"good", 8192).unwrap();
    let message = Message::Register { key, offset: 0, len: u64::MAX, access: ALL };
    sock::send(client.connection.socket.as_fd(), &message.encode(), &[file.as_fd()]).unwrap();
    server.on_event(1, false);
    let refused = server.recv().unwrap_err();
    assert!(
        matches!(refused, TransportError::Peer(PeerFault::Malformed { value: u64::MAX, .. })),
        "{refused}"
    );
}

// [SHM-72] whether they were counted or not; what was left keeps this side awake until it is taken, and the end behind it too.
#[test]
fn registrations_without_end_are_taken_a_few_in_a_turn() {
    for counted in [true, false] {
        let (mut client, mut server) = pair(small());
        let file = create_memory_file(c"good", 8192).unwrap();
        let socket = client.connection.socket.as_fd();
        let count = client.connection.layout.control_sent(Side::Client);
        for key in (4096..).step_by(4096).take(70) {
            let register = Message::Register { key, offset: 0, len: 100, access: ALL };
            sock::send(socket, &register.encode(), &[file.as_fd()]).unwrap();
            sock::send(socket, &Message::Unregister { key }.encode(), &[]).unwrap();
            client.connection.segment.word(count).fetch_add(if counted { 2 } else { 0 }, Ordering::SeqCst);
        }
        client.close();
        server.on_event(1, false);
        for seen in [64, 128] {
            assert!(server.recv().unwrap().is_none());
            assert_eq!(server.control_seen, seen);
            assert!(!server.arm(), "there is more");
        }
        assert!(matches!(server.recv(), Err(TransportError::Closed)));
        assert_eq!(server.control_seen, 140);
    }
}

// [SHM-33] who cannot reach this side's ordinary memory cannot hold up the end of a region either.
#[test]
fn peer_merely_claiming_ordinary_memory_is_not_waited_for() {
    let domain = ShmDomain::new();
    let mut bed = Bed::new(small());
    let (client, server) = bed.connect(&domain);
    client.connection.set_peer_reaches_us(false);
    let other = bed.connect(&domain);
    let memory = MemoryRef::new(Arc::new(HeapMemory::allocate(4096).unwrap()));
    let region = domain.register(memory, ALL).unwrap();
    let slot = u16::try_from(region.range().key.0 & 4095).unwrap();
    let record = server.connection.layout.record(Side::Client, slot);
    let in_use = record + remote::RECORD_IN_USE;
    server.connection.segment.word(in_use).store(1, Ordering::SeqCst);
    let (ended, has_ended) = std::sync::mpsc::channel();
    std::thread::spawn(move || {
        drop(region);
        ended.send(()).unwrap();
    });
    has_ended.recv_timeout(LONG).unwrap();
    drop(other);
}

// [SHM-35] one connection's region: its end waits for nobody, and what others count in their segments does not matter.
#[test]
fn end_of_a_connections_own_region_waits_for_nobody() {
    let mut bed = Bed::new(small());
    let (_client, mut server) = bed.connect(&ShmDomain::new());
    let (_other_client, other) = bed.connect(&ShmDomain::new());
    let memory = Arc::new(HeapMemory::allocate(4096).unwrap());
    let held = Arc::downgrade(&memory);
    let domain = bed.server.clone();
    let region = server.register(&domain, MemoryRef::new(memory), ALL).unwrap();
    let slot = u16::try_from(region.range().key.0 & 4095).unwrap();
    let in_use = |endpoint: &ShmEndpoint| {
        endpoint.connection.layout.record(Side::Server, slot) + remote::RECORD_IN_USE
    };
    assert_eq!(
        other
            .connection
            .segment
            .long(other.connection.layout.record(Side::Server, slot))
            .load(Ordering::SeqCst),
        0
    );
    other.connection.segment.word(in_use(&other)).store(9, Ordering::SeqCst);
    let own = server.connection.segment.word(in_use(&server));
    own.store(1, Ordering::SeqCst);
    drop(region);
    assert!(held.upgrade().is_some(), "its peer may still be at it");
    own.store(0, Ordering::SeqCst);
    let next = server.register(&domain, MemoryRef::new(Arc::new(HeapMemory::allocate(4096).unwrap())), ALL);
    drop(next);
    assert!(held.upgrade().is_none());
}

// [SHM-31] Needs root, which could reach the memory of any process.
#[test]
#[ignore = "needs root"]
fn memory_of_another_users_process_is_left_alone() {
    use std::os::unix::fs::PermissionsExt;
    use std::os::unix::process::CommandExt;
    if let Some(path) = std::env::var_os(OTHER_PROCESS) {
        return other_process(path);
    }
    let mut bed = Bed::new(small());
    let Address::Shm(path) = &bed.address else { panic!() };
    let open = std::fs::Permissions::from_mode(0o755);
    std::fs::set_permissions(path.parent().unwrap(), open).unwrap();
    let mut child = std::process::Command::new(std::env::current_exe().unwrap())
        .args([
            "--ignored",
            "--exact",
            "transport::shm::tests::hostile::memory_of_another_users_process_is_left_alone",
        ])
        .env(OTHER_PROCESS, path)
        .stdout(std::process::Stdio::null())
        .uid(65_534)
        .gid(65_534)
        .spawn()
        .unwrap();
    let server = bed.accept();
    assert_eq!(server.capabilities().peer.credentials.as_ref().map(|peer| peer.uid), Some(65_534));
    assert!(server.connection.peer_process.is_none());
    assert!(!server.capabilities().registers_ordinary_memory);
    assert!(child.wait().unwrap().success(), "it was told so");
}

/// Ends what hangs, in a process that is a test's own.
pub(super) fn end_process_in_a_minute() {
    // SAFETY: a plain system call.
    unsafe { libc::alarm(60) };
}

/// Sets the soft limit of descriptors of the whole process; returns the one before.
pub(super) fn limit_descriptors(limit: u64) -> u64 {
    let mut limits = libc::rlimit { rlim_cur: 0, rlim_max: 0 };
    // SAFETY: a valid structure.
    assert_eq!(unsafe { libc::getrlimit(libc::RLIMIT_NOFILE, &raw mut limits) }, 0);
    let before = std::mem::replace(&mut limits.rlim_cur, limit);
    // SAFETY: a valid structure.
    assert_eq!(unsafe { libc::setrlimit(libc::RLIMIT_NOFILE, &raw const limits) }, 0);
    before
}

/// Set where a test runs as the other process of itself: the server's socket.
const OTHER_PROCESS: &str = "DAFS_SHM_TEST_SOCKET";

/// Connects, and lets the server reach its memory until it is killed; ends where it was told that its memory is left alone.
fn other_process(path: std::ffi::OsString) {
    let domain = ShmDomain::new();
    let mut client = domain.connect_endpoint(&Address::Shm(path.into()), &small(), LONG).unwrap();
    if !client.capabilities().registers_ordinary_memory {
        return;
    }
    let memory = MemoryRef::new(Arc::new(HeapMemory::allocate(100_000).unwrap()));
    memory.span().write_from(0, &pattern(100_000, 5));
    let region = domain.register(memory, ALL).unwrap();
    let range = region.range();
    client.send_copy(&range.key.0.to_ne_bytes(), &[]).unwrap();
    loop {
        client.wait(None).unwrap();
        client.recv().unwrap();
    }
}

// [SHM-20] Both by `recv` and in `wait`, and no more often: each look is a system call.
#[test]
fn side_that_spins_looks_at_the_socket_every_4096_polls() {
    let (client, mut server) = pair(ConnectParams { wait: WaitPolicy::Busy, ..small() });
    let mut polls_to_look = || {
        let looks = server.counters().socket_looks;
        (1..=4096).find(|_| {
            assert!(server.recv().unwrap().is_none());
            server.counters().socket_looks != looks
        })
    };
    assert!(polls_to_look().is_some());
    assert_eq!([polls_to_look(), polls_to_look()], [Some(4096); 2]);
    drop(client);
    // Nothing but the socket tells of it, and one `recv` is one poll.
    server.wait(Some(LONG)).unwrap();
    assert!(matches!(server.recv(), Err(TransportError::Closed)));
}

// [SHM-4] [SHM-25] across processes; after its death nothing is reached, and a spinning peer notices.
#[test]
fn peer_killed_is_seen_and_its_memory_was_reached() {
    if let Some(path) = std::env::var_os(OTHER_PROCESS) {
        return other_process(path);
    }
    let mut bed = Bed::new(ConnectParams { wait: WaitPolicy::Busy, ..small() });
    let Address::Shm(path) = &bed.address else { panic!() };
    let mut child = std::process::Command::new(std::env::current_exe().unwrap())
        .args(["--exact", "transport::shm::tests::hostile::peer_killed_is_seen_and_its_memory_was_reached"])
        .env(OTHER_PROCESS, path)
        .stdout(std::process::Stdio::null())
        .spawn()
        .unwrap();
    let mut server = bed.accept();
    let head = loop {
        if let Some((head, _)) = take(&mut server) {
            break head;
        }
        server.wait(None).unwrap();
    };
    let key = RegionKey(u64::from_ne_bytes(head.try_into().unwrap()));
    let range = RemoteRange { key, offset: 0, len: 100_000 };
    let into = MemoryRef::new(Arc::new(HeapMemory::allocate(100_000).unwrap()));
    let permitted = server.connection.peer_process.is_some();
    if permitted {
        assert_eq!(server.rdma_read(OpToken(1), smallvec![into.clone()], range).unwrap(), Posted::Done);
        assert_eq!(into.span().to_vec(), pattern(100_000, 5));
    }
    child.kill().unwrap();
    child.wait().unwrap();
    if permitted {
        // Its memory is gone before its socket says so.
        assert_eq!(server.rdma_read(OpToken(1), smallvec![into], range).unwrap(), Posted::Pending);
        assert!(server.poll_completion().unwrap().result.is_err());
    }
    // Spinning, and still the end is noticed.
    let end = loop {
        match server.recv() {
            Ok(_) => server.wait(None).unwrap(),
            Err(error) => break error,
        }
    };
    assert!(matches!(end, TransportError::Closed));
}
