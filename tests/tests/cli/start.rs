//! Servers that start where the system is not as usual.

use std::fs;
use std::io::{BufRead, BufReader};
use std::os::unix::fs::PermissionsExt;
use std::path::Path;
use std::process::{Child, Command, Stdio};

use dafs_client::{Config, Identity, ReconnectPolicy, Session};
use dafs_proto::session::parse_key_file;
use dafs_tests::program::{Signal, signal};
use rustix::fs::{FlockOperation, flock};

use crate::programs::program;

/// A server that says where it listens. Ends with the test.
struct Server {
    child: Child,
    url: String,
}

impl Server {
    /// Starts what `command` says, in place of the server alone, with these flags behind the program.
    fn start(command: Command, flags: &[&str]) -> Self {
        let mut server = Self::begin(command, flags);
        server.wait();
        server
    }

    fn begin(mut command: Command, flags: &[&str]) -> Self {
        let child = command.args(flags).env("DAFS_LOG", "warn").stdout(Stdio::piped()).spawn().unwrap();
        Self { child, url: String::new() }
    }

    /// Waits until it serves.
    fn wait(&mut self) {
        assert!(self.comes_to_serve(), "it does not serve");
    }

    /// Waits until it serves, or has ended.
    fn comes_to_serve(&mut self) -> bool {
        let mut line = String::new();
        BufReader::new(self.child.stdout.take().unwrap()).read_line(&mut line).unwrap();
        let Some(url) = line.trim().strip_prefix("listening ") else { return false };
        url.clone_into(&mut self.url);
        true
    }

    /// Whether it catches a signal, or has ended.
    fn catches(&mut self, signal: Signal) -> bool {
        if self.child.try_wait().unwrap().is_some() {
            return true;
        }
        let status = fs::read_to_string(format!("/proc/{}/status", self.child.id())).unwrap();
        let caught = status.lines().find_map(|line| line.strip_prefix("SigCgt:")).unwrap();
        u64::from_str_radix(caught.trim(), 16).unwrap() >> (signal.as_raw() - 1) & 1 == 1
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// A key that says of its holders nothing more.
const KEY: &str = "alpha:000102030405060708090a0b0c0d0e0f101112131415161718191a1b1c1d1e1f\n";

fn write_keys(directory: &Path) -> String {
    let path = directory.join("keys");
    fs::write(&path, KEY).unwrap();
    fs::set_permissions(&path, fs::Permissions::from_mode(0o600)).unwrap();
    path.to_str().unwrap().to_owned()
}

// [ACC-30] [ACC-37] It has all capabilities, and may not set groups.
#[test]
#[ignore = "needs user-namespace"]
fn root_of_a_limited_user_namespace_serves_as_itself() {
    let directory = tempfile::tempdir().unwrap();
    let keys = write_keys(directory.path());
    let data = format!("data={}", directory.path().display());
    let mut command = Command::new("unshare");
    command.arg("-r").arg(program("dafs-server"));
    let flags = ["--no-calibrate", "--key-file", &keys, "--export", &data, "--listen", "tcp://0.0.0.0:0"];
    let server = Server::start(command, &flags);
    let url = server.url.replace("0.0.0.0", "127.0.0.1");
    let identity = Some(Identity { uid: 1000, gid: 1000, groups: vec![] });
    let key = Some(parse_key_file(KEY).unwrap().swap_remove(0).key);
    let reconnect = ReconnectPolicy { attempts_max: 0, ..ReconnectPolicy::default() };
    let session = Session::connect(&url, &Config { identity, key, reconnect, ..Config::default() }).unwrap();
    session.mount("data").unwrap().create("f").unwrap();
    session.ping().unwrap();
    assert!(directory.path().join("f").exists());
}

/// It measures a listener with a file of a mebibyte.
#[test]
fn server_starts_under_a_limit_of_file_sizes() {
    let mut command = Command::new("/bin/sh");
    command.args(["-c", "ulimit -f 512 && exec \"$0\" \"$@\""]).arg(program("dafs-server"));
    let server = Server::start(command, &["--export", "mem=mem:1M", "--listen", "tcp://127.0.0.1:0"]);
    Session::connect(&server.url, &Config::default()).unwrap().ping().unwrap();
}

// [ACC-156]
#[test]
fn server_that_is_hung_up_on_while_it_starts_goes_on() {
    let directory = tempfile::tempdir().unwrap();
    let state = directory.path().join("state");
    let flags = ["--no-calibrate", "--export", "mem=mem:1M", "--listen", "tcp://127.0.0.1:0", "--state-file"];
    let flags = [&flags[..], &[state.to_str().unwrap()]].concat();
    drop(Server::start(Command::new(program("dafs-server")), &flags));
    let server = loop {
        // A server waits for a while for another to give its file back.
        let held = fs::File::open(&state).unwrap();
        flock(&held, FlockOperation::LockExclusive).unwrap();
        let mut server = Server::begin(Command::new(program("dafs-server")), &flags);
        while !server.catches(Signal::HUP) {
            std::thread::yield_now();
        }
        let _ = signal(server.child.id(), Signal::HUP);
        drop(held);
        if server.comes_to_serve() {
            break server;
        }
        // On a busy machine that was over before this test went on; the signal ends it otherwise.
        assert_eq!(server.child.wait().unwrap().code(), Some(1), "it waits for its file in vain");
    };
    Session::connect(&server.url, &Config::default()).unwrap().ping().unwrap();
}
