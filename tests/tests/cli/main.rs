//! The `dafs` command against `dafs-server`: both as programs, as a user runs them.
#![allow(clippy::unwrap_used, reason = "a test that cannot go on has failed")]

mod commands;
mod copy;
mod errors;
mod full;
mod programs;
mod trees;
