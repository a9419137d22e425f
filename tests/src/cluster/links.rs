//! Hosts of servers: network namespaces, each behind a link to the test's own.

use std::net::{IpAddr, Ipv4Addr};
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Arc, Mutex};

/// A host that is reached by a link. Clones are the same host, which is there until the last is dropped.
#[derive(Clone, Debug)]
pub struct Host {
    /// It keeps the namespace, until its input ends.
    keeper: Arc<Keeper>,
    link: String,
    /// Of the host; `gateway` is that of this end of its link.
    pub address: IpAddr,
    /// See `address`.
    pub gateway: IpAddr,
}

#[derive(Debug)]
struct Keeper(Mutex<Child>);

impl Drop for Keeper {
    fn drop(&mut self) {
        let child = self.0.get_mut().unwrap_or_else(std::sync::PoisonError::into_inner);
        // It may have ended by itself.
        let _ = child.kill();
        let _ = child.wait();
    }
}

fn ip(arguments: &str) {
    let ended = Command::new("ip").args(arguments.split(' ')).output().unwrap();
    assert!(ended.status.success(), "ip {arguments}: {}", String::from_utf8_lossy(&ended.stderr));
}

impl Host {
    /// The addresses are for documentation (RFC 5737), so nobody has them; two hosts at once have different ones.
    pub fn start() -> Self {
        static MADE: AtomicU32 = AtomicU32::new(0);
        const NETWORKS: [[u8; 3]; 3] = [[192, 0, 2], [198, 51, 100], [203, 0, 113]];
        let number = MADE.fetch_add(1, Ordering::Relaxed) % 16;
        let place = std::process::id() % 12 * 16 + number;
        let [first, second, third] = NETWORKS[usize::try_from(place / 64).unwrap()];
        let last = u8::try_from(place % 64 * 4).unwrap();
        let address = |more: u8| IpAddr::from(Ipv4Addr::new(first, second, third, last + more));
        let (gateway, address) = (address(1), address(2));
        let keeper = Command::new("unshare").args(["--net", "cat"]).stdin(Stdio::piped()).spawn().unwrap();
        let own = std::fs::read_link("/proc/self/ns/net").unwrap();
        let theirs = format!("/proc/{}/ns/net", keeper.id());
        while std::fs::read_link(&theirs).is_ok_and(|theirs| theirs == own) {
            std::thread::yield_now();
        }
        let link = format!("dafs{}-{number}", std::process::id());
        let process = keeper.id();
        ip(&format!("link add {link} type veth peer name uplink netns {process}"));
        let host = Self { keeper: Arc::new(Keeper(Mutex::new(keeper))), link, address, gateway };
        ip(&format!("address add {gateway}/30 dev {}", host.link));
        host.set_link(true);
        for there in [
            format!("address add {address}/30 dev uplink"),
            "link set uplink up".into(),
            "link set lo up".into(),
            format!("route add default via {gateway}"),
        ] {
            let ended = host.command(Path::new("ip")).args(there.split(' ')).status().unwrap();
            assert!(ended.success(), "ip {there} on the host");
        }
        host
    }

    /// A program that runs there.
    pub fn command(&self, program: impl AsRef<std::ffi::OsStr>) -> Command {
        let process = self.keeper.0.lock().unwrap().id();
        let mut command = Command::new("nsenter");
        command.arg(format!("--net=/proc/{process}/ns/net")).arg(program);
        command
    }

    /// Its link is there, or is cut.
    pub fn set_link(&self, is_up: bool) {
        ip(&format!("link set {} {}", self.link, if is_up { "up" } else { "down" }));
    }

    /// Waits until it is reached.
    pub fn await_reach(&self) {
        // Nobody listens there, and the host itself says so.
        let refused = |error: std::io::Error| error.kind() == std::io::ErrorKind::ConnectionRefused;
        while !std::net::TcpStream::connect((self.address, 1)).is_err_and(refused) {
            std::thread::yield_now();
        }
    }
}
