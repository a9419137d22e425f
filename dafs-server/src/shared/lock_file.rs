//! The file in which locks outlive the server: the sessions that have any, which may take them again, and the locks that last. A thread of
//! its own writes it, since that waits for a disk; what comes while it writes is written together.

use std::collections::HashSet;
use std::path::{Path, PathBuf};
use std::sync::Mutex;
use std::sync::mpsc::{Receiver, Sender, channel};
use std::thread::JoinHandle;

use dafs_proto::wire::{SessionId, Status};
use redb::{Database, ReadableDatabase, ReadableTable, TableDefinition, WriteTransaction};
use rustix::fs::{Mode, OFlags};
use sha2::{Digest, Sha256};

use super::lock;
use super::locks::{Changed, Record};

/// Sessions that have locks, and what proves who has such a session.
const SESSIONS: TableDefinition<'_, u64, [u8; 32]> = TableDefinition::new("sessions");
/// Locks that last: by the file's number and its generation.
const LOCKS: TableDefinition<'_, (u64, u64), &[u8]> = TableDefinition::new("locks");
/// The form of what is in the tables.
const FORM: TableDefinition<'_, &str, u64> = TableDefinition::new("form");
const FORM_NUMBER: u64 = 1;

/// Changes that are written together at most.
const TOGETHER_MAX: usize = 4096;

/// Why locks cannot be kept.
#[derive(Debug, thiserror::Error)]
pub enum LockFileError {
    /// It cannot be read or made, or it is damaged.
    #[error(
        "cannot use the lock file {}: {error}; put a copy of it back, or remove it to forget who held locks", path.display()
    )]
    Unusable {
        /// The file.
        path: PathBuf,
        /// Why.
        error: Box<dyn std::error::Error + Send + Sync>,
    },
    /// Others may write it, and so take locks from their owners.
    #[error("cannot use the lock file {}: others than its owner may write it; run chmod 600 on it", path.display())]
    Open {
        /// The file.
        path: PathBuf,
    },
}

/// What is to be written.
#[derive(Debug)]
pub(crate) enum Change {
    /// A session has locks from now on, and so may take them again; or not any more.
    Session(SessionId, Option<Proof>),
    /// All that lasts of a file.
    File(Changed),
}

/// What tells whether a client has a session's secret, and does not tell the secret.
pub(crate) type Proof = [u8; 32];

/// The proof that belongs to a secret.
pub(crate) fn proof_of(secret: &[u8; 16]) -> Proof {
    Sha256::digest(secret).into()
}

/// Called when a change was written, or could not be. It must not block.
pub(crate) type Tell = Box<dyn FnOnce(Status) + Send>;

/// What a file has kept.
#[derive(Debug, Default)]
pub(crate) struct Kept {
    pub(crate) sessions: Vec<(SessionId, Proof)>,
    pub(crate) files: Vec<Changed>,
}

/// The file, with its thread.
#[derive(Debug)]
pub(crate) struct LockFile {
    /// `None` when it has ended.
    changes: Mutex<Option<Sender<(Change, Option<Tell>)>>>,
    thread: Mutex<Option<JoinHandle<()>>>,
}

impl LockFile {
    /// Reads it, or makes it where there is none. Blocks.
    pub(crate) fn open(path: &Path) -> Result<(Self, Kept), LockFileError> {
        let unusable = |error: Box<dyn std::error::Error + Send + Sync>| LockFileError::Unusable {
            path: path.to_owned(),
            error,
        };
        let flags = OFlags::CREATE | OFlags::RDWR | OFlags::CLOEXEC;
        let file = rustix::fs::open(path, flags, Mode::from_raw_mode(0o600));
        let file = std::fs::File::from(file.map_err(|error| unusable(error.into()))?);
        let found = file.metadata().map_err(|error| unusable(error.into()))?;
        if std::os::unix::fs::MetadataExt::mode(&found) & 0o022 != 0 {
            return Err(LockFileError::Open { path: path.to_owned() });
        }
        // What is damaged may be found anywhere in the reader, by a panic too.
        let read = std::panic::catch_unwind(|| {
            let database = Database::builder().create_file(file)?;
            read(&database).map(|kept| (database, kept))
        });
        let read = read.unwrap_or_else(|_| Err("it is damaged".into()));
        let (database, kept) = read.map_err(unusable)?;
        let (changes, arriving) = channel();
        let shown = path.to_owned();
        let thread = std::thread::Builder::new()
            .name("dafs-locks".into())
            .spawn(move || keep(&database, &arriving, &shown))
            .map_err(|error| unusable(error.into()))?;
        Ok((Self { changes: Mutex::new(Some(changes)), thread: Mutex::new(Some(thread)) }, kept))
    }

    /// Has a change written, behind all that came before it.
    pub(crate) fn write(&self, change: Change, tell: Option<Tell>) {
        let unsent = match &*lock(&self.changes) {
            Some(changes) => changes.send((change, tell)).err().and_then(|error| error.0.1),
            None => tell,
        };
        if let Some(tell) = unsent {
            tell(Status::IO);
        }
    }

    /// Writes what there is to be written, and closes the file. Blocks.
    pub(crate) fn close(&self) {
        *lock(&self.changes) = None;
        if let Some(thread) = lock(&self.thread).take() {
            // It has told of what went wrong in it.
            let _ = thread.join();
        }
    }
}

type AnyError = Box<dyn std::error::Error + Send + Sync>;

fn read(database: &Database) -> Result<Kept, AnyError> {
    let begin = database.begin_write()?;
    {
        let mut form = begin.open_table(FORM)?;
        let found = form.get("number")?.map(|number| number.value());
        match found {
            None => drop(form.insert("number", FORM_NUMBER)?),
            Some(FORM_NUMBER) => {}
            Some(other) => return Err(format!("it has the form {other}, of another version").into()),
        }
        begin.open_table(SESSIONS)?;
        begin.open_table(LOCKS)?;
    }
    begin.commit()?;
    let found = database.begin_read()?;
    let mut kept = Kept::default();
    for entry in found.open_table(SESSIONS)?.iter()? {
        let (session, proof) = entry?;
        kept.sessions.push((SessionId(session.value()), proof.value()));
    }
    for entry in found.open_table(LOCKS)?.iter()? {
        let (file, records) = entry?;
        let records: Vec<Record> = rmp_serde::from_slice(records.value())?;
        if !records.iter().all(|record| record.start < record.end) {
            return Err("it has a lock of nothing".into());
        }
        kept.files.push((file.value(), records));
    }
    Ok(kept)
}

/// Writes what arrives until nobody sends any more.
fn keep(database: &Database, arriving: &Receiver<(Change, Option<Tell>)>, path: &Path) {
    while let Ok(first) = arriving.recv() {
        let more = arriving.try_iter().take(TOGETHER_MAX - 1);
        let (changes, tells): (Vec<_>, Vec<_>) = std::iter::once(first).chain(more).unzip();
        let status = match write(database, &changes) {
            Ok(()) => Status::OK,
            Err(error) => {
                tracing::error!("cannot write the lock file {}: {error}", path.display());
                status_of(&*error)
            }
        };
        tells.into_iter().flatten().for_each(|tell| tell(status));
    }
}

fn write(database: &Database, changes: &[Change]) -> Result<(), AnyError> {
    let begun = database.begin_write()?;
    apply(&begun, changes)?;
    Ok(begun.commit()?)
}

fn apply(begun: &WriteTransaction, changes: &[Change]) -> Result<(), AnyError> {
    let mut sessions = begun.open_table(SESSIONS)?;
    let mut locks = begun.open_table(LOCKS)?;
    for change in changes {
        match change {
            Change::Session(session, Some(proof)) => drop(sessions.insert(session.0, *proof)?),
            Change::Session(session, None) => drop(sessions.remove(session.0)?),
            Change::File((file, records)) if records.is_empty() => drop(locks.remove(*file)?),
            Change::File((file, records)) => {
                drop(locks.insert(*file, rmp_serde::to_vec(records)?.as_slice())?);
            }
        }
    }
    Ok(())
}

fn status_of(error: &(dyn std::error::Error + 'static)) -> Status {
    let mut cause = Some(error);
    while let Some(error) = cause {
        let system = error.downcast_ref::<std::io::Error>().and_then(std::io::Error::raw_os_error);
        if let Some(errno) = system {
            return Status::from_errno(errno);
        }
        cause = error.source();
    }
    Status::IO
}

/// The sessions that a file names.
pub(crate) fn names(sessions: &[(SessionId, Proof)]) -> HashSet<SessionId> {
    sessions.iter().map(|(session, _)| *session).collect()
}
