//! Golden messages of all operations, both ways.

use std::collections::HashSet;

use dafs_proto::wire::{
    Attributes, Authenticate, AuthenticateReply, ClientStatistics, ClusterTerms, Crossovers, DirEntry,
    ExportStatistics, FenceChange, FenceList, FenceMode, FileKind, Flags, FsStatistics, HEADER_SIZE, Hello,
    HelloReply, LimitsReply, MountReply, Opcode, OutcomeReply, PipelineStatistics, Resume, SessionId,
    SetAttributes, SetTime, SlotOutcome, SlotReport, Statistics, Thresholds, Timestamp, Welcome,
    ZoneStatistics, decode_dir_entries, decode_message_pack, encode_dir_entry, encode_message_pack,
};
use serde::{Serialize, de::DeserializeOwned};

use crate::decode::decode;
use crate::{VECTORS, hex, vector};

/// Each whole head of the file with its payload. Of the first ones the payload has another name, or was left out.
fn messages() -> Vec<(&'static str, Vec<u8>, Vec<u8>)> {
    let names = VECTORS.lines().filter_map(|line| Some(line.split_once(": ")?.0));
    let heads = names.filter(|name| is_head(name));
    let with_payload = heads.map(|name| {
        let head = vector(name);
        let payload_len = u32::from_le_bytes([head[16], head[17], head[18], head[19]]) as usize;
        let other = name.strip_suffix(" request").unwrap_or(name);
        let named = [format!("{name} payload"), format!("{other} payload")];
        let named = named.iter().find(|name| VECTORS.contains(&format!("\n{name}: ")));
        let payload = named.map_or(vec![0; payload_len], |name| vector(name));
        (name, head, payload)
    });
    with_payload.collect()
}

fn is_head(name: &str) -> bool {
    let ends = [" request", " reply", " callback", "batch notice", " that begins a chain"];
    ends.iter().any(|end| name.ends_with(end))
}

#[test]
fn every_operation_has_a_golden_request_and_reply() {
    let mut found = HashSet::new();
    for (name, head, payload) in messages() {
        let header = decode(&head, &payload).unwrap_or_else(|problem| panic!("{name}: {problem:?}"));
        found.insert((header.opcode, header.flags.contains(Flags::REPLY)));
    }
    for opcode in Opcode::ALL {
        assert!(found.contains(&(*opcode, false)), "spec/vectors/messages.txt has no request {opcode:?}");
        let is_replied = opcode.is_callback() || found.contains(&(*opcode, true));
        assert!(is_replied, "spec/vectors/messages.txt has no reply {opcode:?}");
    }
}

// [WIRE-2] [WIRE-25]
#[test]
fn body_one_byte_short_or_long_is_refused() {
    for (name, head, payload) in messages() {
        let with_len = |len: usize| {
            let mut head = head.clone();
            head.resize(len, 0);
            head[14..16].copy_from_slice(&u16::try_from(len).unwrap().to_le_bytes());
            head
        };
        let long = with_len(head.len() + 1);
        assert!(decode(&long, &payload).is_err(), "{name}, and a byte more");
        for len in HEADER_SIZE..head.len() {
            assert!(decode(&with_len(len), &payload).is_err(), "{name}, {len} bytes");
        }
    }
}

/// The payload of this message is `body`, from the byte `at` on.
fn check<T>(name: &str, body: &T, at: usize)
where
    T: Serialize + DeserializeOwned + PartialEq + std::fmt::Debug,
{
    let payload = vector(&format!("{name} payload"));
    assert_eq!(hex(&encode_message_pack(body)), hex(&payload[at..]), "{name}");
    assert_eq!(decode_message_pack::<T>("payload", &payload[at..]).as_ref(), Ok(body), "{name}");
    assert!(decode(&vector(name), &payload).is_ok(), "{name}");
}

fn counting<const N: usize>(from: u8) -> [u8; N] {
    std::array::from_fn(|place| from.wrapping_add(u8::try_from(place).unwrap()))
}

const THRESHOLDS: Thresholds = Thresholds {
    read_inline_max: 16_384,
    write_inline_max: 65_536,
    crossovers: Crossovers {
        read_registered: 16_000,
        read_unregistered: 17_000,
        write_registered: 18_000,
        write_unregistered: 19_000,
    },
};

// [WIRE-35] [WIRE-37]
#[test]
fn handshake_is_encoded_field_by_field() {
    let hello = Hello {
        version_min: 1,
        version_max: 1,
        features: 0x7f,
        nonce: counting(0x70),
        key_name: String::new(),
        client_id: counting(0x10),
        client_name: "cp (77)".into(),
        uid: 1000,
        gid: 100,
        groups: vec![100, 27],
        slots: 64,
        resume: Some(Resume { session: SessionId(0x0123_4567_89ab_cdef), secret: counting(0x30) }),
    };
    check("hello request", &hello, 0);
    let server_name = "dafs-server".into();
    let reply = HelloReply { version: 1, nonce: counting(0xe0), key_required: false, server_name };
    check("hello reply", &reply, 0);
    check("authenticate request", &Authenticate { proof: vec![] }, 0);
    let welcome = Welcome {
        session: SessionId(0x0123_4567_89ab_cdef),
        secret: counting(0x30),
        resumed: true,
        server_epoch: 0x1122_3344_5566_7788,
        features: 0x7f,
        slots: 64,
        credits: 32,
        keep_alive_ms: 10_000,
        lease_ms: 30_000,
        thresholds: THRESHOLDS,
        transfer_size_max: 64 << 20,
        handles_max: 65_536,
        slot_reports: vec![
            SlotReport { slot: 0, sequence: 5, executed: true },
            SlotReport { slot: 2, sequence: 9, executed: false },
        ],
        gather: Some(Crossovers {
            read_registered: 512,
            read_unregistered: 2048,
            write_registered: 1024,
            write_unregistered: 4096,
        }),
        cluster: None,
    };
    check("authenticate reply", &AuthenticateReply { proof: vec![], welcome: welcome.clone() }, 0);
    let outcome = |slot, reply| SlotOutcome { slot, sequence: 9, reply };
    let reply = OutcomeReply { status: 0, offset: 4096, payload: vec![] };
    let cluster = ClusterTerms {
        term_ms: 5000,
        servers: vec!["dafs+tcp://192.0.2.2:12049".into()],
        outcomes: Some(vec![outcome(0, Some(reply)), outcome(2, None)]),
    };
    let slot_reports = vec![];
    let welcome =
        Welcome { resumed: false, features: 0x87f, slot_reports, cluster: Some(cluster), ..welcome };
    check("authenticate reply of a cluster", &AuthenticateReply { proof: vec![], welcome }, 0);
}

// [WIRE-37]
#[test]
fn statistics_and_limits_are_encoded_field_by_field() {
    let limits = LimitsReply {
        thresholds: THRESHOLDS,
        transfer_size_max: 64 << 20,
        handles_max: 65_536,
        slots: 64,
        credits: 16,
        uid: 1000,
        gid: 100,
    };
    check("limits reply", &limits, 0);
    let statistics = Statistics {
        uptime_ms: 1,
        sessions: 2,
        connections: 3,
        in_flight: 4,
        handles: 5,
        operations: vec![("Null".into(), 6), ("Read".into(), 7)],
        bytes_read: [8, 9],
        bytes_written: [10, 11],
        replies_replayed: 12,
        protocol_errors: 13,
        storage_waits: 14,
        exports: vec![ExportStatistics { name: "data".into(), bytes_read: 15, bytes_written: 16 }],
        bytes_eager: [17, 18],
        bytes_client_initiated: [19, 20],
        eager_buffers_size: 21,
        zones: vec![ZoneStatistics {
            size: 22,
            total: 23,
            free: 24,
            lent: 25,
            lent_from_bigger: 26,
            chops: 27,
            waits: 28,
        }],
        pipelines: vec![PipelineStatistics {
            listener: "dafs+tcp://127.0.0.1:12049".into(),
            chunk_size: 29,
            depth: 30,
            overlaps: 31,
            chunks: 32,
        }],
        clients: vec![ClientStatistics {
            client_id: counting(0x10),
            name: "cp (77)".into(),
            address: "192.0.2.7".into(),
            key: "k".into(),
            sessions: 33,
        }],
        sieved_windows: 34,
    };
    check("statistics reply", &statistics, 0);
    check("exports reply", &vec!["data".to_owned(), "mem".to_owned()], 0);
    let fenced = FenceList {
        mode: FenceMode::Deny,
        clients: vec![counting(0x10), counting(0xf0)],
        keys: vec!["lab".into()],
        addresses: vec!["10.0.0.0/8".into()],
    };
    check("fence write request", &FenceChange::new(fenced.clone(), None), 0);
    check("fence change request", &FenceChange::new(FenceList::default(), Some(fenced.sum())), 0);
    check("fence read reply", &fenced, 0);
}

fn file() -> Attributes {
    let time = |seconds| Timestamp { seconds, nanoseconds: 2 };
    Attributes {
        kind: FileKind::File,
        mode: 0o644,
        links: 1,
        uid: 1000,
        gid: 100,
        size: 5,
        allocated: 4096,
        file_id: 3,
        fs_id: 4,
        atime: time(1),
        mtime: time(-1),
        ctime: time(1_700_000_000),
        device: 0,
        generation: 9,
        change: 11,
    }
}

// [WIRE-37]
#[test]
fn attributes_are_encoded_field_by_field() {
    for name in ["lookup reply", "open reply", "getattr reply", "setattr reply", "link reply"] {
        check(name, &file(), 0);
    }
    let time = |seconds| Timestamp { seconds, nanoseconds: 2 };
    let times = Attributes { mtime: time(2), ctime: time(3), ..file() };
    let directory = Attributes {
        kind: FileKind::Directory,
        mode: 0o755,
        links: 2,
        size: 4096,
        allocated: 8192,
        file_id: 7,
        ..times.clone()
    };
    check("mkdir reply", &directory, 0);
    let link =
        Attributes { kind: FileKind::Symlink, mode: 0o777, size: 3, allocated: 0, file_id: 8, ..times };
    check("symlink reply", &link, 0);
    check("mount reply", &MountReply { read_only: true, attributes: directory }, 0);
    let set = SetAttributes {
        mode: Some(0o600),
        uid: None,
        gid: Some(100),
        atime: Some(SetTime::Now),
        mtime: Some(SetTime::At(time(-1))),
    };
    check("setattr request", &set, 5);
    let space = FsStatistics {
        block_size: 4096,
        blocks: 1000,
        blocks_free: 500,
        blocks_available: 400,
        files: 100,
        files_free: 50,
        name_size_max: 255,
    };
    check("statfs reply", &space, 0);
}

// [WIRE-8]
#[test]
fn directory_entries_are_encoded_field_by_field() {
    let entries = vec![
        DirEntry { cookie: 10, name: b"a".into(), attributes: Some(file()) },
        DirEntry { cookie: 12, name: b"b\xff".into(), attributes: None },
    ];
    let payload = vector("readdir reply payload");
    let mut encoded = Vec::new();
    entries.iter().for_each(|entry| encode_dir_entry(entry, &mut encoded));
    assert_eq!(hex(&encoded), hex(&payload));
    assert_eq!(decode_dir_entries(&payload), Ok(entries));
}

/// Every kind of file, by the name that travels.
#[test]
fn kinds_of_files_travel_as_their_names() {
    for (kind, name) in [
        (FileKind::File, "File"),
        (FileKind::Directory, "Directory"),
        (FileKind::Symlink, "Symlink"),
        (FileKind::BlockDevice, "BlockDevice"),
        (FileKind::CharDevice, "CharDevice"),
        (FileKind::Fifo, "Fifo"),
        (FileKind::Socket, "Socket"),
    ] {
        assert_eq!(encode_message_pack(&kind), encode_message_pack(&name));
    }
}
