//! The programs of `tests/mpi`, each verified by content, on one to four ranks.

use dafs_tests::harness::{Harness, On};
use dafs_tests::mpi::{Run, Way};

use crate::on_each_way;

on_each_way! {
    views,
    positions,
    random,
    contiguous,
    collective,
    nonblocking,
    shared,
    errors,
    atomic,
    datarep,
    hints,
    ranks,
    threads,
}

/// The name of a file on the server, as a program gives it.
pub(crate) fn file(harness: &Harness, on: On) -> String {
    match on {
        On::Shm => format!("{}:/data/f", harness.url()),
        _ => format!("{}/data/f", harness.url()),
    }
}

/// All cases of a program but some. Each provider takes two of the numbers of ranks; together they take all.
fn all_cases(way: Way, on: On, program: &str, but: &[&str]) {
    let harness = Harness::start(on);
    let ranks = if on == On::Tcp { [1, 4] } else { [2, 3] };
    for ranks in ranks {
        let run = Run::new(way, ranks, program).arg("all").arg(file(&harness, on)).arg("--expect-dafs");
        let run = if but.is_empty() { run } else { run.arg("--except").arg(but.join(",")) };
        run.run().passed();
        // What a case made it took away again.
        let left = std::fs::read_dir(harness.data()).unwrap().count();
        assert_eq!(left, 0, "{program} left files behind");
    }
}

fn views(way: Way, on: On) {
    all_cases(way, on, "views", &[]);
}

fn positions(way: Way, on: On) {
    all_cases(way, on, "positions", &[]);
}

fn random(way: Way, on: On) {
    all_cases(way, on, "random", &[]);
}

fn contiguous(way: Way, on: On) {
    all_cases(way, on, "contiguous", &[]);
}

fn collective(way: Way, on: On) {
    all_cases(way, on, "collective", &[]);
}

fn nonblocking(way: Way, on: On) {
    all_cases(way, on, "nonblocking", &[]);
}

// [MPI-41]
fn shared(way: Way, on: On) {
    all_cases(way, on, "shared", &[]);
}

// [MPI-7]
fn errors(way: Way, on: On) {
    all_cases(way, on, "errors", &[]);
}

// [MPI-40]
fn atomic(way: Way, on: On) {
    all_cases(way, on, "atomic", &[]);
}

fn datarep(way: Way, on: On) {
    all_cases(way, on, "datarep", &[]);
}

// [MPI-20] [MPI-51]
fn hints(way: Way, on: On) {
    all_cases(way, on, "hints", &[]);
}

fn ranks(way: Way, on: On) {
    all_cases(way, on, "ranks", &[]);
}

fn threads(way: Way, on: On) {
    all_cases(way, on, "threads", &[]);
}
