//! The real `dafs-server` as a process of its own.

use std::fs::File;
use std::io::{BufRead, BufReader, Read, Write};
use std::net::TcpStream;
use std::path::{Path, PathBuf};
use std::process::{Child, ChildStdout, Command, ExitStatus, Stdio};
use std::sync::OnceLock;

use dafs_client::{Config, Session};
use dafs_proto::transport::Address;
pub use rustix::process::Signal;
use rustix::process::{Pid, kill_process};

use crate::harness::{On, key_for, key_line};
use crate::port::Port;

/// What the server says goes to this file.
const LOG: &str = "log";

/// Sends a signal to a process of this host. A bare Debian has no kill(1).
pub fn signal(process: u32, signal: Signal) -> std::io::Result<()> {
    let process = i32::try_from(process).ok().and_then(Pid::from_raw).expect("the number of a process");
    Ok(kill_process(process, signal)?)
}

/// Makes a program of these words. A program of this process does it: another test that starts one while this has the file open for
/// writing would keep it busy for a moment, and nobody could run it.
pub fn write_script(path: &Path, words: &str) {
    let mut writes = Command::new("/bin/sh");
    writes.args(["-c", "cat > \"$0\" && chmod 755 \"$0\""]).arg(path).stdin(Stdio::piped());
    let mut writes = writes.spawn().expect("a shell starts");
    writes.stdin.take().expect("its input").write_all(words.as_bytes()).expect("it reads");
    assert!(writes.wait().expect("it ends").success(), "{} cannot be written", path.display());
}

/// A running server program with the exports `data` (a directory) and `mem` (memory). Killed when dropped.
pub struct Program {
    child: Child,
    /// Kept open: the server would fail to write to it.
    _stdout: BufReader<ChildStdout>,
    /// What starts it: before and behind where it listens.
    command: Command,
    flags: Vec<String>,
    address: Address,
    _port: Option<Port>,
    url: String,
    directory: tempfile::TempDir,
    metrics: Option<Port>,
}

impl Program {
    /// Starts it with these flags besides the exports and the listener.
    pub fn start(on: On, flags: &[&str]) -> Self {
        Self::start_limited(on, flags, None)
    }

    /// As [`Program::start`], with metrics.
    pub fn start_counted(on: On, flags: &[&str]) -> Self {
        let metrics = Port::new();
        let address = metrics.address().to_string();
        let mut program = Self::start(on, &[flags, &["--metrics", &address]].concat());
        program.metrics = Some(metrics);
        program
    }

    /// As [`Program::start`], with at most so many open files.
    pub fn start_limited(on: On, flags: &[&str], open_files_max: Option<u32>) -> Self {
        Self::start_exporting(on, "", flags, open_files_max)
    }

    /// As [`Program::start_limited`], with these options behind the export `data`.
    pub fn start_exporting(on: On, options: &str, flags: &[&str], open_files_max: Option<u32>) -> Self {
        let directory = tempfile::tempdir().expect("a temporary directory");
        let data = directory.path().join("data");
        std::fs::create_dir(&data).expect("the export's directory");
        let (listener, port) = on.place(directory.path());
        let program = program();
        let mut command = match open_files_max {
            None => Command::new(program),
            Some(max) => {
                let mut shell = Command::new("/bin/sh");
                shell.args(["-c", &format!("ulimit -n {max} && exec \"$0\" \"$@\"")]).arg(program);
                shell
            }
        };
        let data = format!("data={}{options}", data.display());
        command.args(["--export", &data, "--export", "mem=mem:1G"]);
        if key_for(&listener).is_some() {
            command.arg("--key-file").arg(key_file(directory.path()));
        }
        let mut flags: Vec<String> = flags.iter().map(|flag| (*flag).to_owned()).collect();
        if !flags.iter().any(|flag| flag == "--workers") {
            // As many on every machine: by default it depends on CPUs.
            flags.extend(["--workers", "1"].map(str::to_owned));
        }
        let (child, stdout, url) = launch((&command, &flags), &listener, directory.path());
        let address = match on {
            On::Tcp => Address::Tcp(url.trim_start_matches("dafs+tcp://").parse().expect("an address")),
            On::Shm => Address::Shm(PathBuf::from(url.trim_start_matches("dafs+shm://"))),
            #[cfg(feature = "verbs")]
            On::Verbs => Address::Verbs(url.trim_start_matches("dafs+verbs://").parse().expect("an address")),
        };
        Self { child, _stdout: stdout, command, flags, address, _port: port, url, directory, metrics: None }
    }

    /// Kills it and starts another in its place, on the same address.
    pub fn kill_and_start(&mut self) {
        self.kill();
        self.start_again();
    }

    /// Kills it.
    pub fn kill(&mut self) {
        self.child.kill().expect("it runs");
        self.child.wait().expect("it has ended");
    }

    /// Waits until it has ended, by itself or by a signal.
    pub fn wait(&mut self) -> ExitStatus {
        self.child.wait().expect("a child")
    }

    /// Starts another in the place of one that was killed, on the same address.
    pub fn start_again(&mut self) {
        let (child, stdout, _) = launch((&self.command, &self.flags), &self.address, self.directory.path());
        (self.child, self._stdout) = (child, stdout);
    }

    /// Where it listens.
    pub fn address(&self) -> &Address {
        &self.address
    }

    /// The same, as clients name it.
    pub fn url(&self) -> &str {
        &self.url
    }

    /// The process.
    pub fn id(&self) -> u32 {
        self.child.id()
    }

    /// What it has said on standard error.
    pub fn log(&self) -> String {
        std::fs::read_to_string(self.directory.path().join(LOG)).expect("its log")
    }

    /// What it answers to Prometheus; it was started by [`Program::start_counted`].
    pub fn metrics(&self) -> String {
        let metrics = self.metrics.as_ref().expect("a server with metrics");
        let mut stream = TcpStream::connect(metrics.address()).expect("metrics");
        stream.write_all(b"GET /metrics HTTP/1.0\r\n\r\n").expect("metrics");
        let mut text = String::new();
        stream.read_to_string(&mut text).expect("metrics");
        text
    }

    /// The value of one metric, its label with it, such as `dafs_budget_used{budget="sessions"}`.
    pub fn metric(&self, name: &str) -> f64 {
        let text = self.metrics();
        let line = text.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix(' '));
        line.and_then(|value| value.parse().ok()).unwrap_or_else(|| panic!("no {name} in:\n{text}"))
    }

    /// The directory behind the export `data`.
    pub fn data(&self) -> PathBuf {
        self.directory.path().join("data")
    }

    /// A directory for the test's own files.
    pub fn scratch(&self) -> &Path {
        self.directory.path()
    }

    /// A new session with these settings, and a key where the server demands one.
    pub fn session_with(&self, config: &Config) -> Session {
        self.try_session(config).expect("the session opens")
    }

    /// The same, where the server may refuse it.
    pub fn try_session(&self, config: &Config) -> dafs_client::Result<Session> {
        let key = config.key.clone().or_else(|| key_for(&self.address));
        Session::connect(&self.url, &Config { key, ..config.clone() })
    }

    /// A new session.
    pub fn session(&self) -> Session {
        self.session_with(&Config::default())
    }
}

impl Drop for Program {
    fn drop(&mut self) {
        // It may have ended by itself.
        let _ = self.child.kill();
        let _ = self.child.wait();
        if std::thread::panicking() {
            eprintln!("the server said:\n{}", self.log());
        }
    }
}

/// Starts what `what` says, at `listener`; the last is where it listens. Flags may name more listeners, of which it tells later.
fn launch(
    (what, flags): (&Command, &[String]),
    listener: &Address,
    directory: &Path,
) -> (Child, BufReader<ChildStdout>, String) {
    let listen = listener.to_string().trim_start_matches("dafs+").to_owned();
    let log = File::options().create(true).append(true).open(directory.join(LOG));
    let mut command = Command::new(what.get_program());
    command.args(what.get_args()).args(["--listen", &listen]).args(flags).env("DAFS_LOG", "warn");
    command.stdout(Stdio::piped()).stderr(log.expect("a file for the log"));
    let mut child = command.spawn().expect("the server program starts");
    let mut line = String::new();
    let mut stdout = BufReader::new(child.stdout.take().expect("its output is a pipe"));
    stdout.read_line(&mut line).expect("the server says where it listens");
    if line.is_empty() {
        let end = child.wait().expect("the server ends");
        let log = std::fs::read_to_string(directory.join(LOG)).unwrap_or_default();
        panic!("the server does not start, {end}: {log}");
    }
    let url = line.trim().strip_prefix("listening ").expect("a line for the listener").to_owned();
    (child, stdout, url)
}

/// Writes the key file of servers that other hosts could reach, and of their clients.
pub fn key_file(directory: &Path) -> PathBuf {
    let path = directory.join("keys");
    // Whoever else writes it writes the same: it is never seen in part. Nobody but its owner may read it.
    let mut file = tempfile::NamedTempFile::new_in(directory).expect("a key file");
    file.write_all(key_line().as_bytes()).expect("a key file");
    file.persist(&path).expect("a key file");
    path
}

/// The server program beside this test's executable; built when it is not there. (`cargo test` of the whole workspace builds it anew.)
pub fn program() -> &'static Path {
    static PROGRAM: OnceLock<PathBuf> = OnceLock::new();
    PROGRAM.get_or_init(|| {
        let what = ["--package", "dafs-server", "--bin", "dafs-server"];
        beside_this_test("dafs-server", &what, "dafs-server/verbs")
    })
}

/// The development command, as `cargo xtask`; beside this test's executable where it was built with that.
pub fn xtask() -> Command {
    let root = Path::new(concat!(env!("CARGO_MANIFEST_DIR"), "/.."));
    let test = std::env::current_exe().expect("the test's own path");
    let own = test.parent().and_then(Path::parent).expect("target/PROFILE/deps").join("xtask");
    let mut command = match own.exists() {
        true => Command::new(own),
        false => {
            let mut cargo = Command::new(env!("CARGO"));
            cargo.args(["run", "--quiet", "--package", "xtask", "--"]);
            cargo
        }
    };
    command.env("CARGO_MANIFEST_DIR", root.join("xtask")).current_dir(root);
    command
}

/// A product of cargo beside this test's executable; built, with this feature where the tests have verbs, when it is not there.
pub fn beside_this_test(name: &str, what: &[&str], verbs: &str) -> PathBuf {
    let test = std::env::current_exe().expect("the test's own path");
    let profile = test.parent().and_then(Path::parent).expect("target/PROFILE/deps");
    let product = profile.join(name);
    if !product.exists() {
        let mut build = Command::new(env!("CARGO"));
        build.arg("build").args(what).current_dir(concat!(env!("CARGO_MANIFEST_DIR"), "/.."));
        build.arg("--target-dir").arg(profile.parent().expect("target"));
        build.args(cfg!(feature = "verbs").then(|| format!("--features={verbs}")));
        build.args(profile.ends_with("release").then_some("--release"));
        assert!(build.status().expect("cargo runs").success(), "{name} was not built");
    }
    product
}
