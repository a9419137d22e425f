//! A server that writes small parts with what lies between them, and is killed meanwhile, finds no room, or may not write.

use std::fs::{self, File as Plain};
use std::io::IoSlice;
use std::os::unix::fs::{FileExt, MetadataExt};

use dafs_client::{Extent, File, OpenOptions, Session, Sieve, Stability, Status};
use dafs_tests::harness::On;
use dafs_tests::on_sockets;
use dafs_tests::suite::{assert_same, assert_status, bytes};
use rustix::process::{Pid, Resource, Rlimit, prlimit};

use crate::full::mount;
use crate::programs::World;

on_sockets! {
    killed_server_leaves_what_lies_between_the_parts_it_wrote,
    server_at_its_file_size_limit_leaves_the_gaps_alone,
}

/// What needs to mount.
mod full {
    use super::sieved_list_without_room_stops_and_leaves_the_gaps;

    super::on_sockets! {
        #[ignore = "needs mount"]
        sieved_list_without_room_stops_and_leaves_the_gaps,
    }
}

// [LIST-40]
fn killed_server_leaves_what_lies_between_the_parts_it_wrote(on: On) {
    const SIZE: usize = 200_000;
    let mut world = World::start(on);
    let before = bytes(1, SIZE);
    let path = world.data().join("f");
    let extents: Vec<Extent> = (0..SIZE as u64 / 64).map(|at| Extent::new(64 * at, 32)).collect();
    for round in 0..on.rounds(8) {
        fs::write(&path, &before).unwrap();
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
        let found = fs::read(&path).unwrap();
        assert_eq!(found.len(), SIZE);
        for (at, (found, before)) in found.chunks(64).zip(before.chunks(64)).enumerate() {
            assert_same(&found[32..], &before[32..], &format!("round {round}, behind part {at}"));
        }
        // Else they wait for it.
        world.restart();
        drop((writes, file, export, session));
    }
}

const MODES: [Sieve; 3] = [Sieve::Auto, Sieve::On, Sieve::Off];

fn open(session: &Session) -> File {
    session.mount("data").unwrap().open_with("f", OpenOptions::new().read(true).write(true)).unwrap()
}

/// Parts of 32 bytes, one in each 64 from `start` to `end`.
fn parts(start: u64, end: u64) -> Vec<Extent> {
    (start..end).step_by(64).map(|at| Extent::new(at, 32)).collect()
}

/// Writes a number to all of them.
fn write(file: &File, parts: &[Extent], number: u8) -> dafs_client::Result<usize> {
    file.write_list(parts, &[IoSlice::new(&vec![number; 32 * parts.len()])])
}

/// The same to what a file is to hold, as far as so many bytes of data go.
fn expect(model: &mut Vec<u8>, parts: &[Extent], number: u8, count: usize) {
    for (at, part) in parts.iter().enumerate() {
        let (offset, len) = (part.offset as usize, count.saturating_sub(32 * at).min(32));
        model.resize(model.len().max(if len > 0 { offset + len } else { 0 }), 0);
        model.iter_mut().skip(offset).take(len).for_each(|byte| *byte = number);
    }
}

// [LIST-6] [LIST-40] [LIST-43]
fn sieved_list_without_room_stops_and_leaves_the_gaps(on: On) {
    const PAGE: u64 = 4096;
    let mut mounted = None;
    let small = ["-t", "tmpfs", "-o", "size=1m", "tmpfs"];
    let world = World::start_with(on, |_, directory| mounted = Some(mount(&small, &directory.join("data"))));
    // Data, a hole, and data to an end within a page.
    let (hole, behind, size) = (10 * PAGE, 20 * PAGE, 25 * PAGE - 1000);
    let mut model = bytes(1, size as usize);
    model[hole as usize..behind as usize].fill(0);
    let plain =
        Plain::options().read(true).write(true).create_new(true).open(world.data().join("f")).unwrap();
    plain.write_all_at(&model[..hole as usize], 0).unwrap();
    plain.write_all_at(&model[behind as usize..], behind).unwrap();
    let filler = world.data().join("filler");
    assert!(fs::write(&filler, vec![1; 2 << 20]).is_err(), "it is full");
    let session = world.session().unwrap();
    let file = open(&session);
    let blocks = plain.metadata().unwrap().blocks();
    let check = |model: &[u8], what: &str| {
        assert_same(&fs::read(world.data().join("f")).unwrap(), model, what);
        assert_eq!(plain.metadata().unwrap().blocks(), blocks, "{what}: a hole is filled");
    };
    for (round, mode) in MODES.into_iter().enumerate() {
        file.set_sieve(mode);
        let number = |case: u8| 10 * (round as u8 + 1) + case;
        // What is there takes no room.
        for (start, end, case) in [(0, hole, 0), (behind, size - 64, 1)] {
            let parts = parts(start, end);
            assert_eq!(write(&file, &parts, number(case)).unwrap(), 32 * parts.len());
            expect(&mut model, &parts, number(case), usize::MAX);
            check(&model, "data alone");
        }
        for (parts, before, case) in [
            (parts(hole - 1024, behind + 1024), 16, 2),
            (parts(hole - 64, behind), 1, 3),
            // The last page has room to its end.
            (parts(size - size % 64 - 1024, 26 * PAGE), 16 + (1000 + size % 64).div_ceil(64) as usize, 4),
        ] {
            let count = write(&file, &parts, number(case)).unwrap();
            assert_eq!(count, 32 * before, "{mode:?} {case}");
            expect(&mut model, &parts, number(case), count);
            check(&model, "as far as there is room");
        }
        for parts in [parts(hole, behind + 1024), parts(30 * PAGE, 40 * PAGE)] {
            assert_status(write(&file, &parts, number(5)).map(drop), Status::NO_SPACE, "no room");
            check(&model, "nothing");
        }
    }
    // Room that is made is used.
    crate::full::give_room(&filler);
    let parts = parts(hole - 1024, behind + 1024);
    file.set_sieve(Sieve::On);
    assert_eq!(write(&file, &parts, 99).unwrap(), 32 * parts.len());
    expect(&mut model, &parts, 99, usize::MAX);
    assert_same(&fs::read(world.data().join("f")).unwrap(), &model, "with room");
    assert_eq!(session.reconnects(), 0);
    drop((file, session, plain));
}

// [STOR-175] [STOR-176] [LIST-6] [LIST-40] [CLI-165]
fn server_at_its_file_size_limit_leaves_the_gaps_alone(on: On) {
    const SIZE: u64 = 200_000;
    // Within a part, at its ends, and between two.
    const LIMITS: [u64; 4] = [64 * 1500 + 20, 64 * 1500, 64 * 1500 + 32, 64 * 1500 + 50];
    let world = World::start(on);
    let mut model = bytes(1, SIZE as usize);
    fs::write(world.data().join("f"), &model).unwrap();
    let session = world.session().unwrap();
    let file = open(&session);
    let server = Pid::from_raw(world.server_id().cast_signed());
    let limit = |current| prlimit(server, Resource::Fsize, Rlimit { current, maximum: None }).unwrap();
    for (round, mode) in MODES.into_iter().enumerate() {
        file.set_sieve(mode);
        for (case, size_max) in LIMITS.into_iter().enumerate() {
            let number = (10 * (round + 1) + case) as u8;
            let parts = parts(0, SIZE - 64);
            limit(Some(size_max));
            let before = session.statistics().unwrap().sieved_windows;
            let count = write(&file, &parts, number).unwrap();
            assert_eq!(session.statistics().unwrap().sieved_windows > before, mode != Sieve::Off, "{mode:?}");
            let whole = 32 * (size_max / 64) + (size_max % 64).min(32);
            assert_eq!(count as u64, whole, "{mode:?}, {size_max}");
            expect(&mut model, &parts, number, count);
            assert_same(&fs::read(world.data().join("f")).unwrap(), &model, "as far as it may");
            let parts = &parts[parts.len() - 100..];
            assert_status(write(&file, parts, number).map(drop), Status::TOO_LARGE, "beyond the limit");
            // What the client cuts into several requests ends there too.
            let before = model.clone();
            assert_eq!(file.write_at(&before, 0).unwrap() as u64, size_max);
            // So does one that is to be durable, and vouches for the part.
            let across = &before[size_max as usize - 100..][..200];
            assert_eq!(file.write_at_with(across, size_max - 100, Stability::DataSync).unwrap(), 100);
            let behind = &before[size_max as usize..];
            assert_status(file.write_at(behind, size_max).map(drop), Status::TOO_LARGE, "beyond the limit");
            assert_same(&fs::read(world.data().join("f")).unwrap(), &model, "nothing");
            limit(None);
            assert_eq!(write(&file, parts, number).unwrap(), 32 * parts.len());
            expect(&mut model, parts, number, usize::MAX);
        }
    }
    assert_eq!(session.reconnects(), 0, "the server goes on");
}
