//! A server on a provider, for one test.

use std::cell::Cell;
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use dafs_client::{Config as ClientConfig, Key, Result, Session};
use dafs_proto::transport::Address;
use dafs_server::Running;
use dafs_server::access::{AccessConfig, ForcedIdentity, KeyEntry, ServerIdentity};
use dafs_server::config::{Config, ExportConfig, ExportKind};
use dafs_server::storage::Storage;
use tempfile::TempDir;

use crate::cluster::losses::{self, Losing};
use crate::faulty::Faults;
use crate::port::Port;

thread_local! {
    static WORKERS: Cell<usize> = const { Cell::new(1) };
}

/// Runs a test whose servers, as far as it starts them on its own thread, have this many workers.
pub fn with_workers(count: usize, test: impl FnOnce()) {
    struct Restored;
    impl Drop for Restored {
        // Also where the test fails: another may run on this thread.
        fn drop(&mut self) {
            WORKERS.set(1);
        }
    }
    WORKERS.set(count);
    let _restored = Restored;
    test();
}

/// How many workers the servers have that this thread starts.
pub fn workers() -> usize {
    WORKERS.get()
}

/// The providers that carry real connections.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum On {
    /// TCP over loopback.
    Tcp,
    /// Shared memory.
    Shm,
    /// RDMA, on the device that [`device_address`] names.
    #[cfg(feature = "verbs")]
    Verbs,
}

/// The IP address of an RDMA device: `DAFS_VERBS_ADDRESS`.
#[cfg(feature = "verbs")]
pub fn device_address() -> std::net::IpAddr {
    let text =
        std::env::var("DAFS_VERBS_ADDRESS").expect("DAFS_VERBS_ADDRESS: the IP address of an RDMA device");
    text.parse().expect("DAFS_VERBS_ADDRESS is an IP address")
}

impl On {
    /// Where a server listens; `directory` is for a socket.
    pub fn listener(self, directory: &Path) -> Address {
        match self {
            Self::Tcp => Address::Tcp("127.0.0.1:0".parse().expect("an address")),
            Self::Shm => Address::Shm(directory.join("socket")),
            #[cfg(feature = "verbs")]
            Self::Verbs => Address::Verbs((device_address(), 0).into()),
        }
    }

    /// As [`On::listener`], for servers that are started again: their place is kept meanwhile.
    pub fn place(self, directory: &Path) -> (Address, Option<Port>) {
        match self {
            Self::Tcp => {
                let port = Port::new();
                (Address::Tcp(port.address()), Some(port))
            }
            other => (other.listener(directory), None),
        }
    }

    /// RDMA is emulated by a processor that is emulated too.
    pub fn is_verbs(self) -> bool {
        !matches!(self, Self::Tcp | Self::Shm)
    }

    /// How many rounds of something: a tenth where RDMA is emulated by a processor that is emulated too, one at least.
    pub fn rounds(self, count: u64) -> u64 {
        match self {
            Self::Tcp | Self::Shm => count,
            #[cfg(feature = "verbs")]
            Self::Verbs => count.div_ceil(10),
        }
    }
}

/// The key that server and client share where other hosts could reach the server; `None` where the kernel vouches for clients.
pub fn key_for(server: &Address) -> Option<Key> {
    matches!(server, Address::Verbs(_))
        .then(|| Key { name: "suites".to_owned(), secret: Arc::from([SECRET_BYTE; 32]) })
}

/// The line of a key file for [`key_for`]: its holders are who runs the tests, as the kernel says of clients elsewhere.
pub fn key_line() -> String {
    let (uid, gid) = own_ids();
    format!("suites:{}:uid={uid},gid={gid}\n", format!("{SECRET_BYTE:02x}").repeat(32))
}

const SECRET_BYTE: u8 = 7;

fn own_ids() -> (u32, u32) {
    (rustix::process::geteuid().as_raw(), rustix::process::getegid().as_raw())
}

/// A running server with the exports `data` (a directory) and `mem` (memory).
pub struct Harness {
    server: Option<Running>,
    /// In place of the server, where suites run on clusters that lose servers.
    losing: Option<Losing>,
    address: Address,
    _port: Option<Port>,
    directory: TempDir,
    config: Config,
}

impl Harness {
    /// Starts one with the default settings.
    pub fn start(on: On) -> Self {
        match losses::seed_of_suites() {
            Some(seed) if on == On::Tcp => Self::start_losing(seed),
            _ => Self::start_with(on, |_| {}),
        }
    }

    fn start_losing(seed: u64) -> Self {
        let losing = Losing::start(seed);
        let address = losing.with(|cluster| cluster.servers[0].address());
        let address = Address::Tcp(address.parse().expect("an address"));
        let directory = tempfile::tempdir().expect("a temporary directory");
        let config = Config::default();
        Self { server: None, losing: Some(losing), address, _port: None, directory, config }
    }

    /// Starts one whose storage fails as the answered rules say.
    pub fn start_faulty(on: On, change: impl FnOnce(&mut Config)) -> (Self, Faults) {
        let (faults, wrap) = Faults::new();
        (Self::start_over(on, wrap, change), faults)
    }

    /// Starts one over what `wrap` makes of its storage.
    pub fn start_over(
        on: On,
        wrap: impl Fn(Box<dyn Storage>) -> Box<dyn Storage> + Send + 'static,
        change: impl FnOnce(&mut Config),
    ) -> Self {
        Self::start_by(on, change, |config| Running::start_workers(config, WORKERS.get(), wrap))
    }

    /// Starts one with changed settings.
    pub fn start_with(on: On, change: impl FnOnce(&mut Config)) -> Self {
        Self::start_over(on, |storage| storage, change)
    }

    fn start_by(
        on: On,
        change: impl FnOnce(&mut Config),
        start: impl FnOnce(Config) -> anyhow::Result<Running>,
    ) -> Self {
        let directory = tempfile::tempdir().expect("a temporary directory");
        let data = directory.path().join("data");
        std::fs::create_dir(&data).expect("the export's directory");
        let (listener, port) = on.place(directory.path());
        let key = key_for(&listener);
        let mut config = Config {
            exports: vec![
                ExportConfig::new("data", ExportKind::Directory(data)),
                ExportConfig::new("mem", ExportKind::Memory { size_max: 1 << 30 }),
            ],
            listeners: vec![listener],
            access: AccessConfig {
                server: ServerIdentity::of_process().expect("this process's identity"),
                ..AccessConfig::default()
            },
            calibrate: false,
            ..Config::default()
        };
        if let Some(key) = key {
            let (uid, gid) = own_ids();
            config.access.keys.insert(KeyEntry {
                key,
                forced: Some(ForcedIdentity { uid, gid }),
                publishes: false,
            });
        }
        change(&mut config);
        let server = start(config.clone()).expect("the server starts");
        let address = server.addresses()[0].clone();
        // A restarted server listens where the first did.
        config.listeners = vec![address.clone()];
        Self { server: Some(server), losing: None, address, _port: port, directory, config }
    }

    /// Where it listens.
    pub fn address(&self) -> &Address {
        &self.address
    }

    /// The address as users write it.
    pub fn url(&self) -> String {
        let of_cluster = self.losing.as_ref().map(|losing| losing.with(|cluster| cluster.addresses(0)));
        of_cluster.unwrap_or_else(|| self.address.to_string())
    }

    /// The directory behind the export `data`.
    pub fn data(&self) -> std::path::PathBuf {
        let of_cluster = self.losing.as_ref().map(|losing| losing.with(|cluster| cluster.data()));
        of_cluster.unwrap_or_else(|| self.directory.path().join("data"))
    }

    /// A directory for the test's own files.
    pub fn scratch(&self) -> &Path {
        self.directory.path()
    }

    /// Longest time between two polls of a loop of the server that runs now.
    pub fn longest_turn(&self) -> Duration {
        self.server.as_ref().map_or(Duration::ZERO, Running::longest_turn)
    }

    /// A new session.
    pub fn session(&self) -> Session {
        self.session_with(&ClientConfig::default())
    }

    /// A new session with these settings, and a key where the server demands one.
    pub fn session_with(&self, config: &ClientConfig) -> Session {
        self.connect(config).expect("the session opens")
    }

    /// As [`Harness::session_with`], where it may fail.
    pub fn connect(&self, config: &ClientConfig) -> Result<Session> {
        Session::connect(self.url(), &self.client_config(config))
    }

    /// These settings, and a key where the server demands one.
    pub fn client_config(&self, config: &ClientConfig) -> ClientConfig {
        let mut config = config.clone();
        config.key = config.key.or_else(|| key_for(&self.address));
        config
    }

    /// Stops the server and starts another in its place, on the same address.
    pub fn restart(&mut self) {
        match &self.losing {
            Some(losing) => losing.restart(),
            None => self.restart_with(|_| {}),
        }
    }

    /// As [`Harness::restart`], with changed settings.
    pub fn restart_with(&mut self, change: impl FnOnce(&mut Config)) {
        self.stop();
        change(&mut self.config);
        self.restart_over(|storage| storage);
    }

    /// As [`Harness::restart`], over what `wrap` makes of its storage.
    pub fn restart_over(&mut self, wrap: impl Fn(Box<dyn Storage>) -> Box<dyn Storage> + Send + 'static) {
        self.stop();
        let again = Running::start_workers(self.config.clone(), WORKERS.get(), wrap);
        self.server = Some(again.expect("the server starts again"));
    }

    /// Stops the server.
    pub fn stop(&mut self) {
        if let Some(server) = self.server.take() {
            server.stop();
        }
    }
}
