//! MPI programs, unchanged, over dafs: both ways into Open MPI, on tcp and shm, by content.
#![allow(clippy::unwrap_used, clippy::expect_used, reason = "all of this is test code, helpers included")]

mod clients;
mod ends;
mod programs;
mod striped;

use dafs_tests::harness::On;
use dafs_tests::mpi::Way;

/// Each way on each provider takes one number of ranks, together they take all.
pub(crate) fn ranks_of(way: Way, on: On) -> u32 {
    match (way, on) {
        (Way::Ompio, On::Tcp) => 4,
        (Way::Ompio, _) => 3,
        (Way::Romio, On::Tcp) => 1,
        (Way::Romio, _) => 2,
    }
}

/// Declares functions of a way and a provider as tests in `WAY::PROVIDER`.
macro_rules! on_each_way {
    ($($name:ident),* $(,)?) => {
        mod ompio {
            use dafs_tests::mpi::Way::Ompio as WAY;
            $crate::on_each_provider_of! { $($name),* }
        }
        mod romio {
            use dafs_tests::mpi::Way::Romio as WAY;
            $crate::on_each_provider_of! { $($name),* }
        }
    };
}
use on_each_way;

/// Of the way that `WAY` is in the module around.
macro_rules! on_each_provider_of {
    ($($name:ident),*) => {
        mod tcp {
            use super::WAY;
            use dafs_tests::harness::On::Tcp as ON;
            $(#[test] #[ignore = "needs open-mpi"] fn $name() { super::super::$name(WAY, ON); })*
        }
        mod shm {
            use super::WAY;
            use dafs_tests::harness::On::Shm as ON;
            $(#[test] #[ignore = "needs open-mpi"] fn $name() { super::super::$name(WAY, ON); })*
        }
    };
}
use on_each_provider_of;
