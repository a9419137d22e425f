//! Memory files and their mappings: the only place where the shm provider makes pointers.
#![allow(unsafe_code, reason = "memfd_create, mmap, and atomic words in shared memory")]

use std::io;
use std::os::fd::{AsRawFd, BorrowedFd, FromRawFd, OwnedFd};
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, AtomicU64};

use super::super::{Memory, MemoryRef, SharedFd, Span};

const PAGE: u64 = 4096;

/// Makes a memory file of `len` zero bytes that can never change its size.
pub(super) fn create_memory_file(name: &std::ffi::CStr, len: usize) -> io::Result<OwnedFd> {
    let size = libc::off_t::try_from(len).map_err(|_| io::Error::from_raw_os_error(libc::EFBIG))?;
    // SAFETY: `name` is a C string; the call makes a descriptor or fails.
    let fd = unsafe { libc::memfd_create(name.as_ptr(), libc::MFD_CLOEXEC | libc::MFD_ALLOW_SEALING) };
    if fd < 0 {
        return Err(io::Error::last_os_error());
    }
    // SAFETY: just made, owned by nobody else.
    let file = unsafe { OwnedFd::from_raw_fd(fd) };
    // SAFETY: plain system calls on an owned descriptor.
    unsafe {
        if libc::ftruncate(fd, size) < 0 {
            return Err(io::Error::last_os_error());
        }
        if libc::fcntl(fd, libc::F_ADD_SEALS, libc::F_SEAL_SHRINK | libc::F_SEAL_GROW | libc::F_SEAL_SEAL) < 0
        {
            return Err(io::Error::last_os_error());
        }
    }
    Ok(file)
}

/// Why a descriptor from the peer is not mapped.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum BadFile {
    /// Not a memory file on tmpfs, or it may shrink under us.
    Unsealed,
    /// Smaller than the peer says; its size.
    Short(u64),
}

/// Whether `file` is of a kind that can be sealed: then it is the kernel's own, and no question about it waits for another program, as one
/// about a file of FUSE does.
pub(super) fn is_sealable(file: BorrowedFd<'_>) -> bool {
    // SAFETY: a plain system call on a borrowed descriptor.
    unsafe { libc::fcntl(file.as_raw_fd(), libc::F_GET_SEALS) >= 0 }
}

/// Checks that `file` is a memory file that can not shrink below `end` bytes, so that touching its mapping cannot
/// raise SIGBUS. Files of huge pages are
/// refused: their pages can be taken away again.
pub(super) fn check_memory_file(file: BorrowedFd<'_>, end: u64) -> Result<(), BadFile> {
    if !is_sealable(file) {
        return Err(BadFile::Unsealed);
    }
    let fd = file.as_raw_fd();
    // SAFETY: plain system calls on a borrowed descriptor; the structures are plain data that the calls fill.
    let (seals, size, kind) = unsafe {
        let seals = libc::fcntl(fd, libc::F_GET_SEALS);
        let mut stat: libc::stat = std::mem::zeroed();
        let mut fs: libc::statfs = std::mem::zeroed();
        if libc::fstat(fd, &mut stat) < 0 || libc::fstatfs(fd, &mut fs) < 0 {
            return Err(BadFile::Unsealed);
        }
        (seals, u64::try_from(stat.st_size).unwrap_or(0), fs.f_type)
    };
    if seals < 0 || seals & libc::F_SEAL_SHRINK == 0 || kind != libc::TMPFS_MAGIC {
        return Err(BadFile::Unsealed);
    }
    if size < end { Err(BadFile::Short(size)) } else { Ok(()) }
}

/// A mapping of part of a memory file, shared with whoever else maps it.
#[derive(Debug)]
pub(super) struct Mapping {
    /// First mapped byte, page aligned.
    base: *mut u8,
    mapped: usize,
    /// Where the asked-for bytes begin. skip + len ≤ mapped
    skip: usize,
    len: usize,
}

// SAFETY: an address and lengths; memory is reached through spans and atomics only.
unsafe impl Send for Mapping {}
// SAFETY: as for Send.
unsafe impl Sync for Mapping {}

impl Mapping {
    /// Maps `len` bytes from `offset`. The caller has checked the file.
    pub(super) fn new(file: BorrowedFd<'_>, offset: u64, len: usize, writable: bool) -> io::Result<Self> {
        let invalid = || io::Error::from_raw_os_error(libc::EINVAL);
        let skip = usize::try_from(offset % PAGE).map_err(|_| invalid())?;
        let mapped = skip.checked_add(len.max(1)).ok_or_else(invalid)?;
        let from = libc::off_t::try_from(offset - offset % PAGE).map_err(|_| invalid())?;
        let protection = if writable { libc::PROT_READ | libc::PROT_WRITE } else { libc::PROT_READ };
        // SAFETY: a new mapping at an address of the kernel's choice.
        let base = unsafe {
            libc::mmap(
                std::ptr::null_mut(),
                mapped,
                protection,
                libc::MAP_SHARED | libc::MAP_NORESERVE,
                file.as_raw_fd(),
                from,
            )
        };
        if base == libc::MAP_FAILED {
            return Err(io::Error::last_os_error());
        }
        Ok(Self { base: base.cast(), mapped, skip, len })
    }

    /// The bytes.
    #[inline]
    pub(super) fn span(&self) -> Span<'_> {
        // SAFETY: mapped for `self.mapped` bytes while `self` lives (skip + len ≤ mapped), backed by a file that cannot shrink.
        unsafe { Span::from_raw(self.base.add(self.skip), self.len) }
    }

    /// A 32-bit word. Panics when it is not aligned or not inside: offsets come from the layout, never from a peer.
    #[inline]
    pub(super) fn word(&self, offset: usize) -> &AtomicU32 {
        assert!(offset.is_multiple_of(4) && offset < self.len && self.len - offset >= 4);
        // SAFETY: inside the mapping and aligned (segments begin on a page); atomics may be shared with other processes.
        unsafe { AtomicU32::from_ptr(self.base.add(self.skip + offset).cast()) }
    }

    /// A 64-bit word, under the rules of [`Mapping::word`].
    #[inline]
    pub(super) fn long(&self, offset: usize) -> &AtomicU64 {
        assert!(offset.is_multiple_of(8) && offset < self.len && self.len - offset >= 8);
        // SAFETY: as in `word`.
        unsafe { AtomicU64::from_ptr(self.base.add(self.skip + offset).cast()) }
    }
}

impl Drop for Mapping {
    fn drop(&mut self) {
        // SAFETY: mapped in `new` with this length, unmapped once.
        unsafe { libc::munmap(self.base.cast(), self.mapped) };
    }
}

/// Memory of this process in a sealed memory file, which peers can map.
pub(super) struct SharedMemory {
    mapping: Mapping,
    file: OwnedFd,
}

impl SharedMemory {
    /// `len` zero bytes, at least one page, rounded up to whole pages.
    pub(super) fn allocate(len: usize) -> io::Result<Self> {
        let len = len
            .max(1)
            .checked_next_multiple_of(4096)
            .ok_or_else(|| io::Error::from_raw_os_error(libc::ENOMEM))?;
        let file = create_memory_file(c"dafs-memory", len)?;
        let mapping = Mapping::new(std::os::fd::AsFd::as_fd(&file), 0, len, true)?;
        Ok(Self { mapping, file })
    }
}

// SAFETY: the mapping neither moves nor shrinks before drop, and its file cannot shrink.
unsafe impl Memory for SharedMemory {
    fn span(&self) -> Span<'_> {
        self.mapping.span()
    }

    fn shared_fd(&self) -> Option<SharedFd> {
        Some(SharedFd { fd: self.file.as_raw_fd(), offset: 0 })
    }
}

/// Where in its memory file some memory lies, checked as a peer will; `None` for memory without a file.
pub(super) fn shared_offset(memory: &MemoryRef) -> Result<Option<u64>, BadFile> {
    let Some(shared) = memory.memory().shared_fd() else { return Ok(None) };
    let offset = shared.offset + memory.offset() as u64;
    // SAFETY: the memory owns the descriptor and outlives this borrow.
    let file = unsafe { BorrowedFd::borrow_raw(shared.fd) };
    check_memory_file(file, offset.saturating_add(memory.len() as u64))?;
    Ok(Some(offset))
}

/// A mapping of the peer's memory, with whatever must be given back when the last user lets go of it.
pub(super) struct MappedMemory<Guard> {
    // Dropped in this order: the guard ends last.
    mapping: Arc<Mapping>,
    _guard: Guard,
}

impl<Guard> MappedMemory<Guard> {
    pub(super) fn new(mapping: Arc<Mapping>, guard: Guard) -> Self {
        Self { mapping, _guard: guard }
    }
}

// SAFETY: the mapping neither moves nor shrinks while it is held; its file cannot shrink (checked when it was registered).
unsafe impl<Guard: Send + Sync> Memory for MappedMemory<Guard> {
    fn span(&self) -> Span<'_> {
        self.mapping.span()
    }
}
