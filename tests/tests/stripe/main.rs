//! Files over several servers: data, names, servers that are lost, layouts that lie, and what is left behind.
#![allow(clippy::unwrap_used, clippy::expect_used, reason = "all of this is test code, helpers included")]
#![allow(clippy::cast_possible_truncation, reason = "sizes that the tests choose")]

mod checked;
mod data;
mod lies;
mod lost;
mod model;
mod names;

use std::path::PathBuf;
use std::time::Duration;

use dafs_client::{Config, Error as ClientError, OpenOptions, ReconnectPolicy, Url};
use dafs_stripe::{File, Striping, Volume};
use dafs_tests::harness::{Harness, On};

/// The unit of most tests: the smallest, so that everything crosses servers.
pub(crate) const UNIT: u64 = 4096;

/// A metadata server, and data servers.
pub(crate) struct World {
    pub(crate) metadata: Harness,
    pub(crate) data: Vec<Harness>,
    /// The export of each.
    pub(crate) export: &'static str,
}

impl World {
    pub(crate) fn start(on: On, servers: usize, export: &'static str) -> Self {
        let data = (0..servers).map(|_| Harness::start(on)).collect();
        let world = Self { metadata: Harness::start(on), data, export };
        let volume = world.volume();
        for (number, server) in (1..).zip(&world.data) {
            volume.add_server(&format!("io{number}"), &url_of(server, export)).unwrap();
        }
        world
    }

    /// A new session, and a view of the servers file of its own.
    pub(crate) fn volume(&self) -> Volume {
        self.volume_with(&Config::default())
    }

    pub(crate) fn volume_with(&self, config: &Config) -> Volume {
        Volume::connect(
            url_of(&self.metadata, self.export).to_os_string(),
            &self.metadata.client_config(config),
        )
        .unwrap()
    }

    /// The pieces of a data server, in its directory: of exports of directories.
    pub(crate) fn pieces(&self, server: usize) -> Vec<PathBuf> {
        let directory = self.data[server].data().join(".dafs-pieces");
        let entries = std::fs::read_dir(directory).unwrap().map(|entry| entry.unwrap().path());
        let mut pieces: Vec<PathBuf> = entries.filter(|path| !path.ends_with("identity")).collect();
        pieces.sort();
        pieces
    }

    pub(crate) fn piece_count(&self) -> usize {
        (0..self.data.len()).map(|server| self.pieces(server).len()).sum()
    }
}

/// The URL of an export of a server.
pub(crate) fn url_of(server: &Harness, export: &str) -> Url {
    let colon = if server.url().contains("shm://") { ":" } else { "" };
    Url::parse(format!("{}{colon}/{export}", server.url()).as_ref()).unwrap()
}

/// Options to read, write and create.
pub(crate) fn created() -> OpenOptions {
    OpenOptions::new().read(true).write(true).create(true).clone()
}

/// Striping over all servers, from the first on.
pub(crate) fn striping() -> Striping {
    Striping { unit: UNIT, factor: None, first: Some(0) }
}

/// A new striped file.
pub(crate) fn create(volume: &Volume, path: &str) -> File {
    volume.create(path, &created(), &striping()).unwrap()
}

/// Gives a server up at once.
pub(crate) fn impatient() -> Config {
    let reconnect = ReconnectPolicy {
        attempts_max: 1,
        time_max: Duration::from_millis(200),
        ..ReconnectPolicy::default()
    };
    Config { reconnect, ..Config::default() }
}

/// What a client's error says.
pub(crate) fn client_error(error: &dafs_stripe::Error) -> &ClientError {
    match error {
        dafs_stripe::Error::Client(error) => error,
        other => panic!("{other}"),
    }
}
