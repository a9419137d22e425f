//! `cargo xtask c install`: libdafs, its header, its manual pages and what pkg-config says of it, in a directory of their own.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context, Result, bail, ensure};

use crate::{header, man, prefix};

/// What to build, and where it goes.
#[derive(clap::Args, Clone, Debug)]
pub(crate) struct InstallArgs {
    /// Where to install: DIR/lib, DIR/include, DIR/lib/pkgconfig, DIR/share/man
    #[arg(long, value_name = "DIR", default_value = "target/c")]
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
}

/// The crate, below the root.
const CRATE: &str = "bindings/c";
/// The symbols that the shared library exports, with their version.
const SYMBOLS: &str = "dafs.map";
/// Changes when programs must be compiled again.
const SONAME: &str = "libdafs.so.0";
/// What the library needs of the system.
const SYSTEM: [&str; 5] = ["-lgcc_s", "-lpthread", "-lm", "-ldl", "-lc"];
const SYSTEM_OF_VERBS: [&str; 2] = ["-libverbs", "-lrdmacm"];

/// Builds and installs; says what to do next.
pub(crate) fn install(root: &Path, args: &InstallArgs) -> Result<()> {
    let archive = build_archive(root, args.dev, args.verbs)?;
    install_library(root, &args.prefix, &archive, &args.cc, args.verbs)
}

/// Puts the library, its header, its manual pages and what pkg-config says of it in their places; says what to do next.
pub(crate) fn install_library(
    root: &Path,
    place: &Path,
    archive: &Path,
    cc: &Path,
    verbs: bool,
) -> Result<()> {
    let (version, system) = (version_of(root)?, system_of(verbs));
    let [lib, include, pkgconfig] = ["lib", "include", "lib/pkgconfig"].map(|name| prefix::made(place, name));
    let (lib, include, pkgconfig) = (lib?, include?, pkgconfig?);
    prefix::replace(archive, &lib.join("libdafs.a"))?;
    let header = root.join(CRATE).join("include/dafs.h");
    prefix::replace(&header, &include.join("dafs.h"))?;
    let shared = lib.join(format!("libdafs.so.{version}"));
    link(root, cc, archive, &shared, &system)?;
    for name in [SONAME, "libdafs.so"] {
        let link = lib.join(name);
        let _ = fs::remove_file(&link);
        std::os::unix::fs::symlink(format!("libdafs.so.{version}"), &link)
            .with_context(|| format!("cannot make {}", link.display()))?;
    }
    let shown = place.canonicalize().context("the prefix is gone")?;
    let text = pkg_config(&shown, &version, &system);
    fs::write(pkgconfig.join("dafs.pc"), text).context("cannot write dafs.pc")?;
    let pages = prefix::made(&shown, "share/man/man3")?;
    let header = fs::read_to_string(&header).with_context(|| format!("cannot read {}", header.display()))?;
    for (name, text) in man::pages(&header, &header::groups(root)?, &version)? {
        let page = pages.join(name);
        fs::write(&page, text).with_context(|| format!("cannot write {}", page.display()))?;
    }
    println!(
        "installed libdafs {version} in {0}\n\
         try:  cc hello.c $(PKG_CONFIG_PATH={0}/lib/pkgconfig pkg-config --cflags --libs dafs) -Wl,-rpath,{0}/lib",
        shown.display()
    );
    Ok(())
}

/// What is linked beside the static library.
pub(crate) fn system_of(verbs: bool) -> Vec<&'static str> {
    let of_verbs = SYSTEM_OF_VERBS.into_iter().filter(|_| verbs);
    SYSTEM.into_iter().chain(of_verbs).collect()
}

/// Builds the static library; where it is.
pub(crate) fn build_archive(root: &Path, dev: bool, verbs: bool) -> Result<PathBuf> {
    Ok(prefix::build(root, &["dafs-c"], dev, verbs)?.join("libdafs.a"))
}

/// Links the shared library from the static one. Cargo would give it neither a name of its own nor versions of symbols.
fn link(root: &Path, cc: &Path, archive: &Path, shared: &Path, system: &[&str]) -> Result<()> {
    // A program that runs keeps the library that it has: a new file, under the old name.
    let new = shared.with_extension("new");
    let mut command = Command::new(cc);
    command.arg("-shared").arg("-o").arg(&new).arg(format!("-Wl,-soname,{SONAME}"));
    command.arg(format!("-Wl,--version-script={}", root.join(CRATE).join(SYMBOLS).display()));
    command.arg("-Wl,--whole-archive").arg(archive).arg("-Wl,--no-whole-archive");
    command.args(["-Wl,--gc-sections", "-Wl,-z,defs", "-Wl,-z,relro", "-Wl,-z,now"]).args(system);
    let status = command.status().with_context(|| format!("cannot run {}", cc.display()))?;
    ensure!(status.success(), "{} did not link the shared library", cc.display());
    fs::rename(&new, shared).with_context(|| format!("cannot write {}", shared.display()))
}

fn version_of(root: &Path) -> Result<String> {
    let manifest = fs::read_to_string(root.join("Cargo.toml")).context("cannot read Cargo.toml")?;
    let line = manifest.lines().find_map(|line| line.strip_prefix("version = \""));
    match line.and_then(|rest| rest.split('"').next()) {
        Some(version) => Ok(version.to_owned()),
        None => bail!("Cargo.toml has no version"),
    }
}

fn pkg_config(prefix: &Path, version: &str, system: &[&str]) -> String {
    format!(
        "prefix={}\nlibdir=${{prefix}}/lib\nincludedir=${{prefix}}/include\n\n\
         Name: dafs\nDescription: files of dafs servers\nVersion: {version}\n\
         Cflags: -I${{includedir}}\nLibs: -L${{libdir}} -ldafs\nLibs.private: {}\n",
        prefix.display(),
        system.join(" ")
    )
}

/// The list of exported symbols, made of the sources: what `dafs.map` is to be.
pub(crate) fn symbols(sources: impl Iterator<Item = String>) -> String {
    let mut names: Vec<String> = sources.flat_map(|text| exported(&text)).collect();
    names.sort_unstable();
    let listed: String = names.iter().map(|name| format!("        {name};\n")).collect();
    format!("DAFS_0 {{\n    global:\n{listed}    local:\n        *;\n}};\n")
}

/// The functions that a source exports: others, such as handlers, are called by C too.
pub(crate) fn exported(text: &str) -> Vec<String> {
    let public = text.lines().filter(|line| line.starts_with("pub "));
    let names = public.filter_map(|line| line.split_once("extern \"C\" fn ")?.1.split('(').next());
    names.map(str::to_owned).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn exported_symbols_are_those_of_the_sources() {
        let text = "#[unsafe(no_mangle)]\npub unsafe extern \"C\" fn b(x: i32) {}\nfn c() {}\nextern \"C\" fn d() {}\n\
                    pub extern \"C\" fn a() {}\n";
        let map = symbols(std::iter::once(text.to_owned()));
        assert_eq!(map, "DAFS_0 {\n    global:\n        a;\n        b;\n    local:\n        *;\n};\n");
    }
}
