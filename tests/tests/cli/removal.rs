//! `dafs rm -r` of a tree that another user changes meanwhile: what is in it may be lost, nothing else.

use std::collections::BTreeSet;
use std::fs;
use std::os::unix::fs::symlink;
use std::path::{Path, PathBuf};
use std::process::Stdio;

use dafs_tests::faulty::{Fault, Kind};
use dafs_tests::harness::{Harness, On};
use dafs_tests::on_sockets;
use dafs_tests::program::{Signal, signal};

use crate::programs::{command, dafs};

// Nothing of this depends on how the data travels.
on_sockets! {
    rm_of_a_tree_follows_no_planted_link,
    rm_of_a_wide_and_deep_tree_leaves_nothing,
    rm_of_files_that_is_interrupted_leaves_the_rest,
    rm_whose_server_goes_away_says_so_once,
    directory_without_end_is_worked_through_as_it_is_listed,
    directories_of_a_tree_are_listed_at_the_same_time,
}

/// What is removed, and, with the same names, what must not be.
const TREE: [&str; 6] = ["a/b/empty/", "a/b/1", "a/b/2", "a/3", "c/4", "empty/"];

fn make(root: &Path) {
    for path in TREE.map(|path| root.join(path)) {
        let directory = if path.to_str().unwrap().ends_with('/') { &path } else { path.parent().unwrap() };
        fs::create_dir_all(directory).unwrap();
        if directory != path {
            fs::write(&path, "").unwrap();
        }
    }
}

fn names(root: &Path) -> BTreeSet<PathBuf> {
    let mut found = BTreeSet::from([root.to_owned()]);
    for entry in fs::read_dir(root).unwrap().map(Result::unwrap) {
        match entry.file_type().unwrap().is_dir() {
            true => found.extend(names(&entry.path())),
            false => drop(found.insert(entry.path())),
        }
    }
    found
}

fn url(harness: &Harness, path: &str) -> String {
    let (server, on_socket) = (harness.url(), harness.url().starts_with("dafs+shm"));
    format!("{server}{}/{path}", if on_socket { ":" } else { "" })
}

// At each operation of the removal the tree's owner puts a link in a directory's place.
fn rm_of_a_tree_follows_no_planted_link(on: On) {
    let (harness, faults) = Harness::start_faulty(on, |_| {});
    let (tree, kept, aside) =
        (harness.data().join("tree"), harness.data().join("kept"), harness.data().join("aside"));
    make(&kept);
    let expected = names(&kept);
    let swap = |path: &str| {
        let own = Path::new("tree").join(path);
        // Below the export, as links must be that the server follows.
        let up: PathBuf = own.components().skip(1).map(|_| "..").collect();
        let own: PathBuf = harness.data().join(&own).components().collect();
        if fs::rename(&own, &aside).is_ok() {
            // Other removals are in flight: what it was in may be gone by now.
            let _ = symlink(up.join("kept").join(path), own);
        }
    };
    for kind in [Kind::Open, Kind::Readdir, Kind::Other] {
        for path in ["", "a", "a/b", "a/b/empty", "c", "empty"] {
            for nth in 0.. {
                make(&tree);
                faults.next(kind, Fault::Pass, nth);
                faults.next(kind, Fault::Hold, 1);
                let mut rm =
                    command(["rm", "-r", &url(&harness, "data/tree")]).stderr(Stdio::null()).spawn().unwrap();
                while faults.held() == 0 && rm.try_wait().unwrap().is_none() {
                    std::thread::yield_now();
                }
                let was_held = faults.held() > 0;
                if was_held {
                    swap(path);
                }
                faults.release();
                rm.wait().unwrap();
                assert_eq!(names(&kept), expected, "{path:?} swapped at {kind:?} {nth}");
                for path in [&tree, &aside] {
                    let _ = fs::remove_file(path);
                    let _ = fs::remove_dir_all(path);
                }
                if !was_held {
                    break;
                }
            }
        }
    }
}

fn rm_of_a_wide_and_deep_tree_leaves_nothing(on: On) {
    let harness = Harness::start(on);
    let tree = harness.data().join("tree");
    let deep: PathBuf = (0..200).map(|level| format!("level{level}")).collect();
    fs::create_dir_all(tree.join(&deep)).unwrap();
    for level in deep.ancestors() {
        for name in ["x", "y", "z"] {
            fs::create_dir(tree.join(level).join(name)).unwrap();
            fs::write(tree.join(level).join(name).join("file"), "").unwrap();
        }
    }
    for number in 0..300 {
        fs::create_dir_all(tree.join(format!("wide/{number}/below"))).unwrap();
    }
    dafs(["rm", "-r", &url(&harness, "data/tree")]).succeeded();
    assert_eq!(fs::read_dir(harness.data()).unwrap().count(), 0);
}

fn rm_of_files_that_is_interrupted_leaves_the_rest(on: On) {
    let (harness, faults) = Harness::start_faulty(on, |_| {});
    let names = ["1", "2", "3", "4"];
    for name in names {
        fs::write(harness.data().join(name), "").unwrap();
    }
    let left = || names.into_iter().filter(|name| harness.data().join(name).exists()).count();
    let urls = names.map(|name| url(&harness, &format!("data/{name}")));
    // The first that is held when one is gone.
    faults.next(Kind::Other, Fault::Hold, 1);
    let mut rm = command(["rm"]);
    let mut rm = rm.args(&urls).stderr(Stdio::null()).spawn().unwrap();
    while faults.held() == 0 {
        std::thread::yield_now();
    }
    signal(rm.id(), Signal::INT).unwrap();
    // It has the signal when it is not pending any more.
    while is_pending(rm.id()) {
        std::thread::yield_now();
    }
    let before = left();
    faults.release();
    assert_eq!(rm.wait().unwrap().code(), Some(130));
    assert!((before - 1..=before).contains(&left()) && left() > 0, "{} of {before} left", left());
}

/// Whether a process has signals that wait for it.
fn is_pending(pid: u32) -> bool {
    let status = fs::read_to_string(format!("/proc/{pid}/status")).unwrap();
    let masks = status.lines().filter_map(|line| line.split_once("Pnd:"));
    masks.map(|(_, mask)| mask.trim()).any(|mask| mask.bytes().any(|digit| digit != b'0'))
}

/// Directories of one that a command knows and has not begun with: what it says itself, and a batch of the listing.
const KNOWN_MAX: u64 = 4096 + 2048;

// [CMD-25]
fn directory_without_end_is_worked_through_as_it_is_listed(on: On) {
    for words in [&["rm", "-r"][..], &["cp", "-r", "--jobs", "1"]] {
        let (harness, faults) = Harness::start_faulty(on, |_| {});
        for number in 0..500 {
            fs::create_dir_all(harness.data().join(format!("tree/{number:08}"))).unwrap();
        }
        faults.list_without_end();
        // That of the tree itself.
        faults.next(Kind::Open, Fault::Pass, 1);
        faults.next(Kind::Open, Fault::Hold, usize::MAX);
        let copy = harness.scratch().join("copy");
        let mut command = command(words);
        // It says more than a pipe holds: none of what it lists can be opened.
        let said = fs::File::create(harness.scratch().join("said")).unwrap();
        command.arg(url(&harness, "data/tree")).stderr(said);
        if words[0] == "cp" {
            command.arg(&copy);
        }
        let mut running = command.spawn().unwrap();
        while faults.held() == 0 {
            assert!(running.try_wait().unwrap().is_none(), "{words:?} ended before it listed what it found");
            std::thread::yield_now();
        }
        // Whoever would list on does so meanwhile.
        let bystander = harness.session();
        (0..500).for_each(|_| bystander.probe().unwrap());
        assert!(faults.listed() <= KNOWN_MAX, "{words:?}: {} entries were listed first", faults.listed());
        faults.release();
        while faults.listed() < 2 * KNOWN_MAX {
            assert!(running.try_wait().unwrap().is_none(), "{words:?} ended");
            std::thread::yield_now();
        }
        signal(running.id(), Signal::INT).unwrap();
        assert_eq!(running.wait().unwrap().code(), Some(130), "{words:?}");
    }
}

// [CMD-41]
fn rm_whose_server_goes_away_says_so_once(on: On) {
    let (mut harness, faults) = Harness::start_faulty(on, |config| config.drain_ms = 1);
    for number in 0..100 {
        fs::create_dir_all(harness.data().join(format!("tree/{number}"))).unwrap();
    }
    // That of the top is listed.
    faults.next(Kind::Readdir, Fault::Pass, 1);
    faults.next(Kind::Readdir, Fault::Hold, usize::MAX);
    let url = url(&harness, "data/tree");
    // The others are not tried any more.
    let others = [1, 2, 3].map(|number| format!("{url}/{number}"));
    let words = ["rm", "-r", "--timeout=5", &url, &others[0], &others[1], &others[2]];
    let removal = command(words).stderr(Stdio::piped()).spawn().unwrap();
    faults.wait_for_held(1);
    harness.stop();
    let output = removal.wait_with_output().unwrap();
    let said = String::from_utf8_lossy(&output.stderr);
    assert_eq!(output.status.code(), Some(1), "{said}");
    // What waited may have ended by its time before the session did.
    assert!((1..=2).contains(&said.matches("dafs: cannot ").count()), "{said}");
}

// [CMD-106]
fn directories_of_a_tree_are_listed_at_the_same_time(on: On) {
    for words in [&["ls", "-R"][..], &["rm", "-r"]] {
        for kind in [Kind::Open, Kind::Readdir] {
            let (harness, faults) = Harness::start_faulty(on, |_| {});
            let expected: Vec<String> =
                (0..100).flat_map(|number| [format!("{number}"), format!("{number}/below")]).collect();
            expected
                .iter()
                .for_each(|path| fs::create_dir_all(harness.data().join("tree").join(path)).unwrap());
            // That of the tree itself.
            faults.next(kind, Fault::Pass, 1);
            faults.next(kind, Fault::Hold, usize::MAX);
            let mut command = command(words);
            command.arg(url(&harness, "data/tree")).stdout(Stdio::piped()).stderr(Stdio::piped());
            let running = command.spawn().unwrap();
            faults.wait_for_held(50);
            faults.release();
            let output = running.wait_with_output().unwrap();
            assert_eq!(
                (output.status.code(), &*String::from_utf8_lossy(&output.stderr)),
                (Some(0), ""),
                "{words:?}"
            );
            let listed = String::from_utf8(output.stdout).unwrap();
            let headings: Vec<&str> = listed.lines().filter_map(|line| line.strip_suffix(':')).collect();
            match words[0] {
                "rm" => assert!(!harness.data().join("tree").exists()),
                _ => {
                    let mut sorted = expected.clone();
                    sorted.sort_by(|one, other| Path::new(one).cmp(Path::new(other)));
                    let sorted = sorted.iter().map(|path| format!("{}/{path}", url(&harness, "data/tree")));
                    assert_eq!(headings[1..], sorted.collect::<Vec<_>>());
                }
            }
        }
    }
}
