//! A tree of many files and a large sparse file, in and out: contents and metadata compared, the server's memory flat meanwhile.
//!
//! Small by default. With `DAFS_FULL=1` the tree has 52,000 files and the file over 8 GiB (some 3 GiB of data): have 10 GiB free
//! where `TMPDIR` points. `DAFS_TREE=DIR` takes an existing tree, such as `/usr`, instead of a generated one.
#![allow(clippy::cast_possible_truncation, reason = "sizes, patterns and tables that the tests choose")]
#![allow(clippy::unwrap_used, clippy::expect_used, reason = "all of this is test code, helpers included")]

use std::collections::VecDeque;
use std::ffi::{OsStr, OsString};
use std::fs::{self, Metadata};
use std::os::unix::ffi::{OsStrExt, OsStringExt};
use std::os::unix::fs::{FileExt, MetadataExt, PermissionsExt, symlink};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::{Duration, SystemTime};

use dafs_client::{Dir, Export, FileKind, OpenOptions, SetAttributes, SetTime, Timestamp, wait_all};
use dafs_tests::harness::On;
use dafs_tests::on_each_provider;
use dafs_tests::program::Program;
use dafs_tests::suite::{Numbers, assert_same, bytes, resident_size};

on_each_provider! {
    tree_goes_in_and_out_with_contents_and_metadata,
    large_sparse_file_goes_in_and_out_and_stays_sparse,
}

fn is_full() -> bool {
    std::env::var_os("DAFS_FULL").is_some_and(|value| value == "1")
}

/// What the server's memory may grow by beyond its transfer buffers, bytes.
const GROWTH_MAX: u64 = 128 << 20;

/// Watches the server's memory while something runs.
fn with_flat_memory(program: &Program, run: impl FnOnce()) {
    let before = resident_size(program.id());
    let (done, peak) = (AtomicBool::new(false), AtomicU64::new(0));
    std::thread::scope(|scope| {
        let watcher = scope.spawn(|| {
            while !done.load(Ordering::Acquire) {
                peak.fetch_max(resident_size(program.id()), Ordering::AcqRel);
                std::thread::park_timeout(Duration::from_millis(100));
            }
        });
        // A failed run ends the watch as well: else nobody heard of it.
        let ran = std::panic::catch_unwind(std::panic::AssertUnwindSafe(run));
        done.store(true, Ordering::Release);
        watcher.thread().unpark();
        if let Err(failure) = ran {
            std::panic::resume_unwind(failure);
        }
    });
    let grown = peak.load(Ordering::Acquire).saturating_sub(before);
    eprintln!("the server's memory grew by {} KiB at most, from {} KiB", grown >> 10, before >> 10);
    assert!(grown <= GROWTH_MAX, "the server's memory grew by {grown} bytes");
}

/// A tree with everything that trees have.
fn make_tree(root: &Path, files: u64) {
    let mut numbers = Numbers::new(7);
    fs::create_dir(root).unwrap();
    let mut directory = root.to_owned();
    for index in 0..files {
        if index % 50 == 0 {
            let depth = numbers.below(4);
            directory =
                (0..depth).fold(root.to_owned(), |path, _| path.join(format!("d{}", numbers.below(6))));
            directory.push(format!("dir{index}"));
            fs::create_dir_all(&directory).unwrap();
        }
        let name = match index % 97 {
            0 => OsString::from_vec([b"\xff\xfe raw ", index.to_string().as_bytes()].concat()),
            1 => OsString::from(format!("{index}{}", "long".repeat(60))),
            2 => OsString::from(format!("white space\n{index} ü")),
            _ => OsString::from(format!("file{index}")),
        };
        let path = directory.join(name);
        if index % 41 == 3 {
            symlink(OsStr::from_bytes(b"../\xf0 nowhere"), &path).unwrap();
            continue;
        }
        let len = match numbers.below(100) {
            0..10 => 0,
            10..80 => numbers.below(8_000),
            80..99 => numbers.below(60_000),
            _ => numbers.below(600_000),
        };
        fs::write(&path, bytes(index, len as usize)).unwrap();
        let mode = [0o644, 0o755, 0o600, 0o4711][numbers.below(4) as usize];
        fs::set_permissions(&path, PermissionsExt::from_mode(mode)).unwrap();
        let time = SystemTime::UNIX_EPOCH
            + Duration::new(numbers.below(2_000_000_000), numbers.below(1_000_000_000) as u32);
        fs::File::options().write(mode != 0o444).open(&path).unwrap().set_modified(time).unwrap();
    }
}

fn entries(directory: &Path) -> Vec<(OsString, Metadata)> {
    let mut found: Vec<_> = fs::read_dir(directory)
        .unwrap()
        .map(|entry| entry.unwrap())
        .map(|entry| (entry.file_name(), entry.path().symlink_metadata().unwrap()))
        .filter(|(_, metadata)| metadata.is_dir() || metadata.is_file() || metadata.file_type().is_symlink())
        .collect();
    found.sort_by(|a, b| a.0.cmp(&b.0));
    found
}

fn mtime(metadata: &Metadata) -> SetAttributes {
    let at = Timestamp { seconds: metadata.mtime(), nanoseconds: metadata.mtime_nsec() as u32 };
    SetAttributes { mtime: Some(SetTime::At(at)), ..SetAttributes::default() }
}

/// Copies a local directory in; returns how many files and links that were.
fn copy_in(from: &Path, to: &Dir) -> u64 {
    let mut count = 0;
    let mut options = OpenOptions::new();
    options.write(true).create_new(true);
    let here = entries(from);
    for batch in here.chunks(32) {
        let mut closing = Vec::new();
        for (name, metadata) in batch.iter().filter(|(_, metadata)| metadata.is_file()) {
            let file = to.open_with(name, options.mode(metadata.mode() & 0o7777)).unwrap();
            let data = fs::read(from.join(name)).unwrap();
            for (index, piece) in data.chunks(256 << 10).enumerate() {
                closing
                    .push((piece.len(), file.submit_write_at(piece.to_vec(), (index * (256 << 10)) as u64)));
            }
            let times = file.submit_set_attributes(&mtime(metadata));
            for (len, write) in closing.drain(..) {
                assert_eq!(write.wait().result.unwrap(), len);
            }
            times.wait().unwrap();
            // A write that ended after the times were set would have changed them, and taken set-user-id bits off.
            let set = SetAttributes { mode: Some(metadata.mode() & 0o7777), ..mtime(metadata) };
            file.set_attributes(&set).unwrap();
            count += 1;
        }
        for (name, metadata) in batch {
            if metadata.file_type().is_symlink() {
                to.symlink(fs::read_link(from.join(name)).unwrap(), name).unwrap();
                to.set_attributes(name, false, &mtime(metadata)).unwrap();
                count += 1;
            } else if metadata.is_dir() {
                to.create_dir(name, 0o700).unwrap();
                count += copy_in(&from.join(name), &to.open_dir(name).unwrap());
                let set = SetAttributes { mode: Some(metadata.mode() & 0o7777), ..mtime(metadata) };
                to.set_attributes(name, true, &set).unwrap();
            }
        }
    }
    count
}

/// Compares a directory of the server with a local one, reading everything through the client.
fn compare(from: &Path, found: &Dir) -> u64 {
    let mut count = 0;
    let mut listed: Vec<_> = found.read_dir("", true).unwrap().map(|entry| entry.unwrap()).collect();
    listed.sort_by(|a, b| a.name.cmp(&b.name));
    let here = entries(from);
    assert_eq!(listed.len(), here.len(), "{}", from.display());
    for (entry, (name, metadata)) in listed.iter().zip(&here) {
        let path = from.join(name);
        let what = path.display().to_string();
        assert_eq!(entry.name, name.as_bytes(), "{what}");
        let attributes = entry.attributes.as_ref().unwrap();
        let times = (attributes.mtime.seconds, i64::from(attributes.mtime.nanoseconds));
        assert_eq!(times, (metadata.mtime(), metadata.mtime_nsec()), "{what}");
        if metadata.file_type().is_symlink() {
            assert_eq!(attributes.kind, FileKind::Symlink, "{what}");
            let target = fs::read_link(&path).unwrap();
            assert_eq!(found.read_link(name).unwrap(), target.as_os_str().as_bytes(), "{what}");
            count += 1;
            continue;
        }
        assert_eq!(attributes.mode, metadata.mode() & 0o7777, "{what}");
        if metadata.is_dir() {
            count += compare(&path, &found.open_dir(name).unwrap());
        } else {
            assert_eq!((attributes.kind, attributes.size), (FileKind::File, metadata.len()), "{what}");
            let file = found.open(name).unwrap();
            let expected = fs::read(&path).unwrap();
            let mut data = vec![0xa5; expected.len() + 1];
            assert_eq!(file.read_at(&mut data, 0).unwrap(), expected.len(), "{what}");
            assert_same(&data[..expected.len()], &expected, &what);
            count += 1;
        }
    }
    count
}

// [STOR-44] [STOR-80]
fn tree_goes_in_and_out_with_contents_and_metadata(on: On) {
    let program = Program::start(on, &[]);
    let generated = program.scratch().join("tree");
    let tree = match std::env::var_os("DAFS_TREE") {
        Some(tree) => PathBuf::from(tree),
        None => {
            make_tree(&generated, if is_full() { 52_000 } else { on.rounds(1500) });
            generated
        }
    };
    let session = program.session();
    let root: Export = session.mount("data").unwrap();
    with_flat_memory(&program, || {
        root.create_dir("tree", 0o755).unwrap();
        let copied = copy_in(&tree, &root.open_dir("tree").unwrap());
        let compared = compare(&tree, &root.open_dir("tree").unwrap());
        assert_eq!(copied, compared);
        eprintln!("{on:?}: {copied} files and links");
        assert!(!is_full() || copied >= 50_000, "only {copied} files");
    });
    assert_eq!(session.statistics().unwrap().protocol_errors, 0);
}

const CHUNK: u64 = 1 << 20;

/// Where the data of the large file is: islands, the last at its very end. None overlaps it: they are written at the same time.
fn islands(size: u64) -> VecDeque<u64> {
    let last = size - CHUNK;
    // Two of five chunks; in the full size that is more than 3 GiB of data.
    let mut islands: VecDeque<u64> =
        (0..last / CHUNK).filter(|chunk| chunk % 5 < 2).map(|chunk| chunk * CHUNK).collect();
    islands.push_back(last);
    islands
}

// [STOR-14]
fn large_sparse_file_goes_in_and_out_and_stays_sparse(on: On) {
    let size = if is_full() { (8 << 30) + 12_345 } else { on.rounds(40 << 20).max(16 << 20) + 12_345 };
    let program = Program::start(on, &[]);
    let session = program.session();
    let root = session.mount("data").unwrap();
    let file = root.create("large").unwrap();
    file.truncate(size).unwrap();
    let data = |at: u64| bytes(at, CHUNK as usize);
    let data_size = islands(size).len() as u64 * CHUNK;
    with_flat_memory(&program, || {
        let mut islands = islands(size);
        while !islands.is_empty() {
            let batch: Vec<u64> = islands.drain(..islands.len().min(8)).collect();
            let writes = batch.iter().map(|at| file.submit_write_at(data(*at), *at)).collect::<Vec<_>>();
            for written in wait_all(writes) {
                assert_eq!(written.result.unwrap(), CHUNK as usize);
            }
        }
        file.commit().unwrap();
        // Out: data is found by seeking, as a copy would.
        let mut at = 0;
        let mut moved = 0;
        while let Ok(begin) = file.seek_data(at) {
            let end = file.seek_hole(begin).unwrap();
            let mut offset = begin;
            while offset < end {
                let len = (end - offset).min(CHUNK) as usize;
                let mut found = vec![0; len];
                file.read_exact_at(&mut found, offset).unwrap();
                moved += len as u64;
                offset += len as u64;
            }
            at = end;
        }
        assert!(moved >= data_size - CHUNK && moved <= data_size + data_size / 8, "{moved} of {data_size}");
    });
    let local = fs::File::open(program.data().join("large")).unwrap();
    let metadata = local.metadata().unwrap();
    assert_eq!(metadata.len(), size);
    assert!(metadata.blocks() * 512 <= data_size + data_size / 8, "holes take no space");
    assert_eq!(file.metadata().unwrap().allocated, metadata.blocks() * 512);
    let mut found = vec![0; CHUNK as usize];
    let mut remote = vec![0; CHUNK as usize];
    for at in islands(size) {
        local.read_exact_at(&mut found, at).unwrap();
        assert_same(&found, &data(at), "in the file");
        file.read_exact_at(&mut remote, at).unwrap();
        assert_same(&remote, &found, "through the client");
    }
    // A hole reads as zeros.
    file.read_exact_at(&mut remote, 3 * CHUNK).unwrap();
    assert!(remote.iter().all(|byte| *byte == 0));
    assert_eq!(file.read_at(&mut remote, size - 10).unwrap(), 10);
}
