//! An etcd of one member, for a cluster of servers.

use std::io::{Read, Write};
use std::net::{Ipv4Addr, SocketAddr, TcpListener, TcpStream};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use anyhow::{Context, bail};

use crate::subject::server::stop_child;
use crate::{interrupt, sys};

/// It answers within this time.
const START_TIMEOUT: Duration = Duration::from_secs(20);

/// Stopped when dropped; its data goes then too.
#[derive(Debug)]
pub struct Etcd {
    child: Child,
    address: SocketAddr,
    _directory: tempfile::TempDir,
}

impl Etcd {
    /// Starts one whose data is on a disk.
    pub fn start() -> anyhow::Result<Self> {
        let directory = tempfile::tempdir_in("/var/tmp").context("cannot make a directory in /var/tmp")?;
        let free = || Ok(TcpListener::bind((Ipv4Addr::LOCALHOST, 0))?.local_addr()?);
        let ports: anyhow::Result<Vec<SocketAddr>> = (0..2).map(|_| free()).collect();
        let [address, peers] = ports?.try_into().map_err(|_| anyhow::anyhow!("two ports"))?;
        let mut command = Command::new("etcd");
        command.arg("--data-dir").arg(directory.path());
        for (flag, address) in [
            ("--listen-client-urls", address),
            ("--advertise-client-urls", address),
            ("--listen-peer-urls", peers),
            ("--initial-advertise-peer-urls", peers),
        ] {
            command.arg(flag).arg(format!("http://{address}"));
        }
        command.args(["--initial-cluster", &format!("default=http://{peers}"), "--log-level", "error"]);
        command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null());
        sys::tether(&mut command, &[]);
        let what = "cannot start etcd; install it (Debian: etcd-server), or name a store with --store";
        let child = command.spawn().context(what)?;
        let mut etcd = Self { child, address, _directory: directory };
        let until = Instant::now() + START_TIMEOUT;
        while !etcd.is_healthy().unwrap_or(false) {
            interrupt::check()?;
            if let Some(status) = etcd.child.try_wait()? {
                bail!("etcd ended at its start ({status})");
            }
            if Instant::now() > until {
                bail!("etcd has not answered for {START_TIMEOUT:?}");
            }
            std::thread::sleep(crate::progress::POLL_INTERVAL);
        }
        Ok(etcd)
    }

    /// `host:port`.
    pub fn address(&self) -> SocketAddr {
        self.address
    }

    fn is_healthy(&self) -> std::io::Result<bool> {
        let mut stream = TcpStream::connect(self.address)?;
        stream.write_all(b"GET /health HTTP/1.0\r\n\r\n")?;
        let mut answer = String::new();
        stream.read_to_string(&mut answer)?;
        Ok(answer.contains("\"true\""))
    }
}

impl Drop for Etcd {
    fn drop(&mut self) {
        stop_child(&mut self.child);
    }
}
