//! What a server was told to do, checked.
//!
//! Flags  and an optional file  are raw text; `build` turns them into a [`Config`] in which everything is in range and fits
//! together. Nothing after it looks at flags again.

use std::net::SocketAddr;
use std::path::PathBuf;

use dafs_proto::transport::{Address, WaitPolicy};

use crate::access::{AccessConfig, AddressRange, IdentityMapping};
use crate::logging::LogConfig;

/// Exports of one server at most.
pub const EXPORTS_MAX: usize = 1024;
/// Bytes of an export's name at most.
pub const EXPORT_NAME_SIZE_MAX: usize = 255;

/// Everything that a server needs to know.
#[derive(Clone, Debug)]
pub struct Config {
    /// What clients may mount. [`crate::backend::ExportId`] is the place in this list. At most [`EXPORTS_MAX`].
    pub exports: Vec<ExportConfig>,
    /// Where to listen, in the order in which they are announced. A port of 0 takes any free one.
    pub listeners: Vec<Address>,
    /// How the loop waits.
    pub poll: WaitPolicy,
    /// Sessions at once.
    pub sessions_max: u32,
    /// Slots of one session: requests outstanding at most.
    pub slots_max: u16,
    /// Operations in flight of all sessions together: the budget that credits share out.
    pub operations_max: u32,
    /// Largest inline payload in either direction, bytes.
    pub inline_max: u32,
    /// Largest single read or write, bytes.
    pub transfer_size_max: u32,
    /// Memory for transfer buffers, bytes.
    pub buffers_size_max: u64,
    /// A session without a connection is kept for this long, milliseconds.
    pub lease_ms: u32,
    /// Silence after which a client says that it is there, milliseconds.
    pub keep_alive_ms: u32,
    /// A handshake may last this long, milliseconds.
    pub handshake_ms: u32,
    /// What carries out storage operations that would block.
    pub storage_engine: StorageEngine,
    /// All directories are read and written past the page cache; see also [`ExportConfig::direct_io`].
    pub direct_io: bool,
    /// Where Prometheus text is served.
    pub metrics_address: Option<SocketAddr>,
    /// Operations in flight may take this long to finish after SIGTERM, milliseconds.
    pub drain_ms: u32,
    /// Measure at start from which size Direct is faster than Inline.
    pub calibrate: bool,
    /// Keys, and as whom the server itself runs.
    pub access: AccessConfig,
    /// What is logged, and how.
    pub log: LogConfig,
}

impl Default for Config {
    /// Every default, with nothing exported and nowhere to listen.
    fn default() -> Self {
        Self {
            exports: Vec::new(),
            listeners: Vec::new(),
            poll: WaitPolicy::Adaptive,
            sessions_max: 4096,
            slots_max: 64,
            operations_max: 4096,
            inline_max: 16 << 10,
            transfer_size_max: 64 << 20,
            buffers_size_max: 256 << 20,
            lease_ms: 30_000,
            keep_alive_ms: 10_000,
            handshake_ms: 10_000,
            storage_engine: StorageEngine::Auto,
            direct_io: false,
            metrics_address: None,
            drain_ms: 10_000,
            calibrate: true,
            access: AccessConfig::default(),
            log: LogConfig::default(),
        }
    }
}

/// One export.
#[derive(Clone, Debug)]
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
    /// A client whose user id rests on its own word stays root when it says that it is. Otherwise it acts as nobody.
    pub keep_root: bool,
    /// Files are read and written past the page cache where the file system can.
    pub direct_io: bool,
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
            keep_root: false,
            direct_io: false,
        }
    }
}

/// What is exported.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum ExportKind {
    /// A directory and what is below it; absolute.
    Directory(PathBuf),
    /// Files in memory, gone when the server ends.
    Memory {
        /// Bytes of file data at most.
        size_max: u64,
    },
}

/// What carries out storage operations that would block.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum StorageEngine {
    /// io_uring where the kernel offers it, else threads.
    #[default]
    Auto,
    /// io_uring, or the server does not start.
    Uring,
    /// A pool of threads.
    Pool,
}
