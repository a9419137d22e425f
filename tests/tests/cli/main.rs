//! The `dafs` command against `dafs-server`: both as programs, as a user runs them.
#![allow(clippy::cast_possible_truncation, reason = "sizes that the tests choose")]
#![allow(clippy::unwrap_used, reason = "a test that cannot go on has failed")]

mod closing;
mod commands;
mod copy;
mod disk;
mod durable;
mod errors;
mod fences;
mod forbidden;
mod full;
mod given;
mod held;
mod locks;
#[cfg(feature = "verbs")]
mod memlock;
mod merged;
mod owners;
mod pages;
mod programs;
mod reload;
mod removal;
mod same;
mod sieve;
mod start;
mod stripe;
mod terminal;
mod trees;
mod whole;
mod write_back;
