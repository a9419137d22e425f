//! Registration of ordinary memory: once for each operation, kept for the next one, or for many segments at once.
//!
//! - [`group`] decides which segments are registered together, [`holes`] finds what is not there.
//! - [`cache`] keeps registrations of memory that its owner *pinned*, the least recently used giving way (a pin-down
//!   cache; Wu, Wyckoff, Panda, "PVFS over InfiniBand", §5.3). Registrations end several at once.
//! - [`watch`] learns from the kernel when memory was unmapped, moved or emptied under a registration.
//!
//! A registration holds pages, not addresses: when memory is unmapped and mapped again, the server would go on with the old
//! pages. So nothing is kept of memory that nobody pinned, unless the configuration says so, and then only what the
//! kernel lets us watch.

mod cache;
mod cost;
mod group;
mod holes;
mod loan;
mod policy;
mod ranges;
mod registrar;
mod registrations;
mod watch;

#[cfg(test)]
mod tests;

#[cfg(test)]
#[path = "../../../../tests/src/area.rs"]
#[allow(dead_code, unreachable_pub, reason = "shared with the suites, which use the rest")]
mod area;

pub use group::RegistrationCost;
pub(crate) use loan::{Hold, Loan};
pub(crate) use policy::PolicyCell;
pub use policy::RegistrationPolicy;
pub(crate) use registrar::Registrar;
pub(crate) use registrations::PinId;

/// A stretch of this process's address space: `start..end`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct Extent {
    pub(crate) start: usize,
    /// Invariant: `start <= end`.
    pub(crate) end: usize,
}

impl Extent {
    pub(crate) fn new(start: usize, len: usize) -> Self {
        Self { start, end: start.saturating_add(len) }
    }

    /// What lies between two extents and belongs to the pages of neither.
    fn between(before: &Self, next: &Self) -> Self {
        let (start, end) = (before.to_pages().end, next.to_pages().start);
        Self { start, end: end.max(start) }
    }

    pub(crate) fn len(&self) -> usize {
        self.end - self.start
    }

    /// With the whole of its first and last page.
    fn to_pages(self) -> Self {
        let mask = page_size() - 1;
        Self { start: self.start & !mask, end: self.end.saturating_add(mask) & !mask }
    }

    /// Pages that it touches.
    fn pages(&self) -> usize {
        if self.len() == 0 { 0 } else { self.to_pages().len() / page_size() }
    }

    fn contains(&self, other: &Self) -> bool {
        self.start <= other.start && other.end <= self.end
    }

    fn overlaps(&self, other: &Self) -> bool {
        self.start < other.end && other.start < self.end
    }
}

/// Bytes of a page: a power of two.
fn page_size() -> usize {
    static SIZE: std::sync::OnceLock<usize> = std::sync::OnceLock::new();
    *SIZE.get_or_init(holes::page_size)
}

/// How ordinary memory is registered. The default suits most programs.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct RegistrationConfig {
    /// Registrations kept at most; 0 keeps none. [`crate::Session::set_registrations_max`] changes it.
    /// Default: `200`.
    pub entries_max: usize,
    /// Bytes kept registered, at most; 0 keeps none.
    /// Default: `1073741824`.
    pub size_max: u64,
    /// Registrations that end together when there is no room: 1 to `entries_max`; other values count as the nearest of these.
    /// Default: `16`.
    pub evict_count: usize,
    /// Keep registrations of memory that nobody pinned too, where the kernel tells of its changes (userfaultfd).
    ///
    /// The memory then stays within the server's reach after an operation, until it is unmapped, gives way or is invalidated. So this is
    /// for programs that trust the server as themselves. [`RegistrationPolicy::Kept`] says the same for one file. Of shared memory the
    /// kernel does not tell when its file is truncated or gets holes; call [`crate::Session::invalidate`] then.
    /// Default: `false`.
    pub keep_unpinned: bool,
    /// Register segments of one operation together where that costs less.
    ///
    /// The bytes between them are then within the server's reach for the time of the operation. So this is for programs that trust the
    /// server as themselves. Pinned memory is registered as a whole anyway.
    /// Default: `false`.
    pub group: bool,
    /// The largest gap between segments that are registered together, bytes.
    /// Default: `1048576`.
    pub gap_size_max: usize,
    /// What registering costs; `None` measures it when it is first needed, which takes some milliseconds.
    /// Default: `None`.
    pub cost: Option<RegistrationCost>,
}

impl Default for RegistrationConfig {
    fn default() -> Self {
        Self {
            entries_max: 200,
            size_max: 1 << 30,
            evict_count: 16,
            keep_unpinned: false,
            group: false,
            gap_size_max: 1 << 20,
            cost: None,
        }
    }
}

/// What became of registrations of ordinary memory in a session, since it began. See [`crate::Session::registration_counters`].
///
/// Data that goes in messages ([`crate::Session::explain`] tells up to which size it does) needs no registration, and counts nowhere here.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct RegistrationCounters {
    /// Registrations made.
    pub registrations: u64,
    /// Operations, or segments of them, that found a kept registration.
    pub hits: u64,
    /// Those that could have been kept and were not there.
    pub misses: u64,
    /// Kept registrations that gave way to others.
    pub evictions: u64,
    /// Times that some gave way, several at once.
    pub eviction_rounds: u64,
    /// Kept registrations that ended because their memory was unpinned or invalidated.
    pub invalidations: u64,
    /// Kept registrations that ended because the kernel told that their memory was unmapped, moved or emptied.
    pub stale: u64,
    /// Groups of two or more segments that one registration served.
    pub groups: u64,
    /// Times that the system was asked for holes.
    pub hole_queries: u64,
    /// Registrations that were refused.
    pub failures: u64,
    /// Kept now.
    pub entries: u64,
    /// Bytes kept registered now.
    pub kept_size: u64,
}
