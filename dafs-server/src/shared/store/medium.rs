//! Where the database lies: a file that this server alone has, opened again after an error. What a damaged one makes its reader read is
//! bounded.

use std::fs::{File, Metadata};
use std::io;
use std::os::unix::fs::{FileExt, MetadataExt};
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use redb::{Database, StorageBackend};
use rustix::fs::{FlockOperation, Mode, OFlags, flock};
use rustix::io::Errno;

use super::change::{AnyError, Kept, StoreError};
use super::draft::{Draft, NotNamed};
use super::tables::{self, StoreFault};

/// What fence files of earlier versions begin with.
const FENCE_FILE_TITLE: &[u8] = b"dafs-fences ";

/// How long a start waits for another server to let go of the file, and how often it looks.
const HELD_TIME_MAX: Duration = Duration::from_secs(1);
const LOOK_INTERVAL: Duration = Duration::from_millis(10);

/// Bytes of the database in memory at most.
const CACHE_SIZE: usize = 16 << 20;

/// Bytes that are read at most while a file is opened and checked: so many times its size, and so many more. A sound one takes some four
/// times its size.
const READS_MAX: u64 = 64;
const READ_SIZE_MIN: u64 = 16 << 20;

/// Where a database lies.
pub(super) trait Medium: Send {
    type Backend: StorageBackend;

    /// Opens it, from the beginning or again.
    fn backend(&self) -> io::Result<Self::Backend>;
}

/// A file that no other server has meanwhile.
#[derive(Debug)]
pub(super) struct FileMedium(File);

impl Medium for FileMedium {
    type Backend = FileBackend;

    fn backend(&self) -> io::Result<FileBackend> {
        self.0.try_clone().map(FileBackend)
    }
}

/// Reads and writes the file. That is locked as a whole, and stays so while the database is opened again, which redb's own does not do.
#[derive(Debug)]
pub(super) struct FileBackend(File);

impl StorageBackend for FileBackend {
    fn len(&self) -> io::Result<u64> {
        Ok(self.0.metadata()?.len())
    }

    fn read(&self, offset: u64, out: &mut [u8]) -> io::Result<()> {
        self.0.read_exact_at(out, offset)
    }

    fn set_len(&self, len: u64) -> io::Result<()> {
        self.0.set_len(len)
    }

    fn sync_data(&self) -> io::Result<()> {
        self.0.sync_data()
    }

    fn write(&self, offset: u64, data: &[u8]) -> io::Result<()> {
        self.0.write_all_at(data, offset)
    }
}

/// A backend of which no more is read than that many bytes.
#[derive(Debug)]
struct Bounded<B> {
    backend: B,
    left: Arc<AtomicU64>,
}

impl<B: StorageBackend> StorageBackend for Bounded<B> {
    fn len(&self) -> io::Result<u64> {
        self.backend.len()
    }

    fn read(&self, offset: u64, out: &mut [u8]) -> io::Result<()> {
        let take = |left: u64| left.checked_sub(out.len() as u64);
        match self.left.fetch_update(Ordering::Relaxed, Ordering::Relaxed, take) {
            Ok(_) => self.backend.read(offset, out),
            Err(_) => Err(io::Error::other("reading it comes to no end")),
        }
    }

    fn set_len(&self, len: u64) -> io::Result<()> {
        self.backend.set_len(len)
    }

    fn sync_data(&self) -> io::Result<()> {
        self.backend.sync_data()
    }

    fn write(&self, offset: u64, data: &[u8]) -> io::Result<()> {
        self.backend.write(offset, data)
    }
}

/// Opens a database, checks all of it and reads what it has kept. An empty one is filled.
pub(super) fn open_database(backend: impl StorageBackend) -> Result<(Database, Kept), StoreFault> {
    let left = backend.len()?.saturating_mul(READS_MAX).saturating_add(READ_SIZE_MIN);
    open_bounded(backend, left)
}

fn open_bounded(backend: impl StorageBackend, left: u64) -> Result<(Database, Kept), StoreFault> {
    let left = Arc::new(AtomicU64::new(left));
    let backend = Bounded { backend, left: Arc::clone(&left) };
    let database = Database::builder()
        .set_cache_size(CACHE_SIZE)
        .set_check_integrity_on_open(true)
        .create_with_backend(backend)?;
    let kept = tables::read(&database)?;
    left.store(u64::MAX, Ordering::Relaxed);
    Ok((database, kept))
}

/// Opens the file of this name, or makes it. Blocks, and may panic over what is damaged.
pub(super) fn open(path: &Path) -> Result<(FileMedium, Database, Kept), StoreError> {
    let unusable = |error: AnyError| StoreError::Unusable { path: path.to_owned(), error };
    let failed = |error: io::Error| unusable(error.into());
    let flags = OFlags::RDWR | OFlags::CLOEXEC;
    let file = match rustix::fs::open(path, flags, Mode::empty()) {
        Ok(file) => File::from(file),
        Err(Errno::NOENT) => return create(path),
        Err(error) => return Err(failed(error.into())),
    };
    let found = file.metadata().map_err(failed)?;
    if is_of_others(&found) {
        return Err(StoreError::Open { path: path.to_owned() });
    }
    hold(&file, path, Instant::now() + HELD_TIME_MAX)?;
    // Of what something has cut to nothing nobody knows what it said.
    if found.len() == 0 {
        return Err(unusable("it is empty".into()));
    }
    let mut begin = [0; FENCE_FILE_TITLE.len()];
    if file.read_exact_at(&mut begin, 0).is_ok() && begin == FENCE_FILE_TITLE {
        return Err(StoreError::FenceFile { path: path.to_owned() });
    }
    let medium = FileMedium(file);
    let backend = medium.backend().map_err(failed)?;
    let (database, kept) = open_database(backend).map_err(|fault| unusable(fault.to_string().into()))?;
    Ok((medium, database, kept))
}

/// Makes the file. It gets its name once what is in it is durable.
fn create(path: &Path) -> Result<(FileMedium, Database, Kept), StoreError> {
    let unusable = |error: AnyError| StoreError::Unusable { path: path.to_owned(), error };
    let failed = |error: io::Error| unusable(error.into());
    let draft = Draft::make(path).map_err(failed)?;
    let medium = FileMedium(draft.file.try_clone().map_err(failed)?);
    hold(&medium.0, path, Instant::now())?;
    let backend = medium.backend().map_err(failed)?;
    let (database, kept) = open_database(backend).map_err(|fault| unusable(fault.to_string().into()))?;
    draft.give_name(path).map_err(|error| match error {
        NotNamed::Taken => StoreError::Taken { path: path.to_owned() },
        NotNamed::Failed(error) => failed(error),
    })?;
    Ok((medium, database, kept))
}

/// Keeps other servers from the file while it is open: one that was just stopped may close it in a moment. A file system that cannot lock
/// does not. Blocks.
fn hold(file: &File, path: &Path, until: Instant) -> Result<(), StoreError> {
    loop {
        match flock(file, FlockOperation::NonBlockingLockExclusive) {
            Ok(()) => return Ok(()),
            Err(Errno::INTR) => {}
            Err(Errno::WOULDBLOCK) if Instant::now() < until => std::thread::sleep(LOOK_INTERVAL),
            Err(Errno::WOULDBLOCK) => return Err(StoreError::Taken { path: path.to_owned() }),
            Err(error) => {
                tracing::warn!(
                    state_file = ?path,
                    %error,
                    "cannot lock the state file; make sure that no other server uses it"
                );
                return Ok(());
            }
        }
    }
}

/// Whether others than root and the server's user may change a file of the server, or have made it.
fn is_of_others(found: &Metadata) -> bool {
    let own = rustix::process::geteuid().as_raw();
    found.mode() & 0o022 != 0 || !(found.uid() == own || found.uid() == 0)
}

#[cfg(test)]
mod tests {
    use redb::backends::InMemoryBackend;

    use super::*;

    // [STATE-4]
    #[test]
    fn file_that_makes_its_reader_read_on_and_on_is_refused() {
        assert!(open_bounded(InMemoryBackend::new(), 1 << 20).is_ok());
        let fault = open_bounded(InMemoryBackend::new(), 100).unwrap_err().to_string();
        assert!(fault.contains("it is damaged: reading it comes to no end"), "{fault}");
    }
}
