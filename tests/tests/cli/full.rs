//! A file system without room: a small tmpfs, mounted where the test may.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use dafs_client::{Error, LockKind, LockOptions, OpenOptions, Stability, StaleCause, Status};
use dafs_proto::wire::{FenceList, FileHandle, Header, LockFlags, LockRequest, Opcode, OpenFlags};
use dafs_tests::harness::On;
use dafs_tests::raw::Raw;
use dafs_tests::suite::{assert_same, assert_status, bytes};

use crate::programs::{World, dafs};

mod tcp {
    #[test]
    #[ignore = "needs mount"]
    fn copy_to_full_file_system_says_so_and_harms_nothing() {
        super::copy_to_a_full_file_system(dafs_tests::harness::On::Tcp);
    }

    #[test]
    #[ignore = "needs mount"]
    fn handle_never_reaches_a_file_system_mounted_over_its_export() {
        super::mounted_over(dafs_tests::harness::On::Tcp);
    }
}

mod shm {
    #[test]
    #[ignore = "needs mount"]
    fn copy_to_full_file_system_says_so_and_harms_nothing() {
        super::copy_to_a_full_file_system(dafs_tests::harness::On::Shm);
    }

    #[test]
    #[ignore = "needs mount"]
    fn handle_never_reaches_a_file_system_mounted_over_its_export() {
        super::mounted_over(dafs_tests::harness::On::Shm);
    }
}

#[cfg(feature = "verbs")]
mod verbs {
    #[test]
    #[ignore = "needs rdma-device"]
    fn copy_to_full_file_system_says_so_and_harms_nothing() {
        super::copy_to_a_full_file_system(dafs_tests::harness::On::Verbs);
    }

    #[test]
    #[ignore = "needs rdma-device"]
    fn handle_never_reaches_a_file_system_mounted_over_its_export() {
        super::mounted_over(dafs_tests::harness::On::Verbs);
    }
}

/// Nothing of this depends on how data travels.
mod locks {
    use super::{
        durable_write_that_finds_room_for_a_part_vouches_for_it, fence_that_finds_no_room_says_so,
        lock_that_cannot_be_written_is_held_by_nobody, unlock_that_cannot_be_written_is_written_later,
    };

    dafs_tests::on_sockets! {
        #[ignore = "needs mount"]
        durable_write_that_finds_room_for_a_part_vouches_for_it,
        #[ignore = "needs mount"]
        fence_that_finds_no_room_says_so,
        #[ignore = "needs mount"]
        lock_that_cannot_be_written_is_held_by_nobody,
        #[ignore = "needs mount"]
        unlock_that_cannot_be_written_is_written_later,
    }
}

const SIZE: u64 = 1 << 20;

/// A mounted file system; taken away with the test.
pub(crate) struct Mounted(PathBuf);

impl Drop for Mounted {
    fn drop(&mut self) {
        // Lazily: the server may still have files of it open.
        let _ = Command::new("umount").arg("-l").arg(&self.0).status();
    }
}

/// Frees what a file fills. It is cut, since a child that another test has forked may have it open until its exec, and so keep one that is
/// removed.
pub(crate) fn give_room(filler: &Path) {
    fs::write(filler, b"").unwrap();
}

pub(crate) fn mount(options: &[&str], at: &Path) -> Mounted {
    let output = Command::new("mount").args(options).arg(at).output().unwrap();
    assert!(output.status.success(), "{output:?}");
    Mounted(at.to_owned())
}

// [ERR-1] [STOR-9]
fn copy_to_a_full_file_system(on: On) {
    let mut mounted = None;
    let small = ["-t", "tmpfs", "-o", "size=1m,nr_inodes=40", "tmpfs"];
    let world = World::start_with(on, |_, directory| mounted = Some(mount(&small, &directory.join("data"))));
    let kept = bytes(1, 100_000);
    fs::write(world.local("kept"), &kept).unwrap();
    fs::write(world.local("large"), bytes(2, 2 << 20)).unwrap();
    let copy =
        |name: &str| dafs(["cp", world.local(name).to_str().unwrap(), &world.url(&format!("data/{name}"))]);
    copy("kept").succeeded();
    copy("large").failed(1, &["large", "no space"]);
    // Nor is what was there before lost to a copy that finds no room.
    dafs(["cp", world.local("large").to_str().unwrap(), &world.url("data/kept")])
        .failed(1, &["kept", "no space"]);
    assert_same(&fs::read(world.data().join("kept")).unwrap(), &kept, "what stood there");
    assert_eq!(fs::read_dir(world.data()).unwrap().count(), 1, "what was not whole is gone");
    copy("kept").succeeded();

    let session = world.session().unwrap();
    let root = session.mount("data").unwrap();
    let file = root.create("filler").unwrap();
    let mut written = 0;
    let error = loop {
        match file.write_at(&bytes(written, 50_000), written) {
            Ok(count) => written += count as u64,
            Err(error) => break error,
        }
        assert!(written <= SIZE);
    };
    assert_eq!(error.status(), Some(Status::NO_SPACE), "{error}");
    assert!(matches!(error, Error::Status { .. }));
    assert_status(file.append(&bytes(3, 50_000)).map(drop), Status::NO_SPACE, "append");
    file.commit().unwrap();
    let error = (0..).find_map(|index| root.create_dir(format!("d{index}"), 0o755).err()).unwrap();
    assert_eq!(error.status(), Some(Status::NO_SPACE), "{error}");
    assert_status(root.create("one more").map(drop), Status::NO_SPACE, "create");
    // What was acknowledged is there, and room that is made can be used.
    let mut found = vec![0; 50_000];
    file.read_exact_at(&mut found, 0).unwrap();
    assert_same(&found, &bytes(0, 50_000), "what was written before");
    assert_same(&fs::read(world.data().join("kept")).unwrap(), &kept, "what was copied before");
    root.remove_dir("d0").unwrap();
    file.truncate(0).unwrap();
    root.create("one more").unwrap().write_all_at(&bytes(4, 100_000), 0).unwrap();
    assert_eq!(session.reconnects(), 0);
}

// [STOR-175]
fn durable_write_that_finds_room_for_a_part_vouches_for_it(on: On) {
    const PAGE: u64 = 4096;
    let mut mounted = None;
    let small = ["-t", "tmpfs", "-o", "size=1m", "tmpfs"];
    let world = World::start_with(on, |_, directory| mounted = Some(mount(&small, &directory.join("data"))));
    let session = world.session().unwrap();
    let root = session.mount("data").unwrap();
    let file = root.create("filler").unwrap();
    file.allocate(0, SIZE - PAGE).unwrap();
    for stability in [Stability::DataSync, Stability::FileSync] {
        let data = bytes(1, 6000);
        file.truncate(SIZE - PAGE).unwrap();
        assert_eq!(file.write_at_with(&data, SIZE - PAGE, stability).unwrap() as u64, PAGE, "{stability:?}");
        let behind = file.write_at_with(&data, SIZE, stability);
        assert_status(behind.map(drop), Status::NO_SPACE, "behind it");
        // What fitted of an append is in the file too, and the caller is told how much.
        file.truncate(SIZE - PAGE).unwrap();
        let mut options = OpenOptions::new();
        options.write(true).stability(stability);
        let error = root.open_with("filler", &options).unwrap().append(&data).unwrap_err();
        assert!(error.to_string().contains("only 4096 of 6000 bytes"), "{error}");
        assert_eq!(fs::metadata(world.data().join("filler")).unwrap().len(), SIZE);
    }
    drop((file, root, session));
}

// [LOCK-35]
fn lock_that_cannot_be_written_is_held_by_nobody(on: On) {
    let mut mounted = None;
    let world = World::start_with(on, |server, directory| {
        let small = directory.join("small");
        fs::create_dir(&small).unwrap();
        mounted = Some(mount(&["-t", "tmpfs", "-o", "size=3m", "tmpfs"], &small));
        server.arg("--state-file").arg(small.join("state"));
    });
    let url = world.url("data/lock");
    dafs(["lock", "--persistent", &url, "true"]).succeeded();
    let (session, other) = (world.session().unwrap(), world.session().unwrap());
    let [file, beside] = [&session, &other].map(|session| {
        let options = &mut OpenOptions::new();
        session.mount("data").unwrap().open_with("lock", options.read(true).write(true)).unwrap()
    });
    // The file names the sessions before the disk is full.
    assert!(file.try_lock(0..1, LockKind::Exclusive).unwrap());
    let (mut raw, _) = Raw::session(&world.address(), 8);
    let root = raw.mount("data");
    let opened = raw.open(root, b"lock", OpenFlags::READ | OpenFlags::WRITE).header.handle;
    let ask = |raw: &mut Raw, offset, flags| {
        let request = LockRequest { offset, len: 1, owner: 1, kind: LockKind::Exclusive, flags };
        let mut header = Header::request(Opcode::Lock, opened);
        raw.begin(&mut header);
        raw.send(header, &request.bytes(), &[]);
    };
    ask(&mut raw, 1, LockFlags::empty());
    let reply = raw.receive().unwrap();
    raw.end(&reply);
    assert_eq!(reply.header.status, Status::OK);
    let filler = world.local("small").join("filler");
    assert!(fs::write(&filler, vec![1; 4 << 20]).is_err());
    let persistent = LockOptions { persistent: true, ..LockOptions::default() };
    // What is rewritten finds room for a while.
    let (refused, error) = (1..1000)
        .find_map(|at| {
            let range = 2 * at..2 * at + 1;
            let locked = file.lock_with(range.clone(), LockKind::Exclusive, persistent);
            locked.err().map(|error| (range, error))
        })
        .unwrap();
    assert_eq!(error.status(), Some(Status::NO_SPACE), "{error}");
    assert_eq!(beside.test_lock(refused.clone(), LockKind::Exclusive).unwrap(), None);
    // Nor who has waited for it, and has it when another gives its own back.
    file.lock(refused.clone(), LockKind::Exclusive).unwrap();
    ask(&mut raw, refused.start, LockFlags::WAIT | LockFlags::PERSISTENT);
    let mut behind = Header::request(Opcode::Null, FileHandle(0));
    raw.begin(&mut behind);
    assert_eq!(raw.ask(behind, &[], &[]).header.opcode, Opcode::Null, "the lock waits");
    file.unlock(refused.clone()).unwrap();
    assert_eq!(raw.receive().unwrap().header.status, Status::NO_SPACE);
    assert_eq!(beside.test_lock(refused.clone(), LockKind::Exclusive).unwrap(), None);
    dafs(["lock", "--persistent", &world.url("data/other"), "true"]).failed(1, &["cannot lock"]);
    give_room(&filler);
    file.lock_with(refused.clone(), LockKind::Exclusive, persistent).unwrap();
    assert!(beside.test_lock(refused, LockKind::Exclusive).unwrap().is_some());
    dafs(["lock", "--persistent", "--no-wait", &world.url("data/other"), "true"]).succeeded();
}

// [STATE-6]
fn fence_that_finds_no_room_says_so(on: On) {
    let mut mounted = None;
    let world = World::start_with(on, |server, directory| {
        let small = directory.join("small");
        fs::create_dir(&small).unwrap();
        mounted = Some(mount(&["-t", "tmpfs", "-o", "size=3m", "tmpfs"], &small));
        server.arg("--state-file").arg(small.join("state"));
    });
    let filler = world.local("small").join("filler");
    assert!(fs::write(&filler, vec![1; 4 << 20]).is_err());
    let session = world.session().unwrap();
    let root = session.mount("data").unwrap();
    // What is rewritten finds room for a while.
    let refused =
        (0..100u8).find_map(|round| root.set_fence_list(&FenceList::of_clients(&[[round; 16]; 200])).err());
    assert_eq!(refused.and_then(|error| error.status()), Some(Status::NO_SPACE));
    let url = world.url("data");
    dafs(["fence", "add", "--client", &"07".repeat(16), &url]).failed(1, &["no space left on device"]);
    give_room(&filler);
    dafs(["fence", "add", "--client", &"08".repeat(16), &url]).succeeded();
}

// [LOCK-60] Another has the lock meanwhile, and has it again after a restart.
fn unlock_that_cannot_be_written_is_written_later(on: On) {
    let mut mounted = None;
    let mut small = None;
    let mut world = World::start_with(on, |server, directory| {
        let small = small.insert(directory.join("small"));
        fs::create_dir(&small).unwrap();
        mounted = Some(mount(&["-t", "tmpfs", "-o", "size=3m", "tmpfs"], small));
        server.arg("--state-file").arg(small.join("state"));
    });
    fs::write(world.data().join("lock"), b"").unwrap();
    let (session, other) = (world.session().unwrap(), world.session().unwrap());
    let [file, beside] = [&session, &other].map(|session| {
        let options = &mut OpenOptions::new();
        session.mount("data").unwrap().open_with("lock", options.read(true).write(true)).unwrap()
    });
    const GUARDED: std::ops::Range<u64> = 100_000..100_010;
    let persistent = LockOptions { persistent: true, ..LockOptions::default() };
    file.lock_with(GUARDED, LockKind::Exclusive, persistent).unwrap();
    beside.lock(0..1, LockKind::Exclusive).unwrap();
    let filler = world.local("small").join("filler");
    assert!(fs::write(&filler, vec![1; 4 << 20]).is_err());
    // What is rewritten finds room for a while.
    let is_full = |at: u64| file.lock_with(2 * at..2 * at + 1, LockKind::Exclusive, persistent).is_err();
    assert!((1..1000).any(is_full));
    let unlocked = file.unlock(GUARDED);
    assert!(unlocked.as_ref().is_err_and(|error| error.status() == Some(Status::NO_SPACE)), "{unlocked:?}");
    beside.lock(GUARDED, LockKind::Exclusive).unwrap();
    give_room(&filler);
    // What is written of another file.
    let another = session.mount("data").unwrap().create("another").unwrap();
    another.lock_with(0..1, LockKind::Exclusive, persistent).unwrap();
    world.kill();
    world.restart_with(|server, directory| {
        server.arg("--state-file").arg(directory.join("small").join("state"));
    });
    beside.write_all_at(b"x", 0).unwrap();
    beside.unlock(GUARDED).unwrap();
    assert!(file.try_lock(GUARDED, LockKind::Exclusive).unwrap(), "nothing of it is broken");
}

// [SESS-55] [CLI-32]
fn mounted_over(on: On) {
    let mut world = World::start(on);
    let session = world.session().unwrap();
    let root = session.mount("data").unwrap();
    let kept = root.create("kept").unwrap();
    // One after the other: the roots of two may look alike.
    let mut mounted = Vec::new();
    for _ in 0..2 {
        let before = session.mount("data").unwrap();
        world.kill();
        mounted.push(mount(&["-t", "tmpfs", "tmpfs"], &world.data()));
        world.restart();
        session.ping().unwrap();
        for root in [&root, &before] {
            let made = root.create("new").map(drop);
            assert!(matches!(made, Err(Error::Stale { cause: StaleCause::Replaced, .. })), "{made:?}");
        }
        assert!(matches!(kept.write_at(b"x", 0), Err(Error::Stale { .. })));
        assert_eq!(fs::read_dir(world.data()).unwrap().count(), 0, "nothing is made in it unasked");
    }
    world.kill();
    drop(mounted);
}
