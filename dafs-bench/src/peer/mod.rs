//! Other systems, run beside dafs on the same machine.

pub mod nfs;
