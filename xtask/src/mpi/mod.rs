//! `cargo xtask mpi install`: the driver and its glue, built for the MPI library of this machine, in a directory of their own.

mod library;
mod parts;

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context, Result, bail, ensure};

use crate::prefix::replace;
use crate::suite;
pub(crate) use library::OpenMpi;
use parts::{PARTS, Part};

/// What to build, and where it goes.
#[derive(clap::Args, Clone, Debug)]
pub(crate) struct InstallArgs {
    /// Where to install: DIR/lib, DIR/include, DIR/env.sh, DIR/env-romio.sh
    #[arg(long, value_name = "DIR", default_value = "target/mpi")]
    pub(crate) prefix: PathBuf,
    /// The compiler of the MPI library to build for, where several are installed
    #[arg(long, value_name = "PROGRAM", env = "MPICC", default_value = "mpicc")]
    pub(crate) mpicc: PathBuf,
    /// Build the driver as the tests do: quicker to build, slower to run
    #[arg(long)]
    pub(crate) dev: bool,
    /// With RDMA; needs libibverbs-dev, librdmacm-dev, libclang-dev and pkg-config
    #[arg(long)]
    pub(crate) verbs: bool,
    /// Use this shared library of adio-dafs, instead of building one
    #[arg(long, value_name = "FILE", conflicts_with_all = ["dev", "verbs"])]
    pub(crate) driver: Option<PathBuf>,
}

/// The name of the driver's shared library.
const DRIVER: &str = "libadio_dafs.so";

/// Builds and installs; says what to do next.
pub(crate) fn install(root: &Path, args: &InstallArgs) -> Result<()> {
    let mpi = OpenMpi::find(&args.mpicc)?;
    println!("building for {} ({})", mpi.name(), args.mpicc.display());
    let driver = match &args.driver {
        Some(driver) => driver.clone(),
        None => build_driver(root, args)?,
    };
    let prefix = install_parts(root, args, &mpi, &driver)?;
    print!("{}", next_steps(&prefix, &mpi));
    Ok(())
}

/// Builds the driver; where its shared library is.
fn build_driver(root: &Path, args: &InstallArgs) -> Result<PathBuf> {
    let workspace = suite::discover(root)?;
    let mut command = suite::cargo();
    command.args(["build", "--locked", "--package", "adio-dafs", "--lib"]).current_dir(root);
    command.env("CARGO_TARGET_DIR", &workspace.target_directory);
    if !args.dev {
        command.arg("--release");
    }
    if args.verbs {
        command.args(["--features", "adio-dafs/verbs"]);
    }
    let status = command.status().context("cannot run cargo")?;
    ensure!(status.success(), "adio-dafs was not built");
    let profile = if args.dev { "debug" } else { "release" };
    Ok(workspace.target_directory.join(profile).join(DRIVER))
}

/// Compiles the glue and puts everything in its place; the prefix, absolute.
pub(crate) fn install_parts(
    root: &Path,
    args: &InstallArgs,
    mpi: &OpenMpi,
    driver: &Path,
) -> Result<PathBuf> {
    let make = |directory: &Path| {
        fs::create_dir_all(directory).with_context(|| format!("cannot make {}", directory.display()))
    };
    make(&args.prefix)?;
    let prefix =
        args.prefix.canonicalize().with_context(|| format!("cannot find {}", args.prefix.display()))?;
    let (lib, include) = (prefix.join("lib"), prefix.join("include"));
    make(&lib.join("openmpi"))?;
    make(&include)?;
    // A program that runs keeps the library that it has: a new file, under the old name.
    replace(driver, &lib.join(DRIVER))?;
    replace(&root.join("adio-dafs/include/adio_dafs.h"), &include.join("adio_dafs.h"))?;
    for part in PARTS {
        compile(root, &lib, mpi, part)?;
    }
    for (name, text) in [("env.sh", ompio_settings(&prefix, mpi)), ("env-romio.sh", romio_settings(&prefix))]
    {
        let path = prefix.join(name);
        fs::write(&path, text).with_context(|| format!("cannot write {}", path.display()))?;
    }
    Ok(prefix)
}

/// Compiles one part of the glue to a shared library.
fn compile(root: &Path, lib: &Path, mpi: &OpenMpi, part: &Part) -> Result<()> {
    let source = root.join("adio-dafs/c");
    let target = lib.join(part.target);
    let new = target.with_extension("new");
    let mut command = Command::new(mpi.compiler());
    command.args(["-std=c11", "-D_GNU_SOURCE", "-O2", "-g", "-fPIC", "-shared", "-fvisibility=hidden"]);
    command.args(["-Wall", "-Wextra", "-Werror"]);
    command.arg("-I").arg(root.join("adio-dafs/include")).arg("-I").arg(&source);
    for directory in mpi.include_directories() {
        command.arg("-isystem").arg(directory);
    }
    for name in part.sources {
        command.args(sources_in(&source.join(name))?);
    }
    command.arg("-o").arg(&new).arg("-L").arg(lib);
    for directory in mpi.library_directories() {
        command.arg("-L").arg(directory);
    }
    command.args(part.libraries).arg("-Wl,--no-undefined").arg(format!("-Wl,-rpath,{}", part.rpath));
    let output = command.output().with_context(|| format!("cannot run {}", mpi.compiler().display()))?;
    if !output.status.success() {
        bail!("{} was not built:\n{}", part.target, String::from_utf8_lossy(&output.stderr).trim_end());
    }
    fs::rename(&new, &target).with_context(|| format!("cannot write {}", target.display()))
}

fn sources_in(path: &Path) -> Result<Vec<PathBuf>> {
    if path.extension().is_some_and(|extension| extension == "c") {
        return Ok(vec![path.to_owned()]);
    }
    let entries = fs::read_dir(path).with_context(|| format!("cannot read {}", path.display()))?;
    let mut files = entries.map(|entry| Ok(entry?.path())).collect::<Result<Vec<_>>>()?;
    files.retain(|file| file.extension().is_some_and(|extension| extension == "c"));
    files.sort();
    Ok(files)
}

/// A path in single quotes, for a shell.
fn quoted(path: &Path) -> String {
    format!("'{}'", path.display().to_string().replace('\'', r"'\''"))
}

fn ompio_settings(prefix: &Path, mpi: &OpenMpi) -> String {
    format!(
        "# MPI-IO of {} on dafs by its OMPIO components: `. {}`, then mpirun as ever.\n\
         export OMPI_MCA_mca_base_component_path={}:{}\n\
         export OMPI_MCA_io=ompio\n\
         unset LD_PRELOAD\n",
        mpi.name(),
        quoted(&prefix.join("env.sh")),
        quoted(mpi.component_directory()),
        quoted(&prefix.join("lib/openmpi"))
    )
}

fn romio_settings(prefix: &Path) -> String {
    format!(
        "# MPI-IO of Open MPI on dafs by an ADIO driver in its ROMIO: `. {}`, then mpirun as ever.\n\
         unset OMPI_MCA_mca_base_component_path\n\
         export OMPI_MCA_io=romio321\n\
         export LD_PRELOAD={}\n",
        quoted(&prefix.join("env-romio.sh")),
        quoted(&prefix.join("lib/libdafs_romio.so"))
    )
}

fn next_steps(prefix: &Path, mpi: &OpenMpi) -> String {
    let shown = prefix.display();
    format!(
        "installed in {shown} for {}. Next, with a server that runs at dafs+tcp://127.0.0.1:12049 and exports data:\n\
         \n\
         \x20   . {shown}/env.sh          # by OMPIO, Open MPI's own; or . {shown}/env-romio.sh, by ROMIO\n\
         \x20   mpirun -n 4 ./program dafs+tcp://127.0.0.1:12049/data/file\n\
         \n\
         Programs that give no such names: DAFS_MPI_PREFIX=/scratch=dafs+tcp://127.0.0.1:12049/data. More: adio-dafs/README.md.\n",
        mpi.name()
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn path_is_quoted_for_a_shell() {
        assert_eq!(quoted(Path::new("/a b/it's")), r"'/a b/it'\''s'");
    }
}
