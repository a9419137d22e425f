//! Random operations on a striped file and the same on a local one, while a server is restarted again and again.

use std::fs;
use std::os::unix::fs::FileExt;

use dafs_client::Extent;
use dafs_stripe::{File, Striping};
use dafs_tests::harness::On;
use dafs_tests::on_each_provider;
use dafs_tests::suite::{EXPORTS, Numbers, assert_same, bytes};

use crate::{UNIT, World, created};

on_each_provider! {
    random_operations_agree_with_a_local_file,
    random_operations_agree_while_servers_restart,
}

const STEPS: u64 = 600;
const SIZE_MAX: u64 = 300_000;

fn random_operations_agree_with_a_local_file(on: On) {
    for (seed, export) in (1..).zip(EXPORTS) {
        let world = World::start(on, 3, export);
        for (seed, unit, factor) in [(seed, UNIT, 3), (seed + 10, 5 * UNIT, 2)] {
            let striping = Striping { unit, factor: Some(factor), first: None };
            let file = world.volume().create("f", &created(), &striping).unwrap();
            run(&file, &mut Numbers::new(seed), on.rounds(STEPS), |_| {});
            world.volume().remove_file("f").unwrap();
        }
    }
}

fn random_operations_agree_while_servers_restart(on: On) {
    let mut world = World::start(on, 3, "data");
    let striping = Striping { unit: UNIT, factor: None, first: None };
    let file = world.volume().create("f", &created(), &striping).unwrap();
    let mut which = Numbers::new(77);
    run(&file, &mut Numbers::new(3), on.rounds(STEPS), |step| {
        if step % 50 == 49 {
            let server = which.below(3) as usize;
            world.data[server].restart();
        }
    });
    assert!(world.volume().check(false, std::time::Duration::ZERO).unwrap().findings.is_empty());
}

fn run(file: &File, numbers: &mut Numbers, steps: u64, mut between: impl FnMut(u64)) {
    let local = tempfile::tempfile().unwrap();
    for step in 0..steps {
        between(step);
        let offset = numbers.below(SIZE_MAX);
        let len = match numbers.below(4) {
            0 => numbers.below(100_000),
            1 => numbers.below(20_000),
            _ => numbers.below(300),
        };
        one_step(file, &local, numbers, step, (offset, len));
        assert_eq!(file.metadata().unwrap().size, local.metadata().unwrap().len(), "step {step}: size");
    }
    let size = local.metadata().unwrap().len() as usize;
    let (mut found, mut expected) = (vec![1; size], vec![2; size]);
    file.read_exact_at(&mut found, 0).unwrap();
    local.read_exact_at(&mut expected, 0).unwrap();
    assert_same(&found, &expected, "all of it");
}

fn one_step(file: &File, local: &fs::File, numbers: &mut Numbers, step: u64, (offset, len): (u64, u64)) {
    match numbers.below(14) {
        0..4 => {
            let data = bytes(step, len as usize);
            file.write_all_at(&data, offset).unwrap();
            local.write_all_at(&data, offset).unwrap();
        }
        4..8 => {
            let (mut found, mut expected) = (vec![1; len as usize], vec![1; len as usize]);
            let count = file.read_at(&mut found, offset).unwrap();
            let mut read = 0;
            while let count @ 1.. = local.read_at(&mut expected[read..], offset + read as u64).unwrap() {
                read += count;
            }
            assert_eq!(count, read, "step {step}");
            assert_same(&found, &expected, &format!("step {step}: read of {len} at {offset}"));
        }
        8 => {
            file.truncate(offset).unwrap();
            local.set_len(offset).unwrap();
        }
        9 => {
            let data = bytes(step, len as usize);
            let at = file.append(&data).unwrap();
            assert_eq!(at, local.metadata().unwrap().len());
            local.write_all_at(&data, at).unwrap();
        }
        10 => {
            let extents: Vec<Extent> = (0..numbers.below(40))
                .map(|_| Extent::new(numbers.below(SIZE_MAX), numbers.below(3000)))
                .collect();
            let data = bytes(step, extents.iter().map(|extent| extent.len as usize).sum());
            assert_eq!(file.write_list(&extents, &data).unwrap(), data.len());
            let mut at = 0;
            for extent in &extents {
                local.write_all_at(&data[at..at + extent.len as usize], extent.offset).unwrap();
                at += extent.len as usize;
            }
        }
        11 => {
            file.allocate(offset, len + 1).unwrap();
            let size = local.metadata().unwrap().len();
            local.set_len(size.max(offset + len + 1)).unwrap();
        }
        12 => {
            file.punch_hole(offset, len + 1).unwrap();
            let end = local.metadata().unwrap().len();
            let zeros = vec![0; (end.min(offset + len + 1).saturating_sub(offset)) as usize];
            local.write_all_at(&zeros, offset.min(end)).unwrap();
        }
        _ => match file.commit() {
            // A restart of a server may lose what it had not written; this one's files are still there.
            Err(dafs_stripe::Error::Client(dafs_client::Error::WritesLost { ranges, .. })) => {
                assert!(ranges.is_sorted_by_key(|range| range.start));
                file.commit().unwrap();
            }
            committed => committed.unwrap(),
        },
    }
}
