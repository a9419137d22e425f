//! How a lock file comes into being: whole, and in no other's place.

use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};

use redb::{Database, DatabaseError};
use rustix::fs::{CWD, Mode, OFlags, RenameFlags};
use rustix::io::Errno;

use crate::shared::file_owner::sync_name;

pub(super) type AnyError = Box<dyn std::error::Error + Send + Sync>;

/// Another server has the file.
#[derive(Debug, thiserror::Error)]
#[error("another server uses it")]
struct Taken;

/// It is that, or was found out by opening the file.
pub(super) fn is_taken(error: &AnyError) -> bool {
    error.is::<Taken>() || matches!(error.downcast_ref(), Some(DatabaseError::DatabaseAlreadyOpen))
}

/// Makes a file. It gets its name once what `fill` puts in it is durable.
pub(super) fn create(
    path: &Path,
    fill: impl Fn(&Database) -> Result<(), AnyError>,
) -> Result<Database, AnyError> {
    Draft::make(path, fill)?.give_name(path)
}

/// A file that has not its name yet.
struct Draft {
    database: Database,
    number: (u64, u64),
    other: OtherName,
}

/// A name that goes with this.
struct OtherName(PathBuf);

impl Drop for OtherName {
    fn drop(&mut self) {
        // Mostly the file has its own by now.
        let _ = std::fs::remove_file(&self.0);
    }
}

impl Draft {
    fn make(path: &Path, fill: impl Fn(&Database) -> Result<(), AnyError>) -> Result<Self, AnyError> {
        // Another server may make one at the same time, by a name of its own.
        let chance = getrandom::u64().map_err(|error| error.to_string())?;
        let mut other = path.to_owned().into_os_string();
        other.push(format!(".new-{chance:016x}"));
        let flags = OFlags::CREATE | OFlags::EXCL | OFlags::RDWR | OFlags::CLOEXEC;
        let file = std::fs::File::from(rustix::fs::open(&other, flags, Mode::from_raw_mode(0o600))?);
        let other = OtherName(other.into());
        let number = number_of(&file.metadata()?);
        let database = Database::builder().create_file(file)?;
        fill(&database)?;
        Ok(Self { database, number, other })
    }

    /// What another server has made meanwhile, and writes to, is not replaced, and not taken for this one.
    fn give_name(self, path: &Path) -> Result<Database, AnyError> {
        match rustix::fs::renameat_with(CWD, &self.other.0, CWD, path, RenameFlags::NOREPLACE) {
            Err(Errno::INVAL | Errno::NOSYS) => self.give_further_name(path)?,
            renamed => renamed.map_err(named)?,
        }
        if number_of(&std::fs::metadata(path)?) != self.number {
            return Err(Taken.into());
        }
        sync_name(path)?;
        Ok(self.database)
    }

    /// The same, on a file system that knows no such rename.
    fn give_further_name(&self, path: &Path) -> Result<(), AnyError> {
        match rustix::fs::link(&self.other.0, path) {
            Err(Errno::PERM | Errno::OPNOTSUPP | Errno::NOSYS) => Ok(std::fs::rename(&self.other.0, path)?),
            linked => linked.map_err(named),
        }
    }
}

/// Why a file did not get its name.
fn named(error: Errno) -> AnyError {
    if error == Errno::EXIST { Taken.into() } else { error.into() }
}

fn number_of(file: &std::fs::Metadata) -> (u64, u64) {
    (file.dev(), file.ino())
}

#[cfg(test)]
mod tests {
    use std::fs;

    use super::*;

    fn make(path: &Path) -> Draft {
        Draft::make(path, |_| Ok(())).unwrap()
    }

    // [LOCK-64]
    #[test]
    fn file_that_another_server_has_made_meanwhile_stays() {
        for by_rename in [true, false] {
            let directory = tempfile::tempdir().unwrap();
            let path = directory.path().join("locks");
            let [first, second] = [(); 2].map(|()| make(&path));
            let number = first.number;
            let first = first.give_name(&path).unwrap();
            let refused = match by_rename {
                true => second.give_name(&path).map(drop),
                false => second.give_further_name(&path),
            };
            assert!(is_taken(&refused.unwrap_err()), "it was not there before");
            assert_eq!(number_of(&fs::metadata(&path).unwrap()), number);
            drop(first);
        }
    }

    // [LOCK-64]
    #[test]
    fn file_gets_its_name_also_where_no_rename_spares_another() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("locks");
        let made = make(&path);
        made.give_further_name(&path).unwrap();
        assert_eq!(number_of(&fs::metadata(&path).unwrap()), made.number);
        drop(made);
        assert_eq!(fs::read_dir(directory.path()).unwrap().count(), 1, "nothing is left beside it");
    }
}
