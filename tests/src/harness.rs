//! A server on a provider, for one test.

use std::path::Path;
#[cfg(feature = "verbs")]
use std::sync::Arc;

use dafs_client::{Config as ClientConfig, Key, Session};
use dafs_proto::transport::Address;
use dafs_server::Running;
use dafs_server::access::{AccessConfig, KeyEntry, ServerIdentity};
use dafs_server::config::{Config, ExportConfig, ExportKind};
use tempfile::TempDir;

use crate::faulty::Faults;

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

/// The key that server and client share where other hosts could reach the server.
#[cfg(feature = "verbs")]
fn shared_key() -> Key {
    Key { name: "suites".to_owned(), secret: Arc::from([7; 32]) }
}

/// A running server with the exports `data` (a directory) and `mem` (memory).
pub struct Harness {
    server: Option<Running>,
    address: Address,
    directory: TempDir,
    config: Config,
    key: Option<Key>,
}

impl Harness {
    /// Starts one with the default settings.
    pub fn start(on: On) -> Self {
        Self::start_with(on, |_| {})
    }

    /// Starts one whose storage fails as the answered rules say.
    pub fn start_faulty(on: On, change: impl FnOnce(&mut Config)) -> (Self, Faults) {
        let (faults, wrap) = Faults::new();
        let start = |config| Running::start_over(config, wrap);
        (Self::start_by(on, change, start), faults)
    }

    /// Starts one with changed settings.
    pub fn start_with(on: On, change: impl FnOnce(&mut Config)) -> Self {
        Self::start_by(on, change, Running::start)
    }

    fn start_by(
        on: On,
        change: impl FnOnce(&mut Config),
        start: impl FnOnce(Config) -> anyhow::Result<Running>,
    ) -> Self {
        let directory = tempfile::tempdir().expect("a temporary directory");
        let data = directory.path().join("data");
        std::fs::create_dir(&data).expect("the export's directory");
        let listener = match on {
            On::Tcp => Address::Tcp("127.0.0.1:0".parse().expect("an address")),
            On::Shm => Address::Shm(directory.path().join("socket")),
            #[cfg(feature = "verbs")]
            On::Verbs => Address::Verbs((device_address(), 0).into()),
        };
        let key = match on {
            On::Tcp | On::Shm => None,
            #[cfg(feature = "verbs")]
            On::Verbs => Some(shared_key()),
        };
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
        if let Some(key) = key.clone() {
            config.access.keys.insert(KeyEntry { key, forced: None });
            // A key vouches for no user: without this, root's tests would act as nobody.
            config.exports.iter_mut().for_each(|export| export.keep_root = true);
        }
        change(&mut config);
        let server = start(config.clone()).expect("the server starts");
        let address = server.addresses()[0].clone();
        // A restarted server listens where the first did.
        config.listeners = vec![address.clone()];
        Self { server: Some(server), address, directory, config, key }
    }

    /// Where it listens.
    pub fn address(&self) -> &Address {
        &self.address
    }

    /// The address as users write it.
    pub fn url(&self) -> String {
        self.address.to_string()
    }

    /// The directory behind the export `data`.
    pub fn data(&self) -> std::path::PathBuf {
        self.directory.path().join("data")
    }

    /// A directory for the test's own files.
    pub fn scratch(&self) -> &Path {
        self.directory.path()
    }

    /// A new session.
    pub fn session(&self) -> Session {
        self.session_with(&ClientConfig::default())
    }

    /// A new session with these settings, and a key where the server demands one.
    pub fn session_with(&self, config: &ClientConfig) -> Session {
        let mut config = config.clone();
        config.key = config.key.or_else(|| self.key.clone());
        Session::connect(self.url(), &config).expect("the session opens")
    }

    /// Stops the server and starts another in its place, on the same address.
    pub fn restart(&mut self) {
        self.stop();
        self.server = Some(Running::start(self.config.clone()).expect("the server starts again"));
    }

    /// Stops the server.
    pub fn stop(&mut self) {
        if let Some(server) = self.server.take() {
            server.stop();
        }
    }
}
