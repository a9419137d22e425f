//! What is measured: dafs and its peers, seen as something that reads and writes one file.

use std::path::PathBuf;

use dafs_client::Key;
use tempfile::TempDir;

use crate::cli::{Mount, Peer, Poll, Transport};
use crate::links::Host;
use crate::subject::bulk::{Bulk, BulkSetup};
use crate::subject::dafs::Dafs;
use crate::subject::list::Lists;
use crate::subject::server::Server;
use crate::sys::Usage;

pub mod bulk;
pub(crate) mod checks;
pub mod dafs;
pub mod files;
pub(crate) mod libdafs;
pub mod list;
pub mod measured;
pub mod names;
pub mod pieces;
pub mod server;

pub use measured::Subject;
pub use names::names_in;

/// Two clients of one server.
pub struct Pair {
    // In this order, so that sessions end before their server, and the server before its directory.
    /// The client of the disk.
    pub disk: Box<dyn Subject + Send>,
    /// The client of the cache; the server is its own.
    pub cached: Box<dyn Subject>,
    /// The file on the disk.
    pub disk_file: PathBuf,
    /// Its directory.
    pub directory: TempDir,
}

/// Sessions that do nothing, and their server.
pub struct Crowd {
    /// The clients, in the order of their coming.
    pub clients: Vec<Dafs>,
    /// What the server used before the first came.
    pub before: Usage,
    /// The server.
    pub server: Server,
}

/// Where workloads get their subjects from.
pub trait Subjects {
    /// dafs over `transport`, both ends waiting as `poll` says. Without `coalescing` each request and each reply is sent by itself.
    fn dafs(
        &mut self,
        transport: Transport,
        poll: Poll,
        coalescing: bool,
    ) -> anyhow::Result<Box<dyn Subject>>;

    /// Two clients of one server, with a file each: one in the page cache, one on a disk and past the cache.
    fn pair(&mut self, transport: Transport, poll: Poll) -> anyhow::Result<Pair>;

    /// A server with a large file in memory and one on a disk.
    fn bulk(&mut self, setup: &BulkSetup) -> anyhow::Result<Bulk>;

    /// `count` sessions that do nothing.
    fn crowd(&mut self, transport: Transport, poll: Poll, count: usize) -> anyhow::Result<Crowd>;

    /// A server, and sessions that move lists.
    fn lists(&mut self, transport: Transport, poll: Poll) -> anyhow::Result<Lists>;

    /// A server by itself, on a CPU of its own, or on all of them where many clients are to use it.
    fn single_server(&mut self, poll: Poll, on_all_cpus: bool) -> anyhow::Result<Server>;

    /// A server with so many workers, on all CPUs, that sleeps.
    fn server_of_workers(&mut self, workers: usize) -> anyhow::Result<Server>;

    /// A server on all CPUs, that sleeps, exports a new directory of this name, and is of the cluster of this store.
    fn server_of_cluster(&mut self, folder: &str, store: Option<&str>) -> anyhow::Result<Server>;

    /// A server on another host, on any CPU, that exports a new directory of this name and demands this key.
    fn on_host(&mut self, host: &Host, key: &Key, folder: &str) -> anyhow::Result<Server>;

    /// Another system.
    fn peer(&mut self, peer: Peer) -> anyhow::Result<Box<dyn Subject>>;

    /// A mounted file system.
    fn mount(&mut self, mount: &Mount) -> anyhow::Result<Box<dyn Subject>>;
}
