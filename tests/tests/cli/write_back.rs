//! A disk whose write-back fails: its image has no room.

use dafs_client::{Config, Error, Session, Status};
use dafs_tests::harness::On;
use dafs_tests::suite::{assert_same, bytes};

use crate::disk::Disk;
use crate::programs::World;

mod tcp {
    #[test]
    #[ignore = "needs loop-mount"]
    fn failed_write_back_fails_the_commit_and_names_the_loss() {
        super::write_back_that_fails(dafs_tests::harness::On::Tcp);
    }
}

mod shm {
    #[test]
    #[ignore = "needs loop-mount"]
    fn failed_write_back_fails_the_commit_and_names_the_loss() {
        super::write_back_that_fails(dafs_tests::harness::On::Shm);
    }
}

const MIB: usize = 1 << 20;
/// Commits that may tell of the one failure: data, and what describes it, are written back apart.
const FAILURES_MAX: usize = 4;

// [STOR-16] [CLI-20] [CLI-96]
fn write_back_that_fails(on: On) {
    let mut disk = None;
    let mut world = World::start_with(on, |_, directory| disk = Some(Disk::new(&directory.join("data"))));
    let disk = disk.unwrap();
    let (kept, data) = (bytes(1, 100_000), bytes(2, 16 * MIB));
    {
        let session = Session::connect(world.server(), &Config::default()).unwrap();
        let root = session.mount("data").unwrap();
        let file = root.create("f").unwrap();
        file.write_all_at(&kept, 0).unwrap();
        file.commit().unwrap();

        file.write_all_at(&data, MIB as u64).unwrap();
        let error = file.commit().expect_err("the image has no room for it");
        assert!(matches!(error.status(), Some(Status::IO | Status::NO_SPACE)), "{error}");
        disk.grow();
        let lost = (0..FAILURES_MAX).find_map(|_| match file.commit() {
            Err(Error::WritesLost { ranges, .. }) => Some(ranges),
            Err(error) => {
                assert!(matches!(error.status(), Some(Status::IO | Status::NO_SPACE)), "{error}");
                None
            }
            Ok(()) => panic!("what was lost is not named"),
        });
        let lost = lost.expect("the loss was never named");
        assert_eq!(lost.as_slice(), std::slice::from_ref(&(MIB as u64..17 * MIB as u64)));

        file.write_all_at(&data, MIB as u64).unwrap();
        file.commit().unwrap();
        assert_eq!(session.reconnects(), 0);
    }
    world.kill();
    disk.mount_again();
    let found = std::fs::read(world.data().join("f")).unwrap();
    assert_same(&found[..kept.len()], &kept, "what was committed before");
    assert_same(&found[MIB..], &data, "what was written again");
}
