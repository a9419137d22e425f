//! `dafs stripe`, and what the other commands do with files over several servers.

use std::fs;
use std::os::unix::fs::{FileExt, PermissionsExt};

use dafs_tests::harness::On;
use dafs_tests::suite::bytes;
use dafs_tests::{on_sockets, on_verbs};

use crate::programs::{World, dafs};
use crate::trees;

on_sockets! {
    striped_copy_is_listed_printed_and_copied_back,
    tree_of_striped_files_is_copied_moved_and_removed_whole,
    directory_that_stripes_does_so_for_copies,
    lost_server_is_named_and_the_rest_is_printed,
    check_says_what_is_wrong_and_repairs_it,
    wrong_words_about_striping_are_refused,
}

on_verbs! {
    striped_copy_is_listed_printed_and_copied_back,
}

/// A metadata server, and two data servers.
struct Volume {
    metadata: World,
    data: Vec<World>,
}

impl Volume {
    fn start(on: On) -> Self {
        let volume = Self { metadata: World::start(on), data: (0..2).map(|_| World::start(on)).collect() };
        for (number, server) in (1..).zip(&volume.data) {
            let name = format!("io{number}");
            dafs(["stripe", "add", &volume.url(""), &name, &server.url("data")]).succeeded();
        }
        volume
    }

    fn url(&self, path: &str) -> String {
        self.metadata.url(&format!("data{}{path}", if path.is_empty() { "" } else { "/" }))
    }

    fn piece_count(&self) -> usize {
        let pieces = |server: &World| fs::read_dir(server.data().join(".dafs-pieces")).unwrap().count() - 1;
        self.data.iter().map(pieces).sum()
    }
}

fn striped_copy_is_listed_printed_and_copied_back(on: On) {
    let volume = Volume::start(on);
    let listed = dafs(["stripe", "servers", &volume.url("")]).succeeded().text();
    assert_eq!(listed.lines().count(), 2);
    assert!(listed.lines().all(|line| line.ends_with("reached")), "{listed}");
    let (local, back) = (volume.metadata.local("f"), volume.metadata.local("back"));
    let data = bytes(1, 3_000_000);
    fs::write(&local, &data).unwrap();
    fs::set_permissions(&local, PermissionsExt::from_mode(0o640)).unwrap();
    let (local, url) = (local.display().to_string(), volume.url("f"));
    dafs(["cp", "-pq", "--stripe", "--stripe-unit", "64K", &local, &url]).succeeded();
    assert_eq!(volume.piece_count(), 2);
    assert_eq!(fs::metadata(volume.metadata.data().join("f")).unwrap().len(), 0, "its data is elsewhere");
    let shown = dafs(["stripe", "show", &url]).succeeded().text();
    assert!(shown.contains("65536 bytes on each of io"), "{shown}");
    let row = dafs(["ls", "-l", &url]).succeeded().text();
    assert!(row.starts_with("-rw-r-----") && row.contains(" 3000000 "), "{row}");
    assert!(dafs(["stat", &url]).succeeded().text().contains("Size: 3000000"));
    assert!(dafs(["cat", &url]).succeeded().stdout == data);
    for (offset, length) in
        [(0_usize, 0_usize), (65_535, 2), (100_000, 200_000), (2_999_999, 10), (4_000_000, 1)]
    {
        let (from, count) = (offset.to_string(), length.to_string());
        let printed = dafs(["cat", "--offset", &from, "--length", &count, &url]).succeeded();
        assert!(printed.stdout == data[offset.min(data.len())..(offset + length).min(data.len())]);
    }
    dafs(["cp", "-pq", &url, &back.display().to_string()]).succeeded();
    assert!(fs::read(&back).unwrap() == data);
    assert_eq!(fs::metadata(&back).unwrap().permissions().mode() & 0o7777, 0o640);
    // A copy that is not striped takes its place, and the pieces go.
    dafs(["cp", "-q", &local, &url]).succeeded();
    assert_eq!(volume.piece_count(), 0);
    assert!(dafs(["cat", &url]).succeeded().stdout == data);
}

fn tree_of_striped_files_is_copied_moved_and_removed_whole(on: On) {
    let volume = Volume::start(on);
    let (tree, back) = (volume.metadata.local("tree"), volume.metadata.local("back"));
    fs::create_dir_all(tree.join("a/b")).unwrap();
    fs::write(tree.join("a/large"), bytes(1, 2_000_000)).unwrap();
    fs::write(tree.join("a/b/small"), "small").unwrap();
    fs::write(tree.join("empty"), "").unwrap();
    fs::File::create(tree.join("sparse")).unwrap().write_at(b"end", 5 << 20).unwrap();
    let expected = trees::look(&tree);
    let (tree, url) = (tree.display().to_string(), volume.url("tree"));
    dafs(["cp", "-aq", "--stripe", &tree, &url]).succeeded();
    assert_eq!(volume.piece_count(), 8);
    dafs(["cp", "-aq", &url, &back.display().to_string()]).succeeded();
    trees::assert_same_tree(&trees::look(&back), &expected);
    // In place, over what is there; and within the server.
    dafs(["cp", "-rq", "--inplace", &tree, &volume.url("")]).succeeded();
    assert_eq!(volume.piece_count(), 8);
    dafs(["cp", "-rq", &url, &volume.url("plain")]).succeeded();
    let printed = dafs(["cat", &volume.url("plain/a/large")]).succeeded();
    assert!(printed.stdout == bytes(1, 2_000_000));
    // What is replaced, and what is removed, leaves nothing.
    dafs(["mv", &volume.url("tree/empty"), &volume.url("tree/a/large")]).succeeded();
    assert_eq!(volume.piece_count(), 6);
    dafs(["rm", &volume.url("tree/sparse")]).succeeded();
    dafs(["rm", "-r", &url, &volume.url("plain")]).succeeded();
    assert_eq!(volume.piece_count(), 0);
    dafs(["stripe", "check", "--age-min", "0", &volume.url("")]).failed(0, &["0 of 1 files are striped"]);
}

fn directory_that_stripes_does_so_for_copies(on: On) {
    let volume = Volume::start(on);
    let local = volume.metadata.local("f");
    fs::write(&local, bytes(1, 100_000)).unwrap();
    let local = local.display().to_string();
    dafs(["mkdir", &volume.url("d")]).succeeded();
    dafs(["stripe", "set", "--unit", "4K", "--first", "1", &volume.url("d")]).succeeded();
    let shown = dafs(["stripe", "show", &volume.url("d"), &volume.url("")]).succeeded().text();
    assert!(shown.contains("striped, 4096 bytes on each of all servers, from server 1 on"), "{shown}");
    assert!(shown.contains("not striped"), "{shown}");
    dafs(["cp", "-q", &local, &volume.url("d")]).succeeded();
    dafs(["cp", "-q", &local, &volume.url("f")]).succeeded();
    let shown = dafs(["stripe", "show", "--json", &volume.url("d/f"), &volume.url("f")]).succeeded().text();
    assert!(shown.contains(r#""layout":{"servers":["io2","io1"],"unit":4096}"#), "{shown}");
    assert!(shown.contains(r#""layout":null"#), "{shown}");
    dafs(["stripe", "unset", &volume.url("d")]).succeeded();
    dafs(["cp", "-q", &local, &volume.url("d/g")]).succeeded();
    assert!(dafs(["stripe", "show", &volume.url("d/g")]).succeeded().text().contains("not striped"));
}

fn lost_server_is_named_and_the_rest_is_printed(on: On) {
    let mut volume = Volume::start(on);
    let local = volume.metadata.local("f");
    let data = bytes(1, 400_000);
    fs::write(&local, &data).unwrap();
    let (local, url) = (local.display().to_string(), volume.url("f"));
    dafs(["cp", "-q", "--stripe", "--stripe-unit", "64K", "--stripe-first", "0", &local, &url]).succeeded();
    volume.data[1].kill();
    let printed = dafs(["--timeout", "5", "cat", &url]).failed(1, &["cannot read", "server io2"]);
    assert!(printed.stdout == data[..65_536], "{}", printed.stdout.len());
    dafs(["--timeout", "5", "cp", "-q", "--stripe", &local, &volume.url("g")]).failed(1, &["server io2"]);
    let listed = dafs(["--timeout", "5", "stripe", "servers", &volume.url("")]);
    assert_eq!(listed.code, 1);
    assert!(listed.text().lines().next().unwrap().ends_with("reached"), "{}", listed.text());
    volume.data[1].restart();
    assert!(dafs(["cat", &url]).succeeded().stdout == data);
    assert_eq!(volume.piece_count(), 2);
}

fn check_says_what_is_wrong_and_repairs_it(on: On) {
    let volume = Volume::start(on);
    let local = volume.metadata.local("f");
    fs::write(&local, bytes(1, 10_000)).unwrap();
    for name in ["kept", "gone"] {
        dafs(["cp", "-q", "--stripe", &local.display().to_string(), &volume.url(name)]).succeeded();
    }
    fs::remove_file(volume.metadata.data().join("gone")).unwrap();
    let check =
        |flags: &[&str]| dafs([&["stripe", "check", "--age-min", "0"], flags, &[&volume.url("")]].concat());
    let seen = check(&[]).failed(1, &["1 of 2 files are striped, in 4 pieces; 2 found, 0 repaired"]);
    assert_eq!(seen.text().matches("is of no file").count(), 2, "{}", seen.text());
    let repaired = check(&["--repair", "--json"]).succeeded();
    assert_eq!(repaired.text().matches(r#""repaired":true"#).count(), 2, "{}", repaired.text());
    check(&[]).failed(0, &["in 2 pieces; 0 found"]);
    // What was begun a moment ago is left alone, unless one says otherwise.
    fs::remove_file(volume.metadata.data().join("kept")).unwrap();
    dafs(["stripe", "check", "--repair", &volume.url("")]).failed(0, &["0 found"]);
    assert_eq!(volume.piece_count(), 2);
}

fn wrong_words_about_striping_are_refused(on: On) {
    let volume = Volume::start(on);
    let local = volume.metadata.local("f");
    fs::write(&local, "x").unwrap();
    let (local, url) = (local.display().to_string(), volume.url("f"));
    let alone = World::start(on);
    let server = volume.data[0].url("data");
    let root = volume.url("");
    dafs(["stripe", "add", &root, "IO 1", &server]).failed(2, &["\"IO 1\" is no name"]);
    dafs(["stripe", "add", &root, "io3", volume.data[0].server()]).failed(2, &["names no export"]);
    dafs(["stripe", "add", &root, "io3", &server]).failed(1, &["twice"]);
    dafs(["stripe", "add", &root, "io1", &alone.url("data")]).failed(1, &["another name"]);
    dafs(["cp", "--stripe", "--stripe-factor", "3", &local, &url]).failed(1, &["the export has 2"]);
    dafs(["cp", "--stripe", "--stripe-unit", "5000", &local, &url]).failed(1, &["multiple of 4096"]);
    dafs(["cp", "--stripe-unit", "64K", &local, &url]).failed(2, &["--stripe"]);
    dafs(["cp", "--stripe", &local, &alone.url("data/f")]).failed(1, &["dafs stripe add"]);
    dafs(["stripe", "set", "--factor", "3", &root]).failed(1, &["2 data servers"]);
    dafs(["stripe", "set", "--unit", "1", &root]).failed(1, &["multiple of 4096"]);
    dafs(["stripe", "servers", &alone.url("data")]).failed(0, &["has no data servers"]);
    assert_eq!(volume.piece_count(), 0, "nothing is left behind");
    let left = fs::read_dir(volume.metadata.data()).unwrap().count();
    assert_eq!(left, 1, "but for the servers file");
}
