//! Handles: a session's names for what it has open.

use std::collections::HashMap;
use std::sync::Arc;

use dafs_proto::budget::Charge;
use dafs_proto::wire::{FileHandle, OpenFlags, Status};

use crate::access::MountRights;
use crate::config::Config;
use crate::shared::handed::HandedOver;
use crate::shared::shares::Share;
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
    /// How its file was opened, by this or by whoever shared it.
    pub(crate) opened: OpenFlags,
    /// It is the root of an export: closing it leaves the node open.
    pub is_root: bool,
    /// What it lets others do with the file, as long as it is there; of a token also while that is.
    pub(crate) share: Option<Arc<Share>>,
}

impl OpenHandle {
    /// Descriptors of this process that a handle takes at most: two where files are opened for direct I/O and for the page cache, and one
    /// more that windows of a file are written through. Files in memory, and roots, which are open anyway, take none.
    pub(crate) fn descriptors(&self, settings: &Config) -> u64 {
        let export = settings.exports.get(usize::from(self.node.export.0)).filter(|_| !self.is_root);
        let Some(export) = export.filter(|export| export.kind.capabilities().has_descriptors) else {
            return 0;
        };
        let is_direct = export.direct_io || settings.direct_io || self.opened.contains(OpenFlags::DIRECT_IO);
        1 + u64::from(is_direct) + u64::from(self.opened.contains(OpenFlags::WRITE))
    }
}

/// The handles of one session. A handle is a place and a generation, so one that was closed is never mistaken for a later one.
#[derive(Debug, Default)]
pub struct HandleTable {
    open: Places<OpenHandle>,
    /// Closed, and stay open until the operations that use them have ended.
    leaving: Vec<Leaving>,
    /// Everybody who holds a place for a handle that is not open yet has one of these beside the table.
    places: Arc<()>,
    /// Of these the client has descriptors.
    handed: HashMap<FileHandle, HandedOver>,
}

/// What an open is given before storage is asked, so that nothing refuses it once it has made or cut a file. Given back when dropped.
#[derive(Debug)]
pub(crate) struct Reserved {
    /// A place in the table.
    pub(crate) place: Arc<()>,
    /// What the open file takes.
    pub(crate) descriptors: Charge,
}

/// A closed handle that operations still use.
#[derive(Debug)]
struct Leaving {
    handle: FileHandle,
    open: OpenHandle,
    /// The last operation that was parked before it was closed.
    last: u32,
}

impl HandleTable {
    /// Keeps a place for one more handle until it is dropped; `None` when `max` are open or kept.
    pub(crate) fn reserve(&self, max: u32) -> Option<Arc<()>> {
        self.has_room(max).then(|| Arc::clone(&self.places))
    }

    fn has_room(&self, max: u32) -> bool {
        let reserved = Arc::strong_count(&self.places) - 1;
        self.count() + reserved < max as usize
    }

    /// Names something open; `None` when `max` handles are open, or places are kept for them.
    pub fn insert(&mut self, open: OpenHandle, max: u32) -> Option<FileHandle> {
        if !self.has_room(max) {
            return None;
        }
        let (index, generation) = self.open.insert(open)?;
        // Never 0, and not CHAIN_HANDLE, for generations end below that.
        Some(FileHandle(u64::from(generation + 1) << 32 | u64::from(index)))
    }

    /// What the handle names.
    #[inline]
    pub fn find(&self, handle: FileHandle) -> Result<&OpenHandle, Status> {
        let [index, generation] = split(handle);
        self.open.get(index, generation).ok_or(Status::BAD_HANDLE)
    }

    /// Forgets a handle.
    pub fn remove(&mut self, handle: FileHandle) -> Result<OpenHandle, Status> {
        let [index, generation] = split(handle);
        self.take_back(handle);
        self.open.remove(index, generation).ok_or(Status::BAD_HANDLE)
    }

    /// The client has a descriptor of what the handle names, until the handle is closed.
    pub(crate) fn hand(&mut self, handle: FileHandle, handed: HandedOver) {
        self.handed.insert(handle, handed);
    }

    /// It counts as handed over no more.
    pub(crate) fn take_back(&mut self, handle: FileHandle) -> Option<HandedOver> {
        if self.handed.is_empty() { None } else { self.handed.remove(&handle) }
    }

    /// What the handle of an operation in flight names, also when it was closed meanwhile.
    pub fn find_in_use(&self, handle: FileHandle) -> Result<&OpenHandle, Status> {
        let leaving = || self.leaving.iter().find(|leaving| leaving.handle == handle);
        self.find(handle).or_else(|status| Ok(&leaving().ok_or(status)?.open))
    }

    /// The same for what an operation begins that was parked as number `parked`: not when the handle was closed before that.
    pub fn find_as_of(&self, handle: FileHandle, parked: u32) -> Result<&OpenHandle, Status> {
        let was_there = |leaving: &&Leaving| {
            leaving.handle == handle && leaving.last.wrapping_sub(parked).cast_signed() >= 0
        };
        let leaving = || self.leaving.iter().find(was_there);
        self.find(handle).or_else(|status| Ok(&leaving().ok_or(status)?.open))
    }

    /// Keeps what was closed for the operations that use it, the last of which was parked as number `last`.
    pub fn leave(&mut self, handle: FileHandle, open: OpenHandle, last: u32) {
        self.leaving.push(Leaving { handle, open, last });
    }

    /// Some are closed, and in use: this one, or any.
    #[inline]
    pub fn has_leaving(&self, handle: Option<FileHandle>) -> bool {
        self.leaving.iter().any(|leaving| handle.is_none_or(|handle| handle == leaving.handle))
    }

    /// Takes out those that were closed and are no longer in use.
    pub fn take_left(&mut self, is_in_use: impl Fn(FileHandle) -> bool) -> Vec<OpenHandle> {
        let left = self.leaving.extract_if(.., |leaving| !is_in_use(leaving.handle));
        left.map(|leaving| leaving.open).collect()
    }

    /// Forgets all.
    pub fn take_all(&mut self) -> impl Iterator<Item = OpenHandle> + use<> {
        let Self { open, leaving, .. } = std::mem::take(self);
        open.into_values().chain(leaving.into_iter().map(|leaving| leaving.open))
    }

    /// Handles open.
    pub fn count(&self) -> usize {
        self.open.len() + self.leaving.len()
    }
}

#[expect(clippy::cast_possible_truncation, reason = "the two halves of the handle")]
fn split(handle: FileHandle) -> [u32; 2] {
    [handle.0 as u32, ((handle.0 >> 32) as u32).wrapping_sub(1)]
}
