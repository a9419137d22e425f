//! MPI programs of our own under `mpirun`: compiled, started, and told what to do.
//!
//! [`Kit`] is what a run needs; a [`Job`] is one `mpirun` that carries out [`Command`]s until it is dropped. Knows no benchmark.

mod command;
mod job;
mod kit;

pub use command::{Command, Reply, Step};
pub use job::{Job, Setup};
pub use kit::Kit;
