//! Clients that break the protocol, against a real server: each ends with a reason, and nobody else notices.
#![allow(
    clippy::cast_possible_truncation,
    clippy::type_complexity,
    reason = "sizes, patterns and tables that the tests choose"
)]
#![allow(clippy::unwrap_used, clippy::expect_used, reason = "all of this is test code, helpers included")]

use dafs_client::Session;
use dafs_proto::session::ClientHandshake;
use dafs_proto::wire::{
    Authenticate, FileHandle, Flags, HEADER_SIZE, Header, Hello, Method, Opcode, Resume, Status,
    decode_message_pack, encode_message_pack,
};
use dafs_tests::faulty::{Fault, Kind};
use dafs_tests::harness::{Harness, On};
use dafs_tests::on_each_provider;
use dafs_tests::raw::{Raw, introduction, request, write_body};
use dafs_tests::suite::{Numbers, assert_same, bytes};

on_each_provider! {
    first_message_other_than_hello_ends_the_connection,
    handshake_with_flags_handle_or_a_proof_of_nothing_ends_the_connection,
    connection_that_never_shakes_hands_is_closed_in_time,
    version_that_is_not_spoken_is_refused,
    requests_breaking_slot_rules_end_the_session_with_reason,
    request_repeated_with_another_opcode_is_a_false_retry,
    more_requests_than_credits_end_the_session_with_a_reason,
    session_is_not_resumed_without_its_secret,
    heads_of_random_bytes_end_their_connections_only,
    forged_handles_and_regions_are_refused,
}

mod bounds {
    use super::{Bystander, Harness, On, Raw};

    #[test]
    fn connections_that_begin_no_session_are_bounded_and_others_get_in() {
        let harness = Harness::start_with(On::Tcp, |config| config.handshake_ms = 3_600_000);
        let bystander = Bystander::new(&harness);
        let silent: Vec<_> = (0..1100).map(|_| Raw::connect(harness.address())).collect();
        harness.session().ping().unwrap();
        let connections = bystander.session.statistics().unwrap().connections;
        assert!(connections <= 1024 + 2, "{connections} connections");
        bystander.notices_nothing();
        drop(silent);
    }
}

mod vectors {
    use std::collections::HashSet;

    use super::{
        Bystander, ClientHandshake, FileHandle, HEADER_SIZE, Harness, Header, On, Opcode, Raw, Status,
    };
    use super::{introduction, request};

    const REFUSED: &str = include_str!("../../spec/vectors/refused.txt");

    /// A request of `spec/vectors/refused.txt`.
    struct Case {
        name: &'static str,
        head: Vec<u8>,
        payload: Vec<u8>,
        /// It ends its session where it has none.
        answer: Option<Status>,
    }

    fn requests() -> impl Iterator<Item = Case> {
        let blocks = REFUSED.split("\n\n").map(str::trim).filter(|block| block.contains(" request: "));
        blocks.map(|block| {
            let bytes = |key: &str| {
                let line = block.lines().find_map(|line| line.strip_prefix(key)).unwrap_or_default();
                let digits: Vec<u8> = line.bytes().filter(u8::is_ascii_hexdigit).collect();
                let byte = |pair: &[u8]| u8::from_str_radix(std::str::from_utf8(pair).unwrap(), 16).unwrap();
                digits.chunks(2).map(byte).collect()
            };
            Case {
                name: block.lines().next().unwrap_or_default(),
                head: bytes("head: "),
                payload: bytes("payload: "),
                answer: block.lines().last().and_then(|line| line.strip_prefix("answered: ")).map(status),
            }
        })
    }

    fn status(name: &str) -> Status {
        *Status::ALL.iter().find(|status| status.name() == Some(name)).expect("the name of a status")
    }

    fn opcode(head: &[u8]) -> Option<Opcode> {
        Opcode::from_value(u16::from_le_bytes([head[0], head[1]]))
    }

    /// Sent in place of a step of the handshake.
    fn handshake(harness: &Harness, case: &Case) {
        let mut raw = Raw::connect(harness.address());
        if opcode(&case.head) == Some(Opcode::Authenticate) {
            let (_, hello) = ClientHandshake::begin(&introduction(harness.address(), 4, None), [1; 32]);
            raw.ask(Header::request(Opcode::Hello, FileHandle(0)), &[], &hello);
        }
        raw.send_bytes(&case.head, &case.payload);
        assert!(raw.receive().is_none(), "{}: the connection ends", case.name);
    }

    fn in_session(harness: &Harness, case: &Case) {
        let (mut raw, _) = Raw::session(harness.address(), 4);
        let root = raw.ask(request(Opcode::Mount, 0, 1), &[], b"mem").header.handle;
        let mut open = request(Opcode::Open, 1, 1);
        open.handle = root;
        let file = raw.ask(open, &[7, 0, 0, 0, 0xa4, 1, 0, 0], b"f").header.handle;
        let mut head = case.head.clone();
        head[4..12].copy_from_slice(&[2, 0, 0, 0, 1, 0, 0, 0]);
        if head.len() >= HEADER_SIZE {
            let on_file = matches!(head[0], 0x13 | 0x16 | 0x20..=0x2a | 0x2d | 0x2e);
            let handle = if on_file { file } else { root };
            head[24..32].copy_from_slice(&handle.0.to_le_bytes());
        }
        raw.send_bytes(&head, &case.payload);
        if let Some(status) = case.answer {
            let reply = raw.receive().expect("a reply");
            assert_eq!(reply.header.status, status, "{}", case.name);
            assert!(!reply.payload.is_empty(), "{}: in words", case.name);
            // Else the session would stay for its lease.
            raw.send(request(Opcode::Bye, 3, 1), &[], &[]);
            raw.ending();
        } else {
            assert!(raw.ending().is_some(), "{}: the session ends, and the client is told why", case.name);
        }
    }

    // [WIRE-137] [WIRE-138] [WIRE-142]
    // [WIRE-2] [WIRE-3] [WIRE-4] [WIRE-7] [WIRE-11] [WIRE-12] [WIRE-24] [WIRE-25] [WIRE-31] [WIRE-32]
    // [WIRE-33] [WIRE-34] [WIRE-44] [WIRE-54] [WIRE-132] [WIRE-133] [BATCH-2] [LIST-7] [SESS-45]
    #[test]
    fn malformed_request_ends_its_session_and_a_wrong_one_is_answered() {
        let harness = Harness::start(On::Tcp);
        let bystander = Bystander::new(&harness);
        let (mut sent, mut answered, mut opcodes) = (0, 0, HashSet::new());
        // What is longer does not leave the transport.
        for case in requests().filter(|case| case.head.len() <= dafs_proto::wire::HEAD_SIZE_MAX) {
            (sent, answered) = (sent + 1, answered + usize::from(case.answer.is_some()));
            opcodes.extend(opcode(&case.head));
            match opcode(&case.head) {
                Some(Opcode::Hello | Opcode::Authenticate) => handshake(&harness, &case),
                _ => in_session(&harness, &case),
            }
        }
        bystander.is_alone();
        // The page was read as it is written.
        assert!(sent > 200 && answered > 100, "{sent} requests, {answered} of them answered");
        let missing = Opcode::ALL.iter().filter(|opcode| !opcode.is_callback() && !opcodes.contains(opcode));
        assert_eq!(missing.collect::<Vec<_>>(), Vec::<&Opcode>::new(), "requests that are never refused");
    }
}

/// Somebody else, who must not notice.
struct Bystander {
    session: Session,
    file: dafs_client::File,
}

impl Bystander {
    fn new(harness: &Harness) -> Self {
        let session = harness.session();
        let file = session.mount("mem").unwrap().create("bystander").unwrap();
        file.write_all_at(&bytes(1, 50_000), 0).unwrap();
        Self { session, file }
    }

    fn notices_nothing(&self) {
        let mut found = vec![0; 50_000];
        self.file.read_exact_at(&mut found, 0).unwrap();
        assert_same(&found, &bytes(1, 50_000), "the bystander's data");
        assert_eq!(self.session.reconnects(), 0);
    }

    /// Waits until the others' sessions are gone.
    fn is_alone(&self) {
        while self.session.statistics().unwrap().sessions > 1 {}
        self.notices_nothing();
    }
}

// [SESS-78]
fn first_message_other_than_hello_ends_the_connection(on: On) {
    let harness = Harness::start(on);
    let bystander = Bystander::new(&harness);
    for opcode in [Opcode::Null, Opcode::Authenticate, Opcode::Mount, Opcode::Read] {
        let mut raw = Raw::connect(harness.address());
        raw.send(request(opcode, 0, 1), &[], b"mem");
        raw.ending();
    }
    // A second Hello, and one with rubbish in it.
    let mut raw = Raw::connect(harness.address());
    let (_, hello) = ClientHandshake::begin(&introduction(harness.address(), 4, None), [1; 32]);
    raw.ask(Header::request(Opcode::Hello, FileHandle(0)), &[], &hello);
    raw.send(Header::request(Opcode::Hello, FileHandle(0)), &[], &hello);
    raw.ending();
    for len in [0, 1, hello.len() / 2, hello.len() - 1] {
        let mut raw = Raw::connect(harness.address());
        raw.send(Header::request(Opcode::Hello, FileHandle(0)), &[], &hello[..len]);
        raw.ending();
    }
    bystander.is_alone();
}

// [SESS-121] [SESS-122]
fn handshake_with_flags_handle_or_a_proof_of_nothing_ends_the_connection(on: On) {
    let harness = Harness::start(on);
    let bystander = Bystander::new(&harness);
    let (_, hello) = ClientHandshake::begin(&introduction(harness.address(), 4, None), [1; 32]);
    let plain = Header::request(Opcode::Hello, FileHandle(0));
    let faults = [
        Header { flags: Flags::REPLY, ..plain },
        Header { flags: Flags::CHAIN_FORWARD, ..plain },
        Header { handle: FileHandle(1), ..plain },
        Header { sequence: 1, ..plain },
    ];
    for header in faults {
        let mut raw = Raw::connect(harness.address());
        raw.send(header, &[], &hello);
        assert!(raw.receive().is_none(), "{header:?}");
    }
    let mut raw = Raw::connect(harness.address());
    assert_eq!(raw.ask(plain, &[], &hello).header.status, Status::OK);
    let proof = encode_message_pack(&Authenticate { proof: vec![1; 32] });
    raw.send(Header::request(Opcode::Authenticate, FileHandle(0)), &[], &proof);
    if dafs_tests::harness::key_for(harness.address()).is_none() {
        assert!(raw.receive().is_none(), "a proof without a key");
    }
    bystander.is_alone();
}

// [SESS-79]
fn connection_that_never_shakes_hands_is_closed_in_time(on: On) {
    let harness = Harness::start_with(on, |config| config.handshake_ms = 2000);
    let bystander = Bystander::new(&harness);
    let mut silent = Raw::connect(harness.address());
    silent.ending();
    let mut half = Raw::connect(harness.address());
    let (_, hello) = ClientHandshake::begin(&introduction(harness.address(), 4, None), [1; 32]);
    half.ask(Header::request(Opcode::Hello, FileHandle(0)), &[], &hello);
    half.ending();
    bystander.is_alone();
}

// [SESS-83] [SESS-85]
fn version_that_is_not_spoken_is_refused(on: On) {
    let harness = Harness::start(on);
    let bystander = Bystander::new(&harness);
    let (_, hello) = ClientHandshake::begin(&introduction(harness.address(), 4, None), [1; 32]);
    let hello: Hello = decode_message_pack("hello", &hello).unwrap();
    let answer = |hello: &Hello| {
        let mut raw = Raw::connect(harness.address());
        raw.ask(Header::request(Opcode::Hello, FileHandle(0)), &[], &encode_message_pack(hello)).header.status
    };
    for (min, max) in [(0, 0), (1000, 1001), (u16::MAX, u16::MAX)] {
        let other = Hello { version_min: min, version_max: max, ..hello.clone() };
        assert_eq!(answer(&other), Status::VERSION, "{min} to {max}");
    }
    // Later versions and unknown features beside what is known.
    let wide = Hello { version_min: 0, version_max: u16::MAX, features: u64::MAX, ..hello };
    assert_eq!(answer(&wide), Status::OK);
    bystander.is_alone();
}

// [SESS-13] [SESS-45] [SESS-94] [WIRE-50] [WIRE-51]
fn requests_breaking_slot_rules_end_the_session_with_reason(on: On) {
    let harness = Harness::start(on);
    let bystander = Bystander::new(&harness);
    let faults: [(&str, fn(&mut Raw)); 9] = [
        ("a sequence skipped", |raw| raw.send(request(Opcode::Null, 0, 2), &[], &[])),
        ("the sequence 0", |raw| raw.send(request(Opcode::Null, 0, 0), &[], &[])),
        ("a slot beyond the session's", |raw| raw.send(request(Opcode::Null, 4, 1), &[], &[])),
        ("a handshake in a session", |raw| raw.send(request(Opcode::Hello, 0, 1), &[], &[])),
        ("a chain continued and not begun", |raw| {
            let mut header = request(Opcode::Null, 0, 1);
            header.flags = Flags::CHAIN_BACK;
            raw.send(header, &[], &[]);
        }),
        ("a reply", |raw| {
            let mut header = request(Opcode::Null, 0, 1);
            header.flags = Flags::REPLY;
            raw.send(header, &[], &[]);
        }),
        ("a callback", |raw| {
            let mut header = request(Opcode::CreditTarget, 0, 1);
            header.flags = Flags::CALLBACK;
            raw.send(header, &[], &[]);
        }),
        ("an eager write that is no frame", |raw| {
            let mut body = write_body(0, 4, None);
            body[12] = Method::Eager as u8;
            raw.send(request(Opcode::Write, 0, 1), &body, b"data");
        }),
        ("a list of fences cut, whatever its handle", |raw| {
            raw.send(request(Opcode::FenceWrite, 0, 1), &[], &[0x91]);
        }),
    ];
    for (number, (what, fault)) in faults.iter().enumerate() {
        let (mut raw, welcome) = Raw::session(harness.address(), 4);
        assert_eq!(welcome.slots, 4);
        fault(&mut raw);
        let reason = raw.ending();
        assert!(reason.as_ref().is_some_and(|reason| !reason.is_empty()), "{what}: {reason:?}");
        let counted = bystander.session.statistics().unwrap().protocol_errors;
        assert_eq!(counted, number as u64 + 1, "{what}");
    }
    bystander.is_alone();
}

// [SESS-11] [SESS-12] [SESS-86]
fn request_repeated_with_another_opcode_is_a_false_retry(on: On) {
    let harness = Harness::start(on);
    let bystander = Bystander::new(&harness);
    let (mut raw, _) = Raw::session(harness.address(), 4);
    let mounted = raw.ask(request(Opcode::Mount, 0, 1), &[], b"mem");
    assert_eq!(mounted.header.status, Status::OK);
    let again = raw.ask(request(Opcode::Mount, 0, 1), &[], b"mem");
    assert_eq!(again.header.handle, mounted.header.handle, "the same reply, not another mount");
    let false_retry = raw.ask(request(Opcode::Null, 0, 1), &[], &[]);
    assert_eq!(false_retry.header.status, Status::FALSE_RETRY);
    let next = raw.ask(request(Opcode::Null, 0, 2), &[], &[]);
    assert_eq!(next.header.status, Status::OK, "the session goes on");
    raw.send(request(Opcode::Bye, 1, 1), &[], &[]);
    raw.ending();
    bystander.is_alone();
}

// [SESS-45] [SESS-89]
fn more_requests_than_credits_end_the_session_with_a_reason(on: On) {
    let (harness, faults) = Harness::start_faulty(on, |config| config.operations_max = 2);
    let bystander = Bystander::new(&harness);
    // However quick storage is, none is answered before the last has come.
    faults.next(Kind::Mkdir, Fault::Hold, 64);
    let (mut raw, welcome) = Raw::session(harness.address(), 64);
    let mounted = raw.ask(request(Opcode::Mount, 0, 1), &[], b"data");
    let mut header = request(Opcode::Mkdir, 0, 2);
    header.handle = mounted.header.handle;
    let slots = u32::from(welcome.slots);
    for slot in 1..slots {
        header.slot = dafs_proto::wire::Slot(slot);
        header.sequence = 1;
        let name = format!("d{slot}");
        let mut head = [0; HEADER_SIZE + 8];
        header.head_len = head.len() as u16;
        header.payload_len = name.len() as u32;
        header.encode(&mut head);
        head[HEADER_SIZE + 4..].copy_from_slice(&0o755u32.to_le_bytes());
        raw.endpoint.send_copy(&head, name.as_bytes()).unwrap();
    }
    raw.endpoint.flush().unwrap();
    match raw.ending() {
        Some(reason) => assert!(reason.contains("2 are granted"), "{reason}"),
        // With requests still on their way the end of a queue pair may overtake it: [PROV-66].
        None => assert!(on.is_verbs(), "a reason"),
    }
    faults.release();
    bystander.is_alone();
}

// [SESS-50] [SESS-115] [SESS-116] [SESS-117]
fn session_is_not_resumed_without_its_secret(on: On) {
    let harness = Harness::start(on);
    let bystander = Bystander::new(&harness);
    let (mut owner, welcome) = Raw::session(harness.address(), 4);
    let mut secret = welcome.secret;
    secret[15] ^= 1;
    for resume in [
        Resume { session: welcome.session, secret },
        Resume { session: dafs_proto::wire::SessionId(welcome.session.0 ^ 1), secret: welcome.secret },
    ] {
        let mut thief = Raw::connect(harness.address());
        match thief.shake(&introduction(harness.address(), 4, Some(resume))) {
            Ok(other) => assert!(!other.resumed && other.session != welcome.session),
            Err(status) => assert_eq!(status, Status::NO_SESSION),
        }
    }
    assert_eq!(owner.ask(request(Opcode::Null, 0, 1), &[], &[]).header.status, Status::OK);
    // Nor by another client.
    let resume = Resume { session: welcome.session, secret: welcome.secret };
    let mut other = introduction(harness.address(), 4, Some(resume.clone()));
    other.client_id = [6; 16];
    assert_eq!(Raw::connect(harness.address()).shake(&other), Err(Status::AUTH_FAILED));
    // With its secret it is, and the older connection is closed.
    let mut back = Raw::connect(harness.address());
    let resumed = back.shake(&introduction(harness.address(), 4, Some(resume))).unwrap();
    assert!(resumed.resumed && resumed.session == welcome.session);
    assert_eq!(resumed.slot_reports.len(), 1);
    assert_eq!((resumed.slot_reports[0].sequence, resumed.slot_reports[0].executed), (1, true));
    owner.ending();
    bystander.notices_nothing();
}

// [WIRE-1] [WIRE-2] [WIRE-3] [WIRE-4] [PROV-26]
fn heads_of_random_bytes_end_their_connections_only(on: On) {
    let harness = Harness::start(on);
    let bystander = Bystander::new(&harness);
    let mut numbers = Numbers::new(3);
    for round in 0..on.rounds(300) {
        let (mut raw, _) = Raw::session(harness.address(), 4);
        let mut head = vec![0; HEADER_SIZE + 40];
        let mut header = request(Opcode::ALL[numbers.below(Opcode::ALL.len() as u64) as usize], 0, 1);
        header.head_len = head.len() as u16;
        header.encode(&mut head);
        // A good header with some bytes wrong, or cut, or all of it random.
        match round % 3 {
            0 => (0..3).for_each(|_| head[numbers.below(80) as usize] = numbers.next() as u8),
            1 => head.truncate(1 + numbers.below(79) as usize),
            _ => head.iter_mut().for_each(|byte| *byte = numbers.next() as u8),
        }
        let payload = bytes(round, numbers.below(8000) as usize);
        raw.send_bytes(&head, &payload);
        // Ends the session where the rubbish did not.
        raw.send(request(Opcode::Bye, 3, 1), &[], &[]);
        raw.ending();
    }
    bystander.is_alone();
}

// [PROV-16] [SESS-93]
fn forged_handles_and_regions_are_refused(on: On) {
    let harness = Harness::start(on);
    let bystander = Bystander::new(&harness);
    let (mut raw, _) = Raw::session(harness.address(), 4);
    for (sequence, handle) in [(1, 1), (2, 1 << 32), (3, (1 << 32) | 1), (4, u64::MAX - 1), (5, u64::MAX)] {
        let mut header = request(Opcode::Readlink, 0, sequence);
        header.handle = FileHandle(handle);
        let Some(reply) = ({
            raw.send(header, &[0; 8], b"x");
            raw.receive()
        }) else {
            panic!("handle {handle:#x}: a wrong handle is an error, not a fault")
        };
        assert_eq!(reply.header.status, Status::BAD_HANDLE, "{handle:#x}");
    }
    // A direct write from memory that was never registered.
    let mounted = raw.ask(request(Opcode::Mount, 0, 6), &[], b"mem");
    let mut header = request(Opcode::Open, 0, 7);
    header.handle = mounted.header.handle;
    let mut body = [0; 8];
    body[..4].copy_from_slice(&0x3u32.to_le_bytes());
    let opened = raw.ask(header, &body, b"bystander");
    assert_eq!(opened.header.status, Status::OK);
    let mut header = request(Opcode::Write, 0, 8);
    header.handle = opened.header.handle;
    let mut body = [0; 40];
    dafs_proto::wire::WriteRequest {
        offset: 0,
        len: 100_000,
        method: Method::Direct,
        stability: dafs_client::Stability::Unstable,
        segment_count: 1,
        segment: [0x1234_5678_9abc_def0, 0, 100_000],
    }
    .encode(&mut body);
    raw.send(header, &body, &[]);
    if let Some(reply) = raw.receive() {
        assert_ne!(reply.header.status, Status::OK);
    }
    drop(raw);
    bystander.notices_nothing();
}
