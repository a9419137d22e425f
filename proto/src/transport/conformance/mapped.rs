//! Memory that may fault: a mapped file.
#![allow(unsafe_code, reason = "maps a file")]

use std::os::fd::{AsRawFd, FromRawFd};
use std::os::unix::fs::FileExt;
use std::sync::Arc;

use super::pattern;
use crate::transport::{Memory, Span};

/// A mapping of a memory file ; its pages go when the file is truncated.
pub(in crate::transport) struct MappedFile {
    file: std::fs::File,
    pointer: *mut u8,
    len: usize,
}

// SAFETY: an address and a length.
unsafe impl Send for MappedFile {}
// SAFETY: as for Send.
unsafe impl Sync for MappedFile {}

// SAFETY: mapped until drop.
unsafe impl Memory for MappedFile {
    fn span(&self) -> Span<'_> {
        // SAFETY: mapped until drop; only passed to the kernel, as `may_fault` asks.
        unsafe { Span::from_raw(self.pointer, self.len) }
    }
    fn may_fault(&self) -> bool {
        true
    }
    fn is_there(&self, offset: usize, len: usize) -> bool {
        self.file.metadata().is_ok_and(|now| (offset + len) as u64 <= now.len())
    }
}

impl MappedFile {
    pub(in crate::transport) fn new(len: usize) -> Arc<Self> {
        // SAFETY: the name is a C string; the descriptor is new and owned by nobody else.
        let file = unsafe {
            let fd = libc::memfd_create(c"dafs-conformance".as_ptr(), libc::MFD_CLOEXEC);
            assert!(fd >= 0, "{}", std::io::Error::last_os_error());
            std::fs::File::from_raw_fd(fd)
        };
        file.write_all_at(&Self::content(len), 0).unwrap();
        // SAFETY: a new mapping where the kernel likes.
        let pointer = unsafe {
            libc::mmap(std::ptr::null_mut(), len, libc::PROT_READ, libc::MAP_SHARED, file.as_raw_fd(), 0)
        };
        assert_ne!(pointer, libc::MAP_FAILED);
        Arc::new(Self { file, pointer: pointer.cast(), len })
    }

    /// What it holds at first.
    pub(in crate::transport) fn content(len: usize) -> Vec<u8> {
        pattern(9, len)
    }

    pub(in crate::transport) fn truncate(&self, len: u64) {
        self.file.set_len(len).unwrap();
    }
}

impl Drop for MappedFile {
    fn drop(&mut self) {
        // SAFETY: mapped in `new`, unmapped once.
        unsafe { libc::munmap(self.pointer.cast(), self.len) };
    }
}
