//! Which operations go together, and what each has of what all had.
#![allow(clippy::unwrap_used, reason = "tests")]
use dafs_proto::extent::Extent;
use dafs_proto::wire::{FileHandle, Method, Stability};

use super::*;

fn operation(handle: u64, write: bool, offset: u64, len: u64) -> BatchOperation {
    let lists = Lists { extents: vec![Extent::new(offset, len)], segments: vec![[1, offset, len]] };
    let stability = Stability::Unstable;
    let (handle, method) = (FileHandle(handle), Method::Direct);
    BatchOperation { handle, write, method, stability, lists: lists.into() }
}

fn batch(operations: Vec<BatchOperation>) -> Batch {
    Batch::new(operations, &BatchRequest::default())
}

fn groups(mut batch: Batch) -> Vec<u32> {
    std::iter::from_fn(|| batch.begin_next()).map(|(_, count)| count).collect()
}

/// Begins all of a batch that is one group and ends it so.
fn end_all(batch: &mut Batch, result: BatchResult) -> Vec<Option<BatchResult>> {
    let (index, count) = batch.begin_next().unwrap();
    assert_eq!((index, count as usize), (0, batch.operations.len()));
    batch.running -= 1;
    let place = BatchPlace { batch: OpToken(0), index, count };
    batch.end_group(place, &result, Moment::default());
    batch.results.clone()
}

// [BATCH-5]
#[test]
fn operations_of_one_file_and_kind_go_together_up_to_each_bound() {
    let read = |handle, len| operation(handle, false, 0, len);
    assert_eq!(groups(batch(vec![read(1, 5), read(1, 6), read(2, 7), read(1, 8)])), [2, 1, 1]);
    assert_eq!(groups(batch(vec![read(1, 5), operation(1, true, 0, 5), operation(1, true, 9, 5)])), [1, 2]);
    for (len, expected) in
        [(GROUPED_LEN_MAX - 1, &[2][..]), (GROUPED_LEN_MAX, &[2]), (GROUPED_LEN_MAX + 1, &[1, 1])]
    {
        assert_eq!(groups(batch(vec![read(1, 1), read(1, len)])), expected, "{len}");
    }
    let full = (GROUP_LEN_MAX / GROUPED_LEN_MAX) as usize;
    let filled = |last| {
        let mut operations = vec![read(1, GROUPED_LEN_MAX); full - 1];
        operations.extend([read(1, GROUPED_LEN_MAX - 1), read(1, last)]);
        groups(batch(operations))
    };
    assert_eq!(filled(1), [full as u32 + 1]);
    assert_eq!(filled(2), [full as u32, 1]);
    assert!(groups(batch(Vec::new())).is_empty());
}

// [BATCH-15]
#[test]
fn no_more_operations_go_together_than_are_told_of_together() {
    for (completions, flags, expected) in [
        (2, BatchFlags::NOTIFY, &[2, 2, 1][..]),
        (0, BatchFlags::NOTIFY, &[5]),
        (4, BatchFlags::NOTIFY | BatchFlags::EXPEDITE, &[1, 1, 1, 1, 1]),
    ] {
        let request = BatchRequest { operations: 5, flags, window_us: 0, completions, data: 0 };
        let operations = (0..5).map(|at| operation(1, false, 10 * at, 5)).collect();
        assert_eq!(groups(Batch::new(operations, &request)), expected, "{completions} {flags:?}");
    }
}

// [BATCH-3]
#[test]
fn joined_reads_each_end_at_the_end_of_file() {
    let mut batch = batch((0..4).map(|at| operation(1, false, 10 * at, 10)).collect());
    let ended = BatchResult { status: Status::OK, count: 25, value: 25 };
    let found = end_all(&mut batch, ended);
    let found: Vec<_> = found.into_iter().map(|result| result.map(|r| (r.count, r.value))).collect();
    let not = BatchResult::NOT_ENDED;
    assert_eq!(found, [Some((10, not)), Some((10, not)), Some((5, 25)), Some((0, 25))]);
    assert!(batch.is_done());
}

// [BATCH-13]
#[test]
fn what_is_not_as_it_should_be_is_tried_again_alone() {
    let operations = || (0..4).map(|at| operation(1, true, 10 * at, 10)).collect::<Vec<_>>();
    let mut stopped = batch(operations());
    let found = end_all(&mut stopped, BatchResult { status: Status::OK, count: 25, value: 7 });
    let whole = Some(BatchResult { status: Status::OK, count: 10, value: 7 });
    assert_eq!(found, [whole, whole, None, None]);
    let mut failed = batch(operations());
    assert_eq!(end_all(&mut failed, BatchResult::failed(Status::NO_SPACE)), [None; 4]);
    for (mut batch, alone) in [(stopped, vec![2, 3]), (failed, vec![0, 1, 2, 3])] {
        assert!(!batch.is_done());
        let mut again: Vec<_> = std::iter::from_fn(|| batch.begin_next()).collect();
        again.sort_unstable();
        assert_eq!(again, alone.into_iter().map(|index| (index, 1)).collect::<Vec<_>>());
    }
}

fn inline(write: bool, offset: u64, len: u64) -> BatchOperation {
    let direct = operation(1, write, offset, len);
    let lists = Lists { extents: direct.lists.extents.to_vec(), segments: Vec::new() };
    BatchOperation { method: Method::Inline, lists: lists.into(), ..direct }
}

// [BATCH-5]
#[test]
fn operations_of_different_methods_or_done_are_not_joined() {
    let operations =
        || vec![inline(false, 0, 5), inline(false, 9, 5), operation(1, false, 20, 5), inline(false, 30, 5)];
    assert_eq!(groups(batch(operations())), [2, 1, 1]);
    let mut some = batch(operations());
    let done = BatchResult { status: Status::OK, count: 5, value: BatchResult::NOT_ENDED };
    some.end(0, done, Moment::default());
    some.end(2, done, Moment::default());
    assert_eq!(std::iter::from_fn(|| some.begin_next()).collect::<Vec<_>>(), [(1, 1), (3, 1)]);
}

// [BATCH-10] [BATCH-11]
#[test]
fn inline_operations_have_places_and_reads_are_joined() {
    let operations = [
        inline(true, 0, 3),
        inline(false, 0, 4),
        operation(1, true, 0, 9),
        inline(true, 7, 2),
        inline(false, 8, 5),
    ];
    let data = InlineData::new(&operations).unwrap();
    let of = |index, len| data.of(BatchPlace { batch: OpToken(0), index, count: 1 }, len).unwrap();
    for (index, bytes) in [(0, &b"one"[..]), (1, b"read"), (3, b"tw"), (4, b"ended")] {
        of(index, bytes.len()).span().write_from(0, bytes);
    }
    assert!(data.of(BatchPlace { batch: OpToken(0), index: 4, count: 1 }, 6).is_none());
    assert_eq!(of(0, 3).span().to_vec(), b"one");
    assert_eq!(of(0, 5).span().to_vec(), b"onetw", "neighbours of one kind are contiguous");
    let ok = |count, value| BatchResult { status: Status::OK, count, value };
    let whole = BatchResult::NOT_ENDED;
    for (first, second, expected) in [
        (ok(4, whole), ok(5, whole), &b"readended"[..]),
        (ok(4, whole), ok(3, 11), b"readend"),
        (BatchResult::failed(Status::IO), ok(0, 8), b""),
    ] {
        let results = [ok(3, 1), first, ok(9, 1), ok(2, 1), second];
        assert_eq!(data.pack(&operations, &results).to_vec(), expected);
    }
    let results = [ok(3, 1), ok(2, 2), ok(9, 1), ok(2, 1), ok(5, whole)];
    assert_eq!(data.pack(&operations, &results).to_vec()[..2], b"re"[..]);
}

// [BATCH-20] [STOR-77]
#[test]
fn empty_write_of_an_unwritten_group_is_executed_again() {
    for (written, first) in [(None, None), (Some(Effect::Bytes(10, Verifier(7))), Some(7))] {
        let mut batch = batch(vec![operation(1, true, 0, 0), operation(1, true, 20, 10)]);
        let (index, count) = batch.begin_next().unwrap();
        assert_eq!((index, count), (0, 2));
        batch.running -= 1;
        let place = BatchPlace { batch: OpToken(0), index, count };
        batch.end_in_part(place, written, Moment::default());
        assert_eq!(batch.results[0].map(|result| result.value), first);
        let again = std::iter::from_fn(|| batch.begin_next()).count();
        assert_eq!(again, if first.is_some() { 0 } else { 2 });
    }
}

// [BATCH-20] [BATCH-22]
#[test]
fn group_cut_off_does_not_rewrite_what_was_written() {
    let of = |stability| {
        let mut operations: Vec<_> = (0..4).map(|index| operation(1, true, 20 * index, 10)).collect();
        operations.iter_mut().for_each(|operation| operation.stability = stability);
        let mut batch = batch(operations);
        let (index, count) = batch.begin_next().unwrap();
        assert_eq!((index, count), (0, 4));
        batch.running -= 1;
        let place = BatchPlace { batch: OpToken(0), index, count };
        batch.end_in_part(place, Some(Effect::Bytes(25, Verifier(7))), Moment::default());
        batch
    };
    let ended = PartEffect::Ended(BatchResult { status: Status::OK, count: 10, value: 7 });
    let [whole, half] = [10, 5].map(|count| PartEffect::Bytes(count, Verifier(7)));
    for (stability, first) in
        [(Stability::Unstable, ended), (Stability::DataSync, whole), (Stability::FileSync, whole)]
    {
        let Some(Effect::Batch(effects)) = of(stability).effect() else { panic!("something is written") };
        assert_eq!(*effects, [Some(first), Some(first), Some(half), None], "{stability:?}");
        // Executed again from what is kept of it, or from what it still has itself.
        let mut resumed = batch(of(stability).operations);
        let kept = effects.into_iter().enumerate();
        kept.for_each(|(index, effect)| {
            effect.into_iter().for_each(|e| resumed.resume(index, e, Moment::default()))
        });
        for mut batch in [resumed, of(stability)] {
            let mut places = Vec::new();
            while let Some((index, count)) = batch.begin_next() {
                let place = BatchPlace { batch: OpToken(0), index, count };
                assert_eq!(count, 1, "each on its own");
                places.push((index, batch.take_written(place, Verifier(7))));
            }
            places.sort_unstable();
            let left = [(0, 10), (1, 10), (2, 5), (3, 0)];
            let from = if stability == Stability::Unstable { 2 } else { 0 };
            assert_eq!(places, left[from..], "{stability:?}");
        }
        let mut lost = of(stability);
        let place = BatchPlace { batch: OpToken(0), index: 2, count: 1 };
        assert_eq!(lost.take_written(place, Verifier(8)), 0, "it may be lost");
    }
}

// [BATCH-6] [BATCH-19] What was to be told is of the connection that broke.
#[test]
fn batch_whose_connection_broke_owes_no_notice_of_what_ended_before() {
    let now = Moment::default();
    let request =
        BatchRequest { operations: 4, flags: BatchFlags::NOTIFY, window_us: 0, completions: 2, data: 0 };
    let operations = (0..4).map(|at| operation(at, at % 2 == 0, 0, 5)).collect();
    let mut batch = Batch::new(operations, &request);
    for index in 0..2 {
        assert_eq!(batch.begin_next(), Some((index, 1)));
        batch.running -= 1;
        batch.end(index as usize, BatchResult { status: Status::OK, count: 5, value: 0 }, now);
    }
    assert!(batch.is_due(now));
    batch.on_disconnected();
    assert!(!batch.is_due(now) && batch.untold.is_empty());
    assert_eq!(batch.window_end(), None);
    assert_eq!(batch.begin_next(), Some((1, 1)), "the read, whose data may not have arrived");
}
