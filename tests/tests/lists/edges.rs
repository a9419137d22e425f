//! Around every threshold, and what ends a list early.

use std::io::{IoSlice, IoSliceMut};

use dafs_client::{Config, Error, Extent, MethodOverride, Stability, Status};
use dafs_proto::wire::LIST_MAX;
use dafs_tests::exhausted::{Registers, connect_exhausted};
use dafs_tests::faulty::{Fault, Kind};
use dafs_tests::harness::{Harness, On};
use dafs_tests::on_each_provider;
use dafs_tests::suite::{EXPORTS, assert_invalid, assert_same, assert_status, bytes, is_all};

on_each_provider! {
    list_at_each_threshold_of_size_moves_exactly_its_bytes,
    list_at_each_threshold_of_segments_moves_exactly_its_bytes,
    list_whose_extents_overlap_leaves_the_last_of_them,
    list_without_order_is_read_as_far_as_the_file_reaches,
    list_read_with_gaps_ends_with_the_file,
    list_read_with_its_gaps_is_whole_at_any_size,
    list_that_cannot_be_is_refused_before_it_is_sent,
    list_written_durably_is_there_and_commits,
    list_without_room_tells_what_was_written,
    list_whose_first_place_is_not_written_is_written_again_or_fails,
    overlapping_list_counts_no_place_before_it_is_written,
    overlapping_list_counts_what_is_there_when_cut,
    list_whose_extents_overlap_leaves_the_last_of_them_without_registration,
}

const TRANSFER_MAX: u32 = 300_000;
const METHODS: [MethodOverride; 4] =
    [MethodOverride::Auto, MethodOverride::Inline, MethodOverride::Direct, MethodOverride::Bounced];

/// `total` bytes in `count` extents, in reverse order, with gaps.
fn backwards(total: usize, count: usize) -> Vec<Extent> {
    let (len, rest) = ((total / count) as u64, (total % count) as u64);
    let mut list: Vec<Extent> = (0..count as u64)
        .map(|index| Extent::new(index * (len + 3), len + if index + 1 == count as u64 { rest } else { 0 }))
        .collect();
    list.reverse();
    list
}

fn check(
    file: &dafs_client::File,
    session: &dafs_client::Session,
    list: &[Extent],
    pieces: usize,
    what: &str,
) {
    let total: usize = list.iter().map(|extent| extent.len as usize).sum();
    let data = bytes(total as u64, total);
    let piece = total.div_ceil(pieces).max(1);
    let slices: Vec<IoSlice<'_>> = data.chunks(piece).map(IoSlice::new).collect();
    assert_eq!(file.write_list(list, &slices).unwrap(), total, "{what}");
    let mut found = vec![0xa5; total];
    let mut slices: Vec<IoSliceMut<'_>> = found.chunks_mut(piece).map(IoSliceMut::new).collect();
    let read = file.read_list(list, &mut slices).unwrap();
    assert_eq!((read.count, read.end), (total, None), "{what}");
    assert_same(&found, &data, what);
    let mut buffer = session.buffer(total + pieces).unwrap();
    let parts: Vec<_> = (0..pieces)
        .map(|i| i * (piece + 1)..(i * (piece + 1)) + piece.min(total.saturating_sub(i * piece)))
        .collect();
    if parts.iter().all(|part| part.start <= part.end && part.end <= total + pieces) {
        let read = file.read_list_buf(list, &mut buffer, &parts).unwrap();
        assert_eq!(read.count, total, "{what}");
        let found: Vec<u8> = parts.iter().flat_map(|part| buffer[part.clone()].to_vec()).collect();
        assert_same(&found, &data, what);
    }
}

// [LIST-1] [LIST-3]
fn list_at_each_threshold_of_size_moves_exactly_its_bytes(on: On) {
    let harness = Harness::start_with(on, |config| config.transfer_size_max = TRANSFER_MAX);
    for method in METHODS {
        let session = harness.session_with(&Config { method, ..Config::default() });
        let agreed = session.agreed();
        for export in EXPORTS {
            let file = session.mount(export).unwrap().create("f").unwrap();
            for threshold in [
                agreed.read_inline_max,
                agreed.write_inline_max,
                64 << 10,
                128 << 10,
                256 << 10,
                agreed.transfer_size_max,
                2 * agreed.transfer_size_max,
                1 << 20,
            ] {
                for total in [threshold - 1, threshold, threshold + 1] {
                    let list = backwards(total as usize, 37);
                    check(&file, &session, &list, 11, &format!("{method:?}, {total} bytes"));
                }
            }
        }
    }
}

// [LIST-2]
fn list_at_each_threshold_of_segments_moves_exactly_its_bytes(on: On) {
    let harness = Harness::start(on);
    for method in METHODS {
        let session = harness.session_with(&Config { method, ..Config::default() });
        let file = session.mount("data").unwrap().create("f").unwrap();
        for threshold in [1, 64, 256, 512, 1024, LIST_MAX] {
            for count in [threshold.max(2) - 1, threshold, threshold + 1] {
                for (extents, pieces) in [(count, 1), (1, count), (count, count)] {
                    let list = backwards(3 * count, extents);
                    let what = format!("{method:?}, {extents} extents, {pieces} pieces");
                    check(&file, &session, &list, pieces, &what);
                }
            }
        }
    }
}

// [LIST-4]
fn list_whose_extents_overlap_leaves_the_last_of_them(on: On) {
    let harness = Harness::start(on);
    for method in METHODS {
        let session = harness.session_with(&Config { method, ..Config::default() });
        for export in EXPORTS {
            let file = session.mount(export).unwrap().create("f").unwrap();
            // In one request, and in several, whose order is the server's.
            for (count, len) in [(20u64, 100u64), (3000, 100), (40, 90_000)] {
                let list: Vec<Extent> =
                    (0..count).map(|index| Extent::new((index * 7919) % count * len / 3, len)).collect();
                let data = bytes(count, (count * len) as usize);
                assert_eq!(file.write_list(&list, &[IoSlice::new(&data)]).unwrap(), data.len());
                let mut expected = vec![0; (count * len / 3 + len) as usize];
                for (extent, source) in list.iter().zip(data.chunks(len as usize)) {
                    expected[extent.offset as usize..][..len as usize].copy_from_slice(source);
                }
                let mut found = vec![0; expected.len()];
                let got = file.read_at(&mut found, 0).unwrap();
                assert_same(&found[..got], &expected[..got], &format!("{method:?}, {count} of {len}"));
                // Read, each extent has its bytes.
                let mut found = vec![0; data.len()];
                file.read_list(&list, &mut [IoSliceMut::new(&mut found)]).unwrap();
                for (extent, found) in list.iter().zip(found.chunks(len as usize)) {
                    assert_same(found, &expected[extent.offset as usize..][..len as usize], "an extent");
                }
                file.truncate(0).unwrap();
            }
        }
    }
}

// [LIST-5] [LIST-21]
fn list_without_order_is_read_as_far_as_the_file_reaches(on: On) {
    let harness = Harness::start(on);
    for method in METHODS {
        let session = harness.session_with(&Config { method, ..Config::default() });
        for export in EXPORTS {
            let file = session.mount(export).unwrap().create("f").unwrap();
            for (count, len) in [(30u64, 50u64), (4000, 50), (30, 60_000)] {
                let end = count * len * 2 / 3 + 17;
                let data = bytes(5, end as usize);
                file.truncate(0).unwrap();
                file.write_all_at(&data, 0).unwrap();
                let list: Vec<Extent> =
                    (0..count).map(|index| Extent::new((index * 7919) % count * len, len)).collect();
                let mut found = vec![0; (count * len) as usize];
                let read = file.read_list(&list, &mut [IoSliceMut::new(&mut found)]).unwrap();
                assert_eq!(read.end, Some(end), "{method:?}, {count} of {len}");
                let mut without_gap = None;
                for (index, (extent, found)) in list.iter().zip(found.chunks(len as usize)).enumerate() {
                    let expected = data.get(extent.offset as usize..).unwrap_or_default();
                    let expected = &expected[..expected.len().min(len as usize)];
                    assert_eq!(read.of(extent), expected.len() as u64);
                    assert_same(&found[..expected.len()], expected, "an extent");
                    if expected.len() < len as usize {
                        without_gap.get_or_insert(index * len as usize + expected.len());
                    }
                }
                assert_eq!(Some(read.count), without_gap);
            }
        }
    }
}

// [LIST-15] [LIST-22]
fn list_read_with_gaps_ends_with_the_file(on: On) {
    let harness = Harness::start(on);
    let session = harness.session();
    for export in EXPORTS {
        let file = session.mount(export).unwrap().create("f").unwrap();
        let list: Vec<Extent> = (0..12).map(|index| Extent::new(100 + index * 64, 33)).collect();
        let total = 12 * 33;
        let data = bytes(6, 900);
        // Around the ends of extents and gaps, and beyond the last.
        for size in [0, 1, 99, 100, 101, 132, 133, 134, 163, 164, 165, 500, 836, 837, 838, 900] {
            file.truncate(0).unwrap();
            file.write_all_at(&data[..size], 0).unwrap();
            let mut memory = vec![0xa5; 9 * 50];
            let mut pieces: Vec<&mut [u8]> = memory.chunks_mut(50).map(|piece| &mut piece[5..]).collect();
            pieces[8] = &mut std::mem::take(&mut pieces[8])[..total - 8 * 45];
            let mut slices: Vec<IoSliceMut<'_>> = pieces.into_iter().map(IoSliceMut::new).collect();
            let read = file.read_list(&list, &mut slices).unwrap();
            let whole = size >= 100 + 11 * 64 + 33;
            assert_eq!(read.end.is_none(), whole, "a file of {size}");
            let found: Vec<u8> = slices.iter().flat_map(|slice| slice.to_vec()).collect();
            let mut without_gap = None;
            for (index, (extent, found)) in list.iter().zip(found.chunks(33)).enumerate() {
                let from =
                    data.get(..size).and_then(|data| data.get(extent.offset as usize..)).unwrap_or_default();
                let expected = &from[..from.len().min(33)];
                assert_eq!(read.of(extent), expected.len() as u64, "a file of {size}");
                assert_same(&found[..expected.len()], expected, "an extent");
                if expected.len() < 33 {
                    without_gap.get_or_insert(index * 33 + expected.len());
                }
            }
            assert_eq!(read.count, without_gap.unwrap_or(total), "a file of {size}");
            assert!(memory.chunks(50).all(|piece| is_all(&piece[..5.min(piece.len())], 0xa5)));
        }
    }
}

// [LIST-15]
fn list_read_with_its_gaps_is_whole_at_any_size(on: On) {
    let harness = Harness::start(on);
    let session = harness.session();
    // Below, at and above what is bounced at once of memory in pieces (64 KiB), and of all (256 KiB).
    for (count, stride) in [(127u64, 1024u64), (128, 1024), (129, 1024), (200, 600), (255, 1024), (300, 1024)]
    {
        let list: Vec<Extent> = (0..count).map(|index| Extent::new(index * stride, 512)).collect();
        let data = bytes(count, (count * stride) as usize);
        let file = session.mount("mem").unwrap().create("f").unwrap();
        file.write_all_at(&data, 0).unwrap();
        let expected: Vec<u8> =
            list.iter().flat_map(|extent| data[extent.offset as usize..][..512].to_vec()).collect();
        for pieces in [1, 2, 7] {
            let mut found = vec![0xa5; expected.len()];
            let piece = found.len().div_ceil(pieces);
            let mut slices: Vec<IoSliceMut<'_>> = found.chunks_mut(piece).map(IoSliceMut::new).collect();
            let read = file.read_list(&list, &mut slices).unwrap();
            assert_eq!((read.count, read.end), (expected.len(), None), "{count} in {pieces}");
            assert_same(&found, &expected, &format!("{count} extents in {pieces} pieces"));
        }
    }
}

// [LIST-1] [LIST-19]
fn list_that_cannot_be_is_refused_before_it_is_sent(on: On) {
    let harness = Harness::start(on);
    let session = harness.session();
    let file = session.mount("mem").unwrap().create("f").unwrap();
    let mut memory = [0; 10];
    let extents = |list: &[(u64, u64)]| -> Vec<Extent> {
        list.iter().map(|&(offset, len)| Extent::new(offset, len)).collect()
    };
    for (list, what) in [
        (extents(&[(0, 4), (8, 5)]), "too few bytes in the file"),
        (extents(&[(0, 4), (8, 7)]), "too many"),
        (extents(&[(0, 5), (u64::MAX, 5)]), "an offset beyond all files"),
        (extents(&[(0, 5), (i64::MAX as u64 - 4, 5)]), "an end beyond all files"),
        (extents(&[(0, u64::MAX), (5, 11)]), "totals that overflow"),
        (extents(&[]), "no extents"),
    ] {
        assert_invalid(file.read_list(&list, &mut [IoSliceMut::new(&mut memory)]), what);
        assert_invalid(file.write_list(&list, &[IoSlice::new(&memory)]), what);
        let done = file.submit_write_list(&list, vec![vec![7; 10]]).wait();
        assert_eq!(done.buffers, [vec![7; 10]], "the memory comes back");
        assert_invalid(done.result, what);
    }
    let buffer = session.buffer(10).unwrap();
    let list = extents(&[(0, 4), (8, 6)]);
    assert_invalid(file.write_list_buf(&list, &buffer, &[0..4, 5..11]), "a part beyond the buffer");
    assert_invalid(
        file.write_list_buf(&list, &harness.session().buffer(10).unwrap(), std::slice::from_ref(&(0..10))),
        "a buffer of another session",
    );
    assert_eq!(file.read_list(&[], &mut []).unwrap().count, 0);
    assert_eq!(file.write_list(&extents(&[(5, 0), (9, 0)]), &[]).unwrap(), 0);
    assert_eq!(file.metadata().unwrap().size, 0);
    let last = extents(&[(i64::MAX as u64 - 10, 5), (i64::MAX as u64 - 5, 5)]);
    assert_eq!(file.read_list(&last, &mut [IoSliceMut::new(&mut memory)]).unwrap().count, 0);
}

fn list_written_durably_is_there_and_commits(on: On) {
    let harness = Harness::start(on);
    for method in METHODS {
        let session = harness.session_with(&Config { method, ..Config::default() });
        for export in EXPORTS {
            let file = session.mount(export).unwrap().create("f").unwrap();
            for stability in [Stability::Unstable, Stability::DataSync, Stability::FileSync] {
                let list = backwards(70_000, 50);
                let data = bytes(stability as u64, 70_000);
                let count = file.write_list_with(&list, &[IoSlice::new(&data)], stability).unwrap();
                assert_eq!(count, data.len());
                file.commit().unwrap();
                let mut found = vec![0; data.len()];
                file.read_list(&list, &mut [IoSliceMut::new(&mut found)]).unwrap();
                assert_same(&found, &data, "what was written");
            }
        }
    }
}

// [LIST-6]
fn list_without_room_tells_what_was_written(on: On) {
    let harness = Harness::start_with(on, |config| {
        config.exports[1].kind = dafs_server::config::ExportKind::Memory { size_max: 1 << 20 };
    });
    for method in METHODS {
        let session = harness.session_with(&Config { method, ..Config::default() });
        let root = session.mount("mem").unwrap();
        let file = root.create("f").unwrap();
        // Room for some of the 100 chunks, in ascending order.
        let list: Vec<Extent> = (0..100).map(|index| Extent::new(index * 65_536, 40_000)).collect();
        let data = bytes(1, 100 * 40_000);
        let count = match file.write_list(&list, &[IoSlice::new(&data)]) {
            Ok(count) => count,
            // Of several requests one had no room for anything.
            Err(Error::Status { status: Status::NO_SPACE, .. }) if method != MethodOverride::Direct => 1,
            Err(error) => panic!("{method:?}: {error}"),
        };
        assert!(count > 0 && count < data.len(), "{method:?}: {count}");
        let mut found = vec![0; data.len()];
        file.read_list(&list, &mut [IoSliceMut::new(&mut found)]).unwrap();
        assert_same(&found[..count], &data[..count], "what was said to be written");
        drop(file);
        root.remove_file("f").unwrap();
    }
}

// [LIST-6]
fn list_whose_first_place_is_not_written_is_written_again_or_fails(on: On) {
    for export in EXPORTS {
        let (harness, faults) = Harness::start_faulty(on, |_| {});
        for method in METHODS {
            let session = harness.session_with(&Config { method, ..Config::default() });
            let file = session.mount(export).unwrap().create("f").unwrap();
            let list = [Extent::new(5000, 400), Extent::new(0, 400)];
            let data = bytes(7, 800);
            // The beginning of the file is the end of the list.
            faults.next(Kind::Write, Fault::Short, 1);
            assert_eq!(file.write_list(&list, &[IoSlice::new(&data)]).unwrap(), 800, "{method:?}");
            let mut found = vec![0; 800];
            file.read_list(&list, &mut [IoSliceMut::new(&mut found)]).unwrap();
            assert_same(&found, &data, "what was written");
            // Always short, as on a disk that is full.
            faults.next(Kind::Write, Fault::Short, 100);
            assert_status(file.write_list(&list, &[IoSlice::new(&data)]), Status::NO_SPACE, "no room");
            faults.release();
        }
    }
}

// [LIST-4] [LIST-6]
fn overlapping_list_counts_no_place_before_it_is_written(on: On) {
    for export in EXPORTS {
        let (harness, faults) = Harness::start_faulty(on, |_| {});
        for method in METHODS {
            let session = harness.session_with(&Config { method, ..Config::default() });
            let file = session.mount(export).unwrap().create("f").unwrap();
            // The first is not written: the last goes there.
            let list = [(0, 10), (1 << 20, 10), (0, 10)].map(|(offset, len)| Extent::new(offset, len));
            let data = bytes(9, 30);
            faults.next(Kind::Write, Fault::Fail(Status::NO_SPACE), 1);
            let result = file.write_list(&list, &[IoSlice::new(&data)]);
            assert_status(result, Status::NO_SPACE, &format!("{method:?}"));
            assert_eq!(file.metadata().unwrap().size, 0, "{method:?}");
            faults.next(Kind::Write, Fault::Short, 1);
            let count = file.write_list(&list, &[IoSlice::new(&data)]).unwrap();
            // Where the client has taken out what is written over, the first place is missing, and all is written again.
            assert!(count == 5 || count == 30, "{method:?}: {count}");
            let mut found = [0; 10];
            let counted = count.min(10);
            assert!(file.read_at(&mut found, 0).unwrap() >= counted, "{method:?}");
            assert_same(&found[..counted], &data[20..20 + counted], "what was counted");
        }
    }
}

// [LIST-6] [LIST-9]
fn overlapping_list_counts_what_is_there_when_cut(on: On) {
    let (harness, faults) = Harness::start_faulty(on, |config| config.transfer_size_max = 64 << 10);
    let session = harness.session_with(&Config { method: MethodOverride::Direct, ..Config::default() });
    let file = session.mount("data").unwrap().create("f").unwrap();
    let list = [(0, 40_000), (100_000, 40_000), (20_000, 40_000)].map(|(at, len)| Extent::new(at, len));
    let data = bytes(5, 120_000);
    let mut expected = vec![0; 140_000];
    for (extent, data) in list.iter().zip(data.chunks(40_000)) {
        expected[extent.offset as usize..][..data.len()].copy_from_slice(data);
    }
    let mut counts = Vec::new();
    for passed in 0..4 {
        std::fs::write(harness.data().join("f"), vec![0; expected.len()]).unwrap();
        if passed > 0 {
            faults.next(Kind::Write, Fault::Pass, passed);
        }
        faults.next(Kind::Write, Fault::Fail(Status::NO_SPACE), 1000);
        // With an error nothing counts.
        let count = file.write_list(&list, &[IoSlice::new(&data)]).unwrap_or(0);
        faults.release();
        counts.push(count);
        let found = std::fs::read(harness.data().join("f")).unwrap();
        let places =
            list.iter().flat_map(|extent| extent.offset as usize..(extent.offset + extent.len) as usize);
        for (place, at) in places.take(count).enumerate() {
            assert_eq!(found[at], expected[at], "place {place} of {count}, behind {passed} writes");
        }
    }
    assert!(counts.iter().any(|count| *count > 0), "{counts:?}");
}

// [CLI-3] [LIST-20]
fn list_whose_extents_overlap_leaves_the_last_of_them_without_registration(on: On) {
    let (harness, faults) = Harness::start_faulty(on, |_| {});
    let config = Config { method: MethodOverride::Direct, ..Config::default() };
    let session = connect_exhausted(&harness, Registers::Allocated(usize::MAX), &config);
    let file = session.mount("mem").unwrap().create("f").unwrap();
    let list = [Extent::new(200_000, 300_000), Extent::new(0, 300_000)];
    let data = bytes(3, 600_000);
    // It goes in several requests, the first of which is the last to be executed.
    faults.next(Kind::Write, Fault::Hold, 1);
    let pending = file.submit_write_list(&list, vec![data.clone()]);
    while faults.held() == 0 {
        session.probe().unwrap();
    }
    for _ in 0..3 {
        session.probe().unwrap();
    }
    faults.release();
    assert_eq!(pending.wait().result.unwrap(), data.len());
    let mut found = vec![0; 500_000];
    file.read_exact_at(&mut found, 0).unwrap();
    assert_same(&found[..300_000], &data[300_000..], "what was the last in the list");
    assert_same(&found[300_000..], &data[100_000..300_000], "what it left of the first");
}
