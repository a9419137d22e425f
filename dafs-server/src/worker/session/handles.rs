//! Handles: a session's names for what it has open.

use std::sync::Arc;

use dafs_proto::wire::{FileHandle, Status};

use crate::access::MountRights;
use crate::storage::{NodeId, Places};

/// What a session has open.
#[derive(Clone, Debug)]
pub struct OpenHandle {
    /// The node in storage.
    pub node: NodeId,
    /// What its export allows.
    pub rights: Arc<MountRights>,
    /// Data may be read through it.
    pub readable: bool,
    /// Data may be written through it.
    pub writable: bool,
    /// It is the root of an export: closing it leaves the node open.
    pub is_root: bool,
}

/// The handles of one session. A handle is a place and a generation, so one that was closed is never mistaken for a later one.
#[derive(Debug, Default)]
pub struct HandleTable(Places<OpenHandle>);

impl HandleTable {
    /// Names something open; `None` when `max` handles are open.
    pub fn insert(&mut self, open: OpenHandle, max: u32) -> Option<FileHandle> {
        if self.count() >= max as usize {
            return None;
        }
        let (index, generation) = self.0.insert(open)?;
        // Never 0, and not CHAIN_HANDLE, for generations end below that.
        Some(FileHandle(u64::from(generation + 1) << 32 | u64::from(index)))
    }

    /// What the handle names.
    #[inline]
    pub fn find(&self, handle: FileHandle) -> Result<&OpenHandle, Status> {
        let [index, generation] = split(handle);
        self.0.get(index, generation).ok_or(Status::BAD_HANDLE)
    }

    /// Forgets a handle.
    pub fn remove(&mut self, handle: FileHandle) -> Result<OpenHandle, Status> {
        let [index, generation] = split(handle);
        self.0.remove(index, generation).ok_or(Status::BAD_HANDLE)
    }

    /// Forgets all.
    pub fn take_all(&mut self) -> impl Iterator<Item = OpenHandle> + use<> {
        std::mem::take(&mut self.0).into_values()
    }

    /// Handles open.
    pub fn count(&self) -> usize {
        self.0.len()
    }
}

#[expect(clippy::cast_possible_truncation, reason = "the two halves of the handle")]
fn split(handle: FileHandle) -> [u32; 2] {
    [handle.0 as u32, ((handle.0 >> 32) as u32).wrapping_sub(1)]
}
