//! The file that a calibration reads and writes: a memory file, which costs what a page-cached file costs.
#![allow(unsafe_code, reason = "maps a file, and passes raw addresses to pread and pwrite")]

use std::io;
use std::os::fd::{AsRawFd, OwnedFd};
use std::sync::Arc;

use rustix::fs::{MemfdFlags, memfd_create};
use rustix::mm::{MapFlags, ProtFlags, mmap, munmap};
use smallvec::SmallVec;

use super::{CalibrateError, GATHER_SEGMENTS};
use crate::transport::{Memory, MemoryRef, Span};

/// A file of fixed size.
pub(super) struct File {
    fd: OwnedFd,
    mapping: MemoryRef,
}

impl File {
    /// `len` bytes, all in memory already.
    pub(super) fn new(len: usize) -> Result<Self, CalibrateError> {
        let failed = |what| move |source| CalibrateError::File { what, source };
        let fd = memfd_create("dafs-calibrate", MemfdFlags::CLOEXEC)
            .map_err(|errno| failed("create a memory file")(errno.into()))?;
        let file = std::fs::File::from(fd);
        std::os::unix::fs::FileExt::write_all_at(&file, &vec![0x5a; len], 0)
            .map_err(failed("fill a memory file"))?;
        let fd = OwnedFd::from(file);
        let mapping = Mapping::new(&fd, len).map_err(failed("map a memory file"))?;
        Ok(Self { fd, mapping: MemoryRef::new(Arc::new(mapping)) })
    }

    /// The file as memory that may fault.
    pub(super) fn mapping(&self) -> &MemoryRef {
        &self.mapping
    }

    /// Reads from the start into all of `memory`.
    pub(super) fn read(&self, memory: Span<'_>) -> Result<(), CalibrateError> {
        // SAFETY: the span is mapped for its length, and the kernel writes no more than that.
        let moved = unsafe { libc::pread(self.fd.as_raw_fd(), memory.as_ptr().cast(), memory.len(), 0) };
        moved_all(moved, memory.len(), "read the memory file")
    }

    /// Writes all of `memory` to the start.
    pub(super) fn write(&self, memory: Span<'_>) -> Result<(), CalibrateError> {
        // SAFETY: the span is mapped for its length, and the kernel reads no more than that.
        let moved = unsafe { libc::pwrite(self.fd.as_raw_fd(), memory.as_ptr().cast(), memory.len(), 0) };
        moved_all(moved, memory.len(), "write the memory file")
    }
}

impl File {
    /// As [`File::read`], into several pieces of memory.
    pub(super) fn read_all(&self, memory: &[Span<'_>]) -> Result<(), CalibrateError> {
        let (vectors, len) = vectors(memory);
        // SAFETY: the spans are mapped for their lengths; there are at most 64.
        let moved = unsafe { libc::preadv(self.fd.as_raw_fd(), vectors.as_ptr(), count(&vectors), 0) };
        moved_all(moved, len, "read the memory file")
    }

    /// As [`File::write`], from several pieces of memory.
    pub(super) fn write_all(&self, memory: &[Span<'_>]) -> Result<(), CalibrateError> {
        let (vectors, len) = vectors(memory);
        // SAFETY: the spans are mapped for their lengths; there are at most 64.
        let moved = unsafe { libc::pwritev(self.fd.as_raw_fd(), vectors.as_ptr(), count(&vectors), 0) };
        moved_all(moved, len, "write the memory file")
    }
}

#[allow(clippy::cast_possible_truncation, clippy::cast_possible_wrap, reason = "at most GATHER_SEGMENTS")]
fn count(vectors: &[libc::iovec]) -> libc::c_int {
    vectors.len() as libc::c_int
}

fn vectors(memory: &[Span<'_>]) -> (SmallVec<[libc::iovec; GATHER_SEGMENTS]>, usize) {
    let vector = |span: &Span<'_>| libc::iovec { iov_base: span.as_ptr().cast(), iov_len: span.len() };
    (memory.iter().map(vector).collect(), memory.iter().map(Span::len).sum())
}

fn moved_all(moved: isize, len: usize, what: &'static str) -> Result<(), CalibrateError> {
    match usize::try_from(moved) {
        Ok(moved) if moved == len => Ok(()),
        Ok(_) => Err(CalibrateError::File { what, source: io::ErrorKind::UnexpectedEof.into() }),
        Err(_) => Err(CalibrateError::File { what, source: io::Error::last_os_error() }),
    }
}

struct Mapping {
    pointer: *mut u8,
    len: usize,
}

// SAFETY: only an address; the bytes are reached through spans.
unsafe impl Send for Mapping {}
// SAFETY: as for Send.
unsafe impl Sync for Mapping {}

impl Mapping {
    fn new(fd: &OwnedFd, len: usize) -> io::Result<Self> {
        // Writable as well: a span promises it.
        let protection = ProtFlags::READ | ProtFlags::WRITE;
        // SAFETY: a new mapping, placed by the kernel.
        let pointer = unsafe { mmap(std::ptr::null_mut(), len, protection, MapFlags::SHARED, fd, 0) }?;
        Ok(Self { pointer: pointer.cast(), len })
    }
}

impl Drop for Mapping {
    fn drop(&mut self) {
        // SAFETY: mapped in `new` with this length, unmapped once, and no span outlives the mapping.
        let _ = unsafe { munmap(self.pointer.cast(), self.len) };
    }
}

// SAFETY: the mapping stays in place until drop.
unsafe impl Memory for Mapping {
    fn span(&self) -> Span<'_> {
        // SAFETY: mapped for its length while `self` lives; no references are made to it.
        unsafe { Span::from_raw(self.pointer, self.len) }
    }

    fn may_fault(&self) -> bool {
        true
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn file_reads_and_maps_what_was_written() {
        let file = File::new(8192).unwrap();
        let mut bytes = *b"new";
        file.write(Span::from_mut(&mut bytes)).unwrap();
        let mut read = [0; 4];
        file.read(Span::from_mut(&mut read)).unwrap();
        assert_eq!(&read, b"new\x5a");
        assert_eq!(file.mapping().span().slice(0, 4).unwrap().to_vec(), b"new\x5a");
        let mut long = vec![0; 8193];
        assert!(matches!(file.read(Span::from_mut(&mut long)), Err(CalibrateError::File { .. })));
    }
}
