//! Files in memory and in the page cache that are read again and again, and changed meanwhile.

use std::fs::File;
use std::os::unix::fs::{FileExt, MetadataExt};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

use dafs_proto::transport::Span;
use dafs_proto::wire::{OpenFlags, Stability};

use super::harness::*;
use crate::storage::*;

/// Declares tests of files in memory, and of files on a disk.
macro_rules! on_both {
    ($($name:ident),* $(,)?) => {
        mod tmpfs {
            $(#[test] #[ignore = "needs hot-windows"] fn $name() { super::$name(super::Kind::Tmpfs); })*
        }
        mod disk {
            $(#[test] #[ignore = "needs disk-windows"] fn $name() {
                super::$name(super::Kind::Disk(super::Engine::Pool));
            })*
        }
    };
}

on_both! {
    hot_file_of_every_size_reads_right_at_its_edges,
    pieces_of_hot_windows_are_read_up_to_the_last_page,
    hot_file_changed_by_others_reads_as_it_is,
    hot_file_written_through_the_server_reads_what_was_written,
    file_resized_during_read_shows_only_its_own_bytes,
    hot_file_that_an_open_cuts_is_not_mapped_any_more,
    window_read_once_is_not_mapped_and_read_twice_is,
}

const PAGE: u64 = 4096;
const WINDOW: u64 = 1 << 20;

/// A file, open as a node and beside the server.
struct Hot {
    fixture: Fixture,
    node: NodeId,
    beside: File,
}

/// What the file holds at an offset, wherever it holds data: never zero.
fn pattern(offset: u64) -> u8 {
    (offset % 251 + 1) as u8
}

fn patterned(offset: u64, len: usize) -> Vec<u8> {
    (offset..offset + len as u64).map(pattern).collect()
}

impl Hot {
    /// On tmpfs.
    fn new(size: u64) -> Self {
        Self::on(Kind::Tmpfs, size)
    }

    fn on(kind: Kind, size: u64) -> Self {
        let mut fixture = Fixture::new(kind);
        let path = fixture.directory.as_ref().unwrap().path().join("root/f");
        let beside = File::options().create(true).truncate(true).read(true).write(true).open(path).unwrap();
        beside.write_all_at(&patterned(0, size as usize), 0).unwrap();
        let node = fixture.open("f", RW).unwrap();
        Self { fixture, node, beside }
    }

    /// Reads a part of the file until its window could be mapped.
    fn activate(&mut self, offset: u64) {
        for _ in 0..2 * WINDOW / PAGE {
            self.fixture.read(self.node, offset, 1).unwrap();
        }
    }

    fn windows(&self) -> usize {
        self.fixture.storage.hot_windows(ExportId(0))
    }

    fn allocated(&self) -> u64 {
        self.beside.metadata().unwrap().blocks() * 512
    }

    /// The node reads what the file holds.
    fn check(&mut self, offset: u64, len: usize) {
        let mut wanted = vec![0; len];
        let count = self.beside.read_at(&mut wanted, offset).unwrap();
        let read = self.fixture.read(self.node, offset, len).unwrap();
        assert_eq!(read.len(), count, "{len} bytes at {offset}");
        assert!(read == wanted[..count], "{len} bytes at {offset}");
        self.check_pieces(offset, len, &wanted[..count]);
    }

    /// The same into memory in three pieces, one of them empty.
    fn check_pieces(&mut self, offset: u64, len: usize, wanted: &[u8]) {
        let mut bytes = vec![0xEE; len];
        let (first, rest) = bytes.split_at_mut(len / 3);
        let pieces = [Span::from_mut(first), Span::from_mut(&mut []), Span::from_mut(rest)];
        let count = self.fixture.storage.read_now(self.node, offset, &pieces).unwrap();
        assert_eq!(count, wanted.len(), "{len} bytes at {offset} in pieces");
        assert!(bytes[..count] == *wanted, "{len} bytes at {offset} in pieces");
    }

    /// Around every edge that there is.
    fn check_edges(&mut self, edges: &[u64]) {
        for edge in edges {
            for end in edge.saturating_sub(1)..=edge + 1 {
                for len in [1, 2, PAGE - 1, PAGE, PAGE + 1, WINDOW, WINDOW + 1] {
                    self.check(end.saturating_sub(len), len as usize);
                }
                self.check(end, 1);
            }
        }
    }
}

// [STOR-21] [STOR-23]
fn window_read_once_is_not_mapped_and_read_twice_is(kind: Kind) {
    let mut hot = Hot::on(kind, 3 * WINDOW);
    for pass in 0..2 {
        for offset in (0..3 * WINDOW).step_by(64 * 1024) {
            assert!(pass > 0 || hot.windows() == 0, "in the first pass");
            hot.check(offset, 64 * 1024);
        }
    }
    assert_eq!(hot.windows(), 3);
    hot.fixture.storage.close(hot.node);
    assert_eq!(hot.windows(), 0, "windows die with their node");
}

// [STOR-21]
fn hot_file_of_every_size_reads_right_at_its_edges(kind: Kind) {
    for size in
        [1, PAGE - 1, PAGE, PAGE + 1, WINDOW - 1, WINDOW, WINDOW + 1, WINDOW + PAGE, WINDOW + PAGE + 1]
    {
        let mut hot = Hot::on(kind, size);
        hot.activate(0);
        hot.activate(size - 1);
        assert_eq!(hot.windows() as u64, size.div_ceil(WINDOW), "{size}");
        hot.check_edges(&[0, 1, PAGE, size, size + PAGE, size + WINDOW]);
        hot.check(u64::MAX / 2 - 10, 10);
        assert_eq!(hot.windows() as u64, size.div_ceil(WINDOW), "{size}");
    }
}

// [STOR-21]
fn pieces_of_hot_windows_are_read_up_to_the_last_page(kind: Kind) {
    let size = 2 * WINDOW;
    let mut hot = Hot::on(kind, size);
    hot.activate(0);
    hot.activate(size - 1);
    for (count, len, stride) in
        [(1, 9, 9), (15, 300, 999), (16, 64, 128), (17, 1, 2), (33, 5000, 9000), (40, 130, 130)]
    {
        let span = count as u64 * stride;
        for from in
            [0, 77, WINDOW - span / 2, WINDOW - 1, size - PAGE - span, size - PAGE - span + 1, size - span]
        {
            let offset = |index: usize| from + index as u64 * stride;
            let mut bytes = vec![0; count * len];
            let places: Vec<Span<'_>> = bytes.chunks_mut(len).map(Span::from_mut).collect();
            let piece = |index: usize| Some((offset(index), *places.get(index)?));
            let read = hot.fixture.storage.read_pieces(hot.node, count * len, &piece);
            // What reaches into the last page of the file, or into the next window, is left to others.
            let is_proved = |index: &usize| {
                let (at, end) = (offset(*index), offset(*index) + len as u64);
                end <= (at - at % WINDOW + WINDOW).min(size - PAGE)
            };
            assert_eq!(read, (0..count).take_while(is_proved).count(), "{count} of {len} at {from}");
            for (index, found) in bytes.chunks(len).enumerate().take(read) {
                assert!(found == patterned(offset(index), len), "piece {index} of {count}, {len} at {from}");
            }
        }
    }
}

// [STOR-13] [STOR-21]
fn hot_file_changed_by_others_reads_as_it_is(kind: Kind) {
    let size = 2 * WINDOW;
    let mut hot = Hot::on(kind, size);
    let edges = [0, PAGE, WINDOW - 7, WINDOW, size];
    for cut in [size - 1, WINDOW + PAGE, WINDOW + 1, WINDOW, WINDOW - 7, PAGE, 1, 0] {
        hot.activate(0);
        hot.activate(WINDOW);
        hot.check_edges(&edges);
        hot.beside.set_len(cut).unwrap();
        hot.check_edges(&edges);
        hot.beside.set_len(size).unwrap();
        hot.check_edges(&edges);
        hot.beside.write_all_at(&patterned(0, size as usize), 0).unwrap();
        hot.check_edges(&edges);
    }
    hot.activate(0);
    hot.beside.write_all_at(&patterned(size, 10), size).unwrap();
    hot.check_edges(&[size, size + 10]);
}

// [STOR-21]
fn hot_file_written_through_the_server_reads_what_was_written(kind: Kind) {
    let mut hot = Hot::on(kind, WINDOW);
    hot.activate(0);
    assert_eq!(hot.windows(), 1);
    hot.fixture.write(hot.node, PAGE - 1, b"abc").unwrap();
    assert_eq!(
        hot.fixture.read(hot.node, PAGE - 2, 5).unwrap(),
        [pattern(PAGE - 2), b'a', b'b', b'c', pattern(PAGE + 2)]
    );
    hot.fixture.write_submitted(hot.node, 5, &[b"xy"], Stability::FileSync).unwrap();
    assert_eq!(hot.fixture.read(hot.node, 5, 2).unwrap(), b"xy");
    assert_eq!(hot.fixture.append(hot.node, b"more").unwrap(), (WINDOW, 4));
    hot.check_edges(&[WINDOW, WINDOW + 4]);
}

// [STOR-22] [STOR-70]
#[test]
#[ignore = "needs hot-windows"]
fn hot_file_punched_or_cut_is_not_filled_by_reading() {
    let size = 4 * WINDOW;
    for by_server in [true, false] {
        let mut hot = Hot::new(size);
        let full = hot.allocated();
        (0..4).for_each(|window| hot.activate(window * WINDOW));
        assert_eq!(hot.windows(), 4);
        let (node, offset, len) = (hot.node, WINDOW, 2 * WINDOW);
        if by_server {
            hot.fixture.run(FsOp::Punch { node, offset, len }).unwrap();
            assert_eq!(hot.windows(), 0);
        } else {
            punch(&hot.beside, offset, len);
        }
        let before = hot.allocated();
        assert_eq!(before, full - len);
        for offset in (0..size - PAGE).step_by(PAGE as usize + 1) {
            hot.check(offset, 64);
        }
        // What others punch is noticed after a few reads.
        let filled = hot.allocated() - before;
        assert!(filled <= if by_server { 0 } else { 2 * 65 * 2 * PAGE }, "{filled}");

        if by_server {
            hot.activate(0);
            hot.fixture.run(FsOp::Truncate { node, size: 5 }).unwrap();
            hot.fixture.run(FsOp::Truncate { node, size }).unwrap();
            (0..4).for_each(|window| hot.activate(window * WINDOW + 3 * PAGE));
            hot.check_edges(&[5, WINDOW, size]);
            assert_eq!(hot.allocated(), PAGE);
        }
    }
}

// [STOR-195]
#[test]
#[ignore = "needs disk-windows"]
fn window_on_a_disk_is_mapped_when_all_is_cached() {
    let mut hot = Hot::on(Kind::Disk(Engine::Pool), 2 * WINDOW);
    hot.beside.sync_all().unwrap();
    let forget = |file: &File| rustix::fs::fadvise(file, 0, None, rustix::fs::Advice::DontNeed).unwrap();
    forget(&hot.beside);
    // However far the kernel reads ahead elsewhere.
    rustix::fs::fadvise(&hot.beside, 0, None, rustix::fs::Advice::Random).unwrap();
    hot.beside.read_at(&mut [0; 64 * 1024], 0).unwrap();
    hot.activate(0);
    assert_eq!(hot.windows(), 0, "the rest would be waited for");
    hot.beside.read_exact_at(&mut vec![0; 2 * WINDOW as usize], 0).unwrap();
    hot.activate(0);
    assert_eq!(hot.windows(), 1, "others have brought it");
    // What is locked stays.
    forget(&hot.beside);
    hot.check(WINDOW - 100, 100);
    assert_eq!(hot.windows(), 1);
    let pattern = Some(AccessPattern::WillNotNeed);
    let hint = FsOp::Hint { node: hot.node, offset: 0, len: 0, pattern };
    hot.fixture.run(hint).unwrap();
    assert_eq!(hot.windows(), 0, "it was given back");
    hot.check(0, 100);
}

// [STOR-22]
#[test]
#[ignore = "needs hot-windows"]
fn hot_file_changed_by_another_worker_is_not_filled_by_reads() {
    let size = 4 * WINDOW;
    for (by_export, cuts) in [(false, false), (false, true), (true, false), (true, true)] {
        let mut hot = Hot::new(size);
        if by_export {
            hot.fixture = hot.fixture.twice();
            hot.node = hot.fixture.open("f", RW).unwrap();
        }
        (0..4).for_each(|window| hot.activate(window * WINDOW));
        assert_eq!(hot.windows(), 4);
        let mut worker = hot.fixture.another();
        let mut change = |op: &dyn Fn(NodeId) -> FsOp| match by_export {
            true => {
                let node = hot.fixture.open_again("f", RW);
                drop(hot.fixture.run(op(node)).unwrap());
            }
            false => {
                let node = worker.open("f", RW).unwrap();
                drop(worker.run(op(node)).unwrap());
            }
        };
        if cuts {
            change(&|node| FsOp::Truncate { node, size: WINDOW });
            change(&|node| FsOp::Truncate { node, size });
        } else {
            change(&|node| FsOp::Punch { node, offset: WINDOW, len: 3 * WINDOW });
        }
        assert_eq!(hot.allocated(), WINDOW);
        for offset in (0..size - PAGE).step_by(PAGE as usize + 1) {
            hot.check(offset, 64);
        }
        assert_eq!(hot.allocated(), WINDOW, "by an export: {by_export}, cut: {cuts}");
        // What has no hole is hot again.
        (0..2).for_each(|_| hot.activate(0));
        assert!(hot.windows() > 0);
        let (flags, node) = (RW | OpenFlags::TRUNCATE, hot.node);
        if by_export {
            hot.fixture.open_again("f", flags);
        } else {
            worker.open("f", flags).unwrap();
        }
        hot.fixture.run(FsOp::Allocate { node, offset: size, len: PAGE }).unwrap();
        hot.check_edges(&[0, PAGE, WINDOW]);
        assert_eq!(hot.allocated(), PAGE, "cut by an open");
    }
}

// [STOR-22]
#[test]
#[ignore = "needs hot-windows"]
fn sparse_file_read_again_and_again_stays_sparse() {
    let mut hot = Hot::new(0);
    let size = 3 * WINDOW;
    hot.beside.set_len(size).unwrap();
    hot.beside.write_all_at(&patterned(PAGE, PAGE as usize), PAGE).unwrap();
    hot.beside.write_all_at(&patterned(WINDOW, PAGE as usize), WINDOW).unwrap();
    let before = hot.allocated();
    for window in 0..3 {
        hot.activate(window * WINDOW);
        hot.activate(window * WINDOW + 2 * PAGE);
    }
    hot.check_edges(&[PAGE, 2 * PAGE, WINDOW, WINDOW + PAGE, 2 * WINDOW, size]);
    // Nor is it mapped to be sent from, where it has a hole.
    hot.beside.write_all_at(&patterned(2 * WINDOW, 16 * PAGE as usize), 2 * WINDOW).unwrap();
    assert!(hot.fixture.storage.map(hot.node, 2 * WINDOW, 16 * PAGE as usize, 1).len() == 1);
    assert!(hot.fixture.storage.map(hot.node, 2 * WINDOW, 17 * PAGE as usize, 1).is_empty());
    punch(&hot.beside, 2 * WINDOW, 16 * PAGE);
    assert_eq!((hot.allocated(), before), (2 * PAGE, 2 * PAGE));
}

// [STOR-71]
#[test]
#[ignore = "needs hot-windows"]
fn more_hot_files_than_windows_keep_to_the_bound() {
    let mut hot = Hot::new(10);
    let first = hot.node;
    for number in 0..600 {
        let name = format!("f{number}");
        hot.node = hot.fixture.open(&name, RWC).unwrap();
        hot.fixture.write(hot.node, 0, name.as_bytes()).unwrap();
        hot.activate(0);
        assert_eq!(hot.fixture.read(hot.node, 0, 100).unwrap(), name.as_bytes());
        assert!(hot.windows() <= 512);
    }
    assert!(hot.windows() > 100);
    assert_eq!(hot.fixture.read(first, 0, 100).unwrap(), patterned(0, 10));
}

#[test]
#[ignore = "needs hot-windows"]
fn unreadable_node_is_refused_although_the_file_is_hot() {
    let mut hot = Hot::new(WINDOW);
    hot.activate(0);
    let writer = hot.fixture.open("f", OpenFlags::WRITE).unwrap();
    for _ in 0..1000 {
        assert!(hot.fixture.read(writer, 0, 10).is_err());
    }
}

/// Ends the other thread, whether the test passes or not.
struct Done<'a>(&'a AtomicBool);

impl Drop for Done<'_> {
    fn drop(&mut self) {
        self.0.store(true, Ordering::Relaxed);
    }
}

/// Another process cuts the file in the middle of pages and writes it anew, without end. A read that no change overlaps is
/// exact; one that is overlapped shows nothing that the file never had: zeroes from the cut on at most.
// [STOR-69]
fn file_resized_during_read_shows_only_its_own_bytes(kind: Kind) {
    let size = WINDOW + 3 * PAGE;
    let mut hot = Hot::on(kind, size);
    let cut_of = |round: u64| size - 1 - round * 1237 % (5 * PAGE);
    // Four changes a round: begins to cut, is cut, begins to grow, has grown.
    let (done, changes) = (AtomicBool::new(false), AtomicU64::new(0));
    let (beside, rest) = (hot.beside.try_clone().unwrap(), patterned(0, size as usize));
    let mut exact = [0; 2];
    std::thread::scope(|scope| {
        let _done = Done(&done);
        let (done, changes) = (&done, &changes);
        scope.spawn(move || {
            for round in 0u64.. {
                if done.load(Ordering::Relaxed) {
                    break;
                }
                let cut = cut_of(round);
                let step = || changes.fetch_add(1, Ordering::SeqCst);
                step();
                beside.set_len(cut).unwrap();
                step();
                std::thread::yield_now();
                step();
                beside.write_all_at(&rest[cut as usize..], cut).unwrap();
                step();
                std::thread::yield_now();
            }
        });
        for round in 0u64.. {
            let offset = size - 1 - round * 811 % (9 * PAGE);
            let len = (round % 3 + 1) * PAGE;
            let before = changes.load(Ordering::SeqCst);
            let read = hot.fixture.read(hot.node, offset, len as usize).unwrap();
            let after = changes.load(Ordering::SeqCst);
            let cut = (before / 4..=after / 4).map(cut_of).min().unwrap();
            let known = match (before == after, before % 4) {
                (true, 0) => Some(size),
                (true, 2) => Some(cut),
                _ => None,
            };
            if let Some(end) = known {
                assert_eq!(
                    read.len() as u64,
                    len.min(end.saturating_sub(offset)),
                    "{len} bytes at {offset} of {end}"
                );
                exact[usize::from(end == cut)] += 1;
            }
            let zeroes_from = if known.is_some() { size } else { cut };
            let wrong = (offset..)
                .zip(&read)
                .find(|(at, byte)| **byte != pattern(*at) && (**byte != 0 || *at < zeroes_from));
            assert_eq!(wrong, None, "{len} bytes at {offset}, cut at {cut}");
            if round >= 20_000 && exact.iter().all(|count| *count >= 100) {
                break;
            }
        }
    });
    hot.check_edges(&[WINDOW, size]);
}

fn hot_file_that_an_open_cuts_is_not_mapped_any_more(kind: Kind) {
    let mut hot = Hot::on(kind, WINDOW);
    hot.activate(0);
    assert_eq!(hot.windows(), 1);
    hot.fixture.open("f", RW).unwrap();
    assert_eq!(hot.windows(), 1);
    hot.fixture.open("f", RW | OpenFlags::TRUNCATE).unwrap();
    assert_eq!(hot.windows(), 0);
    hot.check(0, 10);
}
