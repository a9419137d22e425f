//! The test command of dafs.
//!
//! `cargo xtask test` builds the workspace once, runs every suite on every provider, checks format, lints (of the fuzz
//! targets too) and documentation, and ends with a table. It takes no decision about what a test means: suites
//! are ordinary cargo test targets, found by asking cargo, and a test's provider is the module it stands in.
//!
//! Main types: [`suite::Suite`] (what can be run), [`process::Outcome`] (how a bounded command ended),
//! [`report::Report`] (the table).
#![deny(unsafe_code)]

mod c;
mod checks;
mod crates;
mod debian;
mod dissector;
mod fio;
mod guest;
mod header;
mod install;
mod judge;
mod libtest;
mod man;
mod mpi;
mod nightly;
mod packages;
mod places;
mod prefix;
mod probe;
mod process;
mod report;
mod run;
mod suite;
mod user;

use std::process::ExitCode;

use clap::{Args, Parser, Subcommand};

use suite::root;

#[derive(Parser)]
#[command(name = "cargo xtask", about = "Development commands of dafs", disable_help_subcommand = true)]
struct Cli {
    #[command(subcommand)]
    command: Task,
}

#[derive(Subcommand)]
enum Task {
    /// Run every suite on every provider, then the checks, and print a table
    #[command(after_help = TEST_HELP)]
    Test(TestArgs),
    /// Build and install the programs and the C library, with their manual pages and completions
    Install(install::InstallArgs),
    /// Generate the C headers of libdafs and adio-dafs, and the list of symbols of libdafs
    Header,
    /// Generate the tables of the Wireshark dissector from the pages in spec/
    Dissector,
    /// MPI-IO on dafs: the driver and its glue for the MPI library of this machine
    #[command(subcommand)]
    Mpi(MpiTask),
    /// libdafs, the C library
    #[command(subcommand)]
    C(CTask),
    /// The engine for fio
    #[command(subcommand)]
    Fio(FioTask),
    /// Interpret tests of dafs-proto with Miri, by a pinned nightly compiler; once a release
    Miri(nightly::MiriArgs),
    /// Run the unit tests of client and server with AddressSanitizer and ThreadSanitizer, by a pinned nightly compiler; once a release
    Sanitize(nightly::SanitizeArgs),
}

#[derive(Subcommand)]
enum FioTask {
    /// Build the engine for the fio that is installed, and install it with its job files in a directory
    Install(fio::InstallArgs),
}

#[derive(Subcommand)]
enum CTask {
    /// Build libdafs.so and libdafs.a, and install them with dafs.h and dafs.pc in a directory
    Install(c::InstallArgs),
}

#[derive(Subcommand)]
enum MpiTask {
    /// Build the driver and its glue for the MPI library that is installed, and install them in a directory
    Install(mpi::InstallArgs),
}

const TEST_HELP: &str = "\
A suite is a cargo test target: the unit tests of a crate (proto/unit), the provider conformance tests
(proto/conformance), or a file of tests/tests (session, files, faults, ...). A module on the path of a test names its
provider, as in tcp::read_past_end_returns_short. Tests without a provider are in column '-'. The checks are suites
too: fmt, build, doctests, clippy, rustdoc, features, package.

A test marked #[ignore = \"needs NAME\"] runs when NAME is present. As root, or if sudo asks no password, the command
installs missing Debian packages with apt-get; --no-install prevents that. The summary names what is still missing.

If the headers of libibverbs are installed, everything is built with the feature verbs. Tests that need an RDMA device
use the device whose IP address is in DAFS_VERBS_ADDRESS. Without that they run after the suites, in a guest with a
Soft-RoCE device (tests/rdma-vm), in the row verbs. --suite verbs runs every suite on verbs alone.

Each suite writes its output to target/xtask/SUITE.log and SUITE.stderr.log. The output of a failing suite is also
printed in full. The last line counts tests and checks; 'skipped' counts ignored tests and table cells not run.
The exit status is 0 if nothing failed, 1 if something did, 2 if the tests could not be run.

Examples:
  cargo xtask test                               everything, as CI runs it
  cargo xtask test --list                        name the suites
  cargo xtask test --suite session --no-lint     one suite on every provider
  cargo xtask test --provider shm --no-lint      every suite, on shared memory only
  cargo xtask test --suite files append          the tests of one suite with 'append' in their name";

/// What to run; without options, everything.
#[derive(Args, Clone, Default)]
struct TestArgs {
    /// Run only tests whose name contains this
    filter: Option<String>,
    /// Run only this suite or check, as --list names it (repeatable; `unit` is the unit tests of every crate)
    #[arg(long, value_name = "NAME", value_delimiter = ',')]
    suite: Vec<String>,
    /// Run only tests of this provider: tcp, shm, sim, verbs, or - for those that need none (repeatable)
    #[arg(long, value_name = "NAME", value_delimiter = ',', allow_hyphen_values = true)]
    provider: Vec<String>,
    /// Name the suites, providers and optional needs, and run nothing
    #[arg(long)]
    list: bool,
    /// Leave out fmt, clippy, rustdoc, features and package
    #[arg(long)]
    no_lint: bool,
    /// Do not install Debian packages that optional tests need
    #[arg(long)]
    no_install: bool,
    /// Print the output of passing suites too
    #[arg(short, long)]
    verbose: bool,
}

fn main() -> ExitCode {
    match run(Cli::parse().command) {
        Ok(true) => ExitCode::SUCCESS,
        Ok(false) => ExitCode::from(1),
        Err(error) => {
            eprintln!("xtask: {error:#}");
            ExitCode::from(2)
        }
    }
}

/// Whether nothing failed.
fn run(task: Task) -> anyhow::Result<bool> {
    match task {
        Task::Test(args) => run::test(&args),
        Task::Header => {
            header::write(&root())?.iter().for_each(|path| println!("made {}", path.display()));
            Ok(true)
        }
        Task::Dissector => {
            println!("made {}", dissector::write(&root())?.display());
            Ok(true)
        }
        Task::Install(args) => install::install(&root(), &args).map(|()| true),
        Task::C(CTask::Install(args)) => c::install(&root(), &args).map(|()| true),
        Task::Fio(FioTask::Install(args)) => fio::install(&root(), &args).map(|()| true),
        Task::Mpi(MpiTask::Install(args)) => mpi::install(&root(), &args).map(|()| true),
        Task::Miri(args) => nightly::miri(&root(), &args).map(|()| true),
        Task::Sanitize(args) => nightly::sanitize(&root(), &args).map(|()| true),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use clap::CommandFactory;

    #[test]
    fn cli_definition_is_consistent() {
        Cli::command().debug_assert();
    }

    #[test]
    fn provider_dash_is_a_value_not_an_option() {
        let cli = Cli::try_parse_from(["xtask", "test", "--provider", "-"]).unwrap();
        let Task::Test(args) = cli.command else { panic!("the task is test") };
        assert_eq!(args.provider, ["-"]);
    }
}
