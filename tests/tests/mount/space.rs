//! Space of files, reserved and given back.

use std::fs;
use std::os::unix::fs::{FileExt, MetadataExt};

use dafs_tests::harness::On;
use rustix::fs::{FallocateFlags, fallocate};
use rustix::io::Errno;

use crate::World;

dafs_tests::on_sockets! {
    #[ignore = "needs fuse"]
    each_mode_of_fallocate_does_its_work_or_is_refused,
}

crate::on_passthrough! {
    #[ignore = "needs fuse"]
    each_mode_of_fallocate_does_its_work_or_is_refused,
}

const SIZE: u64 = 256 << 10;

// [MOUNT-20]
fn each_mode_of_fallocate_does_its_work_or_is_refused(on: On) {
    let world = World::start(on);
    let mount = world.mount("m", &[]);
    let file =
        fs::File::options().read(true).write(true).create(true).truncate(true).open(mount.at("f")).unwrap();
    file.write_all_at(&vec![7; SIZE as usize], 0).unwrap();
    let (keep, punch, zero) =
        (FallocateFlags::KEEP_SIZE, FallocateFlags::PUNCH_HOLE, FallocateFlags::ZERO_RANGE);
    let half = SIZE / 2;
    let blocks = || fs::metadata(world.behind("f")).unwrap().blocks();
    let before = blocks();
    fallocate(&file, punch | keep, 0, half).unwrap();
    assert!(blocks() < before);
    fallocate(&file, keep, 0, half).unwrap();
    assert!(blocks() >= before, "the space is there again");
    fallocate(&file, zero, half, half / 2).unwrap();
    fallocate(&file, zero | keep, SIZE - 100, 100).unwrap();
    let mut wanted = vec![0; SIZE as usize];
    wanted[(half + half / 2) as usize..(SIZE - 100) as usize].fill(7);
    assert!(fs::read(mount.at("f")).unwrap() == wanted);
    for mode in [
        FallocateFlags::COLLAPSE_RANGE,
        FallocateFlags::INSERT_RANGE,
        FallocateFlags::UNSHARE_RANGE,
        // Behind the end nothing is reserved.
        zero | keep,
        keep,
    ] {
        let behind = if mode.contains(keep) { SIZE } else { 0 };
        assert_eq!(fallocate(&file, mode, behind, 4096), Err(Errno::OPNOTSUPP), "{mode:?}");
    }
    assert_eq!(file.metadata().unwrap().len(), SIZE);
    fallocate(&file, FallocateFlags::empty(), SIZE, 4096).unwrap();
    assert_eq!(file.metadata().unwrap().len(), SIZE + 4096);
}
