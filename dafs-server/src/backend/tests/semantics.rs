//! What every backend does alike.

use dafs_proto::wire::{FileKind, OpenFlags, Stability, Status};

use super::harness::*;
use crate::backend::*;

/// Runs a test on every backend.
fn each(test: impl Fn(&mut Fixture)) {
    for kind in kinds() {
        eprintln!("{kind:?}");
        test(&mut Fixture::new(kind));
    }
}

#[test]
fn file_written_is_read_back() {
    each(|f| {
        let node = f.open("a", RWC).unwrap();
        assert_eq!(f.write(node, 0, b"hello"), Ok(5));
        assert_eq!(f.read(node, 0, 5).unwrap(), b"hello");
        assert_eq!(f.read(node, 1, 100).unwrap(), b"ello", "short at the end of the file");
        assert_eq!(f.read(node, 5, 100).unwrap(), b"");
        assert_eq!(f.read(node, 500, 100).unwrap(), b"");
        assert_eq!(f.read(node, 0, 0).unwrap(), b"");
        assert_eq!(f.write(node, 9, b""), Ok(0));
        assert_eq!(f.stat("a").unwrap().size, 5, "a write of nothing changes nothing");
        f.storage.close(node);
        assert_eq!(f.read(node, 0, 5), Err(Status::BAD_HANDLE));
        assert_eq!(f.storage.open_count(ExportId(0)), 0);
    });
}

#[test]
fn large_write_in_many_parts_is_whole() {
    each(|f| {
        let node = f.open("a", RWC).unwrap();
        // More parts than one system call takes.
        let parts: Vec<Vec<u8>> = (0..2500u32).map(|i| vec![i as u8; (i % 7) as usize * 300]).collect();
        let views: Vec<&[u8]> = parts.iter().map(Vec::as_slice).collect();
        let whole = parts.concat();
        for stability in [Stability::Unstable, Stability::DataSync, Stability::FileSync] {
            assert_eq!(f.write_submitted(node, 4096, &views, stability), Ok(whole.len()));
        }
        let lens = vec![1000; whole.len() / 1000 + 2];
        assert_eq!(f.read_submitted(node, 4096, &lens).unwrap(), whole);
        assert_eq!(f.read(node, 4096, whole.len()).unwrap(), whole);
    });
}

#[test]
fn directory_made_lists_what_is_in_it() {
    each(|f| {
        assert_eq!(f.mkdir("d/").unwrap().kind, FileKind::Directory);
        assert_eq!(f.mkdir("d"), Err(Status::EXISTS));
        assert_eq!(f.mkdir("x/y"), Err(Status::NOT_FOUND));
        for name in [&b"plain"[..], b"\xff\xfe", b" ", b"-"] {
            let node = f.open([b"d/", name].concat(), RWC).unwrap();
            f.storage.close(node);
        }
        let directory = f.open("d", OpenFlags::READ).unwrap();
        let mut expected: Vec<Vec<u8>> =
            [&b"plain"[..], b"\xff\xfe", b" ", b"-"].iter().map(|name| name.to_vec()).collect();
        expected.sort();
        for size_max in [20, 40, 4096] {
            assert_eq!(f.names(directory, size_max), expected);
        }
        assert_eq!(f.readdir(directory, 0, 8, false), Err(Status::RANGE));
        assert_eq!(f.remove("d", true), Err(Status::NOT_EMPTY));
    });
}
