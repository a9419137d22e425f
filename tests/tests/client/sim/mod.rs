//! All on the simulated network.

mod data;
mod lies;
mod names;
mod recovery;
mod restart;
mod terms;
