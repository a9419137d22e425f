//! Programs whose process can start no thread.

use std::process::Command;
use std::time::Duration;

use dafs_client::{Config, Session};
use dafs_proto::transport::Address;
use dafs_tests::cut::cut_connections;
use dafs_tests::harness::{Harness, On};
use dafs_tests::on_sockets;
use dafs_tests::suite::{assert_same, bytes};

on_sockets! {
    session_connects_again_in_a_process_that_can_start_no_thread,
}

/// In the other process: the server.
const SERVER: &str = "DAFS_TEST_SERVER_OF_A_PROCESS_WITHOUT_THREADS";

// [CLI-107]
fn session_connects_again_in_a_process_that_can_start_no_thread(on: On) {
    if let Ok(server) = std::env::var(SERVER) {
        return without_threads(on, &server);
    }
    let harness = Harness::start(on);
    let session = harness.session();
    let file = session.mount("data").unwrap().create("f").unwrap();
    file.write_all_at(&bytes(1, 1000), 0).unwrap();
    let provider = if matches!(on, On::Tcp) { "tcp" } else { "shm" };
    let name =
        format!("threadless::{provider}::session_connects_again_in_a_process_that_can_start_no_thread");
    let ran = Command::new(std::env::current_exe().unwrap())
        .args(["--exact", &name, "--test-threads=1", "--nocapture"])
        .env(SERVER, harness.url())
        // There is not so much memory for the stack of a thread.
        .env("RUST_MIN_STACK", (1u64 << 60).to_string())
        .output()
        .unwrap();
    let said = String::from_utf8_lossy(&ran.stdout);
    let wrong = String::from_utf8_lossy(&ran.stderr);
    assert!(ran.status.success() && said.contains("1 passed"), "{said}{wrong}");
}

fn without_threads(on: On, server: &str) {
    let (_, place) = server.split_once("://").unwrap();
    let address = match on {
        On::Tcp => Address::Tcp(place.parse().unwrap()),
        _ => Address::Shm(place.into()),
    };
    assert!(std::thread::Builder::new().spawn(|| {}).is_err(), "this is to fail");
    let config = Config { operation_timeout: Some(Duration::from_secs(30)), ..Config::default() };
    let session = Session::connect(server, &config).unwrap();
    let file = session.mount("data").unwrap().open("f").unwrap();
    let mut buffer = vec![0; 1000];
    for reconnects in 1..=2 {
        assert!(cut_connections(&address) > 0);
        // Over shm a reply may come before either side looks at the socket: read until one does.
        while session.reconnects() < reconnects {
            match reconnects {
                1 => file.read_exact_at(&mut buffer, 0).unwrap(),
                _ => {
                    let mut read = file.submit_read_at(buffer, 0);
                    while !read.test() {}
                    buffer = read.wait().into_result().unwrap().1;
                }
            }
            assert_same(&buffer, &bytes(1, 1000), "what was read");
        }
        assert_eq!(session.reconnects(), reconnects);
    }
}
