//! Bytes: each is read as it was written, wherever stripes, pieces and files end.

use dafs_client::{Datatype, Extent};
use dafs_stripe::{Striping, View};
use dafs_tests::harness::On;
use dafs_tests::on_each_provider;
use dafs_tests::suite::{EXPORTS, assert_same, bytes};

use crate::{UNIT, World, create, created};

on_each_provider! {
    transfer_around_every_edge_of_a_stripe_moves_its_bytes,
    read_behind_the_data_has_zeros_to_the_end_and_no_more,
    nonblocking_transfers_own_their_buffers_and_end_in_any_order,
    list_and_view_reach_the_bytes_that_they_say,
    appends_of_several_clients_follow_each_other,
    size_and_holes_are_those_of_a_local_file,
    file_with_one_piece_or_the_largest_unit_works,
}

fn transfer_around_every_edge_of_a_stripe_moves_its_bytes(on: On) {
    for export in EXPORTS {
        let world = World::start(on, 3, export);
        let volume = world.volume();
        let file = create(&volume, "f");
        let mut expected = vec![0; 10 * UNIT as usize];
        file.truncate(expected.len() as u64).unwrap();
        let edges = |at: u64| [at.saturating_sub(1), at, at + 1];
        for (seed, begin) in (0..).zip([0, UNIT, 3 * UNIT].into_iter().flat_map(edges)) {
            for len in [1, UNIT, 3 * UNIT, 4 * UNIT].into_iter().flat_map(edges) {
                let data = bytes(seed * 100 + len, len as usize);
                assert_eq!(file.write_at(&data, begin).unwrap(), data.len());
                expected[begin as usize..][..data.len()].copy_from_slice(&data);
                let mut found = vec![1; data.len()];
                assert_eq!(file.read_at(&mut found, begin).unwrap(), found.len());
                assert_same(&found, &data, "what was written");
            }
        }
        // Another client sees all of it.
        let other = world.volume().open("f", dafs_client::OpenOptions::new().read(true)).unwrap();
        let mut found = vec![0; expected.len()];
        other.read_exact_at(&mut found, 0).unwrap();
        assert_same(&found, &expected, export);
    }
}

// [STRIPE-9] [STRIPE-10]
fn read_behind_the_data_has_zeros_to_the_end_and_no_more(on: On) {
    let world = World::start(on, 3, "data");
    let file = create(&world.volume(), "f");
    let mut buffer = vec![7; 9 * UNIT as usize];
    assert_eq!(file.read_at(&mut buffer, 0).unwrap(), 0);
    // One byte, in the second stripe of the third piece.
    let last = 5 * UNIT + 9;
    file.write_all_at(b"x", last).unwrap();
    assert_eq!(file.metadata().unwrap().size, last + 1);
    for begin in [0, 1, UNIT - 1, UNIT, last - UNIT, last - 1, last, last + 1, 20 * UNIT] {
        buffer.fill(7);
        let count = (last + 1).saturating_sub(begin) as usize;
        assert_eq!(file.read_at(&mut buffer, begin).unwrap(), count, "{begin}");
        let mut expected = vec![0; count];
        expected.last_mut().into_iter().for_each(|byte| *byte = b'x');
        assert_same(&buffer[..count], &expected, "zeros and the byte");
        assert!(buffer[count..].iter().all(|byte| *byte == 7), "{begin}: nothing is written behind the end");
    }
    assert!(file.read_exact_at(&mut buffer, 0).unwrap_err().to_string().contains("too early"));
    let beyond = i64::MAX as u64 - 3;
    assert!(file.read_at(&mut buffer, beyond).unwrap_err().to_string().contains("beyond the largest file"));
    assert!(file.write_at(&buffer, beyond).unwrap_err().to_string().contains("beyond the largest file"));
}

fn nonblocking_transfers_own_their_buffers_and_end_in_any_order(on: On) {
    let world = World::start(on, 3, "data");
    let file = create(&world.volume(), "f");
    let data = |part: u64| bytes(part, 50_000);
    let mut writes: Vec<_> = (0..8).map(|part| file.submit_write_at(data(part), part * 50_000)).collect();
    while !writes.iter_mut().all(dafs_stripe::PendingTransfer::test) {}
    writes.into_iter().for_each(|write| assert_eq!(write.wait().1.unwrap(), 50_000));
    let reads: Vec<_> = (0..9).map(|part| file.submit_read_at(vec![0; 50_000], part * 50_000)).collect();
    for (part, read) in (0..).zip(reads).collect::<Vec<_>>().into_iter().rev() {
        let (buffer, result) = read.wait();
        match part {
            8 => assert_eq!(result.unwrap(), 0, "the file has ended"),
            _ => {
                assert_eq!(result.unwrap(), 50_000);
                assert_same(&buffer, &data(part), "a part");
            }
        }
    }
    // One that nobody waits for leaves the buffer alone before it is gone.
    drop(file.submit_read_at(vec![0; 400_000], 0));
    drop(file.submit_write_at(bytes(99, 400_000), 0));
    let (buffer, result) = file.submit_write_at(vec![1; 10], u64::MAX).wait();
    assert_eq!(buffer, [1; 10]);
    assert!(result.is_err());
}

fn list_and_view_reach_the_bytes_that_they_say(on: On) {
    let world = World::start(on, 3, "data");
    let file = create(&world.volume(), "f");
    let all = bytes(1, 40 * UNIT as usize);
    file.write_all_at(&all, 0).unwrap();
    let expected = |extents: &[Extent]| -> Vec<u8> {
        extents
            .iter()
            .flat_map(|extent| &all[extent.offset as usize..][..extent.len as usize])
            .copied()
            .collect()
    };
    let extents: Vec<Extent> = (0..39).map(|n| Extent::new((38 - n) * UNIT + 17 * n, 1 + n * 130)).collect();
    let mut found = vec![0; expected(&extents).len()];
    let read = file.read_list(&extents, &mut found).unwrap();
    assert_eq!((read.count, read.end), (found.len(), None));
    assert_same(&found, &expected(&extents), "a list");
    // The last of those that overlap counts, as on one server.
    let twice = [Extent::new(UNIT - 10, 20), Extent::new(UNIT - 5, 20)];
    file.write_list(&twice, &[[1; 20], [2; 20]].concat()).unwrap();
    let mut found = [0; 25];
    file.read_exact_at(&mut found, UNIT - 10).unwrap();
    assert_eq!(found, <[u8; 25]>::try_from([&[1; 5][..], &[2; 20]].concat()).unwrap());
    file.write_all_at(&all[(UNIT - 10) as usize..][..25], UNIT - 10).unwrap();

    let column = View::new(&Datatype::bytes(16).resized(0, 1000)).unwrap();
    let rows: Vec<Extent> = (2..150).map(|row| Extent::new(64 + row * 1000, 16)).collect();
    let mut found = vec![0; 16 * rows.len()];
    assert_eq!(file.read_view(&column, 64, 32, &mut found).unwrap().count, found.len());
    assert_same(&found, &expected(&rows), "a view");
    let data = bytes(5, found.len());
    assert_eq!(file.write_view(&column, 64, 32, &data).unwrap(), data.len());
    file.read_view(&column, 64, 32, &mut found).unwrap();
    assert_same(&found, &data, "a view that was written");
    // Behind the end there is nothing.
    let read = file.read_list(&[Extent::new(39 * UNIT, 2 * UNIT)], &mut vec![0; 2 * UNIT as usize]).unwrap();
    assert_eq!((read.count as u64, read.end), (UNIT, Some(40 * UNIT)));
    assert!(file.read_list(&[Extent::new(0, 3)], &mut [0; 4]).is_err(), "totals differ");
}

// [STRIPE-13]
fn appends_of_several_clients_follow_each_other(on: On) {
    let world = World::start(on, 3, "data");
    drop(create(&world.volume(), "log"));
    const RECORD: usize = 3000;
    std::thread::scope(|scope| {
        for client in 0..4 {
            let volume = world.volume();
            scope.spawn(move || {
                let file = volume.open("log", &created()).unwrap();
                for number in 0..12 {
                    let offset = file.append(&vec![client * 12 + number + 1; RECORD]).unwrap();
                    assert_eq!(offset % RECORD as u64, 0);
                }
            });
        }
    });
    let file = world.volume().open("log", dafs_client::OpenOptions::new().read(true)).unwrap();
    let mut all = vec![0; file.metadata().unwrap().size as usize];
    file.read_exact_at(&mut all, 0).unwrap();
    let mut records: Vec<u8> = all
        .chunks(RECORD)
        .map(|record| {
            assert!(record.iter().all(|byte| *byte == record[0]), "a record is whole");
            record[0]
        })
        .collect();
    records.sort_unstable();
    assert_eq!(records, (1..=48).collect::<Vec<u8>>());
}

fn size_and_holes_are_those_of_a_local_file(on: On) {
    let world = World::start(on, 3, "data");
    let file = create(&world.volume(), "f");
    for size in [0, 1, UNIT - 1, UNIT, UNIT + 1, 3 * UNIT, 7 * UNIT + 5, 2, 0, 100 * UNIT] {
        file.truncate(size).unwrap();
        assert_eq!(file.metadata().unwrap().size, size);
    }
    assert!(file.truncate(u64::MAX).is_err());
    file.allocate(99 * UNIT, 5 * UNIT + 7).unwrap();
    assert_eq!(file.metadata().unwrap().size, 104 * UNIT + 7);
    file.truncate(0).unwrap();
    // Data in the stripes 8 and 9; the file ends behind 12.
    file.write_all_at(&vec![1; 2 * UNIT as usize], 8 * UNIT).unwrap();
    file.truncate(12 * UNIT).unwrap();
    assert_eq!(file.seek_data(0).unwrap(), 8 * UNIT);
    assert_eq!(file.seek_data(9 * UNIT + 1).unwrap(), 9 * UNIT + 1);
    assert_eq!(file.seek_data(10 * UNIT).unwrap_err().errno(), libc::ENXIO);
    assert_eq!(file.seek_hole(0).unwrap(), 0);
    assert_eq!(file.seek_hole(8 * UNIT).unwrap(), 10 * UNIT);
    assert_eq!(file.seek_hole(12 * UNIT).unwrap_err().errno(), libc::ENXIO);
    file.punch_hole(8 * UNIT + 100, UNIT).unwrap();
    let mut found = vec![7; 2 * UNIT as usize];
    file.read_exact_at(&mut found, 8 * UNIT).unwrap();
    let is_punched = |at: usize| (100..100 + UNIT as usize).contains(&at);
    assert!(found.iter().enumerate().all(|(at, byte)| *byte == u8::from(!is_punched(at))));
    file.commit().unwrap();
}

fn file_with_one_piece_or_the_largest_unit_works(on: On) {
    let world = World::start(on, 2, "data");
    let volume = world.volume();
    for striping in [
        Striping { unit: UNIT, factor: Some(1), first: Some(1) },
        Striping { unit: 1 << 30, factor: None, first: Some(1) },
    ] {
        let file = volume.create("f", &created(), &striping).unwrap();
        assert_eq!(file.layout().unwrap().servers[0], "io2");
        let data = bytes(1, 300_000);
        file.write_all_at(&data, 77).unwrap();
        let mut found = vec![0; data.len()];
        file.read_exact_at(&mut found, 77).unwrap();
        assert_same(&found, &data, "one piece");
        volume.remove_file("f").unwrap();
    }
    for wrong in [
        Striping { unit: 1, ..Striping::default() },
        Striping { unit: 2 << 30, ..Striping::default() },
        Striping { factor: Some(0), ..Striping::default() },
        Striping { factor: Some(3), ..Striping::default() },
        Striping { first: Some(2), ..Striping::default() },
    ] {
        assert_eq!(volume.create("f", &created(), &wrong).unwrap_err().errno(), libc::EINVAL, "{wrong:?}");
    }
    assert!(volume.layout("f").unwrap_err().is_not_found());
    assert_eq!(world.piece_count(), 0, "nothing is left behind");
}
