//! A `dafs-server` of one's own: found or built, started, listened to, and stopped.

use std::ffi::OsString;
use std::io::{BufRead, BufReader, Read, Write};
use std::net::{IpAddr, Ipv4Addr, SocketAddr};
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::mpsc;
use std::time::Duration;

use anyhow::{Context, anyhow, bail};
use dafs_client::Key;

use crate::cli::Poll;
use crate::links::Host;
use crate::sys;

/// How long a server may take to say that it listens.
const START_TIMEOUT: Duration = Duration::from_secs(20);
/// How long it may take to end after SIGTERM, before SIGKILL.
const STOP_TIMEOUT: Duration = Duration::from_secs(2);

/// What a server is started with.
#[derive(Debug, Clone)]
pub struct ServerOptions {
    /// The directory exported as `bench`.
    pub directory: PathBuf,
    /// Where its shared-memory socket goes.
    pub socket: PathBuf,
    /// How it waits.
    pub poll: Poll,
    /// Whether it bypasses the page cache.
    pub direct_io: bool,
    /// Whether replies leave together.
    pub coalescing: bool,
    /// A directory exported as `disk`, that bypasses the page cache.
    pub disk: Option<PathBuf>,
    /// Bytes of a chunk of large transfers, and chunks in progress at once, where not its own choice.
    pub pipeline: Option<(usize, usize)>,
    /// What it has to have room for.
    pub room: Room,
    /// Address of the RDMA device on which it listens too.
    pub verbs: Option<IpAddr>,
    /// CPUs that it runs on; anywhere when empty.
    pub cpus: Vec<usize>,
    /// The host that it runs on, where that is not the client's, and the key that it demands.
    pub host: Option<(Host, Key)>,
    /// Its workers.
    pub workers: usize,
    /// The store of its cluster.
    pub store: Option<String>,
}

/// What a server is asked for.
#[derive(Debug, Clone, Copy, Default)]
pub struct Room {
    /// Operations of one session at once.
    pub slots: usize,
    /// Sessions of the benchmark's clients.
    pub sessions: usize,
}

impl Room {
    /// What of it a server has by itself.
    const DEFAULT: Self = Self { slots: 64, sessions: 4000 };
    /// Sessions that are there beside: limits, probes, and those of other rounds that end.
    const OTHERS: usize = 96;

    fn arguments(self) -> Vec<String> {
        let mut arguments = Vec::new();
        if self.slots > Self::DEFAULT.slots {
            arguments.extend(["--slots-max".to_owned(), self.slots.to_string()]);
        }
        if self.sessions > Self::DEFAULT.sessions {
            arguments.extend(["--sessions-max".to_owned(), (self.sessions + Self::OTHERS).to_string()]);
        }
        arguments
    }
}

/// A running `dafs-server`; stopped when dropped, and killed when the thread that started it ends otherwise.
#[derive(Debug)]
pub struct Server {
    child: Child,
    addresses: Vec<String>,
    key: Option<(Key, PathBuf)>,
}

impl Server {
    /// Starts `binary` on loopback TCP, on a socket, and on an RDMA device if one is given, and waits until it serves all.
    pub fn start(binary: &Path, options: &ServerOptions) -> anyhow::Result<Self> {
        // A key vouches for no user: the client would be nobody without this.
        let user = if options.verbs.is_some() || options.host.is_some() { ",squash=server" } else { "" };
        for directory in [Some(&options.directory), options.disk.as_ref()].into_iter().flatten() {
            if directory.as_os_str().as_encoded_bytes().contains(&b',') {
                bail!(
                    "cannot export {}: dafs-server takes a comma for the end of its name",
                    directory.display()
                );
            }
        }
        let mut export = OsString::from("bench=");
        export.push(&options.directory);
        export.push(user);
        let disk = options.disk.as_ref().map(|directory| {
            let mut export = OsString::from("disk=");
            export.push(directory);
            export.push(user);
            export.push(",direct_io");
            export
        });
        let mut listen_shm = OsString::from("shm://");
        listen_shm.push(&options.socket);
        let mut command = Command::new(binary);
        for export in [Some(export), disk].into_iter().flatten() {
            command.arg("--export").arg(export);
        }
        let tcp = options.host.as_ref().map_or(Ipv4Addr::LOCALHOST, |(host, _)| host.address);
        command.args(["--listen", &format!("tcp://{tcp}:0"), "--listen"]).arg(listen_shm);
        if let Some(ip) = options.verbs {
            command.arg("--listen").arg(format!("verbs://{}", SocketAddr::new(ip, 0)));
        }
        // No RDMA device has a loopback address, and beyond loopback a server demands a key.
        let key = match &options.host {
            Some((host, key)) => {
                host.place(&mut command);
                Some(key.clone())
            }
            None => options.verbs.map(|_| new_key()).transpose()?,
        };
        let key = key.map(|key| (key, options.socket.with_extension("key")));
        if let Some((key, path)) = &key {
            write_key(path, key).with_context(|| format!("cannot write {}", path.display()))?;
            command.arg("--key-file").arg(path);
        }
        // What it tells operators of every session would be noise beside results.
        command.args(["--poll", options.poll.name(), "--log", "warn"]);
        command.args(options.room.arguments());
        // Also one: rows of machines with more CPUs are compared with those of others.
        command.args(["--workers", &options.workers.to_string()]);
        if let Some(store) = &options.store {
            command.args(["--cluster", store]);
        }
        if !options.coalescing {
            command.arg("--no-coalescing");
        }
        if let Some((chunk, depth)) = options.pipeline {
            command.args(["--chunk-size", &chunk.to_string(), "--pipeline-depth", &depth.to_string()]);
        }
        if options.direct_io {
            command.arg("--direct-io");
        }
        command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::inherit());
        sys::tether(&mut command, &options.cpus);
        let child = command.spawn().with_context(|| format!("cannot start {}", binary.display()))?;
        let mut server = Self { child, addresses: Vec::new(), key };
        server.await_listening(2 + usize::from(options.verbs.is_some()))?;
        Ok(server)
    }

    /// The address of `export` over the transport named `transport` (`tcp`, `shm`), as clients write it.
    pub fn address(&self, transport: &str, export: &str) -> anyhow::Result<String> {
        let scheme = format!("dafs+{transport}://");
        let address = self.addresses.iter().find(|address| address.starts_with(&scheme));
        let address =
            address.with_context(|| format!("cannot use {transport}: dafs-server does not listen on it"))?;
        // After a socket's path a colon says where the path of the export begins.
        let separator = if transport == "shm" { ":" } else { "" };
        Ok(format!("{address}{separator}/{export}"))
    }

    /// The key that it demands, where it listens beyond loopback.
    pub fn key(&self) -> Option<&Key> {
        self.key.as_ref().map(|(key, _)| key)
    }

    /// The file that this key is in.
    pub fn key_file(&self) -> Option<&Path> {
        self.key.as_ref().map(|(_, path)| path.as_path())
    }

    /// What it has used since it was started.
    pub fn usage(&self) -> anyhow::Result<sys::Usage> {
        sys::usage(&self.child.id().to_string()).context("cannot tell what the server uses")
    }

    /// Time that it has spent on CPUs, in nanoseconds.
    pub fn cpu_ns(&self) -> std::io::Result<u64> {
        sys::cpu_ns_of(self.child.id())
    }

    /// Stops it where it stands, so that it takes no CPU.
    pub fn pause(&self) -> anyhow::Result<()> {
        Ok(sys::signal_child(self.child.id(), libc::SIGSTOP)?)
    }

    /// Lets it go on.
    pub fn resume(&self) -> anyhow::Result<()> {
        Ok(sys::signal_child(self.child.id(), libc::SIGCONT)?)
    }

    fn await_listening(&mut self, count: usize) -> anyhow::Result<()> {
        let stdout = self.child.stdout.take().context("the server has no standard output")?;
        let (send, lines) = mpsc::channel();
        // Reading goes on to the end, or a server that says more would block on a full pipe.
        std::thread::spawn(move || {
            for line in BufReader::new(stdout).lines().map_while(Result::ok) {
                let _ = send.send(line);
            }
        });
        while self.addresses.len() < count {
            match lines.recv_timeout(START_TIMEOUT) {
                Ok(line) => {
                    self.addresses.extend(line.strip_prefix("listening ").map(|text| text.trim().to_owned()))
                }
                Err(mpsc::RecvTimeoutError::Timeout) => {
                    bail!("cannot start dafs-server: no output for {START_TIMEOUT:?}")
                }
                Err(mpsc::RecvTimeoutError::Disconnected) => {
                    let status = self.child.wait()?;
                    bail!("cannot start dafs-server: it ended ({status}); its messages are above");
                }
            }
        }
        Ok(())
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        stop_child(&mut self.child);
    }
}

/// A key by chance.
pub fn new_key() -> anyhow::Result<Key> {
    let mut secret = [0; 32];
    std::fs::File::open("/dev/urandom")
        .and_then(|mut random| random.read_exact(&mut secret))
        .context("cannot read /dev/urandom")?;
    Ok(Key { name: "bench".to_owned(), secret: secret.as_slice().into() })
}

fn write_key(path: &Path, key: &Key) -> std::io::Result<()> {
    let mut options = std::fs::OpenOptions::new();
    let mut file = options.write(true).create_new(true).mode(0o600).open(path)?;
    let secret: String = key.secret.iter().map(|byte| format!("{byte:02x}")).collect();
    writeln!(file, "{}:{secret}", key.name)
}

/// Ends `child`: SIGTERM (and SIGCONT, for it may be stopped), then SIGKILL once it has had its time.
pub(crate) fn stop_child(child: &mut Child) {
    for signal in [libc::SIGTERM, libc::SIGCONT] {
        let _ = sys::signal_child(child.id(), signal);
    }
    let interval = crate::progress::POLL_INTERVAL;
    for _ in 0..STOP_TIMEOUT.as_millis() / interval.as_millis() {
        if !matches!(child.try_wait(), Ok(None)) {
            return;
        }
        std::thread::sleep(interval);
    }
    let _ = child.kill();
    let _ = child.wait();
}

/// A program of dafs beside this one. Where this program was built by cargo, the other is brought up to date first:
/// `cargo run --bin dafs-bench` builds only the benchmark.
pub fn find_program(name: &str, say: impl Fn(&str)) -> anyhow::Result<PathBuf> {
    let own = std::env::current_exe().context("cannot tell where this program is")?;
    let folder = own.parent().ok_or_else(|| anyhow!("{} is in no folder", own.display()))?;
    let binary = folder.join(name);
    let workspace = Path::new(env!("CARGO_MANIFEST_DIR")).parent().unwrap_or(Path::new("/"));
    let built_by_cargo = folder.parent().is_some_and(|target| target.join("CACHEDIR.TAG").exists());
    if built_by_cargo && workspace.join("Cargo.toml").exists() && stale(&binary, &own) {
        build(name, folder, workspace, &say)?;
    }
    if !binary.exists() {
        bail!(
            "cannot start {}: no such file or directory; build it{}",
            binary.display(),
            if name == "dafs-server" { ", or name a running server with --server" } else { "" }
        );
    }
    Ok(binary)
}

/// Whether `binary` is missing, or older than this program.
fn stale(binary: &Path, own: &Path) -> bool {
    let modified = |path: &Path| std::fs::metadata(path).and_then(|metadata| metadata.modified()).ok();
    modified(binary) < modified(own)
}

fn build(name: &str, folder: &Path, workspace: &Path, say: &impl Fn(&str)) -> anyhow::Result<()> {
    let release = folder.file_name().is_some_and(|name| name == "release");
    let mut command = Command::new(std::env::var_os("CARGO").unwrap_or_else(|| "cargo".into()));
    command.current_dir(workspace).args(["build", "--quiet", "--bin", name]);
    let package = if name == "dafs" { "dafs-cli" } else { name };
    command.args(cfg!(feature = "verbs").then(|| format!("--features={package}/verbs")));
    if release {
        command.arg("--release");
    }
    command.args(folder.parent().map(|target| format!("--target-dir={}", target.display())));
    say(&format!("building {name} (cargo build --bin {name}) …"));
    let status = command.stdin(Stdio::null()).status().context("cannot run cargo to build dafs-server")?;
    if !status.success() {
        bail!("cannot build {name}: cargo ended ({status}); its messages are above");
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A shell script in place of a server, to see what is made of its lines and of its end.
    fn start(script: &str) -> anyhow::Result<(tempfile::TempDir, Server)> {
        let directory = tempfile::tempdir().unwrap();
        let binary = directory.path().join("server.sh");
        // A shell makes it: another test that starts a program while this has it open for writing would keep it busy for a moment.
        let mut writes = Command::new("/bin/sh");
        writes.args(["-c", "printf '#!/bin/sh\\n%s\\n' \"$1\" > \"$0\" && chmod 755 \"$0\""]).arg(&binary);
        assert!(writes.arg(script).status().unwrap().success());
        Server::start(&binary, &options(directory.path())).map(|server| (directory, server))
    }

    fn options(directory: &Path) -> ServerOptions {
        ServerOptions {
            directory: directory.to_owned(),
            socket: directory.join("s.sock"),
            poll: Poll::Adaptive,
            direct_io: false,
            coalescing: true,
            disk: None,
            pipeline: None,
            room: Room::default(),
            verbs: None,
            cpus: Vec::new(),
            host: None,
            workers: 1,
            store: None,
        }
    }

    #[test]
    fn server_is_asked_for_room_where_it_has_less_by_itself() {
        assert_eq!(Room { slots: 64, sessions: 1 }.arguments(), Vec::<String>::new());
        let arguments = Room { slots: 1000, sessions: 10_000 }.arguments();
        assert_eq!(arguments, ["--slots-max", "1000", "--sessions-max", "10096"]);
    }

    #[test]
    fn server_addresses_are_those_it_printed() {
        let script = "echo 'listening dafs+tcp://127.0.0.1:4000'; echo hello
            echo 'listening dafs+shm:///tmp/d.sock'; exec sleep 60";
        let (_directory, server) = start(script).unwrap();
        assert_eq!(server.address("tcp", "bench").unwrap(), "dafs+tcp://127.0.0.1:4000/bench");
        assert_eq!(server.address("shm", "disk").unwrap(), "dafs+shm:///tmp/d.sock:/disk");
        assert!(server.address("verbs", "bench").is_err());
    }

    #[test]
    fn directory_with_a_comma_is_refused_by_name() {
        let directory = tempfile::tempdir().unwrap();
        let options = ServerOptions { directory: "/tmp/a,b".into(), ..options(directory.path()) };
        let error = Server::start(Path::new("/nonexistent"), &options).unwrap_err().to_string();
        assert!(error.contains("cannot export /tmp/a,b"), "{error}");
    }

    #[test]
    fn server_that_ends_before_it_listens_is_an_error_with_its_status() {
        let error = start("echo 'listening dafs+tcp://127.0.0.1:4000'; exit 3").unwrap_err();
        assert!(error.to_string().contains("exit status: 3"), "{error}");
    }

    #[test]
    fn server_that_is_paused_is_stopped_all_the_same() {
        let script = "echo 'listening dafs+tcp://a'; echo 'listening dafs+shm://b'; exec sleep 60";
        let (_directory, server) = start(script).unwrap();
        let process = PathBuf::from(format!("/proc/{}", server.child.id()));
        server.pause().unwrap();
        drop(server);
        assert!(!process.exists());
    }
}
