//! Entry point.
#![deny(unsafe_code)]

use std::io::Write;
use std::process::ExitCode;

use clap::Parser;
use dafs_bench::{cli::Cli, interrupt, run};

fn main() -> ExitCode {
    match run::run(&Cli::parse()) {
        Ok(()) => ExitCode::SUCCESS,
        Err(_) if interrupt::requested() => {
            let _ = writeln!(std::io::stderr(), "dafs-bench: interrupted; servers stopped, files removed");
            ExitCode::from(u8::try_from(interrupt::EXIT_INTERRUPTED).unwrap_or(1))
        }
        // A reader that has seen enough, such as `head`, is no failure.
        Err(error) if broken_pipe(&error) => ExitCode::SUCCESS,
        Err(error) => {
            // Where it cannot be said there is nobody to be told so: the exit status remains.
            let _ = writeln!(std::io::stderr(), "dafs-bench: {error:#}");
            ExitCode::FAILURE
        }
    }
}

fn broken_pipe(error: &anyhow::Error) -> bool {
    let error = error.root_cause();
    error.downcast_ref::<std::io::Error>().is_some_and(|error| error.kind() == std::io::ErrorKind::BrokenPipe)
}
