//! Small files that a program reads whole: settings and keys. The path is a user's, and may name anything.
//!
//! Opens only regular files for reading, so nobody waits for the other end of a FIFO, and no device is triggered. What is read is bounded.
//! A file that changes meanwhile is refused: half of a file of settings can be read as settings.

use std::fs::{File, Metadata, OpenOptions};
use std::io::{self, Read};
use std::os::unix::fs::{FileTypeExt, MetadataExt, OpenOptionsExt};
use std::path::Path;

use thiserror::Error;

/// Why a file is not read.
#[derive(Debug, Error)]
pub enum SmallFileError {
    /// The system says no.
    #[error("{0}")]
    System(#[from] io::Error),
    /// It is something else: what.
    #[error("it is {0}, not a regular file")]
    NotFile(&'static str),
    /// It has more bytes than it may have.
    #[error("it is larger than {0} bytes")]
    TooLarge(u64),
    /// Somebody wrote to it meanwhile.
    #[error("it changed while it was read")]
    Changed,
    /// It is not text.
    #[error("it is not text in UTF-8")]
    NotText,
}

/// A regular file, open for reading, and what it was when it was opened.
#[derive(Debug)]
pub struct SmallFile {
    file: File,
    metadata: Metadata,
}

impl SmallFile {
    /// Opens a regular file, links followed. Waits for nobody but the file system.
    ///
    /// # Errors
    /// What is there cannot be opened, or is no regular file.
    pub fn open(path: &Path) -> Result<Self, SmallFileError> {
        // Opening alone wakes whoever waits at a FIFO, and makes some devices act.
        check_kind(&std::fs::metadata(path)?)?;
        // It may be something else by now.
        let flags = libc::O_NONBLOCK | libc::O_NOCTTY;
        let file = OpenOptions::new().read(true).custom_flags(flags).open(path)?;
        let metadata = file.metadata()?;
        check_kind(&metadata)?;
        Ok(Self { file, metadata })
    }

    /// Owner and mode, among others.
    pub fn metadata(&self) -> &Metadata {
        &self.metadata
    }

    /// All of its text, of at most `size_max` bytes.
    ///
    /// # Errors
    /// It cannot be read, is too large or no text, or was written to since it was opened.
    pub fn read(self, size_max: u64) -> Result<String, SmallFileError> {
        let mut bytes = Vec::new();
        (&self.file).take(size_max.saturating_add(1)).read_to_end(&mut bytes)?;
        if bytes.len() as u64 > size_max {
            return Err(SmallFileError::TooLarge(size_max));
        }
        let state = |of: &Metadata| (of.size(), of.mtime(), of.mtime_nsec());
        let before = state(&self.metadata);
        if state(&self.file.metadata()?) != before || bytes.len() as u64 != before.0 {
            return Err(SmallFileError::Changed);
        }
        String::from_utf8(bytes).map_err(|_| SmallFileError::NotText)
    }
}

fn check_kind(metadata: &Metadata) -> Result<(), SmallFileError> {
    let kind = metadata.file_type();
    if kind.is_file() {
        return Ok(());
    }
    let others = [
        (kind.is_dir(), "a directory"),
        (kind.is_fifo(), "a FIFO"),
        (kind.is_socket(), "a socket"),
        (kind.is_char_device() || kind.is_block_device(), "a device"),
    ];
    let what = others.into_iter().find(|(is_it, _)| *is_it).map_or("something else", |(_, what)| what);
    Err(SmallFileError::NotFile(what))
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "tests")]
    use std::io::Write;
    use std::os::unix::fs::symlink;

    use super::*;

    fn read(path: &Path) -> Result<String, String> {
        SmallFile::open(path).and_then(|file| file.read(100)).map_err(|error| error.to_string())
    }

    // [ACC-160]
    #[test]
    fn path_of_every_shape_is_read_or_refused_at_once() {
        let directory = tempfile::tempdir().unwrap();
        let path = |name: &str| directory.path().join(name);
        let fifo = path("fifo");
        rustix::fs::mknodat(rustix::fs::CWD, &fifo, rustix::fs::FileType::Fifo, 0o600.into(), 0).unwrap();
        let _socket = std::os::unix::net::UnixListener::bind(path("socket")).unwrap();
        symlink("loop", path("loop")).unwrap();
        symlink("gone", path("dangling")).unwrap();
        symlink("fifo", path("to-fifo")).unwrap();
        symlink("text", path("to-text")).unwrap();
        std::fs::write(path("text"), "text").unwrap();
        std::fs::write(path("exact"), [b'x'; 100]).unwrap();
        std::fs::write(path("large"), [b'x'; 101]).unwrap();
        std::fs::write(path("bytes"), [0xff; 3]).unwrap();
        File::create(path("huge")).unwrap().set_len(1 << 40).unwrap();
        for (name, text) in [("text", "text"), ("to-text", "text"), ("exact", &*"x".repeat(100))] {
            assert_eq!(read(&path(name)).as_deref(), Ok(text), "{name}");
        }
        for (name, problem) in [
            ("fifo", "it is a FIFO"),
            ("to-fifo", "it is a FIFO"),
            ("socket", "it is a socket"),
            (".", "it is a directory"),
            ("loop", "symbolic links"),
            ("dangling", "No such file"),
            ("large", "larger than 100 bytes"),
            ("huge", "larger than 100 bytes"),
            ("bytes", "not text"),
        ] {
            let error = read(&path(name)).unwrap_err();
            assert!(error.contains(problem), "{name}: {error}");
        }
        assert!(read(Path::new("/dev/zero")).unwrap_err().contains("it is a device"));
    }

    // [ACC-160]
    #[test]
    fn file_that_is_written_to_while_it_is_read_is_refused() {
        let file = tempfile::NamedTempFile::new().unwrap();
        std::fs::write(file.path(), "first\n").unwrap();
        let opened = SmallFile::open(file.path()).unwrap();
        File::options().append(true).open(file.path()).unwrap().write_all(b"second\n").unwrap();
        assert!(matches!(opened.read(100), Err(SmallFileError::Changed)));
        // Another in its place is not what is read.
        let opened = SmallFile::open(file.path()).unwrap();
        let other = tempfile::NamedTempFile::new().unwrap();
        other.persist(file.path()).unwrap();
        assert_eq!(opened.read(100).unwrap(), "first\nsecond\n");
    }
}
