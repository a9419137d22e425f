//! Names: opening, making, removing, renaming, linking, attributes, and the ways out of an export that are closed.

use std::ffi::{OsStr, OsString};
use std::os::unix::ffi::{OsStrExt, OsStringExt};
use std::os::unix::fs::symlink;

use dafs_client::{
    AccessMode, Dir, Error, FileKind, OpenOptions, SetAttributes, SetTime, Status, Timestamp, XattrSetMode,
};
use dafs_tests::harness::{Harness, On};
use dafs_tests::on_each_provider;
use dafs_tests::suite::{EXPORTS, assert_invalid, assert_status};

on_each_provider! {
    open_flags_mean_what_they_say,
    open_flags_that_contradict_each_other_are_refused_by_the_library,
    directories_are_made_and_removed_when_empty,
    rename_replaces_only_when_told,
    links_share_one_file_and_symlinks_name_another,
    names_that_are_not_text_are_kept_byte_for_byte,
    names_and_paths_are_bounded,
    paths_that_leave_the_export_are_refused,
    attributes_are_set_and_answered,
    extended_attributes_are_kept,
    statistics_of_the_file_system_are_answered,
    access_is_what_access_2_says,
    read_only_export_refuses_every_change,
    submitted_forms_answer_as_the_blocking_ones,
    unknown_exports_are_refused_and_known_ones_listed,
}

fn write_create() -> OpenOptions {
    let mut options = OpenOptions::new();
    options.read(true).write(true).create(true);
    options
}

fn open_flags_mean_what_they_say(on: On) {
    let harness = Harness::start(on);
    let session = harness.session();
    for export in EXPORTS {
        let root = session.mount(export).unwrap();
        assert_status(root.open("f"), Status::NOT_FOUND, "not there");
        assert_status(root.open("d/f"), Status::NOT_FOUND, "its directory is not there");
        let file = root.open_with("f", write_create().mode(0o640)).unwrap();
        assert_eq!(file.attributes_at_open().mode, 0o640);
        file.write_all_at(b"hello", 0).unwrap();
        // Opened again: neither mode nor data change.
        assert_eq!(root.open_with("f", write_create().mode(0o600)).unwrap().metadata().unwrap().mode, 0o640);
        assert_eq!(root.open("f").unwrap().attributes_at_open().size, 5);
        let mut exclusive = OpenOptions::new();
        exclusive.write(true).create_new(true);
        assert_status(root.open_with("f", &exclusive), Status::EXISTS, "exclusive");
        root.open_with("g", &exclusive).unwrap();
        let cut = root.open_with("f", OpenOptions::new().write(true).truncate(true)).unwrap();
        assert_eq!(cut.attributes_at_open().size, 0);
        root.symlink("g", "s").unwrap();
        let mut no_follow = OpenOptions::new();
        assert_status(root.open_with("s", no_follow.read(true).no_follow(true)), Status::LOOP, "no-follow");
        root.open("s").unwrap();
        root.create_dir("d", 0o755).unwrap();
        assert_status(
            root.open_with("d", OpenOptions::new().read(true).write(true)),
            Status::IS_DIRECTORY,
            "a directory is not written",
        );
        assert_status(root.open_dir("f"), Status::NOT_DIRECTORY, "a file is no directory");
        root.symlink("d", "way").unwrap();
        root.open_dir("way").unwrap().create("below").unwrap();
        assert_status(root.open_dir_no_follow("way"), Status::NOT_DIRECTORY, "no-follow");
        let opened = root.open_dir_no_follow("d").unwrap();
        let listed: Vec<_> = opened.entries(false).map(|entry| entry.unwrap().name).collect();
        assert_eq!(listed, [b"below"]);
        assert_status(root.open("f/x"), Status::NOT_DIRECTORY, "below a file");
    }
}

fn open_flags_that_contradict_each_other_are_refused_by_the_library(on: On) {
    let harness = Harness::start(on);
    let root = harness.session().mount("data").unwrap();
    assert_invalid(root.open_with("f", &OpenOptions::new()), "for nothing");
    assert_invalid(root.open_with("f", OpenOptions::new().read(true).truncate(true)), "cut and not written");
    let mut both = OpenOptions::new();
    assert_invalid(root.open_with("f", both.append(true).truncate(true)), "appended to and cut");
    assert_invalid(root.open_with("f", write_create().mode(0o10000)), "a mode of too many bits");
    assert!(root.read_dir("", false).unwrap().next().is_none(), "nothing was made");
    // One that is made may be read alone, as by open(2).
    let made = root.open_with("f", OpenOptions::new().read(true).create_new(true).mode(0o444)).unwrap();
    assert_eq!(made.read_at(&mut [0; 4], 0).unwrap(), 0);
}

fn directories_are_made_and_removed_when_empty(on: On) {
    let harness = Harness::start(on);
    let session = harness.session();
    for export in EXPORTS {
        let root = session.mount(export).unwrap();
        let made = root.create_dir("d", 0o750).unwrap();
        assert_eq!((made.kind, made.mode), (FileKind::Directory, 0o750));
        assert_status(root.create_dir("d", 0o755), Status::EXISTS, "twice");
        assert_status(root.create_dir("x/y", 0o755), Status::NOT_FOUND, "without its parent");
        root.create_dir_all("d/a/b/c", 0o755).unwrap();
        root.create_dir_all("d/a/b/c", 0o755).unwrap();
        root.create("d/a/file").unwrap();
        assert_status(root.create_dir_all("d/a/file", 0o755), Status::EXISTS, "a file");
        root.remove_file("d/a/file").unwrap();
        let below = root.open_dir("d/a").unwrap();
        below.create("b/f").unwrap();
        assert_status(root.remove_dir("d"), Status::NOT_EMPTY, "not empty");
        assert_status(root.remove_file("d"), Status::IS_DIRECTORY, "a directory is not a file");
        assert_status(root.remove_dir("d/a/b/f"), Status::NOT_DIRECTORY, "a file is not a directory");
        root.remove_file("d/a/b/f").unwrap();
        assert_status(root.remove_file("d/a/b/f"), Status::NOT_FOUND, "removed already");
        for path in ["d/a/b/c", "d/a/b", "d/a/", "d"] {
            root.remove_dir(path).unwrap();
        }
        assert_status(root.metadata("d"), Status::NOT_FOUND, "all gone");
        // [STOR-3]
        for path in ["", ".", "..", "e/.", "e/.."] {
            assert_status(root.create_dir(path, 0o755), Status::INVALID, path);
            assert_status(root.remove_dir(path), Status::INVALID, path);
        }
    }
}

fn rename_replaces_only_when_told(on: On) {
    let harness = Harness::start(on);
    let session = harness.session();
    for export in EXPORTS {
        let root = session.mount(export).unwrap();
        root.create("a").unwrap().write_all_at(b"a", 0).unwrap();
        root.create("b").unwrap().write_all_at(b"bb", 0).unwrap();
        root.create_dir("d", 0o755).unwrap();
        let directory = root.open_dir("d").unwrap();
        assert_status(root.rename("a", &root, "b", false), Status::EXISTS, "not replaced");
        assert_eq!(root.metadata("b").unwrap().size, 2);
        root.rename("a", &root, "b", true).unwrap();
        assert_eq!(root.metadata("b").unwrap().size, 1);
        assert_status(root.metadata("a"), Status::NOT_FOUND, "moved");
        root.rename("b", &directory, "c", false).unwrap();
        assert_eq!(root.metadata("d/c").unwrap().size, 1);
        assert_status(root.rename("a", &root, "x", true), Status::NOT_FOUND, "not there");
        assert_status(root.rename("d", &root, "d/c/x", true), Status::NOT_DIRECTORY, "below a file");
        assert_status(root.rename("d", &directory, "x", true), Status::INVALID, "into itself");
        // A file that is open keeps its data when its name goes.
        let open = root.open("d/c").unwrap();
        root.remove_file("d/c").unwrap();
        let mut data = [0; 1];
        open.read_exact_at(&mut data, 0).unwrap();
        assert_eq!(&data, b"a");
    }
    let (data, mem) = (session.mount("data").unwrap(), session.mount("mem").unwrap());
    data.create("x").unwrap();
    assert_invalid(data.rename("x", &mem, "x", true), "between exports");
}

fn links_share_one_file_and_symlinks_name_another(on: On) {
    let harness = Harness::start(on);
    let session = harness.session();
    for export in EXPORTS {
        let root = session.mount(export).unwrap();
        let file = root.create("f").unwrap();
        file.write_all_at(b"shared", 0).unwrap();
        let linked = root.link("f", &root, "g").unwrap();
        assert_eq!((linked.links, linked.file_id), (2, file.metadata().unwrap().file_id));
        assert_status(root.link("f", &root, "g"), Status::EXISTS, "taken");
        root.remove_file("f").unwrap();
        assert_eq!(root.metadata("g").unwrap().links, 1);
        root.create_dir("d", 0o755).unwrap();
        assert!(root.link("d", &root, "e").is_err(), "directories have one name");
        let made = root.symlink("g", "s").unwrap();
        assert_eq!(made.kind, FileKind::Symlink);
        assert_eq!(root.read_link("s").unwrap(), b"g");
        assert_eq!(root.metadata("s").unwrap().kind, FileKind::File);
        assert_eq!(root.symlink_metadata("s").unwrap().kind, FileKind::Symlink);
        assert_status(root.read_link("g"), Status::INVALID, "not a link");
        root.symlink("nowhere", "dangling").unwrap();
        assert_status(root.open("dangling"), Status::NOT_FOUND, "dangling");
        root.symlink("round", "round").unwrap();
        assert_status(root.open("round"), Status::LOOP, "to itself");
        assert_eq!(root.lookup("s", false).unwrap().1.kind, FileKind::Symlink);
        let (node, attributes) = root.lookup("s", true).unwrap();
        assert_eq!(attributes.kind, FileKind::File);
        assert_eq!(node.metadata("").unwrap().size, 6);
        // Removing a link leaves what it names.
        root.remove_file("s").unwrap();
        root.metadata("g").unwrap();
    }
}

// [STOR-44]
fn names_that_are_not_text_are_kept_byte_for_byte(on: On) {
    let harness = Harness::start(on);
    let session = harness.session();
    for export in EXPORTS {
        let root = session.mount(export).unwrap();
        let mut names: Vec<OsString> = (1..=255u8)
            .filter(|byte| *byte != b'/' && *byte != b'.')
            .map(|byte| OsString::from_vec(vec![byte, 0xff, byte]))
            .collect();
        names.push(OsString::from("e\u{301}\n"));
        for name in &names {
            root.create(name).unwrap();
        }
        root.symlink(OsStr::from_bytes(b"\xfe\xff"), OsStr::from_bytes(b"\xc3\x28")).unwrap();
        assert_eq!(root.read_link(OsStr::from_bytes(b"\xc3\x28")).unwrap(), b"\xfe\xff");
        let mut found: Vec<_> =
            root.read_dir("", false).unwrap().map(|entry| OsString::from_vec(entry.unwrap().name)).collect();
        names.push(OsString::from_vec(b"\xc3\x28".to_vec()));
        names.sort();
        found.sort();
        assert_eq!(found, names, "{export}");
        if export == "data" {
            let here: usize = std::fs::read_dir(harness.data()).unwrap().count();
            assert_eq!(here, names.len());
        }
        // An error names the path, readable.
        let error = root.open(OsStr::from_bytes(b"no \xff")).unwrap_err();
        assert!(error.to_string().contains("no \u{fffd}"), "{error}");
    }
}

// [WIRE-5]
fn names_and_paths_are_bounded(on: On) {
    let harness = Harness::start(on);
    let session = harness.session();
    for export in EXPORTS {
        let root = session.mount(export).unwrap();
        let (longest, beyond) = ("n".repeat(255), "n".repeat(256));
        root.create(&longest).unwrap();
        root.metadata(&longest).unwrap();
        assert_status(root.create(&beyond), Status::NAME_TOO_LONG, "256 bytes");
        assert_status(root.create_dir(format!("{beyond}/x"), 0o755), Status::NAME_TOO_LONG, "a part of 256");
        assert_status(root.metadata(&beyond), Status::NAME_TOO_LONG, "256 bytes");
        root.create("x").unwrap();
        let path_of = |len: usize| {
            let dots = "./".repeat((len - 1) / 2);
            format!("{dots}{}x", if len.is_multiple_of(2) { "/" } else { "" })
        };
        for len in [4094, 4095] {
            assert_eq!(path_of(len).len(), len);
            assert_eq!(root.metadata(path_of(len)).unwrap().kind, FileKind::File, "{export} {len}");
        }
        assert_status(root.metadata(path_of(4096)), Status::NAME_TOO_LONG, "4,096 bytes");
        assert_invalid(root.metadata(path_of(4097)), "4,097 bytes");
        assert_invalid(root.metadata("a\0b"), "a zero byte");
        assert_invalid(root.symlink("a\0b", "s"), "a zero byte in a target");
        assert_eq!(root.metadata("x").unwrap().size, 0, "the session goes on");
    }
}

// [STOR-1]
fn paths_that_leave_the_export_are_refused(on: On) {
    let harness = Harness::start(on);
    std::fs::write(harness.scratch().join("secret"), b"secret").unwrap();
    let session = harness.session();
    for export in EXPORTS {
        let root = session.mount(export).unwrap();
        root.create_dir("d", 0o755).unwrap();
        root.create("inside").unwrap();
        if export == "data" {
            // What somebody beside the server put there.
            symlink("/etc/passwd", harness.data().join("absolute")).unwrap();
            symlink("../secret", harness.data().join("above")).unwrap();
            symlink("d/../../secret", harness.data().join("around")).unwrap();
            symlink("..", harness.data().join("parent")).unwrap();
        } else {
            root.symlink("/etc/passwd", "absolute").unwrap();
            root.symlink("../secret", "above").unwrap();
            root.symlink("d/../../secret", "around").unwrap();
            root.symlink("..", "parent").unwrap();
        }
        let below = root.open_dir("d").unwrap();
        let escapes = ["..", "../secret", "d/../../secret", "absolute", "above", "around", "parent/secret"];
        for path in escapes {
            refuses(&root, path, export);
        }
        for path in ["../..", "../../secret", "../above", "../parent/secret"] {
            refuses(&below, path, export);
        }
        // A link that leads out is itself inside.
        assert_eq!(root.read_link("absolute").unwrap(), b"/etc/passwd");
        // A way up that stays inside is one like any other; a leading slash is the export's root.
        assert_eq!(below.metadata("../inside").unwrap().kind, FileKind::File);
        assert_eq!(root.metadata("/inside").unwrap().kind, FileKind::File);
        root.remove_file("above").unwrap();
    }
    assert_eq!(std::fs::read(harness.scratch().join("secret")).unwrap(), b"secret");
}

fn refuses(directory: &Dir, path: &str, export: &str) {
    let what = format!("{export}: {path}");
    assert_status(directory.metadata(path), Status::CROSS_DEVICE, &what);
    assert_status(directory.open(path), Status::CROSS_DEVICE, &what);
    assert_status(directory.lookup(path, true), Status::CROSS_DEVICE, &what);
    let mut create = OpenOptions::new();
    assert!(directory.open_with(path, create.write(true).create(true)).is_err(), "{what}");
    let name = format!("{path}/new");
    assert!(directory.create_dir(&name, 0o755).is_err(), "{what}");
    assert!(directory.symlink("x", &name).is_err(), "{what}");
    assert!(directory.remove_file(&name).is_err(), "{what}");
    assert!(directory.rename(&name, directory, "y", true).is_err(), "{what}");
}

fn at(seconds: i64, nanoseconds: u32) -> Option<SetTime> {
    Some(SetTime::At(Timestamp { seconds, nanoseconds }))
}

fn attributes_are_set_and_answered(on: On) {
    let harness = Harness::start(on);
    let session = harness.session();
    for export in EXPORTS {
        let root = session.mount(export).unwrap();
        let file = root.create("f").unwrap();
        for (atime, mtime) in [((1, 0), (1_700_000_000, 123_456_789)), ((-1, 999_999_999), (-86_400, 1))] {
            let set = SetAttributes {
                atime: at(atime.0, atime.1),
                mtime: at(mtime.0, mtime.1),
                ..SetAttributes::default()
            };
            let found = file.set_attributes(&set).unwrap();
            assert_eq!(found, root.metadata("f").unwrap());
            assert_eq!((found.atime.seconds, found.atime.nanoseconds), atime, "{export}");
            assert_eq!((found.mtime.seconds, found.mtime.nanoseconds), mtime, "{export}");
        }
        let only_mode = SetAttributes { mode: Some(0o4711), ..SetAttributes::default() };
        let found = root.set_attributes("f", true, &only_mode).unwrap();
        assert_eq!((found.mode, found.mtime.seconds), (0o4711, -86_400), "{export}: the rest stays");
        let now = SetAttributes { mtime: Some(SetTime::Now), ..SetAttributes::default() };
        assert!(file.set_attributes(&now).unwrap().mtime.seconds > 1_700_000_000);
        let too_many = SetAttributes { mtime: at(0, 1_000_000_000), ..SetAttributes::default() };
        assert_status(file.set_attributes(&too_many), Status::INVALID, "a whole second of nanoseconds");
        // A link's own times.
        root.symlink("f", "s").unwrap();
        let set = SetAttributes { mtime: at(77, 7), ..SetAttributes::default() };
        root.set_attributes("s", false, &set).unwrap();
        assert_eq!(root.symlink_metadata("s").unwrap().mtime.seconds, 77);
        assert_ne!(root.metadata("s").unwrap().mtime.seconds, 77);
        let unknown = root.set_attributes("nothing", true, &set);
        assert_status(unknown, Status::NOT_FOUND, "not there");
    }
}

// [STOR-8]
fn extended_attributes_are_kept(on: On) {
    let harness = Harness::start(on);
    let session = harness.session();
    for export in EXPORTS {
        let root = session.mount(export).unwrap();
        root.create("f").unwrap();
        let first = root.set_xattr("f", "user.a", b"one", XattrSetMode::Create);
        if let Err(Error::Status { status: Status::NOT_SUPPORTED, .. }) = first {
            assert_eq!(export, "data", "the temporary directory's file system may have none");
            continue;
        }
        first.unwrap();
        assert_status(
            root.set_xattr("f", "user.a", b"two", XattrSetMode::Create),
            Status::EXISTS,
            "created twice",
        );
        assert_status(
            root.set_xattr("f", "user.b", b"", XattrSetMode::Replace),
            Status::NO_DATA,
            "replaced where none is",
        );
        root.set_xattr("f", "user.a", b"\0\xff", XattrSetMode::Replace).unwrap();
        root.set_xattr("f", "user.empty", b"", XattrSetMode::Any).unwrap();
        assert_eq!(root.xattr("f", "user.a").unwrap(), b"\0\xff");
        assert_eq!(root.xattr("f", "user.empty").unwrap(), b"");
        let mut names = root.xattrs("f").unwrap();
        names.retain(|name| name.starts_with(b"user."));
        names.sort();
        assert_eq!(names, [b"user.a".to_vec(), b"user.empty".to_vec()]);
        root.submit_remove_xattr("f", "user.a").wait().unwrap();
        assert_status(root.xattr("f", "user.a"), Status::NO_DATA, "removed");
        assert_status(root.remove_xattr("f", "user.a"), Status::NO_DATA, "removed");
        assert_status(root.xattr("f", ""), Status::INVALID, "no name");
        assert_invalid(root.xattr("f", &"n".repeat(256)), "a name of 256 bytes");
    }
}

fn statistics_of_the_file_system_are_answered(on: On) {
    let harness = Harness::start(on);
    let session = harness.session();
    for export in EXPORTS {
        let root = session.mount(export).unwrap();
        let found = root.statfs("").unwrap();
        assert!(found.block_size > 0 && found.blocks >= found.blocks_free, "{export}: {found:?}");
        assert_eq!(found.name_size_max, 255);
        assert_eq!(root.submit_statfs("").wait().unwrap().block_size, found.block_size);
        assert_eq!(root.statfs(".").unwrap().block_size, found.block_size);
        assert_status(root.statfs("missing"), Status::NOT_FOUND, "the space of what is not there");
    }
}

// [STOR-28] [STOR-66]
fn access_is_what_access_2_says(on: On) {
    let harness = Harness::start(on);
    let session = harness.session();
    let all = AccessMode::all();
    for export in EXPORTS {
        let root = session.mount(export).unwrap();
        root.create("f").unwrap();
        root.create_dir("d", 0o755).unwrap();
        root.symlink("f", "link").unwrap();
        root.symlink("nothing", "dangling").unwrap();
        let mode = |mode| SetAttributes { mode: Some(mode), ..SetAttributes::default() };
        root.set_attributes("f", true, &mode(0o644)).unwrap();
        for (path, asked) in
            [("f", AccessMode::READ | AccessMode::WRITE), ("link", AccessMode::READ), ("d", all), ("", all)]
        {
            root.access(path, asked).unwrap();
            root.access(path, AccessMode::empty()).unwrap();
        }
        // Not even the superuser executes it.
        for path in ["f", "link"] {
            assert_status(root.access(path, AccessMode::EXECUTE), Status::ACCESS, path);
        }
        root.set_attributes("f", true, &mode(0o744)).unwrap();
        root.submit_access("link", all).wait().unwrap();
        assert_status(
            root.access("", AccessMode::from_bits_retain(8)),
            Status::INVALID,
            "a bit that is none",
        );
        for path in ["nothing", "dangling", "f/below"] {
            let expected = if path == "f/below" { Status::NOT_DIRECTORY } else { Status::NOT_FOUND };
            assert_status(root.access(path, AccessMode::empty()), expected, path);
        }
    }
}

// [WIRE-14] [ACC-36] [STOR-66]
fn read_only_export_refuses_every_change(on: On) {
    let harness = Harness::start_with(on, |config| {
        config.exports.iter_mut().for_each(|export| export.read_only = true);
    });
    std::fs::write(harness.data().join("f"), b"data").unwrap();
    std::fs::create_dir(harness.data().join("d")).unwrap();
    let session = harness.session();
    for export in EXPORTS {
        let root = session.mount(export).unwrap();
        assert!(root.is_read_only());
        let set = SetAttributes { mode: Some(0o600), ..SetAttributes::default() };
        let refused: [(&str, dafs_client::Result<()>); 10] = [
            ("write", root.open_with("f", OpenOptions::new().write(true)).map(drop)),
            ("create", root.create("g").map(drop)),
            ("truncate", root.open_with("f", OpenOptions::new().write(true).truncate(true)).map(drop)),
            ("mkdir", root.create_dir("e", 0o755).map(drop)),
            ("remove file", root.remove_file("f")),
            ("remove directory", root.remove_dir("d")),
            ("rename", root.rename("f", &root, "g", true)),
            ("link", root.link("f", &root, "g").map(drop)),
            ("symlink", root.symlink("f", "s").map(drop)),
            ("attributes", root.set_attributes("f", true, &set).map(drop)),
        ];
        for (what, result) in refused {
            assert_status(result, Status::READ_ONLY, &format!("{export}: {what}"));
        }
        let xattr = root.set_xattr("f", "user.a", b"x", XattrSetMode::Any);
        assert_status(xattr, Status::READ_ONLY, "extended attribute");
        root.access("", AccessMode::READ).unwrap();
        assert_status(root.access("", AccessMode::WRITE), Status::READ_ONLY, "access");
    }
    let root = session.mount("data").unwrap();
    let mut data = [0; 4];
    root.open("f").unwrap().read_exact_at(&mut data, 0).unwrap();
    assert_eq!(&data, b"data");
    assert_eq!(root.read_dir("", true).unwrap().count(), 2);
}

fn submitted_forms_answer_as_the_blocking_ones(on: On) {
    let harness = Harness::start(on);
    let session = harness.session();
    session.submit_ping().wait().unwrap();
    assert_eq!(session.submit_limits().wait().unwrap().slots, session.agreed().slots);
    assert!(session.submit_statistics().wait().unwrap().sessions >= 1);
    for export in EXPORTS {
        let root = session.submit_mount(export).wait().unwrap();
        let made = root.submit_create_dir("d", 0o755).wait().unwrap();
        assert_eq!(root.submit_metadata("d").wait().unwrap().file_id, made.file_id);
        let below = root.submit_open_dir("d").wait().unwrap();
        let file = below.submit_open_with("f", &write_create()).wait().unwrap();
        file.write_all_at(b"x", 0).unwrap();
        assert_eq!(file.submit_metadata().wait().unwrap().size, 1);
        root.submit_symlink("d/f", "s").wait().unwrap();
        assert_eq!(root.submit_read_link("s").wait().unwrap(), b"d/f");
        assert_eq!(root.submit_symlink_metadata("s").wait().unwrap().kind, FileKind::Symlink);
        assert_eq!(root.submit_lookup("s", true).wait().unwrap().1.size, 1);
        assert_eq!(root.submit_link("d/f", &below, "g").wait().unwrap().links, 2);
        root.submit_rename("d/g", &root, "h", false).wait().unwrap();
        let set = SetAttributes { mode: Some(0o600), ..SetAttributes::default() };
        assert_eq!(root.submit_set_attributes("h", true, &set).wait().unwrap().mode, 0o600);
        assert_eq!(file.submit_set_attributes(&set).wait().unwrap().mode, 0o600);
        assert_status(root.submit_remove_dir("d").wait(), Status::NOT_EMPTY, "not empty");
        for path in ["h", "s", "d/f"] {
            root.submit_remove_file(path).wait().unwrap();
        }
        root.submit_remove_dir("d").wait().unwrap();
        // What cannot be sent is answered all the same.
        assert_invalid(root.submit_metadata("a\0b").wait(), "a zero byte");
    }
}

// [ACC-93]
fn unknown_exports_are_refused_and_known_ones_listed(on: On) {
    let harness = Harness::start(on);
    let session = harness.session();
    let mut names = session.exports().unwrap();
    names.sort();
    assert_eq!(names, EXPORTS);
    assert_eq!(session.submit_exports().wait().unwrap().len(), 2);
    for name in ["other", "data/", "DATA", "..", &"n".repeat(255)] {
        assert_status(session.mount(name), Status::NO_EXPORT, name);
    }
    assert_invalid(session.mount(""), "no name");
    assert_invalid(session.mount(&"n".repeat(256)), "a name too long");
    session.mount("data").unwrap();
}
