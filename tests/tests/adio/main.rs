//! The driver below MPI libraries, without one: files that several processes would open, transfers in every method and memory mode, counts.
#![allow(clippy::cast_possible_truncation, reason = "sizes and patterns that the tests choose")]
#![allow(clippy::unwrap_used, clippy::expect_used, reason = "all of this is test code, helpers included")]

mod atomic;
mod c_interface;
mod counts;
mod opening;
mod pointer;
mod reasons;
mod striped;
mod support;
mod transfers;
