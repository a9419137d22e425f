use std::sync::Arc;
use std::time::Duration;

use dafs_client::{Config, Key, Session, Status};
use dafs_proto::transport::shm::{ShmConfig, ShmDomain};
use dafs_proto::transport::{
    Access, Address, ConnectParams, Domain, LocalSegments, MemoryRef, OpToken, WaitPolicy,
};
use dafs_proto::wire::{FileHandle, Header, Opcode};
use dafs_server::access::KeyEntry;
use dafs_tests::harness::{Harness, On};
use dafs_tests::program::Program;
use dafs_tests::raw::{Raw, introduction, read_body};
use dafs_tests::suite::{assert_same, bytes};

/// A server that other hosts could reach, with two keys and few sessions, and how this host reaches it.
fn keyed(sessions_max: u32) -> (Harness, String) {
    let harness = Harness::start_with(On::Tcp, |config| {
        for (name, seed) in [("greedy", 1), ("other", 2)] {
            config.access.keys.insert(KeyEntry { key: key(name, seed), forced: None });
        }
        config.listeners = vec![Address::Tcp("0.0.0.0:0".parse().unwrap())];
        config.sessions_max = sessions_max;
    });
    let Address::Tcp(address) = harness.address() else { panic!("a tcp listener") };
    let url = format!("dafs+tcp://127.0.0.1:{}", address.port());
    (harness, url)
}

fn key(name: &str, seed: u8) -> Key {
    Key { name: name.to_owned(), secret: Arc::from([seed; 32]) }
}

fn holder(url: &str, name: &str, seed: u8) -> dafs_client::Result<Session> {
    Session::connect(url, &Config { key: Some(key(name, seed)), ..Config::default() })
}

// [LIMIT-1]
#[test]
fn holders_of_one_key_get_their_share_of_the_sessions() {
    let (_harness, url) = keyed(8);
    let greedy: Vec<_> = (0..4).map(|_| holder(&url, "greedy", 1).unwrap()).collect();
    let refused = holder(&url, "greedy", 1).unwrap_err();
    assert_eq!(refused.status(), Some(Status::SERVER_FULL), "{refused:?}");
    let others: Vec<_> = (0..4).map(|_| holder(&url, "other", 2).unwrap()).collect();
    for other in &others {
        other.ping().unwrap();
    }
    drop(greedy);
    while others[0].statistics().unwrap().sessions > 4 {}
    holder(&url, "greedy", 1).unwrap().ping().unwrap();
}

// [LIMIT-16]
#[test]
fn registrations_of_many_connections_leave_the_server_alive() {
    const CONNECTIONS: usize = 16;
    const REGIONS: usize = 4000;
    let program = Program::start(On::Shm, &["--no-calibrate"]);
    let bystander = program.session();
    let file = bystander.mount("mem").unwrap().create("f").unwrap();
    file.write_all_at(&bytes(1, 200_000), 0).unwrap();
    let domain = ShmDomain::with_config(ShmConfig { cross_memory_attach: false, ..ShmConfig::default() });
    let params = ConnectParams { wait: WaitPolicy::Event, ..ConnectParams::default() };
    let mut endpoints: Vec<_> = (0..CONNECTIONS)
        .map(|_| domain.connect(program.address(), &params, Duration::from_secs(10)).unwrap())
        .collect();
    let page = MemoryRef::new(domain.allocate(4096).unwrap());
    let regions: Vec<_> = (0..REGIONS)
        .map(|_| {
            let region = domain.register(page.clone(), Access::REMOTE_READ).unwrap();
            endpoints.iter_mut().for_each(|endpoint| endpoint.flush().unwrap());
            region
        })
        .collect();
    // The server has taken all that waits when nothing waits any more.
    while endpoints.iter().any(|endpoint| endpoint.wants_flush()) {
        endpoints.iter_mut().for_each(|endpoint| endpoint.flush().unwrap());
        bystander.ping().unwrap();
    }
    let maps = std::fs::read_to_string(format!("/proc/{}/maps", program.id())).unwrap();
    let max = std::fs::read_to_string("/proc/sys/vm/max_map_count").unwrap();
    let max: usize = max.trim().parse().unwrap();
    assert!(maps.lines().count() < max * 3 / 4, "{} of {max} mappings", maps.lines().count());
    for _ in 0..50 {
        let session = program.session();
        let file = session.mount("mem").unwrap().open("f").unwrap();
        let mut found = vec![0; 1000];
        file.read_exact_at(&mut found, 0).unwrap();
        assert_same(&found, &bytes(1, 200_000)[..1000], "another client's read");
    }
    let mut found = vec![0; 200_000];
    file.read_exact_at(&mut found, 0).unwrap();
    assert_same(&found, &bytes(1, 200_000), "the bystander's file");
    assert_eq!(bystander.reconnects(), 0);
    drop(regions);
}

// [LIMIT-5] [LIMIT-15]
#[test]
fn memory_beyond_a_budget_is_refused_to_the_one_who_asks() {
    for kind in 0..3 {
        let harness = Harness::start_with(On::Shm, |config| match kind {
            0 => config.limits.mappings_max = Some(2),
            1 => config.limits.mapped_size_max = Some(2 << 20),
            _ => config.limits.sparse_size_max = Some(2 << 20),
        });
        let (mut raw, _) = Raw::session(harness.address(), 4);
        let root = raw.mount("mem");
        let file = raw.create(root, b"f");
        let written = raw.call(write(file), &dafs_tests::raw::write_body(0, 5, None), b"hello");
        assert_eq!(written.header.status, Status::OK);
        let regions: Vec<_> = (0..3).map(|_| raw.region(1 << 20, Access::REMOTE_WRITE)).collect();
        let mut ask = |place: usize| {
            let range = regions[place].range();
            let body = read_body(0, 5, Some([range.key.0, range.offset, 5]));
            raw.call(Header::request(Opcode::Read, file), &body, &[]).header.status
        };
        assert_eq!([ask(0), ask(1)], [Status::OK, Status::OK], "budget {kind}");
        assert_eq!(ask(2), Status::REMOTE_ACCESS, "budget {kind}");
        // What ends makes room.
        let mut regions = regions;
        regions.remove(0);
        let again = raw.region(1 << 20, Access::REMOTE_WRITE);
        let range = again.range();
        let body = read_body(0, 5, Some([range.key.0, range.offset, 5]));
        let reply = raw.call(Header::request(Opcode::Read, file), &body, &[]);
        assert_eq!(reply.header.status, Status::OK, "budget {kind}");
    }
}

fn write(file: FileHandle) -> Header {
    Header::request(Opcode::Write, file)
}

// [LIMIT-8]
#[test]
fn replies_that_nobody_takes_end_their_connection_only() {
    let harness = Harness::start_with(On::Tcp, |config| {
        config.limits.unsent_size_max = 256 << 10;
        config.slots_max = 512;
        config.lease_ms = 3_600_000;
    });
    let bystander = harness.session();
    let file = bystander.mount("mem").unwrap().create("f").unwrap();
    file.write_all_at(&bytes(1, 1 << 20), 0).unwrap();
    // More than the kernel takes for a socket.
    let (mut silent, welcome) = Raw::session(harness.address(), 512);
    let root = silent.mount("mem");
    let opened = silent.open(root, b"f", dafs_proto::wire::OpenFlags::READ).header.handle;
    for slot in 1..u32::from(welcome.slots.min(welcome.credits)) - 1 {
        let mut header = dafs_tests::raw::request(Opcode::Read, slot, 1);
        (header.handle, header.credits) = (opened, welcome.slots);
        silent.send(header, &read_body(0, 16_000, None), &[]);
    }
    while bystander.statistics().unwrap().connections > 1 {}
    let mut found = vec![0; 1 << 20];
    file.read_exact_at(&mut found, 0).unwrap();
    assert_same(&found, &bytes(1, 1 << 20), "the bystander's data");
    assert_eq!(bystander.reconnects(), 0);
}

// [LIMIT-4] [LIMIT-14]
#[test]
fn open_files_leave_descriptors_for_others_who_stay_who_they_are() {
    let program = Program::start_limited(On::Tcp, &["--no-calibrate"], Some(256));
    let greedy = program.session();
    let root = greedy.mount("data").unwrap();
    let mut files = Vec::new();
    let error = loop {
        match root.create(format!("f{}", files.len())) {
            Ok(file) => files.push(file),
            Err(error) => break error,
        }
    };
    assert_eq!(error.status(), Some(Status::TOO_MANY_OPEN), "{error}");
    assert!(!program.data().join(format!("f{}", files.len())).exists(), "what is refused makes nothing");
    // Each is this user, not nobody, and is served.
    let own = rustix::process::geteuid().as_raw();
    let others: Vec<_> = (0..20).map(|_| program.session()).collect();
    for other in &others {
        assert_eq!(other.limits().unwrap().uid, own);
        other.mount("data").unwrap().metadata("f0").unwrap();
    }
}

// [LIMIT-13]
#[test]
fn thousands_of_clients_at_once_over_shared_memory_all_get_in() {
    let program = Program::start(On::Shm, &["--no-calibrate"]);
    let outcomes: Vec<_> = std::thread::scope(|scope| {
        let clients: Vec<_> = (0..1000)
            .map(|_| {
                let client = || {
                    let mut raw = Raw::connect(program.address());
                    raw.shake(&introduction(program.address(), 4, None)).map(drop)
                };
                std::thread::Builder::new().stack_size(256 << 10).spawn_scoped(scope, client).unwrap()
            })
            .collect();
        clients.into_iter().map(std::thread::ScopedJoinHandle::join).collect()
    });
    assert!(outcomes.iter().all(|outcome| matches!(outcome, Ok(Ok(())))));
}

// [LIMIT-10] [LIMIT-17]
#[test]
fn name_of_a_client_stays_within_its_line_of_the_log() {
    let program = Program::start(On::Shm, &["--no-calibrate", "--log", "info"]);
    let mut raw = Raw::connect(program.address());
    let mut forger = introduction(program.address(), 4, None);
    forger.client_name = "x\n2026-01-01T00:00:00Z ERROR forged\u{1b}[31m".into();
    raw.shake(&forger).unwrap();
    drop(raw);
    let mut raw = Raw::connect(program.address());
    let mut long = introduction(program.address(), 4, None);
    long.client_name = "x".repeat(63) + "yz";
    raw.shake(&long).unwrap();
    drop(raw);
    while program.log().matches("session ended").count() < 2 {}
    let log = program.log();
    assert!(log.contains("xxy") && !log.contains("yz"), "{log}");
    assert!(log.contains("forged"), "{log}");
    assert!(!log.contains('\u{1b}') && !log.lines().any(|line| line.starts_with("2026-01-01")), "{log}");
}

// [LIMIT-11] [LIMIT-19]
#[test]
fn log_of_many_sessions_is_bounded_and_says_so() {
    let program = Program::start(On::Shm, &["--no-calibrate", "--log", "info", "--log-lines-max", "10"]);
    for _ in 0..200 {
        Raw::session(program.address(), 4);
    }
    while !program.log().contains("lines were left out") {}
    let opened = program.log().lines().filter(|line| line.contains("session opened")).count();
    assert!(opened < 200, "{opened} lines");
}

// [ACC-16] [ACC-80]
#[test]
fn memory_lent_to_one_client_is_out_of_reach_of_all_others() {
    use dafs_proto::wire::{EagerBufferTerms, HEADER_SIZE, decode_segments, encode_segments};
    let harness = Harness::start(On::Tcp);
    let (mut owner, _) = Raw::session(harness.address(), 4);
    owner.mount("mem");
    let terms = EagerBufferTerms { count: 1, reads: true, size: 8192 };
    let own = owner.region(terms.buffer_size(), Access::REMOTE_WRITE);
    let range = own.range();
    let mut body = [0; EagerBufferTerms::HEAD_SIZE - HEADER_SIZE];
    terms.encode(&mut body);
    let mut payload = vec![0; terms.payload_size()];
    encode_segments(&[[range.key.0, range.offset, range.len]], &mut payload);
    let reply = owner.call(Header::request(Opcode::EagerBuffers, FileHandle(0)), &body, &payload);
    let lent = EagerBufferTerms::decode(&reply.body).unwrap();
    let [[key, offset, len]] = decode_segments(&reply.payload, lent.count).unwrap()[..] else { panic!() };
    let eager_buffer =
        dafs_proto::transport::RemoteRange { key: dafs_proto::transport::RegionKey(key), offset, len };
    let put = |raw: &mut Raw, byte: u8| {
        let from = MemoryRef::new(raw.domain.allocate(16).unwrap());
        from.span().write_from(0, &[byte; 16]);
        let to = eager_buffer.slice(0, 16).unwrap();
        raw.endpoint.rdma_write(OpToken(1), LocalSegments::from_iter([from]), to, None).unwrap();
        let _ = raw.endpoint.flush();
    };
    put(&mut owner, 7);
    // Before a session, and in one of its own.
    let mut stranger = Raw::connect(harness.address());
    put(&mut stranger, 9);
    assert_eq!(stranger.ending(), None);
    let (mut other, _) = Raw::session(harness.address(), 4);
    put(&mut other, 9);
    other.ending();
    let into = MemoryRef::new(owner.domain.allocate(16).unwrap());
    let from = eager_buffer.slice(0, 16).unwrap();
    owner.endpoint.rdma_read(OpToken(2), LocalSegments::from_iter([into.clone()]), from).unwrap();
    owner.endpoint.flush().unwrap();
    let mut done = 0;
    while done < 2 {
        let _ = owner.endpoint.recv().unwrap();
        done += std::iter::from_fn(|| owner.endpoint.poll_completion())
            .inspect(|c| assert!(c.result.is_ok()))
            .count();
    }
    assert_eq!(into.span().to_vec(), [7; 16]);
}
