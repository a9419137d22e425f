//! Ranges of client addresses.

use std::fmt;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};
use std::str::FromStr;

use dafs_proto::transport::PeerIdentity;
use thiserror::Error;

/// Whom an entry of an export's list of clients means.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum AddressRange {
    /// `local`: clients on this host, over shared memory or the loopback interface.
    Local,
    /// An address, or a network such as `10.0.0.0/8`. IPv4 addresses that stand in IPv6 ones (`::ffff:10.0.0.1`) are the IPv4 addresses.
    Network {
        /// Lowest address: all bits after the prefix are zero.
        base: IpAddr,
        /// Leading bits that all have in common: at most 32 or 128.
        prefix_len: u8,
    },
}

/// A range that cannot be understood.
#[derive(Debug, Error, Clone, PartialEq, Eq)]
pub enum RangeError {
    /// No address.
    #[error("\"{0}\" is not an address: write one such as 10.0.0.7, 10.0.0.0/8, fd00::/8, or local")]
    Address(String),
    /// No length of a prefix.
    #[error("\"{text}\" has no valid prefix length: write a number from 0 to {max} after the slash")]
    Prefix {
        /// What was written.
        text: String,
        /// The address family's limit.
        max: u8,
    },
    /// More than a prefix.
    #[error(
        "\"{text}\" has bits set after its prefix: write {base}/{prefix_len} for the network, or leave the slash out for the one address"
    )]
    HostBits {
        /// What was written.
        text: String,
        /// The network's address.
        base: IpAddr,
        /// Its prefix length.
        prefix_len: u8,
    },
}

impl AddressRange {
    /// Whether the client at the other end is meant. One without a network address is on this host.
    pub fn contains(&self, peer: &PeerIdentity) -> bool {
        let address = peer.address.map(|address| address.ip().to_canonical());
        match (self, address) {
            (Self::Local, address) => address.is_none_or(|address| address.is_loopback()),
            (Self::Network { .. }, None) => false,
            (Self::Network { base, prefix_len }, Some(address)) => masked(address, *prefix_len) == *base,
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
        let bits = bits_of(address);
        let mut prefix_len = match prefix {
            None => bits,
            Some(digits) => digits
                .parse()
                .ok()
                .filter(|len| *len <= bits && digits.bytes().all(|byte| byte.is_ascii_digit()))
                .ok_or_else(|| RangeError::Prefix { text: text.to_owned(), max: bits })?,
        };
        let mut address = address;
        if let (IpAddr::V4(inner), 96..) = (address.to_canonical(), prefix_len)
            && address.is_ipv6()
        {
            address = IpAddr::V4(inner);
            prefix_len -= 96;
        }
        let base = masked(address, prefix_len);
        match base == address {
            true => Ok(Self::Network { base, prefix_len }),
            false => Err(RangeError::HostBits { text: text.to_owned(), base, prefix_len }),
        }
    }
}

impl fmt::Display for AddressRange {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Local => f.write_str("local"),
            Self::Network { base, prefix_len } if *prefix_len == bits_of(*base) => write!(f, "{base}"),
            Self::Network { base, prefix_len } => write!(f, "{base}/{prefix_len}"),
        }
    }
}

fn bits_of(address: IpAddr) -> u8 {
    if address.is_ipv4() { 32 } else { 128 }
}

/// The address with only its leading bits; an address of a shorter family is cut at its own length.
fn masked(address: IpAddr, prefix_len: u8) -> IpAddr {
    let prefix_len = u32::from(prefix_len);
    match address {
        IpAddr::V4(v4) => {
            let mask = u32::MAX.checked_shl(32u32.saturating_sub(prefix_len)).unwrap_or(0);
            IpAddr::V4(Ipv4Addr::from_bits(v4.to_bits() & mask))
        }
        IpAddr::V6(v6) => {
            let mask = u128::MAX.checked_shl(128 - prefix_len).unwrap_or(0);
            IpAddr::V6(Ipv6Addr::from_bits(v6.to_bits() & mask))
        }
    }
}
