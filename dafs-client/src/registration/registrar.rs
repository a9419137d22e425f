//! What transfers ask for: memory of the caller's, as ranges that the server reaches.
#![allow(unsafe_code, reason = "memory of the caller's is registered for the time that it promised")]

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};

use dafs_proto::transport::{
    Access, BorrowedMemory, Domain, MemoryRef, Provider, Region, RegionError, RemoteRange,
};
use smallvec::SmallVec;

use super::cache::Cache;
use super::watch::Watch;
use super::{Extent, RegistrationConfig, RegistrationCost, RegistrationCounters, cost, group, holes};
use crate::memory::RawMemory;

/// Registers memory of the caller's for a session.
pub(crate) struct Registrar {
    domain: Arc<dyn Domain>,
    config: RegistrationConfig,
    state: Arc<Mutex<State>>,
    // Something is kept, or could be: else nobody need look.
    active: AtomicBool,
    // Smallest transfer for which registered memory is of use, bytes.
    useful_min: AtomicU64,
}

/// Names what [`Registrar::pin`] pinned: where it begins, and a number.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct PinId(usize, u64);

struct State {
    cache: Cache<Kept>,
    pins: BTreeMap<PinId, Pinned>,
    pins_made: u64,
    // No pin is longer.
    longest_pin: usize,
    watch: Watching,
    cost: Option<RegistrationCost>,
    counters: RegistrationCounters,
}

struct Pinned {
    end: usize,
    // It is to be watched: it is new, or what is mapped there is.
    unwatched: bool,
}

enum Watching {
    NotYet,
    On(Watch),
    /// The kernel has no such thing, or forbids it.
    Off,
}

/// A registration that is kept.
struct Kept {
    extent: Extent,
    access: Access,
    range: RemoteRange,
    region: Mutex<Option<Region>>,
}

/// The use of a kept registration: it does not give way meanwhile.
pub(crate) struct Lease(Arc<Kept>);

/// What an operation holds for its registrations.
pub(crate) enum Hold {
    /// Registered for this operation.
    Region(Region),
    /// Kept registration.
    Lease(Lease),
}

/// Memory of an operation, registered.
pub(crate) struct Registered {
    /// For each piece of memory, in order, where the server reaches it.
    pub(crate) ranges: SmallVec<[RemoteRange; 1]>,
    /// Registered as long as these live.
    pub(crate) holds: SmallVec<[Hold; 1]>,
}

/// Pinned memory is registered for both directions.
const PINNED_ACCESS: Access = Access::REMOTE_READ.union(Access::REMOTE_WRITE);

impl Registrar {
    pub(crate) fn new(domain: Arc<dyn Domain>, config: RegistrationConfig) -> Arc<Self> {
        let state = State {
            cache: Cache::new(),
            pins: BTreeMap::new(),
            pins_made: 0,
            longest_pin: 0,
            watch: Watching::NotYet,
            cost: config.cost,
            counters: RegistrationCounters::default(),
        };
        Arc::new(Self {
            domain,
            config,
            state: Arc::new(Mutex::new(state)),
            active: AtomicBool::new(config.keep_unpinned && config.entries_max > 0),
            useful_min: AtomicU64::new(0),
        })
    }

    /// Smaller transfers are better off without registered memory, whether it is there or not.
    pub(crate) fn set_useful_min(&self, bytes: u64) {
        self.useful_min.store(bytes, Ordering::Relaxed);
    }

    pub(crate) fn pin(&self, extent: Extent) -> PinId {
        let mut state = self.lock();
        state.pins_made += 1;
        let id = PinId(extent.start, state.pins_made);
        state.pins.insert(id, Pinned { end: extent.end, unwatched: true });
        state.longest_pin = state.longest_pin.max(extent.len());
        drop(state);
        self.active.store(self.config.entries_max > 0, Ordering::Relaxed);
        id
    }

    pub(crate) fn unpin(&self, id: PinId) {
        let Some(pinned) = self.lock().pins.remove(&id) else { return };
        let extent = Extent { start: id.0, end: pinned.end };
        self.invalidate(extent);
        let state = self.lock();
        if let (Watching::On(watch), false) = (&state.watch, pinned.unwatched) {
            watch.remove(extent);
        }
        if state.pins.is_empty() && state.cache.len() == 0 && !self.config.keep_unpinned {
            self.active.store(false, Ordering::Relaxed);
        }
    }

    pub(crate) fn invalidate(&self, extent: Extent) {
        let mut state = self.lock();
        let taken = state.cache.take_overlapping(extent);
        state.counters.invalidations += taken.len() as u64;
        drop(state);
        // The end of a registration may wait for a peer: not under the lock.
        drop(taken);
    }

    pub(crate) fn counters(&self) -> RegistrationCounters {
        let state = self.lock();
        RegistrationCounters {
            entries: state.cache.len() as u64,
            kept_size: state.cache.size(),
            ..state.counters
        }
    }

    /// A kept registration of the memory, made now where the memory is pinned and has none; `None` where nothing is kept of it.
    #[inline]
    pub(crate) fn lease(&self, memory: &RawMemory, access: Access) -> Option<Lease> {
        if !self.active.load(Ordering::Relaxed)
            || (memory.len() as u64) < self.useful_min.load(Ordering::Relaxed)
        {
            return None;
        }
        self.lease_extent(extent_of(memory), access)
    }

    /// As [`Registrar::lease`], of memory of any size.
    pub(crate) fn lease_extent(&self, extent: Extent, access: Access) -> Option<Lease> {
        let mut state = self.lock();
        let state = &mut *state;
        if let Watching::On(watch) = &state.watch
            && watch.is_behind()
        {
            return None;
        }
        if let Some(kept) = state.cache.find(extent, |kept| kept.access.contains(access)) {
            state.counters.hits += 1;
            return Some(Lease(Arc::clone(kept)));
        }
        self.keep(state, extent, access)
    }

    /// Registers memory that may be kept.
    #[cold]
    fn keep(&self, state: &mut State, extent: Extent, access: Access) -> Option<Lease> {
        let pinned = state.pin_around(extent).map(|id| state.watch_pin(&self.state, id));
        // Whole pages cost no more, but only what is pinned is given away.
        let (extent, access) = match pinned {
            Some(pin) => {
                let pages = extent.to_pages();
                let within = Extent { start: pages.start.max(pin.start), end: pages.end.min(pin.end) };
                (within, PINNED_ACCESS)
            }
            // Nobody said that it may be written.
            None if self.config.keep_unpinned && extent.len() > 0 => (extent, access),
            None => return None,
        };
        if extent.len() as u64 > self.config.size_max {
            return None;
        }
        state.counters.misses += 1;
        if pinned.is_none() && !state.watch(&self.state, extent) {
            return None;
        }
        self.make_room(state, extent.len() as u64);
        let mut region = self.register_extent(extent, access);
        if region.is_err() && self.give_way(state, self.config.batch) > 0 {
            // The limit on locked memory may be what it was refused for.
            region = self.register_extent(extent, access);
        }
        let region = match region {
            Ok(region) => region,
            Err(error) => {
                state.counters.failures += 1;
                tracing::debug!("memory is not kept registered: {error}");
                return None;
            }
        };
        state.counters.registrations += 1;
        let kept = Arc::new(Kept { extent, access, range: region.range(), region: Mutex::new(Some(region)) });
        if self.has_room(state, extent.len() as u64) {
            state.cache.insert(extent, Arc::clone(&kept), |other| access.contains(other.access));
        }
        Some(Lease(kept))
    }

    fn has_room(&self, state: &State, len: u64) -> bool {
        state.cache.len() < self.config.entries_max && state.cache.size() + len <= self.config.size_max
    }

    fn make_room(&self, state: &mut State, len: u64) {
        while !self.has_room(state, len) {
            if self.give_way(state, self.config.batch.clamp(1, self.config.entries_max)) == 0 {
                return;
            }
        }
    }

    /// Ends the registrations that were not used for longest.
    fn give_way(&self, state: &mut State, count: usize) -> usize {
        let victims = state.cache.evict(count);
        if !victims.is_empty() {
            state.counters.batches += 1;
            state.counters.evictions += victims.len() as u64;
        }
        victims.len()
    }

    /// Registers memory for one operation, several pieces together where that is cheaper.
    pub(crate) fn register(&self, memory: &[RawMemory], access: Access) -> Result<Registered, RegionError> {
        if let [single] = memory {
            let hold = self.hold(extent_of(single), access)?;
            let range = hold.range_of(extent_of(single))?;
            return Ok(Registered {
                ranges: SmallVec::from_buf([range]),
                holds: SmallVec::from_iter([hold]),
            });
        }
        let mut ascending: Vec<Extent> = memory.iter().map(extent_of).collect();
        ascending.sort_unstable();
        let mut registered: Vec<(Extent, Hold)> = Vec::new();
        for extent in self.groups(&ascending)? {
            let first = ascending.partition_point(|segment| segment.start < extent.start);
            let last = ascending.partition_point(|segment| segment.start <= extent.end);
            let segments: SmallVec<[Extent; 8]> = ascending[first..last.max(first)]
                .iter()
                .copied()
                .filter(|segment| extent.contains(segment))
                .collect();
            self.register_group(extent, &segments, access, &mut registered)?;
        }
        let ranges = memory.iter().map(|piece| {
            let piece = extent_of(piece);
            // Groups do not overlap: of those that begin at or before it, the last holds it; an empty piece may lie at an end.
            let after = registered.partition_point(|(extent, _)| extent.start <= piece.start);
            let (_, hold) = &registered[after.saturating_sub(1)];
            hold.range_of(piece)
        });
        let ranges = ranges.collect::<Result<_, _>>()?;
        Ok(Registered { ranges, holds: registered.into_iter().map(|(_, hold)| hold).collect() })
    }

    fn groups(&self, ascending: &[Extent]) -> Result<Vec<Extent>, RegionError> {
        if !self.config.group {
            let no_gaps = RegistrationCost { page_ns: f64::INFINITY, call_ns: 0.0 };
            return Ok(group::group(ascending, &no_gaps, 0));
        }
        Ok(group::group(ascending, &self.cost()?, self.config.gap_size_max))
    }

    /// What registering costs, measured when first asked for.
    pub(crate) fn cost(&self) -> Result<RegistrationCost, RegionError> {
        let mut state = self.lock();
        match state.cost {
            Some(cost) => Ok(cost),
            None => Ok(*state.cost.insert(cost::measure(&*self.domain)?)),
        }
    }

    /// Registers one group; where it has holes, the parts between them.
    fn register_group(
        &self,
        extent: Extent,
        segments: &[Extent],
        access: Access,
        into: &mut Vec<(Extent, Hold)>,
    ) -> Result<(), RegionError> {
        if segments.len() < 2 {
            into.push((extent, self.hold(extent, access)?));
            return Ok(());
        }
        if let Some(whole) = self.try_group(extent, access) {
            self.lock().counters.groups += 1;
            into.push((extent, whole));
            return Ok(());
        }
        self.lock().counters.hole_queries += 1;
        let write = access.contains(Access::REMOTE_WRITE);
        let accessible = holes::accessible(extent, write).unwrap_or_else(|error| {
            tracing::debug!(
                "the system does not tell what is mapped: {error}; segments are registered one by one"
            );
            Vec::new()
        });
        for part in group::divide(segments, &accessible) {
            let several = segments.iter().filter(|segment| part.contains(segment)).nth(1).is_some();
            into.push((part, self.hold(part, access)?));
            self.lock().counters.groups += u64::from(several);
        }
        Ok(())
    }

    /// The whole of a group, gaps included, if it is all there. Where registering takes hold of pages it is simply tried; elsewhere it
    /// would succeed with holes too, so the system is asked first.
    fn try_group(&self, extent: Extent, access: Access) -> Option<Hold> {
        if self.active.load(Ordering::Relaxed)
            && let Some(lease) = self.lease_extent(extent, access)
        {
            return Some(Hold::Lease(lease));
        }
        let pins_pages = self.domain.provider() == Provider::Verbs;
        if !pins_pages {
            let write = access.contains(Access::REMOTE_WRITE);
            let accessible = holes::accessible(extent, write).ok()?;
            if accessible != [extent.to_pages()] {
                return None;
            }
        }
        let region = self.register_extent(extent, access);
        let mut state = self.lock();
        match region {
            Ok(region) => {
                state.counters.registrations += 1;
                Some(Hold::Region(region))
            }
            Err(_) => {
                state.counters.failures += 1;
                None
            }
        }
    }

    fn hold(&self, extent: Extent, access: Access) -> Result<Hold, RegionError> {
        if self.active.load(Ordering::Relaxed)
            && let Some(lease) = self.lease_extent(extent, access)
        {
            return Ok(Hold::Lease(lease));
        }
        let region = self.register_extent(extent, access);
        let mut state = self.lock();
        match region {
            Ok(region) => {
                state.counters.registrations += 1;
                Ok(Hold::Region(region))
            }
            Err(error) => {
                state.counters.failures += 1;
                Err(error)
            }
        }
    }

    fn register_extent(&self, extent: Extent, access: Access) -> Result<Region, RegionError> {
        // SAFETY: the region is dropped before the memory goes back to its owner: it is held by the operation that the memory belongs
        // to, or kept while the memory is pinned or watched. Bytes between segments are reached by the server alone.
        let memory = unsafe { BorrowedMemory::new(extent.start as *mut u8, extent.len()) };
        self.domain.register(MemoryRef::new(Arc::new(memory)), access)
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl State {
    fn pin_around(&self, extent: Extent) -> Option<PinId> {
        let first = PinId(extent.start.saturating_sub(self.longest_pin), 0);
        let before = self.pins.range(first..=PinId(extent.start, u64::MAX)).rev();
        let mut around = before.filter(|(_, pinned)| pinned.end >= extent.end && extent.len() > 0);
        around.next().map(|(id, _)| *id)
    }

    /// What is pinned, watched from now on: all of it at once, for that costs as much as several registrations.
    fn watch_pin(&mut self, me: &Arc<Mutex<Self>>, id: PinId) -> Extent {
        let Some(pinned) = self.pins.get_mut(&id) else { return Extent { start: id.0, end: id.0 } };
        let extent = Extent { start: id.0, end: pinned.end };
        if std::mem::take(&mut pinned.unwatched) {
            self.watch(me, extent);
        }
        extent
    }

    /// Has the kernel tell when the extent changes; `false` where it does not.
    fn watch(&mut self, me: &Arc<Mutex<Self>>, extent: Extent) -> bool {
        if let Watching::NotYet = self.watch {
            let me = Arc::downgrade(me);
            self.watch = match Watch::start(move |gone| on_gone(&me, gone)) {
                Ok(watch) => Watching::On(watch),
                Err(error) => {
                    tracing::debug!("the kernel does not tell when memory is unmapped: {error}");
                    Watching::Off
                }
            };
        }
        match &self.watch {
            Watching::On(watch) => watch.add(extent).is_ok(),
            Watching::NotYet | Watching::Off => false,
        }
    }
}

/// Memory was unmapped, moved or emptied.
fn on_gone(state: &Weak<Mutex<State>>, gone: Extent) {
    let Some(state) = state.upgrade() else { return };
    let mut state = state.lock().unwrap_or_else(PoisonError::into_inner);
    let stale = state.cache.take_overlapping(gone);
    state.counters.stale += stale.len() as u64;
    // What is mapped there next is not watched.
    let first = PinId(gone.start.saturating_sub(state.longest_pin), 0);
    for (id, pinned) in state.pins.range_mut(first..PinId(gone.end, 0)) {
        pinned.unwatched |= gone.overlaps(&Extent { start: id.0, end: pinned.end });
    }
    drop(state);
    drop(stale);
}

impl Lease {
    /// Where the server reaches a part of what is registered.
    pub(crate) fn range_of(&self, memory: &RawMemory) -> Option<RemoteRange> {
        self.range(extent_of(memory))
    }

    fn range(&self, extent: Extent) -> Option<RemoteRange> {
        let offset = extent.start.checked_sub(self.0.extent.start)?;
        self.0.range.slice(offset as u64, extent.len() as u64)
    }

    /// Ends the registration, for everybody: afterwards no peer reaches the memory.
    pub(crate) fn revoke(&self) {
        drop(self.0.region.lock().unwrap_or_else(PoisonError::into_inner).take());
    }
}

impl Hold {
    fn range_of(&self, extent: Extent) -> Result<RemoteRange, RegionError> {
        let range = match self {
            Self::Lease(lease) => lease.range(extent),
            Self::Region(region) => {
                let start = region.memory().span().as_ptr() as usize;
                let offset = extent.start.checked_sub(start);
                offset.and_then(|offset| region.range().slice(offset as u64, extent.len() as u64))
            }
        };
        range.ok_or(RegionError::System {
            what: "find memory among what was registered",
            source: std::io::ErrorKind::InvalidInput.into(),
        })
    }

    /// Ends the registration: afterwards no peer reaches the memory.
    pub(crate) fn revoke(self) {
        match self {
            Self::Region(region) => drop(region),
            Self::Lease(lease) => lease.revoke(),
        }
    }
}

fn extent_of(memory: &RawMemory) -> Extent {
    Extent::new(memory.address(), memory.len())
}
