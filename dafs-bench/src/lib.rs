//! Benchmarks of dafs, each beside the raw limit of the machine taken in the same run, and beside peers.
//!
//! A figure in microseconds says little about a file server: the machine, its load and the hour move it. So every
//! row that this crate prints carries a *limit*, the same work done by the barest program that can do it (a shared
//! ring, a socket, a local `pread`), taken in alternation with the subject, and the ratio of the two.
//!
//! The parts, and what they may know of each other:
//! - [`workload`]: what is run, one file a benchmark; it knows subjects and limits, and no report;
//! - [`subject`]: dafs itself, seen as something that reads and writes one file; [`peer`]: other systems, the same;
//! - [`limit`]: the raw programs;
//! - [`mpi`]: MPI programs of our own, compiled and run;
//! - [`report`]: table, JSON and plots of a [`record::Outcome`]; it knows no workload;
//! - [`record`]: the data that passes from the one to the other.
//!
//! It deliberately has no timing thresholds: it measures, and leaves the judgement to the reader.
#![deny(unsafe_code)]

mod check;
pub mod cli;
pub mod clock;
pub mod interrupt;
pub mod limit;
pub mod line;
pub mod links;
pub mod load;
pub mod machine;
pub mod mpi;
pub mod peer;
pub mod plan;
pub mod progress;
pub mod rdma;
pub mod record;
pub mod report;
pub mod run;
pub mod stats;
pub mod subject;
pub mod sys;
pub mod workload;
