//! `dafs lock`.

use std::ffi::OsString;
use std::io::{BufRead, BufReader, Write};
use std::os::unix::fs::PermissionsExt;
use std::path::Path;
use std::process::{Command, Stdio};

use dafs_client::{LockKind, LockOptions, OpenOptions, Status};
use dafs_tests::harness::On;
use dafs_tests::locking_process::LockingProcess;
use dafs_tests::program::{Signal, signal};
use dafs_tests::suite::assert_status;
use dafs_tests::{on_sockets, on_verbs};
use rustix::process::{Pid, Resource, Rlimit, prlimit};

use crate::full::mount;
use crate::programs::{World, command, dafs, program};

on_sockets! {
    program_runs_while_the_file_is_locked,
    program_that_ends_badly_is_told_of,
    program_whose_lock_was_lost_ends_badly_or_as_it_does,
    program_keeps_the_lock_through_signals_and_gets_those_that_end_it,
    program_ignores_what_dafs_was_started_to_ignore,
    end_of_a_program_is_noticed_without_sigchld,
    wait_that_is_interrupted_keeps_nobody_out,
    lock_of_a_program_that_failed_is_broken_until_it_is_repaired,
    lock_whose_end_could_not_be_written_is_there_until_that_is,
    persistent_lock_that_nothing_would_keep_says_what_to_do,
    process_of_the_servers_host_keeps_programs_out,
}

on_verbs! {
    program_runs_while_the_file_is_locked,
}

fn export_shown(server: &mut Command, directory: &Path) {
    let mut export = OsString::from("shown=");
    export.push(directory.join("data"));
    export.push(",local_locks");
    server.arg("--export").arg(export);
}

// [LOCK-53]
fn process_of_the_servers_host_keeps_programs_out(on: On) {
    let world = World::start_with(on, export_shown);
    let url = world.url("shown/lock");
    std::fs::write(world.data().join("lock"), "").unwrap();
    let process = LockingProcess::start(&world.data().join("lock"), 0..1);
    let holder = format!("process {} of the server's host (exclusive) has it", process.id());
    dafs(["lock", "--no-wait", &url, "true"]).failed(1, &["cannot lock", &holder]);
    // The other export of the directory asks no process.
    dafs(["lock", "--no-wait", &world.url("data/lock"), "true"]).succeeded();
    let mut waits = command(["lock", &url, "true"]).spawn().unwrap();
    drop(process);
    assert!(waits.wait().unwrap().success());
}

// [LOCK-55]
#[test]
#[ignore = "needs mount"]
fn lock_of_a_file_system_that_is_not_local_is_refused() {
    let mut mounted = None;
    let world = World::start_with(On::Tcp, |server, directory| {
        mounted = Some(mount(&["-t", "hugetlbfs", "none"], &directory.join("data")));
        export_shown(server, directory);
    });
    dafs(["lock", &world.url("shown/lock"), "true"]).failed(1, &["cannot lock", "not supported"]);
    dafs(["lock", &world.url("data/lock"), "true"]).succeeded();
}

// [CMD-49] [CMD-73] [LOCK-40] [LOCK-43]
fn lock_of_a_program_that_failed_is_broken_until_it_is_repaired(on: On) {
    let with_file = |server: &mut Command, directory: &Path| {
        server.arg("--state-file").arg(directory.join("locks"));
        // As long as one is waited for that the file names and that ended just before the server was killed.
        server.args(["--lease-ms", "3000", "--keep-alive-ms", "500"]);
    };
    let mut world = World::start_with(on, with_file);
    let url = world.url("data/lock");
    dafs(["lock", "--persistent", &url, "true"]).succeeded();
    dafs(["lock", &url, "true"]).succeeded();
    let failed = dafs(["lock", "--persistent", &url, "sh", "-c", "exit 3"]);
    failed.failed(3, &["the lock of", "is broken", "--repair"]);
    dafs(["lock", &url, "true"]).failed(1, &["cannot lock", "ended without releasing it", "--repair"]);
    world.kill();
    world.restart_with(with_file);
    dafs(["lock", &url, "true"]).failed(1, &["ended without releasing it"]);
    dafs(["lock", "--repair", &url, "false"]).failed(1, &["is broken"]);
    dafs(["lock", "--no-wait", &url, "true"]).failed(1, &["ended without releasing it"]);
    dafs(["lock", "--repair", &url, "/no/such/program"]).failed(127, &["cannot run", "is broken"]);
    dafs(["lock", "--no-wait", &url, "true"]).failed(1, &["ended without releasing it"]);
    dafs(["lock", "--repair", &url, "true"]).succeeded();
    dafs(["lock", &url, "true"]).succeeded();
    dafs(["lock", "--repair", &url, "/no/such/program"]).failed(127, &["cannot run"]);
    dafs(["lock", "--no-wait", &url, "true"]).succeeded();
    world.kill();
    world.restart_with(with_file);
    dafs(["lock", &url, "true"]).succeeded();
    dafs(["lock", "--persistent", "--shared", &url, "true"]).failed(2, &["cannot be used with"]);
}

/// The server's files may be so large from now on; of those that are larger nothing can be written behind that.
pub(crate) fn limit_file_size(world: &World, current: Option<u64>) {
    let server = Pid::from_raw(world.server_id().cast_signed());
    prlimit(server, Resource::Fsize, Rlimit { current, maximum: None }).unwrap();
}

// [LOCK-43]
fn lock_whose_end_could_not_be_written_is_there_until_that_is(on: On) {
    let with_file = |server: &mut Command, directory: &Path| {
        server.arg("--state-file").arg(directory.join("locks"));
        server.args(["--lease-ms", "3000", "--keep-alive-ms", "500"]);
    };
    let mut world = World::start_with(on, with_file);
    let session = world.session().unwrap();
    let mut options = OpenOptions::new();
    options.read(true).write(true).create(true);
    let file = session.mount("data").unwrap().open_with("lock", &options).unwrap();
    let persistent = LockOptions { persistent: true, ..LockOptions::default() };
    file.lock_with(0..10, LockKind::Exclusive, persistent).unwrap();
    limit_file_size(&world, Some(0));
    for _ in 0..2 {
        assert_status(file.unlock(0..10), Status::TOO_LARGE, "it is not written");
    }
    limit_file_size(&world, None);
    file.unlock(0..10).unwrap();
    drop((file, session));
    world.kill();
    world.restart_with(with_file);
    dafs(["lock", &world.url("data/lock"), "true"]).succeeded();
}

// [LOCK-45]
fn persistent_lock_that_nothing_would_keep_says_what_to_do(on: On) {
    let world = World::start(on);
    let refused = dafs(["lock", "--persistent", &world.url("data/lock"), "true"]);
    refused.failed(1, &["cannot lock", "has no state file", "--state-file"]);
}

// [STATE-2]
#[test]
fn server_with_a_damaged_state_file_does_not_start_and_says_why() {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("state");
    std::fs::write(&path, "something else").unwrap();
    std::fs::set_permissions(&path, std::fs::Permissions::from_mode(0o600)).unwrap();
    let started = Command::new(dafs_tests::program::program())
        .args(["--export", "mem=mem:1M", "--listen", "tcp://127.0.0.1:0", "--no-calibrate", "--state-file"])
        .arg(&path)
        .stdin(Stdio::null())
        .output()
        .unwrap();
    let said = String::from_utf8_lossy(&started.stderr);
    assert!(!started.status.success(), "{said}");
    for word in ["cannot use the state file", "it is damaged", "remove it, which drops all locks"] {
        assert!(said.contains(word), "{word}: {said}");
    }
}

// [CMD-70] [CMD-72]
fn program_runs_while_the_file_is_locked(on: On) {
    let world = World::start(on);
    let url = world.url("data/lock");
    // It says that it runs, and waits to be told to end.
    let mut holder = command(["lock", &url, "sh", "-c", "echo runs; read line; echo over"])
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .spawn()
        .unwrap();
    let mut said = BufReader::new(holder.stdout.take().unwrap()).lines();
    assert_eq!(said.next().unwrap().unwrap(), "runs");
    let id = "0b".repeat(16);
    let refused = dafs(["--client-id", &id, "lock", "-n", &url, "false"]);
    refused.failed(1, &["cannot lock", "client ", "(exclusive) has it", "leave --no-wait out"]);
    dafs(["--client-id", &id, "lock", "-n", "-s", &url, "false"]).failed(1, &["has it"]);
    holder.stdin.take().unwrap().write_all(b"\n").unwrap();
    // Whoever waits gets it then.
    assert_eq!(dafs(["--client-id", &id, "lock", &url, "echo", "-n", "mine"]).succeeded().text(), "mine");
    assert_eq!(said.next().unwrap().unwrap(), "over");
    assert!(holder.wait().unwrap().success());
}

// [CMD-71]
fn program_that_ends_badly_is_told_of(on: On) {
    let world = World::start(on);
    let url = world.url("data/lock");
    dafs(["lock", &url, "sh", "-c", "exit 7"]).failed(7, &[]);
    dafs(["lock", &url, "sh", "-c", "kill -TERM $$"]).failed(128 + 15, &[]);
    dafs(["lock", &url, "/no/such/program"]).failed(127, &["cannot run", "/no/such/program", "no such file"]);
    dafs(["lock", "-s", &world.url("data/missing"), "true"]).failed(1, &["cannot open", "no such file"]);
    dafs(["lock", "-n", &url, "true"]).succeeded();
}

// [CMD-71]
fn program_whose_lock_was_lost_ends_badly_or_as_it_does(on: On) {
    for (its, expected) in [(0, 1), (7, 7)] {
        let mut world = World::start(on);
        let script = format!("echo runs; read line; exit {its}");
        let mut holder = command(["--timeout=5", "lock", &world.url("data/lock"), "sh", "-c", &script])
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .spawn()
            .unwrap();
        let mut said = BufReader::new(holder.stdout.take().unwrap()).lines();
        assert_eq!(said.next().unwrap().unwrap(), "runs");
        world.kill();
        holder.stdin.take().unwrap().write_all(b"\n").unwrap();
        let ended = holder.wait_with_output().unwrap();
        let told = String::from_utf8_lossy(&ended.stderr).into_owned();
        assert_eq!(ended.status.code(), Some(expected), "{told}");
        assert!(told.contains("cannot keep the lock"), "{told}");
    }
}

// [CMD-71] [CMD-74]
fn program_keeps_the_lock_through_signals_and_gets_those_that_end_it(on: On) {
    let world = World::start(on);
    let url = world.url("data/lock");
    let id = "0b".repeat(16);
    for (last, number) in [(Signal::TERM, 15), (Signal::HUP, 1)] {
        let mut holder = command(["lock", &url, "cat"])
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .stderr(Stdio::null())
            .spawn()
            .unwrap();
        let mut stdin = holder.stdin.take().unwrap();
        let mut said = BufReader::new(holder.stdout.take().unwrap()).lines();
        let mut answers = |line: &str| {
            writeln!(stdin, "{line}").unwrap();
            assert_eq!(said.next().unwrap().unwrap(), line);
        };
        answers("runs");
        // As a terminal sends them, but not to the program.
        for only in [Signal::INT, Signal::QUIT] {
            signal(holder.id(), only).unwrap();
        }
        answers("still runs");
        dafs(["--client-id", &id, "lock", "-n", &url, "true"]).failed(1, &["cannot lock", "has it"]);
        signal(holder.id(), last).unwrap();
        assert_eq!(holder.wait().unwrap().code(), Some(128 + number));
        dafs(["--client-id", &id, "lock", "-n", &url, "true"]).succeeded();
    }
}

// [CMD-75]
fn program_ignores_what_dafs_was_started_to_ignore(on: On) {
    let world = World::start(on);
    let (outer, inner) = (world.url("data/outer"), world.url("data/inner"));
    let shown = |ignored: &str, by: &[&str]| {
        let script = format!("trap '' {ignored}; exec \"$@\"");
        let words = ["lock", &outer, "sh", "-c", &script, "sh"];
        dafs([&words[..], by, &["sed", "-n", "/^Sig[BIC]/p", "/proc/self/status"]].concat())
            .succeeded()
            .text()
    };
    let lock = program("dafs");
    for ignored in ["HUP INT", "TERM QUIT", "USR1"] {
        assert_eq!(
            shown(ignored, &[lock.to_str().unwrap(), "lock", &inner]),
            shown(ignored, &[]),
            "{ignored}"
        );
    }
}

// [CMD-36]
fn end_of_a_program_is_noticed_without_sigchld(on: On) {
    let world = World::start(on);
    for how in ["--block-signal=CHLD", "--ignore-signal=CHLD"] {
        let lock = command(["lock", &world.url("data/lock"), "sh", "-c", "exit 7"]);
        let mut without = Command::new("env");
        without.arg(how).arg(lock.get_program()).args(lock.get_args());
        lock.get_envs().filter_map(|(name, value)| Some((name, value?))).for_each(|(name, value)| {
            without.env(name, value);
        });
        assert_eq!(without.status().unwrap().code(), Some(7), "{how}");
    }
}

// [CMD-35]
fn wait_that_is_interrupted_keeps_nobody_out(on: On) {
    let world = World::start(on);
    let url = world.url("data/lock");
    let requests = || {
        let stats = dafs(["stats", world.server()]).succeeded().text();
        let count = stats.lines().find_map(|line| line.trim().strip_prefix("lock: "));
        count.map_or(0, |count| count.parse::<u64>().unwrap())
    };
    for last in [Signal::INT, Signal::TERM, Signal::HUP] {
        let mut holder = command(["lock", &url, "sh", "-c", "echo runs; read line"])
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .unwrap();
        let mut said = BufReader::new(holder.stdout.take().unwrap()).lines();
        assert_eq!(said.next().unwrap().unwrap(), "runs");
        let before = requests();
        let mut waits = command(["lock", &url, "false"]).spawn().unwrap();
        while requests() == before {}
        signal(waits.id(), last).unwrap();
        assert_eq!(waits.wait().unwrap().code(), Some(130));
        holder.stdin.take().unwrap().write_all(b"\n").unwrap();
        assert!(holder.wait().unwrap().success());
        dafs(["lock", "--no-wait", &url, "true"]).succeeded();
    }
}
