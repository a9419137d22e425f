//! `dafs cp` of several things that go to one name or file, and of files with several names.

use std::fs;
use std::os::unix::fs::{MetadataExt, PermissionsExt, symlink};
use std::path::Path;
use std::process::Command;

use dafs_tests::harness::On;
use dafs_tests::{on_sockets, suite};

use crate::programs::{World, dafs};

// Nothing of this depends on how the data travels.
on_sockets! {
    copy_of_two_with_one_name_refuses_the_second,
    copy_of_trees_that_meet_refuses_what_comes_twice,
    copy_of_two_onto_one_file_mixes_nothing,
    copy_never_links_to_what_was_not_copied,
}

fn text(path: &Path) -> &str {
    path.to_str().unwrap()
}

fn copy_of_two_with_one_name_refuses_the_second(on: On) {
    let world = World::start(on);
    for directory in ["a", "b", "data/into"] {
        fs::create_dir(world.local(directory)).unwrap();
    }
    // By one message, and by several.
    for (first, second) in [(50, 100), (100, 50), (600_000, 3_000_000)] {
        let (a, b) = (suite::bytes(1, first), suite::bytes(2, second));
        fs::write(world.local("a/x"), &a).unwrap();
        fs::write(world.local("b/x"), &b).unwrap();
        let (from_a, from_b) = (world.local("a/x"), world.local("b/x"));
        dafs(["cp", text(&from_a), text(&from_b), &world.url("data/into")])
            .failed(1, &["b/x", "will not overwrite", "data/into/x", "a/x"]);
        suite::assert_same(&fs::read(world.data().join("into/x")).unwrap(), &a, "up");
        // The same file given twice is no conflict.
        dafs(["cp", text(&from_b), text(&from_b), &world.url("data/into")]).succeeded();
        suite::assert_same(&fs::read(world.data().join("into/x")).unwrap(), &b, "twice");
    }
    fs::write(world.data().join("x"), "third").unwrap();
    dafs(["cp", &world.url("data/x"), &world.url("data/into/x"), text(&world.local("a"))])
        .failed(1, &["data/into/x", "will not overwrite"]);
    assert_eq!(fs::read(world.local("a/x")).unwrap(), b"third");
}

// [CMD-93]
fn copy_of_trees_that_meet_refuses_what_comes_twice(on: On) {
    let world = World::start(on);
    for (tree, mode) in [("m/1/t", 0o750), ("m/2/t", 0o705)] {
        let tree = world.local(tree);
        fs::create_dir_all(tree.join("sub")).unwrap();
        fs::set_permissions(tree.join("sub"), fs::Permissions::from_mode(mode)).unwrap();
        for name in ["f", "sub/f", "sub/g"] {
            fs::write(tree.join(name), text(&tree)).unwrap();
        }
        symlink(&tree, tree.join("link")).unwrap();
    }
    let (one, two) = (world.local("m/1/t"), world.local("m/2/t"));
    fs::write(two.join("sub/only here"), "x").unwrap();
    fs::remove_file(one.join("sub/g")).unwrap();
    fs::create_dir(world.data().join("into")).unwrap();
    let ran = dafs(["cp", "-r", text(&one), text(&two), &world.url("data/into")]);
    ran.failed(1, &["m/2/t/f", "m/2/t/sub/f", "m/2/t/link", "will not overwrite"]);
    let copy = |name: &str| world.data().join("into/t").join(name);
    for name in ["f", "sub/f"] {
        assert_eq!(fs::read_to_string(copy(name)).unwrap(), text(&one), "{name}");
    }
    assert_eq!(fs::read_link(copy("link")).unwrap(), one);
    assert_eq!(fs::read_to_string(copy("sub/g")).unwrap(), text(&two));
    assert!(copy("sub/only here").exists());
    assert_eq!(fs::metadata(copy("sub")).unwrap().mode() & 0o7777, 0o750);
    // Into one directory by its content, under a name that another operand has.
    fs::create_dir(world.data().join("flat")).unwrap();
    let content = format!("{}/sub/.", text(&two));
    dafs(["cp", "-r", &content, text(&one.join("f")), &world.url("data/flat")])
        .failed(1, &["m/1/t/f", "will not overwrite", "data/flat/f"]);
    assert_eq!(fs::read_to_string(world.data().join("flat/f")).unwrap(), text(&two));
}

fn copy_of_two_onto_one_file_mixes_nothing(on: On) {
    let world = World::start(on);
    let into = world.data().join("into");
    let sources = [world.local("x"), world.local("y")];
    for recursive in [false, true] {
        fs::create_dir(&into).unwrap();
        let contents = [vec![b'A'; 100], vec![b'B'; 50]];
        for (source, content) in sources.iter().zip(&contents) {
            fs::write(source, content).unwrap();
        }
        fs::write(into.join("y"), "older").unwrap();
        match recursive {
            false => symlink("y", into.join("x")).unwrap(),
            true => fs::hard_link(into.join("y"), into.join("x")).unwrap(),
        }
        let url = world.url("data/into");
        let mut words = vec!["cp", text(&sources[0]), text(&sources[1]), &url];
        if recursive {
            words.push("-r");
        }
        dafs(words).failed(1, &["cannot create", "is the same file as", "another source is copied to"]);
        let found = fs::read(into.join("x")).unwrap();
        assert!(contents.contains(&found), "{:?}", String::from_utf8_lossy(&found));
        fs::remove_dir_all(&into).unwrap();
    }
}

fn copy_never_links_to_what_was_not_copied(on: On) {
    let world = World::start(on);
    let (tree, there) = (world.local("tree"), world.data().join("tree"));
    fs::create_dir(&tree).unwrap();
    fs::create_dir(&there).unwrap();
    fs::write(tree.join("a"), "new").unwrap();
    for name in ["b", "c", "d"] {
        fs::hard_link(tree.join("a"), tree.join(name)).unwrap();
    }
    // In the order in which the directory is listed, here and by the command.
    let names: Vec<_> = fs::read_dir(&tree).unwrap().map(|entry| entry.unwrap().file_name()).collect();
    // What nothing can be copied to.
    assert!(Command::new("mkfifo").arg(there.join(&names[0])).status().unwrap().success());
    fs::write(there.join(&names[1]), "old").unwrap();
    let content = format!("{}/.", text(&tree));
    dafs(["cp", "-v", "-r", &content, &world.url("data/tree")])
        .failed(1, &["cannot create", names[0].to_str().unwrap(), "copied 3 files"]);
    for name in &names[1..] {
        assert!(there.join(name).is_file(), "{name:?}");
        assert_eq!(fs::read(there.join(name)).unwrap(), b"new");
    }
    // Those that could be copied are one file, as they were.
    assert_eq!(fs::metadata(there.join(&names[1])).unwrap().nlink(), 3);
}
