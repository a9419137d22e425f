//! Entry point.

use std::process::ExitCode;

use clap::Parser;
use dafs_bench::{cli::Cli, interrupt, run};

fn main() -> ExitCode {
    match run::run(&Cli::parse()) {
        Ok(()) => ExitCode::SUCCESS,
        Err(_) if interrupt::requested() => {
            eprintln!("dafs-bench: interrupted; servers stopped, files removed");
            ExitCode::from(u8::try_from(interrupt::EXIT_INTERRUPTED).unwrap_or(1))
        }
        Err(error) => {
            eprintln!("dafs-bench: {error:#}");
            ExitCode::FAILURE
        }
    }
}
