//! Directories with more entries than fit one request.

use std::collections::BTreeSet;
use std::path::Path;
use std::sync::atomic::{AtomicBool, Ordering};

use dafs_client::{Config, Dir, FileKind, MethodOverride, Session};
use dafs_tests::harness::{Harness, On};
use dafs_tests::on_each_provider;
use dafs_tests::program::Program;
use dafs_tests::suite::{EXPORTS, resident_size};

on_each_provider! {
    listing_of_ten_thousand_entries_answers_each_once,
    listing_is_resumed_after_any_entry,
    listing_while_entries_come_and_go_keeps_those_that_stay,
    listing_of_an_empty_directory_ends_at_once,
    large_listing_amid_changes_is_complete_in_bounded_memory,
}

const ENTRIES: u64 = 10_000;

fn name(index: usize) -> String {
    // Lengths differ, so that batches end at different places.
    format!("{index:05}{}", "x".repeat(index % 40))
}

/// A directory `d` with many files in both exports.
fn fill(data: &Path, session: &Session, export: &str, entries: usize) -> Dir {
    let root = session.mount(export).unwrap();
    root.create_dir("d", 0o755).unwrap();
    let directory = root.open_dir("d").unwrap();
    if export == "data" {
        for index in 0..entries {
            std::fs::File::create(data.join("d").join(name(index))).unwrap();
        }
    } else {
        let mut options = dafs_client::OpenOptions::new();
        options.write(true).create_new(true);
        // A session has so many open at a time.
        for first in (0..entries).step_by(10_000) {
            let last = entries.min(first + 10_000);
            let pendings: Vec<_> =
                (first..last).map(|index| directory.submit_open_with(name(index), &options)).collect();
            for pending in pendings {
                pending.wait().unwrap();
            }
        }
    }
    root.open_dir("").unwrap()
}

// [STOR-80]
fn listing_of_ten_thousand_entries_answers_each_once(on: On) {
    let harness = Harness::start(on);
    let entries = on.rounds(ENTRIES) as usize;
    let expected: BTreeSet<Vec<u8>> = (0..entries).map(|index| name(index).into_bytes()).collect();
    let filler = harness.session();
    for export in EXPORTS {
        let _root = fill(&harness.data(), &filler, export, entries);
        for method in [MethodOverride::Auto, MethodOverride::Inline, MethodOverride::Direct] {
            let session = harness.session_with(&Config { method, ..Config::default() });
            let root = session.mount(export).unwrap();
            for attributes in [false, true] {
                let mut names = BTreeSet::new();
                for entry in root.read_dir("d", attributes).unwrap() {
                    let entry = entry.unwrap();
                    assert_eq!(entry.attributes.is_some(), attributes);
                    if let Some(attributes) = &entry.attributes {
                        assert_eq!((attributes.kind, attributes.size), (FileKind::File, 0));
                    }
                    assert!(names.insert(entry.name), "{export}: twice");
                }
                assert!(names == expected, "{export} {method:?}: {} of {entries}", names.len());
            }
        }
    }
}

// [STOR-18]
fn listing_is_resumed_after_any_entry(on: On) {
    let harness = Harness::start(on);
    let session = harness.session();
    for export in EXPORTS {
        let root = fill(&harness.data(), &session, export, 700);
        let all: Vec<_> = root.read_dir("d", false).unwrap().map(|entry| entry.unwrap().name).collect();
        assert_eq!(all.len(), 700);
        for stop in [0, 1, 2, 399, 698, 699, 700] {
            let mut listing = root.read_dir("d", false).unwrap();
            let mut names: Vec<_> = listing.by_ref().take(stop).map(|entry| entry.unwrap().name).collect();
            let cookie = listing.cookie();
            drop(listing);
            let rest = root.read_dir_from("d", true, cookie).unwrap();
            names.extend(rest.map(|entry| entry.unwrap().name));
            assert!(names == all, "{export}: resumed after {stop}");
        }
    }
}

// [STOR-80]
fn listing_while_entries_come_and_go_keeps_those_that_stay(on: On) {
    let harness = Harness::start(on);
    let (reader, writer) = (harness.session(), harness.session());
    for export in EXPORTS {
        let root = fill(&harness.data(), &reader, export, 2000);
        let other = writer.mount(export).unwrap();
        let mut seen = BTreeSet::new();
        for (count, entry) in root.read_dir("d", false).unwrap().enumerate() {
            let entry = entry.unwrap();
            assert!(seen.insert(entry.name.clone()), "{export}: twice");
            // Odd ones go, new ones come.
            let index = count * 2 + 1;
            if index < 2000 && count % 10 == 0 {
                other.remove_file(format!("d/{}", name(index))).unwrap();
                other.create(format!("d/new{count}")).unwrap();
            }
        }
        for index in (0..2000).step_by(2) {
            assert!(seen.contains(name(index).as_bytes()), "{export}: {index} is missing");
        }
    }
}

fn listing_of_an_empty_directory_ends_at_once(on: On) {
    let harness = Harness::start(on);
    let session = harness.session();
    for export in EXPORTS {
        let root = session.mount(export).unwrap();
        root.create_dir("empty", 0o755).unwrap();
        assert!(root.read_dir("empty", true).unwrap().next().is_none());
        assert!(root.read_dir("empty/none", true).is_err());
    }
}

// [STOR-80] [STOR-84]
fn large_listing_amid_changes_is_complete_in_bounded_memory(on: On) {
    let many = on.rounds(40_000) as usize;
    const GROWTH_MAX: u64 = 16 << 20;
    let program = Program::start(on, &[]);
    let session = program.session();
    for export in EXPORTS {
        let root = fill(&program.data(), &session, export, many);
        let before = resident_size(program.id());
        let listed = AtomicBool::new(false);
        std::thread::scope(|scope| {
            // Entries that come and go, each under a name of its own.
            scope.spawn(|| {
                let session = program.session();
                let directory = session.mount(export).unwrap().open_dir("d").unwrap();
                let mut index = 0;
                while !listed.load(Ordering::Acquire) {
                    directory.create(format!("new {index}")).unwrap();
                    directory.create(format!("short {index}")).unwrap();
                    directory.remove_file(format!("short {index}")).unwrap();
                    index += 1;
                }
            });
            let mut seen = vec![false; many];
            let mut others = BTreeSet::new();
            for entry in root.read_dir("d", false).unwrap() {
                let found = entry.unwrap().name;
                let text = std::str::from_utf8(&found).unwrap();
                match text.split('x').next().unwrap().parse::<usize>() {
                    Ok(index) => assert!(!std::mem::replace(&mut seen[index], true), "{text} comes twice"),
                    Err(_) => assert!(others.insert(found.clone()), "{text} comes twice"),
                }
            }
            listed.store(true, Ordering::Release);
            assert!(seen.iter().all(|seen| *seen), "{export}: entries that stay are missing");
        });
        let grown = resident_size(program.id()).saturating_sub(before);
        assert!(grown <= GROWTH_MAX, "{export}: {grown} bytes for a listing");
    }
}
