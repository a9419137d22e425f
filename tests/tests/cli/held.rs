//! `dafs cp -r`, `rm -r` and `ls -R`: directories are reached by one name in another that is held. So what another user puts in the
//! place of one is not followed, and trees of any depth need few descriptors.

use std::ffi::OsStr;
use std::fs;
use std::os::fd::OwnedFd;
use std::os::unix::fs::symlink;
use std::path::{Path, PathBuf};
use std::process::Stdio;

use dafs_tests::faulty::{Fault, Kind};
use dafs_tests::harness::{Harness, On};
use dafs_tests::on_sockets;
use dafs_tests::program::Program;
use rustix::fs::{CWD, Mode, OFlags, mkdirat, openat};

use crate::programs::{command, dafs};

// Nothing of this depends on how the data travels.
on_sockets! {
    copy_from_a_server_reads_through_no_planted_link,
    copy_to_a_server_reads_through_no_planted_link,
    copy_to_a_server_writes_through_no_planted_link,
    copy_from_a_server_writes_through_no_planted_link,
    tree_of_any_depth_is_copied_listed_and_removed_with_few_descriptors,
}

const TREE: [&str; 3] = ["a/b/1", "a/2", "c/3"];

fn make(root: &Path, content: &str) {
    for path in TREE.map(|path| root.join(path)) {
        fs::create_dir_all(path.parent().unwrap()).unwrap();
        fs::write(path, content).unwrap();
    }
}

/// All files below, with what is in them; links are not followed.
fn contents(root: &Path) -> Vec<(PathBuf, String)> {
    let mut found = Vec::new();
    for entry in fs::read_dir(root).into_iter().flatten().map(Result::unwrap) {
        let kind = entry.file_type().unwrap();
        if kind.is_dir() {
            found.extend(contents(&entry.path()));
        } else if kind.is_file() {
            found.push((entry.path(), fs::read_to_string(entry.path()).unwrap()));
        }
    }
    found.sort();
    found
}

fn remove(path: &Path) {
    let _ = fs::remove_file(path);
    let _ = fs::remove_dir_all(path);
}

fn url(harness: &Harness, path: &str) -> String {
    let (server, on_socket) = (harness.url(), harness.url().starts_with("dafs+shm"));
    format!("{server}{}/{path}", if on_socket { ":" } else { "" })
}

/// What a tree is copied from and to, and where links are put into it.
struct Scene {
    harness: Harness,
    local: tempfile::TempDir,
}

impl Scene {
    fn side(&self, on_server: bool) -> PathBuf {
        if on_server { self.harness.data() } else { self.local.path().to_owned() }
    }

    /// At each operation of a copy, down from the server or up, the owner of the tree, or of its copy, puts a link in a directory's
    /// place, to another tree beside.
    fn run(on: On, is_down: bool, swaps_copy: bool) {
        let (harness, faults) = Harness::start_faulty(on, |_| {});
        let scene = Self { harness, local: tempfile::tempdir().unwrap() };
        let (from, to) = (scene.side(is_down), scene.side(!is_down));
        let swapped = if swaps_copy { to.join("copy") } else { from.join("tree") };
        let (other, aside) =
            (swapped.parent().unwrap().join("other"), swapped.parent().unwrap().join("aside"));
        make(&other, "other");
        let before = contents(&other);
        let (tree, copy) = match is_down {
            true => (url(&scene.harness, "data/tree"), to.join("copy").to_str().unwrap().to_owned()),
            false => (from.join("tree").to_str().unwrap().to_owned(), url(&scene.harness, "data/copy")),
        };
        let mut swaps = 0;
        for kind in [Kind::Open, Kind::Readdir, Kind::Write, Kind::Other] {
            for path in ["a", "a/b"] {
                for nth in 0.. {
                    make(&from.join("tree"), "own");
                    faults.next(kind, Fault::Pass, nth);
                    faults.next(kind, Fault::Hold, 1);
                    let words = ["cp", "-r", "--jobs=1", "-q", &tree, &copy];
                    let mut cp = command(words).stderr(Stdio::null()).spawn().unwrap();
                    while faults.held() == 0 && cp.try_wait().unwrap().is_none() {
                        std::thread::yield_now();
                    }
                    let was_held = faults.held() > 0;
                    let place = swapped.join(path);
                    if was_held && fs::rename(&place, &aside).is_ok() {
                        // Below the export, as links must be that the server follows.
                        let up: PathBuf =
                            Path::new("x").join(path).components().skip(1).map(|_| "..").collect();
                        symlink(up.join("other").join(path), &place).unwrap();
                        swaps += 1;
                    }
                    faults.release();
                    cp.wait().unwrap();
                    assert_eq!(contents(&other), before, "{path:?} swapped at {kind:?} {nth}");
                    let taken = contents(&to.join("copy"));
                    assert!(
                        taken.iter().all(|(_, content)| content != "other"),
                        "{path:?} swapped at {kind:?} {nth}: {taken:?}"
                    );
                    for path in [&from.join("tree"), &to.join("copy"), &aside] {
                        remove(path);
                    }
                    if !was_held {
                        break;
                    }
                }
            }
        }
        assert!(swaps >= 10, "{swaps} links were put there");
    }
}

// [CMD-103]
fn copy_from_a_server_reads_through_no_planted_link(on: On) {
    Scene::run(on, true, false);
}

// [CMD-103]
fn copy_to_a_server_reads_through_no_planted_link(on: On) {
    Scene::run(on, false, false);
}

// [CMD-103]
fn copy_to_a_server_writes_through_no_planted_link(on: On) {
    Scene::run(on, false, true);
}

// [CMD-103]
fn copy_from_a_server_writes_through_no_planted_link(on: On) {
    Scene::run(on, true, true);
}

/// Makes directories in one another, all of this name; a file in the last.
fn make_deep(root: &Path, name: &str, depth: usize) {
    let open = |base: &OwnedFd, name: &OsStr| {
        openat(base, name, OFlags::DIRECTORY | OFlags::RDONLY | OFlags::CLOEXEC, Mode::empty()).unwrap()
    };
    fs::create_dir(root).unwrap();
    let mut held = openat(CWD, root, OFlags::DIRECTORY | OFlags::CLOEXEC, Mode::empty()).unwrap();
    for _ in 0..depth {
        mkdirat(&held, name, Mode::from_raw_mode(0o755)).unwrap();
        held = open(&held, name.as_ref());
    }
    mkdirat(&held, "last", Mode::from_raw_mode(0o755)).unwrap();
}

// [CMD-97] [CMD-108]
fn tree_of_any_depth_is_copied_listed_and_removed_with_few_descriptors(on: On) {
    const DEPTH: usize = 2500;
    let program = Program::start_limited(on, &[], Some(256));
    let (data, local) = (program.data(), tempfile::tempdir().unwrap());
    let server = program.address().to_string();
    let colon = if on == On::Shm { ":" } else { "" };
    let url = |path: &str| format!("{server}{colon}/data/{path}");
    let back = local.path().join("back");
    make_deep(&data.join("tree"), "level", DEPTH);
    dafs(["cp", "-r", &url("tree"), back.to_str().unwrap()]).succeeded();
    dafs(["cp", "-r", back.to_str().unwrap(), &url("again")]).succeeded();
    let listed = dafs(["ls", "-R", &url("again")]).succeeded();
    assert_eq!(listed.stdout.split(|byte| *byte == b'\n').filter(|line| *line == b"level").count(), DEPTH);
    assert_eq!(listed.stdout.split(|byte| *byte == b'\n').filter(|line| *line == b"last").count(), 1);
    dafs(["rm", "-r", &url("tree"), &url("again")]).succeeded();
    assert_eq!(fs::read_dir(&data).unwrap().count(), 0);
    let removed = std::process::Command::new("rm").arg("-r").arg(&back).status().unwrap();
    assert!(removed.success());
}
