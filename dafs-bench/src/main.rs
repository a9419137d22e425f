//! Entry point.
#![deny(unsafe_code)]

use std::io::Write;
use std::process::ExitCode;

use clap::Parser;
use dafs_bench::{cli::Cli, interrupt, run};

fn main() -> ExitCode {
    let cli = Cli::parse();
    match run::run(&cli) {
        Ok(()) => ExitCode::SUCCESS,
        Err(_) if interrupt::requested() => {
            // A server that is not ours keeps the file.
            let is_ours = cli.benchmark.options().server.is_none();
            let done = if is_ours { "; servers stopped, files removed" } else { "" };
            let _ = writeln!(std::io::stderr(), "dafs-bench: interrupted{done}");
            ExitCode::from(u8::try_from(interrupt::EXIT_INTERRUPTED).unwrap_or(1))
        }
        Err(error) => {
            // Where it cannot be said there is nobody to be told so: the exit status remains.
            let _ = writeln!(std::io::stderr(), "dafs-bench: {error:#}");
            ExitCode::FAILURE
        }
    }
}
