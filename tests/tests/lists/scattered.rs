//! Contiguous transfers of many pieces of registered memory, of files that the server reads again and again.

use std::ops::Range;
use std::path::Path;

use dafs_client::{Config, Extent, Noncontiguous, RegisteredBuf};
use dafs_server::config::{ExportConfig, ExportKind};
use dafs_tests::harness::{Harness, On};
use dafs_tests::on_each_provider;
use dafs_tests::suite::{assert_same, bytes, is_all};

on_each_provider! {
    scattered_read_is_short_only_at_the_end_of_file,
    write_from_many_pieces_leaves_their_bytes_and_no_others,
}

const MIB: usize = 1 << 20;
/// Two windows of a mapped file, and an end in the middle of a page of the third.
const SIZE: usize = 2 * MIB + 12_345;
const PIECES: usize = 100;
const LENS: [usize; 3] = [100, 1024, 3001];

/// A server whose export `hot` is in memory, where files are mapped, if this machine has such a file system.
fn harness(on: On) -> (Harness, tempfile::TempDir) {
    let shared = Path::new("/dev/shm");
    let memory = if shared.is_dir() { tempfile::tempdir_in(shared) } else { tempfile::tempdir() };
    let memory = memory.expect("a directory");
    let kind = ExportKind::Directory(memory.path().to_owned());
    (Harness::start_with(on, |config| config.exports.push(ExportConfig::new("hot", kind))), memory)
}

/// Pieces of so many bytes, not in order, with gaps.
fn parts(len: usize) -> Vec<Range<usize>> {
    (0..PIECES).map(|i| i * 37 % PIECES * (len + 7)).map(|from| from..from + len).collect()
}

fn gathered(buffer: &RegisteredBuf, parts: &[Range<usize>]) -> Vec<u8> {
    parts.iter().flat_map(|part| buffer[part.clone()].to_vec()).collect()
}

// [LIST-1] [LIST-5] [LIST-9]
fn scattered_read_is_short_only_at_the_end_of_file(on: On) {
    let (harness, _memory) = harness(on);
    let session = harness.session_with(&Config { noncontiguous: Noncontiguous::Gather, ..Config::default() });
    for export in ["hot", "data", "mem"] {
        let file = session.mount(export).unwrap().create("f").unwrap();
        let data = bytes(3, SIZE);
        file.write_all_at(&data, 0).unwrap();
        let mut all = session.buffer(SIZE).unwrap();
        for _ in 0..6 {
            // As often as makes it worth mapping.
            file.read_buf_at(&mut all, 0).unwrap();
        }
        for len in LENS {
            let (total, parts) = (PIECES * len, parts(len));
            for at in [0, 1, MIB - total / 2, 2 * MIB - 1, SIZE - total, SIZE - total + 1, SIZE - 1, SIZE] {
                let what = format!("{export}: {PIECES} of {len} at {at}");
                let mut buffer = session.buffer(PIECES * (len + 7)).unwrap();
                buffer.fill(0xa5);
                let extent = Extent::new(at as u64, total as u64);
                let read = file.read_list_buf(&[extent], &mut buffer, &parts).unwrap();
                let count = total.min(SIZE - at);
                assert_eq!(read.count, count, "{what}");
                let found = gathered(&buffer, &parts);
                assert_same(&found[..count], &data[at..at + count], &what);
                let mut gaps = buffer.chunks(len + 7).map(|row| &row[len..]);
                assert!(gaps.all(|gap| is_all(gap, 0xa5)), "{what}: between the pieces");
            }
        }
        // The file is cut while it is mapped.
        file.truncate(MIB as u64).unwrap();
        let (len, parts) = (3001, parts(3001));
        let mut buffer = session.buffer(PIECES * (len + 7)).unwrap();
        let extent = Extent::new((MIB - 1000) as u64, (PIECES * len) as u64);
        let read = file.read_list_buf(&[extent], &mut buffer, &parts).unwrap();
        assert_eq!(read.count, 1000, "{export}");
        assert_same(&gathered(&buffer, &parts)[..1000], &data[MIB - 1000..MIB], export);
    }
}

// [LIST-1] [LIST-9]
fn write_from_many_pieces_leaves_their_bytes_and_no_others(on: On) {
    let (harness, _memory) = harness(on);
    let session = harness.session_with(&Config { noncontiguous: Noncontiguous::Gather, ..Config::default() });
    for export in ["hot", "data", "mem"] {
        let file = session.mount(export).unwrap().create("f").unwrap();
        let mut model = bytes(4, SIZE);
        file.write_all_at(&model, 0).unwrap();
        for len in LENS {
            let (total, parts) = (PIECES * len, parts(len));
            for at in [0, 1, MIB - total / 2, SIZE - total, SIZE - 1] {
                let what = format!("{export}: {PIECES} of {len} at {at}");
                let mut buffer = session.buffer(PIECES * (len + 7)).unwrap();
                buffer.copy_from_slice(&bytes((len + at) as u64, PIECES * (len + 7)));
                let extent = Extent::new(at as u64, total as u64);
                assert_eq!(file.write_list_buf(&[extent], &buffer, &parts).unwrap(), total, "{what}");
                model.resize(model.len().max(at + total), 0);
                model[at..at + total].copy_from_slice(&gathered(&buffer, &parts));
                let mut found = vec![0; model.len() + 1];
                assert_eq!(file.read_at(&mut found, 0).unwrap(), model.len(), "{what}");
                assert_same(&found[..model.len()], &model, &what);
            }
        }
    }
}
