//! Ranges of client addresses.

use std::fmt;
use std::net::IpAddr;
use std::str::FromStr;

use dafs_proto::transport::PeerIdentity;
use ipnet::{IpNet, Ipv4Net};
use thiserror::Error;

/// An entry of an export's list of clients.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum AddressRange {
    /// `local`: clients on this host, over shared memory or the loopback interface.
    Local,
    /// An address, or a network such as `10.0.0.0/8`. IPv4 addresses that stand in IPv6 ones (`::ffff:10.0.0.1`) are the IPv4 addresses.
    /// All bits after the prefix are zero.
    Network(IpNet),
}

/// A range that cannot be understood.
#[derive(Debug, Error, Clone, PartialEq, Eq)]
pub enum RangeError {
    /// It is not an address.
    #[error("\"{0}\" is not an address; write one such as 10.0.0.7, 10.0.0.0/8, fd00::/8, or local")]
    Address(String),
    /// The length of its prefix is missing or out of range.
    #[error("\"{text}\" has no valid prefix length; write a number from 0 to {max} after the slash")]
    Prefix {
        /// What was written.
        text: String,
        /// The address family's limit.
        max: u8,
    },
    /// Bits behind its prefix are set.
    #[error(
        "\"{text}\" has bits set after its prefix; write {network} for the network, or leave the slash out for the one address"
    )]
    HostBits {
        /// What was written.
        text: String,
        /// The network.
        network: IpNet,
    },
}

impl AddressRange {
    /// Whether the client at the other end is meant. One without a network address is on this host.
    pub fn contains(&self, peer: &PeerIdentity) -> bool {
        let address = peer.address.map(|address| address.ip().to_canonical());
        match (self, address) {
            (Self::Local, address) => address.is_none_or(|address| address.is_loopback()),
            (Self::Network(network), address) => address.is_some_and(|address| network.contains(&address)),
        }
    }
}

impl FromStr for AddressRange {
    type Err = RangeError;

    fn from_str(text: &str) -> Result<Self, RangeError> {
        if text == "local" {
            return Ok(Self::Local);
        }
        let (address, prefix) = match text.split_once('/') {
            Some((address, prefix)) => (address, Some(prefix)),
            None => (text, None),
        };
        let address: IpAddr = address.parse().map_err(|_| RangeError::Address(text.to_owned()))?;
        let mut network = IpNet::from(address);
        if let Some(digits) = prefix {
            let len = digits.parse().ok().filter(|_| digits.bytes().all(|byte| byte.is_ascii_digit()));
            network = len
                .and_then(|len| IpNet::new(address, len).ok())
                .ok_or_else(|| RangeError::Prefix { text: text.to_owned(), max: network.max_prefix_len() })?;
        }
        if let (IpAddr::V4(inner), IpNet::V6(v6)) = (address.to_canonical(), network)
            && let Some(len) = v6.prefix_len().checked_sub(96)
            && let Ok(v4) = Ipv4Net::new(inner, len)
        {
            network = v4.into();
        }
        let base = network.trunc();
        match base == network {
            true => Ok(Self::Network(network)),
            false => Err(RangeError::HostBits { text: text.to_owned(), network: base }),
        }
    }
}

impl fmt::Display for AddressRange {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Local => f.write_str("local"),
            Self::Network(network) if network.prefix_len() == network.max_prefix_len() => {
                write!(f, "{}", network.addr())
            }
            Self::Network(network) => write!(f, "{network}"),
        }
    }
}
