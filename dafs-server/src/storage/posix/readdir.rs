//! Directories, a buffer at a time, straight from `getdents64`: its offsets are the cookies.

use std::mem::MaybeUninit;
use std::os::fd::AsFd;
use std::sync::Arc;

use dafs_proto::wire::{DirEntry, FileKind, Status, encode_dir_entry};
use rustix::fs::{OFlags, RawDir, SeekFrom, seek};

use super::super::FsReply;
use super::super::paths::OFFSET_MAX;
use super::super::pool::lock;
use super::Node;
use super::sys::{self, Errno, retry};

/// Bytes asked from the kernel at a time.
const BUFFER_SIZE: usize = 32 * 1024;

/// Bytes of an encoded entry without its name and attributes: cookie, two lengths.
const ENTRY_OVERHEAD: usize = 12;

/// See [`super::super::FsOp::Readdir`].
pub(super) fn read(
    node: &Arc<Node>,
    cookie: u64,
    size_max: usize,
    attributes: bool,
) -> Result<FsReply, Status> {
    if node.kind != FileKind::Directory {
        return Err(Status::NOT_DIRECTORY);
    }
    if cookie > OFFSET_MAX {
        return Err(Status::INVALID);
    }
    let opened;
    let guard;
    let fd = if node.opened {
        guard = lock(&node.position);
        node.fd.as_fd()
    } else {
        // The node only names the directory: whether this identity may read it is checked here.
        opened = sys::reopen(node.fd.as_fd(), OFlags::RDONLY | OFlags::DIRECTORY)?;
        guard = lock(&node.position);
        opened.as_fd()
    };
    retry(|| seek(fd, SeekFrom::Start(cookie)))?;
    let mut entries = Vec::new();
    let mut size = 0;
    let mut scratch = Vec::new();
    let mut buffer = [MaybeUninit::uninit(); BUFFER_SIZE];
    let mut names = RawDir::new(fd, &mut buffer[..size_max.clamp(1024, BUFFER_SIZE)]);
    loop {
        let found = match names.next() {
            None => {
                drop(guard);
                return Ok(FsReply::Entries(entries, true));
            }
            Some(Err(Errno::INTR)) => continue,
            Some(found) => found?,
        };
        let name = found.file_name();
        if name == c"." || name == c".." {
            continue;
        }
        let mut entry =
            DirEntry { cookie: found.next_entry_cookie(), name: name.to_bytes().to_vec(), attributes: None };
        let fits_bare = size + ENTRY_OVERHEAD + entry.name.len() <= size_max;
        if attributes && fits_bare {
            entry.attributes = sys::statx(fd, name).ok();
        }
        scratch.clear();
        encode_dir_entry(&entry, &mut scratch);
        if size + scratch.len() > size_max {
            return if entries.is_empty() {
                Err(Status::RANGE)
            } else {
                Ok(FsReply::Entries(entries, false))
            };
        }
        size += scratch.len();
        entries.push(entry);
    }
}
