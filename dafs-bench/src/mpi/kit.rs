//! The MPI library, the driver installed for it, and our program, compiled.

use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use anyhow::{Context, bail};
use tempfile::TempDir;

use crate::cli::Way;

/// The sources of the program.
const SOURCES: [(&str, &str); 6] = [
    ("bench.h", include_str!("../../mpi/bench.h")),
    ("main.c", include_str!("../../mpi/main.c")),
    ("measure.c", include_str!("../../mpi/measure.c")),
    ("transfer.c", include_str!("../../mpi/transfer.c")),
    ("pattern.c", include_str!("../../mpi/pattern.c")),
    ("region.c", include_str!("../../mpi/region.c")),
];

const PACKAGES: &str = "install Open MPI (Debian: apt-get install openmpi-bin libopenmpi-dev)";

/// What jobs are started with.
#[derive(Debug)]
pub struct Kit {
    prefix: PathBuf,
    program: PathBuf,
    /// Holds the program.
    directory: TempDir,
}

impl Kit {
    /// Looks for the driver in `prefix`, and compiles the program.
    ///
    /// # Errors
    /// Says what is missing, and the command that installs it.
    pub fn build(prefix: &Path) -> anyhow::Result<Self> {
        for program in ["mpicc", "mpirun"] {
            let outcome = Command::new(program).arg("--version").stdin(Stdio::null()).output();
            outcome.with_context(|| format!("cannot run {program}: {PACKAGES}"))?;
        }
        let shown = prefix.display();
        let kit =
            Self { prefix: prefix.to_owned(), program: PathBuf::new(), directory: tempfile::tempdir()? };
        if !kit.settings(Way::Ompio).is_file() {
            bail!(
                "cannot find the driver in {shown}; run `cargo xtask mpi install --prefix {shown}`, or name its directory by --mpi-prefix"
            );
        }
        let program = kit.compile().context("cannot compile the MPI program")?;
        Ok(Self { program, ..kit })
    }

    /// The settings by which a way goes to dafs: a script for a shell.
    pub(super) fn settings(&self, way: Way) -> PathBuf {
        self.prefix.join(match way {
            Way::Ompio => "env.sh",
            Way::Romio => "env-romio.sh",
        })
    }

    /// Why this way does not go to dafs, where it does not.
    pub fn lacks(&self, way: Way) -> Option<String> {
        let library = self.prefix.join(match way {
            Way::Ompio => "lib/openmpi/mca_fs_dafs.so",
            Way::Romio => "lib/libdafs_romio.so",
        });
        let missing = [self.settings(way), library].into_iter().find(|path| !path.is_file())?;
        Some(format!(
            "{} is missing; run `cargo xtask mpi install --prefix {}` again",
            missing.display(),
            self.prefix.display()
        ))
    }

    /// Room for files of a run.
    pub(super) fn directory(&self) -> &Path {
        self.directory.path()
    }

    pub(super) fn program(&self) -> &Path {
        &self.program
    }

    fn compile(&self) -> anyhow::Result<PathBuf> {
        let directory = self.directory.path();
        for (name, text) in SOURCES {
            std::fs::write(directory.join(name), text)?;
        }
        let program = directory.join("dafs-bench-mpi");
        let mut command = Command::new("mpicc");
        command.args(["-std=c11", "-D_GNU_SOURCE", "-O2", "-Wall", "-Wextra", "-Werror", "-o"]).arg(&program);
        let sources = SOURCES.iter().filter(|(name, _)| name.ends_with(".c"));
        let output = command.args(sources.map(|(name, _)| directory.join(name))).output()?;
        if !output.status.success() {
            bail!("mpicc: {}", String::from_utf8_lossy(&output.stderr).trim_end());
        }
        Ok(program)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn prefix_without_a_part_of_the_driver_is_told_with_the_command() {
        let prefix = tempfile::tempdir().unwrap();
        let kit = Kit {
            prefix: prefix.path().to_owned(),
            program: PathBuf::new(),
            directory: tempfile::tempdir().unwrap(),
        };
        assert!(kit.lacks(Way::Ompio).unwrap().contains("cargo xtask mpi install --prefix"));
        std::fs::create_dir_all(prefix.path().join("lib/openmpi")).unwrap();
        for name in ["env.sh", "lib/openmpi/mca_fs_dafs.so", "env-romio.sh"] {
            std::fs::write(prefix.path().join(name), "").unwrap();
        }
        assert_eq!(kit.lacks(Way::Ompio), None);
        assert!(kit.lacks(Way::Romio).unwrap().contains("libdafs_romio.so is missing"));
    }
}
