//! What several providers need.

mod heap;
mod regions;

pub use heap::{allocate_heap, refuse_faulting};
pub use regions::{RegionAccess, RegionTable};
