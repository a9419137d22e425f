//! Servers that go and come, mounts that end, and what cannot be mounted.

use std::fs;
use std::io::Write;
use std::os::unix::fs::{FileExt, OpenOptionsExt};
use std::process::Stdio;

use dafs_tests::harness::On;
use dafs_tests::program::{Signal, signal};

use crate::{World, dafs, succeeded};

dafs_tests::on_sockets! {
    #[ignore = "needs fuse"]
    open_file_goes_on_after_the_server_was_restarted,
    #[ignore = "needs fuse"]
    data_that_a_restart_may_have_lost_is_written_again,
    #[ignore = "needs fuse"]
    writes_that_are_to_be_durable_are_so_when_they_return,
    #[ignore = "needs fuse"]
    lost_data_without_a_copy_is_an_error,
    #[ignore = "needs fuse"]
    open_file_goes_on_after_the_server_was_away_for_too_long,
    #[ignore = "needs fuse"]
    mount_ends_with_a_signal_and_leaves_nothing,
    #[ignore = "needs fuse"]
    mount_that_was_killed_is_cleaned_up,
    #[ignore = "needs fuse"]
    what_cannot_be_mounted_is_said_with_its_reason,
    #[ignore = "needs fuse"]
    file_that_was_removed_is_never_another,
}

crate::on_passthrough! {
    #[ignore = "needs fuse"]
    server_that_was_away_knows_what_the_kernel_has,
    #[ignore = "needs fuse"]
    open_file_goes_on_after_the_server_was_restarted,
    #[ignore = "needs fuse"]
    file_that_was_removed_is_never_another,
}

fn open_file_goes_on_after_the_server_was_restarted(on: On) {
    let mut world = World::start(on);
    let mount = world.mount("m", &[]);
    fs::create_dir(mount.at("d")).unwrap();
    fs::write(mount.at("d/f"), "before").unwrap();
    let open = fs::File::options().read(true).write(true).open(mount.at("d/f")).unwrap();
    open.sync_all().unwrap();
    world.server.kill_and_start();
    let mut buffer = [0; 6];
    open.read_exact_at(&mut buffer, 0).unwrap();
    assert_eq!(&buffer, b"before");
    open.write_all_at(b"behind", 0).unwrap();
    open.sync_all().unwrap();
    assert_eq!(fs::read(world.behind("d/f")).unwrap(), b"behind");
    fs::rename(mount.at("d"), mount.at("e")).unwrap();
    assert_eq!(fs::read(mount.at("e/f")).unwrap(), b"behind");
}

/// Waits until calls fail since the server is away.
fn wait_for_the_end_of_patience(path: &std::path::Path) {
    while fs::symlink_metadata(path).err().and_then(|error| error.raw_os_error()) != Some(libc::EIO) {
        std::thread::yield_now();
    }
}

// [MOUNT-17]
fn open_file_goes_on_after_the_server_was_away_for_too_long(on: On) {
    let mut world = World::start(on);
    let mount = world.mount("m", &["--timeout", "4", "--cache", "none"]);
    for name in ["f", "gone", "unsynced", "locked"] {
        fs::write(world.behind(name), "before").unwrap();
    }
    let open = |name| fs::File::options().read(true).write(true).open(mount.at(name)).unwrap();
    let [file, gone, unsynced, locked] = ["f", "gone", "unsynced", "locked"].map(open);
    unsynced.write_all_at(b"data", 0).unwrap();
    rustix::fs::flock(&locked, rustix::fs::FlockOperation::LockExclusive).unwrap();
    world.server.kill();
    wait_for_the_end_of_patience(&mount.at("f"));
    fs::remove_file(world.behind("gone")).unwrap();
    world.server.start_again();
    let read = |file: &fs::File| {
        let mut buffer = [0; 6];
        file.read_exact_at(&mut buffer, 0).map(|()| buffer).map_err(|error| error.raw_os_error().unwrap())
    };
    assert_eq!(read(&file), Ok(*b"before"));
    file.write_all_at(b"behind", 0).unwrap();
    file.sync_all().unwrap();
    assert_eq!(fs::read(world.behind("f")).unwrap(), b"behind");
    assert_eq!(read(&gone), Err(libc::ESTALE));
    // What became of these nobody can tell.
    assert_eq!(unsynced.sync_all().unwrap_err().raw_os_error(), Some(libc::EIO));
    assert_eq!(read(&locked), Err(libc::EIO));
}

// [MOUNT-15] [LOCAL-13]
fn server_that_was_away_knows_what_the_kernel_has(on: On) {
    let mut world = World::start(on);
    let mount = world.mount("m", &["--timeout", "4"]);
    let open = fs::File::create(mount.at("f")).unwrap();
    world.server.kill();
    wait_for_the_end_of_patience(&mount.at("other"));
    world.server.start_again();
    // The next request connects again.
    fs::read_dir(&mount.directory).unwrap();
    open.sync_all().unwrap();
    let session = world.server.session();
    let file = session.mount("data").unwrap();
    let file = file.open_with("f", dafs_client::OpenOptions::new().read(true).write(true)).unwrap();
    let mandatory = dafs_client::LockOptions { mandatory: true, ..dafs_client::LockOptions::default() };
    let mut pending = file.submit_lock_with(0..1, dafs_client::LockKind::Exclusive, mandatory);
    for _ in 0..100 {
        assert!(!pending.test(), "the kernel has it");
        session.probe().unwrap();
    }
    drop(open);
    pending.wait().unwrap();
}

// [MOUNT-6] [MOUNT-13]
fn data_that_a_restart_may_have_lost_is_written_again(on: On) {
    let mut world = World::start(on);
    let mount = world.mount("m", &[]);
    fs::write(mount.at("f"), "first").unwrap();
    let open = fs::File::options().read(true).write(true).open(mount.at("f")).unwrap();
    open.write_all_at(b"later", 100).unwrap();
    open.write_all_at(b"LA", 100).unwrap();
    world.server.kill_and_start();
    // As if the machine had been restarted: what was not durable is gone.
    fs::write(world.behind("f"), "").unwrap();
    open.sync_all().unwrap();
    let mut wanted = b"first".to_vec();
    wanted.resize(100, 0);
    wanted.extend(b"LAter");
    assert_eq!(fs::read(world.behind("f")).unwrap(), wanted, "also what another descriptor wrote");
}

// [MOUNT-23]
fn writes_that_are_to_be_durable_are_so_when_they_return(on: On) {
    let mut world = World::start(on);
    let cached = world.mount("cached", &[]);
    let uncached = world.mount("uncached", &["--cache", "none"]);
    let open = |mount: &crate::Mount, flags: i32| {
        let mut options = fs::File::options();
        options.read(true).write(true).create(true).custom_flags(flags);
        options.open(mount.at(format!("{}-{flags}", mount.directory.file_name().unwrap().display()))).unwrap()
    };
    // What bypasses the page cache is aligned.
    let mut room = vec![b'x'; 2 * 4096];
    let from = room.as_ptr().align_offset(4096);
    let page = &mut room[from..from + 4096];
    let mut all = Vec::new();
    for flags in [libc::O_APPEND, libc::O_DIRECT, libc::O_APPEND | libc::O_DIRECT, 0] {
        for lasting in [libc::O_DSYNC, libc::O_SYNC] {
            for mount in [&cached, &uncached] {
                let mut file = open(mount, flags | lasting);
                file.write_all(page).unwrap();
                all.push(file);
            }
        }
    }
    // One write alone asks for it.
    let file = open(&uncached, libc::O_APPEND);
    let parts = [std::io::IoSlice::new(page)];
    rustix::io::pwritev2(&file, &parts, 0, rustix::io::ReadWriteFlags::DSYNC).unwrap();
    all.push(file);
    world.server.kill_and_start();
    // What was durable cannot be gone, and so nothing of it is written again.
    for entry in fs::read_dir(world.server.data()).unwrap() {
        fs::File::create(entry.unwrap().path()).unwrap();
    }
    for file in all {
        file.sync_all().unwrap();
    }
    for entry in fs::read_dir(world.server.data()).unwrap() {
        let entry = entry.unwrap();
        assert_eq!(entry.metadata().unwrap().len(), 0, "{}", entry.path().display());
    }
}

// [MOUNT-6]
fn lost_data_without_a_copy_is_an_error(on: On) {
    let mut world = World::start(on);
    let mount = world.mount("m", &[]);
    let open = fs::File::create(mount.at("f")).unwrap();
    open.write_all_at(&vec![1; 33 << 20], 0).unwrap();
    world.server.kill_and_start();
    assert_eq!(open.sync_all().unwrap_err().raw_os_error(), Some(libc::EIO));
    // It was told; what is written now is durable again.
    open.write_all_at(b"new", 0).unwrap();
    open.sync_all().unwrap();
}

// [MOUNT-12]
fn mount_ends_with_a_signal_and_leaves_nothing(on: On) {
    let world = World::start(on);
    let directory = world.server.scratch().join("m");
    fs::create_dir(&directory).unwrap();
    let mut command = dafs();
    command.args(["mount", "--foreground"]).arg(world.url()).arg(&directory);
    let mut served = command.stderr(Stdio::piped()).spawn().unwrap();
    fs::write(world.behind("f"), "x").unwrap();
    while !directory.join("f").exists() {
        assert!(served.try_wait().unwrap().is_none());
        std::thread::yield_now();
    }
    // What is open is served until it is closed.
    let open = fs::File::open(directory.join("f")).unwrap();
    signal(served.id(), Signal::INT).unwrap();
    while directory.join("f").exists() {
        std::thread::yield_now();
    }
    let mut buffer = [0; 1];
    open.read_exact_at(&mut buffer, 0).unwrap();
    assert_eq!(&buffer, b"x");
    drop(open);
    let done = served.wait_with_output().unwrap();
    assert!(done.status.success() && done.stderr.is_empty(), "{}", String::from_utf8_lossy(&done.stderr));
}

fn mount_that_was_killed_is_cleaned_up(on: On) {
    let world = World::start(on);
    let directory = world.server.scratch().join("m");
    fs::create_dir(&directory).unwrap();
    let mut served = dafs().args(["mount", "--foreground"]).arg(world.url()).arg(&directory).spawn().unwrap();
    fs::write(world.behind("f"), "x").unwrap();
    while !directory.join("f").exists() {
        std::thread::yield_now();
    }
    served.kill().unwrap();
    served.wait().unwrap();
    assert_eq!(fs::read_dir(&directory).unwrap_err().raw_os_error(), Some(libc::ENOTCONN));
    succeeded(&dafs().arg("umount").arg(&directory).output().unwrap());
    assert_eq!(fs::read_dir(&directory).unwrap().count(), 0);
    let again = dafs().arg("umount").arg(&directory).output().unwrap();
    assert!(!again.status.success());
    let said = String::from_utf8_lossy(&again.stderr).into_owned();
    assert!(said.contains("no dafs export is mounted there"), "{said}");
}

fn what_cannot_be_mounted_is_said_with_its_reason(on: On) {
    let world = World::start(on);
    let refused = |url: &str, directory: &std::path::Path, words: &str| {
        let done = dafs().arg("mount").arg(url).arg(directory).output().unwrap();
        let said = String::from_utf8_lossy(&done.stderr).into_owned();
        assert!(
            !done.status.success() && said.starts_with("dafs: cannot ") && said.contains(words),
            "{said}"
        );
        assert_eq!(said.lines().count(), 1, "{said}");
    };
    let (scratch, url) = (world.server.scratch(), world.url());
    refused(&url, &scratch.join("missing"), "no directory of that name");
    fs::write(scratch.join("file"), "x").unwrap();
    refused(&url, &scratch.join("file"), "not a directory");
    refused(&url.replace("/data", "/other"), scratch, "no such export");
    refused(world.server.url(), scratch, "names no export");
    refused("dafs+tcp://127.0.0.1:1/data", scratch, "connection refused");
    let mount = world.mount("m", &[]);
    refused(&url, &mount.directory, "mounted there already");
    std::os::unix::fs::symlink(mount.directory.parent().unwrap(), scratch.join("link")).unwrap();
    refused(&url, &scratch.join("link/m"), "mounted there already");
}

// [MOUNT-11]
fn file_that_was_removed_is_never_another(on: On) {
    let world = World::start(on);
    let mount = world.mount("m", &["--name-time", "3600"]);
    fs::write(mount.at("f"), "old").unwrap();
    let open = fs::File::open(mount.at("f")).unwrap();
    fs::remove_file(world.behind("f")).unwrap();
    fs::write(world.behind("f"), "new").unwrap();
    let mut buffer = [0; 3];
    open.read_exact_at(&mut buffer, 0).unwrap();
    assert_eq!(&buffer, b"old");
    assert_eq!(open.metadata().unwrap().len(), 3);
    assert_eq!(fs::read_to_string(mount.at("f")).unwrap(), "new");
}
