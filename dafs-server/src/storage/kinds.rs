//! The kinds of exports that a configuration names, and the backend of each. Nothing else knows which backends there are.

use std::fmt;
use std::path::{Path, PathBuf};

use super::backend::{Backend, Capabilities};
use super::{mem, posix};

/// An export to be served.
#[derive(Clone, Debug)]
pub struct ExportConfig {
    /// Its name: the first part of a client's path.
    pub name: String,
    /// Where its files are.
    pub kind: ExportKind,
    /// Nothing in it can be changed.
    pub read_only: bool,
    /// Files bypass the page cache (O_DIRECT) where requests are aligned for it.
    pub direct_io: bool,
    /// Locks are shown to the host's processes: the storage sets none of its own on files that are open in it.
    pub local_locks: bool,
    /// The root of one in memory, as it is made.
    pub root: MemoryRoot,
}

/// The root of an export in memory at its start. Later it is what clients make of it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct MemoryRoot {
    /// Its owner.
    pub uid: u32,
    /// Its group.
    pub gid: u32,
    /// Its permission bits.
    pub mode: u32,
}

impl Default for MemoryRoot {
    /// As `/tmp`: anybody may make something in it, and nobody removes what is another's.
    fn default() -> Self {
        Self { uid: 0, gid: 0, mode: 0o1777 }
    }
}

/// Where an export's files are.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum ExportKind {
    /// In a directory of the server; absolute.
    Directory(PathBuf),
    /// In the server's memory, gone when it ends.
    Memory {
        /// Bytes of data and names at most.
        size_max: u64,
    },
}

impl ExportKind {
    /// What files of this kind can do.
    pub fn capabilities(&self) -> Capabilities {
        match self {
            Self::Directory(_) => posix::CAPABILITIES,
            Self::Memory { .. } => mem::CAPABILITIES,
        }
    }
}

impl ExportKind {
    /// The directory that has its files, where processes of this host and others may see them.
    pub fn directory(&self) -> Option<&Path> {
        match self {
            Self::Directory(path) => Some(path),
            Self::Memory { .. } => None,
        }
    }
}

impl fmt::Display for ExportKind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Directory(_) => "an exported directory",
            Self::Memory { .. } => "an export in memory",
        })
    }
}

impl ExportConfig {
    /// What keeps its files.
    pub(super) fn backend(&self) -> Box<dyn Backend> {
        match &self.kind {
            ExportKind::Directory(path) => Box::new(posix::DirectoryBackend {
                path: path.clone(),
                direct_io: self.direct_io,
                local_locks: self.local_locks,
            }),
            ExportKind::Memory { size_max } => {
                Box::new(mem::MemoryBackend { size_max: *size_max, root: self.root })
            }
        }
    }
}
