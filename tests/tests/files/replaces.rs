//! Files that get their name when they are whole, in the place of another.

use dafs_client::{Error, Export, OpenOptions, Status};
use dafs_tests::faulty::{Fault, Kind};
use dafs_tests::harness::{Harness, On};
use dafs_tests::on_each_provider;
use dafs_tests::suite::{EXPORTS, assert_invalid, assert_same, assert_status, bytes};

on_each_provider! {
    replaced_file_is_wholly_new_and_the_old_stays_open,
    replace_makes_a_file_where_there_is_none,
    replace_that_fails_leaves_the_old_file_and_nothing_else,
    file_without_a_name_gets_one_or_is_gone,
    link_over_a_name_replaces_files_and_nothing_else,
    replace_without_nameless_files_uses_a_temporary_name,
}

fn content(root: &Export, path: &str) -> Vec<u8> {
    let size = root.metadata(path).unwrap().size;
    let mut data = vec![0; size as usize];
    root.open(path).unwrap().read_exact_at(&mut data, 0).unwrap();
    data
}

fn names(root: &Export, path: &str) -> Vec<Vec<u8>> {
    let mut names: Vec<_> = root.read_dir(path, false).unwrap().map(|entry| entry.unwrap().name).collect();
    names.sort();
    names
}

// [STOR-170] [STOR-173]
fn replaced_file_is_wholly_new_and_the_old_stays_open(on: On) {
    let harness = Harness::start(on);
    let session = harness.session();
    for export in EXPORTS {
        let root = session.mount(export).unwrap();
        root.create_dir("d", 0o755).unwrap();
        root.create("d/f").unwrap().write_all_at(b"old content", 0).unwrap();
        let old = root.open("d/f").unwrap();
        for len in [0, 1, 5000, 200_000, 3 << 20] {
            let data = bytes(len as u64, len);
            root.replace("d/f", &data, 0o640).unwrap();
            assert_same(&content(&root, "d/f"), &data, export);
            let found = root.metadata("d/f").unwrap();
            assert_eq!((found.mode, found.links), (0o640, 1), "{export}");
            assert_eq!(names(&root, "d"), [b"f"], "{export}: nothing is left behind");
        }
        let mut found = [0; 11];
        old.read_exact_at(&mut found, 0).unwrap();
        assert_eq!(&found, b"old content", "{export}: who had it open reads on");
    }
}

// [STOR-170]
fn replace_makes_a_file_where_there_is_none(on: On) {
    let harness = Harness::start(on);
    let session = harness.session();
    for export in EXPORTS {
        let root = session.mount(export).unwrap();
        let before = session.statistics().unwrap();
        root.replace("new", b"first", 0o600).unwrap();
        assert_eq!(content(&root, "new"), b"first");
        root.create_dir("d", 0o755).unwrap();
        let directory = root.open_dir("d").unwrap();
        directory.replace("f", b"second", 0o600).unwrap();
        directory.replace("/f", b"third", 0o600).unwrap();
        assert_eq!(content(&root, "d/f"), b"third");
        session.probe().unwrap();
        let opens = |statistics: dafs_client::Statistics| {
            let count = statistics.operations.iter().find(|(name, _)| name == "Rename");
            count.map_or(0, |(_, count)| *count)
        };
        assert_eq!(opens(session.statistics().unwrap()), opens(before), "{export}: by nameless files");
    }
}

// [STOR-170] [STOR-171]
fn replace_that_fails_leaves_the_old_file_and_nothing_else(on: On) {
    let (harness, faults) = Harness::start_faulty(on, |_| {});
    let session = harness.session();
    for export in EXPORTS {
        let root = session.mount(export).unwrap();
        root.create("f").unwrap().write_all_at(b"old", 0).unwrap();
        root.create_dir("d", 0o755).unwrap();
        session.probe().unwrap();
        let handles = session.statistics().unwrap().handles;
        for (kind, status) in [(Kind::Write, Status::NO_SPACE), (Kind::Commit, Status::IO)] {
            faults.next(kind, Fault::Fail(status), 1);
            assert_status(root.replace("f", b"new", 0o600), status, export);
            assert_eq!(content(&root, "f"), b"old", "{export}");
        }
        // What comes short is no new file either: the rest is written, or an error.
        for len in [10_000, 40_000] {
            let data = bytes(len as u64, len);
            faults.next(Kind::Write, Fault::Short, 1);
            root.replace("f", &data, 0o600).unwrap();
            assert_same(&content(&root, "f"), &data, export);
        }
        root.replace("f", b"old", 0o600).unwrap();
        assert_status(root.replace("d", b"new", 0o600), Status::IS_DIRECTORY, export);
        assert_status(root.replace("missing/f", b"new", 0o600), Status::NOT_FOUND, export);
        assert_status(root.replace("f/x", b"new", 0o600), Status::NOT_DIRECTORY, export);
        assert_invalid(root.replace("f", b"new", 0o10000), "a mode that is none");
        assert_eq!(names(&root, ""), [b"d", b"f"], "{export}: nothing is left behind");
        session.probe().unwrap();
        assert_eq!(session.statistics().unwrap().handles, handles, "{export}: nothing stays open");
    }
}

// [STOR-171] [STOR-172] [STOR-173]
fn file_without_a_name_gets_one_or_is_gone(on: On) {
    let harness = Harness::start(on);
    let session = harness.session();
    for export in EXPORTS {
        let root = session.mount(export).unwrap();
        let file = root.open_unnamed("", 0o600).unwrap();
        file.write_all_at(b"content", 0).unwrap();
        assert_eq!(file.metadata().unwrap().links, 0, "{export}");
        assert!(names(&root, "").is_empty(), "{export}");
        file.commit().unwrap();
        assert_eq!(file.link_to(&root, "f", false).unwrap().links, 1);
        file.commit().unwrap();
        assert_status(file.link_to(&root, "f", false), Status::EXISTS, export);
        assert_eq!(file.link_to(&root, "g", false).unwrap().links, 2);
        root.remove_file("g").unwrap();
        assert_eq!(content(&root, "f"), b"content");
        drop(root.open_unnamed("", 0o600).unwrap());
        // In a chain, and a name that is taken.
        let chain = root.chain().open_unnamed("", 0o600).write_at(b"x", 0).link_to(&root, "f", false);
        assert_status(chain.close().run(), Status::EXISTS, export);
        let chain = root.chain().open_unnamed("", 0o600).write_at(b"x", 0).link_to(&root, "h", false);
        chain.commit().close().run().unwrap();
        assert_eq!(names(&root, ""), [b"f", b"h"], "{export}");
        assert_status(root.open_unnamed("f", 0o600).map(drop), Status::NOT_DIRECTORY, export);
        assert_status(root.open_unnamed("missing", 0o600).map(drop), Status::NOT_FOUND, export);
        // A file whose name was removed stays without one.
        let removed = root.open_with("h", OpenOptions::new().read(true).write(true)).unwrap();
        root.remove_file("h").unwrap();
        assert_status(removed.link_to(&root, "h", false).map(drop), Status::NOT_FOUND, export);
        // One that could not replace a directory can get a name still.
        root.create_dir("d", 0o755).unwrap();
        let file = root.open_unnamed("", 0o600).unwrap();
        assert_status(file.link_to(&root, "d", true).map(drop), Status::IS_DIRECTORY, export);
        assert_eq!(file.link_to(&root, "f", true).unwrap().links, 1, "{export}");
    }
}

// [STOR-174] [STOR-170]
fn replace_without_nameless_files_uses_a_temporary_name(on: On) {
    let (harness, faults) = Harness::start_faulty(on, |_| {});
    let session = harness.session();
    for export in EXPORTS {
        let root = session.mount(export).unwrap();
        root.create_dir("d", 0o755).unwrap();
        root.create("d/f").unwrap().write_all_at(b"old", 0).unwrap();
        let unknown = || faults.next(Kind::Open, Fault::Fail(Status::NOT_SUPPORTED), 1);
        unknown();
        root.replace("d/f", b"new", 0o640).unwrap();
        assert_eq!((content(&root, "d/f"), root.metadata("d/f").unwrap().mode), (b"new".to_vec(), 0o640));
        unknown();
        faults.next(Kind::Commit, Fault::Fail(Status::IO), 1);
        assert_status(root.replace("d/f", b"newer", 0o640), Status::IO, export);
        unknown();
        root.create_dir("d/x", 0o755).unwrap();
        assert_status(root.replace("d/x", b"file", 0o640), Status::IS_DIRECTORY, export);
        assert_eq!(content(&root, "d/f"), b"new", "{export}");
        assert_eq!(names(&root, "d"), [b"f", b"x"], "{export}: nothing is left behind");
    }
}

// [STOR-170] [STOR-172]
fn link_over_a_name_replaces_files_and_nothing_else(on: On) {
    let harness = Harness::start(on);
    let session = harness.session();
    for export in EXPORTS {
        let root = session.mount(export).unwrap();
        for name in ["a", "b"] {
            root.create(name).unwrap().write_all_at(name.as_bytes(), 0).unwrap();
        }
        root.create_dir("d", 0o755).unwrap();
        root.symlink("d", "s").unwrap();
        let file = root.open("a").unwrap();
        assert_status(file.link_to(&root, "d", true).map(drop), Status::IS_DIRECTORY, export);
        assert_eq!(file.link_to(&root, "b", true).unwrap().links, 2);
        assert_eq!(content(&root, "b"), b"a");
        // Both are names of it by now.
        assert_eq!(file.link_to(&root, "b", true).unwrap().links, 2);
        assert_eq!(file.link_to(&root, "s", true).unwrap().links, 3, "{export}: the link itself is replaced");
        assert_eq!(names(&root, ""), [b"a", b"b", b"d", b"s"], "{export}");
        let other = harness.session();
        let elsewhere = other.mount(export).unwrap();
        assert!(matches!(file.link_to(&elsewhere, "x", true), Err(Error::Invalid(_))));
    }
}
