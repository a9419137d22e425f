//! Sizes, holes, hints.

use dafs_client::{AccessPattern, Error, OpenOptions, Status};
use dafs_tests::harness::{Harness, On};
use dafs_tests::on_each_provider;
use dafs_tests::suite::{EXPORTS, assert_same, assert_status, bytes};

on_each_provider! {
    truncate_cuts_and_extends_by_zeros,
    allocate_grows_and_punch_leaves_zeros_of_the_same_size,
    seek_finds_data_and_holes,
    hint_of_every_pattern_is_taken,
}

const BLOCK: u64 = 1 << 16;

fn truncate_cuts_and_extends_by_zeros(on: On) {
    let harness = Harness::start(on);
    let session = harness.session();
    for export in EXPORTS {
        let file = session.mount(export).unwrap().create("f").unwrap();
        let data = bytes(1, 10_000);
        file.write_all_at(&data, 0).unwrap();
        for size in [9_999u64, 4097, 4096, 4095, 1, 0] {
            file.truncate(size).unwrap();
            assert_eq!(file.metadata().unwrap().size, size);
            file.submit_truncate(20_000).wait().unwrap();
            let mut found = vec![1; 20_000];
            file.read_exact_at(&mut found, 0).unwrap();
            let mut expected = data[..size as usize].to_vec();
            expected.resize(20_000, 0);
            assert_same(&found, &expected, &format!("{export}: cut to {size}, then extended"));
            file.truncate(size).unwrap();
        }
        // Sparse: no storage for a hole of a terabyte.
        file.truncate(1 << 40).unwrap();
        let attributes = file.metadata().unwrap();
        assert_eq!(attributes.size, 1 << 40);
        assert!(attributes.allocated < 1 << 20, "{export}: {} bytes in use", attributes.allocated);
    }
}

// [STOR-14] [STOR-63] [STOR-65] [STOR-97]
fn allocate_grows_and_punch_leaves_zeros_of_the_same_size(on: On) {
    let harness = Harness::start(on);
    let session = harness.session();
    for export in EXPORTS {
        let file = session.mount(export).unwrap().create("f").unwrap();
        file.allocate(0, 4 * BLOCK).unwrap();
        assert_eq!(file.metadata().unwrap().size, 4 * BLOCK);
        let mut expected = bytes(2, 4 * BLOCK as usize);
        file.write_all_at(&expected, 0).unwrap();
        file.submit_allocate(BLOCK, BLOCK).wait().unwrap();
        file.punch_hole(BLOCK, 2 * BLOCK).unwrap();
        file.submit_punch_hole(5, 7).wait().unwrap();
        expected[BLOCK as usize..3 * BLOCK as usize].fill(0);
        expected[5..12].fill(0);
        let mut found = vec![1; expected.len()];
        file.read_exact_at(&mut found, 0).unwrap();
        assert_same(&found, &expected, export);
        // Beyond the end nothing grows.
        file.punch_hole(3 * BLOCK, 100 * BLOCK).unwrap();
        assert_eq!(file.metadata().unwrap().size, 4 * BLOCK);
        assert_status(file.allocate(0, 0), Status::INVALID, "nothing to allocate");
        assert_status(file.punch_hole(0, 0), Status::INVALID, "nothing to punch");
        assert_status(file.allocate(u64::MAX, 1), Status::TOO_LARGE, "beyond any file");
        assert_status(file.truncate(1 << 63), Status::TOO_LARGE, "a size beyond any file");
    }
}

// [STOR-64]
fn seek_finds_data_and_holes(on: On) {
    let harness = Harness::start(on);
    let session = harness.session();
    for export in EXPORTS {
        let file = session.mount(export).unwrap().create("f").unwrap();
        assert_status(file.seek_data(0), Status::NO_DEVICE, "an empty file");
        file.write_all_at(&bytes(3, BLOCK as usize), BLOCK).unwrap();
        file.truncate(16 * BLOCK).unwrap();
        file.commit().unwrap();
        assert_eq!(file.seek_data(0).unwrap(), BLOCK, "{export}");
        assert_eq!(file.seek_data(BLOCK + 1).unwrap(), BLOCK + 1, "{export}");
        assert_eq!(file.seek_hole(0).unwrap(), 0, "{export}");
        assert_eq!(file.submit_seek_hole(BLOCK).wait().unwrap(), 2 * BLOCK, "{export}");
        assert_status(file.submit_seek_data(2 * BLOCK).wait(), Status::NO_DEVICE, "no data follows");
        assert_status(file.seek_hole(16 * BLOCK), Status::NO_DEVICE, "at the end");
        assert!(matches!(file.seek_data(u64::MAX), Err(Error::Status { .. })));
        let root = session.mount(export).unwrap();
        for (reads, writes) in [(true, false), (false, true)] {
            let file = root.open_with("f", OpenOptions::new().read(reads).write(writes)).unwrap();
            assert_eq!(file.seek_data(0).unwrap(), BLOCK, "{export}: it may be read: {reads}");
        }
    }
}

fn hint_of_every_pattern_is_taken(on: On) {
    let harness = Harness::start(on);
    let session = harness.session();
    for export in EXPORTS {
        let file = session.mount(export).unwrap().create("f").unwrap();
        file.write_all_at(&bytes(4, 100_000), 0).unwrap();
        for pattern in [
            AccessPattern::Normal,
            AccessPattern::Sequential,
            AccessPattern::Random,
            AccessPattern::WillNeed,
            AccessPattern::WillNotNeed,
        ] {
            file.hint(0, 0, pattern).unwrap();
            file.submit_hint(4096, 8192, pattern).wait().unwrap();
        }
        let mut found = vec![0; 100_000];
        file.read_exact_at(&mut found, 0).unwrap();
        assert_same(&found, &bytes(4, 100_000), export);
    }
}
