//! A world on virtual time.

mod oracle;
pub(crate) mod serve;
mod storage;
mod world;

pub use oracle::{BlockOracle, Record, RecordOracle};
pub use storage::SharedStorage;
pub use world::{SimClock, World, WorldPlan};
