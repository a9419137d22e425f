use std::io;
use std::ops::Range;
use std::sync::Arc;

use dafs_proto::address::{AddressError, ResolveError};
use dafs_proto::session::{HandshakeError, SessionFault};
use dafs_proto::transport::{ConnectError, RegionError, TransportError};
use dafs_proto::wire::{Opcode, Status};
use thiserror::Error;

/// Everything that can go wrong in this library.
///
/// Three kinds stay apart: what the *server answered or did wrong* ([`Error::Status`], [`Error::Peer`],
/// [`Error::Handshake`]), what the *caller* did wrong ([`Error::Invalid`], [`Error::Address`]), and what the *world*
/// did ([`Error::Connect`], [`Error::Connection`], [`Error::Memory`], …). All convert to [`io::Error`] with the errno
/// that says the same.
#[derive(Debug, Clone, Error)]
#[non_exhaustive]
pub enum Error {
    /// The server answered the operation with an error: a normal outcome, such as "no such file".
    #[error("{}", status_message(*.operation, .path, *.status, .explanation))]
    Status {
        /// What the server said.
        status: Status,
        /// What was asked.
        operation: Opcode,
        /// The path it was about, below its export; empty for the export itself or where no path was given.
        path: Vec<u8>,
        /// The server's words, where it added any; at most 512 bytes.
        explanation: String,
    },
    /// The server broke the rules of the protocol. The session has ended.
    #[error("the server broke the protocol: {0}")]
    Peer(#[from] SessionFault),
    /// No session was agreed on: wrong key, version, or the server refused.
    #[error("no session with the server: {0}")]
    Handshake(#[from] HandshakeError),
    /// The caller asked for what cannot be: nothing was sent.
    #[error("invalid request: {0}")]
    Invalid(String),
    /// The server's address cannot be read.
    #[error(transparent)]
    Address(#[from] AddressError),
    /// The server's name cannot be resolved.
    #[error("{0}")]
    Resolve(Arc<ResolveError>),
    /// No connection could be made.
    #[error("{0}")]
    Connect(Arc<ConnectError>),
    /// The connection is lost and could not be made again within the limits of the configuration. The session has ended.
    #[error("the connection to {server} is lost: {cause}")]
    Connection {
        /// The server.
        server: String,
        /// What happened, and how often connecting again was tried.
        cause: String,
    },
    /// Memory could not be allocated or registered.
    #[error("memory for the transfer: {0}")]
    Memory(Arc<RegionError>),
    /// The operation's time was over. A modifying operation may have been executed nevertheless.
    #[error("{} did not finish in {timeout_ms} ms", .operation.name())]
    TimedOut {
        /// What was asked.
        operation: Opcode,
        /// The limit, milliseconds.
        timeout_ms: u64,
    },
    /// The operation was cancelled by [`crate::Pending::cancel`].
    #[error("the operation was cancelled")]
    Cancelled,
    /// The request was sent in a session that is gone, because the server was restarted or had not heard of this client for longer than the
    /// lease: whether it was executed is not known.
    #[error(
        "{} was sent in a session that the server has forgotten: whether it was executed is not known; look before trying again",
        .operation.name()
    )]
    InDoubt {
        /// What was asked.
        operation: Opcode,
    },
    /// The server has forgotten the session, and this open file could not be opened again in a new one.
    #[error("{} is not open any more: the server has forgotten the session, and {cause}; open it again", lossy(.path))]
    Stale {
        /// The path below its export.
        path: Vec<u8>,
        /// Why not.
        cause: StaleCause,
    },
    /// What was done to a file was lost by a restart of the server before it was committed: write these ranges again, and where
    /// `attributes`, set size and attributes again first.
    #[error("a restart of the server may have lost {} of {}: do that again", lost(.ranges, *.attributes), lossy(.path))]
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
    #[error("{}: the directory does not end: the server lists the same entries again", lossy(.path))]
    Endless {
        /// The path below its export.
        path: Vec<u8>,
    },
    /// The file ended before the buffer was full.
    #[error("{}: the file ends {missing} bytes too early", lossy(.path))]
    UnexpectedEnd {
        /// The path below its export.
        path: Vec<u8>,
        /// Bytes missing.
        missing: u64,
    },
    /// The session was closed by [`crate::Session::close`].
    #[error("the session is closed")]
    Closed,
    /// This process is a child that a fork made: the session is its parent's, which goes on with it.
    #[error("the session belongs to the process that this one was forked from: open one after the fork")]
    Forked,
}

/// Why a file could not be opened again.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum StaleCause {
    /// Its path could not be opened: it was removed, or renamed by others, or permissions changed.
    #[error("its path cannot be opened: {0}")]
    Path(Status),
    /// Its path names another file.
    #[error("another file has its path")]
    Replaced,
    /// The server does not export what it did.
    #[error("its export cannot be mounted: {0}")]
    Export(Status),
    /// The file system below the export does not tell apart files that have had the same number.
    #[error("the server's file system does not tell whether its path still names the same file")]
    Unnamed,
}

/// The result of a call into this library.
pub type Result<T> = std::result::Result<T, Error>;

impl Error {
    /// The errno that says the same.
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

    /// The status the server answered, where it did.
    pub fn status(&self) -> Option<Status> {
        match self {
            Self::Status { status, .. } => Some(*status),
            Self::Handshake(HandshakeError::Refused(status)) => Some(*status),
            _ => None,
        }
    }

    /// The server answered that there is no such file or directory.
    pub fn is_not_found(&self) -> bool {
        self.status() == Some(Status::NOT_FOUND)
    }

    /// The server answered that it exists already.
    pub fn already_exists(&self) -> bool {
        self.status() == Some(Status::EXISTS)
    }

    pub(crate) fn lost(server: &str, cause: &TransportError) -> Self {
        Self::Connection { server: server.to_owned(), cause: cause.to_string() }
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

impl From<Error> for io::Error {
    fn from(error: Error) -> Self {
        let kind = match &error {
            Error::UnexpectedEnd { .. } => io::ErrorKind::UnexpectedEof,
            // Never `Interrupted`: std's helpers would repeat the call for ever.
            _ => io::Error::from_raw_os_error(error.errno()).kind(),
        };
        Self::new(kind, error)
    }
}

fn lossy(path: &[u8]) -> std::borrow::Cow<'_, str> {
    if path.is_empty() { "/".into() } else { String::from_utf8_lossy(path) }
}

fn lost(ranges: &[Range<u64>], attributes: bool) -> String {
    let size: u64 = ranges.iter().map(|range| range.end - range.start).sum();
    let written = format!("{size} bytes written to {} range(s)", ranges.len());
    match (ranges.is_empty(), attributes) {
        (false, false) => written,
        (true, _) => "changes of size or attributes".to_owned(),
        (false, true) => format!("changes of size or attributes and {written}"),
    }
}

fn status_message(operation: Opcode, path: &[u8], status: Status, explanation: &str) -> String {
    let operation = operation.name().to_lowercase();
    let code = match status.name() {
        Some(_) => String::new(),
        None => format!(" ({:#x})", status.value()),
    };
    let mut message = match path.is_empty() {
        true => format!("{operation}: {status}{code}"),
        false => format!("{operation} {}: {status}{code}", lossy(path)),
    };
    if !explanation.is_empty() {
        message.push_str(": ");
        message.push_str(explanation);
    }
    message
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn error_of_a_status_says_operation_path_and_words_and_has_its_errno() {
        let error = Error::Status {
            status: Status::NO_SPACE,
            operation: Opcode::Write,
            path: b"a/b".to_vec(),
            explanation: "disk 3".into(),
        };
        assert_eq!(error.to_string(), "write a/b: no space is left on the server's storage: disk 3");
        assert_eq!(error.errno(), libc::ENOSPC);
        assert_eq!(io::Error::from(error).kind(), io::ErrorKind::StorageFull);
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
