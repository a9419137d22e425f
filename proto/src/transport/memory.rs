//! Memory that a peer, the kernel or hardware may change while we look at it.
//!
//! No Rust reference to such memory is ever made. A [`Span`] is a checked pointer and length, read and written by
//! copying; a [`MemoryRef`] owns a part of some [`Memory`]; a [`Region`] is memory that the peers may reach. The idea
//! of the checked span is vm-memory's `VolatileSlice`.
#![allow(unsafe_code, reason = "raw copies between spans; the one place where span memory is touched")]

use std::fmt;
use std::marker::PhantomData;
use std::os::fd::RawFd;
use std::sync::Arc;

use rustix::mm::{MapFlags, ProtFlags, mmap_anonymous, munmap};

use super::RegionFault;
use super::util::Home;

/// Bytes at an address of this process that stay mapped for `'a` and may change at any time.
#[derive(Clone, Copy)]
pub struct Span<'a> {
    pointer: *mut u8,
    len: usize,
    // Not `&'a [u8]`: the bytes may change under us.
    life: PhantomData<&'a ()>,
}

// SAFETY: a span is an address and a length; every access is a raw copy that tolerates concurrent change.
unsafe impl Send for Span<'_> {}
// SAFETY: as for Send.
unsafe impl Sync for Span<'_> {}

impl<'a> Span<'a> {
    /// No bytes.
    pub const EMPTY: Self = Self { pointer: std::ptr::dangling_mut(), len: 0, life: PhantomData };

    /// # Safety
    /// `pointer..pointer + len` must stay mapped, readable and writable for `'a`, and no Rust reference to it may be
    /// used during `'a` while this span or its copies are. For memory that may fault ([`Memory::may_fault`]) it must
    /// only be passed to the kernel.
    #[inline]
    pub unsafe fn from_raw(pointer: *mut u8, len: usize) -> Self {
        Self { pointer, len, life: PhantomData }
    }

    /// A span over memory that is borrowed exclusively.
    #[inline]
    pub fn from_mut(bytes: &'a mut [u8]) -> Self {
        Self { pointer: bytes.as_mut_ptr(), len: bytes.len(), life: PhantomData }
    }

    /// The address, for system calls.
    #[inline]
    pub fn as_ptr(&self) -> *mut u8 {
        self.pointer
    }

    /// Bytes.
    #[inline]
    pub fn len(&self) -> usize {
        self.len
    }

    /// No bytes.
    #[inline]
    pub fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// The part of `len` bytes from `offset`; `None` when it is not all inside.
    #[inline]
    pub fn slice(&self, offset: usize, len: usize) -> Option<Span<'a>> {
        if offset.checked_add(len)? > self.len {
            return None;
        }
        // SAFETY: the end was checked to lie inside this span.
        Some(unsafe { Span::from_raw(self.pointer.add(offset), len) })
    }

    /// What lies before a place, and what lies behind it; all and nothing where it ends before that.
    #[inline]
    pub fn split_at(self, place: usize) -> (Self, Self) {
        let place = place.min(self.len);
        // SAFETY: both parts lie inside this span.
        unsafe {
            (Self::from_raw(self.pointer, place), Self::from_raw(self.pointer.add(place), self.len - place))
        }
    }

    /// Copies `bytes` in at `offset`. Panics when they do not fit: a fault of the calling code.
    #[inline]
    pub fn write_from(&self, offset: usize, bytes: &[u8]) {
        let part = self.slice(offset, bytes.len()).expect("the caller checked that the bytes fit the span");
        // SAFETY: `part` is valid for writes of its length; `bytes` is a live reference, so does not overlap memory used as a span.
        unsafe { std::ptr::copy_nonoverlapping(bytes.as_ptr(), part.pointer, bytes.len()) }
    }

    /// Copies the bytes at `offset` out. Panics when they are not all there: a fault of the calling code.
    #[inline]
    pub fn read_into(&self, offset: usize, bytes: &mut [u8]) {
        let part = self.slice(offset, bytes.len()).expect("the caller checked that the span is long enough");
        // SAFETY: `part` is valid for reads of its length; `bytes` is an exclusive reference, so does not overlap memory used as a span.
        unsafe { std::ptr::copy_nonoverlapping(part.pointer, bytes.as_mut_ptr(), bytes.len()) }
    }

    /// A private copy of the `N` bytes at `offset`; `None` when they are not all there.
    #[inline]
    pub fn read_array<const N: usize>(&self, offset: usize) -> Option<[u8; N]> {
        let part = self.slice(offset, N)?;
        // SAFETY: `part` is valid for reads of N bytes, and any bytes are an array of bytes.
        Some(unsafe { part.pointer.cast::<[u8; N]>().read_unaligned() })
    }

    /// Copies from another span of the same length; the two may overlap. Panics when the lengths differ: a fault of the calling code.
    #[inline]
    pub fn copy_from(&self, source: Span<'_>) {
        assert_eq!(self.len, source.len, "spans of different length");
        // SAFETY: both are valid for their length; `copy` allows overlap.
        unsafe { std::ptr::copy(source.pointer, self.pointer, self.len) }
    }

    /// Copies from spans, one after the other, as far as there is room. Returns the room that is left.
    #[inline]
    pub fn gather<'s>(self, sources: impl IntoIterator<Item = Span<'s>>) -> Self {
        sources.into_iter().fold(self, |rest, source| {
            let (room, rest) = rest.split_at(source.len);
            room.copy_from(source.split_at(room.len).0);
            rest
        })
    }

    /// Copies to spans, one after the other, as far as they reach. Returns what is left.
    #[inline]
    pub fn scatter<'t>(self, targets: impl IntoIterator<Item = Span<'t>>) -> Self {
        targets.into_iter().fold(self, |rest, target| {
            let (part, rest) = rest.split_at(target.len);
            target.split_at(part.len).0.copy_from(part);
            rest
        })
    }

    /// Sets all bytes to zero.
    pub fn zero(&self) {
        // SAFETY: the span is valid for writes of its length.
        unsafe { std::ptr::write_bytes(self.pointer, 0, self.len) }
    }

    /// A private copy. The caller has bounded the length.
    pub fn to_vec(&self) -> Vec<u8> {
        let mut bytes = vec![0; self.len];
        self.read_into(0, &mut bytes);
        bytes
    }
}

/// The first `len` bytes of what lies behind the first `skip` bytes of some spans.
#[inline]
pub fn part_of<'a>(
    spans: impl IntoIterator<Item = Span<'a>>,
    mut skip: usize,
    mut len: usize,
) -> impl Iterator<Item = Span<'a>> {
    spans.into_iter().map(move |span| {
        let (skipped, rest) = span.split_at(skip);
        let (part, _) = rest.split_at(len);
        (skip, len) = (skip - skipped.len, len - part.len);
        part
    })
}

impl fmt::Debug for Span<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Span({:p}+{})", self.pointer, self.len)
    }
}

/// Memory that can be handed to a provider or to the kernel for the time of an operation, shared by reference count.
///
/// # Safety
/// [`Memory::span`] must always answer the same address and length, mapped for as long as `self` lives.
pub unsafe trait Memory: Send + Sync {
    /// All of it.
    fn span(&self) -> Span<'_>;

    /// Touching it from user space may raise SIGBUS (a mapped file that is truncated): pass it to system calls only, which answer EFAULT.
    fn may_fault(&self) -> bool {
        false
    }

    /// Of memory that may fault, the bytes at `offset` are all there. A file that is cut within a page has zeros in the rest of the page,
    /// which do not fault: only who asks after copying knows that no such zeros were copied. A look at the file; not blocking.
    fn is_there(&self, offset: usize, len: usize) -> bool {
        let _ = (offset, len);
        true
    }

    /// It is somebody else's again once the operation that uses it has ended: nothing that is kept for it may outlive that.
    fn is_lent(&self) -> bool {
        false
    }

    /// The descriptor behind it, where another process can map the same memory.
    fn shared_fd(&self) -> Option<SharedFd> {
        None
    }
}

/// A sealed memory file that backs some [`Memory`].
#[derive(Clone, Copy, Debug)]
pub struct SharedFd {
    /// The descriptor; owned by the memory.
    pub fd: RawFd,
    /// Where the memory begins in the file, bytes.
    pub offset: u64,
}

/// Zeroed memory of this process, page aligned.
pub struct HeapMemory {
    pointer: *mut u8,
    layout: std::alloc::Layout,
    /// It is a mapping of its own, of whole pages.
    is_mapped: bool,
}

// SAFETY: the allocation is owned, and only reached through spans.
unsafe impl Send for HeapMemory {}
// SAFETY: as for Send.
unsafe impl Sync for HeapMemory {}

impl HeapMemory {
    /// Page size that allocations are aligned to, bytes.
    pub const ALIGNMENT: usize = 4096;

    /// From so many bytes on, memory is a mapping of its own: the kernel's pages are zero already, and cost nothing before they are used.
    /// The allocator would clear aligned memory once more.
    const MAPPED_SIZE_MIN: usize = 256 << 10;

    /// Allocates `len` zeroed bytes, at least one; `None` when there is no memory.
    pub fn allocate(len: usize) -> Option<Self> {
        if len >= Self::MAPPED_SIZE_MIN {
            return Self::map(len);
        }
        let layout = std::alloc::Layout::from_size_align(len.max(1), Self::ALIGNMENT).ok()?;
        // SAFETY: the layout has a size above 0.
        let pointer = unsafe { std::alloc::alloc_zeroed(layout) };
        (!pointer.is_null()).then_some(Self { pointer, layout, is_mapped: false })
    }

    fn map(len: usize) -> Option<Self> {
        let layout = std::alloc::Layout::from_size_align(len.max(1), Self::ALIGNMENT).ok()?;
        let protection = ProtFlags::READ | ProtFlags::WRITE;
        let nowhere = std::ptr::null_mut();
        // SAFETY: a new mapping, of no file, where the kernel likes it.
        let pointer = unsafe { mmap_anonymous(nowhere, layout.size(), protection, MapFlags::PRIVATE) };
        Some(Self { pointer: pointer.ok()?.cast(), layout, is_mapped: true })
    }
}

impl Drop for HeapMemory {
    fn drop(&mut self) {
        // SAFETY: allocated in `allocate` with this layout, or mapped in `map` with this size; freed once.
        unsafe {
            if self.is_mapped {
                let _ = munmap(self.pointer.cast(), self.layout.size());
            } else {
                std::alloc::dealloc(self.pointer, self.layout);
            }
        }
    }
}

// SAFETY: the allocation neither moves nor shrinks before drop.
unsafe impl Memory for HeapMemory {
    fn span(&self) -> Span<'_> {
        // SAFETY: the allocation is valid for its layout's size while `self` lives, and never borrowed as a reference.
        unsafe { Span::from_raw(self.pointer, self.layout.size()) }
    }
}

/// Memory that somebody else owns.
pub struct BorrowedMemory {
    pointer: *mut u8,
    len: usize,
    lent: bool,
}

// SAFETY: only an address; the lender promised validity in `new`.
unsafe impl Send for BorrowedMemory {}
// SAFETY: as for Send.
unsafe impl Sync for BorrowedMemory {}

impl BorrowedMemory {
    /// # Safety
    /// The memory must stay valid, for reads and (where a peer or provider may write it) for writes, and must not be
    /// used through Rust references, until this value has been dropped.
    pub unsafe fn new(pointer: *mut u8, len: usize) -> Self {
        Self { pointer, len, lent: false }
    }

    /// Such memory for one operation: see [`Memory::is_lent`].
    ///
    /// # Safety
    /// As for [`BorrowedMemory::new`].
    pub unsafe fn lent(pointer: *mut u8, len: usize) -> Self {
        Self { pointer, len, lent: true }
    }
}

// SAFETY: the lender keeps it in place (see `new`).
unsafe impl Memory for BorrowedMemory {
    fn span(&self) -> Span<'_> {
        // SAFETY: promised by the lender in `new`.
        unsafe { Span::from_raw(self.pointer, self.len) }
    }

    fn is_lent(&self) -> bool {
        self.lent
    }
}

/// A part of some [`Memory`], keeping it alive.
#[derive(Clone)]
pub struct MemoryRef {
    memory: Arc<dyn Memory>,
    // Invariant: offset + len <= memory.span().len()
    offset: usize,
    len: usize,
}

impl MemoryRef {
    /// All of `memory`.
    pub fn new(memory: Arc<dyn Memory>) -> Self {
        let len = memory.span().len();
        Self { memory, offset: 0, len }
    }

    /// The part of `len` bytes from `offset`; `None` when it is not all inside.
    #[inline]
    pub fn slice(&self, offset: usize, len: usize) -> Option<Self> {
        (offset.checked_add(len)? <= self.len).then(|| Self {
            memory: Arc::clone(&self.memory),
            offset: self.offset + offset,
            len,
        })
    }

    /// The bytes.
    #[inline]
    pub fn span(&self) -> Span<'_> {
        self.memory.span().slice(self.offset, self.len).unwrap_or(Span::EMPTY)
    }

    /// Bytes.
    #[inline]
    pub fn len(&self) -> usize {
        self.len
    }

    /// No bytes.
    #[inline]
    pub fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// All of it is there: see [`Memory::is_there`].
    #[inline]
    pub fn is_there(&self) -> bool {
        self.is_empty() || self.memory.is_there(self.offset, self.len)
    }

    /// The memory this is a part of.
    pub fn memory(&self) -> &Arc<dyn Memory> {
        &self.memory
    }

    /// Where in [`MemoryRef::memory`] this part begins, bytes.
    pub fn offset(&self) -> usize {
        self.offset
    }
}

impl fmt::Debug for MemoryRef {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "MemoryRef({:?})", self.span())
    }
}

bitflags::bitflags! {
    /// What peers may do with a region.
    #[derive(Clone, Copy, Debug, PartialEq, Eq)]
    pub struct Access: u8 {
        /// Used by this side's own operations only.
        const LOCAL = 0;
        /// Peers may read it.
        const REMOTE_READ = 1;
        /// Peers may write it.
        const REMOTE_WRITE = 2;
    }
}

impl Access {
    /// Whether these rights of a region are enough for an access to it.
    #[inline]
    pub fn check(self, key: RegionKey, wanted: Self) -> Result<(), RegionFault> {
        if self.contains(wanted) {
            return Ok(());
        }
        let access = match (wanted.contains(Self::REMOTE_READ), wanted.contains(Self::REMOTE_WRITE)) {
            (true, true) => "remote read and write",
            (false, true) => "remote write",
            _ => "remote read",
        };
        Err(RegionFault::Access { key, access })
    }
}

/// The peer's name for a registered region. Providers choose keys that cannot be guessed or reused.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct RegionKey(pub u64);

impl fmt::Display for RegionKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:#x}", self.0)
    }
}

/// A range of the peer's registered memory, as it travels on the wire: key and bounds together.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RemoteRange {
    /// The region.
    pub key: RegionKey,
    /// First byte, counted from where the provider says the region begins ([`Region::range`]).
    pub offset: u64,
    /// Bytes.
    pub len: u64,
}

impl RemoteRange {
    /// The part of `len` bytes from `offset`; `None` when it is not all inside.
    #[inline]
    pub fn slice(&self, offset: u64, len: u64) -> Option<Self> {
        (offset.checked_add(len)? <= self.len).then_some(())?;
        Some(Self { key: self.key, offset: self.offset.checked_add(offset)?, len })
    }

    /// The smallest range that holds some of one region; `None` where an end lies beyond all memory.
    pub fn covering(ranges: &[Self]) -> Option<Self> {
        let (mut from, mut to) = (u64::MAX, 0);
        for range in ranges {
            from = from.min(range.offset);
            to = to.max(range.offset.checked_add(range.len)?);
        }
        Some(Self { key: ranges.first()?.key, offset: from, len: to.checked_sub(from)? })
    }

    /// The bytes of a region that begins at offset 0, if they are all inside.
    #[inline]
    pub fn within<'a>(&self, region: Span<'a>) -> Result<Span<'a>, RegionFault> {
        self.check_bounds(region.len() as u64)?;
        // Inside memory that exists, so both fit.
        let [offset, len] =
            [self.offset, self.len].map(|number| usize::try_from(number).unwrap_or(usize::MAX));
        Ok(region.slice(offset, len).unwrap_or(Span::EMPTY))
    }

    /// Checks that this range lies in a region of `region_len` bytes that begins at offset 0.
    pub fn check_bounds(&self, region_len: u64) -> Result<(), RegionFault> {
        match self.offset.checked_add(self.len) {
            Some(end) if end <= region_len => Ok(()),
            _ => Err(RegionFault::OutOfBounds {
                key: self.key,
                offset: self.offset,
                len: self.len,
                region_len,
            }),
        }
    }
}

/// Ends registrations for [`Region`]; implemented by providers.
pub trait RegionOwner: Send + Sync {
    /// Ends the registration. When it returns, no peer access to the memory happens any more.
    fn deregister(&self, key: RegionKey);
}

/// A live registration. Dropping it ends all remote access to the memory; in a child of the process that made it, nothing.
pub struct Region {
    range: RemoteRange,
    memory: MemoryRef,
    owner: Arc<dyn RegionOwner>,
    home: Home,
}

impl Region {
    /// For providers: a registration that `owner` has just made.
    pub fn new(range: RemoteRange, memory: MemoryRef, owner: Arc<dyn RegionOwner>) -> Self {
        Self { range, memory, owner, home: Home::here() }
    }

    /// What the peer needs to reach all of it.
    pub fn range(&self) -> RemoteRange {
        self.range
    }

    /// The memory.
    pub fn memory(&self) -> &MemoryRef {
        &self.memory
    }
}

impl Drop for Region {
    fn drop(&mut self) {
        if self.home.is_here() {
            self.owner.deregister(self.range.key);
        }
    }
}

impl fmt::Debug for Region {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Region").field("range", &self.range).field("memory", &self.memory).finish()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn heap_memory_of_either_kind_is_zero_aligned_and_of_its_length() {
        let edge = HeapMemory::MAPPED_SIZE_MIN;
        for len in [0, 1, 4095, 4096, 4097, edge - 1, edge, edge + 1] {
            let memory = HeapMemory::allocate(len).unwrap();
            let span = memory.span();
            assert_eq!((span.len(), memory.is_mapped), (len.max(1), len >= edge));
            assert_eq!(span.as_ptr() as usize % HeapMemory::ALIGNMENT, 0);
            assert!(span.to_vec().iter().all(|byte| *byte == 0));
            span.write_from(span.len() - 1, &[7]);
            assert_eq!(span.to_vec().last(), Some(&7));
        }
        assert!(HeapMemory::allocate(usize::MAX / 2).is_none());
    }
}
