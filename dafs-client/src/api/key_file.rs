//! The key of a client, from a file.

use std::fs::OpenOptions;
use std::io::Read;
use std::os::unix::fs::{MetadataExt, OpenOptionsExt};
use std::path::Path;

use dafs_proto::session::{Key, parse_key_file};

use crate::error::{Error, Result};

/// Bytes of a key file at most.
const KEY_FILE_SIZE_MAX: u64 = 1 << 20;

/// Reads the first key of a key file: lines `NAME:SECRET`, as `dafs-server keygen` prints them. Blocks while the file is read.
///
/// # Errors
/// [`Error::Invalid`] when the file cannot be read, is not a regular file, may be read by others, or holds no key; it says what to do.
pub fn load_key(path: &Path) -> Result<Key> {
    let name = path.display();
    let failed = |error: std::io::Error| Error::Invalid(format!("cannot read the key file {name}: {error}"));
    // A FIFO without a writer is not waited for.
    let file = OpenOptions::new().read(true).custom_flags(libc::O_NONBLOCK).open(path).map_err(failed)?;
    let metadata = file.metadata().map_err(failed)?;
    if !metadata.is_file() {
        return Err(Error::Invalid(format!(
            "cannot read the key file {name}: not a regular file; name a file with a line NAME:SECRET"
        )));
    }
    if metadata.mode() & 0o077 != 0 {
        return Err(Error::Invalid(format!(
            "cannot use the key file {name}: others may read it (mode {:03o}); forbid that with `chmod 600 {name}`, \
             and make a new key if others could have read it",
            metadata.mode() & 0o777
        )));
    }
    let mut text = String::new();
    file.take(KEY_FILE_SIZE_MAX + 1).read_to_string(&mut text).map_err(failed)?;
    if text.len() as u64 > KEY_FILE_SIZE_MAX {
        return Err(Error::Invalid(format!(
            "cannot read the key file {name}: it is larger than {KEY_FILE_SIZE_MAX} bytes"
        )));
    }
    let lines = parse_key_file(&text)
        .map_err(|error| Error::Invalid(format!("cannot read the key file {name}: {error}")))?;
    match lines.into_iter().next() {
        Some(line) => Ok(line.key),
        None => Err(Error::Invalid(format!(
            "cannot use the key file {name}: there is no key in it; write a line NAME:SECRET, as `dafs-server keygen NAME` prints it"
        ))),
    }
}
