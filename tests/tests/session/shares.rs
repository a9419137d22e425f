//! Deny modes: opens that keep others from a file.

use std::time::Duration;

use dafs_client::{Config, Error, Export, File, OpenOptions, ReconnectPolicy, StaleCause, Status};
use dafs_tests::harness::{Harness, On};
use dafs_tests::on_each_provider_and_three_workers;
use dafs_tests::suite::{EXPORTS, assert_status};

use crate::cuts::wait_for;

on_each_provider_and_three_workers! {
    opens_that_conflict_are_refused_and_others_are_not,
    refused_open_leaves_the_file_as_it_is,
    open_counts_until_it_is_closed_or_its_session_ends,
    file_of_several_names_is_one_file,
    handle_that_a_token_opened_is_part_of_the_first_open,
    deny_mode_is_asked_for_again_after_a_restart,
}

fn options(access: &str, deny: &str) -> OpenOptions {
    let mut options = OpenOptions::new();
    options.read(access.contains('r')).write(access.contains('w'));
    options.deny_read(deny.contains('r')).deny_write(deny.contains('w'));
    options
}

fn open(root: &Export, access: &str, deny: &str) -> dafs_client::Result<File> {
    root.open_with("f", &options(access, deny))
}

// [STOR-150]
fn opens_that_conflict_are_refused_and_others_are_not(on: On) {
    let harness = Harness::start(on);
    let (one, other) = (harness.session(), harness.session());
    for export in EXPORTS {
        let (here, there) = (one.mount(export).unwrap(), other.mount(export).unwrap());
        here.create("f").unwrap();
        one.probe().unwrap();
        for (first, second, is_denied) in [
            (("r", ""), ("rw", ""), false),
            (("r", "w"), ("r", "w"), false),
            (("r", "w"), ("r", ""), false),
            (("r", "w"), ("w", ""), true),
            (("r", "w"), ("rw", ""), true),
            (("w", "r"), ("w", "r"), false),
            (("w", "r"), ("r", ""), true),
            (("w", ""), ("r", "w"), true),
            (("r", ""), ("w", "r"), true),
            (("rw", "rw"), ("r", ""), true),
            (("rw", "rw"), ("w", ""), true),
            (("rw", ""), ("rw", "rw"), true),
        ] {
            let held = open(&here, first.0, first.1).unwrap();
            let beside = [open(&there, second.0, second.1), open(&here, second.0, second.1)];
            let what = format!("{export}: {first:?} beside {second:?}");
            for other in beside {
                match is_denied {
                    true => assert_status(other, Status::SHARE_DENIED, &what),
                    false => assert!(other.is_ok(), "{what}: {other:?}"),
                }
            }
            // Looking at it is no open.
            there.metadata("f").unwrap();
            there.lookup("f", true).unwrap();
            drop(held);
            for session in [&one, &other] {
                session.probe().unwrap();
            }
        }
    }
}

// [STOR-151]
fn refused_open_leaves_the_file_as_it_is(on: On) {
    let harness = Harness::start(on);
    let (one, other) = (harness.session(), harness.session());
    for export in EXPORTS {
        let (here, there) = (one.mount(export).unwrap(), other.mount(export).unwrap());
        here.create("f").unwrap().write_all_at(b"data", 0).unwrap();
        one.probe().unwrap();
        let held = open(&here, "r", "w").unwrap();
        let seen = here.metadata("f").unwrap();
        assert_status(there.create("f"), Status::SHARE_DENIED, export);
        let cut = there.open_with("f", options("w", "").truncate(true));
        assert_status(cut, Status::SHARE_DENIED, export);
        let looked_up = there.lookup("f", true).unwrap().0;
        let cut = looked_up.open_with("", options("w", "").truncate(true));
        assert_status(cut, Status::SHARE_DENIED, export);
        let now = here.metadata("f").unwrap();
        assert_eq!((now.size, now.change), (4, seen.change), "{export}");
        let mut found = [0; 4];
        held.read_exact_at(&mut found, 0).unwrap();
        assert_eq!(&found, b"data");
    }
}

// [STOR-152]
fn open_counts_until_it_is_closed_or_its_session_ends(on: On) {
    let harness = Harness::start(on);
    let other = harness.session();
    for export in EXPORTS {
        let there = other.mount(export).unwrap();
        there.create("f").unwrap();
        other.probe().unwrap();
        let session = harness.session();
        let here = session.mount(export).unwrap();
        let held = open(&here, "rw", "rw").unwrap();
        assert_status(open(&there, "r", ""), Status::SHARE_DENIED, export);
        drop(held);
        session.probe().unwrap();
        drop(open(&there, "r", "").unwrap());
        other.probe().unwrap();
        let held = open(&here, "r", "rw").unwrap();
        assert_status(open(&there, "r", ""), Status::SHARE_DENIED, export);
        drop((held, here, session));
        // Its session ends, but nobody waits for that.
        wait_for(|| open(&there, "r", "").is_ok());
    }
}

// [STOR-150]
fn file_of_several_names_is_one_file(on: On) {
    let harness = Harness::start(on);
    let session = harness.session();
    for export in EXPORTS {
        let root = session.mount(export).unwrap();
        root.create("f").unwrap();
        root.link("f", &root, "g").unwrap();
        root.symlink("f", "s").unwrap();
        session.probe().unwrap();
        let _held = open(&root, "r", "w").unwrap();
        for name in ["g", "s"] {
            assert_status(root.open_with(name, &options("w", "")), Status::SHARE_DENIED, name);
        }
        root.rename("f", &root, "h", false).unwrap();
        assert_status(root.open_with("h", &options("w", "")), Status::SHARE_DENIED, "another name");
        // A file that takes the name is another.
        root.create("f").unwrap();
    }
}

// [STOR-153]
fn handle_that_a_token_opened_is_part_of_the_first_open(on: On) {
    let harness = Harness::start(on);
    let (one, other) = (harness.session(), harness.session());
    for export in EXPORTS {
        let (here, there) = (one.mount(export).unwrap(), other.mount(export).unwrap());
        here.create("f").unwrap();
        one.probe().unwrap();
        let held = open(&here, "rw", "rw").unwrap();
        let token = held.share(true, true, Duration::ZERO).unwrap();
        let part = there.open_token(&token, "f", &options("rw", "rw")).unwrap();
        part.write_all_at(b"x", 0).unwrap();
        drop(held);
        one.probe().unwrap();
        assert_status(open(&here, "r", ""), Status::SHARE_DENIED, "a part of it is still there");
        drop(part);
        other.probe().unwrap();
        assert_status(open(&here, "r", ""), Status::SHARE_DENIED, "the token is still there");
    }
    // The tokens end with the session that made them.
    let data = other.mount("data").unwrap();
    drop(one);
    wait_for(|| open(&data, "r", "").is_ok());
}

// [STOR-154]
fn deny_mode_is_asked_for_again_after_a_restart(on: On) {
    let mut harness = Harness::start(on);
    let reconnect = ReconnectPolicy {
        attempts_max: 2000,
        backoff_min: Duration::from_millis(1),
        backoff_max: Duration::from_millis(20),
        ..ReconnectPolicy::default()
    };
    let config = Config { reconnect, ..Config::default() };
    let (one, other) = (harness.connect(&config).unwrap(), harness.connect(&config).unwrap());
    let (here, there) = (one.mount("data").unwrap(), other.mount("data").unwrap());
    here.create("f").unwrap();
    one.probe().unwrap();
    let held = open(&here, "r", "w").unwrap();
    harness.restart();
    one.probe().unwrap();
    held.read_at(&mut [0; 1], 0).unwrap();
    assert_status(open(&there, "w", ""), Status::SHARE_DENIED, "it is denied still");
    drop(held);
    one.probe().unwrap();
    // Who comes too late has lost it.
    let held = open(&here, "r", "w").unwrap();
    harness.stop();
    let mut late = None;
    harness.restart();
    other.probe().unwrap();
    wait_for(|| {
        late = open(&there, "w", "").ok();
        late.is_some() || one.probe().is_ok()
    });
    match (late, held.read_at(&mut [0; 1], 0)) {
        (Some(_), Err(Error::Stale { cause: StaleCause::Path(Status::SHARE_DENIED), .. }))
        | (None, Ok(_)) => {}
        (late, read) => panic!("{late:?} {read:?}"),
    }
}
