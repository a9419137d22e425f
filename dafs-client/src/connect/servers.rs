//! Which servers have the files of a session: those of its address, and those of which the last `Welcome` told. Connects to none.

use std::collections::VecDeque;
use std::net::SocketAddr;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use dafs_proto::address::{Address, Location, SERVERS_MAX, Scheme, Url, resolve};
use dafs_proto::wire::ClusterTerms;

use crate::connect::Server;
use crate::connect::turns::ATTEMPT_TIME_MAX;
use crate::error::Result;

/// Longest address that a server may tell, bytes: a name of 253, a scheme and a port have room in it.
const ADDRESS_SIZE_MAX: usize = 300;
/// Addresses of one host that are tried.
const ADDRESSES_MAX: usize = 8;

/// The servers of a session.
pub(crate) struct Servers(Mutex<Known>);

#[derive(Clone)]
struct Known {
    /// Which gave the last `Welcome`.
    current: Arc<Server>,
    named: Vec<Location>,
    told: Vec<Location>,
    /// There was never more than one server.
    is_alone: bool,
    term: Option<Duration>,
}

impl Servers {
    /// The server that gave a session, and all that its address names.
    pub(crate) fn new(current: Server, named: &[Location]) -> Self {
        let is_alone = current.address.scheme() == Scheme::Shm;
        let named = if is_alone { Vec::new() } else { named.iter().take(SERVERS_MAX).cloned().collect() };
        Self(Mutex::new(Known {
            current: Arc::new(current),
            is_alone: named.len() <= 1,
            named,
            told: Vec::new(),
            term: None,
        }))
    }

    /// The same, for another session that acts as somebody else.
    pub(crate) fn for_another(&self, server: Server) -> Self {
        Self(Mutex::new(Known { current: Arc::new(server), ..self.known().clone() }))
    }

    /// The server that has the session, or had it last.
    pub(crate) fn current(&self) -> Arc<Server> {
        Arc::clone(&self.known().current)
    }

    /// For people.
    pub(crate) fn name(&self) -> String {
        self.known().current.name.clone()
    }

    /// A server has given a session, and said this of others.
    pub(crate) fn on_welcome(&self, server: &Arc<Server>, cluster: Option<&ClusterTerms>) {
        let mut known = self.known();
        known.current = Arc::clone(server);
        known.term = cluster.map(|cluster| Duration::from_millis(cluster.term_ms.into()));
        let scheme = server.address.scheme();
        let told = cluster.iter().flat_map(|cluster| &cluster.servers);
        let told = told.filter_map(|address| location(address, scheme));
        let told: Vec<_> = told.collect();
        known.is_alone &= told.is_empty();
        let told = told.into_iter();
        let room = SERVERS_MAX - known.named.len();
        known.told = told.filter(|told| !known.named.contains(told)).take(room).collect();
    }

    /// The longest that one handshake may take.
    pub(crate) fn handshake_time_max(&self, configured: Duration) -> Duration {
        let known = self.known();
        known.term.map_or(configured, |term| term.min(configured))
    }

    /// All of them, each once: first the one that had the session, then the others in their order.
    pub(crate) fn round(&self) -> Round {
        let known = self.known();
        let mut current = Server::clone(&known.current);
        let is_alone = known.is_alone;
        let rest =
            if is_alone { VecDeque::new() } else { known.named.iter().chain(&known.told).cloned().collect() };
        if !is_alone {
            let max = current.attempt_time_max.unwrap_or(ATTEMPT_TIME_MAX);
            current.attempt_time_max = Some(max.min(ATTEMPT_TIME_MAX));
        }
        let addresses = VecDeque::from([current.address.clone()]);
        Round { like: current, is_alone, rest, addresses, tried: Vec::new() }
    }

    fn known(&self) -> MutexGuard<'_, Known> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Servers that are tried one after the other. Blocks while a name is resolved.
pub(crate) struct Round {
    like: Server,
    /// There is one server.
    pub(crate) is_alone: bool,
    rest: VecDeque<Location>,
    addresses: VecDeque<Address>,
    tried: Vec<Address>,
}

impl Iterator for Round {
    type Item = Result<Arc<Server>>;

    fn next(&mut self) -> Option<Self::Item> {
        loop {
            while let Some(address) = self.addresses.pop_front() {
                // Under another name it may have been tried already.
                if !self.tried.contains(&address) {
                    self.tried.push(address.clone());
                    let name = address.to_string();
                    return Some(Ok(Arc::new(Server { address, name, ..self.like.clone() })));
                }
            }
            match resolve(self.like.address.scheme(), &self.rest.pop_front()?) {
                Ok(addresses) => self.addresses = addresses.into_iter().take(ADDRESSES_MAX).collect(),
                Err(error) => return Some(Err(error.into())),
            }
        }
    }
}

/// Where an address is that a program gave.
pub(crate) fn location_of(address: &Address) -> Location {
    let host = |address: &SocketAddr| Location::Host { host: host_of(address), port: address.port() };
    match address {
        Address::Tcp(address) | Address::Verbs(address) => host(address),
        Address::Shm(path) => Location::Socket(path.clone()),
        Address::Sim(port) => Location::SimPort(*port),
    }
}

fn host_of(address: &SocketAddr) -> String {
    match address {
        SocketAddr::V6(address) if address.scope_id() != 0 => {
            format!("{}%{}", address.ip(), address.scope_id())
        }
        address => address.ip().to_string(),
    }
}

/// Where a server is that a peer told of; `None` where that is nothing that a session with servers of this scheme can use.
/// Nobody is to be led to a
/// socket of this host, and what the session has registered is another provider's.
fn location(address: &str, scheme: Scheme) -> Option<Location> {
    if address.len() > ADDRESS_SIZE_MAX || scheme == Scheme::Shm {
        return None;
    }
    let url = Url::parse(address.as_ref()).ok()?;
    let is_one = matches!(url.location, Location::Host { .. } | Location::SimPort(_));
    (url.scheme == scheme && url.export.is_none() && is_one).then_some(url.location)
}

/// Leaves the servers that a session with servers of this scheme can use, [`SERVERS_MAX`] at most.
pub(crate) fn keep_usable(told: &mut Vec<String>, scheme: Scheme) {
    told.retain(|address| location(address, scheme).is_some());
    told.truncate(SERVERS_MAX);
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "tests")]

    use dafs_proto::transport::Provider;

    use super::*;

    fn server(address: &str) -> Server {
        let address = Address::Tcp(address.parse().unwrap());
        Server {
            provider: Provider::Tcp,
            name: address.to_string(),
            address,
            reason: String::new(),
            attempt_time_max: None,
            connect_as: None,
        }
    }

    fn named(text: &str) -> Vec<Location> {
        Url::parse(text.as_ref()).unwrap().location.servers()
    }

    fn told(servers: &[&str]) -> ClusterTerms {
        let servers = servers.iter().map(|server| (*server).to_owned()).collect();
        ClusterTerms { term_ms: 500, servers, outcomes: None }
    }

    fn round(servers: &Servers) -> Vec<String> {
        servers.round().map(|server| server.unwrap().address.to_string().replace("dafs+tcp://", "")).collect()
    }

    // [CLI-207] [CLI-210] [SESS-144]
    #[test]
    fn round_begins_with_the_server_that_had_the_session() {
        let servers =
            Servers::new(server("127.0.0.2:1"), &named("dafs://127.0.0.1:1,127.0.0.2:1,127.0.0.3:1"));
        assert_eq!(round(&servers), ["127.0.0.2:1", "127.0.0.1:1", "127.0.0.3:1"]);
        // One that names itself, and one that the address names too.
        let cluster = told(&["dafs+tcp://127.0.0.4:1", "dafs+tcp://127.0.0.2:1", "dafs+tcp://127.0.0.3:1"]);
        servers.on_welcome(&Arc::new(server("127.0.0.3:1")), Some(&cluster));
        assert_eq!(round(&servers), ["127.0.0.3:1", "127.0.0.1:1", "127.0.0.2:1", "127.0.0.4:1"]);
        assert!(servers.round().all(|server| server.unwrap().attempt_time_max == Some(ATTEMPT_TIME_MAX)));
        assert_eq!(servers.handshake_time_max(Duration::from_secs(9)), Duration::from_millis(500));
        // The last word counts.
        servers.on_welcome(&Arc::new(server("127.0.0.1:1")), None);
        assert_eq!(round(&servers), ["127.0.0.1:1", "127.0.0.2:1", "127.0.0.3:1"]);
        assert_eq!(servers.handshake_time_max(Duration::from_secs(9)), Duration::from_secs(9));
    }

    // [CLI-207]
    #[test]
    fn server_that_is_alone_is_tried_at_its_address_alone() {
        let servers = Servers::new(server("127.0.0.2:1"), &named("dafs://localhost:1"));
        assert_eq!(round(&servers), ["127.0.0.2:1"]);
        assert!(servers.round().is_alone && servers.current().attempt_time_max.is_none());
        servers.on_welcome(&servers.current(), Some(&told(&["dafs+tcp://127.0.0.2:1"])));
        assert!(round(&servers).contains(&"127.0.0.1:1".to_owned()));
    }

    // [SESS-145]
    #[test]
    fn address_from_a_peer_is_used_where_its_kind_is_the_same() {
        let long = format!("dafs+tcp://{}", "h".repeat(ADDRESS_SIZE_MAX));
        for absurd in [
            "",
            "127.0.0.1:1",
            "dafs://127.0.0.1:1",
            "dafs+verbs://127.0.0.1:1",
            "dafs+sim://1",
            "dafs+shm:///run/dafs/dafs.sock",
            "tcp://127.0.0.1:1",
            "dafs+tcp://127.0.0.1:1/export",
            "dafs+tcp://127.0.0.1:0",
            "dafs+tcp://127.0.0.1,127.0.0.2",
            "dafs+tcp://a b",
            "dafs+tcp://\0",
            &long,
        ] {
            assert_eq!(location(absurd, Scheme::Tcp), None, "{absurd:?}");
        }
        let good = ["dafs+tcp://127.0.0.1", "dafs+tcp://[::1]:7", "dafs+tcp://fs2.example.org:12050"];
        assert!(good.iter().all(|address| location(address, Scheme::Tcp).is_some()));
        assert!(good.iter().all(|address| location(address, Scheme::Shm).is_none()));
        assert!(location("dafs+verbs://127.0.0.1:1", Scheme::Verbs).is_some());
        assert!(location("dafs+shm:///s", Scheme::Shm).is_none());
    }

    // [CLI-208]
    #[test]
    fn ten_thousand_addresses_are_no_more_than_sixteen() {
        let all: Vec<String> = (0..10_000).map(|port| format!("dafs+tcp://127.0.0.1:{}", port + 1)).collect();
        let mut kept = all.clone();
        keep_usable(&mut kept, Scheme::Tcp);
        assert_eq!(kept, all[..SERVERS_MAX]);
        let servers = Servers::new(server("127.0.0.2:1"), &named("dafs://127.0.0.1:20001,127.0.0.1:20002"));
        let cluster = ClusterTerms { term_ms: 1, servers: all, outcomes: None };
        servers.on_welcome(&servers.current(), Some(&cluster));
        assert_eq!(round(&servers).len(), 1 + SERVERS_MAX);
    }

    #[test]
    fn location_of_an_address_resolves_to_it() {
        for address in [
            Address::Tcp("127.0.0.1:7".parse().unwrap()),
            Address::Tcp("[::1]:7".parse().unwrap()),
            Address::Tcp("[fe80::1%3]:7".parse().unwrap()),
            Address::Sim(3),
        ] {
            let scheme = if matches!(address, Address::Sim(_)) { Scheme::Sim } else { Scheme::Tcp };
            assert_eq!(resolve(scheme, &location_of(&address)).unwrap(), [address]);
        }
    }
}
