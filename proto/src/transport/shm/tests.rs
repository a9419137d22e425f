//! The provider end to end: two endpoints in one process, on a real socket and real shared memory.

mod bounds;
mod handshakes;
mod hostile;
mod listening;
mod memory;
mod messages;
mod regions;
mod vectors;

use std::time::Duration;

use super::super::optional::OfType as _;
use super::super::*;
use super::*;

const LONG: Duration = Duration::from_secs(20);
const ALL: Access = Access::REMOTE_READ.union(Access::REMOTE_WRITE);

/// A listener in a directory of its own.
struct Bed {
    // Dropped before the directory.
    listener: ShmListener,
    address: Address,
    server: ShmDomain,
    params: ConnectParams,
    _directory: tempfile::TempDir,
}

impl Bed {
    fn new(params: ConnectParams) -> Self {
        Self::of(ShmDomain::new(), params)
    }

    fn of(server: ShmDomain, params: ConnectParams) -> Self {
        let directory = tempfile::tempdir().unwrap();
        let address = Address::Shm(directory.path().join("socket"));
        let listener = server.listen_at(&address, &params).unwrap();
        Self { listener, address, server, params, _directory: directory }
    }

    /// Client and server end of a new connection.
    fn connect(&mut self, client: &ShmDomain) -> (ShmEndpoint, ShmEndpoint) {
        let params = self.params;
        let address = self.address.clone();
        std::thread::scope(|scope| {
            let connecting = scope.spawn(|| client.connect_endpoint(&address, &params, LONG).unwrap());
            let server = self.accept();
            (connecting.join().unwrap(), server)
        })
    }

    fn accept(&mut self) -> ShmEndpoint {
        loop {
            if let Some(endpoint) = self.listener.accept_endpoint().unwrap() {
                return endpoint;
            }
            std::thread::yield_now();
        }
    }
}

/// A connected pair with these parameters on both sides.
fn pair(params: ConnectParams) -> (ShmEndpoint, ShmEndpoint) {
    Bed::new(params).connect(&ShmDomain::new())
}

/// Runs a test in a process of its own: limits are the whole process's. `name`: of the test, below this module.
fn in_own_process(name: &str, test: impl FnOnce()) {
    const OWN_PROCESS: &str = "DAFS_SHM_TEST_OWN_PROCESS";
    if std::env::var_os(OWN_PROCESS).is_some() {
        hostile::end_process_in_a_minute();
        return test();
    }
    let output = std::process::Command::new(std::env::current_exe().unwrap())
        .args(["--exact", &format!("transport::shm::tests::{name}"), "--nocapture"])
        .env(OWN_PROCESS, "1")
        .output()
        .unwrap();
    let printed = String::from_utf8_lossy(&output.stdout);
    let is_passed = output.status.success() && printed.contains("1 passed");
    assert!(is_passed, "{:?} {printed} {}", output.status, String::from_utf8_lossy(&output.stderr));
}

fn small() -> ConnectParams {
    ConnectParams {
        recv_payload_max: 8192,
        recv_depth: 4,
        rdma_depth: 4,
        wait: WaitPolicy::Event,
        ..ConnectParams::default()
    }
}

/// The next message: head and payload.
fn take(endpoint: &mut ShmEndpoint) -> Option<(Vec<u8>, Vec<u8>)> {
    match endpoint.recv().unwrap()? {
        Received::Message { head, .. } => Some((head.as_bytes().to_vec(), endpoint.payload().to_vec())),
        other => panic!("{other:?}"),
    }
}

fn pattern(len: usize, seed: u8) -> Vec<u8> {
    (0..len).map(|index| u8::try_from((index * 31) % 251).unwrap().wrapping_add(seed)).collect()
}
