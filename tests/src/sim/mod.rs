//! A world on virtual time.

pub mod cluster;
mod oracle;
mod script;
mod scripted;
pub(crate) mod serve;
mod storage;
mod windows;
mod world;

pub use oracle::{BlockOracle, ConcurrentOracle, Record, RecordOracle};
pub use script::{Action, Greeting, Script};
pub use scripted::ScriptedWorld;
pub use storage::SharedStorage;
pub use world::{PORT, SimClock, World, WorldPlan};
