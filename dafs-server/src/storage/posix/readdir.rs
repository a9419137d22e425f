//! Directories, a buffer at a time, straight from `getdents64`: its offsets are the cookies.

use std::mem::MaybeUninit;
use std::os::fd::AsFd;
use std::sync::Arc;

use dafs_proto::wire::{DirEntry, FileKind, Status};
use rustix::fs::{OFlags, RawDir, SeekFrom, seek};

use super::super::FsResult;
use super::super::listing::{ENTRIES_MAX, Listing};
use super::super::paths::OFFSET_MAX;
use super::super::pool::lock;
use super::Node;
use super::sys::{self, Errno, retry};

/// Bytes asked from the kernel at a time.
const BUFFER_SIZE: usize = 32 * 1024;

/// See [`super::super::FsOp::Readdir`].
pub(super) fn read(node: &Arc<Node>, cookie: u64, size_max: usize, attributes: bool) -> FsResult {
    if node.kind != FileKind::Directory {
        return Err(Status::NOT_DIRECTORY);
    }
    if cookie > OFFSET_MAX {
        return Err(Status::INVALID);
    }
    // Where the node only names the directory, whether this identity may read it is checked here.
    let flags = OFlags::RDONLY | OFlags::DIRECTORY;
    let opened = (!node.opened).then(|| sys::reopen(node.fd.as_fd(), flags)).transpose()?;
    let fd = opened.as_ref().map_or(node.fd.as_fd(), AsFd::as_fd);
    let _position = lock(&node.position);
    retry(|| seek(fd, SeekFrom::Start(cookie)))?;
    let mut listing = Listing::new(size_max, ENTRIES_MAX);
    let mut buffer = [MaybeUninit::uninit(); BUFFER_SIZE];
    let mut names = RawDir::new(fd, &mut buffer[..size_max.clamp(1024, BUFFER_SIZE)]);
    loop {
        let found = match names.next() {
            None => return listing.finish(true),
            Some(Err(Errno::INTR)) => continue,
            Some(found) => found?,
        };
        let name = found.file_name();
        if name == c"." || name == c".." {
            continue;
        }
        let mut entry =
            DirEntry { cookie: found.next_entry_cookie(), name: name.to_bytes().to_vec(), attributes: None };
        if attributes && listing.fits_bare(&entry) {
            entry.attributes = sys::statx(fd, name).ok();
        }
        if !listing.push(&entry) {
            return listing.finish(false);
        }
    }
}
