//! What needs a nightly compiler: Miri and the sanitizers. The toolchain is pinned, so that a run today and one next month differ in our
//! code alone.

use std::path::Path;
use std::process::{Command, Stdio};

use anyhow::{Context, Result, bail, ensure};
use clap::{Args, ValueEnum};

const TOOLCHAIN: &str = "nightly-2026-09-01";

/// Modules of dafs-proto that do no I/O.
const INTERPRETED: &[&str] = &["wire::", "extent::", "view::", "session::"];
/// Tests of bounds of tens of thousands, and of whole pages, for which Miri takes long.
const TOO_LONG: &[&str] = &[
    "view::tests::description_beyond_a_bound_is_refused",
    "view::tests::description_of_too_many_levels_in_all_is_refused",
    "view::tests::lists_that_are_regular_take_no_memory_for_each_entry",
    "wire::batch::tests::batch_at_and_past_each_limit_is_read_and_refused",
    "wire::opcode::tests::specification_has_a_row_of_each_opcode",
    "wire::view::tests::description_with_a_changed_byte_is_refused_or_another",
];
/// Crates whose unit tests run with sanitizers.
const SANITIZED: &[&str] = &["dafs-client", "dafs-server"];

#[derive(Args)]
pub(crate) struct MiriArgs {
    /// Interpret only tests whose name contains this [default: wire, extent, view and session of dafs-proto]
    filter: Vec<String>,
}

#[derive(Args)]
pub(crate) struct SanitizeArgs {
    /// Run with this sanitizer only
    #[arg(long, value_enum)]
    sanitizer: Option<Sanitizer>,
    /// Test only this crate, dafs-client or dafs-server
    #[arg(short, long)]
    package: Option<String>,
    /// Run only tests whose name contains this
    filter: Vec<String>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
enum Sanitizer {
    /// Memory that is used after it was freed, or beyond its end
    Address,
    /// Data races
    Thread,
}

impl Sanitizer {
    fn name(self) -> &'static str {
        match self {
            Self::Address => "address",
            Self::Thread => "thread",
        }
    }
}

/// Interprets tests of dafs-proto.
pub(crate) fn miri(workspace: &Path, args: &MiriArgs) -> Result<()> {
    install(&["miri", "rust-src"])?;
    let mut cargo = cargo(
        workspace,
        "miri",
        &["miri", "test", "-p", "dafs-proto", "--lib", "--no-default-features", "--"],
    );
    // Clocks and random bytes are the machine's.
    cargo.env("MIRIFLAGS", "-Zmiri-disable-isolation").env("PROPTEST_CASES", "4");
    match args.filter.is_empty() {
        true => cargo.args(INTERPRETED).args(TOO_LONG.iter().flat_map(|test| ["--skip", test])),
        false => cargo.args(&args.filter),
    };
    run(cargo, "miri")
}

/// Runs unit tests of client and server with each sanitizer.
pub(crate) fn sanitize(workspace: &Path, args: &SanitizeArgs) -> Result<()> {
    install(&["rust-src"])?;
    let host = host()?;
    let packages = match &args.package {
        Some(package) => vec![package.as_str()],
        None => SANITIZED.to_vec(),
    };
    for sanitizer in [Sanitizer::Address, Sanitizer::Thread] {
        if args.sanitizer.is_some_and(|only| only != sanitizer) {
            continue;
        }
        let mut cargo = cargo(workspace, sanitizer.name(), &["test", "--lib", "--target", &host]);
        if sanitizer == Sanitizer::Thread {
            // It must see what the standard library does between threads, too.
            cargo.arg("-Zbuild-std");
        }
        for package in &packages {
            cargo.args(["-p", package]);
        }
        cargo.arg("--").args(&args.filter);
        // A sanitizer needs more address space than this test leaves.
        cargo.args(["--skip", "user_for_whom_no_thread_could_be_started_is_asked_about_again"]);
        // Memory whose registration cannot be ended is kept for good, on purpose; SIGBUS has a handler of ours.
        cargo.env("ASAN_OPTIONS", "detect_leaks=0:handle_sigbus=0").env("TSAN_OPTIONS", "handle_sigbus=0");
        cargo.env("RUSTFLAGS", format!("-Zsanitizer={}", sanitizer.name()));
        run(cargo, sanitizer.name())?;
    }
    Ok(())
}

/// The toolchain with these components, installed where it is missing.
fn install(components: &[&str]) -> Result<()> {
    let told =
        Command::new("rustup").args(["component", "list", "--installed", "--toolchain", TOOLCHAIN]).output();
    let told = told.context("cannot run rustup: install Rust with rustup (https://rustup.rs)")?;
    let installed = String::from_utf8_lossy(&told.stdout);
    if told.status.success() && has_all(&installed, components) {
        return Ok(());
    }
    println!("installing {TOOLCHAIN}");
    let mut rustup = Command::new("rustup");
    rustup.args([
        "toolchain",
        "install",
        TOOLCHAIN,
        "--profile",
        "minimal",
        "--component",
        &components.join(","),
    ]);
    let status = rustup.status().context("cannot run rustup")?;
    ensure!(status.success(), "cannot install {TOOLCHAIN}: rustup ended ({status})");
    Ok(())
}

/// The target that the toolchain builds for: named, it keeps sanitizers out of build scripts and macros.
fn host() -> Result<String> {
    let told = Command::new("rustup").args(["run", TOOLCHAIN, "rustc", "-vV"]).output();
    let told = told.context("cannot run rustup")?;
    let text = String::from_utf8_lossy(&told.stdout);
    let host = text.lines().find_map(|line| line.strip_prefix("host: "));
    Ok(host.with_context(|| format!("cannot read the target of {TOOLCHAIN}"))?.to_owned())
}

/// Whether rustup's list has each, with or without a target behind it.
fn has_all(installed: &str, components: &[&str]) -> bool {
    let has = |component: &&str| {
        installed.lines().any(|line| {
            line.trim().strip_prefix(component).is_some_and(|rest| rest.is_empty() || rest.starts_with('-'))
        })
    };
    components.iter().all(has)
}

/// cargo of the toolchain, with a target directory of its own.
fn cargo(workspace: &Path, directory: &str, arguments: &[&str]) -> Command {
    let mut cargo = Command::new("rustup");
    cargo.args(["run", TOOLCHAIN, "cargo"]).args(arguments).current_dir(workspace).stdin(Stdio::null());
    cargo.env("CARGO_TARGET_DIR", workspace.join("target").join(directory));
    // Of the cargo that runs this.
    for name in ["CARGO", "RUSTC", "RUSTDOC", "RUSTUP_TOOLCHAIN"] {
        cargo.env_remove(name);
    }
    cargo
}

fn run(mut command: Command, name: &str) -> Result<()> {
    let status = command.status().context("cannot run rustup")?;
    if !status.success() {
        bail!("{name} has found something, or could not run ({status}); its messages are above");
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn components_are_found_with_a_target_behind_them_and_not_as_beginnings() {
        let installed =
            "cargo-x86_64-unknown-linux-gnu\nmiri-x86_64-unknown-linux-gnu\nrust-src\nrust-std-x86_64\n";
        assert!(has_all(installed, &["miri", "rust-src"]));
        assert!(!has_all("rust-srcs\n", &["rust-src"]));
        assert!(!has_all(installed, &["miri", "clippy"]));
        assert!(has_all("", &[]));
    }
}
