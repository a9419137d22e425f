use std::io::IoSlice;
use std::sync::Arc;
use std::time::Duration;

use dafs_client::{Config, Datatype, Extent, File, Key, LockKind, OpenOptions, Session, Sieve, Status};
use dafs_proto::session::ClientIntroduction;
use dafs_proto::transport::shm::{ShmConfig, ShmDomain};
use dafs_proto::transport::{
    Access, Address, ConnectParams, Domain, LocalSegments, MemoryRef, OpToken, Posted, Region, RegionKey,
    RemoteRange, WaitPolicy,
};
use dafs_proto::wire::{
    EagerBufferTerms, FileHandle, HEADER_SIZE, Header, Opcode, OpenFlags, Welcome, decode_segments,
    encode_segments,
};
use dafs_server::access::KeyEntry;
use dafs_server::config::Config as ServerConfig;
use dafs_tests::harness::{Harness, On};
use dafs_tests::on_each_provider;
use dafs_tests::program::{Program, key_file};
use dafs_tests::raw::{Raw, introduction, read_body, write_body};
use dafs_tests::suite::{EXPORTS, assert_same, assert_status, bytes, wait_for};

/// A server that other hosts could reach, with two keys and little of something, and how this host reaches it.
fn keyed(limit: impl FnOnce(&mut ServerConfig)) -> (Harness, String) {
    let harness = Harness::start_with(On::Tcp, |config| {
        for (name, seed) in [("greedy", 1), ("other", 2)] {
            config.access.keys.insert(KeyEntry { key: key(name, seed), forced: None, publishes: false });
        }
        config.listeners = vec![Address::Tcp("0.0.0.0:0".parse().unwrap())];
        limit(config);
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
    let (_harness, url) = keyed(|config| config.sessions_max = 8);
    let greedy: Vec<_> = (0..4).map(|_| holder(&url, "greedy", 1).unwrap()).collect();
    let refused = holder(&url, "greedy", 1).unwrap_err();
    assert_eq!(refused.status(), Some(Status::SERVER_FULL), "{refused:?}");
    let others: Vec<_> = (0..4).map(|_| holder(&url, "other", 2).unwrap()).collect();
    for other in &others {
        other.ping().unwrap();
    }
    drop(greedy);
    wait_for("the greedy are gone", || others[0].statistics().unwrap().sessions <= 4);
    holder(&url, "greedy", 1).unwrap().ping().unwrap();
}

// [LIMIT-16]
#[test]
fn registrations_of_many_connections_leave_the_server_alive() {
    let max = std::fs::read_to_string("/proc/sys/vm/max_map_count").unwrap();
    let max: usize = max.trim().parse().unwrap();
    register_from_many_connections(&[], max * 3 / 4);
}

// [LIMIT-5] Whatever the kernel allows here.
#[test]
fn registrations_of_many_connections_keep_to_their_budget() {
    register_from_many_connections(&["--mappings-max", "20000"], 25_000);
}

fn register_from_many_connections(flags: &[&str], maps_max: usize) {
    const CONNECTIONS: usize = 16;
    const REGIONS: usize = 4000;
    let program = Program::start(On::Shm, &[&["--no-calibrate"], flags].concat());
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
    assert!(maps.lines().count() < maps_max, "{} mappings", maps.lines().count());
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

// [SHM-78] A larger ring would be the client's to fill, on the server's account.
#[test]
fn shm_ring_to_client_is_bounded_by_what_is_sent() {
    let harness = Harness::start_with(On::Shm, |config| config.inline_max = 32 << 10);
    let wanted = ConnectParams { recv_payload_max: 1 << 20, ..ConnectParams::default() };
    let endpoint = ShmDomain::new().connect(harness.address(), &wanted, Duration::from_secs(10)).unwrap();
    assert_eq!(endpoint.capabilities().recv_payload_max, 32 << 10);
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
        let written = raw.call(write(file), &write_body(0, 5, None), b"hello");
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

/// Leaves bytes of a file untaken, more than the kernel takes for a socket.
fn take_nothing(silent: &mut Raw, welcome: &Welcome) {
    let root = silent.mount("data");
    let opened = silent.open(root, b"f", OpenFlags::READ).header.handle;
    for slot in 1..u32::from(welcome.slots.min(welcome.credits)) - 1 {
        let mut header = dafs_tests::raw::request(Opcode::Read, slot, 1);
        (header.handle, header.credits) = (opened, welcome.slots);
        silent.send(header, &read_body(0, 16_000, None), &[]);
    }
}

// [LIMIT-8] Over shared memory the server takes no more requests than its replies have room in the rings.
#[test]
fn replies_that_nobody_takes_end_their_connection_only() {
    let harness = Harness::start_with(On::Tcp, |config| {
        config.limits.unsent_size_max = 256 << 10;
        config.slots_max = 512;
        config.lease_ms = 3_600_000;
    });
    let bystander = harness.session();
    let file = bystander.mount("data").unwrap().create("f").unwrap();
    file.write_all_at(&bytes(1, 1 << 20), 0).unwrap();
    let (mut silent, welcome) = Raw::session(harness.address(), 512);
    take_nothing(&mut silent, &welcome);
    wait_for("its connection is closed", || bystander.statistics().unwrap().connections == 1);
    let mut found = vec![0; 1 << 20];
    file.read_exact_at(&mut found, 0).unwrap();
    assert_same(&found, &bytes(1, 1 << 20), "the bystander's data");
    assert_eq!(bystander.reconnects(), 0);
}

// [LIMIT-1] [LIMIT-8]
#[test]
fn key_holder_leaves_at_most_its_share_of_replies() {
    // A hundredth of it is more than anybody else leaves, and less than what is left here.
    let (harness, url) = keyed(|config| {
        (config.limits.unsent_size_max, config.limits.identity_share_percent) = (20 << 20, 1);
        config.slots_max = 512;
        config.lease_ms = 3_600_000;
    });
    let other = holder(&url, "other", 2).unwrap();
    std::fs::write(harness.data().join("f"), bytes(1, 1 << 20)).unwrap();
    let file = other.mount("data").unwrap().open("f").unwrap();
    let Address::Tcp(address) = harness.address() else { panic!("a tcp listener") };
    let address = Address::Tcp(([127, 0, 0, 1], address.port()).into());
    let mut silent = Raw::connect(&address);
    let greedy = ClientIntroduction { key: Some(key("greedy", 1)), ..introduction(&address, 512, None) };
    let welcome = silent.shake(&greedy).unwrap();
    take_nothing(&mut silent, &welcome);
    wait_for("its connection is closed", || other.statistics().unwrap().connections == 1);
    let mut found = vec![0; 1 << 20];
    file.read_exact_at(&mut found, 0).unwrap();
    assert_same(&found, &bytes(1, 1 << 20), "the other's data");
    assert_eq!(other.reconnects(), 0);
}

// [LIMIT-1] [LIMIT-14]
#[test]
fn key_holder_opens_at_most_its_share_of_files() {
    let (harness, url) = keyed(|config| config.limits.descriptors_max = Some(32));
    std::fs::write(harness.data().join("f"), "content").unwrap();
    let greedy = holder(&url, "greedy", 1).unwrap();
    let again = holder(&url, "greedy", 1).unwrap();
    let other = holder(&url, "other", 2).unwrap();
    let [root, beside] = [&greedy, &again].map(|session| session.mount("data").unwrap());
    let mut files = Vec::new();
    let error = loop {
        // Of both its sessions together.
        let from = if files.len() % 2 == 0 { &root } else { &beside };
        match from.open("f") {
            Ok(file) => files.push(file),
            Err(error) => break error,
        }
    };
    assert_eq!(error.status(), Some(Status::TOO_MANY_OPEN), "{error}");
    assert_eq!(files.len(), 16, "half of all");
    let opened = other.mount("data").unwrap().open("f").unwrap();
    let mut found = [0; 7];
    opened.read_exact_at(&mut found, 0).unwrap();
    assert_eq!(&found, b"content");
    files.pop();
    wait_for("a file is closed", || beside.open("f").is_ok());
}

// [LIMIT-22]
#[test]
fn files_that_may_be_written_count_twice_whoever_has_them() {
    const TTL: Duration = Duration::from_secs(60);
    let (harness, url) = keyed(|config| config.limits.descriptors_max = Some(32));
    let path = harness.data().join("f");
    std::fs::write(&path, "content").unwrap();
    std::fs::set_permissions(&path, std::os::unix::fs::PermissionsExt::from_mode(0o666)).unwrap();
    let [writer, reader] = [(); 2].map(|()| holder(&url, "greedy", 1).unwrap());
    let written = OpenOptions::new().read(true).write(true).clone();
    let file = writer.mount("data").unwrap().open_with("f", &written).unwrap();
    let token = file.share(true, false, TTL).unwrap();
    // They only read, and have the same file.
    let root = reader.mount("data").unwrap();
    let shared: Vec<_> =
        (0..6).map(|_| root.open_token(&token, "f", OpenOptions::new().read(true)).unwrap()).collect();
    assert_eq!(root.open("f").unwrap_err().status(), Some(Status::TOO_MANY_OPEN), "2 × 8 are half of all");
    drop(shared);
    let mut files = Vec::new();
    wait_for("as many are open that can only be read", || {
        files.extend(root.open("f").ok());
        files.len() == 12
    });
    assert_eq!(root.open("f").unwrap_err().status(), Some(Status::TOO_MANY_OPEN));
}

// [LIMIT-22]
#[test]
fn second_descriptors_of_direct_files_and_those_of_tokens_count() {
    const TTL: Duration = Duration::from_secs(60);
    let (harness, url) = keyed(|config| {
        config.limits.descriptors_max = Some(32);
        config.exports[0].direct_io = true;
    });
    std::fs::write(harness.data().join("f"), "content").unwrap();
    let greedy = holder(&url, "greedy", 1).unwrap();
    let root = greedy.mount("data").unwrap();
    let mut files: Vec<_> = (0..6).map(|_| root.open("f").unwrap()).collect();
    let tokens: Vec<_> = (0..2).map(|_| files[0].share(true, false, TTL).unwrap()).collect();
    let error = root.open("f").unwrap_err();
    assert_eq!(error.status(), Some(Status::TOO_MANY_OPEN), "2 × (6 + 2) are half of all: {error}");
    let error = files[0].share(true, false, TTL).unwrap_err();
    assert_eq!(error.status(), Some(Status::TOO_MANY_OPEN), "{error}");
    // Files that are closed make room; those of tokens stay.
    files.clear();
    wait_for("six files are open again", || {
        files.extend(root.open("f").ok());
        files.len() == 6
    });
    assert_eq!(root.open("f").unwrap_err().status(), Some(Status::TOO_MANY_OPEN));
    drop(tokens);
}

/// A metric of a budget.
fn of(budget: &str, what: &str) -> String {
    format!("dafs_budget_{what}{{budget=\"{budget}\"}}")
}

/// A metric has this value, now or soon.
#[track_caller]
fn assert_shows(program: &Program, name: &str, value: f64) {
    wait_for(&format!("{name} is {value}"), || program.metric(name).to_bits() == value.to_bits());
}

// [LIMIT-1] [LIMIT-3] [ACC-103]
#[test]
fn metrics_show_what_is_taken_and_who_was_refused() {
    let directory = tempfile::tempdir().unwrap();
    let keys = key_file(directory.path());
    let flags = ["--no-calibrate", "--sessions-max", "2", "--key-file", keys.to_str().unwrap()];
    let program = Program::start_counted(On::Tcp, &flags);
    let shows = |name: &str, value: f64| assert_shows(&program, name, value);
    shows(&of("sessions", "limit"), 2.0);
    // A connection is counted until it has a session, or ends.
    let begun = [Raw::connect(program.address()), Raw::connect(program.address())];
    shows(&of("handshakes", "used"), 2.0);
    drop(begun);
    shows(&of("handshakes", "used"), 0.0);
    let (first, second) = (program.session(), program.session());
    let file = first.mount("data").unwrap().create("f").unwrap();
    shows(&of("handshakes", "used"), 0.0);
    shows(&of("sessions", "used"), 2.0);
    shows(&of("descriptors", "used"), 2.0);
    shows("dafs_logins_refused_total", 0.0);
    let url = program.address().to_string();
    let refused = Session::connect(&url, &Config::default()).unwrap_err();
    assert_eq!(refused.status(), Some(Status::SERVER_FULL), "{refused}");
    shows(&of("sessions", "refused_total"), 1.0);
    shows("dafs_logins_refused_total", 1.0);
    let wrong = Config { key: Some(key("suites", 1)), ..Config::default() };
    let refused = Session::connect(&url, &wrong).unwrap_err();
    assert_eq!(refused.status(), Some(Status::AUTH_FAILED), "{refused}");
    shows("dafs_logins_refused_total", 2.0);
    drop(file);
    first.flush();
    shows(&of("descriptors", "used"), 0.0);
    drop((first, second));
    shows(&of("sessions", "used"), 0.0);
    shows(&of("sessions", "refused_total"), 1.0);
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
            Ok(file) => {
                file.write_all_at(&[1; 100], 0).unwrap();
                // For what lies between it takes another descriptor.
                file.set_sieve(Sieve::On);
                let extents = [0, 50].map(|at| Extent::new(at, 10));
                assert_eq!(file.write_list(&extents, &[IoSlice::new(&[2; 20])]).unwrap(), 20);
                files.push(file);
            }
            Err(error) => break error,
        }
    };
    assert_eq!(error.status(), Some(Status::TOO_MANY_OPEN), "{error}");
    assert!(!program.data().join(format!("f{}", files.len())).exists(), "what is refused makes nothing");
    assert!(greedy.statistics().unwrap().sieved_windows as usize >= files.len(), "windows were written");
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

// [LIMIT-31] [SHM-48] [TCP-21]
fn check_clients_beyond_the_descriptors_are_told(on: On) {
    // Over shm a session takes four descriptors.
    let open_files_max = 128;
    let program = Program::start_limited(on, &["--no-calibrate"], Some(open_files_max));
    let outcomes: Vec<_> = std::thread::scope(|scope| {
        let connect = || program.try_session(&Config::default());
        let clients: Vec<_> = (0..150).map(|_| scope.spawn(connect)).collect();
        clients.into_iter().map(|client| client.join().unwrap()).collect()
    });
    let (mut sessions, refused): (Vec<_>, Vec<_>) = outcomes.into_iter().partition(Result::is_ok);
    let told: Vec<_> = refused.iter().map(|refused| refused.as_ref().unwrap_err().status()).collect();
    // Who is looked up while others use all that was left is told to try again.
    assert!(
        told.iter().all(|told| [Some(Status::SERVER_FULL), Some(Status::AGAIN)].contains(told)),
        "{told:?}"
    );
    let full = told.iter().filter(|told| **told == Some(Status::SERVER_FULL)).count();
    assert!(full > told.len() / 2, "{told:?}");
    let some = if on == On::Tcp { 70..120 } else { 15..30 };
    assert!(some.contains(&sessions.len()), "{} sessions", sessions.len());
    assert!(program.log().contains("few descriptors are left"));
    // Those who are in are served, and one that leaves makes room.
    let last = sessions.pop().unwrap().unwrap();
    for session in &sessions {
        session.as_ref().unwrap().mount("data").unwrap().metadata("").unwrap();
    }
    drop(last);
    wait_for("a place is free", || program.try_session(&Config::default()).is_ok());
}

#[test]
fn clients_beyond_the_descriptors_over_shm_are_told() {
    check_clients_beyond_the_descriptors_are_told(On::Shm);
}

#[test]
fn clients_beyond_the_descriptors_over_tcp_are_told() {
    check_clients_beyond_the_descriptors_are_told(On::Tcp);
}

// [LIMIT-10] [LIMIT-17] [LIMIT-21]
#[test]
fn name_of_a_client_stays_within_its_line_of_the_log() {
    let program = Program::start(On::Shm, &["--no-calibrate", "--log", "info"]);
    let mut raw = Raw::connect(program.address());
    let mut forger = introduction(program.address(), 4, None);
    forger.client_name = "x uid=7\n2026-01-01T00:00:00Z ERROR forged\u{1b}[31m".into();
    raw.shake(&forger).unwrap();
    drop(raw);
    let mut raw = Raw::connect(program.address());
    let mut long = introduction(program.address(), 4, None);
    long.client_name = "x".repeat(63) + "yz";
    raw.shake(&long).unwrap();
    drop(raw);
    wait_for("both end", || program.log().matches("session ended").count() == 2);
    let log = program.log();
    assert!(log.contains("xxy") && !log.contains("yz"), "{log}");
    assert_eq!(log.matches("client=\"x uid=7").count(), 2, "quoted when it begins and when it ends: {log}");
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
    wait_for("a summary", || program.log().contains("lines were not written"));
    let opened = program.log().lines().filter(|line| line.contains("session opened")).count();
    assert!(opened < 200, "{opened} lines");
}

// [ACC-149]
#[test]
fn list_of_exports_logs_no_refusal_of_those_that_it_leaves_out() {
    let closed = "closed=mem:1M,clients=10.0.0.0/8";
    let program = Program::start(On::Shm, &["--no-calibrate", "--log", "info", "--export", closed]);
    let session = program.session();
    for _ in 0..3 {
        assert_eq!(session.exports().unwrap(), EXPORTS);
        assert_eq!(session.statistics().unwrap().exports.len(), EXPORTS.len());
    }
    assert_status(session.mount("closed"), Status::NO_EXPORT, "from here");
    let refusals = || program.log().matches("mount refused").count();
    wait_for("the refusal is logged", || refusals() > 0);
    assert_eq!(refusals(), 1, "{}", program.log());
}

on_each_provider! {
    memory_lent_to_one_client_is_out_of_reach_of_all_others,
}

/// Asks for an eager buffer; where it is.
fn borrow(raw: &mut Raw) -> (Region, RemoteRange) {
    let terms = EagerBufferTerms { count: 1, reads: true, size: 8192 };
    let own = raw.region(terms.buffer_size(), Access::REMOTE_WRITE);
    let range = own.range();
    let mut body = [0; EagerBufferTerms::HEAD_SIZE - HEADER_SIZE];
    terms.encode(&mut body);
    let mut payload = vec![0; terms.payload_size()];
    encode_segments(&[[range.key.0, range.offset, range.len]], &mut payload);
    let reply = raw.call(Header::request(Opcode::EagerBuffers, FileHandle(0)), &body, &payload);
    let lent = EagerBufferTerms::decode(&reply.body).unwrap();
    let [[key, offset, len]] = decode_segments(&reply.payload, lent.count).unwrap()[..] else { panic!() };
    (own, RemoteRange { key: RegionKey(key), offset, len }.slice(0, 16).unwrap())
}

/// As much as these tests move.
fn memory(raw: &Raw) -> MemoryRef {
    MemoryRef::new(raw.domain.allocate(16).unwrap()).slice(0, 16).unwrap()
}

fn put(raw: &mut Raw, to: RemoteRange, byte: u8) -> Posted {
    let from = memory(raw);
    from.span().write_from(0, &[byte; 16]);
    let posted = raw.endpoint.rdma_write(OpToken(1), LocalSegments::from_iter([from]), to, None);
    let _ = raw.endpoint.flush();
    posted.unwrap_or(Posted::Done)
}

/// What was posted is done, and well.
fn complete(raw: &mut Raw, posted: Posted) {
    let mut completion = None;
    while posted == Posted::Pending && completion.is_none() {
        assert!(raw.endpoint.recv().unwrap().is_none());
        completion = raw.endpoint.poll_completion();
    }
    assert!(completion.is_none_or(|completion| completion.result.is_ok()));
}

// [ACC-16] [ACC-80]
fn memory_lent_to_one_client_is_out_of_reach_of_all_others(on: On) {
    let harness = Harness::start(on);
    let (mut owner, _) = Raw::session(harness.address(), 4);
    owner.mount("mem");
    let (_own, lent) = borrow(&mut owner);
    let posted = put(&mut owner, lent, 7);
    complete(&mut owner, posted);
    // A device lets whoever knows all of a range reach it. Others may know its key, and do not guess its place.
    let offset = if on.is_verbs() { lent.offset ^ 1 << 40 } else { lent.offset };
    let known = RemoteRange { offset, ..lent };
    // Before a session, and in one of its own.
    let mut stranger = Raw::connect(harness.address());
    put(&mut stranger, known, 9);
    assert_eq!(stranger.ending(), None);
    let (mut other, _) = Raw::session(harness.address(), 4);
    put(&mut other, known, 9);
    other.ending();
    let into = memory(&owner);
    let posted = owner.endpoint.rdma_read(OpToken(2), LocalSegments::from_iter([into.clone()]), lent);
    owner.endpoint.flush().unwrap();
    complete(&mut owner, posted.unwrap());
    assert_eq!(into.span().to_vec(), [7; 16]);
}

// [LIMIT-1] [LOCK-10] [SESS-76] [VIEW-9]
#[test]
fn limits_of_a_session_are_as_set_and_refusals_are_counted() {
    let flags = ["--handles-max", "4", "--views-max", "2", "--tokens-max", "1"];
    let locks = ["--session-locks-max", "3", "--locks-max", "5"];
    let program = Program::start_counted(On::Tcp, &[&["--no-calibrate"], &flags[..], &locks].concat());
    let sessions: Vec<_> = (0..3).map(|_| program.session()).collect();
    assert_eq!(sessions[0].agreed().handles_max, 4);
    let roots: Vec<_> = sessions.iter().map(|session| session.mount("data").unwrap()).collect();
    let files: Vec<File> = roots.iter().map(|root| root.create("f").unwrap()).collect();
    let [held, _beside] = [roots[0].open("f"), roots[0].open("f")].map(Result::unwrap);
    assert_status(roots[0].open("f"), Status::TOO_MANY_OPEN, "a fifth handle");
    let views: Vec<_> = [4, 8].map(|len| sessions[0].view(&Datatype::bytes(len)).unwrap()).into();
    assert_status(sessions[0].view(&Datatype::bytes(12)), Status::TOO_MANY_VIEWS, "a third view");
    held.share(true, false, Duration::ZERO).unwrap();
    assert_status(held.share(true, false, Duration::ZERO), Status::TOO_MANY_OPEN, "a second token");
    let lock = |file: usize, at: u64| files[file].lock(at..at + 1, LockKind::Exclusive);
    for at in [0, 2, 4] {
        lock(0, at).unwrap();
    }
    assert_status(lock(0, 6), Status::TOO_MANY_LOCKS, "a fourth lock of a session");
    for at in [8, 10] {
        lock(1, at).unwrap();
    }
    assert_status(lock(2, 12), Status::TOO_MANY_LOCKS, "a sixth lock of all");
    for (limit, most) in [("handles", 4.0), ("views", 2.0), ("tokens", 1.0), ("locks", 3.0)] {
        assert_shows(&program, &format!("dafs_session_limit{{limit=\"{limit}\"}}"), most);
        assert_shows(&program, &format!("dafs_session_refused_total{{limit=\"{limit}\"}}"), 1.0);
    }
    for (what, value) in [("used", 5.0), ("limit", 5.0), ("refused_total", 1.0)] {
        assert_shows(&program, &of("locks", what), value);
    }
    drop(views);
}
