//! Memory files and their mappings: the only place where the shm provider makes pointers.
#![allow(unsafe_code, reason = "mmap, and atomic words in shared memory")]

use std::io;
use std::os::fd::{AsRawFd, BorrowedFd, OwnedFd};
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, AtomicU64};

use nix::sys::resource::{Resource, getrlimit};
use rustix::fs::{
    MemfdFlags, SealFlags, fcntl_add_seals, fcntl_get_seals, fstat, fstatfs, ftruncate, memfd_create,
};
use rustix::mm::{MapFlags, ProtFlags, mmap, munmap};

use super::super::{Memory, MemoryRef, SharedFd, Span};
use super::closing::{Closers, Left};
use crate::budget::{Charge, Owner};

const PAGE: u64 = 4096;

/// Makes a memory file of `len` zero bytes that can never change its size.
///
/// Fails where files of this process may not become so large: the kernel holds that against memory files as well, and sends a signal that
/// ends the process.
pub(super) fn create_memory_file(name: &std::ffi::CStr, len: usize) -> io::Result<OwnedFd> {
    check_file_size(len)?;
    let made = memfd_create(name, MemfdFlags::CLOEXEC | MemfdFlags::ALLOW_SEALING);
    let file = made.map_err(|errno| match io::Error::from(errno) {
        error if is_unavailable(&error) => unavailable("share memory", "memfd_create"),
        error => error,
    })?;
    ftruncate(&file, len as u64)?;
    fcntl_add_seals(&file, SealFlags::SHRINK | SealFlags::GROW | SealFlags::SEAL)?;
    Ok(file)
}

/// Whether this process can make memory files at all: a filter of system calls may forbid it.
pub(super) fn check_memory_files() -> io::Result<()> {
    create_memory_file(c"dafs-probe", 1).map(drop)
}

/// A system call that is missing, or that a filter forbids: some answer as if it were missing, others that it is not permitted.
pub(super) fn is_unavailable(error: &io::Error) -> bool {
    matches!(error.raw_os_error(), Some(libc::ENOSYS | libc::EPERM | libc::EACCES))
}

/// Says which one, and what to do.
pub(super) fn unavailable(what: &str, call: &str) -> io::Error {
    let text = format!(
        "cannot {what}: {call}(2) is not available; allow it in the filter of system calls (the container's seccomp profile), \
         or use tcp only"
    );
    io::Error::new(io::ErrorKind::Unsupported, text)
}

/// Files of this process may become so large.
pub(super) fn check_file_size(len: usize) -> io::Result<()> {
    // Where the system does not tell the limit there is none that is known of.
    match getrlimit(Resource::RLIMIT_FSIZE) {
        Ok((size_max, _)) if len as u64 > size_max => Err(io::Error::from_raw_os_error(libc::EFBIG)),
        _ => Ok(()),
    }
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
    fcntl_get_seals(file).is_ok()
}

/// Checks that `file` is a memory file that can not shrink below `end` bytes, so that touching its mapping cannot
/// raise SIGBUS. Files of huge pages are
/// refused: their pages can be taken away again.
pub(super) fn check_memory_file(file: BorrowedFd<'_>, end: u64) -> Result<(), BadFile> {
    let unsealed = |_| BadFile::Unsealed;
    // First, for the reason that `is_sealable` gives.
    let seals = fcntl_get_seals(file).map_err(unsealed)?;
    let size = u64::try_from(fstat(file).map_err(unsealed)?.st_size).unwrap_or(0);
    let kind = fstatfs(file).map_err(unsealed)?.f_type;
    if !seals.contains(SealFlags::SHRINK) || kind != libc::TMPFS_MAGIC {
        return Err(BadFile::Unsealed);
    }
    if size < end { Err(BadFile::Short(size)) } else { Ok(()) }
}

/// Bytes of a memory file that have no memory yet: whoever touches them first gets it, and has it on its account. At most `len`.
pub(super) fn sparse_size(file: BorrowedFd<'_>, len: u64) -> u64 {
    /// What a file's blocks are counted in, bytes.
    const BLOCK: u64 = 512;
    let Ok(stat) = fstat(file) else { return len };
    let [size, blocks] = [stat.st_size, stat.st_blocks].map(|count| u64::try_from(count).unwrap_or(0));
    size.saturating_sub(blocks.saturating_mul(BLOCK)).min(len)
}

/// Memory files of peers of at least this size together are unmapped by a thread: freeing them takes some 100 ms for each GiB. Bytes.
pub(super) const UNMAPPED_ELSEWHERE_MIN: u64 = 64 << 20;

/// A mapping of part of a memory file, shared with whoever else maps it.
#[derive(Debug)]
pub(super) struct Mapping {
    /// First mapped byte, page aligned.
    base: *mut u8,
    mapped: usize,
    /// Where the asked-for bytes begin. skip + len ≤ mapped
    skip: usize,
    len: usize,
    /// What it was charged with; given back when it is unmapped.
    charges: Vec<Charge>,
    /// Who unmaps it where that takes long, and for whom.
    closers: Option<(Arc<Closers>, Owner)>,
    /// Bytes of its file, where its release was asked about: the last mapping frees all of them.
    file_size: u64,
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
        let from = offset - offset % PAGE;
        let protection = if writable { ProtFlags::READ | ProtFlags::WRITE } else { ProtFlags::READ };
        let flags = MapFlags::SHARED | MapFlags::NORESERVE;
        // SAFETY: a new mapping at an address of the kernel's choice.
        let base = unsafe { mmap(std::ptr::null_mut(), mapped, protection, flags, file, from) }?;
        Ok(Self { base: base.cast(), mapped, skip, len, charges: Vec::new(), closers: None, file_size: 0 })
    }

    /// Whoever asked for it pays until it is unmapped.
    pub(super) fn charged(mut self, charges: Vec<Charge>) -> Self {
        self.charges = charges;
        self
    }

    /// It is unmapped elsewhere, on the account of an owner, where that takes long: the last mapping of a file frees all of it.
    pub(super) fn unmapped_by(mut self, file: BorrowedFd<'_>, closers: &Arc<Closers>, owner: &Owner) -> Self {
        self.file_size = fstat(file).map_or(u64::MAX, |stat| u64::try_from(stat.st_size).unwrap_or(0));
        if self.file_size >= UNMAPPED_ELSEWHERE_MIN {
            self.closers = Some((Arc::clone(closers), owner.clone()));
        }
        self
    }

    /// Bytes that unmapping it may free.
    pub(super) fn file_size(&self) -> u64 {
        self.file_size
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
        if let Some((closers, owner)) = self.closers.take() {
            let charges = std::mem::take(&mut self.charges);
            let mapped = std::mem::take(&mut self.mapped);
            closers.close(&owner, Left::Memory(Self { mapped, charges, closers: None, ..*self }));
        }
        if self.mapped == 0 {
            return;
        }
        // SAFETY: mapped in `new` with this length, unmapped once.
        let _ = unsafe { munmap(self.base.cast(), self.mapped) };
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
    let (Some(shared), Some(file)) = (memory.memory().shared_fd(), shared_file(memory)) else {
        return Ok(None);
    };
    let offset = shared.offset + memory.offset() as u64;
    check_memory_file(file, offset.saturating_add(memory.len() as u64))?;
    Ok(Some(offset))
}

/// The memory file that some memory lies in.
pub(super) fn shared_file(memory: &MemoryRef) -> Option<BorrowedFd<'_>> {
    // SAFETY: the memory owns the descriptor and outlives this borrow.
    memory.memory().shared_fd().map(|shared| unsafe { BorrowedFd::borrow_raw(shared.fd) })
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
