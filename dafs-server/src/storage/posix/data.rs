//! File data: at once from the page cache, or with waiting on a thread.
#![allow(unsafe_code, reason = "segments of client memory are handed to the kernel")]

use std::collections::HashMap;
use std::os::fd::{AsFd, BorrowedFd};
use std::sync::atomic::Ordering;
use std::sync::{Arc, LazyLock, Mutex, Weak};
use std::time::{Duration, Instant};

use dafs_proto::transport::{MemoryRef, Span};
use dafs_proto::wire::{FileKind, SeekWhat, Stability, Status};
use rustix::fs::{FallocateFlags, OFlags, SeekFrom, fallocate, fdatasync, fsync, ftruncate, seek, syncfs};
use smallvec::SmallVec;

use super::super::copy::CopyRange;
use super::super::paths::{OFFSET_MAX, check_len, check_read_range, check_write_range};
use super::super::pool::lock;
use super::super::{FsOp, FsReply, NowError};
use super::copy::copy;
use super::hint::advise;
use super::resolve::Scope;
#[cfg(test)]
use super::steps;
use super::sys::{self, Errno, retry};
use super::write_gate::{WriteGate, Writing};
use super::{ExportState, Node};

/// Unit of the page cache, bytes.
const PAGE_SIZE: u64 = 4096;

/// As much of a file is looked for in the page cache to know of both its ends, bytes.
const LOOKED_AT_TOGETHER_MAX: u64 = 64 * PAGE_SIZE;

/// Segments for one call.
pub(super) type Segments = SmallVec<[libc::iovec; 8]>;

/// Segments of spans.
pub(super) fn segments(spans: &[Span<'_>]) -> Segments {
    spans.iter().map(|span| libc::iovec { iov_base: span.as_ptr().cast(), iov_len: span.len() }).collect()
}

/// Takes `count` bytes off the front of `segments`, from the segment `first` on; returns the new first.
pub(in crate::storage) fn advance(segments: &mut [libc::iovec], mut first: usize, mut count: usize) -> usize {
    while let Some(segment) = segments.get_mut(first) {
        if count < segment.iov_len {
            segment.iov_base = segment.iov_base.cast::<u8>().wrapping_add(count).cast();
            segment.iov_len -= count;
            break;
        }
        count -= segment.iov_len;
        first += 1;
    }
    first
}

pub(super) fn total(segments: &[libc::iovec]) -> usize {
    segments.iter().map(|segment| segment.iov_len).sum()
}

/// See [`super::super::Storage::read_now`]. Where only a part is at hand, all of it is left to an [`FsOp::Read`].
pub(super) fn read_now(node: &Node, offset: u64, into: &[Span<'_>]) -> Result<usize, NowError> {
    let mut segments = segments(into);
    let len = total(&segments);
    check_read_range(offset, len).map_err(NowError::Failed)?;
    if aligned_range(node, offset, len) {
        return Err(NowError::WouldBlock);
    }
    let Some(flags) = node.class.read_now_flags() else { return Err(NowError::WouldBlock) };
    read_all(&mut segments, offset, flags, |_, _| node.buffered_fd()).map_err(|errno| {
        match node.class.on_read_error(errno, flags) {
            true => NowError::WouldBlock,
            false => NowError::Failed(errno.into()),
        }
    })
}

/// Reads everything up to the end of the file, in as many calls as that takes; `fd` serves what is left.
#[inline]
pub(super) fn read_all<'f>(
    segments: &mut [libc::iovec],
    offset: u64,
    flags: i32,
    fd: impl Fn(u64, &[libc::iovec]) -> BorrowedFd<'f>,
) -> Result<usize, Errno> {
    let len = total(segments);
    let (mut done, mut first) = (0, 0);
    loop {
        let (at, rest) = (offset + done as u64, &segments[first..]);
        // SAFETY: the memory is mapped and writable for the time of the operation.
        let count = unsafe { sys::preadv2(fd(at, rest), rest, at, flags) }?;
        done += count;
        if count == 0 || done == len {
            return Ok(done);
        }
        first = advance(segments, first, count);
    }
}

/// Notices when writing into the page cache makes the writer wait, and keeps the loop from it for a while.
#[derive(Default)]
pub(super) struct Throttle {
    until: Option<Instant>,
}

/// A write that took longer was made to wait, for write-back or for the journal.
const WRITE_SLOW: Duration = Duration::from_millis(4);
/// Longer than the kernel makes a writer pause.
const THROTTLE_TIME: Duration = Duration::from_millis(250);

impl Throttle {
    /// Writers are not made to wait now.
    pub(super) fn allows(&mut self) -> bool {
        !self.active(Instant::now())
    }

    /// Notices how long writing so many bytes takes.
    pub(super) fn watch<T>(&mut self, bytes: usize, write: impl FnOnce() -> T) -> T {
        let begun = Instant::now();
        let result = write();
        self.note(begun, bytes);
        result
    }

    fn active(&mut self, now: Instant) -> bool {
        match self.until {
            None => false,
            Some(until) if now < until => true,
            Some(_) => {
                self.until = None;
                false
            }
        }
    }

    fn note(&mut self, begun: Instant, bytes: usize) {
        let now = Instant::now();
        // 1 µs per KiB: the slowest copying that is not waiting.
        if now - begun > WRITE_SLOW + Duration::from_micros(bytes as u64 / 1024) {
            self.until = Some(now + THROTTLE_TIME);
        }
    }
}

/// See [`super::super::Storage::write_now`].
pub(super) fn write_now(
    node: &Node,
    throttle: &mut Throttle,
    offset: u64,
    from: &[Span<'_>],
) -> Result<usize, NowError> {
    let mut segments = segments(from);
    let len = total(&segments);
    check_write_range(offset, len).map_err(NowError::Failed)?;
    let fd = node.buffered_fd();
    let gate = node.gate.as_deref();
    let _writing = gate.map(|gate| WriteGate::begin(gate).ok_or(NowError::WouldBlock)).transpose()?;
    if node.class.memory {
        return write_all(fd, &mut segments, offset, 0, |_, _, _| ()).map_err(NowError::Failed);
    }
    if !node.class.local || aligned_range(node, offset, len) {
        return Err(NowError::WouldBlock);
    }
    if let Some(written) = write_without_waiting(node, fd, &segments, offset) {
        return written;
    }
    // Into the page cache without a promise not to wait (ext4): only where no page must be read first, and not while
    // writers are slowed down.
    let begun = Instant::now();
    if throttle.active(begun) || !edges_at_hand(node, offset, len as u64) {
        return Err(NowError::WouldBlock);
    }
    let result = write_all(fd, &mut segments, offset, 0, |_, _, _| ());
    throttle.note(begun, len);
    result.map_err(NowError::Failed)
}

/// Writes all of it where the kernel promises not to wait; `None` where it makes no such promise.
pub(super) fn write_without_waiting(
    node: &Node,
    fd: BorrowedFd<'_>,
    segments: &[libc::iovec],
    offset: u64,
) -> Option<Result<usize, NowError>> {
    if node.class.memory || !node.class.nowait_write.load(Ordering::Relaxed) {
        return None;
    }
    // SAFETY: whoever calls this has the segments mapped for its time.
    match unsafe { sys::pwritev2(fd, segments, Some(offset), libc::RWF_NOWAIT) } {
        Ok(count) if count == total(segments) => Some(Ok(count)),
        // The rest is written again with all of it.
        Ok(_) | Err(Errno::AGAIN) => Some(Err(NowError::WouldBlock)),
        // Some say so in other words (F2FS), and a filter may forbid the call. What is wrong with the write itself shows again.
        Err(Errno::OPNOTSUPP | Errno::INVAL | Errno::NOSYS | Errno::PERM) => {
            node.class.nowait_write.store(false, Ordering::Relaxed);
            None
        }
        Err(errno) => Some(Err(NowError::Failed(errno.into()))),
    }
}

/// Pages that a write fills in part are in the page cache, or lie beyond the end of the file.
fn edges_at_hand(node: &Node, offset: u64, len: u64) -> bool {
    let end = offset + len;
    let (head, tail) = (!offset.is_multiple_of(PAGE_SIZE), !end.is_multiple_of(PAGE_SIZE));
    if !head && !tail {
        return true;
    }
    let page = |at: u64| at - at % PAGE_SIZE;
    let are_cached =
        |start: u64, len: u64| sys::cached_pages(node.buffered_fd(), start, len) == Ok(len / PAGE_SIZE);
    // Mostly one look tells of both.
    let whole = end.next_multiple_of(PAGE_SIZE) - page(offset);
    if whole <= LOOKED_AT_TOGETHER_MAX && are_cached(page(offset), whole) {
        return true;
    }
    let Some(size) = node.end_now() else { return false };
    let at_hand = |start: u64| start >= size || are_cached(start, PAGE_SIZE);
    (!head || at_hand(page(offset))) && (!tail || page(end) == page(offset) && head || at_hand(page(end)))
}

/// Direct I/O can do it in memory that suits: the caller's, or what it takes when told to wait.
pub(super) fn aligned_range(node: &Node, offset: u64, len: usize) -> bool {
    node.direct_io.as_ref().is_some_and(|direct| {
        let unit = direct.offset_alignment;
        len > 0 && offset.is_multiple_of(unit) && (len as u64).is_multiple_of(unit)
    })
}

impl Node {
    /// Serves a range in this memory: with O_DIRECT where the range is aligned for it.
    pub(super) fn fd_for(&self, offset: u64, segments: &[libc::iovec]) -> BorrowedFd<'_> {
        let Some(direct) = &self.direct_io else { return self.fd.as_fd() };
        let unit = direct.offset_alignment;
        let is_aligned = offset.is_multiple_of(unit)
            && segments.iter().all(|segment| {
                (segment.iov_len as u64).is_multiple_of(unit)
                    && segment.iov_base.addr().is_multiple_of(direct.memory_alignment)
            });
        if is_aligned { self.fd.as_fd() } else { direct.buffered.as_fd() }
    }
}

/// Segments of memory that an operation owns.
pub(in crate::storage) fn owned_segments(memory: &[MemoryRef]) -> Vec<libc::iovec> {
    memory
        .iter()
        .map(MemoryRef::span)
        .filter(|span| !span.is_empty())
        .map(|span| libc::iovec { iov_base: span.as_ptr().cast(), iov_len: span.len() })
        .collect()
}

/// A write is made durable by a call of its own: the kernel drops the flags that ask for it on the way to some file systems. FUSE is asked
/// for nothing where no pages are cached (seen in Linux 6.18).
fn syncs_apart(node: &Node, stability: Stability) -> bool {
    stability != Stability::Unstable && !node.class.local
}

/// What durability asks of a write call.
pub(super) fn write_flags(node: &Node, stability: Stability) -> i32 {
    match stability {
        stability if syncs_apart(node, stability) => 0,
        Stability::Unstable => 0,
        Stability::DataSync => libc::RWF_DSYNC,
        Stability::FileSync => libc::RWF_DSYNC | libc::RWF_SYNC,
    }
}

/// Data operations, with waiting.
pub(super) fn execute(scope: &Scope<'_>, node: &Arc<Node>, op: &FsOp) -> Result<FsReply, Status> {
    if !node.opened && !matches!(op, FsOp::Commit { .. }) {
        return Err(Status::BAD_HANDLE);
    }
    let fd = node.buffered_fd();
    let _writing = writing(scope, node, op)?;
    match op {
        FsOp::Read { offset, into, .. } => read_waiting(node, *offset, into),
        FsOp::Write { offset, from, stability, .. } => {
            let mut segments = owned_segments(from);
            check_write_range(*offset, total(&segments))?;
            let fd = node.fd_for(*offset, &segments);
            let noted = |errno: Errno, rest: &[libc::iovec], at| {
                // SAFETY: the operation owns the memory until it completes.
                let has_room =
                    || unsafe { sys::pwritev2(fd, rest, Some(at), 0) }.is_ok_and(|count| count > 0);
                note_refused(scope.shared, node, *stability, errno.into(), has_room);
            };
            let flags = write_flags(node, *stability);
            let count = write_all(fd, &mut segments, *offset, flags, noted)?;
            if syncs_apart(node, *stability) {
                sync_written(scope, node, *stability)?;
            }
            if *stability == Stability::FileSync {
                node.sync_name(scope)?;
            }
            Ok(FsReply::Count(count))
        }
        FsOp::Append { from, stability, .. } => append(scope, node, from, *stability),
        FsOp::Commit { stability, .. } => commit(scope, node, *stability),
        FsOp::Truncate { size, .. } => {
            if *size > OFFSET_MAX {
                return Err(Status::TOO_LARGE);
            }
            retry(|| ftruncate(fd, *size))?;
            Ok(FsReply::Done)
        }
        FsOp::Allocate { offset, len, .. } => {
            check_len(*offset, *len)?;
            retry(|| fallocate(fd, FallocateFlags::empty(), *offset, *len))?;
            Ok(FsReply::Done)
        }
        FsOp::Punch { offset, len, .. } => {
            check_len(*offset, *len)?;
            let mode = FallocateFlags::PUNCH_HOLE | FallocateFlags::KEEP_SIZE;
            retry(|| fallocate(fd, mode, *offset, *len))?;
            Ok(FsReply::Done)
        }
        FsOp::CopyRange { offset, source, source_offset, len, .. } => {
            let source = source.0.downcast_ref::<Node>().ok_or(Status::CROSS_DEVICE)?;
            let range = CopyRange { source_offset: *source_offset, offset: *offset, len: *len };
            copy(node, source, &range)
        }
        FsOp::Seek { offset, what, .. } => {
            if node.kind != FileKind::File {
                return Err(Status::INVALID);
            }
            if *offset > OFFSET_MAX {
                return Err(Status::NO_DEVICE);
            }
            let _position = scope.lock(&node.position).ok_or(Status::AGAIN)?;
            let found = retry(|| match what {
                SeekWhat::Data => seek(fd, SeekFrom::Data(*offset)),
                SeekWhat::Hole => seek(fd, SeekFrom::Hole(*offset)),
            });
            Ok(FsReply::Offset(found?))
        }
        FsOp::Hint { offset, len, pattern, .. } => {
            if let Some(pattern) = pattern {
                advise(scope, node, *offset, *len, *pattern);
            }
            Ok(FsReply::Done)
        }
        _ => Err(Status::INVALID),
    }
}

/// Keeps those out who would write back what they read before this changed it. The loop does not wait for them.
fn writing<'n>(
    scope: &Scope<'_>,
    node: &'n Node,
    op: &FsOp,
) -> Result<Option<Writing<&'n WriteGate>>, Status> {
    let Some(gate) = node.gate.as_deref().filter(|_| op.changes_data()) else { return Ok(None) };
    match scope.place.on_thread() {
        true => Ok(Some(gate.wait_and_begin())),
        false => WriteGate::begin(gate).map(Some).ok_or(Status::AGAIN),
    }
}

fn read_waiting(node: &Node, offset: u64, into: &[MemoryRef]) -> Result<FsReply, Status> {
    let mut segments = owned_segments(into);
    check_read_range(offset, total(&segments))?;
    let fd = |at, rest: &[libc::iovec]| node.fd_for(at, rest);
    Ok(FsReply::Count(read_all(&mut segments, offset, 0, fd)?))
}

/// Writes everything, in as many calls as that takes. After a part was written, the count of it. `refused` is told of an error, and of what
/// is not written.
pub(super) fn write_all(
    fd: BorrowedFd<'_>,
    segments: &mut [libc::iovec],
    offset: u64,
    flags: i32,
    refused: impl FnOnce(Errno, &[libc::iovec], u64),
) -> Result<usize, Status> {
    let len = total(segments);
    let (mut done, mut first) = (0, 0);
    loop {
        let at = offset + done as u64;
        // SAFETY: the memory is mapped for the time of the operation.
        match unsafe { sys::pwritev2(fd, &segments[first..], Some(at), flags) } {
            Ok(count) => {
                done += count;
                if done == len || count == 0 {
                    return Ok(done);
                }
                first = advance(segments, first, count);
            }
            Err(errno) => {
                refused(errno, &segments[first..], at);
                // What fitted is written; the caller sees a short count and meets the error with the rest.
                let is_full = matches!(errno, Errno::NOSPC | Errno::DQUOT | Errno::FBIG);
                return if is_full && done > 0 { Ok(done) } else { Err(errno.into()) };
            }
        }
    }
}

type AppendLock = Mutex<()>;

/// By device and inode.
type AppendLocks = HashMap<(u64, u64), Weak<AppendLock>>;

/// The lock of a file that is appended to: one for all exports that have it.
fn append_lock(node: &Node) -> Arc<AppendLock> {
    static LOCKS: LazyLock<Mutex<AppendLocks>> = LazyLock::new(Mutex::default);
    let mut locks = lock(&LOCKS);
    if let Some(found) = locks.get(&(node.dev, node.ino)).and_then(Weak::upgrade) {
        return found;
    }
    // Bounded by the appends in progress.
    locks.retain(|_, lock| lock.strong_count() > 0);
    let made = Arc::new(Mutex::new(()));
    locks.insert((node.dev, node.ino), Arc::downgrade(&made));
    made
}

/// The kernel chooses the place (`RWF_APPEND`), also against other processes, where the file system lets it; the lock
/// keeps a write in several parts together against ours.
fn append(
    scope: &Scope<'_>,
    node: &Node,
    from: &[MemoryRef],
    stability: Stability,
) -> Result<FsReply, Status> {
    let mut segments = owned_segments(from);
    let len = total(&segments);
    let inode = append_lock(node);
    let (Some(_inode), Some(_position)) = (scope.lock(&inode), scope.lock(&node.position)) else {
        return Err(Status::AGAIN);
    };
    let fd = node.buffered_fd();
    if len == 0 {
        // SAFETY: no segment is passed; the call says whether the descriptor may be written.
        unsafe { sys::pwritev2(fd, &[], Some(0), 0) }?;
        return Ok(FsReply::Appended(sys::seek_end(fd)?, 0));
    }
    // Before there is data: an error afterwards would say that nothing is there, and the caller would append it again.
    if stability == Stability::FileSync {
        node.sync_name(scope)?;
    }
    let flags = write_flags(node, stability) | if node.class.appends { libc::RWF_APPEND } else { 0 };
    let is_durable = stability != Stability::Unstable;
    let (mut start, mut done, mut first) = (None, 0, 0);
    while done < len {
        let end = if is_durable || !node.class.appends { Some(sys::seek_end(fd)?) } else { None };
        // SAFETY: the operation owns the memory until it completes.
        let result = unsafe { sys::pwritev2(fd, &segments[first..], None, flags) };
        match result {
            Ok(0) => break,
            Ok(count) => {
                let end = retry(|| seek(fd, SeekFrom::Current(0)))?;
                start.get_or_insert(end - count as u64);
                done += count;
                first = advance(&mut segments, first, count);
            }
            Err(errno) => {
                let status = Status::from(errno);
                let has_grown = || sys::seek_end(fd).ok() != end;
                note_refused(scope.shared, node, stability, status, has_grown);
                if done == 0 {
                    return Err(status);
                }
                // A part is in the file: an error would say that nothing is, and the caller would append it again.
                break;
            }
        }
    }
    if syncs_apart(node, stability) {
        sync_written(scope, node, stability)?;
    }
    Ok(FsReply::Appended(start.unwrap_or(0), done))
}

fn sync_written(scope: &Scope<'_>, node: &Node, stability: Stability) -> Result<(), Status> {
    // The kernel tells one of two of a loss: the other one ends when that is noted.
    let _committing = scope.lock(&node.committing).ok_or(Status::AGAIN)?;
    sync_fd(scope, node.buffered_fd(), stability != Stability::FileSync)
}

fn commit(scope: &Scope<'_>, node: &Node, stability: Stability) -> Result<FsReply, Status> {
    if node.opened {
        sync_written(scope, node, stability)?;
    } else {
        // The node only names it.
        if !matches!(node.kind, FileKind::File | FileKind::Directory) {
            return Err(Status::BAD_HANDLE);
        }
        let fd = sys::reopen(node.fd.as_fd(), OFlags::RDONLY)?;
        sync_fd(scope, fd.as_fd(), stability != Stability::FileSync)?;
    }
    if stability == Stability::FileSync {
        node.sync_name(scope)?;
    }
    Ok(FsReply::Done)
}

/// Syncs, and notes when written data was lost: whatever the file system says of that, it says it once.
pub(super) fn sync_fd(scope: &Scope<'_>, fd: BorrowedFd<'_>, data_only: bool) -> Result<(), Status> {
    let sync = || {
        #[cfg(test)]
        steps::before(steps::Call::Sync(sys::fstat(fd)?.file_id))?;
        if data_only { fdatasync(fd) } else { fsync(fd) }
    };
    noting_loss(scope, retry(sync))
}

/// Syncs all of a file system.
pub(super) fn sync_all(scope: &Scope<'_>, fd: BorrowedFd<'_>) -> Result<(), Status> {
    #[cfg(test)]
    steps::before(steps::Call::SyncAll)?;
    noting_loss(scope, retry(|| syncfs(fd)))
}

fn noting_loss(scope: &Scope<'_>, synced: Result<(), Errno>) -> Result<(), Status> {
    let result = synced.map_err(Status::from);
    if result.is_err_and(is_of_write_back) {
        note_loss(scope.shared);
    }
    result
}

/// It is not about the descriptor.
fn is_of_write_back(status: Status) -> bool {
    !matches!(status, Status::INVALID | Status::BAD_HANDLE | Status::NOT_SUPPORTED)
}

/// Storage is full: it said so of data that it was given, or of what it was to write back.
pub(super) fn is_full(status: Status) -> bool {
    matches!(status, Status::NO_SPACE | Status::QUOTA)
}

/// A durable write was refused, or cut short. The reason may be what the kernel says once of data that was written before: of a lack of
/// room too, where the write has room without being durable.
pub(super) fn note_refused(
    shared: &ExportState,
    node: &Node,
    stability: Stability,
    status: Status,
    has_room: impl FnOnce() -> bool,
) {
    match status {
        _ if stability == Stability::Unstable => {}
        Status::IO => note_loss(shared),
        _ if is_full(status) && (!node.class.local || has_room()) => note_loss(shared),
        // A file system of this host finds room before it takes data, but some do not always.
        _ if is_full(status) => {
            shared.losses.add_doubt();
        }
        _ => {}
    }
}

/// After a failed write-back, data of any file may be gone: the verifier changes, so that clients send it again.
#[cold]
pub(super) fn note_loss(shared: &ExportState) {
    shared.losses.add_loss();
    tracing::error!("cannot write data back; a changed verifier tells the clients");
}
