//! Ranks and servers that die, counts of opens: what a program cannot see of itself.

use dafs_tests::harness::{Harness, On};
use dafs_tests::mpi::{Run, Way};

use crate::on_each_way;
use crate::programs::file;

on_each_way! {
    file_is_opened_once_by_any_number_of_ranks,
}

// [MPI-4]
fn file_is_opened_once_by_any_number_of_ranks(way: Way, on: On) {
    let harness = Harness::start(on);
    let session = harness.session();
    let opens = || {
        let operations = session.statistics().unwrap().operations;
        operations.iter().find(|(name, _)| name == "Open").map_or(0, |(_, count)| *count)
    };
    let case = "equal";
    let before = opens();
    Run::new(way, 4, "collective").arg(case).arg(file(&harness, on)).run().passed();
    let by_four = opens() - before;
    let before = opens();
    Run::new(way, 1, "collective").arg(case).arg(file(&harness, on)).run().passed();
    assert_eq!(by_four, opens() - before);
}
