//! The shared libraries that the glue is compiled to.

/// One of them.
#[derive(Debug)]
pub(super) struct Part {
    /// Below DIR/lib.
    pub(super) target: &'static str,
    /// Files below adio-dafs/c; a directory stands for all in it.
    pub(super) sources: &'static [&'static str],
    /// Of the linker, besides those of all parts.
    pub(super) libraries: &'static [&'static str],
    /// Where it finds the libraries of DIR/lib.
    pub(super) rpath: &'static str,
}

/// The libraries of a part that calls the driver and Open MPI, inside too. Open MPI unloads components before the threads of a session end.
const OF_GLUE: &[&str] = &["-ladio_dafs", "-lmpi", "-lopen-pal", "-Wl,-z,nodelete"];

/// The same, and OMPIO, whose progress the glue guards.
const OF_OMPIO: &[&str] = &["-ladio_dafs", "-lmca_common_ompio", "-lmpi", "-lopen-pal", "-Wl,-z,nodelete"];

pub(super) const PARTS: &[Part] = &[
    Part {
        target: "openmpi/mca_fs_dafs.so",
        sources: &[
            "common",
            "ompio/comm.c",
            "ompio/fs_component.c",
            "ompio/fs_module.c",
            "ompio/hooks.c",
            "ompio/info.c",
            "ompio/progress.c",
            "ompio/request.c",
            "ompio/shared_pointer.c",
            "ompio/views.c",
        ],
        libraries: OF_OMPIO,
        rpath: "$ORIGIN/..",
    },
    Part {
        target: "openmpi/mca_fbtl_dafs.so",
        sources: &["common", "ompio/comm.c", "ompio/fbtl.c", "ompio/info.c", "ompio/request.c"],
        libraries: OF_GLUE,
        rpath: "$ORIGIN/..",
    },
    Part {
        target: "libdafs_adio.so",
        sources: &[
            "common",
            "romio/comm.c",
            "romio/driver.c",
            "romio/file.c",
            "romio/flatten.c",
            "romio/info.c",
            "romio/layout.c",
            "romio/mpi_file.c",
            "romio/names.c",
            "romio/request.c",
            "romio/shared_pointer.c",
            "romio/transfer.c",
        ],
        libraries: OF_GLUE,
        rpath: "$ORIGIN",
    },
    // Preloaded into programs without MPI too, mpirun among them: it loads the driver when a file is opened.
    Part {
        target: "libdafs_romio.so",
        sources: &["romio/preload.c"],
        libraries: &["-ldl"],
        rpath: "$ORIGIN",
    },
];

#[cfg(test)]
mod tests {
    use super::*;
    use std::path::Path;

    #[test]
    fn every_source_of_the_glue_belongs_to_a_part() {
        let root = Path::new(env!("CARGO_MANIFEST_DIR")).parent().unwrap().join("adio-dafs/c");
        for directory in ["common", "ompio", "romio"] {
            for entry in std::fs::read_dir(root.join(directory)).unwrap() {
                let name = entry.unwrap().file_name().into_string().unwrap();
                let path = format!("{directory}/{name}");
                let is_of =
                    |part: &Part| part.sources.iter().any(|source| *source == path || *source == directory);
                assert!(!name.ends_with(".c") || PARTS.iter().any(is_of), "{path} is compiled into nothing");
            }
        }
    }
}
