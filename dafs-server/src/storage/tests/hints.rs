//! Hints: what they do to the page cache, and that they do nothing else.

use std::os::fd::AsFd;

use dafs_proto::wire::AccessPattern;

use super::harness::*;
use crate::storage::posix::sys;
use crate::storage::*;

const SIZE: u64 = 4 << 20;

fn hint(f: &mut Fixture, node: NodeId, offset: u64, len: u64, pattern: Option<AccessPattern>) {
    assert!(matches!(f.run(FsOp::Hint { node, offset, len, pattern }), Ok(FsReply::Done)));
}

/// Pages of the file in the page cache.
fn cached(f: &Fixture) -> u64 {
    let path = f.directory.as_ref().unwrap().path().join("root/f");
    sys::cached_pages(std::fs::File::open(path).unwrap().as_fd(), 0, 0).unwrap()
}

// [STOR-162]
#[test]
#[ignore = "needs page-cache"]
fn hints_drop_unneeded_data_and_read_needed_data_ahead() {
    const PAGES: u64 = SIZE / 4096;
    for kind in [Kind::Disk(Engine::Pool), Kind::Disk(Engine::Auto)] {
        let mut f = Fixture::new(kind);
        let node = f.open("f", RWC).unwrap();
        let data: Vec<u8> = (0..SIZE).map(|at| (at % 251) as u8).collect();
        assert_eq!(f.write(node, 0, &data), Ok(data.len()));
        assert_eq!(cached(&f), PAGES, "{kind:?}: it was just written");
        hint(&mut f, node, SIZE / 2, 0, Some(AccessPattern::WillNotNeed));
        assert_eq!(cached(&f), PAGES / 2, "{kind:?}: none of the second half, also not what was dirty");
        hint(&mut f, node, 0, 0, Some(AccessPattern::WillNotNeed));
        assert_eq!(cached(&f), 0, "{kind:?}");
        assert!(f.storage.is_absent(node, 0, SIZE));
        // As a list that has to wait does it.
        hint(&mut f, node, SIZE / 2, 4096, Some(AccessPattern::WillNeed));
        while cached(&f) == 0 {
            std::thread::yield_now();
        }
        assert!(!f.storage.is_absent(node, SIZE / 2, SIZE / 2), "{kind:?}");
        hint(&mut f, node, 0, 0, Some(AccessPattern::WillNeed));
        while cached(&f) != PAGES {
            std::thread::yield_now();
        }
        assert!(!f.storage.is_absent(node, 0, 4096), "{kind:?}");
        assert!(f.read(node, 0, data.len()).unwrap() == data, "{kind:?}");
    }
}

// [STOR-161]
#[test]
#[ignore = "needs page-cache"]
fn hint_on_large_range_reads_64_mib_ahead() {
    const MIB: u64 = 1 << 20;
    const PAGES_OF_MIB: u64 = MIB / 4096;
    for kind in [Kind::Disk(Engine::Pool), Kind::Disk(Engine::Auto)] {
        for (len, ahead) in [(0, 64), (63 * MIB, 63), (64 * MIB, 64), (65 * MIB, 64), (u64::MAX >> 1, 64)] {
            let mut f = Fixture::new(kind);
            let node = f.open("f", RWC).unwrap();
            // A hole is read into the page cache as data is.
            f.run(FsOp::Truncate { node, size: 200 * MIB }).unwrap();
            // The kernel stops reading ahead where memory is short: then it takes another hint.
            let mut read_ahead = |offsets: &[u64], pages: u64| loop {
                for offset in offsets {
                    hint(&mut f, node, *offset, len, Some(AccessPattern::WillNeed));
                }
                let found = cached(&f);
                assert!(found <= pages, "{kind:?} {len}: {found} pages, not {pages}");
                if found == pages {
                    break;
                }
            };
            read_ahead(&[10 * MIB], ahead * PAGES_OF_MIB);
            // Up to the end.
            read_ahead(&[10 * MIB, 190 * MIB], (ahead + 10) * PAGES_OF_MIB);
        }
    }
}

// [STOR-160]
#[test]
fn hint_of_any_pattern_and_range_changes_no_data() {
    let patterns = [0, 1, 2, 3, 4, 5, 6, u32::MAX].map(AccessPattern::from_number);
    for kind in kinds() {
        let mut f = Fixture::new(kind);
        let node = f.open("f", RWC).unwrap();
        assert_eq!(f.write(node, 5, b"data"), Ok(4));
        for pattern in patterns {
            for (offset, len) in [(0, 0), (0, 9), (5, 1), (9, 100), (1 << 40, 1 << 40), (u64::MAX, u64::MAX)]
            {
                hint(&mut f, node, offset, len, pattern);
                assert_eq!(f.read(node, 0, 20).unwrap(), b"\0\0\0\0\0data", "{kind:?} {pattern:?}");
            }
        }
        // Also of a file of any size.
        f.run(FsOp::Truncate { node, size: 1 << 40 }).unwrap();
        hint(&mut f, node, 0, 0, Some(AccessPattern::WillNeed));
        let looked_up = f.lookup("f").unwrap();
        let unread = f.run(FsOp::Hint { node: looked_up, offset: 0, len: 0, pattern: None });
        assert_eq!(unread.is_err(), kind != Kind::Mem, "{kind:?}");
    }
}
