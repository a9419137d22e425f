//! All on the simulated network.

mod cluster;
mod data;
mod lies;
mod locks;
mod names;
mod recovery;
mod restart;
mod terms;
