//! Handles: a session's names for what it has open.

use std::sync::Arc;

use dafs_proto::wire::{FileHandle, Status};

use crate::access::MountRights;
use crate::storage::NodeId;

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

/// The handles of one session. A handle is an index and a generation, so one that was closed is never mistaken for a later one.
#[derive(Debug, Default)]
pub struct HandleTable {
    entries: Vec<Entry>,
    free: Vec<u32>,
}

#[derive(Debug)]
struct Entry {
    generation: u32,
    open: Option<OpenHandle>,
}

impl HandleTable {
    /// Names something open; `None` when `max` handles are open.
    pub fn insert(&mut self, open: OpenHandle, max: u32) -> Option<FileHandle> {
        let index = match self.free.pop() {
            Some(index) => index,
            None => {
                let index = u32::try_from(self.entries.len()).ok().filter(|index| *index < max)?;
                self.entries.push(Entry { generation: 0, open: None });
                index
            }
        };
        let entry = &mut self.entries[index as usize];
        // Below 2^31, so that no handle is CHAIN_HANDLE, and never 0.
        entry.generation = (entry.generation + 1) & 0x7fff_ffff;
        entry.generation = entry.generation.max(1);
        entry.open = Some(open);
        Some(FileHandle(u64::from(entry.generation) << 32 | u64::from(index)))
    }

    /// What the handle names.
    #[inline]
    pub fn find(&self, handle: FileHandle) -> Result<&OpenHandle, Status> {
        let [index, generation] = split(handle);
        match self.entries.get(index as usize) {
            Some(Entry { generation: current, open: Some(open) }) if *current == generation => Ok(open),
            _ => Err(Status::BAD_HANDLE),
        }
    }

    /// Forgets a handle.
    pub fn remove(&mut self, handle: FileHandle) -> Result<OpenHandle, Status> {
        let [index, generation] = split(handle);
        let entry = self.entries.get_mut(index as usize).filter(|entry| entry.generation == generation);
        let open = entry.and_then(|entry| entry.open.take()).ok_or(Status::BAD_HANDLE)?;
        self.free.push(index);
        Ok(open)
    }

    /// Forgets all.
    pub fn drain(&mut self) -> impl Iterator<Item = OpenHandle> + '_ {
        self.free.clear();
        self.entries.drain(..).filter_map(|entry| entry.open)
    }

    /// Handles open.
    pub fn len(&self) -> usize {
        self.entries.len() - self.free.len()
    }

    /// None is open.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }
}

#[expect(clippy::cast_possible_truncation, reason = "the two halves of the handle")]
fn split(handle: FileHandle) -> [u32; 2] {
    [handle.0 as u32, (handle.0 >> 32) as u32]
}
