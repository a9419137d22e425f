//! Servers that start where the system is not as usual.

use std::fs;
use std::io::{BufRead, BufReader};
use std::os::unix::fs::PermissionsExt;
use std::path::Path;
use std::process::{Child, Command, Stdio};

use dafs_client::{Config, Identity, Session};
use dafs_proto::session::parse_key_file;

use crate::programs::program;

/// A server that says where it listens. Ends with the test.
struct Server {
    child: Child,
    url: String,
}

impl Server {
    /// Starts what `command` says, in place of the server alone, with these flags behind the program.
    fn start(mut command: Command, flags: &[&str]) -> Self {
        let mut child = command.args(flags).stdout(Stdio::piped()).spawn().unwrap();
        let mut line = String::new();
        BufReader::new(child.stdout.take().unwrap()).read_line(&mut line).unwrap();
        let url = line.trim().strip_prefix("listening ").unwrap_or_default().to_owned();
        Self { child, url }
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
fn root_of_a_user_namespace_that_cannot_act_as_others_serves_them_as_itself() {
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
    let session = Session::connect(&url, &Config { identity, key, ..Config::default() }).unwrap();
    session.mount("data").unwrap().create("f").unwrap();
    session.ping().unwrap();
    assert!(directory.path().join("f").exists());
}
