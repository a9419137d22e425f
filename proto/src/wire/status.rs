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

/// The outcome of a request. Numbers are those of `spec/protocol/errors.md`; those of later versions survive decoding.
#[derive(Clone, Copy, PartialEq, Eq, Hash)]
pub struct Status(u32);

statuses! {
    OK = 0, EIO, "done";
    PERMISSION = 1, EPERM, "operation not permitted";
    NOT_FOUND = 2, ENOENT, "no such file or directory";
    IO = 5, EIO, "input/output error";
    NO_DEVICE = 6, ENXIO, "there is no data or hole at or after that offset, or no such device";
    BAD_HANDLE = 9, EBADF, "the handle is not open in this session, or not for this use";
    AGAIN = 11, EAGAIN, "resource temporarily unavailable";
    NO_MEMORY = 12, ENOMEM, "cannot allocate memory";
    ACCESS = 13, EACCES, "permission denied";
    BUSY = 16, EBUSY, "device or resource busy";
    EXISTS = 17, EEXIST, "file exists";
    CROSS_DEVICE = 18, EXDEV, "invalid cross-device link: the path leaves the export, or the two names are on different file systems";
    NOT_DIRECTORY = 20, ENOTDIR, "not a directory";
    IS_DIRECTORY = 21, EISDIR, "is a directory";
    INVALID = 22, EINVAL, "invalid argument";
    TOO_MANY_OPEN = 24, EMFILE, "too many open files";
    FILE_BUSY = 26, ETXTBSY, "text file busy";
    TOO_LARGE = 27, EFBIG, "file too large";
    NO_SPACE = 28, ENOSPC, "no space left on device";
    READ_ONLY = 30, EROFS, "read-only file system";
    TOO_MANY_LINKS = 31, EMLINK, "too many links";
    RANGE = 34, ERANGE, "the result does not fit the room given";
    DEADLOCK = 35, EDEADLK, "resource deadlock avoided: who holds the lock waits for this owner";
    NAME_TOO_LONG = 36, ENAMETOOLONG, "file name too long";
    TOO_MANY_LOCKS = 37, ENOLCK, "no locks available: this session or all together hold as many as they may";
    NOT_EMPTY = 39, ENOTEMPTY, "directory not empty";
    LOOP = 40, ELOOP, "too many levels of symbolic links, or one where none is followed";
    NO_DATA = 61, ENODATA, "no such extended attribute";
    NOT_SUPPORTED = 95, EOPNOTSUPP, "operation not supported";
    TIMED_OUT = 110, ETIMEDOUT, "the deadline passed before the operation began";
    STALE = 116, ESTALE, "stale file handle";
    QUOTA = 122, EDQUOT, "disk quota exceeded";
    CANCELLED = 125, ECANCELED, "operation canceled";
    CHAIN_ABORTED = 0x1001, ECANCELED, "an earlier request of the chain failed";
    FENCED = 0x1002, EACCES, "this client is fenced off the export";
    NO_EXPORT = 0x1003, ENOENT, "no such export, or this client may not mount it";
    FALSE_RETRY = 0x1004, EINVAL, "the sequence number of the slot was used before for another request";
    NO_SESSION = 0x1005, ESTALE, "the server does not know the session: it ended, or the server was restarted";
    AUTH_FAILED = 0x1006, EACCES, "the key is unknown or the proof is wrong";
    AUTH_REQUIRED = 0x1007, EACCES, "this listener demands a key";
    VERSION = 0x1008, EPROTONOSUPPORT, "no protocol version is spoken by both sides";
    SERVER_FULL = 0x1009, EUSERS, "the server has as many sessions as it may have";
    DRAINING = 0x100a, ESHUTDOWN, "the server is shutting down";
    REMOTE_ACCESS = 0x100b, EFAULT, "the client's memory could not be reached";
    NO_TOKEN = 0x100c, ESTALE, "the token is unknown, its time is over, or it is not for this client";
    LOCKED = 0x1010, EAGAIN, "another owner holds a lock of a part of this range";
    WAITING = 0x1011, EAGAIN, "the lock waits for others; the server tells when to ask again";
    LOCK_BROKEN = 0x1012, EOWNERDEAD, "a part of this range was locked by somebody who is gone: repair what it guards";
    GRACE = 0x1013, EAGAIN, "the server was restarted, and waits for its clients to reclaim their locks";
    NO_RECLAIM = 0x1014, ESTALE, "the lock is not its client's any more: the server does not know it, or others could lock meanwhile";
    NOT_SAME = 0x1020, ECANCELED, "the attributes or the list are not those that were expected";
    SAME = 0x1021, ECANCELED, "none of the attributes that were compared differs";
    SHARE_DENIED = 0x1022, EBUSY, "another open of the file denies this access, or has an access that this one denies";
    NO_VIEW = 0x1030, ESTALE, "the session has no view of this number";
    TOO_MANY_VIEWS = 0x1031, ENOSPC, "the server has no room for another view of this session, or of all sessions of its client";
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

    // [ERR-4]
    #[test]
    fn status_of_a_later_version_survives_decoding() {
        assert_eq!(Status::from_value(0x7777).value(), 0x7777);
        assert_eq!(Status::from_value(0x7777).errno(), libc::EIO);
    }
}
