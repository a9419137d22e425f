//! Servers that are away for good: nothing waits for them for ever.

use std::collections::HashSet;
use std::fs;
use std::os::unix::fs::FileExt;
use std::os::unix::process::ExitStatusExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};

use dafs_tests::harness::On;
use dafs_tests::program::{Signal, signal};
use dafs_tests::suite::wait_for;

use crate::{World, dafs, succeeded};

dafs_tests::on_sockets! {
    #[ignore = "needs fuse"]
    server_that_never_comes_back_is_an_error_for_every_call,
    #[ignore = "needs fuse"]
    server_that_does_not_answer_is_an_error_until_it_does,
    #[ignore = "needs fuse"]
    read_of_an_absent_server_ends_when_its_program_is_killed,
    #[ignore = "needs fuse"]
    interrupted_calls_end_when_the_server_turns_out_to_be_away,
}

crate::on_passthrough! {
    #[ignore = "needs fuse"]
    server_that_never_comes_back_is_an_error_for_every_call,
}

/// Each call that a program makes ends, with an error.
fn every_call_ends(mount: &crate::Mount, open: &fs::File) {
    let error = |done: std::io::Result<()>| done.unwrap_err().raw_os_error();
    let root = &mount.directory;
    for _ in 0..2 {
        assert_eq!(error(fs::metadata(root).map(drop)), Some(libc::EIO));
        assert_eq!(error(fs::read_dir(root).map(drop)), Some(libc::EIO));
        assert_eq!(error(fs::read(mount.at("f")).map(drop)), Some(libc::EIO));
        assert_eq!(error(fs::write(mount.at("new"), "x")), Some(libc::EIO));
        assert_eq!(error(open.set_len(5)), Some(libc::EIO));
        assert_eq!(error(rustix::fs::statvfs(root).map(drop).map_err(Into::into)), Some(libc::EIO));
    }
    // Also what lists the directory above.
    let listed = Command::new("ls").arg("-l").arg(root.parent().unwrap()).output().unwrap();
    assert!(!listed.status.success());
}

// [MOUNT-19]
fn server_that_never_comes_back_is_an_error_for_every_call(on: On) {
    let mut world = World::start(on);
    let mount = world.mount_in_time("m", &["--timeout", "1", "--cache", "none"]);
    fs::write(world.behind("f"), "data").unwrap();
    let open = fs::File::options().read(true).write(true).open(mount.at("f")).unwrap();
    world.server.kill();
    every_call_ends(&mount, &open);
    drop(open);
    let process = mount.process();
    succeeded(&dafs().arg("umount").arg(&mount.directory).output().unwrap());
    while process.exists() {
        std::thread::yield_now();
    }
    assert_eq!(fs::read_dir(&mount.directory).unwrap().count(), 0);
}

// [MOUNT-19]
fn server_that_does_not_answer_is_an_error_until_it_does(on: On) {
    let world = World::start_with(on, &["--lease-ms", "3000", "--keep-alive-ms", "200"]);
    let mount = world.mount_in_time("m", &["--timeout", "1", "--cache", "none"]);
    fs::write(world.behind("f"), "data").unwrap();
    let open = fs::File::options().read(true).write(true).open(mount.at("f")).unwrap();
    signal(world.server.id(), Signal::STOP).unwrap();
    every_call_ends(&mount, &open);
    signal(world.server.id(), Signal::CONT).unwrap();
    let mut buffer = [0; 4];
    // It may need a moment until it answers.
    while open.read_exact_at(&mut buffer, 0).is_err() {
        std::thread::yield_now();
    }
    assert_eq!(&buffer, b"data");
    fs::write(mount.at("new"), "x").unwrap();
}

/// The sockets that a process has open.
fn sockets(process: &Path) -> HashSet<PathBuf> {
    let open = fs::read_dir(process.join("fd")).unwrap();
    let targets = open.filter_map(|entry| fs::read_link(entry.ok()?.path()).ok());
    targets.filter(|target| target.to_string_lossy().starts_with("socket:")).collect()
}

// [MOUNT-19]
fn read_of_an_absent_server_ends_when_its_program_is_killed(on: On) {
    let mut world = World::start(on);
    let mount = world.mount("m", &["--timeout", "86400", "--cache", "none"]);
    fs::write(world.behind("f"), "data").unwrap();
    let open = fs::File::open(mount.at("f")).unwrap();
    let process = mount.process();
    let connected = sockets(&process);
    world.server.kill();
    wait_for("the mount to let go of its connection", || !connected.is_subset(&sockets(&process)));
    let mut reads = begin_to_read(open);
    reads.kill().unwrap();
    assert_eq!(reads.wait().unwrap().signal(), Some(libc::SIGKILL));
}

/// A program that reads a file; it is in that call.
fn begin_to_read(open: fs::File) -> Child {
    // It reads its input and does nothing else with it before.
    let mut program = Command::new("dd").args(["bs=4096", "count=1"]).stdin(open).spawn().unwrap();
    wait_until_in(&mut program, &format!("{} 0x0 ", libc::SYS_read));
    program
}

/// Waits until a program is in a system call.
fn wait_until_in(program: &mut Child, call: &str) {
    let of = format!("/proc/{}/syscall", program.id());
    while !fs::read_to_string(&of).unwrap_or_default().starts_with(call) {
        assert!(program.try_wait().unwrap().is_none());
        std::thread::yield_now();
    }
}

// [MOUNT-22]
fn interrupted_calls_end_when_the_server_turns_out_to_be_away(on: On) {
    let world = World::start_with(on, &["--lease-ms", "3000", "--keep-alive-ms", "200"]);
    let mount = world.mount_in_time("m", &["--timeout", "86400", "--cache", "none"]);
    fs::write(world.behind("f"), "data").unwrap();
    let (open, other) = (fs::File::open(mount.at("f")).unwrap(), fs::File::open(mount.at("f")).unwrap());
    // It does not answer, and the mount will not know for a lease.
    signal(world.server.id(), Signal::STOP).unwrap();
    let mut reads = begin_to_read(open);
    let mut looks = Command::new("stat").arg(mount.at("f")).stdout(Stdio::null()).spawn().unwrap();
    wait_until_in(&mut looks, &format!("{} ", libc::SYS_statx));
    // Requests are taken in turn, and the server is not asked for this one: the mount has the two by then.
    drop(other);
    for program in [&mut reads, &mut looks] {
        program.kill().unwrap();
        assert_eq!(program.wait().unwrap().signal(), Some(libc::SIGKILL));
    }
    signal(world.server.id(), Signal::CONT).unwrap();
}
