//! Directories, a buffer at a time, straight from `getdents64`: its offsets are the cookies.

use std::os::fd::AsFd;
use std::sync::Arc;

use dafs_proto::wire::{DirEntry, FileKind, Status, encode_dir_entry};

use super::super::FsReply;
use super::super::pool::lock;
use super::Node;
use super::resolve::Scope;
use super::sys::{self, CPath};

/// Bytes asked from the kernel at a time.
const BUFFER_SIZE: usize = 32 * 1024;

/// Bytes of an encoded entry without its name and attributes: cookie, two lengths.
const ENTRY_OVERHEAD: usize = 12;

/// See [`super::super::FsOp::Readdir`].
pub(super) fn read(
    scope: &Scope<'_>,
    node: &Arc<Node>,
    cookie: u64,
    size_max: usize,
    attributes: bool,
) -> Result<FsReply, Status> {
    if node.kind != FileKind::Directory {
        return Err(Status::NOT_DIRECTORY);
    }
    let cookie = i64::try_from(cookie).map_err(|_| Status::INVALID)?;
    let opened;
    let guard;
    let fd = if node.opened {
        guard = lock(&node.position);
        node.fd.as_fd()
    } else {
        // The node only names the directory: whether this identity may read it is checked here.
        let flags = libc::O_RDONLY | libc::O_DIRECTORY;
        opened = sys::reopen(node.fd.as_fd(), flags)?;
        guard = lock(&node.position);
        opened.as_fd()
    };
    let _ = scope;
    sys::lseek(fd, cookie, libc::SEEK_SET)?;
    let mut entries = Vec::new();
    let mut size = 0;
    let mut scratch = Vec::new();
    let mut buffer = [0u8; BUFFER_SIZE];
    loop {
        let want = size_max.saturating_sub(size).clamp(1024, BUFFER_SIZE);
        let filled = sys::getdents64(fd, &mut buffer[..want])?;
        if filled == 0 {
            drop(guard);
            return Ok(FsReply::Entries(entries, true));
        }
        for (cookie, name) in Dents(&buffer[..filled]) {
            if name == b"." || name == b".." {
                continue;
            }
            let mut entry = DirEntry { cookie, name: name.to_vec(), attributes: None };
            let fits_bare = size + ENTRY_OVERHEAD + name.len() <= size_max;
            if attributes && fits_bare {
                let name = CPath::new(name).ok_or(Status::IO)?;
                entry.attributes = sys::statx(fd, &name).ok();
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
}

/// The records of a `getdents64` buffer: cookie and name. Fields: inode u64, offset i64, record length u16, type u8, name to a zero byte.
struct Dents<'a>(&'a [u8]);

const NAME_AT: usize = 19;

impl<'a> Iterator for Dents<'a> {
    type Item = (u64, &'a [u8]);

    fn next(&mut self) -> Option<Self::Item> {
        let record_len = usize::from(u16::from_ne_bytes(self.0.get(16..18)?.try_into().ok()?));
        let record = self.0.get(..record_len)?;
        let cookie = u64::from_ne_bytes(record.get(8..16)?.try_into().ok()?);
        let name = record.get(NAME_AT..)?;
        let name = name.split(|b| *b == 0).next()?;
        self.0 = &self.0[record_len..];
        Some((cookie, name))
    }
}
