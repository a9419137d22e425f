//! The peer's regions, and leases of them: every access to the peer's memory is counted where the peer can see it.

use std::ops::Deref;
use std::os::fd::{AsFd, OwnedFd};
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};

use super::super::{Access, PeerFault, RegionError, RegionFault, RegionKey, RemoteRange, Span};
use super::closing::{Closers, Left};
use super::connection::Connection;
use super::handshake::malformed;
use super::layout::REGIONS_MAX;
use super::map::{BadFile, Mapping, UNMAPPED_ELSEWHERE_MIN, check_memory_file, sparse_size};
use super::sock::Files;
use crate::budget::{Budget, Charge, Owner};

// A region record, one cache line, at `Layout::record(owner, slot)`. The owner writes the first part, the other side the last.
/// `u64`: the region's key; 0 when there is none.
pub(super) const RECORD_KEY: usize = 0;
/// `u64`: its address in the owner's process, for ordinary memory.
pub(super) const RECORD_ADDRESS: usize = 8;
/// `u64`: its length, bytes.
pub(super) const RECORD_LEN: usize = 16;
/// `u32`: its [`Access`].
pub(super) const RECORD_ACCESS: usize = 24;
/// `u32`: accesses in progress.
pub(super) const RECORD_IN_USE: usize = 32;

/// Set in the key of ordinary memory, reached by cross-memory attach.
pub(super) const KEY_ORDINARY: u64 = 1 << 63;
const KEY_SLOT_MASK: u64 = REGIONS_MAX as u64 - 1;
/// Most address space that the regions of one peer may take here, bytes.
const MAPPED_SIZE_MAX: u64 = 64 << 30;

/// The record of a key.
pub(super) fn key_slot(key: u64) -> u16 {
    // Masked to 12 bits.
    u16::try_from(key & KEY_SLOT_MASK).unwrap_or(0)
}

/// What memory of all peers together may take here. Shared by all that must keep to it, such as the domains of a process.
#[derive(Clone, Debug)]
pub struct ShmLimits {
    /// Mappings of memory files, of which the kernel gives a process so many (`vm.max_map_count`).
    pub mappings: Arc<Budget>,
    /// Address space that they take, bytes.
    pub mapped: Arc<Budget>,
    /// Bytes of them that had no memory when they were registered: what this process would be charged with as the first to touch it.
    pub sparse: Arc<Budget>,
    /// Threads that close descriptors of other files, which takes as long as somebody else likes.
    pub closers: Arc<Closers>,
}

impl Default for ShmLimits {
    /// No limits: for a side whose only peer is the one that it chose.
    fn default() -> Self {
        let [mappings, mapped, sparse, threads] = std::array::from_fn(|_| Budget::unlimited());
        Self { mappings, mapped, sparse, closers: Closers::new(threads) }
    }
}

impl ShmLimits {
    /// `None` where the owner, or all together, would have too much.
    fn charge(&self, owner: &Owner, mapped: u64, sparse: u64) -> Option<Vec<Charge>> {
        let parts = [(&self.mappings, 1), (&self.mapped, mapped), (&self.sparse, sparse)];
        parts.into_iter().map(|(budget, amount)| budget.take(owner, amount)).collect()
    }
}

/// The peer's memory files that are mapped here, by record.
pub(super) struct RemoteRegions {
    // Grows to the highest record in use: at most REGIONS_MAX.
    slots: Vec<Option<RemoteRegion>>,
    mapped_size: u64,
    /// Mappings of regions that have ended, and bytes of their files. They are unmapped together.
    ended: Vec<Arc<Mapping>>,
    ended_size: u64,
    limits: ShmLimits,
    /// Whom they are charged to.
    owner: Owner,
}

#[derive(Clone)]
struct RemoteRegion {
    key: u64,
    len: u64,
    access: Access,
    /// Or why it could not be mapped, which is this side's trouble.
    mapping: Result<Arc<Mapping>, i32>,
}

/// What a range of the peer's memory turned out to be.
pub(super) enum Resolved {
    /// Mapped here: the mapping, and the first byte in it.
    Mapped(Arc<Mapping>, usize),
    /// Ordinary memory: its address in the peer's process.
    Ordinary(u64),
}

/// Why a range cannot be reached.
#[derive(Debug)]
pub(super) enum Unreachable {
    /// The peer's fault.
    Fault(RegionFault),
    /// No region with this key has arrived yet.
    Unknown,
    /// This side's trouble.
    System(std::io::Error),
}

impl Unreachable {
    /// As told to who asked for the region `key`.
    #[cold]
    pub(super) fn into_error(self, key: RegionKey) -> RegionError {
        match self {
            Self::Fault(fault) => RegionError::Fault(fault),
            Self::Unknown => RegionError::Fault(RegionFault::UnknownKey(key)),
            Self::System(source) => RegionError::System { what: "map memory of the peer", source },
        }
    }
}

impl RemoteRegions {
    pub(super) fn new(limits: ShmLimits, owner: Owner) -> Self {
        Self { slots: Vec::new(), mapped_size: 0, ended: Vec::new(), ended_size: 0, limits, owner }
    }

    /// The peer sent descriptors that are of no use here.
    pub(super) fn close(&self, files: Files) {
        self.limits.closers.close(&self.owner, Left::Files(files));
    }

    /// The peer registered a region in a memory file. Whether it is mapped.
    pub(super) fn register(
        &mut self,
        key: u64,
        (offset, len): (u64, u64),
        access: Access,
        file: &OwnedFd,
    ) -> Result<bool, PeerFault> {
        let slot = usize::from(key_slot(key));
        let end = offset
            .checked_add(len)
            .ok_or_else(|| malformed("end of a region in its memory file", offset, u64::MAX - len))?;
        if key & KEY_ORDINARY != 0 || key == 0 {
            return Err(malformed("key of a region in a memory file", key, KEY_ORDINARY - 1));
        }
        if self.slots.get(slot).is_some_and(Option::is_some) {
            return Err(malformed("region record, registered twice", slot as u64, REGIONS_MAX.into()));
        }
        let mapped_size = self.mapped_size.saturating_add(len);
        if mapped_size > MAPPED_SIZE_MAX {
            return Err(malformed("bytes of registered regions", mapped_size, MAPPED_SIZE_MAX));
        }
        let mapping = self.map(file, offset, end, access)?;
        if self.slots.len() <= slot {
            self.slots.resize(slot + 1, None);
        }
        self.mapped_size = mapped_size;
        let is_mapped = mapping.is_ok();
        self.slots[slot] = Some(RemoteRegion { key, len, access, mapping });
        Ok(is_mapped)
    }

    /// The peer ended a registration. Leases keep the mapping until they end.
    pub(super) fn unregister(&mut self, key: u64) -> Result<(), PeerFault> {
        match self.slots.get_mut(usize::from(key_slot(key))) {
            Some(slot) if slot.as_ref().is_some_and(|region| region.key == key) => {
                let Some(region) = slot.take() else { return Ok(()) };
                self.mapped_size -= region.len;
                self.end(region);
                Ok(())
            }
            _ => Err(malformed("key of a region that ends", key, 0)),
        }
    }

    fn end(&mut self, region: RemoteRegion) {
        if let Ok(mapping) = region.mapping {
            self.ended_size = self.ended_size.saturating_add(mapping.file_size());
            self.ended.push(mapping);
        }
    }

    /// Unmaps what has ended: elsewhere, where that takes long.
    pub(super) fn unmap_ended(&mut self) {
        let (ended, size) = (std::mem::take(&mut self.ended), std::mem::take(&mut self.ended_size));
        if size >= UNMAPPED_ELSEWHERE_MIN {
            self.limits.closers.close(&self.owner, Left::Mappings(ended));
        }
    }

    /// Maps a region, or says why this side cannot.
    fn map(
        &mut self,
        file: &OwnedFd,
        offset: u64,
        end: u64,
        access: Access,
    ) -> Result<Result<Arc<Mapping>, i32>, PeerFault> {
        match check_memory_file(file.as_fd(), end) {
            Ok(()) => {}
            Err(BadFile::Unsealed) => return Err(malformed("seals of a region's memory file", 0, 1)),
            Err(BadFile::Short(size)) => {
                return Err(malformed("end of a region in its memory file", end, size));
            }
        }
        let len = usize::try_from(end - offset).unwrap_or(usize::MAX);
        let sparse = sparse_size(file.as_fd(), end - offset);
        let mut charges = self.limits.charge(&self.owner, end - offset, sparse);
        // What has ended makes room, here and now: elsewhere that would be too late for this one.
        while charges.is_none()
            && let Some(ended) = self.ended.pop()
        {
            self.ended_size = self.ended_size.saturating_sub(ended.file_size());
            drop(ended);
            charges = self.limits.charge(&self.owner, end - offset, sparse);
        }
        let Some(charges) = charges else { return Ok(Err(libc::ENOMEM)) };
        match Mapping::new(file.as_fd(), offset, len, access.contains(Access::REMOTE_WRITE)) {
            Ok(mapping) => {
                let mapping =
                    mapping.charged(charges).unmapped_by(file.as_fd(), &self.limits.closers, &self.owner);
                Ok(Ok(Arc::new(mapping)))
            }
            Err(error) if error.raw_os_error() == Some(libc::EACCES) => {
                Err(malformed("rights on a region's memory file", 0, access.bits().into()))
            }
            Err(error) => Ok(Err(error.raw_os_error().unwrap_or(libc::ENOMEM))),
        }
    }

    fn find(&self, key: RegionKey) -> Option<&RemoteRegion> {
        let region = self.slots.get(usize::from(key_slot(key.0)))?.as_ref();
        region.filter(|region| region.key == key.0)
    }

    /// A memory file that holds a region of this key is mapped here.
    #[inline]
    pub(super) fn knows(&self, key: RegionKey) -> bool {
        self.find(key).is_some()
    }

    /// The mapping of a range in a memory file, which lies inside.
    #[inline]
    fn mapping(&self, range: &RemoteRange, access: Access) -> Result<&Arc<Mapping>, Unreachable> {
        let region = self.find(range.key).ok_or(Unreachable::Unknown)?;
        check(range, access, region.len, region.access)?;
        let failed = |code: &i32| Unreachable::System(std::io::Error::from_raw_os_error(*code));
        region.mapping.as_ref().map_err(failed)
    }

    /// The bytes of a range in a memory file that [`RemoteRegions::knows`]; they are mapped as long as `self` is not changed. The access
    /// must be counted already.
    #[inline]
    pub(super) fn mapped(&self, range: &RemoteRange, access: Access) -> Result<Span<'_>, Unreachable> {
        let mapping = self.mapping(range, access)?;
        range.within(mapping.span()).map_err(Unreachable::Fault)
    }

    /// Finds a range. A loan on it must be held already, so that what is found stays the peer's region.
    pub(super) fn resolve(
        &self,
        connection: &Connection,
        range: &RemoteRange,
        access: Access,
    ) -> Result<Resolved, Unreachable> {
        if range.key.0 & KEY_ORDINARY != 0 {
            return resolve_ordinary(connection, range, access);
        }
        let mapping = self.mapping(range, access)?;
        // In bounds of a mapping that exists, so it fits.
        Ok(Resolved::Mapped(Arc::clone(mapping), usize::try_from(range.offset).unwrap_or(0)))
    }
}

impl Drop for RemoteRegions {
    fn drop(&mut self) {
        for region in std::mem::take(&mut self.slots).into_iter().flatten() {
            self.end(region);
        }
        self.unmap_ended();
    }
}

/// The record was written by the peer and may change: private copies first. It can only ever lead into the peer's own memory.
fn resolve_ordinary(
    connection: &Connection,
    range: &RemoteRange,
    access: Access,
) -> Result<Resolved, Unreachable> {
    let record = connection.layout.record(connection.side.peer(), key_slot(range.key.0));
    let address = connection.segment.long(record + RECORD_ADDRESS).load(Ordering::Relaxed);
    let len = connection.segment.long(record + RECORD_LEN).load(Ordering::Relaxed);
    let bits = connection.segment.word(record + RECORD_ACCESS).load(Ordering::Relaxed);
    let rights = Access::from_bits_truncate(u8::try_from(bits & 3).unwrap_or(0));
    check(range, access, len, rights)?;
    let address = address.checked_add(range.offset).ok_or(Unreachable::Fault(RegionFault::OutOfBounds {
        key: range.key,
        offset: range.offset,
        len: range.len,
        region_len: len,
    }))?;
    Ok(Resolved::Ordinary(address))
}

fn check(range: &RemoteRange, access: Access, region_len: u64, rights: Access) -> Result<(), Unreachable> {
    rights.check(range.key, access).map_err(Unreachable::Fault)?;
    range.check_bounds(region_len).map_err(Unreachable::Fault)
}

/// Counts one access to a region of the peer, from before it looks the region up until it is done. The peer that
/// takes a region away waits for it.
pub(super) struct Counted<C: Deref<Target = Connection>> {
    connection: C,
    slot: u16,
}

/// An access that is counted for as long as this lives, wherever it goes.
pub(super) type Loan = Counted<Arc<Connection>>;

impl<C: Deref<Target = Connection>> Counted<C> {
    /// Begins an access; `None` when the peer has no such region (any more).
    #[inline]
    pub(super) fn begin(connection: C, key: RegionKey) -> Option<Self> {
        let counted = Self { connection, slot: key_slot(key.0) };
        // Counted first, then looked at; the owner takes the key away first, then looks at the count. One of the two sees the other.
        counted.count().fetch_add(1, Ordering::SeqCst);
        let record = counted.connection.layout.record(counted.connection.side.peer(), counted.slot);
        let live = counted.connection.segment.long(record + RECORD_KEY).load(Ordering::SeqCst);
        (live == key.0 && live != 0).then_some(counted)
    }

    #[inline]
    fn count(&self) -> &AtomicU32 {
        let record = self.connection.layout.record(self.connection.side.peer(), self.slot);
        self.connection.segment.word(record + RECORD_IN_USE)
    }
}

impl<C: Deref<Target = Connection>> Drop for Counted<C> {
    #[inline]
    fn drop(&mut self) {
        self.count().fetch_sub(1, Ordering::SeqCst);
    }
}
