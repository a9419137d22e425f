//! `dafs cp`.

use std::fs;
use std::os::unix::fs::{FileExt, symlink};

use dafs_tests::harness::On;
use dafs_tests::{on_sockets, on_verbs};

use crate::programs::{World, command, dafs};
use crate::trees::{self, SPARSE_SIZE, allocated, assert_same_data, assert_same_tree, look};

on_sockets! {
    copy_of_a_nasty_tree_and_back_keeps_everything,
    copy_between_exports_keeps_everything,
    copy_within_a_server_leaves_the_data_there,
    copy_again_over_an_older_copy_replaces_it,
    copy_into_a_directory_and_under_a_new_name_follows_cp,
    copy_into_the_root_of_an_export_is_as_into_any_directory,
    copy_of_several_into_what_is_no_directory_is_refused,
    copy_without_r_leaves_directories_and_follows_links,
    copy_over_symbolic_links_does_not_follow_them,
    copy_with_something_in_the_way_reports_it_and_goes_on,
    copy_onto_itself_is_refused_and_loses_nothing,
    copy_of_special_files_skips_them_and_fails,
    copy_of_many_files_raises_the_limit_of_open_files,
    copy_by_each_method_is_the_same,
    copy_makes_directories_and_links_durable_unless_told_not_to,
    copy_through_a_crash_of_the_server_loses_nothing,
    copy_through_a_crash_leaves_no_old_content,
}

on_verbs! {
    copy_of_a_nasty_tree_and_back_keeps_everything,
    copy_by_each_method_is_the_same,
}

fn copy_of_a_nasty_tree_and_back_keeps_everything(on: On) {
    let world = World::start(on);
    let (tree, there, back) = (world.local("tree"), world.data().join("tree"), world.local("back"));
    trees::make(&tree, on);
    let expected = look(&tree);
    dafs(["cp".into(), "-pr".into(), tree.clone().into_os_string(), world.url("data/tree").into()])
        .succeeded();
    assert_same_tree(&look(&there), &expected);
    dafs(["cp".into(), "-pr".into(), world.url("data/tree").into(), back.clone().into_os_string()])
        .succeeded();
    // The server has read its files: their times of access, as the copy got them, are those of before.
    assert_same_tree(&look(&back), &expected);
    assert_same_data(&there, &tree, &expected);
    assert_same_data(&back, &tree, &expected);
    if allocated(&tree.join("sparse")) < SPARSE_SIZE / 2 {
        assert!(allocated(&there.join("sparse")) < SPARSE_SIZE / 2, "holes were filled on the server");
        assert!(allocated(&back.join("sparse")) < SPARSE_SIZE / 2, "holes were filled on the way back");
        assert!(allocated(&back.join("all hole")) < 64 << 10);
    }
}

// [CMD-60]
fn copy_within_a_server_leaves_the_data_there(on: On) {
    let world = World::start(on);
    let data = dafs_tests::suite::bytes(9, 3 << 20);
    fs::write(world.data().join("large"), &data).unwrap();
    let hole = fs::File::create(world.data().join("sparse")).unwrap();
    hole.write_all_at(&data[..100_000], 5 << 20).unwrap();
    for (from, to) in [("data/large", "data/copy"), ("data/sparse", "data/thin")] {
        dafs(["cp", &world.url(from), &world.url(to)]).succeeded();
        let file = |url: &str| world.data().join(url.trim_start_matches("data/"));
        let (from, to) = (file(from), file(to));
        assert_eq!(fs::read(&from).unwrap(), fs::read(&to).unwrap());
        assert!(allocated(&to) <= allocated(&from) + (64 << 10), "holes stay");
    }
    let stats = dafs(["stats", "--json", world.server()]).succeeded().text();
    let moved = |field: &str| {
        let value = stats.split_once(&format!("\"{field}\":")).unwrap().1;
        value.split_once(']').unwrap().0.to_owned()
    };
    assert_eq!(
        (moved("bytes_read"), moved("bytes_written")),
        ("[0,0".to_owned(), "[0,0".to_owned()),
        "{stats}"
    );
    let shown = dafs(["stats", world.server()]).succeeded().text();
    assert!(shown.contains("copyrange: "), "{shown}");
    // Between memory and a directory the data travels.
    dafs(["cp", &world.url("data/large"), &world.url("mem/large")]).succeeded();
    dafs(["cp", &world.url("mem/large"), &world.url("mem/again")]).succeeded();
    dafs(["cp", &world.url("mem/again"), &world.url("data/back")]).succeeded();
    assert_eq!(fs::read(world.data().join("back")).unwrap(), data);
}

fn copy_between_exports_keeps_everything(on: On) {
    let world = World::start(on);
    let (tree, back) = (world.data().join("tree"), world.local("back"));
    trees::make(&tree, on);
    let expected = look(&tree);
    dafs(["cp", "-pr", &world.url("data/tree"), &world.url("mem/tree")]).succeeded();
    dafs(["cp", "-pr", &world.url("mem/tree"), back.to_str().unwrap()]).succeeded();
    assert_same_tree(&look(&back), &expected);
    assert_same_data(&back, &tree, &expected);
    // To another server: through this machine, over two sessions.
    let other = World::start(if on == On::Shm { On::Tcp } else { on });
    dafs(["cp", "-pr", &world.url("mem/tree"), &other.url("data/tree")]).succeeded();
    assert_same_tree(&look(&other.data().join("tree")), &expected);
    assert_same_data(&other.data().join("tree"), &tree, &expected);
}

fn copy_again_over_an_older_copy_replaces_it(on: On) {
    let world = World::start(on);
    let tree = world.local("tree");
    fs::create_dir(&tree).unwrap();
    for (size, count) in [(10, 300), (2_000_000, 100)] {
        fs::write(tree.join("shrinks"), vec![b'a'; size]).unwrap();
        fs::write(tree.join("grows"), vec![b'b'; count]).unwrap();
        let _ = fs::remove_file(tree.join("link"));
        symlink(size.to_string(), tree.join("link")).unwrap();
        let _ = fs::remove_file(tree.join("second"));
        fs::hard_link(tree.join("grows"), tree.join("second")).unwrap();
        // Before it is copied: reading changes the times of access.
        let (expected, there) = (look(&tree), world.data().join("tree"));
        // Named by its content: the second time the destination is there.
        let source = format!("{}/.", tree.display());
        fs::create_dir_all(&there).unwrap();
        dafs(["cp", "-pr", &source, &world.url("data/tree")]).succeeded();
        assert_same_tree(&look(&there), &expected);
        assert_same_data(&there, &tree, &expected);
    }
}

fn copy_into_a_directory_and_under_a_new_name_follows_cp(on: On) {
    let world = World::start(on);
    let tree = world.local("tree");
    fs::create_dir(&tree).unwrap();
    fs::write(tree.join("file"), "content").unwrap();
    fs::create_dir(world.data().join("there")).unwrap();
    let local = |name: &str| world.local(name).to_str().unwrap().to_owned();
    dafs(["cp", "-r", &local("tree"), &world.url("data/there")]).succeeded();
    assert!(world.data().join("there/tree/file").is_file());
    dafs(["cp", "-r", &local("tree"), &world.url("data/new")]).succeeded();
    assert!(world.data().join("new/file").is_file());
    dafs(["cp", &local("tree/file"), &world.url("data/there/renamed")]).succeeded();
    dafs(["cp", &local("tree/file"), &world.url("data")]).succeeded();
    assert_eq!(fs::read(world.data().join("there/renamed")).unwrap(), b"content");
    assert_eq!(fs::read(world.data().join("file")).unwrap(), b"content");
    fs::create_dir(world.local("down")).unwrap();
    dafs(["cp", "-r", &world.url("data/file"), &world.url("data/there"), &local("down")]).succeeded();
    assert!(world.local("down/file").is_file() && world.local("down/there/tree/file").is_file());
    // The root of an export goes under the export's name.
    dafs(["cp", "-r", &world.url("data"), &local("down")]).succeeded();
    assert!(world.local("down/data/new/file").is_file());
    // A parent that is missing is not made.
    dafs(["cp", &local("tree/file"), &world.url("data/no/such/file")])
        .failed(1, &["dafs: cannot create", "no/such/file", "no such file or directory"]);
}

// [CMD-29]
fn copy_into_the_root_of_an_export_is_as_into_any_directory(on: On) {
    let world = World::start(on);
    let (tree, back) = (world.local("tree"), world.local("back"));
    fs::create_dir_all(tree.join("below")).unwrap();
    fs::write(tree.join("file"), "content").unwrap();
    let source = format!("{}/.", tree.display());
    for slash in ["", "/"] {
        for flags in ["-r", "-pr"] {
            dafs(["cp", flags, &source, &world.url(&format!("data{slash}"))]).succeeded();
            dafs(["cp", flags, &world.url("data/."), &world.url(&format!("mem{slash}"))]).succeeded();
        }
    }
    dafs(["cp", "-r", &world.url("mem/."), back.to_str().unwrap()]).succeeded();
    for copy in [world.data(), back] {
        assert!(look(&copy).keys().eq(look(&tree).keys()));
        assert_same_data(&copy, &tree, &look(&tree));
    }
}

fn copy_of_several_into_what_is_no_directory_is_refused(on: On) {
    let world = World::start(on);
    fs::write(world.data().join("file"), "kept").unwrap();
    let url = world.url("data/file");
    dafs(["cp", &url, &url, &world.url("data/nothing")]).failed(2, &["not a directory"]);
    dafs(["cp", "-r", &world.url("data"), world.local("x").to_str().unwrap(), &url])
        .failed(2, &["not a directory"]);
    assert_eq!(fs::read(world.data().join("file")).unwrap(), b"kept");
}

fn copy_without_r_leaves_directories_and_follows_links(on: On) {
    let world = World::start(on);
    fs::create_dir(world.data().join("directory")).unwrap();
    fs::write(world.data().join("file"), "content").unwrap();
    symlink("file", world.data().join("link")).unwrap();
    let (url, there) = (world.url("data/directory"), world.local("there"));
    fs::create_dir(&there).unwrap();
    let link = world.url("data/link");
    dafs(["cp", &url, &link, there.to_str().unwrap()]).failed(1, &["is a directory; copy it with -r"]);
    // The rest was done.
    assert!(fs::symlink_metadata(there.join("link")).unwrap().is_file());
    assert!(!there.join("directory").exists());
}

fn copy_over_symbolic_links_does_not_follow_them(on: On) {
    let world = World::start(on);
    let tree = world.local("tree");
    fs::create_dir_all(tree.join("dir")).unwrap();
    fs::write(tree.join("file"), "new").unwrap();
    fs::write(tree.join("dir/inner"), "new").unwrap();
    // On this machine: a link out of the destination must not be written through.
    fs::create_dir(world.local("outside")).unwrap();
    fs::write(world.local("outside/victim"), "old").unwrap();
    for destination in [world.local("down/tree"), world.data().join("tree")] {
        fs::create_dir_all(&destination).unwrap();
        symlink(world.local("outside/victim"), destination.join("file")).unwrap();
        symlink(world.local("outside"), destination.join("dir")).unwrap();
    }
    let up = dafs(["cp", "-r", tree.to_str().unwrap(), &world.url("data")]);
    up.failed(1, &["dir", "a symbolic link with that name is in the way"]);
    fs::create_dir_all(world.data().join("copy")).unwrap();
    dafs(["cp", "-r", tree.to_str().unwrap(), &world.url("data/copy")]).succeeded();
    let down = dafs(["cp", "-r", &world.url("data/copy/tree"), world.local("down").to_str().unwrap()]);
    down.failed(1, &["dir", "a symbolic link with that name is in the way"]);
    assert_eq!(fs::read(world.local("outside/victim")).unwrap(), b"old");
    assert!(!world.local("outside/inner").exists());
    for destination in [world.local("down/tree"), world.data().join("tree")] {
        assert!(fs::symlink_metadata(destination.join("file")).unwrap().is_file());
        assert_eq!(fs::read(destination.join("file")).unwrap(), b"new");
    }
}

fn copy_with_something_in_the_way_reports_it_and_goes_on(on: On) {
    let world = World::start(on);
    let tree = world.local("tree");
    fs::create_dir_all(tree.join("a/b")).unwrap();
    for name in ["1", "2", "3", "a/4", "a/b/5"] {
        fs::write(tree.join(name), name).unwrap();
    }
    fs::create_dir_all(world.data().join("tree/2")).unwrap();
    fs::write(world.data().join("tree/a"), "a file where a directory goes").unwrap();
    let ran = dafs(["cp", "-r", tree.to_str().unwrap(), &world.url("data")]);
    let ran = ran.failed(1, &["tree/2", "is a directory", "tree/a", "is in the way", "; 2 failed"]);
    assert_eq!(
        ran.stderr.lines().filter(|line| line.starts_with("dafs: cannot")).count(),
        2,
        "{}",
        ran.stderr
    );
    for name in ["1", "3"] {
        assert_eq!(fs::read(world.data().join("tree").join(name)).unwrap(), name.as_bytes());
    }
}

fn copy_onto_itself_is_refused_and_loses_nothing(on: On) {
    let world = World::start(on);
    fs::create_dir(world.data().join("dir")).unwrap();
    fs::write(world.data().join("dir/file"), "content").unwrap();
    fs::hard_link(world.data().join("dir/file"), world.data().join("second")).unwrap();
    let (file, dir) = (world.url("data/dir/file"), world.url("data/dir"));
    dafs(["cp", &file, &file]).failed(1, &["are the same file"]);
    dafs(["cp", &file, &dir]).failed(1, &["are the same file"]);
    dafs(["cp", &file, &world.url("data/second")]).failed(1, &["are the same file"]);
    dafs(["cp", "-r", &dir, &dir]).failed(1, &["into itself"]);
    dafs(["cp", "-r", &dir, &world.url("data/dir/below")]).failed(1, &["into itself"]);
    assert_eq!(fs::read(world.data().join("dir/file")).unwrap(), b"content");
    dafs(["cp", world.local("a").to_str().unwrap(), world.local("b").to_str().unwrap()])
        .failed(2, &["neither side is on a server"]);
}

fn copy_of_special_files_skips_them_and_fails(on: On) {
    let world = World::start(on);
    let tree = world.local("tree");
    fs::create_dir(&tree).unwrap();
    fs::write(tree.join("file"), "x").unwrap();
    let _socket = std::os::unix::net::UnixListener::bind(tree.join("socket")).unwrap();
    let made = std::process::Command::new("mkfifo").arg(tree.join("fifo")).status().unwrap();
    assert!(made.success());
    let ran = dafs(["cp", "-v", "-r", tree.to_str().unwrap(), &world.url("data/tree")]);
    ran.failed(
        1,
        &["a fifo is not copied", "a socket is not copied", "copied 1 file, 1 directory", "; 2 skipped"],
    );
    assert!(world.data().join("tree/file").is_file() && !world.data().join("tree/fifo").exists());
}

// [CMD-46]
fn copy_of_many_files_raises_the_limit_of_open_files(on: On) {
    let world = World::start(on);
    let tree = world.local("tree");
    // As many as two groups, each of which is open at once.
    fs::create_dir(&tree).unwrap();
    for number in 0..128 {
        fs::write(tree.join(number.to_string()), number.to_string()).unwrap();
    }
    let ran = |limit: &str, copy: &str| {
        let cp = command(["cp", "-r", "--jobs=1", tree.to_str().unwrap(), &world.url(copy)]);
        let script = format!("ulimit {limit} 60; exec \"$@\"");
        let mut limited = std::process::Command::new("sh");
        limited.args(["-c", &script, "sh"]).arg(cp.get_program()).args(cp.get_args());
        cp.get_envs().filter_map(|(name, value)| Some((name, value?))).for_each(|(name, value)| {
            limited.env(name, value);
        });
        limited.output().unwrap()
    };
    let raised = ran("-Sn", "data/copy");
    assert_eq!((raised.status.code(), &*String::from_utf8_lossy(&raised.stderr)), (Some(0), ""));
    assert_same_data(&world.data().join("copy"), &tree, &look(&tree));
    // Where it may not have more, it says what to do.
    let limited = ran("-n", "data/other");
    let said = String::from_utf8_lossy(&limited.stderr);
    assert_eq!(limited.status.code(), Some(1), "{said}");
    assert!(said.contains("too many open files; copy fewer files at once with --jobs 1"), "{said}");
}

fn copy_by_each_method_is_the_same(on: On) {
    let world = World::start(on);
    let data = dafs_tests::suite::bytes(3, on.rounds(3_000_000).max(1_200_000) as usize);
    fs::write(world.local("file"), &data).unwrap();
    for method in ["auto", "inline", "direct", "bounced", "eager", "client-initiated", "hybrid"] {
        // Each is tried on the sockets; spinning is nothing for two processors that are emulated.
        let polls: &[&str] = if on.is_verbs() { &["adaptive"] } else { &["event", "busy", "adaptive"] };
        for poll in polls {
            let url = world.url(&format!("data/{method}{poll}"));
            dafs(["cp", "--method", method, "--poll", poll, world.local("file").to_str().unwrap(), &url])
                .succeeded();
            let back = dafs(["cat", "--method", method, "--poll", poll, &url]).succeeded();
            dafs_tests::suite::assert_same(&back.stdout, &data, method);
        }
    }
}

// [CMD-12]
fn copy_makes_directories_and_links_durable_unless_told_not_to(on: On) {
    use std::os::unix::fs::PermissionsExt;
    let world = World::start(on);
    let tree = world.local("tree");
    fs::create_dir_all(tree.join("empty")).unwrap();
    fs::create_dir(tree.join("closed")).unwrap();
    symlink("nowhere", tree.join("closed/link")).unwrap();
    // Root alone lists such a directory.
    let closed = if rustix::process::geteuid().is_root() { 0o111 } else { 0o511 };
    fs::set_permissions(tree.join("closed"), fs::Permissions::from_mode(closed)).unwrap();
    let commits = || {
        let stats = dafs(["stats", world.server()]).succeeded().text();
        let count = stats.lines().find_map(|line| line.trim().strip_prefix("commit: "));
        count.map_or(0, |count| count.parse::<u64>().unwrap())
    };
    dafs(["cp", "-r", "--no-sync", tree.to_str().unwrap(), &world.url("data/fast")]).succeeded();
    assert_eq!(commits(), 0);
    dafs(["cp", "-r", tree.to_str().unwrap(), &world.url("data/tree")]).succeeded();
    // The three directories, and the export's root for the name of the first.
    assert_eq!(commits(), 4);
    assert_same_tree(&look(&world.data().join("tree")), &look(&tree));
    symlink("nowhere", world.local("link")).unwrap();
    dafs(["cp", "-r", world.local("link").to_str().unwrap(), &world.url("data/tree/empty")]).succeeded();
    assert_eq!(commits(), 5);
}

// [CMD-7] [CMD-17]
fn copy_through_a_crash_of_the_server_loses_nothing(on: On) {
    // Where it has ended before the last crash, that shows nothing.
    while !copies_through_crashes(on) {}
}

/// Whether the copy went on at each crash.
fn copies_through_crashes(on: On) -> bool {
    let mut world = World::start(on);
    let (tree, there) = (world.local("tree"), world.data().join("tree"));
    fs::create_dir(&tree).unwrap();
    let count = on.rounds(3000) as usize;
    for number in 0..count {
        fs::write(tree.join(number.to_string()), dafs_tests::suite::bytes(number as u64, number)).unwrap();
    }
    fs::write(tree.join("large"), dafs_tests::suite::bytes(1, on.rounds(20 << 20) as usize)).unwrap();
    let expected = look(&tree);
    let mut copy = command(["cp", "-r", tree.to_str().unwrap(), &world.url("data/tree")])
        .stderr(std::process::Stdio::piped())
        .spawn()
        .unwrap();
    let mut goes_on = true;
    // In the midst of it, whatever the machine's speed.
    for part in 1..=4 {
        while fs::read_dir(&there).map_or(0, |entries| entries.count()) < part * count / 6
            && copy.try_wait().unwrap().is_none()
        {
            std::thread::yield_now();
        }
        world.kill();
        // Without a server it does not end well.
        goes_on &= copy.try_wait().unwrap().is_none();
        world.restart();
    }
    let output = copy.wait_with_output().unwrap();
    let said = String::from_utf8_lossy(&output.stderr);
    assert_eq!(output.status.code(), Some(0), "{said}");
    assert!(!said.contains("dafs: "), "{said}");
    assert_same_tree(&look(&there), &expected);
    assert_same_data(&there, &tree, &expected);
    goes_on
}

// As when the machine is restarted with its server: what was cut off and not yet made durable is there again.
fn copy_through_a_crash_leaves_no_old_content(on: On) {
    let old = vec![b'o'; 48 << 20];
    loop {
        let mut world = World::start(on);
        let (tree, there) = (world.local("tree"), world.data().join("tree"));
        fs::create_dir(&tree).unwrap();
        fs::create_dir(&there).unwrap();
        let count = on.rounds(2000) as usize;
        for number in 0..count {
            fs::write(tree.join(number.to_string()), dafs_tests::suite::bytes(number as u64, 100)).unwrap();
            fs::write(there.join(number.to_string()), &old[..1000]).unwrap();
        }
        // With a hole, and shorter than what it replaces.
        let large = fs::File::create(tree.join("large")).unwrap();
        large.write_all_at(&dafs_tests::suite::bytes(1, 32 << 20), 0).unwrap();
        large.set_len(40 << 20).unwrap();
        fs::write(there.join("large"), &old).unwrap();
        let expected = look(&tree);
        let size = |name: &str| fs::metadata(there.join(name)).map_or(0, |found| found.len());
        let source = format!("{}/.", tree.display());
        let mut copy = command(["cp", "-pr", "--inplace", &source, &world.url("data/tree")])
            .stderr(std::process::Stdio::piped())
            .spawn()
            .unwrap();
        let begun = |name: &str| size(name) < 1000;
        while size("large") == old.len() as u64
            && !(0..count).any(|number| begun(&number.to_string()))
            && copy.try_wait().unwrap().is_none()
        {
            std::thread::yield_now();
        }
        world.kill();
        // Of these it is certain that they are not durable yet.
        let cut: Vec<_> = (0..count).map(|n| n.to_string()).filter(|name| size(name) == 0).collect();
        cut.iter().for_each(|name| fs::write(there.join(name), &old[..1000]).unwrap());
        let is_begun = size("large") < 32 << 20;
        if is_begun {
            fs::write(there.join("large"), &old).unwrap();
        }
        world.restart();
        let output = copy.wait_with_output().unwrap();
        let said = String::from_utf8_lossy(&output.stderr);
        assert_eq!(output.status.code(), Some(0), "{said}");
        if cut.is_empty() && !is_begun {
            // Too late.
            continue;
        }
        assert_same_tree(&look(&there), &expected);
        assert_same_data(&there, &tree, &expected);
        return;
    }
}
