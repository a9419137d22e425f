//! Servers that go, and come again.

use dafs_client::OpenOptions;
use dafs_stripe::Error;
use dafs_tests::harness::On;
use dafs_tests::on_each_provider;
use dafs_tests::suite::{assert_same, bytes, wait_for};

use crate::{UNIT, World, create, created, impatient, striping};

on_each_provider! {
    server_that_is_lost_takes_only_its_stripes,
    server_that_comes_again_is_used_again,
    file_is_opened_and_removed_while_a_server_is_away,
}

fn server_of(error: &Error) -> &str {
    match error {
        Error::Server { server, part, .. } => {
            assert_eq!((part.unit, part.stride), (UNIT, 3 * UNIT));
            server
        }
        other => panic!("{other}"),
    }
}

// [STRIPE-17]
fn server_that_is_lost_takes_only_its_stripes(on: On) {
    let mut world = World::start(on, 3, "data");
    let volume = world.volume_with(&impatient());
    let file = create(&volume, "f");
    let data = bytes(1, 9 * UNIT as usize);
    file.write_all_at(&data, 0).unwrap();
    world.data[1].stop();
    let mut found = vec![0; data.len()];
    // What lies before is read; there it says who is missing, and what he has.
    assert_eq!(file.read_at(&mut found, 0).unwrap() as u64, UNIT);
    assert_same(&found[..UNIT as usize], &data[..UNIT as usize], "before");
    let error = file.read_at(&mut found, UNIT).unwrap_err();
    assert_eq!(server_of(&error), "io2");
    assert!(error.to_string().contains("at 4096 and each 12288 bytes on"), "{error}");
    for stripe in [2, 3, 5, 6, 8] {
        let range = (stripe * UNIT) as usize..((stripe + 1) * UNIT) as usize;
        let mut found = vec![0; UNIT as usize];
        file.read_exact_at(&mut found, stripe * UNIT).unwrap();
        assert_same(&found, &data[range], "the others");
        file.write_all_at(&found, stripe * UNIT).unwrap();
    }
    assert_eq!(file.write_at(&data, 0).unwrap() as u64, UNIT);
    assert_eq!(server_of(&file.write_at(&data, UNIT).unwrap_err()), "io2");
    for wrong in [file.commit(), file.truncate(0), file.metadata().map(drop)] {
        assert_eq!(server_of(&wrong.unwrap_err()), "io2");
    }
    let mut list = vec![0; 2 * UNIT as usize];
    let extents = [dafs_client::Extent::new(2 * UNIT, UNIT), dafs_client::Extent::new(4 * UNIT, UNIT)];
    assert_eq!(file.read_list(&extents, &mut list).unwrap().count as u64, UNIT);
}

fn server_that_comes_again_is_used_again(on: On) {
    let mut world = World::start(on, 3, "data");
    let volume = world.volume_with(&impatient());
    let file = create(&volume, "f");
    let data = bytes(1, 9 * UNIT as usize);
    file.write_all_at(&data, 0).unwrap();
    file.commit().unwrap();
    world.data[2].stop();
    let mut found = vec![0; data.len()];
    assert_eq!(file.read_at(&mut found, 0).unwrap() as u64, 2 * UNIT);
    world.data[2].restart();
    wait_for("the server is used again", || file.read_exact_at(&mut found, 0).is_ok());
    assert_same(&found, &data, "all of it");
    file.write_all_at(&data, 1).unwrap();
    file.commit().unwrap();
}

fn file_is_opened_and_removed_while_a_server_is_away(on: On) {
    let mut world = World::start(on, 3, "data");
    create(&world.volume(), "f").write_all_at(&bytes(1, 6 * UNIT as usize), 0).unwrap();
    world.data[0].stop();
    let volume = world.volume_with(&impatient());
    let file = volume.open("f", OpenOptions::new().read(true)).unwrap();
    let mut found = vec![0; UNIT as usize];
    file.read_exact_at(&mut found, UNIT).unwrap();
    assert_eq!(server_of(&file.read_at(&mut found, 0).unwrap_err()), "io1");
    // None is made on servers that are not all there, and nothing stays.
    assert_eq!(server_of(&volume.create("g", &created(), &striping()).unwrap_err()), "io1");
    assert_eq!(world.pieces(1).len(), 1);
    volume.remove_file("f").unwrap();
    assert!(volume.metadata("f", true).unwrap_err().is_not_found());
    assert_eq!((world.pieces(1).len(), world.pieces(2).len()), (0, 0));
    // Its piece is left there, and found.
    world.data[0].restart();
    let report = world.volume().check(true, std::time::Duration::ZERO).unwrap();
    assert_eq!(report.findings.len(), 1, "{report:?}");
    assert_eq!(world.piece_count(), 0);
}
