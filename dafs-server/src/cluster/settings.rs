//! How a server is to be of a cluster.

use std::str::FromStr;
use std::time::Duration;

use super::store_access::StoreAccess;

/// Bounds of a term, milliseconds: stores end leases by the second.
pub const TERM_MIN_MS: u32 = 2_000;
/// See [`TERM_MIN_MS`].
pub const TERM_MAX_MS: u32 = 60_000;

/// Buckets into which files fall, of which servers tell each other where somebody denies opens. The same at all servers.
pub const BUCKETS: u16 = 256;

/// Members of a store that are named at most.
const MEMBERS_MAX: usize = 16;
/// Bytes of a cluster's name at most.
const NAME_SIZE_MAX: usize = 64;
const DEFAULT_PORT: u16 = 2379;

/// `etcd://host[:port],…/name`: the coordination store, and the cluster's name in it. `etcds`: the store over TLS.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ClusterAddress {
    /// Over TLS.
    pub is_secure: bool,
    /// `host:port` of each member of the store.
    pub members: Vec<String>,
    /// The cluster.
    pub name: String,
}

impl FromStr for ClusterAddress {
    type Err = &'static str;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        let (is_secure, rest) = match (text.strip_prefix("etcds://"), text.strip_prefix("etcd://")) {
            (Some(rest), _) => (true, rest),
            (None, Some(rest)) => (false, rest),
            (None, None) => return Err("it does not begin with etcd:// or etcds://"),
        };
        let (members, name) = rest.split_once('/').ok_or("it has no name of a cluster after the servers")?;
        let is_name = |byte: u8| byte.is_ascii_alphanumeric() || matches!(byte, b'-' | b'_' | b'.');
        if name.is_empty() || name.len() > NAME_SIZE_MAX || !name.bytes().all(is_name) {
            return Err("the cluster's name is not 1 to 64 letters, digits, dots, - and _");
        }
        let members: Vec<String> =
            members.split(',').map(with_port).collect::<Option<_>>().ok_or(
                "a server of the store is not host or host:port (an IPv6 address stands in brackets)",
            )?;
        if members.len() > MEMBERS_MAX {
            return Err("it names more than 16 servers of the store");
        }
        Ok(Self { is_secure, members, name: name.to_owned() })
    }
}

fn with_port(member: &str) -> Option<String> {
    let (host, port) = match member.rsplit_once(':') {
        Some((host, port)) if !port.ends_with(']') => {
            (host, port.parse::<u16>().ok().filter(|port| *port != 0)?)
        }
        _ => (member, DEFAULT_PORT),
    };
    let bare = host.strip_prefix('[').and_then(|host| host.strip_suffix(']'));
    let is_host = |byte: u8| byte.is_ascii_alphanumeric() || matches!(byte, b'-' | b'.' | b'_');
    let is_good = match bare {
        Some(address) => address.parse::<std::net::Ipv6Addr>().is_ok(),
        None => !host.is_empty() && host.bytes().all(is_host),
    };
    is_good.then(|| format!("{host}:{port}"))
}

impl std::fmt::Display for ClusterAddress {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let scheme = if self.is_secure { "etcds" } else { "etcd" };
        write!(f, "{scheme}://{}/{}", self.members.join(","), self.name)
    }
}

/// See the module.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ClusterConfig {
    /// The store, and which cluster.
    pub address: ClusterAddress,
    /// What the store is shown, and has to show.
    pub access: StoreAccess,
    /// A server that has not been heard of for this long may be replaced, milliseconds.
    pub term_ms: u32,
    /// This server, for people and for the fence command.
    pub server_name: String,
    /// Where clients find it; where it listens if none are named.
    pub addresses: Vec<String>,
    /// A shell command that returns 0 once a server can write no more.
    pub fence_command: Option<String>,
    /// What that command is told of this server besides.
    pub fence_detail: String,
    /// How long the store keeps what sessions of a server that is gone have done, milliseconds.
    pub lease_ms: u32,
    /// [`BUCKETS`]. A simulation, where nothing may depend on the numbers of files, has one.
    pub buckets: u16,
}

impl ClusterConfig {
    pub(super) fn term(&self) -> Duration {
        Duration::from_millis(self.term_ms.into())
    }

    /// A call of the store takes no longer: there must be time for a second one in a term.
    pub(super) fn call_time_max(&self) -> Duration {
        self.term() / 4
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn address_of_a_cluster_is_read() {
        let read = |text: &str| text.parse::<ClusterAddress>().map(|address| address.to_string());
        for (text, whole) in [
            ("etcd://a/main", "etcd://a:2379/main"),
            ("etcds://a/main", "etcds://a:2379/main"),
            ("etcd://a,b:7,[::1],[::1]:9/x.y-z_1", "etcd://a:2379,b:7,[::1]:2379,[::1]:9/x.y-z_1"),
        ] {
            assert_eq!(read(text).as_deref(), Ok(whole));
            assert_eq!(read(whole).as_deref(), Ok(whole));
        }
        for text in [
            "http://a/x",
            "etcd://a",
            "etcd:///x",
            "etcd://a/",
            "etcd://a/x/y",
            "etcd://a,/x",
            "etcd://a:0/x",
            "etcd://a:p/x",
            "etcd://::1/x",
            "etcd://a b/x",
            "etcd://[a]/x",
        ] {
            assert!(read(text).is_err(), "{text}");
        }
        let many = |count: usize| read(&format!("etcd://{}/x", vec!["a"; count].join(",")));
        assert!(many(MEMBERS_MAX).is_ok() && many(MEMBERS_MAX + 1).is_err());
    }
}
