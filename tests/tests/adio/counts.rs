//! How many requests and registrations it takes.

use dafs_client::Direction;
use dafs_tests::harness::{Harness, On};
use dafs_tests::on_sockets;
use dafs_tests::suite::bytes;

use crate::support::{counter, name, open, requests, run, segment};

on_sockets! {
    requests_of_each_method_are_as_few_as_it_says,
    close_commits_what_was_written_once,
}

// [MPI-11]
fn requests_of_each_method_are_as_few_as_it_says(on: On) {
    let harness = Harness::start(on);
    let session = harness.session();
    let mut data = bytes(1, 2048 * 100);
    for (hints, expected) in [
        (vec![("dafs_method", "multiple")], 2048),
        (vec![("dafs_method", "list"), ("dafs_list_max", "128")], 16),
        (vec![("dafs_method", "list"), ("dafs_list_max", "127")], 17),
        (vec![("dafs_method", "sieve"), ("ind_wr_buffer_size", "1000000")], 6),
    ] {
        let file = open(&name(&harness, on, "f"), &hints);
        let list: Vec<_> = data.chunks_mut(100).zip(0..).map(|(c, row)| segment(c, row * 1000)).collect();
        let asked = ["Read", "Write", "ReadList", "WriteList"];
        let before = requests(&session, &asked);
        assert_eq!(run(&file, Direction::Write, &list).unwrap(), 204_800);
        if hints.iter().all(|(_, value)| *value != "sieve") {
            assert_eq!(requests(&session, &asked) - before, expected, "{hints:?}");
        }
        // A window is read and written.
        assert_eq!(counter(&file, "calls"), expected, "{hints:?}");
    }
}

// [MPI-30]
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
