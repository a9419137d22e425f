//! What is told durable outlives a crash of the machine: looked for in a copy of what the disk has by then.

use std::fs;
use std::io::IoSlice;
use std::os::unix::fs::PermissionsExt;
use std::path::Path;
use std::process::Command;

use dafs_client::{
    AccessPattern, Background, Config, Extent, File, LockKind, OpenOptions, Session, SetAttributes,
    Stability, Status,
};
use dafs_tests::harness::On;
use dafs_tests::suite::{assert_same, assert_status, bytes};

use crate::disk::Disk;
use crate::programs::{World, dafs};

/// What a server keeps by itself, by a thread of its own, whatever it listens on.
mod kept {
    #[test]
    #[ignore = "needs loop-mount"]
    fn fences_outlive_a_crash_of_the_machine() {
        super::fences_outlive_a_crash();
    }

    #[test]
    #[ignore = "needs loop-mount"]
    fn persistent_locks_outlive_a_crash_of_the_machine() {
        super::persistent_locks_outlive_a_crash();
    }

    #[test]
    #[ignore = "needs loop-mount"]
    fn those_who_held_locks_go_first_after_a_crash_of_the_machine() {
        super::sessions_with_locks_outlive_a_crash();
    }
}

macro_rules! on_sockets_with_a_disk {
    ($($module:ident $on:ident),*) => { $(
        mod $module {
            use dafs_tests::harness::On;

            #[test]
            #[ignore = "needs loop-mount"]
            fn names_that_are_durable_outlive_a_crash_of_the_machine() {
                super::names_outlive_a_crash(On::$on);
            }

            #[test]
            #[ignore = "needs loop-mount"]
            fn data_that_is_durable_outlives_a_crash_of_the_machine() {
                super::data_outlives_a_crash(On::$on, "pool");
            }

            #[test]
            #[ignore = "needs loop-mount-io_uring"]
            fn data_that_the_ring_made_durable_outlives_a_crash_of_the_machine() {
                super::data_outlives_a_crash(On::$on, "uring");
            }

            #[test]
            #[ignore = "needs loop-mount"]
            fn file_that_replaces_another_outlives_a_crash_of_the_machine() {
                super::replaced_file_outlives_a_crash(On::$on);
            }
        }
    )* };
}

on_sockets_with_a_disk! { tcp Tcp, shm Shm }

const KIB: usize = 1 << 10;
const MIB: usize = 1 << 20;
/// As often the kernel may have written out by itself what a test has just written.
const WRITE_BACKS_MAX: usize = 20;

/// A server whose export is a disk.
fn start(on: On, flags: &[&str]) -> (World, Disk) {
    let mut disk = None;
    let world = World::start_with(on, |server, directory| {
        server.args(flags);
        disk = Some(Disk::new(&directory.join("data")));
    });
    let disk = disk.unwrap();
    disk.grow();
    (world, disk)
}

// [STOR-74] [STOR-75]
fn names_outlive_a_crash(on: On) {
    let (world, disk) = start(on, &[]);
    let names = |path: &str| -> Vec<String> {
        disk.after_a_crash(|root| {
            let entries = fs::read_dir(root.join(path)).map(Iterator::collect::<Vec<_>>).unwrap_or_default();
            let names = entries.into_iter().map(|entry| entry.unwrap().file_name().into_string().unwrap());
            let mut names: Vec<_> = names.collect();
            names.sort();
            names
        })
    };
    let session = world.session().unwrap();
    let root = session.mount("data").unwrap();
    let mut made = (0..WRITE_BACKS_MAX).map(|number| format!("d{number}"));
    let is_lost = |name: &String| {
        root.create_dir(name, 0o755).unwrap();
        !names("").contains(name)
    };
    let d = made.find(is_lost).expect("the disk has all that was done");
    root.commit().unwrap();
    assert!(names("").contains(&d));

    let directory = root.open_dir(&d).unwrap();
    let written = directory.create("written").unwrap();
    written.write_at_with(b"durable", 0, Stability::FileSync).unwrap();
    assert_eq!(names(&d), ["written"]);
    let committed = directory.create("committed").unwrap();
    committed.write_all_at(b"durable", 0).unwrap();
    committed.commit().unwrap();
    assert_eq!(names(&d), ["committed", "written"]);

    // Neither of these is about the data of a file.
    directory.rename("written", &directory, "renamed", false).unwrap();
    directory.link("committed", &directory, "linked").unwrap();
    directory.commit().unwrap();
    assert_eq!(names(&d), ["committed", "linked", "renamed"]);
}

/// A file on a disk, and what it must have after a crash.
struct Checked<'a> {
    disk: &'a Disk,
    session: &'a Session,
    file: &'a File,
    expected: Vec<u8>,
}

impl Checked<'_> {
    /// A part of the file gets other data.
    fn change(&mut self, offset: usize, len: usize) -> &[u8] {
        let data = bytes((offset + len) as u64 ^ u64::from(self.expected[offset]), len);
        self.expected[offset..offset + len].copy_from_slice(&data);
        &self.expected[offset..offset + len]
    }

    /// What is not durable yet is lost in a crash: without that nothing would be proven.
    fn is_not_durable(&mut self) {
        let file = self.file;
        for _ in 0..WRITE_BACKS_MAX {
            if self.disk.file_after_a_crash("f").as_ref() != Some(&self.expected) {
                return;
            }
            file.write_all_at(self.change(0, 100), 0).unwrap();
        }
        panic!("the disk has all at once");
    }

    fn is_durable(&self, what: &str) {
        assert_same(&self.disk.file_after_a_crash("f").unwrap_or_default(), &self.expected, what);
    }

    /// Writes that storage takes at once, and such as it has to be waited for.
    fn write(&mut self, stability: Stability) {
        let file = self.file;
        for (offset, len) in [(10, 100), (5001, 12 * KIB), (100_003, 100_000)] {
            file.read_exact_at(&mut vec![0; self.expected.len()], 0).unwrap();
            assert_eq!(file.write_at_with(self.change(offset, len), offset as u64, stability).unwrap(), len);
            self.is_durable(&format!("{stability:?} write of {len} bytes in the page cache"));

            // What is not in the page cache is read before a part of it is changed.
            file.hint(0, 0, AccessPattern::WillNotNeed).unwrap();
            let waits = || self.session.statistics().unwrap().storage_waits;
            let before = waits();
            let data = bytes(len as u64, len);
            assert_eq!(file.write_at_with(&data, offset as u64, stability).unwrap(), len);
            assert!(waits() > before, "storage had the beginning of a page at hand");
            self.expected[offset..offset + len].copy_from_slice(&data);
            self.is_durable(&format!("{stability:?} write of {len} bytes beside the page cache"));
        }
    }

    fn write_list(&mut self, stability: Stability) {
        let extents: Vec<Extent> = (0..50).map(|part| Extent::new(7 + 4500 * part, 300)).collect();
        let data = bytes(3 + stability as u64, 50 * 300);
        let memory = [IoSlice::new(&data)];
        assert_eq!(self.file.write_list_with(&extents, &memory, stability).unwrap(), data.len());
        for (extent, part) in extents.iter().zip(data.chunks(300)) {
            let offset = extent.offset as usize;
            self.expected[offset..offset + 300].copy_from_slice(part);
        }
        self.is_durable(&format!("{stability:?} list"));
    }
}

// [STOR-15] [STOR-72] [STOR-73]
fn data_outlives_a_crash(on: On, engine: &str) {
    let (world, disk) = start(on, &["--storage-engine", engine]);
    let session = world.session().unwrap();
    let root = session.mount("data").unwrap();
    let file = root.create("f").unwrap();
    let expected = bytes(1, 256 * KIB);
    let mut checked = Checked { disk: &disk, session: &session, file: &file, expected };
    file.write_all_at(&checked.expected, 0).unwrap();
    checked.is_not_durable();
    file.commit().unwrap();
    checked.is_durable("commit");
    for stability in [Stability::DataSync, Stability::FileSync] {
        checked.write(stability);
        checked.write_list(stability);
        // In place, and behind the end.
        file.write_all_at(checked.change(1234, 5678), 1234).unwrap();
        let more = bytes(2, 70_000);
        file.write_all_at(&more, checked.expected.len() as u64).unwrap();
        checked.expected.extend(more);
        checked.is_not_durable();
        file.commit_range(1234, checked.expected.len() as u64, stability).unwrap();
        checked.is_durable(&format!("{stability:?} commit of a range"));
        let appends = OpenOptions::new().append(true).stability(stability).clone();
        let log = root.open_with("f", &appends).unwrap();
        for len in [100, 200_000] {
            let more = bytes(len as u64, len);
            assert_eq!(log.append(&more).unwrap(), checked.expected.len() as u64);
            checked.expected.extend(more);
            checked.is_durable(&format!("{stability:?} append of {len} bytes"));
        }
    }
    for mode in [0o600, 0o640] {
        file.set_attributes(&SetAttributes { mode: Some(mode), ..SetAttributes::default() }).unwrap();
        file.write_at_with(checked.change(20, 10), 20, Stability::FileSync).unwrap();
        let found = disk.after_a_crash(|root| fs::metadata(root.join("f")).unwrap().permissions().mode());
        assert_eq!(found & 0o7777, mode, "all attributes are durable");
    }
}

// [STOR-15] [STOR-173]
fn replaced_file_outlives_a_crash(on: On) {
    let (world, disk) = start(on, &[]);
    let session = world.session().unwrap();
    let root = session.mount("data").unwrap();
    // In one chain, and step by step.
    for len in [0, 100, 10_000, 5 * MIB, 1000] {
        let data = bytes(len as u64, len);
        root.replace("f", &data, 0o644).unwrap();
        assert_same(&disk.file_after_a_crash("f").expect("its name is gone"), &data, "it was replaced");
    }
    root.create_dir("d", 0o755).unwrap();
    root.commit().unwrap();
    let data = bytes(7, 30_000);
    for (name, replace) in [("d/new", false), ("d/old", true)] {
        if replace {
            fs::write(world.data().join(name), "of before").unwrap();
        }
        let file = root.open_unnamed("", 0o644).unwrap();
        file.write_all_at(&data, 0).unwrap();
        file.commit().unwrap();
        file.link_to(&root, name, replace).unwrap();
        file.commit().unwrap();
        assert_same(&disk.file_after_a_crash(name).expect("its name is gone"), &data, name);
    }
}

/// A server that keeps a file on a disk, and none beside it. The directory that it serves is on another, which does not crash.
fn start_keeping(
    flag: &'static str,
    more: &'static [&'static str],
) -> (World, Disk, impl Fn(&mut Command, &Path) + Copy) {
    let with_file = move |server: &mut Command, directory: &Path| {
        server.arg(flag).arg(directory.join("disk/kept")).args(more);
    };
    let mut disk = None;
    let world = World::start_with(On::Tcp, |server, directory| {
        let at = directory.join("disk");
        fs::create_dir(&at).unwrap();
        disk = Some(Disk::new(&at));
        with_file(server, directory);
    });
    let disk = disk.unwrap();
    disk.grow();
    (world, disk, with_file)
}

// [ACC-136]
fn fences_outlive_a_crash() {
    let (mut world, disk, with_file) = start_keeping("--state-file", &[]);
    let client = "07".repeat(16);
    let url = world.url("data");
    for (change, is_fenced_off) in [("add", true), ("remove", false), ("add", true)] {
        dafs(["fence", change, "--client", &client, &url]).succeeded();
        disk.crash(|| world.kill());
        world.restart_with(with_file);
        let listed = dafs(["--client-id", &client, "ls", &url]);
        match is_fenced_off {
            true => drop(listed.failed(1, &["fenced off"])),
            false => drop(listed.succeeded()),
        }
    }
}

// [LOCK-43]
fn persistent_locks_outlive_a_crash() {
    // As long as one is waited for that the file names and that ended just before the crash.
    let (mut world, disk, with_file) =
        start_keeping("--state-file", &["--lease-ms", "3000", "--keep-alive-ms", "500"]);
    let url = world.url("data/lock");
    for _ in 0..2 {
        dafs(["lock", "--persistent", &url, "sh", "-c", "exit 3"]).failed(3, &["is broken"]);
        disk.crash(|| world.kill());
        world.restart_with(with_file);
        dafs(["lock", &url, "true"]).failed(1, &["ended without releasing it"]);
        dafs(["lock", "--repair", &url, "true"]).succeeded();
        disk.crash(|| world.kill());
        world.restart_with(with_file);
        dafs(["lock", &url, "true"]).succeeded();
    }
}

// [LOCK-31]
fn sessions_with_locks_outlive_a_crash() {
    let (mut world, disk, with_file) = start_keeping("--state-file", &[]);
    // It comes back when it is told to.
    let quiet = Config { background: Background::None, ..Config::default() };
    for _ in 0..2 {
        let session = Session::connect(world.server(), &quiet).unwrap();
        let file = session.mount("data").unwrap().create("f").unwrap();
        file.lock(0..10, LockKind::Exclusive).unwrap();
        disk.crash(|| world.kill());
        world.restart_with(with_file);
        let late = world.session().unwrap();
        let other = late.mount("data").unwrap().open("f").unwrap();
        let early = other.try_lock(50..60, LockKind::Shared).map(drop);
        assert_status(early, Status::GRACE, "before the other has come back");
        session.ping().unwrap();
        assert!(!other.try_lock(5..6, LockKind::Shared).unwrap(), "it was taken again");
        assert!(other.try_lock(50..60, LockKind::Shared).unwrap());
        file.write_all_at(b"x", 0).unwrap();
    }
}
