//! Locks of fcntl(2) and flock(2), across mounts.

use std::fs::{File, TryLockError};
use std::os::unix::process::ExitStatusExt;
use std::process::{Command, Stdio};

use dafs_client::{LockKind, OpenOptions};
use dafs_tests::harness::On;
use rustix::fs::{FlockOperation, fcntl_lock};

use crate::World;

dafs_tests::on_sockets! {
    #[ignore = "needs fuse"]
    flock_excludes_across_mounts_and_ends_with_its_descriptor,
    #[ignore = "needs fuse"]
    fcntl_excludes_across_mounts_and_not_flock,
    #[ignore = "needs fuse"]
    wait_for_a_lock_ends_with_a_signal_and_with_the_lock,
    #[ignore = "needs fuse"]
    lock_of_a_mount_keeps_other_clients_out,
}

// [MOUNT-7]
fn flock_excludes_across_mounts_and_ends_with_its_descriptor(on: On) {
    let world = World::start(on);
    let (a, b) = (world.mount("a", &[]), world.mount("b", &[]));
    File::create(a.at("f")).unwrap();
    let (one, other) = (File::open(a.at("f")).unwrap(), File::open(b.at("f")).unwrap());
    one.lock().unwrap();
    assert!(matches!(other.try_lock(), Err(TryLockError::WouldBlock)));
    assert!(matches!(other.try_lock_shared(), Err(TryLockError::WouldBlock)));
    one.unlock().unwrap();
    other.lock_shared().unwrap();
    one.lock_shared().unwrap();
    assert!(matches!(one.try_lock(), Err(TryLockError::WouldBlock)));
    drop(other);
    // Its end is on its way.
    one.lock().unwrap();
    let second = one.try_clone().unwrap();
    drop(one);
    let third = File::open(a.at("f")).unwrap();
    assert!(matches!(third.try_lock(), Err(TryLockError::WouldBlock)), "a duplicate still has it");
    drop(second);
    third.lock().unwrap();
}

fn fcntl_excludes_across_mounts_and_not_flock(on: On) {
    let world = World::start(on);
    let (a, b) = (world.mount("a", &[]), world.mount("b", &[]));
    let one = File::create(a.at("f")).unwrap();
    let other = File::options().read(true).write(true).open(b.at("f")).unwrap();
    fcntl_lock(&one, FlockOperation::NonBlockingLockExclusive).unwrap();
    // One process holds it in one mount: in another that is another file system, and so another owner.
    let refused = fcntl_lock(&other, FlockOperation::NonBlockingLockExclusive);
    assert_eq!(refused, Err(rustix::io::Errno::AGAIN));
    other.lock().unwrap();
    assert!(matches!(one.try_lock(), Err(TryLockError::WouldBlock)));
    // Any descriptor that is closed ends what its process has locked with fcntl.
    drop(File::open(a.at("f")).unwrap());
    fcntl_lock(&other, FlockOperation::NonBlockingLockExclusive).unwrap();
}

// [MOUNT-8]
fn wait_for_a_lock_ends_with_a_signal_and_with_the_lock(on: On) {
    let world = World::start(on);
    let (a, b) = (world.mount("a", &[]), world.mount("b", &[]));
    let held = File::create(a.at("f")).unwrap();
    held.lock().unwrap();
    let flock = |path: &std::path::Path| {
        let mut command = Command::new("flock");
        command.arg(path).args(["echo", "got it"]).stdout(Stdio::piped());
        command.spawn().unwrap()
    };
    let mut interrupted = flock(&b.at("f"));
    let waits = flock(&a.at("f"));
    let is_in_flock = |process: u32| {
        let call = std::fs::read_to_string(format!("/proc/{process}/syscall")).unwrap_or_default();
        call.split(' ').next() == Some(&libc::SYS_flock.to_string())
    };
    while !is_in_flock(interrupted.id()) {
        assert!(interrupted.try_wait().unwrap().is_none());
        std::thread::yield_now();
    }
    interrupted.kill().unwrap();
    assert_eq!(interrupted.wait().unwrap().signal(), Some(libc::SIGKILL));
    drop(held);
    let done = waits.wait_with_output().unwrap();
    assert_eq!(String::from_utf8_lossy(&done.stdout), "got it\n");
}

// [MOUNT-7]
fn lock_of_a_mount_keeps_other_clients_out(on: On) {
    let world = World::start(on);
    let mount = world.mount("m", &[]);
    let file =
        File::options().read(true).write(true).create(true).truncate(true).open(mount.at("f")).unwrap();
    let session = world.server.session();
    let remote =
        session.mount("data").unwrap().open_with("f", OpenOptions::new().read(true).write(true)).unwrap();
    fcntl_lock(&file, FlockOperation::NonBlockingLockExclusive).unwrap();
    assert!(!remote.try_lock(0..10, LockKind::Shared).unwrap());
    fcntl_lock(&file, FlockOperation::NonBlockingUnlock).unwrap();
    assert!(remote.try_lock(0..10, LockKind::Exclusive).unwrap());
    assert_eq!(fcntl_lock(&file, FlockOperation::NonBlockingLockShared), Err(rustix::io::Errno::AGAIN));
}
