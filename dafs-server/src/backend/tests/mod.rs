//! One suite of semantics for every backend and engine.

mod confinement;
mod harness;
mod promises;
mod semantics;
