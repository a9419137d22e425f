//! Random operations on one file, through a mount and in memory, as fsx does them.
#![allow(unsafe_code, reason = "files are mapped too")]

use std::fs::File;
use std::os::unix::fs::FileExt;

use dafs_tests::harness::On;
use dafs_tests::suite::bytes;
use rustix::fs::FallocateFlags;
use rustix::mm::{MapFlags, ProtFlags, mmap, munmap};

use crate::World;

dafs_tests::on_sockets! {
    #[ignore = "needs fuse"]
    random_operations_end_as_in_memory,
    #[ignore = "needs fuse"]
    random_operations_without_a_cache_end_as_in_memory,
    #[ignore = "needs fuse"]
    random_operations_on_gathered_writes_end_as_in_memory,
    #[ignore = "needs fuse"]
    random_operations_of_two_mounts_end_as_in_memory,
}

crate::on_passthrough! {
    #[ignore = "needs fuse"]
    random_operations_end_as_in_memory,
    #[ignore = "needs fuse"]
    random_operations_without_a_cache_end_as_in_memory,
    #[ignore = "needs fuse"]
    random_operations_of_two_mounts_end_as_in_memory,
}

/// As many as fsx is run with by hand, in a tenth of the time.
const OPERATIONS: u64 = 6_000;
const SIZE_MAX: u64 = 300_000;

fn random_operations_end_as_in_memory(on: On) {
    run(on, &["a"], &[]);
}

fn random_operations_without_a_cache_end_as_in_memory(on: On) {
    run(on, &["a"], &["--cache", "none"]);
}

fn random_operations_on_gathered_writes_end_as_in_memory(on: On) {
    run(on, &["a"], &["--writeback"]);
}

// [MOUNT-1]
fn random_operations_of_two_mounts_end_as_in_memory(on: On) {
    run(on, &["a", "b"], &[]);
}

/// A sequence that a seed decides.
struct Random(u64);

impl Random {
    fn below(&mut self, limit: u64) -> u64 {
        self.0 = self.0.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (self.0 >> 33) % limit.max(1)
    }
}

/// A file that is mapped whole, shared.
struct Mapped {
    address: *mut u8,
    len: usize,
}

impl Mapped {
    fn new(file: &File, len: usize) -> Self {
        let access = ProtFlags::READ | ProtFlags::WRITE;
        // SAFETY: the kernel chooses an address that nobody uses.
        let address = unsafe { mmap(std::ptr::null_mut(), len, access, MapFlags::SHARED, file, 0) };
        Self { address: address.unwrap().cast(), len }
    }

    fn read(&self, at: usize, len: usize) -> Vec<u8> {
        assert!(at + len <= self.len);
        let mut found = vec![0; len];
        // SAFETY: the range is mapped, and inside the file: nobody else changes or cuts it.
        unsafe { self.address.add(at).copy_to_nonoverlapping(found.as_mut_ptr(), len) };
        found
    }

    fn write(&self, at: usize, data: &[u8]) {
        assert!(at + data.len() <= self.len);
        // SAFETY: as above.
        unsafe { self.address.add(at).copy_from_nonoverlapping(data.as_ptr(), data.len()) };
    }
}

impl Drop for Mapped {
    fn drop(&mut self) {
        // SAFETY: it is mapped, and nobody uses it any more.
        unsafe { munmap(self.address.cast(), self.len) }.unwrap();
    }
}

/// The mounts have the file open in turn.
fn run(on: On, names: &[&str], flags: &[&str]) {
    let world = World::start(on);
    let mounts: Vec<_> = names.iter().map(|name| world.mount(name, flags)).collect();
    let path = |turn: usize| mounts[turn % mounts.len()].at("f");
    let mut turn = 0;
    let mut open = File::options().read(true).write(true).create(true).truncate(true).open(path(0)).unwrap();
    let mut model: Vec<u8> = Vec::new();
    let mut random = Random(0x5eed);
    for number in 0..OPERATIONS {
        let (offset, len) =
            (random.below(SIZE_MAX), random.below(if number % 5 == 0 { 70_000 } else { 5_000 }) + 1);
        let (from, to) = (offset as usize, (offset + len) as usize);
        match random.below(20) {
            0..=4 => {
                let data = bytes(number, len as usize);
                open.write_all_at(&data, offset).unwrap();
                model.resize(model.len().max(to), 0);
                model[from..to].copy_from_slice(&data);
            }
            5 => {
                open.set_len(offset).unwrap();
                model.resize(from, 0);
            }
            6 => {
                let flags = FallocateFlags::PUNCH_HOLE | FallocateFlags::KEEP_SIZE;
                rustix::fs::fallocate(&open, flags, offset, len).unwrap();
                let end = to.min(model.len());
                if from < end {
                    model[from..end].fill(0);
                }
            }
            7 => {
                rustix::fs::fallocate(&open, FallocateFlags::empty(), offset, len).unwrap();
                model.resize(model.len().max(to), 0);
            }
            8 => {
                if number % 2 == 0 {
                    open.sync_all().unwrap();
                }
                drop(open);
                turn += 1;
                open = File::options().read(true).write(true).open(path(turn)).unwrap();
            }
            9 => {
                let target = random.below(SIZE_MAX) + SIZE_MAX;
                let (mut source_at, mut target_at) = (offset, target);
                let copied = rustix::fs::copy_file_range(
                    &open,
                    Some(&mut source_at),
                    &open,
                    Some(&mut target_at),
                    len as usize,
                )
                .unwrap();
                assert_eq!(copied, to.min(model.len()).saturating_sub(from));
                if copied > 0 {
                    let copy = model[from..from + copied].to_vec();
                    let (begin, end) = (target as usize, target as usize + copied);
                    model.resize(model.len().max(end), 0);
                    model[begin..end].copy_from_slice(&copy);
                }
            }
            10 => {
                let flags = FallocateFlags::ZERO_RANGE;
                rustix::fs::fallocate(&open, flags, offset, len).unwrap();
                model.resize(model.len().max(to), 0);
                model[from..to].fill(0);
            }
            11 => {
                let flags = FallocateFlags::ZERO_RANGE | FallocateFlags::KEEP_SIZE;
                match rustix::fs::fallocate(&open, flags, offset, len) {
                    Ok(()) => model[from..to].fill(0),
                    // Nothing is reserved behind the end.
                    Err(error) => assert!(error == rustix::io::Errno::OPNOTSUPP && to > model.len()),
                }
            }
            12 | 13 if from < model.len() => {
                let to = to.min(model.len());
                let map = Mapped::new(&open, model.len());
                assert!(map.read(from, to - from) == model[from..to], "operation {number}: mapped");
                if number % 2 == 0 {
                    let data = bytes(number, to - from);
                    map.write(from, &data);
                    model[from..to].copy_from_slice(&data);
                }
            }
            _ => {
                let mut buffer = vec![0; len as usize];
                let count = open.read_at(&mut buffer, offset).unwrap();
                let end = to.min(model.len());
                let wanted = if from < end { &model[from..end] } else { &[] };
                assert!(buffer[..count] == *wanted, "operation {number}: {len} bytes at {offset}");
            }
        }
        assert_eq!(open.metadata().unwrap().len(), model.len() as u64, "operation {number}");
    }
    open.sync_all().unwrap();
    drop(open);
    assert!((0..mounts.len()).all(|turn| std::fs::read(path(turn)).unwrap() == model));
    assert!(std::fs::read(world.behind("f")).unwrap() == model);
}
