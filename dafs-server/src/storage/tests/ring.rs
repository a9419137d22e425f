//! More operations than the ring has entries, and a ring that is dropped with operations in the kernel.

use super::harness::*;
use crate::storage::*;

const ENTRIES: u32 = 8;
const OPERATIONS: usize = 300;
const LEN: usize = 256 << 10;

fn small_ring() -> StorageConfig {
    StorageConfig { ring_entries: ENTRIES, ..StorageConfig::default() }
}

fn ring_kinds() -> Vec<Kind> {
    kinds()
        .into_iter()
        .filter(|kind| matches!(kind, Kind::Disk(Engine::Uring) | Kind::Direct(Engine::Uring)))
        .collect()
}

fn piece(index: usize, len: usize) -> Vec<u8> {
    (0..len).map(|at| (at % 253) as u8 ^ index as u8).collect()
}

// [STOR-89]
#[test]
fn ring_with_more_operations_than_entries_finishes_all_of_them() {
    for kind in ring_kinds() {
        let mut fixture = Fixture::with(kind, |_| {}, &small_ring());
        let node = fixture.open("f", RWC).unwrap();
        let writes: Vec<u64> = (0..OPERATIONS)
            .map(|index| {
                let (offset, from) = ((index * 4096) as u64, vec![memory_of(&piece(index, 4096))]);
                fixture.start(FsOp::Write { node, offset, from, stability: Stability::Unstable })
            })
            .collect();
        assert!(fixture.storage.pending() > ENTRIES as usize, "{kind:?}: nothing waits");
        // Some are handed to the kernel before the rest is collected.
        fixture.storage.flush();
        for token in writes.into_iter().rev() {
            assert_eq!(count(fixture.finish(token)), Ok(4096), "{kind:?}");
        }
        let reads: Vec<_> = (0..OPERATIONS)
            .map(|index| {
                let into = memory(4096);
                let op = FsOp::Read { node, offset: (index * 4096) as u64, into: vec![into.clone()] };
                (fixture.start(op), into)
            })
            .collect();
        for (index, (token, into)) in reads.into_iter().enumerate().rev() {
            assert_eq!(count(fixture.finish(token)), Ok(4096), "{kind:?}");
            assert!(into.span().to_vec() == piece(index, 4096), "{kind:?}: piece {index}");
        }
        assert_eq!(fixture.storage.pending(), 0);
    }
}

#[test]
fn ring_dropped_with_reads_in_flight_waits_for_their_memory() {
    for kind in ring_kinds() {
        for _ in 0..5 {
            let mut fixture = Fixture::with(kind, |_| {}, &small_ring());
            let node = fixture.open("f", RWC).unwrap();
            let content: Vec<u8> = (0..ENTRIES as usize).flat_map(|index| piece(index, LEN)).collect();
            assert_eq!(fixture.write_submitted(node, 0, &[&content], Stability::DataSync), Ok(content.len()));
            let reads: Vec<_> = (0..2 * ENTRIES as usize)
                .map(|index| {
                    let into = memory(LEN);
                    into.span().write_from(0, &vec![0xee; LEN]);
                    let offset = (index % ENTRIES as usize * LEN) as u64;
                    fixture.start(FsOp::Read { node, offset, into: vec![into.clone()] });
                    into
                })
                .collect();
            fixture.storage.flush();
            let Fixture { storage, directory, .. } = fixture;
            drop(storage);
            let found: Vec<Vec<u8>> = reads.iter().map(|into| into.span().to_vec()).collect();
            for (index, found) in found.iter().enumerate() {
                // What the kernel had is whole; what was queued was never begun.
                let expected = if index < ENTRIES as usize { piece(index, LEN) } else { vec![0xee; LEN] };
                assert!(*found == expected, "{kind:?}: read {index}");
            }
            drop(directory);
        }
    }
}

// [LIST-40] What was the last to have its file open is dropped by a thread, and there is one, which waits for that write.
#[test]
fn write_outliving_its_node_blocks_no_window_rewriter() {
    let config = StorageConfig { pool_threads: 1, ..StorageConfig::default() };
    for kind in ring_kinds() {
        let mut f = Fixture::with(kind, |_| {}, &config);
        let node = f.open("f", RWC).unwrap();
        assert_eq!(f.write_submitted(node, 0, &[&[7; 10_000]], Stability::DataSync), Ok(10_000));
        let met = (0..1000).any(|_| {
            let closed = f.open("f", RW).unwrap();
            let before = f.storage.disposals();
            let (offset, from) = (0, vec![memory_of(&[8; 4096])]);
            let write = f.start(FsOp::Write { node: closed, offset, from, stability: Stability::Unstable });
            f.storage.close(closed);
            let parts = vec![(1, memory_of(&[9; 10])), (5000, memory_of(&[9; 10]))];
            let sieve = f.start(FsOp::Sieve { node, offset: 1, len: 5009, parts });
            // The thread drops the node, and waits for the write.
            std::thread::yield_now();
            assert_eq!(count(f.finish(write)), Ok(4096), "{kind:?}");
            let was_last = f.storage.disposals() == before + 2;
            assert_eq!(count(f.finish(sieve)), Ok(5009), "{kind:?}");
            assert_eq!(f.read(node, 0, 12).unwrap(), [8, 9, 9, 9, 9, 9, 9, 9, 9, 9, 9, 8], "{kind:?}");
            was_last
        });
        assert!(met, "{kind:?}: the write never was the last to have the file open");
    }
}

// [STOR-96] What is in the ring holds what a thread waits for.
#[test]
fn ending_storage_does_not_wait_for_a_ring_waiter() {
    for kind in ring_kinds() {
        let mut f = Fixture::with(kind, |_| {}, &StorageConfig::default());
        let node = f.open("f", RWC).unwrap();
        assert_eq!(f.write_submitted(node, 0, &[&[7; 10_000]], Stability::DataSync), Ok(10_000));
        let (offset, from) = (0, vec![memory_of(&[8; 4096])]);
        f.start(FsOp::Write { node, offset, from, stability: Stability::DataSync });
        f.storage.flush();
        let parts = vec![(1, memory_of(&[9; 10])), (5000, memory_of(&[9; 10]))];
        f.start(FsOp::Sieve { node, offset: 1, len: 5009, parts });
        let Fixture { storage, directory, .. } = f;
        drop(storage);
        drop(directory);
    }
}
