//! A cluster on virtual time: several real servers of one directory, with a store and a network that fail as a seed says. Servers are
//! processes whose threads run one at a time.

mod disk;
mod faults;
mod host;
mod place;
mod store;
mod threads;
mod world;

pub use faults::{Fault, Faults};
pub use store::StorePlan;
pub use world::{ClientsPlace, ClusterPlan, ClusterWorld, Counts};
