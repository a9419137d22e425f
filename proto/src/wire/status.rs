use std::fmt;

macro_rules! statuses {
    ($($name:ident = $value:literal, $errno:ident, $sentence:literal;)*) => {
        impl Status {
            $(#[doc = $sentence] pub const $name: Self = Self($value);)*

            /// All that this version knows, in the order of their numbers.
            pub const ALL: &[Self] = &[$(Self::$name,)*];

            /// The name, for logs and the specification.
            pub fn name(self) -> Option<&'static str> {
                match self { $(Self::$name => Some(stringify!($name)),)* _ => None }
            }

            /// What it means.
            pub fn sentence(self) -> &'static str {
                match self { $(Self::$name => $sentence,)* _ => "an outcome that this version does not know" }
            }

            /// The errno that says the same to a caller; EIO for statuses of later versions.
            pub fn errno(self) -> i32 {
                match self { $(Self::$name => libc::$errno,)* _ => libc::EIO }
            }
        }
    };
}

/// The outcome of a request. Numbers are those of `spec/errors.md`; those of later versions survive decoding.
#[derive(Clone, Copy, PartialEq, Eq, Hash)]
pub struct Status(u32);

statuses! {
    OK = 0, EIO, "done";
    PERMISSION = 1, EPERM, "the operation is not permitted";
    NOT_FOUND = 2, ENOENT, "there is no such file or directory";
    IO = 5, EIO, "the storage failed";
    NO_DEVICE = 6, ENXIO, "there is no data or hole at or after that offset, or no such device";
    BAD_HANDLE = 9, EBADF, "the handle is not open in this session, or not for this use";
    AGAIN = 11, EAGAIN, "the server cannot do it now; try again";
    NO_MEMORY = 12, ENOMEM, "the server is out of memory";
    ACCESS = 13, EACCES, "the user may not do this";
    BUSY = 16, EBUSY, "it is in use";
    EXISTS = 17, EEXIST, "it exists already";
    CROSS_DEVICE = 18, EXDEV, "the path leaves the export, or the two names are not on one file system";
    NOT_DIRECTORY = 20, ENOTDIR, "a part of the path is not a directory";
    IS_DIRECTORY = 21, EISDIR, "it is a directory";
    INVALID = 22, EINVAL, "an argument is not valid";
    TOO_MANY_OPEN = 24, EMFILE, "too many open files: in this session or on the server";
    FILE_BUSY = 26, ETXTBSY, "the file is being executed";
    TOO_LARGE = 27, EFBIG, "the file would become too large";
    NO_SPACE = 28, ENOSPC, "no space is left on the server's storage";
    READ_ONLY = 30, EROFS, "the export or its file system is read-only";
    TOO_MANY_LINKS = 31, EMLINK, "too many links";
    RANGE = 34, ERANGE, "the result does not fit the room given";
    NAME_TOO_LONG = 36, ENAMETOOLONG, "a name is too long";
    NOT_EMPTY = 39, ENOTEMPTY, "the directory is not empty";
    LOOP = 40, ELOOP, "too many symbolic links, or one where none may be followed";
    NO_DATA = 61, ENODATA, "there is no such extended attribute";
    NOT_SUPPORTED = 95, EOPNOTSUPP, "the export's file system does not support this";
    TIMED_OUT = 110, ETIMEDOUT, "the deadline passed before the operation began";
    QUOTA = 122, EDQUOT, "the quota is used up";
    CANCELLED = 125, ECANCELED, "the operation was cancelled";
    STALE = 116, ESTALE, "the file that the handle named is gone";
    CHAIN_ABORTED = 0x1001, ECANCELED, "an earlier request of the chain failed";
    FENCED = 0x1002, EACCES, "this client is fenced off the export";
    NO_EXPORT = 0x1003, ENOENT, "there is no such export, or this client may not mount it";
    FALSE_RETRY = 0x1004, EINVAL, "the sequence number of the slot was used before for another request";
    NO_SESSION = 0x1005, ESTALE, "the server does not know the session: it ended, or the server was restarted";
    AUTH_FAILED = 0x1006, EACCES, "the key is unknown or the proof is wrong";
    AUTH_REQUIRED = 0x1007, EACCES, "this listener demands a key";
    VERSION = 0x1008, EPROTONOSUPPORT, "no protocol version is spoken by both sides";
    SERVER_FULL = 0x1009, EUSERS, "the server has as many sessions as it may have";
    DRAINING = 0x100a, ESHUTDOWN, "the server is shutting down";
    REMOTE_ACCESS = 0x100b, EFAULT, "the client's memory could not be reached";
    NO_TOKEN = 0x100c, ESTALE, "the token is unknown, its time is over, or it is not for this client";
}

impl Status {
    /// The number on the wire.
    pub const fn value(self) -> u32 {
        self.0
    }

    /// The status with this number, known or not.
    pub const fn from_value(value: u32) -> Self {
        Self(value)
    }

    /// The status that tells a client of a failed system call on the server.
    pub fn from_errno(errno: i32) -> Self {
        match errno {
            libc::ENOTSUP | libc::ENOSYS | libc::ENOTTY => Self::NOT_SUPPORTED,
            libc::ENFILE => Self::TOO_MANY_OPEN,
            libc::EINTR => Self::AGAIN,
            _ => Self::ALL
                .iter()
                .copied()
                .find(|status| *status != Self::OK && status.value() < 0x1000 && status.errno() == errno)
                .unwrap_or(Self::IO),
        }
    }
}

impl From<rustix::io::Errno> for Status {
    fn from(errno: rustix::io::Errno) -> Self {
        Self::from_errno(errno.raw_os_error())
    }
}

impl fmt::Debug for Status {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.name() {
            Some(name) => f.write_str(name),
            None => write!(f, "Status({:#x})", self.0),
        }
    }
}

impl fmt::Display for Status {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.sentence())
    }
}

#[cfg(test)]
mod tests {
    use super::Status;

    // [ERR-3]
    #[test]
    fn status_of_errno_and_back_is_the_same_errno() {
        for status in Status::ALL.iter().filter(|s| **s != Status::OK && s.value() < 0x1000) {
            assert_eq!(Status::from_errno(status.errno()), *status, "{status:?}");
        }
    }

    // [ERR-2]
    #[test]
    fn status_of_a_later_version_survives_decoding() {
        assert_eq!(Status::from_value(0x7777).value(), 0x7777);
        assert_eq!(Status::from_value(0x7777).errno(), libc::EIO);
    }
}
