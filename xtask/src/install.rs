//! `cargo xtask install`: the programs and the C library, with their manual pages, completions and a unit of systemd, below one directory.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context, Result, ensure};

use crate::{c, prefix};

/// What to build, and where it goes.
#[derive(clap::Args, Clone, Debug)]
pub(crate) struct InstallArgs {
    /// Where to install, such as ~/.local or /usr/local: DIR/bin, DIR/lib, DIR/include, DIR/share
    #[arg(long, value_name = "DIR")]
    prefix: PathBuf,
    /// The C compiler that links the shared library
    #[arg(long, value_name = "PROGRAM", env = "CC", default_value = "cc")]
    cc: PathBuf,
    /// Build as the tests do: quicker to build, slower to run
    #[arg(long)]
    dev: bool,
    /// With RDMA; needs libibverbs-dev, librdmacm-dev, libclang-dev and pkg-config
    #[arg(long)]
    verbs: bool,
    /// Install what was built in this directory, such as target/release, and build nothing
    #[arg(long, value_name = "DIR", conflicts_with = "dev")]
    built: Option<PathBuf>,
}

/// What is built.
const PACKAGES: [&str; 3] = ["dafs-cli", "dafs-server", "dafs-c"];

/// The programs, and the section of their manual pages.
const PROGRAMS: [(&str, &str); 2] = [("dafs", "man1"), ("dafs-server", "man8")];

/// Shells: the directory of their completions below the prefix, and the name of a program's file there.
const SHELLS: [(&str, &str, &str, &str); 3] = [
    ("bash", "share/bash-completion/completions", "", ""),
    ("zsh", "share/zsh/site-functions", "_", ""),
    ("fish", "share/fish/vendor_completions.d", "", ".fish"),
];

/// Builds and installs; says what to do next.
pub(crate) fn install(root: &Path, args: &InstallArgs) -> Result<()> {
    let built = match &args.built {
        Some(built) => built.clone(),
        None => prefix::build(root, &PACKAGES, args.dev, args.verbs)?,
    };
    let bin = prefix::made(&args.prefix, "bin")?;
    for (program, section) in PROGRAMS {
        let installed = bin.join(program);
        prefix::replace(&built.join(program), &installed)?;
        let pages = prefix::made(&args.prefix, &format!("share/man/{section}"))?;
        output_of(&installed, &["man".as_ref(), pages.as_os_str()])?;
        for (shell, directory, before, behind) in SHELLS {
            let script = output_of(&installed, &["completions".as_ref(), shell.as_ref()])?;
            let file = prefix::made(&args.prefix, directory)?.join(format!("{before}{program}{behind}"));
            fs::write(&file, script).with_context(|| format!("cannot write {}", file.display()))?;
        }
    }
    let unit = include_str!("../../dafs-cli/systemd/dafs-mount@.service");
    let units = prefix::made(&args.prefix, "lib/systemd/system")?;
    let file = units.join("dafs-mount@.service");
    fs::write(&file, unit.replace("@BIN@", &bin.to_string_lossy()))
        .with_context(|| format!("cannot write {}", file.display()))?;
    c::install_library(root, &args.prefix, &built.join("libdafs.a"), &args.cc, args.verbs)?;
    let shown = args.prefix.canonicalize().context("the prefix is gone")?;
    println!(
        "installed dafs and dafs-server in {0}/bin, with manual pages in {0}/share/man",
        shown.display()
    );
    if shown.starts_with("/usr") {
        println!("try:  ldconfig; dafs-server --export scratch=mem:1G");
    } else {
        println!("try:  PATH={}/bin:$PATH dafs-server --export scratch=mem:1G", shown.display());
    }
    Ok(())
}

/// What a program prints.
fn output_of(program: &Path, words: &[&std::ffi::OsStr]) -> Result<Vec<u8>> {
    let output = Command::new(program).args(words).output();
    let output = output.with_context(|| format!("cannot run {}", program.display()))?;
    let said = String::from_utf8_lossy(&output.stderr);
    ensure!(output.status.success(), "cannot run {}: {}", program.display(), said.trim_end());
    Ok(output.stdout)
}
