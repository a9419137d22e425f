use std::io;

use std::time::Duration;

use thiserror::Error;

use super::{Address, Provider, RegionKey};

/// A post was not taken. Nothing happened.
#[derive(Debug, Error)]
pub enum PostError {
    /// No room now: keep the work and try after the next completion, receipt or writable event. Normal, not a fault.
    #[error("no room in the queue now")]
    Full,
    /// The connection is closed.
    #[error("the connection is closed")]
    Closed,
    /// Local memory of a write is not there: a mapped file was truncated. Nothing was posted and the connection goes on, but some of the
    /// remote range may be written.
    #[error("local memory is gone: a mapped file was truncated")]
    Faulted,
    /// The caller asked for what the capabilities exclude: a fault of the calling code.
    #[error("invalid post: {0}")]
    Invalid(&'static str),
}

/// A connection failed. It is closed from then on.
#[derive(Debug, Error)]
pub enum TransportError {
    /// The peer closed the connection, or this side did.
    #[error("connection closed")]
    Closed,
    /// The peer broke the transport's rules.
    #[error("the peer broke the transport protocol: {0}")]
    Peer(#[from] PeerFault),
    /// The operating system or the network failed.
    #[error("{what}: {source}")]
    System {
        /// What was being done.
        what: &'static str,
        /// Why it failed.
        source: io::Error,
    },
}

impl TransportError {
    /// A system failure while doing `what`.
    pub fn system(what: &'static str, source: io::Error) -> Self {
        Self::System { what, source }
    }

    /// Memory of this side was gone: a mapped file was truncated while it was sent.
    pub fn is_local_fault(&self) -> bool {
        matches!(self, Self::System { source, .. } if source.raw_os_error() == Some(libc::EFAULT))
    }
}

/// What a peer did wrong, at the transport's level.
#[derive(Debug, Error, Clone, PartialEq, Eq)]
pub enum PeerFault {
    /// A frame, ring entry or handshake that cannot be.
    #[error("{what}: {value} (limit {limit})")]
    Malformed {
        /// The field or rule.
        what: &'static str,
        /// What was received.
        value: u64,
        /// What is allowed, or expected.
        limit: u64,
    },
    /// It used a region key that is not registered, or outside its bounds or rights.
    #[error("remote access: {0}")]
    Region(#[from] RegionFault),
    /// It did not finish the handshake in time.
    #[error("handshake not finished in {limit_ms} ms")]
    HandshakeTimeout {
        /// The limit, milliseconds.
        limit_ms: u64,
    },
}

impl PeerFault {
    /// What is wrong with something received.
    #[cold]
    pub fn malformed(what: &'static str, value: impl Into<u64>, limit: impl Into<u64>) -> Self {
        Self::Malformed { what, value: value.into(), limit: limit.into() }
    }

    /// A handshake that has lasted for longer than `limit`.
    pub fn handshake_timeout(limit: Duration) -> Self {
        Self::HandshakeTimeout { limit_ms: milliseconds(limit) }
    }
}

fn milliseconds(time: Duration) -> u64 {
    u64::try_from(time.as_millis()).unwrap_or(u64::MAX)
}

/// A remote memory access that the region does not allow.
#[derive(Debug, Error, Clone, PartialEq, Eq)]
pub enum RegionFault {
    /// No such region.
    #[error("no region has the key {0}")]
    UnknownKey(RegionKey),
    /// Outside its bounds.
    #[error("bytes {offset}+{len} lie outside the region {key} of {region_len} bytes")]
    OutOfBounds {
        /// The region.
        key: RegionKey,
        /// First byte asked for.
        offset: u64,
        /// Bytes asked for.
        len: u64,
        /// Size of the region, bytes.
        region_len: u64,
    },
    /// The peer's device refused the access and does not say why: no such region, outside its bounds, or not its rights.
    #[error("the peer's device refused access to bytes {offset}+{len} of the region {key}")]
    Refused {
        /// The region.
        key: RegionKey,
        /// First byte asked for.
        offset: u64,
        /// Bytes asked for.
        len: u64,
    },
    /// Not allowed by its access rights.
    #[error("the region {key} does not allow {access}")]
    Access {
        /// The region.
        key: RegionKey,
        /// What was attempted.
        access: &'static str,
    },
}

/// Memory could not be allocated, registered or resolved.
#[derive(Debug, Error)]
pub enum RegionError {
    /// A peer's descriptor is wrong.
    #[error(transparent)]
    Fault(#[from] RegionFault),
    /// This provider cannot reach such memory.
    #[error("the {provider} provider cannot register {what}")]
    Unsupported {
        /// The provider.
        provider: Provider,
        /// The kind of memory.
        what: &'static str,
    },
    /// A bound of this side.
    #[error("too many registered regions: the limit is {limit}")]
    TooMany {
        /// The limit.
        limit: usize,
    },
    /// The operating system refused.
    #[error("{what}: {source}")]
    System {
        /// What was being done.
        what: &'static str,
        /// Why it failed.
        source: io::Error,
    },
}

/// A connection could not be made, or an address not be listened on.
#[derive(Debug, Error)]
pub enum ConnectError {
    /// The address is of another provider.
    #[error("the {provider} provider cannot use the address {address}")]
    WrongAddress {
        /// The provider.
        provider: Provider,
        /// The address.
        address: String,
    },
    /// It took too long.
    #[error("no answer from {address} in {timeout_ms} ms")]
    Timeout {
        /// The address.
        address: String,
        /// The limit, milliseconds.
        timeout_ms: u64,
    },
    /// The peer is no dafs peer, or speaks another version of the transport.
    #[error("{address}: {fault}")]
    Peer {
        /// The address.
        address: String,
        /// What it did.
        fault: PeerFault,
    },
    /// The operating system refused.
    #[error("{what} {address}: {source}")]
    System {
        /// What was being done: "connect to", "listen on".
        what: &'static str,
        /// The address.
        address: String,
        /// Why it failed.
        source: io::Error,
    },
}

impl ConnectError {
    /// The address is of another provider.
    #[cold]
    pub fn wrong_address(provider: Provider, address: &Address) -> Self {
        Self::WrongAddress { provider, address: address.to_string() }
    }

    /// The peer broke the transport's rules.
    #[cold]
    pub fn peer(address: &Address, fault: PeerFault) -> Self {
        Self::Peer { address: address.to_string(), fault }
    }

    /// A system failure of a listener.
    #[cold]
    pub fn listening(address: &Address, source: io::Error) -> Self {
        Self::System { what: "listen on", address: address.to_string(), source }
    }

    /// A system failure, or that the time is over.
    #[cold]
    pub fn connecting(address: &Address, timeout: Duration, source: io::Error) -> Self {
        let address = address.to_string();
        match source.kind() {
            io::ErrorKind::TimedOut => Self::Timeout { address, timeout_ms: milliseconds(timeout) },
            _ => Self::System { what: "connect to", address, source },
        }
    }
}
