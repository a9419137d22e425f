//! Names of servers, exports and files.
//!
//! ```text
//! dafs://host[:port]/export/path          any provider: shm on this host, else tcp
//! dafs+tcp://host[:port]/export/path      tcp
//! dafs+shm:///socket/path:/export/path    shm: the path of the socket, a colon, then export and path
//! tcp://host:port   shm:///socket/path    where a server listens
//! ```

use std::fmt;
use std::net::SocketAddr;
use std::path::PathBuf;

/// Where a provider connects to or listens.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub enum Address {
    /// A TCP address, resolved.
    Tcp(SocketAddr),
    /// The path of a unix socket.
    Shm(PathBuf),
    /// A port of a simulated network.
    Sim(u32),
}

/// The TCP port when none is given.
pub const DEFAULT_PORT: u16 = 2049 + 10_000;

impl fmt::Display for Address {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Tcp(address) => write!(f, "dafs+tcp://{address}"),
            Self::Shm(path) => write!(f, "dafs+shm://{}", path.display()),
            Self::Sim(port) => write!(f, "dafs+sim://{port}"),
        }
    }
}
