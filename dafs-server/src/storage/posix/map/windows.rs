//! Windows of files mapped to be sent from.

use std::collections::HashMap;
use std::os::fd::BorrowedFd;
use std::sync::Arc;

use dafs_proto::transport::{Memory, MemoryRef};
use dafs_proto::wire::FileKind;

use super::super::{Node, sys};
use super::holes::held_from;
use super::mapping::Window;
use crate::storage::NodeId;

/// Windows begin at multiples of this, bytes.
const WINDOW_STRIDE: u64 = STRIDE as u64;
const STRIDE: usize = 16 * 1024 * 1024;

/// Two strides, so that a range of one stride lies in one window wherever it begins.
const WINDOW_SIZE: usize = 2 * STRIDE;

/// Windows kept at a time (512 MiB of addresses); the least recently used goes first.
const WINDOWS_MAX: usize = 16;

/// Below this, copying is cheaper than faulting pages in, bytes.
pub(super) const MAP_SIZE_MIN: usize = 32 * 1024;

const PAGE_SIZE: u64 = 4096;

/// The windows of an export.
#[derive(Default)]
pub(super) struct Windows {
    windows: HashMap<(NodeId, u64), Cached>,
    uses: u64,
}

struct Cached {
    memory: Arc<dyn Memory>,
    used: u64,
}

impl Windows {
    /// See [`crate::storage::Storage::map`]. `None` also where the kernel cannot tell whether the data is in memory.
    pub(super) fn map(&mut self, id: NodeId, node: &Node, offset: u64, len: usize) -> Option<MemoryRef> {
        if !(MAP_SIZE_MIN..=STRIDE).contains(&len)
            || node.direct_io.is_some()
            || node.kind != FileKind::File
            || !node.readable
        {
            return None;
        }
        let fd = node.buffered_fd();
        let attributes = sys::fstat(fd).ok()?;
        let len = (len as u64).min(attributes.size.checked_sub(offset)?);
        let has_holes = attributes.allocated < attributes.size;
        if len == 0 || !at_hand(node, fd, has_holes.then_some(attributes.size), offset, len) {
            return None;
        }
        let number = offset / WINDOW_STRIDE;
        let window = self.window(id, number, fd)?;
        let start = usize::try_from(offset - number * WINDOW_STRIDE).ok()?;
        MemoryRef::new(window).slice(start, usize::try_from(len).ok()?)
    }

    fn window(&mut self, id: NodeId, number: u64, fd: BorrowedFd<'_>) -> Option<Arc<dyn Memory>> {
        self.uses += 1;
        if let Some(cached) = self.windows.get_mut(&(id, number)) {
            cached.used = self.uses;
            return Some(Arc::clone(&cached.memory));
        }
        if self.windows.len() >= WINDOWS_MAX {
            let oldest = self.windows.iter().min_by_key(|(_, cached)| cached.used).map(|(key, _)| *key);
            oldest.and_then(|key| self.windows.remove(&key));
        }
        let memory: Arc<dyn Memory> = Arc::new(Window::new(fd, number * WINDOW_STRIDE, WINDOW_SIZE)?);
        self.windows.insert((id, number), Cached { memory: Arc::clone(&memory), used: self.uses });
        Some(memory)
    }

    /// Forgets a node's windows; those in use stay mapped until they are dropped.
    pub(super) fn close(&mut self, id: NodeId) {
        if !self.windows.is_empty() {
            self.windows.retain(|(node, _), _| *node != id);
        }
    }
}

/// All pages of the range are in the page cache. `sparse`: the size of a file that has holes. Where the file system lives in memory, a
/// hole that is touched is filled: there it has none.
fn at_hand(node: &Node, fd: BorrowedFd<'_>, sparse: Option<u64>, offset: u64, len: u64) -> bool {
    if node.class.memory {
        let start = offset - offset % PAGE_SIZE;
        let wanted = offset + len - start;
        return sparse.is_none_or(|size| held_from(node, start, wanted, size) == Some(wanted));
    }
    let first = offset / PAGE_SIZE;
    let end = (offset + len).div_ceil(PAGE_SIZE);
    sys::cached_pages(fd, first * PAGE_SIZE, (end - first) * PAGE_SIZE) == Ok(end - first)
}
