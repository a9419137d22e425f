//! Servers of a cluster as processes of their own, with an etcd for them.

use std::fs::File;
use std::io::{BufRead, BufReader, Read, Write};
use std::net::TcpStream;
use std::path::{Path, PathBuf};
use std::process::{Child, ChildStdout, Command, Stdio};

use dafs_client::{Config, Session};
use dafs_tests::port::Port;
use dafs_tests::program::{Signal, program, signal};

/// etcd with one member, killed when dropped.
pub(crate) struct Etcd {
    child: Child,
    port: Port,
    peers: Port,
    directory: tempfile::TempDir,
}

impl Etcd {
    pub(crate) fn start() -> Self {
        let directory = tempfile::tempdir().unwrap();
        let (port, peers) = (Port::new(), Port::new());
        let child = launch_etcd(directory.path(), &port, &peers);
        let etcd = Self { child, port, peers, directory };
        etcd.await_answer();
        etcd
    }

    /// `host:port` of its member.
    pub(crate) fn member(&self) -> String {
        self.port.address().to_string()
    }

    /// It answers nobody until it goes on.
    pub(crate) fn stop(&self) {
        signal(self.child.id(), Signal::STOP).unwrap();
    }

    pub(crate) fn go_on(&self) {
        signal(self.child.id(), Signal::CONT).unwrap();
    }

    /// Kills it and starts it again with what it has kept.
    pub(crate) fn kill_and_start(&mut self) {
        self.child.kill().unwrap();
        self.child.wait().unwrap();
        self.child = launch_etcd(self.directory.path(), &self.port, &self.peers);
        self.await_answer();
    }

    fn await_answer(&self) {
        while !self.is_healthy().unwrap_or(false) {
            std::thread::yield_now();
        }
    }

    /// It has a leader, which is itself.
    fn is_healthy(&self) -> std::io::Result<bool> {
        let mut stream = TcpStream::connect(self.port.address())?;
        stream.write_all(b"GET /health HTTP/1.0\r\n\r\n")?;
        let mut answer = String::new();
        stream.read_to_string(&mut answer)?;
        Ok(answer.contains("\"true\""))
    }
}

fn launch_etcd(directory: &Path, port: &Port, peers: &Port) -> Child {
    let (client, peer) = (format!("http://{}", port.address()), format!("http://{}", peers.address()));
    let log = File::options().create(true).append(true).open(directory.join("log")).unwrap();
    Command::new("etcd")
        .arg("--data-dir")
        .arg(directory.join("data"))
        .args(["--listen-client-urls", &client, "--advertise-client-urls", &client])
        .args(["--listen-peer-urls", &peer, "--initial-advertise-peer-urls", &peer])
        .args(["--initial-cluster", &format!("default={peer}")])
        .stdout(Stdio::null())
        .stderr(log)
        .spawn()
        .unwrap()
}

impl Drop for Etcd {
    fn drop(&mut self) {
        // It may have ended by itself.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// A server of a cluster.
pub(crate) struct Server {
    child: Child,
    _stdout: BufReader<ChildStdout>,
    port: Port,
    flags: Vec<String>,
    log: PathBuf,
}

impl Server {
    /// Starts one; `None` where it refuses to.
    fn launch(port: &Port, flags: &[String], log: &Path) -> Option<(Child, BufReader<ChildStdout>)> {
        let says = File::options().create(true).append(true).open(log).unwrap();
        let mut child = Command::new(program())
            .args(["--listen", &format!("tcp://{}", port.address()), "--no-calibrate", "--workers", "1"])
            .args(flags)
            .env("DAFS_LOG", "info")
            .stdout(Stdio::piped())
            .stderr(says)
            .spawn()
            .unwrap();
        let mut stdout = BufReader::new(child.stdout.take().unwrap());
        let mut line = String::new();
        stdout.read_line(&mut line).unwrap();
        if line.is_empty() {
            child.wait().unwrap();
            return None;
        }
        Some((child, stdout))
    }

    pub(crate) fn start(flags: &[String], log: &Path) -> Self {
        Self::try_start(flags, log).unwrap_or_else(|log| panic!("the server does not start: {log}"))
    }

    /// What it said, where it refuses to start.
    pub(crate) fn try_start(flags: &[String], log: &Path) -> Result<Self, String> {
        let port = Port::new();
        match Self::launch(&port, flags, log) {
            Some((child, stdout)) => {
                Ok(Self { child, _stdout: stdout, port, flags: flags.to_vec(), log: log.to_owned() })
            }
            None => Err(std::fs::read_to_string(log).unwrap_or_default()),
        }
    }

    pub(crate) fn address(&self) -> String {
        self.port.address().to_string()
    }

    pub(crate) fn kill(&mut self) {
        self.child.kill().unwrap();
        self.child.wait().unwrap();
    }

    /// Starts another in its place.
    pub(crate) fn start_again(&mut self) {
        let started = Self::launch(&self.port, &self.flags, &self.log);
        (self.child, self._stdout) =
            started.unwrap_or_else(|| panic!("it does not start again:\n{}", self.said()));
    }

    /// Asks it to end, and waits until it has.
    pub(crate) fn end(&mut self) {
        signal(self.child.id(), Signal::TERM).unwrap();
        assert!(self.child.wait().unwrap().success(), "{}", self.said());
    }

    /// It is stopped where it is.
    pub(crate) fn stop(&self) {
        signal(self.child.id(), Signal::STOP).unwrap();
    }

    pub(crate) fn go_on(&self) {
        signal(self.child.id(), Signal::CONT).unwrap();
    }

    /// Waits until it has ended by itself.
    pub(crate) fn wait(&mut self) {
        self.child.wait().unwrap();
    }

    pub(crate) fn said(&self) -> String {
        std::fs::read_to_string(&self.log).unwrap_or_default()
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        // It may have ended by itself.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// Several servers that export one directory as `data`.
pub(crate) struct Cluster {
    pub(crate) servers: Vec<Server>,
    pub(crate) etcd: Etcd,
    pub(crate) directory: tempfile::TempDir,
    mounts: Vec<PathBuf>,
    /// In the first of the mounts.
    made: Option<tempfile::TempDir>,
}

/// Where one file system is mounted several times, as on several hosts: `DAFS_CLUSTER_MOUNTS`, separated by colons. Each server exports
/// the same directory of it by another of these. Without, all share a temporary directory.
fn mounts() -> Vec<PathBuf> {
    std::env::var_os("DAFS_CLUSTER_MOUNTS")
        .map(|mounts| std::env::split_paths(&mounts).collect())
        .unwrap_or_default()
}

/// The command that cuts a server off: it ends, and what it has under way with it.
pub(crate) const FENCE_COMMAND: &str =
    "kill -KILL \"$DAFS_FENCE_PID\" 2>/dev/null; while [ -e /proc/$DAFS_FENCE_PID/root/. ]; do :; done";

impl Cluster {
    pub(crate) fn start(count: usize, more: &[&str]) -> Self {
        let etcd = Etcd::start();
        let directory = tempfile::tempdir().unwrap();
        let mounts = mounts();
        let made = mounts.first().map(|mount| tempfile::tempdir_in(mount).unwrap());
        let mut cluster = Self { servers: Vec::new(), etcd, directory, mounts, made };
        std::fs::create_dir(cluster.data()).unwrap();
        for number in 0..count {
            let flags = cluster.flags(number, more);
            let log = cluster.directory.path().join(format!("log-{number}"));
            cluster.servers.push(Server::start(&flags, &log));
        }
        cluster
    }

    /// Flags of the server of this place.
    pub(crate) fn flags(&self, number: usize, more: &[&str]) -> Vec<String> {
        let mut flags = vec![
            "--export".to_owned(),
            format!("data={}", self.data_of(number).display()),
            "--cluster".to_owned(),
            format!("etcd://{}/test", self.etcd.member()),
            "--server-name".to_owned(),
            format!("server-{number}"),
            "--term-ms".to_owned(),
            "2000".to_owned(),
        ];
        flags.extend(more.iter().map(|flag| (*flag).to_owned()));
        flags
    }

    pub(crate) fn data(&self) -> PathBuf {
        self.data_of(0)
    }

    /// The directory, as the host of a server sees it.
    fn data_of(&self, number: usize) -> PathBuf {
        let base = match &self.made {
            None => self.directory.path().to_owned(),
            Some(made) => self.mounts[number % self.mounts.len()].join(made.path().file_name().unwrap()),
        };
        base.join("data")
    }

    /// The address that names all servers, from this one on.
    pub(crate) fn url(&self, first: usize) -> String {
        let count = self.servers.len();
        let addresses: Vec<String> =
            (first..first + count).map(|number| self.servers[number % count].address()).collect();
        format!("dafs+tcp://{}/data", addresses.join(","))
    }

    /// A session whose first server is this one.
    pub(crate) fn session(&self, first: usize) -> Session {
        Session::connect(self.url(first), &config()).unwrap()
    }

    pub(crate) fn said(&self) -> String {
        self.servers.iter().map(Server::said).collect::<Vec<_>>().join("----\n")
    }
}

impl Drop for Cluster {
    fn drop(&mut self) {
        if std::thread::panicking() {
            eprintln!("the servers said:\n{}", self.said());
        }
    }
}

/// Of clients that do not give up.
pub(crate) fn config() -> Config {
    let mut config = Config::default();
    config.reconnect.time_max = std::time::Duration::from_secs(120);
    config.reconnect.attempts_max = u32::MAX;
    config
}
