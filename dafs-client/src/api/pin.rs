//! Memory whose registration may be kept, because its owner promised not to free it.
#![allow(unsafe_code, reason = "the documented unsafe form that pins memory of the caller's")]

use std::ops::{Deref, DerefMut};
use std::sync::Arc;

use dafs_proto::transport::util::Home;

use crate::api::session::Session;
use crate::error::Result;
use crate::memory::registration::{Extent, PinId, Registrar, RegistrationCost, RegistrationCounters};

/// Memory that stays where it is while this lives, so that registrations of it are kept for later operations. [`Session::pin_raw`] makes
/// it.
#[must_use = "the memory is unpinned when this is dropped"]
pub struct Pin {
    registrar: Arc<Registrar>,
    id: PinId,
    home: Home,
}

/// A vector whose registration is kept from one operation to the next, within the bounds of [`crate::RegistrationConfig`].
/// [`Session::pin`] makes it.
///
/// It derefs to `[u8]`. It is for memory that comes from elsewhere; where the library may allocate, a [`crate::RegisteredBuf`] is better.
pub struct PinnedBuf {
    // Dropped before the memory.
    pin: Pin,
    bytes: Vec<u8>,
}

impl Session {
    /// Pins a vector. The first operation on a slice of it registers the slice; later ones find it registered, until others need the room
    /// ([`crate::RegistrationConfig`]). What is registered is within the server's reach meanwhile. Does not block.
    pub fn pin(&self, bytes: Vec<u8>) -> PinnedBuf {
        let mut bytes = bytes;
        let extent = Extent::new(bytes.as_mut_ptr() as usize, bytes.len());
        PinnedBuf { pin: self.pin_extent(extent), bytes }
    }

    /// Pins memory of the caller's, as [`Session::pin`] does. Does not block.
    ///
    /// # Safety
    /// While the pin lives the memory must stay mapped, readable and writable, with the same pages. Whoever frees, moves or empties it
    /// (`munmap`, `mremap`, `madvise` with `MADV_DONTNEED`) must call [`Session::invalidate`] before an operation uses it again. Operations
    /// on it must have ended when the pin is dropped. Where the kernel permits (userfaultfd), such changes are noticed all the same.
    pub unsafe fn pin_raw(&self, pointer: *mut u8, len: usize) -> Pin {
        self.pin_extent(Extent::new(pointer as usize, len))
    }

    /// Ends kept registrations that cover any of this memory: for whoever changes what is mapped there. Operations in flight keep theirs.
    /// The memory is not touched.
    pub fn invalidate(&self, pointer: *const u8, len: usize) {
        self.owner.shared.registrar.invalidate(Extent::new(pointer as usize, len));
    }

    /// Registers pinned memory now, so that the first operation finds it registered. Returns `false` where nothing is kept of it: it is not
    /// pinned, or was refused. Does not block.
    pub fn preregister(&self, memory: &[u8]) -> bool {
        let extent = Extent::new(memory.as_ptr() as usize, memory.len());
        self.owner.shared.registrar.preregister(extent)
    }

    /// Sets how many registrations are kept at most, instead of [`crate::RegistrationConfig::entries_max`]; 0 keeps none. The least
    /// recently used beyond that end at once, or with the operations that use them. Does not block.
    pub fn set_registrations_max(&self, count: usize) {
        self.owner.shared.registrar.set_entries_max(count);
    }

    /// How many registrations are kept at most.
    pub fn registrations_max(&self) -> usize {
        self.owner.shared.registrar.entries_max()
    }

    /// Counts of the registrations of ordinary memory so far.
    pub fn registration_counters(&self) -> RegistrationCounters {
        self.owner.shared.registrar.counters()
    }

    /// The cost of registering ordinary memory: as configured, or as measured. The first call may measure it, in some milliseconds.
    pub fn registration_cost(&self) -> Result<RegistrationCost> {
        Ok(self.owner.shared.registrar.cost()?)
    }

    fn pin_extent(&self, extent: Extent) -> Pin {
        let registrar = Arc::clone(&self.owner.shared.registrar);
        let id = registrar.pin(extent);
        Pin { registrar, id, home: Home::here() }
    }
}

impl Drop for Pin {
    fn drop(&mut self) {
        // In a child what registrations are kept in may be locked for ever.
        if self.home.is_here() {
            self.registrar.unpin(self.id);
        }
    }
}

impl std::fmt::Debug for Pin {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "Pin({:?})", self.id)
    }
}

impl PinnedBuf {
    /// The vector, no longer pinned.
    pub fn into_vec(self) -> Vec<u8> {
        let Self { pin, bytes } = self;
        drop(pin);
        bytes
    }
}

impl Deref for PinnedBuf {
    type Target = [u8];

    fn deref(&self) -> &[u8] {
        &self.bytes
    }
}

impl DerefMut for PinnedBuf {
    fn deref_mut(&mut self) -> &mut [u8] {
        &mut self.bytes
    }
}

impl std::fmt::Debug for PinnedBuf {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "PinnedBuf({} bytes)", self.bytes.len())
    }
}
