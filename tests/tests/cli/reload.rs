//! What a server does at SIGHUP, with logins that it refuses, and what its log looks like.

use std::fs;
use std::io::{BufRead, BufReader};
use std::path::Path;
use std::process::{Child, Command, Stdio};

use dafs_client::{Config, Key, Session, Status};
use dafs_proto::session::{ClientHandshake, ClientIntroduction, parse_key_file};
use dafs_proto::transport::Address;
use dafs_proto::wire::{FileHandle, Header, Opcode, Resume};
use dafs_tests::program::{Signal, signal};
use dafs_tests::raw::{Raw, introduction};
use dafs_tests::suite::assert_status;

use crate::programs::program;

/// A server that reads its settings from a file, and its log.
struct Server {
    child: Child,
    url: String,
    log: Box<dyn Iterator<Item = String>>,
    directory: tempfile::TempDir,
}

const ALPHA: &str = "alpha:000102030405060708090a0b0c0d0e0f101112131415161718191a1b1c1d1e1f:uid=0,gid=0\n";
const BETA: &str = "beta:ff0102030405060708090a0b0c0d0e0f101112131415161718191a1b1c1d1e1f:uid=0,gid=0\n";

impl Server {
    fn start() -> Self {
        Self::start_with(&[], &[])
    }

    /// Starts it with more flags and exports: directories of these names.
    fn start_with(flags: &[&str], exports: &[&str]) -> Self {
        let directory = tempfile::tempdir().unwrap();
        write_keys(directory.path(), ALPHA);
        write_settings(directory.path(), "keys = [\"alpha\"]");
        let mut child = Command::new(program("dafs-server"))
            .args(["--log-format", "json", "--no-calibrate", "--listen", "tcp://127.0.0.1:0", "--config"])
            .arg(directory.path().join("settings"))
            .args(flags)
            .args(exports.iter().flat_map(|name| {
                let path = directory.path().join(name);
                fs::create_dir(&path).unwrap();
                ["--export".to_owned(), format!("{name}={}", path.display())]
            }))
            .env_remove("DAFS_LOG")
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .spawn()
            .unwrap();
        let mut line = String::new();
        BufReader::new(child.stdout.take().unwrap()).read_line(&mut line).unwrap();
        let url = line.trim().strip_prefix("listening ").expect(&line).to_owned();
        let log = Box::new(BufReader::new(child.stderr.take().unwrap()).lines().map(Result::unwrap));
        Self { child, url, log, directory }
    }

    fn hang_up(&self) {
        signal(self.child.id(), Signal::HUP).unwrap();
    }

    /// The next line of the log that has these words; blocks until it is there.
    fn said(&mut self, words: &str) -> String {
        self.log.by_ref().inspect(|line| assert_json(line)).find(|line| line.contains(words)).expect(words)
    }

    fn session(&self, line: &str) -> dafs_client::Result<Session> {
        Session::connect(&self.url, &Config { key: Some(key(line)), ..Config::default() })
    }

    fn address(&self) -> Address {
        Address::Tcp(self.url.trim_start_matches("dafs+tcp://").parse().unwrap())
    }

    /// The holder of the key of the start.
    fn introduction(&self, resume: Option<Resume>) -> ClientIntroduction {
        ClientIntroduction { key: Some(key(ALPHA)), ..introduction(&self.address(), 4, resume) }
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

fn key(line: &str) -> Key {
    parse_key_file(line).unwrap().swap_remove(0).key
}

fn assert_json(line: &str) {
    assert!(line.starts_with("{\"timestamp\":\"") && line.ends_with('}'), "no JSON: {line}");
}

fn write_keys(directory: &Path, lines: &str) {
    use std::os::unix::fs::PermissionsExt;
    let path = directory.join("keys");
    fs::write(&path, lines).unwrap();
    fs::set_permissions(path, fs::Permissions::from_mode(0o600)).unwrap();
}

fn write_settings(directory: &Path, rules: &str) {
    let keys = directory.join("keys");
    let text = format!("key-file = {keys:?}\n[[export]]\nname = \"data\"\nmemory = \"1M\"\n{rules}\n");
    fs::write(directory.join("settings"), text).unwrap();
}

// [ACC-70] [ACC-71] [ACC-72] [ACC-104] [ACC-105] [ACC-106]
#[test]
fn reload_takes_keys_and_rules_and_drops_no_session() {
    let mut server = Server::start();
    let old = server.session(ALPHA).unwrap();
    let file = old.mount("data").unwrap().create("f").unwrap();

    let directory = server.directory.path().to_owned();
    write_keys(&directory, BETA);
    write_settings(&directory, "keys = [\"beta\"]\n[[export]]\nname = \"new\"\nmemory = \"1M\"");
    server.hang_up();
    let said = server.said("reloaded keys and options");
    assert!(said.contains("\"keys\":1") && said.contains("\"exports\":1"), "{said}");
    assert!(server.said("until the server is restarted").contains("new"));
    file.write_all_at(b"still there", 0).unwrap();
    assert_eq!(old.reconnects(), 0);
    let refused = server.session(ALPHA).unwrap_err();
    assert_eq!(refused.status(), Some(Status::AUTH_FAILED), "{refused}");
    let said = server.said("login refused");
    assert!(said.contains("\"peer\":\"127.0.0.1:") && said.contains("status"), "{said}");
    server.session(BETA).unwrap().mount("data").unwrap();

    // What cannot be followed changes nothing.
    for rules in ["keys = [\"nobody\"]", "squash = 7", "= nonsense"] {
        write_settings(&directory, rules);
        server.hang_up();
        let said = server.said("cannot reload the settings");
        assert!(said.contains("stay") && said.contains("settings"), "{said}");
        server.session(BETA).unwrap().mount("data").unwrap();
    }
    file.write_all_at(b"still there", 0).unwrap();
    // An export that is gone can be mounted no more; who has mounted it keeps it.
    let text = fs::read_to_string(directory.join("settings")).unwrap().replace("\"data\"", "\"other\"");
    fs::write(directory.join("settings"), text.replace("= nonsense", "")).unwrap();
    server.hang_up();
    server.said("reloaded keys and options");
    let session = server.session(BETA).unwrap();
    assert_status(session.mount("data").map(drop), Status::NO_EXPORT, "withdrawn");
    file.commit().unwrap();
}

// [ACC-160] [ACC-72]
#[test]
fn settings_and_keys_of_any_shape_stop_no_later_reload() {
    use rustix::fs::{CWD, FileType, mknodat};
    use std::os::unix::fs::symlink;

    let mut server = Server::start();
    let directory = server.directory.path().to_owned();
    let (settings, keys) = (directory.join("settings"), directory.join("keys"));
    for path in [&settings, &keys] {
        let good = directory.join("good");
        fs::rename(path, &good).unwrap();
        let mut listener = None;
        for words in
            ["a FIFO", "a socket", "a device", "a directory", "symbolic links", "No such file", "larger than"]
        {
            match words {
                "a FIFO" => mknodat(CWD, path, FileType::Fifo, 0o600.into(), 0).unwrap(),
                "a socket" => listener = Some(std::os::unix::net::UnixListener::bind(path).unwrap()),
                "a device" => symlink("/dev/zero", path).unwrap(),
                "a directory" => fs::create_dir(path).unwrap(),
                "symbolic links" => symlink(path, path).unwrap(),
                "larger than" => {
                    use std::os::unix::fs::OpenOptionsExt;
                    let file = fs::File::options().create_new(true).write(true).mode(0o600).open(path);
                    file.unwrap().set_len(1 << 40).unwrap();
                }
                _ => {}
            }
            server.hang_up();
            server.said("reading the settings again");
            let said = server.said("reload");
            assert!(said.contains("cannot reload the settings") && said.contains(words), "{words}: {said}");
            drop(listener.take());
            match words {
                "a directory" => fs::remove_dir(path).unwrap(),
                "No such file" => {}
                _ => fs::remove_file(path).unwrap(),
            }
        }
        fs::rename(&good, path).unwrap();
        server.hang_up();
        server.said("reading the settings again");
        let said = server.said("reload");
        assert!(said.contains("reloaded keys and options"), "{said}");
    }
    server.session(ALPHA).unwrap().mount("data").unwrap();
}

// [ACC-142]
#[test]
fn key_that_is_revoked_between_hello_and_its_proof_opens_no_session() {
    let mut server = Server::start();
    let mut raw = Raw::connect(&server.address());
    let (handshake, hello) = ClientHandshake::begin(&server.introduction(None), [9; 32]);
    let reply = raw.ask(Header::request(Opcode::Hello, FileHandle(0)), &[], &hello);
    let (_, proof) = handshake.on_hello_reply(reply.header.status, &reply.payload).unwrap();
    write_keys(server.directory.path(), BETA);
    write_settings(server.directory.path(), "");
    server.hang_up();
    server.said("reloaded keys and options");
    let reply = raw.ask(Header::request(Opcode::Authenticate, FileHandle(0)), &[], &proof);
    assert_eq!(reply.header.status, Status::AUTH_FAILED);
}

// [ACC-154]
#[test]
fn key_is_revoked_though_an_exported_directory_is_gone() {
    let mut server = Server::start_with(&[], &["gone"]);
    fs::remove_dir(server.directory.path().join("gone")).unwrap();
    write_keys(server.directory.path(), BETA);
    write_settings(server.directory.path(), "");
    server.hang_up();
    server.said("reading the settings again");
    let said = server.said("reload");
    assert!(said.contains("reloaded"), "{said}");
    assert_eq!(server.session(ALPHA).unwrap_err().status(), Some(Status::AUTH_FAILED));
}

// [ACC-17] [ACC-71]
#[test]
fn session_is_resumed_from_addresses_that_the_settings_read_last_admit() {
    let mut server = Server::start();
    let mut raw = Raw::connect(&server.address());
    let welcome = raw.shake(&server.introduction(None)).unwrap();
    raw.mount("data");
    let resume = Resume { session: welcome.session, secret: welcome.secret };
    for (rules, expected) in [
        ("clients = [\"10.0.0.0/8\"]", Err(Status::AUTH_FAILED)),
        ("clients = [\"local\"]", Ok(true)),
        ("", Ok(true)),
    ] {
        write_settings(server.directory.path(), rules);
        server.hang_up();
        server.said("reloaded keys and options");
        let again = Raw::connect(&server.address()).shake(&server.introduction(Some(resume.clone())));
        assert_eq!(again.map(|welcome| welcome.resumed), expected, "{rules}");
    }
}

// [ACC-70] [ACC-106]
#[test]
fn reload_names_settings_that_need_a_restart() {
    let mut server = Server::start();
    let settings = server.directory.path().join("settings");
    let as_started = fs::read_to_string(&settings).unwrap();
    for (more, named, unnamed) in [
        ("sessions-max = 7\nlog-lines-max = 3\n", ["--sessions-max", "--log-lines-max"], "--tokens-max"),
        ("", ["reloaded"; 2], "until the server is restarted"),
        ("tokens-max = 5\ndirect-io = true\n", ["--tokens-max", "--direct-io"], "--sessions-max"),
    ] {
        fs::write(&settings, format!("{more}{as_started}")).unwrap();
        server.hang_up();
        let mut said = server.said("reloaded keys and options");
        if !more.is_empty() {
            said = server.said("until the server is restarted");
        }
        assert!(named.iter().all(|name| said.contains(name)) && !said.contains(unnamed), "{said}");
    }
    server.session(ALPHA).unwrap().mount("data").unwrap();
}

// [LIMIT-19]
#[test]
fn server_that_ends_says_how_many_lines_were_left_out() {
    let mut server = Server::start_with(&["--log-lines-max", "1"], &[]);
    // Some of them in the same second.
    for _ in 0..20 {
        server.session(BETA).unwrap_err();
    }
    signal(server.child.id(), Signal::TERM).unwrap();
    let log: Vec<_> = server.log.by_ref().collect();
    assert!(log.iter().any(|line| line.contains("lines were not written")), "{log:?}");
    assert!(log.last().is_some_and(|line| line.contains("stopped")), "{log:?}");
}

// [ACC-73]
#[test]
fn json_log_is_json_from_the_first_line() {
    for (arguments, code, words) in [
        (&["--export", "nothing"][..], 1, "--export"),
        (&["--export", "data=mem:", "--slots-max", "many"], 2, "--slots-max"),
        (
            &["--export", "data=mem:", "--no-calibrate", "--listen", "shm:///nonexistent/x"],
            1,
            "cannot listen",
        ),
    ] {
        let output = Command::new(program("dafs-server"))
            .args(["--log-format", "json"])
            .args(arguments)
            .output()
            .unwrap();
        let said = String::from_utf8_lossy(&output.stderr);
        assert_eq!(output.status.code(), Some(code), "{said}");
        assert!(said.lines().count() > 0 && said.contains(words), "{said}");
        said.lines().for_each(assert_json);
    }
    let mut server = Server::start();
    assert!(server.said("try: ").contains("INFO"));
}
