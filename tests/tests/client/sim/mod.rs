//! All on the simulated network.

mod data;
mod lies;
mod locks;
mod names;
mod recovery;
mod restart;
mod terms;
