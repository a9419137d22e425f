//! The MPI library of this machine.

use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context, Result, bail};

/// The versions that the glue is written for: their internal interfaces change between minor versions.
const VERSIONS: &[&str] = &["4.1"];

/// An Open MPI that the glue can be built for.
#[derive(Clone, Debug)]
pub(crate) struct OpenMpi {
    version: String,
    compiler: PathBuf,
    include_directories: Vec<PathBuf>,
    library_directories: Vec<PathBuf>,
    component_directory: PathBuf,
}

impl OpenMpi {
    /// The one whose compiler is given.
    ///
    /// # Errors
    /// Says which MPI library there is, and what to do.
    pub(crate) fn find(mpicc: &Path) -> Result<Self> {
        let shown = mpicc.display();
        let told = Command::new(mpicc).arg("--showme:version").output();
        let told = told.with_context(|| {
            format!(
                "cannot run {shown}: install an MPI library (Debian: apt-get install openmpi-bin libopenmpi-dev), or name its \
                 compiler by --mpicc"
            )
        })?;
        let text =
            String::from_utf8_lossy(&told.stdout).into_owned() + &String::from_utf8_lossy(&told.stderr);
        let version = check_version(&text, &shown.to_string())?;
        let words = |option: &str| -> Result<Vec<PathBuf>> {
            let output =
                Command::new(mpicc).arg(option).output().with_context(|| format!("cannot run {shown}"))?;
            Ok(String::from_utf8_lossy(&output.stdout).split_whitespace().map(PathBuf::from).collect())
        };
        let include_directories = headers_of(words("--showme:incdirs")?)?;
        let library_directories = words("--showme:libdirs")?;
        let compiler = words("--showme:command")?.into_iter().next().unwrap_or_else(|| "cc".into());
        let component_directory = component_directory(mpicc)?;
        Ok(Self { version, compiler, include_directories, library_directories, component_directory })
    }

    /// For people.
    pub(crate) fn name(&self) -> String {
        format!("Open MPI {}", self.version)
    }

    /// The C compiler below `mpicc`.
    pub(crate) fn compiler(&self) -> &Path {
        &self.compiler
    }

    /// Where its headers are, those of its inside too.
    pub(crate) fn include_directories(&self) -> &[PathBuf] {
        &self.include_directories
    }

    /// Where its libraries are.
    pub(crate) fn library_directories(&self) -> &[PathBuf] {
        &self.library_directories
    }

    /// Where its own components are.
    pub(crate) fn component_directory(&self) -> &Path {
        &self.component_directory
    }
}

/// The version in what `mpicc --showme:version` says, if the glue is for it.
fn check_version(text: &str, mpicc: &str) -> Result<String> {
    let Some((_, rest)) = text.split_once("Open MPI ") else {
        bail!(
            "{mpicc} is not Open MPI's compiler: other MPI libraries cannot load a driver. For MPICH, adio-dafs/README.md says why, \
             and how to build one that can; or name Open MPI's compiler by --mpicc (Debian: mpicc.openmpi)"
        );
    };
    let version = rest.split(|c: char| !c.is_ascii_digit() && c != '.').next().unwrap_or_default();
    let minor: Vec<&str> = version.split('.').take(2).collect();
    if !VERSIONS.contains(&minor.join(".").as_str()) {
        bail!(
            "{mpicc} is that of Open MPI {version}; the glue is for Open MPI {}, whose internal interfaces others do not share. \
             Name the compiler of such a one by --mpicc",
            VERSIONS.join(" or ")
        );
    }
    Ok(version.to_owned())
}

/// The directories, if the headers of Open MPI's inside are there.
fn headers_of(directories: Vec<PathBuf>) -> Result<Vec<PathBuf>> {
    const INSIDE: &str = "ompi/mca/fs/fs.h";
    let has_inside = |directory: &PathBuf| directory.join(INSIDE).exists();
    if !directories.iter().any(has_inside) {
        bail!(
            "Open MPI's header {INSIDE} is missing: install its development files (Debian: libopenmpi-dev)"
        );
    }
    Ok(directories)
}

fn component_directory(mpicc: &Path) -> Result<PathBuf> {
    // The one of the same installation, where there are several.
    let beside = mpicc.parent().filter(|parent| !parent.as_os_str().is_empty());
    let beside = beside.map(|parent| parent.join("ompi_info")).filter(|path| path.exists());
    let ompi_info = beside.unwrap_or_else(|| "ompi_info".into());
    let output = Command::new(&ompi_info).args(["--path", "pkglibdir", "--parsable"]).output();
    let output =
        output.with_context(|| format!("cannot run {} (Debian: openmpi-bin)", ompi_info.display()))?;
    let text = String::from_utf8_lossy(&output.stdout).into_owned();
    let directory = text.trim().strip_prefix("path:pkglibdir:").map(PathBuf::from);
    match directory {
        Some(directory) if directory.is_dir() => Ok(directory),
        _ => bail!("{} does not tell where Open MPI's components are: {}", ompi_info.display(), text.trim()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn version_of_another_library_is_refused_with_what_to_do() {
        assert_eq!(check_version("mpicc: Open MPI 4.1.4 (Language: C)", "mpicc").unwrap(), "4.1.4");
        assert_eq!(check_version("mpicc: Open MPI 4.1.10rc1 (Language: C)", "mpicc").unwrap(), "4.1.10");
        for (text, words) in [
            ("mpicc: Open MPI 5.0.2 (Language: C)", "Open MPI 5.0.2; the glue is for Open MPI 4.1"),
            ("mpicc: Open MPI 4.10.0", "4.10.0"),
            ("mpicc: Open MPI ", "the glue is for"),
            ("gcc version 12.2.0 (Debian 12.2.0-14)", "not Open MPI's compiler"),
            ("", "MPICH"),
        ] {
            let error = check_version(text, "mpicc").unwrap_err().to_string();
            assert!(error.contains(words) && error.contains("--mpicc"), "{error}");
        }
    }
}
