//! The `dafs` command: looks at, copies and changes files of a dafs server.
//!
//! Flags are parsed into one struct (`flags`), checked into settings (`config`), and carried out by one file per
//! subcommand (`cmd`). What it deliberately does not do: mount anything, or keep state between runs.
#![deny(unsafe_code)]

mod closed;
mod cmd;
mod config;
mod flags;
mod folder;
mod format;
mod local_time;
mod mount_flags;
mod mount_helper;
mod output;
mod quote;
mod remote;
mod report;
mod signals;
mod stripe_flags;
mod walk;

use std::process::ExitCode;

fn main() -> ExitCode {
    signals::unblock();
    let cli = flags::Cli::read();
    config::start_logging(cli.global.verbose);
    let done = config::Settings::from_flags(&cli.global, &cli.command)
        .and_then(|settings| cmd::run(&cli.command, settings));
    dafs_proto::transport::finish_closing();
    match done {
        Ok(code) => code,
        Err(failure) => failure.exit(),
    }
}
