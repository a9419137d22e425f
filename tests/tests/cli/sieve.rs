//! A server that is killed while it writes small parts with what lies between them.

use dafs_client::{Extent, OpenOptions, Sieve};
use dafs_tests::harness::On;
use dafs_tests::on_each_provider;
use dafs_tests::suite::{assert_same, bytes};

use crate::programs::World;

on_each_provider! {
    killed_server_leaves_what_lies_between_the_parts_it_wrote,
}

// [LIST-40]
fn killed_server_leaves_what_lies_between_the_parts_it_wrote(on: On) {
    const SIZE: usize = 200_000;
    let mut world = World::start(on);
    let before = bytes(1, SIZE);
    let path = world.data().join("f");
    let extents: Vec<Extent> = (0..SIZE as u64 / 64).map(|at| Extent::new(64 * at, 32)).collect();
    for round in 0..on.rounds(8) {
        std::fs::write(&path, &before).unwrap();
        let session = world.session().unwrap();
        let export = session.mount("data").unwrap();
        let file = export.open_with("f", OpenOptions::new().write(true)).unwrap();
        file.set_sieve(Sieve::On);
        let write = |number: u8| {
            let buffer: Vec<u8> = vec![number; extents.len() * 32];
            file.submit_write_list(&extents, vec![buffer])
        };
        let mut writes: Vec<_> = (0..20).map(write).collect();
        // It has begun with the next.
        for write in writes.drain(..round as usize) {
            assert_eq!(write.wait().result.unwrap(), extents.len() * 32);
        }
        world.kill();
        let found = std::fs::read(&path).unwrap();
        assert_eq!(found.len(), SIZE);
        for (at, (found, before)) in found.chunks(64).zip(before.chunks(64)).enumerate() {
            assert_same(&found[32..], &before[32..], &format!("round {round}, behind part {at}"));
        }
        // Else they wait for it.
        world.restart();
        drop((writes, file, export, session));
    }
}
