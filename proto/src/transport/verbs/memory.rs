//! Memory that peers reach, and memory that this side's own work requests use.

use std::collections::HashMap;
use std::io;
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Arc, Mutex, OnceLock, Weak};

use super::super::util::{RandomNumbers, lock};
use super::super::{
    Access, HeapMemory, Memory, MemoryRef, Region, RegionError, RegionFault, RegionKey, RegionOwner,
    RemoteRange, Span,
};
use super::buffers::BufferPool;
use super::device::{Device, MemoryRegion, RegistrationError, Rights};

/// Regions of one domain.
const REGIONS_MAX: usize = 1 << 18;

/// Memory smaller than this is copied rather than registered for this side's own use, bytes.
const PINNED_SIZE_MIN: usize = 16 << 10;

/// Smallest bounce buffer, bytes.
const BOUNCE_SIZE_MIN: usize = 16 << 10;

/// Free bounce buffers kept, bytes.
const BOUNCE_KEPT_MAX: usize = 8 << 20;

/// The low bits of an address that peers see as they are: so the device can use large pages, and the rest is random.
const ADDRESS_LOW_BITS: u64 = (1 << 21) - 1;
/// Where the addresses lie that peers see.
const ADDRESS_BITS: u64 = (1 << 62) - 1;

/// What the peers of a domain reach.
///
/// A key is the device's 32 bits and, above them, a number that is never used again. The device checks its own 32 bits, the rights
/// and the address; the address begins at a random place, so that range as a whole cannot be guessed, nor come again.
#[derive(Default)]
pub(super) struct Registry {
    regions: Mutex<HashMap<RegionKey, Registered>>,
    random: Mutex<RandomNumbers>,
    generation: AtomicU32,
}

struct Registered {
    // `None`: no bytes, so there is nothing to reach.
    _region: Option<MemoryRegion>,
    address: u64,
    len: u64,
    access: Access,
}

impl Registry {
    pub(super) fn register(
        self: &Arc<Self>,
        device: &Arc<Device>,
        memory: MemoryRef,
        access: Access,
    ) -> Result<Region, RegionError> {
        if self.len() >= REGIONS_MAX {
            return Err(RegionError::TooMany { limit: REGIONS_MAX });
        }
        let address = place(&mut lock(&self.random), memory.span().as_ptr() as u64)?;
        let region = if memory.is_empty() {
            None
        } else {
            let register = device.register(memory.clone(), Rights::Remote(access), Some(address));
            Some(register.map_err(|error| RegionError::System {
                what: "register memory for RDMA",
                source: error.into(),
            })?)
        };
        let device_key = region.as_ref().map_or(0, MemoryRegion::remote_key);
        let len = memory.len() as u64;
        let mut regions = lock(&self.regions);
        let key = unused_key(&regions, &self.generation, device_key);
        regions.insert(key, Registered { _region: region, address, len, access });
        drop(regions);
        let range = RemoteRange { key, offset: address, len };
        Ok(Region::new(range, memory, Arc::clone(self) as Arc<dyn RegionOwner>))
    }

    /// Checks an operation of 0 bytes, which the device does not.
    pub(super) fn check_empty(&self, key: RegionKey, offset: u64, access: Access) -> Result<(), RegionFault> {
        let regions = lock(&self.regions);
        let registered = regions.get(&key).ok_or(RegionFault::UnknownKey(key))?;
        registered.access.check(key, access)?;
        match offset.checked_sub(registered.address) {
            Some(inside) if inside <= registered.len => Ok(()),
            _ => Err(RegionFault::OutOfBounds { key, offset, len: 0, region_len: registered.len }),
        }
    }

    pub(super) fn len(&self) -> usize {
        lock(&self.regions).len()
    }
}

/// A key with the device's part. Numbers begin again after 2³²: then never with one whose region is there.
fn unused_key<T>(regions: &HashMap<RegionKey, T>, generation: &AtomicU32, device_key: u32) -> RegionKey {
    loop {
        let number = generation.fetch_add(1, Ordering::Relaxed);
        let key = RegionKey(u64::from(number) << 32 | u64::from(device_key));
        if !regions.contains_key(&key) {
            return key;
        }
    }
}

/// The address that peers see of memory at `own`: another each time.
fn place(random: &mut RandomNumbers, own: u64) -> Result<u64, RegionError> {
    Ok(random.draw()? & ADDRESS_BITS & !ADDRESS_LOW_BITS | own & ADDRESS_LOW_BITS)
}

impl RegionOwner for Registry {
    fn deregister(&self, key: RegionKey) {
        // The device's part, which takes its time, happens without the lock.
        let gone = lock(&self.regions).remove(&key);
        drop(gone);
    }
}

/// Registrations of memory that this side's own work requests name, kept while the memory lives. One of lent memory ends with its use.
///
/// They are found by the address of the memory's owner. A weak reference keeps that address from being given to another, so an
/// entry either is of the memory that is asked for, or of one that is gone; then it is taken out with the next registration.
#[derive(Default)]
pub(super) struct PinCache {
    pinned: Mutex<HashMap<usize, Pinned>>,
}

struct Pinned {
    owner: Weak<dyn Memory>,
    region: Arc<MemoryRegion>,
}

/// Registered memory that belongs to an operation.
pub(super) type Pin = Arc<MemoryRegion>;

impl PinCache {
    /// The registration of the memory that `part` belongs to; `None` where copying is better, or all there is.
    pub(super) fn pin(&self, device: &Arc<Device>, part: &MemoryRef) -> Option<Pin> {
        let memory = part.memory();
        let len = if memory.is_lent() { part.len() } else { memory.span().len() };
        if memory.may_fault() || len < PINNED_SIZE_MIN {
            return None;
        }
        if memory.is_lent() {
            let registered = device.register(part.clone(), Rights::Destination, None);
            return registered.inspect_err(copied_instead).ok().map(Arc::new);
        }
        let place = Arc::as_ptr(memory).cast::<()>() as usize;
        // On iWARP the registration is one of those that have it.
        let own = usize::from(!device.limits.peers_wait);
        let mut pinned = lock(&self.pinned);
        if let Some(found) = pinned.get(&place).filter(|found| found.owner.strong_count() > own) {
            return Some(Arc::clone(&found.region));
        }
        // First what nobody has any more: its pages stay locked until then, and it may stand in the way.
        pinned.retain(|_, pinned| pinned.owner.strong_count() > own);
        let registered = device.register_unkept(memory).inspect_err(copied_instead);
        let region = Arc::new(registered.ok()?);
        pinned.insert(place, Pinned { owner: Arc::downgrade(memory), region: Arc::clone(&region) });
        Some(region)
    }

    /// Gives back what no operation uses now. Tells whether there was anything.
    pub(super) fn shrink(&self) -> bool {
        let mut pinned = lock(&self.pinned);
        let idle: Vec<_> = pinned.extract_if(|_, pinned| Arc::strong_count(&pinned.region) == 1).collect();
        drop(pinned);
        !idle.is_empty()
    }
}

fn copied_instead(error: &RegistrationError) {
    tracing::debug!(%error, "memory is copied instead");
}

/// A registered buffer that data passes through when its own memory is not registered.
pub(super) struct BounceBuffer {
    memory: MemoryRef,
    region: MemoryRegion,
}

impl BounceBuffer {
    pub(super) fn span(&self) -> Span<'_> {
        self.memory.span()
    }

    pub(super) fn key(&self) -> u32 {
        self.region.local_key()
    }
}

/// Free bounce buffers of a domain.
#[derive(Default)]
pub(super) struct BouncePool {
    free: Mutex<Vec<BounceBuffer>>,
}

impl BouncePool {
    /// A buffer of at least `len` bytes.
    pub(super) fn take(&self, device: &Arc<Device>, len: usize) -> io::Result<BounceBuffer> {
        let size = len.max(BOUNCE_SIZE_MIN).next_power_of_two();
        let mut free = lock(&self.free);
        if let Some(place) = free.iter().position(|bounce| bounce.memory.len() == size) {
            return Ok(free.swap_remove(place));
        }
        drop(free);
        registered_buffer(device, size, Rights::Destination)
            .map(|(memory, region)| BounceBuffer { memory, region })
    }

    pub(super) fn give_back(&self, bounce: BounceBuffer) {
        let mut free = lock(&self.free);
        let kept: usize = free.iter().map(|bounce| bounce.memory.len()).sum();
        if kept + bounce.memory.len() <= BOUNCE_KEPT_MAX {
            free.push(bounce);
        }
    }

    /// Gives free buffers back to the system. Tells whether there were any.
    pub(super) fn shrink(&self) -> bool {
        !std::mem::take(&mut *lock(&self.free)).is_empty()
    }
}

/// Fresh memory, registered.
pub(super) fn registered_buffer(
    device: &Arc<Device>,
    size: usize,
    rights: Rights,
) -> io::Result<(MemoryRef, MemoryRegion)> {
    let memory = HeapMemory::allocate(size).ok_or(io::ErrorKind::OutOfMemory)?;
    let memory = MemoryRef::new(Arc::new(memory));
    let region = device.register(memory.clone(), rights, None)?;
    Ok((memory, region))
}

/// What the connections of a domain share.
#[derive(Default)]
pub(super) struct VerbsDomainParts {
    pub(super) device: OnceLock<Arc<Device>>,
    pub(super) registry: Arc<Registry>,
    pub(super) pins: PinCache,
    pub(super) bounce: BouncePool,
    pub(super) buffers: BufferPool,
}

impl VerbsDomainParts {
    /// Gives registered memory back that is only kept for later. Tells whether there was any.
    #[cold]
    pub(super) fn shrink(&self) -> bool {
        self.pins.shrink() | self.bounce.shrink() | self.buffers.shrink()
    }
}

#[cfg(test)]
mod tests {
    use std::collections::HashSet;

    use super::*;

    /// [VERBS-68]
    #[test]
    fn key_of_a_live_region_is_not_reused_after_wraparound() {
        let (mut regions, generation) = (HashMap::new(), AtomicU32::new(u32::MAX - 1));
        let keys: Vec<_> = (0..4)
            .map(|_| {
                let key = unused_key(&regions, &generation, 7);
                assert!(regions.insert(key, ()).is_none(), "{key:?}");
                key.0 >> 32
            })
            .collect();
        assert_eq!(keys, [0xffff_fffe, 0xffff_ffff, 0, 1]);
        generation.store(u32::MAX, Ordering::Relaxed);
        assert_eq!(unused_key(&regions, &generation, 7).0, 2 << 32 | 7);
    }

    // [VERBS-69]
    #[test]
    fn places_of_one_memory_differ_in_every_bit_above_the_low_ones() {
        let own = 0x7f12_3456_789a_bcde;
        let mut random = RandomNumbers::default();
        let places: Vec<u64> = (0..1000).map(|_| place(&mut random, own).unwrap()).collect();
        assert!(places.iter().all(|place| place & 0x1f_ffff == own & 0x1f_ffff && *place < 1 << 62));
        assert_eq!(places.iter().collect::<HashSet<_>>().len(), places.len());
        for bit in 21..62 {
            let set = places.iter().filter(|place| *place >> bit & 1 == 1).count();
            // Of a fair coin one test in 10^30 would find less.
            assert!((300..700).contains(&set), "bit {bit} is set in {set} of 1000");
        }
    }
}
