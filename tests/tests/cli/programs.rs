//! The two programs, built as this test was, and a server to try commands on.

use std::ffi::{OsStr, OsString};
use std::io::{BufRead, BufReader};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Output, Stdio};
use std::sync::OnceLock;

use dafs_client::{Config, Session};
use dafs_proto::transport::Address;
use dafs_tests::harness::{On, key_for};
use dafs_tests::port::Port;
use dafs_tests::program::key_file;
use tempfile::TempDir;

/// A server program with the exports `data` (a directory) and `mem` (memory). Ends with the test.
pub(crate) struct World {
    server: Child,
    on: On,
    address: String,
    _port: Option<Port>,
    directory: TempDir,
}

/// What a command did.
#[derive(Debug)]
pub(crate) struct Ran {
    pub(crate) code: i32,
    pub(crate) stdout: Vec<u8>,
    pub(crate) stderr: String,
}

impl World {
    pub(crate) fn start(on: On) -> Self {
        Self::start_with(on, |_, _| {})
    }

    /// Starts a server with more flags, given the directory of the test.
    pub(crate) fn start_with(on: On, more: impl FnOnce(&mut Command, &Path)) -> Self {
        let directory = tempfile::tempdir().unwrap();
        std::fs::create_dir(directory.path().join("data")).unwrap();
        let (listener, port) = on.place(directory.path());
        let listen = listener.to_string();
        let (server, address) = serve(directory.path(), listen.trim_start_matches("dafs+"), more);
        Self { server, on, address, _port: port, directory }
    }

    /// Ends the server as a crash would, and starts another in its place.
    pub(crate) fn crash_and_restart(&mut self) {
        self.kill();
        self.restart();
    }

    /// Starts a server again where the killed one was.
    pub(crate) fn restart(&mut self) {
        self.restart_with(|_, _| {});
    }

    /// As [`World::restart`], with more flags.
    pub(crate) fn restart_with(&mut self, more: impl FnOnce(&mut Command, &Path)) {
        let listen = self.address.strip_prefix("dafs+").unwrap();
        let (server, address) = serve(self.directory.path(), listen, more);
        assert_eq!(address, self.address, "{:?}", self.on);
        self.server = server;
    }

    /// The server's process.
    pub(crate) fn server_id(&self) -> u32 {
        self.server.id()
    }

    /// The address of the server.
    pub(crate) fn server(&self) -> &str {
        &self.address
    }

    /// Where it listens, for who speaks the protocol by hand.
    pub(crate) fn address(&self) -> Address {
        match self.address.split_once("://") {
            Some(("dafs+tcp", place)) => Address::Tcp(place.parse().unwrap()),
            Some(("dafs+shm", place)) => Address::Shm(place.into()),
            _ => panic!("{}", self.address),
        }
    }

    /// A session with it, with a key where it demands one.
    pub(crate) fn session(&self) -> dafs_client::Result<Session> {
        let key = key_for(&self.on.listener(self.directory.path()));
        Session::connect(&self.address, &Config { key, ..Config::default() })
    }

    /// The address of `path`, which begins with the export.
    pub(crate) fn url(&self, path: &str) -> String {
        match self.address.starts_with("dafs+shm") {
            true => format!("{}:/{path}", self.address),
            false => format!("{}/{path}", self.address),
        }
    }

    /// As [`World::url`], of any bytes.
    pub(crate) fn url_os(&self, path: &OsStr) -> OsString {
        let mut url = OsString::from(self.url(""));
        url.push(path);
        url
    }

    /// The directory behind the export `data`.
    pub(crate) fn data(&self) -> PathBuf {
        self.directory.path().join("data")
    }

    /// A path for the test's own files.
    pub(crate) fn local(&self, name: &str) -> PathBuf {
        self.directory.path().join(name)
    }

    /// Ends the server as a crash would.
    pub(crate) fn kill(&mut self) {
        self.server.kill().unwrap();
        self.server.wait().unwrap();
    }
}

impl Drop for World {
    fn drop(&mut self) {
        let _ = self.server.kill();
        let _ = self.server.wait();
    }
}

impl Ran {
    /// It did what it should, and said nothing about it.
    #[track_caller]
    pub(crate) fn succeeded(self) -> Self {
        assert_eq!((self.code, self.stderr.as_str()), (0, ""), "{}", self.text());
        self
    }

    /// It failed with this exit status, and said all of these words.
    #[track_caller]
    pub(crate) fn failed(self, code: i32, words: &[&str]) -> Self {
        assert_eq!(self.code, code, "{self:?}");
        for word in words {
            assert!(self.stderr.contains(word), "{word:?} is not in: {}", self.stderr);
        }
        assert!(!self.stderr.contains("panicked"), "{}", self.stderr);
        self
    }

    pub(crate) fn text(&self) -> String {
        String::from_utf8_lossy(&self.stdout).into_owned()
    }
}

/// Starts a server program; returns it and where it listens.
fn serve(directory: &Path, listen: &str, more: impl FnOnce(&mut Command, &Path)) -> (Child, String) {
    let mut command = Command::new(program("dafs-server"));
    command.arg("--export").arg(format!("data={}", directory.join("data").display()));
    command.args(["--export", "mem=mem:1G", "--no-calibrate", "--listen", listen]);
    if listen.starts_with("verbs:") {
        command.arg("--key-file").arg(key_file(directory));
    }
    more(&mut command, directory);
    let mut server = command.stdout(Stdio::piped()).stderr(Stdio::null()).spawn().unwrap();
    let mut line = String::new();
    BufReader::new(server.stdout.take().unwrap()).read_line(&mut line).unwrap();
    let address =
        line.trim().strip_prefix("listening ").expect("the server says where it listens").to_owned();
    (server, address)
}

/// Runs `dafs` to its end.
pub(crate) fn dafs<S: AsRef<OsStr>>(arguments: impl IntoIterator<Item = S>) -> Ran {
    ran(command(arguments).output().unwrap())
}

/// `dafs`, ready to be run, in a known environment.
pub(crate) fn command<S: AsRef<OsStr>>(arguments: impl IntoIterator<Item = S>) -> Command {
    // Also where the test was started to ignore signals, as by nohup(1) and by scripts in the background.
    let mut command = Command::new("env");
    command.args(["--default-signal=HUP,INT,QUIT,TERM", "--"]).arg(program("dafs"));
    command.args(arguments).env_remove("DAFS_KEY_FILE").env("TZ", "UTC").stdin(Stdio::null());
    // On one that can do nothing, nothing moves.
    command.env("TERM", "xterm");
    if command.get_args().any(|word| word.as_encoded_bytes().starts_with(b"dafs+verbs:")) {
        static KEYS: OnceLock<PathBuf> = OnceLock::new();
        // Where builds put such things: nobody would know when to remove it.
        command.env("DAFS_KEY_FILE", KEYS.get_or_init(|| key_file(Path::new(env!("CARGO_TARGET_TMPDIR")))));
    }
    command
}

fn ran(output: Output) -> Ran {
    Ran {
        code: output.status.code().unwrap_or(-1),
        stdout: output.stdout,
        stderr: String::from_utf8_lossy(&output.stderr).into_owned(),
    }
}

/// A program of the workspace, built before it is first used: this test is of another package, for which cargo does not build programs.
pub(crate) fn program(name: &str) -> PathBuf {
    static DIRECTORY: OnceLock<PathBuf> = OnceLock::new();
    DIRECTORY.get_or_init(build).join(name)
}

fn build() -> PathBuf {
    // <target>/<profile>/deps/<this test>
    let test = std::env::current_exe().unwrap();
    let directory = test.ancestors().nth(2).unwrap().to_owned();
    if std::env::var_os("DAFS_PROGRAMS_BUILT").is_some() {
        // With this test: as `cargo xtask test` does it.
        return directory;
    }
    let profile = match directory.file_name().unwrap().to_str().unwrap() {
        "debug" => "dev",
        name => name,
    };
    let built = Command::new(std::env::var_os("CARGO").unwrap_or_else(|| "cargo".into()))
        .current_dir(env!("CARGO_MANIFEST_DIR"))
        // With this package, so that features are those this test was built with.
        .args([
            "build",
            "--quiet",
            "--locked",
            "-p",
            "dafs-cli",
            "-p",
            "dafs-bench",
            "-p",
            "dafs-server",
            "-p",
            "dafs-tests",
            "--bins",
        ])
        .args(cfg!(feature = "verbs").then_some("--features=dafs-tests/verbs"))
        .args(["--profile", profile, "--target-dir"])
        .arg(directory.parent().unwrap())
        .status()
        .unwrap();
    assert!(built.success(), "the programs do not build");
    directory
}
