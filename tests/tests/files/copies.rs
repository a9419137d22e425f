//! Copies that the server makes from one file to another.

use dafs_client::{Error, Export, File, OpenOptions, Status};
use dafs_proto::wire::{CopyRequest, HEADER_SIZE, Header, Opcode};
use dafs_server::config::{ExportConfig, ExportKind};
use dafs_tests::harness::{Harness, On};
use dafs_tests::on_each_provider;
use dafs_tests::raw::Raw;
use dafs_tests::suite::{EXPORTS, Numbers, assert_invalid, assert_same, assert_status, bytes};

on_each_provider! {
    copy_between_files_brings_the_bytes_and_nothing_else,
    copy_within_a_file_may_touch_and_not_overlap,
    copy_of_a_whole_file_behind_itself_ends,
    copy_of_what_ends_early_says_so,
    copy_goes_on_where_the_server_left_the_rest,
    copy_without_the_rights_is_refused,
    copy_between_exports_is_made_or_left_to_the_client,
    copy_to_another_file_system_is_made_by_hand,
    copy_is_committed_like_any_write,
    copy_from_a_handle_that_is_none_is_answered,
}

fn make(root: &Export, name: &str, data: &[u8]) -> File {
    let file = root.create(name).unwrap();
    file.write_all_at(data, 0).unwrap();
    file
}

fn content(file: &File) -> Vec<u8> {
    let size = file.metadata().unwrap().size;
    let mut data = vec![0; size as usize];
    file.read_exact_at(&mut data, 0).unwrap();
    data
}

// [STOR-140] [STOR-141]
fn copy_between_files_brings_the_bytes_and_nothing_else(on: On) {
    let harness = Harness::start(on);
    let session = harness.session();
    let mut numbers = Numbers::new(3);
    for export in EXPORTS {
        let root = session.mount(export).unwrap();
        let mut expected = bytes(1, 300_000);
        let data = bytes(2, 500_000);
        let (source, target) = (make(&root, "source", &data), make(&root, "target", &expected));
        for round in 0..on.rounds(40) {
            // Now and then aligned, as blocks that are shared have to be.
            let unit = if round % 3 == 0 { 4096 } else { 1 };
            let mut place = |limit: u64| numbers.below(limit / unit) * unit;
            let (from, to) = (place(500_000), place(600_000));
            let len = (1 + place(200_000)).min(500_000 - from);
            assert_eq!(source.copy_range(from, len, &target, to).unwrap(), len, "{export}");
            let (from, to, len) = (from as usize, to as usize, len as usize);
            expected.resize(expected.len().max(to + len), 0);
            expected[to..to + len].copy_from_slice(&data[from..from + len]);
        }
        assert_same(&content(&target), &expected, export);
        assert_same(&content(&source), &data, export);
    }
}

// [STOR-142]
fn copy_within_a_file_may_touch_and_not_overlap(on: On) {
    let harness = Harness::start(on);
    let session = harness.session();
    for export in EXPORTS {
        let root = session.mount(export).unwrap();
        let file = make(&root, "f", b"0123456789");
        assert_eq!(file.copy_range(0, 5, &file, 5).unwrap(), 5);
        assert_eq!(content(&file), b"0123401234");
        let other = root.open_with("f", OpenOptions::new().write(true)).unwrap();
        for (from, to, len) in [(0, 4, 5), (4, 0, 5), (3, 3, 1), (0, 1, 0)] {
            assert_status(file.copy_range(from, len, &other, to), Status::INVALID, export);
        }
        assert_eq!(content(&file), b"0123401234", "{export}: nothing was copied");
        assert_eq!(file.copy_range(8, 0, &other, 10).unwrap(), 2);
        assert_eq!(content(&file), b"012340123434");
    }
}

// [STOR-140] The file grows while it is copied, and that is not copied.
fn copy_of_a_whole_file_behind_itself_ends(on: On) {
    const SIZE: u64 = (2 << 20) + 7;
    let harness = Harness::start(on);
    let session = harness.session();
    for export in ["mem", "data"] {
        let root = session.mount(export).unwrap();
        let data = bytes(4, SIZE as usize);
        let file = make(&root, "f", &data);
        let other = root.open_with("f", OpenOptions::new().write(true)).unwrap();
        assert_eq!(file.copy_range(0, 0, &other, SIZE).unwrap(), SIZE, "{export}");
        assert_same(&content(&file), &[&data[..], &data].concat(), export);
    }
    // More than one slice of a directory, and it does not begin where blocks can be shared.
    const SPARSE: u64 = (65 << 20) + 3;
    let file = session.mount("data").unwrap().create("sparse").unwrap();
    file.write_all_at(b"end", SPARSE - 3).unwrap();
    assert_eq!(file.copy_range(0, 0, &file, SPARSE).unwrap(), SPARSE);
    assert_eq!(file.metadata().unwrap().size, 2 * SPARSE);
}

// [STOR-140] [STOR-143]
fn copy_of_what_ends_early_says_so(on: On) {
    let harness = Harness::start(on);
    let session = harness.session();
    for export in EXPORTS {
        let root = session.mount(export).unwrap();
        let (source, target) = (make(&root, "source", b"abcde"), make(&root, "target", b""));
        for (offset, len, count, end) in [
            (0, 4, 4, false),
            (0, 5, 5, false),
            (0, 6, 5, true),
            (2, 0, 3, true),
            (5, 1, 0, true),
            (9, 0, 0, true),
        ] {
            let copied = source.copy_some(offset, len, &target, 0).unwrap();
            assert_eq!((copied.count, copied.end), (count, end), "{export}: {len} at {offset}");
        }
        assert_eq!(content(&target), b"cdede");
        let last = i64::MAX as u64;
        assert_status(source.copy_range(last, 1, &target, 0), Status::INVALID, export);
        assert_status(source.copy_range(0, 2, &target, last - 1), Status::TOO_LARGE, export);
        assert_invalid(source.copy_range(u64::MAX, 1, &target, 0), "an end beyond all numbers");
    }
}

// [STOR-140] [STOR-141] [STOR-144] [STOR-145]
fn copy_goes_on_where_the_server_left_the_rest(on: On) {
    const SIZE: u64 = (2 << 20) + 7;
    let harness = Harness::start(on);
    let session = harness.session();
    for export in EXPORTS {
        let root = session.mount(export).unwrap();
        let data = bytes(4, SIZE as usize);
        let (source, target) = (make(&root, "source", &data), make(&root, "target", b""));
        let first = source.submit_copy_some(0, 0, &target, 0).wait().unwrap();
        assert!(first.count > 0 && first.count <= SIZE, "{export}: {first:?}");
        assert_eq!(first.end, first.count == SIZE, "{export}");
        if export == "mem" {
            assert_eq!(first.count, 1 << 20, "the loop does no more at once");
        }
        assert_eq!(source.copy_range(0, 0, &target, 1).unwrap(), SIZE);
        assert_same(&content(&target)[1..], &data, export);
    }
    // More than one slice of a directory: nearly all of it is a hole.
    let root = session.mount("data").unwrap();
    let (source, target) = (root.create("sparse").unwrap(), root.create("full").unwrap());
    source.write_all_at(b"end", 65 << 20).unwrap();
    let first = source.copy_some(0, 0, &target, 5).unwrap();
    assert!(first.count == 64 << 20 && !first.end, "blocks that do not lie alike are not shared: {first:?}");
    assert_eq!(source.copy_range(0, 0, &target, 5).unwrap(), (65 << 20) + 3);
    let mut found = [0; 3];
    target.read_exact_at(&mut found, (65 << 20) + 5).unwrap();
    assert_eq!(&found, b"end");
}

// [STOR-147] [STOR-51]
fn copy_without_the_rights_is_refused(on: On) {
    let harness = Harness::start(on);
    let session = harness.session();
    let root = session.mount("data").unwrap();
    let both = make(&root, "both", b"12345");
    let reads = root.open("both").unwrap();
    let writes = root.open_with("other", OpenOptions::new().write(true).create(true)).unwrap();
    assert_eq!(reads.copy_range(0, 0, &writes, 0).unwrap(), 5);
    assert_status(writes.copy_range(0, 0, &both, 9), Status::BAD_HANDLE, "a source that may not be read");
    assert_status(both.copy_range(0, 0, &reads, 9), Status::BAD_HANDLE, "a target that may not be written");
    let elsewhere = harness.session();
    let other = elsewhere.mount("data").unwrap().open("both").unwrap();
    assert_invalid(other.copy_range(0, 0, &writes, 0), "a file of another session");
}

// [STOR-146] [STOR-147]
fn copy_between_exports_is_made_or_left_to_the_client(on: On) {
    let harness = Harness::start(on);
    let session = harness.session();
    let (data, mem) = (session.mount("data").unwrap(), session.mount("mem").unwrap());
    let (here, there) = (make(&data, "f", b"12345"), make(&mem, "f", b"abc"));
    for (source, target) in [(&here, &there), (&there, &here)] {
        assert_status(source.copy_range(0, 0, target, 0), Status::CROSS_DEVICE, "memory and a directory");
    }
    assert_eq!((content(&here), content(&there)), (b"12345".to_vec(), b"abc".to_vec()));
}

// [STOR-140] [STOR-143]
fn copy_to_another_file_system_is_made_by_hand(on: On) {
    let elsewhere = tempfile::tempdir_in("/dev/shm").unwrap();
    let path = elsewhere.path().to_owned();
    let harness = Harness::start_with(on, move |config| {
        config.exports.push(ExportConfig::new("elsewhere", ExportKind::Directory(path)));
    });
    let session = harness.session();
    let (data, other) = (session.mount("data").unwrap(), session.mount("elsewhere").unwrap());
    let bytes = bytes(8, (3 << 20) + 11);
    let (source, target) = (make(&data, "f", &bytes), make(&other, "f", b"old"));
    assert_eq!(source.copy_range(5, 0, &target, 1).unwrap(), bytes.len() as u64 - 5);
    assert_same(&content(&target), &[b"o", &bytes[5..]].concat(), "by hand");
    assert_eq!(target.copy_range(1, 4096, &source, 0).unwrap(), 4096);
    assert_same(&content(&source)[..4096], &bytes[5..4101], "and back");
}

// [STOR-148] [CLI-20]
fn copy_is_committed_like_any_write(on: On) {
    let mut harness = Harness::start(on);
    let session = harness.session();
    let root = session.mount("data").unwrap();
    let (source, target) = (make(&root, "source", b"12345"), make(&root, "target", b""));
    source.commit().unwrap();
    target.commit().unwrap();
    source.copy_range(1, 3, &target, 7).unwrap();
    harness.restart();
    match target.commit() {
        Err(Error::WritesLost { ranges, .. }) => assert_eq!(ranges, vec![7..10]),
        other => panic!("{other:?}"),
    }
    source.copy_range(1, 3, &target, 7).unwrap();
    target.commit().unwrap();
    assert_eq!(content(&target), [&[0; 7][..], b"234"].concat());
}

// [STOR-147]
fn copy_from_a_handle_that_is_none_is_answered(on: On) {
    let harness = Harness::start(on);
    let (mut raw, _) = Raw::session(harness.address(), 8);
    for export in EXPORTS {
        let root = raw.mount(export);
        let file = raw.create(root, b"f");
        for source in [0, u64::MAX, file.0 + 1, root.0] {
            let mut body = [0; CopyRequest::HEAD_SIZE - HEADER_SIZE];
            CopyRequest { source, source_offset: 0, offset: 0, len: 1 }.encode(&mut body);
            let reply = raw.call(Header::request(Opcode::CopyRange, file), &body, &[]);
            assert!(matches!(reply.header.status, Status::BAD_HANDLE | Status::IS_DIRECTORY), "{reply:?}");
        }
    }
}
