//! Batches: many independent operations in one request, and the result of each.

use std::io::{IoSlice, IoSliceMut};
use std::time::Duration;

use dafs_client::{
    BatchHints, Error, Extent, File, IoBuffer, OpenOptions, PendingBatch, RegisteredBuf, Session, Stability,
    Status,
};
use dafs_proto::wire::BATCH_MAX;
use dafs_tests::harness::{Harness, On};
use dafs_tests::on_each_provider;
use dafs_tests::suite::{EXPORTS, Numbers, assert_invalid, assert_same, bytes};

on_each_provider! {
    batch_of_any_operations_moves_what_single_ones_do,
    batch_on_several_files_answers_each_operation_by_itself,
    batch_of_more_than_a_request_carries_is_cut,
    batch_that_cannot_be_is_refused_before_it_is_sent,
    batch_tells_of_every_operation_once_before_it_ends,
    batch_that_is_dropped_runs_on_and_the_session_goes_on,
    batch_of_128_operations_is_one_request,
}

const SIZE: usize = 60_000;

fn file(session: &Session, export: &str, name: &str) -> File {
    let root = session.mount(export).unwrap();
    let file =
        root.open_with(name, OpenOptions::new().read(true).write(true).create(true).truncate(true)).unwrap();
    file.write_all_at(&bytes(name.len() as u64, SIZE), 0).unwrap();
    file
}

/// Takes what a batch tells until it has told all.
pub(super) fn tell_all<B: IoBuffer>(pending: &mut PendingBatch<B>) -> Vec<usize> {
    let mut told = Vec::new();
    loop {
        match pending.wait_some() {
            some if some.is_empty() => return told,
            some => told.extend(some),
        }
    }
}

/// Requests of this kind that the server has answered.
pub(super) fn batches(session: &Session) -> u64 {
    let operations = session.statistics().unwrap().operations;
    operations.iter().find(|(name, _)| name == "Batch").map_or(0, |(_, count)| *count)
}

/// One operation of a random batch: which file, where, how long, in how many extents.
struct Case {
    file: usize,
    write: bool,
    extents: Vec<Extent>,
    cut: usize,
    registered: bool,
}

impl Case {
    fn len(&self) -> usize {
        self.extents.iter().map(|extent| extent.len as usize).sum()
    }
}

/// Random operations of which no two touch the same bytes.
fn cases(numbers: &mut Numbers, files: usize) -> Vec<Case> {
    let mut cases = Vec::new();
    for file in 0..files {
        let mut at = numbers.below(50);
        while at < SIZE as u64 + 2000 && cases.len() < 300 {
            let mut extents = Vec::new();
            for _ in 0..=numbers.below(4) {
                let len = [numbers.below(20), numbers.below(3000), 0][numbers.below(3) as usize];
                extents.push(Extent::new(at, len));
                at += len + numbers.below(100);
            }
            if numbers.below(3) == 0 {
                extents.reverse();
            }
            let cut = numbers.below(2000) as usize;
            cases.push(Case {
                file,
                write: numbers.below(2) == 0,
                extents,
                cut,
                registered: numbers.below(3) == 0,
            });
            at += numbers.below(2000);
        }
    }
    cases
}

// [BATCH-4] [BATCH-5]: against single operations on a copy.
fn batch_of_any_operations_moves_what_single_ones_do(on: On) {
    let harness = Harness::start(on);
    let session = harness.session();
    let mut numbers = Numbers::new(77);
    for export in EXPORTS {
        for round in 0..on.rounds(12) {
            let names = ["a", "bb", "ccc"];
            let files = names.map(|name| file(&session, export, name));
            let copies = names.map(|name| file(&session, export, &format!("copy-{name}")));
            for (file, copy) in files.iter().zip(&copies) {
                let mut data = vec![0; SIZE];
                file.read_exact_at(&mut data, 0).unwrap();
                copy.write_all_at(&data, 0).unwrap();
            }
            let cases = cases(&mut numbers, files.len());
            let mut memory: Vec<Vec<u8>> = cases.iter().map(|case| bytes(round + 5, case.len())).collect();
            let mut expected = memory.clone();
            let outcomes = run(&session, &files, &cases, &mut memory);
            for (place, (case, memory)) in cases.iter().zip(&mut expected).enumerate() {
                let cut = case.cut.min(memory.len());
                let (first, second) = memory.split_at_mut(cut);
                let outcome = outcomes[place].as_ref().unwrap();
                if case.write {
                    let parts = [IoSlice::new(first), IoSlice::new(second)];
                    assert_eq!(outcome.count, copies[case.file].write_list(&case.extents, &parts).unwrap());
                } else {
                    let mut parts = [IoSliceMut::new(first), IoSliceMut::new(second)];
                    let read = copies[case.file].read_list(&case.extents, &mut parts).unwrap();
                    assert_eq!(outcome.count, read.count, "operation {place}");
                    assert_eq!(outcome.end.is_some(), read.end.is_some(), "operation {place}");
                }
            }
            for (place, (memory, expected)) in memory.iter().zip(&expected).enumerate() {
                let count = outcomes[place].as_ref().unwrap().count;
                assert_same(&memory[..count], &expected[..count], &format!("operation {place}"));
            }
            for (file, copy) in files.iter().zip(&copies) {
                let size = file.metadata().unwrap().size;
                assert_eq!(size, copy.metadata().unwrap().size);
                let (mut found, mut wanted) = (vec![0; size as usize], vec![0; size as usize]);
                file.read_exact_at(&mut found, 0).unwrap();
                copy.read_exact_at(&mut wanted, 0).unwrap();
                assert_same(&found, &wanted, "the file");
                file.commit().unwrap();
            }
        }
    }
}

/// Runs the cases as one batch, some of them from registered buffers.
fn run(
    session: &Session,
    files: &[File],
    cases: &[Case],
    memory: &mut [Vec<u8>],
) -> Vec<dafs_client::Result<dafs_client::BatchOutcome>> {
    let single = |case: &Case| case.registered && case.extents.len() == 1;
    let mut buffers: Vec<Option<RegisteredBuf>> = Vec::new();
    for (case, memory) in cases.iter().zip(&*memory) {
        buffers.push(single(case).then(|| {
            let mut buffer = session.buffer(memory.len()).unwrap();
            buffer.copy_from_slice(memory);
            buffer
        }));
    }
    let mut writes: Vec<Vec<IoSlice<'_>>> = Vec::new();
    let mut reads: Vec<Vec<IoSliceMut<'_>>> = Vec::new();
    for (case, memory) in cases.iter().zip(memory.iter_mut()) {
        let cut = case.cut.min(memory.len());
        let (first, second) = memory.split_at_mut(cut);
        match case.write {
            true => {
                writes.push(vec![IoSlice::new(first), IoSlice::new(second)]);
                reads.push(Vec::new());
            }
            false => {
                writes.push(Vec::new());
                reads.push(vec![IoSliceMut::new(first), IoSliceMut::new(second)]);
            }
        }
    }
    let mut batch = session.batch_io();
    let lent = writes.iter().zip(&mut reads).zip(&mut buffers);
    for (case, ((writes, reads), buffer)) in cases.iter().zip(lent) {
        let file = &files[case.file];
        match (buffer, case.write) {
            (Some(buffer), true) => batch.write_buf_at(file, buffer, case.extents[0].offset),
            (Some(buffer), false) => batch.read_buf_at(file, buffer, case.extents[0].offset),
            (None, true) => batch.write_list(file, &case.extents, writes),
            (None, false) => batch.read_list(file, &case.extents, reads),
        };
    }
    assert_eq!(batch.len(), cases.len());
    let outcomes = batch.run().unwrap();
    drop(batch);
    for (memory, buffer) in memory.iter_mut().zip(&buffers) {
        if let Some(buffer) = buffer {
            memory.copy_from_slice(buffer);
        }
    }
    outcomes
}

// [BATCH-4]
fn batch_on_several_files_answers_each_operation_by_itself(on: On) {
    let harness = Harness::start(on);
    let session = harness.session();
    for export in EXPORTS {
        let (first, second) = (file(&session, export, "a"), file(&session, export, "bb"));
        let root = session.mount(export).unwrap();
        let reads = root.open("a").unwrap();
        let durable =
            root.open_with("a", OpenOptions::new().write(true).stability(Stability::FileSync)).unwrap();
        let (mut head, mut tail, mut behind, mut nothing) = ([0; 700], [0; 700], [0xa5; 10], [0; 0]);
        let mut batch = session.batch_io();
        batch
            .read_at(&first, &mut head, 0)
            .write_at(&reads, b"refused", 0)
            .read_at(&second, &mut tail, SIZE as u64 - 300)
            .read_at(&second, &mut behind, 10 * SIZE as u64)
            .write_at(&second, b"written", 100)
            .write_at(&durable, b"durable", 5000)
            .read_at(&second, &mut nothing, 3);
        let outcomes = batch.run().unwrap();
        let counts: Vec<_> = outcomes.iter().map(|outcome| outcome.as_ref().ok().map(|o| o.count)).collect();
        assert_eq!(counts, [Some(700), None, Some(300), Some(0), Some(7), Some(7), Some(0)]);
        assert!(
            matches!(&outcomes[1], Err(Error::Status { status: Status::BAD_HANDLE, path, .. }) if path == b"a"),
            "{:?}",
            outcomes[1]
        );
        assert_eq!(outcomes[2].as_ref().unwrap().end, Some(SIZE as u64));
        drop(batch);
        assert_same(&head, &bytes(1, SIZE)[..700], "the first file");
        assert_same(&tail[..300], &bytes(2, SIZE)[SIZE - 300..], "the second file");
        let mut found = [0; 7];
        second.read_exact_at(&mut found, 100).unwrap();
        assert_eq!(&found, b"written");
        first.read_exact_at(&mut found, 5000).unwrap();
        assert_eq!(&found, b"durable");
    }
}

// [CLI-41] [BATCH-1] [CLI-112]
fn batch_of_more_than_a_request_carries_is_cut(on: On) {
    let harness = Harness::start_with(on, |config| config.transfer_size_max = 300_000);
    let session = harness.session();
    let f = file(&session, "mem", "f");
    for count in [BATCH_MAX - 1, BATCH_MAX, BATCH_MAX + 1, 3000] {
        let mut memory = vec![0; count * 4];
        let mut batch = session.batch_io();
        for (index, piece) in memory.chunks_mut(4).enumerate() {
            batch.read_at(&f, piece, (index * 8) as u64);
        }
        let outcomes = batch.run().unwrap();
        assert_eq!(outcomes.iter().filter(|outcome| outcome.as_ref().unwrap().count == 4).count(), count);
        drop(batch);
        let data = bytes(1, SIZE);
        let expected: Vec<u8> =
            (0..count).flat_map(|index| data[index * 8..index * 8 + 4].to_vec()).collect();
        assert_same(&memory, &expected, "four bytes of every eight");
    }
    for len in [299_999, 300_000, 300_001, 1_000_000] {
        let data = bytes(9, len);
        let mut small = [0; 9];
        let mut batch = session.batch_io();
        batch.write_at(&f, &data, 100_000).read_at(&f, &mut small, 1);
        let outcomes = batch.run().unwrap();
        assert_eq!(outcomes[0].as_ref().unwrap().count, len);
        let mut found = vec![0; len];
        f.read_exact_at(&mut found, 100_000).unwrap();
        assert_same(&found, &data, "one operation of several requests");
    }
}

// [CLI-41]
fn batch_that_cannot_be_is_refused_before_it_is_sent(on: On) {
    let harness = Harness::start(on);
    let (session, other) = (harness.session(), harness.session());
    let (f, foreign) = (file(&session, "mem", "f"), file(&other, "mem", "f"));
    let mut memory = [0; 10];
    let before = batches(&session);
    let mut batch = session.batch_io();
    batch.read_at(&foreign, &mut memory, 0);
    assert_invalid(batch.run(), "another session");
    let mut batch = session.batch_io();
    batch.write_at(&f, b"0123456789", i64::MAX as u64 - 5);
    assert_invalid(batch.run(), "beyond the end");
    let mut batch = session.batch_io();
    let slices = [IoSlice::new(b"0123456789")];
    batch.write_list(&f, &[Extent::new(0, 9)], &slices);
    assert_invalid(batch.run(), "totals must agree");
    assert_eq!(batches(&session), before, "nothing was sent");
    assert!(session.batch_io().run().unwrap().is_empty(), "a batch of nothing");
}

// [BATCH-6] [BATCH-17] [CLI-117] [CLI-118]
fn batch_tells_of_every_operation_once_before_it_ends(on: On) {
    let harness = Harness::start(on);
    let session = harness.session();
    for export in EXPORTS {
        let f = file(&session, export, "f");
        let hints = [
            None,
            Some(BatchHints { completions: 1, window: Duration::ZERO }),
            Some(BatchHints { completions: 16, window: Duration::from_secs(3600) }),
            Some(BatchHints { completions: usize::MAX, window: Duration::from_micros(1) }),
        ];
        for (round, hints) in hints.into_iter().enumerate() {
            let mut batch = session.owned_batch();
            for index in 0..200u64 {
                match index % 2 {
                    0 => batch.read_at(&f, vec![0; 100], index * 100),
                    _ => batch.write_at(&f, vec![index as u8; 100], index * 100),
                };
            }
            if round == 1 {
                batch.expedite();
            }
            let mut pending = batch.submit(hints);
            let mut told = Vec::new();
            loop {
                let some = pending.wait_some();
                if some.is_empty() {
                    break;
                }
                told.extend(some);
            }
            told.sort_unstable();
            assert_eq!(told, (0..200).collect::<Vec<_>>());
            assert!(pending.test());
            let done = pending.wait();
            assert_eq!(done.buffers.len(), 200);
            let data = bytes(1, SIZE);
            for (index, (buffer, outcome)) in done.buffers.iter().zip(done.results.unwrap()).enumerate() {
                assert_eq!(outcome.unwrap().count, 100);
                if index % 2 == 0 {
                    assert_same(buffer, &data[index * 100..][..100], "what was read");
                }
            }
        }
    }
}

// [CLI-76]
fn batch_that_is_dropped_runs_on_and_the_session_goes_on(on: On) {
    let harness = Harness::start(on);
    let session = harness.session();
    let f = file(&session, "mem", "f");
    for _ in 0..20 {
        let mut batch = session.owned_batch();
        for index in 0..64u64 {
            let mut buffer = session.buffer(500).unwrap();
            buffer.fill(index as u8);
            batch.write_at(&f, buffer, index * 500);
        }
        drop(batch.submit(Some(BatchHints { completions: 1, window: Duration::ZERO })));
        let mut ordinary = session.owned_batch();
        for index in 0..64u64 {
            ordinary.read_at(&f, vec![0; 300], index * 500);
        }
        drop(ordinary.submit(None));
    }
    session.probe().unwrap();
    // Each was sent before, and executed by the time that a later one is answered.
    let mut batch = session.owned_batch::<Vec<u8>>();
    batch.read_at(&f, vec![0; 500], 63 * 500);
    let done = batch.submit(None).wait();
    assert_eq!(done.results.unwrap()[0].as_ref().unwrap().count, 500);
}

// [BATCH-1]
fn batch_of_128_operations_is_one_request(on: On) {
    let harness = Harness::start(on);
    let session = harness.session();
    let f = file(&session, "mem", "f");
    let before = batches(&session);
    let mut memory = vec![0; 128 * 64];
    let mut batch = session.batch_io();
    memory.chunks_mut(64).enumerate().for_each(|(index, piece)| {
        batch.read_at(&f, piece, index as u64 * 128);
    });
    batch.run().unwrap();
    drop(batch);
    assert_eq!(batches(&session) - before, 1);
}
