//! A read or write in the ring, continued until it is whole.
#![allow(unsafe_code, reason = "moves segments between threads with the memory they point into")]

use std::sync::Arc;
use std::sync::atomic::Ordering;

use dafs_proto::wire::{Stability, Status};

use super::super::FsOp;
use super::super::file_system::{RingCall, RingNext, RingOp};
use super::super::paths::{check_read_range, check_write_range};
use super::data::{advance, is_full, note_refused, owned_segments, total, write_flags};
use super::write_gate::{WriteGate, Writing};
use super::{ExportState, Node, Task, sys};

/// A read or write with everything it needs.
pub(super) struct RingTransfer {
    shared: Arc<ExportState>,
    node: Arc<Node>,
    /// Keeps alive what the segments point into.
    _op: FsOp,
    segments: Vec<libc::iovec>,
    /// Segments before this one are done.
    first: usize,
    offset: u64,
    len: usize,
    done: usize,
    write: bool,
    stability: Stability,
    interrupted_count: u32,
    /// Storage had no room for a durable write: it is written once more, without being durable, to learn whether there is.
    refused: Option<Status>,
    /// Until it is over.
    writing: Option<Writing<Arc<WriteGate>>>,
}

// SAFETY: the segments point into memory that the operation owns, and which is Send.
unsafe impl Send for RingTransfer {}

/// Times that the kernel may ask to begin again without any progress.
const INTERRUPTED_MAX: u32 = 16;

impl TryFrom<Task> for RingTransfer {
    type Error = Box<Task>;

    /// Given back where only a thread can do it all.
    fn try_from(task: Task) -> Result<Self, Box<Task>> {
        let name_unsynced = task.node.name_unsynced.load(Ordering::Acquire);
        let (memory, offset, write, stability) = match &task.op {
            FsOp::Read { offset, into, .. } => (into, *offset, false, Stability::Unstable),
            FsOp::Write { stability: Stability::FileSync, .. } if name_unsynced => {
                return Err(Box::new(task));
            }
            FsOp::Write { offset, from, stability, .. } => (from, *offset, true, *stability),
            _ => return Err(Box::new(task)),
        };
        let segments = owned_segments(memory);
        let len = total(&segments);
        let valid = if write { check_write_range(offset, len) } else { check_read_range(offset, len) };
        if !task.node.opened || len == 0 || valid.is_err() {
            return Err(Box::new(task));
        }
        let writing = match &task.node.gate {
            Some(gate) if write => match WriteGate::begin(Arc::clone(gate)) {
                Some(writing) => Some(writing),
                // Somebody keeps writers out: a thread waits for him.
                None => return Err(Box::new(task)),
            },
            _ => None,
        };
        let Task { shared, node, op, .. } = task;
        let (first, done, interrupted_count) = (0, 0, 0);
        Ok(Self {
            shared,
            node,
            _op: op,
            segments,
            first,
            offset,
            len,
            done,
            write,
            stability,
            interrupted_count,
            refused: None,
            writing,
        })
    }
}

impl RingOp for RingTransfer {
    fn call(&self) -> RingCall<'_> {
        let segments = &self.segments[self.first..];
        let offset = self.offset + self.done as u64;
        let fd = self.node.fd_for(offset, segments);
        let stability = if self.refused.is_some() { Stability::Unstable } else { self.stability };
        let segments = &segments[..segments.len().min(sys::IOV_MAX)];
        RingCall { fd, writes: self.write, segments, offset, flags: write_flags(&self.node, stability) }
    }

    fn is_last(&self) -> bool {
        Arc::strong_count(&self.node) == 1
    }

    fn complete(&mut self, result: i32) -> RingNext {
        let next = self.next(result);
        if matches!(next, RingNext::End(_)) {
            // It may be left to a thread to be dropped, and all threads may wait for writers to end.
            self.writing = None;
        }
        next
    }
}

impl RingTransfer {
    fn next(&mut self, result: i32) -> RingNext {
        if let Some(status) = self.refused {
            return self.written_again(status, result);
        }
        match usize::try_from(result) {
            Ok(count) => {
                self.done += count;
                if count == 0 || self.done >= self.len {
                    return RingNext::End(Ok(self.done));
                }
                self.first = advance(&mut self.segments, self.first, count);
                self.interrupted_count = 0;
                RingNext::Continue
            }
            Err(_) => self.failed(-result),
        }
    }

    fn failed(&mut self, errno: i32) -> RingNext {
        if self.is_interrupted(errno) {
            return RingNext::Continue;
        }
        let status = Status::from_errno(errno);
        if self.write && self.stability != Stability::Unstable && is_full(status) && self.node.class.local {
            self.refused = Some(status);
            return RingNext::Continue;
        }
        self.refused_for(status, false)
    }

    /// Whether there was room shows what the refusal was of.
    fn written_again(&mut self, status: Status, result: i32) -> RingNext {
        if self.is_interrupted(-result) {
            return RingNext::Continue;
        }
        self.refused_for(status, result > 0)
    }

    fn is_interrupted(&mut self, errno: i32) -> bool {
        let again = matches!(errno, libc::EAGAIN | libc::EINTR) && self.interrupted_count < INTERRUPTED_MAX;
        self.interrupted_count += u32::from(again);
        again
    }

    fn refused_for(&self, status: Status, has_room: bool) -> RingNext {
        if self.write {
            note_refused(&self.shared, &self.node, self.stability, status, || has_room);
        }
        // What fitted is written; the caller meets the error with the rest.
        let is_short = self.write && (is_full(status) || status == Status::TOO_LARGE) && self.done > 0;
        RingNext::End(if is_short { Ok(self.done) } else { Err(status) })
    }
}
