//! Servers of a cluster as processes of their own.

use std::ffi::OsString;
use std::fs::File;
use std::io::{BufRead, BufReader};
use std::path::PathBuf;
use std::process::{Child, ChildStdout, Command, Stdio};

use dafs_client::{Config, Session};
use dafs_proto::session::parse_key_file;
use dafs_tests::harness::key_line;
use dafs_tests::port::Port;
use dafs_tests::program::{Signal, key_file, program, signal};

use crate::ceph::Ceph;
use crate::etcd::Etcd;
use crate::links::Host;

/// Where a server runs, and as what.
#[derive(Clone, Debug)]
pub(crate) struct Place {
    pub(crate) flags: Vec<String>,
    pub(crate) log: PathBuf,
    pub(crate) variables: Vec<(&'static str, OsString)>,
    /// Of its host, if that is not this one.
    pub(crate) host: Option<Host>,
}

/// A server of a cluster.
pub(crate) struct Server {
    child: Child,
    _stdout: BufReader<ChildStdout>,
    port: Port,
    place: Place,
}

impl Server {
    /// Starts one; `None` where it refuses to.
    fn launch(port: &Port, place: &Place) -> Option<(Child, BufReader<ChildStdout>)> {
        let says = File::options().create(true).append(true).open(&place.log).unwrap();
        let listen = format!("tcp://{}", address_of(port, place));
        let mut command =
            place.host.as_ref().map_or_else(|| Command::new(program()), |host| host.command(program()));
        let mut child = command
            .args(["--listen", &listen, "--no-calibrate", "--workers", "1"])
            .args(&place.flags)
            .env("DAFS_LOG", std::env::var_os("DAFS_LOG").unwrap_or_else(|| "info".into()))
            .envs(place.variables.iter().map(|(name, value)| (name, value)))
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

    pub(crate) fn start(place: Place) -> Self {
        Self::try_start(place).unwrap_or_else(|log| panic!("the server does not start: {log}"))
    }

    /// What it said, where it refuses to start.
    pub(crate) fn try_start(place: Place) -> Result<Self, String> {
        let port = Port::new();
        match Self::launch(&port, &place) {
            Some((child, stdout)) => Ok(Self { child, _stdout: stdout, port, place }),
            None => Err(std::fs::read_to_string(&place.log).unwrap_or_default()),
        }
    }

    pub(crate) fn address(&self) -> String {
        address_of(&self.port, &self.place)
    }

    pub(crate) fn kill(&mut self) {
        self.child.kill().unwrap();
        self.child.wait().unwrap();
    }

    /// Starts another in its place.
    pub(crate) fn start_again(&mut self) {
        let started = Self::launch(&self.port, &self.place);
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
        std::fs::read_to_string(&self.place.log).unwrap_or_default()
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        // It may have ended by itself.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// The same port on its host.
fn address_of(port: &Port, place: &Place) -> String {
    let local = port.address();
    place.host.as_ref().map_or(local, |host| (host.address, local.port()).into()).to_string()
}

/// Several servers that export one directory as `data`.
pub(crate) struct Cluster {
    pub(crate) servers: Vec<Server>,
    pub(crate) etcd: Etcd,
    /// How servers find it, and who they are there.
    pub(crate) scheme: &'static str,
    pub(crate) access: Vec<String>,
    pub(crate) directory: tempfile::TempDir,
    mounts: Vec<PathBuf>,
    /// In the first of the mounts.
    made: Option<tempfile::TempDir>,
    /// What the mounts are of; it goes last.
    pub(crate) ceph: Option<Ceph>,
    /// Of the servers, if they have hosts of their own.
    pub(crate) hosts: Vec<Host>,
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
        let mut cluster = Self::of(mounts(), 1);
        cluster.serve(count, more);
        cluster
    }

    /// The store has so many members.
    pub(crate) fn start_with_members(count: usize, members: usize, more: &[&str]) -> Self {
        let mut cluster = Self::of(mounts(), members);
        cluster.serve(count, more);
        cluster
    }

    /// Each server exports a mount of its own of a Ceph.
    pub(crate) fn start_on_ceph(count: usize, more: &[&str]) -> Self {
        let ceph = Ceph::start(count);
        let mut cluster = Self::of(ceph.mounts(), 1);
        cluster.ceph = Some(ceph);
        cluster.serve(count, more);
        cluster
    }

    /// Each server is on a host of its own, behind a link.
    pub(crate) fn start_behind_links(count: usize, more: &[&str]) -> Self {
        let hosts = (0..count).map(Host::new).collect();
        let mut cluster = Self::of(mounts(), 1);
        cluster.hosts = hosts;
        cluster.serve(count, more);
        cluster
    }

    pub(crate) fn serve(&mut self, count: usize, more: &[&str]) {
        for number in 0..count {
            self.servers.push(Server::start(self.place(number, more)));
        }
    }

    /// Where and how the server of this number runs.
    pub(crate) fn place(&self, number: usize, more: &[&str]) -> Place {
        let settings = self.ceph.as_ref().map(|ceph| ("CEPH_CONF", ceph.settings().into()));
        Place {
            flags: self.flags(number, more),
            log: self.directory.path().join(format!("log-{number}")),
            variables: settings.into_iter().collect(),
            host: self.hosts.get(number).cloned(),
        }
    }

    /// None yet; servers find this etcd by addresses of this scheme, and with these flags.
    pub(crate) fn with_etcd(etcd: Etcd, scheme: &'static str, access: Vec<String>) -> Self {
        let mut cluster = Self::of_etcd(mounts(), etcd);
        (cluster.scheme, cluster.access) = (scheme, access);
        cluster
    }

    fn of(mounts: Vec<PathBuf>, members: usize) -> Self {
        Self::of_etcd(mounts, Etcd::start(members))
    }

    fn of_etcd(mounts: Vec<PathBuf>, etcd: Etcd) -> Self {
        let directory = tempfile::tempdir().unwrap();
        let made = mounts.first().map(|mount| tempfile::tempdir_in(mount).unwrap());
        let (servers, hosts) = (Vec::new(), Vec::new());
        let (scheme, access) = ("etcd", Vec::new());
        let cluster = Self { servers, etcd, scheme, access, directory, mounts, made, ceph: None, hosts };
        std::fs::create_dir(cluster.data()).unwrap();
        cluster
    }

    /// Flags of the server of this place.
    pub(crate) fn flags(&self, number: usize, more: &[&str]) -> Vec<String> {
        let mut flags = vec![
            "--export".to_owned(),
            format!("data={}", self.data_of(number).display()),
            "--cluster".to_owned(),
            format!("{}://{}/test", self.scheme, self.etcd_of(number)),
            "--server-name".to_owned(),
            format!("server-{number}"),
            "--term-ms".to_owned(),
            "2000".to_owned(),
            "--key-file".to_owned(),
            key_file(self.directory.path()).display().to_string(),
        ];
        flags.extend(self.access.iter().cloned());
        flags.extend(more.iter().map(|flag| (*flag).to_owned()));
        flags
    }

    /// Where a server finds the store.
    fn etcd_of(&self, number: usize) -> String {
        match self.hosts.get(number) {
            Some(host) => self.etcd.members_at(host.gateway),
            None => self.etcd.members(),
        }
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

    pub(crate) fn ceph(&mut self) -> &mut Ceph {
        self.ceph.as_mut().expect("it is on a Ceph")
    }

    /// Another mount of the Ceph, for the server of the number that is returned.
    pub(crate) fn add_mount(&mut self, name: &str, more: &[&str]) -> usize {
        self.ceph().mount(name, more);
        self.mounts = self.ceph().mounts();
        self.mounts.len() - 1
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
    let key = parse_key_file(&key_line()).unwrap().swap_remove(0).key;
    let mut config = Config { key: Some(key), ..Config::default() };
    config.reconnect.time_max = std::time::Duration::from_secs(120);
    config.reconnect.attempts_max = u32::MAX;
    config
}
