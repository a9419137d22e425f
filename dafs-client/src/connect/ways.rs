//! From the name of a server to the ways to reach it: which provider, at which address. Makes no connection.

use std::ffi::OsString;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, UdpSocket};
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use dafs_proto::address::{Address, DEFAULT_PORT, Location, ResolveError, Scheme, resolve};
use dafs_proto::transport::Domain;

use crate::connect::{Server, devices};
use crate::error::Result;

/// One way to reach a server.
pub(crate) struct Candidate {
    pub(crate) domain: Arc<dyn Domain>,
    pub(crate) server: Server,
    /// What there is none of if it fails, where another way is taken then.
    pub(crate) without: Option<&'static str>,
}

/// Where a server on this host may listen for shared memory, besides `$DAFS_SHM_SOCKET`.
const WELL_KNOWN_SOCKET: &str = "/run/dafs/dafs.sock";

/// A host without RDMA does not answer at all: so long is waited before TCP is tried.
const VERBS_ATTEMPT_TIME_MAX: Duration = Duration::from_secs(1);

/// The ways to reach a server, best first. With `is_one_of_several` not by shared memory, of which no other server can take a session over.
/// Blocks while names are resolved.
pub(crate) fn candidates(
    scheme: Scheme,
    server: &Location,
    is_one_of_several: bool,
) -> Result<Vec<Candidate>> {
    match scheme {
        Scheme::Sim => Err(ResolveError::Unsupported { scheme }.into()),
        Scheme::Verbs if cfg!(not(feature = "verbs")) => Err(ResolveError::Unsupported { scheme }.into()),
        Scheme::Tcp | Scheme::Shm | Scheme::Verbs => resolve(scheme, server)?
            .into_iter()
            .map(|address| candidate(address, "the address asks for it".to_owned()))
            .collect(),
        Scheme::Any => {
            let addresses = resolve(scheme, server)?;
            let mut candidates = Vec::new();
            let variable = std::env::var_os("DAFS_SHM_SOCKET");
            let mut why_not = match local_socket(server, &addresses, is_one_of_several, variable) {
                Ok((path, reason)) => {
                    let why_not =
                        format!("cannot connect to the server's socket on this host, {}", path.display());
                    candidates.push(candidate(Address::Shm(path), reason)?);
                    why_not
                }
                Err(why_not) => why_not,
            };
            match devices::with_route(&addresses) {
                Ok((address, device)) => {
                    let mut verbs = candidate(address, format!("{why_not}; {device} has a route to it"))?;
                    verbs.server.attempt_time_max = Some(VERBS_ATTEMPT_TIME_MAX);
                    candidates.push(verbs);
                }
                Err(Some(no_rdma)) => why_not = format!("{why_not}; no RDMA: {no_rdma}"),
                Err(None) => {}
            }
            for address in addresses {
                candidates.push(candidate(address, format!("{why_not}; tcp reaches every host"))?);
            }
            Ok(candidates)
        }
    }
}

/// The socket through which a server on this host is reached by shared memory, or why none is.
fn local_socket(
    server: &Location,
    addresses: &[Address],
    is_one_of_several: bool,
    variable: Option<OsString>,
) -> std::result::Result<(PathBuf, String), String> {
    if is_one_of_several {
        return Err("there are several servers, and by shared memory no other could be reached".to_owned());
    }
    let local = addresses.iter().any(|address| match address {
        Address::Tcp(address) => is_own(address.ip()),
        _ => false,
    });
    if !local {
        return Err("the server is on another host".to_owned());
    }
    if let Some(path) = variable.filter(|path| !path.is_empty()) {
        return Ok((
            path.into(),
            "the server is on this host, and DAFS_SHM_SOCKET names its socket".to_owned(),
        ));
    }
    // Behind another port there is another server than the one that owns the well-known socket.
    if !matches!(server, Location::Host { port: DEFAULT_PORT, .. }) {
        return Err("the port is not the default one, so the well-known socket may be another server's; \
                    if the server has a socket, name it in DAFS_SHM_SOCKET"
            .to_owned());
    }
    let runtime = runtime_socket(std::env::var_os("XDG_RUNTIME_DIR"));
    let second = match &runtime {
        Some(path) => path.display().to_string(),
        None => "in $XDG_RUNTIME_DIR, which is not set to an absolute path".to_owned(),
    };
    [Some(PathBuf::from(WELL_KNOWN_SOCKET)), runtime]
        .into_iter()
        .flatten()
        .find(|path| path.exists())
        .map(|path| {
            let reason = format!("the server is on this host and listens at {}", path.display());
            (path, reason)
        })
        .ok_or_else(|| {
            format!(
                "there is no socket at {WELL_KNOWN_SOCKET} or {second}: a server of another user prints its \
                 socket at start; set DAFS_SHM_SOCKET to it"
            )
        })
}

/// An address of this host: what is sent there comes from there, or a socket can be bound to it. The first is not so of an interface's
/// further addresses; the second may be so of any address, with `net.ipv4.ip_nonlocal_bind`, then also of those that nobody has (RFC 5737,
/// RFC 3849).
fn is_own(ip: IpAddr) -> bool {
    let (any, nobodys) = match ip {
        IpAddr::V4(_) => (IpAddr::V4(Ipv4Addr::UNSPECIFIED), IpAddr::V4(Ipv4Addr::new(192, 0, 2, 223))),
        IpAddr::V6(_) => {
            let nobodys = Ipv6Addr::new(0x2001, 0xdb8, 0xdaf5, 0, 0, 0, 0, 1);
            (IpAddr::V6(Ipv6Addr::UNSPECIFIED), IpAddr::V6(nobodys))
        }
    };
    // Nothing is sent.
    let source = || {
        let socket = UdpSocket::bind((any, 0))?;
        socket.connect((ip, DEFAULT_PORT))?;
        socket.local_addr()
    };
    let can_bind = |ip: IpAddr| UdpSocket::bind((ip, 0)).is_ok();
    ip.is_loopback()
        || ip.is_unspecified()
        || source().is_ok_and(|source| source.ip() == ip)
        || !ip.is_multicast() && ip != Ipv4Addr::BROADCAST && can_bind(ip) && !can_bind(nobodys)
}

/// A socket in the directory that a variable names. One that is relative, or empty, is of no use: the directory of this process may be
/// anybody's.
fn runtime_socket(directory: Option<OsString>) -> Option<PathBuf> {
    directory
        .map(PathBuf::from)
        .filter(|directory| directory.is_absolute())
        .map(|directory| directory.join("dafs.sock"))
}

fn candidate(address: Address, reason: String) -> Result<Candidate> {
    let (domain, without): (Arc<dyn Domain>, _) = match &address {
        Address::Tcp(_) => (Arc::new(dafs_proto::transport::tcp::TcpDomain::new()), None),
        Address::Shm(_) => (Arc::new(dafs_proto::transport::shm::ShmDomain::new()), Some("no shared memory")),
        #[cfg(feature = "verbs")]
        Address::Verbs(_) => (Arc::new(dafs_proto::transport::verbs::VerbsDomain::new()), Some("no RDMA")),
        #[cfg(not(feature = "verbs"))]
        Address::Verbs(_) => return Err(ResolveError::Unsupported { scheme: Scheme::Verbs }.into()),
        Address::Sim(_) => return Err(ResolveError::Unsupported { scheme: Scheme::Sim }.into()),
    };
    let name = address.to_string();
    let server = Server {
        provider: domain.provider(),
        name,
        address,
        reason,
        attempt_time_max: None,
        connect_as: None,
    };
    Ok(Candidate { domain, server, without })
}

#[cfg(test)]
mod tests {
    use super::*;

    // [CLI-178]
    #[test]
    fn address_is_own_where_what_is_sent_there_comes_from_there() {
        for own in ["127.0.0.1", "127.1.2.3", "::1", "0.0.0.0", "::"] {
            assert!(is_own(own.parse().unwrap()), "{own}");
        }
        // An own address of another interface, where this host has a way to anywhere.
        let socket = UdpSocket::bind("0.0.0.0:0").unwrap();
        if socket.connect("192.0.2.1:9").is_ok() {
            assert!(is_own(socket.local_addr().unwrap().ip()));
        }
        // Of documentation, and what is no host's.
        for other in ["192.0.2.1", "198.51.100.7", "2001:db8::1", "255.255.255.255", "224.0.0.1"] {
            assert!(!is_own(other.parse().unwrap()), "{other}");
        }
    }

    // [CLI-204]
    #[test]
    fn one_of_several_servers_is_not_reached_by_shared_memory() {
        let server = Location::Host { host: "127.0.0.1".into(), port: DEFAULT_PORT };
        let addresses = resolve(Scheme::Any, &server).unwrap();
        let socket = |is_one_of_several| {
            local_socket(&server, &addresses, is_one_of_several, Some("/run/it.sock".into()))
        };
        assert_eq!(socket(false).unwrap().0, PathBuf::from("/run/it.sock"));
        assert!(socket(true).unwrap_err().contains("several servers"));
        let candidates = candidates(Scheme::Any, &server, true).unwrap();
        assert!(candidates.iter().all(|candidate| candidate.server.address.scheme() != Scheme::Shm));
        let reason = &candidates.last().unwrap().server.reason;
        assert!(reason.contains("several servers"), "{reason}");
    }

    // [CLI-179]
    #[test]
    fn runtime_directory_that_is_not_absolute_is_not_used() {
        for wrong in [None, Some(""), Some("."), Some("run/user")] {
            assert_eq!(runtime_socket(wrong.map(OsString::from)), None);
        }
        let found = runtime_socket(Some("/run/user/1".into()));
        assert_eq!(found, Some("/run/user/1/dafs.sock".into()));
    }
}
