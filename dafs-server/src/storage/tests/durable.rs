//! What is made durable, as the kernel is asked for it: many file systems make more durable than they are asked to, and no crash of theirs
//! would show what was forgotten.

use std::cell::RefCell;
use std::os::unix::fs::MetadataExt;
use std::rc::Rc;

use dafs_proto::wire::{OpenFlags, Stability};

use super::harness::*;
use crate::storage::posix::steps::{Call, Course, watched};
use crate::storage::*;

/// What the kernel was asked to make durable meanwhile, by its number. On tmpfs this thread does it all.
fn synced(work: impl FnOnce()) -> Vec<u64> {
    let calls = Rc::new(RefCell::new(Vec::new()));
    let seen = Rc::clone(&calls);
    let watch = move |call| {
        if let Call::Sync(number) = call {
            seen.borrow_mut().push(number);
        }
        Course::Go
    };
    watched(watch, work).unwrap();
    calls.take()
}

fn number_of(f: &Fixture, path: &str) -> u64 {
    std::fs::metadata(f.directory.as_ref().unwrap().path().join("root").join(path)).unwrap().ino()
}

fn commit(f: &mut Fixture, node: NodeId, stability: Stability) {
    f.run(FsOp::Commit { node, offset: 0, len: 0, stability }).unwrap();
}

// [STOR-74] [STOR-75]
#[test]
#[ignore = "needs dev-shm"]
fn first_full_commit_of_a_file_that_was_made_is_of_its_name_too() {
    let mut f = Fixture::new(Kind::Tmpfs);
    f.mkdir("d").unwrap();
    let directory = number_of(&f, "d");
    for (name, writes) in [("d/committed", false), ("d/written", true)] {
        let node = f.open(name, RWC).unwrap();
        let file = number_of(&f, name);
        f.write(node, 0, b"data").unwrap();
        assert_eq!(synced(|| commit(&mut f, node, Stability::DataSync)), [file], "{name}: of the data alone");
        let found = synced(|| match writes {
            true => drop(f.write_submitted(node, 0, &[b"data"], Stability::FileSync).unwrap()),
            false => commit(&mut f, node, Stability::FileSync),
        });
        // The write itself is made durable by its flags.
        assert_eq!(found, if writes { vec![directory] } else { vec![file, directory] }, "{name}");
        assert_eq!(
            synced(|| commit(&mut f, node, Stability::FileSync)),
            [file],
            "{name}: its name is durable"
        );
        // It is the name that it has by then.
        let moved = f.open(format!("{name}-moved"), RWC).unwrap();
        f.rename(format!("{name}-moved"), name.trim_start_matches("d/"), true).unwrap();
        let found = synced(|| commit(&mut f, moved, Stability::FileSync));
        assert_eq!(found[1..], [number_of(&f, "")], "{name}: renamed");
    }
    let node = f.lookup("d").unwrap();
    assert_eq!(synced(|| commit(&mut f, node, Stability::FileSync)), [directory]);
}

// [STOR-173]
#[test]
#[ignore = "needs dev-shm"]
fn full_commit_of_a_file_that_was_given_a_name_is_of_that_too() {
    let mut f = Fixture::new(Kind::Tmpfs);
    f.mkdir("d").unwrap();
    f.open("d/old", RWC).unwrap();
    let directory = number_of(&f, "d");
    for (name, replace) in [("d/new", false), ("d/old", true)] {
        let node = f.open("", OpenFlags::READ | OpenFlags::WRITE | OpenFlags::UNNAMED).unwrap();
        f.write(node, 0, b"data").unwrap();
        assert_eq!(synced(|| commit(&mut f, node, Stability::FileSync)).len(), 1, "{name}: it has no name");
        let from = At { node, path: Vec::new() };
        let to = f.at(name);
        let found = synced(|| drop(f.run(FsOp::Link { from, to, replace }).unwrap()));
        assert_eq!(found, Vec::<u64>::new(), "{name}");
        let found = synced(|| commit(&mut f, node, Stability::FileSync));
        assert_eq!(found, [number_of(&f, name), directory], "{name}");
    }
}
