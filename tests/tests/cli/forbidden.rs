//! Where system calls are forbidden, there is no /proc, few files can be open, or signals are blocked: what can go on goes on, and what
//! cannot says why and what to do.

use std::fs;
use std::io::{BufRead, BufReader};
use std::process::{Child, Command, Output, Stdio};

use dafs_client::{Config, Session};
use dafs_tests::forbidden::{block, forbid};
use dafs_tests::program::{Signal, signal};

use crate::programs::program;

/// What filters of system calls forbid: some answer that it is not permitted, others that there is no such call.
const ERRORS: [i32; 2] = [libc::EPERM, libc::ENOSYS];

struct Server {
    child: Child,
    url: String,
}

impl Server {
    fn start(command: &mut Command) -> Self {
        let mut child = command.stdout(Stdio::piped()).spawn().unwrap();
        let mut line = String::new();
        BufReader::new(child.stdout.take().unwrap()).read_line(&mut line).unwrap();
        let url = line.trim().strip_prefix("listening ").expect("it serves").to_owned();
        Self { child, url }
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

fn server(flags: &[&str]) -> Command {
    let mut command = Command::new(program("dafs-server"));
    command.arg("--no-calibrate").args(flags).env("DAFS_LOG", "warn");
    command
}

/// The server does not start: what it says.
fn refused(command: &mut Command) -> String {
    let Output { status, stdout, stderr } = command.output().unwrap();
    let said = String::from_utf8(stderr).unwrap();
    assert!(!status.success() && stdout.is_empty(), "{said}");
    said
}

fn assert_said(said: &str, words: &[&str]) {
    assert!(words.iter().all(|word| said.contains(word)), "{words:?}: {said}");
}

// [SHM-90]
#[test]
fn server_without_shared_memory_says_so_at_start() {
    let directory = tempfile::tempdir().unwrap();
    let socket = format!("shm://{}", directory.path().join("socket").display());
    for errno in ERRORS {
        for (call, name) in [(libc::SYS_memfd_create, "memfd_create"), (libc::SYS_preadv2, "preadv2")] {
            let mut command = server(&["--export", "mem=mem:1M", "--listen", &socket]);
            let said = refused(forbid(&mut command, &[call], errno));
            assert_said(&said, &["cannot listen on", name, "not available", "seccomp", "tcp"]);
        }
    }
}

// [STOR-192]
#[test]
fn server_without_optional_system_calls_still_serves() {
    const CALLS: [libc::c_long; 9] = [
        libc::SYS_preadv2,
        libc::SYS_pwritev2,
        libc::SYS_copy_file_range,
        libc::SYS_io_uring_setup,
        libc::SYS_pidfd_open,
        libc::SYS_process_vm_readv,
        libc::SYS_name_to_handle_at,
        libc::SYS_prlimit64,
        libc::SYS_getrlimit,
    ];
    for errno in ERRORS {
        let directory = tempfile::tempdir().unwrap();
        let data = format!("data={}", directory.path().display());
        let flags = ["--export", &data, "--storage-engine", "auto", "--listen", "tcp://127.0.0.1:0"];
        let mut command = server(&flags);
        let server = Server::start(forbid(&mut command, &CALLS, errno));
        let session = Session::connect(&server.url, &Config::default()).unwrap();
        let export = session.mount("data").unwrap();
        let file = export.create("f").unwrap();
        file.write_all_at(&[1; 100_000], 0).unwrap();
        file.write_all_at(b"first", 0).unwrap();
        assert_eq!(file.append(b"last").unwrap(), 100_000);
        file.commit().unwrap();
        let target = export.create("copy").unwrap();
        assert_eq!(file.copy_range(0, 1000, &target, 0).unwrap(), 1000);
        let mut read = vec![0; 100_004];
        file.read_exact_at(&mut read, 0).unwrap();
        assert!(read.starts_with(b"first\x01") && read.ends_with(b"\x01last"));
        assert_eq!(fs::read(directory.path().join("f")).unwrap(), read);
        assert_eq!(fs::read(directory.path().join("copy")).unwrap(), read[..1000]);
    }
}

// [STOR-193]
#[test]
fn server_that_is_forbidden_what_directories_are_served_by_names_it() {
    let directory = tempfile::tempdir().unwrap();
    let data = format!("data={}", directory.path().display());
    for errno in ERRORS {
        let mut command = server(&["--export", &data, "--listen", "tcp://127.0.0.1:0"]);
        let said = refused(forbid(&mut command, &[libc::SYS_openat2], errno));
        assert_said(&said, &["cannot export", "openat2(2) is not available", "seccomp"]);
    }
}

// [STOR-193]
#[test]
#[ignore = "needs user-namespace"]
fn server_without_proc_serves_memory_and_says_what_directories_need() {
    let directory = tempfile::tempdir().unwrap();
    let data = format!("data={}", directory.path().display());
    let without_proc = |flags: &[&str]| {
        let mut command = Command::new("unshare");
        command
            .args(["-rm", "/bin/sh", "-c", "mount -t tmpfs none /proc && exec \"$0\" \"$@\""])
            .arg(program("dafs-server"))
            .args(["--no-calibrate", "--listen", "tcp://127.0.0.1:0"])
            .args(flags);
        command
    };
    let said = refused(&mut without_proc(&["--export", &data]));
    assert_said(&said, &["cannot export", "/proc is not mounted", "mount -t proc"]);
    let server = Server::start(&mut without_proc(&["--export", "mem=mem:1M,squash=server"]));
    Session::connect(&server.url, &Config::default()).unwrap().ping().unwrap();
}

// [LIMIT-30]
#[test]
fn server_with_few_open_files_says_how_many_it_needs() {
    let limited = |limit: u32| {
        let mut command = Command::new("/bin/sh");
        command
            .args(["-c", &format!("ulimit -n {limit} && exec \"$0\" \"$@\"")])
            .arg(program("dafs-server"))
            .args(["--no-calibrate", "--export", "mem=mem:1M", "--listen", "tcp://127.0.0.1:0"]);
        command
    };
    for limit in [64, 127] {
        let said = refused(&mut limited(limit));
        assert_said(&said, &[&format!("limit of {limit} open files"), "allow 128", "ulimit -n"]);
    }
    for (limit, is_warned) in [(128, true), (1023, true), (1024, false)] {
        let mut command = limited(limit);
        let mut server = Server::start(command.stderr(Stdio::piped()));
        Session::connect(&server.url, &Config::default()).unwrap().ping().unwrap();
        signal(server.child.id(), Signal::TERM).unwrap();
        let stderr = BufReader::new(server.child.stderr.take().unwrap());
        let warned = stderr.lines().map(Result::unwrap).any(|line| line.contains("1024 or more"));
        assert_eq!(warned, is_warned, "{limit}");
    }
}

// [ACC-162]
#[test]
fn server_that_starts_with_its_signals_blocked_ends_by_them() {
    for last in [Signal::TERM, Signal::INT] {
        let mut command = server(&["--export", "mem=mem:1M", "--listen", "tcp://127.0.0.1:0"]);
        let mut server = Server::start(block(&mut command, &[libc::SIGTERM, libc::SIGINT, libc::SIGHUP]));
        signal(server.child.id(), last).unwrap();
        assert!(server.child.wait().unwrap().success());
    }
}

// [CMD-110]
#[test]
fn command_that_starts_with_its_signals_blocked_ends_by_them() {
    let directory = tempfile::tempdir().unwrap();
    let server = Server::start(&mut server(&["--export", "mem=mem:1M", "--listen", "tcp://127.0.0.1:0"]));
    let session = Session::connect(&server.url, &Config::default()).unwrap();
    let export = session.mount("mem").unwrap();
    let file = export.create("f").unwrap();
    file.write_all_at(b"x", 0).unwrap();
    file.commit().unwrap();
    let mut command = Command::new(program("dafs"));
    command.args(["lock", &format!("{}/mem/f", server.url), "/bin/sh", "-c"]);
    // The command's own child says that it runs.
    let fifo = directory.path().join("fifo");
    rustix::fs::mknodat(rustix::fs::CWD, &fifo, rustix::fs::FileType::Fifo, 0o600.into(), 0).unwrap();
    command.arg(format!("echo runs > {}; exec cat", fifo.display())).stdin(Stdio::piped());
    let mut child = block(&mut command, &[libc::SIGTERM, libc::SIGINT]).spawn().unwrap();
    assert_eq!(fs::read_to_string(&fifo).unwrap(), "runs\n");
    // Waiting closes the child's input, at whose end `cat` would end too, and with success.
    let _input = child.stdin.take();
    signal(child.id(), Signal::TERM).unwrap();
    assert!(!child.wait().unwrap().success());
}
