//! What transfers ask for: memory of the caller's, as ranges that the server reaches.
#![allow(unsafe_code, reason = "memory of the caller's is registered for the time that it promised")]

use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError};

use dafs_proto::transport::{Access, BorrowedMemory, Domain, MemoryRef, Region, RegionError};
use smallvec::SmallVec;

use super::loan::{Hold, Kept, Loan, Registered, extent_of};
use super::registrations::{Making, PinId, Registrations};
use super::watch::Watch;
use super::{
    Extent, RegistrationConfig, RegistrationCost, RegistrationCounters, RegistrationPolicy, cost, group,
    holes,
};
use crate::memory::RawMemory;

/// Registers memory of the caller's for a session.
pub(crate) struct Registrar {
    domain: Arc<dyn Domain>,
    config: RegistrationConfig,
    // Before the state, which its threads use; not in it, for they would wait for themselves. `None`: the kernel has no such
    // thing, or forbids it.
    watch: OnceLock<Option<Watch>>,
    state: Arc<Mutex<Registrations>>,
    // Of the configuration, or changed since.
    entries_max: AtomicUsize,
    // Something is pinned: else who goes by pins need not look.
    has_pins: AtomicBool,
    // Smallest reads and writes for which registered memory is of use, bytes; and those of memory that a policy keeps registered.
    useful_min: [AtomicU64; 2],
    kept_min: [AtomicU64; 2],
}

/// Which kept registrations an operation uses, and of which memory it makes some.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Keep {
    /// Those of pinned memory.
    Pinned,
    /// Uses all, and makes those of pinned memory.
    Found,
    /// Also of what nobody pinned.
    Any,
}

impl Keep {
    /// For memory of which nobody lent all.
    fn without_making(self) -> Self {
        match self {
            Self::Any => Self::Found,
            keep => keep,
        }
    }
}

/// Extents that are watched beyond two for each that is in use, before those that are not are given up.
const UNUSED_WATCHED_MAX: usize = 1024;

/// Together goes only what overlaps or touches.
const NO_GAPS: RegistrationCost = RegistrationCost { page_ns: f64::INFINITY, call_ns: 0.0 };

/// Pinned memory is registered for both directions.
const PINNED_ACCESS: Access = Access::REMOTE_READ.union(Access::REMOTE_WRITE);

impl Registrar {
    pub(crate) fn new(domain: Arc<dyn Domain>, config: RegistrationConfig) -> Arc<Self> {
        let state = Registrations::new(config.cost);
        Arc::new(Self {
            domain,
            config,
            watch: OnceLock::new(),
            state: Arc::new(Mutex::new(state)),
            entries_max: AtomicUsize::new(config.entries_max),
            has_pins: AtomicBool::new(false),
            useful_min: Default::default(),
            kept_min: Default::default(),
        })
    }

    /// Smaller reads and writes are better off without registered memory, whether it is there or not.
    pub(crate) fn set_useful_min(&self, sizes: [[u64; 2]; 2]) {
        for (minimum, bytes) in self.useful_min.iter().chain(&self.kept_min).zip(sizes.into_iter().flatten())
        {
            minimum.store(bytes, Ordering::Relaxed);
        }
    }

    pub(crate) fn entries_max(&self) -> usize {
        self.entries_max.load(Ordering::Relaxed)
    }

    /// Keeps no more than so many from now on.
    pub(crate) fn set_entries_max(&self, count: usize) {
        let mut state = self.lock();
        self.entries_max.store(count, Ordering::Relaxed);
        let victims = state.cache.shrink_to(count);
        state.count_evicted(victims.len());
        drop(state);
        drop(victims);
    }

    /// Whether anything can be kept of memory that nobody pinned: the kernel tells when it changes.
    pub(crate) fn can_keep(&self) -> bool {
        self.entries_max() > 0 && self.watch().is_some()
    }

    /// Whether so much of such memory is kept, where that is the policy.
    pub(crate) fn keeps(&self, access: Access, size: u64) -> bool {
        let useful = self.useful_min(access, RegistrationPolicy::Kept)..=self.config.size_max;
        useful.contains(&size) && self.can_keep()
    }

    pub(crate) fn pin(&self, extent: Extent) -> PinId {
        let mut state = self.lock();
        state.pins_made += 1;
        let id = PinId(extent.start, state.pins_made);
        state.pins.insert(id, extent.end);
        state.longest_pin = state.longest_pin.max(extent.len());
        self.has_pins.store(true, Ordering::Relaxed);
        id
    }

    pub(crate) fn unpin(&self, id: PinId) {
        let mut state = self.lock();
        let Some(end) = state.pins.remove(&id) else { return };
        let extent = Extent { start: id.0, end };
        let mut ended = self.settle(&mut state);
        ended.extend(state.invalidate(extent));
        if let Some(watch) = self.watching() {
            // Of the last pages others may need a part.
            watch.remove(extent, &state.users(extent));
        }
        if state.pins.is_empty() {
            state.longest_pin = 0;
            self.has_pins.store(false, Ordering::Relaxed);
        }
        drop(state);
        // The end of a registration may wait for a peer: not under the lock.
        drop(ended);
    }

    pub(crate) fn invalidate(&self, extent: Extent) {
        let mut state = self.lock();
        let ended = state.invalidate(extent);
        drop(state);
        drop(ended);
    }

    pub(crate) fn counters(&self) -> RegistrationCounters {
        let state = self.lock();
        RegistrationCounters {
            entries: state.cache.len() as u64,
            kept_size: state.cache.size(),
            ..state.counters
        }
    }

    /// A kept registration of the memory, made now where it may be kept and there is none; `None` where nothing is kept of it.
    #[inline]
    pub(crate) fn lend(
        &self,
        memory: &RawMemory,
        access: Access,
        policy: RegistrationPolicy,
    ) -> Option<Loan> {
        let keep = self.keep_by(policy);
        if !self.is_active(keep) || (memory.len() as u64) < self.useful_min(access, policy) {
            return None;
        }
        self.lend_extent(extent_of(memory), access, keep)
    }

    #[inline]
    fn keep_by(&self, policy: RegistrationPolicy) -> Keep {
        match policy {
            RegistrationPolicy::Library if !self.config.keep_unpinned => Keep::Pinned,
            RegistrationPolicy::Operation => Keep::Pinned,
            RegistrationPolicy::Library | RegistrationPolicy::Kept => Keep::Any,
        }
    }

    /// Something is kept, or could be: else nobody need look.
    #[inline]
    fn is_active(&self, keep: Keep) -> bool {
        (keep != Keep::Pinned || self.has_pins.load(Ordering::Relaxed)) && self.entries_max() > 0
    }

    /// Of a file whose registrations are kept, the direction counts by itself: what goes in messages is not to be registered.
    #[inline]
    fn useful_min(&self, access: Access, policy: RegistrationPolicy) -> u64 {
        let load = |minimum: &AtomicU64| minimum.load(Ordering::Relaxed);
        match policy {
            RegistrationPolicy::Kept if access.contains(Access::REMOTE_WRITE) => load(&self.kept_min[0]),
            RegistrationPolicy::Kept => load(&self.kept_min[1]),
            _ => load(&self.useful_min[0]).min(load(&self.useful_min[1])),
        }
    }

    /// Registers pinned memory now, of any size; `false` where that is not kept.
    pub(crate) fn preregister(&self, extent: Extent) -> bool {
        let keep = if self.config.keep_unpinned { Keep::Any } else { Keep::Found };
        self.lend_extent(extent, Access::REMOTE_READ, keep).is_some_and(|loan| loan.is_shared())
    }

    /// As [`Registrar::lend`], of memory of any size.
    fn lend_extent(&self, extent: Extent, access: Access, keep: Keep) -> Option<Loan> {
        let mut state = self.lock();
        if self.is_behind() {
            state = self.catch_up(state)?;
        }
        let serves = |kept: &Kept| kept.access.contains(access) && (kept.pinned || keep != Keep::Pinned);
        if let Some(kept) = state.cache.find(extent, serves) {
            let loan = Loan(Arc::clone(kept));
            state.counters.hits += 1;
            return Some(loan);
        }
        self.keep(state, extent, access, keep)
    }

    /// Acts upon what the kernel told; `None` when there is more that it has not told yet.
    #[cold]
    fn catch_up<'a>(
        &'a self,
        mut state: MutexGuard<'a, Registrations>,
    ) -> Option<MutexGuard<'a, Registrations>> {
        let stale = self.settle(&mut state);
        drop(state);
        drop(stale);
        let state = self.lock();
        (!self.is_behind()).then_some(state)
    }

    /// Registers memory that may be kept.
    #[cold]
    fn keep(
        &self,
        mut state: MutexGuard<'_, Registrations>,
        extent: Extent,
        access: Access,
        keep: Keep,
    ) -> Option<Loan> {
        let pin = state.pin_around(extent);
        // Whole pages cost no more, but only what is pinned is given away.
        let (extent, access) = match pin {
            Some(pin) => {
                let pages = extent.to_pages();
                let within = Extent { start: pages.start.max(pin.start), end: pages.end.min(pin.end) };
                (within, PINNED_ACCESS)
            }
            // Nobody said that it may be written.
            None if keep == Keep::Any && extent.len() > 0 => (extent, access),
            None => return None,
        };
        if self.entries_max() == 0 || extent.len() as u64 > self.config.size_max {
            return None;
        }
        // All of what is pinned at once, for that costs as much as several registrations.
        if !self.watch_too(&state, pin.unwrap_or(extent)) && pin.is_none() {
            return None;
        }
        state.counters.misses += 1;
        let victims = self.make_room(&mut state, extent.len() as u64);
        let making = state.making.insert(Making { extent, changed: false });
        drop(state);
        drop(victims);
        let region = self.register_giving_way(extent, access);
        let mut state = self.lock();
        let mut ended = self.settle(&mut state);
        let unchanged = !state.making.remove(making).changed && !self.is_behind();
        let loan = match region {
            Ok(region) => {
                state.counters.registrations += 1;
                let kept = Arc::new(Kept::new(extent, access, pin.is_some(), region));
                if unchanged {
                    ended.extend(self.insert(&mut state, extent, &kept));
                }
                Some(Loan(kept))
            }
            Err(error) => {
                state.counters.failures += 1;
                tracing::debug!("memory is not kept registered: {error}");
                None
            }
        };
        drop(state);
        drop(ended);
        loan
    }

    /// Keeps a registration if there is room for it. Returns those that gave way.
    fn insert(&self, state: &mut Registrations, extent: Extent, kept: &Arc<Kept>) -> Vec<Arc<Kept>> {
        let len = extent.len() as u64;
        // Others may have taken the room that was made.
        let mut ended = self.make_room(state, len);
        if self.has_room(state, len) {
            let access = kept.access;
            ended.extend(state.cache.insert(extent, Arc::clone(kept), |other| access.contains(other.access)));
        }
        ended
    }

    /// The limit on locked memory may be what it is refused for: then others give way.
    fn register_giving_way(&self, extent: Extent, access: Access) -> Result<Region, RegionError> {
        let registered = self.register_extent(extent, access);
        if registered.is_ok() {
            return registered;
        }
        let victims = self.give_way(&mut self.lock());
        if victims.is_empty() {
            return registered;
        }
        drop(victims);
        self.register_extent(extent, access)
    }

    fn has_room(&self, state: &Registrations, len: u64) -> bool {
        state.cache.len() < self.entries_max()
            && state.cache.size().saturating_add(len) <= self.config.size_max
    }

    /// Takes out as many as are in the way, or those that are not in use. Dropping them is for the caller, without the lock.
    fn make_room(&self, state: &mut Registrations, len: u64) -> Vec<Arc<Kept>> {
        let mut victims = Vec::new();
        while !self.has_room(state, len) {
            let some = self.give_way(state);
            if some.is_empty() {
                break;
            }
            victims.extend(some);
        }
        victims
    }

    /// Takes out some of the registrations that were not used for longest.
    fn give_way(&self, state: &mut Registrations) -> Vec<Arc<Kept>> {
        let victims = state.cache.evict(self.config.evict_count.min(self.entries_max()).max(1));
        state.count_evicted(victims.len());
        victims
    }

    /// Who tells when memory changes; `None` where the kernel does not.
    fn watch(&self) -> Option<&Watch> {
        let watch = self.watch.get_or_init(|| {
            let state = Arc::clone(&self.state);
            let started = Watch::start(move |watched| {
                let mut state = state.lock().unwrap_or_else(PoisonError::into_inner);
                let stale = state.settle(watched);
                drop(state);
                drop(stale);
            });
            started
                .inspect_err(|error| {
                    tracing::debug!("the kernel does not report when memory is unmapped: {error}");
                })
                .ok()
        });
        watch.as_ref()
    }

    /// Has the kernel tell when the extent changes; `false` where it does not.
    fn watch_too(&self, state: &Registrations, extent: Extent) -> bool {
        let Some(watch) = self.watch() else { return false };
        let used = self.entries_max().min(state.cache.len()) + state.pins.len();
        if watch.watched_count() > 2 * used + UNUSED_WATCHED_MAX {
            for watched in watch.watched() {
                watch.remove(watched, &state.users(watched));
            }
        }
        watch.add(extent).is_ok()
    }

    fn watching(&self) -> Option<&Watch> {
        self.watch.get().and_then(Option::as_ref)
    }

    fn is_behind(&self) -> bool {
        self.watching().is_some_and(|watch| watch.is_behind())
    }

    fn settle(&self, state: &mut Registrations) -> Vec<Arc<Kept>> {
        self.watching().map_or_else(Vec::new, |watch| state.settle(watch))
    }

    /// Registers memory for one operation, several pieces together where that is cheaper.
    pub(crate) fn register(
        &self,
        memory: &[RawMemory],
        access: Access,
        policy: RegistrationPolicy,
    ) -> Result<Registered, RegionError> {
        let keep = self.keep_by(policy);
        if let [single] = memory {
            return Registered::of(single, self.hold(extent_of(single), access, keep)?);
        }
        let mut ascending: Vec<Extent> = memory.iter().map(extent_of).collect();
        ascending.sort_unstable();
        let mut registered: Vec<(Extent, Hold)> = Vec::new();
        for extent in self.groups(&ascending)? {
            let segments = inside(&ascending, extent);
            self.register_group(extent, &segments, (access, keep), &mut registered)?;
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
            return Ok(group::group(ascending, &NO_GAPS, 0));
        }
        Ok(group::group(ascending, &self.cost()?, self.config.gap_size_max))
    }

    /// What registering costs, measured when first asked for.
    pub(crate) fn cost(&self) -> Result<RegistrationCost, RegionError> {
        let known = self.lock().cost;
        match known {
            Some(cost) => Ok(cost),
            None => {
                let measured = cost::measure(&*self.domain)?;
                Ok(*self.lock().cost.get_or_insert(measured))
            }
        }
    }

    /// Registers one group; where it has holes, the parts between them.
    fn register_group(
        &self,
        extent: Extent,
        segments: &[Extent],
        (access, keep): (Access, Keep),
        into: &mut Vec<(Extent, Hold)>,
    ) -> Result<(), RegionError> {
        if segments.len() < 2 {
            into.push((extent, self.hold(extent, access, keep)?));
            return Ok(());
        }
        if let Some(whole) = self.try_group(extent, access, keep) {
            self.lock().counters.groups += 1;
            into.push((extent, whole));
            return Ok(());
        }
        self.lock().counters.hole_queries += 1;
        let write = access.contains(Access::REMOTE_WRITE);
        let accessible = holes::accessible(extent, write).unwrap_or_else(|error| {
            tracing::debug!(
                "cannot read which memory is mapped: {error}; segments are registered one by one"
            );
            Vec::new()
        });
        for part in group::divide(segments, &accessible) {
            let inside = inside(segments, part);
            if inside.len() < 2 {
                into.push((part, self.hold(part, access, keep)?));
                continue;
            }
            if let Ok(hold) = self.hold(part, access, keep.without_making()) {
                self.lock().counters.groups += 1;
                into.push((part, hold));
                continue;
            }
            // What lies between them may be what is refused, or the sum of it all.
            for segment in group::group(&inside, &NO_GAPS, 0) {
                into.push((segment, self.hold(segment, access, keep)?));
            }
        }
        Ok(())
    }

    /// The whole of a group, gaps included, if it is all there. Where registering takes hold of pages it is simply tried; elsewhere it
    /// would succeed with holes too, so the system is asked first. What nobody pinned is not kept, for the gaps nobody lent.
    fn try_group(&self, extent: Extent, access: Access, keep: Keep) -> Option<Hold> {
        if self.is_active(keep)
            && let Some(loan) = self.lend_extent(extent, access, keep.without_making())
        {
            return Some(Hold::Loan(loan));
        }
        if !self.domain.pins_pages() {
            let write = access.contains(Access::REMOTE_WRITE);
            let accessible = holes::accessible(extent, write).ok()?;
            if accessible != [extent.to_pages()] {
                return None;
            }
        }
        self.register_counted(extent, access).ok().map(Hold::Region)
    }

    fn hold(&self, extent: Extent, access: Access, keep: Keep) -> Result<Hold, RegionError> {
        if self.is_active(keep)
            && let Some(loan) = self.lend_extent(extent, access, keep)
        {
            return Ok(Hold::Loan(loan));
        }
        self.register_counted(extent, access).map(Hold::Region)
    }

    fn register_counted(&self, extent: Extent, access: Access) -> Result<Region, RegionError> {
        let region = self.register_extent(extent, access);
        let counters = &mut self.lock().counters;
        *(if region.is_ok() { &mut counters.registrations } else { &mut counters.failures }) += 1;
        region
    }

    fn register_extent(&self, extent: Extent, access: Access) -> Result<Region, RegionError> {
        // SAFETY: the region is dropped before the memory goes back to its owner: it is held by the operation that the memory belongs
        // to, or kept while the memory is pinned or watched. Bytes between segments are reached by the server alone.
        let memory = unsafe { BorrowedMemory::new(extent.start as *mut u8, extent.len()) };
        self.domain.register(MemoryRef::new(Arc::new(memory)), access)
    }

    fn lock(&self) -> MutexGuard<'_, Registrations> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Those of some extents that lie in this one.
fn inside(ascending: &[Extent], whole: Extent) -> SmallVec<[Extent; 8]> {
    let first = ascending.partition_point(|segment| segment.start < whole.start);
    let near = ascending[first..].iter().take_while(|segment| segment.start <= whole.end);
    near.filter(|segment| whole.contains(segment)).copied().collect()
}
