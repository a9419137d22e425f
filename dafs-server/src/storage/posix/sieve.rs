//! Windows of a file that are read, changed in parts, and written back: one write in place of many small ones ("data sieving", Thakur,
//! Gropp and Lusk, 1999).
//!
//! The gaps between the parts are written back as they were read. So nobody else may write there meanwhile. The file's
//! [`super::write_gate`] keeps out this process, and a lock (fcntl(2)) other processes. Where others have locks, the parts are written
//! separately. So is all of a file whose locks are shown to them, among which this one would be a process's. A write that is torn leaves
//! between the parts what was there.
//!
//! Where direct I/O can move each part, the window bypasses the page cache as the parts would.

use std::ops::Range;
use std::os::fd::{AsFd, BorrowedFd};
use std::sync::Arc;

use dafs_proto::transport::{HeapMemory, MemoryRef, Span};
use dafs_proto::wire::{LockKind, Status};

use super::super::paths::check_write_range;
use super::super::{LocalLocks, NowError};
use super::data::{Throttle, aligned_range, segments, write_without_waiting};
use super::local_locks::FileLocks;
use super::{Node, data, sys};

/// A window is no longer than this, bytes.
const WINDOW_SIZE_MAX: usize = 256 * 1024;

/// Unit of the page cache, bytes.
const PAGE_SIZE: u64 = 4096;

/// How a window may be written.
enum Effort {
    /// Without waiting for storage: read with these flags.
    Now(i32),
    /// On a thread.
    Wait,
}

/// Writes a window at once: `change` puts the parts into it when it is read. `Ok(None)` where it is not to be done so: a hole, the end of
/// the file, or another process is in the way.
pub(super) fn write_now(
    node: &Node,
    throttle: &mut Throttle,
    offset: u64,
    window: Span<'_>,
    change: &mut dyn FnMut(),
) -> Result<Option<usize>, NowError> {
    check_write_range(offset, window.len()).map_err(NowError::Failed)?;
    if !node.class.local {
        return Err(NowError::WouldBlock);
    }
    let Some(gate) = node.gate.as_ref().filter(|gate| !gate.shows_locks()) else { return Ok(None) };
    // Its parts may be for direct I/O, which waits. Somebody else may wait for storage there.
    let alone = if aligned_range(node, offset, window.len()) { None } else { gate.keep_out() };
    let Some(_alone) = alone else { return Err(NowError::WouldBlock) };
    let Some(file) = gate.file(node) else { return Ok(None) };
    let Some(flags) = node.class.read_now_flags() else { return Err(NowError::WouldBlock) };
    if !node.class.memory && !throttle.allows() {
        return Err(NowError::WouldBlock);
    }
    let target = SieveTarget { node, file: &file, fd: file.as_fd() };
    throttle.watch(window.len(), || rewrite(&target, offset, window, change, &Effort::Now(flags)))
}

/// This thread's memory for windows; `None` when there was none.
fn memory() -> Option<MemoryRef> {
    thread_local! {
        static MEMORY: Option<MemoryRef> =
            HeapMemory::allocate(WINDOW_SIZE_MAX).map(|memory| MemoryRef::new(Arc::new(memory)));
    }
    MEMORY.with(Clone::clone)
}

/// What [`write_waiting`] has done.
pub(super) struct Written {
    /// Bytes of the window before the first part that is not written.
    pub(super) count: usize,
    /// The window was written in place of its parts.
    pub(super) as_window: bool,
}

/// Writes the parts of a window, which lie in it one behind the other: together, or where that cannot be each by itself. Blocks.
pub(super) fn write_waiting(
    node: &Node,
    offset: u64,
    len: usize,
    parts: &[(u64, MemoryRef)],
) -> Result<Written, Status> {
    check_write_range(offset, len)?;
    if !node.opened {
        return Err(Status::BAD_HANDLE);
    }
    let fits = |(at, memory): &(u64, MemoryRef)| {
        at.checked_sub(offset).is_some_and(|from| from + memory.len() as u64 <= len as u64)
    };
    if len > WINDOW_SIZE_MAX || !parts.iter().all(fits) {
        return Err(Status::INVALID);
    }
    if let Some(count) = write_window(node, offset, len, parts)? {
        return Ok(Written { count, as_window: true });
    }
    let _writing = node.gate.as_ref().map(|gate| gate.wait_and_begin());
    let written = |count| Ok(Written { count, as_window: false });
    for (at, memory) in parts {
        let before = usize::try_from(at - offset).unwrap_or(0);
        let mut segments = segments(&[memory.span()]);
        let fd = node.fd_for(*at, &segments);
        match data::write_all(fd, &mut segments, *at, 0, |_, _, _| ()) {
            Ok(count) if count == memory.len() => {}
            Ok(count) => return written(before + count),
            Err(_) if before > 0 => return written(before),
            Err(status) => return Err(status),
        }
    }
    written(len)
}

/// Writes the parts together; `None` where that cannot be.
fn write_window(
    node: &Node,
    offset: u64,
    len: usize,
    parts: &[(u64, MemoryRef)],
) -> Result<Option<usize>, Status> {
    let Some(gate) = node.gate.as_ref().filter(|gate| node.class.local && !gate.shows_locks()) else {
        return Ok(None);
    };
    let is_direct = parts.iter().all(|(at, memory)| aligned_range(node, *at, memory.len()));
    if is_direct && !node.readable {
        return Ok(None);
    }
    let memory = memory();
    let window = memory.as_ref().and_then(|memory| memory.span().slice(0, len));
    let (Some(window), Some(file)) = (window, gate.file(node)) else { return Ok(None) };
    let Some(_alone) = gate.wait_and_keep_out() else { return Ok(None) };
    let fd = if is_direct { node.fd_for(offset, &segments(&[window])) } else { file.as_fd() };
    let mut change = || {
        for (at, memory) in parts {
            if let Some(place) =
                window.slice(usize::try_from(at - offset).unwrap_or(usize::MAX), memory.len())
            {
                place.copy_from(memory.span());
            }
        }
    };
    match rewrite(&SieveTarget { node, file: &file, fd }, offset, window, &mut change, &Effort::Wait) {
        Ok(written) => Ok(written),
        Err(NowError::WouldBlock) => Ok(None),
        Err(NowError::Failed(status)) => Err(status),
    }
}

/// A file whose windows are rewritten: what locks it, and what reads and writes it.
struct SieveTarget<'a> {
    node: &'a Node,
    file: &'a FileLocks,
    fd: BorrowedFd<'a>,
}

fn rewrite(
    target: &SieveTarget<'_>,
    offset: u64,
    window: Span<'_>,
    change: &mut dyn FnMut(),
    effort: &Effort,
) -> Result<Option<usize>, NowError> {
    let SieveTarget { node, file, fd } = *target;
    let range = offset..offset + window.len() as u64;
    let Some(_locked) = Locked::lock(file, &range) else { return Ok(None) };
    // A hole would be filled, which takes room; beyond the end there is nothing to read.
    if !has_no_hole(node, file, &range) {
        return Ok(None);
    }
    let flags = match effort {
        Effort::Now(flags) => *flags,
        Effort::Wait => 0,
    };
    match data::read_all(&mut segments(&[window]), offset, flags, |_, _| fd) {
        Ok(count) if count == window.len() => {}
        Ok(_) => return Ok(None),
        Err(errno) => {
            node.class.on_read_error(errno, flags);
            return failed(errno.into(), effort);
        }
    }
    change();
    let mut segments = segments(&[window]);
    if matches!(effort, Effort::Now(_))
        && let Some(written) = write_without_waiting(node, fd, &segments, offset)
    {
        return written.map(Some).map_err(|_| NowError::WouldBlock);
    }
    match data::write_all(fd, &mut segments, offset, 0, |_, _, _| ()) {
        Ok(count) => Ok(Some(count)),
        Err(status) => failed(status, effort),
    }
}

/// Whoever may wait writes the parts by themselves, and meets the same error where they do.
fn failed<T>(status: Status, effort: &Effort) -> Result<Option<T>, NowError> {
    match effort {
        Effort::Now(_) => Err(NowError::WouldBlock),
        Effort::Wait => {
            tracing::debug!(%status, "a window is written part by part");
            Ok(None)
        }
    }
}

/// All of the range is data. A file system in memory looks for a hole page by page to the end of the file: there the pages of the range are
/// counted, and only where some are missing, which may be swapped out, does it look.
fn has_no_hole(node: &Node, file: &FileLocks, range: &Range<u64>) -> bool {
    let first = range.start - range.start % PAGE_SIZE;
    let len = range.end.next_multiple_of(PAGE_SIZE) - first;
    let is_held = || sys::cached_pages(file.as_fd(), first, len) == Ok(len / PAGE_SIZE);
    let hole = || sys::seek_hole(file.as_fd(), range.start);
    (node.class.memory && is_held()) || hole().is_ok_and(|hole| hole >= range.end)
}

/// Other processes that lock are kept out until this is dropped.
struct Locked<'a> {
    file: &'a FileLocks,
    range: &'a Range<u64>,
}

impl<'a> Locked<'a> {
    /// `None` where one has a part, or the file system has no locks.
    fn lock(file: &'a FileLocks, range: &'a Range<u64>) -> Option<Self> {
        let is_locked = file.lock(range, LockKind::Exclusive).unwrap_or(false);
        is_locked.then_some(Self { file, range })
    }
}

impl Drop for Locked<'_> {
    fn drop(&mut self) {
        self.file.unlock(self.range);
    }
}
