//! Space of files, reserved and given back, and room for open ones.

use std::fs;
use std::os::unix::fs::{FileExt, MetadataExt, PermissionsExt};

use dafs_tests::harness::On;
use rustix::fs::{FallocateFlags, fallocate};
use rustix::io::Errno;

use crate::World;

dafs_tests::on_sockets! {
    #[ignore = "needs fuse"]
    each_mode_of_fallocate_does_its_work_or_is_refused,
    #[ignore = "needs fuse"]
    more_files_than_the_server_may_have_open_can_be_used,
    #[ignore = "needs fuse"]
    loss_in_a_file_that_was_given_back_is_told_later,
}

crate::on_passthrough! {
    #[ignore = "needs fuse"]
    each_mode_of_fallocate_does_its_work_or_is_refused,
    #[ignore = "needs fuse"]
    more_files_than_the_server_may_have_open_can_be_used,
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

// [MOUNT-21]
fn more_files_than_the_server_may_have_open_can_be_used(on: On) {
    let world = World::start_limited(on, &[], Some(300));
    let mount = world.mount("m", &[]);
    for number in 0..400 {
        let file = mount.at(number.to_string());
        // It stays open at the server until it is durable.
        fs::write(&file, "data").unwrap();
        // What is done to a name without opening it takes a handle, which is kept for the next time.
        fs::set_permissions(&file, fs::Permissions::from_mode(0o640)).unwrap();
    }
    for number in 0..400 {
        let file = mount.at(number.to_string());
        fs::File::options().write(true).open(&file).unwrap();
        fs::create_dir(mount.at(format!("d{number}"))).unwrap();
        fs::read_dir(mount.at(format!("d{number}"))).unwrap();
    }
}

// [MOUNT-6] [MOUNT-21]
fn loss_in_a_file_that_was_given_back_is_told_later(on: On) {
    let mut world = World::start_limited(on, &[], Some(300));
    let mount = world.mount("m", &[]);
    // More than there are copies of.
    fs::write(mount.at("lost"), vec![1; 33 << 20]).unwrap();
    world.server.kill_and_start();
    for number in 0..400 {
        fs::write(mount.at(number.to_string()), "data").unwrap();
    }
    let open = fs::File::open(mount.at("lost")).unwrap();
    assert_eq!(open.sync_all().unwrap_err().raw_os_error(), Some(libc::EIO));
    open.sync_all().unwrap();
}
