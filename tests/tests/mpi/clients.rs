//! Libraries that people use over MPI-IO: HDF5 and PnetCDF. They also touch their files by ordinary calls, so names are local, below a
//! prefix.

use dafs_tests::harness::{Harness, On};
use dafs_tests::mpi::{Run, Way, compiled_with};

use crate::ranks_of;

mod hdf5 {
    use super::{On, Way, all_cases};

    fn all(way: Way, on: On) {
        all_cases(way, on, "h5pcc.openmpi", "hdf5", &[]);
    }

    mod tcp {
        use super::{On, Way, all};

        #[test]
        #[ignore = "needs hdf5-openmpi"]
        fn ompio() {
            all(Way::Ompio, On::Tcp);
        }

        #[test]
        #[ignore = "needs hdf5-openmpi"]
        fn romio() {
            all(Way::Romio, On::Tcp);
        }
    }

    mod shm {
        use super::{On, Way, all};

        #[test]
        #[ignore = "needs hdf5-openmpi"]
        fn ompio() {
            all(Way::Ompio, On::Shm);
        }

        #[test]
        #[ignore = "needs hdf5-openmpi"]
        fn romio() {
            all(Way::Romio, On::Shm);
        }
    }
}

mod pnetcdf {
    use super::{On, Way, all_cases};

    fn all(way: Way, on: On) {
        all_cases(way, on, "mpicc", "pnetcdf", &["-lpnetcdf"]);
    }

    mod tcp {
        use super::{On, Way, all};

        #[test]
        #[ignore = "needs pnetcdf"]
        fn ompio() {
            all(Way::Ompio, On::Tcp);
        }

        #[test]
        #[ignore = "needs pnetcdf"]
        fn romio() {
            all(Way::Romio, On::Tcp);
        }
    }

    mod shm {
        use super::{On, Way, all};

        #[test]
        #[ignore = "needs pnetcdf"]
        fn ompio() {
            all(Way::Ompio, On::Shm);
        }

        #[test]
        #[ignore = "needs pnetcdf"]
        fn romio() {
            all(Way::Romio, On::Shm);
        }
    }
}

// [MPI-2]
fn all_cases(way: Way, on: On, compiler: &str, program: &str, libraries: &[&str]) {
    let program = compiled_with(compiler, program, libraries);
    let harness = Harness::start(on);
    let (data, url) = (harness.data(), harness.url());
    let colon = if on == On::Shm { ":" } else { "" };
    let prefix = format!("{}={url}{colon}/data", data.display());
    let run = Run::of(way, ranks_of(way, on), &program).arg("all").arg(data.join("f"));
    run.env("DAFS_MPI_PREFIX", &prefix).run().passed();
    let operations = harness.session().statistics().unwrap().operations;
    let moved = |name: &str| operations.iter().any(|(own, count)| own.starts_with(name) && *count > 0);
    assert!(moved("Write") && moved("Read"), "its data went over dafs: {operations:?}");
}
