//! What a registrar keeps, and what is pinned.

use std::collections::BTreeMap;
use std::sync::Arc;

use slab::Slab;

use super::cache::Cache;
use super::loan::Kept;
use super::watch::{Change, Watched};
use super::{Extent, RegistrationCost, RegistrationCounters};

/// Names what [`Registrar::pin`] pinned: where it begins, and a number.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct PinId(pub(super) usize, pub(super) u64);

pub(super) struct Registrations {
    pub(super) cache: Cache<Kept>,
    // Where they end.
    pub(super) pins: BTreeMap<PinId, usize>,
    pub(super) pins_made: u64,
    // No pin is longer.
    pub(super) longest_pin: usize,
    // What is being registered, without the lock, to be kept.
    pub(super) making: Slab<Making>,
    pub(super) cost: Option<RegistrationCost>,
    pub(super) counters: RegistrationCounters,
}

pub(super) struct Making {
    pub(super) extent: Extent,
    // The memory is not what it was, or no longer pinned.
    pub(super) changed: bool,
}

impl Registrations {
    pub(super) fn new(cost: Option<RegistrationCost>) -> Self {
        Self {
            cache: Cache::new(),
            pins: BTreeMap::new(),
            pins_made: 0,
            longest_pin: 0,
            making: Slab::new(),
            cost,
            counters: RegistrationCounters::default(),
        }
    }

    /// A pin that has all of the extent.
    pub(super) fn pin_around(&self, extent: Extent) -> Option<Extent> {
        let first = PinId(extent.start.saturating_sub(self.longest_pin), 0);
        let before = self.pins.range(first..=PinId(extent.start, u64::MAX)).rev();
        let mut around = before.filter(|(_, end)| **end >= extent.end && extent.len() > 0);
        around.next().map(|(id, end)| Extent { start: id.0, end: *end })
    }

    /// Who needs any of the pages of an extent watched.
    pub(super) fn users(&self, extent: Extent) -> Vec<Extent> {
        let pages = extent.to_pages();
        let first = PinId(pages.start.saturating_sub(self.longest_pin), 0);
        let pins = self.pins.range(first..PinId(pages.end, 0));
        let pins = pins.map(|(id, end)| Extent { start: id.0, end: *end });
        let making = self.making.iter().map(|(_, making)| making.extent);
        let mut users = self.cache.overlapping(pages);
        users.extend(pins.chain(making).filter(|user| user.overlaps(&pages)));
        users
    }

    pub(super) fn count_evicted(&mut self, count: usize) {
        if count > 0 {
            self.counters.eviction_rounds += 1;
            self.counters.evictions += count as u64;
        }
    }

    pub(super) fn invalidate(&mut self, extent: Extent) -> Vec<Arc<Kept>> {
        let ended = self.changed(extent);
        self.counters.invalidations += ended.len() as u64;
        ended
    }

    /// Acts upon what the kernel told. Returns what is to be dropped, without the lock.
    pub(super) fn settle(&mut self, watch: &Watched) -> Vec<Arc<Kept>> {
        let mut stale = Vec::new();
        for gone in watch.take() {
            stale.extend(self.changed(gone.extent));
            if let Change::Moved(to) = gone.change {
                watch.forget_moved(to, |mapping| self.users(mapping));
            }
        }
        self.counters.stale += stale.len() as u64;
        stale
    }

    /// Registrations of the extent are not used any more.
    fn changed(&mut self, extent: Extent) -> Vec<Arc<Kept>> {
        for (_, making) in &mut self.making {
            making.changed |= making.extent.overlaps(&extent);
        }
        self.cache.take_overlapping(extent)
    }
}
