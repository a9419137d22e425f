//! Every command but `cp`.

use std::ffi::{OsStr, OsString};
use std::fs;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::{MetadataExt, PermissionsExt, symlink};

use dafs_tests::harness::On;
use dafs_tests::{on_sockets, on_verbs};

use crate::programs::{World, command, dafs};

on_sockets! {
    ls_lists_names_sorted_and_byte_for_byte,
    ls_json_tells_the_directory_of_each_name,
    ls_long_shows_what_ls_shows,
    ls_of_a_large_directory_lists_every_name_once,
    ls_names_what_it_cannot_look_at_and_fails,
    stat_shows_attributes_of_links_and_what_they_point_to,
    cat_writes_any_range,
    mkdir_makes_missing_parents_only_with_p,
    mkdir_p_takes_paths_as_mkdir_does,
    rm_removes_trees_and_never_follows_links,
    mv_renames_and_replaces_within_an_export_only,
    mv_of_two_with_one_name_replaces_neither,
    mv_of_two_names_of_one_file_leaves_the_second,
    failure_before_standard_output_is_closed_counts,
    mv_of_a_directory_takes_slashes_at_the_ends_of_names,
    ln_and_readlink_make_and_show_links,
    ln_f_loses_nothing_when_no_link_is_made,
    df_shows_every_export,
    questions_about_the_server_are_answered,
    devices_are_listed_with_their_limits,
}

on_verbs! {
    devices_are_listed_with_their_limits,
}

#[test]
fn dissector_is_printed_whole_and_its_help_says_where_it_goes() {
    let script = concat!(env!("CARGO_MANIFEST_DIR"), "/../spec/wireshark/dafs.lua");
    let printed = dafs(["dissector"]).succeeded();
    assert_eq!(printed.text(), fs::read_to_string(script).unwrap());
    let help = dafs(["dissector", "--help"]).succeeded().text();
    assert!(help.contains("~/.local/lib/wireshark/plugins/dafs.lua"), "{help}");
}

fn ls_lists_names_sorted_and_byte_for_byte(on: On) {
    let world = World::start(on);
    let strange = OsStr::from_bytes(b"b\xff\n\x1b");
    for name in [OsStr::new("c"), OsStr::new("a b"), strange, OsStr::new(".hidden")] {
        fs::write(world.data().join(name), "").unwrap();
    }
    let plain = dafs(["ls", &world.url("data")]).succeeded();
    assert_eq!(plain.stdout, b"a b\nb\xff\n\x1b\nc\n");
    let all = dafs(["ls", "-a", &world.url("data")]).succeeded();
    assert_eq!(all.stdout, b".hidden\na b\nb\xff\n\x1b\nc\n");
    let json = dafs(["ls", "--json", &world.url("data")]).succeeded().text();
    assert!(json.lines().count() == 3 && json.contains(r#""name_hex":"62ff0a1b""#), "{json}");
    // The strange name is also understood as an argument.
    let mut arguments: Vec<OsString> = vec!["ls".into()];
    arguments.push(world.url_os(OsStr::from_bytes(b"data/b\xff\n\x1b")));
    assert_eq!(dafs(arguments).succeeded().stdout, b"b\xff\n\x1b\n");
}

// [CMD-40]
fn ls_json_tells_the_directory_of_each_name(on: On) {
    let world = World::start(on);
    let strange = OsStr::from_bytes(b"b\xff");
    fs::create_dir_all(world.data().join("sub").join(strange)).unwrap();
    for directory in ["sub", ""] {
        fs::write(world.data().join(directory).join("same"), "").unwrap();
    }
    fs::write(world.data().join("sub").join(strange).join("same"), "").unwrap();
    let found = |words: &[&str]| {
        let lines = dafs(words).succeeded().text();
        let same = lines.lines().filter(|line| line.contains("same\"")).map(str::to_owned);
        same.collect::<Vec<_>>()
    };
    let url = world.url("data");
    let names = found(&["ls", "-R", "--json", &url]);
    assert_eq!(names.len(), 3, "{names:?}");
    for (name, directory) in names.iter().zip(["data", "data/sub"]) {
        let field = format!("\"directory\":\"{}\"", world.url(directory));
        assert!(name.contains(&field) && !name.contains("directory_hex"), "{name}");
    }
    let mut exact = world.url("data/sub/").into_bytes();
    exact.extend(strange.as_bytes());
    let exact: String = exact.iter().map(|byte| format!("{byte:02x}")).collect();
    assert!(names[2].contains(&format!("\"directory_hex\":\"{exact}\"")), "{}", names[2]);
    // A file that was named is in the export, by all of its path.
    let named = &found(&["ls", "--json", &world.url("data/sub/same"), &url])[0];
    for field in [format!("\"directory\":\"{url}\""), "\"name\":\"sub/same\"".to_owned()] {
        assert!(named.contains(&field), "{named}");
    }
}

fn ls_long_shows_what_ls_shows(on: On) {
    let world = World::start(on);
    fs::create_dir_all(world.data().join("sub/below")).unwrap();
    fs::write(world.data().join("file"), vec![0; 123_456]).unwrap();
    fs::set_permissions(world.data().join("file"), fs::Permissions::from_mode(0o640)).unwrap();
    symlink("some where", world.data().join("link")).unwrap();
    let long = dafs(["ls", "-l", &world.url("data")]).succeeded().text();
    let expected = std::process::Command::new("ls")
        .args(["-l", "--time-style=+%b %e %H:%M", "-N"])
        .arg(world.data())
        .env("TZ", "UTC")
        .env("LC_ALL", "C")
        .output()
        .unwrap();
    let columns = |text: &str| -> Vec<Vec<String>> {
        text.lines()
            .filter(|line| !line.starts_with("total"))
            .map(|line| line.split_whitespace().map(str::to_owned).collect())
            .collect()
    };
    assert_eq!(columns(&long), columns(&String::from_utf8(expected.stdout).unwrap()));
    let human = dafs(["ls", "-lh", &world.url("data/file")]).succeeded().text();
    assert!(human.contains(" 121K "), "{human}");
    let recursive = dafs(["ls", "-R", &world.url("data")]).succeeded().text();
    let url = world.url("data");
    assert_eq!(recursive, format!("{url}:\nfile\nlink\nsub\n\n{url}/sub:\nbelow\n\n{url}/sub/below:\n"));
    let itself = dafs(["ls", "-ld", &world.url("data/sub")]).succeeded().text();
    assert!(itself.starts_with('d') && itself.trim_end().ends_with("sub"), "{itself}");
}

fn ls_of_a_large_directory_lists_every_name_once(on: On) {
    let world = World::start(on);
    let names: Vec<String> = (0..on.rounds(5000)).map(|number| format!("name-{number:05}")).collect();
    for name in &names {
        fs::write(world.data().join(name), "").unwrap();
    }
    let listed = dafs(["ls", &world.url("data")]).succeeded().text();
    assert!(listed.lines().eq(&names));
    let unsorted = dafs(["ls", "-lU", &world.url("data")]).succeeded().text();
    let mut found: Vec<_> = unsorted.lines().filter_map(|line| line.split_whitespace().next_back()).collect();
    found.sort_unstable();
    assert!(found.iter().eq(&names));
}

// [CMD-20]
fn ls_names_what_it_cannot_look_at_and_fails(on: On) {
    let world = World::start_with(on, |server, directory| {
        let data = directory.join("data");
        let squash = if fs::metadata(&data).unwrap().uid() == 0 { "1000:1000" } else { "server" };
        server.arg("--export").arg(format!("squashed={},squash={squash}", data.display()));
    });
    let closed = world.data().join("closed");
    fs::create_dir_all(closed.join("below")).unwrap();
    // Its names may be read, and nothing else of what is in it.
    fs::set_permissions(&closed, fs::Permissions::from_mode(0o444)).unwrap();
    for way in ["-R", "-l", "-lU"] {
        let listed = dafs(["ls", way, &world.url("squashed/closed")]);
        let listed = listed.failed(1, &["cannot look at", "closed/below", "permission denied"]);
        assert!(listed.text().ends_with("below\n"), "{}", listed.text());
    }
    assert_eq!(dafs(["ls", &world.url("squashed/closed")]).succeeded().text(), "below\n");
    fs::set_permissions(&closed, fs::Permissions::from_mode(0o755)).unwrap();
}

fn stat_shows_attributes_of_links_and_what_they_point_to(on: On) {
    let world = World::start(on);
    fs::write(world.data().join("file"), "12345").unwrap();
    symlink("file", world.data().join("link")).unwrap();
    let link = dafs(["stat", &world.url("data/link")]).succeeded().text();
    assert!(link.contains("-> file") && link.contains("symbolic link"), "{link}");
    let file = dafs(["stat", "-L", &world.url("data/link")]).succeeded().text();
    assert!(file.contains("Size: 5") && file.contains("regular file") && file.contains("+0000"), "{file}");
    let json = dafs(["stat", "--json", &world.url("data/file")]).succeeded().text();
    assert!(json.contains(r#""size":5"#) && json.contains(r#""links":1"#), "{json}");
}

fn cat_writes_any_range(on: On) {
    let world = World::start(on);
    let data = dafs_tests::suite::bytes(5, on.rounds(20 << 20).max(2 << 20) as usize + 17);
    fs::write(world.data().join("file"), &data).unwrap();
    fs::write(world.data().join("empty"), "").unwrap();
    let url = world.url("data/file");
    assert!(dafs(["cat", &url]).succeeded().stdout == data);
    assert_eq!(dafs(["cat", &world.url("data/empty")]).succeeded().stdout, b"");
    for (offset, length) in
        [(0, 0), (0, 1), (1, 1 << 20), (1_048_575, 2), (data.len() - 1, 100), (data.len(), 1)]
    {
        let ran =
            dafs(["cat", "--offset", &offset.to_string(), "--length", &length.to_string(), &url]).succeeded();
        let end = (offset + length).min(data.len());
        assert!(ran.stdout == data[offset..end], "{offset}+{length}: {} bytes", ran.stdout.len());
    }
    // Behind the end of any file, too.
    assert_eq!(dafs(["cat", "--offset", "9999999T", &url]).succeeded().text(), "");
    let two = dafs(["cat", "--offset", "1K", "--length", "1K", &url, &url]).succeeded();
    assert!(two.stdout == [&data[1024..2048], &data[1024..2048]].concat());
    let some = dafs(["cat", &world.url("data/none"), &world.url("data/empty")]);
    some.failed(1, &["dafs: cannot open", "data/none", "no such file or directory"]);
    dafs(["cat", &world.url("data")]).failed(1, &["is a directory"]);
}

fn mkdir_makes_missing_parents_only_with_p(on: On) {
    let world = World::start(on);
    let deep = world.url("data/a/b/c");
    dafs(["mkdir", &deep]).failed(1, &["cannot make the directory", "no such file or directory"]);
    dafs(["mkdir", "-p", &deep]).succeeded();
    dafs(["mkdir", "-p", &deep]).succeeded();
    dafs(["mkdir", &deep]).failed(1, &["file exists"]);
    let root = world.url("data");
    dafs(["mkdir", &root]).failed(1, &["cannot make the directory", "it is the root of an export"]);
    dafs(["mkdir", "-p", &root]).succeeded();
    dafs(["mkdir", "-m", "1750", &world.url("data/mode")]).succeeded();
    assert_eq!(fs::metadata(world.data().join("mode")).unwrap().permissions().mode() & 0o7777, 0o1750);
    fs::write(world.data().join("file"), "").unwrap();
    dafs(["mkdir", "-p", &world.url("data/file")]).failed(1, &["is in the way"]);
}

fn mkdir_p_takes_paths_as_mkdir_does(on: On) {
    let world = World::start(on);
    let local = world.data().join("local");
    fs::create_dir(&local).unwrap();
    fs::create_dir(world.data().join("far")).unwrap();
    for root in [local.clone(), world.data().join("far")] {
        fs::write(root.join("file"), "").unwrap();
        symlink("there", root.join("link")).unwrap();
        symlink("nowhere", root.join("dangling")).unwrap();
        fs::create_dir(root.join("there")).unwrap();
    }
    let mkdir = |arguments: &[&str], path: &str| {
        let output = std::process::Command::new("mkdir").args(arguments).arg(path).output().unwrap();
        output.status.success()
    };
    for path in [
        "a/../b",
        "a/b/../../c/d",
        "x/y/..",
        "x/.././z",
        "./dot/.",
        "e//f///g/",
        "there",
        "there/",
        "there/.",
        "link",
        "link/",
        "link/below/../beside",
        "file",
        "file/",
        "file/.",
        "file/..",
        "file/below",
        "file/../beside",
        "dangling",
        "dangling/below",
        ".",
        "new/../../local-or-far",
    ] {
        let expected = mkdir(&["-p"], local.join(path).to_str().unwrap());
        let ran = dafs(["mkdir", "-p", &world.url(&format!("data/far/{path}"))]);
        match expected {
            true => ran.succeeded(),
            false => ran.failed(1, &["cannot make the directory"]),
        };
    }
    let tree = |root: &std::path::Path| {
        let output = std::process::Command::new("find")
            .arg("-printf")
            .arg("%P %y\\n")
            .current_dir(root)
            .output()
            .unwrap();
        let mut lines: Vec<String> =
            String::from_utf8(output.stdout).unwrap().lines().map(str::to_owned).collect();
        lines.sort();
        lines
    };
    assert_eq!(tree(&world.data().join("far")), tree(&local));
    // The root itself, and what leads out of it.
    dafs(["mkdir", "-p", &world.url("data")]).succeeded();
    dafs(["mkdir", "-p", &world.url("data/.")]).succeeded();
    for outside in ["data/..", "data/../b", "data/in/../../b"] {
        dafs(["mkdir", "-p", &world.url(outside)]).failed(1, &["cannot make the directory"]);
    }
    // Asked-for bits are those of the last; nothing could be made in the others otherwise.
    dafs(["mkdir", "-p", "-m", "0500", &world.url("data/m/n/o")]).succeeded();
    let mode = |path: &str| fs::metadata(world.data().join(path)).unwrap().permissions().mode() & 0o7777;
    assert_eq!(mode("m/n/o"), 0o500);
    assert_eq!((mode("m") & 0o700, mode("m/n") & 0o700), (0o700, 0o700));
}

// [CMD-76]
fn rm_removes_trees_and_never_follows_links(on: On) {
    let world = World::start(on);
    let tree = world.data().join("tree");
    fs::create_dir_all(tree.join("a/b/c")).unwrap();
    fs::create_dir(world.data().join("kept")).unwrap();
    fs::write(world.data().join("kept/file"), "").unwrap();
    for number in 0..300 {
        fs::write(tree.join(format!("a/{number}")), "").unwrap();
    }
    symlink("../kept", tree.join("link")).unwrap();
    symlink("../../kept/file", tree.join("a/link")).unwrap();
    let url = world.url("data/tree");
    dafs(["rm", &url]).failed(1, &["is a directory; ", "-r"]);
    for end in ["/", "//", "/.", "/./", "/../kept/."] {
        dafs(["rm", "-rf", &world.url(&format!("data/tree/link{end}"))]).failed(1, &["cannot remove"]);
    }
    assert!(world.data().join("kept/file").exists());
    dafs(["rm", "-r", &world.url("data/kept/file/")]).failed(1, &["file/': not a directory"]);
    dafs(["rm", "-r", &world.url("data/tree/link")]).succeeded();
    dafs(["rm", "-r", &format!("{url}//")]).succeeded();
    assert!(!tree.exists() && world.data().join("kept/file").exists());
    dafs(["rm", &url]).failed(1, &["cannot remove", "no such file or directory"]);
    dafs(["rm", "-f", &url]).succeeded();
    let below_a_file = world.url("data/kept/file/x");
    dafs(["rm", &below_a_file]).failed(1, &["not a directory"]);
    dafs(["rm", "-f", &below_a_file]).succeeded();
    dafs(["rm", "-rf", &world.url("data")]).failed(2, &["the root of an export"]);
    dafs(["rm", "-rf", &world.url("data/.")]).failed(2, &["the root of an export"]);
    assert!(world.data().join("kept/file").exists());
}

fn mv_renames_and_replaces_within_an_export_only(on: On) {
    let world = World::start(on);
    for name in ["one", "two", "three"] {
        fs::write(world.data().join(name), name).unwrap();
    }
    fs::create_dir(world.data().join("dir")).unwrap();
    let url = |name: &str| world.url(&format!("data/{name}"));
    dafs(["mv", &url("one"), &url("new")]).succeeded();
    dafs(["mv", "-n", &url("new"), &url("two")]).failed(1, &["cannot move", "file exists"]);
    // Options may stand anywhere.
    dafs(["mv", &url("new"), "-n", &url("two")]).failed(1, &["cannot move", "file exists"]);
    dafs(["mv", &url("new")]).failed(2, &["where to"]);
    dafs(["mv", &url("new"), &url("two")]).succeeded();
    assert_eq!(fs::read(world.data().join("two")).unwrap(), b"one");
    dafs(["mv", &url("two"), &url("three"), &url("dir")]).succeeded();
    assert!(world.data().join("dir/two").exists() && world.data().join("dir/three").exists());
    dafs(["mv", &url("dir"), &world.url("mem/dir")])
        .failed(1, &["different exports", "dafs cp -r", "dafs rm -r"]);
    dafs(["mv", &url("dir/two"), &url("dir/three"), &url("nothing")]).failed(2, &["not a directory"]);
    assert!(world.data().join("dir/two").exists());
}

fn ln_and_readlink_make_and_show_links(on: On) {
    let world = World::start(on);
    fs::write(world.data().join("file"), "x").unwrap();
    let url = |name: &str| world.url(&format!("data/{name}"));
    dafs(["ln", "-s", "any where", &url("link")]).succeeded();
    assert_eq!(dafs(["readlink", &url("link")]).succeeded().stdout, b"any where\n");
    dafs(["ln", "-s", "other", &url("link")]).failed(1, &["file exists"]);
    dafs(["ln", "-sf", "other", &url("link")]).succeeded();
    assert_eq!(fs::read_link(world.data().join("link")).unwrap(), OsStr::new("other"));
    dafs(["ln", &url("file"), &url("second")]).succeeded();
    assert_eq!(fs::read(world.data().join("second")).unwrap(), b"x");
    dafs(["ln", &url("file"), &world.url("mem/second")]).failed(1, &["in another export"]);
    dafs(["readlink", &url("file")]).failed(1, &["cannot read the symbolic link"]);
}

// [CMD-38] [CMD-39]
// [CMD-20]
fn failure_before_standard_output_is_closed_counts(on: On) {
    let world = World::start(on);
    fs::write(world.data().join("large"), vec![7; 3_000_000]).unwrap();
    for (names, code) in [(&["large"][..], 0), (&["missing", "large"], 1)] {
        let (reader, writer) = std::io::pipe().unwrap();
        drop(reader);
        let urls: Vec<String> = names.iter().map(|name| world.url(&format!("data/{name}"))).collect();
        let words = [&["cat".to_owned()][..], &urls].concat();
        let output = command(words).stdout(writer).output().unwrap();
        assert_eq!(output.status.code(), Some(code), "{}", String::from_utf8_lossy(&output.stderr));
    }
}

fn mv_of_two_names_of_one_file_leaves_the_second(on: On) {
    let world = World::start(on);
    let url = |name: &str| world.url(&format!("data/{name}"));
    fs::create_dir_all(world.data().join("dir/below")).unwrap();
    symlink("dir", world.data().join("other")).unwrap();
    fs::write(world.data().join("dir/a"), "content").unwrap();
    // Both of the same directory and of two, with one name.
    for (from, to) in [("dir/a", "dir/b"), ("dir/b", "b"), ("b", "other/b"), ("dir/b", "dir/below")] {
        let target = if to == "dir/below" { "dir/below/b" } else { to };
        fs::hard_link(world.data().join(from), world.data().join(target)).unwrap();
        dafs(["mv", &url(from), &url(to)]).succeeded();
        assert!(!world.data().join(from).exists(), "{from} to {to}");
        assert_eq!(fs::read(world.data().join(target)).unwrap(), b"content");
    }
    // They differ in case alone.
    fs::write(world.data().join("f"), "content").unwrap();
    fs::hard_link(world.data().join("f"), world.data().join("F")).unwrap();
    dafs(["mv", &url("f"), &url("F")]).succeeded();
    assert!(!world.data().join("f").exists() && world.data().join("F").exists());
    // They differ in bytes that are no letters.
    let names = [&b"data/\xe8"[..], b"data/\xe9"].map(OsStr::from_bytes);
    let [from, to] = names.map(|name| world.data().parent().unwrap().join(name));
    fs::write(&from, "content").unwrap();
    fs::hard_link(&from, &to).unwrap();
    dafs([OsString::from("mv"), world.url_os(names[0]), world.url_os(names[1])]).succeeded();
    assert!(!from.exists() && to.exists());
    let last = world.data().join("dir/below/b");
    for links in 1..=2 {
        for to in ["dir/below/b", "dir/below/./b", "dir/below", "other/below/b"] {
            dafs(["mv", &url("dir/below/b"), &url(to)]).failed(1, &["they are the same file"]);
            assert_eq!(
                (fs::read(&last).unwrap(), fs::metadata(&last).unwrap().nlink()),
                (b"content".into(), links)
            );
        }
        if links == 1 {
            fs::hard_link(&last, world.data().join("second")).unwrap();
        }
    }
}

fn mv_of_two_with_one_name_replaces_neither(on: On) {
    let world = World::start(on);
    for directory in ["one", "two", "into"] {
        fs::create_dir(world.data().join(directory)).unwrap();
    }
    for directory in ["one", "two"] {
        fs::write(world.data().join(directory).join("x"), directory).unwrap();
    }
    fs::write(world.data().join("into/x"), "older").unwrap();
    fs::write(world.data().join("two/y"), "y").unwrap();
    let url = |name: &str| world.url(&format!("data/{name}"));
    dafs(["mv", &url("one/x"), &url("two/x"), &url("two/y"), &url("into")])
        .failed(1, &["two/x", "will not replace", "into/x', which was just moved there"]);
    assert_eq!(fs::read(world.data().join("into/x")).unwrap(), b"one");
    assert_eq!(fs::read(world.data().join("two/x")).unwrap(), b"two");
    assert!(world.data().join("into/y").exists());
    // What could not be moved has not taken the name.
    dafs(["mv", &url("one/x"), &url("two/x"), &url("into")]).failed(1, &["one/x", "no such file"]);
    assert_eq!(fs::read(world.data().join("into/x")).unwrap(), b"two");
}

fn mv_of_a_directory_takes_slashes_at_the_ends_of_names(on: On) {
    let world = World::start(on);
    fs::create_dir_all(world.data().join("a/below")).unwrap();
    fs::write(world.data().join("file"), "").unwrap();
    let url = |name: &str| world.url(&format!("data/{name}"));
    for (from, to) in [("a/", "b"), ("b", "c/"), ("c//", "d//")] {
        dafs(["mv", &url(from), &url(to)]).succeeded();
        assert!(world.data().join(to).join("below").is_dir(), "{from} {to}");
    }
    dafs(["mv", &url("d/below/"), &url("d/../")]).succeeded();
    assert!(world.data().join("below").is_dir());
    dafs(["mv", &url("file"), &url("new/")]).failed(1, &["cannot move", "ends with a slash"]);
    dafs(["mv", &url("file/"), &url("new")]).failed(1, &["cannot move"]);
    dafs(["mv", &url("d"), &url("d/in")]).failed(1, &["a directory cannot be moved into itself"]);
    assert!(world.data().join("file").exists() && !world.data().join("new").exists());
}

fn ln_f_loses_nothing_when_no_link_is_made(on: On) {
    let world = World::start(on);
    let at = |name: &str| world.data().join(name);
    let url = |name: &str| world.url(&format!("data/{name}"));
    fs::create_dir_all(at("dir")).unwrap();
    symlink("dir", at("way")).unwrap();
    for name in ["file", "dir/x", "other"] {
        fs::write(at(name), name).unwrap();
    }
    for (first, link) in [("file", "file"), ("dir/x", "way/x"), ("way/x", "./dir/x"), ("file", "dir/../file")]
    {
        dafs(["ln", "-f", &url(first), &url(link)]).failed(1, &["are the same file"]);
    }
    dafs(["ln", "-sf", "file", &url("file")]).failed(1, &["are the same file"]);
    dafs(["ln", "-f", &url("dir"), &url("file")]).failed(1, &["cannot make the link"]);
    dafs(["ln", "-f", &url("nothing"), &url("file")]).failed(1, &["no such file"]);
    dafs(["ln", "-f", &url("file"), &url("dir")]).failed(1, &["cannot replace", "is a directory"]);
    for name in ["file", "dir/x"] {
        assert_eq!(fs::read(at(name)).unwrap(), name.as_bytes());
    }
    dafs(["ln", "-f", &url("file"), &url("other")]).succeeded();
    assert_eq!(fs::read(at("other")).unwrap(), b"file");
    // A second name that is there already.
    dafs(["ln", "-f", &url("file"), &url("other")]).succeeded();
    dafs(["ln", "-f", &url("other"), &url("file")]).succeeded();
    // A symbolic link replaces such a name, unless it would point to itself.
    fs::hard_link(at("file"), at("dir/file")).unwrap();
    dafs(["ln", "-sf", "file", &url("dir/../file")]).failed(1, &["are the same file"]);
    dafs(["ln", "-sf", "../dir/file", &url("way/file")]).failed(1, &["are the same file"]);
    dafs(["ln", "-sf", "../file", &url("dir/file")]).succeeded();
    assert_eq!(fs::read_link(at("dir/file")).unwrap(), OsStr::new("../file"));
    assert_eq!(fs::read(at("dir/file")).unwrap(), b"file");
    fs::remove_file(at("dir/file")).unwrap();
    dafs(["ln", "-sf", "other", &url("dir/x")]).succeeded();
    assert_eq!(fs::read_link(at("dir/x")).unwrap(), OsStr::new("other"));
    let left = |path: &str| fs::read_dir(at(path)).unwrap().count();
    assert_eq!((left(""), left("dir")), (4, 1), "a temporary name was left");
}

fn df_shows_every_export(on: On) {
    let world = World::start(on);
    let all = dafs(["df", world.server()]).succeeded().text();
    assert!(all.lines().count() == 3 && all.starts_with("Export") && all.contains("/mem "), "{all}");
    let one = dafs(["df", "-h", &world.url("mem")]).succeeded().text();
    assert!(one.lines().count() == 2 && one.contains("1.0G"), "{one}");
    let json = dafs(["df", "--json", &world.url("mem")]).succeeded().text();
    assert!(json.contains(r#""size":1073741824"#), "{json}");
}

fn questions_about_the_server_are_answered(on: On) {
    let world = World::start(on);
    let name = match on {
        On::Tcp => "tcp",
        On::Shm => "shm",
        #[cfg(feature = "verbs")]
        On::Verbs => "verbs",
    };
    let mut exports: Vec<_> =
        dafs(["exports", world.server()]).succeeded().text().lines().map(str::to_owned).collect();
    exports.sort();
    assert_eq!(exports, ["data", "mem"]);
    let ping = dafs(["ping", "-c", "3", world.server()]).succeeded().text();
    assert!(ping.lines().count() == 4 && ping.contains(&format!("3 round trips over {name}")), "{ping}");
    let many = dafs(["ping", "-c", "100", "--json", world.server()]).succeeded().text();
    assert!(many.contains(r#""count":100"#), "{many}");
    let info = dafs(["info", world.server()]).succeeded().text();
    for words in [&format!("transport: {name}"), "the address asks for it", "you are", "direct pays from"] {
        assert!(info.contains(words), "{info}");
    }
    // Where tcp is taken for want of something better, what was tried is said, or what would help.
    let any = world.server().replace("dafs+tcp://", "dafs://");
    if any != world.server() {
        let with_socket = |socket: Option<&str>| {
            let mut info = command(["info", &any]);
            match socket {
                Some(path) => info.env("DAFS_SHM_SOCKET", path),
                None => info.env_remove("DAFS_SHM_SOCKET"),
            };
            String::from_utf8_lossy(&info.output().unwrap().stdout).into_owned()
        };
        let none = with_socket(Some("/nowhere/dafs.sock"));
        for words in ["transport: tcp: no shared memory: ", "/nowhere/dafs.sock", "tcp reaches every host"] {
            assert!(none.contains(words), "{words}: {none}");
        }
        let unsaid = with_socket(None);
        assert!(unsaid.contains("name it in DAFS_SHM_SOCKET; "), "{unsaid}");
    }
    let json = dafs(["info", "--json", world.server()]).succeeded().text();
    assert!(
        json.contains(r#""read_registered":"#) && json.contains(&format!(r#""provider":"{name}""#)),
        "{json}"
    );
    let stats = dafs(["stats", world.server()]).succeeded().text();
    assert!(stats.contains("sessions: 1") && stats.contains("null: "), "{stats}");
    assert!(dafs(["stats", "--json", world.server()]).succeeded().text().contains("\"uptime_ms\""));
}

// [VERBS-43]
fn devices_are_listed_with_their_limits(on: On) {
    let ran = dafs(["info", "--devices", "--json"]);
    let text = ran.text();
    assert!(text.starts_with(r#"{"devices":["#), "{text}");
    // Scripts ask by the exit status.
    let is_usable = text.contains(r#""unusable":null"#);
    assert_eq!(ran.code, i32::from(!is_usable), "{text}");
    let words = dafs(["info", "--devices"]).text();
    match is_usable {
        true => {
            for field in ["name", "port", "link_layer", "state", "segments_max", "message_size_max"] {
                assert!(text.contains(&format!("\"{field}\":")), "{field}: {text}");
            }
            assert!(words.contains(" port ") && words.contains(" reads at once"), "{words}");
        }
        // Why, and what would help.
        false => assert!(words.starts_with("no RDMA: ") || words.contains("cannot be used: "), "{words}"),
    }
    assert!(is_usable || !on.is_verbs(), "the suite runs on a device that is not listed: {text}");
}
