//! Errors as the kernel is told of them.

use dafs_client::{Error, Status};

/// A number of errno(3).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Errno(pub(crate) i32);

impl Errno {
    pub(crate) const ACCESS: Self = Self(libc::EACCES);
    pub(crate) const BAD_FILE: Self = Self(libc::EBADF);
    pub(crate) const CROSS_DEVICE: Self = Self(libc::EXDEV);
    pub(crate) const INTERRUPTED: Self = Self(libc::EINTR);
    pub(crate) const INVALID: Self = Self(libc::EINVAL);
    pub(crate) const IO: Self = Self(libc::EIO);
    pub(crate) const NOT_SUPPORTED: Self = Self(libc::EOPNOTSUPP);
    pub(crate) const NO_DATA: Self = Self(libc::ENODATA);
    pub(crate) const NO_SYSTEM_CALL: Self = Self(libc::ENOSYS);
    pub(crate) const NOT_A_TERMINAL: Self = Self(libc::ENOTTY);
    pub(crate) const OUT_OF_RANGE: Self = Self(libc::ERANGE);
    pub(crate) const STALE: Self = Self(libc::ESTALE);
}

impl From<&Error> for Errno {
    fn from(error: &Error) -> Self {
        match error {
            // Programs know what EIO means of a disk; what a network is they do not ask.
            Error::Connection { .. }
            | Error::Closed
            | Error::TimedOut { .. }
            | Error::InDoubt { .. }
            | Error::WritesLost { .. }
            | Error::Peer(_)
            | Error::Connect(_)
            | Error::Resolve(_) => Self::IO,
            Error::Cancelled => Self::INTERRUPTED,
            Error::Handshake(_) => Self::ACCESS,
            Error::Status { status: Status::TOO_MANY_OPEN, .. } => Self(libc::ENFILE),
            // Nothing says that a call on a file may be answered so.
            other => match other.errno() {
                0 => Self::IO,
                errno => Self(errno),
            },
        }
    }
}

impl From<Error> for Errno {
    fn from(error: Error) -> Self {
        match &error {
            Error::Status { .. } => {}
            error => tracing::debug!("a call fails: {error}"),
        }
        Self::from(&error)
    }
}

/// What a request comes to.
pub(crate) type Answer<T> = Result<T, Errno>;
