//! The file in which fence lists outlive the server. What is in it is all there, or the server does not start: a fence that was forgotten
//! lets in whom somebody has shut out.

use std::collections::BTreeMap;
use std::fs::{self, File};
use std::io::{self, Read, Write};
use std::os::unix::fs::{MetadataExt, OpenOptionsExt};
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use dafs_proto::wire::{FenceList, FenceMode};
use rustix::fs::{FlockOperation, flock};
use rustix::io::Errno;

use crate::shared::file_owner::{is_of_others, sync_name};

/// What the file begins with.
const TITLE: &str = "dafs-fences 1";

/// Bytes of the file at most: far more than all lists of all exports take.
const FILE_SIZE_MAX: u64 = 1 << 30;

/// How long a start waits for another server to let go of the file, and how often it looks.
const HELD_TIME_MAX: Duration = Duration::from_secs(1);
const LOOK_INTERVAL: Duration = Duration::from_millis(10);

/// The lists of all exports, as they are in the file.
#[derive(Debug)]
pub(crate) struct FenceFile {
    path: PathBuf,
    /// By the exports' names, those too that the server does not have now.
    lists: BTreeMap<String, FenceList>,
    /// The file, which no other server may have meanwhile: each would write its own lists over the other's.
    held: Option<File>,
}

/// Why the lists cannot be kept.
#[derive(Debug, thiserror::Error)]
pub enum FenceFileError {
    /// The file is not as the server wrote it.
    #[error(
        "cannot read the fence file {}: {problem}; put a copy of it back, or remove it to lift all fences", path.display()
    )]
    Corrupt {
        /// The file.
        path: PathBuf,
        /// What is wrong.
        problem: String,
    },
    /// Others may write it, and so lift fences.
    #[error(
        "cannot use the fence file {}: others than the server's user may write it; run chmod 600 on it, and chown to that user",
        path.display()
    )]
    Open {
        /// The file.
        path: PathBuf,
    },
    /// Another server has it.
    #[error("cannot use the fence file {}: another server uses it; give each one of its own", path.display())]
    InUse {
        /// The file.
        path: PathBuf,
    },
    /// The system says no.
    #[error("cannot {action} the fence file {}: {error}", path.display())]
    System {
        /// What was done.
        action: &'static str,
        /// The file.
        path: PathBuf,
        /// Why it failed.
        error: io::Error,
    },
}

impl FenceFile {
    /// Reads it; where there is none yet nobody is fenced off.
    pub(crate) fn open(path: &Path) -> Result<Self, FenceFileError> {
        let mut own = Self { path: path.to_owned(), lists: BTreeMap::new(), held: None };
        let mut file = loop {
            match open(path) {
                Err(error) if error.kind() == io::ErrorKind::NotFound => {
                    // Where it cannot be made, that is to be known now.
                    own.write()?;
                    own.held = None;
                }
                file => {
                    let file = file.map_err(|error| own.failed("read", error))?;
                    own.hold_soon(&file)?;
                    // It may have been replaced before it was held.
                    if own.is_current(&file).map_err(|error| own.failed("read", error))? {
                        break file;
                    }
                }
            }
        };
        let found = file.metadata().map_err(|error| own.failed("read", error))?;
        if is_of_others(&found) {
            return Err(FenceFileError::Open { path: own.path });
        }
        if found.len() > FILE_SIZE_MAX {
            return Err(own.corrupt("it is too large"));
        }
        let mut bytes = Vec::new();
        file.read_to_end(&mut bytes).map_err(|error| own.failed("read", error))?;
        own.lists = parse(&bytes).map_err(|problem| own.corrupt(&problem))?;
        own.held = Some(file);
        Ok(own)
    }

    /// Keeps other servers from a file for as long as it is open. A file system that cannot lock does not.
    fn hold(&self, file: &File) -> Result<(), FenceFileError> {
        match flock(file, FlockOperation::NonBlockingLockExclusive) {
            Ok(()) => {}
            Err(Errno::WOULDBLOCK) => return Err(FenceFileError::InUse { path: self.path.clone() }),
            Err(error) => tracing::warn!(
                fence_file = ?self.path,
                %error,
                "cannot lock the fence file; make sure that no other server uses it"
            ),
        }
        Ok(())
    }

    /// As [`FenceFile::hold`]: a server that was just stopped may close its file in a moment. Blocks.
    fn hold_soon(&self, file: &File) -> Result<(), FenceFileError> {
        let until = Instant::now() + HELD_TIME_MAX;
        loop {
            match self.hold(file) {
                Err(FenceFileError::InUse { .. }) if Instant::now() < until => {
                    std::thread::sleep(LOOK_INTERVAL)
                }
                held => return held,
            }
        }
    }

    fn is_current(&self, file: &File) -> io::Result<bool> {
        let own = file.metadata()?;
        Ok(fs::metadata(&self.path).is_ok_and(|there| (there.dev(), there.ino()) == (own.dev(), own.ino())))
    }

    /// The list of an export, where it has one.
    pub(crate) fn list(&self, export: &str) -> Option<&FenceList> {
        self.lists.get(export)
    }

    /// Replaces the list of an export. [`FenceFile::write`] makes it durable.
    pub(crate) fn set(&mut self, export: &str, list: FenceList) {
        match list == FenceList::default() {
            true => drop(self.lists.remove(export)),
            false => drop(self.lists.insert(export.to_owned(), list)),
        }
    }

    /// Writes it anew, durable and all of it, or leaves it as it was. Blocks.
    pub(crate) fn write(&mut self) -> Result<(), FenceFileError> {
        let mut other = self.path.clone().into_os_string();
        other.push(".new");
        let other = PathBuf::from(other);
        // A new file each time: what somebody else has put there might be a link to any other.
        let made = match fs::remove_file(&other) {
            Err(error) if error.kind() != io::ErrorKind::NotFound => Err(error),
            _ => File::options().write(true).create_new(true).mode(0o600).open(&other),
        };
        let mut file = made.map_err(|error| self.failed("write", error))?;
        self.hold(&file)?;
        let written = file
            .write_all(&self.text())
            .and_then(|()| file.sync_all())
            .and_then(|()| fs::rename(&other, &self.path));
        written.map_err(|error| self.failed("write", error))?;
        self.held = Some(file);
        sync_name(&self.path).map_err(|error| self.failed("write", error))
    }

    /// It is not what was written.
    pub(crate) fn corrupt(&self, problem: &str) -> FenceFileError {
        FenceFileError::Corrupt { path: self.path.clone(), problem: problem.to_owned() }
    }

    fn failed(&self, action: &'static str, error: io::Error) -> FenceFileError {
        FenceFileError::System { action, path: self.path.clone(), error }
    }

    fn text(&self) -> Vec<u8> {
        let mut text = format!("{TITLE}\n");
        for (export, list) in &self.lists {
            let mode = if list.mode == FenceMode::Allow { "allow" } else { "deny" };
            text.push_str(&format!("export {mode} {export}\n"));
            list.clients
                .iter()
                .for_each(|id| text.push_str(&format!("client {:032x}\n", u128::from_be_bytes(*id))));
            list.keys.iter().for_each(|key| text.push_str(&format!("key {key}\n")));
            list.addresses.iter().for_each(|range| text.push_str(&format!("address {range}\n")));
        }
        text.push_str(&format!("end {:016x}\n", sum(text.as_bytes())));
        text.into_bytes()
    }
}

/// Opens it to be read, and where that may be to be written: NFS locks no other file for one alone.
fn open(path: &Path) -> io::Result<File> {
    match File::options().read(true).write(true).open(path) {
        Err(error)
            if matches!(
                error.kind(),
                io::ErrorKind::PermissionDenied | io::ErrorKind::ReadOnlyFilesystem
            ) =>
        {
            File::open(path)
        }
        opened => opened,
    }
}

/// What tells a file that is cut or changed by accident (FNV-1a).
fn sum(bytes: &[u8]) -> u64 {
    let mix = |sum: u64, byte: &u8| (sum ^ u64::from(*byte)).wrapping_mul(0x0000_0100_0000_01b3);
    bytes.iter().fold(0xcbf2_9ce4_8422_2325, mix)
}

fn parse(bytes: &[u8]) -> Result<BTreeMap<String, FenceList>, String> {
    let text = std::str::from_utf8(bytes).map_err(|_| "it is not UTF-8".to_owned())?;
    let cut = || "its end is missing".to_owned();
    let begin = text.strip_suffix('\n').and_then(|text| text.rfind('\n')).ok_or_else(cut)? + 1;
    let (body, end) = text.split_at(begin);
    let told = end.trim_end().strip_prefix("end ").ok_or_else(cut)?;
    if told != format!("{:016x}", sum(body.as_bytes())) {
        return Err("its checksum does not match: it was edited or is damaged".to_owned());
    }
    let mut lines = body.lines().enumerate();
    if lines.next().map(|(_, line)| line) != Some(TITLE) {
        return Err(format!("it does not begin with {TITLE:?}"));
    }
    let mut lists: Vec<(String, FenceList)> = Vec::new();
    for (number, line) in lines {
        let wrong = || format!("line {}: {line:?} is no entry", number + 1);
        let (word, rest) = line.split_once(' ').ok_or_else(wrong)?;
        if word == "export" {
            let (mode, name) = rest.split_once(' ').ok_or_else(wrong)?;
            let mode = match mode {
                "deny" => FenceMode::Deny,
                "allow" => FenceMode::Allow,
                _ => return Err(wrong()),
            };
            lists.push((name.to_owned(), FenceList { mode, ..FenceList::default() }));
            continue;
        }
        let (_, list) = lists.last_mut().ok_or_else(wrong)?;
        match word {
            "client" => {
                let id =
                    u128::from_str_radix(rest, 16).ok().filter(|_| rest.len() == 32).ok_or_else(wrong)?;
                list.clients.push(id.to_be_bytes());
            }
            "key" => list.keys.push(rest.to_owned()),
            "address" => list.addresses.push(rest.to_owned()),
            _ => return Err(wrong()),
        }
    }
    let count = lists.len();
    let lists: BTreeMap<_, _> = lists.into_iter().collect();
    if lists.len() < count { Err("an export has two lists".to_owned()) } else { Ok(lists) }
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::PermissionsExt;

    use super::*;

    fn list(mode: FenceMode) -> FenceList {
        FenceList {
            mode,
            clients: vec![[0xab; 16], [0; 16]],
            keys: vec!["a key".into()],
            addresses: vec!["10.0.0.0/8".into(), "local".into()],
        }
    }

    // [ACC-136]
    #[test]
    fn lists_that_were_written_are_there_again() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("fences");
        let mut file = FenceFile::open(&path).unwrap();
        assert_eq!(file.list("data"), None);
        file.set("data", list(FenceMode::Deny));
        file.set("name with spaces", list(FenceMode::Allow));
        file.set("gone", list(FenceMode::Deny));
        file.set("gone", FenceList::default());
        file.set("nobody", FenceList { mode: FenceMode::Allow, ..FenceList::default() });
        file.write().unwrap();
        drop(file);
        let again = FenceFile::open(&path).unwrap();
        assert_eq!(again.list("data"), Some(&list(FenceMode::Deny)));
        assert_eq!(again.list("name with spaces"), Some(&list(FenceMode::Allow)));
        assert_eq!(again.list("nobody").map(|list| list.mode), Some(FenceMode::Allow));
        assert_eq!(again.lists.len(), 3);
        let mode = fs::metadata(&path).unwrap().permissions().mode();
        assert_eq!(mode & 0o777, 0o600);
        assert_eq!(fs::read_dir(directory.path()).unwrap().count(), 1, "nothing is left beside it");
    }

    // [ACC-137]
    #[test]
    fn file_with_any_byte_changed_or_missing_is_refused() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("fences");
        let mut file = FenceFile::open(&path).unwrap();
        file.set("data", list(FenceMode::Deny));
        file.write().unwrap();
        drop(file);
        let good = fs::read(&path).unwrap();
        let opens = |bytes: &[u8]| {
            fs::write(&path, bytes).unwrap();
            FenceFile::open(&path).is_ok()
        };
        assert!(opens(&good));
        for len in 0..good.len() {
            assert!(!opens(&good[..len]), "{len} bytes");
        }
        for place in 0..good.len() {
            let mut changed = good.clone();
            changed[place] ^= 1;
            assert!(!opens(&changed), "byte {place}");
        }
        assert!(!opens(&[&good[..], b"x\n"].concat()));
        // What is whole and makes no sense.
        for body in [
            "dafs-fences 2\n",
            "dafs-fences 1\nclient 00\n",
            "dafs-fences 1\nexport maybe data\n",
            "dafs-fences 1\nexport deny a\nexport deny a\n",
            "dafs-fences 1\nexport deny a\nhost b\n",
        ] {
            assert!(!opens(format!("{body}end {:016x}\n", sum(body.as_bytes())).as_bytes()), "{body}");
        }
        assert!(opens(&good));
        fs::set_permissions(&path, fs::Permissions::from_mode(0o620)).unwrap();
        assert!(matches!(FenceFile::open(&path), Err(FenceFileError::Open { .. })));
        let missing = directory.path().join("missing/fences");
        assert!(matches!(FenceFile::open(&missing), Err(FenceFileError::System { .. })));
    }

    // [ACC-137]
    #[test]
    #[ignore = "needs root"]
    fn file_of_another_user_is_refused() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("fences");
        FenceFile::open(&path).unwrap();
        std::os::unix::fs::chown(&path, Some(4444), None).unwrap();
        assert!(matches!(FenceFile::open(&path), Err(FenceFileError::Open { .. })));
        std::os::unix::fs::chown(&path, Some(0), None).unwrap();
        assert!(FenceFile::open(&path).is_ok());
    }

    // [ACC-152]
    #[test]
    fn file_of_a_server_is_refused_to_another_until_that_has_ended() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("fences");
        let mut file = FenceFile::open(&path).unwrap();
        let is_in_use = || matches!(FenceFile::open(&path), Err(FenceFileError::InUse { .. }));
        assert!(is_in_use());
        file.set("data", list(FenceMode::Deny));
        file.write().unwrap();
        assert!(is_in_use(), "it is another file now");
        drop(file);
        let again = FenceFile::open(&path).unwrap();
        assert_eq!(again.list("data"), Some(&list(FenceMode::Deny)));
        assert!(is_in_use());
        let flags = rustix::fs::fcntl_getfl(again.held.as_ref().unwrap()).unwrap();
        assert!(flags.contains(rustix::fs::OFlags::RDWR), "NFS locks what is open for writing");
    }

    // [ACC-150]
    #[test]
    fn link_in_the_place_of_the_new_file_leads_nowhere() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("fences");
        let victim = directory.path().join("victim");
        fs::write(&victim, "precious").unwrap();
        std::os::unix::fs::symlink(&victim, directory.path().join("fences.new")).unwrap();
        let mut file = FenceFile::open(&path).unwrap();
        file.set("data", list(FenceMode::Deny));
        file.write().unwrap();
        drop(file);
        assert_eq!(fs::read(&victim).unwrap(), b"precious");
        assert!(fs::symlink_metadata(&path).unwrap().is_file());
        assert_eq!(FenceFile::open(&path).unwrap().list("data"), Some(&list(FenceMode::Deny)));
    }
}
