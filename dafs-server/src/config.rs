//! The settings of a server, checked.
//!
//! Flags and an optional file are raw text ([`crate::cli::Settings`]); [`Config::from_settings`] turns them into a
//! [`Config`] in which everything is in range and fits together. Nothing after it looks at flags again.

mod build;
mod cpus;
mod export;
mod origin;
mod size;
mod store;
#[cfg(test)]
mod tests;
mod workers;

use std::net::SocketAddr;
use std::path::PathBuf;
use std::time::Duration;

use dafs_proto::transport::{Address, WaitPolicy};
use dafs_proto::wire::Features;

use thiserror::Error;

use crate::access::{AccessConfig, AddressRange, IdentityMapping, ServerIdentity};
use crate::cluster::ClusterConfig;
use crate::logging::LogConfig;
use crate::storage::Engine;
use crate::worker::buffers::{BUFFER_SIZES, BufferConfig};

pub use crate::storage::{ExportKind, MemoryRoot};
pub use build::{CONFIG_FILE_SIZE_MAX, LISTENERS_MAX};
pub use cpus::Cpus;
pub use export::ExportTable;
pub use origin::Origin;
pub use size::Size;
pub use store::store_of;
pub use workers::Workers;

/// Exports of one server at most.
pub const EXPORTS_MAX: usize = 1024;
/// Bytes of an export's name at most.
pub const EXPORT_NAME_SIZE_MAX: usize = 255;

/// Everything that a server needs to know.
#[derive(Clone, Debug)]
pub struct Config {
    /// What clients may mount. [`crate::storage::ExportId`] is the place in this list. At most [`EXPORTS_MAX`].
    pub exports: Vec<ExportConfig>,
    /// Where to listen, in the order in which they are announced. A port of 0 takes any free one.
    pub listeners: Vec<Address>,
    /// What the settings name as listeners, and the addresses of `listeners` that each stands for. Others are not here.
    pub listen: Vec<Listen>,
    /// Loops, each on a thread of its own, among which connections are divided.
    pub workers: usize,
    /// The CPU of each worker; none where they run on any.
    pub worker_cpus: Vec<usize>,
    /// How a loop waits.
    pub poll: WaitPolicy,
    /// Sessions at once.
    pub sessions_max: u32,
    /// Slots of one session: requests outstanding at most.
    pub slots_max: u16,
    /// The same over shm and RDMA, where each slot costs a buffer of a message's size.
    pub buffered_slots_max: u16,
    /// Operations in flight of all sessions together: the budget that credits share out.
    pub operations_max: u32,
    /// Open handles of one session.
    pub handles_max: u32,
    /// Largest inline payload in either direction, bytes.
    pub inline_max: u32,
    /// Largest single read or write, bytes.
    pub transfer_size_max: u32,
    /// Memory for transfer buffers and eager buffers, bytes.
    pub buffers_size_max: u64,
    /// Sizes of transfer buffers, bytes, ascending.
    pub buffer_sizes: Vec<usize>,
    /// Free transfer buffers kept of each size, bytes.
    pub buffers_kept_max: u64,
    /// Chunks of one transfer in progress at once: 1 moves one after the other.
    pub pipeline_depth: u32,
    /// Bytes of a chunk; `None`: by the length of each transfer.
    pub chunk_size: Option<u32>,
    /// The lease: a session is kept for this long without a sign of its client, milliseconds.
    pub lease_ms: u32,
    /// Keep-alive interval: an idle client sends a message after this long, milliseconds.
    pub keep_alive_ms: u32,
    /// A handshake may last this long, milliseconds.
    pub handshake_ms: u32,
    /// What carries out storage operations that would block.
    pub storage_engine: Engine,
    /// Threads for storage operations that may wait, at most.
    pub storage_threads: u32,
    /// Replies to requests that came together leave together; without, each by itself, for comparison.
    pub coalesce_replies: bool,
    /// The optional features of the protocol that clients are offered: all, except in tests of clients without them.
    pub features: Features,
    /// Files of all directories bypass the page cache; see also [`ExportConfig::direct_io`].
    pub direct_io: bool,
    /// Where Prometheus text is served.
    pub metrics_address: Option<SocketAddr>,
    /// Operations in flight may take this long to finish after SIGTERM, and clients to take their replies, milliseconds.
    pub drain_ms: u32,
    /// Measure at start from which size direct transfers are faster than inline ones.
    pub calibrate: bool,
    /// What one client, and all together, may take.
    pub limits: LimitConfig,
    /// Keys, and as whom the server itself runs.
    pub access: AccessConfig,
    /// Where fences, who holds locks, and persistent locks are kept; without it they end with the server.
    pub state_file: Option<PathBuf>,
    /// The cluster that this server is of.
    pub cluster: Option<ClusterConfig>,
    /// What is logged, and how.
    pub log: LogConfig,
}

impl Default for Config {
    /// Every default, with nothing exported and nowhere to listen.
    fn default() -> Self {
        Self {
            exports: Vec::new(),
            listeners: Vec::new(),
            listen: Vec::new(),
            workers: 1,
            worker_cpus: Vec::new(),
            poll: WaitPolicy::Adaptive,
            sessions_max: 4096,
            slots_max: 256,
            buffered_slots_max: 64,
            operations_max: 4096,
            handles_max: 1 << 16,
            inline_max: 16 << 10,
            transfer_size_max: 64 << 20,
            buffers_size_max: 256 << 20,
            buffer_sizes: BUFFER_SIZES.to_vec(),
            buffers_kept_max: 32 << 20,
            pipeline_depth: 4,
            chunk_size: None,
            lease_ms: 30_000,
            keep_alive_ms: 10_000,
            handshake_ms: 10_000,
            storage_engine: Engine::Auto,
            storage_threads: 16,
            coalesce_replies: true,
            features: Features::all(),
            direct_io: false,
            metrics_address: None,
            drain_ms: 10_000,
            calibrate: true,
            limits: LimitConfig::default(),
            access: AccessConfig::default(),
            state_file: None,
            cluster: None,
            log: LogConfig::default(),
        }
    }
}

impl Config {
    /// The flags of settings, beside keys, exports and listeners, in which another configuration differs.
    pub(crate) fn other_changes(&self, new: &Self) -> Vec<&'static str> {
        let mut changed = Vec::new();
        macro_rules! compare {
            ($old:expr, $new:expr, $kind:ident; $($field:ident $flag:literal,)*; $($beside:ident)*) => {
                // Naming every field makes a forgotten one an error.
                let $kind { $($field,)* $($beside: _,)* } = $old;
                $(if *$field != $new.$field { changed.push($flag); })*
            };
        }
        compare! {
            self, new, Self;
            workers "--workers", worker_cpus "--worker-cpus", poll "--poll", sessions_max "--sessions-max", slots_max "--slots-max",
            buffered_slots_max "--slots-max", operations_max "--operations-max",
            handles_max "--handles-max", inline_max "--inline-max", transfer_size_max "--transfer-size-max",
            buffers_size_max "--buffers-size-max", buffer_sizes "--buffer-sizes", buffers_kept_max "--buffers-kept-max",
            pipeline_depth "--pipeline-depth", chunk_size "--chunk-size", lease_ms "--lease-ms",
            keep_alive_ms "--keep-alive-ms", handshake_ms "--handshake-ms", drain_ms "--drain-ms",
            storage_engine "--storage-engine", storage_threads "--storage-threads",
            coalesce_replies "--no-coalescing", direct_io "--direct-io", calibrate "--no-calibrate",
            metrics_address "--metrics", state_file "--state-file", cluster "--cluster",
            ; exports listeners listen access features limits log
        }
        compare! {
            &self.limits, new.limits, LimitConfig;
            identity_share_percent "--identity-share", descriptors_max "--descriptors-max",
            mappings_max "--mappings-max", mapped_size_max "--mapped-size-max", sparse_size_max "--sparse-size-max",
            unsent_size_max "--unsent-size-max", views_size_max "--views-size-max",
            handshakes_max "--handshakes-max", views_max "--views-max", tokens_max "--tokens-max",
            session_locks_max "--session-locks-max", locks_max "--locks-max",
            ;
        }
        compare! {
            &self.log, new.log, LogConfig;
            filter "--log", format "--log-format", lines_max "--log-lines-max",
            ;
        }
        // Some set several.
        changed.dedup();
        changed
    }

    /// What transfer buffers a server has.
    pub(crate) fn buffers(&self) -> BufferConfig {
        let [size_max, kept_size_max] = [self.buffers_size_max, self.buffers_kept_max]
            .map(|size| usize::try_from(size).unwrap_or(usize::MAX));
        BufferConfig { sizes: self.buffer_sizes.clone(), size_max, kept_size_max }
    }
}

/// A listener as it is written.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Listen {
    /// Such as `tcp://localhost`.
    pub text: String,
    /// The addresses that it stands for.
    pub addresses: Vec<Address>,
}

/// Budgets of the server: `spec/design/limits.md`. `None`: by the limits of this process and machine.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LimitConfig {
    /// What one user, key or address may have of a budget, percent.
    pub identity_share_percent: u32,
    /// Descriptors of open files.
    pub descriptors_max: Option<u64>,
    /// Mappings of clients' memory.
    pub mappings_max: Option<u64>,
    /// Address space of these mappings, bytes.
    pub mapped_size_max: Option<u64>,
    /// Clients' memory that this process would be the first to touch, bytes.
    pub sparse_size_max: Option<u64>,
    /// Replies that wait for clients to take them, bytes.
    pub unsent_size_max: u64,
    /// Views of sessions and their descriptions, bytes.
    pub views_size_max: u64,
    /// Connections of a listener that have not begun a session yet.
    pub handshakes_max: u32,
    /// Views of one session.
    pub views_max: u32,
    /// Tokens of one session.
    pub tokens_max: u32,
    /// Parts of files that one session has locked or waits for.
    pub session_locks_max: u32,
    /// The same of all sessions together.
    pub locks_max: u32,
}

impl Default for LimitConfig {
    fn default() -> Self {
        Self {
            identity_share_percent: 50,
            descriptors_max: None,
            mappings_max: None,
            mapped_size_max: None,
            sparse_size_max: None,
            unsent_size_max: 512 << 20,
            views_size_max: 256 << 20,
            handshakes_max: 1024,
            views_max: 1024,
            tokens_max: 64,
            session_locks_max: 1 << 16,
            locks_max: 1 << 20,
        }
    }
}

/// A time of a configuration.
pub(crate) fn millis(count: u32) -> Duration {
    Duration::from_millis(count.into())
}

/// One export.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ExportConfig {
    /// Its name in addresses: not empty, no slash, at most [`EXPORT_NAME_SIZE_MAX`] bytes.
    pub name: String,
    /// What is exported.
    pub kind: ExportKind,
    /// Nothing may be changed.
    pub read_only: bool,
    /// Who may mount, by address; empty for everybody whom a listener lets in.
    pub clients: Vec<AddressRange>,
    /// Names of keys of which a client must have proven one; empty for no such demand.
    pub keys: Vec<String>,
    /// As whom clients act.
    pub squash: IdentityMapping,
    /// A client that is root by its own claim acts as root. Otherwise it acts as nobody.
    pub no_root_squash: bool,
    /// Files are read and written with O_DIRECT, which bypasses the page cache, where the file system can.
    pub direct_io: bool,
    /// Locks of clients and of the host's processes keep each other out.
    pub local_locks: bool,
    /// Root on this host gets descriptors of files that it opens.
    pub local_open: bool,
    /// Whose the root of an export in memory is at its start.
    pub root: MemoryRoot,
}

impl ExportConfig {
    /// An export that can be read and written by whoever may mount it.
    pub fn new(name: impl Into<String>, kind: ExportKind) -> Self {
        Self {
            name: name.into(),
            kind,
            read_only: false,
            clients: Vec::new(),
            keys: Vec::new(),
            squash: IdentityMapping::Auto,
            no_root_squash: false,
            direct_io: false,
            local_locks: false,
            local_open: false,
            root: MemoryRoot::default(),
        }
    }
}

/// What a configuration depends on besides settings.
#[derive(Clone, Debug)]
pub struct Environment {
    /// As whom the server runs.
    pub server: ServerIdentity,
    /// Socket to listen on when no listener is given.
    pub default_socket: Option<PathBuf>,
    /// Memory of the machine, bytes.
    pub memory_size: u64,
    /// What it can swap out beside that, bytes.
    pub swap_size: u64,
}

impl Environment {
    /// That of this process. Makes the directory of the default socket, `/run/dafs`, where that is missing and
    /// allowed and `makes_socket_directory`.
    pub fn of_process(makes_socket_directory: bool) -> std::io::Result<Self> {
        let runtime_directory = std::env::var_os("XDG_RUNTIME_DIR").map(PathBuf::from);
        let socket = makes_socket_directory.then(|| build::default_socket(runtime_directory.as_deref()));
        let meminfo = std::fs::read_to_string("/proc/meminfo").unwrap_or_default();
        Ok(Self {
            server: ServerIdentity::of_process()?,
            default_socket: socket.flatten(),
            memory_size: kibibytes(&meminfo, "MemTotal:").unwrap_or(1 << 30),
            swap_size: kibibytes(&meminfo, "SwapTotal:").unwrap_or(0),
        })
    }
}

/// Settings that cannot be followed.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
#[error("cannot use {place}: {message}")]
pub struct ConfigError {
    /// The flag, or the place in the file.
    pub place: String,
    /// What is wrong, and what to do.
    pub message: String,
}

impl ConfigError {
    fn new(place: &str, problem: impl AsRef<str>, remedy: impl AsRef<str>) -> Self {
        Self { place: place.to_owned(), message: format!("{}; {}", problem.as_ref(), remedy.as_ref()) }
    }
}

/// A value of `/proc/meminfo`, bytes.
pub(crate) fn kibibytes(meminfo: &str, name: &str) -> Option<u64> {
    let line = meminfo.lines().find_map(|line| line.strip_prefix(name))?;
    line.trim().strip_suffix(" kB")?.parse::<u64>().ok()?.checked_mul(1024)
}
