//! Layouts, servers files and servers that are not what they say: nothing is read or written in a wrong place.

use std::os::unix::fs::PermissionsExt;

use dafs_client::{OpenOptions, XattrSetMode};
use dafs_stripe::{Error, SERVERS_FILE};
use dafs_tests::harness::On;
use dafs_tests::on_each_provider;

use crate::{UNIT, World, create, created, striping, url_of};

on_each_provider! {
    layout_of_another_file_is_refused,
    layout_that_is_forged_reaches_nothing,
    servers_file_that_others_can_write_is_refused,
    server_of_another_identity_is_refused,
    piece_of_another_file_is_refused,
    piece_of_an_impossible_size_is_refused,
}

fn read() -> OpenOptions {
    OpenOptions::new().read(true).write(true).clone()
}

fn refused(world: &World, path: &str, word: &str) {
    let error = match world.volume().open(path, &read()) {
        Ok(file) => {
            file.read_at(&mut [0; 10], 0).map(|_| ()).and_then(|()| file.write_at(b"x", 0)).unwrap_err()
        }
        Err(error) => error,
    };
    assert!(error.to_string().contains(word), "{error}");
    assert_eq!(error.errno(), libc::EIO);
}

// [STRIPE-5]
fn layout_of_another_file_is_refused(on: On) {
    let world = World::start(on, 2, "data");
    let volume = world.volume();
    create(&volume, "f").write_all_at(b"content", 0).unwrap();
    let layout = volume.root().xattr("f", "user.dafs.layout").unwrap();
    drop(volume.root().create("copy").unwrap());
    volume.root().set_xattr("copy", "user.dafs.layout", &layout, XattrSetMode::Any).unwrap();
    refused(&world, "copy", "copied from another file");
    // Its removal leaves the pieces to whom they belong.
    volume.remove_file("copy").unwrap();
    assert_eq!(world.piece_count(), 2);
    volume.open("f", &read()).unwrap().read_exact_at(&mut [0; 7], 0).unwrap();
}

// [STRIPE-4] [STRIPE-6]
fn layout_that_is_forged_reaches_nothing(on: On) {
    let world = World::start(on, 2, "data");
    let volume = world.volume();
    let file = volume.root().create("f").unwrap();
    let id = file.metadata().unwrap().file_id;
    let many = vec!["io1"; 65].join(",");
    for (layout, word) in [
        (format!("1 {:032x} {id} 4096 elsewhere", 7), "does not name it"),
        (format!("1 {:032x} {id} 4096 io1,io2", 7), "no piece"),
        (format!("1 {:032x} {id} 4096 {many}", 7), "more than 64"),
        (format!("1 {:032x} {id} 4095 io1", 7), "version 1"),
        (format!("1 ../../../../../../../../etc/passwd {id} 4096 io1"), "version 1"),
        (format!("9 {:032x} {id} 4096 io1", 7), "version is \"9\""),
    ] {
        file.set_xattr("user.dafs.layout", layout.as_bytes(), XattrSetMode::Any).unwrap();
        refused(&world, "f", word);
    }
    assert_eq!(world.piece_count(), 0);
}

// [STRIPE-2]
fn servers_file_that_others_can_write_is_refused(on: On) {
    let world = World::start(on, 1, "data");
    let servers = world.metadata.data().join(SERVERS_FILE);
    for (mode, is_good) in [(0o664, false), (0o646, false), (0o644, true), (0o600, true)] {
        std::fs::set_permissions(&servers, PermissionsExt::from_mode(mode)).unwrap();
        let created = world.volume().create("f", &created(), &striping());
        assert_eq!(created.is_ok(), is_good, "{mode:o}");
        created.err().into_iter().for_each(|error| assert!(matches!(error, Error::Servers(_)), "{error}"));
    }
    let text = std::fs::read(&servers).unwrap();
    std::fs::write(&servers, [&text[..], b"wrong\n"].concat()).unwrap();
    refused(&world, "f", "line 3");
    std::fs::write(&servers, vec![b'#'; 70_000]).unwrap();
    refused(&world, "f", "64 KiB");
}

// [STRIPE-3]
fn server_of_another_identity_is_refused(on: On) {
    let world = World::start(on, 2, "data");
    create(&world.volume(), "f").write_all_at(b"content", 0).unwrap();
    // The addresses of both are exchanged.
    let servers = world.metadata.data().join(SERVERS_FILE);
    let text = std::fs::read_to_string(&servers).unwrap();
    let urls = [0, 1].map(|server| url_of(&world.data[server], "data").to_string());
    let swapped = text.replace(&urls[0], "@").replace(&urls[1], &urls[0]).replace('@', &urls[1]);
    std::fs::write(&servers, swapped).unwrap();
    refused(&world, "f", "another server");
    // One of another name keeps its identity.
    let error = world.volume().add_server("io3", &url_of(&world.data[0], "data")).unwrap_err();
    assert!(error.to_string().contains("twice"), "{error}");
    let error = world.volume().add_server("io1", &url_of(&world.metadata, "data")).unwrap_err();
    assert!(error.to_string().contains("another name"), "{error}");
    // Both addresses as they were.
    for (server, name) in ["io1", "io2"].into_iter().enumerate() {
        world.volume().add_server(name, &url_of(&world.data[server], "data")).unwrap();
    }
    world.volume().open("f", &read()).unwrap().read_exact_at(&mut [0; 7], 0).unwrap();
}

// [STRIPE-7]
fn piece_of_another_file_is_refused(on: On) {
    let world = World::start(on, 1, "data");
    let volume = world.volume();
    create(&volume, "a").write_all_at(b"a", 0).unwrap();
    let a = world.pieces(0).remove(0);
    create(&volume, "b").write_all_at(b"b", 0).unwrap();
    let b = world.pieces(0).into_iter().find(|piece| *piece != a).unwrap();
    std::fs::rename(&a, &b).unwrap();
    refused(&world, "b", "another piece");
    refused(&world, "a", "is lost");
    let report = volume.check(true, std::time::Duration::ZERO).unwrap();
    assert_eq!(report.open().count(), 2, "{report:?}");
}

// [STRIPE-9]
fn piece_of_an_impossible_size_is_refused(on: On) {
    let world = World::start(on, 8, "data");
    let volume = world.volume();
    let file = create(&volume, "f");
    file.write_all_at(b"x", 3 * UNIT).unwrap();
    // Eight pieces of such a size would be a file of more than 2^63 bytes; file systems that hold none make none.
    let piece = world.pieces(2).remove(0);
    if std::fs::File::options().write(true).open(piece).unwrap().set_len(1 << 62).is_ok() {
        let error = file.metadata().unwrap_err();
        assert!(error.to_string().contains("which no file has"), "{error}");
        // Where nobody can tell whether the file ends there.
        let error = file.read_at(&mut [0; 10], 4 * UNIT).unwrap_err();
        assert!(error.to_string().contains("which no file has"), "{error}");
        // What lies before a byte that is there is a hole.
        assert_eq!(file.read_at(&mut [1; 10], 0).unwrap(), 10);
    }
}
