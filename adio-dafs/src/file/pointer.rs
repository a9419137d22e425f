//! The shared file pointer of an MPI file: eight bytes in a small file beside it on the server. A process locks that file to move the
//! pointer. All processes that opened the file together know its name by their ticket; it is made when the pointer is first used.

use std::cell::Cell;
use std::ffi::{OsStr, OsString};
use std::hash::{BuildHasher, Hasher, RandomState};
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use dafs_client::{LockKind, LockOptions, OpenOptions, Status};

use super::File;
use super::atomic::next_owner;
use super::counters::Count;
use crate::error::{Class, Error, Result};
use crate::name::FileAddress;

/// What the file holds: which view the pointer is of, and the pointer, in etypes; little endian.
const RECORD_SIZE: usize = 16;
const RECORD: std::ops::Range<u64> = 0..RECORD_SIZE as u64;
/// Names of files may have so many bytes.
const NAME_SIZE_MAX: usize = 255;
/// Begun anew, the pointer would lead to where data is.
const CUT: &str = "its file was cut";
/// Moved twice by one call, it would pass over records.
const DOUBTFUL: &str = "the server was restarted, and this call may or may not have moved it";
const MAKE: &str = "make the shared file pointer of";
/// A file that is stale is opened again so often in a call. It becomes so when the server restarts while others want the lock, too.
const ATTEMPTS_MAX: u32 = 16;

/// This process's part of it.
#[derive(Debug, Default)]
pub(super) struct SharedPointer {
    state: Mutex<PointerInView>,
}

#[derive(Debug, Default)]
struct PointerInView {
    file: Option<Arc<dafs_client::File>>,
    /// Views that the file had before: a pointer of an earlier one counts for nothing.
    view: u64,
    /// Where the pointer begins in this view.
    start: u64,
    /// This process has used it.
    used: bool,
    /// It has found a record of this view, which does not go any more.
    moved: bool,
}

/// A number that no other open of the file has.
pub(super) fn new_key() -> u64 {
    RandomState::new().build_hasher().finish()
}

impl SharedPointer {
    fn state(&self) -> MutexGuard<'_, PointerInView> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl File {
    /// The pointer begins anew at `start`: where a file is opened at its end, or the view changes. All processes call this, while nobody
    /// moves the pointer. Does not block.
    pub fn begin_pointer(&self, start: u64) {
        let mut state = self.pointer.state();
        state.view += 1;
        state.start = start;
        state.moved = false;
    }

    /// Sees to it that the pointer is there. The class is [`Class::Access`], [`Class::ReadOnly`] or [`Class::Unsupported`] only where the
    /// server refuses it to all processes alike, and has allowed it to none before. Blocks.
    pub fn open_pointer(&self) -> Result<()> {
        let Err(error) = self.opened_pointer() else { return Ok(()) };
        let is_of_all = is_refused_to_all(&error) && self.is_without_pointer();
        let error = self.cannot(MAKE, error);
        match error.class {
            Class::Access | Class::ReadOnly | Class::Unsupported if !is_of_all => {
                Err(Error { class: Class::Io, ..error })
            }
            _ => Err(error),
        }
    }

    /// No process has made the pointer's file. To look for it takes no right to write.
    fn is_without_pointer(&self) -> bool {
        let name = name_of(&self.place, self.key);
        let found = self.server.export(&self.place.export).and_then(|export| export.metadata(name));
        found.is_err_and(|error| error.status() == Some(Status::NOT_FOUND))
    }

    /// Moves the pointer on by so many etypes; returns where it was. Blocks.
    pub fn add_to_pointer(&self, count: u64) -> Result<u64> {
        let kind = if count == 0 { LockKind::Shared } else { LockKind::Exclusive };
        // Where it was when this call first moved it: perhaps it did.
        let tried = Cell::new(None);
        self.on_pointer(kind, |file, view, start| {
            let mut record = [0; RECORD_SIZE];
            let read = file.read_at(&mut record, 0)?;
            let found = decoded(&record[..read], view)?;
            if found.is_none() && self.pointer.state().moved {
                return Err(Fault::Own(CUT));
            }
            let position = found.unwrap_or(start);
            if tried.get().is_some_and(|before| before != position) {
                return Err(Fault::Own(DOUBTFUL));
            }
            if count > 0 {
                let next = position.checked_add(count).filter(|next| i64::try_from(*next).is_ok());
                let next = next.ok_or(Fault::Own("it would be beyond what can be counted"))?;
                tried.set(Some(position));
                file.write_all_at(&encoded(view, next), 0)?;
            }
            self.pointer.state().moved |= found.is_some() || count > 0;
            Ok(position)
        })
    }

    /// Sets the pointer. Blocks.
    pub fn set_pointer(&self, position: u64) -> Result<()> {
        self.on_pointer(LockKind::Exclusive, |file, view, _| {
            file.write_all_at(&encoded(view, position), 0)?;
            self.pointer.state().moved = true;
            Ok(())
        })
    }

    /// Makes durable how far the pointer was moved, where this process has used it. Blocks.
    pub(super) fn sync_pointer(&self) -> Result<()> {
        let file = self.pointer.state().file.clone();
        match file.map_or(Ok(()), |file| file.commit()) {
            // Whoever moves it next opens it again, or is told.
            Err(dafs_client::Error::Stale { .. }) => Ok(()),
            outcome => outcome.map_err(|error| self.cannot("sync the shared file pointer of", error)),
        }
    }

    /// Whether this process has used the pointer.
    pub fn uses_pointer(&self) -> bool {
        self.pointer.state().used
    }

    /// Removes the pointer: by one process, when none needs it any more. Blocks.
    pub fn remove_pointer(&self) -> Result<()> {
        self.pointer.state().file = None;
        let removed = self
            .server
            .export(&self.place.export)
            .and_then(|export| export.remove_file(name_of(&self.place, self.key)));
        match removed {
            Err(error) if error.status() == Some(Status::NOT_FOUND) => Ok(()),
            other => other.map_err(|error| self.cannot("remove the shared file pointer of", error)),
        }
    }

    /// Does something with the pointer's file under a lock; again where the file is stale.
    fn on_pointer<T>(
        &self,
        kind: LockKind,
        act: impl Fn(&dafs_client::File, u64, u64) -> Outcome<T>,
    ) -> Result<T> {
        const ACTION: &str = "move the shared file pointer of";
        self.counters.add(Count::PointerMoves, 1);
        let mut attempts = 0;
        loop {
            attempts += 1;
            let file = self.pointer_file()?;
            let (view, start) = {
                let state = self.pointer.state();
                (state.view, state.start)
            };
            match locked(&file, kind, || act(&file, view, start)) {
                Ok(done) => return Ok(done),
                Err(Fault::Client(dafs_client::Error::Stale { .. })) if attempts < ATTEMPTS_MAX => {
                    self.pointer.state().file = None;
                }
                Err(Fault::Client(error)) => return Err(self.cannot(ACTION, error)),
                Err(Fault::Own(what)) => {
                    return Err(Error::new(Class::Argument, what).cannot(ACTION, &self.place.shown));
                }
            }
        }
    }

    fn pointer_file(&self) -> Result<Arc<dafs_client::File>> {
        self.opened_pointer().map_err(|error| self.cannot(MAKE, error))
    }

    fn opened_pointer(&self) -> dafs_client::Result<Arc<dafs_client::File>> {
        let mut state = self.pointer.state();
        if let Some(file) = &state.file {
            return Ok(Arc::clone(file));
        }
        let mut options = OpenOptions::new();
        // A pointer that was there and is not any more would begin anew, and data would be overwritten.
        options.read(true).write(true).create(!state.used).mode(0o600);
        let name = name_of(&self.place, self.key);
        // Before anything is made that would stay.
        let opened = self.check_locks().and_then(|()| {
            let export = self.server.export(&self.place.export)?;
            match export.open_with(&name, &options) {
                Err(dafs_client::Error::InDoubt { .. }) => export.open_with(&name, &options),
                result => result,
            }
        });
        let file = Arc::new(opened?);
        state.used = true;
        state.file = Some(Arc::clone(&file));
        Ok(file)
    }
}

/// Not a fence, which may be one of this moment and of this process.
fn is_refused_to_all(error: &dafs_client::Error) -> bool {
    matches!(
        error.status(),
        Some(Status::ACCESS | Status::PERMISSION | Status::READ_ONLY | Status::NOT_SUPPORTED)
    )
}

type Outcome<T> = std::result::Result<T, Fault>;

#[derive(Debug)]
enum Fault {
    Client(dafs_client::Error),
    /// In words.
    Own(&'static str),
}

impl From<dafs_client::Error> for Fault {
    fn from(error: dafs_client::Error) -> Self {
        Self::Client(error)
    }
}

fn locked<T>(file: &dafs_client::File, kind: LockKind, act: impl FnOnce() -> Outcome<T>) -> Outcome<T> {
    let owner = next_owner();
    file.lock_with(RECORD, kind, LockOptions { owner: Some(owner), ..LockOptions::default() })?;
    let done = act();
    // Nobody waits for it. Should it be lost, the lock ends with the session.
    drop(file.submit_unlock_with(RECORD, owner));
    done
}

fn encoded(view: u64, position: u64) -> [u8; RECORD_SIZE] {
    let mut record = [0; RECORD_SIZE];
    record[..8].copy_from_slice(&view.to_le_bytes());
    record[8..].copy_from_slice(&position.to_le_bytes());
    record
}

/// The pointer of a view, from what the file has of a record. `None`: nobody has moved it in this view.
fn decoded(record: &[u8], view: u64) -> Outcome<Option<u64>> {
    let number = |at: usize| record.get(at..at + 8)?.try_into().ok().map(u64::from_le_bytes);
    match (number(0), number(8)) {
        _ if record.is_empty() => Ok(None),
        (Some(of), Some(position)) if of == view => Ok(Some(position)),
        (Some(of), Some(_)) if of < view => Ok(None),
        (Some(_), Some(_)) => {
            Err(Fault::Own("another rank has set another view; all must call MPI_File_set_view"))
        }
        _ => Err(Fault::Own(CUT)),
    }
}

/// Beside the file, hidden, with its name in it where there is room.
fn name_of(place: &FileAddress, key: u64) -> PathBuf {
    let end = format!(".dafs-shared-pointer.{key:016x}");
    let name = place.path.file_name().unwrap_or(OsStr::new(""));
    let mut own = OsString::from(".");
    if name.as_bytes().len() + end.len() < NAME_SIZE_MAX {
        own.push(name);
        own.push(&end);
    } else {
        own.push(&end[1..]);
    }
    place.path.parent().unwrap_or(Path::new("")).join(own)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pointer_of_earlier_view_restarts_and_of_later_fails() {
        assert_eq!(decoded(&[], 0).unwrap(), None);
        assert_eq!(decoded(&encoded(0, 9), 0).unwrap(), Some(9));
        assert_eq!(decoded(&encoded(0, 9), 1).unwrap(), None);
        assert!(matches!(decoded(&encoded(2, 9), 1), Err(Fault::Own(_))));
        assert!(matches!(decoded(&encoded(1, 9)[..15], 1), Err(Fault::Own(_))));
    }

    #[test]
    fn pointer_name_is_hidden_beside_the_file_and_short_enough() {
        let place = |path: String| FileAddress {
            server: dafs_client::Url::parse(OsStr::new("dafs+tcp://h:1")).unwrap(),
            export: "data".into(),
            path: path.into(),
            shown: String::new(),
        };
        let name = name_of(&place("run/f".into()), 0xab);
        assert_eq!(name, Path::new("run/.f.dafs-shared-pointer.00000000000000ab"));
        let name = name_of(&place(format!("run/{}", "n".repeat(255))), 0xab);
        assert_eq!(name, Path::new("run/.dafs-shared-pointer.00000000000000ab"));
    }
}
