//! How many requests and registrations it takes.

use std::sync::Arc;

use adio_dafs::file::File;
use dafs_client::{Direction, LockKind, OpenOptions, Status};
use dafs_tests::area::Area;
use dafs_tests::faulty::{Fault, Kind};
use dafs_tests::harness::{Harness, On};
use dafs_tests::on_sockets;
use dafs_tests::suite::bytes;

use crate::support::{counter, name, open, requests, run, segment, submit};

on_sockets! {
    requests_of_each_method_are_as_few_as_it_says,
    close_commits_what_was_written_once,
    close_commits_what_a_sync_beside_it_missed,
    close_commits_what_a_resize_that_failed_may_have_changed,
    registrations_of_each_memory_mode_are_as_many_as_it_says,
    small_transfers_register_nothing_in_any_mode,
    cache_keeps_as_many_registrations_as_the_hint_says,
    registrations_that_a_file_asks_for_stay_when_another_asks_for_none,
    modes_are_measured_where_none_is_chosen,
}

// [MPI-11] [MPI-16]
fn requests_of_each_method_are_as_few_as_it_says(on: On) {
    let harness = Harness::start(on);
    let session = harness.session();
    let mut data = bytes(1, 2048 * 100);
    for (hints, expected) in [
        (vec![("dafs_method", "multiple")], 2048),
        (vec![("dafs_method", "list"), ("dafs_list_max", "128")], 16),
        (vec![("dafs_method", "list"), ("dafs_list_max", "127")], 17),
        (vec![("dafs_list_max", "128"), ("dafs_list_bounds", "true")], 17),
        (vec![("dafs_method", "sieve")], 2048),
    ] {
        let file = open(&name(&harness, on, "f"), &hints);
        let list: Vec<_> = data.chunks_mut(100).zip(0..).map(|(c, row)| segment(c, row * 1000)).collect();
        let asked = ["Read", "Write", "ReadList", "WriteList"];
        let before = requests(&session, &asked);
        assert_eq!(run(&file, Direction::Write, &list).unwrap(), 204_800);
        assert_eq!(requests(&session, &asked) - before, expected, "{hints:?}");
        assert_eq!(counter(&file, "calls"), expected, "{hints:?}");
    }
    let file = open(&name(&harness, on, "f"), &[("dafs_method", "sieve"), ("ind_rd_buffer_size", "1000000")]);
    let list: Vec<_> = data.chunks_mut(100).zip(0..).map(|(c, row)| segment(c, row * 1000)).collect();
    assert_eq!(run(&file, Direction::Read, &list).unwrap(), 204_800);
    assert_eq!(["calls", "sieve_windows"].map(|name| counter(&file, name)), [3; 2]);
}

// [MPI-30] [MPI-31]
fn close_commits_what_was_written_once(on: On) {
    let harness = Harness::start(on);
    let session = harness.session();
    let commits = || requests(&session, &["Commit"]);
    let name = name(&harness, on, "f");
    let close = |hints: &[(&str, &str)], writes: bool, syncs: bool| {
        let before = commits();
        let file = open(&name, hints);
        if writes {
            run(&file, Direction::Write, &[segment(&mut [1; 10], 0)]).unwrap();
        }
        if syncs {
            file.sync().unwrap();
        }
        file.finish().unwrap();
        commits() - before
    };
    assert_eq!(close(&[], true, false), 1);
    assert_eq!(close(&[], true, true), 1);
    assert_eq!(close(&[], false, false), 0);
    assert_eq!(close(&[("dafs_commit_on_close", "false")], true, false), 0);
}

// [MPI-31]
fn close_commits_what_a_sync_beside_it_missed(on: On) {
    let harness = Harness::start(on);
    let session = harness.session();
    let commits = || requests(&session, &["Commit"]);
    let name = name(&harness, on, "f");
    // More requests than are under way at a time; and one that waits for a lock.
    for atomic in [false, true] {
        let file = open(&name, &[("dafs_method", "multiple")]);
        file.set_atomic(atomic).unwrap();
        let other = session.mount("data").unwrap();
        let other = other.open_with("f", OpenOptions::new().read(true).write(true)).unwrap();
        let lock = other.hold(0..1, LockKind::Exclusive).unwrap();
        let mut data = bytes(1, 200);
        let list: Vec<_> = data.chunks_mut(1).zip(0..).map(|(c, row)| segment(c, row * 2)).collect();
        let before = commits();
        let mut request = submit(&file, Direction::Write, &list).unwrap();
        file.sync().unwrap();
        lock.unlock().unwrap();
        request.wait();
        request.outcome().1.unwrap();
        file.finish().unwrap();
        assert_eq!(commits() - before, 2, "atomic mode: {atomic}");
    }
}

// [MPI-31]
fn close_commits_what_a_resize_that_failed_may_have_changed(on: On) {
    let (harness, faults) = Harness::start_faulty(on, |_| {});
    let session = harness.session();
    let file = open(&name(&harness, on, "f"), &[]);
    faults.next(Kind::Other, Fault::Fail(Status::IO), 1);
    assert!(file.resize(10).is_err());
    file.finish().unwrap();
    assert_eq!(requests(&session, &["Commit"]), 1);
}

const MODES: [&str; 4] = ["auto", "adio", "adio_cache", "dafs"];

/// Above all thresholds, and whole pages.
const LARGE: usize = 1 << 20;

/// A file to be read: over tcp large writes go in messages, and need no memory registered.
fn of_one_mib(harness: &Harness, on: On, hints: &[(&str, &str)]) -> Arc<File> {
    std::fs::write(harness.data().join("f"), bytes(1, LARGE)).unwrap();
    open(&name(harness, on, "f"), hints)
}

// [MPI-20]
fn registrations_of_each_memory_mode_are_as_many_as_it_says(on: On) {
    let harness = Harness::start(on);
    let file = of_one_mib(&harness, on, &[]);
    // No memory of the allocator's: the session of another test could have that watched, and the kernel tells one of them only.
    let area = Area::new(LARGE);
    let counts = |mode: &str| {
        file.take_hints([("dafs_memory", mode)]);
        let count = || {
            [counter(&file, "registrations"), counter(&file, "cache_hits"), counter(&file, "cache_misses")]
        };
        let before = count();
        for _ in 0..10 {
            assert_eq!(
                run(&file, Direction::Read, &[segment(area.bytes(0, LARGE), 0)]).unwrap(),
                LARGE as u64
            );
        }
        std::array::from_fn::<u64, 3, _>(|place| count()[place] - before[place])
    };
    assert_eq!(counts("adio"), [10, 0, 0]);
    assert_eq!(counts("adio_cache"), [1, 9, 1]);
    // In the middle of everything, and back.
    assert_eq!(counts("adio"), [10, 0, 0]);
    assert_eq!(counts("adio_cache"), [0, 10, 0]);
    assert_eq!([counter(&file, "mode_adio"), counter(&file, "mode_adio_cache")], [20, 20]);
}

// [MPI-21]
fn small_transfers_register_nothing_in_any_mode(on: On) {
    let harness = Harness::start(on);
    for mode in MODES {
        let file = open(&name(&harness, on, "f"), &[("dafs_memory", mode)]);
        for len in [1, 64, 100] {
            let mut data = bytes(1, len);
            run(&file, Direction::Write, &[segment(&mut data, 0)]).unwrap();
            run(&file, Direction::Read, &[segment(&mut data, 0)]).unwrap();
        }
        let counts =
            [counter(&file, "registrations"), counter(&file, "cache_hits"), counter(&file, "cache_misses")];
        assert_eq!(counts, [0; 3], "{mode}");
    }
}

// [MPI-22]
fn cache_keeps_as_many_registrations_as_the_hint_says(on: On) {
    let harness = Harness::start(on);
    let hints = [("dafs_memory", "adio_cache"), ("dafs_cache_entries", "20")];
    let file = of_one_mib(&harness, on, &hints);
    let area = Area::new(21 * LARGE);
    let round = |count: usize| {
        let before = counter(&file, "cache_hits");
        for buffer in 0..count {
            let buffer = area.bytes(buffer * LARGE, LARGE);
            run(&file, Direction::Read, &[segment(buffer, 0)]).unwrap();
        }
        counter(&file, "cache_hits") - before
    };
    assert_eq!([round(10), round(10)], [0, 10]);
    // As many as there is room for; then one more, round and round: the least recently used is always the next.
    round(20);
    assert_eq!(round(20), 20);
    round(21);
    assert!(round(21) < 21);
    assert!(counter(&file, "cache_evictions") > 0);
    file.take_hints([("dafs_cache_entries", "0")]);
    assert_eq!([round(5), round(5)], [0, 0]);
}

// [MPI-22] [MPI-52]
fn registrations_that_a_file_asks_for_stay_when_another_asks_for_none(on: On) {
    let harness = Harness::start(on);
    let shown = |file: &File| {
        let hints = file.shown_hints();
        hints.into_iter().find(|(key, _)| key == "dafs_cache_entries").unwrap().1
    };
    let first = open(&name(&harness, on, "f"), &[("dafs_cache_entries", "20")]);
    let second = open(&name(&harness, on, "g"), &[]);
    assert_eq!([shown(&first), shown(&second)], ["20", "20"]);
    second.take_hints([("dafs_cache_entries", "50"), ("dafs_memory", "adio")]);
    second.take_hints([("dafs_cache_entries", "none"), ("dafs_memory", "dafs")]);
    assert_eq!([shown(&first), shown(&second)], ["50", "50"]);
    // One that a file has asked for before counts as well.
    first.take_hints([("dafs_cache_entries", "20")]);
    assert_eq!([shown(&first), shown(&second)], ["20", "20"]);
}

fn modes_are_measured_where_none_is_chosen(on: On) {
    let harness = Harness::start(on);
    let file = of_one_mib(&harness, on, &[("dafs_explain", "true")]);
    let mut data = bytes(1, LARGE);
    for _ in 0..300 {
        run(&file, Direction::Read, &[segment(&mut data, 0)]).unwrap();
    }
    let counts = ["mode_dafs", "mode_adio_cache", "mode_adio"].map(|mode| counter(&file, mode));
    assert_eq!(counts.iter().sum::<u64>(), 300);
    assert!(counts.iter().all(|count| *count >= 4), "each is tried: {counts:?}");
    let words = file.explanation(&file.counter_values()).unwrap();
    assert!(words.contains("ns a byte:") && words.contains("quickest:"), "{words}");
    // [MPI-94] It is of all modes, and told once.
    assert_eq!(words.matches("measured, read of").count(), 1, "{words}");
}

// [MPI-20] What one thread asks for is nothing to the transfer of another. Over shm a write is not registered but in its own mode.
#[test]
fn memory_is_registered_by_the_transfers_that_chose_it_and_no_others() {
    let harness = Harness::start(On::Shm);
    let file = of_one_mib(&harness, On::Shm, &[]);
    let before = counter(&file, "registrations");
    std::thread::scope(|scope| {
        for mode in ["adio", "dafs"] {
            let file = &file;
            scope.spawn(move || {
                let mut data = bytes(1, LARGE);
                for _ in 0..1000 {
                    file.take_hints([("dafs_memory", mode)]);
                    run(file, Direction::Write, &[segment(&mut data, 0)]).unwrap();
                }
            });
        }
    });
    let by_adio = counter(&file, "mode_adio");
    assert!(by_adio > 0);
    assert_eq!(counter(&file, "registrations") - before, by_adio);
}
