//! Reads, writes and appends: every size around every threshold, every method, every kind of memory.

use std::io::{IoSlice, IoSliceMut, Read, Seek, SeekFrom, Write};
use std::os::unix::fs::FileExt;
use std::sync::atomic::{AtomicBool, Ordering};

use dafs_client::{
    Config, Error, Extent, File, MethodOverride, OpenOptions, Session, Stability, Status, wait_all, wait_any,
};
use dafs_tests::harness::{Harness, On};
use dafs_tests::on_each_provider;
use dafs_tests::suite::{EXPORTS, assert_invalid, assert_same, assert_status, bytes};

on_each_provider! {
    transfer_of_every_size_method_and_memory_moves_exactly_its_bytes,
    transfer_with_a_demanded_method_travels_that_way,
    transfer_without_memory_to_stage_in_goes_all_the_same,
    read_around_the_end_is_short_only_there,
    read_of_a_truncated_file_counts_only_what_it_gave,
    read_and_write_at_the_last_offset_are_refused,
    write_of_each_stability_is_there_and_commits,
    append_of_two_clients_keeps_every_record_whole_and_once,
    append_beyond_the_largest_transfer_is_refused_before_it_is_sent,
    only_unstable_writes_over_a_stream_are_cut_into_messages,
    write_of_one_client_is_seen_by_another_at_once,
    handle_opened_for_one_use_refuses_the_other,
    buffer_of_another_session_is_refused,
    stream_reads_writes_seeks_and_appends,
    nonblocking_transfers_end_in_any_order_with_their_own_data,
    vectored_transfer_of_many_pieces_keeps_their_order,
}

const TRANSFER_MAX: u32 = 300_000;
const METHODS: [MethodOverride; 7] = [
    MethodOverride::Auto,
    MethodOverride::Inline,
    MethodOverride::Direct,
    MethodOverride::Bounced,
    MethodOverride::Eager,
    MethodOverride::ClientInitiated,
    MethodOverride::Hybrid,
];

/// Those of eager buffers are left to the suite `eager` where a guest's emulated device moves the bytes.
fn methods(on: On) -> &'static [MethodOverride] {
    if matches!(on, On::Tcp | On::Shm) { &METHODS } else { &METHODS[..4] }
}

#[derive(Clone, Copy, Debug)]
enum Memory {
    Slice,
    Registered,
    Vectored,
    OwnedVec,
    OwnedRegistered,
}

const MEMORIES: [Memory; 5] =
    [Memory::Slice, Memory::Registered, Memory::Vectored, Memory::OwnedVec, Memory::OwnedRegistered];

fn harness(on: On) -> Harness {
    Harness::start_with(on, |config| config.transfer_size_max = TRANSFER_MAX)
}

fn write(session: &Session, file: &File, memory: Memory, data: &[u8], offset: u64) -> usize {
    let registered = || {
        let mut buffer = session.buffer(data.len()).unwrap();
        buffer.copy_from_slice(data);
        buffer
    };
    match memory {
        Memory::Slice => file.write_at(data, offset).unwrap(),
        Memory::Registered => file.write_buf_at(&registered(), offset).unwrap(),
        Memory::Vectored => {
            let (a, b) = data.split_at(data.len() / 3);
            let slices = [IoSlice::new(a), IoSlice::new(&[]), IoSlice::new(b)];
            file.write_vectored_at(&slices, offset).unwrap()
        }
        Memory::OwnedVec => {
            let transferred = file.submit_write_at(data.to_vec(), offset).wait();
            assert_same(&transferred.buffer, data, "the vector that comes back");
            transferred.result.unwrap()
        }
        Memory::OwnedRegistered => {
            let transferred = file.submit_write_at(registered(), offset).wait();
            assert_same(&transferred.buffer, data, "the buffer that comes back");
            transferred.result.unwrap()
        }
    }
}

fn read(session: &Session, file: &File, memory: Memory, len: usize, offset: u64) -> Vec<u8> {
    let mut data = vec![0xa5; len];
    let count = match memory {
        Memory::Slice => file.read_at(&mut data, offset).unwrap(),
        Memory::Registered => {
            let mut buffer = session.buffer(len).unwrap();
            let count = file.read_buf_at(&mut buffer, offset).unwrap();
            data.copy_from_slice(&buffer);
            count
        }
        Memory::Vectored => {
            let (a, b) = data.split_at_mut(len / 3);
            let mut slices = [IoSliceMut::new(a), IoSliceMut::new(b)];
            file.read_vectored_at(&mut slices, offset).unwrap()
        }
        Memory::OwnedVec => {
            let transferred = file.submit_read_at(data, offset).wait();
            data = transferred.buffer;
            transferred.result.unwrap()
        }
        Memory::OwnedRegistered => {
            let transferred = file.submit_read_at(session.buffer(len).unwrap(), offset).wait();
            data.copy_from_slice(&transferred.buffer);
            transferred.result.unwrap()
        }
    };
    data.truncate(count);
    data
}

/// Sizes around everything that changes how a transfer travels.
fn sizes(session: &Session) -> Vec<usize> {
    let agreed = session.agreed();
    let crossovers = agreed.thresholds.crossovers;
    let mut sizes = vec![0, 1, 2, 1 << 20];
    for threshold in [
        agreed.read_inline_max,
        agreed.write_inline_max,
        crossovers.read_registered,
        crossovers.read_unregistered,
        crossovers.write_registered,
        crossovers.write_unregistered,
        4096,
        256 << 10,
        agreed.transfer_size_max,
        2 * agreed.transfer_size_max,
    ] {
        let threshold = threshold as usize;
        sizes.extend([threshold - 1, threshold, threshold + 1]);
    }
    sizes.sort_unstable();
    sizes.dedup();
    sizes
}

// [CLI-1] [CLI-2] [STOR-9] [STOR-10]
fn transfer_of_every_size_method_and_memory_moves_exactly_its_bytes(on: On) {
    let harness = harness(on);
    for &method in methods(on) {
        let session = harness.session_with(&Config { method, ..Config::default() });
        assert_eq!(session.agreed().transfer_size_max, TRANSFER_MAX);
        let sizes = sizes(&session);
        for export in EXPORTS {
            let root = session.mount(export).unwrap();
            for (seed, size) in sizes.iter().copied().enumerate() {
                // Small sizes in every kind of memory, large ones in turn: the number of bytes stays in bounds.
                let memories: Vec<Memory> = match size {
                    0..65_536 => MEMORIES.to_vec(),
                    _ => vec![MEMORIES[seed % MEMORIES.len()]],
                };
                for memory in memories {
                    let what = format!("{export}, {method:?}, {memory:?}, {size} bytes");
                    let data = bytes(seed as u64, size);
                    let file = root.create("f").unwrap();
                    assert_eq!(write(&session, &file, memory, &data, 3), size, "{what}");
                    let found = read(&session, &file, memory, size, 3);
                    assert_same(&found, &data, &what);
                    // One byte more than there is, from before the data.
                    let found = read(&session, &file, memory, size + 4, 0);
                    let expected = if size == 0 { vec![] } else { [&[0; 3], &data[..]].concat() };
                    assert_same(&found, &expected, &what);
                    if export == "data" {
                        assert_same(&std::fs::read(harness.data().join("f")).unwrap(), &expected, &what);
                    }
                }
            }
        }
    }
}

// [CLI-67]
fn transfer_with_a_demanded_method_travels_that_way(on: On) {
    let harness = harness(on);
    for (method, inline) in
        [(MethodOverride::Inline, true), (MethodOverride::Direct, false), (MethodOverride::Bounced, false)]
    {
        let session = harness.session_with(&Config { method, ..Config::default() });
        let file = session.mount("mem").unwrap().create("f").unwrap();
        for size in [1usize, 100_000] {
            let before = session.statistics().unwrap();
            file.write_all_at(&bytes(1, size), 0).unwrap();
            file.read_exact_at(&mut vec![0; size], 0).unwrap();
            let after = session.statistics().unwrap();
            let moved = |before: [u64; 2], after: [u64; 2]| [after[0] - before[0], after[1] - before[1]];
            let expected = if inline { [size as u64, 0] } else { [0, size as u64] };
            let what = format!("{method:?}, {size} bytes");
            assert_eq!(moved(before.bytes_written, after.bytes_written), expected, "written, {what}");
            assert_eq!(moved(before.bytes_read, after.bytes_read), expected, "read, {what}");
        }
    }
}

// [CLI-3]
fn transfer_without_memory_to_stage_in_goes_all_the_same(on: On) {
    let harness = harness(on);
    for &method in methods(on) {
        let session = harness.session_with(&Config { method, bounce_size: 0, ..Config::default() });
        let file = session.mount("mem").unwrap().create("f").unwrap();
        let data = bytes(1, 400_000);
        for memory in MEMORIES {
            assert_eq!(write(&session, &file, memory, &data, 0), data.len());
            assert_same(&read(&session, &file, memory, data.len(), 0), &data, "not bounced");
        }
        if on == On::Tcp && method == MethodOverride::Bounced {
            assert!(
                session.statistics().unwrap().bytes_written[0] >= 400_000,
                "inline where nothing can be bounced"
            );
        }
    }
}

// [STOR-9]
fn read_around_the_end_is_short_only_there(on: On) {
    let harness = harness(on);
    for &method in methods(on) {
        let session = harness.session_with(&Config { method, ..Config::default() });
        for export in EXPORTS {
            let file = session.mount(export).unwrap().create("f").unwrap();
            for memory in MEMORIES {
                assert_eq!(read(&session, &file, memory, 10, 0), b"", "an empty file");
            }
            let data = bytes(7, 50_000);
            file.write_all_at(&data, 0).unwrap();
            for memory in MEMORIES {
                for (offset, len) in [
                    (49_999, 1),
                    (49_999, 2),
                    (50_000, 1),
                    (50_001, 1),
                    (0, 50_001),
                    (20_000, 60_000),
                    (5, 0),
                ] {
                    let expected = &data[offset.min(data.len())..(offset + len).min(data.len())];
                    let found = read(&session, &file, memory, len, offset as u64);
                    assert_same(
                        &found,
                        expected,
                        &format!("{export} {method:?} {memory:?} {len} at {offset}"),
                    );
                }
                assert_eq!(read(&session, &file, memory, 100, 1 << 40), b"");
            }
            let missing = file.read_exact_at(&mut [0; 100], 49_950);
            assert!(matches!(missing, Err(Error::UnexpectedEnd { missing: 50, .. })), "{missing:?}");
            let kind = missing.map_err(|error| std::io::Error::from(error).kind());
            assert_eq!(kind, Err(std::io::ErrorKind::UnexpectedEof));
        }
    }
}

/// Whatever the moment at which the file is cut, what is counted is data: never what the memory held before, and never zeros in the place
/// of what is gone. (The kernel itself lets a read see zeros in a folio that is cut in two, so the cut is between two.)
// [PROV-59] [PROV-60] [PROV-61] [STOR-27]
fn read_of_a_truncated_file_counts_only_what_it_gave(on: On) {
    const LEN: usize = 200_000;
    const PART: usize = 16_384;
    const KEPT: usize = 3 * PART;
    const POISON: u8 = 0xa5;
    let harness = harness(on);
    let data: Vec<u8> = bytes(3, LEN).into_iter().map(|byte| byte & 0x7f | 1).collect();
    let path = harness.data().join("f");
    let beside = std::fs::File::create(&path).unwrap();
    let fill = || {
        for (part, at) in data.chunks(PART).zip((0..).step_by(PART)) {
            beside.write_all_at(part, at).unwrap();
        }
    };
    fill();
    let over = AtomicBool::new(false);
    std::thread::scope(|scope| {
        scope.spawn(|| {
            while !over.load(Ordering::Relaxed) {
                fill();
                beside.set_len(KEPT as u64).unwrap();
            }
        });
        let _ends = Ends(&over);
        for round in 0..on.rounds(60) {
            // A session that has met a cut is careful for a while.
            let method = if round % 3 == 0 { MethodOverride::Auto } else { MethodOverride::Direct };
            let session = harness.session_with(&Config { method, ..Config::default() });
            let file = session.mount("data").unwrap().root().open("f").unwrap();
            for _ in 0..20 {
                let mut memory = vec![POISON; LEN];
                let got = match round % 2 {
                    0 => file.read_at(&mut memory, 0).unwrap(),
                    _ => {
                        let extents = [Extent::new(0, 10), Extent::new(10, LEN as u64 - 10)];
                        file.read_list(&extents, &mut [IoSliceMut::new(&mut memory)]).unwrap().count
                    }
                };
                assert_same(&memory[..got], &data[..got], &format!("round {round}"));
            }
        }
    });
}

/// Ends a thread, in a test that fails too.
struct Ends<'a>(&'a AtomicBool);

impl Drop for Ends<'_> {
    fn drop(&mut self) {
        self.0.store(true, Ordering::Relaxed);
    }
}

// [ERR-1] [STOR-60]
fn read_and_write_at_the_last_offset_are_refused(on: On) {
    let harness = harness(on);
    let session = harness.session();
    for export in EXPORTS {
        let file = session.mount(export).unwrap().create("f").unwrap();
        let last = i64::MAX as u64;
        assert!(file.read_at(&mut [0; 2], last - 1).is_err(), "{export}");
        assert!(file.read_at(&mut [0; 2], u64::MAX - 1).is_err(), "{export}");
        assert!(file.write_at(&[1; 2], last - 1).is_err(), "{export}");
        assert!(file.write_at(&[1; 2], u64::MAX - 1).is_err(), "{export}");
        assert!(file.truncate(u64::MAX).is_err(), "{export}");
        // The session goes on, and nothing was changed.
        assert_eq!(file.metadata().unwrap().size, 0);
    }
}

// [STOR-15]
fn write_of_each_stability_is_there_and_commits(on: On) {
    let harness = harness(on);
    for export in EXPORTS {
        for (seed, stability) in
            [(1, Stability::Unstable), (2, Stability::DataSync), (3, Stability::FileSync)]
        {
            let session = harness.session();
            let root = session.mount(export).unwrap();
            let mut options = OpenOptions::new();
            options.read(true).write(true).create(true).stability(stability);
            let file = root.open_with("f", &options).unwrap();
            for size in [100, 40_000] {
                let data = bytes(seed, size);
                assert_eq!(file.write_at(&data, 0).unwrap(), size);
                assert_eq!(file.write_at_with(&data, 50_000, stability).unwrap(), size);
                assert_eq!(
                    file.submit_write_at_with(data.clone(), 100_000, stability).wait().result.unwrap(),
                    size
                );
                file.commit_range(0, 10, Stability::DataSync).unwrap();
                file.submit_commit().wait().unwrap();
                for offset in [0, 50_000, 100_000] {
                    let mut found = vec![0; size];
                    file.read_exact_at(&mut found, offset).unwrap();
                    assert_same(&found, &data, "committed data");
                }
            }
            assert_invalid(file.commit_range(0, 0, Stability::Unstable), "a commit that commits nothing");
        }
    }
}

// [STOR-11] [STOR-61]
fn append_of_two_clients_keeps_every_record_whole_and_once(on: On) {
    const RECORDS: u64 = 150;
    let harness = harness(on);
    for export in EXPORTS {
        harness.session().mount(export).unwrap().create("log").unwrap();
        let size = |writer: u64, record: u64| 1 + (writer * 7919 + record * 977) as usize % 40_000;
        let places: Vec<(u64, u64, u64)> = std::thread::scope(|scope| {
            let writers: Vec<_> = (0..2u64)
                .map(|writer| {
                    let session = harness.session();
                    scope.spawn(move || {
                        let root = session.mount(export).unwrap();
                        let file = root.open_with("log", OpenOptions::new().append(true)).unwrap();
                        let mut pending = Vec::new();
                        let mut places = Vec::new();
                        for record in 0..RECORDS {
                            let data = bytes(writer * 1000 + record, size(writer, record));
                            if record % 2 == 0 {
                                places.push((writer, record, file.append(&data).unwrap()));
                            } else {
                                pending.push((record, file.submit_append(data)));
                            }
                        }
                        for (record, pending) in pending {
                            places.push((writer, record, pending.wait().unwrap()));
                        }
                        places
                    })
                })
                .collect();
            writers.into_iter().flat_map(|writer| writer.join().unwrap()).collect()
        });
        let session = harness.session();
        let file = session.mount(export).unwrap().open("log").unwrap();
        let mut all = Vec::new();
        (&file).read_to_end(&mut all).unwrap();
        let mut covered = 0;
        let mut places = places;
        places.sort_by_key(|(_, _, place)| *place);
        for (writer, record, place) in places {
            assert_eq!(place, covered, "{export}: records leave no gap and do not overlap");
            let expected = bytes(writer * 1000 + record, size(writer, record));
            let place = place as usize;
            assert_same(&all[place..place + expected.len()], &expected, "a record");
            covered += expected.len() as u64;
        }
        assert_eq!(covered, all.len() as u64, "{export}");
    }
}

// [CLI-70]
fn append_beyond_the_largest_transfer_is_refused_before_it_is_sent(on: On) {
    let harness = harness(on);
    let session = harness.session();
    for export in EXPORTS {
        let root = session.mount(export).unwrap();
        let file = root.open_with("log", OpenOptions::new().append(true).create(true)).unwrap();
        let max = TRANSFER_MAX as usize;
        assert_invalid(file.append(&vec![1; max + 1]), "one byte too many");
        assert_eq!(file.metadata().unwrap().size, 0);
        let mut registered = session.buffer(max).unwrap();
        registered.fill(2);
        assert_eq!(file.submit_append(registered).wait().unwrap(), 0);
        assert_eq!(file.append(b"").unwrap(), max as u64);
        assert_eq!(file.append(b"x").unwrap(), max as u64);
        assert_eq!(file.metadata().unwrap().size, max as u64 + 1);
    }
}

// [CLI-4] [CLI-71]
fn only_unstable_writes_over_a_stream_are_cut_into_messages(on: On) {
    let harness = Harness::start(on);
    let session = harness.session();
    let file = session.mount("mem").unwrap().create("f").unwrap();
    let agreed = session.agreed();
    assert!(agreed.thresholds.crossovers.write_unregistered > agreed.write_inline_max);
    let data = bytes(1, 100_000);
    let goes_inline = |write: &dyn Fn() -> usize| {
        let before = session.statistics().unwrap().bytes_written;
        assert_eq!(write(), data.len());
        let after = session.statistics().unwrap().bytes_written;
        let moved = [after[0] - before[0], after[1] - before[1]];
        assert_eq!(moved[0] + moved[1], data.len() as u64);
        assert!(moved[0] == 0 || moved[1] == 0, "{moved:?}");
        moved[0] > 0
    };
    let is_stream = on == On::Tcp;
    assert_eq!(goes_inline(&|| file.write_at(&data, 0).unwrap()), is_stream);
    assert_eq!(goes_inline(&|| file.submit_write_at(data.clone(), 0).wait().result.unwrap()), is_stream);
    assert!(!goes_inline(&|| file.write_at_with(&data, 0, Stability::DataSync).unwrap()), "durable");
    let append = || file.append(&data).map(|_| data.len());
    assert!(!goes_inline(&|| append().unwrap()), "an append");
    let extents = [Extent::new(200_000, 50_000), Extent::new(0, 50_000)];
    assert!(!goes_inline(&|| file.write_list(&extents, &[IoSlice::new(&data)]).unwrap()), "a list");
}

fn write_of_one_client_is_seen_by_another_at_once(on: On) {
    let harness = harness(on);
    let (one, two) = (harness.session(), harness.session());
    for export in EXPORTS {
        let writer = one.mount(export).unwrap().create("f").unwrap();
        let reader = two.mount(export).unwrap().open("f").unwrap();
        for round in 0..200u64 {
            let data = bytes(round, 1 + (round as usize * 331) % 40_000);
            writer.write_all_at(&data, round).unwrap();
            let mut found = vec![0; data.len()];
            reader.read_exact_at(&mut found, round).unwrap();
            assert_same(&found, &data, export);
            assert!(reader.metadata().unwrap().size >= round + data.len() as u64);
        }
        writer.truncate(5).unwrap();
        assert_eq!(reader.read_at(&mut [0; 100], 0).unwrap(), 5);
    }
}

// [STOR-51]
fn handle_opened_for_one_use_refuses_the_other(on: On) {
    let harness = harness(on);
    let session = harness.session();
    for export in EXPORTS {
        let root = session.mount(export).unwrap();
        let writer = root.open_with("f", OpenOptions::new().write(true).create(true)).unwrap();
        let reader = root.open("f").unwrap();
        for size in [1, 100_000] {
            assert_status(reader.write_at(&vec![1; size], 0), Status::BAD_HANDLE, "write to a reader");
            assert_status(reader.append(&vec![1; size]), Status::BAD_HANDLE, "append to a reader");
            assert_status(writer.read_at(&mut vec![0; size], 0), Status::BAD_HANDLE, "read from a writer");
        }
        assert_eq!(writer.metadata().unwrap().size, 0);
    }
}

// [PROV-18]
fn buffer_of_another_session_is_refused(on: On) {
    let harness = harness(on);
    let (one, two) = (harness.session(), harness.session());
    let file = one.mount("mem").unwrap().create("f").unwrap();
    let mut foreign = two.buffer(100_000).unwrap();
    assert_invalid(file.read_buf_at(&mut foreign, 0), "a foreign buffer");
    assert_invalid(file.write_buf_at(&foreign, 0), "a foreign buffer");
    let back = file.submit_write_at(foreign, 0).wait();
    assert_invalid(back.result, "a foreign buffer");
    assert_eq!(back.buffer.len(), 100_000, "it comes back");
    assert_eq!(file.metadata().unwrap().size, 0);
}

fn stream_reads_writes_seeks_and_appends(on: On) {
    let harness = harness(on);
    let session = harness.session();
    for export in EXPORTS {
        let root = session.mount(export).unwrap();
        let data = bytes(11, 700_000);
        let mut file = root.create("f").unwrap();
        std::io::copy(&mut &data[..], &mut file).unwrap();
        assert_eq!(file.stream_position().unwrap(), data.len() as u64);
        assert_eq!(file.seek(SeekFrom::End(-10)).unwrap(), data.len() as u64 - 10);
        let mut tail = Vec::new();
        file.read_to_end(&mut tail).unwrap();
        assert_eq!(tail, data[data.len() - 10..]);
        assert!(file.seek(SeekFrom::Current(-(data.len() as i64) - 1)).is_err());
        file.rewind().unwrap();
        let mut all = Vec::new();
        file.read_to_end(&mut all).unwrap();
        assert_same(&all, &data, export);
        file.seek(SeekFrom::Start(5)).unwrap();
        file.write_all(b"here").unwrap();
        assert_eq!(file.write_vectored(&[IoSlice::new(b"and"), IoSlice::new(b"there")]).unwrap(), 8);
        assert_eq!((file.stream_position().unwrap(), file.metadata().unwrap().size), (17, data.len() as u64));
        file.read_exact_at(&mut tail[..], 5).unwrap();
        assert_eq!(tail, b"hereandthe");
        let mut log = root.open_with("f", OpenOptions::new().append(true)).unwrap();
        log.write_all(&data).unwrap();
        assert_eq!(file.metadata().unwrap().size, 2 * data.len() as u64);
        assert_eq!(log.stream_position().unwrap(), 2 * data.len() as u64);
        for method in methods(on) {
            let session = harness.connect(&Config { method: *method, ..Config::default() }).unwrap();
            let root = session.mount(export).unwrap();
            let name = format!("log by {method:?}");
            let mut log =
                root.open_with(name, OpenOptions::new().append(true).read(true).create(true)).unwrap();
            log.write_all(&data).unwrap_or_else(|error| panic!("{method:?}: {error}"));
            let mut all = vec![0; data.len()];
            log.read_exact_at(&mut all, 0).unwrap();
            assert_same(&all, &data, export);
        }
    }
}

// [CLI-10]
fn nonblocking_transfers_end_in_any_order_with_their_own_data(on: On) {
    let harness = harness(on);
    let session = harness.session();
    for export in EXPORTS {
        let file = session.mount(export).unwrap().create("f").unwrap();
        let piece = |index: usize| bytes(index as u64, 1 + index * 613 % 50_000);
        let writes: Vec<_> =
            (0..300).map(|index| file.submit_write_at(piece(index), (index * 50_000) as u64)).collect();
        for (index, written) in wait_all(writes).into_iter().enumerate() {
            assert_eq!(written.result.unwrap(), piece(index).len());
        }
        let mut places: Vec<usize> = (0..300).collect();
        let mut reads: Vec<_> = places
            .iter()
            .map(|index| file.submit_read_at(vec![0; piece(*index).len()], (index * 50_000) as u64))
            .collect();
        while let Some(place) = wait_any(&mut reads) {
            let mut pending = reads.swap_remove(place);
            let index = places.swap_remove(place);
            assert!(pending.test(), "what wait_any names has ended");
            let read = pending.wait();
            assert_eq!(read.result.unwrap(), piece(index).len());
            assert_same(&read.buffer, &piece(index), export);
        }
        assert!(places.is_empty());
    }
}

fn vectored_transfer_of_many_pieces_keeps_their_order(on: On) {
    let harness = harness(on);
    for &method in methods(on) {
        let session = harness.session_with(&Config { method, ..Config::default() });
        let file = session.mount("data").unwrap().create("f").unwrap();
        // 256 ranges fit one request.
        for pieces in [1, 255, 256, 257, 600] {
            let data = bytes(pieces, pieces as usize * 37);
            let slices: Vec<_> = data.chunks(37).map(IoSlice::new).collect();
            assert_eq!(file.write_vectored_at(&slices, 0).unwrap(), data.len());
            let mut found = vec![0; data.len()];
            let mut slices: Vec<_> = found.chunks_mut(53).map(IoSliceMut::new).collect();
            assert_eq!(file.read_vectored_at(&mut slices, 0).unwrap(), data.len());
            assert_same(&found, &data, &format!("{method:?}, {pieces} pieces"));
        }
    }
}
