//! Files that the server hands over: the kernel reads and writes them itself.

use std::fs;
use std::io::{Read, Write};
use std::os::unix::fs::{FileExt, PermissionsExt};
use std::os::unix::process::CommandExt;
use std::process::Command;

use dafs_client::{LockKind, LockOptions, OpenOptions};
use dafs_tests::harness::On;

use crate::{World, on_passthrough};

on_passthrough! {
    #[ignore = "needs fuse"]
    kernel_reads_and_writes_the_file_itself,
    #[ignore = "needs fuse"]
    file_that_is_wanted_back_is_given_back_when_it_is_closed,
    #[ignore = "needs fuse"]
    file_opened_while_it_is_wanted_back_goes_through_the_server,
    #[ignore = "needs fuse"]
    write_takes_the_set_user_id_bit_away,
    #[ignore = "needs fuse"]
    program_without_rights_gets_none_by_it,
    #[ignore = "needs fuse"]
    many_opens_of_one_file_at_once_are_one,
}

/// Bytes that the server has read and written for clients.
fn moved(world: &World) -> u64 {
    let statistics = world.server.session().statistics().unwrap();
    statistics.bytes_read.iter().chain(&statistics.bytes_written).sum()
}

// [MOUNT-14]
fn kernel_reads_and_writes_the_file_itself(on: On) {
    let world = World::start(on);
    let mount = world.mount("m", &[]);
    let data = vec![7; 1 << 20];
    let before = moved(&world);
    fs::write(mount.at("f"), &data).unwrap();
    assert_eq!(fs::read(mount.at("f")).unwrap(), data);
    assert_eq!(moved(&world), before);
    assert_eq!(fs::read(world.behind("f")).unwrap(), data);
    // Also what is mapped, and what is read past the kernel's cache.
    let open = fs::File::options().read(true).write(true).open(mount.at("f")).unwrap();
    world
        .server
        .session()
        .mount("data")
        .unwrap()
        .open_with("f", OpenOptions::new().write(true))
        .unwrap()
        .write_at(b"changed", 0)
        .unwrap();
    let mut found = [0; 7];
    open.read_exact_at(&mut found, 0).unwrap();
    assert_eq!(&found, b"changed", "no cache of its own");
    drop(open);
    // As without it.
    let ordinary = world.mount("o", &["--no-passthrough"]);
    let before = moved(&world);
    fs::read(ordinary.at("f")).unwrap();
    assert!(moved(&world) >= before + data.len() as u64);
    let gathers = world.mount("w", &["--writeback"]);
    let before = moved(&world);
    fs::write(gathers.at("g"), &data).unwrap();
    fs::File::open(gathers.at("g")).unwrap().sync_all().unwrap();
    assert!(moved(&world) >= before + data.len() as u64);
}

fn mandatory() -> LockOptions {
    LockOptions { mandatory: true, ..LockOptions::default() }
}

// [LOCAL-10] [MOUNT-15]
fn file_that_is_wanted_back_is_given_back_when_it_is_closed(on: On) {
    let world = World::start(on);
    let mount = world.mount("m", &[]);
    let mut open =
        fs::File::options().read(true).write(true).create(true).truncate(true).open(mount.at("f")).unwrap();
    open.write_all(b"data").unwrap();
    let session = world.server.session();
    let file = session.mount("data").unwrap();
    let file = file.open_with("f", OpenOptions::new().read(true).write(true)).unwrap();
    let mut pending = file.submit_lock_with(0..10, LockKind::Exclusive, mandatory());
    for _ in 0..100 {
        assert!(!pending.test(), "the kernel still has it");
        open.write_all(b".").unwrap();
    }
    drop(open);
    pending.wait().unwrap();
    // It is locked now, for all that come by the server.
    let refused = fs::read(mount.at("f")).unwrap_err();
    assert_eq!(refused.raw_os_error(), Some(libc::EIO));
    file.unlock(0..10).unwrap();
    assert_eq!(fs::read(mount.at("f")).unwrap().len(), 104);
}

// [MOUNT-15]
fn file_opened_while_it_is_wanted_back_goes_through_the_server(on: On) {
    let world = World::start_with(on, &["--lease-ms", "3000", "--keep-alive-ms", "200"]);
    let mount = world.mount("m", &[]);
    fs::write(mount.at("f"), "data").unwrap();
    let first = fs::File::open(mount.at("f")).unwrap();
    let session = world.server.session();
    let file = session.mount("data").unwrap();
    let file = file.open_with("f", OpenOptions::new().read(true).write(true)).unwrap();
    // Nobody closes it: the lock is refused after the lease.
    let refused = file.submit_lock_with(0..10, LockKind::Exclusive, mandatory()).wait().unwrap_err();
    assert_eq!(refused.status(), Some(dafs_client::Status::BUSY), "{refused}");
    let before = moved(&world);
    let mut text = String::new();
    fs::File::open(mount.at("f")).unwrap().read_to_string(&mut text).unwrap();
    assert_eq!(text, "data");
    assert!(moved(&world) > before);
    // Those who had it open go on.
    let mut buffer = [0; 4];
    first.read_exact_at(&mut buffer, 0).unwrap();
    assert_eq!(&buffer, b"data");
}

// [MOUNT-16]
fn write_takes_the_set_user_id_bit_away(on: On) {
    let world = World::start(on);
    let mount = world.mount("m", &[]);
    world.open_way();
    fs::write(world.behind("f"), "data").unwrap();
    fs::set_permissions(world.behind("f"), fs::Permissions::from_mode(0o6777)).unwrap();
    let mut shell = Command::new("sh");
    shell.args(["-c", "echo more >> f"]).current_dir(&mount.directory).uid(1).gid(1);
    assert!(shell.status().unwrap().success());
    assert_eq!(fs::metadata(world.behind("f")).unwrap().permissions().mode() & 0o7777, 0o777);
}

// [MOUNT-9]
fn program_without_rights_gets_none_by_it(on: On) {
    let world = World::start(on);
    let mount = world.mount("m", &[]);
    world.open_way();
    fs::write(mount.at("f"), "data").unwrap();
    fs::set_permissions(mount.at("f"), fs::Permissions::from_mode(0o604)).unwrap();
    let _held = fs::File::options().read(true).write(true).open(mount.at("f")).unwrap();
    let as_user = |script: &str| {
        let mut shell = Command::new("sh");
        shell.args(["-c", script]).current_dir(&mount.directory).uid(1).gid(1);
        shell.output().unwrap().status.success()
    };
    assert!(as_user("cat f") && !as_user("echo >> f") && !as_user("exec 3< f; echo >&3"));
    fs::set_permissions(mount.at("f"), fs::Permissions::from_mode(0o600)).unwrap();
    assert!(!as_user("cat f"));
}

fn many_opens_of_one_file_at_once_are_one(on: On) {
    let world = World::start(on);
    let mount = world.mount("m", &[]);
    fs::write(mount.at("f"), [0; 64]).unwrap();
    std::thread::scope(|scope| {
        for place in 0..8u8 {
            let path = mount.at("f");
            scope.spawn(move || {
                for round in 0..100u8 {
                    let open = fs::File::options().read(true).write(true).open(&path).unwrap();
                    open.write_all_at(&[round], place.into()).unwrap();
                    let mut found = [0; 1];
                    fs::File::open(&path).unwrap().read_exact_at(&mut found, place.into()).unwrap();
                    assert_eq!(found, [round]);
                }
            });
        }
    });
}
