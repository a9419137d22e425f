//! A network of several hosts on one machine: a network namespace for each, joined to the client's by a link of a limited rate.

use std::net::Ipv4Addr;
use std::os::fd::{AsFd, OwnedFd};
use std::process::{Command, Stdio};
use std::sync::Arc;

use anyhow::{Context, bail};

use crate::sys;

/// What a link may send at once before it is held to its rate: several of the largest packets.
const BURST: &str = "256kb";
/// What waits at the end of a link: some milliseconds of it.
const QUEUE: &str = "1mb";

/// Hosts, all reachable from the thread that made them and from threads and processes that it starts.
#[derive(Debug)]
pub struct Network {
    /// The hosts.
    pub hosts: Vec<Host>,
}

/// A host: what runs in its namespace has its address.
#[derive(Debug, Clone)]
pub struct Host {
    namespace: Arc<OwnedFd>,
    /// Its address.
    pub address: Ipv4Addr,
}

impl Network {
    /// Moves the calling thread into namespaces of its own and joins `count` hosts to it, by links that carry `rate` megabytes (10⁶ bytes)
    /// a second in each direction; 0 is as fast as can be. Nothing of it is seen from elsewhere, and all is gone with the process.
    ///
    /// # Errors
    /// Where the process may not, or `ip` or `tc` (of iproute2) is missing.
    pub fn new(count: usize, rate: u32) -> anyhow::Result<Self> {
        sys::enter_private_namespaces().context(
            "cannot make network namespaces; run it as root, or by `unshare --user --map-root-user`",
        )?;
        let hosts = (1..=count).map(|number| Host::joined(u8::try_from(number)?, rate));
        Ok(Self { hosts: hosts.collect::<anyhow::Result<_>>()? })
    }
}

impl Host {
    fn joined(number: u8, rate: u32) -> anyhow::Result<Self> {
        let namespace = Arc::new(sys::new_network().context("cannot make a network namespace")?);
        let address = |last| Ipv4Addr::new(10, 77, number, last);
        let host = Self { namespace, address: address(2) };
        let near = format!("host{number}");
        let mut join = Command::new("ip");
        join.args(["link", "add", "client", "type", "veth", "peer", "name", &near, "netns"]);
        host.run(join.arg(sys::thread_id().to_string()))?;
        for (device, address, at_host) in [("client", host.address, true), (near.as_str(), address(1), false)]
        {
            let run = |program: &str, words: &str| {
                let mut command = Command::new(program);
                command.args(words.split(' '));
                if at_host { host.run(&mut command) } else { run(&mut command) }
            };
            run("ip", &format!("address add {address}/24 dev {device}"))?;
            run("ip", &format!("link set {device} up"))?;
            if rate > 0 {
                let limit = format!("tbf rate {rate}mbps burst {BURST} limit {QUEUE}");
                run("tc", &format!("qdisc add dev {device} root {limit}"))?;
            }
        }
        Ok(host)
    }

    /// Moves the calling thread to this host.
    pub fn enter(&self) -> anyhow::Result<()> {
        sys::enter_network(self.namespace.as_fd()).context("cannot enter a network namespace")
    }

    /// Has the process that `command` starts run on this host.
    pub fn place(&self, command: &mut Command) {
        sys::start_in_network(command, Arc::clone(&self.namespace));
    }

    fn run(&self, command: &mut Command) -> anyhow::Result<()> {
        self.place(command);
        run(command)
    }
}

fn run(command: &mut Command) -> anyhow::Result<()> {
    let program = command.get_program().to_string_lossy().into_owned();
    let output = command.stdin(Stdio::null()).output();
    let output = output.with_context(|| format!("cannot run {program} (Debian: iproute2)"))?;
    if !output.status.success() {
        let words: Vec<_> = command.get_args().map(|word| word.to_string_lossy()).collect();
        bail!("cannot run {program} {}: {}", words.join(" "), String::from_utf8_lossy(&output.stderr).trim());
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use std::io::Read;
    use std::net::{TcpListener, TcpStream};

    use super::*;

    #[test]
    fn hosts_are_reached_by_their_addresses_and_from_nowhere_else() {
        let network = std::thread::spawn(|| {
            let network = Network::new(2, 100)?;
            for host in &network.hosts {
                let host = host.clone();
                let listener = std::thread::spawn(move || {
                    host.enter()?;
                    anyhow::Ok(TcpListener::bind((host.address, 0))?)
                });
                let listener = listener.join().unwrap()?;
                let mut near = TcpStream::connect(listener.local_addr()?)?;
                drop(listener.accept()?);
                assert_eq!(near.read(&mut [0])?, 0);
            }
            anyhow::Ok(network)
        });
        match network.join().unwrap() {
            // The test's own thread is where it was.
            Ok(network) => assert!(TcpListener::bind((network.hosts[0].address, 0)).is_err()),
            Err(error) => assert!(error.to_string().contains("cannot make network namespaces"), "{error:#}"),
        }
    }
}
