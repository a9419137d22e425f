//! Replies to the kernel, encoded. Layouts are those of `linux/fuse.h`.

use std::time::Duration;

use dafs_client::{Attributes, FileKind, FsStatistics, Timestamp};

/// Bytes in front of each reply.
pub(crate) const HEADER_SIZE: usize = 16;

/// Bytes of attributes.
const ATTRIBUTES_SIZE: usize = 88;

/// Bytes of an entry: a node and its attributes.
pub(crate) const ENTRY_SIZE: usize = 40 + ATTRIBUTES_SIZE;

/// Bytes of a name in a listing, without the name.
const DIRENT_SIZE: usize = 24;

/// Flags of an open file.
pub(crate) mod open {
    /// Reads and writes come here, and not from or to the kernel's cache.
    pub(crate) const DIRECT_IO: u32 = 1;
    /// What the kernel has cached of the file is still true.
    pub(crate) const KEEP_CACHE: u32 = 2;
    /// The kernel reads and writes a file that it was given, which the reply names.
    pub(crate) const PASSTHROUGH: u32 = 128;
    /// The kernel caches the listing of the directory.
    pub(crate) const CACHE_DIR: u32 = 8;
}

/// Fields one after the other.
#[derive(Debug, Default)]
pub(crate) struct Fields(Vec<u8>);

impl Fields {
    pub(crate) fn new() -> Self {
        Self::default()
    }

    pub(crate) fn with_capacity(bytes: usize) -> Self {
        Self(Vec::with_capacity(bytes))
    }

    pub(crate) fn u32(mut self, value: u32) -> Self {
        self.put(&value.to_ne_bytes());
        self
    }

    pub(crate) fn u64(mut self, value: u64) -> Self {
        self.put(&value.to_ne_bytes());
        self
    }

    pub(crate) fn len(&self) -> usize {
        self.0.len()
    }

    fn put(&mut self, bytes: &[u8]) {
        self.0.extend_from_slice(bytes);
    }

    pub(crate) fn into_bytes(self) -> Vec<u8> {
        self.0
    }

    /// How long something is true for.
    fn times(self, first: Duration, second: Duration) -> Self {
        self.u64(first.as_secs()).u64(second.as_secs()).u32(first.subsec_nanos()).u32(second.subsec_nanos())
    }

    pub(crate) fn attributes(self, of: &Attributes) -> Self {
        let device = rustix::fs::major(of.device) << 8 & 0xfff00
            | rustix::fs::minor(of.device) & 0xff
            | (rustix::fs::minor(of.device) & 0xfff00) << 12;
        self.u64(of.file_id)
            .u64(of.size)
            .u64(of.allocated.div_ceil(512))
            .u64(seconds(of.atime))
            .u64(seconds(of.mtime))
            .u64(seconds(of.ctime))
            .u32(of.atime.nanoseconds)
            .u32(of.mtime.nanoseconds)
            .u32(of.ctime.nanoseconds)
            .u32(kind_bits(of.kind) | of.mode)
            .u32(of.links)
            .u32(of.uid)
            .u32(of.gid)
            .u32(device)
            .u32(BLOCK_SIZE)
            .u32(0)
    }

    /// A node that was looked up or made; it and its attributes are true for so long.
    pub(crate) fn entry(self, node: u64, of: &Attributes, name_valid: Duration, valid: Duration) -> Self {
        self.u64(node).u64(0).times(name_valid, valid).attributes(of)
    }

    /// Attributes that are true for so long.
    pub(crate) fn timed_attributes(self, of: &Attributes, valid: Duration) -> Self {
        self.u64(valid.as_secs()).u32(valid.subsec_nanos()).u32(0).attributes(of)
    }

    /// An open file, of the kernel's own descriptor where `backing` is not 0.
    pub(crate) fn open(self, file: u64, flags: u32, backing: i32) -> Self {
        self.u64(file).u32(flags).u32(backing.cast_unsigned())
    }

    pub(crate) fn statistics(self, of: &FsStatistics) -> Self {
        let size = u32::try_from(of.block_size).unwrap_or(u32::MAX);
        let mut fields = self
            .u64(of.blocks)
            .u64(of.blocks_free)
            .u64(of.blocks_available)
            .u64(of.files)
            .u64(of.files_free)
            .u32(size)
            .u32(of.name_size_max)
            .u32(size);
        fields.put(&[0; 28]);
        fields
    }

    /// A name of a listing, if it fits into `room` bytes in all; whether it did. `entry` stands before it in a listing with attributes.
    pub(crate) fn dirent(
        &mut self,
        room: usize,
        (file_id, cookie, kind): (u64, u64, Option<FileKind>),
        name: &[u8],
        entry: Option<Self>,
    ) -> bool {
        let needed = entry.as_ref().map_or(0, Self::len) + (DIRENT_SIZE + name.len()).next_multiple_of(8);
        if self.len() + needed > room {
            return false;
        }
        let end = self.len() + needed;
        self.put(&entry.unwrap_or_default().0);
        self.put(&file_id.to_ne_bytes());
        self.put(&cookie.to_ne_bytes());
        self.put(&u32::try_from(name.len()).unwrap_or(u32::MAX).to_ne_bytes());
        self.put(&(kind.map_or(0, kind_bits) >> 12).to_ne_bytes());
        self.put(name);
        self.0.resize(end, 0);
        true
    }
}

/// What a program should read and write at once, bytes, as stat(2) tells.
const BLOCK_SIZE: u32 = 4096;

fn seconds(time: Timestamp) -> u64 {
    time.seconds.cast_unsigned()
}

/// The bits of a mode that say what a file is.
pub(crate) fn kind_bits(kind: FileKind) -> u32 {
    match kind {
        FileKind::File => libc::S_IFREG,
        FileKind::Directory => libc::S_IFDIR,
        FileKind::Symlink => libc::S_IFLNK,
        FileKind::BlockDevice => libc::S_IFBLK,
        FileKind::CharDevice => libc::S_IFCHR,
        FileKind::Fifo => libc::S_IFIFO,
        FileKind::Socket => libc::S_IFSOCK,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn listing_takes_what_fits_and_no_more() {
        let mut fields = Fields::new();
        assert!(fields.dirent(64, (1, 2, Some(FileKind::File)), b"name", None));
        assert_eq!(fields.len(), 32);
        assert!(fields.dirent(64, (1, 2, None), b"12345678", None));
        assert_eq!(fields.len(), 64);
        assert!(!fields.dirent(64, (1, 2, None), b"", None));
        assert_eq!(fields.len(), 64);
    }
}
