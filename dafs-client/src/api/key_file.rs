//! The key of a client, from a file.

use std::os::unix::fs::MetadataExt;
use std::path::Path;

use dafs_proto::session::{Key, parse_key_file};
use dafs_proto::small_file::{SmallFile, SmallFileError};

use crate::error::{Error, Result};

/// Bytes of a key file at most.
const KEY_FILE_SIZE_MAX: u64 = 1 << 20;

/// Reads the first key of a key file: lines `NAME:SECRET`, as `dafs-server keygen` prints them. Blocks while the file is read.
///
/// # Errors
/// [`Error::Invalid`] when the file cannot be read, is not a regular file, may be read by others, belongs neither to root nor to the user
/// that this program runs as, or holds no key; it says what to do.
pub fn load_key(path: &Path) -> Result<Key> {
    load_key_as(path, rustix::process::geteuid().as_raw())
}

fn load_key_as(path: &Path, user: u32) -> Result<Key> {
    let name = path.display();
    let failed = |error: SmallFileError| {
        let advice = match error {
            SmallFileError::System(_) => "",
            SmallFileError::Changed => "; try again when it is written",
            _ => "; name a file with a line NAME:SECRET",
        };
        Error::Invalid(format!("cannot read the key file {name}: {error}{advice}"))
    };
    let file = SmallFile::open(path).map_err(failed)?;
    let metadata = file.metadata();
    if metadata.mode() & 0o077 != 0 {
        return Err(Error::Invalid(format!(
            "cannot use the key file {name}: others may read it (mode {:03o}); forbid that with `chmod 600 {name}`, \
             and make a new key if others could have read it",
            metadata.mode() & 0o777
        )));
    }
    // Whoever owns a file reads and changes it whatever its mode says.
    if metadata.uid() != user && metadata.uid() != 0 {
        return Err(Error::Invalid(format!(
            "cannot use the key file {name}: user {} owns it, and could read and change it; make it yours with `chown {user} {name}`, \
             and make a new key if that user is not to have it",
            metadata.uid()
        )));
    }
    let text = file.read(KEY_FILE_SIZE_MAX).map_err(failed)?;
    let lines = parse_key_file(&text)
        .map_err(|error| Error::Invalid(format!("cannot read the key file {name}: {error}")))?;
    match lines.into_iter().next() {
        Some(line) => Ok(line.key),
        None => Err(Error::Invalid(format!(
            "cannot use the key file {name}: there is no key in it; write a line NAME:SECRET, as `dafs-server keygen NAME` prints it"
        ))),
    }
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::PermissionsExt;

    use super::*;

    fn key_file(directory: &Path) -> std::path::PathBuf {
        let path = directory.join("keys");
        std::fs::write(&path, "lab:000102030405060708090a0b0c0d0e0f\n").unwrap();
        std::fs::set_permissions(&path, std::fs::Permissions::from_mode(0o600)).unwrap();
        path
    }

    // [ACC-139]
    #[test]
    fn key_file_readable_by_others_is_refused_with_a_remedy() {
        let directory = tempfile::tempdir().unwrap();
        let path = key_file(directory.path());
        assert_eq!(load_key(&path).unwrap().name, "lab");
        for mode in [0o644, 0o640, 0o620, 0o601, 0o604] {
            std::fs::set_permissions(&path, std::fs::Permissions::from_mode(mode)).unwrap();
            let error = load_key(&path).unwrap_err().to_string();
            assert!(error.contains(&format!("chmod 600 {}", path.display())), "{mode:o}: {error}");
        }
    }

    // [ACC-140]
    #[test]
    fn key_file_of_another_user_is_refused_with_the_command_that_helps() {
        let directory = tempfile::tempdir().unwrap();
        let path = key_file(directory.path());
        let own = std::fs::metadata(&path).unwrap().uid();
        if own == 0 {
            // Root's own is everybody's to use who can open it.
            assert_eq!(load_key_as(&path, 4445).unwrap().name, "lab");
            std::os::unix::fs::chown(&path, Some(4444), None).unwrap();
            // Root could read it, and must not.
            let error = load_key(&path).unwrap_err().to_string();
            assert!(error.contains("user 4444 owns it") && error.contains("chown 0 "), "{error}");
        }
        let owner = std::fs::metadata(&path).unwrap().uid();
        let error = load_key_as(&path, owner + 1).unwrap_err().to_string();
        assert!(error.contains(&format!("chown {} {}", owner + 1, path.display())), "{error}");
        assert_eq!(load_key_as(&path, owner).unwrap().name, "lab");
    }
}
