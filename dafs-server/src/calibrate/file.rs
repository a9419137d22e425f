//! The file that a calibration reads and writes: a memory file, which costs what a page-cached file costs. It is larger than the caches
//! next to a CPU, and each transfer is at another place, for programs seldom move the same bytes again and again.
#![allow(unsafe_code, reason = "passes raw addresses to preadv and pwritev")]

use std::cell::Cell;
use std::fs;
use std::io;
use std::os::fd::{AsFd, AsRawFd};
use std::os::unix::fs::FileExt;

use anyhow::{Context, ensure};
use dafs_proto::transport::{MemoryRef, Span};
use rustix::fs::{MemfdFlags, memfd_create};

use super::List;
use crate::storage::map_file;

/// Bytes of the file.
const FILE_SIZE: usize = 16 << 20;

/// A file of fixed size.
pub(super) struct File {
    file: fs::File,
    mapping: MemoryRef,
    /// Where the next transfer begins.
    at: Cell<usize>,
}

impl File {
    /// All in memory already; the first `mapped_len` bytes are mapped, and no transfer is longer.
    pub(super) fn new(mapped_len: usize) -> anyhow::Result<Self> {
        let file =
            memfd_create("dafs-calibrate", MemfdFlags::CLOEXEC).context("cannot make a memory file")?;
        let file = fs::File::from(file);
        let block = vec![0x5a; 1 << 20];
        for offset in (0..FILE_SIZE).step_by(block.len()) {
            file.write_all_at(&block, offset as u64).context("cannot fill a memory file")?;
        }
        let mapping = map_file(file.as_fd(), mapped_len).context("cannot map a memory file")?;
        Ok(Self { file, mapping, at: Cell::new(0) })
    }

    /// The file as memory that may fault.
    pub(super) fn mapping(&self) -> &MemoryRef {
        &self.mapping
    }

    /// Reads into all of `memory`, from after what was moved last.
    pub(super) fn read(&self, memory: &[Span<'_>]) -> anyhow::Result<()> {
        self.transfer(libc::preadv, memory).context("cannot read a memory file")
    }

    /// Writes all of `memory`, after what was moved last.
    pub(super) fn write(&self, memory: &[Span<'_>]) -> anyhow::Result<()> {
        self.transfer(libc::pwritev, memory).context("cannot write a memory file")
    }

    fn transfer(
        &self,
        call: unsafe extern "C" fn(i32, *const libc::iovec, i32, libc::off_t) -> isize,
        memory: &[Span<'_>],
    ) -> anyhow::Result<()> {
        let part = |span: &Span<'_>| libc::iovec { iov_base: span.as_ptr().cast(), iov_len: span.len() };
        let parts: List<libc::iovec> = memory.iter().map(part).collect();
        let count = i32::try_from(parts.len())?;
        let wanted = memory.iter().map(Span::len).sum::<usize>();
        let offset = if self.at.get() + wanted > FILE_SIZE { 0 } else { self.at.get() };
        // SAFETY: the spans are mapped for their lengths, and the kernel reads or writes no more than that.
        let moved = unsafe { call(self.file.as_raw_fd(), parts.as_ptr(), count, i64::try_from(offset)?) };
        let moved = usize::try_from(moved).map_err(|_| io::Error::last_os_error())?;
        ensure!(moved == wanted, "it is too short");
        self.at.set(offset + moved);
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "tests")]
    use super::*;

    #[test]
    fn transfers_follow_each_other_and_begin_again_at_the_end() {
        let file = File::new(8192).unwrap();
        file.write(&[Span::from_mut(&mut b"new".to_vec())]).unwrap();
        assert_eq!(file.mapping().span().slice(0, 4).unwrap().to_vec(), b"new\x5a");
        file.at.set(1);
        let (mut one, mut other) = ([0; 1], [0; 2]);
        file.read(&[Span::from_mut(&mut one), Span::from_mut(&mut other)]).unwrap();
        assert_eq!((&one, &other), (b"e", b"w\x5a"));
        assert_eq!(file.at.get(), 4);
        file.at.set(FILE_SIZE - 2);
        let mut first = [0; 3];
        file.read(&[Span::from_mut(&mut first)]).unwrap();
        assert_eq!((&first, file.at.get()), (b"new", 3));
        let mut long = vec![0; FILE_SIZE + 1];
        assert!(file.read(&[Span::from_mut(&mut long)]).is_err());
    }
}
