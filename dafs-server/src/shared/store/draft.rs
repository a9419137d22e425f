//! How a state file comes into being: whole, and in no other's place.

use std::fs::File;
use std::io;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};

use rustix::fs::{CWD, Mode, OFlags, RenameFlags};
use rustix::io::Errno;

/// A file that has not its name yet.
#[derive(Debug)]
pub(super) struct Draft {
    pub(super) file: File,
    number: (u64, u64),
    other: OtherName,
}

/// A name that goes with this.
#[derive(Debug)]
struct OtherName(PathBuf);

impl Drop for OtherName {
    fn drop(&mut self) {
        // Mostly the file has its own by now.
        let _ = std::fs::remove_file(&self.0);
    }
}

/// Why a draft did not get its name.
#[derive(Debug)]
pub(super) enum NotNamed {
    /// Another server has made a file there meanwhile.
    Taken,
    Failed(io::Error),
}

impl<E: Into<io::Error>> From<E> for NotNamed {
    fn from(error: E) -> Self {
        let error: io::Error = error.into();
        if error.kind() == io::ErrorKind::AlreadyExists { Self::Taken } else { Self::Failed(error) }
    }
}

impl Draft {
    /// An empty file, which is to be filled, and made durable, before it gets its name.
    pub(super) fn make(path: &Path) -> io::Result<Self> {
        // Another server may make one at the same time, by a name of its own.
        let chance = getrandom::u64().map_err(io::Error::other)?;
        let mut other = path.to_owned().into_os_string();
        other.push(format!(".new-{chance:016x}"));
        let flags = OFlags::CREATE | OFlags::EXCL | OFlags::RDWR | OFlags::CLOEXEC;
        let file = File::from(rustix::fs::open(&other, flags, Mode::from_raw_mode(0o600))?);
        let other = OtherName(other.into());
        let number = number_of(&file.metadata()?);
        Ok(Self { file, number, other })
    }

    /// Gives it its name, durably. What another server has made meanwhile, and writes to, is not replaced, and not taken for this one.
    pub(super) fn give_name(&self, path: &Path) -> Result<(), NotNamed> {
        match rustix::fs::renameat_with(CWD, &self.other.0, CWD, path, RenameFlags::NOREPLACE) {
            Err(Errno::INVAL | Errno::NOSYS) => self.give_further_name(path)?,
            renamed => renamed?,
        }
        if number_of(&std::fs::metadata(path)?) != self.number {
            return Err(NotNamed::Taken);
        }
        Ok(sync_name(path)?)
    }

    /// The same, on a file system that knows no such rename.
    fn give_further_name(&self, path: &Path) -> Result<(), NotNamed> {
        match rustix::fs::link(&self.other.0, path) {
            Err(Errno::PERM | Errno::OPNOTSUPP | Errno::NOSYS) => Ok(std::fs::rename(&self.other.0, path)?),
            linked => Ok(linked?),
        }
    }
}

/// Makes the name of a file durable: what is in it is lost without. Blocks.
fn sync_name(path: &Path) -> io::Result<()> {
    let parent = path.parent().filter(|parent| !parent.as_os_str().is_empty());
    File::open(parent.unwrap_or(Path::new(".")))?.sync_all()
}

fn number_of(file: &std::fs::Metadata) -> (u64, u64) {
    (file.dev(), file.ino())
}

#[cfg(test)]
mod tests {
    use std::fs;

    use super::*;

    // [STATE-3]
    #[test]
    fn file_that_another_server_has_made_meanwhile_stays() {
        for by_rename in [true, false] {
            let directory = tempfile::tempdir().unwrap();
            let path = directory.path().join("state");
            let [first, second] = [(); 2].map(|()| Draft::make(&path).unwrap());
            first.give_name(&path).unwrap();
            let refused = match by_rename {
                true => second.give_name(&path),
                false => second.give_further_name(&path),
            };
            assert!(matches!(refused, Err(NotNamed::Taken)), "it was not there before: {refused:?}");
            assert_eq!(number_of(&fs::metadata(&path).unwrap()), first.number);
        }
    }

    // [STATE-3]
    #[test]
    fn file_gets_its_name_also_where_no_rename_spares_another() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("state");
        let made = Draft::make(&path).unwrap();
        made.give_further_name(&path).unwrap();
        assert_eq!(number_of(&fs::metadata(&path).unwrap()), made.number);
        drop(made);
        assert_eq!(fs::read_dir(directory.path()).unwrap().count(), 1, "nothing is left beside it");
    }
}
