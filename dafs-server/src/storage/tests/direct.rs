//! Direct I/O: that there is any. What it returns is tested with everything else, on its kinds of storage.

use std::os::fd::AsFd;

use dafs_proto::wire::{OpenFlags, Stability};

use super::harness::*;
use super::sieve::{sieve_of, window_of};
use crate::storage::posix::sys;
use crate::storage::*;

/// A whole number of blocks, whatever the device calls one.
const LEN: usize = 256 * 1024;

fn cached(f: &Fixture) -> u64 {
    let path = f.directory.as_ref().unwrap().path().join("root/f");
    sys::cached_pages(std::fs::File::open(path).unwrap().as_fd(), 0, 0).unwrap()
}

// Where this does not run, the report says that all tests of direct I/O may have gone through the page cache. [STOR-12]
#[test]
#[ignore = "needs page-cache"]
fn aligned_range_of_a_direct_export_bypasses_the_page_cache() {
    for kind in kinds().into_iter().filter(|kind| matches!(kind, Kind::Direct(_))) {
        let mut f = Fixture::new(kind);
        let node = f.open("f", RWC).unwrap();
        let mut data: Vec<u8> = (0..LEN).map(|at| (at % 251) as u8).collect();
        assert_eq!(f.write(node, 0, &data), Ok(LEN));
        assert_eq!(cached(&f), 0, "{kind:?}: written");
        let halves = [&data[..LEN / 2], &data[LEN / 2..]];
        assert_eq!(f.write_submitted(node, 0, &halves, Stability::DataSync), Ok(LEN));
        assert_eq!(cached(&f), 0, "{kind:?}: written in two parts");
        assert!(f.read(node, 0, LEN).unwrap() == data, "{kind:?}");
        assert_eq!(cached(&f), 0, "{kind:?}: read");
        // What is no block goes through the page cache, and what bypasses it sees that.
        assert_eq!(f.write(node, 5, b"buffered"), Ok(8));
        data[5..13].copy_from_slice(b"buffered");
        assert!(cached(&f) > 0, "{kind:?}");
        assert!(f.read(node, 0, LEN).unwrap() == data, "{kind:?}");
        // Whole blocks into memory that does not begin on one.
        let into = memory(LEN + 1).slice(1, LEN).unwrap();
        assert_eq!(count(f.run(FsOp::Read { node, offset: 0, into: vec![into.clone()] })), Ok(LEN));
        assert!(into.span().to_vec() == data, "{kind:?}");
    }
}

// [STOR-12] [LIST-43]
#[test]
#[ignore = "needs page-cache"]
fn window_of_aligned_parts_of_a_direct_export_bypasses_the_page_cache() {
    const PART: usize = 4096;
    for kind in kinds().into_iter().filter(|kind| matches!(kind, Kind::Direct(_))) {
        let mut f = Fixture::new(kind);
        let node = f.open("f", RWC).unwrap();
        let writing = f.open("f", OpenFlags::WRITE).unwrap();
        let mut data: Vec<u8> = (0..LEN).map(|at| (at % 251) as u8).collect();
        assert_eq!(f.write(node, 0, &data), Ok(LEN));
        // What cannot be read goes part by part.
        for (round, (node, is_window)) in
            [(node, true), (writing, false), (node, true)].into_iter().enumerate()
        {
            let part = |at: usize| ((2 * at * PART) as u64, vec![7 + round as u8; PART]);
            let parts: Vec<_> = (0..LEN / PART / 2).map(part).collect();
            for (at, bytes) in &parts {
                data[*at as usize..][..PART].copy_from_slice(bytes);
            }
            assert_eq!(f.sieve_now(node, &parts), Err(NowError::WouldBlock), "{kind:?}");
            assert_eq!(cached(&f), 0, "{kind:?}: at once");
            match f.run(sieve_of(node, &parts)) {
                Ok(FsReply::Sieved { count, as_window }) => {
                    assert_eq!((count, as_window), (window_of(&parts).1, is_window), "{kind:?}");
                }
                other => panic!("{other:?}"),
            }
            assert_eq!(cached(&f), 0, "{kind:?}: on a thread");
        }
        assert!(f.read(node, 0, LEN).unwrap() == data, "{kind:?}");
        // What is no block goes through the page cache, window and all, also where the window is blocks.
        let parts = vec![(0, vec![1; 100]), (2 * PART as u64 - 100, vec![2; 100])];
        for (at, bytes) in &parts {
            data[*at as usize..][..100].copy_from_slice(bytes);
        }
        assert!(
            matches!(f.run(sieve_of(node, &parts)), Ok(FsReply::Sieved { as_window: true, .. })),
            "{kind:?}"
        );
        assert!(cached(&f) > 0, "{kind:?}");
        assert!(f.read(node, 0, LEN).unwrap() == data, "{kind:?}");
    }
}
