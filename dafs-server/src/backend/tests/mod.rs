//! One suite of semantics for every backend and engine.

mod harness;
mod semantics;
