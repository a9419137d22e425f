//! A tree with everything that a copy can get wrong, and what is compared.

use std::collections::BTreeMap;
use std::ffi::OsStr;
use std::fs::{self, File, FileTimes};
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::{FileExt, MetadataExt, PermissionsExt, symlink};
use std::path::{Path, PathBuf};
use std::time::{Duration, UNIX_EPOCH};

use dafs_tests::harness::On;
use dafs_tests::suite::bytes;

const LARGE_SIZE: u64 = 100 << 20;
pub(crate) const SPARSE_SIZE: u64 = 64 << 20;
const SMALL_COUNT: u64 = 2000;

/// Makes a tree of small and large, sparse, empty, deep, linked and strangely named files.
pub(crate) fn make(root: &Path, on: On) {
    fs::create_dir(root).unwrap();
    fs::write(root.join("empty"), "").unwrap();
    fs::write(root.join("one byte"), "1").unwrap();
    fs::write(root.join(OsStr::from_bytes(b"not\xff\xfeutf8\x1b[31m\n")), "strange").unwrap();
    fs::create_dir(root.join(OsStr::from_bytes(b"dir\x80"))).unwrap();
    fs::write(root.join(OsStr::from_bytes(b"dir\x80")).join("in it"), "x").unwrap();
    // Around the sizes where the way of copying changes: a message, a small file, a chunk.
    for size in [16_383, 16_384, 16_385, 262_143, 262_144, 262_145, 1_048_575, 1_048_577, 9 << 20] {
        if on.is_verbs() && size > 2 << 20 {
            continue;
        }
        fs::write(root.join(format!("size{size}")), bytes(size as u64, size)).unwrap();
    }
    let large_size = if on.is_verbs() { 3 << 20 } else { LARGE_SIZE };
    fs::write(root.join("large"), bytes(7, large_size as usize)).unwrap();
    make_sparse(&root.join("sparse"));
    File::create(root.join("all hole")).unwrap().set_len(1 << 20).unwrap();
    fs::create_dir(root.join("many")).unwrap();
    for index in 0..on.rounds(SMALL_COUNT) as usize {
        fs::write(root.join(format!("many/{index}")), bytes(index as u64, index * 7 % 9000)).unwrap();
    }
    let deep: PathBuf = (0..60).map(|level| format!("level{level}")).collect();
    fs::create_dir_all(root.join(&deep)).unwrap();
    fs::write(root.join(deep).join("leaf"), "deep").unwrap();
    symlink("one byte", root.join("link")).unwrap();
    symlink("/nowhere/at all", root.join("dangling")).unwrap();
    symlink(OsStr::from_bytes(b"\xff"), root.join("link to bytes")).unwrap();
    symlink(".", root.join("loop")).unwrap();
    fs::hard_link(root.join("size16385"), root.join("many/second name")).unwrap();
    fs::create_dir(root.join("read-only")).unwrap();
    fs::write(root.join("read-only/file"), "r").unwrap();
    fs::create_dir(root.join("empty directory")).unwrap();
    set_times(&root.join("one byte"), 1_234_567_890, 123_456_789);
    set_times(&root.join("large"), 1, 1);
    set_times(&root.join("read-only"), 981_173_106, 999_999_999);
    set_times(&root.join("level0/level1"), 0, 0);
    // Who cannot give the copy to its owner does not keep such a bit.
    let is_root = fs::metadata(root).unwrap().uid() == 0;
    for (name, mode) in [
        ("one byte", if is_root { 0o4751 } else { 0o751 }),
        ("empty", 0o600),
        ("read-only/file", 0o444),
        ("read-only", 0o555),
        ("many", 0o1777),
    ] {
        fs::set_permissions(root.join(name), fs::Permissions::from_mode(mode)).unwrap();
    }
}

/// A file with data at its beginning, in its middle, and before a hole at its end.
fn make_sparse(path: &Path) {
    let file = File::create(path).unwrap();
    file.write_all_at(&bytes(1, 5000), 0).unwrap();
    file.write_all_at(&bytes(2, 3 << 20), 20 << 20).unwrap();
    file.write_all_at(b"x", (40 << 20) + 12_345).unwrap();
    file.set_len(SPARSE_SIZE).unwrap();
}

fn set_times(path: &Path, seconds: u64, nanoseconds: u32) {
    let modified = UNIX_EPOCH + Duration::new(seconds, nanoseconds);
    let times = FileTimes::new().set_modified(modified).set_accessed(modified + Duration::from_secs(7));
    File::open(path).unwrap().set_times(times).unwrap();
}

/// What a copy keeps of a name.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Kept {
    kind_and_mode: u32,
    owner: (u32, u32),
    /// Of anything but directories.
    links: u64,
    size: u64,
    target: Option<PathBuf>,
    mtime: (i64, i64),
    /// Of files: listing directories and reading links changes theirs.
    atime: Option<(i64, i64)>,
}

pub(crate) type Tree = BTreeMap<PathBuf, Kept>;

/// Looks at a tree; reads no data, which would change the times of access.
pub(crate) fn look(root: &Path) -> Tree {
    let mut tree = Tree::new();
    let mut stack = vec![PathBuf::new()];
    while let Some(path) = stack.pop() {
        let own = root.join(&path);
        let metadata = fs::symlink_metadata(&own).unwrap();
        if metadata.is_dir() {
            stack.extend(fs::read_dir(&own).unwrap().map(|entry| path.join(entry.unwrap().file_name())));
        }
        let kept = Kept {
            kind_and_mode: metadata.mode(),
            owner: (metadata.uid(), metadata.gid()),
            links: if metadata.is_dir() { 0 } else { metadata.nlink() },
            size: if metadata.is_dir() { 0 } else { metadata.len() },
            target: metadata.is_symlink().then(|| fs::read_link(&own).unwrap()),
            mtime: (metadata.mtime(), metadata.mtime_nsec()),
            atime: metadata.is_file().then(|| (metadata.atime(), metadata.atime_nsec())),
        };
        tree.insert(path, kept);
    }
    tree
}

/// Every name of `expected` is in `found` as it was, and none more.
#[track_caller]
pub(crate) fn assert_same_tree(found: &Tree, expected: &Tree) {
    for (path, kept) in expected {
        assert_eq!(found.get(path), Some(kept), "{path:?}");
    }
    let more: Vec<_> = found.keys().filter(|path| !expected.contains_key(*path)).collect();
    assert!(more.is_empty(), "{more:?}");
}

/// All files hold the same bytes.
#[track_caller]
pub(crate) fn assert_same_data(found: &Path, expected: &Path, tree: &Tree) {
    for (path, kept) in tree {
        if kept.target.is_none() && kept.atime.is_some() {
            let (found, expected) =
                (fs::read(found.join(path)).unwrap(), fs::read(expected.join(path)).unwrap());
            dafs_tests::suite::assert_same(&found, &expected, &format!("{path:?}"));
        }
    }
}

/// Bytes of storage that a file uses.
pub(crate) fn allocated(path: &Path) -> u64 {
    fs::metadata(path).unwrap().blocks() * 512
}
