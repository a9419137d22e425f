//! One suite of semantics for every backend and engine.
#![allow(clippy::cast_possible_truncation, reason = "patterns of bytes, and sizes that are small")]

mod bounded;
mod confinement;
mod descriptors;
mod direct;
mod durable;
mod generated;
mod harness;
mod hints;
mod hot;
mod leases;
mod loops;
mod model;
mod promises;
mod reading;
mod ring;
mod semantics;
mod sieve;
mod sieve_steps;
mod users;
