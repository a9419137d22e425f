//! The file in which locks outlive the server: the sessions that have any, which may take them again, and the locks that last. A thread of
//! its own writes it, since that waits for a disk; what comes while it writes is written together.

use std::cell::Cell;
use std::collections::HashSet;
use std::ops::Range;
use std::panic::AssertUnwindSafe;
use std::path::{Path, PathBuf};
use std::sync::mpsc::{Receiver, Sender, channel};
use std::sync::{Arc, Mutex, Once};
use std::thread::JoinHandle;

use dafs_proto::transport::util::lock;
use dafs_proto::wire::{SessionId, Status, encode_message_pack};
use redb::{Database, ReadableDatabase, ReadableTable, TableDefinition, WriteTransaction};
use rustix::fs::{Mode, OFlags};
use rustix::io::Errno;
use serde::{Deserialize, Serialize};
use sha2::{Digest, Sha256};

use crate::shared::file_owner::is_of_others;
use crate::shared::lock_draft::{AnyError, create, is_taken};
use crate::shared::lock_names::LockNames;

/// Sessions that have locks, and what proves who has such a session.
const SESSIONS: TableDefinition<'_, u64, [u8; 32]> = TableDefinition::new("sessions");
/// Locks that last: by the file's number and its generation.
const LOCKS: TableDefinition<'_, (u64, u64), &[u8]> = TableDefinition::new("locks");
/// The form of what is in the other tables, and the sum of that.
const FORM: TableDefinition<'_, &str, u64> = TableDefinition::new("form");
const FORM_NUMBER: u64 = 1;
/// The names of both.
const NUMBER: &str = "number";
const SUM: &str = "sum";

/// Changes that are written together at most.
const TOGETHER_MAX: usize = 4096;
/// Changes that are owed at most. Of more the latest are.
const OWED_MAX: usize = 1 << 16;

/// A part of a file that is locked so that the lock outlives its owner.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Record {
    pub(crate) start: u64,
    pub(crate) end: u64,
    pub(crate) session: u64,
    pub(crate) owner: u64,
    pub(crate) client: [u8; 16],
    pub(crate) is_mandatory: bool,
}

/// A file by which it is known after a restart: its number and its generation.
pub(crate) type FileName = (u64, u64);

/// All that is to be kept of a file.
pub(crate) type Changed = (FileName, Vec<Record>);

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
    /// Another server has it.
    #[error("cannot use the lock file {}: another server uses it; give each one of its own", path.display())]
    Taken {
        /// The file.
        path: PathBuf,
    },
    /// Others may write it, and so take locks from their owners.
    #[error(
        "cannot use the lock file {}: others than the server's user may write it; run chmod 600 on it, and chown to that user",
        path.display()
    )]
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

/// A change under way, and who is told of it.
type Sent = (Change, Option<Tell>);

/// The file, with its thread.
#[derive(Debug)]
pub(crate) struct LockFile {
    /// `None` when it has ended.
    changes: Mutex<Option<Sender<Sent>>>,
    names: Arc<Mutex<LockNames>>,
    thread: Mutex<Option<JoinHandle<()>>>,
}

impl LockFile {
    /// Reads it, or makes it where there is none. Blocks.
    pub(crate) fn open(path: &Path) -> Result<(Self, Kept), LockFileError> {
        let unusable = |error: Box<dyn std::error::Error + Send + Sync>| LockFileError::Unusable {
            path: path.to_owned(),
            error,
        };
        let file = open_file(path).map_err(|error| unusable(error.into()))?;
        if let Some(file) = &file {
            let found = file.metadata().map_err(|error| unusable(error.into()))?;
            if is_of_others(&found) {
                return Err(LockFileError::Open { path: path.to_owned() });
            }
        }
        // What is damaged may be found anywhere in the reader, by a panic too.
        let read = silently(|| {
            let database = match file {
                Some(file) => Database::builder().create_file(file)?,
                None => create(path, |database| read(database).map(drop))?,
            };
            read(&database).map(|kept| (database, kept))
        });
        let read = read.unwrap_or_else(|_| Err("it is damaged".into()));
        let (database, kept) = read.map_err(|error| match is_taken(&error) {
            true => LockFileError::Taken { path: path.to_owned() },
            false => unusable(error),
        })?;
        let (changes, arriving) = channel();
        let names = Arc::new(Mutex::new(LockNames::new(&kept.files)));
        let keeper = Keeper::new(Some(database), path, Arc::clone(&names));
        let thread = std::thread::Builder::new()
            .name("dafs-locks".into())
            .spawn(move || keeper.keep(&arriving))
            .map_err(|error| unusable(error.into()))?;
        let (changes, thread) = (Mutex::new(Some(changes)), Mutex::new(Some(thread)));
        Ok((Self { changes, names, thread }, kept))
    }

    /// Has a change written, behind all that came before it.
    pub(crate) fn write(&self, change: Change, tell: Option<Tell>) {
        if let Change::File(changed) = &change {
            lock(&self.names).begin(changed);
        }
        let unsent = match &*lock(&self.changes) {
            Some(changes) => changes.send((change, tell)).err().and_then(|error| error.0.1),
            None => tell,
        };
        if let Some(tell) = unsent {
            tell(Status::IO);
        }
    }

    /// It may say that an owner, of a session, has a lock in a range of a file.
    pub(crate) fn may_name(&self, file: FileName, range: &Range<u64>, owner: (u64, u64)) -> bool {
        lock(&self.names).may_name(file, range, owner)
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

thread_local! {
    /// A panic of this thread is taken for what it tells of a file, and not reported.
    static IS_SILENT: Cell<bool> = const { Cell::new(false) };
}

/// Runs what may panic over what it reads; `Err` where it did.
fn silently<T>(read: impl FnOnce() -> T + std::panic::UnwindSafe) -> std::thread::Result<T> {
    static HOOK: Once = Once::new();
    HOOK.call_once(|| {
        let others = std::panic::take_hook();
        std::panic::set_hook(Box::new(move |panic| {
            if !IS_SILENT.get() {
                others(panic);
            }
        }));
    });
    IS_SILENT.set(true);
    let outcome = std::panic::catch_unwind(read);
    IS_SILENT.set(false);
    outcome
}

fn read(database: &Database) -> Result<Kept, AnyError> {
    let begin = database.begin_write()?;
    {
        let mut form = begin.open_table(FORM)?;
        let found = form.get(NUMBER)?.map(|number| number.value());
        match found {
            None => drop(form.insert(NUMBER, FORM_NUMBER)?),
            Some(FORM_NUMBER) => {}
            Some(other) => return Err(format!("its format version {other} is not supported").into()),
        }
        begin.open_table(SESSIONS)?;
        begin.open_table(LOCKS)?;
    }
    begin.commit()?;
    let found = database.begin_read()?;
    let (mut kept, mut sum) = (Kept::default(), 0);
    for entry in found.open_table(SESSIONS)?.iter()? {
        let (session, proof) = entry?;
        sum ^= sum_of_session(session.value(), &proof.value());
        kept.sessions.push((SessionId(session.value()), proof.value()));
    }
    for entry in found.open_table(LOCKS)?.iter()? {
        let (file, records) = entry?;
        sum ^= sum_of_file(file.value(), records.value());
        let records: Vec<Record> = rmp_serde::from_slice(records.value())?;
        if !records.iter().all(|record| record.start < record.end) {
            return Err("it has a lock of nothing".into());
        }
        kept.files.push((file.value(), records));
    }
    let told = found.open_table(FORM)?.get(SUM)?.map_or(0, |sum| sum.value());
    if told != sum {
        return Err("it is damaged: its checksum does not match".into());
    }
    Ok(kept)
}

/// Opens one that is there; `None` where there is none. Of what a crash has cut to nothing nobody knows what it said.
fn open_file(path: &Path) -> std::io::Result<Option<std::fs::File>> {
    let file: std::fs::File = match rustix::fs::open(path, OFlags::RDWR | OFlags::CLOEXEC, Mode::empty()) {
        Ok(file) => file.into(),
        Err(Errno::NOENT) => return Ok(None),
        Err(error) => return Err(error.into()),
    };
    match file.metadata()?.len() {
        0 => Err(std::io::Error::other("it is empty")),
        _ => Ok(Some(file)),
    }
}

/// What the thread has.
struct Keeper {
    /// `None` after a failure: then it is opened again, with what was durable before.
    database: Option<Database>,
    path: PathBuf,
    names: Arc<Mutex<LockNames>>,
    /// What could not be written and nobody was told of: nobody else sees to it. It goes with what is written next.
    owed: Vec<Change>,
}

/// Of some changes, in their order, the last of each session and of each file: the latest, as many as may be owed.
fn newest_of_each(changes: impl DoubleEndedIterator<Item = Change>) -> Vec<Change> {
    let (mut sessions, mut files) = (HashSet::new(), HashSet::new());
    let is_newest = |change: &Change| match change {
        Change::Session(session, _) => sessions.insert(*session),
        Change::File((file, _)) => files.insert(*file),
    };
    let mut newest: Vec<Change> = changes.rev().filter(is_newest).take(OWED_MAX).collect();
    newest.reverse();
    newest
}

impl Keeper {
    fn new(database: Option<Database>, path: &Path, names: Arc<Mutex<LockNames>>) -> Self {
        Self { database, path: path.to_owned(), names, owed: Vec::new() }
    }

    /// Writes what arrives until nobody sends any more.
    fn keep(mut self, arriving: &Receiver<Sent>) {
        while let Ok(first) = arriving.recv() {
            let more = arriving.try_iter().take(TOGETHER_MAX - 1);
            self.write_together(std::iter::once(first).chain(more));
        }
        if !self.owed.is_empty() {
            self.write_together(std::iter::empty());
        }
    }

    /// Writes what is owed, and what has arrived since, and tells of that.
    fn write_together(&mut self, arrived: impl Iterator<Item = Sent>) {
        let owed = std::mem::take(&mut self.owed).into_iter().map(|change| (change, None));
        let (changes, tells): (Vec<_>, Vec<_>) = owed.chain(arrived).unzip();
        // Whoever waits is told, whatever the writer makes of a damaged file.
        let written = std::panic::catch_unwind(AssertUnwindSafe(|| self.write(&changes)));
        let written = written.unwrap_or_else(|_| Err(redb::Error::Corrupted("it is damaged".into())));
        let status = match written {
            Ok(()) => Status::OK,
            Err(error) => {
                self.database = None;
                tracing::error!("cannot write the lock file {}: {error}", self.path.display());
                status_of(&error)
            }
        };
        let mut names = lock(&self.names);
        for change in &changes {
            if let Change::File((file, _)) = change {
                names.end(*file, status == Status::OK);
            }
        }
        if status != Status::OK {
            let untold = changes.into_iter().zip(&tells).filter(|(_, tell)| tell.is_none());
            self.owed = newest_of_each(untold.map(|(change, _)| change));
            for change in &self.owed {
                if let Change::File(changed) = change {
                    names.begin_again(changed);
                }
            }
        }
        drop(names);
        tells.into_iter().flatten().for_each(|tell| tell(status));
    }

    fn write(&mut self, changes: &[Change]) -> Result<(), redb::Error> {
        let database = match &mut self.database {
            Some(database) => database,
            none => {
                let file = open_file(&self.path).and_then(|file| file.ok_or_else(|| Errno::NOENT.into()));
                let file = file.map_err(redb::Error::Io)?;
                none.insert(Database::builder().create_file(file)?)
            }
        };
        write(database, changes)
    }
}

fn write(database: &Database, changes: &[Change]) -> Result<(), redb::Error> {
    let begun = database.begin_write()?;
    apply(&begun, changes)?;
    Ok(begun.commit()?)
}

fn apply(begun: &WriteTransaction, changes: &[Change]) -> Result<(), redb::Error> {
    let mut sessions = begun.open_table(SESSIONS)?;
    let mut locks = begun.open_table(LOCKS)?;
    let mut form = begun.open_table(FORM)?;
    let mut sum = form.get(SUM)?.map_or(0, |sum| sum.value());
    for change in changes {
        match change {
            Change::Session(SessionId(session), proof) => {
                let of = |proof: &Proof| sum_of_session(*session, proof);
                sum ^= proof.as_ref().map_or(0, of);
                let before = match proof {
                    Some(proof) => sessions.insert(session, *proof)?,
                    None => sessions.remove(session)?,
                };
                sum ^= before.map_or(0, |before| of(&before.value()));
            }
            Change::File((file, records)) => {
                let bytes = encode_message_pack(records);
                let before = match records.is_empty() {
                    true => locks.remove(*file)?,
                    false => {
                        sum ^= sum_of_file(*file, &bytes);
                        locks.insert(*file, bytes.as_slice())?
                    }
                };
                sum ^= before.map_or(0, |before| sum_of_file(*file, before.value()));
            }
        }
    }
    form.insert(SUM, sum)?;
    Ok(())
}

/// What an entry adds to the sum of all. It is taken away by being added again.
fn sum_of(parts: [&[u8]; 4]) -> u64 {
    let digest = parts.iter().fold(Sha256::new(), |digest, part| digest.chain_update(part)).finalize();
    digest[..8].iter().fold(0, |sum, byte| sum << 8 | u64::from(*byte))
}

fn sum_of_session(session: u64, proof: &Proof) -> u64 {
    sum_of([b"session", &session.to_be_bytes(), proof, &[]])
}

fn sum_of_file((file, generation): (u64, u64), records: &[u8]) -> u64 {
    sum_of([b"file", &file.to_be_bytes(), &generation.to_be_bytes(), records])
}

fn status_of(error: &redb::Error) -> Status {
    match error {
        redb::Error::Io(error) => error.raw_os_error().map_or(Status::IO, Status::from_errno),
        _ => Status::IO,
    }
}

/// The sessions that a file names.
pub(crate) fn names(sessions: &[(SessionId, Proof)]) -> HashSet<SessionId> {
    sessions.iter().map(|(session, _)| *session).collect()
}

#[cfg(test)]
mod tests {
    use std::fs;
    use std::os::unix::fs::PermissionsExt;
    use std::sync::mpsc::sync_channel;

    use super::*;

    fn record(start: u64) -> Record {
        Record { start, end: start + 5, session: 7, owner: 8, client: [9; 16], is_mandatory: true }
    }

    /// Writes, and waits for the end of it.
    fn write(file: &LockFile, change: Change) -> Status {
        let (tell, told) = sync_channel(1);
        file.write(change, Some(Box::new(move |status| tell.send(status).unwrap())));
        told.recv().unwrap()
    }

    fn filled(path: &Path) -> Kept {
        let (file, kept) = LockFile::open(path).unwrap();
        assert!(kept.sessions.is_empty() && kept.files.is_empty());
        for (number, secret) in [(1, [1; 16]), (2, [2; 16])] {
            let change = Change::Session(SessionId(number), Some(proof_of(&secret)));
            assert_eq!(write(&file, change), Status::OK);
        }
        for name in 0..40 {
            let records = (0..name % 5 + 1).map(|part| record(10 * part)).collect();
            assert_eq!(write(&file, Change::File(((name, 5), records))), Status::OK);
        }
        assert_eq!(write(&file, Change::Session(SessionId(1), None)), Status::OK);
        assert_eq!(write(&file, Change::File(((3, 5), Vec::new()))), Status::OK);
        file.close();
        assert_eq!(write(&file, Change::Session(SessionId(3), None)), Status::IO, "it is closed");
        let (file, kept) = LockFile::open(path).unwrap();
        file.close();
        kept
    }

    // [LOCK-31] [LOCK-43]
    #[test]
    fn what_was_written_is_there_again() {
        let directory = tempfile::tempdir().unwrap();
        let kept = filled(&directory.path().join("locks"));
        assert_eq!(kept.sessions, [(SessionId(2), proof_of(&[2; 16]))]);
        assert_eq!(kept.files.len(), 39);
        let of_seven = kept.files.iter().find(|(name, _)| *name == (7, 5)).unwrap();
        assert_eq!(of_seven.1, [record(0), record(10), record(20)]);
        assert!(!kept.files.iter().any(|(name, _)| *name == (3, 5)));
    }

    // [LOCK-34]
    #[test]
    fn file_that_is_damaged_is_refused_or_says_what_it_said() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("locks");
        let kept = filled(&path);
        let good = fs::read(&path).unwrap();
        let mut refused = 0;
        let mut look = |bytes: &[u8], what: &str| {
            fs::write(&path, bytes).unwrap();
            match LockFile::open(&path) {
                Err(LockFileError::Unusable { .. }) => refused += 1,
                Err(error) => panic!("{what}: {error}"),
                Ok((file, found)) => {
                    file.close();
                    assert_eq!((&found.sessions, &found.files), (&kept.sessions, &kept.files), "{what}");
                }
            }
        };
        let used: Vec<usize> = (0..good.len()).filter(|at| good[*at] != 0).collect();
        for at in used.iter().copied().step_by(used.len() / 150) {
            let mut changed = good.clone();
            changed[at] ^= 0x10;
            look(&changed, &format!("byte {at}"));
        }
        for part in 0..16 {
            let len = good.len() * part / 16;
            look(&good[..len], &format!("{len} bytes"));
        }
        assert!(refused > 20, "{refused}");
        fs::write(&path, []).unwrap();
        let error = LockFile::open(&path).unwrap_err().to_string();
        assert!(error.contains("it is empty; put a copy of it back, or remove it"), "{error}");
        fs::write(&path, b"dafs-fences 1\n").unwrap();
        let error = LockFile::open(&path).unwrap_err().to_string();
        assert!(error.contains("cannot use the lock file") && error.contains("remove it"), "{error}");
        fs::write(&path, &good).unwrap();
        fs::set_permissions(&path, fs::Permissions::from_mode(0o620)).unwrap();
        assert!(matches!(LockFile::open(&path), Err(LockFileError::Open { .. })));
    }

    // [LOCK-34]
    #[test]
    fn file_that_is_made_leaves_nothing_beside_it() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("locks");
        assert_eq!(filled(&path).files.len(), 39);
        assert_eq!(fs::read_dir(directory.path()).unwrap().count(), 1);
    }

    // [LOCK-64]
    #[test]
    fn file_that_another_server_uses_is_not_to_be_removed() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("locks");
        let (first, _) = LockFile::open(&path).unwrap();
        let error = LockFile::open(&path).unwrap_err().to_string();
        assert!(error.contains("another server uses it; give each one of its own"), "{error}");
        assert!(!error.contains("remove"), "{error}");
        first.close();
    }

    // [LOCK-60]
    #[test]
    fn change_that_nobody_is_told_of_is_written_once_that_is_possible() {
        let directory = tempfile::tempdir().unwrap();
        let (place, away) = (directory.path().join("place"), directory.path().join("away"));
        let path = place.join("locks");
        fs::create_dir(&place).unwrap();
        let kept = filled(&path);
        let names = Arc::new(Mutex::new(LockNames::new(&kept.files)));
        let mut keeper = Keeper::new(None, &path, Arc::clone(&names));
        let mut write = |changes: Vec<Change>, tells: &[bool]| {
            let (tell, told) = channel();
            for change in &changes {
                if let Change::File(changed) = change {
                    lock(&names).begin(changed);
                }
            }
            let teller = |tells: &bool| {
                let tell = tell.clone();
                tells.then(|| -> Tell { Box::new(move |status| tell.send(status).unwrap()) })
            };
            keeper.write_together(changes.into_iter().zip(tells.iter().map(teller)));
            (told.try_iter().collect::<Vec<_>>(), keeper.owed.len())
        };
        let session = |number, proof| Change::Session(SessionId(number), proof);
        let file = |name, records| Change::File(((name, 5), records));
        fs::rename(&place, &away).unwrap();
        let asked = vec![session(2, None), file(7, Vec::new()), session(8, Some([8; 32]))];
        assert_eq!(write(asked, &[false, false, true]), (vec![Status::NOT_FOUND], 2));
        fs::create_dir(&place).unwrap();
        let refused = write(vec![session(2, None), file(7, vec![record(50)])], &[false, false]);
        assert_eq!(refused, (vec![], 2), "of each the newest");
        assert!(!path.exists(), "no other file is made in its place");
        assert!(lock(&names).may_name((7, 5), &(50..51), (7, 8)));
        assert!(lock(&names).may_name((7, 5), &(0..1), (7, 8)), "that is still in the file");
        fs::remove_dir(&place).unwrap();
        fs::rename(&away, &place).unwrap();
        assert_eq!(write(vec![session(9, Some([9; 32]))], &[true]), (vec![Status::OK], 0));
        assert!(!lock(&names).may_name((7, 5), &(0..1), (7, 8)));
        drop(keeper);
        let (file, kept) = LockFile::open(&path).unwrap();
        file.close();
        assert_eq!(kept.sessions, [(SessionId(9), [9; 32])]);
        let of_seven = kept.files.iter().find(|(name, _)| *name == (7, 5)).unwrap();
        assert_eq!(of_seven.1, [record(50)]);
    }

    // [LOCK-34]
    #[test]
    #[ignore = "needs root"]
    fn file_of_another_user_is_refused() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("locks");
        filled(&path);
        std::os::unix::fs::chown(&path, Some(4444), None).unwrap();
        assert!(matches!(LockFile::open(&path), Err(LockFileError::Open { .. })));
        std::os::unix::fs::chown(&path, Some(0), None).unwrap();
        LockFile::open(&path).unwrap().0.close();
    }

    /// A small file system; taken away with the test.
    struct Mounted(PathBuf);

    impl Mounted {
        fn at(path: &Path) -> Self {
            let mounted = std::process::Command::new("mount")
                .args(["-t", "tmpfs", "-o", "size=4m", "tmpfs"])
                .arg(path)
                .status();
            assert!(mounted.unwrap().success());
            Self(path.to_owned())
        }
    }

    impl Drop for Mounted {
        fn drop(&mut self) {
            let _ = std::process::Command::new("umount").arg("-l").arg(&self.0).status();
        }
    }

    // [LOCK-35]
    #[test]
    #[ignore = "needs mount"]
    fn full_disk_is_told_of_and_what_was_written_before_stays() {
        let directory = tempfile::tempdir().unwrap();
        let mounted = Mounted::at(directory.path());
        let path = directory.path().join("locks");
        let (file, _) = LockFile::open(&path).unwrap();
        let many = |name| Change::File(((name, 5), (0..1000).map(|part| record(10 * part)).collect()));
        assert_eq!(write(&file, many(0)), Status::OK);
        let filler = directory.path().join("filler");
        assert!(fs::write(&filler, vec![1; 4 << 20]).is_err());
        let mut written = 1;
        let status = loop {
            match write(&file, many(written)) {
                Status::OK => written += 1,
                status => break status,
            }
        };
        assert_eq!(status, Status::NO_SPACE);
        assert_ne!(write(&file, many(written)), Status::OK);
        fs::remove_file(&filler).unwrap();
        assert_eq!(
            write(&file, Change::Session(SessionId(4), Some([4; 32]))),
            Status::OK,
            "there is room again"
        );
        file.close();
        let (file, kept) = LockFile::open(&path).unwrap();
        assert_eq!(kept.files.len() as u64, written);
        assert!(kept.files.iter().all(|(_, records)| records.len() == 1000));
        assert_eq!(kept.sessions, [(SessionId(4), [4; 32])]);
        file.close();
        drop(mounted);
    }
}
