//! Suites that run the whole of dafs on every provider: the real server and the real client library, in one process or as programs.
//!
//! - [`area`] is address space with holes.
//! - [`cluster`] is several servers of one directory, with their store, and how they are lost.
//! - [`differential`] has random operations, and does them on a directory, beside which other ways are put.
//! - [`datatypes`] are small datatypes of every kind.
//! - [`faulty`] is storage that fails on demand.
//! - [`forbidden`] starts programs that may not make some system calls, or with signals blocked.
//! - [`fuzz`] takes any bytes for input: what the fuzz targets run.
//! - [`gate`] is storage that stops the server in the middle of a read.
//! - [`harness`] starts a server on a provider in a temporary directory.
//! - [`locking_process`] has a lock that the server did not give.
//! - [`cut`] breaks connections after any byte.
//! - [`port`] keeps ports for servers that are started again.
//! - [`program`] runs the server as a process of its own.
//! - [`raw`] is a client that may break the rules of the protocol.
//! - [`silent`] takes a stopped server's place and says nothing.
//! - [`suite`] is what the suites share: one body for every provider, reproducible bytes.
//! - [`sim`] is a world on virtual time: server and clients over a simulated network with seeded faults, and an
//!   oracle that knows every acknowledged byte. In a [`sim::ScriptedWorld`] a test says what happens to which request, and what is
//!   answered in place of the truth.
#![deny(unsafe_code)]
#![allow(clippy::unwrap_used, clippy::expect_used, reason = "a failing harness is a failing test")]
#![allow(clippy::cast_possible_truncation, reason = "bytes of patterns, and sizes that the suites choose")]

pub mod area;
pub mod cluster;
pub mod cut;
pub mod datatypes;
pub mod differential;
pub mod exhausted;
pub mod faulty;
pub mod forbidden;
pub mod fuzz;
pub mod gate;
pub mod harness;
pub mod locking_process;
pub mod mpi;
pub mod port;
pub mod program;
pub mod raw;
pub mod silent;
pub mod sim;
pub mod suite;
