use std::sync::atomic::{AtomicU64, Ordering};

use dafs_client::{Direction, RegistrationCounters};

use crate::hint::{MemoryMode, Method};

/// What is counted of a file, in the order of [`COUNTERS`].
#[derive(Clone, Copy, Debug)]
pub(super) enum Count {
    /// Blocking and nonblocking transfers that read.
    Reads,
    /// And that write.
    Writes,
    /// Bytes.
    ReadBytes,
    /// Bytes.
    WrittenBytes,
    /// Of the transfers, those that did not wait.
    Nonblocking,
    /// Of the transfers, those of collective calls.
    Collective,
    /// Segments of transfers that are not in one piece.
    Segments,
    /// Calls of the client library: what it makes requests of, one or more each.
    Calls,
    /// Lists among these.
    Lists,
    /// And calls through views.
    Views,
    /// File types that were described to the server, or that it refused.
    ViewDescriptions,
    /// Windows of data sieving.
    SieveWindows,
    /// Bytes moved for them.
    SieveBytes,
    /// Calls in the memory mode `dafs`.
    ModeDafs,
    /// In `adio_cache`.
    ModeAdioCache,
    /// In `adio`.
    ModeAdio,
    /// Times that data was made durable.
    Syncs,
    /// Transfers that failed.
    Failures,
    /// Transfers of atomic mode, each under a lock.
    Locks,
    /// Times that the shared file pointer was read or moved.
    PointerMoves,
}

/// How many of the counters are of the file; those behind them are of its session.
const OWN: usize = Count::PointerMoves as usize + 1;

/// What this process did with a file.
#[derive(Debug, Default)]
pub struct Counters([AtomicU64; OWN]);

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
    "views",
    "view_descriptions",
    "sieve_windows",
    "sieve_bytes",
    "mode_dafs",
    "mode_adio_cache",
    "mode_adio",
    "syncs",
    "failures",
    "locks",
    "pointer_moves",
    "registrations",
    "cache_hits",
    "cache_misses",
    "cache_evictions",
    "cache_stale",
    "registration_groups",
    "registration_failures",
];

/// One value for each of [`COUNTERS`].
pub type Values = [u64; COUNTERS.len()];

impl Counters {
    /// Counts so many more.
    #[inline]
    pub(super) fn add(&self, count: Count, more: u64) {
        self.0[count as usize].fetch_add(more, Ordering::Relaxed);
    }

    pub(super) fn on_transfer(&self, direction: Direction, collective: bool) {
        self.add(if direction == Direction::Read { Count::Reads } else { Count::Writes }, 1);
        if collective {
            self.add(Count::Collective, 1);
        }
    }

    pub(super) fn on_moved(&self, direction: Direction, bytes: u64) {
        self.add(if direction == Direction::Read { Count::ReadBytes } else { Count::WrittenBytes }, bytes);
    }

    /// A call of the client library is about to be made.
    pub(super) fn on_call(&self, method: Method, mode: MemoryMode) {
        self.add(Count::Calls, 1);
        if method == Method::List {
            self.add(Count::Lists, 1);
        }
        let mode = match mode {
            MemoryMode::Auto | MemoryMode::Dafs => Count::ModeDafs,
            MemoryMode::AdioCache => Count::ModeAdioCache,
            MemoryMode::Adio => Count::ModeAdio,
        };
        self.add(mode, 1);
    }

    /// All of them. A program's every call asks for this, so nothing is allocated.
    pub(super) fn values(&self, before: &RegistrationCounters, now: &RegistrationCounters) -> Values {
        let mut values = [0; COUNTERS.len()];
        for (value, own) in values.iter_mut().zip(&self.0) {
            *value = own.load(Ordering::Relaxed);
        }
        let since = |now: u64, before: u64| now.saturating_sub(before);
        let registrations = [
            since(now.registrations, before.registrations),
            since(now.hits, before.hits),
            since(now.misses, before.misses),
            since(now.evictions, before.evictions),
            since(now.stale, before.stale),
            since(now.groups, before.groups),
            since(now.failures, before.failures),
        ];
        values[OWN..].copy_from_slice(&registrations);
        values
    }
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
        let value = |name: &str| values[COUNTERS.iter().position(|other| *other == name).unwrap()];
        assert_eq!(value(COUNTERS[COUNTERS.len() - 1]), 2, "the last name has the last value");
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
