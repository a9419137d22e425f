//! One set of exports, driven by several loops.

use std::collections::BTreeSet;

use dafs_proto::wire::{OpenFlags, Status};

use super::harness::*;
use crate::storage::*;

/// Runs a test on every backend, with two loops.
fn each(test: impl Fn(&mut Fixture, &mut Fixture)) {
    for kind in kinds() {
        eprintln!("{kind:?}");
        let mut first = Fixture::new(kind);
        let mut second = first.another();
        test(&mut first, &mut second);
        assert_eq!(first.storage.open_count(ExportId(0)), 0);
        assert_eq!(second.storage.open_count(ExportId(0)), 0);
    }
}

#[test]
fn loops_see_each_others_files() {
    each(|a, b| {
        let written = a.open("f", RWC).unwrap();
        assert_eq!(a.write(written, 0, b"hello"), Ok(5));
        let read = b.open("f", OpenFlags::READ).unwrap();
        assert_eq!(b.read(read, 0, 5).unwrap(), b"hello");
        b.rename("f", "g", false).unwrap();
        assert_eq!(a.stat("f"), Err(Status::NOT_FOUND));
        assert_eq!(a.write(written, 5, b"!"), Ok(1));
        assert_eq!(b.read(read, 0, 9).unwrap(), b"hello!");
        assert_eq!(a.storage.verifier(ExportId(0)), b.storage.verifier(ExportId(0)));
        a.storage.close(written);
        b.storage.close(read);
    });
}

// [SESS-75]
#[test]
fn shared_file_stays_open_until_its_last_holder_is_gone() {
    each(|a, b| {
        let node = a.open("f", RWC).unwrap();
        a.write(node, 0, b"kept").unwrap();
        let shared = a.storage.share(node).unwrap();
        a.storage.close(node);
        a.remove("f", false).unwrap();
        let adopted = b.storage.adopt(ExportId(0), &shared).unwrap();
        let again = a.storage.adopt(ExportId(0), &shared).unwrap();
        drop(shared);
        assert_eq!(b.read(adopted, 0, 9).unwrap(), b"kept");
        b.storage.close(adopted);
        assert_eq!(a.write(again, 4, b"!"), Ok(1));
        assert_eq!(a.read(again, 0, 9).unwrap(), b"kept!");
        a.storage.close(again);
    });
}

#[test]
fn shared_file_of_a_reader_cannot_be_written() {
    each(|a, b| {
        let node = a.open("f", RWC).unwrap();
        a.storage.close(node);
        let node = a.open("f", OpenFlags::READ).unwrap();
        let adopted = b.storage.adopt(ExportId(0), &a.storage.share(node).unwrap()).unwrap();
        assert_eq!(b.write(adopted, 0, b"no"), Err(Status::BAD_HANDLE));
        a.storage.close(node);
        b.storage.close(adopted);
        assert!(a.storage.share(node).is_err(), "it is closed");
        assert!(b.storage.adopt(ExportId(7), &a.storage.share(a.root()).unwrap()).is_err());
    });
}

// [STOR-11]
#[test]
fn appends_of_two_loops_are_whole_and_do_not_overlap() {
    const COUNT: usize = 400;
    const SIZE: usize = 300;
    let append_all = |fixture: &mut Fixture, mark: u8| -> Vec<u64> {
        let node = fixture.open("f", RWC).unwrap();
        let places = (0..COUNT).map(|_| fixture.append(node, &[mark; SIZE]).unwrap());
        let offsets = places.map(|(offset, count)| {
            assert_eq!(count, SIZE);
            offset
        });
        let offsets = offsets.collect();
        fixture.storage.close(node);
        offsets
    };
    each(|a, b| {
        let (of_a, of_b) = std::thread::scope(|scope| {
            let other = scope.spawn(|| append_all(b, 2));
            (append_all(a, 1), other.join().unwrap())
        });
        let all: BTreeSet<u64> = of_a.iter().chain(&of_b).copied().collect();
        let expected: BTreeSet<u64> = (0..2 * COUNT as u64).map(|index| index * SIZE as u64).collect();
        assert_eq!(all, expected, "no two in one place, and no gap");
        let node = a.open("f", OpenFlags::READ).unwrap();
        for (offsets, mark) in [(of_a, 1), (of_b, 2)] {
            for offset in offsets {
                assert_eq!(a.read(node, offset, SIZE).unwrap(), [mark; SIZE]);
            }
        }
        a.storage.close(node);
    });
}
