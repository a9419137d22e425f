//! Libraries that people use over MPI-IO: HDF5 and PnetCDF. They also touch their files by ordinary calls, so names are local, below a
//! prefix.

use dafs_tests::harness::{Harness, On};
use dafs_tests::mpi::{Run, Way, compiled_with};

macro_rules! of_library {
    ($library:ident, $need:literal, $compiler:literal, $libraries:expr) => {
        mod $library {
            use super::*;

            fn all(way: Way, on: On) {
                let program = compiled_with($compiler, stringify!($library), $libraries);
                super::all_cases(way, on, &program);
            }

            mod tcp {
                use super::{On, Way};

                #[test]
                #[ignore = $need]
                fn ompio() {
                    super::all(Way::Ompio, On::Tcp);
                }

                #[test]
                #[ignore = $need]
                fn romio() {
                    super::all(Way::Romio, On::Tcp);
                }
            }

            mod shm {
                use super::{On, Way};

                #[test]
                #[ignore = $need]
                fn ompio() {
                    super::all(Way::Ompio, On::Shm);
                }

                #[test]
                #[ignore = $need]
                fn romio() {
                    super::all(Way::Romio, On::Shm);
                }
            }
        }
    };
}

of_library!(hdf5, "needs hdf5-openmpi", "h5pcc.openmpi", &[]);
of_library!(pnetcdf, "needs pnetcdf", "mpicc", &["-lpnetcdf"]);

// [MPI-2]
fn all_cases(way: Way, on: On, program: &std::path::Path) {
    let harness = Harness::start(on);
    let (data, url) = (harness.data(), harness.url());
    let colon = if on == On::Shm { ":" } else { "" };
    let prefix = format!("{}={url}{colon}/data", data.display());
    for ranks in if on == On::Tcp { [1, 4] } else { [2, 3] } {
        let run = Run::of(way, ranks, program).arg("all").arg(data.join("f")).env("DAFS_MPI_PREFIX", &prefix);
        run.run().passed();
    }
    let operations = harness.session().statistics().unwrap().operations;
    let moved = |name: &str| operations.iter().any(|(own, count)| own.starts_with(name) && *count > 0);
    assert!(moved("Write") && moved("Read"), "its data went over dafs: {operations:?}");
}
