//! What several providers need.

mod heap;
#[cfg(any(feature = "tcp", feature = "verbs"))]
mod hello;
mod home;
mod regions;

pub use heap::{allocate_heap, refuse_faulting};
#[cfg(any(feature = "tcp", feature = "verbs"))]
pub use hello::{DEPTH_MAX, HELLO_SIZE, Hello, PAYLOAD_MAX};
pub use home::Home;
pub use regions::{RegionAccess, RegionTable};
