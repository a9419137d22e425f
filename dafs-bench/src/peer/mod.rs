//! Other systems, run beside dafs on the same machine.

pub mod bare_fuse;
pub mod dafs_mount;
pub mod etcd;
mod ganesha;
mod libnfs;
pub mod mount;
pub mod nfs;
pub mod perftest;
