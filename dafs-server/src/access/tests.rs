use super::*;
use dafs_proto::wire::PROTOCOL_VERSION;

use crate::access::ServerIdentity;

const SERVER: u32 = 500;

fn id(uid: u32, gid: u32, groups: &[u32]) -> Identity {
    Identity { uid, gid, groups: groups.into() }
}

fn key(name: &str) -> Key {
    Key { name: name.into(), secret: Arc::from([7; 16]) }
}

fn access(privileged: bool) -> Access {
    let mut keys = Keyring::default();
    keys.insert(KeyEntry { key: key("alpha"), forced: None, publishes: false });
    keys.insert(KeyEntry {
        key: key("root"),
        forced: Some(ForcedIdentity { uid: 0, gid: 0 }),
        publishes: false,
    });
    keys.insert(KeyEntry {
        key: key("backup"),
        forced: Some(ForcedIdentity { uid: 34, gid: 35 }),
        publishes: false,
    });
    Access::new(AccessConfig {
        keys,
        server: ServerIdentity { identity: id(SERVER, 501, &[502]), privileged },
    })
}

/// The same, once the user database has answered about a client.
fn access_that_knows(listener: &Address, peer: &PeerIdentity) -> Access {
    let access = access(true);
    let (tell, told) = std::sync::mpsc::channel();
    if !access.ask(listener, peer, None, move |is_known| tell.send(is_known).unwrap()).unwrap() {
        assert!(told.recv().unwrap());
    }
    access
}

fn hello(uid: u32, gid: u32, groups: &[u32]) -> Hello {
    Hello {
        version_min: PROTOCOL_VERSION,
        version_max: PROTOCOL_VERSION,
        features: 0,
        nonce: [0; 32],
        key_name: String::new(),
        client_id: [1; 16],
        client_name: "test".into(),
        uid,
        gid,
        groups: groups.to_vec(),
        slots: 1,
        resume: None,
    }
}

fn tcp(address: &str) -> Address {
    Address::Tcp(address.parse().unwrap())
}

fn peer(address: &str) -> PeerIdentity {
    PeerIdentity { address: Some(address.parse().unwrap()), credentials: None }
}

fn local_peer(uid: u32, gid: u32, groups: &[u32]) -> PeerIdentity {
    let credentials = PeerCredentials { pid: 1, uid, gid, groups: groups.to_vec() };
    PeerIdentity { address: None, credentials: Some(credentials) }
}

fn client(identity: Identity, evidence: Evidence, key: Option<&str>) -> ClientIdentity {
    ClientIdentity { identity, evidence, key_name: key.map(str::to_owned) }
}

// [ACC-1] [ACC-2] [ACC-76]
#[test]
fn terms_demand_a_key_beyond_loopback_only() {
    for (address, required) in [
        ("127.0.0.1:1", false),
        ("127.8.0.1:1", false),
        ("[::1]:1", false),
        ("[::ffff:127.0.0.1]:1", false),
        ("0.0.0.0:1", true),
        ("[::]:1", true),
        ("10.0.0.1:1", true),
        ("[::ffff:10.0.0.1]:1", true),
        ("[fe80::1]:1", true),
    ] {
        assert_eq!(access(true).terms(&tcp(address)).key_required, required, "{address}");
    }
    assert!(!access(true).terms(&Address::Shm("/s".into())).key_required);
}

// [ACC-10] [LIMIT-1]
#[test]
fn what_is_taken_is_charged_to_whom_the_server_knows() {
    let owner = |identity: Identity, evidence, key, peer| {
        Access::budget_owner(&client(identity, evidence, key), &peer)
    };
    let somebody = || id(42, 43, &[]);
    let (local, remote) = (peer("127.0.0.1:1"), peer("192.0.2.9:8"));
    let address = |text: &str| Owner::Address(text.parse().unwrap());
    assert_eq!(owner(somebody(), Evidence::Kernel, None, local_peer(42, 43, &[])), Owner::User(42));
    assert_eq!(owner(somebody(), Evidence::KeyFile, Some("backup"), remote.clone()), Owner::User(42));
    // What it claims to be counts for nothing.
    assert_eq!(owner(somebody(), Evidence::Claim, Some("alpha"), remote.clone()), Owner::Key("alpha".into()));
    assert_eq!(owner(somebody(), Evidence::None, None, remote), address("192.0.2.9"));
    assert_eq!(owner(somebody(), Evidence::None, None, peer("[::ffff:192.0.2.9]:1")), address("192.0.2.9"));
    for nowhere in [local, peer("[::1]:1"), PeerIdentity::default()] {
        assert_eq!(owner(somebody(), Evidence::None, None, nowhere), Owner::User(NOBODY));
    }
}

// [ACC-15] A user database tells groups in any order.
#[test]
fn client_is_the_same_in_whatever_order_its_groups_are_told() {
    let of = |uid, gid, groups: &[u32]| client(id(uid, gid, groups), Evidence::Kernel, Some("alpha"));
    let known = of(1, 2, &[3, 4, 5]);
    for groups in [&[3, 4, 5][..], &[5, 3, 4], &[4, 5, 4, 3]] {
        assert!(known.is_same(&of(1, 2, groups)), "{groups:?}");
    }
    for other in [of(1, 2, &[3, 4]), of(1, 2, &[3, 4, 5, 6]), of(1, 3, &[3, 4, 5]), of(2, 2, &[3, 4, 5])] {
        assert!(!known.is_same(&other), "{other:?}");
    }
    for other in [
        ClientIdentity { evidence: Evidence::Claim, ..known.clone() },
        ClientIdentity { key_name: None, ..known.clone() },
    ] {
        assert!(!known.is_same(&other), "{other:?}");
    }
}

/// Keeps lines of the log as `field=value …`.
struct Lines(Arc<std::sync::Mutex<Vec<String>>>);

impl<S: tracing::Subscriber> tracing_subscriber::Layer<S> for Lines {
    fn on_event(&self, event: &tracing::Event<'_>, _: tracing_subscriber::layer::Context<'_, S>) {
        let mut line = String::new();
        event.record(&mut |field: &tracing::field::Field, value: &dyn std::fmt::Debug| {
            line += &format!("{field}={value:?} ");
        });
        self.0.lock().unwrap().push(line);
    }
}

/// Set in a process of its own for a test: other threads that log decide about its lines too.
const OWN_PROCESS: &str = "DAFS_TEST_OWN_LOG";

// [LIMIT-18] [LIMIT-25] Peers are told apart by all of the field but a port.
#[test]
fn refused_mount_is_logged_in_one_short_stable_line() {
    use tracing_subscriber::layer::SubscriberExt;
    if std::env::var_os(OWN_PROCESS).is_none() {
        let name = "access::tests::refused_mount_is_logged_in_one_short_stable_line";
        let mut own = std::process::Command::new(std::env::current_exe().unwrap());
        let output = own.args(["--exact", name]).env(OWN_PROCESS, "1").output().unwrap();
        let printed = String::from_utf8_lossy(&output.stdout);
        assert!(output.status.success() && printed.contains("1 passed"), "{printed}");
        return;
    }
    let lines = Arc::new(std::sync::Mutex::default());
    let log = tracing_subscriber::registry().with(Lines(Arc::clone(&lines)));
    let mut export = ExportConfig::new("data", ExportKind::Memory { size_max: 1 });
    export.keys = vec!["alpha".into()];
    let groups: Vec<u32> = (0..1000).collect();
    let (mut one, mut other) = (local_peer(42, 43, &groups), local_peer(42, 43, &groups));
    one.credentials.as_mut().unwrap().pid = 7;
    other.credentials.as_mut().unwrap().pid = 8;
    let refused = client(id(42, 43, &groups), Evidence::Kernel, None);
    tracing::subscriber::with_default(log, || {
        for peer in [one, other, peer("10.0.0.1:7"), peer("10.0.0.1:8"), peer("[fe80::1]:9")] {
            access(true).mount(&export, &refused, &peer).unwrap_err();
        }
    });
    let lines = lines.lock().unwrap();
    assert_eq!(lines[0], lines[1]);
    assert_eq!(lines[2].replace(":7 ", ":8 "), lines[3]);
    for (line, shown) in lines.iter().zip(["uid 42", "uid 42", "10.0.0.1:7", "10.0.0.1:8", "[fe80::1]:9"]) {
        assert!(line.contains(&format!("peer={shown} ")) && line.contains("uid=42 gid=43 "), "{line}");
        assert!(line.contains("keys=") && line.len() < 300, "{line}");
    }
}

// [ACC-10] [ACC-11]
#[test]
fn admit_goes_by_the_best_evidence() {
    let claim = id(1000, 1001, &[1002, 0]);
    let nobody = id(NOBODY, NOBODY, &[]);
    let shm = Address::Shm("/s".into());
    let (remote, remote_peer) = (tcp("0.0.0.0:7"), peer("192.0.2.9:8"));
    let local = local_peer(42, 43, &[44]);
    // Nobody is connected from here.
    let (loopback, stranger) = (tcp("127.0.0.1:7"), peer("127.0.0.1:8"));
    let of_local = client(id(42, 43, &[44]), Evidence::Kernel, None);
    let cases = [
        (&shm, &local, None, Ok(of_local.clone())),
        (&shm, &local, Some("backup"), Ok(ClientIdentity { key_name: Some("backup".into()), ..of_local })),
        (&shm, &PeerIdentity::default(), None, Ok(client(nobody.clone(), Evidence::None, None))),
        (&remote, &remote_peer, None, Err(Status::AUTH_REQUIRED)),
        (&remote, &stranger, None, Err(Status::AUTH_REQUIRED)),
        (&remote, &remote_peer, Some("alpha"), Ok(client(claim.clone(), Evidence::Claim, Some("alpha")))),
        (
            &remote,
            &remote_peer,
            Some("backup"),
            Ok(client(id(34, 35, &[]), Evidence::KeyFile, Some("backup"))),
        ),
        (&loopback, &stranger, Some("alpha"), Ok(client(claim.clone(), Evidence::Claim, Some("alpha")))),
        (&loopback, &stranger, None, Ok(client(nobody.clone(), Evidence::None, None))),
        (&loopback, &PeerIdentity::default(), None, Ok(client(nobody, Evidence::None, None))),
        (&Address::Sim(1), &PeerIdentity::default(), None, Ok(client(claim.clone(), Evidence::Kernel, None))),
    ];
    for (listener, peer, key_name, expected) in cases {
        let key = key_name.map(key);
        let admitted = access(true).admit(listener, peer, &hello(1000, 1001, &[1002, 0]), key.as_ref());
        assert_eq!(admitted, expected, "{listener} {peer:?} {key_name:?}");
    }
}

// [ACC-12] [ACC-19]
#[test]
fn admit_over_loopback_believes_the_kernel_not_the_client() {
    let listener = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let connection = std::net::TcpStream::connect(listener.local_addr().unwrap()).unwrap();
    let address = Address::Tcp(listener.local_addr().unwrap());
    let peer = PeerIdentity { address: Some(connection.local_addr().unwrap()), credentials: None };
    let own = rustix::process::geteuid().as_raw();
    let admitted = access(true).admit(&address, &peer, &hello(own + 1, 7, &[8]), None);
    assert_eq!(admitted, Err(Status::AGAIN), "its groups are not known");
    let access = access_that_knows(&address, &peer);
    let admitted = access.admit(&address, &peer, &hello(own + 1, 7, &[8]), None).unwrap();
    assert_eq!((admitted.identity.uid, admitted.evidence), (own, Evidence::Kernel));
    // A connection that its process has closed has no owner any more; it is not root's.
    drop(connection);
    let admitted = access.admit(&address, &peer, &hello(0, 0, &[]), None).unwrap();
    assert_eq!(admitted, client(id(NOBODY, NOBODY, &[]), Evidence::None, None));
}

// [ACC-11]
#[test]
fn admit_over_loopback_believes_the_kernel_not_the_holder_of_a_key() {
    let listener = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let connection = std::net::TcpStream::connect(listener.local_addr().unwrap()).unwrap();
    let address = Address::Tcp(listener.local_addr().unwrap());
    let peer = PeerIdentity { address: Some(connection.local_addr().unwrap()), credentials: None };
    let own = rustix::process::geteuid().as_raw();
    let access = access_that_knows(&address, &peer);
    let admitted = access.admit(&address, &peer, &hello(own + 1, 7, &[8]), Some(&key("alpha"))).unwrap();
    assert_eq!((admitted.identity.uid, admitted.evidence), (own, Evidence::Kernel));
    assert_eq!(admitted.key_name.as_deref(), Some("alpha"));
    // What the operator wrote of the key is better evidence still.
    let admitted = access.admit(&address, &peer, &hello(1, 1, &[]), Some(&key("backup"))).unwrap();
    assert_eq!((admitted.identity.uid, admitted.evidence), (34, Evidence::KeyFile));
}

// [ACC-142]
#[test]
fn admit_with_key_revoked_during_its_proof_is_refused() {
    let other_secret = |name: &str| Key { secret: Arc::from([8; 16]), ..key(name) };
    for (proven, expected) in [
        (key("backup"), Ok(Evidence::KeyFile)),
        (key("alpha"), Ok(Evidence::Claim)),
        (other_secret("backup"), Err(Status::AUTH_FAILED)),
        (other_secret("alpha"), Err(Status::AUTH_FAILED)),
        (key("revoked"), Err(Status::AUTH_FAILED)),
    ] {
        let (listener, peer) = (tcp("0.0.0.0:7"), peer("192.0.2.9:8"));
        let admitted = access(true).admit(&listener, &peer, &hello(77, 88, &[]), Some(&proven));
        assert_eq!(admitted.map(|client| client.evidence), expected, "{proven:?}");
        assert_eq!(
            access(true).ask(&listener, &peer, Some(&proven), |_| panic!("nobody is asked")),
            Ok(true)
        );
    }
}

// [ACC-14]
#[test]
fn admit_of_an_impossible_id_is_refused() {
    let no = u32::MAX;
    for claim in [hello(no, 1, &[]), hello(1, no, &[]), hello(1, 1, &[2, no])] {
        let admitted =
            access(true).admit(&tcp("0.0.0.0:7"), &peer("192.0.2.9:8"), &claim, Some(&key("alpha")));
        assert_eq!(admitted, Err(Status::INVALID));
    }
}

// [ACC-30] [ACC-31] [ACC-32] [ACC-90] [ACC-91] [ACC-143]
#[test]
fn mount_maps_identities_by_rule_evidence_and_privilege() {
    let user = || id(1000, 0, &[0, 7]);
    let (root, server, nobody) = (|| id(0, 0, &[0]), || id(SERVER, 501, &[502]), || id(NOBODY, NOBODY, &[]));
    let fixed = IdentityMapping::Fixed { uid: 5, gid: 6 };
    let own = IdentityMapping::Fixed { uid: SERVER, gid: 501 };
    let (directory, memory) = (false, true);
    use Evidence::{Claim, Kernel, KeyFile, None as Unknown};
    use IdentityMapping::{Auto, Client, Server};
    let cases = [
        // privileged, memory, rule, no_root_squash, evidence, client, acts as
        (true, directory, Auto, false, Kernel, root(), Some(root())),
        (true, directory, Auto, false, Kernel, user(), Some(user())),
        (true, directory, Auto, false, Claim, user(), Some(id(1000, NOBODY, &[7]))),
        (true, directory, Auto, false, Claim, root(), Some(nobody())),
        (true, directory, Auto, true, Claim, root(), Some(root())),
        (true, directory, Auto, true, Claim, user(), Some(user())),
        (true, directory, Auto, false, KeyFile, root(), Some(root())),
        (true, directory, Auto, false, Unknown, nobody(), Some(nobody())),
        (true, directory, Client, false, Claim, root(), Some(nobody())),
        (true, directory, Client, false, Kernel, user(), Some(user())),
        (true, directory, Server, false, Unknown, nobody(), Some(server())),
        (true, directory, fixed, true, Claim, root(), Some(id(5, 6, &[]))),
        (false, directory, Auto, false, Kernel, id(SERVER, 1, &[]), Some(server())),
        (false, directory, Auto, false, Kernel, root(), Some(server())),
        (false, directory, Auto, false, Kernel, user(), None),
        (false, directory, Auto, false, Unknown, nobody(), None),
        (false, directory, Auto, false, Claim, user(), Some(server())),
        (false, directory, Auto, false, KeyFile, user(), Some(server())),
        (false, directory, Server, false, Kernel, user(), Some(server())),
        (false, directory, own, false, Kernel, user(), Some(id(SERVER, 501, &[]))),
        (false, directory, Client, false, Kernel, user(), None),
        (false, directory, Client, true, Claim, root(), None),
        (false, directory, fixed, false, Kernel, user(), None),
        (false, memory, Auto, false, Kernel, user(), Some(user())),
        (false, memory, Auto, false, Claim, root(), Some(nobody())),
        (false, memory, fixed, false, Kernel, user(), Some(id(5, 6, &[]))),
    ];
    for case in cases {
        let (privileged, memory, squash, no_root_squash, evidence, identity, expected) = case.clone();
        let kind =
            if memory { ExportKind::Memory { size_max: 1 } } else { ExportKind::Directory("/d".into()) };
        let export = ExportConfig { squash, no_root_squash, ..ExportConfig::new("d", kind) };
        let client = client(identity, evidence, None);
        let rights = access(privileged).mount(&export, &client, &peer("192.0.2.9:8"));
        assert_eq!(rights.map(|rights| rights.identity), expected.ok_or(Status::NO_EXPORT), "{case:?}");
    }
}

// [ACC-34] [ACC-92] [ACC-94]
#[test]
fn mount_needs_address_and_key_both() {
    let with = |clients: &[&str], keys: &[&str]| ExportConfig {
        clients: clients.iter().map(|range| range.parse().unwrap()).collect(),
        keys: keys.iter().map(|name| (*name).to_owned()).collect(),
        read_only: true,
        ..ExportConfig::new("d", ExportKind::Directory("/d".into()))
    };
    let (net, shm) = (peer("10.1.2.3:9"), local_peer(1, 1, &[]));
    let cases = [
        (with(&[], &[]), &net, None, true),
        (with(&["10.0.0.0/8"], &[]), &net, None, true),
        (with(&["10.2.0.0/16"], &[]), &net, None, false),
        (with(&["10.2.0.0/16", "10.1.2.3"], &[]), &net, None, true),
        (with(&["10.0.0.0/8"], &[]), &shm, None, false),
        (with(&["local"], &[]), &shm, None, true),
        (with(&["local"], &[]), &net, None, false),
        (with(&[], &["alpha", "backup"]), &net, Some("backup"), true),
        (with(&[], &["alpha"]), &net, Some("backup"), false),
        (with(&[], &["alpha"]), &net, None, false),
        (with(&["10.0.0.0/8"], &["alpha"]), &net, Some("alpha"), true),
        (with(&["10.0.0.0/8"], &["alpha"]), &net, None, false),
        (with(&["11.0.0.0/8"], &["alpha"]), &net, Some("alpha"), false),
    ];
    for (export, peer, key, allowed) in cases {
        let client = client(id(1, 1, &[]), Evidence::Kernel, key);
        let rights = access(true).mount(&export, &client, peer);
        let expected = MountRights { read_only: true, identity: id(1, 1, &[]) };
        assert_eq!(
            rights,
            if allowed { Ok(expected) } else { Err(Status::NO_EXPORT) },
            "{export:?} {peer:?}"
        );
    }
}

// [ACC-35] [ACC-94] [ACC-95]
#[test]
fn range_contains_by_family_and_prefix() {
    let cases = [
        ("10.0.0.0/8", "10.255.255.255:1", true),
        ("10.0.0.0/8", "11.0.0.0:1", false),
        ("10.0.0.0/8", "[::ffff:10.0.0.1]:1", true),
        ("::ffff:10.0.0.0/104", "10.0.0.1:1", true),
        ("::ffff:10.0.0.0/104", "[::ffff:11.0.0.1]:1", false),
        ("0.0.0.0/0", "203.0.113.1:1", true),
        ("0.0.0.0/0", "[2001:db8::1]:1", false),
        ("::/0", "[2001:db8::1]:1", true),
        ("::/0", "10.0.0.1:1", false),
        ("10.0.0.1", "10.0.0.1:1", true),
        ("10.0.0.1/32", "10.0.0.0:1", false),
        ("10.0.0.0/31", "10.0.0.1:1", true),
        ("2001:db8::/33", "[2001:db8:7fff::1]:1", true),
        ("2001:db8::/33", "[2001:db8:8000::1]:1", false),
        ("::1", "[::1]:1", true),
        ("::1", "127.0.0.1:1", false),
        ("fe80::/10", "[fe80::1%2]:1", true),
        ("local", "127.0.0.1:1", true),
        ("local", "[::1]:1", true),
        ("local", "[::ffff:127.0.0.1]:1", true),
        ("local", "10.0.0.1:1", false),
    ];
    for (range, address, inside) in cases {
        assert_eq!(
            range.parse::<AddressRange>().unwrap().contains(&peer(address)),
            inside,
            "{range} {address}"
        );
    }
    for range in ["0.0.0.0/0", "::/0"] {
        assert!(!range.parse::<AddressRange>().unwrap().contains(&PeerIdentity::default()), "{range}");
    }
}

#[test]
fn range_with_fault_names_it_and_the_remedy() {
    for (text, needs) in [
        ("", ["\"\"", "10.0.0.0/8"]),
        ("localhost", ["\"localhost\"", "local"]),
        ("10.0.0", ["\"10.0.0\"", "10.0.0.0/8"]),
        ("fe80::1%eth0", ["fe80::1%eth0", "fd00::/8"]),
        ("10.0.0.0/33", ["10.0.0.0/33", "0 to 32"]),
        ("::/129", ["::/129", "0 to 128"]),
        ("10.0.0.0/", ["10.0.0.0/", "0 to 32"]),
        ("10.0.0.0/+8", ["/+8", "0 to 32"]),
        ("10.0.0.0/256", ["/256", "0 to 32"]),
        ("10.0.0.1/8", ["10.0.0.1/8", "write 10.0.0.0/8"]),
        ("::1/64", ["::1/64", "write ::/64"]),
    ] {
        let error = text.parse::<AddressRange>().unwrap_err().to_string();
        assert!(needs.iter().all(|need| error.contains(need)), "{text}: {error}");
    }
}

#[test]
fn range_shown_is_read_back() {
    for text in ["local", "10.0.0.0/8", "10.0.0.1", "::1", "fd00::/8", "0.0.0.0/0", "::/0"] {
        assert_eq!(text.parse::<AddressRange>().unwrap().to_string(), text);
    }
}
