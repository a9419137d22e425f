//! What every backend does alike that has files to be read, be it one that can be written or not.

use dafs_proto::wire::{FileKind, OpenFlags, SetAttributes, SetTime, Status, Timestamp};

use super::generated::{GeneratedBackend, content};
use super::harness::*;
use crate::storage::backend::Backend;
use crate::storage::*;

/// Files of the export, by name, and their sizes. They count from 1.
const FILES: &[(&str, u64)] = &[("empty", 0), ("one", 1), ("page", 4096), ("odd", 100_003)];

/// Runs a test on every backend, with the same files in each.
fn each(test: impl Fn(&mut Fixture)) {
    for kind in kinds() {
        eprintln!("{kind:?}");
        let mut f = Fixture::new(kind);
        for (number, (name, size)) in (1..).zip(FILES) {
            let node = f.open(name, RWC).unwrap();
            let bytes: Vec<u8> = content(number, *size).collect();
            assert_eq!(f.write(node, 0, &bytes), Ok(bytes.len()));
            f.storage.close(node);
        }
        test(&mut f);
    }
    test(&mut Fixture::of(Box::new(GeneratedBackend(FILES))));
}

// [STOR-9]
#[test]
fn file_is_read_at_any_offset_up_to_its_end() {
    each(|f| {
        for (number, (name, size)) in (1..).zip(FILES) {
            let whole: Vec<u8> = content(number, *size).collect();
            let node = f.open(name, OpenFlags::READ).unwrap();
            for offset in [0, 1, 4095, 4096, size / 2, size.saturating_sub(1), *size, size + 1, 1 << 40] {
                for len in [0, 1, 100, 5000, 200_000] {
                    let from = usize::try_from(offset).unwrap().min(whole.len());
                    let expected = &whole[from..(from + len).min(whole.len())];
                    assert_eq!(f.read(node, offset, len).unwrap(), expected, "{name} {offset} {len}");
                    let parts = [len / 3, 0, len - len / 3];
                    assert_eq!(f.read_submitted(node, offset, &parts).unwrap(), expected, "{name} {offset}");
                }
            }
            assert_eq!(f.read(node, u64::MAX, 1), Err(Status::INVALID));
            f.storage.close(node);
            assert_eq!(f.read(node, 0, 1), Err(Status::BAD_HANDLE));
        }
        assert_eq!(f.storage.open_count(ExportId(0)), 0);
    });
}

// [STOR-6] [STOR-44] [STOR-81]
#[test]
fn names_are_listed_and_lead_to_the_same_files() {
    each(|f| {
        let mut expected: Vec<Vec<u8>> = FILES.iter().map(|(name, _)| name.as_bytes().to_vec()).collect();
        expected.sort();
        let root = f.open("", OpenFlags::READ | OpenFlags::DIRECTORY).unwrap();
        for size_max in [20, 40, 4096] {
            assert_eq!(f.names(root, size_max), expected);
        }
        assert_eq!(f.readdir(root, 0, 8, false), Err(Status::RANGE));
        for (name, size) in FILES {
            let found = f.stat(name).unwrap();
            assert_eq!((found.kind, found.size), (FileKind::File, *size));
            let (named, opened) = (f.lookup(name).unwrap(), f.open(name, OpenFlags::READ).unwrap());
            assert_eq!(f.storage.lock_key(named), f.storage.lock_key(opened));
            assert_eq!(f.read(named, 0, 1), Err(Status::BAD_HANDLE), "it is only a name");
        }
        assert_eq!(f.stat("").unwrap().kind, FileKind::Directory);
        assert_eq!(f.stat("missing"), Err(Status::NOT_FOUND));
        assert_eq!(f.stat("one/more"), Err(Status::NOT_DIRECTORY));
        assert_eq!(f.stat("/one"), Err(Status::CROSS_DEVICE));
        assert_eq!(f.open("one", OpenFlags::empty()), Err(Status::INVALID));
        assert_eq!(f.open("one", OpenFlags::READ | OpenFlags::DIRECTORY), Err(Status::NOT_DIRECTORY));
    });
}

// [STOR-19]
#[test]
fn file_shared_is_adopted_after_its_node_is_closed() {
    each(|f| {
        let node = f.open("odd", OpenFlags::READ).unwrap();
        let key = f.storage.lock_key(node).unwrap();
        let shared = f.storage.share(node).unwrap();
        f.storage.close(node);
        let mut other = f.another();
        let adopted = other.storage.adopt(ExportId(0), &shared).unwrap();
        assert_eq!(other.storage.lock_key(adopted), Ok(key));
        let whole: Vec<u8> = content(4, 100_003).collect();
        assert_eq!(other.read(adopted, 0, whole.len()).unwrap(), whole);
    });
}

#[test]
fn export_does_what_its_capabilities_say_and_no_more() {
    let set = || SetAttributes {
        mtime: Some(SetTime::At(Timestamp { seconds: 1, nanoseconds: 0 })),
        ..SetAttributes::default()
    };
    let backends = kinds().into_iter().map(|kind| (Fixture::new(kind), kind.capabilities()));
    let generated = GeneratedBackend(FILES);
    let can = generated.capabilities();
    for (mut f, can) in backends.chain([(Fixture::of(Box::new(generated)), can)]) {
        let opened = f.open("one", RWC).or_else(|_| f.open("one", OpenFlags::READ)).unwrap();
        // Without a pool there is nothing to wait for.
        assert_eq!(f.storage.event_fds().is_empty(), !can.needs_pool, "{can:?}");
        for op in [
            FsOp::Getattr { at: f.at("one"), follow: true },
            FsOp::Setattr { at: f.at("one"), follow: true, set: set() },
            FsOp::Read { node: opened, offset: 0, into: vec![memory(1)] },
        ] {
            let token = f.start(op);
            assert!(can.needs_pool || f.storage.pending() == 0, "{can:?}");
            let _ = f.finish(token);
        }
        assert!(can.can_map || f.storage.map(opened, 0, 1, 1).is_empty(), "{can:?}");
        assert_eq!(f.storage.local_locks(opened).is_ok(), can.is_seen_by_host, "{can:?}");
        assert!(can.has_page_cache || !f.storage.is_direct(opened), "{can:?}");
    }
}

#[test]
fn changes_of_files_that_are_made_of_nothing_are_refused() {
    let mut f = Fixture::of(Box::new(GeneratedBackend(FILES)));
    let node = f.open("one", OpenFlags::READ).unwrap();
    assert_eq!(f.write(node, 0, b"x"), Err(Status::READ_ONLY));
    assert_eq!(f.mkdir("d"), Err(Status::READ_ONLY));
    assert_eq!(f.remove("one", false), Err(Status::READ_ONLY));
    assert!(matches!(f.run(FsOp::Truncate { node, size: 0 }), Err(Status::READ_ONLY)));
}
