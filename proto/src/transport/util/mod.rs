//! What several providers need.

mod regions;

pub use regions::{RegionAccess, RegionTable};
