//! Who may in and as whom: `spec/protocol/access.md`, through real connections.
#![allow(clippy::unwrap_used, clippy::expect_used, reason = "all of this is test code, helpers included")]

use std::os::unix::fs::{MetadataExt, PermissionsExt};
use std::os::unix::process::CommandExt;
use std::process::Command;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

use dafs_client::{Config, Error, FenceList, FenceMode, Identity, Key, OpenOptions, Session, Status};
use dafs_proto::session::ClientIntroduction;
use dafs_proto::transport::{Access, Address};
use dafs_proto::wire::{Header, Opcode, Resume};
use dafs_server::access::{ForcedIdentity, IdentityMapping, KeyEntry};
use dafs_server::config::Config as ServerConfig;
use dafs_tests::cut::Relay;
use dafs_tests::faulty::{Fault, Kind};
use dafs_tests::harness::{Harness, On, key_for};
use dafs_tests::raw::{Raw, introduction, write_body};
use dafs_tests::suite::EXPORTS;
use dafs_tests::suite::assert_status;
use dafs_tests::{on_each_provider, on_three_workers};

on_each_provider! {
    export_with_keys_is_there_for_their_holders_only,
    export_with_clients_is_there_for_those_addresses_only,
    #[ignore = "needs root"]
    squashed_clients_act_as_the_user_named,
    fenced_client_is_refused_and_others_go_on,
    fence_by_address_holds_under_any_id,
    fence_that_is_kept_holds_after_a_restart,
    fence_waits_for_what_the_client_has_in_flight,
    fence_waits_for_what_a_session_left_that_has_ended,
}

on_three_workers! {
    fenced_client_is_refused_and_others_go_on,
    fence_waits_for_what_the_client_has_in_flight,
    fence_waits_for_what_a_session_left_that_has_ended,
}

dafs_tests::on_verbs_three_workers! { fence_waits_for_what_the_client_has_in_flight }

/// Where the kernel knows who is at the other end.
mod by_kernel {
    use super::client_in_another_process_acts_as_its_own_user;

    dafs_tests::on_sockets! {
        #[ignore = "needs root"]
        client_in_another_process_acts_as_its_own_user
    }
}

/// Where anybody may be at the other end.
mod every_host {
    mod tcp {
        #[test]
        fn listener_beyond_loopback_demands_a_key_and_proves_it() {
            super::super::keys_on_every_host(super::super::On::Tcp);
        }

        #[test]
        #[ignore = "needs root"]
        fn holder_of_a_key_acts_as_its_entry_or_its_claim_says() {
            super::super::identity_by_key(super::super::On::Tcp);
        }
    }

    #[cfg(feature = "verbs")]
    mod verbs {
        #[test]
        #[ignore = "needs rdma-device"]
        fn listener_beyond_loopback_demands_a_key_and_proves_it() {
            super::super::keys_on_every_host(super::super::On::Verbs);
        }

        #[test]
        #[ignore = "needs rdma-device"]
        fn holder_of_a_key_acts_as_its_entry_or_its_claim_says() {
            super::super::identity_by_key(super::super::On::Verbs);
        }
    }
}

fn key(name: &str, seed: u8) -> Key {
    Key { name: name.to_owned(), secret: Arc::from([seed; 32]) }
}

fn with_keys(config: &mut ServerConfig) {
    config.access.keys.insert(KeyEntry { key: key("team", 1), forced: None, publishes: false });
    let forced = Some(ForcedIdentity { uid: 1234, gid: 4321 });
    config.access.keys.insert(KeyEntry { key: key("person", 2), forced, publishes: false });
}

/// A server that other hosts could reach, and how this one reaches it.
fn on_every_host(on: On) -> (Harness, String) {
    let harness = Harness::start_with(on, |config| {
        with_keys(config);
        if on == On::Tcp {
            config.listeners = vec![Address::Tcp("0.0.0.0:0".parse().unwrap())];
        }
    });
    let url = match harness.address() {
        Address::Tcp(address) => format!("dafs+tcp://127.0.0.1:{}", address.port()),
        _ => harness.url(),
    };
    (harness, url)
}

fn connect(url: &str, key: Option<Key>) -> dafs_client::Result<Session> {
    Session::connect(url, &Config { key, ..Config::default() })
}

// [ACC-1] [SESS-2] [SESS-3] [SESS-80]
fn keys_on_every_host(on: On) {
    let (_harness, url) = on_every_host(on);
    let missing = connect(&url, None).unwrap_err();
    assert!(matches!(missing, Error::Handshake(_)), "{missing:?}");
    assert_eq!(missing.errno(), libc::EACCES);
    let wrong = connect(&url, Some(key("team", 9))).unwrap_err();
    assert_eq!(wrong.status(), Some(Status::AUTH_FAILED), "{wrong:?}");
    let unknown = connect(&url, Some(key("nobody's", 1))).unwrap_err();
    assert_eq!(unknown.status(), Some(Status::AUTH_FAILED), "{unknown:?}");
    let empty = connect(&url, Some(key("", 1))).unwrap_err();
    assert!(matches!(empty, Error::Handshake(_)), "{empty:?}");
    // [ACC-23]
    assert!(!format!("{wrong} {wrong:?} {:?}", key("team", 7)).contains('7'));
    let session = connect(&url, Some(key("team", 1))).unwrap();
    session.mount("mem").unwrap();
    session.ping().unwrap();
    assert_eq!(session.statistics().unwrap().sessions, 1, "the others have none");
}

// [ACC-10] [ACC-14] [ACC-31] [ACC-32] [ACC-96] [ACC-141]
fn identity_by_key(on: On) {
    let (harness, url) = on_every_host(on);
    std::fs::set_permissions(harness.data(), PermissionsExt::from_mode(0o777)).unwrap();
    let session_of = |name, seed, uid, gid| {
        let identity = Some(Identity { uid, gid, groups: vec![] });
        Session::connect(&url, &Config { key: Some(key(name, seed)), identity, ..Config::default() })
    };
    for (name, seed, claim, expected) in [
        ("team", 1, (77, 88), (77, 88)),
        ("team", 1, (0, 0), (65534, 65534)),
        ("person", 2, (77, 88), (1234, 4321)),
        ("person", 2, (0, 0), (1234, 4321)),
    ] {
        let session = session_of(name, seed, claim.0, claim.1).unwrap();
        let root = session.mount("data").unwrap();
        let made = root.create(format!("{name}{}", claim.0)).unwrap().metadata().unwrap();
        assert_eq!((made.uid, made.gid), expected, "{name} {claim:?}");
        let refused = root.set_fence_list(&FenceList::of_clients(&[]));
        assert_status(refused, Status::PERMISSION, "a holder of a key does not administer");
        assert_eq!(session.statistics().unwrap().clients, [], "nor is it told who is there");
    }
    let refused = session_of("team", 1, u32::MAX, 0).unwrap_err();
    assert_eq!(refused.status(), Some(Status::INVALID), "{refused:?}");
}

// [ACC-2] [ACC-38] [ACC-77] [ACC-92]
fn export_with_keys_is_there_for_their_holders_only(on: On) {
    let harness = Harness::start_with(on, |config| {
        with_keys(config);
        config.exports[1].keys = vec!["team".into()];
    });
    let url = harness.url();
    for other in [None, Some(key("person", 2))] {
        if other.is_none() && key_for(harness.address()).is_some() {
            let missing = connect(&url, other).unwrap_err();
            assert_eq!(missing.errno(), libc::EACCES, "a listener that other hosts could reach demands one");
            continue;
        }
        // [CLI-195] The client says what it lacks: the server does not, not to tell strangers what it has.
        let proven = if other.is_some() {
            "the only key that it has proven is \"person\""
        } else {
            "it has proven no key"
        };
        let session = connect(&url, other).unwrap();
        let refused = session.mount("mem").unwrap_err();
        assert!(refused.to_string().contains(proven), "{refused}");
        assert_status(Err::<(), _>(refused), Status::NO_EXPORT, "without its key");
        assert_eq!(session.exports().unwrap(), ["data"]);
        let told: Vec<_> =
            session.statistics().unwrap().exports.into_iter().map(|export| export.name).collect();
        assert_eq!(told, ["data"], "statistics name no others");
        session.mount("data").unwrap();
    }
    let session = connect(&url, Some(key("team", 1))).unwrap();
    session.mount("mem").unwrap().metadata("").unwrap();
    assert_eq!(session.exports().unwrap(), EXPORTS);
    // A key that is offered is checked though none is demanded.
    let wrong = connect(&url, Some(key("team", 3))).unwrap_err();
    assert_eq!(wrong.status(), Some(Status::AUTH_FAILED));
}

// [ACC-34] [ACC-35]
fn export_with_clients_is_there_for_those_addresses_only(on: On) {
    let harness = Harness::start_with(on, |config| {
        config.exports[0].clients = vec!["10.0.0.0/8".parse().unwrap(), "fd00::/8".parse().unwrap()];
        config.exports[1].clients = vec!["192.168.0.0/16".parse().unwrap(), "local".parse().unwrap()];
        #[cfg(feature = "verbs")]
        if on == On::Verbs {
            let here = dafs_tests::harness::device_address().to_string();
            config.exports[0].clients = vec!["fd00::/8".parse().unwrap(), "local".parse().unwrap()];
            config.exports[1].clients = vec!["fd00::/8".parse().unwrap(), here.parse().unwrap()];
        }
    });
    let session = harness.session();
    assert_status(session.mount("data"), Status::NO_EXPORT, "from elsewhere only");
    assert_eq!(session.exports().unwrap(), ["mem"]);
    session.mount("mem").unwrap().create("f").unwrap();
}

// [ACC-15]
#[test]
fn session_is_resumed_by_the_client_that_opened_it_only() {
    let (_harness, url) = on_every_host(On::Tcp);
    let address = Address::Tcp(url.trim_start_matches("dafs+tcp://").parse().unwrap());
    let holder = |resume| ClientIntroduction {
        key: Some(key("team", 1)),
        uid: 77,
        gid: 88,
        ..introduction(&address, 4, resume)
    };
    let mut raw = Raw::connect(&address);
    let welcome = raw.shake(&holder(None)).unwrap();
    raw.mount("mem");
    let resume = || Some(Resume { session: welcome.session, secret: welcome.secret });
    for other in [
        ClientIntroduction { uid: 78, ..holder(resume()) },
        ClientIntroduction { gid: 89, ..holder(resume()) },
        ClientIntroduction { groups: vec![5], ..holder(resume()) },
        ClientIntroduction { key: Some(key("person", 2)), ..holder(resume()) },
        ClientIntroduction { client_id: [6; 16], ..holder(resume()) },
    ] {
        assert_eq!(Raw::connect(&address).shake(&other).unwrap_err(), Status::AUTH_FAILED);
    }
    assert!(Raw::connect(&address).shake(&holder(resume())).unwrap().resumed);
}

// [ACC-17]
#[test]
fn session_is_resumed_from_addresses_of_its_exports_only() {
    let harness = Harness::start_with(On::Tcp, |config| {
        with_keys(config);
        config.listeners = vec![Address::Tcp("[::]:0".parse().unwrap())];
        config.exports[1].clients = vec!["127.0.0.1".parse().unwrap()];
    });
    let Address::Tcp(listener) = harness.address() else { panic!("a tcp listener") };
    let [v4, v6] = ["127.0.0.1", "[::1]"]
        .map(|host| Address::Tcp(format!("{host}:{}", listener.port()).parse().unwrap()));
    let holder = |resume| {
        let mut introduction = introduction(&v4, 4, resume);
        introduction.key = Some(key("team", 1));
        introduction
    };
    let mut raw = Raw::connect(&v4);
    let welcome = raw.shake(&holder(None)).unwrap();
    raw.mount("mem");
    let resume = || Some(Resume { session: welcome.session, secret: welcome.secret });
    assert_eq!(Raw::connect(&v6).shake(&holder(resume())).unwrap_err(), Status::AUTH_FAILED);
    assert!(Raw::connect(&v4).shake(&holder(resume())).unwrap().resumed);
}

// [ACC-133] [ACC-141] Fences go by the address of the last handshake, and so must who looks for it.
#[test]
fn client_that_comes_back_from_another_address_is_shown_at_that() {
    let harness = Harness::start(On::Tcp);
    let relay = Relay::start(harness.address(), Vec::new());
    let session = Session::connect(relay.url(), &Config::default()).unwrap();
    let export = session.mount("mem").unwrap();
    let shown = || session.statistics().unwrap().clients.remove(0).address;
    assert_eq!(shown(), "127.0.0.1");
    relay.come_from("127.0.0.2".parse().unwrap());
    relay.cut();
    assert_eq!(shown(), "127.0.0.2");
    assert_eq!(session.reconnects(), 1);
    let addresses = vec![shown()];
    export.set_fence_list(&FenceList { addresses, ..FenceList::default() }).unwrap();
    assert_status(export.create("f").map(drop), Status::FENCED, "the address that is shown");
}

// [ACC-18]
#[test]
fn port_of_a_client_that_is_gone_does_not_make_it_another() {
    use dafs_tests::program::Signal;
    use std::io::{Read, Write};
    let program = dafs_tests::program::Program::start(On::Tcp, &["--no-calibrate"]);
    let Address::Tcp(server) = *program.address() else { panic!("a tcp listener") };
    let stop = |how| dafs_tests::program::signal(program.id(), how).unwrap();
    // All that a client says until it has a file, learned from one that is honest.
    let (hello, rest) = dafs_tests::raw::whole_client(program.address());
    let connect = |from: Option<std::net::SocketAddr>| -> std::io::Result<std::net::TcpStream> {
        let kind = socket2::Type::STREAM;
        let socket = socket2::Socket::new(socket2::Domain::IPV4, kind, None).unwrap();
        socket.set_reuse_address(true).unwrap();
        if let Some(from) = from {
            socket.bind(&from.into())?;
        }
        socket.connect(&server.into())?;
        Ok(std::net::TcpStream::from(socket))
    };
    // Whoever runs this is known to the server from here on, and nobody is waited for who looks them up.
    program.session().ping().unwrap();
    // While nobody looks: a client says everything and resets, and another takes its port.
    let attempt = || -> std::io::Result<_> {
        let mut gone = connect(None)?;
        gone.write_all(&hello)?;
        let mut theirs = vec![0; hello.len()];
        gone.read_exact(&mut theirs)?;
        stop(Signal::STOP);
        gone.write_all(&rest)?;
        let port = gone.local_addr()?;
        socket2::SockRef::from(&gone).set_linger(Some(std::time::Duration::ZERO))?;
        drop(gone);
        let heir = connect(Some(port));
        stop(Signal::CONT);
        heir
    };
    // Another program may be given the port in between.
    let taken = |heir: &std::io::Result<_>| {
        heir.as_ref().is_err_and(|error| error.kind() == std::io::ErrorKind::AddrInUse)
    };
    let heir = (0..50).map(|_| attempt()).find(|heir| !taken(heir)).expect("a port of its own").unwrap();
    for _ in 0..20 {
        program.session().ping().unwrap();
    }
    assert!(!program.data().join("by-hand").exists(), "what the one said was done as the other");
    drop(heir);
}

// [ACC-30] [STOR-5]
fn squashed_clients_act_as_the_user_named(on: On) {
    let harness = Harness::start_with(on, |config| {
        for export in &mut config.exports {
            export.squash = IdentityMapping::Fixed { uid: 4444, gid: 5555 };
        }
    });
    std::fs::write(harness.data().join("secret"), b"root's").unwrap();
    std::fs::set_permissions(harness.data().join("secret"), PermissionsExt::from_mode(0o600)).unwrap();
    let root = harness.session().mount("data").unwrap();
    assert_status(root.create("f"), Status::ACCESS, "in a directory of root's");
    std::fs::set_permissions(harness.data(), PermissionsExt::from_mode(0o777)).unwrap();
    let made = root.create("f").unwrap().metadata().unwrap();
    assert_eq!((made.uid, made.gid), (4444, 5555));
    let made = root.create_dir("d", 0o700).unwrap();
    assert_eq!((made.uid, made.gid), (4444, 5555));
    let found = std::fs::metadata(harness.data().join("f")).unwrap();
    assert_eq!((found.uid(), found.gid()), (4444, 5555));
    assert_status(root.open("secret"), Status::ACCESS, "a file of root's");
    assert_status(root.open_with("secret", OpenOptions::new().write(true)), Status::ACCESS, "to write");
}

const CHILD: &str = "DAFS_TEST_CHILD_URL";
const CHILD_USER: (u32, u32) = (12345, 23456);

// [ACC-10] [ACC-11] [ACC-12]
fn client_in_another_process_acts_as_its_own_user(on: On) {
    if let Some(url) = std::env::var_os(CHILD) {
        // It claims to be root, which counts for nothing.
        let identity = Some(Identity { uid: 0, gid: 0, groups: vec![0] });
        let session = Session::connect(url, &Config { identity, ..Config::default() }).unwrap();
        assert_eq!(session.limits().unwrap().uid, CHILD_USER.0);
        let root = session.mount("data").unwrap();
        assert_status(root.open("secret"), Status::ACCESS, "a file of root's");
        assert_status(root.remove_file("closed/f"), Status::ACCESS, "in a directory of root's");
        assert_status(
            root.set_fence_list(&FenceList::of_clients(&[])),
            Status::PERMISSION,
            "not an administrator",
        );
        root.create("mine").unwrap().write_all_at(b"mine", 0).unwrap();
        return;
    }
    let harness = Harness::start(on);
    let mode = |path: &std::path::Path, mode| {
        std::fs::set_permissions(path, PermissionsExt::from_mode(mode)).unwrap();
    };
    std::fs::write(harness.data().join("secret"), b"root's").unwrap();
    mode(&harness.data().join("secret"), 0o600);
    std::fs::create_dir(harness.data().join("closed")).unwrap();
    std::fs::write(harness.data().join("closed/f"), b"root's").unwrap();
    mode(&harness.data(), 0o777);
    mode(harness.scratch(), 0o755);
    let run_child = || {
        let provider = if on == On::Tcp { "tcp" } else { "shm" };
        let child = Command::new(std::env::current_exe().unwrap())
            .args([
                "--exact",
                "--include-ignored",
                &format!("by_kernel::{provider}::client_in_another_process_acts_as_its_own_user"),
            ])
            .env(CHILD, harness.url())
            .uid(CHILD_USER.0)
            .gid(CHILD_USER.1)
            .current_dir("/")
            .output()
            .expect("the test's executable can be run by other users");
        let said = String::from_utf8_lossy(&child.stdout).into_owned();
        (child.status.success(), said + &String::from_utf8_lossy(&child.stderr))
    };
    if let Address::Shm(socket) = harness.address() {
        // [ACC-3]
        mode(socket, 0o700);
        let (passed, said) = run_child();
        assert!(!passed && said.contains("PermissionDenied"), "{said}");
        mode(socket, 0o777);
    }
    let (passed, said) = run_child();
    assert!(passed && said.contains("1 passed"), "{said}");
    let made = std::fs::metadata(harness.data().join("mine")).unwrap();
    assert_eq!(made.uid(), CHILD_USER.0);
    if on == On::Shm {
        assert_eq!(made.gid(), CHILD_USER.1);
    }
    assert!(harness.data().join("closed/f").exists());
}

// [ACC-107] [ACC-108]
fn fenced_client_is_refused_and_others_go_on(on: On) {
    let harness = Harness::start(on);
    let administrator = harness.session();
    let config = |id: u8| Config { client_id: Some([id; 16]), ..Config::default() };
    let (bad, good) = (harness.session_with(&config(1)), harness.session_with(&config(2)));
    for export in EXPORTS {
        let admin = administrator.mount(export).unwrap();
        assert_eq!(admin.fence_list().unwrap(), FenceList::default());
        let bad_root = bad.mount(export).unwrap();
        let bad_file = bad_root.create("f").unwrap();
        let mut raw = Raw::session(harness.address(), 8).0;
        let raw_root = raw.mount(export);
        let raw_file = raw.create(raw_root, b"e");
        let good_file = good.mount(export).unwrap().create("g").unwrap();
        let fenced = [[1; 16], introduction(harness.address(), 1, None).client_id];
        admin.set_fence_list(&FenceList::of_clients(&fenced)).unwrap();
        assert_eq!(admin.fence_list().unwrap(), FenceList::of_clients(&fenced));
        assert_status(bad_file.write_at(b"x", 0), Status::FENCED, "a write");
        assert_status(bad_file.write_at(&[1; 100_000], 0), Status::FENCED, "a large write");
        assert_status(bad_file.append(b"x"), Status::FENCED, "an append");
        assert_status(bad_root.create("h"), Status::FENCED, "a new file");
        assert_status(bad_file.read_at(&mut [0; 1], 0), Status::FENCED, "a read");
        assert_status(bad_file.metadata(), Status::FENCED, "attributes");
        assert_status(bad_root.metadata("f"), Status::FENCED, "attributes of a path");
        let close = raw.call(Header::request(Opcode::Close, raw_file), &[], &[]);
        assert_eq!(close.header.status, Status::OK, "what it has it may give back");
        let fence = raw.call(Header::request(Opcode::FenceRead, raw_root), &[], &[]);
        assert_eq!(fence.header.status, Status::FENCED);
        assert_status(bad.mount(export), Status::FENCED, "a mount");
        let again = harness.session_with(&config(1));
        assert_status(again.mount(export), Status::FENCED, "another session of the same client");
        good_file.write_all_at(b"good", 0).unwrap();
        assert_eq!(admin.metadata("f").unwrap().size, 0);
        // Fences are of one export; the session goes on, and lives again when the fence falls.
        bad.ping().unwrap();
        admin.submit_set_fence_list(&FenceList::of_clients(&[])).wait().unwrap();
        bad_file.write_all_at(b"again", 0).unwrap();
    }
}

// [ACC-130] [ACC-131] [ACC-134] [ACC-135]
fn fence_by_address_holds_under_any_id(on: On) {
    let harness = Harness::start(on);
    let administrator = harness.session();
    let config = |id: u8| Config { client_id: Some([id; 16]), ..Config::default() };
    for export in EXPORTS {
        let admin = administrator.mount(export).unwrap();
        let other = harness.session_with(&config(3));
        let file = other.mount(export).unwrap().create("f").unwrap();
        // Where it is not a list, the old one stays.
        let good = FenceList::of_clients(&[[3; 16]]);
        admin.set_fence_list(&good).unwrap();
        for wrong in [
            FenceList { addresses: vec!["10.0.0.1/8".into()], ..FenceList::default() },
            FenceList { keys: vec![String::new()], ..FenceList::default() },
        ] {
            assert_status(admin.set_fence_list(&wrong), Status::INVALID, export);
        }
        let many = FenceList { keys: vec!["k".into(); 1025], ..FenceList::default() };
        assert_status(admin.set_fence_list(&many), Status::TOO_LARGE, export);
        assert_eq!(admin.fence_list().unwrap(), good);
        assert_status(file.metadata(), Status::FENCED, export);
        // Of those allowed it is one.
        let allowed = FenceList { mode: FenceMode::Allow, ..good };
        admin.set_fence_list(&allowed).unwrap();
        file.metadata().unwrap();
        let third = harness.session_with(&config(4));
        let root = third.mount(export).unwrap();
        assert_status(root.metadata(""), Status::FENCED, "it may mount, for it may write the list");
        assert_eq!(root.fence_list().unwrap(), allowed);
        root.set_fence_list(&FenceList::default()).unwrap();
        root.metadata("").unwrap();
        // By address: whoever it says it is.
        let range = if on.is_verbs() { continue } else { "local".to_owned() };
        let all = FenceList { addresses: vec![range], ..FenceList::default() };
        root.set_fence_list(&all).unwrap();
        for id in [3, 4, 5] {
            let session = harness.session_with(&config(id));
            assert_status(session.mount(export), Status::FENCED, "a mount");
        }
        assert_status(file.metadata(), Status::FENCED, "what was open");
        assert_status(root.set_fence_list(&FenceList::default()), Status::FENCED, "its own fence");
        // Nobody but a restart lifts it in memory; the other export goes on.
        let free = EXPORTS.into_iter().find(|other| *other != export && administrator.mount(other).is_ok());
        assert!(free.is_some() || export == EXPORTS[1]);
    }
}

// [ACC-136]
fn fence_that_is_kept_holds_after_a_restart(on: On) {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("state");
    let mut harness = Harness::start_with(on, |config| config.state_file = Some(path.clone()));
    let fenced = Config { client_id: Some([9; 16]), ..Config::default() };
    let list = FenceList { keys: vec!["lost laptop".into()], ..FenceList::of_clients(&[[9; 16]]) };
    harness.session().mount("data").unwrap().set_fence_list(&list).unwrap();
    harness.restart();
    let admin = harness.session();
    let root = admin.mount("data").unwrap();
    assert_eq!(root.fence_list().unwrap(), list);
    assert_status(harness.session_with(&fenced).mount("data"), Status::FENCED, "it is still out");
    assert!(harness.session_with(&fenced).mount("mem").is_ok(), "of one export");
}

// Whoever fences has the place in the server's table that the fenced client had.
fn fence_waits_for_what_a_session_left_that_has_ended(on: On) {
    let (harness, faults) = Harness::start_faulty(on, |_| {});
    let watcher = harness.session();
    let dead = harness.session_with(&Config { client_id: Some([1; 16]), ..Config::default() });
    let file = dead.mount("mem").unwrap().create("f").unwrap();
    faults.next(Kind::Write, Fault::Hold, 1);
    let write = file.submit_write_at(b"late".to_vec(), 0);
    dead.flush();
    faults.wait_for_held(1);
    dead.close();
    drop((write, file, dead));
    while watcher.statistics().unwrap().sessions > 1 {
        std::thread::yield_now();
    }
    let administrator = harness.session();
    let root = administrator.mount("mem").unwrap();
    let mut fence = root.submit_set_fence_list(&FenceList::of_clients(&[[1; 16]]));
    administrator.flush();
    for _ in 0..100 {
        administrator.ping().unwrap();
    }
    assert!(!fence.test(), "its write is still to come");
    faults.release();
    fence.wait().unwrap();
}

// [ACC-151]
#[test]
fn fence_completes_without_the_fenced_client_serving_reads() {
    let harness = Harness::start(On::Tcp);
    let administrator = harness.session();
    let (mut silent, _) = Raw::session(harness.address(), 4);
    let root = silent.mount("mem");
    let file = silent.create(root, b"f");
    let region = silent.region(1 << 20, Access::REMOTE_READ);
    let range = region.range();
    let mut write = Header::request(Opcode::Write, file);
    silent.begin(&mut write);
    silent.send(write, &write_body(0, 1 << 20, Some([range.key.0, range.offset, range.len])), &[]);
    while administrator.statistics().unwrap().in_flight == 0 {
        std::thread::yield_now();
    }
    let root = administrator.mount("mem").unwrap();
    let mut fence = root.submit_set_fence_list(&FenceList::of_clients(&[[5; 16]]));
    administrator.flush();
    for _ in 0..100 {
        administrator.ping().unwrap();
    }
    assert!(fence.test(), "nothing waits for the client");
    fence.wait().unwrap();
    assert_eq!(root.metadata("f").unwrap().size, 0);
    assert_eq!(silent.ending(), None, "its connection ended, and it broke no rule");
}

fn fence_waits_for_what_the_client_has_in_flight(on: On) {
    let harness = Harness::start(on);
    let administrator = harness.session();
    for export in EXPORTS {
        let root = administrator.mount(export).unwrap();
        root.create("log").unwrap();
        let (done, appended) = (AtomicBool::new(false), AtomicU64::new(0));
        std::thread::scope(|scope| {
            scope.spawn(|| {
                let config = Config { client_id: Some([1; 16]), ..Config::default() };
                let session = harness.session_with(&config);
                let mount = session.mount(export).unwrap();
                let file = mount.open_with("log", OpenOptions::new().append(true)).unwrap();
                while !done.load(Ordering::Acquire) {
                    let pendings: Vec<_> = (0..32).map(|_| file.submit_append(vec![7; 10_000])).collect();
                    for pending in pendings {
                        match pending.wait() {
                            Ok(_) => drop(appended.fetch_add(10_000, Ordering::AcqRel)),
                            Err(error) => assert_eq!(error.status(), Some(Status::FENCED), "{error}"),
                        }
                    }
                }
            });
            for _ in 0..on.rounds(20) {
                let before = appended.load(Ordering::Acquire);
                while appended.load(Ordering::Acquire) < before + 100_000 {
                    std::thread::yield_now();
                }
                root.set_fence_list(&FenceList::of_clients(&[[1; 16]])).unwrap();
                // From here on nothing of that client changes the file.
                let size = root.metadata("log").unwrap().size;
                for _ in 0..200 {
                    administrator.ping().unwrap();
                }
                assert_eq!(root.metadata("log").unwrap().size, size, "{export}");
                root.set_fence_list(&FenceList::of_clients(&[])).unwrap();
            }
            done.store(true, Ordering::Release);
        });
        assert_eq!(root.metadata("log").unwrap().size, appended.load(Ordering::Acquire), "{export}");
    }
}
