//! The table of registered memory that emulated RDMA checks every access against.

use std::collections::HashMap;
use std::hash::{BuildHasherDefault, Hasher};
use std::sync::{Arc, Mutex, PoisonError, RwLock, RwLockReadGuard, RwLockWriteGuard};

use super::super::{
    Access, MemoryRef, Region, RegionError, RegionFault, RegionKey, RegionOwner, RemoteRange, Span,
};
use super::{RandomNumbers, lock};

/// Registered memory of one domain: key → memory and rights, bounded in number.
///
/// Keys are 64 random bits from the system, never one that is live: a peer cannot guess one, and the chance that a
/// key is ever drawn twice is that of guessing.
///
/// Accesses share the table ([`RegionTable::access`]); [`RegionTable::deregister`] waits until the accesses in
/// progress have ended. So an access must be short: a copy or one system call that does not block, never a wait. A
/// thread must not register or drop a [`Region`] while it holds a [`RegionAccess`].
pub struct RegionTable {
    regions: RwLock<Regions>,
    keys: Mutex<RandomNumbers>,
    regions_max: usize,
}

type Regions = HashMap<RegionKey, Registration, BuildHasherDefault<KeyHasher>>;

struct Registration {
    memory: MemoryRef,
    access: Access,
}

impl RegionTable {
    /// A table for at most `regions_max` regions.
    pub fn new(regions_max: usize) -> Arc<Self> {
        Arc::new(Self { regions: RwLock::new(Regions::default()), keys: Mutex::default(), regions_max })
    }

    /// Registers `memory`; its range begins at offset 0. Returns [`RegionError::TooMany`] at the bound. The table keeps the memory alive.
    pub fn register(self: &Arc<Self>, memory: MemoryRef, access: Access) -> Result<Region, RegionError> {
        let mut regions = self.write();
        if regions.len() >= self.regions_max {
            return Err(RegionError::TooMany { limit: self.regions_max });
        }
        let key = self.draw_key(&regions)?;
        regions.insert(key, Registration { memory: memory.clone(), access });
        drop(regions);
        let range = RemoteRange { key, offset: 0, len: memory.len() as u64 };
        Ok(Region::new(range, memory, Arc::clone(self) as Arc<dyn RegionOwner>))
    }

    /// Begins an access by a peer. No region is dropped until the answer is: see [`RegionTable`] for what that forbids.
    pub fn access(&self) -> RegionAccess<'_> {
        RegionAccess { regions: self.regions.read().unwrap_or_else(PoisonError::into_inner) }
    }

    /// There is a region of this key.
    pub fn is_live(&self, key: RegionKey) -> bool {
        self.access().regions.contains_key(&key)
    }

    /// Live regions.
    pub fn len(&self) -> usize {
        self.regions.read().unwrap_or_else(PoisonError::into_inner).len()
    }

    /// No live regions.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    fn write(&self) -> RwLockWriteGuard<'_, Regions> {
        self.regions.write().unwrap_or_else(PoisonError::into_inner)
    }

    fn draw_key(&self, live: &Regions) -> Result<RegionKey, RegionError> {
        let mut keys = lock(&self.keys);
        loop {
            let key = RegionKey(keys.draw()?);
            // 0 is left out so that a cleared field never names a region.
            if key.0 != 0 && !live.contains_key(&key) {
                return Ok(key);
            }
        }
    }
}

impl RegionOwner for RegionTable {
    fn deregister(&self, key: RegionKey) {
        // Taken out first and dropped after the lock is given back: it may be the last owner of the memory.
        let gone = self.write().remove(&key);
        drop(gone);
    }
}

/// A peer's access in progress: keeps every region registered until it is dropped.
pub struct RegionAccess<'t> {
    regions: RwLockReadGuard<'t, Regions>,
}

impl RegionAccess<'_> {
    /// The bytes that `range` names, when its region is live, has all the rights of `access`, and the range lies inside.
    pub fn resolve(&self, range: &RemoteRange, access: Access) -> Result<Span<'_>, RegionFault> {
        range.within(self.region(range.key, access)?)
    }

    /// The bytes of each of `ranges`, in order, as [`RegionAccess::resolve`], until `take` returns `false`. Neighbours of one region are
    /// looked up once.
    pub fn resolve_each<'a>(
        &'a self,
        ranges: impl IntoIterator<Item = RemoteRange>,
        access: Access,
        mut take: impl FnMut(Span<'a>) -> bool,
    ) -> Result<(), RegionFault> {
        let mut region: Option<(RegionKey, Span<'a>)> = None;
        for range in ranges {
            let span = match region {
                Some((key, span)) if key == range.key => span,
                _ => self.region(range.key, access)?,
            };
            region = Some((range.key, span));
            if !take(range.within(span)?) {
                break;
            }
        }
        Ok(())
    }

    fn region(&self, key: RegionKey, access: Access) -> Result<Span<'_>, RegionFault> {
        let registration = self.regions.get(&key).ok_or(RegionFault::UnknownKey(key))?;
        registration.access.check(key, access)?;
        Ok(registration.memory.span())
    }
}

/// Keys are random already: hashing them again would only cost. What peers look up cannot make buckets longer, since
/// only this side inserts.
#[derive(Default)]
struct KeyHasher(u64);

impl Hasher for KeyHasher {
    fn finish(&self) -> u64 {
        self.0
    }

    fn write(&mut self, bytes: &[u8]) {
        for byte in bytes {
            self.0 = self.0.rotate_left(8) ^ u64::from(*byte);
        }
    }

    fn write_u64(&mut self, key: u64) {
        self.0 = key;
    }
}

#[cfg(test)]
mod tests {
    use super::super::super::HeapMemory;
    use super::*;

    const ALL: Access = Access::REMOTE_READ.union(Access::REMOTE_WRITE);

    fn memory(len: usize) -> MemoryRef {
        let whole = MemoryRef::new(Arc::new(HeapMemory::allocate(len).unwrap()));
        whole.slice(0, len).unwrap()
    }

    fn range(region: &Region, offset: u64, len: u64) -> RemoteRange {
        RemoteRange { key: region.range().key, offset, len }
    }

    #[test]
    fn resolve_inside_bounds_answers_the_bytes() {
        let table = RegionTable::new(4);
        let region = table.register(memory(100), ALL).unwrap();
        let access = table.access();
        for (offset, len) in [(0, 0), (0, 1), (0, 100), (99, 1), (100, 0)] {
            let span = access.resolve(&range(&region, offset, len), Access::REMOTE_WRITE).unwrap();
            assert_eq!(span.len() as u64, len);
            if len > 0 {
                let expected = region.memory().span().as_ptr() as usize + usize::try_from(offset).unwrap();
                assert_eq!(span.as_ptr() as usize, expected);
            }
        }
    }

    #[test]
    fn resolve_outside_bounds_is_refused() {
        let table = RegionTable::new(4);
        let region = table.register(memory(100), ALL).unwrap();
        for (offset, len) in
            [(0, 101), (100, 1), (101, 0), (1, u64::MAX), (u64::MAX, 1), (u64::MAX, u64::MAX)]
        {
            let fault =
                table.access().resolve(&range(&region, offset, len), Access::REMOTE_READ).unwrap_err();
            let key = region.range().key;
            assert_eq!(fault, RegionFault::OutOfBounds { key, offset, len, region_len: 100 });
        }
    }

    #[test]
    fn resolve_without_the_right_is_refused() {
        let table = RegionTable::new(4);
        for (given, wanted, allowed) in [
            (Access::LOCAL, Access::REMOTE_READ, false),
            (Access::LOCAL, Access::REMOTE_WRITE, false),
            (Access::REMOTE_READ, Access::REMOTE_READ, true),
            (Access::REMOTE_READ, Access::REMOTE_WRITE, false),
            (Access::REMOTE_WRITE, Access::REMOTE_READ, false),
            (Access::REMOTE_WRITE, Access::REMOTE_WRITE, true),
            (Access::REMOTE_WRITE, ALL, false),
        ] {
            let region = table.register(memory(1), given).unwrap();
            assert_eq!(
                table.access().resolve(&region.range(), wanted).is_ok(),
                allowed,
                "{given:?} {wanted:?}"
            );
        }
    }

    #[test]
    fn resolve_of_a_forged_or_dropped_key_is_refused() {
        let table = RegionTable::new(4);
        let region = table.register(memory(8), ALL).unwrap();
        let old = region.range();
        let forged = RemoteRange { key: RegionKey(old.key.0 ^ 1), ..old };
        let refused = table.access().resolve(&forged, Access::REMOTE_READ).unwrap_err();
        assert_eq!(refused, RegionFault::UnknownKey(forged.key));

        drop(region);
        let refused = table.access().resolve(&old, Access::REMOTE_READ).unwrap_err();
        assert_eq!(refused, RegionFault::UnknownKey(old.key));
        assert!(table.is_empty());
    }

    #[test]
    fn register_past_the_bound_is_refused_and_frees_with_a_drop() {
        let table = RegionTable::new(2);
        let first = table.register(memory(1), ALL).unwrap();
        let _second = table.register(memory(1), ALL).unwrap();
        assert!(matches!(table.register(memory(1), ALL), Err(RegionError::TooMany { limit: 2 })));
        drop(first);
        table.register(memory(1), ALL).unwrap();
    }

    #[test]
    fn register_many_times_draws_distinct_keys() {
        let table = RegionTable::new(1);
        let keys: std::collections::HashSet<_> =
            (0..1000).map(|_| table.register(memory(1), ALL).unwrap().range().key).collect();
        assert_eq!(keys.len(), 1000);
    }

    #[test]
    fn deregister_waits_for_the_access_in_progress() {
        let table = RegionTable::new(1);
        let region = table.register(memory(8), ALL).unwrap();
        let range = region.range();
        let access = table.access();
        let (started, has_started) = std::sync::mpsc::channel();
        let dropper = std::thread::spawn(move || {
            started.send(()).unwrap();
            drop(region);
        });
        has_started.recv().unwrap();
        // However long the other thread has been at it, the region is still there: the access holds it.
        for _ in 0..1000 {
            access.resolve(&range, Access::REMOTE_READ).unwrap();
            std::thread::yield_now();
        }
        assert!(!dropper.is_finished());
        drop(access);
        dropper.join().unwrap();
        assert!(table.access().resolve(&range, Access::REMOTE_READ).is_err());
    }
}
