//! What went wrong, by the error classes of MPI-IO.

use dafs_client::Status;

use crate::layout::LayoutError;

/// The classes of MPI 3.1, §13.7, that this driver returns.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Class {
    /// An argument is not valid.
    Argument,
    /// The access mode is not valid.
    AccessMode,
    /// No such file or directory.
    NoSuchFile,
    /// The file exists already.
    FileExists,
    /// The name is not one of a file.
    BadFile,
    /// Permission denied.
    Access,
    /// The file, or its file system, is read-only.
    ReadOnly,
    /// No space is left.
    NoSpace,
    /// The quota is used up.
    Quota,
    /// Somebody else uses the file.
    FileInUse,
    /// Out of memory.
    NoMemory,
    /// Not supported on this file.
    Unsupported,
    /// Any other failure of input or output.
    Io,
    /// A fault of this library.
    Internal,
}

/// A failure: its class, and words for people.
#[derive(Clone, Debug, thiserror::Error, PartialEq, Eq)]
#[error("{message}")]
pub struct Error {
    /// For the program.
    pub class: Class,
    /// What, where, and what to do.
    pub message: String,
}

/// The result of this crate's functions.
pub type Result<T> = std::result::Result<T, Error>;

impl Error {
    /// A failure of this class.
    pub fn new(class: Class, message: impl Into<String>) -> Self {
        Self { class, message: message.into() }
    }

    /// The same, with what was attempted, and on what, before its words.
    #[must_use]
    pub fn cannot(self, action: &str, name: &str) -> Self {
        Self { class: self.class, message: format!("cannot {action} {name}: {}", self.message) }
    }
}

impl From<dafs_client::Error> for Error {
    fn from(error: dafs_client::Error) -> Self {
        Self { class: class_of(&error), message: error.cause() }
    }
}

impl From<LayoutError> for Error {
    fn from(error: LayoutError) -> Self {
        Self::new(Class::Argument, error.to_string())
    }
}

fn class_of(error: &dafs_client::Error) -> Class {
    use dafs_client::Error as Client;
    match error {
        Client::Invalid(_) => Class::Argument,
        Client::Address(_) => Class::BadFile,
        Client::Memory(_) => Class::NoMemory,
        Client::Stale { .. } => Class::NoSuchFile,
        other => other.status().map_or(Class::Io, class_of_status),
    }
}

fn class_of_status(status: Status) -> Class {
    match status {
        Status::NOT_FOUND | Status::STALE => Class::NoSuchFile,
        Status::EXISTS => Class::FileExists,
        // Not for the lack of a file: a program that makes one would be told that there is none.
        Status::NO_EXPORT
        | Status::IS_DIRECTORY
        | Status::NOT_DIRECTORY
        | Status::NAME_TOO_LONG
        | Status::LOOP
        | Status::CROSS_DEVICE => Class::BadFile,
        Status::ACCESS
        | Status::PERMISSION
        | Status::FENCED
        | Status::AUTH_FAILED
        | Status::AUTH_REQUIRED
        | Status::BAD_HANDLE => Class::Access,
        Status::READ_ONLY => Class::ReadOnly,
        Status::NO_SPACE | Status::TOO_LARGE => Class::NoSpace,
        Status::QUOTA => Class::Quota,
        Status::BUSY | Status::FILE_BUSY => Class::FileInUse,
        Status::NO_MEMORY => Class::NoMemory,
        Status::NOT_SUPPORTED => Class::Unsupported,
        Status::INVALID => Class::Argument,
        _ => Class::Io,
    }
}
