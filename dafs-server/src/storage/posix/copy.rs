//! Copies between files of directories: by shared blocks, by the kernel, or by hand, a slice at a time.

use std::os::fd::BorrowedFd;

use dafs_proto::wire::{FileKind, Status};
use rustix::fs::copy_file_range;
use rustix::io::{pread, pwrite};

use super::super::FsReply;
use super::super::copy::{COPY_SIZE_MAX, CopyRange, Wanted};
use super::Node;
use super::sys::{self, Errno, retry};

/// Bytes that the kernel copies in one call, so that a thread that is told to end does.
const STEP_SIZE: u64 = 8 << 20;

/// Bytes that are copied by hand in one call.
const BUFFER_SIZE: u64 = 1 << 20;

/// What both ends of blocks that are shared have to be multiples of: that of every file system with shared blocks divides it, or the file
/// system says no.
const BLOCK_SIZE: u64 = 4096;

/// Copies a slice. What another process changes meanwhile is copied as it was, or as it is then.
pub(super) fn copy(target: &Node, source: &Node, range: &CopyRange) -> Result<FsReply, Status> {
    for node in [target, source] {
        match node.kind {
            _ if !node.opened => return Err(Status::BAD_HANDLE),
            FileKind::File => {}
            FileKind::Directory => return Err(Status::IS_DIRECTORY),
            _ => return Err(Status::INVALID),
        }
    }
    let size = sys::fstat(source.buffered_fd())?.size;
    let wanted = range.wanted(size, target.key() == source.key())?;
    let (from, to) = (source.buffered_fd(), target.buffered_fd());
    if wanted.len == 0 {
        return Ok(FsReply::Copied(0, wanted.ends));
    }
    if is_aligned(range, wanted.len, size)
        && sys::clone_range(to, range.offset, from, range.source_offset, wanted.len).is_ok()
    {
        return Ok(FsReply::Copied(wanted.len, wanted.ends));
    }
    let by_kernel = |from_offset: u64, to_offset: u64, len: u64| {
        let (mut from_offset, mut to_offset) = (from_offset, to_offset);
        let len = usize::try_from(len).unwrap_or(usize::MAX);
        retry(|| copy_file_range(from, Some(&mut from_offset), to, Some(&mut to_offset), len))
    };
    match slice(range, &wanted, STEP_SIZE, by_kernel) {
        // It cannot with these two file systems, or may not. What is wrong with the files shows again.
        Err(Errno::XDEV | Errno::INVAL | Errno::OPNOTSUPP | Errno::NOSYS | Errno::PERM) => {
            by_hand(from, to, range, &wanted)
        }
        result => Ok(result?),
    }
}

fn is_aligned(range: &CopyRange, len: u64, size: u64) -> bool {
    let to_end = range.source_offset + len == size;
    let ends = [range.source_offset, range.offset, if to_end { 0 } else { len }];
    ends.iter().all(|end| end.is_multiple_of(BLOCK_SIZE))
}

fn by_hand(
    from: BorrowedFd<'_>,
    to: BorrowedFd<'_>,
    range: &CopyRange,
    wanted: &Wanted,
) -> Result<FsReply, Status> {
    let mut buffer = vec![0; usize::try_from(wanted.len.min(BUFFER_SIZE)).unwrap_or(0)];
    let copied = slice(range, wanted, BUFFER_SIZE, |from_offset, to_offset, len| {
        let len = usize::try_from(len).unwrap_or(0).min(buffer.len());
        let count = retry(|| pread(from, &mut buffer[..len], from_offset))?;
        if count == 0 {
            return Ok(0);
        }
        // What is written of it counts.
        retry(|| pwrite(to, &buffer[..count], to_offset))
    });
    Ok(copied?)
}

/// Copies in steps, up to the size of a slice. An error behind the first step is left for the next request to meet.
fn slice(
    range: &CopyRange,
    wanted: &Wanted,
    step_max: u64,
    mut step: impl FnMut(u64, u64, u64) -> Result<usize, Errno>,
) -> Result<FsReply, Errno> {
    let limit = wanted.len.min(COPY_SIZE_MAX);
    let mut done = 0;
    while done < limit {
        match step(range.source_offset + done, range.offset + done, (limit - done).min(step_max)) {
            // It was cut meanwhile.
            Ok(0) => return Ok(FsReply::Copied(done, true)),
            Ok(count) => done += count as u64,
            Err(_) if done > 0 => return Ok(FsReply::Copied(done, false)),
            Err(errno) => return Err(errno),
        }
    }
    Ok(FsReply::Copied(done, wanted.ends && done == wanted.len))
}
