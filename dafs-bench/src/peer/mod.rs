//! Other systems, run beside dafs on the same machine.

mod ganesha;
mod libnfs;
pub mod mount;
pub mod nfs;
pub mod perftest;
