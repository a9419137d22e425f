//! Changes that others have made: the attribute `change`, and requests that go on only where there are none.

use dafs_client::{
    Attributes, Error, Expected, File, FileIdentity, OpenOptions, SetAttributes, Stability, Status, Timestamp,
};
use dafs_tests::harness::{Harness, On};
use dafs_tests::on_each_provider;
use dafs_tests::suite::{EXPORTS, assert_invalid, assert_status};

on_each_provider! {
    only_an_unchanged_file_is_written_in_one_round_trip,
    verify_compares_what_it_is_told_and_nothing_else,
    verify_of_a_path_follows_a_link_where_it_is_told,
    chain_continues_only_behind_a_verify_that_holds,
    chain_sets_a_size_only_where_the_file_has_the_expected_one,
    chain_of_an_impossible_file_is_refused_unsent,
    change_of_memory_differs_after_each_change,
}

// [STOR-131] [STOR-132] [SESS-91] [CLI-161]
fn only_an_unchanged_file_is_written_in_one_round_trip(on: On) {
    let harness = Harness::start(on);
    let (mine, others) = (harness.session(), harness.session());
    for export in EXPORTS {
        let root = mine.mount(export).unwrap();
        let file = root.create("counter").unwrap();
        file.write_all_at(b"1", 0).unwrap();
        let seen = file.metadata().unwrap();
        // What was dropped for the export before this one is closed behind an empty request.
        mine.probe().unwrap();
        others.probe().unwrap();
        let before = mine.statistics().unwrap();
        let done = file.chain().verify(&Expected::unchanged(&seen)).write_at(b"2", 0).run().unwrap();
        assert_eq!(done.counts, [1]);
        assert!(done.file.is_none() && done.attributes.is_none());
        let now = mine.statistics().unwrap();
        assert_eq!(now.handles, before.handles, "{export}: the chain opens nothing and closes nothing");
        // Its own write has changed it: what was seen before is old, once the clock that older kernels read has moved on.
        write_until_it_shows(&file, &seen);
        let late = file.chain().verify(&Expected::unchanged(&seen)).write_at(b"x", 0).run();
        assert_status(late, Status::NOT_SAME, export);
        let seen = file.metadata().unwrap();
        let other = others.mount(export).unwrap();
        let other = other.open_with("counter", OpenOptions::new().write(true)).unwrap();
        other.write_all_at(b"3", 0).unwrap();
        write_until_it_shows(&other, &seen);
        let late = file.chain().verify(&Expected::unchanged(&seen)).write_at(b"x", 0).commit().run();
        assert_status(late, Status::NOT_SAME, export);
        let mut found = [0; 1];
        file.read_exact_at(&mut found, 0).unwrap();
        assert_eq!(&found, b"3", "{export}: nothing of the chain was done");
        file.commit().unwrap();
    }
}

/// Two changes within a tick of the clock may look the same: writes the same byte again until the file has changed for everybody.
fn write_until_it_shows(file: &File, seen: &Attributes) {
    let mut byte = [0; 1];
    let byte = match file.read_at(&mut byte, 0) {
        Ok(_) => byte,
        // It is open to be written only.
        Err(_) => *b"3",
    };
    while file.metadata().unwrap().change == seen.change {
        file.write_all_at(&byte, 0).unwrap();
    }
}

// [STOR-132] [STOR-133] [WIRE-131]
fn verify_compares_what_it_is_told_and_nothing_else(on: On) {
    let harness = Harness::start(on);
    let session = harness.session();
    for export in EXPORTS {
        let root = session.mount(export).unwrap();
        let file = root.create("f").unwrap();
        file.write_all_at(b"12345", 0).unwrap();
        let mtime = Timestamp { seconds: -7, nanoseconds: 999_999_999 };
        let set = SetAttributes { mtime: Some(dafs_client::SetTime::At(mtime)), ..SetAttributes::default() };
        let seen = file.set_attributes(&set).unwrap();
        assert_eq!(seen.mtime, mtime);
        let identity = seen.identity();
        let other = FileIdentity { generation: identity.generation.wrapping_add(1), ..identity };
        let expected = Expected::new();
        let later = Timestamp { seconds: -6, ..mtime };
        for (same, another) in [
            (expected.change(seen.change), expected.change(seen.change.wrapping_add(1))),
            (expected.size(5), expected.size(6)),
            (expected.mtime(mtime), expected.mtime(later)),
            (expected.identity(identity), expected.identity(other)),
            (expected.size(5).mtime(mtime), expected.size(5).mtime(later)),
        ] {
            file.verify(&same).unwrap();
            file.verify_differs(&another).unwrap();
            root.verify("f", true, &same).unwrap();
            root.verify_differs("f", false, &another).unwrap();
            assert_status(file.verify(&another), Status::NOT_SAME, export);
            assert_status(file.verify_differs(&same), Status::SAME, export);
            assert_status(root.submit_verify("f", false, &another).wait(), Status::NOT_SAME, export);
            assert_status(root.submit_verify_differs("f", true, &same).wait(), Status::SAME, export);
        }
        assert_status(root.verify("missing", true, &expected.size(0)), Status::NOT_FOUND, export);
        root.verify("", true, &Expected::unchanged(&root.metadata("").unwrap())).unwrap();
        assert_invalid(file.verify(&expected), "nothing to compare");
        let wrong = Timestamp { seconds: 1, nanoseconds: 1_000_000_000 };
        assert_invalid(file.verify(&expected.mtime(wrong)), "a second too many");
    }
}

// [STOR-132]
fn verify_of_a_path_follows_a_link_where_it_is_told(on: On) {
    let harness = Harness::start(on);
    let session = harness.session();
    for export in EXPORTS {
        let root = session.mount(export).unwrap();
        root.create("f").unwrap();
        root.symlink("f", "link").unwrap();
        let (file, link) = (root.metadata("link").unwrap(), root.symlink_metadata("link").unwrap());
        root.verify("link", true, &Expected::unchanged(&file)).unwrap();
        root.verify("link", false, &Expected::unchanged(&link)).unwrap();
        assert_status(root.verify("link", false, &Expected::unchanged(&file)), Status::NOT_SAME, export);
        assert_status(root.verify("link", true, &Expected::unchanged(&link)), Status::NOT_SAME, export);
    }
}

// [SESS-91] [STOR-132] [STOR-133] [CLI-161]
fn chain_continues_only_behind_a_verify_that_holds(on: On) {
    let harness = Harness::start(on);
    let session = harness.session();
    for export in EXPORTS {
        let root = session.mount(export).unwrap();
        root.create_dir("d", 0o755).unwrap();
        root.create("d/f").unwrap().write_all_at(b"data", 0).unwrap();
        let (directory, file) = (root.metadata("d").unwrap(), root.metadata("d/f").unwrap());
        let rw = OpenOptions::new().read(true).write(true).clone();
        let mut found = [0; 4];
        let same = Expected::unchanged(&directory);
        let chain = root.chain().lookup("d").verify(&same).open("f", &rw);
        let chain = chain.verify(&Expected::unchanged(&file)).read_at(&mut found, 0);
        chain.verify_differs(&Expected::new().size(9)).close().run().unwrap();
        assert_eq!(&found, b"data");
        // A cache that asks only for what it does not have.
        let chain = root.chain().open("d/f", &rw).verify_differs(&Expected::unchanged(&file));
        let mut untouched = [7; 4];
        let kept = chain.read_at(&mut untouched, 0).close().run();
        assert_status(kept, Status::SAME, export);
        assert_eq!(untouched, [7; 4]);
        let before = session.statistics().unwrap().handles;
        root.create("d/g").unwrap();
        match root.chain().lookup("d").verify(&same).open("f", &rw).close().run() {
            Err(Error::Status { status: Status::NOT_SAME, .. }) => {}
            other => panic!("{export}: the directory has a name more: {other:?}"),
        }
        session.probe().unwrap();
        assert_eq!(session.statistics().unwrap().handles, before, "{export}: nothing stays open");
    }
}

fn chain_sets_a_size_only_where_the_file_has_the_expected_one(on: On) {
    let harness = Harness::start(on);
    let session = harness.session();
    for export in EXPORTS {
        let root = session.mount(export).unwrap();
        let file = root.create("f").unwrap();
        file.write_all_at(b"data", 0).unwrap();
        file.chain().verify(&Expected::new().size(4)).truncate(9).run().unwrap();
        assert_status(
            file.chain().verify(&Expected::new().size(4)).truncate(5).run(),
            Status::NOT_SAME,
            export,
        );
        assert_eq!(file.metadata().unwrap().size, 9, "{export}");
        root.chain().open("f", OpenOptions::new().write(true)).truncate(2).close().run().unwrap();
        assert_eq!(file.metadata().unwrap().size, 2, "{export}");
    }
}

// [CLI-124] [CLI-162]
fn chain_of_an_impossible_file_is_refused_unsent(on: On) {
    let harness = Harness::start(on);
    let session = harness.session();
    let root = session.mount("mem").unwrap();
    let file = root.create("f").unwrap();
    let read = OpenOptions::new().read(true).clone();
    assert_invalid(file.chain().run(), "nothing");
    assert_invalid(file.chain().write_at(b"x", 0).close().run(), "a close of the caller's file");
    assert_invalid(file.chain().open("g", &read).run(), "an open below a file");
    assert_invalid(file.chain().lookup("g").run(), "a lookup below a file");
    assert_invalid(file.chain().verify(&Expected::new()).run(), "a comparison of nothing");
    assert_invalid(root.chain().verify(&Expected::new().size(0)).run(), "a verify of nothing");
    let durable = OpenOptions::new().write(true).stability(Stability::FileSync).clone();
    let file = root.open_with("f", &durable).unwrap();
    assert_eq!(file.chain().write_at(b"ab", 0).write_at(b"c", 2).run().unwrap().counts, [2, 1]);
}

// [STOR-130]
fn change_of_memory_differs_after_each_change(on: On) {
    let harness = Harness::start(on);
    let session = harness.session();
    let root = session.mount("mem").unwrap();
    let directory = root.open_dir("").unwrap();
    let file = root.create("f").unwrap();
    let mut seen = vec![file.metadata().unwrap().change];
    let mut names = vec![directory.metadata("").unwrap().change];
    let mode = |mode| SetAttributes { mode: Some(mode), ..SetAttributes::default() };
    let changes: [&dyn Fn(); 8] = [
        &|| file.write_all_at(b"one", 0).unwrap(),
        &|| file.write_all_at(b"two", 0).unwrap(),
        &|| assert_eq!(file.append(b"x").unwrap(), 3),
        &|| file.truncate(1).unwrap(),
        &|| file.allocate(0, 10).unwrap(),
        &|| file.punch_hole(0, 1).unwrap(),
        &|| assert_eq!(file.set_attributes(&mode(0o600)).unwrap().mode, 0o600),
        &|| root.set_xattr("f", "user.a", b"v", Default::default()).unwrap(),
    ];
    for change in changes {
        change();
        seen.push(file.metadata().unwrap().change);
    }
    assert!(seen.is_sorted_by(|earlier, later| earlier < later), "{seen:?}");
    let last = *seen.last().unwrap();
    file.read_at(&mut [0; 8], 0).unwrap();
    file.write_all_at(b"", 0).unwrap();
    assert_eq!(file.metadata().unwrap().change, last, "nothing has changed");
    let changes: [&dyn Fn(); 4] = [
        &|| drop(root.create("g").unwrap()),
        &|| assert_eq!(root.link("g", &root, "h").unwrap().links, 2),
        &|| root.rename("h", &root, "i", false).unwrap(),
        &|| root.remove_file("g").unwrap(),
    ];
    for change in changes {
        change();
        names.push(directory.metadata("").unwrap().change);
    }
    assert!(names.is_sorted_by(|earlier, later| earlier < later), "{names:?}");
}
