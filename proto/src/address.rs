//! Names of servers, exports and files.
//!
//! ```text
//! dafs://host[:port]/export/path          any provider: shm on this host, else verbs, else tcp
//! dafs+tcp://host[:port]/export/path      tcp
//! dafs+verbs://host[:port]/export/path    verbs
//! dafs://host[:port],host[:port]/export/path   servers of which each has the files, in the order in which they are tried
//! dafs+shm:///socket/path:/export/path    shm: the path of the socket, a colon, then export and path
//! dafs+sim://port/export/path             the simulated network of tests
//! tcp://host[:port]   shm:///socket/path   verbs://host[:port]   sim://port      where a server listens
//! ```
//!
//! Names are bytes. There is no percent-decoding and no other escape: what stands after the export is the path, byte for byte, so
//! any name a file system can
//! hold can be written. An IPv6 address stands in brackets; its zone follows `%25`, with the escapes of a URL (RFC 6874), or `%` as it is.
//! A host without a port may also be a name of the file that [`clusters`] reads, which stands for the servers that it lists there.
//! A scheme may be written in upper case (RFC 3986). A socket path ends at the first colon, so it cannot contain one.

pub mod clusters;

use std::ffi::{OsStr, OsString};
use std::fmt;
use std::io;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr, ToSocketAddrs};
use std::os::unix::ffi::{OsStrExt, OsStringExt};
use std::path::PathBuf;

use thiserror::Error;

/// Where a provider connects to or listens.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub enum Address {
    /// A TCP address, resolved.
    Tcp(SocketAddr),
    /// The path of a unix socket.
    Shm(PathBuf),
    /// An IP address of an RDMA device, and a port of its connection manager, resolved.
    Verbs(SocketAddr),
    /// A port of a simulated network.
    Sim(u32),
}

/// The TCP port when none is given: NFS's 2049 and 10,000. Not assigned to any service by IANA; dafs itself has no assigned port.
pub const DEFAULT_PORT: u16 = 12_049;

/// Longest path of a unix socket, bytes: what `sockaddr_un` holds with its closing zero.
pub const SOCKET_PATH_SIZE_MAX: usize = 107;

/// Servers that an address names at most.
pub const SERVERS_MAX: usize = 16;

/// Which provider an address asks for.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Scheme {
    /// `dafs://`: the best that reaches the host.
    Any,
    /// `dafs+tcp://`, or `tcp://` to listen.
    Tcp,
    /// `dafs+shm://`, or `shm://` to listen.
    Shm,
    /// `dafs+verbs://`, or `verbs://` to listen.
    Verbs,
    /// `dafs+sim://`, or `sim://` to listen.
    Sim,
}

impl Scheme {
    const ALL: [Self; 5] = [Self::Any, Self::Tcp, Self::Shm, Self::Verbs, Self::Sim];

    /// The part of an address before `://`.
    pub fn name(self) -> &'static str {
        self.row().0
    }

    /// The same, where a server listens; there `dafs+` may stand before it.
    fn listen_name(self) -> Option<&'static str> {
        self.name().strip_prefix("dafs+")
    }

    /// The name, an address of a server, and one to listen on.
    fn row(self) -> (&'static str, &'static str, &'static str) {
        match self {
            Self::Any => ("dafs", "dafs://host:12049/export/path", "tcp://127.0.0.1:12049"),
            Self::Tcp => ("dafs+tcp", "dafs+tcp://host:12049/export/path", "tcp://127.0.0.1:12049"),
            Self::Shm => ("dafs+shm", "dafs+shm:///run/dafs.sock:/export/path", "shm:///run/dafs.sock"),
            Self::Verbs => ("dafs+verbs", "dafs+verbs://host:12049/export/path", "verbs://192.0.2.1:12049"),
            Self::Sim => ("dafs+sim", "dafs+sim://1/export/path", "sim://1"),
        }
    }
}

impl fmt::Display for Scheme {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

/// Where a server is, as written: names are not resolved.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub enum Location {
    /// A host and port.
    Host {
        /// Host name or address; an IPv6 address without its brackets.
        host: String,
        /// TCP port, or the port of the connection manager.
        port: u16,
    },
    /// Hosts and ports of several servers, 2 to [`SERVERS_MAX`], each as in [`Location::Host`]. A session with any of them has the files.
    Hosts(Vec<(String, u16)>),
    /// The absolute path of a unix socket, at most [`SOCKET_PATH_SIZE_MAX`] bytes.
    Socket(PathBuf),
    /// A port of a simulated network.
    SimPort(u32),
}

/// A server, and perhaps an export and a path in it.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Url {
    /// The provider that was asked for.
    pub scheme: Scheme,
    /// The server.
    pub location: Location,
    /// Name of the export; not empty, no slash.
    pub export: Option<Vec<u8>>,
    /// Path inside the export, without leading slashes; empty for the export's root. Otherwise as written: neither `.` nor `..` is
    /// resolved here.
    pub path: Vec<u8>,
}

impl Url {
    /// Reads an address such as `dafs+tcp://host:12049/export/path`. Does not resolve names.
    pub fn parse(text: &OsStr) -> Result<Self, AddressError> {
        let fault = |scheme: Scheme, problem| AddressError::new(text, problem, scheme.row().1);
        let bytes = text.as_bytes();
        let (name, rest) = split_scheme(bytes).ok_or_else(|| fault(Scheme::Any, Problem::NoScheme))?;
        let is_named =
            |wanted: Option<&str>| wanted.is_some_and(|wanted| wanted.as_bytes().eq_ignore_ascii_case(name));
        let scheme = match Scheme::ALL.into_iter().find(|scheme| is_named(Some(scheme.name()))) {
            Some(scheme) => scheme,
            None if Scheme::ALL.into_iter().any(|scheme| is_named(scheme.listen_name())) => {
                return Err(fault(Scheme::Any, Problem::ListenForm));
            }
            None => return Err(fault(Scheme::Any, Problem::Scheme(lossy(name)))),
        };
        let fault = |problem| fault(scheme, problem);
        if rest.contains(&0) {
            return Err(fault(Problem::Nul));
        }
        let (server, tail) = match scheme {
            Scheme::Shm => split_socket(rest).map_err(fault)?,
            _ => rest.split_at(rest.iter().position(|&byte| byte == b'/').unwrap_or(rest.len())),
        };
        let location = parse_location(scheme, server).map_err(fault)?;
        if location.hosts().iter().any(|(_, port)| *port == 0) {
            return Err(fault(Problem::PortZero));
        }
        let (export, path) = parse_tail(tail).map_err(fault)?;
        Ok(Self { scheme, location, export, path })
    }

    /// The address as it can be parsed again, byte for byte; the port is always written.
    pub fn to_os_string(&self) -> OsString {
        let mut bytes = format!("{}://", self.scheme).into_bytes();
        match &self.location {
            Location::Socket(path) => bytes.extend(path.as_os_str().as_bytes()),
            location => bytes.extend(location.to_string().bytes()),
        }
        if let Some(export) = &self.export {
            if self.scheme == Scheme::Shm {
                bytes.push(b':');
            }
            bytes.push(b'/');
            bytes.extend(export);
            if !self.path.is_empty() {
                bytes.push(b'/');
                bytes.extend(&self.path);
            }
        }
        OsString::from_vec(bytes)
    }

    /// Every address of the server, in the order of the resolver: see [`resolve`]. Of several servers, those of the first come first.
    pub fn resolve(&self) -> Result<Vec<Address>, ResolveError> {
        resolve(self.scheme, &self.location)
    }
}

impl Location {
    /// Its hosts and ports; none of a socket or a simulated port.
    pub fn hosts(&self) -> Vec<(&str, u16)> {
        match self {
            Self::Host { host, port } => vec![(host, *port)],
            Self::Hosts(hosts) => hosts.iter().map(|(host, port)| (&**host, *port)).collect(),
            Self::Socket(_) | Self::SimPort(_) => Vec::new(),
        }
    }

    /// Each of its servers by itself, in their order.
    pub fn servers(&self) -> Vec<Self> {
        match self {
            Self::Hosts(hosts) => {
                hosts.iter().map(|(host, port)| Self::Host { host: host.clone(), port: *port }).collect()
            }
            one => vec![one.clone()],
        }
    }

    /// Of one server or several.
    fn of_hosts(mut hosts: Vec<(String, u16)>) -> Self {
        match hosts.len() {
            1 => {
                let (host, port) = hosts.remove(0);
                Self::Host { host, port }
            }
            _ => Self::Hosts(hosts),
        }
    }
}

impl fmt::Display for Location {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Host { .. } | Self::Hosts(_) => {
                let hosts = self.hosts();
                let hosts: Vec<_> = hosts.iter().map(|(host, port)| host_and_port(host, *port)).collect();
                f.write_str(&hosts.join(","))
            }
            Self::Socket(path) => write!(f, "{}", path.display()),
            Self::SimPort(port) => write!(f, "{port}"),
        }
    }
}

/// As an address has it.
fn host_and_port(host: &str, port: u16) -> String {
    match host.contains(':') {
        true => format!("[{}]:{port}", with_zone_escaped(host)),
        false => format!("{host}:{port}"),
    }
}

impl fmt::Display for Url {
    /// For people: bytes that are no UTF-8 are replaced. [`Url::to_os_string`] is exact.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}", self.to_os_string().display())
    }
}

/// Where a server is told to listen.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct ListenUrl {
    /// The provider; never [`Scheme::Any`].
    pub scheme: Scheme,
    /// Address; a port of 0 takes any free one.
    pub location: Location,
}

impl ListenUrl {
    /// Reads `tcp://127.0.0.1:0`, `tcp://[::1]:7` or `shm:///run/dafs.sock`; `dafs+tcp://…` and the like mean the same. Does not
    /// resolve names.
    pub fn parse(text: &OsStr) -> Result<Self, AddressError> {
        let fault = |scheme: Scheme, problem| AddressError::new(text, problem, scheme.row().2);
        let (name, rest) =
            split_scheme(text.as_bytes()).ok_or_else(|| fault(Scheme::Any, Problem::NoListenScheme))?;
        let lower = name.to_ascii_lowercase();
        let short = lower.strip_prefix(b"dafs+").unwrap_or(&lower);
        let is_named = |scheme: &Scheme| scheme.listen_name().is_some_and(|name| name.as_bytes() == short);
        let scheme = match Scheme::ALL.into_iter().find(is_named) {
            Some(scheme) => scheme,
            None if short == b"dafs" => return Err(fault(Scheme::Any, Problem::ListenAny)),
            None => return Err(fault(Scheme::Any, Problem::ListenScheme(lossy(name)))),
        };
        let fault = |problem| fault(scheme, problem);
        if rest.contains(&0) {
            return Err(fault(Problem::Nul));
        }
        let extra = if scheme == Scheme::Shm { b':' } else { b'/' };
        if rest.contains(&extra) {
            return Err(fault(if scheme == Scheme::Shm {
                Problem::SocketColon
            } else {
                Problem::ListenPath
            }));
        }
        let location = parse_location(scheme, rest).map_err(fault)?;
        match location {
            Location::Hosts(_) => Err(fault(Problem::ListenSeveral)),
            location => Ok(Self { scheme, location }),
        }
    }

    /// Every address it stands for: see [`resolve`].
    pub fn resolve(&self) -> Result<Vec<Address>, ResolveError> {
        resolve(self.scheme, &self.location)
    }
}

/// Every address that a location stands for, in the order the resolver gives them. Blocks while a host name is looked up.
pub fn resolve(scheme: Scheme, location: &Location) -> Result<Vec<Address>, ResolveError> {
    match location {
        Location::Host { host, port } => {
            let failed = |source| ResolveError::Host { host: host.clone(), source };
            let kind = if scheme == Scheme::Verbs { Address::Verbs } else { Address::Tcp };
            let looked_up = (host.as_str(), *port).to_socket_addrs().map(Iterator::collect);
            let addresses: Vec<_> =
                or_loopback(host, *port, looked_up).map_err(failed)?.into_iter().map(kind).collect();
            match addresses.is_empty() {
                true => Err(failed(io::Error::new(io::ErrorKind::NotFound, "the name has no address"))),
                false => Ok(addresses),
            }
        }
        Location::Hosts(_) => {
            let each = location.servers();
            let each: Result<Vec<_>, _> = each.iter().map(|server| resolve(scheme, server)).collect();
            Ok(each?.concat())
        }
        Location::Socket(path) => Ok(vec![Address::Shm(path.clone())]),
        Location::SimPort(port) => Ok(vec![Address::Sim(*port)]),
    }
}

/// What the resolver has found. Where it has found nothing, `localhost` is loopback: a bare root has no /etc/hosts.
fn or_loopback(host: &str, port: u16, looked_up: io::Result<Vec<SocketAddr>>) -> io::Result<Vec<SocketAddr>> {
    let loopback = [IpAddr::V4(Ipv4Addr::LOCALHOST), IpAddr::V6(Ipv6Addr::LOCALHOST)];
    match looked_up {
        Err(_) if host.eq_ignore_ascii_case("localhost") => {
            Ok(loopback.map(|address| SocketAddr::new(address, port)).into())
        }
        looked_up => looked_up,
    }
}

impl Address {
    /// How an address of its kind begins.
    pub fn scheme(&self) -> Scheme {
        match self {
            Self::Tcp(_) => Scheme::Tcp,
            Self::Shm(_) => Scheme::Shm,
            Self::Verbs(_) => Scheme::Verbs,
            Self::Sim(_) => Scheme::Sim,
        }
    }
}

impl fmt::Display for Address {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Tcp(address) => write!(f, "dafs+tcp://{address}"),
            Self::Verbs(address) => write!(f, "dafs+verbs://{address}"),
            Self::Shm(path) => write!(f, "dafs+shm://{}", path.display()),
            Self::Sim(port) => write!(f, "dafs+sim://{port}"),
        }
    }
}

/// An address that cannot be read.
#[derive(Clone, Debug, Error, PartialEq, Eq)]
#[error("the address {text:?} {problem}; write it like {example}")]
pub struct AddressError {
    /// What was given; bytes that are no UTF-8 are replaced.
    pub text: String,
    /// What is wrong with it.
    pub problem: Problem,
    /// A correct address of that kind.
    pub example: &'static str,
}

impl AddressError {
    fn new(text: &OsStr, problem: Problem, example: &'static str) -> Self {
        Self { text: lossy(text.as_bytes()), problem, example }
    }
}

/// What is wrong with an address.
#[derive(Clone, Debug, Error, PartialEq, Eq)]
#[expect(missing_docs, reason = "each variant's message is its documentation")]
pub enum Problem {
    #[error("does not begin with dafs://, dafs+tcp://, dafs+shm:// or dafs+verbs://")]
    NoScheme,
    #[error("begins with {0}://, which is none of dafs, dafs+tcp, dafs+shm, dafs+verbs")]
    Scheme(String),
    #[error("says where to listen, not which server to use")]
    ListenForm,
    #[error("does not begin with tcp://, shm:// or verbs://")]
    NoListenScheme,
    #[error("begins with {0}://, which is none of tcp, shm, verbs")]
    ListenScheme(String),
    #[error("does not say which provider shall listen")]
    ListenAny,
    #[error("has a path, but a server listens on a host and port only")]
    ListenPath,
    #[error("names several servers, but a server listens at one address")]
    ListenSeveral,
    #[error("has no host")]
    NoHost,
    #[error("has a comma beside which no host stands")]
    EmptyServer,
    #[error("names {0} servers; the limit is {SERVERS_MAX}")]
    ServersMany(usize),
    #[error("has a host that is not a name or address: {0:?}")]
    Host(String),
    #[error("has an IPv6 address without brackets")]
    Brackets,
    #[error("has the port {0:?}, which is no number from 0 to 65535")]
    Port(String),
    #[error("has the port 0, on which nobody can listen")]
    PortZero,
    #[error("has no absolute socket path after ://")]
    SocketRelative,
    #[error("has a socket path that is only slashes")]
    SocketRoot,
    #[error("has a socket path of {0} bytes; the limit is {SOCKET_PATH_SIZE_MAX}")]
    SocketLong(usize),
    #[error("has a colon after which no /export follows (a socket path cannot contain a colon)")]
    SocketColonTail,
    #[error("has a colon in the socket path")]
    SocketColon,
    #[error("has the simulated port {0:?}, which is no number from 0 to 4294967295")]
    SimPort(String),
    #[error("has an empty export name")]
    EmptyExport,
    #[error("contains a zero byte")]
    Nul,
}

/// A location could not be turned into addresses.
#[derive(Debug, Error)]
pub enum ResolveError {
    /// The resolver does not know the host.
    #[error("cannot find the host {host}: {source}")]
    Host {
        /// The host.
        host: String,
        /// Why.
        source: io::Error,
    },
    /// The file that says which servers a name stands for is of no use.
    #[error("cannot read the names of clusters in {path}: {problem}")]
    Clusters {
        /// The file.
        path: String,
        /// Why not.
        problem: String,
    },
    /// This build has no such provider.
    #[error(
        "{scheme} addresses are not supported by this build (RDMA needs --features verbs); use dafs:// or dafs+tcp://"
    )]
    Unsupported {
        /// The kind of address.
        scheme: Scheme,
    },
}

fn split_scheme(text: &[u8]) -> Option<(&[u8], &[u8])> {
    let at = text.windows(3).position(|window| window == b"://")?;
    // A "://" further on belongs to a path: what stands before it is then no scheme.
    (!text[..at].contains(&b'/')).then(|| (&text[..at], &text[at + 3..]))
}

/// `/socket/path:/export/path` → socket path, and `/export/path`.
fn split_socket(rest: &[u8]) -> Result<(&[u8], &[u8]), Problem> {
    match rest.iter().position(|&byte| byte == b':') {
        None => Ok((rest, &[])),
        Some(colon) if rest.get(colon + 1) == Some(&b'/') => Ok((&rest[..colon], &rest[colon + 1..])),
        Some(_) => Err(Problem::SocketColonTail),
    }
}

/// `/export/path` → export and path.
fn parse_tail(tail: &[u8]) -> Result<(Option<Vec<u8>>, Vec<u8>), Problem> {
    let tail = tail.strip_prefix(b"/").unwrap_or(tail);
    if tail.is_empty() {
        return Ok((None, Vec::new()));
    }
    let end = tail.iter().position(|&byte| byte == b'/').unwrap_or(tail.len());
    if end == 0 {
        return Err(Problem::EmptyExport);
    }
    let path_begin =
        tail[end..].iter().position(|&byte| byte != b'/').map_or(tail.len(), |skipped| end + skipped);
    Ok((Some(tail[..end].to_vec()), tail[path_begin..].to_vec()))
}

fn parse_location(scheme: Scheme, server: &[u8]) -> Result<Location, Problem> {
    match scheme {
        Scheme::Any | Scheme::Tcp | Scheme::Verbs => parse_hosts(server),
        Scheme::Shm if !server.starts_with(b"/") => Err(Problem::SocketRelative),
        Scheme::Shm if server.iter().all(|&byte| byte == b'/') => Err(Problem::SocketRoot),
        Scheme::Shm if server.len() > SOCKET_PATH_SIZE_MAX => Err(Problem::SocketLong(server.len())),
        Scheme::Shm => Ok(Location::Socket(PathBuf::from(OsStr::from_bytes(server)))),
        Scheme::Sim => Ok(Location::SimPort(number(server).ok_or_else(|| Problem::SimPort(lossy(server)))?)),
    }
}

/// One server, or several between which commas stand. A comma in brackets belongs to a zone.
fn parse_hosts(servers: &[u8]) -> Result<Location, Problem> {
    let mut is_inside = false;
    let parts: Vec<&[u8]> = servers
        .split(|byte| {
            is_inside = *byte == b'[' || is_inside && *byte != b']';
            *byte == b',' && !is_inside
        })
        .collect();
    if parts.len() > SERVERS_MAX {
        return Err(Problem::ServersMany(parts.len()));
    }
    if parts.len() > 1 && parts.iter().any(|part| part.is_empty()) {
        return Err(Problem::EmptyServer);
    }
    parts.into_iter().map(parse_host).collect::<Result<_, _>>().map(Location::of_hosts)
}

fn parse_host(server: &[u8]) -> Result<(String, u16), Problem> {
    let bad_host = || Problem::Host(lossy(server));
    let decoded;
    let (host, port) = match server.strip_prefix(b"[") {
        Some(rest) => {
            let end = rest.iter().position(|&byte| byte == b']').ok_or_else(bad_host)?;
            // A zone after % is checked by the resolver.
            let address = std::str::from_utf8(&rest[..end]).map_err(|_| bad_host())?;
            decoded = with_zone_decoded(address).ok_or_else(bad_host)?;
            let address = decoded.as_str();
            let numeric = address.split_once('%').map_or(address, |(numeric, _)| numeric);
            numeric.parse::<Ipv6Addr>().map_err(|_| bad_host())?;
            match &rest[end + 1..] {
                [] => (address, None),
                [b':', port @ ..] => (address, Some(port)),
                _ => return Err(bad_host()),
            }
        }
        None => {
            let colon = server.iter().position(|&byte| byte == b':');
            let (host, port) = match colon {
                Some(colon) => (&server[..colon], Some(&server[colon + 1..])),
                None => (server, None),
            };
            if port.is_some_and(|port| port.contains(&b':')) {
                return Err(Problem::Brackets);
            }
            (std::str::from_utf8(host).map_err(|_| bad_host())?, port)
        }
    };
    if host.is_empty() {
        return Err(Problem::NoHost);
    }
    if host.chars().any(|c| c.is_whitespace() || c.is_control() || "[]@?#\\".contains(c)) {
        return Err(bad_host());
    }
    let port = match port {
        None => DEFAULT_PORT,
        Some(digits) => number(digits)
            .and_then(|port| u16::try_from(port).ok())
            .ok_or_else(|| Problem::Port(lossy(digits)))?,
    };
    Ok((host.to_owned(), port))
}

/// An IPv6 address as RFC 6874 has it in a URL, `fe80::1%25eth0`, as the resolver takes it, `fe80::1%eth0`. As written, where nothing
/// follows `%25`: it is the zone of number 25 then. `None` where its escapes are none.
fn with_zone_decoded(address: &str) -> Option<String> {
    let Some((numeric, zone)) =
        address.split_once("%25").filter(|(numeric, zone)| !numeric.contains('%') && !zone.is_empty())
    else {
        return Some(address.to_owned());
    };
    let (mut bytes, mut rest) = (Vec::new(), zone.as_bytes());
    while let Some((&byte, after)) = rest.split_first() {
        rest = after;
        if byte != b'%' {
            bytes.push(byte);
            continue;
        }
        let (digits, after) = rest.split_at_checked(2)?;
        let digit = |digit: u8| char::from(digit).to_digit(16);
        bytes.push(u8::try_from(digit(digits[0])? * 16 + digit(digits[1])?).ok()?);
        rest = after;
    }
    Some(format!("{numeric}%{}", String::from_utf8(bytes).ok()?))
}

/// The other way round.
fn with_zone_escaped(address: &str) -> String {
    let Some((numeric, zone)) = address.split_once('%') else { return address.to_owned() };
    let mut escaped = format!("{numeric}%25");
    for byte in zone.bytes() {
        match byte.is_ascii_alphanumeric() || b"-._~".contains(&byte) {
            true => escaped.push(byte.into()),
            false => escaped.push_str(&format!("%{byte:02X}")),
        }
    }
    escaped
}

/// Decimal digits only: no sign, no space.
fn number(digits: &[u8]) -> Option<u32> {
    digits.iter().all(u8::is_ascii_digit).then_some(())?;
    std::str::from_utf8(digits).ok()?.parse().ok()
}

fn lossy(bytes: &[u8]) -> String {
    String::from_utf8_lossy(bytes).into_owned()
}

#[cfg(test)]
mod tests;
