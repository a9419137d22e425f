//! Random operations of every kind through a mount, and on a local directory.

use dafs_tests::differential::local::{Local, tree_of};
use dafs_tests::differential::operation::{Driver, Generator, Op};
use dafs_tests::harness::On;

use crate::World;

dafs_tests::on_sockets! {
    #[ignore = "needs fuse"]
    mount_and_kernel_do_the_same,
}

crate::on_passthrough! {
    #[ignore = "needs fuse"]
    mount_and_kernel_do_the_same,
}

/// As many as take some seconds.
const OPERATIONS: usize = 20_000;

fn mount_and_kernel_do_the_same(on: On) {
    let world = World::start(on);
    for root in ["mounted", "local"] {
        std::fs::create_dir(world.server.data().join(root)).unwrap();
    }
    let mount = world.mount("a", &[]);
    let seed = 20_261_129;
    let mut generator = Generator::new(seed);
    let mut mounted = Local::new(&mount.directory.join("mounted"));
    let mut local = Local::new(&world.server.data().join("local"));
    let mut succeeded = 0;
    for place in 0..OPERATIONS {
        let operation = generator.next();
        let (mut by_mount, mut by_kernel) = (mounted.apply(&operation), local.apply(&operation));
        if matches!(operation, Op::Seek { whence, .. } if whence != libc::SEEK_END) {
            // Where a file in memory has holes is for the kernel to say: it may keep zeros, or give pages back.
            for answer in [&mut by_mount, &mut by_kernel] {
                answer.value = 0;
                answer.errno = if answer.errno == libc::ENXIO { 0 } else { answer.errno };
            }
        }
        // Where both of two are wrong, either may be told of.
        let names_two = matches!(operation, Op::Link { .. } | Op::Rename { .. } | Op::Copy { .. });
        if !(names_two && by_mount.errno != 0 && by_kernel.errno != 0) {
            assert_eq!(by_mount, by_kernel, "seed {seed}, operation {place}: {}", operation.line());
        }
        succeeded += usize::from(by_kernel.errno == 0);
    }
    // It is about what operations do.
    assert!(succeeded > OPERATIONS / 3, "{succeeded} of {OPERATIONS} succeeded");
    let expected = tree_of(&world.server.data().join("local"));
    assert!(!expected.is_empty());
    assert_eq!(tree_of(&mount.directory.join("mounted")), expected, "what the mount shows");
    drop(mounted);
    drop(mount);
    assert_eq!(tree_of(&world.server.data().join("mounted")), expected, "what the server has");
}
