//! What `check` finds, and what it puts right.

use std::time::Duration;

use dafs_client::{SetAttributes, XattrSetMode};
use dafs_stripe::Finding;
use dafs_tests::harness::On;
use dafs_tests::on_each_provider;

use crate::{UNIT, World, create, impatient};

on_each_provider! {
    volume_as_it_should_be_has_no_findings,
    pieces_of_no_file_are_found_and_removed_when_they_are_old,
    lost_pieces_and_changed_attributes_are_found,
    restored_file_gets_its_layout_back,
}

fn volume_as_it_should_be_has_no_findings(on: On) {
    let world = World::start(on, 3, "data");
    let volume = world.volume();
    volume.root().create_dir_all("a/b", 0o755).unwrap();
    create(&volume, "a/b/f").write_all_at(&[1; 5 * UNIT as usize], 0).unwrap();
    create(&volume, "g");
    volume.root().link("g", volume.root(), "h").unwrap();
    volume.root().create("plain").unwrap();
    let report = volume.check(true, Duration::ZERO).unwrap();
    // The servers file is one too.
    assert_eq!((report.files, report.striped, report.pieces), (5, 3, 6));
    assert!(report.findings.is_empty(), "{report:?}");
}

// [STRIPE-11]
fn pieces_of_no_file_are_found_and_removed_when_they_are_old(on: On) {
    let world = World::start(on, 2, "data");
    let volume = world.volume();
    create(&volume, "kept").write_all_at(b"x", 0).unwrap();
    create(&volume, "gone").write_all_at(b"12345", 0).unwrap();
    volume.root().remove_file("gone").unwrap();
    std::fs::write(world.data[0].data().join(".dafs-pieces/somebody's"), "not ours").unwrap();
    let young = volume.check(true, Duration::from_secs(3600)).unwrap();
    assert!(young.findings.is_empty(), "{young:?}");
    let seen = volume.check(false, Duration::ZERO).unwrap();
    assert_eq!((seen.findings.len(), seen.open().count(), world.piece_count()), (2, 2, 5));
    let size = |(finding, _): &(Finding, bool)| match finding {
        Finding::Orphan { size, .. } => *size,
        other => panic!("{other}"),
    };
    assert_eq!(seen.findings.iter().map(size).sum::<u64>(), 5);
    let repaired = volume.check(true, Duration::ZERO).unwrap();
    assert_eq!((repaired.findings.len(), repaired.open().count(), world.piece_count()), (2, 0, 3));
    volume
        .open("kept", dafs_client::OpenOptions::new().read(true))
        .unwrap()
        .read_exact_at(&mut [0], 0)
        .unwrap();
}

fn lost_pieces_and_changed_attributes_are_found(on: On) {
    let mut world = World::start(on, 2, "data");
    let volume = world.volume();
    for name in ["lost", "mode", "unmarked", "written"] {
        create(&volume, name);
    }
    let root = volume.root();
    let lost = volume.root().xattr("lost", "user.dafs.layout").unwrap();
    let id = String::from_utf8(lost).unwrap().split(' ').nth(1).unwrap().to_owned();
    std::fs::remove_file(world.data[1].data().join(format!(".dafs-pieces/{id}.1"))).unwrap();
    let mode = |mode| SetAttributes { mode: Some(mode), ..SetAttributes::default() };
    root.set_attributes("mode", false, &mode(0o1600)).unwrap();
    root.set_attributes("unmarked", false, &mode(0o644)).unwrap();
    let written = root.open_with("written", dafs_client::OpenOptions::new().write(true)).unwrap();
    written.write_all_at(b"by a program that cannot stripe", 0).unwrap();
    root.create("wrong").unwrap().set_xattr("user.dafs.layout", b"nonsense", XattrSetMode::Any).unwrap();
    let report = volume.check(true, Duration::ZERO).unwrap();
    let repaired = report.findings.iter().filter(|(_, repaired)| *repaired).count();
    // Two pieces have another mode, and one file has no mark.
    assert_eq!((report.findings.len(), repaired), (6, 3), "{report:#?}");
    let left = volume.check(true, Duration::ZERO).unwrap();
    let is = |wanted: fn(&Finding) -> bool| left.open().filter(|finding| wanted(finding)).count();
    assert_eq!(left.findings.len(), 3, "{left:#?}");
    assert_eq!(is(|finding| matches!(finding, Finding::Missing { path, .. } if path == "lost")), 1);
    assert_eq!(is(|finding| matches!(finding, Finding::OwnData { size: 31, .. })), 1);
    assert_eq!(is(|finding| matches!(finding, Finding::Layout { .. })), 1);
    // What a server has that is away is not taken for lost.
    world.data[0].stop();
    let away = world.volume_with(&impatient()).check(true, Duration::ZERO).unwrap();
    let unreachable = away
        .open()
        .filter(|finding| matches!(finding, Finding::Unreachable { server, .. } if server == "io1"));
    assert_eq!((away.findings.len(), unreachable.count()), (4, 1), "{away:#?}");
}

fn restored_file_gets_its_layout_back(on: On) {
    let world = World::start(on, 2, "data");
    let volume = world.volume();
    create(&volume, "f").write_all_at(b"content", 0).unwrap();
    // As from a backup: the same layout, another file.
    let layout = volume.root().xattr("f", "user.dafs.layout").unwrap();
    let copied = |path: &str| {
        drop(volume.root().create(path).unwrap());
        volume.root().set_xattr(path, "user.dafs.layout", &layout, XattrSetMode::Any).unwrap();
    };
    copied("restored");
    let twice = volume.check(true, Duration::ZERO).unwrap();
    let of = twice.open().find_map(|finding| match finding {
        Finding::Copied { path, of } if path == "restored" => of.clone(),
        _ => None,
    });
    assert_eq!(of.as_deref(), Some("f"), "{twice:#?}");
    volume.root().remove_file("f").unwrap();
    let alone = volume.check(true, Duration::ZERO).unwrap();
    assert_eq!(alone.open().count(), 0, "{alone:#?}");
    let mut found = [0; 7];
    let read = dafs_client::OpenOptions::new().read(true).clone();
    world.volume().open("restored", &read).unwrap().read_exact_at(&mut found, 0).unwrap();
    assert_eq!(&found, b"content");
    assert_eq!(
        volume
            .check(false, Duration::ZERO)
            .unwrap()
            .findings
            .iter()
            .filter(|(_, repaired)| !repaired)
            .count(),
        0
    );
}
