//! What several providers need.

#[cfg(any(feature = "tcp", feature = "verbs"))]
mod deadline;
mod heap;
#[cfg(any(feature = "tcp", feature = "verbs"))]
mod hello;
mod home;
mod regions;

#[cfg(any(feature = "tcp", feature = "verbs"))]
pub use deadline::deadline_after;
pub use heap::{allocate_heap, refuse_faulting};
#[cfg(any(feature = "tcp", feature = "verbs"))]
pub use hello::{DEPTH_MAX, HELLO_SIZE, Hello, PAYLOAD_MAX};
pub use home::Home;
pub use regions::{RegionAccess, RegionTable};
