//! Windows of files mapped to be sent from.
#![allow(unsafe_code, reason = "mmap and munmap")]

use std::collections::HashMap;
use std::os::fd::{AsRawFd, BorrowedFd};
use std::sync::Arc;

use dafs_proto::transport::{Memory, MemoryRef, Span};
use dafs_proto::wire::FileKind;

use super::super::NodeId;
use super::{Node, sys};

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

/// A part of a file, mapped read-only.
struct Window {
    pointer: *mut u8,
}

// SAFETY: only an address of a mapping that lives as long as the value.
unsafe impl Send for Window {}
// SAFETY: as for Send.
unsafe impl Sync for Window {}

// SAFETY: the mapping stays in place until drop.
unsafe impl Memory for Window {
    fn span(&self) -> Span<'_> {
        // SAFETY: mapped for this length while `self` lives; it may fault, so it is for the kernel only (see
        // `may_fault`), which answers writes with EFAULT.
        unsafe { Span::from_raw(self.pointer, WINDOW_SIZE) }
    }

    fn may_fault(&self) -> bool {
        true
    }
}

impl Drop for Window {
    fn drop(&mut self) {
        // SAFETY: mapped in `map` with this length, unmapped once.
        unsafe { libc::munmap(self.pointer.cast(), WINDOW_SIZE) };
    }
}

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
    /// See [`super::super::Storage::map`]. `None` also where the kernel cannot tell whether the data is in memory.
    pub(super) fn map(&mut self, id: NodeId, node: &Node, offset: u64, len: usize) -> Option<MemoryRef> {
        if !(MAP_SIZE_MIN..=STRIDE).contains(&len)
            || node.direct.is_some()
            || node.kind != FileKind::File
            || !node.readable
        {
            return None;
        }
        let fd = node.buffered_fd();
        let size = sys::lseek(fd, 0, libc::SEEK_END).ok()?;
        let len = (len as u64).min(size.checked_sub(offset)?);
        if len == 0 || !at_hand(node, fd, offset, len) {
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
        let memory: Arc<dyn Memory> = Arc::new(map(fd, number * WINDOW_STRIDE)?);
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

/// All pages of the range are in the page cache.
fn at_hand(node: &Node, fd: BorrowedFd<'_>, offset: u64, len: u64) -> bool {
    if node.class.memory {
        return true;
    }
    let first = offset / PAGE_SIZE;
    let end = (offset + len).div_ceil(PAGE_SIZE);
    sys::cached_pages(fd, first * PAGE_SIZE, (end - first) * PAGE_SIZE) == Ok(end - first)
}

fn map(fd: BorrowedFd<'_>, offset: u64) -> Option<Window> {
    let offset = libc::off_t::try_from(offset).ok()?;
    // SAFETY: a new mapping at an address that the kernel chooses.
    let pointer = unsafe {
        libc::mmap(
            std::ptr::null_mut(),
            WINDOW_SIZE,
            libc::PROT_READ,
            libc::MAP_SHARED,
            fd.as_raw_fd(),
            offset,
        )
    };
    (pointer != libc::MAP_FAILED).then_some(Window { pointer: pointer.cast() })
}
