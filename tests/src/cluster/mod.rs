//! Servers of a cluster as processes of their own, with an etcd.

pub mod ceph;
pub mod etcd;
pub mod links;
pub mod losses;

use std::ffi::OsString;
use std::fs::File;
use std::io::{BufRead, BufReader};
use std::path::PathBuf;
use std::process::{Child, ChildStdout, Command, Stdio};

use crate::harness::key_line;
use crate::port::Port;
use crate::program::{Signal, key_file, program, signal};
use dafs_client::{Config, Session};
use dafs_proto::session::parse_key_file;

use self::ceph::Ceph;
use self::etcd::Etcd;
use self::links::Host;

/// Where a server runs, and as what.
#[derive(Clone, Debug)]
pub struct Place {
    /// Besides those that every server has.
    pub flags: Vec<String>,
    /// What it says goes there.
    pub log: PathBuf,
    /// Of its environment.
    pub variables: Vec<(&'static str, OsString)>,
    /// Of its host, if that is not this one.
    pub host: Option<Host>,
}

/// A server of a cluster.
pub struct Server {
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

    /// One that starts.
    pub fn start(place: Place) -> Self {
        Self::try_start(place).unwrap_or_else(|log| panic!("the server does not start: {log}"))
    }

    /// What it said, where it refuses to start.
    pub fn try_start(place: Place) -> Result<Self, String> {
        let port = Port::new();
        match Self::launch(&port, &place) {
            Some((child, stdout)) => Ok(Self { child, _stdout: stdout, port, place }),
            None => Err(std::fs::read_to_string(&place.log).unwrap_or_default()),
        }
    }

    /// Where it listens.
    pub fn address(&self) -> String {
        address_of(&self.port, &self.place)
    }

    /// Kills it, and waits until it has ended.
    pub fn kill(&mut self) {
        self.child.kill().unwrap();
        self.child.wait().unwrap();
    }

    /// Starts another in its place.
    pub fn start_again(&mut self) {
        let started = Self::launch(&self.port, &self.place);
        (self.child, self._stdout) =
            started.unwrap_or_else(|| panic!("it does not start again:\n{}", self.said()));
    }

    /// Asks it to end, and waits until it has.
    pub fn end(&mut self) {
        signal(self.child.id(), Signal::TERM).unwrap();
        assert!(self.child.wait().unwrap().success(), "{}", self.said());
    }

    /// It is stopped where it is.
    pub fn stop(&self) {
        signal(self.child.id(), Signal::STOP).unwrap();
    }

    /// It goes on where it was stopped.
    pub fn go_on(&self) {
        signal(self.child.id(), Signal::CONT).unwrap();
    }

    /// Waits until it has ended by itself.
    pub fn wait(&mut self) {
        self.child.wait().unwrap();
    }

    /// What it has said.
    pub fn said(&self) -> String {
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
pub struct Cluster {
    /// In the order in which they were started.
    pub servers: Vec<Server>,
    /// Their store.
    pub etcd: Etcd,
    /// How servers find it, and who they are there.
    pub scheme: &'static str,
    /// See [`Self::scheme`].
    pub access: Vec<String>,
    /// Of what they say, and of their export where nothing is mounted.
    pub directory: tempfile::TempDir,
    mounts: Vec<PathBuf>,
    /// In the first of the mounts.
    made: Option<tempfile::TempDir>,
    /// What the mounts are of; it goes last.
    pub ceph: Option<Ceph>,
    /// Of the servers, if they have hosts of their own.
    pub hosts: Vec<Host>,
    /// Its clients have no keys, and there is a second export.
    is_for_suites: bool,
}

/// Where one file system is mounted several times, as on several hosts: `DAFS_CLUSTER_MOUNTS`, separated by colons. Each server exports
/// the same directory of it by another of these. Without, all share a temporary directory.
fn mounts() -> Vec<PathBuf> {
    std::env::var_os("DAFS_CLUSTER_MOUNTS")
        .map(|mounts| std::env::split_paths(&mounts).collect())
        .unwrap_or_default()
}

/// The command that cuts a server off: it ends, and what it has under way with it.
pub const FENCE_COMMAND: &str =
    "kill -KILL \"$DAFS_FENCE_PID\" 2>/dev/null; while [ -e /proc/$DAFS_FENCE_PID/root/. ]; do :; done";

impl Cluster {
    /// With so many servers.
    pub fn start(count: usize, more: &[&str]) -> Self {
        let mut cluster = Self::of(mounts(), 1);
        cluster.serve(count, more);
        cluster
    }

    /// For suites: a second export `mem`, and no keys.
    pub fn of_suites(count: usize, more: &[&str]) -> Self {
        Self::of(mounts(), 1).for_suites(count, more)
    }

    /// The same, with a mount of its own of a Ceph for each.
    pub fn of_suites_on_ceph(count: usize) -> Self {
        Self::on_ceph(count).for_suites(count, &[])
    }

    fn for_suites(mut self, count: usize, more: &[&str]) -> Self {
        std::fs::create_dir(self.data().with_file_name("mem")).unwrap();
        self.is_for_suites = true;
        self.serve(count, more);
        self
    }

    /// The store has so many members.
    pub fn start_with_members(count: usize, members: usize, more: &[&str]) -> Self {
        let mut cluster = Self::of(mounts(), members);
        cluster.serve(count, more);
        cluster
    }

    /// Each server exports a mount of its own of a Ceph.
    pub fn start_on_ceph(count: usize, more: &[&str]) -> Self {
        let mut cluster = Self::on_ceph(count);
        cluster.serve(count, more);
        cluster
    }

    fn on_ceph(mounts: usize) -> Self {
        let ceph = Ceph::start(&vec![None; mounts], None);
        let mut cluster = Self::of(ceph.mounts(), 1);
        cluster.ceph = Some(ceph);
        cluster
    }

    /// The same, with each server and its mount on a host of its own, behind a link.
    pub fn start_on_ceph_behind_links(count: usize, more: &[&str]) -> Self {
        let hosts: Vec<_> = std::iter::repeat_with(Host::start).take(count).collect();
        let each: Vec<_> = hosts.iter().cloned().map(Some).collect();
        let ceph = Ceph::start(&each, Some(Host::start()));
        let mut cluster = Self::of(ceph.mounts(), 1);
        (cluster.ceph, cluster.hosts) = (Some(ceph), hosts);
        cluster.serve(count, more);
        cluster
    }

    /// Each server is on a host of its own, behind a link.
    pub fn start_behind_links(count: usize, more: &[&str]) -> Self {
        let hosts = std::iter::repeat_with(Host::start).take(count).collect();
        let mut cluster = Self::of(mounts(), 1);
        cluster.hosts = hosts;
        cluster.serve(count, more);
        cluster
    }

    /// Starts so many servers, with these flags besides.
    pub fn serve(&mut self, count: usize, more: &[&str]) {
        for number in 0..count {
            self.servers.push(Server::start(self.place(number, more)));
        }
    }

    /// Where and how the server of this number runs.
    pub fn place(&self, number: usize, more: &[&str]) -> Place {
        let settings = self.ceph.as_ref().map(|ceph| ("CEPH_CONF", ceph.settings().into()));
        Place {
            flags: self.flags(number, more),
            log: self.directory.path().join(format!("log-{number}")),
            variables: settings.into_iter().collect(),
            host: self.hosts.get(number).cloned(),
        }
    }

    /// None yet; servers find this etcd by addresses of this scheme, and with these flags.
    pub fn with_etcd(etcd: Etcd, scheme: &'static str, access: Vec<String>) -> Self {
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
        let cluster = Self {
            servers,
            etcd,
            scheme,
            access,
            directory,
            mounts,
            made,
            ceph: None,
            hosts,
            is_for_suites: false,
        };
        std::fs::create_dir(cluster.data()).unwrap();
        cluster
    }

    /// Flags of the server of this place.
    pub fn flags(&self, number: usize, more: &[&str]) -> Vec<String> {
        let mut flags = vec![
            "--export".to_owned(),
            format!("data={}", self.data_of(number).display()),
            "--cluster".to_owned(),
            format!("{}://{}/test", self.scheme, self.etcd_of(number)),
            "--server-name".to_owned(),
            format!("server-{number}"),
            "--term-ms".to_owned(),
            "2000".to_owned(),
        ];
        if self.is_for_suites {
            let mem = self.data_of(number).with_file_name("mem");
            flags.extend(["--export".to_owned(), format!("mem={}", mem.display())]);
        } else {
            flags.extend(["--key-file".to_owned(), key_file(self.directory.path()).display().to_string()]);
        }
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

    /// The directory that they export.
    pub fn data(&self) -> PathBuf {
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

    /// The Ceph that it is on.
    pub fn ceph(&mut self) -> &mut Ceph {
        self.ceph.as_mut().expect("it is on a Ceph")
    }

    /// Another mount of the Ceph, for the server of the number that is returned.
    pub fn add_mount(&mut self, name: &str, more: &[&str]) -> usize {
        self.ceph().mount(name, more);
        self.mounts = self.ceph().mounts();
        self.mounts.len() - 1
    }

    /// The address that names all servers, from this one on.
    pub fn url(&self, first: usize) -> String {
        format!("{}/data", self.addresses(first))
    }

    /// The same, without an export.
    pub fn addresses(&self, first: usize) -> String {
        let count = self.servers.len();
        let addresses: Vec<String> =
            (first..first + count).map(|number| self.servers[number % count].address()).collect();
        format!("dafs+tcp://{}", addresses.join(","))
    }

    /// A session whose first server is this one.
    pub fn session(&self, first: usize) -> Session {
        Session::connect(self.url(first), &config()).unwrap()
    }

    /// Times that one has taken over from another.
    pub fn takeovers(&self) -> usize {
        self.said().matches("took over server=").count()
    }

    /// Waits until one has taken over from another so many times.
    pub fn await_takeovers(&self, times: usize) {
        while self.takeovers() < times {
            std::thread::yield_now();
        }
    }

    /// What all have said.
    pub fn said(&self) -> String {
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
pub fn config() -> Config {
    let key = parse_key_file(&key_line()).unwrap().swap_remove(0).key;
    let mut config = Config { key: Some(key), ..Config::default() };
    config.reconnect.time_max = std::time::Duration::from_secs(120);
    config.reconnect.attempts_max = u32::MAX;
    config
}
