//! Asks the kernel who owns the other end of a connection on this host, by the connection's two addresses.
//!
//! Only an established socket that is still open has the right owner. The kernel reports user 0 for one that its process has closed, so a
//! client that connects, sends its hello and closes at once would otherwise count as root.

use std::io::{self, BufRead, BufReader, Read, Write};
use std::net::{IpAddr, Ipv4Addr, SocketAddr, TcpListener, TcpStream};
use std::sync::{Mutex, PoisonError};

use socket2::{Domain, Protocol, Socket, Type};

/// Asks the kernel. Its descriptor is kept, so that nobody can be mistaken for somebody else for want of one.
#[derive(Debug)]
pub(super) struct SocketOwners {
    diagnosis: Mutex<Diagnosis>,
    /// The kernel diagnoses sockets: what it does not know of is not there. A kernel without that answers in the same words.
    diagnoses: bool,
}

#[derive(Debug)]
struct Diagnosis {
    socket: Option<Socket>,
    /// Of the last question: an answer to an earlier one is passed over.
    sequence: u32,
}

impl Default for SocketOwners {
    fn default() -> Self {
        let mut diagnosis = Diagnosis { socket: open_diagnosis().ok(), sequence: 0 };
        let diagnoses = diagnosis.finds_own_connection().unwrap_or(false);
        Self { diagnosis: Mutex::new(diagnosis), diagnoses }
    }
}

impl SocketOwners {
    /// The user that owns the TCP socket bound to `client` and connected to `server`; `None` when there is no such open
    /// socket. An error where it cannot be found out. Does not wait for other processes.
    pub(super) fn owner(&self, client: SocketAddr, server: SocketAddr) -> io::Result<Option<u32>> {
        match self.diagnoses {
            true => self.diagnosis.lock().unwrap_or_else(PoisonError::into_inner).ask(client, server),
            false => search_table(client, server),
        }
    }
}

fn open_diagnosis() -> io::Result<Socket> {
    let socket =
        Socket::new(Domain::from(libc::AF_NETLINK), Type::DGRAM, Some(Protocol::from(NETLINK_SOCK_DIAG)))?;
    // The kernel has answered when the request has been written.
    socket.set_nonblocking(true)?;
    Ok(socket)
}

impl Diagnosis {
    fn ask(&mut self, client: SocketAddr, server: SocketAddr) -> io::Result<Option<u32>> {
        if self.socket.is_none() {
            self.socket = Some(open_diagnosis()?);
        }
        self.sequence = self.sequence.wrapping_add(1);
        let outcome = self.socket.as_ref().map(|socket| ask_sock_diag(socket, client, server, self.sequence));
        let outcome = outcome.unwrap_or(Ok(None));
        if outcome.is_err() {
            // Whatever became of it, the next question begins anew.
            self.socket = None;
        }
        outcome
    }

    /// Whether the kernel diagnoses a connection that is surely there.
    fn finds_own_connection(&mut self) -> io::Result<bool> {
        let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0))?;
        let connection = TcpStream::connect(listener.local_addr()?)?;
        Ok(self.ask(connection.local_addr()?, connection.peer_addr()?)?.is_some())
    }
}

const NETLINK_SOCK_DIAG: i32 = 4;
const SOCK_DIAG_BY_FAMILY: u16 = 20;
const NLM_F_REQUEST: u16 = 1;
const NLMSG_ERROR: u16 = 2;
const TCP_ESTABLISHED: u8 = 1;
const NLMSG_HEADER_SIZE: usize = 16;
const SEQUENCE_AT: usize = 8;
const REQUEST_SIZE: usize = NLMSG_HEADER_SIZE + 56;
/// `inet_diag_msg`: family, state, timer, retransmissions, the two addresses (48), then expiry, queues, user, inode.
const STATE_AT: usize = NLMSG_HEADER_SIZE + 1;
const UID_AT: usize = NLMSG_HEADER_SIZE + 64;
const INODE_AT: usize = NLMSG_HEADER_SIZE + 68;

fn ask_sock_diag(
    mut socket: &Socket,
    client: SocketAddr,
    server: SocketAddr,
    sequence: u32,
) -> io::Result<Option<u32>> {
    socket.write_all(&diag_request(client, server, sequence))?;
    let mut answer = [0u8; 512];
    loop {
        let size = socket.read(&mut answer)?;
        if answer.get(SEQUENCE_AT..SEQUENCE_AT + 4) == Some(&sequence.to_ne_bytes()) {
            return diag_owner(&answer[..size]);
        }
    }
}

/// `nlmsghdr` and `inet_diag_req_v2`: numbers in the machine's order, ports and addresses in the network's.
fn diag_request(client: SocketAddr, server: SocketAddr, sequence: u32) -> Vec<u8> {
    let family = if client.is_ipv4() { libc::AF_INET } else { libc::AF_INET6 };
    let mut request = Vec::with_capacity(REQUEST_SIZE);
    request.extend(u32::try_from(REQUEST_SIZE).unwrap_or_default().to_ne_bytes());
    request.extend(SOCK_DIAG_BY_FAMILY.to_ne_bytes());
    request.extend(NLM_F_REQUEST.to_ne_bytes());
    request.extend(sequence.to_ne_bytes());
    request.extend([0; 4]);
    request.extend([u8::try_from(family).unwrap_or_default(), libc::IPPROTO_TCP.to_le_bytes()[0], 0, 0]);
    request.extend(u32::MAX.to_ne_bytes());
    request.extend(client.port().to_be_bytes());
    request.extend(server.port().to_be_bytes());
    for address in [client.ip(), server.ip()] {
        let mut bytes = [0; 16];
        match address {
            IpAddr::V4(v4) => bytes[..4].copy_from_slice(&v4.octets()),
            IpAddr::V6(v6) => bytes = v6.octets(),
        }
        request.extend(bytes);
    }
    request.extend(0u32.to_ne_bytes());
    request.extend([0xff; 8]);
    request
}

/// `None` for a socket that is closed, or not there; an error where the kernel could not tell.
fn diag_owner(answer: &[u8]) -> io::Result<Option<u32>> {
    let number = |at: usize| answer.get(at..at + 4)?.try_into().ok().map(u32::from_ne_bytes);
    let kind = answer.get(4..6).and_then(|kind| kind.try_into().ok()).map(u16::from_ne_bytes);
    match (kind, number(NLMSG_HEADER_SIZE), number(INODE_AT)) {
        (Some(SOCK_DIAG_BY_FAMILY), _, Some(inode)) => {
            let is_open = answer.get(STATE_AT) == Some(&TCP_ESTABLISHED) && inode != 0;
            Ok(number(UID_AT).filter(|_| is_open))
        }
        (Some(NLMSG_ERROR), Some(code), _) => {
            match io::Error::from_raw_os_error(code.cast_signed().wrapping_neg()) {
                error if error.kind() == io::ErrorKind::NotFound => Ok(None),
                error => Err(error),
            }
        }
        _ => Err(io::ErrorKind::InvalidData.into()),
    }
}

fn search_table(client: SocketAddr, server: SocketAddr) -> io::Result<Option<u32>> {
    let path = if client.is_ipv4() { "/proc/net/tcp" } else { "/proc/net/tcp6" };
    let wanted = (table_address(client), table_address(server));
    for line in BufReader::new(std::fs::File::open(path)?).lines().skip(1) {
        if let Some(owner) = table_owner(&line?, &wanted) {
            return Ok(Some(owner));
        }
    }
    Ok(None)
}

/// The owner, if the line is of an open socket with these two addresses:
/// `sl local remote st queues timer retransmissions uid timeout inode …`.
fn table_owner(line: &str, (client, server): &(String, String)) -> Option<u32> {
    let mut fields = line.split_ascii_whitespace().skip(1);
    let matches = fields.next()? == client && fields.next()? == server && fields.next()? == "01";
    let owner = fields.nth(3)?.parse().ok()?;
    (matches && fields.nth(1)? != "0").then_some(owner)
}

/// As the kernel's table writes it: each 32 bits of the address in the machine's order.
fn table_address(address: SocketAddr) -> String {
    let octets = match address.ip() {
        IpAddr::V4(v4) => v4.octets().to_vec(),
        IpAddr::V6(v6) => v6.octets().to_vec(),
    };
    let words = octets.chunks_exact(4).map(|word| {
        let word = <[u8; 4]>::try_from(word).map(u32::from_ne_bytes).unwrap_or_default();
        format!("{word:08X}")
    });
    format!("{}:{:04X}", words.collect::<String>(), address.port())
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use dafs_proto::transport::PeerIdentity;
    use dafs_proto::wire::Status;

    use super::super::{Access, AccessConfig};
    use super::*;

    fn pair(bind: &str) -> (TcpStream, TcpStream) {
        let listener = TcpListener::bind(bind).unwrap();
        let client = TcpStream::connect(listener.local_addr().unwrap()).unwrap();
        (client, listener.accept().unwrap().0)
    }

    fn ends(server: &TcpStream) -> (SocketAddr, SocketAddr) {
        (server.peer_addr().unwrap(), server.local_addr().unwrap())
    }

    fn socket_owner(client: SocketAddr, server: SocketAddr) -> io::Result<Option<u32>> {
        SocketOwners::default().owner(client, server)
    }

    fn own_uid() -> u32 {
        rustix::process::geteuid().as_raw()
    }

    // [ACC-12]
    #[test]
    fn socket_owner_of_open_connection_is_this_user_by_either_way() {
        for bind in ["127.0.0.1:0", "[::1]:0"] {
            let (_client, server) = pair(bind);
            let (peer, local) = ends(&server);
            assert_eq!(socket_owner(peer, local).unwrap(), Some(own_uid()), "{bind}");
            assert_eq!(search_table(peer, local).unwrap(), Some(own_uid()), "{bind}");
        }
    }

    // [ACC-13]
    #[test]
    fn socket_owner_of_closed_connection_is_unknown() {
        let (client, server) = pair("127.0.0.1:0");
        let (peer, local) = ends(&server);
        // A process that another test starts at this moment may hold a copy of the descriptor until it runs its program.
        client.shutdown(std::net::Shutdown::Both).unwrap();
        drop(client);
        assert_eq!(socket_owner(peer, local).unwrap(), None);
    }

    /// Set in a process of its own for a test: the limit of descriptors is the whole process's.
    const OWN_PROCESS: &str = "DAFS_TEST_NO_DESCRIPTORS";

    // [ACC-19] [ACC-78] [ACC-144]
    #[test]
    fn socket_owner_is_known_without_free_descriptors() {
        use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};
        if std::env::var_os(OWN_PROCESS).is_none() {
            let name = "access::owner::tests::\
                        socket_owner_is_known_without_free_descriptors";
            let output = std::process::Command::new(std::env::current_exe().unwrap())
                .args(["--exact", name])
                .env(OWN_PROCESS, "1")
                .output()
                .unwrap();
            let printed = String::from_utf8_lossy(&output.stdout);
            assert!(output.status.success() && printed.contains("1 passed"), "{printed}");
            return;
        }
        let (_client, server) = pair("127.0.0.1:0");
        let (peer, local) = ends(&server);
        let (owners, begun) = (SocketOwners::default(), Access::new(AccessConfig::default()));
        let maximum = getrlimit(Resource::Nofile).maximum;
        setrlimit(Resource::Nofile, Rlimit { current: Some(0), maximum }).unwrap();
        assert_eq!(owners.owner(peer, local).unwrap(), Some(own_uid()));
        assert_eq!(owners.owner(local, local).unwrap(), None, "no table is opened for what is not there");
        server.shutdown(std::net::Shutdown::Both).unwrap();
        assert_eq!(owners.owner(local, peer).unwrap(), None, "nor for what is closed");
        let unprepared = |diagnoses| {
            let diagnosis = Mutex::new(Diagnosis { socket: None, sequence: 0 });
            SocketOwners { diagnosis, diagnoses }
        };
        for diagnoses in [true, false] {
            let owner = unprepared(diagnoses).owner(peer, local);
            assert!(owner.is_err(), "it cannot be found out, which is no owner");
        }
        // Nor does a server forget how to ask when it reads its settings anew.
        let reloaded = begun.with_config(AccessConfig::default());
        assert_eq!(reloaded.owners.owner(local, local).unwrap(), None);
        let (config, users) = (AccessConfig::default(), Arc::default());
        let access = Access { config, users, owners: Arc::new(unprepared(true)) };
        let peer = PeerIdentity { address: Some(peer), credentials: None };
        assert_eq!(access.owner(&peer, local), Err(Status::AGAIN));
    }

    #[test]
    fn socket_owner_of_no_connection_is_unknown() {
        let (client, server) = pair("127.0.0.1:0");
        let (peer, mut local) = ends(&server);
        local.set_port(client.local_addr().unwrap().port());
        assert_eq!(socket_owner(peer, local).unwrap(), None);
    }

    // [ACC-13]
    #[test]
    fn diag_owner_trusts_only_established_sockets_with_an_inode() {
        let answer = |kind: u16, state: u8, inode: u32| {
            let mut answer = vec![0; NLMSG_HEADER_SIZE + 72];
            answer[4..6].copy_from_slice(&kind.to_ne_bytes());
            answer[STATE_AT] = state;
            answer[UID_AT..UID_AT + 4].copy_from_slice(&7u32.to_ne_bytes());
            answer[INODE_AT..INODE_AT + 4].copy_from_slice(&inode.to_ne_bytes());
            answer
        };
        let owner = |kind, state, inode| diag_owner(&answer(kind, state, inode)).unwrap();
        assert_eq!(owner(SOCK_DIAG_BY_FAMILY, 1, 9), Some(7));
        for state in (0..=12).filter(|state| *state != 1) {
            assert_eq!(owner(SOCK_DIAG_BY_FAMILY, state, 9), None, "state {state}");
        }
        assert_eq!(owner(SOCK_DIAG_BY_FAMILY, 1, 0), None);
        assert!(diag_owner(&answer(3, 1, 9)).is_err(), "another kind of answer");
        let whole = answer(SOCK_DIAG_BY_FAMILY, 1, 9);
        for size in 0..whole.len() {
            assert!(diag_owner(&whole[..size]).is_err(), "{size} bytes");
        }
    }

    // [ACC-19]
    #[test]
    fn diag_owner_distinguishes_missing_socket_from_failing_kernel() {
        let refused = |errno: i32| {
            let mut answer = vec![0; NLMSG_HEADER_SIZE + 20];
            answer[4..6].copy_from_slice(&NLMSG_ERROR.to_ne_bytes());
            answer[NLMSG_HEADER_SIZE..][..4].copy_from_slice(&(-errno).to_ne_bytes());
            diag_owner(&answer).map_err(|error| error.raw_os_error())
        };
        assert_eq!(refused(libc::ENOENT), Ok(None));
        assert_eq!(refused(libc::ENOMEM), Err(Some(libc::ENOMEM)));
        assert_eq!(refused(libc::EPERM), Err(Some(libc::EPERM)));
    }

    #[test]
    fn table_line_of_open_socket_tells_its_owner() {
        let ends = (
            table_address("127.0.0.1:49294".parse().unwrap()),
            table_address("127.0.0.1:45451".parse().unwrap()),
        );
        let line = |client: &str, server: &str, state: &str, inode: &str| {
            format!(
                "  2: {client} {server} {state} 00000000:00000001 00:00000000 00000000  1000        0 {inode} 2 0000 20 0"
            )
        };
        assert_eq!(table_owner(&line(&ends.0, &ends.1, "01", "39921"), &ends), Some(1000));
        assert_eq!(table_owner(&line(&ends.0, &ends.1, "01", "0"), &ends), None);
        assert_eq!(table_owner(&line(&ends.0, &ends.1, "04", "39921"), &ends), None);
        assert_eq!(table_owner(&line(&ends.1, &ends.0, "01", "39921"), &ends), None);
        assert_eq!(table_owner("", &ends), None);
    }
}
