//! `cargo xtask fio install`: the engine for fio, built against the headers of the fio of this machine, in a directory of its own.
//!
//! fio has no package of headers. They are those of its source, which Debian has for each version of its package; which structures they
//! declare depends on how that was configured.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use anyhow::{Context, Result, bail, ensure};

use crate::{c, prefix, suite};

/// What to build, and where it goes.
#[derive(clap::Args, Clone, Debug)]
pub(crate) struct InstallArgs {
    /// Where to install: DIR/lib/dafs-fio.so, DIR/share/dafs-fio/*.fio
    #[arg(long, value_name = "DIR", default_value = "target/fio")]
    prefix: PathBuf,
    /// The fio to build for
    #[arg(long, value_name = "PROGRAM", default_value = "fio")]
    fio: PathBuf,
    /// The source of that fio, configured as it was; without it, the source of Debian's package is downloaded
    #[arg(long, value_name = "DIR")]
    source: Option<PathBuf>,
    /// The C compiler
    #[arg(long, value_name = "PROGRAM", env = "CC", default_value = "cc")]
    cc: PathBuf,
    /// Build libdafs as the tests do: quicker to build, slower to run
    #[arg(long)]
    dev: bool,
    /// With RDMA; needs libibverbs-dev, librdmacm-dev, libclang-dev and pkg-config
    #[arg(long)]
    verbs: bool,
    /// Use this static library of libdafs, instead of building one
    #[arg(long, value_name = "FILE", conflicts_with = "dev")]
    library: Option<PathBuf>,
}

/// The source and the job files, below the root.
const ENGINE: &str = "bindings/fio";
/// What fio calls the interface that the engine is written for.
const INTERFACE: &str = "31";
/// Debian's, but for what its own windows (gfio) and network disks need: neither changes a structure.
const CONFIGURE: [&str; 2] = ["--disable-native", "--prefix=/usr"];
/// Made by fio's configure.
const CONFIGURED: &str = "config-host.h";

/// Builds and installs; says what to do next.
pub(crate) fn install(root: &Path, args: &InstallArgs) -> Result<()> {
    let version = version_of(&args.fio)?;
    let source = match &args.source {
        Some(source) => source.canonicalize().with_context(|| format!("cannot find {}", source.display()))?,
        None => source_of(root, &args.fio)?,
    };
    check(&source, &version)?;
    let library = match &args.library {
        Some(library) => library.clone(),
        None => c::build_archive(root, args.dev, args.verbs)?,
    };
    let (lib, share) = (prefix::made(&args.prefix, "lib")?, prefix::made(&args.prefix, "share/dafs-fio")?);
    let engine = lib.join("dafs-fio.so");
    compile(root, args, &source, &version, &library, &engine)?;
    for job in jobs(root)? {
        let to = share.join(job.file_name().unwrap_or_default());
        fs::copy(&job, &to).with_context(|| format!("cannot copy {} to {}", job.display(), to.display()))?;
    }
    println!(
        "installed the engine for {version} in {0}. Next, with a server that runs at dafs+tcp://127.0.0.1:12049 and exports data:\n\
         \n    export DAFS_FIO={1} DAFS_URL=dafs+tcp://127.0.0.1:12049/data\n    fio {2}/random-read.fio\n",
        args.prefix.display(),
        engine.display(),
        share.display()
    );
    Ok(())
}

/// Has the source of the fio of this machine, downloaded where it was not before; why there is none.
pub(crate) fn supply_source(root: &Path) -> Result<()> {
    source_of(root, Path::new("fio")).map(|_| ())
}

fn jobs(root: &Path) -> Result<Vec<PathBuf>> {
    let entries = fs::read_dir(root.join(ENGINE).join("jobs")).context("cannot list the job files")?;
    entries.map(|entry| Ok(entry?.path())).collect()
}

/// As fio says it: `fio-3.33`.
fn version_of(fio: &Path) -> Result<String> {
    let told = Command::new(fio).arg("--version").output().with_context(|| {
        format!(
            "cannot run {}: install fio (Debian: apt-get install fio), or name it by --fio",
            fio.display()
        )
    })?;
    let text = String::from_utf8_lossy(&told.stdout).trim().to_owned();
    ensure!(text.starts_with("fio-"), "cannot build for {}: it says that it is {text:?}", fio.display());
    Ok(text)
}

/// Whether these are headers of that fio, with the interface that the engine is written for.
fn check(source: &Path, version: &str) -> Result<()> {
    let shown = source.display();
    let read = |name: &str| {
        let path = source.join(name);
        fs::read_to_string(&path)
            .with_context(|| format!("cannot read {}: is it the source of fio?", path.display()))
    };
    let interface = interface_in(&read("ioengines.h")?);
    ensure!(
        interface.as_deref() == Some(INTERFACE),
        "cannot build for {version}: its FIO_IOOPS_VERSION is {}, and this engine is written for {INTERFACE}, that of fio 3.33",
        interface.as_deref().unwrap_or("unknown")
    );
    let told = version_in(&read("FIO-VERSION-GEN")?);
    ensure!(
        told.as_deref().is_some_and(|told| version.starts_with(told)),
        "cannot build for {version}: {shown} is the source of {}; name the one of {version} by --source",
        told.as_deref().unwrap_or("an unknown fio")
    );
    ensure!(
        source.join(CONFIGURED).is_file(),
        "cannot build for {version}: {shown} is not configured; run ./configure there, with the options that this fio was built with"
    );
    Ok(())
}

fn interface_in(header: &str) -> Option<String> {
    let line = header.lines().find_map(|line| line.strip_prefix("#define FIO_IOOPS_VERSION"))?;
    line.split_whitespace().next().map(str::to_owned)
}

fn version_in(script: &str) -> Option<String> {
    script.lines().find_map(|line| line.strip_prefix("DEF_VER=")).map(|version| version.trim().to_owned())
}

/// The source of Debian's package of this fio, configured; kept below the target directory.
fn source_of(root: &Path, fio: &Path) -> Result<PathBuf> {
    let version = package_of(fio)?;
    let kept = suite::discover(root)?.target_directory.join("fio-source");
    let source = kept.join(&version);
    if source.join(CONFIGURED).is_file() {
        return Ok(source);
    }
    println!("downloading the source of Debian's fio {version}");
    let scratch = kept.join(format!("new-{}", std::process::id()));
    let unpacked = download(&scratch, &version).and_then(|unpacked| {
        run(Command::new("./configure").args(CONFIGURE).current_dir(&unpacked), "configure fio")?;
        // Another may have been quicker.
        if fs::rename(&unpacked, &source).is_ok() || source.join(CONFIGURED).is_file() {
            Ok(())
        } else {
            bail!("cannot keep the source of fio in {}", source.display())
        }
    });
    let _ = fs::remove_dir_all(&scratch);
    unpacked.map(|()| source)
}

/// The version of the Debian package that this fio is of.
fn package_of(fio: &Path) -> Result<String> {
    let other = "name the source that it was built from by --source";
    let output =
        Command::new("dpkg-query").args(["--show", "--showformat=${source:Version}", "fio"]).output();
    let version = output.ok().filter(|output| output.status.success());
    let version =
        version.map(|output| String::from_utf8_lossy(&output.stdout).into_owned()).unwrap_or_default();
    ensure!(
        !version.is_empty(),
        "cannot find the headers of {}: it is of no Debian package; {other}",
        fio.display()
    );
    let is_debians = fio.components().count() == 1 || fio == Path::new("/usr/bin/fio");
    ensure!(
        is_debians,
        "cannot find the headers of {}: it is not the fio of Debian's package; {other}",
        fio.display()
    );
    Ok(version)
}

/// Downloads and unpacks the source of the package, by a list of sources of its own; where it is.
fn download(scratch: &Path, version: &str) -> Result<PathBuf> {
    let release = fs::read_to_string("/etc/os-release").context("cannot read /etc/os-release")?;
    let suite = codename_in(&release).context(
        "cannot download the source of fio: this is no Debian; name the source of this fio by --source",
    )?;
    for directory in ["parts", "lists/partial", "cache/archives/partial"] {
        let directory = scratch.join(directory);
        fs::create_dir_all(&directory).with_context(|| format!("cannot make {}", directory.display()))?;
    }
    let list = format!(
        "Types: deb-src\nURIs: http://deb.debian.org/debian\nSuites: {suite} {suite}-updates\nComponents: main\n\
         Signed-By: /usr/share/keyrings/debian-archive-keyring.gpg\n"
    );
    fs::write(scratch.join("parts/fio.sources"), list).context("cannot write a list of sources")?;
    let scratch = scratch.canonicalize().context("the scratch directory is gone")?;
    let apt_get = |words: &[&str]| {
        let mut command = Command::new("apt-get");
        command.current_dir(&scratch).env("LC_ALL", "C").arg("-qq");
        for (setting, place) in
            [("Dir::Etc::sourceparts", "parts"), ("Dir::State::lists", "lists"), ("Dir::Cache", "cache")]
        {
            command.arg("-o").arg(format!("{setting}={}", scratch.join(place).display()));
        }
        for setting in ["Dir::Etc::sourcelist=/dev/null", "Acquire::http::Timeout=20", "Acquire::Retries=1"] {
            command.args(["-o", setting]);
        }
        // One list alone that cannot be had is an error too.
        command.args(["-o", "APT::Update::Error-Mode=any"]).args(words);
        run(&mut command, "download the source of fio")
    };
    apt_get(&["update"])?;
    apt_get(&["source", "--download-only", &format!("fio={version}")])?;
    let files = fs::read_dir(&scratch).context("cannot list what was downloaded")?;
    let named = files.flatten().map(|entry| entry.path());
    let description = named.into_iter().find(|path| path.extension().is_some_and(|end| end == "dsc"));
    let description = description.context("cannot find what was downloaded")?;
    let unpacked = scratch.join("source");
    let mut unpack = Command::new("dpkg-source");
    run(
        unpack.args(["--extract"]).arg(&description).arg(&unpacked),
        "unpack the source of fio (dpkg-source is in dpkg-dev)",
    )?;
    Ok(unpacked)
}

fn codename_in(release: &str) -> Option<&str> {
    let value = |key: &str| {
        let line = release.lines().find_map(|line| line.strip_prefix(key)?.strip_prefix('='))?;
        Some(line.trim_matches('"'))
    };
    value("ID").filter(|id| *id == "debian").and_then(|_| value("VERSION_CODENAME"))
}

fn run(command: &mut Command, what: &str) -> Result<()> {
    let output = command.stdin(Stdio::null()).output().with_context(|| format!("cannot {what}"))?;
    if output.status.success() {
        return Ok(());
    }
    let said = String::from_utf8_lossy(&output.stderr).trim().to_owned();
    let last = said.lines().rfind(|line| line.starts_with("E:")).unwrap_or(&said);
    bail!("cannot {what}: {last}")
}

fn compile(
    root: &Path,
    args: &InstallArgs,
    source: &Path,
    version: &str,
    library: &Path,
    engine: &Path,
) -> Result<()> {
    // A fio that runs keeps the engine that it has: a new file, under the old name.
    let new = engine.with_extension("new");
    let mut command = Command::new(&args.cc);
    command.args(["-std=gnu11", "-D_GNU_SOURCE", "-O2", "-g", "-fPIC", "-shared", "-fvisibility=hidden"]);
    // As fio's own Makefile.
    command
        .args(["-D_LARGEFILE_SOURCE", "-D_FILE_OFFSET_BITS=64"])
        .arg(format!("-DBITS_PER_LONG={}", usize::BITS));
    command.args(["-Wall", "-Wextra", "-Werror"]).arg(format!("-DDAFS_FIO_VERSION=\"{version}\""));
    command.arg(format!("-ffile-prefix-map={}/=", root.display()));
    command.arg("-include").arg(source.join(CONFIGURED)).arg("-isystem").arg(source);
    command.arg("-I").arg(root.join("bindings/c/include")).arg(root.join(ENGINE).join("dafs.c"));
    command.arg(library).arg("-o").arg(&new);
    // Threads of libdafs end after fio has closed the engine, so its code stays.
    command.args(["-Wl,--exclude-libs,ALL", "-Wl,--gc-sections", "-Wl,-z,relro", "-Wl,-z,nodelete"]);
    command.args(c::system_of(args.verbs));
    let output = command.output().with_context(|| format!("cannot run {}", args.cc.display()))?;
    ensure!(
        output.status.success(),
        "cannot build the engine:\n{}",
        String::from_utf8_lossy(&output.stderr).trim_end()
    );
    fs::rename(&new, engine).with_context(|| format!("cannot write {}", engine.display()))
}

#[cfg(test)]
mod tests {
    use super::*;

    /// What is looked at of fio's source.
    fn source(interface: &str, version: &str) -> tempfile::TempDir {
        let directory = tempfile::tempdir().unwrap();
        let write = |name: &str, text: String| fs::write(directory.path().join(name), text).unwrap();
        write("ioengines.h", format!("#ifndef X\n#define FIO_IOOPS_VERSION\t{interface}\n#endif\n"));
        write("FIO-VERSION-GEN", format!("#!/bin/sh\nDEF_VER={version}\nLF='\n'\n"));
        write(CONFIGURED, String::new());
        directory
    }

    #[test]
    fn source_of_another_interface_or_version_is_refused_in_words() {
        let refused = |interface, version| {
            check(source(interface, version).path(), "fio-3.33").unwrap_err().to_string()
        };
        check(source("31", "fio-3.33").path(), "fio-3.33").unwrap();
        for interface in ["30", "32"] {
            let why = refused(interface, "fio-3.33");
            assert!(why.contains(&format!("FIO_IOOPS_VERSION is {interface}")), "{why}");
        }
        assert!(refused("31", "fio-3.35").contains("is the source of fio-3.35"));
        let bare = source("31", "fio-3.33");
        fs::remove_file(bare.path().join(CONFIGURED)).unwrap();
        let why = check(bare.path(), "fio-3.33").unwrap_err().to_string();
        assert!(why.contains("run ./configure"), "{why}");
    }

    #[test]
    fn only_debian_has_the_source() {
        assert_eq!(codename_in("ID=debian\nVERSION_CODENAME=bookworm\n"), Some("bookworm"));
        assert_eq!(codename_in("VERSION_CODENAME=\"noble\"\nID=ubuntu\n"), None);
        assert_eq!(codename_in(""), None);
    }
}
