//! What can go wrong with files over several servers.

use std::fmt;

/// The result of a call into this library.
pub type Result<T> = std::result::Result<T, Error>;

/// All errors of this library.
#[derive(Clone, Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// The metadata server, or a file that is not striped.
    #[error("{0}")]
    Client(#[from] dafs_client::Error),
    /// A data server. What the other servers have of the file can be read and written.
    #[error("cannot reach {part} on server {server}: {}", source.cause())]
    Server {
        /// Its name in the servers file.
        server: String,
        /// What it has of which file.
        part: Box<Part>,
        /// Why.
        source: dafs_client::Error,
    },
    /// A data server is not, or has not, what the layout says. Nothing was read or written there.
    #[error("cannot use server {server} for {part}: {cause}")]
    Piece {
        /// Its name in the servers file.
        server: String,
        /// What it should have of which file.
        part: Box<Part>,
        /// What is wrong.
        cause: String,
    },
    /// The layout of a file is of no use.
    #[error("cannot use the layout of {path}: {cause}")]
    Layout {
        /// The file, below its export.
        path: String,
        /// What is wrong, and what to do.
        cause: String,
    },
    /// The servers file is of no use.
    #[error("cannot use the servers file .dafs-servers of the export: {0}")]
    Servers(String),
    /// The caller asks for something that cannot be.
    #[error("invalid argument: {0}")]
    Invalid(String),
    /// A striped file cannot do this.
    #[error("cannot {0}: the file is striped over several servers")]
    Unsupported(&'static str),
    /// The system gives no random numbers.
    #[error("cannot make a name for a new file: {0}")]
    Random(String),
}

/// What a server has of a file.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Part {
    /// The file, below the export of the metadata server.
    pub path: String,
    /// The first byte that the server has.
    pub first: u64,
    /// Bytes that it has from there on, and each time.
    pub unit: u64,
    /// Bytes from the beginning of one of them to the next; no more than `unit` where it has all.
    pub stride: u64,
}

impl fmt::Display for Part {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { path, first, unit, stride } = self;
        match stride > unit {
            true => {
                write!(f, "what lies of {path} at {first} and each {stride} bytes on, {unit} bytes each time")
            }
            false => write!(f, "the data of {path}"),
        }
    }
}

impl Error {
    /// The errno that means the same.
    pub fn errno(&self) -> i32 {
        match self {
            Self::Client(error) => error.errno(),
            Self::Server { source, .. } => match source.errno() {
                // Of the whole file it would say something that is not so.
                libc::ENOENT | libc::ESTALE => libc::EIO,
                errno => errno,
            },
            Self::Piece { .. } | Self::Layout { .. } | Self::Servers(_) | Self::Random(_) => libc::EIO,
            Self::Invalid(_) => libc::EINVAL,
            Self::Unsupported(_) => libc::EOPNOTSUPP,
        }
    }

    /// No such file or directory.
    pub fn is_not_found(&self) -> bool {
        matches!(self, Self::Client(error) if error.is_not_found())
    }

    /// It exists already.
    pub fn already_exists(&self) -> bool {
        matches!(self, Self::Client(error) if error.already_exists())
    }
}

/// With the errno where the system has one, else with all of the error inside.
impl From<Error> for std::io::Error {
    fn from(error: Error) -> Self {
        match error {
            Error::Client(error) => error.into(),
            error => Self::new(Self::from_raw_os_error(error.errno()).kind(), error),
        }
    }
}
