//! The golden bytes of `spec/vectors/shm.txt`, and a client made by hand from the page.
#![cfg(target_endian = "little")]

use std::collections::BTreeSet;
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::fs::FileExt;
use std::sync::Arc;

use rustix::fs::{MemfdFlags, SealFlags, fcntl_get_seals, ftruncate, memfd_create};

use super::super::super::util::vectors::{Vector, check_kinds, vectors};
use super::super::handshake::{MESSAGE_SIZE, Message};
use super::super::layout::{ENTRY_SIZE, Layout, RECORD_SIZE, RingTerms, Side};
use super::super::map::create_memory_file;
use super::super::remote::{Loan, RemoteRegions, Resolved, ShmLimits, Unreachable};
use super::super::sock::{self, Incoming};
use super::*;
use crate::budget::Owner;

const VECTORS: &str = include_str!("../../../../../spec/vectors/shm.txt");
const SOCKET: [&str; 6] = ["hello", "welcome", "ready", "register", "unregister", "descriptor"];
const ENTRIES: [&str; 3] = ["message", "embedded message", "immediate"];
const RECORDS: [&str; 1] = ["region record"];

fn of_kinds(kinds: &[&str]) -> Vec<Vector> {
    vectors(VECTORS).into_iter().filter(|vector| kinds.iter().any(|kind| vector.is(kind))).collect()
}

fn golden(name: &str) -> Vec<u8> {
    let vector = vectors(VECTORS).into_iter().find(|vector| vector.name == name && !vector.is_refused);
    vector.unwrap_or_else(|| panic!("no vector {name:?}")).bytes
}

/// A message of the socket, where it can be one: a client also looks whether the limits of a welcome are kept.
fn read(bytes: &[u8]) -> Option<Message> {
    check_control_message(bytes).ok()?;
    let message = Message::decode(bytes.first_chunk()?, MESSAGE_SIZE).ok()?;
    if let Message::Welcome { to_server, to_client, .. } = message {
        Layout::stated(to_server, to_client)?;
    }
    Some(message)
}

fn kind_of(message: &Message) -> &'static str {
    match message {
        Message::Hello { .. } => "hello",
        Message::Welcome { .. } => "welcome",
        Message::Ready { .. } => "ready",
        Message::Register { .. } => "register",
        Message::Unregister { .. } => "unregister",
        Message::Descriptor { .. } => "descriptor",
    }
}

// [SHM-37] [SHM-47]
#[test]
fn messages_of_the_vectors_are_taken_and_refused_as_they_say() {
    check_kinds(&vectors(VECTORS), &[&SOCKET[..], &ENTRIES, &RECORDS].concat());
    for vector in of_kinds(&SOCKET) {
        let message = read(&vector.bytes);
        match vector.is_refused {
            true => assert!(message.is_none(), "{} is taken", vector.name),
            false => {
                let message = message.unwrap_or_else(|| panic!("{} is refused", vector.name));
                assert!(vector.is(kind_of(&message)), "{}", vector.name);
                assert_eq!(message.encode()[..], vector.bytes, "{}", vector.name);
            }
        }
    }
    // Every kind that the decoder knows is in the list.
    let known = (0..=u8::MAX).filter_map(|kind| {
        let mut bytes = golden("welcome");
        bytes[0] = kind;
        read(&bytes).as_ref().map(kind_of)
    });
    assert_eq!(known.collect::<BTreeSet<_>>(), BTreeSet::from(SOCKET));
}

// [SHM-51]
#[test]
fn entries_of_the_vectors_are_taken_and_refused_as_they_say() {
    for vector in of_kinds(&ENTRIES) {
        let (client, mut server) = pair(small());
        let at = client.connection.layout.entry(Side::Client, 0);
        let entry = client.connection.segment.span().slice(at, ENTRY_SIZE).unwrap();
        entry.write_from(0, &vector.bytes);
        match (vector.is_refused, server.recv()) {
            (true, Err(TransportError::Peer(PeerFault::Malformed { .. }))) => {}
            (false, Ok(Some(Received::Immediate { data: 0xfeed, size: 5000 }))) => {
                assert!(vector.is("immediate"));
            }
            (false, Ok(Some(Received::Message { head, payload_len }))) => {
                assert_eq!(head.as_bytes(), b"head", "{}", vector.name);
                assert_eq!(payload_len.to_le_bytes(), vector.bytes[8..12], "{}", vector.name);
                assert!(!vector.is("embedded message") || server.payload().to_vec() == b"payload");
            }
            (_, other) => panic!("{}: {other:?}", vector.name),
        }
    }
}

// [SHM-10] [SHM-12]
#[test]
fn entries_are_written_as_the_vectors_say() {
    let cases: [(&str, &[u8]); 4] = [
        ("message", &[7; 5000]),
        ("message, no payload", &[]),
        ("embedded message", b"payload"),
        ("immediate", &[]),
    ];
    for (name, payload) in cases {
        let (mut client, _server) = pair(small());
        match name {
            "immediate" => {
                client.make_room().unwrap();
                client.post_immediate(0xfeed, 5000);
            }
            _ => client.send_copy(b"head", payload).unwrap(),
        }
        let (at, expected) = (client.connection.layout.entry(Side::Client, 0), golden(name));
        let written = client.connection.segment.span().slice(at, expected.len()).unwrap();
        assert_eq!(written.to_vec(), expected, "{name}");
    }
}

// [SHM-24] Its address may be made up: nothing is read.
#[test]
fn records_of_the_vectors_are_taken_and_refused_as_they_say() {
    let key = RegionKey(0x9122_3344_5577_0007);
    let range = RemoteRange { key, offset: 4096, len: 100 };
    for vector in of_kinds(&RECORDS) {
        let (_client, server) = pair(small());
        let connection = &server.connection;
        let at = connection.layout.record(Side::Client, 7);
        let record = connection.segment.span().slice(at, RECORD_SIZE).unwrap();
        record.write_from(0, &vector.bytes);
        let regions = RemoteRegions::new(ShmLimits::default(), Owner::User(1));
        let loan = Loan::begin(Arc::clone(connection), key);
        let found = loan.as_ref().map(|_| regions.resolve(connection, &range, Access::REMOTE_READ));
        match (vector.is_refused, found) {
            (false, Some(Ok(Resolved::Ordinary(0x7000_0000_2000)))) => {
                assert_eq!(record.to_vec()[32..36], [1, 0, 0, 0], "{}: in use", vector.name);
                drop(loan);
                assert_eq!(record.to_vec(), vector.bytes, "{}", vector.name);
            }
            (true, None | Some(Err(Unreachable::Fault(_)))) => {}
            _ => panic!("{}: taken or refused", vector.name),
        }
    }
}

// [SHM-24]
#[test]
fn record_is_written_as_the_vectors_say() {
    let domain = ShmDomain::new();
    let mut bed = Bed::new(small());
    let (client, _server) = bed.connect(&domain);
    let memory = MemoryRef::new(Arc::new(HeapMemory::allocate(65_536).unwrap()));
    let region = domain.register(memory.clone(), Access::REMOTE_READ).unwrap();
    let key = region.range().key;
    let at = client.connection.layout.record(Side::Client, u16::try_from(key.0 & 0xfff).unwrap());
    let record = client.connection.segment.span().slice(at, RECORD_SIZE).unwrap();
    // Key and address are those of this memory.
    let mut expected = golden("region record");
    expected[..8].copy_from_slice(&key.0.to_le_bytes());
    expected[8..16].copy_from_slice(&(memory.span().as_ptr() as u64).to_le_bytes());
    assert_eq!(record.to_vec(), expected);
}

/// The numbers of the lines of the vectors that begin so.
fn numbers(prefix: &str) -> Vec<Vec<u32>> {
    let lines = VECTORS.lines().filter_map(|line| line.strip_prefix(prefix));
    let of_line = |line: &str| {
        line.split(|one: char| !one.is_ascii_digit()).filter_map(|word| word.parse().ok()).collect()
    };
    lines.map(of_line).collect()
}

fn ring_terms(depth: u32, payload_max: u32) -> RingTerms {
    RingTerms { depth: u16::try_from(depth).unwrap(), payload_max }
}

// [SHM-1] [SHM-3] [SHM-36]
#[test]
fn layouts_are_those_of_the_vectors() {
    for line in numbers("layout ") {
        let [depth, payload, client_depth, client_payload, ref offsets @ ..] = line[..] else {
            panic!("{line:?}")
        };
        let layout =
            Layout::stated(ring_terms(depth, payload), ring_terms(client_depth, client_payload)).unwrap();
        let (client, server) = (Side::Client, Side::Server);
        let records = [layout.record(client, 0), layout.record(server, 0)];
        let buffers = [layout.buffer(client, 0), layout.buffer(server, 0)];
        let found = [&[layout.entry(server, 0)][..], &records, &buffers, &[layout.size()]].concat();
        assert_eq!(found, offsets.iter().map(|offset| *offset as usize).collect::<Vec<_>>(), "{line:?}");
        let words = [client, server].map(|side| {
            [layout.sleeping(side), layout.cpu(side), layout.control_sent(side), layout.consumed(side)]
        });
        assert_eq!(words, [[0, 4, 8, 256], [128, 132, 136, 384]]);
        assert_eq!((layout.entry(client, 0), layout.entry(client, 1)), (512, 640));
        assert_eq!(layout.record(client, 1) - layout.record(client, 0), 64);
    }
    let lowered = numbers("lowered client ");
    assert!(lowered.len() >= 4);
    for line in lowered {
        let [client, server, to_server, to_client] =
            [0, 2, 4, 6].map(|at| ring_terms(line[at], line[at + 1]));
        assert_eq!(Layout::negotiate(client, server).ring_terms, [to_server, to_client], "{line:?}");
    }
}

// [SHM-2] [SHM-4] [SHM-13] [SHM-38] [SHM-53] [SHM-54]
#[test]
fn client_made_by_hand_from_the_page_exchanges_messages() {
    let mut bed = Bed::new(small());
    let Address::Shm(path) = &bed.address else { panic!() };
    let socket = sock::connect(path, LONG).unwrap();
    sock::send(socket.as_fd(), &golden("hello"), &[]).unwrap();
    assert!(bed.listener.accept_endpoint().unwrap().is_none());
    let mut welcome = [0; MESSAGE_SIZE];
    let Ok(Incoming::Message { len: MESSAGE_SIZE, fds, cut: false }) =
        sock::receive(socket.as_fd(), &mut welcome)
    else {
        panic!("no welcome");
    };
    // 4 messages of 8,192 bytes to the server, as it wants, and 128 of 16,384 to the client.
    assert_eq!(welcome[16..32], [4, 0, 0, 0, 0, 0x20, 0, 0, 128, 0, 0, 0, 0, 0x40, 0, 0]);
    assert_eq!(welcome[56..], [0; 8], "nobody found the nonce: nothing is where it was said to be");
    let [segment, pipe, _eventfd]: [OwnedFd; 3] = fds.into_iter().collect::<Vec<_>>().try_into().unwrap();
    let sealed = SealFlags::SHRINK | SealFlags::GROW | SealFlags::SEAL;
    assert!(fcntl_get_seals(&segment).unwrap().contains(sealed));
    let segment = std::fs::File::from(segment);
    // Rings of 4 and 128 entries, records, buffers.
    assert_eq!(segment.metadata().unwrap().len(), 20_480 + 524_288 + 4 * 8192 + 128 * 16_384);
    sock::send(socket.as_fd(), &golden("ready, no cross-memory attach"), &[]).unwrap();
    let mut server = bed.accept();
    assert!(!server.capabilities().registers_ordinary_memory);

    segment.write_all_at(&golden("embedded message"), 512).unwrap();
    assert_eq!(take(&mut server).unwrap(), (b"head".to_vec(), b"payload".to_vec()));
    server.recv_done();
    let word = |at: u64| {
        let mut word = [0; 4];
        segment.read_exact_at(&mut word, at).unwrap();
        u32::from_le_bytes(word)
    };
    assert_eq!(word(256), 1, "taken of the client's");
    // Asleep until there is a message.
    segment.write_all_at(&1u32.to_le_bytes(), 0).unwrap();
    server.send_copy(b"back", &[]).unwrap();
    server.flush().unwrap();
    assert_eq!(word(0), 0, "who rings says so");
    assert!(sock::readable(pipe.as_fd(), Duration::ZERO).unwrap());
    let mut entry = [0; 20];
    segment.read_exact_at(&mut entry, 512 + 4 * 128).unwrap();
    assert_eq!(entry, *b"\x01\0\0\0\x01\0\0\0\0\0\0\0\0\0\x04\x01back");
}

// [SHM-39]
#[test]
fn segment_that_could_shrink_or_is_short_is_refused() {
    for sealed in [false, true] {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("socket");
        let listening = sock::listen(&path, 1).unwrap();
        let segment = match sealed {
            true => create_memory_file(c"short", 2_985_984 - 4096).unwrap(),
            false => memfd_create("unsealed", MemfdFlags::ALLOW_SEALING).unwrap(),
        };
        if !sealed {
            ftruncate(&segment, 2_985_984).unwrap();
        }
        let error = std::thread::scope(|scope| {
            let address = Address::Shm(path);
            let client =
                scope.spawn(move || ShmDomain::new().connect_endpoint(&address, &small(), LONG).err());
            let socket = loop {
                match listening.accept() {
                    Ok((socket, _)) => break socket,
                    Err(_) => std::thread::yield_now(),
                }
            };
            let bell = sock::eventfd().unwrap();
            let fds = [segment.as_fd(), bell.as_fd(), bell.as_fd()];
            sock::send(socket.as_fd(), &golden("welcome"), &fds).unwrap();
            client.join().unwrap().unwrap()
        });
        let what = "size or seals of a segment";
        assert!(error.to_string().contains(what), "sealed {sealed}: {error}");
    }
}
