//! What a backend is: the files of an export, and what they can do.
//!
//! A backend opens an export ([`Backend::open`]) and states its [`Capabilities`] once. Code that depends on what an export can do asks for
//! a capability. No file outside a backend's room asks which backend it is, but for `kinds`, which makes the backend of a kind of export.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use super::file_system::FileSystem;
use super::{ExportId, LOSS, StorageConfig, StorageError};

/// What the files of an export can do, and what they take.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Capabilities {
    /// Operations may have to wait, and are done by io_uring or by threads then. Otherwise each is answered at once.
    pub needs_pool: bool,
    /// The kernel decides by the thread's credentials what a client may do: whoever serves acts as the client's user, which takes
    /// privileges. Otherwise the backend decides by the identity in the request.
    pub acts_by_credentials: bool,
    /// An open file takes descriptors of the process.
    pub has_descriptors: bool,
    /// Files go through the page cache, and may be told to bypass it.
    pub has_page_cache: bool,
    /// Processes of this host see the files, and their locks.
    pub is_seen_by_host: bool,
    /// Windows of files may be mapped, and pieces read without a system call.
    pub can_map: bool,
    /// The promise of durability. Files, the keys that they are locked by, and what was made durable are there after the server, so that
    /// locks can be kept. Otherwise all of it lasts as long as the server runs.
    pub outlives_server: bool,
    /// The root is made with the export, as the configuration says whose.
    pub makes_root: bool,
}

/// A kind of file system, set up for one export.
pub(super) trait Backend {
    /// What its files can do.
    fn capabilities(&self) -> Capabilities;

    /// Opens the export. The calling thread is to drive it.
    ///
    /// # Errors
    /// Its files cannot be served.
    fn open(&self, opening: &Opening<'_>) -> Result<Box<dyn FileSystem>, StorageError>;
}

/// What an export is opened with, besides what its backend was set up with.
pub(super) struct Opening<'a> {
    pub(super) id: ExportId,
    /// For messages.
    pub(super) name: &'a str,
    /// Where its verifier begins.
    pub(super) verifier: u64,
    pub(super) losses: &'a Losses,
    pub(super) config: &'a StorageConfig,
}

/// What failed write-backs add to the verifiers of all exports of a server that may have the same files.
#[derive(Clone, Default)]
pub(super) struct Losses(Arc<AtomicU64>);

impl Losses {
    /// What they have added so far.
    pub(super) fn total(&self) -> u64 {
        self.0.load(Ordering::Acquire)
    }

    /// Data was lost for sure.
    pub(super) fn add_loss(&self) {
        self.0.fetch_add(LOSS, Ordering::AcqRel);
    }

    /// Data may have been lost.
    pub(super) fn add_doubt(&self) {
        self.0.fetch_add(1, Ordering::AcqRel);
    }
}
