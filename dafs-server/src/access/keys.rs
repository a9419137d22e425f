//! Pre-shared keys and the file that holds them.

use std::collections::HashMap;
use std::path::PathBuf;
use std::sync::Arc;

use dafs_proto::session::{Key, KeySource};
use thiserror::Error;

use crate::backend::Identity;

/// All keys of a server, by name.
#[derive(Clone, Debug, Default)]
pub struct Keyring {
    entries: HashMap<String, KeyEntry>,
}

/// One key. Its secret is never shown.
#[derive(Clone, Debug)]
pub struct KeyEntry {
    /// Name and secret.
    pub key: Key,
    /// As whom its holders act, whatever they say; `None` to go by what they say.
    pub forced: Option<ForcedIdentity>,
}

/// The identity that a key stands for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ForcedIdentity {
    /// User.
    pub uid: u32,
    /// Group.
    pub gid: u32,
}

impl ForcedIdentity {
    pub(super) fn identity(self) -> Identity {
        Identity { uid: self.uid, gid: self.gid, groups: Arc::from([]) }
    }
}

/// A key file that cannot be used.
#[derive(Debug, Error)]
pub enum KeyFileError {
    /// It cannot be read.
    #[error("cannot read the key file {path}: {source}")]
    Read {
        /// The file.
        path: PathBuf,
        /// Why.
        source: std::io::Error,
    },
}

impl Keyring {
    /// The entry of this name.
    pub fn entry(&self, name: &str) -> Option<&KeyEntry> {
        self.entries.get(name)
    }

    /// There is no key.
    pub fn is_empty(&self) -> bool {
        self.entries.is_empty()
    }

    /// Keys.
    pub fn len(&self) -> usize {
        self.entries.len()
    }

    /// Adds a key; one of the same name is replaced.
    pub fn insert(&mut self, entry: KeyEntry) {
        self.entries.insert(entry.key.name.clone(), entry);
    }
}

impl KeySource for Keyring {
    fn key(&self, name: &str) -> Option<Key> {
        self.entry(name).map(|entry| entry.key.clone())
    }
}
