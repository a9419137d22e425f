//! `dafs cp`: owners, modes and set-id bits, of files and of directories that were there.

use std::fs;
use std::os::unix::fs::{MetadataExt, PermissionsExt, chown, symlink};
use std::path::Path;

use dafs_proto::wire::Status;
use dafs_tests::faulty::{Fault, Kind};
use dafs_tests::harness::{Harness, On};
use dafs_tests::on_sockets;

use crate::programs::{World, command, dafs};
use crate::trees::{assert_same_data, look};

on_sockets! {
    copy_from_a_server_makes_nobody_s_program_run_as_another,
    copy_without_owners_keeps_all_else,
    copy_into_directories_of_others_leaves_their_attributes,
    copy_to_where_attributes_cannot_be_set_is_whole,
    #[ignore = "needs root"]
    copy_over_a_file_of_another_that_may_be_written_is_whole,
    #[ignore = "needs root"]
    copy_down_to_where_root_gives_nothing_away_keeps_all_else,
    #[ignore = "needs root"]
    copy_that_keeps_owners_does_so_of_all_that_it_may,
}

// [CMD-5] [CMD-16]
fn copy_from_a_server_makes_nobody_s_program_run_as_another(on: On) {
    let world = World::start(on);
    let (tree, own) = (world.data().join("tree"), fs::metadata(world.data()).unwrap().uid());
    fs::create_dir_all(tree.join("below")).unwrap();
    fs::write(tree.join("large"), dafs_tests::suite::bytes(1, 600_000)).unwrap();
    fs::write(tree.join("below/small"), "small").unwrap();
    let modes = [("large", 0o6751), ("below/small", 0o4755), ("below", 0o2750)];
    for (name, mode) in modes {
        if own == 0 {
            chown(tree.join(name), Some(1234), Some(4321)).unwrap();
        }
        fs::set_permissions(tree.join(name), fs::Permissions::from_mode(mode)).unwrap();
    }
    let url = world.url("data/tree");
    for (number, options) in [&["-r"][..], &["-pr", "--no-owner"]].into_iter().enumerate() {
        let into = world.local(&format!("copies{number}"));
        fs::create_dir(&into).unwrap();
        let copy = into.join("tree");
        // The second time it stands there already.
        for _ in 0..2 {
            let mut words = vec!["cp"];
            words.extend(options);
            words.extend([&url, into.to_str().unwrap()]);
            dafs(words).succeeded();
            for (name, mode) in modes {
                let found = fs::metadata(copy.join(name)).unwrap();
                assert_eq!((found.mode() & 0o6000, found.uid()), (0, own), "{name} by {options:?}");
                // A copy is the umask's but for what was asked for.
                assert_eq!(found.mode() & 0o700, mode & 0o700, "{name} by {options:?}");
            }
        }
    }
}

// [CMD-4] [CMD-95]
fn copy_over_a_file_of_another_that_may_be_written_is_whole(on: On) {
    let world = World::start_with(on, |server, directory| {
        let data = directory.join("squashed");
        fs::create_dir(&data).unwrap();
        server.arg("--export").arg(format!("squashed={},squash=1000:1000", data.display()));
    });
    let squashed = world.data().parent().unwrap().join("squashed");
    for (name, size) in [("small", 1000), ("large", 3_000_000)] {
        let (from, to) = (world.local(name), squashed.join(name));
        let data = dafs_tests::suite::bytes(1, size);
        fs::write(&from, &data).unwrap();
        fs::write(&to, "old").unwrap();
        fs::set_permissions(&to, fs::Permissions::from_mode(0o666)).unwrap();
        let url = world.url(&format!("squashed/{name}"));
        dafs(["cp", from.to_str().unwrap(), &url]).succeeded();
        dafs_tests::suite::assert_same(&fs::read(&to).unwrap(), &data, name);
        let found = fs::metadata(&to).unwrap();
        assert_eq!((found.uid(), found.mode() & 0o7777), (0, 0o666));
        // Asked for, they are to be set.
        dafs(["cp", "-p", from.to_str().unwrap(), &url]).failed(1, &["cannot set the attributes of"]);
    }
}

// [CMD-5] [CMD-16] [CMD-21] [CMD-48]
fn copy_without_owners_keeps_all_else(on: On) {
    // Whatever this client may be, there it acts as somebody who can give nothing away.
    let world = World::start_with(on, |server, directory| {
        let data = directory.join("squashed");
        fs::create_dir(&data).unwrap();
        fs::set_permissions(&data, fs::Permissions::from_mode(0o777)).unwrap();
        let squash = if fs::metadata(&data).unwrap().uid() == 0 { "1000:1000" } else { "server" };
        server.arg("--export").arg(format!("squashed={},squash={squash}", data.display()));
    });
    let tree = world.local("tree");
    let is_root = fs::metadata(world.data()).unwrap().uid() == 0;
    fs::create_dir_all(tree.join("below")).unwrap();
    fs::write(tree.join("large"), dafs_tests::suite::bytes(1, 600_000)).unwrap();
    symlink("nowhere", tree.join("link")).unwrap();
    for number in 0..100 {
        fs::write(tree.join(format!("below/{number}")), number.to_string()).unwrap();
    }
    for (name, mode) in [("large", 0o6751), ("below/1", 0o4755), ("below", 0o2750), ("below/2", 0o600)] {
        if is_root {
            chown(tree.join(name), Some(1234), Some(4321)).unwrap();
        }
        fs::set_permissions(tree.join(name), fs::Permissions::from_mode(mode)).unwrap();
    }
    let expected = look(&tree);
    // Not asked for, forbidden, and asked for where they cannot be given.
    let ways: [(&str, &[&str]); 3] =
        [("data", &["-r"]), ("data", &["-pr", "--no-owner"]), ("squashed", &["-r", "--preserve"])];
    for (number, (export, options)) in ways.into_iter().enumerate() {
        let copy = format!("{export}/copy{number}");
        let mut words = vec!["cp"];
        words.extend(options);
        let url = world.url(&copy);
        words.extend([tree.to_str().unwrap(), &url]);
        let ran = dafs(words);
        let told = ran.stderr.matches("do not keep owner and set-id bits").count();
        let is_refused = is_root && export == "squashed";
        assert_eq!((ran.code, told, ran.stderr.lines().count()), (0, is_refused.into(), told), "{ran:?}");
        let there = world.local(&copy);
        assert_same_data(&there, &tree, &expected);
        let mode = |name: &str| fs::metadata(there.join(name)).unwrap().mode() & 0o7777;
        // No program runs as somebody that it was not given to.
        assert_eq!((mode("large"), mode("below/1")), (0o751, 0o755));
        // Nor does a directory give its group to what is made in it.
        assert_eq!((mode("below"), mode("below/2")), (0o750, 0o600));
        if is_root && export == "data" {
            for name in ["large", "below", "below/1", "link", "."] {
                assert_eq!(fs::symlink_metadata(there.join(name)).unwrap().uid(), 0, "{name}");
            }
        }
        for name in ["large", "below", "below/7", "link", "."] {
            let times = |root: &Path| {
                let found = fs::symlink_metadata(root.join(name)).unwrap();
                (found.mtime(), found.mtime_nsec())
            };
            assert_eq!(times(&there), times(&tree), "{name}");
        }
        if is_root && export == "squashed" {
            assert_eq!(fs::metadata(there.join("below/1")).unwrap().uid(), 1000);
        }
    }
    let replaced = world.data().join("replaced");
    fs::write(&replaced, "old").unwrap();
    let owner = if is_root { 1234 } else { fs::metadata(&replaced).unwrap().uid() };
    chown(&replaced, Some(owner), None).unwrap();
    dafs(["cp", tree.join("below/7").to_str().unwrap(), &world.url("data/replaced")]).succeeded();
    assert_eq!(
        (fs::read(&replaced).unwrap(), fs::metadata(&replaced).unwrap().uid()),
        (b"7".to_vec(), owner)
    );
}

// [CMD-43]
fn copy_into_directories_of_others_leaves_their_attributes(on: On) {
    // This client acts there as somebody else, where that can be.
    let world = World::start_with(on, |server, directory| {
        let data = directory.join("data");
        let squash = if fs::metadata(&data).unwrap().uid() == 0 { "1000:1000" } else { "server" };
        server.arg("--export").arg(format!("squashed={},squash={squash}", data.display()));
    });
    let tree = world.local("tree");
    fs::create_dir_all(tree.join("below")).unwrap();
    fs::write(tree.join("below/file"), "content").unwrap();
    let source = format!("{}/.", tree.display());
    let mode = |path: &Path| fs::metadata(path).unwrap().mode() & 0o7777;
    let (there, here) = (world.data().join("tree"), world.local("here"));
    for root in [&there, &here] {
        fs::create_dir_all(root.join("below")).unwrap();
        for path in [root.clone(), root.join("below")] {
            fs::set_permissions(path, fs::Permissions::from_mode(0o1777)).unwrap();
        }
    }
    dafs(["cp", "-r", &source, &world.url("squashed/tree")]).succeeded();
    dafs(["cp", "-r", &world.url("data/tree/."), here.to_str().unwrap()]).succeeded();
    for root in [&there, &here] {
        assert_eq!(fs::read(root.join("below/file")).unwrap(), b"content");
        assert_eq!((mode(root), mode(&root.join("below"))), (0o1777, 0o1777));
    }
    // All is to be kept.
    dafs(["cp", "-pr", &source, &world.url("data/tree")]).succeeded();
    assert_eq!((mode(&there), mode(&there.join("below"))), (mode(&tree), mode(&tree.join("below"))));
}

// [CMD-5] [CMD-16] [CMD-48]
fn copy_down_to_where_root_gives_nothing_away_keeps_all_else(on: On) {
    let world = World::start(on);
    let (tree, copy) = (world.data().join("tree"), world.local("copy"));
    fs::create_dir_all(tree.join("below")).unwrap();
    fs::write(tree.join("large"), dafs_tests::suite::bytes(1, 600_000)).unwrap();
    fs::write(tree.join("below/small"), "small").unwrap();
    symlink("nowhere", tree.join("link")).unwrap();
    for (name, mode) in [("large", 0o6751), ("below/small", 0o4640), ("below", 0o2750)] {
        chown(tree.join(name), Some(1234), Some(4321)).unwrap();
        fs::set_permissions(tree.join(name), fs::Permissions::from_mode(mode)).unwrap();
    }
    std::os::unix::fs::lchown(tree.join("link"), Some(1234), Some(4321)).unwrap();
    let expected = look(&tree);
    // As on a file system without owners: the right to change them is not there.
    let cp = command(["cp", "-pr", &world.url("data/tree"), copy.to_str().unwrap()]);
    let mut without = std::process::Command::new("setpriv");
    without.args(["--bounding-set=-chown", "--inh-caps=-chown"]).arg(cp.get_program()).args(cp.get_args());
    for (name, value) in cp.get_envs() {
        match value {
            Some(value) => without.env(name, value),
            None => without.env_remove(name),
        };
    }
    let output = without.output().unwrap();
    let said = String::from_utf8_lossy(&output.stderr);
    let told = said.matches("do not keep owner and set-id bits").count();
    assert_eq!((output.status.code(), told, said.lines().count()), (Some(0), 1, 1), "{said}");
    assert_same_data(&copy, &tree, &expected);
    let found = |root: &Path, name: &str| fs::symlink_metadata(root.join(name)).unwrap();
    for name in ["large", "below/small", "below", "link"] {
        let (there, here) = (found(&tree, name), found(&copy, name));
        assert_eq!((here.mtime(), here.mtime_nsec()), (there.mtime(), there.mtime_nsec()), "{name}");
        // No program runs as somebody that it was not given to.
        let mode = if name == "link" { here.mode() } else { there.mode() & !0o6000 };
        assert_eq!((here.uid(), here.mode()), (0, mode), "{name}");
    }
}

// [CMD-47] [CMD-48]
fn copy_that_keeps_owners_does_so_of_all_that_it_may(on: On) {
    let tree = tempfile::tempdir().unwrap();
    let names = ["a", "b", "c"];
    for name in names {
        fs::write(tree.path().join(name), name).unwrap();
        chown(tree.path().join(name), Some(1234), Some(4321)).unwrap();
    }
    // The second is said of users that a name space does not know, the third by file systems without owners.
    for status in [Status::PERMISSION, Status::INVALID, Status::NOT_SUPPORTED] {
        let refused = copy_until_refused(on, &["-pr"], tree.path(), status, "owner and set-id bits");
        let uid = |name: &str| fs::metadata(refused.data().join("copy").join(name)).unwrap().uid();
        assert_eq!(names.map(uid).iter().filter(|uid| **uid == 1234).count(), names.len() - 1, "{status}");
    }
}

// [CMD-95]
fn copy_to_where_attributes_cannot_be_set_is_whole(on: On) {
    let tree = tempfile::tempdir().unwrap();
    fs::write(tree.path().join("a"), "whole").unwrap();
    for status in [Status::PERMISSION, Status::NOT_SUPPORTED] {
        let refused = copy_until_refused(on, &["-r"], tree.path(), status, "modes and times");
        assert_eq!(fs::read(refused.data().join("copy/a")).unwrap(), b"whole", "{status}");
    }
}

/// Copies a tree while one operation after the other is refused, until it is one that sets attributes of a file: then the copy succeeds,
/// and these words are said. Which one that is is not known here; that of the directory comes last.
fn copy_until_refused(on: On, flags: &[&str], tree: &Path, status: Status, words: &str) -> Harness {
    for passed in 0..100 {
        let (harness, faults) = Harness::start_faulty(on, |_| {});
        faults.next(Kind::Other, Fault::Pass, passed);
        faults.next(Kind::Other, Fault::Fail(status), 1);
        let colon = if harness.url().starts_with("dafs+shm") { ":" } else { "" };
        let url = format!("{}{colon}/data/copy", harness.url());
        let ran = dafs([&["cp", "--jobs=1"], flags, &[tree.to_str().unwrap(), &url]].concat());
        if ran.code == 0 && ran.stderr.contains("do not keep") {
            assert!(ran.stderr.contains(words) && ran.stderr.lines().count() == 1, "{}", ran.stderr);
            return harness;
        }
    }
    panic!("nothing sets the attributes of a file");
}
