//! The file that a calibration reads and writes: a memory file, which costs what a page-cached file costs.
#![allow(unsafe_code, reason = "passes raw addresses to preadv and pwritev")]

use std::fs;
use std::io;
use std::os::fd::{AsFd, AsRawFd};
use std::os::unix::fs::FileExt;

use anyhow::{Context, ensure};
use dafs_proto::transport::{MemoryRef, Span};
use rustix::fs::{MemfdFlags, memfd_create};

use super::List;
use crate::storage::map_file;

/// A file of fixed size.
pub(super) struct File {
    file: fs::File,
    mapping: MemoryRef,
}

impl File {
    /// `len` bytes, all in memory already.
    pub(super) fn new(len: usize) -> anyhow::Result<Self> {
        let file =
            memfd_create("dafs-calibrate", MemfdFlags::CLOEXEC).context("cannot make a memory file")?;
        let file = fs::File::from(file);
        file.write_all_at(&vec![0x5a; len], 0).context("cannot fill a memory file")?;
        let mapping = map_file(file.as_fd(), len).context("cannot map a memory file")?;
        Ok(Self { file, mapping })
    }

    /// The file as memory that may fault.
    pub(super) fn mapping(&self) -> &MemoryRef {
        &self.mapping
    }

    /// Reads from the start into all of `memory`.
    pub(super) fn read(&self, memory: &[Span<'_>]) -> anyhow::Result<()> {
        self.transfer(libc::preadv, memory).context("cannot read a memory file")
    }

    /// Writes all of `memory` to the start.
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
        // SAFETY: the spans are mapped for their lengths, and the kernel reads or writes no more than that.
        let moved = unsafe { call(self.file.as_raw_fd(), parts.as_ptr(), count, 0) };
        let moved = usize::try_from(moved).map_err(|_| io::Error::last_os_error())?;
        ensure!(moved == memory.iter().map(Span::len).sum::<usize>(), "it is too short");
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "tests")]
    use super::*;

    #[test]
    fn file_reads_and_maps_what_was_written() {
        let file = File::new(8192).unwrap();
        let mut bytes = *b"new";
        file.write(&[Span::from_mut(&mut bytes)]).unwrap();
        let (mut one, mut other) = ([0; 2], [0; 2]);
        file.read(&[Span::from_mut(&mut one), Span::from_mut(&mut other)]).unwrap();
        assert_eq!((&one, &other), (b"ne", b"w\x5a"));
        assert_eq!(file.mapping().span().slice(0, 4).unwrap().to_vec(), b"new\x5a");
        let mut long = vec![0; 8193];
        assert!(file.read(&[Span::from_mut(&mut long)]).is_err());
    }
}
