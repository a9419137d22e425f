use std::borrow::Cow;
use std::fmt;
use std::io;
use std::ops::Range;
use std::sync::Arc;

use dafs_proto::address::{AddressError, ResolveError};
use dafs_proto::session::{HandshakeError, SessionFault};
use dafs_proto::transport::{ConnectError, RegionError, TransportError};
use dafs_proto::wire::{Opcode, Status};
use thiserror::Error;

/// All errors of this library.
///
/// Three kinds stay apart: errors of the *server* ([`Error::Status`], [`Error::Peer`], [`Error::Handshake`]), of the *caller*
/// ([`Error::Invalid`], [`Error::Address`]), and of the *system* ([`Error::Connect`], [`Error::Connection`], [`Error::Memory`], …). Each
/// has the errno that means the same ([`Error::errno`]), and converts to [`io::Error`].
#[derive(Debug, Clone, Error)]
#[non_exhaustive]
pub enum Error {
    /// The server answered the operation with an error: a normal outcome, such as "no such file".
    Status {
        /// What the server said.
        status: Status,
        /// What was asked.
        operation: Opcode,
        /// The path it was about, below its export; empty for the export itself or where no path was given.
        path: Vec<u8>,
        /// The server's words, where it added any, at most 512 bytes; or which key was proven, where an export could not be mounted.
        explanation: String,
    },
    /// The server broke the rules of the protocol. The session has ended.
    Peer(#[from] SessionFault),
    /// No session was agreed on: wrong key, version, or the server refused.
    Handshake(#[from] HandshakeError),
    /// The caller's request is not valid. Nothing was sent.
    Invalid(String),
    /// The server's address cannot be read.
    Address(#[from] AddressError),
    /// The server's name cannot be resolved.
    Resolve(Arc<ResolveError>),
    /// No connection could be made.
    Connect(Arc<ConnectError>),
    /// The connection is lost and could not be made again within the limits of the configuration. The session has ended.
    Connection {
        /// The server.
        server: String,
        /// What happened, and how often connecting again was tried.
        cause: String,
    },
    /// Memory could not be allocated or registered.
    Memory(Arc<RegionError>),
    /// The operation's time was over. A modifying operation may have been executed nevertheless.
    TimedOut {
        /// What was asked.
        operation: Opcode,
        /// The limit, milliseconds.
        timeout_ms: u64,
    },
    /// The operation was cancelled by [`crate::Pending::cancel`].
    Cancelled,
    /// The request was sent in a session that is gone: the server was restarted, or had not heard of this client for longer than the lease.
    /// Whether it was executed is not known.
    InDoubt {
        /// What was asked.
        operation: Opcode,
    },
    /// The server has forgotten the session, and this open file could not be opened again in a new one.
    Stale {
        /// The path below its export.
        path: Vec<u8>,
        /// Why not.
        cause: StaleCause,
    },
    /// What was done to a file was lost by a restart of the server before it was committed: write these ranges again, and where
    /// `attributes`, set size and attributes again first.
    WritesLost {
        /// The path below its export.
        path: Vec<u8>,
        /// Byte ranges of the file, sorted, not overlapping.
        ranges: Vec<Range<u64>>,
        /// Its size was set, space given or taken, or its attributes were changed: that may be lost where the machine was restarted too,
        /// and with it what had been cut off is there again.
        attributes: bool,
    },
    /// The server lists the same entries of a directory again and again.
    Endless {
        /// The path below its export.
        path: Vec<u8>,
    },
    /// The file ended before the buffer was full.
    UnexpectedEnd {
        /// The path below its export.
        path: Vec<u8>,
        /// Bytes missing.
        missing: u64,
    },
    /// The session was closed by [`crate::Session::close`].
    Closed,
    /// This process is a child that a fork made: the session is its parent's, which goes on with it.
    Forked,
}

/// Why a file could not be opened again.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum StaleCause {
    /// Its path could not be opened: it was removed, or renamed by others, or permissions changed.
    #[error("its path cannot be opened: {0}")]
    Path(Status),
    /// Its path names another file.
    #[error("its path now names another file")]
    Replaced,
    /// The server does not export what it did.
    #[error("its export cannot be mounted: {0}")]
    Export(Status),
    /// It was locked, and could not be locked again: others may hold the locks.
    #[error("its locks are lost: {0}")]
    Locks(Status),
    /// The file system below the export does not tell apart files that have had the same number.
    #[error("the server's file system does not tell whether its path still names the same file")]
    Unnamed,
}

/// The result of a call into this library.
pub type Result<T> = std::result::Result<T, Error>;

impl Error {
    /// The errno that means the same.
    pub fn errno(&self) -> i32 {
        match self {
            Self::Status { status, .. } => status.errno(),
            Self::Peer(_) => libc::EPROTO,
            Self::Handshake(HandshakeError::Refused(status)) => status.errno(),
            Self::Handshake(HandshakeError::Fault(_)) => libc::EPROTO,
            Self::Handshake(HandshakeError::KeyRequired | HandshakeError::ServerUnproven(_)) => libc::EACCES,
            Self::Invalid(_) | Self::Address(_) => libc::EINVAL,
            Self::Resolve(_) => libc::EHOSTUNREACH,
            Self::Connect(error) => match &**error {
                ConnectError::WrongAddress { .. } => libc::EINVAL,
                ConnectError::Timeout { .. } => libc::ETIMEDOUT,
                ConnectError::Peer { .. } => libc::EPROTO,
                ConnectError::System { source, .. } => source.raw_os_error().unwrap_or(libc::ECONNREFUSED),
            },
            Self::Connection { .. } => libc::ECONNRESET,
            Self::Memory(_) => libc::ENOMEM,
            Self::TimedOut { .. } => libc::ETIMEDOUT,
            Self::Cancelled => libc::ECANCELED,
            Self::InDoubt { .. } => libc::EIO,
            Self::Stale { .. } => libc::ESTALE,
            Self::WritesLost { .. } => libc::EIO,
            Self::UnexpectedEnd { .. } => libc::EIO,
            Self::Endless { .. } => libc::ELOOP,
            Self::Closed | Self::Forked => libc::ENOTCONN,
        }
    }

    /// The errno of an error that was converted to [`io::Error`]; `None` where that came from elsewhere and has none.
    pub fn errno_of(error: &io::Error) -> Option<i32> {
        error.raw_os_error().or_else(|| Self::of_io(error).map(Self::errno))
    }

    /// The error of this library inside an [`io::Error`], where there is one.
    pub fn of_io(error: &io::Error) -> Option<&Self> {
        error.get_ref()?.downcast_ref()
    }

    /// Why it failed, without what was asked: for messages that say that themselves.
    pub fn cause(&self) -> String {
        match self {
            Self::Status { status, explanation, .. } => status_cause(*status, explanation),
            Self::TimedOut { timeout_ms, .. } => format!("it did not end within {timeout_ms} ms"),
            Self::InDoubt { .. } => {
                "the server forgot the session in which it was sent, and may have executed it; check before you try again".to_owned()
            }
            Self::Stale { cause, .. } => format!("the server forgot the session, and {cause}; open it again"),
            Self::WritesLost { ranges, attributes, .. } => {
                format!("a restart of the server may have lost {}; repeat that", lost(ranges, *attributes))
            }
            Self::Endless { .. } => "the server repeats the same entries without end".to_owned(),
            Self::UnexpectedEnd { missing, .. } => format!("the file ends {missing} bytes too early"),
            Self::Peer(fault) => format!("the server broke the protocol: {fault}"),
            Self::Handshake(error) => error.to_string(),
            Self::Invalid(what) => format!("invalid argument: {what}"),
            Self::Address(error) => error.to_string(),
            Self::Resolve(error) => error.to_string(),
            Self::Connect(error) => error.to_string(),
            Self::Connection { server, cause } => format!("the connection to {server} is lost: {cause}"),
            Self::Memory(error) => error.to_string(),
            Self::Cancelled => "operation canceled".to_owned(),
            Self::Closed => "the session is closed".to_owned(),
            Self::Forked => "the session belongs to the parent process; open a new one after the fork".to_owned(),
        }
    }

    /// What was attempted, and on which path, as it follows "cannot"; nothing where the cause says all.
    fn attempt(&self) -> Option<(&'static str, &[u8])> {
        match self {
            Self::Status { operation, path, .. } => Some((operation.action(), path)),
            Self::TimedOut { operation, .. } => Some((operation.action(), &[])),
            Self::InDoubt { operation } => Some((operation.action(), &[])),
            Self::Stale { path, .. } => Some(("use", named(path))),
            Self::WritesLost { path, .. } => Some(("commit", named(path))),
            Self::Endless { path } => Some(("list", named(path))),
            Self::UnexpectedEnd { path, .. } => Some(("read", named(path))),
            Self::Handshake(_) => Some(("open a session", &[])),
            Self::Memory(_) => Some(("get memory for a transfer", &[])),
            Self::Peer(_)
            | Self::Invalid(_)
            | Self::Address(_)
            | Self::Resolve(_)
            | Self::Connect(_)
            | Self::Connection { .. }
            | Self::Cancelled
            | Self::Closed
            | Self::Forked => None,
        }
    }

    /// The status the server answered, where it did.
    pub fn status(&self) -> Option<Status> {
        match self {
            Self::Status { status, .. } => Some(*status),
            Self::Handshake(HandshakeError::Refused(status)) => Some(*status),
            _ => None,
        }
    }

    /// The server answered [`Status::NOT_FOUND`]: no such file or directory.
    pub fn is_not_found(&self) -> bool {
        self.status() == Some(Status::NOT_FOUND)
    }

    /// The server answered that it exists already.
    pub fn already_exists(&self) -> bool {
        self.status() == Some(Status::EXISTS)
    }

    /// Where an export cannot be mounted, this client's key may be why: the server does not say, not to tell strangers what it exports.
    pub(crate) fn with_key(mut self, proven: Option<&str>) -> Self {
        if let Self::Status { status: Status::NO_EXPORT, explanation, .. } = &mut self
            && explanation.is_empty()
        {
            *explanation = match proven {
                Some(name) => format!("the only key that it has proven is \"{name}\""),
                None => "it has proven no key; an export may demand one".to_owned(),
            };
        }
        self
    }

    pub(crate) fn lost(server: &str, cause: &TransportError) -> Self {
        Self::Connection { server: server.to_owned(), cause: cause.to_string() }
    }
}

/// `cannot <verb> <path>: <cause>`, and `; <what to do>` where something can be done.
impl fmt::Display for Error {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.attempt() {
            Some((action, [])) => write!(f, "cannot {action}: ")?,
            Some((action, path)) => write!(f, "cannot {action} {}: ", String::from_utf8_lossy(path))?,
            None => {}
        }
        f.write_str(&self.cause())
    }
}

impl From<ConnectError> for Error {
    fn from(error: ConnectError) -> Self {
        Self::Connect(Arc::new(error))
    }
}

impl From<ResolveError> for Error {
    fn from(error: ResolveError) -> Self {
        Self::Resolve(Arc::new(error))
    }
}

impl From<RegionError> for Error {
    fn from(error: RegionError) -> Self {
        Self::Memory(Arc::new(error))
    }
}

impl From<dafs_proto::wire::WireError> for Error {
    fn from(error: dafs_proto::wire::WireError) -> Self {
        Self::Peer(SessionFault::Wire(error))
    }
}

/// As the standard library has errors of files, for programs that know no dafs:
///
/// - What the server answered ([`Error::Status`]) becomes the errno of the status, as of a system call: `raw_os_error()` has it.
/// - A file that ends too early is [`io::ErrorKind::UnexpectedEof`], as of [`std::io::Read::read_exact`].
/// - Every other error stays what it is inside the [`io::Error`], with the kind of its errno: [`Error::of_io`] gives it back.
///
/// [`Error::errno_of`] has the errno of all of them. The kind is never [`io::ErrorKind::Interrupted`]: helpers of the standard library
/// would repeat the call for ever.
impl From<Error> for io::Error {
    fn from(error: Error) -> Self {
        let kind = match &error {
            Error::Status { status, .. } => return Self::from_raw_os_error(status.errno()),
            Error::UnexpectedEnd { .. } => io::ErrorKind::UnexpectedEof,
            _ => Self::from_raw_os_error(error.errno()).kind(),
        };
        let kind = if kind == io::ErrorKind::Interrupted { io::ErrorKind::Other } else { kind };
        Self::new(kind, error)
    }
}

/// The root of an export has a name too.
fn named(path: &[u8]) -> &[u8] {
    if path.is_empty() { b"/" } else { path }
}

fn lost(ranges: &[Range<u64>], attributes: bool) -> String {
    let size: u64 = ranges.iter().map(|range| range.end - range.start).sum();
    let plural = if ranges.len() == 1 { "" } else { "s" };
    let written = format!("{size} bytes written to {} range{plural}", ranges.len());
    match (ranges.is_empty(), attributes) {
        (false, false) => written,
        (true, _) => "changes of size or attributes".to_owned(),
        (false, true) => format!("changes of size or attributes and {written}"),
    }
}

fn status_cause(status: Status, explanation: &str) -> String {
    let number: Cow<'_, str> = match status.name() {
        Some(_) => "".into(),
        None => format!(" ({:#x})", status.value()).into(),
    };
    match explanation {
        "" => format!("{status}{number}"),
        words => format!("{status}{number}: {words}"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn status_error_shows_operation_path_words_and_errno() {
        let error = Error::Status {
            status: Status::NO_SPACE,
            operation: Opcode::Write,
            path: b"a/b".to_vec(),
            explanation: "disk 3".into(),
        };
        assert_eq!(error.to_string(), "cannot write a/b: no space left on device: disk 3");
        assert_eq!(error.cause(), "no space left on device: disk 3");
        assert_eq!(error.errno(), libc::ENOSPC);
        assert_eq!(io::Error::from(error).kind(), io::ErrorKind::StorageFull);
    }

    // [CLI-200]
    #[test]
    fn each_status_becomes_the_system_s_error_of_its_errno() {
        let later = Status::from_value(0x7777);
        for status in Status::ALL.iter().copied().chain([later]) {
            let error =
                Error::Status { status, operation: Opcode::Open, path: vec![], explanation: "why".into() };
            let converted = io::Error::from(error);
            assert_eq!(converted.raw_os_error(), Some(status.errno()), "{status:?}");
            assert_eq!(Error::errno_of(&converted), Some(status.errno()), "{status:?}");
            assert_ne!(converted.kind(), io::ErrorKind::Interrupted, "{status:?}");
        }
        assert_eq!(later.errno(), libc::EIO);
    }

    // [CLI-201]
    #[test]
    fn other_errors_stay_inside_with_the_kind_of_their_errno() {
        let interrupted = ConnectError::System {
            what: "connect to",
            address: "dafs+tcp://127.0.0.1:1".into(),
            source: io::Error::from_raw_os_error(libc::EINTR),
        };
        for (error, errno, kind) in [
            (Error::Invalid("x".into()), libc::EINVAL, io::ErrorKind::InvalidInput),
            (
                Error::TimedOut { operation: Opcode::Read, timeout_ms: 1 },
                libc::ETIMEDOUT,
                io::ErrorKind::TimedOut,
            ),
            (
                Error::Stale { path: vec![], cause: StaleCause::Replaced },
                libc::ESTALE,
                io::ErrorKind::StaleNetworkFileHandle,
            ),
            (
                Error::Connection { server: "s".into(), cause: "c".into() },
                libc::ECONNRESET,
                io::ErrorKind::ConnectionReset,
            ),
            (Error::Closed, libc::ENOTCONN, io::ErrorKind::NotConnected),
            (Error::UnexpectedEnd { path: vec![], missing: 3 }, libc::EIO, io::ErrorKind::UnexpectedEof),
            (Error::from(interrupted), libc::EINTR, io::ErrorKind::Other),
        ] {
            let words = error.to_string();
            let converted = io::Error::from(error);
            assert_eq!((converted.kind(), converted.to_string()), (kind, words.clone()));
            assert_eq!(Error::errno_of(&converted), Some(errno), "{words}");
            assert_eq!(Error::of_io(&converted).map(ToString::to_string), Some(words));
        }
        assert_eq!(Error::errno_of(&io::Error::other("of somebody else")), None);
        assert_eq!(Error::errno_of(&io::Error::from_raw_os_error(libc::EPERM)), Some(libc::EPERM));
    }

    #[test]
    fn error_says_what_could_not_be_done_why_and_what_to_do() {
        let path = b"a/b".to_vec();
        for (error, expected) in [
            (
                Error::TimedOut { operation: Opcode::Getattr, timeout_ms: 5 },
                "cannot look at: it did not end within 5 ms",
            ),
            (
                Error::Stale { path: Vec::new(), cause: StaleCause::Replaced },
                "cannot use /: the server forgot the session, and its path now names another file; open it again",
            ),
            (
                Error::WritesLost { path, ranges: vec![0..10, 20..25], attributes: false },
                "cannot commit a/b: a restart of the server may have lost 15 bytes written to 2 ranges; repeat that",
            ),
            (Error::Invalid("a chain of nothing".into()), "invalid argument: a chain of nothing"),
        ] {
            assert_eq!(error.to_string(), expected);
        }
    }

    #[test]
    fn error_of_a_later_status_keeps_its_number() {
        let error = Error::Status {
            status: Status::from_value(0x7777),
            operation: Opcode::Read,
            path: vec![],
            explanation: String::new(),
        };
        assert!(error.to_string().contains("0x7777"), "{error}");
    }
}
