//! What several providers need.

#[cfg(any(feature = "tcp", feature = "shm"))]
mod again;
#[cfg(any(feature = "tcp", feature = "shm"))]
mod cpu;
mod crowd;
#[cfg(any(feature = "tcp", feature = "verbs"))]
mod deadline;
#[cfg(any(feature = "shm", feature = "verbs"))]
mod fault;
mod heap;
#[cfg(any(feature = "tcp", feature = "verbs"))]
mod hello;
mod home;
mod lock;
#[cfg(any(feature = "tcp", feature = "shm", feature = "verbs"))]
mod poll;
mod post;
mod random;
mod regions;
#[cfg(test)]
pub mod vectors;

#[cfg(any(feature = "tcp", feature = "shm"))]
pub use again::connect_again;
#[cfg(any(feature = "tcp", feature = "shm"))]
pub use cpu::current_cpu;
pub use crowd::{Waiting, gives_way, time_until_one_gives_way};
#[cfg(any(feature = "tcp", feature = "verbs"))]
pub use deadline::deadline_after;
#[cfg(any(feature = "shm", feature = "verbs"))]
pub use fault::copy_through_kernel;
pub use heap::{allocate_heap, refuse_faulting};
#[cfg(any(feature = "tcp", feature = "verbs"))]
pub use hello::{DEPTH_MAX, HELLO_SIZE, Hello, PAYLOAD_MAX, socket_address};
pub use home::Home;
pub use lock::lock;
#[cfg(any(feature = "tcp", feature = "shm", feature = "verbs"))]
pub use poll::poll;
pub use post::{check_destination, check_message, check_rdma};
pub use random::RandomNumbers;
pub use regions::{RegionAccess, RegionTable};
