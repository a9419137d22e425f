//! Memory of transfers: the caller's, seen through raw spans, registered buffers, and what of it is registered. Knows no operation.
//! Imports none of the other rooms.
#![allow(
    unsafe_code,
    reason = "spans over the caller's memory for the time of an operation, and slices of registered buffers"
)]

pub(crate) mod registration;

use std::io::{ErrorKind, IoSlice, IoSliceMut};
use std::ops::{Deref, DerefMut};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, PoisonError};

use dafs_proto::transport::{
    Access, BorrowedMemory, Domain, MemoryRef, Region, RegionError, RemoteRange, Span,
};
use smallvec::SmallVec;

/// Memory of the caller that stays valid, and is touched by nobody else, until the operation that holds this has ended.
#[derive(Clone, Copy)]
pub(crate) struct RawMemory {
    pointer: *mut u8,
    len: usize,
}

// SAFETY: an address and a length; whoever made it promised validity (see `new`).
unsafe impl Send for RawMemory {}
// SAFETY: as for Send.
unsafe impl Sync for RawMemory {}

impl RawMemory {
    /// # Safety
    /// The bytes must stay valid for reads, and for writes where an operation reads into them, and be used by nobody
    /// else, until the operation has ended.
    pub(crate) unsafe fn new(pointer: *mut u8, len: usize) -> Self {
        Self { pointer, len }
    }

    /// For memory that a blocking call fills: the caller guarantees, by waiting for the operation's end before it
    /// returns, that the borrow outlives the operation.
    pub(crate) fn of_mut(bytes: &mut [u8]) -> Self {
        Self { pointer: bytes.as_mut_ptr(), len: bytes.len() }
    }

    /// For memory that a blocking call sends; never written.
    pub(crate) fn of(bytes: &[u8]) -> Self {
        Self { pointer: bytes.as_ptr().cast_mut(), len: bytes.len() }
    }

    /// As [`RawMemory::of_mut`], of several slices.
    pub(crate) fn all_of_mut(slices: &mut [IoSliceMut<'_>]) -> SmallVec<[Self; 1]> {
        slices.iter_mut().map(|slice| Self::of_mut(slice)).collect()
    }

    /// As [`RawMemory::of`], of several slices.
    pub(crate) fn all_of(slices: &[IoSlice<'_>]) -> SmallVec<[Self; 1]> {
        slices.iter().map(|slice| Self::of(slice)).collect()
    }

    pub(crate) fn len(&self) -> usize {
        self.len
    }

    pub(crate) fn address(&self) -> usize {
        self.pointer as usize
    }

    pub(crate) fn span(&self) -> Span<'_> {
        // SAFETY: valid until the operation has ended, by the promise of the constructors.
        unsafe { Span::from_raw(self.pointer, self.len) }
    }

    /// A part of it; `None` when it is not all inside.
    pub(crate) fn slice(&self, from: usize, len: usize) -> Option<Self> {
        let end = from.checked_add(len)?;
        (end <= self.len).then(|| Self { pointer: self.pointer.wrapping_add(from), len })
    }
}

impl RawMemory {
    /// For RDMA that this side posts, which is over before the operation ends.
    pub(crate) fn lend(&self) -> MemoryRef {
        // SAFETY: as in `register`: an operation does not end before what it posted is done, or its endpoint is gone.
        MemoryRef::new(Arc::new(unsafe { BorrowedMemory::lent(self.pointer, self.len) }))
    }
}

/// Says once in a process that memory could not be registered, why, and what can be done: everything works, more slowly.
#[cold]
pub(crate) fn tell_once(error: &RegionError) {
    static TOLD: AtomicBool = AtomicBool::new(false);
    if TOLD.swap(true, Ordering::Relaxed) {
        tracing::debug!("memory is not registered: {error}");
    } else {
        tracing::warn!("cannot register memory: {error}; data is copied, or goes in messages");
    }
}

/// Says why memory is copied and not registered for an operation.
#[cold]
pub(crate) fn tell_of_refusal(error: &RegionError) {
    match error {
        // Some memory cannot be registered, ever: nobody need do anything about that.
        RegionError::System { source, .. } if source.kind() == ErrorKind::OutOfMemory => tell_once(error),
        _ => tracing::debug!("memory is bounced, not registered: {error}"),
    }
}

/// One registration, shared by the parts of a buffer.
struct Registration {
    memory: MemoryRef,
    /// `None`: it could not be registered, and is ordinary memory.
    range: Option<RemoteRange>,
    region: Mutex<Option<Region>>,
    revoked: AtomicBool,
    domain: Arc<dyn Domain>,
}

/// Memory that the server can reach by RDMA. It is registered once, so transfers to and from it need neither copies nor registration.
///
/// [`crate::Session::buffer`] makes it. Every session that shares that session's domain can use it. It has one owner, like a `Vec`, and
/// derefs to `[u8]`; [`RegisteredBuf::split_off`] gives a part of the memory to another owner. While an operation owns the buffer nobody
/// else can read or write it. The memory is freed when the last part is dropped.
///
/// When a session ends while the server may be moving data of a buffer, its registration ends too, so that the memory is the caller's
/// alone. Such a buffer is still memory, but transfers with it fail with [`crate::Error::Invalid`].
pub struct RegisteredBuf {
    registration: Arc<Registration>,
    // Invariant: offset + len <= registration.memory.len()
    offset: usize,
    len: usize,
}

impl RegisteredBuf {
    pub(crate) fn allocate(domain: &Arc<dyn Domain>, len: usize) -> Result<Self, RegionError> {
        let memory = MemoryRef::new(domain.allocate(len.max(1))?);
        let region = domain.register(memory.clone(), Access::REMOTE_READ | Access::REMOTE_WRITE)?;
        Ok(Self::of(domain, memory, Some(region), len))
    }

    /// As [`RegisteredBuf::allocate`]; ordinary memory where the system lets no more be registered.
    pub(crate) fn allocate_at_best(domain: &Arc<dyn Domain>, len: usize) -> Result<Self, RegionError> {
        match Self::allocate(domain, len) {
            Err(error @ RegionError::System { .. }) => {
                // Without the memory itself there is nothing to fall back to.
                let memory = MemoryRef::new(domain.allocate(len.max(1))?);
                tell_once(&error);
                Ok(Self::of(domain, memory, None, len))
            }
            allocated => allocated,
        }
    }

    fn of(domain: &Arc<dyn Domain>, memory: MemoryRef, region: Option<Region>, len: usize) -> Self {
        let registration = Registration {
            range: region.as_ref().map(Region::range),
            memory,
            region: Mutex::new(region),
            revoked: AtomicBool::new(false),
            domain: Arc::clone(domain),
        };
        Self { registration: Arc::new(registration), offset: 0, len }
    }

    /// Whether it is registered. It is ordinary memory where the system let no more be registered (its limit of locked memory). Everything
    /// works then, with a copy.
    pub fn is_registered(&self) -> bool {
        self.registration.range.is_some()
    }

    /// Keeps the first `at` bytes and returns the rest as another buffer with the same registration. Panics when `at` is beyond the end.
    pub fn split_off(&mut self, at: usize) -> Self {
        assert!(at <= self.len, "split at {at} of a buffer of {} bytes", self.len);
        let rest = Self {
            registration: Arc::clone(&self.registration),
            offset: self.offset + at,
            len: self.len - at,
        };
        self.len = at;
        rest
    }

    /// Joins a part that directly follows this one in the same registration. Returns it when it does not.
    pub fn unsplit(&mut self, rest: Self) -> Result<(), Self> {
        if Arc::ptr_eq(&self.registration, &rest.registration) && rest.offset == self.offset + self.len {
            self.len += rest.len;
            Ok(())
        } else {
            Err(rest)
        }
    }

    /// The buffer that a part of this one's memory is, once more, for interfaces whose callers keep pointers; `None` where the part is not
    /// inside of it.
    ///
    /// # Safety
    /// While the result is used, nobody uses that part otherwise: neither this buffer nor another alias.
    #[doc(hidden)]
    pub unsafe fn alias(&self, pointer: *const u8, len: usize) -> Option<Self> {
        let from = (pointer as usize).checked_sub(self.raw().address())?;
        let fits = from.checked_add(len).is_some_and(|end| end <= self.len);
        fits.then(|| Self { registration: Arc::clone(&self.registration), offset: self.offset + from, len })
    }

    /// What the server reaches; `None` when the registration has ended or is of another domain.
    pub(crate) fn range_in(&self, domain: &Arc<dyn Domain>) -> Option<RemoteRange> {
        let registration = &self.registration;
        if registration.revoked.load(Ordering::Acquire) || !Arc::ptr_eq(&registration.domain, domain) {
            return None;
        }
        registration.range?.slice(self.offset as u64, self.len as u64)
    }

    /// The memory itself, kept as long as anybody has this.
    pub(crate) fn memory(&self) -> Option<MemoryRef> {
        self.registration.memory.slice(self.offset, self.len)
    }

    /// As [`RegisteredBuf::memory`], of a part that was cut from [`RegisteredBuf::raw`].
    pub(crate) fn memory_of(&self, part: &RawMemory) -> Option<MemoryRef> {
        let from = part.address().checked_sub(self.raw().address())?;
        self.registration.memory.slice(self.offset + from, part.len())
    }

    pub(crate) fn raw(&self) -> RawMemory {
        let span = self.span();
        RawMemory { pointer: span.as_ptr(), len: span.len() }
    }

    pub(crate) fn span(&self) -> Span<'_> {
        self.registration.memory.span().slice(self.offset, self.len).unwrap_or(Span::EMPTY)
    }

    /// Ends the registration: afterwards no peer reaches the memory.
    pub(crate) fn revoke(&self) {
        self.registration.revoke();
    }

    /// None of its bytes, by which the registration can be ended while the buffer is lent to an operation.
    pub(crate) fn revocation(&self) -> Self {
        Self { registration: Arc::clone(&self.registration), offset: self.offset, len: 0 }
    }
}

impl Registration {
    fn revoke(&self) {
        self.revoked.store(true, Ordering::Release);
        drop(self.region.lock().unwrap_or_else(PoisonError::into_inner).take());
    }
}

impl Deref for RegisteredBuf {
    type Target = [u8];

    fn deref(&self) -> &[u8] {
        let span = self.span();
        // SAFETY: initialised memory that lives as long as `self`; parts do not overlap, and operations own the
        // buffer, so nobody of this process writes it. A server writes it only for an operation that owns the buffer.
        unsafe { std::slice::from_raw_parts(span.as_ptr(), span.len()) }
    }
}

impl DerefMut for RegisteredBuf {
    fn deref_mut(&mut self) -> &mut [u8] {
        let span = self.span();
        // SAFETY: as in `deref`; `self` is borrowed exclusively.
        unsafe { std::slice::from_raw_parts_mut(span.as_ptr(), span.len()) }
    }
}

impl std::fmt::Debug for RegisteredBuf {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self.registration.range {
            Some(range) => write!(f, "RegisteredBuf({} bytes of {})", self.len, range.key),
            None => write!(f, "RegisteredBuf({} bytes, not registered)", self.len),
        }
    }
}

/// What an operation owns for its time.
pub(crate) enum Keep {
    /// Nothing: the caller waits, or promised to.
    None,
    /// A vector.
    Vec(Vec<u8>),
    /// A registered buffer.
    Registered(RegisteredBuf),
    /// Several of these, of a list.
    Many(Vec<Keep>),
}

impl Keep {
    pub(crate) fn raw(&mut self) -> RawMemory {
        match self {
            Self::None | Self::Many(_) => RawMemory { pointer: std::ptr::dangling_mut(), len: 0 },
            Self::Vec(bytes) => RawMemory::of_mut(bytes),
            Self::Registered(buffer) => buffer.raw(),
        }
    }

    /// The buffers of a list or a batch, in order.
    pub(crate) fn unpacked<B: IoBuffer>(self) -> Vec<B> {
        match self {
            Self::Many(keeps) => keeps.into_iter().map(|keep| B::from_keep(KeepBox(keep))).collect(),
            Self::None | Self::Vec(_) | Self::Registered(_) => Vec::new(),
        }
    }

    /// The connection is gone for good: no peer may reach the memory any more.
    pub(crate) fn revoke(&self) {
        match self {
            Self::Registered(buffer) => buffer.revoke(),
            Self::Many(keeps) => keeps.iter().for_each(Self::revoke),
            Self::None | Self::Vec(_) => {}
        }
    }
}

mod sealed {
    pub trait Sealed {}
    impl Sealed for Vec<u8> {}
    impl Sealed for super::RegisteredBuf {}
    impl Sealed for super::Lent {}
}

/// Memory that a nonblocking operation can own: a `Vec<u8>`, of which all `len` bytes take part, or a [`RegisteredBuf`].
pub trait IoBuffer: sealed::Sealed + Send + 'static + Sized {
    #[doc(hidden)]
    fn into_keep(self) -> KeepBox;
    #[doc(hidden)]
    fn from_keep(keep: KeepBox) -> Self;
}

/// Carries a buffer into an operation and back.
#[doc(hidden)]
pub struct KeepBox(pub(crate) Keep);

impl IoBuffer for Vec<u8> {
    fn into_keep(self) -> KeepBox {
        KeepBox(Keep::Vec(self))
    }

    fn from_keep(keep: KeepBox) -> Self {
        match keep.0 {
            Keep::Vec(bytes) => bytes,
            _ => unreachable!("an operation gives back what it was given"),
        }
    }
}

impl IoBuffer for RegisteredBuf {
    fn into_keep(self) -> KeepBox {
        KeepBox(Keep::Registered(self))
    }

    fn from_keep(keep: KeepBox) -> Self {
        match keep.0 {
            Keep::Registered(buffer) => buffer,
            _ => unreachable!("an operation gives back what it was given"),
        }
    }
}

/// Stands for memory that its owner has lent to an operation by address, and has all along: [`crate::OwnedBatch::read_list_raw`].
#[derive(Clone, Copy, Debug, Default)]
pub struct Lent;

impl IoBuffer for Lent {
    fn into_keep(self) -> KeepBox {
        KeepBox(Keep::None)
    }

    fn from_keep(_: KeepBox) -> Self {
        Self
    }
}

/// Registered buffers of the library, for memory that cannot be registered.
pub(crate) struct BounceBuffers {
    buffer: RegisteredBuf,
    chunk_size: usize,
    free: Vec<u16>,
}

impl BounceBuffers {
    /// The largest part of a bounced transfer, bytes: what one request moves.
    pub(crate) const CHUNK_SIZE: usize = 256 * 1024;

    pub(crate) fn allocate(domain: &Arc<dyn Domain>, size: usize) -> Result<Self, RegionError> {
        let chunk_size = Self::CHUNK_SIZE.min(size);
        let mut chunks = u16::try_from(size / chunk_size.max(1)).unwrap_or(u16::MAX).max(1);
        loop {
            match RegisteredBuf::allocate(domain, chunk_size * usize::from(chunks)) {
                Ok(buffer) => return Ok(Self { buffer, chunk_size, free: (0..chunks).rev().collect() }),
                // Fewer may be within the limit of locked memory.
                Err(RegionError::System { .. }) if chunks > 1 => chunks /= 2,
                Err(error) => return Err(error),
            }
        }
    }

    pub(crate) fn take(&mut self) -> Option<u16> {
        self.free.pop()
    }

    pub(crate) fn give_back(&mut self, chunk: u16) {
        self.free.push(chunk);
    }

    pub(crate) fn chunk_size(&self) -> usize {
        self.chunk_size
    }

    pub(crate) fn span(&self, chunk: u16, len: usize) -> Span<'_> {
        let at = usize::from(chunk) * self.chunk_size;
        self.buffer.span().slice(at, len).unwrap_or(Span::EMPTY)
    }

    pub(crate) fn range(&self, chunk: u16, len: usize) -> Option<RemoteRange> {
        let at = usize::from(chunk) * self.chunk_size;
        self.buffer.registration.range?.slice(at as u64, len as u64)
    }
}
