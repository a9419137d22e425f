//! A file that an MPI program has open: what MPI-IO asks of a file system, done by the client library. Imports all rooms but `ffi`.
//!
//! - [`File`] opens, joins, closes; sizes, durability, hints.
//! - [`Transfer`] is what is to be moved; `access` runs it in one of three methods, [`Request`] without waiting.
//! - `atomic` runs it under locks, in atomic mode; `pointer` is the shared file pointer.
//! - [`Counters`] and [`Account`] tell what became of it.

mod access;
mod account;
mod amode;
mod atomic;
mod counters;
mod open;
mod pointer;
mod raw;
mod request;
mod sieve;
mod ticket;
mod transfer;
mod view;
mod worker;

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, PoisonError};

use arc_swap::ArcSwap;
use dafs_client::{Direction, Expected, RegistrationCounters, RegistrationPolicy, Status};

use access::Collectives;
pub use account::{Account, CollectiveWay};
pub use amode::{AccessMode, AccessModeBits};
use counters::Count;
pub use counters::{COUNTERS, Counters, Values};
pub use open::{Opening, delete, remove};
pub use request::Request;
pub use transfer::Transfer;

use crate::error::{Class, Error, Result};
use crate::hint::{MemoryMode, Settings};
use crate::memory::Trials;
use crate::name::FileAddress;
use crate::server::Server;
use pointer::SharedPointer;
use raw::{Reach, of_servers};
use view::Views;
use worker::Worker;

/// An open file. Shared by threads.
pub struct File {
    /// The file, or where it is striped, its metadata file.
    inner: Arc<dafs_client::File>,
    /// Its data, where that lies over several servers.
    striped: Option<dafs_stripe::File>,
    /// The same open file, whose transfers register their memory each time, and which keeps it registered: what one transfer chooses is
    /// none of another's business, in whichever thread that runs.
    registering: dafs_client::File,
    keeping: dafs_client::File,
    /// Of all processes that opened it together.
    pointer: SharedPointer,
    /// The same on all of them, and of no other open.
    key: u64,
    server: Arc<Server>,
    place: FileAddress,
    mode: AccessMode,
    /// Processes that opened it together.
    ranks: usize,
    /// It was opened by a token, not by its path.
    joined: bool,
    settings: ArcSwap<Settings>,
    trials: Mutex<Trials>,
    counters: Counters,
    account: Mutex<Account>,
    /// Something was written and not made durable since.
    unstable: AtomicBool,
    /// Transfers lock what they move.
    atomic: AtomicBool,
    /// Runs atomic transfers that nobody waits for.
    worker: Worker,
    /// What the server knows of this process's file types.
    views: Mutex<Views>,
    /// Collective calls so far, which are the same on all processes.
    collectives: Collectives,
    /// Smallest transfers for which memory has to be within the server's reach, bytes: read, write.
    direct_sizes_min: [u64; 2],
    /// Largest transfers that go with their lock in one round trip, bytes: read, write.
    inline_sizes_max: [u64; 2],
    /// What was registered in the session before.
    registered_before: RegistrationCounters,
    /// Dropped after `inner`.
    _returning: Returning,
}

impl File {
    /// Sets the size. Blocks.
    pub fn resize(&self, size: u64) -> Result<()> {
        self.check_writes("resize")?;
        let resized = match &self.striped {
            Some(striped) => striped.truncate(size).map_err(of_servers),
            None => self.inner.truncate(size),
        };
        // Also where nobody knows whether it was; and behind it, for what a sync made durable that ran beside it.
        self.unstable.store(true, Ordering::Release);
        resized.map_err(|error| self.cannot("resize", error))
    }

    /// The size now, bytes. Blocks.
    pub fn size(&self) -> Result<u64> {
        let attributes = match &self.striped {
            Some(striped) => striped.metadata().map_err(of_servers),
            None => self.inner.metadata(),
        };
        Ok(attributes.map_err(|error| self.cannot("look at", error))?.size)
    }

    /// A byte of the file is there. It is read, which needs the right to; the transfer counts for nobody. Blocks.
    pub fn reaches(&self, offset: u64) -> Result<bool> {
        let read = match &self.striped {
            Some(striped) => striped.read_at(&mut [0], offset).map_err(of_servers),
            None => self.inner.read_at(&mut [0], offset),
        };
        read.map(|count| count > 0).map_err(|error| self.failed(Direction::Read, error))
    }

    /// Has space set aside for the first `size` bytes; the file grows to it. Where its file system cannot, it grows by a hole. Blocks.
    pub fn preallocate(&self, size: u64) -> Result<()> {
        self.check_writes("preallocate")?;
        if size == 0 {
            return Ok(());
        }
        let allocated = match &self.striped {
            Some(striped) => striped.allocate(0, size).map_err(of_servers),
            None => self.inner.allocate(0, size),
        };
        let allocated = match allocated {
            Err(error) if error.status() == Some(Status::NOT_SUPPORTED) => self.grow(size),
            outcome => outcome.map_err(|error| self.cannot("preallocate", error)),
        };
        self.unstable.store(true, Ordering::Release);
        allocated
    }

    /// Has the file grow to a size by a hole. Others may have it grow meanwhile, by what they write: it is not cut then, but for what they
    /// write between two requests that the server carries out one behind the other. Blocks.
    fn grow(&self, size: u64) -> Result<()> {
        loop {
            let now = self.size()?;
            if now >= size {
                return Ok(());
            }
            if self.striped.is_some() {
                // No server can compare and set the size of all: a byte at the end grows the file and cuts nothing.
                return self.resize(size);
            }
            match self.inner.chain().verify(&Expected::new().size(now)).truncate(size).run() {
                Err(dafs_client::Error::InDoubt { .. }) => {}
                Err(error) if error.status() == Some(Status::NOT_SAME) => {}
                outcome => return outcome.map(drop).map_err(|error| self.cannot("preallocate", error)),
            }
        }
    }

    /// Makes durable what this process wrote: nothing, where it may only read. Blocks.
    pub fn sync(&self) -> Result<()> {
        if !self.mode.writes() {
            return Ok(());
        }
        self.counters.add(Count::Syncs, 1);
        // Should the pointer go back, others would write over what is made durable here.
        self.sync_pointer()?;
        self.commit()
    }

    fn commit(&self) -> Result<()> {
        self.unstable.store(false, Ordering::Release);
        let committed = match &self.striped {
            Some(striped) => striped.commit().map_err(of_servers),
            None => self.inner.commit(),
        };
        committed.map_err(|error| {
            self.unstable.store(true, Ordering::Release);
            self.cannot("sync", error)
        })
    }

    /// What closing a file asks for; the handle is given back when it is dropped. Blocks.
    pub fn finish(&self) -> Result<()> {
        let commits = self.settings().commit_on_close && self.unstable.load(Ordering::Acquire);
        if !commits {
            return Ok(());
        }
        self.counters.add(Count::Syncs, 1);
        self.commit()
    }

    /// Takes hints over, from the next transfer on. What cannot be is passed over.
    pub fn take_hints<'a>(&self, hints: impl IntoIterator<Item = (&'a str, &'a str)>) {
        let hints: Vec<_> = hints.into_iter().collect();
        self.settings.rcu(|current| {
            let mut settings = Settings::clone(current);
            settings.cache_entries = None;
            settings.take(hints.iter().copied());
            settings
        });
        let now = self.settings();
        for file in [&*self.inner, &self.registering, &self.keeping] {
            file.set_sieve(now.sieve);
        }
        if let Some(count) = now.cache_entries {
            self.server.session.set_registrations_max(count);
        }
    }

    /// The hints in force.
    pub fn settings(&self) -> Arc<Settings> {
        self.settings.load_full()
    }

    /// The hints in force, and the counters, as `MPI_File_get_info` shows them.
    pub fn shown_hints(&self) -> Vec<(String, String)> {
        let mut settings = Settings::clone(&self.settings());
        settings.cache_entries = Some(self.server.session.registrations_max());
        let hints = settings.shown().map(|(key, value)| (key.to_owned(), value));
        let counters = COUNTERS.iter().zip(self.counter_values());
        let counters = counters.map(|(name, value)| (format!("dafs_stat_{name}"), value.to_string()));
        let session = &self.server.session;
        let own = [
            ("dafs_server".to_owned(), self.place.server.to_string()),
            ("dafs_transport".to_owned(), session.provider().name().to_owned()),
        ];
        hints.chain(own).chain(counters).collect()
    }

    /// What became of this process's transfers, in the order of [`COUNTERS`]. Registrations are those of all files of the session since
    /// this one was opened.
    pub fn counter_values(&self) -> Values {
        let now = self.server.session.registration_counters();
        self.counters.values(&self.registered_before, &now)
    }

    /// What the hint `dafs_explain` asks to be said; `None` where it does not. `totals` are the counters of all processes, added up.
    pub fn explanation(&self, totals: &[u64]) -> Option<String> {
        if !self.settings().explain {
            return None;
        }
        let account = self.account.lock().unwrap_or_else(PoisonError::into_inner);
        Some(account.explain(self, totals))
    }

    /// Where the file is.
    pub fn place(&self) -> &FileAddress {
        &self.place
    }

    /// The server that it is on.
    pub fn server(&self) -> &Server {
        &self.server
    }

    /// What a transfer in this memory mode goes through. Of several servers, each registers memory as the library does.
    #[inline]
    fn by(&self, mode: MemoryMode) -> Reach<'_> {
        match &self.striped {
            Some(striped) => Reach::Striped(striped),
            None => Reach::Plain(self.plain(mode)),
        }
    }

    /// The open file on its server, or the metadata server, for this memory mode.
    #[inline]
    fn plain(&self, mode: MemoryMode) -> &dafs_client::File {
        match mode {
            MemoryMode::Auto | MemoryMode::Dafs => &self.inner,
            MemoryMode::Adio => &self.registering,
            MemoryMode::AdioCache => &self.keeping,
        }
    }

    /// A collective call was made in this way, for the hint `dafs_explain`; `by` says who exchanged, or why nobody did.
    pub fn note_collective(&self, direction: Direction, way: CollectiveWay, by: &str) {
        let settings = self.settings();
        if settings.explain {
            let way = way.of(&settings, direction);
            self.account.lock().unwrap_or_else(PoisonError::into_inner).note_collective(direction, way, by);
        }
    }

    /// Data was moved, or may have been: what was written is not durable, whatever a sync made so that ran beside it.
    #[inline]
    fn on_moved(&self, direction: Direction) {
        if direction == Direction::Write {
            self.unstable.store(true, Ordering::Release);
        }
    }

    fn check_writes(&self, action: &str) -> Result<()> {
        match self.mode.writes() {
            true => Ok(()),
            false => Err(Error::new(Class::ReadOnly, "the file was opened with MPI_MODE_RDONLY")
                .cannot(action, &self.place.shown)),
        }
    }

    fn cannot(&self, action: &str, error: dafs_client::Error) -> Error {
        Error::from(error).cannot(action, &self.place.shown)
    }
}

/// The open file as transfers take it that register their memory each time, and that keep it registered.
fn by_policies(inner: &dafs_client::File) -> [dafs_client::File; 2] {
    [RegistrationPolicy::Operation, RegistrationPolicy::Kept]
        .map(|policy| inner.with_registration_policy(policy))
}

/// Has the handle of a file that was dropped go back at once: on an idle session it would wait for the next call, and with it the space of
/// a file that was removed.
struct Returning(dafs_client::Session);

impl Drop for Returning {
    fn drop(&mut self) {
        self.0.flush();
    }
}

impl std::fmt::Debug for File {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "File({})", self.place.shown)
    }
}
