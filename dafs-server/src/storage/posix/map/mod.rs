//! Windows of files that are mapped: to be sent from (`windows`), and to be read again and again without a system call (`hot`). It is what
//! the capability to map means for a directory. Only `mapping` touches mapped files, and it survives their truncation.
//!
//! Reads and writes by system calls are none of its business. It imports only the open file, and the record of its holes.

mod holes;
mod hot;
mod locked;
mod mapping;
mod windows;

use std::os::fd::BorrowedFd;
use std::sync::Arc;
use std::sync::atomic::Ordering;

use dafs_proto::transport::{MemoryRef, Span};

use super::Node;
use crate::storage::NodeId;
use hot::HotWindows;
use mapping::Mapping;
use windows::Windows;

/// What one loop has mapped of an export.
#[derive(Default)]
pub(super) struct Mapped {
    sent: Windows,
    hot: HotWindows,
}

impl Mapped {
    /// Reads from mapped windows; `None`, with the memory filled in part or not at all, when a system call has to.
    #[inline]
    pub(super) fn read(&mut self, id: NodeId, node: &Node, offset: u64, into: &[Span<'_>]) -> Option<usize> {
        if has_hot_windows(node) { self.hot.read(id, node, offset, into) } else { None }
    }

    /// See [`crate::storage::Storage::read_pieces`].
    pub(super) fn read_pieces<'a>(
        &mut self,
        id: NodeId,
        node: &Node,
        total: usize,
        piece: &dyn Fn(usize) -> Option<(u64, Span<'a>)>,
    ) -> usize {
        if has_hot_windows(node) { self.hot.read_pieces(id, node, total, piece) } else { 0 }
    }

    /// See [`crate::storage::Storage::map`].
    pub(super) fn map(&mut self, id: NodeId, node: &Node, offset: u64, len: usize) -> Option<MemoryRef> {
        self.sent.map(id, node, offset, len)
    }

    /// The file was punched or cut.
    pub(super) fn forget_file(&mut self, node: &Node) {
        self.hot.forget_file(node);
    }

    /// What a node has mapped keeps its pages in memory: they are to go.
    pub(super) fn let_go(&mut self, id: NodeId, node: &Node) {
        self.sent.close(id);
        if !node.class.memory {
            self.hot.close(id);
        }
    }

    /// The node is closed.
    pub(super) fn close(&mut self, id: NodeId, node: &Node) {
        if node.readable {
            self.sent.close(id);
        }
        if node.hot.load(Ordering::Relaxed) {
            self.hot.close(id);
        }
    }

    #[cfg(test)]
    pub(super) fn hot_count(&self) -> usize {
        self.hot.mapped_count()
    }
}

#[inline]
fn has_hot_windows(node: &Node) -> bool {
    node.class.memory || node.class.lockable
}

/// The beginning of a file as memory that may fault: for system calls only.
pub(crate) fn map_file(file: BorrowedFd<'_>, len: usize) -> Option<MemoryRef> {
    Some(MemoryRef::new(Arc::new(Mapping::new(file, 0, len)?)))
}
