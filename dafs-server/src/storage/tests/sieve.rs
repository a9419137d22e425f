//! Windows that are written in place of their parts.
#![allow(clippy::cast_possible_truncation, reason = "offsets that the tests choose")]

use std::os::unix::fs::FileExt;
use std::sync::atomic::{AtomicBool, Ordering};

use dafs_proto::wire::LockKind;

use super::harness::*;
use crate::storage::*;

/// Reproducible numbers.
pub(super) struct Numbers(pub(super) u64);

impl Numbers {
    pub(super) fn below(&mut self, bound: u64) -> u64 {
        self.0 = self.0.wrapping_mul(0x5851_f42d_4c95_7f2d).wrapping_add(0x1405_7b7e_f767_814f);
        (self.0 >> 33) % bound
    }
}

fn on_files() -> impl Iterator<Item = Kind> {
    kinds().into_iter().filter(|kind| *kind != Kind::Mem)
}

/// Parts of a window, ascending, with what lies between them.
pub(super) fn parts(numbers: &mut Numbers, start: u64, count: u64, size_max: u64) -> Vec<(u64, Vec<u8>)> {
    let mut at = start;
    let part = |_| {
        let bytes = vec![numbers.below(256) as u8; 1 + numbers.below(size_max) as usize];
        let part = (at, bytes);
        at += part.1.len() as u64 + numbers.below(2 * size_max);
        part
    };
    (0..count).map(part).collect()
}

pub(super) fn window_of(parts: &[(u64, Vec<u8>)]) -> (u64, usize) {
    let ((start, _), (last, bytes)) = (&parts[0], &parts[parts.len() - 1]);
    (*start, (last - start) as usize + bytes.len())
}

impl Fixture {
    /// Writes at once what can be; whether it was.
    pub(super) fn sieve_now(
        &mut self,
        node: NodeId,
        parts: &[(u64, Vec<u8>)],
    ) -> Result<Option<usize>, NowError> {
        let (offset, len) = window_of(parts);
        let window = memory(len);
        let mut change = || {
            for (at, bytes) in parts {
                let place = window.span().slice((at - offset) as usize, bytes.len()).unwrap();
                place.write_from(0, bytes);
            }
        };
        self.storage.sieve_now(node, offset, window.span(), &mut change)
    }

    fn sieve(&mut self, node: NodeId, parts: &[(u64, Vec<u8>)]) -> Result<usize, Status> {
        count(self.run(sieve_of(node, parts)))
    }
}

/// The operation that writes these parts.
pub(super) fn sieve_of(node: NodeId, parts: &[(u64, Vec<u8>)]) -> FsOp {
    let (offset, len) = window_of(parts);
    let parts = parts.iter().map(|(at, bytes)| (*at, memory_of(bytes))).collect();
    FsOp::Sieve { node, offset, len, parts }
}

// [LIST-40] [LIST-43]
#[test]
fn window_changes_its_parts_and_nothing_else() {
    const SIZE: u64 = 200_000;
    for kind in on_files() {
        let mut f = Fixture::new(kind);
        let node = f.open("f", RWC).unwrap();
        let path = f.directory.as_ref().unwrap().path().join("root/f");
        let plain = std::fs::OpenOptions::new().read(true).write(true).open(path).unwrap();
        let mut numbers = Numbers(7);
        let mut now = 0;
        for round in 0..300 {
            // With holes, and an end that windows reach.
            plain.set_len(0).unwrap();
            plain.set_len(SIZE - numbers.below(50_000)).unwrap();
            for _ in 0..numbers.below(6) {
                let data = vec![numbers.below(256) as u8; 1 + numbers.below(100_000) as usize];
                plain.write_all_at(&data, numbers.below(SIZE)).unwrap();
            }
            let mut model = vec![0; plain.metadata().unwrap().len() as usize];
            plain.read_exact_at(&mut model, 0).unwrap();
            let (start, count) = (numbers.below(SIZE), 1 + numbers.below(60));
            let parts = parts(&mut numbers, start, count, 1 << (round % 11));
            let whole = window_of(&parts).1;
            match f.sieve_now(node, &parts) {
                Ok(Some(count)) => {
                    assert_eq!(count, whole);
                    now += 1;
                }
                Ok(None) | Err(NowError::WouldBlock) => assert_eq!(f.sieve(node, &parts), Ok(whole)),
                Err(error) => panic!("{kind:?}: {error:?}"),
            }
            let end = parts.last().map_or(0, |(at, bytes)| *at as usize + bytes.len());
            model.resize(model.len().max(end), 0);
            for (at, bytes) in &parts {
                model[*at as usize..][..bytes.len()].copy_from_slice(bytes);
            }
            let mut found = vec![0; plain.metadata().unwrap().len() as usize];
            plain.read_exact_at(&mut found, 0).unwrap();
            assert!(found == model, "{kind:?} round {round}");
        }
        // How many is up to the kernel, which may be writing back.
        assert!(now > 0, "{kind:?}: {now} at once");
    }
}

// [LIST-43]
#[test]
fn hole_between_the_parts_stays_one() {
    const PAGE: u64 = 4096;
    for kind in on_files() {
        let mut f = Fixture::new(kind);
        let node = f.open("f", RWC).unwrap();
        let path = f.directory.as_ref().unwrap().path().join("root/f");
        let plain = std::fs::OpenOptions::new().read(true).write(true).open(path).unwrap();
        let hole = |pages: u64| {
            let from = rustix::fs::SeekFrom::Hole(0);
            (rustix::fs::seek(&plain, from).unwrap() == pages * PAGE, plain.metadata().unwrap().len())
        };
        // Data, a hole of one page or more between the two parts, and data to the end.
        for (first, after) in [(1, 2), (1, 20), (7, 8)] {
            plain.set_len(0).unwrap();
            plain.write_all_at(&vec![1; (first * PAGE) as usize], 0).unwrap();
            plain.write_all_at(&vec![2; PAGE as usize], after * PAGE).unwrap();
            let parts = vec![(first * PAGE - 10, vec![7; 5]), (after * PAGE + 3, vec![8; 5])];
            let at_once = f.sieve_now(node, &parts);
            assert!(matches!(at_once, Ok(None) | Err(NowError::WouldBlock)), "{kind:?}: {at_once:?}");
            assert_eq!(f.sieve(node, &parts), Ok(window_of(&parts).1));
            assert_eq!(hole(first), (true, (after + 1) * PAGE), "{kind:?}: {first} to {after}");
            // Before it all is data: those parts go together, at once where the file system lives in memory.
            let parts = vec![(5, vec![9; 5]), (first * PAGE - 10, vec![9; 5])];
            let at_once = f.sieve_now(node, &parts);
            assert!(at_once.is_ok_and(|count| count.is_some()) || kind != Kind::Tmpfs, "{kind:?}");
        }
    }
}

// [LIST-40] Every byte belongs to one writer, whose last value it has in the end.
#[test]
fn bytes_between_the_parts_that_others_write_are_not_lost() {
    const SIZE: u64 = 20_000;
    const WRITERS: u64 = 6;
    for kind in on_files() {
        let mut first = Fixture::new(kind);
        let node = first.open("f", RWC).unwrap();
        first.write(node, 0, &vec![0; SIZE as usize]).unwrap();
        let mut fixtures: Vec<Fixture> = (0..WRITERS).map(|_| first.another()).collect();
        let rounds = if kind == Kind::Tmpfs { 200 } else { 12 };
        std::thread::scope(|scope| {
            for (number, f) in fixtures.iter_mut().enumerate() {
                scope.spawn(move || {
                    let node = f.open("f", RW).unwrap();
                    for round in 0..rounds {
                        write_own(f, node, number as u64, round);
                    }
                });
            }
        });
        let found = first.read(node, 0, SIZE as usize).unwrap();
        for (at, byte) in found.iter().enumerate() {
            assert_eq!(u64::from(*byte), rounds, "{kind:?}: byte {at} of {}", at as u64 % WRITERS);
        }
    }

    /// All bytes of one writer get their next value, in one of the ways that there are.
    fn write_own(f: &mut Fixture, node: NodeId, number: u64, round: u64) {
        let value = vec![round as u8 + 1];
        let own: Vec<(u64, Vec<u8>)> =
            (number..SIZE).step_by(WRITERS as usize).map(|at| (at, value.clone())).collect();
        let pieces = own.chunks(500);
        for (piece, parts) in pieces.enumerate() {
            match (number + round + piece as u64) % 4 {
                0 => match f.sieve_now(node, parts) {
                    Ok(Some(count)) => assert_eq!(count, window_of(parts).1),
                    _ => drop(f.sieve(node, parts).unwrap()),
                },
                1 => drop(f.sieve(node, parts).unwrap()),
                2 => parts.iter().for_each(|(at, byte)| assert_eq!(f.write(node, *at, byte), Ok(1))),
                _ => {
                    let tokens: Vec<u64> = parts
                        .iter()
                        .map(|(at, byte)| {
                            let (offset, from) = (*at, vec![memory_of(byte)]);
                            f.start(FsOp::Write { node, offset, from, stability: Stability::Unstable })
                        })
                        .collect();
                    tokens.into_iter().for_each(|token| assert_eq!(count(f.finish(token)), Ok(1)));
                }
            }
        }
    }
}

// [LIST-40] What is cut off stays cut off.
#[test]
fn bytes_between_the_parts_that_are_cut_off_do_not_come_back() {
    for kind in on_files() {
        let mut f = Fixture::new(kind);
        let node = f.open("f", RWC).unwrap();
        let mut sieving = f.another();
        let done = AtomicBool::new(false);
        std::thread::scope(|scope| {
            scope.spawn(|| {
                let node = sieving.open("f", RW).unwrap();
                while !done.load(Ordering::Acquire) {
                    let parts = [(0, vec![1; 10]), (20_000, vec![2; 10])];
                    match sieving.sieve_now(node, &parts) {
                        Ok(Some(_)) => {}
                        _ => drop(sieving.sieve(node, &parts).unwrap()),
                    }
                }
            });
            let bad = (0..100).find(|_| {
                f.write(node, 10, &[0xaa; 19_990]).unwrap();
                f.write(node, 20_010, &[3]).unwrap();
                for op in [
                    FsOp::Truncate { node, size: 10 },
                    FsOp::Truncate { node, size: 30_000 },
                    FsOp::Allocate { node, offset: 0, len: 30_000 },
                ] {
                    f.run(op).unwrap();
                }
                f.read(node, 10, 19_990).unwrap().iter().any(|byte| *byte != 0)
            });
            done.store(true, Ordering::Release);
            assert_eq!(bad, None, "{kind:?}");
        });
    }
}

// [LIST-41] [LIST-45]
#[test]
fn window_partly_locked_by_a_process_is_written_in_parts() {
    for kind in on_files() {
        let mut f = Fixture::new(kind);
        let node = f.open("f", RWC).unwrap();
        f.write(node, 0, &[7; 10_000]).unwrap();
        let parts = [(0, vec![1; 10]), (100, vec![2; 10]), (500, vec![3; 10])];
        assert!(!matches!(f.sieve_now(node, &parts), Ok(None)), "nothing is in the way");
        let other = f.storage.local_locks(node).unwrap();
        assert_eq!(other.lock(&(50..60), LockKind::Shared), Ok(true));
        assert!(!matches!(f.sieve_now(node, &parts), Ok(Some(_))));
        let parts = parts.map(|(at, bytes)| (at, vec![9; bytes.len()]));
        assert_eq!(f.sieve(node, &parts), Ok(510));
        let found = f.read(node, 0, 510).unwrap();
        assert_eq!(found.iter().filter(|byte| **byte == 9).count(), 30);
        // What is given back is not in the way any more.
        other.unlock(&(0..u64::MAX));
        assert!(!matches!(f.sieve_now(node, &parts), Ok(None)));
        assert_eq!(other.lock(&(0..u64::MAX), LockKind::Exclusive), Ok(true), "nothing stays locked");
    }
}

// [LOCK-57] [LOCK-51]
#[test]
fn file_whose_locks_are_shown_to_processes_is_written_part_by_part() {
    for kind in on_files() {
        let mut f = Fixture::new(kind);
        let root = f.directory.as_ref().unwrap().path().join("root");
        let export = |name: &str, local_locks| ExportConfig {
            name: name.into(),
            kind: ExportKind::Directory(root.clone()),
            read_only: false,
            direct_io: matches!(kind, Kind::Direct(_)),
            local_locks,
            root: MemoryRoot::default(),
        };
        let exports = vec![export("data", false), export("shown", true)];
        f.storage = Exports::new(exports, &StorageConfig::default()).unwrap();
        let node = f.open("f", RWC).unwrap();
        f.write(node, 0, &[7; 10_000]).unwrap();
        let parts = [(0, vec![1; 10]), (100, vec![2; 10]), (500, vec![3; 10])];
        assert!(!matches!(f.sieve_now(node, &parts), Ok(None)), "{kind:?}: nothing is in the way");
        // By either export, for it is one file.
        let at = At { node: f.storage.root(ExportId(1)), path: b"f".to_vec() };
        let shown = f.open_at(at, RW).unwrap();
        let locks = f.storage.local_locks(shown).unwrap();
        for (node, byte) in [(node, 8), (shown, 9)] {
            let parts = parts.clone().map(|(at, bytes)| (at, vec![byte; bytes.len()]));
            assert!(matches!(f.sieve_now(node, &parts), Ok(None)), "{kind:?}");
            assert_eq!(f.sieve(node, &parts), Ok(510), "{kind:?}");
            let found = f.read(node, 0, 510).unwrap();
            assert_eq!(found.iter().filter(|found| **found == byte).count(), 30, "{kind:?}");
        }
        assert_eq!(locks.lock(&(0..u64::MAX), LockKind::Exclusive), Ok(true), "{kind:?}");
    }
}

#[test]
fn parts_that_do_not_fit_their_window_are_refused() {
    for kind in on_files() {
        let mut f = Fixture::new(kind);
        let node = f.open("f", RWC).unwrap();
        let mut sieve = |offset, len, parts: &[(u64, usize)]| {
            let parts = parts.iter().map(|(at, len)| (*at, memory(*len))).collect();
            count(f.run(FsOp::Sieve { node, offset, len, parts }))
        };
        assert_eq!(sieve(100, 10, &[(99, 1)]), Err(Status::INVALID));
        assert_eq!(sieve(100, 10, &[(100, 11)]), Err(Status::INVALID));
        assert_eq!(sieve(0, 256 * 1024 + 1, &[(0, 1)]), Err(Status::INVALID));
        assert_eq!(sieve(u64::MAX - 5, 10, &[]).map_err(|status| status != Status::OK), Err(true));
        assert_eq!(sieve(100, 10, &[(100, 1), (109, 1)]), Ok(10));
    }
}
