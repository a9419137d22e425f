use std::sync::atomic::{AtomicU64, Ordering};

use dafs_client::{Direction, RegistrationCounters};

use crate::hint::{MemoryMode, Method};

/// A number that only grows.
#[derive(Debug, Default)]
pub struct Counter(AtomicU64);

impl Counter {
    /// Counts so many more.
    #[inline]
    pub fn add(&self, count: u64) {
        self.0.fetch_add(count, Ordering::Relaxed);
    }

    fn get(&self) -> u64 {
        self.0.load(Ordering::Relaxed)
    }
}

/// What this process did with a file.
#[derive(Debug, Default)]
pub struct Counters {
    /// Blocking and nonblocking transfers: read, written.
    pub transfers: [Counter; 2],
    /// Bytes that they moved: read, written.
    pub bytes: [Counter; 2],
    /// Of the transfers, those that did not wait.
    pub nonblocking: Counter,
    /// Of the transfers, those of collective calls.
    pub collective: Counter,
    /// Segments of transfers that are not in one piece.
    pub segments: Counter,
    /// Calls of the client library: what it makes requests of, one or more each.
    pub calls: Counter,
    /// Lists among these.
    pub lists: Counter,
    /// Windows of data sieving, and bytes moved for them.
    pub sieve_windows: Counter,
    /// Bytes.
    pub sieve_bytes: Counter,
    /// Calls by mode: dafs, adio_cache, adio.
    pub by_mode: [Counter; 3],
    /// Times that data was made durable.
    pub syncs: Counter,
    /// Transfers that failed.
    pub failures: Counter,
}

/// The names of the counters; `dafs_stat_` stands before them in an `MPI_Info`.
pub const COUNTERS: &[&str] = &[
    "reads",
    "writes",
    "read_bytes",
    "written_bytes",
    "nonblocking",
    "collective",
    "segments",
    "calls",
    "lists",
    "sieve_windows",
    "sieve_bytes",
    "mode_dafs",
    "mode_adio_cache",
    "mode_adio",
    "syncs",
    "failures",
    "registrations",
    "cache_hits",
    "cache_misses",
    "cache_evictions",
    "cache_stale",
    "registration_groups",
    "registration_failures",
];

impl Counters {
    pub(super) fn on_transfer(&self, direction: Direction, collective: bool) {
        self.transfers[place(direction)].add(1);
        if collective {
            self.collective.add(1);
        }
    }

    pub(super) fn on_moved(&self, direction: Direction, bytes: u64) {
        self.bytes[place(direction)].add(bytes);
    }

    /// A call of the client library is about to be made.
    pub(super) fn on_call(&self, method: Method, mode: MemoryMode) {
        self.calls.add(1);
        if method == Method::List {
            self.lists.add(1);
        }
        let place = match mode {
            MemoryMode::Auto | MemoryMode::Dafs => 0,
            MemoryMode::AdioCache => 1,
            MemoryMode::Adio => 2,
        };
        self.by_mode[place].add(1);
    }

    /// In the order of [`COUNTERS`].
    pub(super) fn values(&self, before: &RegistrationCounters, now: &RegistrationCounters) -> Vec<u64> {
        let own = [
            &self.transfers[0],
            &self.transfers[1],
            &self.bytes[0],
            &self.bytes[1],
            &self.nonblocking,
            &self.collective,
            &self.segments,
            &self.calls,
            &self.lists,
            &self.sieve_windows,
            &self.sieve_bytes,
            &self.by_mode[0],
            &self.by_mode[1],
            &self.by_mode[2],
            &self.syncs,
            &self.failures,
        ];
        let since = |count: fn(&RegistrationCounters) -> u64| count(now).saturating_sub(count(before));
        let registrations = [
            since(|c| c.registrations),
            since(|c| c.hits),
            since(|c| c.misses),
            since(|c| c.evictions),
            since(|c| c.stale),
            since(|c| c.groups),
            since(|c| c.failures),
        ];
        own.iter().map(|counter| counter.get()).chain(registrations).collect()
    }
}

fn place(direction: Direction) -> usize {
    usize::from(direction == Direction::Write)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn counters_have_as_many_values_as_names() {
        let counters = Counters::default();
        counters.on_transfer(Direction::Write, true);
        counters.on_moved(Direction::Write, 7);
        counters.on_call(Method::List, MemoryMode::Adio);
        let now = RegistrationCounters { registrations: 5, failures: 2, ..RegistrationCounters::default() };
        let before = RegistrationCounters { registrations: 3, ..RegistrationCounters::default() };
        let values = counters.values(&before, &now);
        assert_eq!(values.len(), COUNTERS.len());
        let value = |name: &str| values[COUNTERS.iter().position(|other| *other == name).unwrap()];
        let found = [
            "reads",
            "writes",
            "written_bytes",
            "collective",
            "calls",
            "lists",
            "mode_adio",
            "registrations",
            "registration_failures",
        ];
        assert_eq!(found.map(value), [0, 1, 7, 1, 1, 1, 1, 2, 2]);
    }
}
