//! Handshakes, good and bad.

use std::io::ErrorKind::WouldBlock;

use super::super::super::{ConnectError, PeerFault};
use super::super::frame::VERSION;
use super::super::{DEPTH_MAX, PAYLOAD_MAX, TcpSettings};
use super::*;

fn listen() -> TcpListener {
    TcpDomain::new().listen_tcp(&loopback(), &params()).unwrap()
}

fn hello() -> [u8; HEADER_SIZE] {
    Hello::new(&params()).encode()
}

/// Accepts until `done`, asleep between.
fn until(listener: &mut TcpListener, mut done: impl FnMut(&mut TcpListener) -> bool) {
    let mut outer = Outer::new(listener);
    loop {
        assert!(listener.accept_tcp().unwrap().is_none());
        if done(listener) {
            return;
        }
        outer.sleep();
    }
}

// [TCP-1] [TCP-15]
#[test]
fn capabilities_are_what_both_sides_asked_for() {
    let server = ConnectParams { recv_payload_max: 1000, recv_depth: 7, rdma_depth: 9, ..params() };
    let client =
        ConnectParams { recv_payload_max: u32::MAX, recv_depth: 0, rdma_depth: u16::MAX, ..params() };
    let pair = pair_with(server, client);
    let (server, client) = (pair.server.capabilities(), pair.client.capabilities());
    assert_eq!((client.send_payload_max, client.recv_payload_max), (1000, PAYLOAD_MAX));
    assert_eq!((server.send_payload_max, server.recv_payload_max), (PAYLOAD_MAX, 1000));
    assert_eq!((client.send_depth, server.send_depth), (7, 1));
    assert_eq!((client.rdma_depth, server.rdma_depth), (9, 9));
    assert_eq!(Hello::new(&ConnectParams { rdma_depth: u16::MAX, ..params() }).rdma_depth, DEPTH_MAX);
    assert!(server.peer.address.unwrap().ip().is_loopback());
}

// [PROV-69] As a child of a fork has it, and any program before it runs.
#[test]
fn place_of_a_listener_is_free_although_others_have_its_descriptor() {
    let listener = listen();
    let (address, _copy) = (Address::Tcp(at(&listener)), listener.socket.try_clone().unwrap());
    drop(listener);
    TcpDomain::new().listen_tcp(&address, &params()).unwrap();
}

#[test]
fn hello_in_single_bytes_is_understood() {
    let mut listener = listen();
    let mut raw = TcpStream::connect(at(&listener)).unwrap();
    raw.set_nodelay(true).unwrap();
    let (last, first) = hello().split_last().map(|(last, first)| (*last, first.to_vec())).unwrap();
    until(&mut listener, |listener| listener.handshakes_count() == 1);
    for byte in first {
        raw.write_all(&[byte]).unwrap();
        assert!(listener.accept_tcp().unwrap().is_none());
    }
    raw.write_all(&[last]).unwrap();
    accept(&mut listener);
    assert_eq!(listener.handshakes_count(), 0);
}

// [TCP-2] [TCP-20] [PROV-27]
#[test]
fn silent_and_garbage_peers_cost_only_themselves() {
    let mut listener = listen();
    let silent = TcpStream::connect(at(&listener)).unwrap();
    let mut garbage = TcpStream::connect(at(&listener)).unwrap();
    garbage.write_all(b"GET / HTTP/1.1\r\nHost: somewhere\r\n\r\n").unwrap();
    let mut half = TcpStream::connect(at(&listener)).unwrap();
    half.write_all(&hello()[..31]).unwrap();
    let closed = TcpStream::connect(at(&listener)).unwrap();
    drop(closed);
    let mut good = TcpStream::connect(at(&listener)).unwrap();
    good.write_all(&hello()).unwrap();
    accept(&mut listener);
    until(&mut listener, |listener| listener.handshakes_count() == 2);
    // The garbage's sender is told who we are, then sees the end: as a reset, for not all of what it sent was read.
    let mut told = [0; HEADER_SIZE];
    garbage.read_exact(&mut told).unwrap();
    assert_eq!(told, hello());
    assert!(matches!(garbage.read(&mut [0; 1]), Ok(0) | Err(_)));
    drop((silent, half));
    until(&mut listener, |listener| listener.handshakes_count() == 0);
}

// [TCP-17]
#[test]
fn handshake_past_its_time_is_dropped() {
    let settings = TcpSettings { handshake_timeout: Duration::ZERO, ..TcpSettings::default() };
    let mut listener = TcpDomain::with_settings(settings).listen_tcp(&loopback(), &params()).unwrap();
    let mut raw = TcpStream::connect(at(&listener)).unwrap();
    raw.write_all(&hello()[..5]).unwrap();
    until(&mut listener, |listener| listener.handshakes_count() == 1);
    listener.expire_handshakes();
    assert_eq!(listener.handshakes_count(), 0);
    assert!(matches!(raw.read(&mut [0; 1]), Ok(0) | Err(_)), "the peer sees the end");

    assert_eq!(TcpSettings::default().handshake_timeout, Duration::from_secs(5));
    let mut patient = listen();
    let _raw = TcpStream::connect(at(&patient)).unwrap();
    until(&mut patient, |listener| listener.handshakes_count() == 1);
    patient.expire_handshakes();
    assert_eq!(patient.handshakes_count(), 1, "it has five seconds where nothing else is set");
}

// [TCP-18] [TCP-19]
#[test]
fn handshakes_past_the_bound_push_out_the_oldest() {
    let settings =
        TcpSettings { handshakes_max: 3, handshake_age_min: Duration::ZERO, ..TcpSettings::default() };
    let mut listener = TcpDomain::with_settings(settings).listen_tcp(&loopback(), &params()).unwrap();
    let silent: Vec<_> = (0..20)
        .map(|_| {
            let raw = TcpStream::connect(at(&listener)).unwrap();
            assert!(listener.accept_tcp().unwrap().is_none());
            assert!(listener.handshakes_count() <= 3);
            raw
        })
        .collect();
    until(&mut listener, |listener| listener.handshakes_count() == 3);
    // The last can still finish.
    (&silent[19]).write_all(&hello()).unwrap();
    accept(&mut listener);
    assert!(matches!((&silent[0]).read(&mut [0; 1]), Ok(0) | Err(_)));
}

// [TCP-19] [LIMIT-6]
#[test]
fn handshake_within_its_time_is_not_dropped_for_newer() {
    let settings = TcpSettings {
        handshakes_max: 3,
        handshake_age_min: Duration::from_secs(3600),
        ..TcpSettings::default()
    };
    let mut listener = TcpDomain::with_settings(settings).listen_tcp(&loopback(), &params()).unwrap();
    let slow: Vec<_> = (0..3).map(|_| TcpStream::connect(at(&listener)).unwrap()).collect();
    until(&mut listener, |listener| listener.handshakes_count() == 3);
    let flood: Vec<_> = (0..20).map(|_| TcpStream::connect(at(&listener)).unwrap()).collect();
    assert!(listener.accept_tcp().unwrap().is_none());
    for late in flood {
        late.set_nonblocking(true).unwrap();
        // The newcomer goes, when the kernel has told of it.
        let stays = || matches!((&late).read(&mut [0; 1]), Err(error) if error.kind() == WouldBlock);
        while stays() {
            assert!(listener.accept_tcp().unwrap().is_none());
        }
    }
    // One whose hello comes with it needs no place.
    let mut quick = TcpStream::connect(at(&listener)).unwrap();
    quick.write_all(&hello()).unwrap();
    accept(&mut listener);
    // Those that were first can still finish, each.
    for mut first in slow {
        first.write_all(&hello()).unwrap();
        accept(&mut listener);
    }
}

// [PROV-85] [PROV-86]
#[test]
fn one_accept_handles_bounded_peers_and_reports_more() {
    const COUNT: usize = 200;
    let mut listener = listen();
    let mut peers: Vec<_> = (0..COUNT).map(|_| TcpStream::connect(at(&listener)).unwrap()).collect();
    assert!(listener.accept_tcp().unwrap().is_none());
    assert!(listener.handshakes_count() < COUNT && listener.has_more());
    while listener.has_more() {
        assert!(listener.accept_tcp().unwrap().is_none());
    }
    until(&mut listener, |listener| listener.handshakes_count() == COUNT);
    // The tail of a burst, too.
    peers.iter_mut().for_each(|peer| peer.write_all(&hello()).unwrap());
    for _ in 0..COUNT {
        accept(&mut listener);
        assert!(listener.has_more());
    }
    assert!(listener.accept_tcp().unwrap().is_none());
    assert!(!listener.has_more());
}

// [TCP-2] [TCP-16]
#[test]
fn peer_of_another_version_is_refused_on_both_sides() {
    let mut listener = listen();
    let mut raw = TcpStream::connect(at(&listener)).unwrap();
    let mut other = hello();
    other[8..10].copy_from_slice(&(VERSION + 1).to_le_bytes());
    raw.write_all(&other).unwrap();
    // Ours comes back, so that the peer can say what does not fit.
    let mut answer = [0; HEADER_SIZE];
    let answered = std::thread::scope(|scope| {
        let reader = scope.spawn(|| raw.read_exact(&mut answer));
        while !reader.is_finished() {
            assert!(listener.accept_tcp().unwrap().is_none());
            std::thread::yield_now();
        }
        reader.join().unwrap()
    });
    answered.unwrap();
    assert_eq!(answer, hello());

    let error = connect_to_raw(move |mut stream| stream.write_all(&other).unwrap());
    assert!(
        matches!(
            &error,
            ConnectError::Peer { fault: PeerFault::Malformed { what: "transport version", .. }, .. }
        ),
        "{error}"
    );
}

/// Connects to a listener that answers every connection with `answer`.
fn connect_to_raw(answer: impl FnOnce(&TcpStream) + Send) -> ConnectError {
    let raw = std::net::TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).unwrap();
    let address = Address::Tcp(raw.local_addr().unwrap());
    std::thread::scope(|scope| {
        scope.spawn(move || {
            let (mut stream, _) = raw.accept().unwrap();
            stream.read_exact(&mut [0; HEADER_SIZE]).unwrap();
            answer(&stream);
        });
        TcpDomain::new().connect_tcp(&address, &params(), HANG).err().unwrap()
    })
}

#[test]
fn connect_to_one_that_closes_or_talks_nonsense_says_so() {
    let error = connect_to_raw(|_| {});
    assert!(error.to_string().contains("closed in the handshake"), "{error}");
    let error =
        connect_to_raw(|mut stream| stream.write_all(b"SSH-2.0-OpenSSH_9.6 and then some more\r\n").unwrap());
    assert!(matches!(error, ConnectError::Peer { .. }), "{error}");
}

#[test]
fn connect_to_a_silent_listener_times_out() {
    // The kernel completes the connection; nobody ever accepts it.
    let silent = std::net::TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).unwrap();
    let address = Address::Tcp(silent.local_addr().unwrap());
    let error = TcpDomain::new().connect_tcp(&address, &params(), Duration::from_millis(20)).err().unwrap();
    assert!(matches!(error, ConnectError::Timeout { timeout_ms: 20, .. }), "{error}");
}

#[test]
fn connect_to_a_closed_port_is_refused_at_once() {
    // Bound, so that no other process takes it, and nobody listens there.
    let closed = socket2::Socket::new(socket2::Domain::IPV4, socket2::Type::STREAM, None).unwrap();
    closed.bind(&SocketAddr::from((Ipv4Addr::LOCALHOST, 0)).into()).unwrap();
    let address = Address::Tcp(closed.local_addr().unwrap().as_socket().unwrap());
    let error = TcpDomain::new().connect_tcp(&address, &params(), HANG).err().unwrap();
    assert!(matches!(error, ConnectError::System { what: "connect to", .. }), "{error}");
}

/// Set in the process that runs short of descriptors: they are the whole process's, so the test has one of its own.
const OWN_PROCESS: &str = "DAFS_TEST_DESCRIPTORS";

// [TCP-21]
#[test]
fn accept_without_descriptors_recovers_when_there_are_some() {
    if std::env::var_os(OWN_PROCESS).is_some() {
        accept_without_descriptors();
        return;
    }
    let name = "transport::tcp::tests::listening::accept_without_descriptors_recovers_when_there_are_some";
    let output = std::process::Command::new(std::env::current_exe().unwrap())
        .args(["--exact", name, "--nocapture"])
        .env(OWN_PROCESS, "1")
        .output()
        .unwrap();
    let printed = String::from_utf8_lossy(&output.stdout);
    assert!(
        output.status.success() && printed.contains("1 passed"),
        "{printed}{}",
        String::from_utf8_lossy(&output.stderr)
    );
}

fn accept_without_descriptors() {
    let mut listener = listen();
    let mut outer = Outer::new(&listener);
    // More than are accepted at once.
    const COUNT: usize = 70;
    let mut clients: Vec<_> = (0..COUNT).map(|_| TcpStream::connect(at(&listener)).unwrap()).collect();
    for client in &mut clients {
        client.write_all(&hello()).unwrap();
    }
    let before = limit_descriptors(None);
    outer.sleep();
    assert!(listener.accept_tcp().unwrap().is_none());
    listener.expire_handshakes();
    assert!(listener.accept_tcp().unwrap().is_none());

    limit_descriptors(Some(before));
    listener.expire_handshakes();
    // An event comes although nothing new arrived.
    let mut accepted = Vec::new();
    while accepted.len() < COUNT {
        outer.sleep();
        while let Some(endpoint) = listener.accept_tcp().unwrap() {
            accepted.push(endpoint);
        }
    }
}

/// Sets the soft limit; `None`: so low that no descriptor can be opened. Returns the limit before.
#[allow(unsafe_code, reason = "setrlimit")]
fn limit_descriptors(limit: Option<u64>) -> u64 {
    let mut limits = libc::rlimit { rlim_cur: 0, rlim_max: 0 };
    // SAFETY: a valid structure.
    assert_eq!(unsafe { libc::getrlimit(libc::RLIMIT_NOFILE, &raw mut limits) }, 0);
    let before = limits.rlim_cur;
    limits.rlim_cur = limit.unwrap_or(0);
    // SAFETY: a valid structure.
    assert_eq!(unsafe { libc::setrlimit(libc::RLIMIT_NOFILE, &raw const limits) }, 0);
    before
}
