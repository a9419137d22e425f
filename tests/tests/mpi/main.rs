//! MPI programs, unchanged, over dafs: both ways into Open MPI, on tcp and shm, by content.
#![allow(clippy::unwrap_used, clippy::expect_used, reason = "all of this is test code, helpers included")]

mod ends;
mod programs;

/// Declares functions of a way and a provider as tests in `WAY::PROVIDER`.
macro_rules! on_each_way {
    ($($name:ident),* $(,)?) => {
        mod ompio {
            mod tcp {
                $(#[test] #[ignore = "needs open-mpi"] fn $name() { super::super::$name(dafs_tests::mpi::Way::Ompio, dafs_tests::harness::On::Tcp); })*
            }
            mod shm {
                $(#[test] #[ignore = "needs open-mpi"] fn $name() { super::super::$name(dafs_tests::mpi::Way::Ompio, dafs_tests::harness::On::Shm); })*
            }
        }
        mod romio {
            mod tcp {
                $(#[test] #[ignore = "needs open-mpi"] fn $name() { super::super::$name(dafs_tests::mpi::Way::Romio, dafs_tests::harness::On::Tcp); })*
            }
            mod shm {
                $(#[test] #[ignore = "needs open-mpi"] fn $name() { super::super::$name(dafs_tests::mpi::Way::Romio, dafs_tests::harness::On::Shm); })*
            }
        }
    };
}
use on_each_way;
