//! Names: what creating, renaming and removing does to pieces.

use dafs_client::{Error as ClientError, OpenOptions, SetAttributes, Status};
use dafs_stripe::{SERVERS_FILE, Striping};
use dafs_tests::harness::On;
use dafs_tests::on_each_provider;
use dafs_tests::suite::EXPORTS;

use crate::{UNIT, World, client_error, create, created, striping};

on_each_provider! {
    pieces_go_with_the_last_name_and_not_before,
    rename_over_a_striped_file_removes_its_pieces,
    directory_says_how_new_files_are_striped,
    create_of_a_file_that_is_there_opens_it,
    attributes_are_those_of_all_pieces,
    file_that_is_not_striped_is_what_it_was,
    striped_file_is_known_by_its_mode,
}

fn read() -> OpenOptions {
    OpenOptions::new().read(true).clone()
}

// [STRIPE-12]
fn pieces_go_with_the_last_name_and_not_before(on: On) {
    let world = World::start(on, 3, "data");
    let volume = world.volume();
    let file = create(&volume, "a");
    file.write_all_at(b"content", 0).unwrap();
    assert_eq!(world.piece_count(), 3);
    volume.root().link("a", volume.root(), "b").unwrap();
    volume.remove_file("a").unwrap();
    assert_eq!(world.piece_count(), 3);
    let mut found = [0; 7];
    volume.open("b", &read()).unwrap().read_exact_at(&mut found, 0).unwrap();
    assert_eq!(&found, b"content");
    volume.remove_file("b").unwrap();
    assert_eq!(world.piece_count(), 0);
    assert!(volume.remove_file("b").unwrap_err().is_not_found());
    // Who has it open goes on.
    file.read_exact_at(&mut found, 0).unwrap();
    assert_eq!(&found, b"content");
}

// [STRIPE-12]
fn rename_over_a_striped_file_removes_its_pieces(on: On) {
    let world = World::start(on, 2, "data");
    let volume = world.volume();
    create(&volume, "a").write_all_at(b"a", 0).unwrap();
    create(&volume, "b").write_all_at(b"b", 0).unwrap();
    assert!(volume.rename("a", "b", false).unwrap_err().already_exists());
    assert_eq!(world.piece_count(), 4);
    volume.rename("a", "b", true).unwrap();
    assert_eq!(world.piece_count(), 2);
    let mut found = [0];
    volume.open("b", &read()).unwrap().read_exact_at(&mut found, 0).unwrap();
    assert_eq!(&found, b"a");
    // Onto another name of the same file: both stay, as rename(2) has it.
    volume.root().link("b", volume.root(), "c").unwrap();
    volume.rename("b", "c", true).unwrap();
    assert_eq!(world.piece_count(), 2);
    volume.root().create("plain").unwrap();
    volume.rename("plain", "c", true).unwrap();
    volume.remove_file("b").unwrap();
    assert_eq!(world.piece_count(), 0);
}

// [STRIPE-20]
fn directory_says_how_new_files_are_striped(on: On) {
    for export in EXPORTS {
        let world = World::start(on, 3, export);
        let volume = world.volume();
        volume.root().create_dir("d", 0o755).unwrap();
        let wanted = Striping { unit: 2 * UNIT, factor: Some(2), first: Some(1) };
        volume.set_striping("d", Some(&wanted)).unwrap();
        assert_eq!(volume.striping("d").unwrap(), Some(wanted));
        let file = volume.open("d/f", &created()).unwrap();
        let layout = file.layout().unwrap();
        assert_eq!((layout.unit, &layout.servers[..]), (2 * UNIT, &["io2".to_owned(), "io3".to_owned()][..]));
        assert!(volume.open("f", &created()).unwrap().layout().is_none());
        volume.set_striping("d", None).unwrap();
        volume.set_striping("d", None).unwrap();
        assert!(volume.open("d/g", &created()).unwrap().layout().is_none());
        assert_eq!(volume.set_striping("d/g", Some(&striping())).unwrap_err().errno(), libc::EINVAL);
        assert!(volume.set_striping("none", Some(&striping())).unwrap_err().is_not_found());
    }
}

fn create_of_a_file_that_is_there_opens_it(on: On) {
    let world = World::start(on, 2, "data");
    let volume = world.volume();
    create(&volume, "f").write_all_at(b"content", UNIT).unwrap();
    assert_eq!(create(&volume, "f").metadata().unwrap().size, UNIT + 7);
    let new = created().create_new(true).clone();
    assert!(volume.create("f", &new, &striping()).unwrap_err().already_exists());
    assert_eq!(world.piece_count(), 2);
    let truncated = volume.open("f", created().truncate(true)).unwrap();
    assert_eq!(truncated.metadata().unwrap().size, 0);
    assert!(truncated.layout().is_some());
    // Only for reading: what it lets nobody do.
    let reader = volume.open("f", &read()).unwrap();
    assert_eq!(reader.write_at(b"x", 0).unwrap_err().errno(), libc::EBADF);
    assert!(volume.open("none", &read()).unwrap_err().is_not_found());
    assert!(volume.create("none/f", &created(), &striping()).unwrap_err().is_not_found());
    assert_eq!(world.piece_count(), 2, "nothing is left of it");
    // Many at once make one file.
    std::thread::scope(|scope| {
        for _ in 0..4 {
            scope.spawn(|| create(&world.volume(), "once").write_all_at(b"x", 0).unwrap());
        }
    });
    assert_eq!(world.piece_count(), 4);
}

// [STRIPE-15]
fn attributes_are_those_of_all_pieces(on: On) {
    let world = World::start(on, 2, "data");
    let volume = world.volume();
    let file = volume.create("f", created().mode(0o640), &striping()).unwrap();
    let attributes = file.metadata().unwrap();
    assert_eq!(attributes.mode, 0o640);
    file.write_all_at(&[1; 3 * UNIT as usize], 0).unwrap();
    let written = volume.metadata("f", true).unwrap();
    assert_eq!(written.size, 3 * UNIT);
    assert!(
        written.allocated >= 3 * UNIT
            && written.mtime >= attributes.mtime
            && written.change != attributes.change
    );
    let set = SetAttributes { mode: Some(0o400), ..SetAttributes::default() };
    assert_eq!(volume.set_attributes("f", &set).unwrap().mode, 0o400);
    use std::os::unix::fs::PermissionsExt;
    for server in 0..2 {
        let piece = world.pieces(server).remove(0);
        assert_eq!(std::fs::metadata(piece).unwrap().permissions().mode() & 0o7777, 0o400);
    }
    // A file that may not be written is made all the same, by who writes it first.
    let file = volume.create("once", created().mode(0o400), &striping()).unwrap();
    file.write_all_at(&[1; 2 * UNIT as usize], 0).unwrap();
    assert_eq!(volume.metadata("once", true).unwrap().mode, 0o400);
}

fn file_that_is_not_striped_is_what_it_was(on: On) {
    let world = World::start(on, 1, "data");
    let volume = world.volume();
    let file = volume.open("f", &created()).unwrap();
    assert!(file.layout().is_none());
    assert_eq!(file.append(b"hello").unwrap(), 0);
    assert_eq!(file.submit_write_at(b" world".to_vec(), 5).wait().1.unwrap(), 6);
    let (buffer, result) = file.submit_read_at(vec![0; 20], 0).wait();
    assert_eq!(&buffer[..result.unwrap()], b"hello world");
    file.truncate(5).unwrap();
    file.commit().unwrap();
    assert_eq!(volume.metadata("f", true).unwrap().size, 5);
    assert_eq!(volume.layout("f").unwrap(), None);
    volume.rename("f", "g", false).unwrap();
    volume.remove_file("g").unwrap();
    // Of an export without servers nothing can be striped.
    let alone = World::start(on, 0, "data");
    let error = alone.volume().create("f", &created(), &striping()).unwrap_err();
    assert!(error.to_string().contains("dafs stripe add"), "{error}");
    assert!(!alone.metadata.data().join(SERVERS_FILE).exists());
}

// [STRIPE-18]
fn striped_file_is_known_by_its_mode(on: On) {
    let world = World::start(on, 1, "data");
    let volume = world.volume();
    drop(create(&volume, "f"));
    let plain = volume.root().symlink_metadata("f").unwrap();
    assert_eq!((plain.mode & 0o1000, plain.size), (0o1000, 0));
    // One that lost the bit is striped all the same.
    let set = SetAttributes { mode: Some(0o644), ..SetAttributes::default() };
    volume.root().set_attributes("f", false, &set).unwrap();
    assert!(world.volume().open("f", &read()).unwrap().layout().is_some());
    let error = world.volume().open("g", &read()).unwrap_err();
    assert!(matches!(client_error(&error), ClientError::Status { status: Status::NOT_FOUND, .. }));
}
