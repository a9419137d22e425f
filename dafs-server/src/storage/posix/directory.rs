//! A directory as a backend.

use std::fs::File;
use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64};

use dafs_proto::wire::FileKind;

use super::super::StorageError;
use super::super::backend::{Backend, Capabilities, Opening};
use super::super::credentials::Identities;
use super::super::file_system::FileSystem;
use super::class::Classes;
use super::{ExportState, Node, PosixExport, needs, sys};

/// What files of a directory can do.
pub(in crate::storage) const CAPABILITIES: Capabilities = Capabilities {
    needs_pool: true,
    acts_by_credentials: true,
    has_descriptors: true,
    has_page_cache: true,
    is_seen_by_host: true,
    can_map: true,
    outlives_server: true,
    makes_root: false,
};

/// A directory of the server.
pub(in crate::storage) struct DirectoryBackend {
    /// Absolute.
    pub(in crate::storage) path: PathBuf,
    /// Files bypass the page cache where requests are aligned for it.
    pub(in crate::storage) direct_io: bool,
    /// Files that are open in it are locked for the host's processes.
    pub(in crate::storage) local_locks: bool,
}

impl Backend for DirectoryBackend {
    fn capabilities(&self) -> Capabilities {
        CAPABILITIES
    }

    fn open(&self, opening: &Opening<'_>) -> Result<Box<dyn FileSystem>, StorageError> {
        self.open_directory(opening).map(|export| Box::new(export) as Box<dyn FileSystem>)
    }
}

impl DirectoryBackend {
    /// Opens the directory.
    pub(in crate::storage) fn open_directory(
        &self,
        opening: &Opening<'_>,
    ) -> Result<PosixExport, StorageError> {
        let named = || (opening.name.to_owned(), self.path.clone());
        let failed = |error: io::Error| {
            let (name, path) = named();
            StorageError::Root { name, path, error }
        };
        let root = OwnedFd::from(File::open(&self.path).map_err(failed)?);
        if let Some(missing) = needs::missing(root.as_fd()) {
            let (name, path) = named();
            return Err(StorageError::Unavailable { name, path, missing });
        }
        let attributes = sys::fstat(root.as_fd()).map_err(|errno| failed(errno.into()))?;
        if attributes.kind != FileKind::Directory {
            return Err(failed(io::Error::from_raw_os_error(libc::ENOTDIR)));
        }
        let classes = Classes::default();
        let class = classes.of(root.as_fd(), attributes.fs_id);
        if class.kernel {
            let (name, path) = named();
            return Err(StorageError::Kernel { name, path });
        }
        // As whom it was opened decides nothing for clients.
        let root = Arc::new(Node::new(root, &attributes, class, false));
        let state = ExportState {
            root,
            identities: Identities::of_process(),
            classes,
            verifier: AtomicU64::new(opening.verifier),
            losses: opening.losses.clone(),
            direct_io: self.direct_io,
            direct_io_noted: AtomicBool::new(false),
            local_locks: self.local_locks,
        };
        Ok(PosixExport::view(Arc::new(state), opening.id, opening.config.loop_keeps_identity))
    }
}

/// An export of this directory, driven by this thread alone.
#[cfg(test)]
#[allow(clippy::unwrap_used, reason = "for tests")]
pub(in crate::storage) fn open_for_tests(path: &std::path::Path, direct_io: bool) -> PosixExport {
    let (losses, config) = Default::default();
    let opening =
        Opening { id: super::ExportId(0), name: "data", verifier: 1, losses: &losses, config: &config };
    let backend = DirectoryBackend { path: path.to_owned(), direct_io, local_locks: false };
    backend.open_directory(&opening).unwrap()
}
