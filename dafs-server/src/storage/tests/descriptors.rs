//! What becomes of operations that find no descriptor: nothing is done by halves.

use std::os::unix::fs::FileExt;

use dafs_proto::wire::{OpenFlags, Status};

use super::harness::*;
use super::sieve_steps::{act, directories};
use crate::storage::file_system::FileSystem;
use crate::storage::posix::{PosixExport, open_for_tests as export};
use crate::storage::*;

fn open(files: &mut PosixExport, path: &str, flags: OpenFlags) -> Result<NodeId, Status> {
    let at = At { node: files.root(), path: path.into() };
    match act(files, FsOp::Open { at, flags, mode: 0o644, admission: None })? {
        FsReply::Node(node, _) => Ok(node),
        other => panic!("{other:?}"),
    }
}

// [STOR-170] [STOR-171]
#[test]
fn file_without_a_name_that_finds_no_descriptor_replaces_nothing() {
    if !in_own_process(
        "storage::tests::descriptors::file_without_a_name_that_finds_no_descriptor_replaces_nothing",
    ) {
        return;
    }
    for inside in directories() {
        let directory = tempfile::tempdir_in(inside).unwrap();
        let named = directory.path().join("f");
        std::fs::write(&named, "old").unwrap();
        let mut files = export(directory.path(), false);
        let node = open(&mut files, "", OpenFlags::WRITE | OpenFlags::UNNAMED).unwrap();
        let link = |files: &mut PosixExport| {
            let to = At { node: files.root(), path: b"f".to_vec() };
            act(files, FsOp::Link { from: At { node, path: Vec::new() }, to, replace: true })
        };
        let old = std::fs::File::open(&named).unwrap();
        let result = with_descriptors_left(0, || link(&mut files));
        assert!(matches!(result, Err(Status::TOO_MANY_OPEN)), "{result:?}");
        let mut content = [0; 3];
        old.read_exact_at(&mut content, 0).unwrap();
        assert_eq!(std::fs::read(&named).unwrap(), content);
        assert_eq!(std::fs::read_dir(directory.path()).unwrap().count(), 1);
        assert!(matches!(link(&mut files), Ok(FsReply::Attributes(found)) if found.links == 1));
        assert_eq!(std::fs::read(&named).unwrap(), b"");
    }
}

// [LIMIT-14] [STOR-12]
#[test]
fn open_that_finds_no_second_descriptor_for_direct_io_does_without() {
    if !in_own_process(
        "storage::tests::descriptors::open_that_finds_no_second_descriptor_for_direct_io_does_without",
    ) {
        return;
    }
    let directory = tempfile::tempdir().unwrap();
    let mut files = export(directory.path(), true);
    open(&mut files, "first", RWC).unwrap();
    let made = with_descriptors_left(1, || open(&mut files, "f", RWC)).unwrap();
    assert!(!files.is_direct(made));
    let refused = with_descriptors_left(0, || open(&mut files, "g", RWC));
    assert_eq!(refused, Err(Status::TOO_MANY_OPEN));
    assert!(!directory.path().join("g").exists());
}
